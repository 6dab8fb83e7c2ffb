"""Homework 2: right answers of every style pass, real wrong ones are named, the notebook is fit."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from autograder.judge import judge
from autograder.questions import QUESTIONS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "solutions/hw2_clipping_and_gae/hw2_clipping_and_gae.ipynb"
HW2 = [q for q in QUESTIONS.values() if q.homework == "hw2"]


# --- right answers, written in other ways ---------------------------------------------------


def tr_loop(logp, logp_old):
    old = logp_old.tolist()
    return torch.stack(
        [
            torch.stack([math.e ** (x - old[b][t]) for t, x in enumerate(row)])
            for b, row in enumerate(logp)
        ]
    )


def tr_no_grad(logp, logp_old):
    with torch.no_grad():
        old = logp_old.clone()
    return logp.sub(old).exp()


def tr_inverse(logp, logp_old):
    return 1 / (logp_old.data - logp).exp()


def tr_expm1(logp, logp_old):
    return torch.expm1(logp - logp_old.detach()) + 1


def tr_float32(logp, logp_old):
    return (logp.float() - logp_old.detach().float()).exp()


def tr_in_place(logp, logp_old):
    gap = logp.clone()
    gap -= logp_old.detach()
    return gap.clamp(-20, 20).exp()


def pc_two_losses(logp, logp_old, advantages, *, eps_low, eps_high):
    advantages = advantages.detach()
    ratio = (logp - logp_old.detach()).exp()
    losses = -advantages * ratio, -advantages * ratio.clamp(1 - eps_low, 1 + eps_high)
    return torch.max(*losses)


def pc_where(logp, logp_old, advantages, *, eps_low, eps_high):
    """The gate of [RC-7], written out."""
    a = advantages.detach().expand_as(logp)
    ratio = (logp - logp_old.detach()).exp()
    high = (a > 0) & (ratio > 1 + eps_high)
    low = (a < 0) & (ratio < 1 - eps_low)
    edge = torch.where(high, 1 + eps_high, torch.where(low, 1 - eps_low, ratio))
    return -edge * a


def pc_paper_gate(logp, logp_old, advantages, *, eps_low, eps_high):
    """min(ρA, g(A)) with g(A) = (1 ± ε)A."""
    a = advantages.detach()
    ratio = (logp - logp_old.detach()).exp()
    return -torch.minimum(ratio * a, torch.where(a > 0, (1 + eps_high) * a, (1 - eps_low) * a))


def pc_loop(logp, logp_old, advantages, *, eps_low, eps_high):
    rows = []
    for b in range(logp.shape[0]):
        row = []
        for t in range(logp.shape[1]):
            a = advantages[b, t if advantages.shape[1] > 1 else 0].item()
            ratio = torch.exp(logp[b, t] - logp_old[b, t].item())
            number = ratio.item()
            clipped = min(max(number, 1 - eps_low), 1 + eps_high)
            row.append(-ratio * a if number * a <= clipped * a else -clipped * a + 0 * ratio)
        rows.append(torch.stack(row))
    return torch.stack(rows).to(logp.dtype)


def pc_float32(logp, logp_old, advantages, *, eps_low, eps_high):
    inputs = (x.float() for x in (logp, logp_old, advantages))
    return pc_two_losses(*inputs, eps_low=eps_low, eps_high=eps_high)


def pc_stacked(logp, logp_old, advantages, *, eps_low, eps_high):
    ratio = (logp - logp_old.data).exp()
    both = torch.stack([ratio, torch.clip(ratio, 1 - eps_low, 1 + eps_high)])
    return (both * advantages.data).amin(0).neg()


def k1_add(logp, logp_ref):
    return logp + logp_ref * -1


def k1_log_of_ratio(logp, logp_ref):
    return torch.log(torch.exp(logp - logp_ref))


def k1_in_place(logp, logp_ref):
    out = logp.clone()
    out -= logp_ref
    return out


def k1_float32(logp, logp_ref):
    return logp.float() - logp_ref.float()


def k1_detached_ref(logp, logp_ref):
    return torch.sub(logp, logp_ref.detach())


def k1_einsum(logp, logp_ref):
    return torch.einsum("kbt,k->bt", torch.stack([logp, logp_ref]), logp.new_tensor([1.0, -1.0]))


def k2_power(logp, logp_ref):
    return (logp - logp_ref) ** 2 / 2


def k2_reversed(logp, logp_ref):
    gap = logp_ref.detach() - logp
    return gap * gap * 0.5


def k2_mse(logp, logp_ref):
    return 0.5 * F.mse_loss(logp, logp_ref, reduction="none")


def k2_loop(logp, logp_ref):
    return torch.stack([0.5 * (a - b).pow(2) for a, b in zip(logp, logp_ref, strict=True)])


def k2_float32(logp, logp_ref):
    return 0.5 * (logp.float() - logp_ref.float()).square()


def k2_expanded(logp, logp_ref):
    return logp**2 / 2 + logp_ref**2 / 2 - logp * logp_ref


def k3_reversed(logp, logp_ref):
    gap = logp_ref - logp
    return torch.expm1(gap) - gap


def k3_float64(logp, logp_ref):
    gap = logp.double() - logp_ref.double()
    return ((-gap).exp() - 1 + gap).to(logp.dtype)


def k3_expm1_method(logp, logp_ref):
    gap = logp - logp_ref.detach()
    return gap + gap.neg().expm1()


def k3_loop(logp, logp_ref):
    return torch.stack([torch.expm1(b - a) + (a - b) for a, b in zip(logp, logp_ref, strict=True)])


def k3_special(logp, logp_ref):
    gap = (logp - logp_ref).clone()
    out = torch.special.expm1(-gap)
    out = out + gap
    return out.contiguous()


def gae_matrix(rewards, values, done, *, gamma, lam, bootstrap=None):
    """A = (I - γλS)⁻¹ δ, with S the shift inside a sequence."""
    time = rewards.shape[1]
    going = 1 - done.to(rewards.dtype)
    after = torch.zeros_like(rewards) if bootstrap is None else bootstrap
    if after.dim() == 1:
        after = F.pad((after * going[:, -1])[:, None], (time - 1, 0))
    inside = going.clone()
    inside[:, -1] = 0
    following = inside * F.pad(values[:, 1:], (0, 1)) + (1 - inside) * after
    delta = rewards + gamma * following - values
    shift = torch.diag_embed(inside[:, :-1], offset=1)
    advantages = torch.linalg.solve(torch.eye(time).to(shift) - gamma * lam * shift, delta)
    return advantages, advantages + values


def gae_python(rewards, values, done, *, gamma, lam, bootstrap=None):
    out = []
    for b in range(rewards.shape[0]):
        row, carry = [], 0.0
        for t in range(rewards.shape[1] - 1, -1, -1):
            ended, last = bool(done[b, t]), t == rewards.shape[1] - 1
            if bootstrap is None:
                cut = 0.0
            elif bootstrap.dim() == 2:
                cut = float(bootstrap[b, t])
            else:
                cut = float(bootstrap[b]) if last and not ended else 0.0
            following = cut if ended or last else float(values[b, t + 1])
            delta = float(rewards[b, t]) + gamma * following - float(values[b, t])
            carry = delta + (0.0 if ended else gamma * lam * carry)
            row.insert(0, carry)
        out.append(row)
    advantages = torch.tensor(out, dtype=rewards.dtype)
    return advantages, advantages + values


def gae_double_sum(rewards, values, done, *, gamma, lam, bootstrap=None):
    _, returns = gae_python(rewards, values, done, gamma=gamma, lam=0.0, bootstrap=bootstrap)
    delta, ended = returns - values, done.bool()
    out = torch.zeros_like(delta)
    for t in range(delta.shape[1]):
        alive = torch.ones_like(ended[:, 0])
        for k in range(t, delta.shape[1]):
            out[:, t] += alive * (gamma * lam) ** (k - t) * delta[:, k]
            alive = alive & ~ended[:, k]
    return out, out + values


def gae_list(*args, **knobs):
    return list(gae_matrix(*args, **knobs))


def gae_float32(rewards, values, done, *, gamma, lam, bootstrap=None):
    bootstrap = None if bootstrap is None else bootstrap.float()
    return gae_double_sum(
        rewards.float(), values.float(), done, gamma=gamma, lam=lam, bootstrap=bootstrap
    )


def gae_lambda_return(rewards, values, done, *, gamma, lam, bootstrap=None):
    """The recursion of the λ-return itself: G = r + γ((1-λ)V' + λG')."""
    time, ended = rewards.shape[1], done.bool()
    after = torch.zeros_like(rewards) if bootstrap is None else bootstrap
    if after.dim() == 1:
        column = torch.where(ended[:, -1], 0.0, after)
        after = torch.zeros_like(rewards)
        after[:, -1] = column
    out = []
    for t in range(time - 1, -1, -1):
        stop = after[:, t]
        if t == time - 1:
            ahead = stop
        else:
            ahead = torch.where(ended[:, t], stop, (1 - lam) * values[:, t + 1] + lam * out[0])
        out.insert(0, rewards[:, t] + gamma * ahead)
    returns = torch.stack(out, 1)
    return returns - values, returns


def vl_branch(values, values_old, returns, *, clip=None):
    target = returns.detach()
    if not clip:
        return F.mse_loss(values, target, reduction="none") / 2
    old = values_old.detach()
    near = torch.clamp(values, old - clip, old + clip)
    return torch.stack([(values - target) ** 2, (near - target) ** 2]).amax(0) / 2


def vl_where(values, values_old, returns, *, clip=None):
    error = 0.5 * (values - returns.data).pow(2)
    if clip is None:
        return error
    near = values_old.data + (values - values_old.data).clamp(-clip, clip)
    clipped = 0.5 * (near - returns.data).pow(2)
    return torch.where(error >= clipped, error, clipped)


def vl_largest_distance(values, values_old, returns, *, clip=None):
    with torch.no_grad():
        old, target = values_old.clone(), returns.clone()
    gap = (values - target).abs()
    if clip is not None:
        near = torch.min(torch.max(values, old - clip), old + clip)
        gap = torch.maximum(gap, (near - target).abs())
    return gap * gap / 2


def vl_float32(values, values_old, returns, *, clip=None):
    return vl_where(values.float(), values_old.float(), returns.float(), clip=clip)


def vl_rows(values, values_old, returns, *, clip=None):
    rows = zip(values, values_old, returns, strict=True)
    return torch.stack([vl_branch(*row, clip=clip) for row in rows])


def sr_loop(scores, logp, logp_ref, mask, *, beta):
    out = torch.zeros_like(logp)
    for b in range(logp.shape[0]):
        columns = [t for t in range(logp.shape[1]) if mask[b, t]]
        for t in columns:
            out[b, t] = -beta * (logp[b, t] - logp_ref[b, t]).item()
        if columns:
            out[b, columns[-1]] += scores[b].item()
    return out


def sr_index(scores, logp, logp_ref, mask, *, beta):
    with torch.no_grad():
        valid = mask.to(torch.bool)
        rewards = (beta * (logp_ref - logp)).masked_fill(~valid, 0.0)
        rows = valid.any(1).nonzero().squeeze(1)
        last = logp.shape[1] - 1 - valid.flip(1).int().argmax(1)
        rewards[rows, last[rows]] += scores[rows]
    return rewards


def sr_multiplied(scores, logp, logp_ref, mask, *, beta):
    m = mask.to(logp.dtype)
    later = F.pad(m[:, 1:], (0, 1)).flip(1).cumsum(1).flip(1) > 0
    return (m * (-beta * (logp - logp_ref) + scores[:, None] * ~later)).detach()


def sr_float32(scores, logp, logp_ref, mask, *, beta):
    return sr_index(scores.float(), logp.float(), logp_ref.float(), mask, beta=beta)


def sr_scatter(scores, logp, logp_ref, mask, *, beta):
    valid = mask > 0
    steps = torch.arange(logp.shape[1])
    last = torch.where(valid, steps, 0).amax(1, keepdim=True)
    bonus = torch.zeros_like(logp).scatter(1, last, scores.detach()[:, None])
    return torch.where(valid, bonus - beta * (logp - logp_ref).detach(), torch.zeros_like(logp))


def ng_eigh(grad, fisher, *, delta):
    size, axes = torch.linalg.eigh(fisher)
    inverse = torch.where(size > 1e-9 * size.max(), 1 / size, torch.zeros_like(size))
    direction = (axes * inverse) @ (axes.T @ grad)
    length = (grad * direction).sum()
    return direction * (2 * delta / length).sqrt() if length > 0 else direction * 0


def ng_lstsq(grad, fisher, *, delta):
    direction = torch.linalg.lstsq(fisher, grad[:, None], driver="gelsd").solution[:, 0]
    return direction * (2 * delta / (direction @ fisher @ direction).clamp(min=1e-30)).sqrt()


def ng_conjugate_gradient(grad, fisher, *, delta):
    x, residual = torch.zeros_like(grad), grad.clone()
    v = residual.clone()
    for _ in range(3 * len(grad)):
        if residual @ residual < 1e-24:
            break
        stride = (residual @ residual) / (v @ fisher @ v)
        x = x + stride * v
        new = residual - stride * (fisher @ v)
        v = new + (new @ new) / (residual @ residual) * v
        residual = new
    if not bool(grad.any()):
        return x
    return math.sqrt(2 * delta / float(grad @ x)) * x


def ng_multiplier(grad, fisher, *, delta):
    """With β of [TR-3]."""
    direction = torch.linalg.pinv(fisher) @ grad
    beta = (grad.dot(direction) / (2 * delta)).sqrt()
    return torch.nan_to_num(direction / beta)


def ng_svd(grad, fisher, *, delta):
    u, s, vh = torch.linalg.svd(fisher)
    keep = s > 1e-9 * s[0]
    direction = torch.einsum("ik,k,kj,j->i", vh.T[:, keep], 1 / s[keep], u.T[keep], grad)
    length = torch.einsum("i,ij,j->", direction, fisher, direction)
    return torch.where(length > 0, (2 * delta / length).sqrt() * direction, direction)


EQUIVALENT = {
    "token_ratio": [tr_loop, tr_no_grad, tr_inverse, tr_expm1, tr_float32, tr_in_place],
    "ppo_clip": [pc_two_losses, pc_where, pc_paper_gate, pc_loop, pc_float32, pc_stacked],
    "k1": [k1_add, k1_log_of_ratio, k1_in_place, k1_float32, k1_detached_ref, k1_einsum],
    "k2": [k2_power, k2_reversed, k2_mse, k2_loop, k2_float32, k2_expanded],
    "k3": [k3_reversed, k3_float64, k3_expm1_method, k3_loop, k3_special],
    "gae": [gae_matrix, gae_python, gae_double_sum, gae_list, gae_float32, gae_lambda_return],
    "value_loss": [vl_branch, vl_where, vl_largest_distance, vl_float32, vl_rows],
    "shape_rewards_with_kl": [sr_loop, sr_index, sr_multiplied, sr_float32, sr_scatter],
    "natural_gradient_step": [ng_eigh, ng_lstsq, ng_conjugate_gradient, ng_multiplier, ng_svd],
}


@pytest.mark.parametrize(
    ("name", "answer"), [(n, f) for n, answers in EQUIVALENT.items() for f in answers]
)
def test_an_equivalent_right_answer_gets_full_points(name, answer):
    for seed in (0, 1, 2):
        for cases in ("visible", "final"):
            verdict = judge(f"hw2/{name}", answer, cases=cases, seed=seed)
            assert verdict.passed, (verdict.cause, verdict.details)


def test_every_question_has_at_least_five_equivalent_answers():
    assert all(len(EQUIVALENT[q.function_name]) >= 5 for q in HW2)


# --- wrong answers as people write them, independent of the catalogue -----------------------


def clip(combine):
    """A wrong clipped loss: combine(ratio, clipped, advantages), minus not included."""

    def loss(logp, logp_old, advantages, *, eps_low, eps_high):
        ratio = (logp - logp_old.detach()).exp()
        return combine(ratio, ratio.clamp(1 - eps_low, 1 + eps_high), advantages.detach())

    return loss


def gae_no_restart(rewards, values, done, *, gamma, lam, bootstrap=None):
    right, _ = gae_matrix(rewards, values, done, gamma=gamma, lam=0.0, bootstrap=bootstrap)
    for t in reversed(range(right.shape[1] - 1)):
        right[:, t] += gamma * lam * right[:, t + 1]
    return right, right + values


def gae_cleanrl_next_done(rewards, values, done, *, gamma, lam, bootstrap=None):
    """done[t + 1] read for step t, as with a flag that marks a sequence's first step."""
    late = torch.cat([done[:, 1:], done[:, -1:]], 1)
    return gae_python(rewards, values, late, gamma=gamma, lam=lam, bootstrap=bootstrap)


