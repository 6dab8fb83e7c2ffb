"""Every row of the table, and every choice beside it, against formulas written out once more.

The reference below runs each response alone through the model, without padding, cache or
micro-batches, for all groups of the step, and lets autograd do the rest.
"""

import math
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from llm_trainer import credit
from llm_trainer import train as train_module
from llm_trainer.config import ConfigError, build
from llm_trainer.credit import PAYERS, compare, per_response_weights, per_token_weights
from llm_trainer.train import NoSignalError, train
from policy_gradients.algorithms import ALGORITHMS, Batch, grpo_loss
from policy_gradients.kl import k1, k2, k3
from toy_models import exact
from toy_models.policies import AutoregressivePolicy, mask_of

ROWS = list(ALGORITHMS)


def apart(a, b):
    return ((a - b).norm() / a.norm()).item()


def nudge(learner, size=0.01, seed=0):
    """Move all weights a little, so that ratios, KLs and values are at no special place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in weights_of(learner):
            weight += size * torch.randn(weight.shape, generator=generator)


def weights_of(learner):
    return [*learner.policy.trainable(), *(learner.critic.weights() if learner.critic else [])]


def flat_gradient(learner):
    weights = weights_of(learner)
    return torch.cat([torch.zeros_like(w).flatten() if w.grad is None else w.grad.flatten()
                      for w in weights])  # fmt: skip


# ------------------------------------------------------------------ the reference


def whole_pass(policy, prompt, tokens, temperature):
    """(time, vocabulary) log π and (time, width) states for one response, run alone."""
    ids = torch.tensor([prompt + tokens])
    out = policy.model(input_ids=ids, output_hidden_states=True)
    here = slice(len(prompt) - 1, ids.shape[1] - 1)  # the positions that predict the response
    logits = out.logits[0, here] / temperature
    return logits - logits.logsumexp(1, keepdim=True), out.hidden_states[-1][0, here]


def everything(learner, batch):
    """Per response: log π of its tokens, entropies, values."""
    logps, entropies, values = [], [], []
    for row in range(len(batch.tokens)):
        at = row // batch.group
        real = batch.prompts.attention[at].bool()
        prompt = batch.prompts.tokens[at][real].tolist()
        tokens = batch.tokens[row][batch.mask[row]].tolist()
        table, states = whole_pass(learner.policy, prompt, tokens, learner.config.temperature)
        logps.append(table.gather(1, torch.tensor(tokens)[:, None]).squeeze(1))
        entropies.append(-(table.exp() * table).sum(1))
        if learner.critic:
            if learner.critic.body:
                states = whole_pass(learner.critic.body, prompt, tokens, 1.0)[1]
            else:
                states = states.detach()
            values.append(learner.critic.out(learner.critic.norm(states)).squeeze(1))
    return logps, entropies, values


def written_advantages(name, rewards, penalty):
    """(prompts, group) rewards, (prompts, group) penalty → the same, by each row's formula.

    Rows that divide by a spread or a mean divide the rewards alone.
    """
    n, r = rewards.shape[1], rewards - penalty
    linear = {
        "reinforce": r - r.mean(),
        "rloo": r - (r.sum(1, keepdim=True) - r) / (n - 1),
        "dr_grpo": r - r.mean(1, keepdim=True),
    }
    if name in linear:
        return linear[name]
    mean, std = rewards.mean(1, keepdim=True), rewards.std(1, keepdim=True)
    flat = rewards.max(1, keepdim=True).values == rewards.min(1, keepdim=True).values
    scaled = (rewards - mean) / (mean if name == "maxrl" else std + 1e-4)
    return torch.where(flat, 0.0, scaled) - (penalty - penalty.mean(1, keepdim=True))


def written_gae(rewards, values, lam):
    """One response: the score on its last token is in `rewards`; nothing follows it."""
    advantage, found = 0.0, []
    for t in reversed(range(len(rewards))):
        following = values[t + 1] if t + 1 < len(rewards) else 0.0
        advantage = rewards[t] + following - values[t] + lam * advantage
        found.append(advantage)
    return torch.stack(found[::-1])


def written_surrogate(name, logp, old, A):
    """(time,) loss per token."""
    ratio = (logp - old).exp()
    if name in ("reinforce", "rloo", "maxrl"):
        return -A * logp
    if name == "sapo":
        tau = torch.where(A > 0, 1.0, 1.05)
        return -A * 4 / tau * torch.sigmoid(tau * (ratio - 1))
    if name == "cispo":
        return -A * ratio.clamp(max=1.28).detach() * logp
    low, high = {"gspo": (3e-4, 4e-4), "dapo": (0.2, 0.28)}.get(name, (0.2, 0.2))
    if name == "gspo":
        ratio = (logp - old).mean().exp().expand_as(logp)
    return -torch.minimum(ratio * A, ratio.clamp(1 - low, 1 + high) * A)


def written_loss(learner, batch, values_old=None):
    """The whole step's loss, as its paper prints it. Everything beside logp is a constant."""
    config, row = learner.config, learner.row
    name, beta = config.algorithm, config.kl_coef
    logps, entropies, values = everything(learner, batch)
    lengths = batch.mask.sum(1).tolist()
    old = [x[:n] for x, n in zip(batch.logp_sampler, lengths, strict=True)]
    ref = [None] * len(lengths)
    if beta:
        ref = [x[:n] for x, n in zip(batch.logp_ref, lengths, strict=True)]
    paid = torch.zeros(len(lengths))
    if row.kl == "reward" and beta:
        paid = torch.stack([beta * (o - f).sum() for o, f in zip(old, ref, strict=True)])
    A = written_advantages(name, batch.rewards, paid.view_as(batch.rewards)).flatten()
    advantages = [a.expand(n) for a, n in zip(A, lengths, strict=True)]
    if learner.critic:
        advantages, targets = [], []
        for i, n in enumerate(lengths):
            rewards = -beta * (old[i] - ref[i]) if beta and row.kl == "reward" else torch.zeros(n)
            rewards = rewards + torch.eye(n)[-1] * batch.rewards.flatten()[i]
            advantages.append(written_gae(rewards, values_old[i, :n], config.lam))
            targets.append(advantages[-1] + values_old[i, :n])
        everyone = torch.cat(advantages)
        std = everyone.std(correction=0)
        advantages = [(a - everyone.mean()) / (std + 1e-8) for a in advantages]

    total, N, tokens = 0.0, len(lengths), sum(lengths)
    for i, n in enumerate(lengths):
        cut = learner.policy.end_id not in batch.tokens[i]
        if config.overlong == "mask" and cut:
            continue
        loss = written_surrogate(name, logps[i], old[i], advantages[i])
        if beta and row.kl == "loss":
            log_ratio = logps[i] - ref[i]
            kl = {k2: log_ratio**2 / 2, k3: (-log_ratio).exp() - 1 + log_ratio}
            loss = loss + beta * kl[row.kl_estimator]
        if learner.critic:
            before = values_old[i, :n]
            near = before + (values[i] - before).clamp(-0.2, 0.2)
            errors = torch.maximum((values[i] - targets[i]) ** 2, (near - targets[i]) ** 2)
            loss = loss + 0.5 * 0.5 * errors
        loss = loss - config.entropy_coef * entropies[i]
        divisor = {
            "reinforce": N, "rloo": N, "maxrl": N, "ppo": tokens, "cispo": tokens, "dapo": tokens,
            "dr_grpo": N * config.max_new_tokens,
        }.get(name, N * n)  # fmt: skip
        total = total + loss.sum() / divisor
    return total


