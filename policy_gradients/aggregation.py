"""From a loss per token to one number: who weighs more, a short answer or a long one? (Lecture 09)

Four averages of the same per-token loss. They differ only in the weight of one token:

    mean_per_sequence   1 / (sequences · |y_i|)     GRPO
    mean_per_token      1 / tokens                  DAPO
    mean_fixed_length   1 / (sequences · length)    Dr. GRPO
    sum_per_sequence    1 / sequences               the exact policy gradient of log π(y)

A denominator belongs to the optimiser step, not to the slice that fits into memory. With the
counts of the whole step given (`sequences`, `tokens`), the losses of the micro-batches add up to
the loss of the one big batch, and so do their gradients.

Masked entries may hold anything, NaN and inf included: they are replaced by 0 before any
arithmetic, so neither the value nor the gradient feels them.
"""

import torch
from torch import Tensor

from policy_gradients import _checks


def mean_per_sequence(x: Tensor, mask: Tensor, *, sequences: float | None = None) -> Tensor:
    """Mean over the tokens of each sequence, then mean over the sequences.

    (1/N) Σ_i (1/|y_i|) Σ_t x_it; an empty sequence adds 0 and still counts in N.  [AGG-1]

    Shao et al. 2024 (DeepSeekMath, arXiv 2402.03300), eq. 3. A token of a long answer weighs
    less than a token of a short one: with negative advantages long answers are favoured.

    Args:
        x: (batch, time) one number per token.
        mask: (batch, time) 1 on response tokens.
        sequences: N, the sequences of the whole optimiser step; None = this batch.

    Returns:
        scalar, in the unit of x.

    Raises:
        TypeError, ValueError: wrong dtype or shape, a count ≤ 0.
    """
    valid, x = _valid(x, mask)
    lengths = valid.sum(1).clamp(min=1)
    return (x.sum(1) / lengths).sum() / _count("sequences", sequences, len(x))


def mean_per_token(x: Tensor, mask: Tensor, *, tokens: float | None = None) -> Tensor:
    """Mean over all response tokens of the optimiser step.

    (1/N) Σ_i Σ_t x_it with N the number of response tokens.  [AGG-2]

    Yu et al. 2025 (DAPO, arXiv 2503.14476), section 3.3, eq. 12.

    Args:
        x: (batch, time) one number per token.
        mask: (batch, time) 1 on response tokens.
        tokens: N, the response tokens of the whole optimiser step; None = this batch (at
            least 1).

    Returns:
        scalar, in the unit of x.

    Raises:
        TypeError, ValueError: wrong dtype or shape, a count ≤ 0.
    """
    valid, x = _valid(x, mask)
    here = None if tokens is not None else int(valid.sum())
    return x.sum() / _count("tokens", tokens, here)


def mean_fixed_length(
    x: Tensor, mask: Tensor, *, length: float, sequences: float | None = None
) -> Tensor:
    """Sum over the tokens divided by a constant length, then mean over the sequences.

    (1/N) Σ_i (1/L) Σ_t x_it with L a constant, for example the generation budget.  [AGG-3]

    Liu et al. 2025 (Dr. GRPO, arXiv 2503.20783), section 3.2 and listing 1. Every token
    weighs the same, and the weight does not depend on what was sampled.

    Args:
        x: (batch, time) one number per token.
        mask: (batch, time) 1 on response tokens.
        length: L, in tokens; a constant of the run, never the width of the padded batch.
        sequences: N, the sequences of the whole optimiser step; None = this batch.

    Returns:
        scalar, in the unit of x.

    Raises:
        TypeError, ValueError: wrong dtype or shape, length ≤ 0, a count ≤ 0.
    """
    return sum_per_sequence(x, mask, sequences=sequences) / _checks.knob("length", length, above=0)


def sum_per_sequence(x: Tensor, mask: Tensor, *, sequences: float | None = None) -> Tensor:
    """Sum over the tokens of each sequence, then mean over the sequences.

    (1/N) Σ_i Σ_t x_it: with x = −A log π this is the policy gradient of whole sequences,
    without a length bias [PG-6], [AGG-7].

    Args:
        x: (batch, time) one number per token.
        mask: (batch, time) 1 on response tokens.
        sequences: N, the sequences of the whole optimiser step; None = this batch.

    Returns:
        scalar, in the unit of x times tokens.

    Raises:
        TypeError, ValueError: wrong dtype or shape, a count ≤ 0.
    """
    _, x = _valid(x, mask)
    return x.sum() / _count("sequences", sequences, len(x))


def _valid(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The mask as bool, and x with 0 where the mask is 0."""
    _checks.floats("(batch, time)", x=x)
    valid = _checks.as_mask("mask", mask, x=x)
    return valid, torch.where(valid, x, 0.0)


def _count(name: str, given: float | None, here: int | None) -> float:
    """The count of the whole optimiser step where given, else that of this batch, at least 1."""
    return max(here, 1) if given is None else _checks.knob(name, given, above=0)
