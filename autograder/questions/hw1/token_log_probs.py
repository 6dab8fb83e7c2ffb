"""hw1/token_log_probs: the log-probability of each token that was sampled."""

import math

import torch

from autograder.cases import Case
from autograder.questions.base import Mistake, Question, excluding
from policy_gradients.logprobs import token_log_probs


def generate(draw, final):
    sizes = (
        [(3, 5, 7, 0.7), (4, 2, 6, 1.0), (2, 6, 4, 2.5)]
        if final
        else [(2, 4, 5, 0.7), (3, 2, 7, 1.0), (5, 3, 4, 1.6)]
    )
    cases = []
    for batch, time, vocab, temperature in sizes:
        cases.append(
            Case(
                name=f"temperature {temperature}",
                args=(2 * draw.normal(batch, time, vocab), draw.integers(vocab, batch, time)),
                knobs={"temperature": temperature},
                differentiable=(0,),
                weights=draw.weights(batch, time),
            )
        )
    batch, time, vocab = (1, 3, 5) if final else (1, 4, 3)
    cases.append(
        Case(
            name="one row",
            args=(2 * draw.normal(batch, time, vocab), draw.integers(vocab, batch, time)),
            knobs={"temperature": 0.8},
            differentiable=(0,),
            weights=draw.weights(batch, time),
        )
    )
    # exp() overflows or underflows in float32: by gaps of up to 240 between the logits of one
    # position (their largest is 120 everywhere), or by positions whose logits are all low.
    gaps = draw.uniform(2, 3, 4, low=-120.0, high=100.0)
    gaps[..., 2] = 120.0
    gap_tokens = draw.integers(4, 2, 3)
    gaps[0, 0, 1], gap_tokens[0, 0] = -120.0, 1
    levels = torch.linspace(-120.0, 20.0, 6).reshape(2, 3, 1) + draw.normal(2, 3, 4)
    for name, logits, tokens in (
        ("logits far apart in float32", gaps, gap_tokens),
        ("positions on different levels in float32", levels, draw.integers(4, 2, 3)),
    ):
        cases.append(
            Case(
                name=name,
                args=(logits.to(torch.float32), tokens),
                knobs={"temperature": 0.7},
                differentiable=(0,),
                weights=draw.weights(2, 3).to(torch.float32),
                stability=True,
            )
        )
    return cases


