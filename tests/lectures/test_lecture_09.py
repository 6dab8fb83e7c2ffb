"""What lecture 09 says in text and cannot assert in its own cells.

Its folded solutions run, the numbers of the exercise that is done by hand are right, and so are
those of the widget's folded answers. The cells that the solutions build on are run as they stand
in the notebook.
"""

import itertools
import math

import pytest
import torch

import policy_gradients as pg
from lectures.widgets import LengthBias

LECTURE = "09_loss_aggregation_and_length_bias"
USED = ["setup", "talker", "puzzle-predict", "puzzle", "tree", "cosines", "sign", "sharing"]
USED += ["batch", "accumulate", "treatments", "truncated", "lengths-predict", "lengths", "bugs"]


def test_the_start_of_the_talker(lecture):
    rate, _, _, mean = lecture["watch"](lecture["start"][None])[:, 0].tolist()
    assert (rate, mean) == (pytest.approx(0.31, abs=5e-3), pytest.approx(21, abs=0.2))
    assert torch.tensor(-3.0).sigmoid() == pytest.approx(0.047, abs=5e-4)
    later = lecture["watch"](lecture["longish"][None])[:, 0]
    assert later[0] == pytest.approx(0.5)
    assert lecture["chance"] @ (1 - lecture["ended"]) == pytest.approx(0.18, abs=5e-3)


def test_exercise_1_by_hand():
    x = torch.zeros(2, 10)
    x[0, :5], x[1] = torch.tensor([1.0, 1, 1, 1, 6]), torch.tensor([1.0] * 9 + [10])
    mask = torch.arange(10) < torch.tensor([[5], [10]])
    found = [
        pg.mean_per_sequence(x, mask),
        pg.mean_per_token(x, mask),
        pg.mean_fixed_length(x, mask, length=10),
        pg.sum_per_sequence(x, mask),
    ]
    assert [v.item() for v in found] == pytest.approx([1.95, 29 / 15, 1.45, 14.5])
    parts = [pg.mean_per_token(x[i : i + 1], mask[i : i + 1]).item() for i in range(2)]
    assert sum(parts) / 2 == pytest.approx(1.95)
    three = pg.group_centered(torch.tensor([[1.0, 0.0, 0.0]]))[0].tolist()
    assert three == pytest.approx([2 / 3, -1 / 3, -1 / 3])


def test_exercise_2_a_growing_mean_length_is_no_evidence(lecture):
    exec(lecture.solution("exercise-2"), lecture.names)
    path, fixed, tied = (trained.mean(-1) for trained in lecture["trained"].values())
    assert path[0, [0, 3]].tolist() == pytest.approx([0.047, 21.1], abs=0.05)
    assert path[40, [0, 3]].tolist() == pytest.approx([0.3, 26], abs=1)
    assert path[-1, 3] < 6
    assert (fixed[:, 3] - 21).abs().max() < 0.5
    assert (tied[:, 3] - 21.1).abs().max() < 1.2
    assert (tied[:, 1] - tied[:, 2]).abs().max() < 1e-9  # one logit, one length
    assert tied[-1, 0] > 0.9


@pytest.mark.parametrize("first", [-3.0, -0.8, 0.0, 2.0])
@pytest.mark.parametrize("stop", [-3.0, 0.0])
def test_one_stop_logit_feels_nothing_at_any_pass_rate(lecture, first, stop):
    theta = torch.tensor([first, stop, stop])
    prob, right = lecture["answer_logp"](theta).exp(), lecture["right"]
    slope = (prob / lecture["n"] * (right - prob @ right.double())) @ lecture["score"](theta)
    assert slope[2] > 1e-3
    assert slope[1] + slope[2] == pytest.approx(0, abs=1e-12)


def test_with_the_spread_a_masked_minus_one_weakens_right_answers_on_the_talker(lecture):
    """All groups of eight by their counts of right, wrong and cut answers."""
    chance, right, ended = (lecture[name] for name in ("chance", "right", "ended"))
    p = [chance @ (right * ended), chance @ ((1 - right) * ended), chance @ (1 - ended)]
    found = {}
    for name, points in (("0", [1.0, 0.0, 0.0]), ("-1", [1.0, 0.0, -1.0])):
        mean = 0.0
        for rest in itertools.product(range(8), repeat=2):
            counts = [rest[0], rest[1], 7 - sum(rest)]
            if counts[2] < 0:
                continue
            ways = math.factorial(7) / math.prod(math.factorial(c) for c in counts)
            chance_of = ways * math.prod(q**c for q, c in zip(p, counts, strict=True))
            group = [1.0, *(x for x, c in zip(points, counts, strict=True) for _ in range(c))]
            mean += chance_of * pg.group_standardized(torch.tensor([group]))[0, 0]
        found[name] = float(mean)
    assert found["0"] == pytest.approx(1.04, abs=0.01)
    assert found["-1"] == pytest.approx(0.94, abs=0.01)


