"""hw5/bradley_terry: how surprised is a reward model that this response won?"""

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw5 import common
from policy_gradients.preferences import bradley_terry


def generate(draw, final):
    sizes = (
        [(6, None, 4), (4, 0.4, 1), (7, 1.3, 1), (5, -0.6, 1)]
        if final
        else [(5, None, 4), (3, 0.6, 1), (6, 1.1, 1), (4, -0.9, 1)]
    )
    cases = []
    for batch, margin, spread in sizes:
        chosen = draw.uniform(batch, low=-2.0, high=3.0)
        away = spread * draw.uniform(batch, low=0.3, high=2.5)
        away[1] = 2.7 * spread
        away[1::2] = -away[1::2]  # every second pair is in the wrong order
        cases.append(
            Case(
                name="no margin given"
                if margin is None
                else "a negative margin"
                if margin < 0
                else f"margin {margin}",
                args=(chosen, chosen - away),
                knobs={} if margin is None else {"margin": margin},
                differentiable=(0, 1),
                weights=draw.weights(batch),
            )
        )
    far = torch.tensor([-150.0, 150.0, -108.0, 0.75, -2.0], dtype=torch.float32)
    level = draw.normal(5).to(torch.float32)
    cases.append(
        Case(
            name="differences of 150 in float32",
            args=(level + far, level),
            knobs={"margin": 0.5},
            differentiable=(0, 1),
            weights=draw.weights(5).to(torch.float32),
            stability=True,
        )
    )
    return cases


def buggy(chosen, rejected, *, margin=0.0, mistakes=frozenset()):
    if "detached" in mistakes:
        chosen, rejected = chosen.detach(), rejected.detach()
    elif "rejected_detached" in mistakes:
        rejected = rejected.detach()
    elif "chosen_detached" in mistakes:
        chosen = chosen.detach()
    if "ratio" in mistakes:
        chosen, rejected = chosen.exp(), rejected.exp()
    if "squashed" in mistakes:
        chosen, rejected = chosen.sigmoid(), rejected.sigmoid()
    if "chosen_only" in mistakes:
        rejected = 0 * rejected
    away = rejected - chosen if "swapped" in mistakes else chosen - rejected
    if "absolute" in mistakes:
        away = away.abs()
    if "margin_missing" in mistakes:
        margin = 0.0
    elif "margin_added" in mistakes:
        margin = -margin
    elif "margin_one" in mistakes:
        margin = margin if margin else 1.0
    outside = 0.0
    if "margin_outside" in mistakes:
        outside, margin = margin, 0.0
    x = away * (1 - margin) if "margin_scales" in mistakes else away - margin
    if "sign_inside" in mistakes:
        x = -x
    if "overflow" in mistakes:
        loss = (1 + (-x).exp()).log()
    elif "floor" in mistakes:
        loss = -(x.sigmoid() + 1e-9).log()
    elif "probability" in mistakes:
        loss = -x.sigmoid()
    elif "one_minus" in mistakes:
        loss = 1 - x.sigmoid()
    elif "two_labels" in mistakes:  # each response classified on its own
        loss = -torch.nn.functional.logsigmoid(chosen - margin)
        loss = loss - torch.nn.functional.logsigmoid(-rejected)
    elif "hinge" in mistakes:
        loss = (-x).clamp(min=0)
    elif "linear" in mistakes:
        loss = -x
    elif "logs_apart" in mistakes:
        loss = torch.nn.functional.logsigmoid(rejected) - torch.nn.functional.logsigmoid(chosen)
        loss = loss + margin
    elif "both_orders" in mistakes:
        loss = torch.nn.functional.softplus(-x) + torch.nn.functional.softplus(x)
    else:
        loss = torch.nn.functional.softplus(-x)
    if "bits" in mistakes:
        loss = loss / torch.tensor(2.0, dtype=loss.dtype).log()
    if "missing_minus" in mistakes:
        loss = -loss
    return common.reduce(loss + outside, mistakes)


