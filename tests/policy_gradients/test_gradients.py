"""Gradients against finite differences and closed forms; padding and extremes; micro-batches."""

from functools import partial

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import policy_gradients as pg

F64 = torch.float64


def tensor(x):
    return torch.tensor(x, dtype=F64)


def draw(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


# name → function of the batch and of the leaf (logp or values); no point lies on a kink
DIFFERENTIABLE = {
    "unclipped": lambda b, x: pg.unclipped(x, b.logp_old, b.advantages),
    "ppo_clip": lambda b, x: pg.ppo_clip(x, b.logp_old, b.advantages, **b.eps),
    "dual_clip": lambda b, x: pg.ppo_clip(x, b.logp_old, b.advantages, **b.eps, dual_clip=1.32),
    "gspo": lambda b, x: pg.gspo(x, b.logp_old, b.advantages, b.mask, **b.eps),
    "sapo": lambda b, x: pg.sapo(x, b.logp_old, b.advantages, tau_neg=2.0),
    "reinforce": lambda b, x: pg.reinforce(x, b.advantages),
    "token_ratio": lambda b, x: pg.token_ratio(x, b.logp_old),
    "sequence_ratio": lambda b, x: pg.sequence_ratio(x, b.logp_old, b.mask),
    "k1": lambda b, x: pg.k1(x, b.logp_ref),
    "k2": lambda b, x: pg.k2(x, b.logp_ref),
    "k3": lambda b, x: pg.k3(x, b.logp_ref),
    "k3 of the reference": lambda b, x: pg.k3(b.logp_ref, x),
    "grpo_loss": lambda b, x: pg.grpo_loss(x, b.logp_old, b.advantages, b.mask, **b.eps),
    "value_loss": lambda b, x: pg.value_loss(x, b.values_old, b.returns),
    "value_loss with clip": lambda b, x: pg.value_loss(x, b.values_old, b.returns, clip=0.47),
    "mean_per_sequence": lambda b, x: pg.mean_per_sequence(x.square(), b.mask),
    "mean_per_token": lambda b, x: pg.mean_per_token(x.square(), b.mask),
    "mean_fixed_length": lambda b, x: pg.mean_fixed_length(x.square(), b.mask, length=7),
    "sum_per_sequence": lambda b, x: pg.sum_per_sequence(x.square(), b.mask),
    "whiten": lambda b, x: pg.whiten(x, b.mask),
    "reward_to_go": lambda b, x: pg.reward_to_go(x, b.mask, gamma=0.9),
    "group_standardized": lambda b, x: pg.group_standardized(x),
    "leave_one_out": lambda b, x: pg.leave_one_out(x),
    "maxrl": lambda b, x: pg.maxrl(x.square()),
    "effect of a value on gae": lambda b, x: pg.gae(
        b.returns, x, b.mask, gamma=0.9, lam=0.8, bootstrap=b.values_old
    ),
    "token_log_probs": lambda b, x: pg.token_log_probs(
        x.reshape(4, 2, 3), torch.tensor([[0, 2], [1, 1], [2, 0], [0, 1]]), temperature=0.7
    ),
    "entropy": lambda b, x: pg.entropy(x.reshape(4, 2, 3), temperature=0.7),
    "exact_kl": lambda b, x: pg.exact_kl(x.reshape(4, 2, 3), b.logp_ref.reshape(4, 2, 3)),
    "exact_kl of the reference": lambda b, x: pg.exact_kl(
        b.logp_ref.reshape(4, 2, 3), x.reshape(4, 2, 3)
    ),
    "dpo": lambda b, x: pg.dpo(x[0], x[1], b.logp_ref[0], b.logp_ref[1], beta=0.7),
    "dpo smoothed": lambda b, x: pg.dpo(
        x[0], x[1], b.logp_ref[0], b.logp_ref[1], beta=0.7, label_smoothing=0.2
    ),
    "ipo": lambda b, x: pg.ipo(x[0], x[1], b.logp_ref[0], b.logp_ref[1], tau=0.4),
    "kto": lambda b, x: pg.kto(
        x[0], b.logp_ref[0], torch.arange(6) % 2, b.logp[1], b.logp_ref[1], beta=0.5, lambda_d=1.3
    ),
    "bradley_terry": lambda b, x: pg.bradley_terry(x[0], x[1], margin=0.3),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradient_agrees_with_finite_differences(batch, name):
    leaf = batch.values if "value" in name else batch.logp
    leaf = leaf.clone().requires_grad_()
    assert gradcheck(partial(DIFFERENTIABLE[name], batch), leaf)
    assert gradgradcheck(partial(DIFFERENTIABLE[name], batch), leaf)


def test_cispo_gradient_is_the_bounded_weight(batch):
    """Its weight is a constant, so finite differences of its value would be wrong."""
    logp = batch.logp.requires_grad_()
    per_token = pg.cispo(logp, batch.logp_old, batch.advantages, **batch.eps)
    (g,) = torch.autograd.grad(per_token.sum(), logp)
    torch.testing.assert_close(g, -batch.ratios.clamp(0.8, 1.28) * batch.advantages)
    wide = pg.cispo(logp, batch.logp_old, batch.advantages, eps_low=1.0, eps_high=9.0)
    (g,) = torch.autograd.grad(wide.sum(), logp)
    torch.testing.assert_close(g, -batch.ratios * batch.advantages)


def test_at_the_old_policy_all_surrogates_have_the_policy_gradient(batch):
    """[RC-5] for every surrogate: at ratio 1 the gradient is that of reinforce (mean-weighted)."""
    old = batch.logp_old
    mask = torch.ones_like(old)
    losses = {
        "unclipped": lambda x: pg.unclipped(x, old, batch.advantages),
        "ppo_clip": lambda x: pg.ppo_clip(x, old, batch.advantages, **batch.eps),
        "gspo": lambda x: pg.gspo(x, old, batch.advantages, mask, **batch.eps),
        "cispo": lambda x: pg.cispo(x, old, batch.advantages, **batch.eps),
        "sapo": lambda x: pg.sapo(x, old, batch.advantages),
    }
    for name, loss in losses.items():
        logp = old.clone().requires_grad_()
        (g,) = torch.autograd.grad(pg.mean_per_sequence(loss(logp), mask), logp)
        plain = pg.mean_per_sequence(pg.reinforce(logp, batch.advantages), mask)
        (expected,) = torch.autograd.grad(plain, logp)
        torch.testing.assert_close(g, expected, rtol=1e-12, atol=1e-12, msg=name)


def test_advantages_per_token_are_used_per_token(batch):
    per_token = batch.advantages * torch.linspace(0.5, 1.5, 6, dtype=F64)
    for loss in (
        lambda A: pg.reinforce(batch.logp, A),
        lambda A: pg.unclipped(batch.logp, batch.logp_old, A),
        lambda A: pg.ppo_clip(batch.logp, batch.logp_old, A, **batch.eps, dual_clip=1.5),
        lambda A: pg.gspo(batch.logp, batch.logp_old, A, batch.mask, **batch.eps),
        lambda A: pg.cispo(batch.logp, batch.logp_old, A, **batch.eps),
        lambda A: pg.sapo(batch.logp, batch.logp_old, A),
    ):
        columns = [loss(per_token[:, t : t + 1])[:, t] for t in range(6)]
        torch.testing.assert_close(loss(per_token), torch.stack(columns, 1), rtol=0, atol=0)
        assert loss(batch.advantages).shape == batch.logp.shape


def test_no_gradient_reaches_constants(batch):
    logp, old, A = (
        x.clone().requires_grad_() for x in (batch.logp, batch.logp_old, batch.advantages)
    )
    for per_token in (
        pg.reinforce(logp, A),
        pg.unclipped(logp, old, A),
        pg.ppo_clip(logp, old, A, **batch.eps, dual_clip=1.2),
        pg.gspo(logp, old, A, batch.mask, **batch.eps),
        pg.cispo(logp, old, A, **batch.eps),
        pg.sapo(logp, old, A),
        pg.grpo_loss(logp, old, A, batch.mask, **batch.eps),
        pg.token_ratio(logp, old),
        pg.sequence_ratio(logp, old, batch.mask),
    ):
        grads = torch.autograd.grad(per_token.sum(), (logp, old, A), allow_unused=True)
        assert grads[0] is not None
        assert grads[1] is None
        assert grads[2] is None
    V, V_old, R = (
        x.clone().requires_grad_() for x in (batch.values, batch.values_old, batch.returns)
    )
    loss = pg.value_loss(V, V_old, R, clip=0.2).sum()
    assert torch.autograd.grad(loss, (V_old, R), allow_unused=True) == (None, None)


# ---- padding


AVERAGES = {
    "mean_per_sequence": pg.mean_per_sequence,
    "mean_per_token": pg.mean_per_token,
    "mean_fixed_length": partial(pg.mean_fixed_length, length=7),
    "sum_per_sequence": pg.sum_per_sequence,
}
SURROGATES = {
    "reinforce": lambda b, x, old, A: pg.reinforce(x, A),
    "unclipped": lambda b, x, old, A: pg.unclipped(x, old, A),
    "ppo_clip": lambda b, x, old, A: pg.ppo_clip(x, old, A, **b.eps, dual_clip=1.5),
    "gspo": lambda b, x, old, A: pg.gspo(x, old, A, b.mask, **b.eps),
    "cispo": lambda b, x, old, A: pg.cispo(x, old, A, **b.eps),
    "sapo": lambda b, x, old, A: pg.sapo(x, old, A),
    "k1": lambda b, x, old, A: pg.k1(x, old),
    "k2": lambda b, x, old, A: pg.k2(x, old),
    "k3": lambda b, x, old, A: pg.k3(x, old),
    "value_loss": lambda b, x, old, A: pg.value_loss(x, old, A.expand(x.shape), clip=0.3),
}


def fill(x, mask, garbage):
    return torch.where(mask, x, torch.full_like(x, garbage))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("garbage", [(1e4, -1e4), (-1e30, 1e30), (-1e9, -3.0)])
@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_finite_garbage_on_padding_is_not_felt(batch, surrogate, average, garbage, dtype):
    results = []
    for new, old in ((-1.0, -1.0), garbage):
        x = fill(batch.logp, batch.mask, new).to(dtype).requires_grad_()
        A = fill(batch.advantages.expand(4, 6), batch.mask, new).to(dtype)
        per_token = SURROGATES[surrogate](
            batch, x, fill(batch.logp_old, batch.mask, old).to(dtype), A
        )
        loss = AVERAGES[average](per_token, batch.mask)
        results.append((loss, torch.autograd.grad(loss, x)[0]))
    (loss, g), (dirty_loss, dirty_g) = results
    assert torch.equal(loss, dirty_loss)
    assert torch.equal(g, dirty_g)
    assert (g[~batch.mask] == 0).all()


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("average", AVERAGES)
def test_nan_and_inf_on_padding_reach_neither_value_nor_gradient(batch, average, garbage):
    results = []
    for filling in (0.0, garbage):
        x = fill(batch.logp, batch.mask, filling).requires_grad_()
        loss = AVERAGES[average](x, batch.mask.float())
        results.append((loss, torch.autograd.grad(loss, x)[0]))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf"), 1e30])
def test_nan_and_inf_on_padding_do_not_reach_the_grpo_loss(batch, garbage):
    results = []
    for filling in (0.0, garbage):
        logp, old = (fill(x, batch.mask, filling) for x in (batch.logp, batch.logp_old))
        A = fill(batch.advantages.expand(4, 6), batch.mask, filling)
        logp.requires_grad_()
        loss = pg.grpo_loss(logp, old, A, batch.mask, **batch.eps)
        results.append((loss, torch.autograd.grad(loss, logp)[0]))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_inf_on_padding_do_not_reach_the_sequence_ratio(batch, garbage):
    results = []
    for filling in (0.0, garbage):
        logp, old = (fill(x, batch.mask, filling) for x in (batch.logp, batch.logp_old))
        ratio = pg.sequence_ratio(logp.requires_grad_(), old, batch.mask)
        results.append((ratio, torch.autograd.grad(ratio.sum(), logp)[0]))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_an_all_padding_batch_gives_zero_and_no_nan(batch):
    nothing = torch.zeros_like(batch.mask)
    for average in AVERAGES.values():
        x = batch.logp.clone().requires_grad_()
        loss = average(x, nothing)
        assert loss.item() == 0
        assert (torch.autograd.grad(loss, x)[0] == 0).all()


# ---- extremes


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("log_ratio", [-60.0, 60.0])
@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_log_ratios_up_to_60_are_finite(batch, surrogate, advantage, log_ratio, dtype):
    old = torch.zeros(4, 6, dtype=dtype)
    x = torch.full_like(old, log_ratio).requires_grad_()
    A = torch.full((4, 1), advantage, dtype=dtype)
    per_token = SURROGATES[surrogate](batch, x, old, A)
    (g,) = torch.autograd.grad(per_token.sum(), x)
    assert per_token.isfinite().all()
    assert g.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("log_ratio", [100.0, -100.0, 1e4, -1e4])
@pytest.mark.parametrize("surrogate", [s for s in SURROGATES if s != "value_loss"])
def test_far_log_ratios_give_no_nan(batch, surrogate, log_ratio, dtype):
    for advantage in (0.0, 1.0, -1.0):
        old = torch.zeros(4, 6, dtype=dtype)
        x = torch.full_like(old, log_ratio).requires_grad_()
        A = torch.full((4, 1), advantage, dtype=dtype)
        per_token = SURROGATES[surrogate](batch, x, old, A)
        (g,) = torch.autograd.grad(per_token.sum(), x)
        assert per_token.isfinite().all()
        assert g.isfinite().all()
        if advantage == 0 and not surrogate.startswith("k"):
            assert (per_token == 0).all()
            assert (g == 0).all()


def test_within_60_the_ratio_is_exact():
    x = torch.linspace(-60, 60, 121, dtype=torch.float32).reshape(1, -1)
    zero = torch.zeros_like(x)
    assert torch.equal(pg.token_ratio(x, zero), x.exp())
    assert torch.equal(pg.k3(x, zero), torch.expm1(-x) + x)


def test_forbidden_tokens_have_no_entropy_and_no_gradient():
    logits = tensor([[[1.0, 0.5, -torch.inf]]]).requires_grad_()
    reference = tensor([[[0.0, 0.2, -torch.inf]]])
    two = tensor([[[1.0, 0.5]]]).requires_grad_()
    for masked, plain in (
        (pg.entropy(logits), pg.entropy(two)),
        (pg.exact_kl(logits, reference), pg.exact_kl(two, reference[..., :2])),
    ):
        torch.testing.assert_close(masked, plain)
        (g,) = torch.autograd.grad(masked.sum(), logits)
        (expected,) = torch.autograd.grad(plain.sum(), two)
        torch.testing.assert_close(g[..., :2], expected)
        assert g[..., 2].item() == 0
    unreachable = tensor([[[0.0, -torch.inf, -torch.inf]]])
    assert pg.exact_kl(logits, unreachable).item() == float("inf")


def test_rare_tokens_keep_their_log_probability():
    logits = torch.tensor([[[0.0, 200.0], [1e4, 1e4]]])
    logp = pg.token_log_probs(logits, torch.tensor([[0, 0]]))
    torch.testing.assert_close(logp, torch.tensor([[-200.0, -0.6931472]]))


# ---- micro-batches


@pytest.mark.parametrize("split", [[[0, 1], [2, 3]], [[0], [1, 2, 3]], [[3], [2], [1], [0]]])
@pytest.mark.parametrize("average", AVERAGES)
def test_micro_batches_and_one_big_batch_have_one_gradient(batch, average, split):
    logp = batch.logp.requires_grad_()
    knobs = {"tokens": int(batch.mask.sum())} if average == "mean_per_token" else {"sequences": 4}

    def loss(rows, **counts):
        per_token = pg.ppo_clip(
            logp[rows], batch.logp_old[rows], batch.advantages[rows], **batch.eps
        )
        return AVERAGES[average](per_token, batch.mask[rows], **counts)

    (whole,) = torch.autograd.grad(loss(slice(None)), logp)
    for rows in split:
        (loss(rows, **knobs)).backward()
    torch.testing.assert_close(logp.grad, whole, rtol=0, atol=1e-15)
    logp.grad = None
    for rows in split:  # the bug: each slice by its own count, then the mean over slices
        (loss(rows) / len(split)).backward()
    equal_parts = average != "mean_per_token" and len({len(rows) for rows in split}) == 1
    assert torch.allclose(logp.grad, whole, atol=1e-6) == equal_parts


def test_counts_may_be_tensors(batch):
    counts = {"sequences": torch.tensor(8)}, {"tokens": torch.tensor(20.0)}
    half = pg.mean_per_sequence(batch.logp, batch.mask, **counts[0])
    torch.testing.assert_close(half, pg.mean_per_sequence(batch.logp, batch.mask) / 2)
    half = pg.mean_per_token(batch.logp, batch.mask, **counts[1])
    torch.testing.assert_close(half, pg.mean_per_token(batch.logp, batch.mask) / 2)
    assert half.dtype == F64
