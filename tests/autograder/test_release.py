"""homework/ is what solutions/ gives: byte for byte, without solutions, never half written."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from autograder.bundle import bundle
from autograder.notebooks import HomeworkError
from autograder.release import generate, homeworks, release, solution_lines, verify

ROOT = Path(__file__).resolve().parents[2]
HOMEWORK = "hw1_policy_gradient"
SOURCE = ROOT / "solutions" / HOMEWORK / f"{HOMEWORK}.ipynb"
TARGET = ROOT / "homework" / HOMEWORK / f"{HOMEWORK}.ipynb"


@pytest.fixture
def course(tmp_path):
    """A course of its own, released."""
    for room in ("solutions", "homework"):
        shutil.copytree(ROOT / room / HOMEWORK, tmp_path / room / HOMEWORK)
    return tmp_path


def edit(course, change):
    """Rewrite the solution of a course after `change` has worked on its cells."""
    path = course / "solutions" / HOMEWORK / f"{HOMEWORK}.ipynb"
    notebook = json.loads(path.read_text("utf-8"))
    change({cell["id"]: cell for cell in notebook["cells"]}, notebook)
    path.write_text(json.dumps(notebook), "utf-8")


@pytest.mark.parametrize("homework", homeworks())
def test_homework_is_what_release_would_generate(homework, committed):
    committed(ROOT / "homework" / homework / f"{homework}.ipynb")
    assert release(homework, check=True) == []


def test_two_generations_are_byte_for_byte_equal(tmp_path, committed):
    committed(TARGET)
    first = generate(HOMEWORK, ROOT, tmp_path / "one") / TARGET.name
    second = generate(HOMEWORK, ROOT, tmp_path / "two") / TARGET.name
    assert first.read_bytes() == second.read_bytes() == TARGET.read_bytes()


def test_the_release_holds_ids_no_outputs_and_no_solution(committed):
    committed(TARGET)
    notebook = json.loads(TARGET.read_text("utf-8"))
    assert all(cell["id"] for cell in notebook["cells"])
    assert not any(cell.get("outputs") for cell in notebook["cells"])
    text = "".join("".join(cell["source"]) for cell in notebook["cells"])
    assert "SOLUTION" not in text
    assert text.count("raise NotImplementedError") == 8
    assert "Rubric" not in text


def test_a_change_is_released_and_the_old_file_kept(course):
    old = (course / "homework" / HOMEWORK / TARGET.name).read_bytes()
    edit(course, lambda cells, _: cells["title"].update(source="# A new title"))
    assert [c.what for c in release(HOMEWORK, course, check=True)] == ["changed"]
    assert (course / "homework" / HOMEWORK / TARGET.name).read_bytes() == old  # check only looks
    assert [c.what for c in release(HOMEWORK, course)] == ["changed"]
    assert release(HOMEWORK, course) == []
    (kept,) = (course / ".autograder/backups").rglob("*.ipynb")
    assert kept.read_bytes() == old


def leave_the_solution_in(cells, _):
    answer = cells["reinforce-answer"]
    answer["metadata"]["nbgrader"]["solution"] = False
    answer["source"] = "".join(answer["source"]).replace("### ", "# ")


def forget_an_id(cells, notebook):
    del cells["title"]["id"]


def break_the_file(_, notebook):
    del notebook["cells"]


def no_answer_before_the_check(cells, notebook):
    notebook["cells"].remove(cells["reinforce-answer"])


def open_region(cells, _):
    answer = cells["reinforce-answer"]
    answer["source"] = "".join(answer["source"]).replace("### END SOLUTION", "")


def check_of_nothing(cells, _):
    cells["reinforce-check"]["source"] = "assert True"


def twice_the_same_label(cells, _):
    nbgrader = cells["reinforce-answer"]["metadata"]["nbgrader"]
    nbgrader["grade_id"] = cells["token-log-probs-answer"]["metadata"]["nbgrader"]["grade_id"]


@pytest.mark.parametrize(
    "damage",
    [
        leave_the_solution_in,
        forget_an_id,
        break_the_file,
        no_answer_before_the_check,
        open_region,
        check_of_nothing,
        twice_the_same_label,
    ],
)
def test_a_malformed_solution_is_refused_and_the_release_stays(course, damage):
    old = (course / "homework" / HOMEWORK / TARGET.name).read_bytes()
    edit(course, damage)
    with pytest.raises(HomeworkError):
        release(HOMEWORK, course)
    assert (course / "homework" / HOMEWORK / TARGET.name).read_bytes() == old


def test_a_leaked_line_is_seen(tmp_path, committed):
    """Had nbgrader left a line of a solution in, verify would say so."""
    committed(TARGET)
    secret, public = solution_lines(json.loads(SOURCE.read_text("utf-8"))["cells"])
    released = json.loads(TARGET.read_text("utf-8"))
    released["cells"][0]["source"] = min(secret - public)
    path = tmp_path / TARGET.name
    path.write_text(json.dumps(released), "utf-8")
    with pytest.raises(HomeworkError, match="still holds text of the solution"):
        verify(SOURCE, path)


def test_an_unknown_homework_is_named_with_the_known_ones():
    with pytest.raises(HomeworkError, match=HOMEWORK):
        release("hw9_nothing")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """A learner's bundle with homework 1, unpacked into an empty folder."""
    folder = tmp_path_factory.mktemp("bundle")
    assert bundle(folder / "course.zip", [HOMEWORK]) == [HOMEWORK]
    with zipfile.ZipFile(folder / "course.zip") as archive:
        archive.extractall(folder / "course")
    return folder / "course"


