"""hw2/ppo_clip: the clipped surrogate with two distances."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw2.common import REDUCTIONS, SHAPES, finish, mistakes
from policy_gradients.surrogates import ppo_clip


def _ratios(draw, batch, time, low, high):
    """Ratios (batch, time): every row visits all six stretches around both edges of both knobs."""
    near, far = sorted((low, high))
    stretches = torch.tensor(
        [
            (0.35, 0.95 - far),
            (1.02 - far, 0.98 - near),
            (1.02 - near, 0.98),
            (1.02, 0.98 + near),
            (1.02 + near, 0.98 + far),
            (1.05 + far, 1.9),
        ],
        dtype=torch.float64,
    )
    which = torch.arange(time).remainder(6).expand(batch, time)
    which = which.gather(1, draw.uniform(batch, time).argsort(1))
    start, end = stretches[which].unbind(-1)
    return start + (end - start) * draw.uniform(batch, time)


def _case(draw, name, batch, time, width, low, high, constants=()):
    logp_old = draw.uniform(batch, time, low=-2.5, high=-0.3)
    sign = (-1.0) ** torch.arange(batch, dtype=torch.float64)[:, None]
    advantages = sign * draw.uniform(batch, width, low=0.5, high=1.5)
    if width > 1:
        advantages[:, 1::2] *= -1
    return Case(
        name=name,
        args=(logp_old + _ratios(draw, batch, time, low, high).log(), logp_old, advantages),
        knobs={"eps_low": low, "eps_high": high},
        differentiable=(0,),
        constants=constants,
        weights=draw.weights(batch, time),
    )


def _far(draw, batch):
    """Ratios of about 0.05, 0.2, 5 and 10, each with advantages of both signs and several sizes."""
    start = torch.tensor([0.03, 0.03, 0.1, 0.1, 4, 4, 8, 8], dtype=torch.float64)
    ratios = start * draw.uniform(batch, 8, low=1.2, high=1.4)
    logp_old = draw.uniform(batch, 8, low=-5.5, high=-3.3)
    advantages = (-1.0) ** torch.arange(8) * draw.uniform(batch, 8, low=0.5, high=4.0)
    return Case(
        name="ratios far from one, advantages (batch, time)",
        args=(logp_old + ratios.log(), logp_old, advantages),
        knobs={"eps_low": 0.25, "eps_high": 0.3},
        differentiable=(0,),
        weights=draw.weights(batch, 8),
    )


def _unlikely(draw):
    case = _case(draw, "very unlikely tokens, in float32", 2, 6, 1, 0.2, 0.3)
    logp, logp_old, advantages = case.args
    return Case(
        name=case.name,
        args=((logp - 120).float(), (logp_old - 120).float(), advantages.float()),
        knobs=case.knobs,
        differentiable=(0,),
        weights=case.weights.float(),
        stability=True,
    )


def generate(draw, final):
    one, two, three = [(4, 7), (3, 12), (2, 6)] if final else [(2, 7), (3, 12), (4, 6)]
    return [
        _case(draw, "advantages (batch, 1)", *one, 1, 0.2, 0.28),
        _case(draw, "eps_low above eps_high, advantages (batch, time)", *two, two[1], 0.3, 0.1),
        _case(draw, "wide upper edge, advantages (batch, 1)", *three, 1, 0.15, 0.45),
        _case(
            draw,
            "advantages (batch, time) and old log-probabilities, both with a graph",
            *(3, 8, 8, 0.3, 0.2),
            constants=(1, 2),
        ),
        _far(draw, 3 if final else 2),
        _unlikely(draw),
    ]


def buggy(logp, logp_old, advantages, *, eps_low, eps_high, mistakes=frozenset()):
    if "advantages_not_detached" not in mistakes:
        advantages = advantages.detach()
    if "old_not_detached" not in mistakes:
        logp_old = logp_old.detach()
    if "advantages_centred" in mistakes:
        advantages = advantages - advantages.mean()
    elif "advantages_whitened" in mistakes:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    gap = logp - logp_old
    if "ratio_inverted" in mistakes:
        gap = -gap
    if "sequence_ratio" in mistakes:
        gap = gap.mean(1, keepdim=True).expand_as(gap)
    if "no_exp" in mistakes:
        ratio = gap
    elif "quotient_of_logs" in mistakes:
        ratio = logp / logp_old
    elif "quotient_of_probabilities" in mistakes:
        ratio = logp.exp() / logp_old.exp()
    elif "old_recomputed" in mistakes:
        ratio = (logp - logp.detach()).exp()
    else:
        ratio = gap.exp()
    if "eps_swapped" in mistakes:
        eps_low, eps_high = eps_high, eps_low
    elif "low_for_both" in mistakes:
        eps_high = eps_low
    elif "high_for_both" in mistakes:
        eps_low = eps_high
    elif "edges_fixed" in mistakes:
        eps_low = eps_high = 0.2
    bottom, top = 1 - eps_low, 1 + eps_high
    if "upper_edge_minus" in mistakes:
        top = 1 - eps_high
    if "reciprocal_edge" in mistakes:
        bottom = 1 / (1 + eps_low)
    if "around_zero" in mistakes:
        bottom, top = -eps_low, eps_high
    if "upper_edge_only" in mistakes:
        bottom = -torch.inf
    elif "lower_edge_only" in mistakes:
        top = torch.inf
    if "log_ratio_clipped" in mistakes:
        clipped = gap.clamp(-eps_low, eps_high).exp()
    else:
        clipped = ratio.clamp(bottom, top)
    if "clipped_detached" in mistakes:
        clipped = clipped.detach()
    plain, safe = ratio * advantages, clipped * advantages
    if "advantage_on_clipped_only" in mistakes:
        plain = ratio + 0 * advantages
    if "product_clipped" in mistakes:
        safe = plain.clamp(bottom, top)
    elif "advantage_missing" in mistakes:
        safe = clipped + 0 * advantages
    if "no_clip" in mistakes:
        out = plain
    elif "clip_without_min" in mistakes:
        out = safe
    elif "max_for_min" in mistakes:
        out = torch.maximum(plain, safe)
    elif "advantage_after_min" in mistakes:
        out = torch.minimum(ratio, clipped) * advantages
    else:
        out = torch.minimum(plain, safe)
    if "dual_clip" in mistakes:
        out = torch.where(advantages < 0, torch.maximum(out, 3 * advantages), out)
    return finish(-out, mistakes)


WHERE = "03, [RC-6]"
TWO = "03, [RC-8]"
MISTAKES = (
    Mistake(
        "max_for_min",
        "The maximum is taken where the minimum belongs: the gradient dies where it is needed and "
        "lives where it should stop.",
        "Of the two products the objective keeps the smaller one.",
        WHERE,
    ),
    Mistake(
        "clip_without_min",
        "Only the clipped term is used: a token that moved the wrong way past an edge gets no "
        "gradient back.",
        "The minimum with the unclipped product is what lets a token come back.",
        "03, [RC-7]",
    ),
    Mistake(
        "no_clip",
        "The clip has no effect.",
        "The result is the smaller of the plain and the clipped product.",
        WHERE,
    ),
    Mistake(
        "advantage_after_min",
        "The minimum is taken of the ratios, and the advantage is multiplied afterwards: for a "
        "negative advantage that turns the minimum round.",
        "Multiply both ratios with the advantage first; then take the minimum.",
        WHERE,
    ),
    Mistake(
        "advantage_missing",
        "The clipped term is not multiplied with the advantage.",
        "Both terms of the minimum carry the factor A.",
        WHERE,
    ),
    Mistake(
        "advantage_on_clipped_only",
        "The plain term is not multiplied with the advantage.",
        "Both terms of the minimum carry the factor A.",
        WHERE,
    ),
    Mistake(
        "product_clipped",
        "The product of ratio and advantage is clipped instead of the ratio.",
        "Clip the ratio, then multiply.",
        WHERE,
    ),
    Mistake(
        "eps_swapped",
        "eps_low and eps_high are swapped.",
        "eps_low belongs to the lower edge, below a ratio of one.",
        TWO,
    ),
    Mistake(
        "low_for_both",
        "eps_low is used for both edges, and eps_high has no effect.",
        "The upper edge is 1 + eps_high.",
        TWO,
    ),
    Mistake(
        "high_for_both",
        "eps_high is used for both edges, and eps_low has no effect.",
        "The lower edge is 1 - eps_low.",
        TWO,
    ),
    Mistake(
        "edges_fixed",
        "The edges are fixed at 0.8 and 1.2: eps_low and eps_high have no effect.",
        "The edges are 1 - eps_low and 1 + eps_high.",
        TWO,
    ),
    Mistake(
        "upper_edge_minus",
        "The upper edge is 1 - eps_high, which lies below a ratio of one.",
        "The upper edge is 1 + eps_high.",
        TWO,
    ),
    Mistake(
        "upper_edge_only",
        "Only the upper edge is clipped.",
        "The ratio is clipped on both sides.",
        WHERE,
    ),
    Mistake(
        "lower_edge_only",
        "Only the lower edge is clipped.",
        "The ratio is clipped on both sides.",
        WHERE,
    ),
    Mistake(
        "around_zero",
        "The ratio is clipped around zero instead of around one.",
        "The epsilons are distances from a ratio of one.",
        WHERE,
    ),
    Mistake(
        "log_ratio_clipped",
        "The log-ratio is clipped to the epsilons instead of the ratio to its edges.",
        "Exponentiate first; the edges are 1 - eps_low and 1 + eps_high.",
        WHERE,
    ),
    Mistake(
        "reciprocal_edge",
        "The lower edge is the reciprocal of 1 + eps_low instead of 1 - eps_low.",
        "Both edges are plain distances from one.",
        TWO,
    ),
    Mistake(
        "clipped_detached",
        "The clipped ratio is detached: between the edges, where both terms are equal, half of "
        "the gradient is lost.",
        "Only advantages and old log-probabilities are constants; clamp stops the gradient alone.",
        "03, [RC-7]",
    ),
    Mistake(
        "ratio_inverted",
        "The ratio is inverted: old over new.",
        "New log-probability minus old one, then exp.",
        "03, [RC-3]",
    ),
    Mistake(
        "no_exp",
        "The exponential is missing: the log-ratio stands where the ratio belongs.",
        "A difference of logarithms becomes a ratio through exp.",
        "03, [RC-3]",
    ),
    Mistake(
        "quotient_of_logs",
        "The ratio is a quotient of log-probabilities instead of probabilities.",
        "Subtract the log-probabilities, then exponentiate.",
        "03, [RC-3]",
    ),
    Mistake(
        "quotient_of_probabilities",
        "Both log-probabilities are exponentiated before they are divided: for rare tokens in "
        "float32 that is 0/0.",
        "Subtract first, exponentiate afterwards.",
        "03, [RC-3]",
    ),
    Mistake(
        "dual_clip",
        "A dual clip is built in: for a negative advantage the loss stops growing at three times "
        "its size.",
        "Nothing else is clipped here: with a negative advantage every ratio above the lower edge "
        "keeps its gradient.",
        "03, [RC-7]",
    ),
    Mistake(
        "old_recomputed",
        "The current policy stands in both places of the ratio, so it is one everywhere and "
        "nothing is ever clipped.",
        "The denominator is logp_old as it was given.",
        "03, [RC-3]",
    ),
    Mistake(
        "sequence_ratio",
        "The log-ratios of a row are averaged before exp: all its tokens share one ratio.",
        "One ratio per token; another lecture's method averages them.",
        "03, [RC-3]",
    ),
    Mistake(
        "advantages_not_detached",
        "The advantages are not detached: a gradient of the policy's loss flows into "
        "whatever produced them.",
        "An advantage is a number that weighs the token: advantages.detach().",
        WHERE,
    ),
    Mistake(
        "old_not_detached",
        "The old log-probabilities are not detached: a gradient flows into them.",
        "What was noted at sampling time is a number: logp_old.detach().",
        "03, [RC-3]",
    ),
    Mistake(
        "advantages_centred",
        "The advantages are centred once more inside the loss.",
        "Use the advantages as they come.",
        WHERE,
    ),
    Mistake(
        "advantages_whitened",
        "The advantages are standardised once more inside the loss.",
        "Use the advantages as they come.",
        WHERE,
    ),
    *mistakes(WHERE, "missing_minus", "detached", *REDUCTIONS.split(), "divided_by_time"),
)

QUESTION = Question(
    id="hw2/ppo_clip",
    title="The clipped surrogate",
    points=4,
    signature="(logp, logp_old, advantages, *, eps_low, eps_high)",
    lecture=WHERE,
    generate=generate,
    reference=ppo_clip,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=SHAPES
    | excluding(
        "max_for_min clip_without_min no_clip advantage_after_min",
        # Without the clip there is nothing to get wrong about it.
        "no_clip: eps_swapped low_for_both high_for_both upper_edge_only lower_edge_only "
        "around_zero log_ratio_clipped reciprocal_edge clipped_detached advantage_missing "
        "product_clipped edges_fixed upper_edge_minus",
        "eps_swapped low_for_both high_for_both edges_fixed",
        "edges_fixed upper_edge_minus: upper_edge_only lower_edge_only around_zero "
        "log_ratio_clipped reciprocal_edge old_recomputed no_exp quotient_of_logs edges_fixed "
        "upper_edge_minus advantage_after_min product_clipped sequence_ratio",
        "upper_edge_minus: eps_swapped low_for_both high_for_both clipped_detached",
        "advantage_on_clipped_only: no_clip clip_without_min advantage_after_min "
        "advantage_missing product_clipped",
        "upper_edge_only lower_edge_only around_zero log_ratio_clipped product_clipped",
        "around_zero upper_edge_only log_ratio_clipped: reciprocal_edge",
        "upper_edge_only: low_for_both high_for_both eps_swapped",
        "lower_edge_only: low_for_both high_for_both eps_swapped",
        "advantage_after_min: upper_edge_only lower_edge_only advantage_missing product_clipped "
        "low_for_both high_for_both reciprocal_edge",
        "advantage_missing: product_clipped detached",
        "product_clipped: clipped_detached",
        "no_exp quotient_of_logs old_recomputed ratio_inverted quotient_of_probabilities",
        "quotient_of_probabilities: sequence_ratio log_ratio_clipped detached",
        "dual_clip: no_exp quotient_of_logs old_recomputed advantage_missing product_clipped "
        "advantage_on_clipped_only around_zero max_for_min sequence_ratio clip_without_min "
        "advantage_after_min",
        "no_exp quotient_of_logs old_recomputed: sequence_ratio log_ratio_clipped",
        # The ratio is one everywhere, or far below every edge.
        "old_recomputed: max_for_min clip_without_min no_clip advantage_after_min eps_swapped "
        "low_for_both high_for_both upper_edge_only lower_edge_only reciprocal_edge "
        "old_not_detached",
        "no_exp quotient_of_logs: eps_swapped low_for_both high_for_both upper_edge_only "
        "lower_edge_only around_zero reciprocal_edge clipped_detached",
        "sequence_ratio: upper_edge_only lower_edge_only eps_swapped low_for_both high_for_both "
        "reciprocal_edge",
        "ratio_inverted: upper_edge_only lower_edge_only",
        "advantages_centred advantages_whitened",
        "detached: clipped_detached old_not_detached advantages_not_detached",
        "clip_without_min: clipped_detached upper_edge_only",  # the latter: advantage_after_min
        "clip_without_min max_for_min: around_zero product_clipped",
    ),
)
