"""hw4/bug_1: positions of a batch that is padded on the left."""

import torch

from autograder.cases import Case
from autograder.questions.base import Question, excluding
from autograder.questions.hw4 import common


def positions(mask):
    """0, 1, 2, … on the tokens of each row, 0 on padding."""
    m = mask.long()
    return (m.cumsum(1) - 1) * m


def generate(draw, final):
    # columns, then the padding on the left: the first row's is neither the smallest nor the largest
    if final:
        kinds = [(9, (2, 0, 4, 1)), (8, (3, 1, 5, 4)), (6, (1, 0, 2))]
    else:
        kinds = [(8, (1, 0, 3, 2)), (7, (2, 4, 1)), (9, (3, 5, 0, 4))]
    names = ("padding on both sides", "padding on the left, integers", "padding on the left")
    dtypes = (torch.bool, torch.int64, torch.bool)
    cases = []
    for name, (time, padding), dtype in zip(names, kinds, dtypes, strict=True):
        left = torch.tensor(padding)
        left = left[[0, *(1 + draw.uniform(len(left) - 1).argsort()).tolist()]][:, None]
        right = draw.integers(3, len(left), 1) if "both" in name else torch.zeros_like(left)
        columns = torch.arange(time)
        mask = ((columns >= left) & (columns < time - right)).to(dtype)
        cases.append(Case(name=name, args=(mask,), padding=mask == 0))
    return cases


def buggy(mask, *, mistakes=frozenset()):
    out = []
    rows = mask.long().tolist()
    starts = [row.index(1) for row in rows]
    sizes = [sum(row) for row in rows]
    for row, start_of, size in zip(rows, starts, sizes, strict=True):
        start = start_of
        if "first_row_for_all" in mistakes:
            start = starts[0]
        elif "longest_for_all" in mistakes:
            start = min(starts)
        elif "most_padding_for_all" in mistakes:
            start = max(starts)
        if "planted" in mistakes or "columns_cleaned" in mistakes:
            start = 0
        elif "all_padding_subtracted" in mistakes:
            start = len(row) - size
        line = [t - start for t in range(len(row))]
        if "backwards" in mistakes:
            line = [size - 1 - x for x in line]
        elif "doubled" in mistakes:
            line = [2 * x for x in line]
        if "from_one" in mistakes:
            line = [x + 1 for x in line]
        elif "first_twice" in mistakes:
            line = [max(x - 1, 0) if token else x for x, token in zip(line, row, strict=True)]
        if "padding_keeps_count" in mistakes or "padding_clamped" in mistakes:
            end = start_of + size
            low = -1 if "padding_keeps_count" in mistakes else 0
            line = [low] * start_of + line[start_of:end] + [line[end - 1]] * (len(row) - end)
        elif "planted" not in mistakes and "padding_counts_on" not in mistakes:
            filler = (
                1 if "padding_is_one" in mistakes else -1 if "padding_minus_one" in mistakes else 0
            )
            line = [x if token else filler for x, token in zip(line, row, strict=True)]
        out.append(line)
    return torch.tensor(out)


WHERE = "the statement, [SIL-2]"
TEXTS = {
    "planted": (
        "The planted bug is still there: positions are columns, and the padding on the left is "
        "counted.",
        "A token's position is the number of real tokens before it in its row.",
    ),
    "columns_cleaned": (
        "Positions are still columns; only the padding has been set to 0.",
        "A token's position is the number of real tokens before it in its row.",
    ),
    "from_one": (
        "Positions start at 1.",
        "The first token of a row has no token before it: position 0.",
    ),
    "first_twice": (
        "The first two tokens of a row share position 0.",
        "The second token has one token before it.",
    ),
    "backwards": (
        "Positions are counted from the end of the text.",
        "The first token has position 0.",
    ),
    "doubled": (
        "Positions go up in steps of two.",
        "Each token has one token more before it than its neighbour on the left.",
    ),
    "first_row_for_all": (
        "The first row's padding is subtracted in every row.",
        "Each row has padding of its own.",
    ),
    "longest_for_all": (
        "The smallest padding of the batch is subtracted in every row.",
        "Each row has padding of its own.",
    ),
    "most_padding_for_all": (
        "The largest padding of the batch is subtracted in every row.",
        "Each row has padding of its own.",
    ),
    "all_padding_subtracted": (
        "All padding of a row is subtracted, also the padding behind the text.",
        "Only padding on the left moves the positions: count the real tokens before each token.",
    ),
    "padding_keeps_count": (
        "The padding is not 0: the running count stands at -1 before the text and stays at its "
        "last value behind it.",
        "Multiply with the mask, or choose with where(), at the end.",
    ),
    "padding_clamped": (
        "The padding behind the text keeps the last position instead of being 0.",
        "Multiply with the mask, or choose with where(), at the end.",
    ),
    "padding_counts_on": (
        "On the padding the count goes on instead of being 0.",
        "Multiply with the mask, or choose with where(), at the end.",
    ),
    "padding_is_one": (
        "The padding has position 1 instead of 0.",
        "Some libraries fill in 1; here the padding is 0.",
    ),
    "padding_minus_one": (
        "The padding has position -1, which is no row of a table of positions.",
        "The padding is 0.",
    ),
}  # fmt: skip
MISTAKES = common.listed(TEXTS, WHERE)

STARTS = (
    "planted columns_cleaned first_row_for_all longest_for_all most_padding_for_all "
    "all_padding_subtracted"
)
LINES = "backwards doubled"
FILLS = "padding_counts_on padding_keeps_count padding_clamped padding_is_one padding_minus_one"
QUESTION = Question(
    id="hw4/bug_1",
    title="Bug 1: good alone, bad in a batch",
    points=2,
    signature="(mask)",
    lecture=WHERE,
    generate=generate,
    reference=positions,
    buggy=buggy,
    mistakes=MISTAKES,
    result="mask",
    excludes=excluding(
        STARTS,
        LINES,
        FILLS,
        "from_one first_twice",
        f"planted: {FILLS} {LINES} from_one first_twice",
        f"{LINES}: from_one first_twice",
        f"{LINES} from_one first_twice: {STARTS}",
        "padding_counts_on: columns_cleaned",
    ),
)
