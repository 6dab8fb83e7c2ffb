"""The pictures that only lecture 04 draws: plain matplotlib, no arithmetic worth reading.

Most functions take numbers that the lecture has computed. `bowls` and `boxes` fill a plane with
the KL of lecture 04's equations TR-1 and TR-13 themselves. All return a figure for
`lectures.figures.show`.
"""

import math

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lectures.figures import FAINT, INK, style

NATURAL, GRADIENT, CLIPPED = (style(name)["color"] for name in ("first", "reinforce", "clipped"))
REGION = "#cfe5f3"
PINS = {
    "none pinned": ("#000000", "-", 2.6),
    "0 pinned": ("#D55E00", "--", 2.2),
    "1 pinned": ("#009E73", "-.", 2.2),
    "2 pinned": ("#0072B2", ":", 2.6),
    "gradient, as long": ("#8a8a8a", "-", 1.8),
}
METHODS = {"TRPO": "first", "PPO-penalty": "second", "PPO-clip": "clipped"}
RULES = {
    "doubling": ("#D55E00", "-", "o"),
    "dual ascent": ("#0072B2", "--", "s"),
    "proportional": ("#009E73", "-.", "^"),
}


def bookkeeping(runs: dict, title: str) -> Figure:
    """J against steps, one line per way of writing the policy: name → (steps,) points."""
    figure, axis = plt.subplots(figsize=(6.6, 3.0))
    for name, J in runs.items():
        color, line, width = PINS[name]
        axis.plot(np.asarray(J), line, color=color, linewidth=width, label=name)
    axis.axhline(5, color=FAINT, linewidth=1, linestyle=":")
    axis.set(title=title, xlabel="steps", ylabel="exact J (points)", ylim=(3, 5.12))
    axis.set_yticks((3, 3.5, 4, 4.5, 5))
    axis.legend(loc="lower right")
    return figure


def bowls(policies: dict[str, Tensor], rewards: Tensor, *, delta: float) -> Figure:
    """Circle, ellipse and true region around several policies, in the plane of two logits.

    policies : title → probabilities (3,)   rewards : (3,) points, for the two steps drawn
    delta : nats, the KL of the region and, in the quadratic model, of both steps
    """
    reach = 2.6
    figure, axes = plt.subplots(1, len(policies), figsize=(2.75 * len(policies), 3.4), sharey=True)
    angle = torch.linspace(0, 2 * math.pi, 361)
    circle = torch.stack([angle.cos(), angle.sin()], -1)  # (points, 2)
    for axis, (title, p) in zip(axes, policies.items(), strict=True):
        fisher = (p.diag() - p[:, None] * p)[:2, :2]
        gradient = (p * (rewards - p @ rewards))[:2]
        steps = gradient, torch.linalg.solve(fisher, gradient)
        steps = [step * (2 * delta / (step @ fisher @ step)).sqrt() for step in steps]
        curvature, directions = torch.linalg.eigh(fisher)
        ellipse = (circle * (2 * delta / curvature).sqrt()) @ directions.T
        _kl_region(axis, p, delta, reach)
        axis.plot(*(circle * steps[0].norm()).T, ":", color=GRADIENT, linewidth=1.8)
        axis.plot(*ellipse.T, "--", color=NATURAL, linewidth=1.6)
        for step, color, marker in zip(steps, (GRADIENT, NATURAL), "so", strict=True):
            axis.plot((0, step[0]), (0, step[1]), color=color, linewidth=2.2)
            axis.plot(*step, marker, color=color, markersize=7, markeredgecolor="white", zorder=5)
        axis.set(title=title, xticks=(-2, -1, 0, 1, 2))
    axes[0].set_yticks((-2, -1, 0, 1, 2))
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=REGION, label="true KL at most δ"),
        plt.Line2D([], [], color=NATURAL, linestyle="--", linewidth=1.6, label="model of it"),
        plt.Line2D([], [], color=GRADIENT, linestyle=":", label="circle of parameters"),
        plt.Line2D([], [], color=GRADIENT, marker="s", label="gradient step"),
        plt.Line2D([], [], color=NATURAL, marker="o", label="natural step"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize=8.5)
    return figure


