"""`python -m autograder doctor`: is everything fit for grading? Prints a table, changes nothing."""

import contextlib
import copy
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from autograder import secret
from autograder.discover import Found
from autograder.examples import make as examples
from autograder.grade import Examiner, checked_release, grade
from autograder.gradebook import nbgrader_environment
from autograder.judge import cases_for, judge
from autograder.notebooks import HomeworkError, Release
from autograder.questions import QUESTIONS
from autograder.questions.base import LECTURES, STATEMENT, Question
from autograder.release import compare, generate, homeworks, release
from autograder.sandbox import NOT_ISOLATED, Limits, available, encode_cases, isolation
from autograder.summary import table

ROOT = Path(__file__).resolve().parent.parent
OK, WARNING, FAILURE = "ok", "warning", "FAILURE"
Row = tuple[str, str]  # the state, and the sentence


def doctor(names: list[str], root: Path = ROOT) -> int:
    """Print the table; 1 when there is a failure, 0 when there are warnings at most."""
    if unknown := sorted(set(names) - set(homeworks(root))):
        raise HomeworkError(
            f"no solution for {', '.join(unknown)}; there are: {', '.join(homeworks(root))}"
        )
    rows = [("", *row) for row in general(root)]
    with some_key():
        for homework in names or homeworks(root):
            rows += [(homework, *row) for row in examine(homework, root)]
        if not names or examples.HOMEWORK in names:
            rows.append((examples.HOMEWORK, *example_class(root)))
    print(table(rows, ("homework", "state", "what")))
    failures = sum(row[1] == FAILURE for row in rows)
    print(f"\n{failures} failure(s)" if failures else "\nfit for grading")
    return 1 if failures else 0


def general(root: Path) -> list[Row]:
    """What does not depend on a homework."""
    rows = []
    found = nbgrader_source()
    if found == "solutions":
        rows.append((OK, "nbgrader finds its configuration, autograder/nbgrader_config.py"))
    else:
        rows.append((FAILURE, f"nbgrader does not find its configuration: it says {found}"))
    if problem := available():
        rows.append((FAILURE, problem))
    elif problem := isolation():
        rows.append((WARNING, f"{problem}. {NOT_ISOLATED}"))
    else:
        rows.append((OK, "answers are isolated: own namespaces, no network, no file of yours"))
    rows.append(grading_key(root))
    return rows


def grading_key(root: Path) -> Row:
    """Whether the key of the final inputs is where only the grader can read it."""
    try:
        path = secret.key_path()
        if path.resolve().is_relative_to(root):
            return FAILURE, f"the grading key {path} lies inside the course, which others get"
        if not path.exists():
            return OK, f"no grading key yet; the first grading makes {path}"
        secret.fingerprint()
    except HomeworkError as problem:
        return FAILURE, str(problem)
    return OK, f"the grading key {path} is readable by you alone; keep a copy of it"


@contextlib.contextmanager
def some_key():
    """The grading key, or for the time being another one where there is none that can be used."""
    try:
        usable = secret.key_path().exists() and bool(secret.fingerprint())
    except HomeworkError:
        usable = False
    if usable:
        yield
        return
    before = os.environ.get(secret.VARIABLE)
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        os.environ[secret.VARIABLE] = str(Path(folder) / "key")
        try:
            yield
        finally:
            del os.environ[secret.VARIABLE]
            if before is not None:
                os.environ[secret.VARIABLE] = before


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
    rows.append(_again(homework, root))
    rows.append(_ids(released, homework))
    questions = [QUESTIONS[q.id] for q in released.questions]
    rows.append(_references(questions, released, root))
    rows.append(_judge(questions))
    solution = root / "solutions" / homework / f"{homework}.ipynb"
    examiner = Examiner(released)
    try:
        rows.append(_marks(examiner, solution.read_bytes(), full=True))
        rows.append(_marks(examiner, _touched(released), full=False))
    finally:
        examiner.close()
    return rows


def _again(homework: str, root: Path) -> Row:
    """Whether a homework generated twice is the same."""
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        first, second = (generate(homework, root, Path(folder) / n) for n in ("one", "two"))
        if changes := compare(first, second):
            return FAILURE, f"two releases differ: {', '.join(str(c.path) for c in changes)}"
    return OK, "released twice, the same bytes"


