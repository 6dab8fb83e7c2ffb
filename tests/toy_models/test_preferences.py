"""Learning from comparisons: laws by enumeration, optima in closed form, and the known bugs."""

import copy
import math
from functools import partial

import pytest
import torch

from policy_gradients.preferences import dpo, ipo, kto
from toy_models import preferences
from toy_models.exact import (
    all_rewards,
    exact_kl,
    expected_reward,
    gibbs_distribution,
    response_log_probs,
    responses_of,
    tabular_policy,
)
from toy_models.policies import AutoregressivePolicy, TabularPolicy
from toy_models.preferences import (
    Comparisons,
    FeatureReward,
    Labels,
    TableReward,
    TiedPolicy,
    all_comparisons,
    fit_reward_model,
    from_ranking,
    implicit_reward,
    learn_from_pairs,
    mark,
    online_dpo,
    ranking_accuracy,
    sample_comparisons,
    win_probability,
    win_rates,
    written_pairs,
)
from toy_models.sorting import SortingTask, position_match_reward, sort_then_end_reward

TASK = SortingTask(3, 3)
SOME = torch.tensor([[1, 0, 2], [2, 1, 1], [0, 2, 0], [2, 2, 1]])  # four different answers
PROMPT = torch.tensor([0])
SGD = torch.optim.SGD


def dice(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_policy(prompts, *, vocab_size=3, length=3, eos_id=None, spread=0.5, seed=0):
    policy = AutoregressivePolicy(vocab_size, length, eos_id=eos_id, prompts=prompts).double()
    with torch.no_grad():
        policy.table.copy_(spread * torch.randn(policy.table.shape, generator=dice(seed)))
    return policy


def free_logits(responses: int = 5, seed: int = 0) -> TabularPolicy:
    return tabular_policy(torch.randn(1, responses, generator=dice(seed)).double())


POINTS = torch.tensor([2.0, -1.0, 0.5, 0.0, 1.2])


def listed_points(prompts, responses):
    return POINTS[responses[..., 0]] + 0 * prompts.sum(-1)


def distance(policy, prompts, wanted) -> float:
    """Largest total variation over the prompts."""
    with torch.no_grad():
        probs = response_log_probs(policy, prompts).exp()
    return (probs - wanted).abs().sum(-1).max().item() / 2


# --- comparisons --------------------------------------------------------------------------------


def test_sampled_pairs_follow_the_enumerated_law():
    policy, prompts = free_logits(), torch.tensor([[0], [1]])
    law = all_comparisons(policy, prompts, listed_points, scale=0.7)
    drawn = sample_comparisons(policy, prompts, listed_points, pairs=40_000, scale=0.7, seed=1)
    assert 1 - law.weight.sum() == pytest.approx(1 - len(drawn.chosen) / 40_000, abs=0.01)

    def cell(c):
        return c.prompts[:, 0] * 25 + c.chosen[:, 0] * 5 + c.rejected[:, 0]

    expected = torch.zeros(50, dtype=torch.float64).index_add(0, cell(law), law.weight)
    counted = torch.bincount(cell(drawn), minlength=50) / 40_000
    error = (expected * (1 - expected) / 40_000).sqrt()
    assert (expected > 0).sum() == 40
    assert ((counted - expected).abs() <= 4.5 * error).all()


def test_the_same_seed_draws_the_same_pairs():
    policy = random_policy(SOME)
    one, two, other = (
        sample_comparisons(policy, SOME, TASK.reward, pairs=50, seed=seed) for seed in (3, 3, 4)
    )
    assert torch.equal(one.chosen, two.chosen)
    assert torch.equal(one.rejected, two.rejected)
    assert one.chosen.shape != other.chosen.shape or not torch.equal(one.chosen, other.chosen)


def test_equal_texts_make_no_pair():
    policy = tabular_policy(torch.tensor([[2.0, 0.0]]))
    drawn = sample_comparisons(policy, PROMPT, listed_points, pairs=100, seed=0)
    assert 0 < len(drawn.chosen) < 60
    assert (drawn.chosen != drawn.rejected).any(-1).all()
    certain = tabular_policy(torch.tensor([[200.0, 0.0]]))
    with pytest.raises(RuntimeError, match="same response twice"):
        sample_comparisons(certain, PROMPT, listed_points, pairs=5, seed=0)


def test_scale_from_coin_to_certainty():
    gap = torch.tensor([-2.0, 0.0, 0.1])
    assert win_probability(gap, 0).tolist() == [0.5, 0.5, 0.5]
    assert win_probability(gap, math.inf).tolist() == [0.0, 0.5, 1.0]
    assert win_probability(gap)[0] == pytest.approx(1 / (1 + math.exp(2)))
    certain = all_comparisons(free_logits(), PROMPT, listed_points, scale=math.inf)
    assert len(certain.chosen) == 10  # each pair once, the better first
    assert ranking_accuracy(listed_points, certain) == 1


def ranked_four():
    responses = torch.tensor([[0], [1], [2], [3]])
    return PROMPT[None], responses, torch.tensor([[0.0, 1.0, 2.0, 3.0]])


def keeps_the_middle(pairs: Comparisons) -> bool:
    """Whether a table fitted to the pairs knows the order of all four."""
    model = TableReward(PROMPT[None], 4, 1)
    fit_reward_model(model, pairs, steps=60, learning_rate=0.1, weight_decay=1e-3)
    return bool((model(PROMPT, torch.tensor([[0], [1], [2], [3]])).diff() > 0.1).all())


def test_a_ranking_gives_all_its_pairs():
    prompts, responses, scores = ranked_four()
    pairs = from_ranking(prompts, responses, scores)
    assert len(pairs.chosen) == 6 == math.comb(4, 2)
    assert (pairs.chosen > pairs.rejected).all()
    assert keeps_the_middle(pairs)
    best_against_worst = written_pairs(PROMPT, [([3], [0])])  # the bug
    assert not keeps_the_middle(best_against_worst)
    tied = from_ranking(prompts, responses, torch.tensor([[0.0, 1.0, 1.0, 3.0]]))
    assert len(tied.chosen) == 5
    twice = from_ranking(prompts, torch.tensor([[0], [0], [2], [3]]), scores)
    assert len(twice.chosen) == 5


def test_rankings_of_several_prompts_stay_with_their_prompt():
    responses = random_policy(SOME).sample(SOME, 4, seed=0)
    scores = position_match_reward(SOME[:, None], responses.unflatten(0, (-1, 4)))
    pairs = from_ranking(SOME, responses, scores)
    assert ranking_accuracy(position_match_reward, pairs) == 1
    assert len(pairs.chosen) > 12


# --- reward models ------------------------------------------------------------------------------


def test_a_table_recovers_the_true_differences_exactly():
    policy = random_policy(SOME[:2])
    law = all_comparisons(policy, SOME[:2], position_match_reward)
    model = TableReward(SOME[:2], 3, 3)
    losses = fit_reward_model(model, law, steps=300, learning_rate=0.1)
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6)
    assert losses[-1] < losses[0] - 0.1
    error = all_rewards(policy, SOME[:2], model) - all_rewards(
        policy, SOME[:2], position_match_reward
    )
    assert (error - error.mean(1, keepdim=True)).abs().max() < 1e-3
    assert not any(p.requires_grad for p in model.parameters())
    swapped = law._replace(chosen=law.rejected, rejected=law.chosen)  # the bug
    fit_reward_model(model, swapped, steps=300, learning_rate=0.1)
    assert ranking_accuracy(model, law) < 0.5 < ranking_accuracy(position_match_reward, law)


