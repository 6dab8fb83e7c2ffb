"""The KL-estimator widget: the facts of lecture 05 at their printed digits, and what is refused."""

import itertools
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from lectures.widgets import KLEstimators
from lectures.widgets.kl_estimators import PLACES, default_tables, kind

SETTINGS = Path(__file__).parents[2] / "toy_models" / "settings.json"
TABLES = default_tables()


def numbers(**state):
    return KLEstimators(**state).numbers


def found(n, name):
    return [round(value, 3) + 0.0 for value in n[name]]


# --- value and gradient, at the printed digits --------------------------------------------------


def test_the_independent_positions_are_those_of_the_exact_facts():
    settings = json.loads(SETTINGS.read_text("utf-8"))
    ours = TABLES["independent"]
    for name in ("policy", "reference"):
        np.testing.assert_allclose(ours[name], settings[f"kl_estimators_{name}"], atol=6e-5)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("loss_token", [0.0, 1.0, 0.988]),
        ("loss_response", [0.0, 1.0, 0.988]),
        ("reward_response", [1.0, 0.039, 0.012]),
    ],
)
def test_projections_of_six_placements_two_of_them_right(place, expected):
    n = numbers(place=place)
    assert round(n["kl"], 3) == 0.052
    assert found(n, "along") == expected
    assert [kind(n, i) for i in range(3)].count("exact") == 1


def test_as_a_loss_k3_is_the_gradient_of_the_other_direction():
    n = numbers(place="loss_response")
    assert kind(n, 2) == "forward"
    assert n["gap_forward"][2] == 0 < n["gap"][2]


@pytest.mark.parametrize(
    ("place", "k", "expected"),
    [
        ("loss_token", 1, 0.864),
        ("loss_token", 2, 0.919),
        ("reward_token", 0, 0.864),
        ("loss_response", 1, 1.0),
        ("reward_response", 0, 1.0),
        ("reward_to_go", 0, 1.0),
    ],
)
def test_on_the_tree_per_token_is_not_the_gradient_of_the_kl(place, k, expected):
    n = numbers(policy="tree", place=place)
    assert round(n["cosine"][k], 3) == expected
    assert kind(n, k) == ("exact" if expected == 1 else "biased")


def test_the_same_per_token_forms_are_exact_on_independent_positions():
    assert kind(numbers(place="loss_token"), 1) == "exact"
    assert kind(numbers(place="reward_token"), 0) == "exact"


@pytest.mark.parametrize("policy", ["independent", "tree", "certain"])
@pytest.mark.parametrize("distance", [0.1, 1.0, 2.5, 4.0])
def test_sequence_forms_are_exact_everywhere_and_k1_in_the_loss_is_nothing(policy, distance):
    state = {"policy": policy, "distance": distance}
    assert kind(numbers(place="loss_response", **state), 1) == "exact"
    assert kind(numbers(place="loss_response", **state), 2) == "forward"
    for place in ("reward_response", "reward_to_go"):
        assert kind(numbers(place=place, **state), 0) == "exact"
    for place in ("loss_token", "loss_response"):
        assert kind(numbers(place=place, **state), 0) == "zero"


def test_far_away_k3_spreads_seventy_times_as_much_as_k1():
    n = numbers(policy="certain", distance=2.0)  # p = (.999, .001) against one half
    assert [round(n["spread"][0], 3), round(n["spread"][2], 1)] == [0.218, 15.6]


def test_near_the_reference_k3_spreads_least():
    n = numbers(distance=0.2)
    assert n["spread"][2] < n["spread"][0] / 10


@pytest.mark.parametrize("policy", ["independent", "tree", "certain"])
@pytest.mark.parametrize("place", ["loss_token", "loss_response"])
@pytest.mark.parametrize("distance", [0.3, 1.0, 3.0])
def test_k1_and_k3_are_unbiased_and_the_other_sign_of_l_is_not(policy, place, distance):
    widget = KLEstimators(policy=policy, place=place, distance=distance)
    n = widget.numbers
    assert n["mean"][0] == pytest.approx(n["kl"], rel=1e-9)
    assert n["mean"][2] == pytest.approx(n["kl"], rel=1e-9)
    # by hand: ℓ with the other sign averages to −KL, and its k3 to χ² − KL
    p, q = (_by_hand(widget, name) for name in ("policy", "reference"))
    ratio = np.log(p) - np.log(q)
    assert n["kl"] == pytest.approx(p @ ratio, rel=1e-9)
    assert p @ -ratio == pytest.approx(-n["kl"], rel=1e-9)
    swapped = p @ (np.expm1(ratio) - ratio)
    assert swapped == pytest.approx(p @ (p / q) - 1 - n["kl"], rel=1e-9)
    assert abs(swapped - n["kl"]) > 1e-3 * n["kl"]


