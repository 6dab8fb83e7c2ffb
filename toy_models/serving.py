"""What makes a sampler fast, in closed form: lengths, shared prefixes, packing, speculation.

    lengths = Lengths(median=400, sigma=0.8, limit=2000)
    lengths.mean, lengths.expected_max(64)                 # why a batch waits for its longest
    prefill_saved(group=8)                                 # 7/8: a prompt is read once
    first_fit_decreasing([700, 300, 600, 400], capacity=1000)
    expected_tokens_per_pass(0.8, draft=4)                 # speculative decoding

Every function is a count or an exact expectation; times live in `actor_learner`, which takes
`Lengths` from here. Left out: attention's growing cost along a sequence, kernels, and quality lost
by approximate tricks (none here is approximate). Lecture 15.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

Prefix = tuple[int, ...]
Model = Callable[[Prefix], Tensor]  # what has been written -> (vocab,) probabilities of the next


def _check_count(name: str, value: int, least: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


# --- how long answers are -----------------------------------------------------------------------


@dataclass(frozen=True)
class Lengths:
    """Lengths of answers in tokens: log-normal, rounded up, cut at a limit.

    P(length <= l) = Phi(ln(l / median) / sigma) for l < limit, and 1 at the limit, where all
    longer answers end too. Most answers are short and a few are very long; sigma = 0 makes all of
    them `median` tokens long. Raises ValueError for a median outside 1..limit or sigma < 0.
    """

    median: int = 400
    sigma: float = 0.8
    limit: int = 2000

    def __post_init__(self) -> None:
        _check_count("limit", self.limit)
        _check_count("median", self.median)
        if self.median > self.limit:
            raise ValueError(f"median={self.median} must not be above limit={self.limit}")
        if not (self.sigma >= 0 and math.isfinite(self.sigma)):
            raise ValueError(f"sigma must be at least 0 and finite, got {self.sigma!r}")

    @cached_property
    def cdf(self) -> Tensor:
        """(limit + 1,) float64: P(length <= l) for l = 0 .. limit."""
        lengths = torch.arange(self.limit + 1, dtype=torch.float64)
        if self.sigma == 0:
            return (lengths >= self.median).double()
        cdf = torch.special.ndtr((lengths / self.median).log() / self.sigma)
        cdf[-1] = 1.0
        return cdf

    @property
    def mean(self) -> float:
        """Expected length, tokens."""
        return self.expected_max(1)

    @property
    def share_cut(self) -> float:
        """Share of answers that would have been longer than the limit."""
        if self.sigma == 0:
            return 0.0
        return float(
            torch.special.ndtr(
                torch.tensor(-math.log(self.limit / self.median)).double() / self.sigma
            )
        )

    def expected_max(self, n: int) -> float:
        """Expected length of the longest of n independent answers, tokens.

        Formula: sum_{l=0}^{limit-1} (1 - P(length <= l)^n), the tail sum of the maximum; exact.
        """
        _check_count("n", n)
        return float((1 - self.cdf[:-1] ** n).sum())

    def sample(self, n: int, *, seed: int | torch.Generator) -> list[int]:
        """n independent lengths; the same seed, the same lengths."""
        dice = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
        u = torch.rand(n, dtype=torch.float64, generator=dice)
        return torch.searchsorted(self.cdf, u).clamp(1, self.limit).tolist()


# --- prompts read once --------------------------------------------------------------------------


def prefill_tokens(*, prompts: int, group: int, prompt_tokens: int, shared: bool) -> int:
    """Prompt tokens the sampler reads for `group` answers to each prompt."""
    return prompts * prompt_tokens * (1 if shared else group)


def prefill_saved(*, group: int) -> float:
    """Share of the prompt tokens that need not be read when a group shares its prompt: (G-1)/G."""
    _check_count("group", group)
    return (group - 1) / group


def work_saved(*, group: int, prompt_tokens: float, answer_tokens: float) -> float:
    """The same saving as a share of all tokens, prompt and answer: (G-1)/G · p / (p + a).

    A token read and a token written count alike here, though reading is far cheaper per token
    (a whole prompt goes through the network at once): an upper bound on the time saved.
    """
    return prefill_saved(group=group) * prompt_tokens / (prompt_tokens + answer_tokens)


# --- unequal lengths in one batch ---------------------------------------------------------------


def padding_share(batches: Sequence[Sequence[int]]) -> float:
    """Share of the computed positions that are padding, each batch padded to its longest row."""
    computed = sum(len(batch) * max(batch) for batch in batches)
    return 1 - sum(map(sum, batches)) / computed


def fixed_batches(lengths: Sequence[int], size: int) -> list[list[int]]:
    """`size` answers a batch, in the order given."""
    _check_count("size", size)
    return [list(lengths[i : i + size]) for i in range(0, len(lengths), size)]


def batches_by_tokens(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Dynamic batches: sorted by length, each as many rows as fit the padded budget.

    budget : most positions a batch may have, rows x longest row, tokens
    Raises ValueError for an answer longer than the budget.
    """
    _check_fits(lengths, budget, "budget")
    batches: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        if batches and (len(batches[-1]) + 1) * batches[-1][0] <= budget:
            batches[-1].append(length)
        else:
            batches.append([length])
    return batches


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Packing: several answers in one row, longest first, each into the first row with room.

    A mask keeps the answers of a row from seeing each other. First-fit-decreasing never needs more
    than 11/9 of the fewest rows possible plus 6/9 (Dósa 2007).

    capacity : tokens in a row     returns : the lengths in each row
    Raises ValueError for an answer longer than a row.
    """
    _check_fits(lengths, capacity, "capacity")
    rows: list[list[int]] = []
    room: list[int] = []
    for length in sorted(lengths, reverse=True):
        row = next((i for i, free in enumerate(room) if free >= length), len(rows))
        if row == len(rows):
            rows.append([])
            room.append(capacity)
        rows[row].append(length)
        room[row] -= length
    return rows


def packing_waste(rows: Sequence[Sequence[int]], capacity: int) -> float:
    """Share of the positions of packed rows that stay empty."""
    return 1 - sum(map(sum, rows)) / (len(rows) * capacity)


def _check_fits(lengths: Sequence[int], room: int, name: str) -> None:
    if not lengths:
        raise ValueError("lengths is empty: there is nothing to batch")
    if max(lengths) > room:
        raise ValueError(f"the longest answer has {max(lengths)} tokens, more than {name}={room}")


# --- memory -------------------------------------------------------------------------------------


def slots_in_memory(
    memory: float, *, tokens: float, layers: int, kv_heads: int, head_dim: int, number: int = 2
) -> int:
    """How many answers can be written at once before the keys and values fill the memory.

    memory : bytes left for the cache     tokens : kept per answer, prompt included; the limit where
    room is reserved in advance, the mean where it is handed out in pages as answers grow
    number : bytes of a number, 2 in bf16.  A token keeps 2 · layers · kv_heads · head_dim numbers.
    """
    return int(memory // (2 * layers * kv_heads * head_dim * number * tokens))


# --- speculative decoding -----------------------------------------------------------------------


def acceptance(target: Tensor, draft: Tensor) -> float:
    """Probability that a drafted token is kept: sum_x min(p(x), q(x)) = 1 - TV(p, q).

    target, draft : (vocab,) probabilities p and q.  Leviathan et al. 2023 (arXiv 2211.17192).
    """
    return float(torch.minimum(target, draft).sum())


def expected_tokens_per_pass(alpha: float, *, draft: int) -> float:
    """Tokens written per pass of the large model: (1 - α^(k+1)) / (1 - α), k = `draft`.

    α is the probability that a drafted token is kept, the same for each and independent. A pass
    writes the kept tokens and one more of its own: 1 at α = 0, k + 1 at α = 1. Leviathan et al.
    2023 (arXiv 2211.17192), eq. 1.
    """
    _check_count("draft", draft, 0)
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is a probability, got {alpha!r}")
    return sum(alpha**i for i in range(draft + 1))


def speculative_pass(target: Model, draft: Model, k: int, prefix: Prefix = ()) -> dict:
    """Everything one pass can write, with its exact probability: {tokens: probability}.

    The small model proposes up to k tokens x ~ q; each is kept with probability min(1, p/q). At the
    first refusal the large model writes one token from max(p - q, 0), normalised, and the pass
    ends; if all are kept it adds one from p. By enumeration, V^(k+1) leaves at most.
    """
    p = target(prefix)
    law: dict[Prefix, float] = {}
    if k == 0:
        return {(x,): float(p[x]) for x in range(len(p)) if p[x] > 0}
    q = draft(prefix)
    kept = torch.minimum(p, q)
    rest = (p - q).clamp(min=0)  # sums to the probability of a refusal
    for x in range(len(p)):
        if rest[x] > 0:
            law[x,] = law.get((x,), 0.0) + float(rest[x])
        if kept[x] > 0:
            for tail, chance in speculative_pass(target, draft, k - 1, (*prefix, x)).items():
                law[x, *tail] = law.get((x, *tail), 0.0) + float(kept[x]) * chance
    return law


def speculative_law(target: Model, draft: Model, k: int, *, tokens: int) -> dict:
    """Law of the first `tokens` tokens that pass after pass writes: {tokens: probability}.

    Equal to the large model's own law, whatever the small model proposes: that is the point.
    """
    law: dict[Prefix, float] = {}
    open_ = {(): 1.0}
    while open_:
        prefix, mass = open_.popitem()
        for tail, chance in speculative_pass(target, draft, k, prefix).items():
            text = (*prefix, *tail)[:tokens]
            where = law if len(text) == tokens else open_
            where[text] = where.get(text, 0.0) + mass * chance
    return law


def speculative_sample(
    target: Model, draft: Model, k: int, *, passes: int, seed: int
) -> list[list[int]]:
    """The same by drawing: what each of `passes` passes wrote, each with the text so far before it.

    Text is kept from pass to pass, so a model may look back.
    """
    dice = torch.Generator().manual_seed(seed)
    text: Prefix = ()
    written = []
    for _ in range(passes):
        new: list[int] = []
        for _ in range(k):
            p, q = target((*text, *new)), draft((*text, *new))
            x = int(torch.multinomial(q, 1, generator=dice))
            if torch.rand((), generator=dice) * q[x] >= p[x]:
                new.append(int(torch.multinomial((p - q).clamp(min=0), 1, generator=dice)))
                break
            new.append(x)
        else:
            new.append(int(torch.multinomial(target((*text, *new)), 1, generator=dice)))
        text = (*text, *new)
        written.append(new)
    return written