def test_a_margin_moves_the_reward_apart():
    pairs = written_pairs(PROMPT, [([0], [1])] * 3 + [([1], [0])])  # wins 3 of 4
    gaps = []
    for margin in (0.0, 0.5):
        model = TableReward(PROMPT[None], 2, 1)
        fit_reward_model(model, pairs, steps=300, learning_rate=0.05, margin=margin)
        gaps.append((model.table[0, 0] - model.table[0, 1]).item())
    assert gaps[0] == pytest.approx(math.log(3), abs=1e-3)
    best = min(
        torch.linspace(-2, 4, 60_001, dtype=torch.float64),
        key=lambda g: 3 * math.log1p(math.exp(0.5 - g)) + math.log1p(math.exp(0.5 + g)),
    )
    assert gaps[1] == pytest.approx(best.item(), abs=2e-3)


@pytest.mark.parametrize("seed", range(3))
def test_shared_features_judge_prompts_they_never_saw(seed):
    prompts = TASK.all_prompts()[torch.randperm(27, generator=dice(seed))]
    policy = random_policy(prompts, spread=0.0)
    pairs = sample_comparisons(
        policy, prompts[:18], position_match_reward, pairs=600, scale=2.0, seed=seed
    )
    unseen = all_comparisons(policy, prompts[18:], position_match_reward, scale=math.inf)
    model = FeatureReward(3, 3, seed=seed)
    settings = {"steps": 150, "learning_rate": 0.03, "weight_decay": 1e-3}
    fit_reward_model(model, pairs, **settings)
    best = ranking_accuracy(position_match_reward, unseen)
    assert 0.74 < ranking_accuracy(model, unseen) < best + 1e-6  # best: .84, equals toss a coin
    moved = pairs._replace(prompts=pairs.prompts.roll(1, 0))  # the bug: prompts lose their pairs
    fit_reward_model(blind := FeatureReward(3, 3, seed=seed), moved, **settings)
    assert ranking_accuracy(blind, unseen) < 0.7


