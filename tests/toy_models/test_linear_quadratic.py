"""The small continuous task and its closed-form answers."""

import math

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.utils.seeding import np_random

from toy_models.linear_quadratic import DTYPE, LQ, LinearQuadratic, LinearQuadraticProblem


def test_no_other_gain_is_better():
    best = LQ.solve()
    gain = torch.tensor(best.gain, dtype=DTYPE, requires_grad=True)
    (slope,) = torch.autograd.grad(LQ.expected_return(gain), gain)
    assert abs(slope) < 1e-9
    assert LQ.worth(best.gain) == pytest.approx((best.P, best.offset), abs=1e-9)
    for other in (0.0, best.gain - 0.01, best.gain + 0.01):
        assert LQ.expected_return(other) < LQ.expected_return(best.gain)


@pytest.mark.parametrize("alpha", [0.05, 0.3])
def test_the_soft_solution_is_a_soft_bellman_fixed_point(alpha):
    soft, d = LQ.solve(alpha), LQ.discount
    a = torch.linspace(-15, 15, 200_001, dtype=DTYPE)
    for s in (0.0, 0.7, -1.5):
        after = (LQ.A * s + LQ.B * a) ** 2 + LQ.noise**2
        q = -(LQ.q * s**2 + LQ.c * a**2) - d * (soft.P * after + soft.offset)
        value = alpha * (torch.logsumexp(q / alpha, 0) + math.log(a[1] - a[0]))
        assert value == pytest.approx(-soft.P * s**2 - soft.offset, abs=1e-9)
        p = ((q - value) / alpha).exp() * (a[1] - a[0])
        assert p @ a == pytest.approx(-soft.gain * s, abs=1e-9)
        assert p @ (a + soft.gain * s) ** 2 == pytest.approx(soft.std**2, abs=1e-9)
    assert LQ.temperature_for(soft.entropy) == pytest.approx(alpha, abs=1e-12)


@pytest.mark.parametrize("end", [0.0, 0.2])
def test_worth_is_what_rollouts_earn(end):
    """With random ends the undiscounted future counts gamma (1 - end) per step: 4 std errors."""
    problem, gain, std = LinearQuadraticProblem(end=end), 0.4, 0.3
    env, dice, totals = (
        LinearQuadratic(problem, bound=50.0, limit=150),
        np.random.default_rng(0),
        [],
    )
    for episode in range(600):
        s, total, t, over = env.reset(seed=episode)[0], 0.0, 0, False
        while not over:
            a = -gain * s + std * dice.standard_normal(1)
            s, reward, terminated, truncated, _ = env.step(a)
            total, t, over = total + problem.gamma**t * reward, t + 1, terminated or truncated
        totals.append(total)
    error = np.std(totals) / len(totals) ** 0.5
    assert abs(np.mean(totals) - problem.expected_return(gain, std)) < 4 * error


@pytest.mark.filterwarnings("ignore:.*Box:UserWarning")
def test_the_environment_keeps_gymnasiums_rules():
    check_env(LinearQuadratic(), skip_render_check=True)


def test_score_is_one_for_the_best_and_zero_for_nothing():
    best = LQ.solve().gain
    gains = torch.tensor([best, 0.0, 0.3], dtype=DTYPE)[:, None, None]
    ones, zero, between = LQ.score(lambda s: -gains * s)
    assert (ones, zero) == (pytest.approx(1), pytest.approx(0))
    assert 0 < between < 1


def test_action_values_agree_with_values_and_gains_are_read_off():
    gains = torch.tensor([0.2, 0.9], dtype=DTYPE)
    s = torch.tensor([-1.0, 0.5], dtype=DTYPE)
    P, offset = LQ.worth(gains)
    assert torch.allclose(LQ.action_value(s, -gains * s, gains), -P * s**2 - offset, atol=1e-12)
    found = LQ.gain_of(lambda s: -gains[:, None, None] * s)
    assert torch.allclose(found, gains, atol=1e-12)


