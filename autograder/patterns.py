"""How do wrong numbers differ from the right ones? In words, when no known mistake matches.

`describe` looks at the map: the answer's values (or gradients) beside the reference's, over all
cases, and says the first pattern that holds in every one of them. It speaks of factors, places
and signs, never of an expected number.
"""

from dataclasses import dataclass

import torch

from autograder.cases import Case, Outcome

UNKNOWN = "The cause is unknown: the numbers are those of no mistake we know, alone or in pairs."
BY_HAND = (
    "Work out the small example of the statement by hand and compare entry by entry; then change "
    "one input at a time."
)
CLOSE = 1e-4  # relative to the largest expected entry


@dataclass(frozen=True)
class Map:
    """One case: what came (got) beside what was expected (want), both float64, same shape."""

    case: Case
    got: torch.Tensor
    want: torch.Tensor

    @property
    def scale(self) -> float:
        return float(self.want.abs().max()) or 1.0

    def close(self, a, b) -> bool:
        return bool(((a - b).abs() <= CLOSE * self.scale).all())

    @property
    def right(self) -> torch.Tensor:
        return (self.got - self.want).abs() <= CLOSE * self.scale


def describe(cases, expected, outcomes, failed, names) -> tuple[str, str]:
    """(sentence, hint) for the failed check; the sentence contains "unknown" as a last resort.

    failed : the failed check, with property and note.
    names : the names of the positional arguments.
    """
    prop = failed["property"]
    if prop in ("shape", "floating", "callable"):
        return _SHAPES[prop].format(note=failed["note"]), _SHAPE_HINTS[prop]
    if prop == "finite":
        return _finite(failed, cases, outcomes)
    if prop == "stability":
        return (
            f"Right in float64, but not on {failed['case']}: {failed['note']}.",
            "Subtract logarithms before exponentiating, and do not rely on a difference of equal "
            "float32 numbers being exactly 0.",
        )
    if prop == "padding":
        return (
            f"The {failed['note']}: what lies behind the end of a response is felt.",
            "Replace padding with torch.where before the arithmetic; do not multiply with a mask.",
        )
    if prop == "gradient":
        return _gradient(cases, expected, outcomes, failed, names)
    maps = [
        Map(c, o.value.to(torch.float64), e.value.to(torch.float64))
        for c, e, o in zip(cases, expected, outcomes, strict=True)
        if not c.stability
    ]
    found = pattern(maps)
    if found:
        return f"The result {found[0]}.", found[1]
    return UNKNOWN, BY_HAND


def _gradient(cases, expected: list[Outcome], outcomes: list[Outcome], failed, names):
    for i, name in enumerate(names):
        maps = []
        for case, want, got in zip(cases, expected, outcomes, strict=True):
            if i in case.differentiable and not case.stability:
                k = case.differentiable.index(i)
                right = want.gradients[k]
                have = got.gradients[k]
                have = torch.zeros_like(right) if have is None else have
                maps.append(Map(case, have.to(torch.float64), right.to(torch.float64)))
        if maps and not all(bool(m.right.all()) for m in maps):
            found = pattern(maps)
            if found:
                return f"The values are right, but the gradient of {name} {found[0]}.", found[1]
            return (
                f"The values are right, but the gradient of {name} is not. {UNKNOWN}",
                "Something between input and result is cut off or computed outside the graph.",
            )
    return (
        f"The values are right, but {failed['note']}.",
        "A constant is detached where it is used: x.detach().",
    )


def _finite(failed, cases, outcomes):
    ordinary = [o for c, o in zip(cases, outcomes, strict=True) if not c.stability]
    bad = sum(not bool(torch.isfinite(o.value).all()) for o in ordinary)
    where = "every input" if bad == len(ordinary) else f'the input "{failed["case"]}"'
    return (
        f"On {where}, {failed['note']}.",
        "Look for 0/0, the log of 0, and exp() of something large.",
    )


