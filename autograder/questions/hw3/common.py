"""What the questions of homework 3 share: masks, ratios, averages, the clip, texts of mistakes."""

from itertools import pairwise

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake

# --- inputs -------------------------------------------------------------------------------------


def mask_of(lengths, time: int) -> torch.Tensor:
    """bool (batch, time), True on the first ``lengths[i]`` positions of row i."""
    return torch.arange(time) < torch.tensor(lengths)[:, None]


def scattered(lengths, time: int) -> torch.Tensor:
    """As many tokens, at the end of each row and, where there is room, with a hole."""
    mask = torch.zeros(len(lengths), time, dtype=torch.bool)
    for row, length in zip(mask, lengths, strict=True):
        late = torch.arange(time)[time - length :]
        if 1 < length < time - 1:
            late[0] -= 1
        row[late] = True
    return mask


def dirty(x, mask, draw, *, hard: bool):
    """x with other numbers on the padding: finite ones, or (hard) NaN and both infinities."""
    dirt = 4 * draw.weights(*x.shape)
    if hard:
        unfit = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=x.dtype)
        dirt = unfit[torch.arange(x.numel()) % 3].view_as(x)
    return torch.where(mask, x, dirt)


def average_cases(draw, final, knobs):
    """Cases of an average: lengths that differ, an empty answer, dirt, every kind of mask.

    knobs : one dict per case: whole batch, dirt of NaN and inf, counts of a larger step.
    """
    if final:
        shapes = [((4, 1, 0, 6, 2), 7), ((3, 0, 5), 6), ((2, 5, 1, 0), 8)]
    else:
        shapes = [((2, 5, 0, 1), 6), ((4, 0, 2, 1, 3), 5), ((1, 0, 3), 4)]
    names = ("whole batch", "NaN and inf on the padding", "micro-batch, counts of the step given")
    kinds = (torch.bool, torch.int64, torch.float64)
    cases = []
    for name, (lengths, time), kind, knob in zip(names, shapes, kinds, knobs, strict=True):
        mask = (scattered if "counts" in name else mask_of)(lengths, time)
        x = draw.normal(len(lengths), time) + 0.7
        x = dirty(x, mask, draw, hard="NaN" in name)
        cases.append(
            Case(
                name=name,
                args=(x, mask.to(kind)),
                knobs=knob,
                differentiable=(0,),
                weights=draw.weights(1)[0],
            )
        )
    return cases


def zones(eps_low: float, eps_high: float):
    """Intervals of ratios that a clip, or a clip with swapped or equal edges, treats alike.

    The two last lie far away, where a second clip (dual clip, a bounded log-ratio) would act.
    """
    edges = sorted({1 - eps_low, 1 - eps_high, 1.0, 1 + eps_low, 1 + eps_high})
    edges = [0.55 * edges[0], *edges, 1.6 * edges[-1]]
    return [*pairwise(edges), (0.05, 0.2), (4.0, 8.0)]


def ratios(draw, advantages, eps_low, eps_high):
    """Ratios like ``advantages``, in each of its signs spread over all zones, none at an edge."""
    intervals = zones(eps_low, eps_high)
    out = torch.empty_like(advantages)
    for side in (advantages > 0, advantages <= 0):
        count = int(side.sum())
        order = torch.argsort(draw.uniform(len(intervals)))
        chosen = torch.tensor([intervals[order[k % len(order)]] for k in range(count)])
        inside = draw.uniform(count, low=0.15, high=0.85)
        low, high = chosen.to(out.dtype).reshape(-1, 2).T
        out[side] = low + inside * (high - low)
    return out


def log_probs(draw, rho):
    """logp of order one like rho; it and logp - log(rho) are below 0."""
    return draw.uniform(*rho.shape, low=-4.0, high=-0.3) + rho.log().clamp(max=0)


def signs(draw, batch: int, width: int = 1):
    """Advantages (batch, width) of order one whose signs alternate from row to row."""
    alternating = torch.where(torch.arange(batch) % 2 == 0, 1.0, -1.0).to(torch.float64)
    return alternating[:, None] * draw.uniform(batch, width, low=0.5, high=3.0)


