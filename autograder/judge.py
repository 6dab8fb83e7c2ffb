"""The judge: is an answer right, how many points is it worth, and if it is wrong, why?

`judge` is ``assess(question_id, collect(function, cases))``. Only `collect` touches the learner's
function (it may run in another process); `assess` compares plain data with the reference. Points:
all of them when every check passes; half when every value is right and a later check fails
(gradient, padding, inputs, stability); none otherwise.

The cause is looked for in this order: the exception, each known mistake of the question, each
pair of them, a description of how the numbers differ (`autograder.patterns`), "unknown". A
mistake is named only when it fails the same check first and the values and the gradients of all
cases are the mistake's; entries that are NaN are left out of that comparison when nothing fits
with them.
"""

import re
import sys
import types
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from weakref import WeakKeyDictionary

import torch

from autograder.cases import Case, Outcome, Outcomes, collect, identical
from autograder.imports import forbidden_imports
from autograder.patterns import ORDINALS, describe, speciality
from autograder.questions import find
from autograder.questions.base import RESULTS, Draw, Question

__all__ = ["Verdict", "assess", "cases_for", "collect", "forbidden_imports", "judge", "refusal"]

PROPERTIES = (
    "callable", "runs", "shape", "floating", "finite",
    "value", "gradient", "padding", "inputs", "stability",
)  # fmt: skip
WORTH_HALF = ("gradient", "padding", "inputs", "stability")
STABILITY_TOLERANCE = 1e-3  # float32, after some cancellation
NAMING_TOLERANCE = 5e-4  # the same mistake, written with another eps
FINAL_SEEDS = 2


@dataclass(frozen=True)
class Verdict:
    """The judgement of one answer.

    cause : None when passed, else a sentence; contains "unknown" only if nothing is known.
    details : plain data for tables and feedback: question, title, property (the first failing
        check or ""), case, difference (largest, relative to the answer's size, or None), hint,
        lecture, named (mistakes by name), note (e.g. which ddof), checks (one dict with property,
        passed, note per check). Never holds an input, and an expected value on request only:
        example, "" or one entry in words, for cases that the learner may see.
    """

    points: float
    max_points: float
    passed: bool
    cause: str | None
    details: dict = field(default_factory=dict)

    def _repr_mimebundle_(self, include=None, exclude=None):
        # nbgrader reads a number in text/plain as the points of the cell.
        from autograder.checks import as_html, shown_just_now

        html = "" if shown_just_now(self) else as_html(self)
        return {"text/plain": f"{self.points:g}", "text/html": html}


def judge(question_id: str, function, *, cases: str = "final", seed: int = 0) -> Verdict:
    """Judge ``function`` as the answer to a question.

    cases : "visible" (what `check` shows in the notebook) or "final" (what is graded).
    seed : another seed gives other numbers in the final cases.
    Raises KeyError for an unknown question, ValueError for unknown cases.
    """
    chosen = cases_for(question_id, cases=cases, seed=seed)
    if not callable(function):
        name = find(question_id).function_name
        what = "nothing" if function is None else f"a {type(function).__name__}"
        return refusal(question_id, f"{name} is {what}, not a function.")
    return assess(question_id, collect(function, chosen), example=cases == "visible")


def cases_for(question_id: str, *, cases: str = "final", seed: int = 0) -> list[Case]:
    """The inputs on which a question is judged; the same call gives the same numbers."""
    question = find(question_id)
    if cases == "visible":
        return question.generate(Draw(question_id, "visible"), False)
    if cases != "final":
        raise ValueError(f'cases is "visible" or "final", not {cases!r}')
    draws = [Draw(question_id, "final", seed, k) for k in range(FINAL_SEEDS)]
    return [case for draw in draws for case in question.generate(draw, True)]


def refusal(question_id: str, cause: str, *, hint: str = "", prop: str = "callable") -> Verdict:
    """A verdict of 0 points without a single call: no function, a forbidden import, a time-out."""
    question = find(question_id)
    checks = [{"property": prop, "passed": False, "note": cause}]
    return _verdict(question, checks, cause, hint=hint)


