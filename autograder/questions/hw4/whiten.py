"""hw4/whiten: advantages in standard deviations, over the response tokens of the batch."""

import torch

from autograder.cases import Case
from autograder.questions.base import Question, excluding
from autograder.questions.hw4 import common
from policy_gradients.advantages import whiten


def generate(draw, final):
    if final:
        shapes = [((4, 1, 0, 6, 2), 7), ((4, 3, 6), 7), ((6, 5, 8, 7), 8)]
    else:
        shapes = [((2, 5, 0, 1), 6), ((4, 3, 5, 3, 6), 7), ((5, 9, 7, 8), 9)]
    # only the first has an empty response: what divides by a length is seen in the others
    kinds = [
        ("small, one response empty", torch.bool, {}),
        ("a mask with holes", torch.int64, {"eps": 0.4}),
    ]
    kinds += [("an outlier", torch.float64, {"eps": 0.15})]
    cases = []
    for (lengths, time), (name, dtype, knobs) in zip(shapes, kinds, strict=True):
        mask = common.mask_of(lengths, time)
        # rows with means of their own, and a batch mean that is far from 0
        x = 1.3 + draw.normal(*mask.shape) * 1.5 + draw.weights(len(mask), 1)
        if name == "small, one response empty":
            x = 0.01 * x  # a default eps that is too large, or a floor under the spread, is seen
        elif dtype is torch.int64:
            mask = common.torn(mask)
        else:
            x[0, 1] += 40.0  # more than four standard deviations away
        args = (common.dirty(x, mask, draw), mask.to(dtype))
        cases.append(Case(name=name, args=args, knobs=knobs, padding=~mask))
    lengths, time = ((2, 0, 4), 5) if final else ((3, 3, 0), 4)
    mask = common.mask_of(lengths, time)
    x = common.dirty(
        torch.full(mask.shape, 0.75 if final else 0.5, dtype=torch.float64), mask, draw
    )
    cases.append(Case(name="equal advantages", args=(x, mask), padding=~mask))
    mask = common.mask_of((0, 1, 0) if final else (0, 1), 3)
    x = common.dirty(draw.normal(*mask.shape), mask, draw)
    cases.append(Case(name="one token", args=(x, mask), padding=~mask))
    mask = common.mask_of((4, 6, 5) if final else (5, 3, 4), 6)
    x = common.dirty(300 + draw.normal(*mask.shape), mask, draw).float()
    cases.append(Case(name="far from 0", args=(x, mask), padding=~mask, stability=True))
    return cases


def buggy(advantages, mask, *, ddof=0, eps=1e-8, mistakes=frozenset()):
    if "mask_as_length" in mistakes:
        mask = common.prefix(mask)
    m = mask.to(torch.float64)
    x = advantages
    if {"zeros_counted", "zeros_in_std", "zeros_in_squares", "zeros_squared"} & mistakes:
        x = torch.where(mask.bool(), x, 0.0)

    def count(kept, axis):
        return kept.sum(axis, keepdim=True) if axis is not None else kept.sum()

    def mean(values, kept, axis):
        total = (values * kept).sum(axis, keepdim=True) if axis is not None else None
        total = (values * kept).sum() if total is None else total
        return total / count(kept, axis).clamp(min=1)

    axis = 1 if "per_response" in mistakes else 0 if "per_position" in mistakes else None
    everything = torch.ones_like(m)
    whole = "padding_counted" in mistakes or "zeros_counted" in mistakes
    for_mean = everything if whole or "padding_in_mean" in mistakes else m
    for_std = everything if whole else m
    if "mean_of_means" in mistakes:
        centre = mean(mean(x, m, 1), (m.sum(1, keepdim=True) > 0).to(m.dtype), None)
    else:
        centre = mean(x, for_mean, axis)
    about = 0.0 if "root_mean_square" in mistakes else centre
    if "padding_in_std" in mistakes or "zeros_in_std" in mistakes:
        for_std = everything
        about = mean(x, everything, axis)
    elif "zeros_in_squares" in mistakes:
        for_std = everything
    squared = everything if {"zeros_squared", "padding_squared"} & mistakes else for_std
    squares = ((x - about) ** 2 * squared).sum(axis, keepdim=True) if axis is not None else None
    squares = ((x - about) ** 2 * squared).sum() if squares is None else squares
    size = count(for_std, axis)
    variance = squares / (size - ddof).clamp(min=1)
    if "single_nan" in mistakes:
        variance = torch.where(size <= 1, torch.nan, variance)
    if "variance" in mistakes:
        scale = variance + eps
    elif "eps_in_root" in mistakes:
        scale = (variance + eps).sqrt()
    elif "eps_missing" in mistakes:
        scale = torch.where(variance < 1e-20, 0.0, variance).sqrt()
    elif "not_scaled" in mistakes:
        scale = torch.ones_like(variance)
    else:
        scale = variance.sqrt() + eps
    shifted = x if "not_centred" in mistakes else x - centre
    out = shifted / scale
    if "mean_added_back" in mistakes:
        out = out + centre
    if "negated" in mistakes:
        out = -out
    return out if "padding_left" in mistakes else torch.where(m > 0, out, 0.0)


