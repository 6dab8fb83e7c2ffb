"""The toy training loop: every row learns, steps are the row's gradients, errors are named."""

import copy
import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from policy_gradients.aggregation import mean_per_sequence
from policy_gradients.algorithms import ALGORITHMS, Batch, grpo_loss
from policy_gradients.surrogates import ppo_clip
from toy_models.exact import exact_entropy, exact_kl, expected_reward
from toy_models.policies import AutoregressivePolicy, PositionalPolicy, TabularPolicy
from toy_models.sorting import SortingTask, inclusion_ordering_reward, sorted_reward
from toy_models.train import train

TASK = SortingTask(3, 3)
PROMPTS = TASK.distinct_prompts()
PROMPT = PROMPTS[2:3]
CRITIC_FREE = [name for name, row in ALGORITHMS.items() if not row.needs_critic]
RAW = replace(ALGORITHMS["reinforce"], name="raw", advantage=lambda rewards: rewards)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", CRITIC_FREE)
def test_every_critic_free_row_learns_to_sort(name, seed):
    policy = PositionalPolicy(3, 3, seed=seed)
    history = train(policy, PROMPTS, TASK.reward, name, steps=60, group=16, seed=seed)
    assert history["objective"][0] < 3.6  # all six prompts; 5 is the most there is
    assert history.final.objective > 4.5
    assert sum(history["reward"][-3:]) / 3 > 4.5


@pytest.mark.parametrize("name", CRITIC_FREE)
def test_rows_learn_with_a_table_and_several_inner_steps(name):
    policy = TabularPolicy(3, 3)
    history = train(policy, PROMPT, TASK.reward, name, steps=40, inner_steps=3, group=16)
    assert history.final.objective > history["objective"][0] + 0.75


@pytest.mark.parametrize("name", ["reinforce", "grpo", "dr_grpo", "dapo"])
def test_variable_lengths_with_an_end_token_learn(name):
    policy = AutoregressivePolicy(4, 4, eos_id=3, prompts=PROMPTS)
    reward = partial(inclusion_ordering_reward, eos_id=3)
    history = train(policy, PROMPTS, reward, name, steps=40, group=16)
    assert history.final.objective > history["objective"][0] + 1.5


@pytest.mark.parametrize("name", ["grpo", "dapo", "rloo"])
def test_same_seed_same_bits(name):
    runs = []
    for seed in (3, 3, 4):
        policy = PositionalPolicy(3, 3, seed=0)
        history = train(policy, PROMPTS, TASK.reward, name, steps=5, inner_steps=2, seed=seed)
        runs.append((history, [p.detach() for p in policy.parameters()]))
    (first, a), (second, b), (other, c) = runs
    assert first.records == second.records
    assert all(x.equal(y) for x, y in zip(a, b, strict=True))
    assert first.records != other.records
    assert not all(x.equal(y) for x, y in zip(a, c, strict=True))


@pytest.mark.parametrize("name", CRITIC_FREE)
def test_one_step_of_sgd_is_minus_the_gradient_of_the_row(name):
    start, group = PositionalPolicy(3, 3, embedding_std=0.6, seed=5).double(), 8
    trained, by_hand = copy.deepcopy(start), copy.deepcopy(start)
    row = replace(ALGORITHMS[name], dynamic_sampling=False)
    train(
        trained,
        PROMPTS,
        TASK.reward,
        row,
        steps=1,
        group=group,
        learning_rate=0.1,
        optimizer=torch.optim.SGD,
        seed=9,
    )
    responses = by_hand.sample(PROMPTS, group, seed=9)
    rewards = TASK.reward(PROMPTS[:, None], responses.view(6, group, 3)).double()
    logp = by_hand.log_probs(PROMPTS, responses)
    old = logp.detach()
    batch = Batch(
        logp=logp,
        advantages=row.advantage(rewards).view(-1, 1),  # KL in the reward is 0 at the start
        mask=torch.ones_like(responses),
        logp_old=old,
        logp_ref=old,
        length=3,
    )
    row.loss(batch).backward()
    for before, after, hand in zip(
        start.parameters(), trained.parameters(), by_hand.parameters(), strict=True
    ):
        torch.testing.assert_close(after, before - 0.1 * hand.grad, rtol=0, atol=1e-12)
        assert not after.equal(before)


