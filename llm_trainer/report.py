"""The dashboard of one run, or of several compared: `metrics.jsonl` as a figure and a table.

    python -m llm_trainer report runs/grpo_tiny                       (draws report.png)
    python -m llm_trainer report runs/grpo_* runs/rloo_* --out both.png

    from llm_trainer.report import figure, load_runs, table           (in a notebook)
    runs = load_runs(["runs/grpo_0", "runs/grpo_1"])
    figure(runs)

Runs whose `run.yaml` differs only in the seed, and in fields that change no number, are one
configuration: a line is the mean of its seeds, the band reaches from the smallest to the largest.

Left out: `loss`, whose value says little (README.md), and significance tests: look at the band.
"""

import io
import itertools
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from llm_trainer.config import Config, ConfigError, first_line, require
from llm_trainer.log import LOG, METRICS, Metric, read_lines
from policy_gradients.algorithms import PALETTE

ROUNDING = 1e-9  # smaller numbers are 0 in float32's arithmetic
MOST_DIFFERENCES = 4  # fields in a label; configurations that differ in more are named by a folder
LEVELS = (0.85, 0.95)  # of held-out exact, whose cost the table names
# What may differ between two runs of one configuration: the seed, and what changes no number.
FREE = {"seed", "output_dir", "save_every", "record_steps", "threads", "track", "steps"}
OWN_LOSS = {"color": "#882255", "linestyle": "-", "marker": "h"}  # no row of the table wears it
INK, FAINT = "#1a1a1a", "#8a8a8a"
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


# ------------------------------------------------------------------ runs and configurations