def step_and_reference(make_learner, draw, **values):
    """(the learner's gradient, autograd's of the written loss, the learner, what it trained on)."""
    learner = make_learner(micro_batch=1, **values)
    learner.row = replace(learner.row, dynamic_sampling=False)  # nothing is filtered when drawing
    nudge(learner, seed=1)  # a critic that has an opinion
    seen = draw(learner)
    if learner.reference:
        nudge(learner, seed=2)  # away from the reference
        seen = draw(learner)
    seen.rewards[1] = 0.7  # a group without contrast
    batch = learner.measure(seen)
    nudge(learner, seed=3)
    kept = learner.taught(batch)
    learner.gradients(kept, 1)
    found = flat_gradient(learner)
    learner.optimizer.zero_grad()
    written_loss(learner, batch, batch.values_old).backward()
    return found, flat_gradient(learner), learner, kept


@pytest.mark.parametrize("algorithm", ROWS)
def test_the_gradient_of_a_step_is_that_of_the_formula(make_learner, draw, algorithm):
    """Shared prompts, micro-batches of one, dropped groups; ratios and values off the start."""
    found, expected, learner, kept = step_and_reference(make_learner, draw, algorithm=algorithm)
    assert apart(expected, found) <= 1e-5
    silent = algorithm in ("ppo", "reinforce")  # they do not compare within groups
    assert len(kept.rewards) == (4 if silent else 3)
    if learner.row.needs_old_logp:  # the test would see a missing or misplaced clip
        logp = learner.frozen_log_probs(learner.policy, kept)
        ratio = (logp - kept.logp_old)[kept.mask].exp()
        assert ratio.min() < 0.8
        assert ratio.max() > 1.28


