"""The experiments of lecture 13: their logs, their settings, and that a run repeats itself."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lectures import experiments as lab
from llm_trainer.config import build
from llm_trainer.console import Sample
from llm_trainer.task import load_task

README = Path(lab.__file__).parent / "reference_runs" / "README.md"
PATHS = sorted(path for name in lab.EXPERIMENTS for path in (lab.LOGS / name).glob("*.jsonl"))
SMALL = {"prompts": 2, "micro_batch": 2, "group": 2, "eval_words": 8}


def rows():
    """Every (experiment, row) that has logs of its own."""
    for name, experiment in lab.EXPERIMENTS.items():
        for label in experiment.rows:
            if lab.home(name, label) == (name, label):
                yield name, label


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Of warm starts, shared by this module only."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def small(cache, monkeypatch):
    """An experiment of a few steps on a model that knows nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    sizes = [f"{name}={value}" for name, value in SMALL.items()]
    sizes += ["warmstart.steps=2", "warmstart.short_exact=0"]
    made = lab.Experiment(
        "Does it repeat?",
        {
            "grpo": lab.row(*sizes),
            "easy_first": lab.row(*sizes, order="easy_first"),
            "dapo": lab.row(*sizes, "algorithm=dapo"),
            "few": lab.row(*sizes, only=3),
        },
        seeds=range(2),
        responses=12,
        every_step=True,
        samples=(1,),
        columns=(*lab.USUAL, *lab.MORE),
    )
    monkeypatch.setitem(lab.EXPERIMENTS, "small", made)
    monkeypatch.setattr(lab, "EVALUATED", 8)
    return made


# ------------------------------------------------------------------ the committed logs


def test_every_row_has_all_its_seeds():
    missing = [
        f"{name}/{label}_seed{seed}"
        for name, label in rows()
        for seed in lab.EXPERIMENTS[name].seeds
        if not (lab.LOGS / name / f"{label}_seed{seed}.jsonl").exists()
    ]
    assert missing == []
    known = {(name, f"{label}_seed{s}") for name, label in rows() for s in range(5)}
    assert {(path.parent.name, path.stem) for path in PATHS} <= known


