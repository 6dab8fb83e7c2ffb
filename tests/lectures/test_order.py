"""Nothing is used before it is introduced, as far as a machine can see it.

Three readings of the lectures in order. A function of ours that a cell calls must have been named
in the text before (or in a comment beside it). A symbol of notation.md must be explained where it
first appears: that cell has to contain a word of the symbol's own row. An acronym that comes before
the lecture that teaches it must be spelled out, or point there. Whether an explanation is any good,
only a reader can tell.
"""

import ast
import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

LECTURES = Path(__file__).resolve().parents[2] / "lectures"
PATHS = sorted(LECTURES.glob("[0-9][0-9]_*.ipynb"))
OURS = re.compile(r"(policy_gradients|toy_models|llm_trainer)(\.|$)")
EMPTY_WORDS = set(
    re.findall(
        r"\w+",
        "this that with from over when each have been they their what where which whatever never "
        "always only into same kind than used uses does",
    )
)
lecture = pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)


class Cell(NamedTuple):
    name: str
    kind: str
    text: str


def cells(path: Path) -> list[Cell]:
    rows = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [Cell(c["id"], c["cell_type"], "".join(c["source"])) for c in rows]


def words_in_code_style(markdown: str) -> set[str]:
    return {w for code in re.findall(r"`([^`]+)`", markdown) for w in re.findall(r"\w+", code)}


def imported_names(tree: ast.AST) -> set[str]:
    found = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module]
    return {a.asname or a.name for n in found if OURS.match(n.module) for a in n.names}


def unannounced(lecture_cells: list[Cell], known: set[str]) -> list[tuple[str, str]]:
    """(cell, name) of the library's names used before the text names them; `known` grows."""
    ours, found = set(), []
    for cell in lecture_cells:
        if cell.kind == "markdown":
            known |= words_in_code_style(cell.text)
            continue
        tree = ast.parse(cell.text)
        ours |= imported_names(tree)
        used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} & ours
        beside = set(re.findall(r"\w+", " ".join(re.findall(r"#.*", cell.text))))
        found += [(cell.name, name) for name in sorted(used - known - beside)]
        known |= used
    return found


@lecture
def test_functions_are_named_in_the_text_before_they_are_used(path):
    known: set[str] = set()
    for earlier in PATHS[: PATHS.index(path)]:
        unannounced(cells(earlier), known)
    assert unannounced(cells(path), known) == []


def squeezed(formula: str) -> str:
    return re.sub(r"\\[,;!]|\s+|\\(big|Big|bigg|Bigg|left|right)(?![a-z])", "", formula)


def formulas(markdown: str) -> list[str]:
    return [squeezed(m) for m in re.findall(r"\$\$.*?\$\$|\$[^$]+\$", markdown, flags=re.DOTALL)]


def symbols() -> dict[str, set[str]]:
    """Symbol of notation.md → the words of its English column that carry meaning."""
    rows: dict[str, set[str]] = {}
    tables = (LECTURES / "notation.md").read_text(encoding="utf-8").split("\n## Clashes")[0]
    for line in tables.splitlines():
        if line.startswith("| $"):
            columns = [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
            english = set(re.findall(r"[a-z]{4,}", re.sub(r"\$[^$]*\$", "", columns[4].lower())))
            english = {w.rstrip("s") for w in english} - EMPTY_WORDS
            for symbol in re.findall(r"\$([^$]+)\$", columns[0]):
                for part in symbol.split(",") if "(" not in symbol else [symbol]:
                    rows.setdefault(squeezed(part), set()).update(english)
    return rows


def first_use(symbol: str, course: dict[str, list[Cell]]) -> tuple[str, Cell] | None:
    edge = "" if symbol.startswith("\\") else r"(?<![A-Za-z\\])"
    pattern = re.compile(edge + re.escape(symbol) + r"(?![A-Za-z])")
    for stem, lecture_cells in course.items():
        for cell in lecture_cells:
            if cell.kind == "markdown" and any(map(pattern.search, formulas(cell.text))):
                return stem, cell
    return None


SYMBOLS = symbols()


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_a_symbol_is_explained_where_it_first_appears(symbol):
    hit = first_use(symbol, {path.stem: cells(path) for path in PATHS})
    if hit is not None:
        stem, cell = hit
        said = cell.text.lower()
        assert [w for w in SYMBOLS[symbol] if w in said], (
            f"{symbol} appears first in {stem}, cell {cell.name}, without any of the words that "
            f"its row in notation.md explains it with: {sorted(SYMBOLS[symbol])}"
        )


def acronyms() -> list[tuple[str, set[str], list[str]]]:
    """(acronym, words of what it stands for, lectures that teach it) of notation.md's glossary."""
    glossary = (LECTURES / "notation.md").read_text(encoding="utf-8").split("## Acronyms")[1]
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in glossary.splitlines()]
    return [
        (acronym, set(re.findall(r"[a-z]{4,}", row[1].lower())), re.findall(r"\d\d", row[3]))
        for row in rows
        if len(row) == 5 and re.match(r"\d\d", row[3])
        for acronym in row[0].replace("*", "").split(", ")
    ]


def out_of_turn(number: str, lecture_cells: list[Cell]) -> list[tuple[str, str]]:
    """(cell, acronym) of those whose first mention neither spells them out nor points onwards."""
    found = []
    for acronym, words, taught in acronyms():
        mention = re.compile(r"\b" + re.escape(acronym) + r"(?!\w)")
        texts = [(c.name, prose(c.text)) for c in lecture_cells if c.kind == "markdown"]
        first = next(((name, text) for name, text in texts if mention.search(text)), None)
        if first is not None and number < min(taught):
            name, text = first
            spelled = [w for w in words if w in text.lower()]
            if not spelled and not re.search(rf"\b({'|'.join(taught)})\b", text):
                found.append((name, acronym))
    return found


def prose(markdown: str) -> str:
    """Without code, formulas and equation tags."""
    text = re.sub(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]+\$", " ", markdown, flags=re.DOTALL)
    return re.sub(r"\[?\b[A-Z]{2,4}-\d+\]?", " ", text)


@lecture
def test_an_acronym_before_its_turn_is_spelled_out_or_points_onwards(path):
    assert out_of_turn(path.stem[:2], cells(path)) == []


def test_the_checks_see_what_is_missing():
    text = Cell("a", "markdown", "The function `known` and $\\rho_t$.")
    code = Cell("b", "code", "from toy_models.exact import known, secret\nknown(secret)")
    assert unannounced([text, code], set()) == [("b", "secret")]
    beside = Cell("b", "code", code.text + "  # secret: a number")
    assert unannounced([text, beside], set()) == []
    assert first_use("\\rho_t", {"x": [text]}) == ("x", text)
    assert first_use("G", {"x": [Cell("a", "markdown", "$G_t$ and $\\Gamma$ but $2G$")]})
    assert first_use("G", {"x": [Cell("a", "markdown", "$\\text{aG}$ G")]}) is None
    early = [Cell("a", "markdown", "Like GRPO.")]
    assert out_of_turn("01", early) == [("a", "GRPO")]
    assert out_of_turn("08", early) == []
    assert out_of_turn("01", [Cell("a", "markdown", "Like GRPO (lecture 08).")]) == []
    assert out_of_turn("01", [Cell("a", "markdown", "GRPO, a group relative method.")]) == []
