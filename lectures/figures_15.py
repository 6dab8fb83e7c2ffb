"""Figures that only lecture 15 draws: schedules, what cards are worth, and whose token is whose."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from lectures.figures import FAINT, INK, style
from toy_models.actor_learner import Trace
from toy_models.tool_use import TOKENS, Trajectories

KINDS = {  # of a span: colour, hatch, word
    "generate": ("#0072B2", "", "writes answers"),
    "load": ("#D55E00", "", "loads weights"),
    "update": ("#009E73", "//", "updates"),
}
LOOPS = ("wrong", "first", "second")  # whose colours loops wear: synchronous, age at most 1, 4
CLOCKS = ("wrong", "second", "first", "right", "raw")  # the same on two clocks, then others


def _bar(axis: Axes, start: float, end: float, y: float, kind: str, height: float = 0.8) -> None:
    color, hatch, _ = KINDS[kind]
    look = {"color": color, "edgecolor": "white", "linewidth": 0.5, "hatch": hatch}
    axis.barh(y, end - start, height, left=start, **look)


def _legend(figure: Figure) -> None:
    handles = [
        Patch(facecolor=color, hatch=hatch, edgecolor="white", label=word)
        for color, hatch, word in KINDS.values()
    ]
    handles.append(Patch(facecolor="#f0f0f0", edgecolor=FAINT, label="waits"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9)


def slots(trace: Trace, update: int) -> Figure:
    """One step of the synchronous loop: every slot of every actor, and the learner below."""
    batch, setup = trace.batches[update], trace.setup
    begin = trace.updates[update - 1].end
    figure, axis = plt.subplots(figsize=(7.4, 3.6))
    lanes = setup.actors * setup.slots
    end = trace.updates[update].end
    axis.add_patch(Rectangle((0, -0.5), end - begin, lanes, color="#f0f0f0", linewidth=0))
    axis.add_patch(Rectangle((0, lanes + 2), end - begin, 6, color="#f0f0f0", linewidth=0))
    for actor in range(setup.actors):
        middle = (actor + 0.5) * setup.slots - 0.5
        _bar(axis, 0, setup.sync, middle, "load", setup.slots)
    answers = sorted((a for g in batch for a in g.answers), key=lambda a: (a.actor, a.end))
    for y, answer in enumerate(answers):
        _bar(axis, answer.start - begin, answer.end - begin, y, "generate", 1.0)
    one = trace.updates[update]
    _bar(axis, one.start - begin, one.end - begin, lanes + 5, "update", 6)
    ready = max(group.ready for group in batch) - begin
    axis.axvline(ready, color=INK, linewidth=1, linestyle="--")
    look = {"ha": "right", "va": "center", "fontsize": 8.5, "color": INK}
    axis.text(ready - 0.6, lanes + 5, "the last answer ends", **look)
    axis.set(xlabel="simulated seconds of one step", xlim=(0, end - begin), ylim=(lanes + 9, -1))
    axis.set_yticks([setup.slots / 2, 3 * setup.slots / 2, lanes + 5])
    axis.set_yticklabels(
        ["actor 0\n(1 card,\n32 slots)", "actor 1\n(1 card,\n32 slots)", "learner\n(2 cards)"]
    )
    axis.tick_params(axis="y", length=0)
    axis.grid(False)
    _legend(figure)
    return figure


def gantt(traces: dict[str, Trace], begin: float, seconds: float) -> Figure:
    """Who does what when, label → trace: actors and learner as lanes, versions in the updates."""
    figure, axes = plt.subplots(
        len(traces), 1, figsize=(7.6, 1.35 * len(traces) + 0.7), sharex=True
    )
    for axis, (label, trace) in zip(np.atleast_1d(axes), traces.items(), strict=True):
        names = [f"actor {i}" for i in range(trace.setup.actors)]
        names += [] if trace.setup.colocated else ["learner"]
        for y in range(len(names)):
            axis.add_patch(Rectangle((0, y - 0.4), seconds, 0.8, color="#f0f0f0", linewidth=0))
        for span in trace.spans:
            start, end = span.start - begin, span.end - begin
            if span.lane not in names or end <= 0 or start >= seconds:
                continue
            start, end, y = max(start, 0), min(end, seconds), names.index(span.lane)
            _bar(axis, start, end, y, span.kind)
            if span.kind == "update" and end - start > 5:
                text = {"ha": "center", "va": "center", "fontsize": 7.5, "color": INK}
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
                axis.text((start + end) / 2, y, str(span.version + 1), bbox=box, **text)
        axis.set(xlim=(0, seconds), ylim=(len(names) - 0.5, -0.5))
        axis.set_yticks(range(len(names)), names, fontsize=8.5)
        axis.set_title(label, fontsize=9.5)
        axis.tick_params(axis="y", length=0)
        axis.grid(False)
    np.atleast_1d(axes)[-1].set_xlabel(f"simulated seconds after second {begin:.0f}")
    _legend(figure)
    return figure


def allocation(
    sampling: Sequence[int], curves: dict[str, tuple], limits, together: float
) -> Figure:
    """Left: tokens a second against cards that sample. Right: staleness.

    curves   : label → (tokens per second, mean staleness), each (settings,)
    limits   : (settings,) the smaller of the two rates     together : the same cards doing both
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.8, 3.4), width_ratios=(1.3, 1))
    left.plot(sampling, limits, "--", color=INK, linewidth=1.4, label="the smaller rate")
    left.axhline(together, color=FAINT, linewidth=1.6, linestyle="-.", label="same cards, in turn")
    for (label, (rate, age)), name in zip(curves.items(), LOOPS, strict=False):
        left.plot(sampling, rate, label=label, **style(name))
        right.plot(sampling, age, label=label, **style(name))
    left.set(xlabel="cards that write, of 8", ylabel="tokens trained per second", ylim=(0, None))
    right.set(xlabel="cards that write, of 8", ylabel="mean staleness (updates)", ylim=(0, None))
    left.set_title("throughput")
    right.set_title("age")
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8.5
    )
    return figure


