"""The pictures that only lecture 02 draws: plain matplotlib, no arithmetic worth reading.

Each function takes numbers that the lecture has computed and returns a figure for
`lectures.figures.show`.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from lectures.figures import FAINT, INK, learning_curves, style

BASELINES = {  # key: (whose look, label)
    "none": ("raw", "no baseline"),
    "V": ("value_baseline", "the mean, b = V"),
    "b*": ("optimal_baseline", "the best, b = b*"),
}
LETTERS = {"A": ("#D55E00", "--"), "B": ("#0072B2", "-"), "C": ("#CC79A7", ":")}


def variance_by_skill(panels: dict) -> Figure:
    """Variance of one answer's estimate, relative to the best baseline's, one panel per family.

    panels : title → (x label, x (n,), {"none", "V", "b*": (n,)}, crossing or None)
    """
    figure, axes = plt.subplots(1, len(panels), figsize=(7.6, 3.3))
    for axis, (title, (xlabel, x, lines, crossing)) in zip(axes, panels.items(), strict=True):
        for key, values in lines.items():
            name, label = BASELINES[key]
            axis.semilogy(x, values, label=label, markevery=0.2, **style(name))
        if crossing is not None:
            axis.axvline(crossing, color=FAINT, linewidth=1)
            place = {"xy": (crossing, 0.03), "xycoords": ("data", "axes fraction")}
            shift = {"xytext": (4, 0), "textcoords": "offset points", "fontsize": 8.5}
            axis.annotate(f"p = {crossing:.2f}", color="#555555", **place, **shift)
        axis.set(title=title, xlabel=xlabel)
    axes[0].set_ylabel("variance of one answer")
    handles, labels = axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def parabola(b, variance, marks: dict, chosen: tuple, title: str, xlabel: str) -> Figure:
    """The variance as a function of the baseline, with special baselines marked.

    b, variance : (n,)   marks : "none", "V", "b*" → (b, variance)   chosen : (b, variance)
    """
    figure, axis = plt.subplots(figsize=(6.9, 3.2))
    axis.plot(b, variance, color=INK, linewidth=1.6)
    top, low = 1.16 * max(variance), marks["b*"][1]
    for key, (x, y) in marks.items():
        name, label = BASELINES[key]
        look = style(name)
        axis.vlines(x, 0, y, color=look["color"], linewidth=1, linestyle=":")
        point = {"color": look["color"], "marker": look["marker"], "markersize": 9}
        axis.plot([x], [y], linestyle="none", label=f"{label}: {y:.3g}", **point)
    x, y = chosen
    ring = {"markersize": 15, "markerfacecolor": "none", "markeredgecolor": INK}
    axis.plot([x], [y], "o", linestyle="none", label=f"yours, b = {x:.2f}: {y:.3g}", **ring)
    axis.set(title=title, xlabel=xlabel, ylabel="variance of one answer")
    axis.set(ylim=(min(0, low), top))
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1), title="variance", alignment="left")
    return figure


def lag(value, average, costs: dict) -> Figure:
    """A value and its moving average on the left, what three baselines cost on the right.

    value, average : (updates,)   costs : "none", "V", "lagging", "b*" → (updates,)
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.0))
    left.plot(value, label="V = J", **(style("value_baseline") | {"marker": ""}))
    left.plot(average, label="moving average", **(style("moving_average") | {"marker": ""}))
    left.set(title="the baseline runs behind", xlabel="updates", ylabel="points", ylim=(2.9, 5.1))
    left.legend(loc="lower right")
    looks = BASELINES | {"lagging": ("moving_average", "moving average")}
    for key, values in costs.items():
        name, label = looks[key]
        right.semilogy(values, label=label, **(style(name) | {"marker": ""}))
    right.set(title="variance of one answer", xlabel="updates")
    right.legend(fontsize=8.5, loc="lower left")
    return figure


def side_by_side(panels: dict, labels: dict) -> Figure:
    """Learning curves with their spread over seeds: title → {name: (seeds, updates)}."""
    figure, axes = plt.subplots(1, len(panels), figsize=(7.4, 3.4), sharey=True)
    for axis, (title, curves) in zip(axes, panels.items(), strict=True):
        learning_curves(curves, ylabel="", labels=labels, axis=axis)
        axis.set_title(title)
        axis.get_legend().remove()
    axes[0].set_ylabel("exact J (points)")
    handles, names = axes[-1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names))
    return figure


def loss_panels(curves: dict) -> Figure:
    """One panel per version, letter → (updates,) losses, all on one scale."""
    figure, axes = plt.subplots(1, len(curves), figsize=(7.4, 2.2), sharey=True)
    for axis, (letter, values) in zip(axes, curves.items(), strict=True):
        axis.axhline(0, color=FAINT, linewidth=0.8)
        axis.plot(values, color=LETTERS[letter][0], linewidth=1)
        axis.set(title=letter, xlabel="updates")
    axes[0].set_ylabel("loss")
    return figure


def weight_maps(rewards, maps: dict, curves: dict) -> Figure:
    """The rewards, the weight that each answer receives, and the exact J of every seed.

    rewards, maps[letter] : (prompts, group)   curves : letter → (seeds, updates)
    """
    figure, axes = plt.subplots(
        1, 2 + len(maps), figsize=(7.8, 3.0), width_ratios=(*[1] * (1 + len(maps)), 1.35)
    )
    _heat(axes[0], rewards, "rewards", "Greys", (1, 6))
    axes[0].set_ylabel("prompt, hardest first")
    for axis, (letter, weights) in zip(axes[1:], maps.items(), strict=False):
        _heat(axis, weights, f"weights, {letter}", "RdBu", (-2.2, 2.2))
        axis.set_yticks([])
        for row, total in enumerate(np.asarray(weights).sum(1)):
            text = f"{0 if abs(total) < 5e-3 else total:+.1f}".replace("-", "−").replace(
                "+0.0", "0"
            )
            axis.text(weights.shape[1] - 0.2, row, text, va="center", fontsize=8)
    for letter, runs in curves.items():
        color, line = LETTERS[letter]
        axes[-1].plot(np.asarray(runs).T, line, color=color, linewidth=1)
        place = {"color": color, "weight": "bold", "va": "center"}
        lift = {"A": -0.07, "B": 0.0, "C": 0.07}[letter]
        axes[-1].text(1.03 * runs.shape[1], float(runs[:, -1].mean()) + lift, letter, **place)
    axes[-1].set(title="exact J", xlabel="updates")
    return figure


def _heat(axis, table, title: str, colours: str, limits: tuple) -> None:
    axis.imshow(np.asarray(table), cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
    axis.set_title(title, fontsize=10)
    axis.set(xticks=[], xlabel="8 answers", yticks=range(len(table)))
    axis.grid(False)
    axis.tick_params(length=0)
