"""Baseline and variance: what subtracting a number from the reward does to one answer's gradient.

Lecture 02, [BL-3] to [BL-5] and [BL-13], on the sorter of the prompt (1, 0, 2) and on two arms.
The numbers here come from `toy_models.exact`; the picture is drawn by baseline_variance.js.
Leaves out: sampling, groups of answers, and baselines that differ from token to token.
"""

import math
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from lectures.widgets.base import Choice, LectureWidget, Slider, module
from lectures.widgets.still import (
    BOLD,
    GRID,
    HALO,
    INK,
    PICTURE_WIDTH,
    SERIES,
    SOFT,
    Still,
    fixed,
    frame,
    significant,
    spread,
)  # fmt: skip
from toy_models import exact
from toy_models.policies import Policy
from toy_models.sorting import inclusion_ordering_reward, sorted_reward

MOST_SKILL = 6
PROMPT = torch.tensor([[1, 0, 2]])
NAMES = {"binary": "Right or wrong", "graded": "Partial credit", "arms": "Two arms"}


class TwoArms(Policy):
    """One answer of one token, 0 (right) or 1, one logit; its score vector is a number."""

    def __init__(self, logit: float):
        super().__init__(2, 1)
        self.logit = torch.nn.Parameter(torch.tensor([logit], dtype=torch.float64))

    def logits(self, prompts: Tensor, responses: Tensor | None = None) -> Tensor:
        table = torch.cat([self.logit, torch.zeros_like(self.logit)])
        rows = len(prompts) if responses is None else len(responses)
        return table.expand(rows, 1, 2)


def first_arm(prompts: Tensor, responses: Tensor) -> Tensor:
    """1 for the first arm, else 0."""
    return (responses[..., 0] == 0).double()


REWARDS = {"binary": sorted_reward, "graded": inclusion_ordering_reward, "arms": first_arm}


def policy_of(reward: str, skill: float) -> Policy:
    """The policy of a family at a skill, in nats."""
    if reward == "arms":
        return TwoArms(skill)
    return exact.skilled_policy(exact.random_logits(3, 3, scale=0.3, seed=0), PROMPT, skill)


def baselines(reward: str, skill: float) -> tuple[Tensor, Tensor]:
    """(0, V, b*) and their variances, (3,) each, in points and points²."""
    policy, judge = policy_of(reward, skill), REWARDS[reward]
    mean = exact.expected_reward(policy, PROMPT, judge).detach()
    b = torch.stack([0 * mean, mean, exact.exact_optimal_baseline(policy, PROMPT, judge)])
    return b, exact.variance_trace(policy, PROMPT, judge, b)


def pass_rate(reward: str, skill: float) -> float:
    """Probability of the right answer."""
    right = first_arm if reward == "arms" else sorted_reward
    return exact.expected_reward(policy_of(reward, skill), PROMPT, right).item()


def rate(value: float) -> str:
    """A probability with two decimals, or as many as it takes not to be rounded to 0 or to 1."""
    digits = 2
    while digits < 8 and 1e-9 < value < 1 - 1e-9 and float(fixed(value, digits)) in (0, 1):
        digits += 1
    return fixed(value, digits)


@cache
def sweep(reward: str) -> list[list[float]]:
    """Variances of 0, V and b* at skills 0, 0.1, …: (61, 3)."""
    return [baselines(reward, i / 10)[1].tolist() for i in range(10 * MOST_SKILL + 1)]


@cache
def crossing(reward: str) -> dict[str, float | None]:
    """Skill and pass rate from which on V is worse than nothing [BL-5]: V ≥ 2b*."""

    def excess(skill: float) -> float:
        _, mean, best = baselines(reward, skill)[0].tolist()
        return mean - 2 * best

    if excess(MOST_SKILL) < 0:
        return {"skill": None, "pass_rate": None}
    low, high = 0.0, float(MOST_SKILL)
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return {"skill": high, "pass_rate": pass_rate(reward, high)}


