"""The exact laboratory: expectations over all responses, by enumeration instead of sampling.

A policy of `toy_models.policies` gives every response a probability, and there are few enough to
list them (27 for V = L = 3), so J, its gradient, the mean and the variance of any estimator and
the KL divergence are sums, exact to rounding. Lectures compare every derivation with them.

Names used below: u(y) = grad log pi(y) is the score of a response, u_t(y) that of its token t
(u = sum_t u_t), D the number of parameters, N the number of responses, G the group size.
Gradients are flat vectors (D,), the parameters in the order of `policy.parameters()`.

Where a function says *prompt* it takes one prompt, (L,) or (1, L); *prompts* may be several,
(prompts, L), and means are over prompts. `reward(prompts (..., L), responses (..., T)) -> (...)`
is any broadcasting reward, bool and integer results included.

Groups of G responses are enumerated by how often each reward level occurs (`gradient_moments`:
1,287 cases for G = 8 and six levels) or by how often each response occurs
(`estimate_distribution`: 27,405 for G = 4 and 27 responses), never as ordered groups.

Left out: sampling noise (that is the point), critics, and anything too large to list.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from policy_gradients.advantages import optimal_baseline
from toy_models.policies import Policy, TabularPolicy, as_generator, check_prompts
from toy_models.sorting import all_sequences

Reward = Callable[[Tensor, Tensor], Tensor]
Estimator = Callable[[Tensor], Tensor]

_MAX_GROUPS = 500_000


# --- responses, probabilities, scores -----------------------------------------------------------


def enumerate_responses(vocab_size: int, length: int, *, eos_id: int | None = None) -> Tensor:
    """Every response there is, in dictionary order.

    returns : (responses, length) int64. Without an end token these are all V ** L rows; with one,
              a response stops at its first end token and the rest of its row repeats it.
    """
    rows = all_sequences(vocab_size, length)
    if eos_id is None:
        return rows
    if not 0 <= eos_id < vocab_size:
        raise ValueError(f"eos_id must lie in 0..{vocab_size - 1}, got {eos_id}")
    ended = (rows == eos_id).cumsum(-1) > 0
    return rows[(~ended | (rows == eos_id)).all(-1)]


def responses_of(policy: Policy) -> Tensor:
    """(responses, time): every response this policy can give; shared, so do not write into it."""
    return _listed(policy.vocab_size, policy.length, policy.eos_id)


@lru_cache(maxsize=16)
def _listed(vocab_size: int, length: int, eos_id: int | None) -> Tensor:
    return enumerate_responses(vocab_size, length, eos_id=eos_id)


def token_log_probs_of(policy: Policy, prompts: Tensor) -> Tensor:
    """(prompts, responses, time) nats: each token of each response; differentiable."""
    prompts, responses = check_prompts(prompts), responses_of(policy)
    flat = policy.log_probs(prompts, responses.repeat(len(prompts), 1))
    return flat.unflatten(0, (len(prompts), len(responses)))


def response_log_probs(policy: Policy, prompts: Tensor) -> Tensor:
    """(prompts, responses) nats: log-probability of each response; differentiable."""
    return token_log_probs_of(policy, prompts).sum(-1)


def all_rewards(policy: Policy, prompts: Tensor, reward: Reward) -> Tensor:
    """(prompts, responses): the reward of every response, in the policy's dtype."""
    prompts, responses = check_prompts(prompts), responses_of(policy)
    rewards = reward(prompts[:, None], responses)
    expected = (len(prompts), len(responses))
    if isinstance(rewards, Tensor) and rewards.shape == expected[1:]:  # it ignores the prompt
        rewards = rewards.expand(expected)
    if not isinstance(rewards, Tensor) or tuple(rewards.shape) != expected:
        got = tuple(rewards.shape) if isinstance(rewards, Tensor) else type(rewards).__name__
        raise ValueError(
            f"reward(prompts {(len(prompts), 1, prompts.shape[1])}, responses "
            f"{tuple(responses.shape)}) must return {expected}, got {got}"
        )
    return rewards.to(next(policy.parameters()).dtype)


def flat_gradient(value: Tensor, policy: Policy, *, keep_graph: bool = False) -> Tensor:
    """(parameters,): gradient of a scalar with respect to the policy, 0 where it does not enter."""
    parameters = list(policy.parameters())
    if not value.requires_grad:
        return torch.cat([torch.zeros_like(p).flatten() for p in parameters])
    grads = torch.autograd.grad(value, parameters, retain_graph=keep_graph, allow_unused=True)
    pairs = zip(grads, parameters, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])


