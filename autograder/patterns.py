"""How do wrong numbers differ from the right ones? In words, when no known mistake matches.

`describe` looks at the map: the answer's values (or gradients) beside the reference's, over all
cases, and says the first pattern that holds in every one of them that is wrong: *what* stands
there (zero, the negative, a factor, the logarithm, ...) and *where* (on the last valid token, where
advantages are negative, where a knob is not 1, ...). It speaks of factors, places and signs, never
of an expected number. Every sentence is checked on the numbers before it is said, and a place is
named only when chance would hardly put all wrong entries there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations

import torch

from autograder.cases import Case, Outcome

UNKNOWN = "The cause is unknown: the numbers are those of no mistake we know, alone or in pairs."
BY_HAND = (
    "Work out the small example of the statement by hand and compare entry by entry; then change "
    "one input at a time."
)
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")
CLOSE = 1e-4  # relative to the largest expected entry
CHANCE = 1e-3  # of all wrong entries lying in a place by accident


@dataclass(frozen=True)
class Map:
    """One case: what came (got) beside what was expected (want), both float64, same shape.

    names : of the case's positional arguments. no, yes : what 0 and 1 are called. slope : got and
    want are gradients.
    """

    case: Case
    got: torch.Tensor
    want: torch.Tensor
    names: tuple[str, ...] = ()
    no: str = "0"
    yes: str = "1"
    slope: bool = False

    @property
    def scale(self) -> float:
        return float(self.want.abs().max()) if self.want.any() else 1.0

    def close(self, a, b) -> bool:
        return bool(((a - b).abs() <= CLOSE * self.scale).all())

    @property
    def right(self) -> torch.Tensor:
        return (self.got - self.want).abs() <= CLOSE * self.scale

    @property
    def valid(self) -> torch.Tensor | None:
        """The case's mask as bool, if it has one of the map's shape."""
        if "mask" not in self.names:
            return None
        mask = self.case.args[self.names.index("mask")]
        return mask.bool() if mask.shape == self.got.shape else None

    def arguments(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The real-valued arguments, spread to the map's shape, NaN as 0."""
        for name, value in zip(self.names, self.case.args, strict=True):
            value = value.detach().to(torch.float64).nan_to_num(0.0, 0.0, 0.0)
            if value.dim() == 1 and self.got.dim() == 2:
                value = value[:, None]
            if value.dim() == self.got.dim() and all(
                a in (1, b) for a, b in zip(value.shape, self.got.shape, strict=True)
            ):
                yield name, value.expand(self.got.shape)


def describe(cases, expected, outcomes, failed, names) -> tuple[str, str]:
    """(sentence, hint) for the failed check; the sentence contains "unknown" as a last resort.

    failed : the failed check, with property and note.
    names : the names of the positional arguments.
    """
    prop = failed["property"]
    if prop == "shape":
        return _shape(failed, expected, outcomes)
    if prop in ("floating", "callable"):
        return _SHAPES[prop].format(note=failed["note"]), _dtype_hint(failed["note"])
    if prop == "finite":
        return _finite(failed, cases, outcomes, names)
    if prop == "stability":
        sentence = f"Right on ordinary inputs, but not on “{failed['case']}”: {failed['note']}."
        return sentence, _stability_hint(failed, cases, outcomes)
    if prop == "padding":
        return _padding(cases, expected, outcomes, names)
    if prop == "gradient":
        return _gradient(cases, expected, outcomes, failed, names)
    return _value(cases, expected, outcomes, names)


def _value(cases, expected, outcomes, names):
    maps = [
        _value_map(case, want, got, names)
        for case, want, got in zip(cases, expected, outcomes, strict=True)
        if not case.stability
    ]
    if expected[0].kind.endswith("tensors"):
        return _parts(maps)
    if found := pattern(maps):
        return f"The result {found[0]}{scope(maps)}.", found[1]
    for name, slopes in _gradient_maps(cases, expected, outcomes, names):
        if found := pattern(slopes):
            text = f"The result is wrong, and its gradient for {name} {found[0]}{scope(slopes)}."
            return text, found[1]
    if where := scope(maps):
        return f"The result {where.removeprefix('; it ')}.", _special(maps)
    return UNKNOWN, BY_HAND


def _value_map(case, want, got, names) -> Map:
    """Padding counts as right here: it is judged later."""
    ours, right = got.value.to(torch.float64), want.value.to(torch.float64)
    if case.padding is not None and case.padding.shape == right.shape:
        ours = torch.where(case.padding, right, ours)
    words = ("False", "True") if want.value.dtype is torch.bool else ("0", "1")
    return Map(case, ours, right, tuple(names), *words)


