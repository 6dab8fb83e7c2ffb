"""Calls a learner's function in another process, and brings back plain data.

`Sandbox` owns one worker process (`autograder.worker`). Per question it hands over a file with
cells and inputs in the format of `autograder.wire`, and reads what the fork reports, as foreign
data: never more than a set size, nothing but the expected fields, no pickle.

Isolated (Linux), the code runs in namespaces of its own (`autograder.isolation`): it sees Python,
torch and einops, an empty folder and no other process, file or network. Not isolated, it runs in
child processes with limits on CPU time, memory, files and processes: see NOT_ISOLATED.

What isolation cannot do: inside its process, an answer can replace the code that calls it. It may
then report any outcome it likes, but values and gradients are judged by their numbers, on inputs
it cannot know before. What is no number can be hidden: that inputs were modified (copying them
first is easier), and whether a value was computed by the function or beside it.
"""

import contextlib
import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch

from autograder import wire
from autograder.cases import Case, Outcome
from autograder.discover import printable

NOT_ISOLATED = (
    "NOT ISOLATED: answers run in child processes with time and memory limits, but they can read "
    "your files and use your network. Grade people you trust, or run this in a container."
)


@dataclass(frozen=True)
class Limits:
    """What one question may use. CPU is strict; wall time is generous, for busy machines."""

    cpu_seconds: int = 5
    wall_seconds: int = 30
    memory_mb: int = 2048  # on top of what torch itself takes
    file_mb: int = 16  # one file; isolated also all files together
    processes: int = 64  # isolated: threads, there are no other processes
    open_files: int = 64
    reply_mb: int = 16


@dataclass(frozen=True)
class Cell:
    """One cell to run: a key, unique among the cells, and its source."""

    key: str
    source: str


@dataclass(frozen=True)
class Run:
    """What came of one question.

    outcomes : one per case, or None where there is none.
    problem : why there are none, in words for the learner; "" where there are.
    slow : it was the time limit.
    slow_cell : key of the cell that used up the time, or ended the process, before the function was
        called; "" if none.
    errors : per cell key the first error while running it.
    said : what its process said about the problem. Like `errors` it is foreign text, in which
        anything may be hidden, also an input; it is printable, and short.
    """

    outcomes: list[Outcome] | None
    problem: str = ""
    slow: bool = False
    slow_cell: str = ""
    errors: dict[str, str] = field(default_factory=dict)
    said: str = ""


class WorkerError(RuntimeError):
    """The worker itself broke: our error, not the learner's."""


def available() -> str:
    """Empty when answers can be run on this system, else the reason why not."""
    if not hasattr(os, "fork"):
        return (
            "this command needs fork (Linux, macOS, or WSL on Windows); inside a notebook, "
            "check(...) works on every system"
        )
    return ""


def encode_cases(cases: list[Case]):
    """Cases in the wire format, ready for `Sandbox.run`."""
    return wire.encode([{f.name: getattr(case, f.name) for f in fields(Case)} for case in cases])


@functools.cache
def isolation() -> str:
    """Empty when answers can be isolated on this system, else the reason; found by trying."""
    if not sys.platform.startswith("linux"):
        return f"isolation needs Linux, this is {sys.platform}"
    try:
        with Sandbox(isolated=None) as sandbox:
            sandbox._start(only_try=True)
    except (OSError, WorkerError) as error:
        return (
            f"answers cannot be isolated here ({error}); it takes Linux 5.12 or newer on x86_64 or "
            "aarch64, where this user may make user namespaces"
        )
    return ""


