"""What lecture 12 says in text and cannot assert in its own cells.

The measured table it quotes is the benchmark's, its folded solutions run, the numbers that are done
by hand are right, and its table of source lines refuses a line that is not there.
"""

import json
import math
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from lectures import figures_12
from llm_trainer.memory import KNOWN, shape_of
from policy_gradients import leave_one_out

LECTURE = "12_from_toy_to_qwen"
USED = ["setup"]
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks" / "README.md"


def text(lecture, cell: str) -> str:
    return "".join(lecture.cells[cell]["source"])


def printed(lecture, cell: str) -> str:
    outputs = lecture.cells[cell]["outputs"]
    return "".join("".join(o.get("text", "")) for o in outputs)


@pytest.fixture(scope="module")
def sampled(lecture):
    """The lecture with its batch of samples, the plain score, and a policy with dropout."""
    for cell in ("cache", "plain", "dropout"):
        lecture.run(cell)
    return lecture


def test_the_measured_memory_is_the_benchmarks(lecture):
    told = text(lecture, "chunks-after")
    rows = re.findall(r"^\| (?:naive|ours, chunk \d+) \| ([\d,]+) \|", BENCHMARKS.read_text(), re.M)
    assert len(rows) == 3
    assert all(f"{megabytes} MB" in told for megabytes in rows)


def test_sizes_told_in_text(lecture):
    assert "151,643" in text(lecture, "tokens-after")
    assert "151,387" in text(lecture, "tokens-after")
    assert 151_643 - 256 == 151_387
    for vocabulary, power in ((110, 22), (151_669, 57)):  # rows of a table: a prefix each
        assert f"10^{{{power}}}" in text(lecture, "puzzle-text")
        assert math.log10(sum(vocabulary**k for k in range(12))) == pytest.approx(power, abs=0.5)
    assert math.log(110) == pytest.approx(4.7, abs=0.05)
    assert math.log(151_936) == pytest.approx(11.9, abs=0.05)
    bytes_per_token = 28 * 2 * 8 * 128 * 2
    assert "112 KB" in text(lecture, "cache-after")
    assert bytes_per_token == 112 * 2**10
    assert "15 GB" in text(lecture, "cache-after")
    assert 128 * 1024 * bytes_per_token / 1e9 == pytest.approx(15, abs=0.1)
    assert "four to three, 56 to 42 GB" in text(lecture, "history-after")
    assert "44 % less" in text(lecture, "history-after")
    assert pytest.approx(0.44, abs=0.005) == 1 - 140 / 252


def test_the_share_of_adapters_in_the_question(lecture):
    """Rank 16 beside Qwen3-1.7B: one in a hundred."""
    assert "one in a hundred" in text(lecture, "lora-after")
    shape = shape_of("Qwen/Qwen3-1.7B")
    assert 16 * shape.lora / shape.parameters == pytest.approx(0.01, abs=0.002)
    assert pytest.approx(1 / 5, abs=0.02) == 77_824 / 408_320


def test_exercise_1_by_hand(lecture):
    told = text(lecture, "exercise-1").replace("{,}", ",")
    sizes = KNOWN["Qwen/Qwen3-8B"]
    assert (sizes["num_hidden_layers"], sizes["num_key_value_heads"], sizes["head_dim"]) == (
        36,
        8,
        128,
    )
    assert f"{1000 * 36 * 2 * 8 * 128 * 2:,}" in told
    advantages = leave_one_out(torch.tensor([[1.1, 0.3, 0.3, 0.3]], dtype=torch.float64))
    assert advantages[0].tolist() == pytest.approx([0.8, -0.8 / 3, -0.8 / 3, -0.8 / 3])
    assert advantages.sum().item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("exercise", ["exercise-2", "exercise-3"])
def test_folded_solutions_run(sampled, exercise):
    code = sampled.solution(exercise)
    exec(code, sampled.names)  # their own asserts are the claim
    if exercise == "exercise-3":
        assert len(code.strip().splitlines()) <= 10
    else:  # the check fires from .001 on, as told
        assert sampled["gaps"][1e-3] > 1e-4


def test_the_table_of_lines_quotes_the_source_or_fails(lecture):
    shown = "".join(lecture.cells["code"]["outputs"][0]["data"]["text/markdown"])
    assert shown == figures_12.lines_table()
    with pytest.raises(ValueError, match="0 lines hold"):
        figures_12.lines_table([("nothing", "[LM-1]", figures_12.flat, "not in it")])


def test_the_ten_core_files_are_quoted():
    files = {
        function.__module__.split(".")[-1]
        for _, _, function, _ in figures_12.LINES
        if callable(function)
    }
    assert files >= {"algorithms", "batch", "models", "rollout", "scoring", "credit", "losses"}
    assert files >= {"invariants", "step", "train"}


def test_tokens_are_told_apart():
    parts = figures_12.told_apart(
        ["<u>", "spell", " pl", "ane", "<a>"], ["ena", "E"], "spell plane", "plane"
    )
    assert [kind for _, kind, _ in parts] == [
        "format",
        "task",
        "word",
        "word",
        "format",
        "answer",
        "end",
    ]
    assert [trained for *_, trained in parts] == [False] * 5 + [True] * 2


def test_the_committed_cuts_spell_the_words():
    table = json.loads(figures_12.QWEN_TOKENS.read_text(encoding="utf-8"))
    for word, seen in table["examples"].items():
        assert "".join(seen["prompt"]) == word
        assert "".join(seen["answer"]) == f"<answer>{word[::-1]}</answer>"
    assert (
        sum(table["pieces"].values()) == sum(table["pieces_of_reverse"].values()) == table["words"]
    )


def test_the_folded_compass_folds():
    north, unit = torch.tensor([2.0, 0.0, 0.0]), torch.tensor([[2.0, 6.0, 8.0]])
    along, across = figures_12._folded(north, unit)
    assert (along.item(), across.item()) == pytest.approx((1, 5))
    plt.close(figures_12.folded_compass(north, {"one": ("rloo", unit.repeat(3, 1))}))


def test_with_learned_positions_the_warning_is_right(lecture):
    """GPT-2's class: counting the padding is another network; Qwen's does not mind (exercise 3)."""
    torch.manual_seed(0)
    net = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=2)).eval()
    net.transformer.wpe.weight.data.mul_(10)  # as large as trained ones, beside the embeddings
    row = torch.arange(8)[None]
    padded, seen = torch.cat([torch.zeros_like(row[:, :3]), row], 1), torch.ones(1, 11).long()
    seen[:, :3] = 0
    alone = net(row).logits[0, -1].log_softmax(-1)
    for places, differs in (
        (torch.arange(11), True),
        ((seen.cumsum(1) - 1).clamp(min=0)[0], False),
    ):
        found = net(padded, attention_mask=seen, position_ids=places[None]).logits[0, -1]
        assert ((found.log_softmax(-1) - alone).abs().max() > 0.01) == differs
