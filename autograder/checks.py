"""``check("hw1/leave_one_out", fn)``: the judge's verdict on the visible cases, in the notebook."""

import contextlib
import html
import inspect
import linecache
import signal
import sys
import threading
from pathlib import Path

from autograder.imports import ALLOWED, COURSE, forbidden_imports
from autograder.judge import Verdict, assess, cases_for, collect, judge, percent, refusal
from autograder.questions import find
from autograder.questions.base import LECTURES, where

LABELS = {
    "imports": "imports only what is allowed",
    "callable": "answered with a function",
    "runs": "runs on every input",
    "shape": "shape",
    "floating": "dtype of the result",
    "finite": "no NaN, no infinity",
    "value": "values",
    "gradient": "gradient",
    "padding": "values on padding",
    "inputs": "inputs left as they were",
    "stability": "float32 and extreme inputs",
}
SECONDS = 10  # of wall time, for all visible inputs together; a right answer takes milliseconds
SLOW = "Look for a loop that never ends: a whole homework takes seconds."
_last_shown: list = []  # the verdict shown last and the cell execution that showed it


def check(question_id: str, function) -> Verdict:
    """Judge ``function`` on the visible cases, show the verdict and return it.

    In a notebook the verdict is a small table, elsewhere plain text. The same judge grades the
    homework later, on other numbers and sizes. A function that is still running after SECONDS is
    interrupted where the system can do that (Linux and macOS, main thread); elsewhere Kernel →
    Interrupt does. Raises KeyError for an unknown question.
    """
    find(question_id)
    refused = refused_imports(function)
    if refused:
        verdict = refusal(question_id, import_refusal(refused), hint=IMPORT_HINT, prop="imports")
    elif not callable(function):
        verdict = judge(question_id, function, cases="visible")
    else:
        try:
            with time_limit(SECONDS):
                outcomes = collect(function, cases_for(question_id, cases="visible"))
            verdict = assess(question_id, outcomes, example=True)
        except TimeUp:
            cause = f"{find(question_id).function_name} was still running after {SECONDS} seconds."
            verdict = refusal(question_id, cause, hint=SLOW, prop="runs")
    _show(verdict)
    return verdict


class TimeUp(BaseException):
    """The time is up; no Exception, so that an answer's own ``except Exception`` lets it pass."""


@contextlib.contextmanager
def time_limit(seconds: float):
    """Raise TimeUp inside the block after that many seconds of wall time.

    Does nothing on systems without the timer and outside the main thread, where signals cannot be
    received. A timer that was running before goes on afterwards, later by the time spent here.
    """
    main = threading.current_thread() is threading.main_thread()
    if not hasattr(signal, "setitimer") or not main:
        yield
        return

    def stop(number, frame):
        raise TimeUp

    before = signal.signal(signal.SIGALRM, stop)
    # Again every second, should the answer swallow the first one with a bare except.
    running = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
        signal.setitimer(signal.ITIMER_REAL, *running)


IMPORT_HINT = "Write the few lines yourself, with torch alone."


def import_refusal(names: list[str]) -> str:
    """The sentence with which an answer that imports what it may not is refused."""
    return (
        f"The answer uses {', '.join(names)}. An answer may use torch, einops and the standard "
        "library only."
    )


def refused_imports(function) -> list[str]:
    """Packages that it uses and may not: by the text of its cell, or through a global name.

    Follows the notebook functions that it calls. Empty where no source text can be had.
    """
    found, seen, queue = [], set(), [function]
    while queue:
        current = inspect.unwrap(queue.pop())
        code = getattr(current, "__code__", None)
        if code is None or code in seen:
            continue
        seen.add(code)
        found += forbidden_imports(_source(current))
        for name in _global_names(code):
            value = current.__globals__.get(name)
            module = getattr(value, "__module__", None) or getattr(value, "__name__", "")
            root = str(module).partition(".")[0]
            if inspect.isfunction(value) and value.__globals__ is current.__globals__:
                queue.append(value)
            elif (inspect.ismodule(value) or callable(value)) and _refused(root):
                found.append(root)
    return list(dict.fromkeys(found))


def _refused(root: str) -> bool:
    """A package of the course, or an installed one that is not allowed."""
    file = getattr(sys.modules.get(root), "__file__", None) or ""
    return root in COURSE or (root not in ALLOWED and "site-packages" in file)


def _global_names(code):
    """Names used by the code and by the functions defined inside it."""
    inner = [c for c in code.co_consts if inspect.iscode(c)]
    return {*code.co_names, *(name for c in inner for name in _global_names(c))}


