"""The pictures that only lecture 02 draws: plain matplotlib, no arithmetic worth reading.

Each function takes numbers that the lecture has computed and returns a figure for
`lectures.figures.show`.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from lectures.figures import FAINT, learning_curves, style

LABELS = {
    "raw": "raw reward",
    "value_baseline": "V subtracted",
    "leave_one_out": "leave-one-out",
    "group_centered": "group-centred",
    "group_standardized": "standardised (ddof 1)",
    "max_only": "max only",
}
BASELINES = {  # look: label
    "raw": "no baseline",
    "value_baseline": "the mean, b = V",
    "optimal_baseline": "the best, b = b*",
}
LETTERS = {"A": ("#D55E00", "--"), "B": ("#0072B2", "-"), "C": ("#CC79A7", ":")}


def variance_by_skill(arms: tuple, hits: tuple, graded: tuple) -> Figure:
    """Variance of one answer's estimate with each of BASELINES, one panel per family.

    arms, hits, graded : x (n,), variances (2 or 3, n), where the mean stops helping (or None)
    """
    panels = {
        "two arms, 1 or 0": ("pass rate p", arms, 5e-6),
        "sorter, right/wrong": ("pass rate p", hits, 6e-4),
        "sorter, partial credit": ("skill (nats)", graded, 0.04),
    }
    figure, axes = plt.subplots(1, 3, figsize=(7.6, 3.3))
    for axis, (title, (xlabel, (x, lines, crossing), low)) in zip(
        axes, panels.items(), strict=True
    ):
        for (look, label), values in zip(BASELINES.items(), lines, strict=False):
            axis.semilogy(x, values, label=label, markevery=len(x) // 5, **style(look))
        axis.set(title=title, xlabel=xlabel)
        axis.set_ylim(bottom=low)
        if crossing is not None:
            axis.axvline(crossing, color=FAINT, linewidth=1)
            place = {"xy": (crossing, 0.97), "xycoords": ("data", "axes fraction"), "va": "top"}
            shift = {"xytext": (4, 0), "textcoords": "offset points", "fontsize": 8.5}
            axis.annotate(f"p = {crossing:.2f}", color="#555555", **place, **shift)
    axes[0].set_ylabel("variance of one answer")
    handles, labels = axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def lag(value, average, costs) -> Figure:
    """A value and its moving average on the left, what four baselines cost on the right.

    value, average : (updates,)   costs : (4, updates), as in BASELINES, then the moving average
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.2))
    left.plot(value, markevery=10, **style("value_baseline"))
    left.plot(average, markevery=10, **style("moving_average"))
    left.set(title="the baseline runs behind", xlabel="updates", ylabel="points", ylim=(-0.1, 5.1))
    looks = BASELINES | {"moving_average": "moving average"}
    for (look, label), values in zip(looks.items(), costs, strict=True):
        right.semilogy(values, label=label, markevery=10, **style(look))
    right.set(title="variance of one answer", xlabel="updates")
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def side_by_side(panels: dict) -> Figure:
    """Learning curves with their spread over seeds: title → {name: (seeds, updates)}."""
    figure, axes = plt.subplots(1, len(panels), figsize=(7.4, 3.4), sharey=True)
    for axis, (title, curves) in zip(axes, panels.items(), strict=True):
        learning_curves(curves, ylabel="", labels=LABELS, axis=axis)
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
            text = "0" if abs(total) < 5e-3 else f"{total:+.1f}".replace("-", "−")
            axis.text(weights.shape[1] - 0.2, row, text, va="center", fontsize=8)
    for letter, runs in curves.items():
        color, line = LETTERS[letter]
        axes[-1].plot(np.asarray(runs).T, line, color=color, linewidth=1)
        place = {"color": color, "weight": "bold", "va": "center"}
        lift = {"A": 0.0, "B": 0.02, "C": -0.04}[letter]
        axes[-1].text(1.03 * runs.shape[1], float(runs[:, -1].mean()) + lift, letter, **place)
    axes[-1].set(title="exact J", xlabel="updates")
    return figure


def _heat(axis, table, title: str, colours: str, limits: tuple) -> None:
    axis.imshow(np.asarray(table), cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
    axis.set_title(title, fontsize=10)
    axis.set(xticks=[], xlabel="8 answers", yticks=range(len(table)))
    axis.grid(False)
    axis.tick_params(length=0)