@pytest.mark.parametrize("where", ["loss", "reward"])
@pytest.mark.parametrize("algorithm", ROWS)
def test_a_kl_acts_once_and_where_it_should(make_learner, draw, algorithm, where):
    """KL counted twice, never, or in the wrong place: the gradient would be another."""
    values = {"algorithm": algorithm, "kl_coef": 0.3, "kl_in": where}
    found, expected, learner, kept = step_and_reference(make_learner, draw, **values)
    assert apart(expected, found) <= 1e-5
    assert len(kept.rewards) == 4
    assert learner.row.kl == where
    estimator = {"rloo": k2, "ppo": k2}.get(algorithm, k3) if where == "loss" else k1
    assert learner.row.kl_estimator is estimator


@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "ppo", "dr_grpo", "dapo"])
def test_the_entropy_bonus_and_a_model_critic_too(make_learner, draw, algorithm):
    values = {"critic": "model"} if algorithm == "ppo" else {}
    found, expected, _, kept = step_and_reference(
        make_learner, draw, algorithm=algorithm, entropy_coef=0.2, temperature=0.8, **values
    )
    assert apart(expected, found) <= 1e-5
    assert len(kept.rewards) == 4  # the bonus has a gradient where advantages are 0


@pytest.mark.parametrize("algorithm", ["grpo", "dapo", "dr_grpo", "rloo"])
def test_masked_cut_responses_teach_nothing_but_count(make_learner, draw, algorithm):
    found, expected, learner, kept = step_and_reference(
        make_learner, draw, algorithm=algorithm, overlong="mask", max_new_tokens=7
    )
    cut = ~(kept.tokens == learner.policy.end_id).any(1)
    assert 0 < cut.sum() < len(cut)
    assert apart(expected, found) <= 1e-5
    assert kept.sequences == 16
    everyone = replace(kept, loss_mask=kept.mask)
    learner.gradients(everyone, 1)
    assert apart(expected, flat_gradient(learner)) > 1e-2


def test_the_entropy_bonus_by_finite_differences(make_learner, draw):
    """Along its own gradient the mean entropy changes at the rate of the gradient's norm."""
    learner = make_learner(entropy_coef=1.0)
    batch = learner.measure(draw(learner))
    batch = replace(batch, advantages=torch.zeros_like(batch.advantages))
    learner.gradients(batch, 4)
    grads = [w.grad.clone() for w in learner.policy.trainable()]
    norm = math.sqrt(sum(g.square().sum().item() for g in grads))

    @torch.no_grad()
    def mean_entropy(step):
        for weight, g in zip(learner.policy.trainable(), grads, strict=True):
            weight += step * g / norm
        found = everything(learner, batch)[1]
        for weight, g in zip(learner.policy.trainable(), grads, strict=True):
            weight -= step * g / norm
        return sum(h.mean() for h in found).item() / len(found)  # GRPO's average

    eps = 3e-3
    slope = (mean_entropy(eps) - mean_entropy(-eps)) / (2 * eps)
    assert slope == pytest.approx(-norm, rel=1e-2)  # the loss is −entropy


