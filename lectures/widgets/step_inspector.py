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

import torch
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
from llm_trainer.config import RunError
from llm_trainer.record import Record, load_record
from policy_gradients.algorithms import ALGORITHMS, Algorithm
from policy_gradients.ratios import largest_log_ratio

REFERENCE_RUNS = Path(__file__).parents[1] / "reference_runs"
REFERENCE = REFERENCE_RUNS / "tiny_grpo_step_0050.json"
TOY = REFERENCE_RUNS / "sorting_toy_step.json"
ROW = 29  # of the still, screen pixels
AS_IT_IS = {"parse_math": False}  # a token may hold dollar signs
SHOWS = {
    "weight": "weight", "ratio": "ratio ρ", "advantage": "advantage A",
    "probability": "probability π", "factor": "compared weight",
}  # fmt: skip
FILTERS = {
    "all": "all tokens", "clipped": "clipped or bounded", "alike": "no-contrast groups",
    "end": "end tokens",
}  # fmt: skip
LIMIT = largest_log_ratio(torch.float64)
FACTOR = 1.1  # a weight has changed if it is more than this many times larger or smaller
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
TEXT = 24  # characters of a token that are shown
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


class _StepOfThisRecord(Data):
    """Set once, by the constructor, from a record that was checked there."""

    def validate(self, obj: "StepInspector", value: Any) -> Any:
        if not obj._ready or value == obj.step:
            return value
        raise InvalidValueError(
            "step comes from the record and cannot be set: make a new StepInspector(record)"
        )


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
    compare   : a second one. Counted apart are tokens with another sign or clip (also marked),
                those that differ only by the KL, and those whose weight without the KL is more
                than 1.1 times larger or smaller. `show="factor"` writes its weight ÷ this one's
    update    : which of the updates on the step's samples, from 1; default: the last
    token     : which token's loss is written out, from 0; default: the one pushed most. While a
                filter hides it, the first token that is shown takes its place

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
    token = _TokenOfThisRecord(0, None)
    step = _StepOfThisRecord({}, None)
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
        if "step" in state:
            raise TypeError("StepInspector takes no step: it comes from the record, given first")
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
                try:
                    row(tensors(shown), algorithms[key])  # says why, if it cannot be computed
                except (RunError, ValueError) as error:
                    raise InvalidValueError(str(error)) from None
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
        return {
            "weight": self.weights if found["formula"] else found["weights"][self.update - 1],
            "ratio": [self._ratio(i) for i in range(self.tokens)],
            "differs": self._differences(),
        }

    @property
    def weights(self) -> list[float]:
        """Present gradient weight of each shown token: −∂loss/∂log π · step["scale"]."""
        exact = row(tensors(self._record), self._algorithms[self.algorithm], exact=True)
        return exact["weights"][self.update - 1]

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
        where = f"“{_cut(step['texts'][largest])}” in “{label} → {answer}”"
        push = (
            f"the largest push is {_signed(numbers[largest])} on {where}"
            if numbers[largest]
            else "nothing is pushed"
        )
        return (
            f"{found['label']}, {when}: {self._clipped(found)}{self._idle(found)}; {push}."
            f"{self._compared()}"
        )

    @property
    def note(self) -> str:
        found = self._row()
        hatched = _hatched(found)
        return (
            f"{found['note']} {self.step['source']}. Weight: −∂loss/∂log π × "
            f"{self.step['scale']:,.0f}; + pushes up the token's probability. "
            f"{f'Hatched: {hatched}. ' if hatched else ''}Click a token, or use the arrow keys: "
            "its loss is written out below the tokens."
        ).lstrip()

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

    def _seen(self) -> int:
        """The chosen token, or while the filter hides it the first one that is shown."""
        shown = self._visible()
        return self.token if self.token in shown or not shown else shown[0]

    def _ratio(self, token: int) -> float:
        log = self.step["logp"][self.update - 1][token] - self.step["old"][token]
        return math.exp(min(max(log, -LIMIT), LIMIT))

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

    def _differences(self) -> dict[str, list[int]]:
        """Tokens that the compared algorithm treats otherwise, each in one of three lists.

        turned: another sign, without the KL, or another clip state; factor: without the KL more
        than FACTOR times larger or smaller; kl: neither, and yet the weights differ as much
        """
        lists: dict[str, list[int]] = {"turned": [], "factor": [], "kl": []}
        if self.compare == "none":
            return lists
        at, (one, two) = self.update - 1, (self._row(), self._row(self.compare))
        bare = [(found["bare"] or found["weights"])[at] for found in (one, two)]
        for i, (a, b) in enumerate(zip(*bare, strict=True)):
            if one["gates"][at][i] != two["gates"][at][i] or _sign(a) != _sign(b):
                lists["turned"].append(i)
            elif _changed(a, b):
                lists["factor"].append(i)
            elif _changed(one["weights"][at][i], two["weights"][at][i]):
                lists["kl"].append(i)
        return lists

    def _compared(self) -> str:
        """What the compared algorithm changes, in words."""
        if self.compare == "none":
            return ""
        at, (one, two) = self.update - 1, (self._row(), self._row(self.compare))
        turned, factor, kl = self._differences().values()
        parts = []
        if turned:
            parts.append(
                f"{_tokens(len(turned))} {'get' if len(turned) > 1 else 'gets'} another sign or "
                "clip"
            )
        if kl:
            parts.append(
                f"{_tokens(len(kl))} {'differ' if len(kl) > 1 else 'differs'} only by the KL"
            )
        if factor:
            a, b = ((found["bare"] or found["weights"])[at] for found in (one, two))
            factors = [b[i] / a[i] for i in factor]
            ends = [_size(x) for x in (min(factors), max(factors))]
            range_ = f"× {ends[0]}" if ends[0] == ends[1] else f"× {ends[0]} to × {ends[1]}"
            parts.append(
                f"{_tokens(len(factor))} {'change' if len(factor) > 1 else 'changes'} weight by "
                f"more than a factor of {FACTOR} ({range_})"
            )
        nothing = f"no token changes sign or clip, and no weight by more than a factor of {FACTOR}"
        return f" Under {two['label']} {', '.join(parts) or nothing}."

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
            return "there is no clip, no token is silenced by it"
        if surrogate == "sapo":
            return "the gate is soft, no token is silenced by it"
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
            return f"the ratio of {what}, none is silenced by it"
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
        token = self._seen()
        given, ratio = self._advantage(found, token), _size(self._ratio(token), 3)
        seen = "framed" if token in visible else "outside the filter"
        words = f"“{_cut(step['texts'][token])}”, {seen}:  ρ = {ratio}"
        if found["surrogate"] == "gspo":
            span = slice(*step["responses"][self._response(token)]["span"])
            logs = zip(step["logp"][self.update - 1][span], step["old"][span], strict=True)
            mean = sum(a - b for a, b in logs) / (span.stop - span.start)
            words += f",  ρ(y) = {_size(math.exp(min(max(mean, -LIMIT), LIMIT)), 4)}"
        weight = found["weights"][self.update - 1][token]
        words += f",  A = {_signed(given)},  weight {_signed(weight, 3)}."
        axis.text(0, still.body - 46, words, va="center", fontsize=9.5, color=INK, **AS_IT_IS)
        hatched = _hatched(found)
        scale = f" (weight × {step['scale']:,.0f})" if self.show == "weight" else ""
        full = {
            "ratio": "ratios 0.67 and 1.5", "probability": "1",
            "factor": f"4 times more and less than × {_size(self._middle())}",
        }.get(self.show) or f"±{brief(self._full(found))}{scale}"  # fmt: skip
        legend = f"Full colour at {full}"
        legend += f"; hatched: {hatched}" if hatched else ""
        if self.compare != "none":
            label = short(self._row(self.compare)["label"])
            legend += f"; underlined: {label} differs"
        axis.text(0, still.body - 24, f"{legend}.", va="center", fontsize=9.5, color=SOFT)

    def _in_still(self, visible: set[int], room: float) -> list[list[int]]:
        """The responses that the filter shows, by group: the chosen token's and its neighbours."""
        step, size = self.step, self.step["group"]
        spans = [range(*response["span"]) for response in step["responses"]]
        open_ = [not visible.isdisjoint(span) for span in spans]
        groups = [[i for i in range(g * size, (g + 1) * size) if open_[i]]
                  for g in range(len(step["groups"]))]  # fmt: skip
        chosen = self._response(self._seen()) // size
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
        differs, full, token = (
            set(self._differences()["turned"]), self._full(found), self._seen(),
        )  # fmt: skip
        words = step["groups"][members[0] // step["group"]]["prompt"].replace("\n", " ")
        look = {"va": "center", "fontsize": 10, "color": INK, "fontweight": "bold"} | AS_IT_IS
        axis.text(0, top + 13, words if len(words) < 80 else words[:79] + "…", **look)
        top += 28
        for response in (step["responses"][i] for i in members):
            if top + ROW > bottom:
                break
            middle = top + ROW / 2 - 2
            reward = f"r = {'−' * (response['reward'] < 0)}{_size(response['reward'])}"
            axis.text(0, middle, reward, va="center", fontsize=9, color=SOFT)
            x = 62
            for i in range(*response["span"]):
                text = _cut(step["texts"][i])
                width = max(44, 6.6 * len(text) + 4)
                if x + width > PICTURE_WIDTH - 20:
                    axis.text(x + 4, middle, "…", va="center", fontsize=9, color=INK)
                    break
                shown, value = self._cell(found, i)
                cut = found["gates"][at][i] != "."
                fill, ink = (DEAD, INK) if cut and not value else signed_color(value, full)
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
                if i == token:
                    frame = {"fill": False, "edgecolor": INK, "linewidth": 2, "zorder": 5}
                    axis.add_patch(Rectangle(*place, **frame))
                axis.text(centre, top + 0.23 * ROW, text, **look)
                axis.text(centre, top + 0.65 * ROW, shown, **look)
            top += ROW
        return top

    def _middle(self) -> float:
        """The median factor to the compared weights, where the colours of the factors begin."""
        if self.compare == "none":
            return 1.0
        one, two = (self._row(key)["weights"][self.update - 1] for key in (None, self.compare))
        factors = sorted(b / a for a, b in zip(one, two, strict=True) if a and b / a > 0)
        return factors[len(factors) // 2] if factors else 1.0

    def _full(self, found: dict[str, Any]) -> float:
        """Where the colour of a still is full, as in the browser."""
        if self.show == "weight":
            everything = [abs(x) for numbers in found["weights"] for x in numbers]
            sizes = sorted(x for x in everything if x > 0.005)
            return _rounded(sizes[int(0.9 * (len(sizes) - 1))]) if sizes else 1.0
        if self.show == "advantage":
            return _rounded(max(map(abs, found["advantages"])))
        return {"ratio": math.log(1.5), "probability": 1.0, "factor": 1.0}[self.show]

    def _cell(self, found: dict[str, Any], i: int) -> tuple[str, float]:
        """The number in a cell, and what its colour shows."""
        if self.show == "ratio":
            return _size(self._ratio(i)), math.log(self._ratio(i))
        if self.show == "probability":
            probability = math.exp(self.step["logp"][self.update - 1][i])
            return _size(probability), probability
        weight = found["weights"][self.update - 1][i]
        if self.show == "factor":
            if self.compare == "none":
                return "–", 0.0
            other = self._row(self.compare)["weights"][self.update - 1][i]
            return _factor(weight, other, self._middle())
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


def _size(value: float, digits: int = 2) -> str:
    """Without its sign, in few characters: 1.24, 12.3, 123, 0.004, 2·10⁵, 2·10⁻⁷."""
    size = abs(value)
    if size >= 99_999.5 or 0 < size < 1e-4:
        mantissa, power = f"{size:.{0 if size < 1 else 1}e}".split("e")
        exponent = str(int(power)).replace("-", "⁻").translate(RAISED)
        return f"{mantissa.removesuffix('.0')}·10{exponent}"
    if 0 < size < 0.5 * 10**-digits:
        return f"{size:.1g}"
    return fixed(size, 0 if size >= 99.5 else 1 if size >= 9.95 else digits)


def _signed(value: float, digits: int = 2) -> str:
    """With its sign; "0" is exactly 0."""
    return "0" if value == 0 else f"{'+' if value > 0 else '−'}{_size(value, digits)}"


def _sign(x: float) -> int:
    return (x > 0) - (x < 0)


def _changed(a: float, b: float) -> bool:
    """Whether a weight b is another than a: its sign, or its size by more than FACTOR."""
    if a == 0 or b == 0:
        return a != b
    return not 1 / FACTOR <= b / a <= FACTOR


def _factor(a: float, b: float, middle: float = 1.0) -> tuple[str, float]:
    """What a cell says of weights a here and b there; full colour at 4 times from the middle."""
    if a == 0:
        return ("from 0", 1.0) if b else ("0", 0.0)
    factor = b / a
    share = math.log(factor / middle) / math.log(4) if factor > 0 else -1.0
    return f"×{'−' if factor < 0 else ''}{_size(factor) if factor else 0}", share


def _cut(text: str) -> str:
    return text if len(text) <= TEXT else text[: TEXT - 1] + "…"


def _hatched(found: dict[str, Any]) -> str:
    """What the hatching says of this row."""
    clipped = "clipped, only the KL pushes" if found["beta"] > 0 else "clipped"
    return HATCHED.get(found["surrogate"], clipped)


def _edge(value: float) -> str:
    """At most six decimals, no more than needed: 1.2, 1.0125, 1.0004."""
    digits = Decimal(value).quantize(Decimal("1e-6"), ROUND_HALF_UP)
    return f"{digits.normalize():f}".replace("-", "−")


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"
