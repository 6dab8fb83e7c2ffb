"""Steps measured in the policy's distribution instead of its parameters: TRPO and PPO-penalty.

    experience = sampled_experience(policy, prompts, reward, group=32, seed=0)
    step = trpo_step(policy, experience, delta=0.01)
    step.kl, step.scale          # where it ended, and how much of the full step survived

Everything here is one weighted sum over responses. `enumerated_experience` lists all of them with
their probabilities, and every number below is exact; `sampled_experience` draws some with equal
weights, and the same code gives what an implementation sees.

A KL here is KL(old || new) of a whole response: at each state of the old policy's responses it is
summed over the vocabulary, then over the tokens. Papers often average over the states instead;
for responses of T tokens that is 1/T of ours, and delta scales alike.

Left out: a value function (bring advantages from anywhere: `experience._replace(advantages=...)`),
and the policy-improvement bound with the maximum KL, which nobody steps by. Lecture 04.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from policy_gradients.advantages import leave_one_out
from policy_gradients.kl import exact_kl
from policy_gradients.surrogates import unclipped
from toy_models.exact import (
    all_rewards,
    flat_gradient,
    response_log_probs,
    responses_of,
)
from toy_models.policies import Policy, as_generator, check_prompts

Reward = Callable[[Tensor, Tensor], Tensor]
PerToken = Callable[[Tensor, Tensor, Tensor], Tensor]


class Experience(NamedTuple):
    """Responses of the old policy. batch = prompts * group, a prompt's responses adjacent."""

    prompts: Tensor  # (prompts, L)
    responses: Tensor  # (batch, time)
    mask: Tensor  # (batch, time) bool
    weights: Tensor  # (batch,) summing to 1: probabilities, or 1/batch for samples
    advantages: Tensor  # (batch, 1) or (batch, time), points
    logits_old: Tensor  # (batch, time, vocab) of the old policy
    logp_old: Tensor  # (batch, time) nats


def enumerated_experience(policy: Policy, prompts: Tensor, reward: Reward) -> Experience:
    """Every response with its probability, the advantage R - V: exact expectations."""
    prompts = check_prompts(prompts)
    with torch.no_grad():
        probs = response_log_probs(policy, prompts).exp()  # (prompts, responses)
        rewards = all_rewards(policy, prompts, reward)
    advantages = rewards - (probs * rewards).sum(-1, keepdim=True)
    responses = responses_of(policy).repeat(len(prompts), 1)
    return _experience(policy, prompts, responses, probs.flatten() / len(prompts), advantages)


def sampled_experience(
    policy: Policy,
    prompts: Tensor,
    reward: Reward,
    *,
    group: int,
    seed: int | torch.Generator,
    advantage: Callable[[Tensor], Tensor] = leave_one_out,
) -> Experience:
    """`group` sampled responses per prompt, equal weights.

    advantage : rewards (prompts, group) -> the same shape, from `policy_gradients.advantages`
    """
    prompts = check_prompts(prompts)
    responses = policy.sample(prompts, group, seed=as_generator(seed))
    rewards = reward(prompts[:, None], responses.unflatten(0, (len(prompts), group)))
    rewards = rewards.to(next(policy.parameters()).dtype)
    weights = rewards.new_full((len(responses),), 1 / len(responses))
    return _experience(policy, prompts, responses, weights, advantage(rewards))


def _experience(policy, prompts, responses, weights, advantages) -> Experience:
    with torch.no_grad():
        logits = policy.logits(prompts, responses)
        logp = policy.log_probs(prompts, responses)
    mask, advantages = policy.mask(responses), advantages.reshape(-1, 1)
    return Experience(prompts, responses, mask, weights, advantages, logits, logp)


def _expectation(experience: Experience, per_token: Tensor) -> Tensor:
    """(batch, time) -> scalar: summed over a response's tokens, averaged over the responses."""
    return (experience.weights * torch.where(experience.mask, per_token, 0.0).sum(-1)).sum()


# --- what is climbed, and what is kept small ----------------------------------------------------


def surrogate(policy: Policy, experience: Experience, per_token: PerToken = unclipped) -> Tensor:
    """E[sum_t rho_t A_t] under the old policy: a differentiable scalar, points.

    per_token : (logp, logp_old, advantages) -> loss (batch, time), to be minimised; the default is
                the plain ratio [RC-4], partial(ppo_clip, eps_low=.2, eps_high=.2) PPO's

    Its gradient at the old policy is the policy gradient [RC-5] with enumerated experience; with
    samples an unbiased estimate of it if the advantages give one (`leave_one_out` does; those
    centred by their own group's mean give (G-1)/G of it). Its value there is E[sum_t A_t].
    Schulman et al. 2015 (TRPO, arXiv 1502.05477), eq. 14 (there with Q), per response instead of
    per state.
    """
    logp = policy.log_probs(experience.prompts, experience.responses)
    return -_expectation(experience, per_token(logp, experience.logp_old, experience.advantages))


