"""hw5/kto: single responses, good or bad, judged against a zero point."""

from dataclasses import replace

import torch
from torch.nn.functional import softplus

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw5.common import TEXTS, reduce
from policy_gradients.preferences import kto

NETWORK = "the reference and the mismatched pairs from a network"


def generate(draw, final):
    """Labels of every dtype; a z₀ above 0, and one that has to be clamped at 0."""
    first, second, third = (7, 4, 5) if final else (6, 5, 4)
    weights = {"lambda_d": 1.3, "lambda_u": 0.6}
    return [
        _case("labels as bool", draw, first, 4, torch.bool, beta=0.3, **weights),
        _case("labels as integers, no weights given", draw, second, 3, torch.int64, beta=0.7),
        _case(
            "a negative mean of the mismatched pairs", draw, third, 6, torch.float64,
            shift=-1, beta=1.6, lambda_d=0.8, lambda_u=1.7,
        ),
        _case(NETWORK, draw, first - 2, 5, torch.bool, constants=(1, 3, 4), beta=0.5, **weights),
        _far("far from the reference, all good", draw, third, 1, torch.int64),
        _far("far from the reference, all bad", draw, second, 0, torch.float64),
        _extreme(draw),
    ]  # fmt: skip


def _far(name, draw, batch, label, dtype):
    """Log-ratios and a z₀ that no clamp may touch, and one kind of response only."""
    case = _case(name, draw, batch, 5, dtype, shift=12, beta=0.2, lambda_d=0.9, lambda_u=1.4)
    logp, logp_ref, desirable, *others = case.args
    logp = logp_ref + 8 * (logp - logp_ref)
    return replace(case, args=(logp - 15, logp_ref - 15, 0 * desirable + label, *others))


def _case(name, draw, batch, others, dtype, *, shift=1, constants=(), **knobs):
    logp_ref = draw.uniform(batch, low=-28.0, high=-6.0)
    moved = draw.uniform(batch, low=0.4, high=2.5)
    moved[::3] *= -1
    desirable = torch.arange(batch) % 2 == 0  # good and bad, each with both signs of `moved`
    kl_logp_ref = draw.uniform(others, low=-28.0, high=-6.0)
    # Log-ratios of both signs with a mean well away from 0.
    ladder = torch.linspace(-1.8, 1.8, others, dtype=torch.float64)
    ladder[-1] += 0.7  # so that the mean is not the median
    ladder = ladder - ladder.mean()
    ladder = ladder + shift * float(draw.uniform(1, low=0.5, high=1.1))
    return Case(
        name=name,
        args=(logp_ref + moved, logp_ref, desirable.to(dtype), kl_logp_ref + ladder, kl_logp_ref),
        knobs=knobs,
        differentiable=(0,),
        constants=constants,
        weights=draw.weights(batch),
    )


def _extreme(draw):
    logp_ref = draw.uniform(4, low=-90.0, high=-70.0)
    moved = torch.tensor([-58.0, 59.0, -55.0, 57.0], dtype=torch.float64)
    kl_logp_ref = draw.uniform(3, low=-28.0, high=-6.0)
    args = (logp_ref + moved, logp_ref, torch.tensor([1.0, 1.0, 0.0, 0.0]), kl_logp_ref + 0.5,
            kl_logp_ref)  # fmt: skip
    return Case(
        name="log-ratios of 59 in float32",
        args=tuple(a.to(torch.float32) for a in args),
        knobs={"beta": 3.0},
        differentiable=(0,),
        weights=draw.weights(4).to(torch.float32),
        stability=True,
    )


