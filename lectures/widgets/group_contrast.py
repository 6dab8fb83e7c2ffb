"""Group contrast: how much a prompt of a given pass rate weighs when its answers judge each other.

Lecture 08, [GR-3], [GR-4], [GR-10]: G answers to one prompt, each right with probability p, rewards
1 and 0. The expected update is a weight times ∇p, whatever the estimator; its size, the chance of
a group without contrast and the weights of the answers come from `toy_models.exact` and
`policy_gradients.advantages`.
Leaves out: several prompts at once, partial credit, and `eps` beside the standard deviation (0).
"""

import math
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator
from torch import Tensor

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
    fixed,
    frame,
    hatched,
    significant,
)
from policy_gradients.advantages import group_centered, group_standardized, leave_one_out
from toy_models.exact import prompt_weight, zero_contrast_probability

ESTIMATORS = {
    "grpo_0": lambda rewards: group_standardized(rewards, ddof=0, eps=0.0),
    "grpo_1": lambda rewards: group_standardized(rewards, ddof=1, eps=0.0),
    "dr_grpo": group_centered,
    "rloo": leave_one_out,
}
NAMES = {
    "grpo_0": "GRPO (ddof 0)",
    "grpo_1": "GRPO (ddof 1)",
    "dr_grpo": "Dr. GRPO",
    "rloo": "RLOO",
}
RATES = [i / 100 for i in range(1, 100)]  # of the curve
SHOWN = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)  # of the curve, in `numbers`


def answer_weights(estimator: str, group: int) -> Tensor:
    """(group − 1, 2): weight of a right and of a wrong answer, by the number of right ones, 1 …"""
    right = torch.arange(1, group)
    rewards = (torch.arange(group) < right[:, None]).double()
    weights = ESTIMATORS[estimator](rewards)
    return weights[:, [0, -1]]


def chances(p: float, group: int) -> list[float]:
    """Probability of 0 … group right answers."""
    return [math.comb(group, k) * p**k * (1 - p) ** (group - k) for k in range(group + 1)]


def weight_of(estimator: str, p: float, group: int) -> float:
    """The factor on ∇p, silent groups counted as zeros [GR-3]."""
    return prompt_weight(p, group, ESTIMATORS[estimator]).item()


@cache
def curve(estimator: str, group: int, mixed: bool) -> list[float]:
    """The weight at each of RATES; `mixed`: given contrast [GR-10]."""
    p = torch.tensor(RATES, dtype=torch.float64)
    weights = prompt_weight(p, group, ESTIMATORS[estimator])
    return (weights / (1 - zero_contrast_probability(p, group)) if mixed else weights).tolist()


