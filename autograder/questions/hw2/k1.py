"""hw2/k1: the log-ratio as an estimator of the KL divergence."""

from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw2.common import (
    REDUCTIONS,
    SHAPES,
    finish,
    kl_cases,
    log_ratio,
    mistakes,
)
from policy_gradients.kl import k1


def generate(draw, final):
    return kl_cases(draw, final, far=(14.0, -14.0))


def buggy(logp, logp_ref, *, mistakes=frozenset()):
    out = log_ratio(logp, logp_ref, mistakes)
    if "absolute" in mistakes:
        out = out.abs()
    elif "negative_cut" in mistakes:
        out = out.relu()
    elif "k2_for_k1" in mistakes:
        out = out * out / 2
    elif "k3_for_k1" in mistakes:
        out = (-out).exp() - 1 + out
    elif "ratio_minus_one" in mistakes:
        out = out.exp() - 1
    if "clamped" in mistakes:
        out = out.clamp(-10, 10)
    if "weighted" in mistakes:
        out = out * logp.exp()
    return finish(out, mistakes)


WHERE = "05, [KL-2]"
MISTAKES = (
    Mistake(
        "absolute",
        "The sign of the log-ratio is lost: its average is then no KL.",
        "k1 may be negative on a token; only its average is not.",
        WHERE,
    ),
    Mistake(
        "negative_cut",
        "Negative terms are set to zero: the average comes out too large.",
        "k1 may be negative on a token; only its average is not.",
        WHERE,
    ),
    Mistake(
        "k2_for_k1", "This is k2, half the squared log-ratio.", "k1 is the plain log-ratio.", WHERE
    ),
    Mistake(
        "k3_for_k1",
        "This is k3 instead of k1.",
        "k1 is the plain log-ratio.",
        WHERE,
    ),
    Mistake(
        "ratio_minus_one",
        "The ratio minus one stands where the log-ratio belongs.",
        "k1 is the plain log-ratio.",
        WHERE,
    ),
    *mistakes(
        WHERE,
        *("inverted", "ratio_for_log", "quotient_of_logs", "weighted", "clamped"),
        *("detached", *REDUCTIONS.split(), "divided_by_time"),
    ),
)

QUESTION = Question(
    id="hw2/k1",
    title="The first KL estimator",
    points=1,
    signature="(logp, logp_ref)",
    lecture=WHERE,
    generate=generate,
    reference=k1,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=SHAPES
    | excluding(
        "absolute negative_cut k2_for_k1 k3_for_k1 ratio_minus_one",
        "absolute k2_for_k1: inverted",  # even functions
        "quotient_of_logs ratio_for_log: absolute negative_cut clamped",
        "ratio_for_log ratio_minus_one",
        "quotient_of_logs: inverted ratio_for_log",
    ),
)
