"""Shared test settings: one torch thread (faster for tiny models), CI strictness for skips."""

import os

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
