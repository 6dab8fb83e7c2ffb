"""hw2/k3: the estimator that is unbiased and never negative."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw2.common import (
    REDUCTIONS,
    SHAPES,
    finish,
    kl_cases,
    log_ratio,
    log_ratios,
    mistakes,
)
from policy_gradients.kl import k3


def generate(draw, final):
    logp = draw.uniform(2, 5, low=-2.5, high=-0.2).float()
    near = (logp - 1e-3 * log_ratios(draw, 2, 5)).float()
    close = Case(
        name="nearly the reference, in float32",
        args=(logp, near),
        differentiable=(0,),
        weights=draw.weights(2, 5).float(),
        stability=True,
    )
    # Here exp(-ℓ) - 1 is good enough, but ℓ is small beside the log-probabilities themselves.
    rare = -draw.uniform(2, 5, low=100.0, high=120.0).float()
    unlikely = Case(
        name="very unlikely tokens, in float32",
        args=(rare, (rare - 3e-2 * log_ratios(draw, 2, 5)).float()),
        differentiable=(0,),
        weights=draw.weights(2, 5).float(),
        stability=True,
    )
    return [*kl_cases(draw, final, far=(14.0, -3.5)), close, unlikely]


def buggy(logp, logp_ref, *, mistakes=frozenset()):
    ell = log_ratio(logp, logp_ref, mistakes)
    down = torch.exp(-ell) - 1 if "no_expm1" in mistakes else torch.expm1(-ell)
    up = torch.exp(ell) - 1 if "no_expm1" in mistakes else torch.expm1(ell)
    if "k1_for_k3" in mistakes:
        out = ell
    elif "k2_for_k3" in mistakes:
        out = ell * ell / 2
    elif "log_sign" in mistakes:
        out = down - ell
    elif "exp_sign" in mistakes:
        out = up + ell
    elif "log_missing" in mistakes:
        out = down
    elif "log_detached" in mistakes:
        out = down + ell.detach()
    elif "ratio_detached" in mistakes:
        out = down.detach() + ell
    elif "taylor" in mistakes:
        out = ell * ell / 2 - ell**3 / 6
    elif "added_in_turn" in mistakes:
        out = down + logp - logp_ref
    else:
        out = down + ell
    if "one_missing" in mistakes:
        out = out + 1
    elif "plus_one" in mistakes:
        out = out + 2
    if "halved" in mistakes:
        out = out / 2
    if "clamped" in mistakes:
        out = out.clamp(-10, 10)
    if "weighted" in mistakes:
        out = out * logp.exp()
    return finish(out, mistakes)


WHERE = "05, [KL-2]"
MISTAKES = (
    Mistake(
        "no_expm1",
        "Near the reference the exponential and the one cancel: in float32 what is left is "
        "rounding.",
        "torch.expm1 computes exp(x) - 1 without the cancellation.",
        WHERE,
    ),
    Mistake(
        "added_in_turn",
        "The two log-probabilities of ℓ are added one after the other: the tiny first term is "
        "rounded to the size of a log-probability before the second one takes it away again.",
        "Compute ℓ = logp - logp_ref once, then torch.expm1(-ℓ) + ℓ.",
        WHERE,
    ),
    Mistake(
        "log_sign",
        "The log-ratio is subtracted where it has to be added.",
        "At ℓ = 0 the slope has to be 0: the exponential falls, so ℓ is added.",
        WHERE,
    ),
    Mistake(
        "exp_sign",
        "The exponent has the wrong sign, while the log-ratio is added: the slope at the "
        "reference is not zero.",
        "The exponent is minus ℓ.",
        WHERE,
    ),
    Mistake(
        "log_missing",
        "The log-ratio is not added: what is left averages to zero.",
        "k3 is k1 plus a term of mean zero; both are needed.",
        WHERE,
    ),
    Mistake(
        "one_missing",
        "The one is not subtracted: at the reference the result is one instead of zero.",
        "Put ℓ = 0 in: the result has to be 0.",
        WHERE,
    ),
    Mistake(
        "plus_one",
        "The one is added instead of subtracted.",
        "Put ℓ = 0 in: the result has to be 0.",
        WHERE,
    ),
    Mistake(
        "halved",
        "The result is halved: the ½ belongs to k2.",
        "k3 has no factor ½; its series begins with ½ ℓ² by itself.",
        WHERE,
    ),
    Mistake("k1_for_k3", "This is k1, the plain log-ratio.", "k3 is exp(-ℓ) - 1 + ℓ.", WHERE),
    Mistake("k2_for_k3", "This is k2 instead of k3.", "k3 is exp(-ℓ) - 1 + ℓ.", WHERE),
    Mistake(
        "taylor",
        "The first terms of the series stand for k3: that holds near the reference only.",
        "Use the exponential itself.",
        WHERE,
    ),
    Mistake(
        "log_detached",
        "The added log-ratio is detached: the value is right, but its part of the gradient is "
        "missing.",
        "Both terms stay in the graph; the gradient is 1 - exp(-ℓ).",
        "05, [KL-5]",
    ),
    Mistake(
        "ratio_detached",
        "The exponential is detached: the value is right, but the gradient is one everywhere.",
        "Both terms stay in the graph; the gradient is 1 - exp(-ℓ).",
        "05, [KL-5]",
    ),
    *mistakes(
        WHERE,
        *("inverted", "ref_ignored", "ratio_for_log", "quotient_of_logs", "weighted", "clamped"),
        *("negative", "detached", *REDUCTIONS.split(), "divided_by_time"),
    ),
)

QUESTION = Question(
    id="hw2/k3",
    title="The third KL estimator",
    points=2,
    signature="(logp, logp_ref)",
    lecture=WHERE,
    generate=generate,
    reference=k3,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=SHAPES
    | excluding(
        "k1_for_k3 k2_for_k3 log_sign exp_sign log_missing log_detached ratio_detached taylor "
        "added_in_turn",
        "added_in_turn: no_expm1 inverted ref_ignored quotient_of_logs ratio_for_log",
        "one_missing plus_one",
        "ref_ignored quotient_of_logs ratio_for_log",
        "ref_ignored quotient_of_logs: inverted",
        "k1_for_k3 ref_ignored",  # returns its argument
        "k2_for_k3 inverted",
        "k1_for_k3: inverted ratio_for_log",
        "detached: log_detached ratio_detached",
        "exp_sign: inverted log_sign",  # exp_sign and inverted together are log_sign
        "log_sign inverted",
        "negative: log_sign",
        "clamped: ref_ignored quotient_of_logs ratio_for_log",
    ),
)
