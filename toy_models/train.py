"""One short training loop for every row of `policy_gradients.ALGORITHMS`.

    history = train(policy, prompts, reward, "grpo", steps=100, group=8, seed=0)
    history = train(policy, prompts, reward, "ppo", critic=TabularCritic(policy, prompts))
    history["reward"]        # mean sampled reward, one number per update
    history.final.objective  # exact J after the last update

A step: refresh the reference if it is due -> sample a group per prompt -> score -> drop groups
without contrast where the row asks for it -> advantages, from the group or from a critic ->
`inner_steps` passes of updates over these samples. What an algorithm is stands in its row; this
file never asks for a name.

Left out: micro-batches, devices, checkpoints (see `llm_trainer`), plots.
"""

import copy
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from policy_gradients.advantages import gae, reward_to_go, shape_rewards_with_kl, whiten
from policy_gradients.algorithms import ALGORITHMS, Algorithm, Batch
from policy_gradients.diagnostics import mean_over_tokens, zero_contrast_share
from policy_gradients.kl import k1
from policy_gradients.logprobs import entropy
from policy_gradients.values import value_loss
from toy_models.critics import Critic, explained_variance, last_token
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
    value_loss: float = math.nan  # of the critic, mean over tokens, before its coefficient
    explained_variance: float = math.nan  # of this step's returns, by the critic that met them


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
    minibatches: int = 1,
    learning_rate: float = 0.05,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    max_grad_norm: float | None = None,
    beta: float | None = None,
    reference: Policy | None = None,
    reference_every: int | None = None,
    temperature: float = 1.0,
    learner_temperature: float | None = None,
    entropy_coefficient: float = 0.0,
    critic: Critic | None = None,
    gamma: float = 1.0,
    lam: float = 0.95,
    whitening: bool = True,
    critic_learning_rate: float | None = None,
    critic_warmup: int = 0,
    loss: Loss | None = None,
    max_rounds: int = 20,
    max_samples: int | None = None,
    exact: bool | None = None,
    watch: bool = True,
    seed: int = 0,
) -> History:
    """Train `policy` in place with one row of the table; return what happened.

    policy, prompts, reward : as in `toy_models.policies` and `toy_models.sorting`; every step uses
        all prompts (prompts, L)
    algorithm           : a name in `ALGORITHMS`, or a row, for example dataclasses.replace(...)
    steps               : batches of samples            group : responses per prompt
    inner_steps         : passes over each batch, all on the same samples
    minibatches         : updates per pass, each on its own share of the responses, dealt out anew
                          in every pass; 1 = one update on all of them
    optimizer           : called with (parameters, lr=learning_rate); torch.optim.SGD for the bare
                          gradient
    max_grad_norm       : longer gradients are scaled down to this length; None = never
    beta                : replaces the row's KL coefficient, in points per nat; a row without a KL
                          term gets it in the loss
    reference           : policy of the KL term, default a frozen copy of `policy` at the start
    reference_every     : refresh the reference to the current policy every this many steps
    temperature         : of sampling             learner_temperature : of all log-probabilities
                          the loss sees; None = the same. Different ones are a bug to study
    entropy_coefficient : bonus on the entropy of the next token at the sampled states, points per
                          nat, averaged as the row averages its loss
    critic              : a critic of `toy_models.critics`, trained in place. Rows that learn from
                          one need it; the next five knobs say how
    gamma, lam          : of GAE. A token is paid the row's KL penalty, the last one the score too;
                          nothing follows it, not even where a response was cut at full length
    whitening           : advantages minus their mean over all tokens of the batch, then in standard
                          deviations
    critic_learning_rate: None = learning_rate
    critic_warmup       : in this many first steps only the critic learns
    loss                : your own loss in the signature of `policy_gradients.grpo_loss`; it
                          replaces the row's surrogate and average, not its advantage, KL or
                          critic. It receives by keyword what it asks for among the row's knobs,
                          `sequences`, `tokens` and `length`
    max_rounds          : most rounds of sampling to fill a batch with groups that have contrast
                          (rows with dynamic sampling). What was found by then is used; of too
                          many, as many as there are prompts, drawn by lot
    max_samples         : a step whose responses would bring their number above this is thrown
                          away and ends the run (the first one always counts); None = no limit
    exact               : measure J, entropy and KL by enumeration at every update; None = when
                          there are at most 5,000 pairs of prompt and response
    watch               : False leaves out all that no update needs: the records' clip shares and
                          `State` are nan. The same training in two thirds of the time
    seed                : of the sampling; the same seed gives bit-identical results

    Raises KeyError for an unknown algorithm, ValueError for a critic that is missing or has no use
    and for an impossible value, RuntimeError when the first step finds no group with contrast (a
    later step ends the run, `History.stopped` says so), FloatingPointError for a gradient that is
    not finite.
    """
    row = _row(algorithm, beta)
    bare = replace(row, kl="none", kl_coefficient=0.0, value_coefficient=0.0)
    prompts = check_prompts(prompts)
    counts = {"steps": steps, "group": group, "inner_steps": inner_steps}
    counts |= {"minibatches": minibatches, "max_rounds": max_rounds}
    counts |= {} if max_samples is None else {"max_samples": max_samples}
    _check_knobs(row, counts, len(prompts), learning_rate, reference_every, entropy_coefficient)
    judge = _Judge(critic, gamma, lam, whitening, critic_learning_rate, critic_warmup)
    judge.check(row)
    optimise = optimizer(judge.learners(policy, learning_rate), lr=learning_rate)
    generator = torch.Generator().manual_seed(seed)
    start = _frozen(policy)
    reference = start if reference is None else _frozen(reference)
    learner_temperature = temperature if learner_temperature is None else learner_temperature
    observe = _exact_observer if _few(policy, prompts, exact) else _sampled_observer
    observe = observe(policy, start, prompts, reward) if watch else _see_nothing
    switched_off = _switched_off if watch else _see_no_clipping
    draw = _Sampler(policy, prompts, reward, row, group, temperature, max_rounds, generator)
    records: list[Record] = []
    stopped, spent = None, 0

    for step in range(steps):
        if reference_every is not None and step > 0 and step % reference_every == 0:
            reference = _frozen(policy)
        rollout = draw()
        if not len(rollout.prompts):
            stopped = _no_contrast(row, step, max_rounds, rollout.reward)
            break
        spent += rollout.sampled
        if max_samples is not None and spent > max_samples and step > 0:
            stopped = f"{row.name}, step {step}: it would take more than {max_samples} responses"
            break
        whole, explained = _batch(policy, reference, row, rollout, learner_temperature, judge)
        for inner, rows in enumerate(_deal(len(whole.mask), inner_steps, minibatches, generator)):
            part, batch = rollout, whole
            if rows is not None:
                part, batch = rollout.take(rows), _take(whole, rows)
            if inner > 0:  # the first update has it already: at ratio 1, logp is logp_old
                batch = _forward(policy, judge, batch, part, learner_temperature)
            value = row.loss(batch) if loss is None else _own_loss(loss, row, batch)
            if entropy_coefficient > 0:
                bonus = _mean_entropy(policy, row, batch, part, learner_temperature)
                value = value - entropy_coefficient * bonus
            optimise.zero_grad()
            value.backward()
            where = f"{row.name}, step {step}, inner {inner}"
            seen = Record(
                step,
                inner,
                rollout.reward,
                value.item(),
                _clip_gradient(policy, max_grad_norm, where),
                *switched_off(loss, bare, batch),
                rollout.zero_contrast,
                rollout.sampled,
                *observe(reference, rollout, batch.logp if rows is None else None),
                *_judgement(row, batch, explained),
            )
            records.append(seen)
            if critic is not None:
                _clip_gradient(critic, max_grad_norm, f"{where}, critic")
            if step < critic_warmup:
                policy.zero_grad()  # to None: the optimiser passes over it
            optimise.step()
    final = observe(reference, draw.round(), None) if watch else _see_nothing()
    return History(row.name, seed, tuple(records), final, stopped)


