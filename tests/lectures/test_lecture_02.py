"""What lecture 02 says in text and cannot assert in its own cells.

Its folded solutions run, its controls redraw the picture, and the numbers worked out by hand are
right. The cells the solutions build on are run as they stand in the notebook.
"""

import pytest
import torch

from toy_models import sorting

LECTURE = "02_baselines_and_advantages"
USED = ["setup", "beginner", "puzzle-predict", "puzzle", "arms", "parabola"]


def test_exercise_1_by_hand(lecture):
    pg, one, all_right = lecture["pg"], torch.eye(4)[:1], torch.ones(1, 4)
    third = 1 / 3
    assert pg.leave_one_out(one)[0].tolist() == pytest.approx([1, -third, -third, -third])
    assert pg.group_centered(one)[0].tolist() == pytest.approx([0.75, -0.25, -0.25, -0.25])
    for ddof, lone, other in ((0, 1.732, -0.577), (1, 1.5, -0.5)):
        weights = pg.group_standardized(one, ddof=ddof, eps=0.0)[0].tolist()
        assert weights == pytest.approx([lone, other, other, other], abs=5e-4)
    assert torch.equal(pg.max_only(one), one)
    assert torch.equal(pg.max_only(all_right), all_right)
    lab, prompt, hit = lecture["lab"], lecture["prompt"], lecture["sorted_reward"]
    policy, right = lecture["at"](0), hit(prompt, lab.responses_of(lecture["at"](0)))
    chance = lab.response_log_probs(policy, prompt)[0].exp().detach() * right
    given_right = chance @ lab.scores(policy, prompt) / chance.sum()  # "it does teach": [PG-12]
    taught = lab.exact_gradient(policy, prompt, hit) / chance.sum()
    assert torch.allclose(given_right, taught)
    assert given_right.norm() > 1
    for silent in (pg.leave_one_out, pg.group_centered, pg.group_standardized):
        assert torch.equal(silent(all_right), torch.zeros(1, 4))


def test_exercise_2_a_baseline_per_weight(lecture):
    exec(lecture.solution("exercise-2"), lecture.names)  # its own asserts are the claim
    assert lecture["left"] > 0.5 * lecture["best"]  # "the gain is small"


def test_exercise_3_refutes_in_ten_lines(lecture):
    code = lecture.solution("exercise-3")
    assert len(code.strip().splitlines()) <= 10
    exec(code, lecture.names)
    assert lecture["costs"][0] / lecture["arm_variance"](0.9, (1.0, 0.0), 0.0) == pytest.approx(64)


def test_the_token_mean_of_centred_weights_is_not_zero():
    lengths, weights = torch.tensor([3.0, 1.0]), torch.tensor([1.0, -1.0])
    assert (lengths * weights).sum() / lengths.sum() == pytest.approx(0.5)


KNOWN = {  # variance of one answer with nothing, the mean and the best baseline subtracted
    ("inclusion_ordering_reward", 0): (23.24, 0.533, 0.532),
    ("inclusion_ordering_reward", 2): (17.2, 0.668, 0.389),
    ("inclusion_ordering_reward", 4): (3.67, 0.431, 0.063),
    ("sorted_reward", 1): (0.124, 0.118, 0.113),
    ("sorted_reward", 2): (0.077, 0.174, 0.064),
    ("sorted_reward", 4): (0.0012, 0.189, 0.00091),
}


@pytest.mark.parametrize(("name", "skill"), KNOWN)
def test_the_reversal_has_the_known_variances(lecture, name, skill):
    reward = getattr(sorting, name)
    found = lecture["compare"](lecture["at"](skill), reward)[:, 1].tolist()
    assert found == pytest.approx(KNOWN[name, skill], rel=0.01)


def test_a_baseline_pays_for_its_squared_distance(lecture):
    """[BL-13] for the sorter; the notebook shows it for two arms."""
    lab, prompt, policy = lecture["lab"], lecture["prompt"], lecture["at"](2)
    b = torch.linspace(-1, 2, 7)
    best, lowest = lecture["compare"](policy, lecture["sorted_reward"])[2]
    squares = lab.scores(policy, prompt).square().sum(1)
    size = lab.response_log_probs(policy, prompt)[0].exp().detach() @ squares
    found = lab.variance_trace(policy, prompt, lecture["sorted_reward"], b)
    assert torch.allclose(found, lowest + (b - best) ** 2 * size, atol=1e-9)


