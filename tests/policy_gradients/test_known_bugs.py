"""Bugs that people really make: ours gives the right number, the buggy formula another one.

Each test holds the smallest numbers on which right and wrong differ. `g` is the gradient of the
loss with respect to the log-probability. Where the buggy formula is short it is run as well, so
that the stated wrong number is known to be what that bug produces.
"""

import math

import pytest
import torch

import policy_gradients as pg

F64 = torch.float64


def tensor(x):
    return torch.tensor(x, dtype=F64)


def near(actual, expected, tolerance=5e-4):
    if isinstance(actual, torch.Tensor):
        assert actual.dtype == F64
        torch.testing.assert_close(actual.detach(), tensor(expected), rtol=0, atol=tolerance)
    else:
        assert actual == pytest.approx(expected, abs=tolerance)


def loss_and_g(loss, advantage, ratio, old=-1.0):
    """Value and g of one token with the given ratio."""
    logp = tensor([[old + math.log(ratio)]]).requires_grad_()
    value = loss(logp, tensor([[old]]), tensor([[advantage]]))
    (g,) = torch.autograd.grad(value.sum(), logp, allow_unused=True)
    return value.item(), 0.0 if g is None else g.item()


# ---- ratio and clipping

PROBES = ((1, 1.5), (1, 0.5), (-1, 1.5), (-1, 0.5))
SYMMETRIC = {"eps_low": 0.2, "eps_high": 0.2}


def clip(x):
    return x.clamp(0.8, 1.2)


CLIP_BUGS = {
    "max where min belongs": (
        lambda new, old, A: -torch.maximum((new - old).exp() * A, clip((new - old).exp()) * A),
        ((-1.5, -1.5), (-0.8, 0), (1.2, 0), (0.5, 0.5)),
    ),
    "clip without min": (
        lambda new, old, A: -clip((new - old).exp()) * A,
        ((-1.2, 0), (-0.8, 0), (1.2, 0), (0.8, 0)),
    ),
    "no clip": (
        lambda new, old, A: -(new - old).exp() * A,
        ((-1.5, -1.5), (-0.5, -0.5), (1.5, 1.5), (0.5, 0.5)),
    ),
    "ratio inverted": (
        lambda new, old, A: pg.ppo_clip(-new, -old, A, **SYMMETRIC),
        ((-0.667, 0.667), (-1.2, 0), (0.8, 0), (2, -2)),
    ),
    "minus missing": (
        lambda new, old, A: -pg.ppo_clip(new, old, A, **SYMMETRIC),
        ((1.2, 0), (0.5, 0.5), (-1.5, -1.5), (-0.8, 0)),
    ),
    "old log-probability recomputed from the current weights": (
        lambda new, old, A: pg.ppo_clip(new, new.detach(), A, **SYMMETRIC),
        ((-1, -1), (-1, -1), (1, 1), (1, 1)),
    ),
    "difference of logs without exp": (
        lambda new, old, A: -torch.minimum((new - old) * A, clip(new - old) * A),
        ((-0.405, -1), (0.693, -1), (0.8, 0), (0.8, 0)),
    ),
    "quotient of log-probabilities": (
        lambda new, old, A: -torch.minimum(new / old * A, clip(new / old) * A),
        ((-0.595, 1), (-1.2, 0), (0.8, 0), (1.693, -1)),
    ),
}


def test_ppo_clip_at_the_four_probes():
    def ours(new, old, A):
        return pg.ppo_clip(new, old, A, **SYMMETRIC)

    right = ((-1.2, 0), (-0.5, -0.5), (1.5, 1.5), (0.8, 0))
    for probe, expected in zip(PROBES, right, strict=True):
        near(loss_and_g(ours, *probe), expected)


@pytest.mark.parametrize("bug", CLIP_BUGS)
def test_clip_bugs_give_other_numbers(bug):
    formula, wrong = CLIP_BUGS[bug]
    found = [loss_and_g(formula, *probe) for probe in PROBES]
    for value, expected in zip(found, wrong, strict=True):
        near(value, expected)
    ours = [loss_and_g(lambda n, o, A: pg.ppo_clip(n, o, A, **SYMMETRIC), *p) for p in PROBES]
    gap = max(
        abs(a - b) for x, y in zip(found, ours, strict=True) for a, b in zip(x, y, strict=True)
    )
    assert gap > 0.3


