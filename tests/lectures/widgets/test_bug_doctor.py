"""The bug doctor: the ward's rules, a record of today's code, nothing told before it is paid."""

import copy
import json
from pathlib import Path

import pytest

from lectures.widgets import BugDoctor, base
from lectures.widgets.bug_doctor import (
    ORDERED,
    PATIENTS,
    RECORD,
    TITLES,
    _read,
    _rounded,
    record_of,
)
from lectures.widgets.still import fixed
from toy_models.silent_bugs import (
    BUGS,
    HEALTHY,
    IN_THE_WARD,
    POINTS,
    PROBES,
    RIGHT,
    TELLABLE,
    Ward,
    practise,
)

GALLERY = Path(__file__).parents[3] / "lectures" / "widget_gallery.ipynb"
STAGE = (Path(__file__).parent / "stage.js").read_text("utf-8")


@pytest.fixture(scope="module")
def ward():
    return Ward(seed=0)


def test_the_menu_holds_the_whole_catalogue(ward):
    assert list(TITLES) == [HEALTHY, *BUGS]
    assert len(set(TITLES.values())) == len(TITLES)
    assert {name: probe.price for name, probe in PROBES.items() if probe.price} == {
        name: probe.price for name, probe in ORDERED.items()
    }
    assert list(PATIENTS) == ward.patients


def test_the_committed_record_is_today_s_ward(ward):
    """Patients and titles to the letter; curves as far as another processor allows."""
    kept, made = json.loads(RECORD.read_text("utf-8")), record_of(ward)
    assert kept["titles"] == made["titles"]
    assert list(kept["titles"]) == list(made["titles"])
    assert kept["probes"] == made["probes"]
    for old, new in zip(kept["patients"], made["patients"], strict=True):
        assert (old["truth"], old["words"]) == (new["truth"], new["words"])
        assert old.keys() == new.keys()
        assert old["curves"]["reward"][:3] == pytest.approx(new["curves"]["reward"][:3], abs=0.1)
        ones = (old["first_ratio"]["exactly_one"], new["first_ratio"]["exactly_one"])
        assert ones[0] == pytest.approx(ones[1], abs=0.1)
        assert old["curves"]["reward"][-1] == pytest.approx(new["curves"]["reward"][-1], abs=0.5)
    assert len(RECORD.read_bytes()) < 30_000


def test_a_clip_that_always_acts_does_not_look_like_a_dead_gradient():
    for name, told in (("always_clipped", "0.0001"), ("attached", "0.0000")):
        run = practise(BUGS[name].patch(RIGHT), steps=8)
        gradient = _rounded(PROBES["curves"].see(run))["gradient"]
        assert {_read("gradient", length) for length in gradient} == {told}


def test_the_points_are_those_of_the_ward(ward):
    doctor, names = BugDoctor(), ward._names
    play = copy.deepcopy(ward)  # nothing is spent there yet
    moves = [("A", ["first_ratio"], []), ("B", ["map", "samples"], ["own_counts"])]
    moves += [("C", [], []), ("D", ["map", "mask", "surprise"], ["attached", "kl_sign"])]
    for patient, probes, wrong in moves:
        doctor.patient = patient
        for probe in probes:
            play.probe(patient, probe)
            doctor.probe = probe
            doctor.preset("order")
            doctor.preset("order")  # the second time is free
        for name in [*wrong, names[patient]]:
            play.diagnose(patient, name)
            doctor.diagnosis = name
            doctor.preset("diagnose")
            assert doctor.diagnosis == "none"
    assert doctor.points == play.points == {"A": 8, "B": 1, "C": 10, "D": 0}
    assert doctor.numbers["total"] == 19
    doctor.preset("again")
    assert (doctor.points, doctor.numbers["spent"]) == ({}, [0] * 7)


def test_after_the_diagnosis_nothing_can_be_lost():
    doctor = BugDoctor(patient="C")
    doctor.diagnosis = "end_dropped"
    doctor.preset("diagnose")
    doctor.probe = "map"
    doctor.preset("order")
    doctor.diagnosis = "attached"
    doctor.preset("diagnose")
    assert doctor.points == {"C": POINTS}


def test_another_ward_can_be_drawn():
    other = Ward(seed=1)
    doctor = BugDoctor(ward=other)
    truths = [list(TITLES)[one["truth"]] for one in doctor.chart["patients"]]
    assert truths == list(other._names.values())
    assert set(truths) <= {HEALTHY, *TELLABLE}
    assert truths != [list(TITLES)[one["truth"]] for one in BugDoctor().chart["patients"]]


