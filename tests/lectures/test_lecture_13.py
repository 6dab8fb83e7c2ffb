"""What lecture 13 says in text and cannot assert in its own cells.

Numbers in its prose come from the committed logs and are compared with them here; its folded
solutions run; what is done by hand is right.
"""

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


def text(lecture, cell):
    return "".join(lecture.cells[cell]["source"])


def ends(name, row, metric="eval/exact"):
    return [100 * run.column(metric)[1][-1] for run in load(name)[row]]


def gap(name, row, other):
    """(mean, half width) of a paired difference at the end, in points."""
    return interval([a - b for a, b in zip(ends(name, row), ends(name, other), strict=True)])


def test_the_matched_rows_end_where_the_text_says(lecture):
    told = text(lecture, "matched-after")
    means = [statistics.fmean(ends("matched", row)) for row in MATCHED]
    assert "90.3 to 91.5 %" in told
    assert (round(min(means), 1), round(max(means), 1)) == (90.3, 91.5)
    assert "the lead is .1 ± .8" in told
    assert gap("matched", "dapo", "grpo") == pytest.approx((0.1, 0.8), abs=0.06)
    assert "DAPO leads by 2.6 points" in told
    resolution = [gap("matched", row, "grpo")[1] for row in MATCHED if row != "grpo"]
    assert "between .8 and 2.3 points" in told
    assert (min(resolution), max(resolution)) == pytest.approx((0.8, 2.3), abs=0.06)


def test_dapo_gets_more_than_twice_the_samples_per_update():
    runs = load("matched")["dapo"]
    assert max(run.lines[-1]["step"] for run in runs) < 240 / 2


def test_students_quantiles_of_the_resolution():
    for n, told in ((5, 1.24), (3, 2.48), (2, 8.98)):
        quantile = _student_quantile(0.975, n - 1)
        assert quantile == pytest.approx(experiments.T_95[n], abs=2e-3)
        assert quantile / math.sqrt(n) == pytest.approx(told, abs=6e-3)


def test_the_run_that_was_read(lecture):
    told = text(lecture, "order-text")
    often, once, leash = (load("updates")[k] for k in ("epochs_4", "epochs_1", "epochs_4_kl_0.04"))

    def mean(runs, name, first, last):
        return statistics.fmean(run.mean(name, first, last) for run in runs)

    clipped = [
        sum(mean(often, name, *span) for name in ("clip/low", "clip/high"))
        for span in ((0, 2560), (17920, 20480))
    ]
    assert "10 % of the tokens are clipped at first, 1 % at the end" in told
    assert clipped == pytest.approx([0.10, 0.013], abs=0.01)
    assert "grows to 1.3 nats per token" in told
    kl = [mean(runs, "kl/ref", 17920, 20480) for runs in (often, once, leash)]
    assert kl == pytest.approx([1.3, 0.2, 0.2], abs=0.06)


def test_words_that_come_back(lecture):
    told = text(lecture, "few-words-after")
    assert "ends at 94 % of them and 66 % of the others, after 78 %" in told
    runs = load("words")["words_32"]
    assert statistics.fmean(ends("words", "words_32", "train/exact")) == pytest.approx(94, abs=0.6)
    assert statistics.fmean(ends("words", "words_32")) == pytest.approx(66, abs=0.6)
    curve = [statistics.fmean(x) for x in zip(*(r.column("eval/exact")[1] for r in runs))]  # noqa: B905
    assert max(curve) == pytest.approx(0.77, abs=0.02)


def test_numbers_of_the_sweep(lecture):
    assert "3.3 ± 2.4 points" in text(lecture, "sweep-after")
    assert gap("group", "group_16", "group_8") == pytest.approx((-3.3, 2.4), abs=0.06)
    broken = [sum(x < 1 for x in ends("format", row)) for row in ("grpo_format_0", "rloo_format_0")]
    assert broken == [2, 1]
    assert "Two of three seeds did this" in text(lecture, "broken-after")


def test_numbers_of_the_batch_section(lecture):
    told = text(lecture, "batch-after")
    assert "−2.2 ± 1.6 points" in told
    assert gap("batch", "prompts_64", "prompts_16") == pytest.approx((-2.2, 1.6), abs=0.06)
    assert "between 6,400 and 11,520" in told
    assert "5,120 in all three seeds" in told

    def needed(run):
        return next(x["responses"] for x in run.lines if x.get("eval/exact", 0) >= 0.85)

    runs = load("batch")
    assert sorted(map(needed, runs["prompts_4"]))[::2] == [6400, 11520]
    assert set(map(needed, runs["prompts_4_lr_scaled"])) == {5120}


def test_the_noise_scale_that_the_text_names(lecture):
    assert "From 43 prompts at the start to some 190 after 60 updates" in text(
        lecture, "noise-after"
    )
    assert "(43, 186)" in text(lecture, "batch")
    lines = [{x["step"]: x["b_simple"] for x in run.lines} for run in noise_scale.load()]
    start, later = ([x[step] for x in lines] for step in (0, 60))
    assert statistics.fmean(start) == pytest.approx(43, abs=1)
    assert statistics.fmean(later) == pytest.approx(186, abs=1)


def test_sums_improve_as_told(lecture):
    assert "From 50 to 73 %" in text(lecture, "arithmetic-after")
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


def test_what_each_order_forgets(lecture):
    told = text(lecture, "order-after")
    assert "by 10 and by 39 points" in told
    assert gap("curriculum", "easy_first", "mixed")[0] == pytest.approx(-9.7, abs=0.06)
    assert gap("curriculum", "hard_first", "mixed")[0] == pytest.approx(-39.1, abs=0.06)
    for row, letters, before, after in (("easy_first", 3, 92, 40), ("hard_first", 7, 90, 41)):
        assert f"{letters}-letter words" in told
        assert f"from {before} to {after} %" in told
        runs = load("curriculum")[row]
        columns = [run.column(f"eval/exact/{letters}_letters")[1] for run in runs]
        curve = [100 * statistics.fmean(x) for x in zip(*columns, strict=True)]
        assert (max(curve), curve[-1]) == pytest.approx((before, after), abs=0.6)


def test_the_first_sign_of_the_missing_format_reward(lecture):
    assert "2 % at update 90" in text(lecture, "broken-after")
    run = load("format")["grpo_format_0"][1]
    (line,) = (x for x in run.lines if x["step"] == 90)
    assert line["length/truncated"] == pytest.approx(0.02, abs=5e-3)
    assert line["eval/exact"] > 0.87


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
    lecture.run("three-numbers")
    code = lecture.solution("exercise-2")
    exec(code, lecture.names)
    kept = lecture["keep"].float().mean()
    assert "About half of the words" in text(lecture, "exercise-2")
    assert kept == pytest.approx(0.5, abs=0.12)


def test_exercise_3_refutes_by_enumeration(lecture):
    exec(lecture.solution("exercise-3"), lecture.names)  # its own assert is the claim
    noise = lecture["noise"]
    assert noise["supervised"] == pytest.approx(4.7, abs=0.05)
    assert noise["graded"] == pytest.approx(1.57, abs=0.05)
    assert noise["0/1"] == pytest.approx(16.3, abs=0.3)


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
