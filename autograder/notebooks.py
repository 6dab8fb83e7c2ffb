"""Reading notebooks: a homework as released, and whatever a learner hands in.

`load_release` reads one of ours and is strict; `read_submission` takes any bytes and answers with
cells or with a sentence that says why there are none.
"""

import ast
import json
import re
import textwrap
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from autograder.imports import forbidden_imports

MAX_BYTES = 200 * 2**20
IMPORT = ast.Import | ast.ImportFrom


class UnreadableError(ValueError):
    """A file is not a notebook; the message is a sentence for its author."""


class HomeworkError(ValueError):
    """A homework of ours is not as the rest of the program needs it; the message says where."""


@dataclass(frozen=True)
class Cell:
    """A cell of any notebook. `grade_id` and `cell_id` are "" where there is none."""

    kind: str
    source: str
    grade_id: str = ""
    cell_id: str = ""


@dataclass(frozen=True)
class Question:
    """A question as it stands in a released notebook.

    id : the judge's id, read from the call check("hw1/…", …) in the graded cell.
    grade_id : of that graded cell; its points in nbgrader's gradebook.
    answer : index of the cell that the learner fills in.
    check : index of the graded cell.
    """

    id: str
    function: str
    grade_id: str
    points: float
    answer: int
    check: int


@dataclass(frozen=True)
class Manual:
    """A written answer, graded by hand in formgrader."""

    grade_id: str
    points: float
    index: int


@dataclass(frozen=True)
class Release:
    """A released homework.

    questions : judged by us. manual : written answers with points, graded by hand.
    written : indices of all cells that hold a written answer, with points or without.
    """

    name: str
    notebook: dict = field(repr=False)
    cells: tuple[Cell, ...] = field(repr=False)
    questions: tuple[Question, ...]
    manual: tuple[Manual, ...]
    written: tuple[int, ...]

    @cached_property
    def prelude(self) -> str:
        """The import lines of the release's own cells that are torch, einops or standard."""
        answers = {q.answer for q in self.questions}
        lines = []
        for index, cell in enumerate(self.cells):
            if cell.kind == "code" and index not in answers:
                imports = [s for s in statements(cell.source) if isinstance(s, IMPORT)]
                lines += [s for s in map(unparse, imports) if runs_elsewhere(s)]
        return "\n".join(dict.fromkeys(lines))


def statements(source: str) -> list[ast.stmt]:
    """Top-level statements; none when the source does not parse."""
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def defines(source: str, name: str) -> bool:
    """Whether the text defines `name` at the top level. Works on text that does not parse, too."""
    return bool(
        re.search(rf"^(async\s+def|def)\s+{name}\b|^{name}\s*(:[^=\n]*)?=[^=]", source, re.M)
    )


def without_magics(source: str) -> str:
    """The source as IPython reads it: dedented, without lines that are no Python (%, !, name?)."""
    if statements(source):
        return source
    source = textwrap.dedent(source.removeprefix("\ufeff"))
    return re.sub(r"^([ \t]*)(?:[%!].*|[\w.]+\?\??[ \t]*)$", r"\1pass", source, flags=re.M)


def runs_elsewhere(statement: str) -> bool:
    """Whether it can run where answers run: there is no package of ours, and no `check`."""
    return not forbidden_imports(statement) and statement != "from autograder import check"


def unparse(statement: ast.stmt) -> str:
    """The statement's source, "" for one too deep to be written out."""
    try:
        return ast.unparse(statement)
    except RecursionError:
        return ""


def load_release(path: Path) -> Release:
    """The released homework at `path`.

    Raises HomeworkError when the file is missing, no notebook, or a graded cell has no answer cell.
    """
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = tuple(_cell(raw) for raw in notebook["cells"])
    except FileNotFoundError:
        raise HomeworkError(
            f"{path} does not exist; generate it: python -m autograder release {path.stem}"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise HomeworkError(f"{path} is not a notebook ({error})") from None
    questions, manual = [], []
    for index, raw in enumerate(notebook["cells"]):
        meta = raw["metadata"].get("nbgrader", {})
        if meta.get("grade") and meta.get("solution"):
            manual.append(Manual(meta["grade_id"], float(meta["points"]), index))
        elif meta.get("grade"):
            questions.append(_question(path, notebook, cells, index))
    answers = {question.answer for question in questions}
    written = tuple(
        index
        for index, raw in enumerate(notebook["cells"])
        if raw["metadata"].get("nbgrader", {}).get("solution") and index not in answers
    )
    return Release(path.stem, notebook, cells, tuple(questions), tuple(manual), written)


def _question(path, notebook, cells, index) -> Question:
    meta = notebook["cells"][index]["metadata"]["nbgrader"]
    where = f"{path}, cell {meta['grade_id']}"
    match = re.search(r"""\bcheck\(\s*["'](\w+/(\w+))["']""", cells[index].source)
    if match is None:
        raise HomeworkError(
            f'{where}: a graded cell must call check("homework/question", function)'
        )
    question_id, function = match.groups()
    for candidate in range(index - 1, -1, -1):
        nbgrader = notebook["cells"][candidate]["metadata"].get("nbgrader", {})
        if nbgrader.get("solution") and defines(cells[candidate].source, function):
            break
    else:
        raise HomeworkError(f"{where}: no answer cell before it defines {function}")
    return Question(
        question_id, function, meta["grade_id"], float(meta["points"]), candidate, index
    )


def read_submission(data: bytes) -> list[Cell]:
    """The cells of a file that a learner handed in.

    Raises UnreadableError with a sentence for the learner when it is no notebook.
    """
    if len(data) > MAX_BYTES:
        raise UnreadableError(
            f"The file is larger than {MAX_BYTES // 2**20} MB; clear its outputs."
        )
    if not data.strip():
        raise UnreadableError("The file is empty.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableError("The file is not text, so it is not a notebook.") from None
    if re.search(r"^[ \t]*(<{7} |>{7} |={7}$)", text, re.M):
        raise UnreadableError("The file holds an unresolved merge conflict (lines with <<<<<<<).")
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise UnreadableError(
            f"The file is damaged: it is not valid JSON{line}. "
            "Check that it opens in JupyterLab before you hand it in."
        ) from None
    if isinstance(notebook, dict) and isinstance(notebook.get("worksheets"), list):
        notebook = _upgraded(notebook)
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise UnreadableError("The file is JSON but not a notebook: it has no list of cells.")
    return [_cell(raw) for raw in notebook["cells"] if isinstance(raw, dict)]


def _upgraded(notebook):
    """A notebook of the format before 2015 in today's form."""
    cells = [
        c
        for sheet in notebook["worksheets"]
        if isinstance(sheet, dict)
        for c in sheet.get("cells") or []
        if isinstance(c, dict)
    ]
    return {"cells": [{**c, "source": c.get("input", c.get("source", ""))} for c in cells]}


def _cell(raw: dict) -> Cell:
    source = raw.get("source", "")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    metadata = raw.get("metadata")
    nbgrader = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    grade_id = nbgrader.get("grade_id") if isinstance(nbgrader, dict) else None
    kind, cell_id = raw.get("cell_type"), raw.get("id")
    return Cell(
        kind if kind in ("code", "markdown", "raw") else "raw",
        _valid(source) if isinstance(source, str) else "",
        grade_id if isinstance(grade_id, str) else "",
        cell_id if isinstance(cell_id, str) else "",
    )


def _valid(source: str) -> str:
    """With \\n as the end of lines, and without the halves of characters that JSON can hold."""
    return source.replace("\r\n", "\n").encode("utf-8", "replace").decode()
