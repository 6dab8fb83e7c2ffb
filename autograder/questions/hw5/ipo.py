"""hw5/ipo: the gap of log-ratios regressed onto a finite target."""

from torch.nn.functional import softplus

from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw5 import common
from policy_gradients.preferences import ipo


def generate(draw, final):
    sizes = [(6, 0.4), (4, 0.03), (7, 1.6)] if final else [(5, 0.3), (3, 1.4), (6, 0.04)]
    return [
        common.case(
            f"tau {tau}, reference from a network" if k == 2 else f"tau {tau}",
            draw,
            batch,
            constants=(2, 3) if k == 2 else (),
            spread=0.75 / tau,  # gaps on both sides of the target
            tau=tau,
        )
        for k, (batch, tau) in enumerate(sizes)
    ]


def buggy(chosen, rejected, chosen_ref, rejected_ref, *, tau, mistakes=frozenset()):
    gap = common.gap_of(chosen, rejected, chosen_ref, rejected_ref, mistakes)
    target = 0.5 / tau
    for name, wrong in (
        ("target_doubled", 1 / tau),
        ("target_half_tau", tau / 2),
        ("target_tau", tau),
        ("target_two_tau", 2 * tau),
        ("target_two_over_tau", 2 / tau),
        ("target_half", 0.5),
        ("target_quarter", 0.25 / tau),
        ("target_missing", 0.0),
    ):
        if name in mistakes:
            target = wrong
    miss = gap - target
    if "tau_scales" in mistakes:
        miss = tau * gap - 0.5
    elif "tau_scales_both" in mistakes:
        miss = tau * gap - target
    elif "tau_divides" in mistakes:
        miss = gap / tau - target
    if "not_squared" in mistakes:
        loss = miss
    elif "absolute_error" in mistakes:
        loss = miss.abs()
    elif "one_sided" in mistakes:
        loss = (-miss).clamp(min=0) ** 2
    elif "target_squared" in mistakes:
        loss = gap - target**2
    elif "constant_left" in mistakes:
        loss = miss**2 + 0.25 / tau**2
    elif "both_orders" in mistakes:
        loss = 2 * (miss**2 + 0.25 / tau**2)
    elif "squares_apart" in mistakes:
        loss = gap**2 - target**2
    elif "logistic" in mistakes:
        loss = softplus(-miss)
    elif "dpo" in mistakes:
        loss = softplus(-tau * gap)
    else:
        loss = miss**2
    if "halved" in mistakes:
        loss = loss / 2
    if "sign" in mistakes:
        loss = -loss
    return common.reduce(loss, mistakes)