def _jacobian(values: Tensor, policy: Policy) -> Tensor:
    """(n,) -> (n, parameters)."""
    parameters = list(policy.parameters())
    rows = torch.eye(len(values), dtype=values.dtype)
    grads = torch.autograd.grad(values, parameters, rows, is_grads_batched=True, allow_unused=True)
    pairs = zip(grads, parameters, strict=True)
    return torch.cat(
        [(p.new_zeros(len(values), *p.shape) if g is None else g).flatten(1) for g, p in pairs],
        1,
    )


def token_scores(policy: Policy, prompt: Tensor, responses: Tensor | None = None) -> Tensor:
    """Gradient of each token's log-probability.

    prompt : one prompt     responses : (responses, time), default all of them
    returns : (responses, time, parameters), 0 after the end of a response
    """
    prompt = _one_prompt(prompt)
    responses = responses_of(policy) if responses is None else responses
    logp = policy.log_probs(prompt, responses)
    return _jacobian(logp.flatten(), policy).unflatten(0, logp.shape)


def scores(policy: Policy, prompt: Tensor, responses: Tensor | None = None) -> Tensor:
    """Scores grad log pi(y) of whole responses, one row each.

    prompt : one prompt     responses : (responses, time), default all of them
    returns : (responses, parameters)
    """
    prompt = _one_prompt(prompt)
    responses = responses_of(policy) if responses is None else responses
    return _jacobian(policy.log_probs(prompt, responses).sum(-1), policy)


def _one_prompt(prompt: Tensor) -> Tensor:
    prompt = check_prompts(prompt)
    if len(prompt) != 1:
        raise ValueError(f"this function takes one prompt, got {len(prompt)}; call it per prompt")
    return prompt


# --- the objective ------------------------------------------------------------------------------


def expected_reward(policy: Policy, prompts: Tensor, reward: Reward) -> Tensor:
    """J = mean over prompts of sum_y pi(y) R(y) [PG-1]: a differentiable scalar, points."""
    rewards = all_rewards(policy, prompts, reward)
    return (response_log_probs(policy, prompts).exp() * rewards).sum(-1).mean()


def exact_gradient(policy: Policy, prompts: Tensor, reward: Reward) -> Tensor:
    """grad J = mean over prompts of sum_y pi(y) R(y) u(y) [PG-4]: (parameters,)."""
    return flat_gradient(expected_reward(policy, prompts, reward), policy)


def exact_entropy(policy: Policy, prompts: Tensor) -> Tensor:
    """Entropy of whole responses, mean over prompts [MAP-2]: a differentiable scalar, nats."""
    logp = response_log_probs(policy, prompts)
    return -(logp.exp() * torch.where(logp > -torch.inf, logp, 0.0)).sum(-1).mean()


def exact_kl(policy: Policy, reference: Policy, prompts: Tensor) -> Tensor:
    """KL(policy || reference) over whole responses, mean over prompts [MAP-4].

    Formula: sum_y pi(y) (log pi(y) - log ref(y)). A differentiable scalar, nats; gradients reach
    both policies. (`policy_gradients.kl.exact_kl` is the per-token divergence of two logits.)
    Raises ValueError for two policies whose responses are not the same.
    """
    sizes = [(p.vocab_size, p.length, p.eos_id) for p in (policy, reference)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            "policy and reference must have the same responses: (vocab_size, length, eos_id) are "
            f"{sizes[0]} and {sizes[1]}"
        )
    logp, logp_ref = response_log_probs(policy, prompts), response_log_probs(reference, prompts)
    log_ratio = torch.where(logp > -torch.inf, logp - logp_ref, 0.0)
    return (logp.exp() * log_ratio).sum(-1).mean()


