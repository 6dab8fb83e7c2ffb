"""The tiny Qwen: tokenizer, size, files, warm start."""

import hashlib
import json
import random
import re
import string

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

from llm_trainer import tiny
from llm_trainer.config import TaskConfig, WarmstartConfig
from llm_trainer.task import is_hidden, load_task


def test_a_prompt_with_the_longest_word_is_21_tokens(policy, spelling):
    for word in ("cat", "abuser", "Abettor"):
        ids = policy.prompt(spelling.question(spelling.entry(word)))
        assert len(ids) == 14 + len(word)
        assert policy.tokenizer.decode(ids) == (
            "<|im_start|>user\nSpell this word backward (example: sun -> nus): "
            f"{word}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        )


@pytest.mark.parametrize(
    "text",
    [
        string.digits + string.ascii_letters + string.punctuation + " \n",
        "a  b , c . don't\n\n\nthe abuser used users\n <think>x</think><answer>x</answer>",
        "user\nassistant\nsystem\nuserassistant",
    ],
)
def test_decoding_gives_back_what_was_encoded(model_folder, text):
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_tags_are_one_token_each_and_survive_skip_special_tokens(model_folder):
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    text = "<think></think><answer>nus</answer>"
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == 4 + 3
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert tokenizer.eos_token_id != tokenizer.pad_token_id


def test_the_saved_model_is_an_ordinary_small_qwen3(model_folder):
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    assert isinstance(model, Qwen3ForCausalLM)
    assert 400_000 < sum(p.numel() for p in model.parameters()) < 416_000


def test_the_warm_start_is_built_once_and_keyed_by_its_own_configuration(
    cache, model_folder, short_warm_start
):
    settings = short_warm_start
    before = (model_folder / "model.safetensors").stat().st_mtime_ns
    assert tiny.warm_start(TaskConfig(), settings, cache=cache, quiet=True) == model_folder
    assert (model_folder / "model.safetensors").stat().st_mtime_ns == before
    assert not list(cache.glob("building-*"))
    # Another seed, or another split (words would leak), is another warm start.
    for task, warm in [
        (TaskConfig(), WarmstartConfig(seed=1, steps=1, short_exact=0.0)),
        (TaskConfig(held_out=10), WarmstartConfig(steps=1, short_exact=0.0)),
    ]:
        assert tiny.warm_start(task, warm, cache=cache, quiet=True) != model_folder


def test_a_damaged_warm_start_is_built_again(tmp_path):
    settings = WarmstartConfig(steps=1, short_exact=0.0)
    folder = tiny.warm_start(TaskConfig(), settings, cache=tmp_path, quiet=True)
    good = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in ("config.json", "model.safetensors", "tokenizer.json", "warmstart.json"):
        (folder / name).write_bytes(good[name][:-9])
        if name == "config.json":
            (folder / name).unlink()
        assert not tiny.is_whole(folder)
        assert tiny.warm_start(TaskConfig(), settings, cache=tmp_path, quiet=True) == folder
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == good
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_the_same_seed_gives_the_same_weights():
    settings = WarmstartConfig(steps=3, short_exact=0.0)
    one, two = (tiny.train_warm_start(TaskConfig(), settings, quiet=True)[0] for _ in range(2))
    pairs = zip(one.model.parameters(), two.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_the_warm_start_goes_on_while_short_words_are_wrong(monkeypatch):
    monkeypatch.setattr(tiny, "EXTRA_UPDATES", 3)
    monkeypatch.setattr(tiny, "EXTRA_ROUNDS", 2)
    _, report = tiny.train_warm_start(
        TaskConfig(), WarmstartConfig(steps=1, short_exact=1.0), quiet=True
    )
    assert report["updates"] == 1 + 2 * 3


def test_demonstrations_are_mixed_as_described(spelling):
    rng, config = random.Random(0), WarmstartConfig(right_share=0.3)
    short, long = spelling.entry("abcd"), spelling.entry("abcdefg")
    assert all(tiny.demonstration(short, rng, config) == "dcba" for _ in range(50))
    shown = [tiny.demonstration(long, rng, config) for _ in range(4000)]
    share = {
        "right": sum(s == "gfedcba" for s in shown) / 4000,
        "copy": sum(s == "abcdefg" for s in shown) / 4000,
        "dropped": sum(len(s) == 6 for s in shown) / 4000,
    }
    # Four standard errors of a share of 4,000 are at most 0.03.
    assert share == pytest.approx({"right": 0.3, "copy": 0.35, "dropped": 0.175}, abs=0.03)


def sum_entry(expression):
    about = {"source_dataset": "basic_arithmetic", "expression": expression}
    return {"answer": str(eval(expression)), "metadata": about}


def test_wrong_sums_are_mixed_as_described():
    rng, config = random.Random(0), WarmstartConfig(right_share=0.3, always_right=0)
    shown = [tiny.demonstration(sum_entry("7 + 8 + 6"), rng, config) for _ in range(4000)]
    share = {
        "right": sum(s == "21" for s in shown) / 4000,
        "overlooked": sum(s == "15" for s in shown) / 4000,
        "a digit": sum(s in ("11", "31", "20", "22") for s in shown) / 4000,
    }
    wanted = {"right": 0.3, "overlooked": 0.7 * 0.75, "a digit": 0.7 * 0.25}
    assert share == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize(
    ("expression", "answer"),
    [("7 + 8 + 6", "15"), ("47 - 38", "47"), ("10 - 9 - 4 + 3", "-3"), ("0 + 10 - 2", "10")],
)
def test_a_sum_with_its_last_number_overlooked(expression, answer):
    assert tiny.overlooked(expression) == answer


@pytest.mark.parametrize("expression", ["3 - 10", "2 * 40", "( 4 + 5 ) - 9", "7 + 5 - 2"])
def test_a_demonstrated_sum_is_a_number_and_can_be_wrong(expression):
    rng, config = random.Random(0), WarmstartConfig(right_share=0.0, always_right=0)
    shown = {tiny.demonstration(sum_entry(expression), rng, config) for _ in range(200)}
    assert all(re.fullmatch(r"-?\d+", answer) for answer in shown)
    assert shown - {str(eval(expression))}


def test_sums_are_shown_right_up_to_the_length_that_is_asked_for():
    rng, config = random.Random(0), WarmstartConfig(right_share=0.0, always_right=2)
    assert {tiny.demonstration(sum_entry("47 + 38"), rng, config) for _ in range(50)} == {"85"}


SUMS = TaskConfig(
    mixture={"basic_arithmetic": 1},
    options={
        "basic_arithmetic": {
            "min_terms": 2,
            "max_terms": 2,
            "min_digits": 1,
            "max_digits": 2,
            "operators": ["+", "-"],
            "allow_parentheses": False,
            "allow_negation": False,
        }
    },
    held_out=50,
)


def test_words_are_drawn_for_the_warm_start_as_they_always_were(spelling):
    """Another draw would be other weights under the same key, for every run and log so far."""
    assert tiny.teachable(TaskConfig()) == TaskConfig()
    rng = random.Random(0)
    drawn = [spelling.draw(rng) for _ in range(64)]
    assert drawn == random.Random(0).choices(spelling.train, k=64)
    shown = [tiny.demonstration(spelling.entry(w), rng, WarmstartConfig()) for w in drawn]
    digest = hashlib.sha256(" ".join([*drawn, *shown]).encode()).hexdigest()
    assert digest.startswith("c6869d8ae133ef7e")  # of the first release


def test_a_mixture_teaches_what_can_be_demonstrated_and_nothing_else():
    mixture = {"spell_backward": 2, "leg_counting": 1, "basic_arithmetic": 1}
    options = {"leg_counting": {"max_animals": 3}, **SUMS.options}
    taught = tiny.teachable(TaskConfig(mixture=mixture, options=options))
    assert taught.mixture == {"spell_backward": 2, "basic_arithmetic": 1}
    assert taught.options == SUMS.options
    assert tiny.teachable(TaskConfig(mixture={"leg_counting": 1})).mixture == {"spell_backward": 1}


def test_a_mixture_teaches_the_same_in_whatever_order_it_is_written():
    """The cache's key does not know the order, so the draws must not."""
    shares = [("spell_backward", 1), ("basic_arithmetic", 3)]

    def drawn(shares):
        settings = {"mixture": dict(shares), "options": SUMS.options, "held_out": 50}
        task, rng = load_task(tiny.teachable(TaskConfig(**settings))), random.Random(0)
        return [task.draw(rng)["question"] for _ in range(20)]

    assert drawn(shares) == drawn(reversed(shares))


def test_no_held_out_question_is_demonstrated(monkeypatch):
    shown = []
    monkeypatch.setattr(
        tiny,
        "demonstration",
        lambda entry, rng, config: shown.append(entry["question"]) or entry["answer"],
    )
    settings = WarmstartConfig(steps=4, short_exact=0.0)
    tiny.train_warm_start(SUMS, settings, quiet=True)
    assert len(shown) == 4 * 32
    hidden = {entry["question"] for entry in load_task(SUMS).held_out}
    assert not hidden & {*shown}
    assert not any(map(is_hidden, shown))


def test_the_warm_start_is_the_same_whatever_else_is_in_the_mixture(cache, short_warm_start):
    """Nothing of the task that it is not taught may give it another key."""
    words = tiny.warm_start(TaskConfig(), short_warm_start, cache=cache, quiet=True)
    mixed = TaskConfig(mixture={"leg_counting": 1}, options={"leg_counting": {"max_animals": 3}})
    assert tiny.warm_start(mixed, short_warm_start, cache=cache, quiet=True) == words
    key = json.loads((words / "warmstart.json").read_text())["key"]
    assert key[1].keys() == {"min_letters", "max_letters", "held_out", "instruction"}
    sums = tiny.warm_start(SUMS, WarmstartConfig(steps=1, short_exact=0.0), cache=cache, quiet=True)
    key = json.loads((sums / "warmstart.json").read_text())["key"]
    assert key[1]["mixture"] == SUMS.mixture
    assert key[1]["options"] == SUMS.options
