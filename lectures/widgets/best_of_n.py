"""Best of N: what choosing among N answers yields, how far it goes, and what a flawed judge does.

Lecture 20, [CAI-10], [CAI-11]: the sampler of `toy_models.planning.sorting_tree` writes N of its
121 answers to (1, 0, 2), a judge keeps the one it likes best. Exact: the law of the kept answer,
its true reward over N and over the KL, beside the Gibbs distributions of the same judge. The
numbers here come from `toy_models.planning`; best_of_n.js draws in the browser and computes the
same.
Leaves out: the price of N answers, other prompts, and judges that are learned.
"""

import math
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch
from matplotlib.axes import Axes
from torch import Tensor

from lectures.widgets.base import Choice, LectureWidget, Slider, module
from lectures.widgets.still import (
    BOLD,
    GRID,
    INK,
    LINE,
    PICTURE_WIDTH,
    SERIES,
    SOFT,
    Still,
    brief,
    fixed,
    frame,
    significant,
)
from toy_models import planning
from toy_models.exact import response_log_probs, responses_of
from toy_models.sorting import inclusion_ordering_reward, is_sorted, sort_then_end_reward

PROMPT = torch.tensor([[1, 0, 2]])
END = 3  # the token that ends an answer
MOST = 64  # the largest N
NS = (1, 2, 4, 8, 16, 32, 64)  # marked in the picture, and in `numbers`
BETAS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
WIDE = 1e3  # of the curve's first point: practically home
TOLD = (0.1, 0.5, 1.0, 3.0)  # of the curve, in `numbers`
SAME = 1e-9  # nats or points: rounding


class Sampler(NamedTuple):
    """probs, reward, score : (answers,); score is the judge's, on average over its own dice."""

    probs: Tensor
    reward: Tensor
    score: Tensor


@cache
def sampler(skill: float, reward: str, judge: str) -> Sampler:
    home = planning.sorting_tree(PROMPT, END, skill=skill)
    answers = responses_of(home)
    with torch.no_grad():
        probs = response_log_probs(home, PROMPT)[0].exp()
    rule = sort_then_end_reward if reward == "points" else is_sorted
    paid = rule(PROMPT, answers, eos_id=END).double()
    partial = inclusion_ordering_reward(PROMPT, answers, eos_id=END).double()
    return Sampler(probs, paid, partial if judge == "partial" else paid)


@cache
def kept(skill: float, reward: str, judge: str, error: float, n: int) -> tuple[Tensor, float]:
    """(answers,) law of the kept answer, and the score that the judge gives it on average.

    The judge is `error` points too high or too low, by a fair coin for each answer drawn, so each
    answer is listed twice [CAI-10].
    """
    probs, _, score = sampler(skill, reward, judge)
    scores = torch.cat([score + error, score - error])
    law = planning.best_of_n_law(torch.cat([probs, probs]) / 2, scores, n)
    return law[: len(probs)] + law[len(probs) :], float(law @ scores)


def distance(law: Tensor, probs: Tensor) -> float:
    """KL(law ‖ probs), nats."""
    return torch.xlogy(law, law / probs).sum().item()


@cache
def over_n(skill: float, reward: str, judge: str, error: float) -> list[list[float]]:
    """[KL, true reward] for N = 1 … MOST."""
    probs, paid, _ = sampler(skill, reward, judge)
    laws = [kept(skill, reward, judge, error, n)[0] for n in range(1, MOST + 1)]
    return [[distance(law, probs), float(law @ paid)] for law in laws]


def tilted(home: Sampler, beta: float) -> list[float]:
    """[KL, true reward] of the Gibbs distribution of the judge's mean score."""
    law = torch.softmax(home.probs.log() + home.score / beta, 0)
    return [distance(law, home.probs), float(law @ home.reward)]


@cache
def frontier(skill: float, reward: str, judge: str) -> list[list[float]]:
    """[KL, true reward] of Gibbs from practically home to practically its end, a curve."""
    home = sampler(skill, reward, judge)
    return [tilted(home, WIDE * 10 ** (-i / 20)) for i in range(101)]


