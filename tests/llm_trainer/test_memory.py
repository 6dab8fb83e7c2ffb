"""The estimate of memory against what the tensors really take, as far as a CPU can tell.

Two layers of a real model's shape stand for the whole: every layer is alike, so an error per layer
would show here as it would with 28 of them. The peaks are the allocator's own events, which
torch's profiler records.
"""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoModelForCausalLM

from llm_trainer import memory
from llm_trainer.config import build
from llm_trainer.lora import add_adapters
from llm_trainer.memory import KNOWN, shape_of
from llm_trainer.models import Policy, load_policy
from llm_trainer.rollout import Prompts, pad_prompts, sample
from llm_trainer.scoring import response_states, score
from llm_trainer.step import Learner
from llm_trainer.task import Spelling
from llm_trainer.tiny import build_tokenizer

PROMPT, RESPONSE, PROMPTS, GROUP = 32, 48, 2, 4
PUBLISHED = {  # what the models' own pages say
    "tiny": 408_320,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_counted_exactly(name):
    assert shape_of(name).parameters == PUBLISHED[name]


def test_every_known_model_is_checked():
    assert {"tiny", *KNOWN} == {*PUBLISHED}


def test_a_folder_is_counted_from_its_configuration_alone(model_folder, tmp_path):
    (tmp_path / "config.json").write_text((model_folder / "config.json").read_text())  # no weights
    assert shape_of(str(tmp_path)) == shape_of("tiny")


def test_an_instruction_tuned_name_has_the_sizes_of_its_base():
    assert shape_of("Qwen/Qwen2.5-0.5B-Instruct") == shape_of("Qwen/Qwen2.5-0.5B")


# ---------------------------------------------------------------- to the byte


@pytest.mark.parametrize("rank", [0, 4])
def test_weights_gradients_and_moments_to_the_byte(make_config, rank):
    config = make_config(lora_rank=rank, epochs=1)
    policy = load_policy(config)
    learner = Learner(policy, config)
    task = Spelling(config.task)
    entries = [task.entry(word) for word in task.train[:4]]
    prompts = pad_prompts([policy.prompt(task.question(e)) for e in entries], policy)
    tokens = torch.randint(0, 90, (16, 6), generator=torch.Generator().manual_seed(0))
    logp = score(
        policy, prompts, tokens, torch.ones_like(tokens, dtype=torch.bool), group=4,
        temperature=1.0, shared=True, chunk=64,
    ).logp  # fmt: skip
    logp.sum().backward()
    learner.optimizer.step()
    shape = shape_of("tiny")
    always = memory.always(shape, config)
    moments = [v for s in learner.optimizer.state.values() for k, v in s.items() if k != "step"]
    assert sum(m.nbytes for m in moments) == always["Adam's moments"]
    assert sum(w.nbytes for w in policy.model.parameters()) == always["weights"]
    gradients = sum(w.grad.nbytes for w in policy.trainable())
    assert gradients == memory.training(shape, config, PROMPT)["gradients"]


def slice_of(
    name, dtype="float32", rank=0, *, vocabulary=4000, layers=2, hidden_size=None, **settings
):
    """(two layers of a known model with random weights, its shape, a configuration for it)."""
    sizes = {**KNOWN[name], "num_hidden_layers": layers, "vocab_size": vocabulary}
    sizes["hidden_size"] = hidden_size or sizes["hidden_size"]
    weights = getattr(torch, dtype if rank else "float32")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**sizes), dtype=weights).eval()
    adapters = add_adapters(model, rank=rank, alpha=16, seed=0) if rank else None
    arithmetic = getattr(torch, dtype)
    policy = Policy(
        model, build_tokenizer(), 1, 1, torch.device("cpu"), arithmetic, adapters=adapters
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(KNOWN, name, sizes)
        shape = shape_of(name)
    config = build(
        {"prompts": PROMPTS, "micro_batch": PROMPTS, "group": GROUP, "max_new_tokens": RESPONSE,
         "dtype": dtype, "lora_rank": rank, "logprob_chunk": 128, **settings}
    )  # fmt: skip
    return policy, shape, config


def some_prompts():
    attention = torch.ones(PROMPTS, PROMPT, dtype=torch.long)
    attention[0, :3] = 0  # left padding, so that there is an attention mask, as in a real batch
    return Prompts(torch.randint(0, 100, (PROMPTS, PROMPT)), attention)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-0.5B"])
@pytest.mark.parametrize(("dtype", "rank"), [("float32", 0), ("bfloat16", 0), ("bfloat16", 4)])
def test_the_attention_cache_to_the_byte(monkeypatch, name, dtype, rank):
    policy, shape, config = slice_of(name, dtype, rank, max_new_tokens=6)
    policy.end_id = -1  # no token: every response reaches the limit
    caches, new = [], policy.new_cache
    monkeypatch.setattr(policy, "new_cache", lambda: caches.append(new()) or caches[-1])
    generator = torch.Generator().manual_seed(0)
    sample(
        policy, some_prompts(), group=GROUP, max_new_tokens=6, temperature=1.0, generator=generator
    )
    held = sum(x.nbytes for layer in caches[0].layers for x in (layer.keys, layer.values))
    tokens = PROMPT + 5  # the last token of a response is never looked back at
    rows = PROMPTS * GROUP
    assert held == memory.attention_cache(shape, config, rows=rows, tokens=tokens)


# ---------------------------------------------------------------- by measurement


def saved_for_backward(policy, run):
    """Bytes of the storages that autograd keeps, without the weights themselves."""
    own = {w.untyped_storage().data_ptr() for w in policy.model.parameters()}
    kept = {}

    def pack(x):
        storage = x.untyped_storage()  # held, so that no address is seen twice
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = run()
    del result
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("dtype", "rank"), [("float32", 0), ("bfloat16", 0), ("bfloat16", 4)])
@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-0.5B"])
def test_activations_are_what_autograd_saves(name, dtype, rank, shared):
    """Measured: within 5 %; where only adapters learn, the first layer keeps less."""
    policy, shape, config = slice_of(name, dtype, rank, shared_prefix=shared, max_new_tokens=24)
    tokens = torch.randint(0, 100, (PROMPTS * GROUP, 24))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    given = some_prompts()
    saved = saved_for_backward(
        policy, lambda: response_states(policy, given, tokens, mask, group=GROUP, shared=shared)
    )
    prompts, rows = PROMPTS * PROMPT, PROMPTS * GROUP
    computed, seen = (prompts + rows * 24, prompts) if shared else (rows * (PROMPT + 24), 0)
    seen += rows * (PROMPT + 24)
    kept = memory.activations(shape, config, computed=computed, seen=seen)
    assert kept + memory.copies(shape, config, head=False) == pytest.approx(saved, rel=0.05)


