"""What the instructor sees in the terminal after a run."""

from collections import Counter
from pathlib import Path

from autograder.grade import remarks
from autograder.sandbox import ISOLATION


def table(rows: list[tuple[str, ...]], header: tuple[str, ...]) -> str:
    """Left-aligned columns under a header; the last column may be as long as it likes."""
    rows = [tuple(printable(cell) for cell in row) for row in rows]
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header) - 1)]

    def line(row):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        return "  ".join([*cells, row[-1]]).rstrip()

    return "\n".join([line(header), line(tuple("-" * len(h) for h in header)), *map(line, rows)])


def printable(text) -> str:
    """One line without control characters: learners' names and errors go to a terminal."""
    return "".join(c if c.isprintable() else " " for c in str(text))


def summary(release, results, output: Path) -> str:
    """Points and notes per learner, the commonest causes, where everything lies."""
    rows = []
    for result in results:
        if result.error:
            rows.append(
                (result.student, "–", "NOT GRADED, error of the autograder: " + result.error)
            )
            continue
        points = sum(m.points for m in result.marks)
        wrong = [f"{m.id.split('/')[1]}: {m.cause}" for m in result.marks if m.status == "wrong"]
        text = " ".join([*remarks(result), *wrong])
        rows.append((result.student, f"{points:g}", text[:160] + ("…" if len(text) > 160 else "")))
    maximum = sum(q.points for q in release.questions)
    lines = [
        f"{release.name}: {len(results)} submissions, {maximum:g} automatic points",
        "",
        table(rows, ("student", "points", "notes")),
    ]
    common = Counter(
        f"{m.id}: {m.cause}" for r in results for m in r.marks if m.status == "wrong"
    ).most_common(5)
    if common:
        lines += ["", "Commonest causes:"]
        lines += [f"  {count} × {printable(cause)[:150]}" for cause, count in common]
    lines += [
        "",
        f"points    {output / 'grades.csv'} and {output / 'gradebook.db'}",
        f"feedback  {output / 'feedback'}/<student>/{release.name}.html",
        ISOLATION,
    ]
    return "\n".join(lines)
