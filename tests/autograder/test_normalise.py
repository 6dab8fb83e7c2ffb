"""Whatever a learner hands in fits the release, with a note in plain words."""

import copy
import gc
import gzip
import io
import json
import random
import re
import sys
import threading
import time
import zipfile
from pathlib import Path

import nbformat
import pytest

from autograder.judge import judge
from autograder.normalise import normalise
from autograder.notebooks import load_release
from autograder.release import homeworks, pristine
from autograder.worker import run_cell

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
    assert sources(submission) == [RELEASE.prelude, ANSWER]


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
        RELEASE.prelude,
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
    assert sources(submission) == [RELEASE.prelude, ANSWER]


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
    assert sources(fit(notebook)) == [RELEASE.prelude, helper, ANSWER]


def test_an_edited_setup_cell_keeps_its_allowed_imports_only(notebook):
    setup = next(c for c in notebook["cells"] if c["cell_type"] == "code")
    setup["source"] = (
        "import numpy as np\nimport torch\nfrom autograder import check\nprint(check)\n"
    )
    assert sources(fit(notebook)) == [RELEASE.prelude, "import torch", ANSWER]


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
    assert sources(submission) == [RELEASE.prelude]


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


# Whole submissions: every answer right, then something happens to the file. What is lost?

SOLUTION = json.loads(
    (ROOT / "solutions/hw1_policy_gradient/hw1_policy_gradient.ipynb").read_text("utf-8")
)
FUNCTIONS = [q.function for q in RELEASE.questions]


def answered(release=RELEASE, solution=SOLUTION):
    """The release with every answer filled in from the solution."""
    notebook = copy.deepcopy(release.notebook)
    right = {c["id"]: "".join(c["source"]) for c in solution["cells"]}
    for question in release.questions:
        cell = notebook["cells"][question.answer]
        cell["source"] = re.sub(r"(?m)^.*(BEGIN|END) SOLUTION.*\n?", "", right[cell["id"]])
    return notebook


def cell_of(notebook, function):
    return notebook["cells"][place(notebook, function)]


def lost(submission, release=RELEASE):
    """The functions that do not get full marks when the steps are run as the worker runs them."""
    missing = []
    for question in release.questions:
        answer, space, function = submission.answers[question.id], {"__name__": "__main__"}, None
        for step in submission.steps:
            run_cell(step.source, f"<{step.key}>", space)
            if answer.key and step.key == answer.key:
                function = space.get(answer.function)
        if not callable(function) or not judge(question.id, function, cases="visible").passed:
            missing.append(question.function)
    return missing


def changed(function):
    """A case: change the answered notebook in place (or return another one)."""

    def make():
        notebook = answered()
        other = function(notebook)
        return other if isinstance(other, dict) and "nbformat" in other else notebook

    return make


def stripped(notebook, *fields):
    for cell in notebook["cells"]:
        if "metadata" in fields:
            cell["metadata"] = {}
        if "id" in fields:
            cell.pop("id", None)
    return notebook


def rewritten(function, source):
    return changed(lambda nb: cell_of(nb, function).update(source=source))


def twin(notebook, function, source=None):
    at = place(notebook, function)
    copied = copy.deepcopy(notebook["cells"][at])
    notebook["cells"].insert(
        at + 1, copied | {"id": "twin"} | ({"source": source} if source else {})
    )


def shuffled(notebook):
    random.Random(3).shuffle(notebook["cells"])


def merged(notebook):
    """Every code cell poured into one, as "merge cells" does; it keeps the first one's label."""
    codes = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    codes = [c for c in codes if "toy_models" not in "".join(c["source"])]
    codes[0]["source"] = "\n".join("".join(c["source"]) for c in codes)
    notebook["cells"] = codes[:1]


def split(notebook):
    """A helper and an answer that stood in one cell, split by JupyterLab: labels on both."""
    cell = cell_of(notebook, "batch_centered")
    half = copy.deepcopy(cell) | {"id": "half"}
    half["source"] = "def batch_centered(rewards):\n    return rewards - average(rewards)\n"
    cell["source"] = "def average(x):\n    return x.mean()\n"
    notebook["cells"].insert(place(notebook, "batch_centered") + 1, half)


def swapped(notebook):
    a, b = cell_of(notebook, "reinforce"), cell_of(notebook, "reward_to_go")
    a["metadata"], b["metadata"] = b["metadata"], a["metadata"]
    a["id"], b["id"] = b["id"], a["id"]


