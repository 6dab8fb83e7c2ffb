"""The pictures that only lecture 03 draws: plain matplotlib, no arithmetic worth reading.

Each function takes numbers that the lecture has computed and returns a figure for
`lectures.figures.show`.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from lectures.figures import FAINT, INK, framed_cells, style

STUCK = "#7a4a36"
LETTERS = {
    "A": ("#D55E00", "--"),
    "B": ("#CC79A7", ":"),
    "C": ("#B07900", "-."),
    "D": ("#777777", ":"),
    "E": ("#0072B2", "-"),
    "F": ("#009E73", "--"),
}
SURROGATES = {"plain": "reinforce", "unclipped": "unclipped", "clipped": "clipped"}


def two_budgets(few, many, titles: tuple[str, str]) -> Figure:
    """Every run's J over batches, two settings side by side; (batches + 1, runs) points each."""
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.0), sharey=True)
    for axis, runs, title in zip(axes, (few, many), titles, strict=True):
        axis.plot(runs[:, :30], color=style("reinforce")["color"], alpha=0.25, linewidth=1)
        axis.plot(runs.mean(1), color=INK, linewidth=2.6, label="mean of all runs")
        axis.axhline(4, color=STUCK, linewidth=1, linestyle=":")
        axis.set(
            title=title,
            xlabel="batches of 8 answers",
            ylim=(2.95, 5.12),
            yticks=(3, 3.5, 4, 4.5, 5),
        )
    for level, side in ((4.06, many[-1] < 4.5), (4.8, many[-1] >= 4.5)):
        share = f"{side.double().mean():.0%} of all runs"
        axes[1].text(40, level, share, ha="right", fontsize=9, color=STUCK)
    axes[0].set_ylabel("exact J (points)")
    axes[1].legend(loc="lower right")
    return figure


