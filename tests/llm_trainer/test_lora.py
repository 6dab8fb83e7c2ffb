"""Adapters: they learn, the network below them does not, and switched off it is the reference."""

from dataclasses import replace

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from llm_trainer.__main__ import main
from llm_trainer.config import ConfigError, with_values
from llm_trainer.lora import merged_weights
from llm_trainer.models import load_policy
from llm_trainer.rollout import pad_prompts, sample
from llm_trainer.train import train

LORA = {"lora_rank": 4, "lora_alpha": 8.0}
PROMPTS = [
    "Spell this word backward (example: sun -> nus): " + w for w in ("plane", "at", "orchid")
]


@pytest.fixture
def adapted(make_config):
    return load_policy(make_config(**LORA))


@pytest.fixture
def prompts(policy):
    return pad_prompts([policy.prompt(text) for text in PROMPTS], policy)


@pytest.fixture
def logits(prompts):
    """A function: the logits of a policy on the prompts."""

    @torch.no_grad()
    def of(policy):
        return policy.forward(prompts.tokens, prompts.attention, prompts.positions)

    return of


def learn_something(policy, prompts, steps=3):
    """A few optimiser steps on whatever: the adapters are no longer at zero."""
    optimizer = torch.optim.AdamW(policy.trainable(), lr=1e-2)
    for _ in range(steps):
        logits = policy.forward(prompts.tokens, prompts.attention, prompts.positions)
        optimizer.zero_grad()
        logits.log_softmax(-1)[..., 5].mean().neg().backward()
        optimizer.step()


def frozen(policy):
    return {n: w.clone() for n, w in policy.model.named_parameters() if not w.requires_grad}


# ------------------------------------------------------------------ what is trained


def test_only_float32_adapters_on_every_linear_layer_but_the_head_are_trained(adapted):
    trained = {n for n, w in adapted.model.named_parameters() if w.requires_grad}
    linear = {
        f"{name}.lora_{part}.default.weight"
        for name, module in adapted.model.named_modules()
        if name.endswith("_proj")
        for part in "AB"
    }
    assert trained == linear
    assert len(trained) == 2 * 7 * 2  # A and B, seven matrices, two layers
    assert {w.dtype for w in adapted.trainable()} == {torch.float32}
    assert not any(m.p for m in adapted.model.modules() if isinstance(m, torch.nn.Dropout))


def test_the_adapters_learn_and_nothing_else_moves(adapted, prompts):
    before, start = frozen(adapted), [w.detach().clone() for w in adapted.trainable()]
    learn_something(adapted, prompts)
    after = frozen(adapted)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(not torch.equal(a, b) for a, b in zip(start, adapted.trainable(), strict=True))


def test_where_the_adapters_start_is_the_seeds(make_config):
    one, two, other = (load_policy(make_config(**LORA, seed=seed)) for seed in (3, 3, 4))

    def starts(policy):
        return torch.cat([w.detach().flatten() for w in policy.trainable()])

    assert torch.equal(starts(one), starts(two))
    assert not torch.equal(starts(one), starts(other))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradient_checkpointing_with_a_frozen_input_reaches_every_adapter(
    make_config, prompts, dtype
):
    """Re-entrant checkpointing would give them none: nothing that enters a layer has a gradient."""
    grads = []
    for checkpointing in (False, True):
        policy = load_policy(
            make_config(
                **LORA, dtype=dtype, gradient_checkpointing=checkpointing, shared_prefix=False
            )
        )
        policy.recompute(checkpointing)
        policy.forward(
            prompts.tokens, prompts.attention, prompts.positions
        ).square().mean().backward()
        grads.append([w.grad for w in policy.trainable()])
        assert all(w.grad is None for w in policy.model.parameters() if not w.requires_grad)
    reached = [g is not None and bool(g.any()) for g in grads[1]]
    assert sum(reached) == len(reached) // 2  # at the start B = 0, so A's gradient is 0
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_recomputing_layers_do_not_wake_dropout(make_config):
    policy = load_policy(make_config(gradient_checkpointing=True, shared_prefix=False))
    policy.recompute(True)
    training = {type(m).__name__ for m in policy.model.modules() if m.training}
    assert training == {"Qwen3Model", "Qwen3DecoderLayer"}
    policy.recompute(False)
    assert not any(m.training for m in policy.model.modules())


def test_frozen_weights_stay_in_bfloat16_beside_float32_adapters(make_config, prompts, logits):
    policy = load_policy(make_config(**LORA, dtype="bfloat16"))
    kinds = {w.requires_grad: w.dtype for w in policy.model.parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}
    assert torch.equal(logits(policy), logits(policy.reference()))
    full = load_policy(make_config())
    assert (logits(policy) - logits(full)).abs().mean() < 0.1


# ------------------------------------------------------------------ the reference