def format_3(notebook):
    cells = [
        {"cell_type": c["cell_type"], "metadata": c["metadata"]}
        | {"input" if c["cell_type"] == "code" else "source": c["source"]}
        for c in notebook["cells"]
    ]
    return {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": cells}]}


def older(minor):
    def change(notebook):
        stripped(notebook, "id")
        notebook["nbformat_minor"] = minor

    return changed(change)


def older_release(notebook):
    """Other cell ids and texts, and one question that came later is not in it."""
    for cell in notebook["cells"]:
        cell["id"] = f"old-{cell['id']}"
        if cell["cell_type"] == "markdown":
            cell["source"] = "an older text"
    del notebook["cells"][place(notebook, "optimal_baseline")]


def old_stub(notebook):
    cell_of(notebook, "reinforce")["source"] = (
        "def reinforce(logp, advantages):\n    # an older stub\n    raise NotImplementedError\n"
    )


def edited_points(notebook):
    for cell in notebook["cells"]:
        nbgrader = cell["metadata"].get("nbgrader", {})
        if nbgrader.get("points"):
            nbgrader["points"] = 1000
            cell["source"] = "pass"


def relabelled(notebook):
    for cell in notebook["cells"]:
        if "nbgrader" in cell["metadata"]:
            cell["metadata"]["nbgrader"]["grade_id"] += "_mine"


def own_cells(*texts):
    """New cells in front of the first answer and after the last one."""

    def change(notebook):
        for n, text in enumerate(texts):
            notebook["cells"].insert(2, code(text, f"own-{n}"))
            notebook["cells"].append(code(text, f"own-end-{n}"))

    return changed(change)


def script(mark):
    cells = [c for c in answered()["cells"] if c["cell_type"] == "code"]
    return "\n\n".join(f"{mark}\n" + "".join(c["source"]) for c in cells).encode()


def archive(*names):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(name, json.dumps(answered()))
    return buffer.getvalue()


def latin_1():
    text = plain(ensure_ascii=False).decode().replace("Homework 1", "Épreuve 1")
    return text.encode("latin-1", "replace")


def plain(**options):
    return json.dumps(answered(), **options).encode()


ALL = tuple(FUNCTIONS)
# name -> (what arrives, the functions that lose their points, a word of a note or "")
ARRIVES = {
    "as it should be": (plain, (), ""),
    "a duplicated cell": (changed(lambda nb: twin(nb, "reinforce")), (), "2 cells for reinforce"),
    "a duplicate that was left empty": (
        changed(lambda nb: twin(nb, "reinforce", RELEASE.cells[8].source)), (), "2 cells"),
    "a duplicate with a syntax error": (
        changed(lambda nb: twin(nb, "reinforce", "def reinforce(:")), (), "2 cells"),
    "a deleted cell": (
        changed(lambda nb: nb["cells"].pop(place(nb, "reinforce"))), ("reinforce",), ""),
    "all cells deleted": (changed(lambda nb: nb["cells"].clear()), ALL, "were deleted"),
    "a renamed function": (
        rewritten("batch_centered", "def mine(rewards):\n    return rewards - rewards.mean()"),
        (), "was called mine"),
    "a renamed function beside a helper": (
        rewritten("batch_centered", "def mine(rewards):\n    return rewards - middle(rewards)\n"
        "def middle(x):\n    return x.mean()"), (), "was called mine"),
    "added cells": (own_cells("x = 1", "", "print(x)"), (), ""),
    "other order": (changed(shuffled), (), ""),
    "merged cells": (changed(merged), (), "Without the label"),
    "a split cell": (changed(split), (), "2 cells"),
    "stripped metadata": (changed(lambda nb: stripped(nb, "metadata")), (), "its cell id"),
    "stripped ids": (changed(lambda nb: stripped(nb, "id")), (), ""),
    "stripped of both": (
        changed(lambda nb: stripped(nb, "metadata", "id")), (), "its function's name"),
    "another kernel": (
        changed(lambda nb: nb.update(metadata={"kernelspec": {"name": "xpython"}})), (), ""),
    "no metadata at all": (changed(lambda nb: nb.pop("metadata")), (), ""),
    "format 3": (changed(format_3), (), ""),
    "format 4.0": (older(0), (), ""),
    "format 4.4": (older(4), (), ""),
    "an older release": (changed(older_release), ("optimal_baseline",), ""),
    "an older stub, not answered": (changed(old_stub), ("reinforce",), ""),
    "a byte order mark": (lambda: b"\xef\xbb\xbf" + plain(), (), ""),
    "UTF-16": (lambda: plain().decode().encode("utf-16"), (), ""),
    "UTF-16 without a mark": (lambda: plain().decode().encode("utf-16-le"), (), ""),
    "Latin-1": (lambda: latin_1(), (), "UTF-8"),
    "CRLF": (lambda: plain(indent=1).replace(b"\n", b"\r\n").replace(b"\\n", b"\\r\\n"), (), ""),
    "truncated": (lambda: plain()[:-100], ALL, "damaged"),
    "a missing comma": (lambda: plain().replace(b", ", b" ", 1), ALL, "damaged"),
    "gzip": (lambda: gzip.compress(plain()), (), "gzip"),
    "damaged gzip": (lambda: gzip.compress(plain())[:40] + b"x" * 50, ALL, "damaged archive"),
    "zip": (lambda: archive("hw1.ipynb", "__MACOSX/._hw1.ipynb"), (), "zip archive"),
    "zip with two notebooks": (lambda: archive("a.ipynb", "b.ipynb"), ALL, "2 notebooks"),
    "damaged zip": (lambda: archive("hw1.ipynb")[:300], ALL, "damaged archive"),
    "an error page": (
        lambda: b"<!DOCTYPE html><html><body><h1>404</h1></body></html>", ALL, "web page"),
    "a script, percent format": (lambda: script("# %%"), (), "script"),
    "a script from nbconvert": (lambda: script("# In[7]:"), (), "script"),
    "a picture": (lambda: b"\x89PNG\r\n\x1a\n\xff\xfe" * 9, ALL, "not text"),
    "another notebook": (lambda: b'{"cells": [{"cell_type": "code", "source": "1 + 1"}]}', ALL, ""),
    "magics": (
        rewritten("batch_centered", "%%time\n%matplotlib inline\n!ls\nfiles = !ls\n?torch\n"
        "torch.mean??\n%time shift = 0\ndef batch_centered(rewards):\n    %pdb off\n"
        "    return rewards - rewards.mean() + shift\n"), (), ""),
    "an answer under async": (
        rewritten("batch_centered", "async def batch_centered(r):\n    return r - r.mean()"),
        ("batch_centered",), ""),
    "a lambda": (rewritten("batch_centered", "batch_centered = lambda r: r - r.mean()"), (), ""),
    "an assignment": (
        rewritten("batch_centered", "def f(r): return r - r.mean()\nbatch_centered = f"), (), ""),
    "a partial": (
        rewritten("batch_centered", "import functools\n"
        "def f(k, r): return r - k * r.mean()\nbatch_centered = functools.partial(f, 1.0)"),
        (), ""),
    "a decorated function": (
        rewritten("batch_centered", "import functools\n@functools.cache\ndef f(): return 0\n"
        "@functools.wraps(f)\ndef batch_centered(rewards): return rewards - rewards.mean()"),
        (), ""),
    "an object with __call__": (
        rewritten("batch_centered", "class C:\n    def __call__(self, r): return r - r.mean()\n"
        "batch_centered = C()"), (), ""),
    "a function in an if": (
        rewritten("batch_centered", "if True:\n    def batch_centered(r): return r - r.mean()"),
        (), ""),
    "a function in a class": (
        rewritten("batch_centered", "class Answers:\n    def batch_centered(r): return r"),
        ("batch_centered",), ""),
    "two definitions in a cell": (
        rewritten("batch_centered", "def batch_centered(r): return r\n" + ANSWER), (), ""),
    "edited points and checks": (changed(edited_points), (), "ours were used"),
    "edited labels": (changed(relabelled), (), "its cell id"),
    "swapped labels": (changed(swapped), (), ""),
    "a text cell": (
        changed(lambda nb: cell_of(nb, "reinforce").update(cell_type="markdown")),
        (), "turned into a text cell"),
    "a statement turned into code": (
        changed(lambda nb: nb["cells"][2].update(cell_type="code")), (), ""),
    "huge outputs": (
        changed(lambda nb: cell_of(nb, "reinforce").update(outputs=[{"text": "x" * 10**7}])),
        (), ""),
    "10,000 cells": (own_cells(*(f"y{n} = {n}" for n in range(5000))), (), ""),
    "an answer that uses another one": (
        rewritten("leave_one_out", "def leave_one_out(rewards):\n    G = rewards.shape[1]\n"
        "    return group_centered(rewards) * G / (G - 1)"), (), ""),
    "own cells that print, plot, raise and rebind": (
        own_cells("import matplotlib.pyplot as plt\nplt.plot([1])", "print(1 / 0)",
        "raise SystemExit", "reinforce = reinforce(torch.ones(1, 1), torch.ones(1, 1))",
        "def broken(:", "check('hw1/reinforce', reinforce)", "%%bash\nls", "input('name?')"),
        (), ""),
    "a plot below an answer": (
        changed(lambda nb: (
            nb["cells"].insert(2, code("import matplotlib.pyplot as plt")),
            cell_of(nb, "batch_centered").update(source=ANSWER + "plt.plot([1])\nplt.show()"),
        )), (), ""),
    "the library imported in an own cell, and not used by an answer": (
        own_cells("from policy_gradients import reinforce as ours\nours"), (), ""),
    "an answer whose own variable is called like an imported thing": (
        changed(lambda nb: (
            nb["cells"].insert(2, code("import numpy as np\nmiddle = np.zeros(3)")),
            cell_of(nb, "batch_centered").update(source="def batch_centered(rewards):\n"
            "    middle = rewards.mean()\n    return rewards - middle"),
        )), (), ""),
    "the library imported in an own cell, and used": (
        changed(lambda nb: (
            nb["cells"].insert(2, code("from policy_gradients import reinforce as ours")),
            nb["cells"].insert(3, code("def through(*a): return ours(*a)", "own-2")),
            cell_of(nb, "reinforce").update(source="def reinforce(a, b): return through(a, b)"),
        )), ("reinforce",), ""),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize("name", ARRIVES)
def test_whatever_arrives_ends_with_the_points_it_deserves_and_a_note(name):
    make, missing, words = ARRIVES[name]
    data = make()
    data = data if isinstance(data, bytes) else json.dumps(data).encode()
    submission = normalise(RELEASE, data)
    nbformat.validate(nbformat.from_dict(submission.notebook))
    assert lost(submission) == list(missing)
    assert words in " ".join(submission.notes)
    for function in missing:  # whoever loses something is told, here or by the verdict
        answer = submission.answers[f"hw1/{function}"]
        assert answer.key or answer.problem


def test_there_are_enough_kinds_of_submissions():
    assert len(ARRIVES) >= 30


def test_what_only_other_packages_give_is_refused_in_the_words_of_check():
    submission = normalise(RELEASE, json.dumps(
        ARRIVES["the library imported in an own cell, and used"][0]()).encode())  # fmt: skip
    problem = submission.answers["hw1/reinforce"].problem
    assert "The answer uses policy_gradients" in problem


def test_a_big_notebook_is_read_in_seconds():
    data = json.dumps(ARRIVES["10,000 cells"][0]()).encode()
    start = time.process_time()
    normalise(RELEASE, data)
    assert time.process_time() - start < 10


def paths(value, path=()):
    """The place of every value of a JSON document."""
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else ()
    for key, inner in enumerate(value) if isinstance(value, list) else inside:
        yield from paths(inner, (*path, key))


def put(value, path, new):
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] = new


ODD = (None, 7, -1.5, True, [], {}, "x" * 100_000, [None], {"a": [1]}, [[[]]])


def test_no_value_of_any_type_in_any_field_stops_grading():
    """600 places of the notebook, drawn with a seed, each with a value of another type."""
    draw = random.Random(0)
    notebook = answered()
    notebook["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": ["x"]}]
    for path in draw.sample(list(paths(notebook)), 600):
        damaged = json.loads(json.dumps(notebook))
        put(damaged, path, draw.choice(ODD))
        submission = normalise(RELEASE, json.dumps(damaged).encode())
        assert set(submission.answers) == {q.id for q in RELEASE.questions}, path
        json.dumps(submission.notebook)
    for odd in (*ODD, {"worksheets": 5}, {"worksheets": [5, {"cells": 5}, {"cells": [5, {}]}]}):
        assert normalise(RELEASE, json.dumps(odd).encode()).answers


