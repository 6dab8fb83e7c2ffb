"""TRPO and PPO-penalty against closed forms, finite differences and direct linear algebra."""

import copy
import math
from functools import partial
from itertools import product

import pytest
import torch

from policy_gradients import (
    adaptive_beta,
    adaptive_beta_dual_ascent,
    adaptive_beta_proportional,
    group_centered,
    leave_one_out,
    natural_gradient_step,
    ppo_clip,
)
from policy_gradients import (
    exact_kl as kl_of_logits,
)
from toy_models.critics import all_advantages, perfect_critic
from toy_models.exact import (
    all_rewards,
    exact_flow,
    exact_gradient,
    exact_kl,
    expected_reward,
    flat_gradient,
    random_logits,
    response_log_probs,
    responses_of,
    scores,
    tabular_policy,
    token_log_probs_of,
)
from toy_models.policies import AutoregressivePolicy, Policy, PositionalPolicy, TabularPolicy
from toy_models.sorting import SortingTask, inclusion_ordering_reward
from toy_models.trust_region import (
    conjugate_gradient,
    enumerated_experience,
    fisher_matrix,
    fisher_vector_product,
    full_step,
    line_search,
    mean_kl,
    natural_gradient,
    penalised_surrogate,
    penalty_step,
    sampled_experience,
    surrogate,
    trpo_step,
)

TASK = SortingTask(3, 3)
PROMPTS = TASK.distinct_prompts()
PROMPT = PROMPTS[2:3]
ENDED = partial(inclusion_ordering_reward, eos_id=0)


def table(seed=0):
    return tabular_policy(random_logits(3, 3, scale=0.7, seed=seed))


def tree(seed=0):
    policy = AutoregressivePolicy(3, 3, eos_id=0).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        policy.table.copy_(torch.randn(policy.table.shape, generator=generator))
    return policy


def network(seed=0):
    return PositionalPolicy(3, 3, embedding_dim=2, embedding_std=0.6, seed=seed).double()


POLICIES = {"table": (table, TASK.reward), "tree": (tree, ENDED), "network": (network, TASK.reward)}
kinds = pytest.mark.parametrize("kind", POLICIES)


