"""What lecture 16 says in text and cannot assert in its own cells.

Its folded solutions run, numbers done by hand are right, what it printed is what the prose says,
and its pictures can be drawn.
"""

import contextlib
import io
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from lectures import figures_16

LECTURE = "16_rewards"
USED = ["setup", "identify", "tree"]


def numbers(text: str) -> list[float]:
    return [float(n) for n in re.findall(r"\d+\.\d+", text)]


@pytest.fixture
def with_to_go(lecture):
    lecture.names["to_go"] = lambda x: (x * lecture["mask"]).flip(1).cumsum(1).flip(1)
    return lecture


def test_pictures_can_be_drawn():
    names = list(figures_16.LOOKS)
    runs = {name: np.full((2, 5), 0.9) for name in names[:3]}
    curves = {name: (np.linspace(0, 7, 20), np.ones((8, 20))) for name in names[3:6]}
    figures = [
        figures_16.reward_and_truth(runs, dict.fromkeys(runs, 0.2)),
        figures_16.comparisons({20: [0.6, 0.5], 40: [0.6, 0.7]}, 0.7, curves, 2.4),
        figures_16.rare({name: np.zeros((5, 9)) for name in names[6:]}),
        figures_16.front([[0, -1], [4, -4]], [[0, -1]], [2, -3]),
    ]
    plt.close("all")
    assert len(figures[2].axes) == len(names[6:]) == 6


def test_exercise_1_by_hand(lecture):
    told = lecture.text("exercise-1")
    rewards = lecture["rewards"]
    progress = rewards.progress(lecture["ask"], torch.tensor([[0, 1, 0, 1, 2]]))
    assert progress.tolist() == [[0, 1, 2, 1, 2, 3]]
    assert (2 * progress.diff().clamp(min=0)).sum() == 8
    shaped = rewards.shaped(torch.zeros(1, 5), 2 * progress[:, :-1])
    assert shaped.tolist() == [[2, 2, -2, 2, -4]]
    assert "2 + 2 − 2 + 2" in told
    log2, log3 = torch.tensor([2.0, 3.0]).log()
    nothing = torch.zeros(())
    once = rewards.judge_prefers(log2, nothing, position=log3)
    both = rewards.judge_prefers(log2, nothing, position=log3, both_orders=True)
    assert once == pytest.approx(6 / 7)
    assert both == pytest.approx(0.629, abs=5e-4)
    assert "on average .629" in told


def test_exercise_2_ends_where_it_says(with_to_go):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(with_to_go.solution("exercise-2"), with_to_go.names)
    assert "Immediate .748, to go 1." in with_to_go.text("exercise-2")
    assert numbers(said.getvalue()) == pytest.approx([0.748, 1], abs=6e-4)


def test_exercise_3_refutes_in_ten_lines(lecture):
    code = lecture.solution("exercise-3")
    assert len(code.strip().splitlines()) <= 10
    exec(code, lecture.names)  # its own asserts are the claim


def test_numbers_in_the_text_are_those_that_were_printed(lecture):
    rows = lecture.printed("rules").splitlines()
    assert "earns 98 % of all points" in lecture.text("puzzle-text")
    assert numbers(rows[0])[0] == pytest.approx(98, abs=0.6)
    assert "orders 61 % of fresh pairs" in lecture.text("over-text")
    assert "'0.610'" in lecture.printed("fit").split("40:")[1][:9]
    assert "manages 71 %" in lecture.text("sample-text")
    assert lecture.printed("fit").rstrip().endswith("truth 0.710")
    assert "half a nat helps" in lecture.text("over-picture")
    assert "best 2.68 at KL 0.50" in lecture.printed("over")
    spreads = numbers(lecture.printed("compass"))
    assert "5.5 for the bare outcome; 21 with" in lecture.text("compass-after")
    assert "3.5 for the reference's advantages" in lecture.text("compass-after")
    assert spreads[:4] == pytest.approx([5.5, 21, 5.6, 3.5], abs=0.5)
    assert "A cosine of .865" in lecture.text("hindsight-after")
    assert numbers(lecture.printed("hindsight")) == [0.865]
    assert "dozens of times likelier" in lecture.text("rare-after")
    assert int(re.findall(r"× (\d+)", lecture.printed("rare"))[0]) >= 24


def test_what_lasts_when_a_part_is_switched_off(lecture):
    """The two things to try: hindsight without a reward, and a curriculum that stays short."""
    rare, told = lecture["rare"], lecture.text("hindsight-after")
    settings = {"length": 6, "seed": 0}
    nothing = {"reward": lambda x, y: torch.zeros(len(x)), "hindsight": True, "updates": 200}
    short = {"updates": 170, "lengths": 170 * [2]}
    assert "(.98)" in told
    assert "right on .94" in told
    assert rare.seek(rare.Sorter(5), **nothing, **settings)[-1] == pytest.approx(0.98, abs=0.02)
    assert rare.seek(rare.Sorter(5), **short, **settings)[-1] == pytest.approx(0.94, abs=0.02)
