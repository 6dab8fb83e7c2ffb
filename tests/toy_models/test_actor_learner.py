"""The simulator against closed forms, and stale learning against exact gradients."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

from policy_gradients.advantages import leave_one_out
from policy_gradients.algorithms import Batch
from toy_models.actor_learner import Setup, simulate
from toy_models.exact import exact_gradient, gradient_moments, responses_of
from toy_models.policies import AutoregressivePolicy
from toy_models.serving import Lengths
from toy_models.sorting import SortingTask
from toy_models.stale_learning import (
    exact_weights,
    learn,
    own_ratio,
    sequence_weight,
    token_weight,
    uncorrected,
)
from toy_models.train import train

TASK = SortingTask(3, 3)
PROMPTS = TASK.distinct_prompts()
CONSTANT = Lengths(median=300, sigma=0, limit=300)
LOOPS = {
    "synchronous": Setup(),
    "same cards": Setup(actors=4, colocated=True),
    "static": Setup(static=True),
    "one off": Setup(bound=1),
    "asynchronous": Setup(bound=4),
    "partial": Setup(bound=4, partial=True),
    "slow learner": Setup(actors=4, learners=1, bound=6, partial=True),
    "drop": Setup(bound=1, drop=True, queue=16),
    "no bound": Setup(bound=None, queue=16, partial=True),
}


@pytest.fixture(scope="module")
def traces():
    return {name: simulate(setup, updates=30, warmup=5, seed=1) for name, setup in LOOPS.items()}


# --- the synchronous loop has a closed form


def test_synchronous_utilisation_with_constant_lengths():
    """t_gen / (t_gen + t_train + t_sync), and likewise for the learner: exactly."""
    setup = Setup(lengths=CONSTANT)  # 64 answers on 2 actors of 32 slots: one wave
    trace = simulate(setup, updates=5)
    read = 4 * setup.prompt_tokens * setup.prefill  # four groups on each actor
    t_gen = read + 300 * (setup.step_fixed + 32 * setup.step_per_slot)
    t_train = 64 * 300 * setup.update / 2
    whole = t_gen + t_train + setup.sync
    assert trace.seconds_per_update == pytest.approx(whole, rel=1e-9)
    assert trace.actor_busy == pytest.approx(t_gen / whole, rel=1e-9)
    assert trace.slot_use == pytest.approx(t_gen / whole, rel=1e-9)
    assert trace.learner_busy == pytest.approx(t_train / whole, rel=1e-9)
    assert trace.card_busy == pytest.approx((t_gen + t_train) / whole / 2, rel=1e-9)
    assert trace.tokens_per_second == pytest.approx(64 * 300 / whole, rel=1e-9)


@pytest.mark.parametrize("static", [False, True])
def test_a_batch_waits_for_its_longest_answer(static):
    """One actor, a slot for each: a · longest + b · sum seconds; static b · n · longest."""
    setup = Setup(actors=1, slots=64, static=static)
    trace = simulate(setup, updates=40, warmup=0)
    read = 8 * setup.prompt_tokens * setup.prefill
    a, b = setup.step_fixed, setup.step_per_slot
    start, seconds = 0.0, []
    for batch, update in zip(trace.batches, trace.updates, strict=True):
        lengths = [answer.length for group in batch for answer in group.answers]
        steps = a * max(lengths) + b * (64 * max(lengths) if static else sum(lengths))
        assert update.start - start == pytest.approx(read + steps, rel=1e-9)
        seconds.append(update.start - start)
        start = update.end + setup.sync
    longest, mean = setup.lengths.expected_max(64), setup.lengths.mean
    expected = read + a * longest + b * 64 * (longest if static else mean)
    spread = torch.tensor(seconds).std().item() / math.sqrt(len(seconds))
    assert abs(sum(seconds) / len(seconds) - expected) < 4 * spread


def test_a_free_slot_is_filled_only_without_static_batches():
    setup = Setup(actors=1, slots=8, prompts=8)
    flowing, static = (simulate(replace(setup, static=s), updates=6) for s in (False, True))
    assert flowing.slot_use > 1.3 * static.slot_use
    assert flowing.tokens_per_second > 1.3 * static.tokens_per_second


# --- asynchronous: the slower side sets the pace


@pytest.mark.parametrize("learners", [1, 8])
def test_asynchronous_throughput_is_the_smaller_rate(learners):
    setup = Setup(actors=2, learners=learners, bound=8, partial=True, sync=0.0, prefill=0.0)
    trace = simulate(setup, updates=120, warmup=30)
    slower = min(setup.generation_rate, setup.training_rate)
    assert (slower == setup.training_rate) == (learners == 1)
    assert trace.tokens_per_second == pytest.approx(slower, rel=0.04)


def test_same_cards_and_balanced_split_cards_are_equally_fast():
    """With no switching cost and no tail both train N·g·u / (g + u) tokens per second."""
    free = Setup(lengths=CONSTANT, sync=0.0, prefill=0.0, prompts=16)
    together = replace(free, colocated=True, actors=4)
    g, u = together.generation_rate / 4, 1 / together.update
    assert simulate(together, updates=5).tokens_per_second == pytest.approx(4 * g * u / (g + u))
    cards = 17  # g : u is 8 : 9
    split = [replace(free, actors=n, learners=cards - n, bound=8) for n in range(6, 13)]
    rates = {s.actors: min(s.generation_rate, s.training_rate) for s in split}
    best = max(rates, key=rates.get)
    assert best == 9
    assert rates[best] == pytest.approx(cards * g * u / (g + u))
    assert rates[best] == pytest.approx(simulate(split[3], updates=60, warmup=20).tokens_per_second,
                                        rel=0.03)  # fmt: skip


@pytest.mark.parametrize("name", ["one off", "partial", "slow learner"])
def test_littles_law(traces, name):
    """Groups in the system = groups per second x seconds in the system, up to the window's ends."""
    trace = simulate(LOOPS[name], updates=150, warmup=20)
    present = sum(
        max(0.0, min(trace.end, trace.end if math.isnan(g.used) else g.used)
            - max(g.start, trace.begin))
        for g in trace.groups if not math.isnan(g.answers[0].start)
    ) / trace.seconds  # fmt: skip
    stay = sum(g.used - g.start for g in trace.trained) / len(trace.trained)
    assert present == pytest.approx(len(trace.trained) / trace.seconds * stay, rel=0.03)
    updates_passed = stay / trace.seconds_per_update  # the same law, with updates as the clock
    assert trace.mean_staleness == pytest.approx(updates_passed, abs=1)


