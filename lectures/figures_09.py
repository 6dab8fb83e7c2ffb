"""The pictures that only lecture 09 draws: plain matplotlib, no arithmetic worth reading.

Each function takes numbers that the lecture has computed and returns a figure for
`lectures.figures.show`.
"""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from lectures.figures import FAINT, INK, learning_curves, style
from lectures.figures_03 import LETTERS

AVERAGES = {"per sequence": "grpo", "per token": "dapo", "fixed length": "dr_grpo"}
PANELS = ("pass rate", "right answers", "wrong answers", "all answers")


def lengths(seen: dict) -> Figure:
    """Pass rate and mean lengths over the updates: average → (steps + 1, 4, runs).

    With several averages, the means near the start are drawn once more, enlarged.
    """
    figure, axes = plt.subplots(1, 4, figsize=(8.6, 3.3))
    starts = next(iter(seen.values()))[0, :, 0].tolist()
    for row, (axis, title, first) in enumerate(zip(axes, PANELS, starts, strict=True)):
        curves = {AVERAGES[name]: path[:, row].T for name, path in seen.items()}
        learning_curves(curves, ylabel="", axis=axis)
        axis.get_legend().remove()
        axis.set(title=title, ylim=(0, 1.03 if row == 0 else 64))
        if row > 0:
            axis.set_yticks((0, 16, 32, 48, 64))
            axis.axhline(first, color=FAINT, linewidth=1, linestyle=":")
    axes[0].set_ylabel("share of answers")
    axes[1].set_ylabel("mean length (tokens)")
    for axis in axes[2:]:
        axis.tick_params(labelleft=False)
    if len(seen) > 1:
        for row, place in ((1, (0.36, 0.54, 0.6, 0.36)), (2, (0.36, 0.07, 0.6, 0.2))):
            _enlarged(axes[row].inset_axes(place), seen, row, starts[row])
        handles = [line for line in axes[0].get_lines() if not line.get_label().startswith("_")]
        figure.legend(handles, list(seen), loc="outside lower center", ncols=len(seen))
    return figure


def _enlarged(axis, seen: dict, row: int, first: float) -> None:
    """Means of one row within two tokens of the start."""
    for name, path in seen.items():
        look = style(AVERAGES[name])
        axis.plot(path[:, row].mean(1), look["linestyle"], color=look["color"], linewidth=1.6)
    axis.axhline(first, color=FAINT, linewidth=1, linestyle=":")
    axis.set(
        ylim=(first - 1.9, first + 1.9), xticks=(), yticks=(round(first) - 1, round(first) + 1)
    )
    axis.tick_params(labelsize=7.5, length=2)
    axis.grid(False)
    axis.spines[:].set(visible=True, color=FAINT)


def lettered(curves: dict, ylabel: str) -> Figure:
    """One curve per letter over the updates; letters that would overlap are spread apart."""
    figure, axis = plt.subplots(figsize=(6.6, 2.9))
    last = len(next(iter(curves.values()))) - 1
    below = -1.0
    for letter in sorted(curves, key=lambda k: float(curves[k][-1])):
        color, line = LETTERS[letter]
        line = (0, (5, 1.5, 1, 1.5, 1, 1.5)) if letter == "D" else line  # B is the dotted one
        axis.plot(curves[letter], linestyle=line, color=color, linewidth=1.8)
        end = float(curves[letter][-1])
        below = max(end, below + 0.06)
        axis.plot((last, 1.035 * last), (end, below), color=color, linewidth=0.8, clip_on=False)
        axis.text(1.05 * last, below, letter, color=color, weight="bold", va="center")
    axis.set(xlabel="updates", ylabel=ylabel)
    return figure


def sharing(answers, cosines: dict) -> Figure:
    """Cosine with ∇J against the answers that share a denominator: baseline → (points,)."""
    figure, axis = plt.subplots(figsize=(6.6, 3.2))
    looks = {"no baseline": ("o", ":"), "b = V": ("s", "-")}
    for name, values in cosines.items():
        marker, line = looks[name]
        axis.semilogx(answers, values, line, marker=marker, color=style("dapo")["color"])
        axis.annotate(
            name, (answers[1], values[1]), (8, -12), textcoords="offset points", fontsize=9
        )
        axis.plot(answers[0], values[0], "D", color=style("grpo")["color"], markersize=9, zorder=5)
    axis.axhline(1, color=style("dr_grpo")["color"], linestyle="--")
    axis.text(answers[-1], 0.975, "fixed length, or the sum", ha="right", va="top", fontsize=9)
    axis.annotate(
        "one answer:\nthe mean per sequence",
        (answers[0], cosines["no baseline"][0]),
        (10, 0),
        textcoords="offset points",
        fontsize=9,
        va="center",
        color=INK,
    )
    axis.set_xticks(answers, [str(count) for count in answers])
    axis.minorticks_off()
    axis.set(xlabel="answers that share a denominator", ylabel="cosine with ∇J", ylim=(0.4, 1.04))
    return figure