def _references(questions: list[Question], released: Release, root: Path) -> Row:
    """Whether every place that a verdict sends a learner to exists."""
    statement = set(re.findall(r"\\tag\{([^}]+)\}", "\n".join(c.source for c in released.cells)))
    missing, places = set(), set()
    for question in questions:
        places |= {question.lecture, *(m.lecture for m in question.mistakes)}
    for place in places:
        number, _, tag = place.partition(", ")
        there = statement if number == STATEMENT else _tags(number, root)
        if there is None or (tag and tag.strip("[]") not in there):
            missing.add(place)
    if missing:
        return FAILURE, f"verdicts refer to what is not there: {', '.join(sorted(missing))}"
    return OK, f"all {len(places)} places that verdicts refer to exist"


def _tags(number: str, root: Path) -> set[str] | None:
    """The equation tags of a lecture; None when there is no such lecture."""
    path = root / "lectures" / f"{LECTURES.get(number)}.ipynb"
    if not path.is_file():
        return None
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return set(re.findall(r"\\tag\{([^}]+)\}", "\n".join("".join(c["source"]) for c in cells)))


def _judge(questions: list[Question]) -> Row:
    """References get full marks on all cases, and the same seed gives the same cases."""
    wrong = []
    for question in questions:
        seed = secret.final_seed(question.id)
        for cases, drawn in (("visible", 0), ("final", 0), ("final", seed)):
            verdict = judge(question.id, question.reference, cases=cases, seed=drawn)
            if not verdict.passed:
                wrong.append(f"{question.id} refuses its reference ({cases}): {verdict.cause}")
            once, twice = (cases_for(question.id, cases=cases, seed=drawn) for _ in range(2))
            # As text: padding may hold NaN, which does not equal itself.
            if json.dumps(encode_cases(once)) != json.dumps(encode_cases(twice)):
                wrong.append(f"{question.id} draws other {cases} cases from the same seed")
    if wrong:
        return FAILURE, "; ".join(wrong)
    return OK, "references get full marks, on the same numbers each time"


def example_class(root: Path) -> Row:
    """Whether the invented learners get the points that the README says."""
    if not examples.TARGET.is_dir():
        return WARNING, "there are no example submissions; python -m autograder release makes them"
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        results = grade(
            checked_release(examples.HOMEWORK, root),
            examples.TARGET,
            Path(folder),
            isolated=not isolation(),
            limits=Limits(cpu_seconds=2),  # one of them never ends
        )
    got = {r.student: r.error or f"{sum(m.points for m in r.marks):g}" for r in results}
    expected = {student: f"{points:g}" for student, points in examples.POINTS.items()}
    if got != expected:
        odd = sorted(s for s in got.keys() | expected.keys() if got.get(s) != expected.get(s))
        text = "; ".join(f"{s} gets {got.get(s)} instead of {expected.get(s)}" for s in odd)
        return FAILURE, f"the example class is graded otherwise than the README says: {text}"
    return OK, f"the {len(got)} example submissions get the points that the README says"


def _ids(released, homework: str) -> tuple[str, str]:
    """Every question of the judge has exactly one graded cell."""
    wanted = [name for name in QUESTIONS if name.split("/")[0] == homework.split("_")[0]]
    graded = [question.id for question in released.questions]
    if sorted(wanted) != sorted(graded):
        odd = sorted(set(wanted) ^ set(graded)) or sorted(graded)
        return FAILURE, f"questions and graded cells do not correspond: {', '.join(odd)}"
    bonus = sum(QUESTIONS[name].points for name in graded if QUESTIONS[name].bonus)
    points = sum(q.points for q in (*released.questions, *released.manual)) - bonus
    worth = f"{points:g} points" + (f" and {bonus:g} of bonus" if bonus else "")
    if points != 20:
        return WARNING, f"{len(graded)} questions; {worth}, where a homework has 20"
    return OK, f"{len(graded)} questions, each with its graded cell; {worth}"


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