# --- staleness


@pytest.mark.parametrize("name", LOOPS)
def test_nothing_is_trained_that_is_staler_than_the_bound(traces, name):
    trace, setup = traces[name], LOOPS[name]
    ages = [group.staleness for batch in trace.batches for group in batch]
    assert min(ages) >= 0
    if setup.bound is not None:
        assert max(ages) <= setup.bound
    assert sum(trace.staleness.values()) == pytest.approx(1)
    assert sum(trace.token_staleness.values()) == pytest.approx(1)


def test_each_loop_is_as_stale_as_its_name(traces):
    assert traces["synchronous"].staleness == traces["same cards"].staleness == {0: 1.0}
    assert traces["one off"].mean_staleness > 0.9
    assert traces["slow learner"].mean_staleness > 5  # the queue fills up to the bound
    for batch in traces["slow learner"].batches[10:]:
        assert all(len(answer.pieces) >= 1 for group in batch for answer in group.answers)


def test_partial_answers_carry_several_weights_and_fresher_tokens(traces):
    trace = traces["partial"]
    pieces = [len(a.pieces) for group in trace.trained for a in group.answers]
    assert max(pieces) > 2
    by_token = sum(s * share for s, share in trace.token_staleness.items())
    assert by_token < trace.mean_staleness
    assert trace.reread > 0
    assert traces["asynchronous"].reread == 0
    assert trace.tokens_per_second > traces["asynchronous"].tokens_per_second


def test_dropping_prefers_short_answers(traces):
    """What is thrown away for its age is long: the trained lengths are no longer the sampled."""
    trace = simulate(replace(LOOPS["drop"], partial=True), updates=80, seed=2)
    kept, lost = (
        sum(g.tokens for g in groups) / len(groups) / 8 for groups in (trace.trained, trace.dropped)
    )
    sampled = trace.setup.lengths.mean
    assert kept < 0.9 * sampled < sampled < lost
    assert trace.dropped_share > 0.5
    assert all(group.trained_at is None for group in trace.dropped)
    assert traces["no bound"].dropped_share == 0