def test_a_table_knows_nothing_of_what_it_never_saw():
    model = TableReward(SOME[:2], 3, 3)
    with pytest.raises(ValueError, match="no table for prompt"):
        model(SOME[2:3], torch.zeros(1, 3, dtype=torch.long))
    assert model(SOME[:2, None], responses_of(TabularPolicy(3, 3))).shape == (2, 27)


def test_a_fitted_model_broadcasts_like_a_reward():
    model = FeatureReward(3, 3)
    with torch.no_grad():
        model.decode.normal_(generator=dice())
        model.follow.normal_(generator=dice())
    every = responses_of(TabularPolicy(3, 3))
    table = model(SOME[:, None], every)
    assert table.shape == (4, 27)
    single = torch.stack([torch.stack([model(x, y) for y in every]) for x in SOME])
    assert torch.allclose(table, single, atol=1e-5)


# --- exact optima -------------------------------------------------------------------------------


def dpo_error(comparisons, reference, prompts, reward, *, scale=1.0, beta=0.7) -> float:
    policy = copy.deepcopy(reference)
    learn_from_pairs(
        policy,
        policy,
        comparisons,
        partial(dpo, beta=beta),
        steps=300,
        learning_rate=0.05,
        record_every=300,
    )
    wanted = gibbs_distribution(reference, prompts, lambda x, y: scale * reward(x, y), beta)
    return distance(policy, prompts, wanted)


def test_dpo_ends_at_the_gibbs_policy_and_its_bugs_do_not():
    reference, prompts = random_policy(SOME[:2]), SOME[:2]
    law = all_comparisons(reference, prompts, position_match_reward, scale=0.8)
    check = partial(dpo_error, reference=reference, prompts=prompts, scale=0.8)
    check = partial(check, reward=position_match_reward)
    assert check(law) < 1e-4
    assert check(law._replace(chosen=law.rejected, rejected=law.chosen)) > 0.3
    assert check(law._replace(prompts=law.prompts.flip(0))) > 0.05


def test_sums_over_tokens_reach_the_optimum_means_do_not(monkeypatch):
    prompts = torch.tensor([[1, 0], [0, 1]])
    reference = random_policy(prompts, vocab_size=3, length=3, eos_id=2)
    reward = partial(sort_then_end_reward, eos_id=2)
    law = all_comparisons(reference, prompts, reward)
    assert dpo_error(law, reference, prompts, reward) < 1e-4

    def mean_over_tokens(policy, prompts, responses):  # the bug
        return policy.log_probs(prompts, responses).sum(-1) / policy.mask(responses).sum(-1)

    monkeypatch.setattr(preferences, "_whole", mean_over_tokens)
    assert dpo_error(law, reference, prompts, reward) > 0.05


def test_a_reference_that_follows_the_policy_stops_it():
    start = free_logits()
    law = all_comparisons(start, PROMPT, listed_points)
    ends = []
    for reference in ("itself", "a copy"):
        policy = copy.deepcopy(start)
        other = policy if reference == "itself" else copy.deepcopy(start)
        learn_from_pairs(policy, other, law, partial(dpo, beta=0.5), steps=20, learning_rate=0.1)
        ends.append(policy.table.detach())
    assert torch.equal(*ends)
    assert (ends[0] - start.table).abs().max() > 0.5

    def attached(chosen, rejected, chosen_ref, rejected_ref):  # the bug: no frozen copy
        return -torch.nn.functional.logsigmoid(chosen - chosen - rejected + rejected)

    policy = copy.deepcopy(start)
    learn_from_pairs(policy, policy, law, attached, steps=20, learning_rate=0.1, optimizer=SGD)
    assert torch.equal(policy.table, start.table)


@pytest.mark.parametrize("scale", [1.0, math.inf])
def test_ipo_ends_at_the_closed_form_of_win_rates(scale):
    reference, tau = free_logits(), 0.5
    law = all_comparisons(reference, PROMPT, listed_points, scale=scale)
    policy = copy.deepcopy(reference)
    learn = partial(learn_from_pairs, policy, reference, law, partial(ipo, tau=tau))
    learn(steps=500, learning_rate=0.05, record_every=500)
    rates = win_rates(reference, PROMPT, listed_points, scale=scale)
    with torch.no_grad():
        logp = response_log_probs(reference, PROMPT)
    assert (logp.exp() * rates).sum() == pytest.approx(0.5)
    assert distance(policy, PROMPT, torch.softmax(logp + rates / tau, -1)) < 1e-4
    assert (
        distance(policy, PROMPT, gibbs_distribution(reference, PROMPT, listed_points, tau)) > 0.02
    )