class Sandbox:
    """One worker process; use as a context manager. Not shared between threads.

    isolated : False runs answers in child processes with limits only. Raises WorkerError with the
        reason where isolation is wanted and cannot be had. (None is for `isolation` itself.)
    """

    def __init__(self, limits: Limits | None = None, isolated: bool | None = True):
        if isolated and (reason := isolation()):
            raise WorkerError(reason)
        self.limits = limits or Limits()
        self.isolated = isolated is not False
        self._folder = tempfile.TemporaryDirectory(prefix="autograder-", ignore_cleanup_errors=True)
        self._process = None
        self._control = None
        self._closed = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """End the worker and whatever it is running; may be called from another thread."""
        self._closed = True
        self._stop()
        self._folder.cleanup()

    def _stop(self):
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # the worker ends when its socket does
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._control.close()

    def run(self, cells: list[Cell], answer: str, function: str, cases) -> Run:
        """Run `cells` in order, take `function` as it stands after the cell `answer`, collect.

        cases : from `encode_cases`.
        A worker that dies is replaced once; if it dies again, that was the learner's code. Raises
        WorkerError when no worker can be started, or when it cannot isolate a question.
        """
        job = {
            "cells": [asdict(cell) for cell in cells],
            "answer": answer,
            "function": function,
            "cases": cases,
        }
        data = json.dumps(job).encode()
        for _ in range(2):
            if self._closed:
                raise WorkerError("grading was stopped")
            try:
                if self._process is None:
                    self._start()
                return self._read(*self._ask(data), {cell.key for cell in cells}, len(cases))
            except (OSError, ValueError):
                self._stop()
        return Run(None, "ended the process that runs answers")

    def _ask(self, data) -> tuple[bytes, str]:
        """What the fork reported, and how it ended: done, cpu, wall, size or a signal's name."""
        reader, writer = os.pipe()
        try:
            with tempfile.TemporaryFile(dir=self._folder.name) as job:
                job.write(data)
                job.flush()
                job.seek(0)
                socket.send_fds(self._control, [b"run"], [job.fileno(), writer])
        finally:
            os.close(writer)
            report, ending = listen(reader, self.limits)
        self._control.sendall(b"end")
        end = json.loads(self._hear())
        if ending != "done":
            return report, ending
        if not report.startswith(b'{"event": "begin"}\n') and not self._closed:
            raise WorkerError(f"a question could not be shut in: {self._last_words()}")
        if not os.WIFSIGNALED(end["status"]):
            return report, "done"
        number = os.WTERMSIG(end["status"])
        # The kernel counts ticks towards the limit, and exact time here.
        if number == signal.SIGKILL and end["cpu_seconds"] >= 0.7 * self.limits.cpu_seconds:
            return report, "cpu"
        return report, signal.Signals(number).name

    def _hear(self) -> bytes:
        """One line from the worker. Raises OSError when it is gone or says nothing for long."""
        line = b""
        while not line.endswith(b"\n"):
            part = self._control.recv(4096)
            if not part:
                raise ConnectionError("the worker is gone")
            line += part
        return line

    def _start(self, only_try=False):
        Path(self._folder.name).mkdir(exist_ok=True)  # an answer may have removed it
        root = Path(self._folder.name, "root")
        if self.isolated:
            root.mkdir(exist_ok=True)
        home = "/answer" if self.isolated else self._folder.name
        environment = {
            "PATH": os.defpath,
            "HOME": home,
            "TMPDIR": home,
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        settings = {
            "limits": asdict(self.limits),
            "packages": package_folders(),
            "root": str(root) if self.isolated else None,
            "only_try": only_try,
        }
        self._control, theirs = socket.socketpair()
        self._control.settimeout(120)
        file = Path(__file__).with_name("worker.py")
        with self._log.open("wb") as log, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", file, str(theirs.fileno()), json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=[theirs.fileno()],
                cwd=self._folder.name,
                env=environment,
                start_new_session=True,
            )
        with contextlib.suppress(OSError):
            if self._hear() == b"ready\n":
                return
        reason = self._last_words()
        raise WorkerError(reason if only_try else f"no process to run answers in: {reason}")

    @property
    def _log(self) -> Path:
        return Path(self._folder.name) / "worker.log"

    def _last_words(self) -> str:
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _read(self, report: bytes, ending: str, keys: set[str], calls: int) -> Run:
        """Make sense of events that a learner's process wrote."""
        errors, running, found, called, outcomes = {}, "", None, False, None
        stopped, said = "ended the Python process", ""
        # An honest process reports two events per cell and three more.
        for line in report.split(b"\n", 2 * len(keys) + 8)[: 2 * len(keys) + 8]:
            event = parsed(line)
            kind, cell, error = (event.get(name) for name in ("event", "cell", "error"))
            error = printable(error[:400]) if isinstance(error, str) else ""
            known = isinstance(cell, str) and cell in keys
            if kind == "start" and known:
                running = cell
            elif kind == "ran" and known:
                running = ""
                if error:
                    errors[cell] = error
            elif kind == "function":
                found, called = event.get("found") is True, event.get("callable") is True
            elif kind == "stopped":
                unsent = error.startswith(UNSENT)
                stopped = f"stopped: {UNSENT}" if unsent else "stopped with an exception"
                said = error
            elif kind == "outcomes":
                try:
                    outcomes = read_outcomes(event.get("outcomes"), calls)
                except wire.WireError as problem:
                    stopped = "returned something that cannot be read"
                    said = printable(problem)[:400]
        if outcomes is not None:  # the answer is there; what went on afterwards does not matter
            return Run(outcomes, errors=errors)
        if ending in ("cpu", "wall"):
            seconds = getattr(self.limits, f"{ending}_seconds")
            return Run(None, f"took longer than {seconds} seconds", True, running, errors)
        if ending == "size":
            return Run(None, "returned more data than any right answer could", errors=errors)
        if ending != "done":
            problem = f"ended the Python process ({ending})"
            return Run(None, problem, slow_cell=running, errors=errors)
        if running:
            return Run(None, "ended the Python process", slow_cell=running, errors=errors)
        if found is False:
            return Run(None, "is not defined after its cell has run", errors=errors)
        if not called and found:
            return Run(None, "is not a function", errors=errors)
        return Run(None, stopped, errors=errors, said=said)


