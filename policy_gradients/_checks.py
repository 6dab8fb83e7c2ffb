"""Checks on entry, shared by every module: a wrong tensor ends in one sentence that names it.

A shape is written as its axes, for example "(batch, time)", and the message repeats the names
and the shapes of all tensors concerned. Shapes and values raise ValueError, dtypes TypeError.
"""

import torch
from torch import Tensor


def floats(axes: str, **tensors: Tensor) -> None:
    """Require floating tensors of one shape with the axes of `axes`, and of one dtype."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor {axes}, got {type(x).__name__}")
        if not x.is_floating_point():
            raise TypeError(
                f"{name} must be a floating tensor {axes}, got {x.dtype} of shape {_shape(x)}; "
                f"convert it first, for example with .float()"
            )
    same_shape(axes, **tensors)
    if len({x.dtype for x in tensors.values()}) > 1:
        found = ", ".join(f"{name} is {x.dtype}" for name, x in tensors.items())
        raise TypeError(f"one dtype is needed, but {found}; convert all of them to the same one")


def integers(axes: str, **tensors: Tensor) -> None:
    """Require integer tensors (token ids) of one shape with the axes of `axes`."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor {axes}, got {type(x).__name__}")
        if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
            raise TypeError(
                f"{name} must be an integer tensor {axes}, got {x.dtype} of shape {_shape(x)}"
            )
    same_shape(axes, **tensors)


def same_shape(axes: str, **tensors: Tensor) -> None:
    """Require one shape with as many axes as `axes` names."""
    rank = len(axes.strip("()").rstrip(",").split(","))
    shapes = {tuple(x.shape) for x in tensors.values()}
    if len(shapes) > 1 or len(next(iter(shapes))) != rank:
        found = ", ".join(f"{name} {_shape(x)}" for name, x in tensors.items())
        raise ValueError(f"expected shape {axes} for all of these, got {found}")


def as_mask(name: str, mask: Tensor, /, **like: Tensor) -> Tensor:
    """The mask as bool, after checking that it holds 0 and 1 only and has the shape of `like`.

    bool passes without a look at the values (which on a GPU would wait for the device).
    """
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(mask).__name__}")
    ((other, x),) = like.items()
    if mask.shape != x.shape:
        raise ValueError(
            f"{name} must have the shape of {other}: got {name} {_shape(mask)}, {other} {_shape(x)}"
        )
    if mask.dtype == torch.bool:
        return mask
    if not ((mask == 0) | (mask == 1)).all():
        raise ValueError(f"{name} {_shape(mask)} must hold only 0 and 1 (or bool)")
    return mask != 0


def advantages_for(logp: Tensor, advantages: Tensor) -> Tensor:
    """The advantages, detached, after checking that they are (batch, 1) or (batch, time)."""
    floats("(batch, time)", logp=logp)
    if not isinstance(advantages, Tensor) or not advantages.is_floating_point():
        kind = advantages.dtype if isinstance(advantages, Tensor) else type(advantages).__name__
        raise TypeError(f"advantages must be a floating tensor, got {kind}")
    if tuple(advantages.shape) not in {(logp.shape[0], 1), tuple(logp.shape)}:
        raise ValueError(
            f"advantages must be (batch, 1) or (batch, time): got advantages "
            f"{_shape(advantages)} with logp {_shape(logp)}; one number per sequence, "
            f"(prompts, group) or (batch,), becomes (batch, 1) with .reshape(-1, 1)"
        )
    if advantages.dtype != logp.dtype:
        raise TypeError(
            f"one dtype is needed, but advantages is {advantages.dtype} and logp {logp.dtype}"
        )
    return advantages.detach()


def knob(
    name: str, value: float, *, above: float | None = None, at_least: float | None = None
) -> float:
    """The number as a float, after checking its range (a NaN is outside every range)."""
    value = float(value)
    if above is not None and not value > above:
        raise ValueError(f"{name} must be greater than {above:g}, got {value:g}")
    if at_least is not None and not value >= at_least:
        raise ValueError(f"{name} must be at least {at_least:g}, got {value:g}")
    return value


def _shape(x: Tensor) -> str:
    return str(tuple(x.shape))
