"""hw3/gspo: one ratio, one gate per sequence."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw3 import common
from policy_gradients.surrogates import gspo


def generate(draw, final):
    if final:
        sizes = [
            ((3, 1, 5, 2, 0, 4, 2, 6, 1, 3, 5, 2, 4, 2, 3, 5), 7),
            ((2, 4, 1, 3, 5, 2, 1, 0, 4, 3, 2, 3, 5, 1, 2, 4), 6),
        ]
        edges = [(0.3, 0.1), (0.02, 0.05), (0.15, 0.4)]
    else:
        sizes = [
            ((2, 4, 1, 3, 5, 2, 1, 0, 4, 3, 2, 3, 4, 1, 2, 5), 6),
            ((5, 2, 3, 1, 0, 4, 2, 6, 1, 3, 5, 2, 4, 2, 3, 6), 8),
        ]
        edges = [(0.3, 0.1), (0.04, 0.02), (0.2, 0.5)]
    sizes.append(sizes[0])
    kinds = (torch.bool, torch.int64, torch.float64)
    names = ("lengths that differ", "narrow edges", "every argument requires a gradient")
    cases = []
    for name, (lengths, time), kind, knobs in zip(names, sizes, kinds, edges, strict=True):
        mask = (common.scattered if "gradient" in name else common.mask_of)(lengths, time)
        batch = len(lengths)
        advantages = common.signs(draw, batch)
        # The mean log-ratio of a row says where its sequence ratio lies; the tokens scatter.
        centre = common.ratios(draw, advantages, *knobs).log()
        scatter = torch.where(mask, 0.3 * draw.normal(batch, time), 0.0)
        scatter = scatter - scatter.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
        logp = common.log_probs(draw, (centre + scatter).exp())
        old = logp - centre - scatter
        logp, old = (common.dirty(x, mask, draw, hard=False) for x in (logp, old))
        cases.append(
            Case(
                name=name,
                args=(logp, old, advantages, mask.to(kind)),
                knobs={"eps_low": knobs[0], "eps_high": knobs[1]},
                differentiable=(0,),
                constants=(1, 2) if "gradient" in name else (),
                weights=draw.weights(batch, time),
            )
        )
    return [*cases, common.unlikely(cases[0]), _long(draw, final)]


def _long(draw, final) -> Case:
    """Long answers in float32, whose product of ratios is 0 or infinite."""
    time = 70 if final else 60
    mask = common.mask_of((time, time - 9, time - 20, time - 1), time)
    step = torch.tensor([[3.0], [-3.0], [2.5], [-2.5]]) + 0.1 * draw.normal(4, time)
    logp = common.log_probs(draw, step.exp())
    return Case(
        name="long answers in float32",
        args=(
            logp.float(),
            (logp - step).float(),
            torch.tensor([[1.0], [0.5], [-0.7], [-1.2]]),
            mask,
        ),
        knobs={"eps_low": 0.3, "eps_high": 0.1},
        differentiable=(0,),
        weights=draw.weights(4, time).float(),
        stability=True,
    )


def reference(logp, logp_old, advantages, mask, *, eps_low, eps_high, padding="filled"):
    """The library's gspo; padding="0" puts zeros there, which is accepted as well."""
    loss = gspo(logp, logp_old, advantages, mask, eps_low=eps_low, eps_high=eps_high)
    return torch.where(mask.bool(), loss, 0.0) if padding == "0" else loss


