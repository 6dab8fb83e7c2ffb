"""hw1/batch_centered: the mean of the whole batch as baseline."""

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from policy_gradients.advantages import batch_centered


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
    if "group_mean" in mistakes:
        mean = rewards.mean(1, keepdim=True)
    elif "wrong_axis" in mistakes:
        mean = rewards.mean(0, keepdim=True)
    elif "median" in mistakes:
        mean = rewards.flatten().sort().values[(rewards.numel() - 1) // 2]
    elif "best" in mistakes:
        mean = rewards.max()
    elif "worst" in mistakes:
        mean = rewards.min()
    elif "sum" in mistakes:
        mean = rewards.sum()
    elif "divided_by_prompts" in mistakes:
        mean = rewards.sum() / rewards.shape[0]
    elif "divided_by_group" in mistakes:
        mean = rewards.sum() / rewards.shape[1]
    elif "group_sum" in mistakes:
        mean = rewards.sum(1, keepdim=True)
    elif "group_others" in mistakes:
        mean = (rewards.sum(1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
    elif "others_only" in mistakes:
        mean = (rewards.sum() - rewards) / (rewards.numel() - 1)
    else:
        mean = rewards.mean()
    if "sign" in mistakes:
        out = mean - rewards
    elif "added" in mistakes:
        out = rewards + mean
    elif "divided_by_mean" in mistakes:
        out = (rewards - mean) / mean
    elif "baseline_returned" in mistakes:
        out = rewards * 0 + mean
    else:
        out = rewards - mean
    if "ratio" in mistakes:
        out = rewards / mean
    if "group_standardised" in mistakes:
        out = out / (rewards.std(1, keepdim=True) + 1e-4)
    elif "standardised" in mistakes:
        out = out / rewards.std()
    elif "standardised_ddof_0" in mistakes:
        out = out / rewards.std(correction=0)
    if "flattened" in mistakes:
        out = out.flatten()
    elif "column" in mistakes:
        out = out.reshape(-1, 1)
    return out


WHERE = "02, [BL-6]"
MISTAKES = (
    Mistake(
        "group_mean",
        "The mean of each prompt's own responses is subtracted instead of the mean of the "
        "whole batch.",
        "One number for the whole batch; the mean per prompt is the next question.",
        "02, [BL-7]",
    ),
    Mistake(
        "wrong_axis",
        "The mean runs over one axis only, the prompts, separately for each response number.",
        "One number for the whole batch.",
        WHERE,
    ),
    Mistake(
        "group_others",
        "The mean of the other responses to the same prompt is subtracted: that is leave-one-out.",
        "One number for the whole batch, the own reward included.",
        "02, [BL-8]",
    ),
    Mistake(
        "group_sum",
        "The sum of each prompt's own responses is subtracted.",
        "One number for the whole batch: its mean.",
        WHERE,
    ),
    Mistake(
        "divided_by_prompts",
        "The sum of all rewards is divided by the number of prompts only.",
        "Divide by how many rewards there are: prompts times responses.",
        WHERE,
    ),
    Mistake(
        "divided_by_group",
        "The sum of all rewards is divided by the number of responses to one prompt only.",
        "Divide by how many rewards there are: prompts times responses.",
        WHERE,
    ),
    Mistake(
        "best",
        "The best reward of the batch is subtracted instead of the mean.",
        "The advantages of a batch have to add up to 0.",
        WHERE,
    ),
    Mistake(
        "worst",
        "The smallest reward of the batch is subtracted instead of the mean.",
        "The advantages of a batch have to add up to 0.",
        WHERE,
    ),
    Mistake(
        "ratio",
        "The rewards are divided by the mean instead of compared with it by subtraction.",
        "Advantage = reward - baseline.",
        WHERE,
    ),
    Mistake(
        "median",
        "The median is subtracted instead of the mean.",
        "The baseline of [BL-6] is the average reward.",
        WHERE,
    ),
    Mistake(
        "sum",
        "The sum of the rewards is subtracted instead of their mean.",
        "Divide by how many rewards there are.",
        WHERE,
    ),
    Mistake(
        "others_only",
        "Each reward is left out of its own mean: that is leave-one-out over the batch.",
        "Here every reward counts in the mean, its own included.",
        "02, [BL-8]",
    ),
    Mistake(
        "sign",
        "The sign is flipped: mean minus reward.",
        "An answer better than the mean gets a positive advantage.",
        WHERE,
    ),
    Mistake(
        "added",
        "The mean is added instead of subtracted.",
        "The advantages of a batch have to add up to 0.",
        WHERE,
    ),
    Mistake(
        "divided_by_mean", "The difference is also divided by the mean.", "Only subtract.", WHERE
    ),
    Mistake(
        "baseline_returned",
        "The baseline is returned instead of the advantage.",
        "Advantage = reward - baseline.",
        WHERE,
    ),
    Mistake(
        "standardised",
        "The result is also divided by the standard deviation.",
        "Only subtract; dividing by a spread is another method.",
        "02, [BL-10]",
    ),
    Mistake(
        "standardised_ddof_0",
        "The result is also divided by the standard deviation.",
        "Only subtract; dividing by a spread is another method.",
        "02, [BL-10]",
    ),
    Mistake(
        "group_standardised",
        "The result is also divided by the standard deviation of each prompt's group.",
        "Only subtract; dividing by a spread is another method.",
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
    id="hw1/batch_centered",
    title="The batch mean as baseline",
    points=1,
    signature="(rewards)",
    lecture=WHERE,
    generate=generate,
    reference=batch_centered,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        "group_mean wrong_axis median sum others_only best worst divided_by_prompts "
        "divided_by_group group_sum group_others",
        "sign added divided_by_mean baseline_returned ratio",
        "standardised standardised_ddof_0 group_standardised",
        "group_sum group_others added",
        "flattened column",
    ),
)
