"""The pictures that only lecture 01 draws, with their captions: no arithmetic worth reading.

Each function takes numbers that the lecture has computed and shows a figure; only
`before_and_after` returns its figure, because the lecture redraws it. What a caption claims is
computed from the same numbers or asserted in the lecture.
"""

import itertools

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from lectures.figures import FAINT, INK, show, style

BLUE = "#0072B2"
REWARD_FILLS = {3: "#ececec", 4: "#9ecae1", 5: "#08519c"}
LOSS_LOOKS = {
    "A": ("#D55E00", "--"),
    "B": (BLUE, "-"),
    "C": ("#CC79A7", ":"),
    "D": ("#B07900", "-."),
}


def staircases(slide, stairs, average) -> None:
    """One grey step function per frozen roll of the dice, and their smooth average.

    slide : (points,) the knob   stairs : (rolls, points) rewards   average : (points,) J
    """
    figure, axis = plt.subplots(figsize=(7.2, 3.2))
    for number, (roll, line) in enumerate(zip(stairs, ("-", "--", ":"), strict=True)):
        label = "one answer, dice frozen (three rolls)" if number == 0 else None
        lift = 0.03 * (number - 1)  # so that lines on the same step stay apart
        axis.plot(slide, roll + lift, line, color="#777777", linewidth=1.6, label=label)
    axis.plot(slide, average, color=BLUE, linewidth=3, label="average over all rolls: J")
    axis.set(xlabel="added to the logits of the right tokens (nats)", ylabel="reward (points)")
    axis.set(ylim=(2.35, 5.25), yticks=(3, 4, 5))
    axis.legend(loc="lower right")
    show(
        figure,
        "Each grey staircase is one frozen roll of the dice: flat almost everywhere, then a jump, "
        "so its derivative is 0 or missing. The average over all rolls is smooth.",
        alt="Three grey step functions between 3 and 5 points over the added logit; the dashed "
        "one goes down before it goes up. One smooth blue curve, their average over all rolls, "
        f"rises from {average[0]:.2f} to {average[-1]:.2f}.",
    )


def game_tree(answers, rewards, token_probs) -> None:
    """Every state of the toy, the policy's probabilities as line widths, the rewards as leaves.

    answers : (27, 3) in dictionary order   rewards : (27,)   token_probs : (time, vocab)
    """
    height = {tuple(y): float(i) for i, y in enumerate(answers.tolist())}
    figure, axis = plt.subplots(figsize=(7.2, 5.2))
    for depth in (2, 1, 0):
        for prefix in itertools.product(range(3), repeat=depth):
            children = [(*prefix, token) for token in range(3)]
            height[prefix] = float(np.mean([height[child] for child in children]))
            for token, child in enumerate(children):
                ends = [height[prefix], height[child]]
                width = 9 * float(token_probs[depth, token])
                axis.plot([depth, depth + 1], ends, color="#8cc5ea", linewidth=width, zorder=1)
            axis.scatter(depth, height[prefix], s=26, color="white", edgecolor=INK, zorder=3)
    for y, reward in zip(answers.tolist(), rewards.tolist(), strict=True):
        row, weight = height[tuple(y)], "bold" if reward == 5 else "normal"
        axis.scatter(3, row, s=64, marker="s", color=REWARD_FILLS[reward], edgecolor=INK, lw=0.6)
        label = f"{''.join(map(str, y))}  earns {reward:.0f}"
        axis.text(3.07, row, label, va="center", fontsize=7.5, weight=weight)
    axis.set(xlim=(-0.2, 3.55), ylim=(27, -1), xticks=range(4), yticks=[])
    axis.set_xticklabels(["prompt 102", "1 token", "2 tokens", "answer"])
    axis.grid(False)
    axis.spines[["left", "bottom"]].set_visible(False)
    axis.tick_params(length=0)
    show(
        figure,
        f"The whole game: {len(height)} states, {len(answers)} endings. Line width is the "
        f"policy's probability of that token, here {token_probs.min():.2f} to "
        f"{token_probs.max():.2f}; darker squares earn more. Nothing is out of reach, and no "
        f"ending earns less than {min(rewards):.0f}.",
        alt="A tree with three levels of three branches each. The 27 leaves earn 3, 4 or 5 "
        "points; only 012 earns 5.",
    )


