"""Preference pairs: what gradient steps on comparisons do to the answers themselves.

Lecture 17, [PREF-4] to [PREF-6]: four answers, equally likely at the start, a few pairs, and plain
gradient descent on the mean loss of `policy_gradients.preferences`. With one logit per answer, or
with logits that answers share. preference_pairs.js draws in the browser and computes the same.
Leaves out: sampling, Adam, a reference other than the start, and KTO.
"""

import math
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch
from matplotlib.axes import Axes

from lectures.widgets.base import Choice, LectureWidget, Slider, module
from lectures.widgets.still import (
    BOLD,
    GRID,
    INK,
    NEGATIVE,
    PICTURE_WIDTH,
    POSITIVE,
    SOFT,
    Still,
    brief,
    fixed,
    frame,
    significant,
)
from policy_gradients.preferences import dpo, ipo

MOST = 400  # steps of every run
SHOWN = (0, 10, 50, 100, 200, 400)  # steps, in `numbers`
RATES = {"dpo": 1.0, "ipo": 0.02}  # IPO's push grows with the distance from its target
SAME = 1e-9  # a probability that has not moved
DEAF = 1 + 1e-12  # to the last bits, where a number lies on the edge of rounding

ONE_LOGIT_EACH = ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1))
ONE_LOGIT_PER_LETTER = ((2, 0), (1, 1), (1, 1), (0, 2))  # how often a and b stand in the answer


class Case(NamedTuple):
    """pairs : (chosen, rejected), indices of `answers`; logits of the answers are features · θ"""

    words: str
    pairs: tuple[tuple[int, int], ...]
    answers: tuple[str, ...] = ("a", "b", "c", "d")
    features: tuple[tuple[int, ...], ...] = ONE_LOGIT_EACH


CASES = {
    "one": Case("a ≻ b", ((0, 1),)),
    "overlap": Case("a ≻ b, c ≻ a", ((0, 1), (2, 0))),
    "shared": Case(
        "ab ≻ aa, shared letters", ((1, 0),), ("aa", "ab", "ba", "bb"), ONE_LOGIT_PER_LETTER
    ),
    "split": Case("a ≻ b twice, b ≻ a", ((0, 1), (0, 1), (1, 0))),
    "cycle": Case("a ≻ b ≻ c ≻ a", ((0, 1), (1, 2), (2, 0))),
}


class Stand(NamedTuple):
    """After a number of steps. probs : of the answers; chosen, rejected : mean log-probability
    over the pairs; gap : of the first pair's log-ratios; all nats but probs."""

    probs: list[float]
    chosen: float
    rejected: float
    gap: float
    loss: float


@cache
def descent(pairs: str, loss: str, strength: float) -> list[Stand]:
    """The start and every step of the run."""
    case = CASES[pairs]
    features = torch.tensor(case.features, dtype=torch.float64)
    chosen, rejected = torch.tensor(case.pairs).T
    theta = torch.zeros(features.shape[1], dtype=torch.float64, requires_grad=True)
    start = torch.log_softmax(features @ theta, 0).detach()
    stands = []
    for _ in range(MOST + 1):
        logp = torch.log_softmax(features @ theta, 0)
        sides = (logp[chosen], logp[rejected], start[chosen], start[rejected])
        losses = dpo(*sides, beta=strength) if loss == "dpo" else ipo(*sides, tau=strength)
        value = losses.mean()
        (slope,) = torch.autograd.grad(value, theta)
        with torch.no_grad():
            ratio = logp - start
            gap = ratio[chosen[0]] - ratio[rejected[0]]
            means = (logp[side].mean().item() for side in (chosen, rejected))
            stands.append(Stand(logp.exp().tolist(), *means, gap.item(), value.item()))
            theta -= RATES[loss] * slope
    return stands


def limit(pairs: str, loss: str, strength: float) -> float | None:
    """Where the first pair's gap ends, nats; None: it grows without end."""
    if pairs == "cycle":
        return 0.0
    if loss == "ipo":  # twice +t and once −t average to t/3
        return 1 / (2 * strength) / (3 if pairs == "split" else 1)
    return math.log(2) / strength if pairs == "split" else None  # P(a ≻ b) = 2/3