def assess(question_id: str, outcomes: Outcomes, *, example: bool = False) -> Verdict:
    """Compare what an answer did with what the reference does on the same cases.

    outcomes : from `collect`, or `Outcomes` made of what came back from another process.
    example : put one wrong entry beside the expected one into the details; for visible cases.
    """
    question = find(question_id)
    cases = outcomes.cases
    outcomes = [_clean(case, got) for case, got in zip(cases, outcomes, strict=True)]
    tried = []
    for variant in question.variants:
        expected = [_expected(question, case, variant) for case in cases]
        checks = _checks(question, cases, expected, outcomes)
        passed = sum(c["passed"] is True for c in checks)
        rank = passed, _right_entries(cases, expected, outcomes)
        tried.append((rank, variant, expected, checks))
        if not any(c["passed"] is False for c in checks):
            break
    _, variant, expected, checks = max(tried, key=lambda entry: entry[0])
    note = ", ".join(f"{k} {v}" for k, v in variant.items())
    failed = next((c for c in checks if c["passed"] is False), None)
    if failed is None:
        return _verdict(question, checks, None, note=note)
    cause, hint, lecture, named = _explain(question, cases, expected, outcomes, failed)
    if failed["property"] != "inputs" and any(o.modified for o in outcomes):
        cause += " Besides, it changes an input in place."
    verdict = _verdict(question, checks, cause, hint=hint, lecture=lecture, named=named)
    if example:
        verdict.details["example"] = _example(question, cases, expected, outcomes, failed)
    return verdict


def _right_entries(cases, expected, outcomes) -> int:
    """How many entries are right: of two variants, the answer is compared with the nearer one."""
    fitting = [
        (got.value.to(torch.float64), want.value.to(torch.float64))
        for case, want, got in zip(cases, expected, outcomes, strict=True)
        if got.value is not None and got.value.shape == want.value.shape and not case.stability
        if not got.value.is_complex()
    ]
    return sum(int(((a - b).abs() <= 1e-4 * b.abs().max()).sum()) for a, b in fitting if b.numel())


def _clean(case: Case, got: Outcome) -> Outcome:
    """The outcome with one gradient per tracked input: outcomes may come from a foreign process."""
    tracked = case.differentiable + case.constants
    given = got.gradients if len(got.gradients) == len(tracked) else (None,) * len(tracked)
    fits = [
        g is not None and g.shape == case.args[i].shape and g.is_floating_point()
        for i, g in zip(tracked, given, strict=True)
    ]
    gradients = tuple(g if fit else None for g, fit in zip(given, fits, strict=True))
    modified = tuple(sorted({i for i in got.modified if 0 <= i < len(case.tensors)}))
    return replace(got, gradients=gradients, modified=modified)


def _verdict(question, checks, cause, *, hint="", lecture="", named=(), note=""):
    failed = next((c for c in checks if c["passed"] is False), {})
    right = failed.get("property") in WORTH_HALF
    points = question.points * (1.0 if cause is None else 0.5 if right else 0.0)
    details = {
        "question": question.id,
        "title": question.title,
        "property": failed.get("property", ""),
        "case": "" if failed.get("property") == "callable" else failed.get("case", ""),
        "difference": failed.get("difference"),
        "hint": hint,
        "lecture": lecture or question.lecture,
        "named": list(named),
        "note": note,
        "example": "",
        "checks": [
            {"property": c["property"], "passed": c["passed"], "note": c["note"]} for c in checks
        ],
    }
    return Verdict(points, float(question.points), cause is None, cause, details)


# The checks, in order; what comes after the first that fails is not looked at (passed: None).


def _checks(question: Question, cases, expected, outcomes) -> list[dict]:
    ordinary = [t for t in zip(cases, expected, outcomes, strict=True) if not t[0].stability]
    stability = [t for t in zip(cases, expected, outcomes, strict=True) if t[0].stability]
    names = argument_names(question)
    tests = {
        "callable": _answered,
        "runs": _runs,
        "shape": _shape,
        "floating": partial(_floating, question),
        "finite": _finite,
        "value": partial(_value, question),
        "gradient": partial(_gradient, question, names),
        "padding": partial(_padding, question),
        "inputs": partial(_inputs, names),
    }
    applies = {
        "gradient": any(c.differentiable or c.constants for c in cases),
        "padding": any(c.padding is not None for c in cases),
        "stability": bool(stability),
    }
    done, failed = [], False
    for prop in PROPERTIES:
        if not applies.get(prop, True):
            continue
        if failed:
            done.append({"property": prop, "passed": None, "note": ""})
            continue
        if prop == "stability":
            found = (_worst(test, stability) for test in tests.values())
            problem = next((p for p in found if p), None)
        else:
            problem = _worst(tests[prop], ordinary)
        failed = problem is not None
        done.append({"property": prop, "passed": not failed, **(problem or {"note": ""})})
    return done


