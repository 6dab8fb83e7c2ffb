"""hw3/cispo: REINFORCE with a clipped, constant weight."""

import torch

from autograder.questions.base import Mistake, Question, excluding
from autograder.questions.hw3 import common
from policy_gradients.surrogates import cispo


def generate(draw, final):
    knobs = (
        [(0.3, 0.1), (0.15, 0.35), (0.4, 0.2)] if final else [(0.3, 0.1), (0.1, 0.4), (0.2, 0.3)]
    )
    return common.surrogate_cases(
        draw, final, [{"eps_low": low, "eps_high": high} for low, high in knobs]
    )


def buggy(logp, logp_old, advantages, *, eps_low, eps_high, mistakes=frozenset()):
    advantages = common.weights_of(advantages, mistakes)
    attached = {"old_not_detached"} if "nothing_detached" in mistakes else set()
    rho = common.ratio(logp, logp_old, mistakes | attached)
    if "ppo" in mistakes:
        loss = common.objective(rho, advantages, eps_low, eps_high, mistakes)
        loss = loss if "missing_minus" in mistakes else -loss
        return loss.mean() if "mean" in mistakes else loss
    weight = rho if "no_clip" in mistakes else common.clip(rho, eps_low, eps_high, mistakes)
    if "eps_as_largest_weight" in mistakes:
        weight = rho.clamp(max=eps_high)
    if "minimum" in mistakes:
        plain, limited = rho * advantages, weight * advantages
        weight = torch.where(plain < limited, rho, weight)
    if "gate" in mistakes:
        inside = (rho > 1 - eps_low) & (rho < 1 + eps_high)
        weight = torch.where(inside, rho, 0.0)
    elif "ppo_gate" in mistakes:
        past = (advantages > 0) & (rho > 1 + eps_high) | (advantages < 0) & (rho < 1 - eps_low)
        weight = torch.where(past, 0.0, weight)
    if not {"weight_not_detached", "nothing_detached", "no_logp"} & mistakes:
        weight = weight.detach()
    if {"no_logp", "weight_alone"} & mistakes:
        loss = weight * advantages
    elif "old_logp_attached" in mistakes:
        loss = weight * advantages * logp_old
    elif "probabilities" in mistakes:
        loss = weight * advantages * logp.exp()
    elif "old_logp" in mistakes:
        loss = weight * advantages * logp_old.detach()
    elif "log_ratio" in mistakes:
        loss = weight * advantages * (logp - logp_old.detach())
    elif "logp_cut" in mistakes:
        loss = weight * advantages * logp.detach()
    elif "ratio_for_logp" in mistakes:
        loss = weight * advantages * torch.exp(logp - logp_old.detach())
    else:
        loss = weight * advantages * logp
    if "missing_minus" not in mistakes:
        loss = -loss
    return loss.mean() if "mean" in mistakes else loss


