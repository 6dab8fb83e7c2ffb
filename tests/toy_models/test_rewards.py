"""Rewards against enumeration: what they pay most for, what shaping moves, what is recovered."""

import itertools
import math

import pytest
import torch

from policy_gradients.advantages import group_standardized
from toy_models import exact, rewards
from toy_models.policies import AutoregressivePolicy
from toy_models.sorting import (
    all_sequences,
    inclusion_ordering_reward,
    sorted_reward,
)

PROMPT = torch.tensor([[1, 0, 2]])


@pytest.fixture(scope="module")
def tree():
    policy = AutoregressivePolicy(4, 5, eos_id=3).double()
    dice = torch.Generator().manual_seed(0)
    policy.table.data = torch.randn(policy.table.shape, generator=dice, dtype=torch.float64)
    return policy


@pytest.fixture(scope="module")
def answers(tree):
    return exact.responses_of(tree)


def right(prompts, responses):
    return sorted_reward(prompts, responses, eos_id=3)


def paid(tokens):
    """A reward from rewards per token (answer, time)."""
    return lambda prompts, responses: tokens.sum(-1)


# --- rules --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("vocab_size", "length"), [(3, 3), (4, 3), (2, 4)])
def test_the_rule_is_maximal_exactly_on_the_right_answer(vocab_size, length):
    found = rewards.audit(rewards.multiset_ordering_reward, vocab_size=vocab_size, length=length)
    assert found.sound == found.prompts == vocab_size**length
    assert found.most_best == 1
    assert found.blind < 1


def test_the_audit_finds_the_old_rules_holes():
    assert rewards.audit(inclusion_ordering_reward) == (27, 6, 6, 1.0)


def test_the_rule_counts_by_hand():
    """Against Python's own counting, one answer at a time."""
    every = all_sequences(3, 3)
    points = rewards.multiset_ordering_reward(every[:, None], every)
    for i, j in itertools.product(range(27), range(27)):
        x, left = every[i].tolist(), every[j].tolist()
        order = sum(a <= b for a, b in itertools.pairwise(left))
        k = 0
        for number in x:
            if number in left:
                left.remove(number)
                k += 1
        assert points[i, j] == k + (order if k == 3 else 0)


def test_order_without_content_pays_a_blind_answer_though_the_audit_is_content():
    """Counting repairs the old rule; the gate only takes a blind answer's two points of five."""

    def careless(prompts, responses):
        whole = rewards.multiset_ordering_reward(prompts, responses)
        order = (responses.diff(dim=-1) >= 0).sum(-1)
        return torch.where(whole < 3, whole + order, whole)  # k + order, k = L included

    assert rewards.audit(careless) == (27, 27, 1, 6 / 27)
    every = all_sequences(3, 3)
    blind = torch.zeros(1, 3, dtype=torch.long)
    assert careless(every, blind).min() >= 2
    assert rewards.multiset_ordering_reward(every, blind).min() == 0


def test_reward_near_the_maximum_bounds_the_pass_rate():
    policy = AutoregressivePolicy(3, 3, eos_id=None, prompts=all_sequences(3, 3)).double()
    for seed in range(5):
        dice = torch.Generator().manual_seed(seed)
        policy.table.data = 3 * torch.randn(policy.table.shape, generator=dice).double()
        J = exact.expected_reward(policy, all_sequences(3, 3), rewards.multiset_ordering_reward)
        p = exact.expected_reward(policy, all_sequences(3, 3), sorted_reward)
        assert p >= 1 - (5 - J)


def test_a_rubric_adds_the_weights_of_the_checks_that_hold():
    rubric = rewards.rubric(
        {
            "right": (2.0, lambda x, y: sorted_reward(x, y) == 1),
            "starts low": (0.5, lambda x, y: y[..., 0] == x.amin(-1)),
        }
    )
    points = rubric(PROMPT, torch.tensor([[0, 1, 2], [0, 2, 1], [1, 0, 2]]))
    assert points.tolist() == [2.5, 0.5, 0.0]
    with pytest.raises(TypeError, match="'half' must return bool"):
        rewards.rubric({"half": (1.0, sorted_reward)})(PROMPT, PROMPT)
    with pytest.raises(ValueError, match="at least one check"):
        rewards.rubric({})