def _parts(maps):
    """Several tensors were returned, stacked: each is described for itself."""
    words, hint = [], ""
    for number, word in enumerate(ORDINALS[: len(maps[0].got)]):
        part = [replace(m, got=m.got[number], want=m.want[number]) for m in maps]
        if all(bool(m.right.all()) for m in part):
            words.append(f"the {word} result is right")
        elif found := pattern(part):
            words.append(f"the {word} result {found[0]}")
            hint = hint or found[1]
        else:
            words.append(f"the {word} result is wrong")
    where = scope(maps)
    if not hint and not where and not any("right" in text for text in words):
        return UNKNOWN, BY_HAND
    text = "; ".join(words)
    if not hint and any("right" in text for text in words):
        hint = "Leave what is right as it is, and ask how the other result is made from it."
    return f"{text[0].upper()}{text[1:]}{where}.", hint or _special(maps)


def _gradient_maps(cases, expected: list[Outcome], outcomes: list[Outcome], names):
    """(argument, maps of its gradient) for every argument whose gradient is asked for."""
    for i, name in enumerate(names):
        maps = []
        for case, want, got in zip(cases, expected, outcomes, strict=True):
            if i in case.differentiable and not case.stability:
                k = case.differentiable.index(i)
                right, have = want.gradients[k], got.gradients[k]
                if right is None:
                    continue
                have = torch.zeros_like(right) if have is None else have
                if bool(torch.isfinite(have).all()):
                    pair = have.to(torch.float64), right.to(torch.float64)
                    maps.append(Map(case, *pair, tuple(names), slope=True))
        if maps:
            yield name, maps


def _gradient(cases, expected, outcomes, failed, names):
    for name, maps in _gradient_maps(cases, expected, outcomes, names):
        if not all(bool(m.right.all()) for m in maps):
            if found := pattern(maps):
                text = f"the gradient of {name} {found[0]}{scope(maps)}"
                return f"The values are right, but {text}.", found[1]
            if where := scope(maps):
                text = f"the gradient of {name} {where.removeprefix('; it ')}"
                return f"The values are right, but {text}.", _special(maps)
            return (
                f"The values are right, but the gradient of {name} is not. {UNKNOWN}",
                f"Look at every use of {name}: is it detached where it must not be, or not "
                "detached where it must be?",
            )
    if "a gradient flows into" in failed["note"]:
        hint = "A constant is detached where it is used: x.detach()."
    elif "no gradient reaches" in failed["note"]:
        hint = "Look for detach(), no_grad(), item() or a new tensor made of its numbers."
    else:
        hint = (
            "0 · inf and 0 · NaN appear in the backward pass even where torch.where has chosen the "
            "other branch: make the numbers harmless before exp, log, / or a root, not behind it."
        )
    return f"The values are right, but {failed['note']}.", hint


def _finite(failed, cases, outcomes, names):
    ordinary = [(c, o) for c, o in zip(cases, outcomes, strict=True) if not c.stability]
    bad = [(c, o) for c, o in ordinary if not bool(torch.isfinite(o.value).all())]
    where = "every input" if len(bad) == len(ordinary) else f'the input "{failed["case"]}"'
    sentence = f"On {where}, {failed['note']}."
    fine = [c for c, o in ordinary if bool(torch.isfinite(o.value).all())]
    if all(map(_dirty, (c for c, _ in bad))) and not any(map(_dirty, fine)):
        there = "the padding holds" if "mask" in names else "an input holds"
        clean = "torch.where(mask.bool(), x, 0)" if "mask" in names else "torch.where"
        return (
            f"{sentence[:-1]}: {there} NaN or infinity there, and it reaches the result.",
            f"0 · NaN is NaN, forwards and backwards: do not multiply it away, replace it with "
            f"{clean} before any arithmetic.",
        )
    if "mask" in names:
        i = names.index("mask")
        empty = [bool((c.args[i].bool().sum(-1) == 0).any()) for c, _ in bad]
        if all(empty) and all(bool(c.args[i].bool().any(-1).all()) for c in fine):
            sentence = f"{sentence[:-1]}: there, a response is empty."
            return sentence, "A response without a token has length 0; what do you divide by?"
    return sentence, "Look for 0/0, the log of 0, inf - inf, and exp() of something large."


