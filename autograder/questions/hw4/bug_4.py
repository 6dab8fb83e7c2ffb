"""hw4/bug_4: log-probabilities one position out."""

import torch

from autograder.cases import Case
from autograder.questions.base import Question, excluding
from autograder.questions.hw4 import common


def response_log_probs(logits, tokens, *, prompt_length):
    """(batch, time - prompt_length): log-probability of each response token, nats."""
    logp = logits[:, prompt_length - 1 : -1].log_softmax(-1)
    return logp.gather(-1, tokens[:, prompt_length:, None]).squeeze(-1)


def generate(draw, final):
    sizes = (
        [(3, 4, 5, 6), (2, 2, 3, 9), (4, 1, 2, 5)]
        if final
        else [(2, 3, 4, 7), (4, 2, 3, 5), (3, 1, 4, 6)]
    )
    cases = []
    for batch, prompt, response, vocab in sizes:
        time = prompt + response
        cases.append(
            Case(
                name=f"prompts of {prompt} token{'s' * (prompt > 1)}",
                args=(1.5 * draw.normal(batch, time, vocab), draw.integers(vocab, batch, time)),
                knobs={"prompt_length": prompt},
                differentiable=(0,),
                weights=draw.weights(batch, response),
            )
        )
    # exp of the first overflows; softmax of the second rounds all but one token to 0
    large = 120 + 3 * draw.normal(2, 6, 5)
    apart = 30 * torch.tensor([2.0, -2, 1, -1.5, 0]).double() + draw.normal(2, 6, 5)
    for name, logits in (("large logits", large), ("logits far apart", apart)):
        tokens = draw.integers(5, 2, 6)
        tokens[:, 4] = 1
        cases.append(
            Case(
                name=name,
                args=(logits.float(), tokens),
                knobs={"prompt_length": 3},
                differentiable=(0,),
                weights=draw.weights(2, 3).float(),
                stability=True,
            )
        )
    return cases


def buggy(logits, tokens, *, prompt_length, mistakes=frozenset()):
    time = logits.shape[1]
    start = prompt_length
    if "planted" in mistakes:
        columns = range(start, time)
    elif "rolled_forward" in mistakes:
        columns = [(t + 1) % time for t in range(start, time)]
    elif "two_early" in mistakes:
        columns = range(start - 2, time - 2)
    elif "from_the_prompts_start" in mistakes:
        columns = range(time - start)
    elif "reversed" in mistakes:
        columns = range(time - 2, start - 2, -1)
    elif "prompt_end_for_all" in mistakes:
        columns = [start - 1] * (time - start)
    else:
        columns = range(start - 1, time - 1)
    used = logits[:, list(columns)]
    chosen = tokens[:, start:]
    if "token_before" in mistakes:
        chosen = tokens[:, start - 1 : -1]
    if "greedy" in mistakes:
        chosen = used.argmax(-1)
    if "no_normaliser" in mistakes:
        logp = used
    elif "unstable" in mistakes:
        logp = used - used.exp().sum(-1, keepdim=True).log()
    elif "log_of_softmax" in mistakes:
        logp = used.softmax(-1).log()
    elif "kept_from_zero" in mistakes:
        logp = (used.softmax(-1) + 1e-8).log()
    elif "normalised_over_columns" in mistakes:
        logp = used - logits.logsumexp(1, keepdim=True)
    elif "normalised_over_time" in mistakes:
        logp = used - used.logsumexp(1, keepdim=True)
    else:
        logp = used - used.logsumexp(-1, keepdim=True)
    picked = logp.gather(-1, chosen[..., None]).squeeze(-1)
    if "probabilities" in mistakes:
        picked = picked.exp()
    if "last_lost" in mistakes:
        picked = picked[:, :-1]
    elif "prompt_too" in mistakes:
        whole = logits.log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None]).squeeze(-1)
        picked = whole
    elif "summed" in mistakes:
        picked = picked.sum(1)
    if "negated" in mistakes:
        picked = -picked
    return picked.detach() if "detached" in mistakes else picked