def test_reading_both_orders_removes_the_position_and_keeps_the_length():
    first, second = torch.randn(2, 200, generator=torch.Generator().manual_seed(0)).double()
    once = rewards.judge_prefers(first, second, position=1.5)
    assert ((once > 0.5) != (first > second)).any()  # the bias does flip verdicts
    both = rewards.judge_prefers(first, second, position=1.5, both_orders=True)
    back = rewards.judge_prefers(second, first, position=1.5, both_orders=True)
    assert (both + back - 1).abs().max() < 1e-12
    assert ((both > 0.5) == (first > second)).all()
    longer = rewards.judge_prefers(first + 2.0, second, position=1.5, both_orders=True)
    assert ((longer > 0.5) != (first > second)).any()


# --- shaping ------------------------------------------------------------------------------------


def test_potential_shaping_moves_every_objective_by_the_same_constant(tree, answers):
    dice = torch.Generator().manual_seed(1)
    table = torch.randn(tree.prefixes.count, generator=dice, dtype=torch.float64)
    potential = table[tree.state_ids(answers)]  # any function of the state
    mask = tree.mask(answers)
    plain = torch.randn(answers.shape, generator=dice, dtype=torch.float64) * mask
    bonus = rewards.shaped(plain, potential, mask) - plain
    assert (bonus.sum(-1) + table[0]).abs().max() < 1e-12
    for seed in range(3):
        tree_2 = AutoregressivePolicy(4, 5, eos_id=3).double()
        dice = torch.Generator().manual_seed(seed)
        tree_2.table.data = torch.randn(tree.table.shape, generator=dice).double()
        before = exact.exact_gradient(tree_2, PROMPT, right)
        after = exact.exact_gradient(tree_2, PROMPT, lambda x, y: right(x, y) + bonus.sum(-1))
        assert (before - after).abs().max() < 1e-12