def gae_looks_past_the_end(rewards, values, done, *, gamma, lam, bootstrap=None):
    going = 1 - done.to(rewards.dtype)
    last = torch.zeros_like(rewards[:, 0]) if bootstrap is None else bootstrap
    last = last[:, -1] if last.dim() == 2 else last * going[:, -1]
    following = torch.cat([values[:, 1:], last[:, None]], 1)
    delta, carry = rewards + gamma * following - values, 0.0
    out = torch.zeros_like(rewards)
    for t in reversed(range(rewards.shape[1])):
        out[:, t] = carry = delta[:, t] + gamma * lam * going[:, t] * carry
    return out, out + values


def gae_on_time_last(rewards, values, done, *, gamma, lam, bootstrap=None):
    """Bootstraps with the last value of the row, as if the next were equal to it."""
    ended = done.bool()
    if bootstrap is None:
        bootstrap = torch.where(ended[:, -1], 0.0, values[:, -1])
    elif bootstrap.dim() == 1:
        bootstrap = bootstrap + torch.where(ended[:, -1], 0.0, values[:, -1])
    else:
        bootstrap = bootstrap.clone()
        bootstrap[:, -1] += torch.where(ended[:, -1], 0.0, values[:, -1])
    return gae_python(rewards, values, done, gamma=gamma, lam=lam, bootstrap=bootstrap)


