"""The exact facts that the lectures tell, each re-derived by enumeration.

Toy A is the table of logits with V = L = 3 and prompt (1,0,2); Toy AR the table over prefixes with
an end token. Tolerances are half a unit of the last digit that a lecture prints, or rounding.
"""

import copy
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from policy_gradients.advantages import (
    group_centered,
    group_standardized,
    leave_one_out,
    max_only,
    maxrl,
    optimal_baseline,
)
from policy_gradients.kl import k1, k2, k3
from policy_gradients.surrogates import ppo_clip, sapo, unclipped
from toy_models.exact import (
    all_rewards,
    estimate_distribution,
    exact_entropy,
    exact_flow,
    exact_gradient,
    exact_kl,
    exact_optimal_baseline,
    expected_reward,
    flat_gradient,
    gibbs_distribution,
    gradient_moments,
    kl_in_loss,
    kl_in_reward,
    prefix_values,
    prompt_weight,
    random_logits,
    response_log_probs,
    responses_of,
    sample_estimates,
    scores,
    skilled_policy,
    tabular_policy,
    token_log_probs_of,
    variance_trace,
    zero_contrast_probability,
)
from toy_models.policies import AutoregressivePolicy
from toy_models.sorting import inclusion_ordering_reward, sorted_reward

SETTINGS = json.loads((Path(__file__).parent / "settings.json").read_text())
PROMPT = torch.tensor([1, 0, 2])
GRADED, BINARY = inclusion_ordering_reward, sorted_reward


def setting(name: str) -> torch.Tensor:
    return torch.tensor(SETTINGS[name], dtype=torch.float64)


def skilled(skill: float):
    return skilled_policy(setting("base"), PROMPT, skill)


def grpo(ddof: int):
    return lambda rewards: group_standardized(rewards, ddof=ddof, eps=0.0)


def cosine(a, b) -> float:
    return torch.cosine_similarity(a, b, dim=0).item()


def printed(*values: float):
    """Equal to the digits given: half a unit in the last place of each."""
    tolerance = [0.501 * 10 ** -len(f"{v}".partition(".")[2]) for v in values]
    return [pytest.approx(v, abs=t) for v, t in zip(values, tolerance, strict=True)]


def test_settings_are_reproducible_from_their_seed():
    base = random_logits(3, 3, scale=0.3, seed=0)
    torch.testing.assert_close(base, setting("base"), rtol=0, atol=1e-11)
    rates = [expected_reward(skilled(k), PROMPT, BINARY).item() for k in (0, 1, 2, 4)]
    assert rates == [pytest.approx(r, abs=6e-4) for r in (0.021, 0.129, 0.396, 0.866)]


# --- 1 to 4: one sample -------------------------------------------------------------------------


@pytest.mark.parametrize("skill", [0, 2])
def test_1_gradient_is_the_covariance_of_reward_and_score(skill):
    policy = skilled(skill)
    probs = response_log_probs(policy, PROMPT)[0].exp().detach()
    rewards, table = all_rewards(policy, PROMPT, GRADED)[0], scores(policy, PROMPT)
    covariance = (probs * (rewards - probs @ rewards)) @ (table - probs @ table)
    gradient = exact_gradient(policy, PROMPT, GRADED)
    torch.testing.assert_close(covariance, gradient, rtol=0, atol=1e-12)


def test_1_rloo_is_the_sample_covariance_and_the_family_differs_by_a_factor():
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randint(6, (1, 8), generator=generator).double()
    table = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    joint = torch.cat([rewards.T, table], 1).T
    for estimator, ddof, scale in (
        (leave_one_out, 1, 1.0),
        (group_centered, 0, 1.0),
        (grpo(0), 0, rewards.std(correction=0)),
        (grpo(1), 0, rewards.std(correction=1)),
    ):
        estimate = estimator(rewards)[0] @ table / 8
        expected = torch.cov(joint, correction=ddof)[0, 1:] / scale
        torch.testing.assert_close(estimate, expected, rtol=0, atol=1e-12)


