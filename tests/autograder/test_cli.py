"""The command line: exit codes, messages, help."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from autograder import doctor
from autograder.__main__ import main
from autograder.catalogue_report import chosen, report
from autograder.examples.make import POINTS
from autograder.grade import checked_release
from autograder.notebooks import HomeworkError
from autograder.questions import QUESTIONS
from autograder.secret import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
HOMEWORK = "hw1_policy_gradient"
EXAMPLES = ROOT / "autograder/examples" / HOMEWORK
COMMANDS = ("check", "status", "grade", "release", "catalogue", "doctor")


def test_help_names_every_command():
    done = subprocess.run(
        [sys.executable, "-m", "autograder", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert all(command in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
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
        (["grade", HOMEWORK, ".", "--due", ""], "deadline is empty"),
        (["release", "--bundle", HOMEWORK], "no name of a zip file"),
        (["release", "--bundle", "no/folder/course.zip"], "there is no folder no/folder"),
        (["release", "hw9"], HOMEWORK),
        (["doctor", "hw9"], HOMEWORK),
        (["check", "no/such/file.ipynb"], "is not a file"),
        (["status", "no/such/folder"], "does not exist"),
        (["catalogue", "hw1/nothing"], "hw1/leave_one_out"),
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
    folder = str(tmp_path / "submissions")
    assert main(["grade", HOMEWORK, folder, "--jobs", "1", "--not-isolated"]) == 0
    printed = capsys.readouterr()
    assert "2/2" in printed.err
    pages = (f"feedback/chen/{HOMEWORK}.html", f"class/{HOMEWORK}.html")
    for name in ("grades.csv", "gradebook.db", *pages):
        assert (tmp_path / name).exists()
    assert sorted(p.name for p in (tmp_path / "submissions").iterdir()) == ["chen", "emil"]


def test_check_passes_a_right_notebook(capsys):
    assert main(["check", str(EXAMPLES / "ada" / HOMEWORK / f"{HOMEWORK}.ipynb")]) == 0
    assert "8 of 8 answers pass" in capsys.readouterr().out


def test_check_names_what_is_wrong(capsys):
    assert main(["check", str(EXAMPLES / "ben" / f"{HOMEWORK}.ipynb")]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "divided by G instead of by G-1" in printed
    assert "Hint:" in printed


def test_check_finds_missing_and_duplicated_cells(capsys):
    assert main(["check", str(EXAMPLES / "gus.ipynb")]) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "The cell for optimal_baseline is missing" in printed
    assert "2 cells for group_centered" in printed


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import os\nos._exit(0)", "position 3 ended the Python process"),
        ("import ctypes\nctypes.string_at(0)", "(SIGSEGV)"),
        ("print(1 / 0)\nraise SystemExit", ""),
    ],
)
def test_an_own_cell_that_ends_everything_costs_no_answer(source, words, tmp_path, capsys):
    notebook = json.loads((EXAMPLES / "ada" / HOMEWORK / f"{HOMEWORK}.ipynb").read_text("utf-8"))
    own = {"cell_type": "code", "id": "own", "metadata": {}, "source": source, "outputs": []}
    notebook["cells"].insert(2, own)
    (tmp_path / "hw1.ipynb").write_text(json.dumps(notebook))
    main(["check", str(tmp_path / "hw1.ipynb")])
    printed = " ".join(capsys.readouterr().out.split())
    assert "8 of 8 answers pass" in printed
    assert words in printed


def test_check_of_what_is_no_notebook_says_what_it_is(tmp_path, capsys):
    path = tmp_path / "download.ipynb"
    path.write_text("<!doctype html><html><body>Please log in</body></html>")
    assert main(["check", str(path)]) == 2
    assert "a web page, not a notebook" in capsys.readouterr().err


def test_check_of_the_untouched_release(capsys):
    assert main(["check", str(ROOT / "homework" / HOMEWORK / f"{HOMEWORK}.ipynb")]) == 1
    assert "0 of 8 answers pass" in capsys.readouterr().out


def test_check_of_a_foreign_notebook(tmp_path, capsys):
    path = tmp_path / "recipes.ipynb"
    path.write_text(json.dumps({"cells": []}))
    assert main(["check", str(path)]) == 2
    assert "none of the homeworks" in capsys.readouterr().err


def worked_on(path, *, write=(), run=()):
    """Ada's notebook with some written answers and some cells run."""
    notebook = json.loads((EXAMPLES / "ada" / HOMEWORK / f"{HOMEWORK}.ipynb").read_text("utf-8"))
    for cell in notebook["cells"]:
        if cell["id"] in write:
            cell["source"] = "My answer."
        if cell["id"] in run:
            cell["execution_count"] = 3
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook))


def test_status_of_a_folder(tmp_path, capsys):
    work = tmp_path / HOMEWORK / f"{HOMEWORK}.ipynb"
    worked_on(work, write=["q1-reflection", "q2-reflection"], run=["experiment-run"])
    (tmp_path / "recipes.ipynb").write_text(json.dumps({"cells": []}))
    before = work.read_bytes()
    assert main(["status", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"{HOMEWORK}  20/20   8 of 8    2 of 8   1 of 4" in out
    assert "write q3_reflection and 5 more" in out
    assert max(map(len, out.splitlines())) <= 80
    assert work.read_bytes() == before


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("ben", "Next, hw1_policy_gradient: reinforce. The minus sign is missing"),
        ("fay", "Next, hw1_policy_gradient: The file is damaged"),
        ("gus.ipynb", "Next, hw1_policy_gradient: optimal_baseline. The cell for"),
    ],
)
def test_status_says_what_to_do_next(file, words, capsys):
    path = EXAMPLES / file
    path = path if path.is_file() else next(path.rglob("*.ipynb"))
    assert main(["status", str(path)]) == 0
    assert words in " ".join(capsys.readouterr().out.split())


