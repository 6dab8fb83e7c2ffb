"""The preference-pairs widget: the same runs by the toy's trainer, limits, what it refuses."""

import itertools
import math
from functools import partial

import pytest
import torch

from lectures.widgets import PreferencePairs
from lectures.widgets.preference_pairs import CASES, MOST, descent
from policy_gradients.preferences import dpo, ipo
from toy_models.exact import response_log_probs
from toy_models.policies import TabularPolicy
from toy_models.preferences import TiedPolicy, learn_from_pairs, written_pairs

close = pytest.approx
PROMPT = torch.tensor([0])


def trained(pairs: str, loss, learning_rate: float, steps: int):
    """Probabilities and history of the same run by `toy_models.preferences`."""
    shared = pairs == "shared"
    policy = (TiedPolicy(2, 2) if shared else TabularPolicy(4, 1)).double()
    tokens = [[0, 0], [0, 1], [1, 0], [1, 1]] if shared else [[0], [1], [2], [3]]
    with torch.no_grad():
        policy.table.zero_()
    data = written_pairs(PROMPT, [(tokens[won], tokens[lost]) for won, lost in CASES[pairs].pairs])
    history = learn_from_pairs(
        policy, policy, data, loss, steps=steps, learning_rate=learning_rate,
        optimizer=torch.optim.SGD, record_every=steps,
    )  # fmt: skip
    return response_log_probs(policy, PROMPT[None])[0].exp().tolist(), history


@pytest.mark.parametrize("pairs", CASES)
@pytest.mark.parametrize("loss", ["dpo", "ipo"])
def test_the_run_is_that_of_the_toy_s_trainer(pairs, loss):
    rule, rate = (partial(dpo, beta=0.3), 1.0) if loss == "dpo" else (partial(ipo, tau=0.3), 0.02)
    probs, history = trained(pairs, rule, rate, 20)
    found = PreferencePairs(pairs=pairs, loss=loss, strength=0.3, steps=20).numbers
    assert found["probs"] == close(probs, rel=1e-6)
    for key in ("chosen", "rejected", "loss"):
        assert found[key] == close([history[key][0], history[key][-1]], rel=1e-6), key


def test_overlapping_pairs_sink_an_answer_that_was_chosen():
    made = PreferencePairs(pairs="overlap", loss="dpo", strength=0.5, steps=200)
    a, b, c, d = made.numbers["probs"]
    assert c == close(0.996, abs=5e-4)
    assert a == close(0.0019, abs=5e-5)
    assert b == close(0.000004, abs=5e-7)
    assert a == close(d)  # its two pushes cancel: as if nobody had compared it
    assert "Both fell: chosen answers from −1.39 to −3.14" in made.sentence
    assert "The probability went to c (chosen once)" in made.sentence


def test_one_pair_on_free_logits_never_lowers_the_chosen_answer():
    for strength in (0.05, 0.5, 1):
        stands = descent("one", "dpo", strength)
        for before, after in itertools.pairwise(stands):
            assert after.chosen > before.chosen
            assert after.rejected < before.rejected
            assert after.loss < before.loss


@pytest.mark.parametrize("loss", ["dpo", "ipo"])
def test_with_shared_letters_one_pair_lowers_both_at_every_step(loss):
    stands = descent("shared", loss, 0.5)
    assert all(stand.chosen < math.log(0.25) for stand in stands[1:])
    assert all(max(stand.probs) == stand.probs[3] for stand in stands[1:])
    assert "went to bb (in no pair)" in PreferencePairs(pairs="shared", loss=loss).sentence


def test_dpo_has_no_end_where_the_labels_agree_and_one_where_they_do_not():
    for pairs in ("one", "overlap", "shared"):
        assert PreferencePairs(pairs=pairs).numbers["end"] is None
        gaps = [stand.gap for stand in descent(pairs, "dpo", 0.5)]
        assert gaps[400] > gaps[200] + 1 > gaps[100] + 2
    made = PreferencePairs(pairs="split", strength=0.5, steps=MOST).numbers
    assert made["gap"] == close(made["end"], abs=1e-9)
    assert made["probs"][0] / made["probs"][1] == close(2 ** (1 / 0.5))


@pytest.mark.parametrize("pairs", CASES)
@pytest.mark.parametrize("tau", [0.1, 0.5, 1])
def test_ipo_ends_where_it_says(pairs, tau):
    made = PreferencePairs(pairs=pairs, loss="ipo", strength=tau, steps=MOST).numbers
    assert made["gap"] == close(made["end"], abs=2e-3 / tau)


def test_a_cycle_moves_nothing():
    for loss in ("dpo", "ipo"):
        made = PreferencePairs(pairs="cycle", loss=loss, steps=MOST)
        assert made.numbers["probs"] == close([0.25] * 4, abs=1e-12)
        assert "Nothing moves" in made.sentence


@pytest.mark.parametrize("loss", ["dpo", "ipo"])
def test_the_sentence_is_right_that_rejected_answers_fall(loss):
    for pairs in set(CASES) - {"cycle"}:
        for strength in (0.05, 0.3, 1):
            stands = descent(pairs, loss, strength)
            assert all(stand.rejected < stands[0].rejected for stand in stands[1:])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs": "two"}, "pairs is 'two'.*overlap"),
        ({"loss": "kto"}, "loss is 'kto'.*ipo"),
        ({"strength": 2}, "strength is 2; it must lie between 0.05 and 1"),
        ({"steps": 401}, "steps is 401; it must lie between 0 and 400"),
        ({"steps": 1.5}, "steps is 1.5; expected a whole number"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(changes, message, refused):
    refused(PreferencePairs(), changes, message)
