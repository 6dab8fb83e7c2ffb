"""Policies small enough that every response can be listed.

| class | parameters | sees the prompt | length |
|---|---|---|---|
| `TabularPolicy` | one table (time, vocab), zero at the start | no | fixed |
| `PromptTabularPolicy` | one such table per prompt | looks it up | fixed |
| `PositionalPolicy` | embedding, encode and decode weights per position | yes | fixed |
| `AutoregressivePolicy` | logits per prefix, zero at the start | if told | up to an end token |

One convention throughout, the one of `policy_gradients`: prompts are (prompts, L); responses are
(batch, time) with batch = prompts * group and a prompt's responses adjacent, so response i belongs
to prompt i // group. The group size is read off the two shapes.

    responses = policy.sample(prompts, group, seed=0)        # (batch, time)
    logp = policy.log_probs(prompts, responses)              # (batch, time), 0 after the end
    mask = policy.mask(responses)                            # (batch, time) bool
    rewards = reward(prompts[:, None], responses.unflatten(0, (-1, group)))   # (prompts, group)

`.double()` gives a float64 policy; `copy.deepcopy(policy)` a frozen reference.
Left out: attention, caches, tokenizers (see `llm_trainer`).
"""

import math

import torch
from torch import Tensor, nn

from policy_gradients.logprobs import response_mask, token_log_probs

_MAX_STATES = 1_000_000


def as_generator(seed: int | torch.Generator | None) -> torch.Generator | None:
    """An int starts a fresh stream, a generator continues one, None is torch's global stream."""
    if seed is None or isinstance(seed, torch.Generator):
        return seed
    return torch.Generator().manual_seed(seed)


def check_prompts(prompts: Tensor) -> Tensor:
    """Return prompts as (prompts, L); one row (L,) counts as one prompt."""
    if not isinstance(prompts, Tensor):
        raise TypeError(f"prompts must be a tensor of token ids, got {type(prompts).__name__}")
    if prompts.is_floating_point() or prompts.is_complex() or prompts.dtype == torch.bool:
        raise TypeError(f"prompts must hold integer token ids, got dtype {prompts.dtype}")
    if prompts.ndim == 1:
        prompts = prompts[None]
    if prompts.ndim != 2 or prompts.numel() == 0:
        raise ValueError(f"prompts must be (prompts, L) and not empty, got {tuple(prompts.shape)}")
    return prompts


def mask_of(responses: Tensor, eos_id: int | None) -> Tensor:
    """(batch, time) bool: true up to and including the first end token [MAP-5]."""
    if eos_id is None:
        return torch.ones_like(responses, dtype=torch.bool)
    return response_mask(responses, eos_id=eos_id)


def group_size(prompts: Tensor, responses: Tensor, length: int) -> int:
    """How many responses each prompt has; raises where the shapes do not fit."""
    if responses.is_floating_point() or responses.dtype == torch.bool:
        raise TypeError(f"responses must hold integer token ids, got {responses.dtype}")
    if responses.ndim != 2 or responses.shape[1] != length:
        raise ValueError(f"responses must be (batch, {length}), got {tuple(responses.shape)}")
    group, rest = divmod(responses.shape[0], prompts.shape[0])
    if rest or not group:
        raise ValueError(
            f"responses {tuple(responses.shape)} must hold the same number of rows for each of "
            f"the {prompts.shape[0]} prompts (batch = prompts * group)"
        )
    return group


