"""Two processes: the numbers of one at staleness 0, a bound that holds, and ends without orphans.

A real start of the actor imports torch anew, which takes seconds: two tests do it. The others fork
it, which changes how the process begins and nothing that it does.
"""

import inspect
import json
import multiprocessing
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

import llm_trainer
from llm_trainer import actor_learner
from llm_trainer.__main__ import main
from llm_trainer.actor_learner import LateLearner, TwoProcessRun, train_in_two_processes
from llm_trainer.config import ConfigError, RunError, build
from llm_trainer.console import Console
from llm_trainer.invariants import InvariantError
from llm_trainer.models import load_policy
from llm_trainer.step import Learner
from llm_trainer.train import train

POSIX = pytest.mark.skipif(os.name == "nt", reason="fork and kill are not for Windows")
README = (Path(llm_trainer.__file__).parent / "README.md").read_text(encoding="utf-8")
WEIGHTED = {"old_logprobs": "recompute", "importance": "token"}
SMALL = {"steps": 3, "save_every": 3, "eval_every": 2}


@pytest.fixture
def forked(monkeypatch):
    """The actor's process is forked."""
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(actor_learner.mp, "get_context", lambda kind: fork)


@pytest.fixture
def slow(monkeypatch):
    """A learner that begins a step when its actor has worked as far ahead as it may."""
    real = TwoProcessRun.learn

    def learn(self, batch, recorder):
        ahead = min(self.config.max_staleness, self.config.steps - self.done.step - 1)
        wait_for(lambda: self.actor.inbox.qsize() >= ahead)
        return real(self, batch, recorder)

    monkeypatch.setattr(TwoProcessRun, "learn", learn)


def numbers(history):
    """The lines without times and without what only two processes have."""
    return [
        {k: v for k, v in line.items() if not k.startswith(("time/", "async/"))} for line in history
    ]


def weights(folder):
    return (Path(folder) / "model.safetensors").read_bytes()


def alive(pid):
    """Whether a process runs; one that only waits to be collected does not."""
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return found.stdout.strip()[:1] not in ("", "Z")


def wait_for(condition, seconds=100):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


# ------------------------------------------------------------------ staleness 0 is `train`


@POSIX
@pytest.mark.parametrize(
    "values",
    [
        WEIGHTED,
        {"algorithm": "ppo", "minibatches": 2, "micro_batch": 2, "kl_coef": 0.01},
        {"algorithm": "dapo", "epochs": 2, "lora_rank": 2},
    ],
    ids=["grpo weighted", "ppo", "dapo with adapters"],
)
def test_at_staleness_0_every_number_and_weight_is_that_of_train(
    make_config, tmp_path, forked, values
):
    one = train(make_config(output_dir=str(tmp_path / "one"), **SMALL, **values), quiet=True)
    config = make_config(output_dir=str(tmp_path / "two"), **SMALL, **values)
    two = train_in_two_processes(config, max_staleness=0)
    assert numbers(two.history) == numbers(one.history)
    assert weights(two.output_dir) == weights(one.output_dir)
    assert two.finished
    for line in two.history[1:]:
        assert line["async/staleness"] == 0
        if "async/weight_p05" in line:  # a step that taught has them
            found = [line[f"async/weight_{p}"] for p in ("p05", "p50", "p95")]
            assert found == pytest.approx([1, 1, 1], abs=1e-5)
        if "importance/mean" in line:
            assert line["importance/mean"] == pytest.approx(1, abs=1e-5)
            assert line["importance/capped"] == 0
    assert "async/weight_p05" in two.history[1]


@POSIX
def test_resumed_at_staleness_0_it_is_the_run_that_was_not_stopped(make_config, tmp_path, forked):
    one = train(make_config(output_dir=str(tmp_path / "one"), **SMALL), quiet=True)
    folder = {"output_dir": str(tmp_path / "two")}
    config = make_config(**{**SMALL, **folder, "steps": 1})
    train_in_two_processes(config, max_staleness=0)
    with pytest.raises(ConfigError, match="already holds"):
        train_in_two_processes(config, max_staleness=0)
    two = train_in_two_processes(make_config(**SMALL, **folder), max_staleness=0, resume=True)
    assert numbers(two.history)[2:] == numbers(one.history)[2:]
    assert weights(two.output_dir) == weights(one.output_dir)


# ------------------------------------------------------------------ older samples