# ------------------------------------------------------------------ KL in the reward, exactly


@pytest.fixture(scope="module")
def small():
    """(policy, reference, prompt, reward): three letters, at most three tokens, with an end."""
    generator = torch.Generator().manual_seed(3)

    def make():
        policy = AutoregressivePolicy(3, 3, eos_id=2).double()
        with torch.no_grad():
            policy.table.copy_(torch.randn(policy.table.shape, generator=generator).double())
        return policy

    prompt = torch.tensor([[1, 0, 2]])
    return make(), make(), prompt, lambda prompts, responses: (responses == 1).sum(-1).double()


def expected_rloo_gradient(small, payer, beta):
    """E over all pairs of responses of the gradient that `compare` gives with RLOO."""
    policy, reference, prompt, reward = small
    responses = exact.responses_of(policy)
    n = len(responses)
    logp = exact.token_log_probs_of(policy, prompt)[0]
    fixed, ref = logp.detach(), exact.token_log_probs_of(reference, prompt)[0].detach()
    mask = mask_of(responses, policy.eos_id).bool()
    scores = reward(prompt, responses)
    one, two = torch.cartesian_prod(torch.arange(n), torch.arange(n)).unbind(1)
    pairs = torch.stack([one, two], 1)  # (pairs, 2): a group each
    rows = pairs.flatten()
    row = replace(ALGORITHMS["rloo"], kl_coefficient=beta)
    A = compare(row, scores[pairs], fixed[rows], ref[rows], mask[rows], payer=payer)
    chance = fixed.sum(1).exp()
    weight = (chance[one] * chance[two]).repeat_interleave(2)[:, None] / 2
    return exact.flat_gradient((weight * A * logp[rows]).sum(), policy)


@pytest.mark.parametrize("credit_name", ["sequence", "to_go", "token"])
def test_which_kl_credits_give_the_kls_gradient(small, credit_name):
    policy, reference, prompt, reward = small
    beta = 0.5
    found = expected_rloo_gradient(small, PAYERS[credit_name], beta)
    reward_alone = exact.exact_gradient(policy, prompt, reward)
    kl = exact.flat_gradient(exact.exact_kl(policy, reference, prompt), policy)
    right = reward_alone - beta * kl
    per_state = exact.kl_in_loss(policy, reference, prompt, k2, per_token=True)
    myopic = reward_alone - beta * exact.flat_gradient(per_state, policy)
    if credit_name == "token":
        assert apart(myopic, found) <= 1e-9
        assert apart(right, found) > 0.01
    else:
        assert apart(right, found) <= 1e-9


def test_a_token_pays_for_itself_for_what_follows_or_for_all():
    kl = torch.tensor([[1.0, 2.0, 4.0]])
    assert credit.whole_response(kl).tolist() == [[7.0]]
    assert credit.to_go(kl).tolist() == [[7.0, 6.0, 4.0]]
    assert credit.own_token(kl).tolist() == [[1.0, 2.0, 4.0]]


@pytest.mark.parametrize("kl_credit", ["sequence", "to_go", "token"])
def test_kl_credit_reaches_the_advantages(make_learner, draw, kl_credit):
    learner = make_learner(algorithm="rloo", kl_coef=0.3, kl_credit=kl_credit)
    nudge(learner)
    seen = draw(learner)
    batch = learner.measure(seen)
    log_ratio = torch.where(seen.mask, seen.logp_sampler - batch.logp_ref, 0.0)
    paid = PAYERS[kl_credit](log_ratio)
    score = seen.rewards.flatten()[:, None] - 0.3 * paid
    grouped = score.view(4, 4, -1)
    others = (grouped.sum(1, keepdim=True) - grouped) / 3
    assert torch.allclose(batch.advantages, (grouped - others).flatten(0, 1), atol=1e-6)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"kl_estimator": "k1"}, "its gradient averages to zero"),
        ({"kl_estimator": "k2", "kl_in": "reward"}, "only k1 has the gradient"),
        ({"kl_estimator": "k3", "kl_in": "reward"}, "only k1 has the gradient"),
        ({"algorithm": "rloo", "kl_estimator": "k3"}, "only k1 has the gradient"),
        ({"kl_credit": "to_go"}, "the KL is in the loss, where no token pays"),
        ({"algorithm": "ppo", "kl_credit": "token"}, "add up what follows, by GAE"),
        ({"algorithm": "gspo", "kl_in": "reward", "kl_credit": "token"}, "use sequence"),
        ({"algorithm": "gspo", "kl_in": "reward", "kl_credit": "to_go"}, "use sequence"),
    ],
)
def test_a_kl_that_would_not_be_one_is_refused(values, says):
    with pytest.raises(ConfigError, match=says):
        build({"kl_coef": 0.1, **values})


