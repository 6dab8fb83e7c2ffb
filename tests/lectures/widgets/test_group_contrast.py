"""The group-contrast widget: facts it must show, what it refuses."""

import math

import pytest
import torch

from lectures.widgets import GroupContrast
from lectures.widgets.group_contrast import ESTIMATORS, answer_weights, curve
from toy_models.exact import expected_reward, gradient_moments, random_logits, skilled_policy
from toy_models.sorting import sorted_reward

PROMPT = torch.tensor([[1, 0, 2]])
close = pytest.approx


@pytest.mark.parametrize(
    ("estimator", "group", "p", "weight"),
    [
        ("grpo_0", 2, 0.3, 1.0),
        ("grpo_0", 3, 0.3, math.sqrt(2)),
        ("grpo_1", 2, 0.3, 0.707),
        ("grpo_1", 3, 0.3, 1.155),
        ("grpo_0", 8, 0.01, 2.61),
        ("grpo_0", 8, 0.5, 1.86),
        ("grpo_1", 8, 0.01, 2.44),
        ("grpo_1", 8, 0.5, 1.74),
        ("dr_grpo", 8, 0.2, 7 / 8),
        ("rloo", 8, 0.2, 1.0),
    ],
)
def test_weight_of_a_prompt(estimator, group, p, weight):
    found = GroupContrast(estimator=estimator, group=group, p=p).numbers
    assert found["weight"] == close(weight, abs=5e-3)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_weight_is_that_of_the_enumerated_groups_of_the_sorter(estimator):
    policy = skilled_policy(random_logits(3, 3, scale=0.3, seed=0), PROMPT, 2)
    p = expected_reward(policy, PROMPT, sorted_reward).item()
    moments = gradient_moments(policy, PROMPT, sorted_reward, ESTIMATORS[estimator], group=5)
    found = GroupContrast(estimator=estimator, group=5, p=p).numbers
    assert found["weight"] == close(moments.projection, abs=1e-12)
    assert found["zero"] == close(moments.p_zero, abs=1e-12)


def test_a_pass_rate_of_two_percent_leaves_85_percent_silent():
    made = GroupContrast(p=0.02, group=8)
    assert made.numbers["zero"] == close(0.85, abs=5e-3)
    assert "85.1 % of the groups have no contrast" in made.sentence


def test_new_prompts_change_no_share_and_the_same_prompt_does():
    kept, new, same = (
        GroupContrast(p=0.01, group=8, silent=silent) for silent in ("kept", "new", "same")
    )
    assert new.numbers["if_mixed"] == close(33.8, abs=0.05)
    assert 1 - new.numbers["zero"] == close(0.077, abs=5e-4)
    assert new.numbers["relative"] == kept.numbers["relative"] == close(1.405, abs=1e-3)
    assert same.numbers["relative"] == close(18.1, abs=0.05)
    assert same.numbers["tries"] == close(12.9, abs=0.1)
    assert "33.8 × ∇p, but 7.7 % are mixed, and the product is 2.61 as before" in new.sentence
    assert "18.1 times as much as a prompt with p = 0.50" in same.sentence


@pytest.mark.parametrize("group", [2, 3, 8, 64])
def test_bounds(group):
    bounds = {
        "grpo_0": math.sqrt(group - 1),
        "grpo_1": (group - 1) / math.sqrt(group),
        "dr_grpo": (group - 1) / group,
        "rloo": 1.0,
    }
    for estimator, bound in bounds.items():
        assert GroupContrast(estimator=estimator, group=group).numbers["bound"] == close(bound)


def test_a_lucky_find_against_a_right_answer_of_an_even_group():
    for estimator, ratio in (("grpo_0", 2.65), ("dr_grpo", 1.75), ("rloo", 1.75)):
        right = answer_weights(estimator, 8)[:, 0]
        assert right[0] / right[3] == close(ratio, abs=5e-3)


def test_right_and_wrong_weights_balance_in_every_group():
    for estimator in ESTIMATORS:
        for group in (2, 7):
            right = torch.arange(1, group)
            pair = answer_weights(estimator, group)
            total = pair[:, 0] * right + pair[:, 1] * (group - right)
            assert total.abs().max() < 1e-12


def test_the_curve_is_symmetric_and_nearly_the_arcsine_slope_for_many_answers():
    for estimator in ESTIMATORS:
        for mixed in (False, True):
            values = curve(estimator, 8, mixed)
            assert values == close(values[::-1], rel=1e-9)
    middle = curve("grpo_0", 64, False)[49]
    assert middle == close(2, abs=0.02)


def test_the_sentence_does_not_compare_one_half_with_itself():
    assert "p = 0.50." not in GroupContrast(p=0.5).sentence
    assert "as much as a prompt with p = 0.50" in GroupContrast(p=0.1, estimator="rloo").sentence
    assert "practically every group" in GroupContrast(p=0.5, group=64).sentence


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"p": 0}, "p is 0; it must lie between 0.01 and 0.99"),
        ({"p": 1}, "p is 1; it must lie between"),
        ({"group": 1}, "group is 1; it must lie between 2 and 64"),
        ({"group": 8.5}, "group is 8.5; expected a whole number"),
        ({"estimator": "ppo"}, "estimator is 'ppo'.*rloo"),
        ({"silent": "drop"}, "silent is 'drop'.*same"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(changes, message, refused):
    refused(GroupContrast(), changes, message)


def test_a_weight_that_misses_one_by_a_rounding_error_is_printed_as_one():
    for p in (0.71, 0.02, 0.97):
        for group in (2, 46, 64):
            assert "weighs 1.00 × ∇p" in GroupContrast(p=p, group=group, estimator="rloo").sentence
