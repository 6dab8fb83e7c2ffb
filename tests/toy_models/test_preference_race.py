"""Equal budgets of judged responses: what is matched, and what the comparison then shows."""

import math

import pytest
import torch

from toy_models import preference_race
from toy_models.exact import exact_kl
from toy_models.preference_race import GROUP, METHODS, UPDATES, Setting, matched_budget
from toy_models.preferences import FeatureReward
from toy_models.race import TASKS

RATES = {"ppo": 0.1, "grpo": 0.1, "reward model": 0.1, "dpo": 0.4, "online dpo": 0.1}
RATES["iterative dpo"] = 0.1
SMALL = {"seeds": (0, 1), "steps": 2}


@pytest.fixture(scope="module")
def race():
    """Certain winners, so that the methods differ in where their pairs come from."""
    return matched_budget(methods=list(RATES)[:5], seeds=range(3), scale=math.inf, rates=RATES)


def test_every_method_is_judged_and_updated_equally_often(monkeypatch):
    judged, stepped = [], []
    task = TASKS["easy"]
    step = torch.optim.Adam.step

    def counting(prompts, responses, *, eos_id):
        points = task.reward(prompts, responses, eos_id=eos_id)
        if points.shape != (6, 364):  # not the exact J at the end of a run
            judged.append(points.numel())
        return points

    def counted_step(self, *args, **kwargs):
        stepped.append(len(self.param_groups[0]["params"]))
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.Adam, "step", counted_step)
    spied = type(task)(task.name, 3, 3, 5, counting, task.best)
    for name in METHODS:
        judged.clear()
        stepped.clear()
        result = matched_budget(spied, [name], rates={name: 0.1}, **SMALL)
        assert sum(judged) == 2 * 2 * 6 * GROUP == result.samples[name].sum()
        updates = sum(count == 1 for count in stepped)  # a policy has one parameter
        assert updates == 2 * 2 * UPDATES == result.updates[name].sum()


def test_points_beat_old_pairs_and_new_pairs_come_close(race):
    assert race.difference("grpo", "dpo").low > 0.5
    assert race.difference("online dpo", "dpo").low > 0.5
    assert race.interval("online dpo").mean > 3.2
    assert race.interval("ppo").mean > 3.2
    assert race.kl["dpo"].max() < min(race.kl[name].min() for name in ("grpo", "online dpo"))


def test_the_reward_model_makes_more_of_the_pairs_that_dpo_had(race):
    assert race.difference("reward model", "dpo").low > 0.2
    assert race.generated["reward model"] == 2 * race.generated["dpo"]


def test_a_rate_beyond_the_grid_does_not_save_offline_dpo(race):
    """DPO's .4 is the edge of the grid, so look behind it: four times as much gains little."""
    options = {"methods": ["dpo"], "seeds": range(3), "scale": math.inf}
    faster = matched_budget(rates={"dpo": 4 * RATES["dpo"]}, **options)
    assert faster.interval("dpo").mean < race.interval("dpo").mean + 0.3
    assert faster.scores["dpo"].max() < race.scores["online dpo"].min()


def test_uncertain_winners_cost_the_methods_that_only_see_winners(race):
    noisy = matched_budget(methods=["online dpo"], seeds=range(3), scale=0.5, rates=RATES)
    gap = race.scores["online dpo"] - noisy.scores["online dpo"]
    assert gap.min() > 0.3


def test_the_same_seeds_the_same_race():
    names = ("ppo", "reward model", "dpo", "iterative dpo")
    one, two = (matched_budget(methods=names, rates=RATES, **SMALL) for _ in range(2))
    for name in names:
        assert torch.equal(one.scores[name], two.scores[name])


def towards_the_answer(setting, policy):
    right = torch.full((6, 5), 3)
    right[:, :3] = setting.task.prompts.sort(-1).values
    push = torch.zeros_like(policy.table)
    rows = policy.state_ids(right)
    push[torch.arange(6)[:, None], rows, right] = 1.0
    return push


def test_the_rate_is_the_best_of_the_grid_on_other_seeds(monkeypatch):
    asked = []

    def remembers(policy, setting, rate, seed):
        asked.append((rate, seed))
        with torch.no_grad():
            policy.table += (rate == 0.2) * towards_the_answer(setting, policy)
        return 0

    monkeypatch.setattr(preference_race, "METHODS", {"mine": remembers})
    result = matched_budget(methods=["mine"], **SMALL)
    assert result.rates == {"mine": 0.2}
    task = TASKS["easy"]
    start, moved = task.policy(), task.policy()
    with torch.no_grad():
        moved.table += towards_the_answer(Setting(task, 2, 1.0, 0.1), moved)
    kl = exact_kl(moved, start, task.prompts).item()
    assert result.kl["mine"].tolist() == pytest.approx([kl, kl])
    assert asked[-2:] == [(0.2, 0), (0.2, 1)]
    assert {seed for _, seed in asked[:-2]} == {100, 101}


def test_every_method_gets_its_own_seed_rate_scale_and_beta(monkeypatch):
    calls = []

    def spied(name):
        function = getattr(preference_race, name)

        def spy(*args, **kwargs):
            calls.append((name, args, kwargs))
            return function(*args, **kwargs)

        return spy

    names = ("train", "sample_comparisons", "learn_from_pairs", "online_dpo", "FeatureReward")
    for name in names:
        monkeypatch.setattr(preference_race, name, spied(name))
    setting = Setting(TASKS["easy"], 1, 0.5, 0.3)
    used = {}
    for method, run in METHODS.items():
        calls.clear()
        run(setting.task.policy(), setting, 0.07, 11)
        used[method] = [name for name, _, _ in calls]
        for name, args, given in calls:
            assert given["seed"] == 11
            if name in ("train", "learn_from_pairs", "online_dpo"):
                assert given["learning_rate"] == 0.07
            if name in ("sample_comparisons", "online_dpo"):
                assert given["scale"] == 0.5
            if name == "learn_from_pairs":
                assert args[3].keywords == {"beta": 0.3}
            if name == "online_dpo":
                assert given["beta"] == 0.3
                assert given["refresh"] is (method == "iterative dpo")
            if name == "train":
                assert args[3] == ("ppo" if method == "ppo" else "grpo")
                assert (given["critic"] is None) is (method != "ppo")
                assert isinstance(args[2], FeatureReward) is (method == "reward model")
    assert used == {
        "ppo": ["train"],
        "grpo": ["train"],
        "reward model": ["sample_comparisons", "FeatureReward", "train"],
        "dpo": ["sample_comparisons", "learn_from_pairs"],
        "online dpo": ["online_dpo"],
        "iterative dpo": ["online_dpo"],
    }


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"seeds": [1]}, ValueError, "at least two seeds"),
        ({"seeds": [1, 1]}, ValueError, "every seed once"),
        ({"seeds": [100, 1]}, ValueError, "do not race"),
        ({"methods": ["sft"]}, KeyError, "no method 'sft'"),
        ({"rates": {"ppo": 0.1}}, KeyError, "none for 'grpo'"),
    ],
)
def test_errors_name_what_was_wrong(options, error, message):
    with pytest.raises(error, match=message):
        matched_budget(**({"steps": 1} | options))
