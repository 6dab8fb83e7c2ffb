"""The objective per token whose gradient is the policy gradient, and how each bounds the update.

Every function returns a loss per token (batch, time), to be minimised; averaging is a separate
choice (`aggregation`). Advantages are (batch, 1), one number per response, or (batch, time), and
are constants: they and the old log-probabilities are detached here. With A > 0, ρ the token
ratio and g = ∂loss/∂log π, the functions differ in g:

    reinforce   −A                                 no ratio
    unclipped   −A ρ                               no bound
    ppo_clip    −A ρ, or 0 beyond the edge         hard gate per token
    gspo        −A s/|y|, or 0 beyond the edge     hard gate per sequence (after its average)
    cispo       −A min(ρ, 1 + ε)                   the weight is bounded, no gate
    sapo        −A ρ · 4σ(τ(ρ−1))σ(−τ(ρ−1))        soft gate per token

Padding may hold any finite numbers; the masked averages of `aggregation` drop it.
"""

import torch
from torch import Tensor

from policy_gradients import _checks
from policy_gradients.ratios import sequence_ratio, token_ratio


def reinforce(logp: Tensor, advantages: Tensor) -> Tensor:
    """The plain policy-gradient loss: −A log π(y_t | s_t).  [PG-6]

    Its value means nothing (it is no objective); its gradient is the policy gradient, and only
    for samples of the current policy. Williams 1992.

    Args:
        logp: (batch, time) log-probabilities of the sampled tokens, nats.
        advantages: (batch, 1) or (batch, time); detached.

    Returns:
        (batch, time) loss per token.

    Raises:
        TypeError, ValueError: wrong dtype or shape.
    """
    return -_checks.advantages_for(logp, advantages) * logp


def unclipped(logp: Tensor, logp_old: Tensor, advantages: Tensor) -> Tensor:
    """The importance-sampled surrogate: −A ρ.  [RC-4]

    At π = π_old its gradient is that of `reinforce` [RC-5]; away from it nothing bounds the step.
    Kakade and Langford 2002; Schulman et al. 2015 (TRPO, arXiv 1502.05477), eq. 14.

    Args:
        logp: (batch, time) log-probabilities under the policy being trained, nats.
        logp_old: (batch, time) log-probabilities at sampling time, nats; detached.
        advantages: (batch, 1) or (batch, time); detached.

    Returns:
        (batch, time) loss per token.

    Raises:
        TypeError, ValueError: wrong dtype or shape.
    """
    return -_checks.advantages_for(logp, advantages) * token_ratio(logp, logp_old)


def ppo_clip(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    *,
    eps_low: float,
    eps_high: float,
    dual_clip: float | None = None,
) -> Tensor:
    """PPO's clipped objective, negated: −min(ρA, clamp(ρ, 1 − ε_low, 1 + ε_high) A).  [RC-6]

    The gradient is that of `unclipped`, but 0 where the update has already gone past the edge in
    the direction the advantage asks for: A > 0 and ρ > 1 + ε_high, or A < 0 and ρ < 1 − ε_low
    [RC-7]. A larger ε_high is DAPO's clip-higher [RC-8]. For A < 0 the ratio is not bounded from
    above; dual_clip = c stops that by max(·, cA) [RC-9].

    Schulman et al. 2017 (arXiv 1707.06347), eq. 7; Yu et al. 2025 (DAPO, arXiv 2503.14476),
    eq. 10; Ye et al. 2020 (dual clip, arXiv 1912.09729).

    Args:
        logp: (batch, time) log-probabilities under the policy being trained, nats.
        logp_old: (batch, time) log-probabilities at sampling time, nats; detached.
        advantages: (batch, 1) or (batch, time); detached.
        eps_low, eps_high: distance of the edges from ratio 1, ≥ 0.
        dual_clip: c > 1, or None.

    Returns:
        (batch, time) loss per token.

    Raises:
        TypeError, ValueError: wrong dtype or shape, a knob outside its range.
    """
    advantages = _checks.advantages_for(logp, advantages)
    objective = _clipped(token_ratio(logp, logp_old), advantages, eps_low, eps_high)
    if dual_clip is not None:
        floor = _checks.knob("dual_clip", dual_clip, above=1) * advantages
        objective = torch.where(advantages < 0, torch.maximum(objective, floor), objective)
    return -objective


