"""What lecture 03 says in text and cannot assert in its own cells.

Its folded solutions run, the numbers of the exercise that is done by hand are right, and so are
those of the widget's folded answers. The cells that the solutions build on are run as they stand
in the notebook.
"""

import base64
import json
import math
import re
from pathlib import Path

import matplotlib
import pytest
import torch
from torch.nn.functional import cosine_similarity

from lectures.widgets import ClipRegion
from policy_gradients import ppo_clip

matplotlib.use("Agg")
NOTEBOOK = Path(__file__).resolve().parents[2] / "lectures" / "03_ratios_and_clipping.ipynb"
ALL_CELLS = {cell["id"]: cell for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]}
CELLS = {name: "".join(cell["source"]) for name, cell in ALL_CELLS.items()}
USED = ["setup", "puzzle-predict", "puzzle", "importance", "dropped", "surrogate", "promise"]
USED += ["six-regions", "fact-predict", "fact", "compass", "bugs"]


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


def push(probability: float, old: float, advantage: float, **knobs) -> float:
    """−∂loss/∂log π of one token that had probability `old` and has `probability` now."""
    logp = torch.tensor([[math.log(probability)]], dtype=torch.float64, requires_grad=True)
    logp_old = torch.tensor([[math.log(old)]], dtype=torch.float64)
    loss = ppo_clip(logp, logp_old, torch.tensor([[advantage]], dtype=torch.float64), **knobs)
    return -torch.autograd.grad(loss.sum(), logp)[0].item()


def test_exercise_1_by_hand():
    ppo, dapo = {"eps_low": 0.2, "eps_high": 0.2}, {"eps_low": 0.2, "eps_high": 0.28}
    for knobs, edge in ((ppo, 0.06), (dapo, 0.064)):
        assert push(edge - 1e-6, 0.05, 2.0, **knobs) > 2
        assert push(edge + 1e-6, 0.05, 2.0, **knobs) == 0
    assert push(0.05, 0.05, 2.0, **ppo) == pytest.approx(2)
    assert push(0.0005, 0.05, 2.0, **ppo) == pytest.approx(0.02)
    assert push(0.5, 0.05, -2.0, **ppo) == pytest.approx(-20)
    assert push(0.5, 0.05, -2.0, **ppo, dual_clip=3.0) == 0
    assert push(1 - 1e-9, 0.834, 2.0, **ppo) > 0  # a certain token, and still below the edge
    assert push(1 - 1e-9, 0.833, 2.0, **ppo) == 0


def test_exercise_2_stopping_insures_as_well_as_the_clip(lecture):
    exec(solution("exercise-2"), lecture)
    clip = lecture["train"](lecture["clipped"](0.2), 64)[0][-1]
    assert lecture["J"].mean() > clip.mean() - 0.1
    assert lecture["J"].mean() > lecture["many"][-1].mean() + 0.4  # the plain loss, as often


def test_exercise_3_refutes_in_ten_lines(lecture):
    code = solution("exercise-3")
    assert len(code.strip().splitlines()) <= 10
    exec(code, lecture)  # its own asserts are the claim


def test_quotient_of_logs_goes_straight_down_from_the_uniform_policy(lecture):
    uniform = torch.zeros(3, 3, requires_grad=True)
    logp = lecture["token_logp"](uniform)
    prob = logp.sum(1).exp().detach()
    for weight in (lecture["R"], lecture["R"] - prob @ lecture["R"]):
        right, quotient = (
            torch.autograd.grad((prob * weight * y.sum(1)).sum(), uniform, retain_graph=True)[0]
            for y in (logp, logp / logp.detach())
        )
        assert cosine_similarity(right.flatten(), quotient.flatten(), dim=0) < -1 + 1e-9


def test_what_the_clip_leaves_far_out_are_corrections(lecture):
    A, rho, u = (lecture[name] for name in ("A", "rho", "u"))
    wrong_way = ((A > 0) & (rho < 0.8)) | ((A < 0) & (rho > 1.2))
    north, parts = lecture["north"], {}
    for name, keep in (("corrections", wrong_way), ("inside", (rho >= 0.8) & (rho <= 1.2))):
        mean = lecture["prob_old"] @ ((keep * rho * A)[..., None] * u).sum(1)
        parts[name] = (mean @ north / north.square().sum()).item()
    assert parts["corrections"] < -0.3
    assert abs(parts["inside"]) < 0.02
    way_back = (lecture["start"] - lecture["far"]).flatten()
    clipped = lecture["panels"]["clipped"][0]
    assert cosine_similarity(clipped, way_back, dim=0) == pytest.approx(0.72, abs=0.01)


def test_rewards_tell_neither_swapped_edges_nor_a_missing_minimum(lecture):
    stuck = {k: (J[-1] < 4.5).double() for k, (J, _) in lecture["runs"].items()}
    for letter in "CF":
        error = ((stuck[letter].var() + stuck["E"].var()) / 128).sqrt()
        assert abs(stuck[letter].mean() - stuck["E"].mean()) < 3 * error
    error = ((stuck["A"].var() + stuck["E"].var()) / 128).sqrt()
    assert stuck["A"].mean() - stuck["E"].mean() > 3 * error


def test_dead_share_at_a_tiny_epsilon_jumps(lecture):
    dead = lecture["seen"][0.01]["dead"][1:]
    assert 0.05 < dead.min() < 0.07
    assert 0.45 < dead.max() < 0.5


def test_largest_ratio_comes_back(lecture):
    largest = lecture["seen"][0.2]["largest ρ"]
    assert largest.max() == pytest.approx(1.27, abs=5e-3)
    assert largest[64] == pytest.approx(1.23, abs=5e-3)


def test_numbers_of_the_widget_answers():
    ppo, dapo = ClipRegion(method="ppo").counts, ClipRegion(method="dapo").counts
    for counts, high, low in ((ppo, 33, 25), (dapo, 21, 25)):
        assert (counts["positive"]["above"], counts["negative"]["below"]) == (high, low)
    assert all(ppo[sign]["below"] == dapo[sign]["below"] for sign in ppo)
    tight = ClipRegion(eps_low=0.01, eps_high=0.01)
    dead = tight.counts["positive"]["above"] + tight.counts["negative"]["below"]
    assert 0.4 < dead / 256 < 0.5
    assert tight.counts["positive"]["inside"] + tight.counts["negative"]["inside"] < 10


def test_saved_widget_is_a_picture_with_the_state_to_revive_it():
    (output,) = ALL_CELLS["widget"]["outputs"]
    assert base64.b64decode("".join(output["data"]["image/png"])).startswith(b"\x89PNG")
    assert not any("widget" in kind for kind in output["data"])
    saved = output["metadata"]["policy_gradients_course"]
    assert saved["widget"] == "clip_region"
    assert [row["key"] for row in saved["state"]["methods"]] == ["ppo", "grpo", "dapo"]
    assert ClipRegion(tokens=saved["state"]["tokens"]).sentence == output["metadata"]["image/png"][
        "alt"
    ].removeprefix("ClipRegion: ")
