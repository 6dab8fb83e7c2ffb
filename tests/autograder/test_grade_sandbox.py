"""A learner's function runs elsewhere, within limits, and only plain data comes back."""

import json
import math
import os
from pathlib import Path

import pytest
import torch

from autograder import wire
from autograder.cases import Case
from autograder.sandbox import (
    Cell,
    Limits,
    Sandbox,
    WorkerError,
    encode_cases,
    isolation,
    read_outcomes,
)

X = torch.tensor([[1.0, -2.0, 0.1]], dtype=torch.float64)
CASES = encode_cases([Case("one", (X,), {}, differentiable=(0,), weights=torch.ones_like(X))])


LIMITS = Limits(cpu_seconds=1, wall_seconds=4, memory_mb=512)


@pytest.fixture(scope="module", params=["isolated", "limits only"])
def sandbox(request, missing):
    isolated = request.param == "isolated"
    if isolated and isolation():
        missing("isolation", isolation())
    with Sandbox(LIMITS, isolated=isolated) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def limits_only():
    with Sandbox(LIMITS, isolated=False) as sandbox:
        yield sandbox


def run(sandbox, source, *before):
    cells = [Cell("imports", "import torch"), *before, Cell("answer", source)]
    return sandbox.run(cells, "answer", "f", CASES)


def test_values_and_gradients_come_back_exactly(sandbox):
    (outcome,) = run(sandbox, "def f(x):\n    return 3 * x").outcomes
    assert torch.equal(outcome.value, 3 * X)
    assert outcome.value.dtype == torch.float64
    assert torch.equal(outcome.gradients[0], torch.full_like(X, 3.0))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def f(x):\n    while True:\n        pass", "took longer than"),
        ("import time\ndef f(x):\n    time.sleep(60)", "took longer than"),
        ("import os\ndef f(x):\n    os._exit(0)", "ended the Python process"),
        (
            "import ctypes\ndef f(x):\n    ctypes.string_at(0)",
            "ended the Python process (SIGSEGV)",
        ),
        ("f = 3", "is not a function"),
        ("g = 3", "is not defined"),
        ("def f(x):\n    return x.expand(2_000_000, 1, 3)", "cannot be sent"),
    ],
)
def test_whatever_ends_badly_ends_in_words(sandbox, source, words):
    result = run(sandbox, source)
    assert result.outcomes is None
    assert words in result.problem
    # and the worker serves the next question
    assert run(sandbox, "def f(x):\n    return x").outcomes is not None


def test_signals_cannot_be_ignored_to_gain_time():
    source = (
        "import signal\nfor s in (signal.SIGXCPU, signal.SIGTERM):\n"
        "    signal.signal(s, signal.SIG_IGN)\ndef f(x):\n    while True:\n        pass"
    )
    with Sandbox(
        Limits(cpu_seconds=1, wall_seconds=120), isolated=False
    ) as sandbox:  # ended by the CPU limit
        assert "took longer than 1 seconds" in run(sandbox, source).problem


def test_memory_is_limited(sandbox):
    (outcome,) = run(sandbox, "def f(x):\n    return torch.zeros(10**10)").outcomes
    assert "memory" in outcome.error
    assert outcome.value is None


def test_disk_is_limited(sandbox):
    source = "def f(x):\n    open('big', 'wb').write(b'0' * 10**8)\n    return x"
    result = run(sandbox, source)
    assert result.outcomes is None or result.outcomes[0].error


def test_an_endless_cell_is_named(sandbox):
    result = run(sandbox, "def f(x):\n    return x", Cell("mine", "while True:\n    pass"))
    assert result.slow_cell == "mine"


def test_an_error_in_a_cell_costs_that_statement_only(sandbox):
    result = run(sandbox, "check('hw1', 1)\ndef f(x):\n    return x\nplot(f)")
    assert result.outcomes is not None
    assert "NameError" in result.errors["answer"]


