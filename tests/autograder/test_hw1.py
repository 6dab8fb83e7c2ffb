"""Homework 1: right answers of every style pass, real wrong ones are named, the notebook is fit."""

import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from einops import reduce, repeat

from autograder.judge import judge
from autograder.questions import QUESTIONS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "solutions/hw1_policy_gradient/hw1_policy_gradient.ipynb"
HW1 = [q for q in QUESTIONS.values() if q.homework == "hw1"]


# --- right answers, written in other ways ---------------------------------------------------


def tlp_cross_entropy(logits, tokens, *, temperature=1.0):
    batch, time, vocab = logits.shape
    flat = F.cross_entropy(
        (logits / temperature).reshape(-1, vocab), tokens.reshape(-1), reduction="none"
    )
    return -flat.reshape(batch, time)


def tlp_loops(logits, tokens, *, temperature=1.0):
    rows = []
    for b in range(tokens.shape[0]):
        row = []
        for t in range(tokens.shape[1]):
            z = logits[b, t] / temperature
            row.append(z[int(tokens[b, t])] - torch.logsumexp(z, 0))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def tlp_one_hot_einsum(logits, tokens, *, temperature=1.0):
    hot = F.one_hot(tokens, logits.shape[-1]).to(logits.dtype)
    return torch.einsum("btv,btv->bt", hot, (logits / temperature).log_softmax(-1))


def tlp_by_hand(logits, tokens, *, temperature=1.0):
    scaled = logits / temperature
    scaled = scaled - scaled.max(-1, keepdim=True).values
    total = scaled.exp().sum(-1).log()
    return torch.take_along_dim(scaled, tokens[..., None], -1)[..., 0] - total


def tlp_float32(logits, tokens, *, temperature=1.0):
    return tlp_cross_entropy(logits.float(), tokens, temperature=temperature)


def tlp_distribution(logits, tokens, *, temperature=1.0):
    return torch.distributions.Categorical(logits=logits / temperature).log_prob(tokens)


def tlp_own_tensor_in_place(logits, tokens, *, temperature=1.0):
    mine = logits.clone()
    mine /= temperature
    picked = mine.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).clone()
    picked -= mine.logsumexp(-1)
    return picked


def rf_loop(logp, advantages):
    with torch.no_grad():
        weights = advantages.expand_as(logp).clone()
    return torch.stack([-logp[:, t] * weights[:, t] for t in range(logp.shape[1])], 1)


def rf_data(logp, advantages):
    return (advantages.data * -1) * logp


def rf_einsum(logp, advantages):
    return -torch.einsum("bt,bt->bt", logp, advantages.detach().expand(logp.shape))


def rf_float32(logp, advantages):
    return -(logp.float() * advantages.detach().float())


def rf_mul_neg(logp, advantages):
    return torch.mul(logp, advantages.detach()).neg()


def rf_in_place(logp, advantages):
    out = logp * 1
    out *= -advantages.detach()
    return out


def rtg_python(rewards, done, *, gamma):
    out = [[0.0] * rewards.shape[1] for _ in range(rewards.shape[0])]
    for b, row in enumerate(rewards.tolist()):
        carry = 0.0
        for t in range(len(row) - 1, -1, -1):
            carry = row[t] + (0.0 if done[b, t] else gamma * carry)
            out[b][t] = carry
    return torch.tensor(out, dtype=rewards.dtype)


def rtg_double_loop(rewards, done, *, gamma):
    done = done.bool()
    out = torch.zeros_like(rewards)
    for t in range(rewards.shape[1]):
        alive = torch.ones_like(done[:, 0])
        for k in range(t, rewards.shape[1]):
            out[:, t] += alive * gamma ** (k - t) * rewards[:, k]
            alive = alive & ~done[:, k]
    return out


def rtg_matrix(rewards, done, *, gamma):
    time = rewards.shape[1]
    steps = torch.arange(time)
    episode = (done.long().cumsum(1) - done.long())[:, :, None]
    same = episode == episode.transpose(1, 2)
    ahead = (steps[None, :] - steps[:, None]).clamp(min=0)
    weight = same * torch.triu(torch.ones(time, time)) * gamma**ahead
    return torch.einsum("btk,bk->bt", weight.to(rewards.dtype), rewards)


def rtg_float32(rewards, done, *, gamma):
    return rtg_double_loop(rewards.float(), done, gamma=gamma)


def rtg_where_in_place(rewards, done, *, gamma):
    out = rewards.clone()
    for t in range(rewards.shape[1] - 2, -1, -1):
        out[:, t] += gamma * torch.where(done[:, t] > 0, 0.0, out[:, t + 1])
    return out


def bc_sum(rewards):
    return rewards - rewards.sum() / rewards.numel()


def bc_loop(rewards):
    flat = rewards.flatten().tolist()
    mean = sum(flat) / len(flat)
    return torch.tensor([x - mean for x in flat], dtype=rewards.dtype).reshape(rewards.shape)


def bc_projection(rewards):
    n = rewards.numel()
    centring = torch.eye(n, dtype=rewards.dtype) - 1 / n
    return (centring @ rewards.reshape(-1)).view_as(rewards)


