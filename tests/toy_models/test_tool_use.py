"""The asking agent: exact resets, tools that fail in time, masks, and gradients by enumeration."""

import sys
import time
from dataclasses import replace

import pytest
import torch

from policy_gradients.algorithms import ALGORITHMS, Batch
from toy_models.tool_use import (
    ANSWERS,
    CALLS,
    ERROR,
    LENGTH,
    MAX_CALLS,
    OBSERVATIONS,
    ORDERS,
    PROMPT,
    TOKENS,
    AskingPolicy,
    Sandbox,
    SortByAsking,
    all_trajectories,
    compare,
    exact_gradient,
    expected_estimate,
    expected_reward,
    rollout,
    survey,
    train,
)

LESS, MORE = TOKENS.index("<"), TOKENS.index(">")


@pytest.fixture
def policy():
    """Random weights, float64: no probability is special."""
    policy = AskingPolicy().double()
    with torch.no_grad():
        dice = torch.Generator().manual_seed(0)
        policy.weights.normal_(0, 0.7, generator=dice)
    return policy


def play(hidden, *actions, tool=compare):
    env = SortByAsking(tool)
    env.reset(hidden=hidden)
    return env, [env.step(action) for action in actions]


# --- the environment


def test_an_episode_as_the_agent_sees_it():
    env, steps = play((20, 5, 11), CALLS[0], CALLS[1], TOKENS.index("2<3<1"))
    assert [step.observation for step in steps] == [(MORE,), (MORE,), ()]
    assert [step.reward for step in steps] == [0.0, 0.0, 1.0]
    assert [step.done for step in steps] == [False, False, True]
    assert env.context == (PROMPT, CALLS[0], MORE, CALLS[1], MORE, TOKENS.index("2<3<1"))
    with pytest.raises(RuntimeError, match=r"call reset\(\) first"):
        env.step(CALLS[0])


@pytest.mark.parametrize("hidden", ORDERS)
def test_one_answer_of_six_is_right_and_three_calls_tell_which(hidden):
    rewards = [play(hidden, answer)[1][-1].reward for answer in ANSWERS]
    assert sorted(rewards) == [0, 0, 0, 0, 0, 1]
    seen = {order: play(order, *CALLS)[0].context for order in ORDERS}
    assert len(set(seen.values())) == 6


def test_reset_forgets_everything():
    env, _ = play((3, 1, 2), CALLS[0], CALLS[2])
    first = env.context
    env.reset(hidden=(1, 2, 3))
    env.step(CALLS[0])
    assert env.reset(hidden=(3, 1, 2)) == (PROMPT,)
    for action in (CALLS[0], CALLS[2]):
        env.step(action)
    assert env.context == first
    env.reset(seed=7)
    drawn = env.hidden
    env.reset(seed=7)
    assert env.hidden == drawn
    env.reset(seed=8)
    assert env.hidden != drawn


@pytest.mark.parametrize("action", [PROMPT, *OBSERVATIONS])
def test_writing_what_is_not_yours_ends_the_episode_unrewarded(action):
    assert play((1, 2, 3), action)[1][-1] == ((), 0.0, True)


def test_a_fourth_call_ends_the_episode():
    assert play((1, 2, 3), *[CALLS[0]] * (MAX_CALLS + 1))[1][-1] == ((), 0.0, True)


def test_impossible_resets_are_refused():
    env = SortByAsking()
    for wrong in ({}, {"hidden": (1, 2, 3), "seed": 0}):
        with pytest.raises(ValueError, match="either hidden"):
            env.reset(**wrong)
    for hidden in ((1, 1, 2), (1, 2), (1, "b", 2), (1, 2, float("nan"))):
        with pytest.raises(ValueError, match="three different numbers"):
            env.reset(hidden=hidden)


@pytest.mark.parametrize("action", [1.0, True, None, "x", -1, len(TOKENS)])
def test_what_is_no_token_is_refused_and_changes_nothing(action):
    env = SortByAsking()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="from 0 to 12"):
        env.step(action)
    assert (env.context, env.done) == ((PROMPT,), False)


# --- the tool in its sandbox


def test_the_sandboxed_tool_says_what_the_tool_says():
    box = Sandbox()
    assert [box.compare((4, 9, 6), i, j) for i, j in ((0, 1), (1, 2))] == ["<", ">"]
    assert box.run("print(input())", "x").output == "x\n"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("x = bytearray(10**10)", "MemoryError"),
        ("while True: print('x' * 1000)", "File too large"),
        ("import os; os.kill(os.getpid(), 11)", "ended by SIGSEGV"),
        ("import sys; sys.exit(3)", "exit status 3"),
        ("print('<')\0", "null bytes"),
        ("\ud800", "SyntaxError"),
    ],
)
def test_code_that_fails_says_why(code, reason):
    result = Sandbox(wall_seconds=60).run(code)
    assert reason in result.error
    assert len(result.output) <= 10_000