def buggy(
    logp, logp_old, advantages, mask, *, eps_low, eps_high, padding="filled", mistakes=frozenset()
):
    mask = common.first_ones(mask) if "mask_as_length" in mistakes else mask
    advantages = common.weights_of(advantages, mistakes)
    _, on = common.kept(logp, mask, mistakes & MASKS)
    if "padding_read" in mistakes:
        on = torch.ones_like(on)
    if "old_not_detached" not in mistakes:
        logp_old = logp_old.detach()
    if "logp_detached" in mistakes:
        logp = logp.detach()
    if "old_ignored" in mistakes:
        logp_old = logp.detach()
    change = logp - logp_old
    if "ratio_inverted" in mistakes:
        change = -change
    axis = 0 if "wrong_axis" in mistakes else 1
    lengths = on.sum(axis, keepdim=True)
    if "empty_nan" not in mistakes:
        lengths = lengths.clamp(min=1)
    if "padded_width" in mistakes:
        lengths = torch.full_like(lengths, on.shape[1])
    elif "sum_of_logs" in mistakes:
        lengths = torch.ones_like(lengths)
    elif "length_root" in mistakes:
        lengths = lengths.sqrt()
    total = (on * change).sum(axis, keepdim=True)
    if "token_ratio" in mistakes:
        s = change.exp()
    elif "token_ratio_clean" in mistakes:
        s = torch.where(mask.bool(), change, 0.0).exp()
    elif "divided_after_exp" in mistakes:
        s = total.exp() / lengths
    elif "whole_batch" in mistakes:
        s = (total.sum() / on.sum()).exp()
    elif "mean_of_ratios" in mistakes:
        s = (on * change.exp()).sum(axis, keepdim=True) / lengths
    elif "root_of_product" in mistakes:
        s = torch.where(on > 0, change.exp(), 1.0).prod(axis, keepdim=True) ** (1 / lengths)
    elif "exp_missing" in mistakes:
        s = total / lengths
    elif "quotient_of_probabilities" in mistakes:
        new = (on * logp).sum(axis, keepdim=True) / lengths
        old = (on * logp_old).sum(axis, keepdim=True) / lengths
        s = new.exp() / old.exp()
    else:
        s = (total / lengths).exp()
    if "per_token_gradient" in mistakes:
        s = s.detach() * (logp - logp.detach()).exp()
    loss = common.objective(s, advantages, eps_low, eps_high, mistakes)
    if "missing_minus" not in mistakes:
        loss = -loss
    if "column" in mistakes:
        return loss[:, :1]
    loss = loss.expand(logp.shape)
    if "divided_by_length" in mistakes:
        loss = loss / mask.to(loss.dtype).sum(1, keepdim=True).clamp(min=1)
    if "mean" in mistakes:
        return loss.mean()
    filled = padding == "filled" or "token_ratio_clean" in mistakes  # with 0 it is token_ratio
    return loss if filled else torch.where(mask.bool(), loss, 0.0)


MASKS = {"last_token_dropped", "first_token_dropped"}
WHERE = "10, [VAR-2]"
MISTAKES = (
    Mistake(
        "sum_of_logs",
        "The log-ratios of an answer are added up, not averaged: the ratio explodes with the "
        "length.",
        "Divide by the number of tokens before exp.",
        WHERE,
    ),
    Mistake(
        "padded_width",
        "The sum of the log-ratios is divided by the padded width instead of the answer's own "
        "length.",
        "The length of an answer is the sum of its mask.",
        WHERE,
    ),
    Mistake(
        "length_root",
        "The sum of the log-ratios is divided by the root of the length.",
        "A mean divides by the number of tokens.",
        WHERE,
    ),
    Mistake(
        "padding_read",
        "The mean of the log-ratios runs over the padding, too.",
        "Set the log-ratio to 0 where the mask is 0, and divide by the sum of the mask.",
        WHERE,
    ),
    Mistake(
        "token_ratio",
        "Every token has its own ratio: that is PPO's surrogate.",
        "One ratio per answer, from the mean log-ratio of its tokens.",
        common.CLIP,
    ),
    Mistake(
        "token_ratio_clean",
        "Every token has its own ratio, 1 on the padding: that is PPO's surrogate.",
        "One ratio per answer, from the mean log-ratio of its tokens.",
        common.CLIP,
    ),
    Mistake(
        "divided_after_exp",
        "The sum of the log-ratios is exponentiated and then divided by the length.",
        "Divide the sum by the length first, then exp.",
        WHERE,
    ),
    Mistake(
        "whole_batch",
        "One ratio is computed for the whole batch.",
        "One ratio per answer: sum along the row, keepdim=True.",
        WHERE,
    ),
    Mistake(
        "mean_of_ratios",
        "The ratios are averaged instead of their logarithms: an arithmetic mean where the "
        "geometric one belongs.",
        "First the mean of the log-ratios, then exp.",
        WHERE,
    ),
    Mistake(
        "root_of_product",
        "The ratios are multiplied and a root is taken: for long answers the product can become 0 "
        "or infinite in float32.",
        "Average the log-ratios, then exp.",
        WHERE,
    ),
    Mistake(
        "exp_missing",
        "The mean log-ratio is used as the ratio: exp is missing.",
        "The ratio of two equal policies is 1, not 0.",
        WHERE,
    ),
    Mistake(
        "wrong_axis",
        "The mean log-ratio runs over the batch at each position instead of over an answer.",
        "logp is (batch, time): an answer is a row.",
        WHERE,
    ),
    Mistake(
        "per_token_gradient",
        "The value is the answer's, but each token differentiates its own entry only: that is "
        "the variant GSPO-token.",
        "Expand the answer's term as it is; every entry has a gradient in all its tokens.",
        WHERE,
    ),
    Mistake(
        "divided_by_length",
        "The answer's term is divided by the length once more.",
        "The average comes later; here the term stands on each token undivided.",
        WHERE,
    ),
    Mistake(
        "column",
        "The result has the shape (batch, 1) instead of (batch, time).",
        "Expand the answer's term to all its tokens.",
        WHERE,
    ),
    Mistake(
        "empty_nan",
        "An empty answer divides 0 by 0.",
        "clamp(min=1) on the lengths gives it the ratio 1.",
        WHERE,
    ),
    *common.mistakes(
        "missing_minus", "max_for_min", "clip_only", "no_clip", "min_before_advantage",
        "dropped_outside", "eps_swapped", "eps_low_twice", "eps_high_twice",
        "lower_edge_missing", "upper_edge_missing", "edges_of_log", "ratio_inverted",
        "quotient_of_probabilities", "old_ignored", "old_not_detached", "logp_detached",
        "advantages_not_detached", "advantage_size", "advantages_ignored", "last_token_dropped",
        "first_token_dropped", "mask_as_length", "dual_clip", "mean",
    ),
)  # fmt: skip

