"""Learning from comparisons: reward models, DPO and its relatives, against exact answers.

    pairs = sample_comparisons(policy, prompts, reward, pairs=200, seed=0)
    model = FeatureReward(vocab_size=3, length=3)          # or TableReward(prompts, 3, 3)
    fit_reward_model(model, pairs, steps=300, learning_rate=0.05)
    history = learn_from_pairs(policy, policy, pairs, partial(dpo, beta=0.5), steps=200,
                               learning_rate=0.05, reward=reward)
    history["chosen"]                                       # mean log-probability of the chosen
    online_dpo(policy, prompts, reward, rounds=30, pairs=24, beta=0.5, learning_rate=0.1)

Who wins a comparison is drawn from Bradley-Terry with `scale` times the true reward: P(a beats b)
= sigmoid(scale (R(a) - R(b))). `scale = math.inf` lets the better response win always, 0 tosses a
coin always; equal rewards toss one at every scale, so drop ties where no label may be noise. A
pair of two equal texts tells nothing and is dropped.
`all_comparisons` gives the same law without dice: every pair with its probability, so what a loss
ends at can be compared with `exact.gibbs_distribution`.

At equal budgets beside PPO and GRPO: `toy_models.preference_race`.
Left out: rankings drawn from a model, several annotators, and text. Lectures 16 and 17.
"""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from policy_gradients.preferences import bradley_terry, dpo
from toy_models.exact import (
    all_rewards,
    exact_kl,
    expected_reward,
    response_log_probs,
    responses_of,
)
from toy_models.policies import Policy, PromptIndex, as_generator, check_prompts, group_size

Reward = Callable[[Tensor, Tensor], Tensor]
PairLoss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
LabelLoss = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def _whole(policy: Policy, prompts: Tensor, responses: Tensor) -> Tensor:
    """(rows,) nats: log-probability of each response, the sum over its tokens."""
    return policy.log_probs(prompts, responses).sum(-1)


def _score(reward: Reward, prompts: Tensor, responses: Tensor) -> Tensor:
    """(rows,) points, each response judged at its own prompt."""
    points = reward(prompts, responses)
    if not isinstance(points, Tensor) or points.shape != prompts.shape[:1]:
        got = tuple(points.shape) if isinstance(points, Tensor) else type(points).__name__
        raise ValueError(
            f"reward(prompts {tuple(prompts.shape)}, responses {tuple(responses.shape)}) must "
            f"return {tuple(prompts.shape[:1])}, got {got}"
        )
    return points


