"""Exact action values, and what tables learn, against values known in closed form."""

import gymnasium
import pytest
import torch

from toy_models.exact import expected_reward
from toy_models.finite_mdp import (
    FiniteMDP,
    bellman,
    from_gymnasium,
    greedy,
    implicit_q,
    learn_table,
    optimal_q,
    policy_return,
    sorter_tree,
    two_doors,
)
from toy_models.policies import AutoregressivePolicy
from toy_models.sorting import SortingTask, all_sequences, position_match_reward, sorted_reward

TASK = SortingTask(3, 3)
PROMPTS = TASK.distinct_prompts()


@pytest.fixture(scope="module")
def cliff() -> FiniteMDP:
    return from_gymnasium(gymnasium.make("CliffWalking-v1"))


@pytest.fixture(scope="module")
def tree() -> FiniteMDP:
    return sorter_tree(PROMPTS, vocab_size=3, reward=sorted_reward)


def one_state(**changes) -> FiniteMDP:
    """A point a step, over after the first: worth 1."""
    shape = (1, 1, 1)
    return FiniteMDP(
        torch.zeros(shape, dtype=torch.long),
        torch.ones(shape, dtype=torch.float64),
        torch.ones(shape, dtype=torch.float64),
        torch.ones(shape, dtype=torch.bool),
    )._replace(**changes)


def chain(length: int) -> FiniteMDP:
    """Write `length` ones; any zero on the way makes the answer wrong. A tree of 2 ** length."""
    prompt = torch.ones(1, length, dtype=torch.long)
    return sorter_tree(prompt, vocab_size=2, reward=sorted_reward)


# --- exact ---------------------------------------------------------------------------------------


def test_values_known_from_books(cliff):
    assert optimal_q(cliff, gamma=1.0)[36].max() == -13  # along the edge
    lake = from_gymnasium(gymnasium.make("FrozenLake-v1", is_slippery=True))
    q = optimal_q(lake, gamma=1.0)
    assert abs(q[0].max() - 14 / 17) < 1e-9
    assert abs(policy_return(lake, greedy(q), gamma=1.0) - 14 / 17) < 1e-9


def test_a_forgotten_end_makes_ten_of_one():
    assert optimal_q(one_state(), gamma=0.9).item() == 1
    forgotten = one_state(ends=torch.zeros(1, 1, 1, dtype=torch.bool))
    assert abs(optimal_q(forgotten, gamma=0.9).item() - 10) < 1e-9


def test_optimum_of_the_tree_is_the_best_answer(tree):
    for reward, mdp in (
        (sorted_reward, tree),
        (position_match_reward, sorter_tree(PROMPTS, vocab_size=3, reward=position_match_reward)),
    ):
        q = optimal_q(mdp, gamma=1.0)
        answers = all_sequences(3, 3)
        for first in range(3):
            best = reward(PROMPTS[:, None], answers[answers[:, 0] == first]).max(1).values
            assert torch.equal(q[list(mdp.start), first], best.double())
        assert torch.equal(bellman(mdp, q, gamma=1.0), q)


def test_values_of_a_policy_are_those_of_the_laboratory(tree):
    policy = AutoregressivePolicy(3, 3, eos_id=None, prompts=PROMPTS).double()
    policy.table.data = torch.randn(
        policy.table.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    ours = policy_return(tree, policy.table.detach().flatten(0, 1).softmax(-1), gamma=1.0)
    assert abs(ours - expected_reward(policy, PROMPTS, sorted_reward)) < 1e-12


def test_a_sweep_brings_any_two_tables_closer_by_gamma(cliff):
    dice = torch.Generator().manual_seed(0)
    for epsilon in (0.0, 0.3):
        a, b = (torch.randn(48, 4, generator=dice, dtype=torch.float64) for _ in range(2))
        images = [bellman(cliff, q, gamma=0.7, epsilon=epsilon) for q in (a, b)]
        assert (images[0] - images[1]).abs().max() <= 0.7 * (a - b).abs().max() + 1e-12


def test_after_k_sweeps_the_last_k_tokens_are_right():
    mdp, length = chain(6), 6
    best, q = optimal_q(mdp, gamma=1.0), torch.zeros(63, 2, dtype=torch.float64)
    for sweep in range(1, length + 1):
        q = bellman(mdp, q, gamma=1.0)
        wrong = (q - best).abs().amax(1)  # (states,), 2 ** depth of them at each depth
        by_depth = [part.max().item() for part in wrong.split([2**d for d in range(length)])]
        assert by_depth == [1.0] * (length - sweep) + [0.0] * sweep


def test_ties_share():
    q = torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0]])
    assert greedy(q).tolist() == [[0.5, 0.5, 0], [0, 1, 0]]
    assert greedy(q, epsilon=0.3)[1].tolist() == pytest.approx([0.1, 0.8, 0.1])