@pytest.mark.parametrize(("skill", "gain"), [(0, 0.024), (1, 0.048)])
def test_siblings_cost_more_than_the_mean_gains(lecture, skill, gain):
    """V gains 2 to 5 %; estimated from 16 siblings it loses, from 64 the balance just turns."""
    lab, pg, hit = lecture["lab"], lecture["pg"], lecture["sorted_reward"]
    policy = lecture["at"](skill)
    nothing, mean, _ = lecture["compare"](policy, hit)[:, 1].tolist()
    assert 1 - mean / nothing == pytest.approx(gain, abs=2e-3)
    few, many = (
        G * lab.gradient_moments(policy, lecture["prompt"], hit, pg.leave_one_out, group=G).trace
        for G in (16, 64)
    )
    assert 0.97 * nothing < many < nothing < few


def test_standardised_weights_are_bounded(lecture):
    rewards = torch.randn(2000, 8, generator=torch.Generator().manual_seed(0)) ** 5  # long tails
    for ddof, bound in ((0, 7**0.5), (1, 7 / 8**0.5)):
        largest = lecture["pg"].group_standardized(rewards, ddof=ddof, eps=0.0).abs().max()
        assert 0.95 * bound < largest < bound * (1 + 1e-9)


def test_what_the_parabola_is_said_to_show(lecture):
    _, (V, _), (best, _) = lecture["compare"](lecture["at"](2), lecture["sorted_reward"]).tolist()
    assert (best, V) == (pytest.approx(0.10, abs=0.005), pytest.approx(0.40, abs=0.006))
    assert 2.5 < (V - best) / best < 3.5


def test_where_the_widget_answers_say(lecture):
    """Green and black meet between skills 1.2 and 1.4, where b* is half-way; at 4, b* << V."""
    compare, at = lecture["compare"], lecture["at"]
    for skill, worse in ((1.2, False), (1.4, True)):
        none, mean, _ = compare(at(skill), lecture["sorted_reward"])[:, 1]
        assert bool(mean > none) == worse
    (_, none), (V, mean), (best, _) = compare(at(1.22), lecture["sorted_reward"]).tolist()
    assert mean == pytest.approx(none, rel=2e-3)
    assert pytest.approx(0.175, abs=1e-3) == V
    assert best == pytest.approx(V / 2, rel=2e-3)
    turns = [compare(at(k), lecture["sorted_reward"])[2, 0].item() for k in (0.0, 2.0, 4.0)]
    assert turns[0] < turns[1] > turns[2]
    _, (V, _), (best, _) = compare(at(4), lecture["partial_credit"]).tolist()
    assert (V, best) == (pytest.approx(4.81, abs=0.005), pytest.approx(3.65, abs=0.005))


def test_the_widget_says_what_the_lecture_computes(lecture):
    widget = lecture["parabola"]
    for kind, judge in (("binary", "sorted_reward"), ("graded", "partial_credit")):
        for skill in (0.0, 1.2, 4.0):
            widget.reward, widget.skill = kind, skill
            b, variance = lecture["compare"](lecture["at"](skill), lecture[judge]).T.tolist()
            found = widget.numbers
            assert [0, found["mean"], found["best"]] == pytest.approx(b)
            assert list(found["variance"].values())[:3] == pytest.approx(variance)


def test_the_mistakes_outvote_the_right_answers(lecture):
    """Answer 2 below the widget: 13 % of the answers hold 97 % of E‖u‖²."""
    widget = lecture["parabola"]
    widget.reward, widget.skill = "graded", 4
    wrong = [level for level in widget.numbers["levels"] if level["reward"] < 5]
    assert sum(level["answers"] for level in wrong) == pytest.approx(0.13, abs=0.005)
    assert sum(level["squares"] for level in wrong) == pytest.approx(0.97, abs=0.005)
