"""The GAE widget's facts, checked against other ways to compute them, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from lectures.widgets import Gae, still
from lectures.widgets import gae as module
from policy_gradients.advantages import gae
from toy_models import exact
from toy_models.policies import AutoregressivePolicy
from toy_models.sorting import inclusion_ordering_reward as partial_credit

CRITICS = ("perfect", *module.CRITICS)


def moments(skill, critic, error, *, gamma, lam):
    """Bias² and variance from `gradient_moments`, and the toy's gradient."""
    toy = module.sorter(skill)
    policy = exact.skilled_policy(
        exact.random_logits(3, 3, scale=0.3, seed=0), module.PROMPT, skill
    )
    values = module.critic_values(toy, critic, error, gamma)
    rewards, done = torch.zeros_like(values), torch.zeros_like(values)
    rewards[:, -1], done[:, -1] = toy.rewards, 1
    advantages, _ = gae(rewards, values, done, gamma=gamma, lam=lam)
    found = exact.gradient_moments(
        policy, module.PROMPT, partial_credit, torch.ones_like, token_weights=advantages
    )
    gradient = exact.exact_gradient(policy, module.PROMPT, partial_credit)
    return (found.mean - gradient).square().sum().item(), found.trace


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize(("gamma", "lam"), [(1, 0), (1, 0.7), (0.8, 0.95), (0.5, 1)])
def test_bias_and_variance_are_those_of_the_exact_laboratory(critic, gamma, lam):
    toy = module.sorter(1.5)
    values = module.critic_values(toy, critic, 0.7, gamma)
    found = module.estimate(toy, values, gamma=gamma, lam=lam)
    assert found == pytest.approx(moments(1.5, critic, 0.7, gamma=gamma, lam=lam), abs=1e-12)


def test_the_perfect_critic_has_the_known_variances():
    """V subtracted from the whole reward .533; reward minus V(s_t) .440; exact advantage .150."""
    for skill, known in ((0, (0.533, 0.440, 0.150)), (4, (0.431, 0.439, 0.434))):
        toy = module.sorter(skill)
        broadcast = toy.values[:, :1].expand(-1, 3)
        found = [
            module.estimate(toy, broadcast, gamma=1, lam=1)[1],
            module.estimate(toy, toy.values, gamma=1, lam=1)[1],
            module.estimate(toy, toy.values, gamma=1, lam=0)[1],
        ]
        assert found == pytest.approx(known, abs=6e-4)


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("skill", [0, 2, 4])
def test_whole_returns_are_unbiased_whatever_the_critic_says(critic, skill):
    bias, _ = module.curves(skill, critic, 2.0, 1.0)[-1]
    assert bias < 1e-24


@pytest.mark.parametrize("skill", [0, 0.5, 2, 4])
def test_a_perfect_critic_is_unbiased_at_every_lambda_and_calmest_at_zero(skill):
    biases, variances = module.curves(skill, "perfect", 0.0, 1.0).T
    assert biases.max() < 1e-24
    assert (np.diff(variances) > 0).all()


@pytest.mark.parametrize(("error", "more"), [(1.0, True), (0.05, False)])
def test_an_offset_moves_all_answers_alike_and_changes_only_the_variance_up_or_down(error, more):
    biases, variances = module.curves(0, "offset", error, 1.0).T
    perfect = module.curves(0, "perfect", 0.0, 1.0)[:, 1]
    assert biases.max() < 1e-24
    assert (variances[0] > perfect[0]) == more
    sentence = Gae(critic="offset", error=error, lam=0).sentence
    assert "no bias at any λ, only the variance changes. (Where a token may end" in sentence


def test_an_offset_biases_the_end_where_a_token_may_end_the_answer():
    """The last δ = R − V − c does not cancel: it is the same baseline only for equal lengths."""
    end, offset = 2, 1.0
    policy = AutoregressivePolicy(3, 3, eos_id=end)
    with torch.no_grad():
        dice = torch.Generator().manual_seed(0)
        policy.table.copy_(0.5 * torch.randn(policy.table.shape, generator=dice))
    policy = policy.double()
    probs = exact.response_log_probs(policy, module.PROMPT)[0].detach().exp()
    scores = exact.token_scores(policy, module.PROMPT).detach()
    values = exact.prefix_values(policy, module.PROMPT, partial_credit)
    responses = exact.responses_of(policy)
    ends = (responses == end).long()
    last = torch.where(ends.any(1), ends.argmax(1), 2)
    done = torch.nn.functional.one_hot(last, 3).to(values.dtype)
    before = torch.arange(3) <= last[:, None]
    rewards = done * exact.all_rewards(policy, module.PROMPT, partial_credit)[0][:, None]

    def bias(lam, wrong):
        given = (values[:, :3] + wrong) * before
        advantages, _ = gae(rewards, given, done, gamma=1.0, lam=lam)
        mean = torch.einsum("n,nt,ntd->d", probs, advantages * before, scores)
        return mean - exact.exact_gradient(policy, module.PROMPT, partial_credit)

    lambdas = (0, 0.5, 0.95, 1)
    for lam in lambdas:
        assert bias(lam, 0.0).norm() < 1e-12  # the perfect critic
    found = [bias(lam, offset).square().sum().item() for lam in lambdas]
    assert found == sorted(found, reverse=True)
    assert found[2] > 1e-6 > 1e-24 > found[3]
    by_state = bias(0, offset).view(-1, 3)  # a row of logits for each prefix
    open_end = (policy.states >= 0).sum(1) < 2  # at the last position every token ends
    assert (by_state[open_end, end] < -1e-3).all()  # a critic too high makes ending look bad
    assert by_state[~open_end].abs().max() < 1e-12


