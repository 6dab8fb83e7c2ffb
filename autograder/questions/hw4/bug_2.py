"""hw4/bug_2: a reward that does not look at the end of the answer."""

import torch

from autograder.cases import Case
from autograder.questions.base import Question, excluding
from autograder.questions.hw4 import common

VOCAB = 12  # ids 1 ... 11; 0 is never drawn


def exact(tokens, answers, *, eos_id):
    """(batch,) 1. where the response is the answer and then ends."""
    is_end = (answers == eos_id).long()
    counts = is_end.cumsum(1) - is_end == 0  # the answer and its first end token
    return ((tokens == answers) | ~counts).all(1).float()


def responses(draw, length, time, eos):
    """Pairs (response, answer) of every kind, for an answer of that many tokens."""
    ids = torch.tensor([k for k in range(1, VOCAB) if k != eos])
    answer = ids[draw.uniform(len(ids)).argsort()[:length]].tolist()
    other = [k for k in ids.tolist() if k not in answer][:3]
    fill = time - length
    junk = [other[k % 3] for k in range(time)]
    first, *rest = answer
    rows = [
        answer + [eos] * fill,  # right
        [*answer, eos, *junk[: fill - 1]],  # right, and the sampler went on
        answer + [eos, first] + [eos] * (fill - 2),
        answer + junk[:fill],  # never ends
        answer + junk[: fill - 1] + [eos],  # ends late
        answer + junk[: fill - 2] + [eos, eos],
        answer[:-1] + [eos] * (fill + 1),  # ends early
        [eos] * time,  # says nothing
        [eos, *answer, *[eos] * (fill - 1)],
        [other[0], *rest] + [eos] * fill,  # first token wrong
        answer[:-1] + [other[1]] + [eos] * fill,  # last token wrong
        answer[::-1] + [eos] * fill,  # right tokens, wrong order
        [first, other[0], *answer[2:]] + [eos] * fill,  # second token wrong
        [first] + junk[:length] + [eos] * (fill - 1),  # only the first right
        junk[:length] + [eos] * fill,  # only the length right
        junk,
        [other[2], *answer] + [eos] * (fill - 1),  # one position late
    ]
    padded = answer + [eos] * fill
    return [(row[:time], padded) for row in rows]


def generate(draw, final):
    cases = []
    settings = (
        [((2, 4), 7, 5), ((3, 5), 9, 8), ((7,), 8, 3)]
        if final
        else [((3, 2), 6, 4), ((4, 3), 9, 7), ((7,), 8, 2)]
    )
    for lengths, time, eos in settings:
        pairs = [p for length in lengths for p in responses(draw, length, time, eos)]
        order = draw.uniform(len(pairs)).argsort().tolist()
        given = [torch.tensor([pairs[i][k] for i in order]) for k in (0, 1)]
        cases.append(Case(name=f"{time} columns", args=tuple(given), knobs={"eos_id": eos}))
    return cases


def buggy(tokens, answers, *, eos_id, mistakes=frozenset()):
    out = []
    for said, wanted in zip(tokens.tolist(), answers.tolist(), strict=True):
        time = len(said)
        length = wanted.index(eos_id)
        own = said.index(eos_id) if eos_id in said else time
        hits = [a == b for a, b in zip(said, wanted, strict=True)]
        if "planted" in mistakes:
            score = all(hits[:length])
        elif "padding_compared" in mistakes:
            score = all(hits)
        elif "some_end" in mistakes:
            score = all(hits[:length]) and own < time
        elif "early_end_forgiven" in mistakes:
            score = all(hits[:own])
        elif "length_only" in mistakes:
            score = own == length
        elif "order_ignored" in mistakes:
            score = sorted(said[:own]) == sorted(wanted[:length])
        elif "any_token" in mistakes:
            score = any(hits[: length + 1])
        elif "first_token" in mistakes:
            score = hits[0]
        elif "last_tokens" in mistakes:
            score = hits[length - 1] and hits[length]
        elif "partial_credit" in mistakes:
            score = sum(hits[: length + 1]) / (length + 1)
        elif "partial_credit_padded" in mistakes:
            score = sum(hits) / time
        elif "end_at_limit" in mistakes:
            score = all(hits[: length + 1]) or (all(hits[:length]) and own == time)
        elif "first_not_compared" in mistakes:
            score = all(hits[1 : length + 1])
        else:
            score = all(hits[: length + 1])
        if "inverted" in mistakes:
            score = 1 - score
        elif "minus_one" in mistakes:
            score = 2 * score - 1
        out.append(float(score))
    return torch.tensor(out)


WHERE = "the statement, [SIL-3]"
TEXTS = {
    "planted": (
        "The planted bug is still there: the end is not compared, so the answer may be followed "
        "by anything.",
        "Compare up to and including the answer's first end token.",
    ),
    "padding_compared": (
        "What stands behind the end is compared as well.",
        "After the first end token nothing counts, whatever the sampler left there.",
    ),
    "some_end": (
        "An end token anywhere is enough, also after more text.",
        "The end token has to stand directly behind the answer.",
    ),
    "early_end_forgiven": (
        "Only the tokens that were said are compared: the beginning of an answer counts as right, "
        "even saying nothing.",
        "The answer's own length decides how far to compare.",
    ),
    "length_only": (
        "Only the length is compared.",
        "Each token has to be the answer's.",
    ),
    "order_ignored": (
        "The order of the tokens is ignored.",
        "Compare position by position.",
    ),
    "any_token": (
        "One matching position is enough.",
        "All positions have to match: all, not any.",
    ),
    "first_token": (
        "Only the first token is compared.",
        "All positions up to the end have to match.",
    ),
    "last_tokens": (
        "Only the answer's last token and the end are compared.",
        "All positions up to the end have to match.",
    ),
    "partial_credit": (
        "The share of matching positions is paid.",
        "Exact means all or nothing.",
    ),
    "partial_credit_padded": (
        "The share of matching columns is paid, padding included.",
        "Exact means all or nothing, and padding does not count.",
    ),
    "end_at_limit": (
        "A response that is cut at the limit counts as ended.",
        "Without an end token it is not the answer.",
    ),
    "first_not_compared": (
        "The first token is not compared.",
        "tokens holds the response only; compare from its first column on.",
    ),
    "inverted": (
        "Right answers earn 0 and wrong ones 1.",
        "1 means: exactly the answer.",
    ),
    "minus_one": (
        "Wrong answers earn -1 instead of 0.",
        "The reward is 1 or 0.",
    ),
}  # fmt: skip
MISTAKES = common.listed(TEXTS, WHERE)

QUESTION = Question(
    id="hw4/bug_2",
    title="Bug 2: the reward rises, the answers get longer",
    points=2,
    signature="(tokens, answers, *, eos_id)",
    lecture=WHERE,
    generate=generate,
    reference=exact,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        "planted padding_compared some_end early_end_forgiven length_only order_ignored any_token "
        "first_token last_tokens partial_credit partial_credit_padded end_at_limit "
        "first_not_compared",
        "inverted minus_one",
    ),
)
