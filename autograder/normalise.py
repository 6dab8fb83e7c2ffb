"""Fits whatever a learner hands in to the notebook that was released.

Only two things are taken from a submission: the answer cells, found by grade id, else by cell id,
else by the name of the function, and the learner's own helper cells. Everything else (checks,
points, texts, order of the questions) is the release's. Nothing here runs any code, and nothing
here raises: every oddity ends in a note in plain words.
"""

import ast
import copy
import symtable
import threading
from dataclasses import dataclass, replace

from autograder.checks import IMPORT_HINT, import_refusal
from autograder.imports import forbidden_imports
from autograder.notebooks import (
    IMPORT,
    Cell,
    Question,
    Release,
    UnreadableError,
    bound_by,
    read_submission,
    runs_elsewhere,
    statements,
    unparse,
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


# Python 3.11 counts the depth of the tree that it is building once for all threads: a second thread
# that parses meanwhile makes it fail with SystemError, "recursion depth mismatch".
_PARSING = threading.Lock()


def normalise(release: Release, data: bytes | None) -> Submission:
    """Fit the bytes of a submission to `release`; None stands for no file at all."""
    with _PARSING:
        return _normalised(release, data)


def _normalised(release: Release, data: bytes | None) -> Submission:
    if data is None:
        return _nothing(release, f"No notebook {release.name}.ipynb was handed in.")
    try:
        reading = read_submission(data)
    except UnreadableError as problem:
        return _nothing(release, str(problem))
    cells, notes = reading.cells, list(reading.notes)
    answers = {q.id: _find(release, q, cells, notes) for q in release.questions}
    runnable = {a.cell for a in answers.values() if a.key}
    helpers = _helpers(release, cells, runnable)
    steps = [Step("imports", release.prelude)]
    for index, cell in enumerate(cells):
        if index in runnable:
            steps.append(Step(step_key(index), cell.python))
        elif index in helpers:
            steps.append(Step(step_key(index), helpers[index]))
    answers = _without_borrowed(release, cells, answers, steps)
    notes += _labels(release, answers)
    notes += _checks(release, cells)
    texts = _written(release, cells, notes)
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
    """The answer to one question: the last cell of the strongest kind of match.

    First the question's own cells (by label, by cell id) and new ones that define its function;
    then other questions' cells that do; then a name set to something callable; last an own cell
    that defines something else.
    """
    name, given = question.function, release.cells[question.answer]
    labels = {c.grade_id for c in release.cells} - {given.grade_id, ""}
    ids = {c.cell_id for c in release.cells} - {given.cell_id, ""}
    released = {c.squeezed for c in release.cells} - {given.squeezed}
    theirs = [
        (i, c) for i, c in enumerate(cells) if c.grade_id == given.grade_id or (
            c.squeezed not in released and (name in c.names or c.cell_id == given.cell_id)
        )
    ]  # fmt: skip
    free = [i for i, c in theirs if c.grade_id not in labels]
    by_label = [i for i in free if cells[i].grade_id == given.grade_id]
    by_id = [i for i in free if given.cell_id and cells[i].cell_id == given.cell_id]
    new = [i for i in free if cells[i].kind == "code" and cells[i].cell_id not in ids]
    by_name = [i for i in new if name in cells[i].functions]
    own = sorted({*by_label, *by_id})
    copies = sorted({*own, *by_name})
    touched = {i for i, c in theirs if c.squeezed != given.squeezed}
    ranks = (
        [i for i in copies if name in cells[i].names],
        [i for i, c in theirs if c.kind == "code" and name in c.functions],
        new,
        own,
    )
    edited = next((kept for rank in ranks if (kept := [i for i in rank if i in touched])), [])
    if not edited and copies:
        return Answer(cell=copies[-1], problem="Not answered yet.", untouched=True)
    if not edited:
        problem = f"The cell for {name} is missing: it was deleted, or its function renamed."
        hint = "Copy the empty cell from a fresh copy of the homework and put your answer back in."
        return Answer(problem=problem, hint=hint)
    # As when all cells run, the last one counts; one that Python cannot read changes nothing.
    index = max([i for i in edited if statements(cells[i].python)] or edited)
    how = "its function's name"
    if index in own:
        how = "" if index in by_label else "its cell id"
    if len(copies) > 1:
        notes.append(
            f"There were {len(copies)} cells for {name}; "
            f"the one at position {index + 1} of the notebook was graded."
        )
    if cells[index].kind != "code":
        notes.append(f"The cell for {name} was turned into a text cell; it was graded as code.")
    return replace(_runnable(release, question, cells[index], index, notes), found_by=how)


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


def _runnable(release, question: Question, cell: Cell, index: int, notes: list[str]) -> Answer:
    """The answer in this cell, or why it cannot be run."""
    name, source = question.function, cell.python
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
    if name not in cell.names:
        others = {q.function for q in release.questions}
        functions = [s for s in body if isinstance(s, ast.FunctionDef) and s.name not in others]
        if len(functions) > 1:  # a helper beside it: the one with the arguments asked for
            wanted = _arguments(statements(release.cells[question.answer].source)[0])
            functions = [s for s in functions if _arguments(s) == wanted]
        if len(functions) != 1:
            problem = f"The cell for {name} does not define a function of that name."
            hint = f"Call your function {name}, as in the homework, at the left edge of the cell."
            return Answer(cell=index, problem=problem, hint=hint)
        function = functions[0].name
        notes.append(f"The function for {name} was called {function}; it was graded all the same.")
    return Answer(cell=index, key=step_key(index), function=function)


def _arguments(function: ast.stmt) -> list[str]:
    arguments = getattr(function, "args", ast.arguments([], [], None, [], [], None, []))
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _helpers(release: Release, cells: list[Cell], answers: set[int]) -> dict[int, str]:
    """The learner's own code: index in the submission -> source to run.

    Of a new cell everything is kept but imports of packages that are not there, and statements
    that rebind an answer's name. Of our own cells, edited, and of a further copy of an answer:
    what other cells may build on, not what it runs.
    """
    labels = {c.grade_id for c in release.cells if c.grade_id}
    ids = {c.cell_id for c in release.cells if c.cell_id}
    sources = {c.squeezed for c in release.cells}
    names = {q.function for q in release.questions}
    helpers = {}
    for index, cell in enumerate(cells):
        if cell.kind != "code" or index in answers or not cell.source.strip():
            continue
        if cell.squeezed in sources:
            continue  # as released
        ours = cell.grade_id in labels or cell.cell_id in ids or cell.functions & names
        source, body = cell.python, statements(cell.python)
        if ours:
            body = [s for s in body if isinstance(s, DEFINITION)]
        if ours or cell.names & names or forbidden_imports(source):
            kept = [unparse(s) for s in body if not bound_by([s]) & names]
            source = "\n".join(s for s in kept if runs_elsewhere(s))
        if source.strip():
            helpers[index] = source
    return helpers


DEFINITION = IMPORT | ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def _globals(source: str) -> set[str]:
    """The global names that this source reads, inside its functions too; none if it is broken."""
    try:
        queue = [symtable.symtable(source, "", "exec")]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set()
    names = set()
    while queue:
        scope = queue.pop()
        everything = scope.get_type() == "module"
        names |= {
            symbol.get_name()
            for symbol in scope.get_symbols()
            if symbol.is_referenced() and (everything or symbol.is_global())
        }
        queue += scope.get_children()
    return names


def _without_borrowed(release, cells, answers: dict[str, Answer], steps) -> dict[str, Answer]:
    """The answers; refused those that use what another cell imports and an answer may not.

    `check` refuses them too: there the name leads to the package.
    """
    borrowed: dict[str, str] = {}
    for cell in cells:
        if cell.kind != "code" or "import" not in cell.source:
            continue
        for statement in filter(lambda s: isinstance(s, IMPORT), statements(cell.python)):
            packages = forbidden_imports(unparse(statement))
            borrowed |= {name: packages[0] for name in bound_by([statement]) if packages}
    uses: dict[str, set[str]] = {}
    for step in steps:
        for statement in statements(step.source) if borrowed else ():
            for name in bound_by([statement]):
                borrowed.pop(name, None)
                uses[name] = _globals(unparse(statement))
    refused = {}
    for question in release.questions if borrowed else ():
        answer = answers[question.id]
        seen, queue = set(), [answer.function] if answer.key else []
        while queue:  # what the function uses, and what that uses
            if (name := queue.pop()) not in seen:
                seen.add(name)
                queue += uses.get(name, ())
        packages = list(dict.fromkeys(borrowed[name] for name in sorted(seen & borrowed.keys())))
        if packages:
            problem = f"The cell for {question.function} was not run. {import_refusal(packages)}"
            refused[question.id] = replace(answer, key="", problem=problem, hint=IMPORT_HINT)
    return answers | refused


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
        theirs = theirs or [c for c in cells if c.squeezed == ours.squeezed]
        if not theirs:
            missing.append(question.function)
        elif not any(c.squeezed == ours.squeezed for c in theirs):
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
    for index in sorted(helpers.keys() - place.keys()):
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


def _written(release: Release, cells: list[Cell], notes: list[str]) -> dict[int, str]:
    """The written answers that were changed: index in the release -> text.

    A cell is found by label, by cell id, or by the question at its beginning. Text cells that the
    learner added right below it belong to it.
    """
    sources = {c.squeezed for c in release.cells}
    labels = {c.grade_id for c in release.cells} - {""}
    ids = {c.cell_id for c in release.cells} - {""}

    def added(cell: Cell) -> bool:
        ours = cell.grade_id in labels or cell.cell_id in ids or cell.squeezed in sources
        return cell.kind != "code" and not ours and bool(cell.source.strip())

    texts, below, used = {}, [], set()
    for index in release.written:
        ours = release.cells[index]
        prompt = ours.squeezed.partition("\n")[0]
        ways = (
            [i for i, c in enumerate(cells) if c.grade_id == ours.grade_id],
            [i for i, c in enumerate(cells) if ours.cell_id and c.cell_id == ours.cell_id],
            [i for i, c in enumerate(cells) if len(prompt) > 20 and c.squeezed.startswith(prompt)],
        )
        found = next((way for way in ways if way), [])
        changed = [i for i in found if cells[i].squeezed not in (ours.squeezed, "")]
        if not found:
            continue
        place = max(changed or found)
        after = place + 1
        while after < len(cells) and added(cells[after]):
            after += 1
        if after > place + 1:
            below.append(ours.grade_id)
        if changed or after > place + 1:
            texts[index] = "\n\n".join(cells[i].source for i in range(place, after))
            used |= {*found}
    notes += _elsewhere(
        release, texts, [c.source for i, c in enumerate(cells) if added(c) and i not in used]
    )
    if below:
        notes.append(
            f"Text in cells of their own was read as part of the answer above: {', '.join(below)}."
        )
    return texts


def _elsewhere(release: Release, texts: dict[int, str], own: list[str]) -> list[str]:
    """Written answers with points that are not at their place, while other text of the learner is.

    Which text belongs to which answer is for a person to say: each gets all of it. Returns notes.
    """
    pointed = {manual.grade_id for manual in release.manual if manual.points}
    notes = []
    for index in release.written:
        name = release.cells[index].grade_id
        if name in pointed and index not in texts and own:
            texts[index] = "\n\n".join([release.cells[index].source, *own])
            notes.append(
                f"The cell for {name} is missing or empty, but there is text in cells of your own: "
                "a person will look whether it is the answer."
            )
    return notes
