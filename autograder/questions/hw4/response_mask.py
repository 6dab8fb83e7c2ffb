"""hw4/response_mask: which tokens the policy really produced."""

import torch

from autograder.cases import Case
from autograder.questions.base import Question, excluding
from autograder.questions.hw4 import common
from policy_gradients.logprobs import response_mask

VOCAB = 9


def sentences(draw, ends, time, eos, *, after):
    """(batch, time) ids without eos, but for an end token at each of ``ends`` (None: no end).

    after : what stands behind the first end token: "ends", "zeros", or "text" with more ends.
    """
    tokens = 1 + draw.integers(VOCAB - 1, len(ends), time)  # 1 ... VOCAB - 1
    tokens = torch.where(tokens == eos, tokens % (VOCAB - 1) + 1, tokens)
    for row, end in zip(tokens, ends, strict=True):
        if end is None:
            continue
        row[end] = eos
        if after == "ends":
            row[end:] = eos
        elif after == "zeros":
            row[end + 1 :] = 0
        else:
            row[end + 1 :: 3] = eos if end % 2 else row[end + 1 :: 3]
            row[end + 2 :: 4] = eos
    return tokens


def generate(draw, final):
    eos = (0, 7, 3) if final else (0, 2, 6)
    shapes = (
        [([2, 0, None, 6, 4], 8), ([1, None, 0, 3], 7), ([3, None, 1, 0, 5, 8], 9)]
        if final
        else [([1, None, 0, 4], 7), ([2, 0, None, 5, 1], 8), ([0, 3, None, 2], 6)]
    )
    names = ("padding is the end token", "padding is 0", "text behind the end")
    return [
        Case(
            name=name,
            args=(sentences(draw, ends, time, end_id, after=after),),
            knobs={"eos_id": end_id},
        )
        for name, after, end_id, (ends, time) in zip(
            names, ("ends", "zeros", "text"), eos, shapes, strict=True
        )
    ]


def buggy(tokens, *, eos_id, mistakes=frozenset()):
    batch, time = tokens.shape
    rows = []
    for row in tokens.tolist():
        ends = [t for t, token in enumerate(row) if token == eos_id]
        if not ends:
            length = time
            if "no_end_empty" in mistakes:
                length = 0
            elif "no_end_first_only" in mistakes:
                length = 1
            elif "no_end_last_dropped" in mistakes:
                length = time - 1
        else:
            length = ends[0] + 1
            if "last_end" in mistakes:
                length = ends[-1] + 1
            elif "run_of_ends" in mistakes:
                while length < time and row[length] == eos_id:
                    length += 1
            elif "second_end" in mistakes and len(ends) > 1:
                length = ends[1] + 1
            elif "until_second_end" in mistakes:
                length = ends[1] if len(ends) > 1 else time
            elif "end_ignored" in mistakes or ("end_at_start_ignored" in mistakes and ends[0] == 0):
                length = time
            if "end_dropped" in mistakes:
                length -= 1
            elif "one_late" in mistakes:
                length = min(length + 1, time)
        kept = [t < length for t in range(time)]
        if "start_dropped" in mistakes:
            kept[0] = False
        rows.append(kept)
    mask = torch.tensor(rows).reshape(batch, time)
    if "ends_are_padding" in mistakes:
        mask = tokens != eos_id
    elif "zeros_are_padding" in mistakes:
        mask = tokens != 0
    elif "only_ends" in mistakes:
        mask = tokens == eos_id
    elif "from_end_on" in mistakes:
        mask = (tokens == eos_id).cumsum(1) > 0
    if "first_row_for_all" in mistakes:
        mask = mask[:1].expand(batch, time)
    return (~mask if "inverted" in mistakes else mask).float()


WHERE = "11, [BUG-2]"
TEXTS = {
    "end_dropped": (
        "The first end token is left out: nobody learns when to stop.",
        "The end token is an action of the policy; the mask is 1 on the first one.",
    ),
    "ends_are_padding": (
        "Every end token counts as padding and everything else as response, also what stands "
        "behind the end.",
        "It matters where the first end token stands, not which tokens are end tokens.",
    ),
    "zeros_are_padding": (
        "Token 0 is taken for padding; the end token plays no part.",
        "Padding is what stands behind the first eos_id, whatever its id.",
    ),
    "only_ends": (
        "Only the end tokens are marked.",
        "Every token up to the first end token was chosen by the policy.",
    ),
    "from_end_on": (
        "What stands from the first end token on is marked, not what stands up to it.",
        "A token belongs to the response if no end token stands before it.",
    ),
    "end_ignored": (
        "Tokens behind the end are counted as response.",
        "After the first end token everything is padding.",
    ),
    "last_end": (
        "The mask reaches to the last end token instead of the first.",
        "The first end token closes the response, whatever comes later.",
    ),
    "second_end": (
        "The mask reaches to the second end token.",
        "The first end token closes the response.",
    ),
    "until_second_end": (
        "The mask runs on until a second end token: what stands behind the first is counted.",
        "The first end token closes the response: count the end tokens strictly before a position.",
    ),
    "run_of_ends": (
        "The end tokens that follow the first one directly are counted as well.",
        "Where the padding id is the end id, only the first of them was an action.",
    ),
    "one_late": (
        "The mask is one position too long.",
        "Count the end tokens that stand strictly before a position.",
    ),
    "start_dropped": (
        "The first token of the response is left out.",
        "tokens holds the response only; its first column is an action already.",
    ),
    "no_end_empty": (
        "A response without an end token is masked out altogether.",
        "Cut off at the limit, all of its tokens were still chosen by the policy.",
    ),
    "no_end_first_only": (
        "A response without an end token keeps its first token only: argmax gives 0 also where "
        "nothing is found.",
        "Tell 'no end token' from 'the end token stands first'.",
    ),
    "no_end_last_dropped": (
        "A response without an end token loses its last token.",
        "Without an end token the row is all 1.",
    ),
    "end_at_start_ignored": (
        "A response whose first token is the end token is treated as if it had none.",
        "Tell 'no end token' from 'the end token stands first'.",
    ),
    "first_row_for_all": (
        "The first response's mask is used for all of them.",
        "Each row ends where its own end token stands.",
    ),
    "inverted": (
        "The mask is inverted: the padding is trained and the response is not.",
        "1 means: a token of the response.",
    ),
}
MISTAKES = common.listed(TEXTS, WHERE)

WHOLE = "ends_are_padding zeros_are_padding only_ends from_end_on"
SPAN = "last_end run_of_ends second_end until_second_end end_ignored"
NO_END = "no_end_empty no_end_first_only no_end_last_dropped"
QUESTION = Question(
    id="hw4/response_mask",
    title="Which tokens are the response",
    points=2,
    signature="(tokens, *, eos_id)",
    lecture=WHERE,
    generate=generate,
    reference=response_mask,
    buggy=buggy,
    mistakes=MISTAKES,
    result="mask",
    excludes=excluding(
        WHOLE,
        f"{WHOLE}: {SPAN} {NO_END} end_dropped one_late start_dropped end_at_start_ignored "
        "inverted",
        f"{SPAN} end_at_start_ignored",
        NO_END,
        "end_dropped: one_late inverted",
        "end_ignored: end_dropped one_late",
        "end_at_start_ignored: end_dropped one_late",
        "no_end_first_only: start_dropped",
        f"first_row_for_all: {NO_END} {SPAN} {WHOLE} end_at_start_ignored",
    ),
)
