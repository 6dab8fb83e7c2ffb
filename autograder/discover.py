"""Whose notebooks are in a folder, and since when? One entry per learner, whatever it is called."""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from autograder.notebooks import MAX_BYTES, HomeworkError, UnreadableError, read_submission
from autograder.questions import QUESTIONS

RESULTS = ("gradebook.db", "grades.csv", "submissions")  # they lie beside submissions, not in them


@dataclass(frozen=True)
class Found:
    """One learner's file, or the lack of one, and what was unusual about finding it.

    handed_in : when, UTC without a zone, as nbgrader keeps it; None without a file.
    stamped : that time comes from a timestamp.txt where nbgrader puts it, not from the file itself.
    """

    student: str
    path: Path | None
    notes: tuple[str, ...] = ()
    handed_in: datetime | None = None
    stamped: bool = False


def discover(folder: Path, homework: str) -> list[Found]:
    """One entry per learner below `folder`, sorted by name.

    Accepts folder/<student>/HW/HW.ipynb (nbgrader's), folder/<student>/HW.ipynb and
    folder/<student>.ipynb, a zip file with one notebook in a notebook's place, and file names such
    as "hw1 (1).ipynb". A folder without a notebook of this homework is a learner who handed in
    nothing, and so is one whose notebook has the labels of another homework.
    Raises HomeworkError where `folder` holds a class instead of its submissions.
    """
    if there := [name for name in RESULTS if (folder / name).exists()]:
        inner = folder / "submissions"
        advice = f"; did you mean {inner}?" if inner.is_dir() else ""
        raise HomeworkError(
            f"{folder} holds {there[0]}, so it is the folder of a class, not one with a folder or "
            f"file per learner{advice}"
        )
    found: dict[str, Found] = {}
    ignored = set(not_looked_at(folder))
    entries = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")]
    for entry in sorted(entries, key=lambda e: not e.is_dir()):  # folders before loose files
        if printable(entry.name) in ignored:
            continue
        folder_of_its_own = entry.is_dir() and not entry.is_symlink()
        one = _in_folder(entry, homework) if folder_of_its_own else _loose(entry, homework)
        if (first := found.get(one.student)) is None:
            found[one.student] = one
        else:
            note = f"There was also a file {printable(entry.name)}; it was not graded."
            found[one.student] = replace(first, notes=(*first.notes, note))
    return [_with_time(found[student], homework, folder) for student in sorted(found)]


def not_looked_at(folder: Path) -> list[str]:
    """Names of what lies in `folder` and is neither a learner's folder nor a notebook."""
    entries = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")]
    return [
        printable(entry.name)
        for entry in entries
        if not entry.is_dir() and not IS_NOTEBOOK.search(entry.name) and not _zipped(entry)
    ]


IS_NOTEBOOK = re.compile(r"\.ipynb(\.txt|\.json)?$", re.I)  # as some browsers save it


def _zipped(path: Path) -> bool:
    """Whether it is a zip file with one notebook."""
    if path.suffix.lower() != ".zip" or path.is_symlink() or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            read_submission(file.read(MAX_BYTES + 1))
    except (OSError, UnreadableError):
        return False
    return True


def other_homework(path: Path, homework: str) -> str:
    """ "hw3" where most labels of that homework's answers are in the file and none of ours."""
    try:
        with path.open("rb") as file:
            labels = {cell.grade_id for cell in read_submission(file.read(MAX_BYTES + 1)).cells}
    except (OSError, UnreadableError):
        return ""  # said when it is graded
    answers: dict[str, list[bool]] = {}
    for name in QUESTIONS:
        part, function = name.split("/")
        answers.setdefault(part, []).append(bool({function, f"{function}_answer"} & labels))
    if any(answers.pop(homework.split("_")[0], ())):
        return ""
    return max((name for name, has in answers.items() if 2 * sum(has) > len(has)), default="")


def _with_time(found: Found, homework: str, folder: Path) -> Found:
    if found.path is None:
        return found
    if other := other_homework(found.path, homework):
        note = (
            f"{printable(found.path.name)} is a notebook of homework {_number(other)}, "
            f"so nothing of {homework} was handed in."
        )
        return Found(found.student, None, (*found.notes, note))
    when, stamped = handed_in(found.path, homework, folder)
    notes = found.notes
    if not stamped and (found.path.parent / "timestamp.txt").exists():
        notes += (
            "The file timestamp.txt holds no time, or is not where nbgrader puts it; "
            "the notebook's own time counts.",
        )
    return replace(found, notes=notes, handed_in=when, stamped=stamped)


