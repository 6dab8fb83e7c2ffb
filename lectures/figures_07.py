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
    "λ = 1": "first",
    "half a point too low": "optimal_baseline",
    "half a point too high": "maxrl",
    "true ∇J": "exact",
}


def diaries(runs: dict, *, work: int) -> Figure:
    """Mean length and points over the batches: name → (2, batches, runs), points first."""
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.3))
    for name, diary in runs.items():
        look = _line(name)
        for axis, values in zip(axes, (diary[1], diary[0]), strict=True):
            batches = np.arange(len(values))
            axis.plot(batches, values.mean(1), label=name, **look)
            band = {"color": look["color"], "alpha": 0.15, "linewidth": 0}
            axis.fill_between(batches, values.amin(1), values.amax(1), **band)
    axes[0].axhline(work, color=INK, linewidth=1, linestyle=(0, (5, 3)))
    axes[0].text(
        len(batches) - 1, work - 1, "worth a full point", fontsize=8.5, ha="right", va="top"
    )
    axes[0].set(title="length of the answers", xlabel="batches", ylabel="tokens", ylim=(0, None))
    axes[1].set(title="what they earn", xlabel="batches", ylabel="points", ylim=(-0.02, 1.05))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def pushes(rows: dict, *, block: int, work: int) -> Figure:
    """Expected push towards answering, per block of positions: name → (blocks,)."""
    figure, axis = plt.subplots(figsize=(7.2, 3.5))
    for name, values in rows.items():
        look = _line(name)
        centres = block * (np.arange(len(values)) + 0.5)
        axis.plot(centres, values, marker=style(LOOKS[name])["marker"], label=name, **look)
    low, high = axis.get_ylim()
    axis.axhline(0, color=INK, linewidth=1)
    axis.axvspan(0, work, ymin=-low / (high - low), color=WRONG_SIDE, zorder=0, linewidth=0)
    axis.text(1, 0.93 * high, "answers too early", fontsize=9, color="#7a4a36", va="top")
    axis.set(ylim=(low, high), xlabel="tokens written so far", ylabel="push on “answer now”")
    axis.set_xticks(block * np.arange(len(values) + 1))
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def dots(groups: dict, xlabel: str, *, height: float = 0.3) -> Figure:
    """One row per variant, a dot per seed and a bar from the least to the largest.

    groups : title → {variant: (seeds,)}; the first row of each is the one to compare with
    """
    rows = max(len(group) for group in groups.values())
    size = (3.9 * len(groups), 1.0 + height * rows)
    figure, axes = plt.subplots(1, len(groups), figsize=size, squeeze=False)
    for axis, (title, group) in zip(axes[0], groups.items(), strict=True):
        for row, values in enumerate(map(np.asarray, group.values())):
            color = style("ppo")["color"] if row == 0 else style("grpo")["color"]
            axis.plot(
                [values.min(), values.max()], [row, row], color=color, linewidth=5, alpha=0.25
            )
            axis.plot(values, np.full(len(values), row), "o", color=color, markersize=4)
            axis.plot(values.mean(), row, "|", color=INK, markersize=13, markeredgewidth=2)
            if row == 0:
                axis.axvspan(values.min(), values.max(), color=color, alpha=0.08, linewidth=0)
        axis.set_yticks(range(len(group)), list(group))
        axis.set(title=title, xlabel=xlabel, ylim=(len(group) - 0.5, -0.5))
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
