"""Actions that are numbers: DDPG, TD3 and SAC as one agent.

    runs = learn_continuous(LinearQuadratic, SAC, seeds=range(3), steps=1500)
    runs.act(states)                     # (seeds, n, 1): what each of the three policies does
    LQ.score(runs.act)                   # (seeds,) 1 is optimal, 0 is doing nothing

    DDPG   one critic, actor follows it at every step
    TD3    = DDPG + the smaller of two critics + a slower actor + noise on the target's action
    SAC    = a random actor that is paid for entropy, two critics, a temperature that adjusts

All seeds learn side by side: every tensor has a leading axis `seeds`, and the runs never touch.
What they should have learned on the small task is known: `toy_models.linear_quadratic`.

Left out: images, observation normalisation, several updates per step. Lecture 19.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor
from torch.nn.functional import silu, softplus

from toy_models.linear_quadratic import DTYPE, LQ, positive_or_zero

LOG_STD_RANGE = (-5.0, 2.0)  # nats: the narrowest and the widest Gaussian an actor can say


# --- the pieces: four pure functions ------------------------------------------------------------


def tanh_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor, *, bound: float = 1.0):
    """A bounded random action and its log-density, both differentiable in mean and log_std.

    mean, log_std, noise : (..., actions); noise is standard normal
    returns : action (..., actions) in (-bound, bound), and logp (...) nats, the sum over actions
    Formula : u = mean + std · noise, action = bound tanh(u), and by the change of variables
              logp = log Normal(u) - sum log|da/du| with da/du = bound (1 - tanh² u), whose log is
              log bound + 2 (log 2 - u - softplus(-2u)): finite where 1 - tanh² rounds to 0.
    Haarnoja et al. 2018 (arXiv 1801.01290), appendix C [MAX-11]. Leaves out: action ranges that
    are not symmetric.
    """
    if mean.shape != log_std.shape or mean.shape != noise.shape:
        raise ValueError(
            f"mean, log_std and noise must have one shape (..., actions), got {tuple(mean.shape)}, "
            f"{tuple(log_std.shape)}, {tuple(noise.shape)}"
        )
    if not bound > 0:
        raise ValueError(f"bound must be positive, got {bound}")
    u = mean + log_std.exp() * noise
    gaussian = -0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)
    jacobian = math.log(bound) + 2 * (math.log(2) - u - softplus(-2 * u))
    return bound * u.tanh(), (gaussian - jacobian).sum(-1)


def td_target(reward: Tensor, terminated: Tensor, next_value: Tensor, gamma: float) -> Tensor:
    """reward + gamma next_value, and only the reward where the episode is over [MAX-5].

    reward, terminated, next_value : one shape; truncated is not terminated: the value goes on.
    Raises ValueError for shapes that differ or a gamma outside [0, 1].
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must lie in [0, 1], got {gamma}")
    if reward.shape != terminated.shape or reward.shape != next_value.shape:
        raise ValueError(
            "reward, terminated and next_value must have one shape, got "
            f"{tuple(reward.shape)}, {tuple(terminated.shape)}, {tuple(next_value.shape)}"
        )
    return reward + gamma * torch.where(terminated.bool(), 0.0, next_value).detach()


def soft_update(targets: Sequence[Tensor], sources: Sequence[Tensor], tau: float) -> None:
    """target <- (1 - tau) target + tau source, in place [MAX-6]; tau = 1 copies."""
    if not 0 <= tau <= 1:
        raise ValueError(f"tau must lie in [0, 1], got {tau}")
    if len(targets) != len(sources):
        raise ValueError(f"{len(targets)} targets for {len(sources)} sources")
    if any(t.shape != s.shape for t, s in zip(targets, sources, strict=True)):
        raise ValueError("targets and sources must have the same shapes, one by one")
    with torch.no_grad():
        torch._foreach_lerp_(list(targets), list(sources), tau)


def temperature_loss(log_alpha: Tensor, logp: Tensor, target_entropy: float) -> Tensor:
    """alpha (entropy - target), with the entropy estimated by -logp; to be minimised [MAX-12].

    log_alpha : (...)      logp : (..., batch) nats of sampled actions; a constant here
    returns   : (...) Its gradient raises alpha while the entropy lies below the target.
    Haarnoja et al. 2018 (arXiv 1812.05905), equation 18.
    """
    entropy = -logp.detach().mean(-1)
    if entropy.shape != log_alpha.shape:
        raise ValueError(
            f"logp must be (..., batch) for log_alpha (...): got {tuple(logp.shape)} "
            f"for {tuple(log_alpha.shape)}"
        )
    return log_alpha.exp() * (entropy - target_entropy)