def test_old_log_probability_left_in_the_graph_would_kill_the_gradient():
    logp = tensor([[-1.0, -2.0]]).requires_grad_()
    one = tensor([[1.0]])
    for loss in (
        pg.unclipped(logp, logp, one),
        pg.ppo_clip(logp, logp, one, **SYMMETRIC),
        pg.sapo(logp, logp, one),
        pg.gspo(logp, logp, one, torch.ones(1, 2), **SYMMETRIC),
        pg.cispo(logp, logp, one, **SYMMETRIC),
    ):
        (g,) = torch.autograd.grad(loss.sum(), logp)
        near(g, [[-1.0, -1.0]], 1e-12)  # the bug: exactly 0
    ratio = pg.token_ratio(logp, logp)
    near(torch.autograd.grad(ratio.sum(), logp)[0], [[1.0, 1.0]], 1e-12)


def test_the_two_epsilons_are_not_swapped():
    def ours(new, old, A):
        return pg.ppo_clip(new, old, A, eps_low=0.2, eps_high=0.28)

    near(loss_and_g(ours, 1, 1.25), (-1.25, -1.25))  # swapped: −1.2 and dead
    near(loss_and_g(ours, -1, 0.75), (0.8, 0))  # swapped: .75 and alive


def test_a_loss_of_zero_at_the_first_step_is_right():
    logp = tensor([[-1.0], [-2.0]]).requires_grad_()
    mask = torch.ones(2, 1)
    loss = pg.grpo_loss(logp, logp.detach(), tensor([[1.0], [-1.0]]), mask, **SYMMETRIC)
    near(loss.item(), 0.0, 1e-12)
    near(torch.autograd.grad(loss, logp)[0], [[-0.5], [0.5]], 1e-12)
    fractions = pg.clip_fraction(logp, logp.detach(), tensor([[1.0], [-1.0]]), mask, **SYMMETRIC)
    assert fractions == (0, 0, 0)


def test_dual_clip_bounds_negative_advantages_only():
    def dual(new, old, A):
        return pg.ppo_clip(new, old, A, **SYMMETRIC, dual_clip=3.0)

    near(loss_and_g(dual, -1, 10.0), (3.0, 0))  # without: 10, and a tenfold gradient
    near(loss_and_g(lambda n, o, A: pg.ppo_clip(n, o, A, **SYMMETRIC), -1, 10.0), (10, 10))
    near(loss_and_g(dual, -1, 2.0), (2.0, 2.0))
    near(loss_and_g(dual, 1, 10.0), (-1.2, 0))


# ---- advantages


def test_one_right_in_four():
    rewards = tensor([[1.0, 0, 0, 0]])
    near(pg.group_standardized(rewards, ddof=0)[0], [1.732, -0.577, -0.577, -0.577])
    near(pg.group_standardized(rewards, ddof=1)[0], [1.5, -0.5, -0.5, -0.5])
    # divisor G in place of G − 1 would give (1, −¼, …) or (¾, −¼, …)
    near(pg.leave_one_out(rewards)[0], [1.0, -1 / 3, -1 / 3, -1 / 3], 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 64])
@pytest.mark.parametrize("value", [0.7, 0.1, 1e-8, 12345.678])
def test_a_group_without_contrast_is_exactly_zero(dtype, size, value):
    rewards = torch.full((3, size), value, dtype=dtype)
    zero = torch.zeros_like(rewards)
    for eps in (1e-4, 1e-8, 0.0):
        for ddof in (0, 1):
            assert torch.equal(pg.group_standardized(rewards, ddof=ddof, eps=eps), zero)
    assert torch.equal(pg.group_centered(rewards), zero)
    assert torch.equal(pg.batch_centered(rewards), zero)
    assert torch.equal(pg.maxrl(rewards), zero)
    assert torch.equal(pg.whiten(rewards, torch.ones(3, size)), zero)
    if size > 1:
        assert torch.equal(pg.leave_one_out(rewards), zero)


