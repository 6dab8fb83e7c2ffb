"""Finite Markov decision processes: exact action values, and the table learned from samples.

    walk = from_gymnasium(gymnasium.make("CliffWalking-v1"))
    tree = sorter_tree(task.distinct_prompts(), vocab_size=3, reward=sorted_reward)
    best = optimal_q(tree, gamma=1.0)                        # (states, actions), exact
    learned = learn_table(tree, episodes=500, gamma=1.0, lr=0.5, epsilon=0.2, seed=0)

An answer is a walk in a tree whose states are a prompt and what has been written so far; the
sorter's tree is small enough for a table, so that what was learned stands beside what is right.
`learn_table` is Q-learning; SARSA, Double Q-learning and n-step returns are its knobs.

Left out: continuous states and networks (`value_based.py`), eligibility traces, models that are
learned. Lecture 18.
"""

import random
from typing import NamedTuple

import torch
from torch import Tensor

from toy_models.policies import PrefixIndex, check_prompts


class FiniteMDP(NamedTuple):
    """Everything there is to know: what may follow each action, and with which probability.

    All four are (states, actions, outcomes); an outcome of probability 0 is padding.
    `ends` marks outcomes after which nothing follows; their `next_state` is never looked at.
    An episode begins in one of `start`, all equally likely.
    """

    next_state: Tensor  # int64
    probability: Tensor
    rewards: Tensor  # points
    ends: Tensor  # bool
    start: tuple[int, ...] = (0,)


# --- exact ---------------------------------------------------------------------------------------


def bellman(mdp: FiniteMDP, q: Tensor, *, gamma: float, epsilon: float = 0.0) -> Tensor:
    """One sweep: the expected reward, plus what q says about the state that follows.

    Formula: E[r + gamma ((1 - epsilon) max_a' q(s', a') + epsilon mean_a' q(s', a'))] [QL-2], the
    bracket 0 after the end. epsilon = 0 is Bellman's optimality operator; with epsilon its fixed
    point is what SARSA with that exploration learns.

    q : (states, actions) points   returns : the same
    Raises ValueError for a gamma or epsilon outside 0..1 or a q of another shape. Lecture 18.
    """
    _check_share("gamma", gamma)
    _check_share("epsilon", epsilon)
    if q.shape != mdp.next_state.shape[:2]:
        raise ValueError(
            f"q must be (states, actions) = {tuple(mdp.next_state.shape[:2])}, got {tuple(q.shape)}"
        )
    value = (1 - epsilon) * q.max(1).values + epsilon * q.mean(1)
    following = torch.where(mdp.ends, 0.0, value[mdp.next_state])
    return (mdp.probability * (mdp.rewards + gamma * following)).sum(-1)


def optimal_q(
    mdp: FiniteMDP, *, gamma: float, epsilon: float = 0.0, sweeps: int = 20_000
) -> Tensor:
    """Q*: `bellman` from 0 until a sweep changes nothing by more than 1e-13; value iteration.

    returns : (states, actions) points. Raises RuntimeError when `sweeps` do not suffice, as with
    gamma = 1 where rewards can be collected for ever. Sutton and Barto 2018, section 4.4.
    """
    _check_process(mdp)
    q = torch.zeros_like(mdp.rewards[..., 0])
    for _ in range(sweeps):
        after = bellman(mdp, q, gamma=gamma, epsilon=epsilon)
        if (after - q).abs().max() <= 1e-13 * (1 + after.abs().max()):
            return after
        q = after
    raise RuntimeError(
        f"no fixed point within {sweeps} sweeps: with gamma={gamma} the values may grow without "
        "end. Take gamma below 1, or a process that ends"
    )


def policy_return(mdp: FiniteMDP, policy: Tensor, *, gamma: float) -> Tensor:
    """Expected return of a policy from the start states, by solving V = r + gamma P V.

    policy : (states, actions) probabilities   returns : scalar, points
    Raises ValueError for another shape, and where gamma = 1 and the policy may never end.
    """
    _check_share("gamma", gamma)
    _check_process(mdp)
    _check_policy("policy", policy, mdp)
    weight = policy[..., None].to(mdp.probability) * mdp.probability
    states = len(policy)
    move = torch.zeros(states, states, dtype=weight.dtype)
    alive = torch.where(mdp.ends, 0.0, weight).flatten(1)
    move.scatter_add_(1, mdp.next_state.flatten(1), alive)
    eye = torch.eye(states, dtype=weight.dtype)
    if gamma == 1:  # a singular system, which rounding may hide: can every state reach an end?
        step, ending = (move > 0).to(weight), (weight * mdp.ends).sum((1, 2)) > 0
        while not torch.equal(ending, more := ending | (step @ ending.to(weight) > 0)):
            ending = more
        if not bool(ending.all()):
            raise ValueError("this policy can walk for ever and gamma is 1: it has no return")
    try:
        value = torch.linalg.solve(eye - gamma * move, (weight * mdp.rewards).sum((1, 2)))
    except torch.linalg.LinAlgError:
        raise ValueError("this policy can walk for ever and gamma is 1: it has no return") from None
    return value[list(mdp.start)].mean()


