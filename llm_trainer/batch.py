"""From scored responses to what one optimiser step is computed on.

`Experience` is everything known about P·G responses after sampling. `StepBatch` is the part of it
that an optimiser step computes on, cut into pieces of whole groups by `micro_batches`. The counts
that every denominator uses (`sequences`, `total_tokens`) are taken before anything is dropped or
cut, so neither can change the gradient.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_trainer.rollout import Prompts
from llm_trainer.task import Rewards


@dataclass(frozen=True)
class Experience:
    """P prompts with G responses each; B = P·G, a group's responses are neighbours."""

    prompts: Prompts  # (prompts, prompt_time)
    tokens: Tensor  # (batch, time)
    mask: Tensor  # (batch, time), true on response tokens, the first end token included
    logp_sampler: Tensor  # (batch, time), nats
    rewards: Tensor  # (prompts, group)
    correct: Tensor  # (prompts, group), 1 where the answer is exactly right
    parts: list[Rewards]  # one per response
    texts: list[str]  # one per response
    words: list[str]  # one per prompt
    truncated: Tensor  # (batch,), true where the token limit came before the end token

    @property
    def group(self) -> int:
        return self.rewards.shape[1]

    @property
    def sequences(self) -> int:
        return len(self.tokens)

    def select(self, keep: Tensor) -> "Experience":
        """Only the prompts where `keep` (prompts,) is true, with their whole groups."""
        rows = keep.repeat_interleave(self.group)
        chosen, chosen_rows = keep.nonzero().squeeze(1).tolist(), rows.nonzero().squeeze(1).tolist()
        return replace(
            self,
            prompts=self.prompts[keep],
            tokens=self.tokens[rows],
            mask=self.mask[rows],
            logp_sampler=self.logp_sampler[rows],
            rewards=self.rewards[keep],
            correct=self.correct[keep],
            parts=[self.parts[i] for i in chosen_rows],
            texts=[self.texts[i] for i in chosen_rows],
            words=[self.words[i] for i in chosen],
            truncated=self.truncated[rows],
        )


@dataclass(frozen=True)
class StepBatch:
    """The rows of one optimiser step that are computed on, and the counts of the whole step."""

    prompts: Prompts  # (prompts, prompt_time)
    tokens: Tensor  # (batch, time)
    mask: Tensor  # (batch, time)
    advantages: Tensor  # (batch, 1)
    logp_sampler: Tensor  # (batch, time)
    logp_old: Tensor  # (batch, time), the ratio's denominator
    logp_ref: Tensor | None  # (batch, time), only with a KL term
    group: int
    sequences: int  # of the whole step, groups without signal included
    total_tokens: int  # response tokens of the whole step

    def select(self, keep: Tensor) -> "StepBatch":
        """Only the groups where `keep` (prompts,) is true; the counts stay the whole step's."""
        rows = keep.repeat_interleave(self.group)
        return replace(
            self,
            prompts=self.prompts[keep],
            tokens=self.tokens[rows],
            mask=self.mask[rows],
            advantages=self.advantages[rows],
            logp_sampler=self.logp_sampler[rows],
            logp_old=self.logp_old[rows],
            logp_ref=None if self.logp_ref is None else self.logp_ref[rows],
        )

    def micro_batches(self, prompts: int) -> Iterator["StepBatch"]:
        """Pieces of `prompts` whole groups (the last may be smaller), same counts."""
        for start in range(0, len(self.prompts.tokens), prompts):
            yield self.rows(start, start + prompts)

    def rows(self, first: int, last: int) -> "StepBatch":
        """The groups of prompts first … last − 1, cut to their longest response."""
        part = slice(first * self.group, last * self.group)
        time = int(self.mask[part].sum(1).max())

        def cut(x):
            return None if x is None else x[part, :time]

        return replace(
            self,
            prompts=self.prompts[first:last],
            tokens=cut(self.tokens),
            mask=cut(self.mask),
            advantages=self.advantages[part],
            logp_sampler=cut(self.logp_sampler),
            logp_old=cut(self.logp_old),
            logp_ref=cut(self.logp_ref),
        )


def join(rounds: list[Experience], pad_id: int) -> Experience:
    """Several rounds of sampling as one, padded to the widest."""
    prompt_time = max(r.prompts.tokens.shape[1] for r in rounds)
    time = max(r.tokens.shape[1] for r in rounds)

    def stack(tensors: list[Tensor], *, left: int = 0, right: int = 0, value=0) -> Tensor:
        width = left or right
        return torch.cat(
            [
                F.pad(x, (width - x.shape[1], 0) if left else (0, width - x.shape[1]), value=value)
                for x in tensors
            ]
        )

    return Experience(
        prompts=Prompts(
            stack([r.prompts.tokens for r in rounds], left=prompt_time, value=pad_id),
            stack([r.prompts.attention for r in rounds], left=prompt_time),
        ),
        tokens=stack([r.tokens for r in rounds], right=time, value=pad_id),
        mask=stack([r.mask for r in rounds], right=time),
        logp_sampler=stack([r.logp_sampler for r in rounds], right=time),
        rewards=torch.cat([r.rewards for r in rounds]),
        correct=torch.cat([r.correct for r in rounds]),
        parts=[part for r in rounds for part in r.parts],
        texts=[text for r in rounds for text in r.texts],
        words=[word for r in rounds for word in r.words],
        truncated=torch.cat([r.truncated for r in rounds]),
    )
