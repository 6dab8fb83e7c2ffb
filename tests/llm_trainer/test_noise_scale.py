"""The gradient noise scale: against closed forms, enumeration, and the trainer's own gradient."""

import math
import re
from dataclasses import replace
from itertools import product

import pytest
import torch

from llm_trainer.__main__ import main
from llm_trainer.config import ConfigError, RunError
from llm_trainer.noise_scale import NoiseScale, estimate, group_gradients, moments, noise_scale


def in_batches(gradients, size):
    """Gradients (n, parameters) as `estimate` wants them."""
    return [list(part) for part in gradients.split(size)]


def test_both_estimates_are_unbiased_by_enumeration():
    """Every one of the 3³ draws of three gradients, each with its probability."""
    values = torch.tensor([[1.0, 0.0], [-2.0, 1.0], [0.5, 3.0]], dtype=torch.float64)
    chances = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    mean = chances @ values
    trace = float(chances @ (values - mean).square().sum(1))
    found = {"signal": 0.0, "trace": 0.0}
    for draw in product(range(3), repeat=3):
        rows, chance = values[list(draw)], float(chances[list(draw)].prod())
        total = rows.sum(0)
        signal, noise, _ = moments(float(total @ total), float(rows.square().sum()), 3)
        found["signal"] += chance * signal
        found["trace"] += chance * noise
    # |ḡ|² itself, the naive estimate, is too large by tr Σ/3.
    assert found == pytest.approx({"signal": float(mean @ mean), "trace": trace}, abs=1e-12)
    assert trace / 3 > 0.1


def test_it_is_the_estimator_of_a_small_and_a_large_batch():
    """Appendix A.1 of the paper, with batches of 1 and of n, written as it stands there."""
    gradients = torch.randn(12, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    small = gradients.square().sum(1).mean()  # of batches of one
    large = gradients.mean(0).square().sum()  # of the batch of twelve
    result = estimate(in_batches(gradients, 4), group=8)
    assert result.signal == pytest.approx(float((12 * large - 1 * small) / (12 - 1)))
    assert result.trace == pytest.approx(float((small - large) / (1 / 1 - 1 / 12)))


@pytest.fixture(scope="module")
def repeated():
    """200 measurements of one known distribution: g ~ N(mean, diag(variance)), 96 draws each."""
    generator = torch.Generator().manual_seed(1)
    mean = torch.tensor([0.6, -0.3, 0.0, 0.2], dtype=torch.float64)
    deviation = torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=torch.float64)
    noise = torch.randn(200, 96, 4, generator=generator, dtype=torch.float64)
    found = [estimate(in_batches(mean + deviation * z, 8), group=4) for z in noise]
    return found, float(mean @ mean), float(deviation.square().sum())


def test_on_a_known_distribution_it_finds_what_is_known(repeated):
    found, signal, trace = repeated
    for name, truth in (("signal", signal), ("trace", trace)):
        values = torch.tensor([getattr(result, name) for result in found])
        error = float(values.std()) / math.sqrt(len(found))
        assert abs(float(values.mean()) - truth) < 4 * error, name


def test_the_standard_errors_are_as_large_as_the_errors(repeated):
    found, *_ = repeated
    for name in ("signal", "trace", "inverse"):
        values = torch.tensor([getattr(result, name) for result in found])
        said = torch.tensor([getattr(result, f"{name}_se") for result in found])
        assert float(said.mean()) == pytest.approx(float(values.std()), rel=0.25), name


def test_the_interval_holds_the_truth_about_as_often_as_it_says(repeated):
    found, signal, trace = repeated
    inside = [low <= trace / signal <= high for low, high in (x.interval for x in found)]
    # 95 % by the normal distribution, a little less with 12 batches; 4 standard errors are 0.06.
    assert 0.87 < sum(inside) / len(inside) <= 1


def test_scaling_the_loss_changes_signal_and_noise_but_not_their_quotient():
    gradients = 1 + torch.randn(40, 5, generator=torch.Generator().manual_seed(2))
    one, ten = (estimate(in_batches(k * gradients, 8), group=4) for k in (1, 10))
    assert ten.signal == pytest.approx(100 * one.signal, rel=1e-5)
    assert ten.trace == pytest.approx(100 * one.trace, rel=1e-5)
    assert (ten.b_simple, ten.se) == pytest.approx((one.b_simple, one.se), rel=1e-5)
    assert one.responses == 4 * one.b_simple


