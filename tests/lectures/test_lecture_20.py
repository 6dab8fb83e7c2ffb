"""What lecture 20 says in text and cannot assert in its own cells.

Its folded solutions run and end where it says, numbers done by hand are right, what it printed is
what the prose says, and its helpers compute what they claim.
"""

import contextlib
import io
import itertools
import math
import re
from dataclasses import dataclass

import matplotlib.pyplot as plt
import pytest
import torch

from lectures import expert_iteration, figures_20
from lectures.widgets import BestOfN
from llm_trainer.evaluate import pass_at_k
from policy_gradients import leave_one_out
from toy_models import exact, planning
from toy_models.sorting import is_sorted

LECTURE = "20_control_as_inference_and_planning"
USED = ["setup", "law"]


def said_by(code, names):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(code, names)  # its own asserts are the claim
    return said.getvalue()


# --- helpers ------------------------------------------------------------------------------------


def test_best_of_lists_all_choices():
    """Against a listing of every choice of k answers, ties broken evenly."""
    judged = torch.tensor([[2.0, 1, 2, 0, 1], [0, 0, 0, 0, 1]])
    correct = torch.tensor([[1.0, 0, 0, 1, 1], [1, 0, 1, 0, 0]])
    for k in (1, 2, 4):
        total = 0.0
        for scores, ok in zip(judged, correct, strict=True):
            chosen = [
                ok[list(some)][scores[list(some)] == scores[list(some)].max()].mean()
                for some in itertools.combinations(range(5), k)
            ]
            total += sum(chosen) / len(chosen)
        assert figures_20.best_of(k, judged, correct) == pytest.approx(float(total) / 2)


