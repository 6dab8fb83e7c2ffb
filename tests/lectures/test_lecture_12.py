"""What lecture 12 says in text and cannot assert in its own cells.

The measured table it quotes is the benchmark's, its folded solutions run, the numbers that are done
by hand are right, and its table of source lines refuses a line that is not there.
"""

import copy
import json
import math
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Qwen3Config

from lectures import experiments, figures_12
from llm_trainer import memory
from llm_trainer.config import CONFIGS, load, with_values
from llm_trainer.memory import shape_of

LECTURE = "12_from_toy_to_qwen"
USED = ["setup"]
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks" / "README.md"


@pytest.fixture(scope="module")
def sampled(lecture):
    """The lecture with its batch of samples, the plain score, and a policy with dropout."""
    for cell in ("cache", "plain", "dropout"):
        lecture.run(cell)
    return lecture


def test_the_measured_memory_is_the_benchmarks(lecture):
    told = lecture.text("chunks-after")
    rows = re.findall(r"^\| (?:naive|ours, chunk \d+) \| ([\d,]+) \|", BENCHMARKS.read_text(), re.M)
    assert len(rows) == 3
    assert all(f"{megabytes} MB" in told for megabytes in rows)


def test_sizes_told_in_text(lecture):
    assert "151,643" in lecture.text("tokens-after")
    assert "151,387" in lecture.text("tokens-after")
    assert 151_643 - 256 == 151_387
    for vocabulary, power in ((110, 22), (151_669, 57)):  # rows of a table: a prefix each
        assert f"10^{{{power}}}" in lecture.text("puzzle-text")
        assert math.log10(sum(vocabulary**k for k in range(12))) == pytest.approx(power, abs=0.5)
    assert math.log(110) == pytest.approx(4.7, abs=0.05)
    assert math.log(151_936) == pytest.approx(11.9, abs=0.05)
    bytes_per_token = 28 * 2 * 8 * 128 * 2
    assert "114,688 bytes" in lecture.text("cache-after")
    assert bytes_per_token == 114_688
    assert 2 ** (math.floor(math.log2(0.02)) - 7) == pytest.approx(1.2e-4, abs=5e-6)  # bfloat16
    assert "1.2\\cdot10^{-4}" in lecture.text("cache-after")
    assert "15 GB" in lecture.text("cache-after")
    assert 128 * 1024 * bytes_per_token / 1e9 == pytest.approx(15, abs=0.1)
    assert "four to three, 56 to 42 GB" in lecture.text("history-after")
    assert "44 % less" in lecture.text("history-after")
    assert pytest.approx(0.44, abs=0.005) == 1 - 140 / 252


def test_exercise_1_by_hand(lecture):
    told = lecture.text("exercise-1")
    longer = {"max_new_tokens": 2048, "shared_prefix": False, "gradient_checkpointing": True}
    config = with_values(load(CONFIGS / "grpo_qwen3_1.7b_80gb.yaml"), **longer)
    known = memory.estimate(config)
    assert known.phase == "sampling"
    assert known.sampling["attention cache"] == 128 * 2176 * 28 * 1024 * 6
    assert "44.6 GiB" in told
    assert known.sampling["attention cache"] / 2**30 == pytest.approx(44.6, abs=0.05)
    of = shape_of(config.model)
    k, tokens = memory.token_activations(of, config) + 4 * of.queries, 16 * 2176
    by_hand = (28 * 4 * of.width + k) * tokens  # [LM-5]
    assert "11.9 GiB" in told
    assert by_hand / 2**30 == pytest.approx(11.9, abs=0.05)
    parts = {**known.training, "activations": by_hand}
    assert sum(parts.values()) / 2**30 == pytest.approx(25, abs=0.2)
    for _, tag, function, piece in figures_12.EXERCISE:
        assert figures_12.quoted(function, piece) in told
        assert tag in told


@pytest.mark.parametrize("exercise", ["exercise-2", "exercise-3"])
def test_folded_solutions_run(sampled, exercise):
    code = sampled.solution(exercise)
    exec(code, sampled.names)  # their own asserts are the claim
    if exercise == "exercise-3":
        assert len(code.strip().splitlines()) <= 10


def test_without_a_reward_for_the_format_half_the_runs_stop_ending(lecture):
    """Section 3.3: three of six, from step 120 to 210 on, at an unchanged reward."""
    told, found = lecture.text("reward-after"), {}
    assert "three of six committed runs" in told
    for method in ("grpo", "rloo"):
        for run in experiments.load("format")[f"{method}_format_0"]:
            steps, cut = run.column("length/truncated")
            if cut[-1] > 0.99:
                first = int(steps[cut > 0.05][0])
                found[method] = [*found.get(method, []), first]
                assert run.column("reward/mean")[1][-1] == pytest.approx(0.97, abs=0.02)
    assert {method: len(steps) for method, steps in found.items()} == {"grpo": 2, "rloo": 1}
    begins = sorted(step for steps in found.values() for step in steps)
    assert (begins[0], begins[-1]) == (120, 210)


def test_prompt_tokens_have_a_push_once_ratios_differ():
    """After [LM-10]: at a common ratio of 1.3 the clip takes the positive advantage away only."""
    A = torch.tensor([0.8, -0.8 / 3, -0.8 / 3, -0.8 / 3])
    logp = torch.full((4,), math.log(1.3), requires_grad=True)
    gain = torch.minimum(logp.exp() * A, logp.exp().clamp(0.8, 1.2) * A)
    gain.sum().backward()
    assert logp.grad.sum().item() == pytest.approx(-1.04, abs=0.001)


def test_qwen3_comes_without_dropout():
    assert Qwen3Config().attention_dropout == 0


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
        ["<u>", "spell", " pl", "ane", "<a>"],
        ["ena", "E"],
        "spell plane",
        "plane",
        mask=[True, True, False],
    )
    assert [kind for _, kind, _ in parts] == [
        "format",
        "task",
        "word",
        "word",
        "format",
        "answer",
        "end",
        "padding",
    ]
    assert [trained for *_, trained in parts] == [False] * 5 + [True] * 2 + [False]


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


def test_in_bfloat16_a_shift_of_positions_is_felt(lecture):
    """Exercise 3: about .004 nats a token on average, where float32 has none."""
    assert "by .004 nats on average" in lecture.text("exercise-3")
    policy, task = lecture["policy"], lecture["task"]
    question, answer = task.question(task.entry("plane")), "<answer>enalp</answer><|im_end|>"
    ids = policy.prompt(question) + policy.tokenizer(answer)["input_ids"]
    row, places = torch.tensor([ids]), torch.arange(len(ids))[None]

    def moved(kind):
        net = copy.deepcopy(policy.model).to(kind).eval()
        with torch.no_grad():
            both = [net(row, position_ids=places + shift).logits.float() for shift in (0, 7)]
        chosen = [z.log_softmax(-1)[0, :-1].gather(1, row[0, 1:, None])[18:] for z in both]
        return (chosen[0] - chosen[1]).abs().mean().item()

    assert moved(torch.float32) < 1e-5
    assert 0.001 < moved(torch.bfloat16) < 0.02


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
