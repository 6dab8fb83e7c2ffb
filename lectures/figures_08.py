"""The pictures that only lecture 08 draws: plain matplotlib, no arithmetic worth reading.

Each function takes numbers that the lecture has computed and shows a figure with its caption.
What a caption claims is computed from the same numbers or asserted in the lecture.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import ListedColormap

from lectures.figures import FAINT, INK, compass, learning_curves, show, style

LABELS = {
    "ppo": "PPO, learned critic",
    "grpo": "GRPO",
    "dr_grpo": "Dr. GRPO",
    "rloo_8": "leave-one-out, G = 8",
    "grpo_8": "GRPO, G = 8",
    "grpo_32": "GRPO, G = 32",
    "until_mixed": "G = 8, until mixed",
}
COMPASS_STYLES = {"rloo_8": "rloo", "grpo_8": "grpo", "grpo_32": "grpo", "until_mixed": "dapo"}
HOMES = {  # look: label
    "first": "home stays",
    "second": "home moves every 10",
    "exact": "no KL term",
}


def answers_by_group(rates: dict) -> None:
    """Right and wrong answers, one column per group; groups without contrast are faded.

    rates : name → pass rate; sixty groups of eight coin flips are drawn for each
    """
    figure, axes = plt.subplots(len(rates), 1, figsize=(7.4, 0.95 * len(rates) + 0.55))
    dice = torch.Generator().manual_seed(2)
    colours = ListedColormap(["#f5d5c0", "#bcd3e4", "#d1701f", "#0072B2"])
    for axis, (name, rate) in zip(axes, rates.items(), strict=True):
        rewards = torch.rand(60, 8, generator=dice) < rate
        table = np.sort(rewards.numpy(), axis=1).T[::-1]  # (group, groups), right ones on top
        mixed = table.max(0) != table.min(0)
        axis.imshow(table + 2 * mixed, cmap=colours, vmin=0, vmax=3, aspect="auto")
        axis.set_title(f"{name}: right with probability {rate:.2f}", fontsize=10)
        axis.set(xticks=[], yticks=[])
        axis.set_xticks(np.arange(-0.5, table.shape[1]), minor=True)
        axis.set_yticks(np.arange(-0.5, table.shape[0]), minor=True)
        axis.grid(False)
        axis.grid(which="minor", color="white", linewidth=1)
        axis.tick_params(which="both", length=0)
        axis.spines[:].set_visible(False)
    axes[-1].set_xlabel(f"{table.shape[1]} groups of {table.shape[0]} answers")
    show(
        figure,
        "Sixty groups each; blue is right, orange wrong. Faded columns have no contrast: all "
        "weights are 0.",
        alt="Three rows of 60 columns of eight squares. Beginner: nearly all columns entirely "
        "orange and faded. Half-trained: mixed columns. Expert: nearly all blue and faded.",
    )


def homes(J: dict, kl: dict, x) -> None:
    """J and the KL to the start for each of HOMES: look → (seeds, points)."""
    figure, axes = plt.subplots(1, 2, figsize=(7.4, 3.1))
    for axis, curves, ylabel in zip(axes, (J, kl), ("points", "nats per answer"), strict=True):
        learning_curves(curves, x=x, xlabel="batches", ylabel=ylabel, labels=HOMES, axis=axis)
        axis.get_legend().remove()
    axes[0].set_title("exact J")
    axes[1].set_title("KL to the first policy")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    show(
        figure,
        "Mean and range of five seeds. A home that stays bounds the distance; one that moves every "
        "10 batches bounds no distance, it slows the policy down.",
        alt="Left: exact J rises to 4.6 or 4.7 without a KL term and with a moving home, and stops "
        "near 4 with a home that stays. Right: the KL to the first policy grows to 3.5 nats in the "
        "first two cases and levels off near one nat in the third.",
    )


def prompt_weights(p, weights: dict, limit) -> None:
    """w_G(p) per group size and its limit on the left, the objectives they climb on the right.

    p : (n,)   weights[G] : (n,)   limit : (n,)
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.4), width_ratios=(1.15, 1))
    blue = style("grpo")["color"]
    for G, width in zip((2, 4, 8, 32), (1.2, 1.7, 2.2, 2.8), strict=True):
        left.plot(p, weights[G], color=blue, linewidth=width)
        left.text(1.03, weights[G][-1], f"G = {G}", va="center", fontsize=8.5, color=blue)
    left.plot(p, limit, color=INK, linestyle="--", linewidth=1.4)
    left.text(0.06, 5.6, "G → ∞", fontsize=8.5, va="center")
    loo = style("rloo")
    left.plot((0, 1), (1, 1), color=loo["color"], linestyle="-.", linewidth=2)
    left.text(0.5, 0.7, "leave-one-out: 1", ha="center", fontsize=8.5, color="#8a5f00")
    left.set(
        title="weight of a prompt",
        xlabel="pass rate p",
        ylabel="w(p)",
        ylim=(0, 6),
        xlim=(-0.03, 1.22),
    )
    left.set_xticks((0, 0.25, 0.5, 0.75, 1), ("0", ".25", ".5", ".75", "1"))
    climbed = np.cumsum(np.asarray(weights[32]))
    objectives = {"J, the pass rate": p, "GRPO, G = 32": climbed / climbed[-1]}
    objectives |= {"2 arcsin √p": 2 / np.pi * np.arcsin(np.sqrt(p))}
    looks = (
        {"color": loo["color"], "linestyle": "-."},
        {"color": blue},
        {"color": INK, "linestyle": "--", "linewidth": 1.4},
    )
    for (label, values), look in zip(objectives.items(), looks, strict=True):
        right.plot(p, values, label=label, **look)
    right.set(title="what is climbed", xlabel="pass rate p", ylabel="objective, scaled")
    right.legend(loc="upper left", fontsize=8.5)
    show(
        figure,
        "Left: the weight of a 0/1 prompt relative to ∇p, ddof 0. The larger the group, the more "
        "the ends count. Right: what is climbed, scaled to end at 1: steeper at both ends. (With "
        "G = 8 it could hardly be told from the straight line.)",
        alt="Left: a horizontal line at 1 for leave-one-out and for GRPO with G = 2; U-shaped "
        "curves for G = 4, 8 and 32, below a dashed limit that rises without bound at both ends. "
        "Right: a straight line and two S-shaped curves that are steeper near 0 and 1.",
    )


