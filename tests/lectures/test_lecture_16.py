"""What lecture 16 says in text and cannot assert in its own cells.

Its folded solutions run, numbers done by hand are right, what it printed is what the prose says,
and its pictures can be drawn.
"""

import contextlib
import io
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from lectures import figures_16

LECTURE = "16_rewards"
USED = ["setup", "identify", "tree"]


def numbers(text: str) -> list[float]:
    return [float(n) for n in re.findall(r"\d+\.\d+", text)]


def test_pictures_can_be_drawn():
    names = list(figures_16.LOOKS)
    runs = {name: np.full((2, 5), 0.9) for name in names[:4]}
    curves = {name: (np.linspace(0, 7, 20), np.ones((8, 20))) for name in names[4:7]}
    figures = [
        figures_16.reward_and_truth(runs, dict.fromkeys(runs, 0.2)),
        figures_16.comparisons({20: [0.6, 0.5], 40: [0.6, 0.7]}, 0.7, curves, 2.4),
        figures_16.rare({name: np.zeros((5, 9)) for name in names[7:]}),
        figures_16.front([[0, -1], [4, -4]], [[4, -4]], [[0, -1]], [2, -3]),
    ]
    plt.close("all")
    assert len(figures[2].axes) == len(names[7:]) == 6


def test_exercise_1_by_hand(lecture):
    told = lecture.text("exercise-1")
    rewards = lecture["rewards"]
    progress = rewards.progress(lecture["ask"], torch.tensor([[0, 1, 0, 1, 2]]))
    assert progress.tolist() == [[0, 1, 2, 1, 2, 3]]
    assert (2 * progress.diff().clamp(min=0)).sum() == 8
    shaped = rewards.shaped(torch.zeros(1, 5), 2 * progress[:, :-1])
    assert shaped.tolist() == [[2, 2, -2, 2, -4]]
    assert "2 + 2 − 2 + 2" in told
    log2, log3 = torch.tensor([2.0, 3.0]).log()
    nothing = torch.zeros(())
    once = rewards.judge_prefers(log2, nothing, position=log3)
    both = rewards.judge_prefers(log2, nothing, position=log3, both_orders=True)
    assert once == pytest.approx(6 / 7)
    assert both == pytest.approx(0.629, abs=5e-4)
    assert "on average .629" in told


def test_exercise_2_ends_where_it_says(lecture):
    assert "Immediate .748 (seeds 0 to 11: .74 to .996), to go 1." in lecture.text("exercise-2")
    code, immediate = lecture.solution("exercise-2"), []
    assert code.count("manual_seed(1)") == 1
    for seed in range(12):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(code.replace("manual_seed(1)", f"manual_seed({seed})"), lecture.names)
        cosine, to_go = numbers(said.getvalue())
        assert to_go == 1
        immediate.append(cosine)
    assert immediate[1] == pytest.approx(0.748, abs=6e-4)
    assert (min(immediate), max(immediate)) == pytest.approx((0.74, 0.996), abs=5e-3)


def test_exercise_3_refutes_in_ten_lines(lecture):
    code = lecture.solution("exercise-3")
    assert len(code.strip().splitlines()) <= 10
    exec(code, lecture.names)  # its own asserts are the claim


def test_numbers_in_the_text_are_those_that_were_printed(lecture):
    rows = lecture.printed("rules").splitlines()
    assert "earns 98 % of all points" in lecture.text("puzzle-text")
    assert numbers(rows[0])[0] == pytest.approx(98, abs=0.6)
    assert "Forty order 61 % of fresh pairs" in lecture.text("over-text")
    assert "'0.610'" in lecture.printed("fit").split("40:")[1][:9]
    assert "the truth itself manages 71 %" in lecture.text("sample-text")
    assert lecture.printed("fit").rstrip().endswith("truth 0.710")
    assert "half a nat is best on average, and from two nats on" in lecture.text("over-picture")
    assert "best 2.68 at KL 0.50, below home from 1.9" in lecture.printed("over")
    assert "with 12 earn 4.33 on average, with 11 only 4.00" in lecture.text("puzzle-after")
    assert "begin with 11: 4.00, with 12: 4.33" in lecture.printed("puzzle")
    assert "112 on 121, in two runs of five" in lecture.text("rules-after")
    assert rows[-1].count("[1, 2, 1]") == 2
    spreads = numbers(lecture.printed("compass"))
    told = lecture.text("compass-after")
    words = ("5.5 for", "21 with", "5.3 with", "5.6, a", "3.5, comes")
    for spread, said in zip(spreads[:5], words, strict=True):
        assert said in told
        assert spread == pytest.approx(float(said.split()[0].strip(",")), abs=0.5)
    assert "dozens of times likelier" in lecture.text("rare-after")
    assert int(re.findall(r"× (\d+)", lecture.printed("rare-why"))[0]) >= 24
    assert "6 of 15 runs" in lecture.text("rare-after")
    assert "'nothing': '6 of 15', 'partial credit': '3 of 5'" in lecture.printed("rare")


def test_the_fold_on_several_rewards(lecture):
    told = lecture.text("several-after")
    groups = torch.tensor([[[0.0, 1], [0, 1]], [[0, 0], [0, 1]]])  # (objective, prompt, group)
    for x, said in ((groups.sum(0, keepdim=True), (0.71, 0.71)), (groups, (0.71, 1.41))):
        of_better = lecture["rewards"].standardized_sum(x)[:, 1].tolist()
        assert of_better == pytest.approx(said, abs=0.006)
    assert "has .71 either way" in told
    assert "gives .71 and 1.41" in told


def test_hindsight_is_not_the_gradient(lecture):
    """Both are sums over prompts of w(x) times the score of the right answer; only w differs.

    For the gradient w is how often that answer is written to x; for hindsight how often to any
    prompt, shared among the answer's rearrangements.
    """
    every, rare = lecture["every"], lecture["rare"]
    sorter, targets = rare.Sorter(3), every.sort(-1).values
    sorter.weight.data = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    own = sorter.log_probs(every, targets).sum(1)  # (prompt,)
    anywhere = torch.stack([sorter.log_probs(every, y.expand(27, 3)).sum(1) for y in targets])
    sharing = (targets[:, None] == targets).all(-1).sum(1)
    pushes = (own.exp(), anywhere.exp().sum(1) / sharing)
    directions = (
        torch.autograd.grad(w.detach() @ own, sorter.weight, retain_graph=True)[0].flatten()
        for w in pushes
    )
    assert torch.cosine_similarity(*directions, dim=0) == pytest.approx(0.865, abs=5e-4)
    assert "cosine is .865" in lecture.text("rare-after")


def test_what_lasts_when_a_part_is_switched_off(lecture):
    """The two things to try: hindsight without a reward, and a curriculum that stays short."""
    rare, told = lecture["rare"], lecture.text("rare-after")
    settings = {"length": 6, "seed": 0}
    nothing = {"reward": lambda x, y: torch.zeros(len(x)), "hindsight": True, "updates": 200}
    short = {"updates": 170, "lengths": 170 * [2]}
    assert "(.98)" in told
    assert "right on .94" in told
    assert rare.seek(rare.Sorter(5), **nothing, **settings)[-1] == pytest.approx(0.98, abs=0.02)
    assert rare.seek(rare.Sorter(5), **short, **settings)[-1] == pytest.approx(0.94, abs=0.02)
