"""`python -m autograder catalogue`: how well the judge knows each question's mistakes."""

import sys
from collections.abc import Callable, Iterable

from autograder.notebooks import HomeworkError
from autograder.questions import QUESTIONS
from autograder.summary import table

SINGLES, PAIRS = 0.95, 0.70  # shares that must be named; all must lose points


def chosen(names: Iterable[str]) -> list[str]:
    """Question ids for ids, homeworks ("hw2") and folders ("hw2_clipping_and_gae"); all for none.

    Raises HomeworkError for a name that means nothing.
    """
    found = []
    for name in names:
        homework = name.split("/")[0].split("_")[0]
        several = [] if "/" in name else [q for q in QUESTIONS if q.startswith(f"{homework}/")]
        if name not in QUESTIONS and not several:
            known = ", ".join(q for q in QUESTIONS if q.startswith(f"{homework}/"))
            raise HomeworkError(f"there is no question {name!r}; there are: {known or 'hw1 … hw5'}")
        found += [name] if name in QUESTIONS else several
    return list(dict.fromkeys(found)) or list(QUESTIONS)


def below(row) -> list[str]:
    """What of one question, or of the total, is under a bar, in words; [] for nothing."""
    problems = []
    if row.killed < row.mistakes:
        problems.append(f"{row.mistakes - row.killed} mistake(s) lose no point")
    if row.named < SINGLES * row.mistakes:
        problems.append(f"fewer than {SINGLES:.0%} of the mistakes are named")
    if row.pairs_named < PAIRS * row.pairs:
        problems.append(f"fewer than {PAIRS:.0%} of the pairs are named")
    if row.pairs_wrongly_named:
        problems.append(f"{row.pairs_wrongly_named} pair(s) are called something else")
    return problems


def report(ids: list[str], measure: Callable) -> int:
    """Measure, print a line per question and the bars; 0 when all are met, else 1.

    measure : question id -> row with mistakes, killed, named, pairs, pairs_named,
        pairs_wrongly_named, excluded (counts), confusable (groups of names that no case tells
        apart) and problems (sentences).
    """
    rows, problems = [], []
    for number, name in enumerate(ids, 1):
        progress(f"{number}/{len(ids)} {name}")
        rows.append(measure(name))
        if found := below(rows[-1]):
            problems += [f"{name}: {text}" for text in (*found, *rows[-1].problems[:5])]
    progress("")
    lines = [_line(name, row) for name, row in zip(ids, rows, strict=True)]
    lines.append(_total(rows))
    header = (
        "question", "mistakes", "killed", "named", "pairs", "named", "wrong", "excluded",
        "confusable",
    )  # fmt: skip
    print(table(lines, header))
    print(f"\n{counted(rows)}")
    if problems:
        print("\nBelow the bars:\n" + "\n".join(f"  {text}" for text in problems))
    else:
        print(
            "\nEvery mistake loses points; at least "
            f"{SINGLES:.0%} of the mistakes and {PAIRS:.0%} of the pairs are named, none wrongly."
        )
    return 1 if problems else 0


def counted(rows) -> str:
    """Of how many pairs the shares are: not of all."""
    pairs, excluded = (sum(getattr(row, x) for row in rows) for x in ("pairs", "excluded"))
    every = pairs + excluded
    share = f" ({excluded / every:.0%})" if every else ""
    return (
        f"Of {every} pairs of mistakes {excluded}{share} are excluded: the two cannot be made "
        "together, or one undoes or hides the other. Shares are of the rest."
    )


def progress(text: str):
    """One line on a terminal, rewritten; nothing elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


COUNTS = ("mistakes", "killed", "named", "pairs", "pairs_named", "pairs_wrongly_named", "excluded")


def _line(name: str, row) -> tuple[str, ...]:
    groups = [" = ".join(sorted(group)) for group in row.confusable]
    return (name, *(str(getattr(row, field)) for field in COUNTS), "; ".join(groups))


def _total(rows) -> tuple[str, ...]:
    sums = [str(sum(getattr(row, field) for row in rows)) for field in COUNTS]
    groups = sum(len(row.confusable) for row in rows)
    return ("all", *sums, f"{groups} group(s)" if groups else "")
