"""The best-of-N widget: facts it must show, against listing and closed forms; what it refuses."""

import itertools
import math

import pytest
import torch

from lectures.widgets import BestOfN
from lectures.widgets.best_of_n import END, PROMPT, kept, over_n, sampler
from toy_models import planning
from toy_models.exact import gibbs_distribution
from toy_models.sorting import sort_then_end_reward

close = pytest.approx
STATES = list(itertools.product((0, 1, 2.5, 4), ("points", "binary"), (1, 2, 7, 64)))


def by_level(law, paid):
    return [law[paid == level].sum().item() for level in paid.unique()]


@pytest.mark.parametrize(("skill", "reward", "n"), STATES)
def test_kept_by_the_reward_the_law_and_its_kl_are_the_library_s(skill, reward, n):
    probs, paid, _ = sampler(skill, reward, "rule")
    found = BestOfN(skill=skill, reward=reward, n=n).numbers
    law = planning.best_of_n_law(probs, paid, n)
    assert found["chosen"] == close(by_level(law, paid), abs=1e-12)
    assert found["kl"]["chosen"] == close(planning.best_of_n_kl(probs, paid, n).item(), abs=1e-12)
    assert found["kl"]["chosen"] <= found["kl"]["bound"] + 1e-12
    assert found["kl"]["chosen"] <= found["kl"]["top"] + 1e-12
    assert found["J"]["home"] - 1e-12 <= found["J"]["chosen"] <= found["J"]["same"] + 1e-9
    assert found["J"]["rule"] == close(found["J"]["chosen"])


def test_gibbs_is_that_of_the_toy():
    home = planning.sorting_tree(PROMPT, END, skill=1.0)

    def points(prompts, answers):
        return sort_then_end_reward(prompts, answers, eos_id=END)

    law = gibbs_distribution(home, PROMPT, points, 0.7)[0]
    paid = sampler(1.0, "points", "rule").reward
    assert BestOfN(skill=1, beta=0.7).numbers["gibbs"] == close(by_level(law, paid), abs=1e-12)


@pytest.mark.parametrize("n", [1, 3, 20])
def test_right_or_wrong_has_a_closed_form_and_is_itself_a_gibbs_distribution(n):
    found = BestOfN(reward="binary", n=n).numbers
    p = found["home"][1]
    assert p == close((math.e / (math.e + 3)) ** 4)
    assert found["chosen"][1] == close(1 - (1 - p) ** n)
    assert found["J"]["same"] == close(found["J"]["chosen"], abs=1e-9)
    assert found["kl"]["top"] == close(-math.log(p))


def test_a_judge_with_a_coin_by_listing_every_pair_of_draws():
    probs, paid, score = sampler(1.0, "points", "coin")
    draws = torch.cat([probs, probs]) / 2
    scores = torch.cat([score + 1, score - 1])
    wins = (scores[:, None] > scores).double() + 0.5 * (scores[:, None] == scores)
    law = 2 * (draws[:, None] * draws * wins).sum(1)
    found = BestOfN(judge="coin", error=1, n=2).numbers
    assert found["chosen"] == close(by_level(law[: len(paid)] + law[len(paid) :], paid), abs=1e-12)
    assert found["says"] == close((law @ scores).item())
    assert found["J"]["chosen"] < found["J"]["rule"] - 0.1  # a coin that is forgotten is noticed


@pytest.mark.parametrize("reward", ["points", "binary"])
@pytest.mark.parametrize("error", [0.5, 1, 3])
def test_noise_costs_draws_and_never_leads_astray(reward, error):
    noisy = torch.tensor(over_n(1.0, reward, "coin", error))[:, 1]
    clean = torch.tensor(over_n(1.0, reward, "rule", 0.0))[:, 1]
    assert (noisy.diff() > 0).all()
    assert (noisy[1:] < clean[1:]).all()
    assert BestOfN(reward=reward, judge="coin", error=error, n=64).numbers["says"] > noisy[-1]


def test_partial_credit_leads_astray():
    found = {n: BestOfN(reward="binary", judge="partial", n=n) for n in (1, 8, 10, 64)}
    right = {n: made.numbers["J"]["chosen"] for n, made in found.items()}
    assert right[64] < right[1] < right[8] < right[10]
    assert found[64].numbers["peak"] == 10
    rows = over_n(1.0, "binary", "partial", 0.0)
    assert max((2**k for k in range(7)), key=lambda n: rows[n - 1][1]) == 8
    says = [made.numbers["says"] for made in found.values()]
    assert says == sorted(says)
    assert "Best was N = 10." in found[64].sentence
    assert "Best was" not in found[8].sentence


def test_the_quoted_formula_can_exceed_every_possible_kl():
    able = BestOfN(skill=3, n=16)
    assert able.numbers["kl"]["bound"] > 3 * able.numbers["kl"]["top"]
    assert "1.84, more than there can be: −log P(best score) = 0.557" in able.sentence
    assert "more than there can be" not in BestOfN().sentence


def test_the_sentence_of_best_of_four():
    made = BestOfN()
    assert "Best of 4: 2.73 points (one draw: 1.46 points), 0.602 nats" in made.sentence
    assert "2.79 points, so best of N has 95.4 % of its gain" in made.sentence
    assert BestOfN(n=1).sentence.startswith("One draw: 1.46 points. Nothing is chosen: KL 0.")


def test_a_law_sums_to_one_whatever_the_judge():
    for judge in ("rule", "coin", "partial"):
        law, _ = kept(2.0, "points", judge, 1.5 if judge == "coin" else 0.0, 33)
        assert law.sum().item() == close(1)


def test_the_error_is_off_unless_the_judge_tosses_a_coin():
    assert BestOfN().off == BestOfN(judge="partial").off == {"error"}
    assert BestOfN(judge="coin").off == set()
    assert BestOfN(error=3).numbers == BestOfN(error=0.5).numbers


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n": 0}, "n is 0; it must lie between 1 and 64"),
        ({"n": 65}, "n is 65; it must lie between 1 and 64"),
        ({"n": 2.5}, "n is 2.5; expected a whole number"),
        ({"skill": -1}, "skill is -1; it must lie between 0 and 4"),
        ({"reward": "stars"}, "reward is 'stars'.*binary"),
        ({"judge": "letters"}, "judge is 'letters'.*partial"),
        ({"error": 0}, "error is 0; it must lie between 0.5 and 3"),
        ({"beta": 0}, "beta is 0; it must lie between 0.05 and 10"),
    ],
)
def test_bad_input_is_refused_and_changes_nothing(changes, message, refused):
    refused(BestOfN(), changes, message)
