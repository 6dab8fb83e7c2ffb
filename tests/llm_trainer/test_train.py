"""Whole runs: log, files, resume, interruption, the table's rows, and one that really learns."""

import functools
import json
import os
import re
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from llm_trainer import train as train_module
from llm_trainer.config import CONFIGS, ConfigError, RunError, load, with_values
from llm_trainer.rollout import Answers, Responses, pad_prompts
from llm_trainer.step import Learner, NonFiniteError
from llm_trainer.train import NoSignalError, rewarded, train
from llm_trainer.verdict import no_signal, verdict
from policy_gradients.algorithms import grpo_loss


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def contents(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def without_times(history):
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in history]


def wait_for_lines(log, lines, seconds=120):
    """Until the log has so many lines."""
    deadline = time.monotonic() + seconds
    while not log.exists() or log.read_bytes().count(b"\n") < lines:
        assert time.monotonic() < deadline, f"{log} did not reach {lines} lines"
        time.sleep(0.01)


# ------------------------------------------------------------------ what a run leaves


def test_a_run_logs_evaluates_and_saves_a_loadable_model(make_config, tmp_path):
    config = make_config(steps=5, eval_every=2)
    result = train(config, quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").open()]
    assert lines == result.history
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5]
    assert [line["step"] for line in lines if "eval/exact" in line] == [0, 2, 4, 5]
    assert result.finished
    assert result.exact == lines[-1]["eval/exact"]
    first = lines[1]
    assert first["check/ratio"] <= 1e-4
    for name in ("reward/correctness", "reward/format", "reward/exact", "groups/contrast",
                 "groups/trained", "clip/high", "clip/low", "kl/old", "entropy", "length/mean",
                 "length/truncated", "grad_norm", "lr", "time/tokens_per_second"):  # fmt: skip
        assert name in first
    assert "check/ratio" not in lines[2]
    assert yaml.safe_load((tmp_path / "run/run.yaml").read_text()) == config.model_dump()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert tokenizer.decode(tokenizer("nus")["input_ids"]) == "nus"
    assert not same(weights(tmp_path / "run"), weights(config.model))


def test_two_runs_with_one_seed_are_identical(make_config, tmp_path):
    one, two, _ = (
        train(make_config(output_dir=str(tmp_path / name), seed=seed), quiet=True)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert without_times(one.history) == without_times(two.history)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_a_learners_own_loss_trains_as_the_row_does(make_config, tmp_path):
    row = train(make_config(output_dir=str(tmp_path / "row")), quiet=True)
    own = train(make_config(output_dir=str(tmp_path / "own")), loss=grpo_loss, quiet=True)
    assert [x["reward/mean"] for x in row.history[1:]] == [
        x["reward/mean"] for x in own.history[1:]
    ]


# ------------------------------------------------------------------ stop and go on


def test_resumed_is_bit_identical_to_uninterrupted(make_config, tmp_path, crash):
    """Stopped after step 3 with the last checkpoint at step 2: step 3 is done again, the same."""
    settings = {"steps": 5, "save_every": 2, "eval_every": 2}
    whole = train(make_config(output_dir=str(tmp_path / "whole"), **settings), quiet=True)

    folder = str(tmp_path / "cut")
    crash(make_config(output_dir=folder, **settings))
    assert len((tmp_path / "cut/metrics.jsonl").read_text().splitlines()) == 4
    resumed = train(make_config(output_dir=folder, **settings), resume=True, quiet=True)

    assert without_times(resumed.history) == without_times(whole.history)
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_more_steps_may_be_added_but_nothing_else_changed(make_config):
    first = train(make_config(steps=1), quiet=True)
    more = train(make_config(steps=2), resume=True, quiet=True)
    assert more.history[: len(first.history)] == first.history
    assert more.history[-1]["step"] == 2
    with pytest.raises(ConfigError, match=r"started with lr = 0.0005; only .*steps.* may change"):
        train(make_config(steps=3, lr=1e-3), resume=True, quiet=True)


def test_ctrl_c_saves_and_resume_goes_on(make_config):
    config = make_config(steps=100_000, save_every=100_000)
    log = Path(config.output_dir) / "metrics.jsonl"

    def interrupt():
        wait_for_lines(log, 2)  # the loop is running, however slow the machine
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    stopped = train(config, quiet=True)
    done = stopped.history[-1]["step"]
    assert not stopped.finished
    assert done > 0
    on = train(with_values(config, steps=done + 1), resume=True, quiet=True)
    assert on.finished
    assert on.history[: done + 1] == stopped.history


def test_a_folder_with_a_run_is_refused_and_left_as_it_was(make_config, tmp_path):
    config = make_config(steps=1)
    train(config, quiet=True)
    (tmp_path / "run/notes.txt").write_text("mine")
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    with pytest.raises(ConfigError, match=r"already holds .*metrics.jsonl.*--resume.*--overwrite"):
        train(config, quiet=True)
    with pytest.raises(ConfigError, match="no such folder"):  # refused after the folder's check
        train(with_values(config, model="/no/such/model"), overwrite=True, quiet=True)
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before
    train(with_values(config, seed=5), overwrite=True, quiet=True)
    assert (tmp_path / "run/notes.txt").read_text() == "mine"
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 2


def test_the_folder_of_the_starting_model_is_never_written(make_config, model_folder):
    before = weights(model_folder)
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match="folder of the model to start from"):
            train(make_config(output_dir=str(model_folder)), overwrite=overwrite, quiet=True)
    assert same(before, weights(model_folder))


