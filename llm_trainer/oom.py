"""When memory runs out: what was being done is done once more, in pieces half as large.

Sampling and evaluation are cut by prompts, a training pass by the prompts of a micro-batch. The
smaller size stays for the rest of the run. How a training pass is cut changes its gradient by
rounding only; samples are drawn anew, from random numbers that go on where the failed attempt
stopped.
"""

import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from llm_trainer.config import RunError

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

    def run(self, work: Callable[[int], T], prompts: int) -> T:
        """work(size) on so many prompts; if memory runs out, once more in half as large pieces.

        Raises RunError, with the advice, if that is not enough either.
        """
        tried = min(self.size, prompts)
        try:
            return work(self.size)
        except RuntimeError as error:
            if not is_out_of_memory(error) or not self.retry:
                raise
        # Out here the error is gone, and with it the frames that kept the tensors of the attempt.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if tried > 1:
            self.size, self.halved = tried // 2, True
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
            f"out of memory while {self.doing}, even with {max(1, tried // 2)} prompts at once. "
            f"What was saved before is intact. Lower {self.advice}"
        )