def _by_hand(widget, name):
    """Probability of every response, by multiplying softmax rows in plain numpy."""
    tables = {key: np.array(rows) for key, rows in widget.tables[widget.policy].items()}
    distance = widget.distance if name == "policy" else 0.0
    table = tables["reference"] + distance * (tables["policy"] - tables["reference"])
    probs = np.exp(table) / np.exp(table).sum(-1, keepdims=True)
    vocab = table.shape[1]
    length = 3 if len(table) > 1 else 1
    result = []
    for tokens in itertools.product(range(vocab), repeat=length):
        row, p = 0, 1.0
        for t, token in enumerate(tokens):
            p *= probs[row][token]
            row = vocab * row + token + 1 if widget.policy == "tree" else t + 1
        result.append(p)
    return np.array(result)


def test_the_gradients_agree_with_finite_differences_of_the_tables():
    """∇KL itself, through the tables that a learner can set."""
    step = 1e-5
    tables = json.loads(json.dumps(TABLES))
    slopes = []
    for row, token in itertools.product(range(13), range(3)):
        ends = []
        for change in (-step, step):
            moved = json.loads(json.dumps(tables))
            moved["tree"]["policy"][row][token] += change
            widget = KLEstimators(policy="tree", tables=moved)
            p, q = (_by_hand(widget, name) for name in ("policy", "reference"))
            ends.append(p @ np.log(p / q))
        slopes.append((ends[1] - ends[0]) / (2 * step))
    assert np.linalg.norm(slopes) == pytest.approx(numbers(policy="tree")["slope"], rel=1e-6)


# --- the sentence -------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["independent", "tree", "certain"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("distance", [0.05, 1.0, 4.0])
def test_the_sentence_names_what_is_right_and_only_that(policy, place, distance):
    widget = KLEstimators(policy=policy, place=place, distance=distance)
    n, sentence = widget.numbers, widget.sentence
    exact = [f"k{i + 1}" for i in range(3) if kind(n, i) == "exact"]
    assert re.findall(r"Here (.*?) alone gives the gradient of the KL\.", sentence) == exact
    assert ("none of them gives the gradient of the KL" in sentence) == (not exact)
    if not exact:  # the reason that the sentence gives is true
        assert policy == "tree"
        assert place in ("loss_token", "reward_token")
    for i in range(3):
        raises = f"k{i + 1} raises the KL" in sentence
        assert raises == (n["cosine"][i] <= -0.05 and kind(n, i) != "forward")
    assert "nan" not in sentence


@pytest.mark.parametrize(("distance", "k"), [(1.25, 2), (1.3, 2), (1.8, 1), (1.85, 1), (1.9, 1)])
def test_at_right_angles_a_gradient_neither_lowers_nor_raises_the_kl(distance, k):
    widget = KLEstimators(policy="independent", place="reward_token", distance=distance)
    assert abs(widget.numbers["cosine"][k]) < 0.05
    assert kind(widget.numbers, k) == "across"
    words = f"k{k + 1} stands almost at right angles to ∇KL: it projects to"
    assert words in widget.sentence
    assert f"k{k + 1} raises" not in widget.sentence


def test_a_projection_is_no_length():
    widget = KLEstimators(policy="tree", place="loss_token")
    projection, cosine = (widget.numbers[key][1] for key in ("along", "cosine"))
    assert f"k2 projects to {projection:.3f} × ∇KL (cosine {cosine:.3f})" in widget.sentence
    assert "none of them gives the gradient of the KL of whole responses" in widget.sentence
    assert "gives 0" not in widget.sentence
    away = KLEstimators(policy="independent", distance=4.0, place="reward_to_go").sentence
    assert re.search(r"raises the KL: it projects to −[\d.]+ × ∇KL", away)