def bc_einops(rewards):
    return rewards - reduce(rewards, "p g -> ", "mean")


def bc_float32(rewards):
    rewards = rewards.float()
    return rewards.sub(rewards.mean())


def bc_in_place(rewards):
    out = rewards.clone()
    out -= rewards.mean()
    return out


def gc_loop(rewards):
    return torch.stack([row - sum(row) / len(row) for row in rewards])


def gc_einops(rewards):
    mean = reduce(rewards, "p g -> p", "mean")
    return rewards - repeat(mean, "p -> p g", g=rewards.shape[1])


def gc_projection(rewards):
    group = rewards.shape[1]
    return rewards @ (torch.eye(group) - torch.full((group, group), 1 / group)).to(rewards.dtype)


def gc_pairwise(rewards):
    return (rewards[:, :, None] - rewards[:, None, :]).mean(2)


def gc_rescaled_loo(rewards):
    group = rewards.shape[1]
    others = (rewards.sum(1, keepdim=True) - rewards) / (group - 1)
    return (rewards - others) * (group - 1) / group


def gc_float32(rewards):
    return (rewards.float().T - rewards.float().mean(1)).T


def gs_ddof_0(rewards, *, eps=1e-4):
    centred = rewards - rewards.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True).sqrt() + eps)


def gs_loop(rewards, *, eps=1e-4):
    rows = []
    for row in rewards.tolist():
        mean = sum(row) / len(row)
        std = math.sqrt(sum((x - mean) ** 2 for x in row) / (len(row) - 1))
        rows.append([(x - mean) / (std + eps) for x in row])
    return torch.tensor(rows, dtype=rewards.dtype)


def gs_std_mean(rewards, *, eps=1e-4):
    std, mean = torch.std_mean(rewards, dim=1, keepdim=True)
    return (rewards - mean).div(std + eps)


def gs_float32(rewards, *, eps=1e-4):
    return gs_std_mean(rewards.float(), eps=eps)


def gs_where(rewards, *, eps=1e-4):
    alive = (rewards.amax(1) != rewards.amin(1))[:, None]
    return torch.where(alive, gs_std_mean(rewards, eps=eps), torch.zeros_like(rewards))


def gs_pairwise(rewards, *, eps=1e-4):
    gaps = rewards[:, :, None] - rewards[:, None, :]
    group = rewards.shape[1]
    std = (gaps.square().sum((1, 2)) / (2 * group * (group - 1))).sqrt()
    return gaps.mean(2) / (std[:, None] + eps)


def gs_ddof_0_in_place(rewards, *, eps=1e-4):
    out = rewards.clone()
    out -= out.mean(1, keepdim=True)
    out /= rewards.std(1, keepdim=True, unbiased=False) + eps
    return out


def loo_rescaled(rewards):
    group = rewards.shape[1]
    return (rewards - rewards.mean(1, keepdim=True)) * group / (group - 1)


def loo_loop(rewards):
    out = torch.empty_like(rewards)
    for p in range(rewards.shape[0]):
        for i in range(rewards.shape[1]):
            others = [float(rewards[p, j]) for j in range(rewards.shape[1]) if j != i]
            out[p, i] = rewards[p, i] - sum(others) / len(others)
    return out


def loo_matrix(rewards):
    group = rewards.shape[1]
    off = (1 - torch.eye(group, dtype=rewards.dtype)) / (group - 1)
    return rewards - rewards @ off


def loo_masked(rewards):
    group = rewards.shape[1]
    others = ~torch.eye(group, dtype=torch.bool)
    return rewards - (rewards[:, None, :] * others).sum(2) / others.sum(1)


def loo_pairwise(rewards):
    return (rewards[:, :, None] - rewards[:, None, :]).sum(2) / (rewards.shape[1] - 1)


def loo_float32(rewards):
    return loo_rescaled(rewards.float())


def ob_loop(rewards, scores):
    top = bottom = 0.0
    for r, s in zip(rewards.tolist(), scores.tolist(), strict=True):
        size = sum(x * x for x in s)
        top, bottom = top + size * r, bottom + size
    return torch.tensor(top / bottom)


def ob_einsum(rewards, scores):
    return torch.einsum("n,nk,nk->", rewards, scores, scores) / torch.einsum(
        "nk,nk->", scores, scores
    )


def ob_norm(rewards, scores):
    weight = torch.linalg.vector_norm(scores, dim=1) ** 2
    return (weight * rewards).mean() / weight.mean()


def ob_number(rewards, scores):
    weight = (scores**2).sum(-1)
    return float(weight @ rewards / weight.sum())


def ob_weights_first(rewards, scores):
    weight = scores.pow(2).sum(1)
    return (weight / weight.sum() * rewards).sum()


def ob_gram(rewards, scores):
    gram = torch.diagonal(scores @ scores.T)
    return (gram @ rewards) / gram.sum()


def ob_least_squares(rewards, scores):
    """b* solves the weighted least squares of R against a constant."""
    size = scores.norm(dim=1, keepdim=True)
    return torch.linalg.lstsq(size, size * rewards[:, None]).solution.reshape(())


