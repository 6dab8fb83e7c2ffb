"""Qwen's pieces: ids that others have published, merges recovered from ranks, words counted.

Most of it needs the file that the package `dashscope` carries; without it these tests are skipped.
"""

import json
import re
import sys
from pathlib import Path

import pytest

from llm_trainer import qwen_vocabulary
from llm_trainer.config import ConfigError, TaskConfig
from llm_trainer.qwen_vocabulary import (
    HOW,
    PIECES,
    answer_pieces,
    byte_names,
    encode,
    load,
    merges_of,
    pieces,
    read_ranks,
    spelling_table,
    vocabulary_file,
    word_pieces,
)
from llm_trainer.task import Spelling

TABLE = Path(__file__).resolve().parents[2] / "lectures" / "reference_runs" / "qwen_tokens.json"


@pytest.fixture(scope="module")
def file(missing):
    try:
        return vocabulary_file()
    except ConfigError:
        missing("Qwen's vocabulary", HOW)


@pytest.fixture(scope="module")
def tokenizer(file):
    return load(file)


# A small vocabulary whose merges are known: the bytes, then ab, abab, c·ab.
SMALL = {bytes([byte]): byte for byte in range(256)}
SMALL |= {b"ab": 256, b"abab": 257, b"cab": 258}


def test_merges_are_recovered_from_ranks():
    assert merges_of(SMALL) == [(b"a", b"b"), (b"ab", b"ab"), (b"c", b"ab")]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b"", []),
        (b"cabab", [b"c", b"abab"]),  # the lower rank first, not the longest from the left
        (b"cabx", [b"cab", b"x"]),
        (b"ababab", [b"abab", b"ab"]),
    ],
)
def test_encoding_by_hand(text, parts):
    assert encode(text, SMALL, below=len(SMALL)) == parts


def test_every_byte_has_a_name_of_its_own():
    names = byte_names()
    assert len(set(names)) == 256
    assert (names[ord("a")], names[ord(" ")], names[ord("\n")]) == ("a", "Ġ", "Ċ")


def test_without_the_package_the_error_names_the_command(monkeypatch):
    monkeypatch.setattr(qwen_vocabulary, "PACKAGE", "no_such_package")
    command = f"{sys.executable} -m pip install --no-deps dashscope==2.0.2"
    with pytest.raises(ConfigError, match=re.escape(command)):
        vocabulary_file()


@pytest.mark.parametrize("text", ["", "IQ== 0\nIg== 1\n", "IQ== 0 1\n", "not base64 at all"])
def test_another_file_is_refused(tmp_path, text):
    path = tmp_path / "pieces.tiktoken"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"pieces\.tiktoken.*pip install --force-reinstall"):
        load(path)
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "elsewhere")


def changed(lines, at, line):
    return [*lines[:at], line, *lines[at + 1 :]]


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: changed(lines, 100_000, b"AAAAAAAAAAAA 100000"),
        lambda lines: changed(lines, 100_000, b"!@#$ 100000"),
        lambda lines: lines[1:],
        lambda lines: [line.replace(b" 1000", b" 2000") for line in lines],
        lambda lines: [*lines[:1000], lines[2000], *lines[1001:2000], lines[1000], *lines[2001:]],
    ],
    ids=["another piece", "not base64", "a byte lost", "a rank twice", "two lines swapped"],
)
def test_a_damaged_file_is_refused_with_what_to_do(file, tmp_path, damage):
    path = tmp_path / "damaged.tiktoken"
    path.write_bytes(b"\n".join(damage(file.read_bytes().splitlines())))
    with pytest.raises(ConfigError, match=r"damaged\.tiktoken is not Qwen's vocabulary.*reinstall"):
        load(path)


def test_line_ends_do_no_harm(file, tmp_path):
    path = tmp_path / "copied.tiktoken"
    path.write_bytes(b"\r\n".join(file.read_bytes().splitlines()))
    assert read_ranks(path) == read_ranks(file)


def test_nothing_of_the_package_is_imported(tokenizer):
    assert not [name for name in sys.modules if name.split(".")[0] == "dashscope"]


def test_sizes(file, tokenizer):
    ranks = read_ranks(file)
    assert len(ranks) == PIECES
    assert len(merges_of(ranks)) == PIECES - 256
    assert len(tokenizer) == 151_669  # Qwen3's report, section 2
    markers = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
    markers |= {"<|video_pad|>": 151656, "</tool_call>": 151658, "<think>": 151667}
    for text, token in markers.items():
        assert tokenizer.convert_tokens_to_ids(text) == token


PUBLISHED = {  # text → ids, with where they stand
    # QwenLM/Qwen, tokenization_note.md
    'print("<|endoftext|>")': [1350, 445, 151643, 899],
    " 根": [51461, 117],
    # huggingface/transformers, tests/models/qwen2/test_tokenization_qwen2.py
    " general-purpose architectures (BERT, GPT-2, RoBERTa, XLM, DistilBert, XLNet...) for": [
        *(4586, 58238, 77235, 320, 61437, 11, 479, 2828, 12, 17, 11, 11830, 61437, 64, 11, 1599),
        *(10994, 11, 27604, 321, 33, 529, 11, 29881, 6954, 32574, 369),
    ],
    '```python\ntokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen-tokenizer")\n': [
        *(73594, 12669, 198, 85593, 284, 8979, 37434, 6387, 10442, 35722, 445, 48, 16948, 45274),
        *(16948, 34841, 3135, 1138),
    ],
    # a public Rust implementation's test against Qwen3
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n": [
        *(151644, 872, 198, 9707, 151645, 198, 151644, 77091, 198)
    ],
}


@pytest.mark.parametrize("text", PUBLISHED)
def test_ids_are_those_that_others_have_published(tokenizer, text):
    ids = PUBLISHED[text]
    assert tokenizer(text)["input_ids"] == ids
    assert tokenizer.decode(ids) == text


def test_decoding_gives_back_what_was_encoded(tokenizer):
    text = "Don't\n\n  spell 2026 straße, 你好, 🤗 <answer>x</answer>\t!"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text


def test_both_ways_of_encoding_agree(file, tokenizer):
    ranks = read_ranks(file)
    for word in ("backward", "drawkcab", " strawberry", " gradient", ">nus"):
        parts = [part.decode() for part in encode(word.encode(), ranks)]
        assert parts == pieces(tokenizer, word)


def test_a_word_and_its_reverse(tokenizer):
    assert word_pieces(tokenizer, "backward") == ["backward"]
    assert answer_pieces(tokenizer, "backward") == ["draw", "kc", "ab"]
    assert pieces(tokenizer, "<answer>nus")[2:] == [">n", "us"]
    assert answer_pieces(tokenizer, "sun") == ["n", "us"]  # the tag's part is not counted


def test_the_committed_table_is_what_this_makes(tokenizer):
    made = spelling_table(tokenizer, Spelling(TaskConfig()))
    assert made == json.loads(TABLE.read_text(encoding="utf-8"))