def _row(algorithm: str | Algorithm, beta: float | None) -> Algorithm:
    row = algorithm if isinstance(algorithm, Algorithm) else ALGORITHMS[algorithm]
    if beta is None:
        return row
    placement = "loss" if row.kl == "none" and beta > 0 else row.kl
    return replace(row, kl=placement, kl_coefficient=beta)


def _check_knobs(row, counts, prompts, learning_rate, reference_every, entropy_coefficient):
    if reference_every is not None:
        counts = counts | {"reference_every": reference_every}
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {count!r}")
    _check_rate("learning_rate", learning_rate)
    if not (entropy_coefficient >= 0 and math.isfinite(entropy_coefficient)):
        raise ValueError(
            f"entropy_coefficient must be at least 0 and finite, got {entropy_coefficient!r}"
        )
    if row.needs_group and counts["group"] < 2:
        raise ValueError(
            f"{row.name} compares the responses to one prompt: group must be at least 2, "
            f"got {counts['group']}"
        )
    if counts["minibatches"] > prompts * counts["group"]:
        raise ValueError(
            f"minibatches={counts['minibatches']} is more than the {prompts * counts['group']} "
            f"responses of a step ({prompts} prompts x group {counts['group']})"
        )


def _check_rate(name: str, rate: float) -> None:
    if not (rate > 0 and math.isfinite(rate)):
        raise ValueError(f"{name} must be positive and finite, got {rate!r}")


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

    def take(self, rows: Tensor) -> "_Rollout":
        """Some responses, each with its own row of prompts."""
        group = len(self.responses) // len(self.prompts)
        prompts = self.prompts.repeat_interleave(group, 0)[rows]
        return self._replace(prompts=prompts, responses=self.responses[rows])


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
        keep = _has_contrast(rewards).nonzero()[:, 0]
        if len(keep) > wanted:  # by lot: in order, late prompts would lose up to half their share
            lot = torch.randperm(len(keep), generator=self.generator)[:wanted]
            keep = keep[lot.sort().values]
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


