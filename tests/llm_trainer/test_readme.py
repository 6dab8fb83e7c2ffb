"""The README's promises about the code itself: what is the core, how long it is, what to type."""

import ast
import io
import re
import shlex
import tokenize
from pathlib import Path

import pytest

import llm_trainer
from llm_trainer.__main__ import configuration, parser
from llm_trainer.config import CONFIGS, load
from llm_trainer.memory import GB, estimate
from llm_trainer.task import is_hidden, load_task

ROOM = Path(llm_trainer.__file__).parent
README = (ROOM / "README.md").read_text(encoding="utf-8")
CORE = re.findall(r"^\| \d+\. `(\w+)\.py` \|.*\| (\d+) \|$", README, re.M)  # in reading order
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE,
    tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def code_lines(text):
    """How many lines hold code: no blank ones, comments or docstrings."""
    with_code, docstrings = set(), set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            with_code |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            docstrings |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(with_code - docstrings)


def lines_of(name):
    return code_lines((ROOM / f"{name}.py").read_text(encoding="utf-8"))


SOURCE = '''
"""What
it is."""

# why
x = """a

b"""  # text
def f():
    """So."""
    g(
        1
    )
'''


def test_lines_of_code_are_counted_as_the_readme_says():
    assert code_lines(SOURCE) == 3 + 1 + 3


def test_the_core_is_as_short_as_the_readme_says():
    bound = int(re.search(r"The core has fewer than ([\d,]+) of", README)[1].replace(",", ""))
    assert len(CORE) >= 8
    assert sum(lines_of(name) for name, _ in CORE) < bound <= 1700


def test_the_numbers_of_lines_are_near_the_true_ones():
    for name, said in CORE:
        assert int(said) == pytest.approx(lines_of(name), abs=30), name
    said = re.search(r"About ([\d,]+) more lines in (\d+) files", README)
    beside = {path.stem for path in ROOM.glob("*.py")} - {"__init__", *dict(CORE)}
    assert int(said[2]) == len(beside)
    lines = sum(lines_of(name) for name in beside)
    assert int(said[1].replace(",", "")) == pytest.approx(lines, rel=0.05)


def test_no_file_of_the_core_uses_one_that_is_read_later():
    order = [name for name, _ in CORE]
    for i, name in enumerate(order):
        text = (ROOM / f"{name}.py").read_text(encoding="utf-8")
        used = set(re.findall(r"^\s*from llm_trainer\.(\w+) import", text, re.M))
        assert not used & set(order[i + 1 :]), name


def test_every_file_is_in_the_core_or_beside_it():
    beside = README.split("**Beside it, when needed.**")[1].split("\n## ")[0]
    named = re.findall(r"`(\w+)\.py`", beside)
    assert len(named) == len(set(named))
    assert {*named, *dict(CORE), "__init__"} == {path.stem for path in ROOM.glob("*.py")}


def test_links_lead_somewhere():
    titles = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", README, flags=re.S), re.M)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    for target in re.findall(r"\]\(([^)]*)\)", README):
        if target.startswith("#"):
            assert target[1:] in anchors
        elif not target.startswith("https://"):
            assert (ROOM / target).exists()


def test_the_memory_of_the_24_gb_preset_is_its_estimate():
    peak = estimate(load(CONFIGS / "grpo_qwen3_1.7b_24gb.yaml")).peak
    assert f"| memory | {peak / GB:.1f} GB | an estimate" in README


def test_most_held_out_sums_are_training_sums_in_another_order():
    task = load_task(load(CONFIGS / "grpo_tiny_arithmetic.yaml").task)

    def numbers(entry):
        return tuple(sorted(re.findall(r"\d+", entry["question"])))

    entries = [task.dataset[i] for i in range(task.dataset.size)]
    trained = {numbers(entry) for entry in entries if not is_hidden(entry["question"])}
    again = sum(numbers(entry) in trained for entry in task.held_out)
    assert f"For {again} of the {len(task.held_out)} questions the same three numbers" in README


WANTED = README.split("| I want to … | command | more |")[1].split("\n\n")[0].splitlines()[2:]
COMMANDS = [re.search(r"`([^`]*)`", row.split("|")[2])[1] for row in WANTED]


@pytest.mark.parametrize("command", [c for c in COMMANDS if not c.startswith("accelerate")])
def test_a_command_is_one(command, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOM.parent)
    words = shlex.split(command.replace("CONFIGS", "llm_trainer/configs"))
    options = parser().parse_args(words)
    if hasattr(options, "set") and not getattr(options, "resume", None):
        configuration(options)