def _worst(test, triples) -> dict | None:
    """The problem with the largest difference among the cases, or None."""
    problems = []
    for case, want, got in triples:
        found = test(case, want, got)
        if found:
            note, difference = found if isinstance(found, tuple) else (found, None)
            problems.append({"note": note, "case": case.name, "difference": difference})
    return max(problems, key=lambda p: p["difference"] or 0.0, default=None)


def _answered(case, want, got):
    unanswered = got.value is None and got.error.startswith("NotImplementedError")
    return "raises NotImplementedError" if unanswered else None


def _runs(case, want, got):
    if got.value is None and got.error:
        return redact(got.error)
    if got.value is None:
        return f"returns {_a(got.kind)} where {_count(want)} expected"
    return None


def _shape(case, want, got):
    if _count(got) != _count(want):
        return f"{_count(got).rpartition(' ')[0]} where {_count(want)} expected"
    if got.value.shape != want.value.shape:
        have, right = (_one_shape(outcome) for outcome in (got, want))
        return f"shape {have} where {right} is expected"
    return None


def _one_shape(outcome) -> tuple[int, ...]:
    """Of the tensor, or of each of several, which are stacked."""
    return tuple(outcome.value.shape[outcome.kind.endswith("tensors") :])


def _count(outcome) -> str:
    several = re.fullmatch(r"\d tensors", outcome.kind)  # free text from a foreign process
    return f"{outcome.kind} are" if several else "one tensor is"


def _floating(question, case, want, got):
    if not RESULTS[question.result](got.value.dtype):
        wanted = {"floating": "a floating dtype", "bool": "torch.bool"}.get(question.result)
        return f"dtype {got.value.dtype} where {wanted or 'a mask of 0 and 1'} is expected"
    return None


def _finite(case, want, got):
    bad = int((~torch.isfinite(got.value)).sum())
    return f"{bad} of {got.value.numel()} entries are NaN or infinite" if bad else None


def _value(question, case, want, got):
    valid = None if case.padding is None else ~case.padding
    excess = compare(question, case, got.value, want.value, valid)
    return _off("values differ", excess)


def _gradient(question, names, case, want, got):
    if got.error:
        return f"the backward pass raises {redact(got.error)}", 1.0
    graded = case.differentiable + case.constants
    for position, have, right in zip(graded, got.gradients, want.gradients, strict=True):
        if position in case.constants:
            if have is not None and bool((have.abs() > question.tolerance).any()):
                return f"a gradient flows into {names[position]}", 1.0
        elif have is None:
            return f"no gradient reaches {names[position]}", 1.0
        else:
            excess = compare(question, case, have, right, None)
            if problem := _off(f"the gradient of {names[position]} differs", excess):
                return problem
    return None


def _padding(question, case, want, got):
    if case.padding is None:
        return None
    return _off(
        "values on padding differ", compare(question, case, got.value, want.value, case.padding)
    )


def _inputs(names, case, want, got):
    if got.modified:
        names = [*names, *(k for k, v in case.knobs.items() if isinstance(v, torch.Tensor))]
        return f"changes its input {', '.join(names[i] for i in got.modified)} in place"
    return None


def compare(question, case, got, want, where) -> tuple[bool, float]:
    """(close, largest difference relative to the largest expected entry), in float64."""
    if got.shape != want.shape:
        return False, float("inf")
    got, want = got.to(torch.float64), want.to(torch.float64)
    scale = float(want.abs().max()) if want.numel() else 0.0
    scale = scale if scale > 0 else 1.0
    tolerance = STABILITY_TOLERANCE if case.stability else question.tolerance
    allowed = torch.full_like(want, tolerance * scale)
    if question.zero is not None:
        allowed = torch.where(want == 0, allowed.clamp(min=question.zero), allowed)
    distance = torch.where(got == want, 0.0, (got - want).abs())
    distance = torch.where(distance.isnan(), float("inf"), distance)
    if where is not None:
        distance, allowed = distance[where], allowed[where]
    if not distance.numel():
        return True, 0.0
    return bool((distance <= allowed).all()), float(distance.max()) / scale


def _off(text, result):
    close, difference = result
    if close:
        return None
    if difference == float("inf"):
        return f"{text}: NaN or infinity stands there", difference
    return f"{text} by up to {percent(difference)}", difference


