"""A folder of submissions -> points in the gradebook, a feedback page each, and grades.csv.

For every submission: normalise, run each question in a worker, judge what came back, record,
write feedback. A submission never stops the batch. What goes wrong on our side is reported as our
error, leaves the earlier grade alone, and makes the command fail at the end.
"""

import contextlib
import csv
import io
import json
import os
import queue
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from autograder import feedback, gradebook
from autograder.cases import Outcomes
from autograder.checks import SLOW
from autograder.discover import Found, discover
from autograder.judge import assess, cases_for, redact, refusal
from autograder.normalise import Submission, normalise
from autograder.notebooks import MAX_BYTES, HomeworkError, Release
from autograder.questions import QUESTIONS
from autograder.release import ROOT, pristine
from autograder.sandbox import Cell, Limits, Run, Sandbox, encode_cases


@dataclass(frozen=True)
class Mark:
    """The result of one question.

    status : "right", "wrong", "unanswered" or "not run".
    """

    id: str
    grade_id: str
    points: float
    max_points: float
    status: str
    cause: str
    details: dict


@dataclass(frozen=True)
class Result:
    """The result of one submission. `error` is ours; then there are no marks."""

    student: str
    marks: tuple[Mark, ...] = ()
    notes: tuple[str, ...] = ()
    unanswered: frozenset[str] = frozenset()
    submission: Submission | None = field(default=None, repr=False)
    error: str = ""


def checked_release(homework: str, root: Path = ROOT) -> Release:
    """The pristine release, its ids and points compared with the judge's. Raises HomeworkError."""
    release = pristine(homework, root)
    for question in release.questions:
        where = f"solutions/{homework}, cell {question.grade_id}"
        known = QUESTIONS.get(question.id)
        if known is None:
            raise HomeworkError(f"{where}: the judge knows no question {question.id!r}")
        if known.points != question.points:
            raise HomeworkError(
                f"{where}: {question.points:g} points, but the judge gives {known.points}"
            )
    if not release.questions:
        raise HomeworkError(f"solutions/{homework} has no graded cell")
    return release


FRESH = "Restart the kernel and run all cells from the top: does the function still work?"


def _as_mark(question, status: str, verdict) -> Mark:
    cause = verdict.cause or ""
    return Mark(
        question.id, question.grade_id, verdict.points, verdict.max_points, status, cause,
        verdict.details,
    )  # fmt: skip


class Examiner:
    """Runs and judges submissions of one homework. One per thread: it owns a worker process."""

    def __init__(self, release: Release, cases: str = "final", limits: Limits | None = None):
        self.release = release
        self.sandbox = Sandbox(limits)
        self.visible = cases == "visible"
        self.cases = {q.id: cases_for(q.id, cases=cases) for q in release.questions}
        self.encoded = {name: encode_cases(drawn) for name, drawn in self.cases.items()}

    def examine(self, found: Found) -> Result:
        """Judge one file. Whatever is wrong with it becomes a mark or a note."""
        data = None
        if found.path:
            with found.path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
        submission = normalise(self.release, data)
        notes = list(found.notes)
        dropped: dict[str, str] = {}
        marks = [self._mark(q, submission, dropped) for q in self.release.questions]
        notes += submission.notes
        notes += [
            f"Your own {key} {problem}; it was left out."
            for key, problem in dropped.items()
            if key not in {answer.key for answer in submission.answers.values()}
        ]
        unanswered = frozenset(
            m.grade_id for m in self.release.manual if m.grade_id not in submission.written
        )
        return Result(found.student, tuple(marks), tuple(notes), unanswered, submission)

    def _mark(self, question, submission: Submission, dropped: dict[str, str]) -> Mark:
        answer = submission.answers[question.id]

        def stopped(cause, hint, status="not run"):
            return _as_mark(question, status, refusal(question.id, cause, hint=hint, prop="runs"))

        if answer.problem:
            status = "unanswered" if answer.untouched else "not run"
            return stopped(answer.problem, answer.hint, status)
        while True:
            if answer.key in dropped:
                return stopped(f"The cell for {question.function} {dropped[answer.key]}.", SLOW)
            cells = [Cell(s.key, s.source) for s in submission.steps if s.key not in dropped]
            run = self.sandbox.run(cells, answer.key, answer.function, self.encoded[question.id])
            if run.slow_cell not in {cell.key for cell in cells}:
                break
            dropped[run.slow_cell] = run.problem  # and try again without it
        if run.outcomes is None:
            return stopped(_why(run, answer, question.function), SLOW if run.slow else FRESH)
        cases = self.cases[question.id]
        if len(run.outcomes) != len(cases) or not all(map(_fits, cases, run.outcomes)):
            return stopped(f"{question.function} did not answer every call.", FRESH)
        outcomes = Outcomes(cases, run.outcomes)
        verdict = assess(question.id, outcomes, example=self.visible)
        status = "right" if verdict.passed else "wrong"
        if (verdict.cause or "").startswith("Not answered yet"):
            status = "unanswered"
        return _as_mark(question, status, verdict)

    def close(self):
        """End the worker."""
        self.sandbox.close()