def test_float32_really_needs_the_property_and_not_a_small_deviation():
    rewards = torch.full((8,), 0.7)
    naive = (rewards - rewards.sum() / 8) / (rewards.std() + 1e-8)
    mean_by_halves = (rewards - (rewards.cumsum(0)[-1] / 8)) / (rewards.std() + 1e-8)
    assert max(naive.abs().max(), mean_by_halves.abs().max()) > 0.5


def test_float32_near_equal_is_not_equal():
    rewards = torch.tensor([[0.7, 0.7, 0.7, 0.7 + 1e-6]])
    assert (pg.group_standardized(rewards, eps=0.0).abs() > 0.4).all()
    assert (pg.group_centered(rewards) != 0).all()


def test_group_of_one():
    rewards = tensor([[0.3], [0.9]])
    assert torch.equal(pg.group_standardized(rewards), torch.zeros_like(rewards))
    with pytest.raises(ValueError, match=r"at least two.*\(2, 1\)"):
        pg.leave_one_out(rewards)


def test_statistics_are_those_of_the_group():
    rewards = tensor([[1.0, 0], [1, 1]])
    near(pg.group_centered(rewards), [[0.5, -0.5], [0, 0]], 1e-12)
    # the batch's mean is another function, and the wrong axis would give (0, −.5; 0, .5)
    near(pg.batch_centered(rewards), [[0.25, -0.75], [0.25, 0.25]], 1e-12)


def test_group_means_do_not_mix_adjacent_blocks():
    blocks = tensor([[0.0, 1.0], [10.0, 11.0]])
    interleaved = blocks.flatten().reshape(2, 2).T  # what a wrong layout would hand over
    near(pg.group_centered(blocks), [[-0.5, 0.5], [-0.5, 0.5]], 1e-12)
    assert (pg.group_centered(interleaved).abs() > 4).all()


def test_integer_rewards_are_refused_by_name():
    with pytest.raises(TypeError, match=r"rewards .*torch.int64 of shape \(1, 2\).*\.float\(\)"):
        pg.group_centered(torch.tensor([[1, 0]]))


def test_maxrl_refuses_negative_rewards():
    with pytest.raises(ValueError, match=r"maxrl needs rewards ≥ 0.*-1"):
        pg.maxrl(tensor([[1.0, -1.0]]))


def test_max_only_keeps_ties_and_the_raw_reward():
    near(pg.max_only(tensor([[5.0, 3, 5], [-2, -1, -3]])), [[5.0, 0, 5], [0, -1, 0]], 0)


def test_whitening_leaves_padding_out():
    x, mask = tensor([[1.0, 3, 0]]), torch.tensor([[1, 1, 0]])
    near(pg.whiten(x, mask), [[-1.0, 1.0, 0.0]])
    # padding included gives (−.267, 1.336); padded mean with the masked variance (−.277, 1.387)
    near(pg.whiten(tensor([[1.0, 3, 99]]), mask), [[-1.0, 1.0, 0.0]])


def test_whitening_a_single_token_is_zero():
    for ddof in (0, 1):
        one = pg.whiten(tensor([[5.0, 7.0]]), torch.tensor([[1, 0]]), ddof=ddof)
        assert torch.equal(one, tensor([[0.0, 0.0]]))
    none = pg.whiten(tensor([[5.0, 7.0]]), torch.tensor([[0, 0]]))
    assert torch.equal(none, tensor([[0.0, 0.0]]))


def test_whitening_per_sequence_numbers_weighs_them_by_length():
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    spread = pg.whiten(tensor([[1.0], [3.0]]), mask)
    assert torch.equal(spread, pg.whiten(tensor([[1.0, 1, 1], [3, 3, 3]]), mask))
    near(spread[0, 0].item(), (1 - 1.5) / math.sqrt(0.75), 1e-6)


