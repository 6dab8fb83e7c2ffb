"""The step inspector: every token of a training step, and what each algorithm does to it.

    StepInspector("runs/mine/steps/step_0020.json", algorithm="gspo", compare="grpo")

Shows the responses of a recorded step token by token, with ratio, advantage and signed gradient
weight, under any row of `policy_gradients.ALGORITHMS`, a row of your own, or your own loss. A
chosen token's loss is written out term by term. Without a record it shows the committed one.
`step_view` holds the numbers behind it.
"""

import math
from pathlib import Path
from typing import Any, ClassVar

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from lectures.widgets.base import (
    Choice,
    Data,
    InvalidValueError,
    LectureWidget,
    Slider,
    as_number,
    module,
)
from lectures.widgets.step_view import LABELS, Own, fitting, row, tensors, view, weights
from lectures.widgets.still import (
    DEAD,
    HATCH,
    INK,
    LINE,
    PICTURE_WIDTH,
    SOFT,
    Still,
    brief,
    fixed,
    signed_color,
)
from llm_trainer.record import Record, load_record
from policy_gradients.algorithms import ALGORITHMS, Algorithm

REFERENCE_RUNS = Path(__file__).parents[1] / "reference_runs"
REFERENCE = REFERENCE_RUNS / "tiny_grpo_step_0050.json"
TOY = REFERENCE_RUNS / "sorting_toy_step.json"
ROW = 29  # of the still, screen pixels
AS_IT_IS = {"parse_math": False}  # a token may hold dollar signs
SHOWS = {
    "weight": "weight", "ratio": "ratio ρ", "advantage": "advantage A",
    "probability": "probability π",
}  # fmt: skip
FILTERS = {
    "all": "all tokens", "clipped": "clipped tokens", "alike": "no-contrast groups",
    "end": "end tokens",
}  # fmt: skip


class _UpdateOfThisRecord(Slider):
    """Which update of the step; there are as many as the record has, and one needs no slider."""

    def validate(self, obj: "StepInspector", value: Any) -> int:
        number, last = as_number(self.name, value), obj.updates
        if number != int(number) or not 1 <= number <= last:
            raise InvalidValueError(
                f"update is {value!r}; it must be a whole number between 1 and {last}"
            )
        return int(number)

    def describe(self, widget: "StepInspector") -> dict[str, Any]:
        described = super().describe(widget) | {"high": widget.updates}
        return described | ({"kind": "data"} if widget.updates == 1 else {})


def _as_given(value: Any) -> Any:
    """Set by the constructor, from a record that was checked there."""
    if not isinstance(value, dict):
        raise InvalidValueError(
            f"step comes from the record: make a new StepInspector instead of setting it to "
            f"{value!r}"
        )
    return value


class _TokenOfThisRecord(Data):
    """Which token's loss is written out."""

    def validate(self, obj: "StepInspector", value: Any) -> int:
        number = as_number("token", value)
        if number != int(number) or not 0 <= number < obj.tokens:
            raise InvalidValueError(
                f"token is {value!r}; it must be a whole number, and this record has {obj.tokens} "
                "tokens, from 0"
            )
        return int(number)