def prefix_values(policy: Policy, prompt: Tensor, reward: Reward) -> Tensor:
    """What a perfect critic says before each token of each response.

    returns : (responses, length + 1) points; column t is E[R | the first t tokens], so column 0
              is V of the prompt and the last column is R itself. The exact advantage of token t
              is column t+1 minus column t; "Monte Carlo minus V" is the last column minus
              column t. Lecture 06.
    """
    prompt, responses = _one_prompt(prompt), responses_of(policy)
    with torch.no_grad():
        probs = response_log_probs(policy, prompt)[0].exp()
        rewards = all_rewards(policy, prompt, reward)[0]
    columns = [(probs @ rewards).expand(len(responses))]
    for t in range(1, policy.length + 1):
        _, prefix = responses[:, :t].unique(dim=0, return_inverse=True)
        mass = probs.new_zeros(len(responses)).index_add(0, prefix, probs)
        total = probs.new_zeros(len(responses)).index_add(0, prefix, probs * rewards)
        columns.append((total / mass)[prefix])
    return torch.stack(columns, 1)


# --- mean and variance of an estimator ----------------------------------------------------------


class Moments(NamedTuple):
    """Mean and spread of a gradient estimate g.

    mean       : (parameters,) E[g]
    trace      : trace of the covariance of g, E|g|^2 - |E g|^2
    cosine     : cosine between E[g] and grad J (nan when either is zero)
    projection : E[g] . grad J / |grad J|^2; 1 for an unbiased estimate
    p_zero     : probability that every weight is zero, so that the estimate is exactly zero
    """

    mean: Tensor
    trace: float
    cosine: float
    projection: float
    p_zero: float


def gradient_moments(
    policy: Policy,
    prompts: Tensor,
    reward: Reward,
    estimator: Estimator,
    *,
    group: int = 1,
    token_weights: Tensor | None = None,
    behaviour: Policy | None = None,
) -> Moments:
    """Exact moments of the estimate (1/G) sum_i A_i u_i from one group per prompt.

    estimator     : rewards (n, group) -> weights A (n, group), or token-level weights
                    (n, group, time); any function of `policy_gradients.advantages`, or your own
    token_weights : (responses, time) or (prompts, responses, time), factors w_t(y) that depend on
                    the response: the estimate becomes (1/G) sum_i A_i sum_t w_t(y_i) u_t(y_i).
                    1/|y| gives the per-sequence mean, a detached ratio an importance weight, a
                    perfect critic's advantage (with A = 1) an actor-critic. Rows follow
                    `responses_of(policy)`.
    behaviour     : the policy that samples, default `policy` itself; the scores stay those of
                    `policy` (put the importance weights into token_weights)
    returns       : `Moments`; with several prompts, of the mean of the independent per-prompt
                    estimates (so the trace falls with their number)

    How: given how many of the G responses fall on each reward level, the weights are known and
    the responses are independent draws within their levels. So for counts c with multinomial
    probability P(c), and the token scores' means m and covariances S within each level,

        E[g | c]     = (1/G) sum_i sum_t a_it m_t(level_i)                  =: mu_c
        E[|g|^2 | c] = |mu_c|^2 + (1/G^2) sum_i sum_ts a_it S_ts(level_i) a_is

    and the trace is sum_c P(c) E[|g|^2 | c] - |sum_c P(c) mu_c|^2. Exact for every estimator that
    treats the responses of a group alike and the groups apart; another one raises ValueError.
    Too many cases (more than 500,000) also raise. Lectures 02, 08, 09.
    """
    prompts = check_prompts(prompts)
    weights = _prompt_token_weights(token_weights, policy, prompts)
    parts = [
        _group_moments(policy, behaviour or policy, prompt, reward, estimator, group, weight)
        for prompt, weight in zip(prompts, weights, strict=True)
    ]
    mean = torch.stack([part[0] for part in parts]).mean(0)
    trace = sum(part[1] for part in parts) / len(parts) ** 2
    p_zero = math.prod(part[2] for part in parts)
    gradient = exact_gradient(policy, prompts, reward).double()
    return _moments(mean, trace, p_zero, gradient, next(policy.parameters()).dtype)


def _moments(mean: Tensor, trace: float, p_zero: float, gradient: Tensor, dtype) -> Moments:
    dot, norm = float(mean @ gradient), float(gradient.norm())
    size = float(mean.norm()) * norm
    cosine = dot / size if size > 0 else math.nan
    projection = dot / norm**2 if norm > 0 else math.nan
    return Moments(mean.to(dtype), trace, cosine, projection, p_zero)