@POSIX
def test_no_batch_is_older_than_the_bound_and_a_slow_learner_reaches_it(make_config, forked, slow):
    config = make_config(steps=6, save_every=6, **WEIGHTED)
    result = train_in_two_processes(config, max_staleness=2)
    # The first three are of the policy that the run starts from; from then on one a step.
    assert [line["async/staleness"] for line in result.history[1:]] == [0, 1, 2, 2, 2, 2]
    last = result.history[-1]
    assert last["async/weight_p05"] < 1 - 1e-4 < 1 + 1e-4 < last["async/weight_p95"]
    assert last["check/sampler_gap"] < 1e-4  # with the weights of the version it names
    assert last["ratio/max"] == pytest.approx(1, abs=1e-4)  # the learner's own denominator
    assert last["async/wait_actor"] > 0 <= last["async/wait_learner"]
    assert 0 < last["async/busy_actor"] < 1
    assert 0 < last["async/busy_learner"] <= 1
    kept = {n for line in result.history for n in line if n.startswith("async/")}
    assert kept == set(re.findall(r"`(async/\w+)`", README))


@POSIX
def test_the_samplers_log_probs_show_the_age_in_the_ratio(make_config, forked, slow):
    """The other case: what stands below the ratio is the actor's."""
    last = train_in_two_processes(make_config(steps=4), max_staleness=2).history[-1]
    assert last["async/staleness"] == 2
    assert last["ratio/min"] < 1 - 1e-3
    assert last["ratio/max"] > 1 + 1e-3


@pytest.fixture
def late(make_config, draw):
    """A learner two versions ahead of a batch: (learner, batch, config)."""
    config = make_config(max_staleness=2, **WEIGHTED)
    learner = LateLearner(load_policy(config), config, None)
    batch = draw(learner)
    for version in range(3):
        learner.remember(version)
        with torch.no_grad():
            for weight in learner.policy.trainable():
                weight.mul_(1.02)
    return learner, batch


def test_a_batch_that_names_another_version_stops_the_run_and_no_weight_has_moved(late):
    learner, batch = late
    before = {n: w.clone() for n, w in learner.policy.state().items()}
    assert learner.check_version(batch, 0)["check/sampler_gap"] < 1e-4
    for version in (1, 2):
        with pytest.raises(InvariantError, match=f"sampler and learner agree.*version {version}"):
            learner.check_version(batch, version)
    for name, weight in learner.policy.state().items():
        assert torch.equal(weight, before[name])


def test_only_versions_that_a_batch_may_name_are_kept(late):
    learner, _ = late
    learner.remember(3)
    assert sorted(learner.past) == [1, 2, 3]


def test_the_quantiles_are_of_the_ratio_of_the_two_policies(late):
    learner, batch = late
    learner.staleness = 2
    measured = learner.taught(learner.measure(batch))
    now = learner.frozen_log_probs(learner.policy, measured)
    ratio = (now - measured.logp_sampler)[measured.mask].exp().sort().values
    found = learner.update(measured, fresh=True)
    for name, share in (("p05", 0.05), ("p50", 0.5), ("p95", 0.95)):
        place = share * (len(ratio) - 1)
        low, high = ratio[int(place)], ratio[min(int(place) + 1, len(ratio) - 1)]
        assert low - 1e-5 <= found[f"async/weight_{name}"] <= high + 1e-5
    assert "check/sampler_gap" not in found


def test_old_samples_as_if_they_were_new_are_refused_by_a_plain_learner(late, make_config):
    """`Learner`, as `train` has it, does not take them: the invariant is what tells them apart."""
    learner, batch = late
    plain = Learner(learner.policy, learner.config)
    with pytest.raises(InvariantError, match="sampler and learner agree"):
        plain.update(plain.taught(plain.measure(batch)), fresh=True)


@POSIX
def test_an_actor_that_works_ahead_of_its_permission_stops_the_run(
    make_config, forked, monkeypatch
):
    """The bound is checked by the learner too, where the actor does not keep to it."""
    real = actor_learner.act

    def greedy(config, *arguments):
        real(config.model_copy(update={"max_staleness": 5}), *arguments)

    def learn(run, *arguments):  # nothing, and that late
        wait_for(lambda: run.actor.inbox.qsize() >= 2 - run.done.step)
        return {}

    monkeypatch.setattr(actor_learner, "act", greedy)
    monkeypatch.setattr(TwoProcessRun, "learn", learn)
    with pytest.raises(InvariantError, match=r"older than max_staleness.*version 0.*1 steps"):
        train_in_two_processes(make_config(steps=6), max_staleness=1)
    assert not multiprocessing.active_children()


