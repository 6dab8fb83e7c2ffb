"""Held-out accuracy by generating: greedy, or as pass@k over several samples of each question.

    result = evaluate(policy, task, task.held_out, max_new_tokens=12)         # greedy: pass@1
    sampled = evaluate_samples(policy, task, task.held_out, samples=16, max_new_tokens=12)
    sampled.pass_at(4)                                                  # (mean, standard error)

Accuracy measured on teacher-forced tokens says nothing after reinforcement learning: the model
is then judged on prefixes it would never write.

`top_p` exists only here. Training samples from the whole distribution: cut it, and the sampler's
probabilities are renormalised while the learner's are not. Where the kept tokens hold 95 % of the
mass, π/π_sampler is 0.95 at every token and 0.95¹⁰⁰ = 0.0059 over a response of 100.
"""

import math
from dataclasses import dataclass

import torch

from llm_trainer.config import require
from llm_trainer.devices import ONE, Devices
from llm_trainer.models import Policy
from llm_trainer.oom import Room
from llm_trainer.rollout import OwnSampler, respond
from llm_trainer.task import Task, by_task


@dataclass(frozen=True)
class Evaluation:
    """Shares between 0 and 1, over held-out questions (words)."""

    exact: float
    correctness: float  # mean partial credit
    by_letters: dict[int, float]  # exact, by length of the right answer in characters
    answers: list[tuple[str, str, bool]]  # word or question, response, exact
    by_task: dict[str, float]  # exact, by name of the task

    @property
    def standard_error(self) -> float:
        """Of `exact`, over the questions."""
        return standard_error([float(right) for _, _, right in self.answers])


@dataclass(frozen=True)
class SampledEvaluation:
    """How often each question was answered exactly right in `samples` independent responses."""

    samples: int
    correct: list[int]  # (questions,)
    letters: list[int]  # (questions,) length of the right answer in characters

    def pass_at(self, k: int) -> tuple[float, float]:
        """(mean over questions of pass@k, its standard error over questions).

        Raises ConfigError unless 1 ≤ k ≤ samples.
        """
        return mean_and_error([pass_at_k(self.samples, c, k) for c in self.correct])

    def pass_at_by_letters(self, k: int) -> dict[int, float]:
        """pass@k by length of the right answer."""
        values = [pass_at_k(self.samples, c, k) for c in self.correct]
        return by_length(self.letters, values)


def evaluate(
    policy: Policy,
    task: Task,
    items: list,
    *,
    max_new_tokens: int,
    room: Room | None = None,
    devices: Devices = ONE,
) -> Evaluation:
    """Greedy decoding of every item.

    room: rows in memory at once (256); by rounding alone it may decide between two tokens that
    are equally likely. Each process answers its share of the items, all get the same result.
    """
    own, scored = devices.share([task.entry(item) for item in items]), []
    if own:
        answers = respond(
            OwnSampler(policy, room or room_for(256)),
            task,
            own,
            group=1,
            max_new_tokens=max_new_tokens,
            temperature=1.0,
            generator=None,
        )
        scored = list(zip(own, answers.texts, answers.scores, strict=True))
    scored = [found for part in devices.everyone(scored) for found in part]
    entries, exact = [entry for entry, _, _ in scored], [s.exact for _, _, s in scored]
    return Evaluation(
        exact=sum(exact) / len(items),
        correctness=sum(s.correctness for _, _, s in scored) / len(items),
        by_letters=by_length([letters(entry) for entry in entries], exact),
        answers=[(task.label(entry), text, s.exact == 1) for entry, text, s in scored],
        by_task=by_task(entries, exact),
    )


def evaluate_samples(
    policy: Policy,
    task: Task,
    items: list,
    *,
    samples: int,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    batch: int = 256,
) -> SampledEvaluation:
    """`samples` responses to every item; `batch` rows at once (it takes part in the seeding)."""
    entries = [task.entry(item) for item in items]
    answers = respond(
        OwnSampler(policy, room_for(max(1, batch // samples)), top_p),
        task,
        entries,
        group=samples,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        generator=torch.Generator(policy.device).manual_seed(seed),
    )
    right = torch.tensor([s.exact == 1 for s in answers.scores]).view(len(entries), samples)
    return SampledEvaluation(samples, right.sum(1).tolist(), [letters(e) for e in entries])


def room_for(prompts: int) -> Room:
    """So many prompts at once, or half as many if memory runs out."""
    return Room(prompts, "evaluating", "max_new_tokens")


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Probability that k of the samples, drawn without replacement, hold a right one.

    1 − C(n − c, k)/C(n, k) with n samples, c of them right: an unbiased estimate of 1 − (1 − p)^k,
    which 1 − (1 − c/n)^k is not (Chen et al. 2021, "Evaluating Large Language Models Trained on
    Code", arXiv 2107.03374, section 2.1). Integers, so nothing overflows or cancels.

    Raises ConfigError unless 1 ≤ k ≤ samples.
    """
    require(1 <= k <= samples, f"pass@{k} needs k from 1 to the {samples} samples per question")
    return 1 - math.comb(samples - correct, k) / math.comb(samples, k)


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """(mean, its standard error: sample standard deviation / √n; NaN for a single value)."""
    return sum(values) / len(values), standard_error(values)


def standard_error(values: list[float]) -> float:
    """Of the mean of independent values."""
    n, mean = len(values), sum(values) / len(values)
    if n == 1:
        return math.nan
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)


def letters(entry: dict) -> int:
    """Length of the right answer; 0 for a task whose questions have no single one."""
    return len(entry["answer"] or "")


def by_length(lengths: list[int], values: list[float]) -> dict[int, float]:
    """Mean value by length, shortest first."""
    found: dict[int, list[float]] = {}
    for length, value in zip(lengths, values, strict=True):
        found.setdefault(length, []).append(value)
    return {length: sum(found[length]) / len(found[length]) for length in sorted(found)}