@pytest.mark.parametrize("critic", ["noise", "zero"])
@pytest.mark.parametrize("skill", [0, 2, 4])
def test_errors_that_differ_bias_every_lambda_below_one(critic, skill):
    biases = module.curves(skill, critic, 0.5, 1.0)[:, 0]
    assert (biases[:-1] > 1e-9).all()
    assert (np.diff(biases) < 0).all()


@pytest.mark.parametrize("gamma", [0.99, 0.9, 0.5])
def test_discounting_biases_the_perfect_critic_equally_at_every_lambda(gamma):
    biases = module.curves(0, "perfect", 0.0, gamma)[:, 0]
    assert biases.min() > 1e-9
    assert np.ptp(biases) < 1e-12


def test_the_perfect_critic_of_a_discounted_problem_is_the_discounted_value():
    """Its one-step error has mean zero in every state, which defines the value."""
    toy, gamma = module.sorter(1.0), 0.8
    values = module.critic_values(toy, "perfect", 0.0, gamma)
    following = torch.cat([gamma * values[:, 1:], toy.rewards[:, None]], 1)
    errors = toy.probs[:, None] * (following - values)
    for state in toy.states.unique():
        assert errors[toy.states == state].sum().abs() < 1e-12


def test_an_untrained_critic_at_lambda_one_is_no_baseline():
    assert module.curves(0, "zero", 0.5, 1.0)[-1, 1] == pytest.approx(23.24, abs=5e-3)


def test_the_pattern_of_the_noise_has_size_one():
    toy = module.sorter(0)
    wrong = module.critic_values(toy, "noise", 0.5, 1.0) - toy.values
    by_state = [wrong[toy.states == state].unique().item() for state in range(13)]
    assert math.sqrt(np.mean(np.square(by_state))) == pytest.approx(0.5)


def test_more_answers_call_for_a_larger_lambda():
    """The lesson of the two first buttons."""
    best = [Gae(answers=n).numbers["other"]["best"] for n in (1, 4, 16, 256, 1024)]
    assert best == sorted(best)
    assert best[0] < 0.9
    assert best[-1] >= 0.99


def test_the_best_lambda_is_the_lowest_point():
    for changes in Gae.examples:
        made = Gae(**changes)
        for critic, key in (("perfect", "perfect"), (made.critic, "other")):
            biases, variances = module.curves(made.skill, critic, made.error, made.gamma).T
            found = made.numbers[key]
            assert found["best_error"] == pytest.approx((biases + variances / made.answers).min())
            assert found["error"] >= found["best_error"] - 1e-12 or made.lam not in module.LAMBDAS


def test_the_sentence_gives_the_reason():
    for changes, words in (
        ({}, "bias at every λ below 1"),
        ({"critic": "zero"}, "bias at every λ below 1"),
        ({"lam": 1}, "a mere baseline"),
        ({"critic": "offset"}, "no bias at any λ, only the variance changes"),
        ({"critic": "offset"}, "off by 0.50 points (the same at each prefix)"),
        ({}, "off by 0.50 points (root mean square over the 13 prefixes)"),
        ({"error": 0}, "without error"),
        ({"gamma": 0.99, "lam": 1}, "biases the gradient even with a perfect critic, equally"),
    ):
        assert words.lower() in Gae(**changes).sentence.lower()


def test_the_sentence_says_when_no_update_would_be_better():
    words = "has more squared error than not updating"
    seen = set()
    for changes in [*Gae.examples, {"answers": 4}, {"answers": 1}]:
        made = Gae(**changes)
        found = made.numbers
        worse = found["other"]["best_error"] >= found["signal"]
        assert (words in made.sentence) == worse
        perfect = found["perfect"]["best_error"] >= found["signal"]
        assert ("with either critic" in made.sentence) == (worse and perfect)
        seen.add(worse)
    assert seen == {True, False}


def test_a_preset_sets_the_whole_state():
    for key in Gae.presets:
        made = Gae(critic="offset", error=2, lam=0.3, gamma=0.6, answers=2, skill=3)
        made.preset(key)
        fresh = Gae()
        fresh.preset(key)
        assert made.state == fresh.state


def test_an_untrained_critic_has_no_size_of_its_error():
    assert Gae(critic="zero").off == {"error"}
    assert Gae().off == set()


def test_what_is_refused_changes_nothing():
    made = Gae()
    before = made.state
    for name, wrong, words in (
        ("critic", "good", "made with: noise, offset, zero"),
        ("lam", 1.01, "between 0 and 1"),
        ("gamma", 0.4, "between 0.5 and 1"),
        ("answers", 0, "between 1 and 1024"),
        ("error", -0.1, "between 0 and 2"),
        ("skill", "high", "expected a number"),
    ):
        with pytest.raises(ValueError, match=words):
            setattr(made, name, wrong)
        assert made.state == before


@pytest.mark.parametrize(
    ("lam", "words"),
    [(0, "only the token’s own δ"), (0.01, "at most 1 % after 1 token"),
     (0.1, "at most 1 % after 2 tokens"), (0.5, "at most 1 % after 7 tokens"), (1, "never fades")],
)  # fmt: skip
def test_how_far_ahead_a_delta_counts(lam, words):
    made = Gae(lam=lam, gamma=1.0)
    figure = Figure(dpi=100, layout="none")
    picture = still.Still(made.state, made.note, made.off, "", picture_height=made.still_height)
    picture.draw(made.draw_still, figure)
    assert words in [text.get_text() for axes in figure.axes for text in axes.texts]
