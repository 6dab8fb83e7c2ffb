"""Homework 4: right answers of every style pass, real wrong ones are named, the notebook is fit."""

import contextlib
import io
import json
import re
import textwrap
from pathlib import Path

import pytest
import torch

from autograder.judge import judge
from autograder.questions import QUESTIONS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "solutions/hw4_silent_bugs/hw4_silent_bugs.ipynb"
HW4 = [q for q in QUESTIONS.values() if q.homework == "hw4"]


# --- right answers, written in other ways ---------------------------------------------------


def rm_loop(tokens, *, eos_id):
    mask = torch.zeros(tokens.shape)
    for b, row in enumerate(tokens.tolist()):
        for t, token in enumerate(row):
            mask[b, t] = 1
            if token == eos_id:
                break
    return mask


def rm_argmax(tokens, *, eos_id):
    is_end = tokens == eos_id
    first = torch.where(is_end.any(1), is_end.int().argmax(1), tokens.shape[1])
    return torch.arange(tokens.shape[1]) <= first[:, None]


def rm_shifted(tokens, *, eos_id):
    alive = (tokens != eos_id).int().cumprod(1)
    return torch.cat([torch.ones_like(alive[:, :1]), alive[:, :-1]], 1)


def rm_cummax(tokens, *, eos_id):
    ended = torch.cummax((tokens == eos_id).int(), 1).values
    return 1 - torch.nn.functional.pad(ended[:, :-1], (1, 0))


def rm_length(tokens, *, eos_id):
    steps = torch.arange(tokens.shape[1]).expand(tokens.shape)
    length = torch.where(tokens == eos_id, steps, tokens.shape[1]).amin(1) + 1
    return (steps < length[:, None]).double()


def wh_sums(advantages, mask, *, eps=1e-8):
    m = mask.to(advantages.dtype)
    clean = torch.where(m > 0, advantages, 0.0)
    mean = clean.sum() / m.sum()
    variance = ((clean - mean) ** 2 * m).sum() / m.sum()
    return (clean - mean) * m / (variance.sqrt() + eps)


def wh_ddof_1(advantages, mask, *, eps=1e-8):
    x = advantages[mask.bool()]
    spread = x.std() if len(x) > 1 else torch.tensor(0.0)
    return torch.where(mask.bool(), (advantages - x.mean()) / (spread + eps), 0.0)


def wh_scatter(advantages, mask, *, eps=1e-8):
    out = torch.zeros_like(advantages)
    x = advantages[mask.bool()]
    out[mask.bool()] = (x - x.mean()) / (x.var(correction=0) ** 0.5 + eps)
    return out


def wh_python(advantages, mask, *, eps=1e-8):
    rows = advantages.tolist()
    keep = mask.bool().tolist()
    x = [v for row, k in zip(rows, keep, strict=True) for v, use in zip(row, k, strict=True) if use]
    mean = sum(x) / len(x)
    spread = (sum((v - mean) ** 2 for v in x) / len(x)) ** 0.5
    out = torch.zeros_like(advantages)
    for b, row in enumerate(rows):
        for t, v in enumerate(row):
            if keep[b][t]:
                out[b, t] = (v - mean) / (spread + eps)
    return out


def wh_nan(advantages, mask, *, eps=1e-8):
    x = advantages.masked_fill(~mask.bool(), torch.nan)
    mean = x.nanmean()
    spread = ((x - mean) ** 2).nanmean().sqrt()
    return ((x - mean) / (spread + eps)).nan_to_num(0.0)


def ti_no_grad(logp_learner, logp_sampler, *, cap):
    with torch.no_grad():
        return torch.exp(logp_learner - logp_sampler).clamp(max=cap)


def ti_minimum(logp_learner, logp_sampler, *, cap):
    weight = (logp_learner - logp_sampler).exp()
    return torch.minimum(weight, torch.full_like(weight, cap)).detach()


def ti_log_cap(logp_learner, logp_sampler, *, cap):
    gap = logp_learner.data - logp_sampler.data
    return gap.clamp(max=torch.tensor(cap).double().log().item()).exp()


def ti_where(logp_learner, logp_sampler, *, cap):
    weight = (logp_learner - logp_sampler).detach().exp()
    return torch.where(weight > cap, cap, weight)


def ti_inverse(logp_learner, logp_sampler, *, cap):
    return (1 / (logp_sampler - logp_learner).exp()).clamp(0, cap).detach()


