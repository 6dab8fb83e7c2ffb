"""Two processes make the step that one would make; the usual mistakes are told apart from it.

One pair of processes (gloo, loopback) goes through everything in `both`; the tests read what it
kept. The command line is tested with the launchers themselves.
"""

import math
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from llm_trainer import devices as devices_module
from llm_trainer.config import ConfigError, RunError, TaskConfig, build
from llm_trainer.devices import ONE, Devices, buckets, find_devices, with_launcher
from llm_trainer.models import load_policy
from llm_trainer.rollout import OwnSampler, worker_seed
from llm_trainer.sharded import make_learner, split
from llm_trainer.step import Learner, NonFiniteError, count
from llm_trainer.task import Spelling, WordStream
from llm_trainer.train import collect, sample_and_score, train
from policy_gradients.algorithms import grpo_loss

SMALL = {"prompts": 6, "group": 4, "micro_batch": 2, "steps": 3, "eval_every": 1, "eval_words": 7}
SPLIT = {"shard": True, "shared_prefix": False, "micro_batch": 1}
# name → (fields, which rewards): of the six groups all may teach, or three, or one
CASES = {
    "grpo": ({}, "three"),
    "grpo, one group": ({}, "one"),
    "dapo": ({"algorithm": "dapo"}, "three"),
    "reinforce": ({"algorithm": "reinforce"}, "all"),
    "ppo": ({"algorithm": "ppo", "critic": "head"}, "all"),
    "ppo, network": ({"algorithm": "ppo", "critic": "model", "kl_coef": 0.1}, "all"),
    "kl and bonus": ({"kl_coef": 0.1, "entropy_coef": 0.01}, "three"),
    "recomputed": ({"old_logprobs": "recompute", "importance": "token"}, "three"),
    "lora": ({"lora_rank": 2, "kl_coef": 0.1}, "three"),
    "split": (SPLIT, "three"),
    "split, one group": (SPLIT, "one"),
    "split, ppo": ({**SPLIT, "algorithm": "ppo", "critic": "head"}, "all"),
    "split, kl": ({**SPLIT, "kl_coef": 0.1}, "all"),
    "split, checkpointing": ({**SPLIT, "gradient_checkpointing": True}, "three"),
    "split, lora": ({**SPLIT, "lora_rank": 2, "kl_coef": 0.1}, "three"),
}


def configure(folder, **values):
    return build({"model": str(folder), **SMALL, **values})


def sampled(learner, rewards):
    """A batch of unequal lengths, with as many groups of unequal rewards."""
    task = Spelling(TaskConfig())
    stream, generator = WordStream(task.train, 0), torch.Generator().manual_seed(0)
    batch = collect(OwnSampler(learner.policy), task, stream, learner, generator)[0]
    assert batch.mask.sum(1).unique().numel() > 2
    random = torch.rand(batch.rewards.shape, generator=generator)
    silent = {"all": [], "three": [0, 1, 5], "one": [0, 1, 2, 3, 5]}[rewards]
    random[silent] = 0.7
    return replace(batch, rewards=random)


# ------------------------------------------------------------------ mistakes


def half_groups(learner, batch, measured):
    """The first responses to a prompt are compared on one device, the rest on the other."""
    halves = [learner.row.advantage(half.contiguous()) for half in batch.rewards.chunk(2, dim=1)]
    return replace(measured, advantages=torch.cat(halves, 1).reshape(-1, 1))


def own_statistics(learner, batch, measured):
    """Means and whitening are over the process's own responses."""
    devices, learner.devices = learner.devices, ONE
    part = learner.measure(batch.take(devices.share(batch.indices))).advantages
    learner.devices = devices
    width = measured.advantages.shape[1]
    parts = devices.everyone(F.pad(part, (0, width - part.shape[1])))
    return replace(measured, advantages=torch.cat(parts))


def own_counts(learner, taught):
    """Losses divide by the process's own counts."""
    own = taught.take(learner.devices.share(taught.indices))
    counts = count(own) if len(own.rewards) else own
    return replace(taught, sequences=counts.sequences, total_tokens=counts.total_tokens)


MISTAKES = {  # name → the case it spoils
    "half groups": "grpo",
    "own statistics": "reinforce",
    "own whitening": "ppo",
    "own counts": "grpo",
    "own token counts": "dapo",
    "mean of gradients": "grpo",
}