def test_what_it_refuses():
    with pytest.raises(TypeError, match="takes no record"):
        BugDoctor(record="")
    with pytest.raises(TypeError, match=r"takes a Ward, as in BugDoctor\(Ward\(seed=1\)\), got 1"):
        BugDoctor(1)
    doctor = BugDoctor()
    before = doctor.state
    for name, value, message in (
        ("record", "", "record comes from the ward"),
        ("ordered", [["mask"]], "ordered holds 1 lists; expected 7"),
        ("ordered", [["x-ray"], [], [], [], [], [], []], "ordered holds 'x-ray'"),
        ("ordered", [["mask", "mask"], [], [], [], [], [], []], "only once"),
        ("tried", [["tired"], [], [], [], [], [], []], "tried holds 'tired'"),
        ("tried", 3, "tried is 3; expected a list"),
    ):
        with pytest.raises(base.InvalidValueError, match=message):
            setattr(doctor, name, value)
    assert doctor.state == before


def test_the_evidence_is_that_of_the_bugs():
    """What the lecture's folded answers say can be read off the record."""
    of = {list(TITLES)[one["truth"]]: one for one in BugDoctor().chart["patients"]}
    assert set(of) == set(IN_THE_WARD)
    for name, one in of.items():
        assert (one["first_ratio"]["exactly_one"] < 0.5) == (name == "stale_cache")
        assert (one["last_ratio"]["exactly_one"] == 1) == (name == "recomputed")
        pairs = [
            (counts, "E" in row["tokens"][:t])
            for row in one["mask"]["rows"]
            for t, (token, counts) in enumerate(zip(row["tokens"], row["mask"], strict=True))
            if token == "E"
        ]
        assert (min(c for c, padding in pairs if not padding) == 0) == (name == "end_dropped")
        assert (max(c for c, padding in pairs if padding) == 1) == (name == "padding_trained")
        entropy, surprise = (sum(one["surprise"][k][20:]) / 20 for k in ("entropy", "surprise"))
        assert (entropy - surprise > 0.4) == (name == "cold_sampler")
        factors = [f for row in one["map"]["rows"] for f in row["factors"] if f not in (None, "+")]
        clean = all(abs(f - 1) < 0.05 for f in factors)
        assert clean == (name in (HEALTHY, "cold_sampler"))


def test_the_gallery_s_answers_are_its_numbers(committed):
    committed(GALLERY)
    cells = {cell["id"]: cell for cell in json.loads(GALLERY.read_text("utf-8"))["cells"]}
    words = "".join(cells["bug-doctor-text"]["source"])
    of = dict(zip(PATIENTS, BugDoctor().chart["patients"], strict=True))
    end = {letter: one["curves"]["reward"][-1] for letter, one in of.items()}
    assert of["D"]["truth"] == list(TITLES).index(HEALTHY)
    assert f"ends at {end['D']:.1f} of 4 points" in words
    higher = [letter for letter in PATIENTS if end[letter] > end["D"]]
    assert higher == ["B", "E", "F", "G"]
    assert "B, E, F and G, end higher" in words
    entropy, surprise = (of["F"]["surprise"][k][-1] for k in ("entropy", "surprise"))
    assert f"({fixed(surprise, 2)} nats)" in words
    assert f"entropy ({fixed(entropy, 2)})" in words


@pytest.mark.browser
def test_a_dead_gradient_and_small_factors_can_be_drawn(page):
    """Ward 1 has a run without any gradient; a small turned factor is not written as 0."""
    ward = Ward(seed=1)
    patient = next(letter for letter, name in ward._names.items() if name == "attached")
    page.set_content("<body></body>")
    page.evaluate(STAGE, base.module("bug_doctor"))
    page.evaluate("(state) => show(state)", BugDoctor(ward=ward, patient=patient).state)
    assert "NaN" not in page.evaluate("() => root.innerHTML")
    stale = BugDoctor(patient="A", ordered=[["map"], *[[]] * 6])
    page.evaluate("(state) => show(state)", stale.state)
    label = page.evaluate("() => root.querySelector('svg').getAttribute('aria-label')")
    assert "−.03" in label
    assert "−0.0" not in label.split("Gradient map")[1]


@pytest.mark.browser
def test_nothing_is_told_before_it_is_paid_and_all_by_keyboard(page):
    page.set_content("<body></body>")
    page.evaluate(STAGE, base.module("bug_doctor"))
    page.evaluate("(state) => show(state)", BugDoctor(patient="A", probe="mask").state)
    label = "() => root.querySelector('svg').getAttribute('aria-label')"
    told = page.evaluate(label)
    assert "not ordered: Mask" in told
    assert "exactly 1" not in told
    page.get_by_role("combobox", name="Probe").focus()
    page.keyboard.press("Home")  # samples
    page.get_by_role("button", name="Order the probe").focus()
    page.keyboard.press("Enter")
    assert "Samples: 102 to" in page.evaluate(label)
    assert "1 point spent (samples)" in page.evaluate("() => seen()[1]")
    page.get_by_role("combobox", name="Diagnosis").focus()
    page.keyboard.press("End")  # the last of the catalogue
    page.get_by_role("button", name="Diagnose").focus()
    page.keyboard.press("Enter")
    said = page.evaluate("() => seen()[1]")
    assert "5 points spent" in said
    assert f"It is not: {TITLES['always_clipped']}" in said
    page.wait_for_function("() => model.state.tried[0].length > 0")
    assert page.evaluate("() => model.state.tried[0]") == ["always_clipped"]