class BaselineVariance(LectureWidget):
    """The variance of one answer's gradient (R − b) u as a parabola in the baseline b.

    `BaselineVariance(reward="graded", skill=0)`; reward is "binary", "graded" or "arms".
    """

    name = "baseline_variance"
    _esm = module("baseline_variance")
    reward = Choice(
        "binary",
        "Reward",
        {"binary": "right or wrong", "graded": "partial credit", "arms": "two arms"},
    )
    skill = Slider(2.0, "skill k (nats)", low=0, high=MOST_SKILL, step=0.1, digits=1)
    baseline = Slider(0.3, "your baseline b", low=-1, high=6, step=0.05, digits=2)
    presets: ClassVar = {
        "novice": ("Novice, partial credit", {"reward": "graded", "skill": 0, "baseline": 4.5}),
        "expert": ("Expert, partial credit", {"reward": "graded", "skill": 4, "baseline": 4.5}),
        "hits": ("Expert, right or wrong", {"reward": "binary", "skill": 4, "baseline": 0.3}),
        "arms": (
            "Two arms, p = 0.9",
            {"reward": "arms", "skill": math.log(9), "baseline": 0.3},
        ),
    }
    still_height = 642
    examples: ClassVar = [
        {},
        {"skill": 1},
        {"skill": 4},
        {"reward": "graded", "skill": 0, "baseline": 4.5},
        {"reward": "graded", "skill": 2, "baseline": 6},
        {"reward": "graded", "skill": 4, "baseline": -1},
        {"reward": "graded", "skill": 6, "baseline": 3.65},
        {"reward": "arms", "skill": math.log(9), "baseline": 0.1},
        {"reward": "arms", "skill": 0, "baseline": 0.5},
        {"reward": "arms", "skill": 6, "baseline": 6},
        {"skill": 6, "baseline": 0},
        {"skill": 0, "baseline": 6},
        {"skill": 1.22, "baseline": -1},
    ]

    @property
    def numbers(self) -> dict[str, Any]:
        policy, judge = policy_of(self.reward, self.skill), REWARDS[self.reward]
        b, variance = baselines(self.reward, self.skill)
        own = exact.variance_trace(policy, PROMPT, judge, self.baseline)
        chance = exact.response_log_probs(policy, PROMPT)[0].detach().exp()
        squares = chance * exact.scores(policy, PROMPT).square().sum(1)
        size = squares.sum().item()
        points = exact.all_rewards(policy, PROMPT, judge)[0]
        right = exact.all_rewards(
            policy, PROMPT, first_arm if self.reward == "arms" else sorted_reward
        )[0]
        return {
            "pass_rate": pass_rate(self.reward, self.skill),
            "mean": b[1].item(),
            "best": b[2].item(),
            "variance": dict(
                zip(("none", "mean", "best", "own"), [*variance.tolist(), own.item()], strict=True)
            ),
            "score_square": size,
            "levels": [
                {
                    "reward": level,
                    "answers": chance[points == level].sum().item(),
                    "squares": squares[points == level].sum().item() / size,
                }
                for level in points.unique().tolist()
            ],
            "right_squares": (squares * right).sum().item() / size,
            "crossing": crossing(self.reward),
            "sweep": sweep(self.reward)[::10],  # at whole skills
        }

    @property
    def sentence(self) -> str:
        found = self.numbers
        p, mean, best, variance = (found[k] for k in ("pass_rate", "mean", "best", "variance"))
        times = variance["none"] / variance["mean"] if variance["mean"] > 1e-12 else math.inf
        if times == math.inf:
            verdict = "the mean removes all of it"
        elif abs(times - 1) < 0.005:
            verdict = "the mean is as good as nothing"
        elif times > 1:
            verdict = f"the mean is {significant(times, 3)} times better than nothing"
        else:
            verdict = f"the mean is {significant(1 / times, 3)} times worse than nothing"
        side = "close to V" if abs(best - mean) < 0.005 else "below V" if best < mean else "above V"
        return (
            f"{NAMES[self.reward]}, pass rate {rate(p)}: the variance is "
            f"{significant(variance['none'], 3)} without a baseline and "
            f"{significant(variance['mean'], 3)} with the mean reward V = {rate(mean)} "
            f"subtracted; here {verdict}. "
            f"The best constant, b* = {rate(best)}, gives {significant(variance['best'], 3)}; "
            f"your b = {fixed(self.baseline, 2)} gives {significant(variance['own'], 3)}. "
            f"Right answers are {fixed(100 * p, 1)} % of all answers and hold "
            f"{fixed(100 * found['right_squares'], 1)} % of the squared length of the score "
            f"vectors"
            f"{';' if self.reward == 'graded' else ':'} b* lies {side}."
        )

    @property
    def note(self) -> str:
        toy = (
            "Two arms, one logit k: the right arm pays 1, the other 0; b* leaves no variance. "
            if self.reward == "arms"
            else "Sort (1, 0, 2): nine logits; the skill adds k nats to those of the right tokens. "
        )
        return (
            toy + "Variance: trace of the covariance of (R − b) u, where u = ∇ log π of the answer."
            " [BL-4]; Greensmith, Bartlett and Baxter 2004 study b* for policy gradients."
        )

    def react(self, key: str) -> dict[str, Any]:
        if key != "reward":
            return {}
        return {"baseline": 4.5 if self.reward == "graded" else 0.3}

    def draw_still(self, still: Still) -> None:
        _draw(self, still)


# --- the still picture: the layout of baseline_variance.js --------------------------------------

