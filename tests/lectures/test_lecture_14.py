"""What lecture 14 says in text and cannot assert in its own cells.

Its folded solutions run and end where it says, numbers done by hand are right, what it printed is
what the prose says, and its helpers compute what they claim.
"""

import contextlib
import io
import math
import re
from dataclasses import dataclass, field

import matplotlib.pyplot as plt
import pytest
import torch

from lectures import figures_14

LECTURE = "14_off_policy_correction"
USED = ["setup", "toy", "train", "path", "estimate", "ways"]


@dataclass
class Copied:
    """As much of a trainer's policy as `rounded` reads."""

    model: torch.nn.Module
    copies: list = field(default_factory=list)

    def frozen_copy(self):
        copy = torch.nn.Linear(5, 3)
        copy.load_state_dict(self.model.state_dict())
        return Copied(copy.requires_grad_(False))


@pytest.mark.parametrize("bits", [3, 8])
def test_rounded_weights_are_on_a_grid_and_biases_stay(bits):
    torch.manual_seed(0)
    policy = Copied(torch.nn.Linear(5, 3))
    found, weight = figures_14.rounded(policy, bits=bits).model, policy.model.weight.detach()
    step = weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    counts = found.weight / step
    assert torch.allclose(counts, counts.round(), atol=1e-4)
    assert counts.abs().max() == pytest.approx(2 ** (bits - 1) - 1, abs=1e-4)
    assert ((found.weight - weight).abs() <= step / 2 + 1e-6).all()
    assert not torch.equal(found.weight, weight)
    assert torch.equal(found.bias, policy.model.bias)


def test_look_by_hand():
    """Three answers: nine tokens of which one is off, nine that agree, two of which one is off."""
    log_w, mask = torch.zeros(3, 9), torch.ones(3, 9, dtype=torch.bool)
    log_w[0, 3], log_w[2, 1], mask[2, 2:] = math.log(2), math.log(0.5), False
    seen = figures_14.look(log_w, mask)
    assert seen["tokens"].shape == (20,)
    assert seen["|log w|"] == pytest.approx(2 * math.log(2) / 20)
    assert seen["mean w"] == pytest.approx((10 + 9 + 1.5) / 20)
    assert seen["outside %"] == pytest.approx(10)
    assert seen["mean W"] == pytest.approx(3.5 / 3)
    assert seen["worth %"] == pytest.approx(100 * 3.5**2 / 5.25 / 3)
    assert seen["answer"].tolist() == pytest.approx([math.log(2) / 9, 0, math.log(0.5) / 2])
    assert seen["growth"][1] == 0  # after two tokens the long ones still agree
    assert seen["growth"][-1] == pytest.approx(math.log(2) / 2**0.5)
    lines = figures_14.table({"one": seen}).splitlines()
    assert len(lines) == 2
    assert len(lines[0]) == len(lines[1])


def test_every_way_has_a_look_and_can_be_drawn():
    J = {name: torch.rand(6, 4) for name in figures_14.WAYS}
    for figure in (
        figures_14.curves(J),
        figures_14.training((0, 1, 2, 4, 8, 16), J),
        figures_14.staleness(range(6), *[{k: v[:, 0] for k, v in J.items()}] * 2),
    ):
        plt.close(figure)
    assert set(figures_14.LOOKS) == set(figures_14.WAYS)


def test_exercise_1_by_hand(lecture):
    told = lecture.text("exercise-1")
    w = 0.3 / 0.2, 0.3 / 0.4
    assert w == pytest.approx((1.5, 0.75))
    assert w[0] * w[1] == pytest.approx(1.125)
    assert min(w[0], 1.2) * min(w[1], 1.2) == pytest.approx(0.9)
    assert pytest.approx(905, abs=0.5) == 1000 * 1.001**-100
    assert pytest.approx(7, abs=0.5) == 1000 * 1.001**-5000
    assert "905 of them" in told
    assert "seven" in told


def test_exercise_2_ends_where_it_says(lecture):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(lecture.solution("exercise-2"), lecture.names)
    plain, normalised = map(float, re.findall(r"\d\.\d\d", said.getvalue()))
    assert "end near 3.8 instead of 3.1" in lecture.text("exercise-2")
    assert plain == pytest.approx(3.1, abs=0.3)
    assert normalised == pytest.approx(3.8, abs=0.15)


def test_exercise_3_refutes_in_ten_lines(lecture):
    code = lecture.solution("exercise-3")
    assert len(code.strip().splitlines()) <= 10
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, lecture.names)  # its own asserts are the claim


