"""Sample responses with our own decoding loop, and keep the log-probability of every token.

Each prompt runs through the network once. Responses to it that have been the same so far are one
row of the network and of its attention cache: rows multiply where responses part and leave where
they end. The sampler's log-probabilities [MAP-1] are of the distribution it really drew from: the
softmax at the sampling temperature, nothing cut off.

Left out: static caches and CUDA graphs. On a GPU a small model waits for its kernels' launches.
"""

import hashlib
import importlib.util
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from llm_trainer.batch import Prompts, Responses, cat_padded
from llm_trainer.config import Config, RunError, require
from llm_trainer.models import Policy
from llm_trainer.oom import Room
from llm_trainer.task import Rewards, Task
from policy_gradients.logprobs import response_mask

LOOK_EVERY = 8  # tokens


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
    # One context for all tokens: autocast keeps the bfloat16 copies of the weights until it ends.
    mixed = policy.dtype != torch.float32
    with torch.autocast(policy.device.type, dtype=policy.dtype, enabled=mixed):
        tokens, logp = decode(
            policy,
            prompts,
            group=group,
            steps=max_new_tokens,
            temperature=temperature,
            generator=generator,
            top_p=top_p,
            merge=policy.device.type == "cpu",
        )
    mask = response_mask(tokens, eos_id=policy.end_id)
    tokens, logp = tokens.masked_fill(~mask, policy.pad_id), logp.masked_fill(~mask, 0.0)
    return Responses(tokens, mask, logp)


def decode(
    policy: Policy,
    prompts: Prompts,
    *,
    group: int,
    steps: int,
    temperature: float,
    generator: torch.Generator | None,
    top_p: float,
    merge: bool,
) -> tuple[Tensor, Tensor]:
    """(tokens, logp), both (P·G, time); what stands after a response's end token means nothing.

    merge: after every token the responses are looked through for those that ended and those that
    are still alike; this is for a CPU, where every row costs. A GPU has rows to spare, and each
    look makes the host wait for it: it looks every LOOK_EVERY tokens, for ended ones only. (That
    leaves one wait per token that is not ours: transformers asks whether anything is padding.)
    """
    batch, device = len(prompts.tokens) * group, policy.device
    tokens = prompts.tokens.new_full((batch, steps), policy.pad_id)
    logp = torch.zeros(batch, steps, device=device)

    cache, attention = policy.new_cache(), prompts.attention
    position = prompts.lengths[:, None]  # (branches, 1) of the next token
    logits = policy.forward(prompts.tokens, attention, prompts.positions, cache=cache, keep=1)
    if not torch.isfinite(logits).all():
        raise RunError("the policy's logits are NaN or infinite: its weights are. Try a smaller lr")
    alive = torch.arange(batch, device=device)  # the responses still being written
    branch = alive // group  # (alive,) the row of the network each of them follows
    ended = torch.zeros_like(alive, dtype=torch.bool)

    for step in range(steps):
        logits = logits[:, -1]  # (branches, vocabulary)
        log_softmax = F.log_softmax(logits / temperature, dim=-1)
        if top_p < 1:
            log_softmax = nucleus(log_softmax, top_p)
        log_softmax = log_softmax[branch]  # (alive, vocabulary)
        chosen = logits.argmax(-1)[branch] if generator is None else draw(log_softmax, generator)
        tokens[alive, step] = chosen
        logp[alive, step] = log_softmax.gather(1, chosen[:, None]).squeeze(1)
        ended |= chosen == policy.end_id
        if step == steps - 1:
            break

        if merge or step % LOOK_EVERY == 0:
            going = (~ended).nonzero().squeeze(1)
            if len(going) == 0:
                break
            alive, ended = alive[going], ended[going]
            parent, chosen, branch = part(branch[going], chosen[going], logits.shape[1], merge)
            if not torch.equal(parent, torch.arange(len(attention), device=device)):
                cache.batch_select_indices(parent)
                attention, position = attention[parent], position[parent]
        attention = F.pad(attention, (0, 1), value=1)
        logits = policy.forward(chosen[:, None], attention, position, cache=cache)
        position = position + 1
    return tokens[:, : step + 1], logp[:, : step + 1]


