"""Fits whatever a learner hands in to the notebook that was released.

Only two things are taken from a submission: the answer cells, found by grade id, else by cell id,
else by the name of the function, and the learner's own helper cells. Everything else (checks,
points, texts, order of the questions) is the release's. Nothing here runs any code, and nothing
here raises: every oddity ends in a note in plain words.
"""

import ast
import copy
from dataclasses import dataclass, replace

from autograder.checks import IMPORT_HINT, import_refusal
from autograder.imports import forbidden_imports
from autograder.notebooks import (
    Cell,
    Question,
    Release,
    UnreadableError,
    defines,
    read_submission,
    runs_elsewhere,
    statements,
    unparse,
    without_magics,
)


@dataclass(frozen=True)
class Answer:
    """One question's answer as found.

    cell : index in the submission; None when there is none.
    found_by : the kind of match, where it was not the ordinary one.
    key : the key of its step in `Submission.steps`; "" when there is nothing to run.
    function : the name under which the function is found.
    problem : why there is nothing to run, in words; "" when there is something.
    hint : what to do about it.
    untouched : the cell is as it was released.
    """

    cell: int | None = None
    found_by: str = ""
    key: str = ""
    function: str = ""
    problem: str = ""
    hint: str = ""
    untouched: bool = False


@dataclass(frozen=True)
class Step:
    """A piece of code to run, in the order in which the learner's notebook has it."""

    key: str
    source: str


@dataclass(frozen=True)
class Submission:
    """A submission fitted to the release.

    steps : what to run before any question.
    answers : one per question id of the release.
    notes : what was unusual about the file, in plain words.
    written : grade ids of the written answers that the learner changed.
    notebook : the release's notebook with the learner's cells in it.
    """

    steps: tuple[Step, ...]
    answers: dict[str, Answer]
    notes: tuple[str, ...]
    written: frozenset[str]
    notebook: dict


def normalise(release: Release, data: bytes | None) -> Submission:
    """Fit the bytes of a submission to `release`; None stands for no file at all."""
    if data is None:
        return _nothing(release, f"No notebook {release.name}.ipynb was handed in.")
    try:
        cells = read_submission(data)
    except UnreadableError as problem:
        return _nothing(release, str(problem))
    notes: list[str] = []
    answers = {q.id: _find(release, q, cells, notes) for q in release.questions}
    steps = [Step("imports", release.prelude)]
    found = {a.cell for a in answers.values() if a.cell is not None}
    runnable = {a.cell for a in answers.values() if a.key}
    helpers = _helpers(release, cells, found, notes)
    for index, cell in enumerate(cells):
        if index in runnable:
            steps.append(Step(step_key(index), without_magics(cell.source)))
        elif index in helpers:
            steps.append(Step(step_key(index), helpers[index]))
    notes += _labels(release, answers)
    notes += _checks(release, cells)
    texts = {i: t for i in release.written if (t := _written(release.cells[i], cells)) is not None}
    notebook = _assemble(release, cells, answers, helpers, texts)
    notes = list(dict.fromkeys(notes))
    written = frozenset(release.cells[index].grade_id for index in texts)
    return Submission(tuple(steps), answers, tuple(notes), written, notebook)


def step_key(index: int) -> str:
    """How a cell is called in messages; learners count from 1."""
    return f"cell at position {index + 1}"


def _nothing(release: Release, note: str) -> Submission:
    answers = {q.id: Answer(problem="There was nothing to run.") for q in release.questions}
    return Submission((), answers, (note,), frozenset(), copy.deepcopy(release.notebook))


def _find(release: Release, question: Question, cells: list[Cell], notes: list[str]) -> Answer:
    """The answer to one question: the best cell of the strongest kind of match."""
    name, given = question.function, release.cells[question.answer]
    others = {release.cells[q.answer].grade_id for q in release.questions} - {given.grade_id}
    free = [i for i, cell in enumerate(cells) if cell.grade_id not in others]
    named = [i for i, c in enumerate(cells) if c.kind == "code" and defines(c.source, name)]
    tiers = {
        "": [i for i in free if given.grade_id and cells[i].grade_id == given.grade_id],
        "its cell id": [i for i in free if given.cell_id and cells[i].cell_id == given.cell_id],
        "its function's name": [i for i in named if i in free],
    }
    copies = sorted({i for found in tiers.values() for i in found})
    edited = [i for i in copies if not _same(cells[i].source, given.source)]
    if not edited:
        # Last of all: written into the cell of another question.
        tiers = {"its function's name": [i for i in named if i not in copies]}
        edited = tiers["its function's name"]
    if not copies and not edited:
        problem = f"The cell for {name} is missing: it was deleted, or its function renamed."
        hint = "Copy the empty cell from a fresh copy of the homework and put your answer back in."
        return Answer(problem=problem, hint=hint)
    if not edited:
        return Answer(cell=copies[-1], problem="Not answered yet.", untouched=True)
    # The last cell that defines the function, as when all cells run; else the last edited one.
    index = max([i for i in edited if defines(cells[i].source, name)] or edited)
    how = next(how for how, found in tiers.items() if index in found)
    if len(copies) > 1:
        notes.append(
            f"There were {len(copies)} cells for {name}; "
            f"the one at position {index + 1} of the notebook was graded."
        )
    if cells[index].kind != "code":
        notes.append(f"The cell for {name} was turned into a text cell; it was graded as code.")
    return replace(_runnable(question, cells[index], index, notes), found_by=how)


def _labels(release: Release, answers: dict[str, Answer]) -> list[str]:
    """One note per kind of match for the cells that were not found by their label."""
    found: dict[str, list[str]] = {}
    for question in release.questions:
        if how := answers[question.id].found_by:
            found.setdefault(how, []).append(question.function)
    return [
        f"Without the label of its cell, found by {how}: {', '.join(names)}."
        for how, names in found.items()
    ]


