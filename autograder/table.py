"""grades.csv: one row per learner and homework, safe to open in a spreadsheet, replaced whole."""

import csv
import io
import os
from pathlib import Path

from autograder.notebooks import HomeworkError

FIRST = ["student", "homework", "total", "max", "late"]


def write_csv(path: Path, rows: list[dict]):
    """Replace the rows of these students and homeworks; keep all others. Atomic."""
    old = read_csv(path)
    done = {(row["student"], row["homework"]) for row in rows}
    kept = [row for row in old if (row.get("student"), row.get("homework")) not in done]
    # An error of ours must not erase a grade that is already there.
    earlier = {(row.get("student"), row.get("homework")): row for row in old}
    rows = [
        earlier.get((r["student"], r["homework"]), {}) | r if "total" not in r else r for r in rows
    ]
    merged = sorted(kept + rows, key=lambda r: (r.get("homework", ""), r.get("student", "")))
    columns = [*FIRST, *(c for row in merged for c in row if c != "note")]
    columns = [*dict.fromkeys(columns), "note"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: _cell(v) for k, v in row.items()} for row in merged)
    write_atomically(path, text.getvalue())


def read_csv(path: Path) -> list[dict]:
    """The rows of grades.csv, none when there is no file. Raises HomeworkError on another table."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        if not {"student", "homework"} <= set(reader.fieldnames or ()):
            raise HomeworkError(f"{path} is not a table of ours; move it away and grade again")
        return [{k: _plain(v) for k, v in row.items() if k is not None and v} for row in reader]


def _cell(text: str) -> str:
    """Spreadsheets run a text that begins like a formula; a leading quote stops that."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _plain(text: str) -> str:
    """The inverse of `_cell`."""
    return text[1:] if text[:1] == "'" and _cell(text[1:]) == text else text


def write_atomically(path: Path, text: str):
    """Write beside the target, then rename: a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
