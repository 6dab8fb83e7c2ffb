"""Scoring in chunks against the plain form: all logits, log_softmax, gather."""

from dataclasses import replace

import pytest
import torch
from einops import repeat
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    PhiConfig,
    Qwen3Config,
)

from llm_trainer.models import Policy
from llm_trainer.rollout import Prompts
from llm_trainer.scoring import HeadLogProbs, score
from llm_trainer.sharded import ScoringModel
from policy_gradients.logprobs import entropy, token_log_probs

VOCABULARY, PAD, GROUP = 50, 0, 2
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "initializer_range": 0.3,  # logits of order one, so that a cap or a scale shows
}
PLAIN = {
    "tied head": (Qwen3Config, {"head_dim": 12, "tie_word_embeddings": True}),
    "untied head": (LlamaConfig, {"tie_word_embeddings": False}),
    "head with bias": (PhiConfig, {"num_key_value_heads": 2}),
    "older names": (GPT2Config, {"n_positions": 64, "n_embd": 24, "n_layer": 2, "n_head": 2}),
    "cap not set": (Gemma3TextConfig, {"head_dim": 12}),
}
SPECIAL = {
    "capped": (Gemma2Config, {"head_dim": 12, "final_logit_softcapping": 3.0}),
    "weakly capped": (Gemma2Config, {"head_dim": 12, "final_logit_softcapping": 300.0}),
    "divided": (GraniteConfig, {"logits_scaling": 4.0}),
    "multiplied": (CohereConfig, {"logit_scale": 0.25}),
}


def make_policy(kind, dtype=torch.float32, seed=0, **more):
    config, own = (PLAIN | SPECIAL)[kind]
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config(**SIZES | own | more)).float().eval()
    return Policy(model, None, 1, PAD, torch.device("cpu"), dtype)


@pytest.fixture
def given():
    """Three prompts of unequal length with two responses each: full, short, and one empty."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(2, VOCABULARY, (3, 5), generator=generator)
    attention = torch.tensor([[0, 0, 1, 1, 1], [1] * 5, [0, 1, 1, 1, 1]])
    tokens = torch.randint(2, VOCABULARY, (6, 7), generator=generator)
    mask = torch.arange(7) < torch.tensor([7, 3, 0, 1, 6, 2])[:, None]
    return Prompts(prompts * attention, attention), tokens * mask, mask


def plain(policy, prompts, tokens, mask, temperature):
    """(log-probabilities, entropies) of the model's own logits, and 0 on padding."""
    whole = torch.cat([repeat(prompts.tokens, "p t -> (p g) t", g=GROUP), tokens], 1)
    attention = torch.cat([repeat(prompts.attention, "p t -> (p g) t", g=GROUP), mask.long()], 1)
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    logits = policy.forward(whole, attention, positions)[:, -tokens.shape[1] - 1 : -1]
    logp = token_log_probs(logits, tokens, temperature=temperature)
    return logp * mask, entropy(logits, temperature=temperature) * mask


def scored(policy, given, *, chunk=1024, shared=False, temperature=1.0, **also):
    options = {"group": GROUP, "temperature": temperature, "shared": shared, "chunk": chunk}
    return score(policy, *given, **options, **also)


def gradients(policy, logp, h=None):
    """Flat gradient of all parameters for fixed, unequal weights of the tokens."""
    policy.model.zero_grad()
    weight = torch.linspace(-1, 2, logp.numel()).view_as(logp)
    loss = (weight * logp).sum() + (0 if h is None else (weight.flip(0) * h).sum())
    loss.backward()
    return torch.cat(
        [p.grad.flatten() for p in policy.model.parameters() if p.requires_grad]
    ).clone()


def apart(a, b):
    return ((a - b).norm() / b.norm()).item()


def same(a, b):
    return torch.allclose(a, b, rtol=1e-6, atol=1e-6)


# ------------------------------------------------------------------ the autograd function


@pytest.mark.parametrize("with_entropy", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("chunk", "temperature"), [(1, 1.0), (2, 0.7), (5, 1.6), (9, 0.7)])
def test_the_gradient_is_that_of_finite_differences(chunk, temperature, with_bias, with_entropy):
    torch.manual_seed(0)
    states, weight, bias = (torch.randn(*shape).double() for shape in [(5, 3), (7, 3), (7,)])
    inputs = [x.requires_grad_() for x in (states, weight, bias)[: 2 + with_bias]]
    tokens = torch.tensor([0, 6, 3, 3, 2])

    def values(states, weight, bias=None):
        result = HeadLogProbs.apply(states, weight, bias, tokens, temperature, chunk, with_entropy)
        return result if with_entropy else result[0]

    assert torch.autograd.gradcheck(values, inputs)
    logits = states @ weight.T + (bias if with_bias else 0)
    logp = token_log_probs(logits[None], tokens[None], temperature=temperature)[0]
    h = entropy(logits[None], temperature=temperature)[0]
    found = values(*inputs)
    torch.testing.assert_close(found, (logp, h) if with_entropy else logp, rtol=0, atol=1e-12)