LEFT, WIDTH = 56, PICTURE_WIDTH - 56 - 14
CURVE, SHARES, SWEEP = (78, 160), (294, 84), (478, 120)  # top, height
RANGE = {"binary": (-0.25, 1.25), "arms": (-0.25, 1.25), "graded": (-0.5, 6)}
DECADES = {"binary": (-6, 0), "arms": (-8, 0), "graded": (-3, 2)}
LOOKS = [  # none, V, b*, yours
    {"color": INK, "linestyle": "-", "marker": "o"},
    {"color": SERIES[2], "linestyle": (0, (6, 2, 1.5, 2)), "marker": "D"},
    {"color": SERIES[3], "linestyle": (0, (4, 3)), "marker": "^"},
    {"color": INK, "linestyle": "-", "marker": "o"},
]
SMALL = {"fontsize": 9.5, "color": INK}


def _draw(widget: BaselineVariance, still: Still) -> None:
    found, reward, own = widget.numbers, widget.reward, widget.baseline
    xlim = min(RANGE[reward][0], own - 0.25), max(RANGE[reward][1], own + 0.25)
    values = [found["variance"][key] for key in ("none", "mean", "best", "own")]
    marks = list(zip([0.0, found["mean"], found["best"], own], values, strict=True))
    page = still.axes(0, 0, PICTURE_WIDTH, widget.still_height)  # in screen pixels, over the panels
    page.set(xlim=(0, PICTURE_WIDTH), ylim=(widget.still_height, 0), zorder=9)
    page.axis("off")
    curve, shares, skill = (
        still.axes(LEFT, top, WIDTH, height) for top, height in (CURVE, SHARES, SWEEP)
    )
    _draw_curve(curve, page, marks, found, xlim)
    _draw_shares(shares, page, found, xlim)
    _draw_sweep(skill, page, widget, found)


def _draw_curve(axis: Axes, page: Axes, marks: list, found: dict, xlim: tuple) -> None:
    frame(axis, "")
    axis.tick_params(bottom=False, labelbottom=False, left=False)
    top = _round_top(max(value for _, value in marks))
    axis.set(xlim=xlim, ylim=(0, top))
    axis.locator_params(axis="y", nbins=4)
    axis.grid(axis="y", color=GRID, linewidth=0.8)
    grid = np.linspace(*xlim, 201)
    lowest, size = found["variance"]["best"], found["score_square"]
    axis.plot(grid, lowest + size * (grid - found["best"]) ** 2, color=INK, linewidth=1.6)
    page.text(LEFT, 20, "Variance of one answer’s gradient", **BOLD)
    titles = ["no baseline", f"V = {rate(found['mean'])}", f"b* = {rate(found['best'])}"]
    titles.append(f"your b = {fixed(marks[3][0], 2)}")
    places = [LEFT + WIDTH * (b - xlim[0]) / (xlim[1] - xlim[0]) for b, _ in marks]
    order = sorted(range(4), key=lambda i: (marks[i][0], i))
    spots = spread([places[i] for i in order], 108, LEFT + 40, LEFT + WIDTH - 40)
    for i, spot in zip(order, spots, strict=True):
        (b, value), look = marks[i], LOOKS[i]
        thin = {"color": look["color"], "linewidth": 1.1}
        page.plot([spot, places[i]], [CURVE[0] - 14, CURVE[0]], **thin)
        axis.plot([b, b], [value, top], linestyle=look["linestyle"], **thin)
        page.text(spot, CURVE[0] - 34, titles[i], ha="center", **BOLD)
        page.text(spot, CURVE[0] - 18, significant(value, 3), ha="center", **SMALL)
        _mark(axis, i, b, value)
    for i in (1, 2):  # V and b* pass from the curve down to the bars, not through the words between
        look = {"color": LOOKS[i]["color"], "linestyle": LOOKS[i]["linestyle"], "linewidth": 1.1}
        for ends in ([sum(CURVE), sum(CURVE) + 14], [SHARES[0], sum(SHARES)]):
            page.plot([places[i]] * 2, ends, zorder=0, **look)


def _mark(axis: Axes, i: int, x: float, y: float) -> None:
    ring = {"markerfacecolor": "none", "markeredgecolor": INK, "markersize": 13}
    full = {"color": LOOKS[i]["color"], "markeredgecolor": "white", "markersize": 10}
    look = ring if i == 3 else full
    axis.plot(x, y, LOOKS[i]["marker"], clip_on=False, zorder=5, **look)


def _round_top(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value * 1.1))
    return power * next(f for f in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if f * power >= value * 1.1)


