"""The clip region: its facts, its methods, and what it refuses.

Both languages on whole states are checked in test_every_widget.py; here the surrogates one by one.
"""

import itertools
import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from lectures.widgets import ClipRegion, base, clip_region, still
from lectures.widgets.clip_region import METHODS, default_tokens, tokens_of
from llm_trainer.record import load_record
from policy_gradients import surrogates
from policy_gradients.algorithms import ALGORITHMS

HERE = Path(__file__).parent
RECORD = HERE.parents[2] / "lectures/reference_runs/tiny_grpo_step_0050.json"


def dead(clip: ClipRegion, sign: int) -> int:
    ratios, advantages = clip._ratios(), clip._columns()[1]
    mine = np.sign(advantages) == sign
    return int((clip.weights(ratios, advantages)[mine] == 0).sum())


# --- the surrogates, one token at a time --------------------------------------------------------

EPSILONS = {"eps_low": 0.2, "eps_high": 0.28}
CALLS = [
    ("reinforce", surrogates.reinforce, {}),
    ("unclipped", surrogates.unclipped, {}),
    ("ppoClip", surrogates.ppo_clip, EPSILONS),
    ("ppoClip", surrogates.ppo_clip, {"eps_low": 0.01, "eps_high": 0.9, "dual_clip": 1.5}),
    ("ppoClip", surrogates.ppo_clip, {"eps_low": 0.2, "eps_high": 0.2, "dual_clip": 3.0}),
    ("gspo", surrogates.gspo, {"eps_low": 3e-4, "eps_high": 4e-4}),
    ("cispo", surrogates.cispo, {"eps_low": 1.0, "eps_high": 0.28}),
    ("cispo", surrogates.cispo, {"eps_low": 0.3, "eps_high": 0.1}),
    ("sapo", surrogates.sapo, {"tau_pos": 1.0, "tau_neg": 1.05}),
    ("sapo", surrogates.sapo, {"tau_pos": 4.0, "tau_neg": 0.5}),
]


def terms_and_weights() -> list[dict]:
    rows = []
    ratios = [0.05, 0.6, 0.93, 0.9996, 1.0, 1.00035, 1.15, 1.35, 1.7, 2.9, 3.4, 12.0]
    for (name, function, knobs), ratio, advantage in itertools.product(
        CALLS, ratios, [2.0, 0.3, 0.0, -0.7, -1.3]
    ):
        logp = torch.tensor([[-1.5]], dtype=torch.float64, requires_grad=True)
        old = logp.detach() - math.log(ratio)
        given = torch.tensor([[advantage]], dtype=torch.float64)
        arguments = [logp, given] if name == "reinforce" else [logp, old, given]
        if name == "gspo":
            arguments.append(torch.ones_like(old))
        term = -function(*arguments, **knobs)
        (weight,) = torch.autograd.grad(term, logp)
        token = {"ratio": ratio, "advantage": advantage, "logp": -1.5}
        rows.append({"name": name, "token": token, "knobs": knobs})
        rows[-1] |= {"term": term.item(), "weight": weight.item()}
    return rows