# --- the bookkeeping


@pytest.mark.parametrize("name", LOOPS)
def test_nothing_is_lost_and_nothing_is_in_two_places(traces, name):
    trace = traces[name]
    answers = [a for group in trace.groups for a in group.answers]
    ended = [a for a in answers if not math.isnan(a.end)]
    assert len(ended) > 30 * 60
    for answer in ended:
        assert sum(answer.pieces.values()) == pytest.approx(answer.length, abs=1e-3)
    slots: dict = {}
    for answer in ended:
        slots.setdefault((answer.actor, answer.slot), []).append((answer.start, answer.end))
    lanes: dict = {}
    for span in trace.spans:
        lanes.setdefault(span.lane, []).append((span.start, span.end))
    for bars in (*slots.values(), *lanes.values()):
        bars.sort()
        assert all(end > start for start, end in bars)
        assert all(b[0] >= a[1] - 1e-6 for a, b in itertools.pairwise(bars))
    used = [group.index for batch in trace.batches for group in batch]
    assert len(set(used)) == len(used) == 30 * trace.setup.prompts
    for batch, update in zip(trace.batches, trace.updates, strict=True):
        assert all(group.ready <= update.start == group.used for group in batch)
    for share in (trace.actor_busy, trace.learner_busy, trace.card_busy, trace.slot_use):
        assert 0 < share <= 1 + 1e-9


def test_the_same_seed_the_same_trace():
    first, again = (simulate(LOOPS["partial"], updates=5, seed=4) for _ in range(2))
    assert first.spans == again.spans
    assert first.spans != simulate(LOOPS["partial"], updates=5, seed=5).spans


def test_a_shared_prompt_is_read_once_per_group():
    """Prefill saved: exactly (G-1)/G, as long as no weights change in mid-group."""
    shared, alone = (simulate(Setup(share_prefix=s), updates=4) for s in (True, False))
    groups = 4 * 8
    assert shared.prefilled == groups * 200
    assert alone.prefilled == groups * 8 * 200
    assert 1 - shared.prefilled / alone.prefilled == 7 / 8
    assert alone.seconds > shared.seconds


def test_impossible_setups_are_refused():
    for wrong, message in (
        ({"actors": 0}, "Setup.actors must be a whole number of at least 1"),
        ({"sync": math.inf}, "Setup.sync must be a finite number"),
        ({"update": 0}, "must take time"),
        ({"bound": None}, "set queue, at least prompts=8"),
        ({"bound": 1, "drop": True}, "set queue"),
        ({"bound": None, "drop": True, "queue": 9}, "set bound"),
        ({"colocated": True, "bound": 1}, "must alternate"),
        ({"queue": 3, "bound": 1}, "Setup.queue"),
    ):
        with pytest.raises(ValueError, match=message):
            Setup(**wrong)
    with pytest.raises(ValueError, match="less than updates=3"):
        simulate(Setup(), updates=3, warmup=3)


# --- learning by the schedule


def fresh_policy():
    return AutoregressivePolicy(3, 3, eos_id=None, prompts=PROMPTS).double()


@pytest.fixture(scope="module")
def stale():
    """40 updates of a fast learning rate on answers that are six updates old."""
    trace = simulate(replace(LOOPS["slow learner"], prompts=6), updates=40, warmup=10)
    return learn(trace, fresh_policy(), PROMPTS, TASK.reward, "rloo", learning_rate=12.0)


@pytest.mark.parametrize("row", ["rloo", "grpo"])
def test_without_staleness_it_is_the_ordinary_loop(row):
    trace = simulate(Setup(prompts=6), updates=5)
    learned = learn(trace, fresh_policy(), PROMPTS, TASK.reward, row, learning_rate=2.0, seed=3)
    policy = fresh_policy()
    history = train(policy, PROMPTS, TASK.reward, row, steps=5, group=8, learning_rate=2.0,
                    optimizer=torch.optim.SGD, beta=0.0, seed=3)  # fmt: skip
    assert learned.objective == [*history["objective"], history.final.objective]
    for corrected in (own_ratio, sequence_weight(2.0), token_weight(2.0)):  # nothing to correct
        other = learn(trace, fresh_policy(), PROMPTS, TASK.reward, row, learning_rate=2.0, seed=3,
                      correction=corrected)  # fmt: skip
        assert other.objective == pytest.approx(learned.objective, abs=1e-9)