def test_the_starting_model_is_known_by_any_name(make_config, model_folder, tmp_path, monkeypatch):
    shutil.copytree(model_folder, tmp_path / "m")
    (tmp_path / "link").symlink_to(tmp_path / "m")
    monkeypatch.setenv("HOME", str(tmp_path))
    before = contents(tmp_path / "m")
    for model, output in [
        ("~/m", tmp_path / "m"),
        (tmp_path / "m", "~/m"),
        (tmp_path / "link", "~/m"),
    ]:
        with pytest.raises(ConfigError, match="folder of the model to start from"):
            train(make_config(model=str(model), output_dir=str(output)), overwrite=True, quiet=True)
    assert contents(tmp_path / "m") == before


def test_only_files_that_a_run_wrote_are_ever_deleted_or_replaced(make_config, tmp_path):
    """Foreign files that a run would replace refuse it; all others stay through everything."""
    folder = tmp_path / "run"
    for name in ("tsconfig.json", "tokenizer_notes.txt", "weights.safetensors.bak",
                 "building/own.txt", "tokenizer_src/a.py", "checkpoints/x"):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    foreign = contents(folder)
    for name in ("config.json", "model.safetensors", "metrics.jsonl", "run.yaml",
                 "checkpoint.pt.tmp", ".building/x"):  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine")
        for overwrite in (False, True):
            with pytest.raises(ConfigError, match=r"already holds .*, which no run wrote"):
                train(make_config(), overwrite=overwrite, quiet=True)
        assert contents(folder) == foreign | {name: b"mine"}
        (folder / name).unlink()
    (folder / ".building").rmdir()
    for settings in ({}, {"overwrite": True}, {"resume": True}):
        train(make_config(steps=1), quiet=True, **settings)
        assert foreign.items() <= contents(folder).items()
    names = (folder / "written.txt").read_text().split()
    assert {"config.json", "model.safetensors", "tokenizer.json", "run.yaml", "written.txt"} <= set(
        names
    )
    assert set(contents(folder)) - set(foreign) <= set(names)


def test_a_loss_that_cannot_be_called_deletes_nothing(make_config, tmp_path):
    train(make_config(steps=1), quiet=True)
    before = contents(tmp_path / "run")
    with pytest.raises(ConfigError, match="loss <lambda>: it is called with logp"):
        train(make_config(), loss=lambda logp: logp, overwrite=True, quiet=True)
    assert contents(tmp_path / "run") == before


