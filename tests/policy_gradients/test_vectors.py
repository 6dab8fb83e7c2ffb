"""Every case of vectors.json, values and gradients, to 1e-10 in float64 under a float32 default.

The file was computed by code that shares nothing with this library. Each case is run with the
padding as given and with large finite garbage in it, and with the mask as bool, integer and float.
A case that no checker claims fails the test, so a new vector cannot be forgotten.
"""

import dataclasses
import fnmatch
import json
import math
from functools import partial
from itertools import combinations_with_replacement, product
from pathlib import Path

import pytest
import torch

import policy_gradients as pg

CASES = json.loads((Path(__file__).parent / "vectors.json").read_text())["cases"]
tensor = partial(torch.tensor, dtype=torch.float64)
CHECKERS = {}

AVERAGES = {
    "seq_mean_token_mean": pg.mean_per_sequence,
    "token_mean": pg.mean_per_token,
    "seq_mean_token_sum_norm": partial(pg.mean_fixed_length, length=5),
    "seq_mean_token_sum": pg.sum_per_sequence,
}


def checks(*patterns):
    """Register the function as the checker of all cases whose name matches one of the patterns."""

    def register(function):
        CHECKERS.update(dict.fromkeys(patterns, function))
        return function

    return register


def patterns_of(name):
    return [pattern for pattern in CHECKERS if fnmatch.fnmatchcase(name, pattern)]


@pytest.mark.parametrize("name", CASES)
def test_every_case_is_claimed_by_exactly_one_checker(name):
    assert len(patterns_of(name)) == 1, f"{name} is claimed by {patterns_of(name)}"


def test_every_checker_has_a_case():
    unused = [p for p in CHECKERS if not any(p in patterns_of(name) for name in CASES)]
    assert not unused


MASK_DTYPES = (torch.bool, torch.int64, torch.float32, torch.float64)
MASKED = [name for name in CASES if "mask" in CASES[name]["inputs"]]
RUNS = [(name, None, torch.float64) for name in CASES]
RUNS += [(name, 1e6, dtype) for name in MASKED for dtype in MASK_DTYPES]


@pytest.mark.parametrize(("name", "dirt", "mask_dtype"), RUNS)
def test_case(name, dirt, mask_dtype):
    assert torch.get_default_dtype() == torch.float32
    (pattern,) = patterns_of(name)
    inputs = Inputs(CASES[name]["inputs"], dirt, mask_dtype)
    CHECKERS[pattern](name, inputs, CASES[name]["expected"])


class Inputs:
    """Attribute access to a case's inputs as float64 tensors; padding optionally filled."""

    def __init__(self, raw, dirt, mask_dtype):
        self.raw = raw
        self.dirt = dirt
        if "mask" in raw:
            self.valid = torch.tensor(raw["mask"]).bool()
            self.mask = self.valid.to(mask_dtype)
        if "adv" in raw:
            self.adv = tensor(raw["adv"]).reshape(-1, 1)

    def __getattr__(self, name):
        if name.startswith("_") or name not in self.raw:
            raise AttributeError(name)
        x = tensor(self.raw[name])
        if self.dirt is not None and "mask" in self.raw and x.shape == self.valid.shape:
            noise = torch.Generator().manual_seed(len(name))
            garbage = self.dirt * torch.randn(x.shape, generator=noise, dtype=x.dtype)
            x = torch.where(self.valid, x, garbage)
        return x

    def leaf(self, name):
        return getattr(self, name).requires_grad_()


def same(actual, expected):
    expected = tensor(expected) if not isinstance(expected, torch.Tensor) else expected
    assert actual.dtype == torch.float64
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


def same_value_and_grad(loss, leaf, expected):
    same(loss, expected["value"])
    (grad,) = torch.autograd.grad(loss, leaf)
    same(grad, expected["grad"])


def differs(actual, expected):
    assert (actual - tensor(expected)).abs().max() > 1e-10


def average_of(name):
    return AVERAGES[name.rsplit("/", 1)[-1]]


# ---- averages


@checks("masked_mean/seq_*", "masked_mean/token_mean")
def _(name, i, expected):
    x = i.leaf("x")
    same_value_and_grad(average_of(name)(x, i.mask), x, expected)


@checks("masked_mean/empty_row")
def _(name, i, expected):
    same(pg.mean_per_sequence(i.x, i.mask), expected["seq_mean_token_mean"])
    same(pg.mean_per_token(i.x, i.mask), expected["token_mean"])
    length_3 = pg.mean_fixed_length(i.x, i.mask, length=3)
    same(length_3, expected["seq_mean_token_sum_norm_Lmax3"])


