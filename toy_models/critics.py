"""Critics: what is the state before each token worth?

| class | parameters | can it be right? |
|---|---|---|
| `TabularCritic` | a number per prefix, zero at the start | yes, exactly |
| `LinearCritic` | a weight per position and per count of tokens written so far | rarely |

    critic = TabularCritic(policy, prompts)          # prompts: a table for each of them
    values = critic.values(prompts, responses)       # (batch, time), batch = prompts * group
    train(policy, prompts, reward, "ppo", critic=critic)

`perfect_critic` fills a table by enumeration, `reward_critic` from the reward of unfinished
responses; both are ordinary tables that training goes on from.

Left out: networks that share layers with the policy (see lecture 07 for what that costs), and
values of states that no response reaches. Lectures 06 and 07.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from policy_gradients.advantages import gae
from policy_gradients.aggregation import sum_per_sequence
from policy_gradients.algorithms import ALGORITHMS
from policy_gradients.surrogates import reinforce
from toy_models.exact import all_rewards, prefix_values, responses_of
from toy_models.policies import (
    Policy,
    PrefixIndex,
    PromptIndex,
    check_prompts,
    group_size,
    mask_of,
)

Reward = Callable[[Tensor, Tensor], Tensor]

# Advantage actor-critic as a row: PPO's without ratio, clip and KL. Sums over the tokens, so that
# with gamma = 1, whitening=False and entropy_coefficient = 0, its mean is the policy gradient if
# lam = 1 or the critic is right. (A3C takes n-step returns and an entropy bonus; here GAE, and no
# bonus unless asked for.)
A2C = replace(
    ALGORITHMS["ppo"],
    name="a2c",
    title="Advantage actor-critic",
    paper="Mnih et al. 2016, arXiv 1602.01783 (A3C, here without the asynchrony)",
    surrogate=reinforce,
    knobs={},
    aggregation=sum_per_sequence,
    kl="none",
    kl_coefficient=0.0,
    value_clip=None,
)


class Critic(nn.Module):
    """What the critics share; a subclass says which weights it has and how they make a value.

    policy  : gives the sizes, the end token and the dtype; the critic holds no reference to it
    prompts : optional (prompts, L); with it every prompt has its own row of weights, another
              prompt raises. None: one row, the same values for every prompt
    """

    def __init__(self, policy: Policy, prompts: Tensor | None, weights: int):
        super().__init__()
        self.vocab_size, self.length, self.eos_id = policy.vocab_size, policy.length, policy.eos_id
        self.index = None if prompts is None else PromptIndex(prompts)
        rows = 1 if prompts is None else len(self.index.known)
        dtype = next(policy.parameters()).dtype
        self.table = nn.Parameter(torch.zeros(rows, weights, dtype=dtype))

    def values(self, prompts: Tensor, responses: Tensor) -> Tensor:
        """V of the state before each token, the critic's guess at the return from there on.

        For gamma = 1, no KL in the reward and while the policy stands still, what it is trained
        towards is the score to expect.

        prompts : (prompts, L)   responses : (batch, time), batch a multiple of prompts
        returns : (batch, time) points, 0 after the first end token; differentiable
        """
        prompts = check_prompts(prompts)
        group = group_size(prompts, responses, self.length)
        rows = torch.zeros(len(prompts), dtype=torch.long)
        rows = (rows if self.index is None else self.index(prompts)).repeat_interleave(group)
        values = self._values(self.table[rows], responses)
        return torch.where(mask_of(responses, self.eos_id), values, 0.0)

    def _values(self, weights: Tensor, responses: Tensor) -> Tensor:
        """weights (batch, weights), responses (batch, time) -> (batch, time)."""
        raise NotImplementedError


class TabularCritic(Critic):
    """One value per prefix (and per prompt, if told): V = table[prompt, prefix].

    `table` is (prompts or 1, states), zero at the start, in the order of `PrefixIndex.listed`.
    Fitted to returns while the policy stands still it ends at their mean per state, which is
    E[R | prefix] for gamma = 1 and no KL in the reward. Where the policy moves, it trails behind.
    """

    def __init__(self, policy: Policy, prompts: Tensor | None = None):
        prefixes = PrefixIndex(policy.vocab_size, policy.length, policy.eos_id)
        super().__init__(policy, prompts, prefixes.count)
        self.prefixes = prefixes

    def _values(self, weights: Tensor, responses: Tensor) -> Tensor:
        return weights.gather(1, self.prefixes(responses))


class LinearCritic(Critic):
    """V = one weight for the position + one for every token written so far, by its id.

    `table` is (prompts or 1, length + vocab_size), zero at the start. It cannot see the order of
    what was written, so it stays wrong on most tasks: a critic to study bias with.
    """

    def __init__(self, policy: Policy, prompts: Tensor | None = None):
        super().__init__(policy, prompts, policy.length + policy.vocab_size)

    def _values(self, weights: Tensor, responses: Tensor) -> Tensor:
        position, token = weights.split([self.length, self.vocab_size], 1)
        written = token.gather(1, responses).cumsum(1)  # up to and including token t
        before = torch.cat([torch.zeros_like(written[:, :1]), written[:, :-1]], 1)
        return position + before


def perfect_critic(policy: Policy, prompts: Tensor, reward: Reward) -> TabularCritic:
    """The table that holds E[R | prefix] of the policy as it is now, from `exact.prefix_values`.

    R is the score alone: perfect for gamma = 1 and no KL in the reward, until the policy moves.
    """
    prompts, responses = check_prompts(prompts), responses_of(policy)
    critic, mask = TabularCritic(policy, prompts), policy.mask(responses)
    states = critic.prefixes(responses)[mask]
    with torch.no_grad():
        for row, prompt in zip(critic.table, prompts, strict=True):
            row[states] = prefix_values(policy, prompt, reward)[:, :-1][mask]
    return critic


def reward_critic(policy: Policy, prompts: Tensor, reward: Reward) -> TabularCritic:
    """The table that holds the reward of each prefix as if it had ended there.

    How a critic is often started: from the reward model, which was trained to judge finished
    responses and is now read in the middle of them. Ouyang et al. 2022 (InstructGPT, arXiv
    2203.02155). Raises ValueError for a policy without an end token.
    """
    if policy.eos_id is None:
        raise ValueError(
            "reward_critic reads the reward of unfinished responses, so the policy needs an end "
            "token: eos_id is None"
        )
    prompts = check_prompts(prompts)
    critic = TabularCritic(policy, prompts)
    prefixes = critic.prefixes.listed
    ended = torch.where(prefixes < 0, policy.eos_id, prefixes)
    ended = torch.cat([ended, torch.full_like(ended[:, :1], policy.eos_id)], 1)  # (states, time)
    with torch.no_grad():
        critic.table.copy_(reward(prompts[:, None], ended))
    return critic


# --- from values to advantages ------------------------------------------------------------------


def last_token(mask: Tensor) -> Tensor:
    """(batch, time) bool: true on the last token of each response; the `done` of GAE."""
    mask = mask.bool()
    after = torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], 1)
    return mask & ~after


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """1 - Var(returns - values) / Var(returns) over the response tokens.

    values, returns, mask : (batch, time)
    1 for a critic that is never wrong, 0 for one that says the same everywhere, negative for one
    that is worse than that; nan where all returns are equal. A constant error is not seen: V and
    V + 10 score the same. Even the right critic stays below 1 where returns are noisy.
    """
    valid = mask.bool()
    values, returns = values.detach()[valid], returns.detach()[valid]
    spread = returns.var(correction=0)
    if not spread > 0:
        return float("nan")
    return 1 - ((returns - values).var(correction=0) / spread).item()


def all_advantages(
    policy: Policy, critic: Critic, prompts: Tensor, reward: Reward, *, gamma: float, lam: float
) -> Tensor:
    """GAE of every response there is, with the score on its last token.

    returns : (prompts, responses, time), 0 after the end. As `token_weights` of
              `exact.gradient_moments`, with the estimator `torch.ones_like`, they give the exact
              bias and variance that lambda and a critic cause. Lecture 06.
    """
    prompts, responses = check_prompts(prompts), responses_of(policy)
    batch, mask = responses.repeat(len(prompts), 1), policy.mask(responses)
    done, mask = (x.repeat(len(prompts), 1) for x in (last_token(mask), mask))
    scores = all_rewards(policy, prompts, reward).flatten()
    with torch.no_grad():
        values = critic.values(prompts, batch)
    rewards = torch.where(done, scores[:, None], 0.0)
    advantages, _ = gae(rewards, values, done, gamma=gamma, lam=lam)
    return torch.where(mask, advantages, 0.0).unflatten(0, (len(prompts), len(responses)))
