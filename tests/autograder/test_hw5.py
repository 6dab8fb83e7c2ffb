"""Homework 5: right answers of every style pass, real wrong ones are named, its numbers hold."""

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange, reduce

from autograder.judge import judge
from autograder.questions import QUESTIONS
from autograder.questions.hw5.hack_proof_reward import hack_proof_reward
from toy_models.sorting import all_sequences, inclusion_ordering_reward

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "solutions/hw5_preferences/hw5_preferences.ipynb"
HW5 = [q for q in QUESTIONS.values() if q.homework == "hw5"]


# --- right answers, written in other ways ---------------------------------------------------


def bt_softplus(chosen, rejected, *, margin=0.0):
    return F.softplus(rejected - chosen + margin)


def bt_logaddexp(chosen, rejected, *, margin=0.0):
    return torch.logaddexp(chosen, rejected + margin) - chosen


def bt_cross_entropy(chosen, rejected, *, margin=0.0):
    both = torch.stack([chosen, rejected + margin], 1)
    return F.cross_entropy(both, torch.zeros(len(chosen), dtype=torch.int64), reduction="none")


def bt_binary(chosen, rejected, *, margin=0.0):
    x = chosen - rejected - margin
    return F.binary_cross_entropy_with_logits(x, torch.ones_like(x), reduction="none")


def bt_loop(chosen, rejected, *, margin=0.0):
    losses = []
    for win, lose in zip(chosen, rejected, strict=True):
        x = win - lose - margin
        losses.append(-x + (1 + x.exp()).log() if x < 0 else (1 + (-x).exp()).log())
    return torch.stack(losses)


def bt_float32(chosen, rejected, *, margin=0.0):
    return -F.logsigmoid(chosen.float() - rejected.float() - margin)


def bt_in_place(chosen, rejected, *, margin=0.0):
    x = rejected.clone()
    x -= chosen
    x += margin
    return F.softplus(x)


def dpo_softplus(chosen, rejected, chosen_ref, rejected_ref, *, beta, label_smoothing=0.0):
    policy = chosen - rejected
    reference = (chosen_ref - rejected_ref).detach()
    h = beta * (policy - reference)
    return F.softplus(-h) + label_smoothing * h


def dpo_no_grad(chosen, rejected, chosen_ref, rejected_ref, *, beta, label_smoothing=0.0):
    with torch.no_grad():
        reference = beta * chosen_ref - beta * rejected_ref
    h = beta * chosen - beta * rejected - reference
    return (1 - label_smoothing) * F.softplus(-h) + label_smoothing * F.softplus(h)


def dpo_binary(chosen, rejected, chosen_ref, rejected_ref, *, beta, label_smoothing=0.0):
    h = beta * (chosen - chosen_ref.data - rejected + rejected_ref.data)
    label = torch.full_like(h, 1 - label_smoothing).detach()
    return F.binary_cross_entropy_with_logits(h, label, reduction="none")


def dpo_cross_entropy(chosen, rejected, chosen_ref, rejected_ref, *, beta, label_smoothing=0.0):
    rewards = torch.stack([chosen - chosen_ref.detach(), rejected - rejected_ref.detach()], 1)
    logs = (beta * rewards).log_softmax(1)
    return -(logs @ torch.tensor([1 - label_smoothing, label_smoothing], dtype=logs.dtype))


def dpo_loop(chosen, rejected, chosen_ref, rejected_ref, *, beta, label_smoothing=0.0):
    rows = []
    for i in range(chosen.shape[0]):
        h = beta * (chosen[i] - chosen_ref[i].item() - rejected[i] + rejected_ref[i].item())
        rows.append(-(1 - label_smoothing) * F.logsigmoid(h) - label_smoothing * F.logsigmoid(-h))
    return torch.stack(rows)


def dpo_einsum(chosen, rejected, chosen_ref, rejected_ref, *, beta, label_smoothing=0.0):
    all_four = torch.stack([chosen, rejected, chosen_ref.detach(), rejected_ref.detach()])
    sign = torch.tensor([1, -1, -1, 1], dtype=all_four.dtype)
    h = beta * torch.einsum("k,kb->b", sign, all_four)
    return -F.logsigmoid(h) + label_smoothing * h


def dpo_float32(chosen, rejected, chosen_ref, rejected_ref, *, beta, label_smoothing=0.0):
    four = [x.float() for x in (chosen, rejected, chosen_ref, rejected_ref)]
    return dpo_softplus(*four, beta=beta, label_smoothing=label_smoothing)


def ipo_expanded(chosen, rejected, chosen_ref, rejected_ref, *, tau):
    g = chosen - rejected - (chosen_ref - rejected_ref).detach()
    return g**2 - g / tau + 1 / (4 * tau**2)


def ipo_mse(chosen, rejected, chosen_ref, rejected_ref, *, tau):
    g = chosen - rejected - (chosen_ref - rejected_ref).detach()
    return F.mse_loss(g, torch.full_like(g, 0.5 / tau).detach(), reduction="none")


def ipo_scaled(chosen, rejected, chosen_ref, rejected_ref, *, tau):
    with torch.no_grad():
        reference = chosen_ref - rejected_ref
    return (2 * tau * (chosen - rejected - reference) - 1).square() / (4 * tau**2)