def test_certain_pairs_dpo_runs_away_ipo_stops():
    pair = written_pairs(PROMPT, [([0], [1])])
    margins = {}
    for name, loss in {"dpo": partial(dpo, beta=0.5), "ipo": partial(ipo, tau=0.25)}.items():
        policy = free_logits(3)
        history = learn_from_pairs(
            policy, policy, pair, loss, steps=600, learning_rate=0.05, record_every=200
        )
        margins[name] = history["margin"]
    assert margins["ipo"][-1] == pytest.approx(1 / (2 * 0.25), abs=1e-3)
    early, late = margins["dpo"][1], margins["dpo"][-1]
    assert late > early + 1
    assert late > 8


def test_smoothing_ends_at_its_own_odds():
    pair = written_pairs(PROMPT, [([0], [1])])
    policy = free_logits(3)
    loss = partial(dpo, beta=0.5, label_smoothing=0.1)
    settings = {"steps": 300, "learning_rate": 5.0, "optimizer": SGD, "record_every": 300}
    history = learn_from_pairs(policy, policy, pair, loss, **settings)
    assert 0.5 * history.final.margin == pytest.approx(math.log(0.9 / 0.1), abs=1e-4)


def test_the_expected_push_is_the_prediction_error():
    """[PREF-11]: beta E[(P - sigmoid(h)) (u_y - u_y')] over pairs of the author."""
    author, reference, policy = (free_logits(seed=seed) for seed in range(3))
    law, beta = all_comparisons(author, PROMPT, listed_points), 0.7
    (now, other), ref = law.log_probs(policy), law.log_probs(reference)
    loss = (law.weight * dpo(now, other, *ref, beta=beta)).sum()
    (found,) = torch.autograd.grad(-loss, policy.table)
    with torch.no_grad():
        mu, log_pi, log_ref = (
            response_log_probs(p, PROMPT)[0] for p in (author, policy, reference)
        )
        h = beta * (log_pi - log_ref)
        error = (POINTS[:, None] - POINTS).sigmoid() - (h[:, None] - h).sigmoid()
        pushes = torch.eye(5) - log_pi.exp()  # scores of free logits, (response, logit)
        weight = mu.exp()[:, None] * mu.exp() * error
        wanted = beta * (weight.sum(1) - weight.sum(0)) @ pushes
    assert torch.allclose(found.flatten(), wanted, atol=1e-9)
    assert wanted.abs().max() > 0.01


# --- where the probability goes -----------------------------------------------------------------


def test_a_single_pair_on_free_logits_parts_for_good():
    policy = free_logits(4)
    history = learn_from_pairs(
        policy,
        policy,
        written_pairs(PROMPT, [([0], [1])]),
        partial(dpo, beta=0.5),
        steps=100,
        learning_rate=0.5,
        optimizer=SGD,
    )
    chosen, rejected = torch.tensor(history["chosen"]), torch.tensor(history["rejected"])
    assert (chosen.diff() > 0).all()
    assert (rejected.diff() < 0).all()


def test_overlapping_pairs_lower_a_response_that_won():
    policy = TabularPolicy(4, 1).double()
    pairs = written_pairs(PROMPT, [([0], [1]), ([2], [0])])  # a beats b, c beats a
    loss = partial(dpo, beta=0.5)
    learn_from_pairs(policy, policy, pairs, loss, steps=200, learning_rate=1.0, optimizer=SGD)
    a, b, c, d = response_log_probs(policy, PROMPT)[0].exp().tolist()
    assert (a, d) == (pytest.approx(0.0019, abs=5e-5), pytest.approx(a))
    assert b == pytest.approx(0.000004, abs=5e-7)
    assert c == pytest.approx(0.996, abs=5e-4)


def test_shared_weights_lower_both_and_raise_what_nobody_compared():
    policy = TiedPolicy(3, 3).double()
    history = learn_from_pairs(
        policy,
        policy,
        written_pairs(PROMPT, [([0, 0, 1], [0, 0, 0])]),  # aab beats aaa
        partial(dpo, beta=0.5),
        steps=200,
        learning_rate=1.0,
        optimizer=SGD,
    )
    assert history["chosen"][1] < history["chosen"][0]
    assert history["rejected"][1] < history["rejected"][0]
    assert math.exp(history.final.chosen) < 1e-3 < math.exp(history["chosen"][0])
    assert history.final.margin > 9
    assert history.final.accuracy == 1
    bbb = policy.log_probs(PROMPT[None], torch.tensor([[1, 1, 1]])).sum().exp()
    assert bbb.item() == pytest.approx(0.97, abs=0.005)


