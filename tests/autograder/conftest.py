"""Tests grade with a key of their own: no test reads or writes one in anybody's home."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def grading_key(tmp_path_factory):
    path = tmp_path_factory.mktemp("key") / "grading.key"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLICY_GRADIENTS_GRADING_KEY", str(path))
        yield path