def buggy(logits, tokens, *, temperature=1.0, mistakes=frozenset()):
    if "temperature_multiplied" in mistakes:
        scaled = logits * temperature
    elif mistakes & {"temperature_ignored", "temperature_after", "temperature_after_multiplied"}:
        scaled = logits
    elif "temperature_twice" in mistakes:
        scaled = logits / temperature**2
    else:
        scaled = logits / temperature
    axis = 1 if "softmax_over_time" in mistakes else 0 if "softmax_over_batch" in mistakes else -1
    if "log_of_softmax" in mistakes:
        log_probs = scaled.softmax(axis).log()
    elif "global_maximum" in mistakes:
        shifted = scaled - scaled.max()
        log_probs = shifted - shifted.exp().sum(axis, keepdim=True).log()
    elif "exp_unprotected" in mistakes:
        log_probs = scaled - scaled.exp().sum(axis, keepdim=True).log()
    elif "softmax_twice" in mistakes:
        log_probs = scaled.softmax(axis).log_softmax(axis)
    elif "normaliser_added" in mistakes:
        log_probs = scaled + scaled.logsumexp(axis, keepdim=True)
    elif "mean_for_sum" in mistakes:
        log_probs = scaled - scaled.exp().mean(axis, keepdim=True).log()
    elif "no_normaliser" in mistakes:
        log_probs = scaled
    elif "only_maximum_subtracted" in mistakes:
        log_probs = scaled - scaled.amax(axis, keepdim=True)
    elif "normaliser_not_logged" in mistakes:
        log_probs = scaled - scaled.exp().sum(axis, keepdim=True)
    elif "temperature_not_in_normaliser" in mistakes:
        log_probs = scaled - logits.logsumexp(axis, keepdim=True)
    elif "temperature_only_in_normaliser" in mistakes:
        log_probs = logits - scaled.logsumexp(axis, keepdim=True)
    else:
        log_probs = scaled - scaled.logsumexp(axis, keepdim=True)
    if "probabilities" in mistakes:
        log_probs = log_probs.exp()
    if "temperature_after" in mistakes:
        log_probs = log_probs / temperature
    elif "temperature_after_multiplied" in mistakes:
        log_probs = log_probs * temperature
    if "argmax_token" in mistakes:
        tokens = logits.argmax(-1)
    if "shifted" in mistakes:
        log_probs, tokens = log_probs[:, :-1], tokens[:, 1:]
    elif "last_dropped" in mistakes:
        log_probs, tokens = log_probs[:, :-1], tokens[:, :-1]
    elif "first_dropped" in mistakes:
        log_probs, tokens = log_probs[:, 1:], tokens[:, 1:]
    elif "shifted_wrapped" in mistakes:
        tokens = tokens.roll(-1, dims=1)
    elif "shifted_late" in mistakes:
        tokens = tokens.roll(1, dims=1)
    if "mean_over_vocabulary" in mistakes:
        picked = log_probs.mean(-1)
    elif "entropy_like" in mistakes:
        picked = (log_probs.exp() * log_probs).sum(-1)
    else:
        picked = log_probs.gather(-1, tokens[..., None])[..., 0]
    if "shifted_padded" in mistakes:
        late = log_probs[:, :-1].gather(-1, tokens[:, 1:, None])[..., 0]
        picked = torch.cat([torch.zeros_like(late[:, :1]), late], 1)
    if "negative" in mistakes:
        picked = -picked
    if "base_2" in mistakes:
        picked = picked / math.log(2)
    elif "base_10" in mistakes:
        picked = picked / math.log(10)
    if "sum_over_time" in mistakes:
        picked = picked.sum(1)
    elif "mean_over_time" in mistakes:
        picked = picked.mean(1)
    elif "mean" in mistakes:
        picked = picked.mean()
    if "keepdim" in mistakes:
        picked = picked[..., None]
    elif "squeezed" in mistakes:
        picked = picked.squeeze()
    if "detached" in mistakes:
        picked = picked.detach()
    return picked


