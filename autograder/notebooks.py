"""Reading notebooks: a homework as released, and whatever a learner hands in.

`load_release` reads one of ours and is strict; `read_submission` takes any bytes and answers with
cells or with a sentence that says why there are none.
"""

import ast
import io
import json
import re
import textwrap
import zipfile
import zlib
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

from autograder.imports import forbidden_imports

MAX_BYTES = 200 * 2**20
MAX_CELL = (
    100_000  # characters of source; nobody writes as many, and reading them as Python is dear
)
MAX_SOURCE = 500_000  # the same of all cells together
MAX_CELLS = 20_000
IMPORT = ast.Import | ast.ImportFrom
SCOPE = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.comprehension
CONSTANTS = (
    ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop,
    ast.expr_context,
)  # fmt: skip


class UnreadableError(ValueError):
    """A file is not a notebook; the message is a sentence for its author."""


class HomeworkError(ValueError):
    """A homework of ours is not as the rest of the program needs it; the message says where."""


@dataclass(frozen=True)
class Cell:
    """A cell of any notebook. `grade_id` and `cell_id` are "" where there is none.

    ran : it was saved with an output or a count.
    """

    kind: str
    source: str
    grade_id: str = ""
    cell_id: str = ""
    ran: bool = False

    @cached_property
    def python(self) -> str:
        """The source without what only IPython understands; "" for one that is too long."""
        return without_magics(self.source) if len(self.source) <= MAX_CELL else ""

    @cached_property
    def names(self) -> frozenset[str]:
        """What it binds when it runs."""
        return bound(self.python)

    @cached_property
    def functions(self) -> frozenset[str]:
        """What it defines: functions, classes, lambdas."""
        return bound(self.python, functions=True)

    @cached_property
    def squeezed(self) -> str:
        """The source without spaces at the ends of its lines, to compare cells by."""
        return "\n".join(line.rstrip() for line in self.source.strip().splitlines())


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
        """What the release's own cells offer to answers: allowed imports, functions, constants."""
        answers = {q.answer for q in self.questions}
        lines = []
        for index, cell in enumerate(self.cells):
            if cell.kind == "code" and index not in answers:
                offered = filter(_offered, statements(cell.source))
                lines += [s for s in map(unparse, offered) if runs_elsewhere(s)]
        return "\n".join(dict.fromkeys(lines))


def _offered(statement: ast.stmt) -> bool:
    """An import, a function, a class, or a name set to plain constants."""
    if isinstance(statement, ast.Assign):
        parts = ast.walk(statement.value)
        return all(isinstance(p, CONSTANTS) for p in parts)
    return isinstance(statement, IMPORT | ast.FunctionDef | ast.ClassDef)


@lru_cache(maxsize=2)  # a cell is asked for several things in a row
def statements(source: str) -> tuple[ast.stmt, ...]:
    """Top-level statements; none when the source does not parse."""
    try:
        return tuple(ast.parse(source).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


def bound(source: str, *, functions: bool = False) -> frozenset[str]:
    """The names that a cell binds when it runs, those inside functions and classes left out.

    functions : only definitions (def, class, and a name set to a lambda). Of text that does not
    parse, the names in front of which a line says def, class or nothing but an assignment.
    """
    if not (body := statements(source)):
        found = re.findall(r"^(?:async\s+def|def|class)\s+(\w+)", source, re.M)
        if not functions:
            found += re.findall(r"^(\w+)\s*(?::[^=\n]*)?=(?!=)", source, re.M)
        return frozenset(found)
    return bound_by(body, functions=functions)


def bound_by(body: list[ast.stmt], *, functions: bool = False) -> frozenset[str]:
    """`bound` for statements."""
    names, queue = set(), list(body)
    while queue:
        node = queue.pop()
        if isinstance(node, SCOPE):
            names.add(getattr(node, "name", ""))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Lambda):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {t.id for t in targets if isinstance(t, ast.Name)}
        else:
            if not functions and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif not functions and isinstance(node, ast.alias):
                names.add((node.asname or node.name).partition(".")[0])
            queue += ast.iter_child_nodes(node)
    return frozenset(names - {""})


def defines(source: str, name: str) -> bool:
    """Whether running the cell binds `name`. Works on text that does not parse, too."""
    return name in bound(source)


def without_magics(source: str) -> str:
    """The source as IPython reads it: dedented, without what is no Python (%, !, name?)."""
    source = source.removeprefix("\ufeff")
    if statements(source):
        return source
    source = re.sub(r"^([ \t]*)%time[ \t]+", r"\1", textwrap.dedent(source), flags=re.M)
    source = re.sub(r"^([ \t]*\w+)[ \t]*=[ \t]*[%!].*$", r"\1 = None", source, flags=re.M)
    return re.sub(r"^([ \t]*)(?:[%!?].*|[\w.]+\?\??[ \t]*)$", r"\1pass", source, flags=re.M)


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


@dataclass(frozen=True)
class Reading:
    """A file as read: its cells, and what was unusual about the file."""

    cells: list[Cell]
    notes: tuple[str, ...] = ()