def test_large_logits_neither_overflow_nor_vanish():
    states = torch.tensor([[200.0], [-200.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [0.0], [-1.0]], requires_grad=True)
    logp, h = HeadLogProbs.apply(states, weight, None, torch.tensor([1, 1]), 1.0, 1024, True)
    assert logp.tolist() == [-200.0, -200.0]
    assert h.tolist() == [0.0, 0.0]
    (logp + h).sum().backward()
    assert states.grad.flatten().tolist() == [-1.0, 1.0]
    assert torch.isfinite(weight.grad).all()


def test_a_second_derivative_is_refused():
    states = torch.randn(2, 3, requires_grad=True)
    weight = torch.randn(4, 3, requires_grad=True)
    logp = HeadLogProbs.apply(states, weight, None, torch.tensor([0, 1]), 1.0, 2, False)[0]
    with pytest.raises(RuntimeError, match="only be differentiated once"):
        torch.autograd.grad(logp.sum(), states, create_graph=True)


# ------------------------------------------------------------------ the whole


@pytest.mark.parametrize("kind", [*PLAIN, *SPECIAL])
def test_only_a_linear_head_counts_as_plain(kind):
    assert make_policy(kind).head_is_plain == (kind in PLAIN)


@pytest.mark.parametrize("chunk", [1, 7, 1024])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", [*PLAIN, *SPECIAL])
def test_values_and_all_gradients_are_those_of_the_plain_form(kind, shared, chunk, given):
    policy = make_policy(kind)
    logp, h = plain(policy, *given, 0.7)
    expected = gradients(policy, logp, h)
    result = scored(policy, given, chunk=chunk, shared=shared, temperature=0.7, entropy=True)
    assert same(result.logp, logp)
    assert same(result.entropy, h)
    assert apart(gradients(policy, result.logp, result.entropy), expected) <= 1e-5


@pytest.mark.parametrize("kind", ["tied head", "capped"])
def test_without_entropy_the_log_probs_and_gradient_are_the_same(kind, given):
    policy = make_policy(kind)
    logp, _ = plain(policy, *given, 1.0)
    expected = gradients(policy, logp)
    result = scored(policy, given, chunk=4)
    assert result.entropy is None
    assert result.states is None
    assert same(result.logp, logp)
    assert apart(gradients(policy, result.logp), expected) <= 1e-5


@pytest.mark.parametrize("shared", [True, False])
def test_alike_responses_to_one_prompt_run_once_and_all_count(shared, given):
    policy = make_policy("tied head")
    prompts, tokens, mask = given
    # The first prompt's two are alike, padding apart; the last prompt says the same once more.
    tokens, mask = (x[torch.tensor([0, 0, 2, 3, 4, 0])].clone() for x in (tokens, mask))
    mask[:2] = mask[5] = torch.arange(7) < 5
    tokens[1, 5:] = tokens[0, 5:].flip(0) + 1
    rows = []  # of each pass through the network
    policy.body.register_forward_pre_hook(
        lambda module, args, given: rows.append(len(given["input_ids"])), with_kwargs=True
    )
    result = scored(policy, (prompts, tokens, mask), shared=shared, entropy=True, states=True)
    assert max(rows) == 5
    logp, h = plain(policy, prompts, tokens, mask, 1.0)
    assert same(result.logp, logp)
    assert same(result.entropy, h)
    assert result.states.shape[:2] == tokens.shape
    assert torch.equal(result.states[0], result.states[1])
    expected = gradients(policy, logp, h)
    assert apart(gradients(policy, result.logp, result.entropy), expected) <= 1e-5


@pytest.mark.parametrize("shared", [True, False])
def test_responses_of_one_token(shared, given):
    policy = make_policy("tied head")
    prompts, tokens, mask = given
    short = prompts, tokens[:, :1], mask[:, :1]
    logp, _ = plain(policy, *short, 1.0)
    assert same(scored(policy, short, shared=shared).logp, logp)


@pytest.mark.parametrize("kind", ["tied head", "capped"])
def test_nothing_to_score_is_zero_with_a_zero_gradient(kind, given):
    policy = make_policy(kind)
    prompts, tokens, mask = given
    result = scored(policy, (prompts, tokens, mask & False), entropy=True)
    assert result.logp.shape == mask.shape
    assert not result.logp.any()
    assert not gradients(policy, result.logp, result.entropy).any()


def test_padding_is_felt_by_nothing(given):
    policy = make_policy("tied head")
    prompts, tokens, mask = given
    clean = scored(policy, given).logp
    expected = gradients(policy, clean)
    dirty = scored(policy, (prompts, torch.where(mask, tokens, 17), mask)).logp
    assert torch.equal(clean, dirty)
    assert not dirty[~mask].any()
    assert apart(gradients(policy, dirty), expected) <= 1e-6


@pytest.mark.parametrize("shared", [True, False])
def test_states_are_what_the_head_reads(shared, given):
    policy = make_policy("head with bias")
    _, tokens, mask = given
    result = scored(policy, given, shared=shared, states=True)
    logits = result.states @ policy.head_weight.T + policy.head_bias
    assert same(token_log_probs(logits, tokens)[mask], result.logp[mask])


def test_as_one_module_it_gives_the_same_and_holds_the_networks_weights(given):
    policy = make_policy("tied head")
    module = ScoringModel(policy)
    options = {"group": GROUP, "temperature": 0.7, "shared": True, "chunk": 4}
    logp, h, states = module(*given, **options)
    assert torch.equal(logp, scored(policy, given, temperature=0.7, shared=True, chunk=4).logp)
    assert h is states is None
    assert [id(p) for p in module.parameters()] == [id(p) for p in policy.model.parameters()]


# ------------------------------------------------------------------ what it costs


class Largest(TorchDispatchMode):
    """Elements of the largest tensor that any operation returned, in forward and backward."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


@pytest.mark.parametrize("kind", ["untied head", "capped"])
@pytest.mark.parametrize("with_entropy", [False, True])
def test_no_more_than_one_chunk_of_logits_is_ever_made(kind, with_entropy, given):
    # 19 tokens: 4 at a time are 4,000 logits, more than any weight has; all of them are 19,000.
    policy = make_policy(kind, vocab_size=1000, hidden_size=2, head_dim=2)
    assert policy.head_is_plain == (kind in PLAIN)
    with Largest() as found:
        result = scored(policy, given, chunk=4, entropy=with_entropy)
        (result.logp + result.entropy if with_entropy else result.logp).sum().backward()
    assert found.elements == 4 * 1000
    with Largest() as naive:
        plain(policy, *given, 1.0)[0].sum().backward()
    assert naive.elements >= 6 * 7 * 1000


# ------------------------------------------------------------------ precision and adapters


@pytest.mark.parametrize("kind", ["tied head", "head with bias", "capped"])
def test_bfloat16_arithmetic_keeps_float32_sums_and_gradients(kind, given):
    policy = make_policy(kind, dtype=torch.bfloat16)
    exact, h = plain(replace(policy, dtype=torch.float32), *given, 1.0)
    expected = gradients(policy, exact, h)
    rounded = apart(gradients(policy, *plain(policy, *given, 1.0)), expected)
    result = scored(policy, given, chunk=4, entropy=True)
    assert result.logp.dtype == result.entropy.dtype == torch.float32
    assert (result.logp - exact).abs().max() <= 0.1
    found = gradients(policy, result.logp, result.entropy)
    assert found.dtype == torch.float32
    assert apart(found, expected) <= 1.5 * rounded  # as near to float32 as the plain form is
    assert 0 < rounded <= 0.05


def test_bfloat16_does_not_add_up_in_bfloat16():
    """300 chunks that each add the same to the weight's gradient: bfloat16 stops at 256."""
    states = torch.ones(300, 1, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, requires_grad=True)
    logp, _ = HeadLogProbs.apply(
        states, weight, None, torch.zeros(300, dtype=torch.long), 1.0, 1, False
    )
    (2 * logp).sum().backward()
    assert weight.grad.flatten().tolist() == [300.0, -300.0]


def test_frozen_weights_get_no_gradient_and_change_none(given):
    policy = make_policy("untied head")
    expected = gradients(policy, scored(policy, given).logp)
    policy.model.lm_head.weight.requires_grad_(False)
    found = gradients(policy, scored(policy, given).logp)
    assert policy.model.lm_head.weight.grad is None
    assert torch.equal(found, expected[: len(found)])  # the head's is the last


def disturb(adapters):
    """Move the adapters away from zero, where they begin."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in adapters.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)


@pytest.mark.parametrize("head", [False, True])
def test_adapters_are_scored_and_the_reference_is_without_them(head, given):
    import peft  # half a second, needed only here

    policy = make_policy("untied head")
    before = scored(policy, given).logp.detach()
    targets = ["q_proj", "down_proj"] + ["lm_head"] * head
    adapters = peft.get_peft_model(
        policy.model, peft.LoraConfig(r=2, target_modules=targets, task_type="CAUSAL_LM")
    )
    policy = replace(policy, adapters=adapters)
    disturb(adapters)
    assert policy.head_is_plain != head
    logp, h = plain(policy, *given, 1.0)
    expected = gradients(policy, logp, h)
    result = scored(policy, given, chunk=4, entropy=True)
    assert same(result.logp, logp)
    assert apart(gradients(policy, result.logp, result.entropy), expected) <= 1e-5
    assert (logp - before).abs().max() > 0.01
    with torch.no_grad():
        assert same(scored(policy.reference(), given).logp, before)
