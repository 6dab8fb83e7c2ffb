"""The two-expert layer: flips are rare, make token ratios wild, and vanish in the mean."""

import itertools

import pytest
import torch

from toy_models import routing

MODEL = routing.sparse_model(disagreement=0.3, seed=0)
HIDDEN = routing.hidden_states(MODEL, batch=100, time=100, seed=1)
TOKENS = routing.sample(MODEL, HIDDEN, seed=2)
AFTER = routing.nudge(MODEL, size=0.01, seed=3)
BEFORE = routing.log_probs(MODEL, HIDDEN, TOKENS)
OLD = routing.routes(MODEL, HIDDEN)
JUMPS = routing.log_probs(AFTER, HIDDEN, TOKENS) - BEFORE
KEPT = routing.log_probs(AFTER, HIDDEN, TOKENS, expert=OLD) - BEFORE


def test_shapes_and_probabilities():
    assert HIDDEN.shape == (100, 100, 16)
    assert TOKENS.shape == OLD.shape == BEFORE.shape == (100, 100)
    total = routing.logits(MODEL, HIDDEN).softmax(-1).sum(-1)
    assert (total - 1).abs().max() < 1e-12
    assert (BEFORE < 0).all()
    assert 0.4 < OLD.double().mean() < 0.6


def test_the_chosen_expert_is_the_one_that_answers():
    by_hand = torch.stack([HIDDEN @ expert for expert in MODEL.experts])  # (2, batch, time, vocab)
    chosen = torch.where((HIDDEN @ MODEL.router > 0)[..., None], by_hand[1], by_hand[0])
    assert torch.allclose(routing.logits(MODEL, HIDDEN), chosen)
    other = routing.log_probs(MODEL, HIDDEN, TOKENS, expert=1 - OLD)
    assert (other - BEFORE).abs().max() > 1


def test_a_nudge_has_the_length_it_says():
    for old, new in zip(MODEL, AFTER, strict=True):
        assert ((new - old).norm() / old.norm()).item() == pytest.approx(0.01)


def test_only_tokens_that_change_experts_leave_the_clip_range():
    flipped = routing.routes(AFTER, HIDDEN) != OLD
    assert 0.0005 < flipped.double().mean() < 0.02
    assert torch.equal(JUMPS[~flipped], KEPT[~flipped])
    assert JUMPS[~flipped].exp().aminmax().min > 0.8
    assert JUMPS[~flipped].exp().aminmax().max < 1.2
    assert JUMPS.abs().max() > 1


def test_the_mean_is_tame_and_the_more_so_the_longer():
    assert JUMPS.mean(1).abs().max() < 0.1 * JUMPS.abs().max()
    spread = [JUMPS.reshape(-1, n).mean(1).std() for n in (1, 10, 100)]
    for shorter, longer in itertools.pairwise(spread):
        assert 0.2 < longer / shorter < 0.5  # 1/√10 = .32, up to sampling noise


def test_experts_that_agree_make_no_noise_when_routes_move():
    model = routing.sparse_model(disagreement=0.0, seed=0)
    turned = routing.SparseModel(-model.router, model.experts)
    both = [routing.log_probs(m, HIDDEN, TOKENS) for m in (model, turned)]
    assert torch.allclose(*both, rtol=0, atol=1e-12)


def test_disagreement_must_not_be_negative():
    with pytest.raises(ValueError, match="disagreement"):
        routing.sparse_model(disagreement=-0.1, seed=0)