def test_numbers_in_the_text_are_those_that_were_printed(lecture):
    cases = lecture.printed("cases")
    assert "cosine −.08" in lecture.text("cases-after")
    assert re.search(r"age 32, B +cosine with ∇J -0\.08", cases)
    assert "off by 42 %" in lecture.text("caps-between")
    assert "per token by 0.42" in lecture.printed("ways")
    assert "(2.0 against 1.8)" in lecture.text("topr-after")
    assert re.search(r"no weight .*J +2\.0", lecture.printed("flows"))
    assert re.search(r"TOPR .*J +1\.[78]", lecture.printed("flows"))
    assert "180 nats" in lecture.text("topr-after")
    assert re.search(r"no weight +KL +179\.8\d +back +2\.5", lecture.printed("flows"))
    assert "(7,000, says [OFF-4]" in lecture.text("qwen-after")
    assert "no weight at all (error .56)" in lecture.text("caps-after")
    assert "64 answers: {'per answer': 'error 0.56" in lecture.printed("caps")
    assert "from 3.8 to 2.2" in lecture.text("caps-after")
    assert re.findall(r"per token': 'error \S+ at cap (\S\.\d)", lecture.printed("caps")) == [
        "3.7",
        "2.3",
        "2.2",
    ]
    assert "delay 4 has .17 nats" in lecture.text("compass-text")
    assert "delay 4: 0.17 nats" in lecture.printed("training")
    assert lecture.printed("price").splitlines()[-1].startswith("{0.0001: 6932")


def test_the_summary_repeats_what_was_printed(lecture):
    found = {}
    for row in lecture.printed("staleness").splitlines():
        found[row[:16].strip()] = [row.split()[-3], row.split()[-1]]
    for row in lecture.printed("training").splitlines()[2:]:
        found[row[:16].strip()] += re.findall(r"\d\.\d\d", row[16:])
    table = [
        row.split("|")[1:-1] for row in lecture.text("summary").split("at ¼ |")[1].splitlines()
    ]
    rows = [[cell.strip() for cell in row] for row in table if len(row) == 5][1:]
    assert len(rows) == 6
    for name, *values in rows:
        for said, was, room in zip(values, found[name], (0.006, 0.051, 0.006, 0.006), strict=True):
            assert float(said.replace("−", "-")) == pytest.approx(float(was), abs=room)


def test_caps_by_the_plain_error(lecture):
    """In the folded note: what [OFF-5] itself chooses, without the best overall factor."""
    told = lecture.text("cap-text")
    assert "64 answers choose .7 for the answer's cap" in told
    assert "from 3.0 to 3.6" in told
    grid, best = torch.logspace(-2, 4, 73, base=2), {}
    for family in ("per_answer", "per_token"):
        moments = [lecture["estimate"](lecture[family](cap.item()), 32) for cap in grid]
        for N in (64, 16384):
            error = [((m - lecture["north"]).norm() ** 2 + v / N).item() for m, v in moments]
            best[family, N] = grid[error.index(min(error))].item()
    assert best["per_answer", 64] == pytest.approx(0.7, abs=0.05)
    assert best["per_token", 64] == pytest.approx(3.0, abs=0.05)
    assert best["per_token", 16384] == pytest.approx(3.6, abs=0.05)


def test_fresh_runs_that_settled_early(lecture):
    assert "7 of the 32 fresh ones" in lecture.text("puzzle-after")
    assert (lecture["train"](lecture["no_weight"], delay=0)[-1] < 3.5).sum() in range(4, 11)


def test_eight_updates_old_is_within_fifteen_degrees(lecture):
    assert "within 15 degrees" in lecture.text("staleness-after")
    rows = lecture.printed("staleness").splitlines()
    at_eight = {row[:16].strip(): float(row[16:].split()[4]) for row in rows}
    inside = [name for name, c in at_eight.items() if c > math.cos(math.radians(15))]
    assert set(at_eight) - set(inside) == {"clip alone"}


def test_hand_numbers_of_the_four_tokens(lecture):
    told = lecture.text("two-ratios-after")
    assert "is pushed with −4" in told
    assert pytest.approx(4) == 0.2 / 0.05
    assert "moved by a tenth" in told
    assert pytest.approx(1.1) == 0.33 / 0.30
    assert pytest.approx(0.0059, abs=5e-5) == 0.95**100
