"""Sample responses with our own decoding loop, and keep the log-probability of every token.

Each prompt runs through the network once; its attention cache is then repeated for the G members
of its group. Rows that have ended leave the batch. The sampler's log-probabilities [MAP-1] are of
the distribution it really drew from: the softmax at the sampling temperature, nothing cut off.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from einops import repeat
from torch import Tensor
from torch.nn import functional as F

from llm_trainer.config import Config, RunError, require
from llm_trainer.models import Policy
from policy_gradients.logprobs import response_mask


@dataclass
class Prompts:
    """P prompts, padded on the left so that all responses start in one column."""

    tokens: Tensor  # (prompts, prompt_time)
    attention: Tensor  # (prompts, prompt_time), 1 on real tokens

    @property
    def positions(self) -> Tensor:
        """(prompts, prompt_time): 0, 1, 2, … from the first real token on."""
        return (self.attention.cumsum(1) - 1).clamp(min=0)

    @property
    def lengths(self) -> Tensor:
        """(prompts,)"""
        return self.attention.sum(1)

    def __getitem__(self, rows) -> "Prompts":
        return Prompts(self.tokens[rows], self.attention[rows])


@dataclass
class Responses:
    """B = P·G responses; those to one prompt are neighbours."""

    tokens: Tensor  # (batch, time), pad after the first end token
    mask: Tensor  # (batch, time), 1 up to and including the first end token
    logp: Tensor  # (batch, time), the sampler's log-probabilities in nats, 0 on padding


def pad_prompts(prompts: list[list[int]], policy: Policy) -> Prompts:
    """Token lists → left-padded tensors on the policy's device."""
    width = max(len(ids) for ids in prompts)
    tokens = [[policy.pad_id] * (width - len(ids)) + ids for ids in prompts]
    attention = [[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts]
    return Prompts(
        torch.tensor(tokens, device=policy.device), torch.tensor(attention, device=policy.device)
    )


@torch.no_grad()
def sample(
    policy: Policy,
    prompts: Prompts,
    *,
    group: int,
    max_new_tokens: int,
    temperature: float,
    generator: torch.Generator | None,
    top_p: float = 1.0,
) -> Responses:
    """`group` responses per prompt. `generator=None` decodes greedily (then logp is meaningless).

    top_p < 1, for evaluation only, draws from the fewest most likely tokens whose probabilities
    sum to top_p or more; log-probabilities are then of that cut and renormalised distribution.

    Shapes: prompts (P, prompt_time) → responses (P·G, time), time ≤ max_new_tokens.
    Raises RunError for weights that are no longer finite.
    """
    batch = len(prompts.tokens) * group
    tokens = prompts.tokens.new_full((batch, max_new_tokens), policy.pad_id)
    logp = torch.zeros(batch, max_new_tokens, device=policy.device)

    cache = policy.new_cache()
    logits = policy.forward(
        prompts.tokens, prompts.attention, prompts.positions, cache=cache, keep=1
    )[:, -1]  # (prompts, vocabulary): each prompt once
    if not torch.isfinite(logits).all():
        raise RunError("the policy's logits are NaN or infinite: its weights are. Try a smaller lr")
    cache.batch_repeat_interleave(group)
    logits = repeat(logits, "p v -> (p g) v", g=group)
    attention = repeat(prompts.attention, "p t -> (p g) t", g=group)
    position = repeat(prompts.lengths, "p -> (p g) 1", g=group)
    alive = torch.arange(batch, device=policy.device)  # which rows are still being written

    for step in range(max_new_tokens):
        log_softmax = F.log_softmax(logits / temperature, dim=-1)  # (alive, vocabulary)
        if top_p < 1:
            log_softmax = nucleus(log_softmax, top_p)
        if generator is None:
            chosen = logits.argmax(-1)
        else:
            chosen = torch.multinomial(log_softmax.exp(), 1, generator=generator).squeeze(1)
        tokens[alive, step] = chosen
        logp[alive, step] = log_softmax.gather(1, chosen[:, None]).squeeze(1)

        going = (chosen != policy.end_id).nonzero().squeeze(1)
        if len(going) == 0 or step == max_new_tokens - 1:
            break
        if len(going) < len(alive):  # finished rows leave
            cache.batch_select_indices(going)
            alive, chosen = alive[going], chosen[going]
            attention, position = attention[going], position[going]
        attention = F.pad(attention, (0, 1), value=1)
        logits = policy.forward(chosen[:, None], attention, position, cache=cache)[:, -1]
        position = position + 1

    time = step + 1
    tokens, logp = tokens[:, :time], logp[:, :time]
    return Responses(tokens, response_mask(tokens, eos_id=policy.end_id), logp)


def nucleus(log_softmax: Tensor, top_p: float) -> Tensor:
    """Keep the fewest most likely tokens that hold at least `top_p`, renormalised; −∞ elsewhere.

    log_softmax (rows, vocabulary), nats → the same shape. Holtzman et al. 2020, equation 2.
    """
    values, order = log_softmax.sort(-1, descending=True)
    before = values.exp().cumsum(-1) - values.exp()  # probability of all likelier tokens
    values = values.masked_fill(before >= top_p, -torch.inf)
    cut = torch.full_like(log_softmax, -torch.inf).scatter(-1, order, values)
    return cut.log_softmax(-1)


class Sampler(Protocol):
    """Who writes the responses. `policy` is the one that is being trained."""

    policy: Policy

    def sample(
        self,
        prompts: Prompts,
        *,
        group: int,
        max_new_tokens: int,
        temperature: float,
        generator: torch.Generator,
    ) -> Responses: ...

    def sync(self) -> None:
        """Take over the policy's present weights; called before each step samples."""


@dataclass(frozen=True)
class OwnSampler:
    """The loop above, on the policy's own weights: there is nothing to synchronise."""

    policy: Policy

    def sample(self, prompts: Prompts, **settings) -> Responses:
        return sample(self.policy, prompts, **settings)

    def sync(self) -> None:
        pass


def make_sampler(policy: Policy, config: Config) -> Sampler:
    """What `config.sampler` names. Raises ConfigError for vllm: it is not supported yet."""
    require(config.sampler == "own", "sampler = 'vllm': not supported yet; use own")
    return OwnSampler(policy)
