"""Deep Q-learning: pieces against exact values, known mistakes caught, small tasks learned."""

import math

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from toy_models import value_based as vb
from toy_models.finite_mdp import optimal_q, sorter_tree
from toy_models.sorting import SortingTask, position_match_reward, sorted_reward
from toy_models.value_based import (
    QNetwork,
    ReplayBuffer,
    SortingEnv,
    Transitions,
    act_greedily,
    copy_weights,
    dueling_q,
    epsilon_at,
    importance_weights,
    learn_offline,
    learn_q,
    logged_transitions,
    td_target,
    update,
)

SEEDS = range(3)


def cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


class Endless(gymnasium.Wrapper):
    """The bug, from outside: every end is reported as a cut, so that it is bootstrapped."""

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, False, terminated or truncated, info


# --- the target ----------------------------------------------------------------------------------


def test_the_target_by_hand():
    rewards = torch.tensor([1.0, 1.0, 1.0])
    now = torch.tensor([[5.0, 2.0], [5.0, 2.0], [math.nan, math.nan]])
    frozen = torch.tensor([[3.0, 4.0], [3.0, 4.0], [math.nan, math.inf]])
    ended = torch.tensor([0, 1, 1])
    knobs = {"gamma": 0.5}
    plain = td_target(rewards, now, frozen, ended, double=False, **knobs)
    double = td_target(rewards, now, frozen, ended, double=True, **knobs)
    assert plain.tolist() == [3.0, 1.0, 1.0]
    assert double.tolist() == [2.5, 1.0, 1.0]


def test_the_target_is_a_constant():
    q = torch.ones(2, 3, requires_grad=True)
    zeros = torch.zeros(2)
    assert not td_target(zeros, q, q, zeros, gamma=1.0, double=True).requires_grad


def test_the_target_at_the_optimum_is_the_optimum():
    tree = sorter_tree(SortingTask(3, 3).distinct_prompts(), vocab_size=3, reward=sorted_reward)
    best = optimal_q(tree, gamma=0.9)
    behind = best[tree.next_state[..., 0]]  # (states, actions, actions)
    for double in (False, True):
        target = td_target(
            tree.rewards[..., 0], behind, behind, tree.ends[..., 0], gamma=0.9, double=double
        )
        assert (target - best).abs().max() < 1e-12


def test_a_forgotten_end_is_caught_by_a_value_of_ten():
    def fixed_point(terminated):
        q = torch.zeros(1, 1, dtype=torch.float64)
        for _ in range(400):
            q = td_target(torch.ones(1).double(), q, q, terminated, gamma=0.9, double=False)[
                :, None
            ]
        return q.item()

    assert fixed_point(torch.ones(1)) == 1
    assert fixed_point(torch.zeros(1)) == pytest.approx(10)  # right for a cut, wrong for an end


def test_the_maximum_of_two_gaussians_is_too_high_and_double_is_not():
    """E max = sigma / sqrt(pi) where both are worth 0; chosen by another copy: exactly 0."""
    n, sigma = 400_000, 1.5
    dice = torch.Generator().manual_seed(0)
    one, other = sigma * torch.randn(2, n, 2, generator=dice, dtype=torch.float64)
    nothing = torch.zeros(n, dtype=torch.float64), one, other, torch.zeros(n)
    for double, right in ((False, sigma / math.sqrt(math.pi)), (True, 0.0)):
        target = td_target(*nothing, gamma=1.0, double=double)
        assert abs(target.mean() - right) < 4 * target.std() / math.sqrt(n)
    same = td_target(nothing[0], other, other, nothing[3], gamma=1.0, double=True)
    assert same.mean() > 0.8  # the bug: one copy twice is no double


def test_double_falls_short_where_values_differ_exactly():
    """Values 1 and 0: the wrong one is chosen with Phi(-1 / (sigma sqrt 2)), and costs 1."""
    n, sigma = 400_000, 1.0
    dice = torch.Generator().manual_seed(1)
    worth = torch.tensor([1.0, 0.0], dtype=torch.float64)
    one, other = worth + sigma * torch.randn(2, n, 2, generator=dice, dtype=torch.float64)
    zeros = torch.zeros(n, dtype=torch.float64)
    double = td_target(zeros, one, other, zeros, gamma=1.0, double=True)
    wrong = 0.5 * math.erfc(1 / (sigma * 2))
    assert abs(double.mean() - (1 - wrong)) < 4 * double.std() / math.sqrt(n)


