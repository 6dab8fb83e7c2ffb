"""The gradient noise scale: how many prompts a step needs before more of them stop paying.

    python -m llm_trainer noise runs/grpo_tiny --prompts 256

A step's gradient is a mean over its P prompts, ḡ = (1/P) Σ_i g_i, where g_i is what the group of
responses to prompt i adds, times P. With ∇J = E[g_i] and Σ = Cov[g_i],

    E|ḡ|² = |∇J|² + tr Σ/P        and        B_simple = tr Σ/|∇J|²

is the number of prompts at which noise and signal of a step are equally large. Far below it,
twice the prompts are worth almost twice the steps; far above, next to nothing (McCandlish et al.
2018, "An Empirical Model of Large-Batch Training", arXiv 1812.06162, section 2.2, eq. 2.9).

The unit is the group, not the response. Responses to one prompt share its difficulty and the mean
(and in GRPO the standard deviation) that they are compared with, so their gradients are not
independent, and 1/G of a group's gradient is no sample of anything. `responses` is B_simple times
G: what so many prompts cost at this G. Another G has another noise scale, to be measured anew.

|∇J|² and tr Σ are estimated without bias, from the gradients of single groups and their sum:

    |∇J|² ≈ (|Σ_i g_i|² − Σ_i |g_i|²)/(n(n − 1)),   the mean of g_i·g_j over all pairs i ≠ j
    tr Σ  ≈ (1/n) Σ_i |g_i|² − |∇J|²

which is the estimator of the paper's appendix A.1 with a small batch of one and a large one of all
n. The estimate of |∇J|² may come out negative: then n prompts are too few to see it, B_simple is
infinite, and `resolved` says no. Standard errors are the jackknife's, which leaves out one batch
of prompts after the other.

∇J here is the mean of the row's own update: of what GRPO, say, makes of the rewards, not of the
expected reward itself. Left out: the curvature (B_noise, eq. 2.8), Adam's scaling of each weight,
the clip of the norm, and minibatches: the gradient is that of the whole step, where it is sampled.
Rows with a critic are refused, as whitening mixes all responses of a step. Lecture 13.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from llm_trainer.batch import StepBatch
from llm_trainer.config import Config, RunError, require
from llm_trainer.models import Policy
from llm_trainer.rollout import make_sampler
from llm_trainer.step import Learner
from llm_trainer.task import Task
from llm_trainer.train import collect


@dataclass(frozen=True)
class NoiseScale:
    """Estimates from the gradients of `prompts` groups, each with its standard error."""

    prompts: int
    group: int  # responses to each
    signal: float  # |∇J|², in squared units of the gradient; can be negative
    signal_se: float
    trace: float  # tr Σ of one group's gradient
    trace_se: float
    inverse: float  # 1/B_simple = |∇J|²/tr Σ: unlike B_simple it is estimated without a jump
    inverse_se: float

    @property
    def b_simple(self) -> float:
        """In prompts; infinite where the estimate of |∇J|² is not positive."""
        return 1 / self.inverse if self.inverse > 0 else math.inf

    @property
    def responses(self) -> float:
        """B_simple in responses, at this number of responses per prompt."""
        return self.b_simple * self.group

    @property
    def se(self) -> float:
        """Of B_simple, by the derivative of 1/x; NaN where it is not resolved."""
        return self.inverse_se * self.b_simple**2 if self.resolved else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """B_simple from two standard errors of its inverse above to two below."""
        most, least = (self.inverse + k * self.inverse_se for k in (2, -2))
        return (1 / most if most > 0 else math.inf), (1 / least if least > 0 else math.inf)

    @property
    def resolved(self) -> bool:
        """Whether |∇J|² is more than two standard errors above 0."""
        return self.inverse > 2 * self.inverse_se

    def __str__(self) -> str:
        low, high = self.interval
        lines = [
            f"{self.prompts} prompts with {self.group} responses each",
            f"|∇J|² {self.signal:.3g} (standard error {self.signal_se:.2g})",
            f"tr Σ {self.trace:.3g} (standard error {self.trace_se:.2g}), per prompt",
        ]
        if self.resolved:
            both = f"{self.b_simple:.3g} prompts = {self.responses:.3g} responses"
            lines.append(
                f"noise scale {both}; ± 2 standard errors: {low:.3g} to {high:.3g} prompts"
            )
        else:
            above = f" above {low:.3g} prompts" if low < math.inf else ""
            lines.append(
                f"noise scale not resolved with {self.prompts} prompts: |∇J|² is within two "
                f"standard errors of 0, so it may be anything{above}"
            )
        return "\n".join(lines)


def noise_scale(
    policy: Policy, task: Task, config: Config, *, prompts: int, seed: int = 0
) -> NoiseScale:
    """Measure it for a policy on training questions, with the loss that `config` trains with.

    prompts : rounded up to whole steps of `config.prompts`, of which it takes two or more
    seed : of the questions and responses

    One gradient per step is kept in memory (6.5 MB for 32 prompts of the tiny model). No weight
    changes. Raises ConfigError for too few prompts and for a row with a critic, RunError where no
    group teaches anything.
    """
    learner = Learner(policy, config)
    require(
        learner.critic is None,
        f"noise scale: {config.algorithm} has a critic and no groups; choose a row that compares "
        "the responses to one prompt",
    )
    require(
        prompts > config.prompts,
        f"noise scale: {prompts} prompts are one step of {config.prompts} or less, and the "
        f"standard error needs two; ask for {config.prompts + 1} or more",
    )
    sampler, stream = make_sampler(policy, config), task.stream(seed)
    generator = torch.Generator(policy.device).manual_seed(seed)
    steps = -(-prompts // config.prompts)
    collected = (collect(sampler, task, stream, learner, generator)[0] for _ in range(steps))
    batches = (group_gradients(learner, batch) for batch in collected if batch)
    return estimate(batches, group=config.group)


def group_gradients(learner: Learner, batch: StepBatch) -> Iterator[Tensor]:
    """(parameters,) for each prompt: P times what its group adds to the step's gradient.

    So their mean is the gradient of the step, before the norm is clipped. 0 for a group whose
    responses all earned the same: it counts, and teaches nothing.
    """
    batch = learner.measure(batch)
    prompts, weights = len(batch.rewards), learner.policy.trainable()
    for index, teaches in zip(batch.indices, learner.teaches(batch), strict=True):
        learner.optimizer.zero_grad()
        if teaches:
            learner.gradients(batch.take(index[None]), micro_batch=1)
        flat = [torch.zeros_like(w) if w.grad is None else w.grad for w in weights]
        yield prompts * torch.cat([gradient.flatten() for gradient in flat])
    learner.optimizer.zero_grad()


def estimate(batches: Iterable[Iterable[Tensor]], *, group: int) -> NoiseScale:
    """The noise scale of independent gradients, given in batches: (parameters,) each.

    The jackknife leaves out one batch after the other, so there must be two or more, of about the
    same size. All sums are in float64. Raises RunError if there are fewer, or all gradients are 0.
    """
    sums, squares, sizes = [], [], []
    for batch in batches:
        total, square, size = 0.0, 0.0, 0
        for gradient in batch:
            gradient = gradient.double()
            total, square, size = total + gradient, square + gradient @ gradient, size + 1
        sums.append(total)
        squares.append(float(square))
        sizes.append(size)
    if len(sums) < 2 or not any(squares):
        raise RunError(
            "noise scale: nearly every group scored all its responses the same, so there is no "
            "gradient to measure; the README says what to do when no group has contrast"
        )
    total = torch.stack(sums).sum(0)
    n, square, of_sum = sum(sizes), sum(squares), float(total @ total)
    signal, trace, inverse = moments(of_sum, square, n)
    left_out = [
        moments(of_sum - float((2 * total - part) @ part), square - own, n - size)
        for part, own, size in zip(sums, squares, sizes, strict=True)
    ]
    errors = [jackknife_error(values) for values in zip(*left_out, strict=True)]
    return NoiseScale(n, group, signal, errors[0], trace, errors[1], inverse, errors[2])


def moments(of_sum: float, square: float, n: int) -> tuple[float, float, float]:
    """(|∇J|², tr Σ, their quotient) from |Σ g_i|², Σ |g_i|² and n; the first two without bias."""
    signal = (of_sum - square) / (n * (n - 1))
    trace = square / n - signal
    return signal, trace, signal / trace if trace > 0 else 0.0


def jackknife_error(values: Iterable[float]) -> float:
    """Standard error from estimates that each leave out one of as many equal parts."""
    values = list(values)
    n, mean = len(values), sum(values) / len(values)
    return math.sqrt((n - 1) / n * sum((value - mean) ** 2 for value in values))
