"""Control as inference against enumeration: of trajectories, and of responses."""

import math

import pytest
import torch

from toy_models.exact import all_rewards, gibbs_distribution, response_log_probs
from toy_models.policies import AutoregressivePolicy, TabularPolicy
from toy_models.soft_control import (
    evaluate,
    log_evidence,
    lottery,
    mean_values,
    messages,
    posterior_dynamics,
    posterior_policy,
    random_mdp,
    soft_optimal,
    soft_values,
    tilted_policy,
    trajectories,
)
from toy_models.sorting import (
    SortingTask,
    position_match_reward,
    sort_then_end_reward,
    sorted_reward,
)

BETA = 0.7
TASK = SortingTask(3, 3)


# --- the posterior, by listing every trajectory -------------------------------------------------


def posterior(mdp):
    listed = trajectories(mdp)
    return listed, torch.softmax(listed.log_prior + listed.rewards / BETA, 0)


def disagreement_with_enumeration(mdp, policy) -> float:
    """Largest error of p(a_t | s_t, O), over the states that can be reached."""
    listed, weight = posterior(mdp)
    worst = 0.0
    for t in range(mdp.horizon):
        joint = torch.zeros_like(mdp.rewards)
        joint.index_put_((listed.states[:, t], listed.actions[:, t]), weight, accumulate=True)
        reached = joint.sum(-1) > 0
        exact = joint[reached] / joint[reached].sum(-1, keepdim=True)
        worst = max(worst, float((exact - policy[t][reached]).abs().max()))
    return worst


@pytest.mark.parametrize("seed", range(3))
def test_messages_are_the_posterior_of_all_trajectories(seed):
    start = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    mdp = random_mdp(3, 2, 4, seed=seed)._replace(start=start)
    listed, weight = posterior(mdp)
    assert listed.log_prior.exp().sum() == pytest.approx(1, abs=1e-12)
    evidence = BETA * torch.logsumexp(listed.log_prior + listed.rewards / BETA, 0)
    assert log_evidence(mdp, beta=BETA) == pytest.approx(float(evidence), abs=1e-12)
    assert disagreement_with_enumeration(mdp, posterior_policy(mdp, beta=BETA)) < 1e-12
    # the lucky world: p(s' | s, a, O) at t = 1
    dynamics = posterior_dynamics(mdp, beta=BETA)
    joint = torch.zeros(3, 2, 3, dtype=torch.float64)
    steps = (listed.states[:, 1], listed.actions[:, 1], listed.states[:, 2])
    joint.index_put_(steps, weight, accumulate=True)
    assert torch.allclose(joint / joint.sum(-1, keepdim=True), dynamics[1], atol=1e-12)
    # posterior policy in the posterior's world is the posterior over trajectories
    policy = posterior_policy(mdp, beta=BETA)
    first = torch.softmax(start.log() + messages(mdp, beta=BETA).value[0] / BETA, -1)  # luck too
    lucky = mdp._replace(start=first)
    believed = evaluate(lucky, policy, beta=BETA, dynamics=dynamics)
    earned = float(weight @ listed.rewards)
    assert float(believed.J) == pytest.approx(earned, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_is_short_of_the_evidence_by_beta_times_the_kl_of_trajectories(seed):
    mdp = random_mdp(3, 2, 4, seed=seed)
    listed, weight = posterior(mdp)
    evidence = float(log_evidence(mdp, beta=BETA))
    noise = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(seed)).double()
    for policy in (
        posterior_policy(mdp, beta=BETA),
        soft_optimal(mdp, beta=BETA).policy,
        torch.softmax(noise, -1),
    ):
        logp = listed.log_probs(mdp, policy)
        gap = BETA * float((logp.exp() * (logp - weight.log())).sum())
        value = evaluate(mdp, policy, beta=BETA)
        assert float(value.objective) == pytest.approx(evidence - gap, abs=1e-11)
        assert float(value.J) == pytest.approx(float(logp.exp() @ listed.rewards), abs=1e-12)


# --- the cure -----------------------------------------------------------------------------------


def short_of_the_optimum(mdp, result) -> float:
    """How far the policy's objective is from what its own values promise."""
    promised = float(mdp.start @ result.value[0])
    return abs(float(evaluate(mdp, result.policy, beta=BETA).objective) - promised)