def test_a_partial_or_an_object_is_a_loss_too(make_config, tmp_path):
    class Loss:
        def __call__(self, *tensors, **counts):
            del counts["tokens"], counts["length"]
            return grpo_loss(*tensors, **counts)

    for i, loss in enumerate((functools.partial(grpo_loss, sequences=16), Loss())):
        config = make_config(output_dir=str(tmp_path / str(i)), steps=1)
        assert train(config, loss=loss, quiet=True).finished
        assert type(loss).__name__ in (tmp_path / str(i) / "run.yaml").read_text()


# ------------------------------------------------------------------ what cannot be resumed


def test_resuming_nothing_is_refused(make_config):
    with pytest.raises(ConfigError, match="holds no run"):
        train(make_config(), resume=True, quiet=True)


def own(*tensors, eps_low, eps_high, sequences):
    return grpo_loss(*tensors, eps_low=eps_low, eps_high=eps_high, sequences=sequences)


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


def edit(log):
    """As long as before, but the numbers of another step."""
    log.write_text(log.read_text().replace('"step": 1', '"step": 9'))


def test_what_cannot_be_resumed_is_named_and_left_as_it_was(make_config, tmp_path):
    train(make_config(steps=1), loss=own, quiet=True)
    spoilt = [
        (lambda run: None, None, r"this run's loss is own, not grpo \(the row's\)"),
        (lambda run: None, grpo_loss, "this run's loss is own, not grpo_loss"),
        (lambda run: (run / "checkpoint.pt").unlink(), own, "checkpoint.pt is missing"),
        (lambda run: cut(run / "checkpoint.pt", 9000), own, "checkpoint.pt cannot be read"),
        (lambda run: cut(run / "checkpoint.pt", 0), own, "checkpoint.pt cannot be read"),
        (lambda run: (run / "metrics.jsonl").unlink(), own, "metrics.jsonl is damaged"),
        (lambda run: cut(run / "metrics.jsonl", 300), own, "metrics.jsonl is damaged"),
        (lambda run: edit(run / "metrics.jsonl"), own, "metrics.jsonl is damaged in line 2"),
        (lambda run: (run / "run.yaml").write_text("lr: ["), own, "run.yaml.*not valid YAML"),
        (lambda run: (run / "run.yaml").write_text(""), own, "was started with"),
        (lambda run: (run / "run.yaml").write_text("a: 1"), own, "(?s)a: unknown field.*run.yaml"),
    ]
    for i, (damage, loss, says) in enumerate(spoilt):
        run = tmp_path / str(i)
        shutil.copytree(tmp_path / "run", run)
        damage(run)
        before = contents(run)
        with pytest.raises(ConfigError, match=says):
            train(make_config(steps=2, output_dir=str(run)), loss=loss, resume=True, quiet=True)
        assert contents(run) == before


def test_a_run_stopped_before_its_first_checkpoint_starts_again(make_config, tmp_path, capsys):
    whole = train(make_config(), quiet=True)
    for name in ("checkpoint.pt", "config.json", "model.safetensors"):
        (tmp_path / "run" / name).unlink()
    log = tmp_path / "run/metrics.jsonl"
    log.write_text(log.read_text().splitlines(keepends=True)[0])
    again = train(make_config(), resume=True)
    assert "no checkpoint yet: this run starts at step 0" in capsys.readouterr().out
    assert without_times(again.history) == without_times(whole.history)


def test_a_full_disk_is_named_and_the_last_checkpoint_stays(make_config, tmp_path, monkeypatch):
    train(make_config(steps=1), quiet=True)
    good = (tmp_path / "run/checkpoint.pt").read_bytes()
    for error in (OSError(28, "No space left on device"), RuntimeError("[enforce fail")):

        def full(values, path, error=error):
            path.write_bytes(b"part")
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(torch, "save", full)
            with pytest.raises(RunError, match=r"checkpoint.pt could not be written .*disk full"):
                train(make_config(steps=2), resume=True, quiet=True)
        assert (tmp_path / "run/checkpoint.pt").read_bytes() == good
        assert not list((tmp_path / "run").glob("*.tmp"))
    assert train(make_config(steps=2), resume=True, quiet=True).finished


