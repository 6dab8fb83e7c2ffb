"""Calls a learner's function in another process, and brings back plain data.

`Sandbox` owns one worker process (`autograder.worker`). It sends cells and inputs and receives
outcomes in the format of `autograder.wire`; whatever a worker sends is parsed as foreign data.
A worker has CPU, memory, file and process limits, a wall-clock limit, a clean environment and an
empty working folder. It is NOT isolated from the file system and the network: see ISOLATION.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

import torch

from autograder import wire
from autograder.cases import Case, Outcome

ISOLATION = (
    "NOT ISOLATED: answers run in child processes with time and memory limits, but they can read "
    "your files and use your network. Grade people you trust, or run this in a container."
)


@dataclass(frozen=True)
class Limits:
    """What one question may use. CPU is strict; wall time is generous, for busy machines."""

    cpu_seconds: int = 5
    wall_seconds: int = 30
    memory_mb: int = 2048  # on top of what torch itself takes
    file_mb: int = 16
    processes: int = 64
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
    slow_cell : key of the cell that used up the time before the function was called; "" if none.
    errors : per cell key the first error while running it.
    """

    outcomes: list[Outcome] | None
    problem: str = ""
    slow: bool = False
    slow_cell: str = ""
    errors: dict[str, str] = field(default_factory=dict)


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


class Sandbox:
    """One worker process; use as a context manager. Not shared between threads."""

    def __init__(self, limits: Limits | None = None):
        self.limits = limits or Limits()
        self._folder = tempfile.TemporaryDirectory(prefix="autograder-")
        self._process = None
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
            process.stdin.close()  # the worker ends when its input does
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def run(self, cells: list[Cell], answer: str, function: str, cases) -> Run:
        """Run `cells` in order, take `function` as it stands after the cell `answer`, collect.

        cases : from `encode_cases`.
        A worker that dies is replaced once; if it dies again, that was the learner's code. Raises
        WorkerError when no worker can be started.
        """
        job = {
            "cells": [asdict(cell) for cell in cells],
            "answer": answer,
            "function": function,
            "cases": cases,
            "limits": asdict(self.limits),
        }
        line = json.dumps(job).encode() + b"\n"
        for _ in range(2):
            if self._closed:
                raise WorkerError("grading was stopped")
            if self._process is None:
                try:
                    self._start()
                except OSError as error:  # ours, not the learner's
                    raise WorkerError(f"no process to run answers in: {error}") from None
            try:
                return self._read(self._ask(line))
            except (OSError, ValueError):
                self._stop()
        return Run(None, "ended the process that runs answers")

    def _ask(self, line):
        self._process.stdin.write(line)
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise ValueError("the worker is gone")
        return json.loads(answer)

    def _start(self):
        Path(self._folder.name).mkdir(exist_ok=True)  # an answer may have removed it
        environment = {
            "PATH": os.defpath,
            "HOME": self._folder.name,
            "TMPDIR": self._folder.name,
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(Path(__file__).with_name("worker.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self._folder.name,
                env=environment,
                start_new_session=True,
            )
        if self._process.stdout.readline() != b"ready\n":
            raise WorkerError(f"no process to run answers in: {self._last_words()}")

    @property
    def _log(self) -> Path:
        return Path(self._folder.name) / "worker.log"

    def _last_words(self) -> str:
        lines = self._log.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _read(self, reply) -> Run:
        """Make sense of a reply whose events a learner's process wrote."""
        errors, running, found, called, stopped, outcomes = {}, "", None, False, "", None
        for line in reply["events"]:
            try:
                event = json.loads(line) if line else {}
            except (ValueError, RecursionError):
                continue
            if not isinstance(event, dict):
                continue
            kind, cell = event.get("event"), str(event.get("cell"))
            if kind == "start":
                running = cell
            elif kind == "ran":
                running = ""
                if event.get("error"):
                    errors[cell] = str(event["error"])[:400]
            elif kind == "function":
                found, called = event.get("found") is True, event.get("callable") is True
            elif kind == "stopped":
                stopped = f"stopped with {event.get('error')}"[:400]
            elif kind == "outcomes":
                try:
                    outcomes = read_outcomes(event.get("outcomes"))
                except wire.WireError as error:
                    stopped = f"returned something that cannot be read: {error}"
        if outcomes is not None:  # the answer is there; what went on afterwards does not matter
            return Run(outcomes, errors=errors)
        ending = reply["ending"]
        if ending in ("cpu", "wall"):
            seconds = getattr(self.limits, f"{ending}_seconds")
            return Run(None, f"took longer than {seconds} seconds", True, running, errors)
        if ending == "size":
            return Run(None, "returned more data than any right answer could", errors=errors)
        if ending != "done":
            problem = f"ended the Python process ({ending.removeprefix('died ')})"
            return Run(None, problem, errors=errors)
        if found is False:
            return Run(None, "is not defined after its cell has run", errors=errors)
        if not called and found:
            return Run(None, "is not a function", errors=errors)
        return Run(None, stopped or "ended the Python process", errors=errors)


OUTCOME_TYPES = {
    "value": lambda v: v is None or isinstance(v, torch.Tensor),
    "kind": lambda v: isinstance(v, str) and len(v) <= 200,
    "gradients": lambda v: (
        isinstance(v, tuple) and all(g is None or isinstance(g, torch.Tensor) for g in v)
    ),
    "modified": lambda v: isinstance(v, tuple) and all(type(i) is int for i in v),
    "error": lambda v: isinstance(v, str) and len(v) <= 2000,
}


def read_outcomes(message) -> list[Outcome]:
    """Outcomes from the wire. Raises WireError unless every field is there with its type."""
    items = wire.decode(message)
    if not isinstance(items, list):
        raise wire.WireError("expected a list of outcomes")
    for item in items:
        if not isinstance(item, dict) or set(item) != set(OUTCOME_TYPES):
            raise wire.WireError("an outcome has other fields than expected")
        for name, fits in OUTCOME_TYPES.items():
            if not fits(item[name]):
                raise wire.WireError(f"an outcome's {name} has the wrong type")
    return [Outcome(**item) for item in items]