def value_clip(choose):
    def loss(values, values_old, returns, *, clip=None):
        old, target = values_old.detach(), returns.detach()
        plain = (values - target) ** 2
        if clip is None:
            return 0.5 * plain
        near = old + torch.clamp(values - old, min=-clip, max=clip)
        return 0.5 * choose(plain, (near - target) ** 2)

    return loss


def shaped(place, penalty=lambda gap: gap):
    def rewards(scores, logp, logp_ref, mask, *, beta):
        valid = mask.bool()
        out = torch.where(valid, -beta * penalty(logp - logp_ref), 0.0).detach()
        return place(out, scores.detach(), valid)

    return rewards


def on_last_column(out, scores, valid):
    out[:, -1] += scores
    return out


def by_length(out, scores, valid):
    """-1 for an empty response: the last column."""
    out[torch.arange(len(out)), valid.sum(1) - 1] += scores
    return out


def everywhere(out, scores, valid):
    return out + scores[:, None] * valid


def instead(out, scores, valid):
    for b, row in enumerate(valid):
        if row.any():
            out[b, int(row.nonzero().max())] = scores[b]
    return out


def natural(direction, length):
    def step(grad, fisher, *, delta):
        d = direction(fisher) @ grad
        size = length(grad, fisher, d)
        return d * (2 * delta / size).sqrt() if float(size) > 0 else 0 * grad

    return step


def swap_epsilons(logp, logp_old, advantages, *, eps_low, eps_high):
    return pc_where(logp, logp_old, advantages, eps_low=eps_high, eps_high=eps_low)


def edges(low, high):
    """A clipped loss between edges that are functions of eps_low and eps_high."""

    def loss(logp, logp_old, advantages, *, eps_low, eps_high):
        ratio, a = (logp - logp_old.detach()).exp(), advantages.detach()
        clipped = ratio.clamp(low(eps_low), high(eps_high))
        return torch.maximum(-ratio * a, -clipped * a)

    return loss


def score_where_one_is_left(scores, logp, logp_ref, mask, *, beta):
    """Without `valid &`: a one-token response is also paid on the prompt before it."""
    valid = mask.bool()
    left = valid.long().flip(1).cumsum(1).flip(1)
    paid = torch.where(left == 1, scores[:, None], 0.0)
    return (paid - torch.where(valid, beta * (logp - logp_ref), 0.0)).detach()


def relative_edges(v, old, g, *, clip=None):
    old, g = old.detach(), g.detach()
    if clip is None:
        return 0.5 * (v - g) ** 2
    near = torch.min(torch.max(v, old * (1 - clip)), old * (1 + clip))
    return 0.5 * torch.max((v - g) ** 2, (near - g) ** 2)


def gae_step(next_in_last_column):
    """GAE with the value behind the last column as told: (values, done, behind) -> (batch,)."""

    def answer(rewards, values, done, *, gamma, lam, bootstrap=None):
        done, time = done.to(rewards.dtype), rewards.shape[1]
        behind = torch.zeros_like(rewards) if bootstrap is None else bootstrap
        if behind.dim() == 1:
            behind = F.pad((behind * (1 - done[:, -1]))[:, None], (time - 1, 0))
        out, carry = torch.zeros_like(rewards), 0.0
        for t in reversed(range(time)):
            d = done[:, t]
            if t == time - 1:
                after = next_in_last_column(values, d, behind[:, t])
            else:
                after = (1 - d) * values[:, t + 1] + d * behind[:, t]
            delta = rewards[:, t] + gamma * after - values[:, t]
            carry = delta + gamma * lam * (1 - d) * carry
            out[:, t] = carry
        return out, out + values

    return answer


def gae_cleanrl(rewards, values, done, *, gamma, lam, bootstrap=None):
    """The most copied loop: done[t + 1] gates step t; a bootstrap is read behind the end only."""
    behind = torch.zeros_like(rewards[:, 0]) if bootstrap is None else bootstrap
    behind = behind[:, -1] if behind.dim() == 2 else behind
    out, carry, time = torch.zeros_like(rewards), 0.0, rewards.shape[1]
    for t in reversed(range(time)):
        going = 1 - done[:, min(t + 1, time - 1)].to(rewards.dtype)
        following = behind if t == time - 1 else values[:, t + 1]
        delta = rewards[:, t] + gamma * following * going - values[:, t]
        carry = delta + gamma * lam * going * carry
        out[:, t] = carry
    return out, out + values


def place_score(column):
    """column(out, valid) -> the columns that are paid, (batch, time) bool."""

    def place(out, scores, valid):
        return torch.where(column(out, valid), scores[:, None], 0.0) + out

    return shaped(place)


def is_last(out, valid):
    return valid & (valid.flip(1).cumsum(1).flip(1) == 1)


