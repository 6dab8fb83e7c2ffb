"""The pictures that only lecture 11 draws: plain matplotlib, no arithmetic worth reading.

Each function takes numbers that the lecture has computed and returns a figure for
`lectures.figures.show`. What a probe has seen (`toy_models.silent_bugs.PROBES`) is drawn by
`evidence`, one small picture each.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lectures.figures import FAINT, INK, style

RIGHT, WRONG = style("right")["color"], style("wrong")["color"]
SECOND = style("second")["color"]
BLUE, ORANGE, GREY = (0, 114, 178), (213, 94, 0), "#d9d9d9"


# the bugs whose maps and ratios the lecture shows, with short titles
MAPPED = {
    "end_dropped": "end token lost",
    "padding_trained": "padding trained",
    "own_counts": "micro-batch counts",
    "scrambled": "advantages scrambled",
    "recomputed": "old log-probs recomputed",
    "one_out": "one position out",
}
RATIOS = {
    "healthy": "healthy",
    "stale_cache": "stale cache",
    "cold_report": "two temperatures",
    "recomputed": "recomputed",
}


# the lecture's last table: its head, and the methods that are no rows of the library
AXES = (
    "| row | feedback | data | learned | A = 0 | in words |",
    "|" + ":--|" * 6,
    "| *SFT* (00) | every token is told | a teacher's | policy | – | imitates; no reward |",
    "| *A2C* (07) | spread by the critic | made for one update | policy; value helps | acts "
    "| PPO's first update |",
    "| *TRPO* (04) | as its advantages | a ratio: one measured step | policy; value helps | acts "
    "| bounds the KL itself |",
)


def final_rewards(J: dict, titles: dict[str, str], healthy: str) -> Figure:
    """One row per bug, one mark per seed, sorted by mean; the healthy runs' range as a band."""
    order = sorted(J, key=lambda name: np.mean(J[name]))
    figure, axis = plt.subplots(figsize=(7.4, 0.9 + 0.27 * len(order)))
    right = np.asarray(J[healthy])
    axis.axvspan(right.min(), right.max(), color=RIGHT, alpha=0.14, linewidth=0)
    for row, name in enumerate(order):
        look = (
            {"color": RIGHT, "marker": "o"} if name == healthy else {"color": WRONG, "marker": "X"}
        )
        axis.plot(J[name], [row] * len(J[name]), linestyle="", markersize=5, alpha=0.75, **look)
        axis.plot(np.mean(J[name]), row, "|", color=INK, markersize=11, markeredgewidth=1.8)
    axis.set_yticks(range(len(order)), [titles.get(name, name) for name in order], fontsize=8.5)
    axis.set(xlabel="exact J after 40 batches (points of 4)", xlim=(0.4, 4.05))
    axis.grid(axis="y", visible=False)
    return figure


def maps(seen: dict[str, dict], titles: dict[str, str], columns: int = 3) -> Figure:
    """Gradient maps side by side: name → what the probe "map" saw."""
    rows = -(-len(seen) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(2.5 * columns, 2.35 * rows))
    for axis, (name, found) in zip(np.ravel(axes), seen.items(), strict=False):
        _map(axis, found)
        axis.set_title(titles.get(name, name), fontsize=9)
    for axis in np.ravel(axes)[len(seen) :]:
        axis.set_visible(False)
    return figure


def _tint(factor: float) -> tuple[object, str]:
    """Fill and ink: white at 1, blue above, grey below, orange under 0."""
    if factor < 0:
        full, share = np.array(ORANGE), 0.8
    elif factor > 1:
        full, share = np.array(BLUE), 0.7 * min(1.0, np.log2(factor) / 2)
    else:
        full, share = np.array((190, 190, 190)), 1 - factor
    mixed = (255 + (full - 255) * share) / 255
    return tuple(mixed), "white" if mixed @ (0.3, 0.6, 0.1) < 0.55 else INK


def _number(factor: float) -> str:
    if abs(factor) < 0.005:
        return "0"
    digits = 0 if abs(factor) >= 9.95 else 1 if abs(factor) >= 0.095 else 2
    return f"{factor:.{digits}f}".replace("-", "−")


