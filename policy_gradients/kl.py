"""How far is the policy from a reference? Three sampled estimators and the exact sum (Lecture 05).

With ℓ = log π(y) − log π_ref(y) and y sampled from π, the average of k1 and of k3 is exactly
KL(π‖π_ref); that of k2 is close to it near the reference. Their gradients are another matter: as
a loss, k1 averages to 0, k2 to ∇KL(π‖π_ref) and k3 to ∇KL(π_ref‖π). On whole sequences the sum
of k1, or of k3, over the tokens is still unbiased for the KL of the sequences; the gradients stay
those of one position, and leave out that a token also decides which states come next. See
Lecture 05 before choosing.

Nothing is detached here: pass logp_ref.detach() if the reference has a graph.
The estimators are [KL-2], their gradients [KL-5], the sequence's own gradient [KL-6].
Source of the names: Schulman, "Approximating KL divergence" (2020).
"""

import torch
from torch import Tensor

from policy_gradients import _checks
from policy_gradients.ratios import largest_log_ratio


def k1(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """ℓ = log π − log π_ref: unbiased for KL(π‖π_ref), of either sign.

    Args:
        logp: (batch, time) log-probabilities of sampled tokens under π, nats.
        logp_ref: (batch, time) log-probabilities of the same tokens under π_ref, nats.

    Returns:
        (batch, time) nats.

    Raises:
        TypeError, ValueError: wrong dtype or shape.
    """
    return _log_ratio(logp, logp_ref)


def k2(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """½ ℓ²: never negative, biased as a value; as a loss its expected gradient is ∇KL(π‖π_ref).

    Per token that is the KL at the token's own state, not the KL of the sequences.

    Args:
        logp: (batch, time) log-probabilities of sampled tokens under π, nats.
        logp_ref: (batch, time) log-probabilities of the same tokens under π_ref, nats.

    Returns:
        (batch, time) nats.

    Raises:
        TypeError, ValueError: wrong dtype or shape.
    """
    return 0.5 * _log_ratio(logp, logp_ref).square()


def k3(logp: Tensor, logp_ref: Tensor) -> Tensor:
    """e^(−ℓ) − 1 + ℓ: unbiased for KL(π‖π_ref) and never negative; GRPO's penalty.

    Computed as expm1(−ℓ) + ℓ: near ℓ = 0 the terms 1 cancel, and float32 without expm1 returns
    mostly rounding. ℓ is cut at −largest_log_ratio so that the value stays finite.
    Unbiased only where π has support wherever π_ref has it: top-p and top-k sampling break that.
    Shao et al. 2024 (DeepSeekMath, arXiv 2402.03300), eq. 4.

    Args:
        logp: (batch, time) log-probabilities of sampled tokens under π, nats.
        logp_ref: (batch, time) log-probabilities of the same tokens under π_ref, nats.

    Returns:
        (batch, time) nats.

    Raises:
        TypeError, ValueError: wrong dtype or shape.
    """
    log_ratio = _log_ratio(logp, logp_ref).clamp(min=-largest_log_ratio(logp.dtype))
    return torch.expm1(-log_ratio) + log_ratio


def exact_kl(logits: Tensor, logits_ref: Tensor) -> Tensor:
    """KL(softmax(logits) ‖ softmax(logits_ref)) at each position, summed over the vocabulary.

    Σ_v π(v) [log π(v) − log π_ref(v)]  [MAP-4]

    Args:
        logits: (batch, time, vocab) of π. Where π(v) = 0 the term is 0.
        logits_ref: (batch, time, vocab) of π_ref.

    Returns:
        (batch, time) nats, ≥ 0; inf where π can produce a token that π_ref cannot.

    Raises:
        TypeError, ValueError: wrong dtype or shape.
    """
    _checks.floats("(batch, time, vocab)", logits=logits, logits_ref=logits_ref)
    logp, logp_ref = logits.log_softmax(-1), logits_ref.log_softmax(-1)
    probability = logp.exp()
    log_ratio = torch.where(probability > 0, logp - logp_ref, 0.0)
    return (probability * log_ratio).sum(-1)


def _log_ratio(logp: Tensor, logp_ref: Tensor) -> Tensor:
    _checks.floats("(batch, time)", logp=logp, logp_ref=logp_ref)
    return logp - logp_ref
