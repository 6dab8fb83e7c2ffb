"""`python -m autograder check NOTEBOOK`: what grading would find, on the visible cases."""

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
        print("\n".join(f"  {printable(note)}" for note in result.notes))
    if result.unanswered:
        print(f"\nWritten answers still as released: {', '.join(sorted(result.unanswered))}")
    right = sum(mark.status == "right" for mark in result.marks)
    print(f"\n{right} of {len(result.marks)} answers pass here. Grading uses other numbers.")
    return 0 if right == len(result.marks) and not result.notes else 1


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
    try:
        cells = read_submission(path.read_bytes()).cells
    except UnreadableError:
        cells = []
    labels = {cell.grade_id for cell in cells if cell.grade_id}
    shared = {name: len(labels & _labels(name)) for name in homeworks()}
    best = max(shared, key=shared.get, default=None)
    if best and shared[best]:
        return best
    for name in homeworks():
        if copy_number(path.stem, name) is not None:
            return name
    known = ", ".join(homeworks()) or "none"
    raise HomeworkError(f"{path} looks like none of the homeworks ({known})")


def _labels(homework: str) -> set[str]:
    """The labels of a homework's cells; none of one that is being written and does not fit yet."""
    try:
        return {cell.grade_id for cell in pristine(homework).cells if cell.grade_id}
    except HomeworkError:
        return set()
