"""How good was this answer, compared with what? (Lectures 02, 06 and 08)

Critic-free functions take rewards (prompts, group), one row per prompt, and return advantages
of the same shape; `advantages.reshape(-1, 1)` is what the surrogates take. In all of them a
group without contrast (every reward the same) gives exactly 0, in float32 too, where the mean
of eight rewards of 0.7 is not 0.7: the test is max = min, not a small deviation.
"""

import torch
from torch import Tensor

from policy_gradients import _checks


def batch_centered(rewards: Tensor) -> Tensor:
    """Reward minus the mean over the whole batch: A = r − mean(r).  [BL-6]

    Args:
        rewards: (prompts, group).

    Returns:
        (prompts, group), in the unit of the rewards.

    Raises:
        TypeError, ValueError: wrong dtype or shape.
    """
    _checks.floats("(prompts, group)", rewards=rewards)
    return _deviation(rewards.reshape(1, -1)).reshape(rewards.shape)


def group_centered(rewards: Tensor) -> Tensor:
    """Reward minus the mean of its group: A_i = r_i − r̄.  [BL-7]

    Liu et al. 2025 (Dr. GRPO, arXiv 2503.20783), section 3.2. The group's mean contains r_i
    itself, so the expected gradient is (G − 1)/G of the true one; the direction is unchanged.

    Args:
        rewards: (prompts, group).

    Returns:
        (prompts, group), in the unit of the rewards.

    Raises:
        TypeError, ValueError: wrong dtype or shape.
    """
    _checks.floats("(prompts, group)", rewards=rewards)
    return _deviation(rewards)


def group_standardized(rewards: Tensor, *, ddof: int = 1, eps: float = 1e-4) -> Tensor:
    """Reward in standard deviations of its group: A_i = (r_i − r̄) / (std + eps).  [BL-10], [GR-1]

    Shao et al. 2024 (GRPO, arXiv 2402.03300), section 4.1.2, which says neither ddof nor eps;
    large trainers ship either ddof. eps is added to the standard deviation, not to the variance.
    From G = 4 on, dividing by the spread of 0/1 rewards gives very easy and very hard prompts more
    weight (Lecture 08).

    Args:
        rewards: (prompts, group).
        ddof: 1 divides the squared deviations by G − 1, 0 by G.
        eps: in the unit of the rewards, ≥ 0.

    Returns:
        (prompts, group), unitless; exactly 0 for a group of equal rewards, and so also for a
        group of one.

    Raises:
        TypeError, ValueError: wrong dtype or shape, ddof not 0 or 1, eps < 0.
    """
    _checks.floats("(prompts, group)", rewards=rewards)
    return _standardized(_deviation(rewards), rewards.shape[1], ddof=ddof, eps=eps)


def leave_one_out(rewards: Tensor) -> Tensor:
    """Reward minus the mean of the other rewards of its group: A_i = r_i − mean_{j≠i} r_j.  [BL-8]

    Computed as G/(G − 1) · (r_i − r̄). The baseline does not contain r_i, so the gradient is
    unbiased; averaged over the group it is the sample covariance of reward and score [BL-9].
    Kool et al. 2019; Ahmadian et al. 2024 (RLOO, arXiv 2402.14740), section 2.3.

    Args:
        rewards: (prompts, group) with group ≥ 2.

    Returns:
        (prompts, group), in the unit of the rewards.

    Raises:
        TypeError, ValueError: wrong dtype or shape, a group of one.
    """
    _checks.floats("(prompts, group)", rewards=rewards)
    G = rewards.shape[1]
    if G < 2:
        raise ValueError(
            f"leave_one_out needs at least two responses per prompt, got rewards "
            f"(prompts, group) {tuple(rewards.shape)}: with one there are no others to average"
        )
    return _deviation(rewards) * (G / (G - 1))


