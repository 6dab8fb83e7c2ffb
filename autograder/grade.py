"""A folder of submissions -> points in the gradebook, a page each, grades.csv and a class page.

For every submission: normalise, run each question in a worker, judge what came back, record,
write feedback. A submission never stops the batch. What goes wrong on our side is reported as our
error, leaves the earlier grade alone, and makes the command fail at the end. What is unchanged
since it was graded is not run again (`autograder.kept`).
"""

import builtins
import contextlib
import hashlib
import json
import queue
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from autograder import class_page, feedback, gradebook, kept, secret
from autograder.cases import Outcome, Outcomes
from autograder.checks import SLOW
from autograder.discover import Found, discover, printable
from autograder.judge import CONDITION, EXCEPTION_HINTS, assess, cases_for, redact, refusal
from autograder.kept import Kept, Mark, Record
from autograder.normalise import Submission, normalise
from autograder.notebooks import MAX_BYTES, HomeworkError, Release
from autograder.questions import QUESTIONS
from autograder.release import ROOT, pristine
from autograder.sandbox import Cell, Limits, Run, Sandbox, encode_cases, isolation
from autograder.table import read_csv, write_atomically, write_csv


@dataclass(frozen=True)
class Result:
    """The result of one submission. `error` is ours; then there are no marks.

    unanswered : grade ids of written answers left as released. empty : there was nothing to run.
    file, cells : as in `Record`. replaces : a sentence about the attempt graded before, or "".
    notebook : as it was graded; None for a result that was kept from an earlier run.
    score : what the gradebook says, once it is recorded. stamped : as in `Found`.
    """

    student: str
    marks: tuple[Mark, ...] = ()
    notes: tuple[str, ...] = ()
    unanswered: frozenset[str] = frozenset()
    empty: bool = False
    file: str = ""
    cells: dict[str, str] = field(default_factory=dict, repr=False)
    replaces: str = ""
    notebook: dict | None = field(default=None, repr=False)
    score: gradebook.Score | None = None
    stamped: bool = False
    error: str = ""

    @property
    def kept(self) -> bool:
        """It comes from an earlier run."""
        return not self.error and self.notebook is None


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


MOST_DROPPED = 4  # cells that take too long and are left out; with more, nothing is run
MOST_WALL = 4  # times the wall limit of one question: what all questions of a notebook may take
WAITING = "Does a cell wait, ask for input or compute for long? Every question runs all cells anew."
FRESH = "Restart the kernel and run all cells from the top: does the function still work?"


def _as_mark(question, status: str, verdict) -> Mark:
    cause = verdict.cause or ""
    return Mark(
        question.id, question.grade_id, verdict.points, verdict.max_points, status, cause,
        verdict.details,
    )  # fmt: skip