def buggy(
    logp, logp_ref, desirable, kl_logp, kl_logp_ref, *, beta, lambda_d=1.0, lambda_u=1.0,
    mistakes=frozenset(),
):  # fmt: skip
    good = desirable.to(logp.dtype)
    if "labels_inverted" in mistakes:
        good = 1 - good
    if "detached" in mistakes:
        logp = logp.detach()
    if "reference_attached" not in mistakes:
        logp_ref = logp_ref.detach()
    r = logp if "reference_missing" in mistakes else logp - logp_ref
    if "ratio" in mistakes:
        r = r.exp()
    others = kl_logp - kl_logp_ref
    if "baseline_reversed" in mistakes:
        others = -others
    elif "baseline_own" in mistakes:
        others = logp - logp_ref
    elif "baseline_k3" in mistakes:
        others = (-others).exp() - 1 + others
    if "baseline_clamped_first" in mistakes:
        z = others.clamp(min=0).mean()
    elif "baseline_absolute" in mistakes:
        z = others.mean().abs()
    elif "baseline_not_clamped" in mistakes:
        z = others.mean()
    elif "baseline_clamped_above" in mistakes:
        z = others.mean().clamp(max=0)
    elif "baseline_largest" in mistakes:
        z = others.max().clamp(min=0)
    elif "baseline_median" in mistakes:
        z = others.median().clamp(min=0)
    elif "baseline_sum" in mistakes:
        z = others.sum().clamp(min=0)
    else:
        z = others.mean().clamp(min=0)
    if "baseline_missing" in mistakes:
        z = 0.0
    elif "baseline_attached" not in mistakes:
        z = z.detach()
    scale = beta
    if "beta_missing" in mistakes:
        scale = 1.0
    elif "beta_squared" in mistakes:
        scale = beta * beta
    elif "beta_divides" in mistakes:
        scale = 1 / beta
    if "beta_on_ratio_only" in mistakes:
        x = scale * r - z
    elif "baseline_added" in mistakes:
        x = scale * (r + z)
    else:
        x = scale * (r - z)
    if "swapped" in mistakes:
        x = -x
    weight_d, weight_u = lambda_d, lambda_u
    if "lambdas_swapped" in mistakes:
        weight_d, weight_u = lambda_u, lambda_d
    elif "lambdas_missing" in mistakes:
        weight_d = weight_u = 1.0
    elif "lambda_d_for_both" in mistakes:
        weight_u = lambda_d
    elif "lambda_u_for_both" in mistakes:
        weight_d = lambda_u
    side = 2 * good - 1
    if "bad_like_good" in mistakes:
        side = side * 0 + 1
    y = side * x
    if "point_not_turned" in mistakes:
        y = scale * (side * r - z)
    weight = good * weight_d + (1 - good) * weight_u
    if "lambdas_inside" in mistakes:
        y, weight = weight * y, weight * 0 + 1
    if "logistic" in mistakes:
        loss = softplus(-y)
    elif "linear" in mistakes:
        loss = -y
    elif "quotient" in mistakes:
        loss = 1 - y.exp() / (1 + y.exp())
    elif "exp_overflow" in mistakes:
        loss = 1 - 1 / (1 + (-y).exp())
    elif "value_negated" in mistakes:
        loss = -y.sigmoid()
    elif "two_for_one" in mistakes:
        loss = 2 - y.sigmoid()
    else:
        loss = 1 - y.sigmoid()
    if "lambda_on_sigma" in mistakes:
        loss = 1 - weight * y.sigmoid()
    elif "lambda_on_one" in mistakes:
        loss = weight - y.sigmoid()
    else:
        loss = weight * loss
    if "bad_dropped" in mistakes:
        loss = good * loss
    elif "bad_negated" in mistakes:
        loss = (2 * good - 1) * loss
    return reduce(loss, mistakes)


