"""Three objectives over states: the theorem holds in each, and not for a mixture."""

import pytest
import torch

from toy_models import state_distributions as sd

CHAIN = sd.random_chain(seed=46)


def policy_of(theta):
    return theta.softmax(1)


@pytest.fixture
def theta():
    dice = torch.Generator().manual_seed(4)
    return torch.randn(3, 2, generator=dice, dtype=torch.float64).requires_grad_()


def forms(policy, gamma=0.5):
    return [sd.discounted(CHAIN, policy, gamma=gamma), sd.average_reward(CHAIN, policy)]


def test_j_is_visits_times_rewards_and_visits_add_up(theta):
    policy = policy_of(theta)
    for form, total in zip(forms(policy), (2.0, 1.0), strict=True):
        assert form.visits.sum().item() == pytest.approx(total)
        earned = (form.visits * (policy * CHAIN.rewards).sum(1)).sum()
        assert earned.item() == pytest.approx(form.J.item(), abs=1e-12)


def test_the_theorem_holds_in_both_forms_and_not_for_the_mixture(theta):
    policy = policy_of(theta)
    short, long_run = forms(policy)
    for form in (short, long_run):
        (truth,) = torch.autograd.grad(form.J, theta, retain_graph=True)
        assert (sd.state_gradient(form, policy, theta) - truth).abs().max() < 1e-9
        mixed = sd.state_gradient(long_run, policy, theta, q=short.q)
        assert torch.cosine_similarity(mixed.flatten(), truth.flatten(), dim=0) < 0.8


def test_the_average_is_the_limit_of_long_horizons_and_of_small_discounts(theta):
    policy = policy_of(theta)
    J = sd.average_reward(CHAIN, policy).J.item()
    steps = [sd.horizon_return(CHAIN, policy, n) for n in (200, 201)]
    assert (steps[1] - steps[0]).item() == pytest.approx(J, abs=1e-9)
    patient = sd.discounted(CHAIN, policy, gamma=1 - 1e-7)
    assert (1e-7 * patient.J).item() == pytest.approx(J, abs=1e-5)


def test_a_surrogate_over_averaged_states_is_per_step(theta):
    old = policy_of(theta).detach()
    new = policy_of(theta + 1e-6 * torch.tensor([[1.0, 0]], dtype=torch.float64)).detach()
    change = sd.horizon_return(CHAIN, new, 7) - sd.horizon_return(CHAIN, old, 7)
    assert (change / sd.surrogate(CHAIN, old, new, 7)).item() == pytest.approx(7, abs=1e-3)


def test_with_a_horizon_the_gradient_needs_a_q_with_a_clock(theta):
    policy = policy_of(theta)
    truth, clock = (
        torch.autograd.grad(J, theta, retain_graph=True)[0]
        for J in (
            sd.horizon_return(CHAIN, policy, 7),
            7 * sd.surrogate(CHAIN, policy.detach(), policy, 7),
        )
    )
    assert (clock - truth).abs().max() < 1e-9
    values, at, visits = sd._values(CHAIN, policy.detach(), 7), CHAIN.first, 0  # without a clock
    for _ in range(7):
        visits, at = visits + at, at @ sd._under(CHAIN, policy.detach())[0]
    q = CHAIN.rewards + CHAIN.move @ values[6]
    blind = sd.state_gradient(sd.Form(truth, visits, q), policy, theta)
    assert (blind - truth).abs().max() > 0.01 * truth.abs().max()


def test_impossible_arguments_are_named(theta):
    with pytest.raises(ValueError, match="gamma must lie"):
        sd.discounted(CHAIN, policy_of(theta), gamma=1.0)
    with pytest.raises(ValueError, match="policy must be"):
        sd.average_reward(CHAIN, policy_of(theta)[:2])


def test_differential_values_by_their_definition(theta):
    policy = policy_of(theta)
    form = sd.average_reward(CHAIN, policy)
    value = (policy * form.q).sum(1)
    assert (form.visits @ value).abs() < 1e-12
    assert (form.q - (CHAIN.rewards - form.J + CHAIN.move @ value)).abs().max() < 1e-12


def test_the_surrogate_visits_the_states_of_the_old_policy(theta):
    old, new = policy_of(theta).detach(), policy_of(-theta).detach()
    step = torch.einsum("sa,san->sn", old, CHAIN.move)
    pay, at, total = (old * CHAIN.rewards).sum(1), CHAIN.first, 0.0
    for t in range(4):
        value = torch.zeros(3, dtype=torch.float64)
        for _ in range(4 - t - 1):
            value = pay + step @ value
        total = total + at @ ((new - old) * (CHAIN.rewards + CHAIN.move @ value)).sum(1)
        at = at @ step
    assert sd.surrogate(CHAIN, old, new, 4).item() == pytest.approx(total.item() / 4)


def test_silent_nonsense_is_refused(theta):
    policy = policy_of(theta)
    for wrong in (theta, 2 * policy, policy * torch.nan):
        with pytest.raises(ValueError, match="sum to 1"):
            sd.discounted(CHAIN, wrong, gamma=0.5)
    with pytest.raises(ValueError, match="policy must be"):
        sd.surrogate(CHAIN, policy, policy[:, :1], 2)
    with pytest.raises(ValueError, match="steps must be"):
        sd.horizon_return(CHAIN, policy, -1)
    with pytest.raises(ValueError, match="q must be"):
        sd.state_gradient(sd.average_reward(CHAIN, policy), policy, theta, q=theta[:, :1])
    two = torch.zeros(4, 1, 4, dtype=torch.float64)  # 0, 1 and 2, 3 never meet; rounding hides it
    two[:2, 0, :2] = torch.tensor([[0.1, 0.9], [0.3, 0.7]])
    two[2:, 0, 2:] = torch.tensor([[1 / 3, 2 / 3], [0.7, 0.3]])
    two = two / two.sum(-1, keepdim=True)
    with pytest.raises(ValueError, match="several closed parts"):
        sd.average_reward(sd.Chain(two, two[..., 0], two[0, 0]), torch.ones(4, 1).double())
