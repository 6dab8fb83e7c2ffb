"""A learner whose weights, gradients and moments are split over the processes (`shard: true`).

FSDP2, torch's `fully_shard`: of each weight every process holds a part, and a layer is put together
for the moment it is needed. So a pass with gradient involves everyone, and all make equally many.
To sample and to score without gradient the weights are put together for as long as that takes, and
each process goes its own way.

Left out: a shared prefix, a critic's own network, `compile`, adapters in bfloat16, heads that do
more than multiply (all refused), and halving when memory runs out.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from llm_trainer.batch import StepBatch
from llm_trainer.config import Config, require
from llm_trainer.devices import ONE, Devices, is_split, like
from llm_trainer.invariants import Piece
from llm_trainer.models import Policy
from llm_trainer.rollout import pad_prompts
from llm_trainer.scoring import Scores, score
from llm_trainer.step import Learner


def make_learner(
    policy: Policy, config: Config, loss: Callable | None = None, devices: Devices = ONE
) -> Learner:
    """The learner of a run, with whole or split weights."""
    return (ShardedLearner if devices.shard else Learner)(policy, config, loss, devices)


class ScoringModel(nn.Module):
    """`score` as the forward of one module: a wrapper acts around a forward call.

    Only for a plain head: any other runs the network once a chunk, and devices with fewer chunks
    would wait for ever.
    """

    def __init__(self, policy: Policy):
        super().__init__()
        self.policy, self.model = policy, policy.model

    def forward(self, *batch: Any, **settings: Any) -> Scores:
        """Takes what `scoring.score` takes after the policy."""
        return score(self.policy, *batch, **settings)


def split(policy: Policy, devices: Devices) -> ScoringModel:
    """Split a policy's weights over the processes, in place; the module to call for gradients.

    Each layer is put together by itself, embeddings, last norm and head together.
    Raises ConfigError for a head that does more than multiply.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # Asked here, while the network is still whole.
    require(
        policy.head_is_plain,
        f"shard = true: the head of {type(policy.model).__name__} does more than multiply (it "
        "caps or scales its logits), which is not supported for split weights; set it to false",
    )
    mesh = init_device_mesh(devices.device, (devices.world,))
    root = ScoringModel(policy)
    for module in list(policy.model.modules()):
        if type(module).__name__ in (policy.model._no_split_modules or ()):
            fully_shard(module, mesh=mesh)
    fully_shard(root, mesh=mesh)
    prompts = pad_prompts([[policy.end_id]], policy)
    settings = {"group": 1, "temperature": 1.0, "shared": False, "chunk": 1}
    with torch.no_grad():  # the first pass tells FSDP which module is the outermost
        root(prompts, prompts.tokens, prompts.tokens == policy.end_id, **settings)
    root.reshard()  # or its own weights would stay whole, and the optimiser would take those
    return root


class ShardedLearner(Learner):
    """See the module."""

    def __init__(self, *given: Any):
        super().__init__(*given)
        self.room.retry = False  # one process alone cannot make another number of passes

    def make_optimizer(self) -> torch.optim.Optimizer:
        self.roots = [split(self.policy, self.devices)]
        # A reference that is the same network without adapters is split with it.
        if self.reference is not None and self.reference.model is not self.policy.model:
            self.roots.append(split(self.reference, self.devices))
        return super().make_optimizer()

    def load_state(self, state: dict[str, Any]) -> None:
        weights = [w for group in self.optimizer.param_groups for w in group["params"]]
        moments = {
            i: {k: v if k == "step" else like(v, weights[i]) for k, v in values.items()}
            for i, values in state["optimizer"]["state"].items()
        }
        super().load_state({**state, "optimizer": {**state["optimizer"], "state": moments}})

    def scorer(self, policy: Policy) -> Callable[..., Scores]:
        return self.roots[0] if policy is self.policy else super().scorer(policy)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Put together within the block. All processes enter and leave it together."""
        parts = [(root, m) for root in self.roots for m in root.modules() if hasattr(m, "unshard")]
        for _, module in parts:
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()
        try:
            yield
        finally:
            for root, module in parts:
                module.reshard()
                module.set_reshard_after_forward(module is not root, recurse=False)

    def gradients(self, batch: StepBatch, micro_batch: int) -> list[Piece]:
        """As many passes on every process; those that it has no prompts for add 0."""
        self.optimizer.zero_grad()
        own = list(batch.take(self.devices.share(batch.indices)).micro_batches(micro_batch))
        most = max(self.devices.everyone(len(own)))
        with self.recomputing():
            pieces = [self.backward(piece) for piece in own]
            for _ in range(most - len(own)):
                _, ends, _ = self.differentiate(batch.take(batch.indices[:1]))
                torch.autograd.backward(ends, [torch.zeros_like(end) for end in ends])
        return pieces

    def clip(self, weights: list[nn.Parameter]) -> float:
        norm = torch.nn.utils.clip_grad_norm_(weights, self.config.max_grad_norm)
        return (norm.full_tensor() if is_split(norm) else norm).item()
