"""Homework 3: right answers of every style pass, real wrong ones are named, the numbers hold."""

import math
import re
from itertools import product
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from autograder.cases import collect
from autograder.judge import assess, cases_for, judge
from autograder.questions import QUESTIONS
from autograder.questions.hw3.grpo_loss import buggy as wrong_grpo

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "solutions/hw3_group_methods/hw3_group_methods.ipynb"
HW3 = [q for q in QUESTIONS.values() if q.homework == "hw3"]


# --- right answers, written in other ways ---------------------------------------------------


def mps_loop(x, mask, *, sequences=None):
    total = x.new_zeros(())
    for row, keep in zip(x, mask.bool(), strict=True):
        if keep.any():
            total = total + row[keep].mean()
    return total / (sequences or len(x))


def mps_weights(x, mask, *, sequences=None):
    m = mask.to(x.dtype)
    weight = m / m.sum(1, keepdim=True).clamp(min=1) / (sequences or x.shape[0])
    return (x.masked_fill(m == 0, 0) * weight).sum()


def mps_einsum(x, mask, *, sequences=None):
    clean = x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) * mask
    lengths = torch.clamp(mask.sum(-1), min=1).to(x.dtype)
    return torch.einsum("bt,b->", clean, 1 / lengths) / (sequences if sequences else len(x))


def mps_float32(x, mask, *, sequences=None):
    return mps_weights(x.float(), mask, sequences=sequences)


def mps_small_eps(x, mask, *, sequences=None):
    keep = mask == 1
    rows = torch.where(keep, x, torch.zeros_like(x)).sum(1) / (keep.sum(1) + 1e-8)
    return rows.mean() if sequences is None else rows.sum() / sequences


def mps_in_place(x, mask, *, sequences=None):
    mine = x.clone()
    mine[mask == 0] = 0.0
    rows = mine.sum(1)
    rows /= mask.sum(1).clamp(min=1)
    return rows.sum() / (len(x) if sequences is None else sequences)


def mpt_select(x, mask, *, tokens=None):
    kept = x[mask.bool()]
    return kept.sum() / (tokens or max(len(kept), 1))


def mpt_where(x, mask, *, tokens=None):
    keep = mask > 0
    count = keep.sum().clamp(min=1) if tokens is None else tokens
    return torch.where(keep, x, 0.0).sum() / count


def mpt_loop(x, mask, *, tokens=None):
    total, count = 0 * x[mask.bool()].sum(), 0
    for i in range(x.shape[0]):
        for t in range(x.shape[1]):
            if mask[i, t]:
                total, count = total + x[i, t], count + 1
    return total / (tokens if tokens is not None else max(1, count))


def mpt_weights(x, mask, *, tokens=None):
    m = mask.to(x.dtype)
    weight = m / (float(m.sum()) or 1.0) if tokens is None else m / tokens
    return (x.masked_fill(mask == 0, 0.0) * weight).sum()


def mpt_float32(x, mask, *, tokens=None):
    return mpt_where(x.float(), mask, tokens=tokens)


def mpt_of_rows(x, mask, *, tokens=None):
    """A mean of row means, weighted with the lengths."""
    keep = mask.bool()
    lengths = keep.sum(1)
    rows = x.masked_fill(~keep, 0).sum(1) / lengths.clamp(min=1)
    return (rows * lengths).sum() / (tokens if tokens else lengths.sum().clamp(min=1))


def mfl_select(x, mask, *, length, sequences=None):
    return x[mask != 0].sum() / (length * (sequences or x.shape[0]))


def mfl_rows(x, mask, *, length, sequences=None):
    rows = torch.where(mask.bool(), x, 0.0).sum(-1) / length
    return rows.mean() * len(x) / (sequences or len(x))


def mfl_loop(x, mask, *, length, sequences=None):
    rows = [row[keep].sum() / length for row, keep in zip(x, mask.bool(), strict=True)]
    return torch.stack(rows).sum() / (len(rows) if sequences is None else sequences)


def mfl_float32(x, mask, *, length, sequences=None):
    return mfl_rows(x.float(), mask, length=length, sequences=sequences)


def mfl_padded(x, mask, *, length, sequences=None):
    """A plain mean after padding or scaling to the constant length."""
    clean = x.masked_fill(mask == 0, 0.0)
    mean = clean.mean(1) * (x.shape[1] / length)
    return mean.sum() / (sequences or len(x))


def mfl_in_place(x, mask, *, length, sequences=None):
    out = torch.where(mask > 0, x, torch.zeros_like(x))
    out /= length
    return out.sum().div(len(x) if sequences is None else sequences)


def gspo_loop(logp, logp_old, advantages, mask, *, eps_low, eps_high):
    rows = []
    for i in range(len(logp)):
        keep = mask[i].bool()
        change = logp[i][keep] - logp_old[i][keep].detach()
        s = change.mean().exp() if keep.any() else logp.new_ones(())
        a = advantages[i, 0].detach()
        rows.append(-torch.min(s * a, s.clip(1 - eps_low, 1 + eps_high) * a))
    return torch.stack(rows)[:, None].repeat(1, logp.shape[1])


def gspo_zeros_on_padding(logp, logp_old, advantages, mask, *, eps_low, eps_high):
    m = mask.to(logp.dtype)
    mean = ((logp - logp_old.detach()) * m).sum(1) / m.sum(1).clamp(min=1)
    s = torch.exp(mean)[:, None]
    a = advantages.detach()
    return -torch.min(s * a, torch.clamp(s, 1 - eps_low, 1 + eps_high) * a) * m


def gspo_cases(logp, logp_old, advantages, mask, *, eps_low, eps_high):
    """No minimum: the gate chosen by the sign of the advantage."""
    m = mask.bool()
    change = (logp - logp_old.detach()).masked_fill(~m, 0)
    s = (change.sum(1, True) / m.sum(1, True).clamp(min=1)).exp()
    a = advantages.detach()
    bounded = torch.where(a > 0, s.clamp(max=1 + eps_high), s.clamp(min=1 - eps_low))
    return (-a * bounded).expand_as(logp)


def gspo_max_of_losses(logp, logp_old, advantages, mask, *, eps_low, eps_high):
    m = mask.to(logp.dtype)
    length = torch.maximum(m.sum(1), torch.ones(len(m), dtype=m.dtype))
    s = torch.exp(torch.einsum("bt,bt->b", m, logp - logp_old.detach()) / length).unsqueeze(1)
    a = -advantages.detach()
    loss = torch.maximum(a * s, a * s.clamp(1 - eps_low, 1 + eps_high))
    return loss + torch.zeros_like(logp)


def gspo_float32(logp, logp_old, advantages, mask, *, eps_low, eps_high):
    inputs = (logp.float(), logp_old.float(), advantages.float(), mask)
    return gspo_cases(*inputs, eps_low=eps_low, eps_high=eps_high)


def cispo_no_grad(logp, logp_old, advantages, *, eps_low, eps_high):
    with torch.no_grad():
        weight = torch.exp(logp - logp_old).clip(1 - eps_low, 1 + eps_high) * advantages
    return -logp * weight


def cispo_minmax(logp, logp_old, advantages, *, eps_low, eps_high):
    ratio = (logp.detach() - logp_old.detach()).exp()
    low, high = torch.tensor(1 - eps_low), torch.tensor(1 + eps_high)
    weight = torch.min(torch.max(ratio, low.to(ratio)), high.to(ratio))
    return torch.mul(weight * advantages.detach(), logp).neg()


def cispo_logs(logp, logp_old, advantages, *, eps_low, eps_high):
    """The clip on the logarithm, at the logarithms of the edges."""
    change = (logp - logp_old).detach().clamp(math.log(1 - eps_low), math.log(1 + eps_high))
    return -change.exp() * advantages.detach() * logp