pc_dual = edges(lambda low: 1 - low, lambda high: 1 + high)


def dual(*args, **knobs):
    loss, a = pc_dual(*args, **knobs), args[2].detach()
    return torch.where(a < 0, torch.min(loss, -3 * a), loss)


def probabilities(logp, logp_old, advantages, *, eps_low, eps_high):
    ratio, a = logp.exp() / logp_old.detach().exp(), advantages.detach()
    return torch.maximum(-ratio * a, -ratio.clamp(1 - eps_low, 1 + eps_high) * a)


def gae_without_last_column(rewards, values, done, *, gamma, lam, bootstrap=None):
    out, carry = torch.zeros_like(rewards), 0.0
    behind = bootstrap if bootstrap is not None and bootstrap.dim() == 2 else 0 * rewards
    for t in reversed(range(rewards.shape[1] - 1)):
        after = torch.where(done[:, t].bool(), behind[:, t], values[:, t + 1])
        carry = torch.where(done[:, t].bool(), 0.0, 1.0) * carry
        carry = rewards[:, t] + gamma * after - values[:, t] + gamma * lam * carry
        out[:, t] = carry
    return out, out + values


def gae_bootstrap_as_carry(rewards, values, done, *, gamma, lam, bootstrap=None):
    if bootstrap is None or bootstrap.dim() == 2:
        return gae_matrix(rewards, values, done, gamma=gamma, lam=lam, bootstrap=bootstrap)
    going = 1 - done.to(rewards.dtype)
    following, out = F.pad(values[:, 1:], (0, 1)), torch.zeros_like(rewards)
    for t in reversed(range(rewards.shape[1])):
        carry = bootstrap if t + 1 == rewards.shape[1] else out[:, t + 1]
        delta = rewards[:, t] + gamma * going[:, t] * following[:, t] - values[:, t]
        out[:, t] = delta + gamma * lam * going[:, t] * carry
    return out, out + values