# ------------------------------------------------------------------ when learning goes wrong


def test_a_nan_is_named_and_the_last_checkpoint_stays_good(make_config, tmp_path):
    calls = []

    def loss(*tensors, eps_low, eps_high, sequences):
        calls.append(1)
        value = grpo_loss(*tensors, eps_low=eps_low, eps_high=eps_high, sequences=sequences)
        return value * float("nan") if 8 < len(calls) < 20 else value

    config = make_config(steps=30, save_every=1)
    with pytest.raises(NonFiniteError, match=r"step \d+: the loss is nan.*checkpoint.pt"):
        train(config, loss=loss, quiet=True)
    state = torch.load(tmp_path / "run/checkpoint.pt", weights_only=True)
    assert state["done"]["step"] > 0
    assert all(torch.isfinite(w).all() for w in state["model"].values())
    calls.extend([1] * 20)
    more = with_values(config, steps=state["done"]["step"] + 1)
    assert train(more, loss=loss, resume=True, quiet=True).finished


def test_a_step_without_contrast_is_logged_and_skipped(make_config):
    """With both weights 0 every reward is 0: nothing to learn, nothing to divide by."""
    config = make_config(reward_correctness=0.0, reward_format=0.0)
    result = train(config, quiet=True)
    assert [line["groups/trained"] for line in result.history[1:]] == [0, 0]
    assert [line["groups/contrast"] for line in result.history[1:]] == [0.0, 0.0]
    assert same(weights(config.model), weights(config.output_dir))


def test_the_length_part_pays_for_brevity_alone(make_config, policy, spelling):
    """So it pays most for saying nothing: its weight has to stay below what an answer earns."""
    mask = torch.arange(12) < torch.tensor([[1], [6], [12], [6]])
    prompts = pad_prompts([policy.prompt("Spell")], policy)
    responses = Responses(torch.zeros(4, 12, dtype=torch.int64), mask, torch.zeros(4, 12))
    said = ["", "", "", "<answer>nus</answer>"]
    scores = [spelling.score(text, spelling.entry("sun")) for text in said]
    config = make_config(reward_length=0.5)
    batch = rewarded(Answers(prompts, responses, said, scores), config)
    # the third is cut at the limit of 12
    assert batch.parts["length"].tolist()[0] == pytest.approx([11 / 12, 1 / 2, 0, 1 / 2])
    assert batch.rewards.tolist()[0] == pytest.approx([0.5 * 11 / 12, 0.25, 0, 1 + 0.1 + 0.25])
    assert batch.correct.tolist() == [[0, 0, 0, 1]]


@pytest.mark.parametrize("algorithm", ["grpo", "dapo"])
def test_endless_steps_without_contrast_end_in_a_clear_error(make_config, monkeypatch, algorithm):
    monkeypatch.setattr(train_module, "NO_SIGNAL_LIMIT", 3)
    config = make_config(algorithm=algorithm, steps=50, reward_correctness=0.0, max_new_tokens=2)
    with pytest.raises(NoSignalError, match="step 3: no group of the last 3 steps can teach"):
        train(config, quiet=True)


def test_a_run_that_got_worse_says_so(make_config):
    def said(first, last, cut=0.0, begun=0.0):
        lines = [{"eval/exact": first}, {"length/truncated": begun}]
        lines.append({"eval/exact": last, "length/truncated": cut})
        return verdict(lines, make_config())

    assert said(0.4, 0.9) == "held-out exact went from 40.0% to 90.0%"
    assert said(0.4, 0.3).endswith("40.0% to 30.0%. Try a smaller lr")
    assert "Nearly all answers are cut: raise max_new_tokens" in said(0.4, 0.5, 0.95, begun=0.95)
    assert verdict([{"eval/exact": 0.4}], make_config())  # no steps at all


