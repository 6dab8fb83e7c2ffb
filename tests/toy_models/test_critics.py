"""Critics against brute force: conditional means, exact bias of GAE, what a table can learn."""

import math
from functools import partial

import pytest
import torch

from policy_gradients import gae, shape_rewards_with_kl, value_loss
from toy_models.critics import (
    LinearCritic,
    TabularCritic,
    all_advantages,
    explained_variance,
    last_token,
    perfect_critic,
    reward_critic,
)
from toy_models.exact import (
    all_rewards,
    exact_gradient,
    flat_gradient,
    gradient_moments,
    random_logits,
    response_log_probs,
    responses_of,
    tabular_policy,
    token_log_probs_of,
)
from toy_models.policies import AutoregressivePolicy, PositionalPolicy
from toy_models.sorting import SortingTask, inclusion_ordering_reward, sort_then_end_reward

PROMPTS = SortingTask(3, 3).distinct_prompts()
PROMPT = PROMPTS[2:3]
REWARD = partial(sort_then_end_reward, eos_id=3)


def sorter(seed=0, prompts=PROMPTS):
    """A tree per prompt with an end token, somewhere in the middle of learning."""
    policy = AutoregressivePolicy(4, 4, eos_id=3, prompts=prompts).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        policy.table.copy_(torch.randn(policy.table.shape, generator=generator))
    return policy


