"""pass@k against enumeration, its bias, its standard error; sampled evaluation of a policy."""

import math
from itertools import combinations, product

import pytest

from llm_trainer.config import ConfigError, TaskConfig
from llm_trainer.devices import Devices
from llm_trainer.evaluate import (
    SampledEvaluation,
    evaluate,
    evaluate_samples,
    pass_at_k,
    standard_error,
)
from llm_trainer.task import load_task


@pytest.fixture
def short(spelling):
    """Words that the policy spells right now and then, not never and not always."""
    return [word for word in spelling.held_out if len(word) <= 4][:30]


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 3), (6, 1, 2), (6, 0, 4), (4, 4, 1), (5, 3, 3)])
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_right_answer(n, c, k):
    subsets = list(combinations([True] * c + [False] * (n - c), k))
    share = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(n, c, k) == pytest.approx(share, abs=1e-12)


@pytest.mark.parametrize("p", [0.05, 0.3, 0.9])
def test_pass_at_k_is_unbiased_where_the_plug_in_estimate_is_not(p):
    """Expectation over the number of right answers among n, by enumeration."""
    n, k = 8, 4
    right = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    ours = sum(share * pass_at_k(n, c, k) for c, share in enumerate(right))
    plug_in = sum(share * (1 - (1 - c / n) ** k) for c, share in enumerate(right))
    truth = 1 - (1 - p) ** k
    assert ours == pytest.approx(truth, abs=1e-12)
    assert plug_in < truth - (1e-4 if p == 0.9 else 1e-2)


def test_pass_at_k_of_many_samples_neither_overflows_nor_cancels():
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01, abs=1e-12)
    assert pass_at_k(10_000, 5_000, 5_000) == 1.0
    for k in (0, 5):
        with pytest.raises(ConfigError, match=f"pass@{k} needs k from 1 to the 4 samples"):
            pass_at_k(4, 2, k)


def test_the_standard_error_is_that_of_the_mean_over_questions():
    """Over the four pairs of fair coins, its square is unbiased for the variance of the mean."""
    estimates = [standard_error(list(pair)) ** 2 for pair in product([0.0, 1.0], repeat=2)]
    means = [sum(pair) / 2 for pair in product([0.0, 1.0], repeat=2)]
    variance = sum((mean - 0.5) ** 2 for mean in means) / 4
    assert sum(estimates) / 4 == pytest.approx(variance)
    assert math.isnan(standard_error([1.0]))


def test_pass_at_k_is_averaged_over_questions_and_by_length():
    result = SampledEvaluation(samples=4, correct=[4, 0, 2, 1], letters=[3, 7, 3, 7])
    assert result.pass_at(1)[0] == pytest.approx((4 + 0 + 2 + 1) / 16)
    values = [1, 0, 1 - 1 / 6, 1 / 2]
    mean, error = result.pass_at(2)
    assert mean == pytest.approx(sum(values) / 4)
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / 3)  # of one question
    assert error == pytest.approx(spread / 2)
    assert result.pass_at_by_letters(2) == {3: pytest.approx(11 / 12), 7: pytest.approx(1 / 4)}


def test_samples_are_seeded_and_repeat(policy, spelling, short):
    one, two, other = (
        evaluate_samples(policy, spelling, short, samples=4, max_new_tokens=12, seed=seed)
        for seed in (0, 0, 1)
    )
    assert one == two
    assert one.correct != other.correct
    assert one.letters == [len(word) for word in short]
    assert len(set(one.correct)) > 1


def test_the_coldest_sampling_is_greedy_decoding(policy, spelling, short):
    """By temperature and by top-p alike; and `batch` changes nothing then."""
    greedy = evaluate(policy, spelling, short, max_new_tokens=12)
    assert 0 < greedy.exact < 1
    right = [3 * exact for _, _, exact in greedy.answers]
    for knobs in ({"temperature": 1e-3}, {"top_p": 1e-6}, {"top_p": 1e-6, "batch": 2}):
        cold = evaluate_samples(policy, spelling, short, samples=3, max_new_tokens=12, **knobs)
        assert cold.correct == right
        assert cold.pass_at(3)[0] == cold.pass_at(1)[0] == pytest.approx(greedy.exact)


def test_a_smaller_nucleus_changes_what_is_sampled(policy, spelling, short):
    whole, cut = (
        evaluate_samples(policy, spelling, short, samples=4, max_new_tokens=12, top_p=top_p)
        for top_p in (1.0, 0.5)
    )
    assert whole.correct != cut.correct


def test_a_mixture_is_evaluated_by_task(policy):
    task = load_task(TaskConfig(mixture={"spell_backward": 1, "leg_counting": 1}, held_out=10))
    result = evaluate(policy, task, task.held_out, max_new_tokens=12)
    assert result.by_task.keys() == {"spell_backward", "leg_counting"}
    assert result.exact == pytest.approx(sum(result.by_task.values()) / 2)
    spelled = [answer for answer in result.answers if " " not in answer[0]]
    assert len(spelled) == 10  # a word is shown as itself, a question in short
    assert all(len(question) <= 60 for question, _, _ in result.answers)


def test_greedy_evaluation_gives_its_standard_error(policy, spelling, short):
    result = evaluate(policy, spelling, short, max_new_tokens=12)
    p = result.exact
    assert 0 < p < 1
    assert result.standard_error == pytest.approx(math.sqrt(p * (1 - p) / 29))
    assert result.by_task == {"spell_backward": p}


def test_a_process_without_a_share_of_the_questions_evaluates_the_others(
    policy, spelling, monkeypatch
):
    """One question for two processes: the first has none."""
    found = []

    def everyone(self, thing):
        found.append(thing)
        return found

    monkeypatch.setattr(Devices, "everyone", everyone)
    for rank in (0, 1):
        result = evaluate(
            policy, spelling, ["sun"], max_new_tokens=12, devices=Devices(rank, world=2)
        )
    assert found[0] == []
    monkeypatch.undo()
    assert result == evaluate(policy, spelling, ["sun"], max_new_tokens=12)