def test_each_surrogate_in_javascript_is_that_of_the_library(tmp_path, missing):
    node = shutil.which("node")
    if node is None:
        missing("node", "install nodejs to check the widgets' JavaScript")
    module = tmp_path / "surrogates.mjs"
    module.write_text((base.FOLDER / "surrogates.js").read_text("utf-8"), "utf-8")
    (tmp_path / "rows.json").write_text(json.dumps(terms_and_weights()), "utf-8")
    command = [node, HERE / "surrogates.mjs", module, tmp_path / "rows.json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout == f"{len(CALLS) * 60} tokens agree\n"


def test_a_real_batch_has_moved_less_and_a_few_of_its_tokens_more_than_the_invented_one():
    """The numbers of `default_tokens` and of lecture 03's text above its widget."""
    real = np.abs(np.log([ratio for ratio, *_ in tokens_of(RECORD)]))
    assert np.median(real) < 0.0004
    assert np.quantile(real, 0.9) < 0.022
    rarer = [ratio for ratio, *_ in tokens_of(RECORD) if ratio < 1 / 10]
    assert (len(rarer), int((real > math.log(10)).sum()), len(real)) == (9, 9, 439)
    invented = np.log([ratio for ratio, *_ in default_tokens()])
    assert np.std(invented) == pytest.approx(0.25, abs=0.02)
    assert np.median(np.abs(invented)) > 0.1
    lecture = (HERE.parents[2] / "lectures/03_ratios_and_clipping.ipynb").read_text("utf-8")
    assert (
        "half of the tokens have moved by $|\\\\log\\\\rho|<.0004$, and nine of 439 have" in lecture
    )
    assert "tokens have |log ρ| below 0.0004 before the" in default_tokens.__doc__


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"eps_high": 0.0004, "advantage": -3.0}, "held at 1.0004·A = −3.0012"),
        ({"eps_high": 0.28, "advantage": 1.5}, "held at 1.28·A = 1.92"),
    ],
)
def test_cispo_prints_a_product_with_the_decimals_of_its_edge(changes, words):
    assert words in ClipRegion(method="cispo", **changes).sentence


# --- facts --------------------------------------------------------------------------------------


def test_ppo_is_the_formula_on_the_six_regions():
    clip = ClipRegion(method="dapo")
    for advantage, ratio in itertools.product((1.0, -1.0), (0.05, 0.75, 0.9, 1.2, 1.35, 3.0)):
        (term,), (weight,) = clip._terms([ratio], advantage)
        bounded = min(max(ratio, 0.8), 1.28)
        assert term == pytest.approx(min(ratio * advantage, bounded * advantage), abs=1e-12)
        silent = ratio > 1.28 if advantage > 0 else ratio < 0.8
        assert weight == pytest.approx(0 if silent else ratio * advantage, abs=1e-12)


def test_a_correction_is_never_blocked_but_scaled_by_the_ratio():
    clip = ClipRegion()
    assert clip.weights([0.01, 10.0], [1.0, -1.0]) == pytest.approx([0.01, -10.0])
    floored = ClipRegion(method="dual_clip")
    assert floored.weights([2.9, 3.1, 0.5, 1.3], [-1.0, -1.0, -1.0, -1.0]) == pytest.approx(
        [-2.9, 0, 0, -1.3]
    )
    assert floored.weights([1.1, 3.1], [1.0, 1.0]) == pytest.approx([1.1, 0])


def test_clip_higher_changes_nothing_for_negative_advantages():
    ppo, dapo = ClipRegion(method="ppo"), ClipRegion(method="dapo")
    assert dead(ppo, -1) == dead(dapo, -1) == ppo.counts["negative"]["below"]
    assert dead(ppo, 1) > dead(dapo, 1)


def test_sapo_attenuates_by_a_hundredth_at_1_2_and_by_half_at_2_76():
    clip = ClipRegion(method="sapo")
    assert clip.weights([1.2], [1.0])[0] / 1.2 == pytest.approx(0.99, abs=1e-3)
    assert clip.edges(1)[1] == pytest.approx(2.76, abs=5e-3)
    half = clip.weights([clip.edges(1)[1]], [1.0])[0]
    assert half == pytest.approx(clip.edges(1)[1] / 2, rel=1e-12)
    assert "at ρ = 2.76 a token with A > 0 still pushes with 1.38, half" in clip.sentence
    assert clip.weights([1.0, 1.0], [1.0, -1.0]) == pytest.approx([1, -1])
    assert clip.dead == 0


def test_cispo_holds_the_weight_and_never_silences():
    clip = ClipRegion(method="cispo", eps_low=0.4, eps_high=0.28, advantage=-1.5)
    ratios = np.array([0.1, 0.5, 0.9, 1.2, 1.9])
    assert clip.curves(ratios)[1] == pytest.approx([-0.9, -0.9, -1.35, -1.8, -1.92])
    step = 1e-6
    ends = clip.curves(ratios * math.exp(step))[0] - clip.curves(ratios * math.exp(-step))[0]
    assert ends / (2 * step) == pytest.approx(clip.curves(ratios)[1], rel=1e-6)
    assert clip.curves([0.9])[0] == pytest.approx([-1.35])  # inside, it is PPO's ρA
    assert clip.dead == 0


