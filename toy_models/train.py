"""One short training loop for every critic-free row of `policy_gradients.ALGORITHMS`.

    history = train(policy, prompts, reward, "grpo", steps=100, group=8, seed=0)
    history["reward"]        # mean sampled reward, one number per update
    history.final.objective  # exact J after the last update

A step: refresh the reference if it is due -> sample a group per prompt -> score -> drop groups
without contrast where the row asks for it -> advantages -> `inner_steps` updates on these samples.
What an algorithm is stands in its row; this file never asks for a name.

Left out: critics (lecture 07), micro-batches, devices, checkpoints (see `llm_trainer`), plots.
"""

import copy
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from policy_gradients.algorithms import ALGORITHMS, Algorithm, Batch
from policy_gradients.diagnostics import mean_over_tokens, zero_contrast_share
from toy_models.exact import all_rewards, response_log_probs
from toy_models.policies import Policy, check_prompts

Reward = Callable[[Tensor, Tensor], Tensor]
Loss = Callable[..., Tensor]

_MAX_EXACT = 5_000  # prompts x responses up to which J is evaluated exactly at every update


class State(NamedTuple):
    """Where a policy stands; exact sums over all responses where there are few enough of them."""

    objective: float  # J, mean over prompts, points; nan where it is not exact
    entropy: float  # of a whole response, nats; else estimated from the step's samples
    kl_to_start: float  # KL(policy || start) of a whole response, nats; else estimated (k1)
    kl_to_ref: float  # KL(policy || reference), nats; else estimated (k1)


class Record(NamedTuple):
    """One update, seen just before the policy changes (so ratio 1 and no clipping at inner 0)."""

    step: int  # which batch of samples, from 0
    inner: int  # which update on that batch, from 0
    reward: float  # mean reward of the responses sampled in this step, discarded ones included
    loss: float  # its value says little: do not trust it
    grad_norm: float  # length of the gradient, before any clipping
    clip_high: float  # share of tokens: advantage > 0, gradient switched off
    clip_low: float  # share of tokens: advantage < 0, gradient switched off
    zero_contrast: float  # share of the sampled groups whose rewards are all equal
    sampled: int  # responses sampled in this step, discarded ones included
    objective: float  # this and the next three: see State
    entropy: float
    kl_to_start: float
    kl_to_ref: float


@dataclass(frozen=True)
class History:
    """What happened in a run: one `Record` per update, and the state after the last one.

    `history["reward"]` is one column as a list of floats, `len(history)` the number of updates.
    """

    algorithm: str
    seed: int
    records: tuple[Record, ...]
    final: State
    stopped: str | None = None  # why the run ended early, None if it did not

    def __getitem__(self, column: str) -> list[float]:
        if column not in Record._fields:
            raise KeyError(f"no column {column!r}; a record has {', '.join(Record._fields)}")
        return [getattr(record, column) for record in self.records]

    def __len__(self) -> int:
        return len(self.records)


