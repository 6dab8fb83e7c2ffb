"""Importance ratios: how much more likely is what was sampled under another policy (Lecture 03)."""

import math

import torch
from torch import Tensor

from policy_gradients import _checks


def largest_log_ratio(dtype: torch.dtype) -> float:
    """Where log-ratios are cut before exp: 90 % of the logarithm of the largest number.

    79.8 in float32, 638 in float64. Real ratios are far below; only padding that holds garbage
    gets there, and there an infinite ratio would turn a zero gradient into 0 · ∞ = NaN.
    """
    return 0.9 * math.log(torch.finfo(dtype).max)


def token_ratio(logp: Tensor, logp_old: Tensor) -> Tensor:
    """Ratio of the probabilities of each token, current policy over the policy that sampled it.

    ρ_t = exp(log π(y_t | s_t) − log π_old(y_t | s_t))  [RC-3]

    The difference is taken first: a quotient of log-probabilities is something else, and a
    quotient of probabilities underflows. The log-ratio is cut at ±largest_log_ratio (the
    gradient is 0 beyond), so that every ratio is finite. Schulman et al. 2017
    (arXiv 1707.06347), section 3.

    Args:
        logp: (batch, time) log-probabilities under the policy being trained, nats.
        logp_old: (batch, time) log-probabilities at sampling time, nats; detached here.

    Returns:
        (batch, time) ratios, unitless; the gradient with respect to logp is ρ itself.

    Raises:
        TypeError, ValueError: wrong dtype or shape.
    """
    _checks.floats("(batch, time)", logp=logp, logp_old=logp_old)
    limit = largest_log_ratio(logp.dtype)
    return (logp - logp_old.detach()).clamp(-limit, limit).exp()


def sequence_ratio(logp: Tensor, logp_old: Tensor, mask: Tensor) -> Tensor:
    """Geometric mean of a sequence's token ratios, GSPO's length-normalised sequence ratio.

    s_i = exp( (1/|y_i|) Σ_t [log π(y_t) − log π_old(y_t)] )

    Zheng et al. 2025 (arXiv 2507.18071), eq. 7; Lecture 10 [VAR-2]. This is the |y|-th root of the
    sequence's importance weight, not the weight itself.

    Args:
        logp: (batch, time) log-probabilities under the policy being trained, nats.
        logp_old: (batch, time) log-probabilities at sampling time, nats; detached here.
        mask: (batch, time) 1 on response tokens.

    Returns:
        (batch, 1) ratios; 1 for an empty response.

    Raises:
        TypeError, ValueError: wrong dtype or shape.
    """
    _checks.floats("(batch, time)", logp=logp, logp_old=logp_old)
    valid = _checks.as_mask("mask", mask, logp=logp)
    log_ratio = torch.where(valid, logp - logp_old.detach(), 0.0)
    lengths = valid.sum(1, keepdim=True).clamp(min=1)
    limit = largest_log_ratio(logp.dtype)
    return (log_ratio.sum(1, keepdim=True) / lengths).clamp(-limit, limit).exp()


def truncated_importance_weight(
    logp_learner: Tensor, logp_sampler: Tensor, *, cap: float
) -> Tensor:
    """Weight that corrects for a sampler that is not quite the learner, capped from above.

    w_t = min(exp(log π_learner − log π_sampler), cap), a constant (detached)

    Multiply it onto a per-token loss. The cap bounds the variance and costs a bias; per token
    the weights are biased even without a cap, because they ignore the tokens before
    (Lecture 14). Ionides 2008; used between sampler and learner by Yao et al. 2025.

    Args:
        logp_learner: (batch, time) log-probabilities computed by the learner with the weights
            that were used for sampling, nats.
        logp_sampler: (batch, time) log-probabilities reported by the sampler, nats.
        cap: largest weight, > 0.

    Returns:
        (batch, time) weights in (0, cap], without gradient.

    Raises:
        TypeError, ValueError: wrong dtype or shape, cap ≤ 0.
    """
    _checks.floats("(batch, time)", logp_learner=logp_learner, logp_sampler=logp_sampler)
    cap = _checks.knob("cap", cap, above=0)
    return token_ratio(logp_learner.detach(), logp_sampler).clamp(max=cap)
