"""The widget gallery: complete, fresh, and its answers are the widgets' own numbers."""

import json
import math
import re
import shlex
from pathlib import Path

import pytest

from lectures import widgets as course_widgets
from lectures.widgets import (
    BaselineVariance,
    BestOfN,
    ClipRegion,
    Gae,
    GroupContrast,
    KLEstimators,
    LengthBias,
    PreferencePairs,
    StepInspector,
    base,
    clip_region,
    gae,
    step_view,
)
from lectures.widgets.step_inspector import REFERENCE
from llm_trainer.config import load

GALLERY = Path(__file__).parents[3] / "lectures" / "widget_gallery.ipynb"
WIDGETS = [getattr(course_widgets, name) for name in course_widgets.__all__]


@pytest.fixture
def cells(committed):
    committed(GALLERY)
    return {cell["id"]: cell for cell in json.loads(GALLERY.read_text("utf-8"))["cells"]}


def source(cell: dict) -> str:
    return "".join(cell["source"])


@pytest.mark.parametrize("widget", WIDGETS, ids=lambda w: w.name)
def test_each_widget_has_its_text_its_picture_and_a_cell_that_reads_it(widget, cells):
    own = widget.name.replace("_", "-")
    first = list(cells).index(f"{own}-text")
    assert list(cells)[first : first + 3] == [f"{own}-text", own, f"{own}-read"]
    assert "**Predict.**" in source(cells[f"{own}-text"])
    (shown,) = cells[own]["outputs"]
    (call,) = re.findall(rf"^\w+ = {widget.__name__}\((.*)\)$", source(cells[own]), re.MULTILINE)
    made = widget(
        **eval(f"dict({call})")
    )  # if the two differ: python -m lectures.execute widget --write
    assert "".join(shown["data"]["text/plain"]) == repr(made)
    kept = {"widget": widget.name, "state": json.loads(json.dumps(made.state))}
    assert shown["metadata"][base.METADATA_KEY] == kept
    (value,) = cells[f"{own}-read"]["outputs"]
    assert value["output_type"] == "execute_result"


