"""From scored responses to what one optimiser step is computed on.

Two kinds of axes: `(prompts, …)` has one row per prompt, `(batch, …)` has G rows per prompt,
neighbours. `take` picks whole groups, so a group is never split over micro-batches. The counts
that every denominator uses (`sequences`, `total_tokens`) are fixed before anything is dropped or
cut, so neither can change the gradient.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

PER_ROW = (
    "tokens", "mask", "logp_sampler", "loss_mask", "advantages", "logp_old", "logp_ref",
    "values_old", "returns",
)  # fmt: skip


@dataclass
class Prompts:
    """P prompts, padded on the left so that all responses start in one column."""

    tokens: Tensor  # (prompts, prompt_time)
    attention: Tensor  # (prompts, prompt_time), 1 on real tokens

    @property
    def positions(self) -> Tensor:
        """(prompts, prompt_time): 0, 1, 2, … from the first real token on."""
        return (self.attention.cumsum(1) - 1).clamp(min=0)

    @property
    def lengths(self) -> Tensor:
        """(prompts,)"""
        return self.attention.sum(1)

    def __getitem__(self, rows) -> "Prompts":
        return Prompts(self.tokens[rows], self.attention[rows])

    def split(self, prompts: int) -> Iterator["Prompts"]:
        """Pieces of so many prompts, each only as wide as its longest."""
        for start in range(0, len(self.tokens), prompts):
            piece = self[start : start + prompts]
            width = int(piece.lengths.max())
            yield Prompts(piece.tokens[:, -width:], piece.attention[:, -width:])


@dataclass
class Responses:
    """B = P·G responses; those to one prompt are neighbours."""

    tokens: Tensor  # (batch, time), pad after the first end token
    mask: Tensor  # (batch, time), 1 up to and including the first end token
    logp: Tensor  # (batch, time), the sampler's log-probabilities in nats, 0 on padding


@dataclass(frozen=True)
class StepBatch:
    """Responses in groups, and the counts of the whole optimiser step they belong to."""

    prompts: Prompts  # (prompts, prompt_time)
    rewards: Tensor  # (prompts, group)
    correct: Tensor  # (prompts, group), 1 where the answer is exactly right
    tokens: Tensor  # (batch, time)
    mask: Tensor  # (batch, time), true on response tokens, the first end token included
    logp_sampler: Tensor  # (batch, time), nats
    # what the rewards are made of, (prompts, group) each: logged, and in a step record
    parts: dict[str, Tensor] = field(default_factory=dict)
    # set by Learner.measure
    sequences: int = 0  # responses of the whole update
    total_tokens: int = 0  # response tokens of the whole update
    loss_mask: Tensor | None = None  # (batch, time), the mask without responses kept from the loss
    advantages: Tensor | None = None  # (batch, 1) or (batch, time)
    logp_old: Tensor | None = None  # (batch, time), the ratio's denominator
    logp_ref: Tensor | None = None  # (batch, time), only with a KL term
    values_old: Tensor | None = None  # (batch, time), only with a critic
    returns: Tensor | None = None  # (batch, time), what the critic should have said

    @property
    def group(self) -> int:
        return self.rewards.shape[1]

    @property
    def indices(self) -> Tensor:
        """(prompts,): 0, 1, 2, …"""
        return torch.arange(len(self.rewards), device=self.rewards.device)

    def take(self, index: Tensor) -> "StepBatch":
        """The groups of these prompts, cut to their longest response; the counts stay.

        index : (n,) integers, or (prompts,) bool
        """
        if index.dtype == torch.bool:
            index = index.nonzero().squeeze(1)
        member = torch.arange(self.group, device=index.device)
        rows = (index[:, None] * self.group + member).flatten()  # (n·group,)
        time = int(self.mask[rows].sum(1).max()) if len(rows) else 0
        changes = {name: getattr(self, name)[index] for name in ("prompts", "rewards", "correct")}
        changes["parts"] = {name: part[index] for name, part in self.parts.items()}
        for name in PER_ROW:
            if getattr(self, name) is not None:
                changes[name] = getattr(self, name)[rows, :time]
        return replace(self, **changes)

    def micro_batches(self, prompts: int) -> Iterator["StepBatch"]:
        """Pieces of `prompts` groups (the last may be smaller); none of an empty batch."""
        return (self.take(index) for index in self.indices.split(prompts) if len(index))


def join(batches: list[StepBatch], pad_id: int) -> StepBatch:
    """Several rounds of sampling as one, padded to the widest; only before `Learner.measure`."""
    prompts = [b.prompts for b in batches]
    return StepBatch(
        prompts=Prompts(
            cat_padded([p.tokens for p in prompts], value=pad_id, left=True),
            cat_padded([p.attention for p in prompts], left=True),
        ),
        rewards=torch.cat([b.rewards for b in batches]),
        correct=torch.cat([b.correct for b in batches]),
        parts={name: torch.cat([b.parts[name] for b in batches]) for name in batches[0].parts},
        tokens=cat_padded([b.tokens for b in batches], value=pad_id),
        mask=cat_padded([b.mask for b in batches]),
        logp_sampler=cat_padded([b.logp_sampler for b in batches]),
    )


def cat_padded(tensors: list[Tensor], *, value: int = 0, left: bool = False) -> Tensor:
    """(n, time) tensors of unequal time, one below the other, padded to the longest."""
    width = max(x.shape[1] for x in tensors)
    missing = [width - x.shape[1] for x in tensors]
    sides = [(n, 0) if left else (0, n) for n in missing]
    padded = [F.pad(x, side, value=value) for x, side in zip(tensors, sides, strict=True)]
    return torch.cat(padded)