def cispo_where(logp, logp_old, advantages, *, eps_low, eps_high):
    ratio = (logp - logp_old).exp().data
    ratio = torch.where(ratio > 1 + eps_high, 1 + eps_high, ratio)
    ratio = torch.where(ratio < 1 - eps_low, 1 - eps_low, ratio)
    return -(ratio * logp) * advantages.data


def cispo_loop(logp, logp_old, advantages, *, eps_low, eps_high):
    weights = advantages.detach().expand_as(logp)
    columns = []
    for t in range(logp.shape[1]):
        ratio = torch.exp(logp[:, t] - logp_old[:, t]).detach()
        columns.append(-ratio.clamp(1 - eps_low, 1 + eps_high) * weights[:, t] * logp[:, t])
    return torch.stack(columns, 1)


def cispo_float32(logp, logp_old, advantages, *, eps_low, eps_high):
    inputs = (logp.float(), logp_old.float(), advantages.float())
    return cispo_where(*inputs, eps_low=eps_low, eps_high=eps_high)


def sapo_tanh(logp, logp_old, advantages, *, tau_pos=1.0, tau_neg=1.05):
    a = advantages.detach()
    tau = tau_pos * (a > 0) + tau_neg * (a <= 0)
    ratio = torch.exp(logp - logp_old.detach())
    return -a * 2 / tau * (1 + torch.tanh(tau * (ratio - 1) / 2))


def sapo_two_losses(logp, logp_old, advantages, *, tau_pos=1.0, tau_neg=1.05):
    ratio = (logp - logp_old.detach()).exp()
    a = advantages.detach()

    def gate(tau):
        return torch.sigmoid(tau * ratio - tau) * 4 / tau

    return -torch.where(a > 0, gate(tau_pos), gate(tau_neg)) * a


def sapo_exp(logp, logp_old, advantages, *, tau_pos=1.0, tau_neg=1.05):
    a = advantages.data
    tau = torch.full_like(a, tau_neg)
    tau[a > 0] = tau_pos
    move = (logp - logp_old.data).expm1()
    return -4 * a / (tau * (1 + torch.exp(-tau * move)))


def sapo_clamped(logp, logp_old, advantages, *, tau_pos=1.0, tau_neg=1.05):
    ratio = (logp - logp_old.detach()).exp()
    good, bad = advantages.detach().clamp(min=0), advantages.detach().clamp(max=0)
    up = F.sigmoid(tau_pos * (ratio - 1)) * (4 / tau_pos)
    down = F.sigmoid(tau_neg * (ratio - 1)) * (4 / tau_neg)
    return -(good * up + bad * down)


def sapo_loop(logp, logp_old, advantages, *, tau_pos=1.0, tau_neg=1.05):
    a = advantages.detach().expand_as(logp)
    out = []
    for i in range(len(logp)):
        row = []
        for t in range(logp.shape[1]):
            tau = tau_pos if a[i, t] > 0 else tau_neg
            ratio = torch.exp(logp[i, t] - logp_old[i, t].detach())
            row.append(-a[i, t] * 4 / tau * torch.sigmoid(tau * (ratio - 1)))
        out.append(torch.stack(row))
    return torch.stack(out)


def sapo_float32(logp, logp_old, advantages, *, tau_pos=1.0, tau_neg=1.05):
    inputs = (logp.float(), logp_old.float(), advantages.float())
    return sapo_two_losses(*inputs, tau_pos=tau_pos, tau_neg=tau_neg)


def df_loop(correctness, *, low=0.0, high=1.0):
    keep = []
    for row in correctness.tolist():
        keep.append(not all(c == low for c in row) and not all(c == high for c in row))
    return torch.tensor(keep)


def df_counts(correctness, *, low=0.0, high=1.0):
    group = correctness.shape[1]
    return ((correctness == low).sum(1) < group) & ((correctness == high).sum(1) < group)


def df_any(correctness, *, low=0.0, high=1.0):
    return (correctness != low).any(1) & (correctness != high).any(-1)


def df_distance(correctness, *, low=0.0, high=1.0):
    far = [(correctness.double() - end).abs().amax(dim=1) > 0 for end in (low, high)]
    return torch.logical_and(*far)


def df_extremes(correctness, *, low=0.0, high=1.0):
    return (correctness.amax(1) > low) & (correctness.amin(1) < high)


def df_product(correctness, *, low=0.0, high=1.0):
    wrong = (correctness == low).long().prod(1)
    right = (correctness == high).long().prod(1)
    return (wrong + right) == 0


def op_where(lengths, *, max_length, cache):
    ramp = (max_length - cache - lengths) / cache
    late = torch.where(lengths > max_length, -1.0, ramp)
    return torch.where(lengths <= max_length - cache, 0.0, late)


def op_loop(lengths, *, max_length, cache):
    out = []
    for n in lengths.tolist():
        start = max_length - cache
        out.append(0.0 if n <= start else -1.0 if n > max_length else (start - n) / cache)
    return torch.tensor(out)


def op_relu(lengths, *, max_length, cache):
    over = F.relu(lengths.double() - (max_length - cache))
    return -(over / cache).clamp(max=1)


def op_min(lengths, *, max_length, cache):
    ramp = 1 - (lengths + 2 * cache - max_length) / cache
    return torch.minimum(torch.maximum(ramp, torch.tensor(-1.0)), torch.tensor(0.0))


def op_hardtanh(lengths, *, max_length, cache):
    return F.hardtanh((max_length - cache - lengths.to(torch.float64)) / cache, -1.0, 0.0)


def op_masks(lengths, *, max_length, cache):
    out = torch.zeros(lengths.shape, dtype=torch.float32)
    inside = (lengths > max_length - cache) & (lengths <= max_length)
    out[inside] = (max_length - cache - lengths[inside]).float() / cache
    out[lengths > max_length] = -1
    return out


def gl_loop(logp, logp_old, advantages, mask, *, eps_low, eps_high, sequences=None):
    total = logp.new_zeros(())
    for i, keep in enumerate(mask.bool()):
        if keep.any():
            ratio = (logp[i][keep] - logp_old[i][keep].detach()).exp()
            a = advantages[i].detach()
            best = torch.min(ratio * a, ratio.clamp(1 - eps_low, 1 + eps_high) * a)
            total = total - best.mean()
    return total / (sequences or len(logp))


def gl_max_of_losses(logp, logp_old, advantages, mask, *, eps_low, eps_high, sequences=None):
    m = mask.to(logp.dtype)
    change = torch.zeros_like(logp).masked_scatter(
        mask.bool(), logp[mask.bool()] - logp_old.detach()[mask.bool()]
    )
    a = advantages.detach()
    loss = torch.max(-a * change.exp(), -a * change.exp().clip(1 - eps_low, 1 + eps_high))
    weight = m / m.sum(1, keepdim=True).clamp(min=1)
    return (loss * weight).sum() / (sequences if sequences is not None else logp.shape[0])


def gl_gate(logp, logp_old, advantages, mask, *, eps_low, eps_high, sequences=None):
    """The clip by cases, the average as an einsum."""
    keep = mask.bool()
    change = logp.masked_fill(~keep, 0) - logp_old.detach().masked_fill(~keep, 0)
    ratio, a = change.exp(), advantages.detach()
    bounded = torch.where(a > 0, ratio.clamp(max=1 + eps_high), ratio.clamp(min=1 - eps_low))
    lengths = keep.sum(1).clamp(min=1).to(logp.dtype)
    weight = keep.to(logp.dtype) / lengths[:, None]
    return -torch.einsum("bt,bt->", weight, a * bounded) / (sequences or len(lengths))


def gl_flat(logp, logp_old, advantages, mask, *, eps_low, eps_high, sequences=None):
    """Only the tokens, one after the other, each with its weight."""
    rows, columns = mask.nonzero(as_tuple=True)
    ratio = torch.exp(logp[rows, columns] - logp_old[rows, columns].detach())
    a = advantages.detach()[rows, 0]
    objective = torch.minimum(ratio * a, torch.clamp(ratio, 1 - eps_low, 1 + eps_high) * a)
    return -(objective / mask.sum(1)[rows]).sum() / (sequences or len(mask))