def ipo_loop(chosen, rejected, chosen_ref, rejected_ref, *, tau):
    rows = zip(chosen, rejected, chosen_ref.detach(), rejected_ref.detach(), strict=True)
    return torch.stack([(w - l_ - (wr - lr) - 1 / (2 * tau)) ** 2 for w, l_, wr, lr in rows])


def ipo_two_orders(chosen, rejected, chosen_ref, rejected_ref, *, tau):
    """The two squares of the derivation, minus their constant, halved."""
    g = chosen - rejected - (chosen_ref - rejected_ref).detach()
    return ((g - 1 / tau) ** 2 + g**2 - 0.5 / tau**2) / 2


def ipo_float32(chosen, rejected, chosen_ref, rejected_ref, *, tau):
    four = [x.float() for x in (chosen, rejected, chosen_ref, rejected_ref)]
    return ipo_mse(*four, tau=tau)


def ipo_in_place(chosen, rejected, chosen_ref, rejected_ref, *, tau):
    g = chosen - rejected
    g -= (chosen_ref - rejected_ref).detach()
    g -= 1 / (2 * tau)
    return g * g


def kto_flipped(
    logp, logp_ref, desirable, kl_logp, kl_logp_ref, *, beta, lambda_d=1.0, lambda_u=1.0
):
    with torch.no_grad():
        point = max(float((kl_logp - kl_logp_ref).mean()), 0.0)
        side = torch.where(desirable.bool(), -1.0, 1.0).to(logp.dtype)
        weight = torch.where(desirable.bool(), lambda_d, lambda_u).to(logp.dtype)
    return weight * torch.sigmoid(side * beta * (logp - logp_ref.detach() - point))


def kto_relu(logp, logp_ref, desirable, kl_logp, kl_logp_ref, *, beta, lambda_d=1.0, lambda_u=1.0):
    z0 = torch.relu(kl_logp.detach().mean() - kl_logp_ref.detach().mean())
    good = desirable.to(logp.dtype)
    x = beta * (logp - logp_ref.detach()) - beta * z0
    value = good * lambda_d * x.sigmoid() + (1 - good) * lambda_u * (-x).sigmoid()
    return good * lambda_d + (1 - good) * lambda_u - value


def kto_loop(logp, logp_ref, desirable, kl_logp, kl_logp_ref, *, beta, lambda_d=1.0, lambda_u=1.0):
    others = [a - b for a, b in zip(kl_logp.tolist(), kl_logp_ref.tolist(), strict=True)]
    z0 = max(0.0, sum(others) / len(others))
    losses = []
    for now, then, good in zip(logp, logp_ref.tolist(), desirable.tolist(), strict=True):
        x = beta * (now - then - z0)
        losses.append(lambda_d * torch.sigmoid(-x) if good else lambda_u * torch.sigmoid(x))
    return torch.stack(losses)


def kto_tanh(logp, logp_ref, desirable, kl_logp, kl_logp_ref, *, beta, lambda_d=1.0, lambda_u=1.0):
    z0 = (kl_logp - kl_logp_ref).detach().mean().clamp_min(0)
    side = 2.0 * desirable.to(logp.dtype) - 1
    weight = (lambda_d + lambda_u) / 2 + side * (lambda_d - lambda_u) / 2
    return weight * (1 - torch.tanh(side * beta * (logp - logp_ref.detach() - z0) / 2)) / 2


def kto_index(logp, logp_ref, desirable, kl_logp, kl_logp_ref, *, beta, lambda_d=1.0, lambda_u=1.0):
    good = desirable == 1
    z0 = torch.stack([(kl_logp - kl_logp_ref).mean(), torch.zeros(()).to(logp)]).max().detach()
    x = beta * (logp - logp_ref.detach() - z0)
    out = torch.empty_like(logp)
    out[good] = lambda_d * (1 - x[good].sigmoid())
    out[~good] = lambda_u * (1 - (-x[~good]).sigmoid())
    return out


def kto_float32(logp, logp_ref, desirable, kl_logp, kl_logp_ref, **knobs):
    tensors = (logp.float(), logp_ref.float(), desirable, kl_logp.float(), kl_logp_ref.float())
    return kto_flipped(*tensors, **knobs)


def hpr_counter(prompts, responses):
    shape = torch.broadcast_shapes(prompts.shape, responses.shape)
    length, out = shape[-1], []
    rows = zip(
        prompts.expand(shape).reshape(-1, length).tolist(),
        responses.expand(shape).reshape(-1, length).tolist(),
        strict=True,
    )
    for x, y in rows:
        matched = sum((Counter(x) & Counter(y)).values())
        order = sum(a <= b for a, b in pairwise(y))
        out.append(float(matched + (order if matched == length else 0)))
    return torch.tensor(out).reshape(shape[:-1])


def hpr_one_hot(prompts, responses):
    size = int(torch.cat([prompts.flatten(), responses.flatten()]).max()) + 1
    asked, given = (F.one_hot(t, size).sum(-2).double() for t in (prompts, responses))
    matched = reduce(torch.minimum(asked, given), "... v -> ...", "sum")
    order = (responses.diff(dim=-1) >= 0).sum(-1)
    return torch.where(matched == prompts.shape[-1], matched + order, matched)


def hpr_loop_over_numbers(prompts, responses):
    matched = 0
    for number in range(int(prompts.max()) + 1):
        asked, given = (prompts == number).sum(-1), (responses == number).sum(-1)
        matched = matched + torch.where(asked < given, asked, given)
    sorted_alike = (prompts.sort(-1).values == responses.sort(-1).values).all(-1)
    order = (responses[..., 1:] >= responses[..., :-1]).sum(-1)
    return (matched + sorted_alike * order).double()


