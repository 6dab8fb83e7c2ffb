"""What learners hand in and what their processes say: bounded, printable, and nothing hidden in it.

The folder is graded as a class; `test_grade_class.py` looks at ordinary ones.
"""

import copy
import json
import re

import pytest

from autograder.feedback import _h
from autograder.grade import checked_release, told
from autograder.grade import grade as grade_class
from autograder.sandbox import Limits, isolation

HOMEWORK = "hw1_policy_gradient"
RELEASE = checked_release(HOMEWORK)
LIMITS = Limits(cpu_seconds=2, wall_seconds=20)


def grade(folder, output, **order):
    """Isolated where that can be had."""
    order = {"isolated": not isolation(), "limits": LIMITS} | order
    return grade_class(RELEASE, folder, output, **order)


def page(output, student):
    return (output / "feedback" / student / f"{HOMEWORK}.html").read_text("utf-8")


def submission_with(folder, name, function, source, before=()):
    """One submission whose answer to one question is `source`, after cells of its own."""
    notebook = copy.deepcopy(RELEASE.notebook)
    question = next(q for q in RELEASE.questions if q.function == function)
    notebook["cells"][question.answer]["source"] = source
    notebook["cells"][1:1] = [{"cell_type": "code", "source": text} for text in before]
    path = folder / name / f"{HOMEWORK}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(notebook), "utf-8")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("ValueError: the inputs are one point three (line 3)", "ValueError (line 3)"),
        ("NotImplementedError (line 2)", "NotImplementedError (line 2)"),
        ("abcdefgh: mnop (line 12)", "an exception of its own (line 12)"),
        ("RuntimeError: must match abcd", "RuntimeError: … must match …"),
        ("TypeError: 'NoneType' abcd (line 123456)", "TypeError: … NoneType …"),
        ("IndexError: tensors used as indices abcd", "IndexError: … expected condition to be a"),
        ("", "an exception of its own"),
    ],
)
def test_of_an_exception_on_hidden_inputs_only_known_words_are_told(error, words):
    assert told(error).startswith(words)
    assert not re.search("abcd|mnop|point|12345", told(error))


def test_no_word_of_a_learner_comes_from_hidden_inputs_to_a_page(tmp_path):
    code = "''.join(chr(97 + b % 16) for b in str(rewards.tolist()).encode())[:25]"
    for name, body in {
        "a": f"    raise ValueError({code})\n",
        "b": f"    raise type({code}, (Exception,), {{}})()\n",
        "c": f"    return type({code}, (), {{}})()\n",
        "d": f"    raise KeyboardInterrupt({code})\n",
    }.items():
        source = f"def group_centered(rewards):\n{body}"
        submission_with(tmp_path / "class", name, "group_centered", source)
    results = grade(tmp_path / "class", tmp_path / "output")
    causes = [m.cause for r in results for m in r.marks if m.id == "hw1/group_centered"]
    assert "ValueError (line 2)" in causes[0]
    assert "an exception of its own (line 2)" in causes[1]
    assert "returns an object" in causes[2]
    assert "stopped with an exception." in causes[3]
    for result in results:
        assert not re.search("[a-p]{25}", page(tmp_path / "output", result.student))


def test_a_notebook_that_waits_costs_the_others_a_bounded_time(tmp_path):
    source = "def batch_centered(rewards):\n    return rewards - rewards.mean()\n"
    before = ["import time\ntime.sleep(1.4)"]  # within the limit, so it is never left out
    submission_with(tmp_path / "class", "a", "batch_centered", source, before)
    path = tmp_path / "class" / "a" / f"{HOMEWORK}.ipynb"
    notebook = json.loads(path.read_text())
    for index, question in enumerate(RELEASE.questions):  # every one is run, and waits
        cell = notebook["cells"][question.answer + 1]
        cell["source"] = f"{question.function} = lambda *a, **k: {index}"
    path.write_text(json.dumps(notebook))
    limits = Limits(cpu_seconds=1, wall_seconds=2)
    (result,) = grade(tmp_path / "class", tmp_path / "output", limits=limits)
    late = [m for m in result.marks if "had taken 8 seconds" in m.cause]
    assert len(late) >= 2
    assert all(m.status == "not run" and m.points == 0 for m in late)
    assert "Does a cell wait" in page(tmp_path / "output", "a")


def test_what_stands_on_a_page_can_be_printed():
    shown = _h("a\x1b[31m\x00\x9b\u202e\ud800<b>")
    assert shown.isprintable()
    assert shown.endswith("&lt;b&gt;")
