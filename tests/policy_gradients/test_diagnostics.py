"""Diagnostics against direct computation, token by token."""

import math

import pytest
import torch

import policy_gradients as pg


def valid_tokens(batch):
    return [(i, t) for i in range(4) for t in range(6) if batch.mask[i, t]]


def test_clip_fraction_by_side(batch):
    tokens = valid_tokens(batch)
    ratio = [batch.ratios[i, t].item() for i, t in tokens]
    A = [batch.advantages[i, 0].item() for i, _ in tokens]
    pairs = list(zip(ratio, A, strict=True))
    found = pg.clip_fraction(batch.logp, batch.logp_old, batch.advantages, batch.mask, **batch.eps)
    assert found.high == sum(r > 1.28 and a > 0 for r, a in pairs) / len(pairs) > 0
    assert found.low == sum(r < 0.8 and a < 0 for r, a in pairs) / len(pairs) > 0
    assert found.outside == sum(not 0.8 <= r <= 1.28 for r in ratio) / len(pairs)
    logp = batch.logp.requires_grad_()
    per_token = pg.ppo_clip(logp, batch.logp_old, batch.advantages, **batch.eps)
    (g,) = torch.autograd.grad(per_token.sum(), logp)
    dead = (g[batch.mask] == 0).double().mean().item()
    assert found.high + found.low == pytest.approx(dead)


def test_ratio_quantiles(batch):
    ratios = batch.ratios[batch.mask]
    asked = (0.0, 0.25, 0.5, 0.9, 1.0)
    found = pg.ratio_quantiles(batch.logp, batch.logp_old, batch.mask, quantiles=asked)
    expected = torch.quantile(ratios, torch.tensor(asked, dtype=ratios.dtype)).tolist()
    assert list(found) == list(asked)
    assert list(found.values()) == pytest.approx(expected)
    nothing = pg.ratio_quantiles(batch.logp, batch.logp_old, torch.zeros_like(batch.mask))
    assert all(math.isnan(q) for q in nothing.values())


def test_approximate_kl_is_that_of_the_old_policy_to_the_new(batch):
    ratios = batch.ratios[batch.mask]
    expected = ((ratios - 1) - ratios.log()).mean().item()
    found = pg.approximate_kl(batch.logp, batch.logp_old, batch.mask)
    assert found == pytest.approx(expected)
    # in expectation over samples of the old policy it is KL(old‖new), exactly
    old, new = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.9, 0.1]).log()
    estimate = sum(
        0.5 * pg.approximate_kl(n.reshape(1, 1), o.reshape(1, 1), torch.ones(1, 1))
        for n, o in zip(new, old, strict=True)
    )
    exact = pg.exact_kl(old.reshape(1, 1, 2), new.reshape(1, 1, 2)).item()
    assert estimate == pytest.approx(exact, rel=1e-5)


def test_sampled_entropy_and_mean_over_tokens(batch):
    values = [batch.logp_old[i, t].item() for i, t in valid_tokens(batch)]
    mean = sum(values) / len(values)
    assert pg.sampled_entropy(batch.logp_old, batch.mask) == pytest.approx(-mean)
    assert pg.mean_over_tokens(batch.logp_old, batch.mask) == pytest.approx(mean)
    assert pg.mean_over_tokens(batch.logp_old, torch.zeros_like(batch.mask)) == 0


def test_diagnostics_do_not_feel_padding(batch):
    def fill(x, garbage):
        return torch.where(batch.mask, x, garbage)

    for garbage in (1e30, float("nan"), float("inf")):
        logp, old = fill(batch.logp, garbage), fill(batch.logp_old, -garbage)
        A = fill(batch.advantages.expand(4, 6), garbage)
        for function, clean, dirty, knobs in (
            (
                pg.clip_fraction,
                (batch.logp, batch.logp_old, batch.advantages),
                (logp, old, A),
                batch.eps,
            ),
            (pg.ratio_quantiles, (batch.logp, batch.logp_old), (logp, old), {}),
            (pg.approximate_kl, (batch.logp, batch.logp_old), (logp, old), {}),
            (pg.sampled_entropy, (batch.logp,), (logp,), {}),
        ):
            expected = function(*clean, batch.mask, **knobs)
            assert function(*dirty, batch.mask, **knobs) == expected


def test_zero_contrast_share():
    rewards = torch.tensor([[1.0, 1], [0, 1], [0.7, 0.7], [0, 0]])
    assert pg.zero_contrast_share(rewards) == 0.75


def test_effective_sample_size():
    weights = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)
    expected = weights.sum().item() ** 2 / weights.square().sum().item()
    assert pg.effective_sample_size(weights.log()) == pytest.approx(expected)
    assert pg.effective_sample_size(weights.log() + 1000) == pytest.approx(expected)
    assert pg.effective_sample_size(torch.zeros(7)) == pytest.approx(7)
    assert pg.effective_sample_size(torch.tensor([0.0, -1e4])) == pytest.approx(1)
    with pytest.raises(ValueError, match="at least one"):
        pg.effective_sample_size(torch.zeros(0))


def test_length_statistics(batch):
    found = pg.length_statistics(batch.mask)
    assert found.mean == 2.5
    assert found.std == pytest.approx(math.sqrt(1.25))
    assert (found.shortest, found.longest, found.at_limit) == (1, 4, 0.0)
    assert pg.length_statistics(torch.tensor([[1, 1], [1, 0]])).at_limit == 0.5
    with pytest.raises(ValueError, match="at least one response"):
        pg.length_statistics(torch.zeros(0, 5))
