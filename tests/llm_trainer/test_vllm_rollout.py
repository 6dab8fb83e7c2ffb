"""The vLLM sampler against a stand-in: vLLM itself is NOT installed here and was not run.

The stand-in takes the arguments that vLLM documents and no others, computes with a network of its
own, and reuses old prompts' states until it is told to forget them, as vLLM's prefix cache does.
"""

import sys
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from llm_trainer.config import ConfigError
from llm_trainer.invariants import InvariantError
from llm_trainer.models import load_policy
from llm_trainer.rollout import check_sampler, make_sampler, pad_prompts, sample
from llm_trainer.scoring import score
from llm_trainer.train import train


@dataclass
class SamplingParams:
    """Documented fields that matter here, with vLLM's defaults."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True


class LLM:
    """An engine with a copy of the model; `made` keeps the last one."""

    made = None

    def __init__(
        self,
        model: str,
        *,
        dtype: str = "auto",
        seed: int = 0,
        gpu_memory_utilization: float = 0.9,
        max_model_len: int | None = None,
        enable_prefix_caching: bool = True,
        generation_config: str = "auto",
        logprobs_mode: str = "raw_logprobs",
    ):
        self.own_defaults = generation_config != "vllm"
        self.processed = logprobs_mode == "processed_logprobs"
        self.room, self.asked, self.stale = max_model_len, [], False
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.model.load_weights = self.load_weights
        LLM.made = self

    def load_weights(self, weights):
        self.model.load_state_dict(dict(weights))
        self.stale = True

    def apply_model(self, func):
        return [func(self.model)]

    def reset_prefix_cache(self):
        self.stale = False

    def generate(self, prompts, sampling_params=None, *, use_tqdm=True):
        assert not self.stale, "the prefix cache holds states of the old weights"
        assert not self.own_defaults
        self.asked = sampling_params
        return [self.one(p, s) for p, s in zip(prompts, sampling_params, strict=True)]

    def one(self, prompt, settings):
        ids = prompt["prompt_token_ids"]
        assert len(ids) < self.room
        end = settings.stop_token_ids[0]
        policy = replace(self.policy, model=self.model)
        responses = []
        for g in range(settings.n):
            drawn = sample(
                policy,
                pad_prompts([ids], policy),
                group=1,
                max_new_tokens=settings.max_tokens,
                temperature=settings.temperature,
                generator=torch.Generator().manual_seed(settings.seed + g),
            )
            row = drawn.tokens[0].tolist()
            logp = drawn.logp
            if not self.processed:
                where = dict(group=1, temperature=1.0, shared=False, chunk=64)
                found = score(policy, pad_prompts([ids], policy), drawn.tokens, drawn.mask, **where)
                logp = found.logp.detach()
            said = [
                {i: SimpleNamespace(logprob=x)} for i, x in zip(row, logp[0].tolist(), strict=True)
            ]
            reason = "stop" if row[-1] == end else "length"
            responses.append(
                SimpleNamespace(index=g, token_ids=row, logprobs=said, finish_reason=reason)
            )
        return SimpleNamespace(outputs=responses)


@pytest.fixture
def vllm(monkeypatch, policy):
    """A module named vllm."""
    module = ModuleType("vllm")
    module.__spec__ = ModuleSpec("vllm", None)
    module.LLM, module.SamplingParams = LLM, SamplingParams
    LLM.policy = policy  # for the tokenizer and the end token
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")  # put back what the sampler changes
    return module


@pytest.fixture
def prompts(policy, spelling):
    words = ["cat", "Paisley", "stone"]
    return pad_prompts([policy.prompt(spelling.question(spelling.entry(w))) for w in words], policy)


def drawn(sampler, prompts, seed=0, group=4, temperature=0.7, time=12):
    return sampler.sample(
        prompts,
        group=group,
        max_new_tokens=time,
        temperature=temperature,
        generator=torch.Generator().manual_seed(seed),
    )


def test_without_vllm_a_run_is_refused_before_anything_starts(make_config, tmp_path):
    config = make_config(sampler="vllm", model=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="sampler = 'vllm': it is not installed"):
        train(config)
    assert not (tmp_path / "run").exists()
    check_sampler(make_config())


@pytest.mark.parametrize(
    ("values", "message"),
    [({"old_logprobs": "sampler"}, "rounds otherwise"), ({"temperature": 0.005}, "0.01 or more")],
)
def test_what_vllm_cannot_do_is_refused(make_config, values, message):
    with pytest.raises(ConfigError, match=message):
        make_config(sampler="vllm", **values)
    make_config(**values)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_its_responses_are_scored_alike_by_the_learner(
    vllm, policy, prompts, make_config, temperature
):
    """Padding, positions, mask, end token and temperature all have to be right for this."""
    policy.pad_id = policy.end_id  # the mask must come from the lengths, not from the padding
    sampler = make_sampler(policy, make_config(sampler="vllm"))
    responses = drawn(sampler, prompts, temperature=temperature, time=7)
    where = dict(group=4, temperature=temperature, shared=True, chunk=64)
    found = score(policy, prompts, responses.tokens, responses.mask, **where)
    assert (found.logp - responses.logp)[responses.mask].abs().max() <= 1e-4
    last = responses.mask.sum(1) - 1
    ends = responses.tokens == policy.end_id
    ended = (ends & responses.mask).any(1)
    assert 0 < ended.sum() < len(ended)
    assert ends[torch.arange(len(last)), last][ended].all()
    assert (responses.logp[~responses.mask] == 0).all()


def test_nothing_is_cut_off_and_every_response_has_a_seed_of_its_own(
    vllm, policy, prompts, make_config
):
    sampler = make_sampler(policy, make_config(sampler="vllm"))
    first = drawn(sampler, prompts)
    asked = LLM.made.asked
    for settings in asked:
        assert (settings.top_p, settings.top_k, settings.min_p) == (1.0, -1, 0.0)
        assert (settings.repetition_penalty, settings.ignore_eos) == (1.0, True)
        assert settings.stop_token_ids == [policy.end_id]
    seeds = {settings.seed + g for settings in asked for g in range(4)}
    assert len(seeds) == 12
    again, other = drawn(sampler, prompts), drawn(sampler, prompts, seed=1)
    assert torch.equal(first.tokens, again.tokens)
    assert first.tokens.shape != other.tokens.shape or not torch.equal(first.tokens, other.tokens)


def test_a_run_through_it_trains_and_its_weights_follow(vllm, make_config):
    config = make_config(sampler="vllm", lr=2e-3, lr_warmup=0, steps=3, importance="token")
    result = train(config, quiet=True)
    trained = [line for line in result.history if "check/sampler_gap" in line]
    assert len(trained) > 1
    assert all(line["check/sampler_gap"] <= 1e-4 for line in trained)
    moved = load_policy(config, result.output_dir).model.state_dict()
    held = LLM.made.model.state_dict()
    assert any(not torch.equal(held[name], weight) for name, weight in moved.items())


def test_weights_that_are_never_handed_over_stop_the_run(vllm, make_config, monkeypatch):
    """The same run with `sync` left out: from the second step on another policy samples."""
    monkeypatch.setattr("llm_trainer.vllm_rollout.VllmSampler.sync", lambda self: None)
    config = make_config(sampler="vllm", lr=2e-3, lr_warmup=0, steps=3)
    with pytest.raises(InvariantError, match="sampler and learner agree"):
        train(config, quiet=True)


def test_raw_log_probs_stop_the_run(vllm, make_config, monkeypatch):
    """vLLM's default reports log-probabilities before the temperature."""
    made = LLM.__init__

    def raw(self, *args, logprobs_mode, **kwargs):
        made(self, *args, **kwargs)

    monkeypatch.setattr(LLM, "__init__", raw)
    with pytest.raises(InvariantError, match="sampler and learner agree"):
        train(make_config(sampler="vllm", temperature=0.6), quiet=True)


def test_adapters_arrive_merged(vllm, make_config):
    policy = load_policy(make_config(lora_rank=4))
    for weight in policy.trainable():
        torch.nn.init.normal_(weight, std=0.1)
    sampler = make_sampler(policy, make_config(sampler="vllm"))
    sampler.sync()
    tokens = torch.tensor([[1, 2, 3, 4]])
    ones = torch.ones_like(tokens)
    ours = policy.forward(tokens, ones, ones.cumsum(1) - 1)
    theirs = LLM.made.model(input_ids=tokens, attention_mask=ones).logits
    assert (ours - theirs).abs().max() <= 1e-4
