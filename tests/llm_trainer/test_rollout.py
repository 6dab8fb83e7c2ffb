"""Our decoding loop against teacher forcing, plain expansion and transformers' generate."""

from dataclasses import replace

import pytest
import torch

from llm_trainer import evaluate as evaluate_module
from llm_trainer.batch import StepBatch
from llm_trainer.config import RunError
from llm_trainer.rollout import Prompts, Responses, pad_prompts, sample
from llm_trainer.scoring import score
from policy_gradients.logprobs import response_mask

WORDS = ["cat", "Paisley", "stone", "ab" * 2]


@pytest.fixture
def prompts(policy, spelling):
    """Four prompts of unequal length: three of them are padded on the left."""
    return pad_prompts([policy.prompt(spelling.question(spelling.entry(w))) for w in WORDS], policy)


def draw(policy, prompts, *, group=4, temperature=1.0, seed=0, time=12):
    generator = torch.Generator().manual_seed(seed)
    return sample(
        policy,
        prompts,
        group=group,
        max_new_tokens=time,
        temperature=temperature,
        generator=generator,
    )


def scored(policy, prompts, responses, *, group, temperature, shared=True):
    with torch.no_grad():
        scores = score(
            policy,
            prompts,
            responses.tokens,
            responses.mask,
            group=group,
            temperature=temperature,
            shared=shared,
            chunk=1024,
        )
    return scores.logp


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("shared", [True, False])
def test_the_samplers_log_probs_are_those_of_teacher_forcing(policy, prompts, temperature, shared):
    responses = draw(policy, prompts, temperature=temperature)
    assert len(set(responses.mask.sum(1).tolist())) > 1  # unequal lengths: rows left early
    logp = scored(policy, prompts, responses, group=4, temperature=temperature, shared=shared)
    assert (logp - responses.logp)[responses.mask].abs().max() <= 1e-4


def test_scoring_at_another_temperature_is_far_off(policy, prompts):
    responses = draw(policy, prompts, temperature=0.6)
    logp = scored(policy, prompts, responses, group=4, temperature=1.0)
    assert (logp - responses.logp)[responses.mask].abs().mean() > 0.05


def test_one_prefill_for_the_group_draws_what_one_per_member_would(policy, prompts):
    shared = draw(policy, prompts, group=3)
    copies = Prompts(
        prompts.tokens.repeat_interleave(3, 0), prompts.attention.repeat_interleave(3, 0)
    )
    plain = draw(policy, copies, group=1)
    assert torch.equal(shared.tokens, plain.tokens)
    assert (shared.logp - plain.logp).abs().max() <= 1e-5


def test_left_padding_changes_nothing(policy, prompts):
    """Each prompt alone, unpadded, gives the log-probabilities it has in the padded batch."""
    responses = draw(policy, prompts, group=1)
    for i in range(len(WORDS)):
        length = int(prompts.lengths[i])
        alone = Prompts(
            prompts.tokens[i : i + 1, -length:], torch.ones(1, length, dtype=torch.long)
        )
        row = replace(responses, tokens=responses.tokens[i : i + 1], mask=responses.mask[i : i + 1])
        logp = scored(policy, alone, row, group=1, temperature=1.0)
        assert (logp - responses.logp[i])[row.mask].abs().max() <= 1e-5


def test_forgetting_the_attention_mask_is_far_off(policy, prompts):
    responses = draw(policy, prompts, group=1)
    blind = Prompts(prompts.tokens, torch.ones_like(prompts.attention))
    logp = scored(policy, blind, responses, group=1, temperature=1.0)
    assert (logp - responses.logp)[responses.mask].abs().max() > 1e-2


def test_greedy_decoding_is_generates(policy, prompts):
    ours = sample(policy, prompts, group=1, max_new_tokens=12, temperature=1.0, generator=None)
    theirs = policy.model.generate(
        input_ids=prompts.tokens,
        attention_mask=prompts.attention,
        max_new_tokens=12,
        do_sample=False,
        eos_token_id=policy.end_id,
        pad_token_id=policy.pad_id,
    )[:, prompts.tokens.shape[1] :]
    assert torch.equal(ours.tokens, theirs[:, : ours.tokens.shape[1]])