def test_best_of_with_the_rule_is_pass_at_k():
    correct = torch.tensor([[1.0, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [0] * 6])
    for k in (1, 2, 3, 6):
        exactly = sum(pass_at_k(6, int(c), k) for c in correct.sum(1)) / 3
        assert figures_20.best_of(k, correct, correct) == pytest.approx(exactly)


def test_vote_by_hand():
    texts = ["a", "b", "b", "a", "c", "c", "c", "d"]  # two words, four answers
    correct = torch.tensor([[1.0, 0, 0, 1], [0, 0, 0, 1]])
    assert figures_20.vote(texts, correct, 1) == pytest.approx(3 / 8)
    assert figures_20.vote(texts, correct, 2) == pytest.approx((0.5 + 0.5 + 0 + 0.5) / 4)
    assert figures_20.vote(texts, correct, 4) == pytest.approx((0.5 + 0) / 2)


def test_same_letters_by_hand():
    texts = ["<answer>nus</answer>", "<answer>uns</answer>", "<answer>nuss</answer>", "sun"]
    assert figures_20.same_letters(texts, ["Sun"]).tolist() == [1, 1, 0, 1]


def test_crosses_by_hand():
    assert figures_20.crosses(0.5, [0, 10, 20], [0.2, 0.4, 0.8]) == pytest.approx(12.5)


def test_calls_count_each_beginning_once():
    prompt, goal = torch.tensor([[1, 0]]), [0, 1, 2]
    policy = planning.sorting_tree(prompt, 2, skill=30.0)  # writes nothing else
    assert figures_20.calls_of_sampling(policy, prompt, goal, seed=0) == 3
    assert figures_20.calls_of_search(policy, prompt, goal, is_sorted, seed=0) == 3
    never = planning.sorting_tree(prompt, 2, skill=-30.0)
    assert figures_20.calls_of_sampling(never, prompt, goal, seed=0) == math.inf


def test_a_counted_model_converges_to_the_truth():
    gaps = [
        float((rows[:, 0] - rows[:, 1])[-1])
        for rows in (figures_20.learned_worlds(n, horizon=5, worlds=40) for n in (5, 5000))
    ]
    assert gaps[0] > 0.02 > 0.002 > abs(gaps[1])


def test_pictures_can_be_drawn():
    wanted = {name: [0.1, 0.5] for name in ("the rule", "majority")}
    cases = {"half": (1000.0, 30.0, 300.0), "more": (3000.0, 30.0, 900.0)}
    for figure in (
        figures_20.tries([1, 2], wanted, {"greedy": 0.4}),
        figures_20.crossing([1, 10, 100], cases),
        figures_20.iterations({"0/1, RLOO": (torch.arange(3), torch.rand(2, 3))}),
        figures_20.prizes(*figures_20.buying([0, 5, 20]), fair=18),
    ):
        plt.close(figure)


# --- the committed runs -------------------------------------------------------------------------


@pytest.mark.parametrize("row", expert_iteration.ROWS)
def test_logs_of_expert_iteration_are_whole(row):
    logs = expert_iteration.load(row)
    assert [log.head["seed"] for log in logs] == ([0, 1] if "_lr_" in row else [0, 1, 2])
    for log in logs:
        assert log.lines[-1]["step"] == 240
        assert len(log.head["commit"]) == 10, "made by files that no commit holds"
        assert set(log.head["config"]) <= {"seed", "device", "algorithm", "epochs", "lr"}


def test_several_updates_per_batch_end_lower_and_narrower(lecture):
    once, again = (expert_iteration.load(row) for row in ("successes", "successes_again"))
    means = [sum(log.column("eval/exact")[1][-1] for log in logs) / 3 for logs in (once, again)]
    assert means[1] < means[0]
    entropy = [log.column("entropy")[1][-1] for log in again]
    assert max(entropy) < 0.015
    assert "ends lower and at .01 nats" in lecture.text("iterate-after")


def test_imitate_is_minus_the_mean_log_probability_of_what_was_right():
    logp = torch.tensor([[-1.0, -2.0], [-3.0, -9.0]], requires_grad=True)
    mask, A = torch.tensor([[1.0, 1], [1, 0]]), torch.tensor([[0.5], [-0.5]])
    loss = expert_iteration.imitate(logp, logp.detach(), A, mask, sequences=2)
    assert loss.item() == pytest.approx(1.5)
    (slope,) = torch.autograd.grad(loss, logp)
    assert slope.tolist() == [[-0.5, -0.5], [0, 0]]


def test_a_reward_is_whether_the_answer_is_right(monkeypatch):
    @dataclass
    class Drawn:
        rewards: torch.Tensor
        correct: torch.Tensor

    drawn = Drawn(torch.tensor([[1.1, 0.7]]), torch.tensor([[1.0, 0.0]]))
    monkeypatch.setattr(expert_iteration.Training, "draw", lambda run, record: (drawn, {}, []))
    run = object.__new__(expert_iteration.RightOrWrong)
    assert run.draw()[0].rewards.tolist() == [[1, 0]]


def test_an_unknown_row_is_named():
    with pytest.raises(KeyError, match="no row 'all'"):
        expert_iteration.load("all")


# --- what the text says -------------------------------------------------------------------------


def test_exercise_1_by_hand(lecture):
    told = lecture.text("exercise-1")
    good = 0.1 * math.exp(2) + 0.9 * math.exp(-1)
    assert good == pytest.approx(1.070, abs=5e-4)
    assert good / (1 + good) == pytest.approx(0.517, abs=5e-4)
    assert 1 / (1 + math.exp(0.7)) == pytest.approx(0.332, abs=5e-4)
    p, scores = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.0, 1, 1]).double()
    law = planning.best_of_n_law(p, scores, 2)
    assert law.tolist() == pytest.approx([0.25, 0.45, 0.30])
    assert planning.best_of_n_kl(p, scores, 2).item() == pytest.approx(0.131, abs=5e-4)
    assert planning.best_of_n_bound(2) == pytest.approx(0.193, abs=5e-4)
    for number in ("1.070", ".517", ".332", ".45", ".131", ".193"):
        assert number in told


def test_exercise_2_runs(lecture):
    assert said_by(lecture.solution("exercise-2"), lecture.names).count("promised") == 4


def test_exercise_3_refutes_in_ten_lines(lecture):
    code = lecture.solution("exercise-3")
    assert len(code.strip().splitlines()) <= 11
    assert said_by(code, lecture.names).count("formula") == 3