def test_impossible_arguments_are_named():
    with pytest.raises(ValueError, match="alpha must be ≥ 0"):
        LQ.solve(-1.0)
    with pytest.raises(ValueError, match="gain"):
        LQ.worth(-3.0)


def test_no_other_gain_is_better_in_another_problem():
    other = LinearQuadraticProblem(A=1.1, B=0.5, q=2.0, c=0.3, gamma=0.95, end=0.1)
    best = other.solve()
    gain = torch.tensor(best.gain, dtype=DTYPE, requires_grad=True)
    (slope,) = torch.autograd.grad(other.expected_return(gain), gain)
    assert abs(slope) < 1e-9
    assert other.worth(best.gain) == pytest.approx((best.P, best.offset), abs=1e-9)


def test_a_discount_of_ones_own():
    patient = LinearQuadraticProblem(gamma=0.5)
    assert LQ.worth(0.4, 0.3, discount=0.5) == pytest.approx(patient.worth(0.4, 0.3))


def test_visits_by_counting():
    problem, gain, std = LinearQuadraticProblem(end=0.2, noise=0.4, B=0.7), 0.4, 0.3
    second, total = problem.start**2 / 3, 0.0
    for t in range(300):
        total += problem.discount**t * second
        second = (problem.A - problem.B * gain) ** 2 * second
        second += problem.noise**2 + (problem.B * std) ** 2
    assert problem.visits(gain, std) == pytest.approx(total, abs=1e-9)


def test_score_is_a_share_of_the_exact_gain():
    noisy = LinearQuadraticProblem(noise=0.5, A=0.95)
    value = [noisy.expected_return(g) for g in (0.2, 0.0, noisy.solve().gain)]
    share = (value[0] - value[1]) / (value[2] - value[1])
    assert noisy.score(lambda s: -0.2 * s, n=2000).item() == pytest.approx(share, abs=0.004)


def test_score_has_noise():
    """Doing the best, but only near 0, helps where the noise keeps the state away from 0."""
    gain = LQ.solve().gain
    quiet, noisy = (
        LinearQuadraticProblem(noise=noise).score(lambda s: -gain * s * (s.abs() < 0.5)).item()
        for noise in (0.0, 0.5)
    )
    assert abs(quiet - noisy) > 0.03


def test_a_step_by_hand():
    env = LinearQuadratic(bound=0.5, limit=2, luck=0.7)
    s, dice = env.reset(seed=3)[0][0], np_random(3)[0]
    assert s == LQ.start * dice.uniform(-1, 1)
    after, reward, _, truncated, _ = env.step(np.array([9.0]))  # cut to .5
    assert reward == pytest.approx(-(LQ.q * s**2 + LQ.c * 0.25) + 0.7 * dice.standard_normal())
    assert after[0] == pytest.approx(LQ.A * s + LQ.B * 0.5 + LQ.noise * dice.standard_normal())
    assert [truncated, env.step(np.array([0.0]))[3]] == [False, True]


@pytest.mark.parametrize(
    ("match", "call"),
    [
        (r"gamma \(1 - end\) < 1", lambda: LinearQuadraticProblem(gamma=1.0)),
        ("gamma and end", lambda: LinearQuadraticProblem(end=-0.1)),
        ("c must be positive", lambda: LinearQuadraticProblem(c=-1.0)),
        ("noise must be", lambda: LinearQuadraticProblem(noise=-1.0)),
        ("A and B", lambda: LinearQuadraticProblem(A=math.nan)),
        ("discount must lie", lambda: LQ.worth(0.9, discount=1.1)),
        ("gain", lambda: LQ.worth(math.nan)),
        ("gain", lambda: LQ.visits(-3.0)),
        ("act must give", lambda: LQ.score(lambda s: s[..., 0])),
        ("limit must", lambda: LinearQuadratic(limit=0)),
        ("bound must", lambda: LinearQuadratic(bound=0.0)),
        ("luck must", lambda: LinearQuadratic(luck=math.nan)),
        ("action must be finite", lambda: LinearQuadratic().step(np.array([math.nan]))),
    ],
)
def test_silent_nonsense_is_refused(match, call):
    with pytest.raises(ValueError, match=match):
        call()
