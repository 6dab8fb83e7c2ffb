"""GAE: what λ and γ do to the bias and the variance of the policy gradient, for two critics.

Lecture 06, on the sorter of the prompt (1, 0, 2) with partial credit for the finished answer. The
policy is lecture 02's table of nine logits; the critic has a value for each of the 13 prefixes, so
that it can be wrong about each on its own. Everything is enumerated: the advantages come from
`policy_gradients.advantages.gae`; the picture is drawn by gae.js.
Leaves out: how a critic is trained, rewards before the last token, and answers of other lengths.
"""

import math
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from lectures.widgets.base import Choice, LectureWidget, Slider, module
from lectures.widgets.still import (
    BOLD,
    GRID,
    INK,
    PICTURE_WIDTH,
    SERIES,
    SOFT,
    Still,
    fixed,
    frame,
    significant,
    spread,
)
from policy_gradients.advantages import gae
from toy_models import exact
from toy_models.sorting import inclusion_ordering_reward

PROMPT = torch.tensor([[1, 0, 2]])
LENGTH = 3
LAMBDAS = [i / 100 for i in range(101)]
TOKENS_AHEAD = 40
# One error per prefix, shortest first, in dictionary order; scaled to a root mean square of 1.
PATTERN = [0.35, 0.82, 0.33, -1.3, 0.91, 0.45, -0.54, 0.58, 0.36, 0.29, 0.03, 0.55, -0.74]
CRITICS = {
    "noise": "noisy by prefix",
    "offset": "constant offset",
    "zero": "untrained: says 0",
}


class Sorter(NamedTuple):
    """All 27 responses of the policy at one skill, float64."""

    probs: Tensor  # (responses,)
    rewards: Tensor  # (responses,) points
    values: Tensor  # (responses, time) E[R | the tokens before t]
    states: Tensor  # (responses, time) number of the prefix before t
    scores: Tensor  # (responses, time, parameters)
    gradient: Tensor  # (parameters,) ∇J


@lru_cache(maxsize=64)
def sorter(skill: float) -> Sorter:
    """Enumerate the policy of the course's base logits with `skill` nats on the right tokens."""
    policy = exact.skilled_policy(exact.random_logits(3, 3, scale=0.3, seed=0), PROMPT, skill)
    prefix = exact.prefix_values(policy, PROMPT, inclusion_ordering_reward)
    first, second = exact.responses_of(policy)[:, :2].T
    return Sorter(
        probs=exact.response_log_probs(policy, PROMPT)[0].detach().exp(),
        rewards=prefix[:, -1],
        values=prefix[:, :-1],
        states=torch.stack([torch.zeros_like(first), 1 + first, 4 + 3 * first + second], 1),
        scores=exact.token_scores(policy, PROMPT).detach(),
        gradient=exact.exact_gradient(policy, PROMPT, inclusion_ordering_reward),
    )


def critic_values(toy: Sorter, critic: str, error: float, gamma: float) -> Tensor:
    """(responses, time) what the critic says before each token.

    "perfect" is the discounted value γ^(T−1−t) E[R | prefix]; "offset" and "noise" add `error`
    times 1 or a fixed pattern; "zero" says 0.
    """
    left = torch.arange(LENGTH - 1, -1, -1, dtype=torch.float64)  # tokens after this one
    perfect = toy.values * gamma**left
    if critic == "zero":
        return torch.zeros_like(perfect)
    if critic == "offset":
        return perfect + error
    if critic == "noise":
        pattern = torch.tensor(PATTERN, dtype=torch.float64)
        return perfect + error * (pattern / pattern.square().mean().sqrt())[toy.states]
    return perfect


def estimate(toy: Sorter, values: Tensor, *, gamma: float, lam: float) -> tuple[float, float]:
    """Squared bias |E g − ∇J|² and variance (trace) of one answer's g = Σ_t Â_t u_t."""
    rewards = torch.zeros_like(values)
    rewards[:, -1] = toy.rewards
    done = torch.zeros_like(values)
    done[:, -1] = 1
    advantages, _ = gae(rewards, values, done, gamma=gamma, lam=lam)
    g = torch.einsum("nt,ntd->nd", advantages, toy.scores)
    mean = toy.probs @ g
    variance = toy.probs @ g.square().sum(1) - mean @ mean
    return float((mean - toy.gradient).square().sum()), float(variance)


