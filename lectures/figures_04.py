"""The pictures that only lecture 04 draws: plain matplotlib, no arithmetic worth reading.

Most functions take numbers that the lecture has computed; `bowls` fills a plane with the KL of
lecture 04's equation TR-1 itself. They return a figure for `lectures.figures.show`. One function
draws nothing: `five_strides` keeps the bugs of section 7 out of the reader's sight until asked for.
"""

import math
from collections.abc import Callable
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lectures.figures import FAINT, INK, compass, style
from policy_gradients import exact_kl

NATURAL, GRADIENT = (style(name)["color"] for name in ("first", "reinforce"))
REGION = "#cfe5f3"
FLOOR = 8e-3  # nats, the lower edge of the race's logarithmic axis
PINS = {
    "none pinned": ("#000000", "-", 2.6),
    "0 pinned": ("#D55E00", "--", 2.2),
    "1 pinned": ("#009E73", "-.", 2.2),
    "2 pinned": ("#0072B2", ":", 2.6),
    "gradient, as long": ("#8a8a8a", "-", 1.8),
}
METHODS = {
    "TRPO": style("first"),
    "PPO-penalty": style("second"),
    "PPO-clip": style("clipped"),
    "clip, no momentum": {"color": "#8a8a8a", "linestyle": "-", "marker": ""},
    "clip, fine steps": style("clipped") | {"linestyle": ":", "marker": ""},
}
LETTERS = {
    "A": ("#D55E00", "-", 3.4),
    "B": ("#E69F00", "--", 1.8),
    "C": ("#000000", ":", 1.8),
    "D": ("#0072B2", "-.", 1.8),
    "E": ("#009E73", "-", 1.8),
}
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


def _kl_region(axis, p: Tensor, level: float, reach: float) -> None:
    """Shade KL(old ‖ new) ≤ level in the plane of changes of two logits."""
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
    axes[1].text(1.06 * len(kl), target, "target", fontsize=8.5, va="center", color="#555555")
    axes[0].legend(loc="lower right", fontsize=8.5)
    return figure


def three_methods(J: dict, kl: dict, budget: float, shown: int = 12) -> Figure:
    """J and KL per update, mean and range over seeds: name → (seeds, updates [+ 1]).

    shown : the KL is drawn for this many updates; a mean or range that touches FLOOR is left out
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.4))
    for name, look in ((name, METHODS[name]) for name in J):
        for axis, values, first in ((left, J[name], 0), (right, kl[name][:, :shown], 1)):
            values = np.asarray(values)
            mean, low, x = values.mean(0), values.min(0), first + np.arange(values.shape[1])
            above = (low > FLOOR) & (mean > FLOOR)
            mean = np.where(mean > FLOOR, mean, np.nan)
            axis.plot(x, mean, label=name, **look | {"markevery": 3})
            band = {"color": look["color"], "alpha": 0.12, "linewidth": 0}
            axis.fill_between(x, low, values.max(0), where=above, **band)
    left.set(title="what is gained", xlabel="updates", ylabel="exact J (points)")
    left.legend(loc="lower right", fontsize=8.5)
    right.axhline(budget, color=INK, linewidth=1, linestyle=(0, (5, 3)))
    right.text(shown + 0.4, budget, "budget", fontsize=8.5, va="center")
    right.set(title="what is spent", xlabel="updates", ylabel="KL of the update (nats)")
    right.set(yscale="log", xlim=(0.5, shown + 0.2), ylim=(FLOOR, 3))
    right.set_xticks(range(2, shown + 1, 2))
    return figure


def five_strides(proposal: Callable) -> dict[str, Callable]:
    """Section 7's five versions of a natural step: letter → (policy, batch, delta) → step."""
    right = {"sign": 1, "two": 2.0, "fisher": True, "kl": lambda z: exact_kl(z.detach(), z)}
    return {
        "A": partial(proposal, **right | {"sign": -1}),
        "B": partial(proposal, **right | {"two": 1.0}),
        "C": partial(proposal, **right | {"kl": lambda z: exact_kl(z, z)}),
        "D": partial(proposal, **right | {"kl": lambda z: exact_kl(z, z.detach())}),
        "E": partial(proposal, **right | {"fisher": False}),
    }


def five_curves(J: dict) -> Figure:
    """Mean J of section 7's versions: letter → (updates + 1,) points."""
    figure, axis = plt.subplots(figsize=(6.6, 2.9))
    for letter, values in J.items():
        color, line, width = LETTERS[letter]
        axis.plot(np.asarray(values), line, color=color, linewidth=width, label=letter)
    axis.set(xlabel="updates", ylabel="exact J (points)")
    axis.legend(loc="center right", ncols=5)
    return figure


def compass_in_kl(steps: dict, north: Tensor) -> tuple[Figure, dict[str, float]]:
    """The gradient compass for displacements whose squared length is a KL, and degrees off.

    steps : name → (steps (n, 2), their expectation (2,)); north (2,): the best direction
    """
    panels = {name: framed(*pair, north) for name, pair in steps.items()}
    off = {
        name: math.degrees(math.atan2(*mean.flip(0).abs())) for name, (mean, _) in panels.items()
    }
    looks = dict(zip(panels, ("reinforce", "first", "clipped"), strict=True))
    figure = compass(torch.tensor([1.0, 0.0]), panels, styles=looks, columns=3, limit=1.6)
    for axis, (name, (mean, drawn)) in zip(figure.axes, panels.items(), strict=True):
        spread = (drawn - mean).square().sum(-1).mean().sqrt()
        words = f"mean {off[name]:.0f}° off; spread {spread:.2f}"
        axis.set_xlabel(f"towards the best step\n{words}", fontsize=9)
    figure.axes[0].set_ylabel("across it", fontsize=9)
    return figure, off


def framed(steps: Tensor, expected: Tensor, north: Tensor) -> tuple[Tensor, Tensor]:
    """Their expectation (2,) and the steps (n, 2), in a frame whose first axis is `north`.

    The unit is |north|; both are scaled so that the expectation reaches 1 on the first axis.
    """
    frame = torch.stack([north, north.flip(0) * torch.tensor([-1.0, 1.0])]) / north.norm() ** 2
    scale = 1 / (frame[0] @ expected)
    return scale * frame @ expected, scale * steps @ frame.T