# ------------------------------------------------------------------ how it ends


@POSIX
def test_a_killed_actor_ends_the_run_which_can_go_on(make_config, forked, monkeypatch):
    real = TwoProcessRun.learn

    def learn(self, batch, recorder):
        if self.done.step == 2:
            os.kill(self.actor.process.pid, signal.SIGKILL)
        return real(self, batch, recorder)

    config = make_config(**{**SMALL, "steps": 8})
    with monkeypatch.context() as patched:
        patched.setattr(TwoProcessRun, "learn", learn)
        with pytest.raises(RunError, match=r"actor process ended \(by signal 9\).*--resume"):
            train_in_two_processes(config, max_staleness=1)
    assert not multiprocessing.active_children()
    again = train_in_two_processes(config, max_staleness=1, resume=True)
    assert [line["step"] for line in again.history] == list(range(9))


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="not on every system")
@pytest.mark.parametrize("reading", [False, True], ids=["between batches", "reading weights"])
def test_a_stopped_actor_is_named_and_one_ctrl_c_saves(
    make_config, tmp_path, forked, monkeypatch, reading
):
    real, said = TwoProcessRun.learn, []

    def learn(self, batch, recorder):
        if self.done.step == 1:
            os.kill(self.actor.process.pid, signal.SIGSTOP)
            if reading:
                self.actor.weights.lock.acquire()
        return real(self, batch, recorder)

    def say(self, text):
        said.append(text)
        if "was stopped from outside" in text:
            os.kill(os.getpid(), signal.SIGINT)

    config = make_config(output_dir=str(tmp_path / "two"), **SMALL)
    with monkeypatch.context() as patched:
        patched.setattr(TwoProcessRun, "learn", learn)
        patched.setattr(Console, "say", say)
        result = train_in_two_processes(config, max_staleness=0)
    assert [line["step"] for line in result.history] == [0, 1, 2]
    assert not result.finished
    assert sum("kill -CONT" in text for text in said) == 1
    assert "stopped after step 2; go on with actor-learner --resume" in said[-1]
    assert not multiprocessing.active_children()
    one = train(make_config(output_dir=str(tmp_path / "one"), **SMALL), quiet=True)
    two = train_in_two_processes(config, max_staleness=0, resume=True)
    assert numbers(two.history) == numbers(one.history)
    assert weights(two.output_dir) == weights(one.output_dir)


@POSIX
@pytest.mark.parametrize(
    ("error", "says"),
    [(RunError("no room"), "the actor stopped: no room$"), (KeyError("x"), "Traceback.*KeyError")],
)
def test_what_fails_in_the_actor_is_said_by_the_learner(
    make_config, forked, monkeypatch, error, says
):
    def fail(self, weights, waited):
        raise error

    monkeypatch.setattr(actor_learner.Actor, "deliver", fail)
    with pytest.raises(RunError, match=re.compile(says, re.S)):
        train_in_two_processes(make_config(), max_staleness=1)
    assert not multiprocessing.active_children()


@pytest.fixture
def process(monkeypatch):
    """A function: a learner in a process group of its own that starts a real actor; its pid."""
    started = []

    def start(config, max_staleness):
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                os.setsid()
                done = train_in_two_processes(config, max_staleness=max_staleness, quiet=False)
                code = 0 if done.finished else 130
            finally:
                os._exit(code)
        started.append(pid)
        return pid

    yield start
    for pid in started:
        if alive(pid):
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def children(pid):
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True)
    pairs = [map(int, line.split()) for line in listed.stdout.splitlines()]
    return [child for child, parent in pairs if parent == pid]


def lines(config):
    log = Path(config.output_dir) / "metrics.jsonl"
    return [json.loads(line) for line in log.open()] if log.exists() else []