@lru_cache(maxsize=256)
def curves(skill: float, critic: str, error: float, gamma: float) -> np.ndarray:
    """Squared bias and variance at each of LAMBDAS: (101, 2)."""
    toy = sorter(skill)
    values = critic_values(toy, critic, error, gamma)
    return np.array([estimate(toy, values, gamma=gamma, lam=lam) for lam in LAMBDAS])


class Gae(LectureWidget):
    """Bias and variance of the policy gradient with GAE, for a perfect critic and a wrong one.

    `Gae(critic="noise", error=0.5, lam=0.95, gamma=1.0, answers=16, skill=0)`; critic is "noise",
    "offset" or "zero"; error in points; answers is the number N that one update averages.
    """

    name = "gae"
    _esm = module("gae")
    critic = Choice("noise", "The other critic", CRITICS)
    error = Slider(0.5, "its error (points)", low=0, high=2, step=0.05, digits=2)
    lam = Slider(0.95, "λ", low=0, high=1, step=0.01, digits=2, spoken="lambda")
    gamma = Slider(1.0, "γ", low=0.5, high=1, step=0.01, digits=2, spoken="gamma")
    answers = Slider(16, "answers N", stops=[2**i for i in range(11)], digits=0)
    skill = Slider(0.0, "skill (nats)", low=0, high=4, step=0.5, digits=1)
    presets: ClassVar = {
        "few": (
            "Noisy, 4 answers",
            {"critic": "noise", "error": 0.5, "lam": 0.95, "gamma": 1, "answers": 4, "skill": 0},
        ),
        "many": (
            "Noisy, 1024 answers",
            {"critic": "noise", "error": 0.5, "lam": 0.95, "gamma": 1, "answers": 1024, "skill": 0},
        ),
        "untrained": (
            "Untrained",
            {"critic": "zero", "error": 0.5, "lam": 0.95, "gamma": 1, "answers": 256, "skill": 0},
        ),
        "offset": (
            "Offset",
            {"critic": "offset", "error": 1, "lam": 0, "gamma": 1, "answers": 16, "skill": 0},
        ),
    }
    still_height = 560
    examples: ClassVar = [
        {},
        {"answers": 1024, "lam": 1},
        {"answers": 1, "lam": 0, "error": 2},
        {"critic": "zero", "answers": 256},
        {"critic": "zero", "answers": 1, "lam": 1, "skill": 4},
        {"critic": "offset", "error": 1, "lam": 0.5},
        {"gamma": 0.9, "answers": 1024},
        {"gamma": 0.5, "lam": 0.3, "skill": 2},
        {"error": 0, "lam": 0, "answers": 1},
        {"gamma": 0.99, "skill": 4, "critic": "offset", "error": 0.05, "answers": 64},
    ]

    @property
    def numbers(self) -> dict[str, Any]:
        toy = sorter(self.skill)
        found: dict[str, Any] = {"signal": float(toy.gradient.square().sum())}
        for key, critic in (("perfect", "perfect"), ("other", self.critic)):
            values = critic_values(toy, critic, self.error, self.gamma)
            bias, variance = estimate(toy, values, gamma=self.gamma, lam=self.lam)
            grid = curves(self.skill, critic, self.error, self.gamma)
            totals = grid[:, 0] + grid[:, 1] / self.answers
            best = int(totals.argmin())
            found[key] = {
                "bias": bias,
                "variance": variance,
                "error": bias + variance / self.answers,
                "best": LAMBDAS[best],
                "best_error": float(totals[best]),
                "biases": grid[::20, 0].tolist(),
                "variances": grid[::20, 1].tolist(),
            }
        return found

    @property
    def sentence(self) -> str:
        found = self.numbers
        perfect, other, n = found["perfect"], found["other"], fixed(self.answers, 0)
        return (
            f"{self._who()}, λ = {fixed(self.lam, 2)}, γ = {fixed(self.gamma, 2)}: "
            f"bias² {significant(other['bias'], 3)} + variance {significant(other['variance'], 3)}"
            f" / {n} = squared error {significant(other['error'], 3)}; not updating at all "
            f"has squared error ‖∇J‖² = {significant(found['signal'], 3)}. The best λ is "
            f"{fixed(other['best'], 2)} ({significant(other['best_error'], 3)}), with a perfect "
            f"critic {fixed(perfect['best'], 2)} ({significant(perfect['best_error'], 3)}). "
            + _moral(found)
            + self._reason(perfect["bias"])
        )

    def _who(self) -> str:
        if self.critic == "zero":
            return "Untrained critic, 0 at each prefix"
        if self.error == 0:
            return "Critic without error"
        how = "root mean square over the 13 prefixes"
        if self.critic == "offset":
            how = "the same at each prefix"
        return f"Critic off by {fixed(self.error, 2)} points ({how})"

    def _reason(self, perfect_bias: float) -> str:
        if self.gamma < 1:
            words = f"bias² {significant(perfect_bias, 3)}"
            return (
                "γ below 1 biases the gradient even with a perfect critic, equally at every λ "
                f"({words})."
            )
        if self.lam == 1:
            return "At λ = γ = 1 the critic is a mere baseline: no bias, whatever it says."
        if self.critic != "zero" and self.error == 0:
            return "Without error there is no bias at any λ, and the smallest λ is the calmest."
        if self.critic == "offset":
            return (
                "An error that all values share moves every answer's advantages alike, because all "
                "answers here have three tokens: no bias at any λ, only the variance changes. "
                "(Where a token may end the answer, it biases that choice at λ < 1.)"
            )
        return "Errors that differ from prefix to prefix do not cancel: bias at every λ below 1."

    @property
    def note(self) -> str:
        return (
            "Sort (1, 0, 2), partial credit at the end; lecture 02's policy, a critic on all 13 "
            "prefixes. Perfect: the γ-discounted value. One update averages N answers; its target "
            "is always ∇J (γ = 1). GAE: Schulman et al. 2016, eq. 16; λ = 0.95: PPO (2017), "
            "table 3. Units: points² per unit of logit²."
        )

    @property
    def off(self) -> set[str]:
        return {"error"} if self.critic == "zero" else set()

    def draw_still(self, still: Still) -> None:
        _draw(self, still)