def test_first_update_of_a_batch_clips_nothing_and_later_ones_do():
    policy = TabularPolicy(3, 3)
    history = train(
        policy, PROMPT, TASK.reward, "grpo", steps=6, inner_steps=5, learning_rate=0.3, group=32
    )
    sides = [history["clip_high"], history["clip_low"]]
    for side in sides:
        assert max(share for share, i in zip(side, history["inner"], strict=True) if i == 0) == 0
        assert max(side) > 0
    assert [r[:2] for r in history.records] == [(s, i) for s in range(6) for i in range(5)]
    free = train(TabularPolicy(3, 3), PROMPT, TASK.reward, RAW, steps=6, inner_steps=5)
    assert max(free["clip_high"] + free["clip_low"]) == 0


def test_records_hold_the_exact_state_before_each_update():
    policy, seen = TabularPolicy(3, 3).double(), []

    def spying_reward(prompts, responses):
        if responses.shape[-2] == 12:  # the sampled group, not the enumeration
            seen.append(copy.deepcopy(policy))
        return TASK.reward(prompts, responses)

    history = train(policy, PROMPT, spying_reward, "dr_grpo", steps=4, group=12)
    start = TabularPolicy(3, 3).double()
    for record, at_that_time in zip(history.records, seen, strict=False):
        exact = (
            expected_reward(at_that_time, PROMPT, TASK.reward),
            exact_entropy(at_that_time, PROMPT),
            exact_kl(at_that_time, start, PROMPT),
        )
        found = (record.objective, record.entropy, record.kl_to_start)
        assert found == pytest.approx([x.item() for x in exact], abs=1e-12)
    assert history["kl_to_start"][0] == 0
    assert history.final.objective == pytest.approx(
        expected_reward(policy, PROMPT, TASK.reward).item(), abs=1e-12
    )
    assert len(history) == 4
    with pytest.raises(KeyError, match="no column 'rewards'; a record has step, inner, reward"):
        history["rewards"]


def test_without_enumeration_entropy_and_kl_are_estimated():
    exact, sampled = (
        train(TabularPolicy(3, 3), PROMPT, TASK.reward, "rloo", steps=10, group=2_000, exact=flag)
        for flag in (True, False)
    )
    assert all(math.isnan(j) for j in sampled["objective"])
    assert sampled["reward"] == exact["reward"]  # looking does not change the run
    for column in ("entropy", "kl_to_start", "kl_to_ref"):
        for a, b in zip(exact[column], sampled[column], strict=True):
            assert b == pytest.approx(a, abs=0.12)
    assert sampled.final.kl_to_start == pytest.approx(exact.final.kl_to_start, abs=0.1)


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_unwatched_runs_are_the_same_runs(name):
    runs = []
    for watch in (True, False):
        policy = PositionalPolicy(3, 3, seed=0)
        knobs = {"steps": 5, "inner_steps": 2, "minibatches": 2, "watch": watch}
        history = train(policy, PROMPTS, TASK.reward, name, **knobs)
        runs.append((history, [p.detach() for p in policy.parameters()]))
    (seen, a), (unseen, b) = runs
    assert all(x.equal(y) for x, y in zip(a, b, strict=True))
    blank = {"clip_high", "clip_low", "objective", "entropy", "kl_to_start", "kl_to_ref"}
    for column in set(seen.records[0]._fields) - {"value_loss", "explained_variance"}:
        if column in blank:
            assert all(map(math.isnan, unseen[column])), column
        else:
            assert seen[column] == unseen[column], column
    assert all(map(math.isnan, unseen.final))