def test_no_gradient_reaches_the_critic_through_the_advantages():
    values = tensor([[0.2, 0.4]]).requires_grad_()
    logp = tensor([[-1.0, -2.0]]).requires_grad_()
    advantages, returns = pg.gae(
        tensor([[0.0, 1.0]]), values, torch.tensor([[0, 1]]), gamma=1.0, lam=0.9
    )
    actor = pg.ppo_clip(logp, logp.detach(), advantages, **SYMMETRIC).sum()
    assert torch.autograd.grad(actor, values, allow_unused=True, retain_graph=True)[0] is None
    critic = pg.value_loss(values, values, returns, clip=0.2).sum()
    near(torch.autograd.grad(critic, values)[0], (values - returns).tolist(), 1e-12)


def test_reward_to_go_is_not_the_whole_return():
    rewards, done = tensor([[1.0, 2, 4]]), torch.tensor([[0, 0, 1]])
    near(pg.reward_to_go(rewards, done, gamma=1.0), [[7.0, 6, 4]], 0)
    near(pg.reward_to_go(rewards, done, gamma=0.5), [[3.0, 4, 4]], 0)
    packed = torch.tensor([[1, 0, 1]])
    near(pg.reward_to_go(rewards, packed, gamma=1.0), [[1.0, 6, 4]], 0)


def test_optimal_baseline_weighs_by_the_squared_score():
    # two arms, one logit, p = .9, reward (1, 0): b* = .1 gives zero variance, V = .9 does not
    p, rewards, scores = 0.9, tensor([1.0, 0.0]), tensor([[0.1], [-0.9]])
    chance = tensor([p, 1 - p])
    b = pg.optimal_baseline(rewards, chance.sqrt().unsqueeze(1) * scores)
    near(b.item(), 0.1, 1e-12)
    variance = {}
    for name, baseline in (("none", 0.0), ("V", 0.9), ("b*", b)):
        estimate = (rewards - baseline) * scores.squeeze(1)
        variance[name] = (chance @ estimate.square() - (chance @ estimate) ** 2).item()
    near(variance, {"none": 0.0009, "V": 0.0576, "b*": 0.0}, 1e-12)
    silent = pg.optimal_baseline(tensor([1.0, 3.0]), torch.zeros(2, 4, dtype=F64))
    near(silent.item(), 2.0, 0)


# ---- GAE and values

R, V = tensor([[0.0, 1, 0, 1]]), tensor([[0.5, 0.5, 0.5, 0.5]])
DONE = torch.tensor([[0, 1, 0, 1]])
KNOBS = {"gamma": 1.0, "lam": 0.95}


def test_gae_on_two_packed_sequences():
    near(pg.gae(R, V, DONE, **KNOBS)[0], [[0.475, 0.5, 0.475, 0.5]])
    # done shifted by one, carry not reset, bootstrap past the terminal
    for wrong in ((-0.5, 0.525, -0.5, 0.5), (0.904, 0.951, 0.475, 0.5), (0.95, 1, 0.95, 1)):
        assert (pg.gae(R, V, DONE, **KNOBS)[0][0] - tensor(wrong)).abs().max() > 0.4


def test_truncation_is_not_termination():
    rewards, values = torch.zeros(1, 3, dtype=F64), tensor([[0.5, 0.5, 0.5]])
    nothing = torch.zeros(1, 3)
    cut = pg.gae(rewards, values, nothing, **KNOBS, bootstrap=tensor([0.5]))
    near(cut[0], [[0.0, 0, 0]], 1e-12)
    ended = pg.gae(rewards, values, torch.tensor([[0, 0, 1]]), **KNOBS)
    near(ended[0], [[-0.451, -0.475, -0.5]])


def test_bootstrap_per_token_serves_cut_sequences_in_a_packed_row():
    """Two cut sequences and one that ends: the same as three separate rows."""
    rewards, values = tensor([[0.1, 0.2, 0.3, 0.4, 0.5]]), tensor([[1.0, 2, 3, 4, 5]])
    done = torch.tensor([[0, 1, 1, 0, 0]])
    bootstrap = tensor([[99.0, 0.7, 0.0, 99.0, 0.9]])  # 99: not at a cut, must not be read
    packed, returns = pg.gae(rewards, values, done, gamma=0.9, lam=0.8, bootstrap=bootstrap)
    alone = [
        pg.gae(
            rewards[:, a:b],
            values[:, a:b],
            torch.zeros(1, b - a),
            gamma=0.9,
            lam=0.8,
            bootstrap=tensor([v]),
        )[0]
        for a, b, v in ((0, 2, 0.7), (2, 3, 0.0), (3, 5, 0.9))
    ]
    near(packed[0], torch.cat(alone, 1)[0].tolist(), 1e-12)
    near(returns, (packed + values).tolist(), 0)


