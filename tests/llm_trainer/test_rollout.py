"""Our decoding loop against teacher forcing, plain expansion and transformers' generate."""

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest
import torch
from tokenizers import processors
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from llm_trainer import evaluate as evaluate_module
from llm_trainer import rollout as rollout_module
from llm_trainer.batch import StepBatch
from llm_trainer.config import RunError
from llm_trainer.models import load_policy
from llm_trainer.rollout import (
    OwnSampler,
    Prompts,
    Responses,
    nucleus,
    pad_prompts,
    sample,
    worker_seed,
)
from llm_trainer.scoring import score
from llm_trainer.task import WordStream
from llm_trainer.train import collect
from policy_gradients.logprobs import response_mask

WORDS = ["cat", "Paisley", "stone", "ab" * 2]


@pytest.fixture
def prompts(policy, spelling):
    """Four prompts of unequal length: three of them are padded on the left."""
    return pad_prompts([policy.prompt(spelling.question(spelling.entry(w))) for w in WORDS], policy)


def draw(policy, prompts, *, group=4, temperature=1.0, seed=0, time=12, top_p=1.0):
    generator = torch.Generator().manual_seed(seed)
    return sample(
        policy,
        prompts,
        group=group,
        max_new_tokens=time,
        temperature=temperature,
        generator=generator,
        top_p=top_p,
    )


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The loop looks for ended responses only now and then, and gives each a row of its own."""
    real = rollout_module.decode
    monkeypatch.setattr(
        rollout_module, "decode", lambda *args, merge, **kwargs: real(*args, merge=False, **kwargs)
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
        monkeypatch.setattr(rollout_module, "sample", lambda *a, r=responses, **k: r)
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


# ------------------------------------------------------------------ rows that part and leave


def test_responses_that_are_alike_share_a_row(policy, prompts, monkeypatch):
    """The network sees each distinct beginning once, and nothing that has ended."""
    seen, real = [], policy.forward

    def forward(tokens, *args, **kwargs):
        seen.append(len(tokens))
        return real(tokens, *args, **kwargs)

    monkeypatch.setattr(policy, "forward", forward)
    responses = draw(policy, prompts, group=8)
    tokens, mask = responses.tokens, responses.mask
    prompt = torch.arange(4).repeat_interleave(8)
    for t in range(1, tokens.shape[1]):
        alive = mask[:, t]  # those that had not ended with token t − 1
        beginnings = torch.cat([prompt[alive, None], tokens[alive, :t]], 1)
        assert seen[t] == len(beginnings.unique(dim=0))
    assert seen[1] < 32


@pytest.mark.parametrize("time", [1, 5, 12, 20])
def test_a_gpus_loop_gives_what_the_learner_scores(policy, prompts, as_on_a_gpu, time):
    """Responses that ended are kept for a while; what they go on writing must not remain."""
    responses = draw(policy, prompts, time=time)
    logp = scored(policy, prompts, responses, group=4, temperature=1.0)
    assert (logp - responses.logp)[responses.mask].abs().max() <= 1e-4
    assert (responses.tokens[~responses.mask] == policy.pad_id).all()
    assert (responses.logp[~responses.mask] == 0).all()


def test_a_gpus_loop_draws_the_same_while_nothing_ends(policy, prompts, request):
    policy.end_id = -1
    merged = draw(policy, prompts)
    request.getfixturevalue("as_on_a_gpu")
    apart = draw(policy, prompts)
    assert torch.equal(merged.tokens, apart.tokens)
    assert (merged.logp - apart.logp).abs().max() <= 1e-5


def test_a_gpus_loop_stops_soon_after_the_last_response(policy, prompts, as_on_a_gpu, monkeypatch):
    calls, real = [], policy.forward
    monkeypatch.setattr(policy, "forward", lambda *a, **k: (calls.append(1), real(*a, **k))[1])
    longest = int(draw(policy, prompts, time=200).mask.sum(1).max())
    assert longest <= len(calls) <= longest + rollout_module.LOOK_EVERY


def test_greedy_decoding_on_a_gpu_is_the_same(policy, prompts, request):
    greedy = partial(
        sample, policy, prompts, group=2, max_new_tokens=12, temperature=1.0, generator=None
    )
    merged = greedy()
    request.getfixturevalue("as_on_a_gpu")
    apart = greedy()
    width = merged.tokens.shape[1]
    assert torch.equal(merged.tokens, apart.tokens[:, :width])
    assert not apart.mask[:, width:].any()


def test_draws_are_those_of_multinomial():
    log_softmax = torch.randn(50, 30).log_softmax(-1)
    ours, theirs = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    for _ in range(20):
        drawn = rollout_module.draw(log_softmax, ours)
        expected = torch.multinomial(log_softmax.exp(), 1, generator=theirs).squeeze(1)
        assert torch.equal(drawn, expected)


def test_bfloat16_copies_of_the_weights_are_made_once_per_call(make_config, spelling):
    """Not once per token: that would read all weights twice more for every token."""
    policy = load_policy(make_config(dtype="bfloat16"))
    ids = policy.prompt(spelling.question(spelling.entry("cat")))
    weights = {w.data_ptr(): name for name, w in policy.model.named_parameters()}
    casts = Counter()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten._to_copy.default and kwargs["dtype"] == torch.bfloat16:
                casts[weights.get(args[0].data_ptr())] += 1
            return function(*args, **(kwargs or {}))

    with Watch():
        responses = draw(policy, pad_prompts([ids], policy), time=4)
    del casts[None]  # activations
    assert responses.tokens.shape[1] > 2
    assert len(casts) == 2 * 7 + 1  # the matrices of two layers, and the head
    assert set(casts.values()) == {1}


# ------------------------------------------------------------------ top-p


def test_a_nucleus_is_the_fewest_likeliest_tokens_that_reach_top_p():
    logp = torch.tensor([[0.1, 0.5, 0.1, 0.3], [0.25, 0.25, 0.25, 0.25]]).log()
    cut = nucleus(logp, 0.7).exp()
    assert torch.allclose(cut[0], torch.tensor([0.0, 0.625, 0.0, 0.375]))
    assert (cut[1] > 0).sum() == 3
    assert torch.allclose(cut.sum(-1), torch.ones(2))
    assert torch.allclose(nucleus(logp, 1e-9).exp().amax(-1), torch.ones(2))


def test_top_p_draws_from_the_nucleus_and_says_so(policy, prompts):
    responses = draw(policy, prompts, group=64, top_p=0.6, temperature=1.5, time=1)
    with torch.no_grad():
        logits = policy.forward(prompts.tokens, prompts.attention, prompts.positions, keep=1)[:, 0]
    cut = nucleus(F.log_softmax(logits / 1.5, -1), 0.6).repeat_interleave(64, 0)
    assert (cut.gather(1, responses.tokens) > -torch.inf).all()
    assert torch.allclose(cut.gather(1, responses.tokens), responses.logp, atol=1e-5)


def test_top_p_on_the_samplers_side_only_is_far_off(policy, prompts):
    """Every ratio π_learner/π_sampler is then below 1, and over a response they multiply."""
    responses = draw(policy, prompts, top_p=0.8, temperature=1.5)
    logp = scored(policy, prompts, responses, group=4, temperature=1.5)
    gap = (logp - responses.logp)[responses.mask]
    assert (gap <= 1e-4).all()
    assert gap.mean() < -0.05


# ------------------------------------------------------------------ other silent bugs


def test_positions_that_count_the_padding_are_far_off(policy, prompts, monkeypatch):
    responses = draw(policy, prompts)
    counted = property(lambda self: torch.arange(self.tokens.shape[1]).expand_as(self.tokens))
    monkeypatch.setattr(Prompts, "positions", counted)
    logp = scored(policy, prompts, responses, group=4, temperature=1.0)
    assert (logp - responses.logp)[responses.mask].abs().mean() > 0.01


def test_the_sampled_tokens_are_trained_on_not_their_text_tokenised_again(make_learner, spelling):
    """`<answer>` spelled with single characters reads the same and is another response."""
    learner = make_learner()
    policy, config = learner.policy, learner.config
    count = config.prompts * config.group
    spelled = policy.tokenizer.convert_tokens_to_ids(list("<answer>"))
    assert policy.tokenizer("<answer>")["input_ids"] != spelled

    class Spells(OwnSampler):
        def sample(self, prompts, **settings):
            rewarded = policy.tokenizer("<answer>a</answer>")["input_ids"]
            width = len(spelled) + 1
            rows = [(spelled if i % 2 else rewarded) + [policy.end_id] for i in range(count)]
            rows = [row + [policy.pad_id] * (width - len(row)) for row in rows]
            tokens = torch.tensor(rows)
            mask = response_mask(tokens, eos_id=policy.end_id)
            self.given.append(tokens)
            return Responses(tokens, mask, torch.zeros(tokens.shape))

    sampler = Spells(policy)
    object.__setattr__(sampler, "given", [])
    batch = collect(sampler, spelling, WordStream(spelling.train, 0), learner, torch.Generator())[0]
    assert torch.equal(batch.tokens, sampler.given[0])


def test_a_prompt_begins_once(policy, spelling):
    """A tokenizer that adds its first token by itself, under a template that writes it as well."""
    start = policy.tokenizer.convert_tokens_to_ids("<|im_start|>")
    policy.tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", start)]
    )
    assert policy.tokenizer("x")["input_ids"][0] == start
    ids = policy.prompt(spelling.question(spelling.entry("cat")))
    assert ids[0] == start
    assert ids[1] != start


def test_every_worker_has_a_seed_of_its_own(policy, prompts):
    """With one seed for all, eight processes would draw the same samples."""
    assert worker_seed(7, 0) == 7  # one process is what it always was
    seeds = [worker_seed(seed, rank) for seed in range(50) for rank in range(8)]
    assert len({*seeds}) == len(seeds)  # seed + rank would collide: (0, 1) and (1, 0)
    assert all(0 <= seed < 2**63 for seed in seeds)
    first, second = (draw(policy, prompts, seed=worker_seed(0, rank)) for rank in (0, 1))
    assert first.tokens.shape != second.tokens.shape or not torch.equal(first.tokens, second.tokens)
