"""solutions/HW -> homework/HW, by nbgrader's own generator.

nbgrader's `generate_assignment --force` deletes the old release before it may fail. So the new one
is generated in a temporary folder without a database, checked, compared, and only then moved, one
file at a time, each by an atomic rename.
"""

import filecmp
import json
import logging
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from autograder.notebooks import HomeworkError, Release, load_release

ROOT = Path(__file__).resolve().parent.parent
RELEASED = Path("autograder/released")  # only in a learner's bundle, which has no solutions/


@dataclass(frozen=True)
class Change:
    """One file of a release that is not as it would be generated: what happens to it."""

    path: Path
    what: str  # "new", "changed" or "no longer generated"


def homeworks(root: Path = ROOT) -> list[str]:
    """Names of the homeworks that have a solution; in a bundle, of those that are in it."""
    if not (root / "solutions").is_dir():
        return sorted(p.stem for p in (root / RELEASED).glob("*.ipynb"))
    return sorted(
        p.parent.name for p in (root / "solutions").glob("*/*.ipynb") if p.stem == p.parent.name
    )


def source_of(homework: str, root: Path) -> Path:
    """The solution's notebook. Raises HomeworkError when it is missing, broken or without ids."""
    source = root / "solutions" / homework / f"{homework}.ipynb"
    if not source.is_file():
        known = ", ".join(homeworks(root)) or "none"
        if homework in homeworks(root):
            raise HomeworkError("this copy of the course has no solutions to release from")
        raise HomeworkError(f"there is no homework {homework!r}; there are: {known}")
    try:
        cells = json.loads(source.read_text(encoding="utf-8"))["cells"]
    except (ValueError, KeyError, TypeError) as error:
        raise HomeworkError(f"{source} is not a notebook: {error}") from None
    for index, cell in enumerate(cells):
        if not cell.get("id"):
            raise HomeworkError(f"{source}, cell {index + 1}: no cell id; releases would differ")
    return source


def release(homework: str, root: Path = ROOT, *, check: bool = False) -> list[Change]:
    """Bring homework/HW up to date with solutions/HW; with `check` only say what would change.

    Raises HomeworkError when the source is missing or malformed, or when a line of a solution is
    still in the result. Nothing in homework/ is touched then.
    """
    source = source_of(homework, root)
    target = root / "homework" / homework
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        generated = generate(homework, root, Path(folder))
        verify(source, generated / source.name)
        changes = compare(generated, target)
        if not check:
            kept = root / ".autograder" / "backups" / f"{homework}-{datetime.now():%Y%m%d-%H%M%S}"
            for change in changes:
                _apply(change, generated, target, kept)
    return changes


def pristine(homework: str, root: Path = ROOT) -> Release:
    """A homework as it was handed out, generated afresh.

    Not read from homework/: that file is the one a learner works in, so it may hold answers. A
    bundle has a copy for this.
    """
    if not (root / "solutions").is_dir() and homework in homeworks(root):
        return load_release(root / RELEASED / f"{homework}.ipynb")
    source = source_of(homework, root)
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        generated = generate(homework, root, Path(folder)) / source.name
        verify(source, generated)
        return load_release(generated)


def generate(homework: str, root: Path, folder: Path) -> Path:
    """nbgrader's release of one homework, written below `folder`."""
    from nbgrader.converters import GenerateAssignment
    from nbgrader.converters.base import NbGraderException
    from nbgrader.coursedir import CourseDirectory
    from traitlets.config import PyFileConfigLoader

    config = PyFileConfigLoader("nbgrader_config.py", path=str(Path(__file__).parent)).load_config()
    config.CourseDirectory.root = str(folder)
    config.CourseDirectory.assignment_id = homework
    config.SaveCells.enabled = False
    course = CourseDirectory(config=config)
    solutions = folder / course.source_directory / homework
    shutil.copytree(
        root / "solutions" / homework,
        solutions,
        ignore=shutil.ignore_patterns("__pycache__", ".*", "*.pyc"),
    )
    log, messages = _quiet_log()
    generator = GenerateAssignment(coursedir=course, config=config, no_database=True, log=log)
    try:
        generator.start()
    except (NbGraderException, SystemExit) as error:
        detail = "; ".join(messages) or str(error)
        raise HomeworkError(f"nbgrader cannot generate {homework}: {detail}") from None
    return folder / course.release_directory / homework


def _quiet_log():
    """A logger that keeps error messages instead of printing them."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage().strip().splitlines()[-1])

    log = logging.Logger("release", logging.ERROR)
    log.addHandler(Keep())
    return log, messages


def verify(source: Path, generated: Path):
    """Raise HomeworkError unless the generated notebook is fit to be handed out."""
    ours = json.loads(source.read_text(encoding="utf-8"))["cells"]
    theirs = json.loads(generated.read_text(encoding="utf-8"))["cells"]
    if [c["id"] for c in ours] != [c.get("id") for c in theirs]:
        raise HomeworkError(f"{source}: the release has other cells than the solution")
    for cell in theirs:
        if cell.get("outputs") or cell.get("execution_count"):
            raise HomeworkError(f"{source}, cell {cell['id']}: the release still holds an output")
    secret, public = solution_lines(ours)
    released = {_line(x) for c in theirs for x in _text(c).splitlines()}
    leaked = sorted((secret - public) & released)
    if leaked or any("SOLUTION" in line and re.search(r"BEGIN|END", line) for line in released):
        raise HomeworkError(f"{source}: the release still holds text of the solution: {leaked[:3]}")
    load_release(generated)


def solution_lines(cells) -> tuple[set[str], set[str]]:
    """Lines inside and outside the solutions, long enough to mean something."""
    secret, public = set(), set()
    for cell in cells:
        meta = cell["metadata"].get("nbgrader", {})
        marked = "BEGIN SOLUTION" in _text(cell)
        inside = bool(meta.get("solution")) and not marked
        for line in _text(cell).splitlines():
            if "BEGIN SOLUTION" in line or "END SOLUTION" in line:
                inside = "BEGIN SOLUTION" in line
            elif len(_line(line)) > 8:
                (secret if inside else public).add(_line(line))
    return secret, public


def _text(cell) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def _line(line: str) -> str:
    return " ".join(line.split())


def compare(generated: Path, target: Path) -> list[Change]:
    """What differs between a generated folder and the one in use."""
    new = {p.relative_to(generated) for p in generated.rglob("*") if p.is_file()}
    old = {
        p.relative_to(target)
        for p in target.rglob("*")
        if p.is_file() and not any(part.startswith(".") for part in p.relative_to(target).parts)
    }
    changes = [Change(p, "no longer generated") for p in sorted(old - new)]
    for path in sorted(new):
        if path not in old:
            changes.append(Change(path, "new"))
        elif not filecmp.cmp(generated / path, target / path, shallow=False):
            changes.append(Change(path, "changed"))
    return changes


def _apply(change: Change, generated: Path, target: Path, kept: Path):
    """Make one change; what was there, perhaps somebody's work, is copied to `kept` first."""
    destination = target / change.path
    if destination.exists():
        (kept / change.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(destination, kept / change.path)
    if change.what == "no longer generated":
        destination.unlink()
        return
    destination.parent.mkdir(parents=True, exist_ok=True)
    temporary = destination.with_name(f".{destination.name}.new")
    shutil.copyfile(generated / change.path, temporary)
    os.replace(temporary, destination)