def max_only(rewards: Tensor) -> Tensor:
    """The raw reward where it is the group's largest (ties kept), else 0.  [BL-11]

    Learns from the best answers only. Without a baseline and not unbiased: Lecture 02 measures
    what that costs.

    Args:
        rewards: (prompts, group).

    Returns:
        (prompts, group), in the unit of the rewards.

    Raises:
        TypeError, ValueError: wrong dtype or shape.
    """
    _checks.floats("(prompts, group)", rewards=rewards)
    return torch.where(rewards == rewards.amax(1, keepdim=True), rewards, 0.0)


def maxrl(rewards: Tensor) -> Tensor:
    """Deviation relative to the group's mean: A_i = (r_i − r̄)/r̄, and 0 where r̄ is 0.  [VAR-5]

    With 0/1 rewards the expected gradient is w ∇p with w = Σ_{k ≤ G−2} (1 − p)^k, the first
    G − 1 terms of 1/p: nearly the gradient of log p, the maximum-likelihood objective.
    Tajwar et al. 2026 (MaxRL, arXiv 2602.02710); Lecture 10.

    Args:
        rewards: (prompts, group), ≥ 0.

    Returns:
        (prompts, group), unitless.

    Raises:
        TypeError, ValueError: wrong dtype or shape, a negative reward.
    """
    _checks.floats("(prompts, group)", rewards=rewards)
    if (rewards < 0).any():
        raise ValueError(
            f"maxrl needs rewards ≥ 0, as it divides by their mean: rewards "
            f"{tuple(rewards.shape)} go down to {rewards.min():g}"
        )
    mean = rewards.mean(1, keepdim=True)
    return _deviation(rewards) / torch.where(mean == 0, 1.0, mean)


def optimal_baseline(rewards: Tensor, scores: Tensor) -> Tensor:
    """The constant baseline of least variance: b* = Σ |u_i|² r_i / Σ |u_i|².  [BL-4]

    u_i is the score ∇ log π of sample i, not ∇π. Rewards are averaged with the weight their
    score has in the variance, so b* is the mean reward only when |u|² and r are uncorrelated.
    For exact expectations scale each score by the square root of its probability.
    Greensmith, Bartlett and Baxter 2004 (JMLR 5) analyse it for policy gradients in general.

    Args:
        rewards: (n,) one per sample.
        scores: (n, parameters) one row per sample.

    Returns:
        scalar, in the unit of the rewards; the mean reward where all scores are 0.

    Raises:
        TypeError, ValueError: wrong dtype or shape.
    """
    _checks.floats("(n,)", rewards=rewards)
    _checks.floats("(n, parameters)", scores=scores)
    if len(rewards) != len(scores) or rewards.dtype != scores.dtype:
        raise ValueError(
            f"rewards (n,) and scores (n, parameters) must agree in n and dtype: got rewards "
            f"{tuple(rewards.shape)} {rewards.dtype}, scores {tuple(scores.shape)} {scores.dtype}"
        )
    weights = scores.square().sum(1)
    weights = torch.where(weights.sum() == 0, 1.0, weights)
    return (weights * rewards).sum() / weights.sum()


def reward_to_go(rewards: Tensor, done: Tensor, *, gamma: float) -> Tensor:
    """Discounted sum of the rewards from each token on, to the end of its sequence.  [PG-7]

    G_t = r_t + γ (1 − done_t) G_{t+1}

    Restarts after a done, so several sequences may be packed into one row, and padding behind
    the last token is not felt.

    Args:
        rewards: (batch, time) rewards per token.
        done: (batch, time) 1 on the last token of a sequence.
        gamma: discount, 0 ≤ γ ≤ 1; language models use 1.

    Returns:
        (batch, time), in the unit of the rewards.

    Raises:
        TypeError, ValueError: wrong dtype or shape, gamma outside [0, 1].
    """
    _checks.floats("(batch, time)", rewards=rewards)
    ends = _checks.as_mask("done", done, rewards=rewards)
    return _discounted_sum(rewards, ends, _fraction("gamma", gamma))


