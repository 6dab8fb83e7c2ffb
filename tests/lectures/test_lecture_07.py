"""What lecture 07 says in text and cannot assert in its own cells.

Its folded solutions run, the numbers of the exercise that is done by hand are right, and so are
those of the widget's folded answers. The cells that the solutions build on are run as they stand
in the notebook.
"""

import base64

import matplotlib.pyplot as plt
import pytest
import torch

from lectures import figures_07
from policy_gradients import entropy, gae, shape_rewards_with_kl, value_loss, whiten

LECTURE = "07_actor_critic_and_ppo"
USED = ["setup", "thinker", "points", "half", "weights", "leak", "three-terms", "collect", "credit"]
USED += ["ppo", "fade-predict", "chain", "fade", "rescue", "widget"]


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype))


def test_exercise_1_by_hand():
    logp, mask = torch.tensor([[0.5, 0.0, -0.5]]).double(), torch.ones(1, 3)
    rewards = shape_rewards_with_kl(torch.ones(1).double(), logp, 0 * logp, mask, beta=0.2)
    close(rewards, [[-0.1, 0.0, 1.1]])
    values, done = torch.tensor([[0.6, 0.8, 0.9]]).double(), torch.tensor([[0, 0, 1]])
    for lam, expected in ((1.0, [[0.4, 0.3, 0.2]]), (0.0, [[0.1, 0.1, 0.2]])):
        close(gae(rewards, values, done, gamma=1.0, lam=lam)[0], expected)
    close(gae(rewards, values, done, gamma=1.0, lam=1.0)[1], [[1.0, 1.1, 1.1]])
    now = torch.tensor([[0.9]], dtype=torch.float64, requires_grad=True)
    loss = value_loss(now, values[:, :1], torch.ones(1, 1).double(), clip=0.2)
    assert loss.item() == pytest.approx(0.02)
    assert torch.autograd.grad(loss.sum(), now)[0].item() == 0


def test_exercise_2_takes_away_one_condition_at_a_time(lecture):
    exec(lecture.solution("exercise-2"), lecture.names)
    shortest = {name: length.min().item() for name, length in lecture["ends"].items()}
    end = {name: length[-1].item() for name, length in lecture["ends"].items()}
    assert shortest["says .2"] == pytest.approx(25, abs=4)
    assert shortest["says .1"] < 8
    assert shortest["equal steps"] == pytest.approx(26, abs=4)
    assert shortest["λ = .99"] > 28
    assert all(end[name] > 38 for name in ("says .2", "equal steps", "λ = .99"))
    assert end["says .1"] > 3 * shortest["says .1"]
    patience = lecture["ends"]["patience"]  # the puzzle's collapse is a transient
    assert patience[:60].min() < 4 < patience[59] < 15 < patience[149] < 35 < 38 < patience[299]
    copies = lecture["rescue"](steps=300)[:, -1]  # points and tokens of each copy
    assert copies[1].min() > 38
    assert copies[0].min() > 0.96


def test_per_token_k2_in_the_loss_from_the_home_of_section_3_4(lecture):
    """.13 from the Gibbs optimum on the tree of `gibbs`, whose home is uniform (lecture 05)."""
    tree, prompt, beta = lecture["AutoregressivePolicy"](3, 3, eos_id=None), lecture["prompt"], 0.5
    exact, reward = lecture["exact"], lecture["partial_credit"]
    best = exact.gibbs_distribution(tree, prompt, reward, beta)
    R, home = exact.all_rewards(tree, prompt, reward)[0], tree.table.new_full((), 3).log()
    for _ in range(1000):
        logp = exact.token_log_probs_of(tree, prompt)[0]  # (answer, time)
        prob = logp.detach().sum(1, keepdim=True).exp()
        weight = R[:, None] - beta * (logp.detach() + home)  # ℓ_t alone, without what follows
        tree.table.grad = None
        (-(prob * weight * logp).sum()).backward()
        tree.table.data -= 3 * tree.table.grad
    end = exact.response_log_probs(tree, prompt).exp()
    assert (end - best).abs().sum().item() / 2 == pytest.approx(0.13, abs=5e-3)


def test_exercise_3_refutes_by_enumeration(lecture, capsys):
    exec(lecture.solution("exercise-3"), lecture.names)  # its own asserts are the claim
    bias, noise = zip(*lecture["found"].values(), strict=True)
    assert bias[0].item() == pytest.approx(0.64, abs=5e-3)
    assert 1 - noise[0] / noise[1] == pytest.approx(0.05, abs=5e-3)
    assert 1 - noise[3] / noise[1] == pytest.approx(0.26, abs=1e-2)


