"""Search with a score that can be asked: how much better than the first draw, and at what price.

    random_shooting(score, plan, n, seed=0)             # the best of n draws
    cross_entropy_method(score, plan, samples=40, elite=8, rounds=5, seed=0)
    receding_horizon(pendulum(), state, planner, ...)   # plan, take one action, plan again
    best_of_n_law(probs, scores, n)                     # exactly what best-of-n samples from
    beam_search(policy, prompt, width)                  # likelihood as the score
    tree_search(policy, prompt, reward, simulations=50, seed=0)
    expert_iteration(policy, prompts, reward, ...)      # and what was found goes into the weights

A score takes candidates (n, ...) and returns (n,), more is better. Search costs scores and model
calls at every question; training pays once. `calls` counts evaluations of the next-token
distribution, so the methods can be set side by side.

Left out: learned dynamics and learned values, parallel search, caches. Lecture 20.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from toy_models.exact import (
    _one_prompt,
    all_rewards,
    exact_entropy,
    expected_reward,
    response_log_probs,
)
from toy_models.policies import AutoregressivePolicy, Policy, as_generator, check_prompts

Reward = Callable[[Tensor, Tensor], Tensor]
Score = Callable[[Tensor], Tensor]
Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_MAX_TRIES = 100_000


# --- plans: distributions that can be refitted --------------------------------------------------


class GaussianPlan(NamedTuple):
    """Independent normals, one per step of the plan.

    mean : (steps,)   std : (steps,) > 0   floor : least std after a fit, >= 0
    """

    mean: Tensor
    std: Tensor
    floor: float = 0.0

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """(n, steps)."""
        noise = torch.randn(n, len(self.mean), generator=generator, dtype=self.mean.dtype)
        return self.mean + self.std * noise

    def fit(self, elite: Tensor) -> "GaussianPlan":
        """The maximum-likelihood fit to elite (k, steps): mean, and std with 1/k under the root."""
        return self._replace(
            mean=elite.mean(0), std=elite.std(0, correction=0).clamp_min(self.floor)
        )


class CategoricalPlan(NamedTuple):
    """Independent tokens, one distribution per position.

    probs : (positions, vocab), rows sum to 1
    floor : share of the uniform distribution mixed into every fit, in [0, 1)
    """

    probs: Tensor
    floor: float = 0.0

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """(n, positions) int64."""
        return torch.multinomial(self.probs, n, replacement=True, generator=generator).T

    def fit(self, elite: Tensor) -> "CategoricalPlan":
        """The maximum-likelihood fit to elite (k, positions): frequencies at each position."""
        vocab = self.probs.shape[1]
        counted = torch.nn.functional.one_hot(elite, vocab).to(self.probs.dtype).mean(0)
        return self._replace(probs=(1 - self.floor) * counted + self.floor / vocab)


Plan = GaussianPlan | CategoricalPlan


class Search(NamedTuple):
    """What a search found.

    best   : (steps,) the best candidate of all   score : its score, points
    scores : (rounds, n) every score              plans : the distribution before each round
    """

    best: Tensor
    score: float
    scores: Tensor
    plans: tuple[Plan, ...]


def random_shooting(score: Score, plan: Plan, n: int, *, seed: int | torch.Generator) -> Search:
    """Draw n plans and keep the best one.

    Its result is the maximum of n scores, not their mean: the mean is only what one blind draw
    would earn. Lecture 20.
    """
    return cross_entropy_method(score, plan, samples=n, elite=n, rounds=1, seed=seed)


def cross_entropy_method(
    score: Score,
    plan: Plan,
    *,
    samples: int,
    elite: int,
    rounds: int,
    seed: int | torch.Generator,
) -> Search:
    """Draw, keep the elite, fit the distribution to it, repeat.

    Formula: plan' = argmin_p KL(elite || p) over the plan's family, where `elite` is the empirical
    distribution of the best draws; that is maximum likelihood, in closed form: frequencies
    for categories, mean and variance for normals. (This direction covers all that was good;
    KL(p || elite) is infinite for any p that goes beyond the elite's own points.)

    elite   : how many of the `samples` draws are kept, 1 .. samples
    returns : `Search`; the best over all rounds. The same seed gives the same search

    A fit without a floor can lose an option for ever: a token without elite draws gets
    probability 0, a small elite a std near 0. Rubinstein (1999); de Boer et al. (2005), "A
    tutorial on the cross-entropy method". Lecture 20.
    """
    _check_plan(plan)
    for name, count in (("samples", samples), ("elite", elite), ("rounds", rounds)):
        _check_count(name, count)
    if elite > samples:
        raise ValueError(f"elite must be at most samples={samples}, got {elite}")
    generator = as_generator(seed)
    best, best_score, every, plans = None, -math.inf, [], []
    for _ in range(rounds):
        plans.append(plan)
        drawn = plan.sample(samples, generator)
        scores = _scored(score, drawn)
        top = scores.topk(elite)
        if best is None or top.values[0] > best_score:
            best, best_score = drawn[top.indices[0]], float(top.values[0])
        every.append(scores)
        plan = plan.fit(drawn[top.indices])
    return Search(best, best_score, torch.stack(every), tuple(plans))


def _scored(score: Score, drawn: Tensor) -> Tensor:
    asked = f"score(candidates {tuple(drawn.shape)})"
    return _points(asked, score(drawn), (len(drawn),))


def _rewarded(reward: Reward, prompts: Tensor, responses: Tensor) -> Tensor:
    """The reward of every response, in the shape of `responses` without time."""
    asked = f"reward(prompts {tuple(prompts.shape)}, responses {tuple(responses.shape)})"
    return _points(asked, reward(prompts, responses), tuple(responses.shape[:-1]))


def _points(asked: str, points: Tensor, shape: tuple) -> Tensor:
    got = tuple(points.shape) if isinstance(points, Tensor) else type(points).__name__
    if got != shape:
        raise ValueError(f"{asked} must return {shape}, got {got}")
    if bool(points.isnan().any()):
        raise ValueError(f"{asked} returned nan: what has no score cannot be ranked")
    return points


# --- control with known dynamics ----------------------------------------------------------------


def pendulum(*, gravity: float = 10.0, mass: float = 1.0, length: float = 1.0) -> Step:
    """The dynamics of gymnasium's Pendulum-v1, for many states at once.

    returns : step(states (n, 2), torques (n,)) -> next states (n, 2), rewards (n,) in points.
              A state is angle (0 is upright) and angular velocity, rad and rad/s. Torques are cut
              to +-2 Nm, speeds to +-8 rad/s; a step is 0.05 s.

    Raises ValueError for a mass or length that is not positive, or a gravity that is not finite.
    """
    if not (0 < mass < math.inf and 0 < length < math.inf and math.isfinite(gravity)):
        raise ValueError(
            f"mass and length must be positive and gravity finite, got {mass=}, {length=}, "
            f"{gravity=}"
        )

    def step(states: Tensor, torques: Tensor) -> tuple[Tensor, Tensor]:
        angle, speed = states.unbind(-1)
        torques = torques.clamp(-2, 2)
        off = (angle + math.pi) % (2 * math.pi) - math.pi
        reward = -(off.square() + 0.1 * speed.square() + 0.001 * torques.square())
        push = 1.5 * gravity / length * angle.sin() + 3 / (mass * length**2) * torques
        speed = (speed + 0.05 * push).clamp(-8, 8)
        return torch.stack([angle + 0.05 * speed, speed], -1), reward

    return step


def plan_score(model: Step, start: Tensor) -> Score:
    """What a plan earns in a model: actions (n, steps) -> (n,) points, from `start` (d,) on."""

    def score(plans: Tensor) -> Tensor:
        states, total = start.expand(len(plans), -1), 0.0
        for actions in plans.unbind(1):
            states, reward = model(states, actions)
            total = total + reward
        return total

    return score


class Drive(NamedTuple):
    """One episode. states : (steps + 1, d)   actions : (steps,)   rewards : (steps,) points"""

    states: Tensor
    actions: Tensor
    rewards: Tensor


def receding_horizon(
    model: Step,
    state: Tensor,
    planner: Callable[[Score, GaussianPlan, torch.Generator], Search],
    *,
    horizon: int,
    steps: int,
    std: float,
    seed: int,
    warm: bool = True,
    world: Step | None = None,
) -> Drive:
    """Model-predictive control: plan `horizon` actions, take the first, look, plan again.

    model   : the dynamics the planner believes in     world : the true ones, default the same
    state   : (d,) where it starts
    planner : (score, plan, generator) -> Search, for example
              lambda score, plan, g: random_shooting(score, plan, 100, seed=g)
    std     : spread of the plan that every search starts from, in units of the action; a refit
              keeps at least a tenth of it
    warm    : centre that plan on the last one, moved on by one action; else on 0

    Nothing is learned: the whole policy is the search, paid again at every step. Lecture 20.
    """
    for name, count in (("horizon", horizon), ("steps", steps)):
        _check_count(name, count)
    if state.ndim != 1 or not state.is_floating_point():
        raise ValueError(f"state must be floats (d,), got {state.dtype} {tuple(state.shape)}")
    world, generator = world or model, as_generator(seed)
    mean = state.new_zeros(horizon)
    states, actions, rewards = [state], [], []

    for _ in range(steps):
        plan = GaussianPlan(mean, torch.full_like(mean, std), floor=0.1 * std)
        best = planner(plan_score(model, state), plan, generator).best
        after, reward = world(state[None], best[:1])
        state = after[0]
        states.append(state)
        actions.append(best[0])
        rewards.append(reward[0])
        if warm:
            mean = torch.cat([best[1:], best.new_zeros(1)])
    return Drive(torch.stack(states), torch.stack(actions), torch.stack(rewards))


# --- best of n ----------------------------------------------------------------------------------


def best_of_n_law(probs: Tensor, scores: Tensor, n: int) -> Tensor:
    """The distribution of the best of n draws; among tied draws each is equally likely.

    Formula: p(y) (F(y)^n - F-(y)^n) / m(y), where F sums p over scores <= that of y, F- over
    scores < it, and m = F - F- is the mass of its level.

    probs, scores : (..., responses)   returns : (..., responses), sums to 1. Lecture 20.
    """
    _check_count("n", n)
    _check_law(probs)
    if probs.shape != scores.shape:
        raise ValueError(
            f"probs {tuple(probs.shape)} and scores {tuple(scores.shape)} must have one shape"
        )
    _points("scores", scores, tuple(probs.shape))
    here, there = scores[..., :, None], scores[..., None, :]
    up_to = (probs[..., None, :] * (there <= here)).sum(-1)
    level = (probs[..., None, :] * (there == here)).sum(-1)
    tiny = torch.finfo(probs.dtype).tiny
    miss = torch.log1p(-(level / up_to.clamp_min(tiny)).clamp(max=1.0))  # log(F- / F)
    return probs * up_to**n * -torch.expm1(n * miss) / level.clamp_min(tiny)


def best_of_n_kl(probs: Tensor, scores: Tensor, n: int) -> Tensor:
    """KL(best of n || one draw), nats: (...), exact. At most `best_of_n_bound(n)`."""
    law = best_of_n_law(probs, scores, n)
    return _kl(law, probs)


def best_of_n_bound(n: int) -> float:
    """log n - (n - 1)/n nats: the KL when no two responses tie and none has much mass.

    Often quoted as the KL itself; it is an upper bound (Beirami et al. 2024, arXiv:2401.01879).
    With few distinct scores the KL stops at -log P(best score) instead.
    """
    _check_count("n", n)
    return math.log(n) - (n - 1) / n


def best_of_n(
    policy: Policy, prompts: Tensor, reward: Reward, n: int, *, seed: int | torch.Generator
) -> Tensor:
    """(prompts, time): the best of n sampled responses to every prompt, the first among ties."""
    _check_count("n", n)
    prompts = check_prompts(prompts)
    responses = policy.sample(prompts, n, seed=seed).unflatten(0, (-1, n))
    best = _rewarded(reward, prompts[:, None], responses).argmax(-1)
    return responses[torch.arange(len(prompts)), best]


def gibbs_at_kl(probs: Tensor, scores: Tensor, kl: float) -> tuple[Tensor, float]:
    """The Gibbs distribution p exp(R / beta) / Z at a given distance from p, and its beta.

    No distribution at most `kl` nats from p has a higher expected score: the frontier that
    best-of-n is measured against. probs, scores : (responses,)   kl : nats, > 0

    Raises ValueError for a kl out of reach: at -log P(best score) beta has come down to 0.
    """
    _check_law(probs)
    if probs.ndim != 1 or probs.shape != scores.shape:
        raise ValueError(
            f"probs and scores must both be (responses,), got {tuple(probs.shape)} and "
            f"{tuple(scores.shape)}"
        )
    best = _points("scores", scores, tuple(probs.shape))[probs > 0].max()
    top = -float(probs[scores == best].sum().log())
    if not 0 < kl < top:
        raise ValueError(f"kl must lie between 0 and -log P(best score) = {top:.4f}, got {kl!r}")
    gaps = (scores - best).to(probs.dtype)
    low, high = -50.0, 50.0  # log beta; the KL falls as beta grows
    for _ in range(100):
        middle = (low + high) / 2
        law = torch.softmax(probs.log() + gaps / math.exp(middle), -1)
        low, high = (middle, high) if float(_kl(law, probs)) > kl else (low, middle)
    return law, math.exp(middle)


def _kl(law: Tensor, probs: Tensor) -> Tensor:
    return torch.where(law > 0, law * (law.log() - probs.log()), 0.0).sum(-1)


# --- search in the tree of tokens ---------------------------------------------------------------


class Beam(NamedTuple):
    """Hypotheses, best rank first.

    responses : (k, time)   log_probs : (k,) nats   ranks : (k,) log_probs plus guidance
    calls     : prefixes whose next-token distribution was asked for
    """

    responses: Tensor
    log_probs: Tensor
    ranks: Tensor
    calls: int


def beam_search(
    policy: AutoregressivePolicy, prompt: Tensor, width: int, *, guide: Tensor | None = None
) -> Beam:
    """Keep the `width` best prefixes at every length; ended hypotheses stay in the race.

    guide : optional (states, vocab) nats, added to the rank of a prefix by its last token, and
            replaced (not summed) by the next one. q / beta of `soft_values` ranks a prefix by
            the mass that the Gibbs distribution gives it

    Without a guide the rank is the log-probability, and what wider beams find is mostly likelier
    text (nothing guarantees it below width V^time, an exhaustive search), which need not be better
    text (Stahlberg and Byrne 2019, arXiv:1908.10090). No length normalisation. Lecture 20.
    """
    _check_tree(policy)
    _check_count("width", width)
    shape = (policy.prefixes.count, policy.vocab_size)
    if guide is not None and tuple(guide.shape) != shape:
        raise ValueError(f"guide must be (states, vocab) = {shape}, got {tuple(guide.shape)}")
    if guide is not None and bool(guide.isnan().any()):
        raise ValueError("guide holds nan: a prefix without a rank cannot be kept or dropped")
    prompt = _one_prompt(prompt)
    responses = torch.full((1, policy.length), _filler(policy))
    log_probs = torch.zeros(1, dtype=torch.float64)
    ranks, ended, calls = log_probs, torch.zeros(1, dtype=torch.bool), 0
    tokens = torch.arange(policy.vocab_size)
    for t in range(policy.length):
        live = responses[~ended]
        if not len(live):
            break
        calls += len(live)
        with torch.no_grad():
            next_log = torch.log_softmax(policy.logits(prompt, live)[:, t].double(), -1)
        grown = live.repeat_interleave(len(tokens), 0)
        grown[:, t] = tokens.repeat(len(live))
        stopped = grown[:, t] == (-1 if policy.eos_id is None else policy.eos_id)
        grown_log = (log_probs[~ended, None] + next_log).flatten()
        bonus = 0.0 if guide is None else guide[policy.state_ids(live)[:, t]].flatten()
        responses = torch.cat([responses[ended], grown])
        log_probs = torch.cat([log_probs[ended], grown_log])
        ranks = torch.cat([ranks[ended], grown_log + bonus])
        ended = torch.cat([ended[ended], stopped])
        best = ranks.topk(min(width, len(ranks))).indices
        responses, log_probs, ranks, ended = (x[best] for x in (responses, log_probs, ranks, ended))
    return Beam(responses, log_probs, ranks, calls)


class TreeSearch(NamedTuple):
    """What a tree search found.

    best  : (time,) the best response it scored   score : its reward, points
    calls : evaluations of the next-token distribution
    trace : (calls, best score) after each simulation
    """

    best: Tensor
    score: float
    calls: int
    trace: tuple[tuple[int, float], ...]


class _Node:
    """A prefix: the policy's next-token probabilities, and what came of each token so far."""

    def __init__(self, prior: Tensor):
        self.prior = prior
        self.visits = torch.zeros_like(prior)
        self.total = torch.zeros_like(prior)

    def choose(self, exploration: float) -> int:
        seen = self.visits.sum()
        mean = self.total.sum() / seen.clamp_min(1)  # an untried token is worth the average
        q = torch.where(self.visits > 0, self.total / self.visits.clamp_min(1), mean)
        bonus = exploration * self.prior * (seen + 1).sqrt() / (1 + self.visits)
        return int((q + bonus).argmax())


def tree_search(
    policy: AutoregressivePolicy,
    prompt: Tensor,
    reward: Reward,
    *,
    simulations: int,
    seed: int | torch.Generator,
    exploration: float = 1.0,
) -> TreeSearch:
    """Monte Carlo tree search over tokens, the policy as prior and as rollout.

    A simulation walks down the tree to a prefix that is not in it, by the largest
    Q(s, a) + exploration p(a | s) sqrt(1 + N(s)) / (1 + N(s, a)); adds that prefix; samples the
    rest of the response from the policy; and credits its reward to every token of the walk.

    exploration : points; about the spread of the rewards
    returns     : `TreeSearch`; its `best` is the best response ever scored, not the most visited

    Rosin (2011) for the rule (PUCT), Silver et al. (2017), "Mastering the game of Go without human
    knowledge", for its use with a policy (there a value network takes the rollout's place).
    Lecture 20.
    """
    _check_tree(policy)
    _check_count("simulations", simulations)
    if not 0 <= exploration < math.inf:
        raise ValueError(f"exploration must be finite and >= 0 points, got {exploration!r}")
    prompt, generator = _one_prompt(prompt), as_generator(seed)
    tree: dict[tuple[int, ...], _Node] = {}
    best, best_score, calls, trace = None, -math.inf, 0, []

    def next_probs(prefix: tuple[int, ...]) -> Tensor:
        row = torch.tensor([prefix + (_filler(policy),) * (policy.length - len(prefix))])
        with torch.no_grad():
            return torch.softmax(policy.logits(prompt, row)[0, len(prefix)].double(), -1)

    def over(prefix: tuple[int, ...]) -> bool:
        return len(prefix) == policy.length or (bool(prefix) and prefix[-1] == policy.eos_id)

    for _ in range(simulations):
        prefix, walk = (), []
        while prefix in tree:
            token = tree[prefix].choose(exploration)
            walk.append((tree[prefix], token))
            prefix = (*prefix, token)
        new = prefix
        while not over(prefix):
            probs = next_probs(prefix)
            calls += 1
            token = int(torch.multinomial(probs, 1, generator=generator))
            if prefix == new:
                tree[new] = _Node(probs)
                walk.append((tree[new], token))
            prefix = (*prefix, token)
        response = torch.tensor(prefix + (_filler(policy),) * (policy.length - len(prefix)))
        score = float(_rewarded(reward, prompt[0], response))
        for node, token in walk:
            node.visits[token] += 1
            node.total[token] += score
        if best is None or score > best_score:
            best, best_score = response, score
        trace.append((calls, best_score))
    return TreeSearch(best, best_score, calls, tuple(trace))


# --- rejection sampling and expert iteration ----------------------------------------------------


class Accepted(NamedTuple):
    """responses : (wanted, time) accepted ones   tries : how many draws that took"""

    responses: Tensor
    tries: int


def rejection_sampling(
    policy: Policy, prompt: Tensor, reward: Reward, *, wanted: int, seed: int | torch.Generator
) -> Accepted:
    """Draw until `wanted` responses are right (reward > 0); keep these and nothing else.

    They are independent draws from `conditional_law`, at 1 / P(right) tries each on average.
    Raises RuntimeError when 100,000 tries are not enough. Lecture 20.
    """
    _check_count("wanted", wanted)
    prompt, generator = _one_prompt(prompt), as_generator(seed)
    kept, tries = [], 0
    while len(kept) < wanted:
        if tries >= _MAX_TRIES:
            raise RuntimeError(
                f"{len(kept)} of {wanted} responses accepted in {tries} tries; the policy is almost"
                " never right here, so rejection has nothing to keep: use partial credit or an "
                "easier prompt"
            )
        drawn = policy.sample(prompt, 256, seed=generator)
        good = torch.nonzero(_rewarded(reward, prompt, drawn) > 0)[:, 0]
        for row in good[: wanted - len(kept)].tolist():
            kept.append(drawn[row])
            last = row
        tries += last + 1 if len(kept) == wanted else len(drawn)
    return Accepted(torch.stack(kept), tries)


def conditional_law(policy: Policy, prompts: Tensor, reward: Reward) -> Tensor:
    """(prompts, responses): pi(y | right) = pi(y) 1[R > 0] / P(right), by enumeration.

    The limit of Gibbs for a 0/1 reward as beta falls to 0, at -log P(right) nats from the policy.
    Raises ValueError where no response can be right.
    """
    with torch.no_grad():
        mass = response_log_probs(policy, prompts).exp() * (
            all_rewards(policy, prompts, reward) > 0
        )
    total = mass.sum(-1, keepdim=True)
    if bool((total == 0).any()):
        raise ValueError(
            f"prompt {int((total == 0).flatten().long().argmax())} has no right answer"
        )
    return mass / total


def sft_loss(policy: Policy, prompts: Tensor, responses: Tensor, weights: Tensor) -> Tensor:
    """Supervised loss on weighted responses: - sum_i w_i log pi(y_i) / sum_i w_i, nats, a scalar.

    prompts : (prompts, L)   responses : (batch, time), a prompt's responses adjacent
    weights : (batch,) >= 0, not all 0; 1 for accepted and 0 for rejected ones

    With 0/1 weights its gradient at the sampling policy is minus that of REINFORCE with a 0/1
    reward, divided by the share of accepted responses: grad log P(right) instead of
    grad P(right) for one prompt. Lecture 20.
    """
    if weights.shape != responses.shape[:1]:
        raise ValueError(
            f"weights must be {tuple(responses.shape[:1])}, one per response, got "
            f"{tuple(weights.shape)}"
        )
    if not bool((weights >= 0).all()) or not bool(torch.isfinite(weights).all()):
        raise ValueError("weights must be finite and >= 0")
    if not bool(weights.sum() > 0):
        raise ValueError("no response was accepted: all weights are 0, there is nothing to fit")
    logp = policy.log_probs(prompts, responses).sum(-1)
    return -(weights * logp).sum() / weights.sum()


def keep_right(rewards: Tensor) -> Tensor:
    """(prompts, group) -> bool: every response with a reward > 0."""
    return rewards > 0


def keep_best(rewards: Tensor) -> Tensor:
    """(prompts, group) -> bool: the first best response of each group; distils best-of-n.

    Dong et al. (2023), arXiv:2304.06767 (RAFT). A group without a good response is imitated too.
    """
    best = rewards.argmax(-1, keepdim=True)
    return torch.zeros_like(rewards, dtype=torch.bool).scatter(-1, best, True)


class Round(NamedTuple):
    """One round of expert iteration, as it began; the last one is what came out."""

    objective: float  # exact J, points
    entropy: float  # exact, of a whole response, nats
    sampled: int  # responses drawn so far
    kept: int  # of this round's draws; 0 in the last entry


def expert_iteration(
    policy: Policy,
    prompts: Tensor,
    reward: Reward,
    *,
    rounds: int,
    group: int,
    keep: Callable[[Tensor], Tensor] = keep_right,
    fit_steps: int = 10,
    learning_rate: float = 0.1,
    seed: int,
) -> tuple[Round, ...]:
    """Sample, keep what was good, imitate it, repeat. Changes `policy` in place.

    keep      : rewards (prompts, group) -> bool of the same shape: `keep_right`, `keep_best`
    fit_steps : Adam steps of `sft_loss` on the kept responses of each round
    returns   : rounds + 1 records; the same seed gives the same ones

    One step per round is REINFORCE with a 0/1 reward, no baseline and a normalised step; many
    steps move towards `conditional_law`. A round that keeps nothing changes nothing. Each round
    starts from the last one's policy; STaR (Zelikman et al. 2022) and ReST-EM (Singh et al. 2024)
    start each fit from the first. Anthony et al. (2017), "Thinking fast and slow with deep
    learning and tree search". Lecture 20.
    """
    for name, count in (("rounds", rounds), ("group", group), ("fit_steps", fit_steps)):
        _check_count(name, count)
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"learning_rate must be positive and finite, got {learning_rate!r}")
    prompts, generator = check_prompts(prompts), as_generator(seed)
    optimise = torch.optim.Adam(policy.parameters(), lr=learning_rate)
    records = []

    def look(sampled: int, kept: int) -> None:
        with torch.no_grad():
            objective = float(expected_reward(policy, prompts, reward))
            records.append(Round(objective, float(exact_entropy(policy, prompts)), sampled, kept))

    for r in range(rounds):
        responses = policy.sample(prompts, group, seed=generator)
        rewards = _rewarded(reward, prompts[:, None], responses.unflatten(0, (-1, group)))
        kept = keep(rewards)
        if kept.shape != rewards.shape or kept.dtype != torch.bool:
            raise ValueError(
                f"keep(rewards {tuple(rewards.shape)}) must return bools of that shape, got "
                f"{kept.dtype} {tuple(kept.shape)}"
            )
        kept = kept.flatten()
        look(r * len(responses), int(kept.sum()))
        for _ in range(fit_steps if bool(kept.any()) else 0):
            loss = sft_loss(policy, prompts, responses, kept.to(next(policy.parameters()).dtype))
            optimise.zero_grad()
            loss.backward()
            optimise.step()
    look(rounds * len(responses), 0)
    return tuple(records)