class StepInspector(LectureWidget):
    """Every token of a recorded training step under a chosen algorithm.

    record    : a path, a dict, or what `load_record` and `record_from_policies` return; None is
                the committed record of the tiny Qwen. Only the groups that hold the first 2,000
                tokens are drawn; `record.take([3, 7])` chooses others
    algorithm : a name in ALGORITHMS, a row (`dataclasses.replace(ALGORITHMS["grpo"], …)`), or a
                loss with the signature of `grpo_loss`
    compare   : a second one: tokens whose sign or clip state differs are marked and counted
    update    : which of the updates on the step's samples, from 1; default: the last
    token     : which token's loss is written out, from 0; default: the one pushed most

    Raises RecordError for what is no record, ValueError for an algorithm that cannot be computed
    on it (its message says why), InvalidValueError for the rest.
    """

    name = "step_inspector"
    _esm = module("step_inspector")
    algorithm = Choice("grpo", "Algorithm", LABELS, menu=True)
    compare = Choice("none", "Compare with", {"none": "nothing"} | LABELS, menu=True)
    update = _UpdateOfThisRecord(4, "Update of the step", low=1, high=4, step=1, digits=0)
    show = Choice("weight", "Cells show", SHOWS)
    filter = Choice("all", "Filter", FILTERS)
    token = _TokenOfThisRecord(0, _as_given)
    step = Data({}, _as_given)
    still_height = 600
    examples: ClassVar = [
        {},
        {"record": TOY, "algorithm": "ppo", "compare": "grpo", "show": "advantage"},
        {"record": TOY, "algorithm": "gspo", "compare": "dapo", "filter": "clipped", "token": 0},
        {"record": TOY, "algorithm": "cispo", "show": "ratio", "token": 11},
        {"record": TOY, "algorithm": "sapo", "update": 2, "show": "probability"},
        {"record": TOY, "algorithm": "rloo", "update": 1, "filter": "alike", "token": 47},
        {"record": TOY, "algorithm": "maxrl", "compare": "reinforce", "filter": "end"},
    ]

    def __init__(
        self,
        record: str | Path | dict[str, Any] | Record | None = None,
        algorithm: str | Own = "grpo",
        compare: str | Own = "none",
        **state: Any,
    ):
        whole = load_record(REFERENCE if record is None else record)
        shown = fitting(whole)
        self._record = shown
        algorithms: dict[str, Own] = dict(ALGORITHMS)
        chosen = {
            "algorithm": _key(algorithm, algorithms),
            "compare": _key(compare, algorithms),
        }
        for key in {*chosen.values()} - {"none"}:
            if key in algorithms:
                row(tensors(shown), algorithms[key])  # says why, if it cannot be computed
        rows = weights(shown, algorithms)
        options = {r["key"]: r["label"] for r in rows}
        self.offer("algorithm", options)
        self.offer("compare", {"none": "nothing"} | options)
        self._algorithms = algorithms
        step = view(shown) | {"rows": rows}
        if len(shown.groups) < len(whole.groups):
            step["source"] += f"; the first {len(shown.groups)} groups are drawn"
        self.updates, self.tokens = len(step["logp"]), len(step["texts"])
        state = {"update": self.updates, **state}
        super().__init__(step=step, **chosen, **state)
        if "token" not in state:
            shown, largest = self._visible(), self._largest(self._row())
            self.token = largest if largest in shown or not shown else shown[0]

    @property
    def numbers(self) -> dict[str, Any]:
        """Of the present state: weight and ratio of each token, and which tokens differ."""
        found = self._row()
        exact = row(tensors(self._record), self._algorithms[self.algorithm], exact=True)
        source = exact if found["formula"] else found
        old, logp = self.step["old"], self.step["logp"][self.update - 1]
        return {
            "weight": source["weights"][self.update - 1],
            "ratio": [math.exp(a - b) for a, b in zip(logp, old, strict=True)],
            "differs": self._differences(),
        }

    @property
    def sentence(self) -> str:
        found, step = self._row(), self.step
        made = step["made"]
        when = f"update {self.update} of {made}" if made else "no update was made"
        numbers = found["weights"][self.update - 1]
        largest = self._largest(found)
        response = self._response(largest)
        label = step["groups"][response // step["group"]]["label"]
        answer = step["responses"][response]["answer"]
        where = f"“{step['texts'][largest]}” in “{label} → {answer}”"
        push = (
            f"the largest push is {_signed(numbers[largest])} on {where}"
            if numbers[largest]
            else "nothing is pushed"
        )
        still = sum(abs(self._advantage(found, i)) < 1e-6 for i in range(len(step["texts"])))
        idle = f"; {still} have zero advantage" if still else ""
        other = ""
        if self.compare != "none":
            count = _tokens(len(self._differences()))
            other = (
                f" {self._row(self.compare)['label']} treats {count} differently (sign or clip)."
            )
        return f"{found['label']}, {when}: {self._clipped(found)}{idle}; {push}.{other}"

    @property
    def note(self) -> str:
        return (
            f"{self._row()['note']} {self.step['source']}. Weight: −∂loss/∂log π × "
            f"{self.step['scale']:,.0f}; + raises the token's probability. Hatched: clipped. Click "
            "a token, or use the arrow keys."
        ).lstrip()

    def react(self, key: str) -> dict[str, Any]:
        """The chosen token is one that the filter shows, if it shows any."""
        if key not in ("filter", "algorithm", "update"):
            return {}
        shown = self._visible()
        return {"token": shown[0]} if shown and self.token not in shown else {}

    def _visible(self) -> list[int]:
        step, gates = self.step, self._row()["gates"][self.update - 1]
        shown = []
        for i, response in enumerate(step["responses"]):
            alike = step["groups"][i // step["group"]]["alike"]
            for token in range(*response["span"]):
                keep = {
                    "all": True,
                    "clipped": gates[token] != ".",
                    "alike": alike,
                    "end": response["ended"] and token == response["span"][1] - 1,
                }
                shown += [token] if keep[self.filter] else []
        return shown

    def _row(self, key: str | None = None) -> dict[str, Any]:
        key = self.algorithm if key is None else key
        return next(r for r in self.step["rows"] if r["key"] == key)

    def _response(self, token: int) -> int:
        spans = [r["span"] for r in self.step["responses"]]
        return next(i for i, (_, end) in enumerate(spans) if token < end)

    def _advantage(self, found: dict[str, Any], token: int) -> float:
        return found["advantages"][token if found["per_token"] else self._response(token)]

    def _largest(self, found: dict[str, Any]) -> int:
        numbers = found["weights"][self.update - 1]
        return max(range(len(numbers)), key=lambda i: abs(numbers[i]))

    def _differences(self) -> list[int]:
        if self.compare == "none":
            return []
        at, pair = self.update - 1, (self._row(), self._row(self.compare))
        signs = [[_shown_sign(x) for x in found["weights"][at]] for found in pair]
        gates = [found["gates"][at] for found in pair]
        return [
            i
            for i in range(len(signs[0]))
            if signs[0][i] != signs[1][i] or gates[0][i] != gates[1][i]
        ]

    def _clipped(self, found: dict[str, Any]) -> str:
        gates, total = found["gates"][self.update - 1], len(self.step["texts"])
        high, low, dual, bounded = (gates.count(letter) for letter in "hldb")
        knobs, surrogate = found["knobs"], found["surrogate"]
        if surrogate == "reinforce":
            return "no ratio, so no clip"
        if surrogate == "cispo":
            bound = _edge(1 + knobs["eps_high"])
            return (
                f"the weight of {bounded} of {_tokens(total)} is bounded at {bound}, none is "
                "silenced"
            )
        if surrogate == "sapo":
            return "a soft gate: no token is silenced"
        silent = high + low + dual
        if silent == 0:
            logp, old = self.step["logp"][self.update - 1], self.step["old"]
            fresh = all(abs(a - b) < 1e-4 for a, b in zip(logp, old, strict=True))
            return f"{'every ratio is 1, so ' if fresh else ''}no token is clipped"
        edges = found["formula"] and {"eps_low", "eps_high"} <= knobs.keys()
        above = f"above {_edge(1 + knobs['eps_high'])} with A > 0" if edges else "with A > 0"
        below = f"below {_edge(1 - knobs['eps_low'])} with A < 0" if edges else "with A < 0"
        parts = [(high, above), (low, below), (dual, "far above 1 with A < 0")]
        where = ", ".join(f"{n} {words}" for n, words in parts if n)
        got = "get only the KL's gradient" if found["beta"] > 0 else "get no gradient"
        ratio = "whole responses, by their own ratio: " if surrogate == "gspo" else ""
        return f"{silent} of {_tokens(total)} {got} ({ratio}{where})"

    def draw_still(self, still: Still) -> None:
        """The chosen token's group and its neighbour as the browser draws them, then the token."""
        step, found, size = self.step, self._row(), self.step["group"]
        axis = still.axes(0, 0, PICTURE_WIDTH, still.body)
        axis.set(xlim=(0, PICTURE_WIDTH), ylim=(still.body, 0))
        axis.axis("off")
        chosen = self._response(self.token) // size
        fit = max(1, int((still.body - 74) / (size * ROW + 34)))
        first = max(0, min(chosen, len(step["groups"]) - fit))
        top = 8
        for group in range(first, min(first + fit, len(step["groups"]))):
            top = self._draw_group(axis, found, group, top) + 6
        given, ratio = self._advantage(found, self.token), self.numbers["ratio"][self.token]
        words = (
            f"“{step['texts'][self.token]}”, framed:  ρ = {fixed(ratio, 3)},  A = {_signed(given)},"
            f"  weight {_signed(found['weights'][self.update - 1][self.token], 3)}.  The widget "
            "writes out its loss, term by term."
        )
        axis.text(0, still.body - 46, words, va="center", fontsize=9.5, color=INK, **AS_IT_IS)
        legend = f"Full colour at ±{brief(self._full(found))}; hatched: clipped"
        if self.compare != "none":
            legend += f"; underlined: {self._row(self.compare)['label']} differs"
        axis.text(0, still.body - 24, f"{legend}.", va="center", fontsize=9.5, color=SOFT)

    def _draw_group(self, axis: Axes, found: dict[str, Any], group: int, top: float) -> float:
        """One prompt and its responses; returns where the next one may begin."""
        step, at, size = self.step, self.update - 1, self.step["group"]
        differs, full = set(self._differences()), self._full(found)
        words = step["groups"][group]["prompt"].replace("\n", " ")
        look = {"va": "center", "fontsize": 10, "color": INK, "fontweight": "bold"} | AS_IT_IS
        axis.text(0, top + 13, words if len(words) < 80 else words[:79] + "…", **look)
        top += 28
        for response in step["responses"][group * size : (group + 1) * size]:
            middle = top + ROW / 2 - 2
            reward = f"r = {fixed(response['reward'], 2)}"
            axis.text(0, middle, reward, va="center", fontsize=9, color=SOFT)
            x = 62
            for i in range(*response["span"]):
                text = step["texts"][i]
                width = max(44, 6.6 * len(text) + 4)
                if x + width > PICTURE_WIDTH - 20:
                    axis.text(x + 4, middle, "…", va="center", fontsize=9, color=INK)
                    break
                shown, value = self._cell(found, i)
                cut = found["gates"][at][i] != "."
                fill, ink = (DEAD, INK) if cut else signed_color(value, full)
                box = {"facecolor": fill, "edgecolor": HATCH if cut else LINE, "linewidth": 0.6}
                place = (x, top), width - 2, ROW - 4
                axis.add_patch(Rectangle(*place, hatch="////" if cut else None, **box))
                if i in differs:
                    axis.plot([x, x + width - 2], [top + ROW - 5] * 2, color=INK, linewidth=2)
                if i == self.token:
                    frame = {"fill": False, "edgecolor": INK, "linewidth": 2, "zorder": 5}
                    axis.add_patch(Rectangle(*place, **frame))
                plate = {"boxstyle": "square,pad=0.05", "facecolor": fill, "edgecolor": "none"}
                look = {"ha": "center", "va": "center", "color": ink, "fontsize": 7}
                look |= AS_IT_IS | ({"bbox": plate} if cut else {})
                centre = x + (width - 2) / 2
                axis.text(centre, top + 0.23 * ROW, text, **look)
                axis.text(centre, top + 0.65 * ROW, shown, **look)
                x += width
            top += ROW
        return top

    def _full(self, found: dict[str, Any]) -> float:
        """Where the colour of a still is full, as in the browser."""
        if self.show == "weight":
            everything = [abs(x) for numbers in found["weights"] for x in numbers]
            sizes = sorted(x for x in everything if x > 0.005)
            return _rounded(sizes[int(0.9 * (len(sizes) - 1))]) if sizes else 1.0
        if self.show == "advantage":
            return _rounded(max(map(abs, found["advantages"])))
        return {"ratio": math.log(1.5), "probability": 1.0}[self.show]

    def _cell(self, found: dict[str, Any], i: int) -> tuple[str, float]:
        """The number in a cell, and what its colour shows."""
        logp = self.step["logp"][self.update - 1][i]
        log_ratio = logp - self.step["old"][i]
        if self.show == "ratio":
            return fixed(math.exp(log_ratio), 2), log_ratio
        if self.show == "probability":
            return fixed(math.exp(logp), 2), math.exp(logp)
        weight = found["weights"][self.update - 1][i]
        value = weight if self.show == "weight" else self._advantage(found, i)
        return _signed(value), value


def _key(algorithm: str | Own, algorithms: dict[str, Own]) -> str:
    """The name to choose it by; a row or loss of one's own is added, next to one of its name."""
    if isinstance(algorithm, str):
        return algorithm
    if not callable(algorithm) and not isinstance(algorithm, Algorithm):
        raise InvalidValueError(
            f"algorithm is {algorithm!r}; expected a name, a row of the table, or a loss"
        )
    name = getattr(algorithm, "name", None) or getattr(algorithm, "__name__", None)
    key = name = name or type(algorithm).__name__
    while algorithms.setdefault(key, algorithm) is not algorithm:
        key = f"{name} (yours)" if key == name else f"{key}'"
    return key


def _rounded(x: float) -> float:
    """The next of 1, 2, 5 times a power of ten; 1 for 0."""
    if not x > 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(x))
    return power * next(factor for factor in (1, 2, 5, 10) if factor * power >= 0.999 * x)


def _signed(value: float, digits: int = 2) -> str:
    size = abs(value)
    text = fixed(value, 0 if size >= 99.5 else 1 if size >= 9.95 else digits)
    return f"+{text}" if float(text.replace("−", "-")) > 0 else text


def _shown_sign(value: float) -> int:
    shown = float(_signed(value).replace("−", "-"))
    return (shown > 0) - (shown < 0)


def _edge(value: float) -> str:
    return fixed(value, 4 if abs(value - 1) < 0.01 else 2)


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"
