"""hw3/dapo_filter: which groups have something to say (dynamic sampling)."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from policy_gradients.filters import dapo_filter


def generate(draw, final):
    kinds = [
        lambda low, high, g: torch.full((g,), low),  # all wrong
        lambda low, high, g: torch.full((g,), high),  # all right
        lambda low, high, g: torch.where(torch.arange(g) == 1, high, low),  # one right
        lambda low, high, g: torch.where(torch.arange(g) == 0, low, high),  # one wrong
        lambda low, high, g: torch.full((g,), low + 0.25 * (high - low)),  # equal, partly right
        lambda low, high, g: torch.full((g,), low + 0.75 * (high - low)),
        lambda low, high, g: torch.where(torch.arange(g) == 1, low + 0.25 * (high - low), low),
        lambda low, high, g: torch.where(torch.arange(g) == 0, low + 0.75 * (high - low), high),
        lambda low, high, g: low + (high - low) * torch.linspace(0.1, 0.4, g),
        lambda low, high, g: low + (high - low) * torch.linspace(0.6, 0.9, g),
        lambda low, high, g: torch.where(torch.arange(g) == 0, high, low + 0.25 * (high - low)),
        lambda low, high, g: torch.where(torch.arange(g) == 1, low + 0.01 * (high - low), low),
        lambda low, high, g: torch.where(torch.arange(g) == 0, high - 0.01 * (high - low), high),
    ]

    def groups(low, high, size, only):
        rows = torch.stack([kinds[k](low, high, size).to(torch.float64) for k in only])
        rows = rows.gather(1, draw.uniform(*rows.shape).argsort(1))
        return rows[draw.uniform(len(rows)).argsort()]

    everything = range(len(kinds))
    sizes = (5, 3, 6, 2) if final else (4, 3, 5, 2)
    own = {"low": -1.0, "high": 2.0} if final else {"low": -2.0, "high": 1.0}
    away = {"low": 2.0, "high": 4.0} if final else {"low": 1.0, "high": 3.0}
    odd = {"low": 0.9, "high": 1.95} if final else {"low": 0.45, "high": 0.85}
    decimals = groups(0.0, 1.0, 7, (0, 1, 2, 3, 8, 9))  # a mean of 7 is not its own entries here
    low, high = (torch.tensor(x, dtype=torch.float64) for x in odd.values())
    between = low + (high - low) * decimals
    decimals = torch.where(decimals == 0, low, torch.where(decimals == 1, high, between))
    return [
        Case(name="partial credit", args=(groups(0.0, 1.0, sizes[0], everything),)),
        Case(
            name="right and wrong as integers",
            args=(groups(0.0, 1.0, sizes[1], (0, 1, 2, 3, 0, 2, 3)).long(),),
        ),
        Case(name="right and wrong as bool", args=(groups(0.0, 1.0, 4, (0, 1, 2, 3)).bool(),)),
        Case(
            name="low below 0", args=(groups(*own.values(), sizes[2], everything),), knobs=own
        ),
        Case(name="low and high that are no binary fractions", args=(decimals,), knobs=odd),
        Case(
            name="low above 0", args=(groups(*away.values(), sizes[3], everything),), knobs=away
        ),
    ]  # fmt: skip


def buggy(correctness, *, low=0.0, high=1.0, mistakes=frozenset()):
    scores = correctness.to(torch.float64)
    group = scores.shape[1]
    if "knobs_ignored" in mistakes:
        low, high = 0.0, 1.0
    elif "low_ignored" in mistakes:
        low = 0.0
    elif "high_ignored" in mistakes:
        high = 1.0
    axis = 0 if "wrong_axis" in mistakes else 1
    if "at_half" in mistakes:
        scores = torch.where(scores > (low + high) / 2, high, low)
    elif "only_high_is_right" in mistakes:
        scores = torch.where(scores == high, high, low)
    elif "all_but_low_is_right" in mistakes:
        scores = torch.where(scores == low, low, high)
    wrong, right = (scores == low).sum(axis), (scores == high).sum(axis)
    count = scores.shape[axis]
    if "any_low_drops" in mistakes:
        drop = (wrong > 0) | (right == count)
    elif "any_high_drops" in mistakes:
        drop = (wrong == count) | (right > 0)
    elif "any_extreme_drops" in mistakes:
        drop = (wrong > 0) | (right > 0)
    elif "only_all_wrong" in mistakes:
        drop = wrong == count
    elif "only_all_right" in mistakes:
        drop = right == count
    elif "both_needed" in mistakes:
        drop = (wrong == 0) | (right == 0)
    elif "no_contrast" in mistakes:
        drop = scores.amax(axis) == scores.amin(axis)
    elif "nothing_dropped" in mistakes:
        drop = (wrong == count) & (right == count)
    elif "mean_compared" in mistakes:
        mean = scores.mean(axis)
        drop = (mean <= low) | (mean >= high)
    elif "half_right" in mistakes:
        drop = scores.mean(axis) < (low + high) / 2
    else:
        drop = (wrong == count) | (right == count)
    if "dropped_returned" in mistakes:
        drop = ~drop
    keep = ~drop
    if "per_answer" in mistakes:
        return keep[:, None].expand(-1, group) if axis == 1 else keep
    return keep[:, None] if "column" in mistakes else keep


WHERE = "10, [VAR-6]"
MISTAKES = (
    Mistake(
        "dropped_returned",
        "The groups to drop are marked instead of the groups to keep.",
        "True means: keep.",
        WHERE,
    ),
    Mistake(
        "no_contrast",
        "Every group whose scores are all equal is dropped, also one that is equally half right.",
        "Only two kinds go: all entries equal to low, and all entries equal to high.",
        WHERE,
    ),
    Mistake(
        "only_all_wrong",
        "Only the all-wrong groups are dropped.",
        "An all-right group is as silent as an all-wrong one.",
        WHERE,
    ),
    Mistake(
        "only_all_right",
        "Only the all-right groups are dropped.",
        "An all-wrong group is as silent as an all-right one.",
        WHERE,
    ),
    Mistake(
        "mean_compared",
        "Silent groups are kept where low and high are no binary fractions: equality is asked of a "
        "rounded number, such as a mean, or low in another dtype.",
        "Compare the entries themselves with low and with high, then use all.",
        "08, [GR-4]",
    ),
    Mistake(
        "any_low_drops",
        "One wrong answer is enough to drop a group.",
        "Drop a group when all of its entries equal low: all, not any.",
        WHERE,
    ),
    Mistake(
        "any_high_drops",
        "One right answer is enough to drop a group.",
        "Drop a group when all of its entries equal high: all, not any.",
        WHERE,
    ),
    Mistake(
        "any_extreme_drops",
        "One right or wrong answer is enough to drop a group.",
        "Use all, not any.",
        WHERE,
    ),
    Mistake(
        "both_needed",
        "A group is kept only if it holds a completely right and a completely wrong answer.",
        "Partial credit counts as neither; such a group stays.",
        WHERE,
    ),
    Mistake(
        "only_high_is_right",
        "The right answers are counted, and everything below high is taken for wrong.",
        "A group is all wrong only if every entry equals low.",
        WHERE,
    ),
    Mistake(
        "all_but_low_is_right",
        "Everything above low is taken for right.",
        "A group is all right only if every entry equals high.",
        WHERE,
    ),
    Mistake(
        "at_half",
        "The scores are rounded to right or wrong first.",
        "Compare with low and high themselves; partial credit is neither.",
        WHERE,
    ),
    Mistake(
        "nothing_dropped",
        "No group is dropped: it would have to be all wrong and all right at once, or the whole "
        "batch would have to be alike.",
        "Either of the two is enough, and each row is judged on its own.",
        WHERE,
    ),
    Mistake(
        "wrong_axis",
        "The groups are read along the wrong axis: over prompts instead of over answers.",
        "correctness is (prompts, group): a group is a row.",
        WHERE,
    ),
    Mistake(
        "half_right",
        "A group is kept if its mean score is at least half way.",
        "How good a group is does not matter, only whether it is all wrong or all right.",
        WHERE,
    ),
    Mistake(
        "knobs_ignored",
        "The arguments low and high are ignored: 0 and 1 are used.",
        "Compare with the low and the high that are passed in.",
        WHERE,
    ),
    Mistake(
        "low_ignored",
        "The argument low is ignored: 0 is used.",
        "Compare with the low that is passed in.",
        WHERE,
    ),
    Mistake(
        "high_ignored",
        "The argument high is ignored: 1 is used.",
        "Compare with the high that is passed in.",
        WHERE,
    ),
    Mistake(
        "per_answer",
        "There is one entry per answer instead of one per group.",
        "Return the shape (prompts,).",
        WHERE,
    ),
    Mistake(
        "column",
        "The result has the shape (prompts, 1) instead of (prompts,).",
        "all(dim=1) drops the axis of its own accord.",
        WHERE,
    ),
)

RULES = (
    "no_contrast only_all_wrong only_all_right any_low_drops any_high_drops any_extreme_drops "
    "both_needed nothing_dropped half_right mean_compared"
)
SCORES = "only_high_is_right all_but_low_is_right at_half"
KNOBS = "knobs_ignored low_ignored high_ignored"
QUESTION = Question(
    id="hw3/dapo_filter",
    title="Groups with something to say (DAPO's filter)",
    points=2,
    signature="(correctness, *, low=0.0, high=1.0)",
    lecture=WHERE,
    generate=generate,
    reference=dapo_filter,
    buggy=buggy,
    mistakes=MISTAKES,
    result="bool",
    excludes=excluding(
        RULES,
        SCORES,
        KNOBS,
        f"{RULES}: {SCORES} {KNOBS} wrong_axis",  # a rule of another kind leaves no room for them
        f"{SCORES}: {KNOBS} wrong_axis",
        f"wrong_axis: {KNOBS}",
        "per_answer column",
        "per_answer wrong_axis",
        "dropped_returned: nothing_dropped wrong_axis",
        "nothing_dropped per_answer",
    ),
)
