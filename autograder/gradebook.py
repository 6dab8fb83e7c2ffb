"""Points into nbgrader's gradebook, where formgrader and every report find them.

nbgrader is the system of record: grades.csv and the totals on the feedback pages are read back
from the gradebook, so a grade changed by hand in formgrader counts everywhere. Recording the same
result twice changes nothing; a score given by hand is never overwritten. The deadline stands there
too (formgrader shows it and can change it), and so does what lateness costs.

A bonus question has a maximum of 0 in the gradebook, so that totals read "22 / 20" there as well.
"""

import math
import os
import sqlite3
import sys
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from autograder.notebooks import HomeworkError, Release
from autograder.questions import QUESTIONS

COURSE = "policy_gradients"
KEPT = 20


@dataclass(frozen=True)
class Score:
    """What the gradebook says about one learner: automatic and manual points together.

    total : after the penalty. maximum : without bonus questions.
    by_cell : grade id -> points. waiting : grade ids of what waits for a grader.
    comments : grade id of an answer cell -> what a grader wrote there in formgrader.
    late : time after the deadline; zero in time, or without one. penalty : points off for it.
    """

    total: float
    maximum: float
    by_cell: dict[str, float]
    waiting: frozenset[str]
    comments: dict[str, str]
    late: timedelta = timedelta(0)
    penalty: float = 0.0

    @property
    def pending(self) -> int:
        """How many answers wait for a grader."""
        return len(self.waiting)


def parse_due(text: str) -> datetime:
    """ "2026-12-01T23:59" (this machine's time zone unless one is given) -> UTC without a zone."""
    if not text.strip():
        raise HomeworkError(
            "the deadline is empty; leave out --due to keep the one that is there, or set "
            "--late-penalty 0 so that lateness costs nothing"
        )
    try:
        return datetime.fromisoformat(text).astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        raise HomeworkError(
            f"the deadline {text!r} is no date and time; expected for example 2026-12-01T23:59"
        ) from None


def days_late(late: timedelta) -> int:
    """Started days: one second late is one day."""
    return math.ceil(late / timedelta(days=1))


def backup(database: Path, folder: Path) -> Path | None:
    """Copy the gradebook to `folder` with the time in its name; keep the newest KEPT copies."""
    if not database.exists():
        return None
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / f"gradebook-{datetime.now():%Y%m%d-%H%M%S-%f}.db"
    unfinished = folder / ".unfinished.db"
    unfinished.unlink(missing_ok=True)
    with sqlite3.connect(database) as source, sqlite3.connect(unfinished) as destination:
        source.backup(destination)
    source.close()
    destination.close()
    os.replace(unfinished, copy)
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


def is_bonus(question) -> bool:
    """Whether a released question's points come on top."""
    return QUESTIONS[question.id].bonus


def prepare(book, release: Release, due: datetime | None = None):
    """Enter the assignment with its notebook and cells, by nbgrader's own SaveCells.

    due : a new deadline; None leaves the one that is there.
    Raises HomeworkError when graded cells were added or removed after submissions were recorded.
    """
    import nbformat
    from nbgrader.preprocessors import SaveCells

    book.update_or_create_assignment(release.name, **({} if due is None else {"duedate": due}))
    notebook = nbformat.reads(nbformat.writes(nbformat.from_dict(release.notebook)), as_version=4)
    for question in filter(is_bonus, release.questions):
        notebook.cells[question.check].metadata.nbgrader["points"] = 0
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


def record(
    book, release: Release, student: str, points: dict[str, float], unanswered, *,
    handed_in: datetime | None = None, late_penalty: float = 0.0, changed=frozenset(),
):  # fmt: skip
    """Enter one student's automatic points.

    points : grade id -> points. unanswered : grade ids of written answers left as released; they
    get 0; the other written answers with points wait for a grader. late_penalty : share of the
    points earned that is taken off for each started day. changed : grade ids of answer cells whose
    text is not the one that was graded before: a score given by hand stands, and is flagged for
    another look.
    """
    book.update_or_create_student(student)
    submission = book.update_or_create_submission(release.name, student)
    submission.timestamp = handed_in
    for question in release.questions:
        grade = book.find_grade(question.grade_id, release.name, release.name, student)
        other = grade.auto_score != points[question.grade_id] or (
            release.cells[question.answer].grade_id in changed
        )
        grade.auto_score = points[question.grade_id]
        # Flagged only when what it judged has changed.
        grade.needs_manual_grade = grade.manual_score is not None and (
            other or bool(grade.needs_manual_grade)
        )
    for manual in release.manual:
        grade = book.find_grade(manual.grade_id, release.name, release.name, student)
        settled = manual.points == 0 or manual.grade_id in unanswered
        grade.auto_score = 0.0 if settled else None
        by_hand = grade.manual_score is not None
        grade.needs_manual_grade = (grade.auto_score is None and not by_hand) or (
            by_hand and (manual.grade_id in changed or bool(grade.needs_manual_grade))
        )
    book.db.commit()
    submission = book.find_submission(release.name, student)
    notebook = book.find_submission_notebook(release.name, release.name, student)
    share = min(1.0, late_penalty * days_late(timedelta(seconds=submission.total_seconds_late)))
    notebook.late_submission_penalty = round(share * notebook.score, 2)
    book.db.commit()


def missing_entry() -> type[Exception]:
    """What `score` raises for a learner who is not in the gradebook."""
    from nbgrader.api import MissingEntry

    return MissingEntry


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
    submission = book.find_submission(release.name, student)
    notebook = book.find_submission_notebook(release.name, release.name, student)
    penalty = float(notebook.late_submission_penalty or 0.0)
    return Score(
        total=sum(float(g.score or 0.0) for g in grades.values()) - penalty,
        maximum=sum(float(g.max_score) for g in grades.values()),
        by_cell={name: float(g.score or 0.0) for name, g in grades.items()},
        waiting=frozenset(name for name, g in grades.items() if g.needs_manual_grade),
        comments={label: text for label, text in comments.items() if text},
        late=timedelta(seconds=submission.total_seconds_late),
        penalty=penalty,
    )
