"""The critic of PPO: what it reads, what it is taught, and that nothing leaks to or from it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from llm_trainer.credit import criticise, last_token
from llm_trainer.critic import explained_variance
from llm_trainer.record import load_record
from llm_trainer.train import train
from policy_gradients.algorithms import ALGORITHMS

CRITICS = ["head", "model"]
ROW = replace(ALGORITHMS["ppo"], kl_coefficient=0.0)


def opinionated(learner):
    """A critic whose values differ from token to token."""
    with torch.no_grad():
        learner.critic.out.weight.normal_(generator=torch.Generator().manual_seed(0)).mul_(0.05)
    return learner


def gradients_of(learner, batch):
    """(flat gradient of the policy, flat gradient of the critic)"""
    learner.gradients(batch, 2)
    return tuple(
        torch.cat([torch.zeros_like(w).flatten() if w.grad is None else w.grad.flatten()
                   for w in weights])
        for weights in (learner.policy.trainable(), learner.critic.weights())
    )  # fmt: skip


def silent(batch):
    """The same batch without anything for the policy to learn."""
    return replace(batch, advantages=torch.zeros_like(batch.advantages))


# ------------------------------------------------------------------ no leak in either direction


@pytest.mark.parametrize("critic", CRITICS)
def test_the_policys_gradient_is_the_same_whatever_the_critic_is_taught(make_learner, draw, critic):
    learner = opinionated(make_learner(algorithm="ppo", critic=critic))
    batch = learner.measure(draw(learner))
    policy, taught = gradients_of(learner, batch)
    assert policy.norm() > 0
    assert taught.norm() > 0
    other = replace(batch, returns=batch.returns + 3.0)
    policy_too, other_taught = gradients_of(learner, other)
    assert torch.equal(policy, policy_too)
    assert not torch.allclose(taught, other_taught)
    assert gradients_of(learner, silent(batch))[0].norm() == 0


@pytest.mark.parametrize("critic", CRITICS)
def test_the_critics_gradient_is_the_same_whatever_the_policy_is_taught(make_learner, draw, critic):
    """Advantages come from the critic's values; were they attached, the actor's loss would pull."""

    def attached(logp, logp_old, advantages, mask, *, eps_low, eps_high, tokens):
        return -(logp * advantages * mask).sum() / tokens  # a loss that forgets to detach

    row = opinionated(make_learner(algorithm="ppo", critic=critic))
    own = opinionated(make_learner(attached, algorithm="ppo", critic=critic))
    seen = draw(row)
    batch = row.measure(seen)
    assert not any(x.requires_grad for x in (batch.advantages, batch.values_old, batch.returns))
    alone = gradients_of(row, silent(batch))[1]
    assert alone.norm() > 0
    assert torch.equal(gradients_of(row, batch)[1], alone)
    assert torch.equal(gradients_of(own, own.measure(seen))[1], alone)


def test_a_head_does_not_move_the_network_and_a_model_moves_its_own(make_learner, draw):
    head = opinionated(make_learner(algorithm="ppo", critic="head"))
    model = opinionated(make_learner(algorithm="ppo", critic="model"))
    assert sum(w.numel() for w in head.critic.weights()) == 128 + 128 + 128 + 1
    batch = model.measure(draw(model))
    model.gradients(batch, 4)
    policy, body = list(model.policy.trainable()), model.critic.network
    assert not {w.data_ptr() for w in body.parameters()} & {w.data_ptr() for w in policy}
    assert body.model.layers[0].mlp.up_proj.weight.grad.norm() > 0


def test_with_adapters_a_critics_network_trains_only_adapters(make_learner, draw):
    learner = opinionated(make_learner(algorithm="ppo", critic="model", lora_rank=2))
    names = [n for n, w in learner.critic.named_parameters() if w.requires_grad]
    assert all("lora" in n or n.startswith(("norm", "out")) for n in names)
    assert any("lora" in n for n in names)
    batch = learner.measure(draw(learner))
    before = [w.clone() for w in learner.policy.model.parameters()]
    learner.gradients(silent(batch), 4)
    learner.optimizer.step()
    moved = [not torch.equal(a, b)
             for a, b in zip(before, learner.policy.model.parameters(), strict=True)]  # fmt: skip
    assert not any(moved)


@pytest.mark.parametrize("critic", CRITICS)
def test_a_value_is_that_of_the_state_before_its_token(make_learner, draw, critic):
    """Another token at t changes no value up to t, and those after it."""
    learner = opinionated(make_learner(algorithm="ppo", critic=critic))
    batch = draw(learner)
    with torch.no_grad():
        before = learner.look(batch)[1]
        tokens = batch.tokens.clone()
        tokens[:, 2] = (tokens[:, 2] + 1) % 60
        after = learner.look(replace(batch, tokens=tokens))[1]
    assert torch.allclose(before[:, :3], after[:, :3], atol=1e-5)
    assert (before[:, 3] - after[:, 3]).abs().max() > 1e-3


@pytest.mark.parametrize("critic", CRITICS)
def test_a_critic_that_is_far_off_does_not_shrink_the_policys_step(make_learner, draw, critic):
    """Both gradients are cut to max_grad_norm, each by its own norm."""

    def step(error):
        learner = opinionated(make_learner(algorithm="ppo", critic=critic, max_grad_norm=0.01))
        batch = learner.measure(draw(learner))
        batch = replace(batch, returns=batch.values_old + error)
        norm = learner.update(batch, fresh=True)["grad_norm"]
        grads = [[w.grad.flatten() for w in weights if w.grad is not None]
                 for weights in (learner.policy.trainable(), learner.critic.weights())]  # fmt: skip
        return norm, *map(torch.cat, grads)

    norm, policy, _ = step(0.1)
    far = step(1000.0)
    assert norm == far[0] > 0.01  # it is the policy's, before it is cut
    assert torch.equal(policy, far[1])
    assert policy.norm() == pytest.approx(0.01, rel=1e-3)
    assert far[2].norm() == pytest.approx(0.01, rel=1e-3)


# ------------------------------------------------------------------ rewards per token and GAE


def advantages(scores, values, lengths, *, lam=0.95, gamma=1.0):
    mask = torch.arange(values.shape[1]) < torch.tensor(lengths)[:, None]
    logp = torch.zeros_like(values)
    return criticise(ROW, torch.tensor([scores]).T, logp, None, values, mask, gamma=gamma, lam=lam)


def test_gae_ends_with_each_response_and_the_score_stands_on_its_last_token():
    """Two responses of two tokens, V = .5, score 1, and garbage in the values of the padding.

    done one token late would let the garbage in (or give −.5, .525); the score on the last column
    instead of the last token would leave −.475, −.5; bootstrapping past the end .95, 1.
    """
    values = torch.tensor([[0.5, 0.5, 9.0, -7.0], [0.5, 0.5, 0.5, 0.5]])
    found, returns = advantages([1.0, 0.0], values, [2, 4])
    expected = torch.tensor([0.475, 0.5, 0.0, 0.0])
    assert torch.allclose(found[0], expected)
    assert torch.allclose(returns[0], torch.tensor([0.975, 1.0, 0.0, 0.0]))
    tail = [-0.5 * 0.95**k for k in (3, 2, 1, 0)]
    assert torch.allclose(found[1], torch.tensor(tail))


def test_a_response_that_was_cut_ends_there_without_a_value_after_it():
    """It fills the width and has no end token: its score is all it gets, as for any other."""
    values = torch.full((1, 3), 0.5)
    found, _ = advantages([0.0], values, [3])
    assert torch.allclose(found, torch.tensor([[-0.45125, -0.475, -0.5]]))


def test_gamma_discounts_and_lambda_one_is_the_return_minus_the_value():
    values = torch.tensor([[0.2, 0.4, 0.6]])
    found, returns = advantages([1.0], values, [3], lam=1.0, gamma=0.9)
    assert torch.allclose(returns, torch.tensor([[0.81, 0.9, 1.0]]))
    assert torch.allclose(found, returns - values)


def test_before_the_critic_has_learned_early_tokens_get_less_by_lambda():
    """V = 0: what follows is discounted by γλ, although every return is 1."""
    found, _ = advantages([1.0], torch.zeros(1, 5), [5])
    assert torch.allclose(found, 0.95 ** torch.tensor([[4.0, 3, 2, 1, 0]]))


def test_last_token_is_the_last_real_one():
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 0, 0]]).bool()
    assert last_token(mask).int().tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 0]]


def test_the_kl_is_paid_token_by_token_once(make_learner, draw):
    """λ = 1 and V = 0: an advantage is what follows of score and −β·k1, before whitening."""
    learner = make_learner(algorithm="ppo", kl_coef=0.3, lam=1.0, whiten=False)
    with torch.no_grad():
        for weight in learner.policy.trainable():
            weight += 0.01 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    seen = draw(learner)
    batch = learner.measure(seen)
    log_ratio = torch.where(seen.mask, seen.logp_sampler - batch.logp_ref, 0.0)
    follows = log_ratio.flip(1).cumsum(1).flip(1)
    expected = seen.rewards.flatten()[:, None] - 0.3 * follows
    assert torch.allclose(batch.advantages[seen.mask], expected[seen.mask], atol=1e-5)
    assert learner.loss.kl is None


def test_whitening_is_over_the_whole_steps_tokens(make_learner, draw):
    learner = opinionated(make_learner(algorithm="ppo"))
    batch = learner.measure(draw(learner))
    valid = batch.advantages[batch.mask]
    assert valid.mean().abs() <= 1e-5
    assert valid.std(correction=0) == pytest.approx(1, abs=1e-4)
    assert batch.advantages[~batch.mask].abs().max() == 0
    part = batch.take(torch.tensor([0]))
    assert part.advantages[part.mask].mean().abs() > 1e-3  # not whitened again in parts


# ------------------------------------------------------------------ it learns


@pytest.mark.parametrize("critic", CRITICS)
def test_while_warming_up_only_the_critic_learns(make_learner, draw, critic):
    learner = make_learner(algorithm="ppo", critic=critic, critic_warmup=2, lr_warmup=2)
    policy = [w.clone() for w in learner.policy.trainable()]
    values = []
    for update in range(3):
        batch = learner.measure(draw(learner, update))
        values.append(batch.values_old)
        metrics = learner.update(batch, fresh=True)
        same = all(
            torch.equal(a, b) for a, b in zip(policy, learner.policy.trainable(), strict=True)
        )
        assert same == (update < 2)
        moments = [w for w in learner.policy.trainable() if w in learner.optimizer.state]
        assert bool(moments) == (update == 2)  # nothing of the warm-up is left in them either
        assert (metrics["lr"] > 0) == (update == 2)
    assert metrics["lr"] == learner.config.lr / 2  # its warm-up begins when it does
    assert values[0].abs().max() == 0
    assert values[1].abs().max() > 0


@pytest.mark.parametrize("critic", CRITICS)
def test_policy_and_critic_move_at_rates_of_their_own(make_learner, draw, critic):
    """AdamW's first step moves a weight by its learning rate."""
    rates = {"lr": 3e-4, "critic_lr": 2e-3, "lr_warmup": 4}  # a quarter of each at first
    learner = opinionated(make_learner(algorithm="ppo", critic=critic, **rates))
    batch = learner.measure(draw(learner))
    both = (learner.policy.trainable(), learner.critic.weights())
    before = [[w.detach().clone() for w in weights] for weights in both]
    learner.update(batch, fresh=True)
    moved = [
        max((w - b).abs().max().item() for w, b in zip(weights, old, strict=True))
        for weights, old in zip(both, before, strict=True)
    ]
    assert moved == pytest.approx([3e-4 / 4, 2e-3 / 4], rel=1e-2)