def mean_kl(policy: Policy, experience: Experience) -> Tensor:
    """E[sum_t KL(old || policy) at the state of token t]: a differentiable scalar, nats.

    With `enumerated_experience` this is KL(old || policy) of whole responses (the chain rule).
    Schulman et al. 2015, eq. 12.
    """
    logits = policy.logits(experience.prompts, experience.responses)
    return _expectation(experience, exact_kl(experience.logits_old, logits))


def penalised_surrogate(policy: Policy, experience: Experience, *, beta: float) -> Tensor:
    """`surrogate` - beta * `mean_kl`: a differentiable scalar, points.

    beta : price of a nat, in points. Schulman et al. 2017 (PPO, arXiv 1707.06347), eq. 8.
    """
    return surrogate(policy, experience) - beta * mean_kl(policy, experience)


# --- the Fisher matrix, without ever writing it down --------------------------------------------


def fisher_vector_product(
    policy: Policy, experience: Experience, vector: Tensor, *, damping: float = 0.0
) -> Tensor:
    """F v + damping * v, with F the Fisher matrix at the experience's states.

    vector : (parameters,)     damping : added to the diagonal, >= 0
    returns : (parameters,)

    F is the sum over t of the Fisher matrices at the states of token t, averaged over the
    experience's responses. Only the states come from there; the actions are those of the policy as
    it is now, summed over the vocabulary. For the policy that was enumerated F = E[u u^T], with
    u the score of a whole response.

    F is the Hessian of KL(fixed copy || policy) at the copy, so F v is the gradient of
    (grad KL) . v: two passes of autograd and no matrix. The copy is detached; with both sides
    attached the KL of a policy with itself is 0 whatever the parameters, and so is its Hessian.
    Schulman et al. 2015, appendix C. Raises ValueError for a vector of another size.
    """
    parameters = list(policy.parameters())
    size = sum(p.numel() for p in parameters)
    if tuple(vector.shape) != (size,):
        raise ValueError(f"vector must be (parameters,) = ({size},), got {tuple(vector.shape)}")
    logits = policy.logits(experience.prompts, experience.responses)
    kl = _expectation(experience, exact_kl(logits.detach(), logits))
    slope = torch.autograd.grad(kl, parameters, create_graph=True)
    slope = torch.cat([g.flatten() for g in slope])
    return flat_gradient(slope @ vector, policy) + damping * vector


def fisher_matrix(policy: Policy, experience: Experience) -> Tensor:
    """(parameters, parameters): `fisher_vector_product` of every unit vector; small policies."""
    size = sum(p.numel() for p in policy.parameters())
    units = torch.eye(size, dtype=next(policy.parameters()).dtype)
    return torch.stack([fisher_vector_product(policy, experience, unit) for unit in units])


def conjugate_gradient(
    product: Callable[[Tensor], Tensor], b: Tensor, *, steps: int = 10, tolerance: float = 1e-10
) -> Tensor:
    """x with A x = b, from products with A alone.

    product   : v -> A v, A symmetric and positive semi-definite, b in its range
    b         : (n,)
    steps     : at most this many products; n of them are enough without rounding
    tolerance : stop when |b - A x| <= tolerance * |b|

    returns : (n,). The start is 0, so x stays in the range of A: for a singular A it is the
    pseudo-inverse's solution. Stops where the rounding of a product leaves no curvature.
    Hestenes and Stiefel 1952.
    """
    x, residual = torch.zeros_like(b), b.clone()
    direction, squared = residual, residual @ residual
    goal = tolerance**2 * squared
    for _ in range(steps):
        if squared <= goal:
            break
        along = product(direction)
        curvature = direction @ along
        if not curvature > 0:
            break
        stride = squared / curvature
        x, residual = x + stride * direction, residual - stride * along
        previous, squared = squared, residual @ residual
        direction = residual + squared / previous * direction
    return x


def natural_gradient(
    policy: Policy,
    experience: Experience,
    *,
    damping: float = 0.0,
    cg_steps: int = 10,
) -> Tensor:
    """The direction of steepest ascent of `surrogate` when length is measured in KL.

    returns : (parameters,) F^+ g after enough steps (the rank of F suffices without rounding);
              with damping (F + damping I)^-1 g.

    Kakade 2001 ("A natural policy gradient", NIPS 2001); Lecture 04.
    """
    gradient = flat_gradient(surrogate(policy, experience), policy)
    product = partial(fisher_vector_product, policy, experience, damping=damping)
    return conjugate_gradient(product, gradient, steps=cg_steps)