@POSIX
def test_ctrl_c_finishes_the_step_saves_and_ends_both(make_config, tmp_path, process, capfd):
    """As a terminal sends it: to both processes. Until then the numbers are those of `train`."""
    config = make_config(steps=5000, eval_every=5000, save_every=5000)
    pid = process(config, 0)
    wait_for(lambda: len(lines(config)) > 3)
    actor = [child for child in children(pid) if alive(child)]
    assert actor
    os.killpg(pid, signal.SIGINT)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    wait_for(lambda: not any(map(alive, actor)), 20)
    said = capfd.readouterr()
    assert "go on with actor-learner --resume" in said.out
    assert "Traceback" not in said.err
    steps = len(lines(config)) - 1
    state = torch.load(Path(config.output_dir) / "checkpoint.pt", weights_only=True)
    assert state["done"]["step"] == steps
    short = {"steps": 3, "output_dir": str(tmp_path / "one")}
    one = train(make_config(eval_every=5000, **short), quiet=True)
    assert numbers(lines(config))[:3] == numbers(one.history)[:3]


@POSIX
def test_a_killed_learner_leaves_no_actor_behind(make_config, process):
    config = make_config(steps=5000, eval_every=5000, save_every=5000)
    pid = process(config, 2)
    wait_for(lambda: len(lines(config)) > 3)
    left = [child for child in children(pid) if alive(child)]
    assert left
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    wait_for(lambda: not any(map(alive, left)), 20)


# ------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"record_steps": [1]}, r"record_steps = \[1\].*step of train"),
        ({"sampler": "vllm"}, "sampler = 'vllm'.*only own"),
        ({"max_staleness": -1}, r"max_staleness = -1.*0 to 64 \[steps\]"),
        ({"max_staleness": 65}, "max_staleness = 65.*0 to 64"),
        ({"max_staleness": 1.5}, "max_staleness = 1.5.*0 to 64"),
    ],
)
def test_what_two_processes_cannot_do_is_refused_before_anything_is_written(
    make_config, values, says
):
    values = dict(values)
    bound = values.pop("max_staleness", 1)
    config = make_config(**values)
    with pytest.raises(ConfigError, match=says):
        train_in_two_processes(config, max_staleness=bound)
    assert not Path(config.output_dir).exists()


def test_launchers_and_gpus_are_refused(make_config, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_available", lambda: True)
        with pytest.raises(ConfigError, match=r"device = 'auto'.*set it to cpu"):
            train_in_two_processes(make_config())
    monkeypatch.setattr(actor_learner, "find_devices", lambda config: type("Two", (), {"world": 2}))
    with pytest.raises(ConfigError, match="without a launcher"):
        train_in_two_processes(make_config())


def test_train_says_who_can_learn_from_old_samples(make_config):
    config = make_config(max_staleness=1)
    with pytest.raises(ConfigError, match="max_staleness = 1: train samples and learns in turn"):
        train(config, quiet=True)
    with pytest.raises(ConfigError, match=f"actor-learner --resume {config.output_dir}$"):
        train(config, quiet=True, resume=True)
    assert not Path(config.output_dir).exists()


def test_a_run_says_when_nothing_corrects_for_old_samples():
    late = {"max_staleness": 2}
    for values in ({"algorithm": "rloo"}, {"old_logprobs": "recompute"}):
        assert "nothing corrects for it" in build({**late, **values}).doubt()
        assert not build(values).doubt()
    for values in ({}, WEIGHTED, {**WEIGHTED, "algorithm": "rloo"}):
        assert not build({**late, **values}).doubt()


def test_the_command_line_takes_the_bound_from_the_configuration(monkeypatch, tmp_path):
    seen = []

    def instead(config, **given):
        seen.append((config.max_staleness, given))
        return type("Done", (), {"finished": True})

    monkeypatch.setattr(actor_learner, "train_in_two_processes", instead)
    assert main(["actor-learner"]) == 0
    assert main(["actor-learner", "--set", "max_staleness=4", "--overwrite"]) == 0
    assert [(bound, given["max_staleness"]) for bound, given in seen] == [(1, 1), (4, 4)]
    assert [given["overwrite"] for _, given in seen] == [False, True]


def test_what_the_notebook_calls_is_quiet_and_one_step_late_unless_told_otherwise():
    parameters = inspect.signature(train_in_two_processes).parameters
    assert parameters["max_staleness"].default == 1
    assert parameters["quiet"].default is True


@POSIX
def test_an_actor_that_never_came_up_says_what_a_script_needs(make_config, forked, monkeypatch):
    monkeypatch.setattr(actor_learner, "act", lambda *arguments: os._exit(3))
    with pytest.raises(RunError, match=r'exit code 3.*`if __name__ == "__main__":`'):
        train_in_two_processes(make_config())
