"""Whose notebooks are in a folder, and since when? One entry per learner, whatever it is called."""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True)
class Found:
    """One learner's file, or the lack of one, and what was unusual about finding it.

    handed_in : when, UTC without a zone, as nbgrader keeps it; None without a file.
    stamped : that time comes from nbgrader's timestamp.txt, not from the file itself.
    """

    student: str
    path: Path | None
    notes: tuple[str, ...] = ()
    handed_in: datetime | None = None
    stamped: bool = False


def discover(folder: Path, homework: str) -> list[Found]:
    """One entry per learner below `folder`, sorted by name.

    Accepts folder/<student>/HW/HW.ipynb (nbgrader's), folder/<student>/HW.ipynb and
    folder/<student>.ipynb, and file names such as "hw1 (1).ipynb". A folder without a notebook of
    this homework is a learner who handed in nothing.
    """
    found: dict[str, Found] = {}
    entries = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")]
    for entry in sorted(entries, key=lambda e: not e.is_dir()):  # folders before loose files
        if not entry.is_dir() and entry.suffix != ".ipynb":
            continue
        folder_of_its_own = entry.is_dir() and not entry.is_symlink()
        one = _in_folder(entry, homework) if folder_of_its_own else _loose(entry, homework)
        if (first := found.get(one.student)) is None:
            found[one.student] = one
        else:
            note = f"There was also a file {printable(entry.name)}; it was not graded."
            found[one.student] = replace(first, notes=(*first.notes, note))
    return [_with_time(found[student]) for student in sorted(found)]


def _with_time(found: Found) -> Found:
    if found.path is None:
        return found
    when, stamped = handed_in(found.path)
    notes = found.notes
    if not stamped and (found.path.parent / "timestamp.txt").exists():
        notes += ("The file timestamp.txt holds no time; the notebook's own time counts.",)
    return replace(found, notes=notes, handed_in=when, stamped=stamped)


def handed_in(path: Path) -> tuple[datetime, bool]:
    """When a notebook was handed in, and whether nbgrader's timestamp.txt beside it says so.

    Without one it is the time at which the file was last changed. UTC without a zone.
    """
    from nbgrader.utils import parse_utc

    stamp = path.parent / "timestamp.txt"
    try:
        if stamp.is_file() and not stamp.is_symlink():
            with stamp.open(encoding="utf-8") as file:
                return parse_utc(file.read(100).strip()), True
    except (OSError, ValueError, OverflowError):
        pass  # then the file's own time
    return datetime.fromtimestamp(path.stat().st_mtime, UTC).replace(tzinfo=None), False


def _loose(path: Path, homework: str) -> Found:
    student = printable(path.stem)
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
        if re.search(r"\.ipynb(\.txt|\.json)?$", path.name, re.I)  # as some browsers save it
        and path.is_file()
        and not path.is_symlink()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
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
            handed_in(p)[0],
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