def promise_and_truth(noiseless, sampled) -> Figure:
    """True J and promised J against inner steps (logarithmic), without and with noise.

    noiseless : (2, steps) truth and promise   sampled : (batches, 2, steps) the same per batch
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.4, 3.2), sharey=True)
    steps = np.arange(1, noiseless.shape[-1] + 1)
    truth, promise = _line("exact") | {"linestyle": "-"}, _line("unclipped")
    for axis, (J, promised) in ((left, noiseless), (right, sampled.mean(0))):
        axis.semilogx(steps, promised, **promise, linewidth=2.6, label="promised")
        axis.semilogx(steps, J, **truth, linewidth=2.6, label="true J")
        axis.axhline(5, color=FAINT, linewidth=1, linestyle=":")
        axis.set(xlabel="inner steps on one batch", ylim=(2.9, 5.6), yticks=(3, 3.5, 4, 4.5, 5))
        axis.set_xlim(left=1)
    for J, promised in sampled:
        right.semilogx(steps, promised, **promise, linewidth=0.8, alpha=0.35)
        right.semilogx(steps, J, **truth, linewidth=0.8, alpha=0.3)
    left.text(1.2, 5.05, "largest reward there is", fontsize=8.5, color="#555555")
    left.set(title="all 27 answers, weighted", ylabel="points")
    right.set(title="8 answers: 12 batches, mean")
    left.legend(loc="upper left", bbox_to_anchor=(0.0, 0.8))
    return figure


def clip_against_steps(seen: dict) -> Figure:
    """Largest ratio, KL and J against inner steps: ε (0.01, 0.2, "none") → series (steps + 1,)."""
    figure, axes = plt.subplots(1, 3, figsize=(7.6, 3.1))
    looks = {
        0.01: ("ε = .01", {"color": style("second")["color"], "linewidth": 1.3}),
        0.2: ("ε = .2", _line("clipped")),
        "none": ("no clip", _line("unclipped")),
    }
    names = {"largest ρ": "largest ratio", "KL": "KL(old ‖ new)", "J": "true J"}
    for axis, (key, title) in zip(axes, names.items(), strict=True):
        for eps, (label, look) in looks.items():
            axis.plot(np.arange(1, len(seen[eps][key])), seen[eps][key][1:], **look, label=label)
        axis.set(title=title, xlabel="inner steps", xscale="log")
        axis.set_xticks((1, 4, 16, 64), ("1", "4", "16", "64"))
        axis.minorticks_off()
    axes[0].axhline(1.2, color=INK, linewidth=1, linestyle=(0, (5, 3)))
    axes[0].text(1, 1.21, "1 + ε = 1.2", fontsize=8.5, va="bottom")
    axes[0].set(ylabel="ρ", ylim=(0.97, 1.7))
    axes[0].legend(loc="upper left", fontsize=8.5)
    axes[1].set(ylabel="nats per answer", yscale="log")
    axes[2].set(ylabel="points")
    return figure


def what_clipping_buys(inner: tuple[int, ...], paths: dict) -> Figure:
    """J early and at the end, and the share of stuck runs, against inner steps.

    paths : name → (len(inner), batches + 1, runs) points
    """
    figure, axes = plt.subplots(1, 3, figsize=(7.8, 3.2))
    early, end, lost = axes
    for shift, (name, J) in zip((-0.08, 0, 0.08), paths.items(), strict=True):
        look = _line(SURROGATES[name]) | {"marker": style(SURROGATES[name])["marker"]}
        look |= {"label": name, "elinewidth": 1, "capsize": 2.5}
        x, J = np.arange(len(inner)) + shift, np.asarray(J)
        for axis, values in ((early, J[:, 5]), (end, J[:, -1])):
            error = 2 * values.std(1, ddof=1) / np.sqrt(values.shape[1])
            axis.errorbar(x, values.mean(1), error, **look)
        stuck = (J[:, -1] < 4.5).mean(1)
        lost.errorbar(x, stuck, 2 * np.sqrt(stuck * (1 - stuck) / J.shape[2]), **look)
    for axis in axes:
        axis.set_xticks(range(len(inner)), [str(k) for k in inner])
        axis.set_xlabel("inner steps per batch")
    for axis in (early, end):
        axis.set(ylabel="points, ± 2 standard errors", ylim=(3.55, 5.05))
    early.set_title("J after 5 batches")
    end.set_title("J after 40 batches")
    lost.set(title="runs stuck below 4.5", ylabel="share", ylim=(-0.02, 0.85))
    lost.legend(loc="upper left")
    return figure


def lettered(curves: dict, ylabel: str) -> Figure:
    """One curve per letter over the batches, the letter at its right end: letter → (points,)."""
    figure, axis = plt.subplots(figsize=(6.6, 2.9))
    for letter, values in curves.items():
        color, line = LETTERS[letter]
        axis.plot(values, line, color=color, linewidth=1.8)
    last = len(next(iter(curves.values()))) - 1
    _label_ends(axis, {k: float(values[-8:].mean()) for k, values in curves.items()}, last)
    axis.set(xlabel="batches", ylabel=ylabel)
    return figure


def _label_ends(axis, ends: dict, x: float) -> None:
    """Write the letters at the right end, those that would overlap side by side."""
    low, high = axis.get_ylim()
    groups: list[list[str]] = []
    for letter in sorted(ends, key=ends.get):
        if groups and ends[letter] - ends[groups[-1][-1]] < 0.045 * (high - low):
            groups[-1].append(letter)
        else:
            groups.append([letter])
    for group in groups:
        height = np.mean([ends[letter] for letter in group])
        for place, letter in enumerate(group):
            look = {"color": LETTERS[letter][0], "weight": "bold", "va": "center"}
            axis.text(x * (1.02 + 0.055 * place), height, letter, **look)


def gradient_map(pushes: dict, probes: list[str], right: str) -> Figure:
    """The push −∂loss/∂log π per probe: name → (probes,). Entries unlike `right` are framed."""
    figure, axis = plt.subplots(figsize=(7.4, 0.9 + 0.36 * len(pushes)))
    table = np.stack([np.asarray(push) for push in pushes.values()])
    differs = np.abs(table - np.asarray(pushes[right])) > 1e-9
    framed_cells(axis, table, differs, limit=2.2)
    axis.set_xticks(range(len(probes)), probes, fontsize=8.5)
    axis.set_yticks(range(len(pushes)), list(pushes))
    return figure


def _line(name: str) -> dict[str, str]:
    look = style(name)
    return {"color": look["color"], "linestyle": look["linestyle"]}
