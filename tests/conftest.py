"""Shared test settings: one torch thread (faster for tiny models), CI strictness for skips."""

import os
import subprocess
from pathlib import Path

import pytest
import torch


def pytest_configure(config):
    torch.set_num_threads(1)


def missing(what: str, how: str) -> None:
    """Skip because `what` is not on this machine; in CI that is a failure instead."""
    message = f"{what} is not on this machine; {how}"
    if os.environ.get("CI"):
        pytest.fail(message + " (in CI a skip is a failure)")
    pytest.skip(message)


@pytest.fixture(name="missing", scope="session")
def missing_fixture():
    """The function above, for test files, which cannot import from here."""
    return missing


@pytest.fixture(scope="session")
def committed():
    """A function that skips a test of a notebook in which somebody is working right now.

    A learner answers in homework/ and saves lectures; that is no defect of the course. CI tests
    what is there, and so does `CI=true make test`.
    """

    def check(path: Path) -> None:
        command = ["git", "-C", str(path.parent), "diff", "--quiet", "HEAD", "--", path.name]
        try:
            changed = subprocess.run(command, capture_output=True).returncode == 1
        except FileNotFoundError:  # no git, as in a downloaded archive: take the file as it is
            return
        if changed and not os.environ.get("CI"):
            pytest.skip(f"{path.name} holds your own work; `CI=true make test` tests it as well")

    return check