def sn_loop(loss, mask, *, micro_batch):
    m = mask.bool()
    parts = []
    for start in range(0, len(loss), micro_batch):
        total = loss.new_zeros(())
        for b in range(start, min(start + micro_batch, len(loss))):
            for t in range(loss.shape[1]):
                if m[b, t]:
                    total = total + loss[b, t]
        parts.append(total / m.sum())
    return torch.stack(parts)


def sn_index_add(loss, mask, *, micro_batch):
    rows = loss.masked_fill(mask == 0, 0.0).sum(1) / (mask != 0).sum()
    which = torch.arange(len(loss)) // micro_batch
    return loss.new_zeros(int(which[-1]) + 1).index_add(0, which, rows)


def sn_padded(loss, mask, *, micro_batch):
    rows = torch.where(mask.bool(), loss, 0.0).sum(1)
    rows = torch.nn.functional.pad(rows, (0, -len(rows) % micro_batch))
    return rows.view(-1, micro_batch).sum(1) / mask.sum()


def sn_matrix(loss, mask, *, micro_batch):
    count = -(-len(loss) // micro_batch)
    member = torch.arange(len(loss)) // micro_batch == torch.arange(count)[:, None]
    clean = torch.where(mask.bool(), loss, torch.zeros_like(loss))
    return torch.einsum("kb,bt->k", member.to(loss.dtype), clean) / mask.double().sum()


def sn_float32(loss, mask, *, micro_batch):
    return sn_padded(loss.float(), mask, micro_batch=micro_batch)


def sn_weighted_means(loss, mask, *, micro_batch):
    parts = zip(loss.split(micro_batch), mask.bool().split(micro_batch), strict=True)
    shares = [x[m].sum() / m.sum().clamp(min=1) * m.sum() for x, m in parts]
    return torch.stack(shares) / mask.bool().sum()


def b1_loop(mask):
    out = torch.zeros(mask.shape)
    for b in range(len(mask)):
        count = 0
        for t in range(mask.shape[1]):
            if mask[b, t]:
                out[b, t] = count
                count += 1
    return out


def b1_fill(mask):
    return (mask.long().cumsum(-1) - 1).masked_fill(mask == 0, 0)


def b1_offset(mask):
    start = mask.int().argmax(1, keepdim=True)
    return torch.where(mask.bool(), torch.arange(mask.shape[1]) - start, 0)


def b1_before(mask):
    m = mask.double()
    return (m.cumsum(1) - m) * m


def b1_matrix(mask):
    earlier = torch.ones(mask.shape[1], mask.shape[1]).triu(1)
    return mask.float() * (mask.float() @ earlier)


def b2_loop(tokens, answers, *, eos_id):
    out = []
    for said, wanted in zip(tokens.tolist(), answers.tolist(), strict=True):
        stop = wanted.index(eos_id) + 1
        out.append(float(said[:stop] == wanted[:stop]))
    return torch.tensor(out)


def b2_own_end(tokens, answers, *, eos_id):
    """Cut both behind their own first end."""
    out = []
    for pair in zip(tokens.tolist(), answers.tolist(), strict=True):
        a, b = ([*row[: row.index(eos_id)], eos_id] if eos_id in row else row for row in pair)
        out.append(a == b)
    return torch.tensor(out).float()


def b2_errors(tokens, answers, *, eos_id):
    counts = rm_shifted(answers, eos_id=eos_id)
    return (((tokens != answers) * counts).sum(1) == 0).double()


def b2_overwritten(tokens, answers, *, eos_id):
    kept = rm_argmax(tokens, eos_id=eos_id)
    return (torch.where(kept, tokens, eos_id) == answers).all(1).float()


def b2_product(tokens, answers, *, eos_id):
    hits = (tokens == answers).double().cumprod(1)
    return hits.gather(1, (answers == eos_id).int().argmax(1, keepdim=True)).squeeze(1)


def b3_loop(rewards, prompts):
    out = rewards.clone()
    for name in prompts.unique():
        out[prompts == name] -= rewards[prompts == name].mean()
    return out


def b3_sorted(rewards, prompts):
    order = prompts.argsort()
    groups = rewards[order].view(len(prompts.unique()), -1)
    values = (groups - groups.mean(1, keepdim=True)).flatten()
    return values[order.argsort()]


def b3_index_add(rewards, prompts):
    _, index, count = prompts.unique(return_inverse=True, return_counts=True)
    total = rewards.new_zeros(len(count)).index_add(0, index, rewards)
    return rewards - (total / count)[index]


def b3_dict(rewards, prompts):
    seen = {}
    for r, p in zip(rewards.tolist(), prompts.tolist(), strict=True):
        seen.setdefault(p, []).append(r)
    return rewards - torch.tensor([sum(seen[p]) / len(seen[p]) for p in prompts.tolist()])


def b3_float32(rewards, prompts):
    return b3_loop(rewards.float(), prompts)


def b4_softmax(logits, tokens, *, prompt_length):
    logp = logits.log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None]).squeeze(-1)
    return logp[:, prompt_length - 1 :]


