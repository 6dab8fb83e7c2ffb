"""What to do when a reward is hardly ever met: four remedies on one sorter.

    rates = seek(Sorter(5), length=6, updates=200, seed=0)                       # 1 in 15,625
    rates = seek(Sorter(5), length=6, updates=200, seed=0, hindsight=True)

`seek` is the one training loop; a remedy is one of its knobs: another rule, a bonus for what is new
(`CountBonus`), hindsight (`relabel`), or a curriculum of lengths.

Left out: networks that predict (for novelty where nothing is seen twice), replay buffers, and
importance weights for the relabelled answers. Lecture 16.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from policy_gradients.advantages import group_centered
from policy_gradients.logprobs import token_log_probs
from toy_models.policies import as_generator
from toy_models.sorting import SortingTask, sorted_reward

Reward = Callable[[Tensor, Tensor], Tensor]


class CountBonus:
    """scale / sqrt(times this response has been seen): novelty, for what can be counted.

    Calling it with responses (..., T) counts them and returns (...) points. It fades by itself, so
    in the end only the task's reward is left. Networks replace the count where nothing is ever
    seen twice: by the error of a prediction (ICM, RND).
    """

    def __init__(self, scale: float, *, vocab_size: int, length: int):
        self.scale, self.vocab_size = scale, vocab_size
        self.place = vocab_size ** torch.arange(length - 1, -1, -1)
        self.seen = torch.zeros(vocab_size**length)

    def __call__(self, responses: Tensor) -> Tensor:
        if responses.shape[-1:] != self.place.shape:
            raise ValueError(
                f"responses must be (..., {len(self.place)}), got {tuple(responses.shape)}"
            )
        if bool(((responses < 0) | (responses >= self.vocab_size)).any()):
            raise ValueError(f"responses must hold tokens in 0..{self.vocab_size - 1}")
        number = (responses * self.place).sum(-1)
        self.seen += torch.bincount(number.flatten(), minlength=len(self.seen))
        return self.scale / self.seen[number].sqrt()


def relabel(responses: Tensor, *, seed: int | torch.Generator) -> tuple[Tensor, Tensor]:
    """Hindsight: prompts to which these responses would have been right, where there are any.

    responses : (batch, L)
    returns   : prompts (batch, L), each a random order of its response; keep (batch,) bool, true
                where the response is in order. An unordered one answers no prompt at all.
    """
    shuffle = torch.rand(responses.shape, generator=as_generator(seed)).argsort(-1)
    return responses.gather(-1, shuffle), (responses.diff(dim=-1) >= 0).all(-1)


class Sorter(nn.Module):
    """A sorter for any length that sees which numbers are still to be written.

    logits = weight @ 1[number v is still due] + bias: V * V + V parameters, zero at the start. The
    right answer is in reach for every length (a number due counts for itself and against all
    larger ones), so what short prompts teach, long ones can use.
    """

    def __init__(self, vocab_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(vocab_size, vocab_size))
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def logits(self, prompts: Tensor, responses: Tensor) -> Tensor:
        """(batch, time, vocab); prompts (batch, L), responses (batch, time)."""
        ids = torch.arange(len(self.bias))
        asked = (prompts[..., None] == ids).sum(1)  # (batch, vocab)
        written = (responses[..., None] == ids).cumsum(1)  # after each token
        before = torch.cat([torch.zeros_like(written[:, :1]), written[:, :-1]], 1)
        due = (asked[:, None] > before).to(self.weight.dtype)
        return due @ self.weight.T + self.bias

    def log_probs(self, prompts: Tensor, responses: Tensor) -> Tensor:
        """(batch, time) nats of each token of each response."""
        return token_log_probs(self.logits(prompts, responses), responses)

    def sample(self, prompts: Tensor, *, generator: torch.Generator) -> Tensor:
        """(batch, L): one response to each row of prompts (batch, L)."""
        responses = torch.full_like(prompts, -1)
        with torch.no_grad():
            for t in range(prompts.shape[1]):
                probs = self.logits(prompts, responses)[:, t].softmax(-1)
                responses[:, t] = torch.multinomial(probs, 1, generator=generator)[:, 0]
        return responses

    def pass_rate(self, prompts: Tensor) -> float:
        """Exact probability of the right answer, mean over prompts (batch, L)."""
        with torch.no_grad():
            return self.log_probs(prompts, prompts.sort(-1).values).sum(1).exp().mean().item()


def seek(
    sorter: Sorter,
    *,
    length: int,
    updates: int,
    seed: int,
    prompts: int = 16,
    group: int = 8,
    learning_rate: float = 0.1,
    reward: Reward = sorted_reward,
    bonus: Callable[[Tensor], Tensor] | None = None,
    hindsight: bool = False,
    lengths: Sequence[int] | None = None,
) -> list[float]:
    """Train `sorter` on random prompts; exact pass rate on `length` before each update and after.

    A step samples a group per prompt and climbs the group-centred reward with Adam. The remedies:
    reward    : another rule, for example one with partial credit
    bonus     : responses (prompts, group, L) -> points on top, for example a `CountBonus`
    hindsight : also raise log pi(y | x') for every sampled y in order, x' from `relabel`; no
                importance weight, so this is imitation of one's own successes, not grad J
    lengths   : of each update's prompts, a curriculum; default `length` throughout
    """
    lengths = [length] * updates if lengths is None else list(lengths)
    if len(lengths) != updates:
        raise ValueError(f"lengths must have one entry per update, {updates}; got {len(lengths)}")
    for name, count, least in (("prompts", prompts, 1), ("group", group, 2)):
        if count < least:
            raise ValueError(f"{name} must be at least {least}, got {count}")
    if lengths and min(lengths) < 1:
        raise ValueError(f"lengths must be positive, got {min(lengths)}")
    generator, vocab = as_generator(seed), len(sorter.bias)
    judged = SortingTask(vocab, length).random_prompts(500, seed=0)
    optimizer = torch.optim.Adam(sorter.parameters(), lr=learning_rate)
    rates = [sorter.pass_rate(judged)]
    for now in lengths:
        asked = torch.randint(vocab, (prompts, now), generator=generator)
        asked = asked.repeat_interleave(group, 0)  # (batch, L)
        written = sorter.sample(asked, generator=generator)
        points = reward(asked, written).view(prompts, group)
        if bonus is not None:
            extra = bonus(written.view(prompts, group, now))
            if extra.shape != points.shape:
                raise ValueError(f"bonus must give {tuple(points.shape)}, got {tuple(extra.shape)}")
            points = points + extra
        if not bool(points.isfinite().all()):
            raise ValueError("reward and bonus must be finite, got nan or inf")
        logp = sorter.log_probs(asked, written).sum(1)  # (batch,)
        loss = -(group_centered(points).flatten() * logp).mean()
        if hindsight:
            other, keep = relabel(written, seed=generator)
            if bool(keep.any()):
                loss = loss - sorter.log_probs(other[keep], written[keep]).sum() / len(written)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.append(sorter.pass_rate(judged))
    return rates