WHERE = "the statement, [SIL-5]"
TEXTS = {
    "planted": (
        "The planted bug is still there: each token is scored with the logits that follow it.",
        "The logits in column t were computed after token t; they predict the next one.",
    ),
    "rolled_forward": (
        "The shift goes the wrong way: each token is scored with logits one column behind it.",
        "The logits one column before a token predict it: P - 1 to T - 2.",
    ),
    "two_early": (
        "Each token is scored with logits two columns before it.",
        "The logits one column before a token predict it.",
    ),
    "from_the_prompts_start": (
        "The logits are taken from the beginning of the prompt.",
        "The first response token is predicted by the prompt's last column.",
    ),
    "reversed": (
        "The columns of the logits run backwards.",
        "Slice logits and tokens in the same direction.",
    ),
    "prompt_end_for_all": (
        "All tokens are scored with the logits of the prompt's last column.",
        "Each response token is predicted by the column before it.",
    ),
    "token_before": (
        "The tokens are shifted: each column scores the token that it has just read.",
        "Leave the tokens from prompt_length on; shift the logits.",
    ),
    "greedy": (
        "The most likely token is scored instead of the one that was sampled.",
        "Pick with the ids in tokens.",
    ),
    "no_normaliser": (
        "The logits are returned as they are: the normaliser is missing.",
        "A log-probability is a logit minus the logsumexp over the vocabulary.",
    ),
    "unstable": (
        "exp of the logits is computed on its own: in float32 it overflows.",
        "log_softmax subtracts the largest logit first.",
        "11, [BUG-4]",
    ),
    "log_of_softmax": (
        "The log is taken of a probability that float32 has already rounded to 0.",
        "log_softmax never forms the probability.",
        "11, [BUG-4]",
    ),
    "kept_from_zero": (
        "A small number keeps the probability away from 0 before the log: very unlikely tokens get "
        "a log-probability that is too high.",
        "log_softmax never forms the probability and needs no such number.",
        "11, [BUG-4]",
    ),
    "normalised_over_columns": (
        "The logits are normalised over the positions instead of the vocabulary.",
        "log_softmax over the last axis.",
    ),
    "normalised_over_time": (
        "The logits are normalised over the positions instead of the vocabulary.",
        "log_softmax over the last axis.",
    ),
    "probabilities": (
        "Probabilities are returned instead of their logarithms.",
        "No exp at the end.",
    ),
    "last_lost": (
        "The last response token is missing: it is usually the end token.",
        "The result has time - prompt_length columns.",
    ),
    "prompt_too": (
        "The prompt's tokens are scored as well.",
        "The result has the columns of the response only.",
    ),
    "summed": (
        "The tokens of a response are added up.",
        "One number per token.",
    ),
    "negated": (
        "The sign is flipped: this is a cross-entropy.",
        "Log-probabilities are never positive.",
    ),
    "detached": (
        "The result has no graph: nothing can be learned from it.",
        "No detach(), no torch.no_grad().",
    ),
}  # fmt: skip
MISTAKES = common.listed(TEXTS, WHERE)

COLUMNS = "planted rolled_forward two_early from_the_prompts_start reversed prompt_end_for_all"
NORM = (
    "no_normaliser unstable log_of_softmax kept_from_zero normalised_over_columns "
    "normalised_over_time"
)
SHAPES = "last_lost prompt_too summed"
QUESTION = Question(
    id="hw4/bug_4",
    title="Bug 4: every ratio is 1, and the entropy is absurd",
    points=2,
    signature="(logits, tokens, *, prompt_length)",
    lecture=WHERE,
    generate=generate,
    reference=response_log_probs,
    buggy=buggy,
    mistakes=MISTAKES,
    excludes=excluding(
        COLUMNS,
        NORM,
        SHAPES,
        "token_before greedy",
        f"prompt_too: {COLUMNS} {NORM} token_before greedy probabilities",
        "normalised_over_time: prompt_end_for_all",
        "summed probabilities negated",
    ),
)