def _stability_hint(failed, cases, outcomes) -> str:
    """Does the case raise, overflow, or lose digits?"""
    for case, got in zip(cases, outcomes, strict=True):
        if case.stability and case.name == failed["case"]:
            if got.value is None or "dtype" in failed["note"]:
                return "The inputs are float32 there: make new tensors with `dtype=x.dtype`."
            if not bool(torch.isfinite(got.value).all()) or "NaN" in failed["note"]:
                return (
                    "Something becomes infinite or 0 on the way and is then divided, subtracted or "
                    "put into a logarithm: stay with logarithms as long as you can, and use "
                    "torch's log_softmax, logsumexp, logsigmoid, expm1 or clamp."
                )
    return (
        "Either digits get lost (two nearly equal float32 numbers hardly ever leave exactly 0: "
        "subtract first what nearly cancels, exponentiate or divide afterwards), or the function "
        "is not right for numbers of this size: is something clamped?"
    )


def _padding(cases, expected, outcomes, names):
    """Right on all valid entries, wrong on padding: where, and what stands there?"""
    wrong, front, behind = 0, 0, 0
    zero = True
    for case, want, got in zip(cases, expected, outcomes, strict=True):
        if case.padding is None or case.stability:
            continue
        m = Map(case, got.value.to(torch.float64), want.value.to(torch.float64), tuple(names))
        bad = case.padding & ~m.right
        zero &= not bool(want.value[case.padding].any())
        seen = (~case.padding).long().cumsum(1)
        wrong += int(bad.sum())
        front += int((bad & (seen == 0) & (~case.padding).any(1, keepdim=True)).sum())
        behind += int((bad & (seen == (~case.padding).sum(1, keepdim=True)) & (seen > 0)).sum())
    place = "in front of the first valid position" if wrong == front else ""
    place = place or ("behind the last valid position" if wrong == behind else "")
    right = "0 is asked for" if zero else "another number is asked for"
    return (
        f"The result is right at every valid position, but not on padding{', ' * bool(place)}"
        f"{place}, where {right}.",
        "Decide at the very end, with torch.where and the mask, what stands on padding.",
    )


def _dirty(case: Case) -> bool:
    return not all(bool(torch.isfinite(t).all()) for t in case.args)


def _shape(failed, expected, outcomes):
    sentence, hint = f"The result has {failed['note']}.", _SHAPE_HINTS["shape"]
    if "tensors are" in failed["note"] or "tensor is" in failed["note"]:
        return sentence, "Compare the return statement with what the statement asks for."
    skip = int(expected[0].kind.endswith("tensors"))  # several, stacked
    shapes = [
        (tuple(o.value.shape[skip:]), tuple(e.value.shape[skip:]))
        for o, e in zip(outcomes, expected, strict=True)
    ]
    if all(len(w) == 1 and g == w + w for g, w in shapes):
        return sentence, (
            "A tensor of shape (n,) and one of shape (n, 1) broadcast to (n, n): keep the second "
            "axis in both, or in none."
        )
    for what, fits in (
        ("Everything is reduced to one number.", lambda g, w: g == () and w),
        ("One entry per row is left: the last axis is summed, averaged or indexed away.",
         lambda g, w: g == w[:-1] and w),
        ("An axis of length 1 is left over at the end.", lambda g, w: g == (*w, 1)),
        ("The first axis is gone.", lambda g, w: g == w[1:] and w),
        ("The last axis is reduced to length 1.", lambda g, w: w and g == (*w[:-1], 1)),
        ("The two axes are exchanged.", lambda g, w: len(w) == 2 and g == w[::-1]),
        ("The last axis is one too short.",
         lambda g, w: w and g == (*w[:-1], w[-1] - 1)),
        ("It is not reduced: one number is asked for.", lambda g, w: w == ()),
    ):  # fmt: skip
        if all(fits(g, w) for g, w in shapes):
            return f"{sentence} {what}", hint
    return sentence, hint


_SHAPES = {"floating": "The result has {note}.", "callable": "{note}"}
_SHAPE_HINTS = {
    "shape": "Name the axes of every intermediate result and see where one is lost or added.",
}


def _dtype_hint(note: str) -> str:
    got, _, wanted = note.partition(" where ")
    if "torch.bool" in wanted:
        return "A comparison gives bool: return it as it is, without .float() or .int()."
    if "floating" not in wanted:
        return "Return bool, integer or floating-point 0 and 1."
    if "torch.bool" in got:
        return "A comparison gives True and False: convert it to the dtype of the numbers."
    return "Convert integers to a floating dtype before computing with them."


# What is wrong, over all entries or over those of a place.


def pattern(maps: list[Map]) -> tuple[str, str] | None:
    """The first pattern that holds in all maps that are not right, as (predicate, hint)."""
    wrong = [m for m in maps if not bool(m.right.all())]
    if not wrong:
        return None
    for look in (flips, _entries, _spread, _row_factor, _line_offset, _dead_or_alive, _shifted,
                 _reordered, _place, _free_factor, _nearly, _never, _one_sided):  # fmt: skip
        if found := look(wrong):
            return found
    return None


