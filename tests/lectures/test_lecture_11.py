"""What lecture 11 says in text and cannot assert in its own cells.

Its folded solutions run, its ward holds what the folded answers say, the prices it names are those
of the probes, and the numbers that are done by hand are right.
"""

import json
import math
import re
from dataclasses import replace

import pytest
import torch

from lectures import figures_11
from lectures.widgets import BugDoctor
from policy_gradients import ALGORITHMS
from toy_models.silent_bugs import (
    BUGS,
    HEALTHY,
    IN_THE_WARD,
    POINTS,
    PROBES,
    RIGHT,
    WRONG,
    Ward,
    explain,
    mask,
    practise,
)

LECTURE = "11_silent_bugs"
USED = ["setup"]


@pytest.fixture(scope="module")
def ward():
    return Ward(seed=0)


def test_every_bug_is_named_in_the_puzzle(lecture):
    listed = lecture.printed("catalogue").splitlines()
    assert [line.split(maxsplit=1) for line in listed] == [[b.name, b.title] for b in BUGS.values()]
    assert len(BUGS) == 17
    assert "Seventeen people" in lecture.text("puzzle-text")


def test_the_table_covers_the_whole_catalogue(lecture):
    rows = lecture.printed("map-table")
    assert all(re.search(rf"^{name} +\d+%", rows, re.MULTILINE) for name in [HEALTHY, *BUGS])


def test_the_folded_diagnoses_are_those_of_the_ward(lecture, ward):
    answers = lecture.text("doctor-after")
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
    rules = lecture.text("symptoms") + lecture.text("ward-text")
    assert f"worth {POINTS} points" in rules
    assert f"a wrong diagnosis takes {WRONG}" in rules
    assert "lengths (1 point)" in rules
    assert PROBES["lengths"].price == 1
    for name in ("first_ratio", "mask", "last_ratio", "surprise"):
        assert PROBES[name].price == 2
    assert PROBES["map"].price == 4
    told = lecture.text("doctor-widget-text")
    assert "42 of 70" in told  # A 8, C 8; B, E, G the map: 6; D, F the map and surprise: 4
    assert 2 * (POINTS - 2) + 3 * (POINTS - 4) + 2 * (POINTS - 6) == 42
    assert "just the right probes has 48" in told  # counted in the tests of silent_bugs


def test_what_the_free_loss_tells(lecture, ward):
    assert "a healthy loss is about −.15. E's is −.01" in lecture.text("doctor-after")
    first = {letter: ward.probe(letter, "curves")["loss"][0] for letter in ward.patients}
    assert first["D"] == pytest.approx(-0.15, abs=0.02)
    assert first["E"] == pytest.approx(-0.01, abs=0.01)
    assert first["C"] == pytest.approx(-0.3, abs=0.03)


def test_the_last_table_has_every_row_of_the_library(lecture):
    table = "".join(lecture.cells["axes"]["outputs"][0]["data"]["text/markdown"]).splitlines()
    assert {len(line.split("|")) for line in table} == {8}
    rows = [line.split("|")[1].strip() for line in table[2:]]
    assert rows == ["*SFT* (00)", "*A2C* (07)", "*TRPO* (04)", *ALGORITHMS]
    assert [name for name, row in ALGORITHMS.items() if row.needs_critic] == ["ppo"]


@pytest.mark.slow  # 48 runs, a quarter of a minute
def test_three_bugs_look_like_improvements(lecture):
    """About .15 points over twelve seeds, as the text says; three standard errors above 0."""
    assert "by about .15 points" in lecture.text("puzzle-after")
    right = torch.tensor([practise(RIGHT, seed=seed).curves["J"][-1] for seed in range(12)])
    for name in ("padding_trained", "over_batch", "interleaved"):
        parts = BUGS[name].patch(RIGHT)
        J = torch.tensor([practise(parts, seed=seed).curves["J"][-1] for seed in range(12)])
        gain = J - right
        assert gain.mean() == pytest.approx(0.15, abs=0.06)
        assert gain.std() / 12**0.5 < 0.05


def test_exercise_1_by_hand():
    assert pytest.approx(0.32) == 0.1 * 0.5 + 0.9 * 0.3
    assert pytest.approx(0.40) == (0.5 + 0.3) / 2
    assert -math.log1p(math.exp(-4)) == pytest.approx(-0.018, abs=5e-4)
    assert -math.log1p(math.exp(-2)) == pytest.approx(-0.127, abs=5e-4)


def test_exercise_2_the_first_token_is_the_dearest(lecture):
    exec(lecture.solution("exercise-2"), lecture.names)
    assert lecture["run"].curves["J"][-1] == pytest.approx(1.9, abs=0.3)
    for position, told in enumerate((2.4, 2.9, 3.1), start=1):  # the other three

        def lost(tokens, position=position):
            valid = mask(tokens)
            valid[:, position] = False
            return valid

        J = [practise(replace(RIGHT, mask=lost), seed=seed).curves["J"][-1] for seed in range(2)]
        assert sum(J) / 2 == pytest.approx(told, abs=0.25)


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
