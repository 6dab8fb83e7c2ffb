"""hw5/dpo: Bradley-Terry on the reward that the policy itself implies."""

import torch
from torch.nn.functional import softplus

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw5 import common
from policy_gradients.preferences import dpo


def generate(draw, final):
    first, second, third = (6, 4, 7) if final else (5, 3, 6)
    cases = [
        common.case("no label smoothing given", draw, first, beta=0.3, spread=17.0),
        common.case("label smoothing .1, beta 1.7", draw, second, beta=1.7, label_smoothing=0.1),
        common.case(
            "reference from a network, label smoothing .4", draw, third, constants=(2, 3),
            beta=0.6, label_smoothing=0.4,
        ),
    ]  # fmt: skip
    # Log-ratios of up to 60: far beyond what exp() holds in float32 once beta is in.
    moved = torch.tensor([-55.0, 58.0, -40.0, 1.5, -0.5], dtype=torch.float32)
    for smoothing in (0.0, 0.2):
        reference = draw.uniform(2, 5, low=-90.0, high=-70.0).to(torch.float32)
        cases.append(
            Case(
                name=f"h of 190 in float32, label smoothing {smoothing}",
                args=(reference[0] + moved, reference[1] - moved, *reference),
                knobs={"beta": 1.7, "label_smoothing": smoothing},
                differentiable=(0, 1),
                weights=draw.weights(5).to(torch.float32),
                stability=True,
            )
        )
    return cases


def buggy(
    chosen, rejected, chosen_ref, rejected_ref, *, beta, label_smoothing=0.0, mistakes=frozenset()
):
    scale = beta
    if "beta_missing" in mistakes:
        scale = 1.0
    elif "beta_squared" in mistakes:
        scale = beta * beta
    elif "beta_divides" in mistakes:
        scale = 1 / beta
    elif "beta_outside" in mistakes:
        scale = 1.0
    if "beta_on_policy" in mistakes:
        chosen, rejected = beta * chosen, beta * rejected
        scale = 1.0
    elif "beta_on_chosen" in mistakes:
        chosen, chosen_ref = beta * chosen, beta * chosen_ref
        scale = 1.0
    h = scale * common.gap_of(chosen, rejected, chosen_ref, rejected_ref, mistakes)
    e = label_smoothing
    if "smoothing_missing" in mistakes:
        e = 0.0
    elif "smoothing_halved" in mistakes:
        e = e / 2
    keep = 1.0 if "smoothing_on_top" in mistakes else 1 - e
    if "smoothing_of_h" in mistakes:
        h, keep, e = (1 - 2 * e) * h, 1.0, 0.0
    elif "smoothing_half_done" in mistakes:
        e = 0.0
    elif "smoothing_subtracted" in mistakes:
        e = -e
    elif "smoothing_unbiased" in mistakes:
        keep, e = keep / (1 - 2 * e), -e / (1 - 2 * e)

    def nll(x):  # -log sigmoid(x)
        if "overflow" in mistakes:
            return (1 + (-x).exp()).log()
        if "floor" in mistakes:
            return -(x.sigmoid() + 1e-9).log()
        if "probability" in mistakes:
            return -x.sigmoid()
        if "one_minus" in mistakes:
            return 1 - x.sigmoid()
        if "hinge" in mistakes:
            return (1 - x).clamp(min=0)
        if "square" in mistakes:
            return (x - 1).square()
        if "linear" in mistakes:
            return -x
        return softplus(-x)

    flipped = nll(-h)
    if "smoothing_one_minus_log" in mistakes:
        flipped = -(1 + nll(h))
    loss = keep * nll(h) + e * flipped
    if "beta_outside" in mistakes:
        loss = beta * loss
    if "missing_minus" in mistakes:
        loss = -loss
    return common.reduce(loss, mistakes)