def test_the_implicit_reward_ranks_at_a_prompt_not_across_prompts():
    prompts, beta, reward = SOME[:2], 0.5, position_match_reward
    reference = random_policy(prompts)
    rows = reference.state_ids(right := prompts[:1].sort(-1).values)[0]
    with torch.no_grad():
        reference.table[0, rows, right[0]] += 2.0  # it knows the first prompt's answer
    policy = copy.deepcopy(reference)
    law = all_comparisons(reference, prompts, reward)
    loss = partial(dpo, beta=beta)
    settings = {"steps": 400, "learning_rate": 0.05, "record_every": 400}
    learn_from_pairs(policy, reference, law, loss, **settings)
    implied = all_rewards(policy, prompts, implicit_reward(policy, reference, beta=beta))
    true = all_rewards(policy, prompts, reward)
    with torch.no_grad():
        log_z = torch.logsumexp(response_log_probs(reference, prompts) + true / beta, 1)
    assert torch.allclose(implied, true - beta * log_z[:, None], atol=1e-3)
    for row, points in zip(implied, true, strict=True):
        gap = (points[:, None] - points) > 0
        assert (row[:, None] > row)[gap].all()  # every pair at one prompt, in the right order
    best_here, good_there = implied[0][true[0] == 3], implied[1][true[1] == 2]
    assert (best_here < good_there).all()  # 3 points here below 2 points there


# --- KTO ----------------------------------------------------------------------------------------


