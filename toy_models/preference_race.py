"""PPO, GRPO, a learned reward model, and DPO three ways: equal budgets of judged responses.

    result = matched_budget(TASKS["easy"], seeds=range(5))
    result.ranking(), result.interval("grpo"), result.difference("grpo", "online dpo")
    result.kl["dpo"], result.rates["dpo"], result.generated["dpo"]

Matched: the start, the prompts, the number of responses that the true reward judges, the number
of updates, their optimiser (Adam) and how the learning rate was chosen: from the same grid, on
seeds that do not race. Offline DPO's best, .4, is the edge of that grid; four times as much gains
it some .2 points. beta is not tuned: .1 for DPO, for PPO and GRPO their row's.

Not matched, because it is the difference: what a judged response tells. To PPO and GRPO its
points, to the others who won, one bit for two responses. A finite `scale` draws the winner from
Bradley-Terry, math.inf lets the better one win (ties stay a coin); neither is known for people.
And the reward model shares features between prompts and positions, the policies share nothing: what
it makes of the same pairs is generalisation that DPO's tables do not have. Lecture 17.
"""

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from policy_gradients.preferences import dpo
from toy_models.critics import TabularCritic
from toy_models.exact import exact_kl, expected_reward
from toy_models.policies import Policy
from toy_models.preferences import (
    FeatureReward,
    fit_reward_model,
    learn_from_pairs,
    online_dpo,
    sample_comparisons,
)
from toy_models.race import TASKS, Race, Task
from toy_models.train import train

GRID = (0.05, 0.1, 0.2, 0.4)
GROUP, UPDATES = 8, 4  # responses to a prompt and updates, per step


class Setting(NamedTuple):
    """What every method is given: `steps` · prompts · 8 judged responses and `steps` · 4 updates.

    scale : of the comparisons     beta : of DPO, points per nat
    """

    task: Task
    steps: int
    scale: float
    beta: float

    @property
    def pairs(self) -> int:
        """Comparisons that the budget pays for: two judged responses each."""
        return self.steps * len(self.task.prompts) * GROUP // 2


def _reinforce(name: str, policy: Policy, setting: Setting, rate: float, seed: int, **judge) -> int:
    reward = judge.get("reward", setting.task.judge)
    prompts = setting.task.prompts
    train(
        policy,
        prompts,
        reward,
        name,
        steps=setting.steps,
        group=GROUP,
        inner_steps=2,
        minibatches=UPDATES // 2,
        learning_rate=rate,
        critic=TabularCritic(policy, prompts) if name == "ppo" else None,
        watch=False,
        seed=seed,
    )
    return setting.steps * len(prompts) * GROUP


def _compare(policy: Policy, setting: Setting, seed: int):
    """The whole budget spent on comparisons of the start."""
    task = setting.task
    return sample_comparisons(
        policy, task.prompts, task.judge, pairs=setting.pairs, scale=setting.scale, seed=seed
    )


def _offline(policy: Policy, setting: Setting, rate: float, seed: int) -> int:
    steps = setting.steps * UPDATES
    learn_from_pairs(
        policy,
        policy,
        _compare(policy, setting, seed),
        partial(dpo, beta=setting.beta),
        steps=steps,
        learning_rate=rate,
        batch=setting.pairs // setting.steps // 2,
        record_every=steps,
        seed=seed,
    )
    return 2 * setting.pairs


def _online(refresh: bool, policy: Policy, setting: Setting, rate: float, seed: int) -> int:
    online_dpo(
        policy,
        setting.task.prompts,
        setting.task.judge,
        rounds=setting.steps,
        pairs=setting.pairs // setting.steps,
        updates=UPDATES,
        batch=setting.pairs // setting.steps // 2,
        learning_rate=rate,
        beta=setting.beta,
        scale=setting.scale,
        refresh=refresh,
        record_every=setting.steps,
        seed=seed,
    )
    return 2 * setting.pairs


