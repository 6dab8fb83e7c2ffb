"""The words, the split by word, and the rewards with their corner cases."""

import pytest

from llm_trainer.config import ConfigError, TaskConfig
from llm_trainer.task import Spelling, WordStream, split


def test_the_split_is_by_word_whatever_its_case(spelling):
    held_out = {w.lower() for w in spelling.held_out}
    assert len(held_out) == len(spelling.held_out) == 1000
    assert not held_out & {w.lower() for w in spelling.train}
    assert {len(w) for w in spelling.train} == {3, 4, 5, 6, 7}
    # In this list some words come in two spellings; both must be on one side.
    train, hidden = split(["Abe", "abe", "cat", "dog"], 2)
    assert not {w.lower() for w in train} & {w.lower() for w in hidden}


def test_splitting_by_seed_would_leak():
    from reasoning_gym.algorithmic.spell_backward import SpellBackwardConfig, SpellBackwardDataset

    one, two = (SpellBackwardDataset(SpellBackwardConfig(seed=s, size=50)) for s in (42, 43))
    answers = [{d[i]["answer"] for i in range(50)} for d in (one, two)]
    assert len(answers[0] & answers[1]) >= 48


def test_a_smaller_held_out_set_is_part_of_the_larger(spelling):
    fewer = Spelling(TaskConfig(held_out=100))
    assert set(fewer.held_out) < set(spelling.held_out)


def test_more_held_out_words_than_there_are_is_refused():
    with pytest.raises(ConfigError, match=r"task\.held_out = 99999999.*only \d+ words"):
        Spelling(TaskConfig(held_out=99_999_999))


def test_the_entry_is_the_datasets_own(spelling):
    entry = spelling.entry("orange")
    assert entry["question"] == "Spell this word backward (example: sun -> nus): orange"
    assert entry["answer"] == "egnaro"


def tagged(text):
    return f"<answer>{text}</answer>"


@pytest.mark.parametrize(
    ("word", "answer", "correctness", "exact"),
    [
        ("orange", "egnaro", 1.0, 1.0),
        ("orange", "EGNARO", 1.0, 0.0),  # the score ignores case, equality does not
        ("orange", "egnarx", 5 / 6, 0.0),
        ("orange", "orange", 2 / 6, 0.0),  # the middle "an" of "egnaro" is "na": o≠e r≠g a≠n …
        ("orange", "", 0.0, 0.0),
        ("notebook", "koobeton", 1.0, 1.0),  # eight letters
    ],
)
def test_scores(spelling, word, answer, correctness, exact):
    if (word, answer) == ("orange", "orange"):
        correctness = sum(a == b for a, b in zip("orange", "egnaro", strict=True)) / 6
    rewards = spelling.score(tagged(answer), spelling.entry(word))
    assert rewards.correctness == pytest.approx(correctness)
    assert rewards.exact == exact


@pytest.mark.parametrize("letters", range(3, 11))
def test_the_right_answer_followed_by_junk_earns_the_cap_at_every_length(spelling, letters):
    word = "abcdefghij"[:letters]
    entry = spelling.entry(word)
    junk = entry["answer"] + "zzz"
    rewards = spelling.score(tagged(junk), entry)
    assert rewards.correctness == pytest.approx(0.8)
    assert rewards.correctness <= 0.8
    assert rewards.exact == 0.0


def test_reasoning_gyms_own_score_needs_the_cap(spelling):
    """Without the cap, junk behind the right answer scores above 0.8 at 6, 7, 9, 10 letters."""
    uncapped = [
        spelling.dataset.score_answer(
            ("abcdefghij"[:n])[::-1] + "z", spelling.entry("abcdefghij"[:n])
        )
        for n in range(3, 11)
    ]
    assert [n for n, score in zip(range(3, 11), uncapped, strict=True) if score > 0.8] == [
        6,
        7,
        9,
        10,
    ]
    assert uncapped[9 - 3] > 1.0


def test_the_format_part_matches_the_whole_response(spelling):
    entry = spelling.entry("sun")
    assert spelling.score("<answer>nus</answer>", entry).format == 1
    for text in ("x<answer>nus</answer>", "<answer>nus</answer>x", "<answer>a</answer>" * 2, "nus"):
        assert spelling.score(text, entry).format == 0
    # extract_answer takes the last tag and ignores junk, so correctness alone cannot see it.
    assert spelling.score("<answer>zzz</answer>junk<answer>nus</answer>", entry).correctness == 1
    assert spelling.score("nus", entry).correctness == 0


@pytest.mark.parametrize(
    ("response", "ended", "exact"),
    [
        ("<answer>nus</answer>", True, 1),
        ("<answer>nus</answer>", False, 0),  # cut at the token limit
        ("<answer>nus</answer></answer>", True, 0),
        ("<answer>nus</answer>nus", True, 0),
        ("x<answer>nus</answer>", True, 0),
        ("<answer>x</answer><answer>nus</answer>", True, 0),
        ("<answer> nus</answer>", True, 0),  # extract_answer strips: full score, not exact
        ("<answer>nus\n</answer>", True, 0),
        ("<answer>Nus</answer>", True, 0),
        ("nus", True, 0),
    ],
)
def test_exact_is_equality_of_the_whole_response(spelling, response, ended, exact):
    rewards = spelling.score(response, spelling.entry("sun"), ended=ended)
    assert rewards.exact == exact
    assert rewards.format <= ended
    if response != "nus":
        assert rewards.correctness == 1.0


def test_the_stream_visits_every_word_once_an_epoch_and_goes_on_from_its_position():
    words = list("abcdefg")
    stream = WordStream(words, seed=3)
    first, second = stream.take(7), stream.take(7)
    assert sorted(first) == sorted(second) == words
    assert first != second
    other = WordStream(words, seed=3)
    other.position = 5
    assert other.take(9) == (first + second)[5:]