def test_exercise_3_refutes_in_ten_lines(lecture):
    code = lecture.solution("exercise-3")
    assert len([line for line in code.splitlines() if line.strip()]) <= 11
    exec(code, lecture.names)  # its own asserts are the claim


def test_angles(lecture):
    pi, length, R, u, V = (lecture[name] for name in ("pi", "length", "R", "u", "V"))
    for b, degrees in ((0.0, 62), (V, 21)):
        cosine = lecture["cosine"]((pi / length * (R - b)) @ u)
        assert math.degrees(math.acos(cosine)) == pytest.approx(degrees, abs=0.6)


def test_natural_speed_is_a_covariance_never_positive():
    dice = torch.Generator().manual_seed(0)
    for _ in range(20):
        p = torch.rand(30, generator=dice).softmax(0)
        n = torch.randint(1, 100, (30,), generator=dice).double()
        covariance = (p * (n - p @ n) * (1 / n - p @ (1 / n))).sum()
        assert covariance == pytest.approx((1 - (p @ n) * (p @ (1 / n))).item())
        assert covariance <= 0


def test_all_but_e_agree_on_equal_lengths(lecture):
    equal = lecture["versions"](torch.full((4, 8), 7.0))
    for letter in "ABC":
        assert torch.allclose(equal[letter], equal["D"])
    assert torch.allclose(equal["E"], equal["D"] / 4)


def test_a_is_five_times_as_far_from_home_as_d(lecture):
    drift = {k: (path[-1, 2] - path[0, 2]).mean().item() for k, path in lecture["runs"].items()}
    assert drift["A"] / drift["D"] == pytest.approx(5, abs=1)


def test_numbers_of_the_widget_answers():
    per_sequence = LengthBias(advantages=[-1, 1, 1, -1]).weights["mean_per_sequence"]
    assert per_sequence[0] / per_sequence[3] == pytest.approx(7.5)
    right = LengthBias(advantages=[-1, -1, -1, 1]).weights["mean_per_sequence"]
    assert -right[0] / right[3] == pytest.approx(7.5)
    equal = LengthBias(lengths=[16] * 4).weights
    assert equal["mean_per_token"] == pytest.approx(equal["mean_per_sequence"])
    fixed = [4 * w for w in equal["mean_fixed_length"]]
    assert fixed == pytest.approx(equal["mean_per_sequence"])
    step = LengthBias(split=True).weights["mean_per_token"]
    trap = LengthBias(split=True, divide="own").weights["mean_per_token"]
    assert (trap[0] / step[0], trap[3] / step[3]) == pytest.approx((2.4, 0.63), abs=5e-3)
    lengths = {d: {"lengths": [8, 12, 16, d], "split": True} for d in (20, 4)}
    milder = [
        LengthBias(**lengths[20], divide=d).weights["mean_per_token"] for d in ("own", "step")
    ]
    assert 1 < milder[0][0] / milder[1][0] < 2.4
    gone = [LengthBias(**lengths[4], divide=d).weights["mean_per_token"] for d in ("own", "step")]
    assert gone[0] == pytest.approx(gone[1])


def test_the_small_drift_of_the_mean_per_token(lecture):
    moved = (lecture["seen"]["per token"][-1, 1:3] - lecture["seen"]["per token"][0, 1:3]).mean(1)
    assert moved.tolist() == pytest.approx([-1.1, 1.3], abs=0.6)


def test_weight_of_a_right_first_token(lecture):
    """Mean of 1/|y| over right answers, at the start and where the mean per sequence ends."""
    end = lecture["seen"]["per sequence"][-1]
    stop = 0.68  # the logit at which right answers have the mean length of the end
    for logit, length, weight in ((-3.0, 21.1, 0.11), (stop, end[1].mean(), 0.43)):
        theta = torch.tensor([0.0, 0.0, logit])
        chance = lecture["answer_logp"](theta).exp() * lecture["right"]
        chance = chance / chance.sum()
        assert chance @ lecture["n"] == pytest.approx(float(length), abs=0.1)
        assert chance @ (1 / lecture["n"]) == pytest.approx(weight, abs=0.006)


def test_one_stop_logit_feels_lengths_that_differ_already():
    """The policy can tell nothing, but longer answers are more often wrong: wages do not cancel."""
    n = torch.arange(1.0, 200, dtype=torch.float64)
    stop = torch.tensor(-3.0, dtype=torch.float64).sigmoid()
    chance = stop * (1 - stop) ** (n - 1)
    chance = chance / chance.sum()
    right = {"falling": 0.31 * ((20 - n) / 30).exp().clamp(max=3), "flat": 0.31 + 0 * n}
    for name, p in right.items():
        push = chance * (p - chance @ p) * (1 - n * stop)  # times the score of the stop logit
        true, paid = push.sum().item(), (push @ (1 / n) * (chance @ n)).item()
        if name == "flat":
            assert (true, paid) == pytest.approx((0, 0), abs=1e-9)
        else:
            assert paid > 3 * true > 0.3
