"""When memory runs out: what was being done is done once more, in pieces half as large.

Sampling is cut by prompts, a training pass by the prompts of a micro-batch. The smaller size stays
for the rest of the run. How a training pass is cut changes its gradient by rounding only; samples
are drawn anew, from random numbers that go on where the failed attempt stopped.
"""

import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_trainer.config import RunError
from llm_trainer.models import Policy
from llm_trainer.rollout import Prompts, Responses, Sampler

T = TypeVar("T")


def is_out_of_memory(error: BaseException) -> bool:
    """On a GPU torch has a class for it, on a CPU only a text."""
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "allocate memory" in str(error)
    )


@dataclass
class Room:
    """How many prompts are worked on at once."""

    size: int
    doing: str
    advice: str
    halved: bool = False
    retry: bool = True  # false where passes involve other processes, who would make another number

    def run(self, work: Callable[[int], T]) -> T:
        """work(size); if memory runs out, once more with half of it.

        Raises RunError, with the advice, if that is not enough either.
        """
        try:
            return work(self.size)
        except RuntimeError as error:
            if not is_out_of_memory(error) or not self.retry:
                raise
        # Out here the error is gone, and with it the frames that kept the tensors of the attempt.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self.size > 1:
            self.size, self.halved = self.size // 2, True
            warnings.warn(
                f"out of memory while {self.doing}: {self.size} prompts at once from here on",
                stacklevel=2,
            )
            try:
                return work(self.size)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
        raise RunError(
            f"out of memory while {self.doing}, even with {self.size} prompts at once; the last "
            f"checkpoint is intact. Lower {self.advice}"
        )


@dataclass(frozen=True)
class InRoom:
    """A sampler that writes as many prompts' responses at once as there is room for."""

    sampler: Sampler
    room: Room

    @property
    def policy(self) -> Policy:
        return self.sampler.policy

    def sync(self) -> None:
        self.sampler.sync()

    def sample(self, prompts: Prompts, **settings) -> Responses:
        count = len(prompts.tokens)

        def sample(size: int) -> list[Responses]:
            starts = range(0, count, size)
            return [self.sampler.sample(prompts[i : i + size], **settings) for i in starts]

        pieces = self.room.run(sample)
        width = max(piece.tokens.shape[1] for piece in pieces)

        def join(pick: Callable[[Responses], Tensor], *, value: int = 0) -> Tensor:
            return torch.cat(
                [F.pad(x, (0, width - x.shape[1]), value=value) for x in map(pick, pieces)]
            )

        return Responses(
            join(lambda r: r.tokens, value=self.policy.pad_id),
            join(lambda r: r.mask),
            join(lambda r: r.logp),
        )
