"""From the scores of whole responses to the advantage of every token.

Two ways, one function each: `compare` for rows that compare the responses to one prompt, `gae` of
a critic for the others. Both are pure functions of tensors; `Learner.measure` calls them once per
step, on all of its samples, because a mean over a part of the step would be another mean.

Shapes: scores (prompts, group); logp, logp_ref, values, mask (batch, time) with batch = prompts ·
group, a prompt's responses neighbours.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from policy_gradients.advantages import (
    batch_centered,
    gae,
    group_centered,
    leave_one_out,
    shape_rewards_with_kl,
)
from policy_gradients.algorithms import Algorithm
from policy_gradients.ratios import truncated_importance_weight


def whole_response(kl: Tensor) -> Tensor:
    """Every token pays for the KL of the whole response: (batch, time) → (batch, 1).

    As a gradient exact where a row sums over tokens: E[Σ_t s_t · Σ_u k1_u] = ∇KL of the response's
    distribution. A mean per response weighs each by 1/|y| and so has another gradient.
    """
    return kl.sum(1, keepdim=True)


def to_go(kl: Tensor) -> Tensor:
    """A token pays for its own KL and that of the tokens after it: (batch, time) → same.

    The same expected gradient, as what came before a token is no consequence of it. Usually with
    less variance; not always, since the past's k1 may happen to act as a baseline.
    """
    return kl.flip(1).cumsum(1).flip(1)


def own_token(kl: Tensor) -> Tensor:
    """A token pays for its own KL alone: (batch, time) → same.

    Not the gradient of the response's KL: it leaves out that a token also decides which states
    come next, and how far the policy is from the reference there. Its expected gradient is that of
    k2 per token in the loss, Σ_t E[∇KL at the state of t]: on a small autoregressive policy the
    cosine with ∇KL is .864 (Lecture 05).
    """
    return kl


DIFFERENCES = (batch_centered, leave_one_out, group_centered)  # linear in the scores

PAYERS = {"sequence": whole_response, "to_go": to_go, "token": own_token}


def compare(
    row: Algorithm,
    scores: Tensor,
    logp: Tensor | None,
    logp_ref: Tensor | None,
    mask: Tensor,
    *,
    payer: Callable[[Tensor], Tensor],
) -> Tensor:
    """Advantages of a row without a critic: (batch, 1), or (batch, time) if tokens pay differently.

    Without a KL in the reward these are `row.advantage(scores)`. With it β times the k1 that a
    token pays for is taken off, compared by columns: the baseline of token t holds only what
    responses pay from t on, so it stays one. A row that is a difference to a mean (RLOO) compares
    payments as it compares scores. One that divides by the group's spread or mean (GRPO) divides
    the scores alone and centres what is paid in the group: in the spread, payments would be scaled
    to size 1 where scores are equal, whatever β. So β weighs against the same advantages as in the
    loss.
    """
    advantages = row.advantage(scores).reshape(-1, 1)  # (batch, 1)
    if row.kl == "reward" and row.kl_coefficient > 0:
        kl = torch.where(mask, row.kl_estimator(logp, logp_ref), 0.0)
        centre = row.advantage if row.advantage in DIFFERENCES else group_centered
        paid = [centre(column.view_as(scores)).flatten() for column in payer(kl).unbind(1)]
        advantages = advantages - row.kl_coefficient * torch.stack(paid, 1)
    return advantages.detach()


def last_token(mask: Tensor) -> Tensor:
    """(batch, time) bool: the last response token of each row."""
    return mask & (mask.flip(1).cumsum(1).flip(1) == 1)


def criticise(
    row: Algorithm,
    scores: Tensor,
    logp: Tensor,
    logp_ref: Tensor | None,
    values: Tensor,
    mask: Tensor,
    *,
    gamma: float,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """(advantages, returns) of a row with a critic, (batch, time) each, by GAE [GAE-13].

    The rewards per token are the score on the last response token and −β·k1 on every one [AC-4].
    A response that was cut at the token limit ends there like any other, without a bootstrap value:
    the limit belongs to the task, which has already scored what was written.
    """
    beta = row.kl_coefficient if row.kl == "reward" else 0.0
    rewards = shape_rewards_with_kl(
        scores.flatten(), logp, logp if logp_ref is None else logp_ref, mask, beta=beta
    )
    values = torch.where(mask, values, 0.0).detach()
    advantages, returns = gae(rewards, values, last_token(mask), gamma=gamma, lam=lam)
    return torch.where(mask, advantages, 0.0), torch.where(mask, returns, 0.0)


def per_token_weights(logp: Tensor, logp_sampler: Tensor, mask: Tensor, *, cap: float) -> Tensor:
    """min(π_learner/π_sampler, cap) of each token: (batch, time).

    Biased even without a cap: it corrects a token's draw, not those before it (Lecture 14).
    """
    return torch.where(mask, truncated_importance_weight(logp, logp_sampler, cap=cap), 1.0)


def per_response_weights(logp: Tensor, logp_sampler: Tensor, mask: Tensor, *, cap: float) -> Tensor:
    """min(π_learner/π_sampler, cap) of each whole response: (batch, 1)."""
    learner = torch.where(mask, logp, 0.0).sum(1, keepdim=True)
    sampler = torch.where(mask, logp_sampler, 0.0).sum(1, keepdim=True)
    return truncated_importance_weight(learner, sampler, cap=cap)


WEIGHTS = {"none": None, "token": per_token_weights, "sequence": per_response_weights}