class PreferencePairs(LectureWidget):
    """Gradient steps on a few comparisons: `PreferencePairs(pairs="overlap", steps=200)`.

    pairs    : one of CASES: "one", "overlap", "shared", "split", "cycle"
    loss     : "dpo" or "ipo"
    strength : DPO's β or IPO's τ, 0.05 to 1
    steps    : of gradient descent so far, 0 to 400
    """

    name = "preference_pairs"
    _esm = module("preference_pairs")
    still_height = 520
    pairs = Choice("one", "Comparisons", {key: case.words for key, case in CASES.items()})
    loss = Choice("dpo", "Loss", {"dpo": "DPO", "ipo": "IPO"})
    strength = Slider(
        0.5, "β of DPO, τ of IPO", stops=[0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1],
        spoken="beta of DPO, tau of IPO",
    )  # fmt: skip
    steps = Slider(200, "gradient steps", low=0, high=MOST, step=5, digits=0)
    presets: ClassVar = {
        "one": ("One pair", {"pairs": "one", "loss": "dpo", "strength": 0.5, "steps": 200}),
        "overlap": (
            "Overlapping",
            {"pairs": "overlap", "loss": "dpo", "strength": 0.5, "steps": 200},
        ),
        "shared": ("Shared", {"pairs": "shared", "loss": "dpo", "strength": 0.5, "steps": 200}),
        "bounded": ("IPO", {"pairs": "overlap", "loss": "ipo", "strength": 0.5, "steps": 400}),
    }
    examples: ClassVar = [
        {},
        {"pairs": "overlap"},
        {"pairs": "shared"},
        {"pairs": "split", "strength": 0.1, "steps": 400},
        {"pairs": "cycle", "loss": "ipo"},
        {"pairs": "overlap", "loss": "ipo", "steps": 400},
        {"pairs": "shared", "loss": "ipo", "strength": 0.05, "steps": 400},
        {"steps": 0},
        {"pairs": "shared", "strength": 1, "steps": 1},
        {"pairs": "split", "loss": "ipo", "strength": 1, "steps": 30},
    ]

    @property
    def numbers(self) -> dict[str, Any]:
        """What the picture shows.

        probs  : of the four answers after `steps` (0.25 at the start)
        chosen, rejected : mean log-probability over the pairs, nats: [at the start, now]
        gap    : of the first pair's log-ratios, nats     end : where it ends, None: nowhere
        loss   : mean over the pairs: [at the start, now], nats (IPO: nats²)
        curves : chosen, rejected and loss after each of SHOWN
        """
        stands = self._stands
        now = stands[self.steps]
        return {
            "probs": now.probs,
            "chosen": [stands[0].chosen, now.chosen],
            "rejected": [stands[0].rejected, now.rejected],
            "gap": now.gap,
            "end": limit(self.pairs, self.loss, self.strength),
            "loss": [stands[0].loss, now.loss],
            "curves": {
                key: [getattr(stands[step], key) for step in SHOWN]
                for key in ("chosen", "rejected", "loss")
            },
        }

    @property
    def _stands(self) -> list[Stand]:
        return descent(self.pairs, self.loss, self.strength)

    @property
    def sentence(self) -> str:
        found, case = self.numbers, CASES[self.pairs]
        shown = ", ".join(
            f"{name} {chance(p)}" for name, p in zip(case.answers, found["probs"], strict=True)
        )
        return (
            f"{LOSSES[self.loss]} = {brief(self.strength)}, {steps_in_words(self.steps)}: {shown} "
            f"(0.250 each at the start). {self._verdict(found)} Loss "
            f"{significant(found['loss'][0], 3)} → {significant(found['loss'][1], 3)}."
        )

    def _verdict(self, found: dict[str, Any]) -> str:
        case = CASES[self.pairs]
        if self.steps == 0:
            return "Nothing has been learned yet."
        if self.pairs == "cycle":
            return "Nothing moves: the pushes of the three pairs cancel."
        (old, chosen), (_, rejected) = found["chosen"], found["rejected"]
        if chosen < old:
            top = max(range(4), key=lambda i: found["probs"][i])
            what = (
                f"Both fell: chosen answers from {fixed(old, 2)} to {fixed(chosen, 2)} nats on "
                f"average, rejected ones to {fixed(rejected, 2)}. The probability went to "
                f"{case.answers[top]} ({role(case, top)})."
            )
        else:
            what = (
                f"Chosen answers rose from {fixed(old, 2)} to {fixed(chosen, 2)} nats on average, "
                f"rejected ones fell to {fixed(rejected, 2)}."
            )
        first, second = (case.answers[i] for i in case.pairs[0])
        where = (
            "it has no end"
            if found["end"] is None
            else f"it ends at {fixed(found['end'] * DEAF, 2)}"
        )
        return (
            f"{what} Gap of {first} over {second}: {fixed(found['gap'] * DEAF, 2)} nats; {where}."
        )

    @property
    def note(self) -> str:
        how = (
            "One logit for a and one for b, at both places: π(ab) = π(a) π(b)."
            if self.pairs == "shared"
            else "One free logit per answer."
        )
        return (
            f"{how} The start is also the reference. Gradient steps on the pairs' mean loss, "
            "learning rate 1 (DPO) or 0.02 (IPO). The gap is that of the log-ratios. DPO: Rafailov "
            "et al. 2023, eq. 7; IPO: Azar et al. 2023, eq. 17."
        )

    def draw_still(self, still: Still) -> None:
        _draw(self, still)