def scope(maps: list[Map]) -> str:
    """On which inputs it is right although it is wrong on others; "" if on none."""
    wrong = [m for m in maps if not bool(m.right.all())]
    good = [m for m in maps if bool(m.right.all()) and m.want.any()]  # 0 = 0 proves nothing
    if not good:
        return ""
    for knob in maps[0].case.knobs:
        bad_values, good_values = ({_knob_word(m, knob) for m in ms} for ms in (wrong, good))
        if len(good_values) == 1 and not bad_values & good_values and good_values <= NEUTRAL:
            (value,) = good_values
            where = f"{knob} is not given" if value == "None" else f"{knob} is {value}"
            return f"; it is right where {where}, and wrong elsewhere"
    bad_names, good_names = ({m.case.name for m in ms} for ms in (wrong, good))
    if not bad_names & good_names:
        if len(bad_names) <= 2:
            inputs = "inputs" if len(bad_names) > 1 else "input"
            return f"; it goes wrong on the {inputs} {_quoted(bad_names)} only"
        if len(good_names) <= 2:
            some = f"{len(wrong)} of {len(maps)}"
            return f"; it goes wrong on {some} inputs, and not on {_quoted(good_names)}"
    return f"; it goes wrong on {len(wrong)} of {len(maps)} inputs"


def _special(maps: list[Map]) -> str:
    """The hint when nothing but the inputs that go wrong is known."""
    bad, good = ([m.case for m in maps if bool(m.right.all()) is x] for x in (False, True))
    difference = speciality(bad, good, maps[0].names, dtypes=False)  # numbers rarely hang on it
    if difference:
        return f"What these inputs have and the right ones have not: {difference}."
    return (
        "What do the inputs that go wrong have that the right ones have not? Print the arguments "
        "inside your function, and go through one by hand."
    )


def speciality(bad: list[Case], good: list[Case], names, *, dtypes=True) -> str:
    """What all these cases have and none of those: "mask has dtype torch.int64"; "" for nothing."""
    found = []
    for words, of in _features(bad, names, dtypes) if good else ():
        values = {of(case) for case in bad}
        other = {of(case) for case in good}
        if len(values) == 1 and not values & other and None not in other:
            value = next(iter(values))
            if text := words.get(value, "") if isinstance(words, dict) else words.format(value):
                found.append(text)
    return " and ".join(found[:2])


def _features(bad, names, dtypes):
    """(words for a value, the value of a case) of all that may set cases apart."""
    for i, name in enumerate(names):
        yield f"{name} has {{}} axes", lambda c, i=i: c.args[i].dim()
        wide = {True: f"{name} has more than one column", False: f"{name} has one column"}
        yield wide, lambda c, i=i: c.args[i].shape[-1] > 1 if c.args[i].dim() == 2 else None
        if dtypes:
            yield f"{name} has dtype {{}}", lambda c, i=i: c.args[i].dtype
        if name == "mask":
            late = {True: "a response begins behind the first column"}
            yield late, lambda c, i=i: bool((c.args[i].long().diff(dim=-1) > 0).any())
            empty = {True: "a response is empty"}
            yield empty, lambda c, i=i: not bool(c.args[i].bool().any(-1).all())
    uneven = {True: "the arguments' first axes differ in length"}
    yield uneven, lambda c: len({a.shape[0] for a in c.args if a.dim()}) > 1
    for knob in bad[0].knobs:
        words = {"None": f"{knob} is None", "tensor": f"{knob} is a tensor"}
        yield words, lambda c, knob=knob: _kind(c.knobs.get(knob))


def _kind(knob) -> str:
    return "tensor" if isinstance(knob, torch.Tensor) else "None" if knob is None else "number"


NEUTRAL = {"None", "0", "0.0", "1", "1.0"}  # values at which a forgotten knob does not show


def _quoted(names) -> str:
    return " and ".join(f'"{name}"' for name in sorted(names))


def _knob_word(m: Map, knob: str) -> str:
    value = m.case.knobs.get(knob)
    return "a tensor" if isinstance(value, torch.Tensor) else f"{value}"


