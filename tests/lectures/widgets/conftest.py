"""What the tests of single widgets share."""

import pytest


@pytest.fixture
def refused():
    """A function: `changes` are refused with `message`, by a widget and by its class."""

    def check(made, changes, message):
        before = made.state
        for name, value in changes.items():
            with pytest.raises(ValueError, match=message):
                setattr(made, name, value)
        assert made.state == before
        with pytest.raises(ValueError, match=message):
            type(made)(**changes)

    return check