def _map(axis: Axes, found: dict) -> None:
    for row, one in enumerate(found["rows"]):
        for column, factor in enumerate(one["factors"]):
            place = (column - 0.5, row - 0.5)
            if factor is None:
                fill, ink, words = "white", "#bbbbbb", "·"
            elif factor == "+":
                fill, ink, words = WRONG, "white", "+"
            else:
                (fill, ink), words = _tint(factor), _number(factor)
            axis.add_patch(Rectangle(place, 1, 1, facecolor=fill, edgecolor="white", linewidth=1.2))
            look = {"ha": "center", "va": "center", "fontsize": 7.5, "color": ink}
            axis.text(column, row, words, **look)
    count = len(found["rows"])
    axis.set(xlim=(-0.5, 4.5), ylim=(count - 0.5, -0.5))
    written = (one["tokens"][: one["tokens"].find("E") % 5 + 1] for one in found["rows"])
    axis.set_yticks(range(count), [tokens.ljust(5) for tokens in written])
    axis.tick_params(length=0, labelsize=7.5)
    axis.set_yticklabels(axis.get_yticklabels(), family="monospace")
    axis.set_xticks([])
    axis.grid(False)
    axis.spines[:].set_visible(False)


def _mask(axis: Axes, found: dict) -> None:
    for row, one in enumerate(found["rows"]):
        for column, (token, counts) in enumerate(zip(one["tokens"], one["mask"], strict=True)):
            fill = RIGHT if counts else "white"
            place = (column - 0.5, row - 0.5)
            axis.add_patch(Rectangle(place, 1, 1, facecolor=fill, edgecolor=GREY, linewidth=1.2))
            look = {"ha": "center", "va": "center", "fontsize": 9, "family": "monospace"}
            axis.text(column, row, token, color="white" if counts else FAINT, **look)
    axis.set(xlim=(-0.5, 4.5), ylim=(len(found["rows"]) - 0.5, -0.5), aspect="equal")
    axis.axis("off")


def _histogram(axis: Axes, found: dict) -> None:
    edges = np.linspace(0.5, 1.5, 21)
    axis.bar(edges[:-1], found["counts"], width=0.05, align="edge", color=SECOND, edgecolor="white")
    axis.axvline(1, 0, 0.66, color=INK, linewidth=1, linestyle=":")
    axis.grid(visible=False)
    low, high = found["ends"]
    words = f"{found['exactly_one']:.0%} exactly 1\nfrom {low:.2f} to {high:.2f}"
    axis.text(0.02, 0.97, words, transform=axis.transAxes, va="top", fontsize=8)
    axis.set(xlabel="token ratio", ylabel="tokens", xlim=(0.48, 1.52))
    axis.set_ylim(top=1.5 * max(found["counts"]))


def _curves(axis: Axes, found: dict) -> None:
    looks = (RIGHT, "-"), (WRONG, "--"), (SECOND, ":")
    for (name, values), (color, line) in zip(found.items(), looks, strict=False):
        axis.plot(values, color=color, linestyle=line, label=name.replace("_", " "))
    axis.set(xlabel="batches")
    axis.legend(fontsize=8)


def _lengths(axis: Axes, found: dict) -> None:
    axis.plot(found["length"], color=RIGHT, label="mean length (tokens)")
    axis.plot([], [], color=WRONG, linestyle="--", label="share at the limit (right)")
    axis.set(xlabel="batches", ylim=(0, 7.5), yticks=(0, 1, 2, 3, 4, 5))
    axis.legend(fontsize=7.5, loc="upper left")
    right = axis.twinx()
    right.plot(found["at_limit"], color=WRONG, linestyle="--")
    right.set(ylim=(0, 1.5), yticks=(0, 0.5, 1))
    right.grid(visible=False)