class GroupContrast(LectureWidget):
    """What a group of answers makes of a prompt: `GroupContrast(p=0.02, group=8)`.

    p         : pass rate, .01 to .99       group : answers per prompt, 2 to 64
    estimator : "grpo_0", "grpo_1" (ddof of the standard deviation), "dr_grpo", "rloo"
    silent    : what happens to groups without contrast: "kept", "new" (other prompts take their
                place), "same" (the same prompt is sampled until its group is mixed)
    """

    name = "group_contrast"
    _esm = module("group_contrast")
    p = Slider(0.02, "pass rate p", low=0.01, high=0.99, step=0.01, digits=2)
    group = Slider(8, "group size G", low=2, high=64, step=1, digits=0)
    estimator = Choice(
        "grpo_0",
        "Weight of an answer",
        {
            "grpo_0": "GRPO, ddof 0",
            "grpo_1": "GRPO, ddof 1",
            "dr_grpo": "Dr. GRPO",
            "rloo": "RLOO",
        },
    )
    silent = Choice(
        "kept",
        "Silent groups",
        {"kept": "kept", "new": "new prompts instead", "same": "same prompt again"},
    )
    presets: ClassVar = {
        "beginner": ("Hard, p = 0.02", {"p": 0.02, "group": 8, "silent": "kept"}),
        "even": ("Even, p = 0.5", {"p": 0.5, "group": 8, "silent": "kept"}),
        "pairs": ("Pairs", {"p": 0.1, "group": 2, "silent": "kept"}),
        "many": ("64 answers", {"p": 0.02, "group": 64, "silent": "kept"}),
        "insist": ("Until mixed", {"p": 0.01, "group": 8, "silent": "same"}),
    }
    examples: ClassVar = [
        {},
        {"p": 0.5},
        {"p": 0.01, "silent": "same"},
        {"p": 0.01, "silent": "new"},
        {"p": 0.99, "group": 2, "estimator": "dr_grpo", "silent": "same"},
        {"p": 0.01, "group": 2, "estimator": "grpo_1"},
        {"p": 0.3, "group": 3, "estimator": "rloo", "silent": "new"},
        {"p": 0.98, "group": 64},
        {"p": 0.5, "group": 64, "estimator": "grpo_1", "silent": "same"},
        {"p": 0.87, "group": 17, "estimator": "rloo"},
        {"p": 0.505, "group": 4, "estimator": "dr_grpo", "silent": "new"},
    ]
    still_height = 552

    @property
    def numbers(self) -> dict[str, Any]:
        zero = zero_contrast_probability(self.p, self.group)
        weight, even = (weight_of(self.estimator, p, self.group) for p in (self.p, 0.5))
        even_kept = 1 - zero_contrast_probability(0.5, self.group)
        answers = answer_weights(self.estimator, self.group)
        same = self.silent == "same"
        shown = curve(self.estimator, self.group, same)
        return {
            "zero": zero,
            "tries": 1 / (1 - zero),
            "weight": weight,
            "if_mixed": weight / (1 - zero),
            # of this prompt against one with p = ½, under this treatment of silent groups
            "relative": weight / even * (even_kept / (1 - zero) if same else 1),
            "bound": answers.abs().max().item(),
            "chances": chances(self.p, self.group),
            "right": answers[:, 0].tolist(),
            "wrong": answers[:, 1].tolist(),
            "curve": [shown[RATES.index(p)] for p in SHOWN],
        }

    @property
    def sentence(self) -> str:
        found = self.numbers
        zero, weight, mixed = (found[key] for key in ("zero", "weight", "if_mixed"))
        silent = (
            "practically every group has contrast"
            if zero < 5e-4
            else f"{percent(zero)} of the groups have no contrast and teach nothing"
        )
        if self.silent == "kept" or zero < 5e-4:
            middle = f"Averaged over all groups this prompt weighs {number(weight)} × ∇p"
        elif self.silent == "new":
            middle = (
                f"A mixed group weighs {number(mixed)} × ∇p, but {percent(1 - zero)} are "
                f"mixed, and the product is {number(weight)} as before: new prompts in "
                "place of the others change no prompt's share"
            )
        else:
            middle = (
                f"Sampled until its group is mixed, {number(found['tries'])} groups on "
                f"average, it weighs {number(mixed)} × ∇p instead of "
                f"{number(weight)}"
            )
        return (
            f"{NAMES[self.estimator]}, {self.group} answers, pass rate {fixed(self.p, 2)}: "
            f"{silent}. {middle}{against_even(self.p, found['relative'])}. "
            f"No answer's weight can exceed {number(found['bound'])}."
        )

    @property
    def note(self) -> str:
        return (
            "0/1 rewards, eps = 0. The expected update is the weight × ∇p [GR-3]; the dotted line "
            "is 1, as J itself weighs. Silent, hatched: no contrast [GR-4]. GRPO: Shao et al. "
            "2024, section 4.1, which does not say the ddof. Dr. GRPO: Liu et al. 2025. RLOO: "
            "Ahmadian et al. 2024. New prompts: DAPO, Yu et al. 2025, eq. 11."
        )

    def draw_still(self, still: Still) -> None:
        _draw(self, still)


def number(value: float) -> str:
    """`significant`, deaf to the last bits: 0.9999999999999999 is 1.00 in both languages."""
    return significant(value * (1 + 1e-12), 3)


def percent(share: float) -> str:
    """One decimal, or as many as it takes not to print a share as 0 or as 100 %."""
    digits = 1
    while digits < 6 and 1e-9 < share < 1 - 1e-9 and float(fixed(100 * share, digits)) in (0, 100):
        digits += 1
    return f"{fixed(100 * share * (1 + 1e-12), digits)} %"


def against_even(p: float, relative: float) -> str:
    if fixed(p, 2) == "0.50":
        return ""
    if abs(relative - 1) < 0.005:
        return "; as much as a prompt with p = 0.50"
    return f"; {number(relative)} times as much as a prompt with p = 0.50"


# --- the still picture: the layout of group_contrast.js -----------------------------------------

LEFT, RIGHT = 46, PICTURE_WIDTH - 10
SPLIT = 318  # end of the first panel
SECOND = 400  # begin of the others
TOP, HEIGHT = 62, 440
COUNTS, ANSWERS = (62, 180), (320, 182)  # top, height
LOWEST, HIGHEST = 0.4, 60
LINE_2 = {"fontsize": 9.5, "color": SOFT}


def steps_of(group: int) -> list[int]:
    """Round numbers of right answers for the axis, at most nine."""
    step = next(step for step in (1, 2, 4, 8) if group / step <= 8)
    return list(range(0, group + 1, step))


