"""hw4/bug_5: a bad micro-batch at the end of a window takes the optimiser's step with it."""

import torch

from autograder.cases import Case
from autograder.questions.base import Question, excluding
from autograder.questions.hw4 import common


def steps(gradients, *, every):
    """(micro_batches, parameters): the gradient the optimiser steps with, 0 where it does not."""
    good = gradients.isfinite().all(1, keepdim=True)
    clean = torch.where(good, gradients, 0.0)
    out = torch.zeros_like(clean)
    for start in range(0, len(clean), every):
        stop = min(start + every, len(clean))
        out[stop - 1] = clean[start:stop].sum(0)
    return out


def generate(draw, final):
    # (micro-batches, window, parameters, bad ones); a bad one has a single NaN or inf
    kinds = (
        [(11, 4, 3, (3, 5)), (8, 2, 4, (1, 4, 6, 7)), (10, 3, 2, (9, 1, 5))]
        if final
        else [(9, 4, 3, (1, 3, 6)), (8, 3, 2, (2, 7)), (7, 2, 4, (1, 2, 3))]
    )
    cases = []
    for count, every, parameters, bad in kinds:
        gradients = draw.weights(count, parameters)
        for turn, k in enumerate(bad):
            gradients[k, turn % parameters] = (torch.nan, torch.inf, -torch.inf)[turn % 3]
        if every == 2:
            gradients = 20 * gradients
        name = f"windows of {every}"
        cases.append(Case(name=name, args=(gradients,), knobs={"every": every}))
    return cases


def buggy(gradients, *, every, mistakes=frozenset()):
    count = len(gradients)
    total = torch.zeros_like(gradients[0])
    out = [torch.zeros_like(total) for _ in range(count)]
    good = spoiled = seen = 0
    length = 0
    for k, gradient in enumerate(gradients):
        length += 1
        fit = bool(gradient.isfinite().all())
        if "only_nan" in mistakes:
            fit = not bool(gradient.isnan().any())
        elif "only_infinite" in mistakes:
            fit = not bool(gradient.isinf().any())
        elif "nothing_tested" in mistakes:
            fit = True
        elif "multiplied" in mistakes:
            gradient, fit = gradient * fit, True
        elif "entries_cleaned" in mistakes:
            gradient, fit = gradient.nan_to_num(0.0, 0.0, 0.0), True
        seen += fit if "good_ones_counted" in mistakes else 1
        if fit:
            total, good = total + gradient, good + 1
        else:
            spoiled += 1
            if "planted" in mistakes:
                continue
            if "restart" in mistakes:
                total, good = torch.zeros_like(total), 0
        last = k + 1 == count and "last_window_lost" not in mistakes
        if "one_late" in mistakes:
            boundary = k % every == 0 and k > 0
        elif "one_late_from_zero" in mistakes:
            boundary = k % every == 0
        else:
            boundary = seen % every == 0 and (fit or "good_ones_counted" not in mistakes)
        if "every_time" in mistakes:
            boundary = True
        if not (boundary or last):
            continue
        step = total
        if "window_dropped" in mistakes and spoiled:
            step = torch.zeros_like(total)
        if "mean_of_good" in mistakes:
            step = step / max(good, 1)
        elif "mean_of_window" in mistakes:
            step = step / every
        elif "rescaled" in mistakes:
            step = step * every / max(good, 1)
        elif "rescaled_by_window" in mistakes:
            step = step * length / max(good, 1)
        out[k] = step
        if "not_reset" not in mistakes:
            total = torch.zeros_like(total)
        good = spoiled = length = 0
    result = torch.stack(out)
    if "negated" in mistakes:
        result = -result
    if "steps_only" in mistakes:
        result = result[every - 1 :: every]
    return result


