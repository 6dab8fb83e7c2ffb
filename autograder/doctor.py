"""`python -m autograder doctor`: is everything fit for grading? Prints a table, changes nothing."""

import copy
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from autograder.discover import Found
from autograder.grade import Examiner, checked_release
from autograder.gradebook import nbgrader_environment
from autograder.notebooks import HomeworkError
from autograder.questions import QUESTIONS
from autograder.release import homeworks, release
from autograder.sandbox import ISOLATION, available
from autograder.summary import table

ROOT = Path(__file__).resolve().parent.parent
OK, WARNING, FAILURE = "ok", "warning", "FAILURE"


def doctor(names: list[str], root: Path = ROOT) -> int:
    """Print the table; 1 when there is a failure, 0 when there are warnings at most."""
    if unknown := sorted(set(names) - set(homeworks(root))):
        raise HomeworkError(
            f"no solution for {', '.join(unknown)}; there are: {', '.join(homeworks(root))}"
        )
    rows = [("", *row) for row in general()]
    for homework in names or homeworks(root):
        rows += [(homework, *row) for row in examine(homework, root)]
    print(table(rows, ("homework", "state", "what")))
    failures = sum(row[1] == FAILURE for row in rows)
    print(f"\n{failures} failure(s)" if failures else "\nfit for grading")
    return 1 if failures else 0


def general() -> list[tuple[str, str]]:
    """What does not depend on a homework."""
    rows = []
    found = nbgrader_source()
    if found == "solutions":
        rows.append((OK, "nbgrader finds its configuration, autograder/nbgrader_config.py"))
    else:
        rows.append((FAILURE, f"nbgrader does not find its configuration: it says {found}"))
    if problem := available():
        rows.append((FAILURE, problem))
    rows.append((WARNING, ISOLATION))
    return rows


def nbgrader_source() -> str:
    """The source folder as nbgrader itself reads it, started in an unrelated folder."""
    code = (
        "import json; from nbgrader.apps.baseapp import NbGrader; app = NbGrader(); "
        "app.initialize([]); print(json.dumps(app.coursedir.source_directory))"
    )
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env=nbgrader_environment(),
            capture_output=True,
            text=True,
        )
    try:
        return json.loads(done.stdout)
    except ValueError:
        return (done.stderr.strip().splitlines() or ["no output"])[-1]


def examine(homework: str, root: Path) -> list[tuple[str, str]]:
    """The state of one homework."""
    try:
        changes = release(homework, root, check=True)
        released = checked_release(homework, root)
    except HomeworkError as problem:
        return [(FAILURE, str(problem))]
    rows = []
    if changes:
        text = ", ".join(f"{c.path} {c.what}" for c in changes)
        rows.append((FAILURE, f"homework/ is not what solutions/ gives ({text})"))
    else:
        rows.append((OK, "homework/ is byte for byte what solutions/ gives"))
    rows.append(_ids(released, homework))
    solution = root / "solutions" / homework / f"{homework}.ipynb"
    examiner = Examiner(released)
    try:
        rows.append(_marks(examiner, solution.read_bytes(), full=True))
        rows.append(_marks(examiner, _touched(released), full=False))
    finally:
        examiner.close()
    return rows


def _ids(released, homework: str) -> tuple[str, str]:
    """Every question of the judge has exactly one graded cell."""
    wanted = [name for name in QUESTIONS if name.split("/")[0] == homework.split("_")[0]]
    graded = [question.id for question in released.questions]
    if sorted(wanted) != sorted(graded):
        odd = sorted(set(wanted) ^ set(graded)) or sorted(graded)
        return FAILURE, f"questions and graded cells do not correspond: {', '.join(odd)}"
    points = sum(q.points for q in (*released.questions, *released.manual))
    return OK, f"{len(graded)} questions, each with its graded cell; {points:g} points in all"


def _touched(released) -> bytes:
    """The release with a comment in each answer, so that the stubs are really called."""
    notebook = copy.deepcopy(released.notebook)
    for question in released.questions:
        cell = notebook["cells"][question.answer]
        cell["source"] = released.cells[question.answer].source + "\n# touched"
    return json.dumps(notebook).encode()


def _marks(examiner: Examiner, data: bytes, *, full: bool) -> tuple[str, str]:
    """The solution must earn every point and the release none."""
    what = "the solution gets full marks" if full else "the release gets no marks"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "submission.ipynb"
        path.write_bytes(data)
        marks = examiner.examine(Found("doctor", path)).marks
    wrong = [m for m in marks if m.points != (m.max_points if full else 0)]
    if wrong:
        text = "; ".join(f"{m.id} {m.points:g}/{m.max_points:g} {m.cause}" for m in wrong)
        return FAILURE, f"{what}: no, {text}"
    return OK, f"{what} ({sum(m.points for m in marks):g} of {sum(m.max_points for m in marks):g})"