def hpr_crossing_out(prompts, responses):
    shape = torch.broadcast_shapes(prompts.shape, responses.shape)
    left = prompts.expand(shape).clone()
    y = responses.expand(shape)
    matched = torch.zeros(shape[:-1])
    for t in range(shape[-1]):
        hit = left == y[..., t : t + 1]
        first = hit & (hit.cumsum(-1) == 1)
        matched += first.any(-1)
        left[first] = -1
    order = (y[..., 1:] >= y[..., :-1]).float().sum(-1)
    return matched + order * (matched == shape[-1])


def hpr_differences(prompts, responses):
    """min(a, b) = (a + b - |a - b|) / 2, summed over the numbers."""
    numbers = torch.arange(int(max(prompts.max(), responses.max())) + 1)
    asked = (rearrange(prompts, "... l -> ... l 1") == numbers).sum(-2)
    given = (rearrange(responses, "... l -> ... l 1") == numbers).sum(-2)
    length = prompts.shape[-1]
    matched = length - (asked - given).abs().sum(-1) / 2
    return matched + (matched == length) * (responses[..., 1:] >= responses[..., :-1]).sum(-1)


EQUIVALENT = {
    "bradley_terry": [
        bt_softplus, bt_logaddexp, bt_cross_entropy, bt_binary, bt_loop, bt_float32, bt_in_place,
    ],
    "dpo": [
        dpo_softplus, dpo_no_grad, dpo_binary, dpo_cross_entropy, dpo_loop, dpo_einsum,
        dpo_float32,
    ],
    "ipo": [
        ipo_expanded, ipo_mse, ipo_scaled, ipo_loop, ipo_two_orders, ipo_float32, ipo_in_place,
    ],
    "kto": [kto_flipped, kto_relu, kto_loop, kto_tanh, kto_index, kto_float32],
    "hack_proof_reward": [
        hpr_counter, hpr_one_hot, hpr_loop_over_numbers, hpr_crossing_out, hpr_differences,
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "answer"), [(n, f) for n, answers in EQUIVALENT.items() for f in answers]
)
def test_an_equivalent_right_answer_gets_full_points(name, answer):
    for seed in (0, 1, 2):
        for cases in ("visible", "final"):
            verdict = judge(f"hw5/{name}", answer, cases=cases, seed=seed)
            assert verdict.passed, (verdict.cause, verdict.details)


def test_every_question_has_at_least_five_equivalent_answers():
    assert all(len(EQUIVALENT[q.function_name]) >= 5 for q in HW5)


# --- wrong answers as people write them, independent of the catalogue -----------------------


def bt_log_of_sigmoid(chosen, rejected, *, margin=0.0):
    return -torch.log(torch.sigmoid(chosen - rejected - margin))


def bt_log1p(chosen, rejected, *, margin=0.0):
    return torch.log1p(torch.exp(rejected - chosen + margin))


def bt_clamped(chosen, rejected, *, margin=0.0):
    return -torch.sigmoid(chosen - rejected - margin).clamp(min=1e-10).log()


def bt_bracket(chosen, rejected, *, margin=0.0):
    return -F.logsigmoid(chosen - (rejected - margin))


def bt_mean(chosen, rejected, *, margin=0.0):
    return -F.logsigmoid(chosen - rejected - margin).mean()


def bt_exchanged(chosen, rejected, *, margin=0.0):
    return F.softplus(chosen - rejected + margin)


def bt_softplus_of_x(chosen, rejected, *, margin=0.0):
    return F.softplus(chosen - rejected - margin)


def dpo_with(h_of, smooth=lambda h, e: (1 - e) * F.softplus(-h) + e * F.softplus(h)):
    """An answer that computes h by ``h_of(c, r, c_ref, r_ref, beta)``."""

    def answer(chosen, rejected, chosen_ref, rejected_ref, *, beta, label_smoothing=0.0):
        return smooth(h_of(chosen, rejected, chosen_ref, rejected_ref, beta), label_smoothing)

    return answer


def right_h(c, r, cr, rr, beta):
    return beta * (c - r - (cr - rr).detach())


def ipo_with(loss_of):
    """An answer whose loss is ``loss_of(gap, tau)``."""

    def answer(chosen, rejected, chosen_ref, rejected_ref, *, tau):
        return loss_of(chosen - rejected - (chosen_ref - rejected_ref).detach(), tau)

    return answer


def kto_with(point, inside=lambda beta, r, z: beta * (r - z), weights=lambda d, u: (d, u)):
    """An answer with its own z0, ``point(kl_logp, kl_logp_ref, logp, logp_ref)``."""

    def answer(
        logp, logp_ref, desirable, kl_logp, kl_logp_ref, *, beta, lambda_d=1.0, lambda_u=1.0
    ):
        z = point(kl_logp, kl_logp_ref, logp.detach(), logp_ref.detach())
        x = inside(beta, logp - logp_ref.detach(), z)
        good, bad = weights(lambda_d, lambda_u)
        return torch.where(desirable == 1, good * torch.sigmoid(-x), bad * torch.sigmoid(x))

    return answer


def z_right(kl, kl_ref, own, own_ref):
    return (kl - kl_ref).mean().clamp(min=0).detach()