def _source(function) -> str:
    """The whole cell for a function of a notebook, the function's own text for one of a file."""
    filename = function.__code__.co_filename
    if Path(filename).suffix != ".py" or "ipykernel" in filename:
        cell = "".join(linecache.getlines(filename))
        if cell:
            return cell
    try:
        return inspect.cleandoc("\n" + inspect.getsource(function))
    except (OSError, TypeError):
        return ""


# Showing a verdict.


def _show(verdict: Verdict) -> None:
    shell = _shell()
    if shell is None:
        print(as_text(verdict))
        return
    from IPython.display import display

    display({"text/html": as_html(verdict), "text/plain": as_text(verdict)}, raw=True)
    _last_shown[:] = [verdict, shell.execution_count]


def _shell():
    """The notebook this runs in, or None in a plain interpreter."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return get_ipython()


def shown_just_now(verdict: Verdict) -> bool:
    """Whether the same cell execution has already shown this verdict."""
    shell = _shell()
    return bool(
        shell
        and _last_shown
        and _last_shown[0] is verdict
        and _last_shown[1] == shell.execution_count
    )


def rows(verdict: Verdict) -> list[tuple[str, str]]:
    """(mark, check) for every check of the question: "✓" passed, "✗" failed, "·" not reached."""
    marks = {True: "✓", False: "✗", None: "·"}
    return [(marks[c["passed"]], LABELS[c["property"]]) for c in verdict.details["checks"]]


def findings(verdict: Verdict) -> list[tuple[str, str]]:
    """(label, sentence) pairs that explain a verdict; empty entries are left out."""
    details = verdict.details
    if verdict.passed:
        return [("accepted as", details["note"])] if details["note"] else []
    difference = details["difference"]
    pairs = [
        ("first check not passed", LABELS[details["property"]] if details["case"] else ""),
        ("input", f"{details['case']} ({SEE_IT})" if details["case"] else ""),
        ("largest difference", percent(difference) if difference else ""),
        ("for example", details["example"]),
        ("likely cause", verdict.cause),
        ("hint", details["hint"]),
        ("read again", where(details["lecture"])),
    ]
    return [(label, text) for label, text in pairs if text]


SEE_IT = "a print inside your function shows what it is given"


def headline(verdict: Verdict) -> str:
    state = "passed" if verdict.passed else "not yet"
    unit = "point" if verdict.max_points == 1 else "points"
    points = f"{verdict.points:g} of {verdict.max_points:g} {unit}"
    return f"{verdict.details['question']}: {state}, {points} on the visible inputs"


def as_text(verdict: Verdict) -> str:
    """The verdict as plain text."""
    mark = "✓" if verdict.passed else "✗"
    lines = [f"{mark} {headline(verdict)}"]
    lines += [f"  {label}: {text}" for label, text in findings(verdict)]
    return "\n".join(lines)


def as_html(verdict: Verdict) -> str:
    """The verdict as an HTML table; every text in it is escaped."""
    colour = "#009E73" if verdict.passed else "#D55E00"
    cell = "padding:2px 12px 2px 0;text-align:left;vertical-align:top;"
    facts = "".join(
        f'<tr style="background:none"><th scope="row" style="{cell}white-space:nowrap;'
        f'font-weight:600">{html.escape(label)}</th>'
        f'<td style="{cell}max-width:44em">{_linked(label, text)}</td></tr>'
        for label, text in findings(verdict)
    )
    steps = " &nbsp; ".join(
        f'<span style="white-space:nowrap;opacity:{0.5 if mark == "·" else 1}">'
        f"{mark} {html.escape(label)}</span>"
        for mark, label in rows(verdict)
    )
    mark = "✓" if verdict.passed else "✗"
    return (
        f'<div style="border-left:5px solid {colour};padding:2px 0 4px 12px;margin:4px 0">'
        f'<div style="font-weight:700;margin-bottom:3px">'
        f'<span style="color:{colour}">{mark}</span> {html.escape(headline(verdict))}</div>'
        + (
            f'<table style="border:none;margin:0;border-collapse:collapse">{facts}</table>'
            if facts
            else ""
        )
        + f'<div style="margin-top:4px;font-size:90%">{steps}</div></div>'
    )


def _linked(label: str, text: str) -> str:
    """Escaped text; the lecture as a link that works from a homework's folder."""
    number = text.removeprefix("lecture ")[:2]
    if label != "read again" or number not in LECTURES:
        return html.escape(text)
    return f'<a href="../../lectures/{LECTURES[number]}.ipynb">{html.escape(text)}</a>'
