"""What holds for the notebook of every homework in solutions/, new ones included.

That homework/ is byte for byte what solutions/ gives is tested in test_release.
"""

import ast
import re
import resource
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
import torch

from autograder.imports import forbidden_imports
from autograder.judge import judge
from autograder.questions import QUESTIONS
from autograder.release import homeworks, solution_lines
from llm_trainer.config import TaskConfig, WarmstartConfig
from llm_trainer.tiny import warm_start

ROOT = Path(__file__).parents[2]
SECONDS = 30  # of processor time, from the start of the kernel to its end


def nbgrader(cell):
    return cell.metadata.get("nbgrader", {})


class Homework:
    """The notebook of the solutions, as a learner gets it, and its questions."""

    def __init__(self, name):
        from nbgrader.preprocessors import ClearSolutions

        self.name = name
        self.questions = [q for q in QUESTIONS.values() if q.homework == name.split("_")[0]]
        self.notebook = nbformat.read(ROOT / "solutions" / name / f"{name}.ipynb", 4)
        self.released, _ = ClearSolutions().preprocess(deepcopy(self.notebook), {})
        self.cells = {cell.id: cell for cell in self.notebook.cells}
        self.labelled = {nbgrader(c)["grade_id"]: c for c in self.notebook.cells if nbgrader(c)}

    def functions(self, notebook):
        """What the answer cells define."""
        namespace = {"torch": torch}
        for cell in notebook.cells:
            if cell.id.endswith("-answer"):
                exec(cell.source, namespace)
        return namespace

    def ids(self, pattern):
        return [cell.id for cell in self.notebook.cells if re.fullmatch(pattern, cell.id)]


@pytest.fixture(scope="module", params=homeworks())
def homework(request):
    return Homework(request.param)


def test_points_sum_to_20_and_a_bonus_comes_on_top(homework):
    bonus = sum(q.points for q in homework.questions if q.bonus)
    graded = [nbgrader(c)["points"] for c in homework.notebook.cells if nbgrader(c).get("grade")]
    assert sum(graded) == 20 + bonus
    title = homework.cells["title"].source
    assert "20 points" in title
    for question in homework.questions:
        assert f"`{question.function_name}`" in title or "hw4/bug_" in question.id


def test_each_question_has_an_answer_cell_and_a_check_cell(homework):
    assert homework.questions
    names = [c.id for c in homework.notebook.cells]
    for question in homework.questions:
        name = question.function_name
        answer, checked = homework.labelled[f"{name}_answer"], homework.labelled[name]
        assert answer.id == f"{name.replace('_', '-')}-answer"
        assert checked.id == f"{name.replace('_', '-')}-check"
        assert names.index(answer.id) < names.index(checked.id)
        given = {k: nbgrader(answer)[k] for k in ("solution", "grade", "locked", "task")}
        assert given == {"solution": True, "grade": False, "locked": False, "task": False}
        given = {k: nbgrader(checked)[k] for k in ("solution", "grade", "locked", "points")}
        assert given == {
            "solution": False,
            "grade": True,
            "locked": True,
            "points": question.points,
        }
        assert checked.source == f'check("{question.id}", {name})'
    checks = [c for c in homework.notebook.cells if c.source.startswith("check(")]
    assert len(checks) == len(homework.questions)


def test_an_answer_has_its_signature_and_a_docstring_with_shapes(homework):
    for question in homework.questions:
        name = question.function_name
        source = homework.labelled[f"{name}_answer"].source
        assert f"def {name}{question.signature}:\n" in source
        assert forbidden_imports(source) == []
        function = next(
            node
            for node in ast.parse(source).body
            if isinstance(node, ast.FunctionDef) and node.name == name
        )
        text = ast.get_docstring(function)
        for argument in [*function.args.args, *function.args.kwonlyargs]:
            assert re.search(rf"^[\w, ]*\b{argument.arg}\b.* : ", text, re.M), (name, argument.arg)
        assert re.search(r"returns :", text), name
        tag = question.lecture.split(", ")[1]
        statement = homework.notebook.cells[
            : homework.notebook.cells.index(homework.labelled[name])
        ]
        assert tag in source or any(tag[1:-1] in c.source for c in statement), tag


