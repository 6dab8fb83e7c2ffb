"""The planted-bug trainer: right where nothing is planted, wrong where a bug says it is."""

import copy
import json
import math
from dataclasses import FrozenInstanceError, fields

import pytest
import torch

from policy_gradients.algorithms import ALGORITHMS
from toy_models import silent_bugs
from toy_models.policies import AutoregressivePolicy
from toy_models.silent_bugs import (
    BUGS,
    HEALTHY,
    IN_THE_WARD,
    POINTS,
    PROBES,
    RIGHT,
    TELLABLE,
    Ward,
    gradient_map,
    mask,
    practise,
    pushes,
)
from toy_models.train import train

HURTS = {"end_dropped", "one_out", "cold_sampler", "cold_report", "scrambled", "stale_cache"}
HURTS |= {"attached"}
SEEDS = range(3)


@pytest.fixture(scope="module")
def runs():
    """name -> one run per seed, the healthy one included."""
    parts = {HEALTHY: RIGHT} | {name: bug.patch(RIGHT) for name, bug in BUGS.items()}
    return {name: [practise(p, seed=seed) for seed in SEEDS] for name, p in parts.items()}


def test_without_a_bug_it_is_the_course_s_training_loop():
    prompts = torch.tensor(silent_bugs.PROMPTS)
    policy = AutoregressivePolicy(4, silent_bugs.LIMIT, eos_id=3, prompts=prompts).double()
    history = train(
        policy,
        prompts,
        silent_bugs.reward,
        ALGORITHMS["grpo"],
        beta=RIGHT.beta,
        entropy_coefficient=RIGHT.bonus,
        steps=12,
        group=silent_bugs.GROUP,
        inner_steps=silent_bugs.INNER,
        learning_rate=0.08,
        exact=True,
        seed=5,
    )
    run = practise(RIGHT, steps=12, seed=5)
    every, last = slice(0, None, silent_bugs.INNER), slice(silent_bugs.INNER - 1, None, 4)
    assert run.curves["J"] == pytest.approx(history["objective"][every], abs=1e-9)
    assert run.curves["entropy"] == pytest.approx(history["entropy"][every], abs=1e-9)
    assert run.curves["kl"] == pytest.approx(history["kl_to_start"][every], abs=1e-9)
    assert run.curves["loss"] == pytest.approx(history["loss"][last], abs=1e-9)
    assert run.curves["gradient"] == pytest.approx(history["grad_norm"][last], abs=1e-9)


def test_the_same_seed_gives_the_same_run():
    one, two = (practise(RIGHT, steps=8, seed=3) for _ in range(2))
    assert one.curves == two.curves
    assert torch.equal(one.push, two.push)
    assert practise(RIGHT, steps=8, seed=4).curves["reward"] != one.curves["reward"]


def test_a_batch_that_is_never_reached_is_refused():
    with pytest.raises(ValueError, match="looked_at=8 must be one of the 8 batches"):
        practise(RIGHT, steps=8, looked_at=8)
    with pytest.raises(TypeError, match="practise takes Parts, as in BUGS"):
        practise("end_dropped")


def test_pushes_are_gradients_with_respect_to_the_log_probs():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([[0, 1, 2], [3, 3, 0]])
    logp = logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    weights = torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0]], dtype=torch.float64)
    found = pushes(-(weights * logp).sum(), logits, tokens)
    torch.testing.assert_close(found, weights, rtol=0, atol=1e-12)


def test_records_are_frozen_and_complete():
    for name, bug in BUGS.items():
        assert bug.name == name
        assert bug.probe in PROBES
        assert all(getattr(bug, field.name) for field in fields(bug))
        assert bug.patch(RIGHT) != RIGHT
        with pytest.raises(FrozenInstanceError):
            bug.name = "other"
    assert silent_bugs.Parts() == RIGHT  # no patch has touched it


def test_the_healthy_run_is_what_it_should_be(runs):
    for run in runs[HEALTHY]:
        assert torch.equal(run.mask, mask(run.tokens))
        assert (run.first_ratio[run.mask] == 1).all()
        factors = gradient_map(run)
        pushed = factors[run.mask & ~factors.isnan()]  # silenced at home: nothing at all
        torch.testing.assert_close(pushed, torch.ones_like(pushed), rtol=1e-9, atol=0)
        assert len(pushed) > 0.9 * int(run.mask.sum())
        assert factors[~run.mask].isnan().all()
        assert run.curves["J"][-1] > run.curves["J"][0] + 2


def test_seven_hurt_and_the_others_pass_unseen(runs):
    right = torch.tensor([run.curves["J"][-1] for run in runs[HEALTHY]])
    for name in BUGS:
        J = torch.tensor([run.curves["J"][-1] for run in runs[name]])
        assert bool((J - right).mean() < -0.3) == (name in HURTS), name


def test_every_run_looks_alive(runs):
    """Nothing is ever NaN, and the loss moves in every one but where its gradient is gone."""
    for name, of_name in runs.items():
        for run in of_name:
            curves = run.curves
            assert all(math.isfinite(x) for values in curves.values() for x in values), name
            moved = {round(loss, 9) for loss in curves["loss"]}
            assert len(moved) > 20 or (name == "attached" and len(moved) == 1), name
            assert len(set(curves["reward"])) > 10, name


