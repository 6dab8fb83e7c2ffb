"""`python -m autograder check NOTEBOOK`: what grading would find, on the visible cases."""

from collections import Counter
from pathlib import Path

from autograder.discover import Found, copy_number, printable
from autograder.grade import Examiner, checked_release
from autograder.notebooks import HomeworkError, Release, UnreadableError, read_submission
from autograder.sandbox import available
from autograder.summary import table

ROOT = Path(__file__).resolve().parent.parent


def self_check(path: Path) -> int:
    """Print a table of verdicts; 0 when every answer passes and every cell is in place, else 1."""
    if problem := available():
        raise HomeworkError(problem)
    if not path.is_file():
        raise HomeworkError(f"{path} is not a file; give the notebook to check")
    release = which_release(path)
    examiner = Examiner(release, cases="visible")
    try:
        result = examiner.examine(Found("you", path))
    finally:
        examiner.close()
    rows = []
    for mark in result.marks:
        hint = f" Hint: {mark.details['hint']}" if mark.details["hint"] else ""
        text = "passes" if mark.status == "right" else printable(mark.cause + hint)
        rows.append((mark.id, f"{mark.points:g}/{mark.max_points:g}", text))
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


def which_release(path: Path) -> Release:
    """The homework a notebook belongs to: by its cells' labels, else by its file name."""
    releases = [
        checked_release(p)
        for p in sorted((ROOT / "homework").glob("*/*.ipynb"))
        if p.stem == p.parent.name
    ]
    try:
        cells = read_submission(path.read_bytes())
    except UnreadableError:
        cells = []
    labels = Counter(
        release.name
        for release in releases
        for grade_id in {c.grade_id for c in release.cells if c.grade_id}
        if any(c.grade_id == grade_id for c in cells)
    )
    by_name = [r.name for r in releases if copy_number(path.stem, r.name) is not None]
    names = [name for name, _ in labels.most_common(1)] or by_name
    for release in releases:
        if release.name in names:
            return release
    known = ", ".join(r.name for r in releases) or "none"
    raise HomeworkError(f"{path} looks like none of the released homeworks ({known})")
