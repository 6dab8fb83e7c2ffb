"""The policy-gradient theorem over states: which visits belong to which action value.

    chain = random_chain(seed=3)                    # 3 states, 2 actions, nothing ends
    form = average_reward(chain, policy)            # J, how often each state is visited, Q
    (form.visits[:, None].detach() * policy * form.q.detach()).sum().backward()     # grad J

Two objectives over one chain, discounted and average reward, each as J = sum_s visits(s) E[r(s, a)]
with its own visits and its own Q, exact by linear algebra and differentiable in the policy. A third
one, with a horizon, has no such `Form`: its Q depends on the steps to go (`surrogate` sums over
them). Left out: states that cannot be reached, chains that are periodic, anything sampled.
Lecture 19.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Chain(NamedTuple):
    """move : (states, actions, states) probabilities; rewards : (states, actions) points;
    first : (states,) probabilities of the first state."""

    move: Tensor
    rewards: Tensor
    first: Tensor


class Form(NamedTuple):
    """J : scalar, points; visits : (states,); q : (states, actions) points."""

    J: Tensor
    visits: Tensor
    q: Tensor


def random_chain(states: int = 3, actions: int = 2, *, seed: int = 0) -> Chain:
    """A chain with uneven transitions and normal rewards that starts in state 0."""
    dice = torch.Generator().manual_seed(seed)
    weight = torch.rand(states, actions, states, generator=dice, dtype=torch.float64) ** 3
    rewards = torch.randn(states, actions, generator=dice, dtype=torch.float64)
    first = torch.zeros(states, dtype=torch.float64)
    first[0] = 1
    return Chain(weight / weight.sum(-1, keepdim=True), rewards, first)


def discounted(chain: Chain, policy: Tensor, *, gamma: float) -> Form:
    """visits(s) = sum_t gamma^t Pr(s_t = s), which add up to 1 / (1 - gamma) [MAX-15].

    policy : (states, actions) probabilities. Raises ValueError for a gamma outside [0, 1).
    """
    if not 0 <= gamma < 1:
        raise ValueError(f"gamma must lie in [0, 1), got {gamma}")
    step, pay = _under(chain, policy)
    system = torch.eye(len(pay), dtype=pay.dtype) - gamma * step
    value, visits = torch.linalg.solve(system, pay), torch.linalg.solve(system.T, chain.first)
    return Form(chain.first @ value, visits, chain.rewards + gamma * chain.move @ value)


def average_reward(chain: Chain, policy: Tensor) -> Form:
    """J is the reward per step in the long run, visits the stationary distribution [MAX-15].

    q sums r - J (the differential return); only its differences within a state mean something.
    policy : (states, actions) probabilities
    """
    step, pay = _under(chain, policy)
    eye, ones = torch.eye(len(pay), dtype=pay.dtype), torch.ones_like(step)
    if not torch.linalg.cond((eye - step + ones).detach()) < 1e12:
        raise ValueError("this chain has several closed parts: no single stationary distribution")
    visits = torch.linalg.solve((eye - step + ones).T, torch.ones_like(pay))  # dP = d, sum d = 1
    J = visits @ pay
    value = torch.linalg.solve(eye - step + ones * visits, pay - J)  # v = r - J + P v, d v = 0
    return Form(J, visits, chain.rewards - J + chain.move @ value)


def state_gradient(form: Form, policy: Tensor, parameters: Tensor, *, q: Tensor | None = None):
    """sum_s visits(s) sum_a grad policy(a | s) q(s, a): the right-hand side of [MAX-15].

    q : (states, actions), default the form's own; another one shows what a mixture does
    """
    if q is not None and q.shape != form.q.shape:
        raise ValueError(f"q must be {tuple(form.q.shape)}, got {tuple(q.shape)}")
    weight = form.visits[:, None].detach() * (form.q if q is None else q).detach()
    return torch.autograd.grad((weight * policy).sum(), parameters, retain_graph=True)[0]


def horizon_return(chain: Chain, policy: Tensor, steps: int) -> Tensor:
    """Expected sum of the first `steps` rewards, a scalar."""
    return chain.first @ _values(chain, policy, steps)[steps]


def surrogate(chain: Chain, old: Tensor, new: Tensor, steps: int) -> Tensor:
    """L = E[new / old · A] over the states of `old`, whose d has the factor 1 / steps.

    An average over steps, each with the Q of its own steps to go; J_new - J_old = steps · L to
    first order in new - old, so in `new` at `old` the gradient of steps · L is that of J.
    """
    values, at, total = _values(chain, old, steps), chain.first, 0.0
    (move, _), _ = _under(chain, old), _under(chain, new)  # the second: only to be checked
    for t in range(steps):
        q = chain.rewards + chain.move @ values[steps - t - 1]
        total = total + at @ ((new - old) * q).sum(1)
        at = at @ move
    return total / steps


def _values(chain: Chain, policy: Tensor, steps: int) -> list[Tensor]:
    """Values with 0, 1, … steps to go."""
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be a positive whole number, got {steps!r}")
    step, pay = _under(chain, policy)
    values = [torch.zeros_like(pay)]
    for _ in range(steps):
        values.append(pay + step @ values[-1])
    return values


def _under(chain: Chain, policy: Tensor) -> tuple[Tensor, Tensor]:
    """Transition matrix (states, states) and expected reward (states,) of a policy."""
    if policy.shape != chain.rewards.shape:
        raise ValueError(
            f"policy must be (states, actions) = {tuple(chain.rewards.shape)}, "
            f"got {tuple(policy.shape)}"
        )
    off = (policy.detach().sum(1) - 1).abs().max()
    if not off < 1e-6 or bool((policy < 0).any()):
        raise ValueError(f"policy must hold probabilities that sum to 1 per state, off by {off}")
    return torch.einsum("sa,san->sn", policy, chain.move), (policy * chain.rewards).sum(1)
