"""Planning: against exact laws, against gymnasium, and against the mistakes people make."""

import inspect
import itertools
import math

import gymnasium
import pytest
import torch

from toy_models.exact import (
    all_rewards,
    exact_gradient,
    expected_reward,
    flat_gradient,
    random_logits,
    response_log_probs,
    responses_of,
    tabular_policy,
)
from toy_models.planning import (
    CategoricalPlan,
    GaussianPlan,
    Search,
    beam_search,
    best_of_n,
    best_of_n_bound,
    best_of_n_kl,
    best_of_n_law,
    conditional_law,
    cross_entropy_method,
    expert_iteration,
    gibbs_at_kl,
    keep_best,
    keep_right,
    pendulum,
    random_shooting,
    receding_horizon,
    rejection_sampling,
    sft_loss,
    sorting_tree,
    tree_search,
)
from toy_models.policies import AutoregressivePolicy, TabularPolicy
from toy_models.soft_control import soft_values
from toy_models.sorting import SortingTask, is_sorted, position_match_reward, sort_then_end_reward

TASK = SortingTask(3, 3)
PROMPT = torch.tensor([1, 0, 2])
SEEDS = range(5)


def right(prompts, responses):
    return is_sorted(prompts, responses, eos_id=3).double()


def points(prompts, responses):
    return sort_then_end_reward(prompts, responses, eos_id=3).double()


def exact_probs(policy, prompt=PROMPT):
    return response_log_probs(policy, prompt)[0].detach().exp()


# --- shooting and the cross-entropy method ------------------------------------------------------

LONG = torch.tensor([4, 1, 5, 0, 3, 2])  # one right response of 46,656


def long_score(responses):
    return position_match_reward(LONG, responses)


def uniform(floor: float = 0.0) -> CategoricalPlan:
    return CategoricalPlan(torch.full((6, 6), 1 / 6, dtype=torch.float64), floor=floor)


def test_random_shooting_reports_the_best_of_its_draws(planted):
    def honest(shoot) -> bool:
        found = shoot(long_score, uniform(), samples=100, elite=100, rounds=1, seed=0)
        return found.score == float(found.scores.max()) == float(long_score(found.best[None])[0])

    found = random_shooting(long_score, uniform(), 100, seed=0)
    assert honest(cross_entropy_method)
    assert found.score == 3
    assert found.scores.mean() < 1.2
    assert not honest(planted(cross_entropy_method, "float(top.values[0])", "float(scores.mean())"))


def test_cross_entropy_sorts_where_as_many_blind_draws_do_not():
    knobs = dict(samples=50, elite=10, rounds=8)
    found = [cross_entropy_method(long_score, uniform(), **knobs, seed=s) for s in SEEDS]
    assert [one.score for one in found] == [6.0] * 5
    assert all(one.scores[-1].mean() > one.scores[0].mean() + 3 for one in found)
    blind = [random_shooting(long_score, uniform(), 400, seed=s).score for s in SEEDS]
    assert max(blind) <= 5
    again = cross_entropy_method(long_score, uniform(), **knobs, seed=0)
    assert torch.equal(again.scores, found[0].scores)


def test_an_elite_from_the_wrong_end_is_caught(planted):
    wrong = planted(
        cross_entropy_method, "top = scores.topk(elite)", "top = scores.topk(elite, largest=False)"
    )
    found = [wrong(long_score, uniform(), samples=50, elite=10, rounds=8, seed=s) for s in SEEDS]
    assert all(one.scores[-1].mean() < one.scores[0].mean() for one in found)


def test_without_a_floor_a_small_elite_forgets_the_answer():
    def solved(floor: float) -> int:
        knobs = dict(samples=30, elite=3, rounds=10)
        runs = [
            cross_entropy_method(long_score, uniform(floor), **knobs, seed=s) for s in range(20)
        ]
        lost = [
            bool((run.plans[-1].probs.gather(1, LONG.sort().values[:, None]) == 0).any())
            for run in runs
        ]
        assert any(lost) is (floor == 0)
        return sum(run.score == 6 for run in runs)

    assert solved(0.0) <= 8  # 4 of 20
    assert solved(0.1) >= 18  # 20 of 20


