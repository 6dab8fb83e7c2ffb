"""A folder of submissions ends in right points, notes, feedback and gradebook, every time."""

import copy
import csv
import hashlib
import hmac
import html
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest

from autograder import gradebook, secret
from autograder.cases import collect
from autograder.discover import copy_number, discover, not_looked_at
from autograder.examples.make import make
from autograder.grade import Examiner, _fits, checked_release, disarmed
from autograder.grade import grade as grade_class
from autograder.judge import cases_for
from autograder.kept import Kept
from autograder.notebooks import HomeworkError, load_release
from autograder.questions import QUESTIONS
from autograder.sandbox import Limits, isolation
from autograder.summary import summary
from autograder.table import write_csv

ROOT = Path(__file__).resolve().parents[2]
HOMEWORK = "hw1_policy_gradient"
RELEASE = checked_release(HOMEWORK)
EXAMPLES = ROOT / "autograder/examples" / HOMEWORK
LIMITS = Limits(cpu_seconds=1, wall_seconds=20)

# What each example must end in: points, words of the note, words of the feedback page.
EXPECTED = {
    "ada": (20, "", ""),
    "ben": (12, "", "divided by G instead of by G-1"),
    "chen": (18, "syntax error in line 1", "The notebook was called hw1 (1).ipynb"),
    "dora": (17, "reward_to_go took longer than", "a loop that never ends"),
    "emil": (0, "No notebook hw1_policy_gradient.ipynb was handed in", "nothing to run"),
    "fay": (0, "not valid JSON", "opens in JupyterLab"),
    "gus": (17, "optimal_baseline is missing", "2 cells for group_centered"),
    "hana": (18, "uses policy_gradients", "torch, einops and the standard library"),
}


