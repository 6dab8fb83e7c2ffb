"""One optimiser step: log-probabilities, advantages, loss, gradient, and the checks that guard it.

The algorithm is a row of `policy_gradients.ALGORITHMS`; nothing here asks for its name. What the
row leaves open is decided here: where log-probabilities come from, which groups are computed, and
how the step is cut into micro-batches. Lecture 12 walks through it; the ratio is [RC-3], the mask
[MAP-5], the sum over the batch [MAP-6].
"""

import inspect
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_trainer.batch import StepBatch
from llm_trainer.config import Config, ConfigError, RunError
from llm_trainer.models import Policy
from llm_trainer.scoring import Scores, score
from policy_gradients.algorithms import Algorithm, Batch
from policy_gradients.kl import k3

NO_SIGNAL = 1e-6  # an advantage this small is rounding: the group's rewards were all the same
# What the invariants allow, by the arithmetic of the forward pass. ratio: largest |ρ − 1| at the
# first update; kl: nats per token there; split: relative difference of two gradients; agreement:
# mean |log π_learner − log π_sampler| per token. float32 measures 1e-6 everywhere, while a wrong
# temperature or a forgotten attention mask gives 0.1 and more. bfloat16 rounds logits near 16 to
# steps of 0.06; its bounds are estimates, not measured on a GPU.
BOUNDS = {
    torch.float32: {"ratio": 1e-4, "kl": 1e-6, "split": 1e-4, "agreement": 1e-4},
    torch.bfloat16: {"ratio": 0.05, "kl": 1e-3, "split": 1e-4, "agreement": 0.05},
}


# a micro-batch, its log-probabilities, and the gradient of the loss without KL to them
Piece = tuple[StepBatch, Tensor, Tensor]


class InvariantError(RunError):
    """Something that must hold in every correct run does not; the run stops before it learns."""


class NonFiniteError(RunError):
    """The loss or its gradient is NaN or infinite; the update was not made."""


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


def no_surrogate(logp: Tensor) -> Tensor:
    """What is left of a row when only its KL is wanted."""
    return torch.zeros_like(logp)