class Examiner:
    """Runs and judges submissions of one homework. One per thread: it owns a worker process.

    cases : "final" needs the grading key. isolated : False runs answers in plain child processes,
    None where nothing better can be had.
    """

    def __init__(
        self,
        release: Release,
        cases: str = "final",
        limits: Limits | None = None,
        *,
        isolated: bool | None = None,
    ):
        self.release = release
        self.visible = cases == "visible"
        self.cases = {}
        for question in release.questions:
            seed = {} if self.visible else {"seed": secret.final_seed(question.id)}
            self.cases[question.id] = cases_for(question.id, cases=cases, **seed)
        self.sandbox = Sandbox(limits, isolated=not isolation() if isolated is None else isolated)
        self.encoded = {name: encode_cases(drawn) for name, drawn in self.cases.items()}

    def examine(self, found: Found) -> Result:
        """Judge one file. Whatever is wrong with it becomes a mark or a note."""
        data = _bytes(found)
        submission = normalise(self.release, data)
        notes = list(found.notes)
        dropped: dict[str, str] = {}
        self.wall_seconds = 0.0
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
        return Result(
            found.student, tuple(marks), tuple(notes), unanswered,
            empty=not submission.steps, file=_file_digest(data), notebook=submission.notebook,
            cells=_cell_digests(self.release, submission.notebook),
        )  # fmt: skip

    def _mark(self, question, submission: Submission, dropped: dict[str, str]) -> Mark:
        answer = submission.answers[question.id]

        def stopped(cause, hint, status="not run"):
            return _as_mark(question, status, refusal(question.id, cause, hint=hint, prop="runs"))

        if answer.problem:
            status = "unanswered" if answer.untouched else "not run"
            return stopped(answer.problem, answer.hint, status)
        while True:
            if len(dropped) > MOST_DROPPED:  # each costs a time limit, and others are waiting
                return stopped("Too many cells of this notebook did not come to an end.", SLOW)
            if answer.key in dropped:
                problem = dropped[answer.key]
                hint = SLOW if "longer" in problem else FRESH
                return stopped(f"The cell for {question.function} {problem}.", hint)
            most = MOST_WALL * self.sandbox.limits.wall_seconds
            if self.wall_seconds > most:
                return stopped(f"Not run: this notebook had taken {most} seconds by then.", WAITING)
            cells = [Cell(s.key, s.source) for s in submission.steps if s.key not in dropped]
            start = time.monotonic()
            run = self.sandbox.run(cells, answer.key, answer.function, self.encoded[question.id])
            self.wall_seconds += time.monotonic() - start
            if run.slow_cell not in {cell.key for cell in cells}:
                break
            dropped[run.slow_cell] = run.problem  # and try again without it
        if run.outcomes is None:
            why = _why(run, answer, question.function, verbatim=self.visible)
            return stopped(why, SLOW if run.slow else FRESH)
        cases = self.cases[question.id]
        if len(run.outcomes) != len(cases) or not all(map(_fits, cases, run.outcomes)):
            return stopped(f"{question.function} did not answer every call.", FRESH)
        outcomes = run.outcomes if self.visible else map(_without_text, run.outcomes)
        outcomes = Outcomes(cases, outcomes)
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


def _why(run: Run, answer, function, *, verbatim: bool) -> str:
    """What happened. Verbatim, on inputs that learners may see, with what their process said."""
    problem, own = run.problem, (run.errors or {}).get(answer.key)
    if verbatim and run.said:
        problem += f" ({redact(run.said)})"
    text = f"{function} {problem}."
    if own:
        text += f" The cell stopped with {redact(own) if verbatim else told(own)}."
    return text


# Of the texts that come from a learner's process this much may be told: any more, chosen by the
# learner's code, could carry the inputs that count onto a page.
EXCEPTIONS = {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
} | {"_LinAlgError", "OutOfMemoryError", "EinopsError"}
TYPES = {name for name, value in vars(builtins).items() if isinstance(value, type)} | {
    "NoneType", "ndarray", "function", "generator", "module", "tensor", "number", "method",
    "builtin_function_or_method", "map", "zip", "tensor of an unusual kind",
}  # fmt: skip
TELLING = {
    "inplace": "inplace",
    "NoneType": "NoneType",
    CONDITION: "expected condition to be a boolean",
    r"with a bool tensor|bool tensor is not supported": "with a bool tensor",
} | {re.escape(words): words for words in EXCEPTION_HINTS if words not in EXCEPTIONS}


def told(error: str) -> str:
    """A known type of exception, one of a few pieces of known messages, the line."""
    name = re.match(r"\w*", error)[0]
    line = re.search(r" \(line \d{1,4}\)$", error)
    where = line[0] if line else ""
    if name not in EXCEPTIONS:
        return f"an exception of its own{where}"
    words = next((words for form, words in TELLING.items() if re.search(form, error)), "")
    return name + (f": … {words} …" if words else "") + where