def _runnable(question: Question, cell: Cell, index: int, notes: list[str]) -> Answer:
    """The answer in this cell, or why it cannot be run."""
    name, source = question.function, without_magics(cell.source)
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f" in line {error.lineno}" if getattr(error, "lineno", None) else ""
        text = getattr(error, "msg", None) or str(error)
        problem = f"The cell for {name} has a syntax error{where}: {text}."
        hint = "Run the cell in JupyterLab: Python marks the place, sometimes one line too late."
        return Answer(cell=index, problem=problem, hint=hint)
    if refused := forbidden_imports(source):
        problem = f"The cell for {name} was not run. {import_refusal(refused)}"
        return Answer(cell=index, problem=problem, hint=IMPORT_HINT)
    function = name
    if not defines(source, name):
        functions = [s.name for s in body if isinstance(s, ast.FunctionDef)]
        if len(functions) != 1:
            problem = f"The cell for {name} does not define a function of that name."
            hint = f"Call your function {name}, as in the homework."
            return Answer(cell=index, problem=problem, hint=hint)
        function = functions[0]
        notes.append(f"The function for {name} was called {function}; it was graded all the same.")
    return Answer(cell=index, key=step_key(index), function=function)


def _helpers(release: Release, cells: list[Cell], answers: set[int], notes) -> dict[int, str]:
    """The learner's own code: index in the submission -> source to run."""
    labels = {c.grade_id for c in release.cells if c.grade_id}
    ids = {c.cell_id for c in release.cells if c.cell_id}
    sources = {_squeezed(c.source) for c in release.cells}
    names = [q.function for q in release.questions]
    helpers = {}
    for index, cell in enumerate(cells):
        if cell.kind != "code" or index in answers or not cell.source.strip():
            continue
        if _squeezed(cell.source) in sources:
            continue  # as released
        source = without_magics(cell.source)
        ours = cell.grade_id in labels or cell.cell_id in ids
        if ours or any(defines(source, name) for name in names):
            # One of our own cells, edited, or a further copy of an answer: keep what other cells
            # may build on, not what it runs and not the copy.
            kept = [s for s in statements(source) if _definition(s, names)]
            source = "\n".join(map(unparse, kept))
        elif refused := forbidden_imports(source):
            packages = ", ".join(refused)
            where = f"Your own cell at position {index + 1}"
            notes.append(f"{where} uses {packages}; the lines that do were left out.")
            kept = [s for s in map(unparse, statements(source)) if runs_elsewhere(s)]
            source = "\n".join(kept)
        if source.strip():
            helpers[index] = source
    return helpers


def _definition(statement: ast.stmt, answers: list[str]) -> bool:
    """An import, a function that is no answer, a class, or a variable; nothing forbidden in it."""
    kinds = (
        ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
    )
    return (
        isinstance(statement, kinds)
        and getattr(statement, "name", "") not in answers
        and runs_elsewhere(unparse(statement))
    )


def _checks(release: Release, cells: list[Cell]) -> list[str]:
    """Notes on the cells that the learner was not meant to touch."""
    missing, changed = [], []
    for question in release.questions:
        ours = release.cells[question.check]
        theirs = [
            c
            for c in cells
            if c.grade_id == ours.grade_id or (ours.cell_id and c.cell_id == ours.cell_id)
        ]
        theirs = theirs or [c for c in cells if _same(c.source, ours.source)]
        if not theirs:
            missing.append(question.function)
        elif not any(_same(c.source, ours.source) for c in theirs):
            changed.append(question.function)
    notes = []
    if missing:
        notes.append(f"Check cells were deleted ({', '.join(missing)}); that costs nothing.")
    if changed:
        notes.append(f"Check cells were changed ({', '.join(changed)}); ours were used instead.")
    return notes


def _assemble(release, cells, answers, helpers, texts) -> dict:
    """The release's notebook with the learner's answers, written answers and helpers in place."""
    notebook = copy.deepcopy(release.notebook)
    for question in release.questions:
        index = answers[question.id].cell
        if index is not None:
            notebook["cells"][question.answer]["source"] = cells[index].source
    for index, text in texts.items():
        notebook["cells"][index]["source"] = text
    # Helpers go in front of the answer that follows them in the submission, else to the end.
    place = {a.cell: q.answer for q in release.questions if (a := answers[q.id]).cell is not None}
    additions: dict[int, list[dict]] = {}
    for index in sorted(helpers):
        following = [place[i] for i in sorted(place) if i > index]
        where = following[0] if following else len(notebook["cells"])
        additions.setdefault(where, []).append(
            {
                "cell_type": "code",
                "id": f"helper-{index + 1}",
                "metadata": {},
                "source": cells[index].source,
                "outputs": [],
                "execution_count": None,
            }
        )
    merged = []
    for position in range(len(notebook["cells"]) + 1):
        merged += additions.get(position, [])
        merged += notebook["cells"][position : position + 1]
    notebook["cells"] = merged
    return notebook


def _written(ours: Cell, cells: list[Cell]) -> str | None:
    """The text of a written answer, None when it is missing or as released."""
    for cell in reversed(cells):
        found = cell.grade_id == ours.grade_id or (ours.cell_id and cell.cell_id == ours.cell_id)
        if found and not _same(cell.source, ours.source):
            return cell.source
    return None


def _squeezed(source: str) -> str:
    return "\n".join(line.rstrip() for line in source.strip().splitlines())


def _same(a: str, b: str) -> bool:
    return _squeezed(a) == _squeezed(b)