def hpr_with(matched_of, gate=lambda m, x, y: m == x.shape[-1], pair=torch.le):
    """An answer that counts what is matched by ``matched_of(x, y)``."""

    def answer(prompts, responses):
        matched = matched_of(prompts, responses)
        order = pair(responses[..., :-1], responses[..., 1:]).sum(-1)
        return (matched + gate(matched, prompts, responses) * order).double()

    return answer


def occurs(x, y):
    return (x[..., :, None] == y[..., None, :]).any(-1).sum(-1)


def multiset(x, y):
    return hack_proof_reward(x, y).clamp(max=x.shape[-1])


def sorted_places(x, y):
    return (x.sort(-1).values == y.sort(-1).values).sum(-1)


def counted(x, y, axis=-2, numbers=1000):
    asked, given = ((t[..., None] == torch.arange(numbers)).sum(axis) for t in (x, y))
    return torch.minimum(asked, given).sum(-1)


def kto_bad_point(logp, logp_ref, desirable, kl, kl_ref, *, beta, lambda_d=1.0, lambda_u=1.0):
    r, z0 = logp - logp_ref.detach(), z_right(kl, kl_ref, None, None)
    good = lambda_d * (1 - torch.sigmoid(beta * (r - z0)))
    bad = lambda_u * (1 - torch.sigmoid(beta * (-r - z0)))
    return torch.where(desirable.bool(), good, bad)


def kto_median(logp, logp_ref, desirable, kl_logp, kl_logp_ref, *, beta, **weights):
    """z0 of the median instead of the mean."""
    z0 = (kl_logp - kl_logp_ref).median().clamp(min=0).detach()
    x = beta * (logp - logp_ref.detach() - z0)
    good, bad = weights.get("lambda_d", 1.0), weights.get("lambda_u", 1.0)
    return torch.where(desirable == 1, good * torch.sigmoid(-x), bad * torch.sigmoid(x))


