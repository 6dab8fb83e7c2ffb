"""hw4/truncated_importance_weight: a sampler that is not quite the learner."""

import torch

from autograder.cases import Case
from autograder.questions.base import Question, excluding
from autograder.questions.hw4 import common
from policy_gradients.ratios import truncated_importance_weight


def generate(draw, final):
    sizes = ((4, 6, 1.7), (3, 5, 8.0)) if final else ((3, 5, 2.0), (2, 7, 7.0))
    cases = []
    for batch, time, cap in sizes:
        sampler = -draw.uniform(batch, time, low=0.4, high=2.0)
        gap = draw.uniform(batch, time, low=-2.0, high=1.6)
        edge = torch.tensor(cap, dtype=torch.float64).log()
        gap = torch.where((gap - edge).abs() < 0.05, gap + 0.1, gap)
        gap[1, :3] = torch.tensor([-3.5, 1.8, 3.0])  # far below, near and above the larger caps
        gap[0, :4] = torch.tensor([cap + 0.3, -0.9, 0.25, -0.3])  # one whose logarithm is too large
        cases.append(
            Case(
                name=f"cap {cap:g}",
                args=(sampler + gap, sampler),
                knobs={"cap": cap},
                constants=(0, 1),
                weights=draw.weights(batch, time),
            )
        )
    sampler = (-draw.uniform(2, 4, low=120.0, high=200.0)).float()
    gap = torch.tensor([0.5, -0.7, 1.5, 0.2])
    knobs = {"cap": 2.5 if final else 2.0}
    cases.append(
        Case(
            name="very unlikely tokens",
            args=(sampler + gap, sampler),
            knobs=knobs,
            constants=(0, 1),
            weights=torch.ones(2, 4),
            stability=True,
        )
    )
    return cases


def buggy(logp_learner, logp_sampler, *, cap, mistakes=frozenset()):
    learner, sampler = logp_learner, logp_sampler
    if "nothing_detached" in mistakes:
        pass
    elif "learner_attached" in mistakes:
        sampler = sampler.detach()
    else:
        learner, sampler = learner.detach(), sampler.detach()
    if "inverted" in mistakes:
        learner, sampler = sampler, learner
    log_weight = learner - sampler
    if "whole_response" in mistakes:
        log_weight = log_weight.sum(1, keepdim=True).expand_as(log_weight)
    elif "mean_of_response" in mistakes:
        log_weight = log_weight.mean(1, keepdim=True).expand_as(log_weight)
    if "no_exp" in mistakes:
        weight = log_weight
    elif "quotient_of_logs" in mistakes:
        weight = learner / sampler
    elif "quotient_of_probabilities" in mistakes:
        weight = learner.exp() / sampler.exp()
    elif "learner_only" in mistakes:
        weight = learner.exp() * cap
    else:
        weight = log_weight.exp()
    if "floored" in mistakes:
        return weight.clamp(min=cap)
    if "no_cap" in mistakes:
        return weight
    if "cap_in_log" in mistakes:
        return log_weight.clamp(max=cap).exp()
    if "both_sides" in mistakes:
        return weight.clamp(1 / cap, cap)
    if "one_plus_cap" in mistakes:
        return weight.clamp(max=1 + cap)
    if "dropped" in mistakes:
        return torch.where(weight > cap, 0.0, weight)
    if "one_above" in mistakes:
        return torch.where(weight > cap, 1.0, weight)
    return weight.clamp(max=cap)


WHERE = "the statement, [SIL-1]"
TEXTS = {
    "inverted": (
        "The weight is upside down: sampler over learner.",
        "What the learner finds likelier than the sampler did was sampled too rarely and counts "
        "more.",
    ),
    "floored": (
        "The cap is a floor: every weight is at least the cap.",
        "min(weight, cap) is clamp(max=cap).",
    ),
    "no_cap": (
        "Nothing is capped: one token can outweigh the batch.",
        "No weight exceeds the cap.",
    ),
    "no_exp": (
        "The difference of the log-probabilities is used as the weight: exp is missing.",
        "Where learner and sampler agree, the weight is 1.",
    ),
    "quotient_of_logs": (
        "The log-probabilities are divided by each other.",
        "A quotient of probabilities is the exp of a difference of logarithms.",
    ),
    "quotient_of_probabilities": (
        "The weight is a quotient of two probabilities: in float32 unlikely tokens give 0/0.",
        "Subtract the logarithms first, then exp.",
    ),
    "learner_only": (
        "The sampler has no effect on the weight.",
        "Compare the learner's probability with the sampler's.",
    ),
    "cap_in_log": (
        "The logarithm of the weight is capped at cap.",
        "First exp, then the cap.",
    ),
    "both_sides": (
        "The weight is bounded from below as well.",
        "Small weights are no danger to the variance; only the upper side is cut.",
    ),
    "one_plus_cap": (
        "The largest weight is 1 + cap: the cap is read as a distance from 1.",
        "The cap is the largest weight itself.",
    ),
    "dropped": (
        "Weights above the cap become 0: the token is dropped.",
        "Truncated, not rejected: such a token keeps the weight cap.",
    ),
    "one_above": (
        "Weights above the cap become 1.",
        "Such a token keeps the weight cap.",
    ),
    "whole_response": (
        "The log-ratios are added over the response: all its tokens share one weight.",
        "Here each token has a weight of its own.",
    ),
    "mean_of_response": (
        "The log-ratios are averaged over the response: all its tokens share one weight.",
        "Here each token has a weight of its own.",
    ),
    "nothing_detached": (
        "The weight is not detached: a second gradient flows through both log-probabilities.",
        "A weight is a constant of the step; detach both.",
    ),
    "learner_attached": (
        "The learner's log-probability is not detached: the weight adds a gradient of its own.",
        "Both are constants here, also the learner's.",
    ),
}  # fmt: skip
MISTAKES = common.listed(TEXTS, WHERE)

CAPS = "floored no_cap cap_in_log both_sides one_plus_cap dropped one_above"
FORMS = "no_exp quotient_of_logs quotient_of_probabilities learner_only"
SHARED = "whole_response mean_of_response"
QUESTION = Question(
    id="hw4/truncated_importance_weight",
    title="A capped weight for a sampler that is not the learner",
    points=1,
    signature="(logp_learner, logp_sampler, *, cap)",
    lecture=WHERE,
    generate=generate,
    reference=truncated_importance_weight,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        CAPS,
        FORMS,
        SHARED,
        "nothing_detached learner_attached",
        f"cap_in_log: {FORMS}",
        f"{SHARED}: quotient_of_logs quotient_of_probabilities learner_only",
        f"no_exp: {CAPS} nothing_detached learner_attached",
        f"learner_only: {CAPS} inverted",
        "quotient_of_logs: floored",
    ),
)