def noisy(critic, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        noise = torch.randn(critic.table.shape, generator=generator, dtype=critic.table.dtype)
        critic.table.add_(noise)
    return critic


def close(actual, expected, atol=1e-10):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def written(row, t):
    """What stood there before token t, as a tuple; None after the end."""
    before = tuple(row[:t].tolist())
    return None if 3 in before else before


# --- values -------------------------------------------------------------------------------------


def test_a_perfect_critic_is_the_mean_reward_of_what_may_still_come():
    policy = sorter(1)
    responses, critic = responses_of(policy), perfect_critic(policy, PROMPTS, REWARD)
    values = critic.values(PROMPTS, responses.repeat(6, 1)).unflatten(0, (6, -1))
    probs, rewards = response_log_probs(policy, PROMPTS).exp(), all_rewards(policy, PROMPTS, REWARD)
    for x in range(6):
        mass, total = {}, {}
        for row, p, r in zip(responses, probs[x].tolist(), rewards[x].tolist(), strict=True):
            for t in range(4):
                key = written(row, t)
                mass[key], total[key] = mass.get(key, 0) + p, total.get(key, 0) + p * r
        expected = [
            [0.0 if written(row, t) is None else total[written(row, t)] / mass[written(row, t)]
             for t in range(4)]
            for row in responses
        ]  # fmt: skip
        close(values[x], torch.tensor(expected, dtype=torch.float64))


def test_a_perfect_critic_is_perfect_for_the_score_without_discount_or_kl():
    """At every prefix the advantages of a critic that is right average to zero."""
    policy, reference = sorter(1), sorter(2)
    critic = perfect_critic(policy, PROMPTS, REWARD)
    responses, probs = responses_of(policy), response_log_probs(policy, PROMPTS).exp().detach()
    batch, mask = responses.repeat(6, 1), policy.mask(responses).repeat(6, 1)
    logp, logp_ref = (p.log_probs(PROMPTS, batch).detach() for p in (policy, reference))
    scores, states = all_rewards(policy, PROMPTS, REWARD).flatten(), critic.prefixes(batch)
    prompt = torch.arange(6).repeat_interleave(len(responses))[:, None].expand_as(states)

    def worst(gamma, beta):
        rewards = shape_rewards_with_kl(scores, logp, logp_ref, mask, beta=beta)
        values = critic.values(PROMPTS, batch).detach()
        advantages, _ = gae(rewards, values, last_token(mask), gamma=gamma, lam=0.9)
        weighted = torch.where(mask, probs.flatten()[:, None] * advantages, 0.0)
        sums = torch.zeros_like(critic.table.detach())
        return sums.index_put((prompt, states), weighted, accumulate=True).abs().max().item()

    assert worst(1.0, 0.0) < 1e-12
    assert worst(0.9, 0.0) > 0.1
    assert worst(1.0, 0.3) > 0.1


def test_a_table_sees_the_prefix_the_prompt_and_nothing_that_comes_later():
    policy = sorter(2)
    critic, responses = noisy(TabularCritic(policy, PROMPTS)), responses_of(policy)
    values = critic.values(PROMPTS, responses.repeat(6, 1)).unflatten(0, (6, -1))
    seen = {}
    for x in range(6):
        for row, value in zip(responses, values[x].tolist(), strict=True):
            for t in range(4):
                if written(row, t) is None:
                    assert value[t] == 0
                else:
                    assert seen.setdefault((x, written(row, t)), value[t]) == value[t]
    assert len(set(seen.values())) == len(seen) == critic.table.numel() == 6 * 40
    shared = noisy(TabularCritic(policy))
    assert shared.table.numel() == 40
    both = shared.values(PROMPTS[:2], responses[:1].repeat(2, 1))
    assert both[0].equal(both[1])


def test_a_linear_critic_adds_up_position_and_tokens_written():
    policy = sorter(3)
    critic = noisy(LinearCritic(policy, PROMPTS))
    assert critic.table.shape == (6, 4 + 4)
    responses = torch.tensor([[2, 0, 3, 3], [1, 1, 1, 0]])
    values = critic.values(PROMPTS[4:5], responses)
    w, v = critic.table[4, :4], critic.table[4, 4:]
    expected = [
        [w[0], w[1] + v[2], w[2] + v[2] + v[0], 0 * w[0]],
        [w[0], w[1] + v[1], w[2] + 2 * v[1], w[3] + 3 * v[1]],
    ]
    close(values, torch.stack([torch.stack(row) for row in expected]))
    order = critic.values(PROMPTS[4:5], torch.tensor([[0, 1, 2, 3], [1, 0, 2, 3]]))
    assert order[0, 2].item() == pytest.approx(order[1, 2].item(), abs=1e-12)  # blind to order


def test_a_critic_can_start_as_the_reward_of_unfinished_responses():
    policy = sorter(4)
    critic = reward_critic(policy, PROMPTS, REWARD)
    values = critic.values(PROMPT, torch.tensor([[0, 1, 2, 3]]))  # prompt (1,0,2)
    assert PROMPT[0].tolist() == [1, 0, 2]
    assert values.tolist() == [[0.0, 1.0, 2.0, 4.0]]  # 3 in place and, if it stops now, 1 for that
    plain = PositionalPolicy(3, 3)
    with pytest.raises(ValueError, match="needs an end token: eos_id is None"):
        reward_critic(plain, PROMPTS, REWARD)


def test_critics_take_the_policys_dtype_and_refuse_what_does_not_fit():
    policy = sorter(5)
    assert TabularCritic(policy).table.dtype == torch.float64
    assert TabularCritic(policy.float()).table.dtype == torch.float32
    critic = TabularCritic(policy, PROMPTS)
    with pytest.raises(ValueError, match=r"no table for prompt \[0, 0, 0\]"):
        critic.values(torch.tensor([[0, 0, 0]]), torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(ValueError, match=r"responses must be \(batch, 4\), got \(1, 5\)"):
        critic.values(PROMPT, torch.zeros(1, 5, dtype=torch.long))
    with pytest.raises(ValueError, match="same number of rows for each of the 6 prompts"):
        critic.values(PROMPTS, torch.zeros(7, 4, dtype=torch.long))
    fixed = TabularCritic(PositionalPolicy(3, 3))  # works for any policy: 1 + 3 + 9 prefixes
    assert fixed.table.shape == (1, 13)


@pytest.mark.parametrize("build", [TabularCritic, LinearCritic])
def test_regression_on_returns_ends_at_the_conditional_mean_or_as_near_as_the_features_allow(build):
    """The loss is a parabola in the table, so one Newton step from anywhere is its lowest point."""
    policy = sorter(6, PROMPT)
    critic, responses = noisy(build(policy)), responses_of(policy)
    visits = response_log_probs(policy, PROMPT).exp().detach().T * policy.mask(responses)
    returns = all_rewards(policy, PROMPT, REWARD).T.expand(-1, 4)

    def slope(table):
        critic.table.data.copy_(table)
        loss = (visits * value_loss(critic.values(PROMPT, responses), None, returns)).sum()
        return torch.autograd.grad(loss, critic.table)[0][0]

    start = critic.table.detach().clone()
    flat = slope(torch.zeros_like(start))
    units = torch.eye(start.numel(), dtype=torch.float64)
    hessian = torch.stack([slope(unit[None]) - flat for unit in units])
    critic.table.data.copy_(start - torch.linalg.pinv(hessian, hermitian=True) @ slope(start))
    truth = perfect_critic(policy, PROMPT, REWARD).values(PROMPT, responses)
    error = critic.values(PROMPT, responses) - truth
    if build is TabularCritic:
        assert hessian.diagonal().min() > 0  # every prefix is reached: no other lowest point
        close(error, torch.zeros_like(error), atol=1e-9)
    else:  # the projection of the truth: what is left of it has no part along any feature
        assert (visits * error.square()).sum().sqrt() > 0.1
        (left,) = torch.autograd.grad(
            (visits * error.detach() * critic.values(PROMPT, responses)).sum(), critic.table
        )
        close(left, torch.zeros_like(left))


# --- advantages ---------------------------------------------------------------------------------


def mean_of_the_actor(policy, critic, lam):
    """E[sum_t A_t u_t] with GAE of this critic, every response weighted with its probability."""
    advantages = all_advantages(policy, critic, PROMPTS, REWARD, gamma=1.0, lam=lam)
    logp = token_log_probs_of(policy, PROMPTS)
    probs = logp.detach().sum(-1).exp()
    return flat_gradient((probs * (advantages * logp).sum(-1)).sum(-1).mean(), policy)


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_with_a_perfect_critic_every_lambda_is_unbiased(lam):
    policy = sorter(7)
    mean = mean_of_the_actor(policy, perfect_critic(policy, PROMPTS, REWARD), lam)
    close(mean, exact_gradient(policy, PROMPTS, REWARD))


@pytest.mark.parametrize(
    "build",
    [
        lambda policy: noisy(TabularCritic(policy, PROMPTS)),
        lambda policy: LinearCritic(policy, PROMPTS),
        lambda policy: reward_critic(policy, PROMPTS, REWARD),
    ],
    ids=["noise", "zero", "reward"],
)
def test_with_a_wrong_critic_only_lambda_one_is_unbiased_and_the_bias_grows_downwards(build):
    policy = sorter(8)
    truth, critic = exact_gradient(policy, PROMPTS, REWARD), build(policy)
    bias = [(mean_of_the_actor(policy, critic, lam) - truth).norm() for lam in (1, 0.9, 0.5, 0)]
    assert bias[0] < 1e-12
    assert 0.02 * truth.norm() < bias[1] < bias[2] < bias[3]


def test_a_perfect_critic_buys_its_variance_with_a_small_lambda():
    policy = sorter(9, PROMPT)
    right, zero = perfect_critic(policy, PROMPT, REWARD), TabularCritic(policy)

    def trace(critic, lam):
        weights = all_advantages(policy, critic, PROMPT, REWARD, gamma=1.0, lam=lam)
        return gradient_moments(
            policy, PROMPT, REWARD, torch.ones_like, token_weights=weights
        ).trace

    traces = [trace(right, lam) for lam in (0.0, 0.5, 0.95, 1.0)]
    assert traces == sorted(traces)
    assert traces[0] < 0.8 * traces[-1]
    assert traces[-1] < 0.5 * trace(zero, 1.0)


def test_fact_4_again_this_time_through_gae():
    """graded, k = 0: V(s_t) with the whole return .440, the exact advantage .150."""
    policy, reward = (
        tabular_policy(random_logits(3, 3, scale=0.3, seed=0)),
        inclusion_ordering_reward,
    )
    critic = perfect_critic(policy, PROMPT, reward)
    for lam, trace in ((1.0, 0.440), (0.0, 0.150)):
        weights = all_advantages(policy, critic, PROMPT, reward, gamma=1.0, lam=lam)
        moments = gradient_moments(policy, PROMPT, reward, torch.ones_like, token_weights=weights)
        assert moments.trace == pytest.approx(trace, abs=6e-4)


# --- small parts --------------------------------------------------------------------------------


def test_the_last_token_is_the_one_before_the_padding():
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0]])
    expected = [[0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]]
    for kind in (torch.bool, torch.long, torch.float32):
        assert last_token(mask.to(kind)).long().tolist() == expected