def factors_of(runs, name):
    """(row, map, mask) with the map restricted to one run."""
    run = runs[name][0]
    return run, gradient_map(run), mask(run.tokens)


def test_map_of_the_end_token_and_of_padding(runs):
    run, factors, valid = factors_of(runs, "end_dropped")
    ends = valid & (run.tokens == silent_bugs.END)
    assert (run.push[ends].abs() < 1e-12).all()
    assert (run.push[valid & ~ends].abs() > 1e-12).any()
    run, factors, valid = factors_of(runs, "padding_trained")
    assert factors[~valid].isinf().all()


def test_map_of_counts_follows_the_length(runs):
    """One factor per response, different ones for different lengths."""
    _, factors, valid = factors_of(runs, "own_counts")
    spans = [row[keep] for row, keep in zip(factors, valid, strict=True)]
    assert max((row.max() - row.min()).item() for row in spans) < 1e-9
    assert max(row[0] for row in spans) > 1.1 * min(row[0] for row in spans)


def test_map_of_scrambled_turns_signs_response_by_response(runs):
    _, factors, valid = factors_of(runs, "scrambled")
    assert (factors[valid] < 0).double().mean() > 0.15


def test_map_is_blind_to_the_sampler_and_surprise_is_not(runs):
    run, factors, valid = factors_of(runs, "cold_sampler")
    factors = factors[valid & ~factors.isnan()]
    torch.testing.assert_close(factors, torch.ones_like(factors), rtol=1e-9, atol=0)
    for run in runs["cold_sampler"]:
        gaps = [s - h for s, h in zip(run.curves["surprise"], run.curves["entropy"], strict=True)]
        assert sum(gaps[10:]) / len(gaps[10:]) < -0.4
    for run in runs[HEALTHY]:
        gaps = [s - h for s, h in zip(run.curves["surprise"], run.curves["entropy"], strict=True)]
        assert abs(sum(gaps[10:]) / len(gaps[10:])) < 0.2


@pytest.mark.parametrize("name", sorted(BUGS))
def test_first_ratio_is_one_but_for_the_caches(runs, name):
    run = runs[name][0]
    valid = mask(run.tokens)
    ones = ((run.first_ratio[valid] - 1).abs() < 1e-9).double().mean().item()
    assert ones < 0.5 if BUGS[name].probe == "first_ratio" else ones == 1


def test_last_ratio_of_recomputed_is_still_one(runs):
    assert (runs["recomputed"][0].ratio[mask(runs["recomputed"][0].tokens)] == 1).all()
    assert runs[HEALTHY][0].ratio[mask(runs[HEALTHY][0].tokens)].std() > 0.05


def test_rounding_makes_a_comb_that_is_too_fine_to_see(runs):
    """Log-ratios of bf16 numbers are multiples of their spacing; the histogram is no other."""

    def on_the_comb(run):
        steps = run.ratio[mask(run.tokens)].log() * 2**9  # spacing at -.25 to -.5; elsewhere more
        return ((steps - steps.round()).abs() < 1e-6).double().mean()

    for rounded, right in zip(runs["bf16_ratio"], runs[HEALTHY], strict=True):
        assert on_the_comb(rounded) > 0.7
        assert on_the_comb(right) < 0.1
        a, b = (torch.tensor(PROBES["last_ratio"].see(run)["counts"]) for run in (rounded, right))
        assert (a - b).abs().sum() < 0.2 * b.sum()


def test_standardising_twice_is_no_bug_but_for_its_eps(runs):
    torch.testing.assert_close(
        silent_bugs._twice(torch.tensor([[1.0, 0, 0, 1], [0, 2, 4, 1]]).double(), None),
        silent_bugs.advantages(torch.tensor([[1.0, 0, 0, 1], [0, 2, 4, 1]]).double(), None),
        rtol=1e-3,
        atol=0,
    )


def test_clipping_that_always_acts_and_adam(runs):
    run = runs["always_clipped"][0]
    assert set(run.curves["gradient"]) == {1e-4}  # a flat line: the sign
    assert len(set(runs[HEALTHY][0].curves["gradient"])) > 30
    factors = gradient_map(run)[mask(run.tokens)]
    factors = factors[~factors.isnan()]
    torch.testing.assert_close(factors, torch.ones_like(factors), rtol=1e-9, atol=0)


# --- the ward -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole():
    return Ward(seed=1)


@pytest.fixture(scope="module")
def first():
    return Ward(seed=0)


@pytest.fixture
def ward(whole):
    return copy.deepcopy(whole)


@pytest.fixture
def names(ward):
    return ward._names


def test_the_ward_holds_one_healthy_run_and_six_different_bugs(names, first):
    assert sorted(first._names.values()) == sorted(IN_THE_WARD)
    assert HEALTHY in names.values()
    assert len(set(names.values())) == 7
    assert set(names.values()) <= {HEALTHY, *TELLABLE}
    assert set(names.values()) != set(IN_THE_WARD)


# What a reader can read off each probe, from the numbers it gives and nothing else.