def sampling(p, silent: dict, schemes: dict) -> None:
    """Share of groups without contrast, and prompt weights relative to p = ½ by scheme.

    p : (n,)   silent[G] : (n,)   schemes : label → (n,)
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.3))
    lines = zip(("#a6a6a6", "#858585", "#555555", "#000000"), (":", "-.", "--", "-"), strict=True)
    for (G, share), (grey, line) in zip(silent.items(), lines, strict=True):
        left.plot(p, share, color=grey, linestyle=line, label=f"G = {G}")
    left.legend(loc="upper center", fontsize=8.5)
    left.set(title="groups without contrast", xlabel="pass rate p", ylabel="share", ylim=(0, 1.02))
    looks = (
        {"color": style("grpo")["color"], "linestyle": "-", "linewidth": 2.6},
        {"color": "#56B4E9", "linestyle": "--"},
        {"color": "#009E73", "linestyle": "-."},
        {"color": "#882255", "linestyle": ":"},
    )
    for (label, values), look in zip(schemes.items(), looks, strict=True):
        right.semilogy(p, values, label=label, **look)
    right.set(title="weight relative to p = ½", xlabel="pass rate p", ylim=(0.8, 40))
    right.set_yticks((1, 2, 5, 10, 20), ("1", "2", "5", "10", "20"))
    right.minorticks_off()
    right.legend(loc="upper center", fontsize=8.5)
    show(
        figure,
        "Left: the share of silent groups, [GR-4]. Right: prompt weights at G = 8 relative to p = "
        "½, logarithmic. Filling up with new prompts changes nothing; insisting on the same "
        "prompt does.",
        alt="Left: U-shaped curves that fall with G. Right: the curve for all groups or new "
        "prompts stays below 1.5; with the same prompt sampled again the curves rise towards both "
        "ends, up to 3, 11 and beyond 20.",
    )


def budget(sizes, parts: tuple, best: float) -> None:
    """N · Var against the group size, split into its three parts, each (sizes,)."""
    figure, axis = plt.subplots(figsize=(6.4, 3.1))
    fills = ("#d9d9d9", "#E69F00", "#56B4E9")
    hatches = ("", "///", "...")
    bottom, x = np.zeros(len(sizes)), np.arange(len(sizes))
    labels = ("a: which answer", "c/(G − 1): few siblings", "B_x G: few prompts")
    for label, values, fill, hatch in zip(labels, parts, fills, hatches, strict=True):
        look = {"color": fill, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
        axis.bar(x, values, bottom=bottom, width=0.62, label=label, **look)
        bottom = bottom + np.asarray(values)
    for place, total in zip(x, bottom, strict=True):
        axis.text(place, total + 0.06, f"{total:.2f}", ha="center", fontsize=9)
    axis.set_xticks(x, [f"{G:.0f}" for G in sizes])
    axis.set(xlabel=f"group size G (best: {best:.1f})", ylabel="N · Var", ylim=(0, 6))
    axis.grid(axis="x", visible=False)
    axis.legend(loc="upper left", fontsize=9)
    show(
        figure,
        "The noise of a fixed number of answers, split by [GR-12]. Two siblings are too few, 64 "
        "too many; in between the valley is flat.",
        alt="Six stacked bars for G = 2, 3, 4, 8, 16, 64 with totals 2.37, 1.83, 1.69, 1.73, 2.17, "
        "5.35. The part for few siblings shrinks, the part for few prompts grows.",
    )


def race(panels: dict, x) -> None:
    """Learning curves with their spread over seeds: title → {row: (seeds, points)}."""
    figure, axes = plt.subplots(1, len(panels), figsize=(7.4, 3.2))
    for axis, (title, curves) in zip(axes, panels.items(), strict=True):
        learning_curves(curves, x=x, xlabel="batches", ylabel="", labels=LABELS, axis=axis)
        axis.set_title(title)
        axis.get_legend().remove()
    axes[0].set_ylabel("exact J (points)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    show(
        figure,
        "Mean and range of five seeds at 48 answers per batch. Run i of each method starts at the "
        "same policy: the lines above the picture compare in pairs.",
        alt="Two panels of three learning curves each with wide overlapping bands, rising from 3.4 "
        "to about 4.6 points and from 0.02 to about 0.9.",
    )


def four_compasses(truth, panels: dict) -> None:
    """The compass of lecture 01 for the keys of COMPASS_STYLES: name → (mean, samples)."""
    wrong = int((panels["rloo_8"][1] @ truth < 0).sum())
    figure = compass(truth, panels, labels=LABELS, styles=COMPASS_STYLES, limit=4.6, columns=2)
    show(
        figure,
        "Two prompts, pass rates .012 and .393. To the right is ∇J. The larger the group, the more "
        "the hard prompt turns the expectation (cross); insisting on a mixed group for each prompt "
        f"turns it most. Leave-one-out: {wrong} of 200 on the wrong side.",
        alt="Four compass panels. Leave-one-out: the cross lies on the ring. GRPO with 8: a longer "
        "arrow, hardly turned. GRPO with 32: turned by eight degrees. Until mixed: turned far up, "
        "towards the hard prompt.",
    )


def weight_tables(rewards, maps: dict) -> None:
    """The rewards and the weight that each answer receives, with its number written in.

    rewards, maps[letter] : (prompts, group)
    """
    columns = 2
    rows = -(-(1 + len(maps)) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(7.6, 1.22 * rows))
    tables = {"rewards": rewards} | {f"weights, {k}": v for k, v in maps.items()}
    for axis in axes.flat[len(tables) :]:
        axis.set_visible(False)
    for axis, (title, table) in zip(axes.flat, tables.items(), strict=False):
        table = np.asarray(table)
        looks = ("Greys", 0, 1.6) if title == "rewards" else ("RdBu", -2.6, 2.6)
        axis.imshow(table, cmap=looks[0], vmin=looks[1], vmax=looks[2], aspect="auto")
        for (row, column), value in np.ndenumerate(table):
            text = f"{value:.2g}" if title == "rewards" else f"{value:+.2f}".replace("-", "−")
            text = "0" if abs(value) < 5e-3 else text
            colour = "white" if abs(value) > (1.2 if title == "rewards" else 1.7) else INK
            axis.text(column, row, text, ha="center", va="center", fontsize=8.5, color=colour)
        axis.set_title(title, fontsize=10)
        axis.set(xticks=[], yticks=[])
        axis.grid(False)
        axis.spines[:].set_color(FAINT)
    show(
        figure,
        "What each answer receives. Only D is right: one row with contrast, two silent.",
        alt="Six tables of three rows by eight columns: the rewards, and the weights A to E. A has "
        "the right numbers scattered over all rows, B whole rows of one sign, C large numbers in "
        "rows of equal rewards, D zeros there, E the same pattern as D, 1.7 times as large.",
    )