def test_mismatched_responses_come_from_other_prompts():
    answers = SOME.sort(-1).values[:, None] + 10 * torch.arange(4)[:, None, None]  # tell the prompt
    for count in (2, 3, 4):
        rows = torch.arange(4)[:count].repeat(4)[torch.randperm(4 * count, generator=dice())]
        labels = mark(SOME[rows], answers[rows, 0], torch.ones(len(rows)))
        assert (labels.other[:, 0] // 10 != rows).all()
        assert torch.equal(labels.other.sort(0).values, labels.responses.sort(0).values)


def test_shifting_log_probabilities_instead_of_responses_is_no_mismatch():
    start, moved = random_policy(SOME), random_policy(SOME, spread=2.0, seed=1)
    labels = sample_comparisons(start, SOME, position_match_reward, pairs=60, seed=0).labels()
    (own, other), (own_ref, other_ref) = labels.log_probs(moved), labels.log_probs(start)
    plain = (own - own_ref).mean()
    no_op = (own.roll(1) - own_ref.roll(1)).mean()  # the bug
    assert torch.isclose(no_op, plain)
    assert abs((other - other_ref).mean() - plain) > 0.1


@pytest.mark.parametrize("seed", range(3))
def test_kto_learns_from_marks(seed):
    policy = random_policy(SOME, seed=seed)
    pairs = sample_comparisons(policy, SOME, position_match_reward, pairs=300, seed=seed)
    history = learn_from_pairs(
        policy,
        policy,
        pairs.labels(),
        partial(kto, beta=0.3),
        steps=40,
        learning_rate=0.1,
        reward=position_match_reward,
        record_every=40,
    )
    assert history.final.objective > history["objective"][0] + 0.35
    assert history.final.margin > 1
    assert math.isnan(history.final.accuracy)


def test_kto_ends_in_a_balance_among_what_is_mostly_good():
    """(2q - 1) sigmoid'(beta (l - z0)) / e^l is one number where q > 1/2; the rest vanish."""
    reference, beta = free_logits(), 0.5
    good, policy = torch.tensor([0.9, 0.7, 0.6, 0.4, 0.2]).double(), free_logits()
    log_ref = response_log_probs(reference, PROMPT)[0].detach()
    adam = torch.optim.Adam(policy.parameters(), lr=0.05)
    for _ in range(1500):
        now, ones = response_log_probs(policy, PROMPT)[0], torch.ones(5)
        zero = (now.exp() @ (now - log_ref)).detach().view(1)
        up, down = (kto(now, log_ref, k * ones, zero, 0 * zero, beta=beta) for k in (1, 0))
        loss = (log_ref.exp() * (good * up + (1 - good) * down)).sum()
        adam.zero_grad()
        loss.backward()
        adam.step()
    lift = (response_log_probs(policy, PROMPT)[0].detach() - log_ref).exp()
    value = torch.sigmoid(beta * (lift.log() - zero))
    balance = (2 * good - 1) * value * (1 - value) / lift
    assert lift[3:].max() < 0.01
    assert balance[:3].max() < 1.02 * balance[:3].min()
    assert lift[0] > lift[1] > lift[2] > 0.1
    assert lift[0] / lift[2] == pytest.approx(0.8 / 0.2, rel=0.25)  # about as 2q - 1


# --- loops --------------------------------------------------------------------------------------


def small_run(batch=None, seed=0, steps=30):
    policy = random_policy(SOME)
    pairs = sample_comparisons(policy, SOME, position_match_reward, pairs=200, scale=2.0, seed=seed)
    history = learn_from_pairs(
        policy,
        policy,
        pairs,
        partial(dpo, beta=0.3),
        steps=steps,
        learning_rate=0.1,
        batch=batch,
        reward=position_match_reward,
        seed=seed,
    )
    return policy, history


def test_records_are_exact_and_start_at_log_two():
    policy, history = small_run(batch=50)
    first, last = history.records[0], history.final
    assert [r.step for r in history.records] == list(range(31))
    assert first.loss == pytest.approx(math.log(2))
    assert first.margin == first.kl == 0
    assert first.accuracy == 0.5
    assert last.objective == pytest.approx(
        expected_reward(policy, SOME, position_match_reward).item()
    )
    assert last.kl == pytest.approx(exact_kl(policy, random_policy(SOME), SOME).item())
    with pytest.raises(KeyError, match="chosen, rejected"):
        history["reward"]


def test_dpo_learns_from_sampled_pairs_and_mixed_rows_do_not(monkeypatch):
    def gain(seed):
        history = small_run(batch=50, seed=seed)[1]
        return history.final.objective - history["objective"][0]

    assert min(gain(seed) for seed in range(3)) > 0.7
    assert torch.equal(small_run(batch=50)[0].table, small_run(batch=50)[0].table)

    def shuffles_prompts_alone(pairs, rows):  # the bug
        prompts = pairs.prompts[rows]
        prompts = prompts[torch.randperm(len(prompts), generator=dice())]
        return Comparisons(prompts, pairs.chosen[rows], pairs.rejected[rows])

    monkeypatch.setattr(Comparisons, "take", shuffles_prompts_alone)
    assert max(gain(seed) for seed in range(3)) < 0.7


def test_one_round_online_is_offline():
    start = random_policy(SOME)
    online, offline = copy.deepcopy(start), copy.deepcopy(start)
    settings = {"pairs": 40, "seed": 5, "scale": 3.0}
    history = online_dpo(
        online,
        SOME,
        position_match_reward,
        rounds=1,
        updates=6,
        learning_rate=0.1,
        beta=0.3,
        **settings,
    )
    pairs = sample_comparisons(start, SOME, position_match_reward, **settings)
    loss = partial(dpo, beta=0.3)
    learn_from_pairs(offline, offline, pairs, loss, steps=6, learning_rate=0.1)
    assert torch.equal(online.table, offline.table)
    assert [r.step for r in history.records] == [0, 6]


def test_new_pairs_reach_where_old_ones_cannot():
    ends = {}
    for name, options in {
        "offline": {"rounds": 1, "pairs": 480, "updates": 80, "batch": 24},
        "online": {"rounds": 20, "pairs": 24, "updates": 4, "batch": 12},
        "iterative": {"rounds": 20, "pairs": 24, "updates": 4, "batch": 12, "refresh": True},
    }.items():
        runs = []
        for seed in range(3):
            history = online_dpo(
                AutoregressivePolicy(3, 3, eos_id=None, prompts=SOME).double(),
                SOME,
                position_match_reward,
                learning_rate=0.1,
                beta=0.3,
                scale=2.0,
                record_every=20,
                seed=seed,
                **options,
            )
            runs.append(history.final)
        ends[name] = runs
    for name in ("online", "iterative"):
        assert (
            min(r.objective for r in ends[name]) > max(r.objective for r in ends["offline"]) + 0.1
        )
    assert min(r.kl for r in ends["iterative"]) > max(r.kl for r in ends["offline"]) + 0.5


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: sample_comparisons(p, SOME, TASK.reward, pairs=0, seed=0), ValueError, "pairs"),
        (
            lambda p: sample_comparisons(p, SOME, TASK.reward, pairs=5, scale=-1, seed=0),
            ValueError,
            "scale must be at least 0",
        ),
        (
            lambda p: sample_comparisons(p, SOME, lambda x, y: 1.0, pairs=5, seed=0),
            ValueError,
            "reward.*must return",
        ),
        (
            lambda p: from_ranking(SOME, p.sample(SOME, 2, seed=0), torch.zeros(4, 3)),
            ValueError,
            "scores must be",
        ),
        (
            lambda p: all_comparisons(p, SOME[:1], TASK.reward).labels(),
            ValueError,
            "without weights",
        ),
        (
            lambda p: mark(SOME, p.sample(SOME, 1, seed=0), torch.ones(5)),
            ValueError,
            "same number of rows",
        ),
        (
            lambda p: learn_from_pairs(
                p,
                p,
                sample_comparisons(p, SOME, TASK.reward, pairs=5, seed=0),
                partial(dpo, beta=1.0),
                steps=2,
                learning_rate=0.1,
                batch=0,
            ),
            ValueError,
            "batch",
        ),
        (
            lambda p: learn_from_pairs(
                p,
                p,
                sample_comparisons(p, SOME, TASK.reward, pairs=5, seed=0),
                lambda c, r, cr, rr: c / 0,
                steps=2,
                learning_rate=0.1,
            ),
            FloatingPointError,
            "lower learning_rate",
        ),
        (
            lambda p: learn_from_pairs(
                p,
                p,
                sample_comparisons(p, SOME, TASK.reward, pairs=5, seed=0),
                lambda *four: dpo(*four, beta=1.0).mean(),
                steps=2,
                learning_rate=0.1,
            ),
            ValueError,
            "one number per row",
        ),
        (
            lambda p: learn_from_pairs(p, p, SOME, dpo, steps=2, learning_rate=0.1),
            TypeError,
            "must be Comparisons or Labels",
        ),
    ],
)
def test_errors_name_what_was_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call(random_policy(SOME))