def greedy(q: Tensor, *, epsilon: float = 0.0) -> Tensor:
    """The epsilon-greedy policy of q, (states, actions) probabilities; ties share."""
    best = (q == q.max(1, keepdim=True).values).to(q)
    best = best / best.sum(1, keepdim=True)
    return (1 - epsilon) * best + epsilon / q.shape[1]


def implicit_q(mdp: FiniteMDP, behaviour: Tensor, *, gamma: float, tau: float) -> Tensor:
    """Q from the actions that `behaviour` takes, never asking about another: implicit Q-learning.

    Formula: q(s, a) = E[r + gamma v(s')], v(s) the tau-expectile of q(s, a) over a ~ behaviour:
    the v with tau E[(q - v)+] = (1 - tau) E[(v - q)+] [QL-14]. tau = .5 is the mean, the value of
    `behaviour`; towards 1 it becomes the largest q among actions of positive probability.

    behaviour : (states, actions) probabilities   returns : (states, actions) points; those of
    actions that behaviour never takes are computed but influence nothing
    Kostrikov, Nair and Levine 2022 (IQL); Snell et al. 2023 (ILQL). Lecture 18.
    """
    if not 0 < tau < 1:
        raise ValueError(f"tau must lie between 0 and 1, got {tau!r}")
    _check_share("gamma", gamma)
    _check_process(mdp)
    _check_policy("behaviour", behaviour, mdp)
    q = torch.zeros_like(mdp.rewards[..., 0])
    up = torch.tensor(tau, dtype=q.dtype)
    for _ in range(20_000):
        value = (behaviour * q).sum(1, keepdim=True)
        for _ in range(60):  # reweighted means; exact once the sides stand still
            side = behaviour * torch.where(q > value, up, 1 - up)
            value = (side * q).sum(1, keepdim=True) / side.sum(1, keepdim=True)
        following = torch.where(mdp.ends, 0.0, value[:, 0][mdp.next_state])
        after = (mdp.probability * (mdp.rewards + gamma * following)).sum(-1)
        if (after - q).abs().max() <= 1e-13 * (1 + after.abs().max()):
            return after
        q = after
    raise RuntimeError("no fixed point: take gamma below 1, or a process that ends")


# --- processes -----------------------------------------------------------------------------------


def from_gymnasium(env) -> FiniteMDP:
    """The table behind a gymnasium "toy text" environment (CliffWalking, FrozenLake, Taxi).

    Raises TypeError for an environment without such a table. Start states with equal chances.
    """
    table = getattr(env.unwrapped, "P", None)
    chances = getattr(env.unwrapped, "initial_state_distrib", None)
    if table is None or chances is None:
        raise TypeError(f"{env} holds no transition table P: only toy text environments do")
    states, actions = len(table), len(table[0])
    width = max(len(outcomes) for row in table.values() for outcomes in row.values())
    shape = (states, actions, width)
    next_state, ends = torch.zeros(shape, dtype=torch.long), torch.ones(shape, dtype=torch.bool)
    probability, rewards = torch.zeros(2, *shape, dtype=torch.float64)
    for state, row in table.items():
        for action, outcomes in row.items():
            for k, (chance, after, reward, over) in enumerate(outcomes):
                next_state[state, action, k], ends[state, action, k] = int(after), bool(over)
                probability[state, action, k], rewards[state, action, k] = chance, reward
    start = tuple(s for s, chance in enumerate(chances) if chance > 0)
    return FiniteMDP(next_state, probability, rewards, ends, start)