def read_first_ratio(seen):
    if seen["exactly_one"] > 0.9:
        return "one"
    return "both sides" if seen["ends"][0] < 0.5 else "a hump below 1 with a long tail"


def read_last_ratio(seen):
    return "all 1" if seen["exactly_one"] == 1 else "spread"


def read_surprise(seen):
    gap = sum(seen["entropy"][20:]) / 20 - sum(seen["surprise"][20:]) / 20
    return "cold" if gap > 0.4 else "as the entropy says"


def read_curves(seen):
    rises = sum(seen["reward"][-10:]) / 10 > seen["reward"][0] + 1
    return rises, len(set(seen["gradient"])) == 1


def read_mask(seen):
    found = set()
    for row in seen["rows"]:
        end = row["tokens"].find("E") % len(row["tokens"])
        found |= {"end lost"} if row["tokens"][end] == "E" and not row["mask"][end] else set()
        found |= {"padding"} if any(row["mask"][end + 1 :]) else set()
    return frozenset(found)


def read_map(seen):
    rows = [[x for x in row["factors"] if x is not None] for row in seen["rows"]]
    if any("+" in row for row in rows):
        return "padding"
    if all(abs(x - 1) < 0.05 for row in rows for x in row):
        return "clean"
    ends = [row["factors"][row["tokens"].find("E")] for row in seen["rows"] if "E" in row["tokens"]]
    if all(x == 0 for x in ends):
        return "no ends"
    one = all(max(row) - min(row) < 0.05 for row in rows)
    return "one positive factor per answer" if one and rows[0][0] > 0 else "within answers too"


READ = {"first_ratio": read_first_ratio, "last_ratio": read_last_ratio, "mask": read_mask}
READ |= {"surprise": read_surprise, "curves": read_curves, "map": read_map}
EVIDENCE = {  # beside the curves, which are free
    "stale_cache": ["first_ratio"],
    "padding_trained": ["mask"],
    "end_dropped": ["mask"],
    "recomputed": ["last_ratio"],
    "cold_sampler": ["surprise", "first_ratio"],
    "own_counts": ["map"],
    HEALTHY: ["map", "surprise"],
    "one_out": ["map"],
    "cold_report": ["first_ratio"],
    "scrambled": ["map"],
    "attached": ["last_ratio"],
    "always_clipped": [],
}


def evidence(name, seen_by):
    return [READ[probe](seen_by(probe)) for probe in ("curves", *EVIDENCE[name])]


@pytest.mark.parametrize("name", [HEALTHY, *TELLABLE])
def test_the_evidence_tells_a_patient_from_the_whole_catalogue(runs, first, whole, name):
    """From every diagnosis on the list but bf16, which nobody has."""
    found = [evidence(name, lambda p, r=run: PROBES[p].see(r)) for run in runs[name]]
    charts = [c for w in (first, whole) for c in w.chart().values() if c["has"] == name]
    found += [evidence(name, chart.get) for chart in charts]
    assert all(one == found[0] for one in found)
    for other in set(runs) - {name, "bf16_ratio"}:
        for run in runs[other]:
            assert evidence(name, lambda p, r=run: PROBES[p].see(r)) != found[0], other


def test_the_price_of_certainty():
    """What the lecture says of the first ward: 48 of 70 for the right probes and no other."""
    price = {name: sum(PROBES[p].price for p in EVIDENCE[name]) for name in IN_THE_WARD}
    assert price.pop(HEALTHY) == 6
    assert price.pop("cold_sampler") == price.pop("own_counts") == 4
    assert set(price.values()) == {2}
    assert sum(POINTS - sum(PROBES[p].price for p in EVIDENCE[n]) for n in IN_THE_WARD) == 48


def test_points(ward, names):
    first, second = ward.patients[:2]
    ward.probe(first, "curves")
    ward.probe(first, "map")
    ward.probe(first, "map")  # the second look is free
    assert ward.spent[first] == PROBES["map"].price
    wrong = next(name for name in BUGS if name != names[first])
    assert "is not" in ward.diagnose(first, wrong)
    assert names[first] in ward.diagnose(first, names[first])
    assert ward.points == {first: 10 - 4 - 4}
    assert "already diagnosed" in ward.diagnose(first, wrong)
    for _ in range(4):
        ward.diagnose(second, next(name for name in BUGS if name != names[second]))
    ward.diagnose(second, names[second])
    assert ward.points[second] == 0


def test_what_the_ward_refuses(ward):
    with pytest.raises(KeyError, match="no patient 'Z'; there are: A, B"):
        ward.probe("Z", "curves")
    with pytest.raises(KeyError, match="no probe 'x-ray'; there are: curves"):
        ward.probe("A", "x-ray")
    with pytest.raises(KeyError, match="no diagnosis 'tired'; there are: healthy, end_dropped"):
        ward.diagnose("A", "tired")


def test_probes_give_plain_json_of_a_few_kilobytes(runs):
    for of_name in runs.values():
        seen = {name: probe.see(of_name[0]) for name, probe in PROBES.items()}
        assert len(json.dumps(seen, allow_nan=False)) < 9_000