def _prompt_token_weights(weights: Tensor | None, policy: Policy, prompts: Tensor) -> list:
    if weights is None:
        return [None] * len(prompts)
    rows = responses_of(policy)
    if weights.shape == rows.shape:
        return [weights] * len(prompts)
    if weights.shape != (len(prompts), *rows.shape):
        raise ValueError(
            f"token_weights must be (responses, time) = {tuple(rows.shape)} or (prompts, responses,"
            f" time) = {(len(prompts), *rows.shape)}, got {tuple(weights.shape)}"
        )
    return list(weights)


def _weighted_token_scores(policy, prompt, token_weights) -> Tensor:
    """(responses, time, parameters) float64."""
    tokens = token_scores(policy, prompt).detach().double()
    if token_weights is None:
        return tokens
    return tokens * token_weights.detach().double()[..., None]


def _group_moments(policy, behaviour, prompt, reward, estimator, group, token_weights):
    """(mean, trace, p_zero) of one prompt's estimate."""
    with torch.no_grad():
        probs = response_log_probs(behaviour, prompt)[0].double().exp()
        rewards = all_rewards(policy, prompt, reward)[0].double()
    tokens = _weighted_token_scores(policy, prompt, token_weights)  # (N, time, D)
    levels, level_of = rewards.unique(return_inverse=True)  # (K,), (N,)
    members = torch.nn.functional.one_hot(level_of, len(levels)).double() * probs[:, None]
    mass = members.sum(0)  # (K,)
    share = members / mass.clamp_min(torch.finfo(torch.float64).tiny)  # (N, K), P(y | level)
    first = torch.einsum("nk,ntd->ktd", share, tokens)
    second = torch.einsum("nk,ntd,nsd->kts", share, tokens, tokens)
    spread = second - torch.einsum("ktd,ksd->kts", first, first)  # covariance within a level

    rows, p = _multisets(mass, group)  # (n, group), (n,)
    weights = _group_weights(estimator, levels[rows], rows, tokens.shape[1])  # (n, group, time)
    counts = torch.nn.functional.one_hot(rows, len(levels)).sum(1).double()  # (n, K)
    of_level = _sum_by_kind(weights, rows, len(levels)) / counts.clamp_min(1)[..., None]
    given = torch.einsum("nk,nkt,ktd->nd", counts, of_level, first) / group  # E[g | counts]
    noise = torch.einsum("nk,nkt,kts,nks->n", counts, of_level, spread, of_level) / group**2
    mean = p @ given
    trace = float(p @ (given.square().sum(-1) + noise) - mean @ mean)
    silent = _is_zero(weights, levels).flatten(1).all(1)
    return mean, trace, float(p[silent].sum())


def _sum_by_kind(weights: Tensor, rows: Tensor, kinds: int) -> Tensor:
    """(n, group, time) -> (n, kinds, time): the weights that each kind carries in each group."""
    totals = weights.new_zeros(len(rows), kinds, weights.shape[2])
    return totals.scatter_add_(1, rows[..., None].expand_as(weights), weights)


def _is_zero(weights: Tensor, levels: Tensor) -> Tensor:
    """A weight that is only rounding error (leave-one-out of an all-equal group) counts as 0."""
    return weights.abs() <= 1e-13 * levels.abs().max().clamp_min(1e-300)