_SHAPES = {
    "shape": "The result has {note}.",
    "floating": "The result has {note}.",
    "callable": "{note}",
}
_SHAPE_HINTS = {
    "shape": "Name the axes of every intermediate result and see where one is lost or added.",
    "floating": "Compute with floating-point tensors; a comparison alone gives bool.",
    "callable": "",
}


def pattern(maps: list[Map]) -> tuple[str, str] | None:
    """The first pattern that holds in all maps that are not right, as (predicate, hint)."""
    wrong = [m for m in maps if not bool(m.right.all())]
    if not wrong:
        return None
    for look in (_zero, _factor, _offset, _row_factor, _shifted, _reordered, _dead_or_alive,
                 _edges):  # fmt: skip
        if found := look(wrong):
            text, hint = found
            if len(wrong) < len(maps):
                text += f" on {len(wrong)} of {len(maps)} inputs; the others are right"
            return text, hint
    nearly = max(float((m.got - m.want).abs().max()) / m.scale for m in wrong)
    if nearly < 0.02:
        return (
            f"is close to the right one (within {100 * nearly:.1g} %), but not equal",
            "Is something rounded, computed in half precision, or a small term added?",
        )
    if len(wrong) < len(maps):
        named = list(dict.fromkeys(f'"{m.case.name}"' for m in wrong))
        them = "it" if len(named) == 1 else "them"
        return (
            f"is right on {len(maps) - len(wrong)} of {len(maps)} inputs and wrong on "
            + " and ".join(named),
            f"What is special about {them}? Perhaps a knob, a dtype or a size.",
        )
    return None


def _zero(maps):
    if all(float(m.got.abs().max()) <= CLOSE * m.scale for m in maps):
        return (
            "is zero",
            "Look for detach(), no_grad(), an all-zero mask, or two equal things subtracted.",
        )
    return None


def _ratio(got, want, scale):
    """The one factor c with got = c · want, or None."""
    weight = float((want * want).sum())
    if weight == 0:
        return None
    c = float((got * want).sum()) / weight
    close = bool(((got - c * want).abs() <= CLOSE * scale * max(1.0, abs(c))).all())
    return c if close and abs(c) > 1e-6 else None


def _factor(maps):
    factors = [_ratio(m.got, m.want, m.scale) for m in maps]
    if any(c is None for c in factors):
        return None
    first = factors[0]
    if all(abs(c - first) <= 1e-3 * abs(first) for c in factors):
        if abs(first + 1) < 1e-3:
            return "has the wrong sign: it is -1 times the right one", "Where does a minus belong?"
        return (
            f"is {first:.{3 if abs(first - 1) > 0.01 else 6}g} times the right one",
            "One constant factor: look for a normaliser, a missing ½ or a doubled term.",
        )
    for words, number in FACTORS.items():
        known = [number(m) for m in maps]
        if all(
            k is not None and abs(c - k) <= 1e-3 * abs(k)
            for c, k in zip(factors, known, strict=True)
        ):
            return f"is the right one times {words}", "One factor too many."
    if any(m.got.numel() < 3 for m in maps):
        return None  # one or two numbers have a factor by accident
    shown = ", ".join(f"{c:.3g}" for c in factors[:4])
    return (
        f"is the right one times a factor that differs from input to input ({shown})",
        "Does the factor follow a size, or a knob? Look for a sum taken for a mean, or for a knob "
        "used once too often.",
    )


def _knob(name, power):
    def number(m):
        knob = m.case.knobs.get(name)
        return knob**power if knob else None

    return number


def _size(of):
    """A number made of the sizes (n, k) of the first two axes of the first argument."""
    return lambda m: of(*m.case.args[0].shape[:2]) if m.case.args[0].dim() > 1 else None


def _length(of):
    return lambda m: of(len(m.case.args[0])) if m.case.args[0].dim() == 1 else None


