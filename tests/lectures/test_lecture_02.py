"""What lecture 02 says in text and cannot assert in its own cells.

Its folded solutions run, its controls redraw the picture, and the numbers worked out by hand are
right. The cells the solutions build on are run as they stand in the notebook.
"""

import json
import re
from pathlib import Path

import matplotlib
import pytest
import torch

matplotlib.use("Agg")
NOTEBOOK = Path(__file__).resolve().parents[2] / "lectures" / "02_baselines_and_advantages.ipynb"
CELLS = {c["id"]: "".join(c["source"]) for c in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]}
USED = ["setup", "beginner", "puzzle-predict", "puzzle", "arms", "parabola"]


@pytest.fixture(scope="module")
def lecture():
    """The lecture's names after the cells in USED."""
    names, dtype = {}, torch.get_default_dtype()
    try:
        for cell in USED:
            exec(compile(CELLS[cell], cell, "exec"), names)
        yield names
    finally:
        torch.set_default_dtype(dtype)


def solution(exercise: str) -> str:
    """The code in the folded solution of an exercise."""
    (code,) = re.findall(r"```python\n(.*?)```", CELLS[exercise], re.S)
    return code


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
    for silent in (pg.leave_one_out, pg.group_centered, pg.group_standardized):
        assert torch.equal(silent(all_right), torch.zeros(1, 4))


def test_exercise_2_a_baseline_per_weight(lecture):
    exec(solution("exercise-2"), lecture)  # its own asserts are the claim
    assert lecture["left"] > 0.5 * lecture["best"]  # "the gain is small"


def test_exercise_3_refutes_in_ten_lines(lecture):
    code = solution("exercise-3")
    assert len(code.strip().splitlines()) <= 10
    exec(code, lecture)
    assert lecture["costs"][0] / lecture["arm_variance"](0.9, (1.0, 0.0), 0.0) == pytest.approx(64)


def test_the_token_mean_of_centred_weights_is_not_zero():
    lengths, weights = torch.tensor([3.0, 1.0]), torch.tensor([1.0, -1.0])
    assert (lengths * weights).sum() / lengths.sum() == pytest.approx(0.5)


def test_where_the_widget_answers_say(lecture):
    """Green and black meet at skill 1.2, where b* is half-way; at skill 4 b* is far below V."""
    compare, at = lecture["compare"], lecture["at"]
    (_, none), (V, mean), (best, _) = compare(at(1.22), lecture["sorted_reward"]).tolist()
    assert mean == pytest.approx(none, rel=2e-3)
    assert best == pytest.approx(V / 2, rel=2e-3)
    turns = [compare(at(k), lecture["sorted_reward"])[2, 0].item() for k in (0.0, 2.0, 4.0)]
    assert turns[0] < turns[1] > turns[2]
    _, (V, _), (best, _) = compare(at(4), lecture["partial_credit"]).tolist()
    assert (V, best) == (pytest.approx(4.81, abs=0.005), pytest.approx(3.65, abs=0.005))


def test_the_controls_redraw_the_picture(lecture):
    exec(CELLS["controls"], lecture)
    before = lecture["picture"].value
    lecture["skill"].value = 4
    after = lecture["picture"].value
    lecture["kind"].value = "partial credit"
    other = lecture["picture"].value
    lecture["own_b"].value = 5
    assert len({before, after, other, lecture["picture"].value}) == 4
