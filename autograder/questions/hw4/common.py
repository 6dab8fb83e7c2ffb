"""What the questions of homework 4 share: masks of responses and dirt on their padding."""

import torch

from autograder.questions.base import Mistake


def mask_of(lengths, time: int) -> torch.Tensor:
    """bool (batch, time), True on the first ``lengths[i]`` positions of row i."""
    return torch.arange(time) < torch.tensor(lengths)[:, None]


def torn(mask):
    """The same with its first token gone and a hole in its longest row: no mask of lengths."""
    mask = mask.clone()
    mask[:, 0] = False
    mask[mask.sum(1).argmax(), 2] = False
    return mask


def prefix(mask):
    """The mask that one gets by taking the ones of each row for a length."""
    return mask_of(mask.long().sum(1).tolist(), mask.shape[1]).to(mask.dtype)


def dirty(x, mask, draw, *, hard: bool = False):
    """x with other numbers on the padding: finite ones, or (hard) NaN and both infinities."""
    dirt = 4 * draw.weights(*x.shape)
    if hard:
        unfit = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=x.dtype)
        dirt = unfit[torch.arange(x.numel()) % 3].view_as(x)
    return torch.where(mask, x, dirt)


def listed(texts: dict[str, tuple[str, ...]], lecture: str) -> tuple[Mistake, ...]:
    """{name: (cause, hint)}, all explained in one place, or (cause, hint, another place)."""
    return tuple(
        Mistake(name, cause, hint, *(place or [lecture]))
        for name, (cause, hint, *place) in texts.items()
    )