# --- the other pieces ----------------------------------------------------------------------------


def test_the_two_heads_are_told_apart_by_the_mean():
    dice = torch.Generator().manual_seed(0)
    value, advantages = torch.randn(5, 1, generator=dice), torch.randn(5, 4, generator=dice)
    q = dueling_q(value, advantages)
    assert torch.allclose(q.mean(1, keepdim=True), value)
    assert torch.allclose(dueling_q(value, advantages + 7), q, atol=1e-5)
    assert not torch.allclose(dueling_q(value + 7, advantages), q)
    network = QNetwork(3, 4, seeds=(0, 1), dueling=True)
    assert network(torch.zeros(2, 6, 3)).shape == (2, 6, 4)


def filled(priority: float, errors: torch.Tensor) -> ReplayBuffer:
    buffer = ReplayBuffer(len(errors), 1, priority=priority)
    for k in range(len(errors)):
        step = torch.full((1, 1), float(k)), torch.tensor([k]), torch.tensor([float(k)])
        buffer.add(*step, torch.zeros(1, 1), torch.tensor([False]))
    buffer.update(torch.arange(len(errors))[None], errors[None])
    return buffer


def test_weights_undo_the_priorities_exactly():
    errors = torch.tensor([0.1, 2.0, 0.5, 0.0, 4.0])
    chances = filled(0.6, errors).chances()[0].double()
    assert torch.allclose(chances, (errors.double() + 0.01) ** 0.6 / ((errors + 0.01) ** 0.6).sum())
    gradients = torch.tensor([3.0, -1.0, 2.0, 8.0, 0.5], dtype=torch.float64)
    for beta, unbiased in ((1.0, True), (0.4, False), (0.0, False)):
        weights = importance_weights(chances, 5, beta=beta)
        expected = (chances * weights * gradients).sum()
        assert (abs(expected - gradients.mean()) < 1e-12) == unbiased


def test_what_is_drawn_follows_the_priorities():
    buffer = filled(1.0, torch.tensor([0.99, 1.99, 0.0, 2.99]))
    dice = torch.Generator().manual_seed(0)
    seen, places, weights = buffer.sample(20_000, beta=1.0, generator=dice)
    shares = torch.bincount(places[0], minlength=4) / 20_000
    right = torch.tensor([1.0, 2.0, 0.01, 3.0]) / 6.01
    assert ((shares - right).abs() < 4 * (right * (1 - right) / 20_000).sqrt()).all()
    assert torch.equal(seen.actions, places)
    assert torch.allclose(weights, right.min() / right[places])  # at most 1
    uniform = filled(0.0, torch.tensor([0.99, 1.99, 0.0, 2.99]))
    assert torch.equal(uniform.sample(8)[2], torch.ones(1, 8))


def test_the_buffer_forgets_the_oldest():
    buffer = ReplayBuffer(3, 1)
    for k in range(5):
        row = torch.full((1, 1), float(k)), torch.tensor([k]), torch.tensor([0.0])
        buffer.add(*row, torch.zeros(1, 1), torch.tensor([k == 4]))
    assert len(buffer) == 3
    assert sorted(buffer.rows.actions[0].tolist()) == [2, 3, 4]
    assert buffer.rows.terminated[0, buffer.rows.actions[0] == 4].item()


def test_exploration_falls_and_targets_follow():
    path = [epsilon_at(step, first=1.0, last=0.1, decay=10) for step in (0, 5, 10, 99)]
    assert path == pytest.approx([1.0, 0.55, 0.1, 0.1])
    network, target = QNetwork(2, 2, seeds=(0,)), QNetwork(2, 2, seeds=(1,))
    before = target.weights[0].detach().clone()
    copy_weights(target, network, tau=0.25)
    assert torch.allclose(target.weights[0], 0.75 * before + 0.25 * network.weights[0])
    copy_weights(target, network)
    assert torch.equal(target.weights[0], network.weights[0])


# --- learning ------------------------------------------------------------------------------------


def test_cartpole_is_learned_by_every_seed():
    """Random play holds the pole for about 22 steps, 6,000 steps of learning for over 100."""
    run = learn_q(cartpole, seeds=SEEDS)
    held = act_greedily(run.network, cartpole, episodes=4).mean(1)
    assert held.mean() > 100
    assert held.min() > 60
    assert run.values[-1].max() < 50  # nothing is worth more than 1 / (1 - .98)


