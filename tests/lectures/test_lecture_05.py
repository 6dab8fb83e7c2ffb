"""What lecture 05 says in text and cannot assert in its own cells.

Its folded solutions run, the numbers of the exercise that is done by hand are right, and so are
those of the widget's folded answers and of the prose. The cells that the solutions build on are
run as they stand in the notebook.
"""

import base64
import math

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

from lectures import figures_05 as draw
from lectures.widgets import KLEstimators
from policy_gradients import k1, k2, k3
from policy_gradients.kl import exact_kl
from toy_models.exact import gradient_moments

LECTURE = "05_kl_regularisation"
USED = ["setup", "puzzle-predict", "directions", "values", "placements-predict", "placements"]
USED += ["gibbs", "flow", "flows-predict", "flows", "turn-predict", "turn", "trees"]
USED += ["trees-predict", "train-trees"]


def odds(p: float) -> float:
    return math.log(p / (1 - p))


def test_exercise_1_by_hand():
    z = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([0.9, 0.1], dtype=torch.float64).log()[:, None]
    means = {"k1": 0.511, "k2": 0.734, "k3": 0.511}
    loss = {"k1": 0.0, "k2": -0.549, "k3": -0.400}
    paid = {"k1": -0.549, "k2": -0.281, "k3": -0.149}
    for name, k in (("k1", k1), ("k2", k2), ("k3", k3)):
        logp = z.log_softmax(0)[:, None]
        value = 0.5 * k(logp, ref).sum()
        in_reward = 0.5 * (k(logp, ref).detach() * logp).sum()
        assert value.item() == pytest.approx(means[name], abs=1e-3)
        assert torch.autograd.grad(value, z, retain_graph=True)[0][0] == pytest.approx(
            loss[name], abs=1e-3
        )
        assert torch.autograd.grad(in_reward, z)[0][0] == pytest.approx(paid[name], abs=1e-3)
    assert odds(0.649) == pytest.approx(odds(0.2) + 2, abs=3e-3)
    assert odds(0.405) == pytest.approx(odds(0.2) + 1, abs=3e-3)


def test_exercise_2_an_exact_kl_per_state_has_the_same_gap_and_the_same_repair(lecture):
    exec(lecture.solution("exercise-2"), lecture.names)  # asserts the repair
    g = lecture["grad"](lecture["half"], lecture["tree"], keep_graph=True)
    assert (g - lecture["gradients"][0]).abs().max() < 1e-9  # that of per-token k2


def test_exercise_3_refutes_in_ten_lines(lecture):
    code = lecture.solution("exercise-3")
    assert len(code.strip().splitlines()) <= 11
    exec(code, lecture.names)  # its own asserts are the claim


def test_to_keep_a_share_of_the_answers_costs_its_logarithm():
    reference = torch.tensor([[[0.4, 0.1, 0.3, 0.2]]], dtype=torch.float64)
    kept = torch.tensor([[[0.8, 0.2, 0.0, 0.0]]], dtype=torch.float64)  # half of it, rescaled
    assert exact_kl(kept.log(), reference.log()).item() == pytest.approx(math.log(2))


def test_near_home_k1_scatters_by_the_root_of_twice_the_kl(lecture):
    prob, ref = lecture["near"]
    ell = (prob / ref).log()
    kl = prob @ ell
    spread = (prob @ (ell - kl) ** 2).sqrt()
    assert spread == pytest.approx(math.sqrt(2 * kl), rel=0.05)
    k3_spread = (prob @ (torch.expm1(-ell) + ell - kl) ** 2).sqrt()
    assert 5.5 < spread / k3_spread < 6


def test_compromises_of_the_two_directions_as_printed(lecture):
    target = lecture["two"]
    pairs = {"reverse": (0.683, 3.468), "forward": (1.489, 0.625)}
    for name, expected in pairs.items():
        p = lecture[name]
        found = ((p * (p / target).log()).sum(), (target * (target / p).log()).sum())
        assert [x.item() for x in found] == pytest.approx(expected, abs=1e-3)