def two_arms(p: float, rewards: tuple[float, float]):
    """(rewards, scores, probabilities) of one Bernoulli logit; score = 1[arm 1] - p."""
    probs = torch.tensor([p, 1 - p], dtype=torch.float64)
    return torch.tensor(rewards).double(), torch.tensor([[1 - p], [-p]], dtype=probs.dtype), probs


def arm_variance(p, rewards, baseline):
    r, s, probs = two_arms(p, rewards)
    sample = (r - baseline) * s[:, 0]
    return (probs @ sample.square() - (probs @ sample).square()).item()


def test_2_two_arms_swap_the_weights_of_the_best_baseline():
    for p in (0.1, 0.5, 0.9, 0.99):
        for rewards in ((1.0, 0.0), (2.5, -1.0)):
            r, s, probs = two_arms(p, rewards)
            best = optimal_baseline(r, probs.sqrt()[:, None] * s).item()
            assert best == pytest.approx((1 - p) * rewards[0] + p * rewards[1], abs=1e-12)
            assert arm_variance(p, rewards, best) == pytest.approx(0, abs=1e-12)
    values = [arm_variance(0.9, (1.0, 0.0), b) for b in (0.0, 0.9, 0.1)]
    assert values == pytest.approx([0.0009, 0.0576, 0.0], abs=1e-12)
    # with reward (1, 0) the mean stops helping at p = 2/3
    assert arm_variance(0.66, (1.0, 0.0), 0.66) < arm_variance(0.66, (1.0, 0.0), 0)
    assert arm_variance(0.67, (1.0, 0.0), 0.67) > arm_variance(0.67, (1.0, 0.0), 0)


@pytest.mark.parametrize(
    ("reward", "skill", "expected"),
    [
        (GRADED, 0, (23.24, 0.533, 0.532)),
        (GRADED, 2, (17.2, 0.668, 0.389)),
        (GRADED, 4, (3.67, 0.431, 0.063)),
        (BINARY, 1, (0.124, 0.118, 0.113)),
        (BINARY, 2, (0.077, 0.174, 0.064)),
        (BINARY, 4, (0.00120, 0.189, 0.00091)),
    ],
)
def test_3_baseline_reversal(reward, skill, expected):
    policy = skilled(skill)
    value = expected_reward(policy, PROMPT, reward).item()
    best = exact_optimal_baseline(policy, PROMPT, reward).item()
    traces = variance_trace(policy, PROMPT, reward, torch.tensor([0.0, value, best]))
    assert traces.tolist() == printed(*expected)


def test_3_where_the_mean_reward_stops_helping():
    """V beats none iff (2 - p) m_right > (1 - p) m_wrong, m = E[|s|^2 | right or wrong]."""
    crossing = None
    for skill in np.arange(0, 4.01, 0.05):
        policy = skilled(float(skill))
        p = expected_reward(policy, PROMPT, BINARY).item()
        none, mean = variance_trace(policy, PROMPT, BINARY, torch.tensor([0.0, p])).tolist()
        probs = response_log_probs(policy, PROMPT)[0].exp().detach()
        right = all_rewards(policy, PROMPT, BINARY)[0]
        sizes = scores(policy, PROMPT).square().sum(1)
        m_right = (probs * right * sizes).sum().item() / p
        m_wrong = (probs * (1 - right) * sizes).sum().item() / (1 - p)
        assert (mean < none) == ((2 - p) * m_right > (1 - p) * m_wrong)
        if mean >= none and crossing is None:
            crossing = p
        value = expected_reward(policy, PROMPT, GRADED).item()
        graded = variance_trace(policy, PROMPT, GRADED, torch.tensor([0.0, value]))
        assert graded[1] < graded[0]  # the graded reward never reverses here
    assert crossing == pytest.approx(0.18, abs=0.01)


