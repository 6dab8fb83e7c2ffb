"""What lecture 18 says in text and cannot assert in its own cells.

Its folded solutions run, numbers worked out by hand or read off its outputs are right, and its
helpers compute what they claim. The long trainings are not repeated here.
"""

import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from lectures import figures_18 as draw
from toy_models.finite_mdp import policy_return, sorter_tree
from toy_models.policies import AutoregressivePolicy
from toy_models.sorting import sorted_reward
from toy_models.value_based import td_target

LECTURE = "18_value_based"
USED = ["setup", "contraction", "news", "law"]


def test_exercise_1_by_hand(lecture):
    now, frozen = torch.tensor([[2.0, 3.0, 1.0]]), torch.tensor([[4.0, 1.0, 2.0]])
    for ended, told in ((0.0, (4.6, 1.9)), (1.0, (1.0, 1.0))):
        found = [
            td_target(torch.ones(1), now, frozen, torch.tensor([ended]), gamma=0.9, double=d)
            for d in (False, True)
        ]
        assert torch.cat(found).tolist() == pytest.approx(told)
    assert 1 + 0.9 * frozen[0, 2].item() == pytest.approx(2.8)  # SARSA
    assert [lecture["law"](1 / 16, 4, n) for n in (1, 2, 4)] == pytest.approx([30, 20, 16])


@pytest.mark.parametrize("exercise", ["exercise-2", "exercise-3"])
def test_folded_solutions_run(lecture, exercise, capsys):
    exec(lecture.solution(exercise), lecture.names)  # their own asserts are the claim
    assert capsys.readouterr().out


def test_exercise_3_is_short(lecture):
    assert len(lecture.solution("exercise-3").strip().splitlines()) <= 12


def test_the_top_row_settles_at_the_samplers_value(lecture):
    late = lecture["watch"](12, 2000, 0.05, seed=3)[-250:, 0]
    assert late.mean().item() == pytest.approx(0.825**11, abs=0.04)


def test_numbers_in_the_prose_are_those_printed(lecture):
    told = lecture.text("summary") + lecture.text("reuse-text")
    assert "3,913" in told
    assert "1: 3913" in lecture.printed("law")
    single, double = re.findall(r"1\.198|0\.759", lecture.printed("gaussians"))
    assert (float(single) - 1, 1 - float(double)) == pytest.approx((0.20, 0.24), abs=0.005)
    walks = lecture.printed("cliff-picture")
    for number in ("-13", "-15", "-50.8", "-20.7"):
        assert number in walks
    cpu = re.findall(r"([\d.]+) CPU seconds", lecture.printed("reuse"))
    assert [float(x) for x in cpu] == pytest.approx([6.1, 6.9, 5.3], abs=0.05)


def test_the_deadly_triad_by_hand(lecture):
    """The fold of section 3.4: w after six updates, and the factor with state 2's own update."""
    w = 1.0
    for _ in range(6):
        w += 0.5 * (0.9 * 2 * w - w)
    both = 1 + 0.5 * (0.9 * 2 - 1) - 4 * 0.5  # state 2: target 0, prediction 2 w, slope 2
    assert (round(w, 1), round(both, 1)) == (7.5, -0.6)
    assert "six updates make 7.5 of 1" in lecture.text("tricks-after")
    assert "(2\\gamma-5)=-.6" in lecture.text("tricks-after")


def test_the_largest_of_151_936_gaussians():
    """Text after the doors: the mean is 4.5, its bound 4.9."""
    x = torch.linspace(0, 9, 200_001, dtype=torch.float64)
    normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0)
    below = 1 - normal.cdf(x) ** 151_936  # E max = int_0 P(max > x) dx, all of it above 0
    assert torch.trapezoid(below, x).item() == pytest.approx(4.5, abs=0.05)
    assert (2 * np.log(151_936)) ** 0.5 == pytest.approx(4.9, abs=0.05)


def test_the_law_where_one_token_holds_all_the_doubt(lecture):
    last, first = [1.0] * 999 + [0.1], [0.1] * 1000
    assert [round(sum(1 / p for p in odds)) for odds in (last, first)] == [1009, 10_000]
    assert "at the last token: 1,009; at the first: 10,000" in lecture.text("reuse-text")


def test_a_tie_is_not_an_answer():
    right = torch.tensor([0, 1])
    process = sorter_tree(torch.tensor([[1, 0]]), vocab_size=2, reward=sorted_reward)
    tables = torch.zeros(3, 3, 2)
    tables[1:, 0, 0] = 1.0  # the first token
    tables[2, 1, 1] = 1.0  # the second, behind a 0
    assert draw.answers_right(tables, process, right).tolist() == [False, False, True]


def test_the_half_trained_sampler_is_right_one_time_in_ten():
    for vocab in (3, 8):
        prompt = torch.tensor([[vocab - 1, 0, 1]])
        policy = AutoregressivePolicy(vocab, 3, eos_id=None)
        sampler = draw.half_trained(policy, prompt[0].sort().values, first=0.2, later=0.5**0.5)
        assert torch.allclose(sampler.sum(1), torch.ones(len(sampler)).double())
        process = sorter_tree(prompt, vocab_size=vocab, reward=sorted_reward)
        assert policy_return(process, sampler, gamma=1.0).item() == pytest.approx(0.1)
        assert sampler[0].argmax() != 0  # its favourite is wrong


def test_counting_helpers():
    assert draw.first_time([0, 0, 0.5, 1]) == 2
    assert draw.first_time([0, 0]) == 2
    x, rows = draw.episode_curve([[(10, 4.0), (35, 8.0)], [(20, 2.0)]], 40, points=2)
    assert x.tolist() == [10, 30]
    assert rows.tolist() == [[4, 8], [2, 2]]


def test_pictures_draw_what_they_get():
    figure = draw.news({"a": np.eye(3), "b": np.zeros((3, 3))}, every=4)
    assert figure.axes[0].get_xlim() == (-2, 10)
    shares = {"Q-learning": np.linspace(0, 1, 50)}
    assert draw.doors(shares, 0.01).axes[0].get_lines()[0].get_ydata()[-1] == 1
    plt.close("all")


def test_untried_sees_what_the_log_never_had():
    class Ones:
        """Always prefers token 1."""

        actions, weights = 2, [torch.zeros(1, 1, 1)]

        def __call__(self, seen):
            return torch.tensor([0.0, 1.0]).expand(*seen.shape[:2], 2)

    prompts = torch.tensor([[0, 1], [1, 0]])
    whole, half = torch.tensor([[1, 1], [1, 1]]), torch.tensor([[1, 0], [1, 1]])
    assert draw.untried(Ones(), prompts, prompts, whole) == 0
    assert draw.untried(Ones(), prompts, prompts, half) == 0.5
    assert draw.untried(Ones(), prompts, prompts[:1], whole[:1]) == 0.5