@pytest.mark.parametrize("module", ["policy_gradients", "toy_models", "autograder.judge"])
def test_the_course_packages_cannot_be_imported(sandbox, module):
    source = f"import importlib\ndef f(x):\n    importlib.import_module('{module}')\n    return x"
    (outcome,) = run(sandbox, source).outcomes
    assert "not available" in outcome.error


def test_no_import_hook_leads_to_the_course_packages(sandbox):
    source = (
        "import sys\ndef f(x):\n    sys.meta_path[:] = sys.meta_path[1:]\n"
        "    import policy_gradients\n    return x"
    )
    (outcome,) = run(sandbox, source).outcomes
    assert "ModuleNotFoundError" in outcome.error


def test_annotations_of_the_future_and_scripted_functions(sandbox):
    source = "from __future__ import annotations\ndef f(x: Nowhere) -> Nothing:\n    return 3 * x"
    assert run(sandbox, source).outcomes[0].value is not None


def test_environment_and_working_folder_are_empty(sandbox, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_TEST", "1")
    source = (
        "import os\ndef f(x):\n"
        "    assert not os.listdir('.'), 'files'\n"
        "    assert 'SECRET_OF_THE_TEST' not in os.environ, 'environment'\n"
        "    open('left', 'w').write('x')\n    return x"
    )
    for _ in range(2):  # what one question leaves behind, the next does not find
        (outcome,) = run(sandbox, source).outcomes
        assert outcome.error == ""


def test_the_worker_holds_no_reference(sandbox):
    source = (
        "import sys\ndef f(x):\n"
        "    ours = ('policy_gradients', 'toy_models', 'autograder')\n"
        "    found = [m for m in sys.modules if m.split('.')[0] in ours]\n"
        "    assert not found, found\n    return x"
    )
    (outcome,) = run(sandbox, source).outcomes
    assert outcome.error == ""


def test_one_question_cannot_reach_the_next(sandbox):
    run(sandbox, "import torch\ntorch.Tensor.__mul__ = None\ndef f(x):\n    return x")
    (outcome,) = run(sandbox, "def f(x):\n    return 3 * x").outcomes
    assert torch.equal(outcome.value, 3 * X)


def test_a_killed_worker_is_replaced(sandbox):
    run(sandbox, "def f(x):\n    return x")
    os.kill(sandbox._process.pid, 9)
    assert run(sandbox, "def f(x):\n    return x").outcomes is not None


def test_nothing_outlives_its_question(limits_only):
    source = (
        "import os, subprocess\ndef f(x):\n"
        "    sleeper = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "    return x + sleeper.pid"
    )
    (outcome,) = run(limits_only, source).outcomes
    sleeper = round(float(outcome.value[0, 0] - X[0, 0]))
    with pytest.raises(ProcessLookupError):
        os.kill(sleeper, 0)


def test_killing_the_worker_costs_that_question_only(limits_only):
    source = "import os\ndef f(x):\n    os.kill(os.getppid(), 9)"
    assert "ended the process" in run(limits_only, source).problem
    assert run(limits_only, "def f(x):\n    return x").outcomes is not None


def test_a_worker_that_cannot_start_is_our_error(monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with (
        Sandbox(isolated=False) as own,
        pytest.raises(WorkerError, match="no process to run answers"),
    ):
        run(own, "def f(x):\n    return x")


def test_an_exception_that_cannot_be_printed(sandbox):
    source = (
        "class Odd(Exception):\n    def __str__(self):\n        raise self\n"
        "def f(x):\n    return x\nraise Odd"
    )
    result = run(sandbox, source)
    assert result.outcomes is not None
    assert "Odd" in result.errors["answer"]


def test_where_isolation_is_missing_the_reason_is_given(monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    isolation.cache_clear()
    try:
        with pytest.raises(WorkerError, match=r"cannot be isolated here .it said nothing"):
            Sandbox()
    finally:
        isolation.cache_clear()


@pytest.mark.parametrize("isolated", [True, False])
def test_closing_leaves_no_process_and_no_file(isolated, missing):
    if isolated and isolation():
        missing("isolation", isolation())
    with Sandbox(isolated=isolated) as own:
        assert run(own, "def f(x):\n    return x").outcomes is not None
        pid, folder = own._process.pid, Path(own._folder.name)
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_format_carries_what_we_use_exactly():
    tree = {
        "a": [1, 2.5, None, True, "x", math.inf],
        "b": (torch.tensor([1.0, math.nan, -math.inf]), torch.tensor([[True]])),
        "c": torch.randn(3, 2, dtype=torch.float32),
        "d": torch.zeros(0, 4, dtype=torch.int64),
    }
    back = wire.loads(wire.dumps(tree))
    assert back["a"] == tree["a"]
    sent, received = ([*t["b"], t["c"], t["d"]] for t in (tree, back))
    for one, two in zip(sent, received, strict=True):
        assert one.dtype == two.dtype
        assert torch.equal(one.nan_to_num(7.0), two.nan_to_num(7.0))


@pytest.mark.parametrize(
    "message",
    [
        {"pickle": "x"},
        {"tensor": {"dtype": "float64", "shape": [2], "data": [1.0], "requires_grad": False}},
        {"tensor": {"dtype": "object", "shape": [], "data": [1], "requires_grad": False}},
        {"tensor": {"dtype": "int64", "shape": [1], "data": ["1"], "requires_grad": False}},
        {"tensor": {"dtype": "int64", "shape": [-1], "data": [1], "requires_grad": False}},
        {"tensor": {"dtype": "float64", "shape": [], "data": [1.0]}},
        {"tensor": {"dtype": [], "shape": [], "data": [1.0], "requires_grad": False}},
        {"tensor": {"dtype": "int64", "shape": [2**70, 0], "data": [], "requires_grad": False}},
        {"tensor": {"dtype": "int64", "shape": [1] * 17, "data": [1], "requires_grad": False}},
        {"dict": [1]},
        {"a": 1, "b": 2},
    ],
)
def test_anything_else_is_refused(message):
    with pytest.raises(wire.WireError):
        wire.loads(json.dumps(message).encode())


def test_only_complete_outcomes_are_read():
    fields = {"value": None, "kind": "tensor", "gradients": (), "modified": (), "error": ""}
    assert len(read_outcomes(wire.encode([fields]), 1)) == 1
    with pytest.raises(wire.WireError):
        read_outcomes(wire.encode([fields]), 2)
    for change in ({"error": 3}, {"gradients": [1]}, {"modified": (1.5,)}, {"extra": 1}):
        with pytest.raises(wire.WireError):
            read_outcomes(wire.encode([fields | change]), 1)


def test_what_a_process_says_is_printable_and_says_nothing_twice():
    texts = {"kind": "a\x1b[31m", "error": "E: \ud800\x00\x9b\u202eb"}
    fields = {"value": None, "gradients": (), "modified": (1, 0, 0, 1) * 9000} | texts
    (outcome,) = read_outcomes(wire.encode([fields]), 1)
    assert outcome.modified == (0, 1)
    assert outcome.kind.isprintable()
    assert outcome.error.isprintable()
    assert outcome.error.startswith("E: ")
    assert outcome.error.endswith("b")


def test_texts_of_events_are_printable_and_apart_from_our_own_words(sandbox):
    result = run(sandbox, "def f(x):\n    raise KeyboardInterrupt('\\ud800\\x1b[31m secret')")
    assert result.problem == "stopped with an exception"
    assert "secret" in result.said
    assert result.said.isprintable()
    cell = Cell("helper", "raise ValueError('\\ud800\\x1b[31m')")
    result = run(sandbox, "def f(x):\n    return x", cell)
    assert result.outcomes is not None
    assert result.errors["helper"].isprintable()
