"""From logits to the log-probabilities of the tokens that were sampled (Lecture 00).

Leaves out: shifting. logits[:, t] must already be the prediction of tokens[:, t].
"""

import torch
from torch import Tensor

from policy_gradients import _checks


def token_log_probs(logits: Tensor, tokens: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Log-probability of each given token under softmax(logits / temperature).

    log π(y_t | s_t) = z_t[y_t] − log Σ_v exp z_t[v],  z = logits / temperature  [MAP-1]

    Through log_softmax, which subtracts the largest logit first and never forms a probability:
    a token of probability e^−200 keeps its log-probability of −200.

    Args:
        logits: (batch, time, vocab) unnormalised scores; logits[:, t] predicts tokens[:, t],
            nothing is shifted here.
        tokens: (batch, time) token ids, integers in 0 … vocab − 1.
        temperature: the temperature the tokens were sampled with. Scoring at another one
            than `logp_old` makes every ratio wrong from the first step on; scoring both wrong
            hides it (Lecture 11).

    Returns:
        (batch, time) natural-log probabilities, nats.

    Raises:
        TypeError, ValueError: wrong dtype or shape, temperature ≤ 0, a token id outside the
            vocabulary (padding included: fill it with any valid id).
    """
    _checks.floats("(batch, time, vocab)", logits=logits)
    _checks.integers("(batch, time)", tokens=tokens)
    if logits.shape[:2] != tokens.shape:
        raise ValueError(
            f"logits (batch, time, vocab) and tokens (batch, time) must agree in batch and time: "
            f"got logits {tuple(logits.shape)}, tokens {tuple(tokens.shape)}"
        )
    vocab = logits.shape[-1]
    if tokens.numel() and not 0 <= tokens.min() <= tokens.max() < vocab:
        raise ValueError(
            f"tokens must lie in 0 … {vocab - 1}, the vocabulary of logits "
            f"{tuple(logits.shape)}: got {int(tokens.min())} … {int(tokens.max())}"
        )
    logp_all = (logits / _checks.knob("temperature", temperature, above=0)).log_softmax(-1)
    return logp_all.gather(-1, tokens.long().unsqueeze(-1)).squeeze(-1)


def entropy(logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Entropy of softmax(logits / temperature) at each position.

    H = −Σ_v π(v) log π(v)  [MAP-2]

    A logit of −inf (a token that may not be sampled) contributes 0, in value and gradient.

    Args:
        logits: (batch, time, vocab) unnormalised scores.
        temperature: divides the logits.

    Returns:
        (batch, time) entropies, nats, between 0 and log vocab.

    Raises:
        TypeError, ValueError: wrong dtype or shape, temperature ≤ 0.
    """
    _checks.floats("(batch, time, vocab)", logits=logits)
    logp = (logits / _checks.knob("temperature", temperature, above=0)).log_softmax(-1)
    logp_finite = torch.where(logp == -torch.inf, 0.0, logp)
    return -(logp.exp() * logp_finite).sum(-1)


def response_mask(tokens: Tensor, *, eos_id: int) -> Tensor:
    """True on the tokens that were really generated: up to and including the first end token.

    The first end token is an action of the policy, the one that decides the length, and must be
    trained; what stands behind it is padding, even where the padding id is the end id. A row
    without an end token (cut off at the length limit) is all True.  [MAP-5]

    Args:
        tokens: (batch, time) token ids of the response only, without the prompt.
        eos_id: id of the end token.

    Returns:
        (batch, time) bool.

    Raises:
        TypeError, ValueError: tokens is not an integer tensor of two axes.
    """
    _checks.integers("(batch, time)", tokens=tokens)
    is_end = (tokens == eos_id).long()
    ends_before = is_end.cumsum(1) - is_end
    return ends_before == 0
