"""What to watch beside the loss. Nothing here has a gradient; padding is never felt (Lecture 11).

The loss of a policy gradient says little: at the first step it is 0 for a ratio averaged per
sequence with centred advantages, and −Cov(A, log π) for REINFORCE; it may rise while the policy
gets better. These numbers say more.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from policy_gradients import _checks
from policy_gradients.kl import k3
from policy_gradients.ratios import token_ratio


class ClipFraction(NamedTuple):
    """Shares of the response tokens, each between 0 and 1."""

    high: float  # dead: A > 0 and ρ > 1 + ε_high
    low: float  # dead: A < 0 and ρ < 1 − ε_low
    outside: float  # ρ outside [1 − ε_low, 1 + ε_high], whatever the advantage


class LengthStatistics(NamedTuple):
    """Lengths of the responses, in tokens."""

    mean: float
    std: float  # over the batch, ddof 0
    shortest: int
    longest: int
    at_limit: float  # share of responses that fill the width of the mask


@torch.no_grad()
def clip_fraction(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float,
    eps_high: float,
) -> ClipFraction:
    """Share of tokens whose gradient PPO's clip has switched off, by side.

    0 at the first update of a batch is right, not a bug: every ratio is still 1.

    Args:
        logp, logp_old: (batch, time) log-probabilities now and at sampling time, nats.
        advantages: (batch, 1) or (batch, time).
        mask: (batch, time) 1 on response tokens.
        eps_low, eps_high: distance of the edges from ratio 1, ≥ 0.

    Returns:
        ClipFraction; the shares of `high` and `low` add up to the dead share.

    Raises:
        TypeError, ValueError: wrong dtype or shape, a knob outside its range.
    """
    advantages = _checks.advantages_for(logp, advantages)
    valid = _checks.as_mask("mask", mask, logp=logp)
    ratio = token_ratio(logp, logp_old)
    above = ratio > 1 + _checks.knob("eps_high", eps_high, at_least=0)
    below = ratio < 1 - _checks.knob("eps_low", eps_low, at_least=0)
    return ClipFraction(
        high=_share(above & (advantages > 0), valid),
        low=_share(below & (advantages < 0), valid),
        outside=_share(above | below, valid),
    )


@torch.no_grad()
def ratio_quantiles(
    logp: Tensor,
    logp_old: Tensor,
    mask: Tensor,
    *,
    quantiles: tuple[float, ...] = (0.0, 0.01, 0.5, 0.99, 1.0),
) -> dict[float, float]:
    """Quantiles of the token ratios, linearly interpolated; all 1 at the first update.

    Args:
        logp, logp_old: (batch, time) log-probabilities now and at sampling time, nats.
        mask: (batch, time) 1 on response tokens.
        quantiles: each in [0, 1]; 0 and 1 are the smallest and largest ratio.

    Returns:
        quantile → ratio; NaN without a single token.

    Raises:
        TypeError, ValueError: wrong dtype or shape, a quantile outside [0, 1].
    """
    _checks.floats("(batch, time)", logp=logp, logp_old=logp_old)
    valid = _checks.as_mask("mask", mask, logp=logp)
    if any(not 0 <= q <= 1 for q in quantiles):
        raise ValueError(f"quantiles must lie in [0, 1], got {quantiles}")
    ordered = token_ratio(logp, logp_old)[valid].double().sort().values
    if len(ordered) == 0:
        return dict.fromkeys(quantiles, float("nan"))
    # by hand, because torch.quantile refuses more than 2^24 numbers
    found = {}
    for q in quantiles:
        position = q * (len(ordered) - 1)
        left, right = ordered[int(position)], ordered[min(int(position) + 1, len(ordered) - 1)]
        found[q] = torch.lerp(left, right, position - int(position)).item()
    return found


@torch.no_grad()
def approximate_kl(logp: Tensor, logp_old: Tensor, mask: Tensor) -> float:
    """KL(π_old‖π) per token, estimated on samples of π_old: the mean of (ρ − 1) − log ρ.

    How far this batch's updates have moved the policy; not the KL to the reference.

    Args:
        logp, logp_old: (batch, time) log-probabilities now and at sampling time, nats.
        mask: (batch, time) 1 on response tokens.

    Returns:
        nats per token, ≥ 0; 0 without a single token.

    Raises:
        TypeError, ValueError: wrong dtype or shape.
    """
    _checks.floats("(batch, time)", logp=logp, logp_old=logp_old)
    return mean_over_tokens(k3(logp_old, logp), mask)


@torch.no_grad()
def sampled_entropy(logp: Tensor, mask: Tensor) -> float:
    """Entropy per token, estimated by −log π of the tokens that π itself sampled.

    Unbiased without the logits; where they are at hand use `mean_over_tokens` of
    `logprobs.entropy`. Both fall to 0 when a policy stops exploring.

    Args:
        logp: (batch, time) log-probabilities at sampling time, nats.
        mask: (batch, time) 1 on response tokens.

    Returns:
        nats per token; 0 without a single token.

    Raises:
        TypeError, ValueError: wrong dtype or shape.
    """
    _checks.floats("(batch, time)", logp=logp)
    return mean_over_tokens(-logp, _checks.as_mask("mask", mask, logp=logp))


@torch.no_grad()
def mean_over_tokens(x: Tensor, mask: Tensor) -> float:
    """Mean of any per-token number (entropy, k1, …) over the response tokens.

    Args:
        x: (batch, time).
        mask: (batch, time) 1 on response tokens.

    Returns:
        in the unit of x; 0 without a single token.

    Raises:
        TypeError, ValueError: wrong dtype or shape.
    """
    _checks.floats("(batch, time)", x=x)
    valid = _checks.as_mask("mask", mask, x=x)
    return x[valid].double().sum().item() / max(int(valid.sum()), 1)


@torch.no_grad()
def zero_contrast_share(rewards: Tensor) -> float:
    """Share of groups whose rewards are all equal: they teach a group method nothing.

    Args:
        rewards: (prompts, group).

    Returns:
        between 0 and 1.

    Raises:
        TypeError, ValueError: wrong dtype or shape.
    """
    _checks.floats("(prompts, group)", rewards=rewards)
    return (rewards.amax(1) == rewards.amin(1)).double().mean().item()


@torch.no_grad()
def effective_sample_size(log_weights: Tensor) -> float:
    """How many equally weighted samples the importance weights are worth: (Σw)² / Σw².

    Taken in logs, so weights of e^1000 are fine. For whole responses pass the sum of their
    tokens' log-ratios, for tokens the log-ratios themselves.

    Args:
        log_weights: (n,) logs of the weights, up to a common constant.

    Returns:
        in samples, between 1 and n.

    Raises:
        TypeError, ValueError: wrong dtype or shape, no samples.
    """
    _checks.floats("(n,)", log_weights=log_weights)
    if len(log_weights) == 0:
        raise ValueError("log_weights (n,) must hold at least one weight, got (0,)")
    log_weights = log_weights.double()
    return (2 * log_weights.logsumexp(0) - (2 * log_weights).logsumexp(0)).exp().item()


@torch.no_grad()
def length_statistics(mask: Tensor) -> LengthStatistics:
    """Lengths of the responses of a batch; watch `at_limit`, the share that was cut off.

    Args:
        mask: (batch, time) 1 on response tokens; time is the generation limit.

    Returns:
        LengthStatistics, in tokens.

    Raises:
        TypeError, ValueError: not a mask of two axes, an empty batch.
    """
    valid = _checks.as_mask("mask", mask, itself=mask)
    _checks.same_shape("(batch, time)", mask=valid)
    if len(valid) == 0:
        raise ValueError(f"mask must hold at least one response, got {tuple(mask.shape)}")
    lengths = valid.sum(1)
    return LengthStatistics(
        mean=lengths.double().mean().item(),
        std=lengths.double().std(correction=0).item(),
        shortest=int(lengths.min()),
        longest=int(lengths.max()),
        at_limit=(lengths == valid.shape[1]).double().mean().item(),
    )


def _share(where: Tensor, valid: Tensor) -> float:
    return mean_over_tokens(where.expand(valid.shape).double(), valid)
