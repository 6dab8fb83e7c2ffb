"""Log-probabilities of given responses, with gradient, and never all logits at once (Lecture 12).

A float32 logit for every word of Qwen3's vocabulary, at each of 4 × 512 tokens, takes 1.2 GB, and
backpropagating through log_softmax takes that several times over. What is wanted is one number a
token. So the network below the head runs once, the states that predict a response token are picked
out (padding and prompts never reach the head), and the head runs on `chunk` of them at a time. Only
one chunk of logits is alive; backward computes each chunk again. What a prompt was answered several
times over is scored once.

All weights are used between the entry and the exit of `score`, so that a wrapper around one forward
call (FSDP, in `sharded.py`) can gather them there.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from llm_trainer.models import Policy
from llm_trainer.rollout import Prompts
from policy_gradients.logprobs import entropy as entropy_of
from policy_gradients.logprobs import token_log_probs


class Scores(NamedTuple):
    """What a policy says of given responses."""

    logp: Tensor  # (batch, time) nats, at the sampling temperature; 0 on padding
    entropy: Tensor | None  # (batch, time) nats, with gradient; 0 on padding; if asked for
    states: Tensor | None  # (batch, time, width): what predicts each token; if asked for


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
    """log π(y_t | s_t) = z_t[y_t] − log Σ_v exp z_t[v],  z = logits / temperature  [MAP-1]

    H_t = −Σ_v π(v) log π(v) where asked for  [MAP-2]. Equal to `token_log_probs` and `entropy` of
    the model's logits up to rounding, in value and gradient; no second derivative.

    Args:
        prompts, tokens, mask: (P, prompt_time); (P·G, time); true on response tokens, (P·G, time).
        group: G, responses per prompt; those to one prompt are neighbours.
        shared: run each prompt once for its group.
        chunk: tokens whose logits are held at once.

    Raises:
        RuntimeError: a second derivative is asked for (create_graph=True).
    """
    kept, back, group = distinct(prompts, tokens, mask, group)
    tokens, mask = tokens[kept], mask[kept]  # (distinct, time)
    before = response_states(policy, prompts, tokens, mask, group=group, shared=shared)
    rows = mask.flatten().nonzero().squeeze(1)  # (tokens,): where something is to be scored
    picked, said = before.flatten(0, 1).index_select(0, rows), tokens.flatten()[rows]
    if policy.head_is_plain:
        picked, weight, bias = picked.to(policy.dtype), policy.head_weight, policy.head_bias
        values = HeadLogProbs.apply(picked, weight, bias, said, temperature, chunk, entropy)
    else:
        values = own_head_log_probs(policy, picked, said, temperature, chunk, entropy)

    def in_place(value: Tensor) -> Tensor:  # (tokens,) → (batch, time)
        return torch.zeros_like(mask, dtype=value.dtype).masked_scatter(mask, value)[back]

    logp, h = values
    return Scores(
        in_place(logp), in_place(h) if entropy else None, before[back] if states else None
    )


def distinct(
    prompts: Prompts, tokens: Tensor, mask: Tensor, group: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Short answers repeat, and a confident policy's most of all: each is scored once per prompt.

    returns : one row of each, (distinct,), by prompt; which of them each response is, (batch,);
    how many each prompt has, (prompts,)
    """
    row = torch.arange(len(tokens), device=tokens.device)  # (batch,)
    said = torch.cat([row[:, None] // group, tokens.masked_fill(~mask, -1)], 1)
    found, back = torch.unique(said, dim=0, return_inverse=True)
    kept = row.new_zeros(len(found)).scatter(0, back, row)
    return kept, back, torch.bincount(found[:, 0], minlength=len(prompts.tokens))


def response_states(
    policy: Policy,
    prompts: Prompts,
    tokens: Tensor,
    mask: Tensor,
    *,
    group: int | Tensor,
    shared: bool,
) -> Tensor:
    """The last hidden states that predict each response token.

    shared: each prompt runs once and its attention cache serves the whole group. The result is
    the plain one up to rounding; the saving is (G − 1)/G of the prompt's work.
    group: responses per prompt; (prompts,) where they have unequally many.

    prompts (P, prompt_time); tokens, mask (batch, time) → (batch, time, width)
    """
    lengths = prompts.lengths.repeat_interleave(group)[:, None]
    attention = prompts.attention.repeat_interleave(group, 0)
    # Padding is attended by nobody who matters: real tokens only look back.
    attention = torch.cat([attention, mask.to(attention.dtype)], 1)[:, :-1]
    inputs = tokens[:, :-1]  # the last token predicts nothing
    positions = lengths + torch.arange(inputs.shape[1], device=tokens.device)
    if shared:
        # One context for both passes: they keep the same bfloat16 copies of the weights.
        with torch.autocast(policy.device.type, policy.dtype, policy.dtype != torch.float32):
            cache = policy.new_cache()
            first = policy.hidden(prompts.tokens, prompts.attention, prompts.positions, cache=cache)
            first = first[:, -1:].repeat_interleave(group, 0)  # predicts the first token
            if inputs.shape[1] == 0:
                return first
            cache.batch_repeat_interleave(group)
            return torch.cat([first, policy.hidden(inputs, attention, positions, cache=cache)], 1)
    whole = torch.cat([prompts.tokens.repeat_interleave(group, 0), inputs], 1)
    positions = torch.cat([prompts.positions.repeat_interleave(group, 0), positions], 1)
    return policy.hidden(whole, attention, positions)[:, -tokens.shape[1] :]


class HeadLogProbs(torch.autograd.Function):
    """(log π of each token, its entropy or None) of a linear head, chunk by chunk.

    apply(states (tokens, width), weight (vocabulary, width), bias (vocabulary,) or None,
    tokens (tokens,), temperature, chunk, entropy: bool) → (tokens,), (tokens,) or None

    The head multiplies in the dtype of `states`; everything after it, and the sum over chunks of
    the weight's gradient, is at least float32. With g and h the gradients that arrive,

        ∂/∂z_v = g (1[v = y] − π_v) − h π_v (log π_v + H),  z = (W·states + b) / temperature
    """

    @staticmethod
    def forward(ctx, states, weight, bias, tokens, temperature, chunk, entropy):
        logp, log_total = torch.empty(2, len(states), dtype=wide(states), device=states.device)
        h = torch.empty_like(logp) if entropy else None
        for rows, z in chunks_of_logits(states, weight, bias, temperature, chunk):
            top = z.amax(1, keepdim=True)
            z -= top
            chosen = z.gather(1, tokens[rows, None])
            if entropy:
                p = z.exp()
                total = p.sum(1, keepdim=True)
                h[rows] = (total.log() - p.mul_(z).sum(1, keepdim=True) / total).squeeze(1)
            else:
                total = z.exp_().sum(1, keepdim=True)
            logp[rows] = (chosen - total.log()).squeeze(1)
            log_total[rows] = (top + total.log()).squeeze(1)
        ctx.save_for_backward(states, weight, bias, tokens, log_total, h)
        ctx.temperature, ctx.chunk = temperature, chunk
        return logp, h

    @staticmethod
    def backward(ctx, to_logp, to_entropy):
        if torch.is_grad_enabled():  # by create_graph=True
            raise RuntimeError(
                "scores can only be differentiated once (they are computed in place): drop "
                "create_graph, or use token_log_probs of policy.forward"
            )
        states, weight, bias, tokens, log_total, h = ctx.saved_tensors
        for_states, for_weight, for_bias = ctx.needs_input_grad[:3]
        d_states = torch.empty_like(states) if for_states else None
        d_weight = torch.zeros_like(weight, dtype=wide(states)) if for_weight else None
        d_bias = torch.zeros_like(bias, dtype=wide(states)) if for_bias else None
        weight = weight.to(states.dtype)
        for rows, z in chunks_of_logits(states, weight, bias, ctx.temperature, ctx.chunk):
            g = to_logp[rows, None] / ctx.temperature
            z -= log_total[rows, None]  # log π
            if h is None:
                z.exp_().mul_(-g)
            else:
                p = z.exp()
                to_h = to_entropy[rows, None] / ctx.temperature
                z.add_(h[rows, None]).mul_(to_h).add_(g).mul_(p).neg_()
            z.scatter_add_(1, tokens[rows, None], g)  # now z is the gradient of the logits
            if for_bias:
                d_bias += z.sum(0)
            z = z.to(states.dtype)
            if for_states:
                torch.mm(z, weight, out=d_states[rows])
            if for_weight and d_weight.dtype == z.dtype:
                d_weight.addmm_(z.T, states[rows])
            elif for_weight:
                d_weight += z.T @ states[rows]
        return d_states, d_weight, d_bias, None, None, None, None


def wide(tensor: Tensor) -> torch.dtype:
    """Its dtype, or float32 if that is wider."""
    return torch.promote_types(tensor.dtype, torch.float32)


def chunks_of_logits(
    states: Tensor, weight: Tensor, bias: Tensor | None, temperature: float, chunk: int
) -> Iterator[tuple[slice, Tensor]]:
    """Which tokens, and their logits / temperature, (at most chunk, vocabulary), to be overwritten.

    The next chunk lies in the same memory: fresh memory of this size costs as much as the product.
    """
    weight = weight.to(states.dtype)
    bias = None if bias is None else bias.to(states.dtype)
    memory = states.new_empty(min(chunk, len(states)), len(weight))
    for start in range(0, len(states), chunk):
        rows = slice(start, min(start + chunk, len(states)))
        z = memory[: rows.stop - start]
        torch.mm(states[rows], weight.T, out=z)
        if bias is not None:
            z += bias
        z = z.to(wide(z))
        if temperature != 1:
            z /= temperature
        yield rows, z


def own_head_log_probs(
    policy: Policy, states: Tensor, tokens: Tensor, temperature: float, chunk: int, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """The same as `HeadLogProbs` for a head that does more than multiply: slower, as lean.

    states (tokens, width), tokens (tokens,) → (tokens,), (tokens,) or None
    """

    def values(states: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        logits = policy.logits(states)[None]
        h = entropy_of(logits, temperature=temperature)[0] if entropy else None
        return token_log_probs(logits, tokens[None], temperature=temperature)[0], h

    pieces = [
        checkpoint(values, *piece, use_reentrant=False)
        for piece in zip(states.split(chunk), tokens.split(chunk), strict=True)
    ]
    logp, h = zip(*pieces, strict=True)
    return torch.cat(logp), torch.cat(h) if entropy else None