@pytest.mark.parametrize("critic", CRITICS)
def test_a_critic_learns_a_batch_by_heart(make_learner, draw, critic):
    learner = make_learner(
        algorithm="ppo", critic=critic, critic_lr=1e-3, critic_warmup=1000, lam=1.0
    )
    batch = learner.measure(draw(learner))
    start = learner.describe(batch)
    first = learner.update(batch, fresh=True)["critic/loss"]
    for _ in range(30):  # each time with the value clip's old values where they are now
        values = learner.frozen(lambda piece: learner.look(piece)[1], batch)
        batch = replace(batch, values_old=values)
        last = learner.update(batch, fresh=False)["critic/loss"]
    end = learner.describe(batch)
    assert start["critic/explained_variance"] == pytest.approx(0, abs=1e-5)
    assert end["critic/explained_variance"] > (0.1 if critic == "model" else 0.02)
    assert last < first / 2


def test_explained_variance():
    mask = torch.tensor([[True, True, True, False]])
    returns = torch.tensor([[0.0, 1.0, 2.0, 99.0]])
    assert explained_variance(returns, returns, mask) == 1
    assert explained_variance(torch.zeros(1, 4), returns, mask) == 0
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3)
    assert explained_variance(returns + 5, returns, mask) == 1  # blind to a constant error
    assert explained_variance(returns, torch.ones(1, 4), mask) == 0


