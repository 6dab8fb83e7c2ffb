"""Losses on pairs: a reward model, or the policy itself, learns from comparisons (Lecture 17).

Policies enter as log-probabilities of whole responses, summed over the tokens (not averaged).
Every loss returns one number per pair; the caller takes the mean. Reference log-probabilities
are constants and detached here.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from policy_gradients import _checks


def bradley_terry(chosen: Tensor, rejected: Tensor, *, margin: float = 0.0) -> Tensor:
    """Negative log-likelihood that the chosen response beats the rejected one.

    −log σ(r_chosen − r_rejected − margin), through logsigmoid: 100 at a difference of −100.

    Bradley and Terry 1952; as a reward-model loss Ouyang et al. 2022 (arXiv 2203.02155), eq. 1;
    the margin from Touvron et al. 2023 (arXiv 2307.09288), eq. 2.

    Args:
        chosen: (batch,) rewards of the preferred responses.
        rejected: (batch,) rewards of the others.
        margin: by how much the chosen one should win, in the unit of the rewards.

    Returns:
        (batch,) nats.

    Raises:
        TypeError, ValueError: wrong dtype or shape.
    """
    _checks.floats("(batch,)", chosen=chosen, rejected=rejected)
    return -F.logsigmoid(chosen - rejected - float(margin))


def dpo(
    chosen: Tensor,
    rejected: Tensor,
    chosen_ref: Tensor,
    rejected_ref: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Direct preference optimisation: Bradley–Terry on the implicit reward β log(π/π_ref).

    h = β [(log π_w − log π_ref,w) − (log π_l − log π_ref,l)]
    loss = −(1 − e) log σ(h) − e log σ(−h), e = label_smoothing

    Rafailov et al. 2023 (arXiv 2305.18290), eq. 7; e from Mitchell 2023 ("conservative DPO").

    Args:
        chosen, rejected: (batch,) summed log-probabilities under the policy, nats.
        chosen_ref, rejected_ref: (batch,) the same under the reference; detached here.
        beta: strength of the pull towards the reference, > 0.
        label_smoothing: assumed share of flipped labels, 0 ≤ e < ½.

    Returns:
        (batch,) nats; log 2 at the reference, whichever of the two is called chosen.

    Raises:
        TypeError, ValueError: wrong dtype or shape, a knob outside its range.
    """
    _checks.knob("label_smoothing", label_smoothing, at_least=0)
    if not label_smoothing < 0.5:
        raise ValueError(f"label_smoothing must be below 0.5, got {label_smoothing}")
    beta = _checks.knob("beta", beta, above=0)
    h = beta * _log_ratio_gap(chosen, rejected, chosen_ref, rejected_ref)
    return -(1 - label_smoothing) * F.logsigmoid(h) - label_smoothing * F.logsigmoid(-h)


def ipo(
    chosen: Tensor, rejected: Tensor, chosen_ref: Tensor, rejected_ref: Tensor, *, tau: float
) -> Tensor:
    """Identity preference optimisation: the gap of log-ratios is regressed onto 1/(2τ).

    ( [(log π_w − log π_ref,w) − (log π_l − log π_ref,l)] − 1/(2τ) )²

    Azar et al. 2023 (arXiv 2310.12036), eq. 17. Unlike DPO it stops pushing at a finite gap.

    Args:
        chosen, rejected: (batch,) summed log-probabilities under the policy, nats.
        chosen_ref, rejected_ref: (batch,) the same under the reference; detached here.
        tau: strength of the pull towards the reference, > 0.

    Returns:
        (batch,) nats².

    Raises:
        TypeError, ValueError: wrong dtype or shape, tau ≤ 0.
    """
    tau = _checks.knob("tau", tau, above=0)
    gap = _log_ratio_gap(chosen, rejected, chosen_ref, rejected_ref)
    return (gap - 1 / (2 * tau)).square()


def kto(
    logp: Tensor,
    logp_ref: Tensor,
    desirable: Tensor,
    kl_logp: Tensor,
    kl_logp_ref: Tensor,
    *,
    beta: float,
    lambda_d: float = 1.0,
    lambda_u: float = 1.0,
) -> Tensor:
    """Kahneman–Tversky optimisation: single responses marked good or bad, without pairs.

    r = log π − log π_ref,  z₀ = max(0, mean(kl_logp − kl_logp_ref)) (a constant)
    loss = λ_d (1 − σ(β(r − z₀))) if desirable, else λ_u (1 − σ(β(z₀ − r)))

    Ethayarajh et al. 2024 (arXiv 2402.01306), eq. 8, whose names and form are followed here. The
    reference point z₀ stands for KL(π‖π_ref). The paper estimates it by scoring, behind each
    prompt of the batch, the response to another one: a biased estimate, as π wrote none of them.
    Other code uses the name KTO for variants of z₀.

    Args:
        logp: (batch,) summed log-probabilities under the policy, nats.
        logp_ref: (batch,) the same under the reference; detached here.
        desirable: (batch,) 1 for a good response, 0 for a bad one.
        kl_logp, kl_logp_ref: (n,) summed log-probabilities of the mismatched prompt–response
            pairs, under the policy and the reference; detached here.
        beta: risk aversion, > 0.
        lambda_d, lambda_u: weights of good and bad responses, ≥ 0.

    Returns:
        (batch,) unitless, between 0 and λ.

    Raises:
        TypeError, ValueError: wrong dtype or shape, a knob outside its range.
    """
    _checks.floats("(batch,)", logp=logp, logp_ref=logp_ref)
    _checks.floats("(n,)", kl_logp=kl_logp, kl_logp_ref=kl_logp_ref)
    is_good = _checks.as_mask("desirable", desirable, logp=logp)
    beta = _checks.knob("beta", beta, above=0)
    lambda_d = _checks.knob("lambda_d", lambda_d, at_least=0)
    lambda_u = _checks.knob("lambda_u", lambda_u, at_least=0)
    z0 = (kl_logp - kl_logp_ref).detach().mean().clamp(min=0)
    surplus = beta * (logp - logp_ref.detach() - z0)
    # 1 − σ(x) = σ(−x), without the cancellation
    return torch.where(is_good, lambda_d * (-surplus).sigmoid(), lambda_u * surplus.sigmoid())


def _log_ratio_gap(
    chosen: Tensor, rejected: Tensor, chosen_ref: Tensor, rejected_ref: Tensor
) -> Tensor:
    _checks.floats(
        "(batch,)",
        chosen=chosen,
        rejected=rejected,
        chosen_ref=chosen_ref,
        rejected_ref=rejected_ref,
    )
    return (chosen - chosen_ref.detach()) - (rejected - rejected_ref.detach())