LOSSES = {"dpo": "DPO, β", "ipo": "IPO, τ"}


def chance(p: float) -> str:
    """A probability with three decimals, or two significant digits where it is small."""
    return fixed(p, 3) if p >= 0.01 else significant(p, 2)


def role(case: Case, answer: int) -> str:
    """How often this answer was chosen and rejected."""
    words = {1: "once", 2: "twice"}
    counts = [sum(pair[side] == answer for pair in case.pairs) for side in (0, 1)]
    told = [
        f"{verb} {words[count]}"
        for verb, count in zip(("chosen", "rejected"), counts, strict=True)
        if count
    ]
    return ", ".join(told) or "in no pair"


# --- the still picture: the layout of preference_pairs.js ----------------------------------------

LEFT, SPLIT, SECOND, RIGHT = 40, 318, 396, PICTURE_WIDTH - 10
TOP, HEIGHT = 62, 380
LINES, LOSS = (62, 220), (352, 90)  # top, height
ROOM = 1.1  # top of the probability axis
SMALL = {"fontsize": 9.5, "color": INK}
BLUE = {"color": POSITIVE, "linewidth": 2}
ORANGE = {"color": NEGATIVE, "linewidth": 2, "linestyle": (0, (5, 3))}
START = {"color": INK, "linewidth": 1.3, "linestyle": (0, (1, 2.5))}


def _draw(widget: PreferencePairs, still: Still) -> None:
    found = widget.numbers
    page = still.axes(0, 0, PICTURE_WIDTH, widget.still_height)
    page.set(xlim=(0, PICTURE_WIDTH), ylim=(widget.still_height, 0), zorder=9)
    page.axis("off")
    page.text(8, TOP - 32, f"Probability after {steps_in_words(widget.steps)}", **BOLD)
    _triangle(page, 13, TOP - 16, True)
    page.text(24, TOP - 12, "chosen", **SMALL)
    _triangle(page, 89, TOP - 16, False)
    page.text(100, TOP - 12, "rejected (per pair)", **SMALL)
    page.plot([232, 256], [TOP - 16] * 2, **START)
    page.text(262, TOP - 12, "start", **SMALL)
    _bars(still.axes(LEFT, TOP, SPLIT - LEFT, HEIGHT), page, CASES[widget.pairs], found["probs"])
    top, height = LINES
    page.text(SECOND - 34, top - 32, "Mean log-probability (nats)", **BOLD)
    x = SECOND - 34
    page.plot([x, x + 24], [top - 16] * 2, **BLUE)
    page.text(x + 30, top - 12, f"chosen: {fixed(found['chosen'][1], 2)}", **SMALL)
    page.plot([x + 134, x + 158], [top - 16] * 2, **ORANGE)
    page.text(x + 164, top - 12, f"rejected: {fixed(found['rejected'][1], 2)}", **SMALL)
    _lines(still.axes(SECOND, top, RIGHT - SECOND, height), widget, found)
    top, height = LOSS
    unit = "nats" if widget.loss == "dpo" else "nats²"
    now = significant(found["loss"][1], 3)
    page.text(x, top - 12, f"Loss ({unit}): {now}", **BOLD)
    _loss(still.axes(SECOND, top, RIGHT - SECOND, height), widget, found)


