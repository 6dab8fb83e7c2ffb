"""Any causal language model: small random ones of each family, built from transformers' classes.

What a family does its own way (positions, windows, caps, dropout, scaled logits, several end
tokens) must not make the sampler and the learner see different probabilities; where it would, the
model is refused when it is loaded.
"""

import json
import shutil

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from llm_trainer.config import ConfigError
from llm_trainer.models import Policy, load_policy, pick_device
from llm_trainer.rollout import pad_prompts, sample
from llm_trainer.scoring import score
from llm_trainer.tiny import END, PAD, build_tokenizer
from llm_trainer.train import train

TOKENIZER = build_tokenizer()
COMMON = {
    "vocab_size": len(TOKENIZER),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": TOKENIZER.eos_token_id,
    "pad_token_id": TOKENIZER.pad_token_id,
}
FAMILIES = {
    "qwen3": COMMON,
    "qwen2": COMMON,
    "llama": COMMON,
    "mistral": {**COMMON, "sliding_window": 8},  # shorter than a prompt
    "gemma": COMMON,
    "gemma2": {**COMMON, "sliding_window": 8, "query_pre_attn_scalar": 8},  # caps its logits
    "gemma3_text": {**COMMON, "sliding_window": 8, "query_pre_attn_scalar": 8},
    "granite": {**COMMON, "logits_scaling": 2.0},
    "gpt2": {  # learned positions, and dropout in its configuration
        "vocab_size": len(TOKENIZER), "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256,
        "bos_token_id": None, "eos_token_id": TOKENIZER.eos_token_id,
    },
}  # fmt: skip
REFUSED = {
    "mamba": {"vocab_size": len(TOKENIZER), "hidden_size": 32, "num_hidden_layers": 1,
              "state_size": 8},
    "rwkv": {"vocab_size": len(TOKENIZER), "hidden_size": 32, "num_hidden_layers": 2},
    "xlnet": {"vocab_size": len(TOKENIZER), "d_model": 32, "n_layer": 1, "n_head": 4,
              "d_inner": 48},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """A function: the folder of a random model of a family, wide enough that errors show."""
    root = tmp_path_factory.mktemp("families")

    def build(name):
        folder = root / name
        if not folder.exists():
            torch.manual_seed(0)
            settings = {**FAMILIES, **REFUSED}[name]
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **settings))
            for weight in model.parameters():
                if weight.dim() > 1:
                    torch.nn.init.normal_(weight, std=0.3)
            model.save_pretrained(folder)
            TOKENIZER.save_pretrained(folder)
        return folder

    return build


@pytest.fixture
def altered(folder_of, tmp_path):
    """A function: a copy of Qwen3's folder with another generation configuration or tokenizer."""

    def build(*, eos=END, pad=PAD, **generation):
        shutil.copytree(folder_of("qwen3"), tmp_path / "altered")
        tokenizer = build_tokenizer()
        tokenizer.eos_token, tokenizer.pad_token = eos, pad
        tokenizer.save_pretrained(tmp_path / "altered")
        GenerationConfig(**generation).save_pretrained(tmp_path / "altered")
        return tmp_path / "altered"

    return build


def prompts_of(policy):
    return pad_prompts([policy.prompt(text) for text in ("plane is", "a" * 20, "gogo")], policy)


def draw(policy, prompts, seed=0):
    return sample(
        policy,
        prompts,
        group=3,
        max_new_tokens=12,
        temperature=1.3,
        generator=torch.Generator().manual_seed(seed),
    )


# ------------------------------------------------------------------ families