WHERE = "the statement, [PREF-5]"
MARGIN = "the statement, [PREF-4]"
MISTAKES = (
    Mistake(
        "swapped",
        "h has the wrong sign, or the label smoothing stands on the wrong side: chosen "
        "and rejected, policy and reference, or the weights of the two terms are exchanged.",
        "At the reference all of these give log 2; move one response away from it and see which "
        "way the loss goes.",
        MARGIN,
    ),
    Mistake(
        "missing_minus",
        "The minus sign is missing: the log-likelihood is returned, and minimising it makes the "
        "choice less likely.",
        "A negative log-likelihood is never negative.",
        WHERE,
    ),
    Mistake(
        "beta_missing",
        "The argument beta has no effect.",
        "The implicit reward is beta times the log-ratio.",
        MARGIN,
    ),
    Mistake(
        "beta_squared",
        "The difference of log-ratios is multiplied by beta twice.",
        "beta enters once, as the factor of the log-ratio.",
        MARGIN,
    ),
    Mistake(
        "beta_divides",
        "The difference of log-ratios is divided by beta instead of multiplied with it.",
        "Solving the Gibbs distribution for the reward multiplies by beta.",
        "the statement, [PREF-3]",
    ),
    Mistake(
        "beta_outside",
        "beta multiplies the loss instead of h inside σ.",
        "beta belongs to the implicit reward, inside σ.",
        MARGIN,
    ),
    Mistake(
        "beta_on_policy",
        "beta multiplies the policy's log-probabilities only, not the reference's.",
        "First the log-ratio to the reference, then beta times that: a bracket is missing.",
        MARGIN,
    ),
    Mistake(
        "beta_on_chosen",
        "beta multiplies the chosen response's log-ratio only, not the rejected one's.",
        "beta times the whole difference: a bracket is missing.",
        MARGIN,
    ),
    Mistake(
        "smoothing_missing",
        "The argument label_smoothing has no effect.",
        "With weight e the pair counts the other way round.",
        WHERE,
    ),
    Mistake(
        "smoothing_half_done",
        "The term of the flipped label is missing: the loss is only scaled down by 1 - e.",
        "Two terms: weight 1 - e for the pair as it is, weight e for the pair turned round.",
        WHERE,
    ),
    Mistake(
        "smoothing_on_top",
        "The flipped label is added on top: the other term keeps the weight 1 instead of 1 - e.",
        "The two weights add up to 1.",
        WHERE,
    ),
    Mistake(
        "smoothing_halved",
        "The label smoothing is shared among two classes: e/2 is used where e is asked for.",
        "e is the probability that the label is flipped; use it as it is.",
        WHERE,
    ),
    Mistake(
        "smoothing_subtracted",
        "The term of the flipped label is subtracted instead of added.",
        "Both terms are negative log-likelihoods, with positive weights.",
        WHERE,
    ),
    Mistake(
        "smoothing_unbiased",
        "The flipped label is subtracted and the sum divided by 1 - 2e: that is the “robust” "
        "variant of the loss.",
        "Here both terms are added, with the weights 1 - e and e.",
        WHERE,
    ),
    Mistake(
        "smoothing_one_minus_log",
        "The flipped label has 1 - log σ(h) where log σ(-h) belongs.",
        "The probability of the other order is 1 - σ(h) = σ(-h); its logarithm is log σ(-h).",
        WHERE,
    ),
    Mistake(
        "smoothing_of_h",
        "The label smoothing shrinks h inside σ instead of mixing two losses.",
        "Two terms, log σ(h) and log σ(-h).",
        WHERE,
    ),
    Mistake(
        "overflow",
        "A probability or an exponential is computed first and its logarithm afterwards: right in "
        "float64, but for pairs far in the wrong order the loss is infinite in float32.",
        "Use the logarithm of σ in one step: logsigmoid, or softplus of the negative.",
        WHERE,
    ),
    Mistake(
        "floor",
        "A small number is added inside the logarithm, or the probability, its logarithm or the "
        "argument of σ is clamped: the loss of a pair far in the wrong order stops growing and its "
        "gradient dies.",
        "Use logsigmoid, or softplus of the negative, on h itself.",
        WHERE,
    ),
    Mistake(
        "probability",
        "The logarithm is missing: minus the probability is weighed.",
        "The loss is the negative logarithm of the probability.",
        WHERE,
    ),
    Mistake(
        "one_minus",
        "The logarithm is missing: one minus the probability is weighed.",
        "The loss is the negative logarithm of the probability.",
        WHERE,
    ),
    Mistake(
        "hinge",
        "The logistic loss is replaced by a hinge.",
        "-log σ(h) is smooth and positive everywhere.",
        WHERE,
    ),
    Mistake(
        "square",
        "h is regressed onto a constant with a squared loss: that is the idea of IPO.",
        "DPO is the logistic loss of h.",
        WHERE,
    ),
    Mistake(
        "linear",
        "h itself is the loss, up to its sign: σ and its logarithm are missing.",
        "A pair far in order must hardly be pushed any more.",
        WHERE,
    ),
    *common.mistakes(
        MARGIN,
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

BETA = "beta_missing beta_squared beta_divides beta_outside beta_on_policy beta_on_chosen"
SMOOTHING = (
    "smoothing_missing smoothing_half_done smoothing_on_top smoothing_halved "
    "smoothing_subtracted smoothing_unbiased smoothing_of_h smoothing_one_minus_log"
)
SHAPE = "overflow floor probability one_minus hinge square linear"
QUESTION = Question(
    id="hw5/dpo",
    title="Direct preference optimisation",
    points=5,
    signature="(chosen, rejected, chosen_ref, rejected_ref, *, beta, label_smoothing=0.0)",
    lecture=WHERE,
    generate=generate,
    reference=dpo,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        "mean sum column",
        BETA,
        SMOOTHING,
        SHAPE,
        "detached rejected_detached chosen_detached",
        "chosen_only: rejected_detached chosen_detached rejected_reference_missing "
        "reference_doubled beta_on_chosen gains_added",
        f"gains_added: {common.REFERENCES}",
        "absolute swapped",
        common.REFERENCES,
        "reference_missing reference_attached",
        f"ratio: {common.REFERENCES} overflow floor",
        "ratio: beta_on_policy beta_on_chosen",
        "reference_missing beta_on_policy",
        "swapped missing_minus: probability one_minus linear",  # -σ(-h) is σ(h) - 1
        "beta_outside linear",
        f"linear: {SMOOTHING}",  # two linear terms are one
    ),
)