def _entries(maps, places=None):
    """Patterns that compare entry with entry, on all of them or on those of a place."""
    places = places or [torch.ones_like(m.want, dtype=torch.bool) for m in maps]
    pairs = [(m, m.got[p], m.want[p]) for m, p in zip(maps, places, strict=True) if p.any()]
    if all(float(got.abs().max()) <= CLOSE * m.scale for m, got, _ in pairs):
        if maps[0].slope:
            return "is zero", (
                "Is the factor that must carry the gradient there at all? Or is it detached, or "
                "multiplied by 0?"
            )
        return "is zero", "Is something multiplied by 0, never filled, or subtracted from itself?"
    if found := _factor(pairs):
        return found
    if sum(want.numel() for *_, want in pairs) < 4:
        return None  # a few numbers fit many things
    for words, function, hint in TRANSFORMS:
        if all(m.close(got, function(want).nan_to_num(9e9)) for m, got, want in pairs):
            return f"is {words}", hint
    for m, got, want in pairs:
        if got.numel() < 3 or not m.close(got - want, (got - want).mean()):
            break
    else:
        return (
            "is off by the same amount in every entry",
            "Was a constant added, subtracted or left in?",
        )
    return _argument_too_many(pairs, places)


TRANSFORMS = (  # the answer as a function of the right one
    ("the absolute value of the right one", torch.abs, "Where did the sign go?"),
    ("1 over the right one", lambda x: 1 / x, "Which of the two belongs on top?"),
    ("the logarithm of the right one", torch.log, "Is an exp() missing?"),
    ("the exponential of the right one", torch.exp, "Is an exp() too many, or a log missing?"),
    ("minus the exponential of minus the right one", lambda x: -torch.exp(-x),
     "Is an exp() too many, or a log missing?"),
    ("the square of the right one", torch.square, "Is something squared once too often?"),
    ("the root of the right one", torch.sqrt, "Is a square missing?"),
    ("one minus the right one", lambda x: 1 - x, "Is a case counted as its opposite?"),
    ("the right one cut off at 0 from below", lambda x: x.clamp(min=0), "Which clamp is it?"),
    ("the right one cut off at 0 from above", lambda x: x.clamp(max=0), "Which clamp is it?"),
)  # fmt: skip


def _ratio(got, want, scale):
    """The one factor c with got = c · want, or None."""
    weight = float((want * want).sum())
    if weight == 0:
        return None
    c = float((got * want).sum()) / weight
    close = bool(((got - c * want).abs() <= CLOSE * scale * max(1.0, abs(c))).all())
    return c if close and abs(c) > 1e-6 else None


def _factor(pairs):
    """One factor in all of them, or one that follows a size or a knob."""
    factors = [_ratio(got, want, m.scale) for m, got, want in pairs]
    if any(c is None for c in factors):
        return None
    first = factors[0]
    if all(abs(c - first) <= 1e-3 * abs(first) for c in factors):
        if abs(first + 1) < 1e-3:
            return "has the wrong sign: it is -1 times the right one", "Where does a minus belong?"
        known = next((f" ({w})" for c, w in BASES.items() if abs(abs(first) - c) < 1e-4), "")
        return (
            f"is {first:.{3 if abs(first - 1) > 0.01 else 6}g} times the right one{known}",
            "One constant factor: look for a normaliser, a missing ½ or a doubled term.",
        )
    maps = [m for m, *_ in pairs]
    for words, number in _numbers(maps[0]):
        known = [number(m) for m in maps]
        if any(k is None or k <= 0 for k in known):
            continue
        for sign, minus in ((1, ""), (-1, "minus ")):
            for power, form in ((1, "{}"), (-1, "1 / {}"), (2, "the square of {}"),
                                (-2, "1 / the square of {}"), (0.5, "the root of {}"),
                                (-0.5, "1 / the root of {}")):  # fmt: skip
                if all(
                    abs(c - sign * k**power) <= 1e-3 * abs(c)
                    for c, k in zip(factors, known, strict=True)
                ):
                    hint = "A factor too many, or one that is missing."
                    named = f"({words})" if "/" in words and power != 1 else words
                    return f"is {minus}the right one times {form.format(named)}", hint
    return None


BASES = {0.4343: "1 / ln 10: base-10 logarithms", 1.4427: "1 / ln 2: bits instead of nats"}


def _numbers(first: Map):
    """(words, number of a map) for the sizes and knobs that a factor may follow."""
    for name, value in first.case.knobs.items():
        if isinstance(value, (int, float)):
            yield name, lambda m, name=name: m.case.knobs.get(name)
    if "mask" in first.names:
        i = first.names.index("mask")
        yield "the number of valid tokens", lambda m: float(m.case.args[i].sum())
        yield "the longest length", lambda m: float(m.case.args[i].sum(-1).max())
    yield from SIZES.items()


def _size(of):
    """A number made of the sizes (n, k) of the first two axes of the first argument."""
    return lambda m: of(*m.case.args[0].shape[:2]) if m.case.args[0].dim() > 1 else None