@pytest.mark.parametrize("name", FAMILIES)
def test_sampler_and_learner_agree_for_every_family(make_config, folder_of, name):
    policy = load_policy(make_config(model=str(folder_of(name))))
    prompts = prompts_of(policy)
    responses = draw(policy, prompts)
    mask = responses.mask.bool()
    for shared in (True, False):
        logp = score(
            policy, prompts, responses.tokens, mask,
            group=3, temperature=1.3, shared=shared, chunk=7,
        ).logp  # fmt: skip
        assert (logp - responses.logp)[mask].abs().max() <= 1e-4
    # The last prompt by itself, without padding, through nothing but the model's own call.
    length = int(prompts.lengths[2])
    whole = torch.cat([prompts.tokens[2, -length:].expand(3, -1), responses.tokens[6:]], 1)
    with torch.no_grad():
        logits = policy.model(whole).logits[:, length - 1 : -1]
    logp = (logits / 1.3).log_softmax(-1).gather(2, responses.tokens[6:, :, None]).squeeze(2)
    assert (logp - responses.logp[6:])[mask[6:]].abs().max() <= 1e-4


@pytest.mark.parametrize("lora_rank", [0, 4])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_takes_a_step(make_config, folder_of, name, lora_rank):
    """Rewarded for brevity, which a random model varies by chance; gradients go to its weights."""
    config = make_config(
        model=str(folder_of(name)),
        lora_rank=lora_rank,
        steps=1,
        kl_coef=0.1,
        lr_warmup=0,
        reward_length=1.0,
        gradient_checkpointing=lora_rank > 0,
        shared_prefix=lora_rank == 0,
        temperature=2.0,
        max_new_tokens=32,
        group=8,
    )
    line = train(config, quiet=True).history[1]
    assert line["groups/trained"] > 0
    assert line["grad_norm"] > 0
    assert line["check/sampler_gap"] <= 1e-4
    assert line["check/kl"] <= 1e-6
    model = AutoModelForCausalLM.from_pretrained(config.output_dir)
    before = AutoModelForCausalLM.from_pretrained(folder_of(name)).state_dict()
    assert any(not torch.equal(w, before[n]) for n, w in model.state_dict().items())


@pytest.mark.parametrize("name", REFUSED)
def test_a_network_that_cannot_be_sampled_our_way_is_refused_when_it_is_loaded(
    make_config, folder_of, name
):
    with pytest.raises(ConfigError, match=r"ForCausalLM|LMHeadModel"):
        load_policy(make_config(model=str(folder_of(name))))


def test_attention_is_sdpa_where_the_family_allows_it(make_config, folder_of):
    """Gemma 2 caps its attention scores, which sdpa cannot."""
    found = {
        name: load_policy(make_config(model=str(folder_of(name)))).model.config._attn_implementation
        for name in ("qwen3", "llama", "gpt2", "gemma2")
    }
    assert found == {"qwen3": "sdpa", "llama": "sdpa", "gpt2": "sdpa", "gemma2": "eager"}


def test_compile_is_for_training_passes_only(make_config, folder_of, monkeypatch):
    """Whether the compiled numbers agree is for the run's own invariants to say; compiling takes
    half a minute of CPU time here.
    """
    compiled = []

    def compile(body, *, dynamic):
        assert dynamic
        return lambda **inputs: compiled.append(inputs["input_ids"].shape) or body(**inputs)

    monkeypatch.setattr(torch, "compile", compile)
    policy = load_policy(make_config(model=str(folder_of("qwen3")), compile=True))
    prompts = prompts_of(policy)
    responses = draw(policy, prompts)
    assert compiled == []
    settings = {"group": 3, "temperature": 1.3, "shared": False, "chunk": 99}
    logp = score(policy, prompts, responses.tokens, responses.mask.bool(), **settings).logp
    assert len(compiled) == 1
    assert (logp - responses.logp)[responses.mask.bool()].abs().max() <= 1e-4


# ------------------------------------------------------------------ end tokens and defaults


def test_the_end_token_is_the_one_that_the_chat_template_writes(make_config, altered):
    """Gemma's and Llama's tokenizers may name an end that no answer in a chat ends with."""
    ends = [TOKENIZER.convert_tokens_to_ids(text) for text in (PAD, END)]
    policy = load_policy(make_config(model=str(altered(eos=PAD, eos_token_id=ends))))
    assert policy.tokenizer.eos_token == PAD
    assert policy.end_id == ends[1]


