"""The pictures that only lecture 07 draws: plain matplotlib, no arithmetic worth reading.

Each function takes numbers that the lecture has computed and returns a figure for
`lectures.figures.show`.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from lectures.figures import INK, WRONG_SIDE, style

LOOKS = {  # name: whose colour and line it wears
    "REINFORCE": "reinforce",
    "PPO": "ppo",
    "says 0": "wrong",
    "pretrained": "right",
    "critic's λ = 1": "second",
    "quicker critic": "optimal_baseline",
    "λ = 1": "first",
    "reward model": "value_baseline",
    "half a point too low": "optimal_baseline",
    "half a point too high": "maxrl",
    "true ∇J": "exact",
}


def bands(panels: dict, ylabels: tuple[str, ...], *, work: int) -> Figure:
    """Mean and range over the batches: title → {name: (batches, runs)}, one y-label per panel."""
    figure, axes = plt.subplots(1, len(panels), figsize=(7.6, 3.3))
    for axis, ylabel, (title, runs) in zip(axes, ylabels, panels.items(), strict=True):
        for name, values in runs.items():
            look = _line(name)
            batches = np.arange(len(values))
            axis.plot(batches, values.mean(1), label=name, **look)
            band = {"color": look["color"], "alpha": 0.15, "linewidth": 0}
            axis.fill_between(batches, values.amin(1), values.amax(1), **band)
        axis.set(title=title, xlabel="batches", ylabel=ylabel)
        axis.set_ylim(0, 1.05 if ylabel == "points" else 56)
        if ylabel == "tokens":
            axis.axhline(work, color=INK, linewidth=1, linestyle=(0, (5, 3)))
            place = {"fontsize": 8.5, "ha": "right", "va": "top"}
            axis.text(len(batches) - 1, work - 16, "dashed: worth a full point", **place)
    entries = [axis.get_legend_handles_labels() for axis in axes]
    labels = {
        name: line for lines, names in entries for line, name in zip(lines, names, strict=True)
    }
    figure.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=3)
    return figure


def pushes(rows: dict, *, block: int, work: int) -> Figure:
    """Expected push towards answering, per block of positions: name → (blocks,)."""
    figure, axis = plt.subplots(figsize=(7.2, 3.5))
    for name, values in rows.items():
        look = _line(name)
        edges, centres = (block * (np.arange(len(values) + n) + h) for n, h in ((1, 0), (0, 0.5)))
        axis.stairs(values, edges, baseline=None, linewidth=2, **look)
        marker = style(LOOKS[name])["marker"]
        axis.plot(centres, values, marker=marker, markersize=6, linewidth=0, color=look["color"])
        axis.plot([], [], marker=marker, markersize=6, label=name, **look)
    low, high = axis.get_ylim()
    axis.axhline(0, color=INK, linewidth=1)
    axis.axvspan(0, work, ymin=-low / (high - low), color=WRONG_SIDE, zorder=0, linewidth=0)
    axis.text(1, 0.93 * high, "answers too early", fontsize=9, color="#7a4a36", va="top")
    axis.set(
        ylim=(low, high),
        xlabel="tokens written so far",
        ylabel="push on “answer now”\n(points per unit of logit)",
    )
    axis.set_xticks(block * np.arange(len(values) + 1))
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def dots(groups: dict, *, height: float = 0.3) -> Figure:
    """One row per variant, a dot per seed, a bar from the least to the largest, a line at zero.

    groups : title → {variant: (seeds,) points more than the machine it is compared with}
    """
    rows = max(len(group) for group in groups.values())
    size = (3.9 * len(groups), 1.0 + height * rows)
    figure, axes = plt.subplots(1, len(groups), figsize=size, squeeze=False)
    color = style("grpo")["color"]
    for axis, (title, group) in zip(axes[0], groups.items(), strict=True):
        for row, values in enumerate(map(np.asarray, group.values())):
            ends = [values.min(), values.max()]
            axis.plot(ends, [row, row], color=color, linewidth=5, alpha=0.25)
            axis.plot(values, np.full(len(values), row), "o", color=color, markersize=4)
            axis.plot(values.mean(), row, "|", color=INK, markersize=13, markeredgewidth=2)
        axis.axvline(0, color=style("ppo")["color"], linewidth=1.5, zorder=0)
        axis.set_yticks(range(len(group)), list(group))
        axis.set(title=title, xlabel="points more, same seed", ylim=(len(group) - 0.5, -0.5))
        axis.grid(axis="y", visible=False)
    return figure


def lettered(curves: dict, ylabels: tuple[str, ...]) -> Figure:
    """One panel per quantity, one line per letter: letter → (quantities, batches)."""
    figure, axes = plt.subplots(1, len(ylabels), figsize=(7.8, 2.9))
    colors = ("#D55E00", "#0072B2", "#CC79A7", "#009E73", "#777777")
    lines = ("-", "--", "-.", ":", (0, (1, 1)))
    for (letter, values), color, line in zip(curves.items(), colors, lines, strict=False):
        for axis, series in zip(axes, values, strict=True):
            axis.plot(series, color=color, linestyle=line, linewidth=1.8, label=letter)
    for axis, label in zip(axes, ylabels, strict=True):
        axis.set(xlabel="batches", ylabel=label)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def _line(name: str) -> dict[str, str]:
    look = style(LOOKS[name])
    return {"color": look["color"], "linestyle": look["linestyle"]}