CLEARED = "import os\nfor name in os.listdir(): os.remove(name)\n"
REMOVED = "os.rmdir(os.getcwd())"


@pytest.mark.parametrize(
    "left", ["os.mkfifo(name)", "os.symlink('/dev/zero', name)", "os.mkdir(name)", ""]
)
def test_what_the_tool_leaves_in_its_folder_is_never_read(left):
    """A pipe without a writer, a file without an end, no folder at all: what it printed counts."""
    code = CLEARED + (f"for name in ('in', 'out', 'err'): {left}" if left else REMOVED)
    result = Sandbox(wall_seconds=60).run(code + "\nprint('<')")
    assert result[:2] == ("<\n", None)


def test_a_signal_without_a_name_is_a_number():
    assert Sandbox()._why(-40, []).startswith("ended by ")
    assert Sandbox()._why(-99, []).startswith("ended by signal 99 (")


def test_long_code_and_odd_data_reach_the_tool():
    code = "print(len(input()))" + " # x" * 100_000
    assert Sandbox(wall_seconds=60).run(code, "a\ud800").error is None


def test_a_busy_tool_ends_by_its_cpu_limit():
    result = Sandbox(wall_seconds=120, cpu_seconds=1).run("while True: pass")
    assert result.error.startswith("ended by SIG")  # KILL on Linux, XCPU elsewhere


def test_a_sleeping_tool_and_its_children_end_within_the_limit():
    box = Sandbox(wall_seconds=0.5)
    nap = "import time; time.sleep(300)"
    started = time.monotonic()
    assert box.run(nap).error == "no answer within 0.5 s"
    heir = f"import os\nif os.fork() == 0:\n    {nap}\n"
    box.run(heir)  # the parent ends at once; its child holds the output open
    assert time.monotonic() - started < 30  # half a second each, and a busy machine


def test_a_hanging_tool_is_an_observation_and_the_episode_goes_on():
    hangs = Sandbox(wall_seconds=0.5).tool("import time; time.sleep(300)")
    env, steps = play((1, 2, 3), CALLS[0], ANSWERS[0], tool=hangs)
    assert env.context == (PROMPT, CALLS[0], ERROR, ANSWERS[0])
    assert steps[0] == ((ERROR,), 0.0, False)
    assert steps[1].reward == 1.0
    assert "no answer within 0.5 s" in env.last_error
    env.reset(seed=0)
    assert env.last_error is None


def test_a_tool_that_leaves_is_an_error_too():
    env, _ = play((1, 2, 3), CALLS[0], tool=lambda hidden, i, j: sys.exit(2))
    assert (env.context[-1], env.last_error) == (ERROR, "SystemExit: 2")


def test_a_tool_that_babbles_is_an_error_too():
    env, _ = play((1, 2, 3), CALLS[0], tool=lambda hidden, i, j: "maybe")
    assert env.context[-1] == ERROR
    assert "maybe" in env.last_error


# --- masks and gradients


def test_the_mask_is_one_on_the_agents_tokens_only(policy):
    played = rollout(policy, ORDERS, 8, seed=3)
    assert played.tokens.shape == (48, LENGTH)
    for tokens, mask, observed in zip(played.tokens, played.mask, played.observed, strict=True):
        turns = int(mask.sum())
        assert mask.nonzero()[:, 0].tolist() == [1 + 2 * t for t in range(turns)]
        assert observed.nonzero()[:, 0].tolist() == [2 + 2 * t for t in range(turns - 1)]
        assert all(token in OBSERVATIONS for token in tokens[observed].tolist())
    assert len(set(played.mask.sum(1).tolist())) > 2  # of unequal length


