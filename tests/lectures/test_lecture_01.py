"""What lecture 01 says in text and cannot assert in its own cells.

Its folded solutions run, its two controls redraw the picture, and the numbers of the exercise that
is done by hand are right. The cells the solutions build on are run as they stand in the notebook.
"""

import base64

import pytest
import torch

LECTURE = "01_policy_gradient"
USED = ["setup", "puzzle-predict", "puzzle", "staircase", "objective", "score", "score-check"]
USED += ["keyboard", "slope", "stall", "push", "loophole"]


def test_exercise_1_by_hand():
    p, u, reward = torch.tensor([0.8, 0.2]), torch.tensor([0.2, -0.8]), torch.tensor([1.0, 3.0])
    mean = (p * reward * u).sum()
    assert mean == pytest.approx(-0.32)
    assert (p * (reward * u) ** 2).sum() - mean**2 == pytest.approx(1.0816)
    assert (reward - 2.6) * u == pytest.approx(torch.tensor([-0.32, -0.32]))
    assert (p * reward).sum() == pytest.approx(1.4)


def test_exercise_2_the_size_of_the_nudge_decides(lecture):
    exec(lecture.solution("exercise-2"), lecture.names)
    errors = lecture["errors"]
    assert 3 < errors["nudge by 0.5"] / errors["[PG-5], R − 0"] < 4.5  # "three to four times"
    assert 75 < errors["nudge by 0.1"] / errors["[PG-5], R − 0"] < 110  # "about ninety times"
    assert 2.2 < errors["[PG-5], R − 0"] / errors["nudge by 2"] < 4  # "three times better"
    assert min(errors, key=errors.get) == "[PG-5], R − 3"


def test_exercise_2_noise_of_nudging_grows_like_the_square_of_the_weights(lecture):
    """The formula d² Var(R) / (N h²), up to the change of Var(R) within the nudges."""
    R, prob, nudge = lecture["R"], lecture["prob"], lecture["nudge"]
    variance = prob @ R**2 - (prob @ R) ** 2
    slopes = torch.stack([nudge(100, 0.1, k) for k in range(100)])
    formula = 9**2 * variance / (1800 * 0.1**2)
    assert slopes.var(0).sum() == pytest.approx(formula.item(), rel=0.2)


def test_exercise_3_refutes_in_ten_lines(lecture):
    code = lecture.solution("exercise-3")
    assert len(code.strip().splitlines()) <= 10
    exec(code, lecture.names)  # its own asserts are the claim


def test_the_controls_redraw_the_picture(lecture):
    lecture.run("push-controls")
    before = lecture["picture"].value
    lecture["strength"].value = -1
    after = lecture["picture"].value
    lecture["which"].value = "012"
    assert len({before, after, lecture["picture"].value}) == 3


def test_the_controls_leave_a_still_picture_without_a_kernel(lecture):
    (output,) = lecture.cells["push-controls"]["outputs"]
    assert base64.b64decode(output["data"]["image/png"]).startswith(b"\x89PNG")
    assert output["metadata"]["image/png"]["alt"]


def test_what_pushing_210_down_does(lecture):
    """Numbers of the second folded answer in part 6."""
    prob, R, chances = lecture["prob"], lecture["R"], lecture["chances"]
    down, up = chances(lecture["push"]("210", -5)), chances(lecture["push"]("012", 5))
    assert up @ R - prob @ R == pytest.approx(1.1, abs=0.05)
    assert down @ R - prob @ R == pytest.approx(0.26, abs=0.005)
    right = (R == 5).nonzero().item()
    assert (prob[right], down[right]) == pytest.approx((0.021, 0.004), abs=5e-4)
    change = down - prob
    assert change[R == 3].sum() == pytest.approx(-0.28, abs=0.005)
    assert change[R == 4].sum() == pytest.approx(0.29, abs=0.005)


def test_the_dashed_staircase_goes_down_first(lecture):
    """The folded question of part 2: 120, then 110, as the right tokens are pushed."""
    path = torch.unique_consecutive(lecture["drawn"][1], dim=0)[:2]
    assert path.tolist() == [[1, 2, 0], [1, 1, 0]]
    assert lecture["partial_credit"](lecture["prompt"], path).tolist() == [4, 3]


def test_a_quarter_of_the_climbs_is_still_stuck_after_twenty_times_as_many_steps(lecture):
    lecture.run("traps")
    tables, R, stuck = lecture["tables"][lecture["stuck"]], lecture["R"], lecture["stuck"]
    assert stuck.double().mean() == pytest.approx(1 / 3, abs=0.02)
    for _ in range(28_500):
        tables = tables + lecture["uphill"](tables, R)
    still = (lecture["chances"](tables) @ R < 4.5).sum() / len(stuck)
    assert still == pytest.approx(0.25, abs=0.02)


def test_pushing_a_wrong_answer_down_lifts_few_and_often_not_the_right_one(lecture):
    u = lecture["scores_of"](lecture["start"], lecture["answers"]).flatten(1)  # (answer, weight)
    rises = u @ u.T < 0  # (pushed down, other): to first order, as exp(-step u·u)
    right = lecture["hit"].argmax()
    wrong = torch.arange(27) != right
    assert rises[wrong].sum(1).double().mean() == pytest.approx(14, abs=0.5)
    assert (~rises[wrong, right]).sum() == 18


def test_the_wait_is_longer_than_the_formula_by_the_shares_in_the_text(lecture):
    shares = []
    for head_start in (0, -1, -2):
        table, wait = lecture["start"] + head_start * torch.eye(3), 0
        first = lecture["scores_of"](table, lecture["target"][None]).square().sum()
        p = start = (lecture["chances"](table) @ lecture["hit"]).item()
        while p < 0.5:
            table, wait = table + lecture["uphill"](table, lecture["hit"]), wait + 1
            p = (lecture["chances"](table) @ lecture["hit"]).item()
        shares.append(wait * start * first.item() - 1)
    assert shares == pytest.approx([0.61, 0.22, 0.06], abs=0.03)