@checks("masked_mean/book_hand_example")
def _(name, i, expected):
    x = i.leaf("x")
    mask = torch.arange(10) < i.lengths.unsqueeze(1)
    averages = {
        "seq_mean_token_mean": pg.mean_per_sequence(x, mask),
        "token_mean": pg.mean_per_token(x, mask),
        "seq_mean_token_sum_norm_Lmax10": pg.mean_fixed_length(x, mask, length=10),
    }
    for key, value in averages.items():
        same(value, expected[key])
        (grad,) = torch.autograd.grad(value, x)
        same(grad[0, :5], [expected["per_token_weight_short"][key]] * 5)
        same(grad[1], [expected["per_token_weight_long"][key]] * 10)


# ---- surrogates


@checks("reinforce/*")
def _(name, i, expected):
    logp = i.leaf("logp")
    per_token = pg.reinforce(logp, i.adv)
    same_value_and_grad(average_of(name)(per_token, i.mask), logp, expected)


@checks("ppo_clip/symmetric/*", "ppo_clip/clip_higher/*", "dapo/loss")
def _(name, i, expected):
    knobs = {"eps_low": i.raw["eps_lo"], "eps_high": i.raw["eps_hi"]}
    average = AVERAGES["token_mean"] if name == "dapo/loss" else average_of(name)
    logp = i.leaf("logp")
    loss = average(pg.ppo_clip(logp, i.logp_old, i.adv, **knobs), i.mask)
    same_value_and_grad(loss, logp, expected)
    fraction = pg.clip_fraction(logp, i.logp_old, i.adv, i.mask, **knobs)
    if name == "dapo/loss":
        row = pg.ALGORITHMS["dapo"]
        same_value_and_grad(row.loss(pg.Batch(logp, i.logp_old, i.adv, i.mask)), logp, expected)
        return
    assert fraction.high + fraction.low == pytest.approx(expected["clip_frac_active"], abs=1e-12)
    if knobs["eps_low"] == knobs["eps_high"]:
        assert fraction.outside == pytest.approx(expected["frac_ratio_outside_eps_lo"], abs=1e-12)
    if average is pg.mean_per_sequence:
        loss = pg.grpo_loss(logp, i.logp_old, i.adv, i.mask, **knobs)
        same_value_and_grad(loss, logp, expected)


@checks("ppo_clip/six_cases")
def _(name, i, expected):
    eps = i.raw["eps"]
    for case in expected["rows"]:
        logp = tensor([[math.log(case["rho"])]]).requires_grad_()
        advantage = tensor([[case["adv"]]])
        old = torch.zeros_like(logp)
        loss = pg.ppo_clip(logp, old, advantage, eps_low=eps, eps_high=eps)
        (grad,) = torch.autograd.grad(loss, logp)
        same(-loss, [[case["objective"]]])
        same(-grad, [[case["dobj_dlogp"]]])
        same(-pg.unclipped(logp, old, advantage), [[case["unclipped"]]])


@checks("gspo/*")
def _(name, i, expected):
    knobs = {"eps_low": i.raw["eps_lo"], "eps_high": i.raw["eps_hi"]}
    logp = i.leaf("logp")
    per_token = pg.gspo(logp, i.logp_old, i.adv, i.mask, **knobs)
    assert per_token.shape == logp.shape
    same_value_and_grad(pg.mean_per_sequence(per_token, i.mask), logp, expected)
    same(pg.sequence_ratio(logp, i.logp_old, i.mask).squeeze(1), expected["seq_ratio"])
    row = dataclasses.replace(pg.ALGORITHMS["gspo"], knobs=knobs)
    same_value_and_grad(row.loss(pg.Batch(logp, i.logp_old, i.adv, i.mask)), logp, expected)


@checks("cispo/*")
def _(name, i, expected):
    logp = i.leaf("logp")
    knobs = {"eps_low": i.raw["eps_lo"], "eps_high": i.raw["eps_hi"]}
    per_token = pg.cispo(logp, i.logp_old, i.adv, **knobs)
    weights = -torch.autograd.grad(per_token.sum(), logp, retain_graph=True)[0] / i.adv
    same_value_and_grad(average_of(name)(per_token, i.mask), logp, expected)
    same(torch.where(i.valid, weights, 0.0), expected["weights"])