@pytest.mark.parametrize("gamma", [0.5, 0.9, 1.0])
def test_discounted_shaping_telescopes_to_the_start(gamma, tree, answers):
    potential = torch.rand(
        tree.prefixes.count, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    mask = tree.mask(answers)
    bonus = rewards.shaped(
        torch.zeros(answers.shape).double(), potential[tree.state_ids(answers)], mask, gamma=gamma
    )
    discounts = gamma ** torch.arange(5, dtype=torch.float64)
    assert (bonus @ discounts + potential[0]).abs().max() < 1e-12


def test_a_potential_at_the_end_and_a_bonus_never_taken_back_move_the_optimum(tree, answers):
    mask = tree.mask(answers)
    points = rewards.progress(PROMPT, answers).double()
    base = right(PROMPT, answers).double()
    best = base.argmax()
    good = rewards.shaped(torch.zeros(answers.shape).double(), points[:, :-1], mask).sum(-1)
    assert (base + good).argmax() == best
    gained = 2 * points.diff(dim=-1).clamp(min=0).sum(-1)
    assert (base + gained).max() > (base + gained)[best] + 0.5
    written = torch.arange(5).double().expand(answers.shape)  # Phi = numbers written so far
    kept = (answers != 3).sum(-1).double()  # ... and not given back at the end
    nothing = torch.zeros(answers.shape).double()
    leaking = rewards.shaped(nothing, written, mask, terminal=kept).sum(-1)
    assert torch.equal(leaking, kept)  # a second reward, for length
    assert base[(base + leaking).argmax()] == 0
    constant = rewards.shaped(nothing, written, mask, terminal=7.0).sum(-1)
    assert torch.equal(constant, torch.full_like(constant, 7.0))  # the same for all: harmless
    short = rewards.shaped(nothing, written, mask, gamma=0.9, terminal=7.0)
    discounted = short @ 0.9 ** torch.arange(5, dtype=torch.float64)
    assert torch.allclose(discounted, 7 * 0.9 ** mask.sum(1).double())  # pays for ending early
    assert (answers[(base + discounted).argmax()] == 3).all()  # the empty answer is best


def test_values_as_potential_pay_the_exact_advantage(tree, answers):
    values = exact.prefix_values(tree, PROMPT, right)  # (answer, time + 1)
    mask = tree.mask(answers)
    terminal = torch.zeros(answers.shape).double()
    last = mask.sum(1) - 1
    terminal[torch.arange(len(answers)), last] = right(PROMPT, answers).double()
    paid_out = rewards.shaped(terminal, values[:, :-1], mask)
    advantage = torch.where(mask, values.diff(dim=-1), 0.0)
    assert (paid_out - advantage).abs().max() < 1e-12


def test_rollouts_are_right_on_average(tree, answers):
    values = exact.prefix_values(tree, PROMPT, right)
    drawn = rewards.rollout_values(tree, PROMPT, right, samples=2000, seed=0)
    assert drawn.shape == values.shape
    assert (drawn[:, -1] == values[:, -1]).all()
    se = (values * (1 - values) / 2000).clamp(min=1e-6).sqrt()
    assert ((drawn - values).abs() < 6 * se).all()
    again = rewards.rollout_values(tree, PROMPT, right, samples=2000, seed=0)
    assert torch.equal(drawn, again)


def test_progress_rises_falls_and_rises_again():
    written = torch.tensor([[0, 1, 0, 1, 2], [2, 2, 0, 0, 1], [0, 1, 2, 3, 3]])
    steps = rewards.progress(PROMPT, written)
    assert steps.tolist() == [[0, 1, 2, 1, 2, 3], [0, 0, 0, 1, 1, 2], [0, 1, 2, 3, 0, 0]]


def test_shaping_names_what_is_wrong():
    with pytest.raises(ValueError, match="one shape"):
        rewards.shaped(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="gamma"):
        rewards.shaped(torch.zeros(2, 3), torch.zeros(2, 3), gamma=1.5)
    with pytest.raises(ValueError, match="one prompt"):
        rewards.rollout_values(
            AutoregressivePolicy(3, 2, eos_id=None),
            torch.zeros(2, 2).long(),
            right,
            samples=1,
            seed=0,
        )


# --- several objectives -------------------------------------------------------------------------


def test_pareto_front_against_pairwise_comparison():
    points = torch.randint(0, 5, (60, 2), generator=torch.Generator().manual_seed(0)).float()
    front = rewards.pareto_front(points)
    for i, mine in enumerate(points):
        beaten = any((o >= mine).all() and (o > mine).any() for o in points)
        assert front[i] == (not beaten)


def test_safety_first_cannot_be_bought():
    value, safe = torch.tensor([9.0, 1.0, 0.0]), torch.tensor([False, True, True])
    assert rewards.safety_first(value, safe, floor=-1.0).tolist() == [-1.0, 1.0, 0.0]
    with pytest.raises(ValueError, match="floor"):
        rewards.safety_first(value, safe, floor=0.5)


def test_standardising_each_keeps_apart_what_standardising_the_sum_merges():
    one = torch.tensor([[[0.0, 1.0]], [[0.0, 0.0]]])  # (objectives, prompts, group)
    both = torch.tensor([[[0.0, 1.0]], [[0.0, 1.0]]])
    merged = [group_standardized(r.sum(0), eps=0.0) for r in (one, both)]
    assert torch.allclose(merged[0], merged[1])  # the classic bug: the sum is standardised
    apart = [rewards.standardized_sum(r) for r in (one, both)]
    assert torch.allclose(2 * apart[0], apart[1], atol=1e-3)
    weighted = rewards.standardized_sum(both, [2.0, -0.5])
    assert torch.allclose(weighted, 1.5 * apart[0], atol=1e-3)
    with pytest.raises(ValueError, match="one weight per objective"):
        rewards.standardized_sum(one, [1.0])


# --- demonstrations -----------------------------------------------------------------------------


def test_maximum_entropy_irl_recovers_the_reward_from_exact_demonstrations(tree, answers):
    features = torch.stack(
        [rewards.progress(PROMPT, answers)[:, -1], right(PROMPT, answers)], -1
    ).double()
    truth = torch.tensor([0.7, -1.2], dtype=torch.float64)
    log_ref = exact.response_log_probs(tree, PROMPT)[0].detach()
    shown = torch.softmax(log_ref + features @ truth, 0)
    found = rewards.maximum_entropy_irl(features, log_ref, shown)
    assert (found - truth).abs().max() < 1e-9
    twice = torch.cat([features, features[:, :1]], 1)  # a feature that cannot be told apart
    assert torch.allclose(
        twice @ rewards.maximum_entropy_irl(twice, log_ref, shown), features @ truth, atol=1e-8
    )
    with pytest.raises(ValueError, match="no finite weights"):  # an expert that never errs
        rewards.maximum_entropy_irl(
            features, log_ref, torch.eye(len(answers)).double()[features[:, 1].argmax()]
        )
    forgotten = rewards.maximum_entropy_irl(features, torch.zeros_like(log_ref), shown)
    assert (forgotten - truth).abs().max() > 0.05  # the bug: the reference left out


# --- refusals -----------------------------------------------------------------------------------


def test_rewards_refuse_what_they_cannot_judge():
    with pytest.raises(TypeError, match="prompts must be a tensor of integer"):
        rewards.multiset_ordering_reward(torch.rand(2, 3), torch.zeros(2, 3).long())
    with pytest.raises(ValueError, match="same last axis"):
        rewards.multiset_ordering_reward(torch.zeros(2, 3).long(), torch.zeros(2, 4).long())


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("from 0 on", lambda: rewards.multiset_ordering_reward(PROMPT, PROMPT - 1)),
        ("from 0 on", lambda: rewards.multiset_ordering_reward(PROMPT[:0], PROMPT[:0])),
        ("no nan", lambda: rewards.audit(lambda x, y: sorted_reward(x, y) / 0)),
        ("reward must give", lambda: rewards.audit(lambda x, y: torch.zeros(27, 1))),
        ("hole", lambda: rewards.shaped(*torch.zeros(2, 1, 3), torch.tensor([[1, 0, 1]]))),
        ("terminal", lambda: rewards.shaped(*torch.zeros(2, 1, 3), terminal=torch.zeros(3))),
        ("floor", lambda: rewards.safety_first(*_safe(math.nan), floor=0.0)),
        ("floor", lambda: rewards.safety_first(*_safe(1.0), floor=math.nan)),
        ("safe must be", lambda: rewards.safety_first(torch.ones(2, 1), _safe(1.0)[1], floor=0.0)),
        ("sum 2", lambda: rewards.maximum_entropy_irl(*_shown([1.0, 1.0]))),
        ("distribution", lambda: rewards.maximum_entropy_irl(*_shown([1.5, -0.5]))),
        ("do not fit", lambda: rewards.maximum_entropy_irl(*_shown([1.0]))),
        ("finite", lambda: rewards.maximum_entropy_irl(*_shown([0.5, 0.5], math.nan))),
        ("never writes", lambda: rewards.maximum_entropy_irl(*_shown([0.5, 0.5], -math.inf))),
        ("steps", lambda: rewards.maximum_entropy_irl(*_shown([0.5, 0.5]), steps=0)),
    ],
)
def test_silent_nonsense_is_refused(match, call):
    with pytest.raises(ValueError, match=match):
        call()


