"""hw3/mean_per_token: one mean over all answer tokens of the optimiser step (DAPO)."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw3 import common
from policy_gradients.aggregation import mean_per_token


def generate(draw, final):
    cases = common.average_cases(draw, final, [{}, {}, {"tokens": 31 if final else 23}])
    x = draw.normal(2, 4 if final else 3)
    cases.append(Case(name="no answer token at all", args=(x, torch.zeros_like(x))))
    return cases


def buggy(x, mask, *, tokens=None, mistakes=frozenset()):
    batch = len(x)
    x, on = common.kept(x, mask, mistakes)
    if "detached" in mistakes:
        x = x.detach()
    if "negated" in mistakes:
        x = -x
    here = on.sum()
    if "tokens_plus_one" in mistakes:
        here = here + 1
    elif "empty_nan" not in mistakes:
        here = here.clamp(min=1)
    if "positions" in mistakes:
        here = torch.tensor(float(on.numel()))
    elif "longest" in mistakes:
        here = batch * on.sum(1).max().clamp(min=1)
    elif "sequences" in mistakes:
        here = torch.tensor(float(batch))
    elif "time" in mistakes:
        here = torch.tensor(float(on.shape[1]))
    count = here if tokens is None or "tokens_ignored" in mistakes else tokens
    if "per_sequence" in mistakes:
        lengths = on.sum(1).clamp(min=1)
        mean = (x.sum(1) / lengths).sum() / batch
        ours = tokens is None or "tokens_ignored" in mistakes
        return mean if ours else mean * here / tokens
    if "plain_mean" in mistakes:
        return x.mean()
    if "per_sequence_counted" in mistakes:
        rows = x.sum(1) / on.sum(1).clamp(min=1)
        return rows.sum() / (batch if tokens is None else tokens)
    if "not_reduced" in mistakes:
        return x.sum(1) / count
    if "sum" in mistakes:
        return x.sum()
    if "twice" in mistakes and tokens is not None:
        return x.sum() / here / tokens
    if "also_sequences" in mistakes:
        return x.sum() / count / batch
    return x.sum() / count


WHERE = "09, [AGG-2]"
MISTAKES = (
    Mistake(
        "per_sequence",
        "Each answer is averaged first, and then the answers: a token of a long answer "
        "weighs less.",
        "One sum over everything, one division by the number of tokens.",
        "09, [AGG-1]",
    ),
    Mistake(
        "per_sequence_counted",
        "This is [AGG-1], the mean per sequence: each answer is divided by its own length first, "
        "and tokens is taken for the number of answers where it is given.",
        "One sum over everything, one division by the number of tokens.",
        "09, [AGG-1]",
    ),
    Mistake(
        "plain_mean",
        "The mean runs over all positions, padding included, and tokens has no effect.",
        "Divide the sum by the number of tokens: the sum of the mask, or tokens where it is given.",
        WHERE,
    ),
    Mistake(
        "tokens_ignored",
        "The argument tokens is ignored: every micro-batch divides by its own number of tokens.",
        "Use the count of the whole step where one is given.",
        common.STEP,
    ),
    Mistake(
        "twice",
        "With tokens given, the result is divided by this micro-batch's number of tokens as well.",
        "One denominator only: that of the whole step, where it is given.",
        common.STEP,
    ),
    Mistake(
        "also_sequences",
        "The result is divided by the number of answers besides the number of tokens.",
        "One denominator: the number of tokens.",
        WHERE,
    ),
    Mistake(
        "positions",
        "The divisor is the number of all positions, padding included.",
        "The number of tokens is the sum of the mask.",
        WHERE,
    ),
    Mistake(
        "longest",
        "Every answer is counted with the length of the longest one.",
        "The number of tokens is the sum of the mask.",
        WHERE,
    ),
    Mistake(
        "sequences",
        "The divisor is the number of answers instead of the number of tokens.",
        "The number of tokens is the sum of the mask.",
        "09, [AGG-7]",
    ),
    Mistake(
        "time",
        "The divisor is the padded width of the batch.",
        "The number of tokens is the sum of the mask over both axes.",
        WHERE,
    ),
    Mistake(
        "tokens_plus_one",
        "The number of tokens is taken one too large.",
        "Only a batch without tokens needs protection: clamp(min=1) leaves the others alone.",
        WHERE,
    ),
    Mistake(
        "empty_nan",
        "A micro-batch without an answer token divides 0 by 0.",
        "Count at least one token: clamp(min=1).",
        WHERE,
    ),
    Mistake("sum", "The sum is not divided by anything.", "Divide by the number of tokens.", WHERE),
    *common.mistakes(
        "not_reduced", "mask_multiplied", "padding_counted", "mask_as_length", "mask_inverted",
        "last_token_dropped", "first_token_dropped", "detached", "negated", lecture=WHERE,
    ),
)  # fmt: skip

QUESTION = Question(
    id="hw3/mean_per_token",
    title="The mean per token (DAPO)",
    points=2,
    signature="(x, mask, *, tokens=None)",
    lecture=WHERE,
    generate=generate,
    reference=mean_per_token,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        "sum per_sequence per_sequence_counted not_reduced twice also_sequences",
        "sum: tokens_ignored positions longest sequences time tokens_plus_one empty_nan",
        "positions longest sequences time",
        "positions longest sequences time: tokens_plus_one empty_nan",
        "per_sequence_counted: tokens_ignored",
        "per_sequence per_sequence_counted: positions longest sequences time tokens_plus_one "
        "empty_nan",
        "tokens_plus_one empty_nan",
        "tokens_ignored twice",
        "tokens_ignored positions",  # that is plain_mean
        "plain_mean: sum per_sequence per_sequence_counted not_reduced twice also_sequences "
        "tokens_ignored positions longest sequences time tokens_plus_one empty_nan",
        "last_token_dropped first_token_dropped mask_inverted mask_as_length",
        "mask_multiplied padding_counted",
        "padding_counted: last_token_dropped first_token_dropped mask_as_length",
        "mask_inverted: positions longest",
        "mask_inverted: mask_multiplied padding_counted empty_nan",
        "detached negated",
    ),
)
