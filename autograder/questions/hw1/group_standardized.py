"""hw1/group_standardized: centred and divided by the group's spread (GRPO)."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw1 import common
from policy_gradients.advantages import group_standardized


def generate(draw, final):
    sizes = (
        [(4, 3, 0.05), (3, 6, 0.2), (3, 2, 1e-4)]
        if final
        else [(3, 4, 0.1), (5, 2, 0.3), (2, 3, 1e-4)]
    )
    cases = []
    for prompts, group, eps in sizes:
        # The first group's spread is below a large eps, the others' far above it.
        width = torch.ones(prompts, 1, dtype=torch.float64)
        width[0] = 0.3 * eps if eps > 0.01 else 1.0
        rewards = width * draw.rewards(prompts, group) + 0.7
        cases.append(Case(name=f"eps {eps}", args=(rewards,), knobs={"eps": eps}))
    rewards = draw.rewards(3, 4)
    rewards[1] = 0.625  # exact in binary: the computed mean is exactly this, too
    cases.append(Case(name="one group all equal", args=(rewards,), knobs={"eps": 0.1}))
    # One answer far from all others: a value of (group - 1)/sqrt(group), above any usual clip.
    rewards = draw.uniform(2, 120 if final else 110, high=1e-3)
    rewards[:, 3] = 1.0
    cases.append(Case(name="one success among many", args=(rewards,), knobs={"eps": 1e-3}))
    # 0.7 and 0.1 are not: the computed mean misses them by a rounding error.
    rows = [[0.7] * 8, [0.1] * 8, [1.0, 0.0, 0.25, 0.5, 0.75, 0.3, 0.9, 0.6]]
    rewards = torch.tensor(rows, dtype=torch.float32)
    cases.append(
        Case(
            name="groups without contrast in float32",
            args=(rewards,),
            knobs={"eps": 1e-4},
            stability=True,
        )
    )
    return cases


def buggy(rewards, *, eps=1e-4, ddof=1, mistakes=frozenset()):
    axis = 0 if "wrong_axis" in mistakes else 1
    mean = rewards.mean() if "batch_mean" in mistakes else rewards.mean(axis, keepdim=True)
    centred = rewards if "not_centred" in mistakes else rewards - mean
    if "batch_std" in mistakes:
        variance = rewards.var(correction=ddof)
    else:
        variance = rewards.var(axis, correction=ddof, keepdim=True)
    given_eps = eps
    if "eps_missing" in mistakes:
        given_eps = eps = 0.0
    elif "eps_fixed" in mistakes:
        eps = 1e-4
    elif "eps_too_small" in mistakes:
        eps = 1e-8
    elif "eps_twice" in mistakes:
        eps = 2 * eps
    elif "eps_subtracted" in mistakes:
        eps = -eps
    elif "eps_root" in mistakes:
        eps = eps**0.5
    if "variance" in mistakes:
        spread = variance
    elif "eps_inside_root" in mistakes:
        spread, eps = (variance + eps).sqrt(), 0.0
    elif "eps_squared_inside_root" in mistakes:
        spread, eps = (variance + eps**2).sqrt(), 0.0
    elif "sum_of_squares" in mistakes:
        spread = (variance * (rewards.shape[axis] - ddof)).sqrt()
    elif "raw_second_moment" in mistakes:
        spread = rewards.square().mean(axis, keepdim=True).sqrt()
    elif "mean_for_spread" in mistakes:
        spread = mean
    elif "mean_absolute_deviation" in mistakes:
        spread = (rewards - mean).abs().mean(axis, keepdim=True)
    elif "range" in mistakes:
        spread = rewards.amax(axis, keepdim=True) - rewards.amin(axis, keepdim=True)
    else:
        spread = variance.sqrt()
    if "min_max" in mistakes:
        low, high = rewards.amin(axis, keepdim=True), rewards.amax(axis, keepdim=True)
        out = (rewards - low) / (high - low + eps)
    elif "eps_outside" in mistakes:
        out = centred / spread + eps
    elif "only_mean_divided" in mistakes:
        out = rewards - mean / (spread + eps)
    elif "not_divided" in mistakes:
        out = centred
    elif "multiplied" in mistakes:
        out = centred * (spread + eps)
    elif "eps_as_floor" in mistakes:
        out = centred / spread.clamp(min=eps)
    else:
        out = centred / (spread + eps)
    if "sign" in mistakes:
        out = -out
    if "twice" in mistakes:
        again = out.std(axis, correction=ddof, keepdim=True)
        out = (out - out.mean(axis, keepdim=True)) / (again + given_eps)
    if "leave_one_out" in mistakes:
        out = out * rewards.shape[1] / (rewards.shape[1] - 1)
    if "divided_by_root_group" in mistakes:
        out = out / rewards.shape[1] ** 0.5
    elif "multiplied_by_root_group" in mistakes:
        out = out * rewards.shape[1] ** 0.5
    if "clamped" in mistakes:
        out = out.clamp(-1, 1)
    elif "clamped_at_3" in mistakes:
        out = out.clamp(-3, 3)
    elif "clamped_at_5" in mistakes:
        out = out.clamp(-5, 5)
    elif "clamped_at_10" in mistakes:
        out = out.clamp(-10, 10)
    return common.reshape(out, mistakes)


WHERE = "02, [BL-10]"
MISTAKES = (
    Mistake(
        "eps_missing",
        "eps is missing: a group whose rewards are all equal divides 0 by 0.",
        "Add eps to the standard deviation before dividing.",
        WHERE,
    ),
    Mistake(
        "eps_fixed",
        "The argument eps is ignored: a constant of 1e-4 is used.",
        "Use the eps that is passed in.",
        WHERE,
    ),
    Mistake(
        "eps_too_small",
        "The argument eps has no effect: nothing is added to the standard deviation, or a constant "
        "as small as 1e-8. In float32 rounding alone then gives an all-equal group large "
        "advantages.",
        "Use the eps that is passed in; rounding errors of the mean are about 1e-7.",
        WHERE,
    ),
    Mistake(
        "eps_inside_root",
        "eps is added to the variance, inside the square root, instead of to the standard "
        "deviation.",
        "First take the root, then add eps.",
        WHERE,
    ),
    Mistake(
        "eps_as_floor",
        "eps is used as a floor of the standard deviation (the larger of the two) instead "
        "of being added.",
        "Add eps to the standard deviation.",
        WHERE,
    ),
    Mistake("eps_twice", "eps is added twice.", "Add eps to the standard deviation, once.", WHERE),
    Mistake(
        "eps_subtracted",
        "eps is subtracted from the standard deviation.",
        "Add it: the divisor must never become 0.",
        WHERE,
    ),
    Mistake(
        "eps_root",
        "The square root of eps is added to the standard deviation.",
        "First the root of the variance, then add eps as it is.",
        WHERE,
    ),
    Mistake(
        "eps_squared_inside_root",
        "The square of eps is added to the variance, inside the square root.",
        "First take the root, then add eps.",
        WHERE,
    ),
    Mistake(
        "eps_outside",
        "eps is added to the quotient instead of to the divisor: a bracket is missing.",
        "(r - mean) / (std + eps).",
        WHERE,
    ),
    Mistake(
        "only_mean_divided",
        "Only the mean is divided by the spread: a bracket is missing.",
        "(r - mean) / (std + eps).",
        WHERE,
    ),
    Mistake(
        "sum_of_squares",
        "The division is by the root of the sum of the squared deviations: their average is not "
        "taken.",
        "Divide the sum of squares by G-1 (or G) before taking the root.",
        WHERE,
    ),
    Mistake(
        "raw_second_moment",
        "The division is by the root of the mean squared reward: the mean is not subtracted there.",
        "A standard deviation squares the deviations from the mean.",
        WHERE,
    ),
    Mistake(
        "mean_for_spread",
        "The division is by the mean instead of the standard deviation.",
        "The result should not change when the same number is added to all rewards.",
        WHERE,
    ),
    Mistake(
        "leave_one_out",
        "The own reward is left out of the mean: larger by the factor G/(G-1).",
        "Here the mean includes the response itself.",
        "02, [BL-8]",
    ),
    Mistake(
        "variance",
        "The division is by the variance instead of the standard deviation.",
        "The result should not change when all rewards are doubled (up to eps).",
        WHERE,
    ),
    Mistake(
        "mean_absolute_deviation",
        "The division is by the mean absolute deviation instead of the standard deviation.",
        "Square, average, take the root.",
        WHERE,
    ),
    Mistake(
        "range",
        "The division is by the range (largest minus smallest) instead of the standard deviation.",
        "Square the deviations, average, take the root.",
        WHERE,
    ),
    Mistake(
        "min_max",
        "The rewards are scaled to 0..1 by the smallest and the largest of the group.",
        "Subtract the mean and divide by the standard deviation.",
        WHERE,
    ),
    Mistake(
        "multiplied",
        "The result is multiplied by the spread instead of divided by it.",
        "Standardising makes the spread 1.",
        WHERE,
    ),
    Mistake(
        "not_divided",
        "The rewards are centred but not divided by the standard deviation.",
        "That is the previous question; here the spread is divided out.",
        "02, [BL-7]",
    ),
    Mistake(
        "batch_std",
        "The standard deviation of the whole batch is used instead of the group's own.",
        "Mean and spread both belong to one group, a row of rewards.",
        WHERE,
    ),
    Mistake(
        "batch_mean",
        "The mean of the whole batch is subtracted instead of the group's own.",
        "Mean and spread both belong to one group, a row of rewards.",
        WHERE,
    ),
    Mistake(
        "wrong_axis",
        "Mean and spread run over the wrong axis: over prompts instead of over the "
        "responses to one prompt.",
        "rewards is (prompts, group): a group is a row.",
        WHERE,
    ),
    Mistake(
        "not_centred",
        "The mean is not subtracted before dividing.",
        "The advantages of a group have to add up to 0.",
        WHERE,
    ),
    Mistake(
        "sign",
        "The sign is flipped.",
        "An answer better than its group gets a positive advantage.",
        WHERE,
    ),
    Mistake(
        "twice",
        "The result is normalised twice: standardised, and then standardised again.",
        "Once is enough; the second pass only changes what eps does.",
        WHERE,
    ),
    Mistake(
        "divided_by_root_group",
        "The result is also divided by the root of the group size: a standard error "
        "instead of a standard deviation.",
        "No group size appears outside the mean and the variance.",
        WHERE,
    ),
    Mistake(
        "multiplied_by_root_group",
        "The result is too large by the root of the group size: the division is by a standard "
        "error instead of a standard deviation.",
        "No group size appears outside the mean and the variance.",
        WHERE,
    ),
    *(
        Mistake(
            name,
            f"The result is clamped to [-{at}, {at}].",
            "No clipping is asked for here.",
            WHERE,
        )
        for name, at in (
            ("clamped", 1),
            ("clamped_at_3", 3),
            ("clamped_at_5", 5),
            ("clamped_at_10", 10),
        )
    ),
    *common.mistakes(WHERE, "flattened"),
)

QUESTION = Question(
    id="hw1/group_standardized",
    title="Standardised in the group",
    points=3,
    signature="(rewards, *, eps=1e-4)",
    lecture=WHERE,
    generate=generate,
    reference=group_standardized,
    buggy=buggy,
    mistakes=MISTAKES,
    variants=({"ddof": 1}, {"ddof": 0}),
    zero=2e-3,
    excludes=excluding(
        "eps_missing eps_fixed eps_too_small eps_twice eps_subtracted eps_root "
        "eps_squared_inside_root eps_outside",
        "eps_missing eps_inside_root eps_as_floor",
        "eps_inside_root eps_squared_inside_root eps_twice eps_subtracted eps_root",
        "eps_as_floor: eps_twice eps_subtracted eps_root eps_outside eps_squared_inside_root",
        "eps_outside only_mean_divided: multiplied not_divided min_max eps_as_floor twice",
        "eps_outside only_mean_divided",
        "sum_of_squares raw_second_moment mean_for_spread: variance eps_inside_root "
        "mean_absolute_deviation range eps_squared_inside_root not_divided min_max batch_std "
        "divided_by_root_group multiplied_by_root_group",
        "sum_of_squares raw_second_moment mean_for_spread",
        "eps_squared_inside_root: variance mean_absolute_deviation range not_divided min_max",
        "eps_twice eps_subtracted eps_root: not_divided multiplied min_max",
        "divided_by_root_group multiplied_by_root_group leave_one_out",
        "clamped clamped_at_3 clamped_at_5 clamped_at_10",
        "clamped clamped_at_3 clamped_at_5 clamped_at_10: not_divided multiplied min_max range "
        "sum_of_squares divided_by_root_group mean_for_spread raw_second_moment batch_std",
        "only_mean_divided: not_centred mean_for_spread",
        "leave_one_out: twice not_centred min_max",
        "raw_second_moment mean_for_spread: not_centred twice",
        "eps_as_floor: eps_fixed eps_too_small",  # a floor of next to nothing
        "variance eps_inside_root mean_absolute_deviation range",
        "multiplied not_divided eps_as_floor",
        "not_divided: eps_missing eps_fixed eps_too_small eps_inside_root variance",
        "not_divided: mean_absolute_deviation range batch_std",
        "batch_std mean_absolute_deviation range",
        "multiplied: eps_missing eps_fixed eps_too_small",
        "batch_mean wrong_axis not_centred",
        "batch_std wrong_axis",
        "twice not_divided",
        "twice not_centred",
        "min_max: eps_inside_root eps_as_floor variance mean_absolute_deviation range multiplied",
        "min_max: not_divided batch_std batch_mean not_centred",
    ),
)
