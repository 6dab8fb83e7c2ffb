"""What lecture 08 says in text and cannot assert in its own cells.

Its folded solutions run, the numbers of the exercise that is done by hand are right, and so are
sentences about sizes. The cells that these build on are run as they stand in the notebook.
"""

import math

import pytest
import torch

import policy_gradients as pg
from lectures.widgets import GroupContrast
from policy_gradients import group_standardized, mean_per_sequence, ppo_clip
from toy_models.exact import prompt_weight, zero_contrast_probability

LECTURE = "08_group_relative_policy_optimization"
USED = ["setup", "policies", "two", "budget"]


def standardised(ddof):
    return lambda rewards: group_standardized(rewards, ddof=ddof, eps=0.0)


def test_exercise_1_by_hand():
    p = torch.tensor([1e-9, 0.01, 0.3, 0.5], dtype=torch.float64)
    by_hand = math.sqrt(3) * (p**2 + (1 - p) ** 2) + 3 * p * (1 - p)
    torch.testing.assert_close(prompt_weight(p, 4, standardised(0)), by_hand)
    assert by_hand[[0, 3]].tolist() == pytest.approx([math.sqrt(3), 1.616], abs=5e-4)
    silent = [zero_contrast_probability(x, 4) for x in (0.5, 0.01)]
    assert silent[0] == 0.125
    assert [1 / (1 - s) for s in silent] == pytest.approx([1.14, 25.4], abs=0.05)
    lone = torch.tensor([[1.0, 0, 0, 0]], dtype=torch.float64)
    for ddof, first, other in ((0, math.sqrt(3), -0.577), (1, 1.5, -0.5)):
        weights = standardised(ddof)(lone)[0].tolist()
        assert weights == pytest.approx([first, *[other] * 3], abs=5e-4)


def test_exercise_2_temperature_helps_only_who_is_too_sure(lecture, capsys):
    exec(lecture.solution("exercise-2"), lecture.names)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    silent = {(row[1], row[3]): float(row[-1]) for row in lines}
    rate = {(row[1], row[3]): float(row[-3].rstrip(",")) for row in lines}
    assert 0.3 < silent["4,", "1.0:"] < 0.4
    assert silent["4,", "2.0:"] < 0.03
    assert rate["4,", "2.0:"] == pytest.approx(0.44, abs=0.01)
    beginner = [silent["0,", f"{temp}:"] for temp in ("0.6", "1.0", "1.5", "2.0")]
    assert beginner == [0.898, 0.847, 0.815, 0.798]  # as the solution says


def test_exercise_3_refutes_in_ten_lines(lecture):
    code = lecture.solution("exercise-3")
    assert len(code.strip().splitlines()) <= 10
    exec(code, lecture.names)  # its own asserts are the claim


def test_degrees_of_the_two_prompts(lecture):
    lab, shared, targets = lecture["lab"], lecture["shared"], lecture["targets"]
    for group, degrees in ((8, 1.9), (32, 7.9)):
        moments = lab.gradient_moments(
            shared, targets, lecture["copied"], standardised(0), group=group
        )
        assert math.degrees(math.acos(moments.cosine)) == pytest.approx(degrees, abs=0.1)


def test_what_the_step_from_one_to_two_percent_is_worth():
    """Against 50 to 51 %: 1.4 times with 8 siblings, 3.2 with 64, 4.2 in the limit."""

    def climbed(low, group):
        p = torch.linspace(low, low + 0.01, 1001, dtype=torch.float64)
        return torch.trapezoid(prompt_weight(p, group, standardised(0)), p).item()

    def in_the_limit(low):
        return 2 * math.asin(math.sqrt(low + 0.01)) - 2 * math.asin(math.sqrt(low))

    found = [climbed(0.01, group) / climbed(0.5, group) for group in (8, 64)]
    found.append(in_the_limit(0.01) / in_the_limit(0.5))
    assert found == pytest.approx([1.4, 3.2, 4.2], abs=0.05)


def test_the_wrong_side_needs_shared_weights(lecture):
    """Listed for one prompt and one right answer: no mixed group of two to eight points there."""
    lab = lecture["lab"]
    for skill in (0, 2, 4):
        chance = lab.response_log_probs(lecture["at"](skill), lecture["prompt"])[0].exp()
        u = lab.scores(lecture["at"](skill), lecture["prompt"]).detach()
        right = (lab.responses_of(lecture["at"](skill)) == torch.tensor([0, 1, 2])).all(-1)
        assert right.sum() == 1
        north = chance.detach()[right] * u[right]
        # all right ones weigh the same, and the weights add up to 0: right beats every wrong answer
        assert ((u[right] - u[~right]) @ north[0] > 0).all()