def sorter_tree(prompts: Tensor, *, vocab_size: int, reward) -> FiniteMDP:
    """Writing answers token by token: a state is a prompt and a prefix, an action a token.

    prompts : (prompts, L)   reward : reward(prompts, responses) -> points, paid with the L-th
    token, after which the episode ends. State p * n + i is prefix i of `PrefixIndex` (n of them)
    behind prompt p. Deterministic: one outcome. Lecture 18.
    """
    prompts = check_prompts(prompts)
    count, length = prompts.shape
    if not 0 <= prompts.min() <= prompts.max() < vocab_size:
        raise ValueError(f"prompts must hold tokens in 0..{vocab_size - 1}")
    prefixes = PrefixIndex(vocab_size, length, None)
    depth = (prefixes.listed >= 0).sum(1)  # (prefixes,)
    row = torch.arange(prefixes.count)
    last = depth == length - 1
    down = prefixes.starts[(depth + 1).clamp(max=length - 1)] + vocab_size * (
        row - prefixes.starts[depth]
    )
    child = torch.where(last[:, None], 0, down[:, None] + torch.arange(vocab_size))
    leaves = torch.arange(vocab_size).expand(int(last.sum()), -1)[..., None]
    responses = torch.cat([prefixes.listed[last][:, None].expand(-1, vocab_size, -1), leaves], -1)
    rewards = torch.zeros(count, prefixes.count, vocab_size, dtype=torch.float64)
    points = reward(prompts[:, None, None], responses)
    if points.shape != rewards[:, last].shape or not bool(points.isfinite().all()):
        raise ValueError(
            f"reward must give {tuple(rewards[:, last].shape)} finite points, "
            f"got {tuple(points.shape)}"
        )
    rewards[:, last] = points.double()
    first = torch.arange(count)[:, None, None] * prefixes.count
    ends = last[:, None].expand(-1, vocab_size)
    return FiniteMDP(
        next_state=(first + child).flatten(0, 1)[..., None],
        probability=torch.ones(count * prefixes.count, vocab_size, 1, dtype=torch.float64),
        rewards=rewards.flatten(0, 1)[..., None],
        ends=ends.repeat(count, 1)[..., None],
        start=tuple(range(0, count * prefixes.count, prefixes.count)),
    )


def two_doors(actions: int = 10) -> FiniteMDP:
    """Where a maximum over noise misleads: from A, action 0 leads to B; the others end with 0.

    From B every action ends with -.1 on average, 1.1 below or .9 above it by a coin, so that going
    to B costs .1. After Sutton and Barto 2018, example 6.7, with a coin for their Gaussian.
    """
    if not isinstance(actions, int) or actions < 2:
        raise ValueError(f"actions must be a whole number of at least 2, got {actions!r}")
    rewards = torch.zeros(2, actions, 2, dtype=torch.float64)
    rewards[1] = torch.tensor([-1.1, 0.9], dtype=torch.float64)
    ends = torch.ones(2, actions, 2, dtype=torch.bool)
    ends[0, 0] = False
    chances = torch.full((2, actions, 2), 0.5, dtype=torch.float64)
    return FiniteMDP(torch.ones(2, actions, 2, dtype=torch.long), chances, rewards, ends)


# --- learned from samples -------------------------------------------------------------------------


class Table(NamedTuple):
    """What `learn_table` returns. q : (states, actions); the other two have a row per episode."""

    q: Tensor
    returns: Tensor  # (episodes,) points, undiscounted
    first_actions: Tensor  # (episodes,) int64
    snapshots: Tensor  # (episodes // every + 1, states, actions), the first before any learning


