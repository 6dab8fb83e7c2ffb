"""Four remedies for a reward that is hardly ever met, each with the control that lacks it."""

import pytest
import torch

from toy_models import sparse_rewards
from toy_models.sorting import all_sequences, position_match_reward, sorted_reward

REMEDIES = {
    "curriculum": lambda: {"lengths": [1 + min(5, k // 30) for k in range(200)]},
    "hindsight": lambda: {"hindsight": True},
    "novelty": lambda: {"bonus": sparse_rewards.CountBonus(0.3, vocab_size=5, length=6)},
    "partial": lambda: {"reward": position_match_reward},
}


def run(name, seed):
    knobs = REMEDIES.get(name, dict)()
    return sparse_rewards.seek(sparse_rewards.Sorter(5), length=6, updates=200, seed=seed, **knobs)


def test_the_remedies_are_certain_and_early_where_the_bare_reward_waits_for_luck():
    rates = {
        name: [run(name, seed) for seed in range(3)]
        for name in ("bare", "curriculum", "hindsight", "novelty", "partial")
    }
    for name in ("curriculum", "hindsight", "novelty"):
        assert min(rate[-1] for rate in rates[name]) > 0.9
    # partial credit is fast, but a run may stop where one number is never written: (4/5)^6 = .26
    assert all(rate[-1] > 0.9 or abs(rate[-1] - 0.8**6) < 0.1 for rate in rates["partial"])
    assert min(rate[80] for rate in rates["hindsight"]) > 0.8
    assert max(rate[80] for rate in rates["bare"]) < 0.2


def test_hindsight_of_unordered_answers_teaches_nonsense(monkeypatch):
    """The classic bug: every answer is relabelled, also one that answers no prompt."""
    sound = sparse_rewards.relabel

    def careless(responses, *, seed):
        prompts, keep = sound(responses, seed=seed)
        return prompts, torch.ones_like(keep)

    def alone():  # without the task's own reward
        sorter = sparse_rewards.Sorter(4)
        knobs = {"length": 4, "updates": 100, "seed": 0, "hindsight": True}
        return sparse_rewards.seek(sorter, reward=lambda x, y: torch.zeros(len(x)), **knobs)[-1]

    healthy = alone()
    monkeypatch.setattr(sparse_rewards, "relabel", careless)
    assert alone() < 0.3 < 0.9 < healthy


def test_seek_is_reproducible_and_names_a_wrong_curriculum():
    assert run("hindsight", 3)[:20] == run("hindsight", 3)[:20]
    with pytest.raises(ValueError, match="one entry per update"):
        sparse_rewards.seek(sparse_rewards.Sorter(3), length=3, updates=5, seed=0, lengths=[1, 2])


def test_relabelled_prompts_are_rearrangements_and_kept_ones_are_answered():
    responses = torch.randint(0, 4, (300, 4), generator=torch.Generator().manual_seed(0))
    prompts, keep = sparse_rewards.relabel(responses, seed=1)
    assert torch.equal(prompts.sort(-1).values, responses.sort(-1).values)
    assert torch.equal(keep, sorted_reward(prompts, responses) == 1)
    assert 0 < keep.sum() < 300
    assert not torch.equal(prompts[keep], responses[keep])  # a prompt is no answer


def test_the_sorter_ends_on_the_exact_pass_rate():
    sorter = sparse_rewards.Sorter(3)
    sorter.weight.data = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
    prompts = all_sequences(3, 3)
    dice = torch.Generator().manual_seed(1)
    drawn = sorter.sample(prompts.repeat(400, 1), generator=dice)
    share = sorted_reward(prompts.repeat(400, 1), drawn).mean()
    assert abs(share - sorter.pass_rate(prompts)) < 4 * (0.25 / 10_800) ** 0.5


def test_count_bonus_fades():
    bonus = sparse_rewards.CountBonus(1.0, vocab_size=3, length=2)
    assert bonus(torch.tensor([[0, 1], [2, 2]])).tolist() == [1.0, 1.0]
    assert bonus(torch.tensor([[0, 1]]))[0] == pytest.approx(2**-0.5)
    every = sparse_rewards.CountBonus(0.3, vocab_size=3, length=3)(all_sequences(3, 3))
    assert torch.allclose(every, torch.tensor(0.3))  # no two are counted as one


def test_silent_nonsense_is_refused():
    bonus = sparse_rewards.CountBonus(1.0, vocab_size=3, length=2)
    for tokens, match in (([[0, 5]], "tokens in"), ([[1, -1]], "tokens in"), ([[1]], "must be")):
        with pytest.raises(ValueError, match=match):
            bonus(torch.tensor(tokens))
    knobs = {"length": 2, "updates": 1, "seed": 0}
    for wrong, match in (
        ({"group": 1}, "group must"),
        ({"prompts": 0}, "prompts must"),
        ({"lengths": [0]}, "lengths must"),
        ({"bonus": lambda y: torch.zeros(16, 1)}, "bonus must"),
        ({"reward": lambda x, y: torch.full((len(x),), torch.nan)}, "finite"),
    ):
        with pytest.raises(ValueError, match=match):
            sparse_rewards.seek(sparse_rewards.Sorter(3), **knobs, **wrong)


def test_one_update_is_adam_on_the_centred_reward():
    """Each prompt's group is centred alone; log-probabilities are those of whole answers."""
    seen, sorter, other = [], sparse_rewards.Sorter(3), sparse_rewards.Sorter(3)

    def reward(prompts, responses):
        seen.append((prompts, responses, position_match_reward(prompts, responses)))
        return seen[-1][2]

    knobs = {"length": 3, "updates": 1, "prompts": 5, "group": 4, "learning_rate": 0.3}
    sparse_rewards.seek(sorter, seed=2, reward=reward, **knobs)
    x, y, points = seen[0]
    assert (x.view(5, 4, 3) == x.view(5, 4, 3)[:, :1]).all()
    advantage = points.view(5, 4) - points.view(5, 4).mean(1, keepdim=True)
    optimizer = torch.optim.Adam(other.parameters(), lr=0.3)
    (-(advantage.flatten() * other.log_probs(x, y).sum(1)).mean()).backward()
    optimizer.step()
    assert torch.allclose(sorter.weight, other.weight)
    assert torch.allclose(sorter.bias, other.bias)