def _safe(value):
    return torch.full((2,), value), torch.tensor([True, False])


def _shown(shown, log_ref=0.0):
    return torch.eye(2), torch.tensor([log_ref, 0.0]), torch.tensor(shown)


def test_whole_numbers_would_cut_the_end_off():
    ones = torch.ones(1, 2, dtype=torch.long)
    with pytest.raises(TypeError, match="floating point"):
        rewards.shaped(ones, ones, terminal=0.5)


def test_an_end_of_its_own_for_each_answer_is_discounted_once():
    end = torch.tensor([3.0, 5.0])
    paid_out = rewards.shaped(*torch.zeros(2, 2, 3), gamma=0.5, terminal=end)
    assert paid_out.tolist() == [[0, 0, 1.5], [0, 0, 2.5]]


def test_a_judge_favours_what_it_reads_first():
    d = torch.tensor([0.0, 2.0, -1.0])
    once = rewards.judge_prefers(d, 0 * d, position=1.5)
    assert torch.allclose(once, torch.sigmoid(d + 1.5))
    other = 1 - rewards.judge_prefers(0 * d, d, position=1.5)  # the same pair, read the other way
    both = rewards.judge_prefers(d, 0 * d, position=1.5, both_orders=True)
    assert torch.allclose(both, (once + other) / 2)


def test_every_unsafe_answer_earns_the_floor_and_a_safe_one_may():
    value, safe = torch.tensor([9.0, 3.0, 0.5]), torch.tensor([False, False, True])
    assert rewards.safety_first(value, safe, floor=0.5).tolist() == [0.5, 0.5, 0.5]


def test_standardised_rewards_are_added():
    r = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    whole = group_standardized(r[0]) + group_standardized(r[1])
    assert torch.allclose(rewards.standardized_sum(r), whole)