@pytest.mark.parametrize("seed", range(3))
def test_the_soft_optimum_keeps_its_promise_and_nothing_beats_it(seed):
    mdp = random_mdp(4, 3, 3, seed=seed)
    best = soft_optimal(mdp, beta=BETA)
    assert short_of_the_optimum(mdp, best) < 1e-12
    top = float(evaluate(mdp, best.policy, beta=BETA).objective)
    generator = torch.Generator().manual_seed(seed)
    for size in (0.1, 1.0, 5.0):
        noise = torch.randn(3, 4, 3, generator=generator, dtype=torch.float64) * size
        other = torch.softmax(best.policy.log() + noise, -1)
        assert float(evaluate(mdp, other, beta=BETA).objective) < top
    # stationary: the gradient of the objective by autograd vanishes there
    logits = best.policy.log().requires_grad_()
    value = evaluate(mdp, torch.softmax(logits, -1), beta=BETA).objective
    (gradient,) = torch.autograd.grad(value, logits)
    assert gradient.abs().max() < 1e-12


def test_swapping_the_two_look_aheads_is_caught_both_ways(planted):
    mdp = random_mdp(3, 2, 4, seed=0)
    hope, expect = (
        "beta * torch.logsumexp(mdp.transitions.log() + value / beta, -1)",
        ("mdp.transitions @ value"),
    )
    cautious = planted(messages, hope, expect)
    hopeful = planted(soft_optimal, expect, hope)
    assert disagreement_with_enumeration(mdp, messages(mdp, beta=BETA).policy) < 1e-12
    assert disagreement_with_enumeration(mdp, cautious(mdp, beta=BETA).policy) > 0.01
    assert short_of_the_optimum(mdp, soft_optimal(mdp, beta=BETA)) < 1e-12
    assert short_of_the_optimum(mdp, hopeful(mdp, beta=BETA)) > 0.01


@pytest.mark.parametrize("seed", range(3))
def test_with_certain_transitions_posterior_and_optimum_are_one(seed):
    mdp = random_mdp(4, 3, 5, seed=seed, deterministic=True)
    hopeful, best = messages(mdp, beta=BETA), soft_optimal(mdp, beta=BETA)
    for one, other in zip(hopeful, best, strict=True):
        assert (one - other).abs().max() < 1e-12
    evidence = float(log_evidence(mdp, beta=BETA))
    assert float(mdp.start @ best.value[0]) == pytest.approx(evidence, abs=1e-12)
    moved = posterior_dynamics(mdp, beta=BETA) - mdp.transitions
    assert moved.abs().max() < 1e-12


def test_the_posterior_buys_the_ticket_and_the_controller_does_not():
    mdp = lottery()
    hope = math.log(0.1 * math.exp(5) + 0.9 * math.exp(-2))  # 2.7056
    hopeful, best = messages(mdp), soft_optimal(mdp)
    assert hopeful.q[0, 0].tolist() == pytest.approx([0, hope], abs=1e-12)
    assert best.q[0, 0].tolist() == pytest.approx([0, -1.3], abs=1e-12)
    assert float(hopeful.policy[0, 0, 1]) == pytest.approx(1 / (1 + math.exp(-hope)), abs=1e-12)
    assert float(best.policy[0, 0, 1]) == pytest.approx(1 / (1 + math.exp(1.3)), abs=1e-12)
    earned = [evaluate(mdp, policy) for policy in (hopeful.policy, mdp.prior, best.policy)]
    assert [float(x.J) for x in earned] == pytest.approx([-1.2186, -0.65, -0.2784], abs=1e-4)
    believed = evaluate(mdp, hopeful.policy, dynamics=posterior_dynamics(mdp))
    assert float(believed.J) == pytest.approx(4.6334, abs=1e-4)  # and it earns -1.2186


def test_a_forbidden_action_stays_forbidden():
    mdp = random_mdp(3, 2, 4, seed=1)
    prior = mdp.prior.clone()
    prior[0] = torch.tensor([1.0, 0.0])
    mdp = mdp._replace(prior=prior)
    for result in (messages(mdp), soft_optimal(mdp)):
        assert (result.policy[:, 0, 1] == 0).all()
        assert bool(torch.isfinite(evaluate(mdp, result.policy).objective))
    assert bool(torch.isfinite(trajectories(mdp).log_prior).all())  # and is not listed


