"""hw3/mean_per_sequence: the mean over a response's tokens, then over the responses (GRPO)."""

from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw3 import common
from policy_gradients.aggregation import mean_per_sequence


def generate(draw, final):
    return common.average_cases(draw, final, [{}, {}, {"sequences": 10 if final else 7}])


def buggy(x, mask, *, sequences=None, mistakes=frozenset()):
    x, on = common.kept(x, mask, mistakes)
    if "detached" in mistakes:
        x = x.detach()
    if "negated" in mistakes:
        x = -x
    if "per_token" in mistakes:
        mean = x.sum() / on.sum().clamp(min=1)
        return mean if sequences is None else mean * len(x) / sequences
    if "wrong_axis" in mistakes:
        columns = x.sum(0) / on.sum(0).clamp(min=1)
        return columns.sum() / (columns.numel() if sequences is None else sequences)
    rows = x.sum(1) / common.row_lengths(on, mistakes)
    return common.over_sequences(rows, on, sequences, mistakes)


WHERE = common.AVERAGE
MISTAKES = (
    Mistake(
        "per_token",
        "One mean over all tokens is taken, in which a long response weighs more than a short one.",
        "First one mean per row, then the mean of the rows.",
        "09, [AGG-2]",
    ),
    Mistake(
        "wrong_axis",
        "The inner mean runs over the batch at each position, and the outer one over positions.",
        "x is (batch, time): a response is a row.",
        WHERE,
    ),
    *common.mistakes(
        "padded_width", "longest", "length_twice", "length_root", "length_plus_one",
        "sum_over_tokens", "empty_nan", "empty_not_counted", "batch_not_averaged",
        "sequences_ignored", "sequences_twice", "not_reduced", "mask_multiplied",
        "padding_counted", "mask_inverted", "last_token_dropped", "first_token_dropped",
        "detached", "negated",
    ),
)  # fmt: skip

QUESTION = Question(
    id="hw3/mean_per_sequence",
    title="The mean per sequence (GRPO)",
    points=2,
    signature="(x, mask, *, sequences=None)",
    lecture=WHERE,
    generate=generate,
    reference=mean_per_sequence,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        "per_token wrong_axis: padded_width longest length_twice length_root "
        "length_plus_one sum_over_tokens empty_nan empty_not_counted batch_not_averaged "
        "sequences_ignored sequences_twice not_reduced",
        "per_token wrong_axis",
        "padded_width longest length_twice length_root sum_over_tokens",
        "padded_width longest sum_over_tokens: length_plus_one empty_nan",
        "length_plus_one empty_nan",
        "empty_nan: length_twice length_root",
        "batch_not_averaged: sequences_ignored sequences_twice empty_not_counted not_reduced",
        "not_reduced: sequences_twice",
        "sequences_ignored sequences_twice",
        "last_token_dropped first_token_dropped mask_inverted",
        "mask_multiplied padding_counted",
        "padding_counted: last_token_dropped first_token_dropped",
        "mask_inverted: padded_width longest",
        "mask_inverted: mask_multiplied padding_counted empty_nan empty_not_counted",
        "detached negated",
    ),
)
