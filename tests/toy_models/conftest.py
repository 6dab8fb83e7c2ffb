"""What the tests of the toy models share."""

import inspect

import pytest


@pytest.fixture
def planted():
    """A function: `function` with one line of its source changed, a bug planted."""

    def plant(function, right: str, wrong: str):
        source = inspect.getsource(function)
        assert source.count(right) == 1, f"{right!r} is no longer a line of {function.__name__}"
        scope = dict(vars(inspect.getmodule(function)))
        exec(source.replace(right, wrong), scope)
        return scope[function.__name__]

    return plant
