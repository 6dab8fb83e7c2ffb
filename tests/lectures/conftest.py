"""What the tests of single lectures share: the lecture's own cells, run as they stand.

Tests cannot import from here. A test module names its notebook in LECTURE ("00_map") and in USED
the cells that its tests build on, and asks for the fixture `lecture`.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import pytest
import torch

matplotlib.use("Agg")
LECTURES = Path(__file__).resolve().parents[2] / "lectures"


@dataclass
class Lecture:
    """A committed notebook and what its cells have defined so far; `lecture["R"]` is their R.

    cells : the notebook's cells by id.
    names : the namespace in which cells run.
    """

    cells: dict[str, dict]
    names: dict = field(default_factory=dict)

    def __getitem__(self, name: str):
        return self.names[name]

    def text(self, cell: str) -> str:
        """What stands in a cell."""
        return "".join(self.cells[cell]["source"])

    def printed(self, cell: str) -> str:
        """What a cell had printed when the notebook was committed."""
        return "".join("".join(o.get("text", "")) for o in self.cells[cell]["outputs"])

    def run(self, cell: str) -> None:
        exec(compile(self.text(cell), cell, "exec"), self.names)

    def solution(self, exercise: str) -> str:
        """The code in the folded solution of an exercise."""
        (code,) = re.findall(r"```python\n(.*?)```", self.text(exercise), re.S)
        return code


@pytest.fixture(scope="module")
def lecture(request, committed):
    """The module's LECTURE after the cells in USED."""
    path = LECTURES / f"{request.module.LECTURE}.ipynb"
    committed(path)
    notebook = json.loads(path.read_text("utf-8"))
    lecture = Lecture({cell["id"]: cell for cell in notebook["cells"]})
    dtype = torch.get_default_dtype()
    try:
        for cell in request.module.USED:
            lecture.run(cell)
        yield lecture
    finally:
        torch.set_default_dtype(dtype)