@pytest.mark.parametrize(
    ("skill", "expected"), [(0, (0.533, 0.440, 0.150)), (4, (0.431, 0.439, 0.434))]
)
def test_4_a_perfect_critic(skill, expected):
    policy = skilled(skill)
    value = prefix_values(policy, PROMPT, GRADED)
    whole = (value[:, -1:] - value[:, :1]).expand(-1, 3)
    monte_carlo = value[:, -1:] - value[:, :-1]
    advantage = value[:, 1:] - value[:, :-1]
    moments = [
        gradient_moments(policy, PROMPT, GRADED, torch.ones_like, token_weights=weights)
        for weights in (whole, monte_carlo, advantage)
    ]
    assert [m.trace for m in moments] == printed(*expected)
    assert [m.projection for m in moments] == pytest.approx([1, 1, 1], abs=1e-9)  # all unbiased


# --- 5 to 9: groups -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "estimator", "expected"),
    [
        (2, leave_one_out, (1.0, 1.0, 0.555)),
        (2, group_centered, (0.5, 1.0, 0.139)),
        (2, grpo(1), (0.647, 0.99584, 0.234)),
        (2, max_only, (1.88, 0.998, 9.77)),
        (8, leave_one_out, (1.0, 1.0, 0.0769)),
        (8, group_centered, (0.875, 1.0, 0.0589)),
        (8, grpo(1), (1.623, 0.99720, 0.199)),
    ],
)
def test_5_a_group_of_size_g(group, estimator, expected):
    moments = gradient_moments(skilled(0), PROMPT, GRADED, estimator, group=group)
    assert [moments.projection, moments.cosine, moments.trace] == printed(*expected)


def test_5_the_chance_that_all_rewards_are_equal():
    found = [
        gradient_moments(skilled(0), PROMPT, GRADED, group_centered, group=group).p_zero
        for group in (2, 3, 4, 8, 16)
    ]
    assert found == printed(0.531, 0.309, 0.189, 0.0315, 0.00098)


@pytest.mark.parametrize("group", [2, 3, 8])
@pytest.mark.parametrize("skill", [0, 2])
def test_6_binary_grpo_is_parallel_to_the_gradient_of_p(skill, group):
    policy = skilled(skill)
    moments = gradient_moments(policy, PROMPT, BINARY, grpo(0), group=group)
    p = expected_reward(policy, PROMPT, BINARY).item()
    assert moments.cosine == pytest.approx(1, abs=1e-12)
    assert moments.projection == pytest.approx(prompt_weight(p, group, grpo(0)).item(), abs=1e-10)


