"""What lecture 03 says in text and cannot assert in its own cells.

Its folded solutions run, the numbers of the exercise that is done by hand are right, and so are
those of the widget's folded answers. The cells that the solutions build on are run as they stand
in the notebook.
"""

import base64
import math

import pytest
import torch
from torch.nn.functional import cosine_similarity

from lectures.widgets import ClipRegion
from policy_gradients import effective_sample_size, ppo_clip

LECTURE = "03_ratios_and_clipping"
USED = ["setup", "puzzle-predict", "puzzle", "importance", "dropped", "surrogate", "promise"]
USED += ["six-regions", "fact-predict", "fact", "compass", "bugs"]


def push(probability: float, old: float, advantage: float, **knobs) -> float:
    """−∂loss/∂log π of one token that had probability `old` and has `probability` now."""
    logp = torch.tensor([[math.log(probability)]], dtype=torch.float64, requires_grad=True)
    logp_old = torch.tensor([[math.log(old)]], dtype=torch.float64)
    loss = ppo_clip(logp, logp_old, torch.tensor([[advantage]], dtype=torch.float64), **knobs)
    return -torch.autograd.grad(loss.sum(), logp)[0].item()


def test_exercise_1_by_hand():
    ppo, dapo = {"eps_low": 0.2, "eps_high": 0.2}, {"eps_low": 0.2, "eps_high": 0.28}
    for knobs, edge in ((ppo, 0.06), (dapo, 0.064)):
        assert push(edge - 1e-6, 0.05, 2.0, **knobs) > 2
        assert push(edge + 1e-6, 0.05, 2.0, **knobs) == 0
    assert push(0.05, 0.05, 2.0, **ppo) == pytest.approx(2)
    assert push(0.0005, 0.05, 2.0, **ppo) == pytest.approx(0.02)
    assert push(0.5, 0.05, -2.0, **ppo) == pytest.approx(-20)
    assert push(0.5, 0.05, -2.0, **ppo, dual_clip=3.0) == 0
    assert push(1 - 1e-9, 0.834, 2.0, **ppo) > 0  # a certain token, and still below the edge
    assert push(1 - 1e-9, 0.833, 2.0, **ppo) == 0


def test_exercise_2_stopping_insures_as_well_as_the_clip(lecture):
    exec(lecture.solution("exercise-2"), lecture.names)
    clip = lecture["train"](lecture["clipped"](0.2), 64)[0][-1]
    assert lecture["J"].mean() > clip.mean() - 0.1
    assert lecture["J"].mean() > lecture["many"][-1].mean() + 0.4  # the plain loss, as often


def test_exercise_3_refutes_in_ten_lines(lecture):
    code = lecture.solution("exercise-3")
    assert len(code.strip().splitlines()) < 10
    exec(code, lecture.names)  # its own asserts are the claim


def test_plain_loss_is_one_long_step_only_on_a_table_and_centred(lecture):
    """[RC-13]: its gradient is constant there, not with raw rewards, not where answers share."""

    def gradient(weight, table, logits):
        logp = logits(table.requires_grad_()).log_softmax(-1)
        logp = logp.gather(-1, lecture["answers"][..., None])[..., 0]
        loss = -(lecture["prob_old"][:, None] * weight * logp).sum()
        return torch.autograd.grad(loss, table)[0]

    def alone(table):  # a row of logits per position
        return table.expand(27, 3, 3)

    def prefixes(table):  # a row per first token read so far, as in an autoregressive model
        rows = torch.stack([0 * (y := lecture["answers"])[:, 0], 1 + y[:, 0], 4 + y[:, 0]], 1)
        return table[rows]

    centred, raw = lecture["A"], lecture["R"][:, None]
    cases = {(centred, alone): 3, (raw, alone): 3, (centred, prefixes): 7}
    dice, changes = torch.Generator().manual_seed(0), []
    for (weight, logits), rows in cases.items():
        tables = torch.zeros(rows, 3), torch.randn(rows, 3, generator=dice)
        first, later = (gradient(weight, table, logits) for table in tables)
        changes.append(((later - first).abs().max() / first.abs().max()).item())
    assert changes[0] < 1e-12
    assert min(changes[1:]) > 0.1