class _Judge(NamedTuple):
    """Where the advantages of a step come from: a critic, or without one the row and the group."""

    critic: Critic | None
    gamma: float = 1.0
    lam: float = 0.95
    whitening: bool = True
    learning_rate: float | None = None
    warmup: int = 0

    def check(self, row: Algorithm) -> None:
        if row.needs_critic and self.critic is None:
            able = [name for name, other in ALGORITHMS.items() if not other.needs_critic]
            raise ValueError(
                f"{row.name} needs a critic, for example critic=TabularCritic(policy, prompts) of "
                f"toy_models.critics; rows without a critic: {', '.join(able)}"
            )
        if not row.needs_critic and self != _Judge(None):
            raise ValueError(
                f"{row.name} has no use for a critic, its advantages compare rewards: leave critic "
                "and its knobs (gamma, lam, whitening, critic_learning_rate, critic_warmup) out"
            )
        for name, fraction in (("gamma", self.gamma), ("lam", self.lam)):
            if not 0 <= fraction <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {fraction!r}")
        if self.learning_rate is not None:
            _check_rate("critic_learning_rate", self.learning_rate)
        if not isinstance(self.warmup, int) or isinstance(self.warmup, bool) or self.warmup < 0:
            raise ValueError(f"critic_warmup must be a whole number >= 0, got {self.warmup!r}")
        if row.needs_critic and row.kl == "reward" and row.kl_estimator is not k1:
            raise ValueError(
                f"{row.name} pays its KL per token, which needs kl_estimator=k1, the only one of "
                "k1, k2, k3 whose average gradient as a reward is that of the KL"
            )

    def learners(self, policy: Policy, learning_rate: float):
        """What the optimiser takes: the policy's parameters, and the critic's at their own rate."""
        if self.critic is None:
            return policy.parameters()
        rate = learning_rate if self.learning_rate is None else self.learning_rate
        critic = {"params": self.critic.parameters(), "lr": rate}
        return [{"params": policy.parameters()}, critic]

    def values(self, rollout: _Rollout) -> Tensor | None:
        if self.critic is None:
            return None
        return self.critic.values(rollout.prompts, rollout.responses)

    def verdict(self, row: Algorithm, rollout: _Rollout, batch: Batch) -> tuple[Batch, float]:
        """The batch with advantages (and what the critic is to learn); the explained variance."""
        scores = rollout.rewards.flatten()
        if self.critic is None:
            rewards = row.sequence_rewards(scores, batch.logp_old, batch.logp_ref, batch.mask)
            advantages = row.advantage(rewards.view_as(rollout.rewards))
            return replace(batch, advantages=advantages.reshape(-1, 1)), math.nan
        beta = row.kl_coefficient if row.kl == "reward" else 0.0
        home = batch.logp_old if beta == 0 else batch.logp_ref
        rewards = shape_rewards_with_kl(scores, batch.logp_old, home, batch.mask, beta=beta)
        done, values_old = last_token(batch.mask), batch.values.detach()
        advantages, returns = gae(rewards, values_old, done, gamma=self.gamma, lam=self.lam)
        sampled = reward_to_go(rewards, done, gamma=self.gamma)
        if self.whitening:
            advantages = whiten(advantages, batch.mask)
        batch = replace(batch, advantages=advantages, values_old=values_old, returns=returns)
        return batch, explained_variance(values_old, sampled, batch.mask)


