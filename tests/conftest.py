"""Shared test settings: one torch thread (faster for tiny models), CI strictness for skips."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

PATIENCE_MS = 60_000  # for a browser: a busy machine is slow, not broken


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


@pytest.fixture(scope="module")
def chromium(missing):
    """A browser for tests marked `browser`; its path may stand in CHROMIUM."""
    path = (
        os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    )
    if path is None:
        missing("chromium", "apt install chromium, or put a browser's path into CHROMIUM")
    try:
        from playwright import sync_api
    except ImportError:
        missing("playwright", "pip install playwright")
    sync_api.expect.set_options(timeout=PATIENCE_MS)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium):
    """A page that fails its test on any error it reports."""
    page = chromium.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(PATIENCE_MS)
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    yield page
    page.close()
    assert not errors


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