def test_implicit_q_lies_between_the_mean_and_the_best_of_what_is_done(tree):
    dice = torch.Generator().manual_seed(1)
    behaviour = torch.rand(tree.next_state.shape[:2], generator=dice, dtype=torch.float64)
    behaviour[:, 2] *= torch.rand(len(behaviour), generator=dice) < 0.5  # some never taken
    behaviour /= behaviour.sum(1, keepdim=True)
    mean = implicit_q(tree, behaviour, gamma=1.0, tau=0.5)
    value = (behaviour * mean).sum(1)[list(tree.start)].mean()
    assert abs(value - policy_return(tree, behaviour, gamma=1.0)) < 1e-9
    high = implicit_q(tree, behaviour, gamma=1.0, tau=1 - 1e-9)
    q = torch.zeros_like(high)
    for _ in range(3):  # Bellman's sweep with the maximum over what is done
        allowed = torch.where(behaviour > 0, q, -torch.inf).max(1).values[tree.next_state]
        q = (tree.rewards + torch.where(tree.ends, 0.0, allowed))[..., 0]
    assert (high - q).abs().max() < 1e-6


def test_expectile_of_a_coin_in_closed_form():
    """v = tau p / (tau p + (1 - tau)(1 - p)) for 1 with probability p, else 0."""
    rewards = torch.tensor([[[0.0], [0.0]], [[1.0], [0.0]]], dtype=torch.float64)
    ends = torch.tensor([[[False], [False]], [[True], [True]]])
    mdp = FiniteMDP(
        torch.ones(2, 2, 1, dtype=torch.long), torch.ones(2, 2, 1).double(), rewards, ends
    )
    behaviour = torch.tensor([[0.5, 0.5], [0.1, 0.9]], dtype=torch.float64)
    for tau in (0.5, 0.9, 0.99):
        right = tau * 0.1 / (tau * 0.1 + (1 - tau) * 0.9)
        assert abs(implicit_q(mdp, behaviour, gamma=1.0, tau=tau)[0, 0] - right) < 1e-12


# --- learned -------------------------------------------------------------------------------------


def test_q_learning_finds_the_optimum_of_the_sorter(tree):
    best = optimal_q(tree, gamma=1.0)
    for seed in range(5):
        q = learn_table(tree, episodes=1000, gamma=1.0, lr=1.0, epsilon=1.0, seed=seed).q
        assert policy_return(tree, greedy(q), gamma=1.0) == 1
        assert (q - best)[list(tree.start)].abs().max() == 0
        assert (q <= best).all()


def test_the_same_seed_gives_the_same_table(cliff):
    knobs = {"episodes": 20, "gamma": 1.0, "lr": 0.5, "epsilon": 0.1, "double": True}
    first, again, other = (learn_table(cliff, seed=seed, **knobs) for seed in (3, 3, 4))
    assert torch.equal(first.q, again.q)
    assert torch.equal(first.returns, again.returns)
    assert not torch.equal(first.q, other.q)


def test_sarsa_keeps_away_from_the_cliff(cliff):
    """While exploring it earns more than Q-learning, whose table is about another policy."""
    knobs = {"episodes": 500, "gamma": 1.0, "lr": 0.5, "epsilon": 0.1}
    means = {
        on_policy: torch.stack(
            [
                learn_table(cliff, seed=seed, on_policy=on_policy, **knobs).returns[-200:].mean()
                for seed in range(5)
            ]
        )
        for on_policy in (False, True)
    }
    assert means[True].mean() > means[False].mean() + 10
    assert means[True].mean() > -35


def test_the_fixed_point_of_sarsa(cliff):
    """With a small step SARSA comes close to the fixed point of the epsilon-soft sweep."""
    soft = optimal_q(cliff, gamma=1.0, epsilon=0.1)
    knobs = {"episodes": 4000, "gamma": 1.0, "lr": 0.05, "epsilon": 0.1, "seed": 0}
    learned = learn_table(cliff, on_policy=True, **knobs).q
    bug = learn_table(cliff, on_policy=False, **knobs).q  # the maximum, where SARSA belongs
    assert abs(learned[36, 0] - soft[36, 0]) < 2
    assert abs(bug[36, 0] - soft[36, 0]) > 3


