"""Trust region: the ellipse, the true region and the two steps, for one softmax with two logits.

Lecture 04, [TR-1] to [TR-5]: one token with three candidates, the first one of the sorter's answer
to (1, 0, 2) when the other two stand right: 5, 4 and 3 points. The logit of token 2 is pinned at
0. The numbers here come from `toy_models.trust_region`; trust_region.js draws in the browser and
computes the same.
Leaves out: sampling, several states (the mean over them, where guarantees end), and networks.
"""

import math
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Polygon
from torch import Tensor

from lectures.widgets.base import LectureWidget, Slider, module
from lectures.widgets.still import (
    BOLD,
    GRID,
    HALO,
    INK,
    PICTURE_WIDTH,
    SERIES,
    SOFT,
    Still,
    brief,
    fixed,
    frame,
    significant,
)  # fmt: skip
from policy_gradients import natural_gradient_step
from policy_gradients.kl import exact_kl
from toy_models import trust_region as tr
from toy_models.exact import expected_reward, flat_gradient
from toy_models.policies import Policy

REWARDS = (5.0, 4.0, 3.0)
PROMPT = torch.zeros(1, 1, dtype=torch.long)  # the policy here ignores it
DIRECTIONS = 12  # of the golden numbers
REACHES = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128)
RADII = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5]
CLOSE = 0.1  # relative error of the model that passes for small


class TwoLogits(Policy):
    """One token out of three; the logits of tokens 0 and 1 are its parameters, that of 2 is 0."""

    def __init__(self, logits: Tensor):
        super().__init__(3, 1)
        self.free = torch.nn.Parameter(logits.clone())

    def logits(self, prompts: Tensor, responses: Tensor | None = None) -> Tensor:
        table = torch.cat([self.free, self.free.new_zeros(1)])
        rows = len(prompts) if responses is None else len(responses)
        return table.expand(rows, 1, 3)


def points(prompts: Tensor, responses: Tensor) -> Tensor:
    """The reward of each candidate."""
    return torch.tensor(REWARDS, dtype=torch.float64)[responses[..., 0]]


def whitener(fisher: Tensor) -> Tensor:
    """W (2, 2) with Wᵀ F W = 1, so that W times a circle is an ellipse of equal model KL."""
    return torch.linalg.inv(torch.linalg.cholesky(fisher)).T


def kl_after(logits: Tensor, steps: Tensor) -> Tensor:
    """KL(old ‖ new) in nats for steps (n, 2) of the two logits: (n,)."""
    old = torch.cat([logits, logits.new_zeros(1)]).expand(len(steps), 1, 3)
    moved = old + torch.cat([steps, steps.new_zeros(len(steps), 1)], 1)[:, None]
    return exact_kl(old, moved)[:, 0]


def extent(logits: Tensor, ellipse: Tensor, delta: float) -> Tensor:
    """t (n,) with KL(old ‖ new) = δ at t times the points (n, 2) of the ellipse."""
    low, high = torch.zeros(len(ellipse)).double(), torch.ones(len(ellipse)).double()
    while (short := kl_after(logits, high[:, None] * ellipse) < delta).any():
        high = torch.where(short, 2 * high, high)
    for _ in range(60):
        middle = (low + high) / 2
        inside = kl_after(logits, middle[:, None] * ellipse) < delta
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    return (low + high) / 2


def circle(count: int) -> Tensor:
    """(count, 2) points of the unit circle."""
    angles = 2 * math.pi * torch.arange(count).double() / count
    return torch.stack([angles.cos(), angles.sin()], 1)


def chance(p: float) -> str:
    """A probability with three decimals, or two significant digits where that would be 0."""
    return fixed(p, 3) if p >= 0.0005 else significant(p, 2)