def percent(difference: float) -> str:
    """A relative difference in words, e.g. "12.3 % of the right answer's size"."""
    if difference == float("inf"):
        return "NaN or infinity"
    if difference >= 10:
        return "more than ten times the right answer's size"
    return f"{100 * difference:.3g} % of the right answer's size"


def argument_names(question: Question) -> list[str]:
    positional = question.signature.strip("()").split("*")[0]
    return [name.strip() for name in positional.split(",") if name.strip()]


def redact(text: str) -> str:
    """Without decimal and long numbers and words: an exception's text could carry the inputs.

    What cannot be printed is left out.
    """
    text = "".join(c for c in text if c.isprintable())
    text = re.sub(r"[^\W\d_]{21,}", "…", text)
    kept = re.sub(r"-?\d*\.\d+(e[-+]?\d+)?|\b(?=\w*\d)\w{8,}\b|\d{4,}", "…", text)
    if len(re.findall(r"\d+|…", kept)) > 9:  # no message of torch's about shapes has so many
        line = re.search(r" \(line \d+\)$", kept)
        return f"{kept.partition(':')[0]}, a message full of numbers{line[0] if line else ''}"
    return kept[:300]


def _a(kind: str) -> str:
    if not re.fullmatch(r"[a-z][a-z ]{1,30}", kind) and kind != "NoneType":
        return "an object"  # a class of the learner's: its name is free text
    article = "an" if kind[:1] in "aeiou" or kind == "ndarray" else "a"
    return "nothing (None)" if kind == "NoneType" else f"{article} {kind}"


def _example(question, cases, expected, outcomes, failed) -> str:
    """The worst entry of the case named in the failed check: ours and the learner's."""
    if failed["property"] not in ("value", "finite", "stability"):
        return ""
    for case, want, got in zip(cases, expected, outcomes, strict=True):
        fits = got.value is not None and got.value.shape == want.value.shape
        if case.name != failed["case"] or not fits:
            continue
        gap = (got.value.to(torch.float64) - want.value.to(torch.float64)).abs()
        gap = torch.where(got.value == want.value, 0.0, gap.nan_to_num(nan=float("inf")))
        if case.padding is not None and case.padding.shape == gap.shape:
            gap = torch.where(case.padding, 0.0, gap)  # judged later
        if not gap.any():
            continue
        place = torch.unravel_index(gap.argmax(), gap.shape)
        yours, right = (_shown(outcome.value[place]) for outcome in (got, want))
        part = ""
        if want.kind.endswith("tensors"):
            part, place = f"{ORDINALS[int(place[0])]} result ", place[1:]
        where = f"{part}at [{', '.join(str(int(i)) for i in place)}]: " if place else ""
        return f"{where}yours {yours}, expected {right}"
    return ""


def _shown(entry: torch.Tensor) -> str:
    return f"{bool(entry)}" if entry.dtype is torch.bool else f"{float(entry) + 0.0:.4g}"


# The cause.


def _explain(question, cases, expected, outcomes, failed):
    """(cause, hint, lecture, names of mistakes)."""
    if failed["property"] in ("callable", "runs"):
        return _crash(question, cases, expected, outcomes)
    if failed["property"] == "gradient" and any(o.error for o in outcomes):
        in_place = any("inplace" in o.error for o in outcomes)
        return (
            f"The values are right, but {failed['note']}.",
            "A tensor that the backward pass needs was changed in place: make a new one instead."
            if in_place
            else "Use torch's functions from the inputs to the result, and call no backward().",
            question.lecture,
            (),
        )
    if failed["property"] == "inputs":
        return (
            f"The values are right, but the function {failed['note']}.",
            "Work on a new tensor: `x = x - y` instead of `x -= y`; no method that ends in _.",
            question.lecture,
            (),
        )
    names = argument_names(question)
    if returned := _returned(names, cases, outcomes):
        cause = f"The result is the argument {returned}, unchanged."
        return cause, "Does the function return what it has computed?", question.lecture, ()
    blank = all(o.value is not None and not o.value.any() for o in outcomes)
    whole = sum(o.value is not None and not o.value.isnan().any() for o in outcomes)
    for skip_nan in (False, True) if 2 <= whole < len(outcomes) else (False,):
        for size in () if blank else (1, 2):  # nothing but zeros is no evidence for any mistake
            found = matches(question, cases, expected, outcomes, size, failed, skip_nan=skip_nan)
            if found and (len(found) <= 2 or set.intersection(*map(set, found))):
                cause, *rest = _name(question, found)
                if skip_nan:
                    cause += f" Besides, on the input “{failed['case']}” {failed['note']}."
                return cause, *rest
    sentence, hint = describe(cases, expected, outcomes, failed, names)
    return sentence, hint, question.lecture, ()


