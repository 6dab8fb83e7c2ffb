"""The logs of the gradient noise scale, and that measuring does not disturb the run."""

import math

import pytest

from lectures.noise_scale import PROMPTS, STEPS, Measured, line_of, load, train_and_measure
from llm_trainer.config import TaskConfig, WarmstartConfig, build
from llm_trainer.noise_scale import NoiseScale
from llm_trainer.tiny import warm_start
from llm_trainer.train import train


@pytest.fixture(scope="module", params=[0, 1, 2])
def log(request):
    return load()[request.param]


def test_a_log_has_every_step_and_its_settings(log):
    assert [line["step"] for line in log.lines] == list(STEPS)
    assert {line["prompts"] for line in log.lines} == {PROMPTS}
    assert log.head["command"].startswith("python -m lectures.noise_scale --seeds")
    assert set(log.head["config"]) <= {"seed", "device"}  # else the shipped configuration
    assert len(log.head["commit"]) == 10, "made by files that no commit holds"


def test_the_numbers_of_a_line_belong_together(log):
    for line in log.lines:
        assert line["trace"] > 0
        if line["signal"] > 0:
            assert line["b_simple"] == pytest.approx(line["trace"] / line["signal"], rel=2e-3)
            assert line["responses"] == pytest.approx(8 * line["b_simple"], rel=2e-3)
            assert line["low"] < line["b_simple"] < (line["high"] or math.inf)
        else:
            assert line["b_simple"] is None
        assert (line["se"] is None) == (line["high"] is None)  # not resolved


def test_the_noise_scale_grows_while_the_tiny_model_learns(log):
    """In every seed from the start to step 20, and the signal shrinks from first to last."""
    first, later, last = log.lines[0], log.lines[1], log.lines[-1]
    assert first["high"] < (later["high"] or math.inf)
    assert first["b_simple"] < later["b_simple"]
    assert last["signal"] + 2 * last["signal_se"] < first["signal"] - 2 * first["signal_se"]


@pytest.fixture
def config(tmp_path):
    start = warm_start(
        TaskConfig(),
        WarmstartConfig(steps=20, short_exact=0.0),
        cache=tmp_path,
        quiet=True,
    )
    sizes = {"prompts": 4, "micro_batch": 4, "group": 4, "eval_words": 8, "steps": 3}
    return build({"model": str(start), "output_dir": str(tmp_path / "run"), **sizes})


def test_measuring_leaves_the_run_as_it_was(config, monkeypatch):
    plain = train(config, quiet=True).history
    kept = []
    real = Measured.write
    monkeypatch.setattr(
        Measured,
        "write",
        lambda run, metrics, samples=(): kept.append(metrics) or real(run, metrics, samples),
    )
    log = train_and_measure(config, steps=(0, 2), prompts=8)

    def numbers(history):
        return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in history]

    assert numbers(kept) == numbers(plain)
    assert [line["step"] for line in log.lines] == [0, 2]


def test_what_is_not_resolved_is_null():
    line = line_of(NoiseScale(32, 8, -0.01, 0.02, 1.0, 0.1, -0.01, 0.02))
    assert line["b_simple"] is line["se"] is line["high"] is line["responses"] is None
    assert line["low"] == pytest.approx(1 / 0.03, rel=1e-3)
    line = line_of(NoiseScale(32, 8, 2e-9, 1e-10, 4e-8, 1e-9, 0.05, 0.002))
    assert (line["signal"], line["b_simple"]) == (2e-9, 20)
