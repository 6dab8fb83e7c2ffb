"""Calls a learner's function in another process, and brings back plain data.

`Sandbox` owns one worker process (`autograder.worker`). It sends cells and inputs and receives
outcomes in the format of `autograder.wire`; whatever a worker sends is parsed as foreign data.
A worker has CPU, memory, file and process limits, a wall-clock limit, a clean environment and an
empty working folder. It is NOT isolated from the file system and the network: see ISOLATION.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

from autograder import wire
from autograder.cases import Case, Outcome

ISOLATION = (
    "NOT ISOLATED: learners' code runs in child processes with time and memory limits, but it "
    "can read files and use the network as you can. Grade code you trust, or run this in a "
    "container."
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
    """One cell to run: a unique key, its source, and whether it is an answer."""

    key: str
    source: str


@dataclass(frozen=True)
class Run:
    """What came of one question.

    outcomes : one per case, or None where there is none.
    problem : why there are none, in words for the learner; "" where there are.
    slow_cell : key of the cell that used up the time before the function was called; "" if none.
    errors : per cell key the first error while running it.
    """

    outcomes: list[Outcome] | None
    problem: str = ""
    slow_cell: str = ""
    errors: dict[str, str] | None = None


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
        self._process = None
        self._folder = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """End the worker and whatever it is running."""
        if self._process is not None:
            self._process.stdin.close()  # the worker ends when its input does
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def run(self, cells: list[Cell], answer: str, function: str, cases) -> Run:
        """Run `cells` in order, take `function` as it stands after the cell `answer`, collect.

        cases : from `encode_cases`.
        Raises WorkerError when the worker itself breaks (after one retry with a fresh one).
        """
        job = {
            "cells": [asdict(cell) for cell in cells],
            "answer": answer,
            "function": function,
            "cases": cases,
            "limits": asdict(self.limits),
        }
        line = json.dumps(job).encode() + b"\n"
        try:
            reply = self._ask(line)
        except (OSError, ValueError):
            self.close()
            try:
                reply = self._ask(line)
            except (OSError, ValueError) as error:
                self.close()
                raise WorkerError(f"the process that runs answers ended: {error}") from error
        return self._read(reply)

    def _ask(self, line):
        if self._process is None:
            self._start()
        self._process.stdin.write(line)
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise ValueError(f"no reply (exit code {self._process.poll()})")
        return json.loads(answer)

    def _start(self):
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="autograder-")
        environment = {
            "PATH": os.defpath,
            "HOME": self._folder.name,
            "TMPDIR": self._folder.name,
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._folder.name,
            env=environment,
            start_new_session=True,
        )

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
        ending = reply["ending"]
        if ending in ("cpu", "wall"):
            seconds = getattr(self.limits, f"{ending}_seconds")
            return Run(None, f"took longer than {seconds} seconds", running, errors)
        if ending == "size":
            return Run(None, "returned more data than any right answer could", running, errors)
        if ending != "done":
            problem = f"ended the Python process ({ending.removeprefix('died ')})"
            return Run(None, problem, running, errors)
        if outcomes is not None:
            return Run(outcomes, errors=errors)
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
