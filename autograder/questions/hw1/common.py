"""What the questions on rewards (prompts, group) share: cases, switches and texts of mistakes."""

from autograder.cases import Case
from autograder.questions.base import Mistake

TEXTS = {  # of mistakes: cause and hint
    "wrong_axis": (
        "The mean runs over the wrong axis: over prompts instead of over the responses to "
        "one prompt.",
        "rewards is (prompts, group): a group is a row.",
    ),
    "ratio": (
        "The rewards are divided by the mean instead of compared with it by subtraction.",
        "Advantage = reward - baseline.",
    ),
    "divided_by_mean": ("The difference is also divided by the mean.", "Only subtract."),
    "baseline_returned": (
        "The baseline is returned instead of the advantage.",
        "Advantage = reward - baseline.",
    ),
    "flattened": (
        "The result is flattened: the axes (prompts, group) are gone.",
        "Return the shape you were given.",
    ),
    "column": (
        "The result has the shape (batch, 1): the axes (prompts, group) are gone.",
        "Return the shape you were given; the caller flattens.",
    ),
}


def mistakes(lecture: str, *names: str) -> tuple[Mistake, ...]:
    """Mistakes that several questions know by the same name and text."""
    return tuple(Mistake(name, *TEXTS[name], lecture) for name in names)


def standardised(cause: str, hint: str) -> tuple[Mistake, ...]:
    """Dividing by a standard deviation where none is asked for, with either ddof."""
    names = ("standardised", "standardised_ddof_0")
    return tuple(Mistake(name, cause, hint, "02, [BL-10]") for name in names)


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


def compare(rewards, mean, mistakes):
    """Reward minus mean, or what becomes of the two by mistake."""
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
    return out


def divide_by_spread(out, rewards, axis, mistakes):
    if "standardised" in mistakes:
        out = out / (rewards.std(axis, keepdim=True) + 1e-4)
    elif "standardised_ddof_0" in mistakes:
        out = out / (rewards.std(axis, correction=0, keepdim=True) + 1e-4)
    return out


def reshape(out, mistakes):
    if "flattened" in mistakes:
        out = out.flatten()
    elif "column" in mistakes:
        out = out.reshape(-1, 1)
    return out