def test_a_row_that_ended_ignores_the_value_after_the_last_column():
    with_value = pg.gae(R, V, DONE, **KNOBS, bootstrap=tensor([9.0]))
    near(with_value[0], pg.gae(R, V, DONE, **KNOBS)[0].tolist(), 0)


def test_value_clipping_is_pessimistic():
    values = tensor([[1.0]]).requires_grad_()
    loss = pg.value_loss(values, tensor([[0.0]]), tensor([[2.0]]), clip=0.2)
    near(loss.item(), 3.24 / 2, 1e-12)  # min for max: ½, and alive
    near(torch.autograd.grad(loss, values)[0], [[0.0]], 1e-12)
    with pytest.raises(ValueError, match="clip needs values_old"):
        pg.value_loss(values, None, tensor([[2.0]]), clip=0.2)


@pytest.mark.parametrize(
    ("returns", "dead"),
    [(1.0, (0.2, 1.8)), (-1.0, (-1.8, -0.2)), (0.15, None)],
    ids=["above", "below", "within reach of the clip"],
)
def test_value_clipping_is_dead_until_the_overshoot_is_what_the_clipped_value_lacks(returns, dead):
    values = torch.arange(-2.475, 2.5, 0.05, dtype=F64)[None].requires_grad_()
    target = torch.full_like(values, returns).detach()
    loss = pg.value_loss(values, torch.zeros_like(target), target, clip=0.2).sum()
    (slope,) = torch.autograd.grad(loss, values)
    between = torch.zeros_like(values, dtype=torch.bool)
    if dead is not None:
        between = (values > dead[0]) & (values < dead[1])
    near(slope, torch.where(between, 0.0, values - target).tolist(), 1e-12)


def test_clip_fraction_is_measured_before_clipping():
    logp, old = tensor([[0.5, -0.5, 0.5, -0.5]]), torch.zeros(1, 4, dtype=F64)
    A = tensor([[1.0, 1, -1, -1]])
    found = pg.clip_fraction(logp, old, A, torch.ones(1, 4), **SYMMETRIC)
    assert found == (0.25, 0.25, 1.0)


# ---- KL


def test_kl_estimators_at_one_token():
    logp, ref = tensor([[-1.0]]), tensor([[-2.0]])
    near(pg.k1(logp, ref).item(), 1.0)  # inverted: −1
    near(pg.k2(logp, ref).item(), 0.5)
    near(pg.k3(logp, ref).item(), 0.368)  # inverted: .718


def test_kl_as_a_loss_value_and_gradient_are_different_questions():
    z = torch.zeros(2, dtype=F64, requires_grad=True)
    ref = tensor([0.9, 0.1]).log()
    logp = z.log_softmax(0).reshape(1, 2)
    p = logp.exp().detach()

    def expected_g(per_token):
        return torch.autograd.grad((p * per_token).sum(), z, retain_graph=True)[0][0].item()

    reference = ref.reshape(1, 2)
    truth = pg.exact_kl(z.reshape(1, 1, 2), ref.reshape(1, 1, 2)).sum()
    near(torch.autograd.grad(truth, z, retain_graph=True)[0][0].item(), -0.549)
    near(expected_g(pg.k1(logp, reference)), 0.0)
    near(expected_g(pg.k2(logp, reference)), -0.549)
    near(expected_g(pg.k3(logp, reference)), -0.400)
    ratio = pg.token_ratio(logp, logp.detach())
    near(expected_g(ratio * pg.k3(logp, reference)), -0.549)
    for k in (pg.k1, pg.k3):
        near((p * k(logp, reference)).sum().item(), truth.item(), 1e-12)


