"""hw1/leave_one_out: the mean of the others as baseline (RLOO)."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from policy_gradients.advantages import leave_one_out


def generate(draw, final):
    sizes = [(4, 3), (2, 6), (3, 2)] if final else [(3, 4), (5, 2), (2, 3)]
    cases = [
        Case(name=f"{prompts} prompts, {group} responses", args=(draw.rewards(prompts, group),))
        for prompts, group in sizes
    ]
    rewards = 10 * draw.rewards(3, 4)  # far above any usual clip
    rewards[1] = 0.625
    cases.append(Case(name="one group all equal", args=(rewards,)))
    return cases


def buggy(rewards, *, mistakes=frozenset()):
    axis = 0 if "wrong_axis" in mistakes else 1
    if "batch_others" in mistakes:
        total, count = rewards.sum(), rewards.numel()
    else:
        total, count = rewards.sum(axis, keepdim=True), rewards.shape[axis]
    if "divisor_group" in mistakes:
        baseline = (total - rewards) / count
    elif "divisor_prompts" in mistakes:
        baseline = (total - rewards) / (rewards.shape[0] - 1)
    elif "divisor_number_of_prompts" in mistakes:
        baseline = (total - rewards) / rewards.shape[0]
    elif "divisor_batch" in mistakes:
        baseline = (total - rewards) / (rewards.numel() - 1)
    elif "own_included" in mistakes:
        baseline = total / count
    elif "batch_mean" in mistakes:
        baseline = rewards.mean()
    elif "whole_sum" in mistakes:
        baseline = total
    elif "divisor_too_small" in mistakes:
        baseline = total / (count - 1)
    elif "sum_of_others" in mistakes:
        baseline = total - rewards
    elif "best_of_others" in mistakes:
        rows = rewards.movedim(axis, 1)
        best = [
            rows[:, [j for j in range(rows.shape[1]) if j != i]].amax(1)
            for i in range(rows.shape[1])
        ]
        baseline = torch.stack(best, 1).movedim(1, axis)
    elif "median_of_others" in mistakes:
        rows = rewards.movedim(axis, 1)
        middle = [
            rows[:, [j for j in range(rows.shape[1]) if j != i]].median(1).values
            for i in range(rows.shape[1])
        ]
        baseline = torch.stack(middle, 1).movedim(1, axis)
    elif "mean_minus_own" in mistakes:
        baseline = total / count - rewards
    elif "neighbour" in mistakes:
        baseline = rewards.roll(1, dims=axis)
    elif "next_neighbour" in mistakes:
        baseline = rewards.roll(-1, dims=axis)
    else:
        baseline = (total - rewards) / (count - 1)
    if "sign" in mistakes:
        out = baseline - rewards
    elif "added" in mistakes:
        out = rewards + baseline
    elif "baseline_returned" in mistakes:
        out = baseline
    else:
        out = rewards - baseline
    if "factor_inverted" in mistakes:
        out = out * (count - 1) ** 2 / count**2
    elif "factor_twice" in mistakes:
        out = out * count / (count - 1)
    if "divided_by_group" in mistakes:
        out = out / count
    if "standardised" in mistakes:
        out = out / (rewards.std(axis, keepdim=True) + 1e-4)
    elif "standardised_ddof_0" in mistakes:
        out = out / (rewards.std(axis, correction=0, keepdim=True) + 1e-4)
    if "flattened" in mistakes:
        out = out.flatten()
    elif "column" in mistakes:
        out = out.reshape(-1, 1)
    return out


WHERE = "02, [BL-8]"
MISTAKES = (
    Mistake(
        "divisor_group",
        "The others' sum is divided by G instead of by G-1, so the baseline is too small.",
        "How many others are there?",
        WHERE,
    ),
    Mistake(
        "divisor_prompts",
        "The others' sum is divided by the number of prompts minus 1 instead of by G-1.",
        "rewards is (prompts, group): G is shape[1].",
        WHERE,
    ),
    Mistake(
        "divisor_number_of_prompts",
        "The others' sum is divided by the number of prompts instead of by G-1.",
        "How many others are there? rewards is (prompts, group).",
        WHERE,
    ),
    Mistake(
        "divisor_batch",
        "The sum of the group's others is divided by the number of all others in the batch.",
        "How many others are there in the group?",
        WHERE,
    ),
    Mistake(
        "batch_mean",
        "The mean of the whole batch, own reward included, is subtracted.",
        "Compare with the other answers to the same prompt only.",
        "02, [BL-6]",
    ),
    Mistake(
        "whole_sum",
        "The sum of the whole group, own reward included, is subtracted.",
        "Take the own reward out, and divide by the number of others.",
        WHERE,
    ),
    Mistake(
        "mean_minus_own",
        "The own reward is subtracted from the group's mean instead of from the group's sum.",
        "First the others' sum, then divide by G-1.",
        WHERE,
    ),
    Mistake(
        "median_of_others",
        "The median of the others is subtracted instead of their mean.",
        "Average the others.",
        WHERE,
    ),
    Mistake(
        "next_neighbour",
        "The reward of the next response is subtracted instead of the mean of all the others.",
        "All the others count equally.",
        WHERE,
    ),
    Mistake(
        "factor_inverted",
        "Centring is multiplied by (G-1)/G; to leave one out it has to be multiplied by G/(G-1).",
        "Which of the two is larger: the distance to the group's mean or to the others' mean?",
        "02, [BL-7]",
    ),
    Mistake(
        "own_included",
        "The own reward is included in the mean: that is group-centring, smaller by the "
        "factor (G-1)/G.",
        "Take the response's own reward out of the sum first.",
        "02, [BL-7]",
    ),
    Mistake(
        "divisor_too_small",
        "The whole sum, own reward included, is divided by G-1.",
        "Take the response's own reward out of the sum as well.",
        WHERE,
    ),
    Mistake(
        "sum_of_others",
        "The sum of the others is subtracted instead of their mean.",
        "Divide by the number of others.",
        WHERE,
    ),
    Mistake(
        "best_of_others",
        "The best of the others is subtracted instead of their mean.",
        "Average the others.",
        WHERE,
    ),
    Mistake(
        "neighbour",
        "The reward of the response before is subtracted instead of the mean of all the others.",
        "All the others count equally.",
        WHERE,
    ),
    Mistake(
        "batch_others",
        "The mean runs over all other responses of the batch instead of those to the same prompt.",
        "Compare with answers to the same prompt only.",
        WHERE,
    ),
    Mistake(
        "wrong_axis",
        "The mean runs over the wrong axis: over prompts instead of over the responses to "
        "one prompt.",
        "rewards is (prompts, group): a group is a row.",
        WHERE,
    ),
    Mistake(
        "sign",
        "The sign is flipped: baseline minus reward.",
        "An answer better than the others gets a positive advantage.",
        WHERE,
    ),
    Mistake(
        "added",
        "The baseline is added instead of subtracted.",
        "The advantages of a group have to add up to 0.",
        WHERE,
    ),
    Mistake(
        "baseline_returned",
        "The baseline is returned instead of the advantage.",
        "Advantage = reward - baseline.",
        WHERE,
    ),
    Mistake(
        "factor_twice",
        "The factor G/(G-1) is applied on top of leaving one out, which already contains it.",
        "Either leave the own reward out, or centre and rescale; not both.",
        WHERE,
    ),
    Mistake(
        "divided_by_group",
        "The result is also divided by the group size.",
        "Averaging over responses belongs to the loss.",
        WHERE,
    ),
    Mistake(
        "standardised",
        "The result is also divided by the standard deviation of the group.",
        "RLOO leaves the spread alone.",
        "02, [BL-10]",
    ),
    Mistake(
        "standardised_ddof_0",
        "The result is also divided by the standard deviation of the group.",
        "RLOO leaves the spread alone.",
        "02, [BL-10]",
    ),
    Mistake(
        "flattened",
        "The result is flattened: the axes (prompts, group) are gone.",
        "Return the shape you were given.",
        WHERE,
    ),
    Mistake(
        "column",
        "The result has the shape (batch, 1): the axes (prompts, group) are gone.",
        "Return the shape you were given; the caller flattens.",
        WHERE,
    ),
)

QUESTION = Question(
    id="hw1/leave_one_out",
    title="The mean of the others as baseline",
    points=2,
    signature="(rewards)",
    lecture=WHERE,
    generate=generate,
    reference=leave_one_out,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        "divisor_group divisor_prompts divisor_number_of_prompts divisor_batch own_included "
        "divisor_too_small sum_of_others best_of_others median_of_others neighbour next_neighbour "
        "batch_mean whole_sum mean_minus_own",
        "batch_others: wrong_axis best_of_others median_of_others neighbour next_neighbour "
        "batch_mean divisor_prompts divisor_number_of_prompts divisor_batch",
        "wrong_axis: batch_mean divisor_prompts divisor_number_of_prompts",
        "sign added baseline_returned",
        "added: sum_of_others mean_minus_own",  # the own reward cancels
        "sum_of_others whole_sum: sign added",
        "own_included factor_twice factor_inverted",
        "own_included batch_others",  # together they are batch_mean
        "factor_inverted factor_twice divided_by_group",
        "factor_inverted: divisor_group divisor_prompts divisor_number_of_prompts divisor_batch "
        "divisor_too_small sum_of_others best_of_others median_of_others neighbour next_neighbour "
        "batch_mean whole_sum mean_minus_own batch_others added baseline_returned",
        "standardised standardised_ddof_0",
        "flattened column",
    ),
)