WHERE = "the statement, [PREF-6]"
TARGET = "The target is one over (two tau): 1/(2τ)."
MISTAKES = (
    Mistake(
        "swapped",
        "The gap has the wrong sign relative to the target: chosen and rejected (or policy and "
        "reference) are exchanged, or the target is added instead of subtracted.",
        "The loss is 0 where the chosen response has gained 1/(2τ) more than the rejected one.",
        WHERE,
    ),
    Mistake("target_doubled", "The target is 1/τ instead of 1/(2τ).", TARGET, WHERE),
    Mistake(
        "target_half_tau",
        "The target is τ/2 instead of 1/(2τ): a bracket is missing, as in 1 / 2 * tau.",
        "Write 1 / (2 * tau).",
        WHERE,
    ),
    Mistake("target_tau", "The target is τ instead of 1/(2τ).", TARGET, WHERE),
    Mistake("target_two_tau", "The target is 2τ instead of 1/(2τ).", TARGET, WHERE),
    Mistake("target_two_over_tau", "The target is 2/τ instead of 1/(2τ).", TARGET, WHERE),
    Mistake(
        "target_half", "The target is ½, whatever τ is: the knob has no effect.", TARGET, WHERE
    ),
    Mistake("target_quarter", "The target is 1/(4τ) instead of 1/(2τ).", TARGET, WHERE),
    Mistake(
        "target_missing",
        "The target is missing: the gap is pulled to 0, which is where the reference is already.",
        TARGET,
        WHERE,
    ),
    Mistake(
        "tau_scales",
        "τ multiplies the gap and the target is ½: the whole loss is scaled by τ².",
        "The gap enters as it is; τ stands in the target only.",
        WHERE,
    ),
    Mistake(
        "tau_scales_both",
        "τ multiplies the gap as β does in DPO, and the target holds τ as well.",
        "The gap enters as it is; τ stands in the target only.",
        WHERE,
    ),
    Mistake(
        "tau_divides",
        "The gap is divided by τ.",
        "The gap enters as it is; τ stands in the target only.",
        WHERE,
    ),
    Mistake(
        "both_orders",
        "The squares of both orders are added, (g - 1/τ)² + g²: that is twice the loss and a "
        "constant.",
        "Complete the square: what is asked for is (g - 1/(2τ))² alone.",
        WHERE,
    ),
    Mistake(
        "constant_left",
        "The constant 1/(4τ²) that is left over when the two squares are completed is still in "
        "the loss; the gradient is right.",
        "The loss is 0 at the target.",
        WHERE,
    ),
    Mistake(
        "target_squared",
        "Only the target is squared, not the difference: ** binds before the minus.",
        "A bracket: first the difference, then its square.",
        WHERE,
    ),
    Mistake(
        "not_squared",
        "The square is missing: the difference itself is returned.",
        "A loss that is smallest at the target needs a square.",
        WHERE,
    ),
    Mistake(
        "absolute_error",
        "The absolute value is returned instead of the square.",
        "Square the difference between gap and target.",
        WHERE,
    ),
    Mistake(
        "one_sided",
        "Nothing pulls back beyond the target: gaps that are too large cost nothing.",
        "The square counts on both sides of the target; that is what keeps the gap finite.",
        WHERE,
    ),
    Mistake(
        "squares_apart",
        "Gap and target are squared one by one and then subtracted.",
        "First subtract, then square.",
        WHERE,
    ),
    Mistake(
        "logistic",
        "A logistic loss of the difference stands where the square belongs.",
        "IPO is a regression: square the difference.",
        WHERE,
    ),
    Mistake(
        "dpo",
        "The DPO loss is returned, with τ as its β.",
        "IPO is a regression of the gap onto 1/(2τ).",
        WHERE,
    ),
    Mistake(
        "halved",
        "The loss is 0.5 times what it should be.",
        "No factor ½ stands in front of the square.",
        WHERE,
    ),
    Mistake("sign", "The sign is flipped.", "A square is never negative.", WHERE),
    *common.mistakes(
        WHERE,
        "reference_missing",
        "reference_crossed",
        "reference_doubled",
        "rejected_reference_missing",
        "chosen_reference_missing",
        "reference_attached",
        "gains_added",
        "chosen_only",
        "rejected_detached",
        "chosen_detached",
        "detached",
        "ratio",
        "absolute",
    ),
    *common.mistakes(WHERE, "mean", "sum", "column"),
)

TARGETS = (
    "target_doubled target_half_tau target_tau target_two_tau target_two_over_tau target_half "
    "target_quarter target_missing"
)
QUESTION = Question(
    id="hw5/ipo",
    title="Identity preference optimisation",
    points=4,
    signature="(chosen, rejected, chosen_ref, rejected_ref, *, tau)",
    lecture=WHERE,
    generate=generate,
    reference=ipo,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        "mean sum column",
        f"{TARGETS} tau_scales",
        "tau_scales tau_scales_both tau_divides",
        "target_missing target_half: tau_divides",
        "target_missing target_half: tau_scales_both",
        f"dpo: {TARGETS} tau_scales tau_scales_both tau_divides",
        "not_squared absolute_error one_sided squares_apart logistic dpo target_squared "
        "constant_left both_orders",
        f"target_squared constant_left both_orders: {TARGETS} tau_scales tau_scales_both "
        "tau_divides",
        "both_orders halved",  # is "constant_left"
        "squares_apart: swapped absolute tau_divides",
        "target_missing: swapped absolute squares_apart",
        "detached rejected_detached chosen_detached",
        "chosen_only: rejected_detached chosen_detached rejected_reference_missing "
        "reference_doubled gains_added",
        f"gains_added: {common.REFERENCES}",
        "absolute swapped",
        "absolute: absolute_error not_squared one_sided target_squared",
        "tau_scales tau_scales_both: squares_apart",
        "target_missing squares_apart: ratio",
        common.REFERENCES,
        "reference_missing reference_attached",
        f"ratio: {common.REFERENCES}",
    ),
)
