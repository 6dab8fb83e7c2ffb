"""One symbol table for the whole course: what a lecture uses, notation.md explains."""

import json
import re
from pathlib import Path

import pytest

from policy_gradients.algorithms import ALGORITHMS

LECTURES = Path(__file__).resolve().parents[2] / "lectures"
NOTATION = (LECTURES / "notation.md").read_text(encoding="utf-8")
GREEK = re.compile(
    r"\\(alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|"
    r"sigma|tau|phi|varphi|chi|psi|omega|Gamma|Theta|Lambda|Xi|Phi|Psi|Omega)(?![a-zA-Z])"
)
# Not symbols of the course: everyday words in capitals, units and names that explain themselves.
EVERYDAY = {"CPU", "GPU", "GB", "NaN", "PyTorch", "JupyterLab", "README", "OK", "CS336"}
lecture = pytest.mark.parametrize(
    "path", sorted(LECTURES.glob("[0-9][0-9]_*.ipynb")), ids=lambda p: p.stem
)


def text(path: Path) -> str:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def greek(markdown: str) -> set[str]:
    math = " ".join(re.findall(r"\$\$.*?\$\$|\$[^$]+\$", markdown, flags=re.DOTALL))
    return set(GREEK.findall(math))


def acronyms(markdown: str) -> set[str]:
    """Words with two capitals or more, outside formulas, code, links and equation tags."""
    prose = re.sub(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]+\$", " ", markdown, flags=re.DOTALL)
    prose = re.sub(r"\]\([^)]*\)|\[?[A-Z]{2,4}-\d+\]?|\*[^*]+\*", " ", prose)
    return set(re.findall(r"\b[A-Za-z]*[A-Z][A-Za-z0-9]*[A-Z][A-Za-z0-9]*\b", prose))


@lecture
def test_every_greek_letter_stands_in_the_table(path):
    assert greek(text(path)) <= greek(NOTATION)


@lecture
def test_every_acronym_stands_in_the_glossary(path):
    known = set(re.findall(r"[A-Za-z0-9]+", NOTATION)) | EVERYDAY
    assert {word for word in acronyms(text(path)) if word not in known} == set()


def test_every_row_has_all_its_columns():
    width = 0
    for line in NOTATION.splitlines():
        width = (width or line.count("|")) if line.startswith("|") else 0
        assert line.count("|") == width or not line.startswith("|"), line


def test_every_algorithm_stands_in_bold_in_the_glossary():
    glossary = NOTATION.split("## Acronyms")[1]
    bold = re.findall(r"\| \*\*(.+?)\*\* \|", glossary)
    assert {re.sub(r"[. ]+", "_", name.lower()) for name in bold} == set(ALGORITHMS)


def test_the_checks_see_what_is_missing():
    assert greek(r"the $\zeta$ of $$\rho_t$$") == {"zeta", "rho"}
    assert acronyms("Use QQPO, not `XYPO` or $ABPO$ or [PG-4].") == {"QQPO"}
