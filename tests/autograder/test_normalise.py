"""Whatever a learner hands in fits the release, with a note in plain words."""

import copy
import json
from pathlib import Path

import nbformat
import pytest

from autograder.normalise import normalise
from autograder.notebooks import load_release

ROOT = Path(__file__).resolve().parents[2]
RELEASE = load_release(ROOT / "homework/hw1_policy_gradient/hw1_policy_gradient.ipynb")
ANSWER = "def batch_centered(rewards):\n    return rewards - rewards.mean()\n"


def place(notebook, function):
    """Index of the answer cell of a function."""
    question = next(q for q in RELEASE.questions if q.function == function)
    label = RELEASE.cells[question.answer].grade_id
    return next(
        i
        for i, c in enumerate(notebook["cells"])
        if c["metadata"].get("nbgrader", {}).get("grade_id") == label
    )


@pytest.fixture
def notebook():
    """The release with one question answered."""
    notebook = copy.deepcopy(RELEASE.notebook)
    notebook["cells"][place(notebook, "batch_centered")]["source"] = ANSWER
    return notebook


def code(source, cell_id="extra", **metadata):
    return {
        "cell_type": "code",
        "id": cell_id,
        "metadata": metadata,
        "source": source,
        "outputs": [],
        "execution_count": None,
    }


def fit(notebook):
    data = notebook if isinstance(notebook, bytes) else json.dumps(notebook).encode()
    submission = normalise(RELEASE, data)
    nbformat.validate(nbformat.from_dict(submission.notebook))
    return submission


def sources(submission):
    return [step.source for step in submission.steps]


def test_lines_that_only_ipython_understands(notebook):
    answer = "    %time 3\n    torch.gather?\n" + "".join(f"    {x}\n" for x in ANSWER.splitlines())
    notebook["cells"][place(notebook, "batch_centered")]["source"] = answer
    submission = fit(notebook)
    assert not submission.answers["hw1/batch_centered"].problem


def test_variables_of_an_edited_setup_cell_are_kept(notebook):
    setup = next(c for c in notebook["cells"] if c["cell_type"] == "code")
    setup["source"] = (
        "import torch\nfrom autograder import check\nAXIS = -1\nrow = lambda r: r.mean(AXIS)"
    )
    assert "AXIS = -1\nrow = lambda r: r.mean(AXIS)" in sources(fit(notebook))[1]
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        cell.pop("id", None)
    data = json.dumps(notebook).encode()
    assert "AXIS = -1" in sources(normalise(RELEASE, data))[1]


def test_a_second_try_in_a_new_cell_is_the_one_that_counts(notebook):
    second = ANSWER.replace("rewards.mean()", "rewards.sum() / rewards.numel()")
    notebook["cells"].append(code(second))
    submission = fit(notebook)
    key = submission.answers["hw1/batch_centered"].key
    assert second in [s.source for s in submission.steps if s.key == key]


def test_an_ordinary_submission_has_no_notes(notebook):
    submission = fit(notebook)
    assert submission.notes == ()
    assert submission.answers["hw1/batch_centered"].problem == ""
    assert submission.answers["hw1/reinforce"].untouched
    assert sources(submission) == ["import torch", ANSWER]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (None, "No notebook"),
        (b"", "empty"),
        (b'{"cells": [', "damaged"),
        (b"[" * 100_000, "damaged"),
        (b"[1, 2]", "no list of cells"),
        (b"\x89PNG\r\n\x1a\n\xff\xfe", "not text"),
        (b'{\n<<<<<<< HEAD\n"cells": []\n=======\n>>>>>>> other\n}', "merge conflict"),
    ],
)
def test_no_notebook_gives_one_sentence_and_nothing_to_run(data, words):
    submission = normalise(RELEASE, data)
    assert len(submission.notes) == 1
    assert words in submission.notes[0]
    assert submission.steps == ()
    assert all(answer.problem for answer in submission.answers.values())


def test_cells_that_are_not_as_they_should_be_do_no_harm():
    odd = [3, None, {}, {"cell_type": 5, "source": 7, "metadata": [], "id": 1}, {"source": [1]}]
    submission = fit({"cells": odd})
    assert all("missing" in answer.problem for answer in submission.answers.values())


@pytest.mark.parametrize(
    ("strip", "words"),
    [("metadata", "found by its cell id"), ("both", "found by its function's name")],
)
def test_stripped_labels(notebook, strip, words):
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        if strip == "both":
            del cell["id"]
    submission = fit(notebook)
    assert submission.answers["hw1/batch_centered"].problem == ""
    assert any(words in note for note in submission.notes)
    assert ANSWER in sources(submission)


def test_of_duplicates_the_last_edited_one_counts(notebook):
    at = place(notebook, "batch_centered")
    twin = copy.deepcopy(notebook["cells"][at])
    twin["source"], twin["id"] = ANSWER + "# second\n", "twin"
    untouched = copy.deepcopy(RELEASE.notebook["cells"][at]) | {"id": "third"}
    notebook["cells"][at + 1 : at + 1] = [twin, untouched]
    submission = fit(notebook)
    assert twin["source"] in sources(submission)
    assert ANSWER not in sources(submission)
    assert any("3 cells for batch_centered" in note for note in submission.notes)


def test_helpers_beside_a_further_copy_of_an_answer_are_kept(notebook):
    at = place(notebook, "batch_centered")
    both = "def average(x):\n    return x.mean()\n\n" + ANSWER
    notebook["cells"].insert(at, code(both))
    assert sources(fit(notebook)) == [
        "import torch",
        "def average(x):\n    return x.mean()",
        ANSWER,
    ]