EDGES = (
    "eps_swapped eps_low_twice eps_high_twice lower_edge_missing upper_edge_missing edges_of_log"
)
RATIO = (
    "mean_of_ratios root_of_product exp_missing quotient_of_probabilities token_ratio "
    "token_ratio_clean divided_after_exp whole_batch"
)
LENGTH = "padded_width sum_of_logs length_root empty_nan"
CLIPS = "max_for_min clip_only min_before_advantage dropped_outside dual_clip"
BLIND = "min_before_advantage advantage_size advantages_ignored"
QUESTION = Question(
    id="hw3/gspo",
    title="One ratio per sequence (GSPO)",
    points=3,
    signature="(logp, logp_old, advantages, mask, *, eps_low, eps_high)",
    lecture=WHERE,
    generate=generate,
    reference=reference,
    buggy=buggy,
    mistakes=MISTAKES,
    variants=({"padding": "filled"}, {"padding": "0"}),
    excludes=excluding(
        LENGTH,
        RATIO,
        f"{CLIPS} no_clip",
        f"no_clip: {EDGES}",
        EDGES,
        f"token_ratio token_ratio_clean whole_batch: {LENGTH} wrong_axis padding_read "
        "last_token_dropped first_token_dropped mask_as_length "
        f"per_token_gradient {EDGES}",
        f"exp_missing: {EDGES} {CLIPS} no_clip",
        f"old_ignored: {LENGTH} {RATIO} {EDGES} {CLIPS} no_clip wrong_axis ratio_inverted "
        "padding_read last_token_dropped first_token_dropped mask_as_length old_not_detached",
        "per_token_gradient: logp_detached old_not_detached",
        f"{BLIND}: {EDGES} no_clip",  # one edge is all that is left
        "clip_only lower_edge_missing",  # together they are min_before_advantage
        "min_before_advantage: advantage_size advantages_ignored",
        "padding_read: empty_nan last_token_dropped first_token_dropped mask_as_length "
        "padded_width",
        "last_token_dropped first_token_dropped mask_as_length",
        "wrong_axis: empty_nan padded_width",
        "mean column divided_by_length",
        "advantage_size advantages_ignored",
        "advantages_not_detached advantages_ignored",
        "dual_clip: advantage_size advantages_ignored",
        "empty_nan: mean_of_ratios root_of_product divided_after_exp",
        "divided_after_exp: padded_width sum_of_logs length_root",
        "column: token_ratio token_ratio_clean whole_batch wrong_axis per_token_gradient",
        f"root_of_product quotient_of_probabilities: {LENGTH}",
    ),
)
