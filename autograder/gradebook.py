"""Points into nbgrader's gradebook, where formgrader and every report find them.

nbgrader is the system of record: grades.csv and the totals on the feedback pages are read back
from the gradebook, so a grade changed by hand in formgrader counts everywhere. Recording the same
result twice changes nothing; a score given by hand is never overwritten.
"""

import os
import sqlite3
import sys
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from autograder.notebooks import HomeworkError, Release

COURSE = "policy_gradients"
KEPT = 20


@dataclass(frozen=True)
class Score:
    """What the gradebook says about one learner: automatic and manual points together.

    by_cell : grade id -> points. pending : written answers that wait for a grader.
    comments : grade id of an answer cell -> what a grader wrote there in formgrader.
    """

    total: float
    maximum: float
    by_cell: dict[str, float]
    pending: int
    comments: dict[str, str]


def backup(database: Path, folder: Path) -> Path | None:
    """Copy the gradebook to `folder` with the time in its name; keep the newest KEPT copies."""
    if not database.exists():
        return None
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / f"gradebook-{datetime.now():%Y%m%d-%H%M%S-%f}.db"
    with sqlite3.connect(database) as source, sqlite3.connect(copy) as destination:
        source.backup(destination)
    source.close()
    destination.close()
    for old in sorted(folder.glob("gradebook-*.db"))[:-KEPT]:
        old.unlink()
    return copy


def nbgrader_environment() -> dict[str, str]:
    """Environment in which nbgrader finds its own programs and our configuration."""
    paths = [str(Path(__file__).parent), os.environ.get("JUPYTER_CONFIG_PATH", "")]
    return os.environ | {
        "JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, paths)),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }


@contextmanager
def opened(database: Path):
    """nbgrader's Gradebook on this file, created when missing."""
    from nbgrader.api import Gradebook
    from sqlalchemy.exc import SAWarning

    database.parent.mkdir(parents=True, exist_ok=True)
    if not database.exists():
        _create(database)
    with warnings.catch_warnings(), Gradebook(f"sqlite:///{database}", COURSE) as book:
        # nbgrader's own queries draw warnings about sessions from newer SQLAlchemy.
        warnings.simplefilter("ignore", SAWarning)
        yield book


def _create(database: Path):
    """An empty gradebook, complete or not at all. nbgrader calls alembic to make one."""
    from nbgrader.api import Gradebook

    unfinished = database.with_name(f".{database.name}.new")
    unfinished.unlink(missing_ok=True)
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = nbgrader_environment()["PATH"]
    try:
        Gradebook(f"sqlite:///{unfinished}", COURSE).close()
    finally:
        os.environ["PATH"] = before
    os.replace(unfinished, database)


def prepare(book, release: Release):
    """Enter the assignment with its notebook and cells, by nbgrader's own SaveCells.

    Raises HomeworkError when graded cells were added or removed after submissions were recorded.
    """
    import nbformat
    from nbgrader.preprocessors import SaveCells

    book.update_or_create_assignment(release.name)
    notebook = nbformat.reads(nbformat.writes(nbformat.from_dict(release.notebook)), as_version=4)
    names = {
        "student": ".",
        "assignment": release.name,
        "notebook": release.name,
        "db_url": str(book.db.get_bind().url),
    }
    try:
        SaveCells().preprocess(notebook, {"nbgrader": names})
    except RuntimeError as error:
        raise HomeworkError(
            f"{error}. Grades of the earlier version of {release.name} are in the gradebook; "
            "finish with that version, or move gradebook.db away to start a new one."
        ) from None
    book.db.expire_all()


def record(book, release: Release, student: str, points: dict[str, float], unanswered: set[str]):
    """Enter one student's automatic points.

    points : grade id -> points. unanswered : grade ids of written answers left as released; they
    get 0; the other written answers with points wait for a grader.
    """
    book.update_or_create_student(student)
    book.update_or_create_submission(release.name, student)
    for question in release.questions:
        grade = book.find_grade(question.grade_id, release.name, release.name, student)
        changed = grade.auto_score != points[question.grade_id]
        grade.auto_score = points[question.grade_id]
        # A score given by hand stands; it is flagged only when what it judged has changed.
        grade.needs_manual_grade = grade.manual_score is not None and (
            changed or bool(grade.needs_manual_grade)
        )
    for manual in release.manual:
        grade = book.find_grade(manual.grade_id, release.name, release.name, student)
        settled = manual.points == 0 or manual.grade_id in unanswered
        grade.auto_score = 0.0 if settled else None
        grade.needs_manual_grade = grade.auto_score is None and grade.manual_score is None
    book.db.commit()


def score(book, release: Release, student: str) -> Score:
    """One student's points as the gradebook has them."""
    grades = {
        cell.grade_id: book.find_grade(cell.grade_id, release.name, release.name, student)
        for cell in (*release.questions, *release.manual)
    }
    answers = (*(q.answer for q in release.questions), *release.written)
    comments = {
        label: book.find_comment(label, release.name, release.name, student).manual_comment
        for label in (release.cells[index].grade_id for index in answers)
    }
    return Score(
        total=sum(float(g.score or 0.0) for g in grades.values()),
        maximum=sum(float(g.max_score) for g in grades.values()),
        by_cell={name: float(g.score or 0.0) for name, g in grades.items()},
        pending=sum(bool(g.needs_manual_grade) for g in grades.values()),
        comments={label: text for label, text in comments.items() if text},
    )