def _moral(found: dict[str, Any]) -> str:
    """Where no λ makes the update worth taking."""
    perfect, other = (found[key]["best_error"] >= found["signal"] for key in ("perfect", "other"))
    if not other:
        return ""
    whose = "with either critic " if perfect else ""
    return (
        f"Even the best λ {whose}has more squared error than not updating: average more answers. "
    )


# --- the still picture: the layout of gae.js ----------------------------------------------------

LEFT, RIGHT, GAP = 56, PICTURE_WIDTH - 14, 40
TOP, PANEL, AHEAD_TOP, AHEAD_HEIGHT = 98, 240, 414, 80
# The sum is wide, so that it is seen under a part that lies on it.
TOTAL = {"color": INK, "linestyle": "-", "linewidth": 4.2, "solid_capstyle": "butt"}
BIAS = {"color": SERIES[1], "linestyle": (0, (5, 3)), "linewidth": 1.7}
VARIANCE = {"color": SERIES[0], "linestyle": (0, (6, 2, 1.5, 2)), "linewidth": 1.7}
SIGNAL = {"color": SOFT, "linestyle": (0, (1.2, 2.5)), "linewidth": 1.4}
SMALL = {"fontsize": 9.5, "color": INK}
TITLES = {"noise": "Noisy critic", "offset": "Offset critic", "zero": "Untrained critic"}


def _draw(widget: Gae, still: Still) -> None:
    found = widget.numbers
    page = still.axes(0, 0, PICTURE_WIDTH, widget.still_height)  # in screen pixels, over the panels
    page.set(xlim=(0, PICTURE_WIDTH), ylim=(widget.still_height, 0), zorder=9)
    page.axis("off")
    legend = (
        (TOTAL, "squared error = bias² + variance / N", 0),
        (BIAS, "bias²", 300),
        (VARIANCE, "variance / N", 390),
        (SIGNAL, "‖∇J‖²", 526),
    )
    for look, words, x in legend:
        page.plot([LEFT + x, LEFT + x + 24], [16, 16], **look)
        page.text(LEFT + x + 29, 20, words, **SMALL)
    critics = {"perfect": "perfect", "other": widget.critic}
    grids = {
        key: curves(widget.skill, critic, widget.error, widget.gamma)
        for key, critic in critics.items()
    }
    totals = np.stack([grid[:, 0] + grid[:, 1] / widget.answers for grid in grids.values()])
    signal = found["signal"]
    low = math.floor(math.log10(min(totals.min() / 3, signal / 1.2)))
    high = math.ceil(math.log10(max(totals.max(), signal) * 1.05))
    wide = (RIGHT - LEFT - GAP) / 2
    for i, (key, title) in enumerate((("perfect", "Perfect critic"), ("other", None))):
        axis = still.axes(LEFT + i * (wide + GAP), TOP, wide, PANEL)
        frame(axis, "")
        axis.set(xlim=(0, 1), ylim=(10.0**low, 10.0**high), yscale="log")
        powers = range(high, low - 1, -2 if high - low >= 5 else -1)
        labels = [f"{10.0**p:g}" if p >= -2 else f"$10^{{{p}}}$" for p in powers]
        axis.set_yticks([10.0**p for p in powers], labels)
        axis.minorticks_off()
        axis.tick_params(left=False, labelleft=i == 0)
        axis.grid(axis="y", color=GRID, linewidth=0.8)
        axis.set_xlabel("λ", **SMALL)
        _draw_critic(axis, widget, grids[key], signal)
        _mark(axis, page, LEFT + i * (wide + GAP), wide, widget.lam, found[key])
        name = title or TITLES[widget.critic]
        if grids[key][:, 0].max() <= 1e-12:
            name += ": no bias at any λ"
        page.text(LEFT + i * (wide + GAP), TOP - 52, name, **BOLD)
    page.text(
        9, TOP + PANEL / 2, "squared error, its two parts", rotation=90,
        ha="center", va="center", **SMALL,
    )  # fmt: skip
    _draw_ahead(still.axes(LEFT, AHEAD_TOP, RIGHT - LEFT, AHEAD_HEIGHT), page, widget)