def _returned(names, cases, outcomes) -> str:
    """The argument that the answer gives back as it came, or ""."""
    for i, name in enumerate(names):
        together = zip(cases, outcomes, strict=True)
        if all(o.value is not None and identical(o.value, c.args[i]) for c, o in together):
            return name
    return ""


def _crash(question, cases, expected, outcomes):
    broken = [o.value is None and bool(o.error) for o in outcomes]
    if not any(broken):
        kind = next(o.kind for o in outcomes if o.value is None)
        cause = f"The function returns {_a(kind)} where {_count(expected[0])} expected."
        if kind == "NoneType":
            hint = "Is there a return statement on every path?"
        elif expected[0].kind.endswith("tensors"):
            hint = f"Return {expected[0].kind} of one shape and one dtype, separated by commas."
        else:
            hint = "Return one torch tensor, without converting it."
        return cause, hint, question.lecture, ()
    first = redact(next(o.error for o, b in zip(outcomes, broken, strict=True) if b))
    if first.startswith("NotImplementedError"):
        return (
            "Not answered yet: the function raises NotImplementedError.",
            "Replace that line with your answer.",
            question.lecture,
            (),
        )
    part = "" if all(broken) else f" on {sum(broken)} of {len(outcomes)} inputs"
    hint = _exception_hint(question, cases, broken, first)
    return f"The call raises an exception{part}: {first}", hint, question.lecture, ()


def _exception_hint(question, cases, broken, text) -> str:
    """What to look at after an exception, in the words of the arguments of this question."""
    names = argument_names(question)
    there, elsewhere = (
        [c for c, b in zip(cases, broken, strict=True) if b is bad] for bad in (True, False)
    )
    special = speciality(there, elsewhere, names)
    if "NoneType" in text:
        # A knob that is left out has its default; None is the only one that crashes so.
        knobs = [k for c in there for k in c.knobs if all(d.knobs.get(k) is None for d in there)]
        if knobs and not any(c.knobs.get(knobs[0], 0) is None for c in elsewhere):
            return f"{knobs[0]} is None there: that is a case of its own, `if {knobs[0]} is None`."
        return "Something is None: print what each name holds just before that line."
    flags = [n for i, n in enumerate(names) if all(_is_flag(c.args[i]) for c in there)]
    if re.search(CONDITION, text) and flags:
        several = len({c.args[names.index(flags[0])].dtype for c in cases}) > 1
        may = f"{flags[0]} may be bool or integer" if several else f"{flags[0]} holds 0 and 1"
        return f"A condition has to be bool. {may}: `{flags[0]}.bool()`."
    if re.search(r"with a bool tensor|bool tensor is not supported", text):
        real = [n for i, n in enumerate(names) if there[0].args[i].is_floating_point()]
        if flags and real:
            flag, dtype = flags[0], f"{next((n for n in real if n != flags[0]), real[0])}.dtype"
        else:
            flag, dtype = "x", "torch.float64"
        return (
            "A bool tensor cannot be subtracted: convert it first, for example "
            f"`{flag}.to({dtype})`, or turn it over with ~."
        )
    hint = next((hint for word, hint in EXCEPTION_HINTS.items() if word in text), "")
    if elsewhere:
        special = f"On these inputs {special}." if special else LOOK_INSIDE
        return f"{hint} {special}".strip()
    return hint or CALL_IT


def _is_flag(value: torch.Tensor) -> bool:
    return bool(((value == 0) | (value == 1)).all())