SIZES = {
    "the number of rows": _size(lambda n, k: n),
    "the number of columns": _size(lambda n, k: k),
    "the number of entries": _size(lambda n, k: n * k),
    "(n-1)/n for n columns": _size(lambda n, k: (k - 1) / k),
    "n/(n-1) for n columns": _size(lambda n, k: k / (k - 1) if k > 1 else None),
    "the length of the inputs": lambda m: (
        len(m.case.args[0]) if m.case.args[0].dim() == 1 else None
    ),
}


def _argument_too_many(pairs, places):
    """got = want + c · argument, with one c."""
    names = [name for name, _ in pairs[0][0].arguments()]
    for name in names:
        factors = []
        for (m, got, want), place in zip(pairs, places, strict=True):
            values = dict(m.arguments()).get(name)
            if values is None or int(((got - want).abs() > CLOSE * m.scale).sum()) < 3:
                break
            factors.append(_ratio(got - want, values[place], m.scale))
        if len(factors) < len(pairs) or any(c is None for c in factors):
            continue
        c = factors[0]
        whole = any(abs(abs(c) - size) < 1e-3 for size in (0.5, 1, 2))
        if whole and all(abs(x - c) <= 1e-3 for x in factors):
            size = "" if abs(abs(c) - 1) < 1e-3 else f"{abs(c):.1g} · "
            return (
                f"is the right one {'plus' if c > 0 else 'minus'} {size}{name}",
                f"Is {name} added or subtracted once too often, or forgotten?",
            )
    return None


def _free_factor(maps):
    factors = [_ratio(m.got, m.want, m.scale) for m in maps]
    if any(c is None for c in factors) or any(m.got.numel() < 3 for m in maps):
        return None  # one or two numbers have a factor by accident
    shown = ", ".join(f"{c:.3g}" for c in factors[:4])
    return (
        f"is the right one times a factor that differs from input to input ({shown})",
        "Does the factor follow a size, or a knob? Look for a sum taken for a mean, or for a knob "
        "used once too often.",
    )


def _nearly(maps):
    worst = max(float((m.got - m.want).abs().max()) / m.scale for m in maps)
    if worst >= 0.02:
        return None
    return (
        f"is close to the right one (within {100 * worst:.1g} %), but not equal",
        "Is something rounded, computed in half precision, or a small term added?",
    )


def _never(maps):
    """No entry of a sign that many right ones have."""
    for sign, word in ((-1, "negative"), (1, "positive")):
        if any(bool((sign * m.got > CLOSE * m.scale).any()) for m in maps):
            continue
        count = sum(int((sign * m.want > CLOSE * m.scale).sum()) for m in maps)
        if count >= 10:
            entries = sum(m.want.numel() for m in maps)
            return (
                f"is never {word}, although the right one is in {count} of {entries} entries",
                "Is something clamped, squared, or taken without its sign?",
            )
    return None


def _one_sided(maps):
    """Wrong in one direction only; the least that can be said."""
    gaps = torch.cat([(m.got - m.want)[~m.right] for m in maps])
    if 0.5 ** (len(gaps) - 1) > CHANCE or not (bool((gaps > 0).all()) or bool((gaps < 0).all())):
        return None
    word, other = ("large", "small") if gaps[0] > 0 else ("small", "large")
    entries = sum(m.got.numel() for m in maps)
    if len(gaps) == entries:
        return f"is too {word} in every entry", "Is something counted twice, or left out?"
    return (
        f"is too {word} in {len(gaps)} of {entries} entries, never too {other}",
        "Take one of these entries and compute it by hand: what is counted that must not be, or "
        "left out?",
    )


def _row_factor(maps):
    if not any(m.got.dim() == 2 and m.got.shape[1] > 2 for m in maps):
        return None  # rows of two numbers that add up to 0 have a factor by accident
    followed = []  # per map: (factor, length) of its rows
    for m in maps:
        if m.got.dim() != 2 or m.got.shape[1] < 2:
            return None
        followed.append([])
        for row, (got, want) in enumerate(zip(m.got, m.want, strict=True)):
            c = _ratio(got, want, m.scale)
            if c is None and not m.close(got, want):
                return None
            if c is not None and m.valid is not None and m.valid[row].any():
                followed[-1].append((c, int(m.valid[row].sum())))
    whole = [_ratio(m.got, m.want, m.scale) for m in maps]
    if all(c is not None for c in whole):
        return None  # one factor for all rows of an input
    if len({length for rows in followed for _, length in rows}) > 2:
        for power, words in ((1, "grows with"), (-1, "falls like 1 over")):
            steady = [[c / length**power for c, length in rows] for rows in followed]
            if all(max(x) - min(x) <= 1e-3 * abs(x[0]) for x in steady if x):
                return (
                    f"is the right one times a factor that {words} the length of the response",
                    "Is a response divided by its length once too often, or not at all?",
                )
    if all(m.close(*_ends_of_rows(m)) for m in maps):
        return None  # rows that hold one number each always differ by a factor
    return (
        "is the right one times a factor of its own for each row",
        "Does the factor follow the row's length, sum or spread? Look at what is divided by what.",
    )