class TrustRegion(LectureWidget):
    """A policy of two logits, its trust region of radius δ, and the two steps that fill its model.

    `TrustRegion(logit_0=0, logit_1=0, delta=0.5)`; token 2's logit is 0.
    """

    name = "trust_region"
    _esm = module("trust_region")
    still_height = 560
    logit_0 = Slider(-4.5, "logit of token 0", low=-8, high=8, step=0.1, digits=1)
    logit_1 = Slider(-2.3, "logit of token 1", low=-8, high=8, step=0.1, digits=1)
    delta = Slider(0.05, "radius δ (nats)", stops=RADII, spoken="radius delta in nats")
    presets: ClassVar = {
        "undecided": ("Undecided", {"logit_0": 0, "logit_1": 0, "delta": 0.05}),
        "habit": ("A bad habit", {"logit_0": -4.5, "logit_1": -2.3, "delta": 0.05}),
        "sure": ("Sure and wrong", {"logit_0": -7.6, "logit_1": -7.6, "delta": 0.1}),
        "good": ("Already good", {"logit_0": 4, "logit_1": 2, "delta": 0.05}),
    }
    examples: ClassVar = [
        {},
        {"logit_0": 0, "logit_1": 0},
        {"logit_0": 0, "logit_1": 0, "delta": 0.5},
        {"logit_0": -1.9, "logit_1": -1.3, "delta": 0.001},
        {"logit_0": -7.6, "logit_1": -7.6, "delta": 0.1},
        {"logit_0": -8, "logit_1": 8, "delta": 0.5},
        {"logit_0": 8, "logit_1": -8, "delta": 0.5},
        {"logit_0": 4, "logit_1": 2},
        {"logit_0": 8, "logit_1": 8, "delta": 0.001},
        {"logit_0": -8, "logit_1": -8, "delta": 0.5},
    ]

    @property
    def logits(self) -> Tensor:
        """The two free logits, (2,) float64."""
        return torch.tensor([self.logit_0, self.logit_1], dtype=torch.float64)

    @property
    def numbers(self) -> dict[str, Any]:
        """What the picture shows.

        p, value   : the policy's probabilities, and its expected reward J in points
        curvature  : the two eigenvalues of F, smaller first
        gradient, natural : each stretched to δ in the model: the step (2,), its true KL in nats,
                     the gain that its slope promises and the true one, in points
        searched   : what a line search leaves of the natural step: share, KL, gain
        region     : along DIRECTIONS of the ellipse, how far the true region reaches, ellipse = 1
        reach      : half the height of the picture, nats of a logit
        """
        policy = TwoLogits(self.logits)
        e = tr.enumerated_experience(policy, PROMPT, points)
        old = expected_reward(policy, PROMPT, points).item()
        g, fisher = flat_gradient(tr.surrogate(policy, e), policy), tr.fisher_matrix(policy, e)
        stretched = (2 * self.delta / (g @ fisher @ g)).sqrt() * g
        steps = {
            "gradient": stretched,
            "natural": natural_gradient_step(g, fisher, delta=self.delta),
        }
        found = {name: self._measured(step, g, old) for name, step in steps.items()}
        taken = tr.line_search(policy, e, steps["natural"], delta=self.delta)
        ellipse = math.sqrt(2 * self.delta) * circle(DIRECTIONS) @ whitener(fisher).T
        largest = max(steps["natural"].abs().max().item(), stretched.norm().item())
        return {
            "p": self.logits.new_tensor([self.logit_0, self.logit_1, 0]).softmax(0).tolist(),
            "value": old,
            "curvature": torch.linalg.eigvalsh(fisher).tolist(),
            **found,
            "searched": {"share": taken.scale, "kl": taken.kl, "gain": taken.gain},
            "region": extent(self.logits, ellipse, self.delta).tolist(),
            "reach": next((r for r in REACHES if r >= 1.15 * largest), REACHES[-1]),
        }

    def _measured(self, step: Tensor, g: Tensor, old: float) -> dict[str, Any]:
        moved = TwoLogits(self.logits + step)
        return {
            "step": step.tolist(),
            "kl": kl_after(self.logits, step[None]).item(),
            "promised": (g @ step).item(),
            "gain": expected_reward(moved, PROMPT, points).item() - old,
        }

    @property
    def sentence(self) -> str:
        n = self.numbers
        natural, gradient, taken = n["natural"], n["gradient"], n["searched"]
        ratio = natural["kl"] / self.delta
        if abs(ratio - 1) < CLOSE:
            verdict = "the model is good here"
            if taken["share"] < 1:  # a KL just above the radius
                verdict += ", the step just too long"
        elif ratio > 1:
            verdict = f"{significant(ratio, 2)} times what the model says"
        else:
            verdict = f"only {significant(ratio, 2)} of what the model says"
        if taken["share"] == 1:
            after = "A line search takes the whole of it."
        elif taken["share"] == 0:
            after = "A line search finds no part of it acceptable: the policy stays."
        else:
            after = (
                f"A line search takes {fixed(taken['share'], 2)} of it: "
                f"{significant(taken['kl'], 3)} nats, {gained(taken['gain'])} points."
            )
        return (
            f"p = ({', '.join(map(chance, n['p']))}), radius {brief(self.delta)} nats. "
            f"The natural step really has {significant(natural['kl'], 3)} nats ({verdict}) and "
            f"gains {gained(natural['gain'])} points; the gradient step, as long in the model, "
            f"{significant(gradient['kl'], 3)} nats and {gained(gradient['gain'])} points. {after}"
        )

    @property
    def note(self) -> str:
        return (
            "Candidates 0, 1, 2 earn 5, 4 and 3 points; token 2's logit stays 0. Shaded: the KL is "
            "really at most δ. Both steps are stretched to δ in the quadratic model. Line search: "
            "the whole step, then 0.8, 0.64 … of it, until the KL is at most δ (0.8 is customary; "
            "the δ of Schulman et al. 2015 is 0.01 per state)."
        )

    def draw_still(self, still: Still) -> None:
        _draw(self, still)


def gained(value: float) -> str:
    """A gain with its sign, to three significant digits."""
    return ("−" if value < 0 else "") + significant(abs(value), 3)


# --- the still picture: the layout of trust_region.js -------------------------------------------

LEFT, TOP, WIDTH, HEIGHT = 56, 46, PICTURE_WIDTH - 70, 348
REGION = "#d9eaf4"


