"""The pictures that only lecture 05 draws: plain matplotlib, no arithmetic worth reading.

Each function takes numbers that the lecture has computed and returns a figure for
`lectures.figures.show`.
"""

import re

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from lectures.figures import FAINT, INK, compass, style

K = {  # the colours of the widget, doubled by line and marker
    "k1": {"color": "#0072B2", "linestyle": ":", "marker": "o"},
    "k2": {"color": "#D55E00", "linestyle": "-", "marker": "s"},
    "k3": {"color": "#009E73", "linestyle": "--", "marker": "^"},
}
FORMULAS = {
    "k1": lambda ell: ell,
    "k2": lambda ell: ell**2 / 2,
    "k3": lambda ell: np.expm1(-ell) + ell,
}
QUIET = "#555555"


def bill_and_distance(free, billed, logged) -> Figure:
    """KL over batches: (seeds, batches) without and with the penalty, and what was logged."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.0), sharey=True)
    left.plot(logged[0], color=style("wrong")["color"], linewidth=0.9, label="logged: mean of k1")
    left.plot(billed[0], color=INK, linewidth=2.4, label="exact KL")
    left.set(title="the log of one run, β = .5", xlabel="batches of 64 answers")
    left.set(ylabel="nats per answer", ylim=(-0.2, 2.9))
    for runs, name, label in (
        (free, "exact", "β = 0"),
        (billed, "wrong", "β = .5, k1 in the loss"),
    ):
        look = style(name) | {"marker": "", "linestyle": "-" if name == "exact" else "--"}
        look["linewidth"] = 3.5 if name == "exact" else 1.8
        right.plot(np.asarray(runs).mean(0), label=label, **look)
        low, high = np.asarray(runs).min(0), np.asarray(runs).max(0)
        band = {"color": look["color"], "alpha": 0.35, "linewidth": 0}
        right.fill_between(np.arange(len(low)), low, high, **band)
    right.set(title="eight runs each", xlabel="batches of 64 answers")
    for axis in (left, right):
        axis.legend(loc="lower right")
    return figure


def two_directions(target, reverse, forward) -> Figure:
    """Three (3, 3) tables of probabilities: the target and the two nearest policies."""
    figure, axes = plt.subplots(1, 3, figsize=(7.2, 2.75))
    titles = ("target", "nearest in KL(π ‖ target)", "nearest in KL(target ‖ π)")
    for axis, table, title in zip(axes, (target, reverse, forward), titles, strict=True):
        axis.imshow(table, cmap="Blues", vmin=0, vmax=1)
        for (row, column), p in np.ndenumerate(np.asarray(table)):
            color = "white" if p > 0.6 else INK
            look = {"ha": "center", "va": "center", "fontsize": 10, "color": color}
            axis.text(column, row, f"{p:.2f}".lstrip("0") if p < 0.995 else "1", **look)
        axis.set_title(title, fontsize=10)
        axis.set(xticks=range(3), yticks=range(3), xlabel="second token")
        axis.grid(False)
        axis.tick_params(length=0)
    axes[0].set_ylabel("first token")
    return figure


def three_estimators() -> Figure:
    """Left: k against ℓ. Right: one token's standard deviation, in units of the KL, against KL."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.2))
    line = np.linspace(-3, 3, 121)
    step = np.logspace(-1.5, 1.1, 60)[:, None] * np.array([0.5, -0.5])
    probs = 1 / (1 + np.exp(-2 * step))  # (points, 2), against (½, ½)
    ell = np.log(2 * probs)
    kl = (probs * ell).sum(1)
    for name, k in FORMULAS.items():
        look = K[name] | {"marker": ""}
        left.plot(line, k(line), label=name, **look)
        mean = (probs * k(ell)).sum(1, keepdims=True)
        spread = np.sqrt((probs * (k(ell) - mean) ** 2).sum(1))
        right.loglog(kl, spread / kl, label=name, **look)
    left.axhline(0, color=FAINT, linewidth=1)
    left.axvline(0, color=FAINT, linewidth=1)
    left.set(xlabel="ℓ = log π − log π_ref (nats)", ylabel="nats", ylim=(-2.6, 5))
    left.set(title="the three as functions of ℓ")
    left.text(-0.1, -2.4, "rarer than\nat home", ha="right", fontsize=8.5, color=QUIET)
    left.text(0.15, -2.4, "more frequent\nthan at home", fontsize=8.5, color=QUIET)
    right.set(xlabel="KL(π ‖ π_ref) (nats)", ylabel="standard deviation / KL")
    right.set(title="noise of one answer")
    right.legend(loc="upper center")
    return figure


def kl_compass(truth, placements) -> Figure:
    """The gradient compass with ∇KL as its north: "k1 loss" and so on → (mean, samples)."""
    titles = {name: name.replace(" ", " in the ") for name in placements}
    same_colour = {"k1": "grpo", "k2": "ppo", "k3": "gspo"}  # as in K
    colours = {name: same_colour[name[:2]] for name in placements}
    figure = compass(truth, placements, labels=titles, styles=colours, limit=1.9)
    for axis in figure.axes:
        for label in (axis.xaxis.label, axis.yaxis.label, *axis.texts):
            text = label.get_text().replace("lowers J", "wrong way")
            text = re.sub(r"length 0.00, cosine \S+", "length 0.00", text)  # of no direction
            text = re.sub(r"\n(wrong side \S+), zero \S+", r", \1", text)  # none is zero here
            label.set_text(text.replace("∇J", "∇KL"))
    return figure


