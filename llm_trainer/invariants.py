"""What an update says of itself, and what must hold in every run; a violated one stops it by name.

All are measured before the optimiser moves: a run that is stopped has not learned anything wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from llm_trainer.batch import StepBatch
from llm_trainer.config import RunError
from policy_gradients.algorithms import Batch
from policy_gradients.kl import k3

NO_SIGNAL = 1e-6  # an advantage this small is rounding: the group's rewards were all the same
# What the invariants allow, by the arithmetic of the forward pass. ratio: |ρ − 1| at the first
# update, of all tokens the largest (bfloat16: the mean); kl: nats per token there; split: relative
# difference of two gradients; agreement: mean |log π_learner − log π_sampler| per token. On the
# tiny model float32 measures 1e-6, while a wrong temperature or a forgotten attention mask gives
# 0.1 and more. bfloat16 rounds logits from 16 to 32 to steps of 0.125, so one token may be off by
# that where its old log-probability came out of another micro-batch. Its bounds are estimates, not
# measured on a GPU.
BOUNDS = {
    torch.float32: {"ratio": 1e-4, "kl": 1e-6, "split": 1e-4, "agreement": 1e-4},
    torch.bfloat16: {"ratio": 0.05, "kl": 1e-3, "split": 1e-4, "agreement": 0.05},
}
OF_RATIOS = {torch.float32: torch.max, torch.bfloat16: torch.mean}


class InvariantError(RunError):
    """Something that must hold in every correct run does not; the run stops before it learns."""


@dataclass(frozen=True)
class Piece:
    """A micro-batch after its backward pass."""

    batch: StepBatch
    logp: Tensor  # (batch, time) nats, detached
    gradient: Tensor  # (batch, time), d(loss without KL, bonus and critic)/d(logp)
    losses: dict[str, float]  # its share of the step's losses, by metric name


def token_metrics(pieces: list[Piece]) -> dict[str, float]:
    """Numbers over all response tokens in the loss that were computed.

    clip/high and clip/low are shares of tokens whose gradient the loss (its KL apart) has switched
    off, with a positive and a negative advantage. Rows without a clip have none, and neither has
    CISPO: it bounds a weight and switches nothing off. 0 at the first update of a batch is right.
    """

    def flat(pick) -> Tensor:  # (tokens,)
        return torch.cat([pick(p).expand_as(p.batch.mask)[p.batch.loss_mask] for p in pieces])

    old, logp = flat(lambda p: p.batch.logp_old), flat(lambda p: p.logp)
    gradient, advantages = flat(lambda p: p.gradient), flat(lambda p: p.batch.advantages)
    ratio = (logp - old).exp()
    off = gradient == 0
    metrics = {
        "ratio/min": ratio.min().item(),
        "ratio/max": ratio.max().item(),
        "clip/high": (off & (advantages > NO_SIGNAL)).float().mean().item(),
        "clip/low": (off & (advantages < -NO_SIGNAL)).float().mean().item(),
        "kl/old": k3(old[None], logp[None]).mean().item(),
    }
    if pieces[0].batch.logp_ref is not None:
        reference = flat(lambda p: p.batch.logp_ref)
        metrics["kl/ref"] = k3(logp[None], reference[None]).mean().item()
    return metrics


def hold(condition: bool, name: str, what: str) -> None:
    """Stop the run with the invariant's name unless it holds (NaN does not)."""
    if not condition:
        raise InvariantError(f"invariant violated: {name}. {what}.")


def check_agreement(pieces: list[Piece], bound: float) -> dict[str, float]:
    """Sampler and learner give the same tokens the same probability, within rounding."""
    gap = [(p.logp - p.batch.logp_sampler)[p.batch.mask].abs() for p in pieces]
    gap = torch.cat(gap).mean().item()
    hold(
        gap <= bound,
        "sampler and learner agree",
        f"they differ by {gap:.2g} nats per token, {bound:g} is allowed. Temperature, attention "
        "mask, positions or dropout differ between them",
    )
    return {"check/sampler_gap": gap}


def check_start(
    pieces: list[Piece],
    metrics: dict[str, float],
    bounds: dict[str, float],
    of_ratios: Callable[[Tensor], Tensor],
) -> dict[str, float]:
    """Before anything is learned every ratio is 1 and every KL is 0."""
    off = [((p.logp - p.batch.logp_old).exp() - 1)[p.batch.loss_mask].abs() for p in pieces]
    off = of_ratios(torch.cat(off)).item()
    hold(
        off <= bounds["ratio"],
        "the ratio is 1 at the first update",
        f"ratios are off by {off:.2g} ({of_ratios.__name__} of all tokens), {bounds['ratio']:g} is "
        "allowed. The old log-probabilities are not those of the policy that is being trained",
    )
    kl = max(metrics["kl/old"], metrics.get("kl/ref", 0.0))
    hold(
        kl <= bounds["kl"],
        "the KL is 0 at the first update",
        f"it is {kl:.2g} nats per token. The reference is not the starting model, or is scored "
        "differently (temperature, dropout, precision)",
    )
    return {"check/ratio": off, "check/kl": kl}


def check_end_token(pieces: list[Piece], end_id: int) -> dict[str, float]:
    """Some end token has a gradient."""
    trained, ended = 0, 0
    for piece in pieces:
        batch = piece.batch
        last = batch.mask.sum(1, keepdim=True) - 1  # (batch, 1): column of the last token
        advantages = batch.advantages.expand_as(batch.mask).gather(1, last)
        matters = (batch.tokens.gather(1, last) == end_id) & (advantages.abs() > NO_SIGNAL)
        ended += int(matters.sum())
        trained += int((piece.gradient.gather(1, last)[matters] != 0).sum())
    cause = (
        "The mask stops one token early, or the end token is mistaken for padding"
        if any(piece.gradient.any() for piece in pieces)
        else "Nor did any other token: the loss does not change with logp. Is a factor in it 0"
    )
    hold(
        ended == 0 or trained > 0,
        "the end token is trained",
        f"none of {ended} end tokens received a gradient. {cause}",
    )
    return {"check/end_token_trained": trained / ended if ended else 1.0}


def check_split(
    batch: StepBatch,
    gradient: Callable[[Batch], tuple[Tensor, Tensor, Tensor]],
    inputs: Callable[[StepBatch, Tensor], Batch],
    bound: float,
) -> dict[str, float]:
    """The loss of the whole update and of its groups one by one have the same gradient.

    Compared on d(loss)/d(log-probability); what lies below it treats every row by itself.
    """

    def over(pieces) -> Tensor:  # (all valid tokens,)
        found = []
        for piece in pieces:
            logp = piece.logp_old.clone().requires_grad_()
            found.append(gradient(inputs(piece, logp))[1][piece.mask])
        return torch.cat(found)

    whole, split = over([batch]), over(batch.micro_batches(1))
    difference = ((whole - split).norm() / whole.norm().clamp(min=1e-12)).item()
    hold(
        difference <= bound,
        "the micro-batch split does not change the gradient",
        f"the two differ by {difference:.2g} of its size. The loss must divide by the counts of "
        "the whole step (`sequences`, `tokens` or `length`), not by what it sees",
    )
    return {"check/split": difference}
