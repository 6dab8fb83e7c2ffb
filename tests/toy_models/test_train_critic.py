"""The training loop with a critic: A2C and complete PPO against enumeration and by hand."""

import copy
import math
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise

import pytest
import torch

from policy_gradients.advantages import gae, shape_rewards_with_kl, whiten
from policy_gradients.aggregation import mean_per_token
from policy_gradients.algorithms import ALGORITHMS, Batch
from policy_gradients.kl import k3
from policy_gradients.logprobs import entropy
from policy_gradients.surrogates import ppo_clip
from policy_gradients.values import value_loss
from toy_models.critics import (
    A2C,
    LinearCritic,
    TabularCritic,
    explained_variance,
    perfect_critic,
)
from toy_models.exact import (
    exact_entropy,
    exact_gradient,
    exact_kl,
    expected_reward,
    gibbs_distribution,
    response_log_probs,
    responses_of,
)
from toy_models.policies import AutoregressivePolicy, PositionalPolicy, TabularPolicy
from toy_models.sorting import SortingTask, is_sorted, sort_then_end_reward
from toy_models.train import train

TASK = SortingTask(3, 3)
PROMPTS = TASK.distinct_prompts()
PROMPT = PROMPTS[2:3]
REWARD = partial(sort_then_end_reward, eos_id=3)
CRITIC_FREE = [name for name, row in ALGORITHMS.items() if not row.needs_critic]
PPO = ALGORITHMS["ppo"]


def sorter():
    """Writes up to five tokens, the fourth id ends: too short and too long are both possible."""
    return AutoregressivePolicy(4, 5, eos_id=3, prompts=PROMPTS)


def tree(seed, *, eos_id=3, prompts=PROMPTS):
    policy = AutoregressivePolicy(4, 4, eos_id=eos_id, prompts=prompts).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        policy.table.copy_(torch.randn(policy.table.shape, generator=generator))
    return policy


