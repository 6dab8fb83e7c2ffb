"""The length-bias widget: facts it must show, what it refuses."""

import itertools
import json
from pathlib import Path

import pytest
import torch

from lectures.widgets import LengthBias
from lectures.widgets.length_bias import AVERAGES, HALVES, NAMES, token_weights
from toy_models.exact import exact_gradient, gradient_moments, responses_of
from toy_models.policies import AutoregressivePolicy

TOY_SETTINGS = Path(__file__).parents[2] / "toy_models" / "settings.json"
LENGTHS = [8, 12, 16, 60]
close = pytest.approx


def first_tokens(average: str, lengths, advantages, **knobs) -> list[float]:
    return token_weights(average, lengths, advantages, **knobs)[:, 0].tolist()


# --- weights against numbers worked out by hand --------------------------------------------------


def test_two_answers_of_4_and_7_tokens_at_advantage_2():
    hand = {
        "mean_per_sequence": [2 / (2 * 4), 2 / (2 * 7)],  # 0.25, 0.1429
        "mean_fixed_length": [2 / (2 * 7)] * 2,  # 0.1429
        "mean_per_token": [2 / 11] * 2,  # 0.1818; without the advantage it would be 0.0909
    }
    for name, expected in hand.items():
        assert first_tokens(name, [4, 7], [2, 2], l_max=7) == close(expected, abs=1e-15)
    assert hand["mean_per_token"][0] == close(0.1818, abs=5e-5)


def test_a_right_answer_of_3_tokens_and_a_wrong_one_of_1():
    hand = {
        "mean_per_sequence": [1 / 6, -1 / 2],
        "mean_per_token": [1 / 4, -1 / 4],
        "mean_fixed_length": [1 / 8, -1 / 8],
    }
    for name, expected in hand.items():
        assert first_tokens(name, [3, 1], [1, -1], l_max=4) == close(expected, abs=1e-15)


def test_every_token_of_an_answer_weighs_the_same_and_padding_nothing():
    for name in AVERAGES:
        rows = token_weights(name, LENGTHS, [1, 0.5, -2, 1], l_max=64)
        for row, length in zip(rows, LENGTHS, strict=True):
            assert row[:length].tolist() == close([float(row[0])] * length, abs=1e-15)
            assert not row[length:].any()


def test_the_default_state_shows_the_long_wrong_answer():
    bias = LengthBias(lengths=LENGTHS, advantages=[1, 1, 1, -1], l_max=64)
    shown = {name: [1000 * w for w in row] for name, row in bias.weights.items()}
    assert shown["mean_per_sequence"] == close([31.25, 20.8333, 15.625, -4.1667], abs=1e-3)
    assert shown["mean_per_token"] == close([10.4167] * 3 + [-10.4167], abs=1e-3)
    assert shown["mean_fixed_length"] == close([3.90625] * 3 + [-3.90625], abs=1e-3)
    sums = {name: [1000 * w for w in row] for name, row in bias.sums.items()}
    assert sums["mean_per_sequence"] == close([250, 250, 250, -250], abs=1e-9)
    assert sums["mean_per_token"] == close([83.333, 125, 166.667, -625], abs=1e-3)
    assert sums["mean_fixed_length"] == close([31.25, 46.875, 62.5, -234.375], abs=1e-9)
    assert "7.5 × one token of D (60 tokens) per sequence, but 1.00 ×" in bias.sentence


@pytest.mark.parametrize("lengths", list(itertools.permutations([1, 5, 33, 64])))
def test_only_the_per_sequence_average_follows_the_length(lengths):
    ratios = LengthBias(lengths=lengths).numbers["ratios"]
    expected = {"mean_per_sequence": 64, "mean_per_token": 1, "mean_fixed_length": 1}
    assert ratios == close(expected, abs=1e-12)


# --- the sign law --------------------------------------------------------------------------------


