"""The sorting task as a gymnasium environment: a token per step, the score with the last.

    env = SortingEnv(vocab_size=3, length=3)
    logged = logged_transitions(prompts, responses, vocab_size=3)     # the same steps, from a log

What passes between an environment and a learner of values is a row of `Transitions`.

Left out: an end token, and rewards before the end (lecture 16 shapes them). Lecture 18.
"""

from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from toy_models.sorting import SortingTask, sorted_reward


class Transitions(NamedTuple):
    """What was seen: one row per step, for each of the runs."""

    observations: Tensor  # (runs, rows, features)
    actions: Tensor  # (runs, rows) int64
    rewards: Tensor  # (runs, rows) points
    next_observations: Tensor  # (runs, rows, features)
    terminated: Tensor  # (runs, rows) bool: the end of the task, not of the time allowed


class SortingEnv(gymnasium.Env):
    """Sorting, a token per step: the prompt and what is written so far are seen, the score comes
    with the last token.

    observation : float32, one-hot rows: L of V for the prompt, L of V + 1 for the answer (the last
    column: not yet written)   action : a token, 0..V-1
    prompts : (prompts, L) to draw from, default all without a repeated number
    reward  : reward(prompts, responses) -> points, default 1 for the right answer, else 0
    """

    def __init__(
        self, vocab_size: int = 3, length: int = 3, *, prompts: Tensor | None = None, reward=None
    ):
        task = SortingTask(vocab_size, length)
        self.prompts = task.distinct_prompts() if prompts is None else prompts
        if self.prompts.ndim != 2 or self.prompts.shape[1] != length or not len(self.prompts):
            raise ValueError(
                f"prompts must be (prompts, {length}) with at least one row, got "
                f"{tuple(self.prompts.shape)}; length may not exceed vocab_size without prompts="
            )
        if not 0 <= self.prompts.min() <= self.prompts.max() < vocab_size:
            raise ValueError(f"prompts must hold tokens in 0..{vocab_size - 1}")
        self.vocab_size, self.length = vocab_size, length
        self.reward = sorted_reward if reward is None else reward
        self.action_space = gymnasium.spaces.Discrete(vocab_size)
        features = length * (2 * vocab_size + 1)
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (features,), np.float32)
        self.written: list[int] | None = None

    def reset(self, *, seed: int | None = None, options: dict | None = None):
        super().reset(seed=seed)
        self.prompt = self.prompts[int(self.np_random.integers(len(self.prompts)))]
        self.written = []
        return self._observation(), {}

    def step(self, action: int):
        if self.written is None or len(self.written) == self.length:
            raise RuntimeError("no answer is being written: call reset() before step()")
        if int(action) != action or not 0 <= int(action) < self.vocab_size:
            raise ValueError(f"action must be a token in 0..{self.vocab_size - 1}, got {action!r}")
        self.written.append(int(action))
        over = len(self.written) == self.length
        reward = float(self.reward(self.prompt, torch.tensor(self.written))) if over else 0.0
        return self._observation(), reward, over, False, {}

    def _observation(self) -> np.ndarray:
        unwritten = [self.vocab_size] * (self.length - len(self.written))
        prefix = torch.tensor([self.written + unwritten])
        return observe(self.prompt[None], prefix, self.vocab_size)[0].numpy()


def observe(prompts: Tensor, prefixes: Tensor, vocab_size: int) -> Tensor:
    """`SortingEnv`'s observations: prompts (n, L), prefixes (n, L) filled up with V -> (n, f)."""
    rows = one_hot(prompts, vocab_size).flatten(1), one_hot(prefixes, vocab_size + 1).flatten(1)
    return torch.cat(rows, 1).float()


def logged_transitions(
    prompts: Tensor, responses: Tensor, *, vocab_size: int, reward=sorted_reward
) -> Transitions:
    """Answers as the steps that `SortingEnv` would have shown, the score on the last: (1, n * L).

    prompts, responses : (n, L) integer   reward : reward(prompts, responses) -> points
    """
    if responses.ndim != 2 or responses.shape != prompts.shape or not len(responses):
        raise ValueError(
            "prompts and responses must have one shape (n, L), at least one row, got "
            f"{tuple(prompts.shape)} and {tuple(responses.shape)}"
        )
    count, length = responses.shape
    points = reward(prompts, responses)
    if points.shape != (count,) or not bool(points.isfinite().all()):
        raise ValueError(f"reward must give ({count},) finite points, got {tuple(points.shape)}")
    written = torch.arange(length) < torch.arange(length + 1)[:, None, None]
    prefixes = torch.where(written, responses, vocab_size).flatten(0, 1)
    seen = observe(prompts.repeat(length + 1, 1), prefixes, vocab_size).unflatten(0, (-1, count))
    last = torch.arange(length)[:, None] == length - 1
    rewards = torch.where(last, points.float(), 0.0)
    rows = seen[:-1], responses.T, rewards, seen[1:], last.expand(-1, count)
    return Transitions(*(part.flatten(0, 1)[None] for part in rows))
