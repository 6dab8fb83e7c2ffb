"""What lecture 19 says in text and cannot assert in its own cells: folded answers and prose."""

import math

import matplotlib.pyplot as plt
import pytest
import torch

from lectures import figures_19 as draw

LECTURE = "19_continuous_and_max_entropy"
USED = ["setup", "task", "estimates", "learn", "variance", "flattery", "discrete", "vocabulary"]


def test_exercise_1_by_hand():
    variance = 0.4 / (2 * 2)
    assert variance == pytest.approx(1 / 10)
    assert 0.5 * math.log(2 * math.pi * math.e * variance) == pytest.approx(0.27, abs=5e-3)
    assert 4 / (2 * math.pi * math.e) == pytest.approx(0.234, abs=5e-4)
    step = 0.9 * 0.5 / math.sqrt(math.pi)
    assert step == pytest.approx(0.254, abs=5e-4)
    assert step / (1 - 0.9) == pytest.approx(2.5, abs=0.05)


def test_exercise_2_learns_with_two_weights(lecture):
    exec(lecture.solution("exercise-2"), lecture.names)


def test_exercise_3_refutes_in_ten_lines(lecture):
    code = lecture.solution("exercise-3")
    exec(code, lecture.names)  # its own asserts are the claim
    gains, best = lecture["gains"], lecture["best"].gain
    assert gains["SARSA"] / best == pytest.approx(1.25, abs=0.05)  # a quarter too strong


def test_numbers_in_the_prose(lecture):
    task, best = lecture["LQ"], lecture["best"]
    assert best.gain == pytest.approx(0.628, abs=5e-4)
    assert 1 - (lecture["by_length"][0] + lecture["by_length"][1]) > 0.96
    assert lecture["by_length"][3] == pytest.approx(0.89, abs=5e-3)
    noise = 1000 / math.log(9 * (150_000 - 1)) * math.log(150_000)
    assert noise == pytest.approx(840, abs=6)
    assert 1 / (1000 * math.log(150_000)) < 1e-4
    assert math.log(4) == pytest.approx(1.39, abs=5e-3)
    assert -best.gain * 3 == pytest.approx(-1.88, abs=5e-3)
    assert -1 + math.log(2) < 0 < 0.1  # the target entropy of the same shape, doubled
    assert task.temperature_for(0.1) == pytest.approx(0.237, abs=5e-4)


def test_the_pictures_take_what_the_lecture_gives(lecture):
    scores = {"DDPG": torch.rand(5, 30), "SAC": torch.rand(5, 30)}
    for figure, axes in (
        (draw.race(scores, every=50), 1),
        (draw.temperatures(lecture["LQ"], (0.1, 1.0), state=3.0), 2),
    ):
        assert len(figure.axes) == axes
        plt.close(figure)
