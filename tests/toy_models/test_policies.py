"""The policies: probabilities that sum to one, samples that follow them, one layout for all."""

import copy

import pytest
import torch

from policy_gradients.logprobs import response_mask
from toy_models.exact import enumerate_responses, responses_of
from toy_models.policies import (
    AutoregressivePolicy,
    PositionalPolicy,
    PromptTabularPolicy,
    TabularPolicy,
)
from toy_models.sorting import SortingTask

PROMPTS = SortingTask(3, 3).distinct_prompts()


def build(kind: str):
    """A float64 policy of each kind, with logits of order one."""
    policy = {
        "tabular": lambda: TabularPolicy(3, 3),
        "per prompt": lambda: PromptTabularPolicy(PROMPTS, 3, 3),
        "positional": lambda: PositionalPolicy(3, 3, embedding_std=0.6, seed=4),
        "tree": lambda: AutoregressivePolicy(3, 4, eos_id=0),
        "tree, middle end": lambda: AutoregressivePolicy(4, 3, eos_id=2),
        "tree, no end": lambda: AutoregressivePolicy(3, 3, eos_id=None),
        "tree per prompt": lambda: AutoregressivePolicy(4, 4, eos_id=3, prompts=PROMPTS),
    }[kind]()
    generator = torch.Generator().manual_seed(7)
    if kind != "positional":
        with torch.no_grad():
            policy.table.copy_(torch.randn(policy.table.shape, generator=generator))
    return policy.double()


KINDS = [
    "tabular",
    "per prompt",
    "positional",
    "tree",
    "tree, middle end",
    "tree, no end",
    "tree per prompt",
]


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_of_all_responses_sum_to_one(kind):
    policy = build(kind)
    responses = responses_of(policy)
    logp = policy.log_probs(PROMPTS, responses.repeat(len(PROMPTS), 1)).sum(-1)
    total = logp.view(len(PROMPTS), -1).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_samples_follow_the_log_probs(kind, temperature):
    policy, group = build(kind), 20_000
    prompts = PROMPTS[[4, 1]]
    drawn = policy.sample(prompts, group, seed=3, temperature=temperature)
    assert drawn.shape == (2 * group, policy.length)
    responses = responses_of(policy)
    logp = policy.log_probs(prompts, responses.repeat(2, 1), temperature=temperature)
    probs = logp.sum(-1).exp().view(2, -1)
    for row in range(2):  # a prompt's responses are adjacent
        mine = drawn[row * group : (row + 1) * group]
        counts = (mine[:, None] == responses).all(-1).sum(0)
        assert counts.sum() == group  # every sample is a listed response, padding included
        error = (probs[row] * (1 - probs[row]) / group).sqrt()
        assert ((counts / group - probs[row]).abs() < 5 * error + 1e-9).all()


@pytest.mark.parametrize("kind", KINDS)
def test_same_seed_same_samples_and_a_generator_goes_on(kind):
    policy = build(kind)
    assert policy.sample(PROMPTS, 5, seed=1).equal(policy.sample(PROMPTS, 5, seed=1))
    assert not policy.sample(PROMPTS, 5, seed=1).equal(policy.sample(PROMPTS, 5, seed=2))
    generator = torch.Generator().manual_seed(1)
    first, second = (policy.sample(PROMPTS, 5, seed=generator) for _ in range(2))
    assert first.equal(policy.sample(PROMPTS, 5, seed=1))
    assert not second.equal(first)


@pytest.mark.parametrize("kind", KINDS)
def test_double_and_copies_work(kind):
    policy = build(kind)
    responses = policy.sample(PROMPTS, 2, seed=0)
    assert policy.log_probs(PROMPTS, responses).dtype == torch.float64
    reference = copy.deepcopy(policy)
    reference.load_state_dict(policy.state_dict())
    assert reference.log_probs(PROMPTS, responses).equal(policy.log_probs(PROMPTS, responses))
    single = policy.float()
    assert single.log_probs(PROMPTS, responses).dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_of_log_prob_against_finite_differences(kind):
    policy = build(kind)
    responses = policy.sample(PROMPTS[:2], 3, seed=5)

    def total(*values):
        names = [name for name, _ in policy.named_parameters()]
        pairs = dict(zip(names, values, strict=True))
        wrapped = _Sum(policy, PROMPTS[:2], responses)
        pairs = {f"policy.{name}": value for name, value in pairs.items()}
        return torch.func.functional_call(wrapped, pairs, ())

    values = [p.detach().clone().requires_grad_() for p in policy.parameters()]
    assert torch.autograd.gradcheck(total, values)


class _Sum(torch.nn.Module):
    def __init__(self, policy, prompts, responses):
        super().__init__()
        self.policy, self.prompts, self.responses = policy, prompts, responses

    def forward(self):
        return self.policy.log_probs(self.prompts, self.responses).square().sum()


def test_tabular_policy_has_one_parameter_and_starts_uniform():
    policy = TabularPolicy(5, 2)
    ((name, table),) = policy.named_parameters()
    assert name == "table"
    assert table.shape == (2, 5)
    assert table.abs().sum() == 0
    assert policy.logits(PROMPTS).shape == (6, 2, 5)
    assert policy.logits(PROMPTS, policy.sample(PROMPTS, 3)).shape == (18, 2, 5)


