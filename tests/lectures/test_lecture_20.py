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
from toy_models import exact, planning, soft_control
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
        figures_20.iterations(
            {cut: {"RLOO": (torch.arange(3), torch.rand(2, 3))} for cut in ("cut", "not cut")}
        ),
        figures_20.prizes(*figures_20.buying([0, 5, 20]), fair=18),
    ):
        plt.close(figure)


# --- the committed runs -------------------------------------------------------------------------


@pytest.mark.parametrize("row", expert_iteration.ROWS)
def test_logs_of_expert_iteration_are_whole(row):
    logs = expert_iteration.load(row)
    seeds = {"successes_again": 3} | {name: 2 for name in expert_iteration.ROWS if "_lr_" in name}
    assert [log.head["seed"] for log in logs] == list(range(seeds.get(row, 5)))
    for log in logs:
        assert log.lines[-1]["step"] == 240
        assert len(log.head["commit"]) == 10, "made by files that no commit holds"
        assert set(log.head["config"]) <= {
            "seed",
            "device",
            "algorithm",
            "epochs",
            "lr",
            "max_grad_norm",
        }
        if "_uncut" in row:
            assert max(log.column("grad_norm")[1]) < 5 < log.head["config"]["max_grad_norm"]


def ends(row, seeds=5):
    return [log.column("eval/exact")[1][-1] for log in expert_iteration.load(row)[:seeds]]


def test_several_updates_per_batch_end_lower_and_narrower_but_not_below_rloo(lecture):
    again = ends("successes_again")
    means = [sum(x) / 3 for x in (again, ends("successes", 3), ends("failures_too", 3))]
    assert means == pytest.approx([0.937, 0.949, 0.933], abs=5e-4)
    late = [log.column("entropy")[1][-1] for log in expert_iteration.load("successes_again")]
    assert max(late) < 0.015
    told = lecture.text("iterate-after")
    assert "three seeds end at 93.7 %, with one at 94.9, RLOO at 93.3" in told


def test_the_lead_holds_at_other_rates_with_the_cut(lecture):
    for lr in ("2.5e-4", "1e-3"):
        assert min(ends(f"successes_lr_{lr}")) > max(ends(f"failures_too_lr_{lr}"))
    told = lecture.text("iterate-after")
    assert "at half and double the learning rate too" in told
    last = [sum(ends(row)) / 5 for row in ("successes", "failures_too")]
    assert "on average by 1.4 points" in told
    assert last[0] - last[1] == pytest.approx(0.014, abs=5e-4)
    five = [
        sum(sum(log.column("eval/exact")[1][-5:]) / 25 for log in expert_iteration.load(row))
        for row in ("successes_uncut", "failures_too_uncut")
    ]
    assert five[0] - five[1] == pytest.approx(0.014, abs=5e-4)  # "by as much"


def test_gradients_of_rloo_are_longer_and_the_cut_meets_them_at_every_step(lecture):
    """In the text: about twice as long."""
    ratios = []
    for cut in ("", "_uncut"):
        only, rloo = (
            [torch.tensor(log.column("grad_norm")[1]) for log in expert_iteration.load(row + cut)]
            for row in ("successes", "failures_too")
        )
        assert all((norm > 1).all() for norm in rloo)  # means of 20 steps
        ratios.append(torch.stack(rloo).mean(0) / torch.stack(only).mean(0))
    assert all((ratio > 1).all() for ratio in ratios)
    assert 1.5 < ratios[1].mean() < 2.2
    assert "about twice as long" in lecture.text("iterate-text")


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
    assert "At 2.72 nats, below $-\\log p=2.97$" in told
    assert most["chosen"] == pytest.approx(2.72, abs=5e-3)
    assert most["top"] == pytest.approx(2.97, abs=5e-3)
    assert "The formula says 3.17" in told
    assert most["bound"] == pytest.approx(3.17, abs=5e-3)
    shown = BestOfN(n=8, reward="binary", judge="partial").numbers["J"]
    assert "lies *above* Gibbs" in lecture.text("proxy-after")
    assert shown["chosen"] > shown["same"] + 0.02


def test_errors_of_a_noisy_judge_that_are_chosen(lecture):
    """Exercise 2: 82 % of the chosen errors are upwards at N = 4, nearly all at 64."""
    R, prob = lecture["R"], lecture["prob"]
    twice, judged = torch.cat([prob, prob]) / 2, torch.cat([R + 1, R - 1])
    up = {n: planning.best_of_n_law(twice, judged, n)[: len(R)].sum() for n in (4, 64)}
    assert up[4] == pytest.approx(0.82, abs=5e-3)
    assert up[64] > 0.999
    law = planning.best_of_n_law(twice, judged, 64)
    assert law @ judged - law @ torch.cat([R, R]) == pytest.approx(1, abs=0.01)
    assert "82 % of the chosen errors are upwards" in lecture.text("exercise-2")