def _batch(policy, reference, row, rollout, temperature, judge) -> tuple[Batch, float]:
    """Everything the first update of a step needs, and the explained variance of the critic."""
    mask = policy.mask(rollout.responses)
    logp = policy.log_probs(rollout.prompts, rollout.responses, temperature=temperature)
    logp_ref = None
    if row.needs_reference:
        logp_ref = reference.log_probs(rollout.prompts, rollout.responses, temperature=temperature)
    batch = Batch(
        logp=logp,
        logp_old=logp.detach(),
        advantages=None,
        mask=mask,
        logp_ref=logp_ref,
        values=judge.values(rollout),
        sequences=len(mask),
        tokens=int(mask.sum()),
        length=policy.length,
    )
    return judge.verdict(row, rollout, batch)


def _deal(responses: int, passes: int, minibatches: int, generator: torch.Generator):
    """The rows of each update of a step; None = all of them."""
    for _ in range(passes):
        if minibatches == 1:
            yield None
        else:
            yield from torch.randperm(responses, generator=generator).chunk(minibatches)


def _take(batch: Batch, rows: Tensor) -> Batch:
    """Some rows of a batch as an optimiser step of their own: they count themselves."""
    tensors = {name: x for name, x in vars(batch).items() if isinstance(x, Tensor)}
    tensors = {name: x[rows] for name, x in tensors.items()}
    return replace(batch, **tensors, sequences=len(rows), tokens=int(tensors["mask"].sum()))


def _forward(policy, judge, batch: Batch, rollout: _Rollout, temperature: float) -> Batch:
    """The batch under the policy and the critic as they are now."""
    logp = policy.log_probs(rollout.prompts, rollout.responses, temperature=temperature)
    return replace(batch, logp=logp, values=judge.values(rollout))


# --- losses -------------------------------------------------------------------------------------


def _own_loss(loss: Loss, row: Algorithm, batch: Batch) -> Tensor:
    """A learner's loss in place of the row's surrogate and average; the row's other terms stay."""
    if row.zero_advantage_is_silent:  # there are no other terms
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


def _mean_entropy(policy, row: Algorithm, batch: Batch, rollout: _Rollout, temperature) -> Tensor:
    """Entropy of the next token at the sampled states, averaged like the row's loss: a scalar."""
    logits = policy.logits(rollout.prompts, rollout.responses)
    per_token = entropy(logits, temperature=temperature)
    only = replace(
        row,
        surrogate=lambda logp: per_token,
        knobs={},
        kl="none",
        kl_coefficient=0.0,
        value_coefficient=0.0,
    )
    return only.loss(batch)


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


def _judgement(row: Algorithm, batch: Batch, explained: float) -> tuple[float, float]:
    if batch.values is None:
        return math.nan, explained
    values = batch.values.detach()
    lost = value_loss(values, batch.values_old, batch.returns, clip=row.value_clip)
    return mean_over_tokens(lost, batch.mask), explained


def _few(policy: Policy, prompts: Tensor, exact: bool | None) -> bool:
    if exact is not None:
        return exact
    return len(prompts) * policy.vocab_size**policy.length <= _MAX_EXACT


def _see_nothing(*_) -> State:
    return State(math.nan, math.nan, math.nan, math.nan)


def _see_no_clipping(loss: Loss | None, bare: Algorithm, batch: Batch) -> tuple[float, float]:
    return math.nan, math.nan


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
