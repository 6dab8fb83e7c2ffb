"""What lecture 17 says in text and cannot assert in its own cells.

Its folded solutions run and end where it says, numbers done by hand are right, what it printed is
what the prose says, and its helpers compute what they claim.
"""

import contextlib
import io
import math
import re

import matplotlib.pyplot as plt
import pytest
import torch

from lectures import figures_17
from lectures.figures import style
from toy_models.preference_race import METHODS

LECTURE = "17_preferences"
USED = ["setup", "puzzle-predict", "puzzle", "optimum", "expected-push"]


def numbers(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"-?\d*\.\d+", text.replace("−", "-"))]


def test_exercise_1_by_hand(lecture):
    told = lecture.text("exercise-1")
    ref, reward = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.0, 1.0, 2.0])
    Z = (ref * reward.exp()).sum()
    assert Z.item() == pytest.approx(2.793, abs=5e-4)
    assert "(.179,.292,.529)" in told
    assert (ref * reward.exp() / Z).tolist() == pytest.approx([0.179, 0.292, 0.529], abs=5e-4)
    assert (reward - Z.log()).tolist() == pytest.approx([-1.027, -0.027, 0.973], abs=5e-4)
    assert torch.tensor(1.0).sigmoid().item() - 0.5 == pytest.approx(0.231, abs=5e-4)
    wins = (reward[:, None] - reward).sigmoid() @ ref
    assert wins.tolist()[1:] == pytest.approx([0.569, 0.760], abs=5e-4)
    assert ((wins[2] - wins[1]) / 0.5).item() == pytest.approx(0.381, abs=5e-4)
    assert "=.381" in told


def test_exercise_2_ends_where_it_says(lecture):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(lecture.solution("exercise-2"), lecture.names)
    rows = {
        line[:6].strip(): numbers(line[6:].replace("best", ""))
        for line in said.getvalue().splitlines()
    }
    told = lecture.text("exercise-2")
    assert "($J_\\beta$ 3.43; home has 3.37) and ends at 2.2" in told
    assert "With $e=.2$ it ends at 3.2 (other seeds: 2.8 to 3.0), IPO at 3.4" in told
    assert rows["DPO"] == pytest.approx([3.43, 2.2], abs=0.1)
    assert rows["e = .2"][-1] == pytest.approx(3.2, abs=0.1)
    assert rows["IPO"][-1] == pytest.approx(3.4, abs=0.05)
    start = lecture["logp"](lecture["home1"]).detach().exp() @ lecture["R"]
    assert start.item() == pytest.approx(3.37, abs=5e-3)


def test_exercise_3_refutes_in_a_few_lines(lecture):
    """Its own asserts are the claim; two names come from cells that are not run here."""
    tree = lecture["AutoregressivePolicy"](3, 3, eos_id=None).double()
    u = lecture["exact"].scores(lecture["home1"], lecture["prompt"])
    gram = u @ u.T
    change = torch.stack([gram.diag()[:, None] - gram, gram - gram.diag()])
    names = lecture.names | {
        "stranger": tree,
        "moves": {"tree": change[:, ~torch.eye(27, dtype=torch.bool)]},
    }
    code = lecture.solution("exercise-3")
    assert len(code.strip().splitlines()) <= 12
    exec(code, names)


def test_numbers_in_the_text_are_those_that_were_printed(lecture):
    text, printed = lecture.text, lecture.printed
    assert "95 % of what the policy now writes is 000" in text("puzzle-after")
    assert numbers(printed("puzzle"))[0] == pytest.approx(0.95, abs=0.005)
    rows = {line[:13].strip(): numbers(line[13:]) for line in printed("classifier").splitlines()}
    assert "(95 % of its own noisy pairs, 60 % of new ones, a coin on new prompts)" in text(
        "classifier-after"
    )
    for name in ("RM, table", "DPO, tree"):
        assert rows[name] == pytest.approx([0.955, 0.6, 0.5], abs=0.02)
    assert rows["true reward"] == pytest.approx([0.7] * 3, abs=0.02)
    assert "(3 points, win rate .42)" in text("optima-after")
    assert "[0.42 0.65 0.83]" in printed("optima")
    odds = {}
    for line in printed("optima").splitlines()[2:6]:
        _, four, five, *_ = numbers(line)
        odds[line.split()[0]] = five / four
    assert "grow 2.1 times, under IPO 6.0, under DPO 7.4 times" in text("optima-after")
    for name, times in {"KTO": 2.1, "IPO": 6.0, "DPO": 7.4}.items():
        assert odds[name] / odds["home"] == pytest.approx(times, abs=0.06)
    assert "(.0766 and .0750)" in text("poor-after")
    assert "a fifth of it at $\\beta=1$, seventy times as much at $\\beta=.2$" in text("poor-after")
    short = [numbers(line) for line in printed("poor").splitlines()[1:]]
    assert short[1][1:3] == pytest.approx([0.0750, 0.0766], abs=1e-4)
    assert short[0][2] / short[0][1] == pytest.approx(70, rel=0.05)
    assert short[2][2] / short[2][1] == pytest.approx(0.2, abs=0.03)
    assert ".18 < .77 < 3.36" in text("poor-after")
    assert "0.18 < 0.77 < 3.36" in printed("gram")
    assert "The start was .034" in text("remedies-after")
    assert lecture["history"]["chosen"][0] == pytest.approx(math.log(0.034), abs=0.01)
    assert "worth between .95 and 1.6 points" in text("authors-after")
    means = numbers(text("authors-picture").split("alt=")[1])
    start = numbers(printed("authors"))[0]
    assert means[0] - start == pytest.approx(0.95, abs=0.01)
    assert means[2] - start == pytest.approx(1.6, abs=0.03)
    assert "the sum with $\\beta=.25$ has more still" in text("mean-after")
    shares = dict(re.findall(r"'([^']*)': '([.\d]*)'", printed("mean-picture")))
    assert float(shares["sum, β = .25"]) > float(shares["DPO, mean"]) > float(shares["DPO, sum"])