pinv = torch.linalg.pinv
WRONG = [
    # Found by learners: each once got a cause that was false, or none, or full points.
    ("k3", lambda p, q: torch.expm1(q - p) + p - q, "added_in_turn"),
    ("k3", lambda p, q: torch.expm1(q - p) - q + p, "added_in_turn"),
    ("k2", lambda p, q: 0.5 * (p - q), "not_squared"),
    ("k2", lambda p, q: 0.5 * (p - q).sum(1) ** 2, "response_squared"),
    ("token_ratio", lambda new, old: (new - old.detach()).sum(1).exp(), "response_sum"),
    ("token_ratio", lambda new, old: (new - old.detach()).mean(-1).exp(), "response_mean"),
    ("ppo_clip", edges(lambda low: 0.8, lambda high: 1.2), "edges_fixed"),
    ("ppo_clip", edges(lambda low: 1 - low, lambda high: 1 - high), "upper_edge_minus"),
    ("ppo_clip", clip(lambda r, c, a: -torch.minimum(r, c * a)), "advantage_on_clipped_only"),
    ("value_loss", lambda v, old, g, *, clip=None: 0.5 * (v - g.detach()).clamp(
        *((None, 1e9) if clip is None else (-clip, clip))) ** 2, "error_clipped"),
    ("value_loss", relative_edges, "relative_edges"),
    ("shape_rewards_with_kl", score_where_one_is_left, "score_on_prompt"),
    ("gae", gae_step(lambda v, d, behind: (1 - d) * behind), "last_cut_is_end"),
    ("gae", gae_step(lambda v, d, behind: (1 - d) * v[:, 0] + d * behind), "wrapped_over"),
    ("gae", gae_step(lambda v, d, behind: (1 - d) * v[:, -1] + d * behind), "last_value_over"),
    ("gae", lambda r, v, d, *, gamma, lam, bootstrap: gae_step(
        lambda v, d, behind: (1 - d) * v[:, 0] if bootstrap is None else behind)(
            r, v, d, gamma=gamma, lam=lam, bootstrap=bootstrap), "wrapped"),
    ("gae", gae_without_last_column, "last_column_left_out"),
    ("gae", gae_cleanrl, "done_of_next"),
    ("token_ratio", lambda new, old: (new - old.detach()).clamp(-10, 10).exp(),
     "log_ratio_clamped"),
    ("natural_gradient_step", natural(pinv, lambda g, f, d: g @ d + 1e-6), "epsilon_added"),
    ("natural_gradient_step", lambda g, f, *, delta: g * (
        2 * delta / (g @ pinv(f) @ g)).sqrt().nan_to_num(posinf=0), "euclidean_direction"),
    ("natural_gradient_step", lambda g, f, *, delta: g * (
        2 * delta / (g @ g)).sqrt().nan_to_num(posinf=0), "euclidean_both"),
    ("ppo_clip", dual, "dual_clip"),
    ("ppo_clip", probabilities, "quotient_of_probabilities"),
    ("shape_rewards_with_kl", place_score(
        lambda out, valid: valid & (torch.arange(out.shape[1]) == out.shape[1] - 1)),
     "score_lost"),
    ("shape_rewards_with_kl", place_score(
        lambda out, valid: F.pad(is_last(out, valid)[:, 1:], (0, 1))), "score_before_last"),
    ("shape_rewards_with_kl", place_score(lambda out, valid: torch.arange(out.shape[1])
     == valid.sum(1, keepdim=True) - 1), "score_at_count"),
    ("gae", gae_bootstrap_as_carry, "bootstrap_as_carry"),
    ("gae", lambda r, v, d, *, gamma, lam, bootstrap: (lambda a, g: (a, a + r))(*gae_python(
        r, v, d, gamma=gamma, lam=lam, bootstrap=bootstrap)), "rewards_for_values"),
    ("token_ratio", lambda new, old: (old.detach() - new).exp(), "ratio_inverted"),
    ("token_ratio", lambda new, old: new / old.detach(), "quotient_of_logs"),
    ("token_ratio", lambda new, old: new - old.detach(), "no_exp"),
    ("token_ratio", lambda new, old: new.exp() / old.exp().detach(), "quotient_of_probabilities"),
    ("token_ratio", lambda new, old: (new - old).exp(), "old_not_detached"),
    ("token_ratio", lambda new, old: (new - new.detach()).exp(), "old_recomputed"),
    ("token_ratio", lambda new, old: (new.detach() - old.detach()).exp(), "detached"),
    ("token_ratio", lambda new, old: (new - old.detach()).sum(-1, keepdim=True).exp()
     * torch.ones_like(new), "sequence_sum"),
    ("token_ratio", lambda new, old: (new - old.detach()).exp().clip(0.8, 1.2), "clipped"),
    ("ppo_clip", clip(lambda r, c, a: torch.minimum(r * a, c * a)), "missing_minus"),
    ("ppo_clip", clip(lambda r, c, a: torch.minimum(-r * a, -c * a)), "max_for_min"),
    ("ppo_clip", clip(lambda r, c, a: -c * a), "clip_without_min"),
    ("ppo_clip", clip(lambda r, c, a: -r * a), "no_clip"),
    ("ppo_clip", clip(lambda r, c, a: -torch.minimum(r, c) * a), "advantage_after_min"),
    ("ppo_clip", clip(lambda r, c, a: -torch.minimum(r * a, c)), "advantage_missing"),
    ("ppo_clip", clip(lambda r, c, a: -torch.minimum(r * a, c.detach() * a)), "clipped_detached"),
    ("ppo_clip", clip(lambda r, c, a: -torch.minimum(r * a, c * a).mean()), "mean"),
    ("ppo_clip", swap_epsilons, "eps_swapped"),
    ("ppo_clip", lambda new, old, a, *, eps_low, eps_high: pc_where(
        new, old, a, eps_low=eps_low, eps_high=eps_low), "low_for_both"),
    ("ppo_clip", lambda new, old, a, *, eps_low, eps_high: -torch.minimum(
        (new - old.detach()).exp() * a, (new - old.detach()).exp().clamp(
            1 - eps_low, 1 + eps_high) * a), "advantages_not_detached"),
    ("k1", lambda p, q: q - p, "inverted"),
    ("k1", lambda p, q: p.exp() * (p - q), "weighted"),
    ("k1", lambda p, q: (p - q).mean(), "mean"),
    ("k1", lambda p, q: (p - q).abs(), "absolute"),
    ("k1", lambda p, q: torch.exp(p - q), "ratio_for_log"),
    ("k2", lambda p, q: (p - q).square(), "no_half"),
    ("k2", lambda p, q: (0.5 * (p - q)) ** 2, "half_inside"),
    ("k2", lambda p, q: 0.5 * ((p - q).exp() - 1) ** 2, "ratio_minus_one"),
    ("k2", lambda p, q: 0.5 * (p**2 - q**2), "difference_of_squares"),
    ("k3", lambda p, q: torch.expm1(p - q) - (p - q), "inverted"),
    ("k3", lambda p, q: ((q - p).exp() - 1 + (p - q)).mean(), "mean"),
    ("k3", lambda p, q: (q - p).exp() - 1 - (q - p), "no_expm1"),
    ("k3", lambda p, q: torch.expm1(q - p) + (q - p), "log_sign"),
    ("k3", lambda p, q: torch.expm1(p - q) + (p - q), "exp_sign"),
    ("k3", lambda p, q: torch.expm1(q - p), "log_missing"),
    ("k3", lambda p, q: (torch.expm1(q - p) + (p - q)).clamp(-10, 10), "clamped"),
    ("k3", lambda p, q: (q - p).exp() + (p - q), "one_missing"),
    ("gae", gae_no_restart, "carry_not_reset"),
    ("gae", gae_cleanrl_next_done, "done_shifted"),
    ("gae", gae_on_time_last, "last_value_repeated"),
    ("gae", lambda r, v, d, *, gamma, lam, bootstrap: gae_python(
        r, v, d, gamma=gamma, lam=lam), "bootstrap_ignored"),
    ("gae", lambda r, v, d, *, gamma, lam, bootstrap: gae_python(
        r, v, d, gamma=gamma, lam=1.0, bootstrap=bootstrap), "carry_without_lam"),
    ("gae", lambda r, v, d, *, gamma, lam, bootstrap: gae_python(
        r, v, d, gamma=gamma, lam=0.0, bootstrap=bootstrap), "no_carry"),
    ("gae", lambda r, v, d, *, gamma, lam, bootstrap: gae_python(
        r, v, d, gamma=gamma, lam=lam, bootstrap=bootstrap)[0], "advantages_only"),
    ("gae", lambda r, v, d, *, gamma, lam, bootstrap: gae_python(
        r, v, d, gamma=gamma, lam=lam, bootstrap=bootstrap)[::-1], "swapped"),
    ("gae", lambda r, v, d, *, gamma, lam, bootstrap: (lambda a, g: (
        (a - a.mean()) / (a.std() + 1e-8), g))(*gae_python(
            r, v, d, gamma=gamma, lam=lam, bootstrap=bootstrap)), "whitened"),
    ("value_loss", value_clip(torch.minimum), "min_for_max"),
    ("value_loss", value_clip(lambda plain, near: near), "clipped_only"),
    ("value_loss", value_clip(lambda plain, near: plain), "clip_ignored"),
    ("value_loss", lambda v, old, g, *, clip=None: 2 * vl_where(v, old, g, clip=clip), "no_half"),
    ("value_loss", lambda v, old, g, *, clip=None: 0.5 * (v - g) ** 2 if clip is None else
     0.5 * torch.maximum((v - g) ** 2, (old + (v - old).clamp(-clip, clip) - g) ** 2), None),
    ("value_loss", lambda v, old, g, *, clip=None: vl_where(
        v, 0 * old, g, clip=clip), "around_zero"),
    ("value_loss", lambda v, old, g, *, clip=None: F.smooth_l1_loss(
        v, g.detach(), reduction="none") if clip is None else vl_where(
            v, old, g, clip=clip), ""),
    ("shape_rewards_with_kl", shaped(on_last_column), "score_on_last_column"),
    ("shape_rewards_with_kl", shaped(everywhere), "score_on_every_token"),
    ("shape_rewards_with_kl", shaped(instead), "kl_not_on_last"),
    ("shape_rewards_with_kl", shaped(lambda out, s, valid: out), "score_missing"),
    ("shape_rewards_with_kl", lambda s, p, q, m, *, beta: sr_loop(s, p, q, m, beta=-beta),
     "kl_sign"),
    ("shape_rewards_with_kl", lambda s, p, q, m, *, beta: sr_loop(s, p, q, m, beta=1.0),
     "beta_forgotten"),
    ("shape_rewards_with_kl", lambda s, p, q, m, *, beta: sr_loop(
        s, k3_reversed(p, q), 0 * q, m, beta=beta), "k3_for_k1"),
    ("shape_rewards_with_kl", lambda s, p, q, m, *, beta: sr_loop(s, q, q, m, beta=beta)
     - beta * torch.where(m.bool(), p - q, 0.0), "penalty_not_detached"),
    ("shape_rewards_with_kl", lambda s, p, q, m, *, beta: torch.stack([torch.where(
        m[b].bool(), beta * (q[b] - p[b]) + s[b] * F.one_hot(
            m[b].nonzero().max() if m[b].any() else torch.tensor(0), m.shape[1]), 0.0)
        for b in range(len(m))]), "not_detached"),
    ("natural_gradient_step", natural(lambda f: f, lambda g, f, d: d @ f @ d),
     "fisher_not_inverted"),
    ("natural_gradient_step", natural(lambda f: torch.eye(len(f)).to(f), lambda g, f, d: d @ f @ d),
     "plain_gradient"),
    ("natural_gradient_step", natural(pinv, lambda g, f, d: 2 * (g @ d)), "two_missing"),
    ("natural_gradient_step", natural(pinv, lambda g, f, d: d @ d), "euclidean_step"),
    ("natural_gradient_step", natural(pinv, lambda g, f, d: g @ g), "euclidean_gradient"),
    ("natural_gradient_step", lambda g, f, *, delta: -ng_eigh(g, f, delta=delta), "negative"),
    ("natural_gradient_step", lambda g, f, *, delta: pinv(f) @ g * (
        2 * delta / (g @ pinv(f) @ g)).sqrt(), "zero_not_caught"),
    ("natural_gradient_step", lambda g, f, *, delta: pinv(f) @ g, "no_scale"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answer", "mistake"), WRONG)
def test_a_wrong_answer_written_independently_is_named(name, answer, mistake):
    for cases in ("visible", "final"):
        verdict = judge(f"hw2/{name}", answer, cases=cases)
        assert verdict.points < verdict.max_points
        if mistake is None:  # both constants of the value loss in the graph
            expected = {"old_not_detached", "returns_not_detached"}
        else:
            expected = {mistake} if mistake else set()
        assert set(verdict.details["named"]) == expected, (verdict.cause, verdict.details)


def gae_reads_the_formula_to_the_letter(rewards, values, done, *, gamma, lam, bootstrap=None):
    """v_t counts where done is 1, and nowhere else; a (batch,) bootstrap is v_T."""
    ended = done.to(rewards.dtype)
    behind = torch.zeros_like(rewards)
    if bootstrap is not None and bootstrap.dim() == 1:
        behind[:, -1] = bootstrap
    elif bootstrap is not None:
        behind = bootstrap
    known = torch.cat([values[:, 1:], 0 * values[:, :1]], 1)
    full = ended * behind + (1 - ended) * known
    return gae_matrix_of(rewards + gamma * full - values, ended, gamma * lam, values)


def gae_matrix_of(delta, ended, decay, values):
    out, carry = [], 0.0
    for t in reversed(range(delta.shape[1])):
        carry = delta[:, t] + decay * (1 - ended[:, t]) * carry
        out.insert(0, carry)
    advantages = torch.stack(out, 1)
    return advantages, advantages + values


def shaped_at_length(scores, logp, logp_ref, mask, *, beta):
    rewards = -beta * (logp - logp_ref) * mask
    rewards[torch.arange(len(mask)), mask.sum(1).long() - 1] += scores
    return rewards


def shaped_by_argmax(scores, logp, logp_ref, mask, *, beta):
    rewards = -beta * (logp - logp_ref)
    rewards[torch.arange(len(mask)), mask.long().cumsum(1).argmax(1)] += scores
    return rewards.detach()


def ppo_without_detach(logp, logp_old, advantages, *, eps_low, eps_high):
    ratio = (logp - logp_old).exp()
    return torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - eps_low, 1 + eps_high))