@checks("sapo/*")
def _(name, i, expected):
    logp = i.leaf("logp")
    per_token = pg.sapo(logp, i.logp_old, i.adv, tau_pos=i.raw["tau_pos"], tau_neg=i.raw["tau_neg"])
    same_value_and_grad(pg.mean_per_sequence(per_token, i.mask), logp, expected)
    row = pg.ALGORITHMS["sapo"]
    same_value_and_grad(row.loss(pg.Batch(logp, i.logp_old, i.adv, i.mask)), logp, expected)


@checks("grpo/full_k3")
def _(name, i, expected):
    logp = i.leaf("logp")
    row = dataclasses.replace(pg.ALGORITHMS["grpo"], kl_coefficient=i.raw["beta"])
    assert dict(row.knobs) == {"eps_low": i.raw["eps"], "eps_high": i.raw["eps"]}
    batch = pg.Batch(logp, i.logp_old, i.adv, i.mask, logp_ref=i.logp_ref)
    same_value_and_grad(row.loss(batch), logp, expected)


@checks("dapo/microbatch_trap")
def _(name, i, expected):
    row = pg.ALGORITHMS["dapo"]
    batch = pg.Batch(i.logp, i.logp_old, i.adv, i.mask)
    same(row.loss(batch), expected["full_batch"])
    tokens = int(i.valid.sum())
    right, trap = 0.0, 0.0
    for rows in i.raw["micro_batches"]:
        part = pg.Batch(i.logp[rows], i.logp_old[rows], i.adv[rows], i.mask[rows])
        trap = trap + row.loss(part) / len(i.raw["micro_batches"])
        right = right + row.loss(dataclasses.replace(part, tokens=tokens))
    same(right, expected["full_batch"])
    same(trap, expected["mean_of_micro_batches"])


@checks("tis/*")
def _(name, i, expected):
    logp = i.leaf("logp")
    weights = pg.truncated_importance_weight(i.logp_old_learner, i.logp_sampler, cap=i.raw["C"])
    same(torch.where(i.valid, weights, 0.0), expected["weights"])
    same(torch.where(i.valid, weights == i.raw["C"], False).double(), expected["capped"])
    eps = i.raw["eps"]
    per_token = pg.ppo_clip(logp, i.logp_old_learner, i.adv, eps_low=eps, eps_high=eps)
    same_value_and_grad(pg.mean_per_token(weights * per_token, i.mask), logp, expected)


# ---- advantages


@checks("advantages/*")
def _(name, i, expected):
    # two groups, so that a reduction over the wrong axis would be seen
    rewards = torch.stack([i.rewards, i.rewards.flip(0) + 1])
    same(pg.leave_one_out(rewards)[0], expected["rloo"])
    same(pg.group_centered(rewards)[0], expected["dr_grpo"])
    same(pg.max_only(rewards)[0], expected["max_reward"])
    same(pg.maxrl(rewards)[0], expected["maxrl"])
    for ddof, eps in product((0, 1), (1e-4, 1e-6)):
        standardized = pg.group_standardized(rewards, ddof=ddof, eps=eps)
        same(
            standardized[0], expected[f"grpo_ddof{ddof}_eps{'0.0001' if eps == 1e-4 else '1e-06'}"]
        )
    assert torch.equal(
        pg.group_standardized(rewards), pg.group_standardized(rewards, ddof=1, eps=1e-4)
    )
    assert pg.zero_contrast_share(i.rewards.unsqueeze(0)) == float(expected["zero_contrast"])
    if not expected["zero_contrast"]:
        differs(pg.max_only(rewards)[0], expected["max_centered"])  # another convention


@checks("gae/packed_*")
def _(name, i, expected):
    rewards, values, done = (getattr(i, key).unsqueeze(0) for key in ("rewards", "values", "done"))
    advantages, returns = pg.gae(rewards, values, done, gamma=i.raw["gamma"], lam=i.raw["lam"])
    same(advantages[0], expected["adv"])
    same(returns[0], expected["returns"])
    if i.raw["lam"] == 1:
        to_go = pg.reward_to_go(rewards, done, gamma=i.raw["gamma"])
        same(to_go[0], expected["returns"])


@checks("gae/truncated_bootstrap")
def _(name, i, expected):
    rewards, values, done = (getattr(i, key).unsqueeze(0) for key in ("rewards", "values", "done"))
    last = tensor([i.raw["last_value"]])
    knobs = {"gamma": i.raw["gamma"], "lam": i.raw["lam"]}
    same(pg.gae(rewards, values, done, bootstrap=last, **knobs)[0][0], expected["adv"])
    per_token = torch.zeros_like(rewards)
    per_token[:, -1] = last
    same(pg.gae(rewards, values, done, bootstrap=per_token, **knobs)[0][0], expected["adv"])