def test_a_run_ends_before_the_step_that_would_exceed_its_samples():
    def run(**knobs):
        policy = PositionalPolicy(3, 3, seed=0)
        return policy, train(policy, PROMPTS, TASK.reward, "dapo", group=4, **knobs)

    _, long = run(steps=6)
    spent = torch.tensor(long["sampled"]).cumsum(0)
    assert spent[3] > 4 * 4 * len(PROMPTS)  # some groups were replaced
    for limit in (int(spent[3]), int(spent[4]) - 1):
        policy, history = run(steps=6, max_samples=limit)
        other, shorter = run(steps=4)
        assert history.records == shorter.records
        assert all(x.equal(y) for x, y in zip(policy.parameters(), other.parameters(), strict=True))
        assert f"step 4: it would take more than {limit} responses" in history.stopped
    assert len(run(steps=6, max_samples=1)[1]) == 1  # the first step always is


def test_reference_is_refreshed_on_time():
    history = train(
        TabularPolicy(3, 3),
        PROMPT,
        TASK.reward,
        "grpo",
        steps=9,
        inner_steps=2,
        group=32,
        reference_every=3,
    )
    for record in history.records:
        fresh = record.step % 3 == 0 and record.inner == 0
        assert (record.kl_to_ref == pytest.approx(0, abs=1e-9)) == fresh
    never = train(TabularPolicy(3, 3), PROMPT, TASK.reward, "grpo", steps=9)
    other = PositionalPolicy(3, 3, seed=3)  # a reference of one's own lasts until it is due
    mine = train(
        TabularPolicy(3, 3),
        PROMPT,
        TASK.reward,
        "grpo",
        steps=4,
        reference=other,
        reference_every=2,
    )
    assert mine["kl_to_ref"][0] == pytest.approx(
        exact_kl(TabularPolicy(3, 3), other, PROMPT).item(), abs=1e-5
    )
    assert mine["kl_to_ref"][2] == pytest.approx(0, abs=1e-6)
    assert never["kl_to_ref"] == never["kl_to_start"]


@pytest.mark.parametrize("name", ["grpo", "rloo", "dapo"])
def test_a_larger_beta_stays_closer_to_home(name):
    ends = [
        train(
            TabularPolicy(3, 3), PROMPT, TASK.reward, name, steps=40, group=32, beta=beta
        ).final.kl_to_start
        for beta in (0.0, 0.3, 3.0)
    ]
    assert ends[0] > 1.3 * ends[1] > 1.3 * ends[2]


def test_another_reference_pulls_towards_it():
    target = TabularPolicy(3, 3)
    with torch.no_grad():
        target.table[:, 0] = 1.5

    def no_reward(prompts, responses):
        return torch.zeros(responses.shape[:-1])

    policy = TabularPolicy(3, 3)
    row = replace(ALGORITHMS["grpo"], kl_coefficient=1.0)
    history = train(policy, PROMPT, no_reward, row, steps=80, group=64, reference=target)
    assert history["kl_to_ref"][0] > 0.5
    assert history.final.kl_to_ref < 0.1


def test_dynamic_sampling_fills_the_batch_with_contrast():
    policy = TabularPolicy(3, 3)
    history = train(policy, PROMPT, sorted_reward, "dapo", steps=10, group=4, max_rounds=200)
    plain = train(TabularPolicy(3, 3), PROMPT, sorted_reward, "grpo", steps=10, group=4)
    assert all(norm > 0 for norm in history["grad_norm"])  # every step had something to learn
    assert max(plain["zero_contrast"]) == 1  # without it some steps have no signal at all
    assert any(sampled > 4 for sampled in history["sampled"])
    assert all(sampled == 4 for sampled in plain["sampled"])


