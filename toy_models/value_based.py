"""Deep Q-learning in small: DQN, and Double, Dueling and prioritised replay as its switches.

    run = learn_q(lambda: gymnasium.make("CartPole-v1"), seeds=range(3), steps=6000)
    returns = act_greedily(run.network, make, episodes=5)          # (runs, episodes)

Several seeds are trained side by side, each with its own network, buffer and environment: the
weights carry a leading axis `runs`, so that one matrix product serves them all. Every trick of DQN
is a knob, and its absence a value of the knob:

    replay            capacity = batch: only the latest transitions are learned from
    frozen target     copy_every = 1: the target is the network itself
    clipped errors    huber = False: half a square in place of the Huber loss
    exploration       epsilon = (0, 0): greedy from the first step
    Double, Dueling   double = True, dueling = True
    prioritised       priority = .6: transitions with large errors are replayed more often

`learn_offline` fits the same network to logged transitions alone. The sorting task as an
environment, `SortingEnv`, stands in `sorting_env.py`.

Left out: C51, noisy networks and n-step targets (the rest of Rainbow), frames and convolutions, a
sum tree (a draw from all priorities takes microseconds here). Tables and exact values:
`finite_mdp.py`. Lecture 18.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import huber_loss

from toy_models.sorting_env import SortingEnv, Transitions, logged_transitions, observe

__all__ = [
    "QNetwork",
    "QRun",
    "ReplayBuffer",
    "SortingEnv",
    "Transitions",
    "act_greedily",
    "copy_weights",
    "dueling_q",
    "epsilon_at",
    "importance_weights",
    "learn_offline",
    "learn_q",
    "logged_transitions",
    "observe",
    "td_target",
    "update",
]


# --- the pieces ----------------------------------------------------------------------------------


def td_target(
    rewards: Tensor,
    next_q: Tensor,
    next_q_target: Tensor,
    terminated: Tensor,
    *,
    gamma: float,
    double: bool,
) -> Tensor:
    """What Q(s, a) is pulled towards; a constant.

    Formula: r + gamma max_a' Q_target(s', a') [QL-7]; with double
    r + gamma Q_target(s', argmax_a' Q(s', a')) [QL-8]; just r where the task has ended.

    rewards, terminated : (...)   next_q, next_q_target : (..., actions), points
    returns : (...)

    `terminated` is the end of the task: cartpole fallen, answer complete. Where only the time was
    up (gymnasium's `truncated`) the next state still has a value, so it must be 0 there. Values
    behind an end may hold anything, NaN too. Raises ValueError for shapes that do not fit or a
    gamma outside 0..1. Mnih et al. 2015; van Hasselt, Guez and Silver 2016. Lecture 18.
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must lie in 0..1, got {gamma!r}")
    if not (next_q.shape == next_q_target.shape and next_q.shape[:-1] == rewards.shape):
        raise ValueError(
            "rewards (...) and next_q, next_q_target (..., actions) do not fit: got "
            f"{tuple(rewards.shape)}, {tuple(next_q.shape)}, {tuple(next_q_target.shape)}"
        )
    if terminated.shape != rewards.shape:
        raise ValueError(
            f"terminated must have the shape of rewards, {tuple(rewards.shape)}, got "
            f"{tuple(terminated.shape)}"
        )
    chosen = (next_q if double else next_q_target).argmax(-1, keepdim=True)
    following = next_q_target.gather(-1, chosen)[..., 0]
    return (rewards + gamma * torch.where(terminated.bool(), 0.0, following)).detach()


def dueling_q(value: Tensor, advantages: Tensor) -> Tensor:
    """Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a') [QL-9].

    value : (..., 1)   advantages, returns : (..., actions), points
    Without the mean a constant could move between the two heads unseen. Wang et al. 2016, eq. 9.
    """
    if value.shape[-1:] != (1,):
        raise ValueError(f"value must be (..., 1), got {tuple(value.shape)}")
    return value + advantages - advantages.mean(-1, keepdim=True)


def importance_weights(chances: Tensor, size: int, *, beta: float) -> Tensor:
    """(size * chance) ** -beta: undoes, for beta = 1, that some rows are drawn more often [QL-10].

    chances : (...) probability of the rows that were drawn   size : rows in the buffer
    Schaul et al. 2016, section 3.4; their division by the largest weight is left to the buffer.
    """
    if not bool((chances > 0).all()) or size < 1 or not beta >= 0:
        raise ValueError(
            f"chances must be above 0, size at least 1, beta at least 0; got {chances.min():g}, "
            f"{size}, {beta}"
        )
    return (size * chances) ** -beta


def epsilon_at(step: int, *, first: float, last: float, decay: int) -> float:
    """Share of random actions: from `first` straight down to `last` within `decay` steps."""
    return last + (first - last) * max(0.0, 1 - step / max(1, decay))


@torch.no_grad()
def copy_weights(target: nn.Module, source: nn.Module, *, tau: float = 1.0) -> None:
    """target += tau (source - target): tau = 1 is DQN's hard copy, .005 a soft one."""
    if not 0 < tau <= 1:
        raise ValueError(f"tau must lie in 0..1, above 0, got {tau!r}")
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.lerp_(new, tau)


class QNetwork(nn.Module):
    """Two hidden layers of `hidden` ReLUs, a separate network for each seed.

    (runs, batch, features) -> (runs, batch, actions), points. With `dueling` the last layer has a
    column for V and one per action for A, combined by `dueling_q`.
    """

    def __init__(
        self,
        features: int,
        actions: int,
        *,
        seeds: Iterable[int] = (0,),
        hidden: int = 64,
        dueling: bool = False,
    ):
        super().__init__()
        self.dueling, self.actions = dueling, actions
        dice = [torch.Generator().manual_seed(seed) for seed in seeds]
        sizes = [(features, hidden), (hidden, hidden), (hidden, actions + dueling)]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for rows, columns in sizes:
            bound = rows**-0.5
            drawn = [torch.rand(rows + 1, columns, generator=g) * 2 * bound - bound for g in dice]
            both = torch.stack(drawn)  # (runs, rows + 1, columns)
            self.weights.append(nn.Parameter(both[:, :-1].clone()))
            self.biases.append(nn.Parameter(both[:, -1:].clone()))

    def forward(self, observations: Tensor) -> Tensor:
        x = observations
        for k, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x.relu() if k else x, weight)
        return dueling_q(x[..., :1], x[..., 1:]) if self.dueling else x


