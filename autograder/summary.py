"""What the instructor sees in the terminal after a run."""

import os
import shutil
import textwrap
from collections import Counter
from pathlib import Path

from autograder.discover import printable
from autograder.grade import remarks
from autograder.gradebook import is_bonus
from autograder.sandbox import NOT_ISOLATED


def table(rows: list[tuple[str, ...]], header: tuple[str, ...]) -> str:
    """Left-aligned columns under a header; the last column is wrapped to the terminal."""
    rows = [
        (
            *(_cut(printable(c)) for c in row[:-1]),
            printable(row[-1]),
        )
        for row in rows
    ]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header) - 1)]
    indent = " " * (sum(widths) + 2 * len(widths))
    room = max(40, shutil.get_terminal_size((110, 24)).columns - len(indent))

    def line(row):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        text = textwrap.wrap(row[-1], room) or [""]
        return "  ".join([*cells, f"\n{indent}".join(text)]).rstrip()

    return "\n".join([line(header), line(tuple("-" * len(h) for h in header)), *map(line, rows)])


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def cpu_seconds() -> float:
    """Processor time of this process and of all that it started and that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def summary(
    release, results, output: Path, *, isolated: bool, cpu_seconds: float, ignored=()
) -> str:
    """Points and notes per learner, the commonest causes, where everything lies, what it took.

    cpu_seconds : of this run, all its processes together. ignored : names of what lay among the
    submissions and was not looked at.
    """
    rows = []
    for result in results:
        if result.error:
            rows.append(
                (result.student, "–", "NOT GRADED, error of the autograder: " + result.error)
            )
            continue
        wrong = [f"{m.id.split('/')[1]}: {m.cause}" for m in result.marks if m.status == "wrong"]
        text = " ".join([*remarks(result), *wrong])
        rows.append((result.student, f"{result.score.total:g}", text))
    maximum = sum(q.points for q in release.questions if not is_bonus(q))
    manual = sum(m.points for m in release.manual)
    by_hand = f" + {manual:g} by hand" if manual else ""
    lines = [
        f"{release.name}: {len(results)} submission{'s'[: len(results) != 1]}, "
        f"{maximum:g} points{by_hand}",
        "",
        table(rows, ("student", "points", "notes")),
    ]
    common = Counter(
        (m.id, m.cause) for r in results for m in r.marks if m.status == "wrong"
    ).most_common(5)
    if common:
        rows = [(str(count), name, cause) for (name, cause), count in common]
        lines += ["", table(rows, ("times", "question", "commonest causes"))]
    waiting = sum(result.score.pending for result in results if result.score)
    kept = sum(result.kept for result in results)
    fresh = len(results) - kept
    each = f", {cpu_seconds / fresh:.2f} per submission" if fresh else ""
    lines += [
        "",
        f"points    {output / 'grades.csv'} and {output / 'gradebook.db'}",
        f"feedback  {output / 'feedback'}/<student>/{release.name}.html",
        f"class     {output / 'class' / release.name}.html",
        f"graded    {fresh} in {cpu_seconds:.1f} CPU seconds{each}"
        + (f"; {kept} unchanged (--again grades them too)" if kept else ""),
        *_late(results),
        *(
            [f"by hand   {waiting} answer{'s'[: waiting != 1]} to grade in formgrader"]
            if waiting
            else []
        ),
        *([f"skipped   no notebook, not looked at: {', '.join(ignored)}"] if ignored else []),
        *([] if isolated else [NOT_ISOLATED]),
    ]
    return "\n".join(lines)


def _late(results) -> list[str]:
    late = [result for result in results if result.score and result.score.late]
    if not late:
        return []
    unsure = sum(not result.stamped for result in late)
    doubt = (
        f", {unsure} of them by the time of the file itself, as there is no timestamp.txt: a copy "
        "may be younger than what was handed in, so nothing is taken off there"
    )
    return [f"late      {len(late)}{doubt if unsure else ''}"]