def gradient_at_the_fit(fit, elite) -> float:
    """Largest entry of the gradient of KL(elite || p) at the fitted p; 0 at the minimum."""
    if elite.is_floating_point():
        fitted = fit(GaussianPlan(torch.zeros(elite.shape[1]), torch.ones(elite.shape[1])), elite)
        parameters = [fitted.mean.clone().requires_grad_(), fitted.std.log().requires_grad_()]
        p = torch.distributions.Normal(parameters[0], parameters[1].exp())
        loss = -p.log_prob(elite).sum(-1).mean()
    else:
        fitted = fit(CategoricalPlan(torch.full((elite.shape[1], 3), 1 / 3).double()), elite)
        parameters = [fitted.probs.log().requires_grad_()]
        logp = torch.log_softmax(parameters[0], -1)
        loss = -logp[torch.arange(elite.shape[1]), elite].sum(-1).mean()
    return max(float(g.abs().max()) for g in torch.autograd.grad(loss, parameters))


def test_the_refit_is_the_kl_projection_and_slips_in_it_are_caught():
    generator = torch.Generator().manual_seed(0)
    steps = torch.randn(8, 4, generator=generator, dtype=torch.float64) * 2 + 1
    tokens = torch.tensor([[0, 1], [0, 2], [1, 0], [2, 1], [0, 1]])
    assert gradient_at_the_fit(GaussianPlan.fit, steps) < 1e-12
    assert gradient_at_the_fit(CategoricalPlan.fit, tokens) < 1e-12
    for old, new in (("elite.mean(0)", "elite.sum(0)"), ("correction=0", "correction=1")):
        source = inspect.getsource(GaussianPlan)
        assert source.count(old) == 1
        scope = dict(vars(inspect.getmodule(GaussianPlan)))
        exec(source.replace(old, new), scope)
        assert gradient_at_the_fit(scope["GaussianPlan"].fit, steps) > 1e-2
    # and a numerical minimiser that knows nothing of the formula lands on the same plan
    logits = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    optimise = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimise.zero_grad()
        loss = -torch.log_softmax(logits, -1)[torch.arange(2), tokens].sum(-1).mean()
        loss.backward()
        return loss

    optimise.step(closure)
    fitted = CategoricalPlan(torch.full((2, 3), 1 / 3).double()).fit(tokens)
    assert torch.allclose(torch.softmax(logits, -1), fitted.probs, atol=1e-4)


def test_a_search_reports_every_round_as_it_was():
    """Rounds that get worse: the best is the best of all, and each plan is the elite's fit."""
    drawn = []

    def falling(candidates):
        drawn.append(candidates)
        return -(candidates - 3).square().sum(-1) - 100 * len(drawn)

    plan = GaussianPlan(torch.tensor([1.0, -1.0]), torch.tensor([3.0, 0.5]), floor=0.4)
    found = cross_entropy_method(falling, plan, samples=500, elite=9, rounds=3, seed=0)
    assert found.plans[0] is plan
    assert found.score == found.scores.max() == found.scores[0].max()
    assert torch.equal(found.best, drawn[0][found.scores[0].argmax()])
    for r in range(2):
        elite = drawn[r][found.scores[r].topk(9).indices]
        assert torch.equal(found.plans[r + 1].mean, elite.mean(0))
        assert found.plans[r + 1].std.min() >= 0.4
    assert torch.allclose(drawn[0].mean(0), plan.mean, atol=0.5)  # 3.7 standard errors
    assert torch.allclose(drawn[0].std(0), plan.std, rtol=0.15)


def test_a_floor_keeps_every_option_open():
    same = torch.full((5, 2), 2)
    assert GaussianPlan(torch.zeros(2), torch.ones(2), 0.3).fit(same.float()).std.tolist() == (
        pytest.approx([0.3, 0.3])
    )
    mixed = CategoricalPlan(torch.full((2, 4), 0.25), 0.2).fit(same).probs
    assert mixed.tolist() == [pytest.approx([0.05, 0.05, 0.85, 0.05])] * 2