# --- a policy that can sort a little ------------------------------------------------------------


def sorting_tree(
    prompts: Tensor, vocab_size: int, *, skill: float, haste: float = 0.0
) -> AutoregressivePolicy:
    """An untrained stand-in for a language model that has seen sorting: float64, ends with an eos.

    Numbers are 0 .. vocab_size-1, the end token is `vocab_size`, responses hold up to L numbers.
    At every prefix the logit of the next number of the sorted prompt (after L numbers: of the
    end) is `skill` higher; `haste` is added to the end token's logit before anything was written,
    the fault of models whose likeliest answer is an empty one.
    """
    prompts = check_prompts(prompts)
    if bool((prompts < 0).any()) or bool((prompts >= vocab_size).any()):
        raise ValueError(
            f"prompts must hold numbers 0 .. {vocab_size - 1} ({vocab_size} is the end token), got "
            f"{int(prompts.min())} .. {int(prompts.max())}"
        )
    length = prompts.shape[1] + 1
    policy = AutoregressivePolicy(vocab_size + 1, length, eos_id=vocab_size, prompts=prompts)
    policy = policy.double()
    ending = torch.full((len(prompts), 1), vocab_size)
    answers = torch.cat([prompts.sort(-1).values, ending], 1)  # (prompts, length)
    written = (policy.states >= 0).sum(-1)  # (states,)
    with torch.no_grad():
        policy.table.scatter_(2, answers[:, written, None], skill)
        policy.table[:, 0, vocab_size] += haste
    return policy