def gl_nan_to_num(logp, logp_old, advantages, mask, *, eps_low, eps_high, sequences=None):
    clean = {"nan": 0.0, "posinf": 0.0, "neginf": 0.0}
    new, old = logp.nan_to_num(**clean), logp_old.detach().nan_to_num(**clean)
    m = mask.to(new.dtype)
    ratio = ((new - old) * m).exp()
    a = advantages.detach()
    loss = -torch.min(a * ratio, a * ratio.clamp(1 - eps_low, 1 + eps_high)) * m
    rows = loss.sum(1) / m.sum(1).clamp(min=1)
    return rows.mean() if sequences is None else rows.sum() / sequences


def gl_float32(logp, logp_old, advantages, mask, *, eps_low, eps_high, sequences=None):
    inputs = (logp.float(), logp_old.float(), advantages.float(), mask)
    return gl_flat(*inputs, eps_low=eps_low, eps_high=eps_high, sequences=sequences)


EQUIVALENT = {
    "mean_per_sequence": [
        mps_loop, mps_weights, mps_einsum, mps_float32, mps_small_eps, mps_in_place,
    ],
    "mean_per_token": [mpt_select, mpt_where, mpt_loop, mpt_weights, mpt_float32, mpt_of_rows],
    "mean_fixed_length": [
        mfl_select, mfl_rows, mfl_loop, mfl_float32, mfl_padded, mfl_in_place,
    ],
    "gspo": [gspo_loop, gspo_zeros_on_padding, gspo_cases, gspo_max_of_losses, gspo_float32],
    "cispo": [
        cispo_no_grad, cispo_minmax, cispo_logs, cispo_where, cispo_loop, cispo_float32,
    ],
    "sapo": [sapo_tanh, sapo_two_losses, sapo_exp, sapo_clamped, sapo_loop, sapo_float32],
    "dapo_filter": [df_loop, df_counts, df_any, df_distance, df_extremes, df_product],
    "overlong_penalty": [op_where, op_loop, op_relu, op_min, op_hardtanh, op_masks],
    "grpo_loss": [gl_loop, gl_max_of_losses, gl_gate, gl_flat, gl_nan_to_num, gl_float32],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "answer"), [(n, f) for n, answers in EQUIVALENT.items() for f in answers]
)
def test_an_equivalent_right_answer_gets_full_points(name, answer):
    for seed in (0, 1, 2):
        for cases in ("visible", "final"):
            verdict = judge(f"hw3/{name}", answer, cases=cases, seed=seed)
            assert verdict.passed, (verdict.cause, verdict.details)


def test_every_question_has_at_least_five_equivalent_answers():
    assert all(len(EQUIVALENT[q.function_name]) >= 5 for q in HW3)


# --- wrong answers as people write them, independent of the catalogue -----------------------


def masked(x, mask):
    return torch.where(mask.bool(), x, 0.0)


def clipped(ratio, a, low, high):
    return torch.min(ratio * a, ratio.clamp(1 - low, 1 + high) * a)


def seq_ratio(new, old, mask):
    m = mask.to(new.dtype)
    return (((new - old.detach()) * m).sum(1, True) / m.sum(1, True).clamp(min=1)).exp()


def by_rows(loss, mask, n=None):
    rows = masked(loss, mask).sum(1) / mask.sum(1).clamp(min=1)
    return rows.mean() if n is None else rows.sum() / n


def grpo_from(loss, average=by_rows):
    """grpo_loss made of a loss per token of (ratio, advantages, eps_low, eps_high)."""

    def answer(new, old, a, m, *, eps_low, eps_high, sequences=None):
        ratio = (masked(new, m) - masked(old.detach(), m)).exp()
        return average(loss(ratio, a.detach(), eps_low, eps_high), m, sequences)

    return answer


def ppo(ratio, a, low, high):
    return -clipped(ratio, a, low, high)


def late_mask(new, old, a, m, *, eps_low, eps_high, sequences=None):
    ratio = (new - old.detach()).exp()
    return by_rows(ppo(ratio, a.detach(), eps_low, eps_high), m, sequences)


def times_mask(new, old, a, m, *, eps_low, eps_high, sequences=None):
    loss = ppo((new - old.detach()).exp(), a.detach(), eps_low, eps_high) * m
    rows = loss.sum(1) / m.sum(1).clamp(min=1)
    return rows.mean() if sequences is None else rows.sum() / sequences


def over_tokens(loss, m, n):
    mean = masked(loss, m).sum() / m.sum()
    return mean if n is None else mean * len(m) / n


def over_columns(loss, m, n):
    return masked(loss, m).mean(1).sum() / (n or len(m))


def added_up(loss, m, n):
    return masked(loss, m).sum(1).mean() if n is None else masked(loss, m).sum() / n


def own_count(loss, m, n):
    return by_rows(loss, m)


def over_own_tokens(loss, m, n):
    return masked(loss, m).sum() / m.sum().clamp(min=1)


def over_tokens_or_count(loss, m, n):
    return masked(loss, m).sum() / (n or m.sum().clamp(min=1))


def by_every_length(loss, m, n):
    return (masked(loss, m).sum(1) / m.sum(1, keepdim=True).clamp(min=1)).sum() / (n or len(m))


def padding_left(loss, m, n):
    return (loss.sum(1) / m.sum(1).clamp(min=1)).sum() / (n or len(m))


def sapo_of(inner, factor=lambda a, tau, new, old: a.detach() * 4 / tau, choose=torch.sign):
    """sapo made of what stands inside the sigmoid, (tau, ratio, advantages), and before it."""

    def answer(new, old, a, *, tau_pos=1.0, tau_neg=1.05):
        tau = torch.where(choose(a) > 0, tau_pos, tau_neg)
        gate = torch.sigmoid(inner(tau, (new - old.detach()).exp(), a.detach()))
        return -factor(a, tau, new, old) * gate

    return answer


def centred(tau, ratio, a):
    return tau * (ratio - 1)


def dual(r, a, low, high):
    return torch.where(a < 0, torch.min(ppo(r, a, low, high), -3 * a), ppo(r, a, low, high))


def first_ones(x, m):
    """The mask taken for a length."""
    return (torch.arange(x.shape[1]) < m.sum(1, keepdim=True)).to(x.dtype)


