"""The bug doctor: seven blinded runs, probes that cost points, a diagnosis from the catalogue.

Lecture 11. What the probes see comes from `toy_models.silent_bugs`; the committed record is the
ward of seed 0, so the widget opens at once and needs no kernel: `BugDoctor(ward=Ward(seed=1))`
takes another. The points are a few subtractions, in both languages.
Leaves out: the training (two seconds, in `Ward`) and the answers, until they are earned.
"""

import json
from functools import cache
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
    as_list,
    module,
    short_repr,
)
from lectures.widgets.still import (
    BOLD,
    DEAD,
    GRID,
    HATCH,
    INK,
    LINE,
    SERIES,
    SOFT,
    Still,
    fixed,
    signed_color,
)
from toy_models.silent_bugs import HEALTHY, POINTS, PROBES, RATIO_EDGES, WRONG, Ward, explain

RECORD = Path(__file__).parents[1] / "reference_runs" / "bug_doctor.json"
PATIENTS = "ABCDEFG"
TITLES = {  # the catalogue in a menu's width
    HEALTHY: "nothing is wrong",
    "end_dropped": "end token untrained",
    "padding_trained": "padding trained",
    "one_out": "one position out",
    "cold_sampler": "cold sampling only",
    "cold_report": "ratio at two temps",
    "scrambled": "advantages shuffled",
    "interleaved": "groups mix prompts",
    "over_batch": "batch statistics",
    "with_padding": "padding whitened",
    "stale_cache": "old log π stale",
    "recomputed": "old log π renewed",
    "attached": "old log π attached",
    "bf16_ratio": "log π in bf16",
    "kl_sign": "KL sign turned",
    "bonus_sign": "bonus sign turned",
    "own_counts": "micro-batch counts",
    "always_clipped": "always clipped",
}
ORDERED = {name: probe for name, probe in PROBES.items() if probe.price}
CURVES = {"reward": "Reward", "loss": "Loss", "gradient": "Gradient length"}
PANEL, GAP, ROW, COLUMNS = 212, 22, 186, 3  # of the still, screen pixels


def record_of(ward: Ward) -> dict[str, Any]:
    """What the widget carries of a ward: titles, prices, and for each patient what every probe sees
    (numbers with four digits), its diagnosis as a place in the menu, and the words to explain it.
    """
    found = []
    for chart in ward.chart().values():
        name = chart.pop("has")
        found.append({"truth": list(TITLES).index(name), "words": explain(name)} | _rounded(chart))
    probes = {name: [probe.title, probe.price] for name, probe in ORDERED.items()}
    return {"titles": TITLES, "probes": probes, "patients": found}


def _points(count: int) -> str:
    return "1 point" if count == 1 else f"{count} points"


def _lists(**of: list[str]) -> list[list[str]]:
    """A list per patient, empty where not given: _lists(C=["mask"])."""
    return [list(of.get(letter, [])) for letter in PATIENTS]


def as_text(record: dict[str, Any]) -> str:
    """One JSON text, a line per patient: a notebook would give every number of a list its line."""

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    rows = ",\n".join(map(text, record["patients"]))
    head = f'"titles":{text(record["titles"])},\n"probes":{text(record["probes"])}'
    return f'{{{head},\n"patients":[\n{rows}\n]}}\n'


@cache
def _read_text(record: str) -> dict[str, Any]:
    return json.loads(record)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return round(value, 4) + 0 if isinstance(value, float) else value


@cache
def _committed() -> str:
    return RECORD.read_text(encoding="utf-8")


class _Record(Data):
    """Set once, by the constructor."""

    def validate(self, obj: "BugDoctor", value: Any) -> Any:
        if not obj._ready or value == obj.record:
            return value
        raise InvalidValueError(
            "record comes from the ward and cannot be set: make a new BugDoctor(ward=…)"
        )


class _Lists(Data):
    """A list of names for each patient."""

    def __init__(self, known: list[str]):
        super().__init__(_lists(), None)
        self.known = known

    def validate(self, obj: "BugDoctor", value: Any) -> list[list[str]]:
        rows = [
            as_list(f"{self.name}[{i}]", row) for i, row in enumerate(as_list(self.name, value))
        ]
        if len(rows) != len(PATIENTS):
            raise InvalidValueError(
                f"{self.name} holds {len(rows)} lists; expected {len(PATIENTS)}, one per patient"
            )
        for row in rows:
            for name in row:
                if name not in self.known or row.count(name) > 1:
                    raise InvalidValueError(
                        f"{self.name} holds {short_repr(name)} where a name is expected that the "
                        f"patient's list has only once, out of: {', '.join(self.known)}"
                    )
        return rows