def outcome(learner, batch, mistake=""):
    """(loss and other metrics, flat gradient before clipping, flat weights after the update)."""
    measured = learner.measure(batch)
    if mistake == "half groups":
        measured = half_groups(learner, batch, measured)
    if mistake in ("own statistics", "own whitening"):
        measured = own_statistics(learner, batch, measured)
    taught = learner.taught(measured)
    if mistake in ("own counts", "own token counts"):
        taught = own_counts(learner, taught)
    pieces = learner.gradients(taught, learner.config.micro_batch)
    learner.of_everyone(taught, pieces)
    weights = learner.policy.trainable() + (learner.critic.weights() if learner.critic else [])
    gradient = flat(w.grad for w in weights)
    if mistake == "mean of gradients":
        gradient = gradient / learner.devices.world
    metrics = {} if mistake else learner.update(taught, fresh=True)
    return metrics, gradient, flat(w.detach() for w in weights)


def flat(tensors):
    return torch.cat(
        [(t.full_tensor() if isinstance(t, DTensor) else t).flatten() for t in tensors]
    )


# ------------------------------------------------------------------ what both processes do


def both(rank, folder, model, port):
    """Every case and run, kept in `folder` / rank.pt."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    found = {}
    for name, (values, rewards) in CASES.items():
        config = configure(model, **values)
        learner = make_learner(load_policy(config), config, None, find_devices(config))
        batch = torch.load(folder / f"{rewards}.pt", weights_only=False)
        found[name] = outcome(learner, batch)
    for mistake, name in MISTAKES.items():
        values, rewards = CASES[name]
        config = configure(model, **values)
        learner = make_learner(load_policy(config), config, None, find_devices(config))
        batch = torch.load(folder / f"{rewards}.pt", weights_only=False)
        found[mistake] = outcome(learner, batch, mistake)

    devices = Devices(rank, 2)
    found["words"] = same_word(model, devices, worker_seed(0, rank))
    found["words, one seed"] = same_word(model, devices, 0)
    found["buckets"] = summed_in_small_buckets(devices)
    dist.destroy_process_group = lambda: None  # one group for all the runs of this test
    for kind, values in {"whole": {"algorithm": "ppo", "critic": "head"}, "split": SPLIT}.items():
        out = {"output_dir": str(folder / kind), "save_every": 1, **values}
        found[f"{kind} run"] = train(configure(model, **out), quiet=True).history
        out["output_dir"] += " in parts"
        train(configure(model, **{**out, "steps": 1}), quiet=True)
        resumed = train(configure(model, **out), resume=True, quiet=True)
        found[f"{kind} run in parts"] = resumed.history
    found["joined"] = train(
        configure(model, **{**out, "shard": False, "steps": 4}), resume=True, quiet=True
    ).finished
    dapo = {"algorithm": "dapo", "steps": 1, "output_dir": str(folder / "dapo")}
    found["dapo run"] = train(configure(model, **dapo), quiet=True).history
    found["nan"] = stopped_by_nan(rank, model, folder)
    found["interrupted"] = interrupted(rank, model, folder)
    torch.save(found, folder / f"{rank}.pt")
    if rank == 1:
        os._exit(0)  # without a word
    with pytest.raises(RunError, match="another process of this run has stopped"):
        list(map(devices.everyone, range(3)))  # the other may have read the first
    (folder / "left alone").touch()
    os._exit(0)


def same_word(model, devices, seed):
    """Responses of both processes to prompts that are all the same: (batch, time)."""
    config, task = configure(model), Spelling(TaskConfig())
    generator = torch.Generator().manual_seed(seed)
    sampler, words = OwnSampler(load_policy(config)), [task.train[0]] * 6
    return sample_and_score(sampler, task, words, config, generator, devices)[0].tokens


def summed_in_small_buckets(devices):
    """Sums of gradients, some missing on one process, one on both, some larger than a bucket."""
    weights = [torch.nn.Parameter(torch.zeros(n)) for n in (3, 5, 2, 7, 4)]
    for i, weight in enumerate(weights):
        if i != 3 and (i != 1 or devices.rank == 1):
            weight.grad = torch.full_like(weight, i + 10.0 * devices.rank)
    size, devices_module.BUCKET = devices_module.BUCKET, 16
    devices.sum_gradients(weights)
    devices_module.BUCKET = size
    return [None if w.grad is None else w.grad for w in weights]


def stopped_by_nan(rank, model, folder):
    """A loss that is NaN on one process only, once it has been tried."""
    calls = []

    def loss(logp, logp_old, advantages, mask, *, eps_low, eps_high, sequences):
        knobs = {"eps_low": eps_low, "eps_high": eps_high, "sequences": sequences}
        value = grpo_loss(logp, logp_old, advantages, mask, **knobs)
        calls.append(value)
        return value * math.nan if rank == 1 and len(calls) > 1 else value

    config = configure(model, output_dir=str(folder / "nan"))
    with pytest.raises(NonFiniteError) as error:
        train(config, loss, quiet=True)
    return str(error.value)


def interrupted(rank, model, folder):
    """Ctrl-C reaches one process only, twice: the steps that were made, and whether all were."""
    calls = []

    def loss(logp, logp_old, advantages, mask, *, eps_low, eps_high, sequences):
        calls.append(logp)
        if rank == 1 and len(calls) > 1:  # the first is a trial
            os.kill(os.getpid(), signal.SIGINT)
        knobs = {"eps_low": eps_low, "eps_high": eps_high, "sequences": sequences}
        return grpo_loss(logp, logp_old, advantages, mask, **knobs)

    result = train(configure(model, output_dir=str(folder / "cut")), loss, quiet=True)
    return result.history[-1]["step"], result.finished


@pytest.fixture(scope="module")
def kept(tmp_path_factory, model_folder):
    """(folder, what the first process found, what the second found)."""
    folder = tmp_path_factory.mktemp("devices")
    learner = Learner(load_policy(configure(model_folder)), configure(model_folder))
    for rewards in ("all", "three", "one"):
        torch.save(sampled(learner, rewards), folder / f"{rewards}.pt")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(both, args=(folder, model_folder, port), nprocs=2)
    return folder, *(torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1))


@pytest.fixture(scope="module")
def alone(kept, model_folder):
    """A function: the outcome of a case in this one process."""

    def run(name):
        values, rewards = CASES[name]
        config = configure(model_folder, **{**values, "shard": False})
        batch = torch.load(kept[0] / f"{rewards}.pt", weights_only=False)
        return outcome(Learner(load_policy(config), config), batch)

    return run


def apart(a, b):
    return ((a - b).norm() / b.norm()).item()


# ------------------------------------------------------------------ one step


@pytest.mark.parametrize("name", CASES)
def test_two_processes_have_the_loss_and_gradient_of_one(kept, alone, name):
    _, first, second = kept
    metrics, gradient, weights = first[name]
    expected, whole_gradient, _ = alone(name)
    assert whole_gradient.norm() > 1e-3
    assert apart(gradient, whole_gradient) <= 1e-5
    assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert metrics["loss"] == pytest.approx(expected["loss"], rel=1e-5, abs=1e-6)
    assert second[name][0] == metrics
    assert torch.equal(second[name][2], weights)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_usual_mistakes_have_another_gradient(kept, alone, mistake):
    _, first, _ = kept
    assert apart(first[mistake][1], alone(MISTAKES[mistake])[1]) > 1e-2


def test_processes_write_different_responses_unless_they_share_a_seed(kept):
    def same(tokens):
        return torch.equal(*tokens.chunk(2))

    _, first, second = kept
    assert torch.equal(first["words"], second["words"])  # all hold the whole batch
    assert first["words"].shape[0] == 24
    assert not same(first["words"])
    assert same(first["words, one seed"])


def test_gradients_are_summed_in_buckets_and_a_missing_one_is_zero(kept):
    _, first, second = kept
    expected = [10.0, 11.0, 14.0, None, 18.0]
    for found in (first["buckets"], second["buckets"]):
        assert [None if g is None else g.unique().tolist() for g in found] == [
            None if x is None else [x] for x in expected
        ]


# ------------------------------------------------------------------ whole runs


def without_times(history):
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in history]


@pytest.mark.parametrize("kind", ["whole", "split"])
def test_a_run_of_two_processes_resumes_bit_by_bit_and_writes_one_log(kept, kind):
    folder, first, second = kept
    assert without_times(first[f"{kind} run"]) == without_times(second[f"{kind} run"])
    assert without_times(first[f"{kind} run in parts"]) == without_times(first[f"{kind} run"])
    lines = (folder / kind / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 4
    whole, parts = (load_file(folder / k / "model.safetensors") for k in (kind, f"{kind} in parts"))
    if kind == "split":
        saved = torch.load(folder / kind / "checkpoint.pt", weights_only=True)["model"]
        assert all(torch.equal(saved[n], w) for n, w in whole.items())
        # the other folder went on for a step
        assert any(not torch.equal(parts[n], w) for n, w in whole.items())
    else:
        assert all(torch.equal(parts[n], w) for n, w in whole.items())


def test_dynamic_sampling_goes_on_for_both_alike(kept):
    _, first, second = kept
    assert without_times(first["dapo run"]) == without_times(second["dapo run"])
    assert first["dapo run"][1]["groups/sampled"] > SMALL["prompts"]


def test_a_run_with_split_weights_goes_on_with_whole_ones(kept):
    assert kept[1]["joined"]


def test_the_two_halves_of_a_run_evaluate_what_one_process_does(kept, model_folder, tmp_path):
    config = configure(model_folder, output_dir=str(tmp_path / "one"), steps=0)
    line = train(config, quiet=True).history[0]
    assert kept[1]["whole run"][0] == pytest.approx(line, abs=1e-9)


# ------------------------------------------------------------------ how it ends


def test_a_number_that_is_not_finite_on_one_process_stops_both_by_its_name(kept):
    _, first, second = kept
    assert "step 1: the loss is nan" in first["nan"]
    assert first["nan"] == second["nan"]


def test_ctrl_c_on_one_process_stops_both_after_the_same_step(kept):
    _, first, second = kept
    assert first["interrupted"] == second["interrupted"] == (1, False)


def test_a_process_that_is_left_alone_says_so_and_ends(kept):
    assert (kept[0] / "left alone").exists()


# ------------------------------------------------------------------ what is refused


def refused(**values):
    with pytest.raises(ConfigError) as error:
        build(values)
    return str(error.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "shared_prefix = true.*set shared_prefix to false"),
        ({"algorithm": "ppo", "critic": "model", "shared_prefix": False}, "critic = 'model'"),
        ({"compile": True, "shared_prefix": False}, "compile = true"),
        ({"lora_rank": 4, "dtype": "bfloat16", "shared_prefix": False}, "lora_rank.*float32"),
    ],
)
def test_what_cannot_be_split_is_refused(values, words):
    assert re.search(f"shard = true.*{words}", refused(shard=True, **values))


def test_a_head_that_does_more_than_multiply_is_not_split(policy):
    policy.__dict__["head_is_plain"] = False  # it has been asked
    with pytest.raises(ConfigError, match="shard = true: the head of Qwen3ForCausalLM does more"):
        split(policy, Devices(0, 2, "cpu", True))


def test_what_processes_cannot_share_out_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match="shard = true: there is one process"):
        find_devices(build({"shard": True, "shared_prefix": False}))
    monkeypatch.setenv("WORLD_SIZE", "32")
    with pytest.raises(ConfigError, match="prompts = 16: with 32 processes it must be 32"):
        find_devices(build({}))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="sampler = 'vllm': with several processes"):
        find_devices(build({"sampler": "vllm"}))
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(ConfigError, match="set shared_prefix to false"):
        with_launcher(build({}))
    assert with_launcher(build({"shared_prefix": False})).shard


def test_a_run_is_resumed_by_as_many_processes(kept, model_folder):
    config = configure(
        model_folder,
        output_dir=str(kept[0] / "whole"),
        save_every=1,
        algorithm="ppo",
        critic="head",
    )
    with pytest.raises(ConfigError, match="this run has 2 processes; start as many"):
        train(config, resume=True, quiet=True)


# ------------------------------------------------------------------ small parts


@pytest.mark.parametrize("count", [0, 1, 5, 6, 7])
def test_shares_are_neighbours_and_together_the_whole(count):
    items = list(range(count))
    shares = [Devices(rank, 3).share(items) for rank in range(3)]
    assert [item for share in shares for item in share] == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_buckets_hold_one_dtype_and_lose_nothing(monkeypatch):
    monkeypatch.setattr(devices_module, "BUCKET", 16)
    tensors = [torch.zeros(n) for n in (2, 2, 1, 9)] + [torch.zeros(1, dtype=torch.float64)]
    assert [[t.numel() for t in bucket] for bucket in buckets(tensors)] == [[2, 2], [1], [9], [1]]


# ------------------------------------------------------------------ the launchers


def launch(tmp_path, model_folder, *options, **values):
    """accelerate launch with two processes on this CPU; what they printed."""
    fields = {"model": model_folder, "output_dir": tmp_path / "run", **SMALL, "steps": 2, **values}
    command = [
        sys.executable, "-m", "accelerate.commands.launch", *options, "--num_processes", "2",
        "--main_process_port", "0", "-m", "llm_trainer", "train", "--set",
        *(f"{name}={value}" for name, value in fields.items()),
    ]  # fmt: skip
    clean = {k: v for k, v in os.environ.items() if not k.startswith("ACCELERATE")}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env={**clean, "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_accelerate_launches_two_processes_that_write_one_log(tmp_path, model_folder):
    printed = launch(tmp_path, model_folder, "--multi_gpu")
    assert printed.count("held-out exact went from") == 1
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 3
    assert len(torch.load(tmp_path / "run/checkpoint.pt", weights_only=True)["generators"]) == 2
    assert (tmp_path / "run/model.safetensors").is_file()


@pytest.mark.slow
def test_accelerate_launches_fsdp(tmp_path, model_folder):
    options = ("--use_fsdp", "--fsdp_version", "2")
    printed = launch(tmp_path, model_folder, *options, shared_prefix="false")
    assert printed.count("held-out exact went from") == 1
    assert (tmp_path / "run/model.safetensors").is_file()