class BestOfN(LectureWidget):
    """The best of N answers by a judge, exactly: `BestOfN(n=8, judge="partial")`.

    n      : answers drawn, 1 to 64         skill : of the sampler, 0 (blind) to 4
    reward : the true one: "points" (0 to 4) or "binary" (right or wrong)
    judge  : who keeps: "rule" (the reward itself), "coin" (the reward, `error` too high or too
             low), "partial" (a point per number that occurs, one per neighbour in order: it does
             not ask for an end)
    beta   : of the Gibbs distribution that is drawn beside, in units of the judge's score
    """

    name = "best_of_n"
    _esm = module("best_of_n")
    n = Slider(4, "answers drawn, N", low=1, high=MOST, step=1, digits=0)
    skill = Slider(1.0, "skill of the sampler", low=0, high=4, step=0.5, digits=1)
    reward = Choice("points", "Reward", {"points": "points, 0 to 4", "binary": "right or wrong"})
    judge = Choice(
        "rule",
        "Kept by",
        {"rule": "the reward itself", "coin": "reward ± error", "partial": "partial credit"},
    )
    error = Slider(1.0, "error of the judge", low=0.5, high=3, step=0.5, digits=1)
    beta = Slider(0.5, "β of Gibbs", stops=list(BETAS), spoken="beta of the Gibbs distribution")
    presets: ClassVar = {
        "four": ("Best of 4", {"n": 4, "skill": 1, "reward": "points", "judge": "rule"}),
        "able": ("Able sampler", {"n": 16, "skill": 3, "reward": "points", "judge": "rule"}),
        "binary": ("0/1 reward", {"n": 16, "skill": 1, "reward": "binary", "judge": "rule"}),
        "noisy": (
            "Noisy judge",
            {"n": 64, "skill": 1, "reward": "points", "judge": "coin", "error": 1},
        ),
        "flawed": (
            "Flawed judge",
            {"n": 64, "skill": 1, "reward": "binary", "judge": "partial"},
        ),
    }
    examples: ClassVar = [
        {},
        {"n": 64, "reward": "binary", "judge": "partial"},
        {"n": 1},
        {"n": 64, "judge": "coin", "error": 1},
        {"n": 16, "skill": 3, "beta": 0.05},
        {"n": 8, "skill": 4, "reward": "binary", "judge": "coin", "error": 0.5},
        {"n": 37, "skill": 0, "judge": "coin", "error": 3},
        {"n": 8, "skill": 2, "judge": "partial", "beta": 0.3},
        {"n": 2, "skill": 0, "reward": "binary", "beta": 0.05},
    ]
    still_height = 568

    @property
    def numbers(self) -> dict[str, Any]:
        """What the picture shows; a law is a list of shares, one per level of the reward.

        levels : of the true reward, points
        home, chosen, gibbs : laws of one draw, of the kept answer, of Gibbs at β
        J      : mean true reward of these; `same`: of Gibbs at the kept answer's KL; `rule`: of
                 the best of N kept by the reward itself
        kl     : nats from one draw; `bound`: log N − (N − 1)/N; `top`: −log P(best score)
        says   : the judge's score of what it kept, on average
        peak   : the N, up to 64, with the largest mean true reward
        over_n, frontier : [KL, J] for each of NS; of Gibbs for each of TOLD
        """
        home = sampler(self.skill, self.reward, self.judge)
        probs, paid, score = home
        key = (self.skill, self.reward, self.judge, self._error)
        law, says = kept(*key, self.n)
        gibbs = torch.softmax(probs.log() + score / self.beta, 0)
        levels = paid.unique()

        def by_level(weights: Tensor) -> list[float]:
            return [weights[paid == level].sum().item() for level in levels]

        top = -probs[score == score.max()].sum().log().item()
        kl = distance(law, probs)
        if kl < SAME:
            same = float(probs @ paid)
        elif kl > top - SAME:
            same = tilted(home, 1e-3)[1]
        else:
            same = float(planning.gibbs_at_kl(probs, score, kl)[0] @ paid)
        rows = over_n(*key)
        enough = max(J for _, J in rows) - 1e-6
        return {
            "levels": levels.tolist(),
            "home": by_level(probs),
            "chosen": by_level(law),
            "gibbs": by_level(gibbs),
            "J": {
                "home": float(probs @ paid),
                "chosen": float(law @ paid),
                "gibbs": float(gibbs @ paid),
                "same": same,
                "rule": over_n(self.skill, self.reward, "rule", 0.0)[self.n - 1][1],
            },
            "kl": {
                "chosen": kl,
                "gibbs": distance(gibbs, probs),
                "bound": planning.best_of_n_bound(self.n),
                "top": top,
            },
            "says": says,
            "peak": next(i + 1 for i, row in enumerate(rows) if row[1] > enough),
            "over_n": [rows[n - 1] for n in NS],
            "frontier": [tilted(home, beta) for beta in TOLD],
        }

    @property
    def _error(self) -> float:
        return self.error if self.judge == "coin" else 0.0

    def worth(self, value: float) -> str:
        """A mean true reward in words."""
        return worth(value, self.reward)

    @property
    def sentence(self) -> str:
        found = self.numbers
        J, kl = found["J"], found["kl"]
        gibbs = (
            f"Gibbs at β = {brief(self.beta)}: {self.worth(J['gibbs'])}, "
            f"{significant(kl['gibbs'], 3)} nats."
        )
        if self.n == 1:
            return f"One draw: {self.worth(J['home'])}. Nothing is chosen: KL 0. {gibbs}"
        verdict = {"rule": self._efficiency, "coin": self._promise, "partial": self._fooled}
        largest = (
            f", more than there can be: −log P(best score) = {significant(kl['top'], 3)}"
            if kl["bound"] > kl["top"]
            else ""
        )
        return (
            f"Best of {self.n}: {self.worth(J['chosen'])} (one draw: {self.worth(J['home'])}), "
            f"{significant(kl['chosen'], 3)} nats from one draw; the formula log N − (N − 1)/N "
            f"says {significant(kl['bound'], 3)}{largest}. {verdict[self.judge](found)} {gibbs}"
        )

    def _efficiency(self, found: dict[str, Any]) -> str:
        J = found["J"]
        share = (J["chosen"] - J["home"]) / (J["same"] - J["home"])
        return (
            f"Gibbs at the same distance: {self.worth(J['same'])}, so best of N has "
            f"{fixed(100 * share * (1 + 1e-12), 1)} % of its gain."
        )

    def _promise(self, found: dict[str, Any]) -> str:
        unit = "points" if self.reward == "points" else "where right is worth 1"
        return (
            f"The judge, off by {fixed(self.error, 1)} up or down, promises "
            f"{fixed(found['says'], 2)} {unit}; kept by the reward itself: "
            f"{self.worth(found['J']['rule'])}. Gibbs at the same distance: "
            f"{self.worth(found['J']['same'])}."
        )

    def _fooled(self, found: dict[str, Any]) -> str:
        turn = f" Best was N = {found['peak']}." if found["peak"] < self.n else ""
        return (
            f"The judge gives {fixed(found['says'], 2)} of its 6 points; kept by the reward "
            f"itself: {self.worth(found['J']['rule'])}.{turn} Gibbs by the same judge at the same "
            f"distance: {self.worth(found['J']['same'])}."
        )

    @property
    def note(self) -> str:
        rule = (
            "The reward: a point per number in its place, one for holding exactly three."
            if self.reward == "points"
            else "The reward: 1 for exactly (0, 1, 2), else 0."
        )
        flawed = (
            " Partial credit: a point per number that occurs, one per neighbour in order; nothing "
            "for ending."
            if self.judge == "partial"
            else ""
        )
        return (
            f"Sort (1, 0, 2): 121 answers. {rule}{flawed} Gibbs: one draw × exp(score / β), the "
            "best for its KL by the judge's mean score [KL-7]. Formula: [CAI-11], Beirami et al. "
            "2024."
        )

    @property
    def off(self) -> set[str]:
        return set() if self.judge == "coin" else {"error"}

    def draw_still(self, still: Still) -> None:
        _draw(self, still)


