"""Memory that runs out, by injected errors: halved, tried once more, then named."""

import weakref
from contextlib import nullcontext

import pytest
import torch

from llm_trainer.config import RunError
from llm_trainer.evaluate import evaluate, room_for
from llm_trainer.models import Policy
from llm_trainer.oom import Room, is_out_of_memory
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
        Room(8, "x", "y").run(lambda size: torch.ones(2) @ torch.ones(3), 8)


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
        assert Room(4, "training", "z").run(work, 9) == 2


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
        room.run(work, size)


def test_what_is_halved_is_what_was_tried():
    """Three groups of the 16 that there is room for: 8 at once would be all three again."""
    tried = []

    def work(size):
        tried.append(size)
        if size > 1:
            raise GPU
        return size

    with pytest.warns(UserWarning, match="training: 1 prompts at once"):
        assert Room(16, "training", "z").run(work, 3) == 1
    assert tried == [16, 1]


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
    batch = learner.taught(learner.measure(batch_of(learner, config, spelling)))
    learner.gradients(batch, 4)
    whole = [w.grad.clone() for w in policy.trainable()]

    rows = []
    monkeypatch.setattr(Policy, "hidden", when_above(Policy.hidden, 8, rows, error))
    with pytest.warns(UserWarning, match="2 prompts at once"):
        learner.room.run(lambda size: learner.gradients(batch, size), 4)
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
    same = draw(OwnSampler(policy, room))
    assert torch.equal(whole.tokens, same.tokens)  # where there is room nothing changes
    assert torch.equal(whole.logp, same.logp)

    rows = []
    monkeypatch.setattr(Policy, "forward", when_above(Policy.forward, 4, rows))
    with pytest.warns(UserWarning, match="sampling: 1 prompts at once"):
        halved = draw(OwnSampler(policy, room))
    assert halved.tokens.shape[0] == halved.mask.shape[0] == 12
    assert halved.tokens.shape == halved.logp.shape
    assert (halved.tokens[~halved.mask.bool()] == policy.pad_id).all()
    assert (halved.logp[~halved.mask.bool()] == 0).all()
    assert halved.mask.bool().any(1).all()


def test_evaluation_halves_its_prompts_and_says_the_same(policy, spelling, monkeypatch):
    words = spelling.held_out[:30]
    whole = evaluate(policy, spelling, words, max_new_tokens=12)
    rows = []
    monkeypatch.setattr(Policy, "forward", when_above(Policy.forward, 8, rows))
    room = room_for(16)
    with pytest.warns(UserWarning, match="evaluating: 8 prompts at once"):
        halved = evaluate(policy, spelling, words, max_new_tokens=12, room=room)
    assert halved == whole
    assert sum(n > 8 for n in rows) == 1
    assert room.size == 8


def test_a_run_without_room_for_its_first_evaluation_goes_on(make_config, monkeypatch):
    """17 words, 16 at once, and again after the last step: that is not tried with 16 again."""
    monkeypatch.setattr(Policy, "forward", when_above(Policy.forward, 8, []))
    with pytest.warns(UserWarning, match="evaluating: 8 prompts at once") as warned:
        assert train(make_config(eval_words=17, micro_batch=2), quiet=True).finished
    assert sum("evaluating" in str(w.message) for w in warned) == 1


def test_no_room_at_all_for_the_first_evaluation_does_not_promise_a_checkpoint(
    make_config, monkeypatch
):
    monkeypatch.setattr(Policy, "forward", when_above(Policy.forward, 1, []))
    monkeypatch.setattr("llm_trainer.models.check_network", lambda *_: None)
    with (
        pytest.warns(UserWarning, match="out of memory"),
        pytest.raises(RunError, match=r"while evaluating, even with 4 prompts.*Lower max_new") as e,
    ):
        train(make_config(), quiet=True)
    assert "checkpoint" not in str(e.value)
