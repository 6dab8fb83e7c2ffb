"""Several processes, one per device, that together make the step one process would make.

    accelerate launch --multi_gpu --num_processes 2 -m llm_trainer train --config ...

The work is shared out, the step is not: each process writes the responses to its part of the
prompts, then all hold the whole batch. Rewards, advantages, whitening, counts, minibatches, metrics
and invariants are computed from it everywhere, by the same code as on one device, so nothing can be
a mean over a part. Only passes of the network are shared out again, by whole prompts, and their
results put together: log-probabilities and values of `Learner.frozen`, and gradients, which are
*summed*, because every loss already divides by the counts of the whole step.

With `shard` the weights, too, are split over the processes: `sharded.py`.

What stops a run is decided from gathered numbers, so by all alike: an invariant, a number that is
not finite, no signal, Ctrl-C. What fails on one process alone (memory, a full disk) ends it, and
the others at their next exchange.

Left out: processes of unequal speed or on different kinds of device, tensor and pipeline parallel.
"""

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from llm_trainer.config import Config, RunError, require, with_values
from llm_trainer.models import pick_device

T = TypeVar("T")
BUCKET = 64 * 2**20  # bytes of gradients that travel at once


@dataclass(frozen=True)
class Devices:
    """This process among those of the run. One process alone: every method is trivial."""

    rank: int = 0
    world: int = 1
    device: str = "cpu"  # or cuda: this process's own GPU is the current one
    shard: bool = False

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and the console."""
        return self.rank == 0

    def share(self, items: T) -> T:
        """This process's part of a list or tensor: neighbours, as many as the others' or one more.

        All parts, in the order of ranks, are the whole.
        """
        bounds = [len(items) * rank // self.world for rank in (self.rank, self.rank + 1)]
        return items[bounds[0] : bounds[1]]

    def everyone(self, thing: T) -> list[T]:
        """What each process has in this place, in the order of ranks; tensors on this device.

        Raises RunError if another process is gone.
        """
        if self.world == 1:
            return [thing]
        buffer, found = io.BytesIO(), [b""] * self.world
        torch.save(thing, buffer)
        with talking():
            dist.all_gather_object(found, buffer.getvalue())
        return [
            torch.load(io.BytesIO(data), map_location=self.device, weights_only=False)
            for data in found
        ]

    def any(self, flag: bool) -> bool:
        """Whether it is true on one process at least."""
        return any(self.everyone(flag))

    def in_turn(self, work: Callable[[], T]) -> T:
        """The first process does it, then the others, who find what it left in a cache."""
        result = work() if self.first else None
        self.everyone(None)
        return result if self.first else work()

    def sum_gradients(self, weights: list[nn.Parameter]) -> None:
        """In every `.grad` the sum over processes; one that is missing here counts as 0."""
        if self.world == 1:
            return
        split = [w for w in weights if is_split(w)]
        for weight in split:
            if weight.grad is not None:
                weight.grad.mul_(self.world)  # FSDP has averaged them
        whole = [w for w in weights if not is_split(w)]
        has = self.everyone([w.grad is not None for w in whole])
        for weight, anywhere in zip(whole, map(any, zip(*has, strict=True)), strict=True):
            if anywhere and weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        for bucket in buckets([w.grad for w in whole if w.grad is not None]):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            with talking():
                dist.all_reduce(flat)  # a sum: the losses divide by counts of the whole step
            pieces = flat.split([gradient.numel() for gradient in bucket])
            for gradient, piece in zip(bucket, pieces, strict=True):
                gradient.copy_(piece.view_as(gradient))

    def together(self, state: Any) -> Any:
        """A state, its split tensors put together on the first process's CPU and None elsewhere."""
        if isinstance(state, dict):
            return {name: self.together(value) for name, value in state.items()}
        if is_split(state):
            full = state.full_tensor()
            return full.cpu() if self.first else None
        return state

    def end(self) -> None:
        """Part in peace, after the last exchange."""
        if self.world > 1:
            self.everyone(None)
            dist.destroy_process_group()


ONE = Devices()


def is_split(thing: Any) -> bool:
    """Whether this is a tensor of which each process holds a part (a DTensor)."""
    return hasattr(thing, "full_tensor")


def like(value: Tensor, weight: Tensor) -> Tensor:
    """A whole tensor, split as `weight` is."""
    if not is_split(weight):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)


@contextmanager
def talking() -> Iterator[None]:
    """What fails within is an exchange: another process is gone."""
    try:
        yield
    except RuntimeError:
        raise RunError(
            "another process of this run has stopped; its own message says why. The last "
            "checkpoint is intact"
        ) from None


def buckets(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one dtype, about BUCKET bytes together."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        size = sum(t.nbytes for t in bucket) + tensor.nbytes
        if bucket and (size > BUCKET or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def with_launcher(config: Config) -> Config:
    """The configuration with what `accelerate launch --use_fsdp` adds to it. Raises ConfigError."""
    asked = os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"
    return with_values(config, shard=True) if asked and not config.shard else config


def find_devices(config: Config) -> Devices:
    """This process among those that torchrun or accelerate started (RANK, WORLD_SIZE, MASTER_…).

    Raises ConfigError for fewer prompts than processes, fewer GPUs than processes, or weights to
    split over one process.
    """
    world = int(os.environ.get("WORLD_SIZE", 1))
    require(
        world > 1 or not config.shard,
        "shard = true: there is one process, and nothing to split weights over; start several "
        "(accelerate launch --use_fsdp --num_processes 2 …), or set it to false",
    )
    if world == 1:
        return ONE
    require(
        config.prompts >= world,
        f"prompts = {config.prompts}: with {world} processes it must be {world} or more",
    )
    require(
        config.sampler == "own",
        f"sampler = {config.sampler!r}: with several processes only own is supported",
    )
    device, local = pick_device(config.device), int(os.environ.get("LOCAL_RANK", 0))
    gpu = device.type == "cuda"
    if gpu:
        count = torch.cuda.device_count()
        require(local < count, f"process {local} has no GPU: this machine has {count}")
        torch.cuda.set_device(local)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if gpu else "gloo")
    return Devices(dist.get_rank(), world, device.type, config.shard)
