"""The baseline widget's facts, to the digits the lecture prints, and what it refuses."""

import math

import pytest

from lectures.widgets import BaselineVariance
from lectures.widgets import baseline_variance as module
from lectures.widgets.still import significant

KNOWN = [  # reward, skill: variance with nothing, V and b* subtracted, each as far as it is known
    ("graded", 0, ("23.24", "0.533", "0.532")),
    ("graded", 2, ("17.2", "0.668", "0.389")),
    ("graded", 4, ("3.67", "0.431", "0.063")),
    ("binary", 1, ("0.124", "0.118", "0.113")),
    ("binary", 2, ("0.077", "0.174", "0.064")),
    ("binary", 4, ("0.00120", "0.189", "0.00091")),
    ("arms", math.log(9), ("0.0009", "0.0576", "0.0000")),
]


@pytest.mark.parametrize(("reward", "skill", "known"), KNOWN)
def test_the_variances_are_the_known_ones(reward, skill, known):
    found = BaselineVariance(reward=reward, skill=skill).numbers["variance"]
    shown = [f"{found[k]:.{len(n.split('.')[1])}f}" for k, n in zip(found, known, strict=False)]
    assert [text.removeprefix("-") for text in shown] == list(known)


@pytest.mark.parametrize(("skill", "rate"), [(0, 0.021), (1, 0.129), (2, 0.396), (4, 0.866)])
def test_the_pass_rates_are_the_known_ones(skill, rate):
    for reward in ("binary", "graded"):
        found = BaselineVariance(reward=reward, skill=skill).numbers
        assert found["pass_rate"] == pytest.approx(rate, abs=6e-4)


def test_where_the_mean_turns_worse_than_nothing():
    assert module.crossing("binary")["pass_rate"] == pytest.approx(0.18, abs=5e-3)
    assert module.crossing("arms")["pass_rate"] == pytest.approx(2 / 3, abs=1e-9)
    assert module.crossing("graded") == {"skill": None, "pass_rate": None}
    for reward in ("binary", "arms"):
        flip = module.crossing(reward)["skill"]
        for skill, worse in ((flip - 0.01, False), (flip + 0.01, True)):
            none, mean, _ = module.baselines(reward, skill)[1].tolist()
            assert (mean > none) == worse


def test_with_partial_credit_the_mean_always_helps():
    assert all(mean < none for none, mean, _ in module.sweep("graded"))


@pytest.mark.parametrize("p", [0.6, 0.75, 0.9, 0.99])
def test_two_arms_swap_their_weights(p):
    found = BaselineVariance(reward="arms", skill=math.log(p / (1 - p))).numbers
    assert found["mean"] == pytest.approx(p)
    assert found["best"] == pytest.approx(1 - p)
    assert abs(found["variance"]["best"]) < 1e-15
    assert found["variance"]["none"] == pytest.approx(p * (1 - p) ** 3)
    assert found["variance"]["mean"] == pytest.approx(p * (1 - p) * (2 * p - 1) ** 2)


@pytest.mark.parametrize("changes", BaselineVariance.examples)
def test_the_two_averages_and_the_parabola(changes):
    made = BaselineVariance(**changes)
    found = made.numbers
    for share, b in (("answers", "mean"), ("squares", "best")):
        weights = [level[share] for level in found["levels"]]
        assert sum(weights) == pytest.approx(1)
        balance = sum(level["reward"] * level[share] for level in found["levels"])
        assert balance == pytest.approx(found[b])
    distance = made.baseline - found["best"]
    paid = found["variance"]["best"] + distance**2 * found["score_square"]  # [BL-13]
    assert found["variance"]["own"] == pytest.approx(paid, abs=1e-12)


def test_the_sentence_explains_the_side_by_the_right_answers():
    """With rewards 0 and 1, V and b* are the two shares; with partial credit they are not."""
    for reward in module.NAMES:
        for tenth in range(0, 61, 3):
            made = BaselineVariance(reward=reward, skill=tenth / 10)
            found = made.numbers
            if reward == "graded":
                assert "% of the squared length of the score vectors; b* lies" in made.sentence
            else:
                assert found["mean"] == pytest.approx(found["pass_rate"])
                assert found["best"] == pytest.approx(found["right_squares"])
                assert "% of the squared length of the score vectors: b* lies" in made.sentence


def test_no_probability_is_rounded_to_0_or_to_1():
    assert [module.rate(p) for p in (0, 0.004, 0.00004, 0.0251, 0.9949, 0.9975, 0.9996, 1)] == [
        "0.00", "0.004", "0.00004", "0.03", "0.99", "0.998", "0.9996", "1.00",
    ]  # fmt: skip
    apart = BaselineVariance(skill=6, baseline=0).sentence  # b* is not the b of 0
    assert "b* = 0.00," not in apart
    sentence = BaselineVariance(reward="arms", skill=6).sentence
    assert "pass rate 0.998" in sentence
    assert "V = 0.998" in sentence
    assert "b* = 0.002" in sentence


def test_the_sentence_names_the_reversal():
    assert "157 times worse than nothing" in BaselineVariance(skill=4).sentence
    assert "43.6 times better" in BaselineVariance(reward="graded", skill=0).sentence
    level = BaselineVariance(skill=module.crossing("binary")["skill"])
    assert "as good as nothing" in level.sentence
    assert "removes all of it" in BaselineVariance(reward="arms", skill=0).sentence


def test_another_reward_brings_a_baseline_of_its_size():
    made = BaselineVariance()
    made.reward = "graded"
    assert made.baseline == 4.5
    made.reward = "binary"
    assert made.baseline == 0.3
    assert BaselineVariance(reward="graded", baseline=1).baseline == 1


def test_what_is_refused_changes_nothing():
    made = BaselineVariance()
    before = made.state
    for name, wrong, words in (
        ("reward", "sparse", "made with: binary, graded, arms"),
        ("skill", 7, "between 0 and 6"),
        ("skill", -0.1, "between 0 and 6"),
        ("baseline", float("inf"), "finite"),
        ("baseline", "V", "expected a number"),
    ):
        with pytest.raises(ValueError, match=words):
            setattr(made, name, wrong)
        assert made.state == before


@pytest.mark.parametrize(
    ("value", "text"),
    [(23.2415, "23.2"), (0.0012, "0.00120"), (157.3, "157"), (161949, "162000"), (0, "0")],
)
def test_three_significant_digits(value, text):
    assert significant(value, 3) == text
    assert significant(-4.012e-6, 3) == "−4.01·10⁻⁶"