def b4_cross_entropy(logits, tokens, *, prompt_length):
    z = logits[:, prompt_length - 1 : -1].transpose(1, 2)
    return -torch.nn.functional.cross_entropy(z, tokens[:, prompt_length:], reduction="none")


def b4_one_hot(logits, tokens, *, prompt_length):
    chosen = torch.nn.functional.one_hot(tokens[:, prompt_length:], logits.shape[-1])
    logp = torch.log_softmax(logits[:, prompt_length - 1 : -1], 2)
    return torch.einsum("btv,btv->bt", logp, chosen.to(logp.dtype))


def b4_loop(logits, tokens, *, prompt_length):
    columns = range(prompt_length, tokens.shape[1])
    rows = torch.arange(len(tokens))
    return torch.stack([logits[:, t - 1].log_softmax(1)[rows, tokens[:, t]] for t in columns], 1)


def b4_roll(logits, tokens, *, prompt_length):
    z = logits.roll(1, 1)[:, prompt_length:]
    return torch.distributions.Categorical(logits=z).log_prob(tokens[:, prompt_length:])


def b5_repaired(gradients, *, every):
    total, out = torch.zeros_like(gradients[0]), torch.zeros_like(gradients)
    for k, gradient in enumerate(gradients):
        if gradient.isfinite().all():
            total = total + gradient
        if (k + 1) % every == 0 or k + 1 == len(gradients):
            out[k], total = total, torch.zeros_like(total)
    return out


def b5_index_add(gradients, *, every):
    clean = gradients.masked_fill(~gradients.isfinite().all(1, keepdim=True), 0.0)
    k = torch.arange(len(gradients))
    target = (k // every * every + every - 1).clamp(max=len(gradients) - 1)
    return torch.zeros_like(clean).index_add(0, target, clean)


def b5_split(gradients, *, every):
    out = []
    for window in gradients.split(every):
        good = window[window.isfinite().all(1)]
        out += [torch.zeros_like(window[:-1]), good.sum(0, keepdim=True)]
    return torch.cat(out)


def b5_cumsum(gradients, *, every):
    clean = torch.stack([g if g.isfinite().all() else torch.zeros_like(g) for g in gradients])
    ends = sorted({*range(every - 1, len(clean), every), len(clean) - 1})
    out = torch.zeros_like(clean)
    out[ends] = clean.cumsum(0)[ends].diff(dim=0, prepend=torch.zeros_like(clean[:1]))
    return out


def b5_float32(gradients, *, every):
    return b5_split(gradients.float(), every=every)


EQUIVALENT = {
    "response_mask": [rm_loop, rm_argmax, rm_shifted, rm_cummax, rm_length],
    "whiten": [wh_sums, wh_ddof_1, wh_scatter, wh_python, wh_nan],
    "truncated_importance_weight": [ti_no_grad, ti_minimum, ti_log_cap, ti_where, ti_inverse],
    "step_normaliser": [
        sn_loop, sn_index_add, sn_padded, sn_matrix, sn_float32, sn_weighted_means,
    ],
    "bug_1": [b1_loop, b1_fill, b1_offset, b1_before, b1_matrix],
    "bug_2": [b2_loop, b2_own_end, b2_errors, b2_overwritten, b2_product],
    "bug_3": [b3_loop, b3_sorted, b3_index_add, b3_dict, b3_float32],
    "bug_4": [b4_softmax, b4_cross_entropy, b4_one_hot, b4_loop, b4_roll],
    "bug_5": [b5_repaired, b5_index_add, b5_split, b5_cumsum, b5_float32],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "answer"), [(n, f) for n, answers in EQUIVALENT.items() for f in answers]
)
def test_an_equivalent_right_answer_gets_full_points(name, answer):
    for cases, seed in (("visible", 0), ("final", 0), ("final", 3)):
        verdict = judge(f"hw4/{name}", answer, cases=cases, seed=seed)
        assert verdict.passed, (verdict.cause, verdict.details["case"])