def test_the_maximum_over_noise_is_caught_and_double_cures_it():
    doors, shares = two_doors(), {}
    assert optimal_q(doors, gamma=1.0)[0, 0] == pytest.approx(-0.1)
    for double in (False, True):
        left = [
            learn_table(
                doors, episodes=80, gamma=1.0, lr=0.1, epsilon=0.1, seed=seed, double=double
            ).first_actions
            == 0
            for seed in range(100)
        ]
        shares[double] = torch.stack(left).double()[:, 40:80].mean().item()
    assert shares[False] > 0.5  # going left is worse, and exploration alone would do it in 1 %
    assert shares[True] < 0.3


@pytest.mark.parametrize(("look_ahead", "depths"), [(1, [4, 3, 2, 1]), (3, [4, 3]), (4, [4])])
def test_news_travels_look_ahead_tokens_per_visit(look_ahead, depths):
    """Until the first token hears of the score: sum over the stages of 1 / P(right so far)."""
    mdp = chain(4)
    heard = []
    for seed in range(100):
        run = learn_table(
            mdp,
            episodes=200,
            gamma=1.0,
            lr=0.5,
            epsilon=1.0,
            seed=seed,
            look_ahead=look_ahead,
            every=1,
        )
        heard.append((run.snapshots[:, 0, 1] > 0).nonzero()[0].item())
    heard = torch.tensor(heard, dtype=torch.float64)
    expected = sum(2.0**depth for depth in depths)
    assert abs(heard.mean() - expected) < 4 * heard.std() / 10


def test_replay_carries_the_news_without_new_answers():
    mdp = chain(4)
    knobs = {"episodes": 200, "gamma": 1.0, "lr": 1.0, "epsilon": 1.0, "every": 1}
    after_the_first_score = {}
    for replay in (0, 64):
        delays = []
        for seed in range(20):
            run = learn_table(mdp, seed=seed, replay=replay, **knobs)
            heard = (run.snapshots[:, 0, 1] > 0).nonzero()[0].item()
            delays.append(heard - 1 - run.returns.nonzero()[0].item())
        after_the_first_score[replay] = sum(delays) / len(delays)
    assert after_the_first_score[64] < 0.4 * after_the_first_score[0]


def test_a_cut_is_bootstrapped_and_an_end_is_not():
    endless = one_state(ends=torch.zeros(1, 1, 1, dtype=torch.bool))
    knobs = {"episodes": 400, "gamma": 0.9, "lr": 0.5, "epsilon": 0.0, "seed": 0}
    assert learn_table(endless, max_steps=5, **knobs).q.item() == pytest.approx(10)
    assert learn_table(one_state(), **knobs).q.item() == pytest.approx(1)
    # the bug: the last step of five is taken for an end, 1 / (1 - .9 * .8) on average
    fifth = FiniteMDP(
        torch.zeros(1, 1, 2, dtype=torch.long),
        torch.tensor([[[0.8, 0.2]]], dtype=torch.float64),
        torch.ones(1, 1, 2, dtype=torch.float64),
        torch.tensor([[[False, True]]]),
    )
    assert optimal_q(fifth, gamma=0.9).item() == pytest.approx(1 / (1 - 0.9 * 0.8))


# --- errors --------------------------------------------------------------------------------------


def test_impossible_values_are_named(cliff, tree):
    knobs = {"episodes": 1, "gamma": 1.0, "lr": 0.5, "epsilon": 0.1, "seed": 0}
    with pytest.raises(ValueError, match=r"gamma must lie in 0\.\.1, got 1\.5"):
        bellman(cliff, torch.zeros(48, 4), gamma=1.5)
    with pytest.raises(ValueError, match=r"q must be .*\(48, 4\), got \(4, 48\)"):
        bellman(cliff, torch.zeros(4, 48), gamma=1.0)
    with pytest.raises(ValueError, match="lr must lie"):
        learn_table(cliff, **knobs | {"lr": 2.0})
    with pytest.raises(ValueError, match="look_ahead must be a positive"):
        learn_table(cliff, look_ahead=0, **knobs)
    with pytest.raises(ValueError, match="exclude each other"):
        learn_table(cliff, on_policy=True, double=True, **knobs)
    with pytest.raises(ValueError, match="replay keeps single steps"):
        learn_table(cliff, replay=4, look_ahead=2, **knobs)
    with pytest.raises(ValueError, match="policy must be"):
        policy_return(tree, torch.ones(3), gamma=1.0)
    with pytest.raises(ValueError, match="walk for ever"):
        policy_return(cliff, torch.eye(4)[torch.zeros(48).long()], gamma=1.0)
    with pytest.raises(RuntimeError, match="no fixed point"):
        optimal_q(one_state(ends=torch.zeros(1, 1, 1, dtype=torch.bool)), gamma=1.0, sweeps=50)
    with pytest.raises(ValueError, match="tau must lie between"):
        implicit_q(tree, torch.ones(tree.next_state.shape[:2]), gamma=1.0, tau=1.0)
    with pytest.raises(TypeError, match="no transition table"):
        from_gymnasium(gymnasium.make("CartPole-v1"))
    with pytest.raises(ValueError, match="at least 2"):
        two_doors(1)