# --- control ------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [{}, {"gravity": 7.0, "mass": 2.0, "length": 0.6}])
def test_the_model_is_gymnasium_s_pendulum(build):
    env = gymnasium.make("Pendulum-v1").unwrapped
    env.reset(seed=0)
    env.g, env.m, env.l = (
        build.get(k, v) for k, v in (("gravity", 10.0), ("mass", 1.0), ("length", 1.0))
    )
    generator, step = torch.Generator().manual_seed(0), pendulum(**build)
    for torque in (6 * torch.rand(200, generator=generator, dtype=torch.float64) - 3).tolist():
        state = torch.tensor(env.state)
        after, reward = step(state[None], torch.tensor([torque], dtype=torch.float64))
        _, paid, *_ = env.step([torque])
        assert after[0].tolist() == pytest.approx(env.state.tolist(), abs=1e-9)
        assert float(reward[0]) == pytest.approx(float(paid), abs=1e-9)


def drive(planner, seed, **knobs):
    hanging = torch.tensor([math.pi, 0.0], dtype=torch.float64)
    settings = dict(horizon=25, steps=100, std=1.0, warm=False) | knobs
    return receding_horizon(pendulum(), hanging, planner, seed=seed, **settings)


def shoot(score, plan, generator):
    return random_shooting(score, plan, 600, seed=generator)


def refine(score, plan, generator):
    return cross_entropy_method(score, plan, samples=200, elite=20, rounds=3, seed=generator)


def blind(score, plan, generator):
    return random_shooting(score, plan, 1, seed=generator)


def test_with_600_imagined_plans_a_step_the_pendulum_swings_up_and_refitting_helps():
    returns = {
        planner: torch.stack([drive(planner, seed).rewards.sum() for seed in range(3)])
        for planner in (blind, shoot, refine)
    }
    assert returns[blind].max() < -800
    assert returns[refine].mean() > -520  # -392, with a spread of 54 between seeds
    assert returns[refine].mean() > returns[shoot].mean() + 80  # -631 and 16
    assert returns[shoot].mean() > returns[blind].mean() + 80  # -905 and 27
    upright = drive(shoot, 0, warm=True).rewards[-10:]  # starting from the last plan: at the top
    assert upright.mean() > -0.1
    assert torch.equal(drive(blind, 3).states, drive(blind, 3).states)


def test_the_loop_plans_in_the_model_and_acts_in_the_world():
    """A planner that plans by rote, so that everything can be counted by hand."""
    asked = []

    def model(states, actions):
        return states + actions[:, None], actions * 10

    def world(states, actions):
        return states - actions[:, None], actions

    def rote(score, plan, generator):
        best = torch.tensor([1.0, 2.0, 4.0]) + len(asked)
        asked.append((plan, score(best[None]).item()))
        return Search(best, 0.0, None, ())

    knobs = dict(horizon=3, steps=3, std=2.0, seed=0, world=world)
    for warm in (True, False):
        asked.clear()
        run = receding_horizon(model, torch.tensor([5.0]), rote, warm=warm, **knobs)
        assert run.actions.tolist() == run.rewards.tolist() == [1, 2, 3]
        assert run.states[:, 0].tolist() == [5, 4, 2, -1]
        assert [imagined for _, imagined in asked] == [70, 100, 130]
        means = [plan.mean.tolist() for plan, _ in asked]
        assert means == ([[0, 0, 0], [2, 4, 0], [3, 5, 0]] if warm else [[0, 0, 0]] * 3)
        assert all(plan.std.tolist() == [2, 2, 2] and plan.floor == 0.2 for plan, _ in asked)


# --- best of n ----------------------------------------------------------------------------------


def base():
    return tabular_policy(random_logits(3, 3, scale=0.3, seed=0))


def base_scores():
    return all_rewards(base(), PROMPT, TASK.reward)[0]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_law_of_the_best_of_n_by_listing_every_draw(n):
    probs = torch.tensor([0.1, 0.3, 0.2, 0.15, 0.25], dtype=torch.float64)
    scores = torch.tensor([1.0, 0.0, 1.0, 2.0, 1.0], dtype=torch.float64)
    exact = torch.zeros(5, dtype=torch.float64)
    for draws in itertools.product(range(5), repeat=n):
        drawn = list(draws)
        tied = [d for d in drawn if scores[d] == scores[drawn].max()]
        for winner in tied:
            exact[winner] += probs[drawn].prod() / len(tied)
    assert torch.allclose(best_of_n_law(probs, scores, n), exact, atol=1e-14)


