"""hw3/overlong_penalty: a ramp before the length limit."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from policy_gradients.filters import overlong_penalty


def generate(draw, final):
    limits = [(512, 128), (60, 25), (200, 200)] if final else [(400, 100), (50, 20), (90, 90)]
    cases = []
    for limit, cache in limits:
        start = limit - cache
        inside = start + 1 + draw.integers(cache - 1, 5)
        ends = torch.tensor([0, start, limit, limit + 1, limit + cache // 2, limit + 3 * cache])
        before = draw.integers(max(start, 1), 2)
        lengths = torch.cat([inside, ends, before])
        lengths = lengths[draw.uniform(len(lengths)).argsort()]
        whole = cache == limit
        cases.append(
            Case(
                name="the ramp begins at 0" if whole else f"max_length {limit}, cache {cache}",
                args=(lengths.to(torch.float64) if whole else lengths,),
                knobs={"max_length": limit, "cache": cache},
            )
        )
    return cases


def buggy(lengths, *, max_length, cache, mistakes=frozenset()):
    n = lengths.to(torch.float64)
    start, end, width = max_length - cache, max_length, cache
    if "starts_at_limit" in mistakes:
        start, end = max_length, max_length + cache
    elif "roles_swapped" in mistakes:
        start, width = cache, max(max_length - cache, 1)
    elif "starts_at_0" in mistakes:
        start, width = 0, max_length
    elif "ends_early" in mistakes:
        end = max_length - 1
        width = max(cache - 1, 1)
    elif "starts_late" in mistakes:
        start, width = start + 1, cache
    if {"by_max_length", "by_max_length_clamped"} & mistakes:
        width = max_length
    elif "not_divided" in mistakes:
        width = 1
    ramp = (start - n) / width
    if "truncated" in mistakes:
        ramp = torch.trunc(ramp)
    elif "squared" in mistakes:
        ramp = -(ramp**2)
    elif "rising" in mistakes:
        ramp = -1 - ramp
    if "by_max_length_clamped" in mistakes:
        out = ramp.clamp(-1, 0)
    elif "short_unlimited" in mistakes:
        out = torch.where(n > end, -1.0, ramp)
    elif "step" in mistakes:
        out = torch.where(n > end, -1.0, 0.0)
    elif "step_at_start" in mistakes:
        out = torch.where(n > start, -1.0, 0.0)
    elif "long_unlimited" in mistakes:
        out = torch.where(n > start, ramp, 0.0)
    elif "long_free" in mistakes:
        out = torch.where((n > start) & (n <= end), ramp, 0.0)
    else:
        out = torch.where(n <= start, 0.0, torch.where(n <= end, ramp, -1.0))
    if "positive" in mistakes:
        out = -out
    elif "factor" in mistakes:
        out = 1 + out
    if "mean" in mistakes:
        return out.mean()
    if "sum" in mistakes:
        return out.sum()
    return out


WHERE = "09, [AGG-6]"
MISTAKES = (
    Mistake(
        "positive",
        "The sign is flipped: long answers are rewarded.",
        "The penalty is added to the reward; it lies between -1 and 0.",
        WHERE,
    ),
    Mistake(
        "factor",
        "A factor between 0 and 1 is returned instead of a penalty.",
        "What is returned is added to the reward: 0 where nothing is to be said.",
        WHERE,
    ),
    Mistake(
        "starts_at_limit",
        "The ramp begins at max_length and ends cache tokens after it.",
        "It begins cache tokens before the limit, and at the limit -1 is reached.",
        WHERE,
    ),
    Mistake(
        "roles_swapped",
        "The ramp begins at cache and is max_length - cache wide: the roles are exchanged.",
        "It begins at max_length - cache and is cache wide.",
        WHERE,
    ),
    Mistake(
        "starts_at_0",
        "The ramp begins at length 0 and reaches to the limit: cache has no effect.",
        "Up to max_length - cache nothing is punished.",
        WHERE,
    ),
    Mistake(
        "starts_late",
        "The ramp begins one token late.",
        "At max_length - cache + 1 the penalty is -1/cache.",
        WHERE,
    ),
    Mistake(
        "ends_early",
        "The ramp reaches -1 one token early.",
        "At max_length itself the penalty is just -1.",
        WHERE,
    ),
    Mistake(
        "by_max_length",
        "The ramp is divided by max_length instead of by its width.",
        "It falls from 0 to -1 over cache tokens.",
        WHERE,
    ),
    Mistake(
        "by_max_length_clamped",
        "The ramp is divided by max_length instead of by its width, and does not reach -1 at the "
        "limit.",
        "It falls from 0 to -1 over cache tokens.",
        WHERE,
    ),
    Mistake(
        "not_divided",
        "The ramp is not divided: it falls by 1 per token.",
        "It falls from 0 to -1 over cache tokens.",
        WHERE,
    ),
    Mistake(
        "truncated",
        "The quotient is cut to a whole number: the ramp is lost.",
        "The penalty takes all values between -1 and 0; do not convert it to integers.",
        WHERE,
    ),
    Mistake("squared", "The ramp is squared.", "It falls linearly.", WHERE),
    Mistake(
        "rising",
        "The ramp runs the wrong way: it begins at -1 and rises to 0.",
        "The nearer to the limit, the more is taken away.",
        WHERE,
    ),
    Mistake(
        "short_unlimited",
        "Short answers get a bonus: the ramp goes on above 0.",
        "Up to max_length - cache the penalty is 0.",
        WHERE,
    ),
    Mistake(
        "long_unlimited",
        "Beyond the limit the ramp goes on below -1.",
        "Beyond max_length the penalty stays at -1.",
        WHERE,
    ),
    Mistake(
        "long_free",
        "Beyond the limit there is no penalty.",
        "Beyond max_length the penalty is -1.",
        WHERE,
    ),
    Mistake(
        "step",
        "There is no ramp: only answers beyond the limit lose a point.",
        "Between max_length - cache and max_length the penalty falls linearly.",
        WHERE,
    ),
    Mistake(
        "step_at_start",
        "There is no ramp: every answer beyond max_length - cache loses a whole point (// in place "
        "of / does that, too).",
        "Between max_length - cache and max_length the penalty falls linearly.",
        WHERE,
    ),
    Mistake(
        "mean",
        "The penalties are averaged to one number.",
        "One penalty per answer: return the shape of lengths.",
        WHERE,
    ),
    Mistake(
        "sum",
        "The penalties are added up to one number.",
        "One penalty per answer: return the shape of lengths.",
        WHERE,
    ),
)

PLACE = "starts_at_limit roles_swapped starts_at_0 starts_late ends_early"
WIDTH = "by_max_length by_max_length_clamped not_divided"
SHAPE = "truncated squared rising"
LIMITS = "short_unlimited long_unlimited long_free step step_at_start"
QUESTION = Question(
    id="hw3/overlong_penalty",
    title="The overlong penalty",
    points=2,
    signature="(lengths, *, max_length, cache)",
    lecture=WHERE,
    generate=generate,
    reference=overlong_penalty,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        PLACE,
        WIDTH,
        SHAPE,
        LIMITS,
        f"step step_at_start: {PLACE} {WIDTH} {SHAPE}",
        f"starts_at_0: {WIDTH} short_unlimited",
        f"truncated: {PLACE}",
        f"{WIDTH}: {SHAPE}",
        "positive factor",
        "mean sum",
        f"by_max_length_clamped: {LIMITS} {PLACE}",
    ),
)
