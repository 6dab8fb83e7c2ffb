"""What every committed notebook promises, checked on the files as a reader gets them."""

import itertools
import json
import re
import statistics
from pathlib import Path

import pytest

import policy_gradients

ROOT = Path(__file__).resolve().parents[2]
LECTURES = sorted((ROOT / "lectures").glob("[0-9][0-9]_*.ipynb"))
GALLERY = ROOT / "lectures" / "widget_gallery.ipynb"
HANDED_OUT = sorted(p for r in ("homework", "solutions") for p in (ROOT / r).glob("*/*.ipynb"))
MACHINE_PATH = re.compile(r"(/home/|/root/|/tmp/|/Users/|[A-Z]:\\\\)")
lecture = pytest.mark.parametrize("path", LECTURES, ids=lambda p: p.stem)
executed = pytest.mark.parametrize("path", [*LECTURES, GALLERY], ids=lambda p: p.stem)
notebook = pytest.mark.parametrize("path", [*LECTURES, GALLERY, *HANDED_OUT], ids=lambda p: p.stem)


@pytest.fixture(autouse=True)
def untouched(request, committed):
    if "path" in request.fixturenames:
        committed(request.getfixturevalue("path"))


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def source(cell: dict) -> str:
    return "".join(cell["source"])


def cells(path: Path, kind: str) -> list[dict]:
    return [cell for cell in read(path)["cells"] if cell["cell_type"] == kind]


def tags(path: Path) -> list[str]:
    return re.findall(r"\\tag\{([A-Z]+-\d+)\}", "".join(map(source, cells(path, "markdown"))))


def test_there_are_lectures():
    assert {path.stem[:2] for path in LECTURES} >= {f"{i:02d}" for i in range(21)}


@notebook
def test_cells_have_their_own_readable_ids(path):
    ids = [cell["id"] for cell in read(path)["cells"]]
    assert len(set(ids)) == len(ids)
    assert [i for i in ids if re.fullmatch(r"[0-9a-f]{8}", i)] == []


@notebook
def test_no_paths_of_a_machine(path):
    text = path.read_text(encoding="utf-8")
    assert MACHINE_PATH.search(text) is None
    assert str(ROOT) not in text


@executed
def test_committed_from_one_clean_run(path):
    code = cells(path, "code")
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"] == []


@executed
def test_saved_without_widget_state(path):
    text = read(path)
    assert "widgets" not in text["metadata"]
    assert "application/vnd.jupyter.widget-view+json" not in path.read_text(encoding="utf-8")


@lecture
def test_size_and_shape(path):
    assert path.stat().st_size < 600_000
    lengths = [source(cell).count("\n") + 1 for cell in cells(path, "code")]
    assert statistics.median(lengths) < 9
    assert max(lengths) <= 25
    words = sum(len(source(cell).split()) for cell in cells(path, "markdown"))
    assert 2000 <= words <= 5500  # formulas and folded answers count as words here
    pictures = [
        o for c in cells(path, "code") for o in c["outputs"] if "image/png" in o.get("data", {})
    ]
    assert len(pictures) >= 3
    assert len(set(tags(path))) == len(tags(path)) >= 6
    assert sum("<details>" in source(cell) for cell in cells(path, "markdown")) >= 4


@lecture
def test_sections_are_numbered_without_a_gap(path):
    text = "\n".join(map(source, cells(path, "markdown")))
    numbers = [int(n) for n in re.findall(r"^## (\d+) ·", text, flags=re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 9


@lecture
def test_the_start_page_knows_the_time_it_takes(path):
    said = re.search(r"\*\*Time:\*\* (\d+) minutes to read", source(cells(path, "markdown")[0]))
    start = (ROOT / "lectures" / "README.md").read_text(encoding="utf-8")
    row = re.search(rf"\| \[{path.stem[:2]} · [^|]*\({path.name}\) \|[^|]*\| (\d+) \|", start)
    assert row is not None
    assert row[1] == said[1]


@lecture
def test_claims_are_asserted(path):
    assert sum("assert" in source(cell) for cell in cells(path, "code")) >= 4


@executed
def test_no_two_code_cells_in_a_row_without_something_to_see(path):
    rows = read(path)["cells"]
    silent = [
        first["id"]
        for first, second in itertools.pairwise(rows)
        if first["cell_type"] == second["cell_type"] == "code" and not first["outputs"]
    ]
    assert silent == []


@executed
def test_pictures_have_words_beside_them(path):
    """Alt text travels in the output itself, so that nobody depends on seeing the picture."""
    for cell in cells(path, "code"):
        for output in cell["outputs"]:
            if "image/png" in output.get("data", {}):
                assert "alt" in json.dumps(output), f"{cell['id']}: a picture without alt text"


@notebook
def test_links_lead_somewhere(path):
    text = "".join(map(source, cells(path, "markdown")))
    links = [link for link in re.findall(r"\]\(([^)#\s]+)\)", text) if "://" not in link]
    links += [link for link in re.findall(r"\]\(([^)\s]+)#[^)]*\)", text) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []


@executed
def test_tags_that_are_referred_to_exist(path):
    known = {tag for other in LECTURES for tag in tags(other)}
    referred = set(
        re.findall(r"\[([A-Z]{2,4}-\d+)\]", "".join(map(source, cells(path, "markdown"))))
    )
    assert referred <= known


def test_tags_in_docstrings_exist():
    """A docstring of the library that cites [PG-4] must find it in the lecture of that prefix."""
    known = {tag for path in LECTURES for tag in tags(path)}
    taught = {tag.split("-")[0] for tag in known}
    folder = Path(policy_gradients.__file__).parent
    cited = set()
    for module in [*folder.glob("*.py"), *(ROOT / "toy_models").glob("*.py")]:
        cited |= set(re.findall(r"\[([A-Z]{2,4}-\d+)\]", module.read_text(encoding="utf-8")))
    assert {tag for tag in cited if tag.split("-")[0] in taught} <= known


@pytest.mark.parametrize("path", HANDED_OUT, ids=lambda p: f"{p.parts[-3]}-{p.stem}")
def test_handed_out_without_outputs(path):
    code = cells(path, "code")
    assert code
    assert [c["id"] for c in code if c["outputs"] or c["execution_count"] is not None] == []
