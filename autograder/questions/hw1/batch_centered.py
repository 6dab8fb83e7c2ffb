"""hw1/batch_centered: the mean of the whole batch as baseline."""

from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw1 import common
from policy_gradients.advantages import batch_centered


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
    out = common.compare(rewards, mean, mistakes)
    if "group_standardised" in mistakes:
        out = out / (rewards.std(1, keepdim=True) + 1e-4)
    elif "standardised" in mistakes:
        out = out / rewards.std()
    elif "standardised_ddof_0" in mistakes:
        out = out / rewards.std(correction=0)
    return common.reshape(out, mistakes)


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
    *common.mistakes(WHERE, "ratio"),
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
    *common.mistakes(WHERE, "divided_by_mean", "baseline_returned"),
    *common.standardised(
        "The result is also divided by the standard deviation.",
        "Only subtract; dividing by a spread is another method.",
    ),
    Mistake(
        "group_standardised",
        "The result is also divided by the standard deviation of each prompt's group.",
        "Only subtract; dividing by a spread is another method.",
        "02, [BL-10]",
    ),
    *common.mistakes(WHERE, "flattened", "column"),
)

QUESTION = Question(
    id="hw1/batch_centered",
    title="The batch mean as baseline",
    points=1,
    signature="(rewards)",
    lecture=WHERE,
    generate=common.generate,
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