WHERE = "11, [BUG-5]"
TEXTS = {
    "padding_counted": (
        "The padding takes part in the mean and in the standard deviation.",
        "Both are taken over the response tokens only.",
    ),
    "zeros_counted": (
        "The padding takes part in the statistics as zeros.",
        "Setting the padding to 0 is not leaving it out: divide by the number of response tokens.",
    ),
    "padding_in_mean": (
        "The padding takes part in the mean, though not in the spread.",
        "The mean is over the response tokens, like the spread.",
    ),
    "padding_in_std": (
        "The padding takes part in the standard deviation, though not in the mean.",
        "The spread is over the response tokens, about their own mean.",
    ),
    "zeros_in_std": (
        "The padding takes part in the standard deviation as zeros, though not in the mean.",
        "The spread is over the response tokens, about their own mean.",
    ),
    "zeros_in_squares": (
        "The padding takes part in the spread as zeros: their squared distances from the mean are "
        "averaged along.",
        "Leave the padding out of the squares: set it to 0 after squaring, and divide by the "
        "number of response tokens.",
    ),
    "zeros_squared": (
        "The padding's zeros take part in the spread: their squared distance from the mean is "
        "added.",
        "Set the padding to 0 after squaring, not before.",
    ),
    "padding_squared": (
        "The padding takes part in the spread: its squared distance from the mean is added.",
        "Only response tokens belong to the sum of squares.",
    ),
    "mask_as_length": (
        "The mask is taken for a length: the first tokens of a row are used, as many as it has "
        "ones.",
        "The ones need not stand in one piece at the start: use the mask itself.",
    ),
    "per_response": (
        "Each response is whitened by itself.",
        "One mean and one standard deviation for the whole batch.",
    ),
    "per_position": (
        "Each position is whitened by itself, across the responses.",
        "One mean and one standard deviation for the whole batch.",
    ),
    "mean_of_means": (
        "The mean is a mean of the responses' means: short responses count as much as long ones.",
        "Every response token has the same weight.",
    ),
    "root_mean_square": (
        "The divisor is the root of the mean square, not the spread about the mean.",
        "Subtract the mean before squaring.",
    ),
    "variance": (
        "The divisor is the variance: the root is missing.",
        "An advantage in standard deviations has no unit.",
    ),
    "eps_in_root": (
        "eps is added to the variance, under the root.",
        "Add it to the standard deviation.",
    ),
    "eps_missing": (
        "eps is not used.",
        "The divisor is the standard deviation plus the eps that is passed in.",
    ),
    "not_scaled": (
        "The advantages are centred, and not divided by their spread.",
        "Whitening has two steps: subtract the mean, divide by the spread.",
    ),
    "not_centred": (
        "The advantages are divided by their spread, and not centred.",
        "Whitening has two steps: subtract the mean, divide by the spread.",
    ),
    "mean_added_back": (
        "The mean is added again at the end.",
        "Some libraries keep the mean of rewards on purpose; here the result has the mean 0.",
    ),
    "single_nan": (
        "A single token gives NaN: a spread with N - 1 below it is 0/0.",
        "Protect the division: one token has the deviation 0, and the result is 0.",
    ),
    "negated": (
        "The sign is flipped.",
        "What is better than the mean stays positive.",
    ),
    "padding_left": (
        "The padding is whitened along instead of being 0.",
        "torch.where(mask.bool(), result, 0.0) at the end.",
    ),
}  # fmt: skip
MISTAKES = common.listed(TEXTS, WHERE)

SPREADS = "padding_in_std zeros_in_std zeros_in_squares zeros_squared padding_squared"
STATISTICS = f"padding_counted zeros_counted padding_in_mean {SPREADS} mean_of_means"
AXES = "per_response per_position"
DIVISOR = "variance eps_in_root eps_missing not_scaled"
QUESTION = Question(
    id="hw4/whiten",
    title="Whitening over the response tokens",
    points=2,
    signature="(advantages, mask, *, eps=1e-8)",
    lecture=WHERE,
    generate=generate,
    reference=whiten,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        STATISTICS,
        AXES,
        DIVISOR,
        f"{AXES}: {STATISTICS} root_mean_square",
        f"root_mean_square: {STATISTICS} not_scaled",
        f"single_nan: {STATISTICS} {AXES} {DIVISOR}",
        f"not_scaled: {SPREADS} mean_added_back",
        "not_centred: mean_added_back padding_in_mean mean_of_means root_mean_square",
    ),
    variants=({"ddof": 0}, {"ddof": 1}),
)