CONDITION = (
    r"tensors used as indices|expected condition to be a boolean|bitwise_not|masked_fill_? only"
    r"|expects? a? ?bool|mask.*(bool|dtype)"
)
LOOK_INSIDE = (
    "The other inputs go through: print the arguments' shapes and dtypes inside your function "
    "to see which ones do not."
)
EXCEPTION_HINTS = {
    "NameError": "Is the name spelled as where it was defined? A variable of another cell is not "
    "there when your answer is graded.",
    "keyword argument": "Compare each call with its signature; keep the arguments of your function "
    "as the statement has them.",
    "positional argument": "Compare each call with its signature; keep the arguments of your "
    "function as the statement has them.",
    "invalid combination": "Compare each call with its signature: one argument is not known.",
    "singular": "That matrix has no inverse: use the pseudo-inverse, torch.linalg.pinv.",
    "positive-definite": "That matrix is singular: use the pseudo-inverse, torch.linalg.pinv.",
    "return_types": "torch.min, max, sort and topk along an axis return (values, indices): take "
    "`.values`, or compare two tensors with torch.minimum.",
    "Boolean value of Tensor": "`if`, `and`, `or`, `not` and Python's min() and max() ask for one "
    "truth value: choose entry by entry, with torch.where, &, |, ~, torch.minimum.",
    "must match": "Name the axes of both tensors. A sum or mean over one axis drops it unless "
    "`keepdim=True`; sizes differ from input to input, so none may be fixed.",
    "same dtype": "The dtype differs from input to input: make new tensors with `dtype=x.dtype`.",
    "scalar type": "The dtype differs from input to input: make new tensors with `dtype=x.dtype`.",
    "out of range": "An index or axis that does not exist: sizes differ from input to input, so "
    "none may be fixed.",
    "out of bounds": "An index or axis that does not exist: sizes differ from input to input, so "
    "none may be fixed.",
    "AttributeError": "Print the object's type just before that line: is it the tensor that you "
    "expect?",
}
CALL_IT = (
    "Call the function yourself on the small example of the statement, and read the traceback."
)


def matches(
    question, cases, expected, outcomes, size: int, failed, *, skip_nan=False
) -> list[tuple[str, ...]]:
    """The sets of ``size`` mistakes under which ``buggy`` does exactly what the answer did.

    failed : the answer's first failing check. skip_nan : leave out entries that are NaN in the
    answer; it may then fail another check first.
    """
    # Where 0 is only nearly 0, rounding decides how a stability case ends: compare that only
    # when nothing else went wrong.
    luck = question.zero is not None and any(
        _ending(question, *t)
        for t in zip(cases, expected, outcomes, strict=True)
        if not t[0].stability
    )
    endings = [
        _ending(question, *t) if t[0].stability and not luck else None
        for t in zip(cases, expected, outcomes, strict=True)
    ]
    found = []
    for chosen, variant in _candidates(question, cases, outcomes, size):
        if chosen in found:
            continue
        if all(
            _same(question, *four, _imitate(question, four[0], chosen, variant), skip_nan)
            for four in zip(cases, expected, outcomes, endings, strict=True)
        ):
            imitations = [_imitate(question, case, chosen, variant) for case in cases]
            checks = _checks(question, cases, expected, imitations)
            first = next((c["property"] for c in checks if c["passed"] is False), "")
            if first == failed["property"] or (
                skip_nan and _seen(question, cases, expected, outcomes)
            ):
                found.append(chosen)
    return found


def _seen(question, cases, expected, outcomes) -> bool:
    """Is an answer with NaN wrong in other entries too? Else there is no evidence for a mistake."""
    return any(
        not compare(question, case, got.value, want.value, ~got.value.isnan())[0]
        for case, want, got in zip(cases, expected, outcomes, strict=True)
        if not case.stability
    )


def _candidates(question, cases, outcomes, size):
    """The sets of mistakes that give the answer's values on the first case, and how.

    A sieve: hundreds of sets in one comparison. NaN fits everything here.
    """
    place = next((i for i, case in enumerate(cases) if not case.stability), None)
    if place is None:
        return _sets(question, size)
    got = outcomes[place].value
    if got is None or got.is_complex():
        return []
    return [
        candidate
        for shape, group, values in _stacks(question, cases[place], size)
        if shape == got.shape
        for candidate, fits in zip(group, _near(got, values), strict=True)
        if fits
    ]


def _near(got, values) -> list[bool]:
    got = got.flatten().to(torch.float64)
    if not values.shape[1]:
        return [True] * len(values)
    scale = values.nan_to_num(nan=0.0).abs().amax(1, keepdim=True)
    scale = torch.where(scale > 0, scale, 1.0)
    far = (values - got).abs() > NAMING_TOLERANCE * scale
    return (~far.any(1)).tolist()