WHERE = "the statement, [SIL-6]"
TEXTS = {
    "planted": (
        "The planted bug is still there: a bad micro-batch at the end of a window skips the "
        "optimiser's step as well, and the next step has the gradient of two windows.",
        "Leave out the bad micro-batch's gradient, and still ask whether the window ends here.",
    ),
    "only_nan": (
        "Only NaN is recognised: an infinite gradient goes into the step.",
        "isfinite() is False for NaN and for both infinities.",
    ),
    "only_infinite": (
        "Only infinities are recognised: a gradient with NaN goes into the step.",
        "isfinite() is False for NaN and for both infinities.",
    ),
    "nothing_tested": (
        "Bad micro-batches are added like any other.",
        "Test each micro-batch with isfinite() before adding it.",
    ),
    "multiplied": (
        "Bad micro-batches are multiplied by 0, and 0 · NaN is NaN.",
        "Choose the good rows with torch.where, or leave the bad ones out of the sum.",
    ),
    "entries_cleaned": (
        "Only the bad entries are set to 0; the rest of the bad micro-batch's gradient is kept.",
        "One bad entry makes the whole micro-batch untrustworthy: leave all of it out.",
    ),
    "restart": (
        "A bad micro-batch throws away what the window had gathered before it.",
        "The good micro-batches of the window stay.",
    ),
    "window_dropped": (
        "A window with a bad micro-batch is dropped altogether.",
        "The good micro-batches of the window stay.",
    ),
    "good_ones_counted": (
        "The window counts good micro-batches only, so that its end moves.",
        "The window's end is fixed by the number of micro-batches, good and bad.",
    ),
    "last_window_lost": (
        "The last window is lost where it is shorter than the others.",
        "The last micro-batch of all also ends a window.",
    ),
    "one_late": (
        "The step is taken one micro-batch late.",
        "Counting from 0, the window ends where (k + 1) % every is 0.",
    ),
    "one_late_from_zero": (
        "The optimiser steps where a window begins, not where it ends.",
        "Counting from 0, the window ends where (k + 1) % every is 0.",
    ),
    "every_time": (
        "The optimiser steps after every micro-batch.",
        "Only the last micro-batch of a window ends in a step.",
    ),
    "not_reset": (
        "The gradient is not set back to 0 after a step.",
        "Each window starts from 0.",
    ),
    "mean_of_good": (
        "The sum is divided by the number of good micro-batches.",
        "The gradients are divided by the step's counts already; add them.",
    ),
    "mean_of_window": (
        "The sum is divided by the length of the window.",
        "The gradients are divided by the step's counts already; add them.",
    ),
    "rescaled": (
        "The sum is scaled up to make good for the micro-batches that were left out.",
        "What is left out adds 0; the denominators stay.",
    ),
    "rescaled_by_window": (
        "The sum is scaled up to make good for the micro-batches that were left out.",
        "What is left out adds 0; the denominators stay.",
    ),
    "negated": (
        "The sign is flipped.",
        "The optimiser subtracts it itself.",
    ),
    "steps_only": (
        "Only the rows with a step are returned.",
        "One row per micro-batch, 0 where no step is taken.",
    ),
}  # fmt: skip
MISTAKES = common.listed(TEXTS, WHERE)

TESTS = "only_nan only_infinite nothing_tested multiplied"
WINDOWS = "planted good_ones_counted one_late one_late_from_zero every_time"
SCALE = "mean_of_good mean_of_window rescaled rescaled_by_window"
QUESTION = Question(
    id="hw4/bug_5",
    title="Bug 5: the gradient norm doubles now and then",
    points=2,
    signature="(gradients, *, every)",
    lecture=WHERE,
    generate=generate,
    reference=steps,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        f"{TESTS} entries_cleaned",
        WINDOWS,
        SCALE,
        f"{TESTS} entries_cleaned: planted restart window_dropped good_ones_counted",
        "restart window_dropped",
        "every_time: last_window_lost",
        f"nothing_tested multiplied: {SCALE} not_reset negated",
        "entries_cleaned: mean_of_good rescaled rescaled_by_window",
    ),
)