def test_the_law_is_exact_for_a_response_that_is_nearly_or_never_drawn():
    probs = torch.tensor([1 - 1e-14, 1e-14, 0.0], dtype=torch.float64)
    for never in (-1.0, 0.0, 1.0, 2.0):  # below, between, tied, above
        law = best_of_n_law(probs, torch.tensor([0.0, 1.0, never]).double(), 1000)
        assert law.tolist() == pytest.approx([1 - 1e-11, 1e-11, 0.0], rel=1e-9)
    scores = torch.tensor([1.0, 2.0, 3.0]).double()
    law, _ = gibbs_at_kl(torch.tensor([0.5, 0.5, 0.0]).double(), scores, 0.1)
    assert float((law[:2] * (2 * law[:2]).log()).sum()) == pytest.approx(0.1, abs=1e-9)


def sampled_error(law) -> float:
    """Largest error of the law against 20,000 sampled best-of-4, in standard errors."""
    policy, count = base(), 20_000
    won = best_of_n(policy, PROMPT.repeat(count, 1), TASK.reward, 4, seed=0)
    place = (won * torch.tensor([9, 3, 1])).sum(-1)
    share = torch.bincount(place, minlength=27).double() / count
    p = law(exact_probs(policy), base_scores(), 4)
    return float(((share - p).abs() / (p * (1 - p) / count).sqrt()).max())


def test_sampled_best_of_n_follows_the_law_and_a_law_that_ignores_ties_does_not():
    def without_ties(probs, scores, n):  # ranks tied responses by their place in the list
        order = scores.argsort(stable=True)
        up_to = probs[order].cumsum(0)
        return torch.empty_like(probs).index_copy(0, order, up_to**n - (up_to - probs[order]) ** n)

    law = without_ties(exact_probs(base()), base_scores(), 4)
    assert law.sum() == pytest.approx(1, abs=1e-9)  # a distribution, but not the right one
    assert sampled_error(best_of_n_law) < 4
    assert sampled_error(without_ties) > 20


def test_the_kl_of_best_of_n_never_exceeds_the_quoted_formula():
    generator = torch.Generator().manual_seed(0)
    for n in (2, 4, 16):
        for spread in (0.3, 3.0):
            logits = spread * torch.randn(500, 12, generator=generator, dtype=torch.float64)
            scores = torch.randint(6, (500, 12), generator=generator).double()
            kl = best_of_n_kl(torch.softmax(logits, -1), scores, n)
            assert kl.max() < best_of_n_bound(n) + 1e-12
            assert kl.min() < 0.9 * best_of_n_bound(n)  # and is often well below
    many = torch.full((3000,), 1 / 3000, dtype=torch.float64)  # no ties, little mass: equality
    assert float(best_of_n_kl(many, torch.arange(3000.0), 4)) == pytest.approx(
        best_of_n_bound(4), abs=2e-3
    )
    # a 0/1 score: the KL stops at -log P(right)
    coin = torch.tensor([0.9, 0.1], dtype=torch.float64)
    stuck = float(best_of_n_kl(coin, torch.tensor([0.0, 1.0]), 1000))
    assert stuck == pytest.approx(-math.log(0.1), abs=1e-9)
    assert best_of_n_bound(1000) > 2.5 * stuck


def test_gibbs_is_the_frontier_and_best_of_n_is_close_below_it():
    probs, scores = exact_probs(base()), base_scores()
    for n in (2, 4, 8, 16, 64):
        law, kl = best_of_n_law(probs, scores, n), float(best_of_n_kl(probs, scores, n))
        best, beta = gibbs_at_kl(probs, scores, kl)
        assert float((best * (best / probs).log()).sum()) == pytest.approx(kl, abs=1e-9)
        assert torch.allclose(best, torch.softmax(probs.log() + scores / beta, -1), atol=1e-9)
        gap = float(best @ scores - law @ scores)
        assert 0 < gap < 0.07  # of 5 points; the base policy has 3.37
    with pytest.raises(ValueError, match="kl must lie between 0 and"):
        gibbs_at_kl(probs, scores, 30.0)


