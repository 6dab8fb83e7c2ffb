"""What is done to groups and answers before the loss: dynamic sampling, overlong answers."""

import torch
from torch import Tensor

from policy_gradients import _checks


def dapo_filter(correctness: Tensor, *, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Which groups to keep: those that are neither all wrong nor all right.

    keep = not (all = low) and not (all = high)

    Yu et al. 2025 (DAPO, arXiv 2503.14476), eq. 11; Lecture 08 [GR-4]. Judge correctness, not the
    shaped reward: length penalties make two all-wrong answers differ. The paper knows only right
    and wrong; scores between are this function's extension, and a group of equal ones is kept,
    although its advantages are 0. Resampling until a batch is full is the caller's, and needs a
    bound.

    Args:
        correctness: (prompts, group) scores between low and high; any dtype.
        low: score of a wrong answer.
        high: score of a right answer.

    Returns:
        (prompts,) bool, True = keep.

    Raises:
        TypeError, ValueError: not a tensor of two axes, low ≥ high.
    """
    if not isinstance(correctness, Tensor):
        raise TypeError(f"correctness must be a torch.Tensor, got {type(correctness).__name__}")
    _checks.same_shape("(prompts, group)", correctness=correctness)
    if not low < high:
        raise ValueError(f"low must be below high, got low={low}, high={high}")
    return ~((correctness == low).all(1) | (correctness == high).all(1))


def overlong_penalty(lengths: Tensor, *, max_length: int, cache: int) -> Tensor:
    """Soft punishment of answers that come close to the length limit, to be added to the reward.

    0                                     length ≤ max_length − cache
    (max_length − cache − length)/cache   up to max_length
    −1                                    beyond

    Yu et al. 2025 (DAPO, arXiv 2503.14476), eq. 13; Lecture 09 [AGG-6].

    Args:
        lengths: (batch,) or any shape; answer lengths in tokens.
        max_length: the limit, in tokens.
        cache: width of the ramp before the limit, in tokens, 0 < cache ≤ max_length.

    Returns:
        the shape of lengths, in [−1, 0]; integer lengths give torch's default dtype.

    Raises:
        TypeError, ValueError: not a tensor, a knob outside its range.
    """
    if not isinstance(lengths, Tensor):
        raise TypeError(f"lengths must be a torch.Tensor, got {type(lengths).__name__}")
    cache = _checks.knob("cache", cache, above=0)
    max_length = _checks.knob("max_length", max_length, at_least=cache)
    if not lengths.is_floating_point():
        lengths = lengths.to(torch.get_default_dtype())
    return ((max_length - cache - lengths) / cache).clamp(-1.0, 0.0)
