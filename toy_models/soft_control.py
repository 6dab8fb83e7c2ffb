"""Control as inference, by exact sums: what to do *given that it went well*, and what to do.

    mdp = lottery()
    messages(mdp).policy         # the posterior p(a | s, optimal): it buys the ticket
    soft_optimal(mdp).policy     # argmax of J - beta KL(policy || prior): it does not
    soft_values(reference, prompts, reward, beta=1.0).policy   # on a language model: Gibbs

Optimality is a coin per step with p(O_t = 1 | s, a) = exp(r(s, a) / beta); the question "which
trajectory, given O = 1 everywhere?" is answered by backward messages. Two backups share every
line but one. In the posterior the environment is part of what is inferred, so the look-ahead is
beta log E exp(V / beta) over the next state: it may hope. A controller cannot choose the next
state, so its look-ahead is E[V]. Where the next state is certain the two agree: as long as only the
language model writes into its context, they do (a tool or a user that answers is a chance).

Time runs over t = 0 .. T-1 with T = `mdp.horizon`; values are points, logarithms natural.

Left out: infinite horizons and discounts, learned dynamics, unknown rewards (see lecture 19 for
soft values that are learned from samples). Lecture 20.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from toy_models.policies import AutoregressivePolicy, check_prompts

Reward = Callable[[Tensor, Tensor], Tensor]

_MAX_TRAJECTORIES = 200_000


class MDP(NamedTuple):
    """A small decision problem whose transitions are known.

    transitions : (states, actions, states) p(s' | s, a), rows sum to 1
    rewards     : (states, actions) points; only differences matter, so they need not be negative
    prior       : (states, actions) p(a | s) before anything is known of rewards, rows sum to 1
    horizon     : T, the number of actions
    start       : (states,) p(s_0)

    Every function below raises TypeError or ValueError, naming the field, for shapes that do not
    fit, rows that are not distributions, rewards that are not finite, or a horizon below 1.
    """

    transitions: Tensor
    rewards: Tensor
    prior: Tensor
    horizon: int
    start: Tensor


class Messages(NamedTuple):
    """Backward messages, and the policy they stand for.

    value  : (T + 1, states) points; the last row is 0
    q      : (T, states, actions) points
    policy : (T, states, actions) prior(a | s) exp((q - value) / beta), rows sum to 1
    """

    value: Tensor
    q: Tensor
    policy: Tensor


class Evaluation(NamedTuple):
    """What a policy is worth.

    J         : expected sum of rewards, points
    kl        : KL(policy || prior) of a whole trajectory, nats
    objective : J - beta kl, points: the evidence lower bound (times beta)
    """

    J: Tensor
    kl: Tensor
    objective: Tensor


# --- messages -----------------------------------------------------------------------------------


def messages(mdp: MDP, *, beta: float = 1.0) -> Messages:
    """Log backward messages of the posterior p(trajectory | optimal at every step).

    Formula: Q_t(s, a) = r(s, a) + beta log sum_s' p(s' | s, a) exp(V_{t+1}(s') / beta),
             V_t(s)    = beta log sum_a prior(a | s) exp(Q_t(s, a) / beta),    V_T = 0;
    so exp(V_t(s) / beta) is, up to the scale of the rewards, the chance that all steps from t on
    are optimal. The look-ahead counts good luck as if it could be chosen: it is optimistic.

    beta    : temperature, points per nat, > 0
    returns : `Messages`; its policy is p(a_t | s_t, optimal from t on)

    Levine (2018), arXiv:1805.00909, section 2 (there an even prior and beta = 1). Lecture 20.
    """

    def hope(value: Tensor) -> Tensor:
        return beta * torch.logsumexp(mdp.transitions.log() + value / beta, -1)

    return _backward(mdp, beta, hope)


def soft_optimal(mdp: MDP, *, beta: float = 1.0) -> Messages:
    """The cure: hold the dynamics fixed and infer the actions only.

    Formula: as `messages`, but Q_t(s, a) = r(s, a) + sum_s' p(s' | s, a) V_{t+1}(s'). The policy
    maximises J - beta KL(policy || prior) (the evidence lower bound over policies that keep the
    true dynamics), and start . V_0 is that maximum.

    Arguments, return as in `messages`. Levine (2018), section 3 (entropy for the KL). Lecture 20.
    """

    def expect(value: Tensor) -> Tensor:
        return mdp.transitions @ value

    return _backward(mdp, beta, expect)


def _backward(mdp: MDP, beta: float, look_ahead: Callable[[Tensor], Tensor]) -> Messages:
    _check_beta(beta)
    _check_mdp(mdp)
    log_prior = mdp.prior.log()
    value = torch.zeros_like(mdp.start)
    values, qs = [value], []
    for _ in range(mdp.horizon):
        q = mdp.rewards + look_ahead(value)
        value = beta * torch.logsumexp(log_prior + q / beta, -1)
        values.append(value)
        qs.append(q)
    values, qs = torch.stack(values[::-1]), torch.stack(qs[::-1])
    if not bool(torch.isfinite(values).all()):
        raise ValueError(f"beta={beta!r} is too small for these rewards: rewards / beta overflows")
    return Messages(values, qs, torch.softmax(log_prior + qs / beta, -1))


def posterior_policy(mdp: MDP, *, beta: float = 1.0) -> Tensor:
    """(T, states, actions): p(a_t | s_t, optimal from t on), the policy of `messages`."""
    return messages(mdp, beta=beta).policy


def posterior_dynamics(mdp: MDP, *, beta: float = 1.0) -> Tensor:
    """(T, states, actions, states): p(s_{t+1} | s_t, a_t, optimal): the world that luck would make.

    Formula: p(s' | s, a) exp(V_{t+1}(s') / beta) / sum of the same over s', V of `messages`.
    Equal to `mdp.transitions` only where the next state is certain (or all next states are worth
    the same). `posterior_policy` is right in this world, not in the true one. Lecture 20.
    """
    value = messages(mdp, beta=beta).value
    return torch.softmax(mdp.transitions.log() + value[1:, None, None, :] / beta, -1)


def log_evidence(mdp: MDP, *, beta: float = 1.0) -> Tensor:
    """beta log E_prior exp(sum of rewards / beta): points, a scalar.

    No policy that keeps the true dynamics reaches more (`evaluate`); with certain dynamics and
    one start state `soft_optimal` reaches it. The gap is beta KL(trajectories || posterior).
    """
    value = messages(mdp, beta=beta).value[0]
    return beta * torch.logsumexp(mdp.start.log() + value / beta, -1)


def evaluate(
    mdp: MDP, policy: Tensor, *, beta: float = 1.0, dynamics: Tensor | None = None
) -> Evaluation:
    """Expected reward and KL to the prior of a policy, by forward sums over the states.

    policy   : (T, states, actions), or (states, actions) for the same one at every step
    dynamics : (T, states, actions, states), default the true transitions; with
               `posterior_dynamics` it is what an optimist believes of itself from the true start
               on (the posterior of several start states is tilted too). The KL counts actions
               only, so `objective` is a bound for the true transitions alone.

    Raises TypeError or ValueError for tables of the wrong shape or that are no distributions.
    """
    _check_beta(beta)
    _check_mdp(mdp)
    shape = (mdp.horizon, *mdp.rewards.shape)
    policy = _expanded("policy", policy, shape, what="(T, states, actions) or (states, actions)")
    if dynamics is None:
        dynamics = mdp.transitions
    dynamics = _expanded(
        "dynamics", dynamics, (*shape, shape[1]), what="(T, states, actions, states)"
    )
    _check_law("policy", policy)
    _check_law("dynamics", dynamics)
    log_ratio = torch.where(policy > 0, policy.log() - mdp.prior.log(), 0.0)
    at, reward, kl = mdp.start, mdp.start.new_zeros(()), mdp.start.new_zeros(())
    for t in range(mdp.horizon):
        joint = at[:, None] * policy[t]  # (states, actions)
        reward = reward + (joint * mdp.rewards).sum()
        kl = kl + torch.where(joint > 0, joint * log_ratio[t], 0.0).sum()
        at = torch.einsum("sa,sax->x", joint, dynamics[t])
    return Evaluation(reward, kl, reward - beta * kl)


class Trajectories(NamedTuple):
    """Every trajectory of positive probability under the prior.

    states    : (n, T + 1) int64
    actions   : (n, T) int64
    log_prior : (n,) nats, log p(trajectory) with actions from the prior
    rewards   : (n,) points, sum over the steps
    """

    states: Tensor
    actions: Tensor
    log_prior: Tensor
    rewards: Tensor

    def log_probs(self, mdp: MDP, policy: Tensor) -> Tensor:
        """(n,) nats: log-probabilities with actions from `policy` (T, states, actions)."""
        shape = (mdp.horizon, *mdp.rewards.shape)
        policy = _expanded("policy", policy, shape, what="(T, states, actions)")
        steps = torch.arange(mdp.horizon)
        here, there = self.states[:, :-1], self.states[:, 1:]
        moves = mdp.transitions[here, self.actions, there].log().sum(-1)
        return (
            mdp.start[self.states[:, 0]].log()
            + moves
            + policy[steps, here, self.actions].log().sum(-1)
        )


def trajectories(mdp: MDP) -> Trajectories:
    """List all trajectories, the oracle for everything above: softmax(log_prior + rewards / beta)
    is the posterior. Raises ValueError for more than 200,000 of them."""
    _check_mdp(mdp)
    states = torch.nonzero(mdp.start)  # (n, 1)
    actions = states[:, :0]
    for _ in range(mdp.horizon):
        reach = mdp.prior[states[:, -1], :, None] * mdp.transitions[states[:, -1]]
        row, action, after = torch.nonzero(reach, as_tuple=True)
        if len(row) > _MAX_TRAJECTORIES:
            raise ValueError(
                f"this MDP has more than {_MAX_TRAJECTORIES} trajectories; use a shorter horizon "
                "or fewer states"
            )
        states = torch.cat([states[row], after[:, None]], 1)
        actions = torch.cat([actions[row], action[:, None]], 1)
    rewards = mdp.rewards[states[:, :-1], actions].sum(-1)
    listed = Trajectories(states, actions, rewards, rewards)
    return listed._replace(log_prior=listed.log_probs(mdp, mdp.prior))


# --- two problems -------------------------------------------------------------------------------


def lottery(*, win: float = 0.1, prize: float = 5.0, loss: float = 2.0) -> MDP:
    """One decision: keep what you have (0 points), or buy a ticket that mostly loses.

    States: 0 the counter, 1 kept, 2 won, 3 lost. Actions: 0 keep, 1 buy; the prior is even. The
    second step pays: 0 for keeping, `prize` with chance `win`, else -`loss`. Buying is worth
    win * prize - (1 - win) * loss points on average: -1.3 by default.
    """
    if not 0 < win < 1:
        raise ValueError(f"win must be a probability between 0 and 1, got {win!r}")
    transitions = torch.zeros(4, 2, 4, dtype=torch.float64)
    transitions[0, 0, 1] = 1.0
    transitions[0, 1, 2], transitions[0, 1, 3] = win, 1 - win
    for state in (1, 2, 3):
        transitions[state, :, state] = 1.0
    pays = torch.tensor([0.0, 0.0, prize, -loss], dtype=torch.float64)
    return MDP(
        transitions,
        rewards=pays[:, None].repeat(1, 2),
        prior=torch.full((4, 2), 0.5, dtype=torch.float64),
        horizon=2,
        start=torch.tensor([1.0, 0, 0, 0], dtype=torch.float64),
    )


def random_mdp(
    states: int, actions: int, horizon: int, *, seed: int, deterministic: bool = False
) -> MDP:
    """Normal rewards, random prior and transitions, one start state; float64."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    transitions = torch.softmax(2 * normal(states, actions, states), -1)
    if deterministic:
        transitions = torch.nn.functional.one_hot(transitions.argmax(-1), states).double()
    start = torch.nn.functional.one_hot(torch.tensor(0), states).double()
    prior = torch.softmax(normal(states, actions), -1)
    return MDP(transitions, normal(states, actions), prior, horizon, start)


# --- the tree of a language model ---------------------------------------------------------------


class TokenTree(NamedTuple):
    """Values on the prefixes of a language model; rows follow `policy_ref.states`.

    value  : (prompts, states) points, before each token
    q      : (prompts, states, vocab) points, after it
    policy : `AutoregressivePolicy`, float64, one table per prompt: proportional to
             ref(a | s) exp(q / beta) at every prefix
    """

    value: Tensor
    q: Tensor
    policy: AutoregressivePolicy


def soft_values(
    policy_ref: AutoregressivePolicy, prompts: Tensor, reward: Reward, *, beta: float
) -> TokenTree:
    """Soft Bellman recursion over tokens; its policy writes exactly the Gibbs distribution.

    Formula: Q(s, a) = R(y) where token a ends the response y, else V(s + a);
             V(s) = beta log sum_a ref(a | s) exp(Q(s, a) / beta).
    V of the empty prefix is beta log Z, and the product of the token policies
    ref(a | s) exp((Q - V) / beta) telescopes to ref(y) exp(R(y) / beta) / Z
    (`toy_models.exact.gibbs_distribution`): appending a token is a certain transition, so the
    posterior and the soft optimum are one.

    prompts : (prompts, L), all different   beta : points per nat, > 0

    Raises TypeError for a policy without a tree, ValueError for rewards that are not finite.
    Rafailov et al. (2024), arXiv:2404.12358, give the same token-level view. Lecture 20.
    """

    def soften(log_ref: Tensor, q: Tensor) -> Tensor:
        return beta * torch.logsumexp(log_ref + q / beta, -1)

    return _tree(policy_ref, prompts, reward, beta, soften)


def mean_values(
    policy_ref: AutoregressivePolicy, prompts: Tensor, reward: Reward, *, beta: float
) -> TokenTree:
    """The same tree with V(s) = E_ref[R | s], the reference's ordinary value, in the exponent.

    Its policy ref(a | s) exp(Q / beta) / Z(s) is what a value head trained by regression on
    rewards steers to (Mudgal et al. 2024, arXiv:2310.17022). It maximises the next token's value
    minus beta KL, one token at a time; it is not the Gibbs distribution of whole responses,
    because E is not beta log E exp (Zhou et al. 2025, arXiv:2502.20548, make this comparison on
    language models). Arguments as in `soft_values`. Lecture 20.
    """

    def expect(log_ref: Tensor, q: Tensor) -> Tensor:
        return torch.where(log_ref > -torch.inf, log_ref.exp() * q, 0.0).sum(-1)

    return _tree(policy_ref, prompts, reward, beta, expect)


def tilted_policy(
    policy_ref: AutoregressivePolicy, prompts: Tensor, q: Tensor, *, beta: float
) -> AutoregressivePolicy:
    """The policy proportional to ref(a | s) exp(q(s, a) / beta) at every prefix.

    q : (prompts, states, vocab) or (states, vocab), points; any scores, good ones or not. Scoring
        a token by what it earns at once is the myopic choice, and not Gibbs.
    """
    _check_beta(beta)
    log_ref = _log_table(policy_ref, prompts)
    q = _expanded("q", q, tuple(log_ref.shape), what="(prompts, states, vocab) or (states, vocab)")
    table = torch.log_softmax(log_ref + q / beta, -1)
    if bool(table.isnan().any()):
        raise ValueError("q must be below inf, no nan, and above -inf for a token of each prefix")
    return _with_table(policy_ref, prompts, table)


def _tree(policy_ref, prompts, reward, beta, backup) -> TokenTree:
    _check_beta(beta)
    log_ref = _log_table(policy_ref, prompts)
    prompts = check_prompts(prompts)
    states, branches = policy_ref.states, policy_ref.prefixes.tokens
    starts = [*policy_ref.prefixes.starts.tolist(), len(states)]
    q, value = torch.zeros_like(log_ref), log_ref.new_zeros(log_ref.shape[:2])
    for depth in range(policy_ref.length - 1, -1, -1):
        rows = slice(starts[depth], starts[depth + 1])
        ends = range(policy_ref.vocab_size)
        if depth < policy_ref.length - 1:  # the next level lists each prefix's children in order
            below = value[:, starts[depth + 1] : starts[depth + 2]]
            q[:, rows, branches] = below.unflatten(1, (-1, len(branches)))
            ends = [] if policy_ref.eos_id is None else [policy_ref.eos_id]
        for token in ends:
            q[:, rows, token] = _rewards(policy_ref, prompts, reward, states[rows, :depth], token)
        value[:, rows] = backup(log_ref[:, rows], q[:, rows])
    return TokenTree(value, q, tilted_policy(policy_ref, prompts, q, beta=beta))


def _rewards(policy, prompts: Tensor, reward: Reward, prefix: Tensor, token: int) -> Tensor:
    """(prompts, prefixes): the reward of each prefix with one last token."""
    filler = 0 if policy.eos_id is None else policy.eos_id
    responses = torch.full((len(prefix), policy.length), filler)
    responses[:, : prefix.shape[1]] = prefix
    responses[:, prefix.shape[1]] = token
    rewards, shape = reward(prompts[:, None], responses), (len(prompts), len(prefix))
    got = tuple(rewards.shape) if isinstance(rewards, Tensor) else type(rewards).__name__
    if got not in (shape, shape[1:]):  # the second one ignores the prompt
        raise ValueError(f"reward must return (prompts, responses) = {shape}, got {got}")
    if not bool(torch.isfinite(rewards).all()):
        raise ValueError("reward must be finite for every response; got inf or nan")
    return rewards.double().expand(shape)


def _log_table(policy: AutoregressivePolicy, prompts: Tensor) -> Tensor:
    """(prompts, states, vocab) float64 log-probabilities of each next token."""
    if not isinstance(policy, AutoregressivePolicy):
        raise TypeError(
            f"policy_ref must be an AutoregressivePolicy (a tree of prefixes), got "
            f"{type(policy).__name__}"
        )
    prompts = check_prompts(prompts)
    rows = torch.zeros(len(prompts), dtype=torch.long)
    if policy.index is not None:
        rows = policy.index(prompts)
    return torch.log_softmax(policy.table.detach().double()[rows], -1)


def _with_table(policy: AutoregressivePolicy, prompts: Tensor, table: Tensor):
    made = AutoregressivePolicy(
        policy.vocab_size, policy.length, eos_id=policy.eos_id, prompts=check_prompts(prompts)
    ).double()
    with torch.no_grad():
        made.table.copy_(table)
    return made


# --- checks -------------------------------------------------------------------------------------


def _check_beta(beta: float) -> None:
    if isinstance(beta, bool) or not isinstance(beta, (int, float)):
        raise TypeError(f"beta must be a number (points per nat), got {type(beta).__name__}")
    if not 0 < beta < math.inf:
        raise ValueError(f"beta must be positive and finite, got {beta!r}")


def _expanded(name: str, x: Tensor, shape: tuple, *, what: str) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor {what}, got {type(x).__name__}")
    if tuple(x.shape) not in (shape, shape[1:]):
        raise ValueError(f"{name} must be {what} = {shape} or {shape[1:]}, got {tuple(x.shape)}")
    return x.expand(shape)


def _check_mdp(mdp: MDP) -> None:
    if not isinstance(mdp, MDP):
        raise TypeError(f"mdp must be an MDP, got {type(mdp).__name__}")
    if not isinstance(mdp.horizon, int) or isinstance(mdp.horizon, bool) or mdp.horizon < 1:
        raise ValueError(f"MDP.horizon must be a whole number >= 1, got {mdp.horizon!r}")
    if not isinstance(mdp.rewards, Tensor) or mdp.rewards.ndim != 2:
        raise ValueError("MDP.rewards must be a tensor (states, actions)")
    states, actions = mdp.rewards.shape
    if not bool(torch.isfinite(mdp.rewards).all()):
        raise ValueError("MDP.rewards must be finite; forbid an action with prior 0 instead")
    shapes = {
        "transitions": (states, actions, states),
        "prior": (states, actions),
        "start": (states,),
    }
    for name, shape in shapes.items():
        field = getattr(mdp, name)
        if not isinstance(field, Tensor) or tuple(field.shape) != shape:
            got = tuple(field.shape) if isinstance(field, Tensor) else type(field).__name__
            raise ValueError(f"MDP.{name} must be {shape} to fit rewards, got {got}")
        _check_law(f"MDP.{name}", field)


def _check_law(name: str, field: Tensor) -> None:
    total = field.sum(-1)
    if bool((field < 0).any()) or not torch.allclose(total, torch.ones_like(total)):
        raise ValueError(f"{name} must hold probabilities that sum to 1 in the last axis")
