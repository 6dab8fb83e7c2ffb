"""The loss in parts: the row's surrogate or a learner's own function, KL, entropy bonus, critic.

All parts are averaged as the row averages, with the counts of the optimiser step. They are apart
because a learner's own function replaces only the first, and because clipping is read from the
gradient of the first alone.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from llm_trainer.loss_file import own_loss
from policy_gradients.algorithms import Algorithm, Batch


def nothing(logp: Tensor) -> Tensor:
    """(batch, time) → same: what is left of a surrogate if only terms beside it are wanted."""
    return torch.zeros_like(logp)


def itself(logp: Tensor) -> Tensor:
    """(batch, time) → same: in place of a surrogate, the row averages what stands for logp."""
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
        """−entropy_coef · the row's average of the entropy of each token's distribution.

        entropy : (batch, time) nats, with gradient.
        The gradient is that of the distributions at the sampled prefixes; that a token also decides
        which prefixes come next is left out, as everywhere where this bonus is used.
        """
        return -self.entropy_coef * self.average(replace(batch, logp=entropy))