def _samples(axis: Axes, found: dict) -> None:
    lines = [f"{r['prompt']} → {r['response']:<5}  {r['reward']:.0f} points" for r in found["rows"]]
    look = {"va": "top", "family": "monospace", "fontsize": 9, "linespacing": 1.5}
    axis.text(0.02, 0.98, "\n".join(lines), transform=axis.transAxes, **look)
    axis.axis("off")


_DRAWN = {"map": _map, "mask": _mask, "first_ratio": _histogram, "last_ratio": _histogram}
_DRAWN |= {"samples": _samples, "lengths": _lengths}


def evidence(seen: dict[str, dict], titles: dict[str, str] | None = None) -> Figure:
    """What probes have seen, side by side: the probe's name → what it gave."""
    figure, axes = plt.subplots(1, len(seen), figsize=(2.9 * len(seen) + 0.4, 2.4), squeeze=False)
    for axis, (name, found) in zip(axes.flat, seen.items(), strict=True):
        _DRAWN.get(name, _curves)(axis, found)
        axis.set_title((titles or {}).get(name, name.replace("_", " ")), fontsize=9)
    return figure


def ratios(seen: dict[tuple[str, str], dict]) -> Figure:
    """Histograms of ratios, (probe, bug) → what it gave: a row for each update."""
    figure, axes = plt.subplots(2, len(RATIOS), figsize=(8.2, 4.0), sharex=True)
    for axis, ((when, name), found) in zip(axes.flat, seen.items(), strict=True):
        _histogram(axis, found)
        axis.set_title(RATIOS[name] if when == "first_ratio" else "", fontsize=9)
        axis.set(xlabel="token ratio" if when == "last_ratio" else "", ylabel="")
    for axis, label in zip(axes[:, 0], ("first update", "last update"), strict=True):
        axis.set_ylabel(f"{label}\ntokens", fontsize=9)
    return figure


def admission(curves: dict[str, dict]) -> Figure:
    """What a log shows of each patient, a column each; letter → the probe "curves"."""
    figure, axes = plt.subplots(3, len(curves), figsize=(9.2, 4.2), sharex=True, sharey="row")
    labels = {"reward": "reward (points)", "loss": "loss", "gradient": "gradient length"}
    for column, (letter, found) in zip(axes.T, curves.items(), strict=True):
        for axis, name in zip(column, labels, strict=True):
            axis.plot(found[name], color=INK, linewidth=1.3)
        column[0].set_title(letter)
        column[-1].set_xlabel("batches", fontsize=8)
        column[-1].set_xticks((0, 20, 40))
    for axis, label in zip(axes[:, 0], labels.values(), strict=True):
        axis.set_ylabel(label, fontsize=8.5)
    return figure


def temperatures(flows: dict[str, list], every: int) -> Figure:
    """Entropy against exact steps: label → values."""
    figure, axis = plt.subplots(figsize=(6.6, 2.9))
    looks = (WRONG, "--"), (SECOND, "-."), (RIGHT, "-"), (INK, ":")
    for (label, values), (color, line) in zip(flows.items(), looks, strict=True):
        axis.plot(every * np.arange(len(values)), values, line, color=color, label=label)
    axis.axhline(3 * np.log(3), color=FAINT, linewidth=0.8)
    axis.text(400, 3 * np.log(3) + 0.05, "uniform", ha="right", fontsize=8, color="#555555")
    axis.set(xlabel="exact steps", ylabel="entropy (nats per answer)", ylim=(0, 3.65))
    axis.legend(loc="center right", fontsize=8.5)
    return figure


def running_statistics(advantage: dict[str, np.ndarray]) -> Figure:
    """Mean advantage of a batch over the batches, label → (batches,); the rewards jump at 50."""
    figure, axis = plt.subplots(figsize=(6.6, 2.6))
    looks = (WRONG, "--"), (RIGHT, "-")
    for (label, values), (color, line) in zip(advantage.items(), looks, strict=True):
        axis.plot(values, line, color=color, label=label)
    axis.axvline(50, color=FAINT, linewidth=1, linestyle=":")
    axis.set(xlabel="batches", ylabel="mean advantage")
    axis.legend(fontsize=8.5)
    return figure