WHERE = "00, [MAP-1]"
MISTAKES = (
    Mistake(
        "temperature_multiplied",
        "The logits are multiplied by the temperature instead of divided by it.",
        "A high temperature must flatten the distribution: which operation makes logits "
        "smaller when T grows?",
        WHERE,
    ),
    Mistake(
        "temperature_ignored",
        "The temperature has no effect on the result.",
        "The tokens were sampled from softmax(logits / temperature); score them under the "
        "same distribution.",
        WHERE,
    ),
    Mistake(
        "temperature_after",
        "The temperature is applied to the log-probabilities, after the log-softmax, so "
        "they are not normalised.",
        "Divide the logits first; the normaliser has to see the tempered logits.",
        WHERE,
    ),
    Mistake(
        "temperature_after_multiplied",
        "The log-probabilities are multiplied by the temperature, after a log-softmax that has "
        "not seen it.",
        "Divide the logits first; the normaliser has to see the tempered logits.",
        WHERE,
    ),
    Mistake(
        "temperature_twice",
        "The logits are divided by the temperature twice.",
        "Once is enough.",
        WHERE,
    ),
    Mistake(
        "softmax_over_time",
        "The softmax runs over time instead of over the vocabulary.",
        "Which axis lists the alternatives among which one token is drawn?",
        WHERE,
    ),
    Mistake(
        "softmax_over_batch",
        "The softmax runs over the batch instead of over the vocabulary.",
        "Which axis lists the alternatives among which one token is drawn?",
        WHERE,
    ),
    Mistake(
        "log_of_softmax",
        "The softmax is formed first and its logarithm taken afterwards: exp() has "
        "overflowed or underflowed by then where logits are large.",
        "Use the log-softmax as one operation, or subtract logsumexp in log space.",
        WHERE,
    ),
    Mistake(
        "global_maximum",
        "One maximum for the whole tensor is subtracted before exp(): positions whose logits are "
        "all far below it underflow, and the logarithm of their sum is infinite.",
        "Each position needs its own maximum, along the vocabulary.",
        WHERE,
    ),
    Mistake(
        "exp_unprotected",
        "exp() is taken of the logits as they are: large ones overflow, low ones underflow, "
        "before the logarithm can undo it.",
        "Use the log-softmax as one operation, or subtract logsumexp in log space.",
        WHERE,
    ),
    Mistake(
        "softmax_twice",
        "The logits are normalised twice: probabilities go into the log-softmax as if they were "
        "logits.",
        "The log-softmax takes the logits themselves.",
        WHERE,
    ),
    Mistake(
        "normaliser_added",
        "The log of the normaliser is added instead of subtracted.",
        "log(a / b) = log a - log b.",
        WHERE,
    ),
    Mistake(
        "mean_for_sum",
        "The normaliser is the mean of the exponentials instead of their sum: every entry is too "
        "large by the log of the vocabulary's size.",
        "exp() of the result, summed over the vocabulary, has to be 1.",
        WHERE,
    ),
    Mistake(
        "no_normaliser",
        "The logit itself is returned: the log of the normaliser is not subtracted.",
        "exp() of the result, summed over the vocabulary, has to be 1.",
        WHERE,
    ),
    Mistake(
        "only_maximum_subtracted",
        "Only the largest logit is subtracted, not the log of the normaliser.",
        "Subtracting the maximum is a step on the way to a stable logsumexp; the log of "
        "the sum is still missing.",
        WHERE,
    ),
    Mistake(
        "normaliser_not_logged",
        "The normaliser itself is subtracted instead of its logarithm.",
        "log(a / b) = log a - log b: the sum of the exponentials needs a log, too.",
        WHERE,
    ),
    Mistake(
        "temperature_not_in_normaliser",
        "The temperature divides the token's logit, but not the logits inside the normaliser.",
        "Divide all logits first; both terms of [MAP-1] see the tempered logits.",
        WHERE,
    ),
    Mistake(
        "temperature_only_in_normaliser",
        "The temperature divides the logits inside the normaliser, but not the token's own logit.",
        "Divide all logits first; both terms of [MAP-1] see the tempered logits.",
        WHERE,
    ),
    Mistake(
        "probabilities",
        "Probabilities are returned instead of log-probabilities.",
        "Every right entry is negative; is yours?",
        WHERE,
    ),
    Mistake(
        "argmax_token",
        "The log-probability of the most likely token is returned instead of that of the "
        "given token.",
        "Pick the entry of the token that was sampled.",
        WHERE,
    ),
    Mistake(
        "shifted",
        "The tokens are shifted by one position inside the function, which also shortens "
        "the result.",
        "logits[:, t] already predicts tokens[:, t]: there is nothing to shift.",
        WHERE,
    ),
    Mistake(
        "shifted_wrapped",
        "Each position is scored with the next position's token: shifted by one.",
        "logits[:, t] already predicts tokens[:, t]: there is nothing to shift.",
        WHERE,
    ),
    Mistake(
        "shifted_late",
        "Each position is scored with the previous position's token: shifted by one.",
        "logits[:, t] already predicts tokens[:, t]: there is nothing to shift.",
        WHERE,
    ),
    Mistake(
        "shifted_padded",
        "The tokens are shifted by one position inside the function, and the first "
        "position is filled with 0.",
        "logits[:, t] already predicts tokens[:, t]: there is nothing to shift.",
        WHERE,
    ),
    Mistake(
        "last_dropped",
        "The last position of each row is dropped.",
        "Every position has a token: keep the shape (batch, time).",
        WHERE,
    ),
    Mistake(
        "first_dropped",
        "The first position of each row is dropped.",
        "Every position has a token: keep the shape (batch, time).",
        WHERE,
    ),
    Mistake(
        "mean_over_vocabulary",
        "The log-probabilities are averaged over the vocabulary instead of picked at the token.",
        "One number per position is looked up, not averaged.",
        WHERE,
    ),
    Mistake(
        "negative",
        "The sign is flipped: this is the cross-entropy, not the log-probability.",
        "A log-probability is at most 0; the minus belongs to the loss.",
        WHERE,
    ),
    Mistake(
        "base_2",
        "The logarithm has base 2: the result is in bits, not in nats.",
        "Use the natural logarithm.",
        WHERE,
    ),
    Mistake(
        "base_10",
        "The logarithm has base 10.",
        "Use the natural logarithm.",
        WHERE,
    ),
    Mistake(
        "entropy_like",
        "Every position gets the average of the log-probabilities under the policy (minus the "
        "entropy), whatever its token is.",
        "Look the entry of the given token up.",
        "00, [MAP-2]",
    ),
    Mistake(
        "sum_over_time",
        "The log-probabilities are summed over time: one number per response instead of "
        "one per token.",
        "Keep the shape (batch, time); what to add up is decided later.",
        WHERE,
    ),
    Mistake(
        "mean_over_time",
        "The log-probabilities are averaged over time: one number per response instead of "
        "one per token.",
        "Keep the shape (batch, time); what to average is decided later.",
        WHERE,
    ),
    Mistake(
        "mean",
        "The log-probabilities are averaged to one number instead of one per token.",
        "Keep the shape (batch, time); what to average is decided later.",
        WHERE,
    ),
    Mistake(
        "keepdim",
        "The result keeps a last axis of size 1 that gather left behind.",
        "Remove the axis you added for gather.",
        WHERE,
    ),
    Mistake(
        "squeezed",
        "Every axis of size 1 is removed from the result, also the batch axis when there is one "
        "row.",
        "Say which axis: squeeze(-1).",
        WHERE,
    ),
    Mistake(
        "detached",
        "The values are right, but no gradient reaches the logits.",
        "Look for detach(), no_grad() or .item() between the logits and the result.",
        "00, [MAP-1]",
    ),
)

