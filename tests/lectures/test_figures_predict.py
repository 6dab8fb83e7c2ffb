"""Predict first: the prediction is kept, and shown beside the truth."""

import pytest
import torch

from lectures import predict as room


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(room, "display", lambda data, raw: lines.append(data["text/plain"]))
    monkeypatch.setattr(room, "_predictions", {})
    return lines


def test_the_prediction_stands_beside_the_truth(said):
    room.predict("rate", 0.5, "pass rate")
    room.reveal("rate", torch.tensor(0.25))
    assert "pass rate" in said[0]
    for words in ("predicted | 0.5", "it is | 0.25", "0.25 too high"):
        assert words in said[1]


@pytest.mark.parametrize(
    ("guess", "truth", "words"),
    [
        (1, 3, "2 too low"),
        (-1.0, 1.0, "2 too low"),
        (0.5, 157.2, "160 too low"),
        (3, 3.0, "as predicted"),
        ("rises", "falls", "not as predicted"),
        ("falls", "falls", "none: as predicted"),
        (True, False, "not as predicted"),
    ],
)
def test_the_difference_is_put_in_words(said, guess, truth, words):
    room.predict("x", guess, "x")
    room.reveal("x", truth)
    assert words in said[-1]


def test_a_second_prediction_replaces_the_first(said):
    room.predict("x", 1, "x")
    room.predict("x", 2, "x")
    room.reveal("x", 2)
    assert "as predicted" in said[-1]


def test_nothing_to_reveal_is_said_with_what_there_is(said):
    room.predict("known", 1, "x")
    with pytest.raises(KeyError, match=r"unknown.*'known'.*predict"):
        room.reveal("unknown", 1)