def steps_in_words(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def _triangle(axis: Axes, x: float, y: float, up: bool) -> None:
    axis.plot(x, y, "^" if up else "v", color=POSITIVE if up else NEGATIVE, markersize=7)


def _bars(axis: Axes, page: Axes, case: Case, probs: list[float]) -> None:
    frame(axis, "")
    axis.set(xlim=(-0.5, 3.5), ylim=(0, ROOM))
    axis.set_xticks(range(4), case.answers)
    axis.grid(axis="y", color=GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    colors = [SOFT if abs(p - 0.25) < SAME else POSITIVE if p > 0.25 else NEGATIVE for p in probs]
    axis.bar(range(4), probs, 0.6, color=colors)
    axis.axhline(0.25, **START)
    column = (SPLIT - LEFT) / 4
    for i, p in enumerate(probs):
        y = TOP + HEIGHT * (1 - p / ROOM)
        line = TOP + HEIGHT * (1 - 0.25 / ROOM)
        y = line if line < y < line + 24 else y  # the number stands above the start's line
        x = LEFT + column * (i + 0.5)
        page.text(x, y - 6, chance(p), ha="center", **SMALL)
        marks = [side for side in (0, 1) for pair in case.pairs if pair[side] == i]
        for k, side in enumerate(marks):
            _triangle(page, x + 13 * (k - (len(marks) - 1) / 2), TOP + HEIGHT + 34, side == 0)


def _steps_axis(axis: Axes, widget: PreferencePairs) -> None:
    frame(axis, "")
    axis.set(xlim=(0, MOST), xticks=range(0, MOST + 1, 100))
    axis.grid(axis="y", color=GRID, linewidth=0.8)
    axis.axvline(widget.steps, color=SOFT, linewidth=1.2)


def _lines(axis: Axes, widget: PreferencePairs, found: dict[str, Any]) -> None:
    _steps_axis(axis, widget)
    axis.tick_params(labelbottom=False)
    stands = widget._stands
    lowest = min(stand.rejected for stand in stands)
    axis.set_ylim(1.06 * min(lowest, -2), 0)
    axis.locator_params(axis="y", nbins=6)
    axis.axhline(math.log(0.25), **START)
    axis.plot([stand.chosen for stand in stands], **BLUE)
    axis.plot([stand.rejected for stand in stands], **ORANGE)
    look = {"markersize": 9, "markeredgecolor": "white", "clip_on": False, "zorder": 5}
    axis.plot(widget.steps, found["chosen"][1], "^", color=POSITIVE, **look)
    axis.plot(widget.steps, found["rejected"][1], "v", color=NEGATIVE, **look)


def _loss(axis: Axes, widget: PreferencePairs, found: dict[str, Any]) -> None:
    _steps_axis(axis, widget)
    axis.set_xlabel("gradient steps", **SMALL)
    losses = [stand.loss for stand in widget._stands]
    axis.set_ylim(0, 1.08 * max(losses))
    axis.locator_params(axis="y", nbins=3)
    axis.plot(losses, color=INK, linewidth=1.8)
    look = {"markersize": 8, "markeredgecolor": "white", "clip_on": False, "zorder": 5}
    axis.plot(widget.steps, found["loss"][1], "o", color=INK, **look)
