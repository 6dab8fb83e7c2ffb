"""Races: equal budgets, reproducible, and intervals that are what they say."""

import math
from dataclasses import replace

import pytest
import torch

from policy_gradients.algorithms import ALGORITHMS
from toy_models.exact import expected_reward
from toy_models.race import TASKS, Difference, Race, _student_quantile, race

SMALL = {"seeds": (0, 1), "steps": 3, "group": 4}


@pytest.mark.parametrize("name", TASKS)
def test_a_task_has_six_unsorted_prompts_and_one_best_answer(name):
    task = TASKS[name]
    prompts, right = task.prompts, task.prompts.sort(-1).values
    assert prompts.shape == (6, task.length)
    assert len(prompts.unique(dim=0)) == 6
    assert (prompts != right).any(1).all()
    ended = torch.cat([right, torch.full((6, task.budget - task.length), task.vocab_size)], 1)
    assert task.judge(prompts, ended).tolist() == [task.best] * 6
    assert (task.judge(prompts, ended[:, [1, 0, *range(2, task.budget)]]) <= task.best).all()


def test_the_hard_task_starts_at_its_pass_rates():
    task = TASKS["hard"]
    policy = task.policy()
    assert policy.table.dtype == torch.float64
    rates = [expected_reward(policy, prompt[None], task.judge).item() for prompt in task.prompts]
    assert 0.03 < min(rates) < max(rates) < 0.16
    for rate, nats in zip(rates, task.start * 2, strict=True):
        chance = math.exp(nats) / (math.exp(nats) + 3)
        assert rate == pytest.approx(chance**4)


def test_every_row_races_with_the_same_budget():
    result = race(ALGORITHMS, TASKS["hard"], seeds=(0, 1), steps=4, group=8)
    assert set(result.scores) == set(ALGORITHMS)
    for name in ALGORITHMS:
        dynamic = ALGORITHMS[name].dynamic_sampling
        assert result.scores[name].shape == (2,)
        assert (result.samples[name] <= 4 * 6 * 8).all()
        assert (result.samples[name] == 4 * 6 * 8).all() or dynamic
        assert (result.updates[name] == 4 * 4).all() or dynamic
    assert (result.updates["dapo"] < 4 * 4).all()  # discarded groups were paid for


def test_the_same_seeds_the_same_race_and_a_row_does_not_feel_the_others():
    alone = race(["grpo"], TASKS["easy"], **SMALL)
    among = race(["rloo", "grpo"], TASKS["easy"], **SMALL)
    assert torch.equal(alone.scores["grpo"], among.scores["grpo"])
    assert not torch.equal(among.scores["rloo"], among.scores["grpo"])


def test_equal_rows_differ_by_exactly_zero_and_a_zero_loss_loses():
    grpo = ALGORITHMS["grpo"]
    idle = replace(grpo, name="idle", advantage=torch.zeros_like, kl="none", kl_coefficient=0.0)
    result = race(["grpo", replace(grpo, name="twin"), idle], TASKS["easy"], **SMALL)
    assert result.difference("twin", "grpo") == Difference(0.0, 0.0, 0.0)
    assert not result.difference("twin", "grpo").carried
    start = expected_reward(TASKS["easy"].policy(), TASKS["easy"].prompts, TASKS["easy"].judge)
    assert result.scores["idle"].tolist() == pytest.approx([start.item()] * 2)
    assert result.ranking()[-1] == "idle"


def test_a_row_with_a_sure_failure_is_carried():
    grpo = ALGORITHMS["grpo"]
    backwards = replace(grpo, name="backwards", advantage=lambda r: -grpo.advantage(r))
    budget = SMALL | {"seeds": range(4), "steps": 6}
    gap = race(["grpo", backwards], TASKS["easy"], **budget).difference("backwards", "grpo")
    assert gap.carried
    assert gap.high < 0


@pytest.mark.parametrize(
    ("probability", "df", "quantile"),
    [
        (0.975, 1, 12.706),
        (0.975, 4, 2.776),
        (0.975, 30, 2.042),
        (0.995, 4, 4.604),
        (0.95, 9, 1.833),
    ],
)
def test_student_quantiles_of_the_printed_tables(probability, df, quantile):
    assert _student_quantile(probability, df) == pytest.approx(quantile, abs=2e-3)


def test_student_quantiles_are_exact_where_they_have_a_formula():
    for p in (0.6, 0.975, 1 - 0.05 / 45 / 2):  # one degree of freedom: Cauchy; two: algebraic
        assert _student_quantile(p, 1) == pytest.approx(math.tan(math.pi * (p - 0.5)), rel=1e-6)
        two = (2 * p - 1) / math.sqrt(2 * p * (1 - p))
        assert _student_quantile(p, 2) == pytest.approx(two, rel=1e-6)


def test_intervals_cover_the_truth_as_often_as_they_claim():
    """Paired Gaussian scores with a common seed effect, difference .3: 90 % of 2,000 intervals."""
    dice, hits = torch.Generator().manual_seed(0), 0
    for _ in range(2000):
        common, a, b = torch.randn(3, 5, generator=dice, dtype=torch.float64)
        scores = {"a": 5 * common + a + 0.3, "b": 5 * common + b}
        gap = Race("none", scores, {}, {}).difference("a", "b", confidence=0.9)
        hits += gap.low < 0.3 < gap.high
    assert abs(hits / 2000 - 0.9) < 4 * math.sqrt(0.09 / 2000)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="name of its own"):
        race(["grpo", replace(ALGORITHMS["rloo"], name="grpo")], TASKS["easy"], **SMALL)
    with pytest.raises(ValueError, match="two seeds"):
        race(["grpo"], TASKS["easy"], seeds=[3], steps=2)
    with pytest.raises(ValueError, match=r"every seed once, got .*one observation"):
        race(["grpo"], TASKS["easy"], seeds=[0, 0, 0], steps=2)
    with pytest.raises(TypeError, match=r"for example TASKS\['easy'\], got 'easy'"):
        race(["grpo"], "easy", **SMALL)
    with pytest.raises(TypeError, match="rows must be a list"):
        race("grpo", TASKS["easy"], **SMALL)
    for confidence in (95, 1, 0, -0.5, math.nan):
        with pytest.raises(ValueError, match="share between 0 and 1"):
            Race("none", {"a": torch.ones(2)}, {}, {}).difference("a", "a", confidence=confidence)
    with pytest.raises(KeyError, match="unknown algorithm"):
        race(["grop"], TASKS["easy"], **SMALL)