def package_folders() -> list[str]:
    """The folders with installed packages: what a worker may import from."""
    return [
        path
        for path in dict.fromkeys(sys.path)
        if Path(path).name in ("site-packages", "dist-packages") and Path(path).is_dir()
    ]


def listen(reader: int, limits: Limits) -> tuple[bytes, str]:
    """Read until the other end is closed, the time is up, or it is too much; close `reader`."""
    deadline = time.monotonic() + limits.wall_seconds
    data = bytearray()
    with open(reader, "rb", buffering=0) as pipe, selectors.DefaultSelector() as ready:
        ready.register(pipe, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if ready.select(left):
                chunk = pipe.read(2**16)
                if not chunk:
                    return bytes(data), "done"
                data += chunk
                if len(data) > limits.reply_mb * 2**20:
                    return b"", "size"
    return bytes(data), "wall"


def parsed(line: bytes) -> dict:
    """One event, or nothing."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


UNSENT = "the returned value cannot be sent"  # as autograder.worker says it

OUTCOME_TYPES = {
    "value": lambda v: v is None or isinstance(v, torch.Tensor),
    "kind": lambda v: isinstance(v, str) and len(v) <= 200,
    "gradients": lambda v: (
        isinstance(v, tuple) and all(g is None or isinstance(g, torch.Tensor) for g in v)
    ),
    "modified": lambda v: isinstance(v, tuple) and all(type(i) is int for i in v),
    "error": lambda v: isinstance(v, str) and len(v) <= 2000,
}


def read_outcomes(message, calls: int) -> list[Outcome]:
    """One outcome per call, its texts printable and each modified input named once.

    Raises WireError unless every field is there with its type.
    """
    if not isinstance(message, list) or len(message) != calls:
        raise wire.WireError("expected one outcome per call")
    items = wire.decode(message)
    for item in items:
        if not isinstance(item, dict) or set(item) != set(OUTCOME_TYPES):
            raise wire.WireError("an outcome has other fields than expected")
        for name, fits in OUTCOME_TYPES.items():
            if not fits(item[name]):
                raise wire.WireError(f"an outcome's {name} has the wrong type")
    return [
        Outcome(
            value=item["value"],
            kind=printable(item["kind"]),
            gradients=item["gradients"],
            modified=tuple(sorted(set(item["modified"]))),
            error=printable(item["error"]),
        )
        for item in items
    ]