# --- wrong answers, as people write them ----------------------------------------------------


def sn_mean_of_means(loss, mask, *, micro_batch):
    parts = list(zip(loss.split(micro_batch), mask.bool().split(micro_batch), strict=True))
    return torch.stack([x[m].sum() / max(int(m.sum()), 1) / len(parts) for x, m in parts])


def b3_order_once_more(rewards, prompts):
    order = prompts.argsort(stable=True)
    groups = rewards[order].view(len(prompts.unique()), -1)
    return (groups - groups.mean(1, keepdim=True)).flatten()


def b5_whole_window(gradients, *, every):
    out = torch.zeros_like(gradients)
    for start in range(0, len(gradients), every):
        window = gradients[start : start + every]
        if window.isfinite().all():
            out[start + len(window) - 1] = window.sum(0)
    return out


def wh_zeros(spread, advantages, mask, eps):
    """The mean is masked; the spread is taken from the array with zeros on the padding."""
    m = mask.to(advantages.dtype)
    x = advantages * m
    mean = x.sum() / m.sum()
    return (x - mean) / (spread(x, mean, m) + eps) * m


def wh_each_row(advantages, mask, *, eps=1e-8):
    m = mask.to(advantages.dtype)
    mean = (advantages * m).sum(1, keepdim=True) / m.sum(1, keepdim=True)
    spread = (((advantages - mean) ** 2 * m).sum(1, keepdim=True) / m.sum(1, keepdim=True)).sqrt()
    return (advantages - mean) / (spread + eps) * m  # NaN where a response is empty


def wh_prefix(advantages, mask, *, eps=1e-8):
    return wh_scatter(advantages, torch.arange(mask.shape[1]) < mask.sum(1, keepdim=True), eps=eps)


def wh_squares(advantages, mask, *, eps=1e-8):
    x = advantages[mask.bool()]
    spread = ((x**2).mean() - x.mean() ** 2).sqrt()
    return torch.where(mask.bool(), (advantages - x.mean()) / (spread + eps), 0.0)


def wh_clamped(advantages, mask, *, eps=1e-8):
    return wh_scatter(advantages, mask, eps=eps).clamp(-3, 3)


def wh_floor(advantages, mask, *, eps=1e-8):
    x = advantages[mask.bool()]
    spread = x.std(correction=0).clamp(min=0.1)
    return torch.where(mask.bool(), (advantages - x.mean()) / (spread + eps), 0.0)


def sn_prefix(loss, mask, *, micro_batch):
    lengths = mask.long().sum(1, keepdim=True)
    return sn_split(loss, torch.arange(mask.shape[1]) < lengths, micro_batch=micro_batch)


def sn_split(loss, mask, *, micro_batch):
    rows = torch.where(mask.bool(), loss, 0.0).sum(1) / mask.sum()
    return torch.stack([part.sum() for part in rows.split(micro_batch)])


def b3_back(there, rewards, prompts):
    order = prompts.argsort()
    groups = rewards[order].view(len(prompts.unique()), -1)
    return there((groups - groups.mean(1, keepdim=True)).flatten(), order)


def b3_float64(rewards, prompts):
    same = (prompts[:, None] == prompts).double()
    return rewards - same @ rewards / same.sum(1)


def b3_table(rewards, prompts):
    total = rewards.new_zeros(128).index_add(0, prompts, rewards)
    return rewards - (total / prompts.bincount(minlength=128))[prompts]


def b4_picked(logp, tokens, prompt_length):
    """From the log-probabilities of all columns."""
    chosen = tokens[:, prompt_length:, None]
    return logp[:, prompt_length - 1 : -1].gather(-1, chosen).squeeze(-1)


def b4_two_at_least(logits, tokens, *, prompt_length):
    return b4_cross_entropy(logits, tokens, prompt_length=max(prompt_length, 2))


def b2_first_six(tokens, answers, *, eos_id):
    return b2_errors(tokens[:, :6], answers[:, :6], eos_id=eos_id)


def b5_scaled(gradients, *, every):
    out = []
    for window in gradients.split(every):
        good = window[window.isfinite().all(1)]
        scale = len(window) / max(len(good), 1)
        out += [torch.zeros_like(window[:-1]), scale * good.sum(0, keepdim=True)]
    return torch.cat(out)