def test_the_drawn_objective_has_the_drawn_weight_as_its_slope():
    for method in METHODS:
        clip = ClipRegion(method=method, advantage=-1.3)
        left, right = clip.span
        ratios = left + (right - left) * np.array([0.137, 0.317, 0.473, 0.561, 0.713, 0.931])
        step = 1e-7
        ends = clip.curves(ratios * math.exp(step))[0] - clip.curves(ratios * math.exp(-step))[0]
        assert ends / (2 * step) == pytest.approx(clip.curves(ratios)[1], rel=1e-5, abs=1e-7)
        inside = 1 + 1e-9
        assert clip.curves([inside])[0] == pytest.approx([-1.3], rel=1e-6)  # touches the dotted


def test_gspo_pushes_as_the_true_batch_of_sequences_does():
    clip = ClipRegion(method="gspo")
    ratios, advantages, _ = clip._columns()
    logp = torch.from_numpy(ratios).log().reshape(32, 8).requires_grad_()
    loss = surrogates.gspo(
        logp,
        torch.zeros_like(logp),
        torch.from_numpy(advantages).reshape(32, 8)[:, :1],
        torch.ones_like(logp),
        **clip.knobs,
    )
    (gradient,) = torch.autograd.grad(-loss.sum(), logp)
    weights = clip.weights(clip._ratios(), advantages)
    assert weights == pytest.approx(gradient.numpy().ravel(), rel=1e-9, abs=1e-12)
    lagging = (weights == 0) & (advantages > 0) & (ratios < 0.8)
    assert lagging.any()  # behind, and yet not corrected, because its sequence is past the edge


def test_the_epsilons_of_gspo_live_on_another_scale():
    there = ClipRegion(method="gspo", eps_low=0.2, eps_high=0.28)
    assert there.dead == 0
    here = ClipRegion(method="ppo", eps_low=3e-4, eps_high=4e-4)
    assert 0.4 < here.dead / 256 < 0.6


def test_tokens_without_a_number_are_their_own_sequences():
    pairs = [[1.5, 1.0], [0.9, 1.0], [0.5, -2.0]]
    alone = ClipRegion(method="gspo", tokens=pairs)
    assert alone._ratios().tolist() == pytest.approx([1.5, 0.9, 0.5])
    joined = ClipRegion(method="gspo", tokens=[[*pair, 7] for pair in pairs])
    assert joined._ratios() == pytest.approx([(1.5 * 0.9 * 0.5) ** (1 / 3)] * 3)


@pytest.mark.parametrize("method", METHODS)
def test_regions_cover_the_axis_and_tell_who_is_silent(method):
    for sign in (1, -1):
        clip = ClipRegion(method=method, sign="positive" if sign > 0 else "negative", dual_clip=1.1)
        regions = clip.regions(sign)
        assert (regions[0].low, regions[-1].high) == (0, math.inf)
        assert all(one.high == other.low for one, other in itertools.pairwise(regions))
        total = sum(clip.counts["positive" if sign > 0 else "negative"].values())
        assert total == sum(1 for token in clip.tokens if token[1] * sign > 0)
    assert clip.dead == dead(clip, 1) + dead(clip, -1)


# --- sentences ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [key for key in METHODS if key != "sapo"])
@pytest.mark.parametrize("epsilon", [0.0004, 0.07, 0.2, 0.28, 0.55])
def test_exactly_on_an_edge_a_token_still_pushes(method, epsilon):
    """In the count, in the weight and in the batch's sum alike."""
    clip = ClipRegion(method=method, eps_low=epsilon, eps_high=epsilon)
    pairs = [[1 - epsilon, -1.0], [1 + epsilon, 1.0]]
    if method == "dual_clip":
        pairs.append([clip.dual_clip, -1.0])
    clip.tokens = pairs
    expected = [ratio * advantage for ratio, advantage in pairs]
    assert clip.weights(*np.array(pairs).T) == pytest.approx(expected, rel=1e-9)
    assert (clip.dead, clip.kept) == (0, pytest.approx(1))


