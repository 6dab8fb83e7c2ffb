"""Setting up ends well or in one clear sentence, and a second run does nothing."""

import importlib.util
import json
import re
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path

import pytest
from jupyter_core.paths import ENV_CONFIG_PATH
from jupyter_server.services.contents.largefilemanager import LargeFileManager
from traitlets.config import Config

from lectures.execute import WIDGET_VIEW, save_stills

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bootstrap(tmp_path, monkeypatch):
    """The module, pointed at an empty folder that looks like a clone."""
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in module.INPUTS:
        (tmp_path / name).write_text(f"{name}\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv/course-installed")
    monkeypatch.setattr(module, "LOG", tmp_path / ".venv/install.log")
    return module


def message(call) -> str:
    with pytest.raises(SystemExit) as stopped:
        call()
    text = str(stopped.value)
    assert "\n" not in text
    assert text.startswith("setup: ")
    return text


def test_an_old_python_is_named(bootstrap, monkeypatch):
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 10, 4))
    assert "Python 3.11 or newer" in message(bootstrap.main)


def test_a_missing_venv_module_is_named(bootstrap, monkeypatch):
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    assert "python3-venv" in message(bootstrap.main)


def test_a_full_disk_is_named_before_any_work(bootstrap, monkeypatch):
    usage = namedtuple("usage", "total used free")(10**12, 10**12, 10**9)
    monkeypatch.setattr(bootstrap.shutil, "disk_usage", lambda _: usage)
    assert "free disk" in message(bootstrap.main)
    assert not bootstrap.VENV.exists()


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        ("Failed to establish NewConnectionError: Network is unreachable", "network"),
        ("ERROR: No matching distribution found for torch==9.9", "No matching distribution"),
    ],
)
def test_a_failed_step_ends_in_its_cause(bootstrap, output, expected):
    bootstrap.VENV.mkdir()
    command = [sys.executable, "-c", f"print({output!r}); raise SystemExit(1)"]
    assert expected in message(lambda: bootstrap.run(command, "installing"))


def test_a_second_run_does_no_work(bootstrap, monkeypatch):
    bootstrap.VENV.mkdir()
    bootstrap.STAMP.write_text(bootstrap.fingerprint())
    monkeypatch.setattr(bootstrap, "run", lambda *_: pytest.fail("a second run did work"))
    bootstrap.main()


def test_changed_requirements_or_a_moved_folder_install_again(bootstrap, tmp_path, monkeypatch):
    before = bootstrap.fingerprint()
    (tmp_path / "requirements.txt").write_text("torch==0\n")
    changed = bootstrap.fingerprint()
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in bootstrap.INPUTS:
        (moved / name).write_text((tmp_path / name).read_text())
    monkeypatch.setattr(bootstrap, "ROOT", moved)
    assert len({before, changed, bootstrap.fingerprint()}) == 3


def test_a_second_environment_has_a_stamp_of_its_own(bootstrap, tmp_path, monkeypatch):
    did = []
    monkeypatch.setattr(bootstrap, "run", lambda command, doing, log: did.append(doing))
    other, inputs = tmp_path / ".venv-other", ("pins.txt",)
    (tmp_path / "pins.txt").write_text("x==1\n")
    for _ in range(2):
        bootstrap.install(other, inputs, [("installing x", ["-r", "pins.txt"])])
    assert did == ["creating .venv-other", "installing x"]
    (tmp_path / "pins.txt").write_text("x==2\n")
    bootstrap.install(other, inputs, [("installing x", ["-r", "pins.txt"])])
    assert did[2:][-1] == "installing x"
    assert not bootstrap.STAMP.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fcntl")
def test_a_second_setup_waits_for_the_first(bootstrap, tmp_path, monkeypatch, capfd):
    did = []
    monkeypatch.setattr(bootstrap, "run", lambda command, doing, log: did.append(doing))
    (tmp_path / "pins.txt").write_text("x==1\n")
    arguments = tmp_path / ".venv-other", ("pins.txt",), [("installing x", [])]
    second = threading.Thread(target=bootstrap.install, args=arguments)
    with bootstrap.alone():
        second.start()
        second.join(0.5)
        assert second.is_alive()
        assert not did
        arguments[0].mkdir()
        (arguments[0] / bootstrap.STAMP.name).write_text(bootstrap.fingerprint(("pins.txt",)))
    second.join(30)
    assert (second.is_alive(), did) == (False, [])  # the first one did it all
    assert capfd.readouterr().out == "setup: waiting for another setup of this folder to end ...\n"


@pytest.mark.skipif(sys.platform == "win32", reason="make is not part of Windows")
def test_make_help_lists_the_commands():
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    targets = re.search(r"^\.PHONY: help (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert "lab" in targets
    for target in targets.split():
        assert f"make {target}" in shown.stdout


def test_every_jupyterlab_of_the_environment_saves_widgets_as_stills(bootstrap):
    """However it is started: by make, by hand, by an editor that uses this environment's server."""
    bootstrap.write_settings()
    (read,) = bootstrap.VENV.glob(
        "etc/jupyter/jupyter_server_config.json"
    )  # sys.prefix/etc/jupyter
    assert str(Path(sys.prefix) / read.parent.relative_to(bootstrap.VENV)) in ENV_CONFIG_PATH
    manager = LargeFileManager(config=Config(json.loads(read.read_text())))
    assert manager.pre_save_hook is save_stills
    output = {"data": {"image/png": "", WIDGET_VIEW: {}}}
    model = {"type": "notebook", "content": {"cells": [{"outputs": [output]}]}}
    manager.run_pre_save_hooks(model=model, path="lecture.ipynb")
    assert list(output["data"]) == ["image/png"]