# What a factor that differs from input to input may be.
FACTORS = {
    "gamma": _knob("gamma", 1),
    "the temperature": _knob("temperature", 1),
    "1 / temperature": _knob("temperature", -1),
    "the number of rows": _size(lambda n, k: n),
    "1 / number of rows": _size(lambda n, k: 1 / n),
    "the number of columns": _size(lambda n, k: k),
    "1 / number of columns": _size(lambda n, k: 1 / k),
    "the number of entries": _size(lambda n, k: n * k),
    "1 / number of entries": _size(lambda n, k: 1 / (n * k)),
    "the root of the number of columns": _size(lambda n, k: k**0.5),
    "G/(G-1)": _size(lambda n, k: k / (k - 1) if k > 1 else None),
    "(G-1)/G": _size(lambda n, k: (k - 1) / k),
    "the number of responses": _length(lambda n: n),
    "1 / number of responses": _length(lambda n: 1 / n),
}


def _offset(maps):
    """got = want + one constant per case; several entries needed, or anything would fit."""
    if all(m.got.numel() > 2 and m.close(m.got - m.want, (m.got - m.want).mean()) for m in maps):
        return (
            "is off by the same amount in every entry",
            "A constant was added, or another baseline was subtracted.",
        )
    return None


def _row_factor(maps):
    if not any(m.got.dim() >= 2 and m.got.shape[1] > 2 for m in maps):
        return None  # rows of two numbers that add up to 0 have a factor by accident
    for m in maps:
        if m.got.dim() < 2 or m.got.shape[1] < 2:
            return None
        for got, want in zip(m.got, m.want, strict=True):
            c = _ratio(got, want, m.scale)
            if c is None and not m.close(got, want):
                return None
    return (
        "is the right one times a factor of its own for each row",
        "A factor per row follows the row's length or spread: look at what is divided by what.",
    )


def _shifted(maps):
    def late(m):
        return m.got.dim() >= 2 and m.got.shape[1] > 1 and m.close(m.got[:, 1:], m.want[:, :-1])

    def early(m):
        return m.got.dim() >= 2 and m.got.shape[1] > 1 and m.close(m.got[:, :-1], m.want[:, 1:])

    for test, word in ((late, "late"), (early, "early")):
        if all(test(m) for m in maps):
            return (
                f"is shifted by one: each entry stands one position too {word}",
                "Compare positions t and t + 1 on a row of three.",
            )
    return None


def _reordered(maps):
    if all(
        m.got.numel() > 1 and m.close(m.got.flatten().sort()[0], m.want.flatten().sort()[0])
        for m in maps
    ):
        return (
            "holds the right numbers in the wrong places",
            "Look at reshape, transpose, flip and sort: which axis is which?",
        )
    return None


def _dead_or_alive(maps):
    """Right wherever both or neither are zero; dead or alive at the other entries only."""
    dead = alive = 0
    for m in maps:
        wrong = ~m.right
        tiny = CLOSE * m.scale
        is_dead = wrong & (m.got.abs() <= tiny)
        is_alive = wrong & (m.want.abs() <= tiny)
        if bool((wrong & ~is_dead & ~is_alive).any()):
            return None
        dead += int(is_dead.sum())
        alive += int(is_alive.sum())
    words = [
        text
        for count, text in (
            (dead, "is zero at some entries where it must not be"),
            (alive, "is not zero at some entries where it must be"),
        )
        if count
    ]
    return (
        f"{' and '.join(words)}; all other entries are right",
        "Look at the condition or the mask that switches entries on and off.",
    )


def _edges(maps):
    """Wrong in the first or in the last row, or position of the rows, only."""
    for axis, noun in ((1, "position of the rows"), (0, "row")):
        if not all(m.got.dim() > axis and m.got.shape[axis] > 1 for m in maps):
            continue
        inside = [m.right.movedim(axis, 0) for m in maps]
        for rest, word in ((slice(None, -1), "last"), (slice(1, None), "first")):
            if all(bool(r[rest].all()) for r in inside):
                outside = torch.cat([r[-1 if word == "last" else 0].flatten() for r in inside])
                if bool(outside.float().mean() > 0.5):
                    continue  # a few entries that happen to lie at an edge
                return (
                    f"is wrong at the {word} {noun} only",
                    "Check where the recursion or the loop starts and where the slices end.",
                )
    return None