def test_dynamic_sampling_keeps_prompts_in_proportion_wherever_they_stand():
    """The surplus of the last round falls by lot: in order, the last prompts would keep 13 %."""
    seen, hard = [], []

    class Watched(TabularPolicy):
        def log_probs(self, prompts, responses, *, temperature=1.0):
            seen.append(prompts)
            return super().log_probs(prompts, responses, temperature=temperature)

    def reward(prompts, responses):  # easy prompts begin with 0, and one right token will do
        right = responses == prompts
        return torch.where(prompts[..., 0] == 0, right[..., 0], right.all(-1)).double()

    prompts = torch.tensor([[0, 0, 0]] * 32 + [[1, 1, 1]] * 32)
    for seed in range(40):
        seen.clear()
        train(Watched(3, 3), prompts, reward, "dapo", steps=1, exact=False, seed=seed)
        assert len(seen[0]) == 64
        hard.append((seen[0][:, 0] == 1).double().mean().item())
    keep = [1 - p**8 - (1 - p) ** 8 for p in (1 / 3, 1 / 27)]
    assert sum(hard) / 40 == pytest.approx(keep[1] / sum(keep), abs=0.025)  # .213


def test_dynamic_sampling_gives_up_with_a_clear_error():
    calls = []

    def hopeless(prompts, responses):
        calls.append(responses.shape)
        return torch.zeros(responses.shape[:-1])

    with pytest.raises(RuntimeError, match=r"dapo, step 0: no group with contrast in 7 rounds"):
        train(TabularPolicy(3, 3), PROMPT, hopeless, "dapo", steps=5, max_rounds=7, exact=False)
    assert len(calls) == 7


def test_a_solved_task_ends_a_run_with_dynamic_sampling():
    policy = TabularPolicy(3, 3)
    history = train(policy, PROMPT, TASK.reward, "dapo", steps=200, learning_rate=0.5)
    assert len(history) < 200
    assert "no group with contrast" in history.stopped
    assert history.final.objective > 4.9
    assert train(policy, PROMPT, TASK.reward, "grpo", steps=1).stopped is None


# --- a learner's own loss -----------------------------------------------------------------------


def test_own_loss_reproduces_the_row_bit_for_bit():
    def run(loss, beta):
        policy = PositionalPolicy(3, 3, seed=1)
        history = train(
            policy, PROMPTS, TASK.reward, "grpo", steps=6, inner_steps=3, beta=beta, loss=loss
        )
        return history, torch.cat([p.detach().flatten() for p in policy.parameters()])

    (row, a), (own, b) = run(None, 0.0), run(grpo_loss, 0.0)
    assert row.records == own.records
    assert a.equal(b)
    (row, a), (own, b) = run(None, 0.2), run(grpo_loss, 0.2)  # the KL term is added for them
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    assert max(own["clip_high"]) > 0


def test_own_loss_gets_the_counts_it_asks_for():
    seen = {}

    def mine(logp, logp_old, advantages, mask, *, eps_low, eps_high, tokens, length):
        seen.update(eps_low=eps_low, eps_high=eps_high, tokens=tokens, length=length)
        per_token = ppo_clip(logp, logp_old, advantages, eps_low=eps_low, eps_high=eps_high)
        return (per_token * mask).sum() / tokens

    policy = AutoregressivePolicy(4, 4, eos_id=3)
    reward = partial(inclusion_ordering_reward, eos_id=3)
    train(policy, PROMPT, reward, "dapo", steps=1, group=8, loss=mine, seed=3)
    assert seen["eps_low"] == 0.2
    assert seen["eps_high"] == 0.28
    assert seen["length"] == 4
    assert 8 <= seen["tokens"] < 32