def test_k3_keeps_its_digits_in_float32():
    log_ratio = torch.tensor([[1e-4]])
    k3 = pg.k3(log_ratio, torch.zeros(1, 1)).item()
    assert k3 == pytest.approx(5.0e-9, rel=1e-2)
    naive = (torch.exp(-log_ratio) - 1 + log_ratio).item()
    assert abs(naive - 5.0e-9) > 1e-9  # 1.66e-8, or negative
    small = torch.linspace(-1e-3, 1e-3, 2001).reshape(1, -1)
    assert (pg.k3(small, torch.zeros_like(small)) >= 0).all()


def test_k1_to_k3_reach_the_reference():
    logp, ref = tensor([[-1.0]]), tensor([[-2.0]]).requires_grad_()
    for k, expected in ((pg.k1, -1.0), (pg.k2, -1.0), (pg.k3, math.exp(-1) - 1)):
        near(torch.autograd.grad(k(logp, ref).sum(), ref)[0], [[expected]], 1e-12)


def test_kl_shaped_rewards():
    logp, ref = tensor([[-1.0, -1, -1]]), tensor([[-2.0, -2, -9]])
    shaped = pg.shape_rewards_with_kl(tensor([5.0]), logp, ref, torch.tensor([[1, 1, 0]]), beta=0.1)
    near(shaped, [[-0.1, 4.9, 0.0]], 1e-12)  # wrong sign: .1; on padding: the score at the end
    gap = pg.shape_rewards_with_kl(tensor([5.0]), logp, ref, torch.tensor([[1, 0, 1]]), beta=0.1)
    near(gap, [[-0.1, 0.0, 4.2]], 1e-12)  # a mask with a hole (a tool's output)
    empty = pg.shape_rewards_with_kl(tensor([5.0]), logp, ref, torch.zeros(1, 3), beta=0.1)
    near(empty, [[0.0, 0.0, 0.0]], 0)
    scores = tensor([5.0]).requires_grad_()
    logp.requires_grad_()
    graph = pg.shape_rewards_with_kl(scores, logp, ref, torch.ones(1, 3), beta=0.1)
    assert not graph.requires_grad


def test_adaptive_beta_moves_the_right_way_and_cannot_start_at_zero():
    assert pg.adaptive_beta(1.0, 0.1, target=0.01) == 2.0
    assert pg.adaptive_beta(1.0, 0.001, target=0.01) == 0.5
    assert pg.adaptive_beta(1.0, torch.tensor(0.01), target=0.01) == 1.0
    assert pg.adaptive_beta_proportional(1.0, 0.1, target=0.01) > 1
    assert pg.adaptive_beta_dual_ascent(0.0, 0.1, target=0.01, step_size=1.0) > 0
    for rule in (pg.adaptive_beta, pg.adaptive_beta_proportional):
        with pytest.raises(ValueError, match="beta must be greater than 0"):
            rule(0.0, 0.1, target=0.01)
        with pytest.raises(ValueError, match="kl must be finite"):
            rule(1.0, float("nan"), target=0.01)


# ---- masks and tokens


def test_the_first_end_token_is_trained_and_nothing_after_it():
    E = 9
    tokens = torch.tensor([[5, 7, E, E], [E, E, 5, E], [5, 7, 8, 6], [5, 6, 7, E], [5, E, 5, 5]])
    assert pg.response_mask(tokens, eos_id=E).int().tolist() == [
        [1, 1, 1, 0],  # dropped with the padding: 1,1,0,0; everything kept: 1,1,1,1
        [1, 0, 0, 0],
        [1, 1, 1, 1],  # cut off at the limit
        [1, 1, 1, 1],
        [1, 1, 0, 0],
    ]


def test_temperature_divides_the_logits_and_nothing_is_shifted():
    logits = tensor([[[2.0, 0], [0, 3]]])
    tokens = torch.tensor([[0, 1]])
    near(pg.token_log_probs(logits, tokens, temperature=0.5)[0, 0].item(), -0.018)
    near(pg.token_log_probs(logits, tokens)[0, 0].item(), -0.127)
    near(pg.token_log_probs(logits * 0.5, tokens)[0, 0].item(), -0.313)  # multiplied
    near(pg.token_log_probs(logits, tokens)[0, 1].item(), -math.log(1 + math.exp(-3)), 1e-12)
    near(pg.entropy(logits, temperature=0.5)[0, 0].item(), 0.0901)


