"""One optimiser step: sharing, splitting, dropping, and the invariants that guard it."""

import math
from dataclasses import replace

import pytest
import torch

from llm_trainer.config import ConfigError, RunError
from llm_trainer.invariants import (
    BOUNDS,
    OF_RATIOS,
    InvariantError,
    Piece,
    check_start,
    token_metrics,
)
from llm_trainer.step import NonFiniteError
from policy_gradients.algorithms import ALGORITHMS, grpo_loss
from policy_gradients.diagnostics import clip_fraction

CRITIC_FREE = [name for name, row in ALGORITHMS.items() if not row.needs_critic]


def gradient(learner, batch):
    """Flat gradient of a step, without clipping and without changing a weight."""
    learner.gradients(batch, learner.config.micro_batch)
    return torch.cat([p.grad.flatten() for p in learner.policy.model.parameters()])


def apart(a, b):
    return ((a - b).norm() / a.norm()).item()


# ------------------------------------------------------------------ equal gradients


def test_shared_prefix_is_the_plain_forward_and_gradient(make_learner, draw):
    learner = make_learner()
    batch = learner.taught(learner.measure(draw(learner)))
    plain = make_learner(shared_prefix=False)
    with torch.no_grad():
        logp = [each.log_probs(each.policy, batch)[batch.mask] for each in (learner, plain)]
    assert (logp[0] - logp[1]).abs().max() <= 1e-5
    assert apart(gradient(learner, batch), gradient(plain, batch)) <= 1e-5


@pytest.mark.parametrize("algorithm", CRITIC_FREE)
def test_micro_batches_give_the_gradient_of_the_whole(make_learner, draw, algorithm):
    whole = make_learner(algorithm=algorithm, micro_batch=4)
    batch = whole.taught(whole.measure(draw(make_learner())))
    assert batch.mask.sum(1).unique().numel() > 1
    split = make_learner(algorithm=algorithm, micro_batch=1)
    assert apart(gradient(whole, batch), gradient(split, batch)) <= 1e-5


@pytest.mark.parametrize("algorithm", ["grpo", "dapo", "dr_grpo", "rloo"])
def test_dropping_silent_groups_changes_no_gradient(make_learner, draw, algorithm):
    learner = make_learner(algorithm=algorithm)
    seen = draw(make_learner())
    seen.rewards[1] = 0.7  # a group without contrast
    kept = learner.taught(learner.measure(seen))
    assert len(kept.rewards) == 3
    assert (kept.sequences, kept.total_tokens) == (16, int(seen.mask.sum()))
    everyone = learner.measure(seen)
    assert len(everyone.rewards) == 4
    assert apart(gradient(learner, everyone), gradient(learner, kept)) <= 1e-5


def test_no_group_is_dropped_while_a_kl_term_is_on(make_learner, draw):
    learner = make_learner(kl_coef=0.1)
    seen = draw(learner)
    seen.rewards[:] = 0.5
    batch = learner.taught(learner.measure(seen))
    assert len(batch.rewards) == 4
    assert batch.logp_ref is not None


def test_a_step_without_any_contrast_is_skipped(make_learner, draw):
    learner = make_learner()
    seen = draw(learner)
    seen.rewards[:] = 0.3
    assert learner.taught(learner.measure(seen)) is None


# ------------------------------------------------------------------ the first update