WRONG = [
    ("bradley_terry", bt_log_of_sigmoid, {"overflow"}),
    ("bradley_terry", bt_log1p, {"overflow"}),
    ("bradley_terry", bt_clamped, {"floor"}),
    ("bradley_terry", bt_bracket, {"margin_added"}),
    ("bradley_terry", bt_mean, {"mean"}),
    ("bradley_terry", bt_exchanged, {"swapped"}),
    ("bradley_terry", bt_softplus_of_x, {"sign_inside"}),
    ("dpo", dpo_with(lambda c, r, cr, rr, b: b * (c - r)), {"reference_missing"}),
    (
        "dpo",
        dpo_with(lambda c, r, cr, rr, b: b * ((r - rr.detach()) - (c - cr.detach()))),
        {"swapped"},
    ),
    ("dpo", dpo_with(lambda c, r, cr, rr, b: b * ((c - cr) - (r - rr))), {"reference_attached"}),
    (
        "dpo",
        dpo_with(lambda c, r, cr, rr, b: b * (c - r) - (cr - rr).detach()),
        {"beta_on_policy"},
    ),
    (
        "dpo",
        dpo_with(right_h, lambda h, e: e * F.softplus(-h) + (1 - e) * F.softplus(h)),
        {"swapped"},
    ),
    ("dpo", dpo_with(right_h, lambda h, e: (1 - e) * F.softplus(-h)), {"smoothing_half_done"}),
    (
        "dpo",
        dpo_with(right_h, lambda h, e: -(1 - e) * h.sigmoid().log() - e * (-h).sigmoid().log()),
        {"overflow"},
    ),
    (
        "dpo",
        dpo_with(lambda c, r, cr, rr, b: b * ((c - cr.detach()).exp() - (r - rr.detach()).exp())),
        {"ratio"},
    ),
    (
        "dpo",
        dpo_with(lambda c, r, cr, rr, b: b * (c - rr.detach() - r + cr.detach())),
        {"reference_crossed"},
    ),
    (
        "dpo",
        dpo_with(lambda c, r, cr, rr, b: b * (c - cr.detach()) - (r - rr.detach())),
        {"beta_on_chosen"},
    ),
    (
        "dpo",
        dpo_with(lambda c, r, cr, rr, b: b * (c - cr.detach() - r - rr.detach())),
        {"reference_doubled"},
    ),
    (
        "dpo",
        dpo_with(lambda c, r, cr, rr, b: b * (c - cr.detach() - r)),
        {"rejected_reference_missing"},
    ),
    (
        "dpo",
        dpo_with(lambda c, r, cr, rr, b: b * (c - (r - rr.detach()))),
        {"chosen_reference_missing"},
    ),
    (
        "dpo",
        dpo_with(lambda c, r, cr, rr, b: right_h(c.detach(), r, cr, rr, b)),
        {"chosen_detached"},
    ),
    (
        "dpo",
        dpo_with(right_h, lambda h, e: -(1 - e) * F.logsigmoid(h) - e * (1 - F.logsigmoid(h))),
        {"smoothing_one_minus_log"},
    ),
    (
        "ipo",
        lambda c, r, cr, rr, *, tau: (c - cr.detach() - r - rr.detach() - 0.5 / tau) ** 2,
        {"reference_doubled"},
    ),
    ("ipo", ipo_with(lambda g, tau: (g - 1 / tau) ** 2 + g**2), {"both_orders"}),
    ("ipo", ipo_with(lambda g, tau: ((g - 1 / tau) ** 2 + g**2) / 2), {"constant_left"}),
    ("ipo", ipo_with(lambda g, tau: g - (1 / (2 * tau)) ** 2), {"target_squared"}),
    ("ipo", ipo_with(lambda g, tau: (g / tau - 1 / (2 * tau)) ** 2), {"tau_divides"}),
    ("ipo", ipo_with(lambda g, tau: (g - 1 / tau) ** 2), {"target_doubled"}),
    ("ipo", ipo_with(lambda g, tau: (g - 1 / 2 * tau) ** 2), {"target_half_tau"}),
    ("ipo", ipo_with(lambda g, tau: (tau * g - 0.5) ** 2), {"tau_scales"}),
    ("ipo", ipo_with(lambda g, tau: g - 1 / (2 * tau)), {"not_squared"}),
    ("ipo", ipo_with(lambda g, tau: (g + 1 / (2 * tau)) ** 2), {"swapped"}),
    ("ipo", ipo_with(lambda g, tau: -F.logsigmoid(tau * g)), {"dpo"}),
    (
        "kto",
        kto_with(lambda k, kr, o, orf: (k - kr).mean().clamp(min=0)),
        {"baseline_attached"},
    ),
    ("kto", kto_with(lambda k, kr, o, orf: (k - kr).mean().detach()), {"baseline_not_clamped"}),
    (
        "kto",
        kto_with(lambda k, kr, o, orf: (o - orf).roll(1).mean().clamp(min=0)),
        {"baseline_own"},
    ),
    (
        "kto",
        kto_with(lambda k, kr, o, orf: torch.relu(k - kr).mean().detach()),
        {"baseline_clamped_first"},
    ),
    ("kto", kto_with(lambda k, kr, o, orf: 0.0), {"baseline_missing"}),
    ("kto", kto_with(z_right, weights=lambda d, u: (u, d)), {"lambdas_swapped"}),
    ("kto", kto_with(z_right, inside=lambda b, r, z: b * (z - r)), {"swapped"}),
    ("kto", kto_with(z_right, inside=lambda b, r, z: b * r - z), {"beta_on_ratio_only"}),
    ("kto", kto_bad_point, {"point_not_turned"}),
    ("kto", kto_median, {"baseline_median"}),
    (
        "kto",
        kto_with(lambda k, kr, o, orf: (k - kr).max().clamp(min=0).detach()),
        {"baseline_largest"},
    ),
    ("kto", kto_with(z_right, weights=lambda d, u: (u, u)), {"lambda_u_for_both"}),
    (
        "dpo",
        dpo_with(lambda c, r, cr, rr, b: b * (c - cr.detach() + r - rr.detach())),
        {"gains_added"},
    ),
    (
        "bradley_terry",
        lambda c, r, *, margin=0.0: F.logsigmoid(r) - F.logsigmoid(c) + margin,
        {"logs_apart"},
    ),
    ("hack_proof_reward", hpr_with(sorted_places), {"sorted_places"}),
    ("hack_proof_reward", hpr_with(lambda x, y: counted(x, y, axis=-1)), {"all_complete"}),
    ("hack_proof_reward", hpr_with(lambda x, y: counted(x, y, numbers=3)), {"three_numbers"}),
    ("hack_proof_reward", hpr_with(lambda x, y: counted(x, y, numbers=10)), {"ten_numbers"}),
    ("hack_proof_reward", hpr_with(occurs), {"prompt_in_response"}),
    ("hack_proof_reward", hpr_with(lambda x, y: occurs(y, x)), {"response_in_prompt"}),
    ("hack_proof_reward", hpr_with(multiset, gate=lambda m, x, y: True), {"gate_missing"}),
    ("hack_proof_reward", hpr_with(multiset, pair=torch.lt), {"strict"}),
    ("hack_proof_reward", hpr_with(multiset, pair=torch.ge), {"descending"}),
    (
        "hack_proof_reward",
        lambda x, y: (x.sort(-1).values == y).all(-1).float(),
        {"exact_only"},
    ),
]


@pytest.mark.parametrize(("name", "answer", "mistakes"), WRONG)
def test_a_wrong_answer_in_other_code_is_named(name, answer, mistakes):
    for cases in ("visible", "final"):
        verdict = judge(f"hw5/{name}", answer, cases=cases)
        assert set(verdict.details["named"]) == mistakes, verdict.cause
        assert verdict.points < verdict.max_points


def clamped(function, limit=10.0):
    """Log-ratios (or rewards' differences) cut at +-limit before they are compared."""

    def answer(*args, **knobs):
        if function is kto_flipped:
            logp, logp_ref, *others = args
            return function(logp_ref + (logp - logp_ref).clamp(-limit, limit), logp_ref, *others,
                            **knobs)  # fmt: skip
        first, second, *refs = args
        if not refs:
            return function((first - second).clamp(-limit, limit), 0 * second, **knobs)
        c = refs[0] + (first - refs[0]).clamp(-limit, limit)
        r = refs[1] + (second - refs[1]).clamp(-limit, limit)
        return function(c, r, *refs, **knobs)

    return answer


def kto_capped(logp, logp_ref, desirable, kl, kl_ref, **knobs):
    """z0 is never above 2."""
    z0 = (kl - kl_ref).mean().clamp(0, 2).detach()
    return kto_flipped(logp, logp_ref, desirable, z0.expand(1), torch.zeros_like(z0.expand(1)),
                       **knobs)  # fmt: skip


