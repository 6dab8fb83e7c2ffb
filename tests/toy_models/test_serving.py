"""Closed forms of a sampler, each against a count, an enumeration or a simulation."""

import itertools
import math

import pytest
import torch

from toy_models.serving import (
    Lengths,
    acceptance,
    batches_by_tokens,
    expected_tokens_per_pass,
    first_fit_decreasing,
    fixed_batches,
    packing_waste,
    padding_share,
    prefill_saved,
    prefill_tokens,
    slots_in_memory,
    speculative_law,
    speculative_pass,
    speculative_sample,
    work_saved,
)

# --- lengths


def test_the_expected_longest_of_three_by_enumeration():
    lengths = Lengths(median=3, sigma=0.9, limit=6)
    pmf = lengths.cdf.diff().tolist()
    assert sum(pmf) == pytest.approx(1)
    cases = itertools.product(range(1, 7), repeat=3)
    truth = sum(max(c) * math.prod(pmf[length - 1] for length in c) for c in cases)
    assert lengths.expected_max(3) == pytest.approx(truth, abs=1e-12)
    assert lengths.mean == pytest.approx(sum((i + 1) * p for i, p in enumerate(pmf)), abs=1e-12)


def test_sampled_lengths_follow_their_law():
    lengths, n = Lengths(), 20_000
    drawn = torch.tensor(lengths.sample(n, seed=0)).double()
    assert 1 <= drawn.min() <= drawn.max() == 2000
    assert abs(drawn.mean() - lengths.mean) < 4 * drawn.std() / math.sqrt(n)
    cut = (drawn == 2000).double().mean().item()
    assert abs(cut - lengths.share_cut) < 4 * math.sqrt(0.022 / n) + 1e-4
    longest = drawn.view(-1, 50).amax(1)
    assert abs(longest.mean() - lengths.expected_max(50)) < 4 * longest.std() / math.sqrt(n / 50)
    assert lengths.sample(5, seed=1) == lengths.sample(5, seed=1) != lengths.sample(5, seed=2)


def test_constant_lengths_are_constant():
    lengths = Lengths(median=7, sigma=0, limit=9)
    assert lengths.sample(5, seed=0) == [7] * 5
    assert lengths.mean == lengths.expected_max(100) == 7
    assert lengths.share_cut == 0


def test_impossible_lengths_are_refused():
    for wrong in ({"median": 0}, {"median": 3000}, {"sigma": -1}, {"limit": 1.5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Lengths(**wrong)


# --- prompts, batches, memory


def test_a_prompt_read_once():
    all_, once = (
        prefill_tokens(prompts=5, group=8, prompt_tokens=300, shared=s) for s in (False, True)
    )
    assert 1 - once / all_ == prefill_saved(group=8) == 7 / 8
    share = work_saved(group=8, prompt_tokens=300, answer_tokens=500)
    assert share == pytest.approx((all_ - once) / (all_ + 40 * 500))


def test_padding_by_hand():
    """(4, 1) and (2, 2): 12 positions, 9 tokens."""
    assert fixed_batches([4, 1, 2, 2], 2) == [[4, 1], [2, 2]]
    assert padding_share([[4, 1], [2, 2]]) == pytest.approx(3 / 12)
    assert batches_by_tokens([4, 1, 2, 2], budget=6) == [[4], [2, 2, 1]]
    assert padding_share([[4], [2, 2, 1]]) == pytest.approx(1 / 10)
    assert first_fit_decreasing([4, 1, 2, 2], capacity=5) == [[4, 1], [2, 2]]
    assert packing_waste([[4, 1], [2, 2]], capacity=5) == pytest.approx(1 / 10)


@pytest.mark.parametrize("seed", range(5))
def test_packing_keeps_every_answer_and_is_near_the_fewest_rows(seed):
    lengths = Lengths(median=30, sigma=0.7, limit=100).sample(7, seed=seed)
    rows = first_fit_decreasing(lengths, capacity=100)
    assert sorted(itertools.chain(*rows)) == sorted(lengths)
    assert max(map(sum, rows)) <= 100
    fewest = next(
        k for k in range(1, 8)
        if any(
            all(sum(x for x, r in zip(lengths, place, strict=True) if r == row) <= 100
                for row in range(k))
            for place in itertools.product(range(k), repeat=7)
        )
    )  # fmt: skip
    assert fewest <= len(rows) <= 11 / 9 * fewest + 6 / 9


def test_dynamic_batches_keep_the_budget_and_waste_less():
    lengths = Lengths().sample(200, seed=3)
    batches = batches_by_tokens(lengths, budget=8000)
    assert sorted(itertools.chain(*batches)) == sorted(lengths)
    assert all(len(batch) * max(batch) <= 8000 for batch in batches)
    assert padding_share(batches) < 0.3 * padding_share(fixed_batches(lengths, 8))


def test_what_does_not_fit_is_refused():
    for pack in (first_fit_decreasing, batches_by_tokens):
        with pytest.raises(ValueError, match="12 tokens, more than"):
            pack([3, 12], 10)
        with pytest.raises(ValueError, match="empty"):
            pack([], 10)


def test_slots_in_memory_by_hand():
    """2 · 28 layers · 8 heads · 128 · 2 bytes = 114,688 bytes a token; 10 GB, 2,048 tokens."""
    shape = {"layers": 28, "kv_heads": 8, "head_dim": 128}
    assert slots_in_memory(10e9, tokens=2048, **shape) == 42


# --- speculative decoding

P = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]], dtype=torch.float64)
Q = torch.tensor([[0.3, 0.3, 0.4], [0.5, 0.5, 0.0], [0.4, 0.3, 0.3]], dtype=torch.float64)


def target(prefix):
    return P[prefix[-1] if prefix else 0]


def draft(prefix):
    return Q[prefix[-1] if prefix else 2]


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_what_is_written_follows_the_large_model_exactly(k):
    law = speculative_law(target, draft, k, tokens=3)
    truth = {
        (a, b, c): float(P[0, a] * P[a, b] * P[b, c])
        for a, b, c in itertools.product(range(3), repeat=3)
    }
    assert law.keys() == truth.keys()
    for text, chance in truth.items():
        assert law[text] == pytest.approx(chance, abs=1e-12)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_tokens_per_pass_by_enumeration_and_by_simulation(k):
    """Models that do not look back keep every token with the same probability."""
    p, q = P[0], Q[0]
    alpha = acceptance(p, q)
    assert alpha == pytest.approx(0.3 + 0.3 + 0.1)
    formula = expected_tokens_per_pass(alpha, draft=k)
    assert formula == pytest.approx((1 - alpha ** (k + 1)) / (1 - alpha))
    law = speculative_pass(lambda prefix: p, lambda prefix: q, k)
    assert sum(law.values()) == pytest.approx(1)
    assert sum(len(text) * chance for text, chance in law.items()) == pytest.approx(formula)
    passes = speculative_sample(lambda prefix: p, lambda prefix: q, k, passes=400, seed=0)
    sizes = torch.tensor([len(one) for one in passes]).double()
    assert abs(sizes.mean() - formula) < 4 * sizes.std() / math.sqrt(400)
    first = torch.tensor([one[0] for one in passes])
    share = torch.bincount(first, minlength=3) / 400
    assert (share - p).abs().max() < 4 * math.sqrt(0.25 / 400)


def test_the_ends_of_the_formula():
    assert expected_tokens_per_pass(0.0, draft=4) == 1
    assert expected_tokens_per_pass(1.0, draft=4) == 5
    with pytest.raises(ValueError, match="probability"):
        expected_tokens_per_pass(1.2, draft=4)