def test_a_token_the_reference_never_writes_stays_unwritten():
    prompts, policy_ref = TASK.distinct_prompts(), reference(True)
    with torch.no_grad():
        policy_ref.table[:, 0, 1] = -torch.inf
    logp = response_log_probs(policy_ref, prompts).detach()
    plain = (logp.exp() * all_rewards(policy_ref, prompts, reward_of(True))).sum(-1)
    tree = mean_values(policy_ref, prompts, reward_of(True), beta=0.5)
    assert torch.allclose(tree.value[:, 0], plain, atol=1e-12)
    for made in (tree, soft_values(policy_ref, prompts, reward_of(True), beta=0.5)):
        assert (made.policy.table[:, 0].softmax(-1)[:, 1] == 0).all()


def test_rewards_see_an_ended_response_as_the_exact_functions_write_it():
    """After the end the end token is repeated: a reward may count tokens to the last place."""
    prompts, policy_ref = TASK.distinct_prompts(), reference(True)

    def counts_all(x, y):
        return (y + 0 * x[..., :1]).double().sum(-1)

    tree = soft_values(policy_ref, prompts, counts_all, beta=2.0)
    assert distance_to_gibbs(tree, policy_ref, prompts, counts_all, 2.0) < 1e-12


def test_policies_sum_to_one_however_small_beta_is():
    mdp = random_mdp(3, 2, 4, seed=0)
    for beta in (1e-3, 1e-12, 1e-100):
        for solve in (messages, soft_optimal):
            total = solve(mdp, beta=beta).policy.sum(-1)
            assert torch.allclose(total, torch.ones_like(total), rtol=0, atol=1e-12)


# --- a language model ---------------------------------------------------------------------------


def reference(eos: bool, prompts=None):
    policy = AutoregressivePolicy(
        4 if eos else 3, 4 if eos else 3, eos_id=3 if eos else None, prompts=prompts
    ).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        policy.table.copy_(torch.randn(policy.table.shape, generator=generator).double())
    return policy


def reward_of(eos: bool):
    return (lambda x, y: sort_then_end_reward(x, y, eos_id=3)) if eos else TASK.reward


def distance_to_gibbs(tree, policy_ref, prompts, reward, beta) -> float:
    law = response_log_probs(tree.policy, prompts).detach().exp()
    return float((law - gibbs_distribution(policy_ref, prompts, reward, beta)).abs().max())


@pytest.mark.parametrize("beta", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("eos", [False, True])
def test_the_soft_recursion_over_tokens_writes_the_gibbs_distribution(eos, beta):
    prompts, policy_ref, reward = TASK.distinct_prompts(), reference(eos), reward_of(eos)
    tree = soft_values(policy_ref, prompts, reward, beta=beta)
    assert distance_to_gibbs(tree, policy_ref, prompts, reward, beta) < 1e-12
    logp = response_log_probs(policy_ref, prompts)
    worth = beta * torch.logsumexp(logp + all_rewards(policy_ref, prompts, reward) / beta, -1)
    assert torch.allclose(tree.value[:, 0], worth, atol=1e-12)  # beta log Z


def test_a_reference_with_a_table_per_prompt_and_some_of_its_prompts():
    prompts = TASK.distinct_prompts()
    policy_ref, some = reference(True, prompts), TASK.distinct_prompts()[[4, 1]]
    tree = soft_values(policy_ref, some, reward_of(True), beta=0.5)
    assert distance_to_gibbs(tree, policy_ref, some, reward_of(True), 0.5) < 1e-12


def test_the_plain_mean_in_the_exponent_is_not_gibbs(planted):
    prompts = TASK.distinct_prompts()
    for reward, eos in ((reward_of(True), True), (reward_of(False), False)):
        policy_ref = reference(eos)
        tree = mean_values(policy_ref, prompts, reward, beta=0.5)
        assert distance_to_gibbs(tree, policy_ref, prompts, reward, 0.5) > 0.01
    soften = "beta * torch.logsumexp(log_ref + q / beta, -1)"
    slip = planted(soft_values, soften, "(log_ref.exp() * q).sum(-1)")
    tree = slip(policy_ref, prompts, reward, beta=0.5)
    assert distance_to_gibbs(tree, policy_ref, prompts, reward, 0.5) > 0.01


def test_scoring_each_token_by_what_it_earns_at_once_is_not_gibbs():
    """Even for a reward that is a sum over positions: the reference's tokens depend on each other.

    First token 0 earns the point but leads where the second one is out of reach; first token 1
    leads to it. Myopically 0 is better; Gibbs is even.
    """
    prompt = torch.tensor([[0, 1]])  # right answer 0, 1
    policy_ref = AutoregressivePolicy(2, 2, eos_id=None).double()
    with torch.no_grad():
        policy_ref.table[0, 1] = torch.tensor([30.0, 0.0])  # after a 0: another 0
        policy_ref.table[0, 2] = torch.tensor([0.0, 30.0])  # after a 1: another 1
    at_once = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], dtype=torch.float64)  # (states, 2)
    myopic = tilted_policy(policy_ref, prompt, at_once, beta=0.2)
    best = soft_values(policy_ref, prompt, position_match_reward, beta=0.2)
    first = [p.table[0, 0].softmax(-1)[0].item() for p in (myopic, best.policy)]
    assert first[0] == pytest.approx(1 / (1 + math.exp(-5)), abs=1e-9)
    assert first[1] == pytest.approx(0.5, abs=1e-6)


