"""hw3/sapo: a soft gate in place of the clip."""

import torch

from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw3 import common
from policy_gradients.surrogates import sapo


def generate(draw, final):
    taus = [(1.0, 4.0), (2.0, 3.0), (5.0, 1.5)] if final else [(1.0, 4.0), (3.0, 2.0), (2.5, 6.0)]
    return common.surrogate_cases(
        draw, final, [{"tau_pos": pos, "tau_neg": neg} for pos, neg in taus] + [{}]
    )


def buggy(logp, logp_old, advantages, *, tau_pos=1.0, tau_neg=1.05, mistakes=frozenset()):
    raw = advantages
    advantages = common.weights_of(advantages, mistakes)
    rho = common.ratio(logp, logp_old, mistakes)
    if "tau_swapped" in mistakes:
        tau_pos, tau_neg = tau_neg, tau_pos
    elif "tau_pos_only" in mistakes:
        tau_neg = tau_pos
    elif "tau_neg_only" in mistakes:
        tau_pos = tau_neg
    elif "tau_fixed" in mistakes:
        tau_pos, tau_neg = 1.0, 1.05
    if "tau_by_mean" in mistakes:
        raw = raw.mean()
    elif "tau_by_row" in mistakes:
        raw = raw[:, :1]
    elif "tau_by_row_mean" in mistakes:
        raw = raw.mean(1, keepdim=True)
    side = rho.detach() > 1 if "tau_by_ratio" in mistakes else raw.detach() > 0
    pos, neg = (torch.tensor(tau, dtype=rho.dtype) for tau in (tau_pos, tau_neg))
    tau = torch.where(side, pos, neg)
    inner = rho if "not_centred" in mistakes else rho - 1
    if "log_ratio" in mistakes:
        inner = rho.log()
    if "tau_outside_only" not in mistakes:
        inner = inner / tau if "divided_by_tau" in mistakes else tau * inner
    if "parentheses" in mistakes:
        inner = tau * rho - 1
    elif "advantage_inside" in mistakes:
        inner = inner * advantages
    gate = torch.sigmoid(-inner if "gate_reversed" in mistakes else inner)
    if "slope" in mistakes:
        gate = gate * (1 - gate)
    elif "tanh" in mistakes:
        gate = torch.tanh(inner)
    elif "half_subtracted" in mistakes:
        gate = gate - 0.5
    if "no_factor" in mistakes:
        factor = 1.0
    elif "four_only" in mistakes:
        factor = 4.0
    elif "tau_only" in mistakes:
        factor = 1 / tau
    elif "two_over_tau" in mistakes:
        factor = 2 / tau
    elif "factor_inverted" in mistakes:
        factor = tau / 4
    elif "four_tau" in mistakes:
        factor = 4 * tau
    else:
        factor = 4 / tau
    if "gate_detached" in mistakes:
        gate = gate.detach() * rho
    elif "ratio_too" in mistakes:
        gate = gate * rho
    elif "logp_beside" in mistakes:
        gate = gate * logp
    elif "logp_too" in mistakes:
        gate = gate.detach() * logp
    loss = factor * gate if "advantage_inside" in mistakes else advantages * factor * gate
    if "slope_returned" in mistakes:
        sigma = torch.sigmoid(inner)
        loss = advantages * 4 * sigma * (1 - sigma) * rho
    elif "constant_gate" in mistakes:
        sigma = torch.sigmoid(inner).detach()
        loss = advantages * 4 * sigma * (1 - sigma) * rho
    if "missing_minus" not in mistakes:
        loss = -loss
    return loss.mean() if "mean" in mistakes else loss