# ------------------------------------------------------------------ whole runs


@pytest.mark.parametrize("critic", CRITICS)
def test_resumed_ppo_is_bit_identical(make_config, tmp_path, crash, critic):
    """Critic, its optimiser state and the shuffling of minibatches are part of the checkpoint."""
    settings = {
        "algorithm": "ppo", "critic": critic, "epochs": 2, "minibatches": 2, "micro_batch": 1,
        "critic_warmup": 1, "steps": 5, "save_every": 2,
    }  # fmt: skip
    whole = train(make_config(output_dir=str(tmp_path / "whole"), **settings), quiet=True)
    cut = make_config(output_dir=str(tmp_path / "cut"), **settings)
    crash(cut)
    again = train(cut, resume=True, quiet=True)
    history = [
        [{k: v for k, v in line.items() if not k.startswith("time/")} for line in run.history]
        for run in (whole, again)
    ]
    assert history[0] == history[1]
    one, two = (
        torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["learner"]
        for name in ("whole", "cut")
    )
    assert one["critic"].keys() == two["critic"].keys() > {"out.weight", "norm.weight"}
    assert all(torch.equal(one["critic"][name], two["critic"][name]) for name in one["critic"])
    assert one["critic"]["out.weight"].abs().max() > 0


def test_a_recorded_step_has_the_values(make_config):
    config = make_config(algorithm="ppo", epochs=2, record_steps=[2], kl_coef=0.02)
    line = train(config, quiet=True).history[-1]
    record = load_record(Path(config.output_dir) / "steps/step_0002.json")
    responses = [r for group in record.groups for r in group.responses]
    values = [v for r in responses for v in r.values]
    assert sum(values) / len(values) == pytest.approx(line["value/mean"], rel=1e-4)
    assert len({len(r.advantages) == len(r.tokens) for r in responses}) == 1
    assert {group.status for group in record.groups} == {"trained"}


