"""What lecture 11 says in text and cannot assert in its own cells.

Its folded solutions run, its ward holds what the folded answers say, the prices it names are those
of the probes, and the numbers that are done by hand are right.
"""

import json
import math
import re

import pytest
import torch

from lectures import figures_11
from lectures.widgets import BugDoctor
from toy_models.silent_bugs import (
    BUGS,
    HEALTHY,
    IN_THE_WARD,
    POINTS,
    PROBES,
    WRONG,
    Ward,
    explain,
)

LECTURE = "11_silent_bugs"
USED = ["setup"]


@pytest.fixture(scope="module")
def ward():
    return Ward(seed=0)


def text(lecture, cell: str) -> str:
    return "".join(lecture.cells[cell]["source"])


def printed(lecture, cell: str) -> str:
    outputs = lecture.cells[cell]["outputs"]
    return "".join("".join(o.get("text", "")) for o in outputs)


def test_every_bug_is_named_in_the_puzzle(lecture):
    listed = text(lecture, "puzzle-text").lower()
    words = {"end token", "padding", "one position out", "sampling only", "one side", "wrong order"}
    words |= {"across prompts", "over the batch", "earlier batch", "recomputed", "graph", "bf16"}
    words |= {"kl term", "entropy bonus", "own tokens", "always exceeds", "padding counted"}
    assert len(BUGS) == 17 == len(words)
    assert {word for word in words if word not in listed} == set()


def test_the_table_covers_the_whole_catalogue(lecture):
    rows = printed(lecture, "map-table")
    assert all(re.search(rf"^{name} +\d+%", rows, re.MULTILINE) for name in [HEALTHY, *BUGS])


def test_the_folded_diagnoses_are_those_of_the_ward(lecture, ward):
    answers = text(lecture, "doctor-after")
    told = dict(re.findall(r"\b([A-G]): ([a-z ]+)", answers))
    means = {
        "stale_cache": "stale cache",
        "padding_trained": "padding is trained",
        "end_dropped": "end token ",
        "healthy": "healthy",
        "recomputed": "recomputed ",
        "cold_sampler": "temperature in sampling only ",
        "own_counts": "micro",
    }
    assert set(means) == set(IN_THE_WARD)
    for letter, name in ward._names.items():
        assert told[letter].startswith(means[name].strip()), letter


def test_the_saved_widget_is_a_picture_with_the_state_to_revive_it(lecture):
    (output,) = lecture.cells["widget"]["outputs"]
    assert not any("widget" in kind for kind in output["data"])
    saved = output["metadata"]["policy_gradients_course"]
    assert saved == {"widget": "bug_doctor", "state": json.loads(json.dumps(BugDoctor().state))}


def test_widget_and_cells_have_the_same_patients(ward):
    truths = [one["words"] for one in BugDoctor().chart["patients"]]
    assert truths == [explain(name) for name in ward._names.values()]


def test_prices_in_the_text(lecture):
    rules = text(lecture, "symptoms") + text(lecture, "ward-text")
    assert f"worth {POINTS} points" in rules
    assert f"a wrong diagnosis takes {WRONG}" in rules
    assert "lengths (1 point)" in rules
    assert PROBES["lengths"].price == 1
    for name in ("first_ratio", "mask", "last_ratio", "surprise"):
        assert PROBES[name].price == 2
    assert PROBES["map"].price == 4


def test_exercise_1_by_hand():
    assert pytest.approx(0.32) == 0.1 * 0.5 + 0.9 * 0.3
    assert pytest.approx(0.40) == (0.5 + 0.3) / 2
    assert -math.log1p(math.exp(-4)) == pytest.approx(-0.018, abs=5e-4)
    assert -math.log1p(math.exp(-2)) == pytest.approx(-0.127, abs=5e-4)


def test_exercise_2_the_first_token_is_the_dearest(lecture):
    exec(lecture.solution("exercise-2"), lecture.names)
    assert lecture["run"].curves["J"][-1] == pytest.approx(2, abs=0.5)


def test_exercise_3_refutes_in_ten_lines(lecture):
    code = lecture.solution("exercise-3")
    assert len(code.strip().splitlines()) <= 10
    exec(code, lecture.names)  # its own asserts are the claim
    assert lecture["ratio"].max() == pytest.approx(997, abs=1)


def test_a_group_advantage_is_bounded():
    """The symptom table: with ddof 1 at most (G − 1)/√G."""
    for G in (4, 8, 16):
        rewards = torch.zeros(1, G, dtype=torch.float64)
        rewards[0, 0] = 1
        spread = (rewards - rewards.mean()) / rewards.std()
        assert spread.max().item() == pytest.approx((G - 1) / math.sqrt(G))


@pytest.mark.parametrize("name", sorted(PROBES))
def test_what_a_probe_sees_can_be_drawn(lecture, ward, name):
    seen = ward.probe("A", name)
    figure = figures_11.evidence({name: json.loads(json.dumps(seen))})
    assert figure.axes[0].get_title(loc="left") == name.replace("_", " ")
    lecture["draw"].plt.close(figure)