def kto_by_kind(logp, logp_ref, desirable, kl, kl_ref, **knobs):
    """Fails where all responses are of one kind."""
    good, bad = logp[desirable == 1].max(), logp[desirable != 1].max()
    return kto_flipped(logp, logp_ref, desirable, kl, kl_ref, **knobs) + 0 * (good + bad)


def bt_positive_margin(chosen, rejected, *, margin=0.0):
    return bt_softplus(chosen, rejected, margin=max(margin, 0.0))


def dpo_small_smoothing(*args, beta, label_smoothing=0.0):
    return dpo_softplus(*args, beta=beta, label_smoothing=min(label_smoothing, 0.3))


def hpr_small_vocabulary(prompts, responses):
    asked, given = (F.one_hot(t.clamp(max=255), 256).sum(-2) for t in (prompts, responses))
    matched = torch.minimum(asked, given).sum(-1)
    return hpr_with(lambda x, y: matched)(prompts, responses)


RIGHT_NEAR_THE_ORDINARY = [
    ("bradley_terry", clamped(bt_softplus)),
    ("bradley_terry", bt_positive_margin),
    ("dpo", clamped(dpo_softplus)),
    ("dpo", dpo_small_smoothing),
    ("ipo", clamped(ipo_mse)),
    ("kto", clamped(kto_flipped)),
    ("kto", kto_capped),
    ("kto", kto_by_kind),
    ("hack_proof_reward", lambda x, y: hpr_with(lambda p, q: counted(p, q, numbers=256))(x, y)),
    ("hack_proof_reward", hpr_small_vocabulary),
]


@pytest.mark.parametrize(("name", "answer"), RIGHT_NEAR_THE_ORDINARY)
def test_an_answer_that_is_right_on_ordinary_numbers_only_loses_its_points(name, answer):
    for seed in (0, 1, 2):
        for cases in ("visible", "final"):
            verdict = judge(f"hw5/{name}", answer, cases=cases, seed=seed)
            assert verdict.points == 0, (cases, seed)
            assert set(verdict.details["named"]) <= {"floor"}, verdict.cause


UNLISTED = [
    ("bradley_terry", lambda c, r, *, margin=0.0: F.softplus(-(c - r - margin) / 2)),
    ("bradley_terry", lambda c, r, *, margin=0.0: F.softplus(-(c - r - margin).tanh() * 3)),
    ("bradley_terry", lambda c, r, *, margin=0.0: F.softplus(r.relu() - c + margin)),
    ("dpo", dpo_with(lambda c, r, cr, rr, b: right_h(c, r, cr, rr, b).clamp(-0.5, 0.5))),
    ("dpo", dpo_with(lambda c, r, cr, rr, b: right_h(c, r, cr, rr, b) / (1 + b))),
    ("dpo", dpo_with(right_h, lambda h, e: F.softplus(-h) + e)),
    ("dpo", dpo_with(lambda c, r, cr, rr, b: b * (c - cr.detach() - r - 2 * rr.detach()))),
    ("ipo", ipo_with(lambda g, tau: (g - 1 / tau) ** 2 + 2 * g**2)),
    ("ipo", ipo_with(lambda g, tau: (g - 1 / (2 * tau)) ** 2 + 0.01 * g)),
    ("ipo", ipo_with(lambda g, tau: (g - 1 / (3 * tau)) ** 2)),
    ("ipo", ipo_with(lambda g, tau: F.huber_loss(g, 0 * g + 0.5 / tau, reduction="none"))),
    ("kto", kto_with(z_right, inside=lambda b, r, z: b * (r - z) + 0.1)),
    ("hack_proof_reward", hpr_with(lambda x, y: multiset(x, y) ** 2)),
    ("hack_proof_reward", lambda x, y: hack_proof_reward(x, y.flip(-1)) * 0.9 + 0.3),
    ("hack_proof_reward", hpr_with(multiset, gate=lambda m, x, y: m >= x.shape[-1] - 1)),
]


@pytest.mark.parametrize(("name", "answer"), UNLISTED)
def test_a_bug_outside_the_catalogue_is_not_named_wrongly(name, answer):
    for cases in ("visible", "final"):
        verdict = judge(f"hw5/{name}", answer, cases=cases)
        assert verdict.points < verdict.max_points
        assert verdict.details["named"] == [], verdict.cause


def test_a_message_speaks_of_this_homework():
    """No pair in KTO, no mask anywhere, and one word for what is compared."""
    for question in HW5:
        for mistake in question.mistakes:
            for word in ("mask", "margin") if question.function_name != "bradley_terry" else ():
                assert word not in mistake.cause + mistake.hint, mistake
            if question.function_name == "kto":
                assert "pair" not in mistake.cause.replace("mismatched pair", ""), mistake
                assert "reference point" not in mistake.cause + mistake.hint, mistake


# --- the numbers of statements and reflections -----------------------------------------------


def cell(notebook, cell_id):
    return next(c.source for c in notebook.cells if c.id == cell_id)


def close(tensor, numbers, atol=5.1e-4):
    expected = torch.tensor(numbers, dtype=torch.float64)
    torch.testing.assert_close(tensor.to(torch.float64), expected, rtol=0, atol=atol)


def slopes(loss, *leaves):
    return torch.autograd.grad(loss.sum(), leaves)


def leaf(*numbers):
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=True)