def test_6_the_weight_of_a_prompt_and_its_limits():
    p = torch.tensor([0.01, 0.3, 0.5, 0.9], dtype=torch.float64)
    one, root = torch.ones(4).double(), torch.full((4,), 2.0).double().sqrt()
    torch.testing.assert_close(prompt_weight(p, 2, grpo(0)), one, rtol=0, atol=1e-12)
    torch.testing.assert_close(prompt_weight(p, 3, grpo(0)), root, rtol=0, atol=1e-12)
    assert prompt_weight(p, 8, grpo(0))[[0, 2]].tolist() == printed(2.61, 1.86)
    assert prompt_weight(1e-9, 8, grpo(0)).item() == pytest.approx(math.sqrt(7), abs=1e-6)
    # as G grows the weight tends to 1 / sqrt(p (1-p)), the derivative of 2 arcsin sqrt p
    limit = 1 / (p[1:] * (1 - p[1:])).sqrt()
    gaps = [(prompt_weight(p[1:], G, grpo(0)) - limit).abs().max().item() for G in (32, 128, 512)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.02
    x = p.clone().requires_grad_()
    (slope,) = torch.autograd.grad((2 * x.sqrt().asin()).sum(), x)
    torch.testing.assert_close(slope, 1 / (p * (1 - p)).sqrt())
    # MaxRL: the derivative of log p, cut off after G - 1 terms
    for group in (2, 3, 8):
        series = sum((1 - p) ** k for k in range(group - 1))
        torch.testing.assert_close(prompt_weight(p, group, maxrl), series, rtol=0, atol=1e-12)


def test_6_two_prompts_turn_the_direction():
    policy, targets = tabular_policy(setting("two_prompts")), torch.tensor([[0, 1, 2], [2, 1, 0]])

    def copied(prompts, responses):
        return (prompts == responses).all(-1)

    rates = [expected_reward(policy, target, copied).item() for target in targets]
    assert rates == pytest.approx(SETTINGS["two_prompts_p"], abs=1e-10)
    cosines = [
        gradient_moments(policy, targets, copied, grpo(0), group=group).cosine
        for group in (2, 4, 8, 16, 32)
    ]
    assert cosines == printed(1.0, 0.99998, 0.9995, 0.997, 0.991)


SIX_PROMPTS = torch.tensor([[1, 0, 2], [2, 0, 2], [0, 1, 0], [2, 1, 0], [1, 2, 1], [0, 2, 1]])


def test_7_how_large_a_group():
    """RLOO: G Var = a + c / (G-1); with a fixed number of samples G* = 1 + sqrt(c / B)."""
    a, c, gradients = [], [], []
    for prompt, logits in zip(SIX_PROMPTS, setting("six_prompts"), strict=True):
        policy = tabular_policy(logits)
        probs = response_log_probs(policy, prompt)[0].exp().detach()
        rewards, table = all_rewards(policy, prompt, GRADED)[0], scores(policy, prompt)
        value, gradient = probs @ rewards, exact_gradient(policy, prompt, GRADED)
        spread = probs @ (rewards - value).square()
        a.append(variance_trace(policy, prompt, GRADED, value).item())
        c.append((gradient @ gradient + spread * (probs @ table.square().sum(1))).item())
        gradients.append(gradient)
        for group in (2, 3, 8):
            trace = gradient_moments(policy, prompt, GRADED, leave_one_out, group=group).trace
            assert group * trace == pytest.approx(a[-1] + c[-1] / (group - 1), abs=1e-12)
    gradients = torch.stack(gradients)
    between = (gradients - gradients.mean(0)).square().sum(1).mean().item()
    a, c = sum(a) / 6, sum(c) / 6

    def budget_times_variance(group):
        return a + c / (group - 1) + group * between

    found = [budget_times_variance(group) for group in (2, 3, 4, 8, 16, 64)]
    assert found == [pytest.approx(v, abs=0.01) for v in (2.37, 1.83, 1.69, 1.73, 2.17, 5.35)]
    best = 1 + math.sqrt(c / between)
    assert 4 < best < 8
    assert budget_times_variance(best) < min(
        budget_times_variance(best - 0.2), budget_times_variance(best + 0.2)
    )


def test_8_zero_contrast_and_what_the_filter_changes():
    for p in (0.01, 0.3, 0.5):
        for group in (2, 8):
            count = torch.distributions.Binomial(group, torch.tensor(p).double())
            edges = count.log_prob(torch.tensor([0.0, group]).double()).exp().sum().item()
            assert zero_contrast_probability(p, group) == pytest.approx(edges, abs=1e-6)
    policy = skilled(2)
    p = expected_reward(policy, PROMPT, BINARY).item()
    silent = gradient_moments(policy, PROMPT, BINARY, group_centered, group=8).p_zero
    assert silent == pytest.approx(zero_contrast_probability(p, 8), abs=1e-12)

    hard, even = (prompt_weight(p, 8, grpo(0)).item() for p in (0.01, 0.5))
    kept = [1 - zero_contrast_probability(p, 8) for p in (0.01, 0.5)]
    assert [hard / kept[0], even / kept[1], kept[0]] == printed(33.8, 1.87, 0.077)
    # a kept group weighs more exactly by as much as it is rarer


def wrong_half_space(policy, group):
    p, estimates = estimate_distribution(policy, PROMPT, GRADED, grpo(0), group=group)
    gradient = exact_gradient(policy, PROMPT, GRADED)
    moving = estimates.norm(dim=1) > 1e-12
    p, estimates = p[moving] / p[moving].sum(), estimates[moving]
    cosines = estimates @ gradient / (estimates.norm(dim=1) * gradient.norm())
    order = cosines.argsort()
    median = cosines[order][(p[order].cumsum(0) >= 0.5).nonzero()[0, 0]]
    return p[cosines < 0].sum().item(), median.item()


@pytest.mark.parametrize(("group", "expected"), [(2, (0.160, 0.365)), (4, (0.104, 0.504))])
def test_9_direction_of_the_grpo_estimate(group, expected):
    assert list(wrong_half_space(skilled(0), group)) == printed(*expected)


def test_9_direction_at_eight_by_sampling_and_with_one_right_answer():
    policy, count = skilled(0), 100_000
    gradient = exact_gradient(policy, PROMPT, GRADED)
    drawn = sample_estimates(policy, PROMPT, GRADED, grpo(0), group=8, count=count, seed=0)
    moving = drawn[drawn.norm(dim=1) > 1e-12]
    cosines = moving @ gradient / (moving.norm(dim=1) * gradient.norm())
    error = math.sqrt(0.045 / count)
    assert (cosines < 0).double().mean().item() == pytest.approx(0.045, abs=5e-4 + 4 * error)
    assert cosines.median().item() == pytest.approx(0.627, abs=0.005)
    for group in (2, 4):  # one right answer: never in the wrong half-space
        _, estimates = estimate_distribution(policy, PROMPT, BINARY, grpo(0), group=group)
        assert (estimates @ exact_gradient(policy, PROMPT, BINARY)).min() > -1e-12


# --- 10: KL -------------------------------------------------------------------------------------

ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


@pytest.mark.parametrize(
    ("name", "in_loss", "in_reward"),
    [("k1", 0.0, 1.0), ("k2", 1.0, 0.039), ("k3", 0.988, 0.012)],
)
def test_10_two_of_six_placements_are_right(name, in_loss, in_reward):
    policy, reference = (
        tabular_policy(setting(key)) for key in ("kl_estimators_policy", "kl_estimators_reference")
    )
    assert [exact_kl(policy, reference, PROMPT).item()] == printed(0.052)
    truth = flat_gradient(exact_kl(policy, reference, PROMPT), policy)
    args, estimator = (policy, reference, PROMPT), ESTIMATORS[name]
    loss = flat_gradient(kl_in_loss(*args, estimator, per_token=False), policy)
    paid = flat_gradient(kl_in_reward(*args, estimator, per_token=False), policy)
    found = [float(g @ truth / (truth @ truth)) for g in (loss, paid)]
    assert found == [pytest.approx(v, abs=6e-4) for v in (in_loss, in_reward)]
    if name == "k3":  # as a loss it is the gradient of the other direction
        other = flat_gradient(exact_kl(reference, policy, PROMPT), policy)
        torch.testing.assert_close(loss, other, rtol=0, atol=1e-12)


def test_10_k3_with_a_live_ratio_is_exact():
    policy, reference = (
        tabular_policy(setting(key)) for key in ("kl_estimators_policy", "kl_estimators_reference")
    )

    def weighted(logp, logp_ref):
        return (logp - logp.detach()).exp() * k3(logp, logp_ref)

    loss = kl_in_loss(policy, reference, PROMPT, weighted, per_token=False)
    truth = flat_gradient(exact_kl(policy, reference, PROMPT), policy)
    torch.testing.assert_close(flat_gradient(loss, policy), truth, rtol=0, atol=1e-12)


def flow_end(policy, penalty, steps=4000):
    """(J, KL) after ascending J - 0.5 * penalty from the reference."""
    reference = copy.deepcopy(policy)

    def objective(policy):
        return expected_reward(policy, PROMPT, GRADED) - 0.5 * penalty(policy, reference)

    exact_flow(policy, objective, steps=steps, learning_rate=0.3, max_grad_norm=3.0)
    reached = expected_reward(policy, PROMPT, GRADED), exact_kl(policy, reference, PROMPT)
    return [value.item() for value in reached]


def per_token_loss(estimator):
    return lambda p, r: kl_in_loss(p, r, PROMPT, estimator, per_token=True)


def per_token_reward(estimator):
    return lambda p, r: kl_in_reward(p, r, PROMPT, estimator, per_token=True)


FLOWS = {
    "exact": (lambda p, r: exact_kl(p, r, PROMPT), (4.393, 0.835)),
    "none": (lambda p, r: 0.0, (4.998, 2.62)),
    "k3 loss": (per_token_loss(k3), (4.199, 0.514)),
    "k2 reward": (lambda p, r: kl_in_reward(p, r, PROMPT, k2, per_token=False), (4.640, 1.72)),
    "k2 reward per token": (per_token_reward(k2), (4.9999, 2.63)),  # .99988, like no penalty
}


@pytest.mark.slow  # 4,000 steps of exact gradient each, about 2 CPU seconds
@pytest.mark.parametrize("name", FLOWS)
def test_10_flows_end_where_the_lecture_says(name):
    penalty, expected = FLOWS[name]
    steps = 400 if name == "k3 loss" else 4000  # that one has arrived by then
    end = flow_end(tabular_policy(setting("kl_flow_start")), penalty, steps)
    assert end == printed(*expected)


@pytest.mark.parametrize(
    ("penalty", "same_as"),
    [(per_token_loss(k2), "exact"), (per_token_reward(k1), "exact"), (per_token_loss(k1), "none")],
    ids=["k2 loss", "k1 reward", "k1 loss"],
)
def test_10_right_placements_follow_the_exact_flow_and_k1_loss_the_free_one(penalty, same_as):
    ends = [
        flow_end(tabular_policy(setting("kl_flow_start")), one, steps=200)
        for one in (penalty, FLOWS[same_as][0])
    ]
    assert ends[0] == pytest.approx(ends[1], abs=1e-10)


def test_10_k3_in_the_reward_speeds_the_drift_up_until_it_overflows():
    def bare_k3(logp, logp_ref):  # the library's k3 is bounded and so would not overflow
        return torch.expm1(logp_ref - logp) + logp - logp_ref

    def penalty(policy, reference):
        return kl_in_reward(policy, reference, PROMPT, bare_k3, per_token=False)

    start = tabular_policy(setting("kl_flow_start"))
    kl = flow_end(copy.deepcopy(start), penalty, steps=200)[1]
    assert kl > flow_end(copy.deepcopy(start), FLOWS["none"][0], steps=200)[1]
    with pytest.raises(FloatingPointError, match="not finite"):
        flow_end(start, penalty)
    assert expected_reward(start, PROMPT, GRADED).item() == pytest.approx(5, abs=1e-4)


def test_10_gibbs_optimum_is_out_of_reach_for_independent_positions():
    reference = tabular_policy(setting("kl_flow_start"))
    best = gibbs_distribution(reference, PROMPT, GRADED, 0.5)
    objective = (best * all_rewards(reference, PROMPT, GRADED)).sum().item()
    log_ratio = best.log() - response_log_probs(reference, PROMPT).detach()
    kl = (best * log_ratio).sum().item()
    assert [objective, kl] == printed(4.430, 0.760)
    assert objective - 0.5 * kl > 4.393 - 0.5 * 0.835 + 0.05


def test_10_the_tree_goes_there_with_the_sequence_form_but_not_per_token():
    start = setting("kl_flow_start")
    ends = {}
    for name, penalty in {
        "sequence": lambda p, r: kl_in_loss(p, r, PROMPT, k2, per_token=False),
        "to go": lambda p, r: kl_in_reward(p, r, PROMPT, k1, per_token=True),
        "per token": lambda p, r: kl_in_loss(p, r, PROMPT, k2, per_token=True),
    }.items():
        tree = AutoregressivePolicy(3, 3, eos_id=None).double()
        with torch.no_grad():
            tree.table[0] = start[(tree.states >= 0).sum(-1)]
        best = gibbs_distribution(tree, PROMPT, GRADED, 0.5)
        flow_end(tree, penalty, steps=800)
        gap = response_log_probs(tree, PROMPT).exp().detach() - best
        ends[name] = 0.5 * gap.abs().sum().item()  # total variation
    assert ends["sequence"] < 0.02
    assert ends["to go"] < 0.02
    assert ends["per token"] > 0.09


# --- 11 to 16 -----------------------------------------------------------------------------------


def clip_run(eps, steps=64):
    """Exact ascent on one batch's expected surrogate; per step (dead, KL, max ratio, J)."""
    start = tabular_policy(setting("clip_start"))
    old = token_log_probs_of(start, PROMPT)[0].detach()
    probs = old.sum(-1).exp()
    rewards = all_rewards(start, PROMPT, GRADED)[0]
    advantages = (rewards - probs @ rewards)[:, None]

    def objective(policy):
        logp = token_log_probs_of(policy, PROMPT)[0]
        if eps is None:
            return -(probs @ unclipped(logp, old, advantages).mean(-1))
        return -(probs @ ppo_clip(logp, old, advantages, eps_low=eps, eps_high=eps).mean(-1))

    def record(policy):
        ratio = (token_log_probs_of(policy, PROMPT)[0] - old).exp().detach()
        edge = math.inf if eps is None else eps
        dead = ((ratio > 1 + edge) & (advantages > 0)) | ((ratio < 1 - edge) & (advantages < 0))
        return (
            (probs @ dead.double()).mean().item(),
            exact_kl(policy, start, PROMPT).item(),
            exact_kl(start, policy, PROMPT).item(),
            ratio.max().item(),
            expected_reward(policy, PROMPT, GRADED).item(),
        )

    policy = copy.deepcopy(start)
    return exact_flow(policy, objective, steps=steps, learning_rate=0.5, record=record)


def test_11_clipping_against_inner_steps():
    tight, usual, free = clip_run(0.01, 4), clip_run(0.2), clip_run(None)
    assert [tight[i][0] for i in (1, 4)] == printed(0.28, 0.43)
    assert tight[4][1] == pytest.approx(2e-4, abs=5e-5)
    assert max(usual[i][0] for i in range(5)) == 0
    assert [usual[i][0] for i in (8, 32)] == printed(0.085, 0.335)
    assert usual[64][1] == pytest.approx(0.041, abs=6e-4)
    assert usual[32][3] == pytest.approx(1.26, abs=5e-3)
    assert [free[64][3], free[64][2], free[64][4], usual[64][4]] == printed(2.6, 0.78, 3.89, 3.53)
    # on exact expectations the clip only slows the policy down: every step earns at least as much
    assert all(a[4] >= b[4] - 1e-12 for a, b in zip(free, usual, strict=True))


@pytest.mark.parametrize("temperature", [0.6, 1.4])
def test_12_sampled_at_one_temperature_scored_at_another(temperature):
    """A constant reward without a baseline should do nothing; here it moves the policy."""

    def objective(policy):
        logits = policy.logits(PROMPT)[0]
        sampler = (logits / temperature).softmax(-1).detach()
        return (sampler * logits.log_softmax(-1)).sum()  # E_sampler[1 * log pi]

    policy = skilled(0)
    seen = exact_flow(
        policy,
        objective,
        steps=400,
        learning_rate=0.3,
        record=lambda p: exact_entropy(p, PROMPT).item(),
        record_every=400,
    )
    end = 0.13 if temperature < 1 else 3 * math.log(3)
    assert seen == [pytest.approx(3.25, abs=0.01), pytest.approx(end, abs=0.005)]


def tree_of_the_settings():
    """Toy AR: tokens 1 and 2, end token 0, at most 4 tokens; its 31 responses."""
    tree = AutoregressivePolicy(3, 4, eos_id=0).double()
    states = tree.states.tolist()
    with torch.no_grad():
        for prefix, logits in zip(SETTINGS["tree_states"], setting("tree_logits"), strict=True):
            tree.table[0, states.index(prefix + [-1] * (3 - len(prefix)))] = logits
    listed = [
        row[mask].tolist()
        for row, mask in zip(responses_of(tree), tree.mask(responses_of(tree)), strict=True)
    ]
    assert listed == SETTINGS["tree_responses"]
    lengths = tree.mask(responses_of(tree)).sum(-1)
    return tree, lengths


def test_13_the_sign_of_the_length_bias():
    tree, lengths = tree_of_the_settings()

    def length(prompts, responses):
        return tree.mask(responses).sum(-1)

    slope = exact_gradient(tree, PROMPT, length)
    per_sequence = (1 / lengths.double())[:, None].expand(-1, 4)
    speeds = []
    for constant in (0.5, -0.5):
        moments = gradient_moments(
            tree,
            PROMPT,
            length,
            lambda r, c=constant: torch.full_like(r, c),
            token_weights=per_sequence,
        )
        speeds.append(float(moments.mean @ slope))
        # a constant advantage ascends c E[1/|y|]
        inverse = exact_gradient(tree, PROMPT, lambda p, r: 1 / tree.mask(r).sum(-1).double())
        torch.testing.assert_close(moments.mean, constant * inverse, rtol=0, atol=1e-12)
    assert speeds == printed(-0.050, 0.050)


def test_13_the_per_sequence_mean_is_not_the_policy_gradient():
    tree, lengths = tree_of_the_settings()
    rewards = setting("tree_rewards")
    per_sequence = (1 / lengths.double())[:, None].expand(-1, 4)

    def reward(prompts, responses):
        return rewards

    value = expected_reward(tree, PROMPT, reward).item()
    found = [
        gradient_moments(
            tree, PROMPT, reward, lambda r, b=baseline: r - b, token_weights=weights
        ).cosine
        for baseline in (0.0, value)
        for weights in (per_sequence, None)
    ]
    assert found == printed(0.464, 1.0, 0.932, 1.0)


def test_14_sapo_is_a_soft_gate():
    """-loss = A gate(ratio), gate(1) = 2/tau: slope 1 and no curvature at ratio 1."""
    for tau in (0.5, 1.0, 4.0):
        ratio = torch.tensor([[1.0, 1.2, 2.76]], dtype=torch.float64, requires_grad=True)
        zero, one = torch.zeros(1, 3).double(), torch.ones(1, 1).double()
        gate = -sapo(ratio.log(), zero, one, tau_pos=tau, tau_neg=tau)
        (slope,) = torch.autograd.grad(gate.sum(), ratio, create_graph=True)
        (curve,) = torch.autograd.grad(slope.sum(), ratio)
        assert gate[0, 0].item() == pytest.approx(2 / tau, abs=1e-12)
        assert slope[0, 0].item() == pytest.approx(1, abs=1e-12)
        assert curve[0, 0].item() == pytest.approx(0, abs=1e-12)
        if tau == 1.0:
            assert slope[0, 1:].tolist() == printed(0.99, 0.50)
            assert (ratio * slope)[0, 2].item() == pytest.approx(1.38, abs=0.005)


def test_15_token_level_importance_weights_stay_biased():
    policy, behaviour = (
        tabular_policy(setting(key)) for key in ("off_policy_policy", "off_policy_behaviour")
    )
    log_ratio = token_log_probs_of(policy, PROMPT) - token_log_probs_of(behaviour, PROMPT)
    per_token = log_ratio[0].detach().exp()
    sequence = log_ratio[0].detach().sum(-1, keepdim=True).exp().expand_as(per_token)
    value = expected_reward(policy, PROMPT, GRADED).item()
    token, capped, whole = (
        gradient_moments(
            policy, PROMPT, GRADED, lambda r: r - value, behaviour=behaviour, token_weights=weights
        )
        for weights in (per_token, sequence.clamp(max=2), sequence)
    )
    assert [token.cosine, capped.cosine, whole.cosine] == printed(0.9884, 0.9987, 1.0)
    assert [capped.trace, whole.trace] == printed(0.322, 0.452)


def test_16_random_starts_often_end_in_a_local_maximum():
    """200 runs of exact gradient ascent at once: about 80 end at 4 of 5 points."""
    draws = [np.random.default_rng(seed).normal(size=(3, 3)) * 2 for seed in range(1000, 1200)]
    tables = torch.from_numpy(np.stack(draws)).requires_grad_()
    policy = skilled(0)
    responses, rewards = responses_of(policy), all_rewards(policy, PROMPT, GRADED)[0]
    for _ in range(1500):
        logp = tables.log_softmax(-1)
        whole = sum(logp[:, t, responses[:, t]] for t in range(3))  # (runs, responses)
        objective = whole.exp() @ rewards
        (gradient,) = torch.autograd.grad(objective.sum(), tables)
        tables.data.add_(gradient)
    stuck = objective.detach() < 4.5
    assert 70 <= int(stuck.sum()) <= 90
    assert objective[stuck].min() > 3.9
    assert objective[stuck].max() < 4.1