def full_step(
    policy: Policy,
    experience: Experience,
    *,
    delta: float,
    damping: float = 0.0,
    cg_steps: int = 10,
) -> Tensor:
    """The natural gradient, stretched until the quadratic model of the KL is delta.

    returns : (parameters,) sqrt(2 delta / x^T F x) x with x the natural gradient; 0 where the
    gradient is 0. `policy_gradients.natural_gradient_step` is the same with F written down. With
    damping, F + damping I stands in both places and the model of the KL comes out below delta.
    delta > 0 is in nats per response. Schulman et al. 2015, appendix C.
    """
    if not (delta > 0 and math.isfinite(delta)):
        raise ValueError(f"delta must be positive and finite, got {delta!r}")
    direction = natural_gradient(policy, experience, damping=damping, cg_steps=cg_steps)
    curvature = direction @ fisher_vector_product(policy, experience, direction, damping=damping)
    if not curvature > 0:
        return torch.zeros_like(direction)
    return (2 * delta / curvature).sqrt() * direction


# --- steps that change the policy ---------------------------------------------------------------


class Step(NamedTuple):
    """One update, measured on the experience it was made from."""

    scale: float  # share of the proposed step that was taken; 0 = none was acceptable
    kl: float  # mean_kl(old || new) after the update, nats
    gain: float  # surrogate after the update minus before, points
    full_kl: float  # mean_kl of the whole proposed step; TRPO's model says delta (without damping)


def trpo_step(
    policy: Policy,
    experience: Experience,
    *,
    delta: float,
    damping: float = 0.0,
    cg_steps: int = 10,
    backtracks: int = 10,
    shrink: float = 0.8,
) -> Step:
    """One TRPO update in place: `full_step`, shortened by `line_search`.

    delta : trust region, nats per response. Schulman et al. 2015, appendix C.

    Guaranteed: the mean KL on this experience is at most delta and the surrogate on it did not
    fall. Not guaranteed: the KL at any single state, the KL on other samples, a higher J.
    """
    step = full_step(policy, experience, delta=delta, damping=damping, cg_steps=cg_steps)
    return line_search(policy, experience, step, delta=delta, backtracks=backtracks, shrink=shrink)


def line_search(
    policy: Policy,
    experience: Experience,
    step: Tensor,
    *,
    delta: float,
    backtracks: int = 10,
    shrink: float = 0.8,
) -> Step:
    """The longest of step, shrink * step, shrink^2 * step, ... that keeps both promises.

    Accepts where `mean_kl` <= delta and `surrogate` has grown; after `backtracks` refusals, or for
    a step of 0, the policy stays as it was.

    step : (parameters,)     shrink : in (0, 1)     backtracks : >= 0; 0 tries the whole step only
    """
    if not 0 < shrink < 1:
        raise ValueError(f"shrink must lie in (0, 1), got {shrink!r}")
    start = parameters_to_vector(policy.parameters()).detach()
    before = surrogate(policy, experience).item()
    full_kl = 0.0
    for tries in range(backtracks + 1):
        scale = shrink**tries
        vector_to_parameters(start + scale * step, policy.parameters())
        kl, gain = _measured(policy, experience, before)
        full_kl = kl if tries == 0 else full_kl
        if kl <= delta and gain > 0:
            return Step(scale, kl, gain, full_kl)
    vector_to_parameters(start, policy.parameters())
    return Step(0.0, 0.0, 0.0, full_kl)


def penalty_step(
    policy: Policy,
    experience: Experience,
    *,
    beta: float,
    adapt: Callable[[float, float], float],
    inner_steps: int = 20,
    learning_rate: float = 0.02,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
) -> tuple[Step, float]:
    """One PPO-penalty update in place, and the beta of the next one.

    beta        : price of a nat in this update, points
    adapt       : (beta, measured kl) -> next beta; one of the three rules of `policy_gradients`
                  with its target set: partial(adaptive_beta, target=.01) is PPO's own,
                  partial(adaptive_beta_proportional, ...) Ziegler's, made for the KL to the
                  reference, partial(adaptive_beta_dual_ascent, ...) dual ascent
    inner_steps : steps of a fresh `optimizer` up `penalised_surrogate`, all on this experience;
                  Adam, because plain steps overshoot once learning_rate * beta is large

    The KL of a single update may miss the target by far; beta reacts afterwards.
    Schulman et al. 2017 (PPO, arXiv 1707.06347), section 4.
    """
    before = surrogate(policy, experience).item()
    optimise = optimizer(policy.parameters(), lr=learning_rate)
    for _ in range(inner_steps):
        optimise.zero_grad()
        (-penalised_surrogate(policy, experience, beta=beta)).backward()
        optimise.step()
    kl, gain = _measured(policy, experience, before)
    return Step(1.0, kl, gain, kl), adapt(beta, kl)


@torch.no_grad()
def _measured(policy: Policy, experience: Experience, before: float) -> tuple[float, float]:
    """(mean KL, growth of the surrogate) of the policy as it is now."""
    kl = mean_kl(policy, experience).item()
    return kl, surrogate(policy, experience).item() - before