def test_tokens_outside_the_vocabulary_are_named():
    with pytest.raises(ValueError, match=r"tokens must lie in 0 … 1.*-100 … 0"):
        pg.token_log_probs(tensor([[[2.0, 0]] * 2]), torch.tensor([[0, -100]]))


# ---- averages

AGREES = torch.tensor([[1, 1, 1], [1, 0, 0]])


@pytest.mark.parametrize(
    ("average", "expected"),
    [
        (lambda x: pg.mean_per_sequence(x, AGREES), (-1 / 6, 1 / 2)),
        (lambda x: pg.mean_per_token(x, AGREES), (-1 / 4, 1 / 4)),
        (lambda x: pg.mean_fixed_length(x, AGREES, length=4), (-1 / 8, 1 / 8)),
        (lambda x: pg.sum_per_sequence(x, AGREES), (-1 / 2, 1 / 2)),
    ],
)
def test_weight_of_one_token_under_each_average(average, expected):
    logp = torch.zeros(2, 3, dtype=F64, requires_grad=True)
    loss = average(pg.reinforce(logp, tensor([[1.0], [-1.0]])))
    (g,) = torch.autograd.grad(loss, logp)
    near(g, [[expected[0]] * 3, [expected[1], 0, 0]], 1e-12)


def test_the_denominator_is_that_of_the_optimiser_step():
    first, second = torch.full((1, 1000), 0.5, dtype=F64), torch.full((1, 1000), 0.3, dtype=F64)
    masks = torch.arange(1000) < 100, torch.arange(1000) < 900
    parts = [
        pg.mean_per_token(x, m.unsqueeze(0), tokens=1000)
        for x, m in zip((first, second), masks, strict=True)
    ]
    near(sum(parts).item(), 0.32, 1e-12)
    each = [
        pg.mean_per_token(x, m.unsqueeze(0)) for x, m in zip((first, second), masks, strict=True)
    ]
    near(sum(each).item() / 2, 0.40, 1e-12)  # the bug


# ---- particular algorithms


def test_truncated_weights_are_capped_not_floored_or_inverted():
    learner, sampler = tensor([[-1.0, -3.0]]), tensor([[-2.0, -2.0]])
    weights = pg.truncated_importance_weight(learner.requires_grad_(), sampler, cap=2.0)
    near(weights, [[2.0, math.exp(-1)]], 1e-12)  # inverted: .368, floored: 2.718
    assert not weights.requires_grad


def test_gspo_takes_the_mean_of_the_log_ratios_and_no_padding():
    logp = tensor([[0.2, 0.4, 0.6, 50.0]])
    ratio = pg.sequence_ratio(logp, torch.zeros_like(logp), torch.tensor([[1, 1, 1, 0]]))
    near(ratio, [[1.492]])
    assert ratio.item() < 3  # the sum in place of the mean gives 3.320
    empty = pg.sequence_ratio(logp, torch.zeros_like(logp), torch.zeros(1, 4))
    near(empty, [[1.0]], 0)


def test_cispo_keeps_the_log_probability():
    near(
        loss_and_g(lambda n, o, A: pg.cispo(n, o, A, eps_low=1.0, eps_high=0.28), 1, 1.5),
        (-1.28 * (-1 + math.log(1.5)), -1.28),
    )


def test_sapo_has_slope_one_at_ratio_one():
    near(loss_and_g(pg.sapo, 1, 1.0), (-2.0, -1.0))  # without 4/τ: g = −.25
    near(loss_and_g(pg.sapo, -1, 1.0), (2 / 1.05, 1.0))
    near(loss_and_g(lambda n, o, A: pg.sapo(n, o, A, tau_pos=4.0), 1, 1.0), (-0.5, -1.0))


def test_overlong_ramp():
    lengths = tensor([384.0, 448, 512, 600])
    near(pg.overlong_penalty(lengths, max_length=512, cache=128), [0.0, -0.5, -1, -1], 0)