TWO_AT_ONCE = [
    ("gae", gae_reads_the_formula_to_the_letter, {"open_end_is_end", "bootstrap_after_end"}),
    ("gae", gae_looks_past_the_end, {"bootstrap_past_end"}),
    ("shape_rewards_with_kl", shaped(by_length), {"score_at_length"}),
    ("shape_rewards_with_kl", shaped_at_length, {"score_at_length", "not_detached"}),
    ("shape_rewards_with_kl", shaped_by_argmax, {"kl_on_padding", "empty_first"}),
    ("ppo_clip", ppo_without_detach, {"advantages_not_detached", "old_not_detached"}),
    ("k3", lambda p, q: (p - q).exp() - 1 - (p - q), {"inverted", "no_expm1"}),
]


@pytest.mark.parametrize(("name", "answer", "mistakes"), TWO_AT_ONCE)
def test_what_comes_in_pairs_in_real_code_is_named_as_the_pair(name, answer, mistakes):
    for cases in ("visible", "final"):
        verdict = judge(f"hw2/{name}", answer, cases=cases)
        assert not verdict.passed
        assert set(verdict.details["named"]) == mistakes, verdict.cause


TOO_NARROW = [  # right on tame inputs only: each once got full points
    ("token_ratio", lambda new, old: (new - old.detach()).clamp(-8, 8).exp()),
    ("ppo_clip", lambda new, old, a, **eps: pc_where(
        old + (new - old).clamp(-1, 1), old, a, **eps)),
    ("ppo_clip", lambda new, old, a, **eps: pc_where(new, old, a.clamp(-2, 2), **eps)),
    ("ppo_clip", clip(lambda r, c, a: -torch.minimum(r.clamp(max=2) * a, c * a))),
    ("gae", lambda r, v, d, *, gamma, lam, bootstrap=None: gae_python(
        r, v, d, gamma=gamma, lam=max(lam, 0.1), bootstrap=bootstrap)),
    ("gae", lambda r, v, d, *, gamma, lam, bootstrap=None: gae_python(
        r, v, d, gamma=gamma, lam=min(lam, 0.95), bootstrap=bootstrap)),
    ("gae", lambda r, v, d, *, gamma, lam, bootstrap=None: gae_python(
        r, v, d if bootstrap is None else 1 - (1 - d), gamma=gamma, lam=lam, bootstrap=bootstrap)),
    ("value_loss", lambda v, old, g, *, clip=0.2: vl_where(v, old, g, clip=clip)),
    ("shape_rewards_with_kl", shaped(
        lambda out, s, valid: torch.where(is_last(out, valid), s[:, None], 0.0) + out,
        lambda gap: gap.clamp(-2, 2))),
    ("natural_gradient_step", natural(pinv, lambda g, f, d: g @ d + 1e-6)),
    ("natural_gradient_step", natural(
        lambda f: pinv(f + 1e-6 * torch.eye(len(f)).to(f)), lambda g, f, d: g @ d)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answer"), TOO_NARROW)
def test_an_answer_that_is_right_on_tame_inputs_only_loses_points(name, answer):
    for cases in ("visible", "final"):
        assert not judge(f"hw2/{name}", answer, cases=cases).passed


@pytest.mark.parametrize("inverse", [torch.linalg.inv, torch.linalg.pinv])
@pytest.mark.parametrize("cases", ["visible", "final"])
def test_a_plain_inverse_meets_a_matrix_that_has_none(cases, inverse):
    answer = natural(inverse, lambda g, f, d: g @ d)
    verdict = judge("hw2/natural_gradient_step", answer, cases=cases)
    assert verdict.passed == (inverse is torch.linalg.pinv)
    if not verdict.passed:
        assert "singular" in verdict.cause
        assert "pinv" in verdict.details["hint"]


OUTSIDE = [
    ("token_ratio", lambda new, old: 3 * (new - old.detach()).exp()),
    ("token_ratio", lambda new, old: (new - old.detach()).exp().sqrt()),
    ("ppo_clip", clip(lambda r, c, a: -torch.minimum(r * a, c * a) * 5)),
    ("ppo_clip", clip(lambda r, c, a: -a * (r - (r - 1).square()))),
    ("ppo_clip", clip(lambda r, c, a: -torch.tanh(r) * a)),
    ("k1", lambda p, q: p - 0.9 * q),
    ("k2", lambda p, q: 0.5 * (p - q).square() + 0.25),
    ("k3", lambda p, q: torch.expm1(q - p) + (p - q) + (p - q).square()),
    ("gae", lambda r, v, d, *, gamma, lam, bootstrap: gae_python(
        r, v, d, gamma=gamma, lam=lam**0.5, bootstrap=bootstrap)),
    ("gae", lambda r, v, d, *, gamma, lam, bootstrap: tuple(x.flip(0) for x in gae_python(
        r, v, d, gamma=gamma, lam=lam, bootstrap=bootstrap))),
    ("value_loss", lambda v, old, g, *, clip=None: torch.log1p(vl_where(v, old, g, clip=clip))),
    ("value_loss", lambda v, old, g, *, clip=None: 7 * vl_where(v, old, g, clip=clip)),
    ("shape_rewards_with_kl", lambda s, p, q, m, *, beta: sr_loop(s, p, q, m, beta=beta) * 2),
    ("shape_rewards_with_kl", lambda s, p, q, m, *, beta: sr_loop(s.flip(0), p, q, m, beta=beta)),
    ("natural_gradient_step", lambda g, f, *, delta: ng_eigh(g, f, delta=delta) * 3),
    ("natural_gradient_step", lambda g, f, *, delta: ng_eigh(g.abs(), f, delta=delta)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answer"), OUTSIDE)
def test_a_mistake_outside_the_catalogue_is_described_or_unknown_but_not_named(name, answer):
    verdict = judge(f"hw2/{name}", answer)
    assert not verdict.passed
    assert verdict.details["named"] == []
    assert "unknown" in verdict.cause or verdict.cause.startswith(("The result", "The first"))
    assert verdict.details["hint"]


def test_the_map_says_what_it_can():
    said = [judge(f"hw2/{name}", answer).cause for name, answer in OUTSIDE]
    assert sum("unknown" in text for text in said) < len(said) / 2
    assert sum(" times the right one" in text for text in said) >= 5


def scaled(function, factor):
    def answer(*args, **knobs):
        out = function(*args, **knobs)
        return tuple(factor * x for x in out) if isinstance(out, tuple) else factor * out

    return answer


@pytest.mark.parametrize("factor", [0.0, -1.0, 2.0, 0.5])
@pytest.mark.parametrize("question", HW2, ids=lambda q: q.function_name)
def test_zeros_the_negated_twice_and_half_the_answer_never_pass(question, factor):
    assert judge(question.id, scaled(question.reference, factor)).points == 0


@pytest.mark.parametrize("question", HW2, ids=lambda q: q.function_name)
def test_an_answer_that_writes_into_its_input_loses_points(question):
    def answer(*args, **knobs):
        out = question.reference(*args, **knobs)
        args[0].add_(1)
        return out

    verdict = judge(question.id, answer)
    assert 0 < verdict.points < verdict.max_points


# --- the numbers of the statements and of the known bugs ------------------------------------


def close(actual, expected, atol=1e-3):
    torch.testing.assert_close(actual, torch.tensor(expected), atol=atol, rtol=0)


def test_the_hand_examples_on_ratio_clip_and_kl(solution):
    now = torch.tensor([[0.5, 0.2, 0.9], [0.3, 0.1, 0.4]]).log()
    old = torch.tensor([[0.4, 0.25, 0.9], [0.2, 0.2, 0.5]]).log()
    ratio = solution["token_ratio"](now, old)
    close(ratio, [[1.25, 0.8, 1], [1.5, 0.5, 0.8]])
    close((now / old)[0, 0], 0.756)
    leaf = now.clone().requires_grad_()
    advantages = torch.tensor([[2.0], [-1]])
    loss = solution["ppo_clip"](leaf, old, advantages, eps_low=0.3, eps_high=0.2)
    close(loss.detach(), [[-2.4, -1.6, -2], [1.5, 0.7, 0.8]])
    close(torch.autograd.grad(loss.sum(), leaf)[0], [[0, -1.6, -2], [1.5, 0, 0.8]])
    now = torch.tensor([[0.5, 0.2, 0.4], [0.8, 0.3, 0.1]]).log()
    ref = torch.tensor([[0.25, 0.4, 0.4], [0.2, 0.3, 0.4]]).log()
    close(solution["k1"](now, ref), [[0.693, -0.693, 0], [1.386, 0, -1.386]])
    close(solution["k2"](now, ref), [[0.240, 0.240, 0], [0.961, 0, 0.961]])
    close(solution["k3"](now, ref), [[0.193, 0.307, 0], [0.636, 0, 1.614]])
    close(solution["k3"](ref, now)[0], [0.307, 0.193, 0])
    tiny = torch.tensor([[1e-4]])
    assert float(solution["k3"](tiny, 0 * tiny)) == pytest.approx(5e-9, rel=1e-2)
    assert float(1 - torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))) == pytest.approx(
        6e-8, rel=1e-2
    )


def test_the_hand_examples_on_gae_value_and_rewards(solution):
    rewards, values = (
        torch.tensor([[0.0, 0, 2], [0, 1, 0]]),
        torch.tensor([[1.0] * 3, [0.5, 0.5, 1]]),
    )
    done = torch.tensor([[0, 0, 1], [0, 1, 0]])
    shown = solution["gae"](
        rewards, values, done, gamma=1.0, lam=0.5, bootstrap=torch.tensor([5.0, 2])
    )
    close(shown[0], [[0.25, 0.5, 1], [0.25, 0.5, 1]])
    close(shown[1], [[1.25, 1.5, 2], [0.75, 1, 2]])
    v = torch.tensor([[0.5, 3, 3], [-2, 2, 5]], requires_grad=True)
    loss = solution["value_loss"](
        v, torch.zeros(2, 3), torch.tensor([[2, 4, 1.5], [3, 0, 2]]), clip=1.0
    )
    close(loss.detach(), [[1.125, 4.5, 1.125], [12.5, 2, 4.5]])
    close(torch.autograd.grad(loss.sum(), v)[0], [[-1.5, 0, 1.5], [-5, 2, 3]])
    ell = torch.tensor([[0.6931, -0.6931, 99], [1.3863, 0, -1.3863]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    shown = solution["shape_rewards_with_kl"](torch.tensor([2.0, -1]), ell, 0 * ell, mask, beta=0.5)
    close(shown, [[-0.347, 2.347, 0], [-0.693, 0, -0.307]])
    close(shown.sum(1), [2.0, -1])


def test_the_numbers_of_the_bonus(solution):
    p = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64)
    advantage = torch.tensor([1.0, 0, -1], dtype=torch.float64)
    fisher = torch.diag(p) - torch.outer(p, p)
    grad = fisher @ advantage
    close(grad.float(), [0.375, -0.0625, -0.3125])
    assert float(grad @ advantage) == pytest.approx(0.6875)
    for delta, first, kl, new in (
        (0.05, 0.381, 0.047, [0.635, 0.217, 0.148]),
        (1.0, 1.706, 0.688, None),
    ):
        step = solution["natural_gradient_step"](grad, fisher, delta=delta)
        close(step.float(), [first, 0, -first])
        moved = (p.log() + step).softmax(0)
        assert float((p * (p / moved).log()).sum()) == pytest.approx(kl, abs=5e-4)
        if new:
            close(moved.float(), new)


def test_the_numbers_of_the_reflections():
    pi = torch.tensor([0.5, 0.5], dtype=torch.float64)
    ref = torch.tensor([0.8, 0.2], dtype=torch.float64)
    u, ell = torch.tensor([0.5, -0.5], dtype=torch.float64), (pi / ref).log()
    close(ell.float(), [-0.470, 0.916])
    expected = [float((pi * slope * u).sum()) for slope in (0 * ell + 1, ell, 1 - (-ell).exp())]
    assert expected == pytest.approx([0, -0.347, -0.3], abs=5e-4)
    z = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    forward = (z.softmax(0) * (z.log_softmax(0) - ref.log())).sum()
    backward = (ref * (ref.log() - z.log_softmax(0))).sum()
    slopes = [float(torch.autograd.grad(kl, z)[0][0]) for kl in (forward, backward)]
    assert slopes == pytest.approx(expected[1:])
    nothing, said = torch.zeros(1, 3), torch.full((1, 3), 0.8)
    cut = torch.tensor([[0, 0, 1]])
    kept, _ = gae_python(nothing, said, 0 * cut, gamma=1.0, lam=0.9, bootstrap=said[:, 0])
    close(kept, [[0.0, 0, 0]])
    close(gae_python(nothing, said, cut, gamma=1.0, lam=0.9)[0], [[-0.648, -0.72, -0.8]])
    # A critic on its way from 0 to 80, 0.2 at a time.
    value = torch.zeros(1, 1, requires_grad=True)
    dead = torch.autograd.grad(
        vl_branch(value + 0.21, torch.zeros(1, 1), torch.full((1, 1), 80.0), clip=0.2).sum(), value
    )[0]
    assert float(dead) == 0
    assert pytest.approx(400) == 80 / 0.2
    assert 0.5 * 80**2 == 3200


def test_known_numbers_of_right_and_wrong(solution):
    """The small inputs on which the bugs were reported."""
    old = torch.full((1, 4), -1.0)
    ratios = torch.tensor([[1.5, 0.5, 1.5, 0.5]])
    advantages = torch.tensor([[1.0, 1, -1, -1]])
    leaf = (old + ratios.log()).requires_grad_()

    def probe(function):
        loss = function(leaf, old, advantages, eps_low=0.2, eps_high=0.2)
        slope = torch.autograd.grad(loss.sum(), leaf)[0]
        return loss.detach(), slope

    loss, slope = probe(solution["ppo_clip"])
    close(loss, [[-1.2, -0.5, 1.5, 0.8]])
    close(slope, [[0, -0.5, 1.5, 0]])
    loss, slope = probe(clip(lambda r, c, a: torch.maximum(r * a, c * a).neg()))
    close(loss, [[-1.5, -0.8, 1.2, 0.5]])
    close(slope, [[-1.5, 0, 0, 0.5]])
    rewards, done = torch.tensor([[0.0, 1, 0, 1]]), torch.tensor([[0, 1, 0, 1]])
    half = torch.full((1, 4), 0.5)
    knobs = {"gamma": 1.0, "lam": 0.95}
    close(solution["gae"](rewards, half, done, **knobs)[0], [[0.475, 0.5, 0.475, 0.5]])
    close(gae_no_restart(rewards, half, done, **knobs)[0], [[0.904, 0.951, 0.475, 0.5]])
    value = torch.ones(1, 1)
    shown = solution["value_loss"](value, 0 * value, 2 * value, clip=0.2)
    assert 2 * float(shown) == pytest.approx(3.24)
    assert 2 * float(value_clip(torch.minimum)(value, 0 * value, 2 * value, clip=0.2)) == 1
    one = torch.full((1, 1), -1.0), torch.full((1, 1), -2.0)
    assert float(solution["k3"](*one)) == pytest.approx(0.368, abs=5e-4)
    assert float(solution["k3"](*one[::-1])) == pytest.approx(0.718, abs=5e-4)


# --- the notebook ----------------------------------------------------------------------------


def source_of(notebook, cell_id):
    return next(c.source for c in notebook.cells if c.id == cell_id)


def test_the_solution_gets_full_points(solution):
    points = {q.id: judge(q.id, solution[q.function_name]).points for q in HW2}
    assert sum(points[q.id] for q in HW2 if not q.bonus) == 20
    assert sum(points.values()) == 22


def test_the_minutes_of_the_title_add_up(notebook):
    title = source_of(notebook, "title")
    rows = [row.strip("| ").split(" | ") for row in title.splitlines() if row.startswith("| ")][1:]
    minutes = {row[0]: int(row[-1]) for row in rows}
    told = re.search(r"(\d+) minutes of work by the table, (\d+) more .* and (\d+) for", title)
    work, bonus, written = (int(x) for x in told.groups())
    assert sum(minutes.values()) == work + bonus + written
    assert bonus == next(m for name, m in minutes.items() if "Bonus" in name)
    assert written == next(m for name, m in minutes.items() if "reflections" in name)


def test_an_overshot_value_is_dead_when_the_clipped_one_is_farther_off(solution):
    for target, gradient in ((1.2, 0.0), (1.1, 0.2)):
        value = torch.full((1, 1), 1.3, requires_grad=True)
        loss = solution["value_loss"](value, 0 * value, torch.full((1, 1), target), clip=1.0)
        close(torch.autograd.grad(loss.sum(), value)[0], [[gradient]])


def test_the_lecture_of_every_question_and_mistake_has_its_equation():
    for question in HW2:
        for place in {question.lecture, *(m.lecture for m in question.mistakes)}:
            number, tag = re.fullmatch(r"(\d\d), \[([A-Z]+-\d+)\]", place).groups()
            (lecture,) = (ROOT / "lectures").glob(f"{number}_*.ipynb")
            cells = json.loads(lecture.read_text())["cells"]
            assert any(rf"\tag{{{tag}}}" in "".join(c["source"]) for c in cells), place


def test_the_experiment_shows_what_its_reflection_says(notebook, capsys):
    """A giant stride does not see the edge; a smooth path ends at it."""

    def run(*changes):
        source = source_of(notebook, "experiment-run")
        for old, new in changes:
            assert old in source
            source = source.replace(old, new)
        exec(source, {"torch": torch, "prediction": "(c)"})
        shown = capsys.readouterr().out
        assert "(c)" in shown
        rows = [[float(x) for x in line.split()] for line in shown.splitlines()[1:8]]
        return {int(row[0]): row[2:] for row in rows}  # steps -> least, largest, dead, KL

    plain = run()
    close(torch.tensor([plain[n][1] for n in (1, 2, 16, 256)]), [2.26, 1.56, 1.25, 1.201], 6e-3)
    assert plain[1][0] == pytest.approx(0.16, abs=5e-3)
    assert plain[4][:2] == pytest.approx([0.771, 1.158], abs=2e-3)
    assert plain[256][3] == pytest.approx(0.030, abs=1e-3)
    wide, narrow = run(("eps = 0.2", "eps = 0.4")), run(("eps = 0.2", "eps = 0.1"))
    free = run(("clipping = True", "clipping = False"))
    assert plain[1][:2] == wide[1][:2] == narrow[1][:2] == free[1][:2]
    assert plain[2][:2] == wide[2][:2] != narrow[2][:2]
    assert plain[2][2] > wide[2][2]  # what counts as dead does change
    assert plain[4][:2] == narrow[4][:2]
    assert wide[256][1] == pytest.approx(1.4, abs=2e-3)
    assert narrow[256][1] == pytest.approx(1.1, abs=5e-3)
    assert all(2.25 <= row[1] <= 2.32 and 0.76 < row[3] < 0.82 for row in free.values())


def test_the_planted_bugs_show_hide_and_are_two(notebook, capsys):
    step, probe = source_of(notebook, "bug-step"), source_of(notebook, "bug-probe")
    fix_end = ("+ following[:, t] -", "+ (1 - done[:, t]) * following[:, t] -")
    fix_min = (
        "torch.minimum(ratio, clipped) * advantages.detach()",
        "torch.minimum(ratio * advantages.detach(), clipped * advantages.detach())",
    )

    def run(*fixes, **inputs):
        source, test = step, probe
        for old, new in fixes:
            assert old in source
            source = source.replace(old, new)
        for name, value in inputs.items():
            test, n = re.subn(rf"^{name} = torch.tensor.*$", f"{name} = {value}", test, flags=re.M)
            assert n == 1
        space = {"torch": torch}
        exec(source + "\n" + test, space)
        assert "-0.0000" not in capsys.readouterr().out
        return space["advantages"], space["alive"], space["loss"].detach()

    def mean(result):
        return float(result[2].mean())

    right = [[0.5, 1, -0.5, -1], [-0.125, -0.25, -0.5, -1]]
    advantages, alive, _ = run(fix_end, fix_min)
    close(advantages, right)
    close(alive, [[0, 0.6, 1.5, 0], [1.5, 1.1, 0.9, 0]])
    told = re.search(
        r"is ([\d.]+) with both bugs and ([\d.]+) without", source_of(notebook, "bug-reflection")
    )
    assert [mean(run()), mean(run(fix_end, fix_min))] == pytest.approx(
        [float(x) for x in told.groups()], abs=5e-4
    )
    advantages, alive, _ = run()
    close(advantages[0], [1.0, 2, -0.5, -1])
    close(advantages[1], right[1])  # hidden: one answer, which ends in the last column
    close(alive, [[0, 0.6, 0, 0.6], [0, 1.1, 0.9, 0.6]])
    close(run(values="torch.zeros(2, 4)")[0][0], [1.0, 2, 0, 0])  # hidden: no value behind the end
    ones = {"ratios": "torch.ones(2, 4)"}
    close(run(**ones)[2], run(fix_min, **ones)[2].tolist())  # hidden: the first update
    good = {"rewards": "torch.tensor([[0.0, 2, 0, 3], [0, 0, 0, 1]])"}
    close(run(**good)[1], run(fix_min, **good)[1].tolist())  # hidden: only positive advantages
    assert not torch.equal(run(fix_end)[1], alive) or not torch.equal(run(fix_min)[1], alive)
