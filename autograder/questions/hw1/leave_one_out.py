"""hw1/leave_one_out: the mean of the others as baseline (RLOO)."""

import torch

from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw1 import common
from policy_gradients.advantages import leave_one_out


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
    out = common.compare(rewards, baseline, mistakes)
    if "baseline_returned" in mistakes:
        out = baseline  # in its own shape: (prompts, 1) or a scalar when the own reward is in it
    if "factor_inverted" in mistakes:
        out = out * (count - 1) ** 2 / count**2
    elif "factor_twice" in mistakes:
        out = out * count / (count - 1)
    if "divided_by_group" in mistakes:
        out = out / count
    out = common.divide_by_spread(out, rewards, axis, mistakes)
    return common.reshape(out, mistakes)


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
    *common.mistakes(WHERE, "wrong_axis"),
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
    *common.mistakes(WHERE, "baseline_returned"),
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
    *common.standardised(
        "The result is also divided by the standard deviation of the group.",
        "RLOO leaves the spread alone.",
    ),
    *common.mistakes(WHERE, "flattened", "column"),
)

QUESTION = Question(
    id="hw1/leave_one_out",
    title="The mean of the others as baseline",
    points=2,
    signature="(rewards)",
    lecture=WHERE,
    generate=common.generate,
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