def test_a_mixed_group_at_one_percent_costs_thirteen_groups():
    assert 1 / (1 - zero_contrast_probability(0.01, 8)) == pytest.approx(13, abs=0.1)


def test_numbers_of_the_widget_answers():
    found = {G: GroupContrast(p=0.02, group=G).numbers for G in (2, 8, 34, 35, 64)}
    shown = [round(found[G]["weight"], 2) for G in (2, 8, 64)]
    assert shown == [1.0, 2.57, 5.86]
    silent = [round(100 * found[G]["zero"], 1) for G in (2, 8, 64)]
    assert silent == [96.1, 85.1, 27.4]
    assert found[34]["zero"] > 0.5 > found[35]["zero"]
    insisted = [
        GroupContrast(p=0.01, estimator=name, silent="same").numbers["relative"]
        for name in ("rloo", "grpo_0")
    ]
    assert insisted == pytest.approx([12.8, 18.1], abs=0.06)


def test_standardising_twice_divides_by_the_root_of_the_share_with_contrast():
    for mixed in (1, 2, 8):
        rewards = torch.zeros(16, 8, dtype=torch.float64)
        rewards[:mixed, 0] = 1.0
        once = standardised(0)(rewards)
        twice = pg.whiten(once.reshape(-1, 1), torch.ones(128, 1), eps=0.0).view(16, 8)
        torch.testing.assert_close(twice, once * math.sqrt(16 / mixed))


def test_why_step_rewards_bend_the_direction():
    """Without the division: position t of 3 is scaled by 1 − (steps that remain)/9, groups of 3."""
    chance = torch.tensor([0.2, 0.5, 0.7], dtype=torch.float64)  # of a right step
    outcomes = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 9).double().view(-1, 3, 3)
    prob = torch.where(outcomes > 0, chance, 1 - chance).flatten(1).prod(1)
    centred = outcomes - outcomes.mean((1, 2), keepdim=True)
    to_go = centred.flip(2).cumsum(2).flip(2)
    score = outcomes - chance  # of one logit per position
    mean = (prob[:, None, None] * to_go * score).sum(0).mean(0)
    truth = chance * (1 - chance)
    torch.testing.assert_close(mean / truth, 1 - torch.tensor([3, 2, 1]).double() / 9)


def test_one_update_at_ratio_one_is_the_plain_gradient_with_group_weights():
    dice = torch.Generator().manual_seed(0)
    logp = torch.randn(8, 3, generator=dice, dtype=torch.float64).requires_grad_()
    weights = standardised(1)(torch.rand(2, 4, generator=dice, dtype=torch.float64)).reshape(-1, 1)
    mask = torch.ones(8, 3)
    clip = ppo_clip(logp, logp.detach(), weights, eps_low=0.2, eps_high=0.2)
    slopes = [
        torch.autograd.grad(mean_per_sequence(loss, mask), logp)[0]
        for loss in (clip, pg.reinforce(logp, weights))
    ]
    torch.testing.assert_close(*slopes)


def test_a_kl_term_turns_the_gradient_of_a_prompt(lecture):
    """Away from home, in the mean per sequence, with the expected gradient of k3."""
    lab, at, prompt = lecture["lab"], lecture["at"], lecture["prompt"]
    moments = lab.gradient_moments(
        at(2), prompt, lecture["sorted_reward"], standardised(0), group=8
    )
    here = at(2)
    pull = lab.flat_gradient(lab.exact_kl(at(0), here, prompt), here)  # a k3 loss: reversed KL
    north = lab.exact_gradient(here, prompt, lecture["sorted_reward"])
    turned = [
        torch.cosine_similarity(moments.mean - beta * pull, north, dim=0).item()
        for beta in (0.0, 0.5)
    ]
    assert turned == pytest.approx([1, -0.61], abs=5e-3)


def test_rare_successes_ask_for_more_siblings_but_not_for_64(lecture):
    a, c, between = lecture["parts_of"](lecture["sorted_reward"])
    noise = {G: float(between * G + a + c / (G - 1)) for G in (4, 8, 16, 64)}
    assert min(noise, key=noise.get) == 8
    assert noise[64] > 1.8 * noise[8]
