"""Algorithms against each other, with equal budgets, over seeds, with intervals.

    result = race(["grpo", "rloo", mine], TASKS["easy"], seeds=range(5), steps=30)
    result.scores["grpo"]                          # (seeds,) exact J at the end, points
    result.difference("mine", "grpo")              # mean and 95 % interval of the paired difference

Equal means: the same start, prompts, learning rate and samples; per seed the same dice. Rows that
replace groups without contrast (dynamic sampling) draw more samples per step, so they get as many
steps as the samples of the others pay for, and fewer updates; `Race.updates` shows it. (A step
that the budget does not cover any more is drawn and thrown away, and not counted.)

Left out: tuning. One learning rate for all favours the rows that it happens to suit; race again
with another before believing a difference. Lecture 10.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from policy_gradients.algorithms import ALGORITHMS, Algorithm
from toy_models.critics import TabularCritic
from toy_models.exact import expected_reward
from toy_models.policies import AutoregressivePolicy
from toy_models.sorting import SortingTask, is_sorted, sort_then_end_reward
from toy_models.train import train


@dataclass(frozen=True)
class Task:
    """Something to train on; all tasks of `TASKS` are sorters with an end token.

    vocab_size : numbers 0..vocab_size-1, plus the end token with the id vocab_size
    length     : numbers in a prompt          budget : most tokens in a response
    reward     : (prompts, responses, *, eos_id) -> points          best : its largest value
    start      : nats on the right tokens' logits at the start, one per prompt in turn
    """

    name: str
    vocab_size: int
    length: int
    budget: int
    reward: Callable[..., Tensor]
    best: float
    start: tuple[float, ...] = (0.0,)

    @property
    def prompts(self) -> Tensor:
        """(prompts, length) int64: six of them, without order, so that there is work to do."""
        every = SortingTask(self.vocab_size, self.length).all_prompts()
        unsorted = every[(every.diff(dim=1) < 0).any(1)]
        return unsorted[torch.linspace(0, len(unsorted) - 1, 6).round().long()]

    @property
    def judge(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The reward as `train` takes it: reward(prompts, responses)."""
        return partial(self.reward, eos_id=self.vocab_size)

    def policy(self) -> AutoregressivePolicy:
        """The common start: float64, a table for each prompt, `start` nats on the right tokens."""
        eos, prompts = self.vocab_size, self.prompts
        policy = AutoregressivePolicy(eos + 1, self.budget, eos_id=eos, prompts=prompts).double()
        right = torch.full((len(prompts), self.budget), eos)
        right[:, : self.length] = prompts.sort(-1).values
        rows = policy.state_ids(right)[:, : self.length + 1]  # (prompts, right tokens)
        nats = torch.tensor(self.start, dtype=torch.float64).repeat(len(prompts))[: len(prompts)]
        with torch.no_grad():
            which = torch.arange(len(prompts))[:, None]
            policy.table[which, rows, right[:, : self.length + 1]] += nats[:, None]
        return policy


def _exactly_right(prompts: Tensor, responses: Tensor, *, eos_id: int) -> Tensor:
    return is_sorted(prompts, responses, eos_id=eos_id).to(torch.get_default_dtype())


TASKS = {
    "easy": Task("easy", 3, 3, 5, sort_then_end_reward, 4.0),
    "hard": Task("hard", 3, 3, 5, _exactly_right, 1.0, start=(0.8, 1.2, 1.6)),
    "long": Task("long", 2, 6, 8, sort_then_end_reward, 7.0),
}