def test_beyond_c_and_not_on_it():
    on, beyond = (ClipRegion(method="dual_clip", tokens=[[r, -1.0]]) for r in (3.0, 3.0001))
    assert "silences 0 of 1 token (0.0 %), none of them by c, and keeps 100 %" in on.sentence
    assert "silences 1 of 1 token (100.0 %), 1 of them by c, and keeps 0 %" in beyond.sentence


def test_for_a_negative_advantage_the_axis_shows_that_nothing_bounds_the_ratio():
    for key in ("ppo", "grpo", "dapo"):
        assert ClipRegion(method=key).span == (0, 2)
        assert ClipRegion(method=key, sign="negative").span == (0, 4)


def test_the_note_defines_the_weight_kept_and_who_is_a_sequence_alone():
    assert "Weight kept: Σ|weight| ÷ Σ|ρA|." in ClipRegion().note
    assert (
        "PPO's clip; the advantage, the average and the KL differ" in ClipRegion(method="grpo").note
    )
    assert METHODS["grpo"].knobs == METHODS["ppo"].knobs
    alone = "each is a sequence of its own"
    assert alone in ClipRegion(method="gspo", tokens=[[1.0, 1.0]]).note
    assert alone not in ClipRegion(method="gspo").note
    assert alone not in ClipRegion(tokens=[[1.0, 1.0]]).note


def test_no_ratio_lies_below_zero():
    """With ε low = 1 the lower edge is 0, and nothing is silenced there."""
    for method, words in (
        ("ppo", "PPO: with ε low = 1 the clip silences no token with A < 0."),
        ("gspo", "GSPO: with ε low = 1 the clip silences no sequence with A < 0."),
        ("dual_clip", "a token with A < 0 gets no gradient only above ρ = c = 3.00."),
    ):
        clip = ClipRegion(method=method, eps_low=1.0, advantage=-1.0)
        assert words in clip.sentence
        assert "below" not in clip.sentence
        assert clip.weights([1e-9], [-1.0])[0] == pytest.approx(-1e-9)


def test_a_bound_from_below_raises_weights_and_keeps_is_not_said():
    low = ClipRegion(method="cispo", eps_low=0.5, tokens=[[0.1, 1.0], [1.5, 1.0]])
    assert low.kept == pytest.approx((0.5 + 1.28) / 1.6)
    assert "2 of 2 tokens (100.0 %); the summed |weight| is 111 % of the unbounded" in low.sentence
    only_high = ClipRegion(method="cispo", eps_low=0.5, tokens=[[0.9, 1.0], [1.5, 1.0]])
    assert "1 of 2 tokens (50.0 %) and keeps 91 % of the unbounded" in only_high.sentence
    for key in METHODS:  # no other method raises a weight
        clip = ClipRegion(method=key)
        ratios, advantages = np.meshgrid(np.linspace(0.01, 9, 200), [-2.0, -0.5, 0.5, 2.0])
        weights = np.abs(clip.weights(ratios.ravel(), advantages.ravel()))
        assert (weights <= np.abs(ratios * advantages).ravel() * (1 + 1e-12)).all()


@pytest.mark.parametrize("method", METHODS)
def test_without_an_advantage_nothing_is_kept_or_lost(method):
    sentence = ClipRegion(method=method, tokens=[[0.5, 0.0], [3.9, 0.0]]).sentence
    assert "every A is 0, so there is no gradient weight to keep." in sentence
    assert "keeps" not in sentence


def test_one_token_and_very_few_tokens():
    alone = ClipRegion(tokens=[[1.0, 1.0]])
    assert "silences 0 of 1 token (0.0 %) and keeps 100 % of" in alone.sentence
    few = ClipRegion(tokens=[[1.3, 0.05], *([[1.1, 2.0]] * 4000)])
    assert "1 of 4001 tokens (under 0.1 %) and keeps over 99 % of" in few.sentence
    rest = ClipRegion(tokens=[[1.1, 0.01], *([[1.3, 2.0]] * 4000)])
    assert "4000 of 4001 tokens (over 99.9 %) and keeps under 1 % of" in rest.sentence
    soft = ClipRegion(method="sapo", tokens=[[3.0, 1.0], [1.0, 1.0]])
    assert "more than halves the weight of 1 of 2 tokens" in soft.sentence


