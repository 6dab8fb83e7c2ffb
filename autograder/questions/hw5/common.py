"""What the questions on pairs share: inputs, switches and texts of mistakes.

A pair enters as summed log-probabilities, (batch,) each, and leaves as one loss, (batch,).
"""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake

TEXTS = {  # of mistakes: cause and hint
    "mean": (
        "The losses are averaged to one number instead of returned one by one.",
        "Return the shape (batch,); the caller takes the mean.",
    ),
    "sum": (
        "The losses are summed to one number instead of returned one by one.",
        "Return the shape (batch,); the caller takes the mean.",
    ),
    "column": (
        "The result has the shape (batch, 1) instead of (batch,).",
        "One number per entry of the batch: no axis to add.",
    ),
    "reference_missing": (
        "The reference is left out: only the policy's own log-probabilities are compared.",
        "What counts is how far each response has moved from the reference: subtract its "
        "log-probability.",
    ),
    "reference_crossed": (
        "The reference's difference is added instead of subtracted: its two log-probabilities are "
        "exchanged, or one sign is wrong.",
        "Subtract from each response its own log-probability under the reference, then compare.",
    ),
    "reference_doubled": (
        "The rejected response's reference has the wrong sign: a bracket is missing around the "
        "rejected response's log-ratio.",
        "chosen - chosen_ref - (rejected - rejected_ref): the bracket turns the last sign round.",
    ),
    "rejected_reference_missing": (
        "The rejected response enters without its reference.",
        "Subtract from each response its own log-probability under the reference, then compare.",
    ),
    "chosen_reference_missing": (
        "The chosen response enters without its reference.",
        "Subtract from each response its own log-probability under the reference, then compare.",
    ),
    "reference_attached": (
        "The reference log-probabilities are not detached: a gradient flows into the reference.",
        "The reference is a constant: detach its log-probabilities where you use them.",
    ),
    "gains_added": (
        "The two log-ratios are added instead of subtracted: both responses are pushed up.",
        "A preference is a difference: the chosen one's log-ratio minus the rejected one's.",
    ),
    "chosen_only": (
        "Only the chosen response counts; the rejected one has no effect.",
        "A preference is a difference between two responses.",
    ),
    "rejected_detached": (
        "The rejected response is detached: the values are right, but it is never pushed down.",
        "Both responses carry a gradient; only a reference policy is a constant.",
    ),
    "chosen_detached": (
        "The chosen response is detached: the values are right, but it is never pushed up.",
        "Both responses carry a gradient; only a reference policy is a constant.",
    ),
    "detached": (
        "What should carry the gradient is detached: the values are right and the gradient is zero "
        "everywhere.",
        "Only a reference policy is a constant.",
    ),
    "ratio": (
        "Probability ratios are subtracted instead of log-ratios.",
        "Stay in log space: no exponential appears before the comparison.",
    ),
    "absolute": (
        "The absolute value of the difference is used: which response was chosen no longer "
        "matters.",
        "The sign of the difference says whether the pair is in the right order.",
    ),
}


def mistakes(lecture: str, *names: str) -> tuple[Mistake, ...]:
    """Mistakes that several questions know by the same name and text."""
    return tuple(Mistake(name, *TEXTS[name], lecture) for name in names)


def four(draw, batch, spread=2.0):
    """chosen, rejected, chosen_ref, rejected_ref: sums over many tokens, close to the reference."""
    references = draw.uniform(2, batch, low=-28.0, high=-6.0) - 2 * max(spread - 3.0, 0.0)
    moved = spread * draw.uniform(2, batch, low=-1.0, high=1.0)
    # Pairs in order and out of order take turns; from near a tie to far from one.
    gap = torch.linspace(0.4, 1.0, batch, dtype=torch.float64)
    gap = gap + draw.uniform(batch, low=-0.05, high=0.05)
    gap[1::2] *= -1
    moved[0] = moved[1] + spread * gap
    policy = references + moved
    return policy[0], policy[1], references[0], references[1]


def case(name, draw, batch, *, constants=(), spread=2.0, **knobs):
    """A case of `four`; gradients into the policy, none into `constants`."""
    return Case(
        name=name,
        args=four(draw, batch, spread),
        knobs=knobs,
        differentiable=(0, 1),
        constants=constants,
        weights=draw.weights(batch),
    )


REFERENCES = (
    "reference_missing reference_crossed reference_doubled rejected_reference_missing "
    "chosen_reference_missing"
)


def gap_of(chosen, rejected, chosen_ref, rejected_ref, mistakes):
    """How much more the chosen response has gained on the reference, or a wrong version of it."""
    if "detached" in mistakes:
        chosen, rejected = chosen.detach(), rejected.detach()
    elif "rejected_detached" in mistakes:
        rejected = rejected.detach()
    elif "chosen_detached" in mistakes:
        chosen = chosen.detach()
    if "reference_attached" not in mistakes:
        chosen_ref, rejected_ref = chosen_ref.detach(), rejected_ref.detach()
    if "reference_missing" in mistakes:
        chosen_ref, rejected_ref = 0 * chosen_ref, 0 * rejected_ref
    elif "reference_crossed" in mistakes:
        chosen_ref, rejected_ref = rejected_ref, chosen_ref
    elif "reference_doubled" in mistakes:
        rejected_ref = -rejected_ref
    elif "rejected_reference_missing" in mistakes:
        rejected_ref = 0 * rejected_ref
    elif "chosen_reference_missing" in mistakes:
        chosen_ref = 0 * chosen_ref
    good, bad = chosen - chosen_ref, rejected - rejected_ref
    if "ratio" in mistakes:
        good, bad = good.exp(), bad.exp()
    if "gains_added" in mistakes:
        bad = -bad
    if "chosen_only" in mistakes:
        bad = 0 * bad
    gap = bad - good if "swapped" in mistakes else good - bad
    return gap.abs() if "absolute" in mistakes else gap


def reduce(loss, mistakes):
    if "mean" in mistakes:
        return loss.mean()
    if "sum" in mistakes:
        return loss.sum()
    return loss[:, None] if "column" in mistakes else loss