class Policy(nn.Module):
    """What all toy policies share; `logits` is the one thing a subclass must define.

    vocab_size : number of token ids, the end token included where there is one
    length     : number of tokens in a response, or the most there can be with an end token
    eos_id     : id of the end token, None where every response has the full length
    """

    def __init__(self, vocab_size: int, length: int, eos_id: int | None = None):
        super().__init__()
        for name, size in (("vocab_size", vocab_size), ("length", length)):
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} must be a positive whole number, got {size!r}")
        if eos_id is not None and not 0 <= eos_id < vocab_size:
            raise ValueError(f"eos_id must lie in 0..{vocab_size - 1}, got {eos_id}")
        self.vocab_size, self.length, self.eos_id = vocab_size, length, eos_id

    def logits(self, prompts: Tensor, responses: Tensor | None = None) -> Tensor:
        """Unnormalised log-probabilities of every token.

        prompts : (prompts, L)   responses : (batch, time), optional where tokens are independent
        returns : (prompts, time, vocab) without responses, (batch, time, vocab) with them;
                  [:, t] is for responses[:, t], given what came before it
        """
        raise NotImplementedError

    def sample(
        self,
        prompts: Tensor,
        group: int = 1,
        *,
        seed: int | torch.Generator | None = None,
        temperature: float = 1.0,
    ) -> Tensor:
        """Draw `group` responses to every prompt from softmax(logits / temperature).

        prompts : (prompts, L)
        returns : (prompts * group, time) int64, a prompt's responses adjacent; no gradient
        """
        _check_sampling(group, temperature)
        with torch.no_grad():
            logits = self.logits(check_prompts(prompts))  # (prompts, time, vocab)
            probs = torch.softmax(logits.flatten(0, 1) / temperature, -1)
            tokens = torch.multinomial(
                probs, group, replacement=True, generator=as_generator(seed)
            )  # (prompts * time, group)
        tokens = tokens.unflatten(0, (-1, self.length))  # (prompts, time, group)
        return tokens.transpose(1, 2).reshape(-1, self.length)

    def log_probs(self, prompts: Tensor, responses: Tensor, *, temperature: float = 1.0) -> Tensor:
        """Log-probability of each token of each response [MAP-1].

        prompts : (prompts, L)   responses : (batch, time), batch a multiple of prompts
        returns : (batch, time) nats, exactly 0 after the first end token, so that the sum over
                  time is the log-probability of the whole response
        """
        logits = self.logits(prompts, responses)
        logp = token_log_probs(logits, responses, temperature=temperature)
        if self.eos_id is None:
            return logp
        return torch.where(self.mask(responses), logp, 0.0)

    def mask(self, responses: Tensor) -> Tensor:
        """(batch, time) bool: true up to and including the first end token [MAP-5]."""
        return mask_of(responses, self.eos_id)

    def _group(self, prompts: Tensor, responses: Tensor) -> int:
        return group_size(prompts, responses, self.length)

    def _per_response(self, logits: Tensor, prompts: Tensor, responses: Tensor | None) -> Tensor:
        """(prompts, time, vocab) -> (batch, time, vocab) when responses are given."""
        if responses is None:
            return logits
        return logits.repeat_interleave(self._group(prompts, responses), 0)


def _check_sampling(group: int, temperature: float) -> None:
    if not isinstance(group, int) or group < 1:
        raise ValueError(f"group must be a positive whole number, got {group!r}")
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be positive and finite, got {temperature!r}")


class TabularPolicy(Policy):
    """One logit per position and token, the same for every prompt: the exact laboratory's policy.

    Formula: pi(y) = prod_t softmax(table[t])[y_t]. Its single parameter `table` is (length,
    vocab_size) and starts at zero, the uniform policy. Lecture 01.
    """

    def __init__(self, vocab_size: int, length: int):
        super().__init__(vocab_size, length)
        self.table = nn.Parameter(torch.zeros(length, vocab_size))

    def logits(self, prompts: Tensor, responses: Tensor | None = None) -> Tensor:
        prompts = check_prompts(prompts)
        logits = self.table.expand(prompts.shape[0], -1, -1)
        return self._per_response(logits, prompts, responses)


class PromptIndex(nn.Module):
    """Finds the row of each prompt in a fixed list of prompts."""

    def __init__(self, prompts: Tensor):
        super().__init__()
        prompts = check_prompts(prompts)
        if prompts.unique(dim=0).shape[0] != prompts.shape[0]:
            raise ValueError("the prompts of a policy with a table per prompt must all differ")
        self.register_buffer("known", prompts.clone())

    def forward(self, prompts: Tensor) -> Tensor:
        if prompts.shape[1] != self.known.shape[1]:
            raise ValueError(
                f"prompts must have length {self.known.shape[1]}, got {tuple(prompts.shape)}"
            )
        same = (prompts[:, None] == self.known).all(-1)  # (prompts, known)
        found = same.any(-1)
        if not bool(found.all()):
            unknown = prompts[~found][0].tolist()
            raise ValueError(f"no table for prompt {unknown}; this policy knows {len(self.known)}")
        return same.long().argmax(-1)