def _draw(widget: GroupContrast, still: Still) -> None:
    found, mixed_only = widget.numbers, widget.silent != "kept"
    page = still.axes(0, 0, PICTURE_WIDTH, widget.still_height)
    page.set(xlim=(0, PICTURE_WIDTH), ylim=(widget.still_height, 0), zorder=9)
    page.axis("off")
    same = widget.silent == "same"
    here = found["if_mixed"] if same else found["weight"]
    _heading(
        page,
        0,
        TOP,
        "Weight of the prompt",
        f"p = {fixed(widget.p, 2)}: {number(here)} × ∇p",
    )
    kept = f"the mixed ones, {percent(1 - found['zero'])} of all"
    words = kept if mixed_only else f"no contrast: {percent(found['zero'])}"
    _heading(page, SECOND - 46, COUNTS[0], f"Right answers among {widget.group} (in %)", words)
    _heading(page, SECOND - 46, ANSWERS[0], "Weight of one answer", "")
    y = ANSWERS[0] - 12
    page.plot(SECOND - 39, y - 4, "^", color=POSITIVE, markersize=7)
    page.text(SECOND - 28, y, "right", **LINE_2)
    page.plot(SECOND + 19, y - 4, "v", color=NEGATIVE, markersize=7)
    page.text(SECOND + 30, y, f"wrong; largest {number(found['bound'])}", **LINE_2)
    _draw_weight(still.axes(LEFT, TOP, SPLIT - LEFT, HEIGHT), widget, here)
    _draw_counts(still.axes(SECOND, COUNTS[0], RIGHT - SECOND, COUNTS[1]), widget, found)
    _draw_answers(still.axes(SECOND, ANSWERS[0], RIGHT - SECOND, ANSWERS[1]), widget, found)


def _heading(page: Axes, left: float, top: float, title: str, words: str) -> None:
    page.text(left, top - 32, title, **BOLD)
    page.text(left, top - 12, words, **LINE_2)


def _draw_weight(axis: Axes, widget: GroupContrast, here: float) -> None:
    frame(axis, "")
    axis.set(xlim=(0, 1), ylim=(LOWEST, HIGHEST), yscale="log")
    axis.yaxis.set_minor_locator(NullLocator())
    labels = (0.5, 1, 2, 5, 10, 20, 50)
    axis.set_yticks(labels, [f"{y:g}" for y in labels])
    axis.set_xticks((0, 0.25, 0.5, 0.75, 1), ("0", "0.25", "0.5", "0.75", "1"))
    axis.grid(axis="y", color=GRID, linewidth=0.8)
    axis.set_xlabel("pass rate p", fontsize=9.5, color=INK)
    axis.axhline(1, color=INK, linewidth=1.3, linestyle=(0, (1, 2.5)))
    same = widget.silent == "same"
    if same:
        plain = curve(widget.estimator, widget.group, False)
        axis.plot(RATES, plain, color=POSITIVE, linewidth=1.3, linestyle=(0, (5, 3)))
    axis.plot(RATES, curve(widget.estimator, widget.group, same), color=POSITIVE, linewidth=2)
    axis.axvline(widget.p, color=SOFT, linewidth=1.2)
    axis.plot(widget.p, here, "o", color=POSITIVE, markeredgecolor="white", markersize=10, zorder=5)


def _columns(axis: Axes, group: int) -> None:
    """Hatch the numbers of right answers without contrast; label the others."""
    axis.set_xlim(-0.5, group + 0.5)
    low, high = axis.get_ylim()
    hatched(axis, -0.5, 0.5, low, high)
    hatched(axis, group - 0.5, group + 0.5, low, high)
    axis.set_xticks(steps_of(group))


def _draw_counts(axis: Axes, widget: GroupContrast, found: dict) -> None:
    frame(axis, "")
    shares = np.array(found["chances"])
    if widget.silent != "kept":
        shares[[0, -1]] = 0
        shares /= shares.sum()
    axis.set_ylim(0, 1.08 * shares.max())
    axis.locator_params(axis="y", nbins=4)
    axis.yaxis.set_major_formatter(lambda y, _: f"{100 * y:g}")
    _columns(axis, widget.group)
    axis.tick_params(labelbottom=False)
    axis.bar(range(widget.group + 1), shares, width=0.72, color=SOFT, zorder=2)


def _draw_answers(axis: Axes, widget: GroupContrast, found: dict) -> None:
    frame(axis, "")
    axis.set_ylim(-1.12 * found["bound"], 1.12 * found["bound"])
    axis.locator_params(axis="y", nbins=5)
    _columns(axis, widget.group)
    axis.set_xlabel("right answers in the group", fontsize=9.5, color=INK)
    axis.axhline(0, color=SOFT, linewidth=1)
    counts = range(1, widget.group)
    for key, color, marker in (("right", POSITIVE, "^"), ("wrong", NEGATIVE, "v")):
        look = {"marker": marker, "markersize": 6 if widget.group <= 24 else 3.5}
        axis.plot(counts, found[key], color=color, linewidth=1, **look)