def close(actual, expected, atol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def moved(policy, step):
    policy = copy.deepcopy(policy)
    torch.nn.utils.vector_to_parameters(
        torch.nn.utils.parameters_to_vector(policy.parameters()) + step, policy.parameters()
    )
    return policy


# --- the pieces ---------------------------------------------------------------------------------


@kinds
def test_on_all_responses_surrogate_and_kl_are_those_of_the_exact_laboratory(kind):
    build, reward = POLICIES[kind]
    policy, other = build(1), build(2)
    experience = enumerated_experience(policy, PROMPTS, reward)
    assert experience.weights.sum().item() == pytest.approx(1, abs=1e-12)
    close(
        flat_gradient(surrogate(policy, experience), policy),
        exact_gradient(policy, PROMPTS, reward),
    )
    clipped = partial(ppo_clip, eps_low=0.2, eps_high=0.2)
    close(
        flat_gradient(surrogate(policy, experience, clipped), policy),
        exact_gradient(policy, PROMPTS, reward),
    )
    close(mean_kl(other, experience), exact_kl(policy, other, PROMPTS))
    close(
        penalised_surrogate(other, experience, beta=0.7),
        surrogate(other, experience) - 0.7 * exact_kl(policy, other, PROMPTS),
    )
    assert mean_kl(policy, experience).item() == pytest.approx(0, abs=1e-12)


class Dealt(TabularPolicy):
    """Samples are what was dealt."""

    def sample(self, prompts, group=1, *, seed=None, temperature=1.0):
        return self.dealt


def test_on_samples_the_slope_of_the_surrogate_is_as_unbiased_as_its_advantages():
    """The mean over all 16 pairs of responses: ∇J from the other's reward, half of it centred."""
    policy = Dealt(2, 2).double()
    with torch.no_grad():
        policy.table.copy_(torch.tensor([[0.4, -0.3], [0.1, 0.9]], dtype=torch.float64))
    responses, prompts = responses_of(policy), torch.tensor([[1, 0]])
    probs = response_log_probs(policy, prompts)[0].exp().detach().tolist()

    def reward(prompts, responses):
        return 1.0 + 2 * responses[..., 0] + 3 * responses[..., 0] * responses[..., 1]

    def mean(advantage):
        total = torch.zeros(4, dtype=torch.float64)
        for (i, p), (j, q) in product(enumerate(probs), repeat=2):
            policy.dealt = responses[[i, j]]
            experience = sampled_experience(
                policy, prompts, reward, group=2, seed=0, advantage=advantage
            )
            total += p * q * flat_gradient(surrogate(policy, experience), policy)
        return total

    truth = exact_gradient(policy, prompts, reward)
    close(mean(leave_one_out), truth)
    close(mean(group_centered), 0.5 * truth)
    assert truth.norm() > 0.1


@kinds
def test_fisher_product_is_the_covariance_of_the_scores(kind):
    build, reward = POLICIES[kind]
    policy = build(3)
    experience = enumerated_experience(policy, PROMPTS, reward)
    probs = response_log_probs(policy, PROMPTS).exp().detach()
    covariance = sum(
        (u.T * p) @ u for p, u in zip(probs, (scores(policy, x) for x in PROMPTS), strict=True)
    ) / len(PROMPTS)
    close(fisher_matrix(policy, experience), covariance)
    vector = torch.randn(len(covariance), dtype=torch.float64)
    damped = fisher_vector_product(policy, experience, vector, damping=0.3)
    close(damped, covariance @ vector + 0.3 * vector)


@kinds
def test_fisher_is_the_curvature_of_the_kl_at_zero(kind):
    """Second central differences of KL(old || old + x v), both directions of the KL."""
    build, reward = POLICIES[kind]
    policy, h = build(4), 1e-3
    experience = enumerated_experience(policy, PROMPTS, reward)
    for seed in range(3):
        v = torch.randn(
            sum(p.numel() for p in policy.parameters()),
            generator=torch.Generator().manual_seed(seed),
            dtype=torch.float64,
        )
        v = v / v.norm()
        expected = (v @ fisher_vector_product(policy, experience, v)).item()
        there, back = moved(policy, h * v), moved(policy, -h * v)
        for kl in (
            lambda p: mean_kl(p, experience),
            lambda p: exact_kl(p, policy, PROMPTS),
        ):
            curvature = ((kl(there) + kl(back)) / h**2).item()
            assert curvature == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_fisher_takes_its_states_from_the_experience_and_its_actions_from_the_policy():
    """On a tree the two can be told apart: the block of a state is visits * (diag(p) - p p^T)."""
    old, policy = tree(3), tree(4)
    experience = enumerated_experience(old, PROMPT, ENDED)
    states, probs = old.state_ids(experience.responses), policy.table[0].softmax(-1).detach()
    weights = (experience.weights[:, None] * experience.mask)[experience.mask]
    visits = torch.zeros(len(probs), dtype=torch.float64)
    visits.index_add_(0, states[experience.mask], weights)
    blocks = [n * (p.diag() - p[:, None] * p) for n, p in zip(visits, probs, strict=True)]
    found = fisher_matrix(policy, experience)
    close(found, torch.block_diag(*blocks))
    u = scores(policy, PROMPT[0])
    own = (u.T * response_log_probs(policy, PROMPT)[0].exp().detach()) @ u
    assert (found - own).norm() > 0.1 * own.norm()  # E[u u^T] counts the policy's own visits


def test_sampled_fisher_is_a_block_per_visited_state():
    """On a tree F is known in closed form: visits(s) * (diag(p) - p p^T) for every state s."""
    policy = tree(5)
    experience = sampled_experience(policy, PROMPTS, ENDED, group=4, seed=0)
    states, probs = policy.state_ids(experience.responses), policy.table[0].softmax(-1).detach()
    visits = torch.zeros(len(probs), dtype=torch.float64)
    visits.index_add_(0, states[experience.mask], experience.mask.double()[experience.mask])
    blocks = [
        n / len(states) * (p.diag() - p[:, None] * p) for n, p in zip(visits, probs, strict=True)
    ]
    close(fisher_matrix(policy, experience), torch.block_diag(*blocks))
    assert 0 < (visits == 0).sum() < len(visits)  # some states were never seen: F cannot know them


def test_conjugate_gradient_solves_and_counts_its_steps():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(12, 12, generator=generator, dtype=torch.float64)
    b = torch.randn(12, generator=generator, dtype=torch.float64)
    positive = root @ root.T + torch.eye(12, dtype=torch.float64)
    close(conjugate_gradient(lambda v: positive @ v, b, steps=12), torch.linalg.solve(positive, b))
    singular = root[:, :5] @ root[:, :5].T  # rank 5: five steps are enough
    inside = singular @ b
    expected = torch.linalg.pinv(singular, hermitian=True) @ inside
    close(conjugate_gradient(lambda v: singular @ v, inside, steps=5), expected, atol=1e-8)
    calls = []

    def identity(v):
        calls.append(v)
        return 3 * v

    close(conjugate_gradient(identity, b, steps=12), b / 3)
    assert len(calls) == 1  # all eigenvalues equal: one product is enough
    assert conjugate_gradient(identity, torch.zeros(12), steps=12).equal(torch.zeros(12))
    errors = []
    for steps in (1, 3, 6, 9):
        x = conjugate_gradient(lambda v: positive @ v, b, steps=steps)
        errors.append(((x - torch.linalg.solve(positive, b)) @ positive).norm().item())
    assert errors == sorted(errors, reverse=True)


@kinds
def test_conjugate_gradient_gives_the_same_step_as_the_matrix(kind):
    build, reward = POLICIES[kind]
    policy = build(6)
    experience = enumerated_experience(policy, PROMPT, reward)
    fisher = fisher_matrix(policy, experience)
    gradient = exact_gradient(policy, PROMPT, reward)
    expected = natural_gradient_step(gradient, fisher, delta=0.01)
    step = full_step(policy, experience, delta=0.01, cg_steps=60)
    # parameters may have directions that change nothing: compare what can be measured
    close(fisher @ step, fisher @ expected, atol=1e-7)
    assert (step @ fisher @ step).item() == pytest.approx(0.02, abs=1e-9)


def test_damping_is_added_to_the_fisher_matrix_and_the_step_stays_below_delta():
    policy = tree(6)
    experience = enumerated_experience(policy, PROMPT, ENDED)
    fisher, gradient = fisher_matrix(policy, experience), exact_gradient(policy, PROMPT, ENDED)
    rank, size = int(torch.linalg.matrix_rank(fisher, hermitian=True)), len(fisher)
    assert rank == 2 * size // 3  # three logits at every state, and a shift of all three is silent
    pinv = torch.linalg.pinv(fisher, hermitian=True) @ gradient
    close(natural_gradient(policy, experience, cg_steps=rank), pinv, atol=1e-6)
    early = natural_gradient(policy, experience, cg_steps=2)
    assert (early - pinv).norm() > 0.1 * pinv.norm()
    damped = fisher + 0.1 * torch.eye(size, dtype=torch.float64)
    solved = torch.linalg.solve(damped, gradient)
    close(natural_gradient(policy, experience, damping=0.1, cg_steps=rank), solved, atol=1e-7)
    step = full_step(policy, experience, delta=0.01, damping=0.1, cg_steps=rank)
    assert (step @ damped @ step / 2).item() == pytest.approx(0.01, abs=1e-9)
    assert (step @ fisher @ step / 2).item() < 0.8 * 0.01


def test_no_step_of_the_same_length_in_kl_gains_more():
    policy = tree(7)
    experience = enumerated_experience(policy, PROMPTS, ENDED)
    gradient = exact_gradient(policy, PROMPTS, ENDED)
    fisher = fisher_matrix(policy, experience)
    best = gradient @ full_step(policy, experience, delta=0.01, cg_steps=60)
    generator = torch.Generator().manual_seed(1)
    others = torch.randn(2000, len(gradient), generator=generator, dtype=torch.float64)
    others = torch.cat([others, gradient[None]])  # the plain gradient is one of them
    length = torch.einsum("ni,ij,nj->n", others, fisher, others)
    gains = (others @ gradient) * (0.02 / length).sqrt()
    assert gains.max() < best
    assert gains[-1] < 0.95 * best


class Cubed(Policy):
    """The same distributions as a table, written in other parameters: logits = mix @ w^3."""

    def __init__(self, logits):
        super().__init__(logits.shape[1], logits.shape[0])
        generator = torch.Generator().manual_seed(9)
        size = logits.numel()
        self.mix = torch.eye(size, dtype=torch.float64)
        self.mix += 0.3 * torch.randn(size, size, generator=generator, dtype=torch.float64)
        start = torch.linalg.solve(self.mix, logits.flatten())
        self.weight = torch.nn.Parameter(start.sign() * start.abs() ** (1 / 3))

    def logits(self, prompts, responses=None):
        logits = (self.mix @ self.weight**3).view(self.length, self.vocab_size)
        return self._per_response(logits.expand(len(prompts), -1, -1), prompts, responses)


def test_the_natural_gradient_does_not_depend_on_the_parameters_to_first_order():
    plain = table(10)
    other = Cubed(plain.table.detach())
    close(response_log_probs(other, PROMPT), response_log_probs(plain, PROMPT))

    def change(policy, step):
        return (response_log_probs(moved(policy, step), PROMPT) - before).detach()

    before = response_log_probs(plain, PROMPT).detach()
    gaps, sizes, plain_gaps = [], [], []
    for delta in (1e-4, 1e-6):
        natural, ordinary = [], []
        for policy in (plain, other):
            experience = enumerated_experience(policy, PROMPT, TASK.reward)
            natural.append(change(policy, full_step(policy, experience, delta=delta, cg_steps=60)))
            gradient = exact_gradient(policy, PROMPT, TASK.reward)
            ordinary.append(change(policy, math.sqrt(delta) * gradient / gradient.norm()))
        gaps.append((natural[0] - natural[1]).norm())
        sizes.append(natural[0].norm())
        plain_gaps.append((ordinary[0] - ordinary[1]).norm())
    assert (sizes[0] / sizes[1]).item() == pytest.approx(10, rel=0.1)  # a step has first order
    assert (gaps[0] / gaps[1]).item() == pytest.approx(100, rel=0.1)  # the gap has second order
    assert (plain_gaps[0] / plain_gaps[1]).item() == pytest.approx(
        10, rel=0.1
    )  # not the gradient's


# --- the facts ----------------------------------------------------------------------------------


def confident_against_its_reward():
    """Two arms, p = .999 on the one that earns nothing."""
    policy = TabularPolicy(2, 1).double()
    with torch.no_grad():
        policy.table[0, 0] = math.log(0.999 / 0.001)
    prompts = torch.tensor([[0]])
    return policy, enumerated_experience(policy, prompts, lambda p, r: (r[..., 0] == 1).double())


def test_the_quadratic_model_is_wrong_by_a_factor_of_seventy_and_the_line_search_repairs_it():
    policy, experience = confident_against_its_reward()
    step = full_step(policy, experience, delta=0.1)
    model = 0.5 * step @ fisher_vector_product(policy, experience, step)
    assert model.item() == pytest.approx(0.1, abs=1e-12)
    # by hand: F = p(1-p) on the difference of the logits
    difference = math.log(999) - math.sqrt(0.2 / (0.999 * 0.001))
    p = 1 / (1 + math.exp(-difference))
    by_hand = 0.999 * math.log(0.999 / p) + 0.001 * math.log(0.001 / (1 - p))
    assert by_hand == pytest.approx(7.23, abs=5e-3)
    assert mean_kl(moved(policy, step), experience).item() == pytest.approx(by_hand, abs=1e-9)
    taken = trpo_step(policy, experience, delta=0.1)
    assert taken.full_kl == pytest.approx(by_hand, abs=1e-9)
    assert taken.kl <= 0.1
    assert taken.kl == pytest.approx(mean_kl(policy, experience).item(), abs=1e-12)
    assert taken.scale == pytest.approx(0.8**5)
    assert taken.gain > 0


def test_the_mean_kl_is_kept_but_not_the_largest_one():
    """A state visited once in a hundred responses decides everything: its KL is nearly free."""
    policy = AutoregressivePolicy(2, 2, eos_id=None).double()
    with torch.no_grad():
        policy.table[0, 0, 0] = math.log(99)  # first token 1 with probability .01
    old = copy.deepcopy(policy)

    def only_there(prompts, responses):
        return torch.where(responses[..., 0] == 1, 2.0 * responses[..., 1] - 1, 0.0)

    experience = enumerated_experience(policy, PROMPT, only_there)
    step = trpo_step(policy, experience, delta=0.01)
    assert 0 < step.kl <= 0.01
    per_state = kl_of_logits(old.table, policy.table)[0]
    assert per_state[2] > 50 * 0.01
    visits = torch.tensor([1, 0.99, 0.01], dtype=torch.float64)
    assert (visits @ per_state).item() == pytest.approx(step.kl, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_trpo_sorts_and_keeps_its_promise_on_every_sample(seed):
    policy, generator = PositionalPolicy(3, 3, seed=seed), torch.Generator().manual_seed(seed)
    start = expected_reward(policy, PROMPTS, TASK.reward).item()
    for _ in range(25):
        old = copy.deepcopy(policy)
        experience = sampled_experience(policy, PROMPTS, TASK.reward, group=16, seed=generator)
        step = trpo_step(policy, experience, delta=0.1)
        assert mean_kl(policy, experience).item() <= 0.1
        assert step.gain > 0 or step.scale == 0
        # independent positions: the samples cannot miss a state, so this KL is the exact one
        assert step.kl == pytest.approx(exact_kl(old, policy, PROMPTS).item(), abs=1e-4)
    assert start < 3.6
    assert expected_reward(policy, PROMPTS, TASK.reward) > 4.7


def test_an_update_that_cannot_keep_its_promises_is_not_made():
    policy, experience = confident_against_its_reward()
    before = policy.table.detach().clone()
    down = -full_step(policy, experience, delta=0.1)
    assert line_search(policy, experience, down, delta=0.1).scale == 0  # the surrogate would fall
    assert policy.table.equal(before)
    step = trpo_step(policy, experience, delta=0.1, backtracks=0)  # the whole step or none
    assert step[:3] == (0.0, 0.0, 0.0)
    assert step.full_kl > 7
    assert policy.table.equal(before)
    flat = experience._replace(advantages=torch.zeros_like(experience.advantages))
    assert full_step(policy, flat, delta=0.1).abs().max() == 0
    assert trpo_step(policy, flat, delta=0.1) == (0.0, 0.0, 0.0, 0.0)
    assert policy.table.equal(before)


def test_padding_of_the_responses_is_not_felt():
    policy = tree(12)
    experience = sampled_experience(policy, PROMPTS, ENDED, group=3, seed=1)
    assert not experience.mask.all()
    dirty = experience._replace(
        logits_old=torch.where(experience.mask[..., None], experience.logits_old, 50.0),
        logp_old=torch.where(experience.mask, experience.logp_old, -30.0),
    )
    for measure in (mean_kl, surrogate):
        a, b = tree(13), tree(13)
        clean, felt = measure(a, experience), measure(b, dirty)
        assert clean.item() == felt.item()
        assert flat_gradient(clean, a).equal(flat_gradient(felt, b))


def test_advantages_of_a_critic_take_the_same_step_in_expectation():
    policy = tree(17)
    experience = enumerated_experience(policy, PROMPTS, ENDED)
    critic = perfect_critic(policy, PROMPTS, ENDED)
    exact = all_advantages(policy, critic, PROMPTS, ENDED, gamma=1.0, lam=0.0).flatten(0, 1)
    per_token = experience._replace(advantages=exact)
    close(
        full_step(policy, per_token, delta=0.01, cg_steps=60),
        full_step(policy, experience, delta=0.01, cg_steps=60),
        atol=1e-7,
    )


# --- PPO-penalty --------------------------------------------------------------------------------


RULES = {  # how far from its target the KL of the last updates may be, as a factor
    "doubling": (adaptive_beta, 3.0),
    "proportional": (partial(adaptive_beta_proportional, gain=1.0), 1.4),
    "dual": (partial(adaptive_beta_dual_ascent, step_size=100.0), 1.01),
}


@pytest.mark.parametrize("start", [0.1, 30.0])
@pytest.mark.parametrize("name", RULES)
def test_beta_brings_the_kl_of_an_update_to_its_target(name, start):
    """Forty updates from the same policy on the same experience: only beta changes."""
    rule, factor = RULES[name]
    origin, beta, seen = table(14), start, []
    experience = enumerated_experience(origin, PROMPT, TASK.reward)
    for _ in range(40):
        policy, adapt = copy.deepcopy(origin), partial(rule, target=0.02)
        step, beta = penalty_step(policy, experience, beta=beta, adapt=adapt)
        seen.append(step.kl)
    assert not 0.02 / 5 < seen[0] < 0.02 * 5
    assert all(0.02 / factor < kl < 0.02 * factor for kl in seen[-6:])
    if name == "doubling":  # it cannot settle: doubling beta moves this KL fivefold, past the band
        assert max(seen[-6:]) > 1.5 * 0.02
        assert min(seen[-6:]) < 0.02 / 1.5


def test_the_three_rules_are_called_with_this_updates_beta_and_kl():
    policy = table(15)
    experience = enumerated_experience(policy, PROMPT, TASK.reward)
    old, calls = copy.deepcopy(policy), []
    step, beta = penalty_step(
        policy,
        experience,
        beta=2.0,
        adapt=lambda *seen: calls.append(seen) or 7.0,
        learning_rate=0.1,
        optimizer=torch.optim.SGD,
    )
    assert beta == 7.0
    assert calls == [(2.0, step.kl)]
    assert step.kl == pytest.approx(exact_kl(old, policy, PROMPT).item(), abs=1e-10)
    by_hand = copy.deepcopy(old)
    exact_flow(
        by_hand,
        lambda p: expected_ratio(p, old) - 2 * exact_kl(old, p, PROMPT),
        steps=20,
        learning_rate=0.1,
    )
    close(policy.table, by_hand.table)


def expected_ratio(policy, old):
    """The token surrogate written out, with the probabilities of the old policy."""
    logp = token_log_probs_of(policy, PROMPT)[0]
    logp_old = token_log_probs_of(old, PROMPT)[0].detach()
    probs = logp_old.sum(-1).exp()
    rewards = all_rewards(old, PROMPT, TASK.reward)[0]
    advantages = rewards - probs @ rewards
    return (probs * advantages * (logp - logp_old).exp().sum(-1)).sum()


@pytest.mark.parametrize("seed", range(3))
def test_ppo_penalty_sorts(seed):
    policy, generator = PositionalPolicy(3, 3, seed=seed), torch.Generator().manual_seed(seed)
    beta = 1.0
    for _ in range(30):
        experience = sampled_experience(policy, PROMPTS, TASK.reward, group=16, seed=generator)
        adapt = partial(adaptive_beta, target=0.05)
        _, beta = penalty_step(policy, experience, beta=beta, adapt=adapt, inner_steps=10)
    assert expected_reward(policy, PROMPTS, TASK.reward) > 4.5


# --- what goes wrong ----------------------------------------------------------------------------


def test_impossible_values_are_named():
    policy = table(16)
    experience = enumerated_experience(policy, PROMPT, TASK.reward)
    for delta in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="delta must be positive and finite"):
            trpo_step(policy, experience, delta=delta)
    with pytest.raises(ValueError, match=r"shrink must lie in \(0, 1\), got 1.0"):
        trpo_step(policy, experience, delta=0.1, shrink=1.0)
    with pytest.raises(ValueError, match=r"vector must be \(parameters,\) = \(9,\), got \(3, 3\)"):
        fisher_vector_product(policy, experience, torch.zeros(3, 3))
    with pytest.raises(ValueError, match="beta must be greater than 0"):
        penalty_step(policy, experience, beta=0.0, adapt=partial(adaptive_beta, target=0.01))
    assert natural_gradient(policy, experience).shape == (9,)