def train(
    policy: Policy,
    prompts: Tensor,
    reward: Reward,
    algorithm: str | Algorithm,
    *,
    steps: int = 100,
    group: int = 8,
    inner_steps: int = 1,
    learning_rate: float = 0.05,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    max_grad_norm: float | None = None,
    beta: float | None = None,
    reference: Policy | None = None,
    reference_every: int | None = None,
    temperature: float = 1.0,
    learner_temperature: float | None = None,
    loss: Loss | None = None,
    max_rounds: int = 20,
    exact: bool | None = None,
    seed: int = 0,
) -> History:
    """Train `policy` in place with one row of the table; return what happened.

    policy, prompts, reward : as in `toy_models.policies` and `toy_models.sorting`; every step uses
        all prompts (prompts, L)
    algorithm           : a name in `ALGORITHMS`, or a row, for example dataclasses.replace(...)
    steps               : batches of samples            group : responses per prompt
    inner_steps         : updates on each batch, all on the same samples
    optimizer           : called with (parameters, lr=learning_rate); torch.optim.SGD for the bare
                          gradient
    max_grad_norm       : longer gradients are scaled down to this length; None = never
    beta                : replaces the row's KL coefficient, in points per nat; a row without a KL
                          term gets it in the loss
    reference           : policy of the KL term, default a frozen copy of `policy` at the start
    reference_every     : refresh the reference to the current policy every this many steps
    temperature         : of sampling             learner_temperature : of all log-probabilities
                          the loss sees; None = the same. Different ones are a bug to study
    loss                : your own loss in the signature of `policy_gradients.grpo_loss`; it
                          replaces the row's surrogate and average, not its advantage or KL. It
                          receives by keyword what it asks for among the row's knobs, `sequences`,
                          `tokens` and `length`
    max_rounds          : most rounds of sampling to fill a batch with groups that have contrast
                          (rows with dynamic sampling); what was found by then is used
    exact               : measure J, entropy and KL by enumeration at every update; None = when
                          there are at most 5,000 pairs of prompt and response
    seed                : of the sampling; the same seed gives bit-identical results

    Raises KeyError for an unknown algorithm, ValueError for a row that needs a critic or for an
    impossible value, RuntimeError when the first step finds no group with contrast (a later step
    ends the run, `History.stopped` says so), FloatingPointError for a gradient that is not finite.
    """
    row = _row(algorithm, beta)
    bare = replace(row, kl="none", kl_coefficient=0.0)
    _check_knobs(row, steps, group, inner_steps, learning_rate, reference_every, max_rounds)
    prompts = check_prompts(prompts)
    optimise = optimizer(policy.parameters(), lr=learning_rate)
    generator = torch.Generator().manual_seed(seed)
    start = _frozen(policy)
    reference = start if reference is None else _frozen(reference)
    learner_temperature = temperature if learner_temperature is None else learner_temperature
    observe = _exact_observer if _few(policy, prompts, exact) else _sampled_observer
    observe = observe(policy, start, prompts, reward)
    draw = _Sampler(policy, prompts, reward, row, group, temperature, max_rounds, generator)
    records: list[Record] = []
    stopped = None

    for step in range(steps):
        if reference_every is not None and step > 0 and step % reference_every == 0:
            reference = _frozen(policy)
        rollout = draw()
        if not len(rollout.prompts):
            stopped = _no_contrast(row, step, max_rounds, rollout.reward)
            break
        batch = _batch(policy, reference, row, rollout, learner_temperature)
        for inner in range(inner_steps):
            if inner > 0:  # the first update has it already: at ratio 1, logp is logp_old
                logp = policy.log_probs(
                    rollout.prompts, rollout.responses, temperature=learner_temperature
                )
                batch = replace(batch, logp=logp)
            value = row.loss(batch) if loss is None else _own_loss(loss, row, batch)
            optimise.zero_grad()
            value.backward()
            seen = Record(
                step,
                inner,
                rollout.reward,
                value.item(),
                _clip_gradient(policy, max_grad_norm, f"{row.name}, step {step}, inner {inner}"),
                *_switched_off(loss, bare, batch),
                rollout.zero_contrast,
                rollout.sampled,
                *observe(reference, rollout, batch.logp),
            )
            records.append(seen)
            optimise.step()
    final = observe(reference, draw.round(), None)
    return History(row.name, seed, tuple(records), final, stopped)


def _row(algorithm: str | Algorithm, beta: float | None) -> Algorithm:
    row = algorithm if isinstance(algorithm, Algorithm) else ALGORITHMS[algorithm]
    if row.needs_critic:
        able = [name for name, other in ALGORITHMS.items() if not other.needs_critic]
        raise ValueError(
            f"{row.name} needs a critic, and this loop has none (lecture 07 builds it); "
            f"rows without a critic: {', '.join(able)}"
        )
    if beta is None:
        return row
    placement = "loss" if row.kl == "none" and beta > 0 else row.kl
    return replace(row, kl=placement, kl_coefficient=beta)


def _check_knobs(row, steps, group, inner_steps, learning_rate, reference_every, max_rounds):
    counts = {"steps": steps, "group": group, "inner_steps": inner_steps, "max_rounds": max_rounds}
    if reference_every is not None:
        counts["reference_every"] = reference_every
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {count!r}")
    if not (learning_rate > 0 and math.isfinite(learning_rate)):
        raise ValueError(f"learning_rate must be positive and finite, got {learning_rate!r}")
    if row.needs_group and group < 2:
        raise ValueError(
            f"{row.name} compares the responses to one prompt: group must be at least 2, "
            f"got {group}"
        )