def test_dapo_filter_reads_correctness():
    correct = torch.tensor([[0, 0], [1, 1], [1, 0]])
    assert pg.dapo_filter(correct).tolist() == [False, False, True]
    shaped = correct + tensor([[0.0, -0.5], [0, 0], [0, 0]])  # a length penalty hides all-wrong
    assert pg.dapo_filter(shaped).tolist() == [True, False, True]
    assert pg.dapo_filter(correct * 2 - 1, low=-1.0).tolist() == [False, False, True]
    assert pg.dapo_filter(correct.bool()).tolist() == [False, False, True]


# ---- preferences


def test_dpo_is_finite_far_from_the_reference():
    four = tensor([-100.0]), tensor([0.0]), tensor([0.0]), tensor([0.0])
    near(pg.dpo(*four, beta=1.0), [100.0], 1e-9)
    near(pg.bradley_terry(tensor([-100.0]), tensor([0.0])), [100.0], 1e-9)
    single = [x.float() for x in four]
    near(pg.dpo(*single, beta=10.0).double(), [1000.0], 1e-3)  # log(sigmoid) would be inf


def test_chosen_and_rejected_are_not_swapped():
    zero = tensor([0.0])
    at_reference = pg.dpo(zero, zero, zero, zero, beta=0.1)
    near(at_reference, [math.log(2)], 1e-12)  # where the swap cannot be seen
    assert pg.dpo(tensor([1.0]), zero, zero, zero, beta=1.0) < at_reference
    assert pg.ipo(tensor([1.0]), zero, zero, zero, tau=0.5).item() == 0
    assert pg.bradley_terry(tensor([1.0]), zero, margin=1.0).item() == pytest.approx(math.log(2))


def test_preference_losses_leave_reference_and_baseline_alone():
    leaf = [tensor([v, v + 0.5]).requires_grad_() for v in (-1.0, -2.0, -1.5, -1.2)]
    for loss in (pg.dpo(*leaf, beta=0.3), pg.ipo(*leaf, tau=0.3)):
        grads = torch.autograd.grad(loss.sum(), leaf, allow_unused=True)
        assert [g is None for g in grads] == [False, False, True, True]
    kto = pg.kto(leaf[0], leaf[1], torch.tensor([1, 0]), leaf[2], leaf[3], beta=0.5)
    grads = torch.autograd.grad(kto.sum(), leaf, allow_unused=True)
    assert [g is None for g in grads] == [False, True, True, True]


def test_kto_baseline_is_an_average_clipped_at_zero():
    logp, ref, good = tensor([0.3, -0.2]), tensor([0.0, 0.0]), torch.tensor([1, 0])

    def loss(kl_logp):
        return pg.kto(logp, ref, good, tensor(kl_logp), torch.zeros(2, dtype=F64), beta=1.0)

    assert torch.equal(loss([-5.0, 1.0]), loss([0.0, 0.0]))  # mean < 0: z₀ = 0
    z0 = 0.5
    near(
        loss([0.0, 1.0]),
        [1 - 1 / (1 + math.exp(-(0.3 - z0))), 1 - 1 / (1 + math.exp(-(z0 + 0.2)))],
        1e-12,
    )


# ---- trust region


def test_natural_gradient_ignores_how_the_policy_is_parametrised():
    """Scaling a parameter by c scales its step by 1/c; the plain gradient does the opposite."""
    fisher, grad = tensor([[2.0, 0.3], [0.3, 1.0]]), tensor([0.4, -0.7])
    step = pg.natural_gradient_step(grad, fisher, delta=0.05)
    scale = torch.diag(tensor([10.0, 0.1]))
    other = pg.natural_gradient_step(scale @ grad, scale @ fisher @ scale, delta=0.05)
    near(scale @ other, step.tolist(), 1e-10)
    near((step @ fisher @ step / 2).item(), 0.05, 1e-12)
    assert step @ grad > 0


def test_natural_gradient_without_a_measurable_part_is_zero():
    fisher = tensor([[1.0, -1], [-1, 1]])
    for grad in ([0.0, 0.0], [1.0, 1.0]):
        near(pg.natural_gradient_step(tensor(grad), fisher, delta=0.1), [0.0, 0.0], 1e-12)
