"""The critic's loss (Lecture 07)."""

import torch
from torch import Tensor

from policy_gradients import _checks


def value_loss(
    values: Tensor, values_old: Tensor | None, returns: Tensor, *, clip: float | None = None
) -> Tensor:
    """Squared error of the critic per token, optionally with PPO's value clipping.

    ½ (V − R)²                                                        clip = None
    ½ max( (V − R)², (V_old + clamp(V − V_old, −c, c) − R)² )         clip = c  [AC-5]

    The ½ is included: the gradient without clipping is V − R. The maximum is the pessimistic
    choice: where R is more than c away from V_old, the gradient dies once V has moved more than c
    towards R, and returns only where V has overshot R by as much as the clipped value still lacks
    (V_old = 0, R = 1, c = .2: dead from .2 to 1.8). It stays where V has moved away, and everywhere
    where R is within c. Neither the ½ nor the clip is in the text of the PPO paper (its eq. 9 has
    the plain square); both come from OpenAI's Baselines (ppo2).

    Args:
        values: (batch, time) V, in the unit of the rewards.
        values_old: (batch, time) V at sampling time; detached here. May be None without clip.
        returns: (batch, time) regression targets R; detached here.
        clip: c > 0, in the unit of the rewards, or None.

    Returns:
        (batch, time) loss per token.

    Raises:
        TypeError, ValueError: wrong dtype or shape, clip ≤ 0, clip without values_old.
    """
    _checks.floats("(batch, time)", values=values, returns=returns)
    returns = returns.detach()
    error = (values - returns).square()
    if values_old is not None:
        _checks.floats("(batch, time)", values=values, values_old=values_old)
    if clip is not None:
        clip = _checks.knob("clip", clip, above=0)
        if values_old is None:
            raise ValueError("clip needs values_old, the values at sampling time; got None")
        values_old = values_old.detach()
        clipped = values_old + (values - values_old).clamp(-clip, clip)
        error = torch.maximum(error, (clipped - returns).square())
    return 0.5 * error