class PromptTabularPolicy(Policy):
    """A table of logits for each prompt of a fixed list: nothing is shared between prompts.

    prompts : (prompts, L) the prompts this policy knows, all different; another one raises
    Its single parameter `table` is (prompts, length, vocab_size), zero at the start. Lecture 02.
    """

    def __init__(self, prompts: Tensor, vocab_size: int, length: int):
        super().__init__(vocab_size, length)
        self.index = PromptIndex(prompts)
        self.table = nn.Parameter(torch.zeros(len(self.index.known), length, vocab_size))

    def logits(self, prompts: Tensor, responses: Tensor | None = None) -> Tensor:
        prompts = check_prompts(prompts)
        return self._per_response(self.table[self.index(prompts)], prompts, responses)


class PositionalPolicy(Policy):
    """The linear encoder-decoder of the sorting lecture: all prompts share its weights.

    Formula: h = sum_l E[x_l] W_l (encode), logits_t = E (h U_t) (decode, embedding tied). Tokens
    are independent given the prompt. Prompt and response have the same length.

    embedding_dim : width of the embedding     seed : of the initial weights
    embedding_std : of the initial embedding; None is embedding_dim ** -0.5, which starts near the
                    uniform policy. 1.0 starts nearly deterministic and often stays there: a
                    sampler that never tries anything else has nothing to learn from

    Parameters: `embedding` (vocab, dim) ~ N(0, embedding_std^2), `encode` and `decode`
    (length, dim, dim) ~ N(0, 1/dim). The model is that of Stanford CS336 (2025), lecture 17, whose
    embedding starts at N(0, 1) and whose printed code returns the decoded vectors instead of the
    logits. Lecture 01.
    """

    def __init__(
        self,
        vocab_size: int,
        length: int,
        *,
        embedding_dim: int = 16,
        embedding_std: float | None = None,
        seed: int = 0,
    ):
        super().__init__(vocab_size, length)
        if not isinstance(embedding_dim, int) or embedding_dim < 1:
            raise ValueError(
                f"embedding_dim must be a positive whole number, got {embedding_dim!r}"
            )
        generator = torch.Generator().manual_seed(seed)
        square = (length, embedding_dim, embedding_dim)
        scale = embedding_dim**-0.5
        std = scale if embedding_std is None else embedding_std
        embedding = torch.randn(vocab_size, embedding_dim, generator=generator)
        self.embedding = nn.Parameter(embedding * std)
        self.encode = nn.Parameter(torch.randn(square, generator=generator) * scale)
        self.decode = nn.Parameter(torch.randn(square, generator=generator) * scale)

    def logits(self, prompts: Tensor, responses: Tensor | None = None) -> Tensor:
        prompts = check_prompts(prompts)
        if prompts.shape[1] != self.length:
            raise ValueError(
                f"prompts must be (prompts, {self.length}), got {tuple(prompts.shape)}"
            )
        if int(prompts.max()) >= self.vocab_size or int(prompts.min()) < 0:
            raise ValueError(f"prompts must hold ids in 0..{self.vocab_size - 1}")
        embedded = self.embedding[prompts]  # (prompts, length, dim)
        hidden = torch.einsum("pld,lde->pe", embedded, self.encode)
        decoded = torch.einsum("pe,led->pld", hidden, self.decode)
        logits = decoded @ self.embedding.T  # (prompts, length, vocab)
        return self._per_response(logits, prompts, responses)