WHERE = "10, [VAR-4]"
MISTAKES = (
    Mistake(
        "no_factor",
        "The factor 4/τ is missing: at ratio 1 the slope is τ/4 instead of 1.",
        "The first update must be that of the unclipped surrogate.",
        WHERE,
    ),
    Mistake(
        "four_only",
        "The factor is 4 instead of 4/τ.",
        "The chain rule brings τ out of the sigmoid; the factor has to undo it.",
        WHERE,
    ),
    Mistake(
        "tau_only",
        "The factor is 1/τ instead of 4/τ.",
        "The sigmoid's slope at 0 is a quarter.",
        WHERE,
    ),
    Mistake(
        "two_over_tau",
        "The factor is 2/τ: the value at ratio 1 is normalised instead of the slope.",
        "The sigmoid's slope at 0 is a quarter.",
        WHERE,
    ),
    Mistake(
        "factor_inverted", "The factor is τ/4: upside down.", "4/τ undoes the slope τ/4.", WHERE
    ),
    Mistake(
        "four_tau",
        "The factor is 4τ instead of 4/τ.",
        "The chain rule brings τ out of the sigmoid; the factor has to undo it.",
        WHERE,
    ),
    Mistake(
        "tau_outside_only",
        "τ is missing inside the sigmoid.",
        "The sigmoid is taken of τ(ρ - 1).",
        WHERE,
    ),
    Mistake(
        "divided_by_tau",
        "Inside the sigmoid ρ - 1 is divided by τ instead of multiplied.",
        "A larger τ closes the gate faster.",
        WHERE,
    ),
    Mistake(
        "tau_swapped",
        "tau_pos and tau_neg are exchanged.",
        "tau_pos belongs to positive advantages.",
        WHERE,
    ),
    Mistake(
        "tau_pos_only",
        "tau_pos is used for both signs of the advantage.",
        "Choose τ by the sign of the advantage, entry by entry.",
        WHERE,
    ),
    Mistake(
        "tau_neg_only",
        "tau_neg is used for both signs of the advantage.",
        "Choose τ by the sign of the advantage, entry by entry.",
        WHERE,
    ),
    Mistake(
        "tau_fixed",
        "The arguments tau_pos and tau_neg are ignored: 1 and 1.05 are used.",
        "Use what is passed in.",
        WHERE,
    ),
    Mistake(
        "tau_by_ratio",
        "τ is chosen by the side on which the ratio lies instead of by the sign of the advantage.",
        "tau_pos belongs to positive advantages.",
        WHERE,
    ),
    Mistake(
        "tau_by_mean",
        "One τ is chosen for the whole batch, by the sign of the mean advantage.",
        "Choose τ by the sign of the advantage, entry by entry: torch.where.",
        WHERE,
    ),
    Mistake(
        "tau_by_row",
        "One τ is chosen per row, by the advantage of its first token.",
        "Choose τ by the sign of the advantage, entry by entry: torch.where.",
        WHERE,
    ),
    Mistake(
        "tau_by_row_mean",
        "One τ is chosen per row, by the sign of the row's mean advantage.",
        "Choose τ by the sign of the advantage, entry by entry: torch.where.",
        WHERE,
    ),
    Mistake(
        "not_centred",
        "The sigmoid is taken of τρ: the 1 is not subtracted.",
        "The gate is symmetric about ratio 1.",
        WHERE,
    ),
    Mistake(
        "parentheses",
        "Inside the sigmoid stands τρ - 1: τ multiplies the ratio only.",
        "Parentheses: tau * (ratio - 1).",
        WHERE,
    ),
    Mistake(
        "advantage_inside",
        "The advantage stands inside the sigmoid.",
        "It multiplies the sigmoid from outside; inside only its sign matters, which chooses τ.",
        WHERE,
    ),
    Mistake(
        "log_ratio",
        "The logarithm of the ratio stands inside the sigmoid instead of ratio minus 1.",
        "They agree near ratio 1 only.",
        WHERE,
    ),
    Mistake(
        "gate_reversed",
        "The sigmoid has the wrong sign inside: it falls with the ratio.",
        "For a positive advantage the objective rises with the ratio.",
        WHERE,
    ),
    Mistake(
        "slope",
        "The sigmoid's slope is used as the loss: that is the gate, which autograd makes itself.",
        "The loss holds the sigmoid; its derivative holds the gate.",
        WHERE,
    ),
    Mistake(
        "tanh",
        "A tanh stands where the sigmoid belongs.",
        "torch.sigmoid; its slope at 0 is a quarter, which the factor 4 undoes.",
        WHERE,
    ),
    Mistake(
        "half_subtracted",
        "A half is subtracted from the sigmoid: the gradient is right, the value is not.",
        "The formula has the sigmoid alone.",
        WHERE,
    ),
    Mistake(
        "gate_detached",
        "The sigmoid is used as a constant weight of the ratio.",
        "The sigmoid of the ratio is the objective; it is differentiated, and no ratio stands "
        "beside it.",
        WHERE,
    ),
    Mistake(
        "ratio_too",
        "The sigmoid is multiplied with the ratio as well.",
        "The ratio stands inside the sigmoid only.",
        WHERE,
    ),
    Mistake(
        "logp_beside",
        "The log-probability stands beside the sigmoid: two factors are differentiated.",
        "That product is in neither loss; here the sigmoid alone is differentiated.",
        WHERE,
    ),
    Mistake(
        "slope_returned",
        "The slope of the loss is returned instead of the loss.",
        "Return the loss; autograd takes its slope.",
        WHERE,
    ),
    Mistake(
        "constant_gate",
        "The sigmoid's slope is a constant weight of the ratio: the gradient is right, the value "
        "is not.",
        "Return the loss with the sigmoid itself; autograd makes the slope.",
        WHERE,
    ),
    Mistake(
        "logp_too",
        "The sigmoid is used as a constant weight of the log-probability.",
        "That is CISPO's form; here the sigmoid itself is differentiated.",
        "10, [VAR-3]",
    ),
    *common.mistakes(
        "missing_minus", "ratio_inverted", "difference_for_ratio", "quotient_of_logs",
        "quotient_of_probabilities", "old_ignored", "old_not_detached", "logp_detached",
        "advantages_not_detached", "advantage_size", "advantage_sign", "advantages_ignored",
        "mean",
    ),
)  # fmt: skip