def worth(value: float, reward: str) -> str:
    """A mean true reward in words."""
    value *= 1 + 1e-12
    return f"{fixed(value, 2)} points" if reward == "points" else f"{fixed(100 * value, 1)} % right"


# --- the still picture: the layout of best_of_n.js ----------------------------------------------

GUTTER, MEAN = 104, 70  # beside the bars: names, means
BARS, ROWS = (34, 130), 200  # top and height of the bars; first row of the table
LEFT, GAP, RIGHT = 40, 56, PICTURE_WIDTH - 10
TOP, HEIGHT = 326, 196
SMALL = {"fontsize": 9.5, "color": INK}
HOME = {"facecolor": "#dedede", "edgecolor": LINE}
KEPT, GIBBS, RULE = SERIES[0], SERIES[1], SERIES[2]


def _draw(widget: BestOfN, still: Still) -> None:
    found = widget.numbers
    page = still.axes(0, 0, PICTURE_WIDTH, widget.still_height)
    page.set(xlim=(0, PICTURE_WIDTH), ylim=(widget.still_height, 0), zorder=9)
    page.axis("off")
    _bars(page, still, widget, found)
    unit = "Mean reward (points)" if widget.reward == "points" else "Right answers (%)"
    wide = (RIGHT - LEFT - GAP) / 2
    second = LEFT + wide + GAP
    page.text(LEFT - 32, TOP - 30, f"{unit} over N", **BOLD)
    page.text(second - 32, TOP - 30, f"{unit} over KL (nats)", **BOLD)
    if widget.judge != "rule":
        page.plot([LEFT - 32, LEFT - 8], [TOP - 15] * 2, color=RULE, linestyle=":", linewidth=2)
        page.text(LEFT - 2, TOP - 11, "kept by the reward itself", **SMALL)
    page.plot([second - 32, second - 8], [TOP - 15] * 2, color=GIBBS, linestyle="--")
    page.text(second - 2, TOP - 11, "Gibbs, any β", **SMALL)
    ring = {"markerfacecolor": "none", "markeredgecolor": INK, "markersize": 9}
    page.plot(second + 100, TOP - 15, "o", **ring)
    page.text(second + 111, TOP - 11, "same KL", **SMALL)
    page.plot([second + 184] * 2, [TOP - 23, TOP - 7], color=SOFT, linestyle=":", linewidth=1.6)
    page.text(second + 191, TOP - 11, "formula", **SMALL)
    _over_n(still.axes(LEFT, TOP, wide, HEIGHT), widget, found)
    _over_kl(still.axes(second, TOP, wide, HEIGHT), widget, found)


