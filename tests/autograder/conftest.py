"""A grading key for tests alone, and the solution notebook of a homework's test file."""

import nbformat
import pytest
import torch


@pytest.fixture(scope="module")
def notebook(request):
    """The solution notebook that the test file names as its SOURCE."""
    return nbformat.read(request.module.SOURCE, 4)


@pytest.fixture(scope="module")
def solution(notebook):
    """The functions of the solution notebook, by name."""
    namespace = {"torch": torch}
    for cell in notebook.cells:
        if cell.id.endswith("-answer"):
            exec(cell.source, namespace)
    return namespace


@pytest.fixture(scope="session", autouse=True)
def grading_key(tmp_path_factory):
    """No test reads or writes a key in anybody's home."""
    path = tmp_path_factory.mktemp("key") / "grading.key"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLICY_GRADIENTS_GRADING_KEY", str(path))
        yield path
