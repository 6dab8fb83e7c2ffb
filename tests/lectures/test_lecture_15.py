"""What lecture 15 says in text and cannot assert in its own cells.

Its folded solutions run, the numbers that are done by hand are right, what it quotes of its own
figures is what the simulator gives, and its figures can be drawn from any schedule.
"""

import re

import pytest
import torch

from lectures import figures_15
from toy_models import serving, tool_use
from toy_models.actor_learner import Setup, simulate

LECTURE = "15_systems_and_agents"
USED = ["setup"]


def test_exercise_1_by_hand(lecture):
    told = lecture.text("exercise-1")
    assert "60/95=.63" in told
    assert pytest.approx(0.63, abs=5e-3) == 60 / 95
    assert pytest.approx(0.32, abs=5e-3) == 30 / 95
    assert pytest.approx(1.58, abs=5e-3) == 95 / 60
    assert serving.work_saved(group=16, prompt_tokens=200, answer_tokens=1800) == pytest.approx(
        0.094, abs=5e-4
    )
    assert serving.expected_tokens_per_pass(0.7, draft=3) == pytest.approx(2.53, abs=5e-3)
    assert serving.expected_tokens_per_pass(0.4, draft=3) == pytest.approx(1.62, abs=5e-3)
    assert max(30 / 6, 10 / 2) == 5
    assert min(max(30 / k, 10 / (8 - k)) for k in range(1, 8)) == 5
    assert min(30 / k + 10 / (8 - k) for k in range(1, 8)) == pytest.approx(9.3, abs=0.05)
    assert pytest.approx(1.46, abs=5e-3) == 95 / 65


def test_exercise_2_says_what_the_simulator_gives(lecture):
    exec(lecture.solution("exercise-2"), lecture.names)  # its own asserts are the claim
    assert "1.89" in lecture.text("exercise-2")
    a, b = Setup().generation_rate, Setup().training_rate
    assert min(a, b) * (1 / a + 1 / b) == pytest.approx(1.89, abs=5e-3)
    assert lecture["gain"] > 3


def test_exercise_3_refutes_in_about_ten_lines(lecture):
    code = lecture.solution("exercise-3")
    assert len(code.strip().splitlines()) <= 14
    exec(code, lecture.names)


def test_dropping_by_age_drops_long_answers():
    """Section 6's two things to try."""
    tail = serving.Lengths(400, 1.2, 8000)
    waits = simulate(Setup(bound=2, lengths=tail), updates=40, warmup=6)
    assert round(waits.tokens_per_second) == 606
    assert (round(waits.actor_busy, 2), round(waits.learner_busy, 2)) == (0.96, 0.30)
    trace = simulate(Setup(bound=2, drop=True, queue=16, lengths=tail), updates=40, warmup=6)
    assert round(trace.tokens_per_second) == 494
    long, short = (
        sum(g.tokens for g in groups) / sum(len(g.answers) for g in groups)
        for groups in (trace.dropped, trace.trained)
    )
    assert (round(long), round(short)) == (1186, 614)
    longest = {name: [max(a.length for a in g.answers) for g in groups] for name, groups in (
        ("dropped", trace.dropped), ("trained", trace.trained))}  # fmt: skip
    mean = {name: sum(values) / len(values) for name, values in longest.items()}
    assert trace.dropped_share == pytest.approx(0.49, abs=0.01)
    assert mean["dropped"] > 1.3 * mean["trained"]


def test_numbers_in_the_text(lecture):
    lengths = serving.Lengths()
    assert "half have fewer than 400 tokens" in lecture.text("puzzle-text")
    assert lengths.median == 400
    assert lengths.share_cut == pytest.approx(1 / 50, abs=0.005)  # "one in fifty"
    assert lengths.expected_max(64) / lengths.mean > 3.5
    assert "481 episodes" in lecture.text("tool-exact-text")
    assert len(tool_use.all_trajectories().tokens) == 481 * 6


def test_the_saved_runs_say_what_the_text_says(lecture):
    ages = [
        int(n)
        for n in re.findall(r"\d+", lecture.printed("two-processes").split("[")[1].split("]")[0])
    ]
    assert ages[0] == 0
    assert ages[-1] == max(ages) <= 4
    writing, learning = re.search(r"writing ([\d.]+), learning ([\d.]+)",
                                  lecture.printed("two-processes")).groups()  # fmt: skip
    assert float(writing) < float(learning)  # "writing is the faster half"


def test_every_framework_has_a_cell_in_every_row(lecture):
    rows = [r for r in lecture.text("code-after").splitlines() if r.startswith("|")]
    assert {len(row.split("|")) for row in rows} == {7}
    assert len(rows) >= 11


@pytest.mark.parametrize("setup", [Setup(), Setup(colocated=True), Setup(bound=2, partial=True)])
def test_a_schedule_can_be_drawn(lecture, setup):
    trace = simulate(setup, updates=6)
    figure = figures_15.gantt({"any": trace}, trace.begin, 60)
    (axis,) = figure.axes
    lanes = [label.get_text() for label in axis.get_yticklabels()]
    assert lanes == ["actor 0", "actor 1"] + ([] if setup.colocated else ["learner"])
    figures_15.plt.close(figure)


def test_a_transcript_is_drawn_with_its_mask():
    played = tool_use.rollout(tool_use.AskingPolicy(), group=4, seed=0)
    figure = figures_15.trajectories(played, range(6))
    digits = [t.get_text() for t in figure.axes[0].texts if t.get_text() in "01"]
    count = (played.mask | played.observed)[:6].sum() + 6
    assert len(digits) == count
    assert digits.count("1") == int(played.mask[:6].sum())
    assert torch.equal(played.mask & played.observed, torch.zeros_like(played.mask))
    figures_15.plt.close(figure)