def test_status_of_the_release_and_of_a_finished_homework(tmp_path, capsys):
    release = ROOT / "homework" / HOMEWORK / f"{HOMEWORK}.ipynb"
    ids = [c["id"] for c in json.loads(release.read_text("utf-8"))["cells"]]
    worked_on(tmp_path / f"{HOMEWORK}.ipynb", write=[i for i in ids if "reflection" in i], run=ids)
    assert main(["status", str(tmp_path)]) == 0
    assert "Everything is done" in capsys.readouterr().out
    shutil.copy(release, tmp_path / f"{HOMEWORK}.ipynb")
    assert main(["status", str(tmp_path)]) == 0
    assert "not begun" in capsys.readouterr().out


def row(mistakes=10, killed=10, named=10, pairs=20, pairs_named=20, wrong=0, confusable=()):
    return SimpleNamespace(
        mistakes=mistakes, killed=killed, named=named, pairs=pairs, pairs_named=pairs_named,
        pairs_wrongly_named=wrong, excluded=5, confusable=confusable,
        problems=("twice is called half",),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({}, "Every mistake loses points"),
        ({}, "Of 25 pairs of mistakes 5 (20%) are excluded"),
        ({"confusable": [{"b", "a"}]}, "a = b"),
        ({"killed": 9}, "1 mistake(s) lose no point"),
        ({"named": 9}, "fewer than 95% of the mistakes"),
        ({"pairs_named": 13}, "fewer than 70% of the pairs"),
        ({"wrong": 1}, "1 pair(s) are called something else"),
    ],
)
def test_the_catalogue_fails_below_its_bars(numbers, words, capsys):
    exit_code = report(["hw1/leave_one_out"], lambda name: row(**numbers))
    out = capsys.readouterr().out
    assert words in out
    assert ("twice is called half" in out) == bool(exit_code)
    assert exit_code == ("Below the bars" in out) == (not {*numbers} <= {"confusable"})


def test_the_catalogue_takes_ids_and_homeworks():
    assert chosen(["hw1/reinforce", "hw1/reinforce"]) == ["hw1/reinforce"]
    assert len(chosen(["hw1"])) == len(chosen([HOMEWORK])) == 8
    assert set(chosen(["hw1"])) <= set(chosen([]))
    with pytest.raises(HomeworkError, match="hw1/leave_one_out"):
        chosen(["hw1/nothing"])


@pytest.fixture
def no_key(tmp_path, monkeypatch):
    """A place for a grading key where there is none."""
    monkeypatch.setenv(VARIABLE, str(tmp_path / "key"))
    return tmp_path / "key"


def test_doctor_is_content_and_changes_nothing(no_key, capsys, monkeypatch, tmp_path):
    few = {student: POINTS[student] for student in ("ada", "emil")}  # all: test_grade_class.py
    for student in few:
        shutil.copytree(EXAMPLES / student, tmp_path / "class" / student)
    monkeypatch.setattr(doctor.examples, "TARGET", tmp_path / "class")
    monkeypatch.setattr(doctor.examples, "POINTS", few)
    assert main(["doctor", HOMEWORK]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for words in (
        "homework/ is byte for byte what solutions/ gives",
        "released twice, the same bytes",
        "the solution gets full marks (20 of 20)",
        "the release gets no marks (0 of 20)",
        "references get full marks",
        "places that verdicts refer to exist",
        "the 2 example submissions get the points",
        "no grading key yet",
    ):
        assert words in printed
    assert not no_key.exists()


def test_doctor_says_whether_answers_are_isolated(no_key, monkeypatch):
    monkeypatch.setattr(doctor, "nbgrader_source", lambda: "solutions")  # takes seconds
    monkeypatch.setattr(doctor, "isolation", lambda: "no namespaces")
    states = dict(map(reversed, doctor.general(ROOT)))
    assert states["no namespaces. " + doctor.NOT_ISOLATED] == doctor.WARNING
    monkeypatch.setattr(doctor, "isolation", lambda: "")
    assert doctor.WARNING not in dict(doctor.general(ROOT))


def test_doctor_sees_a_key_that_others_can_read(no_key):
    no_key.write_bytes(b"k" * 32)
    no_key.chmod(0o644)
    assert doctor.grading_key(ROOT)[0] == doctor.FAILURE
    no_key.chmod(0o600)
    assert doctor.grading_key(ROOT)[0] == doctor.OK
    assert doctor.grading_key(no_key.parent)[0] == doctor.FAILURE  # inside the course


def test_doctor_sees_a_reference_to_nowhere_and_a_wrong_judge():
    right = QUESTIONS["hw1/reinforce"]
    release = checked_release(HOMEWORK)
    assert doctor._references([right], release, ROOT)[0] == doctor.OK
    for lecture in ("01, [PG-99]", "99, [PG-6]", "the statement, [NO-1]"):
        lost = replace(right, lecture=lecture)
        assert doctor._references([lost], release, ROOT)[0] == doctor.FAILURE
    wrong = replace(right, reference=lambda logp, advantages: logp)
    assert doctor._judge([right])[0] == doctor.OK
    assert doctor._judge([wrong])[0] == doctor.FAILURE


def test_the_readme_says_what_the_examples_get():
    readme = (ROOT / "autograder/README.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (\w+) \|.*\| (\d+) \|$", readme, re.M))
    assert rows == {student: str(points) for student, points in POINTS.items()}