def test_every_prompt_gets_the_best_of_its_own_responses():
    prompts = TASK.distinct_prompts()
    won = best_of_n(sorting_tree(prompts, 3, skill=5.0), prompts, points, 4, seed=0)
    assert (points(prompts, won) == 4).all()


# --- trees --------------------------------------------------------------------------------------


def hasty():
    return sorting_tree(TASK.distinct_prompts(), 3, skill=1.5, haste=1.2)


def is_exhaustive(search, policy) -> bool:
    """With room for every prefix, a beam lists every response in order of probability."""
    beam = search(policy, PROMPT, 500)
    logp = response_log_probs(policy, PROMPT)[0].detach().double().sort(descending=True).values
    return len(beam.log_probs) == len(logp) and torch.allclose(beam.log_probs, logp, atol=1e-12)


def fixed_length():
    policy = AutoregressivePolicy(3, 3, eos_id=None).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        policy.table.copy_(torch.randn(policy.table.shape, generator=generator))
    return policy


def test_a_beam_wide_enough_is_exhaustive_and_one_that_drops_the_ended_is_not(planted):
    forgetful = planted(
        beam_search,
        "responses = torch.cat([responses[ended], grown])",
        "responses, log_probs, ranks, ended = grown, log_probs[:0], ranks[:0], ended[:0]",
    )
    assert is_exhaustive(beam_search, hasty())
    assert is_exhaustive(beam_search, fixed_length())
    assert is_exhaustive(forgetful, fixed_length())  # nothing ends early there: no symptom
    assert not is_exhaustive(forgetful, hasty())


def test_a_wider_beam_finds_likelier_and_worse_text():
    greedy, wider = (beam_search(hasty(), PROMPT, width) for width in (1, 2))
    assert greedy.responses[0].tolist() == [0, 1, 2, 3]
    assert greedy.calls == 4
    assert wider.responses[0].tolist() == [3, 3, 3, 3]  # the empty response
    assert wider.log_probs[0] > greedy.log_probs[0] + 1
    assert float(points(PROMPT, greedy.responses[0])) == 4
    assert float(points(PROMPT, wider.responses[0])) == 0


def test_a_guide_of_exact_values_ranks_prefixes_by_the_mass_of_gibbs():
    policy_ref = sorting_tree(PROMPT[None], 3, skill=0.5, haste=1.2)
    tree = soft_values(policy_ref, PROMPT[None], points, beta=0.5)
    beam = beam_search(policy_ref, PROMPT, 1, guide=tree.q[0] / 0.5)
    assert beam.responses[0].tolist() == [0, 1, 2, 3]
    assert beam.calls == 4
    every = beam_search(policy_ref, PROMPT, 500, guide=tree.q[0] / 0.5)
    logp = response_log_probs(tree.policy, PROMPT)[0].detach().sort(descending=True).values
    assert torch.allclose(every.ranks, logp + tree.value[0, 0] / 0.5, atol=1e-9)


def test_tree_search_needs_a_tenth_of_the_calls_of_best_of_n(planted):
    policy = sorting_tree(TASK.distinct_prompts(), 3, skill=1.0, haste=1.2)
    probs, scores = exact_probs(policy), all_rewards(policy, PROMPT, points)[0]
    tokens = float(policy.mask(responses_of(policy)).sum(-1).double() @ probs)  # of one response
    goal = scores == 4
    assert float(probs[goal].sum()) == pytest.approx(0.0363, abs=1e-4)

    def found(search) -> tuple[int, float]:
        runs = [
            search(policy, PROMPT, points, simulations=16, exploration=2.0, seed=seed)
            for seed in range(10)
        ]
        return sum(run.score == 4 for run in runs), sum(run.calls for run in runs) / len(runs)

    solved, calls = found(tree_search)
    assert solved >= 9
    assert calls < 20
    as_many = int(calls / tokens)
    assert float(best_of_n_law(probs, scores, as_many)[goal].sum()) < 0.3
    assert float(best_of_n_law(probs, scores, 10 * as_many)[goal].sum()) < solved / 10
    inverted = planted(tree_search, "node.total[token] += score", "node.total[token] -= score")
    assert found(inverted)[0] <= 5