def _frozen(policy: Policy) -> Policy:
    return copy.deepcopy(policy).requires_grad_(False)


# --- samples ------------------------------------------------------------------------------------


class _Rollout(NamedTuple):
    prompts: Tensor  # (kept prompts, L)
    responses: Tensor  # (kept prompts * group, time)
    rewards: Tensor  # (kept prompts, group)
    reward: float  # mean over everything sampled
    zero_contrast: float  # share of groups without contrast among everything sampled
    sampled: int  # responses sampled


@dataclass(frozen=True)
class _Sampler:
    """Calling it gives the samples of one step; `round()` one group per prompt, all kept."""

    policy: Policy
    prompts: Tensor
    reward: Reward
    row: Algorithm
    group: int
    temperature: float
    max_rounds: int
    generator: torch.Generator

    def round(self) -> _Rollout:
        responses = self.policy.sample(
            self.prompts, self.group, seed=self.generator, temperature=self.temperature
        )
        rewards = self.reward(self.prompts[:, None], responses.unflatten(0, (-1, self.group)))
        expected = (len(self.prompts), self.group)
        if not isinstance(rewards, Tensor) or tuple(rewards.shape) != expected:
            got = tuple(rewards.shape) if isinstance(rewards, Tensor) else type(rewards).__name__
            raise ValueError(
                f"reward must return (prompts, group) = {expected} for prompts (prompts, 1, L) and "
                f"responses (prompts, group, time), got {got}"
            )
        rewards = rewards.to(next(self.policy.parameters()).dtype)
        share, mean = zero_contrast_share(rewards), rewards.mean().item()
        return _Rollout(self.prompts, responses, rewards, mean, share, rewards.numel())

    def __call__(self) -> _Rollout:
        if not self.row.dynamic_sampling:
            return self.round()
        rounds, kept, wanted = [], 0, len(self.prompts)
        while kept < wanted and len(rounds) < self.max_rounds:
            rounds.append(self.round())
            kept += int(_has_contrast(rounds[-1].rewards).sum())
        rewards = torch.cat([one.rewards for one in rounds])
        keep = _has_contrast(rewards).nonzero()[:wanted, 0]
        responses = torch.cat([one.responses for one in rounds]).unflatten(0, (-1, self.group))
        return _Rollout(
            torch.cat([one.prompts for one in rounds])[keep],
            responses[keep].flatten(0, 1),
            rewards[keep],
            rewards.mean().item(),
            zero_contrast_share(rewards),
            rewards.numel(),
        )


def _has_contrast(rewards: Tensor) -> Tensor:
    """(prompts, group) -> (prompts,) bool. For 0/1 rewards this is DAPO's condition."""
    return rewards.amax(1) != rewards.amin(1)


def _no_contrast(row: Algorithm, step: int, rounds: int, reward: float) -> str:
    message = (
        f"{row.name}, step {step}: no group with contrast in {rounds} rounds of sampling, every "
        f"group's rewards were all equal (mean reward {reward:g})"
    )
    if step == 0:
        raise RuntimeError(
            f"{message}; use a reward with partial credit, a larger group, easier prompts, or a "
            "row without dynamic sampling"
        )
    return message


def _batch(policy, reference, row: Algorithm, rollout: _Rollout, temperature: float) -> Batch:
    """What the first update of a step needs; later ones replace `logp` only."""
    mask = policy.mask(rollout.responses)
    logp = policy.log_probs(rollout.prompts, rollout.responses, temperature=temperature)
    logp_old, logp_ref = logp.detach(), None
    if row.needs_reference:
        logp_ref = reference.log_probs(rollout.prompts, rollout.responses, temperature=temperature)
    rewards = row.sequence_rewards(rollout.rewards.flatten(), logp_old, logp_ref, mask)
    advantages = row.advantage(rewards.view_as(rollout.rewards))
    return Batch(
        logp=logp,
        advantages=advantages.reshape(-1, 1),
        mask=mask,
        logp_old=logp_old,
        logp_ref=logp_ref,
        sequences=len(mask),
        tokens=int(mask.sum()),
        length=policy.length,
    )


# --- losses -------------------------------------------------------------------------------------


