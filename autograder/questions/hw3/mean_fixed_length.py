"""hw3/mean_fixed_length: the sum over an answer's tokens by a constant length (Dr. GRPO)."""

from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw3 import common
from policy_gradients.aggregation import mean_fixed_length


def generate(draw, final):
    knobs = (
        [{"length": 4}, {"length": 12}, {"length": 11, "sequences": 10}]
        if final
        else [{"length": 3}, {"length": 10}, {"length": 7, "sequences": 6}]
    )
    return common.average_cases(draw, final, knobs)


def buggy(x, mask, *, length, sequences=None, mistakes=frozenset()):
    batch, time = x.shape
    x, on = common.kept(x, mask, mistakes)
    if "cut_at_length" in mistakes:
        x = x[:, :length]
    if "detached" in mistakes:
        x = x.detach()
    if "negated" in mistakes:
        x = -x
    own = on.sum(1).clamp(min=1)
    if "padded_width" in mistakes:
        divisor = time
    elif "longest" in mistakes:
        divisor = on.sum(1).max().clamp(min=1)
    elif "own_length" in mistakes:
        divisor = own
    elif "mean_length" in mistakes:
        divisor = (on.sum() / batch).clamp(min=1)
    elif "at_least_own" in mistakes:
        divisor = own.clamp(min=length)
    elif "at_most_own" in mistakes:
        divisor = own.clamp(max=length)
    elif "own_length_too" in mistakes:
        divisor = own * length
    elif "length_twice" in mistakes:
        divisor = length**2
    elif "width_too" in mistakes:
        divisor = time * length
    elif "no_length" in mistakes:
        divisor = 1
    elif "multiplied" in mistakes:
        divisor = 1 / length
    elif "plus_one" in mistakes:
        divisor = length + 1
    else:
        divisor = length
    if "per_token" in mistakes:
        return x.sum() / on.sum().clamp(min=1)
    if "per_token_counted" in mistakes:
        return x.sum() / (on.sum().clamp(min=1) if sequences is None else sequences)
    if "tokens_counted" in mistakes:
        total = x.sum() / divisor if not hasattr(divisor, "shape") else (x.sum(1) / divisor).sum()
        return total / on.sum().clamp(min=1)
    rows = x.sum(1) / divisor
    return common.over_sequences(rows, on, sequences, mistakes)


WHERE = "09, [AGG-3]"
MISTAKES = (
    Mistake(
        "own_length",
        "Each answer is divided by its own length; the argument length has no effect.",
        "Every answer has the same divisor: length.",
        "09, [AGG-1]",
    ),
    Mistake(
        "at_least_own",
        "An answer longer than length is divided by its own length.",
        "Every answer has the same divisor: length.",
        WHERE,
    ),
    Mistake(
        "at_most_own",
        "An answer shorter than length is divided by its own length.",
        "Every answer has the same divisor: length.",
        WHERE,
    ),
    Mistake(
        "own_length_too",
        "Each answer is divided by its own length and by the constant.",
        "Add up the tokens of an answer; the constant is the only divisor of the row.",
        WHERE,
    ),
    Mistake(
        "padded_width",
        "The padded width of the batch is used instead of the argument length.",
        "The width changes from batch to batch; length is a constant of the run.",
        WHERE,
    ),
    Mistake(
        "width_too",
        "The row is averaged over its padded width and then divided by length as well.",
        "Add up the tokens of an answer; the constant is the only divisor of the row.",
        WHERE,
    ),
    Mistake(
        "longest",
        "The longest answer of the batch is used instead of the argument length.",
        "It changes from batch to batch; length is a constant of the run.",
        WHERE,
    ),
    Mistake(
        "mean_length",
        "The mean length of the batch is used instead of the argument length.",
        "That is the mean per token; here the divisor is a constant of the run.",
        "09, [AGG-2]",
    ),
    Mistake(
        "no_length",
        "The sum over the tokens is not divided by length.",
        "Divide by the constant; without it the loss is that of the policy gradient's sum.",
        "09, [AGG-7]",
    ),
    Mistake("length_twice", "The result is divided by length twice.", "Divide once.", WHERE),
    Mistake(
        "multiplied",
        "The result is multiplied by length instead of divided by it.",
        "A longer budget makes each token count less.",
        WHERE,
    ),
    Mistake(
        "plus_one", "The constant is taken one too large.", "Divide by length as it is.", WHERE
    ),
    Mistake(
        "per_token",
        "This is [AGG-2], the mean per token of this batch: length and sequences have no effect.",
        "Two divisors: length, and the number of sequences.",
        "09, [AGG-2]",
    ),
    Mistake(
        "per_token_counted",
        "This is [AGG-2], the mean per token: length has no effect, and sequences is taken for the "
        "number of tokens where it is given.",
        "Two divisors: length, and the number of sequences.",
        "09, [AGG-2]",
    ),
    Mistake(
        "cut_at_length",
        "Tokens beyond length are left out.",
        "length is a divisor; every token of the answer counts, also of a longer one.",
        WHERE,
    ),
    Mistake(
        "tokens_counted",
        "The outer division is by the number of tokens instead of the number of answers.",
        "Two divisors: length, and the number of sequences.",
        "09, [AGG-2]",
    ),
    *common.mistakes(
        "empty_not_counted", "batch_not_averaged", "sequences_ignored", "sequences_twice",
        "not_reduced", "mask_multiplied", "padding_counted", "mask_as_length", "mask_inverted",
        "last_token_dropped", "first_token_dropped", "detached", "negated", lecture=WHERE,
    ),
)  # fmt: skip

DIVISORS = (
    "own_length at_least_own at_most_own own_length_too padded_width width_too longest "
    "mean_length no_length length_twice multiplied plus_one"
)
QUESTION = Question(
    id="hw3/mean_fixed_length",
    title="The mean at a fixed length (Dr. GRPO)",
    points=2,
    signature="(x, mask, *, length, sequences=None)",
    lecture=WHERE,
    generate=generate,
    reference=mean_fixed_length,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        DIVISORS,
        f"per_token per_token_counted: {DIVISORS} tokens_counted empty_not_counted "
        "batch_not_averaged sequences_ignored sequences_twice not_reduced per_token",
        "tokens_counted no_length",  # that is per_token
        "mean_length sequences_ignored",
        "tokens_counted: empty_not_counted batch_not_averaged sequences_ignored "
        "sequences_twice not_reduced mean_length",
        "batch_not_averaged: sequences_ignored sequences_twice empty_not_counted not_reduced",
        "not_reduced: sequences_twice",
        "sequences_ignored sequences_twice",
        "last_token_dropped first_token_dropped mask_inverted mask_as_length",
        "mask_multiplied padding_counted",
        "padding_counted: last_token_dropped first_token_dropped mask_as_length",
        "mask_inverted: padded_width longest",
        "mask_inverted: mask_multiplied padding_counted empty_not_counted",
        "detached negated",
    ),
)