@pytest.mark.parametrize("distance", [0.3, 1.0, 3.0])
def test_on_independent_tokens_per_token_and_sequence_give_one_gradient_in_the_loss(distance):
    """And the note says so there, and only there."""
    words = "per token and sequence give the same gradient on average"
    both = [KLEstimators(place=p, distance=distance) for p in ("loss_token", "loss_response")]
    for key in ("along", "across"):
        assert both[0].numbers[key] == pytest.approx(both[1].numbers[key], abs=1e-9)
    assert all(words in widget.note for widget in both)
    paid = [numbers(place=p, distance=distance) for p in ("reward_token", "reward_response")]
    assert paid[0]["along"][1] != pytest.approx(paid[1]["along"][1], abs=1e-3)
    assert words not in KLEstimators(place="reward_token").note
    assert words not in KLEstimators(policy="tree").note


def test_a_small_share_is_not_printed_like_the_kl_and_a_large_one_not_to_a_thousandth():
    assert re.search(r"k2 \(±[\d.]+\) averages 0\.5 % less", KLEstimators().sentence)
    rare = KLEstimators(policy="certain", distance=2.0, place="reward_response").sentence
    for share in re.findall(r"projects to −?([\d.]+) × ∇KL", rare):
        assert len(share.replace(".", "").lstrip("0")) <= 3 or float(share) < 10


def test_the_note_says_what_upwards_means_and_who_is_sampled():
    assert "each k in a direction of its own. Responses are sampled from π." in KLEstimators().note


def test_the_sentence_at_the_reference():
    for policy in ("independent", "tree", "certain"):
        widget = KLEstimators(policy=policy, distance=0.0)
        assert widget.numbers["kl"] == 0
        assert "every gradient are 0" in widget.sentence


# --- readable -----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["independent", "tree", "certain"])
@pytest.mark.parametrize("place", ["loss_token", "loss_response"])
def test_the_value_axis_is_round_and_shows_k1_and_the_kl(policy, place):
    for distance in np.arange(0.05, 4.01, 0.25):
        n = numbers(policy=policy, place=place, distance=float(distance))
        low, high, step = n["axis"]
        power = 10 ** math.floor(math.log10(step) + 1e-9)
        assert round(step / power, 6) in (1, 2, 5)
        assert low / step == pytest.approx(round(low / step))
        assert low <= min(0, n["kl"] - n["spread"][0]) + 1e-12
        assert high >= n["kl"] + n["spread"][0] - 1e-12
        assert high <= 3 * (n["kl"] + n["spread"][0]) + step


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("tree"), "keys independent, tree, certain"),
        (lambda t: t["tree"].pop("policy"), r'"reference" and "policy"'),
        (lambda t: t["tree"]["policy"].pop(), "must be the same"),
        (lambda t: (t["tree"]["policy"].pop(), t["tree"]["reference"].pop()), "12 rows of 3"),
        (lambda t: t["tree"]["policy"][0].pop(), "must be rows of logits"),
        (lambda t: t["certain"].update(policy=[[1.0]], reference=[[0.0]]), "at least 2 tokens"),
        (lambda t: t["tree"]["policy"].__setitem__(0, [float("nan"), 0, 0]), "not between"),
        (lambda t: t["tree"]["policy"].__setitem__(0, [21.0, 0, 0]), "−20 and 20"),
        (lambda t: t["tree"]["policy"].__setitem__(0, ["high", 0, 0]), "must be rows of logits"),
        (
            lambda t: t["independent"].update(policy=[[0.0] * 4] * 6, reference=[[1.0] * 4] * 6),
            "at most 1000 responses",
        ),
    ],
)
def test_tables_that_make_no_sense_are_refused_and_change_nothing(change, message):
    widget = KLEstimators()
    before = widget.state
    tables = json.loads(json.dumps(TABLES))
    change(tables)
    with pytest.raises(ValueError, match=message):
        widget.tables = tables
    assert widget.state == before


def test_own_tables_as_arrays_are_used():
    """Two tokens at two positions: KL by hand."""
    tables = {**TABLES, "independent": {"reference": np.zeros((2, 2)), "policy": np.eye(2)}}
    widget = KLEstimators(tables=tables)
    p = math.e / (1 + math.e)
    expected = 2 * (p * math.log(2 * p) + (1 - p) * math.log(2 * (1 - p)))
    assert widget.numbers["kl"] == pytest.approx(expected)
    json.dumps(widget.state)