FACTOR = "no_factor four_only tau_only two_over_tau factor_inverted four_tau"
TAUS = (
    "tau_swapped tau_pos_only tau_neg_only tau_fixed tau_by_ratio tau_by_mean "
    "tau_by_row tau_by_row_mean"
)
QUESTION = Question(
    id="hw3/sapo",
    title="A soft gate (SAPO)",
    points=2,
    signature="(logp, logp_old, advantages, *, tau_pos=1.0, tau_neg=1.05)",
    lecture=WHERE,
    generate=generate,
    reference=sapo,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        FACTOR,
        TAUS,
        "tau_outside_only divided_by_tau",
        "not_centred log_ratio parentheses advantage_inside",
        "parentheses advantage_inside slope_returned constant_gate: tau_outside_only "
        "divided_by_tau difference_for_ratio quotient_of_logs old_ignored gate_reversed slope tanh "
        "half_subtracted gate_detached ratio_too logp_too logp_beside advantage_size "
        "advantage_sign advantages_ignored",
        f"slope_returned constant_gate: {FACTOR} not_centred log_ratio parentheses "
        "advantage_inside",
        "slope_returned constant_gate logp_detached",
        "logp_beside: logp_detached old_ignored gate_detached ratio_too logp_too tanh slope "
        "half_subtracted",
        "tau_by_mean tau_by_row tau_by_row_mean: advantages_ignored advantage_size",
        "slope: gate_reversed tanh half_subtracted",
        "tanh half_subtracted",
        "tanh half_subtracted slope gate_detached ratio_too logp_too",
        "tanh slope half_subtracted: gate_detached ratio_too logp_too",
        "gate_detached: logp_detached old_not_detached",
        "logp_too: logp_detached old_not_detached old_ignored",
        "gate_detached ratio_too logp_too: old_ignored",
        "ratio_inverted difference_for_ratio quotient_of_logs quotient_of_probabilities "
        "old_ignored",
        "difference_for_ratio quotient_of_logs: log_ratio not_centred",
        "half_subtracted old_ignored",
        f"old_ignored: {TAUS} not_centred log_ratio tau_outside_only divided_by_tau "
        "gate_reversed old_not_detached logp_detached slope tanh",
        "log_ratio: gate_reversed ratio_inverted",
        "advantage_size advantage_sign advantages_ignored",
        "advantages_not_detached: advantage_sign advantages_ignored",
        "half_subtracted gate_reversed",
        "tanh gate_reversed",
    ),
)
