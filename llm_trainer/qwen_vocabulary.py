"""Qwen's own byte-pair vocabulary, to look at: into which pieces does it cut a word?

    from llm_trainer.qwen_vocabulary import load
    load().tokenize(" backward")  # ['Ġbackward']: one piece; Ġ is how a blank is written

The file with the 151,643 pieces comes with Alibaba's package `dashscope` (Apache 2.0):

    python -m pip install --no-deps dashscope==2.0.2

Only that file is read; nothing of the package is imported or run. Qwen3 uses the same pieces: its
report (arXiv 2505.09388, section 2) names Qwen's tokenizer with 151,669 entries, which are these
pieces and 26 markers, and token ids published for Qwen2.5 and Qwen3 come out the same here (see
tests/llm_trainer/test_qwen_vocabulary.py). A network's own folder has its own tokenizer: to train
one, that is the one to use. A head of 151,936 rows has 267 that no token uses.

Left out: weights, and what the real chat template does with tools and with earlier thoughts.
"""

import base64
import hashlib
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from llm_trainer.config import ConfigError, require
from llm_trainer.task import Spelling
from llm_trainer.tiny import CHAT_TEMPLATE, END, PAD, START

PACKAGE, FILE = "dashscope", "resources/qwen.tiktoken"
VERSION = f"{PACKAGE}==2.0.2"
PIP = f"{sys.executable} -m pip install"  # a bare pip may be that of another Python
HOW = f"{PIP} --no-deps {VERSION}"
PIECES = 151_643
# Of those lines, joined by line feeds.
SHA256 = "9dd8c5c23a68c04c56029a2b3ff323c789e0237bcdff7d5ff730ea7f8bfc7612"
# Where a merge may not reach across: the abbreviations of English, a word with one character
# before it (mostly a blank), single digits, runs of other signs, line breaks, blanks.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Qwen3's markers in the order of their ids, which follow those of the pieces. `special` ones can
# be hidden when text is decoded.
SPECIAL = [PAD, START, END]
SPECIAL += [
    f"<|{kind}_{end}|>" for kind in ("object_ref", "box", "quad") for end in ("start", "end")
]
SPECIAL += [f"<|{name}|>" for name in ("vision_start", "vision_end", "vision_pad")]
SPECIAL += ["<|image_pad|>", "<|video_pad|>"]
PLAIN = ["<tool_call>", "</tool_call>"]
PLAIN += [f"<|{name}|>" for name in ("fim_prefix", "fim_middle", "fim_suffix", "fim_pad")]
PLAIN += ["<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>"]
PLAIN += ["<think>", "</think>"]


def vocabulary_file() -> Path:
    """Where the pieces are on this machine. Raises ConfigError, with the command, if nowhere."""
    found = importlib.util.find_spec(PACKAGE)  # looks, and imports nothing
    folders = list(found.submodule_search_locations or []) if found else []
    paths = [path for folder in folders if (path := Path(folder) / FILE).is_file()]
    require(
        bool(paths),
        f"Qwen's vocabulary is not on this machine: no {FILE} of the package {PACKAGE}; {HOW}",
    )
    return paths[0]