def test_the_examples_by_hand(solution):
    log3 = float(torch.tensor(3.0, dtype=torch.float64).log())
    for chosen, rejected, margin, loss, slope in ((log3, 0, 0, 0.288, -0.25),
                                                  (1, 1, log3, 1.386, -0.75)):  # fmt: skip
        win = leaf(chosen)
        value = solution["bradley_terry"](win, leaf(rejected), margin=margin)
        close(value, [loss])
        close(slopes(value, win)[0], [slope])

    tokens = {
        "w": [-1, -0.5, -0.5],
        "w_ref": [-1, -1, -1],
        "l": [-1, -3, -1],
        "l_ref": [-1, -2, -1],
    }
    sums = [leaf(sum(row)) for row in (tokens["w"], tokens["l"], tokens["w_ref"], tokens["l_ref"])]
    assert [float(x.detach()) for x in sums] == [-2, -5, -3, -4]
    loss = solution["dpo"](*sums, beta=0.5)
    close(loss, [0.313])
    close(torch.cat(slopes(loss, *sums[:2])), [-0.134, 0.134])
    close(solution["dpo"](*sums, beta=0.5, label_smoothing=0.1), [0.413])
    assert 0.5 * float((sums[0] - sums[1]).detach()) == 1.5  # the reference forgotten

    zero = leaf(0.0)
    for w, l_, tau, loss, slope in ((1, -2, 0.25, 1.0, 2.0), (0.5, 1, 0.5, 2.25, -3.0)):
        win = leaf(w)
        value = solution["ipo"](win, leaf(l_), zero, zero, tau=tau)
        close(value, [loss])
        close(slopes(value, win)[0], [slope])

    r = leaf(2.2, -1.8)
    value = solution["kto"](
        r, torch.zeros_like(r), torch.tensor([1, 0]), leaf(1.0, -0.7, 0.3),
        torch.zeros(3, dtype=torch.float64), beta=0.5, lambda_d=1.0, lambda_u=0.5,
    )  # fmt: skip
    close(value, [0.269, 0.134])
    close(slopes(value, r)[0], [-0.098, 0.049])

    prompts, responses = torch.tensor([[1, 1, 2], [2, 0, 2]]), [[1, 1, 2], [1, 2, 2], [2, 2, 0]]
    responses = torch.tensor(responses)
    close(solution["hack_proof_reward"](prompts[:, None], responses), [[5, 2, 1], [1, 2, 4]])
    close(inclusion_ordering_reward(prompts[0], responses), [5, 5, 2])
    best = all_sequences(3, 3)
    best = best[inclusion_ordering_reward(prompts[0], best) == 5]
    assert best.tolist() == [[0, 1, 2], [1, 1, 2], [1, 2, 2]]


def test_smallest_numbers_of_the_reported_bugs():
    """log(sigmoid) at margin -100 is infinite in float32, and log 2 at the start says nothing."""
    x = torch.tensor([-100.0])
    close(bt_softplus(x, 0 * x), [100.0])
    assert torch.isinf(bt_log_of_sigmoid(x, 0 * x)).all()
    same = torch.tensor([-3.0, -9.0])
    for answer in (dpo_softplus, dpo_with(lambda c, r, cr, rr, b: b * ((r - rr) - (c - cr)))):
        close(answer(same, same.flip(0), same, same.flip(0), beta=0.7), [0.693, 0.693])


def test_what_overlapping_pairs_do_to_the_chosen_answer():
    """Reflection 2: a pair alone moves its answers apart; a≻b and c≻a together lower a and b."""

    def train(pairs, steps):
        z = torch.zeros(4, dtype=torch.float64, requires_grad=True)
        start = z.detach().log_softmax(0)
        for _ in range(steps):
            logp = z.log_softmax(0)
            loss = sum(dpo_softplus(logp[w], logp[l_], start[w], start[l_], beta=0.5)
                       for w, l_ in pairs) / len(pairs)  # fmt: skip
            z = (z - slopes(loss, z)[0]).detach().requires_grad_()
        return z.detach().softmax(0)

    for steps in (1, 10, 200):
        alone = train([(0, 1)], steps)
        assert alone[0] > 0.25 > alone[1]
        a, b, c, _ = train([(0, 1), (2, 0)], steps)
        assert max(a, b) < 0.25 < c
    assert (round(float(c), 3), round(float(a), 4), round(float(b), 6)) == (0.996, 0.0019, 4e-6)


def test_the_minutes_add_up(notebook):
    title = cell(notebook, "title")
    rows = re.findall(r"^\| \d .*\| (\d+) \|$", title, re.M)
    assert len(rows) == 6
    assert f"about {sum(map(int, rows))} minutes" in title


def test_the_two_orders_give_ipos_target():
    g, tau = torch.linspace(-3, 9, 7, dtype=torch.float64), 0.3
    both = ((g - 1 / tau) ** 2 + g**2) / 2
    close(both - (g - 1 / (2 * tau)) ** 2, [0.25 / tau**2] * 7, atol=1e-9)
    assert round(float(torch.tensor(5.0).exp())) == 148