def test_with_adapters_off_it_is_the_starting_model_before_and_after_learning(
    policy, adapted, prompts, logits
):
    """The bug: a reference whose adapters are on follows the policy, and the KL stays 0."""
    reference, copy = adapted.reference(), adapted.frozen_copy()
    assert reference.model is adapted.model
    start = logits(policy)
    assert torch.equal(logits(adapted), start)  # B = 0: exactly, not only nearly
    assert torch.equal(logits(reference), start)
    learn_something(adapted, prompts)
    assert torch.equal(logits(reference), start)
    assert torch.equal(logits(copy), start)
    assert (logits(adapted) - start).abs().max() > 0.1
    adapters_on = replace(reference, adapters_off=False)
    assert torch.equal(logits(adapters_on), logits(adapted))


def test_scoring_the_reference_leaves_the_adapters_on_and_trainable(adapted, prompts, logits):
    learn_something(adapted, prompts)
    before = logits(adapted)
    logits(adapted.reference())
    assert torch.equal(logits(adapted), before)
    assert len(adapted.trainable()) == 28


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_the_kl_of_a_run_is_that_to_a_real_frozen_copy(make_config, where, monkeypatch, tmp_path):
    settings = {**LORA, "kl_coef": 0.05, "kl_in": where, "lr": 5e-3, "lr_warmup": 0, "steps": 4}
    ours = train(make_config(**settings, output_dir=str(tmp_path / "off")), quiet=True)
    monkeypatch.setattr("llm_trainer.models.Policy.reference", lambda self: self.frozen_copy())
    copy = train(make_config(**settings, output_dir=str(tmp_path / "copy")), quiet=True)
    kl = [line["kl/ref"] for line in ours.history[1:]]
    assert kl == [line["kl/ref"] for line in copy.history[1:]]
    assert kl[0] <= 1e-6
    assert kl[-1] > 1e-4


# ------------------------------------------------------------------ what is kept


def test_merged_weights_are_an_ordinary_model_that_computes_the_same(
    adapted, policy, prompts, logits
):
    learn_something(adapted, prompts)
    names = merged_weights(adapted.model).keys()
    assert names == policy.model.state_dict().keys()
    before = logits(policy)
    policy.model.load_state_dict(merged_weights(adapted.model))
    assert (logits(policy) - logits(adapted)).abs().max() <= 1e-5
    assert (logits(policy) - before).abs().max() > 0.1


def test_a_run_leaves_a_merged_model_and_its_adapters(make_config, model_folder, prompts, capsys):
    config = make_config(**LORA, steps=3, lr=5e-3, lr_warmup=0)
    result = train(config, quiet=True)
    state = torch.load(result.output_dir / "checkpoint.pt", weights_only=True)
    assert len(state["model"]) == 28
    assert all(".lora_" in name for name in state["model"])

    inputs = {"input_ids": prompts.tokens, "attention_mask": prompts.attention}
    with torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(result.output_dir)
        base = AutoModelForCausalLM.from_pretrained(model_folder)
        start = base(**inputs).logits
        apart = PeftModel.from_pretrained(base, result.output_dir / "adapter")
        assert (apart(**inputs).logits - merged(**inputs).logits).abs().max() <= 1e-4
        assert (merged(**inputs).logits - start).abs().max() > 1e-3
    wrong = [n for n, _ in merged.named_parameters() if "lora" in n or "base_layer" in n]
    assert wrong == []

    assert main(["evaluate", str(result.output_dir)]) == 0
    assert f"exact {result.exact:.1%} of 8" in capsys.readouterr().out
    again = train(config, overwrite=True, quiet=True)
    assert (again.output_dir / "adapter/adapter_model.safetensors").is_file()
    train(with_values(config, lora_rank=0, lora_alpha=32.0), overwrite=True, quiet=True)
    assert not (again.output_dir / "adapter").exists()


def test_resumed_adapters_are_bit_identical(make_config, tmp_path, crash):
    settings = {**LORA, "steps": 5, "save_every": 2, "lr": 5e-3}
    train(make_config(output_dir=str(tmp_path / "whole"), **settings), quiet=True)
    config = make_config(output_dir=str(tmp_path / "cut"), **settings)
    crash(config)
    train(config, resume=True, quiet=True)
    for name in ("model.safetensors", "adapter/adapter_model.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_folder_of_adapters_is_not_a_model_to_start_from(make_config):
    result = train(make_config(**LORA, steps=1), quiet=True)
    with pytest.raises(ConfigError, match="this holds adapters, not a model"):
        load_policy(make_config(model=str(result.output_dir / "adapter")))


def test_sampling_uses_the_adapters(adapted, prompts):
    settings = {"group": 1, "max_new_tokens": 6, "temperature": 1.0, "generator": None}
    before = sample(adapted, prompts, **settings).tokens
    learn_something(adapted, prompts, steps=20)
    assert not torch.equal(sample(adapted, prompts, **settings).tokens, before)
    assert torch.equal(sample(adapted.reference(), prompts, **settings).tokens, before)