def b5_multiplied(gradients, *, every):
    good = gradients.isfinite().all(1, keepdim=True)
    out = []
    for window in (gradients * good).split(every):
        out += [torch.zeros_like(window[:-1]), window.sum(0, keepdim=True)]
    return torch.cat(out)


def b5_small_only(gradients, *, every):
    small = gradients.abs() < 3
    return b5_repaired(torch.where(small, gradients, torch.nan), every=every)


WRONG = {
    "response_mask": [
        (lambda tokens, *, eos_id: tokens.ne(eos_id), "ends_are_padding"),
        (lambda tokens, *, eos_id: (tokens == eos_id).cumsum(1) == 0, "end_dropped"),
        (lambda tokens, *, eos_id: torch.ones_like(tokens), "end_ignored"),
        (lambda tokens, *, eos_id: (tokens == eos_id).cumsum(1) <= 1, "until_second_end"),
        (lambda tokens, *, eos_id: (tokens == eos_id).cumsum(1) > 0, "from_end_on"),
    ],
    "whiten": [
        (lambda a, mask, *, eps=1e-8: (a - a.mean()) / (a.std() + eps) * mask, "padding_counted"),
        (
            lambda a, mask, *, eps=1e-8: (
                torch.nan_to_num(
                    (a - a[mask.bool()].mean()) / a[mask.bool()].var(correction=0).add(eps).sqrt()
                )
                * mask
            ),
            "eps_in_root",
        ),
        (
            lambda a, mask, *, eps=1e-8: wh_zeros(
                lambda x, mean, m: (((x - mean) ** 2).sum() / m.sum()).sqrt(), a, mask, eps
            ),
            "zeros_squared",
        ),
        (
            lambda a, mask, *, eps=1e-8: wh_zeros(
                lambda x, mean, m: ((x - mean) ** 2).mean().sqrt(), a, mask, eps
            ),
            "zeros_in_squares",
        ),
        (
            lambda a, mask, *, eps=1e-8: wh_zeros(lambda x, mean, m: x.std(), a, mask, eps),
            "zeros_in_std",
        ),
        (wh_each_row, "per_response"),
        (wh_prefix, "mask_as_length"),
    ],
    "truncated_importance_weight": [
        (lambda a, b, *, cap: torch.exp(b - a).detach().clip(max=cap), "inverted"),
        (lambda a, b, *, cap: torch.exp(a - b).detach().clip(cap), "floored"),
        (lambda a, b, *, cap: torch.exp(a - b).clip(max=cap), "nothing_detached"),
    ],
    "step_normaliser": [
        (sn_mean_of_means, "own_tokens_averaged"),
        (sn_prefix, "mask_as_length"),
        (
            lambda x, mask, *, micro_batch: torch.stack(
                [part.mean() for part in torch.where(mask.bool(), x, 0.0).split(micro_batch)]
            ),
            "part_mean",
        ),
    ],
    "bug_1": [
        (lambda mask: mask.long().cumsum(1) * mask, "from_one"),
        (lambda mask: mask.long().cumsum(1) - 1, "padding_keeps_count"),
        (lambda mask: (mask.long().cumsum(1) - 1).clamp(min=0), "padding_clamped"),
        (
            lambda mask: (torch.arange(mask.shape[1]) - (mask == 0).sum(1, keepdim=True)) * mask,
            "all_padding_subtracted",
        ),
    ],
    "bug_2": [
        (lambda t, a, *, eos_id: (t == a).all(1).double(), "padding_compared"),
        (lambda t, a, *, eos_id: (t[:, 0] == a[:, 0]).double(), "first_token"),
    ],
    "bug_3": [
        (lambda rewards, prompts: rewards - rewards.mean(), "whole_batch"),
        (b3_order_once_more, "left_sorted"),
        (lambda rewards, prompts: b3_back(lambda x, o: x[o], rewards, prompts), "order_again"),
    ],
    "bug_4": [
        (
            lambda z, t, *, prompt_length: (
                z.softmax(-1)[:, prompt_length - 1 : -1]
                .gather(-1, t[:, prompt_length:, None])
                .squeeze(-1)
            ),
            "probabilities",
        ),
        (
            lambda z, t, *, prompt_length: b4_picked(z.softmax(-1).log(), t, prompt_length),
            "log_of_softmax",
        ),
        (
            lambda z, t, *, prompt_length: b4_picked(
                (z.softmax(-1) + 1e-10).log(), t, prompt_length
            ),
            "kept_from_zero",
        ),
        (
            lambda z, t, *, prompt_length: b4_picked(
                z - z.exp().sum(-1, keepdim=True).log(), t, prompt_length
            ),
            "unstable",
        ),
    ],
    "bug_5": [
        (b5_whole_window, "window_dropped"),
        (b5_scaled, "rescaled_by_window"),
        (b5_multiplied, "multiplied"),
    ],
}