@pytest.mark.parametrize("path", PATHS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_log_is_of_the_settings_of_today(path):
    """A changed YAML, default or row needs new runs; the commit that made it is named."""
    head, *lines = lab.read(path)
    name, label, seed = head["experiment"], head["row"], head["seed"]
    assert path == lab.LOGS / name / f"{label}_seed{seed}.jsonl"
    config = lab.settings(name, label, seed)
    assert build({**head["config"], "output_dir": config.output_dir}) == config
    row = lab.EXPERIMENTS[name].rows[label]
    words = {"letters": list(row.letters or ()), "order": row.order, "only": row.only}
    assert head.get("words", {}) == {k: v for k, v in words.items() if v}
    assert head["command"].endswith(f"{name} --rows {label} --seeds {seed}")
    assert len(head["commit"]) == 10, "made by files that no commit holds"
    assert head["responses"] == lab.EXPERIMENTS[name].responses
    assert "stopped" in head or lines[-1]["responses"] >= head["responses"]
    assert [line["step"] for line in lines] == sorted({line["step"] for line in lines})
    assert "eval/exact" in lines[0]
    assert "eval/exact" in lines[-1] or "stopped" in head


def test_all_spelling_runs_start_from_one_warm_start():
    """Before the first step nothing but the task can differ."""
    starts = {}
    for path in PATHS:
        head, first, *_ = lab.read(path)
        task = json.dumps(head["config"].get("task"))
        starts.setdefault(task, set()).add(first["eval/exact"])
    assert all(len(found) == 1 for found in starts.values()), starts
    assert starts["null"] == {0.466}


def test_the_logs_stay_small_and_say_nothing_of_the_machine_but_its_kind():
    assert sum(path.stat().st_size for path in lab.LOGS.rglob("*") if path.is_file()) < 2_200_000
    about = json.loads((lab.LOGS / "about.json").read_text(encoding="utf-8"))
    assert set(about) == {"command", "versions", "machine"}
    assert "--out" not in about["command"]


def test_the_readme_shows_what_the_logs_give():
    text = README.read_text(encoding="utf-8")
    for name, experiment in lab.EXPERIMENTS.items():
        assert f"### `{name}`\n\n{experiment.question}" in text
        assert lab.table(name) in text, f"python -m lectures.experiments {name} --table"


def over_seeds(name, column):
    """row → the mean over seeds and the whole run."""
    return {
        label: np.mean([run.mean(column, 0, math.inf) for run in runs])
        for label, runs in lab.load(name).items()
    }


def judged(name, pick):
    """row → mean over seeds of what `pick` takes from a run's held-out accuracies."""
    return {
        label: np.mean([pick(run.column("eval/exact")[1]) for run in runs])
        for label, runs in lab.load(name).items()
    }


def test_what_the_readme_says_beside_the_tables():
    """Its sentences, in the order of its sections."""
    ends, ways = judged("matched", lambda x: x[-1]), judged("matched", np.mean)
    assert max(ways, key=ways.get) == "grpo"
    assert max(ends.values()) - min(ends.values()) < 0.015
    contrast, ends = over_seeds("group", "groups/contrast"), judged("group", lambda x: x[-1])
    assert sorted(contrast, key=contrast.get) == ["group_2", "group_4", "group_8", "group_16"]
    assert min(ends, key=ends.get) == "group_16"
    contrast = over_seeds("temperature", "groups/contrast")
    ends = judged("temperature", lambda x: x[-1])
    assert max(contrast, key=contrast.get) == min(ends, key=ends.get) == "temperature_1.5"
    ends = judged("curriculum", lambda x: x[-1])
    assert max(ends, key=ends.get) == "mixed"
    long = lab.load("letters")["letters_8_to_9"]
    assert all(run.mean("reward/exact", 0, 2560) < 0.01 for run in long)
    assert all(run.mean("groups/contrast", 0, 2560) > 0.99 for run in long)
    for label in ("grpo_format_0", "rloo_format_0"):
        last = [run.lines[-1] for run in lab.load("format")[label]]
        broken = [line["eval/exact"] < 0.01 < 0.9 < line["length/truncated"] for line in last]
        assert any(broken)
        assert not all(broken)
        assert all(line["reward/mean"] > 0.95 for line in last)
    gaps = []
    for runs in lab.load("words").values():
        gaps.append(np.mean([r.lines[-1]["train/exact"] - r.lines[-1]["eval/exact"] for r in runs]))
    assert gaps == sorted(gaps, reverse=True)
    for run in lab.load("words")["words_32"]:
        exact = run.column("eval/exact")[1]
        assert exact[0] < exact[-1] < exact.max() - 0.05
    clipped = over_seeds("updates", "clip/low")
    assert clipped["epochs_1"] == 0 < min(clipped["epochs_4"], clipped["epochs_4_kl_0.04"])
    ways = judged("learning_rate", np.mean)
    for lr, place in (("2.5e-4", min), ("1e-3", max)):
        assert place((name for name in ways if name.endswith(lr)), key=ways.get) == f"dapo_lr_{lr}"


def test_the_reference_is_the_benchmarks_run():
    """Evaluating more often and watching a run change nothing about it."""
    from benchmarks import learning_curves as bench

    for seed, run in enumerate(lab.load("reference")["grpo"]):
        log = bench.read(bench.LOGS)["grpo"][seed]
        mine = dict(zip(*(x.tolist() for x in run.column("eval/exact")), strict=True))
        assert {line["step"]: line["eval/exact"] for line in log[1:]}.items() <= mine.items()


def test_matched_rows_differ_in_the_algorithm_and_in_nothing_else():
    settings = [lab.settings("matched", label, 3).model_dump() for label in lab.MATCHED]
    assert [values.pop("algorithm") for values in settings] == list(lab.MATCHED)
    assert all(values == settings[0] for values in settings)


def test_rows_of_an_experiment_sample_equally_many_responses():
    for name, experiment in lab.EXPERIMENTS.items():
        for label, runs in lab.load(name).items():
            for run in runs:
                if "stopped" in run.head:
                    continue
                ends, budget = run.lines[-1]["responses"], experiment.responses
                step = lab.settings(name, label, 0)
                most = step.prompts * step.group * step.resample_limit
                assert budget <= ends < budget + most


# ------------------------------------------------------------------ words


@pytest.mark.parametrize("letters", [(3, 4), (6, 7), (8, 9)])
def test_rows_with_other_words_draw_none_that_judges(letters):
    task = load_task(lab.settings("letters", "letters_3_to_7", 0).task)
    words = lab.stream_of(lab.Row(letters=letters), task, 0, 2000).take(2000)
    assert {len(word) for word in words} == {*range(letters[0], letters[1] + 1)}
    assert not {w.lower() for w in words} & {w.lower() for w in task.held_out}


def test_a_curriculum_is_the_same_words_in_another_order():
    task = load_task(lab.settings("curriculum", "mixed", 4).task)
    mixed, easy, hard = (
        lab.stream_of(row, task, 4, 320).take(320)
        for row in (lab.Row(), lab.Row(order="easy_first"), lab.Row(order="hard_first"))
    )
    assert mixed != easy
    assert sorted(mixed) == sorted(easy) == sorted(hard)
    lengths = [len(word) for word in easy]
    assert lengths == sorted(lengths)
    assert [len(word) for word in hard] == lengths[::-1]


def test_few_words_come_again_and_again():
    task = load_task(lab.settings("words", "words_32", 1).task)
    words = lab.stream_of(lab.Row(only=32), task, 1, 3840).take(96)
    assert {*words} == {*task.stream(1).take(32)}
    assert all(words.count(word) == 3 for word in words)


# ------------------------------------------------------------------ a run


def test_a_run_repeats_itself_bit_by_bit(small):
    """All but the seconds; another seed draws other words."""

    def made(seed):
        run = lab.run("small", "grpo", seed)
        return [{k: v for k, v in x.items() if k != "time/cpu_seconds"} for x in run.lines]

    first = made(0)
    assert first == made(0) != made(1)
    assert [line["responses"] for line in first] == [0, 4, 8, 12]
    assert [line["step"] for line in first if "eval/exact" in line] == [0, 2]
    assert [line["step"] for line in first if "samples" in line] == [1, 3]


def test_a_run_leaves_a_log_that_load_reads(small, tmp_path):
    path = tmp_path / "small" / "easy_first_seed0.jsonl"
    path.parent.mkdir()
    said = lab.keep("small", "easy_first", 0, path)
    head, *lines = lab.read(path)
    assert said.startswith("small/easy_first_seed0: ")
    assert head["words"] == {"order": "easy_first"}
    with pytest.raises(FileNotFoundError, match="no log of small, grpo"):
        lab.load("small", out=tmp_path)
    for label in ("grpo", "dapo", "few"):
        (path.parent / f"{label}_seed0.jsonl").write_text(path.read_text())
    (run,) = lab.load("small", out=tmp_path)["easy_first"]
    assert (run.head, run.lines) == (head, lines)


def test_few_words_are_judged_too(small):
    lines = lab.run("small", "few").lines
    assert [line["step"] for line in lines if "train/exact" in line] == [0, 2]


def test_dynamic_sampling_pays_for_what_it_throws_away(small):
    """A model that knows nothing: no group is kept, so each step samples four rounds."""
    lines = lab.run("small", "dapo").lines
    assert [line["responses"] for line in lines] == [0, 16]
    assert lines[-1]["groups/trained"] == 0


# ------------------------------------------------------------------ reading


def made_up(**numbers):
    lines = [{"step": 0, "responses": 0, "eval/exact": 0.5}]
    for step in range(1, 5):
        lines.append({"step": step, "responses": 10 * step})
        lines[-1] |= {name: values[step - 1] for name, values in numbers.items()}
    return lab.Run({}, lines)


def test_columns_means_and_cuts():
    run = made_up(loss=[1.0, 2.0, 3.0, 6.0])
    steps, values = run.column("loss")
    np.testing.assert_array_equal(steps, [1, 2, 3, 4])
    np.testing.assert_array_equal(values, [1, 2, 3, 6])
    assert run.mean("loss", 0, 20) == 1.5
    assert run.mean("loss", 20, math.inf) == 4.5
    assert math.isnan(run.mean("loss", 40, math.inf))
    assert [line["step"] for line in run.within(15).lines] == [0, 1, 2]
    assert run.within(1000).lines == run.lines
    with pytest.raises(KeyError, match=r"no line of this run has 'kl'.*loss"):
        run.column("kl")


def test_a_mean_counts_every_response_alike():
    """A line of two steps beside a line of one."""
    lines = [{"responses": 0}, {"responses": 20, "x": 1.0}, {"responses": 30, "x": 4.0}]
    assert lab.Run({}, lines).mean("x", 0, math.inf) == 2


HISTORY = [
    {"step": 0, "eval/exact": 0.5, "responses": 0},
    {"step": 1, "reward/mean": 0.25, "grad_norm": 1.0, "responses": 4, "time/cpu_seconds": 1.0},
    {
        "step": 2,
        "reward/mean": 0.75,
        "eval/exact": 0.62345,
        "responses": 8,
        "time/cpu_seconds": 2.0,
    },
    {"step": 3, "reward/mean": 0.1, "loss": 1e-8, "responses": 12, "time/cpu_seconds": 3.0},
]


def test_lines_between_evaluations_are_means():
    samples = {2: [Sample("ab", "ba", 1.1000000238, "best of 2")]}
    assert lab.summed_up(HISTORY, samples, lab.EXPERIMENTS["group"]) == [
        {"step": 0, "eval/exact": 0.5, "responses": 0},
        {
            "step": 2,
            "reward/mean": 0.5,
            "grad_norm": 1,
            "responses": 8,
            "time/cpu_seconds": 2,
            "eval/exact": 0.6234,
            "samples": [{"prompt": "ab", "response": "ba", "reward": 1.1, "place": "best of 2"}],
        },
        {"step": 3, "reward/mean": 0.1, "loss": 0, "responses": 12, "time/cpu_seconds": 3},
    ]


def test_a_log_of_every_step_keeps_the_columns_it_names():
    dense = replace(lab.EXPERIMENTS["matched"], columns=("loss",), shown=("grad_norm",))
    lines = lab.summed_up(HISTORY, {}, dense)
    assert [set(line) - {"step", "responses"} for line in lines] == [
        set(),
        {"grad_norm"},
        {"time/cpu_seconds"},
        {"loss", "time/cpu_seconds"},
    ]


def test_an_interval_is_students():
    """Five values 1 to 5: standard error √(2.5/5), t = 2.776."""
    mean, half = lab.interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert mean == 3
    assert half == pytest.approx(2.776 * math.sqrt(0.5))


def test_the_same_settings_have_one_home():
    assert lab.home("group", "group_8") == ("reference", "grpo")
    assert lab.home("learning_rate", "rloo_lr_5e-4") == ("matched", "rloo")
    assert lab.home("learning_rate", "rloo_lr_1e-3") == ("learning_rate", "rloo_lr_1e-3")
    settings = [lab.EXPERIMENTS[name].rows[label] for name, label in rows()]
    assert len({*settings}) == len(settings)


def test_unknown_names_are_named():
    with pytest.raises(KeyError, match=r"no experiment 'groups'; there are reference, matched"):
        lab.load("groups")
    with pytest.raises(KeyError, match="group has no row 'group_3'; it has group_2"):
        lab.run("group", "group_3")


def command(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["experiments", *map(str, arguments)])
    return lab.main()


def test_no_logs_no_table_and_no_traceback(monkeypatch, tmp_path, capsys):
    assert command(monkeypatch, "group", "--table", "--out", tmp_path) == 1
    said = capsys.readouterr()
    assert re.search("no table of group: no log of group, .* trains it", said.err)
    assert (said.out, list(tmp_path.iterdir())) == ("", [])


def test_some_rows_trained_are_no_failure_though_the_table_waits(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(lab, "in_parallel", lambda work, jobs: 0)
    monkeypatch.setattr(lab, "starting_model", lambda config: None)
    assert command(monkeypatch, "group", "--rows", "group_2", "--out", tmp_path) == 0
    assert "no table of group" in capsys.readouterr().err


def test_a_table_of_nothing_is_refused(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="2"):
        command(monkeypatch, "--table")
    assert "Name one or more of reference, matched" in capsys.readouterr().err


def test_a_table_is_of_every_row_and_seed(monkeypatch, capsys):
    for narrower in (("--rows", "group_2"), ("--seeds", 0)):
        with pytest.raises(SystemExit, match="2"):
            command(monkeypatch, "group", "--table", *narrower)
        assert "leave out --rows and --seeds" in capsys.readouterr().err


def test_the_list_names_every_row():
    text = lab.listed()
    assert all(label in text for e in lab.EXPERIMENTS.values() for label in e.rows)