def part(
    branch: Tensor, chosen: Tensor, vocabulary: int, merge: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Where responses on one branch chose different tokens, the branch parts.

    branch, chosen : (alive,), the branch each response was on and the token it chose there
    returns : (parent, token), both (new branches,), and (alive,) the branch each is on now

    merge: responses that chose alike stay together; otherwise each gets a branch of its own.
    """
    if not merge:
        return branch, chosen, torch.arange(len(branch), device=branch.device)
    both, branch = torch.unique(branch * vocabulary + chosen, return_inverse=True)
    return both // vocabulary, both % vocabulary, branch


def draw(log_softmax: Tensor, generator: torch.Generator) -> Tensor:
    """One token per row, token i with probability p_i: the first of exponential clocks of rate p_i.

    torch.multinomial does the same, but checks its input first and so stops a GPU twice.

    log_softmax (rows, vocabulary), nats → (rows,)
    """
    clocks = torch.empty_like(log_softmax).exponential_(generator=generator)
    return (log_softmax.exp() / clocks).argmax(-1)


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
    room: Room | None = None  # how many prompts at once; None: all, whatever that takes
    top_p: float = 1.0  # below 1 for evaluation only

    def sample(
        self,
        prompts: Prompts,
        *,
        group: int,
        max_new_tokens: int,
        temperature: float,
        generator: torch.Generator | None,
    ) -> Responses:
        """As the function `sample`, in pieces that there is room for."""

        def write(size: int) -> list[Responses]:
            return [
                sample(
                    self.policy,
                    piece,
                    group=group,
                    max_new_tokens=max_new_tokens,
                    temperature=temperature,
                    generator=generator,
                    top_p=self.top_p,
                )
                for piece in prompts.split(size)
            ]

        count = len(prompts.tokens)
        pieces = self.room.run(write, count) if self.room else write(count)
        return Responses(
            cat_padded([piece.tokens for piece in pieces], value=self.policy.pad_id),
            cat_padded([piece.mask for piece in pieces]),
            cat_padded([piece.logp for piece in pieces]),
        )

    def sync(self) -> None:
        pass


def make_sampler(policy: Policy, config: Config) -> Sampler:
    """What `config.sampler` names. vLLM looks after its memory itself."""
    if config.sampler == "vllm":
        from llm_trainer.vllm_rollout import VllmSampler

        return VllmSampler(policy, config)
    return OwnSampler(policy, Room(config.prompts, "sampling", "prompts, group or max_new_tokens"))


def check_sampler(config: Config) -> None:
    """ConfigError if `config.sampler` names a package that is not installed."""
    require(
        config.sampler == "own" or importlib.util.find_spec(config.sampler) is not None,
        f"sampler = {config.sampler!r}: it is not installed; pip install {config.sampler} on a "
        "machine with a GPU, or use own",
    )


def worker_seed(seed: int, rank: int) -> int:
    """A seed of its own for each process of a run; rank 0 keeps the run's.

    seed + rank would not do: two runs with neighbouring seeds would share their samples.
    """
    if rank == 0:
        return seed
    digest = hashlib.sha256(f"{seed} {rank}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1  # below 2⁶³, as torch wants it


# ------------------------------------------------------------------ questions and answers


@dataclass(frozen=True)
class Answers:
    """Responses to some questions, `group` to each: tensors, what they say, what it is worth."""

    prompts: Prompts  # (prompts, prompt_time)
    responses: Responses  # (batch, time)
    texts: list[str]  # (batch,)
    scores: list[Rewards]  # (batch,)


def respond(
    sampler: Sampler,
    task: Task,
    entries: list[dict],
    *,
    group: int,
    max_new_tokens: int,
    temperature: float,
    generator: torch.Generator | None,
) -> Answers:
    """Ask, sample, read and score: what training and evaluation have in common."""
    policy = sampler.policy
    prompts = pad_prompts([policy.prompt(task.question(entry)) for entry in entries], policy)
    responses = sampler.sample(
        prompts,
        group=group,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        generator=generator,
    )
    texts = [policy.text(row) for row in responses.tokens.tolist()]
    ended = (responses.tokens == policy.end_id).any(1).tolist()
    scores = [
        task.score(text, entries[i // group], ended=end)
        for i, (text, end) in enumerate(zip(texts, ended, strict=True))
    ]
    return Answers(prompts, responses, texts, scores)