def handed_in(path: Path, homework: str, folder: Path) -> tuple[datetime, bool]:
    """When a notebook was handed in, and whether nbgrader's timestamp.txt says so.

    That is folder/<student>/HW/timestamp.txt, beside the notebook, and nowhere else. Without one it
    is the time at which the file was last changed. UTC without a zone.
    """
    from nbgrader.utils import parse_utc

    stamp = path.parent / "timestamp.txt"
    try:
        if (
            path.parent == _nbgraders(path, homework, folder)
            and stamp.is_file()
            and not stamp.is_symlink()
        ):
            with stamp.open(encoding="utf-8") as file:
                return parse_utc(file.read(100).strip()), True
    except (OSError, ValueError, OverflowError):
        pass  # then the file's own time
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).replace(tzinfo=None), False


def _nbgraders(path: Path, homework: str, folder: Path) -> Path | None:
    """folder/<student>/HW, for a file somewhere below folder/<student>."""
    parts = path.relative_to(folder).parts
    return folder / parts[0] / homework if len(parts) > 1 else None


def _loose(path: Path, homework: str) -> Found:
    student = printable(IS_NOTEBOOK.sub("", path.name) if not _zipped(path) else path.stem)
    if path.is_symlink() or not path.is_file():
        return Found(student, None, ("It is a link or no ordinary file, not a notebook.",))
    if copy_number(path.stem, homework) is not None:
        return Found(student, path, ("The file name does not say whose notebook this is.",))
    return Found(student, path)


def _in_folder(folder: Path, homework: str) -> Found:
    student = printable(folder.name)
    notebooks = [
        path
        for path in sorted(folder.rglob("*"))
        if IS_NOTEBOOK.search(path.name)
        and path.is_file()
        and not path.is_symlink()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not notebooks:
        notebooks = [p for p in sorted(folder.rglob("*.[zZ][iI][pP]")) if _zipped(p)]
    named = [p for p in notebooks if copy_number(p.stem, homework) is not None]
    # The learner's own name for the file: only where nobody could mean another homework.
    others = [
        p
        for p in notebooks
        if p.parent in (folder, folder / homework) and _number(p.stem) in ("", _number(homework))
    ]
    if not named and len(others) == 1:
        note = f"The notebook was called {printable(others[0].name)} instead of {homework}.ipynb."
        return Found(student, others[0], (note,))
    if not named:
        note = f"There were {len(others)} notebooks, none called {homework}.ipynb."
        return Found(student, None, (note,) if others else ())
    # nbgrader's place, then the folder itself, then deeper ones; there the highest copy number,
    # and among equals, such as attempt1/hw1.ipynb and attempt2/hw1.ipynb, the latest.
    order = [folder / homework, folder]
    first = max(
        named,
        key=lambda p: (
            -order.index(p.parent) if p.parent in order else -len(order),
            copy_number(p.stem, homework),
            handed_in(p, homework, folder.parent)[0],
        ),
    )
    name = printable(first.name)
    notes = []
    if first.stem != homework:
        notes.append(f"The notebook was called {name} instead of {homework}.ipynb.")
    if len(named) > 1:
        rest = ", ".join(printable(p.relative_to(folder)) for p in named if p != first)[:200]
        notes.append(f"There were {len(named)} notebooks; {name} was graded, not {rest}.")
    return Found(student, first, tuple(notes))


def copy_number(stem: str, homework: str) -> int | None:
    """0 for HW or hwN, n for its n-th copy as browsers and JupyterLab name it, None for others."""
    stem = re.sub(r"\.ipynb$", "", stem, flags=re.I)  # of HW.ipynb.txt
    match = re.fullmatch(r"(.*?)[\s_-]*(?:\((\d+)\)|copy[\s_-]*(\d*))", stem, re.I)
    base = re.sub(r"[\W_]+", "", match[1] if match else stem).lower()
    if base not in (homework.replace("_", ""), homework.split("_")[0]):
        return None
    return int(match[2] or match[3] or 1) if match else 0


def _number(name: str) -> str:
    """ "1" for hw1…, "" for a name that does not begin like a homework's."""
    match = re.match(r"hw\W*(\d+)", name, re.I)
    return match[1] if match else ""


def printable(text) -> str:
    """One line of valid text: names of files and learners go to terminals, pages and databases."""
    valid = str(text).encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() else " " for c in valid)