def in_bundle(course, *command):
    """Run the bundle's own command line, with nothing of this checkout on the path."""
    return subprocess.run(
        [sys.executable, "-m", "autograder", *command],
        cwd=course,
        env=os.environ | {"PYTHONPATH": str(course), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )


def test_a_learner_checks_homework_in_the_bundle_alone(unpacked, tmp_path):
    """Untouched: nothing is answered. With one right answer: that one passes."""
    assert "not begun" in in_bundle(unpacked, "status").stdout
    notebook = tmp_path / TARGET.name
    shutil.copy(unpacked / "homework" / HOMEWORK / TARGET.name, notebook)
    cells = json.loads(notebook.read_text("utf-8"))
    answer = next(c for c in cells["cells"] if c["id"] == "batch-centered-answer")
    answer["source"] = "def batch_centered(rewards):\n    return rewards - rewards.mean()\n"
    notebook.write_text(json.dumps(cells), "utf-8")
    done = in_bundle(unpacked, "check", str(notebook))
    assert "1 of 8 answers pass" in done.stdout, done.stderr
    assert "no solutions" in in_bundle(unpacked, "release").stderr
    code = f"import autograder; print(autograder.__file__.startswith({str(unpacked)!r}))"
    where = subprocess.run([sys.executable, "-c", code], cwd=unpacked, capture_output=True)
    assert where.stdout.strip() == b"True"


def test_nothing_of_the_solutions_is_in_the_bundle(unpacked):
    names = {p.relative_to(unpacked).as_posix() for p in unpacked.rglob("*") if p.is_file()}
    assert not any(n.startswith(("solutions", "tests", "autograder/examples/hw")) for n in names)
    assert {"START.md", "lectures/00_map.ipynb", "autograder/judge.py", "bootstrap.py"} <= names
    assert not any("__pycache__" in n or n.endswith((".db", ".pyc")) for n in names)
    homework = {n for n in names if n.startswith("homework/")}
    assert {n.split("/")[1] for n in homework} == {HOMEWORK}
    cells = json.loads(SOURCE.read_text("utf-8"))["cells"]
    answers, public = solution_lines(cells)
    texts, other = solution_lines([c for c in cells if c["cell_type"] == "markdown"])
    for name in names:
        if name.endswith((".png", ".json")):
            continue
        lines = {" ".join(x.split()) for x in (unpacked / name).read_text("utf-8").splitlines()}
        assert not lines & (texts - other), name  # rubrics and worked answers, anywhere
        if name.endswith(".ipynb") and "lectures/" not in name:
            source = "\n".join(
                "".join(c["source"]) for c in json.loads((unpacked / name).read_text())["cells"]
            )
            lines = {" ".join(x.split()) for x in source.splitlines()}
            assert not lines & (answers - public), name


def test_two_bundles_are_byte_for_byte_equal_and_leave_own_work_out(tmp_path, course):
    """Answers in homework/ and a notebook that git ignores do not get in."""
    bundle(tmp_path / "one.zip", [HOMEWORK])
    os.utime(ROOT / "autograder" / "bundle.py")
    bundle(tmp_path / "two.zip", [HOMEWORK])
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert archive.read(f"homework/{HOMEWORK}/{TARGET.name}") == archive.read(
            f"autograder/released/{TARGET.name}"
        )


def test_a_bundle_of_an_unknown_homework_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(HomeworkError, match=HOMEWORK):
        bundle(tmp_path / "course.zip", ["hw9_nothing"])
    assert list(tmp_path.iterdir()) == []