def test_a_deleted_answer_costs_that_question_only(notebook):
    del notebook["cells"][place(notebook, "reinforce")]
    submission = fit(notebook)
    assert "missing" in submission.answers["hw1/reinforce"].problem
    assert submission.answers["hw1/batch_centered"].problem == ""


def test_a_renamed_function_is_graded_with_a_note(notebook):
    at = place(notebook, "batch_centered")
    notebook["cells"][at]["source"] = ANSWER.replace("batch_centered", "my_answer")
    submission = fit(notebook)
    assert submission.answers["hw1/batch_centered"].function == "my_answer"
    assert any("was called my_answer" in note for note in submission.notes)


def test_a_syntax_error_costs_that_question_only(notebook):
    notebook["cells"][place(notebook, "reinforce")]["source"] = "def reinforce(logp advantages):\n"
    submission = fit(notebook)
    assert "syntax error in line 1" in submission.answers["hw1/reinforce"].problem
    assert submission.answers["hw1/batch_centered"].problem == ""
    assert sources(submission) == ["import torch", ANSWER]


def test_an_answer_that_became_a_text_cell_is_still_graded(notebook):
    notebook["cells"][place(notebook, "batch_centered")]["cell_type"] = "markdown"
    submission = fit(notebook)
    assert submission.answers["hw1/batch_centered"].problem == ""
    assert any("text cell" in note for note in submission.notes)


def test_several_answers_in_one_cell(notebook):
    both = ANSWER + "\n\ndef group_centered(r):\n    return r - r.mean(1, keepdim=True)\n"
    notebook["cells"][place(notebook, "batch_centered")]["source"] = both
    del notebook["cells"][place(notebook, "group_centered")]
    submission = fit(notebook)
    keys = {submission.answers[f"hw1/{n}"].key for n in ("batch_centered", "group_centered")}
    assert len(keys) == 1
    assert submission.answers["hw1/group_centered"].problem == ""


def test_an_answer_in_a_new_cell_is_found(notebook):
    notebook["cells"].append(
        code("def reinforce(logp, advantages):\n    return -advantages * logp\n")
    )
    submission = fit(notebook)
    assert submission.answers["hw1/reinforce"].problem == ""


def test_helper_cells_come_along_in_order(notebook):
    helper = "SCALE = 2\n\ndef average(x):\n    return x.mean()\n"
    notebook["cells"].insert(place(notebook, "batch_centered"), code(helper))
    assert sources(fit(notebook)) == ["import torch", helper, ANSWER]


def test_an_edited_setup_cell_keeps_its_allowed_imports_only(notebook):
    setup = next(c for c in notebook["cells"] if c["cell_type"] == "code")
    setup["source"] = (
        "import numpy as np\nimport torch\nfrom autograder import check\nprint(check)\n"
    )
    assert sources(fit(notebook)) == ["import torch", "import torch", ANSWER]


@pytest.mark.parametrize(
    "line",
    [
        "from policy_gradients import advantages",
        "import toy_models.exact as t",
        "import autograder",
        "__import__('policy_gradients')",
    ],
)
def test_importing_the_answer_is_refused_in_answers_and_left_out_in_helpers(notebook, line):
    notebook["cells"].append(code(line))
    at = place(notebook, "batch_centered")
    notebook["cells"][at]["source"] = f"{line}\n{ANSWER}"
    submission = fit(notebook)
    assert "may use torch, einops and the standard library" in (
        submission.answers["hw1/batch_centered"].problem
    )
    assert any("left out" in note for note in submission.notes)
    assert sources(submission) == ["import torch"]


def test_edited_or_deleted_checks_change_nothing(notebook):
    checks = [
        i
        for i, c in enumerate(notebook["cells"])
        if c["metadata"].get("nbgrader", {}).get("points")
    ]
    notebook["cells"][checks[1]]["source"] = "print('20 points')"
    notebook["cells"][checks[2]]["metadata"]["nbgrader"]["points"] = 100
    del notebook["cells"][checks[0]]
    submission = fit(notebook)
    assert len(submission.notes) == 2
    ours = [
        c for c in submission.notebook["cells"] if c["metadata"].get("nbgrader", {}).get("points")
    ]
    given = [
        c for c in RELEASE.notebook["cells"] if c["metadata"].get("nbgrader", {}).get("points")
    ]
    assert ours == given


def test_other_kernels_order_line_ends_and_magics(notebook):
    notebook["metadata"] = {"kernelspec": {"name": "julia-1.9", "language": "julia"}}
    at = place(notebook, "batch_centered")
    notebook["cells"][at]["source"] = ("%%time\n" + ANSWER).replace("\n", "\r\n")
    notebook["cells"].reverse()
    submission = fit(notebook)
    assert submission.answers["hw1/batch_centered"].problem == ""
    assert submission.notebook["metadata"] == RELEASE.notebook["metadata"]
    assert [c["id"] for c in submission.notebook["cells"]] == [c.cell_id for c in RELEASE.cells]


def test_half_characters_do_not_reach_files(notebook):
    at = place(notebook, "batch_centered")
    notebook["cells"][at]["source"] = ANSWER + "# \ud800\n"
    json.dumps(fit(notebook).notebook, ensure_ascii=False).encode()


def test_notebooks_of_the_format_before_2015(notebook):
    cells = [{"cell_type": "code", "input": ANSWER, "language": "python", "outputs": []}]
    submission = fit({"nbformat": 3, "worksheets": [{"cells": cells}]})
    assert submission.answers["hw1/batch_centered"].problem == ""


def test_written_answers_are_kept(notebook):
    at = next(i for i, c in enumerate(notebook["cells"]) if c["id"] == "q1-reflection")
    notebook["cells"][at]["source"] = "Because the score has mean zero."
    submission = fit(notebook)
    assert submission.written == {"q1_reflection"}
    assert submission.notebook["cells"][at]["source"] == "Because the score has mean zero."
