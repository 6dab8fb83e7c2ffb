"""`python -m autograder check NOTEBOOK`: what grading would find, on the visible cases."""

import shutil
import textwrap
from pathlib import Path

from autograder.discover import Found, copy_number, printable
from autograder.grade import Examiner, checked_release
from autograder.notebooks import HomeworkError, UnreadableError, read_submission
from autograder.release import homeworks, pristine
from autograder.sandbox import available
from autograder.summary import table


def self_check(path: Path) -> int:
    """Print a table of verdicts; 0 when every answer passes and every cell is in place, else 1."""
    if problem := available():
        raise HomeworkError(problem)
    if not path.is_file():
        raise HomeworkError(f"{path} is not a file; give the notebook to check")
    release = checked_release(which_homework(path))
    examiner = Examiner(release, cases="visible")
    try:
        result = examiner.examine(Found("you", path))
    finally:
        examiner.close()
    rows = []
    for mark in result.marks:
        rows.append((mark.id, f"{mark.points:g}/{mark.max_points:g}", shown(mark)))
    print(f"{path.name} as {release.name}, on the visible cases\n")
    print(table(rows, ("question", "points", "verdict")))
    if result.notes:
        print("\nAbout the file:")
        print("\n".join(filled(f"- {printable(note)}") for note in result.notes))
    if result.unanswered:
        left = [m.grade_id for m in release.manual if m.grade_id in result.unanswered]
        print("\n" + filled(f"Written answers still as released: {', '.join(left)}"))
    right = sum(mark.status == "right" for mark in result.marks)
    ending = f"{right} of {len(result.marks)} answers pass here. Grading uses other numbers."
    ending += (
        " This judges the answers only: the other cells (experiment, find the bug) are not run. "
        "Run All Cells runs them, and `status` says what is still to be run or written."
    )
    if result.notes and right == len(result.marks):
        ending += " See what is said about the file before you hand it in."
    print("\n" + filled(ending))
    return 0 if right == len(result.marks) and not result.notes else 1


def filled(text: str) -> str:
    """Wrapped to the terminal, later lines indented."""
    width = max(60, min(100, shutil.get_terminal_size((80, 24)).columns))
    return textwrap.fill(text, width, subsequent_indent="  ", break_on_hyphens=False)


def shown(mark) -> str:
    """A mark in one line: that it passes, or the cause and a hint."""
    if mark.status == "right":
        return "passes"
    if mark.status == "unanswered":
        return "not answered yet"
    hint = f" Hint: {mark.details['hint']}" if mark.details["hint"] else ""
    return printable(mark.cause.rstrip(".") + "." + hint)


def which_homework(path: Path) -> str:
    """The homework a notebook belongs to: by its cells' labels, else by its file name."""
    problem = f"it looks like none of the homeworks ({', '.join(homeworks()) or 'none'})"
    try:
        cells = read_submission(path.read_bytes()).cells
    except UnreadableError as error:
        cells, problem = [], str(error)
    labels = {cell.grade_id for cell in cells if cell.grade_id}
    shared = {name: len(labels & _labels(name)) for name in homeworks()}
    best = max(shared, key=shared.get, default=None)
    if best and shared[best]:
        return best
    for name in homeworks():
        if copy_number(path.stem, name) is not None:
            return name
    raise HomeworkError(f"{printable(path)}: {problem}")


def _labels(homework: str) -> set[str]:
    """The labels of a homework's cells; none of one that is being written and does not fit yet."""
    try:
        return {cell.grade_id for cell in pristine(homework).cells if cell.grade_id}
    except HomeworkError:
        return set()
