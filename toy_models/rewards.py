"""Where a reward can come from, and what each source gets wrong: small enough to enumerate.

    rules        `multiset_ordering_reward` and `audit`: is the best answer the right one?
    rubrics      `rubric`: weighted checks        judges    `judge_prefers`: with two known biases
    steps        `progress`, `rollout_values`: a number per prefix; `shaped`: paid without harm
    objectives   `pareto_front`, `safety_first`, `standardized_sum`
    demonstrations  `maximum_entropy_irl`: the reward that explains them

A reward has the signature of `toy_models.sorting`: reward(prompts (..., L), responses (..., T))
-> (...), leading axes broadcast. Rewards are points, log-probabilities nats.

Left out: learning a reward from comparisons (`toy_models.preferences`), what to do when a reward
is hardly ever met (`toy_models.sparse_rewards`), networks, text.
Lecture 16.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from policy_gradients.advantages import group_standardized
from toy_models.exact import Reward, all_rewards, response_log_probs, responses_of
from toy_models.policies import Policy, as_generator, check_prompts
from toy_models.sorting import all_sequences, sorted_reward

# --- rules, rubrics, judges ---------------------------------------------------------------------


def multiset_ordering_reward(prompts: Tensor, responses: Tensor) -> Tensor:
    """Partial credit whose maximum, 2L-1, is earned by the right response alone [RW-2].

    Formula: k + 1[k = L] * (neighbours in order), k = sum_v min(count of v in x, count of v in y):
    every number counts as often as it is asked for, and order pays only once the content is whole.
    The count makes the maximum unique; the gate 1[k = L] only takes the points for order away from
    answers written without looking, and makes some wrong answers harder to leave.

    prompts, responses : (..., L) integer, not negative; the leading axes broadcast
    returns            : (...) torch's default floating dtype, 0 .. 2L-1
    Raises TypeError for tokens that are not integers, ValueError for unequal lengths.
    """
    for name, tokens in (("prompts", prompts), ("responses", responses)):
        got = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        if got not in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
            raise TypeError(f"{name} must be a tensor of integer token ids, got {got}")
        if not tokens.numel() or tokens.min() < 0:
            raise ValueError(f"{name} must hold token ids from 0 on, got {tokens.tolist()}")
    length = prompts.shape[-1]
    if responses.shape[-1] != length:
        raise ValueError(
            f"prompts {tuple(prompts.shape)} and responses {tuple(responses.shape)} must have the "
            "same last axis: this rule knows no end token"
        )
    ids = torch.arange(1 + int(torch.maximum(prompts.max(), responses.max())))
    asked, given = ((x[..., None] == ids).sum(-2) for x in (prompts, responses))  # (..., vocab)
    k = torch.minimum(asked, given).sum(-1)
    in_order = (responses.diff(dim=-1) >= 0).sum(-1)
    return torch.where(k == length, k + in_order, k).to(torch.get_default_dtype())


class Audit(NamedTuple):
    """What the best responses to every prompt are (see `audit`)."""

    prompts: int  # prompts looked at: all V ** L
    sound: int  # prompts whose only best response is the right one
    most_best: int  # most best responses that one prompt has
    blind: float  # share of prompts on which one response, given to all unread, earns the maximum


def audit(reward: Reward, *, vocab_size: int = 3, length: int = 3) -> Audit:
    """Enumerate every (prompt, response) and compare the reward's maxima with the right answers.

    A reward is hack-proof [RW-1] when `sound == prompts`: its argmax is {right answer}, everywhere.
    That is a statement about the optimum, not about how easily training gets there.
    Raises ValueError for more than two million sequences.
    """
    every = all_sequences(vocab_size, length)
    points = reward(every[:, None], every)  # (prompts, responses)
    if points.shape != (len(every), len(every)) or bool(points.isnan().any()):
        raise ValueError(
            f"reward must give {(len(every), len(every))} (prompts, responses) points and no nan, "
            f"got {tuple(points.shape)}"
        )
    best = points == points.amax(1, keepdim=True)
    right = sorted_reward(every[:, None], every) == 1
    sound = (best == right).all(1)
    return Audit(
        len(every), int(sound.sum()), int(best.sum(1).max()), best.double().mean(0).max().item()
    )


def rubric(checks: Mapping[str, tuple[float, Reward]]) -> Reward:
    """A reward from a list of checks: the sum of the weights of those that hold.

    checks  : name -> (weight in points, check); a check has a reward's signature and returns bool
    returns : a reward. Raises ValueError for an empty list, TypeError for a check that is no bool.
    """
    if not checks:
        raise ValueError("checks must name at least one check, got none")

    def reward(prompts: Tensor, responses: Tensor) -> Tensor:
        total = torch.zeros(())
        for name, (weight, check) in checks.items():
            held = check(prompts, responses)
            if held.dtype != torch.bool:
                raise TypeError(f"check {name!r} must return bool, got {held.dtype}")
            total = total + weight * held
        return total

    return reward


def judge_prefers(
    first: Tensor,
    second: Tensor,
    *,
    position: float = 0.0,
    both_orders: bool = False,
) -> Tensor:
    """Probability that a judge who reads `first` before `second` prefers it [RW-11].

    Formula: sigma(q_first - q_second + position). With `both_orders` the mean over both readings,
    (sigma(d + position) + sigma(d - position)) / 2: complementary under exchange and above one
    half exactly where d > 0, whatever the bias. A bias that belongs to the answer (its length, its
    author) is part of q and stays.

    first, second : (...) what the judge sees in each answer, nats of preference
    position      : bonus in nats for the answer read first
    returns       : (...) probability
    """
    d = first - second
    if both_orders:
        return (torch.sigmoid(d + position) + torch.sigmoid(d - position)) / 2
    return torch.sigmoid(d + position)


# --- a number per step --------------------------------------------------------------------------


def progress(prompts: Tensor, responses: Tensor) -> Tensor:
    """How many numbers of the right answer stand, in order, at the end of what is written so far.

    Formula: the largest k <= L such that the last k tokens are the first k of the sorted prompt.
    It can rise, fall back and rise again; an end token matches nothing.

    prompts : (..., L)   responses : (..., T)
    returns : (..., T + 1) points, after 0, 1, ..., T tokens; the first is 0
    """
    target = prompts.sort(-1).values
    lead = torch.broadcast_shapes(prompts.shape[:-1], responses.shape[:-1])
    points = torch.zeros(*lead, responses.shape[-1] + 1)
    for t in range(1, responses.shape[-1] + 1):
        for k in range(1, min(t, target.shape[-1]) + 1):
            same = (responses[..., t - k : t] == target[..., :k]).all(-1)
            points[..., t] = torch.where(same, float(k), points[..., t])
    return points


def rollout_values(
    policy: Policy, prompt: Tensor, reward: Reward, *, samples: int, seed: int
) -> Tensor:
    """Value of every prefix of every response, by playing each one to its end `samples` times.

    returns : (responses, length + 1) points, laid out like `exact.prefix_values`, which is its
              expectation; the last column is the reward itself. So are the soft labels for process
              reward models made without people (Wang et al. 2023, Math-Shepherd, arXiv 2312.08935;
              their hard labels ask whether any attempt is right).
    Raises ValueError for several prompts or no samples.
    """
    if not isinstance(samples, int) or samples < 1:
        raise ValueError(f"samples must be a positive whole number, got {samples!r}")
    prompt, generator = check_prompts(prompt), as_generator(seed)
    if len(prompt) != 1:
        raise ValueError(f"this function takes one prompt, got {len(prompt)}; call it per prompt")
    responses = responses_of(policy)
    with torch.no_grad():
        probs = response_log_probs(policy, prompt)[0].exp()
        rewards = all_rewards(policy, prompt, reward)[0]
    columns = []
    for t in range(policy.length):
        prefixes, which = _prefixes(responses, t)
        member = which == torch.arange(len(prefixes))[:, None]  # (prefixes, responses)
        drawn = torch.multinomial(member * probs, samples, replacement=True, generator=generator)
        columns.append(rewards[drawn].mean(1)[which])
    return torch.stack([*columns, rewards], 1)


def _prefixes(responses: Tensor, t: int) -> tuple[Tensor, Tensor]:
    """The different beginnings of t tokens, and which of them each response has."""
    if t == 0:  # torch cannot tell rows without columns apart
        return responses[:1, :0], torch.zeros(len(responses), dtype=torch.long)
    return responses[:, :t].unique(dim=0, return_inverse=True)


def shaped(
    rewards: Tensor,
    potentials: Tensor,
    mask: Tensor | None = None,
    *,
    gamma: float = 1.0,
    terminal: float | Tensor = 0.0,
) -> Tensor:
    """Rewards plus gamma * Phi(s') - Phi(s): the bonus that is safe whatever the task is [RW-7].

    rewards    : (batch, time) points, on the tokens
    potentials : (batch, time) points, Phi of the state *before* each token
    mask       : (batch, time), 1 up to and including the end token; default all ones
    terminal   : Phi of the end, one number or (batch,). With 0 every policy's J changes by
                 -Phi(start) and by nothing else; only this form is safe for all tasks, on a given
                 one others may be (Ng, Harada, Russell 1999, theorem 1). gamma^T terminal, where it
                 differs between answers, is a second reward (the knob exists to show that; with
                 gamma < 1 a constant pays for the length)
    returns    : (batch, time) points, 0 where the mask is 0
    Raises ValueError for unequal shapes or a gamma outside [0, 1].
    """
    if rewards.shape != potentials.shape:
        raise ValueError(
            f"rewards {tuple(rewards.shape)} and potentials {tuple(potentials.shape)} must have "
            "one shape (batch, time): a potential belongs to the state before each token"
        )
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma must lie in [0, 1], got {gamma!r}")
    valid = torch.ones_like(rewards, dtype=torch.bool) if mask is None else mask.bool()
    _check_shaped(rewards, potentials, valid, terminal)
    after = torch.cat([potentials[..., 1:], torch.zeros_like(potentials[..., :1])], -1)
    last = torch.cat([~valid[..., 1:], torch.ones_like(valid[..., :1])], -1)
    end = torch.as_tensor(terminal, dtype=after.dtype)
    after = torch.where(last, end[..., None] if end.ndim else end, after)
    return torch.where(valid, rewards + gamma * after - potentials, torch.zeros_like(rewards))


def _check_shaped(rewards: Tensor, potentials: Tensor, valid: Tensor, terminal) -> None:
    if not (rewards.is_floating_point() and potentials.is_floating_point()):
        raise TypeError(
            f"rewards and potentials must be floating point, got {rewards.dtype}, "
            f"{potentials.dtype}"
        )
    if valid.shape != rewards.shape:
        raise ValueError(f"mask must be {tuple(rewards.shape)}, got {tuple(valid.shape)}")
    if bool((valid[..., 1:] & ~valid[..., :-1]).any()):
        raise ValueError("mask must be 1 up to and including the end token, then 0: it has a hole")
    end = torch.as_tensor(terminal).shape
    if end not in ((), rewards.shape[:-1]):
        raise ValueError(
            f"terminal must be one number or {tuple(rewards.shape[:-1])}, got {tuple(end)}"
        )


# --- several objectives -------------------------------------------------------------------------


def pareto_front(points: Tensor) -> Tensor:
    """Which rows no other row beats: none is at least as good everywhere and better somewhere.

    points : (n, objectives), more is better        returns : (n,) bool
    """
    if points.ndim != 2:
        raise ValueError(f"points must be (n, objectives), got {tuple(points.shape)}")
    as_good = (points[:, None] >= points).all(-1)  # (by, of)
    better = (points[:, None] > points).any(-1)
    return ~(as_good & better).any(0)


def safety_first(value: Tensor, safe: Tensor, *, floor: float) -> Tensor:
    """`value` where `safe` holds, else `floor`: no amount of value buys an unsafe answer.

    value : (...) points, at least `floor`      safe : (...) bool
    Raises ValueError where a safe answer would earn less than an unsafe one.
    """
    if safe.shape != value.shape or safe.dtype != torch.bool:
        raise ValueError(
            f"safe must be bool {tuple(value.shape)}, got {safe.dtype} {tuple(safe.shape)}"
        )
    if not bool((value >= floor).all()):
        raise ValueError(f"floor must not exceed any value; got {floor} above {value.min():g}")
    return torch.where(safe, value, floor)


def standardized_sum(rewards: Tensor, weights: Sequence[float] | None = None) -> Tensor:
    """Advantages from several rewards, each standardised in its group before they are added.

    rewards : (objectives, prompts, group) points     weights : one per objective, default ones
    returns : (prompts, group). Standardising the *sum* instead (GRPO) lets the reward of the
              largest spread decide, and maps different combinations to the same advantage
              (Liu et al. 2026, GDPO, arXiv 2601.05242).
    """
    weights = [1.0] * len(rewards) if weights is None else weights
    if rewards.ndim != 3 or len(weights) != len(rewards):
        raise ValueError(
            "rewards must be (objectives, prompts, group) with one weight per objective, got "
            f"{tuple(rewards.shape)} and {len(weights)} weights"
        )
    each = [w * group_standardized(r) for w, r in zip(weights, rewards, strict=True)]
    return torch.stack(each).sum(0)


# --- demonstrations -----------------------------------------------------------------------------


def maximum_entropy_irl(
    features: Tensor, log_ref: Tensor, shown: Tensor, *, steps: int = 50
) -> Tensor:
    """Reward weights w under which the demonstrations are most likely [RW-12].

    The demonstrator is taken for a Gibbs policy, pi(y) = ref(y) exp(w . f(y)) / Z: log-likelihood
    w . E_shown[f] - log Z, gradient E_shown[f] - E_pi[f], Hessian -Cov_pi(f); Newton's method.

    features : (responses, k) f(y)    log_ref : (responses,) nats
    shown    : (responses,) distribution of the demonstrations (exact, or counted)
    returns  : (k,) nats per unit of each feature, so reward / beta. A feature that is constant, or
               a sum of others, cannot be identified: its direction stays at 0.
    Raises ValueError for a `shown` that is no distribution, and where no finite weights are best
    (an expert that always maximises some feature: E_shown[f] on the edge of what ref can write).
    """
    if bool((shown < 0).any()) or not math.isclose(shown.sum().item(), 1, abs_tol=1e-6):
        raise ValueError(f"shown must be a distribution, got sum {shown.sum().item():g}")
    _check_shown(features, log_ref, shown, steps)
    weights = features.new_zeros(features.shape[1])
    for _ in range(steps):
        probs = torch.softmax(log_ref + features @ weights, 0)
        centered = features - probs @ features
        hessian = centered.T @ (probs[:, None] * centered)
        step = torch.linalg.pinv(hessian, hermitian=True) @ (shown @ centered)
        weights = weights + step / max(1.0, step.norm().item())  # far out Newton overshoots
    if step.norm() > 1e-6 * (1 + weights.norm()):
        raise ValueError(
            f"no finite weights in {steps} steps, they are still growing: {weights.tolist()}; "
            "the shown features are as extreme as the reference can write: mix in other answers"
        )
    return weights


def _check_shown(features: Tensor, log_ref: Tensor, shown: Tensor, steps: int) -> None:
    if features.ndim != 2 or not (log_ref.shape == shown.shape == features.shape[:1]):
        raise ValueError(
            "features (responses, k), log_ref and shown (responses,) do not fit: got "
            f"{tuple(features.shape)}, {tuple(log_ref.shape)}, {tuple(shown.shape)}"
        )
    if not bool(features.isfinite().all()) or bool((log_ref.isnan() | (log_ref == math.inf)).any()):
        raise ValueError("features must be finite and log_ref log-probabilities, got inf or nan")
    if bool(((log_ref == -math.inf) & (shown > 0)).any()):
        raise ValueError("shown holds a response that the reference never writes (log_ref -inf)")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
