"""One optimiser step: log-probabilities, values, advantages, loss, gradient, update.

The algorithm is a row of `policy_gradients.ALGORITHMS`; nothing here asks for its name. What the
row leaves open is decided here: where log-probabilities come from, which groups are computed, and
how the step is cut into minibatches (optimiser updates) and micro-batches (what is in memory).
Lecture 12 walks through it; the ratio is [RC-3], the mask [MAP-5], the sum over the batch [MAP-6].

`measure` is the only place that looks across the samples of a step: advantages, whitening, counts.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_trainer.batch import StepBatch
from llm_trainer.config import Config, RunError
from llm_trainer.credit import PAYERS, WEIGHTS, compare, criticise
from llm_trainer.critic import explained_variance, make_critic
from llm_trainer.devices import ONE, Devices
from llm_trainer.invariants import (
    BOUNDS,
    NO_SIGNAL,
    OF_RATIOS,
    Piece,
    check_agreement,
    check_end_token,
    check_split,
    check_start,
    token_metrics,
)
from llm_trainer.losses import Loss
from llm_trainer.models import Policy
from llm_trainer.oom import Room
from llm_trainer.scoring import Scores, response_states, score
from policy_gradients.advantages import whiten
from policy_gradients.algorithms import Batch


class NonFiniteError(RunError):
    """The loss or its gradient is NaN or infinite; the update was not made."""


class Learner:
    """A policy with its optimiser, its loss, and the reference and critic that its row needs.

    `sharded.py` has one whose weights are split over several processes.
    """

    def __init__(
        self,
        policy: Policy,
        config: Config,
        loss: Callable | None = None,
        devices: Devices = ONE,
    ):
        self.policy, self.config, self.devices = policy, config, devices
        self.row, self.own_loss = config.row(), loss
        self.loss = Loss(self.row, loss, entropy_coef=config.entropy_coef)
        self.reference = policy.reference() if self.row.needs_reference else None
        own_body = config.critic == "model"
        self.critic = make_critic(policy, own_body=own_body) if self.row.needs_critic else None
        self.optimizer = self.make_optimizer()
        # Rounding of logits, and so of log-probabilities, is divided by the temperature.
        colder = max(1.0, 1 / config.temperature)
        self.bounds = {k: v * colder for k, v in BOUNDS[policy.dtype].items()}
        if config.sampler == "vllm":  # other kernels round otherwise
            self.bounds["agreement"] = BOUNDS[torch.bfloat16]["agreement"]
        advice = "group, max_new_tokens or logprob_chunk; or set gradient_checkpointing, lora_rank"
        self.room = Room(config.micro_batch, "training", advice)
        self.updates = 0  # optimiser updates so far
        self.shuffle = torch.Generator().manual_seed(config.seed)  # of prompts into minibatches
        self.keep_sampler_logp = not config.recomputes_old
        self.weigh = WEIGHTS[config.importance]  # None without importance weights

    def make_optimizer(self) -> torch.optim.Optimizer:
        groups = [{"params": self.policy.trainable(), "lr": self.config.lr}]
        if self.critic:
            groups.append({"params": self.critic.weights(), "lr": self.config.critic_lr})
        return torch.optim.AdamW(
            groups,
            betas=(0.9, 0.99),
            weight_decay=self.config.weight_decay,
            # on a GPU the default needs another copy of all weights while it steps
            fused=self.policy.device.type == "cuda",
        )

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs besides the policy's weights."""
        weights = self.critic.named_parameters() if self.critic else ()
        return {
            "optimizer": self.optimizer.state_dict(),
            "critic": {name: w.detach() for name, w in weights if w.requires_grad},
            "updates": self.updates,
            "shuffle": self.shuffle.get_state(),
        }

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        """Take over what `state` gave."""
        self.optimizer.load_state_dict(state["optimizer"])
        weights = dict(self.critic.named_parameters()) if self.critic else {}
        for name, value in state["critic"].items():
            weights[name].copy_(value)
        self.updates = state["updates"]
        self.shuffle.set_state(state["shuffle"])

    # ------------------------------------------------------------ what the networks say

    def log_probs(self, policy: Policy, batch: StepBatch) -> Tensor:
        """(batch, time) nats, at the temperature the tokens were sampled with."""
        return self.score(policy, batch).logp

    def score(
        self, policy: Policy, batch: StepBatch, *, entropy: bool = False, states: bool = False
    ) -> Scores:
        return self.scorer(policy)(
            batch.prompts,
            batch.tokens,
            batch.mask,
            group=batch.group,
            temperature=self.config.temperature,
            shared=self.config.shared_prefix,
            chunk=self.config.logprob_chunk,
            entropy=entropy,
            states=states,
        )

    def scorer(self, policy: Policy) -> Callable[..., Scores]:
        return partial(score, policy)

    def whole(self) -> AbstractContextManager:
        """Within it each process can run the networks for itself, without gradient."""
        return nullcontext()

    def look(self, batch: StepBatch) -> tuple[Scores, Tensor | None]:
        """What the policy says, and V before each token, (batch, time), if there is a critic."""
        body = self.critic.body if self.critic else None
        scores = self.score(
            self.policy,
            batch,
            entropy=self.config.entropy_coef > 0,
            states=self.critic is not None and body is None,
        )
        if self.critic is None:
            return scores, None
        if body is None:
            return scores, self.critic(scores.states)
        shared = self.config.shared_prefix
        states = response_states(
            body, batch.prompts, batch.tokens, batch.mask, group=batch.group, shared=shared
        )
        return scores, self.critic(states)

    @torch.no_grad()
    def frozen(self, function: Callable[[StepBatch], Tensor], batch: StepBatch) -> Tensor:
        """`function` of each micro-batch, (batch, time), joined and padded with 0.

        Each process computes it for its share of the prompts, and all get all of it.
        """
        width, own = batch.tokens.shape[1], batch.take(self.devices.share(batch.indices))
        with self.whole():
            pieces = self.room.run(
                lambda size: [function(b) for b in own.micro_batches(size)], len(own.rewards)
            )
        pieces = [F.pad(x, (0, width - x.shape[1])) for x in pieces]
        return torch.cat([x for found in self.devices.everyone(pieces) for x in found])

    def frozen_log_probs(self, policy: Policy, batch: StepBatch) -> Tensor:
        """(batch, time) without gradient; 0 on padding."""
        return self.frozen(lambda piece: self.log_probs(policy, piece), batch)

    # ------------------------------------------------------------ what is learned from

    def measure(self, batch: StepBatch) -> StepBatch:
        """Everything that is fixed before the first update: counts, advantages, old and reference
        log-probabilities, values. All groups stay, also those that teach nothing.
        """
        config = self.config
        ended = (batch.tokens == self.policy.end_id).any(1, keepdim=True)  # (batch, 1)
        loss_mask = batch.mask & ended if config.overlong == "mask" else batch.mask
        batch = count(replace(batch, loss_mask=loss_mask, logp_old=batch.logp_sampler))
        if self.reference is not None:
            batch = replace(batch, logp_ref=self.frozen_log_probs(self.reference, batch))
        kl_in_reward = self.reference is not None and self.row.kl == "reward"
        reads_old = self.critic or kl_in_reward or self.weigh
        if not self.keep_sampler_logp and reads_old:
            batch = self.with_old(batch, torch.ones_like(batch.rewards[:, 0], dtype=torch.bool))
        batch = self.with_values(batch) if self.critic else self.with_comparison(batch)
        if self.weigh:
            batch = replace(batch, advantages=self.importance(batch) * batch.advantages)
        if not self.keep_sampler_logp and not reads_old:
            batch = self.with_old(batch, self.teaches(batch))
        return batch

    def with_old(self, batch: StepBatch, groups: Tensor) -> StepBatch:
        """The ratio's denominator as the learner computes it, for these (prompts,) bool."""
        rows, part = groups.repeat_interleave(batch.group), batch.take(groups)
        logp_old = batch.logp_old.clone()
        if len(part.rewards):
            logp_old[rows, : part.tokens.shape[1]] = self.frozen_log_probs(self.policy, part)
        return replace(batch, logp_old=logp_old)

    def with_comparison(self, batch: StepBatch) -> StepBatch:
        """Advantages by comparing responses: (batch, 1), or (batch, time) with a KL per token."""
        payer = PAYERS[self.config.kl_credit]
        advantages = compare(
            self.row, batch.rewards, batch.logp_old, batch.logp_ref, batch.mask, payer=payer
        )
        return replace(batch, advantages=advantages)

    def with_values(self, batch: StepBatch) -> StepBatch:
        """Advantages by a critic, with its values and what it should have said."""
        values = self.frozen(lambda piece: self.look(piece)[1], batch)
        advantages, returns = criticise(
            self.row,
            batch.rewards,
            batch.logp_old,
            batch.logp_ref,
            values,
            batch.mask,
            gamma=self.config.gamma,
            lam=self.config.lam,
        )
        if self.config.whiten:
            advantages = whiten(advantages, batch.loss_mask)
        return replace(batch, advantages=advantages, values_old=values, returns=returns)

    def importance(self, batch: StepBatch) -> Tensor:
        """min(π_learner/π_sampler, cap): (batch, time), or (batch, 1) per response.

        It multiplies the advantages. Every surrogate s obeys s(w·A) = w·s(A) for w > 0, so this
        weighs the row's loss, a KL in the reward with it, and a learner's own where that is linear
        in A. Not weighed are a KL in the loss, the critic and the entropy bonus.
        """
        cap = self.config.importance_cap
        return self.weigh(batch.logp_old, batch.logp_sampler, batch.mask, cap=cap)

    def teaches(self, batch: StepBatch) -> Tensor:
        """(prompts,) bool: the groups with a gradient, by an advantage, KL, critic or bonus."""
        live = batch.loss_mask
        if self.row.zero_advantage_is_silent and self.config.entropy_coef == 0:
            live = live & (batch.advantages.abs() > NO_SIGNAL)
        return live.reshape(len(batch.rewards), -1).any(1)

    def has_contrast(self, batch: StepBatch) -> bool:
        """Whether the rewards favour anything over anything, a KL or a bonus apart."""
        rewards = batch.rewards
        favoured = rewards - rewards.mean() if self.critic else self.row.advantage(rewards)
        return bool((favoured.abs() > NO_SIGNAL).any())

    def taught(self, batch: StepBatch) -> StepBatch | None:
        """The groups of a measured batch that teach something; its counts stay. None: no group.

        A group whose advantages are all 0 has no gradient, so it is not computed, unless a KL,
        a critic or an entropy bonus gives it one.
        """
        keep = self.teaches(batch)
        return batch.take(keep) if keep.any() else None

    def minibatches(self, batch: StepBatch) -> Iterator[StepBatch]:
        """One pass over a measured batch in `minibatches` parts, each for one optimiser update.

        Whole prompts are shuffled, never rows: a group stays together. A part is an update of its
        own, so it has its own counts; only with one part are they the step's. Parts without
        anything to learn are left out.
        """
        parts = [batch]
        if self.config.minibatches > 1:
            prompts = len(batch.rewards)
            order = torch.randperm(prompts, generator=self.shuffle).to(batch.rewards.device)
            # dynamic sampling may have kept fewer prompts
            pieces = order.tensor_split(min(self.config.minibatches, prompts))
            parts = [count(batch.take(index)) for index in pieces]
        return (part for part in map(self.taught, parts) if part is not None)

    # ------------------------------------------------------------ loss and gradient

    def loss_inputs(self, batch: StepBatch, logp: Tensor, values: Tensor | None = None) -> Batch:
        """What the losses read; logp, values : (batch, time), with gradient."""
        return Batch(
            logp=logp,
            advantages=batch.advantages,
            mask=batch.loss_mask,
            logp_old=batch.logp_old,
            logp_ref=batch.logp_ref,
            values=values,
            values_old=batch.values_old,
            returns=batch.returns,
            sequences=batch.sequences,
            tokens=batch.total_tokens,
            length=self.config.max_new_tokens,
        )

    def policy_gradient(self, inputs: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """(loss with its KL, d(loss without KL)/d(logp), d(loss)/d(logp)); the last two per token.

        Raises RunError for a loss without gradient.
        """
        loss, logp = self.loss.policy(inputs), inputs.logp
        connected = loss.requires_grad
        gradient = torch.autograd.grad(loss, logp, allow_unused=True)[0] if connected else None
        if gradient is None:
            raise RunError("the loss has no gradient: compute it from logp, and do not detach it")
        if self.loss.kl is None:
            return loss.detach(), gradient, gradient
        kl = self.loss.kl(inputs)
        return (loss + kl).detach(), gradient, gradient + torch.autograd.grad(kl, logp)[0]

    def differentiate(self, batch: StepBatch) -> tuple[Piece, list[Tensor], list[Tensor | None]]:
        """(one micro-batch, where its backward pass starts, and with which gradients).

        The loss is differentiated by log π first, apart from the network: the clip's metrics and
        the check of micro-batches read this gradient.
        """
        scores, values = self.look(batch)
        # A leaf of its own: to FSDP, a derivative of the network's output is its backward pass.
        inputs = self.loss_inputs(batch, scores.logp.detach().requires_grad_(), values)
        loss, gradient, upstream = self.policy_gradient(inputs)
        ends, grads, losses = [scores.logp], [upstream], {"loss": loss}
        if scores.entropy is not None:
            bonus = self.loss.bonus(inputs, scores.entropy)
            ends, grads = [*ends, bonus], [*grads, None]
            losses["loss"] = loss + bonus.detach()
            losses["entropy/full"] = scores.entropy.detach().sum() / batch.total_tokens
        if self.critic:
            error = self.loss.critic(inputs)
            ends, grads = [*ends, error], [*grads, None]
            losses["critic/loss"] = error.detach() / self.row.value_coefficient
        losses = {name: value.item() for name, value in losses.items()}
        return Piece(batch, scores.logp.detach(), gradient, losses), ends, grads

    def backward(self, batch: StepBatch) -> Piece:
        """Add one micro-batch's gradient to `.grad`."""
        piece, ends, grads = self.differentiate(batch)
        torch.autograd.backward(ends, grads)
        return piece

    def gradients(self, batch: StepBatch, micro_batch: int) -> list[Piece]:
        """This process's share of an update's gradient in `.grad`, so many prompts at a time."""
        self.optimizer.zero_grad()
        own = batch.take(self.devices.share(batch.indices))
        with self.recomputing():
            return [self.backward(piece) for piece in own.micro_batches(micro_batch)]

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """Within it layers recompute their activations, if the run wants that."""
        networks = [self.policy, *([self.critic.body] if self.critic and self.critic.body else [])]
        for network in networks:
            network.recompute(self.config.gradient_checkpointing)
        yield
        for network in networks:
            network.recompute(False)

    def of_everyone(self, batch: StepBatch, pieces: list[Piece]) -> list[Piece]:
        """The micro-batches of all processes, as one piece; `.grad` holds the sum of theirs."""
        if self.devices.world == 1:
            return pieces
        weights = [w for group in self.optimizer.param_groups for w in group["params"]]
        self.devices.sum_gradients(weights)
        width = batch.tokens.shape[1]
        found = [
            (*[F.pad(x, (0, width - x.shape[1])) for x in (p.logp, p.gradient)], p.losses)
            for p in pieces
        ]
        found = [piece for part in self.devices.everyone(found) for piece in part]
        logp, gradient, losses = zip(*found, strict=True)
        losses = {name: sum(share[name] for share in losses) for name in losses[0]}
        return [Piece(batch, torch.cat(logp), torch.cat(gradient), losses)]

    # ------------------------------------------------------------ the update

    def update(self, batch: StepBatch, *, fresh: bool) -> dict[str, float]:
        """One optimiser update on all micro-batches; returns what is worth logging.

        fresh: this is the first update on these samples.
        Raises InvariantError or NonFiniteError before any weight has changed.
        """
        prompts = len(self.devices.share(batch.indices))
        pieces = self.room.run(lambda size: self.gradients(batch, size), prompts)
        pieces = self.of_everyone(batch, pieces)
        losses = {name: sum(p.losses[name] for p in pieces) for name in pieces[0].losses}
        for name, value in losses.items():
            self.require_finite(name, value, pieces)
        norms = [self.clip(self.policy.trainable())]
        if self.critic:  # apart: an error of the critic must not shrink the policy's step
            norms.append(self.clip(self.critic.weights()))
        for norm in norms:
            self.require_finite("gradient's norm", norm, pieces)

        metrics = token_metrics(pieces)
        if fresh:
            metrics |= self.compare_with_sampler(pieces)
        if self.updates == 0:
            metrics |= self.check_first(batch, pieces, metrics)
        if self.room.halved:
            metrics["micro_batch"] = self.room.size
        lr = self.move()
        return {**losses, "grad_norm": norms[0], "lr": lr, **metrics}

    def compare_with_sampler(self, pieces: list[Piece]) -> dict[str, float]:
        """The weights have not changed since the batch was sampled: both must agree."""
        return check_agreement(pieces, self.bounds["agreement"])

    def check_first(
        self, batch: StepBatch, pieces: list[Piece], metrics: dict[str, float]
    ) -> dict[str, float]:
        """The invariants of the first update."""
        of_ratios, bound = OF_RATIOS[self.policy.dtype], self.bounds["split"]
        return {
            **check_start(pieces, metrics, self.bounds, of_ratios),
            **check_end_token(pieces, self.policy.end_id),
            **check_split(batch, self.policy_gradient, self.loss_inputs, bound),
        }

    def move(self) -> float:
        """The optimiser's step, along the gradient in `.grad`; the policy's learning rate."""
        config = self.config
        alone = config.critic_warmup * config.epochs * config.minibatches  # the critic's updates
        if self.updates < alone:
            for weight in self.policy.trainable():
                weight.grad = None  # AdamW leaves it, its moments and its decay alone
        policy_lr = config.lr * ramp(self.updates - alone, config.lr_warmup)
        rates = [policy_lr, config.critic_lr * ramp(self.updates, config.lr_warmup)]
        for settings, rate in zip(self.optimizer.param_groups, rates, strict=False):
            settings["lr"] = rate
        self.optimizer.step()
        self.updates += 1
        return policy_lr

    def require_finite(self, name: str, value: float, pieces: list[Piece]) -> None:
        """Raises NonFiniteError, which says where to look first."""
        if math.isfinite(value):
            return
        given = all(p.logp.isfinite().all() for p in pieces)
        made = all(math.isfinite(p.losses["loss"]) and p.gradient.isfinite().all() for p in pieces)
        advice = "try a smaller lr or max_grad_norm"
        if self.own_loss and given and not made:
            advice = "your own loss made it from finite log-probabilities, so look there first"
        raise NonFiniteError(f"the {name} is {value}; {advice}")

    def clip(self, weights: list[torch.nn.Parameter]) -> float:
        """Scale this gradient to max_grad_norm at most; its norm before."""
        return torch.nn.utils.clip_grad_norm_(weights, self.config.max_grad_norm).item()

    def describe(self, batch: StepBatch) -> dict[str, float]:
        """Numbers of a measured batch: its groups, its critic, its importance weights."""
        metrics = {"groups/trained": int(self.teaches(batch).sum())}
        if self.critic:
            values = batch.values_old
            metrics["value/mean"] = values[batch.mask].mean().item()
            metrics["critic/explained_variance"] = explained_variance(
                values, batch.returns, batch.mask
            )
        if self.weigh:
            weights = self.importance(batch).expand_as(batch.mask)[batch.mask]
            metrics["importance/mean"] = weights.mean().item()
            at_cap = weights >= self.config.importance_cap
            metrics["importance/capped"] = at_cap.float().mean().item()
        return metrics


def count(batch: StepBatch) -> StepBatch:
    """The counts that every average of one optimiser update divides by, of everything in it.

    A response that `overlong: mask` keeps out of the loss is counted all the same: what it does
    not teach is not added to what the others teach.
    """
    return replace(batch, sequences=len(batch.tokens), total_tokens=int(batch.mask.sum()))


def ramp(updates: int, warmup: int) -> float:
    """Share of the full learning rate after so many updates; 0 while the number is negative."""
    return min(1.0, max(0, updates + 1) / max(1, warmup))