WHERE = "the statement, [PREF-2]"
MISTAKES = (
    Mistake(
        "swapped",
        "Chosen and rejected are exchanged: the loss falls when the rejected response wins.",
        "The argument of σ is large when the chosen response has the larger reward.",
        WHERE,
    ),
    Mistake(
        "sign_inside",
        "The whole argument of σ, margin included, has the wrong sign: softplus(x), or "
        "log σ(-x), where softplus(-x) belongs.",
        "-log σ(x) is softplus of minus x: it falls when the chosen response's reward rises.",
        WHERE,
    ),
    Mistake(
        "missing_minus",
        "The minus sign is missing: the log-likelihood is returned, and minimising it makes the "
        "choice less likely.",
        "A negative log-likelihood is never negative.",
        WHERE,
    ),
    Mistake(
        "margin_missing",
        "The argument margin has no effect.",
        "Subtract it from the difference of the rewards, once.",
        WHERE,
    ),
    Mistake(
        "margin_added",
        "The margin is added to the difference instead of subtracted: it makes winning easier.",
        "With a margin the chosen response has to win by more than before.",
        WHERE,
    ),
    Mistake(
        "margin_outside",
        "The margin is added to the loss instead of standing inside σ: it changes no gradient.",
        "The margin belongs to the difference of the rewards.",
        WHERE,
    ),
    Mistake(
        "margin_scales",
        "The margin shrinks the difference by a factor instead of being subtracted from it.",
        "The margin is in the unit of the rewards: reward minus reward minus margin.",
        WHERE,
    ),
    Mistake(
        "margin_one",
        "A margin of 1 is used when none is given.",
        "The default is margin=0.0.",
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
        "Use logsigmoid, or softplus of the negative, on the difference itself.",
        WHERE,
    ),
    Mistake(
        "probability",
        "The logarithm is missing: minus the probability is returned.",
        "The loss is the negative logarithm of the probability.",
        WHERE,
    ),
    Mistake(
        "one_minus",
        "The logarithm is missing: one minus the probability is returned.",
        "The loss is the negative logarithm of the probability.",
        WHERE,
    ),
    Mistake(
        "two_labels",
        "Each response is classified on its own, chosen as good and rejected as bad, instead of "
        "comparing the two.",
        "First the difference of the rewards, then one log σ.",
        "the statement, [PREF-1]",
    ),
    Mistake(
        "logs_apart",
        "log σ of each reward is taken by itself, and the two logarithms are subtracted.",
        "First the difference of the rewards, then one log σ.",
        "the statement, [PREF-1]",
    ),
    Mistake(
        "hinge",
        "The logistic loss is replaced by a hinge, which is 0 as soon as the pair is in order.",
        "-log σ(x) is smooth and positive everywhere.",
        WHERE,
    ),
    Mistake(
        "linear",
        "The difference itself is the loss: σ and its logarithm are missing.",
        "A pair far in order must hardly be pushed any more.",
        WHERE,
    ),
    Mistake(
        "both_orders",
        "Both orders are added, -log σ(x) - log σ(-x): the label has no effect.",
        "Only the order that was observed enters the likelihood.",
        "the statement, [PREF-1]",
    ),
    Mistake(
        "squashed",
        "The rewards go through σ one by one before they are compared.",
        "Only the difference goes through σ.",
        "the statement, [PREF-1]",
    ),
    Mistake("bits", "The logarithm is to base 2.", "Use the natural logarithm: nats.", WHERE),
    Mistake(
        "ratio",
        "Exponentials of the rewards are subtracted instead of the rewards.",
        "The difference of the rewards is already the log-odds.",
        "the statement, [PREF-1]",
    ),
    *common.mistakes(
        WHERE,
        "chosen_only",
        "absolute",
        "rejected_detached",
        "chosen_detached",
        "detached",
        "mean",
        "sum",
        "column",
    ),
)

QUESTION = Question(
    id="hw5/bradley_terry",
    title="The Bradley-Terry loss",
    points=3,
    signature="(chosen, rejected, *, margin=0.0)",
    lecture=WHERE,
    generate=generate,
    reference=bradley_terry,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        "mean sum column",
        "margin_missing margin_added margin_outside margin_scales margin_one",
        "overflow floor probability one_minus two_labels hinge linear both_orders logs_apart",
        "logs_apart: margin_outside margin_scales sign_inside absolute swapped chosen_only ratio "
        "squashed",
        "squashed ratio chosen_only",
        "squashed ratio: overflow floor",  # no difference is large any more, or all are
        "detached rejected_detached chosen_detached",
        "chosen_only: rejected_detached chosen_detached",
        "absolute swapped",
        "two_labels both_orders: absolute swapped",
        "linear margin_outside",
        # "swapped margin_added" is "sign_inside"; so is any two of the three the third
        "swapped margin_added sign_inside",
        "sign_inside: margin_missing margin_outside margin_scales absolute probability one_minus "
        "linear two_labels both_orders",
        "two_labels: margin_scales chosen_only ratio squashed",
    ),
)
