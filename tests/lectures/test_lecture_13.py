"""What lecture 13 says in text and cannot assert in its own cells.

Numbers in its prose come from the committed logs and are compared with them here; its folded
solutions run; what is done by hand is right.
"""

import itertools
import math
import re
import statistics

import pytest
import torch

from lectures import experiments, figures_13, noise_scale
from lectures.experiments import interval, load
from llm_trainer.config import CONFIGS
from llm_trainer.config import load as load_config
from llm_trainer.models import load_policy
from llm_trainer.task import load_task
from llm_trainer.train import starting_model
from toy_models.race import _student_quantile

LECTURE = "13_experiments"
USED = ["setup", "noise-toy"]
MATCHED = ("reinforce", "rloo", "grpo", "dr_grpo", "dapo")


def ends(name, row, metric="eval/exact"):
    return [100 * run.column(metric)[1][-1] for run in load(name)[row]]


def gap(name, row, other):
    """(mean, half width) of a paired difference at the end, in points."""
    return interval([a - b for a, b in zip(ends(name, row), ends(name, other), strict=True)])


def test_the_matched_rows_end_where_the_text_says(lecture):
    told = lecture.text("matched-after")
    means = [statistics.fmean(ends("matched", row)) for row in MATCHED]
    assert "between 90.3 and 91.5 %" in told
    assert (round(min(means), 1), round(max(means), 1)) == (90.3, 91.5)
    assert "the lead is .1 ± .8" in told
    assert gap("matched", "dapo", "grpo") == pytest.approx((0.1, 0.8), abs=0.06)
    assert "DAPO leads by 2.6 points" in told
    pairs = list(itertools.combinations(MATCHED, 2))
    gaps = {pair: gap("matched", *pair) for pair in pairs}
    resolution = [half for _, half in gaps.values()]
    assert "over the ten pairs, between .5 and 2.3 points" in told
    assert (min(resolution), max(resolution)) == pytest.approx((0.5, 2.3), abs=0.06)
    assert "Dr. GRPO ends .7 ± .5 below RLOO and 1.1 ± .5 below DAPO" in told
    assert gaps["rloo", "dr_grpo"] == pytest.approx((0.7, 0.5), abs=0.06)
    assert gaps["dr_grpo", "dapo"] == pytest.approx((-1.1, 0.5), abs=0.06)
    wider = {p: half * _student_quantile(1 - 0.05 / 20, 4) / 2.776 for p, (_, half) in gaps.items()}
    assert [p for p in pairs if abs(gaps[p][0]) > wider[p]] == [("dr_grpo", "dapo")]


def test_the_clip_of_the_gradient_binds_for_two_rows_only(lecture):
    assert "the others in none" in lecture.text("matched-text")
    for row, runs in load("matched").items():
        norms = [x for run in runs for x in run.column("grad_norm")[1][:20]]
        share = sum(x > 1 for x in norms) / len(norms)
        assert share > 0.95 if row in ("reinforce", "rloo") else share == 0


def test_dapo_gets_more_than_twice_the_samples_per_update():
    runs = load("matched")["dapo"]
    assert max(run.lines[-1]["step"] for run in runs) < 240 / 2


def test_students_quantiles_of_the_resolution():
    for n, told in ((5, 1.24), (3, 2.48), (2, 8.98)):
        quantile = _student_quantile(0.975, n - 1)
        assert quantile == pytest.approx(experiments.T_95[n], abs=2e-3)
        assert quantile / math.sqrt(n) == pytest.approx(told, abs=6e-3)


def test_the_run_that_was_read(lecture):
    told = lecture.text("order-text")
    often, once, leash = (load("updates")[k] for k in ("epochs_4", "epochs_1", "epochs_4_kl_0.04"))

    def mean(runs, name, first, last):
        return statistics.fmean(run.mean(name, first, last) for run in runs)

    clipped = [
        sum(mean(often, name, *span) for name in ("clip/low", "clip/high"))
        for span in ((0, 2560), (17920, 20480))
    ]
    assert "about 10 % of the tokens are clipped at first, 1 % at the end" in told
    assert clipped == pytest.approx([0.10, 0.013], abs=0.01)
    assert "grows to 1.3 nats per token" in told
    kl = [mean(runs, "kl/ref", 17920, 20480) for runs in (often, once, leash)]
    assert kl == pytest.approx([1.3, 0.2, 0.2], abs=0.06)


def test_words_that_come_back(lecture):
    told = lecture.text("few-words-after")
    assert "ends at 94 % of them and 66 % of the others, after 78 %" in told
    runs = load("words")["words_32"]
    assert statistics.fmean(ends("words", "words_32", "train/exact")) == pytest.approx(94, abs=0.6)
    assert statistics.fmean(ends("words", "words_32")) == pytest.approx(66, abs=0.6)
    best = statistics.fmean(run.column("eval/exact")[1].max() for run in runs)
    assert best == pytest.approx(0.78, abs=0.006)