def read_submission(data: bytes) -> Reading:
    """The cells of a file that a learner handed in.

    Besides notebooks of every format it reads gzip, a zip archive with one notebook, UTF-16, and a
    notebook exported as a Python script. Raises UnreadableError with a sentence for the learner
    when there is nothing to read.
    """
    data, notes = _unpacked(data)
    if len(data) > MAX_BYTES:
        raise UnreadableError(
            f"The file is larger than {MAX_BYTES // 2**20} MB; clear its outputs."
        )
    if not data.strip(b"\0 \t\r\n"):
        raise UnreadableError("The file is empty.")
    encoding = json.detect_encoding(data)
    text = data.decode(encoding, "replace")
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError) as error:
        if (cells := _script(text)) is None:
            raise UnreadableError(_why_no_notebook(text, error)) from None
        notes += ("The file is a script, not a notebook; its functions were graded.",)
        return _bounded(cells, notes)
    if "\ufffd" in text and "\ufffd".encode() not in data:
        notes += ("The file is not saved as UTF-8; some letters may be lost.",)
    if isinstance(notebook, dict) and isinstance(notebook.get("worksheets"), list):
        notebook = _upgraded(notebook)
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise UnreadableError("The file is JSON but not a notebook: it has no list of cells.")
    if len(notebook["cells"]) > MAX_CELLS:
        raise UnreadableError(f"The notebook has more than {MAX_CELLS:,} cells.")
    return _bounded([_cell(raw) for raw in notebook["cells"] if isinstance(raw, dict)], notes)


def _bounded(cells: list[Cell], notes: tuple[str, ...]) -> Reading:
    """The cells, with a note on each that is too long to be read. Raises UnreadableError."""
    if sum(len(c.source) for c in cells if len(c.source) <= MAX_CELL) > MAX_SOURCE:
        raise UnreadableError(
            f"The cells of the notebook hold more than {MAX_SOURCE:,} characters, outputs not "
            "counted; take out what is no answer, such as pasted data or pictures."
        )
    long = [i + 1 for i, c in enumerate(cells) if c.kind == "code" and len(c.source) > MAX_CELL]
    if long:
        places = ", ".join(map(str, long[:9])) + ", …" * (len(long) > 9)
        notes += (f"Code cells of more than {MAX_CELL:,} characters were left out: {places}.",)
    return Reading(cells, notes)


def _unpacked(data: bytes) -> tuple[bytes, tuple[str, ...]]:
    """The notebook inside a gzip or zip file; other data as it is. Never more than MAX_BYTES + 1.

    Raises UnreadableError.
    """
    try:
        if data.startswith(b"\x1f\x8b"):
            inside = zlib.decompressobj(wbits=31)
            plain = inside.decompress(data, MAX_BYTES + 1)
            if not inside.eof and len(plain) <= MAX_BYTES:
                raise EOFError
            return plain, ("The file was compressed with gzip; it was unpacked.",)
        if data.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                inside = [n for n in archive.namelist() if _is_notebook(n)]
                if len(inside) != 1:
                    raise UnreadableError(
                        f"The file is a zip archive with {len(inside)} notebooks in it; hand in "
                        "the notebook itself."
                    )
                with archive.open(inside[0]) as file:
                    return file.read(MAX_BYTES + 1), (
                        "The file was a zip archive; the one notebook in it was graded.",
                    )
    except (zlib.error, zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError):
        raise UnreadableError("The file is a damaged archive, not a notebook.") from None
    return data, ()


def _is_notebook(name: str) -> bool:
    """A notebook by its name; not a checkpoint, nor what macOS adds to archives."""
    hidden = any(part.startswith((".", "__MACOSX")) for part in name.split("/"))
    return name.lower().endswith(".ipynb") and not hidden


def _script(text: str) -> list[Cell] | None:
    """The cells of a notebook exported as a script (nbconvert's or percent format), else None."""
    if not re.search(r"^(?:async )?def \w+\(|^\w+ = lambda", text, re.M):
        return None
    if re.match(r"\s*[{\[<]", text):  # damaged JSON, a web page
        return None
    parts = re.split(r"^# (?:%%|In ?\[).*$", text.replace("\r\n", "\n"), flags=re.M)
    return [Cell("code", _valid(part).strip() + "\n") for part in parts if part.strip()]


def _why_no_notebook(text: str, error: Exception) -> str:
    if re.match(r"\s*<", text) and re.search(r"<(?:!doctype|html|head|body)\b", text[:4096], re.I):
        return (
            "The file is a web page, not a notebook: what was saved is a page that shows a "
            "notebook or a message. Download the notebook itself."
        )
    if re.search(r"^[ \t]*(<{7} |>{7} |={7}$)", text, re.M):
        return "The file holds an unresolved merge conflict (lines with <<<<<<<)."
    if "\0" in text[:4096] or text.count("\ufffd", 0, 4096) > 16 or text.startswith("\ufffd"):
        return "The file is not text, so it is not a notebook."
    line = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
    return (
        f"The file is damaged: it is not valid JSON{line}. "
        "Check that it opens in JupyterLab before you hand it in."
    )


def _upgraded(notebook):
    """A notebook of the format before 2015 in today's form."""
    cells = [
        c
        for sheet in notebook["worksheets"]
        if isinstance(sheet, dict)
        for c in (sheet.get("cells") if isinstance(sheet.get("cells"), list) else [])
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
        bool(raw.get("execution_count") or raw.get("prompt_number") or raw.get("outputs")),
    )


def _valid(source: str) -> str:
    """With \\n as the end of lines, and without the halves of characters that JSON can hold."""
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    return source.encode("utf-8", "replace").decode()