@pytest.mark.parametrize("old_logprobs", ["sampler", "recompute"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_at_the_first_update_ratios_are_one_and_kls_zero(
    make_learner, draw, old_logprobs, temperature
):
    learner = make_learner(old_logprobs=old_logprobs, temperature=temperature, kl_coef=0.05)
    metrics = learner.update(learner.taught(learner.measure(draw(learner))), fresh=True)
    assert metrics["check/ratio"] <= 1e-4
    assert abs(metrics["ratio/max"] - 1) <= 1e-4
    assert metrics["check/sampler_gap"] <= 1e-5
    assert metrics["kl/old"] <= 1e-6
    assert metrics["kl/ref"] <= 1e-6
    assert metrics["check/end_token_trained"] > 0
    assert metrics["check/split"] <= 1e-4
    assert metrics["clip/high"] == metrics["clip/low"] == 0


def test_later_epochs_leave_ratio_one_and_the_clip_shows_by_side(make_learner, draw):
    learner = make_learner(lr=3e-3, lr_warmup=0, eps_low=0.01, eps_high=0.02)
    batch = learner.taught(learner.measure(draw(learner)))
    learner.update(batch, fresh=True)
    metrics = learner.update(batch, fresh=False)
    assert metrics["ratio/max"] > 1.02
    assert metrics["clip/high"] > 0
    assert metrics["clip/low"] > 0
    assert metrics["kl/old"] > 1e-5


@pytest.mark.parametrize("kl_coef", [0.0, 0.1])
@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "cispo", "rloo"])
def test_clip_fractions_are_the_definitions_whatever_the_kl(make_learner, draw, algorithm, kl_coef):
    learner = make_learner(algorithm=algorithm, kl_coef=kl_coef, lr=3e-3, lr_warmup=0)
    batch = learner.taught(learner.measure(draw(learner)))
    first = learner.update(batch, fresh=True)
    assert first["clip/high"] == first["clip/low"] == 0
    logp = learner.frozen_log_probs(learner.policy, batch)
    found = learner.update(batch, fresh=False)
    eps = {"eps_low": 0.2, "eps_high": 0.2}
    high, low, _ = clip_fraction(logp, batch.logp_old, batch.advantages, batch.mask, **eps)
    assert high > 0
    assert low > 0
    switches_off = algorithm in ("grpo", "dr_grpo")  # the others have no such clip
    assert found["clip/high"] == pytest.approx(high * switches_off, abs=1e-6)
    assert found["clip/low"] == pytest.approx(low * switches_off, abs=1e-6)


def other_temperature(learner, batch):
    learner.config = learner.config.model_copy(update={"temperature": 0.6})
    return batch


def wrong_reference(learner, batch):
    return replace(batch, logp_ref=batch.logp_ref + 0.1)


def stale_old(learner, batch):
    return replace(batch, logp_old=batch.logp_old - 0.01)


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (other_temperature, "sampler and learner agree"),
        (stale_old, "the ratio is 1 at the first update"),
        (wrong_reference, "the KL is 0 at the first update"),
    ],
)
def test_a_violated_invariant_stops_with_its_name_and_unchanged_weights(
    make_learner, draw, spoil, name
):
    learner = make_learner(kl_coef=0.1)
    batch = spoil(learner, learner.taught(learner.measure(draw(learner))))
    before = [p.clone() for p in learner.policy.model.parameters()]
    with pytest.raises(InvariantError, match=name):
        learner.update(batch, fresh=True)
    pairs = zip(before, learner.policy.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_bfloat16_may_round_a_token_but_not_the_mean(make_learner, draw):
    """A logit of 16 to 32 has steps of .125: one token by that much is rounding, all are not."""
    learner = make_learner(dtype="bfloat16")
    batch = learner.taught(learner.measure(draw(learner)))
    pieces = learner.gradients(batch, 4)
    one = batch.logp_old.clone()
    one[0, 0] += 0.125

    def check(old):
        spoilt = [replace(piece, batch=replace(batch, logp_old=old)) for piece in pieces]
        bounds, metrics = BOUNDS[torch.bfloat16], {"kl/old": 0.0}
        return check_start(spoilt, metrics, bounds, OF_RATIOS[torch.bfloat16])["check/ratio"]

    assert check(one) < 0.01
    with pytest.raises(InvariantError, match="the ratio is 1 at the first update"):
        check(batch.logp_old + 0.125)
    with pytest.raises(InvariantError, match="the ratio is 1 at the first update"):
        check_start([replace(pieces[0], batch=replace(batch, logp_old=one))], {"kl/old": 0.0},
                    BOUNDS[torch.float32], OF_RATIOS[torch.float32])  # fmt: skip


def test_the_two_kls_of_an_update_are_the_policys(make_learner, draw):
    """π is above the reference, and below the old policy, by 1 nat: k3 is not symmetric.

    k3(ℓ = 1) = e⁻¹ − 1 + 1 = .368, and the other way round e − 1 − 1 = .718.
    """
    learner = make_learner(kl_coef=0.1)
    batch = learner.taught(learner.measure(draw(learner)))
    logp, zero = torch.full(batch.mask.shape, -1.0), torch.zeros(batch.mask.shape)
    at = replace(batch, logp_ref=logp - 1, logp_old=logp + 1, advantages=zero)
    found = token_metrics([Piece(at, logp, zero, {})])
    assert found["kl/ref"] == pytest.approx(math.exp(-1))  # samples of π, against the reference
    assert found["kl/old"] == pytest.approx(math.exp(-1))  # samples of the old policy, against π
    assert found["ratio/min"] == pytest.approx(math.exp(-1))


def moved(learner, batch):
    """How far one update of plain gradient descent with lr 1 moves the policy's weights."""
    learner.optimizer = torch.optim.SGD(learner.optimizer.param_groups, lr=1)
    learner.config = learner.config.model_copy(update={"lr": 1.0, "lr_warmup": 0})
    before = [w.detach().clone() for w in learner.policy.trainable()]
    norm = learner.update(batch, fresh=True)["grad_norm"]
    after = [w.detach() for w in learner.policy.trainable()]
    return norm, torch.cat([(b - a).flatten() for a, b in zip(before, after, strict=True)])


def test_an_updates_gradient_is_cut_to_max_grad_norm_once(make_learner, draw):
    """The sum of all micro-batches, not each of them: their norms add up to another."""
    learner = make_learner(max_grad_norm=1e6)
    batch = learner.taught(learner.measure(draw(learner)))
    norm, whole = moved(learner, batch)
    assert whole.norm() == pytest.approx(norm, rel=1e-4)
    for size in (1, 4):
        cut = make_learner(max_grad_norm=norm / 3, micro_batch=size)
        told, step = moved(cut, batch)
        assert told == pytest.approx(norm, rel=1e-4)  # what is logged is the norm before
        assert apart(whole / 3, step) <= 1e-3


# ------------------------------------------------------------------ a learner's own loss


def end_token_dropped(logp, logp_old, advantages, mask, *, eps_low, eps_high, sequences=None):
    shorter = torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], 1)
    return grpo_loss(
        logp, logp_old, advantages, shorter, eps_low=eps_low, eps_high=eps_high, sequences=sequences
    )