class ReplayBuffer:
    """The last `capacity` transitions of each run, drawn uniformly or by priority.

    priority = 0 draws uniformly; else a row's chance is proportional to (|error| + .01) ** priority
    for its last known TD error (a new row gets the largest so far). Schaul et al. 2016, eq. 1.
    """

    def __init__(self, capacity: int, features: int, *, runs: int = 1, priority: float = 0.0):
        if not isinstance(capacity, int) or capacity < 1:
            raise ValueError(f"capacity must be a positive whole number, got {capacity!r}")
        if not 0 <= priority <= 1:
            raise ValueError(f"priority must lie in 0..1, got {priority!r}")
        self.capacity, self.priority, self.added = capacity, priority, 0
        self.rows = Transitions(
            torch.zeros(runs, capacity, features),
            torch.zeros(runs, capacity, dtype=torch.long),
            torch.zeros(runs, capacity),
            torch.zeros(runs, capacity, features),
            torch.zeros(runs, capacity, dtype=torch.bool),
        )
        self.priorities = torch.zeros(runs, capacity)
        self.largest = torch.ones(runs)

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(self, *step: Tensor) -> None:
        """One step of every run, in the order of `Transitions`: (runs, ...) each."""
        place = self.added % self.capacity
        for name, kept, new in zip(Transitions._fields, self.rows, step, strict=True):
            if new.shape != kept[:, place].shape:
                raise ValueError(
                    f"{name} must be {tuple(kept[:, place].shape)}, got {tuple(new.shape)}"
                )
            kept[:, place] = new
        self.priorities[:, place] = self.largest
        self.added += 1

    def chances(self) -> Tensor:
        """(runs, rows) the probability of drawing each row."""
        weight = self.priorities[:, : len(self)] ** self.priority
        return weight / weight.sum(1, keepdim=True)

    def sample(
        self, batch: int, *, beta: float = 1.0, generator: torch.Generator | None = None
    ) -> tuple[Transitions, Tensor, Tensor]:
        """Draw with replacement: (transitions, places (runs, batch), weights (runs, batch)).

        The weights are `importance_weights` over the largest one of the whole buffer, so at most 1
        and, for beta = 1, unbiased up to that one factor. Raises ValueError while empty.
        """
        if not len(self):
            raise ValueError("the replay buffer is empty: add transitions before sampling")
        runs = len(self.priorities)
        if self.priority == 0:
            places = torch.randint(len(self), (runs, batch), generator=generator)
            weights = torch.ones(runs, batch)
        else:
            chances = self.chances()
            places = torch.multinomial(chances, batch, replacement=True, generator=generator)
            every = importance_weights(chances, len(self), beta=beta)
            weights = (every / every.max(1, keepdim=True).values).gather(1, places)
        run = torch.arange(runs)[:, None]
        return Transitions(*(kept[run, places] for kept in self.rows)), places, weights

    def update(self, places: Tensor, errors: Tensor) -> None:
        """Set the priorities of the rows just replayed: places, errors (runs, batch)."""
        size = errors.detach().abs() + 0.01
        self.priorities[torch.arange(len(places))[:, None], places] = size
        self.largest = torch.maximum(self.largest, size.max(1).values)