def test_the_race_is_told_as_it_ran(lecture):
    rows = {}
    for line in lecture.printed("race").splitlines():
        title, rest = line.split(": ")
        rows[title.split()[0], rest.split(" = ")[0]] = numbers(rest)[0]
    told = lecture.text("race-after")
    assert "online beats offline by about a point" in told
    for title in ("tossed", "the"):
        assert 0.7 < rows[title, "online dpo − dpo"] < 1.5
    assert "points are more than bits, clearly so when the bits are noisy" in told
    lows = {
        line.split(" = ")[0]: numbers(line.split("[")[-1])[0]
        for line in lecture.printed("race").splitlines()
    }
    for name in ("online dpo", "reward model"):
        assert lows[f"tossed by [PREF-1]: grpo − {name}"] > 0
        assert lows[f"the better one wins: grpo − {name}"] < 0


def test_every_method_of_the_race_has_a_look():
    assert set(figures_17.WEARS) == set(figures_17.NAMES) == set(METHODS)
    assert all(style(name) for name in figures_17.WEARS.values())


def test_the_mean_by_hand():
    """Two answers, lengths 1 and 3, alike at the reference, one point for the longer: the weights
    are a = e^(−c) and b = e^(3(1 − c)) with a + b = 2."""
    ref, length = torch.full((2,), math.log(0.5)).double(), torch.tensor([1.0, 3.0]).double()
    found = figures_17.summing_to_one(ref, length, torch.tensor([0.0, 1.0]).double())
    assert found.sum().item() == pytest.approx(1, abs=1e-9)
    c = -math.log(2 * found[0])
    assert found[1].item() == pytest.approx(0.5 * math.exp(3 * (1 - c)), abs=1e-9)


def test_a_lead_is_paired():
    noise = torch.tensor([0.0, 5.0, -5.0, 2.0])
    mean, low, high = figures_17.lead(1 + noise + torch.tensor([0.1, -0.1, 0.1, -0.1]), noise)
    assert mean == pytest.approx(1)
    assert high - mean == pytest.approx(mean - low) == pytest.approx(0.2 / 3**0.5)


def test_ranked_fours_keeps_six_pairs_of_each_ranking(lecture, monkeypatch):
    sizes = []

    def counted(policy, start, pairs, *rest, **knobs):
        sizes.append(len(pairs.chosen))

    monkeypatch.setattr(figures_17.prefs, "learn_from_pairs", counted)
    every = lecture["all_sequences"](3, 3)
    shares = figures_17.ranked_fours(0, every, lecture["points"], lecture["dpo"])
    assert shares == [0.5, 0.5]  # nothing was learned
    assert 500 < sizes[0] <= 600
    assert 85 < sizes[1] <= 100


def test_the_pictures_can_be_drawn():
    J = {"home": torch.rand(4), "the optimum": torch.rand(4)}
    points = torch.rand(2, 5)
    for figure in (
        figures_17.falling([0.7, 0.1], [0.1, 0.01], [0.1, 0.001], [3.4, 3.0]),
        figures_17.implied(points, points, ("a", "b")),
        figures_17.gaps({k: [1.0, 2.0] for k in "abcd"}, {"b": 2.0}),
        figures_17.first_steps(
            {"tree": torch.rand(2, 9), "b": -torch.rand(2, 9)}, {"tree": 0, "b": 1}
        ),
        figures_17.authors(J),
        figures_17.lengths({"home": (3.8, 2.1)}),
    ):
        plt.close(figure)