@pytest.mark.parametrize(
    ("name", "answer", "mistake"), [(n, f, m) for n, pairs in WRONG.items() for f, m in pairs]
)
def test_a_wrong_answer_in_other_words_is_named(name, answer, mistake):
    verdict = judge(f"hw4/{name}", answer)
    assert verdict.details["named"] == [mistake], verdict.cause
    assert verdict.points < verdict.max_points


BLIND = [
    ("whiten", wh_squares),
    ("whiten", wh_clamped),
    ("whiten", wh_floor),
    ("truncated_importance_weight", lambda a, b, *, cap: ti_no_grad(a, b, cap=min(cap, 5))),
    ("truncated_importance_weight", lambda a, b, *, cap: ti_no_grad(a, b, cap=cap).clamp(min=0.1)),
    ("response_mask", lambda tokens, *, eos_id: rm_argmax(tokens, eos_id=eos_id or -1)),
    ("bug_2", b2_first_six),
    ("bug_3", b3_float64),
    ("bug_3", b3_table),
    ("bug_4", b4_two_at_least),
    ("bug_5", b5_small_only),
]


@pytest.mark.parametrize(("name", "answer"), BLIND)
def test_an_answer_that_is_right_only_for_usual_sizes_loses_points(name, answer):
    """Outliers, holes, float32, end token 0, a prompt of one token, ids in the thousands."""
    for cases, seed in (("visible", 0), ("final", 0), ("final", 3)):
        verdict = judge(f"hw4/{name}", answer, cases=cases, seed=seed)
        assert verdict.points < verdict.max_points
        assert verdict.details["named"] == []