def refusals(calls) -> list[str]:
    """What each call says when it refuses; fails for one that does not."""
    said = []
    for call in calls:
        with pytest.raises((TypeError, ValueError)) as refused:
            call()
        said.append(str(refused.value))
    return said


def test_tables_that_are_no_distributions_and_rewards_of_the_wrong_shape_are_refused():
    mdp, prompts, policy_ref = lottery(), TASK.distinct_prompts(), reference(False)
    q = torch.zeros(13, 3, dtype=torch.float64)
    said = refusals(
        [
            lambda: evaluate(mdp, 2 * mdp.prior),
            lambda: evaluate(mdp, torch.tensor([2.0, -1.0]).double().expand(4, 2)),
            lambda: evaluate(mdp, mdp.prior * math.nan),
            lambda: evaluate(mdp, mdp.prior, dynamics=2 * mdp.transitions),
            lambda: messages(mdp._replace(start=2 * mdp.start)),
            lambda: messages(mdp, beta=1e-320),
            lambda: messages(mdp, beta=math.inf),
            lambda: trajectories(mdp).log_probs(mdp, mdp.prior.expand(3, 4, 2)),
            lambda: tilted_policy(policy_ref, prompts, q * math.nan, beta=1.0),
            lambda: tilted_policy(policy_ref, prompts, q - math.inf, beta=1.0),
            lambda: soft_values(policy_ref, prompts, lambda x, y: x[:, 0, 0].double(), beta=1),
            lambda: soft_values(policy_ref, prompts, lambda x, y: x[:, :, 0].double(), beta=1),
            lambda: soft_values(policy_ref, prompts, lambda x, y: 1.0, beta=1),
        ]
    )
    named = ["policy must hold"] * 3 + ["dynamics must hold", "MDP.start must hold", "too small"]
    named += ["beta must be", "policy must be", "q must be", "q must be"] + [
        "reward must return"
    ] * 3
    assert all(name in text for name, text in zip(named, said, strict=True)), said


# --- refusals -----------------------------------------------------------------------------------


def test_what_does_not_fit_is_named():
    mdp = lottery()
    with pytest.raises(TypeError, match="mdp must be an MDP, got dict"):
        messages({})
    with pytest.raises(ValueError, match=r"MDP\.prior must be \(4, 2\) to fit rewards, got \(4,\)"):
        messages(mdp._replace(prior=mdp.prior[:, 0]))
    with pytest.raises(ValueError, match=r"MDP\.transitions must hold probabilities"):
        soft_optimal(mdp._replace(transitions=2 * mdp.transitions))
    with pytest.raises(ValueError, match=r"MDP\.rewards must be finite"):
        messages(mdp._replace(rewards=mdp.rewards.log()))
    with pytest.raises(ValueError, match=r"MDP\.horizon must be a whole number >= 1, got 0"):
        messages(mdp._replace(horizon=0))
    with pytest.raises(ValueError, match="beta must be positive and finite, got 0"):
        messages(mdp, beta=0)
    with pytest.raises(TypeError, match="beta must be a number"):
        messages(mdp, beta="1")
    with pytest.raises(ValueError, match=r"policy must be .* got \(3, 2\)"):
        evaluate(mdp, torch.ones(3, 2))
    with pytest.raises(ValueError, match="win must be a probability"):
        lottery(win=1.5)
    with pytest.raises(ValueError, match="more than 200000 trajectories"):
        trajectories(random_mdp(4, 3, 9, seed=0))
    with pytest.raises(TypeError, match="AutoregressivePolicy"):
        soft_values(TabularPolicy(3, 3), TASK.distinct_prompts(), TASK.reward, beta=1)
    with pytest.raises(ValueError, match="reward must be finite"):
        soft_values(
            reference(False),
            TASK.distinct_prompts(),
            lambda x, y: sorted_reward(x, y).log(),
            beta=1,
        )