def test_the_axis_shows_what_lies_beyond_the_last_edge():
    """So each token without gradient stands on hatching and in a printed count."""
    for method, epsilon, tau in itertools.product(METHODS, (0.2, 0.34, 0.7, 1.0), (0.2, 0.5, 5.0)):
        clip = ClipRegion(method=method, eps_low=epsilon, eps_high=epsilon, tau_pos=tau)
        assert clip.span[1] > max(clip.edges(sign)[1] for sign in (1, -1))
        for sign in (1, -1):
            shown = clip_region._visible(clip, sign)
            counts = clip.counts["positive" if sign > 0 else "negative"]
            mine = sum(1 for _, advantage, _ in clip.tokens if advantage * sign > 0)
            assert sum(counts[region.name] for region in shown) == mine


def test_the_key_speaks_of_what_is_drawn():
    for method in METHODS:
        clip = ClipRegion(method=method)
        hatched = any(r.kind == "dead" for sign in (1, -1) for r in clip.regions(sign))
        assert ("hatching" in clip.note) == hatched
        assert ("Grey" in clip.note) != hatched


def test_the_sequence_ratio_is_called_as_in_the_notation():
    sentence = ClipRegion(method="gspo").sentence
    assert "above ρ(y) = 1.0004 every token of a sequence with A > 0" in sentence
    beyond = ClipRegion(method="gspo", tokens=[[1.5, 1.0]]).sentence
    assert "Tokens whose ρ(y) is not between 0.998 and 1.002, drawn on the edges: 1." in beyond
    wide = ClipRegion(method="gspo", eps_low=1.0, tokens=[[3.5, 1.0]]).sentence
    assert "Tokens beyond ρ(y) = 3, drawn on the right edge: 1." in wide


def test_the_weight_of_gspo_is_before_its_average():
    """The drawn objective changes by weight / |y| when one token's log π does."""
    logp = torch.zeros(1, 8, dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, 8, dtype=torch.float64)
    knobs = {"eps_low": 1.0, "eps_high": 1.0}
    loss = surrogates.gspo(logp, torch.zeros_like(one), 2 * one[:, :1], one, **knobs)
    (slope,) = torch.autograd.grad(-loss[0, 0], logp)  # of the objective of one sequence
    clip = ClipRegion(method="gspo", **knobs)
    assert slope.tolist() == [[pytest.approx(clip.weights([1.0], [2.0])[0] / 8)] * 8]
    assert "Gradient weight of each token (before its 1/|y|)" in titles(clip)
    assert "Gradient weight (push)" in titles(ClipRegion())


def titles(clip: ClipRegion) -> list[str]:
    figure = Figure(dpi=100, layout="none")
    made = still.Still(clip.state, clip.note, clip.off, "", picture_height=clip.still_height)
    made.draw(clip.draw_still, figure)
    return [axes._left_title.get_text() for axes in figure.axes]


# --- methods ------------------------------------------------------------------------------------


def test_every_method_stands_in_the_golden_file():
    rows = json.loads((HERE / "golden/clip_region.json").read_text("utf-8"))
    assert {row["state"]["method"] for row in rows} == set(METHODS)


def test_the_papers_values_are_those_of_the_table_of_algorithms():
    for key, method in METHODS.items():
        row = ALGORITHMS["ppo" if key == "dual_clip" else key]
        assert method.knobs == dict(row.knobs) | ({"dual_clip": 3.0} if key == "dual_clip" else {})


@pytest.mark.parametrize("key", METHODS)
def test_the_note_prints_the_values_in_use(key):
    printed = {float(n) for n in re.findall(r"(?<![\d.])\d(?:\.\d+)?\b(?!\.)", METHODS[key].source)}
    assert set(METHODS[key].knobs.values()) <= printed