def gspo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float,
    eps_high: float,
) -> Tensor:
    """Clipping per sequence: −min(sA, clamp(s, 1 − ε_low, 1 + ε_high) A), s the `sequence_ratio`.

    The sequence's term stands on each of its tokens, so that mean_per_sequence gives the paper's
    loss. All tokens of a response pass the gate together, or none does. s is a geometric mean,
    hence close to 1, and ε lives on another scale than PPO's (3e-4 and 4e-4 in the paper).

    Zheng et al. 2025 (GSPO, arXiv 2507.18071), eq. 5 and 7; Lecture 10 [VAR-2].

    Args:
        logp: (batch, time) log-probabilities under the policy being trained, nats.
        logp_old: (batch, time) log-probabilities at sampling time, nats; detached.
        advantages: (batch, 1) (or (batch, time)); detached.
        mask: (batch, time) 1 on response tokens.
        eps_low, eps_high: distance of the edges from ratio 1, ≥ 0.

    Returns:
        (batch, time) loss per token.

    Raises:
        TypeError, ValueError: wrong dtype or shape, a knob outside its range.
    """
    advantages = _checks.advantages_for(logp, advantages)
    objective = _clipped(sequence_ratio(logp, logp_old, mask), advantages, eps_low, eps_high)
    return -objective.expand(logp.shape)


def cispo(
    logp: Tensor, logp_old: Tensor, advantages: Tensor, *, eps_low: float, eps_high: float
) -> Tensor:
    """REINFORCE with a bounded, constant weight: −sg[clamp(ρ, 1 − ε_low, 1 + ε_high)] A log π.

    sg = no gradient. No token is ever gated; its weight is bounded instead.  [VAR-3]

    MiniMax 2025 (MiniMax-M1, arXiv 2506.13585), eq. 4 and 5, whose convention is followed: the
    bounds are distances from 1, and eps_low = 1 means no lower bound. Other code passes the
    largest weight itself under the same name.

    Args:
        logp: (batch, time) log-probabilities under the policy being trained, nats.
        logp_old: (batch, time) log-probabilities at sampling time, nats; detached.
        advantages: (batch, 1) or (batch, time); detached.
        eps_low, eps_high: distance of the bounds from ratio 1, ≥ 0.

    Returns:
        (batch, time) loss per token.

    Raises:
        TypeError, ValueError: wrong dtype or shape, a knob outside its range.
    """
    advantages = _checks.advantages_for(logp, advantages)
    weight = _clamp(token_ratio(logp.detach(), logp_old), eps_low, eps_high)
    return -weight * advantages * logp


def sapo(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    *,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
) -> Tensor:
    """A soft gate in place of the clip: −A (4/τ) σ(τ(ρ − 1)), τ = tau_pos if A > 0, else tau_neg.

    The factor 4/τ makes the slope at ρ = 1 equal to 1, so the first step is that of `unclipped`.
    Gao et al. 2025 (SAPO, arXiv 2511.20347), with its τ of 1 and 1.05; Lecture 10 [VAR-4].

    Args:
        logp: (batch, time) log-probabilities under the policy being trained, nats.
        logp_old: (batch, time) log-probabilities at sampling time, nats; detached.
        advantages: (batch, 1) or (batch, time); detached.
        tau_pos, tau_neg: how fast the gate closes away from ratio 1, > 0.

    Returns:
        (batch, time) loss per token.

    Raises:
        TypeError, ValueError: wrong dtype or shape, a knob outside its range.
    """
    advantages = _checks.advantages_for(logp, advantages)
    tau_pos = _checks.knob("tau_pos", tau_pos, above=0)
    tau_neg = _checks.knob("tau_neg", tau_neg, above=0)
    # full_like: where() of two Python numbers would fall back to torch's default dtype
    tau = torch.where(advantages > 0, tau_pos, torch.full_like(advantages, tau_neg))
    gate = 4 / tau * (tau * (token_ratio(logp, logp_old) - 1)).sigmoid()
    return -advantages * gate


def _clamp(ratio: Tensor, eps_low: float, eps_high: float) -> Tensor:
    eps_low = _checks.knob("eps_low", eps_low, at_least=0)
    eps_high = _checks.knob("eps_high", eps_high, at_least=0)
    return ratio.clamp(1 - eps_low, 1 + eps_high)


def _clipped(ratio: Tensor, advantages: Tensor, eps_low: float, eps_high: float) -> Tensor:
    """min(ρA, clamp(ρ)A), the objective that PPO and GSPO maximise."""
    return torch.minimum(ratio * advantages, _clamp(ratio, eps_low, eps_high) * advantages)