def filled(critic, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        noise = torch.randn(critic.table.shape, generator=generator, dtype=critic.table.dtype)
        critic.table.add_(noise)
    return critic


def close(actual, expected, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


# --- it learns ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["ppo", "a2c", "grpo", "rloo", "reinforce"])
def test_the_sorter_learns_to_write_in_order_and_to_stop(name, seed):
    """0 to 4 points; the uniform policy earns less than 1."""
    policy = sorter()
    critic = TabularCritic(policy, PROMPTS) if name in ("ppo", "a2c") else None
    row = A2C if name == "a2c" else name
    start = expected_reward(policy, PROMPTS, REWARD).item()
    train(
        policy, PROMPTS, REWARD, row, critic=critic, steps=60, group=16, learning_rate=0.1,
        exact=False, seed=seed,
    )  # fmt: skip
    assert start < 1
    assert expected_reward(policy, PROMPTS, REWARD) > 3.5


@pytest.mark.parametrize("build", [TabularCritic, LinearCritic])
def test_ppo_trains_every_kind_of_policy_with_every_kind_of_critic(build):
    for policy, prompts in (
        (TabularPolicy(3, 3), PROMPT),
        (PositionalPolicy(3, 3), PROMPTS),
        (AutoregressivePolicy(3, 3, eos_id=None), PROMPT),
    ):
        history = train(
            policy, prompts, TASK.reward, "ppo", critic=build(policy, prompts), steps=40, group=16,
            inner_steps=2, minibatches=2,
        )  # fmt: skip
        assert history.final.objective > history["objective"][0] + 0.75


def test_complete_ppo_with_everything_on():
    policy = sorter()
    history = train(
        policy, PROMPTS, REWARD, "ppo", critic=TabularCritic(policy, PROMPTS), steps=25, group=16,
        inner_steps=3, minibatches=4, gamma=0.99, lam=0.9, beta=0.05, entropy_coefficient=0.01,
        critic_learning_rate=0.2, critic_warmup=3, max_grad_norm=1.0, learning_rate=0.1, seed=1,
        exact=False,
    )  # fmt: skip
    assert expected_reward(policy, PROMPTS, REWARD) > 3.5
    assert len(history) == 25 * 3 * 4
    assert history["inner"][:13] == [*range(12), 0]
    assert max(history["clip_high"]) > 0
    assert history.final.kl_to_start > 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("lam", [1.0, 0.95])
def test_ppo_with_its_kl_in_the_rewards_ends_at_the_gibbs_optimum(lam, seed):
    """Where the per-token k2 loss ends .1 away. Total variation; the start is .48 away."""
    policy = AutoregressivePolicy(3, 3, eos_id=None)
    reference = copy.deepcopy(policy)
    best = gibbs_distribution(policy, PROMPT, TASK.reward, 0.5)

    def distance():
        return 0.5 * (response_log_probs(policy, PROMPT).exp() - best).abs().sum().item()

    assert distance() > 0.4
    train(
        policy, PROMPT, TASK.reward, "ppo", critic=TabularCritic(policy), beta=0.5, steps=100,
        group=256, lam=lam, critic_learning_rate=0.2, seed=seed, exact=False,
    )  # fmt: skip
    assert distance() < 0.02
    assert 0.7 < exact_kl(policy, reference, PROMPT) < 1


# --- against enumeration ------------------------------------------------------------------------


class EveryResponseOnce(AutoregressivePolicy):
    """Uniform at the start and without end token: a batch of all responses is the expectation."""

    def sample(self, prompts, group=1, *, seed=None, temperature=1.0):
        assert group == len(responses_of(self))
        return responses_of(self).repeat(len(prompts), 1)


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("kind", ["perfect", "noise"])
def test_a2c_on_all_responses_is_the_exact_gradient(kind, lam):
    """With a perfect critic at every lambda, with any other at lambda 1 only."""
    policy = EveryResponseOnce(3, 3, eos_id=None, prompts=PROMPTS).double()
    critic = perfect_critic(policy, PROMPTS, TASK.reward)
    if kind == "noise":
        filled(critic)
    truth = exact_gradient(policy, PROMPTS, TASK.reward)
    train(
        policy, PROMPTS, TASK.reward, A2C, critic=critic, steps=1, group=27, lam=lam,
        whitening=False, learning_rate=0.1, optimizer=torch.optim.SGD,
    )  # fmt: skip
    found = policy.table.detach().flatten() / 0.1
    if kind == "perfect" or lam == 1:
        close(found, truth)
    else:
        assert torch.cosine_similarity(found, truth, dim=0) < 0.98


@pytest.mark.parametrize(
    ("change", "length", "cosine"),
    [({"whitening": True}, 2.034, 1.0), ({"gamma": 0.5}, 0.546, 0.827)],
    ids=["whitening", "gamma"],
)
def test_a2c_is_not_the_gradient_with_whitening_or_discount(change, length, cosine):
    """Both with a perfect critic, at train's own lam."""
    policy = EveryResponseOnce(3, 3, eos_id=None, prompts=PROMPTS).double()
    critic = perfect_critic(policy, PROMPTS, TASK.reward)
    truth = exact_gradient(policy, PROMPTS, TASK.reward)
    train(
        policy, PROMPTS, TASK.reward, A2C, critic=critic, steps=1, group=27, learning_rate=0.1,
        optimizer=torch.optim.SGD, **({"whitening": False} | change),
    )  # fmt: skip
    found = policy.table.detach().flatten() / 0.1
    assert (found.norm() / truth.norm()).item() == pytest.approx(length, abs=6e-4)
    assert torch.cosine_similarity(found, truth, dim=0).item() == pytest.approx(cosine, abs=6e-4)


def test_the_critic_learns_the_conditional_mean_while_the_policy_waits():
    policy = tree(1, prompts=PROMPT)
    before = policy.table.detach().clone()
    critic, truth = TabularCritic(policy), perfect_critic(policy, PROMPT, REWARD)
    row = replace(PPO, value_clip=None, kl="none", kl_coefficient=0.0)
    history = train(
        policy, PROMPT, REWARD, row, critic=critic, steps=80, critic_warmup=80, group=200,
        lam=1.0, critic_learning_rate=0.1, exact=False,
    )  # fmt: skip
    assert policy.table.equal(before)
    responses = responses_of(policy)
    visits = response_log_probs(policy, PROMPT).exp().detach().T * policy.mask(responses)

    def error(critic):
        gap = critic.values(PROMPT, responses) - truth.values(PROMPT, responses)
        return ((visits * gap.square()).sum() / visits.sum()).sqrt().item()

    assert error(TabularCritic(policy)) > 1
    assert error(critic) < 0.12
    assert history["explained_variance"][0] == pytest.approx(0, abs=0.01)
    assert sum(history["explained_variance"][-10:]) / 10 > 0.25
    assert history["value_loss"][-1] < 0.6 * history["value_loss"][0]


def test_warm_up_starts_the_actor_on_time():
    policy, seen = sorter(), []
    critic = TabularCritic(policy, PROMPTS)

    def spying(prompts, responses):
        seen.append((policy.table.detach().clone(), critic.table.detach().clone()))
        return REWARD(prompts, responses)

    train(
        policy, PROMPTS, spying, "ppo", critic=critic, steps=5, critic_warmup=3, inner_steps=2,
        exact=False,
    )  # fmt: skip
    moved = [not a[0].equal(b[0]) for a, b in pairwise(seen)]
    assert moved == [False, False, False, True, True]
    assert not any(a[1].equal(b[1]) for a, b in pairwise(seen))


# --- by hand ------------------------------------------------------------------------------------


def test_one_step_of_ppo_is_what_its_parts_say():
    """KL-shaped rewards, GAE, whitening, clipped value loss, entropy bonus: put together here."""
    start, reference = tree(2), tree(3)
    trained, critic = copy.deepcopy(start), filled(TabularCritic(start, PROMPTS))
    critic_start = copy.deepcopy(critic)
    history = train(
        trained, PROMPTS, REWARD, "ppo", critic=critic, reference=reference, beta=0.3, steps=1,
        group=8, gamma=0.9, lam=0.7, entropy_coefficient=0.2, learning_rate=0.5,
        critic_learning_rate=2.0, optimizer=torch.optim.SGD, seed=9, temperature=0.8,
    )  # fmt: skip
    policy, values_now = copy.deepcopy(start), copy.deepcopy(critic_start)
    responses = policy.sample(PROMPTS, 8, seed=9, temperature=0.8)
    scores = REWARD(PROMPTS.repeat_interleave(8, 0), responses).double()
    mask = policy.mask(responses)
    logp, logp_ref = (p.log_probs(PROMPTS, responses, temperature=0.8) for p in (policy, reference))
    rewards = shape_rewards_with_kl(scores, logp, logp_ref, mask, beta=0.3)
    done = torch.zeros_like(mask)
    done[torch.arange(48), mask.sum(1) - 1] = True
    values = values_now.values(PROMPTS, responses)
    advantages, returns = gae(rewards, values, done, gamma=0.9, lam=0.7)
    old = logp.detach()
    actor = ppo_clip(logp, old, whiten(advantages, mask), eps_low=0.2, eps_high=0.2)
    judge = 0.5 * value_loss(values, values.detach(), returns, clip=0.2)
    bonus = 0.2 * entropy(policy.logits(PROMPTS, responses), temperature=0.8)
    mean_per_token(actor + judge - bonus, mask).backward()
    close(trained.table, start.table - 0.5 * policy.table.grad)
    close(critic.table, critic_start.table - 2.0 * values_now.table.grad)
    assert not trained.table.equal(start.table)
    assert not critic.table.equal(critic_start.table)

    first = history.records[0]
    sampled = [0.0] * 48
    for i, (row, last) in enumerate(zip(rewards.tolist(), mask.sum(1).tolist(), strict=True)):
        sampled[i] = [sum(0.9 ** (s - t) * row[s] for s in range(t, last)) for t in range(4)]
    sampled = torch.tensor(sampled, dtype=torch.float64)
    assert first.explained_variance == pytest.approx(explained_variance(values, sampled, mask))
    assert first.value_loss == pytest.approx(mean_per_token(2 * judge, mask).item())
    assert first.grad_norm == pytest.approx(policy.table.grad.norm().item())
    assert mask.sum() < mask.numel()


def test_a_kl_term_in_the_loss_works_with_a_critic_too():
    row = replace(PPO, name="mine", kl="loss", kl_estimator=k3, kl_coefficient=0.3)
    ends = []
    for beta in (0.0, 3.0):
        policy = AutoregressivePolicy(3, 3, eos_id=None)
        one = replace(row, kl_coefficient=beta)
        history = train(
            policy, PROMPT, TASK.reward, one, critic=TabularCritic(policy), steps=40, group=32,
            whitening=False,
        )  # fmt: skip
        ends.append(history.final.kl_to_start)
    assert ends[0] > 2 * ends[1] > 0


def test_the_value_clip_keeps_the_critic_near_its_old_values():
    moves = []
    for clip in (0.2, None):
        policy = tree(4, prompts=PROMPT)
        critic = TabularCritic(policy)
        row = replace(PPO, value_clip=clip)
        train(
            policy, PROMPT, REWARD, row, critic=critic, steps=1, inner_steps=200, group=16,
            learning_rate=0.1, optimizer=torch.optim.SGD, exact=False,
        )  # fmt: skip
        moves.append(critic.table.abs().max().item())
    assert 0.2 < moves[0] < 0.25  # the gradient dies at the edge; the last step goes past it
    assert moves[1] > 0.6


def test_the_entropy_bonus_flattens_the_policy_whatever_the_row():
    def nothing(prompts, responses):
        return torch.zeros(responses.shape[:-1])

    for name in ("ppo", "grpo"):
        policy = tree(5, prompts=PROMPT)
        start = exact_entropy(policy, PROMPT).item()
        critic = TabularCritic(policy) if name == "ppo" else None
        history = train(
            policy, PROMPT, nothing, name, beta=0.0, critic=critic, steps=100, group=32,
            entropy_coefficient=0.5,
        )  # fmt: skip
        assert history.final.entropy > start + 0.4


def test_minibatches_deal_every_response_once_per_pass():
    seen = []

    def mine(logp, logp_old, advantages, mask, *, eps_low, eps_high, sequences, tokens):
        assert sequences == len(mask)
        assert tokens == mask.sum()
        seen.append([tuple(row) for row in logp_old.tolist()])
        per_token = ppo_clip(logp, logp_old, advantages, eps_low=eps_low, eps_high=eps_high)
        return mean_per_token(per_token, mask, tokens=tokens)

    policy = tree(6, prompts=PROMPT)
    train(
        policy, PROMPT, REWARD, "ppo", critic=TabularCritic(policy), loss=mine, steps=1, group=10,
        inner_steps=2, minibatches=3,
    )  # fmt: skip
    # the loop calls the loss twice per update, once to see which tokens are switched off
    passes = [list(chain(*seen[0:6:2])), list(chain(*seen[6::2]))]
    assert [len(rows) for rows in seen[::2]] == [4, 4, 2] * 2
    assert sorted(passes[0]) == sorted(passes[1])
    assert passes[0] != passes[1]
    start = tree(6, prompts=PROMPT)
    expected = start.log_probs(PROMPT, start.sample(PROMPT, 10, seed=0)).tolist()
    assert sorted(passes[0]) == sorted(map(tuple, expected))


def test_own_loss_keeps_the_critic_learning():
    def run(loss):
        policy = tree(7)
        critic = TabularCritic(policy, PROMPTS)
        history = train(
            policy, PROMPTS, REWARD, "ppo", critic=critic, loss=loss, steps=4, inner_steps=2
        )
        return history, policy.table.detach(), critic.table.detach()

    def mine(logp, logp_old, advantages, mask, *, eps_low, eps_high):
        per_token = ppo_clip(logp, logp_old, advantages, eps_low=eps_low, eps_high=eps_high)
        return mean_per_token(per_token, mask)

    (row, *tables), (own, *others) = run(None), run(mine)
    for a, b in zip(tables, others, strict=True):
        close(a, b, atol=1e-9)
        assert a.abs().sum() > 0
    assert row["clip_high"] == own["clip_high"]


# --- nothing changes without a critic -----------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in CRITIC_FREE if name != "dapo"])
def test_rows_without_a_critic_are_bit_for_bit_the_plain_loop(name):
    """The loop as it is without critic, minibatches and bonus, written out: same bits."""
    loop, plain = (PositionalPolicy(3, 3, seed=1) for _ in range(2))
    row, reference = ALGORITHMS[name], copy.deepcopy(plain)
    history = train(loop, PROMPTS, TASK.reward, name, steps=4, inner_steps=2, group=6, seed=3)
    optimise = torch.optim.Adam(plain.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(4):
        responses = plain.sample(PROMPTS, 6, seed=generator)
        mask = torch.ones_like(responses, dtype=torch.bool)
        old = plain.log_probs(PROMPTS, responses).detach()
        ref = reference.log_probs(PROMPTS, responses).detach()
        scores = TASK.reward(PROMPTS[:, None], responses.view(6, 6, 3))
        rewards = row.sequence_rewards(scores.flatten(), old, ref, mask)
        advantages = row.advantage(rewards.view(6, 6)).reshape(-1, 1)
        for _ in range(2):
            logp = plain.log_probs(PROMPTS, responses)
            loss = row.loss(
                Batch(logp, old, advantages, mask, ref, sequences=36, tokens=108, length=3)
            )
            losses.append(loss.item())
            optimise.zero_grad()
            loss.backward()
            optimise.step()
    assert history["loss"] == losses
    for a, b in zip(loop.parameters(), plain.parameters(), strict=True):
        assert a.equal(b)
    assert all(map(math.isnan, history["value_loss"] + history["explained_variance"]))


@pytest.mark.parametrize("minibatches", [1, 3])
def test_same_seed_same_bits_with_a_critic(minibatches):
    runs = []
    for seed in (3, 3, 4):
        policy = sorter()
        critic = TabularCritic(policy, PROMPTS)
        history = train(
            policy, PROMPTS, REWARD, "ppo", critic=critic, steps=4, inner_steps=2, seed=seed,
            minibatches=minibatches, exact=False, entropy_coefficient=0.01,
        )  # fmt: skip
        runs.append((repr(history.records), policy.table.detach(), critic.table.detach()))
    assert runs[0][0] == runs[1][0] != runs[2][0]
    assert runs[0][1].equal(runs[1][1])
    assert runs[0][2].equal(runs[1][2])
    assert not runs[0][1].equal(runs[2][1])


# --- what goes wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "change"),
    [
        ("ppo needs a critic, for example critic=TabularCritic", {"critic": None}),
        ("grpo has no use for a critic", {"algorithm": "grpo"}),
        ("grpo has no use for .*leave critic and its knobs", {"algorithm": "grpo", "critic": None}
         | {"lam": 0.5}),
        (r"gamma must lie in \[0, 1\], got 1.5", {"gamma": 1.5}),
        (r"lam must lie in \[0, 1\], got nan", {"lam": math.nan}),
        ("critic_learning_rate must be positive and finite, got 0", {"critic_learning_rate": 0}),
        ("critic_warmup must be a whole number >= 0, got -1", {"critic_warmup": -1}),
        ("critic_warmup must be a whole number >= 0, got 1.5", {"critic_warmup": 1.5}),
        ("entropy_coefficient must be at least 0 and finite, got -1", {"entropy_coefficient": -1}),
        ("minibatches must be a whole number of at least 1, got 0", {"minibatches": 0}),
        (r"minibatches=49 is more than the 48 responses of a step \(6 prompts x group 8\)",
         {"minibatches": 49}),
        ("mine pays its KL per token, which needs kl_estimator=k1, the only one of k1, k2, k3",
         {"algorithm": replace(PPO, name="mine", kl_estimator=k3)}),
    ],
)  # fmt: skip
def test_impossible_values_are_named_before_anything_is_trained(match, change):
    policy = sorter()
    arguments = {"algorithm": "ppo", "critic": TabularCritic(policy, PROMPTS), "steps": 2} | change
    with pytest.raises(ValueError, match=match):
        train(policy, PROMPTS, REWARD, **arguments)
    assert policy.table.abs().sum() == 0


def test_a_critic_of_another_dtype_is_named():
    policy = tree(8)
    critic = TabularCritic(policy, PROMPTS).float()
    with pytest.raises(TypeError, match=r"rewards is torch.float64 and values torch.float32|float"):
        train(policy, PROMPTS, REWARD, "ppo", critic=critic, steps=1)


# --- the task -----------------------------------------------------------------------------------


def test_only_the_right_response_earns_everything():
    policy = sorter()
    responses = responses_of(policy)
    for prompt in TASK.all_prompts():
        points = REWARD(prompt, responses)
        assert points.min() == 0
        assert points.max() == 4
        assert (points == 4).equal(is_sorted(prompt, responses, eos_id=3))
        assert (points == 4).sum() == 1
    rows = torch.tensor([[3, 3, 3, 3], [0, 1, 3, 3], [0, 1, 2, 3], [0, 1, 2, 0], [2, 2, 2, 3]])
    assert REWARD(torch.tensor([1, 0, 2]), rows).tolist() == [0, 2, 4, 3, 2]