UNKNOWN = [
    ("response_mask", lambda tokens, *, eos_id: (tokens.cumsum(1) % 2 == 0).float()),
    ("whiten", lambda a, mask, *, eps=1e-8: torch.tanh(a) * mask),
    ("truncated_importance_weight", lambda a, b, *, cap: cap * torch.sigmoid(a - b).detach()),
    ("step_normaliser", lambda x, m, *, micro_batch: torch.stack([
        torch.where(m.bool(), x, 0.0)[i :: 2].sum() / m.sum() ** 0.5
        for i in range(-(-len(x) // micro_batch))
    ])),
    ("bug_1", lambda mask: mask.long().cumsum(1) ** 2),
    ("bug_2", lambda t, a, *, eos_id: (t.sum(1) % 2 == a.sum(1) % 2).float()),
    ("bug_3", lambda rewards, prompts: rewards - rewards.median() * prompts.cos()),
    ("bug_4", lambda z, t, *, prompt_length: z[:, prompt_length - 1 : -1].amax(-1)
        - z[:, prompt_length:].logsumexp(-1)),
    ("bug_5", lambda g, *, every: g.nan_to_num(0.0, 0.0, 0.0).cumsum(0) / every**0.5),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answer"), UNKNOWN)
def test_a_bug_outside_the_catalogue_is_never_given_a_name(name, answer):
    for seed in (0, 1):
        verdict = judge(f"hw4/{name}", answer, seed=seed)
        assert verdict.points < verdict.max_points
        assert verdict.details["named"] == []


@pytest.mark.parametrize("question", HW4, ids=lambda q: q.id)
def test_zero_twice_half_and_the_negated_answer_never_pass(question):
    for factor in (0.0, 2.0, 0.5, -1.0):

        def answer(*args, factor=factor, **knobs):
            return question.reference(*args, **knobs) * factor

        assert not judge(question.id, answer).passed


# --- the notebook ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cells():
    notebook = json.loads(SOURCE.read_text(encoding="utf-8"))
    return {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"]}


@pytest.fixture(scope="module")
def answers(cells):
    namespace = {"torch": torch}
    for name, source in cells.items():
        if name.endswith("-answer"):
            exec(source, namespace)
    return namespace


def broken(cells, name):
    """The function that a locked cell defines, and what the cell prints."""
    namespace, printed = {"torch": torch}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(cells[name], namespace)
    (function,) = [v for k, v in namespace.items() if k.endswith("_broken")]
    return function, printed.getvalue()


@pytest.mark.parametrize("k", range(1, 6))
def test_the_broken_function_returned_unchanged_is_named_as_the_planted_bug(cells, k):
    function, _ = broken(cells, f"bug-{k}-broken")
    for cases, seed in (("visible", 0), ("final", 0), ("final", 7)):
        verdict = judge(f"hw4/bug_{k}", function, cases=cases, seed=seed)
        assert verdict.points == 0
        assert verdict.details["named"] == ["planted"]
        assert verdict.cause.startswith("The planted bug is still there")


def close(got, want, atol=5e-4):
    torch.testing.assert_close(
        torch.as_tensor(got).double(), torch.tensor(want).double(), atol=atol, rtol=0
    )


def said(text, *numbers):
    for number in numbers:
        assert number in text, number


def test_the_numbers_of_question_1(cells, answers):
    rows = torch.tensor([[5, 7, 9, 9], [8, 9, 6, 9]])
    assert answers["response_mask"](rows, eos_id=9).long().tolist() == [[1, 1, 1, 0], [1, 1, 0, 0]]
    a, mask = torch.tensor([[1.0, 3, 0], [5, 0, 0]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    right = answers["whiten"](a, mask, eps=0.0)
    close(right[mask.bool()], [-1.225, 0.0, 1.225])
    wrong = (a - a.mean()) / a.std(correction=0)
    close(wrong[mask.bool()], [-0.264, 0.792, 1.849])
    close(torch.stack([a[mask.bool()].std(correction=0), a.std(correction=0)]), [1.633, 1.893])
    said(cells["q1-statement"], "-1.225", "1.633", "1.893", "-0.264", "0.792", "1.849")
    said(cells["q1-reflection"], "0.792")


def test_the_numbers_of_questions_2_and_3(cells, answers):
    learner, sampler = torch.tensor([[-1.0, -1, -3]]), torch.tensor([[-2.0, -1, -1]])
    weight = answers["truncated_importance_weight"]
    close(weight(learner, sampler, cap=2.0), [[2, 1, 0.135]])
    close(weight(sampler, learner, cap=2.0), [[0.368, 1, 2]])
    close((learner - sampler).exp(), [[2.718, 1, 0.135]])
    said(cells["q2-statement"], "2.718", "0.135", "0.368", "7.389")
    loss = torch.tensor([[1.0, 2, 3], [6, 0, 0], [0, 2, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
    close(answers["step_normaliser"](loss, mask, micro_batch=2), [2, 0.333])
    own = [loss[part][mask[part].bool()].mean() for part in ([0, 1], [2])]
    close(torch.stack([*own, sum(own) / 2]), [3, 1, 2])
    close(loss[mask.bool()].mean(), 2.333)
    said(cells["q3-statement"], "2.333", "0.333")


def test_the_numbers_of_questions_4_to_6(cells, answers):
    masks = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
    assert answers["bug_1"](masks).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 0]]
    responses = torch.tensor([[3, 4, 9, 7], [3, 4, 7, 9], [3, 9, 9, 9]])
    wanted = torch.tensor([[3, 4, 9, 9]] * 3)
    assert answers["bug_2"](responses, wanted, eos_id=9).tolist() == [1, 0, 0]
    assert "[1., 1., 0.]" in broken(cells, "bug-2-broken")[1]
    rewards, prompts = torch.tensor([1.0, 5, 0, 4]), torch.tensor([7, 3, 7, 3])
    close(answers["bug_3"](rewards, prompts), [0.5, 0.5, -0.5, -0.5])
    assert "[-2.,  2., -2.,  2.]" in broken(cells, "bug-3-broken")[1]
    logits = torch.tensor([[[2.0, 0], [0, 0], [0, 3]]])
    close(answers["bug_4"](logits, torch.tensor([[1, 0, 1]]), prompt_length=1), [[-0.127, -0.693]])
    assert "[-0.6931, -0.0486]" in broken(cells, "bug-4-broken")[1]
    said(cells["q5-statement"], "-0.127", "-0.693", "-0.049")
    gradients = torch.tensor([[1.0], [torch.nan], [2], [3]])
    assert answers["bug_5"](gradients, every=2).flatten().tolist() == [0, 1, 0, 5]
    assert "[0., 0., 0., 6.]" in broken(cells, "bug-5-broken")[1]


@pytest.mark.slow
def test_the_experiment_shows_what_the_report_says(cells):
    """With the start of the user's cache, built there if it is missing (no network)."""
    namespace, printed = {"torch": torch}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        for name in ("experiment-prediction", "experiment-loss", "experiment-run"):
            exec(cells[name], namespace)
    text = printed.getvalue()
    kinds = r"(none|noise|mispl)"
    rows = {line.split()[0]: line for line in text.splitlines() if re.match(kinds, line)}
    shown = {k: [float(x) for x in re.findall(r"\d\.\d{3}", row)] for k, row in rows.items()}
    report = cells["experiment-report"]
    healthy, noise, misplaced = (shown[k] for k in ("none", "noise", "misplaced"))
    said(report, "0.465", "0.760", "0.180", "0.155", "`own count` and `one short` were stopped")
    close(noise[:2], [0.465, 0.180], atol=0.15)
    assert misplaced[1] < healthy[1] - 0.3  # most of the fall needs no direction
    assert noise[1] < healthy[1] - 0.3
    assert misplaced[3] < noise[3] < healthy[3]  # reward
    close(healthy[:2], [0.465, 0.760], atol=0.06)  # another processor rounds otherwise
    close(misplaced[:2], [0.465, 0.155], atol=0.15)
    assert misplaced[3] < healthy[2] < healthy[3]  # reward
    assert healthy[5] < healthy[4] < misplaced[5]  # entropy
    assert text.count("stopped at the first update") == 2
    assert "micro-batch split" in text
    assert "end token is trained" in text
    tiny = [float(x) for row in rows.values() for x in re.findall(r"\de-\d\d", row)]
    assert len(tiny) == 9
    assert max(tiny) < 1e-3
    assert "the library's loss" in text


def test_the_control_shuffles_within_groups_alike_in_every_split_and_without_direction(cells):
    namespace = {"torch": torch}
    exec(cells["experiment-loss"], namespace)
    torch.manual_seed(0)
    advantages = torch.randn(400, 8)
    advantages = (advantages - advantages.mean(1, keepdim=True)).reshape(-1, 1)
    logp, mask = -torch.rand(3200, 4), torch.rand(3200, 4) < 0.8
    whole = namespace["shuffled"](advantages, logp, mask)
    parts = zip(*(x.split(8) for x in (advantages, logp, mask)), strict=True)
    assert torch.equal(whole, torch.cat([namespace["shuffled"](*part) for part in parts]))
    wider = [torch.nn.functional.pad(x, (0, 2)) for x in (logp, mask)]  # padded further
    assert torch.equal(whole, namespace["shuffled"](advantages, *wider))
    ours, own = whole.view(-1, 8), advantages.view(-1, 8)
    assert torch.equal(ours.sort(1).values, own.sort(1).values)
    # the mean product with the right advantage is 0, that of the bug minus a seventh
    size = (own**2).mean()
    assert abs((ours * own).mean() / size) < 0.07
    assert abs((own.roll(1, 1) * own).mean() / size + 1 / 7) < 0.07


def test_the_minutes_add_up(cells):
    rows = [line.split("|")[1:-1] for line in cells["title"].splitlines() if line.startswith("| ")]
    minutes = {row[0].strip(): int(row[3]) for row in rows[1:]}
    assert minutes.pop("together") == sum(minutes.values()) == 100
    assert "about 100 minutes" in cells["title"]


def test_a_pasted_loss_is_used_and_a_wrong_one_is_not(cells):
    """Which loss a run takes is decided by the check of hw3/grpo_loss."""
    decide = cells["experiment-run"]
    decide = decide[decide.index("verdict = judge") : decide.index('print("the start: ')]
    own = "    return library_loss(logp, logp_old, advantages, mask, **knobs)"
    assert own in cells["experiment-loss"]
    for body, expected in [
        (own, "the library's loss"),
        ("    from policy_gradients import grpo_loss\n"
         "    return grpo_loss(logp, logp_old, advantages, mask, **knobs)", "your loss"),
        ("    return logp.sum()", "does not pass the check of hw3/grpo_loss here:"),
        ("    return mean_per_sequence(logp)", "NameError"),  # the helper was not pasted
    ]:  # fmt: skip
        first = cells["experiment-loss"].replace(own, body, 1)
        namespace, printed = {"torch": torch, "judge": judge, "textwrap": textwrap}, io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(first, namespace)
            exec(decide, namespace)
        assert expected in printed.getvalue()