def test_far_below_the_second_moment_a_few_answers_carry_the_sum():
    dice, variance = torch.Generator().manual_seed(0), 1000 * math.log(1.01)
    weights = torch.randn(2000, 64, generator=dice, dtype=torch.float64) * variance**0.5
    worth = torch.tensor([effective_sample_size(log_weights) for log_weights in weights])
    assert worth.min() >= 1
    assert 3 < worth.mean() < 5  # the formula would say 64 / 21,000
    assert 0.4 < weights.softmax(1).amax(1).mean() < 0.6


def test_where_unclipped_and_clipped_steps_lead_from_far_out(lecture):
    """J still rises on the unclipped path; clipped steps lower it and bring the ratios back."""
    token_logp, reuse, R = (lecture[name] for name in ("token_logp", "reuse", "R"))
    J = token_logp(reuse(lecture["pg"].unclipped, 256)).sum(-1).exp() @ R
    assert J[32] == pytest.approx(3.71, abs=5e-3)
    assert (J.argmax().item(), J.max().item()) == (211, pytest.approx(4.04, abs=5e-3))
    logp_old, table, path = lecture["logp_old"], lecture["far"], []
    for _ in range(201):
        path.append(token_logp(table))
        leaf = table.clone().requires_grad_()
        loss = lecture["clipped"](0.2)(token_logp(leaf), logp_old, lecture["A"])
        loss = (lecture["prob_old"][:, None] * loss).sum() / 3
        table = table - 0.5 * torch.autograd.grad(loss, leaf)[0]
    path = torch.stack(path)
    assert path[1].sum(-1).exp() @ R < J[32] - 1e-3
    largest = (path - logp_old).exp().amax((1, 2))
    assert largest[[0, 200]].tolist() == pytest.approx([2.00, 1.34], abs=5e-3)


def test_angles_of_the_compass(lecture):
    for name, degrees in {"plain": 20, "unclipped": 19}.items():
        cosine = cosine_similarity(lecture["panels"][name][0], lecture["north"], dim=0).item()
        assert math.degrees(math.acos(cosine)) == pytest.approx(degrees, abs=0.5)


def test_level_of_the_kl_for_the_usual_epsilon(lecture):
    assert lecture["seen"][0.2]["KL"][-20:].mean() == pytest.approx(0.041, abs=2e-3)


def test_broken_losses_as_their_rewards_tell(lecture):
    J = {letter: path for letter, (path, _) in lecture["runs"].items()}
    assert (J["D"] - lecture["J_old"]).abs().max() < 1e-9
    gap = (J["A"] - J["E"]).mean(1)
    assert gap[5] > 0.2
    assert gap[12] > 0 > gap[-1]


def test_quotient_of_logs_goes_straight_down_from_the_uniform_policy(lecture):
    uniform = torch.zeros(3, 3, requires_grad=True)
    logp = lecture["token_logp"](uniform)
    prob = logp.sum(1).exp().detach()
    for weight in (lecture["R"], lecture["R"] - prob @ lecture["R"]):
        right, quotient = (
            torch.autograd.grad((prob * weight * y.sum(1)).sum(), uniform, retain_graph=True)[0]
            for y in (logp, logp / logp.detach())
        )
        assert cosine_similarity(right.flatten(), quotient.flatten(), dim=0) < -1 + 1e-9


def test_what_the_clip_leaves_far_out_are_corrections(lecture):
    A, rho, u = (lecture[name] for name in ("A", "rho", "u"))
    wrong_way = ((A > 0) & (rho < 0.8)) | ((A < 0) & (rho > 1.2))
    north, parts = lecture["north"], {}
    for name, keep in (("corrections", wrong_way), ("inside", (rho >= 0.8) & (rho <= 1.2))):
        mean = lecture["prob_old"] @ ((keep * rho * A)[..., None] * u).sum(1)
        parts[name] = (mean @ north / north.square().sum()).item()
    assert parts["corrections"] < -0.3
    assert abs(parts["inside"]) < 0.02
    way_back = (lecture["start"] - lecture["far"]).flatten()
    clipped = lecture["panels"]["clipped"][0]
    assert cosine_similarity(clipped, way_back, dim=0) == pytest.approx(0.72, abs=0.01)


def test_rewards_tell_neither_swapped_edges_nor_a_missing_minimum(lecture):
    stuck = {k: (J[-1] < 4.5).double() for k, (J, _) in lecture["runs"].items()}
    for letter in "CF":
        error = ((stuck[letter].var() + stuck["E"].var()) / 128).sqrt()
        assert abs(stuck[letter].mean() - stuck["E"].mean()) < 3 * error
    error = ((stuck["A"].var() + stuck["E"].var()) / 128).sqrt()
    assert stuck["A"].mean() - stuck["E"].mean() > 3 * error


