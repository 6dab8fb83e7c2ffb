"""The exact laboratory against independent oracles: brute force, differences, samples, vectors."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from policy_gradients.advantages import (
    batch_centered,
    group_centered,
    group_standardized,
    leave_one_out,
    max_only,
    maxrl,
)
from policy_gradients.kl import k1, k2, k3
from toy_models.exact import (
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
    tabular_policy,
    token_scores,
    variance_trace,
    zero_contrast_probability,
)
from toy_models.policies import AutoregressivePolicy, PositionalPolicy, TabularPolicy
from toy_models.sorting import (
    SortingTask,
    inclusion_ordering_reward,
    is_sorted,
    position_match_reward,
)

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
PROMPT = torch.tensor([1, 0, 2])
PROMPTS = SortingTask(3, 3).distinct_prompts()
SHARED = SortingTask(3, 3).all_prompts()[[5, 14, 23]]  # 012, 112, 212: unequal objectives
REWARD = inclusion_ordering_reward


def grpo(ddof):
    return lambda rewards: group_standardized(rewards, ddof=ddof, eps=0.0)


def policy_of(seed: int, scale: float = 0.7) -> TabularPolicy:
    return tabular_policy(random_logits(3, 3, scale=scale, seed=seed))


def tree_of(seed: int, *, eos_id=0, length=3) -> AutoregressivePolicy:
    policy = AutoregressivePolicy(3, length, eos_id=eos_id).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        policy.table.copy_(torch.randn(policy.table.shape, generator=generator))
    return policy


def close(actual, expected, *, atol=1e-10):
    pair = (torch.as_tensor(x, dtype=torch.float64).detach() for x in (actual, expected))
    torch.testing.assert_close(*pair, rtol=0, atol=atol)


# --- the shared vectors -------------------------------------------------------------------------


def test_vectors_objective_gradient_baselines():
    inputs, expected = VECTORS["exact_toy"]["inputs"], VECTORS["exact_toy"]["expected"]
    policy = tabular_policy(torch.tensor(inputs["theta"], dtype=torch.float64))
    prompt = torch.tensor(inputs["prompt"])
    close(expected_reward(policy, prompt, REWARD).detach(), expected["J"])
    close(exact_gradient(policy, prompt, REWARD).view(3, 3), expected["grad_J"])
    close(exact_optimal_baseline(policy, prompt, REWARD), expected["b_opt"])
    baselines = {"none": 0.0, "V": expected["V"], "b_opt": expected["b_opt"]}
    for name, baseline in baselines.items():
        close(variance_trace(policy, prompt, REWARD, baseline), expected["tr_var"][name])


@pytest.mark.parametrize("group", [2, 4, 8])
@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        ("rloo", leave_one_out),
        ("dr_grpo", group_centered),
        ("grpo_ddof0", grpo(0)),
        ("grpo_ddof1", grpo(1)),
    ],
)
def test_vectors_group_estimators(name, estimator, group):
    inputs, vectors = VECTORS["exact_toy"]["inputs"], VECTORS["exact_toy"]["expected"]
    expected = vectors[f"{name}_G{group}"]
    policy = tabular_policy(torch.tensor(inputs["theta"], dtype=torch.float64))
    moments = gradient_moments(policy, PROMPT, REWARD, estimator, group=group)
    close(moments.mean.view(3, 3), expected["expected_gradient"])
    close(moments.trace, expected["tr_var"])
    close(moments.cosine, expected["cos_with_grad_J"])
    close(moments.p_zero, expected["P_zero_contrast"])


@pytest.mark.parametrize("per_token", [True, False])
@pytest.mark.parametrize(("name", "estimator"), [("k1", k1), ("k2", k2), ("k3", k3)])
def test_vectors_kl(name, estimator, per_token):
    inputs, expected = VECTORS["exact_toy"]["inputs"], VECTORS["exact_toy"]["expected"]
    policy, reference = (
        tabular_policy(torch.tensor(inputs[key], dtype=torch.float64))
        for key in ("theta", "theta_ref")
    )
    close(exact_kl(policy, reference, PROMPT).detach(), expected["KL"])
    close(exact_kl(reference, policy, PROMPT).detach(), expected["KL_forward"])
    gradient = flat_gradient(exact_kl(policy, reference, PROMPT), policy)
    close(gradient.view(3, 3), expected["grad_KL"])
    gradient = flat_gradient(exact_kl(reference, policy, PROMPT), policy)
    close(gradient.view(3, 3), expected["grad_KL_forward"])

    loss = kl_in_loss(policy, reference, PROMPT, estimator, per_token=per_token)
    close(flat_gradient(loss, policy).view(3, 3), expected["expected_loss_gradient"][name])
    if not per_token:  # the vectors' k is that of the whole response
        close(loss.detach(), expected["E_k"][name])
        paid = kl_in_reward(policy, reference, PROMPT, estimator, per_token=False)
        close(flat_gradient(paid, policy).view(3, 3), expected["expected_reward_gradient"][name])


def test_vectors_contrast_and_prompt_weight():
    inputs, expected = VECTORS["binary"]["inputs"], VECTORS["binary"]["expected"]
    p = torch.tensor(inputs["p"], dtype=torch.float64)
    for column, group in enumerate(inputs["G"]):
        keys = ("P_contrast", "w_ddof0", "w_ddof1", "maxrl_weight")
        pick = {key: [row[column] for row in expected[key]] for key in keys}
        close(1 - zero_contrast_probability(p, group), pick["P_contrast"])
        close(prompt_weight(p, group, grpo(0)), pick["w_ddof0"])
        close(prompt_weight(p, group, grpo(1)), pick["w_ddof1"])
        close(prompt_weight(p, group, maxrl), pick["maxrl_weight"])
        close(prompt_weight(p, group, leave_one_out), torch.ones(5))
    assert zero_contrast_probability(0.5, 2) == 0.5
    assert zero_contrast_probability(p.float(), 2).dtype == torch.float32


# --- objective and gradient ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tabular", "positional", "tree"])
def test_gradient_against_finite_differences(kind):
    reward = REWARD
    policy, prompts = policy_of(3), PROMPTS
    if kind == "positional":
        policy = PositionalPolicy(3, 3, embedding_dim=2, embedding_std=0.6).double()
    if kind == "tree":
        policy = tree_of(3)

        def reward(prompts, responses):
            return inclusion_ordering_reward(prompts, responses, eos_id=0)

    gradient = exact_gradient(policy, prompts, reward)
    step, found = 1e-6, []
    for parameter in policy.parameters():
        flat = parameter.data.view(-1)
        for i in range(len(flat)):
            sides = []
            for sign in (1, -1):
                flat[i] += sign * step
                sides.append(expected_reward(policy, prompts, reward).item())
                flat[i] -= sign * step
            found.append((sides[0] - sides[1]) / (2 * step))
    close(gradient, found, atol=1e-8)


def test_objective_is_a_mean_over_prompts_and_bool_rewards_work():
    policy = policy_of(1)
    each = [expected_reward(policy, prompt, REWARD) for prompt in SHARED]
    close(expected_reward(policy, SHARED, REWARD).detach(), sum(each).item() / 3)
    right = responses_of(policy)[is_sorted(PROMPT, responses_of(policy))]
    probability = policy.log_probs(PROMPT, right).sum().exp()
    close(expected_reward(policy, PROMPT, is_sorted).detach(), probability.item())
    assert expected_reward(policy, PROMPT, REWARD).dtype == torch.float64
    assert expected_reward(TabularPolicy(3, 3), PROMPT, REWARD).dtype == torch.float32


@pytest.mark.parametrize("policy", [policy_of(2), tree_of(2)], ids=["tabular", "tree"])
def test_scores_average_to_zero_and_token_scores_add_up(policy):
    table = scores(policy, PROMPT)
    probs = response_log_probs(policy, PROMPT)[0].exp()
    close((probs @ table).detach(), torch.zeros(table.shape[1]))
    close(token_scores(policy, PROMPT).sum(1), table)
    some = policy.sample(PROMPT, 5, seed=0)
    for row, response in zip(scores(policy, PROMPT, some), some, strict=True):
        gradient = flat_gradient(policy.log_probs(PROMPT, response[None]).sum(), policy)
        close(row, gradient)


def test_entropy_and_prefix_values():
    close(exact_entropy(TabularPolicy(3, 3).double(), PROMPTS).detach(), 3 * math.log(3))
    policy = tree_of(5, eos_id=None)
    values, responses = prefix_values(policy, PROMPT, REWARD), responses_of(policy)
    probs = response_log_probs(policy, PROMPT)[0].exp()
    rewards = REWARD(PROMPT, responses).double()
    close(values[:, 3], rewards)
    for row, response in enumerate(responses):
        for t in range(3):
            same = (responses[:, :t] == response[:t]).all(-1)
            expected = (probs * rewards)[same].sum() / probs[same].sum()
            close(values[row, t], expected.item())


# --- moments of estimators ----------------------------------------------------------------------


def brute_force(policy, reward, estimator, group, token_weights=None, prompt=PROMPT):
    """Mean and covariance trace over all ordered groups, V ** (L G) of them, in plain loops."""
    tokens = token_scores(policy, prompt)
    if token_weights is not None:
        tokens = tokens * token_weights[..., None]
    probs = response_log_probs(policy, prompt)[0].detach().exp()
    rewards = reward(prompt, responses_of(policy)).double()
    members = torch.tensor(list(itertools.product(range(len(probs)), repeat=group)))
    weights = estimator(rewards[members])
    if weights.ndim == 2:
        weights = weights[..., None].expand(-1, -1, tokens.shape[1])
    estimates = sum(
        torch.einsum("nt,ntd->nd", weights[:, i], tokens[members[:, i]]) for i in range(group)
    )
    estimates = estimates / group
    p = probs[members].prod(1)
    mean = p @ estimates
    zero = (weights.abs() < 1e-12).flatten(1).all(1)
    return mean, (p @ (estimates - mean).square().sum(1)).item(), p[zero].sum().item()


ESTIMATORS = {
    "rewards": lambda rewards: rewards,
    "rloo": leave_one_out,
    "dr_grpo": group_centered,
    "grpo": grpo(1),
    "max": max_only,
    "maxrl": maxrl,
    "token-level": lambda r: group_centered(r)[..., None] * torch.tensor([1.0, 0.5, 2.0]).double(),
}


@pytest.mark.parametrize("group", [2, 3])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_moments_against_all_ordered_groups(name, group):
    policy, estimator = policy_of(6), ESTIMATORS[name]
    mean, trace, p_zero = brute_force(policy, REWARD, estimator, group)
    moments = gradient_moments(policy, PROMPT, REWARD, estimator, group=group)
    close(moments.mean, mean, atol=1e-12)
    close(moments.trace, trace, atol=1e-12)
    close(moments.p_zero, p_zero, atol=1e-12)
    gradient = exact_gradient(policy, PROMPT, REWARD)
    close(moments.cosine, torch.cosine_similarity(mean, gradient, dim=0), atol=1e-12)
    close(moments.projection, mean @ gradient / (gradient @ gradient), atol=1e-12)


@pytest.mark.parametrize("group", [1, 2, 3])
def test_moments_with_token_weights_on_a_tree_against_all_ordered_groups(group):
    policy = tree_of(8)  # 15 responses of 1 to 3 tokens

    def reward(prompts, responses):
        return inclusion_ordering_reward(prompts, responses, eos_id=0)

    lengths = policy.mask(responses_of(policy)).sum(-1).double()
    weights = (1 / lengths)[:, None].expand(-1, 3) * torch.tensor([1.0, 2.0, 0.3]).double()
    estimator = (lambda r: r - 1.5) if group == 1 else group_centered
    mean, trace, p_zero = brute_force(policy, reward, estimator, group, weights)
    moments = gradient_moments(
        policy, PROMPT, reward, estimator, group=group, token_weights=weights
    )
    close(moments.mean, mean, atol=1e-12)
    close(moments.trace, trace, atol=1e-12)
    close(moments.p_zero, p_zero, atol=1e-12)


@pytest.mark.parametrize("group", [1, 2, 4])
def test_distribution_of_the_estimate_has_the_same_moments(group):
    policy = policy_of(9)
    estimator = ESTIMATORS["rewards"] if group == 1 else grpo(0)
    p, estimates = estimate_distribution(policy, PROMPT, REWARD, estimator, group=group)
    assert len(p) == math.comb(27 + group - 1, group)
    close(p.sum(), 1.0)
    moments = gradient_moments(policy, PROMPT, REWARD, estimator, group=group)
    close(p @ estimates, moments.mean)
    close(p @ (estimates - moments.mean).square().sum(1), moments.trace)


@pytest.mark.parametrize("group", [1, 4, 8])
def test_moments_against_samples(group):
    policy, count = policy_of(10), 40_000
    estimator = (lambda r: r - 3.0) if group == 1 else grpo(1)
    drawn = sample_estimates(
        policy, PROMPT, REWARD, estimator, group=group, count=count, seed=group
    )
    moments = gradient_moments(policy, PROMPT, REWARD, estimator, group=group)
    error = drawn.std(0) / math.sqrt(count)
    assert ((drawn.mean(0) - moments.mean).abs() < 4 * error).all()
    squares = (drawn - moments.mean).square().sum(1)
    assert abs(squares.mean() - moments.trace) < 4 * squares.std() / math.sqrt(count)


def test_moments_of_several_prompts_are_those_of_the_mean_of_independent_groups():
    policy = policy_of(11)
    parts = [gradient_moments(policy, p, REWARD, leave_one_out, group=4) for p in SHARED]
    whole = gradient_moments(policy, SHARED, REWARD, leave_one_out, group=4)
    close(whole.mean, sum(part.mean for part in parts) / 3)
    close(whole.trace, sum(part.trace for part in parts) / 9)
    close(whole.p_zero, math.prod(part.p_zero for part in parts))
    close(whole.mean, exact_gradient(policy, SHARED, REWARD))
    assert whole.projection == pytest.approx(1, abs=1e-12)


def test_importance_weights_make_a_behaviour_policy_unbiased():
    policy, behaviour = policy_of(12), policy_of(13)
    ratio = response_log_probs(policy, PROMPT) - response_log_probs(behaviour, PROMPT)
    weights = ratio[0].exp()[:, None].expand(-1, 3)
    plain, weighted = (
        gradient_moments(policy, PROMPT, REWARD, lambda r: r, behaviour=behaviour, token_weights=w)
        for w in (None, weights)
    )
    close(weighted.mean, exact_gradient(policy, PROMPT, REWARD))
    assert plain.cosine < 0.99


def test_variance_is_a_parabola_with_its_lowest_point_at_b_star():
    policy = policy_of(14)
    best = exact_optimal_baseline(policy, PROMPT, REWARD)
    grid = torch.stack([best - 1e-3, best, best + 1e-3, best + 5])
    traces = variance_trace(policy, PROMPT, REWARD, grid)
    assert traces.argmin() == 1
    for baseline, trace in zip(grid.tolist(), traces, strict=True):
        moments = gradient_moments(policy, PROMPT, REWARD, lambda r, b=baseline: r - b)
        close(moments.trace, trace.item())


def test_silent_groups_are_counted_even_with_rounding_in_the_rewards():
    def tenths(prompts, responses):
        return position_match_reward(prompts, responses) * 0.1 + 0.7

    policy = policy_of(15)
    rloo, centred = (
        gradient_moments(policy, PROMPT, tenths, estimator, group=3)
        for estimator in (leave_one_out, lambda r: r - r.mean(1, keepdim=True))
    )
    assert rloo.p_zero == pytest.approx(centred.p_zero, abs=1e-12)
    assert rloo.p_zero > 0.01


def test_float32_policies_give_float32_means():
    policy = policy_of(16).float()
    moments = gradient_moments(policy, PROMPT, REWARD, leave_one_out, group=3)
    assert moments.mean.dtype == torch.float32
    torch.testing.assert_close(
        moments.mean, exact_gradient(policy, PROMPT, REWARD), rtol=1e-4, atol=1e-6
    )


def test_what_enumeration_by_level_cannot_do_is_refused():
    policy = policy_of(17)
    with pytest.raises(ValueError, match="mixes the rows"):
        gradient_moments(policy, PROMPT, REWARD, batch_centered, group=2)
    ranks = torch.tensor([1.0, 2.0]).double()
    with pytest.raises(ValueError, match="different weights to equal rewards"):
        gradient_moments(policy, PROMPT, REWARD, lambda r: r * ranks, group=2)
    with pytest.raises(ValueError, match=r"must return weights \(6, 2\) or \(6, 2, 3\), got"):
        gradient_moments(policy, PROMPT, REWARD, lambda r: r.sum(1), group=2)
    with pytest.raises(ValueError, match="group must be a positive whole number, got 0"):
        gradient_moments(policy, PROMPT, REWARD, leave_one_out, group=0)
    with pytest.raises(ValueError, match="cases, more than 500000"):
        estimate_distribution(policy, PROMPT, REWARD, group_centered, group=8)
    with pytest.raises(ValueError, match=r"token_weights must be .*\(27, 3\).* got \(27,\)"):
        gradient_moments(policy, PROMPT, REWARD, leave_one_out, token_weights=torch.ones(27))
    with pytest.raises(ValueError, match="one prompt, got 6"):
        scores(policy, PROMPTS)
    with pytest.raises(ValueError, match=r"must return \(6, 27\), got \(27, 6\)"):
        expected_reward(policy, PROMPTS, lambda p, r: torch.zeros(27, 6))
    with pytest.raises(ValueError, match=r"probability must lie in \[0, 1\]"):
        zero_contrast_probability(1.5, 2)
    with pytest.raises(ValueError, match=r"must have the same responses.*\(3, 3, 0\)"):
        exact_kl(policy, tree_of(1), PROMPT)
    with pytest.raises(ValueError, match="beta must be positive"):
        gibbs_distribution(policy, PROMPT, REWARD, 0.0)


# --- KL -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tabular", "tree"])
def test_exact_kl_value_and_gradient(kind):
    policy, reference = (policy_of if kind == "tabular" else tree_of)(18), None
    reference = (policy_of if kind == "tabular" else tree_of)(19)
    p = response_log_probs(policy, PROMPT)[0].exp().detach().tolist()
    q = response_log_probs(reference, PROMPT)[0].exp().detach().tolist()
    expected = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    close(exact_kl(policy, reference, PROMPTS).detach(), expected)
    assert exact_kl(policy, policy, PROMPTS) == 0
    table = scores(policy, PROMPT)
    by_hand = sum(
        a * math.log(a / b) * row for a, b, row in zip(p, q, table, strict=True)
    )  # E[(log-ratio) s]; the + 1 of the product rule averages to 0
    close(flat_gradient(exact_kl(policy, reference, PROMPT), policy), by_hand)


def test_per_token_kl_is_right_on_independent_positions_and_wrong_on_a_tree():
    """A toy can lie: what holds for a table per position fails as soon as tokens see prefixes."""
    for build, holds in ((policy_of, True), (lambda s: tree_of(s, eos_id=None), False)):
        policy, reference = build(20), build(21)
        truth = flat_gradient(exact_kl(policy, reference, PROMPT), policy)
        args = (policy, reference, PROMPT)
        always = [
            kl_in_loss(*args, k2, per_token=False),
            kl_in_reward(*args, k1, per_token=False),
            kl_in_reward(*args, k1, per_token=True, to_go=True),
        ]
        for scalar in always:
            close(flat_gradient(scalar, policy), truth, atol=1e-12)
        local, immediate = (
            flat_gradient(scalar, policy)
            for scalar in (
                kl_in_loss(*args, k2, per_token=True),
                kl_in_reward(*args, k1, per_token=True, to_go=False),
            )
        )
        close(local, immediate, atol=1e-12)  # the same thing under two names
        cosine = torch.cosine_similarity(local, truth, dim=0).item()
        assert cosine == pytest.approx(1, abs=1e-12) if holds else cosine < 0.98


def test_gibbs_distribution_beats_every_nearby_policy():
    reference = tree_of(22, eos_id=None)
    beta = 0.5
    best = gibbs_distribution(reference, PROMPT, REWARD, beta)[0]
    rewards = REWARD(PROMPT, responses_of(reference)).double()
    logp_ref = response_log_probs(reference, PROMPT)[0].detach()

    def regularised(p):
        return (p * (rewards - beta * (p.log() - logp_ref))).sum()

    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        noise = torch.randn(27, generator=generator, dtype=torch.float64) * 0.1
        assert regularised((best.log() + noise).softmax(0)) < regularised(best)
    close(regularised(best), beta * (logp_ref + rewards / beta).logsumexp(0))


def test_flow_climbs_records_and_stops_at_overflow():
    policy = policy_of(23)

    def objective(policy):
        return expected_reward(policy, PROMPT, REWARD)

    seen = exact_flow(
        policy,
        objective,
        steps=60,
        learning_rate=0.5,
        record=lambda p: objective(p).item(),
        record_every=20,
    )
    assert len(seen) == 4
    assert seen == sorted(seen)
    before = policy.table.detach().clone()
    exact_flow(
        policy,
        lambda p: 100 * p.table.square().sum(),
        steps=1,
        learning_rate=0.1,
        max_grad_norm=2.0,
    )
    close((policy.table - before).detach().norm(), 0.2)
    with pytest.raises(FloatingPointError, match="not finite at step 1"):
        exact_flow(policy, lambda p: (p.table / 0).sum(), steps=5, learning_rate=0.1)