def test_the_sentence_says_which_side_of_the_sign_law_the_state_shows():
    favours_long = "among wrong answers it favours long ones"
    favours_short = "among right answers it favours short ones"
    for changes, shown, other in [
        ({"advantages": [1, 1, 1, -1]}, favours_long, favours_short),
        ({"advantages": [-1, -1, -1, -1]}, favours_long, favours_short),
        ({"advantages": [-1, -1, -1, 1]}, favours_short, favours_long),
        ({"advantages": [1, 1, 1, 1]}, favours_short, favours_long),
        # D teaches nothing, so the longest answer that does is C
        ({"advantages": [0.5, 0, -1.5, 0]}, "C is longer than A and wrong", favours_short),
    ]:
        sentence = LengthBias(lengths=LENGTHS, **changes).sentence
        assert shown in sentence
        assert other not in sentence
    equal = LengthBias(lengths=[16] * 4).sentence
    assert "no length is favoured" in equal
    assert "short ones" not in equal
    only_the_shortest = LengthBias(lengths=LENGTHS, advantages=[1, 0, 0, 0]).sentence
    assert "longer" not in only_the_shortest


@pytest.mark.parametrize(
    ("preset", "words"),
    [
        ("long_wrong", "A is right: {} up {} down."),
        ("long_right", "A is wrong: {} down {} up."),
        ("both_wrong", "A is wrong too: {} down {}."),
        ("both_right", "A is right too: {} up {}."),
    ],
)  # fmt: skip
def test_the_sentence_tells_the_four_cases_apart(preset, words):
    bias = LengthBias()
    bias.preset(preset)
    told = words.format("each of its tokens is pushed", "7.5 × as hard as one of D")
    assert bias.sentence.endswith(told)
    weights = bias.weights["mean_per_sequence"]
    assert abs(weights[0] / weights[3]) == close(7.5)


def test_a_preset_sets_the_whole_state():
    for key in LengthBias.presets:
        bias = LengthBias()
        bias.preset("trap")
        bias.l_max = 96
        bias.preset(key)
        fresh = LengthBias()
        fresh.preset(key)
        assert bias.state == fresh.state
        assert (bias.divide == "own") == (key == "trap")


def test_the_sign_law_on_the_exact_toy_with_the_weights_of_the_widget():
    """One gradient step on every response at once: all right ones shorten, all wrong ones grow."""
    settings = json.loads(TOY_SETTINGS.read_text(encoding="utf-8"))
    logits = torch.tensor(settings["tree_logits"], dtype=torch.float64)
    tree = AutoregressivePolicy(3, 4, eos_id=0).double()
    states = tree.states.tolist()
    with torch.no_grad():
        for prefix, row in zip(settings["tree_states"], logits, strict=True):
            tree.table[0, states.index(prefix + [-1] * (3 - len(prefix)))] = row
    prompt = torch.tensor([1, 0, 2])
    lengths = tree.mask(responses_of(tree)).sum(-1)

    def length(prompts, responses):
        return tree.mask(responses).sum(-1)

    longer = exact_gradient(tree, prompt, length)
    speed = {}
    for name in ("mean_per_sequence", "mean_fixed_length"):
        for advantage in (0.5, -0.5):
            rows = token_weights(name, lengths.tolist(), [advantage] * len(lengths), l_max=4)
            moments = gradient_moments(
                tree,
                prompt,
                length,
                lambda r: torch.ones_like(r),
                token_weights=rows * len(lengths),  # the mean over responses is the policy's
            )
            speed[name, advantage] = float(moments.mean @ longer)
    assert speed["mean_per_sequence", 0.5] == close(-0.050, abs=5e-4)
    assert speed["mean_per_sequence", -0.5] == close(0.050, abs=5e-4)
    assert speed["mean_fixed_length", 0.5] == close(0, abs=1e-12)
    assert speed["mean_fixed_length", -0.5] == close(0, abs=1e-12)


# --- micro-batches -------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [LENGTHS, [64, 64, 1, 1], [5, 1, 40, 3]])
def test_with_the_counts_of_the_whole_step_the_split_changes_nothing(lengths):
    advantages = [1, -0.5, 2, -1]
    for name in AVERAGES:
        whole = token_weights(name, lengths, advantages, l_max=64)
        split = {"micro_batches": HALVES, "own_counts": False}
        torch.testing.assert_close(
            token_weights(name, lengths, advantages, l_max=64, **split), whole, rtol=0, atol=1e-15
        )
    bias = LengthBias(lengths=lengths, advantages=advantages, split=True)
    assert bias.sentence.startswith("The split changes nothing")
    assert bias.weights == LengthBias(lengths=lengths, advantages=advantages).weights


