"""The estimate of memory against what the tensors really take, as far as a CPU can tell.

Two layers of a real model's shape stand for the whole: every layer is alike, so an error per layer
would show here as it would with 28 of them. The peaks are the allocator's own events, which
torch's profiler records.
"""

import re

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.logprob_memory import allocated
from llm_trainer import memory
from llm_trainer.__main__ import main
from llm_trainer.config import CONFIGS, build, load, with_values
from llm_trainer.lora import add_adapters
from llm_trainer.memory import GB, KNOWN, advice, estimate, merged, shape_of
from llm_trainer.models import Policy, load_policy
from llm_trainer.rollout import Prompts, pad_prompts, sample
from llm_trainer.scoring import response_states, score
from llm_trainer.step import Learner
from llm_trainer.task import Spelling
from llm_trainer.tiny import build_tokenizer

PROMPT, RESPONSE, PROMPTS, GROUP = 24, 32, 2, 4
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
    assert estimated == pytest.approx(held + allocated(backward), rel=0.10)


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
    peak = allocated(
        lambda: sample(
            policy, prompts, group=GROUP, max_new_tokens=config.max_new_tokens, temperature=1.0,
            generator=generator,
        )
    )  # fmt: skip
    assert memory.total(memory.sampling(shape, config, PROMPT)) == pytest.approx(peak, rel=0.10)


# ---------------------------------------------------------------- what is printed


PRESETS = sorted(CONFIGS.glob("grpo_qwen3_*gb.yaml"))


def test_there_is_a_preset_for_each_size_of_card():
    assert [memory_in(path) for path in PRESETS] == [16, 8, 24, 80]


def memory_in(path):
    return int(re.search(r"_(\d+)gb$", path.stem)[1])


@pytest.mark.parametrize("path", PRESETS, ids=lambda p: p.stem)
def test_a_preset_fits_and_its_header_is_what_the_command_prints(capsys, path):
    gigabytes = memory_in(path)
    assert main(["estimate", "--config", str(path), "--memory", str(gigabytes)]) == 0
    printed = "".join(f"#   {line}\n" for line in capsys.readouterr().out.splitlines())
    command = f"# python -m llm_trainer estimate --config llm_trainer/configs/{path.name}"
    text = path.read_text()
    shown = f"{command} --memory {gigabytes}\n{printed}model: "
    assert shown in text, "paste what the command prints into the file's header"
    assert "NOT RUN ON A GPU" in text
    assert estimate(load(path)).peak <= 0.9 * gigabytes * GB


@pytest.fixture(scope="module")
def large():
    return load(CONFIGS / "grpo_qwen3_1.7b_80gb.yaml")


@pytest.mark.parametrize("gigabytes", [16, 24, 40])
def test_advice_has_been_tried(large, gigabytes):
    shape = shape_of(large.model)
    steps = advice(large, gigabytes * GB, shape=shape)
    before = estimate(large, shape=shape).peak
    for n, (_, result) in enumerate(steps):
        made = merged([values for values, _ in steps[: n + 1]])
        assert estimate(with_values(large, **made), shape=shape).peak == result.peak
        assert result.peak < before
        assert result.fits(gigabytes * GB) == (n == len(steps) - 1)
        before = result.peak


def test_what_does_not_fit_ends_with_advice_and_code_1(capsys):
    settings = ["--config", str(CONFIGS / "grpo_qwen3_1.7b_80gb.yaml"), "--memory", "24"]
    assert main(["estimate", *settings]) == 1
    shown = capsys.readouterr().out
    assert "does NOT fit 24 GB" in shown
    assert re.search(r"--set lora_rank=16 +\d+\.\d\d: fits", shown)
    assert main(["estimate", *settings, "--set", "model=Qwen/Qwen3-8B", "max_new_tokens=9999"]) == 1
    assert "not enough: a smaller model" in capsys.readouterr().out


def test_what_no_change_helps_says_so(capsys):
    """CUDA itself needs more than this card has: there is nothing to try."""
    assert main(["estimate", "--memory", "0.1", "--set", "prompts=1", "micro_batch=1"]) == 1
    shown = capsys.readouterr().out
    assert "does NOT fit 0.1 GB" in shown
    assert "not enough: a smaller model" in shown


def test_parts_come_and_go_with_what_needs_them(large):
    shape = shape_of(large.model)

    def parts(**values):
        found = estimate(with_values(large, **values), shape=shape)
        return found.always, found.training

    plain, with_kl = parts()[0], parts(kl_coef=0.1)[0]
    assert plain["reference"] == 0
    assert with_kl["reference"] == plain["weights"] == 4 * shape.parameters
    adapted = parts(kl_coef=0.1, lora_rank=8)[0]
    assert adapted["reference"] == 0  # the same network, adapters off
    assert adapted["weights"] == 2 * shape.parameters + 4 * 8 * shape.lora
    head, body = (parts(algorithm="ppo", critic=c)[0]["critic"] for c in ("head", "model"))
    assert head < 1e-3 * plain["weights"]
    assert body == head + plain["weights"] + plain["Adam's moments"]
    ours = parts(algorithm="ppo", critic="model")[1]["activations"]
    assert ours > 1.5 * parts()[1]["activations"]


def test_the_phases_do_not_add_up(large):
    found = estimate(large)
    both = memory.total(found.sampling), memory.total(found.training)
    assert found.peak == memory.total(found.always) + max(both)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--memory", "0"], "--memory 0.0"),
        (["--prompt-tokens", "0"], "--prompt-tokens 0"),
        (["--set", "model=/no/such/folder"], "no sizes to estimate from"),
    ],
)
def test_what_cannot_be_estimated_is_refused(capsys, arguments, says):
    assert main(["estimate", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_without_a_gpu_24_gb_are_assumed(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["estimate"]) == 0
    assert "fits 24 GB" in capsys.readouterr().out