def _line_offset(maps):
    """got = want + one amount per row, or per column."""
    if any(m.got.dim() != 2 or m.valid is not None for m in maps):
        return None
    for axis, line in ((1, "row"), (0, "column")):
        long = any(m.got.shape[axis] > 2 for m in maps)
        if long and all(
            m.close(m.got - m.want, (m.got - m.want).mean(axis, keepdim=True)) for m in maps
        ):
            return (
                f"is off by one amount per {line}, the same all along it",
                f"Something was added to, or subtracted from, each {line}.",
            )
    return None


def _ends_of_rows(m: Map):
    """The smallest and the largest right entry of each row, padding left out."""
    valid = torch.ones_like(m.want, dtype=torch.bool) if m.valid is None else m.valid
    some = valid.any(1)
    low = torch.where(valid, m.want, torch.inf).amin(1)
    high = torch.where(valid, m.want, -torch.inf).amax(1)
    return torch.where(some, low, 0.0), torch.where(some, high, 0.0)


REVERSED = "In which order are the entries run through, and in which are they put back?"


def _spread(maps):
    """One number where several are expected, or sums and means of the right ones."""
    if any(m.got.dim() != 2 or min(m.got.shape) < 2 for m in maps):
        return None
    for words, function in (
        ("at every position the sum of the right one over its row",
         lambda x: x.sum(1, keepdim=True).expand_as(x)),
        ("at every position the mean of the right one over its row",
         lambda x: x.mean(1, keepdim=True).expand_as(x)),
        ("the running sum of the right one along each row", lambda x: x.cumsum(1)),
        ("the running sum of the right one from the end of each row",
         lambda x: x.flip(1).cumsum(1).flip(1)),
        ("the right one minus its own mean over each row",
         lambda x: x - x.mean(1, keepdim=True)),
        ("the right one minus its own mean over each column",
         lambda x: x - x.mean(0, keepdim=True)),
        ("the right one minus its own mean", lambda x: x - x.mean()),
        ("the right one with its positions in reverse order", lambda x: x.flip(1)),
        ("the right one with its rows in reverse order", lambda x: x.flip(0)),
    ):  # fmt: skip
        if all(m.close(m.got, function(m.want)) for m in maps):
            hint = "Which axis is which, and what is summed over it?"
            return f"is {words}", REVERSED if "reverse" in words else hint
    if any(m.valid is not None for m in maps):
        return None  # padding would hide it
    for words, axes in (
        ("is one and the same number everywhere", (0, 1)),
        ("is the same at every position of a row, where it must differ", (1,)),
        ("is the same in every row, where it must differ", (0,)),
    ):
        flat = all(m.close(m.got, m.got.mean(axes, keepdim=True)) for m in maps)
        if flat and not any(m.close(m.want, m.want.mean(axes, keepdim=True)) for m in maps):
            return words, (
                "Is something summed or averaged over an axis that must stay, or cut off at an "
                "edge?"
            )
    return None


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
            "Look at sort, flip, reshape, transpose and indexing: which entry goes where?",
        )
    return None


def _dead_or_alive(maps):
    """Right wherever both or neither are zero; dead or alive at the other entries only."""
    dead, alive = [], []
    for m in maps:
        wrong = ~m.right
        tiny = CLOSE * m.scale
        dead.append(wrong & (m.got.abs() <= tiny))
        alive.append(wrong & (m.want.abs() <= tiny))
        if bool((wrong & ~dead[-1] & ~alive[-1]).any()):
            return None
    words, nought = [], [m.want.abs() <= CLOSE * m.scale for m in maps]
    for found, among, text in (
        (dead, [~x for x in nought], "is zero at some entries where it must not be"),
        (alive, nought, "is not zero at some entries where it must be"),
    ):
        if any(bool(x.any()) for x in found):
            place = place_of(maps, found, among)
            words.append(text + (f" ({place})" if place and " and " not in place else ""))
    return (
        f"{' and '.join(words)}; all other entries are right",
        "What switches entries on and off there: a condition, a mask, a clamp and its edges?",
    )