QUESTION = Question(
    id="hw1/token_log_probs",
    title="The log-probability of the sampled tokens",
    points=3,
    signature="(logits, tokens, *, temperature=1.0)",
    lecture=WHERE,
    generate=generate,
    reference=token_log_probs,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        "softmax_over_time softmax_over_batch mean_over_vocabulary entropy_like",
        "log_of_softmax no_normaliser only_maximum_subtracted normaliser_not_logged "
        "temperature_not_in_normaliser temperature_only_in_normaliser global_maximum "
        "exp_unprotected softmax_twice normaliser_added mean_for_sum",
        "temperature_multiplied temperature_ignored temperature_after temperature_twice "
        "temperature_after_multiplied temperature_not_in_normaliser temperature_only_in_normaliser",
        # Only float32 tells how the normaliser was computed, and with a second mistake it cannot.
        "log_of_softmax global_maximum exp_unprotected: softmax_over_time softmax_over_batch "
        "probabilities negative base_2 base_10 temperature_multiplied temperature_ignored "
        "temperature_after temperature_after_multiplied temperature_twice argmax_token "
        "shifted_wrapped shifted_late shifted_padded mean_over_vocabulary entropy_like squeezed "
        "shifted last_dropped first_dropped sum_over_time mean_over_time mean keepdim",
        "no_normaliser: entropy_like",
        "no_normaliser softmax_over_time",
        "no_normaliser softmax_over_batch",
        "argmax_token shifted shifted_wrapped shifted_late shifted_padded mean_over_vocabulary",
        "shifted shifted_wrapped shifted_late shifted_padded last_dropped first_dropped",
        "argmax_token shifted shifted_wrapped shifted_late shifted_padded entropy_like",
        "sum_over_time mean_over_time mean keepdim squeezed",
        "probabilities base_2 base_10",
        "only_maximum_subtracted argmax_token",  # zero everywhere
    ),
)
