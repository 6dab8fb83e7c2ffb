"""Log-probabilities of given responses, with gradient (Lecture 12).

The network below the head runs once over each response, and once over each prompt if the prompt
is shared. Only the states that predict a response token reach the head.
"""

from dataclasses import dataclass

import torch
from einops import repeat
from torch import Tensor
from torch.nn import functional as F

from llm_trainer.models import Policy
from llm_trainer.rollout import Prompts
from policy_gradients.logprobs import entropy as entropy_of
from policy_gradients.logprobs import token_log_probs


@dataclass(frozen=True)
class Scores:
    """What the policy says of given responses; 0 on padding, except in `states`."""

    logp: Tensor  # (batch, time) nats, at the sampling temperature
    entropy: Tensor | None  # (batch, time) nats, with gradient, if asked for
    states: Tensor | None  # (batch, time, width), if asked for: what predicts each token


def score(
    policy: Policy,
    prompts: Prompts,
    tokens: Tensor,
    mask: Tensor,
    *,
    group: int,
    temperature: float,
    shared: bool,
    chunk: int,
    entropy: bool = False,
    states: bool = False,
) -> Scores:
    """Log-probabilities of `tokens` under the policy.

    prompts (P, prompt_time); tokens, mask (P·G, time), G = group
    """
    before = response_states(policy, prompts, tokens, mask, group=group, shared=shared)
    with torch.autocast(policy.device.type, policy.dtype, policy.dtype != torch.float32):
        logits = F.linear(before, policy.head_weight, policy.head_bias)
    logits = logits.float()
    logp = token_log_probs(logits, tokens, temperature=temperature).where(mask, 0.0)
    h = entropy_of(logits, temperature=temperature).where(mask, 0.0) if entropy else None
    return Scores(logp, h, before if states else None)


def response_states(
    policy: Policy, prompts: Prompts, tokens: Tensor, mask: Tensor, *, group: int, shared: bool
) -> Tensor:
    """The last hidden states that predict each response token.

    shared: each prompt runs once and its attention cache serves the whole group. The result is
    the plain one up to rounding; the saving is (G − 1)/G of the prompt's work.

    prompts (P, prompt_time); tokens, mask (P·G, time) → (P·G, time, width)
    """
    lengths = repeat(prompts.lengths, "p -> (p g) 1", g=group)
    attention = repeat(prompts.attention, "p t -> (p g) t", g=group)
    # Padding is attended by nobody who matters: real tokens only look back.
    attention = torch.cat([attention, mask.to(attention.dtype)], 1)[:, :-1]
    inputs = tokens[:, :-1]  # the last token predicts nothing
    positions = lengths + torch.arange(inputs.shape[1], device=tokens.device)
    if shared:
        cache = policy.new_cache()
        first = policy.hidden(prompts.tokens, prompts.attention, prompts.positions, cache=cache)
        first = repeat(first[:, -1:], "p 1 w -> (p g) 1 w", g=group)  # predicts the first token
        if inputs.shape[1] == 0:
            return first
        cache.batch_repeat_interleave(group)
        return torch.cat([first, policy.hidden(inputs, attention, positions, cache=cache)], 1)
    whole = torch.cat([repeat(prompts.tokens, "p t -> (p g) t", g=group), inputs], 1)
    positions = torch.cat([repeat(prompts.positions, "p t -> (p g) t", g=group), positions], 1)
    return policy.hidden(whole, attention, positions)[:, -tokens.shape[1] :]
