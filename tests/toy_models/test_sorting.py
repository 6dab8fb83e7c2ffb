"""The rewards against slow, obvious versions, and the loophole they are known for."""

import itertools

import pytest
import torch

from toy_models.sorting import (
    SortingTask,
    all_sequences,
    inclusion_ordering_reward,
    is_sorted,
    position_match_reward,
    sorted_reward,
)

REWARDS = [inclusion_ordering_reward, position_match_reward, sorted_reward]


def slow_inclusion_ordering(prompt: list[int], response: list[int]) -> int:
    occurs = [number in response for number in prompt]
    in_order = [left <= right for left, right in itertools.pairwise(response)]
    return sum(occurs) + sum(in_order)


def slow_position_match(prompt: list[int], response: list[int]) -> int:
    return sum(a == b for a, b in zip(sorted(prompt), response, strict=False))


def slow_sorted(prompt: list[int], response: list[int]) -> int:
    return int(sorted(prompt) == response)


@pytest.mark.parametrize(
    ("fast", "slow"),
    [
        (inclusion_ordering_reward, slow_inclusion_ordering),
        (position_match_reward, slow_position_match),
        (sorted_reward, slow_sorted),
    ],
)
@pytest.mark.parametrize(("vocab_size", "length"), [(3, 3), (4, 2), (2, 4), (3, 1)])
def test_rewards_agree_with_a_loop_on_every_pair(fast, slow, vocab_size, length):
    rows = all_sequences(vocab_size, length)
    expected = [[slow(p, r) for r in rows.tolist()] for p in rows.tolist()]
    assert fast(rows[:, None], rows).tolist() == expected


def test_duplicates_count_and_one_repeated_number_still_scores():
    prompt = torch.tensor([1, 0, 2])
    assert inclusion_ordering_reward(prompt, torch.tensor([0, 0, 0])) == 3
    assert inclusion_ordering_reward(prompt, torch.tensor([0, 1, 2])) == 5
    assert inclusion_ordering_reward(prompt, torch.tensor([2, 1, 0])) == 3
    best = inclusion_ordering_reward(torch.tensor([1, 1, 2]), all_sequences(3, 3))
    assert all_sequences(3, 3)[best == 5].tolist() == [[0, 1, 2], [1, 1, 2], [1, 2, 2]]


@pytest.mark.parametrize("reward", [*REWARDS, is_sorted])
def test_leading_axes_broadcast(reward):
    task = SortingTask(3, 3)
    prompts, responses = task.distinct_prompts(), task.all_prompts()
    grid = reward(prompts[:, None], responses)
    assert grid.shape == (6, 27)
    assert reward(prompts[0], responses[5]).shape == ()
    assert reward(prompts[2], responses).equal(grid[2])
    assert reward(prompts[:, None, None], responses.view(3, 9, 3)).equal(grid.view(6, 3, 9))


def test_rewards_follow_the_default_dtype_and_is_sorted_is_bool():
    row = torch.tensor([0, 1, 2])
    for reward in REWARDS:
        assert reward(row, row).dtype == torch.float32
    assert is_sorted(row, row).dtype == torch.bool
    torch.set_default_dtype(torch.float64)
    try:
        assert all(reward(row, row).dtype == torch.float64 for reward in REWARDS)
    finally:
        torch.set_default_dtype(torch.float32)


def test_after_the_end_token_nothing_counts():
    prompt = torch.tensor([1, 0, 2])
    end = 3
    responses = torch.tensor(
        [
            [0, 1, 2, end, end],  # right
            [0, 1, end, 2, 2],  # too short; what follows the end is garbage
            [0, 1, 2, 2, end],  # too long
            [end, 0, 1, 2, end],  # empty
            [0, 1, 2, 0, 1],  # never ends
        ]
    )
    assert is_sorted(prompt, responses, eos_id=end).tolist() == [True] + [False] * 4
    points = inclusion_ordering_reward(prompt, responses, eos_id=end)
    assert points.tolist() == [5, 3, 6, 0, 6]
    assert position_match_reward(prompt, responses, eos_id=end).tolist() == [3, 2, 3, 0, 3]
    cut = torch.tensor([[0, 1, 2], [0, 1, end]])  # exactly L tokens, cut at the limit
    assert is_sorted(prompt, cut, eos_id=end).tolist() == [True, False]


def test_task_lists_its_prompts():
    task = SortingTask(vocab_size=4, length=3)
    assert task.all_prompts().shape == (64, 3)
    assert task.all_prompts().unique(dim=0).equal(task.all_prompts())  # all, in order, once
    assert task.distinct_prompts().shape == (24, 3)
    drawn = task.random_prompts(50, seed=1)
    assert drawn.equal(task.random_prompts(50, seed=1))
    assert not drawn.equal(task.random_prompts(50, seed=2))
    assert drawn.min() == 0
    assert drawn.max() == 3
    assert is_sorted(drawn, task.answers(drawn)).all()
    best = task.reward(drawn, task.answers(drawn))
    assert best.equal(torch.full((50,), float(task.max_reward)))


@pytest.mark.parametrize("reward", [*REWARDS, is_sorted])
def test_wrong_input_is_named(reward):
    tokens = torch.tensor([1, 0, 2])
    with pytest.raises(TypeError, match=r"responses must hold integer .*float32"):
        reward(tokens, tokens.float())
    with pytest.raises(TypeError, match="prompts must hold integer"):
        reward(tokens == 1, tokens)
    with pytest.raises(TypeError, match="prompts must be a tensor"):
        reward([1, 0, 2], tokens)
    with pytest.raises(ValueError, match=r"\(3,\) and responses \(2,\).*eos_id"):
        reward(tokens, tokens[:2])


def test_impossible_sizes_are_named():
    with pytest.raises(ValueError, match=r"SortingTask.length must be a positive.*got 0"):
        SortingTask(3, 0)
    with pytest.raises(ValueError, match="vocab_size must be a positive"):
        all_sequences(0, 3)
    with pytest.raises(ValueError, match=r"has 1000000000 sequences"):
        all_sequences(10, 9)