def test_dead_share_at_a_tiny_epsilon_jumps(lecture):
    dead = lecture["seen"][0.01]["dead"][1:]
    assert 0.05 < dead.min() < 0.07
    assert 0.45 < dead.max() < 0.5


def test_largest_ratio_comes_back(lecture):
    largest = lecture["seen"][0.2]["largest ρ"]
    assert largest.max() == pytest.approx(1.27, abs=5e-3)
    assert largest[64] == pytest.approx(1.23, abs=5e-3)


def test_numbers_of_the_widget_answers():
    ppo, dapo = ClipRegion(method="ppo").counts, ClipRegion(method="dapo").counts
    for counts, high, low in ((ppo, 25, 27), (dapo, 16, 27)):
        assert (counts["positive"]["above"], counts["negative"]["below"]) == (high, low)
    assert all(ppo[sign]["below"] == dapo[sign]["below"] for sign in ppo)
    tight = ClipRegion(eps_low=0.01, eps_high=0.01)
    dead = tight.counts["positive"]["above"] + tight.counts["negative"]["below"]
    assert 0.4 < dead / 256 < 0.5
    assert tight.counts["positive"]["inside"] + tight.counts["negative"]["inside"] < 10
    for c, silenced in ((3.0, 0), (1.9, 0), (1.8, 1), (1.5, 4)):
        floored = ClipRegion(method="dual_clip", dual_clip=c).counts["negative"]["floored"]
        assert floored == silenced


def test_saved_widget_is_a_picture_with_the_state_to_revive_it(lecture):
    (output,) = lecture.cells["widget"]["outputs"]
    assert base64.b64decode("".join(output["data"]["image/png"])).startswith(b"\x89PNG")
    assert not any("widget" in kind for kind in output["data"])
    saved = output["metadata"]["policy_gradients_course"]
    assert saved["widget"] == "clip_region"
    again = ClipRegion(methods=("ppo", "grpo", "dapo", "dual_clip"))
    assert saved["state"] == again.state
    assert output["metadata"]["image/png"]["alt"] == f"ClipRegion: {again.sentence}"


def test_with_64_answers_three_carry_the_sum():
    """Ratios of 1,000 tokens of variance .01 each: log-normal whole-answer weights."""
    spread = (1000 * math.log(1.01)) ** 0.5
    generator = torch.Generator().manual_seed(0)
    weights = (spread * torch.randn(4000, 64, generator=generator)).exp()
    shares = (weights / weights.sum(1, keepdim=True)).sort(descending=True).values
    assert shares[:, :3].sum(1).median() == pytest.approx(0.75, abs=0.03)
    assert (shares[:, 0] > 0.5).double().mean() == pytest.approx(0.4, abs=0.04)


def test_with_few_steps_the_learning_rate_decides_and_with_many_the_clip(lecture):
    def kl(eps, lr, steps):
        path = lecture["token_logp"](lecture["reuse"](lecture["clipped"](eps), steps, lr=lr)[-1:])
        return ((lecture["logp_old"] - path).sum(-1) @ lecture["prob_old"]).item()

    few, many = kl(0.2, 0.5, 4), kl(0.2, 0.5, 64)
    assert kl(0.1, 0.5, 4) / few == pytest.approx(1, abs=0.05)
    assert kl(0.2, 0.25, 4) / few == pytest.approx(1 / 4, abs=0.03)
    assert kl(0.1, 0.5, 64) / many == pytest.approx(1 / 4, abs=0.03)
    assert kl(0.2, 0.25, 64) / many == pytest.approx(1, abs=0.05)


def test_a_forgotten_exp_is_a_loss_of_minus_405_and_has_the_slope_of_the_plain_loss():
    A = torch.ones(1, 1)
    logp = torch.full((1, 1), math.log(1.5), requires_grad=True)  # ρ = 1.5, log π_old = 0
    wide, usual = ({"eps_low": eps, "eps_high": eps} for eps in (0.9, 0.2))
    right = [ppo_clip(logp, torch.zeros(1, 1), A, **knobs).item() for knobs in (wide, usual)]
    no_exp = -(A * (logp - torch.zeros(1, 1))).sum()
    assert right == pytest.approx([-1.5, -1.2])
    assert no_exp.item() == pytest.approx(-0.405, abs=1e-3)
    assert torch.autograd.grad(no_exp, logp)[0].item() == -1