def test_numbers_of_the_sweep(lecture):
    assert "3.3 ± 2.4 points" in lecture.text("sweep-after")
    assert gap("group", "group_16", "group_8") == pytest.approx((-3.3, 2.4), abs=0.06)
    broken = [sum(x < 1 for x in ends("format", row)) for row in ("grpo_format_0", "rloo_format_0")]
    assert broken == [2, 1]
    assert "In the other broken seed" in lecture.text("broken-after")


def test_numbers_of_the_batch_section(lecture):
    told = lecture.text("batch-after")
    assert "−2.2 ± 1.6 points" in told
    assert gap("batch", "prompts_64", "prompts_16") == pytest.approx((-2.2, 1.6), abs=0.06)
    assert "between 6,400 and 11,520" in told
    assert "5,120 in all three seeds" in told

    def needed(row, level=0.85):
        return [experiments.reach(run, level) for run in load("batch")[row]]

    assert sorted(needed("prompts_4"))[::2] == [6400, 11520]
    assert set(needed("prompts_4_lr_scaled")) == {5120}
    assert "need 1.5 to 1.7 times the responses" in told
    middle = statistics.fmean(needed("prompts_16"))
    rows = ("prompts_64_lr_scaled", "prompts_64")
    more = [statistics.fmean(needed(row)) / middle for row in rows]
    assert more == pytest.approx([1.5, 1.7], abs=0.05)
    law = [(1 + 64 / scale) / (1 + 16 / scale) for scale in (186, 44)]
    assert "allow 1.2 to 1.8" in told
    assert law == pytest.approx([1.2, 1.8], abs=0.05)
    assert "Steps of 4 *halve* the responses to 80 %" in told
    four = needed("prompts_4", 0.8) + needed("prompts_4_lr_scaled", 0.8)
    assert {2 * x for x in four} == set(needed("prompts_16", 0.8)) == {5120}


def test_the_noise_scale_that_the_text_names(lecture):
    told = lecture.text("noise-after")
    assert "44 prompts at the start, 135 to 199 after 20 updates, 135 to 232 after 60" in told
    lines = [{x["step"]: x["b_simple"] for x in run.lines} for run in noise_scale.load()]
    start, sooner, later = ([x[step] for x in lines] for step in (0, 20, 60))
    assert statistics.fmean(start) == pytest.approx(44, abs=0.6)
    assert (min(sooner), max(sooner)) == pytest.approx((135, 199), abs=1)
    assert (min(later), max(later)) == pytest.approx((135, 232), abs=1)
    extra = [1 + 16 / statistics.fmean(x) for x in (start, later)]
    assert "a third at the start and a tenth later" in told
    assert extra == pytest.approx([1.36, 1.09], abs=0.02)


def test_sums_improve_as_told(lecture):
    assert "From 50 to 73 %" in lecture.text("arithmetic-after")
    runs = load("arithmetic")["grpo"]
    exact = [
        statistics.fmean(100 * run.column("eval/exact")[1][k] for run in runs) for k in (0, -1)
    ]
    assert exact == pytest.approx([50.3, 72.9], abs=0.06)
    shown = [s for s in runs[0].lines[-1]["samples"][:4] if s["place"].startswith("worst")]
    assert len(shown) == 2
    for s in shown:
        numbers = [int(n) for n in re.findall(r"\d+", s["prompt"])]
        assert abs(int(re.search(r"\d+", s["response"])[0]) - sum(numbers)) == 1


def test_held_out_sums_are_other_orders_of_trained_ones(lecture):
    assert "299 of the 300 are numbers trained on in another order" in lecture.text(
        "arithmetic-after"
    )
    config = load_config(CONFIGS / "grpo_tiny_arithmetic.yaml")
    task = load_task(config.task)

    def numbers(entry):
        return tuple(int(n) for n in re.findall(r"\d+", entry["question"]))

    held_out = [numbers(entry) for entry in task.held_out[: config.eval_words]]
    trained = {numbers(entry) for entry in task.stream(0).take(8000)}
    any_order = {tuple(sorted(found)) for found in trained}
    assert len(held_out) == 300
    assert not trained & set(held_out)
    assert sum(tuple(sorted(found)) in any_order for found in held_out) == 299


def test_what_each_order_forgets(lecture):
    told = lecture.text("order-after")
    assert "by 10 and by 39 points" in told
    assert gap("curriculum", "easy_first", "mixed")[0] == pytest.approx(-9.7, abs=0.06)
    assert gap("curriculum", "hard_first", "mixed")[0] == pytest.approx(-39.1, abs=0.06)
    known = [
        ("hard_first", 7, 90, 41, "7-letter words fall from 90 to 41 %"),
        ("hard_first", 4, 92, 40, "4-letter ones, left only six updates before, to 40 %"),
        ("hard_only", 3, 92, 8, "the 3-letter words go from 92 to 8 %"),
    ]
    for row, letters, before, after, words in known:
        assert words in told
        runs = load("curriculum")[row]
        columns = [run.column(f"eval/exact/{letters}_letters")[1] for run in runs]
        curve = [100 * statistics.fmean(x) for x in zip(*columns, strict=True)]
        assert (max(curve), curve[-1]) == pytest.approx((before, after), abs=0.6)