def _check_count(name: str, count: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {count!r}")


def _check_gap(gap: Tensor) -> None:
    if bool(gap.isnan().any()):
        raise ValueError("a gap of two rewards is nan: a response without a reward has no rank")


def _finite(loss: Tensor, where: str) -> float:
    if not bool(torch.isfinite(loss)):
        raise FloatingPointError(
            f"the loss is {loss.item()} at {where}; lower learning_rate (at the first one: look "
            "for nan or inf in rewards, margin or reference)"
        )
    return loss.item()


# --- comparisons --------------------------------------------------------------------------------


class Comparisons(NamedTuple):
    """Pairs of responses to the same prompt, the better one first.

    prompts : (pairs, L) int64     chosen, rejected : (pairs, time) int64
    weight  : (pairs,) how much a pair counts in every mean, for example its probability where all
              pairs are listed; None where all count the same
    """

    prompts: Tensor
    chosen: Tensor
    rejected: Tensor
    weight: Tensor | None = None

    def take(self, rows: Tensor) -> "Comparisons":
        """The pairs of these rows: one index for all fields, so that a pair stays a pair."""
        return Comparisons(*(None if x is None else x[rows] for x in self))

    def mean(self, values: Tensor) -> Tensor:
        """(pairs,) -> the weighted mean, a scalar.

        Raises ValueError without any pair, and for weights that are negative, all 0 or no (pairs,).
        """
        if not len(self.chosen):
            raise ValueError("there are no comparisons: every pair was a tie or one text twice")
        if self.weight is None:
            return values.mean()
        weight = self.weight.to(values.dtype)
        if weight.shape != values.shape or not ((weight >= 0).all() and weight.sum() > 0):
            raise ValueError(f"weight must be {tuple(values.shape)}, at least 0, and not all 0")
        return (weight * values).sum() / weight.sum()

    def labels(self) -> "Labels":
        """The responses one by one: the chosen ones desirable, the rejected ones not.

        Raises ValueError for weighted pairs: KTO's reference point is a plain mean.
        """
        if self.weight is not None:
            raise ValueError("labels() needs pairs without weights, from sample_comparisons")
        desirable = torch.arange(2 * len(self.chosen)) < len(self.chosen)
        return mark(self.prompts.repeat(2, 1), torch.cat([self.chosen, self.rejected]), desirable)

    def log_probs(self, policy: Policy) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the chosen and of the rejected responses, each (pairs,) nats."""
        return tuple(_whole(policy, self.prompts, side) for side in (self.chosen, self.rejected))

    def losses(self, loss: "PairLoss", now: tuple, ref: tuple) -> Tensor:
        """(pairs,) the loss of each pair, from two results of `log_probs`."""
        return loss(*now, *ref)

    def summary(self, now: tuple, ref: tuple) -> tuple[float, float, float, float]:
        """Mean log-probability of chosen and rejected, mean gap of log-ratios, share above 0."""
        gap = (now[0] - ref[0]) - (now[1] - ref[1])
        columns = (now[0], now[1], gap, (gap.sign() + 1) / 2)
        return tuple(self.mean(x).item() for x in columns)


class Labels(NamedTuple):
    """Single responses marked good or bad, as KTO takes them; made by `mark` or `labels()`.

    prompts : (responses, L)   responses : (responses, time)   desirable : (responses,) bool
    other   : (responses, time) for each prompt a response to another one, see `mark`
    """

    prompts: Tensor
    responses: Tensor
    desirable: Tensor
    other: Tensor

    def take(self, rows: Tensor) -> "Labels":
        """The responses of these rows."""
        return Labels(*(x[rows] for x in self))

    def mean(self, values: Tensor) -> Tensor:
        """(responses,) -> the mean, a scalar."""
        return values.mean()

    def log_probs(self, policy: Policy) -> tuple[Tensor, Tensor]:
        """Log-probabilities of each response and of the mismatched one, each (responses,) nats."""
        return tuple(_whole(policy, self.prompts, side) for side in (self.responses, self.other))

    def losses(self, loss: "LabelLoss", now: tuple, ref: tuple) -> Tensor:
        """(responses,) the loss of each response, from two results of `log_probs`."""
        return loss(now[0], ref[0], self.desirable, now[1], ref[1])

    def summary(self, now: tuple, ref: tuple) -> tuple[float, float, float, float]:
        """As for pairs, between the means of the two kinds; there is no share to count."""
        good, ratio = self.desirable, now[0] - ref[0]
        chosen, rejected = now[0][good].mean().item(), now[0][~good].mean().item()
        return chosen, rejected, (ratio[good].mean() - ratio[~good].mean()).item(), math.nan


def mark(prompts: Tensor, responses: Tensor, desirable: Tensor) -> Labels:
    """`Labels`, with the mismatched responses from which KTO estimates its reference point.

    prompts : (responses, L)   responses : (responses, time)   desirable : (responses,) bool

    Rows are ordered by prompt and the *responses* shifted by the largest number of rows that one
    prompt has: every prompt then stands before a response to another one, unless one prompt has
    more than half of all rows. (Shifting log-probabilities instead changes no mean: a no-op.)
    """
    prompts = check_prompts(prompts)
    if not len(prompts) == len(responses) == len(desirable):
        raise ValueError(
            "prompts, responses and desirable need the same number of rows, got "
            f"{len(prompts)}, {len(responses)}, {len(desirable)}"
        )
    if desirable.ndim != 1 or not bool(((desirable == 0) | (desirable == 1)).all()):
        raise ValueError("desirable must be (responses,), True or False (1 or 0) for each")
    _, which, counts = prompts.unique(dim=0, return_inverse=True, return_counts=True)
    order = which.argsort(stable=True)
    other = torch.empty_like(responses)
    other[order] = responses[order.roll(-int(counts.max()))]
    return Labels(prompts, responses, desirable.bool(), other)


def win_probability(gap: Tensor, scale: float = 1.0) -> Tensor:
    """P(first beats second) = sigmoid(scale · gap), gap = R(first) − R(second), points [PREF-1].

    scale : at least 0; math.inf: the better one always wins, equal rewards toss a coin
    """
    if not scale >= 0:
        raise ValueError(f"scale must be at least 0 (math.inf is allowed), got {scale!r}")
    _check_gap(gap)
    gap = gap.double()
    return (gap.sign() + 1) / 2 if scale == math.inf else torch.sigmoid(scale * gap)


def sample_comparisons(
    policy: Policy,
    prompts: Tensor,
    reward: Reward,
    *,
    pairs: int,
    scale: float = 1.0,
    seed: int | torch.Generator,
) -> Comparisons:
    """Draw `pairs` prompts, two responses of `policy` to each, and the winner [PREF-1].

    prompts : (prompts, L), drawn from with replacement
    reward  : reward(prompts (..., L), responses (..., time)) -> (...), points
    returns : at most `pairs` comparisons: where both responses are the same text the pair is
              dropped, it was paid for all the same (2 · pairs responses). No weights

    Raises ValueError for pairs < 1 or a negative scale, RuntimeError when no pair is left.
    """
    found = _draw(policy, prompts, reward, pairs, scale, as_generator(seed))
    if not len(found.chosen):
        raise RuntimeError(
            f"all {pairs} pairs hold the same response twice: the policy is (nearly) "
            "deterministic; draw more pairs or compare an earlier policy"
        )
    return found


def _draw(policy, prompts, reward, pairs, scale, generator) -> Comparisons:
    """`sample_comparisons` without the objection to an empty result."""
    _check_count("pairs", pairs)
    prompts = check_prompts(prompts)
    asked = prompts[torch.randint(len(prompts), (pairs,), generator=generator)]
    first, second = policy.sample(asked, 2, seed=generator).unflatten(0, (-1, 2)).unbind(1)
    gap = _score(reward, asked, first) - _score(reward, asked, second)
    dice = torch.rand(pairs, generator=generator, dtype=torch.float64)
    wins = (dice < win_probability(gap, scale))[:, None]
    chosen, rejected = torch.where(wins, first, second), torch.where(wins, second, first)
    return Comparisons(asked, chosen, rejected).take((first != second).any(-1))


def all_comparisons(
    policy: Policy, prompts: Tensor, reward: Reward, *, scale: float = 1.0
) -> Comparisons:
    """Every pair `sample_comparisons` can draw, in both orders, with its probability.

    weight of (a beats b) at one of P prompts: 2 π(a) π(b) sigmoid(scale (R(a) − R(b))) / P. The
    weights sum to the probability that the two responses differ. 27 responses make 702 rows per
    prompt; pairs of probability 0 are left out.
    """
    prompts, responses = check_prompts(prompts), responses_of(policy)
    first, second = (
        torch.ones(len(responses), len(responses)) - torch.eye(len(responses))
    ).nonzero(as_tuple=True)
    with torch.no_grad():
        probs = response_log_probs(policy, prompts).double().exp()  # (prompts, responses)
        rewards = all_rewards(policy, prompts, reward).double()
    wins = win_probability(rewards[:, first] - rewards[:, second], scale)
    weight = (2 * probs[:, first] * probs[:, second] * wins / len(prompts)).flatten()
    rows = Comparisons(
        prompts.repeat_interleave(len(first), 0),
        responses[first].repeat(len(prompts), 1),
        responses[second].repeat(len(prompts), 1),
        weight,
    )
    return rows.take(weight > 0)


def win_rates(policy: Policy, prompts: Tensor, reward: Reward, *, scale: float = 1.0) -> Tensor:
    """(prompts, responses): P(y beats a response of `policy`), an equal text counting one half.

    The optimum of IPO on `all_comparisons(policy, ...)` is ref(y) exp(win rate(y) / tau) / Z: the
    squared loss fits the gap of two log-ratios to (P(a beats b) - 1/2) / tau, the weights are
    products, so the best log-ratio of a response is the mean of its gaps. After Azar et al. 2023
    (arXiv 2310.12036). Even where pairs are certain no gap of log-ratios exceeds 1 / tau.
    """
    with torch.no_grad():
        probs = response_log_probs(policy, prompts).double().exp()
        rewards = all_rewards(policy, prompts, reward).double()
    wins = win_probability(rewards[:, :, None] - rewards[:, None], scale)  # (prompts, y, other)
    return torch.einsum("pyo,po->py", wins, probs)


def from_ranking(prompts: Tensor, responses: Tensor, scores: Tensor) -> Comparisons:
    """All K (K − 1) / 2 pairs of each ranked group, not only the best against the worst.

    prompts : (prompts, L)   responses : (prompts · K, time), a prompt's responses adjacent
    scores  : (prompts, K) the higher, the better; only their order counts. Equal scores or equal
              responses make no pair

    Raises ValueError for shapes that do not fit or K < 2. Ouyang et al. 2022 (arXiv 2203.02155),
    section 3.5, who put the pairs of one ranking into one batch.
    """
    prompts = check_prompts(prompts)
    group = group_size(prompts, responses, responses.shape[-1])
    if tuple(scores.shape) != (len(prompts), group) or group < 2:
        raise ValueError(
            f"scores must be (prompts, K) with K >= 2, responses (prompts * K, time): got scores "
            f"{tuple(scores.shape)}, prompts {tuple(prompts.shape)}, responses "
            f"{tuple(responses.shape)}"
        )
    grouped = responses.unflatten(0, (-1, group))
    if bool(scores.isnan().any()):
        raise ValueError("scores hold nan: a response without a score has no rank")
    which, better, worse = (scores[:, :, None] > scores[:, None, :]).nonzero(as_tuple=True)
    pairs = Comparisons(prompts[which], grouped[which, better], grouped[which, worse])
    return pairs.take((pairs.chosen != pairs.rejected).any(-1))


def written_pairs(
    prompt: Tensor, pairs: Iterable[tuple[Sequence[int], Sequence[int]]]
) -> Comparisons:
    """Comparisons written by hand: (chosen tokens, rejected tokens), all for one prompt (L,).

    >>> written_pairs(torch.tensor([0]), [([0], [1]), ([2], [0])])   # a beats b, c beats a

    With `TabularPolicy(n, 1)`, one free logit for each of n one-token responses, this is the
    smallest setting there is.
    """
    chosen, rejected = (torch.tensor(list(side)) for side in zip(*pairs, strict=True))
    return Comparisons(check_prompts(prompt).expand(len(chosen), -1), chosen, rejected)


# --- reward models ------------------------------------------------------------------------------


class RewardModel(nn.Module):
    """A learned reward: model(prompts (..., L), responses (..., time)) -> (...), points.

    Leading axes broadcast as in `toy_models.sorting`, so a fitted model can stand wherever a toy
    reward can. Only differences at one prompt are learned: a constant per prompt is arbitrary.

    vocab_size, length : of the responses, an end token included; other ones raise ValueError
    """

    def __init__(self, vocab_size: int, length: int):
        super().__init__()
        for name, count in {"vocab_size": vocab_size, "length": length}.items():
            _check_count(name, count)
        self.vocab_size, self.length = vocab_size, length

    def _check(self, responses: Tensor) -> None:
        known = (responses >= 0) & (responses < self.vocab_size)
        if responses.shape[-1] != self.length or not bool(known.all()):
            raise ValueError(
                f"responses must be (..., {self.length}) of tokens 0 .. {self.vocab_size - 1}, got "
                f"{tuple(responses.shape)} of {int(responses.min())} .. {int(responses.max())}"
            )


class TableReward(RewardModel):
    """One free number per prompt and response: can be exactly right, says nothing about others.

    prompts : (prompts, L) all that it knows     `table` : (prompts, vocab_size ** length), zero
    """

    def __init__(self, prompts: Tensor, vocab_size: int, length: int):
        super().__init__(vocab_size, length)
        self.index = PromptIndex(prompts)
        self.register_buffer("place", vocab_size ** torch.arange(length - 1, -1, -1))
        self.table = nn.Parameter(torch.zeros(len(self.index.known), vocab_size**length))

    def forward(self, prompts: Tensor, responses: Tensor) -> Tensor:
        self._check(responses)
        rows = self.index(prompts.reshape(-1, prompts.shape[-1])).view(prompts.shape[:-1])
        return self.table[rows, (responses * self.place).sum(-1)]


class FeatureReward(RewardModel):
    """A small model with shared features: generalises to prompts and responses it never saw.

    Formula: sum_t out(h)[t, y_t] + sum_t follow[y_t, y_{t+1}], h = tanh(W count(x) + b), where
    count(x) says how often each token occurs in the prompt. It can express "the right token at
    this position" and "in order", not "occurs somewhere in the response": with
    `inclusion_ordering_reward` it stays wrong, with `position_match_reward` it can be right.

    hidden, seed : of h
    """

    def __init__(self, vocab_size: int, length: int, *, hidden: int = 16, seed: int = 0):
        super().__init__(vocab_size, length)
        generator = torch.Generator().manual_seed(seed)
        self.encode = nn.Parameter(torch.randn(vocab_size, hidden, generator=generator))
        self.bias = nn.Parameter(torch.randn(hidden, generator=generator))
        self.decode = nn.Parameter(torch.zeros(hidden, length, vocab_size))
        self.follow = nn.Parameter(torch.zeros(vocab_size, vocab_size))

    def forward(self, prompts: Tensor, responses: Tensor) -> Tensor:
        self._check(responses)
        one_hot = nn.functional.one_hot(prompts, self.vocab_size).to(self.encode.dtype)
        hidden = torch.tanh(one_hot.sum(-2) @ self.encode + self.bias)  # (..., hidden)
        points = torch.einsum("...h,htv->...tv", hidden, self.decode)
        shape = torch.broadcast_shapes(points.shape[:-1], responses.shape)
        tokens = responses.expand(shape)[..., None]
        here = points.expand(*shape, -1).gather(-1, tokens)[..., 0].sum(-1)
        return here + self.follow[responses[..., :-1], responses[..., 1:]].sum(-1)


def fit_reward_model(
    model: RewardModel,
    comparisons: Comparisons,
    *,
    steps: int,
    learning_rate: float,
    margin: float = 0.0,
    weight_decay: float = 0.0,
) -> list[float]:
    """Fit by Adam to all comparisons at once [PREF-2]; the model is frozen at the end.

    margin       : by how much the chosen one should lead, points
    weight_decay : c in the penalty c/2 |weights|^2 (with few pairs a table needs one: where a
                   response only ever wins, its reward runs away)
    returns      : (steps + 1) losses, nats: before each step, and after the last one
    """
    _check_count("steps", steps)
    model.requires_grad_(True)
    optimise = torch.optim.Adam(model.parameters(), lr=learning_rate, weight_decay=weight_decay)
    losses = []
    for step in range(steps + 1):
        chosen = model(comparisons.prompts, comparisons.chosen)
        rejected = model(comparisons.prompts, comparisons.rejected)
        loss = comparisons.mean(bradley_terry(chosen, rejected, margin=margin))
        losses.append(_finite(loss, f"step {step} of fit_reward_model"))
        if step < steps:
            optimise.zero_grad()
            loss.backward()
            optimise.step()
    model.requires_grad_(False)
    return losses


def ranking_accuracy(reward: Reward, comparisons: Comparisons) -> float:
    """Share of the pairs that `reward` puts in their order; equal rewards count one half.

    reward : a fitted model, `implicit_reward(...)`, or the true reward (which stays below 1 where
             the winners were drawn with a finite scale)
    """
    with torch.no_grad():
        gap = _score(reward, comparisons.prompts, comparisons.chosen) - _score(
            reward, comparisons.prompts, comparisons.rejected
        )
    _check_gap(gap)
    return comparisons.mean((gap.sign() + 1) / 2).item()


# --- policies that learn from comparisons --------------------------------------------------------


class TiedPolicy(Policy):
    """One logit per token, the same at every position: the smallest policy that shares weights.

    Formula: pi(y) = prod_t softmax(table)[y_t]; `table` is (vocab_size,), zero at the start.

    From uniform, one DPO step on the single pair aab over aaa lowers both: the pair differs by a
    `b` in the place of an `a`, so a's logit falls, and aab holds two of them. The mass goes to
    responses that nobody compared. Lecture 17.
    """

    def __init__(self, vocab_size: int, length: int):
        super().__init__(vocab_size, length)
        self.table = nn.Parameter(torch.zeros(vocab_size))

    def logits(self, prompts: Tensor, responses: Tensor | None = None) -> Tensor:
        prompts = check_prompts(prompts)
        logits = self.table.expand(len(prompts), self.length, -1)
        return self._per_response(logits, prompts, responses)


def implicit_reward(policy: Policy, reference: Policy, *, beta: float) -> Reward:
    """β (log π(y|x) − log π_ref(y|x)) as a broadcasting reward, points [PREF-3].

    At one prompt it differs from the reward behind the policy by the constant β log Z(x), which
    no comparison shows: it ranks responses to one prompt, not responses to different prompts.
    """

    @torch.no_grad()
    def reward(prompts: Tensor, responses: Tensor) -> Tensor:
        lead = torch.broadcast_shapes(prompts.shape[:-1], responses.shape[:-1])
        prompts = prompts.expand(*lead, -1).reshape(-1, prompts.shape[-1])
        responses = responses.expand(*lead, -1).reshape(-1, responses.shape[-1])
        ratio = _whole(policy, prompts, responses) - _whole(reference, prompts, responses)
        return beta * ratio.view(lead)

    return reward


class PairRecord(NamedTuple):
    """Where the policy stands after `step` updates. Means over all the pairs it learns from."""

    step: int
    loss: float
    chosen: float  # log-probability of the chosen responses, nats (of the desirable ones)
    rejected: float  # of the rejected ones, nats (of the undesirable ones)
    margin: float  # gap of their log-ratios to the reference, nats; times beta: implicit rewards
    accuracy: float  # share of pairs with a positive gap, half for none; nan for labels
    objective: float  # exact J of the true reward, points; nan where none was given
    kl: float  # exact KL(policy || start), nats: the start is the first reference


@dataclass(frozen=True)
class PairHistory:
    """Records before the first update, every `record_every` updates, and after the last one.

    `history["chosen"]` is one column as a list, `history.final` the last record.
    """

    records: tuple[PairRecord, ...]

    def __getitem__(self, column: str) -> list[float]:
        if column not in PairRecord._fields:
            raise KeyError(f"no column {column!r}; a record has {', '.join(PairRecord._fields)}")
        return [getattr(record, column) for record in self.records]

    @property
    def final(self) -> PairRecord:
        return self.records[-1]


def learn_from_pairs(
    policy: Policy,
    reference: Policy,
    comparisons: Comparisons | Labels,
    loss: PairLoss | LabelLoss,
    *,
    steps: int,
    learning_rate: float,
    batch: int | None = None,
    reward: Reward | None = None,
    prompts: Tensor | None = None,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    record_every: int = 1,
    seed: int = 0,
) -> PairHistory:
    """Train `policy` in place on comparisons with DPO, IPO or a loss of your own; KTO on labels.

    reference   : copied and frozen at the start, so it may be `policy` itself
    comparisons : pairs; for KTO `pairs.labels()` or the result of `mark`
    loss        : loss(chosen, rejected, chosen_ref, rejected_ref) -> (pairs,), for example
                  partial(dpo, beta=0.5), on log-probabilities summed over the tokens. For labels:
                  loss(logp, logp_ref, desirable, kl_logp, kl_logp_ref), as `kto` has it
    batch       : rows per update, dealt anew when all have been used; None = all of them
    reward      : the true reward, for the records' exact J
    prompts     : over which J and KL are taken, default the prompts of the comparisons
    optimizer   : called with (parameters, lr=learning_rate)
    returns     : `PairHistory`; the same seed gives bit-identical results

    Raises TypeError for comparisons that are neither, ValueError for steps, batch or record_every
    below 1 and for a loss that is not one number per row, FloatingPointError for one that is not
    finite.
    """
    if not isinstance(comparisons, Comparisons | Labels):
        raise TypeError(
            f"comparisons must be Comparisons or Labels, got {type(comparisons).__name__}"
        )
    descent = _Descent(policy, optimizer(policy.parameters(), lr=learning_rate), as_generator(seed))
    if prompts is None:
        prompts = comparisons.prompts.unique(dim=0)
    observe = _observer(policy, _frozen(reference), prompts, reward)
    records = descent(_frozen(reference), comparisons, loss, steps, batch, observe, record_every)
    return PairHistory(tuple(records))


def online_dpo(
    policy: Policy,
    prompts: Tensor,
    reward: Reward,
    *,
    rounds: int,
    pairs: int,
    learning_rate: float,
    beta: float,
    updates: int = 1,
    batch: int | None = None,
    refresh: bool = False,
    scale: float = 1.0,
    true_reward: Reward | None = None,
    record_every: int = 1,
    seed: int = 0,
) -> PairHistory:
    """DPO on pairs that the policy itself wrote: each round compares anew, then updates.

    reward  : the judge of the comparisons, the true reward or a fitted model
    true_reward : of the records' J, where the judge is another one; None = the judge
    rounds  : of sampling      pairs : drawn per round, equal ones then dropped
    updates : on the pairs of a round, then they are thrown away     batch : pairs per update
    refresh : True takes the policy at the start of each round as its reference (here: iterative
              DPO; the pull is towards the last round, so the policy can go far. Other recipes of
              that name keep the first reference); False keeps the first one
    scale   : of the comparisons, as in `sample_comparisons`
    beta    : of `policy_gradients.dpo`      record_every : rounds between two records
    returns : `PairHistory`; a record holds the state at the start of a round, on its pairs; the
              last one the state at the end. A round without a pair is skipped; where no
              round has one, RuntimeError

    rounds = 1 is offline DPO. Guo et al. 2024 (arXiv 2402.04792) for the online form, Xu et al.
    2023 (arXiv 2312.16682) for the iterative one.
    """
    for name, count in {"rounds": rounds, "updates": updates, "record_every": record_every}.items():
        _check_count(name, count)
    generator = as_generator(seed)
    optimiser = torch.optim.Adam(policy.parameters(), lr=learning_rate)
    descent = _Descent(policy, optimiser, generator)
    start = _frozen(policy)
    true_reward = reward if true_reward is None else true_reward
    observe = _observer(policy, start, check_prompts(prompts), true_reward)
    loss, records, last = partial(dpo, beta=beta), [], None
    for number in range(rounds):
        reference = _frozen(policy) if refresh else start
        found = _draw(policy, prompts, reward, pairs, scale, generator)
        if not len(found.chosen):
            continue
        before, last = descent(reference, found, loss, updates, batch, observe, updates)
        if number % record_every == 0:
            records.append(before)
    if last is None:
        raise RuntimeError("no round held a pair of different responses; compare an earlier policy")
    return PairHistory((*records, last))


class _Descent:
    """Updates of one policy with one optimiser and one stream of dice, over one or many data."""

    def __init__(self, policy: Policy, optimiser: torch.optim.Optimizer, generator):
        self.policy, self.optimiser, self.generator = policy, optimiser, generator
        self.done = 0

    def __call__(self, reference, data, loss, steps, batch, observe, record_every) -> list:
        for name, count in {"steps": steps, "record_every": record_every}.items():
            _check_count(name, count)
        with torch.no_grad():
            ref = data.log_probs(reference)
        records = [self._record(data, ref, loss, observe)]
        deal = _deal(len(data.prompts), batch, self.generator)
        for step in range(1, steps + 1):
            rows = next(deal)
            part = data if rows is None else data.take(rows)
            part_ref = ref if rows is None else tuple(x[rows] for x in ref)
            value = self._loss(part, part.log_probs(self.policy), part_ref, loss)
            _finite(value, f"update {self.done}")
            self.optimiser.zero_grad()
            value.backward()
            self.optimiser.step()
            self.done += 1
            if step % record_every == 0 or step == steps:
                records.append(self._record(data, ref, loss, observe))
        return records

    def _loss(self, data, now, ref, loss) -> Tensor:
        losses = data.losses(loss, now, ref)
        if not isinstance(losses, Tensor) or losses.shape != now[0].shape:
            got = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ValueError(
                f"the loss must return one number per row, {tuple(now[0].shape)}, and leave the "
                f"mean to the caller; got {got}"
            )
        return data.mean(losses)

    @torch.no_grad()
    def _record(self, data, ref, loss, observe) -> PairRecord:
        now = data.log_probs(self.policy)
        value = _finite(self._loss(data, now, ref, loss), f"update {self.done}")
        return PairRecord(self.done, value, *data.summary(now, ref), *observe())


def _deal(count: int, batch: int | None, generator):
    """Rows of each update, without end; None = all of them."""
    if batch is not None:
        _check_count("batch", batch)
    while True:
        if batch is None or batch >= count:
            yield None
        else:
            yield from torch.randperm(count, generator=generator).split(batch)


def _observer(policy: Policy, start: Policy, prompts: Tensor, reward: Reward | None):
    """A function that gives the exact J and KL(policy || start) of the policy as it is."""

    def observe() -> tuple[float, float]:
        kl = exact_kl(policy, start, prompts).item()
        return (
            math.nan if reward is None else expected_reward(policy, prompts, reward).item(),
            kl,
        )

    return observe


def _frozen(policy: Policy) -> Policy:
    return copy.deepcopy(policy).requires_grad_(False)