def test_a_forgotten_end_lets_the_pole_fall():
    run = learn_q(lambda: Endless(cartpole()), seeds=SEEDS, steps=3500)
    assert act_greedily(run.network, cartpole, episodes=4).mean(1).max() < 40


@pytest.mark.parametrize("huber", [True, False])
def test_without_a_frozen_target_it_is_the_clipped_error_that_runs_away(huber):
    run = learn_q(cartpole, seeds=SEEDS, steps=3500, copy_every=1, huber=huber)
    held = act_greedily(run.network, cartpole, episodes=4).mean(1)
    if huber:
        assert run.values[-1].min() > 1000  # 50 is the most possible
        assert held.max() < 40
    else:
        assert run.values[-1].max() < 200
        assert held.mean() > 80


def test_the_loss_is_clipped_where_it_should_be():
    """One weight's gradient: an error of 3 pulls with 1 under the Huber loss, with 3 without."""
    moved = {}
    for huber in (True, False):
        network = QNetwork(1, 1, seeds=(0,))
        with torch.no_grad():
            for part in network.parameters():
                part.zero_()
        rows = torch.ones(1, 1, 1), torch.zeros(1, 1, dtype=torch.long), torch.full((1, 1), 3.0)
        seen = Transitions(*rows, torch.ones(1, 1, 1), torch.ones(1, 1, dtype=torch.bool))
        knobs = {"gamma": 1.0, "double": False, "huber": huber}
        optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
        update(network, network, optimizer, seen, torch.ones(1, 1), **knobs)
        moved[huber] = network.biases[-1].item()
    assert moved == {True: 1.0, False: 3.0}


@pytest.mark.parametrize(
    "switches", [{}, {"double": True, "dueling": True, "priority": 0.6}], ids=["plain", "all"]
)
def test_the_sorter_is_learned_token_by_token(switches):
    """24 prompts with four right answers: a network that ignores the prompt earns a quarter."""
    make = lambda: SortingEnv(4, 3)  # noqa: E731
    knobs = {"steps": 4500, "gamma": 1.0, "decay": 2200, "copy_every": 25}
    run = learn_q(make, seeds=SEEDS, **knobs, **switches)
    assert act_greedily(run.network, make, episodes=60).mean(1).min() > 0.95