def test_tree_search_counts_every_call_and_repeats_itself():
    seen = []

    class Counted(AutoregressivePolicy):
        def logits(self, prompts, responses=None):
            seen.append(len(responses))
            return super().logits(prompts, responses)

    policy = Counted(4, 4, eos_id=3)
    one = tree_search(policy, PROMPT, points, simulations=20, seed=1)
    assert one.calls == sum(seen) == one.trace[-1][0]
    assert one.score == one.trace[-1][1] == float(points(PROMPT, one.best))
    seen.clear()
    assert beam_search(policy, PROMPT, 3).calls == sum(seen)
    assert tree_search(policy, PROMPT, points, simulations=20, seed=1).trace == one.trace


# --- rejection and expert iteration -------------------------------------------------------------


def partly_right(prompts, responses):
    """1 for any response that starts with the smallest number: 40 right responses, not one."""
    return (responses[..., 0] == prompts.min(-1).values).double()


def test_rejection_samples_the_conditional_law_at_one_over_p_tries():
    policy, count = hasty(), 4000
    law = conditional_law(policy, PROMPT, partly_right)[0]
    probs = exact_probs(policy)
    p = float(probs @ all_rewards(policy, PROMPT, partly_right)[0])
    taken = rejection_sampling(policy, PROMPT, partly_right, wanted=count, seed=0)
    same = (taken.responses[:, None] == responses_of(policy)).all(-1)  # (count, responses)
    share = same.double().mean(0)
    assert share[law == 0].sum() == 0
    tested = law * count > 20
    deviation = (share - law).abs() / (law * (1 - law) / count).sqrt()
    assert deviation[tested].max() < 4
    cost = math.sqrt(count * (1 - p)) / p
    assert abs(taken.tries - count / p) < 4 * cost
    graded = conditional_law(policy, PROMPT, lambda x, y: 2 * partly_right(x, y) * (1 + y[..., 1]))
    assert torch.allclose(graded[0], law, atol=1e-12)  # right or not is all that counts
    # it is Gibbs for a 0/1 reward with beta near 0
    cold = soft_values(policy, PROMPT[None], partly_right, beta=0.01).policy
    assert torch.allclose(response_log_probs(cold, PROMPT)[0].exp(), law, atol=1e-12)


def mean_tries(reject) -> float:
    return sum(reject(hasty(), PROMPT, right, wanted=1, seed=s).tries for s in range(300)) / 300


def test_the_tries_of_rejection_are_not_rounded_up_to_the_batch(planted):
    p = float(exact_probs(hasty()) @ all_rewards(hasty(), PROMPT, right)[0])
    error = math.sqrt(1 - p) / p / math.sqrt(300)
    assert abs(mean_tries(rejection_sampling) - 1 / p) < 4 * error
    whole = planted(
        rejection_sampling,
        "tries += last + 1 if len(kept) == wanted else len(drawn)",
        "tries += len(drawn)",
    )
    assert abs(mean_tries(whole) - 1 / p) > 20 * error


def sft_gradient_error(loss) -> float:
    """Distance of the exact gradient of imitation from -grad log P(right)."""
    policy = hasty()
    probs = response_log_probs(policy, PROMPT)[0].detach().exp()
    accepted = probs * all_rewards(policy, PROMPT, right)[0]  # each response, as often as it comes
    imitation = flat_gradient(loss(policy, PROMPT[None], responses_of(policy), accepted), policy)
    p = expected_reward(policy, PROMPT, right).detach()
    return float((imitation + exact_gradient(policy, PROMPT, right) / p).norm() / imitation.norm())


def test_one_step_of_imitating_the_accepted_is_reinforce_with_a_0_1_reward(planted):
    assert sft_gradient_error(sft_loss) < 1e-12
    mean_for_sum = planted(sft_loss, "responses).sum(-1)", "responses).mean(-1)")
    assert sft_gradient_error(mean_for_sum) > 0.1


