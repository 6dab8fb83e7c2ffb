"""What lecture 19 says in text and cannot assert in its own cells: folded answers and prose."""

import math
import re

import matplotlib.pyplot as plt
import pytest
import torch

from lectures import figures_19 as draw

LECTURE = "19_continuous_and_max_entropy"
USED = ["setup", "task", "estimates", "learn", "variance", "flattery", "discrete", "vocabulary"]
USED += ["chain"]


def test_exercise_1_by_hand():
    variance = 0.4 / (2 * 2)
    assert variance == pytest.approx(1 / 10)
    assert 0.5 * math.log(2 * math.pi * math.e * variance) == pytest.approx(0.27, abs=5e-3)
    assert 4 / (2 * math.pi * math.e) == pytest.approx(0.234, abs=5e-4)
    dice, critics, smaller = torch.Generator().manual_seed(0), 0.0, 0.0
    for _ in range(200):  # both critics learn from the smaller, with fresh errors at every step
        error = 0.5 * torch.randn(2, 20_000, generator=dice)
        smaller = (critics + error).amin(0).mean().item()
        critics = 0.9 * smaller
    assert critics == pytest.approx(-2.5, abs=0.1)
    assert smaller - critics == pytest.approx(-0.28, abs=0.02)


def test_exercise_2_learns_with_two_weights(lecture):
    exec(lecture.solution("exercise-2"), lecture.names)
    said = re.search(r"five scores are ([.\d, ]+)\.", lecture.text("exercise-2"))[1]
    assert lecture["scores"] == pytest.approx([float(x) for x in said.split(", ")], abs=0.1)


def test_exercise_3_refutes_in_ten_lines(lecture):
    code = lecture.solution("exercise-3")
    exec(code, lecture.names)  # its own asserts are the claim
    gains, best = lecture["gains"], lecture["best"].gain
    assert gains["SARSA"] / best == pytest.approx(1.25, abs=0.05)  # a quarter too strong


def test_numbers_in_the_prose(lecture):
    task, best = lecture["LQ"], lecture["best"]
    assert best.gain == pytest.approx(0.628, abs=5e-4)
    assert lecture["by_length"][3] == pytest.approx(0.89, abs=5e-3)
    noise = 1000 / math.log(9 * (150_000 - 1)) * math.log(150_000)
    assert noise == pytest.approx(840, abs=6)
    assert 1 / (1000 * math.log(150_000)) < 1e-4
    assert math.log(4) == pytest.approx(1.39, abs=5e-3)
    assert -best.gain * 3 == pytest.approx(-1.88, abs=5e-3)
    wide = task.solve(0.2)  # what the value at 0 loses to noise, and what the noise is paid
    assert wide.curvature * wide.std**2 == pytest.approx(0.1, abs=1e-9)
    assert wide.entropy == pytest.approx(0.02, abs=5e-3)
    assert (wide.offset, best.offset) == pytest.approx((1.08, 0.12), abs=5e-3)
    assert best.curvature == pytest.approx(1.65, abs=5e-3)
    P, gain = best.P, best.gain  # the two formulas of section 1
    assert pytest.approx(1 / (1 - 0.9 * 0.81)) == task.worth(0.0)[0]
    assert gain == pytest.approx(0.9 * 0.9 * P / (0.5 + 0.9 * P), abs=1e-9)


def test_the_chain_is_picked_and_most_are_harmless(lecture):
    """Median cosine .99 of the mixture with the average-reward gradient; the lecture's is worst."""
    chains, theta, pi = (lecture[name] for name in ("chains", "theta", "pi"))
    cosines = []
    for seed in range(300):
        chain = chains.random_chain(seed=seed)
        short, long_run = chains.discounted(chain, pi, gamma=0.5), chains.average_reward(chain, pi)
        truth = chains.state_gradient(long_run, pi, theta).flatten()
        mixture = chains.state_gradient(long_run, pi, theta, q=short.q).flatten()
        cosines.append(torch.cosine_similarity(mixture, truth, dim=0))
    cosines = torch.stack(cosines)
    assert cosines.median().item() == pytest.approx(0.99, abs=5e-3)
    assert cosines.argmin() == 46
    assert (cosines < 0).sum() == 2


def test_the_arrow_of_the_compass_is_for_one_push_only(lecture):
    """At k = b = .3 ∇J of the whole return is some twenty times as long."""
    task, k, b = lecture["LQ"], torch.tensor(0.3, requires_grad=True), torch.tensor(0.3)
    b.requires_grad_()
    s, total = task.start * torch.linspace(-1, 1, 4001), 0.0
    spread = s.square().mean() * 0  # the noise's second moment, which does not depend on the start
    for t in range(120):
        a = -k * s + b
        pay = (task.q * s**2 + task.c * a**2).mean() + (task.q + task.c * k**2) * spread
        total = total - task.gamma**t * pay
        s = task.A * s + task.B * a
        spread = (task.A - task.B * k) ** 2 * spread + task.noise**2
    grad = torch.stack(torch.autograd.grad(total, (k, b)))
    assert grad.tolist() == pytest.approx([18.59, -27.42], abs=0.05)
    assert grad.norm() > 20 * lecture["estimates"](40_000, 0.05, "path").mean(0).norm()
    assert task.temperature_for(0.1) == pytest.approx(0.237, abs=5e-4)


def test_the_pictures_take_what_the_lecture_gives(lecture):
    scores = {"DDPG": torch.rand(5, 30), "SAC": torch.rand(5, 30)}
    for figure, axes in (
        (draw.race(scores, every=50), 1),
        (draw.temperatures(lecture["LQ"], (0.1, 1.0), state=3.0), 2),
    ):
        assert len(figure.axes) == axes
        if axes == 2:  # the parabola's peak is in the picture in every state
            low, high = figure.axes[0].get_ylim()
            assert low < -lecture["best"].P * 9 - lecture["best"].offset < high
        plt.close(figure)