def ob_float32(rewards, scores):
    return ob_norm(rewards.float(), scores.float())


EQUIVALENT = {
    "token_log_probs": [
        tlp_cross_entropy, tlp_loops, tlp_one_hot_einsum, tlp_by_hand, tlp_float32,
        tlp_distribution, tlp_own_tensor_in_place,
    ],
    "reinforce": [rf_loop, rf_data, rf_einsum, rf_float32, rf_mul_neg, rf_in_place],
    "reward_to_go": [rtg_python, rtg_double_loop, rtg_matrix, rtg_float32, rtg_where_in_place],
    "batch_centered": [bc_sum, bc_loop, bc_projection, bc_einops, bc_float32, bc_in_place],
    "group_centered": [
        gc_loop, gc_einops, gc_projection, gc_pairwise, gc_rescaled_loo, gc_float32,
    ],
    "group_standardized": [
        gs_ddof_0, gs_loop, gs_std_mean, gs_float32, gs_where, gs_pairwise, gs_ddof_0_in_place,
    ],
    "leave_one_out": [
        loo_rescaled, loo_loop, loo_matrix, loo_masked, loo_pairwise, loo_float32,
    ],
    "optimal_baseline": [
        ob_loop, ob_einsum, ob_norm, ob_number, ob_weights_first, ob_gram, ob_least_squares,
        ob_float32,
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "answer"), [(n, f) for n, answers in EQUIVALENT.items() for f in answers]
)
def test_an_equivalent_right_answer_gets_full_points(name, answer):
    for seed in (0, 1, 2):
        for cases in ("visible", "final"):
            verdict = judge(f"hw1/{name}", answer, cases=cases, seed=seed)
            assert verdict.passed, (verdict.cause, verdict.details)


def test_every_question_has_at_least_five_equivalent_answers():
    assert all(len(EQUIVALENT[q.function_name]) >= 5 for q in HW1)


def test_the_accepted_divisor_is_named():
    assert judge("hw1/group_standardized", gs_loop).details["note"] == "ddof 1"
    assert judge("hw1/group_standardized", gs_ddof_0).details["note"] == "ddof 0"


# --- wrong answers as people write them, independent of the catalogue -----------------------


def gather(log_probs, tokens):
    return log_probs.gather(-1, tokens[..., None])[..., 0]


def walk(rewards, step):
    """Fill columns from the last to the first with step(t, carry)."""
    out, carry = torch.zeros_like(rewards), torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        carry = step(t, carry)
        out[:, t] = carry
    return out


def rtg_done_read_late(rewards, done, *, gamma):
    done, carry, out = done.float(), torch.zeros_like(rewards[:, 0]), torch.zeros_like(rewards)
    for t in reversed(range(rewards.shape[1])):
        carry = rewards[:, t] + gamma * carry
        out[:, t] = carry
        carry = carry * (1 - done[:, t])
    return out


def rtg_whole(rewards, done, *, gamma):
    right = rtg_python(rewards, done, gamma=gamma)
    for t in range(1, rewards.shape[1]):
        right[:, t] = torch.where(done[:, t - 1] > 0, right[:, t], right[:, t - 1])
    return right


def rtg_past(rewards, done, *, gamma):
    out = rewards.clone()
    for t in range(1, rewards.shape[1]):
        out[:, t] += gamma * (1 - done[:, t - 1].float()) * out[:, t - 1]
    return out


def rtg_no_restart(rewards, done, *, gamma):
    return walk(rewards, lambda t, carry: rewards[:, t] + gamma * carry)


def rtg_forward(rewards, done, *, gamma):
    out, carry = torch.zeros_like(rewards), torch.zeros_like(rewards[:, 0])
    for t in range(rewards.shape[1]):
        carry = rewards[:, t] + gamma * (1 - done[:, t].float()) * carry
        out[:, t] = carry
    return out


def rtg_from_last(rewards, done, *, gamma):
    out, carry = torch.zeros_like(rewards), rewards[:, -1]
    for t in reversed(range(rewards.shape[1])):
        carry = rewards[:, t] + gamma * (1 - done[:, t].float()) * carry
        out[:, t] = carry
    return out


def rtg_powers(rewards, done, *, gamma):
    """A discounted cumulative sum, the discount divided out again, within each episode."""
    power = gamma ** torch.arange(rewards.shape[1], dtype=rewards.dtype)
    out = torch.zeros_like(rewards)
    for b in range(len(rewards)):
        start = 0
        for t in range(rewards.shape[1]):
            if done[b, t] or t == rewards.shape[1] - 1:
                part = slice(start, t + 1)
                summed = (rewards[b, part] * power[part]).flip(0).cumsum(0).flip(0)
                out[b, part] = summed / power[part]
                start = t + 1
    return out


def gs_no_eps(rewards, *, eps=1e-4):
    return (rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, keepdim=True)


def loo_wrong_divisor(rewards):
    group = rewards.shape[1]
    return rewards - (rewards.sum(1, keepdim=True) - rewards) / group