@checks("gae/n_step_mixture")
def _(name, i, expected):
    rewards, values = i.rewards.unsqueeze(0), i.values.unsqueeze(0)
    done = torch.tensor([[0, 0, 0, 1]])
    advantages, _ = pg.gae(rewards, values, done, gamma=i.raw["gamma"], lam=i.raw["lam"])
    same(advantages[0, 0], expected["gae"])
    same(tensor(expected["n_step"]) @ tensor(expected["weights"]), expected["gae"])
    differs(advantages[0, 0], expected["truncated_sum_without_tail"])


@checks("whiten/ddof0", "whiten/ddof1")
def _(name, i, expected):
    y = pg.whiten(i.x, i.mask, ddof=int(name[-1]), eps=i.raw["eps"])
    same(y, expected["y"])
    if name == "whiten/ddof0":
        assert torch.equal(y, pg.whiten(i.x, i.mask))


@checks("whiten/ddof1_no_shift_mean", "whiten/rsqrt_variant_ddof1")
def _(name, i, expected):
    differs(pg.whiten(i.x, i.mask, ddof=1, eps=i.raw["eps"]), expected["y"])  # other conventions


@checks("kl_shaped_rewards/k1")
def _(name, i, expected):
    rewards = pg.shape_rewards_with_kl(i.score, i.logp, i.logp_ref, i.mask, beta=i.raw["beta"])
    same(rewards, expected["rewards"])
    same(rewards.sum(1), expected["sequence_total"])
    row = dataclasses.replace(pg.ALGORITHMS["rloo"], kl_coefficient=i.raw["beta"])
    same(row.sequence_rewards(i.score, i.logp, i.logp_ref, i.mask), expected["sequence_total"])


# ---- values and KL


@checks("value_loss/*")
def _(name, i, expected):
    values = i.leaf("values")
    old = i.values_old if "values_old" in i.raw else None
    per_token = pg.value_loss(values, old, i.returns, clip=i.raw.get("eps_v"))
    same_value_and_grad(pg.mean_per_token(per_token, i.mask), values, expected)


def kl_case(i, estimator):
    logp = i.leaf("logp")
    per_token = estimator(logp, i.logp_ref)
    return logp, per_token, pg.mean_per_token(per_token, i.mask)


@checks("kl/k1", "kl/k2", "kl/k3")
def _(name, i, expected):
    logp, per_token, loss = kl_case(i, getattr(pg, name[-2:]))
    same_value_and_grad(loss, logp, expected)
    same(torch.where(i.valid, per_token, 0.0), expected["per_token"])


@checks("kl/abs", "kl/reverse_sign_k1*", "kl/swapped_k3*")
def _(name, i, expected):
    for estimator in (pg.k1, pg.k2, pg.k3):  # other conventions
        logp, _, loss = kl_case(i, estimator)
        differs(loss, expected["value"])
        differs(torch.autograd.grad(loss, logp)[0], expected["grad"])


@checks("kl/k3_importance_weighted")
def _(name, i, expected):
    logp = i.leaf("logp")
    per_token = pg.token_ratio(logp, i.logp_old) * pg.k3(logp, i.logp_ref)
    same_value_and_grad(pg.mean_per_token(per_token, i.mask), logp, expected)


# ---- filters, preferences, trust regions


@checks("dapo/filter")
def _(name, i, expected):
    keep = pg.dapo_filter(i.rewards, low=i.raw["min"], high=i.raw["max"])
    assert keep.tolist() == expected["keep_all_min_max"]
    assert (i.rewards.std(1) > 0).tolist() == expected["keep_std_positive"]


@checks("dapo/overlong")
def _(name, i, expected):
    penalty = pg.overlong_penalty(i.lengths, max_length=i.raw["L_max"], cache=i.raw["L_cache"])
    same(penalty, expected["penalty"])


@checks("dpo/*", "ipo")
def _(name, i, expected):
    logp = i.leaf("logp")
    four = (*logp.unbind(1), *i.logp_ref.unbind(1))
    if name == "ipo":
        loss = pg.ipo(*four, tau=i.raw["tau"])
    else:
        smoothing = i.raw["label_smoothing"]
        loss = pg.dpo(*four, beta=i.raw["beta"], label_smoothing=smoothing)
    assert loss.shape == (len(logp),)
    same_value_and_grad(loss.mean(), logp, expected)