def _stacks(question, case, size):
    """Per shape: the sets of mistakes whose result has it, and these results (sets, entries)."""
    kept = _imitations.setdefault(case, {})
    key = (question.id, question.mistakes, size)
    if key not in kept:
        groups = {}
        for chosen, variant in _sets(question, size):
            value = _imitate(question, case, chosen, variant).value
            if value is not None and not value.is_complex():
                group = groups.setdefault(value.shape, ([], []))
                group[0].append((chosen, variant))
                group[1].append(value.flatten().to(torch.float64))
        kept[key] = [(k, g, torch.stack(v)) for k, (g, v) in groups.items()]
    return kept[key]


def _sets(question, size) -> list[tuple[tuple[str, ...], dict]]:
    names = [m.name for m in question.mistakes]
    return [
        (chosen, variant)
        for chosen in combinations(names, size)
        if size == 1 or frozenset(chosen) not in question.excludes
        for variant in question.variants
    ]


_imitations: WeakKeyDictionary[Case, dict] = WeakKeyDictionary()


def _imitate(question, case, chosen, variant) -> Outcome:
    """What the mistakes do on a case; kept as long as the case, which many answers may share."""
    kept = _imitations.setdefault(case, {})
    key = (question.id, chosen, tuple(variant.items()))
    if key not in kept:
        wrong = partial(question.buggy, mistakes=frozenset(chosen), **variant)
        kept[key] = _clean(case, collect(wrong, [case])[0])
    return kept[key]


def _expected(question, case, variant) -> Outcome:
    """What the reference does on a case; kept like `_imitate`'s."""
    kept = _imitations.setdefault(case, {})
    key = (question.id, question.reference, tuple(variant.items()))
    if key not in kept:
        kept[key] = collect(partial(question.reference, **variant), [case])[0]
    return kept[key]


def _ending(question, case, want, got) -> str:
    """The first property that an answer fails on one case, "" for none."""
    tests = {
        "runs": _runs,
        "shape": _shape,
        "floating": partial(_floating, question),
        "finite": _finite,
        "value": partial(_value, question),
        "gradient": partial(_gradient, question, argument_names(question)),
    }
    ending = next((prop for prop, test in tests.items() if test(case, want, got)), "")
    # 0/0 and a rounding error over nearly 0 are the same mistake.
    return "value" if ending == "finite" and question.zero is not None else ending


def _same(question, case, want, got: Outcome, ending, other: Outcome, skip_nan) -> bool:
    """Did the answer and the mistake do the same? Stability cases: did both end alike?"""
    if case.stability:
        return ending is None or ending == _ending(question, case, want, other)
    if got.value is None or other.value is None or _count(got) != _count(other):
        return False
    if not RESULTS[question.result](got.value.dtype):
        return False
    if not _alike(question, case, got.value, other.value, skip_nan):
        return False
    pairs = zip(got.gradients, other.gradients, strict=True)
    return all(_alike(question, case, a, b, skip_nan) for a, b in pairs)


def _alike(question, case, a, b, skip_nan) -> bool:
    if a is None and b is None:
        return True
    a = torch.zeros_like(b) if a is None else a
    b = torch.zeros_like(a) if b is None else b
    if a.shape != b.shape:
        return False
    if skip_nan:
        b = torch.where(a.isnan(), torch.nan, b)
    if not torch.equal(a.isnan(), b.isnan()):
        return False
    difference = compare(question, case, a.nan_to_num(nan=0.0), b.nan_to_num(nan=0.0), None)[1]
    return difference <= NAMING_TOLERANCE


def _name(question, found):
    """One cause, "A or B" for two that no case tells apart, else what all of them share."""
    known = {m.name: m for m in question.mistakes}
    if len(found) > 2:
        shared = [name for name in found[0] if all(name in chosen for chosen in found)]
        cause = " And: ".join(known[name].cause for name in shared)
        cause += " Besides, something smaller is wrong, which shows once this is right."
        found = [tuple(shared)]
    else:
        texts = [" And: ".join(known[name].cause for name in chosen) for chosen in found]
        cause = " Or: ".join(dict.fromkeys(texts))
    hints = [" ".join(dict.fromkeys(known[name].hint for name in chosen)) for chosen in found]
    hint = " Or: ".join(dict.fromkeys(hints))
    named = [name for chosen in found for name in chosen]
    return cause, hint, known[found[0][0]].lecture, list(dict.fromkeys(named))


class _CallableModule(types.ModuleType):
    """``from autograder import judge`` gives this module; calling it calls the function."""

    def __call__(self, *args, **kwargs):
        return judge(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
