"""What lecture 00 says in text and cannot assert in its own cells."""

import pytest
import torch

LECTURE = "00_map"
USED = ["setup", "rewards", "pg-check", "loop", "writers"]


def updates_to_one_half(lecture, copying: int) -> int:
    """Updates until the pass rate is ½, after `copying` updates of the 40 % teacher's answers."""
    generator = torch.Generator().manual_seed(0)
    policy, learn = lecture["copy"].deepcopy(lecture["policy"]), lecture["learn"]
    rates = learn(policy, lambda _: lecture["from_teacher"](0.4, generator), copying)
    rates += learn(policy, lambda p: lecture["from_itself"](p, generator), 75 - copying)[1:]
    return sum(rate < 0.5 for rate in rates)


def test_copying_a_little_helps_and_copying_long_costs_time(lecture):
    alone = updates_to_one_half(lecture, 0)
    assert max(updates_to_one_half(lecture, copying) for copying in (5, 15, 30)) < alone
    assert updates_to_one_half(lecture, 60) > alone


def test_by_hand_entropy_and_divergences():
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.full((3,), 1 / 3)
    assert -(p * p.log()).sum() == pytest.approx(1.040, abs=5e-4)
    assert (p * (p / q).log()).sum() == pytest.approx(0.059, abs=5e-4)
    assert (q * (q / p).log()).sum() == pytest.approx(0.057, abs=5e-4)


def test_twenty_blind_verdicts_tell_two_thirds_of_an_answer():
    """Right or wrong, for guesses drawn blindly from 27 answers of which one is right."""
    answers, verdicts = 27, 20
    distinct = torch.zeros(answers + 1)  # probability of having guessed d different answers
    distinct[0] = 1
    d = torch.arange(answers + 1.0)
    for _ in range(verdicts):
        again = distinct * d / answers
        distinct = again + torch.cat([torch.zeros(1), distinct * (answers - d) / answers])[:-1]
    left = (answers - d) / answers  # probability that the right one is not among them
    unknown = left * torch.where(left > 0, answers - d, 1.0).log()
    assert (distinct * (torch.tensor(27.0).log() - unknown)).sum() == pytest.approx(2.10, abs=0.01)
