"""What the course claims, and which cell would fail if it were not so.

`claims/NN.json` lists, for lecture NN, sentences that are often told wrong or that carry the
lecture, each with the cells whose asserts hold it. `make lectures` runs the asserts; here it is
checked that they are there.
"""

import ast
import json
from pathlib import Path

import pytest

LECTURES = Path(__file__).resolve().parents[2] / "lectures"
PATHS = sorted(LECTURES.glob("[0-9][0-9]_*.ipynb"))
FOLDER = Path(__file__).parent / "claims"


def asserting_cells(path: Path) -> set[str]:
    """Ids of the code cells with an assert that says something, not `assert True`."""
    found = set()
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            tree = ast.parse("".join(cell["source"]))
            tests = [n.test for n in ast.walk(tree) if isinstance(n, ast.Assert)]
            if any(not isinstance(test, ast.Constant) for test in tests):
                found.add(cell["id"])
    return found


def claims(path: Path) -> list[dict]:
    return json.loads((FOLDER / f"{path.stem[:2]}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_every_claim_is_held_by_an_assert(path):
    rows = claims(path)
    assert len(rows) >= 4
    sentences = [row["claim"] for row in rows]
    assert len(set(sentences)) == len(sentences)
    held = asserting_cells(path)
    for row in rows:
        assert set(row) == {"claim", "cells"}
        assert row["claim"].endswith(".")
        assert row["cells"], row["claim"]
        assert set(row["cells"]) <= held, row


def test_every_file_has_its_lecture():
    assert {p.stem for p in FOLDER.glob("*.json")} == {path.stem[:2] for path in PATHS}
