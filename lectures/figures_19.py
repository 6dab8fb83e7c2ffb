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
    "without Jacobian": ("#882255", "--", "X"),
}


def _curve(axis, name: str, scores: Tensor, every: int) -> None:
    color, line, marker = METHODS[name]
    x, runs = every * np.arange(1, scores.shape[1] + 1), scores.numpy()
    look = {"color": color, "linestyle": line, "marker": marker, "markevery": 3}
    axis.plot(x, runs.mean(0), label=name, **look)
    axis.fill_between(x, runs.min(0), runs.max(0), color=color, alpha=0.13, linewidth=0)


def race(scores: dict[str, Tensor], *, every: int) -> Figure:
    """Score over environment steps; name → (seeds, points)."""
    figure, axis = plt.subplots(figsize=(7.2, 3.4))
    for name, runs in scores.items():
        _curve(axis, name, runs, every)
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
    best, a = problem.solve(), np.linspace(-4, 3, 701)
    mean = -best.gain * state
    top.plot(a, -best.P * state**2 - best.offset - best.curvature * (a - mean) ** 2, color=INK)
    top.set(ylabel="Q(s, a), points", ylim=(-12, 0))
    looks = zip(("#332288", "#0072B2", "#009E73", "#D58A00"), ("-", "-.", "--", ":"), strict=True)
    for alpha, (color, line) in zip(alphas, looks, strict=False):
        width = problem.solve(alpha).std
        density = np.exp(-0.5 * ((a - mean) / width) ** 2) / (width * math.sqrt(2 * math.pi))
        low.plot(a, density, color=color, linestyle=line, label=f"α = {alpha:g}")
    for axis in (top, low):
        axis.axvspan(-4, -2, color="#eeeeee", zorder=0)
        axis.axvspan(2, 3, color="#eeeeee", zorder=0)
    low.set(xlabel="push a (grey: beyond the motor's limits)", ylabel="density", xlim=(-4, 3))
    low.legend()
    return figure


def squash(right, broken, problem, entropy: float, *, every: int = 50) -> Figure:
    """Learning curves of SAC with and without Jacobian, and what they do at state 0."""
    figure, (left, side) = plt.subplots(1, 2, figsize=(7.6, 3.3))
    for name, runs in (("SAC", right), ("without Jacobian", broken)):
        color, line, _ = METHODS[name]
        _curve(left, name, runs.log["score"], every)
        dice = torch.Generator().manual_seed(0)
        states = torch.zeros(len(runs.dice), 4000, 1, dtype=torch.float64)
        noise = torch.randn(states.shape, generator=dice, dtype=torch.float64)
        with torch.no_grad():
            pushes = runs.policy(states, runs.actor, noise)[0].flatten().numpy()
        look = {"histtype": "step", "color": color, "linestyle": line, "linewidth": 1.8}
        side.hist(pushes, bins=np.linspace(-2, 2, 81), density=True, label=name, **look)
    width = problem.solve(problem.temperature_for(entropy)).std
    a = np.linspace(-2, 2, 401)
    density = np.exp(-0.5 * (a / width) ** 2) / (width * math.sqrt(2 * math.pi))
    side.plot(a, density, color=INK, linewidth=1, label="optimal for the target")
    left.set(xlabel="pushes", ylabel="score of the mean action", ylim=(-2, 1.2))
    left.legend(loc="lower right", fontsize=8.5)
    side.set(xlabel="push at s = 0 (five agents)", ylabel="density", ylim=(0, 2.3))
    side.legend(fontsize=8.5, loc="upper right")
    return figure