# --- checks -------------------------------------------------------------------------------------


def _check_count(name: str, count: int) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(f"{name} must be a positive whole number, got {count!r}")


def _check_law(probs: Tensor) -> None:
    if not probs.is_floating_point():
        raise ValueError(f"probs must hold floats, got {probs.dtype}")
    total = probs.sum(-1)
    if bool((probs < 0).any()) or not torch.allclose(total, torch.ones_like(total), atol=1e-5):
        raise ValueError("probs must be probabilities that sum to 1 in the last axis")


def _check_plan(plan: Plan) -> None:
    if not isinstance(plan, (GaussianPlan, CategoricalPlan)):
        raise TypeError(
            f"plan must be a GaussianPlan or a CategoricalPlan, got {type(plan).__name__}"
        )
    if isinstance(plan, GaussianPlan):
        good = (plan.std > 0).all() and plan.std.isfinite().all()
        if plan.mean.shape != plan.std.shape or plan.mean.ndim != 1 or not good:
            raise ValueError("GaussianPlan needs mean (steps,) and finite std (steps,) > 0")
        if not 0 <= plan.floor < math.inf:
            raise ValueError(f"GaussianPlan.floor must be finite and >= 0, got {plan.floor!r}")
        return
    sums = plan.probs.sum(-1)
    if plan.probs.ndim != 2 or (plan.probs < 0).any() or not torch.allclose(sums, sums * 0 + 1):
        raise ValueError("CategoricalPlan.probs must be (positions, vocab), rows summing to 1")
    if not 0 <= plan.floor < 1:
        raise ValueError(f"CategoricalPlan.floor must lie in [0, 1), got {plan.floor!r}")


def _check_tree(policy: AutoregressivePolicy) -> None:
    if not isinstance(policy, AutoregressivePolicy):
        raise TypeError(
            f"policy must be an AutoregressivePolicy (a tree of prefixes), got "
            f"{type(policy).__name__}"
        )


def _filler(policy: Policy) -> int:
    return 0 if policy.eos_id is None else policy.eos_id
