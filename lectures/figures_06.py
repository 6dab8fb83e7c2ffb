"""The pictures that only lecture 06 draws: plain matplotlib, no arithmetic worth reading.

Each function takes numbers that the lecture has computed and returns a figure for
`lectures.figures.show`.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from lectures.figures import FAINT, framed_cells, signed, style

TOKENS = "012E"
UP, DOWN = "#2f6fb0", "#b2402f"
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
CRITICS = {  # name: (colour, line, marker)
    "perfect": ("#117733", "-", "o"),
    "256 answers": ("#0072B2", "--", "s"),
    "untrained": ("#882255", "-.", "X"),
    "3 points too low": ("#D58A00", ":", "^"),
}
LETTERS = {
    "A": ("#CC79A7", ":"),
    "B": ("#D55E00", "--"),
    "C": ("#0072B2", "-"),
    "D": ("#777777", "-."),
    "E": ("#009E73", (0, (1, 1))),
}


def token_map(rows: dict, tokens: list[str], *, right: str | None = None, limit: float) -> Figure:
    """A number per token: label → (tokens,). Entries unlike row `right` are framed."""
    figure, axis = plt.subplots(figsize=(7.4, 0.75 + 0.36 * len(rows)))
    table = np.stack([np.asarray(row) for row in rows.values()])
    usual = table if right is None else np.asarray(rows[right])
    framed_cells(axis, table, np.abs(table - usual) > 1e-9, limit=limit)
    axis.set_xticks(range(len(tokens)), tokens, fontsize=9)
    axis.set_yticks(range(len(rows)), list(rows))
    return figure


def two_tellings(picked: list[list[int]], answers, whole, single) -> Figure:
    """Tokens of the picked answers and the weight they receive: one for all, and one for each.

    picked : token ids without padding; answers : (answer, time); whole, single : the same shape
    """
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 2.5), sharey=True)
    titles = "the whole answer’s surplus, to each token", "what each token changed"
    rows = [_row_of(tokens, answers) for tokens in picked]
    marks = [[TOKENS[token] for token in tokens] for tokens in picked]
    flips = (np.asarray(whole) * np.asarray(single) < 0)[rows]
    for axis, weights, title in zip(axes, (whole, single), titles, strict=True):
        table = np.array(weights)[rows]
        for row, tokens in zip(table, picked, strict=True):
            row[len(tokens) :] = np.nan
        framed_cells(axis, table, flips, limit=2.6, marks=marks)
        axis.set(xticks=[], yticks=[])
        axis.set_title(title, fontsize=10)
    return figure


def _row_of(prefix: list[int], answers) -> int:
    """Where the answer that is this prefix, then the end, stands in the list."""
    time = answers.shape[1]
    return answers.tolist().index([*prefix, *[3] * (time - len(prefix))])


def tree(path: list[int], answers, values, chances) -> Figure:
    """The tree of answers along one of them, with the siblings that branch off.

    path : token ids of the answer drawn in the top row; answers : (answer, time), padded with 3;
    values : (answer, time + 1) of each prefix; chances : (answer, time, vocab) of each next token
    """

    figure, axis = plt.subplots(figsize=(7.6, 3.7))
    axis.axis("off")
    before = float(values[0, 0])
    _node(axis, 0, 0, "nothing yet", before, ended=False)
    for depth, token in enumerate(path):
        siblings = [token, *(v for v in range(4) if v != token)]
        for y, v in zip((0, -1, -2, -3), siblings, strict=True):
            prefix = [*path[:depth], v]
            value = float(values[_row_of(prefix, answers), depth + 1])
            chance = float(chances[_row_of(path, answers), depth, v])
            color = UP if value > before else DOWN
            wide = 1 + 2 * abs(value - before)
            bend = [(depth + 0.23, 0), (depth + 0.62, 0), (depth + 0.3, y), (depth + 0.8, y)]
            curve = Path(bend, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
            edge = {"facecolor": "none", "edgecolor": color, "linewidth": wide, "alpha": 0.75}
            axis.add_patch(PathPatch(curve, **edge))
            words = " ".join(TOKENS[w] for w in prefix)
            _node(axis, depth + 1, y, words, value, ended=v == 3 or depth == len(path) - 1)
            place = {"ha": "center", "fontsize": 8, "color": color, "weight": "bold"}
            label = f"p {chance:.2f}   {signed(value - before)}"
            axis.text(depth + 1, y - 0.56, label, va="bottom", bbox=PAPER, **place)
        before = float(values[_row_of(path[: depth + 1], answers), depth + 1])
    axis.set(xlim=(-0.45, len(path) + 0.45), ylim=(-3.65, 0.45))
    return figure


def _node(axis, x: float, y: float, prefix: str, value: float, *, ended: bool) -> None:
    box = {"boxstyle": "round,pad=0.3", "edgecolor": "#8a8a8a"}
    box |= {
        "facecolor": "#fdf1d8" if ended else "#f4f4f4",
        "edgecolor": "#d8a93a" if ended else FAINT,
    }
    name = "R" if ended else "V"
    text = f"{prefix}\n{name} = {value:.2f}"
    axis.text(x, y, text, ha="center", va="center", fontsize=8.5, bbox=box, zorder=3)


def critic_learning(curves: dict) -> Figure:
    """Root mean square error of critics against answers seen: label → (seeds, batches)."""
    looks = {
        "table, whole return": style("first"),
        "table, next value": style("second"),
        "linear, whole return": {"color": "#B07900", "linestyle": "-.", "marker": "d"},
    }
    figure, axis = plt.subplots(figsize=(7.0, 3.1))
    for label, values in curves.items():
        runs = np.asarray(values)
        x = 8 * np.arange(runs.shape[1])
        look = looks[label] | {"markevery": 25, "linewidth": 1.8}
        axis.plot(x, runs.mean(0), label=label, **look)
        half = np.quantile(runs, (0.25, 0.75), axis=0)
        axis.fill_between(x, *half, color=look["color"], alpha=0.18, linewidth=0)
    axis.set(xlabel="answers seen", ylabel="error of the critic (points)", ylim=(0, None))
    axis.legend()
    return figure


def lambda_curves(lambdas, bias: dict, variance: dict, counts: tuple[int, int]) -> Figure:
    """Bias, variance and the squared error of averages of answers; name → (lambdas,)."""
    figure, axes = plt.subplots(1, 4, figsize=(8.2, 3.3), width_ratios=(1.1, 1.1, 1, 1))
    panels = [bias, variance]
    panels += [{k: bias[k] ** 2 + variance[k] / n for k in bias} for n in counts]
    titles = ["bias", "variance", *(f"error², {n} answers" for n in counts)]
    for axis, panel, title in zip(axes, panels, titles, strict=True):
        for name, values in panel.items():
            color, line, marker = CRITICS[name]
            look = {"color": color, "linestyle": line, "marker": marker, "markersize": 4}
            axis.plot(lambdas, values, label=name, markevery=10, linewidth=1.8, **look)
            if "error" in title:
                best = int(np.argmin(values))
                axis.plot(
                    lambdas[best],
                    values[best],
                    "*",
                    color=color,
                    markersize=11,
                    zorder=5,
                    markeredgecolor="white",
                    clip_on=False,
                )
        axis.set_title(title, fontsize=10)
        axis.set(xlabel="λ", xticks=(0, 0.5, 1))
    for axis in axes[2:]:
        axis.set_yscale("log")
        axis.set_yticks((0.001, 0.01, 0.1, 1), ("0.001", "0.01", "0.1", "1"))
        axis.minorticks_off()
        axis.set_ylim(0.0015, 6)
        axis.axhline(1, color=FAINT, linewidth=1, linestyle=(0, (1, 2)))
    axes[0].set_ylabel("in units of |∇J| (bias), |∇J|² (rest)", fontsize=9)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def offset_paths(paths: dict) -> Figure:
    """Exact J and mean length over updates; (error, lambda) → (2, updates)."""
    figure, axes = plt.subplots(1, 2, figsize=(7.4, 3.2))
    looks = {
        (0, 0.0): ("right critic", "#117733", "-"),
        (3, 0.0): ("3 too high, λ = 0", "#D58A00", "-."),
        (-3, 0.95): ("3 too low, λ = .95", "#56B4E9", "--"),
        (-3, 0.5): ("3 too low, λ = .5", "#0072B2", ":"),
        (-3, 0.0): ("3 too low, λ = 0", "#882255", "-"),
    }
    for i, axis in enumerate(axes):
        for key, (label, color, line) in looks.items():
            axis.plot(paths[key][i], line, color=color, label=label, linewidth=2)
        axis.set_xlabel("exact updates")
    axes[0].set(title="J (points)", ylim=(-0.1, 4.1))
    axes[1].set(title="mean length (tokens)", ylim=(0.9, 4.1))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def lettered(curves: dict, ylabel: str, limits: tuple[float, float], *, log=False) -> Figure:
    """A curve per seed over the updates, the letter at its right end: letter → (seeds, points).

    log : logarithmic axis, and running means of eight updates
    """
    figure, axis = plt.subplots(figsize=(6.6, 2.9))
    axis.set(xlabel="updates", ylabel=ylabel, yscale="log" if log else "linear", ylim=limits)
    ends: list[tuple[float, str]] = []
    for letter, runs in curves.items():
        color, line = LETTERS[letter]
        shown = np.asarray(runs)
        if log:
            points = range(shown.shape[1])
            shown = np.stack([shown[:, max(0, i - 7) : i + 1].mean(1) for i in points], 1)
            shown = shown.clip(limits[0])
        axis.plot(shown.T, linestyle=line, color=color, linewidth=1.4, alpha=0.85)
        last = [axis.transData.transform((0, min(end, limits[1]))) for end in shown[:, -1]]
        heights = sorted(axis.transAxes.inverted().transform(end)[1] for end in last)
        apart = [h for i, h in enumerate(heights) if i == 0 or h - heights[i - 1] > 0.3]
        ends += [(h, letter) for h in apart]
    below = 1.08
    for height, letter in sorted(ends, reverse=True):  # from the top, each below the last one
        below = min(height, below - 0.085)
        place = {"transform": axis.transAxes, "va": "center", "weight": "bold"}
        axis.text(1.015, below, letter, color=LETTERS[letter][0], **place)
    axis.set_xlim(0, shown.shape[1] - 1)
    return figure