def test_own_loss_errors_are_named():
    def needs_more(logp, logp_old, advantages, mask, *, eps_low, eps_high):
        return logp.sum()

    def per_token(logp, logp_old, advantages, mask, *, eps_low, eps_high):
        return logp

    def detached(logp, logp_old, advantages, mask, *, eps_low, eps_high):
        return logp.detach().sum()

    def number(logp, logp_old, advantages, mask):
        return 0.0

    run = partial(train, TabularPolicy(3, 3), PROMPT, TASK.reward, steps=1)
    with pytest.raises(TypeError, match=r"asks for \['eps_low', 'eps_high'\].*'reinforce'"):
        run("reinforce", loss=needs_more)
    with pytest.raises(ValueError, match=r"scalar tensor; got \(8, 3\)"):
        run("grpo", loss=per_token)
    with pytest.raises(ValueError, match="the loss has no gradient"):
        run("grpo", loss=detached)
    with pytest.raises(ValueError, match="scalar tensor; got float"):
        run("grpo", loss=number)


def test_own_row_needs_no_branch():
    mine = replace(ALGORITHMS["dapo"], name="mine", aggregation=mean_per_sequence)
    history = train(TabularPolicy(3, 3), PROMPT, TASK.reward, mine, steps=20, group=16)
    assert history.algorithm == "mine"
    assert history.final.objective > history["objective"][0] + 0.3


# --- what goes wrong ----------------------------------------------------------------------------


def test_temperature_mismatch_collapses_under_a_constant_reward():
    def constant(prompts, responses):
        return torch.ones(responses.shape[:-1])

    ends = {}
    for sampled, scored in ((1.0, None), (0.6, None), (0.6, 1.0)):
        history = train(
            TabularPolicy(3, 3),
            PROMPT,
            constant,
            RAW,
            steps=150,
            group=64,
            temperature=sampled,
            learner_temperature=scored,
        )
        ends[sampled, scored] = history.final.entropy
    assert ends[0.6, 1.0] < 0.5
    assert ends[1.0, None] > 2.5
    assert ends[0.6, None] > 2.5


@pytest.mark.parametrize(
    ("error", "match", "change"),
    [
        (
            KeyError,
            "unknown algorithm 'gpro'; the table has reinforce, rloo",
            {"algorithm": "gpro"},
        ),
        (ValueError, "ppo needs a critic, for example .*TabularCritic", {"algorithm": "ppo"}),
        (ValueError, "group must be at least 2, got 1", {"algorithm": "rloo", "group": 1}),
        (ValueError, "steps must be a whole number of at least 1, got 0", {"steps": 0}),
        (ValueError, "group must be a whole number.*got 2.5", {"group": 2.5}),
        (ValueError, "inner_steps must be .* got -1", {"inner_steps": -1}),
        (ValueError, "max_rounds must be .* got 0", {"max_rounds": 0}),
        (ValueError, "max_samples must be .* got 0", {"max_samples": 0}),
        (ValueError, "reference_every must be .* got 0", {"reference_every": 0}),
        (ValueError, "learning_rate must be positive and finite, got 0", {"learning_rate": 0.0}),
        (
            ValueError,
            "learning_rate must be positive and finite, got nan",
            {"learning_rate": math.nan},
        ),
        (ValueError, "kl_coefficient must be at least 0, got -1", {"beta": -1.0}),
        (ValueError, "temperature must be positive", {"temperature": 0.0}),
    ],
)
def test_impossible_values_are_named_before_anything_is_trained(error, match, change):
    policy = TabularPolicy(3, 3)
    arguments = {"algorithm": "grpo", "steps": 3} | change
    with pytest.raises(error, match=match):
        train(policy, PROMPT, TASK.reward, **arguments)
    assert policy.table.abs().sum() == 0


def test_bad_rewards_are_named():
    with pytest.raises(ValueError, match=r"reward must return \(prompts, group\) = \(1, 8\)"):
        train(
            TabularPolicy(3, 3), PROMPT, lambda p, r: torch.zeros(8), "grpo", steps=1, exact=False
        )

    def not_a_number(prompts, responses):
        return torch.full(responses.shape[:-1], math.nan)

    policy = TabularPolicy(3, 3)
    with pytest.raises(FloatingPointError, match="grpo, step 0, inner 0: the gradient is not"):
        train(policy, PROMPT, not_a_number, "grpo", steps=1, exact=False)
    assert policy.table.abs().sum() == 0
