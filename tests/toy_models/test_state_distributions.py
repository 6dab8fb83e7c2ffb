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


def test_impossible_arguments_are_named(theta):
    with pytest.raises(ValueError, match="gamma must lie"):
        sd.discounted(CHAIN, policy_of(theta), gamma=1.0)
    with pytest.raises(ValueError, match="policy must be"):
        sd.average_reward(CHAIN, policy_of(theta)[:2])
