"""What lecture 06 says in text and cannot assert in its own cells.

Its folded solutions run, the exercise done by hand and the widget's folded answers are right, and
so are the numbers that stand in the prose.
"""

import math

import matplotlib.pyplot as plt
import pytest
import torch

from lectures import figures_06 as draw
from lectures.widgets import Gae
from policy_gradients import gae

LECTURE = "06_values_and_gae"
USED = ["setup", "toy", "puzzle-predict", "puzzle", "instalments", "critic", "critics", "explained"]
USED += ["packed", "cut", "perfect", "perfect-table", "lambda", "bugs", "bugs-map"]


def test_exercise_1_by_hand():
    values, rewards = torch.tensor([[2.0, 1, 3]]), torch.tensor([[0.0, 0, 4]])
    done = torch.tensor([[0, 0, 1]])
    for lam, expected, lower in (
        (0.0, [-1, 2, 1], [0, 0, 1]),
        (0.5, [0.25, 2.5, 1], [0.25, 0.5, 1]),
        (1.0, [2, 3, 1], [1, 1, 1]),
    ):
        A, targets = gae(rewards, values, done, gamma=1.0, lam=lam)
        assert A[0].tolist() == expected
        assert targets[0].tolist() == (torch.tensor(expected) + values[0]).tolist()
        too_high, _ = gae(rewards, values + 1, done, gamma=1.0, lam=lam)
        assert (A - too_high)[0].tolist() == lower


def test_exercise_2_the_matrix_is_the_recursion(lecture):
    exec(lecture.solution("exercise-2"), lecture.names)


def test_exercise_3_refutes_in_ten_lines(lecture):
    code = lecture.solution("exercise-3")
    assert len(code.strip().splitlines()) <= 10
    exec(code, lecture.names)  # its own asserts are the claim
    traces = {name: noise[-1].item() for name, noise in lecture["noise"].items()}
    assert traces["untrained"] / traces["perfect"] == pytest.approx(4, abs=0.2)
    assert traces["3 points too low"] > 2 * traces["untrained"]


def test_numbers_in_the_prose(lecture):
    spread = lecture["chance"] @ lecture["change"] ** 2
    assert spread[0] / spread.sum() == pytest.approx(
        0.5, abs=0.03
    )  # half of the variance: the first token
    assert lecture["first"][0] == pytest.approx(2.19, abs=5e-3)
    assert lecture["share"] == pytest.approx(0.28, abs=5e-3)
    assert lecture["explained"]["perfect"] == pytest.approx(1 / 3, abs=0.03)
    for key in (("nine logits", 0), ("the same, as a tree", 0), ("today's sorter", 0)):
        surplus, _, exact = lecture["found"][key]
        assert surplus / exact > 3

    assert math.degrees(math.acos(lecture["agreement"])) == pytest.approx(68, abs=0.5)
    assert lecture["bias"]["3 points too low"][0] == pytest.approx(1.5, abs=0.05)


def test_the_critic_of_256_answers_is_a_typical_one(lecture):
    """Best λ for 16 and 1,024 answers: about .48 and .95; with other seeds .35–.7 and .95–.98."""
    lambdas, best, errors = lecture["lambdas"], {16: [], 1024: []}, []
    for seed in range(12):
        critic = lecture["TabularCritic"](lecture["start"])
        lecture["fit"](critic, look_ahead=False, batches=32, seed=seed)
        errors.append(lecture["error"](critic).item())
        arguments = lecture["start"], critic, lecture["prompt"], lecture["reward"]
        swept = [
            lecture["moments"](lecture["all_advantages"](*arguments, gamma=1.0, lam=lam)[0])
            for lam in lambdas.tolist()
        ]
        bias = torch.stack([(mean - lecture["north"]).square().sum() for mean, _ in swept])
        noise = torch.stack([trace for _, trace in swept])
        for n, found in best.items():
            found.append(lambdas[(bias + noise / n).argmin()].item())
    assert lecture["error"](lecture["some"]).item() == pytest.approx(sum(errors) / 12, abs=0.02)
    assert best[16][3] == pytest.approx(0.475)
    assert best[1024][3] == pytest.approx(0.95)
    assert 0.33 < min(best[16]) < max(best[16]) < 0.72
    assert 0.94 < min(best[1024]) < max(best[1024]) < 0.99


def test_an_expert_makes_one_mistake(lecture):
    """Share of E[Σ ψ² |u|²] on the token with the longest score vector, sorter of skill 4."""
    policy, lab = lecture["sorter"](4), lecture["lab"]
    prompt, R = lecture["prompt"], lecture["R"]
    chance = lab.response_log_probs(policy, prompt)[0].exp().detach()
    lengths = lab.token_scores(policy, prompt).detach().square().sum(-1)  # |u|²: (answer, time)
    V = lab.prefix_values(policy, prompt, lecture["reward"])
    surplus = (R - chance @ R)[:, None] * lecture["mask"]
    exact = (V[:, 1:] - V[:, :-1]) * lecture["mask"]
    shares = []
    for psi in (surplus, exact):
        carried = psi**2 * lengths
        top = carried.gather(1, lengths.argmax(1)[:, None])[:, 0]
        shares.append((chance @ top / (chance @ carried.sum(1))).item())
    assert shares == pytest.approx([0.93, 0.99], abs=0.006)


def test_a_cut_taken_for_an_end():
    nothing, half = torch.zeros(1, 3), torch.full((1, 3), 0.5)
    after = torch.tensor([0.5])
    assert gae(nothing, half, nothing, gamma=1.0, lam=0.95, bootstrap=after)[0].abs().max() == 0
    wrong, _ = gae(nothing, half, torch.tensor([[0, 0, 1]]), gamma=1.0, lam=0.95)
    assert wrong[0].tolist() == pytest.approx([-0.451, -0.475, -0.5], abs=6e-4)


def test_a_map_frames_what_differs_and_nothing_else():
    rows = {"right": [1.0, -1.0, 0.5], "wrong": [1.0, 1.0, 0.4]}
    figure = draw.token_map(rows, ["0", "1", "E"], right="right", limit=2)
    assert len(figure.axes[0].patches) == 2
    plt.close(figure)


def test_answers_beside_the_widget():
    few, many = (
        Gae(critic="noise", error=0.5, answers=n).numbers["other"]["best"] for n in (4, 1024)
    )
    assert (few, many) == (0.81, 1.0)
    offset = Gae(critic="offset", error=1.0)
    assert max(offset.numbers["other"]["biases"]) < 1e-12