def gae(
    rewards: Tensor,
    values: Tensor,
    done: Tensor,
    *,
    gamma: float,
    lam: float,
    bootstrap: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation, and the returns to train the critic on.

    δ_t = r_t + γ V_next − V_t,  A_t = δ_t + γλ (1 − done_t) A_{t+1},  returns = A + V  [GAE-13]

    V_next is V_{t+1} inside a sequence; on its last token it is 0, because nothing follows, or
    the bootstrap value, because the sequence was cut. λ = 1 gives the return minus V, λ = 0 the
    one-step error. Schulman et al. 2016 (arXiv 1506.02438), eq. 16; Lecture 06.

    Args:
        rewards: (batch, time) rewards per token.
        values: (batch, time) V of the state before each token, in the unit of the rewards.
        done: (batch, time) 1 on a sequence's last token; padding behind it is not felt.
        gamma: discount, 0 ≤ γ ≤ 1.
        lam: λ, 0 ≤ λ ≤ 1.
        bootstrap: (batch,) value after the last column, used in rows without done there; or
            (batch, time) value to use on a token where a sequence is cut (read where done is 1
            and in the last column: 0 where the sequence really ended); None = 0 everywhere.

    Returns:
        advantages (batch, time) and returns (batch, time). Not detached: the surrogates and
        `value_loss` do that.

    Raises:
        TypeError, ValueError: wrong dtype or shape, gamma or lam outside [0, 1].
    """
    _checks.floats("(batch, time)", rewards=rewards, values=values)
    ends = _checks.as_mask("done", done, rewards=rewards)
    gamma, lam = _fraction("gamma", gamma), _fraction("lam", lam)
    after_cut = _value_after_cut(rewards, ends, bootstrap)
    following = torch.cat([values[:, 1:], after_cut[:, -1:]], dim=1)
    delta = rewards + gamma * torch.where(ends, after_cut, following) - values
    advantages = _discounted_sum(delta, ends, gamma * lam)
    return advantages, advantages + values


def whiten(advantages: Tensor, mask: Tensor, *, ddof: int = 0, eps: float = 1e-8) -> Tensor:
    """Advantages in standard deviations, over the response tokens of the whole batch.

    (x − mean)/(std + eps) on response tokens, 0 on padding; Lecture 11.

    Equal advantages, and so also a single one, give exactly 0.

    Args:
        advantages: (batch, time), or (batch, 1) for one number per sequence.
        mask: (batch, time) 1 on response tokens.
        ddof: 0 divides the squared deviations by the number of tokens N, 1 by N − 1.
        eps: added to the standard deviation, ≥ 0.

    Returns:
        (batch, time), unitless.

    Raises:
        TypeError, ValueError: wrong dtype or shape, ddof not 0 or 1, eps < 0.
    """
    _checks.floats("(batch, time)", advantages=advantages)
    if isinstance(mask, Tensor) and mask.ndim == 2 and advantages.shape == (len(mask), 1):
        advantages = advantages.expand(mask.shape)
    valid = _checks.as_mask("mask", mask, advantages=advantages)
    deviation = _deviation(advantages[valid].reshape(1, -1))
    scaled = _standardized(deviation, deviation.shape[1], ddof=ddof, eps=eps)
    return torch.zeros_like(advantages).masked_scatter(valid, scaled)


def shape_rewards_with_kl(
    scores: Tensor, logp: Tensor, logp_ref: Tensor, mask: Tensor, *, beta: float
) -> Tensor:
    """Rewards per token: the KL penalty on every token, the score on the last one.

    r_t = −β (log π(y_t) − log π_ref(y_t)) + [t is the last response token] · score  [AC-4]

    Ouyang et al. 2022 (InstructGPT, arXiv 2203.02155), eq. 2 without its pretraining term, the
    log-ratio spread over the tokens; Lecture 07. A constant of the update: detached.

    Args:
        scores: (batch,) one score per response.
        logp: (batch, time) log-probabilities at sampling time, nats.
        logp_ref: (batch, time) log-probabilities under the reference, nats.
        mask: (batch, time) 1 on response tokens.
        beta: reward per nat, ≥ 0.

    Returns:
        (batch, time), in the unit of the scores; 0 on padding. An empty response has no last
        token, and its score appears nowhere.

    Raises:
        TypeError, ValueError: wrong dtype or shape, beta < 0.
    """
    _checks.floats("(batch, time)", logp=logp, logp_ref=logp_ref)
    _checks.floats("(batch,)", scores=scores)
    if len(scores) != len(logp) or scores.dtype != logp.dtype:
        raise ValueError(
            f"scores (batch,) and logp (batch, time) must agree in batch and dtype: got scores "
            f"{tuple(scores.shape)} {scores.dtype}, logp {tuple(logp.shape)} {logp.dtype}"
        )
    valid = _checks.as_mask("mask", mask, logp=logp)
    penalty = -_checks.knob("beta", beta, at_least=0) * (logp - logp_ref).detach()
    tokens_left = valid.flip(1).cumsum(1).flip(1)
    is_last = valid & (tokens_left == 1)
    rewards = torch.where(valid, penalty, 0.0)
    return torch.where(is_last, rewards + scores.detach().unsqueeze(1), rewards)


def _deviation(rewards: Tensor) -> Tensor:
    """Rows minus their mean, exactly 0 in a row of equal numbers; (rows, n) → (rows, n)."""
    if rewards.shape[1] == 0:
        return rewards
    equal = rewards.amax(1, keepdim=True) == rewards.amin(1, keepdim=True)
    return torch.where(equal, 0.0, rewards - rewards.mean(1, keepdim=True))


def _standardized(deviation: Tensor, n: int, *, ddof: int, eps: float) -> Tensor:
    """Rows of deviations over their standard deviation + eps; a row of zeros stays zeros."""
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, got {ddof}")
    eps = _checks.knob("eps", eps, at_least=0)
    variance = deviation.square().sum(1, keepdim=True) / max(n - ddof, 1)
    # 1 in place of a variance of 0: the root has no gradient there, and with eps = 0, 0/0 is NaN
    std = torch.where(variance > 0, variance, 1.0).sqrt()
    return deviation / (std + eps)


def _discounted_sum(x: Tensor, ends: Tensor, discount: float) -> Tensor:
    """y_t = x_t + discount · y_{t+1}, restarting after each end, from the last column back."""
    carry = torch.zeros_like(x[:, 0])
    columns = []
    for t in reversed(range(x.shape[1])):
        carry = x[:, t] + discount * torch.where(ends[:, t], 0.0, carry)
        columns.append(carry)
    return torch.stack(columns[::-1], dim=1)


def _value_after_cut(rewards: Tensor, ends: Tensor, bootstrap: Tensor | None) -> Tensor:
    """(batch, time) value behind a sequence's last token: 0 unless a bootstrap says otherwise."""
    if bootstrap is None:
        return torch.zeros_like(rewards)
    shape = tuple(bootstrap.shape) if isinstance(bootstrap, Tensor) else type(bootstrap).__name__
    if shape == tuple(rewards.shape):
        _checks.floats("(batch, time)", rewards=rewards, bootstrap=bootstrap)
        return bootstrap
    if shape != (len(rewards),):
        raise ValueError(
            f"bootstrap must be (batch,) or (batch, time): got bootstrap {shape} with rewards "
            f"{tuple(rewards.shape)}"
        )
    _checks.floats("(batch,)", **{"rewards[:, -1]": rewards[:, -1], "bootstrap": bootstrap})
    last = torch.where(ends[:, -1], 0.0, bootstrap)
    return torch.cat([torch.zeros_like(rewards[:, 1:]), last.unsqueeze(1)], dim=1)


def _fraction(name: str, value: float) -> float:
    if not _checks.knob(name, value, at_least=0) <= 1:
        raise ValueError(f"{name} must lie in [0, 1], got {value}")
    return float(value)
