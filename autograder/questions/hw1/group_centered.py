"""hw1/group_centered: the mean of a prompt's own responses as baseline (Dr. GRPO)."""

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from policy_gradients.advantages import group_centered


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
    if "leave_one_out" in mistakes:
        out = out * group / (group - 1)
    elif "factor_twice" in mistakes:
        out = out * (group - 1) / group
    elif "divided_by_group" in mistakes:
        out = out / group
    if "batch_standardised" in mistakes:
        out = out / rewards.std()
    elif "standardised" in mistakes:
        out = out / (rewards.std(axis, keepdim=True) + 1e-4)
    elif "standardised_ddof_0" in mistakes:
        out = out / (rewards.std(axis, correction=0, keepdim=True) + 1e-4)
    if "interleaved" in mistakes:
        out = out.T.reshape(prompts, group)
    if "flattened" in mistakes:
        out = out.flatten()
    elif "column" in mistakes:
        out = out.reshape(-1, 1)
    return out


WHERE = "02, [BL-7]"
MISTAKES = (
    Mistake(
        "batch_mean",
        "The mean of the whole batch is subtracted instead of the mean of the prompt's own group.",
        "Each prompt has its own mean; compare answers to the same prompt only.",
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
    Mistake(
        "ratio",
        "The rewards are divided by the mean instead of compared with it by subtraction.",
        "Advantage = reward - baseline.",
        WHERE,
    ),
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
    Mistake(
        "standardised",
        "The result is also divided by the standard deviation of the group.",
        "Dr. GRPO leaves the spread alone; dividing is the next question.",
        "02, [BL-10]",
    ),
    Mistake(
        "standardised_ddof_0",
        "The result is also divided by the standard deviation of the group.",
        "Dr. GRPO leaves the spread alone; dividing is the next question.",
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
    id="hw1/group_centered",
    title="The group mean as baseline",
    points=2,
    signature="(rewards)",
    lecture=WHERE,
    generate=generate,
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