@pytest.mark.parametrize("payer", PAYERS.values(), ids=PAYERS)
@pytest.mark.parametrize("algorithm", sorted({*ROWS} - {"ppo"}))
def test_a_kl_in_the_reward_weighs_what_beta_says_also_where_rewards_are_equal(algorithm, payer):
    """In the spread it is divided by, .04 and .004 would both give advantages of 1.4."""
    scores, mask = torch.ones(1, 8), torch.ones(8, 3).bool()
    logp = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    found = {}
    for beta in (0.04, 0.004):
        row = replace(ALGORITHMS[algorithm], kl="reward", kl_coefficient=beta, kl_estimator=k1)
        found[beta] = compare(row, scores, logp, torch.zeros(8, 3), mask, payer=payer)
    assert torch.allclose(found[0.04], 10 * found[0.004], rtol=1e-5)
    paid = payer(logp)
    share = {"rloo": 8 / 7}.get(algorithm, 1)
    assert torch.allclose(found[0.04], -0.04 * share * (paid - paid.mean(0)), atol=1e-6)


def test_gspos_ratio_spreads_what_one_token_is_given_over_all():
    """Why a credit or a weight per token is refused for it: the gradient does not stay there."""
    logp = torch.full((1, 4), -1.0)
    given = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    for name, reaches in {"gspo": 4, "dr_grpo": 1}.items():
        at = logp.clone().requires_grad_()
        fields = {"logp": at, "logp_old": logp, "advantages": given, "mask": torch.ones(1, 4)}
        ALGORITHMS[name].loss(Batch(**fields, length=4)).backward()
        assert (at.grad != 0).sum() == reaches


@pytest.mark.parametrize("algorithm", ROWS)
def test_only_a_ratio_per_response_refuses_weights_per_token(algorithm):
    values = {"algorithm": algorithm, "importance": "token", "old_logprobs": "recompute"}
    if algorithm == "gspo":
        with pytest.raises(ConfigError, match="one ratio for the whole response"):
            build(values)
    else:
        build(values)
    build({**values, "importance": "sequence"})


def test_which_kls_in_the_loss_have_which_gradient(small):
    """What the refusals say: k1 none where tokens are summed; k2 and k3 that of each state's KL."""
    policy, reference, prompt, _ = small
    gradient = {
        k: exact.flat_gradient(exact.kl_in_loss(policy, reference, prompt, k, per_token=True),
                               policy)
        for k in (k1, k2, k3)
    }  # fmt: skip
    assert gradient[k1].norm() <= 1e-9 * gradient[k2].norm()
    assert apart(gradient[k2], gradient[k3]) > 0.1


def test_k1_in_the_loss_pushes_on_the_length_where_each_response_is_averaged(small):
    """Σ_t k1/|y| has the expected gradient ∇E[1/|y|]: downhill is towards longer responses."""
    policy, reference, prompt, _ = small
    logp = exact.token_log_probs_of(policy, prompt)[0]
    ref = exact.token_log_probs_of(reference, prompt)[0].detach()
    mask = mask_of(exact.responses_of(policy), policy.eos_id).bool()
    lengths = mask.sum(1)
    chance = torch.where(mask, logp, 0.0).sum(1).exp()
    averaged = torch.where(mask, logp - ref, 0.0).sum(1) / lengths
    found = exact.flat_gradient((chance.detach() * averaged).sum(), policy)
    logp = exact.token_log_probs_of(policy, prompt)[0]
    shorter = (torch.where(mask, logp, 0.0).sum(1).exp() / lengths).sum()
    assert apart(exact.flat_gradient(shorter, policy), found) <= 1e-9
    assert found.norm() > 0.01