def _fits(case, outcome) -> bool:
    """Whether an outcome can come from `collect`: what a learner's process says is not trusted."""
    tracked = len(case.differentiable) + len(case.constants)
    positions = range(len(case.tensors))
    return len(outcome.gradients) in (0, tracked) and all(i in positions for i in outcome.modified)


def _why(run: Run, answer, function) -> str:
    """What happened, without numbers: a learner's own text could carry a hidden input."""
    own = (run.errors or {}).get(answer.key)
    text = f"{function} {run.problem}." + (f" The cell stopped with {own}." if own else "")
    return redact(text)


def grade(
    release: Release,
    folder: Path,
    output: Path,
    *,
    jobs: int = 1,
    limits: Limits | None = None,
    progress=None,
) -> list[Result]:
    """Grade every submission below `folder`; write gradebook, feedback and grades.csv to `output`.

    progress : called with (finished, total, student) after each one.
    Returns the results, sorted by student. Raises HomeworkError when nothing can be graded at all.
    """
    if output == folder:
        raise HomeworkError(f"results cannot be written among the submissions, {folder}")
    found = discover(folder, release.name)
    if not found:
        raise HomeworkError(
            f"{folder} holds no submissions; expected {folder}/<student>/{release.name}.ipynb, "
            f"{folder}/<student>/{release.name}/{release.name}.ipynb or {folder}/<student>.ipynb"
        )
    work = output / ".autograder"
    work.mkdir(parents=True, exist_ok=True)
    with _locked(work / "lock"):
        table, database = output / "grades.csv", output / "gradebook.db"
        read_csv(table)  # a table that is not ours is refused before any work
        gradebook.backup(database, work / "backups")
        results, rows = [], []
        with gradebook.opened(database) as book:
            gradebook.prepare(book, release)
            examined = _examined(release, found, jobs, limits)
            try:
                for result in examined:
                    result, row = _deliver(book, release, output, result)
                    results.append(result)
                    rows.append(row)
                    if progress:
                        progress(len(results), len(found), result.student)
            finally:  # also when interrupted: the table says what the gradebook says
                examined.close()
                write_csv(table, rows)
    return sorted(results, key=lambda r: r.student)


def _examined(release, found, jobs, limits):
    """Results as they are finished, from `jobs` workers side by side."""
    jobs = max(1, min(jobs, len(found)))
    idle: queue.Queue[Examiner] = queue.Queue()
    examiners = [Examiner(release, limits=limits) for _ in range(jobs)]
    for examiner in examiners:
        idle.put(examiner)

    def examine(one: Found) -> Result:
        examiner = idle.get()
        try:
            return examiner.examine(one)
        except Exception as error:  # ours, not the learner's: reported, and the batch goes on
            return Result(one.student, error=f"{type(error).__name__}: {error}")
        finally:
            idle.put(examiner)

    pool = ThreadPoolExecutor(jobs)
    try:
        for future in as_completed([pool.submit(examine, one) for one in found]):
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for examiner in examiners:
            examiner.close()
        pool.shutdown()


def _deliver(book, release: Release, output: Path, result: Result) -> tuple[Result, dict]:
    """Gradebook, graded notebook and feedback page of one result; its row of grades.csv."""
    row = {"student": result.student, "homework": release.name}
    if not result.error:
        try:
            return result, row | _delivered(book, release, output, result)
        except Exception as error:  # ours: this learner is reported, the others go on
            book.db.rollback()
            result = Result(result.student, error=f"{type(error).__name__}: {error}")
    return result, row | {"note": f"NOT GRADED, an error of the autograder: {result.error}"}