def test_a_learners_own_loss_works_with_a_critic(make_config):
    def loss(logp, logp_old, advantages, mask, *, eps_low, eps_high, tokens):
        ratio = (logp - logp_old).exp()
        clipped = ratio.clamp(1 - eps_low, 1 + eps_high)
        return -(torch.minimum(ratio * advantages, clipped * advantages) * mask).sum() / tokens

    settings = {"algorithm": "ppo", "epochs": 2}
    own = train(make_config(**settings), loss=loss, quiet=True).history
    row = train(make_config(**settings), overwrite=True, quiet=True).history
    for name in ("reward/mean", "critic/loss", "clip/high"):
        assert own[-1][name] == pytest.approx(row[-1][name], abs=1e-5)


@pytest.mark.parametrize("algorithm", ["ppo", "reinforce"])
def test_rows_that_compare_no_group_do_with_one_response_per_prompt(make_config, algorithm):
    config = make_config(algorithm=algorithm, prompts=16, group=1, micro_batch=8)
    lines = train(config, quiet=True).history[1:]
    assert all(line["grad_norm"] > 0 for line in lines)
    assert all(line["groups/trained"] > 0 for line in lines)


def test_old_log_probabilities_are_recomputed_for_a_critic_too(make_learner, draw):
    learner = make_learner(algorithm="ppo", old_logprobs="recompute")
    seen = draw(learner)
    spoilt = replace(seen, logp_sampler=seen.logp_sampler - 0.5)
    batch = learner.measure(spoilt)
    assert torch.allclose(batch.logp_old, learner.frozen_log_probs(learner.policy, seen))