def test_a_run_that_fell_or_stood_still_is_told_where_to_look(make_config):
    def said(first, last, *, own_loss=False, begun=0.0, **numbers):
        begin = {"step": 1, "length/truncated": begun}
        end = {"step": 40, "eval/exact": last, **numbers}
        lines = [{"step": 0, "eval/exact": first}, begin, end]
        return verdict(lines, make_config(), own_loss=own_loss)

    assert "Is the sign of your loss right" in said(0.465, 0.015, own_loss=True)
    assert "sign" not in said(0.465, 0.015)
    assert "next to nothing. More steps, or a larger lr" in said(0.465, 0.465)
    assert said(0.95, 0.952) == "held-out exact went from 95.0% to 95.2%"
    cut = {"length/truncated": 1.0}
    assert said(0.465, 0.0, **cut).endswith("ended at first, and nearly all are cut now: lower lr")
    never = said(0.0, 0.0, begun=1.0, **cut, **{"reward/format": 0.0})
    assert "from the first step on" in never
    assert "never taught this task" in never


def test_a_cold_run_is_not_taken_for_a_wrong_one(make_config, policy):
    """Log-probabilities are logits over temperature, and so is their rounding."""
    config = make_config(temperature=0.01)
    assert Learner(policy, config).bounds["ratio"] == pytest.approx(1e-2)
    assert Learner(policy, make_config(temperature=2.0)).bounds["ratio"] == 1e-4
    train(config, quiet=True)


LAST = {  # a step of a run in which nothing is wrong but the answers
    "step": 80, "reward/mean": 0.3, "reward/correctness": 0.2, "reward/format": 1.0,
    "reward/length": 0.25, "length/mean": 9.0, "length/truncated": 0.0, "entropy": 0.3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "numbers", "says"),
    [
        ({}, {}, "Use easier words"),
        # what runs of 80 and 100 steps with these weights ended with
        ({"reward_length": 5.0}, {"reward/length": 0.917, "length/mean": 1.0, "entropy": 0.0},
         "Brevity pays 4.58, and all else about a right answer 1.1 at most.*Lower reward_length"),
        ({"reward_format": 0.0}, {"length/truncated": 0.984}, "set it to 0.1"),
        ({}, {"length/truncated": 0.984}, "answers are cut: raise max_new_tokens"),
        ({"reward_length": 1.0}, {"reward/length": 0.917}, "Use easier words"),
        ({"reward_correctness": 0.0}, {}, "pays nothing for right answers"),
        ({}, {"reward/format": 0.0}, "let task.instruction ask for it"),
        ({}, {"entropy": 0.001}, "all the same"),
    ],
)  # fmt: skip
def test_a_run_without_signal_is_told_which_part_of_the_reward_is_flat(
    make_config, fields, numbers, says
):
    text = no_signal(20, {**LAST, **numbers}, make_config(**fields))
    assert re.search(f"step 80: no group of the last 20 steps can teach anything.*{says}", text)


def test_dynamic_sampling_replaces_groups_and_stops_at_its_limit(make_config):
    config = make_config(algorithm="dapo", resample_limit=3)
    lines = train(config, quiet=True).history[1:]
    for line in lines:
        assert line["groups/sampled"] in (4, 8, 12)
        assert line["groups/trained"] <= 4
        assert line["groups/trained"] == 4 or line["groups/sampled"] == 12


# ------------------------------------------------------------------ it learns


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute of CPU time, but a busy machine has taken three minutes
def test_the_shipped_configuration_learns(tmp_path, monkeypatch):
    """Warm start from nothing, then 40 of the 240 steps."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = load(
        CONFIGS / "grpo_tiny.yaml", ["steps=40", "eval_every=40", f"output_dir={tmp_path / 'run'}"]
    )
    result = train(config, quiet=True)
    start, first = result.history[0]["eval/exact"], result.history[1]
    assert 0.25 <= start <= 0.50
    assert first["check/ratio"] <= 1e-4
    assert result.exact >= 0.75
    assert result.exact >= start + 0.25