def surrogate_cases(draw, final, knobs):
    """Cases of a loss per token without a mask: (logp, logp_old, advantages).

    knobs : three or four dicts; the clip's edges are read from them where they are there.
    """
    shapes = [(6, 5, 1), (3, 8, 8), (5, 3, 1)] if final else [(4, 6, 1), (5, 3, 3), (3, 7, 1)]
    names = ["advantages (batch, 1)", "advantages (batch, time)"]
    names.append("every argument requires a gradient")
    if len(knobs) == 4:
        shapes, names = [*shapes, (2, 8, 1)], [*names, "knobs left out"]
    cases = []
    for name, (batch, time, width), knob in zip(names, shapes, knobs, strict=True):
        advantages = signs(draw, batch, width)
        if width > 1:
            advantages[:, 0] *= -1  # both signs in one row
        if (advantages.mean() > 0) == (width > 1):
            advantages = -advantages  # their mean is negative here, positive in the other cases
        edges = knob.get("eps_low", 0.3), knob.get("eps_high", 0.1)
        rho = ratios(draw, advantages.expand(batch, time).clone(), *edges)
        logp = log_probs(draw, rho)
        cases.append(
            Case(
                name=name,
                args=(logp, logp - rho.log(), advantages),
                knobs=knob,
                differentiable=(0,),
                constants=(1, 2) if "gradient" in name else (),
                weights=draw.weights(batch, time),
            )
        )
    cases.append(unlikely(cases[0]))
    return cases


def unlikely(case: Case) -> Case:
    """The same ratios of tokens so unlikely that exp(logp) is 0 in float32."""
    logp, logp_old, *rest = case.args
    args = (logp - 120, logp_old - 120, *rest)
    return Case(
        name="very unlikely tokens in float32",
        args=tuple(a.float() if a.is_floating_point() else a for a in args),
        knobs=case.knobs,
        differentiable=case.differentiable,
        weights=case.weights.float(),
        stability=True,
    )


# --- the wrong functions' parts -----------------------------------------------------------------


def first_ones(mask):
    """bool (batch, time), what is left of a mask of which only the sum of each row is known."""
    return torch.arange(mask.shape[1]) < mask.sum(1, keepdim=True)


def kept(x, mask, mistakes):
    """(x with 0 where nothing counts, 1.0 where something counts): both (batch, time)."""
    on = mask.to(x.dtype)
    if "mask_as_length" in mistakes:
        on = first_ones(mask).to(x.dtype)
    if "last_token_dropped" in mistakes:
        following = torch.cat([on[:, 1:], torch.zeros_like(on[:, :1])], 1)
        on = on * following
    elif "first_token_dropped" in mistakes:
        on = torch.cat([torch.zeros_like(on[:, :1]), on[:, 1:]], 1)
    elif "mask_inverted" in mistakes:
        on = 1 - on
    if "padding_counted" in mistakes:
        return x, on
    if "mask_multiplied" in mistakes:
        return x * on, on
    return x.masked_fill(on == 0, 0.0), on


def row_lengths(on, mistakes):
    """(batch,) what the sum of a row is divided by, from 1.0 where a token counts."""
    lengths = on.sum(1)
    if "length_plus_one" in mistakes:
        lengths = lengths + 1
    elif "empty_nan" not in mistakes:
        lengths = lengths.clamp(min=1)
    if "padded_width" in mistakes:
        lengths = torch.full_like(lengths, on.shape[1])
    elif "longest" in mistakes:
        lengths = torch.full_like(lengths, float(on.sum(1).max()))
    elif "length_twice" in mistakes:
        lengths = lengths**2
    elif "length_root" in mistakes:
        lengths = lengths.sqrt()
    elif "sum_over_tokens" in mistakes:
        lengths = torch.ones_like(lengths)
    return lengths


def row_means(x, on, mistakes):
    """Row means (batch,); by mistake each row sum by every length, (batch, batch)."""
    sums, lengths = x.sum(1), row_lengths(on, mistakes)
    if {"broadcast", "broadcast_mean"} & mistakes:
        return sums / lengths[:, None]
    return sums / lengths