def test_how_long_an_order_stays_at_a_length(lecture):
    """Of the words of a sorted run, and of the held-out words, as the text counts them."""
    told = lecture.text("order-after")
    row = experiments.EXPERIMENTS["curriculum"].rows["hard_first"]
    task = load_task(load_config(CONFIGS / "grpo_tiny.yaml").task)
    updates = {n: [] for n in range(3, 8)}
    for seed in range(5):
        words = experiments.stream_of(row, task, seed, 3840).take(3840)
        for n, found in updates.items():
            found.append(sum(len(word) == n for word in words) / 16)
    mean = {n: round(statistics.fmean(found)) for n, found in updates.items()}
    assert "97 updates of 7 letters" in told
    assert "5, 4 and 3 letters (43, 21 and 6 of them)" in told
    assert [mean[n] for n in (7, 5, 4, 3)] == pytest.approx([97, 43, 21, 6], abs=1.01)
    held_out = task.held_out[: load_config(CONFIGS / "grpo_tiny.yaml").eval_words]
    assert "Only 24 of the held-out words" in told
    assert sum(len(word) == 3 for word in held_out) == 24


def test_the_first_sign_of_the_missing_format_reward(lecture):
    told = lecture.text("broken-after")
    assert "some 2 % at update 90, 5 and 10 % at 110" in told
    lines = {x["step"]: x for x in load("format")["grpo_format_0"][1].lines}
    for step, cut, bad in ((90, 0.016, 0.024), (110, 0.05, 0.10)):
        assert lines[step]["length/truncated"] == pytest.approx(cut, abs=6e-3)
        assert 1 - lines[step]["reward/format"] == pytest.approx(bad, abs=8e-3)
    assert "has fallen to 68 %" in told
    assert lines[110]["eval/exact"] == pytest.approx(0.68, abs=6e-3)
    lengths = load("letters")["letters_8_to_9"][0].column("length/mean")[1]
    assert lengths[-1] == pytest.approx(11, abs=0.05)
    assert any(abs(x - 10) < 0.05 for x in lengths)


def test_exercise_1_by_hand():
    p = torch.tensor([0.02, 0.9], dtype=torch.float64)
    there = (1 - p**8 - (1 - p) ** 8).mean()
    mean = p.mean()
    assert 1 - mean**8 - (1 - mean) ** 8 == pytest.approx(0.99, abs=5e-3)
    assert there == pytest.approx(0.36, abs=5e-3)
    assert 2 * experiments.T_95[5] / 5**0.5 == pytest.approx(2.5, abs=0.05)
    steps, samples = [1 + 40 / P for P in (10, 160)], [1 + P / 40 for P in (10, 160)]
    assert (steps, samples) == ([5, 1.25], [1.25, 5])


def test_exercise_2_filters_the_words(lecture, capsys):
    config = load_config(CONFIGS / "grpo_tiny.yaml")
    start = load_policy(config, starting_model(config, quiet=True))
    lecture.names.update(config=config, start=start, task=load_task(config.task), math=math)
    exec("from llm_trainer.config import with_values", lecture.names)
    lecture.run("levels")
    exec(lecture.solution("exercise-2"), lecture.names)
    assert "104 words stay" in lecture.text("exercise-2")
    assert int(lecture["keep"].sum()) == pytest.approx(104, abs=15)
    keep, both = lecture["keep"], lecture["both"]
    old, new = (lecture["contrast"](x.correct[keep], 8) for x in both.values())
    assert (old, new) == pytest.approx((0.85, 0.77), abs=0.05)
    assert old > new


def test_exercise_3_refutes_by_enumeration(lecture):
    exec(lecture.solution("exercise-3"), lecture.names)  # its own assert is the claim
    noise = lecture["noise"]
    assert noise["supervised"] == pytest.approx(4.7, abs=0.05)
    assert noise["graded"] == pytest.approx(1.57, abs=0.05)
    assert noise["0/1"] == pytest.approx(16.3, abs=0.3)
    told = lecture.text("exercise-3")
    assert "per answer it is 2.7 times as noisy" in told
    assert "28 times" in told
    answers = lecture["per_answer"]
    assert answers["graded"] / answers["supervised"] == pytest.approx(2.7, abs=0.05)
    assert answers["0/1"] / answers["supervised"] == pytest.approx(28, abs=0.5)


def test_labels_of_the_rows():
    assert figures_13.short("letters_3_to_4", "letters") == "3–4"
    assert figures_13.short("grpo_format_0.1", "format") == "GRPO, 0.1"
    assert figures_13.short("temperature_0.3", "temperature") == "0.3"


def test_a_mean_whose_interval_holds_0_is_hollow():
    figure, axis = figures_13.plt.subplots()
    figures_13.seeds(axis, 0, [1.0, 2.0, -1.0], "#000000")
    figures_13.seeds(axis, 1, [1.0, 1.1, 0.9], "#000000")
    marks = [line for line in axis.lines if line.get_marker() == "D"]
    assert [mark.get_markerfacecolor() for mark in marks] == ["white", "#000000"]
    figures_13.plt.close(figure)