def test_of_two_end_tokens_the_other_is_an_ordinary_token(make_config, altered, spelling):
    """Qwen's two: <|endoftext|> neither ends a response nor hides from its score."""
    ends = [TOKENIZER.convert_tokens_to_ids(text) for text in (END, PAD)]
    policy = load_policy(make_config(model=str(altered(eos_token_id=ends))))
    assert policy.end_id == ends[0]
    answer = policy.tokenizer("<answer>nus</answer>")["input_ids"]
    text = policy.text([*answer, ends[1], ends[0]])
    assert text == f"<answer>nus</answer>{PAD}"
    assert policy.text([*answer, ends[0], ends[1]]) == "<answer>nus</answer>"


def test_padding_with_the_end_token_changes_no_sample(make_config, altered, folder_of):
    apart = load_policy(make_config(model=str(folder_of("qwen3"))))
    same = load_policy(make_config(model=str(altered(pad=END))))
    assert same.pad_id == same.end_id != apart.pad_id
    one, two = draw(apart, prompts_of(apart)), draw(same, prompts_of(same))
    assert torch.equal(one.mask, two.mask)
    assert torch.equal(one.logp, two.logp)
    assert one.mask.sum(1).unique().numel() > 1


def test_the_models_own_generation_defaults_are_not_inherited(make_config, altered, folder_of):
    """top_k = 1 in generation_config.json would make every sample greedy."""
    defaults = {"do_sample": True, "top_k": 1, "top_p": 0.1, "temperature": 0.1,
                "repetition_penalty": 5.0, "max_new_tokens": 1}  # fmt: skip
    plain = load_policy(make_config(model=str(folder_of("qwen3"))))
    policy = load_policy(make_config(model=str(altered(**defaults))))
    assert policy.model.generation_config.top_k == 1
    one, two = draw(plain, prompts_of(plain)), draw(policy, prompts_of(policy))
    assert torch.equal(one.tokens, two.tokens)
    assert torch.equal(one.logp, two.logp)
    assert len({tuple(row) for row in one.tokens[:3].tolist()}) == 3  # not greedy


def test_left_padding_without_positions_is_seen_when_the_model_is_loaded(
    make_config, folder_of, monkeypatch
):
    """The check itself: a forward pass that forgets positions, or the mask, does not pass."""
    real = Policy.forward
    for forget in (
        lambda a, p: (a, torch.arange(p.shape[1]).expand_as(p)),
        lambda a, p: (torch.ones_like(a), p),
    ):
        monkeypatch.setattr(
            Policy, "forward", lambda s, t, a, p, f=forget, **k: real(s, t, *f(a, p), **k)
        )
        with pytest.raises(ConfigError, match="gives other probabilities than by itself"):
            load_policy(make_config(model=str(folder_of("qwen3"))))


def test_dropout_in_a_configuration_stays_off_while_layers_recompute(make_config, folder_of):
    folder = folder_of("gpt2")
    assert json.loads((folder / "config.json").read_text())["attn_pdrop"] > 0
    policy = load_policy(
        make_config(model=str(folder), gradient_checkpointing=True, shared_prefix=False)
    )
    prompts = prompts_of(policy)
    plain = policy.forward(prompts.tokens, prompts.attention, prompts.positions)
    policy.recompute(True)
    again = policy.forward(prompts.tokens, prompts.attention, prompts.positions)
    assert torch.equal(plain, again)


@pytest.mark.parametrize(("cuda", "named"), [(None, True), ("12.8", False)])
def test_a_build_without_cuda_is_named(monkeypatch, cuda, named):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.version, "hip", None)
    with pytest.raises(ConfigError, match="torch sees no GPU here") as error:
        pick_device("cuda")
    assert (f"torch {torch.__version__} is a build without CUDA" in str(error.value)) == named
    assert pick_device("auto").type == "cpu"
