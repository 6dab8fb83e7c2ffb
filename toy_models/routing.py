"""A sparse layer in miniature: why token ratios of mixture-of-experts models are noisy.

Each token has a hidden state h, and a router sends it to one of two experts, expert 1 where
router · h > 0. The expert turns h into logits. A small update moves router and experts a little;
tokens near the boundary change experts, and their log-probabilities jump.

    model = sparse_model(seed=0)
    hidden = hidden_states(model, batch=64, time=200, seed=1)
    tokens = sample(model, hidden, seed=2)
    moved = nudge(model, size=0.01, seed=3)
    log_ratio = log_probs(moved, hidden, tokens) - log_probs(model, hidden, tokens)
    replayed = log_probs(moved, hidden, tokens, expert=routes(model, hidden))

Give each its own seed: with equal ones, states and weights would be the same numbers.
`replayed` keeps the old choice of experts: what the update did without the router's part in it.

Left out: gating weights, load balance, several layers, and hidden states that depend on the tokens
before (each is drawn on its own). Lecture 10.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from policy_gradients.logprobs import token_log_probs


class SparseModel(NamedTuple):
    """router (dim,), experts (2, dim, vocab): logits = h @ experts[router · h > 0]."""

    router: Tensor
    experts: Tensor


def sparse_model(
    *, dim: int = 16, vocab_size: int = 50, disagreement: float = 0.5, seed: int
) -> SparseModel:
    """Two experts that share one matrix and differ by a share of another, float64.

    Formula: experts = shared ± disagreement · own, entries of both normal with variance 4/dim, so
    that logits have a deviation of 2·√(1 + disagreement²) nats; the router is a random unit vector.
    Raises ValueError for a disagreement that is negative or not finite.
    """
    if not 0 <= disagreement < math.inf:
        raise ValueError(f"disagreement must be at least 0 and finite, got {disagreement}")
    dice = torch.Generator().manual_seed(seed)
    shared, own = torch.randn(2, dim, vocab_size, generator=dice, dtype=torch.float64)
    router = torch.randn(dim, generator=dice, dtype=torch.float64)
    scale = 2 / math.sqrt(dim)
    experts = scale * torch.stack([shared - disagreement * own, shared + disagreement * own])
    return SparseModel(router / router.norm(), experts)


def hidden_states(model: SparseModel, *, batch: int, time: int, seed: int) -> Tensor:
    """(batch, time, dim) independent standard normal."""
    dice = torch.Generator().manual_seed(seed)
    return torch.randn(batch, time, len(model.router), generator=dice, dtype=torch.float64)


def routes(model: SparseModel, hidden: Tensor) -> Tensor:
    """(batch, time) int64, 0 or 1: the expert that the router chooses."""
    return (hidden @ model.router > 0).long()


def logits(model: SparseModel, hidden: Tensor, *, expert: Tensor | None = None) -> Tensor:
    """(batch, time, vocab) of the chosen expert; `expert` (batch, time) overrules the router."""
    expert = routes(model, hidden) if expert is None else expert
    both = torch.einsum("btd,edv->btev", hidden, model.experts)
    return both.gather(2, expert[:, :, None, None].expand(-1, -1, 1, both.shape[-1]))[:, :, 0]


def log_probs(
    model: SparseModel, hidden: Tensor, tokens: Tensor, *, expert: Tensor | None = None
) -> Tensor:
    """(batch, time) nats: log-probability of each token, by the router's expert or `expert`."""
    return token_log_probs(logits(model, hidden, expert=expert), tokens)


def sample(model: SparseModel, hidden: Tensor, *, seed: int) -> Tensor:
    """(batch, time) int64: one token per hidden state."""
    probs = logits(model, hidden).softmax(-1)
    dice = torch.Generator().manual_seed(seed)
    return torch.multinomial(probs.flatten(0, 1), 1, generator=dice).view(hidden.shape[:2])


def nudge(model: SparseModel, *, size: float, seed: int) -> SparseModel:
    """The model after a small update: every matrix moves by `size` times its own length, at random.

    A random direction, because a training step is one too from the router's point of view.
    """
    dice = torch.Generator().manual_seed(seed)

    def moved(x: Tensor) -> Tensor:
        step = torch.randn(x.shape, generator=dice, dtype=x.dtype)
        return x + size * x.norm() / step.norm() * step

    return SparseModel(*map(moved, model))
