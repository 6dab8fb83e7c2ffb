"""A folder of submissions ends in right points, notes, feedback and gradebook, every time."""

import copy
import csv
import json
import shutil
import sqlite3
import subprocess
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest

from autograder import gradebook
from autograder.cases import collect
from autograder.discover import copy_number, discover
from autograder.examples.make import make
from autograder.grade import Examiner, _fits, checked_release
from autograder.grade import grade as grade_class
from autograder.judge import cases_for
from autograder.notebooks import HomeworkError
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
    import os

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
    assert "alert(2)" in text
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
    for name in ("gradebook.db", "grades.csv", ".autograder/lock", "feedback/a/b", "autograded/a"):
        path = EXAMPLES.parent / name
        done = subprocess.run(["git", "check-ignore", "-q", str(path)], cwd=ROOT)
        assert done.returncode == 0, path