def test_imitating_the_accepted_to_the_end_gives_the_conditional_law():
    policy = hasty()
    law = conditional_law(policy, PROMPT, partly_right)[0]
    optimise = torch.optim.LBFGS(policy.parameters(), max_iter=300, line_search_fn="strong_wolfe")

    def closure():
        optimise.zero_grad()
        loss = sft_loss(policy, PROMPT[None], responses_of(policy), law)
        loss.backward()
        return loss

    optimise.step(closure)
    assert torch.allclose(exact_probs(policy), law, atol=1e-3)
    # and a second round has nothing to add: the law is its own conditional
    assert torch.allclose(conditional_law(policy, PROMPT, partly_right)[0], law, atol=1e-3)


def outcomes(iterate, **knobs):
    runs = []
    for seed in range(3):
        policy = sorting_tree(TASK.distinct_prompts(), 3, skill=1.5, haste=1.2)
        settings = dict(rounds=8, group=8) | knobs
        runs.append(iterate(policy, TASK.distinct_prompts(), right, seed=seed, **settings))
    return runs


def test_expert_iteration_learns_to_sort_and_a_scrambled_batch_does_not(planted):
    runs = outcomes(expert_iteration)
    assert all(run[0].objective == pytest.approx(0.0983, abs=1e-4) for run in runs)
    assert all(run[-1].objective > 0.9 for run in runs)
    assert all([one.sampled for one in run] == list(range(0, 9 * 48, 48)) for run in runs)
    assert all(run[0].kept > 0 == run[-1].kept for run in runs)
    scrambled = planted(expert_iteration, "kept = kept.flatten()", "kept = kept.T.flatten()")
    assert all(run[-1].objective < 0.5 for run in outcomes(scrambled))
    assert outcomes(expert_iteration, rounds=2) == outcomes(expert_iteration, rounds=2)