def _multisets(mass: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """All ways to fill a group when order does not matter, with their probabilities.

    mass    : (K,) probability of each kind
    returns : rows (n, group) of kinds, ascending; probabilities (n,), summing to 1
    """
    if not isinstance(group, int) or group < 1:
        raise ValueError(f"group must be a positive whole number, got {group!r}")
    count = math.comb(group + len(mass) - 1, group)
    if count > _MAX_GROUPS:
        raise ValueError(
            f"group={group} with {len(mass)} kinds has {count} cases, more than {_MAX_GROUPS}; "
            "use a smaller group or sample_estimates"
        )
    rows = torch.arange(len(mass))[:, None]
    for _ in range(group - 1):  # extend every row by each kind from its last one upwards
        room = len(mass) - rows[:, -1]
        starts = (room.cumsum(0) - room).repeat_interleave(room)
        last = torch.arange(len(starts)) - starts + rows[:, -1].repeat_interleave(room)
        rows = torch.cat([rows.repeat_interleave(room, 0), last[:, None]], 1)
    counts = torch.nn.functional.one_hot(rows, len(mass)).sum(1).double()  # (n, K)
    orders = torch.lgamma(torch.tensor(group + 1.0, dtype=torch.float64))
    orders = orders - torch.lgamma(counts + 1).sum(1)
    logp = torch.xlogy(counts, mass).sum(1)
    return rows, (orders + logp).exp()


def _group_weights(estimator, rewards: Tensor, rows: Tensor, time: int) -> Tensor:
    """Weights (n, group, time) of the enumerated groups; refuses what enumeration cannot do."""
    weights = estimator(rewards)
    allowed = (tuple(rewards.shape), (*rewards.shape, time))
    if not isinstance(weights, Tensor) or tuple(weights.shape) not in allowed:
        got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(
            f"estimator(rewards {allowed[0]}) must return weights {allowed[0]} or {allowed[1]}, "
            f"got {got}"
        )
    weights = weights.detach().double()
    for row in {0, len(rewards) // 2, len(rewards) - 1}:
        alone = estimator(rewards[row : row + 1]).detach().double()
        if not torch.allclose(alone[0], weights[row], rtol=1e-9, atol=1e-12, equal_nan=True):
            raise ValueError(
                "estimator mixes the rows of rewards (n, group): each row is a separate group here."
                " Batch statistics over several prompts have no exact moments in this form"
            )
    if weights.ndim == 2:
        weights = weights[..., None].expand(-1, -1, time)
    same = (rows[:, 1:] == rows[:, :-1])[..., None]
    jump = torch.where(same, weights[:, 1:] - weights[:, :-1], 0.0).abs()
    if jump.numel() and float(jump.max()) > 1e-9 * max(1.0, float(weights.abs().max())):
        raise ValueError(
            "estimator gives different weights to equal rewards of one group; exact moments need "
            "weights that depend on the rewards only, not on the order of the responses"
        )
    return weights


def estimate_distribution(
    policy: Policy,
    prompt: Tensor,
    reward: Reward,
    estimator: Estimator,
    *,
    group: int,
    token_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Every value that the estimate (1/G) sum_i A_i u_i can take, with its probability.

    Arguments as in `gradient_moments`, for one prompt. Enumerates which responses a group holds
    (order ignored): 378 cases for G = 2 and 27 responses, 27,405 for G = 4; more than 500,000
    raise ValueError.

    returns : probabilities (n,) and estimates (n, parameters), both float64. Lecture 08.
    """
    prompt = _one_prompt(prompt)
    weight = _prompt_token_weights(token_weights, policy, prompt)[0]
    with torch.no_grad():
        probs = response_log_probs(policy, prompt)[0].double().exp()
        rewards = all_rewards(policy, prompt, reward)[0].double()
    tokens = _weighted_token_scores(policy, prompt, weight)
    rows, p = _multisets(probs, group)
    weights = _group_weights(estimator, rewards[rows], rows, tokens.shape[1])
    totals = _sum_by_kind(weights, rows, len(tokens))
    return p, torch.einsum("nrt,rtd->nd", totals, tokens) / group


def sample_estimates(
    policy: Policy,
    prompt: Tensor,
    reward: Reward,
    estimator: Estimator,
    *,
    group: int,
    count: int,
    seed: int | torch.Generator,
) -> Tensor:
    """`count` independent sampled estimates (1/G) sum_i A_i u_i: (count, parameters).

    Here the estimator sees all `count` groups as rows (count, group), as in training, so batch
    statistics work too (then the rows are one batch, and not independent). Lecture 01.
    """
    prompt = _one_prompt(prompt)
    probs, rewards, table = _weighted_scores(policy, prompt, reward)
    drawn = torch.multinomial(
        probs, count * group, replacement=True, generator=as_generator(seed)
    ).unflatten(0, (count, group))
    weights = estimator(rewards[drawn]).to(table.dtype)
    return torch.einsum("ng,ngd->nd", weights, table[drawn]) / group


def variance_trace(policy: Policy, prompt: Tensor, reward: Reward, baseline) -> Tensor:
    """Trace of the covariance of one sample's (R - b) s, for every constant baseline b [BL-3].

    baseline : a number or a tensor (...) of them
    returns  : (...), E[(R - b)^2 |u|^2] - |grad J|^2: a parabola in b
    """
    probs, rewards, table = _weighted_scores(policy, prompt, reward)
    squares = table.square().sum(-1)
    b = torch.as_tensor(baseline, dtype=probs.dtype)
    noise = (probs * (rewards - b[..., None]).square() * squares).sum(-1)
    return noise - exact_gradient(policy, prompt, reward).square().sum()


def exact_optimal_baseline(policy: Policy, prompt: Tensor, reward: Reward) -> Tensor:
    """b* = E[|u|^2 R] / E[|u|^2] [BL-4], the lowest point of `variance_trace`: a scalar, points.

    (`policy_gradients.advantages.optimal_baseline` estimates it from samples.)
    """
    probs, rewards, table = _weighted_scores(policy, prompt, reward)
    return optimal_baseline(rewards, probs.sqrt()[:, None] * table)


def _weighted_scores(policy, prompt, reward) -> tuple[Tensor, Tensor, Tensor]:
    """(probabilities, rewards, scores) of every response to one prompt."""
    prompt = _one_prompt(prompt)
    with torch.no_grad():
        probs = response_log_probs(policy, prompt)[0].exp()
        rewards = all_rewards(policy, prompt, reward)[0]
    return probs, rewards, scores(policy, prompt)


# --- contrast within a group --------------------------------------------------------------------


def zero_contrast_probability(p: Tensor | float, group: int) -> Tensor | float:
    """p^G + (1-p)^G: the chance that a group of 0/1 rewards is all right or all wrong.

    p       : probability of a right response, in [0, 1]; a number or a tensor (...)
    returns : the same kind as p. Lecture 08.
    """
    _check_probability(p, group)
    return p**group + (1 - p) ** group


def prompt_weight(p: Tensor | float, group: int, advantage: Estimator) -> Tensor:
    """Factor w with E[(1/G) sum_i A_i u_i] = w grad p, for 0/1 rewards. Lecture 08.

    Formula: w = E[A | right] - E[A | wrong], the other G-1 rewards binomial. Constant 1 for
    leave-one-out, (G-1)/G for group-centred; what standardising does to hard prompts is its shape.

    p         : probability of a right response, in [0, 1]; a number or a tensor (...)
    advantage : rewards (n, group) -> (n, group)
    returns   : (...) in the dtype of p; float64 for a number
    """
    _check_probability(p, group)
    p = p if isinstance(p, Tensor) else torch.tensor(p, dtype=torch.float64)
    right = torch.arange(group + 1)
    rewards = (torch.arange(group) < right[:, None]).to(p.dtype)  # (G+1, G), `right` ones first
    weights = advantage(rewards)
    others = torch.arange(group)  # right answers among the other G - 1
    ways = torch.tensor([math.comb(group - 1, k) for k in range(group)], dtype=p.dtype)
    binomial = ways * p[..., None] ** others * (1 - p[..., None]) ** (group - 1 - others)
    return (binomial * (weights[1:, 0] - weights[:-1, -1])).sum(-1)


def _check_probability(p: Tensor | float, group: int) -> None:
    inside = (p >= 0) & (p <= 1)
    if not (bool(inside.all()) if isinstance(p, Tensor) else inside):
        raise ValueError(f"a probability must lie in [0, 1], got {p}")
    if not isinstance(group, int) or group < 1:
        raise ValueError(f"group must be a positive whole number, got {group!r}")


# --- KL estimators, placed in the loss or in the reward -----------------------------------------


def kl_in_loss(
    policy: Policy, reference: Policy, prompts: Tensor, estimator, *, per_token: bool
) -> Tensor:
    """Scalar whose gradient is E[grad k(log pi, log ref)]: the estimator k as a loss term.

    estimator : k1, k2 or k3 of `policy_gradients.kl`
    per_token : True sums k over the tokens, False applies it to the log-ratio of the response

    The value is E[k]; the sampling probabilities are constants, as they are in training. Compare
    with `flat_gradient(exact_kl(...), policy)`. Lecture 05.
    """
    logp, logp_ref = token_log_probs_of(policy, prompts), token_log_probs_of(reference, prompts)
    probs = logp.sum(-1).detach().exp()  # (prompts, responses)
    if not per_token:
        logp, logp_ref = logp.sum(-1, keepdim=True), logp_ref.sum(-1, keepdim=True)
    paid = _flat_call(estimator, logp, logp_ref.detach())
    return (probs * paid.sum(-1)).sum(-1).mean()


def _flat_call(estimator, logp: Tensor, logp_ref: Tensor) -> Tensor:
    """The estimators of the library see (batch, time); here it is (prompts, responses, time)."""
    return estimator(logp.flatten(0, 1), logp_ref.flatten(0, 1)).view_as(logp)


def kl_in_reward(
    policy: Policy,
    reference: Policy,
    prompts: Tensor,
    estimator,
    *,
    per_token: bool,
    to_go: bool = True,
) -> Tensor:
    """Scalar whose gradient is E[k . u]: the estimator k paid as a reward, not differentiated.

    per_token : False pays k of the whole response's log-ratio to all its tokens; True pays each
                token its own k and, with `to_go`, those of the tokens after it

    Only the gradient means something. Arguments otherwise as in `kl_in_loss`. Lecture 05.
    """
    logp = token_log_probs_of(policy, prompts)
    logp_ref = token_log_probs_of(reference, prompts)
    fixed, fixed_ref = logp.detach(), logp_ref.detach()
    if not per_token:
        fixed, fixed_ref = fixed.sum(-1, keepdim=True), fixed_ref.sum(-1, keepdim=True)
    paid = _flat_call(estimator, fixed, fixed_ref)  # (prompts, responses, time or 1)
    if per_token and to_go:
        paid = paid.flip(-1).cumsum(-1).flip(-1)
    probs = logp.detach().sum(-1).exp()
    return (probs * (paid * logp).sum(-1)).sum(-1).mean()


def gibbs_distribution(policy_ref: Policy, prompts: Tensor, reward: Reward, beta: float) -> Tensor:
    """(prompts, responses): ref(y) exp(R(y)/beta) / Z, which maximises J - beta KL. Lecture 05."""
    if not beta > 0:
        raise ValueError(f"beta must be positive, got {beta!r}")
    with torch.no_grad():
        logits = response_log_probs(policy_ref, prompts)
        return torch.softmax(logits + all_rewards(policy_ref, prompts, reward) / beta, -1)


def exact_flow(
    policy: Policy,
    objective: Callable[[Policy], Tensor],
    *,
    steps: int,
    learning_rate: float,
    max_grad_norm: float | None = None,
    record: Callable[[Policy], object] | None = None,
    record_every: int = 1,
) -> list:
    """Plain gradient ascent on an exact objective, changing `policy` in place.

    objective     : policy -> scalar; its gradient is the update's direction
    max_grad_norm : longer gradients are scaled down to this length
    record        : called before the first step, then every `record_every` steps

    returns : the recorded values. Raises FloatingPointError at a gradient that is not finite.
    """
    parameters = list(policy.parameters())
    records = [record(policy)] if record else []
    for step in range(1, steps + 1):
        gradients = torch.autograd.grad(objective(policy), parameters)
        norm = torch.sqrt(sum(g.square().sum() for g in gradients))
        if not bool(torch.isfinite(norm)):
            raise FloatingPointError(f"the gradient is not finite at step {step} of exact_flow")
        scale = learning_rate
        if max_grad_norm is not None and norm > max_grad_norm:
            scale = learning_rate * max_grad_norm / float(norm)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.add_(gradient, alpha=scale)
        if record and step % record_every == 0:
            records.append(record(policy))
    return records


# --- settings -----------------------------------------------------------------------------------


def random_logits(vocab_size: int, length: int, *, scale: float, seed: int) -> Tensor:
    """(length, vocab_size) float64 normal logits from numpy's default generator."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(length, vocab_size)) * scale)


def tabular_policy(logits: Tensor) -> TabularPolicy:
    """A `TabularPolicy` that starts at the given logits (length, vocab_size), in their dtype."""
    length, vocab_size = logits.shape
    policy = TabularPolicy(vocab_size, length).to(logits.dtype)
    with torch.no_grad():
        policy.table.copy_(logits)
    return policy


def skilled_policy(logits: Tensor, prompt: Tensor, skill: float) -> TabularPolicy:
    """`tabular_policy` with `skill` added to the logits of the prompt's right response.

    Skill 0 knows nothing of the task; with the base logits of the lectures
    (`random_logits(3, 3, scale=0.3, seed=0)`, prompt (1,0,2)) the chance of the right response is
    .021, .129, .396, .866 at skill 0, 1, 2, 4.
    """
    prompt = _one_prompt(prompt)
    right = torch.nn.functional.one_hot(prompt[0].sort().values, logits.shape[1])
    return tabular_policy(logits + skill * right.to(logits.dtype))