def _without_text(outcome: Outcome) -> Outcome:
    kind = outcome.kind
    if kind not in TYPES and not re.fullmatch(r"\d tensors", kind):
        kind = "object"
    return replace(outcome, kind=kind, error=told(outcome.error) if outcome.error else "")


def _bytes(found: Found) -> bytes | None:
    if found.path is None:
        return None
    with found.path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _file_digest(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()


def _cell_digests(release: Release, notebook: dict) -> dict[str, str]:
    """Grade id of each answer cell -> digest of its text."""
    answers = {release.cells[q.answer].grade_id for q in release.questions}
    answers |= {release.cells[index].grade_id for index in release.written}
    labels = [(c["metadata"].get("nbgrader", {}).get("grade_id"), c) for c in notebook["cells"]]
    return {
        label: kept.digest("".join(cell["source"]))[:16]
        for label, cell in labels
        if label in answers
    }


@dataclass(frozen=True)
class Order:
    """How a class is to be graded.

    jobs : submissions side by side. isolated : False runs answers without isolation.
    again : grade also what is unchanged. due : a new deadline, UTC without a zone; late_penalty :
    the share of the points that each started day costs; None for both: as in the last run, or
    none. anonymous : no names on the class page. progress : called with (finished, total,
    student, kept) after each submission.
    """

    jobs: int = 1
    limits: Limits = field(default_factory=Limits)
    isolated: bool = True
    again: bool = False
    due: datetime | None = None
    late_penalty: float | None = None
    anonymous: bool = False
    progress: object = None


def grade(release: Release, folder: Path, output: Path, **order) -> list[Result]:
    """Grade every submission below `folder`; write gradebook, pages and grades.csv to `output`.

    order : the fields of `Order`. Returns the results, sorted by student. Raises HomeworkError
    when nothing can be graded at all.
    """
    order = Order(**order)
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
        records = Kept(output, release.name)
        rules = _settle(release, records, order)
        gradebook.backup(database, work / "backups")
        with gradebook.opened(database) as book:
            gradebook.prepare(book, release, order.due)
            delivery = _Delivery(book, release, output, records, rules)
            earlier = {} if order.again else {o.student: delivery.unchanged(o) for o in found}
            unchanged = [result for result in earlier.values() if result]
            examined = _examined(release, [o for o in found if not earlier.get(o.student)], order)
            done, by_name = [], {one.student: one for one in found}
            try:
                for results, is_kept in ((unchanged, True), (examined, False)):
                    for result in results:
                        done.append(delivery.deliver(result, by_name[result.student]))
                        if order.progress:
                            order.progress(len(done), len(found), result.student, is_kept)
            finally:  # also when interrupted: the table says what the gradebook says
                examined.close()
                write_csv(table, delivery.rows)
            delivery.class_page(done, order)
    return sorted(done, key=lambda r: r.student)


def _settle(release: Release, records: Kept, order: Order) -> str:
    """The digest of what decides; the class's settings are compared and kept."""
    before = records.settings().get("key")
    if before and not order.again:
        place = f"another grading key than {secret.key_path()}"
        advice = (
            "A class is graded with one key, so that all get the same inputs: put the old key "
            "back, or grade everyone again with --again"
        )
        if not secret.key_path().exists():
            raise HomeworkError(
                f"the grading key {secret.key_path()} is gone, with which {release.name} was "
                f"graded here. {advice}"
            )
        if secret.fingerprint() != before:
            raise HomeworkError(f"{release.name} was graded here with {place}. {advice}")
    settings = {"key": secret.fingerprint()}
    if order.late_penalty is not None:
        settings["late_penalty"] = order.late_penalty
    records.set(**settings)
    return kept.rules(release, order.limits, order.isolated, settings["key"])


def _examined(release, found, order: Order):
    """Results as they are finished, from several workers side by side."""
    jobs = min(order.jobs, len(found))
    if not jobs:
        return
    idle: queue.Queue[Examiner] = queue.Queue()
    examiners = [
        Examiner(release, limits=order.limits, isolated=order.isolated) for _ in range(jobs)
    ]
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


class _Delivery:
    """Brings results into gradebook, graded notebook, page, row and record, in this order."""

    def __init__(self, book, release: Release, output: Path, records: Kept, rules: str):
        self.book, self.release, self.output = book, release, output
        self.records, self.rules = records, rules
        self.late_penalty = records.settings().get("late_penalty", 0.0)
        self.rows: list[dict] = []

    def unchanged(self, found: Found) -> Result | None:
        """The result of an earlier run, where nothing has changed that it depends on."""
        record = self.records.read(found.student)
        if record is None or not self._notebook(found.student).exists():
            return None
        try:
            file = _file_digest(_bytes(found))
        except OSError:  # said when it is graded
            return None
        if record.digest != kept.digest(self.rules, file, found.notes):
            return None
        return _from_record(found.student, record)

    def deliver(self, result: Result, found: Found) -> Result:
        """Everything that comes of one result; an error of ours becomes the result."""
        row = {"student": result.student, "homework": self.release.name}
        if not result.error:
            try:
                result = self._delivered(result, found)
                self.rows.append(row | self._row(result))
                return result
            except Exception as error:  # ours: this learner is reported, the others go on
                self.book.db.rollback()
                result = Result(result.student, error=f"{type(error).__name__}: {error}")
        note = f"NOT GRADED, an error of the autograder: {result.error}"
        self.rows.append(row | {"note": note})
        return result

    def _delivered(self, result: Result, found: Found) -> Result:
        earlier = self.records.read(result.student)
        changed = set()
        if earlier and earlier.file and result.file != earlier.file:
            points = sum(mark.points for mark in earlier.marks)
            with contextlib.suppress(gradebook.missing_entry()):  # it may be a new gradebook
                points = gradebook.score(self.book, self.release, result.student).total
            words = f"This replaces an earlier attempt, which was graded with {points:g} points."
            result = replace(result, replaces=words)
            changed = {c for c in earlier.cells if earlier.cells[c] != result.cells.get(c)}
        elif earlier:
            result = replace(result, replaces=earlier.replaces)
        gradebook.record(
            self.book, self.release, result.student,
            {mark.grade_id: mark.points for mark in result.marks}, result.unanswered,
            handed_in=found.handed_in, changed=changed,
            late_penalty=self.late_penalty if found.stamped else 0.0,
        )  # fmt: skip
        score = gradebook.score(self.book, self.release, result.student)
        result = replace(result, score=score, stamped=found.stamped)
        if result.notebook is not None:
            notebook = with_verdicts(self.release, result)
            text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
            write_atomically(self._notebook(result.student), text)
        page = self.output / "feedback" / result.student / f"{self.release.name}.html"
        write_atomically(page, feedback.page(self.release, result, score))
        identity = kept.digest(self.rules, result.file, found.notes)
        record = Record(
            result.marks, result.notes, tuple(sorted(result.unanswered)), result.empty,
            result.file, result.cells, result.replaces, identity,
        )  # fmt: skip
        if record != earlier:
            self.records.write(result.student, record)
        return result

    def _notebook(self, student: str) -> Path:
        name = self.release.name
        return self.output / "autograded" / student / name / f"{name}.ipynb"

    def _row(self, result: Result) -> dict:
        score, by_cell = result.score, result.score.by_cell
        notes = remarks(result)
        if score.pending:
            notes.append(f"{score.pending} answer(s) to be graded by hand.")
        if score.late and not result.stamped:
            notes.append("Late by the file's own time only, so nothing was taken off.")
        by_hand = [manual for manual in self.release.manual if manual.points]
        return (
            {"total": f"{score.total:g}", "max": f"{score.maximum:g}"}
            | ({"late": feedback.duration(score.late)} if score.late else {})
            | ({"penalty": f"{score.penalty:g}"} if score.penalty else {})
            | {
                question.id: f"{by_cell[question.grade_id]:g}"
                for question in self.release.questions
            }
            | {manual.grade_id: f"{by_cell[manual.grade_id]:g}" for manual in by_hand}
            | {"note": " ".join(notes)}
        )

    def class_page(self, done: list[Result], order: Order):
        """One page about everyone whose marks are here, also from earlier runs."""
        results = {result.student: result for result in done}
        for student in self.records.students():
            record = self.records.read(student)
            if student in results or record is None:
                continue
            with contextlib.suppress(gradebook.missing_entry()):  # it may be a new gradebook
                score = gradebook.score(self.book, self.release, student)
                results[student] = replace(_from_record(student, record), score=score)
        page = class_page.page(
            self.release,
            [results[student] for student in sorted(results)],
            due=self.book.find_assignment(self.release.name).duedate,
            isolated=order.isolated,
            anonymous=order.anonymous,
        )
        write_atomically(self.output / "class" / f"{self.release.name}.html", page)


def _from_record(student: str, record: Record) -> Result:
    return Result(
        student, record.marks, record.notes, frozenset(record.unanswered), record.empty,
        record.file, record.cells, record.replaces,
    )  # fmt: skip


def remarks(result: Result) -> list[str]:
    """What was unusual about a submission: its notes, then why answers could not be run."""
    stopped = [m.cause for m in result.marks if m.status == "not run" and not result.empty]
    return [*result.notes, *filter(None, [result.replaces]), *stopped]


def with_verdicts(release: Release, result: Result) -> dict:
    """The normalised notebook with each verdict under its check cell, as formgrader shows it."""
    notebook, ours = result.notebook, {cell.source for cell in release.cells}
    marks = {m.grade_id: m for m in result.marks}
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            if (text := "".join(cell["source"])) not in ours:
                cell["source"] = disarmed(text)
            continue
        cell["outputs"], cell["execution_count"] = [], None
        mark = marks.get(cell["metadata"].get("nbgrader", {}).get("grade_id"))
        if mark is not None:
            text = f"{mark.points:g} of {mark.max_points:g} points. {mark.cause}".rstrip() + "\n"
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": text}]
    return notebook


def disarmed(markdown: str) -> str:
    """A learner's text without HTML, links and pictures, which may hold scripts.

    formgrader passes them through to the grader's browser. A space makes them text: `< b>`,
    `[here] (address)`; formulas and code keep their looks.
    """
    text = re.sub(r"<(?=[^\s=<])", "< ", markdown)
    text = re.sub(r"\](?=[(:])", "] ", text)
    return re.sub(r"\\href\b", "href", text)  # a link in a formula


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
    """One line on a terminal, rewritten; elsewhere a line now and then.

    The rate, and with it the time left, counts what was really graded: what was kept from an
    earlier run goes by at once.
    """

    def __init__(self, stream=None):
        self.stream = stream or sys.stderr
        self.start = self.last = time.monotonic()
        self.graded = 0

    def __call__(self, finished: int, total: int, student: str, is_kept: bool = False):
        now = time.monotonic()
        if is_kept:
            self.start = now
        else:
            self.graded += 1
        rate = self.graded / max(now - self.start, 1e-9)
        bar = "█" * (20 * finished // total) + "░" * (20 - 20 * finished // total)
        speed = f"{rate:.1f} per second" if self.graded else "unchanged"
        left = f"{(total - finished) / rate:.0f} s left" if rate else "…"
        left = left if finished < total else "done"
        line = f"{bar} {finished}/{total}  {speed}  {left}  {printable(student)[:30]}"
        if self.stream.isatty():
            self.stream.write(f"\r\033[K{line}" + ("\n" if finished == total else ""))
        elif finished == total or now - self.last > 5:
            self.stream.write(line + "\n")
            self.last = now
        self.stream.flush()