def test_to_invent_half_of_the_answers_costs_log_2_too():
    target = torch.tensor([[[0.6, 0.4, 0.0, 0.0]]], dtype=torch.float64)
    inventing = torch.tensor([[[0.3, 0.2, 0.1, 0.4]]], dtype=torch.float64)
    assert exact_kl(target.log(), inventing.log()).item() == pytest.approx(math.log(2))


def test_far_out_nothing_has_become_four_times_rarer():
    assert 3.5 < 0.9813 / 0.25 < 4  # the pair of the row "far"


def test_k3_summed_over_tokens_has_the_same_mean_and_less_spread(lecture):
    policy, reference, prompt = (lecture[name] for name in ("policy", "reference", "prompt"))
    of = lecture["exact"].token_log_probs_of
    logp, logp_ref = (of(p, prompt)[0].detach() for p in (policy, reference))  # (answer, time)
    prob, summed = logp.sum(1).exp(), k3(logp, logp_ref).sum(1)
    mean = prob @ summed
    assert mean.item() == pytest.approx((prob @ (logp - logp_ref).sum(1)).item(), abs=1e-9)
    assert (prob @ (summed - mean) ** 2).sqrt().item() == pytest.approx(0.033, abs=1e-3)


def test_one_in_a_million_becomes_nearly_certain_at_beta_004(lecture):
    best = torch.tensor(odds(1e-6) + 1 / 0.04).sigmoid().item()
    assert best == pytest.approx(0.99999, abs=5e-6)
    args = lecture["home"], lecture["prompt"], lecture["partial_credit"], lecture["beta"]
    library = lecture["exact"].gibbs_distribution(*args)[0]
    assert (library - lecture["best"]).abs().max() < 1e-9


def test_k2_in_the_reward_ends_where_its_penalty_is_negative(lecture):
    path, ends = lecture["paths"]["k2 reward"], {}
    assert path[:, 1].max() > path[-1, 1] + 0.02  # it gave up reward at the end
    assert path[-1, 0] == pytest.approx(1.717, abs=1e-3)
    exact, home, prompt = (lecture[name] for name in ("exact", "home", "prompt"))

    def penalty(policy):
        logp = exact.response_log_probs(policy, prompt)[0].detach()
        ell = logp - lecture["logp_home"]
        ends["penalty"] = (logp.exp() @ (ell**2 / 2 - ell)).item()  # E[k2] − KL

    policy = lecture["copy"].deepcopy(home)
    paid = lecture["six"]["k2 reward"]

    def objective(p):
        reward = exact.expected_reward(p, prompt, lecture["partial_credit"])
        return reward - lecture["beta"] * paid(p, home)

    knobs = {"steps": 400, "learning_rate": 1.2, "max_grad_norm": 3.0}
    exact.exact_flow(policy, objective, record=penalty, **knobs)
    assert -0.1 < ends["penalty"] < -0.01


def test_rare_sample_of_k3_is_nearly_500():
    assert math.exp(-math.log(0.002)) - 1 + math.log(0.002) == pytest.approx(493, abs=1)


def test_leave_one_out_does_not_shrink_the_reward(lecture):
    pg, home = lecture["pg"], lecture["home"]
    args = home, lecture["prompt"], lecture["partial_credit"]
    assert gradient_moments(*args, pg.leave_one_out, group=2).projection == pytest.approx(1)


def test_k3_on_the_whole_answer_is_no_repair(lecture):
    exact, tree, tree_ref = (lecture[name] for name in ("exact", "tree", "tree_ref"))
    prompt, truth = lecture["prompt"], lecture["tree_truth"]
    loss = exact.kl_in_loss(tree, tree_ref, prompt, k3, per_token=False)
    other = lecture["grad"](exact.exact_kl(tree_ref, tree, prompt), tree)
    assert (lecture["grad"](loss, tree) - other).abs().max() < 1e-9
    assert lecture["along"](other, truth) == pytest.approx(1.404, abs=1e-3)
    ends = lecture["ascend"](lambda ell: 1 - torch.exp(-ell.sum(-1, keepdim=True)))
    assert ends[0] == pytest.approx(0.22, abs=0.01)


