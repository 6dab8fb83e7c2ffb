"""The committed learning curves: complete, of today's settings, and as the README shows them."""

import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks import learning_curves as bench
from llm_trainer.config import build
from policy_gradients.algorithms import ALGORITHMS

README = Path(bench.__file__).parent / "README.md"


@pytest.fixture(scope="module")
def logs():
    """row → its logs by seed."""
    return bench.read(bench.LOGS)


def curve(*points):
    """A log of (step, exact) points at a second and ten responses a step."""
    head = {"row": "grpo", "seed": 0}
    return [head] + [
        {"step": s, "eval/exact": e, "time/cpu_seconds": 1.0 * s, "responses": 10 * s}
        for s, e in points
    ]


def test_every_row_has_five_finished_seeds(logs):
    assert list(logs) == [bench.WARMSTART, *ALGORITHMS, bench.EXTRA]
    for row, runs in logs.items():
        assert [run[0]["seed"] for run in runs] == list(bench.SEEDS), row
        assert all(run[0]["row"] == row for run in runs)
        if row != bench.WARMSTART:
            assert {run[-1]["step"] for run in runs if "stopped" not in run[0]} <= {240}, row
    assert not any("stopped" in run[0] for row in ALGORITHMS for run in logs[row])


def test_every_row_of_the_table_learns(logs):
    """Median of five seeds at least 85 %, worst at least 80 % held-out exact."""
    assert [row for row in ALGORITHMS if not bench.meets_bars(logs[row])] == []


def test_the_bars_can_be_missed():
    good, low, bad = (curve((240, exact)) for exact in (0.9, 0.82, 0.79))
    assert bench.meets_bars([good, good, low])
    assert not bench.meets_bars([good, low, low])
    assert not bench.meets_bars([good, good, bad])


def test_the_readme_shows_what_the_logs_give(logs):
    text = README.read_text(encoding="utf-8")
    assert bench.table(logs) in text
    assert bench.warm_starts(logs) in text


def test_the_logs_are_of_the_settings_of_today(logs):
    """A changed YAML, default or row name needs new runs."""
    for row, runs in logs.items():
        for run in runs:
            seed = run[0]["seed"]
            with bench.extra_row():
                if row == bench.WARMSTART:
                    config = bench.settings("grpo", 0, [f"warmstart.seed={seed}"])
                else:
                    config = bench.settings(row, seed, [])
                given = {**run[0]["config"], "output_dir": config.output_dir}
                assert build(given) == config, row


def test_the_logs_are_of_committed_code_and_of_one_warm_start(logs):
    heads = [run[0] for runs in logs.values() for run in runs]
    assert not any(head["commit"].endswith("+") for head in heads)
    starts = {
        run[1]["eval/exact"] for row, runs in logs.items() if row != "warmstart" for run in runs
    }
    assert starts == {logs[bench.WARMSTART][0][1]["eval/exact"]}  # built anew, seed 0


def test_the_logs_stay_small():
    assert sum(path.stat().st_size for path in bench.LOGS.iterdir()) < 300_000


def test_a_run_that_never_gets_there_counts_as_infinite():
    runs = [curve((0, 0.4), (20, 0.86)), curve((0, 0.4), (40, 0.85)), curve((0, 0.4), (60, 0.84))]
    assert [bench.first(run, 0.85, "step") for run in runs] == [20, 40, math.inf]
    assert bench.cost(runs, 0.85) == ["40 (2 of 3)", "40", "400"]
    assert bench.cost(runs[:2], 0.85) == ["30", "30", "300"]
    assert bench.cost(runs[1:], 0.85) == ["1 of 2 get there", "–", "–"]
    assert bench.cost(runs, 0.95) == ["never", "–", "–"]


def test_the_extra_row_is_there_only_while_it_is_needed():
    rewards = torch.tensor([[1.1, 0.1], [0.0, 0.6]])
    with bench.extra_row():
        row = bench.settings(bench.EXTRA, 0, []).row()
        assert torch.equal(row.advantage(rewards), rewards)
        assert row.surrogate is ALGORITHMS["reinforce"].surrogate
        assert row.aggregation is ALGORITHMS["reinforce"].aggregation
    assert bench.EXTRA not in ALGORITHMS


def test_a_row_with_its_own_file_is_run_with_it():
    assert bench.settings("ppo", 3, []).critic == "model"
    config = bench.settings("rloo", 3, ["steps=7"])
    assert (config.algorithm, config.seed, config.steps) == ("rloo", 3, 7)


def test_a_run_leaves_its_log(tmp_path, monkeypatch):
    """End to end, on a model that knows nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    small = ["steps=2", "eval_every=1", "eval_words=8", "prompts=2", "micro_batch=2"]
    small += ["warmstart.steps=2", "warmstart.short_exact=0"]
    path = tmp_path / "no_baseline_seed1.jsonl"
    said = bench.learn(bench.EXTRA, 1, small, path)
    head, *lines = [json.loads(text) for text in path.read_text().splitlines()]
    assert head["config"]["seed"] == 1
    assert head["config"]["algorithm"] == bench.EXTRA
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert [line["responses"] for line in lines] == [0, 16, 32]
    assert said == f"no_baseline, seed 1: {lines[-1]['eval/exact']:.1%} held-out exact"
    assert bench.read(tmp_path) == {bench.EXTRA: [[head, *lines]]}