def test_answers_beside_the_widget(lecture):
    told = lecture.text("widget-after")
    most = BestOfN(n=64, reward="binary", judge="rule").numbers["kl"]
    assert "-\\log p=2.97" in told
    assert most["chosen"] < most["top"] == pytest.approx(2.97, abs=5e-3)
    assert "the formula says 3.17" in told
    assert most["bound"] == pytest.approx(3.17, abs=5e-3)
    noisy = BestOfN(n=64, judge="coin", error=1).numbers
    assert "a point too high" in told
    assert noisy["says"] - noisy["J"]["chosen"] == pytest.approx(1, abs=0.01)


def test_noise_of_both_estimators_at_a_low_pass_rate(lecture):
    assert "($p=.07$: 1.6 and 1.8 times" in lecture.text("iterate-text") + lecture.text(
        "search-after"
    )
    prompt = lecture["prompt"]
    policy = exact.skilled_policy(exact.random_logits(3, 3, scale=0.5, seed=3), prompt, 0)
    p = exact.expected_reward(policy, prompt, is_sorted).item()
    north = exact.exact_gradient(policy, prompt, is_sorted)
    spread = [
        exact.gradient_moments(policy, prompt, is_sorted, weigh, group=8).trace
        / float(north @ north)
        for weigh in (lambda r: r, leave_one_out)
    ]
    assert (p, *spread) == pytest.approx((0.07, 1.61, 1.78), abs=0.01)


def test_no_sampled_elite_of_permutations_helps_a_fit_to_all_of_them(lecture):
    """In the text: independent positions cannot hold six permutations; chance breaks the tie."""
    plan = planning.CategoricalPlan(torch.full((3, 3), 1 / 3), floor=0.05)

    def different(y):
        return (y.sort(1).values == torch.arange(3)).all(1).double()

    how = {"samples": 40, "elite": 6, "rounds": 10}
    found = [planning.cross_entropy_method(different, plan, **how, seed=k) for k in range(5)]
    assert min(run.scores[-1].mean() for run in found) > 0.6  # settled on one of them
    assert "breaks the tie by chance" in lecture.text("drive-text")


def test_numbers_in_the_text_are_those_that_were_printed(lecture):
    assert "expects to win 4.6 points and loses 1.2" in lecture.text("puzzle-after")
    assert "expects +4.63 points and gets -1.22" in lecture.printed("puzzle")
    assert "posterior buys 0.937, J -1.219" in lecture.printed("cure")
    assert re.search(r"soft_values +right with probability 0\.746", lecture.printed("shortcut"))
    assert re.search(r"mean_values +right with probability 0\.338", lecture.printed("shortcut"))
    assert "Less than half" in lecture.text("shortcut-after")
    assert "learned in three rounds" in lecture.text("drive-text")
    assert "[0.8  1.92 2.82" in lecture.printed("fit-sorter")
    assert "right in one sample of six" in lecture.text("iterate-after")
    assert "right: 17.1% of the samples" in lecture.printed("ask")
    ends = re.findall(r"(\d\d\.\d)% to (\d\d\.\d)%", lecture.printed("iterate"))
    middles = [sum(map(float, pair)) / 2 for pair in ends]
    assert "costs two points" in lecture.text("iterate-after")
    assert middles[1] - middles[2] == pytest.approx(2, abs=0.6)
    said = lecture.printed("iterate")
    assert "at half and at double the learning rate too" in lecture.text("iterate-after")
    assert [float(x) for x in re.findall(r"(\d\d\.\d)% or", said)] == [94.0, 92.8, 93.5, 92.4]
    assert "another one and a half" in lecture.text("iterate-after")
    assert middles[0] - middles[1] == pytest.approx(1.5, abs=0.4)
    assert "about .56 of itself" in lecture.text("collapse-after")
    assert re.search(r"spread \[1\.5  0\.85 0\.46", lecture.printed("collapse"))


def test_successes_only_are_ahead_at_every_common_evaluation():
    only, rloo = (expert_iteration.load(row) for row in ("successes", "failures_too"))
    mean = [
        sum(torch.tensor(log.column("eval/exact")[1]) for log in logs) / 3 for logs in (only, rloo)
    ]
    assert (mean[0][1:] > mean[1][1:]).all()