def flips(maps):
    """Of answers that are True or False: how many are turned over, and where."""
    if not all(bool(((x == 0) | (x == 1)).all()) for m in maps for x in (m.got, m.want)):
        return None
    if not any(m.want.numel() > 1 for m in maps):
        return None
    if all(bool((m.got != m.want).all()) for m in maps):
        return "is the opposite of the right one in every entry", "What has True to mean?"
    no, yes = maps[0].no, maps[0].yes
    for value, word in ((1, yes), (0, no)):
        if all(bool((m.got == value).all()) for m in maps):
            return f"is {word} in every entry", "Look at the condition: can it ever fail?"
    entries = sum(m.got.numel() for m in maps)
    words = []
    for value, text in ((1, f"{yes} where it must be {no}"), (0, f"{no} where it must be {yes}")):
        found = [(m.got == value) & ~m.right for m in maps]
        if count := sum(int(x.sum()) for x in found):
            place = place_of(maps, found, [m.want != value for m in maps])
            words.append(
                f"{text} at {count} of {entries} entries" + (f", {place}" if place else "")
            )
    return (
        f"is {' and '.join(words)} of the inputs that go wrong",
        "Take one of these entries and follow the condition by hand.",
    )


# Where it is wrong.


def _place(maps):
    """Everything that is wrong lies in one place, and perhaps one pattern holds there."""
    wrong = [~m.right for m in maps]
    for words, places in _ordered(maps, wrong):
        if found := _entries(maps, places):
            return f"{found[0]} {words}, and right on all other entries", found[1]
    if words := place_of(maps, wrong):
        return (
            f"is right on all entries but those {words}",
            "What does your code do differently there?",
        )
    return None


def place_of(maps, wrong, among=None) -> str:
    """The smallest place in which all of ``wrong`` lies, in words; "" for none."""
    return next((words for words, _ in _ordered(maps, wrong, among)), "")


def _ordered(maps, wrong, among=None):
    """Places that hold all wrong entries and would hardly do so by chance, smallest first.

    among : the entries that could be wrong in this way; default: all valid ones.
    """
    if among is None:
        among = [torch.ones_like(w) if m.valid is None else m.valid | w
                 for m, w in zip(maps, wrong, strict=True)]  # fmt: skip
    count, counted = (sum(int(x.sum()) for x in xs) for xs in (wrong, among))
    fitting = []
    for words, places in _places(maps):
        if any(bool((w & ~p).any()) for w, p in zip(wrong, places, strict=True)):
            continue
        share = sum(int((p & a).sum()) for p, a in zip(places, among, strict=True)) / counted
        if share <= 0.75 and share**count <= CHANCE:
            worth = share * (1.3 if " and " in words else 1.1 if "the right one" in words else 1)
            fitting.append((worth, words, places))
    return [(words, places) for _, words, places in sorted(fitting, key=lambda x: x[0])]


def _places(maps):
    """(words, one bool tensor per map) for every place that all maps have."""
    each = [dict(_places_of(m)) for m in maps]
    for words in each[0]:
        if all(words in places for places in each):
            yield words, [places[words] for places in each]


def _places_of(m: Map):
    shape, valid = m.want.shape, m.valid
    if valid is not None:
        steps = torch.arange(shape[1]).expand(shape)
        last = torch.where(valid, steps, -1).amax(1, keepdim=True)
        first = torch.where(valid, steps, shape[1]).amin(1, keepdim=True)
        yield "on the last valid token", steps == last
        yield "on the first valid token", steps == first
        yield "behind the last valid token", steps == last + 1
        yield "on padding", ~valid
        yield "in empty responses", (~valid.any(1, keepdim=True)).expand(shape)
    for axis, noun in ((1, "column"), (0, "row")):
        if m.want.dim() > axis and shape[axis] > 1 and m.want.dim() > 1:
            along = [-1 if k == axis else 1 for k in range(m.want.dim())]
            index = torch.arange(shape[axis]).reshape(along).expand(shape)
            yield f"in the last {noun}", index == shape[axis] - 1
            yield f"in the first {noun}", index == 0
    yield "where the right one is negative", m.want < 0
    yield "where the right one is positive", m.want > 0
    signs, orders = [], []
    arguments = [(n, v) for n, v in m.arguments() if n != "mask"]
    for name, value in arguments:
        if bool(((value == 0) | (value == 1)).all()):
            signs += [(f"{name} is {k}", value == k) for k in (0, 1)]
        else:
            signs += [(f"{name} is negative", value < 0), (f"{name} is positive", value > 0)]
    for (a, x), (b, y) in combinations(arguments, 2):
        orders += [(f"{a} is above {b}", x > y), (f"{a} is below {b}", x < y)]
    for words, place in [*signs, *orders]:
        yield f"where {words}", place
    for (a, x), (b, y) in ((s, o) for s in signs for o in orders):
        yield f"where {a} and {b}", x & y