class Learner:
    """A policy with its optimiser, its reference if a KL term needs one, and its loss."""

    def __init__(self, policy: Policy, config: Config, loss: Callable | None = None):
        self.policy, self.config = policy, config
        self.row = config.row()
        # The loss in two parts, so that a learner's own gets the row's KL, and the clip is read
        # from a gradient without it.
        bare = replace(self.row, kl="none", kl_coefficient=0.0)
        self.policy_loss = own_loss(loss, bare) if loss else bare.loss
        kl_in_loss = self.row.kl == "loss" and self.row.kl_coefficient > 0
        only_kl = replace(self.row, surrogate=no_surrogate, knobs={})
        self.kl_loss = only_kl.loss if kl_in_loss else None
        self.reference = policy.reference() if self.row.needs_reference else None
        self.optimizer = torch.optim.AdamW(
            policy.trainable(),
            lr=config.lr,
            betas=(0.9, 0.99),
            weight_decay=config.weight_decay,
        )
        self.bounds = BOUNDS[policy.dtype]
        self.updates = 0  # optimiser updates so far
        recompute = config.old_logprobs == "recompute" or (
            config.old_logprobs == "auto" and policy.dtype != torch.float32
        )
        self.keep_sampler_logp = not recompute

    # ------------------------------------------------------------ log-probabilities

    def log_probs(self, policy: Policy, batch: StepBatch) -> Tensor:
        """(batch, time) nats, at the temperature the tokens were sampled with."""
        return self.score(policy, batch).logp

    def score(self, policy: Policy, batch: StepBatch, **also: bool) -> Scores:
        """also: entropy=True, states=True"""
        return score(
            policy,
            batch.prompts,
            batch.tokens,
            batch.mask,
            group=batch.group,
            temperature=self.config.temperature,
            shared=self.config.shared_prefix,
            chunk=self.config.logprob_chunk,
            **also,
        )

    @torch.no_grad()
    def frozen_log_probs(self, policy: Policy, batch: StepBatch) -> Tensor:
        """(batch, time) without gradient, one micro-batch at a time; 0 on padding."""
        width = batch.tokens.shape[1]
        pieces = [
            F.pad(self.log_probs(policy, piece), (0, width - piece.tokens.shape[1]))
            for piece in batch.micro_batches(self.config.micro_batch)
        ]
        return torch.cat(pieces)

    # ------------------------------------------------------------ what is computed

    def measure(self, batch: StepBatch) -> StepBatch:
        """The counts of the step, its advantages, and the reference's log-probabilities."""
        batch = replace(batch, sequences=len(batch.tokens), total_tokens=int(batch.mask.sum()))
        if self.reference is not None:
            batch = replace(batch, logp_ref=self.frozen_log_probs(self.reference, batch))
        scores = self.row.sequence_rewards(
            batch.rewards.flatten(), batch.logp_sampler, batch.logp_ref, batch.mask
        )
        advantages = self.row.advantage(scores.view_as(batch.rewards))  # (prompts, group)
        return replace(batch, advantages=advantages.reshape(-1, 1), logp_old=batch.logp_sampler)

    def teaches(self, batch: StepBatch) -> Tensor:
        """(prompts,) bool: the groups with a gradient, by their advantages or a KL term."""
        if not self.row.zero_advantage_is_silent:
            return torch.ones(len(batch.rewards), dtype=torch.bool, device=batch.rewards.device)
        return (batch.advantages.view_as(batch.rewards).abs() > NO_SIGNAL).any(1)

    def prepare(self, batch: StepBatch) -> StepBatch | None:
        """Advantages, and the groups that can teach something; None if there is none.

        A group whose advantages are all 0 has no gradient, so it is not computed, unless a KL
        term gives it one. `sequences` and `total_tokens` still count it.
        """
        batch = self.measure(batch)
        keep = self.teaches(batch)
        if not keep.any():
            return None
        batch = batch.take(keep)
        if not self.keep_sampler_logp:
            batch = replace(batch, logp_old=self.frozen_log_probs(self.policy, batch))
        return batch

    def loss_inputs(self, batch: StepBatch, logp: Tensor) -> Batch:
        return Batch(
            logp=logp,
            advantages=batch.advantages,
            mask=batch.mask,
            logp_old=batch.logp_old,
            logp_ref=batch.logp_ref,
            sequences=batch.sequences,
            tokens=batch.total_tokens,
            length=self.config.max_new_tokens,
        )

    def backward(self, inputs: Batch, logp: Tensor) -> tuple[float, Tensor]:
        """Backpropagate loss and KL through `logp`.

        Returns the loss and d(loss without its KL)/d(logp), (batch, time).
        Raises RunError for a loss without gradient, NonFiniteError.
        """
        loss = self.policy_loss(inputs)
        connected = loss.requires_grad
        gradient = torch.autograd.grad(loss, logp, allow_unused=True)[0] if connected else None
        if gradient is None:
            raise RunError("the loss has no gradient: compute it from logp, and do not detach it")
        whole = gradient
        if self.kl_loss is not None:
            kl = self.kl_loss(inputs)
            loss, whole = loss + kl, gradient + torch.autograd.grad(kl, logp)[0]
        if not torch.isfinite(loss):
            raise NonFiniteError(f"the loss is {loss.item()}")
        if logp.grad_fn is not None:  # a leaf stands for log-probabilities in check_split
            logp.backward(whole)
        return loss.item(), gradient

    # ------------------------------------------------------------ the update

    def update(self, batch: StepBatch, *, fresh: bool) -> dict[str, float]:
        """One optimiser update on all micro-batches; returns what is worth logging.

        fresh: the weights have not changed since the batch was sampled.
        Raises InvariantError or NonFiniteError before any weight has changed.
        """
        self.optimizer.zero_grad()
        pieces, total = [], 0.0
        self.policy.recompute(self.config.gradient_checkpointing)
        for piece in batch.micro_batches(self.config.micro_batch):
            logp = self.log_probs(self.policy, piece)
            loss, gradient = self.backward(self.loss_inputs(piece, logp), logp)
            total += loss
            pieces.append((piece, logp.detach(), gradient))
        self.policy.recompute(False)
        parameters = self.policy.trainable()
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm)
        if not torch.isfinite(norm):
            raise NonFiniteError(f"the gradient's norm is {norm.item()}")

        metrics = token_metrics(pieces)
        if fresh:
            metrics |= self.check_agreement(pieces)
        if self.updates == 0:
            metrics |= self.check_first_update(pieces, metrics) | self.check_split(batch)

        warm = min(1.0, (self.updates + 1) / max(1, self.config.lr_warmup))
        for settings in self.optimizer.param_groups:
            settings["lr"] = self.config.lr * warm
        self.optimizer.step()
        self.updates += 1
        return {"loss": total, "grad_norm": norm.item(), "lr": self.config.lr * warm, **metrics}

    # ------------------------------------------------------------ what must hold in every run

    def check_agreement(self, pieces: list[Piece]) -> dict[str, float]:
        """Sampler and learner give the same tokens the same probability, within rounding."""
        gap = [(logp - b.logp_sampler)[b.mask].abs() for b, logp, _ in pieces]
        gap = torch.cat(gap).mean().item()
        hold(
            gap <= self.bounds["agreement"],
            "sampler and learner agree",
            f"they differ by {gap:.2g} nats per token, {self.bounds['agreement']:g} is allowed. "
            "Temperature, attention mask, positions or dropout differ between them",
        )
        return {"check/sampler_gap": gap}

    def check_first_update(
        self, pieces: list[Piece], metrics: dict[str, float]
    ) -> dict[str, float]:
        """Before anything is learned every ratio is 1, every KL is 0, and end tokens count."""
        off = max(metrics["ratio/max"] - 1, 1 - metrics["ratio/min"])
        hold(
            off <= self.bounds["ratio"],
            "the ratio is 1 at the first update",
            f"a ratio is off by {off:.2g}, {self.bounds['ratio']:g} is allowed. The old "
            "log-probabilities are not those of the policy that is being trained",
        )
        kl = max(metrics["kl/old"], metrics.get("kl/ref", 0.0))
        hold(
            kl <= self.bounds["kl"],
            "the KL is 0 at the first update",
            f"it is {kl:.2g} nats per token. The reference is not the starting model, or is scored "
            "differently (temperature, dropout, precision)",
        )
        trained, ended = 0, 0
        for batch, _, gradient in pieces:
            last = batch.mask.sum(1, keepdim=True) - 1  # (batch, 1): column of the last token
            matters = (batch.tokens.gather(1, last) == self.policy.end_id) & (
                batch.advantages.abs() > NO_SIGNAL
            )
            ended += int(matters.sum())
            trained += int((gradient.gather(1, last)[matters] != 0).sum())
        hold(
            ended == 0 or trained > 0,
            "the end token is trained",
            f"none of {ended} end tokens received a gradient. The mask stops one token early, or "
            "the end token is mistaken for padding",
        )
        return {
            "check/ratio": off,
            "check/kl": kl,
            "check/end_token_trained": trained / ended if ended else 1.0,
        }

    def check_split(self, batch: StepBatch) -> dict[str, float]:
        """The loss of the whole step and of its groups one by one have the same gradient.

        Compared on d(loss)/d(log-probability); what lies below it treats every row by itself.
        """

        def gradient(pieces) -> Tensor:  # (all valid tokens,)
            parts = []
            for piece in pieces:
                logp = piece.logp_old.clone().requires_grad_()
                parts.append(self.backward(self.loss_inputs(piece, logp), logp)[1][piece.mask])
            return torch.cat(parts)

        whole, split = gradient([batch]), gradient(batch.micro_batches(1))
        difference = ((whole - split).norm() / whole.norm().clamp(min=1e-12)).item()
        hold(
            difference <= self.bounds["split"],
            "the micro-batch split does not change the gradient",
            f"the two differ by {difference:.2g} of its size. The loss must divide by the counts "
            "of the whole step (`sequences`, `tokens` or `length`), not by what it sees",
        )
        return {"check/split": difference}


