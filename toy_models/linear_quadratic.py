"""A task with continuous actions whose answer is known: linear system, quadratic cost.

    best = LQ.solve()                    # gain, value and curvature of the optimal controller
    soft = LQ.solve(alpha=0.2)           # the optimal Gaussian when entropy is paid for
    LQ.expected_return(0.7, 0.3)         # what any linear policy is worth, differentiable
    env = LinearQuadratic()              # the same as a gymnasium environment

Left out: several dimensions, observation noise, time-varying gains. Lecture 19.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

DTYPE = torch.float64


def positive_or_zero(name: str, value: float) -> None:
    if not value >= 0:
        raise ValueError(f"{name} must be ≥ 0, got {value}")


class Solution(NamedTuple):
    """What is optimal, or what a given linear policy is worth.

    gain, std : the policy is Normal(-gain s, std²)       entropy : nats of one action
    P, offset : its value is V(s) = -P s² - offset, points (entropy included if alpha > 0)
    curvature : c + discount B² P; at alpha = 0, Q(s, a) = V(s) - curvature (a + gain s)²
    """

    gain: float
    std: float
    P: float
    offset: float
    curvature: float

    @property
    def entropy(self) -> float:
        return 0.5 * math.log(2 * math.pi * math.e * self.std**2) if self.std > 0 else -math.inf


@dataclass(frozen=True)
class LinearQuadraticProblem:
    """s' = A s + B a + noise, reward -(q s² + c a²), and after each step an end with chance `end`.

    `gamma` is the agent's discount; a chance of 1 - end to go on discounts once more, so the
    problem's `discount` is gamma (1 - end). Start states are uniform on
    [-start, start].
    """

    A: float = 0.9
    B: float = 1.0
    q: float = 1.0
    c: float = 0.5
    noise: float = 0.1
    start: float = 1.5
    gamma: float = 0.9
    end: float = 0.0

    def __post_init__(self):
        for name in ("q", "noise", "start"):
            positive_or_zero(name, getattr(self, name))
        if not self.c > 0:
            raise ValueError(f"c must be positive, got {self.c}")
        if not (0 <= self.gamma <= 1 and 0 <= self.end <= 1 and self.discount < 1):
            raise ValueError(
                "gamma and end must lie in [0, 1] with gamma (1 - end) < 1, got "
                f"{self.gamma} and {self.end}"
            )
        if not (math.isfinite(self.A) and math.isfinite(self.B)):
            raise ValueError(f"A and B must be finite, got {self.A} and {self.B}")

    @property
    def discount(self) -> float:
        return self.gamma * (1 - self.end)

    def solve(self, alpha: float = 0.0) -> Solution:
        """The optimal policy for reward + alpha · entropy: the scalar Riccati equation.

        gain = d A B P / (c + d B² P), P = q + d A (A - B gain) P, variance alpha / (2 curvature)
        with d = discount. The gain does not depend on alpha: noise costs the same in all states.
        """
        positive_or_zero("alpha", alpha)
        d, P = self.discount, self.q
        for _ in range(2000):
            gain = d * self.A * self.B * P / (self.c + d * self.B**2 * P)
            P = self.q + d * self.A * (self.A - self.B * gain) * P
        curvature = self.c + d * self.B**2 * P
        paid = 0.5 * alpha * math.log(math.pi * alpha / curvature) if alpha > 0 else 0.0
        offset = (d * P * self.noise**2 - paid) / (1 - d)
        return Solution(gain, math.sqrt(alpha / (2 * curvature)), P, offset, curvature)

    def temperature_for(self, entropy: float) -> float:
        """The alpha whose optimal policy has this entropy (nats per action)."""
        return 2 * self.solve().curvature * math.exp(2 * entropy) / (2 * math.pi * math.e)

    def worth(self, gain, std=0.0, *, discount: float | None = None):
        """(P, offset) of the policy Normal(-gain s, std²), without entropy; differentiable.

        `discount` replaces the problem's own (what a critic without the end mask believes).
        Raises ValueError where the closed loop is too unstable for a finite value.
        """
        d = self.discount if discount is None else discount
        if not 0 <= d < 1:
            raise ValueError(f"discount must lie in [0, 1), got {d}")
        shrink = self._shrink(gain, d)
        P = (self.q + self.c * gain**2) / (1 - shrink)
        per_step = d * P * self.noise**2 + (self.c + d * self.B**2 * P) * std**2
        return P, per_step / (1 - d)

    def _shrink(self, gain, d: float):
        shrink = d * (self.A - self.B * gain) ** 2
        if not (torch.as_tensor(shrink) < 1).all():
            raise ValueError(f"gain {gain}: discount (A - B gain)² = {shrink} is not below 1")
        return shrink

    def expected_return(self, gain, std=0.0):
        """Expected discounted reward from the start states, points; differentiable."""
        P, offset = self.worth(gain, std)
        return -P * self.start**2 / 3 - offset

    def action_value(self, s, a, gain):
        """Q(s, a), points: act once as you like, then follow a = -gain s; differentiable."""
        P, offset = self.worth(gain)
        after = (self.A * s + self.B * a) ** 2 + self.noise**2
        return -(self.q * s**2 + self.c * a**2) - self.discount * (P * after + offset)

    def gain_of(self, act: Callable[[Tensor], Tensor]) -> Tensor:
        """(seeds,) least-squares gain of actions act((n, 1)) -> (seeds, n, 1) on -1 ≤ s ≤ 1."""
        s = torch.linspace(-1, 1, 21, dtype=DTYPE)[:, None]
        return -(act(s)[..., 0] @ s[:, 0]) / s.square().sum()

    def visits(self, gain: float, std: float = 0.0) -> float:
        """sum_t discount^t E[s_t²]: the second moment of the (unnormalised) visited states."""
        d = self.discount
        return (self.start**2 / 3 + d * (self.noise**2 + (self.B * std) ** 2) / (1 - d)) / (
            1 - self._shrink(gain, d)
        )

    def score(self, act: Callable[[Tensor], Tensor], *, n: int = 256, steps: int = 60) -> Tensor:
        """Share of what the optimal controller gains over doing nothing, on the same noise.

        act     : states (seeds, n, 1) -> actions (seeds, n, 1)
        returns : (seeds,); 1 is optimal, 0 is the policy a = 0. Discounts instead of ending.
        """
        dice = torch.Generator().manual_seed(1234)
        first = self.start * torch.linspace(-1, 1, n, dtype=DTYPE)[:, None]
        noise = self.noise * torch.randn(steps, n, 1, generator=dice, dtype=DTYPE)
        gain, totals = self.solve().gain, []
        for policy in (act, lambda s: -gain * s, lambda s: 0 * s):
            s, total = first[None], 0.0
            for t in range(steps):
                a = policy(s)
                if a.shape[-2:] != (n, 1):
                    raise ValueError(f"act must give (seeds, {n}, 1), got {tuple(a.shape)}")
                total = total - self.discount**t * (self.q * s**2 + self.c * a**2).mean((-2, -1))
                s = self.A * s + self.B * a + noise[t]
            totals.append(total)
        ours, best, nothing = totals
        return (ours - nothing) / (best - nothing)


LQ = LinearQuadraticProblem()


class LinearQuadratic(gym.Env):
    """`LinearQuadraticProblem` as an environment: one number seen, one number done.

    An episode terminates with chance `end` after each step and is truncated after `limit` steps
    (not an end: the value goes on). Actions are cut to ±bound; the optimum hardly ever gets there.
    """

    metadata: ClassVar = {"render_modes": []}

    def __init__(
        self,
        problem: LinearQuadraticProblem = LQ,
        *,
        bound: float = 2.0,
        limit: int = 5,
        luck: float = 0.0,
    ):
        if not isinstance(limit, int) or limit < 1:
            raise ValueError(f"limit must be a positive whole number, got {limit!r}")
        if not 0 < bound < math.inf:
            raise ValueError(f"bound must be positive and finite, got {bound}")
        positive_or_zero("luck", luck)
        self.problem, self.limit, self.luck = problem, limit, luck
        self.observation_space = Box(-np.inf, np.inf, (1,), np.float64)
        self.action_space = Box(-bound, bound, (1,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.t, self.s = 0, self.problem.start * self.np_random.uniform(-1, 1)
        return np.array([self.s]), {}

    def step(self, action):
        p, bound = self.problem, self.action_space.high[0]
        if not math.isfinite(action[0]):
            raise ValueError(f"action must be finite, got {action}")
        a = min(max(float(action[0]), -bound), bound)
        reward = -(p.q * self.s**2 + p.c * a**2) + self.luck * self.np_random.standard_normal()
        self.s = p.A * self.s + p.B * a + p.noise * self.np_random.standard_normal()
        self.t += 1
        terminated = bool(self.np_random.random() < p.end)
        return np.array([self.s]), reward, terminated, self.t >= self.limit, {}