WHERE = "the statement, [PREF-8]"
POINT = "the statement, [PREF-7]"
MISTAKES = (
    Mistake(
        "baseline_attached",
        "z₀ is not detached: a gradient flows through it into the mismatched pairs.",
        "z₀ is a constant of the batch: detach it.",
        POINT,
    ),
    Mistake(
        "baseline_not_clamped",
        "z₀ is not clamped: an estimate below 0 is used as it is.",
        "A KL divergence is never negative; clamp the mean at 0.",
        POINT,
    ),
    Mistake(
        "baseline_clamped_first",
        "Each log-ratio is clamped at 0 before the mean is taken.",
        "First the mean, then the clamp: single log-ratios may well be negative.",
        POINT,
    ),
    Mistake(
        "baseline_absolute",
        "z₀ is the absolute value of the mean log-ratio.",
        "Where the mean is below 0, z₀ is 0.",
        POINT,
    ),
    Mistake(
        "baseline_clamped_above",
        "The mean log-ratio is clamped to at most 0 instead of to at least 0.",
        "clamp(min=0).",
        POINT,
    ),
    Mistake(
        "baseline_own",
        "z₀ is the mean over the batch's own responses; rolling them by one "
        "before the mean changes nothing, since a mean does not depend on the order.",
        "z₀ is made of kl_logp and kl_logp_ref.",
        POINT,
    ),
    Mistake(
        "baseline_reversed",
        "z₀ is made of log-ratios with the wrong sign: kl_logp_ref minus kl_logp.",
        "kl_logp minus kl_logp_ref, as for the responses.",
        POINT,
    ),
    Mistake(
        "baseline_sum",
        "The log-ratios of the mismatched pairs are summed instead of averaged.",
        "z₀ is a mean over the mismatched pairs.",
        POINT,
    ),
    Mistake(
        "baseline_largest",
        "z₀ is made of the largest log-ratio instead of the mean.",
        "The max of [PREF-7] compares the mean with 0, once.",
        POINT,
    ),
    Mistake(
        "baseline_median",
        "z₀ is made of the median log-ratio instead of the mean.",
        "z₀ is a mean over the mismatched pairs.",
        POINT,
    ),
    Mistake(
        "baseline_k3",
        "z₀ uses the estimator k3 instead of the plain log-ratio.",
        "z₀ is the mean log-ratio, clamped at 0.",
        POINT,
    ),
    Mistake(
        "baseline_missing",
        "z₀ has no effect: it is left out, or made of kl_logp alone, which is never above 0 and so "
        "clamped to 0.",
        "z₀ is made of log-ratios, policy minus reference, and is subtracted from the response's.",
        WHERE,
    ),
    Mistake(
        "baseline_added",
        "z₀ is added to the log-ratio instead of subtracted.",
        "A good response must gain more than z₀.",
        WHERE,
    ),
    Mistake(
        "swapped",
        "Good responses are pushed down and bad ones up: the argument of σ has the wrong sign, or "
        "“1 minus” is missing.",
        "The loss of a good response must fall when its log-probability rises.",
        WHERE,
    ),
    Mistake(
        "labels_inverted",
        "Good and bad are exchanged: the two branches are the wrong way round.",
        "desirable is 1 for a good response.",
        WHERE,
    ),
    Mistake(
        "bad_like_good",
        "Bad responses are treated like good ones: the sign inside σ is not turned round.",
        "For a bad response it is z₀ minus the log-ratio.",
        WHERE,
    ),
    Mistake(
        "point_not_turned",
        "For a bad response the log-ratio is turned round inside σ, but z₀ is not.",
        "For a bad response it is z₀ minus the log-ratio: both signs turn.",
        WHERE,
    ),
    Mistake(
        "bad_dropped",
        "Bad responses have no effect.",
        "Both kinds have a loss, each with its own weight.",
        WHERE,
    ),
    Mistake(
        "bad_negated",
        "The loss of a bad response is turned round as a whole, besides the sign inside σ: bad "
        "responses are pushed up.",
        "Turn the sign inside σ only.",
        WHERE,
    ),
    Mistake(
        "lambdas_swapped",
        "lambda_d and lambda_u are exchanged.",
        "lambda_d weighs the desirable responses.",
        WHERE,
    ),
    Mistake(
        "lambdas_missing",
        "The weights lambda_d and lambda_u have no effect.",
        "Each response's loss is multiplied by the weight of its kind.",
        WHERE,
    ),
    Mistake(
        "lambda_d_for_both",
        "lambda_d weighs all responses; lambda_u has no effect.",
        "Bad responses have the weight lambda_u.",
        WHERE,
    ),
    Mistake(
        "lambda_u_for_both",
        "lambda_u weighs all responses; lambda_d has no effect.",
        "Good responses have the weight lambda_d.",
        WHERE,
    ),
    Mistake(
        "lambda_on_sigma",
        "The weight multiplies σ only: 1 - λσ, where λ(1 - σ) belongs.",
        "The weight stands in front of the bracket.",
        WHERE,
    ),
    Mistake(
        "lambda_on_one",
        "The weight multiplies the 1 only: λ - σ, where λ(1 - σ) belongs.",
        "The weight stands in front of the bracket.",
        WHERE,
    ),
    Mistake(
        "lambdas_inside",
        "The weights stand inside σ instead of in front of it.",
        "The weight multiplies the loss; inside σ stands beta only.",
        WHERE,
    ),
    Mistake(
        "beta_missing",
        "The argument beta has no effect.",
        "beta multiplies the difference inside σ.",
        WHERE,
    ),
    Mistake(
        "beta_squared",
        "The difference inside σ is multiplied by beta twice.",
        "beta enters once.",
        WHERE,
    ),
    Mistake(
        "beta_divides",
        "The difference inside σ is divided by beta.",
        "beta multiplies it.",
        WHERE,
    ),
    Mistake(
        "beta_on_ratio_only",
        "beta multiplies the log-ratio but not z₀: a bracket is missing.",
        "beta times (log-ratio minus z₀).",
        WHERE,
    ),
    Mistake(
        "logistic",
        "The negative logarithm of σ is returned, as in DPO.",
        "KTO weighs 1 - σ itself, which is flat far out on both sides.",
        WHERE,
    ),
    Mistake(
        "linear",
        "σ is missing: the loss is linear in the log-ratio.",
        "The value of a response saturates: 1 - σ.",
        WHERE,
    ),
    Mistake(
        "value_negated",
        "Minus λσ is returned: the gradient is right, the constant λ is missing.",
        "The loss is λ(1 - σ), between 0 and λ.",
        WHERE,
    ),
    Mistake(
        "two_for_one",
        "2 - σ stands where 1 - σ belongs.",
        "The loss of a response far on the right side is 0.",
        WHERE,
    ),
    Mistake(
        "exp_overflow",
        "σ is written out as 1/(1 + exp): right in float64, but in float32 exp overflows for a "
        "response far from the reference, and the gradient is NaN.",
        "Use torch.sigmoid.",
        WHERE,
    ),
    Mistake(
        "quotient",
        "σ is written out as exp/(1 + exp): right in float64, but in float32 exp overflows for a "
        "response far from the reference, and the loss is NaN.",
        "Use torch.sigmoid.",
        WHERE,
    ),
    Mistake(
        "ratio",
        "The probability ratio is used instead of its logarithm.",
        "Stay in log space: no exponential appears before σ.",
        WHERE,
    ),
    *(
        Mistake(name, *TEXTS[name], WHERE)
        for name in ("reference_missing", "reference_attached", "detached", "mean", "sum", "column")
    ),
)