class BugDoctor(LectureWidget):
    """Seven blinded runs; every probe costs, every diagnosis counts.

    ward    : a `Ward` of toy_models.silent_bugs; None is the committed one, of seed 0
    patient : "A" to "G"      probe : the next to order      diagnosis : the next to make
    ordered : for each patient the probes that were paid      tried : the diagnoses that were made
    batch   : where the curves are read, from 1
    """

    name = "bug_doctor"
    _esm = module("bug_doctor")
    patient = Choice("A", "Patient", dict(zip(PATIENTS, PATIENTS, strict=True)))
    probe = Choice(
        "samples",
        "Probe (points)",
        {name: f"{probe.title} ({probe.price})" for name, probe in ORDERED.items()},
        menu=True,
    )
    diagnosis = Choice("none", "Diagnosis", {"none": "choose …"} | TITLES, menu=True)
    batch = Slider(40, "Read curves at batch", low=1, high=40, step=1, digits=0)
    ordered = _Lists(list(ORDERED))
    tried = _Lists(list(TITLES))
    record = _Record("", None)
    presets: ClassVar = {
        "order": ("Order the probe", None),
        "diagnose": ("Diagnose", None),
        "again": ("Start again", None),
    }
    presets_label = "Act"
    examples: ClassVar = [
        {},
        {"patient": "C", "ordered": _lists(C=["lengths", "samples"]), "diagnosis": "end_dropped"},
        {"patient": "B", "ordered": _lists(B=["mask", "map"]), "probe": "map", "batch": 12},
        {
            "patient": "D",
            "ordered": _lists(A=["first_ratio"], D=["surprise", "last_ratio", "map", "mask"]),
            "tried": _lists(A=["stale_cache"], D=["kl_sign", "own_counts", "bonus_sign"]),
            "probe": "first_ratio",
            "diagnosis": "healthy",
        },
        {
            "patient": "F",
            "ordered": _lists(F=["surprise"], G=["map", "lengths"]),
            "tried": _lists(F=["cold_sampler"], G=["own_counts"], E=["healthy", "recomputed"]),
            "batch": 1,
        },
        {
            "patient": "A",
            "tried": _lists(
                A=["stale_cache"], B=["padding_trained"], C=["end_dropped"], D=["healthy"],
                E=["recomputed"], F=["cold_sampler"], G=["own_counts"],
            ),
        },
    ]  # fmt: skip

    def __init__(self, ward: Ward | None = None, **state: Any):
        if "record" in state:
            raise TypeError("BugDoctor takes no record: it comes from the ward, given first")
        if not isinstance(ward, Ward | None):
            raise TypeError(f"BugDoctor takes a Ward, as in BugDoctor(Ward(seed=1)), got {ward!r}")
        text = _committed() if ward is None else as_text(record_of(ward))
        super().__init__(record=text, **state)

    @property
    def chart(self) -> dict[str, Any]:
        """The record, read: see `record_of`."""
        return _read_text(self.record)

    # --- the rules -------------------------------------------------------------------------------

    def _done(self, i: int) -> bool:
        return bool(self.tried[i]) and self.tried[i][-1] == self._truth(i)

    def _truth(self, i: int) -> str:
        return list(TITLES)[self.chart["patients"][i]["truth"]]

    def _spent(self, i: int) -> int:
        wrong = len(self.tried[i]) - self._done(i)
        return sum(ORDERED[name].price for name in self.ordered[i]) + WRONG * wrong

    def _left(self, i: int) -> int:
        return max(0, POINTS - self._spent(i))

    @property
    def _at(self) -> int:
        return PATIENTS.index(self.patient)

    @property
    def points(self) -> dict[str, int]:
        """Points of the patients that were diagnosed."""
        return {p: self._left(i) for i, p in enumerate(PATIENTS) if self._done(i)}

    @property
    def numbers(self) -> dict[str, Any]:
        """Spent and left per patient, points in all, and the curves at the batch."""
        seen = self.chart["patients"][self._at]["curves"]
        return {
            "spent": [self._spent(i) for i in range(len(PATIENTS))],
            "left": [self._left(i) for i in range(len(PATIENTS))],
            "diagnosed": len(self.points),
            "total": sum(self.points.values()),
            "read": {name: seen[name][self.batch - 1] for name in CURVES},
        }

    @property
    def sentence(self) -> str:
        i, found = self._at, self.numbers
        read = ", ".join(f"{CURVES[k].lower()} {_read(k, v)}" for k, v in found["read"].items())
        so_far = f"{found['diagnosed']} of {len(PATIENTS)} diagnosed, {_points(found['total'])}."
        return f"Patient {self.patient}: {self._verdict(i)} At batch {self.batch}: {read}. {so_far}"

    def _verdict(self, i: int) -> str:
        if self._done(i):
            words = self.chart["patients"][i]["words"]
            return f"{TITLES[self._truth(i)]}, {self._left(i)} of {POINTS} points. {words}"
        paid = ", ".join(ORDERED[name].title.lower() for name in self.ordered[i])
        words = f"{_points(self._spent(i))} spent" + (f" ({paid})" if paid else "")
        words += f", a right diagnosis brings {self._left(i)}."
        if self.tried[i]:
            wrong = "; ".join(TITLES[name] for name in self.tried[i])
            words += f" It is not: {wrong}."
        if self.probe not in self.ordered[i]:
            words += f" To be ordered: {ORDERED[self.probe].title.lower()}."
        if self.diagnosis != "none":
            words += f" To be decided: {TITLES[self.diagnosis]}."
        return words

    @property
    def note(self) -> str:
        return (
            f"A patient is worth {POINTS} points; a probe takes its price, a wrong diagnosis "
            f"{WRONG}. Six of the seven have a bug, no two the same; nobody has bf16, which no "
            "probe shows here. Loss and gradient: a batch's last update. Map: push ÷ right push at "
            "the seventh batch's last update; 1 is right, 0 silent, − a turned sign, + pushed "
            "padding, · rightly nothing; large where the right push is almost 0. Mask: filled "
            "tokens count. Dashed curves: the second number (cut: share of all answers, drawn five "
            "times as high)."
        )

    def react(self, key: str) -> dict[str, Any]:
        i = self._at
        if key == "patient":
            return {"diagnosis": "none"}
        if key == "again":
            return {"ordered": _lists(), "tried": _lists(), "diagnosis": "none", "patient": "A"}
        if key == "order" and not self._done(i) and self.probe not in self.ordered[i]:
            return {"ordered": _with(self.ordered, i, self.probe)}
        known = self.diagnosis == "none" or self.diagnosis in self.tried[i]
        if key == "diagnose" and not self._done(i) and not known:
            return {"tried": _with(self.tried, i, self.diagnosis), "diagnosis": "none"}
        return {}

    # --- the still picture -----------------------------------------------------------------------

    def _panels(self) -> list[str]:
        """What is shown, in order: three curves, the probes that were paid, the next one."""
        shown = list(ORDERED) if self._done(self._at) else list(self.ordered[self._at])
        return [*CURVES, *shown] + ([] if self.probe in shown else ["next"])

    @property
    def still_height(self) -> int:
        return 20 + ROW * -(-len(self._panels()) // COLUMNS)

    def draw_still(self, still: Still) -> None:
        seen = self.chart["patients"][self._at]
        for place, name in enumerate(self._panels()):
            left, top = 12 + (PANEL + GAP) * (place % COLUMNS), 24 + ROW * (place // COLUMNS)
            if name in CURVES:
                self._curves(still.axes(left + 30, top, PANEL - 34, 126), name, seen["curves"])
            elif name in ("lengths", "surprise"):
                self._curves(still.axes(left + 30, top, PANEL - 34, 126), name, seen[name])
            elif name in ("first_ratio", "last_ratio"):
                _histogram(still.axes(left + 30, top, PANEL - 34, 126), name, seen[name])
            else:
                axis = still.axes(left, top, PANEL, 142)
                axis.set(xlim=(0, PANEL), ylim=(142, 0))
                axis.axis("off")
                if name == "next":
                    _ghost(axis, ORDERED[self.probe])
                else:
                    _title(axis, ORDERED[name].title)
                    {"samples": _samples, "mask": _mask, "map": _map}[name](axis, seen[name])

    def _curves(self, axis: Axes, name: str, seen: dict[str, list[float]]) -> None:
        lines = [name] if name in CURVES else list(seen)
        read = [_read(key, seen[key][self.batch - 1]) for key in lines]
        if name in CURVES:
            _title(axis, f"{CURVES[name]} {read[0]}", SHIFT)
        else:
            words = LINES[name]
            _title(axis, ", ".join(f"{w} {r}" for w, r in zip(words, read, strict=True)), SHIFT)
        for key, color, style in zip(lines, SERIES, ("-", "--"), strict=False):
            scale = 5 if key == "at_limit" else 1
            axis.plot([scale * x for x in seen[key]], style, color=color, linewidth=1.6)
        axis.set_ylim(bottom=min(0, axis.get_ylim()[0]))
        axis.axvline(self.batch - 1, color=INK, linewidth=1, linestyle=":")
        axis.set_xticks((0, 19, 39), ("1", "20", "40"))
        _plain(axis)
        if axis.get_ylim()[1] < 1e-3:  # labels in the width of the others
            axis.yaxis.set_major_formatter(
                lambda x, _: f"{x:.0e}".replace("e-0", "e−") if x else "0"
            )


SHIFT = -30 / (PANEL - 34)  # from the axes back to the panel's left edge
LINES = {"lengths": ("Length", "cut"), "surprise": ("Entropy", "surprise")}


def _read(curve: str, value: float) -> str:
    return fixed(value, 4 if curve == "gradient" else 2)


def _with(rows: list[list[str]], i: int, name: str) -> list[list[str]]:
    return [[*row, name] if j == i else list(row) for j, row in enumerate(rows)]


def _title(axis: Axes, words: str, shift: float = 0) -> None:
    look = {"fontsize": 9, "fontweight": "bold", "color": INK}
    axis.set_title(words, loc="left", x=shift, pad=5, **look)


def _plain(axis: Axes) -> None:
    axis.tick_params(labelsize=8, labelcolor=SOFT, color=LINE)
    axis.spines[:].set(visible=True, color=LINE)
    axis.locator_params(axis="y", nbins=4)
    axis.grid(axis="y", color=GRID)
    axis.set_axisbelow(True)


def _histogram(axis: Axes, name: str, seen: dict[str, Any]) -> None:
    _title(axis, ORDERED[name].title, SHIFT)
    axis.bar(RATIO_EDGES[:-1], seen["counts"], 0.05, align="edge", color=SERIES[0])
    low, high = (fixed(x, 2) for x in seen["ends"])
    words = f"{fixed(100 * seen['exactly_one'], 0)} % exactly 1, {low} to {high}"
    axis.set_xlabel(words, fontsize=8, color=SOFT, labelpad=2)
    axis.set_xticks((0.5, 1, 1.5), ("0.5", "1", "1.5"))
    _plain(axis)


def _samples(axis: Axes, seen: dict[str, Any]) -> None:
    for row, one in enumerate(seen["rows"]):
        words = f"{one['prompt']} → {one['response']:<5} {fixed(one['reward'], 0)} of 4"
        look = {"family": "monospace", "fontsize": 9, "va": "center", "color": INK}
        axis.text(4, 10 + 17 * row, words, **look)


def _cell(axis: Axes, row: int, column: int, words: str, fill: str, ink: str) -> None:
    box = (50 + 32 * column, 2 + 17 * row)
    axis.add_patch(Rectangle(box, 31, 16, facecolor=fill, edgecolor=GRID, linewidth=0.7))
    look = {"ha": "center", "va": "center", "fontsize": 7.5, "color": ink}
    axis.text(box[0] + 15.5, box[1] + 8, words, **look)


def _mask(axis: Axes, seen: dict[str, Any]) -> None:
    for row, one in enumerate(seen["rows"]):
        for column, (token, counts) in enumerate(zip(one["tokens"], one["mask"], strict=True)):
            _cell(axis, row, column, token, *((INK, "white") if counts else (DEAD, SOFT)))


def _map(axis: Axes, seen: dict[str, Any]) -> None:
    for row, one in enumerate(seen["rows"]):
        look = {"family": "monospace", "fontsize": 8, "va": "center", "color": INK}
        axis.text(4, 10 + 17 * row, one["tokens"], **look)
        for column, factor in enumerate(one["factors"]):
            _cell(axis, row, column, *_factor(factor))


def _factor(factor: float | str | None) -> tuple[str, str, str]:
    """Words, fill and ink of one cell of the map."""
    if factor is None:
        return "·", "white", SOFT
    if factor == "+":
        return "+", INK, "white"
    words = _short(factor)
    if factor < 0:
        return words, *signed_color(-1, 1)
    if factor > 1.05:
        return words, *signed_color(min(1, 0.2 + 0.2 * factor), 1.6)
    return words, DEAD if factor < 0.95 else "white", INK


def _short(factor: float) -> str:
    """A factor in a cell's width; a small one keeps its digits, so that 0 is really 0."""
    if 0 < abs(factor) < 0.095:
        return fixed(factor, 2).replace("0.", ".")
    return fixed(factor, 0 if abs(factor) >= 9.95 else 1)


def _ghost(axis: Axes, probe: Any) -> None:
    look = {"facecolor": DEAD, "edgecolor": HATCH, "hatch": "////", "linewidth": 0}
    axis.add_patch(Rectangle((0, 0), PANEL, 126, **look))
    axis.add_patch(Rectangle((24, 40), PANEL - 48, 46, facecolor="white", edgecolor=LINE))
    look = {"ha": "center", "va": "center"} | BOLD | {"fontsize": 9}
    axis.text(PANEL / 2, 54, probe.title, **look)
    axis.text(PANEL / 2, 73, _points(probe.price), **look | {"fontweight": "normal"})