def error_against_samples(sizes, measured, exact, slope: float) -> None:
    """Relative error of an estimate against the number of answers, both axes logarithmic."""
    figure, axis = plt.subplots(figsize=(6.2, 3.1))
    axis.loglog(sizes, exact, **(style("exact") | {"label": "[PG-11], by enumeration"}))
    label = f"measured: slope −{abs(slope):.3f}"
    axis.loglog(sizes, measured, "o", color=BLUE, markersize=7, label=label)
    axis.axhline(1, color=FAINT, linewidth=1)
    axis.text(sizes[0], 0.72, "error as long as ∇J itself", fontsize=8.5, color="#555555")
    axis.set(xlabel="answers per estimate, N", ylabel="error / length of ∇J")
    axis.set_yticks([0.1, 1, 10], labels=["0.1", "1", "10"])
    axis.legend(loc="upper right")
    show(
        figure,
        "Four times the answers halve the error. Above the grey line the error is longer than "
        "the gradient itself.",
        alt=f"Log-log plot of relative error against N from {sizes[0]} to {sizes[-1]}: "
        f"{len(sizes)} measured points on a straight line of slope {slope:.2f}.",
    )


def waiting_times(curves: dict) -> None:
    """Pass rate against updates on a logarithmic axis, each curve labelled where it crosses ½.

    curves : label → (name of the style, line style, pass rates)
    """
    figure, axis = plt.subplots(figsize=(7.2, 3.2))
    for label, (name, line, curve) in curves.items():
        updates = np.arange(1, len(curve) + 1)
        axis.semilogx(updates, curve, line, color=style(name)["color"])
        half = updates[np.searchsorted(curve, 0.5)]
        place = {"ha": "right", "va": "center", "fontsize": 8.5, "color": style(name)["color"]}
        axis.text(half * 0.93, 0.62, label, **place)
    axis.set(xlabel="exact gradient steps (logarithmic)", ylabel="pass rate p", ylim=(0, 1.03))
    axis.set_xlim(left=1)
    show(
        figure,
        "The wait for the first rise grows like 1/p. Supervised learning from the worst start, "
        "but shown the answer, does not wait.",
        alt="Pass rate over exact gradient steps on a logarithmic axis: three S-shaped curves, "
        "later the smaller the initial pass rate, and a grey supervised curve that passes one "
        f"half at step {np.searchsorted(curves['supervised'][2], 0.5)}.",
    )


def before_and_after(before, steps: dict) -> Figure:
    """Token probabilities per position, before and after a step: one row of panels per step.

    before : (time, vocab)   steps : title → (time, vocab)
    """
    before, rows = np.asarray(before), len(steps)
    figure = plt.figure(figsize=(7.2, 0.6 + 1.85 * rows))
    bands = np.atleast_1d(figure.subfigures(rows, 1))
    for row, (band, (title, after)) in enumerate(zip(bands, steps.items(), strict=True)):
        axes = band.subplots(1, 3, sharey=True)
        for position, axis in enumerate(axes):
            bars = {"width": 0.4, "edgecolor": INK, "linewidth": 0.6}
            places, moved = np.arange(3), np.asarray(after)[position]
            axis.bar(places - 0.2, before[position], color="#d9d9d9", label="before", **bars)
            axis.bar(places + 0.2, moved, color=BLUE, label="after", **bars)
            axis.set(xticks=places, ylim=(0, 1), yticks=(0, 0.5, 1))
            axis.set_title(f"position {position}", fontsize=9, weight="normal")
            axis.set_xlabel("token" if row == rows - 1 else "")
            axis.grid(False, axis="x")
        axes[0].set_ylabel("probability")
        band.suptitle(title, fontsize=10, x=0.02, ha="left")
    bars = axes[2].get_legend_handles_labels()
    figure.legend(*bars, loc="upper right", ncols=2, fontsize=8.5, borderaxespad=0.1)
    return figure


def show_steps(figure: Figure) -> None:
    """Show the rows that part 6 asks about: 012 with Ψ = +5, 222 with +3 and −1, 210 with −5."""
    show(
        figure,
        "Four single steps. On the right answer three bars rise, one per position, and the six "
        "others pay. The other rows belong to the questions below.",
        alt="Bars of the nine token probabilities before and after four steps. Ψ = +5 on 012 "
        "raises token t at position t above four fifths. +3 on 222 raises token 2 everywhere, "
        "−1 on 222 lowers it everywhere, −5 on 210 lowers 2, 1 and 0 at positions 0, 1 and 2.",
    )