def _own_loss(loss: Loss, row: Algorithm, batch: Batch) -> Tensor:
    """A learner's loss in place of the row's surrogate and average, plus the row's KL term."""
    if row.kl != "loss" or row.kl_coefficient == 0:
        return _call_own(loss, row, batch)
    return _call_own(loss, row, batch) + replace(row, surrogate=_nothing, knobs={}).loss(batch)


def _call_own(loss: Loss, row: Algorithm, batch: Batch) -> Tensor:
    known = dict(row.knobs) | {name: getattr(batch, name) for name in ("sequences", "tokens")}
    known["length"] = batch.length
    takes = list(inspect.signature(loss).parameters.values())[4:]
    if any(p.kind is p.VAR_KEYWORD for p in takes):
        given = known
    else:
        given = {p.name: known[p.name] for p in takes if p.name in known}
    missing = [p.name for p in takes if p.default is p.empty and p.kind not in _VARIADIC]
    missing = [name for name in missing if name not in given]
    if missing:
        raise TypeError(
            f"the loss asks for {missing}, which the row {row.name!r} does not have; it can give "
            f"{sorted(known)}"
        )
    value = loss(batch.logp, batch.logp_old, batch.advantages, batch.mask, **given)
    if not isinstance(value, Tensor) or value.ndim != 0:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"the loss must return one number, a scalar tensor; got {got}")
    if not value.requires_grad:
        raise ValueError("the loss has no gradient: it does not depend on logp, or detaches it")
    return value


_VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def _nothing(logp: Tensor) -> Tensor:
    return torch.zeros_like(logp)


def _switched_off(loss: Loss | None, bare: Algorithm, batch: Batch) -> tuple[float, float]:
    """Shares of tokens with A > 0 and with A < 0 whose gradient is exactly zero: the clipped ones.

    Read off the gradient itself (`bare` is the row without its KL term), so it holds for every
    surrogate, per token or per sequence, and for a learner's own loss.
    """
    leaf = replace(batch, logp=batch.logp.detach().requires_grad_())
    value = bare.loss(leaf) if loss is None else _call_own(loss, bare, leaf)
    (gradient,) = torch.autograd.grad(value, leaf.logp)
    dead = gradient == 0
    high, low = dead & (batch.advantages > 0), dead & (batch.advantages < 0)
    return tuple(mean_over_tokens(side.to(gradient.dtype), batch.mask) for side in (high, low))


def _clip_gradient(policy: Policy, limit: float | None, where: str) -> float:
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), math.inf if limit is None else limit)
    if not bool(torch.isfinite(norm)):
        raise FloatingPointError(
            f"{where}: the gradient is not finite; lower learning_rate, or look at the loss"
        )
    return norm.item()


# --- what is recorded ---------------------------------------------------------------------------


def _few(policy: Policy, prompts: Tensor, exact: bool | None) -> bool:
    if exact is not None:
        return exact
    return len(prompts) * policy.vocab_size**policy.length <= _MAX_EXACT


def _exact_observer(policy: Policy, start: Policy, prompts: Tensor, reward: Reward):
    rewards = all_rewards(policy, prompts, reward)  # (prompts, responses)
    logp_start = response_log_probs(start, prompts)

    @torch.no_grad()
    def observe(reference: Policy, rollout: _Rollout, logp_now: Tensor | None) -> State:
        logp = response_log_probs(policy, prompts)
        probs = logp.exp()

        def mean(x: Tensor) -> float:
            return torch.where(probs > 0, probs * x, 0.0).sum(-1).mean().item()

        to_start = mean(logp - logp_start)
        to_ref = to_start
        if reference is not start:
            to_ref = mean(logp - response_log_probs(reference, prompts))
        return State(mean(rewards), mean(-logp), to_start, to_ref)

    return observe


def _sampled_observer(policy: Policy, start: Policy, prompts: Tensor, reward: Reward):
    @torch.no_grad()
    def observe(reference: Policy, rollout: _Rollout, logp_now: Tensor | None) -> State:
        def whole(of: Policy) -> Tensor:
            return of.log_probs(rollout.prompts, rollout.responses).sum(-1)

        now = whole(policy) if logp_now is None else logp_now.sum(-1)
        to_start = (now - whole(start)).mean().item()
        to_ref = to_start
        if reference is not start:
            to_ref = (now - whole(reference)).mean().item()
        return State(math.nan, -now.mean().item(), to_start, to_ref)

    return observe