def test_no_damage_to_the_bytes_stops_grading():
    draw = random.Random(1)
    data = plain()
    for _ in range(100):
        at = draw.randrange(len(data))
        noise = draw.randbytes(draw.randrange(1, 5))
        assert normalise(RELEASE, data[:at] + noise + data[at + 2 :]).answers
        assert normalise(RELEASE, noise + data[at:]).answers


def reflection(notebook, cell_id="q1-reflection"):
    return next(i for i, c in enumerate(notebook["cells"]) if c.get("id") == cell_id)


def text(source, cell_id="mine"):
    return {"cell_type": "markdown", "id": cell_id, "metadata": {}, "source": source}


def test_a_written_answer_in_a_cell_of_its_own_is_not_lost(notebook):
    at = reflection(notebook)
    notebook["cells"].insert(at + 1, text("Because the score has mean zero."))
    submission = fit(notebook)
    assert submission.written == {"q1_reflection"}
    assert "mean zero" in submission.notebook["cells"][at]["source"]
    assert any("q1_reflection" in note for note in submission.notes)


def test_a_written_answer_without_label_and_id_is_found_by_its_question(notebook):
    at = reflection(notebook)
    cell = notebook["cells"][at]
    cell["source"] = "".join(cell["source"]).replace("YOUR ANSWER HERE", "The mean is zero.")
    stripped(notebook, "metadata", "id")
    submission = fit(notebook)
    assert submission.written == {"q1_reflection"}
    assert "The mean is zero." in submission.notebook["cells"][at]["source"]