def same_training(J, losses: dict) -> None:
    """J on the left; on the right the expected losses that belong to it, label → values."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.9))
    left.plot(J, color=BLUE)
    left.set(title="expected reward J", xlabel="updates", ylabel="points", ylim=(3, 5.1))
    left.set_yticks((3, 4, 5))
    for (label, values), line in zip(losses.items(), ("-", "--", ":"), strict=True):
        right.plot(values, line, color=INK, label=label)
    right.set(title="expected loss", xlabel="updates", ylabel="points × nats")
    right.legend(title="weight in the loss", title_fontsize=9, alignment="left")
    show(
        figure,
        "One training, three loss curves: one ends far lower than it began, one far higher, one "
        "close to where it began. What counts is the mean reward of fresh answers.",
        alt=f"Left: J rises from {J[0]:.1f} to {J[-1]:.1f} points. Right: three losses that "
        "all end near 0; they begin at "
        + ", ".join(f"{path[0]:.1f} (weight {name})" for name, path in losses.items())
        + ".",
    )


def loss_panels(curves: dict) -> None:
    """One panel per loss, its own scale: letter → (updates,) values."""
    figure, axes = plt.subplots(1, len(curves), figsize=(7.4, 2.3))
    for axis, (letter, values) in zip(axes, curves.items(), strict=True):
        axis.plot(values, color=LOSS_LOOKS[letter][0], linewidth=1)
        axis.set(title=letter, xlabel="updates")
    axes[0].set_ylabel("loss")
    show(
        figure,
        "Four loss curves (seed 0), each on its own scale, as in four different logs.",
        alt="Four noisy curves. "
        + " ".join(
            f"{letter} goes from {values[:20].mean():.0f} to {values[-20:].mean():.0f} "
            "(means of 20 updates)."
            for letter, values in curves.items()
        ),
    )


def unmasked(curves: dict, maps: dict, rewards) -> None:
    """Exact J for every seed, and the gradient map.

    curves : letter → (seeds, updates)   maps : letter → (answers,)   rewards : (answers,)
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.1), width_ratios=(1.1, 1))
    for letter, runs in curves.items():
        color, line = LOSS_LOOKS[letter]
        left.plot(runs.T, line, color=color, linewidth=1.2, alpha=0.85)
        ends = np.sort(np.asarray(runs[:, -1]))
        for group in np.split(ends, np.flatnonzero(np.diff(ends) > 0.5) + 1):
            place = {"color": color, "weight": "bold", "va": "center"}
            left.text(1.02 * runs.shape[1], group.mean(), letter, **place)
    left.set(title="exact J, every seed", xlabel="updates", ylabel="points", yticks=(3, 4, 5))
    table = np.stack(list(maps.values()))
    right.imshow(np.clip(table, -2, 2), cmap="RdBu", vmin=-2.4, vmax=2.4, aspect="auto")
    for (row, column), ratio in np.ndenumerate(table):
        text = f"{ratio:.2f}" if ratio % 1 > 1e-9 else f"{ratio:.0f}"
        color = "white" if abs(ratio) > 1.9 else INK
        look = {"ha": "center", "va": "center", "fontsize": 7.5, "color": color}
        right.text(column, row, text.replace("-", "−"), **look)
    right.set(title="gradient map", xlabel="reward of the answer (8 answers)")
    right.set_xticks(range(len(rewards)), [f"{reward:.0f}" for reward in rewards])
    right.set_yticks(range(len(maps)), list(maps))
    right.grid(False)
    right.tick_params(length=0)
    show(
        figure,
        "The loss could not tell; the map can. B is 1 everywhere, C is −1 everywhere, D is one "
        f"constant, the {len(rewards)} answers of this batch, and A is a pattern that undoes "
        "the rewards: mean reward over reward.",
        alt="Left: exact J for four losses and four seeds, at the last update "
        + ", ".join(
            f"{letter} {runs[:, -1].min():.1f} to {runs[:, -1].max():.1f}"
            for letter, runs in curves.items()
        )
        + " points. Right: four rows of gradient ratios.",
    )