def two_clocks(runs: dict[str, tuple[np.ndarray, np.ndarray]], top: float) -> Figure:
    """The same runs on two clocks: label → (times (updates + 1,), J (seeds, updates + 1))."""
    figure, axes = plt.subplots(1, 2, figsize=(7.8, 3.4), sharey=True)
    for (label, (times, values)), name in zip(runs.items(), CLOCKS, strict=False):
        look = style(name) | {"markevery": max(1, len(times) // 6)}
        for axis, x in zip(axes, (np.arange(len(times)), np.asarray(times)), strict=True):
            axis.plot(x, values.mean(0), label=label, **look)
            band = {"color": look["color"], "alpha": 0.13, "linewidth": 0}
            axis.fill_between(x, values.min(0), values.max(0), **band)
    for axis, label in zip(axes, ("updates", "simulated seconds"), strict=True):
        axis.axhline(top, color=FAINT, linewidth=0.8, linestyle=":")
        axis.set_xlabel(label)
    axes[0].set_ylabel("exact J (points)")
    axes[0].set_title("what an update is worth")
    axes[1].set_title("what a second is worth")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=9
    )
    return figure


WHOSE = {  # of a token: fill, edge, word
    "prompt": ("#e9e9e9", FAINT, "prompt: not trained"),
    "agent": ("#d9ebf7", "#0072B2", "agent: trained"),
    "tool": ("#fdf1d8", "#d8a93a", "tool: read, not trained"),
}


def trajectories(played: Trajectories, rows: Sequence[int]) -> Figure:
    """Episodes as rows of tokens, coloured by who wrote them, with the mask's 0 or 1 below."""
    figure, axis = plt.subplots(figsize=(7.8, 0.62 * len(rows) + 0.9))
    rewards = played.rewards.flatten()
    for y, row in enumerate(rows):
        last = int((played.mask[row] | played.observed[row]).nonzero().max())
        for x in range(last + 1):
            who = (
                "agent" if played.mask[row, x] else "tool" if played.observed[row, x] else "prompt"
            )
            fill, edge, _ = WHOSE[who]
            box = Rectangle((x - 0.46, y - 0.36), 0.92, 0.72, facecolor=fill, edgecolor=edge)
            axis.add_patch(box)
            word = TOKENS[int(played.tokens[row, x])]
            text = {"ha": "center", "va": "center"}
            axis.text(x, y - 0.1, word, fontsize=8.5 if len(word) < 9 else 7.5, **text)
            axis.text(
                x, y + 0.22, str(int(played.mask[row, x])), fontsize=7, color="#555555", **text
            )
        points = "1 point" if rewards[row] == 1 else f"{rewards[row]:.0f} points"
        axis.text(last + 0.62, y, points, va="center", fontsize=8.5)
    axis.set(xlim=(-0.6, 8.9), ylim=(len(rows) - 0.5, -0.5))
    axis.axis("off")
    handles = [Patch(facecolor=f, edgecolor=e, label=w) for f, e, w in WHOSE.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9)
    return figure