def boxes(policies: dict[str, Tensor], *, eps: float) -> Figure:
    """The region KL ≤ ½ε² and the box of ratios 1 ± ε, in the plane of two logits."""
    figure, axes = plt.subplots(1, len(policies), figsize=(2.75 * len(policies), 3.3), sharey=True)
    for axis, (title, p) in zip(axes, policies.items(), strict=True):
        grid, logp = _kl_region(axis, p, eps**2 / 2, 0.75)
        outside = ((logp - p.log()).exp() - 1).abs().amax(-1) - eps
        axis.contour(grid, grid, outside, levels=[0], colors=[CLIPPED], linewidths=2.0)
        axis.set(title=title, xticks=(-0.5, 0, 0.5))
    axes[0].set_yticks((-0.5, 0, 0.5))
    handles = [
        plt.Rectangle((0, 0), 1, 1, color=REGION, label="KL at most ½ε²"),
        plt.Line2D([], [], color=CLIPPED, label="every ratio within 1 ± ε"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8.5)
    return figure


def _kl_region(axis, p: Tensor, level: float, reach: float) -> tuple[Tensor, Tensor]:
    """Shade KL(old ‖ new) ≤ level; return the grid (n,) and log π of the moved policies."""
    grid = torch.linspace(-reach, reach, 281)
    steps = torch.stack(torch.meshgrid(grid, grid, indexing="xy"), -1)  # (n, n, 2)
    logp = (p.log() + torch.cat([steps, 0 * steps[..., :1]], -1)).log_softmax(-1)
    kl = (p * (p.log() - logp)).sum(-1)
    axis.contourf(grid, grid, kl, levels=[-1, level], colors=[REGION])
    axis.plot(0, 0, "+", color=INK, markersize=9, markeredgewidth=1.6)
    axis.set(xlabel="change of logit 0 (nats)", aspect="equal")
    axis.set(xlim=(-reach, reach), ylim=(-reach, reach))
    if axis.get_subplotspec().is_first_col():
        axis.set_ylabel("change of logit 1 (nats)")
    return grid, logp


def beta_rules(seen: dict, target: float, band: float) -> Figure:
    """KL of each update under three rules, one panel per starting β: start → rule → (updates,)."""
    figure, axes = plt.subplots(1, len(seen), figsize=(7.4, 3.1), sharey=True)
    for axis, (start, rules) in zip(axes, seen.items(), strict=True):
        axis.axhspan(target / band, target * band, color="#eeeeee", zorder=0, linewidth=0)
        axis.axhline(target, color=FAINT, linewidth=1, linestyle=":")
        for name, kl in rules.items():
            color, line, marker = RULES[name]
            look = {"color": color, "linestyle": line, "marker": marker, "markersize": 3.5}
            axis.semilogy(np.arange(1, len(kl) + 1), kl, **look, linewidth=1.4, label=name)
        axis.set(title=f"β starts at {start:g}", xlabel="updates, all from one old policy")
    axes[0].set_ylabel("KL of the update (nats)")
    axes[1].text(42.5, target, "target", fontsize=8.5, va="center", color="#555555")
    axes[0].legend(loc="lower right", fontsize=8.5)
    return figure


def three_methods(J: dict, kl: dict, budget: float) -> Figure:
    """J and KL per update, mean and range over seeds: name → (seeds, updates [+ 1])."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.3))
    for name in J:
        look = style(METHODS[name]) | {"markevery": 5}
        for axis, values, first in ((left, J[name], 0), (right, kl[name], 1)):
            values = np.asarray(values)
            x = np.arange(first, first + values.shape[1])
            axis.plot(x, values.mean(0), label=name, **look)
            band = {"color": look["color"], "alpha": 0.14, "linewidth": 0}
            axis.fill_between(x, values.min(0), values.max(0), **band)
    left.set(title="what is gained", xlabel="updates", ylabel="exact J (points)")
    left.legend(loc="lower right")
    right.axhline(budget, color=INK, linewidth=1, linestyle=(0, (5, 3)))
    right.text(20, budget * 1.15, "budget", fontsize=8.5, ha="right")
    right.set(title="what is spent", xlabel="updates", ylabel="KL of the update (nats)")
    right.set(yscale="log", xlim=(0, 20.5), ylim=(2e-3, 4))
    right.set_xticks((0, 5, 10, 15, 20))
    return figure


def framed(steps: Tensor, expected: Tensor, north: Tensor) -> tuple[Tensor, Tensor]:
    """Steps (n, 2) and their expectation (2,), in a frame whose first axis is `north`.

    The unit is |north|; both are scaled so that the expectation reaches 1 on the first axis.
    """
    frame = torch.stack([north, north.flip(0) * torch.tensor([-1.0, 1.0])]) / north.norm() ** 2
    scale = 1 / (frame[0] @ expected)
    return scale * frame @ expected, scale * steps @ frame.T
