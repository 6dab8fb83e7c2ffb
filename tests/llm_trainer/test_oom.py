"""Memory that runs out, by injected errors: halved, tried once more, then named."""

import weakref
from contextlib import nullcontext

import pytest
import torch

from llm_trainer.config import RunError
from llm_trainer.models import Policy
from llm_trainer.oom import InRoom, Room, is_out_of_memory
from llm_trainer.rollout import OwnSampler, pad_prompts
from llm_trainer.step import Learner
from llm_trainer.train import sample_and_score, train

GPU = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
CPU = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory"
)


def when_above(real, limit, rows, error=GPU):
    """`real`, out of memory on more rows than `limit`; `rows` notes what was asked for."""

    def limited(self, tokens, *arguments, **settings):
        rows.append(len(tokens))
        if len(tokens) > limit:
            raise error
        return real(self, tokens, *arguments, **settings)

    return limited


def test_both_kinds_of_error_are_known_and_no_other():
    assert is_out_of_memory(GPU)
    assert is_out_of_memory(CPU)
    assert not is_out_of_memory(RuntimeError("size mismatch"))
    assert not is_out_of_memory(OSError("Cannot allocate memory"))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        Room(8, "x", "y").run(lambda size: torch.ones(2) @ torch.ones(3))


def test_the_cpus_own_error_is_known():
    with pytest.raises(RuntimeError) as real:
        torch.empty(2**55, dtype=torch.uint8)
    assert is_out_of_memory(real.value)


def test_the_failed_attempts_tensors_are_gone_before_the_second_begins():
    """An `except` block that retries inside itself would keep them through the traceback."""
    held = []

    def work(size):
        if size == 4:
            big = torch.ones(1000)
            held.append(weakref.ref(big))
            raise GPU.__class__("out of memory")
        assert held[0]() is None
        return size

    with pytest.warns(UserWarning, match="training: 2 prompts at once from here on"):
        assert Room(4, "training", "z").run(work) == 2


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_second_failure_is_named_with_what_to_lower(size):
    def work(size):
        raise CPU

    room = Room(size, "training", "group")
    halves = pytest.warns(UserWarning, match="out of memory") if size > 1 else nullcontext()
    with (
        halves,
        pytest.raises(RunError, match=rf"even with {max(1, size // 2)} prompts.*Lower group"),
    ):
        room.run(work)


def batch_of(learner, config, spelling):
    generator = torch.Generator().manual_seed(1)
    words = spelling.train[: config.prompts]
    return sample_and_score(OwnSampler(learner.policy), spelling, words, config, generator)[0]


@pytest.mark.parametrize("error", [GPU, CPU], ids=["gpu", "cpu"])
def test_the_retried_update_has_the_same_gradient(
    make_config, policy, spelling, monkeypatch, error
):
    config = make_config(kl_coef=0.01)
    learner = Learner(policy, config)
    batch = learner.prepare(batch_of(learner, config, spelling))
    learner.gradients(batch, 4)
    whole = [w.grad.clone() for w in policy.trainable()]

    rows = []
    monkeypatch.setattr(Policy, "hidden", when_above(Policy.hidden, 8, rows, error))
    with pytest.warns(UserWarning, match="2 prompts at once"):
        learner.room.run(lambda size: learner.gradients(batch, size))
    assert max(rows) > 8  # what failed: 16 responses, less those that say the same
    for one, two in zip(whole, policy.trainable(), strict=True):
        assert torch.allclose(one, two.grad, rtol=1e-4, atol=1e-6)
    assert not any(module.training for module in policy.model.modules())


def test_a_run_that_is_out_of_memory_halves_once_and_says_so_in_its_log(
    make_config, tmp_path, monkeypatch
):
    plain = train(make_config(output_dir=str(tmp_path / "plain")), quiet=True)
    rows = []
    monkeypatch.setattr(Policy, "hidden", when_above(Policy.hidden, 8, rows))
    with pytest.warns(UserWarning, match="2 prompts at once"):
        halved = train(make_config(output_dir=str(tmp_path / "halved")), quiet=True)
    assert sum(n > 8 for n in rows) == 1  # remembered: the second step does not try again
    assert [line["micro_batch"] for line in halved.history[1:]] == [2, 2]
    assert "micro_batch" not in plain.history[-1]
    for name in ("reward/mean", "grad_norm"):
        one, two = ([line[name] for line in run.history[1:]] for run in (plain, halved))
        assert one == pytest.approx(two, rel=1e-4)


def test_a_run_that_stays_out_of_memory_ends_by_name_with_its_checkpoint(
    make_config, tmp_path, monkeypatch
):
    monkeypatch.setattr(Policy, "hidden", when_above(Policy.hidden, 1, []))
    monkeypatch.setattr("llm_trainer.models.check_network", lambda *_: None)
    with (
        pytest.warns(UserWarning, match="out of memory"),
        pytest.raises(RunError, match="Lower group"),
    ):
        train(make_config(), quiet=True)
    assert torch.load(tmp_path / "run/checkpoint.pt", weights_only=True)["done"]["step"] == 0


def test_sampling_halves_its_prompts(policy, monkeypatch):
    questions = [
        "Spell this word backward (example: sun -> nus): " + w for w in ("a", "plane", "xy")
    ]
    prompts = pad_prompts([policy.prompt(text) for text in questions], policy)
    settings = {"group": 4, "max_new_tokens": 12, "temperature": 1.0}

    def draw(sampler):
        return sampler.sample(prompts, **settings, generator=torch.Generator().manual_seed(0))

    whole = draw(OwnSampler(policy))
    room = Room(3, "sampling", "group")
    same = draw(InRoom(OwnSampler(policy), room))
    assert torch.equal(whole.tokens, same.tokens)  # where there is room nothing changes
    assert torch.equal(whole.logp, same.logp)

    rows = []
    monkeypatch.setattr(Policy, "forward", when_above(Policy.forward, 4, rows))
    with pytest.warns(UserWarning, match="sampling: 1 prompts at once"):
        halved = draw(InRoom(OwnSampler(policy), room))
    assert halved.tokens.shape[0] == halved.mask.shape[0] == 12
    assert halved.tokens.shape == halved.logp.shape
    assert (halved.tokens[~halved.mask.bool()] == policy.pad_id).all()
    assert (halved.logp[~halved.mask.bool()] == 0).all()
    assert halved.mask.bool().any(1).all()