FLOWS = {  # name → text, colour, line, place of the text, its alignment
    "no KL": ("no KL,\nk1 in the loss", QUIET, "-", (2.55, 4.8), "center"),
    "k3 reward": ("k3 in the reward", K["k3"]["color"], ":", (2.62, 5.07), "center"),
    "k2 reward": ("k2 in the reward", K["k2"]["color"], ":", (1.82, 4.6), "left"),
    "exact KL": (
        "exact KL,\nk2 in the loss,\nk1 in the reward",
        "#0072B2",
        "-",
        (1.2, 4.2),
        "left",
    ),
    "k3 loss": ("k3 in the loss", K["k3"]["color"], "--", (0.9, 3.93), "left"),
}


def flows(paths: dict, frontier, best) -> Figure:
    """J against KL: paths name → (points, 2) of (KL, J), the frontier, one optimum."""
    figure, axis = plt.subplots(figsize=(7.2, 4.4))
    axis.plot(*np.asarray(frontier).T, color=INK, linewidth=1.2, linestyle="--")
    axis.text(1.25, 4.79, "no policy lies above", fontsize=9, rotation=20, ha="center")
    thin = {"arrowstyle": "-", "color": FAINT, "shrinkB": 7}
    for name, (text, color, line, place, align) in FLOWS.items():
        path = np.asarray(paths[name])
        axis.plot(*path.T, color=color, linestyle=line, linewidth=2)
        axis.plot(*path[-1], "o", color=color, markersize=8, markeredgecolor="white", zorder=5)
        look = {"fontsize": 9, "color": color, "ha": align, "va": "center"}
        leader = thin if name in ("exact KL", "k3 loss") else None
        axis.annotate(text, path[-1], place, arrowprops=leader, **look)
    best = tuple(map(float, best))
    axis.plot(*best, "*", color=INK, markersize=15, zorder=6)
    look = {"fontsize": 9, "ha": "center", "arrowprops": thin}
    axis.annotate("Gibbs optimum\nfor β = .5", best, (0.36, 4.7), **look)
    axis.plot(*np.asarray(paths["no KL"])[0], "s", color=INK, markersize=7, zorder=6)
    axis.text(0.06, 3.64, "home", fontsize=9, va="center")
    axis.set(xlabel="KL(π ‖ home), nats per answer", ylabel="J (points)")
    axis.set(xlim=(-0.05, 3.0), ylim=(3.58, 5.14))
    return figure


def cross_terms(independent, tree) -> Figure:
    """|E[ℓ_t u_k]| as two (3, 3) tables: rows are the token k that is pushed, columns ℓ_t."""
    figure, axes = plt.subplots(1, 2, figsize=(6.6, 3.0))
    for axis, table, title in zip(
        axes, (independent, tree), ("independent positions", "tree"), strict=True
    ):
        table = np.asarray(table)
        axis.imshow(table / table.max(), cmap="Blues", vmin=0, vmax=1.3)
        for (k, t), size in np.ndenumerate(table):
            text = "0" if size < 1e-9 else f"{size:.2f}"
            weight = "bold" if k < t and size > 1e-9 else "normal"
            color = "white" if size > 0.8 * table.max() else INK
            look = {"ha": "center", "va": "center", "fontsize": 11, "weight": weight}
            look["color"] = color
            axis.text(t, k, text, **look)
        axis.set(xticks=range(3), yticks=range(3), xlabel="t: whose log-ratio ℓ")
        axis.set_title(title, fontsize=10.5)
        axis.grid(False)
        axis.tick_params(length=0)
    axes[0].set_ylabel("k: whose score vector u")
    return figure


def many_trees(cosines, ends: dict) -> Figure:
    """Left: histogram of cosines. Right: distance from the optimum, a dot per reference."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.1))
    left.hist(np.asarray(cosines), bins=np.linspace(0.36, 1, 33), color=K["k2"]["color"], alpha=0.8)
    left.axvline(0.864, color=INK, linewidth=1.4, linestyle="--")
    left.text(
        0.85, 0.5, "the widget's tree", ha="right", fontsize=9, transform=left.get_xaxis_transform()
    )
    left.set(title="direction of per-token k2", xlabel="cosine with ∇KL", ylabel="trees")
    dice = np.random.default_rng(0)
    for row, (label, distance) in enumerate(ends.items()):
        distance = np.asarray(distance)
        height = row + dice.uniform(-0.22, 0.22, len(distance))
        look = {"color": K[label[:2]]["color"], "markersize": 4.5, "alpha": 0.6}
        right.plot(distance, height, ".", **look)
        right.plot([np.median(distance)] * 2, [row - 0.33, row + 0.33], color=INK, linewidth=2)
    right.set_yticks(range(len(ends)), list(ends))
    right.set(title="where training ends", xlabel="total variation from the optimum")
    right.set(ylim=(len(ends) - 0.5, -0.5), xlim=(-0.01, 0.29))
    return figure


def leash_and_anchor(runs: dict) -> Figure:
    """KL(old‖new) of each batch, and KL to home, over batches: label → (batches, 2)."""
    figure, (step, home) = plt.subplots(1, 2, figsize=(7.6, 3.3))
    looks = ((FAINT, "-"), ("#D55E00", "--"), ("#0072B2", "-."), ("#117733", "-"))
    looks += (("#CC5F9B", ":"),)
    for (label, path), (color, line) in zip(runs.items(), looks, strict=True):
        path = np.asarray(path)
        x = np.arange(1, len(path) + 1)
        step.semilogy(x, np.maximum(path[:, 0], 1e-6), line, color=color, label=label)
        home.plot(x, path[:, 1], line, color=color, label=label)
    step.set(title="this step: KL(old ‖ new)", xlabel="batches", ylabel="nats per answer")
    step.set(ylim=(1e-4, 4))
    home.set(title="home: KL(π ‖ first policy)", xlabel="batches", ylabel="nats per answer")
    handles, labels = home.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=5, fontsize=8)
    return figure
