"""hw2/k2: half the squared log-ratio."""

from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw2.common import (
    REDUCTIONS,
    SHAPES,
    finish,
    kl_cases,
    log_ratio,
    mistakes,
)
from policy_gradients.kl import k2


def generate(draw, final):
    return kl_cases(draw, final, far=(7.0, -7.0))


def buggy(logp, logp_ref, *, mistakes=frozenset()):
    ell = log_ratio(logp, logp_ref, mistakes)
    half = 1.0 if "no_half" in mistakes else 0.5
    if "k1_for_k2" in mistakes:
        out = 2 * half * ell
    elif "k3_for_k2" in mistakes:
        out = 2 * half * ((-ell).exp() - 1 + ell)
    elif "half_inside" in mistakes:
        out = (half * ell) ** 2
    elif "absolute" in mistakes:
        out = half * ell.abs()
    elif "difference_of_squares" in mistakes:
        out = half * (logp**2 - logp_ref**2)
    elif "ratio_minus_one" in mistakes:
        out = half * (ell.exp() - 1) ** 2
    elif "sum_squared" in mistakes:
        out = half * ell.sum(1, keepdim=True).square().expand_as(ell)
    elif "response_squared" in mistakes:
        out = half * ell.sum(1).square()
    elif "not_squared" in mistakes:
        out = half * ell
    elif "one_factor_detached" in mistakes:
        out = half * ell.detach() * ell
    else:
        out = half * ell * ell
    if "clamped" in mistakes:
        out = out.clamp(-10, 10)
    if "weighted" in mistakes:
        out = out * logp.exp()
    return finish(out, mistakes)


WHERE = "05, [KL-2]"
MISTAKES = (
    Mistake(
        "no_half",
        "The factor ½ is missing: value and gradient are twice too large.",
        "k2 is half the square.",
        WHERE,
    ),
    Mistake(
        "half_inside",
        "The ½ is squared too.",
        "Square first, halve afterwards.",
        WHERE,
    ),
    Mistake("k1_for_k2", "This is k1, the plain log-ratio.", "k2 is half its square.", WHERE),
    Mistake("k3_for_k2", "This is k3 instead of k2.", "k2 is half the square of ℓ.", WHERE),
    Mistake(
        "absolute",
        "The absolute value stands where the square belongs.",
        "k2 is half the square of ℓ.",
        WHERE,
    ),
    Mistake(
        "difference_of_squares",
        "The log-probabilities are squared before they are subtracted.",
        "Subtract first, square afterwards.",
        WHERE,
    ),
    Mistake(
        "ratio_minus_one",
        "The ratio minus one is squared instead of the log-ratio.",
        "ℓ is a difference of log-probabilities, without exp.",
        WHERE,
    ),
    Mistake(
        "sum_squared",
        "The log-ratios of a row are added up before they are squared.",
        "One number per token is asked for: square each log-ratio of its own.",
        "05, [KL-6]",
    ),
    Mistake(
        "response_squared",
        "The log-ratios of a row are added up before they are squared: one number per response "
        "instead of one per token.",
        "One number per token, shape (batch, time): square each log-ratio of its own.",
        "05, [KL-6]",
    ),
    Mistake("not_squared", "The log-ratio is halved but not squared.", "k2 is ½ ℓ².", WHERE),
    Mistake(
        "one_factor_detached",
        "One of the two factors of the square is detached: the value is right, the gradient half "
        "of the right one.",
        "Both factors of the square stay in the graph.",
        "05, [KL-5]",
    ),
    *mistakes(
        WHERE,
        *("ref_ignored", "ratio_for_log", "quotient_of_logs", "weighted", "clamped", "negative"),
        *("detached", *REDUCTIONS.split(), "divided_by_time"),
    ),
)

QUESTION = Question(
    id="hw2/k2",
    title="The second KL estimator",
    points=1,
    signature="(logp, logp_ref)",
    lecture=WHERE,
    generate=generate,
    reference=k2,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=SHAPES
    | excluding(
        "ref_ignored quotient_of_logs ratio_for_log",
        "k1_for_k2 k3_for_k2 half_inside absolute difference_of_squares ratio_minus_one "
        "sum_squared one_factor_detached response_squared not_squared",
        f"sum_squared response_squared: {REDUCTIONS} divided_by_time",
        "response_squared: weighted ref_ignored quotient_of_logs ratio_for_log",
        "not_squared: ref_ignored quotient_of_logs ratio_for_log clamped no_half",
        "no_half half_inside",  # together they are no_half
        "no_half one_factor_detached",
        "detached one_factor_detached",
        "difference_of_squares: ref_ignored quotient_of_logs ratio_for_log",
        "absolute: ratio_for_log quotient_of_logs ref_ignored clamped",
        "clamped: k1_for_k2 quotient_of_logs",
        "ratio_for_log ratio_minus_one",
        "ref_ignored: sum_squared k1_for_k2",  # the latter returns its argument
        "no_half half_inside: clamped",
    ),
)
