"""Learning by the schedule of an actor-learner simulation: exact J against simulated seconds.

    trace = simulate(Setup(bound=4, partial=True), updates=80)
    learned = learn(trace, policy, prompts, reward, "rloo", correction=sequence_weight(2.0))
    learned.times, learned.objective

The simulated clock says when each update ends and how old its answers are; the toy says what such
answers do to the policy. `exact_weights` feeds `exact.gradient_moments`, which gives the mean of a
stale estimate by enumeration: whether a correction is unbiased is checked, not hoped for.
Left out: critics, KL, several inner steps (see `train`). Lecture 15.
"""

import copy
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from policy_gradients.algorithms import ALGORITHMS, Algorithm, Batch
from policy_gradients.ratios import truncated_importance_weight
from toy_models.actor_learner import Trace
from toy_models.exact import expected_reward, token_log_probs_of
from toy_models.policies import Policy, check_prompts

Correction = Callable[[Batch, Tensor], Batch]  # the batch as if fresh, log-probs of the sampler


def uncorrected(batch: Batch, logp_sampler: Tensor) -> Batch:
    """Train on stale answers as if the present weights had written them."""
    return batch


def own_ratio(batch: Batch, logp_sampler: Tensor) -> Batch:
    """The sampler is the old policy of the row's own ratio, which then both corrects and clips."""
    return replace(batch, logp_old=logp_sampler)


def sequence_weight(cap: float) -> Correction:
    """Advantages times min(π(y) / π_sampler(y), cap): the whole answer's ratio. Lecture 14."""

    def corrected(batch: Batch, logp_sampler: Tensor) -> Batch:
        now, then = ((x * batch.mask).sum(1, keepdim=True) for x in (batch.logp, logp_sampler))
        weight = truncated_importance_weight(now, then, cap=cap)
        return replace(batch, advantages=batch.advantages * weight)

    return corrected


def token_weight(cap: float) -> Correction:
    """Advantages times each token's own min(π(y_t) / π_sampler(y_t), cap). Lecture 14."""

    def corrected(batch: Batch, logp_sampler: Tensor) -> Batch:
        weight = truncated_importance_weight(batch.logp, logp_sampler, cap=cap)
        return replace(batch, advantages=batch.advantages * weight)

    return corrected


@dataclass(frozen=True)
class Learning:
    """J over simulated time. Entry 0 is the start, entry k the policy after update k - 1."""

    times: list[float]  # seconds: when the weights were ready
    objective: list[float]  # exact J, points
    snapshots: list[Policy]  # version -> copy of the policy

    def seconds_to(self, level: float) -> float:
        """When J first reached `level`; nan if it never did."""
        reached = (t for t, j in zip(self.times, self.objective, strict=True) if j >= level)
        return next(reached, math.nan)


def learn(
    trace: Trace,
    policy: Policy,
    prompts: Tensor,
    reward: Callable[[Tensor, Tensor], Tensor],
    algorithm: str | Algorithm,
    *,
    correction: Correction = uncorrected,
    learning_rate: float = 1.0,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    seed: int = 0,
) -> Learning:
    """Train a copy of `policy` by the schedule of `trace`; what was stale there is stale here.

    Group N answers prompt N modulo their number, `trace.setup.group` times, sampled from the
    weights of `group.version`; the update that trained it in the trace trains it here. Only the
    clock knows the trace's long answers: the toy's have their own lengths. A partial answer counts
    as written by its oldest weights. Without staleness, and with as many groups in an
    update as prompts, this is `train` with one inner step, number by number.

    algorithm  : a row or its name; its KL term, if any, is left out
    correction : one of the four above, or your own
    Raises ValueError for a row that needs a critic, FloatingPointError where weights become NaN
    or infinite.
    """
    row = algorithm if isinstance(algorithm, Algorithm) else ALGORITHMS[algorithm]
    if row.needs_critic:
        raise ValueError(f"{row.name} needs a critic, which this loop does not have; use rloo")
    row = replace(row, kl="none", kl_coefficient=0.0)
    prompts, policy = check_prompts(prompts), copy.deepcopy(policy)
    dice = torch.Generator().manual_seed(seed)
    optimise = optimizer(policy.parameters(), lr=learning_rate)
    snapshots = [copy.deepcopy(policy)]
    for groups in trace.batches:
        groups = sorted(groups, key=lambda group: group.version)
        rows = prompts[torch.tensor([group.index % len(prompts) for group in groups])]
        ages = Counter(group.version for group in groups)  # in the order of the groups
        parts = []
        for version, asked in zip(ages, rows.split(list(ages.values())), strict=True):
            answers = snapshots[version].sample(asked, trace.setup.group, seed=dice)
            parts.append((answers, snapshots[version].log_probs(asked, answers).detach()))
        answers, logp_sampler = (torch.cat(part) for part in zip(*parts, strict=True))
        rewards = reward(rows[:, None], answers.unflatten(0, (-1, trace.setup.group)))
        logp = policy.log_probs(rows, answers)
        advantages = row.advantage(rewards.to(logp.dtype)).reshape(-1, 1)
        batch = Batch(logp, logp.detach(), advantages, policy.mask(answers), length=policy.length)
        optimise.zero_grad()
        row.loss(correction(batch, logp_sampler)).backward()
        optimise.step()
        if not all(bool(torch.isfinite(x).all()) for x in policy.parameters()):
            raise FloatingPointError(
                f"{row.name}, update {len(snapshots) - 1}: the weights are not finite any more; "
                "lower learning_rate"
            )
        snapshots.append(copy.deepcopy(policy))
    with torch.no_grad():
        objective = [expected_reward(one, prompts, reward).item() for one in snapshots]
    return Learning([0.0, *(update.end for update in trace.updates)], objective, snapshots)


def exact_weights(
    policy: Policy, sampler: Policy, prompts: Tensor, *, cap: float = math.inf, token: bool = False
) -> Tensor:
    """Importance weights of every answer, for `exact.gradient_moments`.

        stale = gradient_moments(policy, prompts, reward, leave_one_out, group=8,
                                 behaviour=sampler, token_weights=exact_weights(...))

    returns : (prompts, responses, time): the whole answer's ratio on each of its tokens, or with
    token=True each token's own; at most `cap`. Without a cap the first makes every estimator whose
    baseline does not depend on the answer exact, however stale the sampler.
    """
    with torch.no_grad():
        log_ratio = token_log_probs_of(policy, prompts) - token_log_probs_of(sampler, prompts)
        if not token:
            log_ratio = log_ratio.sum(-1, keepdim=True).expand_as(log_ratio)
        return log_ratio.exp().clamp(max=cap)