def over_sequences(rows, on, sequences, mistakes):
    """Row sums or means (batch,) -> scalar: divided by the number of sequences."""
    batch = len(rows)
    here = int((on.sum(1) > 0).sum()) if "empty_not_counted" in mistakes else batch
    count = here if sequences is None or "sequences_ignored" in mistakes else sequences
    if "not_reduced" in mistakes:
        return rows / count
    total = rows.sum()
    if "broadcast_mean" in mistakes and sequences is None:
        return rows.mean()
    if "batch_not_averaged" in mistakes:
        return total
    if "sequences_twice" in mistakes and sequences is not None:
        return total / batch / sequences
    return total / count


def ratio(logp, logp_old, mistakes):
    """Token ratios, or what becomes of them by mistake."""
    if "old_not_detached" not in mistakes:
        logp_old = logp_old.detach()
    if "logp_detached" in mistakes:
        logp = logp.detach()
    if "old_ignored" in mistakes:
        logp_old = logp.detach()
    if "ratio_inverted" in mistakes:
        logp, logp_old = logp_old, logp
    if "difference_for_ratio" in mistakes:
        return logp - logp_old
    if "quotient_of_logs" in mistakes:
        return logp / logp_old
    if "quotient_of_probabilities" in mistakes:
        return logp.exp() / logp_old.exp()
    return torch.exp(logp - logp_old)


def clip(rho, eps_low, eps_high, mistakes):
    """The ratio between its edges."""
    if "eps_swapped" in mistakes:
        eps_low, eps_high = eps_high, eps_low
    elif "eps_low_twice" in mistakes:
        eps_high = eps_low
    elif "eps_high_twice" in mistakes:
        eps_low = eps_high
    low, high = 1 - eps_low, 1 + eps_high
    if "lower_edge_missing" in mistakes:
        return rho.clamp(max=high)
    if "upper_edge_missing" in mistakes:
        return rho.clamp(min=low)
    if "edges_of_log" in mistakes:
        return rho.log().clamp(-eps_low, eps_high).exp()
    return rho.clamp(low, high)


def objective(rho, advantages, eps_low, eps_high, mistakes):
    """PPO's clipped objective per token, to be maximised."""
    clipped = clip(rho, eps_low, eps_high, mistakes)
    if "no_clip" in mistakes:
        return rho * advantages
    if "clip_only" in mistakes:
        return clipped * advantages
    if "min_before_advantage" in mistakes:
        return torch.minimum(rho, clipped) * advantages
    if "dual_clip" in mistakes:
        pessimistic = torch.minimum(rho * advantages, clipped * advantages)
        return torch.where(advantages < 0, torch.maximum(pessimistic, 3 * advantages), pessimistic)
    if "dropped_outside" in mistakes:
        return torch.where(rho == clipped, rho * advantages, 0.0)
    plain, limited = rho * advantages, clipped * advantages
    if "max_for_min" in mistakes:
        return torch.maximum(plain, limited)
    return torch.minimum(plain, limited)


def weights_of(advantages, mistakes):
    """The advantages as constants, or what becomes of them by mistake."""
    if "advantages_not_detached" not in mistakes:
        advantages = advantages.detach()
    if "advantage_size" in mistakes:
        advantages = advantages.abs()
    elif "advantage_sign" in mistakes:
        advantages = advantages.sign()
    elif "advantages_ignored" in mistakes:
        advantages = torch.ones_like(advantages)
    return advantages


# --- their texts --------------------------------------------------------------------------------

AVERAGE, STEP, CLIP, RATIO = "09, [AGG-1]", "09, [AGG-9]", "03, [RC-6]", "03, [RC-3]"
PADDING = "the statement, [AGG-1]"

