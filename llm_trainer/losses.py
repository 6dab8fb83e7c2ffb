"""The loss in parts: the row's surrogate or a learner's own function, KL, entropy bonus, critic.

All parts are averaged as the row averages, with the counts of the optimiser step. They are apart
because a learner's own function replaces only the first, and because clipping is read from the
gradient of the first alone.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from llm_trainer.config import ConfigError, RunError
from policy_gradients.algorithms import Algorithm, Batch


def loss_name(function: Callable | None, algorithm: str) -> str:
    """What a run records as its loss, and compares when it is resumed: a name, not the code."""
    if function is None:
        return f"{algorithm} (the row's)"
    return getattr(function, "__name__", None) or type(function).__name__


def own_loss(function: Callable, row: Algorithm) -> Callable[[Batch], Tensor]:
    """A learner's loss with the signature of `grpo_loss`, called as a row's loss is.

    It gets eps_low, eps_high and sequences by keyword, and tokens and length if it takes them.
    Raises ConfigError if it cannot be called so.
    """
    name = loss_name(function, row.name)
    fields = ("logp", "logp_old", "advantages", "mask")
    knobs = {knob: row.knobs.get(knob, 0.2) for knob in ("eps_low", "eps_high")}
    counts = ("sequences", "tokens", "length")
    try:
        signature = inspect.signature(function)
        parameters = signature.parameters.values()
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            knobs = {k: v for k, v in knobs.items() if k in signature.parameters}
            counts = [k for k in counts if k in signature.parameters]
        signature.bind(*fields, **knobs, **dict.fromkeys(counts))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"loss {name}: it is called with {', '.join(fields)} and by keyword eps_low, eps_high, "
            f"sequences, tokens, length as far as it takes them, but: {error}"
        ) from None

    def loss(batch: Batch) -> Tensor:
        mask = batch.mask.to(batch.logp.dtype)  # so that 1 - mask and mask.mean() work
        given = {count: getattr(batch, count) for count in counts}
        value = function(batch.logp, batch.logp_old, batch.advantages, mask, **knobs, **given)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise RunError(f"loss {name}: it must return a scalar tensor, got {shape}")
        return value.squeeze()

    return loss


def nothing(logp: Tensor) -> Tensor:
    """What is left of a surrogate when only the terms beside it are wanted."""
    return torch.zeros_like(logp)


def itself(logp: Tensor) -> Tensor:
    """A surrogate that only averages: the row's average of whatever stands in for logp."""
    return logp


class Loss:
    """The parts, each a function of a `policy_gradients.Batch`; None where the run has none."""

    def __init__(self, row: Algorithm, own: Callable | None, *, entropy_coef: float):
        self.entropy_coef = entropy_coef
        bare = replace(row, kl="none", kl_coefficient=0.0, value_coefficient=0.0)
        only = replace(bare, surrogate=nothing, knobs={})
        with_kl = replace(only, kl=row.kl, kl_coefficient=row.kl_coefficient)
        with_critic = replace(only, value_coefficient=row.value_coefficient)
        in_loss = row.kl == "loss" and row.kl_coefficient > 0
        self.policy = own_loss(own, bare) if own else bare.loss
        self.kl = with_kl.loss if in_loss else None
        self.critic = with_critic.loss if row.value_coefficient > 0 else None
        self.average = replace(bare, surrogate=itself, knobs={}).loss

    def bonus(self, batch: Batch, entropy: Tensor) -> Tensor:
        """−entropy_coef · the row's average of the entropy of each token's distribution, nats.

        The gradient is that of the distributions at the sampled prefixes; that a token also decides
        which prefixes come next is left out, as everywhere where this bonus is used.
        """
        return -self.entropy_coef * self.average(replace(batch, logp=entropy))