def _draw_critic(axis: Axes, widget: Gae, grid: np.ndarray, signal: float) -> None:
    bias, variance = grid[:, 0], grid[:, 1] / widget.answers
    axis.axhline(signal, **SIGNAL)
    axis.plot(LAMBDAS, bias + variance, **TOTAL)
    axis.plot(LAMBDAS, variance, **VARIANCE)
    axis.plot(LAMBDAS, np.maximum(bias, 1e-9), **BIAS)


def _mark(axis: Axes, page: Axes, left: float, wide: float, lam: float, found: dict) -> None:
    """The present λ and the best one: labels above the panel, lines down to the error."""
    marks = [
        (lam, found["error"], f"λ = {fixed(lam, 2)}", INK),
        (found["best"], found["best_error"], f"best λ = {fixed(found['best'], 2)}", SERIES[3]),
    ]
    marks.sort(key=lambda mark: mark[0])
    spots = spread([left + wide * at for at, *_ in marks], 92, left + 46, left + wide - 46)
    for spot, (at, value, words, color) in zip(spots, marks, strict=True):
        page.plot([spot, left + wide * at], [TOP - 8, TOP], color=color, linewidth=1.1)
        axis.plot([at, at], [value, axis.get_ylim()[1]], color=color, linewidth=1.1)
        label = {"ha": "center", "color": INK, "fontsize": 9}
        page.text(spot, TOP - 27, words, fontweight="bold", **label)
        page.text(spot, TOP - 12, significant(value, 3), **label)
    look = {"clip_on": False, "zorder": 5}
    best = found["best"], found["best_error"]
    axis.plot(*best, "p", color=SERIES[3], markeredgecolor="white", markersize=9, **look)
    ring = {"markerfacecolor": "none", "markeredgecolor": INK, "markersize": 12}
    axis.plot(lam, found["error"], "o", **ring, **look)


def _draw_ahead(axis: Axes, page: Axes, widget: Gae) -> None:
    frame(axis, "")
    fade = widget.gamma * widget.lam
    ahead = np.arange(TOKENS_AHEAD + 1)
    blue = SERIES[0]
    faces = [blue if k < LENGTH else "white" for k in ahead]
    axis.bar(ahead, fade**ahead, 0.7, color=faces, edgecolor=blue, linewidth=0.9)
    axis.set(xlim=(-0.75, TOKENS_AHEAD + 0.75), ylim=(0, 1.08), yticks=(0, 1))
    axis.tick_params(left=False)
    axis.set_xlabel("k, how many tokens later (filled: this toy’s three)", **SMALL)
    if fade == 1:
        far = "never fades"
    elif fade == 0:
        far = "only the token’s own δ"
    else:
        after = max(1, math.ceil(math.log(0.01) / math.log(fade) - 1e-9))
        far = f"at most 1 % after {after} token{'' if after == 1 else 's'}"
    page.text(LEFT, AHEAD_TOP - 9, "A later token’s δ counts $(\\gamma\\lambda)^k$", **BOLD)
    page.text(RIGHT, AHEAD_TOP - 9, far, ha="right", **SMALL)