# --- learning ------------------------------------------------------------------------------------


class QRun(NamedTuple):
    """What `learn_q` and `learn_offline` return.

    episodes : per run, (environment steps so far, return) at the end of each episode
    values, errors : (points, runs) mean over a batch of max_a Q and of |TD error|, every
               `log_every` updates
    """

    network: QNetwork
    episodes: list[list[tuple[int, float]]]
    values: Tensor
    errors: Tensor


def update(
    network: QNetwork,
    target: QNetwork,
    optimizer: torch.optim.Optimizer,
    seen: Transitions,
    weights: Tensor,
    *,
    gamma: float,
    double: bool,
    huber: bool = True,
    conservative: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """One step of Adam on the loss of Q(s, a) - `td_target`, each row times its weight.

    huber : half a square up to 1 and linear beyond, so that no error pulls harder than 1 (Mnih et
    al. clip it there); False: half a square everywhere
    conservative : adds this times logsumexp_a Q(s, a) - Q(s, a of the data) [QL-13]: pushes down
    what nobody tried. Kumar et al. 2020 (their CQL(H)).
    returns : the TD errors and max_a Q(s, a), (runs, batch) each
    """
    q = network(seen.observations)
    taken = q.gather(-1, seen.actions[..., None])[..., 0]
    with torch.no_grad():
        next_q, next_target = network(seen.next_observations), target(seen.next_observations)
    goal = td_target(seen.rewards, next_q, next_target, seen.terminated, gamma=gamma, double=double)
    error = goal - taken
    each = huber_loss(taken, goal, reduction="none") if huber else error.square() / 2
    loss = weights * each
    if conservative:
        loss = loss + conservative * (q.logsumexp(-1) - taken)
    optimizer.zero_grad()
    loss.mean(1).sum().backward()  # a sum over runs: none feels the others
    optimizer.step()
    return error.detach(), q.detach().max(-1).values


def learn_q(
    make: Callable[[], gymnasium.Env],
    *,
    seeds: Iterable[int] = (0,),
    steps: int = 6_000,
    updates_per_step: float = 0.5,
    gamma: float = 0.98,
    lr: float = 2e-3,
    hidden: int = 64,
    batch: int = 64,
    capacity: int = 10_000,
    warmup: int = 500,
    epsilon: tuple[float, float] = (1.0, 0.05),
    decay: int = 2_000,
    copy_every: int = 100,
    tau: float = 1.0,
    huber: bool = True,
    double: bool = False,
    dueling: bool = False,
    priority: float = 0.0,
    beta: float = 0.4,
    log_every: int = 100,
) -> QRun:
    """Deep Q-learning on an environment with discrete actions and flat observations.

    make        : called once per seed; its environment is reset with that seed
    steps       : environment steps of each run; the first `warmup` only fill the buffer
    updates_per_step : replayed batches per environment step; .25 is one every four steps
    gamma, lr   : discount; Adam's learning rate      hidden : width of both hidden layers
    batch       : rows per update                     capacity : rows kept; = batch: no replay
    epsilon     : share of random actions, first and last, falling over `decay` steps
    copy_every  : updates between copies into the frozen target; 1: no frozen target
    tau         : how far a copy goes; below 1 (with copy_every = 1) is a soft target
    huber       : loss of `update`; without a frozen target only the plain square learns here
    priority    : exponent of the priorities; 0 = uniform      beta : of their weights, rising to 1
    The rest: see the module. The same seeds give bit-identical results. Raises TypeError for an
    environment without discrete actions and ValueError for impossible knobs.
    """
    seeds = list(seeds)
    if not seeds:
        raise ValueError("seeds is empty: name at least one")
    _check_counts(
        steps=steps, batch=batch, copy_every=copy_every, hidden=hidden, log_every=log_every
    )
    if not updates_per_step >= 0 or warmup < 0 or decay < 0:
        raise ValueError(
            "updates_per_step, warmup and decay must not be negative, got "
            f"{updates_per_step}, {warmup}, {decay}"
        )
    for name, share, least in (("beta", beta, 0.0), ("tau", tau, 1e-12)):
        if not least <= share <= 1:
            raise ValueError(f"{name} must lie in 0..1, got {share!r}")
    if not isinstance(epsilon, tuple) or len(epsilon) != 2:
        raise ValueError(f"epsilon must be two shares in 0..1, got {epsilon!r}")
    if not all(0 <= share <= 1 for share in epsilon):
        raise ValueError(f"epsilon must be two shares in 0..1, got {epsilon!r}")
    envs = _build(make, len(seeds))
    if not isinstance(envs[0].action_space, gymnasium.spaces.Discrete):
        raise TypeError(f"actions must be Discrete, got {envs[0].action_space}")
    if len(envs[0].observation_space.shape or ()) != 1:
        raise TypeError(f"observations must be a flat Box, got {envs[0].observation_space}")
    actions = int(envs[0].action_space.n)
    now = np.stack([env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]).astype(
        np.float32
    )
    dice = np.random.default_rng(seeds)
    generator = torch.Generator().manual_seed(int(dice.integers(2**62)))
    shape = {"seeds": seeds, "hidden": hidden, "dueling": dueling}
    network, target = (QNetwork(now.shape[1], actions, **shape) for _ in range(2))
    optimizer = torch.optim.Adam(network.parameters(), lr=lr, fused=True)
    buffer = ReplayBuffer(capacity, now.shape[1], runs=len(seeds), priority=priority)
    episodes, earned, log = [[] for _ in seeds], np.zeros(len(seeds)), []
    updates, due = 0, 0.0
    for step in range(1, steps + 1):
        with torch.no_grad():
            best = network(torch.from_numpy(now)[:, None])[:, 0].argmax(-1).numpy()
        explore = epsilon_at(step, first=epsilon[0], last=epsilon[1], decay=decay)
        random = dice.random(len(seeds)) < (1.0 if step <= warmup and epsilon[0] else explore)
        taken = np.where(random, dice.integers(actions, size=len(seeds)), best)
        after, rewards, over = now.copy(), np.zeros(len(seeds), np.float32), []
        following = now.copy()
        for k, env in enumerate(envs):
            after[k], rewards[k], terminated, truncated, _ = env.step(int(taken[k]))
            earned[k] += rewards[k]
            over.append(bool(terminated))
            following[k] = after[k]
            if terminated or truncated:
                episodes[k].append((step, float(earned[k])))
                earned[k], following[k] = 0.0, env.reset()[0]
        buffer.add(*map(torch.from_numpy, (now, taken, rewards, after)), torch.tensor(over))
        now = following
        if step < max(warmup, batch):
            continue
        due += updates_per_step
        while due >= 1:
            due -= 1
            rising = beta + (1 - beta) * step / steps
            seen, places, weights = buffer.sample(batch, beta=rising, generator=generator)
            knobs = {"gamma": gamma, "double": double, "huber": huber}
            errors, peak = update(network, target, optimizer, seen, weights, **knobs)
            _check_finite(errors)
            buffer.update(places, errors)
            updates += 1
            if updates % copy_every == 0:
                copy_weights(target, network, tau=tau)
            if updates % log_every == 0:
                log.append((peak.mean(1), errors.abs().mean(1)))
    return QRun(network, episodes, *_columns(log, len(seeds)))


def learn_offline(
    logged: Transitions,
    actions: int,
    *,
    seeds: Iterable[int] = (0,),
    updates: int = 1_000,
    gamma: float = 1.0,
    lr: float = 1e-3,
    hidden: int = 64,
    batch: int = 64,
    copy_every: int = 50,
    double: bool = False,
    conservative: float = 0.0,
    log_every: int = 50,
) -> QRun:
    """Q-learning on logged transitions alone: no environment, so nothing it believes is tested.

    logged : (1, rows, ...) shared by all runs   actions : how many there are
    The knobs are `learn_q`'s and `update`'s.
    """
    seeds = list(seeds)
    if not seeds:
        raise ValueError("seeds is empty: name at least one")
    if len(logged.actions) != 1 or not logged.actions.numel():
        raise ValueError(f"logged must be (1, rows, ...), got {tuple(logged.actions.shape)}")
    if not 0 <= logged.actions.min() <= logged.actions.max() < actions:
        raise ValueError(f"logged holds actions outside 0..{actions - 1}")
    if not conservative >= 0:
        raise ValueError(f"conservative must be at least 0, got {conservative}")
    _check_counts(
        updates=updates, batch=batch, copy_every=copy_every, hidden=hidden, log_every=log_every
    )
    dice = np.random.default_rng(seeds)
    generator = torch.Generator().manual_seed(int(dice.integers(2**62)))
    shape = {"seeds": seeds, "hidden": hidden}
    features = logged.observations.shape[-1]
    network, target = (QNetwork(features, actions, **shape) for _ in range(2))
    optimizer = torch.optim.Adam(network.parameters(), lr=lr, fused=True)
    log, rows = [], logged.actions.shape[1]
    for k in range(1, updates + 1):
        places = torch.randint(rows, (len(seeds), batch), generator=generator)
        seen = Transitions(*(x[0][places] for x in logged))
        knobs = {"gamma": gamma, "double": double, "conservative": conservative}
        errors, peak = update(network, target, optimizer, seen, torch.ones(places.shape), **knobs)
        _check_finite(errors)
        if k % copy_every == 0:
            copy_weights(target, network)
        if k % log_every == 0:
            log.append((peak.mean(1), errors.abs().mean(1)))
    return QRun(network, [[] for _ in seeds], *_columns(log, len(seeds)))


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{name} must be a positive whole number, got {count!r}")


def _check_finite(errors: Tensor) -> None:
    if not bool(errors.isfinite().all()):
        raise FloatingPointError("TD errors are inf or nan: check rewards, observations and lr")


def _build(make: Callable[[], gymnasium.Env], runs: int) -> list[gymnasium.Env]:
    envs = [make() for _ in range(runs)]
    if len({id(env) for env in envs}) < runs:
        raise ValueError("make must build a new environment at each call; two runs share one")
    return envs


def _columns(log: list[tuple[Tensor, Tensor]], runs: int) -> list[Tensor]:
    return [torch.stack(x) for x in zip(*log, strict=True)] if log else [torch.zeros(0, runs)] * 2


def act_greedily(
    network: QNetwork, make: Callable[[], gymnasium.Env], *, episodes: int, seed: int = 10_000
) -> Tensor:
    """Returns of argmax_a Q, each run alone with its network: (runs, episodes) points."""
    runs = network.weights[0].shape[0]
    _check_counts(episodes=episodes)
    returns = torch.zeros(runs, episodes)
    envs = _build(make, runs)
    if envs[0].action_space.n != network.actions:
        raise ValueError(
            f"the network has {network.actions} actions, the environment {envs[0].action_space}"
        )
    for episode in range(episodes):
        now = np.stack([env.reset(seed=seed + episode)[0] for env in envs]).astype(np.float32)
        alive = [True] * runs
        while any(alive):
            with torch.no_grad():
                best = network(torch.from_numpy(now)[:, None])[:, 0].argmax(-1)
            for k, env in enumerate(envs):
                if alive[k]:
                    now[k], reward, terminated, truncated, _ = env.step(int(best[k]))
                    returns[k, episode] += reward
                    alive[k] = not (terminated or truncated)
    return returns