def _draw(widget: TrustRegion, still: Still) -> None:
    n = widget.numbers
    axis = still.axes(LEFT, TOP, WIDTH, HEIGHT)
    frame(axis, "")
    reach = n["reach"]
    wide = reach * WIDTH / HEIGHT
    axis.set(xlim=(-wide, wide), ylim=(-reach, reach))
    axis.locator_params(nbins=7)
    axis.grid(color=GRID, linewidth=0.8)
    axis.set_xlabel("change of logit 0 (nats)", fontsize=9.5, color=INK)
    axis.set_ylabel("change of logit 1 (nats)", fontsize=9.5, color=INK)
    policy = TwoLogits(widget.logits)
    e = tr.enumerated_experience(policy, PROMPT, points)
    scaled = math.sqrt(2 * widget.delta) * whitener(tr.fisher_matrix(policy, e)).T
    ellipse = circle(144) @ scaled
    region = extent(widget.logits, ellipse, widget.delta)[:, None] * ellipse
    axis.add_patch(Polygon(region.numpy(), facecolor=REGION, edgecolor=SERIES[0], linewidth=1))
    closed = np.concatenate([ellipse, ellipse[:1]])
    axis.plot(*closed.T, "--", color=SERIES[0], linewidth=1.6)
    radius = math.hypot(*n["gradient"]["step"])
    around = radius * np.concatenate([circle(144), circle(144)[:1]])
    axis.plot(*around.T, ":", color=INK, linewidth=1.6)
    _step(axis, n["gradient"]["step"], INK, "s")
    _step(axis, n["natural"]["step"], SERIES[0], "o")
    if 0 < n["searched"]["share"] < 1:
        x, y = (n["searched"]["share"] * s for s in n["natural"]["step"])
        axis.plot(x, y, "^", color=SERIES[1], markersize=9, markeredgecolor="white", zorder=6)
    axis.plot(0, 0, "+", color=INK, markersize=10, markeredgewidth=1.6)
    page = still.axes(0, 0, PICTURE_WIDTH, widget.still_height)  # screen pixels, over the panel
    page.set(xlim=(0, PICTURE_WIDTH), ylim=(widget.still_height, 0), zorder=9)
    page.axis("off")
    _legend(page)
    _table(page, n, TOP + HEIGHT + 64)


def _step(axis: Axes, step: list[float], color: str, marker: str) -> None:
    axis.plot([0, step[0]], [0, step[1]], color=color, linewidth=2.2, path_effects=HALO)
    size = 10 if marker == "s" else 8  # seen under the other, where both steps agree
    look = {"markersize": size, "markeredgecolor": "white", "zorder": 5}
    axis.plot(*step, marker, color=color, **look)


def _legend(page: Axes) -> None:
    page.text(LEFT, 16, "Steps of δ nats, in the plane of two logits", va="center", **BOLD)
    entries = [
        ("the true KL is at most δ", {"color": REGION, "linewidth": 9}),
        ("its quadratic model", {"color": SERIES[0], "linestyle": "--", "linewidth": 1.6}),
        ("same length in parameters", {"color": INK, "linestyle": ":", "linewidth": 1.6}),
    ]
    x = LEFT
    for words, look in entries:
        page.plot([x, x + 24], [34, 34], solid_capstyle="butt", **look)
        page.text(x + 31, 34, words, va="center", fontsize=9.5, color=INK)
        x += 56 + 6.2 * len(words)


def _table(page: Axes, n: dict[str, Any], top: float) -> None:
    columns = [LEFT + 22, LEFT + 330, LEFT + 460, LEFT + 590]
    for x, words in zip(columns[1:], ("true KL (nats)", "promised gain", "true gain"), strict=True):
        page.text(x, top, words, ha="right", va="center", fontsize=9.5, color=SOFT)
    page.plot([LEFT, columns[3]], [top + 12, top + 12], color=GRID, linewidth=1)
    for i, (look, words, values) in enumerate(rows(n)):
        y = top + 28 + 23 * i
        color, marker = {"gradient": (INK, "s"), "natural": (SERIES[0], "o")}.get(
            look, (SERIES[1], "^")
        )
        page.plot(LEFT + 8, y, marker, color=color, markersize=8)
        page.text(columns[0], y, words, va="center", fontsize=10, color=INK)
        for x, value in zip(columns[1:], values, strict=True):
            page.text(x, y, value, ha="right", va="center", fontsize=10, color=INK)


def rows(n: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    """The table below the picture: look, words, true KL, promised gain, true gain."""
    made = [
        (look, words, n[look])
        for look, words in (("gradient", "gradient step"), ("natural", "natural step"))
    ]
    shown = [
        (look, words, [significant(r["kl"], 3), gained(r["promised"]), gained(r["gain"])])
        for look, words, r in made
    ]
    taken = n["searched"]
    if taken["share"] == 0:
        return [*shown, ("searched", "line search: none of it", ["0", "–", "0"])]
    part = "all" if taken["share"] == 1 else fixed(taken["share"], 2)
    words = f"line search: {part} of it"
    return [*shown, ("searched", words, [significant(taken["kl"], 3), "–", gained(taken["gain"])])]