def test_prompt_tables_are_separate():
    policy = PromptTabularPolicy(PROMPTS, 3, 3)
    policy.logits(PROMPTS[2:3]).sum().backward()
    touched = policy.table.grad.abs().sum((1, 2)) > 0
    assert touched.tolist() == [False, False, True, False, False, False]
    with pytest.raises(ValueError, match=r"no table for prompt \[0, 0, 0\]"):
        policy.logits(torch.tensor([[0, 0, 0]]))
    with pytest.raises(ValueError, match="must all differ"):
        PromptTabularPolicy(PROMPTS[[0, 0]], 3, 3)


def test_positional_policy_returns_logits_of_the_printed_model():
    policy = build("positional")
    table, encode, decode = policy.embedding, policy.encode, policy.decode
    for row, prompt in enumerate(PROMPTS.tolist()):
        hidden = sum(table[token] @ encode[t] for t, token in enumerate(prompt))
        for t in range(3):
            expected = table @ (hidden @ decode[t])
            torch.testing.assert_close(policy.logits(PROMPTS)[row, t], expected)


def test_positional_policy_starts_near_uniform_and_depends_on_its_seed():
    logp = PositionalPolicy(3, 3, seed=0).logits(PROMPTS).log_softmax(-1)
    assert (-logp.exp() * logp).sum(-1).min() > 0.8  # log 3 = 1.0986
    a, b, c = (PositionalPolicy(3, 3, seed=s).encode for s in (0, 0, 1))
    assert a.equal(b)
    assert not a.equal(c)


@pytest.mark.parametrize("kind", ["tree", "tree, middle end", "tree, no end", "tree per prompt"])
def test_tree_reads_the_row_of_its_prefix(kind):
    policy = build(kind)
    responses = policy.sample(PROMPTS, 3, seed=2)
    logp = policy.log_probs(PROMPTS, responses)
    states = policy.states.tolist()
    for i, response in enumerate(responses.tolist()):
        table = policy.table[0 if policy.index is None else i // 3]
        prefix, expected = [], []
        for token in response:
            if policy.eos_id in prefix:
                expected.append(torch.tensor(0.0, dtype=torch.float64))
            else:
                row = states.index(prefix + [-1] * (policy.length - 1 - len(prefix)))
                expected.append(table[row].log_softmax(-1)[token])
            prefix = [*prefix, token]
        torch.testing.assert_close(logp[i], torch.stack(expected))


def test_mask_is_the_library_mask_and_padding_is_not_felt():
    policy = build("tree")
    responses = policy.sample(PROMPTS, 10, seed=2)
    mask = policy.mask(responses)
    assert mask.equal(response_mask(responses, eos_id=0))
    assert (~mask).any()
    dirty = torch.where(mask, responses, 2)
    assert policy.mask(dirty).equal(mask)
    assert policy.log_probs(PROMPTS, dirty).equal(policy.log_probs(PROMPTS, responses))
    assert policy.log_probs(PROMPTS, responses)[~mask].abs().sum() == 0
    assert TabularPolicy(3, 3).mask(responses[:, :3]).all()


def test_responses_with_an_end_token_are_listed_once():
    rows = enumerate_responses(3, 4, eos_id=0)
    assert len(rows) == 1 + 2 + 4 + 8 + 16  # ends after 0, 1, 2, 3 numbers, or is cut at 4
    assert rows.unique(dim=0).equal(rows)
    assert enumerate_responses(3, 3).shape == (27, 3)


def test_wrong_input_is_named():
    policy = TabularPolicy(3, 3)
    with pytest.raises(ValueError, match=r"responses must be \(batch, 3\), got \(6, 2\)"):
        policy.log_probs(PROMPTS, torch.zeros(6, 2, dtype=torch.long))
    with pytest.raises(ValueError, match=r"same number of rows for each of the 6 prompts"):
        policy.log_probs(PROMPTS, torch.zeros(7, 3, dtype=torch.long))
    with pytest.raises(TypeError, match=r"responses must hold integer"):
        policy.log_probs(PROMPTS, torch.zeros(6, 3))
    with pytest.raises(ValueError, match="tokens must lie in 0 … 2"):
        policy.log_probs(PROMPTS, torch.full((6, 3), 3))
    with pytest.raises(TypeError, match="prompts must hold integer"):
        policy.logits(PROMPTS.float())
    with pytest.raises(ValueError, match="temperature must be positive"):
        policy.sample(PROMPTS, 2, temperature=0.0)
    with pytest.raises(ValueError, match="group must be a positive"):
        policy.sample(PROMPTS, 0)
    with pytest.raises(ValueError, match="length must be a positive"):
        TabularPolicy(3, 0)
    with pytest.raises(ValueError, match=r"prompts must be \(prompts, 4\)"):
        PositionalPolicy(3, 4).logits(PROMPTS)
    with pytest.raises(ValueError, match=r"ids in 0\.\.2"):
        PositionalPolicy(3, 3).logits(PROMPTS + 1)
    with pytest.raises(ValueError, match=r"eos_id must lie in 0\.\.2, got 3"):
        AutoregressivePolicy(3, 3, eos_id=3)
    with pytest.raises(ValueError, match="prefixes"):
        AutoregressivePolicy(30, 9, eos_id=0)
    with pytest.raises(ValueError, match="needs the responses"):
        build("tree").logits(PROMPTS)