def test_labels_keep_their_marks_in_batches():
    pairs = sample_comparisons(random_policy(SOME), SOME, TASK.reward, pairs=20, seed=0)
    labels = pairs.labels()
    assert isinstance(labels, Labels)
    part = labels.take(torch.tensor([0, len(pairs.chosen)]))
    assert part.desirable.tolist() == [True, False]
    assert torch.equal(part.responses, torch.stack([pairs.chosen[0], pairs.rejected[0]]))


def test_mismatched_responses_where_prompts_have_unequal_rows():
    rows = torch.tensor([1, 0, 2, 0, 1, 0])
    answers = SOME[rows] + 10 * rows[:, None]
    labels = mark(SOME[rows], answers, torch.ones(6))
    assert (labels.other[:, 0] // 10 != rows).all()


def test_a_feature_reward_is_its_formula():
    model = FeatureReward(3, 4, hidden=5, seed=1).double()
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(generator=dice(2))
    x, y = [2, 0, 2, 2, 1], [1, 0, 0, 2]
    hidden = torch.tanh(model.encode[0] + model.encode[1] + 3 * model.encode[2] + model.bias)
    points = sum(hidden @ model.decode[:, t, token] for t, token in enumerate(y))
    points = points + model.follow[1, 0] + model.follow[0, 0] + model.follow[0, 2]
    assert torch.isclose(model(torch.tensor(x), torch.tensor(y)), points)


@pytest.mark.parametrize("make", [partial(TableReward, PROMPT[None]), FeatureReward])
def test_reward_models_refuse_responses_they_have_no_number_for(make):
    model = make(3, 3)
    for tokens in ([0, 0, 5], [0, 0, -1], [1], [1, 2, 0, 0]):
        with pytest.raises(ValueError, match=r"responses must be \(\.\.\., 3\) of tokens 0 \.\. 2"):
            model(PROMPT, torch.tensor(tokens))
    for size in ((0, 3), (3, 0), (3.0, 3)):
        with pytest.raises(ValueError, match="must be a whole number of at least 1"):
            make(*size)


def test_a_reward_that_is_no_number_decides_nothing():
    policy = random_policy(SOME)

    def nan(prompts, responses):
        return TASK.reward(prompts, responses) * math.nan

    pairs = sample_comparisons(policy, SOME, TASK.reward, pairs=5, seed=0)
    for call in (
        lambda: sample_comparisons(policy, SOME, nan, pairs=5, seed=0),
        lambda: all_comparisons(policy, SOME, nan),
        lambda: win_rates(policy, SOME, nan, scale=math.inf),
        lambda: ranking_accuracy(nan, pairs),
        lambda: online_dpo(
            policy, SOME, nan, rounds=1, pairs=5, learning_rate=0.1, beta=1.0, true_reward=nan
        ),
        lambda: from_ranking(SOME, policy.sample(SOME, 2, seed=0), torch.full((4, 2), math.nan)),
    ):
        with pytest.raises(ValueError, match="nan"):
            call()


def test_pairs_that_cannot_be_averaged_are_refused():
    prompts, responses, scores = ranked_four()
    ties = from_ranking(prompts, responses, 0 * scores)
    pairs = from_ranking(prompts, responses, scores)
    fit = partial(fit_reward_model, steps=1, learning_rate=0.1)
    with pytest.raises(ValueError, match="no comparisons"):
        fit(TableReward(prompts, 4, 1), ties)
    for weight in (torch.zeros(6), -torch.ones(6), torch.ones(6, 1), torch.full((6,), math.nan)):
        with pytest.raises(ValueError, match=r"weight must be \(6,\), at least 0, and not all 0"):
            fit(TableReward(prompts, 4, 1), pairs._replace(weight=weight))
    for marks in (torch.tensor([1, -1, 1, -1]), torch.ones(4, 2), torch.full((4,), 0.5)):
        with pytest.raises(ValueError, match="desirable must be"):
            mark(prompts.expand(4, -1), responses, marks)


def test_a_last_step_into_nowhere_is_noticed():
    pair = written_pairs(PROMPT, [([0], [1])])
    with pytest.raises(FloatingPointError, match="update 1"):
        learn_from_pairs(
            policy := free_logits(3),
            policy,
            pair,
            partial(dpo, beta=1.0),
            steps=1,
            learning_rate=math.nan,
            optimizer=SGD,
        )


def test_a_reward_model_pays_for_its_weights_and_equal_rewards_count_one_half():
    pair = written_pairs(PROMPT, [([0], [1])])
    model = TableReward(PROMPT[None], 2, 1).double()
    assert ranking_accuracy(model, pair) == 0.5
    fit_reward_model(model, pair, steps=300, learning_rate=0.05, weight_decay=0.1)
    won, lost = model.table[0].tolist()
    assert won == pytest.approx(-lost)
    assert 0.1 * won == pytest.approx(1 / (1 + math.exp(won - lost)), abs=1e-4)  # stationary


def test_updates_are_single_steps_on_rows_that_stay_together():
    def apart(chosen, rejected, chosen_ref, rejected_ref):
        return rejected - chosen  # on free logits: the same gradient at every step

    policy, pair = TabularPolicy(3, 1).double(), written_pairs(PROMPT, [([0], [1])])
    settings = {"steps": 5, "learning_rate": 0.1, "optimizer": SGD, "record_every": 2}
    history = learn_from_pairs(policy, policy, pair, apart, **settings)
    assert [r.step for r in history.records] == [0, 2, 4, 5]
    assert history["margin"] == pytest.approx([0.0, 0.4, 0.8, 1.0])

    def at_the_reference(chosen, rejected, chosen_ref, rejected_ref):
        assert torch.equal(chosen, chosen_ref)
        assert torch.equal(rejected, rejected_ref)
        return dpo(chosen, rejected, chosen_ref, rejected_ref, beta=1.0)

    policy = random_policy(SOME)
    pairs = sample_comparisons(policy, SOME, TASK.reward, pairs=30, seed=0)
    settings = {"steps": 3, "learning_rate": 0.0, "batch": 7}
    learn_from_pairs(policy, policy, pairs, at_the_reference, **settings)
    deal = preferences._deal(10, 4, dice())
    first, second = (torch.cat([next(deal) for _ in range(3)]) for _ in range(2))
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(10))
    assert not torch.equal(first, second)