# --- pieces by hand ------------------------------------------------------------------------------


def two_arms() -> FiniteMDP:
    """Action 1 pays a point and action 0 nothing; then it is over."""
    pay = torch.tensor([[[0.0], [1.0]]], dtype=torch.float64)
    ends = torch.ones(1, 2, 1, dtype=torch.bool)
    return FiniteMDP(torch.zeros(1, 2, 1, dtype=torch.long), torch.ones_like(pay), pay, ends)


def corridor() -> FiniteMDP:
    """States 0, 1, 2 in a row, one action, paying 1, 2, 4."""
    pay = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)[:, None, None]
    after = torch.tensor([1, 2, 0])[:, None, None]
    return FiniteMDP(after, torch.ones_like(pay), pay, after == 0)


ONCE = {"episodes": 1, "gamma": 0.5, "lr": 1.0, "epsilon": 0.0, "seed": 0}


def test_a_policy_is_discounted(tree):
    half = policy_return(tree, greedy(optimal_q(tree, gamma=0.5)), gamma=0.5)
    assert half.item() == pytest.approx(0.25)
    mu = torch.full(tree.next_state.shape[:2], 1 / 3, dtype=torch.float64)
    q = implicit_q(tree, mu, gamma=0.5, tau=0.5)
    value = (mu * q).sum(1)[list(tree.start)].mean()
    assert value.item() == pytest.approx(policy_return(tree, mu, gamma=0.5).item())


def test_expectile_by_bisection():
    """Eight values, where one reweighted mean is not enough."""
    dice = torch.Generator().manual_seed(0)
    pay = torch.randn(8, generator=dice, dtype=torch.float64).exp()
    mu = torch.rand(8, generator=dice, dtype=torch.float64)
    mu, tau, low, high = mu / mu.sum(), 0.9, 0.0, pay.max()
    for _ in range(100):
        v = (low + high) / 2
        over = (
            tau * (mu * (pay - v).clamp(min=0)).sum()
            > (1 - tau) * (mu * (v - pay).clamp(min=0)).sum()
        )
        low, high = (v, high) if over else (low, v)
    rewards = torch.stack([torch.zeros_like(pay), pay])[..., None]
    ends = torch.tensor([False, True])[:, None, None].expand(2, 8, 1)
    mdp = FiniteMDP(torch.ones(2, 8, 1).long(), torch.ones_like(rewards), rewards, ends)
    q = implicit_q(mdp, mu.expand(2, -1), gamma=1.0, tau=tau)
    assert q[0].tolist() == pytest.approx([v.item()] * 8, abs=1e-12)


def test_one_episode_by_hand():
    for look_ahead, q in ((1, [1, 2, 4]), (2, [2, 4, 4]), (3, [3, 4, 4])):
        run = learn_table(corridor(), look_ahead=look_ahead, **ONCE)
        assert run.q[:, 0].tolist() == q
        assert run.returns.tolist() == [7]  # undiscounted
    halves = [learn_table(one_state(), double=True, **ONCE | {"seed": s}).q.item() for s in (0, 1)]
    assert halves == [0.5, 0.5]  # the mean of two tables, one of which has learned


def test_a_cut_is_bootstrapped_from_all_the_steps_that_wait():
    endless = one_state(ends=torch.zeros(1, 1, 1, dtype=torch.bool))
    knobs = {"episodes": 300, "gamma": 0.9, "lr": 0.5, "epsilon": 0.0, "seed": 0, "max_steps": 5}
    run = learn_table(endless, look_ahead=3, **knobs)
    assert run.q.item() == pytest.approx(10)
    assert run.returns.unique().tolist() == [5]


def test_what_is_replayed_ends_too():
    knobs = {"episodes": 50, "gamma": 0.9, "lr": 0.5, "epsilon": 0.0, "seed": 0, "replay": 5}
    assert learn_table(one_state(), **knobs).q.item() == pytest.approx(1)