def _delivered(book, release: Release, output: Path, result: Result) -> dict:
    points = {m.grade_id: m.points for m in result.marks}
    gradebook.record(book, release, result.student, points, result.unanswered)
    score = gradebook.score(book, release, result.student)
    write_atomically(
        output / "autograded" / result.student / release.name / f"{release.name}.ipynb",
        json.dumps(with_verdicts(result), indent=1, ensure_ascii=False) + "\n",
    )
    page = output / "feedback" / result.student / f"{release.name}.html"
    write_atomically(page, feedback.page(release, result, score))
    notes = remarks(result)
    if score.pending:
        notes.append(f"{score.pending} written answer(s) to be graded by hand.")
    return (
        {"total": f"{score.total:g}", "max": f"{score.maximum:g}"}
        | {q.id: f"{score.by_cell[q.grade_id]:g}" for q in release.questions}
        | {m.grade_id: f"{score.by_cell[m.grade_id]:g}" for m in release.manual if m.points}
        | {"note": " ".join(notes)}
    )


def remarks(result: Result) -> list[str]:
    """What was unusual about a submission: its notes, then why answers could not be run."""
    stopped = [m.cause for m in result.marks if m.status == "not run"]
    nothing = result.submission is not None and not result.submission.steps
    return [*result.notes, *([] if nothing else stopped)]


def with_verdicts(result: Result) -> dict:
    """The normalised notebook with each verdict under its check cell, as formgrader shows it."""
    notebook = result.submission.notebook
    marks = {m.grade_id: m for m in result.marks}
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        cell["outputs"], cell["execution_count"] = [], None
        mark = marks.get(cell["metadata"].get("nbgrader", {}).get("grade_id"))
        if mark is not None:
            text = f"{mark.points:g} of {mark.max_points:g} points. {mark.cause}\n"
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": text}]
    return notebook


def write_csv(path: Path, rows: list[dict]):
    """Replace the rows of these students and homeworks; keep all others. Atomic."""
    old = read_csv(path)
    done = {(row["student"], row["homework"]) for row in rows}
    kept = [row for row in old if (row.get("student"), row.get("homework")) not in done]
    # An error of ours must not erase a grade that is already there.
    earlier = {(row.get("student"), row.get("homework")): row for row in old}
    rows = [
        earlier.get((r["student"], r["homework"]), {}) | r if "total" not in r else r for r in rows
    ]
    merged = sorted(kept + rows, key=lambda r: (r.get("homework", ""), r.get("student", "")))
    columns = ["student", "homework", "total", "max"]
    columns += [c for row in merged for c in row if c not in ("note", *columns)]
    columns = [*dict.fromkeys(columns), "note"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: _cell(v) for k, v in row.items()} for row in merged)
    write_atomically(path, text.getvalue())


def read_csv(path: Path) -> list[dict]:
    """The rows of grades.csv, none when there is no file. Raises HomeworkError on another table."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        if not {"student", "homework"} <= set(reader.fieldnames or ()):
            raise HomeworkError(f"{path} is not a table of ours; move it away and grade again")
        return [{k: _plain(v) for k, v in row.items() if k is not None and v} for row in reader]


def _cell(text: str) -> str:
    """Spreadsheets run a text that begins like a formula; a leading quote stops that."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _plain(text: str) -> str:
    """The inverse of `_cell`."""
    return text[1:] if text[:1] == "'" and _cell(text[1:]) == text else text


def write_atomically(path: Path, text: str):
    """Write beside the target, then rename: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


@contextlib.contextmanager
def _locked(path: Path):
    """One grading run at a time in one folder."""
    import fcntl

    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise HomeworkError(f"another grading run is working in {path.parent.parent}") from None
        yield


class Progress:
    """One line on a terminal, rewritten; elsewhere a line now and then."""

    def __init__(self, stream=None):
        self.stream = stream or sys.stderr
        self.start = self.last = time.monotonic()

    def __call__(self, finished: int, total: int, student: str):
        now = time.monotonic()
        rate = finished / max(now - self.start, 1e-9)
        bar = "█" * (20 * finished // total) + "░" * (20 - 20 * finished // total)
        left = f"{(total - finished) / rate:.0f} s left" if finished < total else "done"
        line = f"{bar} {finished}/{total}  {rate:.1f} per second  {left}  {student[:30]}"
        if self.stream.isatty():
            self.stream.write(f"\r\033[K{line}" + ("\n" if finished == total else ""))
        elif finished == total or now - self.last > 5:
            self.stream.write(line + "\n")
            self.last = now
        self.stream.flush()