def test_the_stale_gradient_is_biased_and_whole_answer_weights_repair_it(stale):
    now, then = stale.snapshots[16], stale.snapshots[10]
    known = {"estimator": leave_one_out, "group": 4, "behaviour": then}

    def moments(prompt, weights):
        return gradient_moments(now, prompt, TASK.reward, token_weights=weights, **known)

    for prompt in PROMPTS[:3, None]:
        exact = exact_gradient(now, prompt, TASK.reward)
        plain = moments(prompt, None)
        assert (plain.mean - exact).norm() > 0.05 * exact.norm()
        whole = moments(prompt, exact_weights(now, then, prompt)[0])
        assert torch.allclose(whole.mean, exact, rtol=0, atol=1e-9)
        token = moments(prompt, exact_weights(now, then, prompt, token=True)[0])
        assert (token.mean - exact).norm() > 1e-3 * exact.norm()


def test_older_samples_point_further_away(stale):
    def cosine(age):
        return gradient_moments(
            stale.snapshots[16], PROMPTS, TASK.reward, leave_one_out, group=2,
            behaviour=stale.snapshots[16 - age],
        ).cosine  # fmt: skip

    cosines = [cosine(age) for age in (0, 1, 3, 6, 12)]
    assert cosines[0] == pytest.approx(1, abs=1e-9)
    assert cosines == sorted(cosines, reverse=True)
    assert cosines[-1] < 0.95


def test_corrections_weigh_the_sampled_answers_as_the_exact_weights_say(stale):
    now, then, prompt = stale.snapshots[16], stale.snapshots[10], PROMPTS[:1]
    answers = responses_of(now)
    logp, logp_sampler = (p.log_probs(prompt, answers) for p in (now, then))
    batch = Batch(logp, logp, torch.ones(27, 1).double(), now.mask(answers))
    for cap in (1.5, 1e6):
        for correct, token in ((sequence_weight(cap), False), (token_weight(cap), True)):
            weights = exact_weights(now, then, prompt, cap=cap, token=token)[0]
            given = correct(batch, logp_sampler).advantages.expand(27, 3)
            assert torch.allclose(given, weights, rtol=1e-12)
    assert own_ratio(batch, logp_sampler).logp_old is logp_sampler
    assert uncorrected(batch, logp_sampler) is batch


def test_stale_answers_come_from_the_stale_policy():
    """Under its own samples a policy is likelier than any other: the mean of log π_s/π is a KL."""
    gaps = []

    def spy(batch, logp_sampler):
        gaps.append((logp_sampler - batch.logp.detach()).sum(1).mean().item())
        return batch

    trace = simulate(replace(LOOPS["slow learner"], prompts=6), updates=20)
    learn(trace, fresh_policy(), PROMPTS, TASK.reward, "rloo", learning_rate=12.0, correction=spy)
    ages = [batch[0].staleness for batch in trace.batches]
    assert gaps[0] == ages[0] == 0
    assert all(gap > 0.05 for gap, age in zip(gaps, ages, strict=True) if age > 3)
    assert max(ages) == 6


def test_half_the_time_for_the_same_policy():
    """One step off reaches 4.5 of 5 points earlier than waiting, for every seed."""
    waits, off = (
        simulate(Setup(prompts=6, bound=bound, partial=bound > 0), updates=45) for bound in (0, 1)
    )
    for seed in range(2):
        a, b = (
            learn(trace, fresh_policy(), PROMPTS, TASK.reward, "rloo", learning_rate=8.0, seed=seed)
            for trace in (waits, off)
        )
        assert a.times[0] == 0
        assert len(a.times) == len(a.objective) == len(a.snapshots) == 46
        assert b.seconds_to(4.5) < 0.8 * a.seconds_to(4.5)
        assert math.isnan(a.seconds_to(5.1))


def test_what_cannot_be_learned_is_refused():
    trace = simulate(Setup(prompts=6), updates=2)
    with pytest.raises(ValueError, match="needs a critic"):
        learn(trace, fresh_policy(), PROMPTS, TASK.reward, "ppo")
    with pytest.raises(FloatingPointError, match=r"update 0.*lower learning_rate"):
        learn(trace, fresh_policy(), PROMPTS, TASK.reward, "rloo", learning_rate=math.inf)