def test_old_steps_are_replayed_and_not_only_the_latest():
    knobs = {"episodes": 200, "gamma": 1.0, "lr": 1.0, "epsilon": 1.0}
    q = [learn_table(chain(4), seed=seed, replay=1, **knobs).q[0, 1].item() for seed in range(40)]
    bare = [learn_table(chain(4), seed=seed, **knobs).q[0, 1].item() for seed in range(40)]
    assert sum(q) >= sum(bare)
    few = {"episodes": 25, "gamma": 1.0, "lr": 1.0, "epsilon": 1.0}
    heard = [
        sum(learn_table(chain(4), seed=s, replay=k, **few).q[0, 1].item() for s in range(100))
        for k in (0, 3)
    ]
    assert heard[1] > 1.5 * heard[0]


def test_actions_are_chosen_by_lot_by_both_tables_or_as_told():
    still = two_arms()._replace(rewards=torch.zeros(1, 2, 1, dtype=torch.float64))
    many = ONCE | {"episodes": 100}
    assert 30 < learn_table(still, **many).first_actions.sum() < 70  # a tie
    for seed in range(20):
        first = learn_table(two_arms(), double=True, **many | {"seed": seed}).first_actions
        assert first[first.argmax() :].all()  # once it has paid, in whichever table
    told = torch.tensor([[0.9, 0.1]], dtype=torch.float64)
    assert 1 <= learn_table(two_arms(), behaviour=told, **many).first_actions.sum() < 25


def test_outcomes_come_with_their_probability_and_snapshots_in_time():
    odds = FiniteMDP(
        torch.zeros(1, 1, 2, dtype=torch.long),
        torch.tensor([[[0.9, 0.1]]], dtype=torch.float64),
        torch.tensor([[[0.0, 1.0]]], dtype=torch.float64),
        torch.ones(1, 1, 2, dtype=torch.bool),
    )
    knobs = ONCE | {"lr": 0.5}
    assert learn_table(odds, **knobs | {"episodes": 1000}).returns.mean() == pytest.approx(
        0.1, abs=0.04
    )
    run = learn_table(odds, **knobs | {"episodes": 50}, every=20)
    assert len(run.snapshots) == 3
    assert torch.equal(run.snapshots[2], learn_table(odds, **knobs | {"episodes": 40}).q)


def test_silent_nonsense_is_refused(tree):
    shape, knobs = tree.next_state.shape[:2], ONCE | {"gamma": 1.0}
    mu = torch.full(shape, 1 / 3, dtype=torch.float64)
    for wrong in (mu.log(), 2 * mu, mu * torch.nan):
        for call in (
            lambda p: policy_return(tree, p, gamma=1.0),
            lambda p: implicit_q(tree, p, gamma=1.0, tau=0.5),
            lambda p: learn_table(tree, behaviour=p, **knobs),
        ):
            with pytest.raises(ValueError, match="sum to 1"):
                call(wrong)
    with pytest.raises(ValueError, match="behaviour must be"):
        implicit_q(tree, mu[:1], gamma=1.0, tau=0.5)
    for call in (policy_return, lambda m, p, gamma: implicit_q(m, p, gamma=gamma, tau=0.5)):
        with pytest.raises(ValueError, match="gamma must lie"):
            call(tree, mu, gamma=2.0)
    for knob in ({"replay": -1}, {"max_steps": 0}, {"every": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(knob))} must be"):
            learn_table(tree, **knobs, **knob)
    one = one_state()
    for change, match in (
        ({"probability": 2 * one.probability}, "probability"),
        ({"rewards": one.rewards * torch.nan}, "finite"),
        ({"next_state": one.next_state - 1}, "next_state"),
        ({"start": ()}, "start"),
    ):
        with pytest.raises(ValueError, match=match):
            optimal_q(one._replace(**change), gamma=1.0)
    for prompts, reward in ((PROMPTS + 1, sorted_reward), (PROMPTS, lambda x, y: torch.ones(6))):
        with pytest.raises(ValueError, match="must"):
            sorter_tree(prompts, vocab_size=3, reward=reward)


def test_a_walk_without_end_is_seen_through_rounding():
    after = torch.tensor([0, 1, 2]).expand(3, 1, 3)
    odds = torch.tensor([[0.7, 0.1, 0.2], [0.3, 0.3, 0.4], [1 / 3] * 3], dtype=torch.float64)
    odds = odds[:, None] / odds[:, None].sum(-1, keepdim=True)
    mdp = FiniteMDP(after, odds, torch.ones_like(odds), torch.zeros(3, 1, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="walk for ever"):
        policy_return(mdp, torch.ones(3, 1), gamma=1.0)