@pytest.mark.parametrize("key", METHODS)
def test_choosing_a_method_sets_its_papers_values_and_reset_brings_them_back(key):
    clip = ClipRegion(eps_low=0.5, eps_high=0.6, tau_pos=2.0, tau_neg=2.0, dual_clip=2.0)
    assert clip.knobs == {"eps_low": 0.5, "eps_high": 0.6}
    clip.method = "sapo" if key == "ppo" else "ppo"
    clip.method = key
    assert clip.knobs == METHODS[key].knobs
    clip.eps_high, clip.tau_pos, clip.dual_clip = 0.4, 3.0, 1.5
    clip.reset()
    assert clip.knobs == METHODS[key].knobs
    assert clip.off == {"eps_low", "eps_high", "tau_pos", "tau_neg", "dual_clip"} - set(clip.knobs)


def test_a_lecture_offers_what_it_has_introduced():
    clip = ClipRegion(methods=("dapo", "ppo"))
    assert clip.method == "dapo"
    with pytest.raises(ValueError, match="made with: dapo, ppo"):
        clip.method = "sapo"
    shown = [control["key"] for control in clip.controls if control["kind"] != "data"]
    assert shown == ["method", "sign", "size", "eps_low", "eps_high", ""]
    assert "tau_pos" in clip.state  # and yet the state is whole


@pytest.mark.parametrize("methods", ["ppo", (), ("ppo", "trpo"), 3])
def test_unknown_methods_are_refused(methods):
    with pytest.raises(ValueError, match="expected one or more of: ppo, grpo, dapo, dual_clip"):
        ClipRegion(methods=methods)


def test_what_the_browser_sends_is_taken_as_it_is():
    clip = ClipRegion()
    clip.set_state({"method": "dapo", "eps_low": 0.25, "sign": "negative", "size": 2})
    assert (clip.method, clip.eps_low, clip.eps_high, clip.advantage) == ("dapo", 0.25, 0.2, -2.0)


def test_the_advantage_is_its_sign_and_its_size():
    clip = ClipRegion(advantage=-1.5)
    assert (clip.sign, clip.size, clip.advantage) == ("negative", 1.5, -1.5)
    clip.advantage = 0.3
    assert (clip.sign, clip.size) == ("positive", 0.3)


# --- tokens -------------------------------------------------------------------------------------


def test_default_tokens_are_seeded_and_fill_all_six_regions():
    assert default_tokens() == default_tokens()
    assert default_tokens() != default_tokens(seed=1)
    for method in ("ppo", "grpo", "dapo", "gspo"):
        clip = ClipRegion(method=method)
        counts = [n for side in clip.counts.values() for n in side.values()]
        assert sum(counts) == len(clip.tokens) == 256
        assert min(counts) >= 16
        assert "beyond" not in clip.sentence


@pytest.mark.parametrize(
    "tokens",
    [
        torch.tensor([[1.5, 1.0], [0.5, -2.0]], requires_grad=True),
        np.array([[1.5, 1.0], [0.5, -2.0]], dtype=np.float32),
        [(1.5, 1), (0.5, -2)],
    ],
)
def test_tokens_may_be_a_tensor_an_array_or_lists(tokens):
    clip = ClipRegion()
    clip.tokens = tokens
    assert clip.tokens == [[1.5, 1.0], [0.5, -2.0]]
    assert "silences 2 of 2 tokens (100.0 %) and keeps 0 %" in clip.sentence
    with torch.no_grad():
        assert clip.kept == 0


