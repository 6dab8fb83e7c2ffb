"""What clipping is a cheap copy of: the natural gradient, and KL penalties that adapt (Lecture 04).

Leaves out: conjugate gradients and the line search; those need a policy, not two tensors.
"""

import math

import torch
from torch import Tensor

from policy_gradients import _checks


def natural_gradient_step(grad: Tensor, fisher: Tensor, *, delta: float) -> Tensor:
    """The step that gains most while the quadratic model of the KL stays at delta.

    θ ← θ + √(2δ / (gᵀF⁺g)) F⁺g

    F⁺ is the pseudo-inverse: softmax logits have a direction that changes nothing, so F is
    singular. The bound holds for the model ½ΔᵀFΔ of the KL, not for the KL: check it and
    shorten the step (a line search). Schulman et al. 2015 (TRPO, arXiv 1502.05477), appendix C;
    Kakade 2001 (NIPS 2001); Lecture 04 [TR-3].

    Args:
        grad: (parameters,) gradient g of the objective, to be ascended.
        fisher: (parameters, parameters) Fisher matrix F, symmetric, positive semi-definite.
        delta: trust region δ > 0, nats.

    Returns:
        (parameters,) the step; 0 where g has no part that F can measure.

    Raises:
        TypeError, ValueError: wrong dtype or shape, delta ≤ 0.
    """
    _checks.floats("(parameters,)", grad=grad)
    _checks.floats("(parameters, parameters)", fisher=fisher)
    if fisher.shape != (len(grad), len(grad)) or fisher.dtype != grad.dtype:
        raise ValueError(
            f"fisher must be (parameters, parameters) for grad (parameters,), of one dtype: got "
            f"grad {tuple(grad.shape)} {grad.dtype}, fisher {tuple(fisher.shape)} {fisher.dtype}"
        )
    delta = _checks.knob("delta", delta, above=0)
    direction = torch.linalg.pinv(fisher, hermitian=True) @ grad
    squared_length = grad @ direction
    if not squared_length > 0:
        return torch.zeros_like(grad)
    return (2 * delta / squared_length).sqrt() * direction


def adaptive_beta(
    beta: float, kl: float, *, target: float, factor: float = 2.0, band: float = 1.5
) -> float:
    """The KL coefficient after one update, by doubling and halving (PPO-penalty).

    kl > band · target: β ← β · factor;  kl < target / band: β ← β / factor;  else unchanged

    Schulman et al. 2017 (PPO, arXiv 1707.06347), section 4; [TR-7]. One of three forms in use;
    `adaptive_beta_dual_ascent` and `adaptive_beta_proportional` are the others.

    Args:
        beta: coefficient of this update, > 0 (from 0 a factor never leads away).
        kl: measured KL(π_old‖π) of this update, nats.
        target: wanted KL, nats, > 0.
        factor: how fast β moves, > 1.
        band: how far the KL may be off without a reaction, ≥ 1.

    Returns:
        the coefficient of the next update.

    Raises:
        ValueError: a number outside its range, or NaN.
    """
    beta, kl = _checks.knob("beta", beta, above=0), _kl(kl)
    target = _checks.knob("target", target, above=0)
    factor = _checks.knob("factor", factor, above=1)
    band = _checks.knob("band", band, at_least=1)
    if kl > band * target:
        return beta * factor
    if kl < target / band:
        return beta / factor
    return beta


def adaptive_beta_dual_ascent(beta: float, kl: float, *, target: float, step_size: float) -> float:
    """The KL coefficient after one update, as the Lagrange multiplier of KL ≤ target.

    β ← max(0, β + step_size · (kl − target))

    Textbook dual ascent, a projected gradient step on the multiplier; no single paper's rule.
    The projection is part of it: without it β turns negative, and a negative penalty rewards
    leaving the trust region.

    Args:
        beta: coefficient of this update, ≥ 0.
        kl: measured KL of this update, nats.
        target: wanted KL, nats, > 0.
        step_size: learning rate of β, per nat, > 0.

    Returns:
        the coefficient of the next update, ≥ 0.

    Raises:
        ValueError: a number outside its range, or NaN.
    """
    beta, kl = _checks.knob("beta", beta, at_least=0), _kl(kl)
    target = _checks.knob("target", target, above=0)
    step_size = _checks.knob("step_size", step_size, above=0)
    return max(0.0, beta + step_size * (kl - target))


def adaptive_beta_proportional(
    beta: float, kl: float, *, target: float, gain: float = 0.1, limit: float = 0.2
) -> float:
    """The KL coefficient after one update, by a proportional controller with a bounded error.

    e = clamp((kl − target)/target, −limit, limit);  β ← β (1 + gain · e)

    Ziegler et al. 2019 (arXiv 1909.08593), section 2.2, where it steers KL(π‖π_ref).

    Args:
        beta: coefficient of this update, > 0 (from 0 a factor never leads away).
        kl: measured KL of this update, nats per sequence there.
        target: wanted KL, in the unit of kl, > 0.
        gain: K_β, how strongly β reacts, > 0.
        limit: largest relative error that is believed, > 0.

    Returns:
        the coefficient of the next update.

    Raises:
        ValueError: a number outside its range, or NaN.
    """
    beta, kl = _checks.knob("beta", beta, above=0), _kl(kl)
    target = _checks.knob("target", target, above=0)
    gain = _checks.knob("gain", gain, above=0)
    limit = _checks.knob("limit", limit, above=0)
    error = max(-limit, min(limit, (kl - target) / target))
    return beta * (1 + gain * error)


def _kl(kl: float) -> float:
    """The measured KL as a finite number (estimates may be negative)."""
    kl = float(kl)
    if not math.isfinite(kl):
        raise ValueError(f"kl must be finite, got {kl}")
    return kl
