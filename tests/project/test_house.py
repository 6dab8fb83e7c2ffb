"""The house stays in order: imports follow the table, pins mirror each other, style is clean."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {
    "policy_gradients": set(),
    "toy_models": {"policy_gradients"},
    "llm_trainer": {"policy_gradients"},
    "autograder": {"policy_gradients", "toy_models"},
    "lectures": {"policy_gradients", "toy_models", "llm_trainer"},
    "website": {"lectures"},
    "solutions": {"autograder", "toy_models", "policy_gradients", "llm_trainer"},
    "homework": {"autograder", "toy_models", "policy_gradients", "llm_trainer"},
}


def sources(path: Path) -> list[str]:
    """Return the Python of a module, or of each code cell of a notebook (magics removed)."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return [text]
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return [re.sub(r"(?m)^\s*[%!].*$", "", "".join(cell["source"])) for cell in cells]


def imported_rooms(source: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module)
    return {name.split(".")[0] for name in names} & set(ROOMS)


def forbidden_arrows(room: str, source: str) -> set[str]:
    return imported_rooms(source) - ROOMS[room] - {room}


def files(room: str) -> list[Path]:
    found = [p for p in (ROOT / room).rglob("*") if p.suffix in {".py", ".ipynb"}]
    return [p for p in found if not any(part.startswith(".") for part in p.relative_to(ROOT).parts)]


@pytest.mark.parametrize("room", ROOMS)
def test_imports_follow_the_table(room):
    arrows = {}
    for path in files(room):
        if path.is_relative_to(ROOT / "autograder/examples"):
            continue  # learners' work, where a forbidden import is one of the examples
        bad = set().union(*(forbidden_arrows(room, source) for source in sources(path)))
        if bad:
            arrows[str(path.relative_to(ROOT))] = bad
    assert not arrows


def test_the_import_check_sees_a_forbidden_arrow():
    assert forbidden_arrows("policy_gradients", "import toy_models.exact") == {"toy_models"}
    assert forbidden_arrows("toy_models", "from llm_trainer import train") == {"llm_trainer"}
    assert not forbidden_arrows("lectures", "from policy_gradients import k1")


@pytest.mark.parametrize("room", ["policy_gradients", "toy_models", "llm_trainer", "autograder"])
def test_library_imports_nothing_heavy_or_foreign(room):
    """policy_gradients needs torch and einops only; no room but the trainer needs transformers."""
    allowed = {
        "policy_gradients": {"torch", "einops"},
        "toy_models": {"torch", "einops", "numpy", "gymnasium"},
    }.get(room)
    third_party = set()
    for path in files(room):
        if path.is_relative_to(ROOT / "autograder/examples"):
            continue
        for source in sources(path):
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.Import):
                    third_party |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.level == 0:
                    third_party.add(node.module.split(".")[0])
    third_party -= set(sys.stdlib_module_names) | set(ROOMS)
    if allowed is not None:
        assert third_party <= allowed
    if room != "llm_trainer":
        assert "transformers" not in third_party


def test_environment_yml_mirrors_requirements():
    pins = re.findall(r"^[\w-]+==\S+", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    mirrored = re.findall(r"- ([\w-]+==\S+)", (ROOT / "environment.yml").read_text())
    assert pins
    assert mirrored == pins


def test_style_is_clean():
    for command in (["check", "."], ["format", "--check", "."]):
        result = subprocess.run(
            [sys.executable, "-m", "ruff", *command], cwd=ROOT, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stdout + result.stderr


def test_nothing_runs_on_import():
    """Importing every room prints nothing and leaves random state and torch settings alone."""
    code = (
        "import torch; a, d = torch.get_rng_state(), torch.get_default_dtype()\n"
        "import policy_gradients, toy_models, llm_trainer, autograder, lectures.figures\n"
        "assert torch.equal(a, torch.get_rng_state()) and d == torch.get_default_dtype()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""


def test_readme_shows_every_make_target():
    targets = re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    readme = (ROOT / "README.md").read_text()
    assert targets
    assert [t for t in targets if f"make {t}" not in readme] == []


def test_readme_shows_the_table_of_the_code():
    from policy_gradients.algorithms import algorithm_table

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- algorithm table: begin -->\n(.*)\n<!--", readme, re.DOTALL)[1]
    assert block == algorithm_table()


def test_the_example_in_the_readme_runs():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for example in re.findall(r"```python\n(.*?)```", readme, re.DOTALL):
        exec(compile(example, "README.md", "exec"), {})