WHERE = "10, [VAR-3]"
MISTAKES = (
    Mistake(
        "no_logp",
        "The log-probability is missing and the clipped ratio itself is differentiated: outside "
        "the edges the gradient is zero.",
        "The weight is a constant; what is differentiated is the log-probability.",
        WHERE,
    ),
    Mistake(
        "weight_alone",
        "Only the constant weight is left: the log-probability after it is missing.",
        "The weight is rightly detached; what is differentiated is the log-probability beside it.",
        WHERE,
    ),
    Mistake(
        "weight_not_detached",
        "The weight is not detached: inside the edges a second term joins the gradient.",
        "The clipped ratio is a number; cut its graph.",
        WHERE,
    ),
    Mistake(
        "nothing_detached",
        "Neither the weight nor the old log-probabilities are detached: a second term joins the "
        "gradient, and what sampled gets one, too.",
        "The clipped ratio is a number; cut its graph.",
        WHERE,
    ),
    Mistake(
        "logp_cut",
        "The log-probability is detached and only a constant is left: the gradient is zero.",
        "Of the three factors, log-probabilities are the one to differentiate.",
        WHERE,
    ),
    Mistake(
        "ppo",
        "This is PPO's clipped objective: tokens past the edge have no gradient.",
        "No minimum here: a clipped constant times the log-probability.",
        common.CLIP,
    ),
    Mistake(
        "minimum",
        "The smaller of two products is taken, as in PPO, and weighs the log-probability.",
        "No minimum here: the clipped ratio alone is the weight.",
        WHERE,
    ),
    Mistake(
        "gate",
        "Tokens outside the edges get the weight 0 instead of the weight at the edge.",
        "Clamp the weight; nothing is switched off.",
        WHERE,
    ),
    Mistake(
        "ppo_gate",
        "Tokens that PPO would switch off get the weight 0.",
        "Clamp the weight; nothing is switched off.",
        WHERE,
    ),
    Mistake(
        "eps_as_largest_weight",
        "eps_high itself is taken for the largest weight.",
        "The edges are distances from ratio 1.",
        WHERE,
    ),
    Mistake(
        "no_clip",
        "The weight is not bounded.",
        "Clamp the ratio at 1 - eps_low and 1 + eps_high before it is used as a weight.",
        WHERE,
    ),
    Mistake(
        "probabilities",
        "Probabilities are weighted instead of log-probabilities.",
        "The ratio's weight stands before log π.",
        WHERE,
    ),
    Mistake(
        "old_logp",
        "The old log-probability is weighted, which has no gradient.",
        "The log-probability of the policy being trained carries the gradient.",
        WHERE,
    ),
    Mistake(
        "old_logp_attached",
        "The old log-probability stands after the weight: the new one has no gradient, and the old "
        "one gets it.",
        "The log-probability of the policy being trained carries the gradient.",
        WHERE,
    ),
    Mistake(
        "log_ratio",
        "The difference of the log-probabilities is weighted instead of the log-probability.",
        "The gradient is the same, the value is not: the formula has log π alone.",
        WHERE,
    ),
    Mistake(
        "ratio_for_logp",
        "The weight multiplies the ratio instead of the log-probability.",
        "The formula has log π; its gradient must not bring another ratio.",
        WHERE,
    ),
    *common.mistakes(
        "missing_minus", "eps_swapped", "eps_low_twice", "eps_high_twice", "lower_edge_missing",
        "upper_edge_missing", "edges_of_log", "ratio_inverted", "difference_for_ratio",
        "quotient_of_logs", "quotient_of_probabilities", "old_ignored",
        "advantages_not_detached", "advantage_size", "advantage_sign", "advantages_ignored",
        "mean",
    ),
)  # fmt: skip

EDGES = (
    "eps_swapped eps_low_twice eps_high_twice lower_edge_missing upper_edge_missing edges_of_log"
)
LAST = (
    "no_logp weight_alone probabilities old_logp old_logp_attached log_ratio ratio_for_logp "
    "logp_cut"
)
QUESTION = Question(
    id="hw3/cispo",
    title="A bounded, constant weight (CISPO)",
    points=2,
    signature="(logp, logp_old, advantages, *, eps_low, eps_high)",
    lecture=WHERE,
    generate=generate,
    reference=cispo,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        LAST,
        EDGES,
        f"ppo: {LAST} weight_not_detached nothing_detached gate ppo_gate eps_as_largest_weight "
        "no_clip",
        f"gate eps_as_largest_weight no_clip: {EDGES}",
        "gate ppo_gate eps_as_largest_weight no_clip minimum",
        f"minimum: ppo {EDGES} old_ignored no_logp weight_alone weight_not_detached "
        "nothing_detached advantage_size advantages_ignored ratio_inverted difference_for_ratio "
        "quotient_of_logs quotient_of_probabilities",
        "weight_not_detached nothing_detached",
        "no_logp weight_alone: weight_not_detached nothing_detached",
        "no_logp: no_clip",
        "eps_as_largest_weight: weight_not_detached nothing_detached ratio_inverted old_ignored",
        "ratio_inverted difference_for_ratio quotient_of_logs quotient_of_probabilities "
        "old_ignored",
        f"old_ignored: {EDGES} no_clip gate ppo_gate ppo no_logp weight_not_detached "
        "nothing_detached ratio_for_logp",
        "advantage_size advantage_sign advantages_ignored",
        "advantages_not_detached: advantage_sign advantages_ignored",
        f"difference_for_ratio quotient_of_logs: {EDGES} no_clip",  # nearly all lie below the edges
        "advantage_size: ppo_gate",
        "advantages_ignored: ppo_gate",
    ),
)
