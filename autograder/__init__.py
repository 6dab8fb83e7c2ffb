"""Questions, references, known mistakes, the judge, grading and release.

In a notebook: ``from autograder import check``, then ``check("hw1/leave_one_out", fn)``.
In code: ``from autograder.judge import judge``.

Names are loaded on first use, so that a process which only needs ``autograder.cases`` (it calls
a learner's function) never loads a reference.
"""

import importlib

_HOME = {"check": "autograder.checks", "judge": "autograder.judge"}

__all__ = ["check", "judge"]


def __getattr__(name):
    if name == "judge":  # the module is itself callable, see its last lines
        return importlib.import_module("autograder.judge")
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'autograder' has no attribute {name!r}")
