"""hw4/step_normaliser: what each micro-batch back-propagates."""

import torch

from autograder.cases import Case
from autograder.questions.base import Question, excluding
from autograder.questions.hw4 import common


def step_normaliser(loss, mask, *, micro_batch):
    """(ceil(batch / micro_batch),): each micro-batch's token sum over the step's token count."""
    valid = mask.bool()
    tokens = valid.sum().clamp(min=1)
    per_sequence = torch.where(valid, loss, 0.0).sum(1)
    return torch.stack([part.sum() / tokens for part in per_sequence.split(micro_batch)])


def generate(draw, final):
    shapes = (
        [((3, 6, 0, 0, 1, 4, 2), 9, 2), ((5, 1, 2, 6, 4, 3, 1, 2), 6, 3), ((3, 4, 2, 5, 3), 6, 2)]
        if final
        else [((4, 1, 0, 0, 5), 6, 2), ((2, 5, 3, 1, 6, 4, 2), 8, 3), ((3, 2, 5), 6, 2)]
    )
    kinds = [
        ("an empty micro-batch", torch.bool, False),
        ("NaN and inf on the padding", None, True),
    ]
    kinds += [("a mask with holes", torch.int64, False)]
    cases = []
    for (lengths, time, size), (name, dtype, hard) in zip(shapes, kinds, strict=True):
        mask = common.mask_of(lengths, time)
        if dtype is torch.int64:
            mask = common.torn(mask)
        loss = 0.8 + draw.normal(*mask.shape) + draw.weights(len(mask), 1)
        given = mask.to(dtype or torch.float64)
        cases.append(
            Case(
                name=name,
                args=(common.dirty(loss, mask, draw, hard=hard), given),
                knobs={"micro_batch": size},
                differentiable=(0,),
                weights=draw.weights(-(-len(lengths) // size)),
            )
        )
    return cases


def buggy(loss, mask, *, micro_batch, mistakes=frozenset()):
    if "mask_as_length" in mistakes:
        mask = common.prefix(mask)
    m = mask.to(loss.dtype)
    batch, time = loss.shape
    if "padding_multiplied" in mistakes:
        clean = loss * m
    elif "padding_summed" in mistakes:
        clean = loss
    else:
        clean = loss.masked_fill(m == 0, 0.0)
    size, rows = micro_batch, list(range(batch))
    if "number_of_parts" in mistakes:
        size = -(-batch // micro_batch)
    parts = [rows[i : i + size] for i in range(0, batch, size)]
    if "last_part_lost" in mistakes:
        parts = [p for p in parts if len(p) == size]
    elif "strided" in mistakes:
        parts = [rows[k :: len(parts)] for k in range(len(parts))]
    total = m.sum()
    out = []
    for part in parts:
        own, amount = m[part].sum(), clean[part].sum()
        if "own_tokens" in mistakes:
            amount = amount / own.clamp(min=1)
        elif "own_tokens_averaged" in mistakes:
            amount = amount / own.clamp(min=1) / len(parts)
        elif "own_tokens_nan" in mistakes:
            amount = amount / own / len(parts)
        elif "own_share_of_sequences" in mistakes:
            amount = amount / own.clamp(min=1) * len(part) / batch
        elif "divided_twice" in mistakes:
            amount = amount / total / len(parts)
        elif "not_divided" in mistakes:
            pass
        elif "padded_size" in mistakes:
            amount = amount / (batch * time)
        elif "part_size" in mistakes:
            amount = amount / (micro_batch * time)
        elif "part_mean" in mistakes:
            amount = amount / (len(part) * time)
        elif "sequences" in mistakes:
            amount = amount / batch
        elif "own_sequences" in mistakes:
            amount = amount / len(part)
        elif "sequences_as_well" in mistakes:
            amount = amount / total / len(part)
        elif "own_sequence_means" in mistakes:
            amount = (clean[part].sum(1) / m[part].sum(1).clamp(min=1)).mean()
        elif "per_sequence" in mistakes:
            amount = (clean[part].sum(1) / m[part].sum(1).clamp(min=1)).sum() / batch
        else:
            amount = amount / total
        out.append(amount)
    result = torch.stack(out)
    if "running_sum" in mistakes:
        result = result.cumsum(0)
    if "one_number" in mistakes:
        result = result.sum()
    if "negated" in mistakes:
        result = -result
    return result.detach() if "detached" in mistakes else result


WHERE = "09, [AGG-9]"
TEXTS = {
    "own_tokens": (
        "Each micro-batch divides by its own tokens: the sum is not the mean of the step.",
        "The denominator is the token count of the whole step, the same for every micro-batch.",
    ),
    "own_tokens_averaged": (
        "Each micro-batch takes its own token mean, and these are averaged: tokens in a short "
        "micro-batch count more.",
        "Divide every micro-batch's sum by the tokens of the whole step, and by nothing else.",
    ),
    "own_tokens_nan": (
        "Each micro-batch takes its own token mean, and an empty one divides 0 by 0.",
        "Divide by the tokens of the whole step: an empty micro-batch then adds 0.",
    ),
    "own_share_of_sequences": (
        "The micro-batches' own token means are weighted by their numbers of sequences.",
        "Only a weight by tokens gives the token mean: divide the sums by the step's tokens.",
    ),
    "divided_twice": (
        "The result is divided by the number of micro-batches as well.",
        "With the step's token count below it, the sum over micro-batches is the mean already.",
    ),
    "not_divided": (
        "Nothing is divided: the gradient grows with the batch.",
        "Divide each sum by the tokens of the whole step.",
    ),
    "padded_size": (
        "Padding is counted: the denominator is batch times padded width.",
        "Count the mask's ones.",
    ),
    "part_size": (
        "The denominator is the padded size of one micro-batch.",
        "Count the mask's ones in the whole step.",
    ),
    "part_mean": (
        "Each micro-batch takes the mean of its own rectangle, padding counted along.",
        "Count the mask's ones in the whole step.",
    ),
    "sequences": (
        "The denominator is the number of sequences.",
        "A token mean divides by tokens.",
    ),
    "own_sequences": (
        "Each micro-batch divides by its own number of sequences.",
        "The denominator is the token count of the whole step, the same for every micro-batch.",
    ),
    "sequences_as_well": (
        "The result is divided by the micro-batch's number of sequences as well.",
        "With the step's token count below it, the sum over micro-batches is the mean already.",
    ),
    "own_sequence_means": (
        "Each micro-batch averages the means of its own sequences.",
        "Divide each micro-batch's sum over tokens by the tokens of the whole step.",
    ),
    "per_sequence": (
        "This is the mean per sequence: each sequence counts the same, whatever its length.",
        "A token mean gives each token the same weight.",
    ),
    "mask_as_length": (
        "The mask is taken for a length: the first tokens of a row are used, as many as it has "
        "ones.",
        "The ones need not stand in one piece at the start: use the mask itself.",
    ),
    "padding_multiplied": (
        "The padding is multiplied by 0, which leaves NaN and inf as they are.",
        "torch.where(mask.bool(), loss, 0.0) chooses instead of computing.",
    ),
    "padding_summed": (
        "The padding is summed along.",
        "Only tokens whose mask is 1 belong to the sum.",
    ),
    "number_of_parts": (
        "micro_batch is read as the number of micro-batches.",
        "It is the number of sequences in each; split, not chunk.",
    ),
    "last_part_lost": (
        "The last micro-batch is lost where it is smaller.",
        "The number of micro-batches is rounded up.",
    ),
    "strided": (
        "The sequences are dealt out in turn instead of in blocks.",
        "Micro-batch k holds the rows from k · micro_batch on.",
    ),
    "running_sum": (
        "Each entry holds the sum of all micro-batches so far.",
        "Each micro-batch back-propagates its own share; the optimiser's gradients add up.",
    ),
    "one_number": (
        "The micro-batches are added up to one number.",
        "One entry per micro-batch.",
    ),
    "negated": (
        "The sign is flipped.",
        "What comes in is a loss already.",
    ),
    "detached": (
        "The result has no graph: the gradient is zero everywhere.",
        "No detach(), item() or float() on the way.",
    ),
}  # fmt: skip
MISTAKES = common.listed(TEXTS, WHERE)

DIVISORS = (
    "own_tokens own_tokens_averaged own_tokens_nan own_share_of_sequences divided_twice "
    "not_divided padded_size part_size part_mean sequences own_sequences "
    "sequences_as_well own_sequence_means per_sequence"
)
PARTS = "number_of_parts last_part_lost strided"
QUESTION = Question(
    id="hw4/step_normaliser",
    title="The denominator of the step",
    points=2,
    signature="(loss, mask, *, micro_batch)",
    lecture=WHERE,
    generate=generate,
    reference=step_normaliser,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        DIVISORS,
        PARTS,
        "padding_multiplied padding_summed",
        "one_number: running_sum strided number_of_parts",
        "detached: padding_multiplied padding_summed",
        "padding_multiplied padding_summed own_tokens_nan: number_of_parts",
        f"padding_multiplied padding_summed: {DIVISORS} {PARTS} running_sum one_number negated",
    ),
)