def counts_what_it_sees(logp, logp_old, advantages, mask, *, eps_low, eps_high, sequences=None):
    return grpo_loss(logp, logp_old, advantages, mask, eps_low=eps_low, eps_high=eps_high)


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (end_token_dropped, "the end token is trained"),
        (counts_what_it_sees, "the micro-batch split does not change the gradient"),
    ],
)
def test_a_wrong_loss_of_the_learners_is_named(make_learner, draw, loss, name):
    learner = make_learner(loss)
    with pytest.raises(InvariantError, match=name):
        learner.update(learner.taught(learner.measure(draw(learner))), fresh=True)


def test_grpo_loss_passed_by_hand_is_the_rows_own(make_learner, draw):
    row, own = make_learner(), make_learner(grpo_loss)
    batch = row.taught(row.measure(draw(row)))
    assert apart(gradient(row, batch), gradient(own, batch)) <= 1e-6


def test_a_learners_loss_gets_the_rows_kl(make_learner, draw):
    row, own = make_learner(kl_coef=0.5), make_learner(grpo_loss, kl_coef=0.5)
    batch = row.taught(row.measure(draw(row)))
    for learner in (row, own):  # away from the reference, so that the KL has a gradient
        learner.update(batch, fresh=True)
    assert apart(gradient(row, batch), gradient(own, batch)) <= 1e-6
    own.loss.kl = None
    assert apart(gradient(row, batch), gradient(own, batch)) > 1e-2


def test_a_kl_in_the_loss_is_the_rows_own(make_learner, draw):
    """Learner computes it apart from the rest; together they are row.loss."""
    learner = make_learner(kl_coef=0.5, lr=3e-3, lr_warmup=0)
    batch = learner.taught(learner.measure(draw(learner)))
    learner.update(batch, fresh=True)
    logp = learner.frozen_log_probs(learner.policy, batch).requires_grad_()
    inputs = learner.loss_inputs(batch, logp)
    whole = learner.row.loss(inputs)
    assert learner.policy_gradient(inputs)[0] == pytest.approx(whole.item(), abs=1e-6)
    assert whole.item() != pytest.approx(learner.loss.policy(inputs).item(), abs=1e-3)
    whole.backward()
    expected = gradient_at(logp.grad, learner, batch)
    assert apart(expected, gradient(learner, batch)) <= 1e-5