def test_the_columns_of_marked_responses_are_means_of_their_kind():
    policy = free_logits(3)
    labels = mark(PROMPT.expand(3, 1), torch.tensor([[0], [1], [2]]), torch.tensor([1, 0, 0]))
    before = response_log_probs(policy, PROMPT)[0].tolist()
    loss = partial(kto, beta=0.5)
    history = learn_from_pairs(policy, policy, labels, loss, steps=3, learning_rate=0.1)
    after = response_log_probs(policy, PROMPT)[0].tolist()
    gains = [b - a for a, b in zip(before, after, strict=True)]
    assert history.final.chosen == pytest.approx(after[0])
    assert history.final.rejected == pytest.approx((after[1] + after[2]) / 2)
    assert history.final.margin == pytest.approx(gains[0] - (gains[1] + gains[2]) / 2)


@pytest.mark.parametrize("refresh", [False, True])
def test_every_knob_of_online_dpo_is_used(monkeypatch, refresh):
    rows = []

    def counted(*four, beta):
        rows.append((len(four[0]), beta, bool(torch.equal(four[0], four[2]))))
        return dpo(*four, beta=beta)

    def judge(prompts, responses):  # a judge who prefers what is wrong
        return -position_match_reward(prompts, responses)

    monkeypatch.setattr(preferences, "dpo", counted)
    policy, start = random_policy(SOME), random_policy(SOME)
    history = online_dpo(
        policy,
        SOME,
        judge,
        rounds=5,
        pairs=40,
        updates=2,
        batch=5,
        learning_rate=0.1,
        beta=0.7,
        scale=math.inf,
        refresh=refresh,
        true_reward=position_match_reward,
        record_every=2,
    )
    assert [r.step for r in history.records] == [0, 4, 8, 10]
    true = [expected_reward(p, SOME, position_match_reward).item() for p in (start, policy)]
    assert [history["objective"][0], history.final.objective] == pytest.approx(true)
    assert true[1] < true[0] - 0.1
    assert history.final.kl == pytest.approx(exact_kl(policy, start, SOME).item())
    assert (history["margin"][1] == 0) is refresh  # a round starts at its reference, or not
    assert {beta for _, beta, _ in rows} == {0.7}
    assert sum(count == 5 for count, _, _ in rows) == 10