def test_the_answers_are_the_widgets_numbers(cells):
    texts = {own: source(cell) for own, cell in cells.items()}

    expert = BaselineVariance(reward="binary", skill=4)
    assert BaselineVariance.presets["hits"][1].items() >= {"reward": "binary", "skill": 4}.items()
    (factor,) = re.findall(r"is ([\d.]+) times worse than nothing", expert.sentence)
    assert f"by a factor of {factor}" in texts["baseline-variance-text"]
    wrong = expert.numbers["levels"][0]
    shares = [
        round(100 * x) for x in (expert.numbers["pass_rate"], wrong["answers"], wrong["squares"])
    ]
    words = (
        "{} % of the answers are right, but their score vectors are so short that the {} % wrong "
    )
    assert (words + "ones hold {} % of").format(*shares) in texts["baseline-variance-text"]

    novice = BaselineVariance(reward="graded", skill=0)
    assert BaselineVariance.presets["novice"][1].items() >= {"reward": "graded", "skill": 0}.items()
    (better,) = re.findall(r"is ([\d.]+) times better than nothing", novice.sentence)
    found = novice.numbers
    assert f"leaves {better} times less variance" in texts["baseline-variance-text"]
    assert (
        f"$V={found['mean']:.2f}$ and $b^*={found['best']:.2f}$" in texts["baseline-variance-text"]
    )
    assert all(abs(row["answers"] - row["squares"]) < 0.02 for row in found["levels"])
    rewards = [row["reward"] for row in found["levels"]]
    words = f"earns {min(rewards):.0f} to {max(rewards):.0f} points"
    assert words in texts["baseline-variance-text"]
    assert f"pushed up by {found['mean']:.1f} on average" in texts["baseline-variance-text"]
    variance = BaselineVariance(reward="binary", skill=0).numbers["variance"]
    assert variance["mean"] / variance["best"] < 1.001
    words = f"helps by a factor of {variance['none'] / variance['mean']:.2f} only"
    assert words in texts["baseline-variance-text"]

    ppo, dapo = ClipRegion(method="ppo"), ClipRegion(method="dapo")
    assert f"falls from {ppo.dead} to {dapo.dead}" in texts["clip-region-text"]
    assert ppo.dead - dapo.dead == 9
    below = ppo.counts["negative"]["below"], dapo.counts["negative"]["below"]
    assert below == (27, 27)
    assert "(27 tokens under both)" in texts["clip-region-text"]
    assert ppo.counts == ClipRegion(method="grpo").counts
    assert f"Keeps {round(100 * ppo.kept)} %" in texts["clip-region-text"]
    assert (len(ppo.tokens), len({row[2] for row in ppo.tokens})) == (256, 32)
    for method in ClipRegion().options("method").values():
        assert f"| {method} |" in texts["clip-region-text"]

    clip = ClipRegion(method="ppo")
    assert clip.weights([3.5], [-1.0]).tolist() == [-3.5]
    assert ClipRegion(method="dual_clip").weights([3.5], [-1.0]).tolist() == [0.0]
    assert ClipRegion(method="dual_clip").dual_clip == 3

    for distance in (0.5, 1, 3):
        for policy in ("independent", "tree"):
            loss = KLEstimators(policy=policy, distance=distance, place="loss_token").numbers
            paid = KLEstimators(policy=policy, distance=distance, place="reward_to_go").numbers
            assert loss["along"][0] == pytest.approx(0, abs=1e-9)
            assert loss["across"][0] == pytest.approx(0, abs=1e-9)
            assert paid["gap"][0] == pytest.approx(0, abs=1e-9)

    assert KLEstimators(distance=0).numbers["slope"] == 0
    token = KLEstimators(policy="tree", distance=1, place="loss_token").numbers
    words = f"is {token['cosine'][1]:.3f} ($k_3$'s is {token['cosine'][2]:.3f}). Then"
    assert words in texts["kl-estimators-text"]
    whole = KLEstimators(policy="tree", distance=1, place="loss_response").numbers
    assert whole["gap"][1] == 0 == KLEstimators(place="loss_token").numbers["gap"][1]
    assert KLEstimators.presets["grpo"][1]["place"] == "loss_token"

    sixteen, thirty_two = (Gae(answers=n).numbers for n in (16, 32))
    noisy = sixteen["other"]
    words = f"is {noisy['best_error']:.4f}, and not updating at all has {sixteen['signal']:.4f}"
    assert words in texts["gae-text"]
    biases, variances = gae.curves(0, "noise", 0.5, 1.0).T
    enough = next(n for n in range(1, 33) if (biases + variances / n).min() < sixteen["signal"])
    words = f"with 32 answers ({thirty_two['other']['best_error']:.4f}; {enough} would do)"
    assert words in texts["gae-text"]
    assert thirty_two["other"]["best_error"] < sixteen["signal"] < noisy["best_error"]
    at_best = Gae(answers=16, lam=noisy["best"]).numbers["other"]
    assert at_best["bias"] < 0.05 * at_best["error"]

    for answers, ending in ((4, "for 4 answers"), (1024, "for 1,024.")):
        sentence = Gae(critic="noise", error=0.5, gamma=1, answers=answers).sentence
        best, perfect = re.search(r"best λ is ([\d.]+) .*critic ([\d.]+)", sentence).groups()
        assert f"{best} {ending}" in texts["gae-text"]
        assert float(perfect) == 0

    kept, new, same, flat = (
        GroupContrast(**changes).numbers
        for changes in (
            {"p": 0.01},
            {"p": 0.01, "silent": "new"},
            GroupContrast.presets["insist"][1],
            {"p": 0.01, "estimator": "rloo"},
        )
    )
    assert f"one, {kept['relative']:.2f} times, in both" in texts["group-contrast-text"]
    assert new["relative"] == kept["relative"]
    words = f"weighs {new['if_mixed']:.1f}, eighteen times"
    assert words in texts["group-contrast-text"]
    assert f"only {100 * (1 - new['zero']):.1f} % of the time" in texts["group-contrast-text"]
    assert f"weighs {same['relative']:.1f} times as much" in texts["group-contrast-text"]
    assert flat["curve"] == pytest.approx([1] * len(flat["curve"]))
    again = GroupContrast(p=0.01, estimator="rloo", silent="same").numbers
    assert again["relative"] > 10

    weights = LengthBias(lengths=[8, 12, 16, 60], advantages=[1, 1, 1, -1]).weights
    per_sequence = next(iter(weights.values()))
    assert per_sequence[0] / -per_sequence[3] == pytest.approx(60 / 8)
    assert "$60/8=7.5$" in texts["length-bias-text"]

    shorter = LengthBias(lengths=[8, 12, 16, 12], advantages=[1, 1, 1, -1]).weights
    a, b = (1000 * row["mean_per_token"][0] for row in (weights, shorter))
    assert f"from {a:.1f} to {b:.1f} (thousandths)" in texts["length-bias-text"]
    for name in ("mean_per_sequence", "mean_fixed_length"):
        assert shorter[name][0] == pytest.approx(weights[name][0])

    cut = {}
    for name in ("grpo", "gspo"):
        (row,) = [r for r in StepInspector().step["rows"] if r["key"] == name]
        cut[name] = sum(gate in "hld" for gate in row["gates"][-1])
    tokens = len(row["gates"][-1])
    words = f"leaves {cut['grpo']} of the {tokens} tokens without a push from their advantage"
    assert words in texts["step-inspector-text"]
    assert f"\n{cut['gspo']}, more than half." in texts["step-inspector-text"]
    assert cut["gspo"] > tokens / 2

    overlap, bounded, tight = (
        PreferencePairs(**PreferencePairs.presets[key][1] | changes).numbers
        for key, changes in (("overlap", {}), ("bounded", {}), ("bounded", {"strength": 0.1}))
    )
    text = texts["preference-pairs-text"]
    assert f"Both stand at {overlap['probs'][0]:.4f}." in text
    assert overlap["probs"][0] == pytest.approx(overlap["probs"][3])
    words = "from {:.2f} to {:.2f}, that of the rejected ones further, to {:.2f}, and the loss"
    values = (*overlap["chosen"], overlap["rejected"][1])
    assert words.format(*values).replace("-", "−") in text
    assert f"falls from {overlap['loss'][0]:.3f} to {overlap['loss'][1]:.4f} as" in text
    assert f"their start, at −{-bounded['chosen'][1]:.2f}." in text
    assert (bounded["end"], tight["end"]) == (1, 5)
    assert bounded["probs"][2] / bounded["probs"][0] == pytest.approx(math.e, abs=1e-3)
    assert f"the chosen answers at −{-tight['chosen'][1]:.2f}, below their start" in text

    one, eight, many = (
        BestOfN(**BestOfN.presets["flawed"][1] | {"n": n}).numbers for n in (1, 8, 64)
    )
    text = texts["best-of-n-text"]
    shares = [f"{100 * row['J']['chosen']:.1f} %" for row in (eight, many, one)]
    assert "{} of 8, and {} of 64: fewer than the {} of a single draw".format(*shares) in text
    assert f"risen from {one['says']:.2f} to {many['says']:.2f}" in text
    noisy = BestOfN(**BestOfN.presets["noisy"][1]).numbers
    words = f"has {noisy['J']['chosen']:.2f} points instead of {noisy['J']['rule']:.2f}, and was "
    assert f"{words}promised {noisy['says']:.2f}" in text


def test_the_own_run_is_one_that_can_be_trained(cells):
    """Its command names fields that exist, and the file is where the trainer writes it."""
    text = source(cells["step-inspector-text"])
    (command,) = re.findall(r"^python -m llm_trainer train --config (.*)$", text, re.MULTILINE)
    config, *changes = [word for word in shlex.split(command) if word != "--set"]
    run = load(GALLERY.parents[1] / config, changes)
    assert run.epochs > 1
    (step,) = run.record_steps
    assert step <= run.steps
    assert f'"../{run.output_dir}/steps/step_{step:04d}.json", compare="gspo"' in text
    assert callable(step_view.record_from_policies)
    assert "`record_from_policies` in `lectures.widgets.step_view`" in text


def test_gspo_silences_tokens_that_have_not_moved():
    (row,) = [r for r in StepInspector().step["rows"] if r["key"] == "gspo"]
    rows = clip_region.tokens_of(REFERENCE)
    silent = [gate in "hld" for gate in row["gates"][-1]]
    assert any(cut and abs(token[0] - 1) < 0.01 for token, cut in zip(rows, silent, strict=True))