@pytest.mark.parametrize("how", ["deleted", "emptied", "as released"])
@pytest.mark.parametrize("own", [True, False])
def test_a_report_that_stands_elsewhere_waits_for_a_person(how, own):
    release = pristine("hw4_silent_bugs")
    notebook = copy.deepcopy(release.notebook)
    at = reflection(notebook, "experiment-report")
    if how == "deleted":
        del notebook["cells"][at]
    elif how == "emptied":
        notebook["cells"][at]["source"] = " "
    if own:
        notebook["cells"].insert(3, text("The fault was the mask."))
    submission = normalise(release, json.dumps(notebook).encode())
    assert ("experiment_report" in submission.written) == own
    assert any("experiment_report is missing or empty" in n for n in submission.notes) == own
    assert ("The fault was the mask." in str(submission.notebook["cells"][at])) == own


def edited_all_over(notebook):
    """Every cell that is no answer gets a line more; experiments import what answers may not."""
    for cell in notebook["cells"]:
        nbgrader = cell["metadata"].get("nbgrader", {})
        if cell["cell_type"] == "code" and not nbgrader.get("solution"):
            cell["source"] = "".join(cell["source"]) + "\nprint('mine')  # edited"


@pytest.mark.parametrize("homework", homeworks())
@pytest.mark.parametrize(
    "change",
    [
        lambda nb: None,
        edited_all_over,
        shuffled,
        lambda nb: stripped(nb, "id"),
        lambda nb: stripped(nb, "metadata"),
        lambda nb: stripped(nb, "metadata", "id"),
    ],
    ids=["as it is", "edited", "other order", "no ids", "no labels", "neither"],
)
def test_right_answers_of_every_homework_keep_their_points(homework, change):
    """Setup and experiment cells, which import more than answers may, hinder nothing."""
    release = pristine(homework)
    solution = json.loads((ROOT / f"solutions/{homework}/{homework}.ipynb").read_text("utf-8"))
    notebook = answered(release, solution)
    change(notebook)
    assert lost(normalise(release, json.dumps(notebook).encode()), release) == []