def test_the_same_seeds_give_the_same_run():
    knobs = {"steps": 650, "priority": 0.6, "warmup": 100}
    first, again = (learn_q(cartpole, seeds=(4, 5), **knobs) for _ in range(2))
    assert first.episodes == again.episodes
    for a, b in zip(first.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(a, b)


def logged_answers(count: int = 300) -> tuple[torch.Tensor, Transitions]:
    """Six prompts; the favourite first token is wrong, the others are right with 70 %."""
    vocab, length, dice = 8, 4, torch.Generator().manual_seed(0)
    prompts = SortingTask(vocab, length).distinct_prompts()
    prompts = prompts[torch.randperm(len(prompts), generator=torch.Generator().manual_seed(1))[:6]]
    x = prompts[torch.randint(6, (count,), generator=dice)]
    right = x.sort(1).values
    chances = torch.full((count, length, vocab), 0.3 / 7).scatter(2, right[..., None], 0.7)
    chances[:, 0] = 0.25 / 6
    chances[:, 0].scatter_(1, right[:, :1], 0.25)
    chances[:, 0].scatter_(1, (right[:, :1] + 1) % vocab, 0.5)
    y = torch.multinomial(chances.flatten(0, 1), 1, generator=dice).view(count, length)
    return prompts, logged_transitions(x, y, vocab_size=vocab)


def test_logged_steps_are_those_of_the_environment():
    env = SortingEnv(3, 3, prompts=torch.tensor([[2, 0, 1]]), reward=position_match_reward)
    answer = torch.tensor([[0, 2, 2]])
    logged = logged_transitions(env.prompts, answer, vocab_size=3, reward=position_match_reward)
    now, _ = env.reset(seed=0)
    for k, token in enumerate(answer[0].tolist()):
        after, reward, terminated, _, _ = env.step(token)
        row = Transitions(*(part[0, k] for part in logged))
        assert np.array_equal(row.observations, now)
        assert np.array_equal(row.next_observations, after)
        assert (row.actions, row.rewards, row.terminated) == (token, reward, terminated)
        now = after


def test_on_logged_answers_the_maximum_believes_what_nobody_tried():
    prompts, logged = logged_answers()
    scores = {}
    for conservative in (0.0, 0.1):
        run = learn_offline(logged, 8, seeds=SEEDS, updates=1500, conservative=conservative)
        make = lambda: SortingEnv(8, 4, prompts=prompts)  # noqa: E731
        scores[conservative] = act_greedily(run.network, make, episodes=18).mean(1)
    assert scores[0.0].mean() < 0.75
    assert scores[0.1].min() > 0.9


# --- the environment -----------------------------------------------------------------------------


def test_the_sorter_keeps_gymnasiums_rules():
    check_env(SortingEnv(), skip_render_check=True)
    env = SortingEnv(3, 3, prompts=torch.tensor([[2, 0, 1]]), reward=position_match_reward)
    seen, _ = env.reset(seed=0)
    assert seen.shape == env.observation_space.shape == (21,)
    total = 0.0
    for token in (0, 2, 2):
        seen, reward, terminated, truncated, _ = env.step(token)
        total += reward
    assert (total, terminated, truncated) == (2.0, True, False)
    assert np.array_equal(seen[9:].reshape(3, 4).argmax(1), [0, 2, 2])
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(0)


def test_impossible_values_are_named():
    ones = torch.ones(2)
    with pytest.raises(ValueError, match=r"gamma must lie in 0\.\.1, got 2"):
        td_target(ones, torch.ones(2, 3), torch.ones(2, 3), ones, gamma=2, double=False)
    with pytest.raises(ValueError, match="do not fit"):
        td_target(ones, torch.ones(3, 3), torch.ones(2, 3), ones, gamma=1, double=False)
    with pytest.raises(ValueError, match="terminated must have the shape"):
        td_target(ones, torch.ones(2, 3), torch.ones(2, 3), torch.ones(1), gamma=1, double=False)
    with pytest.raises(ValueError, match="capacity must be"):
        ReplayBuffer(0, 1)
    with pytest.raises(ValueError, match="is empty"):
        ReplayBuffer(2, 1).sample(1)
    with pytest.raises(ValueError, match="tau must lie"):
        copy_weights(QNetwork(1, 1), QNetwork(1, 1), tau=0.0)
    with pytest.raises(ValueError, match="seeds is empty"):
        learn_q(cartpole, seeds=())
    with pytest.raises(ValueError, match="steps must be"):
        learn_q(cartpole, steps=0)
    with pytest.raises(ValueError, match="epsilon must be two shares"):
        learn_q(cartpole, epsilon=(2.0, 0.0))
    with pytest.raises(TypeError, match="actions must be Discrete"):
        learn_q(lambda: gymnasium.make("Pendulum-v1"))
    env = SortingEnv()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action must be a token in 0\.\.2"):
        env.step(3)
    with pytest.raises(ValueError, match="prompts must be"):
        SortingEnv(2, 3)


# --- wiring: what goes where ---------------------------------------------------------------------


class Counter(gymnasium.Env):
    """Sees [time], earns 10 times the time plus the action; ends after `end` steps, or is cut."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(-1.0, 99.0, (1,), np.float32)

    def __init__(self, end: int = 99, cut: int = 99):
        self.end, self.cut, self.seeds = end, cut, []

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        self.t = 0
        return np.array([0.0], np.float32), {}

    def step(self, action):
        self.t += 1
        reward = 10.0 * self.t + action
        return np.array([self.t], np.float32), reward, self.t >= self.end, self.t >= self.cut, {}


def watched(monkeypatch, **knobs):
    """learn_q on counters without learning; what it added, drew, updated and copied."""
    log = {"added": [], "betas": [], "updates": [], "taus": [], "lr": [], "replayed": 0}
    add, sample, replayed = ReplayBuffer.add, ReplayBuffer.sample, ReplayBuffer.update

    def see_update(network, target, optimizer, seen, weights, **given):
        log["updates"].append(given)
        log["lr"].append(optimizer.param_groups[0]["lr"])
        assert target is not network
        return -torch.ones(weights.shape), torch.ones(weights.shape)

    def see_replayed(buffer, places, errors):
        log["replayed"] += 1
        replayed(buffer, places, errors)

    def see_sample(buffer, batch, *, beta, generator):
        log["betas"].append((beta, buffer.priority))
        return sample(buffer, batch, beta=beta, generator=generator)

    monkeypatch.setattr(vb, "update", see_update)
    monkeypatch.setattr(vb, "copy_weights", lambda *_, tau: log["taus"].append(tau))
    monkeypatch.setattr(
        ReplayBuffer,
        "add",
        lambda b, *row: (log["added"].append([x.clone() for x in row]), add(b, *row)),
    )
    monkeypatch.setattr(ReplayBuffer, "sample", see_sample)
    monkeypatch.setattr(ReplayBuffer, "update", see_replayed)
    envs = []

    def make():
        envs.append(Counter(end=3) if not envs else Counter(cut=4))
        return envs[-1]

    run = learn_q(make, seeds=(5, 6), hidden=4, **knobs)
    return run, log, envs


def test_what_is_remembered_is_what_happened(monkeypatch):
    run, log, envs = watched(monkeypatch, steps=8, warmup=8, batch=2)
    assert [env.seeds for env in envs] == [[5, None, None], [6, None, None]]
    for k, (length, ends) in enumerate(((3, True), (4, False))):
        earned = 0.0
        for step, row in enumerate(log["added"]):
            now, action, reward, after, terminated = (part[k] for part in row)
            t = step % length  # a row after an end starts again at 0, and never looks behind
            assert (now.item(), after.item()) == (t, t + 1)
            assert reward == 10 * (t + 1) + action
            assert terminated.item() == (ends and t == length - 1)
            earned += reward.item()
            if t == length - 1:
                assert run.episodes[k][step // length] == (step + 1, earned)
                earned = 0.0


def test_every_knob_of_learn_q_reaches_its_place(monkeypatch):
    given = {"double": True, "gamma": 0.7, "lr": 0.01, "tau": 0.3, "beta": 0.2, "priority": 0.5}
    counts = {"steps": 40, "warmup": 20, "batch": 4, "copy_every": 5, "log_every": 3}
    run, log, _ = watched(monkeypatch, updates_per_step=2.0, dueling=True, **given, **counts)
    assert len(log["updates"]) == log["replayed"] == 42  # two for each step from 20 on
    assert {name: log["updates"][0][name] for name in ("gamma", "double")} == {
        "gamma": 0.7,
        "double": True,
    }
    assert (log["lr"][0], log["taus"]) == (0.01, [0.3] * 8)
    assert log["betas"][0] == (pytest.approx(0.2 + 0.8 * 20 / 40), 0.5)
    assert log["betas"][-1][0] == pytest.approx(1)
    assert run.network.dueling
    assert run.values.shape == run.errors.shape == (14, 2)
    assert (run.errors == 1).all()


def test_exploration_fills_the_memory_and_then_falls(monkeypatch):
    knobs = {"steps": 300, "warmup": 100, "batch": 4, "epsilon": (1.0, 0.0)}
    _, log, _ = watched(monkeypatch, decay=1, **knobs)
    actions = torch.stack([row[1] for row in log["added"]]).double()[:, 1]
    rows = torch.stack([row[0] for row in log["added"]])[:, 1, 0]
    assert 0.3 < actions[:100].mean() < 0.7
    for t in range(4):  # nothing is learned here, so the greedy action of a time is always one
        assert len(actions[:100][rows[:100] == t].unique()) == 2
        assert len(actions[200:][rows[200:] == t].unique()) == 1
    _, log, _ = watched(monkeypatch, decay=10**6, **knobs)
    assert 0.3 < torch.stack([row[1] for row in log["added"]])[200:].double().mean() < 0.7


def test_each_seed_has_its_own_network():
    both, alone = QNetwork(2, 3, seeds=(0, 1)), QNetwork(2, 3, seeds=(1,))
    for part, own in zip(both.parameters(), alone.parameters(), strict=True):
        assert torch.equal(part[1:], own)
        assert not torch.equal(part[0], part[1])
    x = torch.randn(2, 5, 2, generator=torch.Generator().manual_seed(0))
    (w1, w2, w3), (b1, b2, b3) = both.weights, both.biases
    by_hand = ((x @ w1 + b1).relu() @ w2 + b2).relu() @ w3 + b3
    assert torch.allclose(both(x), by_hand, atol=1e-6)


def test_runs_share_no_row_and_no_priority():
    buffer = ReplayBuffer(10, 1, runs=2, priority=1.0)
    for k in range(3):  # partly filled
        seen = torch.tensor([[1.0], [2.0]])
        buffer.add(seen, torch.tensor([k, k]), seen[:, 0], seen, torch.tensor([False, False]))
    assert torch.allclose(buffer.chances(), torch.full((2, 3), 1 / 3))
    buffer.update(torch.tensor([[0, 1], [2, 1]]), torch.tensor([[-4.99, 0.99], [1.99, 0.0]]))
    right = torch.tensor([[5.0, 1.0, 1.0], [1.0, 0.01, 2.0]])  # the sign does not matter
    assert torch.allclose(buffer.chances(), right / right.sum(1, keepdim=True))
    dice = torch.Generator().manual_seed(0)
    for _ in range(20):  # one at a time: the largest weight is the buffer's, not the batch's
        rows, places, weights = buffer.sample(1, beta=0.4, generator=dice)
        assert rows.rewards[:, 0].tolist() == [1, 2]
        chance = right.gather(1, places)
        assert torch.allclose(weights, (chance / right.min(1, keepdim=True).values) ** -0.4)
    buffer.add(seen, torch.tensor([3, 3]), seen[:, 0], seen, torch.tensor([False, False]))
    assert torch.allclose(buffer.priorities[:, 3], torch.tensor([5.0, 2.0]))  # the largest so far
    uniform = ReplayBuffer(10, 1)
    uniform.add(seen[:1], torch.tensor([7]), seen[0], seen[:1], torch.tensor([False]))
    assert (uniform.sample(50, generator=dice)[0].actions == 7).all()


@pytest.mark.parametrize("double", [False, True])
def test_an_update_by_hand(double):
    """Two runs, the second as it would be alone; the frozen network is the one that evaluates."""
    dice = torch.Generator().manual_seed(0)
    now, after = torch.randn(2, 2, 6, 3, generator=dice)
    actions = torch.randint(4, (2, 6), generator=dice)
    rewards, weights = 2 * torch.randn(2, 6, generator=dice), torch.rand(2, 6, generator=dice)
    seen = Transitions(now, actions, rewards, after, torch.arange(6).expand(2, 6) == 5)
    network, target, twin = (QNetwork(3, 4, seeds=s) for s in ((0, 1), (2, 3), (0, 1)))
    ahead, frozen = network(after), target(after)
    best = (ahead if double else frozen).argmax(-1, keepdim=True)
    goal = rewards + 0.9 * frozen.gather(-1, best)[..., 0] * ~seen.terminated
    q = twin(now)
    error = goal.detach() - q.gather(-1, actions[..., None])[..., 0]
    huber = torch.where(error.abs() < 1, error.square() / 2, error.abs() - 0.5)
    pushed = q.logsumexp(-1) - q.gather(-1, actions[..., None])[..., 0]
    ((weights * huber + 0.3 * pushed).mean(1)).sum().backward()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for part in network.parameters():
        part.grad = torch.ones_like(part)  # what an earlier step left behind
    knobs = {"gamma": 0.9, "double": double, "conservative": 0.3}
    errors, peak = vb.update(network, target, optimizer, seen, weights, **knobs)
    for part, own in zip(network.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(part, own - 0.1 * own.grad, atol=1e-6)
    assert torch.allclose(errors, error, atol=1e-6)
    assert torch.equal(peak, q.max(-1).values)


def test_every_knob_of_learn_offline_reaches_its_place(monkeypatch):
    _, logged = logged_answers(20)
    log, copies = [], []

    def see_update(network, target, optimizer, seen, weights, **given):
        log.append((optimizer.param_groups[0]["lr"], seen.actions.shape, given))
        return torch.ones(weights.shape), torch.ones(weights.shape)

    monkeypatch.setattr(vb, "update", see_update)
    monkeypatch.setattr(vb, "copy_weights", lambda *_: copies.append(len(log)))
    counts = {"updates": 10, "batch": 3, "copy_every": 4, "log_every": 5}
    knobs = {"gamma": 0.8, "double": True, "conservative": 0.2}
    run = learn_offline(logged, 8, seeds=(1, 2), lr=0.02, **counts, **knobs)
    assert log[0][:2] == (0.02, (2, 3))
    assert knobs.items() <= log[0][2].items()
    assert (copies, run.values.shape) == ([4, 8], (2, 2))


def test_greedy_play_stops_at_the_end_of_each_run():
    network, envs = QNetwork(1, 2, seeds=(0, 1)), []
    with torch.no_grad():
        network.biases[-1][:, :, 1] += 1000  # action 1, always

    def make():
        envs.append(Counter(end=2) if not envs else Counter(cut=3))
        return envs[-1]

    assert act_greedily(network, make, episodes=2, seed=7).tolist() == [[32, 32], [63, 63]]
    assert [env.seeds for env in envs] == [[7, 8], [7, 8]]


def test_silent_nonsense_is_refused():
    small = {"steps": 30, "batch": 4, "warmup": 4, "hidden": 4}
    for knob in (
        {"updates_per_step": math.nan},
        {"warmup": -1},
        {"decay": -1},
        {"log_every": 0},
        {"hidden": 0},
        {"beta": math.nan},
        {"tau": 2.0},
        {"epsilon": 0.1},
    ):
        with pytest.raises(ValueError, match=next(iter(knob))):
            learn_q(Counter, **small | knob)
    with pytest.raises(TypeError, match="flat Box"):
        learn_q(lambda: gymnasium.make("FrozenLake-v1"), **small)
    shared = Counter()
    with pytest.raises(ValueError, match="a new environment"):
        learn_q(lambda: shared, seeds=(0, 1), **small)
    with pytest.raises(FloatingPointError, match="TD errors"):
        learn_q(lambda: gymnasium.wrappers.TransformReward(Counter(), lambda _: math.nan), **small)
    with pytest.raises(ValueError, match="has 3 actions"):
        act_greedily(QNetwork(1, 3), Counter, episodes=1)
    with pytest.raises(ValueError, match="episodes"):
        act_greedily(QNetwork(1, 2), Counter, episodes=0)
    with pytest.raises(ValueError, match=r"value must be \(\.\.\., 1\)"):
        dueling_q(torch.ones(3), torch.ones(3, 3))
    for chances, beta in (([0.0, 1.0], 1.0), ([-0.5, 1.5], 0.5), ([0.5, 0.5], math.nan)):
        with pytest.raises(ValueError, match="chances must be"):
            importance_weights(torch.tensor(chances), 2, beta=beta)
    row = torch.zeros(1, 1), torch.tensor([0]), torch.tensor([0.0]), torch.zeros(1, 1)
    with pytest.raises(ValueError, match=r"observations must be \(2, 1\)"):
        ReplayBuffer(3, 1, runs=2).add(*row, torch.tensor([False]))
    _, logged = logged_answers(5)
    twice = Transitions(*(torch.cat([part, part]) for part in logged))
    for log, actions, knob, match in (
        (logged, 2, {}, r"outside 0\.\.1"),
        (twice, 8, {}, r"logged must be \(1"),
        (logged, 8, {"seeds": ()}, "seeds"),
        (logged, 8, {"updates": 0}, "updates"),
        (logged, 8, {"conservative": -1.0}, "conservative"),
    ):
        with pytest.raises(ValueError, match=match):
            learn_offline(log, actions, **{"updates": 2} | knob)
    x = torch.tensor([[2, 0, 1], [0, 1, 2]])
    with pytest.raises(ValueError, match="prompts must hold"):
        SortingEnv(3, 3, prompts=x + 1)
    for prompts, reward, match in (
        (x, lambda *_: torch.ones(2, 1), "reward must"),
        (x, lambda *_: torch.full((2,), math.nan), "reward must"),
        (x[:, :2], sorted_reward, "one shape"),
        (x[:1], sorted_reward, "one shape"),
    ):
        with pytest.raises(ValueError, match=match):
            logged_transitions(prompts, x, vocab_size=3, reward=reward)


def test_the_prompt_is_judged_as_it_was_asked():
    env = SortingEnv(3, 3, prompts=torch.tensor([[2, 0, 1]]), reward=lambda x, y: x[..., 0] + 0.5)
    env.reset(seed=0)
    assert [env.step(1)[1] for _ in range(3)] == [0, 0, 2.5]
    env.reset()
    with pytest.raises(ValueError, match="action must be"):
        env.step(1.7)