def grade(release, folder, output, **order):
    """Isolated where that can be had."""
    order = {"isolated": not isolation(), "limits": LIMITS} | order
    return grade_class(release, folder, output, **order)


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The examples, graded once."""
    output = tmp_path_factory.mktemp("class")
    results = grade(RELEASE, EXAMPLES, output, jobs=2)
    return output, results


def with_gradebook(graded, output):
    """An output folder with the gradebook of the examples; to make a new one takes seconds."""
    output.mkdir()
    shutil.copy(graded[0] / "gradebook.db", output)


def rows(output):
    with (output / "grades.csv").open(newline="", encoding="utf-8") as file:
        return {row["student"]: row for row in csv.DictReader(file)}


def page(output, student):
    return (output / "feedback" / student / f"{HOMEWORK}.html").read_text("utf-8")


def test_the_committed_examples_are_those_of_the_release(tmp_path, committed):
    committed(ROOT / "homework" / HOMEWORK / f"{HOMEWORK}.ipynb")
    make(tmp_path / "examples")
    fresh = {p.relative_to(tmp_path / "examples"): p for p in (tmp_path / "examples").rglob("*.*")}
    kept = {p.relative_to(EXAMPLES): p for p in EXAMPLES.rglob("*.*")}
    assert sorted(fresh) == sorted(kept)
    for name, path in fresh.items():
        assert path.read_bytes() == kept[name].read_bytes(), (
            f"{name} is old; run: python -m autograder.examples.make"
        )


@pytest.mark.parametrize("student", EXPECTED)
def test_each_example_ends_with_its_points_note_and_page(graded, student):
    output, results = graded
    points, note, words = EXPECTED[student]
    row = rows(output)[student]
    assert float(row["total"]) == points
    assert float(row["max"]) == 20
    assert sum(float(row[q.id]) for q in RELEASE.questions) == points
    assert note in row["note"]
    assert bool(note) == bool(row["note"])
    assert words in page(output, student)
    assert not next(r for r in results if r.student == student).error


def test_the_summary_names_everyone_and_says_when_nothing_was_isolated(graded):
    output, results = graded
    text = summary(RELEASE, results, output, isolated=False, cpu_seconds=4.0)
    assert all(student in text for student in EXPECTED)
    assert "8 in 4.0 CPU seconds, 0.50 per submission" in text
    assert "NOT ISOLATED" in text
    isolated = summary(RELEASE, results, output, isolated=True, cpu_seconds=4.0)
    assert "NOT ISOLATED" not in isolated


def test_pages_hold_no_numbers_of_inputs_and_no_source(graded):
    output, _ = graded
    for student in EXPECTED:
        text = page(output, student)
        assert "tensor(" not in text
        assert "rewards.sum" not in text
        assert "<script" not in text


def test_pages_name_lectures_that_exist_and_hold_no_link(graded):
    text = page(graded[0], "ben")
    assert "Lecture 02, baselines and advantages, equation BL-8" in text
    assert "<code>lectures/02_baselines_and_advantages.ipynb</code>" in text
    assert "href" not in text


def test_pages_show_no_expected_entry(graded):
    output, results = graded
    details = [m.details for r in results for m in r.marks]
    assert not any(d["example"] for d in details)
    assert not any("yours " in page(output, student) for student in EXPECTED)


def submission_with(folder, name, function, source):
    """One submission whose answer to one question is `source`."""
    notebook = copy.deepcopy(RELEASE.notebook)
    question = next(q for q in RELEASE.questions if q.function == function)
    notebook["cells"][question.answer]["source"] = source
    path = folder / name / f"{HOMEWORK}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(notebook), "utf-8")


def test_an_answer_that_clears_the_temporary_folder_costs_nobody_else(graded, tmp_path):
    source = (
        "import os, shutil, tempfile\n"
        "places = tempfile.gettempdir(), os.path.expanduser('~'), os.getcwd()\n"
        "for folder in places:\n"
        "    if 'answer-' in folder or 'autograder-' in folder:\n"
        "        shutil.rmtree(folder, ignore_errors=True)\n"
        "def batch_centered(rewards):\n    return rewards - rewards.mean()\n"
    )
    submission_with(tmp_path / "class", "a", "batch_centered", source)
    shutil.copytree(EXAMPLES / "ada", tmp_path / "class" / "b")
    with_gradebook(graded, tmp_path / "output")
    results = grade(RELEASE, tmp_path / "class", tmp_path / "output", jobs=1)
    assert [sum(m.points for m in r.marks) for r in results] == [1, 20]


def test_events_that_an_answer_invents_do_not_stop_the_batch(graded, tmp_path):
    source = (
        "import os\n"
        "def batch_centered(rewards):\n    return rewards\n"
        'os.write(3, b\'\\n{"event":"start","cell":"zzz"}\\n\')\n'
        "while True:\n    pass\n"
    )
    submission_with(tmp_path / "class", "a", "batch_centered", source)
    with_gradebook(graded, tmp_path / "output")
    (result,) = grade(RELEASE, tmp_path / "class", tmp_path / "output", jobs=1)
    assert not result.error
    assert result.marks[3].points == 0


def test_results_do_not_go_among_the_submissions(tmp_path):
    (tmp_path / "ada.ipynb").write_text("{}")
    with pytest.raises(HomeworkError, match="among the submissions"):
        grade(RELEASE, tmp_path, tmp_path)


def test_names_that_browsers_make_and_things_that_are_no_files(tmp_path):
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / f"{HOMEWORK}.ipynb.txt").write_text("{}")
    os.mkfifo(tmp_path / "pipe.ipynb")
    (tmp_path / "link").symlink_to(tmp_path / "ada")
    found = {f.student: f for f in discover(tmp_path, HOMEWORK)}
    assert found["ada"].path.name == f"{HOMEWORK}.ipynb.txt"
    assert "ipynb.txt" in found["ada"].notes[0]
    assert found["pipe"].path is None
    assert found.get("link") is None or found["link"].path is None


def test_nbgrader_holds_the_points(graded):
    output, _ = graded
    with gradebook.opened(output / "gradebook.db") as book:
        for student, (points, _, _) in EXPECTED.items():
            submission = book.find_submission(HOMEWORK, student)
            assert submission.score == points
            assert submission.max_score == 20
            assert not submission.needs_manual_grade
        grade = book.find_grade("leave_one_out", HOMEWORK, HOMEWORK, "ben")
        assert (grade.auto_score, grade.max_score) == (0, 2)


def test_formgrader_finds_a_valid_notebook_with_the_verdicts(graded):
    for student in EXPECTED:
        path = graded[0] / "autograded" / student / HOMEWORK / f"{HOMEWORK}.ipynb"
        nbformat.validate(nbformat.read(path, as_version=4))
    assert "0 of 2 points" in path.parent.parent.parent.joinpath(
        "ben", HOMEWORK, f"{HOMEWORK}.ipynb"
    ).read_text("utf-8")


def dump(output):
    with sqlite3.connect(output / "gradebook.db") as database:
        return sorted(database.iterdump())


def test_grading_twice_gives_the_same_and_keeps_what_was_given_by_hand(graded, tmp_path):
    output = tmp_path / "again"
    shutil.copytree(graded[0], output)
    with gradebook.opened(output / "gradebook.db") as book:
        book.find_grade("leave_one_out", HOMEWORK, HOMEWORK, "ben").manual_score = 1.5
        comment = book.find_comment("leave_one_out_answer", HOMEWORK, HOMEWORK, "ben")
        comment.manual_comment = "close <call>"
        book.db.commit()
    before = dump(output)
    some = tmp_path / "some"
    for student in ("ada", "ben"):
        shutil.copytree(EXAMPLES / student, some / student)
    grade(RELEASE, some, output, jobs=1)
    assert dump(output) == before
    assert page(output, "ada") == page(graded[0], "ada")
    first, second = rows(graded[0]), rows(output)
    assert second.pop("ben")["total"] == "13.5"
    assert "1.5</b> / 2" in page(output, "ben")
    assert "Your instructor</dt><dd>close &lt;call&gt;" in page(output, "ben")
    first.pop("ben")
    assert second == first  # those who were not graded again are still there
    assert list((output / ".autograder/backups").glob("gradebook-*.db"))


def test_learners_text_is_escaped_everywhere(graded, tmp_path):
    student = '<img src=x onerror="alert(1)">'
    notebook = copy.deepcopy(RELEASE.notebook)
    question = next(q for q in RELEASE.questions if q.function == "reinforce")
    notebook["cells"][question.answer]["source"] = (
        "def reinforce(logp, advantages):\n    raise ValueError('<script>alert(2)</script>')\n"
    )
    folder = tmp_path / "in" / student
    folder.mkdir(parents=True)
    (folder / "<b>mine<b>.ipynb").write_text(json.dumps(notebook))
    (tmp_path / "in" / "=cmd()|evil").mkdir()
    with_gradebook(graded, tmp_path / "out")
    grade(RELEASE, tmp_path / "in", tmp_path / "out")
    text = page(tmp_path / "out", student)
    assert "alert(2)" not in text
    assert "&lt;b&gt;mine" in text
    for raw in ("<script", "<img", "<b>mine"):
        assert raw not in text
    assert "'=cmd()|evil" in rows(tmp_path / "out")


@pytest.mark.parametrize("change", [{"gradients": (None,) * 9}, {"modified": (99,)}])
def test_an_outcome_that_collect_cannot_have_made_is_no_error_of_ours(change):
    case = cases_for("hw1/reinforce")[0]
    outcome = collect(lambda logp, advantages: logp, [case])[0]
    assert _fits(case, outcome)
    assert not _fits(case, replace(outcome, **change))


def test_an_error_of_ours_is_reported_and_the_others_are_graded(graded, tmp_path, monkeypatch):
    for student in ("ada", "emil"):
        shutil.copytree(EXAMPLES / student, tmp_path / "in" / student)
    examine = Examiner.examine

    def broken(self, found):
        if found.student == "ada":
            raise RuntimeError("planted")
        return examine(self, found)

    monkeypatch.setattr(Examiner, "examine", broken)
    with_gradebook(graded, tmp_path / "out")
    results = grade(RELEASE, tmp_path / "in", tmp_path / "out")
    assert [bool(r.error) for r in results] == [True, False]
    found = rows(tmp_path / "out")
    assert "NOT GRADED" in found["ada"]["note"]
    assert found["ada"]["total"] == ""
    assert found["emil"]["total"] == "0"


def test_an_error_of_ours_leaves_the_earlier_grade(tmp_path):
    path = tmp_path / "grades.csv"
    row = {"student": "ada", "homework": "hw1"}
    write_csv(path, [row | {"total": "20", "max": "20", "note": ""}])
    write_csv(path, [row | {"note": "NOT GRADED, planted"}])
    assert rows(tmp_path)["ada"]["total"] == "20"


def test_a_name_like_a_formula_stays_one_learner(tmp_path):
    for total in ("1", "2"):
        row = {"student": "=cmd()|evil", "homework": "hw1", "total": total}
        write_csv(tmp_path / "grades.csv", [row])
    assert [(n, r["total"]) for n, r in rows(tmp_path).items()] == [("'=cmd()|evil", "2")]


def test_a_foreign_table_is_not_overwritten(tmp_path):
    path = tmp_path / "grades.csv"
    path.write_text("name,mark\nada,1\n")
    with pytest.raises(HomeworkError, match="not a table of ours"):
        write_csv(path, [{"student": "ada", "homework": "hw1", "total": "1"}])
    assert path.read_text() == "name,mark\nada,1\n"


def test_learners_may_work_in_homework_itself(tmp_path):
    """The release to compare with is generated, so answers written into homework/ count."""
    for room in ("solutions", "homework"):
        shutil.copytree(ROOT / room / HOMEWORK, tmp_path / room / HOMEWORK)
    shutil.copy(EXAMPLES / "ada" / HOMEWORK / f"{HOMEWORK}.ipynb", tmp_path / "homework" / HOMEWORK)
    assert checked_release(HOMEWORK, tmp_path).notebook == RELEASE.notebook


def test_a_folder_without_submissions_is_an_error(tmp_path):
    with pytest.raises(HomeworkError, match="holds no submissions"):
        grade(RELEASE, tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("files", "expected", "words"),
    [
        (["a/hw1_policy_gradient/hw1_policy_gradient.ipynb", "a/hw1_policy_gradient.ipynb"],
         "a/hw1_policy_gradient/hw1_policy_gradient.ipynb", "2 notebooks"),
        (["a/hw1 (2).ipynb", "a/hw1 (10).ipynb", "a/hw1.ipynb"], "a/hw1 (10).ipynb", "3 notebooks"),
        (["a/HW1-Copy1.ipynb"], "a/HW1-Copy1.ipynb", "was called"),
        (["a/hw1_policy_gradient_ann.ipynb"], "a/hw1_policy_gradient_ann.ipynb", "was called"),
        (["a/final.ipynb"], "a/final.ipynb", "was called final.ipynb"),
        (["a/upload/hw1_policy_gradient.ipynb"], "a/upload/hw1_policy_gradient.ipynb", ""),
        (["a/hw2_clipping_and_gae/hw2_clipping_and_gae.ipynb"], None, ""),
        (["a/one.ipynb", "a/two.ipynb"], None, "2 notebooks, none called"),
        (["a/.ipynb_checkpoints/hw1_policy_gradient.ipynb"], None, ""),
        (["a.ipynb"], "a.ipynb", ""),
        (["a.ipynb", "a/hw1.ipynb"], "a/hw1.ipynb", "also a file a.ipynb"),
    ],
)  # fmt: skip
def test_files_are_found_whatever_they_are_called(tmp_path, files, expected, words):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    (one,) = discover(tmp_path, HOMEWORK)
    assert one.student == "a"
    assert one.path == (tmp_path / expected if expected else None)
    assert words in " ".join(one.notes)


def test_a_class_is_no_folder_of_submissions(tmp_path):
    (tmp_path / "submissions/ada").mkdir(parents=True)
    with pytest.raises(HomeworkError, match=r"did you mean .*/submissions\?"):
        discover(tmp_path, HOMEWORK)


def test_zip_files_are_read_and_the_rest_is_listed(tmp_path):
    import zipfile

    (tmp_path / "b").mkdir()
    for name in ("a.zip", "b/hw1.zip", "none.zip"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            if name != "none.zip":
                archive.write(EXAMPLES / "ada" / HOMEWORK / f"{HOMEWORK}.ipynb", "hw1.ipynb")
    (tmp_path / "readme.txt").write_text("Hello")
    assert [one.path for one in discover(tmp_path, HOMEWORK)] == [
        tmp_path / "a.zip", tmp_path / "b/hw1.zip"
    ]  # fmt: skip
    assert not_looked_at(tmp_path) == ["none.zip", "readme.txt"]


def test_a_notebook_of_another_homework_is_said_to_be_one(tmp_path):
    release = ROOT / "homework/hw3_group_methods/hw3_group_methods.ipynb"
    shutil.copy(release, tmp_path / "nat.ipynb")
    (one,) = discover(tmp_path, HOMEWORK)
    assert one.path is None
    assert "nat.ipynb is a notebook of homework 3" in one.notes[-1]
    assert discover(tmp_path, "hw3_group_methods")[0].path == tmp_path / "nat.ipynb"


def test_links_are_not_followed(tmp_path):
    secret = tmp_path / "gradebook"
    secret.write_text("{}")
    (tmp_path / "in/a").mkdir(parents=True)
    (tmp_path / "in/a" / f"{HOMEWORK}.ipynb").symlink_to(secret)
    assert discover(tmp_path / "in", HOMEWORK)[0].path is None


def test_copy_numbers():
    for stem, number in {
        "hw1": 0, "HW1": 0, "hw1_policy_gradient": 0, "hw1-policy-gradient": 0, "hw1 (1)": 1,
        "hw1_policy_gradient (12)": 12, "hw1_policy_gradient-Copy3": 3, "hw1 copy": 1,
        "hw10": None, "hw2_clipping_and_gae": None, "ada": None,
    }.items():  # fmt: skip
        assert copy_number(stem, HOMEWORK) == number, stem


def test_results_beside_the_examples_would_not_dirty_the_repository(missing):
    if not (ROOT / ".git").exists():
        missing("a git clone", "git knows what is ignored only there")
    for name in (
        "gradebook.db",
        "grades.csv",
        ".autograder/lock",
        "feedback/a/b",
        "class/a",
        "autograded/a",
    ):
        path = EXAMPLES.parent / name
        done = subprocess.run(["git", "check-ignore", "-q", str(path)], cwd=ROOT)
        assert done.returncode == 0, path


# Grading again, after a change, after a kill.


def some(folder, *students):
    """A class of some of the examples."""
    for student in students:
        place = EXAMPLES / student
        if place.is_dir():
            shutil.copytree(place, folder / student)
        else:
            shutil.copy(place.with_suffix(".ipynb"), folder)
    return folder


@pytest.fixture
def examined(graded, monkeypatch):
    """The students that are examined, from here on by looking up what the examples got."""
    names, known = [], {result.student: result for result in graded[1]}

    class LooksUp:
        def __init__(self, release, **_):
            pass

        def examine(self, found):
            names.append(found.student)
            result = known[{"anna": "ada"}.get(found.student, found.student)]
            file = hashlib.sha256(found.path.read_bytes()).hexdigest() if found.path else ""
            notebook = copy.deepcopy(result.notebook)
            return replace(result, student=found.student, file=file, notebook=notebook)

        def close(self):
            pass

    monkeypatch.setattr("autograder.grade.Examiner", LooksUp)
    return names


def test_what_is_unchanged_is_not_run_again(graded, tmp_path, examined):
    output = tmp_path / "out"
    shutil.copytree(graded[0], output)
    folder = some(tmp_path / "in", "ada", "chen", "emil", "fay")
    seen = []
    results = grade(RELEASE, folder, output, progress=lambda *what: seen.append(what))
    assert examined == []
    assert all(result.kept for result in results)
    assert seen == [(i, 4, s, True) for i, s in enumerate(("ada", "chen", "emil", "fay"), 1)]
    assert (output / "grades.csv").read_bytes() == (graded[0] / "grades.csv").read_bytes()
    assert page(output, "chen") == page(graded[0], "chen")

    path = folder / "chen" / "hw1 (1).ipynb"
    path.write_text(path.read_text("utf-8").replace("group_centered(rewards)", "x"))
    grade(RELEASE, folder, output)
    assert examined == ["chen"]
    shutil.rmtree(output / "autograded" / "ada")
    grade(RELEASE, folder, output)
    assert examined == ["chen", "ada"]
    grade(RELEASE, folder, output, again=True)
    assert sorted(examined[2:]) == ["ada", "chen", "emil", "fay"]


def test_the_class_page_knows_those_of_earlier_runs_that_are_in_the_gradebook(
    graded, tmp_path, examined
):
    output = tmp_path / "out"
    shutil.copytree(graded[0], output)
    folder = some(tmp_path / "in", "ada")
    grade(RELEASE, folder, output, anonymous=True)
    text = (output / "class" / f"{HOMEWORK}.html").read_text("utf-8")
    assert "<b>7 of 8</b>" in text
    assert ">emil<" not in text
    (output / "gradebook.db").unlink()
    grade(RELEASE, folder, output)
    assert "<b>1 of 1</b>" in (output / "class" / f"{HOMEWORK}.html").read_text("utf-8")
    assert rows(output) == rows(graded[0])
    assert examined == []


@pytest.mark.parametrize(
    "change",
    [
        {"file": "1"}, {"limits": Limits(cpu_seconds=2)}, {"isolated": False}, {"key": "b"},
        {"code": "2"}, {"release": replace(RELEASE, notebook={"cells": []})},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_a_digest_feels_everything_that_decides(change, monkeypatch):
    from autograder import kept

    facts = {
        "release": RELEASE, "limits": LIMITS, "isolated": True, "key": "a", "code": "1", "file": "0"
    }  # fmt: skip

    def identity(release, limits, isolated, key, code, file):
        monkeypatch.setattr(kept, "code_digest", lambda homework: code)
        return kept.digest(kept.rules(release, limits, isolated, key), file, ())

    assert identity(**facts) == identity(**facts)
    assert identity(**facts) != identity(**facts | change)


def test_the_code_that_decides_is_the_judge_the_questions_and_what_they_use():
    from autograder.kept import code_digest

    assert code_digest("hw1") != code_digest("hw2")


def test_a_later_attempt_is_graded_and_says_so(graded, tmp_path):
    output = tmp_path / "out"
    shutil.copytree(graded[0], output)
    with gradebook.opened(output / "gradebook.db") as book:
        for name in ("leave_one_out", "reinforce"):  # ben's answers to both are wrong
            book.find_grade(name, HOMEWORK, HOMEWORK, "ben").manual_score = 1
        book.db.commit()
    folder = some(tmp_path / "in", "ben")
    path = folder / "ben" / f"{HOMEWORK}.ipynb"
    wrong = "return rewards - (total - rewards) / rewards.shape[1]"
    assert wrong.replace('"', '\\"') in path.read_text("utf-8")
    path.write_text(path.read_text("utf-8").replace(wrong, "return rewards"), "utf-8")
    for _ in range(2):  # the second time it is kept
        grade(RELEASE, folder, output)
        words = "This replaces an earlier attempt, which was graded with 14 points."  # two by hand
        assert words in page(output, "ben")
        assert words in rows(output)["ben"]["note"]
        with gradebook.opened(output / "gradebook.db") as book:
            flagged = {
                name: book.find_grade(name, HOMEWORK, HOMEWORK, "ben").needs_manual_grade
                for name in ("leave_one_out", "reinforce")
            }
        assert flagged == {"leave_one_out": True, "reinforce": False}


MOMENTS = {
    "while the gradebook is made": ("autograder.gradebook.os", "replace", 1),
    "before a gradebook entry": ("autograder.gradebook", "record", 2),
    "after a gradebook entry": ("autograder.gradebook", "score", 2),
    "before a page": ("autograder.feedback", "page", 3),
    "before a record": ("autograder.kept.Kept", "write", 2),
    "before grades.csv": ("autograder.grade", "write_csv", 1),
    "before the class page": ("autograder.class_page", "page", 1),
}


def killed(place, name, count, folder, output):
    """Grade in a process that is killed when it makes the count-th call of a function."""
    import pkgutil
    import signal

    child = os.fork()
    if child == 0:
        try:
            owner = pkgutil.resolve_name(place)
            function, calls = getattr(owner, name), []

            def deadly(*args, **kwargs):
                calls.append(1)
                if len(calls) == count:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)

            setattr(owner, name, deadly)
            grade(RELEASE, folder, output)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_that_is_killed_is_finished_by_the_next(graded, tmp_path, examined, moment):
    output = tmp_path / "out"
    if "made" not in moment:
        with_gradebook(graded, output)
    folder = some(tmp_path / "in", "ben", "chen", "emil", "fay")
    killed(*MOMENTS[moment], folder, output)
    done = set(Kept(output, HOMEWORK).students())
    grade(RELEASE, folder, output)
    assert set(examined) == {"ben", "chen", "emil", "fay"} - done
    if moment in ("before grades.csv", "before the class page"):
        assert len(done) == 4
    known = rows(graded[0])
    assert rows(output) == {student: known[student] for student in ("ben", "chen", "emil", "fay")}
    for student in ("ben", "chen", "emil", "fay"):
        assert page(output, student) == page(graded[0], student)
        assert f">{student}<" in (output / "class" / f"{HOMEWORK}.html").read_text() or (
            student == "ben"
        )
    with sqlite3.connect(output / "gradebook.db") as database:
        count = "select count(*) from submitted_assignment group by student_id"
        assert {n for (n,) in database.execute(count)} == {1}
        count = "select count(*) from grade group by notebook_id"
        graded_cells = len(RELEASE.questions) + len(RELEASE.manual)
        assert {n for (n,) in database.execute(count)} == {graded_cells}


def test_a_stopped_run_leaves_a_table_of_what_is_done(graded, tmp_path, examined):
    """Ctrl-C, as the progress sees it."""
    with_gradebook(graded, tmp_path / "out")
    folder = some(tmp_path / "in", "ben", "chen", "emil")

    def stop(finished, total, student, is_kept):
        if finished == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grade(RELEASE, folder, tmp_path / "out", progress=stop)
    assert len(rows(tmp_path / "out")) == 2
    examined.clear()
    grade(RELEASE, folder, tmp_path / "out")
    assert len(examined) == 1
    assert len(rows(tmp_path / "out")) == 3


def test_progress_counts_what_was_graded_for_the_time_left(monkeypatch):
    import io

    from autograder import grade as module

    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    stream.isatty = lambda: True
    progress = module.Progress(stream)
    for finished in range(1, 31):
        progress(finished, 40, "kept", True)
    now[0] = 10.0
    progress(31, 40, "a\n\x1b[2J", False)
    line = stream.getvalue().rpartition("\r")[2]
    assert "31/40" in line
    assert "0.1 per second" in line
    assert "90 s left" in line
    assert "\x1b[2J" not in line


# The key.


@pytest.fixture
def own_key(tmp_path, monkeypatch):
    path = tmp_path / "keys" / "grading.key"
    monkeypatch.setenv(secret.VARIABLE, str(path))
    return path


def test_the_key_is_made_once_for_its_owner_alone(own_key):
    seed = secret.final_seed("hw1/reinforce")
    key = own_key.read_bytes()
    assert own_key.stat().st_mode & 0o777 == 0o600
    assert len(key) == 32
    assert seed == secret.final_seed("hw1/reinforce") != secret.final_seed("hw1/leave_one_out")
    mac = hmac.new(key, b"hw1/reinforce", hashlib.sha256).digest()
    assert seed == int.from_bytes(mac, "big")
    assert own_key.read_bytes() == key
    assert [p.name for p in own_key.parent.iterdir()] == ["grading.key"]
    own_key.unlink()
    assert secret.final_seed("hw1/reinforce") != seed


def test_the_key_lies_in_the_users_configuration(monkeypatch, tmp_path):
    monkeypatch.delenv(secret.VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert secret.key_path() == tmp_path / "policy_gradients_course" / "grading.key"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert secret.key_path() == tmp_path / ".config/policy_gradients_course/grading.key"


def spoil(path, how):
    if how == "too open":
        path.chmod(0o640)
    elif how == "too short":
        path.write_bytes(b"short")
    else:
        path.unlink()
        path.mkdir(mode=0o700)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("too open", "can be read by others"),
        ("too short", "is not a grading key"),
        ("a folder", "cannot be read or made"),
    ],
)
def test_a_key_that_cannot_be_used_ends_in_a_sentence(own_key, how, words):
    secret.final_seed("hw1/reinforce")
    spoil(own_key, how)
    with pytest.raises(HomeworkError, match=words) as caught:
        secret.final_seed("hw1/reinforce")
    assert str(own_key) in str(caught.value)


def test_a_class_is_graded_with_one_key(graded, tmp_path, own_key, examined):
    output = tmp_path / "out"
    shutil.copytree(graded[0], output)
    folder = some(tmp_path / "in", "ada")
    with pytest.raises(HomeworkError, match="is gone, with which"):
        grade(RELEASE, folder, output)
    assert not own_key.exists()  # none is made in place of the one that is missed
    secret.final_seed("hw1/reinforce")
    with pytest.raises(HomeworkError, match="another grading key"):
        grade(RELEASE, folder, output)
    assert examined == []
    grade(RELEASE, folder, output, again=True)
    grade(RELEASE, folder, output)
    assert examined == ["ada"]


def test_graded_inputs_are_not_those_that_anybody_can_draw(own_key):
    examiner = Examiner(RELEASE, isolated=False)
    examiner.close()
    for name, cases in examiner.cases.items():
        open_ones = cases_for(name, cases="final")
        assert len(cases) == len(open_ones)
        assert not all(
            a.args[0].shape == b.args[0].shape and bool((a.args[0] == b.args[0]).all())
            for a, b in zip(cases, open_ones, strict=True)
        )


# Late and repeated.


def test_lateness_is_in_the_gradebook_the_table_and_on_the_page(graded, tmp_path, examined):
    from datetime import datetime, timedelta

    output = tmp_path / "out"
    with_gradebook(graded, output)
    folder = some(tmp_path / "in", "ada", "ben", "emil", "fay")
    shutil.copytree(folder / "ada", folder / "anna")
    stamps = {"ada": "2026-12-02 01:29:00.000000 UTC", "anna": "2026-12-01 23:59:00 UTC"}
    for student, stamp in stamps.items():
        (folder / student / HOMEWORK / "timestamp.txt").write_text(stamp)
    late = datetime.fromisoformat("2026-12-03T01:59:00+00:00").timestamp()
    os.utime(folder / "ben" / f"{HOMEWORK}.ipynb", (late, late))  # no timestamp.txt: the file's
    due = gradebook.parse_due("2026-12-02T00:59+01:00")
    assert due == datetime(2026, 12, 1, 23, 59)
    grade(RELEASE, folder, output, due=due, late_penalty=0.1)
    table = rows(output)
    assert [table[s]["late"] for s in ("ada", "anna", "ben", "emil")] == [
        "1 h 30 min", "", "1 d 2 h", ""
    ]  # fmt: skip
    assert [table[s]["total"] for s in ("ada", "anna", "ben")] == ["18", "20", "12"]
    assert [table[s]["penalty"] for s in ("ada", "anna", "ben")] == ["2", "", ""]  # no stamp
    assert "file's own time" in table["ben"]["note"]
    assert "by the file's own time; this costs nothing" in html.unescape(page(output, "ben"))
    text = page(output, "ada")
    assert "handed in 1 h 30 min after the deadline; 2 points were taken off" in text
    assert "18 / 20<small>points: 20 less 2 for lateness" in text
    assert "deadline" not in page(output, "anna")
    with gradebook.opened(output / "gradebook.db") as book:
        assert book.find_assignment(HOMEWORK).duedate == due
        ada = book.find_submission(HOMEWORK, "ada")
        assert ada.timestamp == datetime(2026, 12, 2, 1, 29)
        assert ada.total_seconds_late == 5400
        assert ada.late_submission_penalty == 2
        book.find_submission(HOMEWORK, "ben").extension = timedelta(days=2)
        book.db.commit()
    grade(RELEASE, folder, output)  # deadline and penalty stand, and so does an extension
    assert rows(output)["ada"]["total"] == "18"
    assert rows(output)["ben"]["total"] == "12"
    assert rows(output)["ben"]["late"] == ""
    grade(RELEASE, folder, output, late_penalty=0)
    assert rows(output)["ada"]["total"] == "20"
    assert rows(output)["ada"]["late"] == "1 h 30 min"
    assert "this costs nothing" in page(output, "ada")


def test_a_deadline_that_is_no_time_is_refused():
    with pytest.raises(HomeworkError, match="2026-12-01T23:59"):
        gradebook.parse_due("tomorrow")


@pytest.mark.parametrize("stamp", ["", "soon", "9" * 99, "2026-99-99 00:00:00 UTC"])
def test_a_timestamp_that_says_nothing_is_replaced_by_the_files_own(tmp_path, stamp):
    folder = some(tmp_path, "ada") / "ada" / HOMEWORK
    (folder / "timestamp.txt").write_text(stamp)
    (found,) = discover(tmp_path, HOMEWORK)
    assert not found.stamped
    assert found.handed_in.timestamp() > 0
    assert "timestamp.txt holds no time" in found.notes[-1]


def test_of_two_attempts_in_folders_the_later_is_graded(tmp_path):
    from datetime import datetime

    for number, day in (("a", "03"), ("b", "04"), ("c", "02")):
        place = tmp_path / "ada" / number
        place.mkdir(parents=True)
        (place / "hw1.ipynb").write_text("{}")
        when = datetime.fromisoformat(f"2026-12-{day}T12:00:00+00:00").timestamp()
        os.utime(place / "hw1.ipynb", (when, when))
        (place / "timestamp.txt").write_text("2031-01-01 12:00:00 UTC")  # not nbgrader's place
    (found,) = discover(tmp_path, HOMEWORK)
    assert found.path.parent.name == "b"
    assert "3 notebooks" in " ".join(found.notes)
    assert (found.handed_in, found.stamped) == (datetime(2026, 12, 4, 12), False)


def test_points_of_a_bonus_question_come_on_top(graded, tmp_path, monkeypatch, examined):
    bonus = replace(QUESTIONS["hw1/optimal_baseline"], bonus=True)
    monkeypatch.setitem(QUESTIONS, bonus.id, bonus)
    folder = some(tmp_path / "in", "ada", "gus")
    with_gradebook(graded, tmp_path / "out")
    grade(RELEASE, folder, tmp_path / "out")
    table = rows(tmp_path / "out")
    assert [(table[s]["total"], table[s]["max"]) for s in ("ada", "gus")] == [
        ("20", "17"), ("17", "17")
    ]  # fmt: skip
    assert "20 / 17" in page(tmp_path / "out", "ada")
    assert "3</b> / 3 bonus" in page(tmp_path / "out", "ada")
    with gradebook.opened(tmp_path / "out" / "gradebook.db") as book:
        submission = book.find_submission(HOMEWORK, "ada")
        assert (submission.score, submission.max_score) == (20, 17)


def test_html_in_a_written_answer_is_text_in_formgrader(graded, tmp_path):
    notebook = copy.deepcopy(RELEASE.notebook)
    place = RELEASE.manual[0].index
    notebook["cells"][place]["source"] = (
        "Since $a<b$ and `x<=y`: <img src=x onerror=alert(1)></div><script>alert(2)</script>"
    )
    path = tmp_path / "in" / "eve" / f"{HOMEWORK}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(notebook))
    with_gradebook(graded, tmp_path / "out")
    grade(RELEASE, tmp_path / "in", tmp_path / "out")
    from nbconvert.filters import markdown2html

    autograded = tmp_path / "out/autograded/eve" / HOMEWORK / f"{HOMEWORK}.ipynb"
    cells = nbformat.read(autograded, as_version=4).cells
    (text,) = [c.source for c in cells if "onerror" in c.source]
    shown = markdown2html(text)
    assert "<img" not in shown
    assert "<script" not in shown
    assert "</div" not in shown
    assert "x&lt;=y" in shown


@pytest.mark.parametrize(
    "text",
    [
        "<img src=x onerror=alert(1)>", "a</div><script>alert(1)</script>", "<<b>", "<!-- x -->",
        "[x](javascript:alert(1))", "[x](java&#115;cript:alert(1))", "![x](http://tracker/1)",
        "[x]: javascript:alert(1)\n\n[x] and [y][x]", "<javascript:alert(1)>",
        "[a\n](javascript:alert(1))", "[![x](y)](javascript:alert(1))", "```\na\n```\n<b>",
        r"$\href{javascript:alert(1)}{x}$",
    ],
)  # fmt: skip
def test_nothing_of_a_learner_is_active_in_formgrader(text):
    from nbconvert.filters import markdown2html

    def active(markdown):
        shown = markdown2html(markdown)
        shown = re.sub(r'<a href="http://[^"]*">([^<]*)</a>', r"\1", shown)  # a bare address
        return re.search(r"<(?!/?(?:p|code|pre|div|span)\b)|<[^>]*(href|on\w+)=|\\href", shown)

    assert active(text)
    assert not active(disarmed(text))


# nbgrader's formgrader on the result.


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    """Homework 1 with 4 points by hand for the first written answer."""
    notebook = copy.deepcopy(RELEASE.notebook)
    notebook["cells"][RELEASE.manual[0].index]["metadata"]["nbgrader"]["points"] = 4
    path = tmp_path_factory.mktemp("release") / f"{HOMEWORK}.ipynb"
    path.write_text(json.dumps(notebook), "utf-8")
    return load_release(path)


@pytest.fixture(scope="module")
def formgrader(by_hand, tmp_path_factory):
    """(release, submissions, output, ask): two graded learners, and a server on the result."""
    output = tmp_path_factory.mktemp("course")
    folder = output / "submissions"
    place, label = by_hand.manual[0].index, by_hand.manual[0].grade_id
    for student, text in (("eve", "Because <b onclick=alert(1)>it</b> is."), ("nan", None)):
        notebook = copy.deepcopy(by_hand.notebook)
        if text:
            notebook["cells"][place]["source"] = text
        (folder / student / HOMEWORK).mkdir(parents=True)
        path = folder / student / HOMEWORK / f"{HOMEWORK}.ipynb"
        path.write_text(json.dumps(notebook), "utf-8")
    grade(by_hand, folder, output)
    shutil.copytree(ROOT / "solutions" / HOMEWORK, output / "solutions" / HOMEWORK)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    extension = "{'nbgrader.server_extensions.formgrader': True}"
    command = [
        sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root",
        f"--ServerApp.port={port}", "--IdentityProvider.token=t",
        f"--ServerApp.jpserver_extensions={extension}",
    ]  # fmt: skip
    with (output / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, cwd=output, env=gradebook.nbgrader_environment(), stdout=log, stderr=log
        )

    def ask(path, change=None):
        data = None if change is None else json.dumps(change).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/formgrader/{path}",
            data,
            {"Authorization": "token t", "Content-Type": "application/json"},
            method="GET" if change is None else "PUT",
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read().decode()

    for _ in range(240):
        try:
            ask("api/assignments")
            break
        except OSError:
            assert server.poll() is None, (output / "server.log").read_text()
            time.sleep(0.25)
    yield label, folder, output, ask
    server.terminate()
    server.wait()


def test_formgrader_asks_for_the_manual_question_and_its_points_reach_the_learner(
    formgrader, by_hand
):
    label, folder, output, ask = formgrader
    (assignment,) = json.loads(ask("api/assignments"))
    assert (assignment["max_score"], assignment["num_submissions"]) == (24, 2)
    listed = json.loads(ask(f"api/submitted_notebooks/{HOMEWORK}/{HOMEWORK}"))
    waits = {s["student"]: s["needs_manual_grade"] for s in listed}
    assert waits == {"eve": True, "nan": False}  # an answer left as released has its 0
    eve = next(s for s in listed if s["student"] == "eve")
    shown = ask(f"submissions/{eve['id']}/")
    assert label in shown
    assert "onclick=alert(1)&gt;it" in shown
    assert "<b onclick" not in shown
    assert "0 of 3 points. Not answered yet" in shown
    assert rows(output)["eve"]["note"].endswith("1 answer(s) to be graded by hand.")

    assert "not graded yet / 4" in page(output, "eve")
    grades = json.loads(ask(f"api/grades?submission_id={eve['id']}"))
    (wanted,) = [g for g in grades if g["name"] == label]
    assert wanted["needs_manual_grade"]
    ask(f"api/grade/{wanted['id']}", {"manual_score": 3, "extra_credit": 0})
    results = grade(by_hand, folder, output)
    assert all(result.kept for result in results)
    assert rows(output)["eve"][label] == rows(output)["eve"]["total"] == "3"
    assert rows(output)["eve"]["note"] == ""
    assert "<b>3</b> / 4" in page(output, "eve")