class PrefixIndex(nn.Module):
    """Numbers the states of a tree of responses: what has been written when a token is due.

    Shortest prefix first, in dictionary order. `count` states; `listed` is (count, length - 1)
    int64, the prefix of each, padded with -1. Calling it with responses (batch, time) gives the
    state before each token, (batch, time) int64; after the first end token there is no state, and
    those entries repeat a valid one, to be masked by the caller.

    Raises ValueError for more than a million prefixes.
    """

    def __init__(self, vocab_size: int, length: int, eos_id: int | None):
        super().__init__()
        self.eos_id = eos_id
        self.tokens = [token for token in range(vocab_size) if token != eos_id]
        sizes = [len(self.tokens) ** depth for depth in range(length)]
        self.count = sum(sizes)
        if self.count > _MAX_STATES:
            raise ValueError(
                f"vocab_size={vocab_size}, length={length} has {self.count} prefixes; at most "
                f"{_MAX_STATES} are kept in a table. Use a smaller vocabulary or length"
            )
        starts = torch.tensor([sum(sizes[:depth]) for depth in range(length)])
        self.register_buffer("starts", starts, persistent=False)

    @property
    def listed(self) -> Tensor:
        length, branching = len(self.starts), len(self.tokens)
        rows = torch.full((self.count, length - 1), -1)
        for depth, start in enumerate(self.starts.tolist()):
            place = branching ** torch.arange(depth - 1, -1, -1)
            digits = torch.arange(branching**depth)[:, None] // place % branching
            rows[start : start + branching**depth, :depth] = torch.tensor(
                self.tokens, dtype=torch.long
            )[digits]
        return rows

    def forward(self, responses: Tensor) -> Tensor:
        rank = responses.long()
        if self.eos_id is not None:
            rank = torch.where(responses > self.eos_id, rank - 1, rank)
            alive = (responses == self.eos_id).cumsum(-1) == 0
            rank = torch.where(alive, rank, 0)
        within = torch.zeros_like(rank)
        for t in range(1, responses.shape[1]):
            within[:, t] = within[:, t - 1] * len(self.tokens) + rank[:, t - 1]
        return self.starts + within


class AutoregressivePolicy(Policy):
    """One row of logits per prefix: each token sees all tokens before it, as in a language model.

    vocab_size : number of ids, the end token included
    length     : most tokens in a response, the end token included
    eos_id     : the end token; None for responses that always have the full length
    prompts    : optional (prompts, L); with it every prompt has its own table

    Formula: pi(y) = prod_t softmax(table[state(y_<t)])[y_t] up to and including the first end
    token. Its single parameter `table` is (prompts or 1, states, vocab_size), zero at the start;
    `states` lists the prefix behind each row, shortest first, in dictionary order (-1 = empty).
    Sampled responses are padded with the end token. A response that reaches `length` without an
    end token is cut there. Lectures 05, 06 and 09.

    Raises ValueError for an `eos_id` outside the vocabulary and for more than a million prefixes.
    """

    def __init__(
        self,
        vocab_size: int,
        length: int,
        *,
        eos_id: int | None,
        prompts: Tensor | None = None,
    ):
        super().__init__(vocab_size, length, eos_id)
        self.prefixes = PrefixIndex(vocab_size, length, eos_id)
        self.index = None if prompts is None else PromptIndex(prompts)
        tables = 1 if prompts is None else len(self.index.known)
        self.table = nn.Parameter(torch.zeros(tables, self.prefixes.count, vocab_size))

    @property
    def states(self) -> Tensor:
        """(states, length - 1) int64: the prefix behind each row of the table, padded with -1."""
        return self.prefixes.listed

    def state_ids(self, responses: Tensor) -> Tensor:
        """(batch, time) int64: the row of the table that predicts each token."""
        return self.prefixes(responses)

    def logits(self, prompts: Tensor, responses: Tensor | None = None) -> Tensor:
        if responses is None:
            raise ValueError(
                "an autoregressive policy needs the responses: logits(prompts, responses)"
            )
        prompts = check_prompts(prompts)
        table = self._table_of(prompts, self._group(prompts, responses))  # (batch,)
        return self.table[table[:, None], self.state_ids(responses)]

    def sample(
        self,
        prompts: Tensor,
        group: int = 1,
        *,
        seed: int | torch.Generator | None = None,
        temperature: float = 1.0,
    ) -> Tensor:
        _check_sampling(group, temperature)
        prompts, generator = check_prompts(prompts), as_generator(seed)
        table = self._table_of(prompts, group)
        filler = 0 if self.eos_id is None else self.eos_id
        responses = torch.full((len(table), self.length), filler)
        alive = torch.ones(len(table), dtype=torch.bool)
        for t in range(self.length):
            logits = self.table.detach()[table, self.state_ids(responses)[:, t]]
            probs = torch.softmax(logits / temperature, -1)
            drawn = torch.multinomial(probs, 1, generator=generator)[:, 0]
            responses[:, t] = torch.where(alive, drawn, filler)
            if self.eos_id is not None:
                alive = alive & (drawn != self.eos_id)
        return responses

    def _table_of(self, prompts: Tensor, group: int) -> Tensor:
        """(batch,) which table each response uses."""
        if self.index is None:
            return torch.zeros(prompts.shape[0] * group, dtype=torch.long)
        return self.index(prompts).repeat_interleave(group)
