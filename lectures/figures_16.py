"""The pictures of lecture 16. Each takes numbers the lecture has computed and returns a figure.

A rule, a size of data set and a remedy each wear one colour throughout the lecture (`LOOKS`).
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from lectures.figures import FAINT, INK, WRONG_SIDE, style

# what is drawn → whose colour it wears
WEARS = {
    "inclusion and order": "wrong",
    "multiset, then order": "right",
    "multiset and order": "second",
    "position match": "first",
    "40 comparisons": "wrong",
    "100 comparisons": "second",
    "1,000 comparisons": "right",
    "nothing": "raw",
    "partial credit": "first",
    "noise": "supervised",
    "novelty": "second",
    "hindsight": "value_baseline",
    "curriculum": "group_standardized",
}
LOOKS = {name: style(method) for name, method in WEARS.items()}


def reward_and_truth(runs: dict[str, np.ndarray], slack: dict[str, float]) -> Figure:
    """runs : rule → (2, runs): reward as a share of its maximum, share of right answers.

    slack : rule → (maximum − second-best level) / maximum, so that right ≥ 1 − (1 − reward) /
    slack; 0 where another answer earns the maximum too, and nothing follows.
    """
    figure, axis = plt.subplots(figsize=(6.4, 3.9))
    for name, (reward, right) in runs.items():
        look = LOOKS[name]
        axis.plot(reward, right, look["marker"], color=look["color"], label=name, markersize=8)
        if slack[name]:
            at = np.array([1 - slack[name], 1])
            axis.plot(
                at, 1 - (1 - at) / slack[name], color=look["color"], linestyle=":", linewidth=1.4
            )
    axis.set(xlabel="mean reward / its maximum", ylabel="right answers", ylim=(0, 1.05))
    axis.set_xlim(0.84, 1.005)
    axis.legend(loc="lower right")
    return figure


def comparisons(accuracy: dict[int, list], ceiling: float, truth: dict, home: float) -> Figure:
    """Left: accuracy by number of pairs, a point per data set. Right: true J on the way out.

    accuracy : pairs → accuracies          ceiling : that of the true reward
    truth    : name → (KL grid (points,), J (data sets, points))       home : J at the start
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.6), width_ratios=(1, 1.25))
    sizes = list(accuracy)
    for size, values in accuracy.items():
        left.plot([size] * len(values), values, ".", color=FAINT)
    left.plot(sizes, [np.mean(accuracy[n]) for n in sizes], "o-", color=INK)
    left.axhline(ceiling, color=INK, linestyle="--", linewidth=1.2)
    left.text(sizes[0], ceiling + 0.004, "true reward", fontsize=9)
    left.axhline(0.5, color=FAINT, linestyle=":", linewidth=1.2)
    left.text(sizes[-1], 0.504, "coin", fontsize=9, ha="right", color="#555555")
    left.set(xscale="log", xlabel="comparisons", ylabel="fresh pairs put in order")
    left.set_xticks(sizes, [f"{n:,}" for n in sizes], rotation=0)
    left.minorticks_off()
    for name, (grid, J) in truth.items():
        look = LOOKS[name]
        right.plot(grid, J.T, color=look["color"], alpha=0.3, linewidth=0.9)
        right.plot(grid, J.mean(0), **look | {"linewidth": 2.6}, markevery=12, label=name)
    right.axhline(home, color=INK, linestyle="--", linewidth=1.2)
    right.text(grid[-1], home + 0.05, "home", fontsize=9, ha="right")
    right.set(xlabel="KL to home (nats per answer)", ylabel="true J (points of 4)")
    right.legend(loc="lower left", fontsize=8.5)
    return figure


def rare(rates: dict[str, np.ndarray]) -> Figure:
    """remedy → pass rate (seeds, updates + 1): one thin line per seed, one panel per remedy."""
    columns = 3
    rows = -(-len(rates) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(8.4, 2.15 * rows), sharex=True, sharey=True, squeeze=False
    )
    for axis, (name, values) in zip(axes.flat, rates.items(), strict=False):
        for run in np.asarray(values):
            axis.plot(run, color=LOOKS[name]["color"], linewidth=1.5, alpha=0.8)
        axis.set_title(name, fontsize=10)
        axis.set(ylim=(-0.03, 1.03))
    for axis in axes[-1]:
        axis.set_xlabel("updates")
    for axis in axes[:, 0]:
        axis.set_ylabel("pass rate")
    return figure


def front(points, best, chosen, gated) -> Figure:
    """Every answer as (tokens, quality); the Pareto front, and what two recipes pick.

    points : (answers, 2) quality, −tokens    best : (n, 2) the Pareto front
    chosen : (n, 2) what some weighted sum picks
    gated  : (2,) what "at most three tokens, then quality" picks
    """
    points, best, chosen, gated = (
        np.asarray(x, dtype=float) for x in (points, best, chosen, gated)
    )
    figure, axis = plt.subplots(figsize=(7.4, 3.3))
    axis.axvspan(3.5, 5.3, color=WRONG_SIDE, zorder=0, linewidth=0)
    axis.text(3.6, 4.3, "forbidden by the gate", fontsize=9, color="#7a4a36")
    axis.plot(-points[:, 1], points[:, 0], "o", color=FAINT, markersize=4, label="all answers")
    axis.plot(-chosen[:, 1], chosen[:, 0], "--", color=style("first")["color"], linewidth=1.3)
    axis.plot(
        -chosen[:, 1],
        chosen[:, 0],
        "s",
        color=style("first")["color"],
        markersize=9,
        label="picked by some weight",
    )
    axis.plot(-gated[1], gated[0], "*", color=style("right")["color"], markersize=13, label="gate")
    ring = {"markersize": 17, "markerfacecolor": "none", "markeredgecolor": INK}
    axis.plot(-best[:, 1], best[:, 0], "o", label="Pareto front", **ring)
    axis.set(xlabel="tokens", ylabel="quality (points)", xlim=(0.7, 5.3), ylim=(-0.5, 4.7))
    axis.set_xticks(range(1, 6))
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9, labelspacing=1)
    return figure
