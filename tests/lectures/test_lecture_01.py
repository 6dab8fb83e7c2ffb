"""What lecture 01 says in text and cannot assert in its own cells.

Its folded solutions run, its two controls redraw the picture, and the numbers of the exercise that
is done by hand are right. The cells the solutions build on are run as they stand in the notebook.
"""

import json
import re
from pathlib import Path

import matplotlib
import pytest
import torch

matplotlib.use("Agg")
NOTEBOOK = Path(__file__).resolve().parents[2] / "lectures" / "01_policy_gradient.ipynb"
CELLS = {c["id"]: "".join(c["source"]) for c in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]}
USED = ["setup", "puzzle-predict", "puzzle", "staircase", "objective", "score", "score-check"]
USED += ["keyboard", "slope", "push"]


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


def test_exercise_1_by_hand():
    p, u, reward = torch.tensor([0.8, 0.2]), torch.tensor([0.2, -0.8]), torch.tensor([1.0, 3.0])
    mean = (p * reward * u).sum()
    assert mean == pytest.approx(-0.32)
    assert (p * (reward * u) ** 2).sum() - mean**2 == pytest.approx(1.0816)
    assert (reward - 2.6) * u == pytest.approx(torch.tensor([-0.32, -0.32]))
    assert (p * reward).sum() == pytest.approx(1.4)


def test_exercise_2_nudging_is_about_five_times_worse(lecture):
    exec(solution("exercise-2"), lecture)
    assert 3 < lecture["by_nudging"] / lecture["by_score"] < 9


def test_exercise_3_refutes_in_ten_lines(lecture):
    code = solution("exercise-3")
    assert len(code.strip().splitlines()) <= 10
    exec(code, lecture)  # its own asserts are the claim


def test_the_controls_redraw_the_picture(lecture):
    exec(CELLS["push-controls"], lecture)
    before = lecture["picture"].value
    lecture["weight"].value = -1
    after = lecture["picture"].value
    lecture["answer"].value = "012"
    assert len({before, after, lecture["picture"].value}) == 3