@dataclass(frozen=True)
class Run:
    """One run's folder, read."""

    folder: Path
    config: dict[str, Any]  # run.yaml; fields that it lacks have their default
    loss: str  # "grpo (the row's)", or the name of a learner's own
    lines: list[dict[str, Any]]  # metrics.jsonl
    cut: bool  # whether its last line was incomplete

    def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values) of a metric, where it was logged."""
        logged = [(line["step"], line[name]) for line in self.lines if name in line]
        return np.array([s for s, _ in logged]), np.array([v for _, v in logged], dtype=float)


@dataclass(frozen=True)
class Group:
    """The runs of one configuration."""

    label: str
    runs: list[Run]
    look: dict[str, str]  # color, linestyle, marker


def load_runs(folders: Iterable[str | Path]) -> list[Run]:
    """Read each folder once, however often it is named.

    A last line that a killed run left incomplete is dropped. Raises ConfigError, with the folder's
    name: it holds no run, has logged nothing yet, or its log is damaged elsewhere.
    """
    distinct = {Path(folder).resolve(): Path(folder) for folder in folders}
    require(len(distinct) > 0, "report: name at least one run's folder")
    return [_load(folder) for folder in distinct.values()]


def _load(folder: Path) -> Run:
    settings, log = folder / "run.yaml", folder / LOG
    for path in (settings, log):
        require(path.is_file(), f"report: {folder} holds no run (no {path.name})")
    config, loss = _settings(settings)
    whole, _, rest = log.read_text(encoding="utf-8", errors="replace").rpartition("\n")
    lines = read_lines(whole, log)
    require(len(lines) > 0, f"report: {folder} has logged nothing yet ({LOG} is empty)")
    return Run(folder, config, loss, lines, cut=bool(rest))


def _settings(path: Path) -> tuple[dict[str, Any], str]:
    """(a run's configuration, its loss). Not validated: an older version may have allowed more."""
    try:
        text = path.read_text(encoding="utf-8")
        config = json.loads(json.dumps(yaml.safe_load(text), default=str))  # keys become text
        require(isinstance(config, dict), "no fields in it")
        for name, kind in {"algorithm": str, "steps": int}.items():
            given = config.get(name)
            require(isinstance(given, kind), f"{name} = {given!r}")
    except (yaml.YAMLError, ValueError, TypeError) as error:  # ConfigError is a ValueError
        raise ConfigError(f"report: {path} is damaged ({first_line(error)})") from None
    for name, default in Config().model_dump().items():
        given = config.setdefault(name, default)
        if isinstance(default, dict) and isinstance(given, dict):
            config[name] = default | given
    first = text.partition("\n")[0]
    return config, first.removeprefix("# loss: ") if first.startswith("# loss: ") else ""


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Configurations in the order in which they first appear, named by what tells them apart."""
    members: dict[str, list[Run]] = {}
    for run in runs:
        fixed = {k: v for k, v in run.config.items() if k not in FREE}
        members.setdefault(json.dumps([run.loss, fixed], sort_keys=True), []).append(run)
    settings = [_flat(group[0].config) for group in members.values()]
    names = dict.fromkeys(itertools.chain.from_iterable(settings))
    differ = [
        name
        for name in names
        if name not in FREE | {"algorithm"} and len({repr(s.get(name)) for s in settings}) > 1
    ]
    labels = []
    for group, values in zip(members.values(), settings, strict=True):
        extra = [f"{d}={_short(values[d])}" for d in differ if d in values]
        many = len(differ) > MOST_DIFFERENCES
        labels.append(", ".join([_name(group[0]), *(() if many else extra)]))
    groups, seen = [], {}
    for label, group in zip(labels, members.values(), strict=True):
        if len(differ) > MOST_DIFFERENCES or labels.count(label) > 1:
            label = f"{label}, as in {group[0].folder}"
        name = _name(group[0])
        seen[name] = seen.get(name, -1) + 1
        groups.append(Group(label, group, _look(name, seen[name])))
    return groups


def _name(run: Run) -> str:
    """The algorithm, or the learner's loss that took its place."""
    own = run.loss and not run.loss.endswith("(the row's)")
    return f"{run.loss.partition(' (sha256')[0]} (own loss)" if own else run.config["algorithm"]


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Sections as dotted names."""
    flat = {}
    for name, value in values.items():
        inner = isinstance(value, dict) and value
        flat |= _flat(value, f"{prefix}{name}.") if inner else {prefix + name: value}
    return flat


def _look(name: str, repeat: int) -> dict[str, str]:
    """The algorithm's look; its further configurations in lighter colours and other lines."""
    look = dict(PALETTE.get(name, OWN_LOSS))
    if repeat:
        colour = np.array(matplotlib.colors.to_rgb(look["color"]))
        lighter = 1 - (1 - colour) * 0.72 ** min(repeat, 3)
        lines = [style for style in ("-", "--", ":", "-.") if style != look["linestyle"]]
        marks = [mark for mark in "osD^vP" if mark != look["marker"]]
        look = {
            "color": matplotlib.colors.to_hex(lighter),
            "linestyle": lines[(repeat - 1) % 3],
            "marker": marks[(repeat - 1) % 5],
        }
    return look


def notes(groups: Sequence[Group]) -> list[str]:
    """What a reader has to know before comparing these runs."""
    runs = [run for group in groups for run in group.runs]
    found = []
    for run in runs:
        last, steps = run.lines[-1]["step"], run.config["steps"]
        if run.cut:
            found.append(f"{run.folder}: its last line was cut off and is left out")
        if last < steps:
            found.append(f"{run.folder} ends at step {last} of {steps}")
    tasks = {json.dumps([r.config.get("task"), r.config.get("eval_words")]) for r in runs}
    if len(tasks) > 1:
        found.append("different tasks or held-out words: exact cannot be compared between them")
    for group in groups:
        seeds = [run.config.get("seed") for run in group.runs]
        twice = [seed for seed in seeds if seeds.count(seed) > 1]
        if twice:
            found.append(f"{group.label}: seed {twice[0]} is there twice, which is no new evidence")
    return found


# ------------------------------------------------------------------ the figure


class Page(Figure):
    """A figure that a notebook shows as it is, whether or not it uses pyplot."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def figure(runs: Sequence[Run], *, columns: int = 3) -> Figure:
    """A panel per metric that the runs logged; metrics that never left 0 are named below instead.

    Numbers of single steps are noisy, so they are shown as running means over about 1/25 of the
    run (said under the figure; a single run's own values stand behind them); evaluations are shown
    as they are. Where the runs of a configuration end at different steps, mean and band end with
    the shortest and the others go on as thin lines.
    """
    groups, panels = grouped(runs), _panels(runs)
    largest = {p: max(np.abs(r.series(p.name)[1]).max(initial=-1) for r in runs) for p in panels}
    shown = [panel for panel in panels if largest[panel] > ROUNDING]
    flat = [panel.title for panel in panels if 0 <= largest[panel] <= ROUNDING]
    rows = max(1, math.ceil(len(shown) / columns))
    window = 1 + 2 * (max(run.lines[-1]["step"] for run in runs) // 50)
    with matplotlib.rc_context(STYLE):
        size = (4.2 * columns, 2.35 * rows + 1.1)
        page = Page(figsize=size, layout="constrained", dpi=100, facecolor="white")
        axes = page.subplots(rows, columns, squeeze=False, sharex=True).flatten()
        for axis, panel in zip(axes, shown, strict=False):
            _draw(axis, panel, groups, 1 if panel.raw else window)
        for axis in axes[max(0, len(shown) - columns) : len(shown)]:  # nothing below them
            axis.set_xlabel("step")
            axis.tick_params(labelbottom=True)
        for axis in axes[len(shown) :]:
            axis.set_axis_off()
        _legend(page, groups, columns)
        page.align_ylabels()
        page.supxlabel(_caption(groups, window, flat), fontsize=8.5, x=0.01, ha="left", color=INK)
    return page


def _panels(runs: Sequence[Run]) -> list[Metric]:
    """All that may be drawn: of a mixture of tasks each one's held-out exact too."""
    first, *rest = [metric for metric in METRICS if metric.title]
    start = f"{first.name}/"
    tasks = {name for run in runs for name in run.lines[0] if name.startswith(start)}
    each = [replace(first, name=t, title=f"… of {t.removeprefix(start)}") for t in sorted(tasks)]
    return [first, *each, *rest]


def _legend(page: Page, groups: Sequence[Group], columns: int) -> None:
    handles = [Line2D([], [], **group.look) for group in groups]
    labels = [f"{g.label} ({_count(len(g.runs), 'seed')})" for g in groups]
    beside = max(1, min(len(labels), 52 * columns // (8 + max(map(len, labels)))))  # that fit
    page.legend(handles, labels, loc="outside upper left", ncols=beside, fontsize=10)


def _caption(groups: Sequence[Group], window: int, flat: list[str]) -> str:
    how = []
    if any(len(group.runs) > 1 for group in groups):
        how.append("Line: mean of the seeds; band: from the smallest to the largest.")
    if any(len({run.lines[-1]["step"] for run in group.runs}) > 1 for group in groups):
        how.append("Thin lines: single runs that went on after the shortest.")
    if window > 1:
        how.append(f"Numbers of single steps are running means over {window} steps.")
    lines = [" ".join(how)] * bool(how)
    if flat:
        lines.append(f"Measured, and 0 at every step: {'; '.join(flat)}.")
    found = notes(groups)
    lines += [f"Note: {note}." for note in found[:4]]
    if len(found) > 4:
        lines.append(f"… and {_count(len(found) - 4, 'more note')}, which the table has.")
    return "\n".join(lines)


def _draw(axis: Axes, panel: Metric, groups: Sequence[Group], window: int) -> None:
    """One panel: every configuration that logged its metric."""
    axis.set_title(panel.title)
    axis.set_ylabel(panel.unit)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axis.yaxis.set_major_formatter(
        FuncFormatter(lambda y, _: f"{100 * y:g} %" if panel.form.endswith("%") else f"{y:g}")
    )
    if panel.name.startswith("eval/exact"):
        axis.set_yticks([0, 0.25, 0.5, *LEVELS])
        for level in LEVELS:
            axis.axhline(level, color=FAINT, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    for number, group in enumerate(groups):
        _draw_group(axis, panel.name, group, window, number, len(groups))
    axis.margins(y=0.12)
    axis.set_ylim(*panel.limits)
    if panel.limits[0] == 0:
        axis.set_ylim(bottom=-0.02 * axis.get_ylim()[1])  # a line at 0 is seen whole


def _draw_group(
    axis: Axes, metric: str, group: Group, window: int, number: int, groups: int
) -> None:
    """Mean and band over the seeds; the `number` of all `groups` keeps markers apart."""
    logged = [series for run in group.runs if len((series := run.series(metric))[0])]
    if not logged:
        return
    colour = group.look["color"]
    end = min(steps[-1] for steps, _ in logged)
    common = np.unique(np.concatenate([steps[steps <= end] for steps, _ in logged]))
    seeds = np.full((len(logged), len(common)), np.nan)  # (seeds, steps); nan: not logged there
    for row, (steps, values) in zip(seeds, logged, strict=True):
        smooth = _smooth(values, window)
        row[np.searchsorted(common, steps[steps <= end])] = smooth[steps <= end]
        axis.plot(steps[steps >= end], smooth[steps >= end], color=colour, linewidth=0.8)
    if len(logged) > 1:
        low, high = np.nanmin(seeds, 0), np.nanmax(seeds, 0)
        axis.fill_between(common, low, high, color=colour, alpha=0.5 / (groups + 2), linewidth=0)
    elif window > 1:
        axis.plot(*logged[0], color=colour, linewidth=0.6, alpha=0.35)
    every = max(1, len(common) // 6)
    marks = (round(every * number / groups), every)
    axis.plot(common, np.nanmean(seeds, 0), **group.look, markevery=marks)


def _smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Mean over the `window` (odd) logged values around each, over fewer at the ends."""
    half = window // 2
    return np.array([values[max(0, i - half) : i + half + 1].mean() for i in range(len(values))])


# ------------------------------------------------------------------ the table


def table(runs: Sequence[Run]) -> str:
    """What it cost to reach each level, and where each configuration ended, as markdown.

    A level is reached at the first evaluation at or above it, so steps are as coarse as eval_every.
    Costs: median over the seeds (smallest to largest). Final: mean ± standard deviation over the
    seeds, of each run's last evaluation.
    """
    groups = grouped(runs)
    marks = [f"{level:.0%}" for level in LEVELS]
    names = ["configuration", "seeds", "steps"]
    names += [f"{kind} to {mark}" for mark in marks for kind in ("steps", "CPU s")]
    names += ["final exact"]
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for group in groups:
        last = [run.lines[-1]["step"] for run in group.runs]
        cells = [group.label, str(len(group.runs)), _range(last)]
        for level in LEVELS:
            cells += _cost(group.runs, level)
        lines.append(f"| {' | '.join([*cells, _final(group.runs)])} |")
    lines.append("")
    lines.append(
        "Steps and CPU seconds (training and evaluation, without loading) to a level: median of "
        "the seeds, in brackets the smallest and largest. Final exact: mean ± standard deviation "
        "over the seeds, greedy, held-out."
    )
    return "\n".join([*lines, *(f"- {note}" for note in notes(groups))])


def _cost(runs: Sequence[Run], level: float) -> list[str]:
    """[steps, CPU seconds] to the level; who never reached it is counted, not averaged away."""
    reached = [line for line in (_first(run, level) for run in runs) if line]
    if not reached:
        return ["never"] * 2
    missing = f"; {len(reached)} of {len(runs)}" if len(reached) < len(runs) else ""
    steps = [line["step"] for line in reached]
    seconds = [line.get("time/cpu_seconds", 0.0) for line in reached]  # none at step 0
    return [_range(steps) + missing, _range([round(s) for s in seconds]) + missing]


def _first(run: Run, level: float) -> dict[str, Any] | None:
    return next((line for line in run.lines if line.get("eval/exact", -1) >= level), None)


def _final(runs: Sequence[Run]) -> str:
    exact = [run.series("eval/exact")[1][-1] for run in runs if len(run.series("eval/exact")[1])]
    if not exact:
        return "not evaluated"
    spread = f" ± {100 * statistics.stdev(exact):.1f}" if len(exact) > 1 else ""
    return f"{100 * statistics.mean(exact):.1f}{spread} %"


def _range(values: Sequence[float]) -> str:
    middle = f"{statistics.median(values):g}"
    return middle if min(values) == max(values) else f"{middle} ({min(values)}–{max(values)})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def save(page: Figure, path: str | Path) -> None:
    """Write the figure; the ending says in which format. Raises ConfigError."""
    path = Path(path)
    known = page.canvas.get_supported_filetypes()
    require(
        path.suffix[1:].lower() in known,
        f"--out {path}: the ending must be one of {', '.join(sorted(known))}",
    )
    require(path.parent.is_dir(), f"--out {path}: no folder {path.parent}")
    page.savefig(path, dpi=130)
