"""hw1/group_standardized: centred and divided by the group's spread (GRPO)."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
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
    if "variance" in mistakes:
        spread = variance
    elif "eps_inside_root" in mistakes:
        spread, eps = (variance + eps).sqrt(), 0.0
    elif "mean_absolute_deviation" in mistakes:
        spread = (rewards - mean).abs().mean(axis, keepdim=True)
    elif "range" in mistakes:
        spread = rewards.amax(axis, keepdim=True) - rewards.amin(axis, keepdim=True)
    else:
        spread = variance.sqrt()
    if "min_max" in mistakes:
        low, high = rewards.amin(axis, keepdim=True), rewards.amax(axis, keepdim=True)
        out = (rewards - low) / (high - low + eps)
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
    if "divided_by_root_group" in mistakes:
        out = out / rewards.shape[1] ** 0.5
    if "clamped" in mistakes:
        out = out.clamp(-1, 1)
    if "flattened" in mistakes:
        out = out.flatten()
    return out


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
        "The argument eps is ignored and a constant of 1e-8 is used: too small in float32, "
        "where rounding alone then gives an all-equal group large advantages.",
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
        "clamped", "The result is clamped to [-1, 1].", "No clipping is asked for here.", WHERE
    ),
    Mistake(
        "flattened",
        "The result is flattened: the axes (prompts, group) are gone.",
        "Return the shape you were given.",
        WHERE,
    ),
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
        "eps_missing eps_fixed eps_too_small",
        "eps_missing eps_inside_root eps_as_floor",
        "eps_as_floor: eps_fixed eps_too_small",  # a floor of next to nothing
        "variance eps_inside_root mean_absolute_deviation range",
        "multiplied not_divided eps_as_floor",
        "not_divided eps_missing eps_fixed eps_too_small eps_inside_root variance",
        "not_divided mean_absolute_deviation range batch_std",
        "batch_std mean_absolute_deviation range",
        "multiplied eps_missing eps_fixed eps_too_small",
        "batch_mean wrong_axis not_centred",
        "batch_std wrong_axis",
        "twice not_divided",
        "twice not_centred",
        "min_max: eps_inside_root eps_as_floor variance mean_absolute_deviation range multiplied",
        "min_max: not_divided batch_std batch_mean not_centred",
    ),
)
