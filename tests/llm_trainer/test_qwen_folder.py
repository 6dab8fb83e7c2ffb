"""The path that loads Qwen3-1.7B, walked with a small folder of the same class.

The folder is written here: Qwen3ForCausalLM with shrunk sizes and untied embeddings, a byte-level
BPE tokenizer like Qwen's with its own ids, a chat template, and the pad token equal to the end
token. Nothing of the tiny model's own code is used. No GPU and no download is involved.
"""

import json
import shutil

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from llm_trainer.config import CONFIGS, ConfigError, load
from llm_trainer.models import load_policy
from llm_trainer.task import Rewards, Spelling
from llm_trainer.tiny import CHAT_TEMPLATE
from llm_trainer.train import train

PRESETS = sorted(path.stem for path in CONFIGS.glob("grpo_qwen3_*gb.yaml"))


@pytest.fixture(scope="module")
def qwen_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("Qwen3-small")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        ["Spell this word backward (example: sun -> nus): orange", "between answer tags"] * 5,
        trainers.BpeTrainer(
            vocab_size=320,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        chat_template=CHAT_TEMPLATE,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer) + 5,  # like Qwen's, larger than the tokenizer
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            tie_word_embeddings=False,
        )
    )
    tokenizer.save_pretrained(folder)
    model.to(torch.bfloat16).save_pretrained(folder)  # as Qwen's are published
    return folder


@pytest.fixture
def settings(qwen_folder, tmp_path):
    """The shipped configuration of the 1.7B model, cut to a size that a CPU runs in a second."""
    return [f"model={qwen_folder}", f"output_dir={tmp_path / 'run'}", "device=cpu", "prompts=2",
            "micro_batch=2", "group=4", "steps=2", "lr_warmup=0", "max_new_tokens=6",
            "eval_words=4"]  # fmt: skip


@pytest.mark.parametrize(
    ("preset", "dtype"),
    [(name, "bfloat16") for name in PRESETS] + [("grpo_qwen3_1.7b_80gb", "float32")],
)
def test_steps_from_a_local_folder(qwen_folder, settings, monkeypatch, preset, dtype):
    # A random model never writes a tag; reward what it can vary, the length, so that it can learn.
    def score(self, response, entry, **given):
        return Rewards(correctness=min(1.0, len(response) / 40), format=0.0, exact=0.0)

    monkeypatch.setattr(Spelling, "score", score)
    config = load(CONFIGS / f"{preset}.yaml", [*settings, f"dtype={dtype}", "lr=1e-4"])
    result = train(config, quiet=True)
    first = result.history[1]
    assert first["groups/trained"] == 2
    assert first["check/ratio"] <= (1e-4 if dtype == "float32" else 0.05)
    before = AutoModelForCausalLM.from_pretrained(qwen_folder, dtype=torch.float32).state_dict()
    trained = AutoModelForCausalLM.from_pretrained(config.output_dir)
    saved = "bfloat16" if config.lora_rank else "float32"  # frozen weights keep their precision
    assert json.loads((result.output_dir / "config.json").read_text())["dtype"] == saved
    assert any(not torch.equal(w.float(), before[name]) for name, w in trained.state_dict().items())


def test_the_instruction_comes_before_the_unchanged_task(settings):
    config = load(CONFIGS / "grpo_qwen3_1.7b_80gb.yaml", settings)
    task = Spelling(config.task)
    policy = load_policy(config)
    text = policy.tokenizer.decode(policy.prompt(task.question(task.entry("orange"))))
    assert "<answer> and </answer>" in text
    assert text.endswith("nus): orange<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert text.count("<|im_start|>") == 2


def test_master_weights_are_float32_whatever_was_published(settings):
    policy = load_policy(load(CONFIGS / "grpo_qwen3_1.7b_80gb.yaml", settings))
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    assert policy.dtype == torch.bfloat16
    assert policy.pad_id == policy.end_id


def test_a_tokenizer_without_a_chat_template_is_refused(qwen_folder, settings, tmp_path):
    plain = tmp_path / "plain"
    shutil.copytree(qwen_folder, plain)
    (plain / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        load_policy(load(CONFIGS / "grpo_qwen3_1.7b_80gb.yaml", [*settings, f"model={plain}"]))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("model.safetensors", b"short", "holds no loadable model"),
        ("config.json", b"{", "holds no loadable model"),
        ("tokenizer.json", b"{", "holds no loadable model"),
        ("tokenizer.json", b"{}", "holds no loadable model"),
        ("chat_template.jinja", b"{{ nothing.at.all }}", "its chat template fails"),
        ("chat_template.jinja", b"{% if", "its chat template fails"),
    ],
)
def test_a_damaged_folder_is_refused(qwen_folder, settings, tmp_path, name, text, says):
    shutil.copytree(qwen_folder, tmp_path / "bad")
    (tmp_path / "bad" / name).write_bytes(text)
    with pytest.raises(ConfigError, match=says):
        load_policy(
            load(CONFIGS / "grpo_qwen3_1.7b_80gb.yaml", [*settings, f"model={tmp_path / 'bad'}"])
        )


@pytest.mark.parametrize("types", [None, "full_attention"])
def test_a_network_with_more_layers_than_there_are_weights_is_refused(
    qwen_folder, settings, tmp_path, types
):
    """transformers warns of it, and goes on with a layer of random numbers."""
    bad = tmp_path / "bad"
    shutil.copytree(qwen_folder, bad)
    shape = json.loads((bad / "config.json").read_text())
    shape["num_hidden_layers"] += 1
    if types:
        shape["layer_types"].append(types)
    (bad / "config.json").write_text(json.dumps(shape))
    says = "its files lack 11 of the network's weights" if types else "holds no loadable model"
    with pytest.raises(ConfigError, match=says):
        load_policy(load(CONFIGS / "grpo_qwen3_1.7b_80gb.yaml", [*settings, f"model={bad}"]))


def test_a_folder_without_a_model_is_refused(settings, tmp_path):
    (tmp_path / "empty").mkdir()
    config = load(CONFIGS / "grpo_qwen3_1.7b_80gb.yaml", [*settings, f"model={tmp_path / 'empty'}"])
    with pytest.raises(ConfigError, match=r"holds no model \(no config.json\)"):
        load_policy(config)
