"""The sorting task: the smallest problem in which a score, not an answer, is given.

A prompt is a row of L numbers from 0..V-1; the right response is the same row in order. Three
rewards judge a response, all vectorised over any leading axes:

- `inclusion_ordering_reward`: partial credit, 0 .. 2L-1, with a loophole worth studying;
- `position_match_reward`: partial credit, 0 .. L;
- `sorted_reward`: 1 when the response is exactly right, else 0 (`is_sorted` as a number).

With an end token there is a fourth, `sort_then_end_reward`: position match and a point for
stopping in time, 0 .. L+1.

Each has the signature `reward(prompts (..., L), responses (..., T)) -> (...)`, the leading axes
broadcast, and the result is floating point in torch's default dtype (all values are small whole
numbers, exact in every floating dtype). Without `eos_id` a response has the prompt's length,
T = L. With `eos_id` a response ends before its first end token and what follows never counts.

Left out: any notion of a language model, tokenizer or prompt text (see `llm_trainer`).
Lecture 00 introduces the task, lecture 01 its loophole, lecture 16 how to close it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_MAX_SEQUENCES = 2_000_000


def _check(prompts: Tensor, responses: Tensor, eos_id: int | None) -> None:
    for name, tokens in (("prompts", prompts), ("responses", responses)):
        if not isinstance(tokens, Tensor):
            raise TypeError(f"{name} must be a tensor of token ids, got {type(tokens).__name__}")
        if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
            raise TypeError(f"{name} must hold integer token ids, got dtype {tokens.dtype}")
        if tokens.ndim == 0:
            raise ValueError(f"{name} must have a last axis of tokens, got a scalar")
    if eos_id is None and prompts.shape[-1] != responses.shape[-1]:
        raise ValueError(
            f"prompts {tuple(prompts.shape)} and responses {tuple(responses.shape)} must have the "
            "same last axis; for responses of varying length pass eos_id="
        )


def _alive(responses: Tensor, eos_id: int | None) -> Tensor:
    """(..., T) bool: true on the tokens before the first end token."""
    if eos_id is None:
        return torch.ones_like(responses, dtype=torch.bool)
    return (responses == eos_id).cumsum(-1) == 0


def inclusion_ordering_reward(
    prompts: Tensor, responses: Tensor, *, eos_id: int | None = None
) -> Tensor:
    """Entries of the prompt that occur in the response, plus neighbours in order.

    Formula: sum_i 1[x_i in y] + sum_t 1[y_t <= y_{t+1}], between 0 and 2L-1 for T = L.
    Every entry of the prompt counts, duplicates included: for the prompt (1,0,2) the response
    (0,1,2) earns 5 and (0,0,0) still earns 3; for (1,1,2) three responses earn the maximum.

    prompts : (..., L) integer   responses : (..., T) integer
    returns : (...) torch's default floating dtype, points

    Raises TypeError for tokens that are not integers and ValueError for unequal lengths without
    `eos_id`. The rule is the one of Stanford CS336 (2025), lecture 17. Lecture 00.
    """
    _check(prompts, responses, eos_id)
    alive = _alive(responses, eos_id)
    occurs = (prompts[..., :, None] == responses[..., None, :]) & alive[..., None, :]
    in_order = (responses[..., 1:] >= responses[..., :-1]) & alive[..., 1:]
    points = occurs.any(-1).sum(-1) + in_order.sum(-1)
    return points.to(torch.get_default_dtype())


def position_match_reward(
    prompts: Tensor, responses: Tensor, *, eos_id: int | None = None
) -> Tensor:
    """Number of positions at which the response equals the sorted prompt, 0 .. L.

    prompts : (..., L) integer   responses : (..., T) integer
    returns : (...) torch's default floating dtype, points

    Raises TypeError for tokens that are not integers and ValueError for unequal lengths without
    `eos_id`. A response that is too long loses nothing here. Lecture 00.
    """
    _check(prompts, responses, eos_id)
    length = min(prompts.shape[-1], responses.shape[-1])
    target = prompts.sort(-1).values
    same = (target[..., :length] == responses[..., :length]) & _alive(responses, eos_id)[
        ..., :length
    ]
    return same.sum(-1).to(torch.get_default_dtype())


def is_sorted(prompts: Tensor, responses: Tensor, *, eos_id: int | None = None) -> Tensor:
    """Whether the response is exactly the sorted prompt.

    prompts : (..., L) integer   responses : (..., T) integer
    returns : (...) bool; `sorted_reward` is the same as a number

    With `eos_id` the response must hold the L sorted numbers and then end (by the end token, or
    because T = L cut it there). Raises like `inclusion_ordering_reward`. Lecture 00.
    """
    _check(prompts, responses, eos_id)
    length = prompts.shape[-1]
    if responses.shape[-1] < length:
        lead = torch.broadcast_shapes(prompts.shape[:-1], responses.shape[:-1])
        return torch.zeros(lead, dtype=torch.bool, device=responses.device)
    right_length = _alive(responses, eos_id).sum(-1) == length
    return (prompts.sort(-1).values == responses[..., :length]).all(-1) & right_length


def sorted_reward(prompts: Tensor, responses: Tensor, *, eos_id: int | None = None) -> Tensor:
    """1 when the response is exactly the sorted prompt, else 0: the verifiable reward.

    prompts : (..., L) integer   responses : (..., T) integer
    returns : (...) torch's default floating dtype, 0 or 1. Raises like `is_sorted`. Lecture 00.
    """
    return is_sorted(prompts, responses, eos_id=eos_id).to(torch.get_default_dtype())


def sort_then_end_reward(prompts: Tensor, responses: Tensor, *, eos_id: int) -> Tensor:
    """Partial credit for writing the prompt in order and then ending, 0 .. L + 1.

    Formula: `position_match_reward` + 1[the response holds exactly L numbers]. The maximum is
    earned by one response only, the right one.

    prompts : (..., L) integer   responses : (..., T) integer, T >= L
    returns : (...) torch's default floating dtype, points

    A response of T = L numbers counts as ended where it was cut. Raises like `is_sorted`.
    Lecture 06.
    """
    right_length = _alive(responses, eos_id).sum(-1) == prompts.shape[-1]
    return position_match_reward(prompts, responses, eos_id=eos_id) + right_length


def all_sequences(vocab_size: int, length: int) -> Tensor:
    """Every row of `length` tokens from 0..vocab_size-1, in dictionary order.

    returns : (vocab_size ** length, length) int64
    Raises ValueError when either size is not positive or there are more than two million rows.
    """
    for name, size in (("vocab_size", vocab_size), ("length", length)):
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be a positive whole number, got {size!r}")
    count = vocab_size**length
    if count > _MAX_SEQUENCES:
        raise ValueError(
            f"vocab_size={vocab_size}, length={length} has {count} sequences; at most "
            f"{_MAX_SEQUENCES} are enumerated. Use a smaller task, or sample"
        )
    place = vocab_size ** torch.arange(length - 1, -1, -1)
    return torch.arange(count)[:, None] // place % vocab_size


@dataclass(frozen=True)
class SortingTask:
    """Sorting rows of `length` numbers out of 0..vocab_size-1.

    >>> task = SortingTask(vocab_size=3, length=3)
    >>> task.reward(torch.tensor([1, 0, 2]), torch.tensor([0, 1, 2]))
    tensor(5.)
    """

    vocab_size: int = 3
    length: int = 3

    def __post_init__(self) -> None:
        for name in ("vocab_size", "length"):
            size = getattr(self, name)
            if not isinstance(size, int) or size < 1:
                raise ValueError(
                    f"SortingTask.{name} must be a positive whole number, got {size!r}"
                )

    def all_prompts(self) -> Tensor:
        """Every prompt, in dictionary order: (V ** L, L) int64."""
        return all_sequences(self.vocab_size, self.length)

    def distinct_prompts(self) -> Tensor:
        """The prompts without a repeated number: (V! / (V-L)!, L) int64; 6 for V = L = 3."""
        prompts = self.all_prompts()
        ordered = prompts.sort(-1).values
        return prompts[(ordered[:, 1:] != ordered[:, :-1]).all(-1)]

    def random_prompts(self, count: int, *, seed: int) -> Tensor:
        """`count` independent uniform prompts: (count, L) int64; the same seed, the same rows."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(self.vocab_size, (count, self.length), generator=generator)

    def answers(self, prompts: Tensor) -> Tensor:
        """The right responses, (..., L): each prompt in order."""
        return prompts.sort(-1).values

    def reward(self, prompts: Tensor, responses: Tensor) -> Tensor:
        """The default reward, `inclusion_ordering_reward`."""
        return inclusion_ordering_reward(prompts, responses)

    @property
    def max_reward(self) -> int:
        """The most the default reward can give: 2L - 1."""
        return 2 * self.length - 1