@checks("kto/*")
def _(name, i, expected):
    logp = i.leaf("logp")
    loss = pg.kto(
        logp,
        i.logp_ref,
        i.desirable,
        i.kl_logp_mismatched,
        i.kl_logp_ref_mismatched,
        beta=i.raw["beta"],
        lambda_d=i.raw["lambda_d"],
        lambda_u=i.raw["lambda_u"],
    )
    same_value_and_grad(loss.mean(), logp, expected)


@checks("bradley_terry/*")
def _(name, i, expected):
    reward = i.leaf("reward")
    loss = pg.bradley_terry(*reward.unbind(1), margin=i.raw["margin"])
    same_value_and_grad(loss.mean(), reward, expected)


def run(rule, i, **knobs):
    beta, betas = i.raw["beta0"], []
    for kl in i.raw["kls"]:
        beta = rule(beta, kl, target=i.raw["target"], **knobs)
        betas.append(beta)
    return betas


@checks("ppo_penalty/adaptive_beta_schulman")
def _(name, i, expected):
    assert run(pg.adaptive_beta, i) == pytest.approx(expected["betas"], abs=1e-12)


@checks("ppo_penalty/dual_ascent")
def _(name, i, expected):
    betas = run(pg.adaptive_beta_dual_ascent, i, step_size=i.raw["alpha"])
    assert betas == pytest.approx(expected["projected"], abs=1e-12)
    assert min(expected["unprojected"]) < 0 <= min(betas)  # the rule as often written goes negative


@checks("ppo_penalty/instructgpt_controller")
def _(name, i, expected):
    betas = run(pg.adaptive_beta_proportional, i, gain=i.raw["K_beta"])
    assert betas == pytest.approx(expected["betas"], abs=1e-12)


@checks("trpo/*")
def _(name, i, expected):
    grad, fisher = tensor(expected["policy_gradient_logits"]), tensor(expected["fisher"])
    step = pg.natural_gradient_step(grad, fisher, delta=i.raw["delta"])
    same(step, expected["step"])
    same(step @ fisher @ step / 2, i.raw["delta"])
    for trial in expected["line_search"]:
        logits = i.pi_old.log() + trial["alpha"] * step
        same(logits.softmax(0), trial["pi"])
        kl = pg.exact_kl(i.pi_old.log().reshape(1, 1, -1), logits.reshape(1, 1, -1))
        same(kl.squeeze(), trial["kl_old_new"])


# ---- by enumeration


@checks("binary/contrast_and_weight")
def _(name, i, expected):
    def weight(advantage, p, G):
        """w with E[Σ A_i s_i / G] = w ∇p: E[A | right] − E[A | wrong] over all 2^G groups."""
        right = torch.arange(G + 1, dtype=torch.float64)
        rewards = (torch.arange(G) < right.unsqueeze(1)).double()
        counts = tensor([math.comb(G, k) for k in range(G + 1)])
        chance = counts * p**right * (1 - p) ** (G - right)
        # E[(1/G) Σ A_i s_i] with s = 1/p for right answers, −1/(1−p) for wrong ones
        scores = rewards / p - (1 - rewards) / (1 - p)
        return (chance * (advantage(rewards) * scores).mean(1)).sum()

    for row, p in enumerate(i.raw["p"]):
        for column, G in enumerate(i.raw["G"]):
            for ddof in (0, 1):
                standardized = partial(pg.group_standardized, ddof=ddof, eps=0.0)
                same(weight(standardized, p, G), expected[f"w_ddof{ddof}"][row][column])
            same(weight(pg.maxrl, p, G), expected["maxrl_weight"][row][column])
            same(weight(pg.leave_one_out, p, G), 1.0)
            same(weight(pg.group_centered, p, G), (G - 1) / G)
            same(1 - tensor(p) ** G - (1 - tensor(p)) ** G, expected["P_contrast"][row][column])


def sorting_reward(prompt, answers):
    """Entries of the prompt found in the answer, plus adjacent pairs in order: 0 … 5."""
    included = (prompt.reshape(1, -1, 1) == answers.unsqueeze(1)).any(2).sum(1)
    ordered = (answers[:, :-1] <= answers[:, 1:]).sum(1)
    return (included + ordered).double()