def test_imitating_the_best_of_each_group_also_imitates_groups_that_are_all_wrong():
    best = outcomes(expert_iteration, keep=keep_best)
    assert all(run[0].kept == 6 for run in best)
    clean = outcomes(expert_iteration)
    assert sum(run[-1].objective for run in best) < sum(run[-1].objective for run in clean) - 0.3
    rewards = torch.tensor([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    assert keep_best(rewards).tolist() == [[False, True, False], [True, False, False]]
    assert keep_right(rewards).tolist() == [[False, True, True], [False, False, False]]


def test_scores_and_laws_that_would_give_nonsense_are_refused():
    policy, prompts = hasty(), TASK.distinct_prompts()
    half, two = torch.ones(2) / 2, torch.tensor([1.0, math.nan])

    def nan(x, y):
        return points(x, y) * math.nan

    def one_each(x, y):
        return torch.ones(len(y), 2)

    steps = torch.zeros(3)
    calls = {
        "reward.*must return": [
            lambda: best_of_n(policy, prompts, lambda x, y: torch.zeros(3), 3, seed=0),
            lambda: rejection_sampling(policy, PROMPT, one_each, wanted=2, seed=0),
            lambda: tree_search(policy, PROMPT, one_each, simulations=2, seed=0),
        ],
        "reward.*returned nan": [
            lambda: best_of_n(policy, prompts, nan, 3, seed=0),
            lambda: rejection_sampling(policy, PROMPT, nan, wanted=2, seed=0),
            lambda: tree_search(policy, PROMPT, nan, simulations=2, seed=0),
            lambda: expert_iteration(policy, prompts, nan, rounds=1, group=2, seed=0),
        ],
        "scores returned nan": [
            lambda: best_of_n_law(half, two, 2),
            lambda: gibbs_at_kl(half, two, 0.1),
        ],
        "probs must hold floats": [lambda: best_of_n_law(torch.tensor([1, 0]), two, 2)],
        "kl must lie between 0 and": [
            lambda: gibbs_at_kl(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([1.0, 2.0, 3.0]), 0.8)
        ],
        "guide holds nan": [
            lambda: beam_search(policy, PROMPT, 2, guide=torch.full((40, 4), math.nan))
        ],
        "weights must be finite": [
            lambda: sft_loss(policy, PROMPT[None], responses_of(policy), -torch.ones(121))
        ],
        "prompts must hold numbers 0 .. 2": [lambda: sorting_tree(prompts + 1, 3, skill=1.0)],
        "mass and length must be positive": [lambda: pendulum(length=0.0)],
        "state must be floats": [
            lambda: receding_horizon(
                pendulum(), steps[None, :2], shoot, horizon=2, steps=1, std=1.0, seed=0
            )
        ],
        "finite std": [
            lambda: random_shooting(long_score, GaussianPlan(steps, steps + math.inf), 5, seed=0)
        ],
        "GaussianPlan.floor must be": [
            lambda: random_shooting(long_score, GaussianPlan(steps, steps + 1, -1.0), 5, seed=0)
        ],
    }
    for message, refused in calls.items():
        for call in refused:
            with pytest.raises(ValueError, match=message):
                call()


# --- refusals -----------------------------------------------------------------------------------


def test_what_does_not_fit_is_named():
    policy, plan = hasty(), uniform()
    with pytest.raises(TypeError, match="plan must be a GaussianPlan or a CategoricalPlan"):
        random_shooting(long_score, torch.zeros(3), 5, seed=0)
    with pytest.raises(ValueError, match="elite must be at most samples=5, got 6"):
        cross_entropy_method(long_score, plan, samples=5, elite=6, rounds=1, seed=0)
    with pytest.raises(ValueError, match="rounds must be a positive whole number, got 0"):
        cross_entropy_method(long_score, plan, samples=5, elite=2, rounds=0, seed=0)
    with pytest.raises(ValueError, match=r"must return \(5,\), got \(5, 6\)"):
        random_shooting(lambda y: y.double(), plan, 5, seed=0)
    with pytest.raises(ValueError, match=r"score.* returned nan"):
        random_shooting(lambda y: long_score(y) * math.nan, plan, 5, seed=0)
    with pytest.raises(ValueError, match="std"):
        random_shooting(long_score, GaussianPlan(torch.zeros(2), torch.zeros(2)), 5, seed=0)
    with pytest.raises(ValueError, match=r"floor must lie in \[0, 1\), got 1"):
        random_shooting(long_score, plan._replace(floor=1), 5, seed=0)
    with pytest.raises(ValueError, match="n must be a positive whole number, got 0"):
        best_of_n_law(torch.ones(2) / 2, torch.ones(2), 0)
    with pytest.raises(ValueError, match="probs must be probabilities"):
        best_of_n_law(torch.ones(2), torch.ones(2), 2)
    with pytest.raises(ValueError, match="must have one shape"):
        best_of_n_law(torch.ones(2) / 2, torch.ones(3), 2)
    with pytest.raises(TypeError, match="policy must be an AutoregressivePolicy"):
        beam_search(TabularPolicy(3, 3), PROMPT, 2)
    with pytest.raises(ValueError, match="width must be a positive whole number"):
        beam_search(policy, PROMPT, 0)
    with pytest.raises(
        ValueError, match=r"guide must be \(states, vocab\) = \(40, 4\), got \(4,\)"
    ):
        beam_search(policy, PROMPT, 2, guide=torch.zeros(4))
    with pytest.raises(ValueError, match="n must be a positive whole number, got 0"):
        best_of_n_law(torch.ones(2) / 2, torch.arange(2.0), 0)
    with pytest.raises(ValueError, match=r"must both be \(responses,\)"):
        gibbs_at_kl(torch.ones(1, 2) / 2, torch.ones(1, 2), 0.1)
    with pytest.raises(ValueError, match="exploration must be finite"):
        tree_search(policy, PROMPT, points, simulations=3, seed=0, exploration=-1)
    with pytest.raises(RuntimeError, match="0 of 1 responses accepted"):
        rejection_sampling(policy, PROMPT, lambda x, y: 0 * right(x, y), wanted=1, seed=0)
    with pytest.raises(ValueError, match="prompt 0 has no right answer"):
        conditional_law(policy, PROMPT, lambda x, y: 0 * right(x, y))
    with pytest.raises(ValueError, match="no response was accepted"):
        sft_loss(policy, PROMPT[None], responses_of(policy), torch.zeros(121))
    with pytest.raises(ValueError, match="weights must be"):
        sft_loss(policy, PROMPT[None], responses_of(policy), torch.zeros(3))
    with pytest.raises(ValueError, match=r"keep\(rewards \(6, 8\)\) must return bools"):
        outcomes(expert_iteration, keep=lambda r: r)