def _reward_model(policy: Policy, setting: Setting, rate: float, seed: int) -> int:
    """The long way: fit a reward model to the comparisons, then GRPO on it, judged by nobody."""
    pairs = _compare(policy, setting, seed)
    model = FeatureReward(policy.vocab_size, policy.length, seed=seed)
    fit_reward_model(model, pairs, steps=200, learning_rate=0.03, weight_decay=1e-3)
    return 2 * setting.pairs + _reinforce("grpo", policy, setting, rate, seed, reward=model)


METHODS: Mapping[str, Callable[[Policy, Setting, float, int], int]] = {
    "ppo": partial(_reinforce, "ppo"),
    "grpo": partial(_reinforce, "grpo"),
    "reward model": _reward_model,
    "dpo": _offline,
    "online dpo": partial(_online, False),
    "iterative dpo": partial(_online, True),
}


@dataclass(frozen=True)
class Matched(Race):
    """A `Race` (scores, judged samples, updates; intervals and differences), and per method:

    kl        : (seeds,) exact KL(end || start), nats     rates : the learning rate it raced with
    generated : responses written by a policy, judged by the true reward or not
    """

    kl: dict[str, Tensor]
    rates: dict[str, float]
    generated: dict[str, int]


def matched_budget(
    task: Task = TASKS["easy"],
    methods: Iterable[str] = tuple(METHODS),
    *,
    seeds: Iterable[int] = range(5),
    steps: int = 30,
    scale: float = 1.0,
    beta: float = 0.1,
    rates: Mapping[str, float] | None = None,
    tuning_seeds: Iterable[int] = (100, 101),
) -> Matched:
    """Train every method from the same start, `steps` · 6 · 8 judged responses each.

    task    : of `toy_models.race.TASKS`      methods : names in `METHODS`
    scale   : of the comparisons: P(win) = sigmoid(scale · points)      beta : of DPO
    rates   : learning rate of each method; None: for each the best of .05, .1, .2 and .4 by the
              mean of J over the tuning seeds
    returns : `Matched`

    Raises KeyError for an unknown method or one without a rate, ValueError for fewer than two
    seeds, a seed given twice or one that tunes and races.
    """
    seeds, tuning_seeds, methods = list(seeds), list(tuning_seeds), list(methods)
    if len(set(seeds)) < max(2, len(seeds)):
        raise ValueError(f"a spread needs at least two seeds, every seed once, got {seeds}")
    if rates is None and (set(seeds) & set(tuning_seeds) or not tuning_seeds):
        raise ValueError(
            f"learning rates are chosen on seeds that do not race: seeds {seeds}, tuning_seeds "
            f"{tuning_seeds}"
        )
    for name in methods:
        if name not in METHODS:
            raise KeyError(f"no method {name!r}; there are {', '.join(METHODS)}")
        if rates is not None and name not in rates:
            raise KeyError(f"rates has none for {name!r}; it has them for {', '.join(rates)}")
    setting = Setting(task, steps, scale, beta)

    def run(name: str, rate: float, seed: int) -> tuple[float, float, int]:
        policy = task.policy()
        start = copy.deepcopy(policy)
        generated = METHODS[name](policy, setting, rate, seed)
        with torch.no_grad():
            score = expected_reward(policy, task.prompts, task.judge).item()
            return score, exact_kl(policy, start, task.prompts).item(), generated

    def tuned(name: str) -> float:
        means = {r: math.fsum(run(name, r, seed)[0] for seed in tuning_seeds) for r in GRID}
        return max(means, key=means.get)

    rates = {name: tuned(name) for name in methods} if rates is None else dict(rates)
    results = {name: [run(name, rates[name], seed) for seed in seeds] for name in methods}
    columns = {n: torch.tensor(r, dtype=torch.float64).unbind(1) for n, r in results.items()}
    judged, updates = 2 * setting.pairs, steps * UPDATES
    return Matched(
        task.name,
        scores={name: column[0] for name, column in columns.items()},
        samples={name: torch.full((len(seeds),), float(judged)) for name in methods},
        updates={name: torch.full((len(seeds),), float(updates)) for name in methods},
        kl={name: column[1] for name, column in columns.items()},
        rates=rates,
        generated={name: int(column[2][0]) for name, column in columns.items()},
    )