def test_responses_of_one_group_are_no_independent_samples():
    """All noise is the prompt's: 8 responses are one sample, not 8, and count once."""
    generator = torch.Generator().manual_seed(3)
    prompts = 0.5 + torch.randn(400, 3, generator=generator, dtype=torch.float64)
    right = estimate(in_batches(prompts, 40), group=8)
    wrong = estimate(in_batches(prompts.repeat_interleave(8, dim=0), 320), group=1)
    truth = 8 * 3 / 0.75  # G · tr Σ/|∇J|², in responses
    assert abs(right.responses - truth) < 4 * 8 * right.se
    assert wrong.responses < right.responses / 4


def test_pure_noise_is_said_to_be_unresolved():
    noise = torch.randn(32, 50, generator=torch.Generator().manual_seed(4))
    noise = noise - noise.mean(0)  # the estimate of |∇J|² is then −tr Σ/n
    result = estimate(in_batches(noise, 8), group=8)
    assert result.signal < 0
    assert not result.resolved
    assert result.b_simple == result.responses == math.inf
    assert math.isnan(result.se)
    assert result.interval[1] == math.inf
    assert "not resolved with 32 prompts" in str(result)


@pytest.mark.parametrize("batches", [in_batches(torch.zeros(8, 3), 4), [[torch.ones(3)]], []])
def test_without_gradients_there_is_nothing_to_measure(batches):
    with pytest.raises(RunError, match="no gradient to measure"):
        estimate(batches, group=8)


def test_a_result_says_what_it_found():
    result = NoiseScale(256, 8, 0.02, 0.004, 0.8, 0.05, 0.025, 0.005)
    assert (result.b_simple, result.responses) == pytest.approx((40, 320))
    assert result.se == pytest.approx(8)
    assert result.interval == pytest.approx((1 / 0.035, 1 / 0.015))
    assert (
        "noise scale 40 prompts = 320 responses; ± 2 standard errors: 28.6 to 66.7 prompts"
        in str(result)
    )
    weak = replace(result, inverse_se=0.02)
    assert "it may be anything above 15.4 prompts" in str(weak)
    assert str(replace(result, inverse=0.0, inverse_se=0.0)).endswith("it may be anything")


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "rloo", "dapo"])
def test_the_mean_of_the_groups_is_the_gradient_of_the_step(make_learner, draw, algorithm):
    """Whatever the row averages over: responses, tokens, or the token limit."""
    batch = draw(make_learner(prompts=6, micro_batch=6))  # DAPO might find no group to keep
    learner = make_learner(algorithm=algorithm, prompts=6, micro_batch=6)
    groups = list(group_gradients(learner, batch))
    measured = learner.measure(batch)
    learner.gradients(measured, micro_batch=6)
    step = torch.cat([weight.grad.flatten() for weight in learner.policy.trainable()])
    mean = torch.stack(groups).mean(0)
    assert len(groups) == len(batch.rewards)
    assert float((mean - step).norm()) < 1e-5 * float(step.norm())
    # Silent groups count with a gradient of 0; the others have one.
    assert [bool(g.any()) for g in groups] == learner.teaches(measured).tolist()


def test_measuring_changes_no_weight_and_repeats(make_config, policy, spelling):
    config = make_config(max_new_tokens=8)
    before = [weight.clone() for weight in policy.trainable()]
    one, two = (noise_scale(policy, spelling, config, prompts=8, seed=3) for _ in range(2))
    assert one == two
    assert one.prompts == 8
    assert all(torch.equal(a, b) for a, b in zip(before, policy.trainable(), strict=True))
    assert all(weight.grad is None for weight in policy.trainable())


@pytest.mark.parametrize(
    ("values", "prompts", "says"),
    [
        ({}, 4, "the standard error needs two; ask for 5 or more"),
        ({"algorithm": "ppo"}, 8, "has a critic"),
    ],
)
def test_what_cannot_be_measured_is_refused(make_config, policy, spelling, values, prompts, says):
    with pytest.raises(ConfigError, match=says):
        noise_scale(policy, spelling, make_config(**values), prompts=prompts)


def test_the_command_measures_a_folder(capsys, model_folder):
    sizes = ["prompts=4", "group=4", "micro_batch=4"]
    assert main(["noise", str(model_folder), "--prompts", "7", "--set", *sizes]) == 0
    said = capsys.readouterr().out
    assert "7 prompts asked for; measured in whole steps of 4\n8 prompts with 4 responses" in said
    assert "noise scale" in said


def test_the_command_says_what_is_not_there(capsys, tmp_path):
    assert main(["noise", str(tmp_path / "nope")]) == 2
    assert re.search("no folder .*`train` makes one", capsys.readouterr().err)
