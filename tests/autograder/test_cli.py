"""The command line: exit codes, messages, help."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autograder.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
HOMEWORK = "hw1_policy_gradient"
EXAMPLES = ROOT / "autograder/examples" / HOMEWORK


def test_help_names_every_command():
    done = subprocess.run(
        [sys.executable, "-m", "autograder", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert all(command in done.stdout for command in ("check", "grade", "release", "doctor"))


@pytest.mark.parametrize("command", ["check", "grade", "release", "doctor"])
def test_every_command_has_help(command, capsys):
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert "usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["grade", "hw9"], f"there are: {HOMEWORK}"),
        (["grade", HOMEWORK, "no/such/folder"], "is not a folder"),
        (["grade", HOMEWORK, ".", "--jobs", "0"], "--jobs"),
        (["release", "hw9"], HOMEWORK),
        (["doctor", "hw9"], HOMEWORK),
        (["check", "no/such/file.ipynb"], "is not a file"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(arguments, words, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_a_python_without_the_packages_says_so_in_one_sentence():
    """-S -I: no site-packages, as with a Python outside the environment."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import runpy; "
    code += (
        "sys.argv = ['autograder', 'doctor']; runpy.run_module('autograder', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-S", "-I", "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert "torch is not installed" in done.stderr
    assert ".venv/bin/python" in done.stderr
    assert "Traceback" not in done.stderr


def test_grade_writes_beside_the_folder_and_exits_with_0(tmp_path, capsys):
    for student in ("chen", "emil"):
        shutil.copytree(EXAMPLES / student, tmp_path / "submissions" / student)
    assert main(["grade", HOMEWORK, str(tmp_path / "submissions"), "--jobs", "1"]) == 0
    printed = capsys.readouterr()
    assert "2/2" in printed.err
    for name in ("grades.csv", "gradebook.db", f"feedback/chen/{HOMEWORK}.html"):
        assert (tmp_path / name).exists()
    assert sorted(p.name for p in (tmp_path / "submissions").iterdir()) == ["chen", "emil"]


def test_check_passes_a_right_notebook(capsys):
    assert main(["check", str(EXAMPLES / "ada" / HOMEWORK / f"{HOMEWORK}.ipynb")]) == 0
    assert "8 of 8 answers pass" in capsys.readouterr().out


def test_check_names_what_is_wrong(capsys):
    assert main(["check", str(EXAMPLES / "ben" / f"{HOMEWORK}.ipynb")]) == 1
    printed = capsys.readouterr().out
    assert "divided by G instead of by G-1" in printed
    assert "Hint:" in printed


def test_check_finds_missing_and_duplicated_cells(capsys):
    assert main(["check", str(EXAMPLES / "gus.ipynb")]) == 1
    printed = capsys.readouterr().out
    assert "The cell for optimal_baseline is missing" in printed
    assert "2 cells for group_centered" in printed


def test_check_of_the_untouched_release(capsys):
    assert main(["check", str(ROOT / "homework" / HOMEWORK / f"{HOMEWORK}.ipynb")]) == 1
    assert "0 of 8 answers pass" in capsys.readouterr().out


def test_check_of_a_foreign_notebook(tmp_path, capsys):
    path = tmp_path / "recipes.ipynb"
    path.write_text(json.dumps({"cells": []}))
    assert main(["check", str(path)]) == 2
    assert "none of the homeworks" in capsys.readouterr().err


def test_doctor_is_content(capsys):
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "the solution gets full marks (20 of 20)" in printed
    assert "the release gets no marks (0 of 20)" in printed
    assert "NOT ISOLATED" in printed.replace("\n", " ")
