"""hw3/grpo_loss: ratio, clip and average put together into one number."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw3 import common
from policy_gradients.algorithms import grpo_loss


def generate(draw, final):
    if final:
        rows = [((3, 1, 0, 6, 2, 5), 7), ((5, 2, 4, 0, 3), 6), ((4, 1, 6, 0, 2, 3), 8)]
        edges = [(0.3, 0.1), (0.2, 0.35), (0.15, 0.3)]
    else:
        rows = [((5, 2, 0, 3, 1, 4), 6), ((4, 0, 5, 3, 2), 7), ((2, 6, 1, 3, 0, 4), 7)]
        edges = [(0.3, 0.1), (0.2, 0.4), (0.1, 0.25)]
    kinds = (torch.bool, torch.int64, torch.float64)
    names = (
        "whole batch",
        "NaN and inf on the padding",
        "count given, every argument requires a gradient",
    )
    cases = []
    for name, (lengths, time), (low, high), kind in zip(names, rows, edges, kinds, strict=True):
        mask = (common.scattered if "count" in name else common.mask_of)(lengths, time)
        advantages = common.signs(draw, len(lengths))
        rho = torch.ones(mask.shape, dtype=torch.float64)
        spread = advantages.expand(mask.shape)[mask]
        rho[mask] = common.ratios(draw, spread.clone(), low, high)
        logp = common.log_probs(draw, rho)
        hard = "NaN" in name
        old = common.dirty(logp - rho.log(), mask, draw, hard=hard)
        logp = common.dirty(logp, mask, draw, hard=hard)
        knobs = {"eps_low": low, "eps_high": high}
        network = "gradient" in name
        cases.append(
            Case(
                name=name,
                args=(logp, old, advantages, mask.to(kind)),
                knobs=knobs | ({"sequences": 14 if final else 11} if network else {}),
                differentiable=(0,),
                constants=(1, 2) if network else (),
                weights=draw.weights(1)[0],
            )
        )
    return [*cases, common.unlikely(cases[0])]


def buggy(
    logp, logp_old, advantages, mask, *, eps_low, eps_high, sequences=None, mistakes=frozenset()
):
    mask = common.first_ones(mask) if "mask_as_length" in mistakes else mask
    advantages = common.weights_of(advantages, mistakes)
    _, on = common.kept(logp.detach(), mask, mistakes)
    late = {"masked_too_late", "mask_multiplied", "padding_counted", "mask_inverted"} & mistakes
    if not late:
        logp = logp.masked_fill(mask == 0, 0.0)
        logp_old = logp_old.masked_fill(mask == 0, 0.0)
    if "sequence_ratio" in mistakes:
        change = common.kept(logp - logp_old.detach(), mask, frozenset())[0]
        rho = (change.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)).exp()
        rho = rho.expand(logp.shape)
    else:
        rho = common.ratio(logp, logp_old, mistakes)
    loss = common.objective(rho, advantages, eps_low, eps_high, mistakes)
    if "constant_weight" in mistakes:
        loss = common.clip(rho, eps_low, eps_high, mistakes).detach() * advantages * logp
    elif "no_ratio" in mistakes:
        loss = advantages * logp
    if "missing_minus" not in mistakes:
        loss = -loss
    if "padding_left" not in mistakes:
        loss, _ = common.kept(loss, mask, mistakes)
    if "per_token" in mistakes:
        mean = loss.sum() / on.sum().clamp(min=1)
        return mean if sequences is None else mean * len(loss) / sequences
    if "per_token_own" in mistakes:
        return loss.sum() / on.sum().clamp(min=1)
    if "per_token_counted" in mistakes:
        return loss.sum() / (on.sum().clamp(min=1) if sequences is None else sequences)
    rows = common.row_means(loss, on, mistakes)
    return common.over_sequences(rows, on, sequences, mistakes)


WHERE = "08, [GR-2]"
MISTAKES = (
    Mistake(
        "per_token",
        "The average is one mean over all tokens, DAPO's: a long answer weighs more than a "
        "short one.",
        "First one mean per answer, then the mean of the answers.",
        "09, [AGG-2]",
    ),
    Mistake(
        "per_token_own",
        "The average is one mean over the tokens here, DAPO's, and sequences has no effect.",
        "First one mean per answer, then the mean of the answers.",
        "09, [AGG-2]",
    ),
    Mistake(
        "per_token_counted",
        "The average is one mean over all tokens, DAPO's, and sequences is taken for the "
        "number of tokens where it is given.",
        "First one mean per answer, then the mean of the answers.",
        "09, [AGG-2]",
    ),
    Mistake(
        "padding_left",
        "The padding is cleaned before the ratio, and its term, −A for each padded position, is "
        "still added to the row.",
        "torch.where once more, on the terms, before the sum.",
        "the statement, [GR-2]",
    ),
    Mistake(
        "sequence_ratio",
        "One ratio per answer is clipped, GSPO's, instead of one per token.",
        "Here each token has its own ratio and its own gate.",
        "10, [VAR-2]",
    ),
    Mistake(
        "constant_weight",
        "The clipped ratio is a constant weight of the log-probability: that is CISPO's loss.",
        "Here the ratio itself is differentiated, and the smaller of two products is taken.",
        "10, [VAR-3]",
    ),
    Mistake(
        "no_ratio",
        "There is no ratio: the plain log-probability is weighted.",
        "That is the loss of lecture 01, right for the first update on a batch only.",
        "01, [PG-6]",
    ),
    *common.mistakes(
        "missing_minus", "max_for_min", "clip_only", "no_clip", "min_before_advantage",
        "dropped_outside", "dual_clip", "eps_swapped", "eps_low_twice", "eps_high_twice",
        "upper_edge_missing",
        "lower_edge_missing", "edges_of_log", "ratio_inverted", "difference_for_ratio",
        "quotient_of_logs", "quotient_of_probabilities", "old_ignored", "old_not_detached",
        "logp_detached", "advantages_not_detached", "advantage_size", "advantage_sign",
        "advantages_ignored",
        "padded_width", "longest", "length_twice", "length_plus_one", "sum_over_tokens",
        "empty_nan", "empty_not_counted", "batch_not_averaged", "sequences_ignored",
        "sequences_twice", "not_reduced", "broadcast", "broadcast_mean", "mask_multiplied",
        "masked_too_late",
        "padding_counted", "mask_as_length", "mask_inverted", "last_token_dropped",
        "first_token_dropped", padding="the statement, [GR-2]",
    ),
)  # fmt: skip

EDGES = (
    "eps_swapped eps_low_twice eps_high_twice lower_edge_missing upper_edge_missing edges_of_log"
)
CLIPS = "max_for_min clip_only min_before_advantage dropped_outside dual_clip"
RATIO = "ratio_inverted difference_for_ratio quotient_of_logs quotient_of_probabilities"
ONE_EDGE = "min_before_advantage advantage_size advantages_ignored"
TOKENS = "per_token per_token_own per_token_counted"
BOTH = "broadcast broadcast_mean"
QUESTION = Question(
    id="hw3/grpo_loss",
    title="The GRPO loss put together",
    points=3,
    signature="(logp, logp_old, advantages, mask, *, eps_low, eps_high, sequences=None)",
    lecture=WHERE,
    generate=generate,
    reference=grpo_loss,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        # the clip
        f"{CLIPS} no_clip",
        f"no_clip: {EDGES}",
        EDGES,
        f"{ONE_EDGE}: {EDGES} no_clip",  # one edge is all that is left
        "clip_only lower_edge_missing",  # together they are min_before_advantage
        "min_before_advantage: advantage_size advantages_ignored",
        f"{RATIO} old_ignored sequence_ratio no_ratio",
        f"difference_for_ratio quotient_of_logs: {EDGES} {CLIPS} no_clip",
        f"old_ignored no_ratio: {EDGES} {CLIPS} no_clip constant_weight old_not_detached "
        "logp_detached",
        f"constant_weight: {CLIPS} no_clip old_not_detached logp_detached",
        f"sequence_ratio: {EDGES} old_not_detached logp_detached last_token_dropped "
        "first_token_dropped quotient_of_probabilities",
        "advantage_size advantage_sign advantages_ignored",
        "advantages_not_detached: advantage_sign advantages_ignored",
        # the average
        f"{TOKENS} {BOTH}: padded_width longest length_twice length_plus_one "
        "sum_over_tokens empty_nan empty_not_counted batch_not_averaged sequences_twice "
        "not_reduced",
        f"{TOKENS} {BOTH}: sequences_ignored",
        f"{TOKENS} {BOTH}",
        "padding_left: mask_multiplied masked_too_late padding_counted mask_inverted "
        "last_token_dropped first_token_dropped",
        "padded_width longest length_twice sum_over_tokens",
        "padded_width longest sum_over_tokens: length_plus_one empty_nan",
        "length_plus_one empty_nan",
        "empty_nan length_twice",
        "batch_not_averaged: sequences_ignored sequences_twice empty_not_counted not_reduced",
        "not_reduced sequences_twice",
        "sequences_ignored sequences_twice",
        # the mask
        "last_token_dropped first_token_dropped mask_inverted mask_as_length",
        "mask_multiplied masked_too_late padding_counted mask_inverted",
        "padding_counted: last_token_dropped first_token_dropped mask_as_length",
        "dual_clip: advantage_size advantages_ignored",
        "mask_inverted: padded_width longest empty_nan empty_not_counted",
    ),
)