def test_numbers_of_the_widget_answers(lecture):
    found = {}
    for group in lecture["record"]["groups"]:
        for answer in group["responses"]:
            gained = [round(answer["reward"] - v, 2) for v in answer["values"]]
            found[group["prompt"], " ".join(answer["tokens"])] = gained
    assert found["0 1 2", "0 1 1 0 2"] == [0.42, 0.05, -0.72, -0.33, 0.0]
    assert found["0 2 1", "end"] == [-1.73]
    assert found["0 2 1", "2 2 1 2 0"][-1] == 0
    assert [gained for key, gained in found.items() if key[0] == "0 2 1"].count([-1.73]) == 1


def test_saved_widget_is_a_picture_with_the_state_to_revive_it(lecture):
    (output,) = lecture.cells["widget"]["outputs"]
    assert base64.b64decode("".join(output["data"]["image/png"])).startswith(b"\x89PNG")
    assert not any("widget" in kind for kind in output["data"])
    saved = output["metadata"]["policy_gradients_course"]
    assert saved["widget"] == "step_inspector"
    assert saved["state"]["show"] == "advantage"


def test_whitening_with_the_padding_gives_the_numbers_of_the_text():
    x = torch.tensor([[1.0, 3.0, 0.0]], dtype=torch.float64)
    close((x - x.mean()) / x.std(correction=0), [[-0.2672612419, 1.3363062096, -1.0690449676]])
    close(whiten(x, torch.tensor([[1, 1, 0]])).round(decimals=6), [[-1.0, 1.0, 0.0]])


def test_numbers_of_the_fading_signal():
    for tokens, left in ((40, 0.13), (1000, 5.3e-23)):
        assert 0.95**tokens == pytest.approx(left, rel=0.02)
    assert 0.95**28 < 0.25 < 0.95**27


def test_the_right_entropy_bonus_can_lower_the_entropy_of_answers(lecture):
    """Per state it must rise; answers get shorter on the thinker that ends with 5 % per token."""
    which, cases, mask = lecture["which"], lecture["cases"], lecture["seen"]

    def of_answers(policy):
        logp = (policy.log_probs(which, cases) * mask).sum(1).detach()
        return -(logp.exp() * logp).sum(), (logp.exp() * mask.sum(1)).sum()

    thinker = lecture["Thinker"](1)
    thinker.table.data.fill_(-3.0)
    before = of_answers(thinker)
    weight = (thinker.log_probs(which, cases) * mask).sum(1).exp().detach()[:, None] * mask
    bonus = (weight * entropy(thinker.logits(which, cases))).sum() / weight.sum()
    thinker.table.data += 0.5 * torch.autograd.grad(bonus, thinker.table)[0]
    assert all(now < then for now, then in zip(of_answers(thinker), before, strict=True))


def test_a_leak_settles_at_the_entropy_over_its_coefficient(lecture):
    """[AC-7] against c_V (V − G): the value of the prompt ends 1.8 points too high."""
    rows = lecture["sorter"].table[0].detach().log_softmax(-1)
    assert -(rows[0].exp() * rows[0]).sum().item() / 0.5 == pytest.approx(1.8, abs=0.05)


def test_a_critic_of_one_error_shows_which_way_it_bends(lecture):
    """[AC-8]: ending collects no error, going on collects e(1 − λ^n) if n more states follow."""
    for sign in (-1, 1):
        V = lecture["V_chain"] + sign * 0.5
        A = {}
        for key, values in (("right", lecture["V_chain"]), ("off", V)):
            A[key], _ = gae(
                lecture["paid"],
                values * lecture["seen"],
                lecture["last_token"](lecture["seen"]),
                gamma=1.0,
                lam=0.95,
            )
        bias = (A["off"] - A["right"])[:64, 0] + sign * 0.5  # without the baseline −e(s_0)
        left = torch.arange(64)  # states that follow the first one
        torch.testing.assert_close(bias, sign * 0.5 * (1 - 0.95**left))


def test_pictures_take_what_the_lecture_gives_them():
    runs = {"PPO": torch.rand(5, 3), "REINFORCE": torch.rand(5, 3)}
    figures = [
        figures_07.bands({"length": runs, "points": runs}, ("tokens", "points"), work=3),
        figures_07.pushes({"true ∇J": torch.randn(4), "says 0": torch.randn(4)}, block=8, work=16),
        figures_07.dots({"a": {"x": torch.rand(5)}, "b": {"y": torch.rand(5)}}),
        figures_07.lettered({"A": torch.rand(2, 6)}, ("loss", "points")),
    ]
    assert [len(figure.axes) for figure in figures] == [2, 1, 2, 2]
    plt.close("all")