# ------------------------------------------------------------------ importance weights


def test_weights_are_learner_over_sampler_and_cut_from_above_only():
    """Inverted: .37 in the first place; floored: 2 in the second."""
    learner, sampler = (
        torch.tensor([[-1.0, -2.0, -1.0, 9.0]]),
        torch.tensor([[-2.0, -1.0, -1.5, 0]]),
    )
    mask = torch.tensor([[True, True, True, False]])
    found = per_token_weights(learner, sampler, mask, cap=2.0)
    assert torch.allclose(found, torch.tensor([[2.0, math.exp(-1), math.exp(0.5), 1.0]]))
    found = per_response_weights(learner, sampler, mask, cap=2.0)
    assert torch.allclose(found, torch.tensor([[math.exp(0.5)]]))
    assert per_response_weights(learner + 1, sampler, mask, cap=2.0).tolist() == [[2.0]]


@pytest.mark.parametrize("algorithm", ROWS)
def test_weighing_the_advantages_weighs_the_loss(algorithm):
    """surrogate(w·A) = w·surrogate(A) for w > 0, token by token, on both sides of every clip."""
    row, generator = ALGORITHMS[algorithm], torch.Generator().manual_seed(0)
    shape = (64, 9)

    def normal(scale):
        return scale * torch.randn(shape, generator=generator, dtype=torch.float64)

    old, mask = -1 + normal(0.1), torch.rand(shape, generator=generator) < 0.9
    logp, A, w = old + normal(0.3), normal(1.0), normal(1.0).exp()
    names = {"logp": logp, "logp_old": old, "mask": mask}

    def surrogate(advantages):
        given = {**names, "advantages": advantages}
        parameters = row.surrogate.__code__.co_varnames[: row.surrogate.__code__.co_argcount]
        return row.surrogate(*(given[p] for p in parameters), **row.knobs)

    assert torch.allclose(surrogate(w * A), w * surrogate(A), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("importance", ["token", "sequence"])
@pytest.mark.parametrize("loss", [None, grpo_loss])
def test_the_loss_is_weighed_and_its_kl_is_not(make_learner, draw, importance, loss):
    """A sampler that is off by up to .5 nats; the recomputed old log-probabilities are not."""
    values = {"importance": importance, "importance_cap": 1.2, "old_logprobs": "recompute"}
    learner = make_learner(loss, kl_coef=0.1, **values)
    seen = draw(learner)
    noise = torch.rand(seen.mask.shape, generator=torch.Generator().manual_seed(0)) - 0.5
    seen = replace(seen, logp_sampler=torch.where(seen.mask, seen.logp_sampler - noise, 0.0))
    batch = learner.measure(seen)
    assert torch.allclose(batch.logp_old, learner.frozen_log_probs(learner.policy, seen))
    log_weight = torch.where(seen.mask, batch.logp_old - seen.logp_sampler, 0.0)
    if importance == "sequence":
        log_weight = log_weight.sum(1, keepdim=True)
    weight = log_weight.exp().clamp(max=1.2)
    assert weight.min() < 0.9
    assert (weight == weight.max()).sum() > 1  # some are cut
    plain = learner.row.advantage(seen.rewards).reshape(-1, 1)
    logp = batch.logp_old.clone().requires_grad_()
    gradient, upstream = learner.policy_gradient(learner.loss_inputs(batch, logp))[1:]
    unweighted = replace(batch, advantages=plain.expand(batch.mask.shape))
    bare, with_kl = learner.policy_gradient(learner.loss_inputs(unweighted, logp))[1:]
    assert torch.allclose(gradient, weight * bare, atol=1e-8)
    assert torch.allclose(upstream - gradient, with_kl - bare, atol=1e-8)
    told = learner.describe(batch)
    assert told["importance/mean"] == pytest.approx(
        weight.expand_as(seen.mask)[seen.mask].mean().item(), abs=1e-5
    )
    assert 0 < told["importance/capped"] < 1


@pytest.mark.parametrize("algorithm", ["rloo", "ppo"])
def test_a_kl_in_the_reward_is_weighed_with_the_rest(make_learner, draw, algorithm):
    """The samples are the sampler's, so what was paid on them is weighed like what was earned."""
    values = {"algorithm": algorithm, "kl_coef": 0.3, "old_logprobs": "recompute"}
    learner = make_learner(importance="sequence", importance_cap=100, **values)
    nudge(learner)  # away from the reference
    seen = draw(learner)
    seen = replace(seen, logp_sampler=torch.where(seen.mask, seen.logp_sampler - 0.1, 0.0))
    weighed = learner.measure(seen)
    learner.weigh = None
    plain = learner.measure(seen)
    learner.row = replace(learner.row, kl_coefficient=0.0)
    unpaid = learner.measure(seen).advantages
    assert (unpaid - plain.advantages).abs().max() > 0.01
    weight = torch.exp(0.1 * seen.mask.sum(1, keepdim=True))
    assert torch.allclose(weighed.advantages, weight * plain.advantages, rtol=1e-4)


# ------------------------------------------------------------------ minibatches


def test_minibatches_are_whole_groups_with_their_own_counts(make_learner, draw):
    learner = make_learner(minibatches=2, micro_batch=2)
    batch = learner.measure(draw(learner))
    parts = list(learner.minibatches(batch))
    again = list(learner.minibatches(batch))
    rows = [tuple(p) for part in parts for p in part.prompts.tokens.tolist()]
    assert sorted(rows) == sorted(tuple(p) for p in batch.prompts.tokens.tolist())
    assert rows != [tuple(p) for part in again for p in part.prompts.tokens.tolist()]
    for part in parts:
        assert part.sequences == 8
        assert part.total_tokens == int(part.mask.sum())
        # a group's advantages sum to 0 only as long as the group is together
        assert part.advantages.view(2, 4).sum(1).abs().max() <= 1e-5
        for i, prompt in enumerate(part.prompts.tokens):
            j = (batch.prompts.tokens == prompt).all(1).nonzero().item()
            mine, theirs = slice(4 * i, 4 * i + 4), slice(4 * j, 4 * j + 4)
            time = part.tokens.shape[1]
            assert torch.equal(part.tokens[mine], batch.tokens[theirs, :time])
            assert torch.equal(part.advantages[mine], batch.advantages[theirs])


def test_a_minibatch_is_a_step_of_its_own(make_learner, draw):
    """Its gradient is that of the formula on its prompts alone."""
    learner = make_learner(algorithm="dapo", minibatches=2, micro_batch=1)
    batch = learner.measure(draw(learner))
    nudge(learner)
    for part in learner.minibatches(batch):
        learner.gradients(part, 1)
        found = flat_gradient(learner)
        learner.optimizer.zero_grad()
        written_loss(learner, part).backward()
        assert apart(flat_gradient(learner), found) <= 1e-5


def test_shuffled_rows_before_the_group_mean_would_be_seen(make_learner, draw):
    """The bug on purpose: rows, not prompts, are shuffled, and then compared in fours."""
    learner = make_learner(micro_batch=1)
    seen = draw(learner)
    batch = learner.measure(seen)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    shuffled = learner.row.advantage(seen.rewards.flatten()[order].view(4, 4)).flatten()
    wrong = torch.empty(16)
    wrong[order] = shuffled
    learner.gradients(replace(batch, advantages=wrong[:, None]), 1)
    bad = flat_gradient(learner)
    learner.optimizer.zero_grad()
    written_loss(learner, batch).backward()
    assert apart(flat_gradient(learner), bad) > 0.1


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_group_is_never_split_over_micro_batches(make_learner, draw, size):
    learner = make_learner(algorithm="ppo")
    batch = learner.measure(draw(learner))
    for number, piece in enumerate(batch.micro_batches(size)):
        assert len(piece.tokens) == 4 * len(piece.rewards) == len(piece.returns)
        assert (piece.sequences, piece.total_tokens) == (16, int(batch.mask.sum()))
        first, time = number * size * 4, piece.tokens.shape[1]
        assert torch.equal(piece.tokens, batch.tokens[first : first + len(piece.tokens), :time])


# ------------------------------------------------------------------ whole runs


@pytest.mark.parametrize("algorithm", ROWS)
def test_every_row_takes_two_steps_in_parts(make_config, algorithm):
    config = make_config(algorithm=algorithm, epochs=2, minibatches=2, micro_batch=1, kl_coef=0.01)
    result = train(config, quiet=True)
    assert [line["step"] for line in result.history] == [0, 1, 2]
    trained = [line for line in result.history[1:] if line["groups/trained"]]
    assert trained
    assert all(math.isfinite(v) for line in trained for v in line.values())
    assert trained[0]["check/ratio"] <= 1e-4
    assert trained[0]["check/split"] <= 1e-4
    model, trained = (
        AutoModelForCausalLM.from_pretrained(path).state_dict()
        for path in (config.model, config.output_dir)
    )
    assert not all(torch.equal(model[name], trained[name]) for name in model)


@pytest.mark.parametrize("overlong", [{}, {"overlong": "penalty", "overlong_cache": 5}])
def test_the_reward_is_the_weighted_sum_of_its_parts(make_config, make_learner, draw, overlong):
    learner = make_learner(
        reward_correctness=0.5, reward_format=0.3, reward_length=0.2, max_new_tokens=9, **overlong
    )
    batch = draw(learner)
    lengths = batch.mask.sum(1).view(4, 4)
    assert torch.allclose(batch.parts["length"], 1 - lengths / 9)
    expected = 0.5 * batch.parts["correctness"] + 0.3 * batch.parts["format"]
    expected = expected + 0.2 * batch.parts["length"]
    if overlong:
        ramp = ((9 - 5 - lengths) / 5).clamp(-1, 0)
        assert torch.allclose(batch.parts["overlong"], ramp)
        assert ramp.min() == -1
        expected = expected + ramp
    assert torch.allclose(batch.rewards, expected)


def shaped_but_wrong(monkeypatch):
    """Every answer is wrong, but shorter ones earn more."""
    real = train_module.load_task

    def load_task(config):
        task = real(config)
        score = task.score

        def wrong(*arguments, **keywords):
            rewards = score(*arguments, **keywords)
            return replace(rewards, correctness=0.0, exact=0.0)

        task.score = wrong
        return task

    monkeypatch.setattr(train_module, "load_task", load_task)


def test_dynamic_sampling_is_not_fooled_by_a_shaped_reward(make_config, monkeypatch):
    """Lengths give the rewards contrast, but all-wrong groups are discarded, and it ends."""
    shaped_but_wrong(monkeypatch)
    monkeypatch.setattr(train_module, "NO_SIGNAL_LIMIT", 2)
    config = make_config(
        algorithm="dapo", steps=20, reward_length=1.0, overlong="penalty", overlong_cache=9,
        resample_limit=2,
    )  # fmt: skip
    with pytest.raises(NoSignalError, match="step 2: no group of the last 2 steps can teach"):
        train(config, quiet=True)
    same = make_config(
        algorithm="grpo", steps=3, reward_length=1.0, output_dir=config.output_dir + "_grpo"
    )
    lines = train(same, quiet=True).history
    assert all(line["groups/contrast"] > 0 for line in lines[1:])


@pytest.mark.parametrize(
    "values", [{"kl_coef": 0.1}, {"algorithm": "ppo"}, {"entropy_coef": 0.1}], ids=str
)
def test_a_reward_without_contrast_ends_the_run_whatever_else_is_learned(
    make_config, monkeypatch, values
):
    monkeypatch.setattr(train_module, "NO_SIGNAL_LIMIT", 3)
    config = make_config(steps=50, reward_correctness=0.0, reward_format=0.0, **values)
    with pytest.raises(NoSignalError, match="step 3: no group of the last 3 steps can teach"):
        train(config, quiet=True)
