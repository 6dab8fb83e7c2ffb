"""What homework 2's questions share: wrong reductions, and inputs of the KL estimators."""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, excluding

TEXTS = {  # of mistakes: cause and hint
    "missing_minus": (
        "The minus sign is missing: minimising this makes good tokens less likely.",
        "The objective is maximised, a loss is minimised.",
    ),
    "negative": ("The sign is flipped.", "Work out one entry by hand and compare the signs."),
    "detached": (
        "The value is right, but the result is detached: no gradient reaches the argument that "
        "is trained.",
        "Only constants are detached; what is trained must stay in the graph.",
    ),
    "mean": (
        "The result is averaged to one number instead of one per token.",
        "Return the shape (batch, time); averaging is a separate step.",
    ),
    "sum": (
        "The result is summed to one number instead of one per token.",
        "Return the shape (batch, time); adding up is a separate step.",
    ),
    "mean_of_sums": (
        "The result is summed over time and averaged over the batch: one number instead of one "
        "per token.",
        "Return the shape (batch, time); averaging is a separate step.",
    ),
    "mean_over_time": (
        "The result is averaged over time: one number per response instead of one per token.",
        "Return the shape (batch, time).",
    ),
    "sum_over_time": (
        "The result is summed over time: one number per response instead of one per token.",
        "Return the shape (batch, time).",
    ),
    "divided_by_time": (
        "Each entry is already divided by the number of columns.",
        "One number per token is asked for; averaging is a separate step.",
    ),
    "inverted": (
        "The direction is inverted: the reference's log-probability minus the policy's.",
        "The samples are the policy's, so ℓ is the policy's log-probability minus the reference's.",
    ),
    "ref_ignored": (
        "The reference has no effect: the policy's log-probability stands where the difference "
        "of the two belongs.",
        "ℓ = logp - logp_ref.",
    ),
    "ratio_for_log": (
        "The ratio of the probabilities stands where its logarithm belongs.",
        "ℓ is a difference of log-probabilities, without exp.",
    ),
    "quotient_of_logs": (
        "One log-probability is divided by the other instead of subtracted from it.",
        "The logarithm of a quotient is a difference of logarithms.",
    ),
    "weighted": (
        "Each term is weighed with the probability of its token, which sampling has already done.",
        "The tokens were drawn from the policy: a plain average over them is the expectation.",
    ),
    "clamped": (
        "The result is clamped: terms far from 0 are cut off.",
        "Return the estimator as it is; nothing is clamped here.",
    ),
}
REDUCTIONS = "mean sum mean_of_sums mean_over_time sum_over_time"
SHAPES = excluding(
    REDUCTIONS,
    "divided_by_time: sum_over_time sum mean mean_of_sums",  # together they are another mean
)


def mistakes(lecture: str, *names: str) -> tuple[Mistake, ...]:
    """Mistakes that several questions know by the same name and text."""
    return tuple(Mistake(name, *TEXTS[name], lecture) for name in names)


def finish(out, mistakes):
    """What becomes of one number per token by mistake."""
    if "missing_minus" in mistakes or "negative" in mistakes:
        out = -out
    if "detached" in mistakes:
        out = out.detach()
    if "divided_by_time" in mistakes:
        out = out / out.shape[1]
    if "mean" in mistakes:
        out = out.mean()
    elif "sum" in mistakes:
        out = out.sum()
    elif "mean_of_sums" in mistakes:
        out = out.sum(1).mean()
    elif "mean_over_time" in mistakes:
        out = out.mean(1)
    elif "sum_over_time" in mistakes:
        out = out.sum(1)
    return out


def log_ratios(draw, *shape):
    """Log-ratios of both signs, of order one, none near 0."""
    return draw.weights(*shape) * draw.uniform(*shape, low=0.3, high=0.8)


def kl_cases(draw, final, *, far):
    """Pairs of log-probabilities; the last case holds one log-ratio ``far`` on either side."""
    cases = []
    for batch, time in [(4, 3), (2, 6), (3, 2)] if final else [(3, 5), (4, 2), (2, 3)]:
        logp = draw.uniform(batch, time, low=-2.5, high=-0.2)
        cases.append(
            Case(
                name=f"{batch} responses, {time} tokens",
                args=(logp, logp - log_ratios(draw, batch, time)),
                differentiable=(0,),
                weights=draw.weights(batch, time),
            )
        )
    batch, time = (2, 4) if final else (2, 3)
    gap = log_ratios(draw, batch, time)
    gap[0, 0], gap[1, 1] = far[0] + draw.uniform(1).item(), far[1] - draw.uniform(1).item()
    logp = draw.uniform(batch, time, low=-2.5, high=-0.2) - 4.0
    cases.append(
        Case(
            name="far from the reference",
            args=(logp, logp - gap),
            differentiable=(0,),
            weights=draw.weights(batch, time),
        )
    )
    return cases


def log_ratio(logp, logp_ref, mistakes):
    """ℓ, or what becomes of it by mistake."""
    if "inverted" in mistakes:
        logp, logp_ref = logp_ref, logp
    if "ref_ignored" in mistakes:
        return logp
    if "quotient_of_logs" in mistakes:
        return logp / logp_ref
    if "ratio_for_log" in mistakes:
        return torch.exp(logp - logp_ref)
    return logp - logp_ref