# --- the agent ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """What DDPG, TD3 and SAC differ in (first block), and what they share.

    twin         : two critics, of which the smaller counts
    delay        : critic steps per step of the actor and of all target networks
    smoothing    : std of the noise on the target's action, in units of bound, cut at ± 2.5 std
    stochastic   : a tanh-Gaussian actor that is paid for entropy
    alpha        : temperature, points per nat; None: learned, so that entropy = target_entropy
    explore      : std of the noise on a deterministic action, in units of bound
    noise_memory : 0 draws it afresh, near 1 lets it drift (Ornstein–Uhlenbeck), same std; the
                   drift runs on over the ends of episodes, where Lillicrap et al. start it anew
    """

    name: str
    twin: bool = False
    delay: int = 1
    smoothing: float = 0.0
    stochastic: bool = False
    alpha: float | None = None
    target_entropy: float = 0.1
    explore: float = 0.2
    noise_memory: float = 0.0
    tau: float = 0.1
    lr: float = 1e-2
    batch: int = 64
    hidden: int = 32
    warmup: int = 100
    memory: int = 100_000

    def __post_init__(self):
        for name in ("delay", "batch", "hidden", "warmup", "memory"):
            if not (isinstance(getattr(self, name), int) and getattr(self, name) >= 1):
                raise ValueError(f"{name} must be an integer ≥ 1, got {getattr(self, name)!r}")
        for name in ("smoothing", "explore", "alpha"):
            if getattr(self, name) is not None:
                positive_or_zero(name, getattr(self, name))
        for name, top in (("noise_memory", 0.999), ("tau", 1.0)):
            if not 0 <= getattr(self, name) <= top:
                raise ValueError(f"{name} must lie in [0, {top}], got {getattr(self, name)}")


DDPG = Method("ddpg")
TD3 = replace(DDPG, name="td3", twin=True, delay=2, smoothing=0.1)
SAC = replace(DDPG, name="sac", twin=True, stochastic=True)


class Runs:
    """Agents that learn side by side: networks with a leading axis of seeds, and their log.

    act(s)     : (seeds, n, states) -> (seeds, n, actions), the mean action
    q(s, a)    : (seeds, critics, n), every critic's opinion, points
    alpha      : (seeds,) temperature, 0 for a deterministic actor
    log        : {name: (seeds, points)} what `watch` returned
    """

    def __init__(self, method: Method, env: gym.Env, seeds: Sequence[int]):
        n, states, actions = len(seeds), env.observation_space.shape[0], env.action_space.shape[0]
        self.method, self.actions, self.log = method, actions, {}
        self.bound = float(env.action_space.high[0])
        self.dice = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
        heads, critics = (2 if method.stochastic else 1), (2 if method.twin else 1)
        self.actor = self._network(1, states, heads * actions)
        self.critic = self._network(critics, states + actions, 1)
        self.actor_target = [p.detach().clone() for p in self.actor]
        self.critic_target = [p.detach().clone() for p in self.critic]
        start = 0.1 if method.alpha is None else max(method.alpha, 1e-12)
        self.log_alpha = torch.full((n,), math.log(start), dtype=DTYPE, requires_grad=True)

    def _network(self, copies: int, width_in: int, width_out: int) -> list[Tensor]:
        """Weights (seeds, copies, in, out) and biases of two hidden layers."""
        sizes, parameters = (width_in, self.method.hidden, self.method.hidden, width_out), []
        for fan_in, fan_out in itertools.pairwise(sizes):
            W = self.randn(copies, fan_in, fan_out) / math.sqrt(fan_in)
            W = W * 0.1 if fan_out == width_out else W
            parameters += [W, torch.zeros(len(self.dice), copies, 1, fan_out, dtype=DTYPE)]
        return [p.requires_grad_() for p in parameters]

    def randn(self, *shape: int) -> Tensor:
        """(seeds, *shape) standard normal, each seed from its own dice."""
        return torch.stack([torch.randn(shape, generator=g, dtype=DTYPE) for g in self.dice])

    def policy(self, s: Tensor, parameters: list[Tensor], noise: Tensor | None = None):
        """action (seeds, n, actions) and logp (seeds, n), which is 0 for a deterministic actor."""
        out = _forward(parameters, s[:, None])[:, 0]
        if not self.method.stochastic:
            return self.bound * out.tanh(), out.new_zeros(out.shape[:-1])
        mean, log_std = out.chunk(2, -1)
        noise = torch.zeros_like(mean) if noise is None else noise
        return tanh_gaussian(mean, log_std.clamp(*LOG_STD_RANGE), noise, bound=self.bound)

    def act(self, s: Tensor) -> Tensor:
        with torch.no_grad():
            return self.policy(s.expand(len(self.dice), *s.shape[-2:]), self.actor)[0]

    def entropy(self, s: Tensor, *, n: int = 512) -> Tensor:
        """(seeds,) nats per action of a random actor, averaged over states s (n_states, states)."""
        every = s.repeat(n, 1).expand(len(self.dice), -1, -1)
        dice = torch.Generator().manual_seed(99)
        noise = torch.randn(*every.shape[:-1], self.actions, generator=dice, dtype=DTYPE)
        with torch.no_grad():
            return -self.policy(every, self.actor, noise)[1].mean(-1)

    def q(self, s: Tensor, a: Tensor) -> Tensor:
        with torch.no_grad():
            return _q(self.critic, s.expand(len(self.dice), *s.shape[-2:]), a)

    @property
    def alpha(self) -> Tensor:
        return self.log_alpha.detach().exp() * self.method.stochastic


def learn_continuous(
    make_env: Callable[[], gym.Env],
    method: Method,
    *,
    seeds: Sequence[int] = (0,),
    steps: int = 1500,
    gamma: float = LQ.gamma,
    watch: Callable[[Runs], dict[str, Tensor]] | None = None,
    every: int = 50,
) -> Runs:
    """Train one agent per seed, an update for every step of its environment.

    make_env : called once per seed; a gymnasium environment with Box states and actions (±bound)
    method   : DDPG, TD3, SAC, or `dataclasses.replace` of one of them
    watch    : called every `every` steps; its values (seeds,) are stacked into `runs.log`
    Each step: act with noise, remember, draw `batch` remembered transitions, move both critics
    towards the target, every `delay` steps the actor (and the temperature) along the critic, and
    the target networks a little. The first `warmup` actions are uniform; the learning rate falls
    to 0 over the second half. Per seed bit-identical for the same call.
    DDPG: Lillicrap et al. 2016 (arXiv 1509.02971), algorithm 1. TD3: Fujimoto et al. 2018
    (arXiv 1802.09477), algorithm 1. SAC: Haarnoja et al. 2018 (arXiv 1812.05905), algorithm 1.
    Raises TypeError or ValueError for an environment or argument that cannot be used.
    """
    envs = [make_env() for _ in seeds]
    _check(envs, method, seeds, steps)
    if not isinstance(every, int) or every < 1:
        raise ValueError(f"every must be an integer ≥ 1, got {every!r}")
    m, runs, width = method, Runs(method, envs[0], seeds), envs[0].observation_space.shape[0]
    actor_steps = torch.optim.Adam([*runs.actor], lr=m.lr)
    critic_steps = torch.optim.Adam([*runs.critic], lr=m.lr)
    alpha_steps = torch.optim.Adam([runs.log_alpha], lr=m.lr)
    room = min(m.memory, steps)
    memory = torch.zeros(len(seeds), room, 2 * width + runs.actions + 2, dtype=DTYPE)
    sizes = (width, runs.actions, 1, width, 1)  # s, a, r, s', terminated
    s = np.stack([env.reset(seed=int(seed))[0] for env, seed in zip(envs, seeds, strict=True)])
    drift = torch.zeros(len(seeds), 1, runs.actions, dtype=DTYPE)
    for t in range(steps):
        for optimizer in (actor_steps, critic_steps, alpha_steps):
            optimizer.param_groups[0]["lr"] = m.lr * min(1.0, 2 - 2 * t / steps)
        here = torch.as_tensor(s, dtype=DTYPE)[:, None]  # (seeds, 1, states)
        fresh, keep = runs.randn(1, runs.actions), m.noise_memory
        drift = keep * drift + math.sqrt(1 - keep**2) * fresh
        with torch.no_grad():
            a = runs.policy(here, runs.actor, fresh)[0]
            if t < m.warmup:
                a = runs.bound * (2 * torch.special.ndtr(fresh) - 1)  # uniform
            elif not m.stochastic:
                a = (a + m.explore * runs.bound * drift).clamp(-runs.bound, runs.bound)
        for i, env in enumerate(envs):
            after, reward, terminated, truncated, _ = env.step(a[i, 0].numpy())
            row = [*s[i], *a[i, 0].tolist(), reward, *after, float(terminated)]
            memory[i, t % room] = torch.tensor(row, dtype=DTYPE)
            s[i] = env.reset()[0] if terminated or truncated else after
        if t >= m.warmup:
            filled = min(t + 1, room)
            picks = [torch.randint(filled, (m.batch,), generator=g) for g in runs.dice]
            batch = torch.stack([row[pick] for row, pick in zip(memory, picks, strict=True)])
            _critic_step(runs, critic_steps, batch.split(sizes, -1), gamma)
            if t % m.delay == 0:
                _actor_step(runs, actor_steps, alpha_steps, batch[..., :width])
                soft_update(runs.actor_target, runs.actor, m.tau)
                soft_update(runs.critic_target, runs.critic, m.tau)
        if watch is not None and (t + 1) % every == 0:
            for name, value in watch(runs).items():
                runs.log.setdefault(name, []).append(value)
    runs.log = {name: torch.stack(values, 1) for name, values in runs.log.items()}
    return runs


def _critic_step(runs: Runs, optimizer, batch: tuple[Tensor, ...], gamma: float) -> None:
    """Move every critic towards the target [MAX-5]: mean over the batch, sum over the rest."""
    s, a, r, after, terminated = batch
    value = _next_value(runs, after, runs.randn(after.shape[1], runs.actions))
    target = td_target(r[..., 0], terminated[..., 0], value, gamma)  # (seeds, batch)
    error = _q(runs.critic, s, a) - target[:, None]
    _descend(optimizer, runs.critic, error.square().mean(-1).sum())


def _next_value(runs: Runs, after: Tensor, noise: Tensor) -> Tensor:
    """What the target networks say about the policy's own action there [MAX-7], [MAX-9].

    TD3 takes the target actor's action and adds noise; SAC, as in its paper, draws from the actor.
    """
    m = runs.method
    with torch.no_grad():
        a, logp = runs.policy(after, runs.actor if m.stochastic else runs.actor_target, noise)
        if m.smoothing:
            wobble = m.smoothing * noise.clamp(-2.5, 2.5)
            a = (a + runs.bound * wobble).clamp(-runs.bound, runs.bound)
        return _q(runs.critic_target, after, a).amin(1) - runs.alpha[:, None] * logp


def _actor_step(runs: Runs, optimizer, alpha_optimizer, s: Tensor) -> None:
    """Move the actor along the critic's slope [MAX-3], [MAX-10], and the temperature [MAX-12]."""
    m = runs.method
    a, logp = runs.policy(s, runs.actor, runs.randn(m.batch, runs.actions))
    q = _q(runs.critic, s, a)
    worth = q.amin(1) if m.stochastic else q[:, 0]  # TD3's actor follows the first critic
    _descend(optimizer, runs.actor, (runs.alpha[:, None] * logp - worth).mean(-1).sum())
    if m.stochastic and m.alpha is None:
        loss = temperature_loss(runs.log_alpha, logp, m.target_entropy).sum()
        _descend(alpha_optimizer, [runs.log_alpha], loss)