def load(file: str | Path | None = None) -> PreTrainedTokenizerFast:
    """Qwen3's tokenizer, built from the ranks of its pieces; a second or two.

    file : a copy of the package's file, lines of a base64 piece and its rank; None: that file

    The chat template is the tiny model's: one turn after the other, and an empty thinking block
    unless `enable_thinking` is true (the real one thinks unless that is false).
    Raises ConfigError: no such file, or one that is not Qwen's pieces to the last byte.
    """
    ranks = read_ranks(Path(file) if file else vocabulary_file())
    written = byte_names()

    def name(piece: bytes) -> str:
        return "".join(written[byte] for byte in piece)

    vocabulary = {name(piece): rank for piece, rank in ranks.items()}
    merges = [(name(left), name(right)) for left, right in merges_of(ranks)]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in PLAIN])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def read_ranks(path: Path) -> dict[bytes, int]:
    """Every piece with its rank, which is its token id: the lower, the earlier it was merged."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; {HOW}") from None
    require(
        hashlib.sha256(b"\n".join(lines)).hexdigest() == SHA256,
        f"{path} is not Qwen's vocabulary: its {len(lines)} lines are not the {PIECES} of that "
        f"file, or some were changed. Get it anew with {PIP} --force-reinstall --no-deps {VERSION}",
    )
    return {base64.b64decode(piece): int(rank) for piece, rank in map(bytes.split, lines)}


def merges_of(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """The two halves each longer piece was merged from, in the order of the merges.

    The file has only the results. But a merge was made of what earlier merges had left of the
    piece's bytes, and byte-pair encoding merges the lowest rank first: so the encoding of a piece
    with the pieces of lower rank alone ends with its two halves.
    """
    order = sorted(ranks, key=ranks.get)
    merges = []
    for piece in order:
        if len(piece) > 1:
            left, right = encode(piece, ranks, below=ranks[piece])
            merges.append((left, right))
    return merges


def encode(text: bytes, ranks: dict[bytes, int], *, below: int = PIECES) -> list[bytes]:
    """Byte-pair encoding by hand: merge the neighbours of lowest rank until none is `below`."""
    parts = [text[i : i + 1] for i in range(len(text))]
    while True:
        pairs = [ranks.get(parts[i] + parts[i + 1], below) for i in range(len(parts) - 1)]
        if not pairs or min(pairs) >= below:
            return parts
        at = pairs.index(min(pairs))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def byte_names() -> list[str]:
    """How byte-level vocabularies write each of the 256 bytes: as itself if it can be seen (among
    Latin-1's), else as the next free character from 256 on."""
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    unseen = iter(range(256, 512))
    return [chr(byte) if byte in seen else chr(next(unseen)) for byte in range(256)]


# ------------------------------------------------------------------ words, and what is seen of them

SHOWN = ("backward", "plane", "sun", "level", "strawberry", "gradient")


def pieces(tokenizer: PreTrainedTokenizerFast, text: str) -> list[str]:
    """The text cut as the tokenizer cuts it, each piece as text."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return [tokenizer.decode([token]) for token in ids]


def spelling_table(tokenizer: PreTrainedTokenizerFast, task: Spelling) -> dict:
    """What spell_backward looks like in this vocabulary: one prompt, some words, all words counted.

    A word is cut as the prompt holds it, after a blank; its reverse as the answer holds it, between
    the tags, where those pieces count that hold a letter of it. `mirrored` are the words of two
    pieces or more whose reverse is cut at the same places, seen from the other end.
    """
    words = sorted({word.lower() for word in [*task.train, *task.held_out]})
    cuts = {word: (word_pieces(tokenizer, word), answer_pieces(tokenizer, word)) for word in words}
    longer = [(front, back) for front, back in cuts.values() if len(front) > 1]
    question = task.question(task.entry("plane"))
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        enable_thinking=False,
        tokenize=False,
    )
    return {
        "words": len(words),
        "letters": [task.config.min_letters, task.config.max_letters],
        "pieces": counts(len(front) for front, _ in cuts.values()),
        "pieces_of_reverse": counts(len(back) for _, back in cuts.values()),
        "mirrored": sum(front == [p[::-1] for p in back[::-1]] for front, back in longer),
        "chat": pieces(tokenizer, chat),
        "examples": {
            word: {
                "prompt": word_pieces(tokenizer, word),
                "answer": pieces(tokenizer, f"<answer>{word[::-1]}</answer>"),
            }
            for word in SHOWN
        },
    }


def word_pieces(tokenizer: PreTrainedTokenizerFast, word: str) -> list[str]:
    """A word as a prompt holds it; the blank before it, part of its first piece, hidden."""
    first, *rest = pieces(tokenizer, f" {word}")
    return [first.removeprefix(" "), *rest]


def answer_pieces(tokenizer: PreTrainedTokenizerFast, word: str) -> list[str]:
    """The word backward as the right answer holds it; the tag's part of a piece hidden."""
    before, found, at = len("<answer>"), [], 0
    for piece in pieces(tokenizer, f"<answer>{word[::-1]}</answer>"):
        letters = piece[max(0, before - at) : max(0, before + len(word) - at)]
        found += [letters] if letters else []
        at += len(piece)
    return found


def counts(values: Iterable[int]) -> dict[str, int]:
    """How often each number occurs, by the number as JSON has it."""
    return {str(n): count for n, count in sorted(Counter(values).items())}