def learn_table(
    mdp: FiniteMDP,
    *,
    episodes: int,
    gamma: float,
    lr: float,
    epsilon: float,
    seed: int,
    on_policy: bool = False,
    double: bool = False,
    look_ahead: int = 1,
    replay: int = 0,
    behaviour: Tensor | None = None,
    every: int | None = None,
    max_steps: int = 10_000,
) -> Table:
    """Learn action values by acting and looking one step ahead: q += lr (target - q) [QL-4].

    The target is the reward plus gamma times, at the next state,
        max_a' q(s', a')                  Q-learning (Watkins 1989), the default
        q(s', a') of the action taken     on_policy: SARSA [QL-5]
        q_b(s', argmax_a' q_a(s', a'))    double: two tables, a coin says which is a (van Hasselt
                                          2010)
    look_ahead = n sums n rewards first, L or more is the whole return; the other n - 1 actions are
    taken as they came, which for n > 1 biases towards what was explored.

    replay = k learns from k stored steps again, drawn by lot, after each new one (Lin 1992).

    episodes, lr (0..1), epsilon (0..1, share of uniformly random actions), gamma (0..1), seed
    behaviour : (states, actions) probabilities to act by instead of epsilon-greedily
    every     : snapshot of q after this many episodes; None = only at the ends
    max_steps : an episode is cut there. A cut is no end: the last value is bootstrapped

    Ties between actions are broken by lot. Starts at 0. Raises ValueError for impossible knobs.
    """
    for name, share in (("gamma", gamma), ("lr", lr), ("epsilon", epsilon)):
        _check_share(name, share)
    for name, count in (("episodes", episodes), ("look_ahead", look_ahead)):
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{name} must be a positive whole number, got {count!r}")
    for name, count, least in (
        ("replay", replay, 0),
        ("max_steps", max_steps, 1),
        ("every", episodes if every is None else every, 1),
    ):
        if not isinstance(count, int) or count < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {count!r}")
    _check_process(mdp)
    if behaviour is not None:
        _check_policy("behaviour", behaviour, mdp)
    if on_policy and double:
        raise ValueError("on_policy and double exclude each other: SARSA takes no maximum")
    if replay and (on_policy or look_ahead > 1):
        raise ValueError("replay keeps single steps: it needs on_policy=False and look_ahead=1")
    dice, every = random.Random(seed), every or episodes
    after, rewards, ends = mdp.next_state.tolist(), mdp.rewards.tolist(), mdp.ends.tolist()
    chances = mdp.probability.tolist()
    forced = None if behaviour is None else behaviour.tolist()
    states, actions = mdp.next_state.shape[:2]
    tables = [[[0.0] * actions for _ in range(states)] for _ in range(1 + double)]

    def best(values: list[float]) -> int:
        top = max(values)
        return dice.choice([a for a, value in enumerate(values) if value == top])

    def row(state: int) -> list[float]:
        if not double:
            return tables[0][state]
        return [a + b for a, b in zip(tables[0][state], tables[1][state], strict=True)]

    def act(state: int) -> int:
        if forced is not None:
            return dice.choices(range(actions), forced[state])[0]
        if epsilon and dice.random() < epsilon:
            return dice.randrange(actions)
        return best(row(state))

    def learn(path: list, state: int, action: int | None) -> None:
        """Move the value of path's first pair; action None: nothing follows."""
        which = dice.randrange(2) if double else 0
        value = 0.0
        if action is not None and on_policy:
            value = tables[0][state][action]
        elif action is not None:
            value = tables[which - 1][state][best(tables[which][state])]
        for _, _, reward in reversed(path):
            value = reward + gamma * value
        first, taken, _ = path[0]
        tables[which][first][taken] += lr * (value - tables[which][first][taken])

    total, firsts, memory, snapshots = [], [], [], [_mean(tables)]
    for episode in range(1, episodes + 1):
        state, path, earned = dice.choice(mdp.start), [], 0.0
        action = act(state)
        firsts.append(action)
        for _ in range(max_steps):
            odds = chances[state][action]
            k = 0 if len(odds) == 1 else dice.choices(range(len(odds)), odds)[0]
            path.append((state, action, rewards[state][action][k]))
            earned += path[-1][2]
            over, state = ends[state][action][k], after[state][action][k]
            action = None if over else act(state)
            if replay:
                memory.append((path[-1], state, None if over else 0))
            if len(path) == look_ahead:
                learn(path, state, action)
                path.pop(0)
            for step, behind, alive in dice.choices(memory, k=replay) if replay else ():
                learn([step], behind, alive)
            if over:
                break
        while path:
            learn(path, state, action)
            path.pop(0)
        total.append(earned)
        if episode % every == 0:
            snapshots.append(_mean(tables))
    return Table(_mean(tables), torch.tensor(total), torch.tensor(firsts), torch.stack(snapshots))


def _mean(tables: list) -> Tensor:
    return torch.tensor(tables, dtype=torch.float64).mean(0)


def _check_process(mdp: FiniteMDP) -> None:
    off = (mdp.probability.sum(-1) - 1).abs().max()
    if not off < 1e-6 or bool((mdp.probability < 0).any()):
        raise ValueError(f"mdp.probability must be >= 0 and sum to 1 over outcomes, off by {off}")
    if not bool(mdp.rewards.isfinite().all()):
        raise ValueError("mdp.rewards must be finite, got nan or inf")
    after, states = mdp.next_state, len(mdp.next_state)
    if not 0 <= after.min() <= after.max() < states:
        raise ValueError(f"mdp.next_state must lie in 0..{states - 1}")
    if not mdp.start or not 0 <= min(mdp.start) <= max(mdp.start) < states:
        raise ValueError(f"mdp.start must name states in 0..{states - 1}, got {mdp.start}")


def _check_policy(name: str, policy: Tensor, mdp: FiniteMDP) -> None:
    shape = tuple(mdp.next_state.shape[:2])
    if tuple(policy.shape) != shape:
        raise ValueError(f"{name} must be (states, actions) = {shape}, got {tuple(policy.shape)}")
    off = (policy.sum(1) - 1).abs().max()
    if not off < 1e-5 or bool((policy < 0).any()):
        raise ValueError(f"{name} must hold probabilities that sum to 1 per state, off by {off}")


def _check_share(name: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise ValueError(f"{name} must lie in 0..1, got {share!r}")