def _descend(optimizer, parameters: list[Tensor], loss: Tensor) -> None:
    """One optimiser step on these parameters only; the loss may run through others."""
    if not bool(loss.isfinite()):
        raise FloatingPointError("a loss is inf or nan: check rewards, states and knobs")
    grads = torch.autograd.grad(loss, parameters)
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad
    optimizer.step()


def _forward(parameters: list[Tensor], x: Tensor) -> Tensor:
    """(seeds, 1 or copies, n, in) -> (seeds, copies, n, out) through two hidden layers."""
    W1, b1, W2, b2, W3, b3 = parameters
    return silu(silu(x @ W1 + b1) @ W2 + b2) @ W3 + b3


def _q(parameters: list[Tensor], s: Tensor, a: Tensor) -> Tensor:
    return _forward(parameters, torch.cat([s, a], -1)[:, None])[..., 0]


def _check(envs: list, method: Method, seeds: Sequence[int], steps: int) -> None:
    if not isinstance(method, Method):
        raise TypeError(f"method must be DDPG, TD3, SAC or a Method, got {method!r}")
    if not envs or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"needs at least one seed and steps ≥ 1, got {list(seeds)} and {steps}")
    if len({id(env) for env in envs}) < len(envs):
        raise ValueError("make_env must build a new environment at each call; two seeds share one")
    for space in (envs[0].observation_space, envs[0].action_space):
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise TypeError(f"states and actions must be flat Box spaces, got {space}")
    low, high = envs[0].action_space.low, envs[0].action_space.high
    if not (np.isfinite(high).all() and (high == high[0]).all() and (low == -high).all()):
        raise ValueError(f"the action space must be ±bound, the same for all, got {low} to {high}")