WRONG = [
    ("mean_per_sequence", lambda x, m, *, sequences=None: by_rows(x, m), {"sequences_ignored"}),
    ("mean_per_sequence", lambda x, m, *, sequences=None: added_up(x, m, sequences),
     {"sum_over_tokens"}),
    ("mean_per_sequence", lambda x, m, *, sequences=None: over_tokens(x, m, sequences),
     {"per_token"}),
    ("mean_per_sequence", lambda x, m, *, sequences=None: over_columns(x, m, sequences),
     {"padded_width"}),
    ("mean_per_sequence", lambda x, m, *, sequences=None:
     ((x * m).sum(1) / m.sum(1).clamp(min=1)).sum() / (sequences or len(x)), {"mask_multiplied"}),
    ("mean_per_sequence", lambda x, m, *, sequences=None:
     (masked(x, m).sum(1) / m.sum(1)).sum() / (sequences or len(x)), {"empty_nan"}),
    ("mean_per_sequence", lambda x, m, *, sequences=None:
     torch.stack([r[k.bool()].mean() for r, k in zip(x, m, strict=True) if k.any()]).sum()
     / (sequences or int((m.sum(1) > 0).sum())), {"empty_not_counted"}),
    ("mean_per_sequence", lambda x, m, *, sequences=None:
     by_rows(x, m) / (sequences or 1), {"sequences_twice"}),
    ("mean_per_sequence", lambda x, m, *, sequences=None:
     masked(x, m).sum(1) / m.sum(1).clamp(min=1) / (sequences or len(x)), {"not_reduced"}),
    # one average under another's name, with the count honoured, ignored, or as the divisor
    ("mean_per_sequence", lambda x, m, *, sequences=None: over_own_tokens(x, m, None),
     {"per_token", "sequences_ignored"}),
    ("mean_per_sequence", lambda x, m, *, sequences=None: over_tokens_or_count(x, m, sequences),
     {"per_token_counted"}),
    ("mean_per_token", lambda x, m, *, tokens=None: by_rows(x, m),
     {"per_sequence", "tokens_ignored"}),
    ("mean_per_token", lambda x, m, *, tokens=None: by_rows(x, m, tokens),
     {"per_sequence_counted"}),
    ("mean_fixed_length", lambda x, m, *, length, sequences=None: over_own_tokens(x, m, None),
     {"per_token"}),
    ("mean_fixed_length", lambda x, m, *, length, sequences=None:
     over_tokens_or_count(x, m, sequences), {"per_token_counted"}),
    ("mean_fixed_length", lambda x, m, *, length, sequences=None: by_rows(x, m),
     {"own_length", "sequences_ignored"}),
    ("mean_fixed_length", lambda x, m, *, length, sequences=None:
     masked(x, m)[:, :length].sum() / length / (sequences or len(x)), {"cut_at_length"}),
    ("mean_per_sequence", lambda x, m, *, sequences=None: by_every_length(x, m, sequences),
     {"broadcast"}),
    ("mean_per_sequence", lambda x, m, *, sequences=None:
     by_every_length(x, m, sequences) / (1 if sequences else len(x)), {"broadcast_mean"}),
    ("mean_per_sequence", lambda x, m, *, sequences=None:
     (masked(x, m).sum(0) / m.sum(0).clamp(min=1)).sum() / (sequences or len(x)),
     {"wrong_axis_rows"}),
    ("mean_per_sequence", lambda x, m, *, sequences=None: by_rows(x, first_ones(x, m), sequences),
     {"mask_as_length"}),
    ("mean_per_token", lambda x, m, *, tokens=None: mpt_where(x, first_ones(x, m), tokens=tokens),
     {"mask_as_length"}),
    ("mean_fixed_length", lambda x, m, *, length, sequences=None: mfl_rows(
        x, first_ones(x, m), length=length, sequences=sequences), {"mask_as_length"}),
    ("gspo", lambda new, old, a, m, **eps: gspo_cases(new, old, a, first_ones(new, m), **eps),
     {"mask_as_length"}),
    ("grpo_loss", lambda new, old, a, m, **knobs: gl_loop(
        new, old, a, first_ones(new, m), **knobs), {"mask_as_length"}),
    ("mean_per_token", lambda x, m, *, tokens=None: masked(x, m).mean(), {"plain_mean"}),
    ("mean_fixed_length", lambda x, m, *, length, sequences=None:
     (masked(x, m).sum(1) / m.sum(1).clamp(min=length)).sum() / (sequences or len(x)),
     {"at_least_own"}),
    ("mean_fixed_length", lambda x, m, *, length, sequences=None:
     (masked(x, m).sum(1) / m.sum(1).clamp(min=1, max=length)).sum() / (sequences or len(x)),
     {"at_most_own"}),
    ("gspo", lambda new, old, a, m, *, eps_low, eps_high: dual(
        seq_ratio(new, old, m), a.detach(), eps_low, eps_high).expand_as(new), {"dual_clip"}),
    ("gspo", lambda new, old, a, m, *, eps_low, eps_high: ppo(
        masked(new - old.detach(), m).exp(), a.detach(), eps_low, eps_high),
     {"token_ratio_clean"}),
    ("gspo", lambda new, old, a, m, *, eps_low, eps_high: ppo(
        masked(new - old.detach(), m).sum(1, True).exp() / m.sum(1, True).clamp(min=1),
        a.detach(), eps_low, eps_high).expand_as(new), {"divided_after_exp"}),
    ("gspo", lambda new, old, a, m, *, eps_low, eps_high: ppo(
        (masked(new - old.detach(), m).sum() / m.sum()).exp(), a.detach(), eps_low, eps_high)
     .expand_as(new), {"whole_batch"}),
    ("cispo", lambda new, old, a, *, eps_low, eps_high: new * ppo(
        (new - old).exp(), a, eps_low, eps_high).detach(), {"minimum"}),
    ("sapo", sapo_of(centred, choose=lambda a: a[:, :1]), {"tau_by_row"}),
    ("sapo", sapo_of(centred, choose=lambda a: a.mean(1, True)), {"tau_by_row_mean"}),
    ("mean_per_token", lambda x, m, *, tokens=None: x[m.bool()].mean().nan_to_num(),
     {"tokens_ignored"}),
    ("mean_per_token", lambda x, m, *, tokens=None: x[m.bool()].sum() / (tokens or m.sum()),
     {"empty_nan"}),
    ("mean_per_token", lambda x, m, *, tokens=None:
     masked(x, m).sum() / (tokens or x.numel()), {"positions"}),
    ("mean_per_token", lambda x, m, *, tokens=None:
     masked(x, m).sum() / (tokens or len(x)), {"sequences"}),
    ("mean_per_token", lambda x, m, *, tokens=None:
     (x * m).sum() / (tokens or m.sum().clamp(min=1)), {"mask_multiplied"}),
    ("mean_fixed_length", lambda x, m, *, length, sequences=None:
     masked(x, m).mean(1).sum() / (sequences or len(x)), {"padded_width"}),
    ("mean_fixed_length", lambda x, m, *, length, sequences=None:
     (masked(x, m).mean(1) / length).sum() / (sequences or len(x)), {"width_too"}),
    ("mean_fixed_length", lambda x, m, *, length, sequences=None:
     (masked(x, m).sum(1) / length).mean(), {"sequences_ignored"}),
    ("mean_fixed_length", lambda x, m, *, length, sequences=None:
     masked(x, m).sum() / length, {"batch_not_averaged"}),
    ("mean_fixed_length", lambda x, m, *, length, sequences=None:
     by_rows(x, m, sequences), {"own_length"}),
    ("gspo", lambda new, old, a, m, *, eps_low, eps_high: ppo(
        ((new - old.detach()) * m).sum(1, True).exp(), a.detach(), eps_low, eps_high)
     .expand_as(new), {"sum_of_logs"}),
    ("gspo", lambda new, old, a, m, *, eps_low, eps_high: ppo(
        (new - old.detach()).exp(), a.detach(), eps_low, eps_high), {"token_ratio"}),
    ("gspo", lambda new, old, a, m, *, eps_low, eps_high: ppo(
        (new - old.detach()).mean(1, True).exp(), a.detach(), eps_low, eps_high).expand_as(new),
     {"padding_read"}),
    ("gspo", lambda new, old, a, m, *, eps_low, eps_high: ppo(
        seq_ratio(new, old, m), a.detach(), eps_low, eps_high), {"column"}),
    ("gspo", lambda new, old, a, m, *, eps_low, eps_high: ppo(
        seq_ratio(new, old, m).detach() * (new - new.detach()).exp(), a.detach(), eps_low,
        eps_high), {"per_token_gradient"}),
    ("gspo", lambda new, old, a, m, *, eps_low, eps_high: ppo(
        seq_ratio(new, old, m), a, eps_low, eps_high).expand_as(new),
     {"advantages_not_detached"}),
    ("gspo", lambda new, old, a, m, *, eps_low, eps_high: -(a.detach() * seq_ratio(new, old, m)
     .clamp(1 - eps_low, 1 + eps_high)).expand_as(new), {"clip_only"}),
    ("cispo", lambda new, old, a, *, eps_low, eps_high: -(new - old.detach()).exp().clamp(
        1 - eps_low, 1 + eps_high) * a.detach(), {"no_logp"}),
    ("cispo", lambda new, old, a, *, eps_low, eps_high: -(new - old).exp().clamp(
        1 - eps_low, 1 + eps_high) * a.detach() * new, {"nothing_detached"}),
    ("cispo", lambda new, old, a, *, eps_low, eps_high: -(new - old.detach()).exp().clamp(
        1 - eps_low, 1 + eps_high) * a.detach() * new, {"weight_not_detached"}),
    ("cispo", lambda new, old, a, *, eps_low, eps_high: -(new - old).exp().detach().clamp(
        max=1 + eps_high) * a.detach() * new, {"lower_edge_missing"}),
    ("cispo", lambda new, old, a, *, eps_low, eps_high: -(new - old).exp().detach().clamp(
        max=eps_high) * a.detach() * new, {"eps_as_largest_weight"}),
    ("cispo", lambda new, old, a, *, eps_low, eps_high: ppo(
        (new - old.detach()).exp(), a.detach(), eps_low, eps_high), {"ppo"}),
    ("cispo", lambda new, old, a, *, eps_low, eps_high: -(new.exp() / old.exp()).detach().clamp(
        1 - eps_low, 1 + eps_high) * a.detach() * new, {"quotient_of_probabilities"}),
    ("cispo", lambda new, old, a, *, eps_low, eps_high: -(new - old).exp().clamp(
        1 - eps_low, 1 + eps_high).detach() * a.detach(), {"weight_alone"}),
    ("cispo", lambda new, old, a, *, eps_low, eps_high: -(new - old).exp().clamp(
        1 - eps_low, 1 + eps_high).detach() * a.detach() * old, {"old_logp_attached"}),
    ("sapo", sapo_of(lambda tau, ratio, a: tau * ratio - 1), {"parentheses"}),
    ("sapo", sapo_of(centred, choose=torch.mean), {"tau_by_mean"}),
    ("sapo", sapo_of(centred, lambda a, tau, new, old: a.detach() * 4 / tau * new),
     {"logp_beside"}),
    ("sapo", sapo_of(lambda tau, ratio, a: tau * a * (ratio - 1),
                     lambda a, tau, new, old: 4 / tau), {"advantage_inside"}),
    ("sapo", sapo_of(centred, lambda a, tau, new, old: 4 * a.detach() * (new - old.detach()).exp()
                     * torch.sigmoid(-tau * ((new - old.detach()).exp() - 1))),
     {"slope_returned"}),
    ("sapo", sapo_of(centred, lambda a, tau, new, old: a.detach()), {"no_factor"}),
    ("sapo", lambda new, old, a, *, tau_pos=1.0, tau_neg=1.05: sapo_exp(
        new, old, a, tau_pos=tau_neg, tau_neg=tau_pos), {"tau_swapped"}),
    ("sapo", lambda new, old, a, **taus: sapo_exp(new, old, a), {"tau_fixed"}),
    ("sapo", lambda new, old, a, *, tau_pos=1.0, tau_neg=1.05: sapo_loop(
        new, old, a, tau_pos=tau_pos, tau_neg=tau_pos), {"tau_pos_only"}),
    ("sapo", lambda new, old, a, *, tau_pos=1.0, tau_neg=1.05: -sapo_loop(
        new, old, a, tau_pos=tau_pos, tau_neg=tau_neg), {"missing_minus"}),
    ("sapo", lambda new, old, a, *, tau_pos=1.0, tau_neg=1.05: sapo_tanh(
        new, old, a, tau_pos=tau_pos, tau_neg=tau_neg) + 2 * a.detach() / torch.where(
        a > 0, tau_pos, tau_neg), {"half_subtracted"}),
    ("dapo_filter", lambda c, *, low=0.0, high=1.0: c.double().std(1) > 0, {"no_contrast"}),
    ("dapo_filter", lambda c, *, low=0.0, high=1.0:
     (c.float().mean(1) > low) & (c.float().mean(1) < high), {"mean_compared"}),
    ("dapo_filter", lambda c, *, low=0.0, high=1.0:
     (c.double().mean(1) != low) & (c.double().mean(1) != high), {"mean_compared"}),
    ("dapo_filter", lambda c, *, low=0.0, high=1.0: (c == low).all(1) | (c == high).all(1),
     {"dropped_returned"}),
    ("dapo_filter", lambda c, *, low=0.0, high=1.0: (c == high).any(1) & (c == low).any(1),
     {"both_needed"}),
    ("dapo_filter", lambda c, *, low=0.0, high=1.0: df_any(c), {"knobs_ignored"}),
    ("dapo_filter", lambda c, *, low=0.0, high=1.0: ~((c == low).all() | (c == high).all())
     .expand(len(c)), {"nothing_dropped"}),
    ("dapo_filter", lambda c, *, low=0.0, high=1.0:
     ((c == high).sum(1) > 0) & ((c == high).sum(1) < c.shape[1]), {"only_high_is_right"}),
    ("overlong_penalty", lambda n, *, max_length, cache: -op_loop(
        n, max_length=max_length, cache=cache), {"positive"}),
    ("overlong_penalty", lambda n, *, max_length, cache: ((max_length - cache - n) / cache).clamp(
        max=0), {"long_unlimited"}),
    ("overlong_penalty", lambda n, *, max_length, cache: ((max_length - cache - n) / cache).clamp(
        min=-1), {"short_unlimited"}),
    ("overlong_penalty", lambda n, *, max_length, cache: -((n - max_length + cache) / max_length)
     .clamp(0) * (n <= max_length) - 1.0 * (n > max_length), {"by_max_length"}),
    ("overlong_penalty", lambda n, *, max_length, cache: ((max_length - cache - n) / max_length)
     .clamp(-1, 0), {"by_max_length_clamped"}),
    ("overlong_penalty", lambda n, *, max_length, cache: -(n > max_length).float(), {"step"}),
    ("overlong_penalty", lambda n, *, max_length, cache: ((max_length - cache - n) // cache).clamp(
        -1, 0).double(), {"step_at_start"}),
    ("overlong_penalty", lambda n, *, max_length, cache: ((max_length - n) / cache).clamp(-1, 0),
     {"starts_at_limit"}),
    ("grpo_loss", late_mask, {"masked_too_late"}),
    ("grpo_loss", times_mask, {"mask_multiplied"}),
    ("grpo_loss", grpo_from(ppo, over_tokens), {"per_token"}),
    ("grpo_loss", grpo_from(ppo, over_columns), {"padded_width"}),
    ("grpo_loss", grpo_from(ppo, added_up), {"sum_over_tokens"}),
    ("grpo_loss", grpo_from(ppo, own_count), {"sequences_ignored"}),
    ("grpo_loss", grpo_from(ppo, over_own_tokens), {"per_token_own"}),
    ("grpo_loss", grpo_from(ppo, over_tokens_or_count), {"per_token_counted"}),
    ("grpo_loss", grpo_from(ppo, by_every_length), {"broadcast"}),
    ("grpo_loss", grpo_from(ppo, padding_left), {"padding_left"}),
    ("grpo_loss", grpo_from(dual), {"dual_clip"}),
    ("grpo_loss", grpo_from(lambda r, a, low, high: -torch.min(
        r, r.clamp(1 - low, 1 + high)) * a, over_own_tokens),
     {"min_before_advantage", "per_token_own"}),
    ("grpo_loss", grpo_from(lambda r, a, low, high: -r * a), {"no_clip"}),
    ("grpo_loss", grpo_from(lambda r, a, low, high: -r.clamp(1 - low, 1 + high) * a),
     {"clip_only"}),
    ("grpo_loss", grpo_from(lambda r, a, low, high: -torch.max(
        r * a, r.clamp(1 - low, 1 + high) * a)), {"max_for_min"}),
    ("grpo_loss", grpo_from(lambda r, a, low, high: -torch.min(
        r, r.clamp(1 - low, 1 + high)) * a), {"min_before_advantage"}),
    ("grpo_loss", grpo_from(lambda r, a, low, high: ppo(r, a, high, low)), {"eps_swapped"}),
    ("grpo_loss", grpo_from(lambda r, a, low, high: ppo(r, a, low, low)), {"eps_low_twice"}),
    ("grpo_loss", grpo_from(lambda r, a, low, high: ppo(1 / r, a, low, high)), {"ratio_inverted"}),
    ("grpo_loss", grpo_from(lambda r, a, low, high: -ppo(r, a, low, high)), {"missing_minus"}),
    # pairs: a clip and an average
    ("grpo_loss", grpo_from(lambda r, a, low, high: -r * a, over_tokens),
     {"no_clip", "per_token"}),
    ("grpo_loss", grpo_from(lambda r, a, low, high: ppo(r, a, high, low), over_columns),
     {"eps_swapped", "padded_width"}),
    ("grpo_loss", grpo_from(lambda r, a, low, high: -r.clamp(1 - low, 1 + high) * a, own_count),
     {"clip_only", "sequences_ignored"}),
    ("grpo_loss", grpo_from(lambda r, a, low, high: -ppo(r, a, low, high), added_up),
     {"missing_minus", "sum_over_tokens"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answer", "mistakes"), WRONG)
def test_a_wrong_answer_written_independently_is_named(name, answer, mistakes):
    for cases in ("visible", "final"):
        verdict = judge(f"hw3/{name}", answer, cases=cases)
        assert verdict.points < verdict.max_points
        assert set(verdict.details["named"]) == mistakes, (verdict.cause, verdict.details)


def with_bounded_log_ratio(right, bound=1):
    """The right function, told that no log-ratio is larger than ``bound``."""

    def answer(new, old, *args, **knobs):
        return right(new, new.detach() - (new - old).detach().clamp(-bound, bound), *args, **knobs)

    return answer


NO_POINTS = [
    ("grpo_loss", with_bounded_log_ratio(gl_loop)),
    ("sapo", with_bounded_log_ratio(sapo_exp)),
    ("gspo", with_bounded_log_ratio(gspo_cases)),
    ("grpo_loss", grpo_from(lambda r, a, low, high: ppo(r.clamp(max=2), a, low, high))),
    ("cispo", lambda new, old, a, **eps: cispo_where(new, old, a.clamp(-2, 2), **eps)),
    ("sapo", lambda new, old, a, *, tau_pos=9.0, tau_neg=-3.0: sapo_exp(
        new, old, a, tau_pos=tau_pos, tau_neg=tau_neg)),
    ("dapo_filter", lambda c, *, low=0.0, high=1.0:
     df_any(torch.where((c.double() - low).abs() < 0.04, low, c.double()), low=low, high=high)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answer"), NO_POINTS)
def test_what_is_right_only_in_the_middle_of_the_range_gets_nothing(name, answer):
    for cases, seed in (("visible", 0), ("final", 0), ("final", 1), ("final", 2)):
        assert judge(f"hw3/{name}", answer, cases=cases, seed=seed).points == 0


OUTSIDE = [
    ("mean_per_sequence", lambda x, m, *, sequences=None: 3 * mps_loop(x, m, sequences=sequences)),
    ("mean_per_sequence", lambda x, m, *, sequences=None: masked(x, m).amax(1).mean()),
    ("mean_per_token", lambda x, m, *, tokens=None: masked(x, m).square().sum() / m.sum().clamp(1)),
    ("mean_fixed_length", lambda x, m, *, length, sequences=None:
     mfl_loop(x, m, length=length**0.5, sequences=sequences)),
    ("gspo", lambda new, old, a, m, *, eps_low, eps_high:
     gspo_loop(new, old, torch.tanh(a), m, eps_low=eps_low, eps_high=eps_high)),
    ("gspo", lambda new, old, a, m, *, eps_low, eps_high:
     gspo_loop(new, old, a, m, eps_low=2 * eps_low, eps_high=2 * eps_high)),
    ("cispo", lambda new, old, a, *, eps_low, eps_high:
     cispo_where(new, old, a**3, eps_low=eps_low, eps_high=eps_high)),
    ("cispo", lambda new, old, a, *, eps_low, eps_high:
     cispo_where(new, old, a, eps_low=eps_low, eps_high=eps_high) * 0.9),
    ("sapo", lambda new, old, a, *, tau_pos=1.0, tau_neg=1.05:
     sapo_loop(new, old, a, tau_pos=tau_pos**2, tau_neg=tau_neg**2)),
    ("dapo_filter", lambda c, *, low=0.0, high=1.0: c[:, 0] == high),
    ("overlong_penalty", lambda n, *, max_length, cache:
     op_loop(n, max_length=max_length - 7, cache=cache)),
    ("overlong_penalty", lambda n, *, max_length, cache:
     torch.tanh(op_loop(n, max_length=max_length, cache=cache))),
    ("grpo_loss", grpo_from(lambda r, a, low, high: ppo(r**2, a, low, high))),
    ("grpo_loss", grpo_from(lambda r, a, low, high: ppo(r, a, low, high) + 0.01 * r)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answer"), OUTSIDE)
def test_a_mistake_outside_the_catalogue_is_described_or_unknown_but_not_named(name, answer):
    verdict = judge(f"hw3/{name}", answer)
    assert not verdict.passed
    assert verdict.details["named"] == [], verdict.cause
    assert verdict.details["hint"]


@pytest.mark.parametrize("kept", [torch.zeros, torch.ones])
def test_a_filter_without_a_question_to_its_input_is_refused(kept):
    for cases in ("visible", "final"):
        verdict = judge("hw3/dapo_filter", lambda c, **knobs: kept(len(c)).bool(), cases=cases)
        assert verdict.points == 0


def test_answers_that_no_question_may_accept():
    """Nothing, the negated, twice, half, without a graph; one that writes into its input."""
    for question in HW3:
        if question.result == "bool":
            continue
        right = question.reference

        def changed(factor, detach=False, right=right):
            def answer(*args, **knobs):
                out = factor * right(*args, **knobs)
                return out.detach() if detach else out

            return answer

        answers = [changed(c) for c in (0.0, -1.0, 2.0, 0.5)]
        if any(case.differentiable for case in cases_for(question.id)):
            answers.append(changed(1.0, detach=True))
        for wrong in answers:
            for cases in ("visible", "final"):
                verdict = judge(question.id, wrong, cases=cases)
                assert verdict.points < verdict.max_points
                assert verdict.cause

        def writes(x, *args, right=right, **knobs):
            out = right(x, *args, **knobs)
            x.data.add_(1)
            return out

        verdict = judge(question.id, writes)
        assert verdict.details["property"] == "inputs", (question.id, verdict.cause)


# --- the batch on which clips and averages are known to differ -------------------------------


CLIPS = [
    "missing_minus", "max_for_min", "clip_only", "no_clip", "min_before_advantage",
    "dropped_outside", "eps_swapped", "eps_low_twice", "eps_high_twice", "ratio_inverted",
    "difference_for_ratio", "quotient_of_logs",
]  # fmt: skip
AVERAGES = [
    "per_token", "padded_width", "longest", "length_twice", "length_plus_one", "sum_over_tokens",
    "batch_not_averaged", "not_reduced", "padding_counted", "mask_inverted", "last_token_dropped",
    "first_token_dropped", "sequences_ignored", "sequences_twice",
]  # fmt: skip


def test_clip_and_average_are_named_together():
    """Each of the pairs of a clip's and an average's mistake, on the judge's own cases."""
    question = QUESTIONS["hw3/grpo_loss"]
    cases = cases_for(question.id)  # one set: what the mistakes do on a case is kept
    count, exact = 0, 0
    for clip, average in product(CLIPS, AVERAGES):
        if frozenset((clip, average)) in question.excludes:
            continue

        def answer(*args, both=frozenset((clip, average)), **knobs):
            return wrong_grpo(*args, mistakes=both, **knobs)

        verdict = assess(question.id, collect(answer, cases))
        assert verdict.points == 0
        named = set(verdict.details["named"])
        assert {clip, average} & named, (clip, average, verdict.cause)
        count += 1
        exact += named == {clip, average}
    assert count >= 150
    assert exact >= 0.95 * count


def test_a_known_batch_separates_clips_and_averages():
    """Lengths 3, 1, 2, 4 and ratios on every side: all pairs give gradients of their own."""
    old = -torch.tensor([
        [1, 0.4, 1.7, 0.9, 2, 1.5], [0.8, 1.1, 0.3, 0.6, 1, 0.2],
        [1.3, 0.7, 0.5, 2.2, 0.4, 0.9], [0.6, 1.9, 1.2, 0.35, 0.8, 1.4],
    ], dtype=torch.float64)  # fmt: skip
    ratio = torch.tensor([
        [1.5, 0.7, 1.25, 1.1, 0.9, 1.2], [1.4, 0.85, 1.2, 1.3, 0.6, 0.9],
        [0.6, 1.4, 1.4, 0.9, 1.1, 0.7], [0.65, 0.75, 1.35, 1.1, 0.75, 1.3],
    ], dtype=torch.float64)  # fmt: skip
    mask = torch.arange(6) < torch.tensor([[3], [1], [2], [4]])
    a = torch.tensor([[2.0], [-1.0], [0.6], [-0.7]], dtype=torch.float64)
    # With one micro-batch and no empty answer the mistakes of counts cannot show.
    averages = [x for x in AVERAGES if x not in ("not_reduced", "sequences_twice")]
    seen = {}
    for clip, average in product(["", *CLIPS], ["", *averages]):
        logp = (old + ratio.log()).requires_grad_()
        chosen = frozenset({clip, average} - {""})
        loss = wrong_grpo(
            logp, old, a, mask, eps_low=0.2, eps_high=0.28, sequences=9, mistakes=chosen
        )
        (gradient,) = torch.autograd.grad(loss, logp)
        seen[clip, average] = torch.cat([gradient.flatten(), loss.detach()[None]])
    right = seen["", ""]
    for key, what in seen.items():
        if key != ("", ""):
            assert (what - right).abs().max() > 1e-6, key
    both = list(seen.items())
    same = [
        (one, two)
        for k, (one, x) in enumerate(both)
        for two, y in both[k + 1 :]
        if (x - y).abs().max() < 1e-9
    ]
    assert len(both) == 13 * 13
    assert len(same) <= 0.01 * len(both) * (len(both) - 1) / 2


# --- the numbers of the statements and of the reflections -------------------------------------


def close(actual, expected, atol=6e-4):
    want = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(torch.as_tensor(actual).double(), want, atol=atol, rtol=0)


def source_of(notebook, cell_id):
    return next(c.source for c in notebook.cells if c.id == cell_id)


def slopes(function, logp):
    logp = logp.clone().requires_grad_()
    out = function(logp)
    return out.detach(), torch.autograd.grad(out.sum(), logp)[0]


def test_the_minutes_of_the_table_are_those_announced(notebook):
    title = source_of(notebook, "title")
    rows = re.findall(r"^\|.*\| (\d+) \|$", title, re.M)
    assert len(rows) == 6
    assert f"about {sum(map(int, rows))} minutes of work" in title


def test_the_example_cells_hold_the_examples(notebook, solution):
    space = dict(solution)
    for k in range(1, 6):
        exec(source_of(notebook, f"q{k}-example"), space)
    close(space["mean_per_sequence"](**space["example_1"]), 4)
    close(space["gspo"](**space["example_2"]), [[-1.3] * 3, [0.905] * 3])
    cispo = space["cispo"](**space["example_3"], eps_low=0.2, eps_high=0.28)
    close(cispo, [[0.8, 1.1, 2.56], [-0.8, -2, -0.64]])
    sapo = space["sapo"](**space["example_3"], tau_pos=1.0, tau_neg=2.0)
    close(sapo, [[-1.510, -2.100, -2.490], [0.538, 1, 1.762]])
    assert space["dapo_filter"](space["example_4"]).tolist() == [False, True, False, True]
    lengths = space["example_lengths"]
    penalty = space["overlong_penalty"](lengths, max_length=512, cache=128)
    close(penalty, [0.0, 0, -0.5, -1, -1])
    close(space["grpo_loss"](**space["example_5"]), -0.377)


def test_the_hand_example_of_the_averages(solution):
    x, mask = torch.tensor([[1.0, 2, 3], [6, torch.nan, 99]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    averages = {
        "mean_per_sequence": ({}, {"sequences": 4}, (4, 2), (1 / 6, 1 / 2)),
        "mean_per_token": ({}, {"tokens": 8}, (3, 1.5), (1 / 4, 1 / 4)),
        "mean_fixed_length": (
            {"length": 4}, {"length": 4, "sequences": 4}, (1.5, 0.75), (1 / 8, 1 / 8),
        ),
    }  # fmt: skip
    for name, (whole, part, values, weights) in averages.items():
        value, slope = slopes(lambda x, n=name, k=whole: solution[n](x, mask, **k), x)
        close(value, values[0])
        close(slope, [[weights[0]] * 3, [weights[1], 0, 0]])
        close(solution[name](x, mask, **part), values[1])


def test_the_hand_examples_of_the_surrogates(solution):
    change = torch.tensor([[0.2, 0.4, 0.6], [-0.3, 0.1, 7.0]], dtype=torch.float64)
    mask, a = torch.tensor([[1, 1, 1], [1, 1, 0]]), torch.tensor([[1.0], [-1.0]]).double()
    old = torch.full_like(change, -1.0)

    def of_tokens(logp):
        return solution["gspo"](logp, old, a, mask, eps_low=0.2, eps_high=0.3) * mask

    value, slope = slopes(of_tokens, old + change)
    close(value, [[-1.3] * 3, [0.905, 0.905, 0]])
    close(slope, [[0.0] * 3, [0.905, 0.905, 0]])
    close([math.exp(0.4), math.exp(1.2), math.exp(0.2)], [1.492, 3.320, 1.221])

    rho = torch.tensor([[0.5, 1.1, 1.5], [0.5, 1, 2]], dtype=torch.float64)
    logp = torch.tensor([[-1.0, -1, -2], [-1, -2, -0.5]], dtype=torch.float64)
    old = logp - rho.log()
    value, slope = slopes(lambda x: solution["cispo"](x, old, a, eps_low=0.2, eps_high=0.28), logp)
    close(value, [[0.8, 1.1, 2.56], [-0.8, -2, -0.64]])
    close(slope, [[-0.8, -1.1, -1.28], [0.8, 1, 1.28]])
    value, slope = slopes(lambda x: solution["sapo"](x, old, a, tau_pos=1, tau_neg=2), logp)
    close(value, [[-1.510, -2.100, -2.490], [0.538, 1, 1.762]])
    close(slope, [[-0.470, -1.097, -1.410], [0.393, 1, 0.840]])


def test_the_hand_examples_of_filter_penalty_and_loss(solution):
    rows = torch.tensor([[0.0, 0, 0], [0, 1, 0], [1, 1, 1], [0.5, 0.5, 0.5]])
    assert solution["dapo_filter"](rows).tolist() == [False, True, False, True]
    lengths = torch.tensor([300, 384, 448, 512, 600])
    close(solution["overlong_penalty"](lengths, max_length=512, cache=128), [0.0, 0, -0.5, -1, -1])
    rho = torch.tensor([[1.5, 0.7, 1.25], [1.4, 1, 1]], dtype=torch.float64)
    mask, a = torch.tensor([[1, 1, 1], [1, 0, 0]]), torch.tensor([[2.0], [-1.0]]).double()
    old = torch.full_like(rho, -1.0)
    value, slope = slopes(
        lambda x: solution["grpo_loss"](x, old, a, mask, eps_low=0.2, eps_high=0.28),
        old + rho.log(),
    )
    close(value, -0.377)
    close(slope, [[0.0, -0.233, -0.417], [0.7, 0, 0]])
    close((2.56 + 1.4 + 2.5) / 3, 2.153)


def test_the_numbers_of_the_reflections(solution):
    def masks(*lengths):
        return torch.arange(30) < torch.tensor(lengths)[:, None]

    def step(parts):
        """Whole step against the average of the parts' own results; loss 1 on the 10 tokens."""
        parts = [(masks(*p), masks(*p).double() * (torch.tensor(p) == 10)[:, None]) for p in parts]
        whole = [torch.cat(t) for t in zip(*parts, strict=True)]
        out = []
        for name, knobs in (
            ("mean_per_sequence", {}),
            ("mean_per_token", {}),
            ("mean_fixed_length", {"length": 50}),
        ):
            average = solution[name]
            own = [float(average(x, m, **knobs)) for m, x in parts]
            out.append((float(average(whole[1], whole[0], **knobs)), sum(own) / len(own)))
        return out

    close(step([(10,), (30, 30, 30)]), [[0.25, 0.5], [0.1, 0.5], [0.05, 0.1]])
    close(step([(10, 30), (30, 30)]), [[0.25, 0.25], [0.1, 0.125], [0.05, 0.05]])

    change = torch.tensor([[-0.2, -0.2, -0.2, 1.2]], dtype=torch.float64)
    old, one = torch.full_like(change, -2.0), torch.ones(1, 1).double()
    mask = torch.ones(1, 4)
    loss = {"eps_low": 0.2, "eps_high": 0.2}
    _, push = slopes(lambda x: 4 * solution["grpo_loss"](x, old, one, mask, **loss), old + change)
    close(-push, [[0.819, 0.819, 0.819, 0]])
    close([math.exp(-0.2), math.exp(1.2), math.exp(0.15)], [0.819, 3.320, 1.162])
    narrow = {"eps_low": 0.1, "eps_high": 0.1}
    _, push = slopes(lambda x: solution["gspo"](x, old, one, mask, **narrow), old + change)
    close(push, [[0.0] * 4])
    _, push = slopes(lambda x: solution["gspo"](x, old, one, mask, **narrow), old)
    close(-push, [[1.0] * 4])

    three, at = torch.tensor([[math.log(3.0)]]).double() - 1, torch.tensor([[-1.0]]).double()
    pushes = [
        -slopes(lambda x: solution["cispo"](x, at, one, eps_low=0.2, eps_high=0.28), three)[1],
        -slopes(lambda x: solution["sapo"](x, at, one, tau_pos=1), three)[1],
        -slopes(lambda x: solution["sapo"](x, at, one, tau_pos=4), three)[1],
    ]
    close([float(p) for p in pushes], [1.28, 1.260, 0.004])

    rewards = solution["overlong_penalty"](
        torch.tensor([300, 448, 480, 600]), max_length=512, cache=128
    )
    close(rewards, [0, -0.5, -0.75, -1])
    close([rewards.mean(), rewards.std()], [-0.5625, 0.427])
    close((rewards - rewards.mean()) / rewards.std(), [1.317, 0.146, -0.439, -1.025])
    assert solution["dapo_filter"](rewards[None]).item()
    assert not solution["dapo_filter"](0 * rewards[None]).item()

    mask, a = torch.tensor([[1, 1, 1], [1, 0, 0]]), torch.tensor([[1.0], [-1.0]]).double()
    old = torch.full((2, 3), -1.0, dtype=torch.float64)
    value, slope = slopes(lambda x: solution["grpo_loss"](x, old, a, mask, **loss), old)
    close(value, 0.0)
    close(slope, [[-1 / 6] * 3, [1 / 2, 0, 0]])
    value, slope = slopes(lambda x: solution["mean_per_token"](-a * (x - old).exp(), mask), old)
    close(value, -0.5)
    close(slope, [[-1 / 4] * 3, [1 / 4, 0, 0]])


# --- experiment and planted bugs -------------------------------------------------------------


@pytest.mark.slow
def test_the_experiment_shows_what_its_text_says(notebook, solution, capsys):
    from toy_models.exact import expected_reward
    from toy_models.race import TASKS

    task = TASKS["hard"]
    with torch.no_grad():
        start = float(expected_reward(task.policy(), task.prompts, task.judge))
    assert round(1 / start) == 12
    table = {}
    for equal in ("answers", "updates"):
        source = source_of(notebook, "experiment-run")
        source = source.replace('equal = "answers"', f'equal = "{equal}"')
        exec(source, {**solution, "prediction": "G = 8"})
        shown = capsys.readouterr().out
        assert "trained with your grpo_loss" in shown
        assert "G = 8" in shown
        rows = [[float(x) for x in line.split()] for line in shown.splitlines()[3:7]]
        table[equal] = torch.tensor(rows, dtype=torch.float64)
        assert table[equal][:, 0].tolist() == [2, 4, 8, 16]
    answers, updates = table["answers"], table["updates"]
    assert (answers[:, 2] == 160).all()
    assert (updates[:, 1] == 20).all()
    assert (answers[:, 7].diff() < 0).all()
    assert (updates[:, 7].diff() > 0).all()
    text = source_of(notebook, "experiment-reflection")
    said = [float(x) for x in re.findall(r"0\.\d{3}", text)]
    close(answers[:, 7], said[:4], atol=0.02)
    close(updates[:, 7], said[4:], atol=0.02)
    close(answers[[0, 2], 3], [0.84, 0.26], atol=0.02)


def test_the_experiment_runs_without_an_answer(notebook, capsys):
    def grpo_loss(*args, **knobs):
        raise NotImplementedError

    source = source_of(notebook, "experiment-run").split('print("\\n G')[0]
    exec(source, {"torch": torch, "grpo_loss": grpo_loss})
    assert "the library's" in capsys.readouterr().out


def test_the_planted_bugs_show_hide_and_are_two(notebook, capsys):
    step, probe = source_of(notebook, "bug-step"), source_of(notebook, "bug-probe")
    group = ("every = rewards.reshape(-1)",
             "every = (rewards - rewards.mean(dim=1, keepdim=True)).reshape(-1)")  # fmt: skip
    no_mean = ("every[part] - every[part].mean()", "every[part]")
    count = ("mask[part].sum()", "mask.sum()")
    once = ("(loss / micro_batches).backward()", "loss.backward()")

    def run(*fixes, parts, lengths=None):
        source = step
        for old, new in fixes:
            assert old in source
            source = source.replace(old, new)
        assert "micro_batches = 4" in probe
        test = probe.replace("micro_batches = 4", f"micro_batches = {parts}")
        if lengths:
            test = re.sub(r"torch.tensor\(\[1, 3.*?\]\)", f"torch.tensor({lengths})", test)
        space = {"torch": torch}
        exec(source + "\n" + test, space)
        assert "-0.0000" not in capsys.readouterr().out
        found = space["gradient"] * space["mask"].sum()
        assert (found[~space["mask"]] == 0).all()
        right = space["rewards"].mean(1, keepdim=True) - space["rewards"]
        return found[:, 0].reshape(right.shape), right

    for parts in (1, 2, 4):
        found, right = run(group, no_mean, count, once, parts=parts)
        torch.testing.assert_close(found, right)
        found, right = run(parts=parts)
        assert (found - right).abs().max() > 0.2
    close(run(parts=1)[0].sum(1), [6.0, -6.0])
    found, right = run(parts=2)
    torch.testing.assert_close(found, right * torch.tensor([[0.75], [1.5]]))
    # what hides each: a group per micro-batch; one micro-batch, or equal lengths
    found, right = run(count, once, parts=2)
    torch.testing.assert_close(found, right)
    found, right = run(group, no_mean, parts=1)
    torch.testing.assert_close(found, right)
    found, right = run(group, no_mean, parts=4, lengths=[2] * 8)
    torch.testing.assert_close(found, right)
    for fixes in ((count, once), (group, no_mean)):  # each fix alone is not enough
        assert any((f - r).abs().max() > 0.2 for f, r in (run(*fixes, parts=p) for p in (1, 4)))