TEXTS = {  # of mistakes: cause, hint, lecture
    "mask_multiplied": (
        "Padding is removed by multiplying with the mask: NaN and inf survive that.",
        "0 times NaN is NaN; choose with torch.where (or masked_fill) before any arithmetic.",
        PADDING,
    ),
    "masked_too_late": (
        "Padding is replaced only after the ratio was computed from it: the value is right, but "
        "in the backward pass 0 times NaN is NaN.",
        "Clean the inputs of the ratio with torch.where, not its result.",
        PADDING,
    ),
    "padding_counted": (
        "Padding is added up as if it were tokens: only the divisor knows the mask.",
        "Set x to 0 where the mask is 0 before you sum.",
        AVERAGE,
    ),
    "mask_as_length": (
        "Only the number of ones in a row of the mask is used: the first positions count, wherever "
        "the ones stand.",
        "Use the mask entry by entry; ones may begin late, and have holes.",
        AVERAGE,
    ),
    "mask_inverted": (
        "The mask is used the wrong way round: the padding counts and the tokens do not.",
        "The mask is 1 on answer tokens.",
        AVERAGE,
    ),
    "last_token_dropped": (
        "The last token of every answer, its end token, is left out.",
        "The mask already includes the end token; use it as it comes.",
        AVERAGE,
    ),
    "first_token_dropped": (
        "The first token of every answer is left out.",
        "Nothing is shifted here; use the mask as it comes.",
        AVERAGE,
    ),
    "length_plus_one": (
        "The length of each answer is taken one too large.",
        "Only an empty answer needs protection: clamp(min=1) leaves the others alone.",
        AVERAGE,
    ),
    "empty_nan": (
        "An empty answer divides 0 by 0.",
        "clamp(min=1) on the lengths lets an answer without tokens add 0.",
        AVERAGE,
    ),
    "padded_width": (
        "The padded width of the batch is taken for the length of each answer.",
        "The length of an answer is the sum of its mask.",
        AVERAGE,
    ),
    "longest": (
        "The longest answer of the batch lends its length to all of them.",
        "Each answer has a length of its own: the sum of its mask.",
        AVERAGE,
    ),
    "length_twice": (
        "Each answer is divided by its length twice.",
        "A mean over tokens divides by their number once.",
        AVERAGE,
    ),
    "length_root": (
        "Each answer is divided by the root of its length.",
        "A mean over tokens divides by their number.",
        AVERAGE,
    ),
    "broadcast": (
        "A (batch,) and a (batch, 1) were combined into (batch, batch): every answer is divided by "
        "the length of every answer.",
        "Row sums and lengths need the same axes: keepdim=True for both, or for none.",
        AVERAGE,
    ),
    "broadcast_mean": (
        "A (batch,) and a (batch, 1) were combined into (batch, batch), and the mean of that is "
        "taken: every answer is divided by the length of every answer.",
        "Row sums and lengths need the same axes: keepdim=True for both, or for none.",
        AVERAGE,
    ),
    "sum_over_tokens": (
        "The tokens of an answer are added up, and nothing is divided by a length.",
        "Compare the divisors of the four averages.",
        "09, [AGG-7]",
    ),
    "batch_not_averaged": (
        "The answers are added up and not divided by their number.",
        "The outer average divides by the number of sequences.",
        AVERAGE,
    ),
    "empty_not_counted": (
        "An empty answer is left out of the number of sequences.",
        "It adds 0, and it still counts as an answer.",
        AVERAGE,
    ),
    "sequences_ignored": (
        "The argument sequences is ignored: every micro-batch divides by its own number of "
        "answers.",
        "Use the count of the whole step where one is given.",
        STEP,
    ),
    "sequences_twice": (
        "With sequences given, the result is divided by this micro-batch's number of answers "
        "as well.",
        "One denominator only: that of the whole step, where it is given.",
        STEP,
    ),
    "not_reduced": (
        "The last sum is missing: one number per row is returned instead of one number.",
        "Return a scalar, shape ().",
        AVERAGE,
    ),
    "detached": (
        "The result has no graph: the value is right and the gradient is zero everywhere.",
        "No detach(), item() or float() on the way.",
        AVERAGE,
    ),
    "negated": (
        "The sign is flipped.",
        "What comes in is a loss already; an average does not change its sign.",
        AVERAGE,
    ),
    "missing_minus": (
        "The minus sign is missing: minimising this makes good tokens less likely.",
        "The objective is maximised, a loss is minimised.",
        CLIP,
    ),
    "max_for_min": (
        "The larger of the two terms is taken where the smaller belongs: the clip switches off "
        "the corrections and lets the excesses through.",
        "The objective is the pessimistic one of the two.",
        CLIP,
    ),
    "clip_only": (
        "Only the clipped term is there: beyond either edge every gradient is off, also where "
        "it would lead back.",
        "Take the minimum with the term that is not clipped.",
        CLIP,
    ),
    "no_clip": (
        "Nothing is clipped: the update is not bounded.",
        "Compare the plain product with the one whose ratio is clamped.",
        "03, [RC-4]",
    ),
    "min_before_advantage": (
        "The minimum is taken of the two ratios, before the advantage: wrong for negative ones.",
        "Multiply both ratios with the advantage first; a negative factor turns the order round.",
        CLIP,
    ),
    "dual_clip": (
        "Dual clip: for a negative advantage the loss is bounded at 3 times its size.",
        "That is an option of some trainers; the formula has no third bound.",
        "03, [RC-9]",
    ),
    "dropped_outside": (
        "Tokens outside the edges are dropped altogether, on either side and for either sign.",
        "The clip keeps a value there, and only one side of each sign is switched off.",
        "03, [RC-7]",
    ),
    "eps_swapped": (
        "eps_low and eps_high are exchanged.",
        "The lower edge is 1 - eps_low, the upper one 1 + eps_high.",
        "03, [RC-8]",
    ),
    "eps_low_twice": (
        "eps_low is used at both edges.",
        "The upper edge is 1 + eps_high.",
        "03, [RC-8]",
    ),
    "eps_high_twice": (
        "eps_high is used at both edges.",
        "The lower edge is 1 - eps_low.",
        "03, [RC-8]",
    ),
    "lower_edge_missing": (
        "The lower edge is missing: the ratio is bounded from above only.",
        "Clamp at both 1 - eps_low and 1 + eps_high.",
        CLIP,
    ),
    "upper_edge_missing": (
        "The upper edge is missing: the ratio is bounded from below only.",
        "Clamp at both 1 - eps_low and 1 + eps_high.",
        CLIP,
    ),
    "edges_of_log": (
        "The logarithm of the ratio is clamped to [-eps_low, eps_high] instead of the ratio to "
        "[1 - eps_low, 1 + eps_high].",
        "First exp, then clamp.",
        CLIP,
    ),
    "ratio_inverted": (
        "The ratio is upside down: old over new.",
        "New minus old in the exponent.",
        RATIO,
    ),
    "difference_for_ratio": (
        "The difference of the log-probabilities is used as the ratio: exp is missing.",
        "The ratio of equal probabilities is 1, not 0.",
        RATIO,
    ),
    "quotient_of_logs": (
        "The log-probabilities are divided by each other.",
        "A quotient of probabilities is the exp of a difference of logarithms.",
        RATIO,
    ),
    "quotient_of_probabilities": (
        "The ratio is a quotient of two probabilities: in float32 unlikely tokens give 0/0.",
        "Subtract the logarithms first, then exp.",
        RATIO,
    ),
    "old_ignored": (
        "The old log-probabilities have no effect: the ratio is always 1.",
        "The ratio compares with the policy that sampled, which is passed in.",
        RATIO,
    ),
    "old_not_detached": (
        "The old log-probabilities are not detached: the loss sends a gradient into them.",
        "What sampled is a constant; detach it where it is used.",
        RATIO,
    ),
    "logp_detached": (
        "The new log-probabilities, or the ratio made of them, are detached: the value is right "
        "and the gradient is zero.",
        "Of the two log-probabilities only the old one is a constant.",
        RATIO,
    ),
    "advantages_not_detached": (
        "The advantages are not detached: a gradient of the policy's loss flows into "
        "whatever produced them.",
        "An advantage is a number that weighs a gradient; cut its graph.",
        "01, [PG-6]",
    ),
    "advantage_size": (
        "The sign of the advantage is lost: bad answers are pushed up like good ones.",
        "A negative advantage has to lower the probability.",
        "01, [PG-6]",
    ),
    "advantage_sign": (
        "Only the sign of the advantage counts: a small one pushes as hard as a large one.",
        "Multiply with the advantage itself.",
        "01, [PG-6]",
    ),
    "advantages_ignored": (
        "The advantages have no effect: every token is pushed up alike.",
        "Each token needs its own weight.",
        "01, [PG-6]",
    ),
    "mean": (
        "The loss is averaged to one number instead of one per token.",
        "Return the shape (batch, time); averaging is a separate step.",
        "10, [VAR-1]",
    ),
}


def mistakes(*names: str, lecture: str | None = None, padding: str = PADDING):
    """Mistakes that several questions know by the same name and text."""
    instead = {AVERAGE: lecture or AVERAGE, PADDING: padding}
    found = []
    for name in names:
        cause, hint, at = TEXTS[name]
        found.append(Mistake(name, cause, hint, instead.get(at, at)))
    return tuple(found)