@pytest.mark.parametrize(("vocab", "length"), [(3, 3), (2, 4), (4, 4)])
def test_the_sorted_prompt_is_the_only_best_response(vocab, length):
    every = all_sequences(vocab, length)
    points = hack_proof_reward(every[:, None], every)
    best = points == points.max(1, keepdim=True).values
    assert (points.max(1).values == 2 * length - 1).all()
    assert torch.equal(every[best.long().argmax(1)], every.sort(-1).values)
    assert (best.sum(1) == 1).all()
    # Nothing to farm: incomplete content stays below every complete one, sorted or not.
    complete = (every.sort(-1).values[:, None] == every.sort(-1).values).all(-1)
    assert points[~complete].max() < length <= points[complete].min()


def test_the_count_of_best_responses(notebook, solution, capsys):
    exec(cell(notebook, "experiment-unique"), dict(solution))
    old, new = capsys.readouterr().out.split("hack_proof_reward")
    assert "one best response: 6 of 27" in old
    assert "most best responses of a prompt: 6" in old
    assert "[0, 1, 2] to every prompt earns on average 5.00 of 5" in old
    assert "one best response: 27 of 27" in new
    assert "earns on average 2.56 of 5" in new
    assert (old + new).count("among them: True") == 2

    def unwritten(prompts, responses):
        raise NotImplementedError

    released = {"torch": torch, "hack_proof_reward": unwritten}
    exec(cell(notebook, "experiment-unique"), released)
    assert "not written yet" in capsys.readouterr().out

    every = all_sequences(3, 3)
    counts = inclusion_ordering_reward(every[:, None], every)
    best = (counts == 5).sum(1)
    distinct = torch.tensor([len(set(row)) for row in every.tolist()])
    assert torch.equal(best == 1, distinct == 3)
    assert torch.equal(best == 6, distinct == 1)
    lazy = hack_proof_reward(every, torch.zeros(3, dtype=torch.int64)).mean()
    open_gate = hpr_with(multiset, gate=lambda m, x, y: True)
    assert round(float(lazy), 2) == 1.07
    assert float(open_gate(every, torch.zeros_like(every)).mean()) == 3.0


@pytest.mark.parametrize("sees", [False, True])
def test_the_experiment_shows_what_its_reflection_says(notebook, capsys, sees):
    source = cell(notebook, "experiment-run")
    assert "sees_what_it_wrote = False" in source
    source = source.replace("sees_what_it_wrote = False", f"sees_what_it_wrote = {sees}")
    space = {"torch": torch, "prediction": "mine"}
    exec(source, space)
    close(space["points"], hack_proof_reward(space["prompt"], space["responses"]).tolist())
    shown = capsys.readouterr().out
    assert "Your prediction: mine" in shown
    found = re.findall(r"^(.{14}) +(\d+) of 10 +([.\d]+) +([.\d]+) +(.+)$", shown, re.M)
    rows = {name.strip(): (int(n), float(p), ends) for name, n, p, _, ends in found}
    assert list(rows) == ["old rule", "[PREF-9]", "position match"]
    # Single runs may end elsewhere on another processor; the story may not.
    assert rows["old rule"][0] >= 8
    assert 0.3 < rows["old rule"][1] < 0.65
    assert rows["position match"][0] >= 8
    assert rows["position match"][1] > 0.97
    reached, right, ends = rows["[PREF-9]"]
    assert right > 0.97
    assert (2 <= reached <= 6) if not sees else (reached >= 7)
    assert "121" in ends or "211" in ends


@pytest.mark.parametrize("start", [[1, 2, 1], [2, 1, 1]])
def test_on_the_side_hills_every_single_change_loses_two_points(start):
    every, start = all_sequences(3, 3), torch.tensor(start)
    one_away = every[(every != start).sum(1) == 1]
    prompt = torch.tensor([1, 1, 2])
    assert hack_proof_reward(prompt, start) == 4
    assert hack_proof_reward(prompt, one_away).max() == 2


def test_the_planted_bugs_show_hide_and_are_two(notebook, capsys):
    step, probe = cell(notebook, "bug-step"), cell(notebook, "bug-probe")
    sum_it = ("log_ratio.sum(-1) / mask.sum(-1)", "log_ratio.sum(-1)")
    order = ("rejected, chosen = gained", "chosen, rejected = gained")

    def run(*fixes, lengths=None, moved=None):
        source, test = step, probe
        for old, new in fixes:
            assert old in source
            source = source.replace(old, new)
        if lengths:
            test = test.replace("[4, 2, 1, 3]", str(lengths))
        if moved is not None:
            test = test.replace("moved = 0.0", f"moved = {moved}")
        space = {"torch": torch}
        exec(source + "\n" + test, space)
        assert "-0.000" not in capsys.readouterr().out
        return float(space["loss"].detach()), space["slope"], space["mask"]

    for fixes in ((), (sum_it,), (order,), (sum_it, order)):
        assert round(run(*fixes)[0], 3) == 0.693
    _, slope, mask = run(sum_it, order)
    side = torch.tensor([-0.2, -0.2, 0.2, 0.2])[:, None]
    torch.testing.assert_close(slope, side * mask)
    _, slope, _ = run()
    close(slope[0], [0.05] * 4)
    assert float(slope[2, 0]) == pytest.approx(-0.2)
    _, slope, mask = run(order, lengths=[1, 1, 1, 1])
    torch.testing.assert_close(slope, side * mask)  # the mean is hidden
    assert round(run(moved=0.5)[0], 3) == 0.798
    loss, slope, _ = run(sum_it, order, moved=0.5)
    assert round(loss, 3) == 0.442
    close(slope[:2, 0], [-0.124, -0.161])