def test_explained_variance_of_a_known_critic():
    returns = torch.tensor([[1.0, 3.0, 9.0], [5.0, 7.0, 9.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0]])  # the nines are padding
    assert explained_variance(returns, returns, mask) == 1
    assert explained_variance(torch.full_like(returns, 2.0), returns, mask) == 0
    assert explained_variance(returns + 10, returns, mask) == 1  # an offset costs nothing here
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3)
    half = torch.where(mask.bool(), returns / 2, math.nan)
    assert explained_variance(half, returns, mask) == pytest.approx(0.75)
    assert math.isnan(explained_variance(returns, torch.ones(2, 3), mask))


def test_even_the_right_critic_does_not_explain_noise():
    policy = sorter(10)
    responses = policy.sample(PROMPTS, 500, seed=0)
    mask = policy.mask(responses)

    def explained(reward):
        critic = perfect_critic(policy, PROMPTS, reward)
        scores = reward(PROMPTS.repeat_interleave(500, 0), responses).double()
        returns = scores[:, None].expand(mask.shape)
        return explained_variance(critic.values(PROMPTS, responses), returns, mask)

    def known_before(prompts, responses):  # the prompt decides alone: nothing is left to chance
        return (prompts[..., 0] + 0.0 * responses[..., 0]).double()

    assert 0.1 < explained(REWARD) < 0.9
    assert explained(known_before) == pytest.approx(1, abs=1e-12)