def test_statements_carry_an_equation_and_an_example_and_hints_come_in_three_steps(homework):
    statements = homework.ids(r"q\d+-statement")
    assert 4 <= len(statements) <= 8
    for name in statements:
        text = homework.cells[name].source
        assert re.search(r"\\tag\{[A-Z]+-\d+\}", text), name
        assert "By hand first" in text, name
        assert "<details>" in text, name
        hints = homework.cells[name.replace("statement", "hints")].source
        assert [hints.count(f"Hint {i}") for i in (1, 2, 3)] == [1] * 3, name
        assert hints.count("<details>") == hints.count("</details>") == 3
        assert name.replace("statement", "reflection") in homework.cells
    assert homework.ids(r"experiment-.*run")
    assert homework.ids(r"bug-.*")


def test_every_reflection_has_a_rubric_that_the_release_does_not_show(homework):
    reflections = [c for c in homework.notebook.cells if c.id.endswith("-reflection")]
    assert len(reflections) >= 6
    for cell in reflections:
        assert cell.source.count("*Rubric.*") == 1, cell.id
        assert nbgrader(cell)["grade_id"] == cell.id.replace("-", "_")
        assert nbgrader(cell)["solution"]
        assert nbgrader(cell)["grade"]
    public = "\n".join(c.source for c in homework.released.cells)
    for leak in ("Rubric", "BEGIN SOLUTION", "END SOLUTION", "assert "):
        assert leak not in public
    assert public.count("raise NotImplementedError") == len(homework.questions)
    secret, elsewhere = solution_lines(homework.notebook.cells)
    shown = {" ".join(line.split()) for line in public.splitlines()}
    assert not (secret - elsewhere) & shown


def test_the_notebook_is_clean(homework):
    nbformat.validate(homework.notebook)
    ids = [c.id for c in homework.notebook.cells]
    assert len(ids) == len(set(ids))
    for cell in homework.notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
        assert not re.search(r"/(work|tmp|home|Users)/", cell.source)
    grade_ids = [nbgrader(c)["grade_id"] for c in homework.notebook.cells if nbgrader(c)]
    assert len(grade_ids) == len(set(grade_ids))
    assert homework.notebook.nbformat_minor == 5
    assert homework.notebook.metadata.kernelspec.name == "python3"


@pytest.mark.parametrize("cases", ["visible", "final"])
def test_the_solution_gets_full_points_and_the_untouched_release_none(homework, cases):
    solved, empty = (homework.functions(n) for n in (homework.notebook, homework.released))
    for question in homework.questions:
        verdict = judge(question.id, solved[question.function_name], cases=cases)
        assert verdict.points == question.points, (question.id, verdict.cause)
        verdict = judge(question.id, empty[question.function_name], cases=cases)
        assert verdict.points == 0
        assert verdict.cause.startswith("Not answered yet")


def test_an_answer_needs_no_other_answer(homework):
    """Each answer cell, alone after the set-up, gives a right function."""
    for question in homework.questions:
        namespace = {"torch": torch}
        exec(homework.labelled[f"{question.function_name}_answer"].source, namespace)
        assert judge(question.id, namespace[question.function_name], cases="visible").passed


@pytest.mark.slow
@pytest.mark.parametrize("which", ["notebook", "released"])
def test_the_notebook_runs_from_top_to_bottom_in_seconds(homework, which):
    from nbclient import NotebookClient

    executed = deepcopy(getattr(homework, which))
    if any("llm_trainer" in cell.source for cell in executed.cells):
        # Built once on a machine, in about 20 CPU seconds: no part of the notebook's own time.
        warm_start(TaskConfig(), WarmstartConfig(), quiet=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    path = {"metadata": {"path": str(ROOT / "homework" / homework.name)}}
    NotebookClient(executed, timeout=300, resources=path).execute()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    points = {}
    for cell in executed.cells:
        outputs = cell.get("outputs", [])
        assert not any(o.output_type == "error" or o.get("name") == "stderr" for o in outputs)
        if nbgrader(cell).get("grade") and not nbgrader(cell)["solution"]:
            # nbgrader itself reads the points of a cell from this number.
            (result,) = [o for o in outputs if o.output_type == "execute_result"]
            points[nbgrader(cell)["grade_id"]] = float(result["data"]["text/plain"])
            shown = next(o for o in outputs if o.output_type == "display_data")
            assert "<table" in shown["data"]["text/html"] or which == "notebook"
    full = sum(q.points for q in homework.questions)
    assert sum(points.values()) == (full if which == "notebook" else 0)
    assert seconds < SECONDS