def test_end_token_used_as_padding_does_not_move_the_mask(policy, prompts):
    """Qwen-style tokenizers pad with an end token; the mask ends at the first one only."""
    apart = draw(policy, prompts)
    policy.pad_id = policy.end_id
    same = draw(policy, prompts)
    assert torch.equal(apart.mask, same.mask)
    assert torch.equal(apart.logp, same.logp)
    ended = same.mask.sum(1) < same.mask.shape[1]
    assert ended.any()
    last = same.mask.sum(1) - 1
    assert (same.tokens[torch.arange(16), last] == policy.end_id)[ended].all()
    assert (same.tokens[~same.mask] == policy.end_id).all()


def test_weights_that_are_not_finite_are_named(policy, prompts):
    next(policy.model.parameters()).data[:] = float("nan")
    with pytest.raises(RunError, match="logits are NaN or infinite"):
        draw(policy, prompts)


def test_mask_of_the_smallest_example():
    five, seven, end = 5, 7, 2
    mask = response_mask(torch.tensor([[five, seven, end, end]]), eos_id=end)
    assert mask.tolist() == [[1, 1, 1, 0]]


def test_an_answer_without_its_end_token_is_not_exact(policy, spelling, monkeypatch):
    """Cut at the token limit with the right text so far: the full score, not exact."""
    right = policy.tokenizer("<answer>nus</answer>")["input_ids"]
    rows = [[*right, policy.end_id, policy.pad_id], [*right, right[-1], right[-1]]]
    for row, exact in zip(rows, (1.0, 0.0), strict=True):
        responses = Responses(
            torch.tensor([row]), torch.ones(1, len(row)), torch.zeros(1, len(row))
        )
        monkeypatch.setattr(evaluate_module, "sample", lambda *a, r=responses, **k: r)
        found = evaluate_module.evaluate(policy, spelling, ["sun"], max_new_tokens=len(row))
        assert (found.exact, found.correctness) == (exact, 1.0)


def test_a_marker_inside_an_answer_is_not_hidden_from_the_reward(policy, spelling):
    """Decoding with special tokens skipped would turn this into a right answer."""
    start = policy.tokenizer.convert_tokens_to_ids("<|im_start|>")
    ids = policy.tokenizer("<answer>nus</answer>")["input_ids"]
    text = policy.text([*ids[:2], start, *ids[2:], policy.end_id, policy.end_id, *ids])
    assert text == "<answer>n<|im_start|>us</answer>"
    assert spelling.score(text, spelling.entry("sun")).exact == 0


def test_sampling_follows_the_models_probabilities(policy, prompts):
    """First tokens of 4,000 draws against the softmax at the sampling temperature."""
    one = prompts[torch.tensor([1])]
    draws = draw(policy, one, group=4000, temperature=2.0, time=1)
    with torch.no_grad():
        logits = policy.forward(one.tokens, one.attention, one.positions, keep=1)[0, 0]
    expected = (logits / 2.0).softmax(-1)
    found = torch.bincount(draws.tokens[:, 0], minlength=len(expected)) / 4000
    error = (expected * (1 - expected) / 4000).sqrt()
    assert ((found - expected).abs() <= 5 * error + 1e-3).all()


def test_groups_stay_whole_when_a_batch_is_cut(policy, prompts):
    responses = draw(policy, prompts, group=2)
    batch = StepBatch(
        prompts=prompts,
        rewards=torch.arange(8.0).view(4, 2),
        correct=torch.zeros(4, 2),
        tokens=responses.tokens,
        mask=responses.mask,
        logp_sampler=responses.logp,
    )
    part = batch.take(torch.tensor([2, 0]))
    time = part.tokens.shape[1]
    assert part.rewards.tolist() == [[4.0, 5.0], [0.0, 1.0]]
    assert torch.equal(part.tokens, responses.tokens[[4, 5, 0, 1], :time])
    assert time == int(responses.mask[[4, 5, 0, 1]].sum(1).max())


@pytest.mark.filterwarnings("ignore:.*past_key_values")
def test_both_names_of_the_cache_argument_work(policy, prompts):
    """transformers renames past_key_values to cache; 5.24 still takes both."""
    assert "cache" in policy._arguments
    new = draw(policy, prompts)
    policy._arguments = {"past_key_values"}
    old = draw(policy, prompts)
    assert torch.equal(new.tokens, old.tokens)
    assert torch.equal(new.logp, old.logp)
