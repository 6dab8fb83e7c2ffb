"""hw3/mean_per_sequence: the mean over an answer's tokens, then over the answers (GRPO)."""

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
        ours = sequences is None or "sequences_ignored" in mistakes
        return mean if ours else mean * len(x) / sequences
    if "per_token_counted" in mistakes:
        return x.sum() / (on.sum().clamp(min=1) if sequences is None else sequences)
    if {"wrong_axis", "wrong_axis_rows"} & mistakes:
        columns = x.sum(0) / on.sum(0).clamp(min=1)
        count = len(columns) if "wrong_axis" in mistakes else len(x)
        return columns.sum() / (count if sequences is None else sequences)
    rows = common.row_means(x, on, mistakes)
    return common.over_sequences(rows, on, sequences, mistakes)


WHERE = common.AVERAGE
MISTAKES = (
    Mistake(
        "per_token",
        "One mean over all tokens is taken, in which a long answer weighs more than a short one.",
        "First one mean per row, then the mean of the rows.",
        "09, [AGG-2]",
    ),
    Mistake(
        "per_token_counted",
        "This is [AGG-2], the mean per token: one sum over all tokens and one divisor, for which "
        "sequences is taken where it is given.",
        "First one mean per row, then the mean of the rows.",
        "09, [AGG-2]",
    ),
    Mistake(
        "wrong_axis",
        "The inner mean runs over the batch at each position, and the outer one over positions.",
        "x is (batch, time): an answer is a row.",
        WHERE,
    ),
    Mistake(
        "wrong_axis_rows",
        "The inner mean runs over the batch at each position, not over an answer's tokens.",
        "x is (batch, time): an answer is a row.",
        WHERE,
    ),
    *common.mistakes(
        "padded_width", "longest", "length_twice", "length_root", "length_plus_one",
        "sum_over_tokens", "empty_nan", "empty_not_counted", "batch_not_averaged",
        "sequences_ignored", "sequences_twice", "not_reduced", "broadcast", "broadcast_mean",
        "mask_multiplied",
        "padding_counted", "mask_as_length", "mask_inverted", "last_token_dropped",
        "first_token_dropped", "detached", "negated",
    ),
)  # fmt: skip

OTHER = "per_token per_token_counted wrong_axis wrong_axis_rows"
BOTH = "broadcast broadcast_mean"
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
        f"{OTHER}: padded_width longest length_twice length_root "
        "length_plus_one sum_over_tokens empty_nan empty_not_counted batch_not_averaged "
        "sequences_twice not_reduced",
        f"per_token_counted wrong_axis wrong_axis_rows {BOTH}: sequences_ignored",
        f"{OTHER} {BOTH}",
        f"{BOTH}: padded_width longest length_twice length_root length_plus_one sum_over_tokens "
        "empty_nan empty_not_counted batch_not_averaged sequences_twice not_reduced",
        "padded_width longest length_twice length_root sum_over_tokens",
        "padded_width longest sum_over_tokens: length_plus_one empty_nan",
        "length_plus_one empty_nan",
        "empty_nan: length_twice length_root",
        "batch_not_averaged: sequences_ignored sequences_twice empty_not_counted not_reduced",
        "not_reduced: sequences_twice",
        "sequences_ignored sequences_twice",
        "last_token_dropped first_token_dropped mask_inverted mask_as_length",
        "mask_multiplied padding_counted",
        "padding_counted: last_token_dropped first_token_dropped mask_as_length",
        "mask_inverted: padded_width longest",
        "mask_inverted: mask_multiplied padding_counted empty_nan empty_not_counted",
        "detached negated",
    ),
)