class Difference(NamedTuple):
    """Mean of one row minus another over seeds, points, and the ends of its interval."""

    mean: float
    low: float
    high: float

    @property
    def carried(self) -> bool:
        """Whether the spread over seeds carries the sign: 0 lies outside the interval."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Race:
    """Results of `race`: row name → (seeds,).

    scores  : exact J after the last update, points
    samples : responses drawn for the steps that were taken     updates : optimiser steps
    """

    task: str
    scores: dict[str, Tensor]
    samples: dict[str, Tensor]
    updates: dict[str, Tensor]

    def ranking(self) -> list[str]:
        """Names, best mean score first: an order, not a proof of one."""
        return sorted(self.scores, key=lambda name: -self.scores[name].mean().item())

    def difference(self, row: str, other: str, *, confidence: float = 0.95) -> Difference:
        """Paired over seeds: a Student interval of the mean of score(row) − score(other).

        With k comparisons at once, 1 − .05/k keeps the chance of any false one below about 5 %.
        Raises ValueError for a confidence outside (0, 1), KeyError for an unknown row.
        """
        return _student_interval(self.scores[row] - self.scores[other], confidence)

    def interval(self, row: str, *, confidence: float = 0.95) -> Difference:
        """The same for the mean score of one row alone. Intervals of two rows may overlap although
        their paired difference is sure: ask `difference` which is better."""
        return _student_interval(self.scores[row], confidence)


def _student_interval(values: Tensor, confidence: float) -> Difference:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is a share between 0 and 1, .95 say, got {confidence!r}")
    mean, error = values.mean().item(), (values.std() / math.sqrt(len(values))).item()
    half = _student_quantile(1 - (1 - confidence) / 2, len(values) - 1) * error
    return Difference(mean, mean - half, mean + half)


def race(
    rows: Iterable[str | Algorithm],
    task: Task,
    *,
    seeds: Iterable[int] = range(5),
    steps: int = 30,
    group: int = 8,
    inner_steps: int = 2,
    minibatches: int = 2,
    learning_rate: float = 0.1,
    beta: float | None = None,
) -> Race:
    """Train every row from the same start with the same budget and seeds; return a `Race`.

    rows    : names in `ALGORITHMS` or rows of your own, names all different
    seeds   : of the sampling, at least two      steps, group, inner_steps, minibatches,
              learning_rate, beta : as in `train` (Adam); steps · 6 · group responses is the budget
              that no row may exceed (but each takes at least one step). Rows that need a critic
              get a fresh `TabularCritic`

    Raises TypeError for a task that is only a name, ValueError for fewer than two seeds, a seed
    given twice or rows of the same name, and what `train` raises.
    """
    if not isinstance(task, Task):
        raise TypeError(f"task must be a Task, for example TASKS['easy'], got {task!r}")
    if isinstance(rows, str):
        raise TypeError(f"rows must be a list, for example [{rows!r}, 'rloo'], got one name")
    chosen = [row if isinstance(row, Algorithm) else ALGORITHMS[row] for row in rows]
    names, seeds = [row.name for row in chosen], list(seeds)
    if len(set(names)) < len(names):
        raise ValueError(f"every row needs a name of its own, got {names}: dataclasses.replace")
    if len(seeds) < 2:
        raise ValueError(f"a spread needs at least two seeds, got {seeds}")
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"every seed once, got {seeds}: the same dice twice are one observation")
    prompts, judge = task.prompts, task.judge

    def run(row: Algorithm, seed: int) -> tuple[float, int, int]:
        policy = task.policy()
        history = train(
            policy,
            prompts,
            judge,
            row,
            steps=steps,
            group=group,
            inner_steps=inner_steps,
            minibatches=minibatches,
            learning_rate=learning_rate,
            beta=beta,
            critic=TabularCritic(policy, prompts) if row.needs_critic else None,
            max_samples=steps * len(prompts) * group,
            watch=False,  # J is wanted once, at the end
            seed=seed,
        )
        samples = sum(record.sampled for record in history.records if record.inner == 0)
        with torch.no_grad():
            score = expected_reward(policy, prompts, judge).item()
        return score, samples, len(history)

    results = {row.name: [run(row, seed) for seed in seeds] for row in chosen}
    columns = {name: torch.tensor(r, dtype=torch.float64).unbind(1) for name, r in results.items()}
    return Race(task.name, *({n: column[k] for n, column in columns.items()} for k in range(3)))


def _student_quantile(probability: float, df: int) -> float:
    """Quantile above the median of Student's t with df ≥ 1 degrees of freedom.

    Its distribution function, integrated over the angle x = √df·tan φ, where the density is
    proportional to cos^(df−1) φ on (−π/2, π/2), is read backwards with linear interpolation.
    probability in (0.5, 1).
    """
    angles = torch.linspace(0, math.pi / 2, 20_001, dtype=torch.float64)
    mass = torch.cumulative_trapezoid(angles.cos() ** (df - 1), angles)
    below = torch.cat([torch.tensor([0.5]), 0.5 + 0.5 * mass / mass[-1]])  # at the angles
    right = int(torch.searchsorted(below, probability))
    left = right - 1
    share = (probability - below[left]) / (below[right] - below[left])
    return math.sqrt(df) * math.tan(torch.lerp(angles[left], angles[right], share).item())
