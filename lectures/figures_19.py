"""The pictures that only lecture 19 draws: plain matplotlib, no arithmetic worth reading.

Each function takes what the lecture has computed and returns a figure for `lectures.figures.show`.
"""

import math

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from lectures.figures import FAINT, INK

METHODS = {  # name: (colour, line, marker)
    "DDPG": ("#D55E00", ":", "s"),
    "TD3": ("#0072B2", "--", "^"),
    "SAC": ("#009E73", "-", "o"),
}


def for_one_push(figure: Figure) -> Figure:
    """A compass whose arrow is not ∇J but the gradient of E[Q]: relabelled, in place."""
    for axis in figure.axes:
        for label in (axis.xaxis.label, axis.yaxis.label, *axis.texts):
            text = label.get_text().replace(" |∇J|", "").replace("∇J", "the gradient")
            label.set_text(text.replace("lowers J", "lowers E[Q]"))
    return figure


def race(scores: dict[str, Tensor], *, every: int) -> Figure:
    """Score over environment steps; name → (seeds, points)."""
    figure, axis = plt.subplots(figsize=(7.2, 3.4))
    for name, runs in scores.items():
        color, line, marker = METHODS[name]
        x = every * np.arange(1, runs.shape[1] + 1)
        axis.plot(x, runs.T.numpy(), color=color, linestyle=line, linewidth=0.7, alpha=0.45)
        look = {"color": color, "linestyle": line, "marker": marker, "markevery": 3}
        axis.plot(x, runs.mean(0).numpy(), label=name, **look)
    axis.axhline(1, color=INK, linewidth=1)
    axis.axhline(0, color=FAINT, linewidth=1)
    axis.text(1000, 1.04, "best controller", fontsize=8.5)
    axis.text(1000, 0.04, "do nothing", fontsize=8.5, color="#555555")
    axis.set(xlabel="pushes (steps of the environment)", ylabel="score", ylim=(-2, 1.2))
    axis.legend(loc="lower right")
    return figure


def temperatures(problem, alphas: tuple[float, ...], *, state: float) -> Figure:
    """The optimal Q at one state, and the Gibbs policy for each temperature."""
    figure, (top, low) = plt.subplots(2, 1, figsize=(7.2, 4.4), sharex=True)
    best = problem.solve()
    mean, peak = -best.gain * state, -best.P * state**2 - best.offset
    a = np.linspace(min(-2.6, mean - 2), max(2.2, mean + 2), 701)
    top.plot(a, peak - best.curvature * (a - mean) ** 2, color=INK)
    top.set(ylabel="Q(s, a), points", ylim=(peak - 12, peak + 0.8))
    looks = zip(("#332288", "#0072B2", "#009E73", "#D58A00"), ("-", "-.", "--", ":"), strict=True)
    for alpha, (color, line) in zip(alphas, looks, strict=False):
        width = problem.solve(alpha).std
        density = np.exp(-0.5 * ((a - mean) / width) ** 2) / (width * math.sqrt(2 * math.pi))
        low.plot(a, density, color=color, linestyle=line, label=f"α = {alpha:g}")
    for axis in (top, low):
        axis.axvspan(a[0], -2, color="#eeeeee", zorder=0)
        axis.axvspan(2, a[-1], color="#eeeeee", zorder=0)
    low.set(xlabel="push a (grey: beyond the motor's limits)", ylabel="density", xlim=a[[0, -1]])
    low.legend()
    return figure


def squash(right, broken, problem, entropy: float) -> Figure:
    """What SAC with and without Jacobian does at state 0, beside the optimum for its target."""
    figure, axis = plt.subplots(figsize=(5.6, 3.0))
    looks = (("with Jacobian", right, "#009E73", "-"), ("without", broken, "#882255", "--"))
    for name, agents, color, line in looks:
        dice = torch.Generator().manual_seed(0)
        states = torch.zeros(len(agents.dice), 4000, 1, dtype=torch.float64)
        noise = torch.randn(states.shape, generator=dice, dtype=torch.float64)
        with torch.no_grad():
            pushes = agents.policy(states, agents.actor, noise)[0].flatten().numpy()
        look = {"histtype": "step", "color": color, "linestyle": line, "linewidth": 1.8}
        axis.hist(pushes, bins=np.linspace(-2, 2, 81), density=True, label=name, **look)
    width = problem.solve(problem.temperature_for(entropy)).std
    a = np.linspace(-2, 2, 401)
    density = np.exp(-0.5 * (a / width) ** 2) / (width * math.sqrt(2 * math.pi))
    axis.plot(a, density, color=INK, linewidth=1, label="optimal for the target")
    axis.set(xlabel="push at s = 0 (five agents)", ylabel="density", ylim=(0, 1.9))
    axis.legend(fontsize=8.5, loc="upper right")
    return figure