@pytest.mark.parametrize("homework", homeworks())
def test_an_untouched_homework_is_untouched(homework):
    release = pristine(homework)
    submission = normalise(release, json.dumps(release.notebook).encode())
    assert all(answer.untouched for answer in submission.answers.values())
    assert submission.notes == ()
    assert submission.written == frozenset()


def test_source_that_nobody_writes_is_not_read_as_python():
    import autograder.notebooks as reading

    notebook = copy.deepcopy(RELEASE.notebook)
    long = "a=1\n" * (reading.MAX_CELL // 4 + 1)
    notebook["cells"].insert(1, {"cell_type": "code", "source": long})
    submission = normalise(RELEASE, json.dumps(notebook).encode())
    assert f"Code cells of more than {reading.MAX_CELL:,} characters were left out: 2." in (
        submission.notes
    )
    assert not any(len(step.source) > reading.MAX_CELL for step in submission.steps)
    for cells in (reading.MAX_SOURCE // reading.MAX_CELL + 1, reading.MAX_CELLS + 1):
        each = "a" * reading.MAX_CELL if cells < 9 else ""
        many = {"cells": [{"cell_type": "code", "source": each}] * cells}
        submission = normalise(RELEASE, json.dumps(many).encode())
        assert not submission.steps
        assert "more than" in submission.notes[0]


def test_two_threads_may_read_notebooks_at_once():
    """Python 3.11's parser keeps one depth for all threads, and a collection lets them change."""
    data, errors = json.dumps(RELEASE.notebook).encode(), []
    before = gc.get_threshold(), sys.getswitchinterval()
    gc.callbacks.append(idle := lambda *_: sum(range(50)))
    gc.set_threshold(50)
    sys.setswitchinterval(1e-6)

    def read():
        end = time.monotonic() + 3
        while time.monotonic() < end and not errors:
            try:
                normalise(RELEASE, data)
            except SystemError as error:
                errors.append(str(error))

    threads = [threading.Thread(target=read) for _ in range(2)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.callbacks.remove(idle)
        gc.set_threshold(*before[0])
        sys.setswitchinterval(before[1])
    assert errors == []