def gradient_at(upstream, learner, batch):
    """Flat gradient of the weights for a given gradient of the log-probabilities."""
    learner.optimizer.zero_grad()
    learner.log_probs(learner.policy, batch).backward(upstream)
    return torch.cat([p.grad.flatten() for p in learner.policy.model.parameters()])


@pytest.mark.parametrize(
    "loss", [lambda a, b, c, m: b.sum() * 0, lambda a, *x, **k: a.detach()[0, 0]]
)
def test_a_loss_without_a_gradient_is_refused(make_learner, draw, loss):
    learner = make_learner(loss)
    with pytest.raises(RunError, match="the loss has no gradient: compute it from logp"):
        learner.update(learner.taught(learner.measure(draw(learner))), fresh=True)


@pytest.mark.parametrize("loss", [lambda logp: logp.sum(), lambda a, b, c, d, e: a.sum(), "grpo"])
def test_a_loss_that_cannot_be_called_is_refused_at_once(make_learner, loss):
    with pytest.raises(ConfigError, match="it is called with logp, logp_old, advantages, mask"):
        make_learner(loss)


def test_a_loss_gets_tokens_and_length_if_it_asks(make_learner, draw):
    got = {}

    def loss(logp, logp_old, advantages, mask, *, eps_low, eps_high, sequences, tokens, length):
        got.update(tokens=tokens, length=length, sequences=sequences, eps=(eps_low, eps_high))
        return -(logp * advantages * mask).sum() / tokens

    learner = make_learner(loss, max_new_tokens=11, eps_high=0.28)
    batch = learner.taught(learner.measure(draw(learner)))
    learner.update(batch, fresh=True)
    assert got == {
        "tokens": batch.total_tokens,
        "length": 11,
        "sequences": 16,
        "eps": (0.2, 0.28),
    }


def test_a_loss_per_token_is_refused_with_its_shape(make_learner, draw):
    def per_token(logp, logp_old, advantages, mask, *, eps_low, eps_high):
        return -logp * advantages

    learner = make_learner(per_token)
    with pytest.raises(
        RunError, match=r"per_token: it must return a scalar tensor, got \(16, \d+\)"
    ):
        learner.update(learner.taught(learner.measure(draw(learner))), fresh=True)


def test_a_loss_that_is_not_finite_is_named_and_changes_nothing(make_learner, draw):
    def loss(logp, logp_old, advantages, mask, **counts):
        return (logp * float("nan")).sum()

    learner = make_learner(loss)
    before = [p.clone() for p in learner.policy.model.parameters()]
    with pytest.raises(NonFiniteError, match="the loss is nan; your own loss made it from finite"):
        learner.update(learner.taught(learner.measure(draw(learner))), fresh=True)
    pairs = zip(before, learner.policy.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_gradient_that_is_not_finite_is_named_by_who_made_it(make_learner, draw):
    def loss(logp, logp_old, advantages, mask, **counts):
        return (logp - logp.detach()).abs().sqrt().sum()  # 0, with a gradient of 0 · ∞

    own = make_learner(loss)
    batch = own.taught(own.measure(draw(own)))
    with pytest.raises(NonFiniteError, match="gradient's norm is nan; your own loss made it"):
        own.update(batch, fresh=True)
    for learner in (make_learner(), make_learner(grpo_loss)):
        with torch.no_grad():
            learner.policy.model.get_input_embeddings().weight[:] = float("inf")
        with pytest.raises(NonFiniteError, match="the loss is nan; try a smaller lr"):
            learner.update(batch, fresh=True)


def test_a_loss_whose_gradient_is_zero_is_told_so_and_not_that_its_mask_is_short(
    make_learner, draw
):
    learner = make_learner(lambda logp, logp_old, advantages, mask, **counts: (logp * 0).sum())
    with pytest.raises(InvariantError, match="the loss does not change with logp"):
        learner.update(learner.taught(learner.measure(draw(learner))), fresh=True)


# ------------------------------------------------------------------ the rest


def test_gradient_checkpointing_changes_no_gradient(make_learner, draw):
    plain = make_learner(shared_prefix=False)
    batch = plain.taught(plain.measure(draw(plain)))
    lean = make_learner(shared_prefix=False, gradient_checkpointing=True)
    lean.policy.model.train()
    assert apart(gradient(plain, batch), gradient(lean, batch)) <= 1e-5