def hold(condition: bool, name: str, what: str) -> None:
    """Stop the run with the invariant's name unless it holds (NaN does not)."""
    if not condition:
        raise InvariantError(f"invariant violated: {name}. {what}.")


def token_metrics(pieces: list[Piece]) -> dict[str, float]:
    """Numbers over all response tokens that were computed.

    clip/high and clip/low are shares of tokens whose gradient the loss (its KL apart) has switched
    off, with a positive and a negative advantage. Rows without a clip have none, and neither has
    CISPO: it bounds a weight and switches nothing off. 0 at the first update of a batch is right.
    """

    def flat(pick) -> Tensor:  # (tokens,)
        return torch.cat([pick(p).expand_as(p[0].mask)[p[0].mask] for p in pieces])

    old, logp = flat(lambda p: p[0].logp_old), flat(lambda p: p[1])
    gradient, advantages = flat(lambda p: p[2]), flat(lambda p: p[0].advantages)
    ratio = (logp - old).exp()
    off = gradient == 0
    metrics = {
        "ratio/min": ratio.min().item(),
        "ratio/max": ratio.max().item(),
        "clip/high": (off & (advantages > NO_SIGNAL)).float().mean().item(),
        "clip/low": (off & (advantages < -NO_SIGNAL)).float().mean().item(),
        "kl/old": k3(old[None], logp[None]).mean().item(),
    }
    if pieces[0][0].logp_ref is not None:
        reference = flat(lambda p: p[0].logp_ref)
        metrics["kl/ref"] = k3(logp[None], reference[None]).mean().item()
    return metrics