def test_with_their_own_counts_only_the_per_token_average_changes():
    right = LengthBias(lengths=LENGTHS).weights
    trap = LengthBias(lengths=LENGTHS, split=True, divide="own")
    wrong = trap.weights
    assert wrong["mean_per_sequence"] == close(right["mean_per_sequence"], abs=1e-15)
    assert wrong["mean_fixed_length"] == close(right["mean_fixed_length"], abs=1e-15)
    pairs = zip(wrong["mean_per_token"], right["mean_per_token"], strict=True)
    factors = [one / other for one, other in pairs]
    assert factors == close([96 / 40, 96 / 40, 96 / 152, 96 / 152], rel=1e-12)  # 2.40, 0.63
    for words in (
        "A and B weigh 2.40 × and C and D 0.63 × what they should",
        "one token of A or B weighs 3.8 × one of C or D",
        "Dividing by the 96 tokens",
    ):
        assert words in trap.sentence
    assert trap.numbers["whole_step"] == close(LengthBias(lengths=LENGTHS).sums["mean_per_token"])


def test_the_heavier_micro_batch_is_named_whichever_it_is():
    trap = LengthBias(lengths=[60, 16, 12, 8], split=True, divide="own")
    assert "A and B weigh 0.63 × and C and D 2.40 ×" in trap.sentence
    assert "one token of C or D weighs 3.8 × one of A or B" in trap.sentence
    equal = LengthBias(lengths=[1, 64, 64, 1], split=True, divide="own")
    assert equal.sentence.startswith("Both micro-batches hold 65 tokens")


# --- state ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lengths": [8, 12, 16]}, "lengths holds 3 numbers; expected 4, one each for A, B, C, D"),
        ({"lengths": [8, 12, 16, 6.5]}, r"lengths\[3\] is 6.5; expected a whole number"),
        ({"lengths": [0, 12, 16, 60]}, r"lengths\[0\] is 0; it must lie between 1 and 64"),
        ({"lengths": 8}, "lengths is 8; expected a list"),
        ({"advantages": [1, 1, 1, float("nan")]}, r"advantages\[3\] is nan; expected a finite"),
        ({"advantages": [1, 1, 1, "wrong"]}, r"advantages\[3\] is 'wrong'; expected a number"),
        ({"l_max": 10}, "l_max is 10; it must lie between 64 and 128"),
        ({"l_max": 64.5}, "l_max is 64.5; expected a whole number"),
        ({"split": "yes"}, "split is 'yes'; expected True or False"),
        ({"divide": "both"}, "divide is 'both'.*step, own"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(changes, message, refused):
    refused(LengthBias(advantages=[1, 0.5, 0, -1]), changes, message)


def test_lengths_and_advantages_may_be_tensors():
    bias = LengthBias(lengths=torch.tensor(LENGTHS), advantages=torch.tensor([1.0, 1, 1, -1]))
    assert bias.lengths == LENGTHS
    assert all(isinstance(length, int) for length in bias.lengths)


def test_the_choice_of_counts_is_greyed_while_nothing_is_split():
    bias = LengthBias()
    assert bias.off == {"divide"}
    bias.preset("trap")
    assert bias.off == set()
    bias.preset("long_right")
    assert bias.off == {"divide"}


def test_no_average_moves_anything_when_all_advantages_are_zero():
    bias = LengthBias(advantages=[0, 0, 0, 0])
    assert not any(itertools.chain(*bias.weights.values(), *bias.sums.values()))
    assert bias.sentence.startswith("All advantages are 0")


def test_four_names_for_four_sliders():
    assert list(LengthBias.lengths.names) == list(NAMES)


def test_the_note_says_that_the_answers_are_one_group():
    """The papers average over the group of one prompt, DAPO too (its eq. 12)."""
    assert "one prompt's group" in LengthBias().note