def test_on_a_tree_the_policy_drops_out_of_the_first_token_s_centred_sum_only(lecture):
    """[RC-13] for exact averages: gradients of two policies on the same centred weights."""
    chance = lecture["near"][0]
    weights = chance * (lecture["R"] - chance @ lecture["R"])  # (answer,), sum 0

    def gradient(table, rows):
        table = table.detach().clone().requires_grad_()
        logp = table.log_softmax(-1)[rows, lecture["answers"]].sum(1)  # (answer,)
        return torch.autograd.grad(weights @ logp, table)[0]

    trees = [lecture[name].table[0] for name in ("tree", "tree_ref")]
    on_tree = torch.sub(*(gradient(x, lecture["row_of"]) for x in trees)).norm(dim=1)  # (row,)
    tables = [lecture[name].table for name in ("policy", "reference")]
    on_table = torch.sub(*(gradient(x.view(3, 3), range(3)) for x in tables))
    assert max(on_tree[0], on_table.abs().max()) < 1e-9
    assert on_tree[1:].min() > 1e-4


def test_spread_over_references_as_the_text_has_it(lecture):
    for name in ("k2, per token", "k3, per token"):
        others = lecture["away"][name][1:]
        assert others.median() == pytest.approx(0.12, abs=0.005)
        assert others.max() < 0.275
        assert lecture["away"][name][0] == pytest.approx(0.10, abs=0.006)
    assert lecture["away"]["k3, per token"].max() == pytest.approx(0.27, abs=0.005)


def test_numbers_of_the_widget_answers():
    numbers = {
        (policy, distance, place): KLEstimators(
            policy=policy, distance=distance, place=place
        ).numbers
        for policy, distance, place in (
            ("tree", 0.1, "loss_token"),
            ("tree", 0.5, "loss_token"),
            ("tree", 1, "loss_token"),
            ("tree", 1, "reward_response"),
        )
    }
    for distance, kl, cosine in ((0.1, 0.009, 0.999), (0.5, 0.205, 0.957), (1, 0.581, 0.864)):
        found = numbers["tree", distance, "loss_token"]
        assert found["kl"] == pytest.approx(kl, abs=1e-3)
        assert found["cosine"][1] == pytest.approx(cosine, abs=1e-3)
    assert numbers["tree", 1, "reward_response"]["along"][2] == pytest.approx(-0.404, abs=1e-3)


def test_saved_widget_is_a_picture_with_the_state_to_revive_it(lecture):
    (output,) = lecture.cells["widget"]["outputs"]
    assert base64.b64decode("".join(output["data"]["image/png"])).startswith(b"\x89PNG")
    saved = output["metadata"]["policy_gradients_course"]
    assert saved["widget"] == "kl_estimators"
    assert saved["state"] == KLEstimators().state


def test_compass_speaks_of_the_kl():
    truth = torch.tensor([1.0, 0.0])
    samples = torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    figure = draw.kl_compass(
        truth, {"k1 loss": (1e-17 * truth, samples), "k2 loss": (truth, samples)}
    )
    words = [text.get_text() for text in figure.findobj(matplotlib.text.Text)]
    plt.close(figure)
    assert not [text for text in words if "J" in text]
    assert "k1 in the loss" in words
    (nowhere,) = (text for text in words if "mean: length 0.00" in text)
    assert "cosine" not in nowhere  # a mean of zero has no direction
    assert any("mean: length 1.00, cosine 1.000" in text for text in words)


def test_drawn_estimators_are_the_library_s():
    ell = torch.linspace(-3, 3, 13, dtype=torch.float64)[:, None]
    for name, k in (("k1", k1), ("k2", k2), ("k3", k3)):
        drawn = torch.from_numpy(draw.FORMULAS[name](ell.numpy()))
        torch.testing.assert_close(drawn, k(ell, 0 * ell))
