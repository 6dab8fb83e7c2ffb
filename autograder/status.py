"""`python -m autograder status [FOLDER]`: what is done, and what is the next thing to do.

Reads the notebooks as they are saved, judges the answers on the visible cases, as `check` does,
and changes nothing.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from autograder.discover import Found, printable
from autograder.grade import Examiner, Mark, checked_release
from autograder.normalise import normalise
from autograder.notebooks import (
    MAX_BYTES,
    Cell,
    HomeworkError,
    Release,
    UnreadableError,
    read_submission,
)
from autograder.questions import QUESTIONS
from autograder.release import ROOT
from autograder.sandbox import available
from autograder.self_check import filled, shown, which_homework
from autograder.summary import table

EXPERIMENTS = ("experiment-", "bug-")  # how the ids of the code cells begin that are only run


@dataclass(frozen=True)
class State:
    """How far one notebook is.

    points, maximum : of the twenty; `bonus` comes on top; `by_hand` of the maximum are given by a
    person. written, experiments : name of the written answer or code cell -> done; a code cell's
    name has its first line behind it, since JupyterLab shows no names.
    """

    path: Path
    release: Release
    marks: tuple[Mark, ...]
    notes: tuple[str, ...]
    written: dict[str, bool]
    experiments: dict[str, bool]

    @property
    def points(self) -> float:
        return sum(m.points for m in self.marks if not QUESTIONS[m.id].bonus)

    @property
    def bonus(self) -> float:
        return sum(m.points for m in self.marks if QUESTIONS[m.id].bonus)

    @property
    def by_hand(self) -> float:
        return sum(m.points for m in self.release.manual)

    @property
    def maximum(self) -> float:
        return self.by_hand + sum(m.max_points for m in self.marks if not QUESTIONS[m.id].bonus)

    @property
    def untouched(self) -> bool:
        begun = any(m.status != "unanswered" for m in self.marks)
        return not begun and not any((*self.written.values(), *self.experiments.values()))


def status(path: Path) -> int:
    """Print one line per homework and the next thing to do; more on a single notebook. 0."""
    if problem := available():
        raise HomeworkError(problem)
    if not path.exists():
        raise HomeworkError(f"{path} does not exist; give a homework's notebook, or their folder")
    single = not path.is_dir()
    states = examine([path] if single else notebooks(path), strict=single)
    if not states:
        raise HomeworkError(f"{path} holds no homework")
    print(overview(states))
    if single:
        print(f"\n{questions(states[0])}")
    print(f"\n{next_step(states)}")
    return 0


def notebooks(folder: Path) -> list[Path]:
    """Notebooks below a folder, without checkpoints and other hidden files."""
    found = sorted(folder.rglob("*.ipynb"))
    return [p for p in found if not any(x.startswith(".") for x in p.relative_to(folder).parts)]


def examine(paths: list[Path], *, strict: bool = False) -> list[State]:
    """The states of these notebooks, one worker for all; foreign ones are left out unless strict.

    Raises HomeworkError.
    """
    states, sandbox = [], None
    try:
        for path in paths:
            try:
                release = checked_release(which_homework(path))
            except HomeworkError:
                if strict:
                    raise
                continue
            examiner = Examiner(release, cases="visible")
            sandbox = examiner.sandbox = sandbox or examiner.sandbox
            states.append(_state(path, release, examiner))
    finally:
        if sandbox:
            sandbox.close()
    return states


def _state(path: Path, release: Release, examiner: Examiner) -> State:
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    result = examiner.examine(Found("you", path))
    written = normalise(release, data).written
    try:
        cells = read_submission(data).cells
    except UnreadableError:
        cells = []
    return State(
        path,
        release,
        result.marks,
        result.notes,
        {release.cells[i].grade_id: release.cells[i].grade_id in written for i in release.written},
        {_called(c): _ran(c, cells) for c in experiments(release)},
    )


def experiments(release: Release) -> list[Cell]:
    """The code cells that are only to be run: no answers, no checks."""
    others = {i for q in release.questions for i in (q.answer, q.check)}
    return [
        cell
        for index, cell in enumerate(release.cells)
        if cell.kind == "code" and index not in others and cell.cell_id.startswith(EXPERIMENTS)
    ]


def _called(cell: Cell) -> str:
    """Name and first line, by which a person finds the cell."""
    line = next((x.strip() for x in cell.source.splitlines() if x.strip()), "")
    line = line if len(line) <= 40 else f"{line[:37]}..."
    return f"{cell.cell_id} (`{line}`)"


def _ran(ours: Cell, cells: list[Cell]) -> bool:
    """Whether this cell of the release was run, in whatever form the learner left it."""
    return any(c.ran for c in cells if c.cell_id == ours.cell_id or c.squeezed == ours.squeezed)


def overview(states: list[State]) -> str:
    """One line per notebook."""
    rows = []
    unique = len({state.release.name for state in states}) == len(states)
    for state in states:
        answered = sum(m.status in ("right", "wrong") for m in state.marks)
        remark = f"+{state.bonus:g} bonus " if state.bonus else ""
        remark += f"({state.by_hand:g} by hand) " if state.by_hand else ""
        remark += "not begun" if state.untouched else ""
        rows.append(
            (
                state.release.name if unique else near(state.path),
                f"{state.points:g}/{state.maximum:g}",
                f"{answered} of {len(state.marks)}",
                _share(state.written),
                _share(state.experiments),
                remark.strip(),
            )
        )
    return table(rows, ("homework", "points", "answered", "written", "run", ""))


def _share(parts: dict[str, bool]) -> str:
    return f"{sum(parts.values())} of {len(parts)}" if parts else "none"


def questions(state: State) -> str:
    """One line per question of a notebook, then what is left besides."""
    rows = [(m.id.split("/")[1], f"{m.points:g}/{m.max_points:g}", shown(m)) for m in state.marks]
    lines = [table(rows, ("question", "points", "verdict on the visible cases"))]
    lines += [f"About the file: {printable(note)}" for note in state.notes]
    for what, parts in (("Still to write", state.written), ("Not run yet", state.experiments)):
        if left := [name for name, done in parts.items() if not done]:
            lines.append(f"{what}: {', '.join(left)}")
    return "\n".join(filled(line) if n else f"{line}\n" for n, line in enumerate(lines)).rstrip()


def near(path: Path) -> str:
    """A path as seen from here."""
    return printable(os.path.relpath(path)) if path.is_relative_to(Path.cwd()) else printable(path)


def next_step(states: list[State]) -> str:
    """What to do now: go on where something is begun, else begin the first one."""
    begun = [s for s in states if not s.untouched]
    for state in [*begun, *(s for s in states if s.untouched)]:
        if step := _step(state):
            return filled(f"Next, {state.release.name}: {step}")
    return "Everything is done: hand it in."


def _step(state: State) -> str:
    if state.untouched and not state.notes:
        return f"not begun yet; open {near(state.path)}"
    if state.notes and all(m.status == "not run" for m in state.marks):
        return printable(state.notes[0])
    if left := [m for m in state.marks if m.status != "right"]:
        title = QUESTIONS[left[0].id].title
        name = left[0].id.split("/")[1]
        if left[0].status == "unanswered":
            return f"answer {name} ({title})."
        return f"{name}. {printable(shown(left[0]))}"
    if missing := [name for name, done in state.written.items() if not done]:
        return f"write {missing[0]}" + (f" and {len(missing) - 1} more." if missing[1:] else ".")
    if missing := [name for name, done in state.experiments.items() if not done]:
        return f"run the cell {missing[0]} and save the notebook."
    return ""


DEFAULT = ROOT / "homework"
