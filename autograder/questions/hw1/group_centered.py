"""hw1/group_centered: the mean of a prompt's own responses as baseline (Dr. GRPO)."""

from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw1 import common
from policy_gradients.advantages import group_centered


def buggy(rewards, *, mistakes=frozenset()):
    prompts, group = rewards.shape
    if "interleaved" in mistakes:  # flat index i belongs to prompt i % prompts
        rewards = rewards.reshape(group, prompts).T
    axis = 0 if "wrong_axis" in mistakes else 1
    if "batch_mean" in mistakes:
        mean = rewards.mean()
    elif "best" in mistakes:
        mean = rewards.amax(axis, keepdim=True)
    elif "median" in mistakes:
        mean = rewards.median(axis, keepdim=True).values
    elif "first" in mistakes:
        mean = rewards.narrow(axis, 0, 1)
    elif "worst" in mistakes:
        mean = rewards.amin(axis, keepdim=True)
    elif "sum" in mistakes:
        mean = rewards.sum(axis, keepdim=True)
    elif "divided_by_prompts" in mistakes:
        mean = rewards.sum(axis, keepdim=True) / prompts
    elif "divisor_too_small" in mistakes:
        mean = rewards.sum(axis, keepdim=True) / (group - 1)
    elif "batch_others" in mistakes:
        mean = (rewards.sum() - rewards) / (rewards.numel() - 1)
    elif "next_response" in mistakes:
        mean = rewards.roll(-1, axis)
    elif "two_way" in mistakes:
        mean = rewards.mean(1, keepdim=True) + rewards.mean(0, keepdim=True) - rewards.mean()
    else:
        mean = rewards.mean(axis, keepdim=True)
    out = common.compare(rewards, mean, mistakes)
    if "leave_one_out" in mistakes:
        out = out * group / (group - 1)
    elif "factor_twice" in mistakes:
        out = out * (group - 1) / group
    elif "divided_by_group" in mistakes:
        out = out / group
    if "batch_standardised" in mistakes:
        out = out / rewards.std()
    out = common.divide_by_spread(out, rewards, axis, mistakes)
    if "interleaved" in mistakes:
        out = out.T.reshape(prompts, group)
    return common.reshape(out, mistakes)


WHERE = "02, [BL-7]"
MISTAKES = (
    Mistake(
        "batch_mean",
        "The mean of the whole batch is subtracted instead of the mean of the prompt's own group.",
        "Each prompt has its own mean; compare answers to the same prompt only.",
        WHERE,
    ),
    *common.mistakes(WHERE, "wrong_axis"),
    Mistake(
        "interleaved",
        "Groups are read interleaved: the responses to one prompt are taken to lie apart "
        "instead of side by side.",
        "A row of rewards is one prompt's group; no reshape is needed.",
        WHERE,
    ),
    Mistake(
        "best",
        "The best reward of the group is subtracted instead of the mean.",
        "The advantages of a group have to add up to 0.",
        WHERE,
    ),
    Mistake(
        "median",
        "The median of the group is subtracted instead of the mean.",
        "The advantages of a group have to add up to 0.",
        WHERE,
    ),
    Mistake(
        "first",
        "The first response's reward is used as the baseline of its group.",
        "All responses count equally in the mean.",
        WHERE,
    ),
    Mistake(
        "sum",
        "The sum of the group is subtracted instead of its mean.",
        "Divide by the group size.",
        WHERE,
    ),
    Mistake(
        "worst",
        "The smallest reward of the group is subtracted instead of the mean.",
        "The advantages of a group have to add up to 0.",
        WHERE,
    ),
    Mistake(
        "divided_by_prompts",
        "The sum of the group is divided by the number of prompts instead of by the group size.",
        "rewards is (prompts, group): G is shape[1].",
        WHERE,
    ),
    Mistake(
        "divisor_too_small",
        "The sum of the group, own reward included, is divided by G-1.",
        "The mean of G numbers is their sum divided by G.",
        WHERE,
    ),
    Mistake(
        "batch_others",
        "The mean of all other responses of the batch is subtracted.",
        "Each prompt has its own mean, the own reward included.",
        WHERE,
    ),
    Mistake(
        "next_response",
        "The next response's reward is subtracted instead of the mean of the group.",
        "All responses count equally in the mean.",
        WHERE,
    ),
    Mistake(
        "two_way",
        "The rows are centred, and the columns as well.",
        "The i-th answers to different prompts have nothing in common; centre the rows only.",
        WHERE,
    ),
    *common.mistakes(WHERE, "ratio"),
    Mistake(
        "batch_standardised",
        "The result is also divided by the standard deviation of the batch.",
        "Only subtract; dividing by a spread is another method.",
        "02, [BL-10]",
    ),
    Mistake(
        "sign",
        "The sign is flipped: mean minus reward.",
        "An answer better than its group gets a positive advantage.",
        WHERE,
    ),
    Mistake(
        "added",
        "The mean is added instead of subtracted.",
        "The advantages of a group have to add up to 0.",
        WHERE,
    ),
    *common.mistakes(WHERE, "divided_by_mean", "baseline_returned"),
    Mistake(
        "leave_one_out",
        "The own reward is left out of the mean: that is leave-one-out, larger by the "
        "factor G/(G-1).",
        "Here the mean includes the response itself; leaving it out is another question.",
        "02, [BL-8]",
    ),
    Mistake(
        "factor_twice",
        "The factor (G-1)/G is applied on top of centring, which already contains it.",
        "Only subtract the mean; the factor is a consequence, not a step.",
        WHERE,
    ),
    Mistake(
        "divided_by_group",
        "The result is also divided by the group size.",
        "Only subtract; averaging over responses belongs to the loss.",
        WHERE,
    ),
    *common.standardised(
        "The result is also divided by the standard deviation of the group.",
        "Dr. GRPO leaves the spread alone; dividing is the next question.",
    ),
    *common.mistakes(WHERE, "flattened", "column"),
)

QUESTION = Question(
    id="hw1/group_centered",
    title="The group mean as baseline",
    points=2,
    signature="(rewards)",
    lecture=WHERE,
    generate=common.generate,
    reference=group_centered,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        "batch_mean batch_others two_way: wrong_axis interleaved",
        "wrong_axis interleaved",
        "batch_mean batch_others best worst median first sum divided_by_prompts divisor_too_small "
        "next_response two_way",
        "ratio: leave_one_out",
        "batch_standardised: standardised standardised_ddof_0",
        "sign added divided_by_mean baseline_returned ratio",
        "leave_one_out factor_twice divided_by_group",
        "standardised standardised_ddof_0",
        "flattened column",
    ),
)