@checks("exact_toy/*")
def _(name, i, expected):
    theta, theta_ref = i.leaf("theta"), i.theta_ref
    V, L = i.raw["V"], i.raw["L"]
    answers = torch.tensor(list(product(range(V), repeat=L)))
    tables = [t.unsqueeze(0).expand(len(answers), L, V) for t in (theta, theta_ref)]
    logp, logp_ref = (pg.token_log_probs(t, answers).sum(1, keepdim=True) for t in tables)
    p = logp.exp().squeeze(1)
    weight = p.detach()
    rewards = sorting_reward(torch.tensor(i.raw["prompt"]), answers)
    scores = torch.func.jacrev(lambda t: pg.token_log_probs(t.expand(27, L, V), answers).sum(1))(
        theta.detach()
    ).reshape(len(answers), -1)

    def grad(x):
        return torch.autograd.grad(x, theta, retain_graph=True)[0]

    J = (p * rewards).sum()
    same(J, expected["J"])
    same(grad(J), expected["grad_J"])
    root = weight.sqrt().unsqueeze(1)
    b_opt = pg.optimal_baseline(rewards, root * scores)
    same(b_opt, expected["b_opt"])
    for baseline, key in ((0.0, "none"), (J.detach(), "V"), (b_opt, "b_opt")):
        estimates = (rewards - baseline).unsqueeze(1) * scores
        mean = weight @ estimates
        trace = weight @ estimates.square().sum(1) - mean.square().sum()
        same(trace, expected["tr_var"][key])

    kl = pg.exact_kl(theta.unsqueeze(0), theta_ref.unsqueeze(0)).sum()
    same(kl, expected["KL"])
    same(grad(kl), expected["grad_KL"])
    forward = pg.exact_kl(theta_ref.unsqueeze(0), theta.unsqueeze(0)).sum()
    same(forward, expected["KL_forward"])
    same(grad(forward), expected["grad_KL_forward"])
    for key in ("k1", "k2", "k3"):
        k = getattr(pg, key)(logp, logp_ref).squeeze(1)
        same(weight @ k, expected["E_k"][key])
        deviation = (weight @ (k - weight @ k).square()).sqrt()
        same(deviation, expected["sd_k"][key])
        same(grad((weight * k).sum()), expected["expected_loss_gradient"][key])
        same(grad((p * k.detach()).sum()), expected["expected_reward_gradient"][key])

    for G in (2, 4, 8):
        for key, advantage in (
            ("rloo", pg.leave_one_out),
            ("dr_grpo", pg.group_centered),
            ("grpo_ddof0", partial(pg.group_standardized, ddof=0, eps=0.0)),
            ("grpo_ddof1", partial(pg.group_standardized, ddof=1, eps=0.0)),
        ):
            mean, trace, p_zero = group_moments(advantage, weight, rewards, scores, G)
            want = expected[f"{key}_G{G}"]
            same(mean, tensor(want["expected_gradient"]).flatten())
            same(trace, want["tr_var"])
            same(p_zero, want["P_zero_contrast"])
            truth = tensor(expected["grad_J"]).flatten()
            same(torch.cosine_similarity(mean, truth, dim=0), want["cos_with_grad_J"])


def group_moments(advantage, weight, rewards, scores, G):
    """Mean and covariance trace of (1/G) Σ A_i s_i over all groups, enumerated by reward level."""
    levels = rewards.unique()
    chance = torch.stack([weight[rewards == r].sum() for r in levels])
    means = torch.stack(
        [weight[rewards == r] @ scores[rewards == r] / weight[rewards == r].sum() for r in levels]
    )
    squares = torch.stack(
        [
            weight[rewards == r] @ scores[rewards == r].square().sum(1) / weight[rewards == r].sum()
            for r in levels
        ]
    )
    groups = torch.tensor(list(combinations_with_replacement(range(len(levels)), G)))
    counts = torch.stack([(groups == k).sum(1) for k in range(len(levels))], 1)
    orders = torch.exp(torch.lgamma(tensor(G + 1)) - torch.lgamma(counts + tensor(1)).sum(1))
    probability = orders * chance[groups].prod(1)
    A = advantage(levels[groups])
    estimate = torch.einsum("ng,ngd->nd", A, means[groups]) / G
    spread = (A.square() * (squares - means.square().sum(1))[groups]).sum(1) / G**2
    mean = probability @ estimate
    trace = probability @ (estimate.square().sum(1) + spread) - mean.square().sum()
    p_zero = probability[(levels[groups] == levels[groups][:, :1]).all(1)].sum()
    return mean, trace, p_zero