def test_with_several_decisions_success_given_home_is_not_success_given_control(lecture):
    """A ticket that wins with .3, or a room with ten doors of which one is right: 0/1 rewards."""
    start, room, right, wrong, ticket = range(5)
    moves = torch.zeros(5, 10, 5).double()
    moves[start, 0, room] = moves[start, 1:, ticket] = 1
    moves[room, 0, right] = moves[room, 1:, wrong] = 1
    moves[ticket, :, right], moves[ticket, :, wrong] = 0.3, 0.7
    moves[right, :, right] = moves[wrong, :, wrong] = 1
    pays = (torch.arange(5) == right).double()[:, None].repeat(1, 10)
    prior = torch.full((5, 10), 0.1).double()
    prior[start] = torch.tensor([0.5, 0.5] + 8 * [0.0])
    world = soft_control.MDP(moves, pays, prior, horizon=3, start=torch.eye(5).double()[start])
    enters = [
        solve(world, beta=0.1).policy[0, start, 0].item()
        for solve in (soft_control.messages, soft_control.soft_optimal)
    ]
    assert enters == pytest.approx([0.25, 0.99], abs=2e-3)
    told = lecture.text("cure-question")
    assert "enters the room with .25" in told
    assert "with .99" in told


def skilled(lecture, skill):
    logits = exact.random_logits(3, 3, scale=0.5, seed=3)
    return exact.skilled_policy(logits, lecture["prompt"], skill), lecture["prompt"], is_sorted


def test_noise_of_both_estimators_at_a_low_pass_rate(lecture):
    assert "($p=.07$: 1.6 and 1.8 times" in lecture.text("search-after")
    assert "(12.7 and 13.7 times" in lecture.text("iterate-after")
    for skill, wanted in ((0, (0.07, 1.61, 1.78)), (-1, (0.01, 12.7, 13.7))):
        given = skilled(lecture, skill)
        north = exact.exact_gradient(*given)
        spread = [
            exact.gradient_moments(*given, weigh, group=8).trace / float(north @ north)
            for weigh in (lambda r: r, leave_one_out)
        ]
        p = exact.expected_reward(*given).item()
        assert (p, *spread) == pytest.approx(wanted, abs=0.01 if skill == 0 else 0.05)


def test_the_best_baseline_of_an_expert_is_near_zero(lecture):
    policy, prompt, _ = skilled(lecture, 3)
    answers = exact.responses_of(policy)
    p = exact.response_log_probs(policy, prompt)[0].detach().exp()
    u = [exact.flat_gradient(policy.log_probs(prompt, y[None]).sum(), policy) for y in answers]
    square = torch.stack([one @ one for one in u]).double()
    ok = is_sorted(prompt, answers).double()
    assert (p * ok) @ square / (p @ square) == pytest.approx(0.055, abs=5e-4)
    assert "[BL-4] is .055" in lecture.text("search-after")


def test_no_sampled_elite_of_permutations_helps_a_fit_to_all_of_them(lecture):
    """In the text: independent positions cannot hold six permutations; chance breaks the tie."""
    plan = planning.CategoricalPlan(torch.full((3, 3), 1 / 3), floor=0.05)

    def different(y):
        return (y.sort(1).values == torch.arange(3)).all(1).double()

    how = {"samples": 40, "elite": 6, "rounds": 10}
    found = [planning.cross_entropy_method(different, plan, **how, seed=k) for k in range(5)]
    assert min(run.scores[-1].mean() for run in found) > 0.6  # settled on one of them
    assert "breaks the tie by chance" in lecture.text("fit-after")


def test_numbers_in_the_text_are_those_that_were_printed(lecture):
    assert "expects to win 4.6 points and loses 1.2" in lecture.text("puzzle-after")
    assert "expects +4.63 points and gets -1.22" in lecture.printed("puzzle")
    assert "posterior buys 0.937, J -1.219" in lecture.printed("cure")
    assert re.search(r"soft_values +right with probability 0\.746", lecture.printed("shortcut"))
    assert re.search(r"mean_values +right with probability 0\.338", lecture.printed("shortcut"))
    assert "Less than half" in lecture.text("shortcut-after")
    assert "in a few rounds" in lecture.text("fit-text")
    assert "[0.8  1.92 2.82" in lecture.printed("fit")
    said = [int(x) for x in re.findall(r"-\d+", lecture.printed("shooting"))]
    assert [said[3] - said[1], said[1] - said[0]] == [47, 38]
    assert "is 38 points above one plan, and the elite adds 47" in lecture.text("fit-text")
    assert "right in one sample of six" in lecture.text("iterate-after")
    assert "right: 17.1% of the samples" in lecture.printed("ask")
    even = re.search(r"even at \[(.*)\] ; .*: \[(.*)\]", lecture.printed("even"))
    stopping, at_once = (list(map(int, found.split(", "))) for found in even.groups())
    assert stopping == pytest.approx([728, 1072, 1499], rel=0.15)  # other processors sample anew
    assert at_once == pytest.approx([375, 437, 502], rel=0.15)
    assert "75 %: 17 steps, $N=26$" in lecture.text("even-text")
    assert "75%, N = 26 or 17 steps" in lecture.printed("even")
    assert "about .56 of itself" in lecture.text("collapse-after")
    assert re.search(r"spread \[1\.5  0\.85 0\.46", lecture.printed("collapse"))