def test_a_rollout_plays_the_environment(policy):
    played = rollout(policy, ORDERS, 4, seed=1)
    for i, (tokens, mask) in enumerate(zip(played.tokens, played.mask, strict=True)):
        env, steps = play(ORDERS[i // 4], *tokens[mask].tolist())
        assert env.context == tuple(tokens[: len(env.context)].tolist())
        assert steps[-1].reward == played.rewards.flatten()[i]
        assert steps[-1].done
    again = rollout(policy, ORDERS, 4, seed=1)
    assert torch.equal(played.tokens, again.tokens)


def test_the_tree_is_complete(policy):
    tree = all_trajectories()
    assert tree.rewards.shape == (6, 481)
    assert len({tuple(row) for row in tree.tokens[:481].tolist()}) == 481
    logp = torch.where(tree.mask, policy.log_probs(tree.tokens), 0.0).sum(1)
    assert torch.allclose(logp.exp().view(6, 481).sum(1), torch.ones(6).double(), atol=1e-12)


def test_sampled_rewards_average_to_j(policy):
    rewards = rollout(policy, ORDERS, 400, seed=0).rewards
    error = rewards.mean().item() - expected_reward(policy).item()
    assert abs(error) < 4 * rewards.std().item() / 2400**0.5


def test_the_exact_gradient_agrees_with_finite_differences(policy):
    gradient = exact_gradient(policy).view_as(policy.weights)
    for place in ((0, 0, 8), (0, 9, 1), (0, 4, 12), (0, 10, 4)):
        with torch.no_grad():
            policy.weights[place] += 1e-5
            above = expected_reward(policy)
            policy.weights[place] -= 2e-5
            below = expected_reward(policy)
            policy.weights[place] += 1e-5
        assert gradient[place].item() == pytest.approx(((above - below) / 2e-5).item(), abs=1e-9)
        assert gradient[place] != 0


@pytest.mark.parametrize("shared", [True, False])
def test_masked_the_mean_estimate_is_the_gradient_whatever_the_baseline(policy, shared):
    if not shared:
        policy.weights = torch.nn.Parameter(policy.weights.detach().repeat(2, 1, 1))
    exact = exact_gradient(policy)
    for baseline in (0.0, 0.3, torch.linspace(-1, 1, 6).double()):
        mean = expected_estimate(policy, baseline=baseline)
        assert torch.allclose(mean, exact, rtol=0, atol=1e-9)
        wrong = expected_estimate(policy, baseline=baseline, train_observations=True)
        assert (wrong - exact).norm() > 0.01 * exact.norm()


def test_trained_observations_touch_only_their_own_weights_where_nothing_is_shared(policy):
    policy.weights = torch.nn.Parameter(policy.weights.detach().repeat(2, 1, 1))
    wrong = expected_estimate(policy, train_observations=True).view_as(policy.weights)
    exact = exact_gradient(policy).view_as(policy.weights)
    assert torch.allclose(wrong[0], exact[0], rtol=0, atol=1e-12)
    assert exact[1].abs().max() == 0
    assert wrong[1].norm() > 0.01


def test_an_observations_score_has_mean_zero_only_where_the_policy_predicts_the_tool():
    """With weights R + 1: the extra term is large, and zero once the tool is predicted."""
    policy = AskingPolicy(shared=False).double()

    def extra() -> torch.Tensor:
        unmasked = expected_estimate(policy, baseline=-1.0, train_observations=True)
        return (unmasked - exact_gradient(policy)).norm()

    assert extra() > 0.1
    fit = torch.optim.LBFGS([policy.weights], lr=1, max_iter=200, tolerance_grad=1e-10)
    tree = all_trajectories()
    own = torch.where(tree.mask, policy.log_probs(tree.tokens), 0.0).sum(1).exp().detach()
    weight = own * (tree.rewards.flatten() + 1)

    def surprise() -> torch.Tensor:
        fit.zero_grad()
        logp = torch.where(tree.observed, policy.log_probs(tree.tokens), 0.0).sum(1)
        loss = -(weight * logp).sum()
        loss.backward()
        return loss

    fit.step(surprise)  # what those tokens are trained towards: predicting the tool
    assert extra() < 1e-3


def test_sampled_gradients_average_to_the_exact_one(policy):
    """RLOO through the table's loss: mask, advantage and average in one, within four errors."""
    row, draws = ALGORITHMS["rloo"], []
    for seed in range(40):
        played = rollout(policy, ORDERS, 8, seed=seed)
        logp = policy.log_probs(played.tokens)
        advantages = row.advantage(played.rewards.double()).reshape(-1, 1)
        loss = replace(row, kl="none", kl_coefficient=0.0).loss(
            Batch(logp, logp.detach(), advantages, played.mask, length=LENGTH)
        )
        draws.append(-torch.autograd.grad(loss, policy.weights)[0].flatten())
    draws = torch.stack(draws)
    exact = exact_gradient(policy)
    along = draws @ exact / exact.norm() ** 2
    assert abs(along.mean().item() - 1) < 4 * along.std().item() / 40**0.5


# --- learning


@pytest.fixture(scope="module")
def runs():
    """Three seeds, two of them with the bug as well: 200 steps each."""
    return {
        bug: [train(AskingPolicy(), "rloo", every=50, seed=s, train_observations=bug)
              for s in range(seeds)]
        for bug, seeds in ((False, 3), (True, 2))
    }  # fmt: skip


def test_it_learns_to_ask_before_it_answers(runs):
    start = survey(AskingPolicy())
    assert start.objective < 0.12
    for records in runs[False]:
        end = records[-1]
        assert end.step == 200
        assert end.objective > 0.9
        assert end.asked > 0.97
        assert end.calls > 2.5
        assert end.invented < 0.01


def test_training_on_observations_teaches_to_invent_them(runs):
    for right, wrong in zip(runs[False], runs[True], strict=False):
        half = [records[2] for records in (right, wrong)]
        assert half[1].invented > 2 * half[0].invented
        assert wrong[-1].objective < right[-1].objective


def test_a_row_with_a_critic_is_refused():
    with pytest.raises(ValueError, match="use rloo"):
        train(AskingPolicy(), "ppo", steps=1)