def test_checkpointing_keeps_the_inputs_of_layers():
    policy, shape, config = slice_of(
        "Qwen/Qwen3-0.6B", shared_prefix=False, gradient_checkpointing=True
    )
    policy.model.activation_checkpointing_enable()
    policy.recompute(True)
    tokens = torch.randint(0, 100, (PROMPTS * GROUP, RESPONSE))
    mask, prompts = torch.ones_like(tokens, dtype=torch.bool), some_prompts()
    saved = saved_for_backward(
        policy, lambda: response_states(policy, prompts, tokens, mask, group=GROUP, shared=False)
    )
    seen = PROMPTS * GROUP * (PROMPT + RESPONSE)
    whole = memory.activations(shape, config, computed=seen, seen=seen)
    layer = seen * memory.token_activations(shape, config) + seen * 2 * shape.queries * 4
    assert whole - layer == pytest.approx(saved, rel=0.05)  # `layer` is computed again in backward


def peak_of(run):
    """Most bytes that the CPU allocator had handed out at once while `run` ran."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    events = recorded.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


@pytest.mark.parametrize(
    ("dtype", "rank", "shared"),
    [("float32", 0, True), ("float32", 0, False), ("bfloat16", 0, True), ("bfloat16", 8, True)],
)
def test_the_peak_of_training(dtype, rank, shared):
    """Measured: within 7 %."""
    policy, shape, config = slice_of("Qwen/Qwen3-0.6B", dtype, rank, shared_prefix=shared)
    tokens = torch.randint(0, 100, (PROMPTS * GROUP, RESPONSE))
    mask, prompts = torch.ones_like(tokens, dtype=torch.bool), some_prompts()

    def backward():
        scores = score(
            policy, prompts, tokens, mask, group=GROUP, temperature=1.0, shared=shared, chunk=128
        )
        scores.logp.sum().backward()

    backward()  # from now on gradients are there, as from the second micro-batch on
    held = sum(w.grad.nbytes for w in policy.trainable())
    estimated = memory.total(memory.training(shape, config, PROMPT))
    assert estimated == pytest.approx(held + peak_of(backward), rel=0.10)


@pytest.mark.parametrize(
    ("dtype", "changes"),
    [
        ("float32", {}),
        ("bfloat16", {}),
        # next to no layers, so that what is seen is the logits
        ("float32", {"vocabulary": 50_000, "layers": 1, "hidden_size": 64, "max_new_tokens": 6}),
    ],
)
def test_the_peak_of_sampling(dtype, changes):
    """Measured: within 3 %."""
    policy, shape, config = slice_of("Qwen/Qwen3-0.6B", dtype, **changes)
    policy.end_id = -1
    prompts, generator = some_prompts(), torch.Generator().manual_seed(0)
    peak = peak_of(
        lambda: sample(
            policy, prompts, group=GROUP, max_new_tokens=config.max_new_tokens, temperature=1.0,
            generator=generator,
        )
    )  # fmt: skip
    assert memory.total(memory.sampling(shape, config, PROMPT)) == pytest.approx(peak, rel=0.10)