def names(n: int, beta: float) -> list[str]:
    return ["one draw", f"best of {n}", f"Gibbs, β = {brief(beta)}"]


def _bars(page: Axes, still: Still, widget: BestOfN, found: dict[str, Any]) -> None:
    """The three laws: bars, and below them the same numbers as a table."""
    top, height = BARS
    laws = [found[key] for key in ("home", "chosen", "gibbs")]
    levels = range(len(found["levels"]))
    right = RIGHT - MEAN
    page.text(8, 18, "How often each reward comes (%)", **BOLD)
    axis = still.axes(GUTTER, top, right - GUTTER, height)
    frame(axis, "")
    axis.set(xlim=(-0.5, len(levels) - 0.5), ylim=(0, 1.1 * max(map(max, laws))), xticks=levels)
    axis.locator_params(axis="y", nbins=4)
    axis.yaxis.set_major_formatter(lambda y, _: f"{100 * y:g}")
    axis.set_xticks(list(levels), _level_names(widget, found))
    axis.grid(axis="y", color=GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.bar(levels, laws[0], 0.8, linewidth=1, **HOME)
    axis.bar(levels, laws[1], 0.4, color=KEPT)
    axis.plot(
        levels, laws[2], "D", color=GIBBS, markeredgecolor="white", markersize=8, clip_on=False
    )
    column = (right - GUTTER) / len(levels)
    page.text(RIGHT, ROWS - 22, "mean", ha="right", **(SMALL | {"color": SOFT}))
    for i, (name, law, key) in enumerate(
        zip(names(widget.n, widget.beta), laws, ("home", "chosen", "gibbs"), strict=True)
    ):
        y = ROWS + 21 * i
        look = [
            {"marker": "s", "markerfacecolor": HOME["facecolor"], "markeredgecolor": LINE},
            {"marker": "s", "color": KEPT},
            {"marker": "D", "color": GIBBS},
        ][i]
        page.plot(14, y - 4, markersize=7, **look)
        page.text(26, y, name, **SMALL)
        for k, share in enumerate(law):
            x = GUTTER + column * (k + 0.5)
            page.text(x, y, fixed(100 * share, 1), ha="center", **SMALL)
        mean = found["J"][key] * (1 + 1e-12)
        words = fixed(mean, 2) if widget.reward == "points" else fixed(100 * mean, 1)
        page.text(RIGHT, y, words, ha="right", fontweight="bold", **SMALL)


def _level_names(widget: BestOfN, found: dict[str, Any]) -> list[str]:
    if widget.reward == "binary":
        return ["wrong", "right"]
    return [f"{level:g}" for level in found["levels"][:-1]] + [f"{found['levels'][-1]:g} points"]


def _reward_axis(axis: Axes, widget: BestOfN) -> None:
    frame(axis, "")
    if widget.reward == "points":
        axis.set(ylim=(0, 4.2), yticks=range(5))
    else:
        axis.set_ylim(0, 1.05)
        axis.set_yticks((0, 0.25, 0.5, 0.75, 1), ("0", "25", "50", "75", "100"))
    axis.grid(axis="y", color=GRID, linewidth=0.8)


def _over_n(axis: Axes, widget: BestOfN, found: dict[str, Any]) -> None:
    _reward_axis(axis, widget)
    axis.set(xscale="log", xlim=(0.9, 71))
    axis.set_xticks(NS, [str(n) for n in NS])
    axis.minorticks_off()
    axis.set_xlabel("N", **SMALL)
    every = range(1, MOST + 1)
    rows = over_n(widget.skill, widget.reward, widget.judge, widget._error)
    if widget.judge != "rule":
        by_rule = over_n(widget.skill, widget.reward, "rule", 0.0)
        axis.plot(every, [J for _, J in by_rule], ":", color=RULE, linewidth=2)
    axis.plot(every, [J for _, J in rows], color=KEPT, linewidth=1.6)
    axis.plot(NS, [rows[n - 1][1] for n in NS], "s", color=KEPT, markersize=4)
    axis.axvline(widget.n, color=SOFT, linewidth=1)
    look = {"color": KEPT, "markeredgecolor": "white", "markersize": 10, "zorder": 5}
    axis.plot(widget.n, found["J"]["chosen"], "s", **look)


def _over_kl(axis: Axes, widget: BestOfN, found: dict[str, Any]) -> None:
    _reward_axis(axis, widget)
    kl, J = found["kl"], found["J"]
    furthest = reach(kl)
    axis.set_xlim(-0.02 * furthest, furthest)
    axis.set_xlabel("KL from one draw (nats)", **SMALL)
    curve = frontier(widget.skill, widget.reward, widget.judge)
    axis.plot(*zip(*curve, strict=True), "--", color=GIBBS, linewidth=1.8)
    rows = over_n(widget.skill, widget.reward, widget.judge, widget._error)
    axis.plot(*zip(*rows, strict=True), color=KEPT, linewidth=1)
    axis.plot(*zip(*found["over_n"], strict=True), "s", color=KEPT, markersize=4)
    axis.axvline(kl["bound"], color=SOFT, linestyle=":", linewidth=1.6)
    look = {"markeredgecolor": "white", "zorder": 5}
    axis.plot(kl["gibbs"], J["gibbs"], "D", color=GIBBS, markersize=8, **look)
    axis.plot(kl["chosen"], J["chosen"], "s", color=KEPT, markersize=10, **look)
    ring = {"markerfacecolor": "none", "markeredgecolor": INK, "markersize": 12}
    axis.plot(kl["chosen"], J["same"], "o", zorder=6, **ring)


def reach(kl: dict[str, float]) -> float:
    """Right end of the KL axis, nats: the formula at the largest N, or what lies beyond."""
    return 1.06 * max(planning.best_of_n_bound(MOST), kl["gibbs"], math.ceil(kl["chosen"]))
