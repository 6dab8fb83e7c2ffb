"""The step inspector: every token of a training step, and what each algorithm does to it.

    StepInspector("runs/mine/steps/step_0020.json", algorithm="gspo", compare="grpo")

Shows the responses of a recorded step token by token, with ratio, advantage and signed gradient
weight, under any row of `policy_gradients.ALGORITHMS`, a row of your own, or your own loss. A
chosen token's loss is written out term by term. Without a record it shows the committed one.
`step_view` holds the numbers behind it.
"""

import math
from decimal import ROUND_HALF_UP, Decimal
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
from lectures.widgets.step_view import LABELS, Own, fitting, row, short, tensors, view, weights
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
    "all": "all tokens", "clipped": "clipped or bounded", "alike": "no-contrast groups",
    "end": "end tokens",
}  # fmt: skip
# What the hatching of a surrogate says; a surrogate without a clip has no hatching.
HATCHED = {"cispo": "bounded", "reinforce": "", "unclipped": "", "sapo": ""}


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
        other = ""
        if self.compare != "none":
            count = _tokens(len(self._differences()))
            other = (
                f" {self._row(self.compare)['label']} treats {count} differently (sign or clip)."
            )
        return (
            f"{found['label']}, {when}: {self._clipped(found)}{self._idle(found)}; {push}.{other}"
        )

    @property
    def note(self) -> str:
        found = self._row()
        hatched = HATCHED.get(found["surrogate"], "clipped")
        return (
            f"{found['note']} {self.step['source']}. Weight: −∂loss/∂log π × "
            f"{self.step['scale']:,.0f}; + pushes up the token's probability. "
            f"{f'Hatched: {hatched}. ' if hatched else ''}Click a token, or use the arrow keys: "
            "its loss is written out below the tokens."
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
        signs = [[(x > 0) - (x < 0) for x in found["weights"][at]] for found in pair]
        gates = [found["gates"][at] for found in pair]
        return [
            i
            for i in range(len(signs[0]))
            if signs[0][i] != signs[1][i] or gates[0][i] != gates[1][i]
        ]

    def _clipped(self, found: dict[str, Any]) -> str:
        """What the clip did, in words."""
        gates, every = found["gates"][self.update - 1], _tokens(len(self.step["texts"]))
        high, low, dual, cut, raised = (gates.count(letter) for letter in "hldbf")
        knobs, surrogate = found["knobs"], found["surrogate"]
        logp, old = self.step["logp"][self.update - 1], self.step["old"]
        fresh = all(abs(a - b) < 1e-4 for a, b in zip(logp, old, strict=True))
        ones = "every ratio is 1, so " if fresh else ""
        if surrogate == "reinforce":
            stale = "; the samples are the old policy's, and nothing corrects for it"
            return f"no ratio, so no clip{'' if fresh else stale}"
        if surrogate == "unclipped":
            return "no clip: no token is silenced"
        if surrogate == "sapo":
            return "a soft gate: no token is silenced"
        if surrogate == "cispo":
            ceiling, floor = _edge(1 + knobs["eps_high"]), _edge(1 - knobs["eps_low"])
            if cut + raised == 0:
                return f"{ones}no ratio is bounded"
            words = [f"cut to {ceiling}", f"raised to {floor}"]
            if cut == 0:
                what = f"{raised} of {every} is {words[1]}"
            else:
                what = f"{cut} of {every} is {words[0]}"
                what += f" and that of {raised} {words[1]}" if raised else ""
            return f"the ratio of {what}, none is silenced"
        silent = high + low + dual
        if silent == 0:
            return f"{ones}no token is clipped"
        if not found["formula"]:
            above, below, far = "with A > 0", "with A < 0", "with A < 0 and ρ above 1"
        else:
            above = f"above {_edge(1 + knobs['eps_high'])} with A > 0"
            below = f"below {_edge(1 - knobs['eps_low'])} with A < 0"
            far = f"above c = {_edge(knobs.get('dual_clip') or 1)} with A < 0"
        parts = [(high, above), (low, below), (dual, far)]
        where = ", ".join(f"{n} {words}" for n, words in parts if n)
        if not found["formula"]:
            return f"{silent} of {every} {'gets' if silent == 1 else 'get'} no gradient ({where})"
        ratio = "whole responses, by their ρ(y): " if surrogate == "gspo" else ""
        if found["beta"] > 0:
            return f"the clip leaves {silent} of {every} only the KL's gradient ({ratio}{where})"
        return f"the clip silences {silent} of {every} ({ratio}{where})"

    def _idle(self, found: dict[str, Any]) -> str:
        """How many tokens have no gradient for another reason than the clip, in words."""
        idle, outside, words = [], 0, ""
        for i, response in enumerate(self.step["responses"]):
            group, span = i // self.step["group"], range(*response["span"])
            if self.step["groups"][group]["discarded"] or group in found["dropped"]:
                outside += len(span)
            else:
                idle += [token for token in span if self._advantage(found, token) == 0]
        if idle:
            more = any(letter in "hld" for letter in found["gates"][self.update - 1])
            count = f"{len(idle)} more" if more else _tokens(len(idle))
            has, gets = ("has", "gets") if len(idle) == 1 else ("have", "get")
            words = f"; {count} {has} advantage 0"
            if found["formula"] and found["beta"] > 0:
                words += f" and {gets} only the KL's" + (" anyway" if more else " gradient")
            elif not any(found["weights"][self.update - 1][i] for i in idle):
                words += f" and {gets} " + ("none anyway" if more else "no gradient")
        if outside:
            belong = "belongs to a group" if outside == 1 else "belong to groups"
            words += f"; {_tokens(outside)} {belong} left out of the loss"
        return words

    def draw_still(self, still: Still) -> None:
        """The chosen token's group and its neighbours as the browser draws them, then the token."""
        step, found = self.step, self._row()
        axis = still.axes(0, 0, PICTURE_WIDTH, still.body)
        axis.set(xlim=(0, PICTURE_WIDTH), ylim=(still.body, 0))
        axis.axis("off")
        visible, top, bottom = set(self._visible()), 8, still.body - 66
        for members in self._in_still(visible, bottom - top):
            top = self._draw_group(axis, members, visible, top, bottom) + 6
        if not visible:
            axis.text(0, 21, "The filter shows no token.", va="center", fontsize=10, color=INK)
        given, ratio = self._advantage(found, self.token), self.numbers["ratio"][self.token]
        seen = "framed" if self.token in visible else "outside the filter"
        words = f"“{short(step['texts'][self.token])}”, {seen}:  ρ = {fixed(ratio, 3)}"
        if found["surrogate"] == "gspo":
            span = slice(*step["responses"][self._response(self.token)]["span"])
            logs = zip(step["logp"][self.update - 1][span], step["old"][span], strict=True)
            mean = sum(a - b for a, b in logs) / (span.stop - span.start)
            words += f",  ρ(y) = {fixed(math.exp(mean), 4)}"
        weight = found["weights"][self.update - 1][self.token]
        words += f",  A = {_signed(given)},  weight {_signed(weight, 3)}."
        axis.text(0, still.body - 46, words, va="center", fontsize=9.5, color=INK, **AS_IT_IS)
        hatched = HATCHED.get(found["surrogate"], "clipped")
        legend = f"Full colour at ±{brief(self._full(found))}"
        legend += f"; hatched: {hatched}" if hatched else ""
        if self.compare != "none":
            legend += f"; underlined: {short(self._row(self.compare)['label'])} differs"
        axis.text(0, still.body - 24, f"{legend}.", va="center", fontsize=9.5, color=SOFT)

    def _in_still(self, visible: set[int], room: float) -> list[list[int]]:
        """The responses that the filter shows, by group: the chosen token's and its neighbours."""
        step, size = self.step, self.step["group"]
        spans = [range(*response["span"]) for response in step["responses"]]
        open_ = [not visible.isdisjoint(span) for span in spans]
        groups = [[i for i in range(g * size, (g + 1) * size) if open_[i]]
                  for g in range(len(step["groups"]))]  # fmt: skip
        chosen = self._response(self.token) // size
        heights = [34 + ROW * len(members) if members else 0 for members in groups]
        first = last = chosen
        room -= heights[chosen]
        while last + 1 < len(groups) and heights[last + 1] <= room:
            last += 1
            room -= heights[last]
        while first > 0 and heights[first - 1] <= room:
            first -= 1
            room -= heights[first]
        return [members for members in groups[first : last + 1] if members]

    def _draw_group(
        self, axis: Axes, members: list[int], visible: set[int], top: float, bottom: float
    ) -> float:
        """One prompt and those of its responses; returns where the next one may begin."""
        step, found, at = self.step, self._row(), self.update - 1
        differs, full = set(self._differences()), self._full(found)
        words = step["groups"][members[0] // step["group"]]["prompt"].replace("\n", " ")
        look = {"va": "center", "fontsize": 10, "color": INK, "fontweight": "bold"} | AS_IT_IS
        axis.text(0, top + 13, words if len(words) < 80 else words[:79] + "…", **look)
        top += 28
        for response in (step["responses"][i] for i in members):
            if top + ROW > bottom:
                break
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
                plate = {"boxstyle": "square,pad=0.05", "facecolor": fill, "edgecolor": "none"}
                look = {"ha": "center", "va": "center", "color": ink, "fontsize": 7}
                look |= AS_IT_IS | ({"bbox": plate} if cut else {})
                place, centre = ((x, top), width - 2, ROW - 4), x + (width - 2) / 2
                x += width
                if i not in visible:
                    look = look | {"color": SOFT, "bbox": None}
                    axis.text(centre, middle, text, **look)
                    continue
                axis.add_patch(Rectangle(*place, hatch="////" if cut else None, **box))
                if i in differs:
                    ends = [place[0][0], place[0][0] + width - 2]
                    axis.plot(ends, [top + ROW - 5] * 2, color=INK, linewidth=2, zorder=4)
                if i == self.token:
                    frame = {"fill": False, "edgecolor": INK, "linewidth": 2, "zorder": 5}
                    axis.add_patch(Rectangle(*place, **frame))
                axis.text(centre, top + 0.23 * ROW, text, **look)
                axis.text(centre, top + 0.65 * ROW, shown, **look)
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
    """With its sign: "0" is exactly 0, and "+0.00" is not."""
    size = abs(value)
    text = fixed(size, 0 if size >= 99.5 else 1 if size >= 9.95 else digits)
    return "0" if value == 0 else f"{'+' if value > 0 else '−'}{text}"


def _edge(value: float) -> str:
    """At most six decimals, no more than needed: 1.2, 1.0125, 1.0004."""
    digits = Decimal(value).quantize(Decimal("1e-6"), ROUND_HALF_UP)
    return f"{digits.normalize():f}".replace("-", "−")


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"