def _draw_shares(axis: Axes, page: Axes, found: dict, xlim: tuple) -> None:
    frame(axis, "")
    axis.set(xlim=xlim, ylim=(0, SHARES[1] / (SHARES[1] - 20)))  # room for a number above 100 %
    axis.set_xlabel("baseline b, reward R (points)", fontsize=9.5, color=INK)
    axis.set_yticks([])
    pixel = (xlim[1] - xlim[0]) / WIDTH
    wide = min(26, 0.42 / pixel)
    for level in found["levels"]:
        for i, side, key in ((1, -1, "answers"), (2, 1, "squares")):
            share, color = level[key], LOOKS[i]["color"]
            at = level["reward"] + side * 0.6 * wide * pixel
            face = color if i == 1 else "white"
            axis.bar(at, share, (wide - 4) * pixel, color=face, edgecolor=color, linewidth=1.6)
            label = f"{fixed(100 * share, 0)} %"
            if 100 * share < 0.5 or 99.5 <= 100 * share < 100 - 1e-9:
                label = "<1 %" if share < 0.5 else ">99 %"
            height = share + 5 / (SHARES[1] - 20)
            axis.text(at, height, label, ha="center", fontsize=9, color=INK, path_effects=HALO)
    _mark(axis, 1, found["mean"], 0)
    _mark(axis, 2, found["best"], 0)
    top = SHARES[0] - 12
    page.text(LEFT, top, "Two averages of the rewards", path_effects=HALO, **BOLD)
    for i, x, words in ((1, 226, "by frequency: V"), (2, 368, "by squared length ‖u‖²: b*")):
        face = LOOKS[i]["color"] if i == 1 else "white"
        look = {"markerfacecolor": face, "color": LOOKS[i]["color"], "markersize": 7.5}
        page.plot(LEFT + x + 17, top - 4, "s", markeredgewidth=1.5, **look)
        page.text(LEFT + x + 30, top, words, path_effects=HALO, **SMALL)


def _draw_sweep(axis: Axes, page: Axes, widget: BaselineVariance, found: dict) -> None:
    frame(axis, "")
    least, most = DECADES[widget.reward]
    axis.set(xlim=(0, MOST_SKILL), ylim=(10.0**least, 10.0**most), yscale="log")
    powers = range(least, most + 1, 2 if most - least > 5 else 1)
    labels = [f"{10.0**p:g}" if p >= -2 else f"$10^{{{p}}}$" for p in powers]
    axis.set_yticks([10.0**p for p in powers], labels)
    axis.minorticks_off()
    axis.grid(axis="y", color=GRID, linewidth=0.8)
    axis.tick_params(left=False)
    curves = np.array(sweep(widget.reward))  # (skills, 3)
    skills = np.arange(len(curves)) / 10
    names, room = ("no baseline", "mean V", "best b*"), (214, 354, 464)
    if widget.reward == "arms":  # b* leaves no variance, and a logarithmic axis has no 0
        names, room = ("none", "mean V", "b*: 0, off axis"), (214, 290, 400)
    for i, key in enumerate(("none", "mean", "best")):
        seen = curves[:, i] >= 10.0**least
        look = {"color": LOOKS[i]["color"], "linestyle": LOOKS[i]["linestyle"], "linewidth": 1.7}
        axis.plot(skills[seen], curves[seen, i], **look)
        if found["variance"][key] >= 10.0**least:
            _mark(axis, i, widget.skill, found["variance"][key])
        page.plot([LEFT + room[i], LEFT + room[i] + 24], [SWEEP[0] - 16] * 2, **look)
        page.text(LEFT + room[i] + 30, SWEEP[0] - 12, names[i], **SMALL)
    page.text(LEFT, SWEEP[0] - 12, "Variance against skill", **BOLD)
    flip = found["crossing"]
    words, at = "V beats no baseline at every skill", 0
    if flip["skill"] is not None:
        words, at = (
            f"beyond p = {fixed(flip['pass_rate'], 2)}, V is worse than no baseline",
            flip["skill"],
        )
        axis.axvline(at, color=SOFT, linewidth=1, linestyle=(0, (1.5, 2.5)))
    bottom = sum(SWEEP)
    left = LEFT + WIDTH * at / MOST_SKILL
    here = LEFT + WIDTH * widget.skill / MOST_SKILL
    crossed = left + 3 < here < left + 11 + 6.2 * len(words)  # the skill's line ends above them
    low = bottom - 24 if crossed else bottom
    page.plot([here, here], [SWEEP[0], low], color=SOFT, linewidth=1.2, zorder=0)
    page.text(left + 7, bottom - 8, words, fontsize=9, color=INK, path_effects=HALO)
    axis.set_xticks(range(MOST_SKILL + 1))
    for row, name in ((20, "k ="), (38, "p =")):
        page.text(LEFT - 20, bottom + row, name, ha="right", **SMALL)
    for k in range(MOST_SKILL + 1):
        x = LEFT + WIDTH * k / MOST_SKILL
        p = rate(pass_rate(widget.reward, k))
        page.text(x, bottom + 38, p, ha="center", **SMALL)