def test_tokens_of_a_training_record():
    record = load_record(RECORD)
    clip = ClipRegion.from_record(record)
    assert (clip.method, clip.knobs) == ("grpo", {"eps_low": 0.2, "eps_high": 0.2})
    responses = [r for group in record.groups for r in group.responses]
    assert len(clip.tokens) == sum(len(r.tokens) for r in responses)
    assert len({token[2] for token in clip.tokens}) == len(responses)
    first, token = responses[0], clip.tokens[0]
    assert token[0] == pytest.approx(math.exp(first.updates[-1].logp[0] - first.logp_old[0]))
    assert token[1] == first.advantages[0]
    assert clip.dead > 0
    before = ClipRegion.from_record(RECORD, update=0, methods=("dapo",))
    assert (before.method, before.dead, round(before.kept, 6)) == ("dapo", 0, 1)
    clip.tokens = tokens_of(record.take([0]))
    assert len(clip.tokens) == sum(len(r.tokens) for r in record.groups[0].responses)
    with pytest.raises(ValueError, match="update is 9; the record of step 50 has 4 updates"):
        tokens_of(record, 9)


NO_RECORD = r"a record is a path or a mapping|no step record"


@pytest.mark.parametrize("wrong", [None, 5, {}, {"step": 1}, [1.0]])
def test_what_is_no_record_is_refused_with_a_message(wrong):
    with pytest.raises(ValueError, match=NO_RECORD):
        ClipRegion.from_record(wrong)
    with pytest.raises(ValueError, match=NO_RECORD):
        tokens_of(wrong)


def test_a_record_may_be_a_dict():
    given = json.loads(RECORD.read_text("utf-8"))
    assert ClipRegion.from_record(given).tokens == ClipRegion.from_record(RECORD).tokens


@pytest.mark.parametrize("more", [{"sign": "negative"}, {"size": 2.0}])
def test_an_advantage_and_one_of_its_parts_are_refused_together(more):
    with pytest.raises(ValueError, match=f"advantage and {next(iter(more))} are both given"):
        ClipRegion(advantage=1, **more)


REFUSED = [
    ("tokens", [[10**400, 1.0]], "a whole number that is too large"),
    ("tokens", [[1.5, 0.9, 1.2], [1, -1, 0.5]], r"got \(2, 3\): transposed\?"),
    ("tokens", [[1.5, 0.9, 1.2, 1.1], [1, -1, 0.5, 1]], r"got \(2, 4\): transposed\?"),
    ("eps_high", 1.5, "eps_high is 1.5; it must lie between 0.0001 and 1"),
    ("eps_low", 0, "eps_low is 0; it must lie"),
    ("eps_low", float("nan"), "eps_low is nan"),
    ("tau_pos", -1, "tau_pos is -1; it must lie between 0.2 and 5"),
    ("tau_neg", 0, "tau_neg is 0"),
    ("dual_clip", 1, "dual_clip is 1; it must lie between 1.1"),
    ("advantage", 0, "size lies between 0.1 and 3"),
    ("advantage", -7, "size lies between 0.1 and 3"),
    ("advantage", "much", "advantage is 'much'"),
    ("method", "trpo", "made with: ppo, grpo, dapo"),
    ("tokens", [], "tokens is empty"),
    ("tokens", "text", "rows .* of numbers"),
    ("tokens", [1.0, 2.0], r"shape \(2,\); expected \(tokens, 2\)"),
    ("tokens", [[1.0, 2.0, 0, 4]], r"shape \(1, 4\)"),
    ("tokens", [[1.0, 2.0], [1.0]], "rows"),
    ("tokens", [[1.0, 2.0], [1.0, float("nan")]], r"tokens\[1\].*NaN"),
    ("tokens", [[1.0, 2.0], [math.inf, 1.0]], r"tokens\[1\].*inf"),
    ("tokens", [[1e300, 1.0]], "nothing is a ratio"),
    ("tokens", [[1.0, 1.0], [-0.2, 1.0]], r"tokens\[1\].*take exp first"),
    ("tokens", [[1.0, 1.0, 0.5]], "must be whole"),
    ("tokens", torch.ones(5000, 2), "at most 4096"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_bad_input_is_refused_with_a_message_and_changes_nothing(name, value, message, refused):
    refused(ClipRegion(method="dapo"), {name: value}, message)


def test_none_for_tokens_is_refused_later_and_means_the_default_batch_at_first():
    assert ClipRegion(tokens=None).tokens == default_tokens()
    with pytest.raises(ValueError, match=r"shape \(\)"):
        ClipRegion().tokens = None