BASELINE = (
    "baseline_not_clamped baseline_clamped_first baseline_absolute baseline_clamped_above "
    "baseline_sum baseline_largest baseline_median baseline_reversed baseline_own baseline_k3"
)
QUESTION = Question(
    id="hw5/kto",
    title="Kahneman-Tversky optimisation",
    points=4,
    signature=(
        "(logp, logp_ref, desirable, kl_logp, kl_logp_ref, *, beta, lambda_d=1.0, lambda_u=1.0)"
    ),
    lecture=WHERE,
    generate=generate,
    reference=kto,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        "mean sum column",
        "baseline_not_clamped baseline_clamped_first baseline_absolute baseline_clamped_above "
        "baseline_sum baseline_largest baseline_median",
        "baseline_reversed baseline_own baseline_k3",
        "baseline_not_clamped: baseline_own baseline_reversed baseline_k3 baseline_added",
        "baseline_clamped_above: baseline_own baseline_reversed baseline_k3 baseline_added "
        "baseline_attached",
        "baseline_absolute: baseline_own baseline_reversed baseline_k3",
        "baseline_reversed: baseline_attached baseline_added",
        "baseline_clamped_first baseline_k3",
        f"baseline_missing: {BASELINE} baseline_attached baseline_added beta_on_ratio_only",
        "baseline_added beta_on_ratio_only",
        "beta_missing beta_squared beta_divides",
        "beta_missing beta_divides: beta_on_ratio_only",
        "logistic linear value_negated two_for_one exp_overflow quotient",
        "lambdas_swapped lambdas_missing lambda_d_for_both lambda_u_for_both",
        "lambda_on_sigma lambda_on_one: lambdas_missing lambdas_inside logistic linear "
        "value_negated two_for_one exp_overflow quotient",
        "lambda_on_sigma lambda_on_one",
        "lambdas_inside linear",
        "lambdas_inside lambdas_missing",
        "linear: bad_negated bad_like_good",
        "bad_dropped bad_negated bad_like_good",
        "point_not_turned: bad_dropped bad_like_good bad_negated baseline_missing baseline_added "
        "beta_on_ratio_only swapped",
        # together they exchange the weights, or are the one or the other
        "swapped: labels_inverted lambdas_swapped lambdas_missing lambda_d_for_both "
        "lambda_u_for_both lambda_on_sigma lambda_on_one",
        "labels_inverted: lambdas_missing lambda_d_for_both lambda_u_for_both",
        "labels_inverted: bad_like_good lambdas_swapped",
        "reference_missing reference_attached",
        "reference_missing ratio",
        "ratio: exp_overflow quotient",
        "detached reference_missing",
        "baseline_own: reference_missing",
    ),
)