WRONG = [
    ("token_log_probs", lambda z, y, *, temperature: gather(z.log_softmax(-1), y),
     "temperature_ignored"),
    ("token_log_probs", lambda z, y, *, temperature: gather((z * temperature).log_softmax(-1), y),
     "temperature_multiplied"),
    ("token_log_probs", lambda z, y, *, temperature: gather((z / temperature).softmax(-1), y),
     "probabilities"),
    ("token_log_probs", lambda z, y, *, temperature: gather(z / temperature, y), "no_normaliser"),
    ("token_log_probs",
     lambda z, y, *, temperature: gather((z / temperature).log_softmax(-1)[:, :-1], y[:, 1:]),
     "shifted"),
    ("token_log_probs", lambda z, y, *, temperature: gather((z / temperature).log_softmax(1), y),
     "softmax_over_time"),
    ("token_log_probs",
     lambda z, y, *, temperature: F.cross_entropy((z / temperature).flatten(0, 1), y.flatten(),
                                                  reduction="none").reshape(y.shape), "negative"),
    ("reinforce", lambda logp, a: logp * a.detach(), "missing_minus"),
    ("reinforce", lambda logp, a: -logp * a, "advantages_not_detached"),
    ("reinforce", lambda logp, a: -(logp * a).detach(), "logp_detached"),
    ("reinforce", lambda logp, a: -logp.mean(1, keepdim=True) * a.detach() + 0 * logp,
     "mean_log_prob_spread"),
    ("reinforce", lambda logp, a: (-logp * a.detach()).mean(), "mean"),
    ("reinforce", lambda logp, a: (-logp * a.detach()).sum(-1), "sum_over_time"),
    ("reinforce", lambda logp, a: -logp.exp() * a.detach(), "probabilities"),
    ("token_log_probs", lambda z, y, *, temperature: F.pad(
        gather((z / temperature).log_softmax(-1)[:, :-1], y[:, 1:]), (1, 0)), "shifted_padded"),
    ("token_log_probs", lambda z, y, *, temperature: gather(z.log_softmax(-1) / temperature, y),
     "temperature_after"),
    ("token_log_probs", lambda z, y, *, temperature: (z / temperature).log_softmax(-1).amax(-1),
     "argmax_token"),
    ("reward_to_go", lambda r, d, *, gamma: (lambda g: (g - g.mean()) / (g.std() + 1e-5))(
        rtg_python(r, d, gamma=gamma)), "standardised"),
    ("reward_to_go", lambda r, d, *, gamma: rtg_python(r.T, d.T, gamma=gamma).T, "over_batch"),
    ("reward_to_go", lambda r, d, *, gamma: rtg_python(r * ~d.bool(), d, gamma=gamma),
     "done_reward_dropped"),
    ("group_centered", lambda r: gs_std_mean(r, eps=1e-8), "standardised"),
    ("group_centered", lambda r: gs_ddof_0(r, eps=1e-6), "standardised_ddof_0"),
    ("group_standardized", lambda r, *, eps: F.layer_norm(r, r.shape[1:], eps=eps),
     "eps_inside_root"),
    ("group_standardized", lambda r, *, eps: (r - r.mean()) / (r.std() + eps), None),
    ("leave_one_out", lambda r: torch.stack([r[:, i] - r[:, [j for j in range(r.shape[1])
        if j != i]].sum(1) for i in range(r.shape[1])], 1), "sum_of_others"),
    ("optimal_baseline", lambda r, s: r @ s.abs().sum(1) / s.abs().sum(), "l1"),
    ("reward_to_go", rtg_done_read_late, "done_off_by_one"),
    ("reward_to_go", rtg_whole, "whole_return"),
    ("reward_to_go", rtg_past, "forward_cumsum"),
    ("reward_to_go", rtg_no_restart, "not_restarted"),
    ("reward_to_go", lambda r, d, *, gamma: rtg_python(r, d, gamma=1.0), "gamma_forgotten"),
    ("reward_to_go", lambda r, d, *, gamma: rtg_python(r, d, gamma=gamma) - r,
     "own_reward_missing"),
    ("batch_centered", lambda r: r - r.mean(1, keepdim=True), "group_mean"),
    ("batch_centered", lambda r: r - r.mean(0), "wrong_axis"),
    ("batch_centered", lambda r: (r - r.mean()) / r.std(), "standardised"),
    ("group_centered", lambda r: r - r.mean(), "batch_mean"),
    ("group_centered", lambda r: r - r.mean(0), "wrong_axis"),
    ("group_centered", loo_rescaled, "leave_one_out"),
    ("group_centered", lambda r: (r.reshape(r.shape[1], -1) - r.reshape(r.shape[1], -1).mean(0))
     .reshape(r.shape), "interleaved"),
    ("group_standardized", gs_no_eps, "eps_missing"),
    ("group_standardized", lambda r, *, eps: gs_loop(r, eps=1e-8), "eps_too_small"),
    ("group_standardized", lambda r, *, eps: (r - r.mean(1, keepdim=True)) / (r.std() + eps),
     "batch_std"),
    ("group_standardized", lambda r, *, eps: gs_loop(gs_loop(r, eps=eps), eps=eps), "twice"),
    ("group_standardized", lambda r, *, eps: gs_loop(r.T, eps=eps).T, "wrong_axis"),
    ("group_standardized", lambda r, *, eps: (r - r.mean(1, keepdim=True))
     / torch.sqrt(r.var(1, keepdim=True) + eps), "eps_inside_root"),
    ("leave_one_out", loo_wrong_divisor, "divisor_group"),
    ("leave_one_out", gc_einops, "own_included"),
    ("leave_one_out", lambda r: r - (r.sum() - r) / (r.numel() - 1), "batch_others"),
    ("optimal_baseline", lambda r, s: r.mean(), "unweighted"),
    ("optimal_baseline", lambda r, s: (s.norm(dim=1) * r).sum() / s.norm(dim=1).sum(), "norm"),
    ("optimal_baseline", lambda r, s: (s**2 * r[:, None]).mean(0) / (s**2).mean(0),
     "per_parameter"),
    ("optimal_baseline", lambda r, s: ((s**2).sum(1) * r).mean(), "not_normalised"),
    # First tries of a learner who had only the lectures.
    ("token_log_probs", lambda z, y, *, temperature: (lambda x: gather(x - x.max(), y)
     - (x - x.max()).exp().sum(-1).log())(z / temperature), "global_maximum"),
    ("token_log_probs", lambda z, y, *, temperature: gather(z / temperature, y)
     - (z / temperature).exp().sum(-1).log(), "exp_unprotected"),
    ("token_log_probs", lambda z, y, *, temperature: gather(
        torch.log((z / temperature).softmax(-1)), y), "log_of_softmax"),
    ("token_log_probs", lambda z, y, *, temperature: gather(
        (z / temperature).log_softmax(-1), y).squeeze(), "squeezed"),
    ("token_log_probs", lambda z, y, *, temperature: gather(
        (z / temperature).log_softmax(-1), y) / math.log(10), "base_10"),
    ("optimal_baseline", lambda r, s: ((s**2).sum(1, keepdim=True) * r).sum() / (s**2).sum(),
     "outer"),
    ("optimal_baseline", lambda r, s: ((s**2).sum(1, keepdim=True) * r).mean()
     / (s**2).sum(1, keepdim=True).mean(), "unweighted"),
    ("reward_to_go", lambda r, d, *, gamma: walk(r, lambda t, carry: gamma * (
        r[:, t] + (1 - d[:, t].float()) * carry)), "one_discount_more"),
    ("reward_to_go", lambda r, d, *, gamma: r.sum(1, keepdim=True).expand_as(r), "row_sum"),
    ("reward_to_go", lambda r, d, *, gamma: r.cumsum(1), "plain_cumsum"),
    ("reward_to_go", lambda r, d, *, gamma: r + gamma * (1 - d.to(r.dtype)) * F.pad(
        r[:, 1:], (0, 1)), "next_only"),
    ("reward_to_go", lambda r, d, *, gamma: rtg_python(r, d, gamma=gamma) * gamma
     ** torch.arange(r.shape[1]), "discounted_from_column_0"),
    ("reward_to_go", lambda r, d, *, gamma: torch.cat([0 * r[:, :1], rtg_python(
        r, d, gamma=gamma)[:, 1:]], 1), "first_column_missing"),
    ("reward_to_go", lambda r, d, *, gamma: rtg_python(r, d, gamma=gamma).flip(1),
     "not_flipped_back"),
    ("reward_to_go", lambda r, d, *, gamma: rtg_forward(r, d, gamma=gamma), "forward_loop"),
    ("reward_to_go", lambda r, d, *, gamma: rtg_from_last(r, d, gamma=gamma), "carry_from_last"),
    ("reward_to_go", lambda r, d, *, gamma: rtg_powers(r, d, gamma=gamma), "divided_by_discount"),
    ("leave_one_out", lambda r: r - (r.sum(1, keepdim=True) - r) / (r.shape[0] - 1),
     "divisor_prompts"),
    ("leave_one_out", lambda r: r - r.mean(), "batch_mean"),
    ("group_centered", lambda r: (r - r.mean(1, keepdim=True)) / r.std(1, keepdim=True),
     "standardised"),
    ("group_standardized", lambda r, *, eps: gs_no_eps(r).nan_to_num(), "eps_too_small"),
    ("group_standardized", lambda r, *, eps: (lambda x: x / (x.square().sum(1, keepdim=True).sqrt()
     + eps))(r - r.mean(1, keepdim=True)), "sum_of_squares"),
    ("group_standardized", lambda r, *, eps: gs_loop(r, eps=eps).clamp(-5, 5), "clamped_at_5"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answer", "mistake"), WRONG)
def test_a_wrong_answer_written_independently_is_named(name, answer, mistake):
    for cases in ("visible", "final"):
        verdict = judge(f"hw1/{name}", answer, cases=cases)
        assert verdict.points < verdict.max_points
        expected = {"batch_mean", "batch_std"} if mistake is None else {mistake}
        assert set(verdict.details["named"]) == expected, (verdict.cause, verdict.details)


OUTSIDE = [
    ("token_log_probs", lambda z, y, *, temperature: torch.tanh(gather(z, y))),
    ("token_log_probs", lambda z, y, *, temperature: gather((z / temperature).log_softmax(-1), y)
     * torch.linspace(0.5, 1.5, y.shape[1])),
    ("reinforce", lambda logp, a: -logp * a.detach() + 0.01 * logp**2),
    ("reinforce", lambda logp, a: -3 * logp * a.detach()),
    ("reinforce", lambda logp, a: (-logp * a.detach()).detach() - 2 * (logp - logp.detach())
     * a.detach()),
    ("reward_to_go", lambda r, d, *, gamma: rtg_python(r, d, gamma=gamma**0.5)),
    ("reward_to_go", lambda r, d, *, gamma: rtg_python(r, d, gamma=gamma).flip(0)),
    ("batch_centered", lambda r: r - r.mean() + 0.25),
    ("batch_centered", lambda r: r - r.square().mean().sqrt()),
    ("group_centered", lambda r: r - r.logsumexp(1, keepdim=True)),
    ("group_centered", lambda r: (r - r.mean(1, keepdim=True))
     * torch.arange(1.0, r.shape[0] + 1)[:, None]),
    ("group_standardized", lambda r, *, eps: torch.tanh(gs_loop(r, eps=eps))),
    ("leave_one_out", lambda r: loo_loop(r) * 7),
    ("leave_one_out", lambda r: loo_loop(r).sort(1)[0]),
    ("optimal_baseline", lambda r, s: (s.abs().sum(1) ** 3 * r).sum() / (s.abs() ** 3).sum()),
    ("optimal_baseline", lambda r, s: r.max()),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answer"), OUTSIDE)
def test_a_mistake_outside_the_catalogue_is_described_or_unknown_but_not_named(name, answer):
    verdict = judge(f"hw1/{name}", answer)
    assert not verdict.passed
    assert verdict.details["named"] == []
    assert "unknown" in verdict.cause or verdict.cause.startswith(("The result ", "The values are"))
    assert verdict.details["hint"]


def test_the_map_finds_what_it_can_say():
    said = {i: judge(f"hw1/{n}", f).cause for i, (n, f) in enumerate(OUTSIDE)}
    assert "3 times" in said[3]
    assert "gradient of logp is 2 times" in said[4]
    assert "its rows in reverse order" in said[6]
    assert "same amount" in said[7]
    assert "for each row" in said[10]
    assert "7 times" in said[12]
    assert sum("unknown" in text for text in said.values()) < len(said) / 2


# --- the numbers of the statements and of the known bugs ------------------------------------


def close(actual, expected, atol=1e-3):
    torch.testing.assert_close(actual, torch.tensor(expected), atol=atol, rtol=0)


def test_the_hand_examples_of_the_statements_are_right(solution):
    logits = torch.log(torch.tensor([[[1.0, 2, 1], [3, 1, 1]]]))
    tokens = torch.tensor([[1, 0]])
    close(solution["token_log_probs"](logits, tokens), [[-0.693, -0.511]])
    close(solution["token_log_probs"](logits, tokens, temperature=0.5), [[-0.405, -0.201]])
    logp = torch.tensor([[-1.0, -2, -0.5], [-0.3, -1, -2]], requires_grad=True)
    loss = solution["reinforce"](logp, torch.tensor([[2.0], [-1.0]]))
    close(loss.detach(), [[2.0, 4, 1], [-0.3, -1, -2]])
    close(torch.autograd.grad(loss.sum(), logp)[0], [[-2.0] * 3, [1.0] * 3])
    rewards, done = torch.tensor([[1.0, 0, 2], [0, 3, 1]]), torch.tensor([[0, 0, 1], [0, 1, 0]])
    close(solution["reward_to_go"](rewards, done, gamma=0.5), [[1.5, 1, 2], [1.5, 3, 1]])
    rewards = torch.tensor([[1.0, 0, 2], [5, 5, 2]])
    close(solution["batch_centered"](rewards), [[-1.5, -2.5, -0.5], [2.5, 2.5, -0.5]])
    close(solution["group_centered"](rewards), [[0.0, -1, 1], [1, 1, -2]])
    close(solution["leave_one_out"](rewards), [[0.0, -1.5, 1.5], [1.5, 1.5, -3]])
    flat = torch.tensor([[1.0, 0, 2], [3, 3, 3]])
    close(solution["group_standardized"](flat, eps=1e-8), [[0.0, -1, 1], [0, 0, 0]])
    close(gs_ddof_0(flat, eps=1e-8), [[0.0, -1.225, 1.225], [0, 0, 0]])
    scores = torch.tensor([[1.0, 0, 0], [1, 1, 1]])
    close(solution["optimal_baseline"](torch.tensor([4.0, 0]), scores), 1.0)
    size = scores.norm(dim=1)
    close((size * torch.tensor([4.0, 0])).sum() / size.sum(), 1.464)


def test_the_numbers_of_the_reflections_are_right():
    p = torch.tensor([0.8, 0.2], dtype=torch.float64)
    rewards = torch.tensor([3.0, 1.0], dtype=torch.float64)
    score = torch.tensor([0.2, -0.8], dtype=torch.float64)
    b = (p * score**2 * rewards).sum() / (p * score**2).sum()

    def variance(baseline):
        g = (rewards - baseline) * score
        return float((p * g**2).sum() - (p * g).sum() ** 2)

    assert float(b) == pytest.approx(1.4)
    assert float((p * rewards).sum()) == pytest.approx(2.6)
    shown = [variance(x) for x in (1.4, 2.6, 0.0, 2.8)]
    assert shown == pytest.approx([0.0, 0.2304, 0.3136, 0.3136])
    # Two steps paid a and 1: Ψ₀u₀ + Ψ₁u₁ over fair coins, whose scores have variance ¼.
    coins = torch.tensor([[0.5, 0.5], [0.5, -0.5], [-0.5, 0.5], [-0.5, -0.5]])
    for a in (-3.0, -1.5, -1.0, -0.5, 1.0):
        whole, to_go = torch.tensor([a + 1, a + 1]), torch.tensor([a + 1, 1.0])
        noise = [float((coins @ w).var(correction=0)) for w in (whole, to_go)]
        assert noise == pytest.approx([2 * (a + 1) ** 2 / 4, ((a + 1) ** 2 + 1) / 4])
        assert (noise[1] > noise[0]) == (-2 < a < 0)
    assert pytest.approx(1.375) == (11 / 12) / (2 / 3)
    one, four = (torch.tensor([1.0] * k + [0.0] * (8 - k)) for k in (1, 4))
    assert [float(x.std()) for x in (one, four)] == pytest.approx([0.354, 0.535], abs=1e-3)
    assert float(four.std() / one.std()) == pytest.approx(1.512, abs=1e-3)
    assert float(four.std(correction=0) / one.std(correction=0)) == pytest.approx(1.512, abs=1e-3)


def test_known_numbers_of_right_and_wrong(solution):
    """One-hot group, temperature ½, centred groups: the numbers on which the bugs were reported."""
    hot = torch.tensor([[1.0, 0, 0, 0]])
    close(solution["group_standardized"](hot, eps=0.0), [[1.5, -0.5, -0.5, -0.5]])
    close(gs_ddof_0(hot, eps=0.0), [[1.732, -0.577, -0.577, -0.577]])
    close(solution["leave_one_out"](hot), [[1.0] + [-1 / 3] * 3])
    close(loo_wrong_divisor(hot), [[1.0] + [-0.25] * 3])
    close(gc_einops(hot), [[0.75] + [-0.25] * 3])
    logits, token = torch.tensor([[[2.0, 0.0]]]), torch.tensor([[0]])
    assert float(solution["token_log_probs"](logits, token, temperature=0.5)) == pytest.approx(
        -0.018, abs=5e-4
    )
    for factor, number in ((1.0, -0.127), (0.5, -0.313)):
        wrong = gather((logits * factor).log_softmax(-1), token)
        assert float(wrong) == pytest.approx(number, abs=5e-4)
    pairs = torch.tensor([[1.0, 0], [1, 1]])
    close(solution["group_centered"](pairs), [[0.5, -0.5], [0, 0]])
    close(pairs - pairs.mean(), [[0.25, -0.75], [0.25, 0.25]])
    close(pairs - pairs.mean(0), [[0.0, -0.5], [0, 0.5]])


def test_eps_of_1e_8_fails_on_equal_rewards_in_float32():
    """The property behind the stability case: rounding alone gives all eight an advantage."""
    rewards = torch.full((1, 8), 0.7)
    mean = sum(rewards[0]) / 8  # one of several orders of addition
    centred = rewards - mean
    std = centred.square().mean().sqrt()
    assert float((centred / (std + 1e-8)).abs().max()) > 0.5
    assert float((centred / (std + 1e-4)).abs().max()) < 2e-3


# --- the notebook ----------------------------------------------------------------------------


def source_of(notebook, cell_id):
    return next(c.source for c in notebook.cells if c.id == cell_id)


def test_the_experiment_shows_what_its_reflection_says(notebook, capsys):
    """The value hurts as soon as it is farther from b* than 0 is, wherever the judge has put 0."""
    columns = {}
    for choice in ("-1/+1", "graded", "graded - 3"):
        source = source_of(notebook, "experiment-run")
        source = source.replace('choice = "-1/+1"', f'choice = "{choice}"')
        exec(source, {"torch": torch, "prediction": "(b)"})
        shown = capsys.readouterr().out
        assert "(b)" in shown
        table = [[float(x) for x in line.split()] for line in shown.splitlines()[1:9]]
        columns[choice] = torch.tensor(table, dtype=torch.float64).T
    for _, _, none, value, best, _ in columns.values():
        assert (best <= torch.minimum(none, value) + 1e-4).all()
    mean, ratio = columns["-1/+1"][1], columns["-1/+1"][5]
    assert ((ratio > 1) == (mean > 0)).all()
    assert (ratio.diff() > 0).all()
    assert (float(ratio[0]), float(ratio[-1])) == (0.19, 3.49)
    assert columns["graded"][5].max() == 0.11
    graded, moved = columns["graded"], columns["graded - 3"]
    assert torch.equal(graded[3:5], moved[3:5])
    assert 17 <= (graded[2] / moved[2]).min() < (graded[2] / moved[2]).max() <= 22
    assert ((moved[5] > 1) == (moved[1] > 1.5)).all()


def test_the_planted_bugs_show_hide_and_are_two(notebook, capsys):
    step, probe = source_of(notebook, "bug-step"), source_of(notebook, "bug-probe")
    fix_axis = ("mean(dim=0", "mean(dim=1")
    fix_temperature = ("logits * temperature", "logits / temperature")

    def run(*fixes, rewards=None, temperature=None):
        source = step
        for old, new in fixes:
            assert old in source
            source = source.replace(old, new)
        test = probe
        if rewards:
            test = re.sub(
                r"rewards = torch.tensor\(.*?\)", f"rewards = torch.tensor({rewards})", test
            )
        if temperature:
            test = test.replace("temperature = 0.5", f"temperature = {temperature}")
        space = {"torch": torch}
        exec(source + "\n" + test, space)
        slope = space["slope"][:, 0].reshape(space["rewards"].shape)
        assert "-0.0000" not in capsys.readouterr().out
        return slope, space["logp"].detach().exp() / space["drawn_from"], space["rewards"]

    slope, ratio, rewards = run(fix_axis, fix_temperature)
    torch.testing.assert_close(slope, -(rewards - rewards.mean(1, keepdim=True)))
    torch.testing.assert_close(ratio, torch.ones_like(ratio))
    slope, ratio, _ = run()
    assert (slope.sum(1).abs() > 0.1).all()
    assert (slope.sum(0).abs() < 1e-5).all()
    assert ((ratio - 1).abs() > 0.05).any()
    hidden = "[[1.0, 0.0], [0.0, 1.0]]"
    slope, _, rewards = run(rewards=hidden)
    torch.testing.assert_close(slope, -(rewards - rewards.mean(1, keepdim=True)))
    _, ratio, _ = run(temperature=1.0)
    torch.testing.assert_close(ratio, torch.ones_like(ratio))
    assert run(fix_temperature)[0].sum(1).abs().max() > 0.1  # each fix alone is not enough
    capsys.readouterr()


@pytest.mark.slow
def test_check_in_a_learners_kernel():
    """A library call through another cell is refused; a verdict is shown once, and on demand."""
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    define = "def batch_centered(rewards):\n    return {}"
    sources = [
        "import torch\nfrom autograder import check\nimport policy_gradients.advantages as pg",
        define.format("rewards - rewards.mean()"),
        'verdict = check("hw1/batch_centered", batch_centered)\nverdict',
        "verdict",
        define.format("pg.batch_centered(rewards)"),
        'check("hw1/batch_centered", batch_centered)',
        "from policy_gradients.advantages import batch_centered as ready\n"
        + define.format("rewards - rewards.mean()"),
        'check("hw1/batch_centered", batch_centered)',
    ]
    notebook = new_notebook(cells=[new_code_cell(s) for s in sources])
    NotebookClient(notebook, timeout=120).execute()
    outputs = [c.outputs for c in notebook.cells]
    tables = [[o["data"]["text/html"] for o in outs if o["data"]["text/html"]] for outs in outputs]
    assert [len(t) for t in tables] == [0, 0, 1, 1, 0, 1, 0, 1]
    assert "passed" in tables[2][0]
    assert tables[2] == tables[3]
    for refused in (5, 7):
        assert "policy_gradients" in tables[refused][0]
        assert "0 of 1 point" in tables[refused][0]


def divided_by_the_discount(rewards, done, *, gamma):
    """Right where no power of gamma becomes 0 and done never is 1 before the end."""
    out = torch.zeros_like(rewards)
    power = gamma ** torch.arange(rewards.shape[1], dtype=rewards.dtype)
    for row, ends in zip(range(len(rewards)), done.bool().tolist(), strict=True):
        start = 0
        for t, end in enumerate(ends):
            if end or t == len(ends) - 1:
                part = rewards[row, start : t + 1] * power[start : t + 1]
                sums = part.flip(0).cumsum(0).flip(0)
                out[row, start : t + 1] = sums / power[start : t + 1]
                start = t + 1
    return out


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("reward_to_go", divided_by_the_discount),
        ("reinforce", lambda logp, a: -a.detach() * logp.clamp(min=-5)),
        ("reinforce", lambda logp, a: -a.detach().clamp(-5, 5) * logp),
        ("optimal_baseline", lambda r, s: (s * s).sum(1) @ r / ((s * s).sum() + 1e-6)),
        ("optimal_baseline", lambda r, s: (s.double() ** 2).sum(1) @ r / (s * s).sum()),
    ],
)
def test_what_is_right_for_ordinary_numbers_only_loses_points(name, answer):
    for cases in ("visible", "final"):
        verdict = judge(f"hw1/{name}", answer, cases=cases)
        assert not verdict.passed, cases
