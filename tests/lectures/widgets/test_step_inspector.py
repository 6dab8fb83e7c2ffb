"""The step inspector's numbers are those of policy_gradients, on any record and any algorithm."""

import copy
import dataclasses
import io
import json
import math
import re
import shutil
import statistics
import subprocess
from functools import partial
from pathlib import Path

import matplotlib.style
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from lectures.widgets import StepInspector, base
from lectures.widgets import step_inspector as si
from lectures.widgets import step_view as sv
from lectures.widgets import still as still_pictures
from lectures.widgets.step_inspector import REFERENCE, TOY
from llm_trainer.record import RecordError, load_record
from policy_gradients.advantages import group_standardized
from policy_gradients.aggregation import mean_per_token
from policy_gradients.algorithms import ALGORITHMS, Batch, grpo_loss
from policy_gradients.kl import k1, k2
from policy_gradients.surrogates import gspo, ppo_clip, unclipped
from toy_models.policies import AutoregressivePolicy, TabularPolicy
from toy_models.sorting import inclusion_ordering_reward, sorted_reward
from toy_models.train import train

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def record():
    return load_record(REFERENCE)


@pytest.fixture(scope="module")
def toy():
    return load_record(TOY)


@pytest.fixture
def plain(toy):
    """The toy's record as a dict that may be changed."""
    return copy.deepcopy(toy.model_dump())


VARIANTS = {
    row.name: row
    for row in (
        dataclasses.replace(
            ALGORITHMS["ppo"], name="dual",
            knobs={"eps_low": 0.2, "eps_high": 0.2, "dual_clip": 1.5},
        ),
        dataclasses.replace(
            ALGORITHMS["gspo"], name="gspo_tokens", aggregation=mean_per_token, kl="loss",
            kl_coefficient=0.5, kl_estimator=k2,
        ),
        dataclasses.replace(
            ALGORITHMS["dr_grpo"], name="free", surrogate=unclipped, knobs={}, kl="loss",
            kl_coefficient=0.1, kl_estimator=k1,
        ),
        dataclasses.replace(ALGORITHMS["ppo"], name="critic_gspo", surrogate=gspo),
    )
}  # fmt: skip


# --- one mathematics ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", [REFERENCE, TOY], ids=["tiny", "toy"])
def test_the_formula_gives_what_policy_gradients_gives_for_every_token(path, tmp_path, missing):
    """Each token, each update, each row of the table and some variants, and the sum of the losses.

    The browser's formula and autograd share nothing but the record.
    """
    node = shutil.which("node")
    if node is None:
        missing("node", "install nodejs to check the widgets' JavaScript")
    record = load_record(path)
    step, cases = sv.tensors(record), []
    for algorithm in (*ALGORITHMS.values(), *VARIANTS.values()):
        made = StepInspector(record, algorithm)
        exact = sv.row(step, algorithm, exact=True)["weights"]
        for update in range(1, record.updates + 1):
            made.update = update
            loss = loss_of_shown(step, algorithm, update)
            cases.append({"state": made.state, "weights": exact[update - 1], "loss": loss})
    assert len(cases) == (len(ALGORITHMS) + len(VARIANTS)) * record.updates
    (tmp_path / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    (tmp_path / "widget.mjs").write_text(base.module("step_inspector"), encoding="utf-8")
    command = [node, HERE / "terms.mjs", tmp_path / "widget.mjs", tmp_path / "cases.json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    checks = int(re.search(r"^(\d+) checks passed$", run.stdout, re.MULTILINE).group(1))
    assert checks == 3 * len(cases) * int(step.mask.sum())


def loss_of_shown(step, algorithm, update) -> float:
    """The row's loss on the record's groups, divided by the step's counts; without a critic's."""
    given, extra = sv._advantages(step, algorithm)
    counted, _ = sv._counted(step, algorithm)
    counts = step.record.counts
    row = dataclasses.replace(algorithm, value_coefficient=0.0)
    batch = Batch(
        logp=step.updates[update - 1], logp_old=step.old, advantages=given,
        mask=step.mask & counted, logp_ref=step.reference, sequences=counts.sequences,
        tokens=counts.tokens, length=counts.length, **extra,
    )  # fmt: skip
    return row.loss(batch).item()


def test_weights_are_the_slope_of_the_loss(toy):
    """Central differences in float64: nothing of autograd, nothing of the browser."""
    step, update, delta = sv.tensors(toy), 2, 1e-6
    for name in ("grpo", "gspo", "sapo", "rloo"):
        row = ALGORITHMS[name]
        weights = iter(sv.row(step, row, exact=True)["weights"][update - 1])
        for i, t in step.mask.nonzero().tolist():
            values = []
            for sign in (1, -1):
                moved = step.updates[update - 1].clone()
                moved[i, t] += sign * delta
                changed = dataclasses.replace(step, updates=[moved])
                values.append(loss_of_shown(changed, row, 1))
            slope = (values[0] - values[1]) / (2 * delta)
            assert next(weights) == pytest.approx(-slope * sv.scale_of(toy), abs=1e-5)


def test_a_record_and_the_run_agree_on_what_was_clipped(record):
    """Counted by hand from the log-probabilities of the file."""
    rows = {row["key"]: row for row in sv.weights(record, ALGORITHMS)}
    for update in range(record.updates):
        high = low = 0
        for group in record.groups:
            for response in group.responses:
                (advantage,) = response.advantages
                logp = response.updates[update].logp
                for new, old in zip(logp, response.logp_old, strict=True):
                    ratio = 2.718281828459045 ** (new - old)
                    high += advantage > 0 and ratio > 1.2
                    low += advantage < 0 and ratio < 0.8
        gates = rows["grpo"]["gates"][update]
        assert [gates.count("h"), gates.count("l")] == [high, low]
        assert gates == rows["dr_grpo"]["gates"][update]
    assert high > 0
    assert low > 0


def test_advantages_are_those_the_run_used(record):
    row = sv.row(sv.tensors(record), ALGORITHMS["grpo"])
    used = [r.advantages[0] for group in record.groups for r in group.responses]
    assert row["advantages"] == pytest.approx(used, abs=1e-4)


def test_leaving_groups_out_changes_no_number_of_the_others(toy):
    """The rewards and counts of the whole step stay, so REINFORCE's batch mean does too."""
    whole = sv.weights(toy, ALGORITHMS)
    part = sv.weights(toy.take([2]), ALGORITHMS)
    first = sum(len(r.tokens) for group in toy.groups[:2] for r in group.responses)
    for one, other in zip(whole, part, strict=True):
        for all_weights, some in zip(one["weights"], other["weights"], strict=True):
            assert all_weights[first:] == pytest.approx(some, rel=1e-3, abs=1e-9), one["key"]


# --- what the sentence claims -------------------------------------------------------------------


def parted(step, names, update) -> list[list[int]]:
    """[other sign or clip, only by the KL, more than 1.1 times another size], by autograd anew."""
    rows = [ALGORITHMS[name] for name in names]
    free = [dataclasses.replace(row, kl="none", kl_coefficient=0.0) if row.kl == "loss" else row
            for row in rows]  # fmt: skip
    whole = [sv.row(step, row, exact=True)["weights"][update - 1] for row in rows]
    bare = [sv.row(step, row, exact=True) for row in free]
    found = [[], [], []]
    for i, (a, b) in enumerate(zip(*(row["weights"][update - 1] for row in bare), strict=True)):
        gates = {row["gates"][update - 1][i] for row in bare}
        (c, d) = (weights[i] for weights in whole)
        if len(gates) > 1 or (a > 0, a < 0) != (b > 0, b < 0):
            found[0].append(i)
        elif a and not 1 / 1.1 < b / a < 1.1:
            found[2].append(i)
        elif (c == 0) != (d == 0) or (c and not 1 / 1.1 < d / c < 1.1):
            found[1].append(i)
    return found


@pytest.mark.parametrize(
    ("names", "update", "words"),
    [
        (("grpo", "dr_grpo"), 4, "Under Dr. GRPO 169 tokens differ only by the KL, 270 tokens "
         "change weight by more than a factor of 1.1 (× 0.04 to × 0.11)."),
        (("gspo", "grpo"), 4, "Under GRPO 256 tokens get another sign or clip, 167 tokens differ "
         "only by the KL, 16 tokens change weight by more than a factor of 1.1"),
        (("grpo", "gspo"), 1, "Under GSPO 154 tokens differ only by the KL."),
        (("ppo", "reinforce"), 2, "Under REINFORCE 172 tokens get another sign or clip, 267 tok"),
        (("grpo", "grpo"), 4, "Under GRPO no token changes sign or clip, and no weight by more "
         "than a factor of 1.1."),
    ],
)  # fmt: skip
def test_what_the_compared_algorithm_changes_is_counted_in_three_parts(
    names, update, words, record
):
    made = StepInspector(record, *names, update=update)
    assert words in made.sentence
    turned, kl, factor = parted(sv.tensors(record), names, update)
    assert made.numbers["differs"] == {"turned": turned, "factor": factor, "kl": kl}


def test_another_average_changes_weights_and_says_by_how_much(record):
    mine = dataclasses.replace(ALGORITHMS["grpo"], name="mine", aggregation=mean_per_token)
    made = StepInspector(record, "grpo", mine)
    assert made.numbers["differs"]["turned"] == []
    lengths = [r["span"][1] - r["span"][0] for r in made.step["responses"]]
    factor = [lengths[made._response(i)] * 128 / 1158 for i in range(made.tokens)]
    gates = made._row()["gates"][3]
    weighed = [i for i, row in enumerate(made._row()["bare"][3]) if row and gates[i] == "."]
    other = [i for i in weighed if not 1 / 1.1 < factor[i] < 1.1]
    assert made.numbers["differs"]["factor"] == other
    ends = [f"× {min(factor[i] for i in other):.2f}", f"× {max(factor[i] for i in other):.2f}"]
    assert f"by more than a factor of 1.1 ({' to '.join(ends)})" in made.sentence


def test_a_cell_may_show_the_compared_weight_as_a_factor():
    cases = [(2.0, 1.0), (2.0, 2.0), (0.0, 0.0), (0.0, 1.0), (2.0, 0.0), (1.0, -3.0), (1.0, 4.0)]
    assert [si._factor(a, b)[0] for a, b in cases] \
        == ["×0.50", "×1.00", "0", "from 0", "×0", "×−3.00", "×4.00"]  # fmt: skip
    assert [si._factor(a, b)[1] for a, b in cases] \
        == pytest.approx([-0.5, 0, 0, 1, -1, -1, 1])  # fmt: skip
    made = StepInspector(compare="dr_grpo", show="factor")
    found = [words for words in still_texts(made) if words.startswith("×")]
    assert len(found) > 20
    factors = [b / a for a, b in zip(made.weights, StepInspector(algorithm="dr_grpo").weights,
                                     strict=True) if b / a > 0]  # fmt: skip
    middle = statistics.median_high(factors)
    assert f"Full colour at 4 times more and less than × {middle:.2f}" in "".join(still_texts(made))
    made.compare = "none"
    assert "–" in still_texts(made)


def test_an_advantage_that_is_only_rounding_gives_no_weight(toy):
    """The library's are exactly 0 for equal rewards; a function of one's own may leave 1e-17."""

    def rounding(rewards):
        return torch.full_like(rewards, -1e-17)

    row = sv.row(sv.tensors(toy), dataclasses.replace(ALGORITHMS["dr_grpo"], advantage=rounding))
    assert set(row["advantages"]) == {0.0}
    assert {x for weights in row["weights"] for x in weights} == {0.0}


def test_a_weight_of_0_is_printed_unlike_one_that_only_rounds_to_it():
    assert si._signed(-0.0) == "0"
    cases = {0.0: "0", 1e-9: "+1·10⁻⁹", -1e-9: "−1·10⁻⁹", 4e-4: "+0.0004",
             -0.0043: "−0.004", 1.239: "+1.24", -12.34: "−12.3", 123.4: "+123", 99_999: "+99999",
             -1e6: "−1·10⁶", 1.26e277: "+1.3·10²⁷⁷"}  # fmt: skip
    assert [si._signed(x) for x in cases] == list(cases.values())


def test_the_clip_silences_and_zero_advantage_has_no_gradient_either(record):
    """277 of GSPO's tokens are clipped; 144 others have advantage 0."""
    made = StepInspector(record, "gspo")
    idle = [i for i, w in enumerate(made._row()["weights"][3]) if w == 0]
    assert len(idle) == 277 + 144
    assert "the clip silences 277 of 439 tokens (whole responses, by their ρ(y): 178 above 1.0004" \
        in made.sentence  # fmt: skip
    assert "; 144 more have advantage 0 and get none anyway; " in made.sentence
    made.update = 1
    assert "no token is clipped; 144 tokens have advantage 0 and get no gradient; " in made.sentence


def test_where_a_kl_is_in_the_loss_the_clip_leaves_its_gradient(record):
    made = StepInspector(record)
    assert "the clip leaves 25 of 439 tokens only the KL's gradient (9 above 1.2 with A > 0, 16 " \
        "below 0.8 with A < 0); 144 more have advantage 0 and get only the KL's anyway" \
        in made.sentence  # fmt: skip
    gates, weights = made._row()["gates"][3], made._row()["weights"][3]
    kl_only = [w for gate, w in zip(gates, weights, strict=True) if gate in "hl"]
    assert all(kl_only)


def test_groups_left_out_of_the_loss_are_counted_apart(record):
    made = StepInspector(record, "dapo")
    assert "; 144 tokens belong to groups left out of the loss; " in made.sentence
    assert "advantage 0" not in made.sentence


def test_one_token_is_one(plain):
    """One prompt, one of whose responses has a single token and alone is clipped or idle."""
    record = load_record(plain).take([0])
    made = StepInspector(record, "dr_grpo")
    row = dict(made._row())
    made._row = lambda key=None: row
    row |= {"gates": ["h" + "." * 15] * 3, "advantages": [1.0] * 4}
    assert "the clip silences 1 of 16 tokens (1 above 1.2 with A > 0); " in made.sentence
    row |= {"formula": False}
    assert "1 of 16 tokens gets no gradient (1 with A > 0); " in made.sentence
    row |= {"formula": True, "per_token": True, "advantages": [1.0] * 15 + [0.0]}
    assert "; 1 more has advantage 0 and gets none anyway; " in made.sentence
    row |= {"gates": ["." * 16] * 3}
    assert "; 1 token has advantage 0 and gets no gradient; " in made.sentence


def test_cispo_cuts_and_raises_ratios_and_says_bounded(record):
    """By hand from the ratios: all of these tokens have an advantage."""
    made = StepInspector(record, "cispo")
    ratios = torch.tensor(made.numbers["ratio"])
    assert [int((ratios > 1.28).sum()), int((ratios < 0.8).sum())] == [9, 18]
    assert "the ratio of 9 of 439 tokens is cut to 1.28, none is silenced by it" in made.sentence
    held = dataclasses.replace(
        ALGORITHMS["cispo"], name="held", knobs={"eps_low": 0.2, "eps_high": 0.28}
    )
    made = StepInspector(record, held, filter="clipped")
    assert "the ratio of 9 of 439 tokens is cut to 1.28 and that of 18 raised to 0.8, none is " \
        "silenced" in made.sentence  # fmt: skip
    assert len(made._visible()) == 27
    assert "Hatched: bounded." in made.note
    assert any("hatched: bounded" in words for words in still_texts(made))
    made.update = 1
    assert "every ratio is 1, so no ratio is bounded" in made.sentence
    only = dataclasses.replace(held, name="only", knobs={"eps_low": 0.2, "eps_high": 9.0})
    assert "the ratio of 18 of 439 tokens is raised to 0.8" in StepInspector(record, only).sentence


@pytest.mark.parametrize("name", ["reinforce", "sapo", "free"])
def test_what_has_no_clip_speaks_of_no_hatching(name, record):
    made = StepInspector(record, {**ALGORITHMS, **VARIANTS}[name])
    assert set("".join(made._row()["gates"])) == {"."}
    assert "atched" not in made.note
    assert not any("hatched" in words for words in still_texts(made))


@pytest.mark.parametrize("name", ["reinforce", "rloo", "maxrl"])
def test_without_a_ratio_nothing_corrects_for_old_samples(name, record):
    stale = "no ratio, so no clip; the samples are the old policy's, and nothing corrects for it"
    assert [stale in StepInspector(record, name, update=u).sentence for u in (1, 2, 3, 4)] \
        == [False, True, True, True]  # fmt: skip


@pytest.mark.parametrize(
    ("eps", "above"),
    [(0.0125, "1.0125"), (0.2, "1.2"), (4e-4, "1.0004"), (0.01, "1.01"), (2**-7, "1.007813")],
)
def test_an_edge_is_printed_with_all_its_digits(eps, above, record):
    row = dataclasses.replace(
        ALGORITHMS["dr_grpo"], name="mine", knobs={"eps_low": eps, "eps_high": eps}
    )
    assert f" above {above} with A > 0" in StepInspector(record, row).sentence


def test_a_dual_clip_is_named(record):
    made = StepInspector(record, VARIANTS["dual"])
    silent = made._row()["gates"][3].count("d")
    assert silent > 0
    assert f"{silent} above c = 1.5 with A < 0" in made.sentence


def test_the_browser_says_what_python_says(record, plain, tmp_path, missing):
    """Every row and update, rows and a loss of one's own, a group left out, one token alone."""
    node = shutil.which("node")
    if node is None:
        missing("node", "install nodejs to check the widgets' JavaScript")

    def mine(logp, logp_old, advantages, mask, *, eps_low, eps_high, sequences):
        return grpo_loss(
            logp, logp_old, advantages, mask, eps_low=eps_low, eps_high=eps_high,
            sequences=sequences,
        )  # fmt: skip

    held = dataclasses.replace(
        ALGORITHMS["cispo"], name="held", knobs={"eps_low": 0.2, "eps_high": 2**-7}
    )
    low = dataclasses.replace(held, name="low", knobs={"eps_low": 0.2, "eps_high": 9.0})
    plain["groups"][1] |= {"status": "discarded", "index": None}
    del plain["rewards"][1]
    plain["groups"][2]["index"] = 1
    plain["counts"]["sequences"] = 8
    mades = [StepInspector(plain, "gspo", "cispo"), StepInspector(plain, mine, "grpo")]
    mades += [StepInspector(record, own, "gspo") for own in (mine, held, low, *VARIANTS.values())]
    mades += [StepInspector(record, name, "ppo") for name in ALGORITHMS]
    cases = []
    for made in mades:
        for update in range(1, made.updates + 1):
            made.update = update
            texts = [made.sentence, made.note, made._differences()]
            cases.append({"state": made.state, "texts": texts})
    alone = StepInspector(load_record(plain).take([0]), "dr_grpo")
    row = alone._row() | {
        "gates": ["h" + "." * 15] * 3, "advantages": [1.0] * 15 + [0.0], "per_token": True,
    }  # fmt: skip
    alone._row = lambda key=None: row
    state = alone.state | {"step": alone.step | {"rows": [row]}}
    cases.append({"state": state, "texts": [alone.sentence, alone.note, alone._differences()]})
    assert "silences 1 of 16 tokens (1 above 1.2 with A > 0); 1 more has" in alone.sentence
    assert {"dr_grpo", "mine", "held", "low", "dual"} <= {c["state"]["algorithm"] for c in cases}
    (tmp_path / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    (tmp_path / "widget.mjs").write_text(base.module("step_inspector"), encoding="utf-8")
    (tmp_path / "compare.mjs").write_text(
        'import assert from "node:assert/strict"; import { readFileSync } from "node:fs";\n'
        'import widget, { differences, note, sentence } from "./widget.mjs";\n'
        'const cases = JSON.parse(readFileSync(new URL("./cases.json", import.meta.url)));\n'
        "for (const { state, texts } of cases) {\n"
        "  assert.deepEqual([sentence(state), note(state), differences(state)], texts);\n"
        "}\n"
    )
    run = subprocess.run(
        [node, tmp_path / "compare.mjs"], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stdout + run.stderr


def test_what_a_clipped_token_still_gets_is_said_and_drawn(record):
    made = StepInspector(record)
    assert "Hatched: clipped, only the KL pushes." in made.note
    assert any("hatched: clipped, only the KL pushes" in words for words in still_texts(made))
    made.algorithm = "gspo"  # no KL
    assert "Hatched: clipped." in made.note


def test_the_colours_scale_is_named(record, toy):
    assert "Full colour at ±2 (weight × 1,000)" in "".join(still_texts(StepInspector(record)))
    assert "(weight × 100)" in "".join(still_texts(StepInspector(toy)))


# --- the panel and the still --------------------------------------------------------------------


def written(made, tmp_path) -> dict[str, str]:
    """The chosen token's lines as the browser writes them."""
    (tmp_path / "widget.mjs").write_text(base.module("step_inspector"), encoding="utf-8")
    (tmp_path / "state.json").write_text(json.dumps(made.state), encoding="utf-8")
    script = tmp_path / "lines.mjs"
    script.write_text(
        'import { readFileSync } from "node:fs"; import { lines } from "./widget.mjs";\n'
        'const state = JSON.parse(readFileSync(new URL("./state.json", import.meta.url)));\n'
        "console.log(JSON.stringify(lines(state, state.token)));"
    )
    run = subprocess.run(["node", script], capture_output=True, text=True, check=True)
    return dict(json.loads(run.stdout))


def last_number(words: str) -> float:
    return float(words.rsplit(" = ", 1)[-1].replace("−", "-"))


def test_gspo_s_slope_is_that_of_one_token_and_all_tokens_carry_the_term(record, tmp_path, missing):
    """Autograd on the surrogate itself: one position's term, and the response's terms together."""
    if shutil.which("node") is None:
        missing("node", "install nodejs to check the widgets' JavaScript")
    made = StepInspector(record, "gspo")
    lines = written(made, tmp_path)
    step, row = sv.tensors(record), made._response(made.token)
    at = made.token - made.step["responses"][row]["span"][0]
    logp = step.updates[3].clone().requires_grad_()
    given, _ = sv._advantages(step, ALGORITHMS["gspo"])
    terms = -gspo(logp, step.old, given, step.mask, **ALGORITHMS["gspo"].knobs)[row]
    one, every = (
        torch.autograd.grad(part, logp, retain_graph=True)[0][row, at].item()
        for part in (terms[at], (terms * step.mask[row]).sum())
    )
    assert "∂/∂log π = ρ(y) A / |y| = " in lines["Its slope"]
    assert last_number(lines["Its slope"]) == pytest.approx(one, rel=1e-3)
    assert last_number(lines["Summed slope"]) == pytest.approx(every, rel=1e-3)
    assert "exp(mean of log π" in lines["Sequence ρ(y)"]
    assert "summed slope" in lines["Weight"]
    made.token = next(i for i, gate in enumerate(made._row()["gates"][3]) if gate == "h")
    lines = written(made, tmp_path)
    assert lines["Its slope"] == "the constant is chosen: ∂/∂log π = 0"
    assert "Summed slope" not in lines


def test_the_lines_say_what_their_numbers_are(record, tmp_path, missing):
    if shutil.which("node") is None:
        missing("node", "install nodejs to check the widgets' JavaScript")
    made = StepInspector(record, compare="dr_grpo")
    lines = written(made, tmp_path)
    group, place = divmod(made._response(made.token), 8)
    response = record.groups[group].responses[place]
    c, f = response.parts["correctness"], response.parts["format"]
    assert response.reward == pytest.approx(c + 0.1 * f, abs=1e-5)
    assert lines["Reward r"].startswith("correctness + 0.1 × format = ")
    assert lines["Advantage A"].endswith("(std of the sample, over n − 1 = 7)")
    assert lines["Token loss"].endswith("(the row's β)")
    assert " 0.04 × " in lines["Token loss"]
    assert lines["In the step's loss"].endswith(
        "(responses × own length; 48 of the step's 128 responses are shown)"
    )
    weights = [made._row(key)["weights"][3][made.token] for key in ("grpo", "dr_grpo")]
    said = re.match(r"([+−][\d.]+)(?: × 10\^\{−(\d)\})?, × ([\d.]+) of GRPO's$",
                    lines["Dr. GRPO's weight"])  # fmt: skip
    value = float(said[1].replace("−", "-")) * 10.0 ** -int(said[2] or 0)
    assert value == pytest.approx(weights[1], rel=1e-3)
    assert float(said[3]) == pytest.approx(weights[1] / weights[0], rel=1e-3)
    made.algorithm, made.token = "ppo", 0
    lines = written(made, tmp_path)
    assert "from here to the end, 9 tokens: " in lines["Σ k1"]
    first = record.groups[0].responses[0]
    kl = sum(first.logp_old) - sum(first.logp_ref)
    power = re.search(r"([\d.−]+)(?: × 10\^\{−(\d)\})?$", lines["Σ k1"])
    said = float(power[1].replace("−", "-")) * 10.0 ** -int(power[2] or 0)
    assert said == pytest.approx(kl, rel=1e-3)
    assert " − 0.02 × " in lines["Advantage A"]


def test_parts_that_do_not_add_up_are_only_listed(toy, tmp_path, missing):
    if shutil.which("node") is None:
        missing("node", "install nodejs to check the widgets' JavaScript")
    assert written(StepInspector(toy, token=0), tmp_path)["Reward r"] == "6 (correct 0)"


def still_texts(made, outside: list | None = None) -> list[str]:
    """The picture's texts; `outside` takes those that leave the image."""
    figure = Figure(dpi=100, layout="none")
    still = still_pictures.Still(
        made.state, made.note, made.off, made.sentence, picture_height=made.still_height
    )
    with matplotlib.style.context("default"):
        still.draw(made.draw_still, figure)
        FigureCanvasAgg(figure).draw()
        texts = [text for axes in figure.axes for text in axes.texts]
        for text in texts if outside is not None else ():
            if text.get_window_extent().x1 > figure.bbox.x1 + 1:
                outside.append(text.get_text())
    return [text.get_text() for text in texts]


@pytest.mark.parametrize("name", [*ALGORITHMS])
def test_nothing_of_a_still_is_cut_off(name, record):
    compare = "dr_grpo" if name != "dr_grpo" else "reinforce"
    outside = []
    for show in ("weight", "advantage"):
        still_texts(StepInspector(record, name, compare, show=show), outside)
    assert outside == []


def test_a_still_shows_what_the_filter_leaves(record):
    """As in the browser: other tokens keep their text only, other responses go."""
    made = StepInspector(record, "dr_grpo", filter="end")
    words = still_texts(made)
    ends = [i for r in made.step["responses"] if r["ended"] for i in [r["span"][1] - 1]]
    assert made.token in ends
    assert any(text.startswith("“end”, framed") or ", framed" in text for text in words)
    numbers = [text for text in words if re.fullmatch(r"0|[+−]\d[\d.]*", text)]
    assert 0 < len(numbers) <= len(ends)
    made.token = next(i for i in range(made.tokens) if i not in ends)
    assert made._seen() == ends[0]  # in its place
    assert any(", framed" in text for text in still_texts(made))
    made = StepInspector(record, "dr_grpo", update=1, filter="clipped")
    assert "The filter shows no token." in still_texts(made)
    assert any("outside the filter" in text for text in still_texts(made))


def test_a_filter_does_not_forget_the_chosen_token(record):
    made = StepInspector(record, token=40)
    made.filter = "clipped"
    assert made.token == 40
    assert made._seen() != 40
    made.filter = "all"
    assert made._seen() == 40


# --- what a record does not know ----------------------------------------------------------------


def test_without_a_reference_beta_is_0_and_the_note_says_so(plain):
    for group in plain["groups"]:
        for response in group["responses"]:
            response["logp_ref"] = None
    made = StepInspector(plain)
    assert "no reference log-probabilities, so β is 0" in made.note
    bare = dataclasses.replace(ALGORITHMS["grpo"], kl="none", kl_coefficient=0.0)
    expected = sv.row(sv.tensors(load_record(plain)), bare)
    assert made._row()["weights"] == expected["weights"]
    assert "the clip silences" in made.sentence
    assert "KL" not in made.sentence


def test_without_a_critic_v_is_the_groups_mean_reward_and_the_note_says_so(toy):
    made = StepInspector(toy, "ppo")
    assert "no critic: V is the group's mean reward" in made.note
    step = sv.tensors(toy)
    free = dataclasses.replace(ALGORITHMS["ppo"], kl="none", kl_coefficient=0.0)
    given, _ = sv._advantages(step, free)
    centred = step.rewards - step.rewards.mean(1, keepdim=True)
    expected = centred.reshape(-1, 1).expand(given.shape)
    assert given[step.mask].tolist() == pytest.approx(expected[step.mask].tolist())


def test_a_critics_own_values_are_used_where_there_are_some(plain):
    for group in plain["groups"]:
        for response in group["responses"]:
            response["values"] = [0.5] * len(response["tokens"])
    step = sv.tensors(load_record(plain))
    free = dataclasses.replace(ALGORITHMS["ppo"], kl="none", kl_coefficient=0.0)
    given, _ = sv._advantages(step, free)
    expected = (step.own_rewards - 0.5)[:, None].expand(given.shape)
    assert given[step.mask].tolist() == pytest.approx(expected[step.mask].tolist())
    assert "values come from the record" in StepInspector(plain, "ppo").note


def test_dynamic_sampling_leaves_out_groups_that_are_all_right(record):
    made = StepInspector(record, "dapo")
    right = [all(r.parts["correct"] for r in group.responses) for group in record.groups]
    assert made._row()["dropped"] == [i for i, all_right in enumerate(right) if all_right]
    assert "Dynamic sampling would have replaced" in made.note


def test_a_group_that_the_run_had_discarded_has_no_weight(plain):
    plain["groups"][1] |= {"status": "discarded", "index": None}
    rows = plain["rewards"]
    del rows[1]
    plain["groups"][2]["index"] = 1
    plain["counts"]["sequences"] = 8
    made = StepInspector(plain, compare="dr_grpo")
    first = sum(len(r["tokens"]) for r in plain["groups"][0]["responses"])
    last = first + sum(len(r["tokens"]) for r in plain["groups"][1]["responses"])
    for row in made.step["rows"]:
        for weights in row["weights"]:
            assert set(weights[first:last]) == {0.0}, row["key"]
            assert any(weights[last:])


def test_a_step_of_which_dynamic_sampling_left_nothing_is_shown(plain):
    plain["rewards"] = []
    plain["counts"] |= {"sequences": 0, "tokens": 0}
    for group in plain["groups"]:
        group |= {"status": "discarded", "index": None}
    made = StepInspector(plain, "dapo")
    assert "nothing is pushed" in made.sentence
    assert made.still()


def test_a_skipped_step_is_shown_without_an_update(plain):
    for group in plain["groups"]:
        for response in group["responses"]:
            response["updates"] = []
    made = StepInspector(plain)
    assert made.sentence.startswith("GRPO, no update was made: every ratio is 1, so no token")
    assert made.still()


def test_one_update_needs_no_slider(plain):
    for group in plain["groups"]:
        for response in group["responses"]:
            del response["updates"][1:]
    made = StepInspector(plain)
    kinds = {control["key"]: control["kind"] for control in made.controls}
    assert kinds["update"] == "data"
    assert made.still()
    with pytest.raises(ValueError, match="update is 2; it must be a whole number between 1 and 1"):
        made.update = 2


def test_texts_with_dollars_braces_and_markup_are_shown_as_they_are(plain):
    odd = ["$x$", r"\frac{", "<b>", "_{a}"]
    plain["groups"][1]["prompt"] = r"what is $\frac{1}{2$ & <i>?"
    for group in plain["groups"]:
        for response in group["responses"]:
            response["tokens"] = odd[: len(response["tokens"])]
    made = StepInspector(plain)
    assert made.still()
    assert set(made.step["texts"]) == set(odd)


def extreme(plain, log_ratio: float) -> dict:
    """Of the toy: one prompt, whose first token has become so much more (or less) likely."""
    plain["rewards"] = plain["rewards"][2:]
    plain["groups"] = copy.deepcopy(plain["groups"][2:])
    plain["groups"][0]["index"] = 0
    plain["counts"]["sequences"] = 4
    plain["counts"]["tokens"] = sum(len(r["tokens"]) for r in plain["groups"][0]["responses"])
    for response in plain["groups"][0]["responses"]:
        response["logp_old"][0] = response["logp_sampler"][0] = -abs(log_ratio)
        for update in response["updates"]:
            update["logp"][0] = 0.0 if log_ratio > 0 else -2 * abs(log_ratio)
    return plain


def longest(words: list[str]) -> int:
    return max(len(line) for text in words for line in text.splitlines())


def test_enormous_ratios_are_cut_as_the_library_cuts_them(plain, tmp_path, missing):
    if shutil.which("node") is None:
        missing("node", "install nodejs to check the widgets' JavaScript")
    names = ("grpo", "dr_grpo", "gspo", "cispo", "sapo", "ppo", "free", "reinforce")
    cases = []
    for log_ratio in (9.0, 300.0, 700.0, 9999.0, -9999.0):
        record = load_record(extreme(copy.deepcopy(plain), log_ratio))
        for name in names:
            made = StepInspector(record, {**ALGORITHMS, **VARIANTS}[name], compare="grpo", token=0)
            cases.append({
                "state": made.state, "numbers": made.numbers, "sentence": made.sentence,
                "note": made.note, "off": [], "react": {},
            })  # fmt: skip
            assert all(map(math.isfinite, made.weights))
        assert longest(still_texts(made)) < 160
    (tmp_path / "golden.json").write_text(json.dumps(cases), encoding="utf-8")
    (tmp_path / "widget.mjs").write_text(base.module("step_inspector"), encoding="utf-8")
    (tmp_path / "lines.mjs").write_text(
        'import { readFileSync } from "node:fs"; import { lines } from "./widget.mjs";\n'
        'const cases = JSON.parse(readFileSync(new URL("./golden.json", import.meta.url)));\n'
        "for (const { state } of cases) for (const words of lines(state, 0)) console.log(words[1]);"
    )
    command = ["node", HERE / "check.mjs", tmp_path / "widget.mjs", tmp_path / "golden.json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    command = ["node", tmp_path / "lines.mjs"]
    words = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert not re.search("NaN|undefined|Infinity", words)
    assert max(map(len, words.splitlines())) < 240
    assert "the difference is cut at ±638.8" in words


def test_a_single_response_pushes_nothing(plain):
    plain = extreme(plain, 1.0)
    plain["group"], plain["rewards"] = 1, [plain["rewards"][0][:1]]
    del plain["groups"][0]["responses"][1:]
    plain["counts"] |= {"sequences": 1}
    made = StepInspector(plain, "reinforce")
    assert "nothing is pushed" in made.sentence
    assert "0.00" not in made.sentence


def test_a_reward_too_large_to_compare_is_refused(plain):
    plain["groups"][0]["responses"][1]["reward"] = 1e160
    with pytest.raises(RecordError, match=r"groups\[0\].responses\[1\].reward = 1e\+160: too lar"):
        StepInspector(plain)


def test_long_texts_are_cut(plain):
    plain["groups"][0]["responses"][0]["tokens"][0] = "x" * 10_000
    plain["groups"][0]["responses"][0]["reward"] = plain["rewards"][0][0] = -1e6
    made = StepInspector(plain, token=0)
    words = still_texts(made)
    assert longest(words) < 160
    assert "x" * 23 + "…" in words
    assert "r = −1·10⁶" in words
    made = StepInspector(plain, "dr_grpo")
    assert len(made.sentence) < 500


# --- a learner's own ----------------------------------------------------------------------------


def test_a_row_of_ones_own_is_offered_and_has_a_formula(toy):
    mine = dataclasses.replace(
        ALGORITHMS["grpo"], name="mine", knobs={"eps_low": 0.05, "eps_high": 0.05}
    )
    made = StepInspector(toy, mine, compare="grpo")
    assert made.algorithm == "mine"
    assert made.options("algorithm")["mine"] == "mine"
    assert made._row()["formula"]
    silent = [sum(x != "." for x in made._row(key)["gates"][2]) for key in ("mine", "grpo")]
    assert silent[0] > silent[1]
    assert "above 1.05 with A > 0" in made.sentence
    made.algorithm = "dapo"
    assert made.sentence.startswith("DAPO")


def test_a_row_that_kept_the_tables_name_stands_beside_it(toy):
    tight = dataclasses.replace(ALGORITHMS["grpo"], knobs={"eps_low": 0.05, "eps_high": 0.05})
    tighter = dataclasses.replace(tight, knobs={"eps_low": 0.01, "eps_high": 0.01})
    made = StepInspector(toy, tight, compare="grpo")
    assert made.algorithm == "grpo (yours)"
    assert made._row()["gates"] != made._row("grpo")["gates"]
    both = StepInspector(toy, tight, compare=tighter)
    assert [both.algorithm, both.compare] == ["grpo (yours)", "grpo (yours)'"]
    same = StepInspector(toy, ALGORITHMS["grpo"])
    assert same.algorithm == "grpo"
    assert len(same.options("algorithm")) == len(ALGORITHMS)


def test_a_loss_of_ones_own_gives_the_numbers_of_the_same_row(toy):
    bare = dataclasses.replace(ALGORITHMS["grpo"], name="bare", kl="none", kl_coefficient=0.0)
    made = StepInspector(toy, grpo_loss, compare=bare)
    assert made._row()["weights"] == made._row("bare")["weights"]
    assert made._row()["gates"] == made._row("bare")["gates"]
    assert not made._row()["formula"]
    assert "Under bare no token changes sign or clip" in made.sentence
    assert "Your own loss" in made.note


def test_a_bug_in_ones_own_loss_shows(toy):
    """The minus forgotten: every weight of the library's row turns round."""

    def wrong(logp, logp_old, advantages, mask, *, eps_low, eps_high, sequences):
        return -grpo_loss(
            logp, logp_old, advantages, mask, eps_low=eps_low, eps_high=eps_high,
            sequences=sequences,
        )  # fmt: skip

    made = StepInspector(toy, wrong, compare=grpo_loss)
    mine, right = (made._row(key)["weights"][2] for key in ("wrong", "grpo_loss"))
    assert [-x for x in mine] == right


def test_an_own_average_over_a_part_of_the_step_is_warned_of(record, toy):
    """439 of the step's 1,158 tokens: mask.sum() makes the weights 2.64 times too large."""

    def averages(logp, logp_old, advantages, mask, *, eps_low, eps_high):
        return -(advantages * logp * mask).sum() / mask.sum()

    def told(logp, logp_old, advantages, mask, *, eps_low, eps_high, tokens):
        return -(advantages * logp * mask).sum() / tokens

    made = StepInspector(record, averages)
    assert "takes neither `tokens` nor `sequences`, and only 439 of the step's 1,158" in made.note
    right = StepInspector(record, told)
    assert "neither" not in right.note
    assert made.weights == pytest.approx([x * 1158 / 439 for x in right.weights])
    assert "neither" not in StepInspector(record, lambda *fields, **more: told(
        *fields, eps_low=0.2, eps_high=0.2, tokens=more["tokens"])).note  # fmt: skip
    assert "neither" not in StepInspector(toy, averages).note  # the whole step is there


@pytest.mark.parametrize(
    ("returns", "message"),
    [(lambda x: x, r"loss wrong: it must return a scalar tensor, got \(48, \d+\)"),
     (lambda x: 3.0, "loss wrong: it must return a scalar tensor, got float"),
     (lambda x: x.detach().sum(), "the loss has no gradient"),
     (lambda x: (x * float("nan")).sum(), "NaN or infinite")],
)  # fmt: skip
def test_a_loss_that_returns_something_else_is_one_sentence(returns, message, record):
    def wrong(logp, logp_old, advantages, mask, *, eps_low, eps_high):
        return returns(logp)

    with pytest.raises(ValueError, match=message) as caught:
        StepInspector(record, wrong)
    assert caught.value.__suppress_context__
    assert len(str(caught.value)) < 120


def test_the_present_weights_can_be_read(record):
    made = StepInspector(record, "gspo", update=2)
    exact = sv.row(sv.tensors(record), ALGORITHMS["gspo"], exact=True)["weights"]
    assert made.weights == exact[1] == made.numbers["weight"]
    made.update = 4
    assert made.weights == exact[3]


def test_a_surrogate_of_ones_own_has_no_formula_but_numbers(toy):
    def twice(logp, logp_old, advantages, *, eps_low, eps_high):
        return 2 * ppo_clip(logp, logp_old, advantages, eps_low=eps_low, eps_high=eps_high)

    row = dataclasses.replace(ALGORITHMS["dr_grpo"], name="twice", surrogate=twice)
    made = StepInspector(toy, row, compare="dr_grpo")
    assert not made._row()["formula"]
    ours, theirs = (made._row(key)["weights"][2] for key in ("twice", "dr_grpo"))
    assert ours == pytest.approx([2 * x for x in theirs], rel=1e-3)


def test_rows_that_this_record_cannot_have_are_left_out_and_named_when_asked_for(plain):
    """One response per prompt: nothing to compare within a group."""
    plain["group"] = 1
    plain["counts"]["sequences"] = 3
    plain["rewards"] = [row[:1] for row in plain["rewards"]]
    for group in plain["groups"]:
        del group["responses"][1:]
    made = StepInspector(plain, "reinforce")
    assert "rloo" not in made.options("algorithm")
    with pytest.raises(ValueError, match="leave_one_out"):
        StepInspector(plain, "rloo")


# --- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"record": "nothing.json"}, RecordError, "nothing.json: no such file"),
        ({"record": 3}, RecordError, "a path or a mapping, not a int"),
        ({"record": {}}, RecordError, "this is no step record"),
        ({"algorithm": "grop"}, ValueError, "algorithm is 'grop'; this widget was made with"),
        ({"compare": "grop"}, ValueError, "compare is 'grop'"),
        ({"algorithm": 3}, ValueError, "algorithm is 3; expected a name, a row of the table"),
        ({"update": 0}, ValueError, "update is 0; it must be a whole number between 1 and 4"),
        ({"update": 5}, ValueError, "update is 5"),
        ({"update": 1.5}, ValueError, "update is 1.5"),
        ({"update": "last"}, ValueError, "update is 'last'; expected a number"),
        ({"show": "loss"}, ValueError, "show is 'loss'.*weight, ratio"),
        ({"filter": "none"}, ValueError, "filter is 'none'.*all, clipped"),
        (
            {"token": 439},
            ValueError,
            "token is 439; it must.*has 439 tokens, from 0",
        ),
        ({"token": -1}, ValueError, "token is -1; it must be a whole number"),
        ({"step": {}}, TypeError, "takes no step: it comes from the record"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        StepInspector(**arguments)


def test_a_token_that_is_not_there_cannot_be_set_later():
    made = StepInspector(TOY)
    with pytest.raises(ValueError, match=r"token is 48; .*this record has 48 tokens"):
        made.token = 48
    before = made.state
    for wrong in (3, {}, {"texts": []}, StepInspector().step):
        with pytest.raises(ValueError, match="make a new StepInspector"):
            made.step = wrong
    assert made.state == before
    made.step = copy.deepcopy(made.step)  # as a page sends it back


def test_a_large_record_is_cut_to_whole_groups_and_the_note_says_so(toy, monkeypatch):
    monkeypatch.setattr(sv, "MOST_TOKENS", 40)
    made = StepInspector(toy)
    assert len(made.step["texts"]) == 32
    assert "the first 2 groups are drawn" in made.note
    monkeypatch.setattr(sv, "MOST_TOKENS", 10)
    with pytest.raises(ValueError, match=r"first group alone has 16 tokens.*record.take"):
        StepInspector(toy)


# --- committed and toy records ------------------------------------------------------------------


def test_the_committed_record_keeps_the_rule_that_chose_it(record):
    assert REFERENCE.stat().st_size < 60_000
    assert [group.index for group in record.groups] == [0, 1, 2, 3, 4, 5]
    assert [record.step, record.group, record.counts.sequences, record.updates] == [50, 8, 128, 4]
    equal = [len({r.reward for r in group.responses}) == 1 for group in record.groups]
    assert sum(equal) >= 2
    gates = sv.row(sv.tensors(record), ALGORITHMS["grpo"])["gates"][-1]
    assert "h" in gates
    assert "l" in gates
    expected = group_standardized(torch.tensor(record.rewards, dtype=torch.float64))
    for group in record.groups:
        used = [r.advantages[0] for r in group.responses]
        assert used == pytest.approx(expected[group.index].tolist(), abs=1e-4)


def sorting_toy():
    """GRPO on three sorting prompts with an end token: three updates on one batch of samples.

    This is how reference_runs/sorting_toy_step.json was made.
    """
    end, group, seed, row = 3, 4, 10, ALGORITHMS["grpo"]
    prompts = torch.tensor([[1, 0, 2], [2, 1, 0], [0, 2, 1]])
    reward = partial(inclusion_ordering_reward, eos_id=end)
    policy = AutoregressivePolicy(4, 4, eos_id=end, prompts=prompts).double()
    start = copy.deepcopy(policy)
    train(policy, prompts, reward, row, steps=60, learning_rate=0.1, seed=0)
    learners, learner = [], copy.deepcopy(policy)
    optimizer = torch.optim.Adam(learner.parameters(), lr=0.08)
    responses = policy.sample(prompts, group, seed=seed)
    advantages = row.advantage(reward(prompts[:, None], responses.view(3, group, -1)).double())
    for _ in range(3):
        learners.append(copy.deepcopy(learner))
        logp, old, ref = (m.log_probs(prompts, responses) for m in (learner, policy, start))
        mask = policy.mask(responses)
        batch = Batch(logp, old.detach(), advantages.view(-1, 1), mask, logp_ref=ref)
        optimizer.zero_grad()
        row.loss(batch).backward()
        optimizer.step()
    return sv.record_from_policies(
        learners, policy, prompts, reward, group=group, seed=seed, reference=start,
        correct=partial(sorted_reward, eos_id=end), name="sorting_toy",
    )  # fmt: skip


def test_the_toys_record_can_be_made_again(toy):
    """Sampling is exact, so texts and rewards are the same; log-probabilities to rounding."""
    again = sorting_toy()
    assert again.rewards == toy.rewards
    for one, other in zip(again.groups, toy.groups, strict=True):
        assert one.prompt == other.prompt
        for made, kept in zip(one.responses, other.responses, strict=True):
            assert made.tokens == kept.tokens
            assert made.ended == kept.ended
            assert made.logp_old == pytest.approx(kept.logp_old, abs=1e-4)
            for a, b in zip(made.updates, kept.updates, strict=True):
                assert a.logp == pytest.approx(b.logp, abs=1e-3)


def test_a_record_of_a_toy_without_end_token():
    policy = TabularPolicy(3, 3)
    moved = copy.deepcopy(policy)
    with torch.no_grad():
        moved.table += torch.linspace(-1, 1, 9).view(3, 3)
    prompts = torch.tensor([[2, 0, 1], [0, 1, 2]])
    made = sv.record_from_policies(
        moved, policy, prompts, inclusion_ordering_reward, group=4, seed=1
    )
    assert made.counts.model_dump() == {"sequences": 8, "tokens": 24, "length": 3}
    assert made.groups[0].prompt == "2 0 1"
    for response in made.groups[0].responses:
        assert not response.ended
        assert set(response.tokens) <= {"0", "1", "2"}
        assert response.logp_old == pytest.approx([-1.09861] * 3)
    shown = StepInspector(made, "dr_grpo")
    assert shown.sentence.startswith("Dr. GRPO, update 1 of 1")
    # without a correctness dynamic sampling has nothing to judge by
    assert shown._row("dapo")["dropped"] == []


def test_the_prompt_is_shown_without_chat_markers_and_the_answer_without_tags():
    chat = "<|im_start|>user\nSpell: abc<|im_end|>\n<|im_start|>assistant\n"
    assert sv.question(chat) == "Spell: abc"
    assert sv.question("2 0 1") == "2 0 1"
    assert sv.answer("<answer>cba</answer>") == "cba"
    assert sv.answer("<answer>cba</answer> and more") == "<answer>cba</answer> and more"
    assert sv.short("Spell this word backward (example: sun -> nus): abc") == "abc"
    assert len(sv.short("x" * 100)) == 24
    assert sv.visible(" a\n") == "␣a⏎"


# --- in a browser -------------------------------------------------------------------------------

STAGE = (HERE / "stage.js").read_text("utf-8")
# The focused token: its place, what it is called, and the place that the state says.
AT = """
() => {
  const cells = [...root.querySelectorAll(".scroll .cell")];
  const at = cells.indexOf(focused());
  return [at, at < 0 ? "" : focused().getAttribute("aria-label"), at < 0 ? 0 : focused().tabIndex];
}
"""


@pytest.fixture
def inspect(page):
    """A function that draws a StepInspector in a bare page."""

    def put(**arguments):
        made = StepInspector(**arguments)
        page.set_viewport_size({"width": 980, "height": 1200})
        page.set_content("<body style='margin: 0'></body>")
        page.evaluate(STAGE, base.module("step_inspector"))
        page.evaluate("(state) => show(state)", made.state)
        return made

    return put


@pytest.mark.browser
@pytest.mark.slow
def test_arrows_move_over_the_tokens_and_a_redraw_keeps_the_focus(page, inspect):
    inspect(record=TOY, algorithm="dr_grpo", token=0)
    page.locator(".scroll .cell").first.focus()
    assert page.evaluate(AT) == [0, "0, token 1 of 4, weight 0", 0]
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp", "End", "ArrowRight", "Home",
                "ArrowLeft", "ArrowLeft"):  # fmt: skip
        page.keyboard.press(key)
        at, _, tab = page.evaluate(AT)
        seen.append(at)
        assert tab == 0
        assert page.locator(".scroll .cell[tabindex='0']").count() == 1
        assert page.locator(".scroll .cell[aria-selected=true]").count() == 1
    assert seen == [1, 2, 6, 2, 3, 4, 4, 3, 2]
    node = page.evaluate_handle("() => focused()")
    for changes in ({"update": 1}, {"algorithm": "gspo"}, {"show": "ratio"}, {"compare": "ppo"}):
        page.evaluate("(changes) => change(changes)", changes)
        assert page.evaluate("(node) => focused() === node", node)
    assert page.evaluate(AT)[1].startswith("2, token 3 of 4, ratio ρ 1.00")


@pytest.mark.browser
@pytest.mark.slow
def test_a_filter_hides_the_rest_and_arrows_jump_over_it(page, inspect):
    made = inspect(record=TOY, algorithm="dr_grpo", filter="clipped")
    clipped = [i for i, gate in enumerate(made._row()["gates"][2]) if gate != "."]
    assert made.token in clipped
    page.locator(".scroll .cell[tabindex='0']").focus()
    page.keyboard.press("ArrowLeft")
    seen = [page.evaluate(AT)[0]]
    for _ in clipped:
        page.keyboard.press("ArrowRight")
        seen.append(page.evaluate(AT)[0])
    assert set(seen) <= set(clipped)
    assert "clipped" in page.evaluate(AT)[1]
    hidden = page.locator(".scroll .response.gone").count()
    shown = {made._response(i) for i in clipped}
    assert hidden == len(made.step["responses"]) - len(shown)
    # nothing is clipped at the first update: a sentence instead of an empty box
    page.evaluate("(changes) => change(changes)", {"update": 1})
    assert page.locator(".empty").inner_text() == "No token is clipped at this update."
    assert page.locator(".detail h3").inner_text().endswith(", outside the filter")
    no_clip = "This algorithm has no clip."
    none = {"cispo": "No ratio is bounded at this update.", "sapo": no_clip, "reinforce": no_clip}
    for algorithm, words in none.items():
        page.evaluate("(changes) => change(changes)", {"algorithm": algorithm})
        assert page.locator(".empty").inner_text() == words
    page.evaluate("(changes) => change(changes)", {"update": 3, "algorithm": "cispo"})
    assert page.locator(".scale").inner_text().endswith("bounded")


@pytest.mark.browser
@pytest.mark.slow
def test_a_filter_shows_another_token_and_gives_the_chosen_one_back(page, inspect):
    made = inspect(algorithm="dr_grpo", token=0)
    title = page.locator(".detail h3")
    assert title.inner_text() == "“<answer>”, token 1 of 9 in response 1 of 8, “scride → edircs”"
    page.get_by_role("radio", name="end tokens").check()
    end = made.step["responses"][0]["span"][1] - 1
    assert title.inner_text().startswith("“<|im_end|>”, token 9 of 9 in response 1 of 8")
    assert page.locator(".scroll .cell").nth(end).get_attribute("class") == "cell chosen"
    page.get_by_role("radio", name="all tokens").check()
    assert title.inner_text().startswith("“<answer>”, token 1 of 9")
    page.wait_for_function("() => model.state.filter === 'all' && model.saved > 0")
    assert page.evaluate("() => model.state.token") == 0


# The prompt under whose heading the chosen token stands, whether all of the heading can be seen
# and nothing lies on the token.
HEADING = """
() => {
  const box = root.querySelector(".scroll").getBoundingClientRect();
  const cell = root.querySelector(".scroll .cell.chosen");
  const head = cell.closest(".group").querySelector(".head");
  const [a, b] = [head.getBoundingClientRect(), cell.getBoundingClientRect()];
  const top = root.getRootNode().elementFromPoint((a.left + a.right) / 2, a.top + 4);
  const seen = a.top >= box.top && a.bottom <= box.bottom && head.contains(top);
  return seen && b.top >= a.bottom && b.bottom <= box.bottom;
}
"""


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [980, 420, 320])
def test_the_chosen_tokens_prompt_is_always_in_sight(width, page, inspect):
    made = inspect()
    page.set_viewport_size({"width": width, "height": 1400})
    page.evaluate("(state) => show(state)", made.state)
    page.evaluate("() => new Promise(requestAnimationFrame)")
    assert page.evaluate(HEADING)
    page.locator(".scroll .cell.chosen").focus()
    for key in ["ArrowDown"] * 18 + ["ArrowUp"] * 40 + ["End", "ArrowDown", "Home"]:
        page.keyboard.press(key)
        assert page.evaluate(HEADING), key


@pytest.mark.browser
@pytest.mark.slow
def test_a_click_writes_out_the_loss_and_python_hears_of_it(page, inspect):
    made = inspect()
    token = next(i for i, gate in enumerate(made._row()["gates"][3]) if gate == "h")
    page.locator(".scroll .cell").nth(token).click()
    page.wait_for_function("(token) => model.state.token === token && model.saved === 1", arg=token)
    words = page.locator(".detail").inner_text()
    assert "the constant is chosen: ∂/∂log π = 0" in words
    assert "clip(ρ, 0.8, 1.2)" in words
    assert page.evaluate("() => window.scrollY") == 0


# Where the focus is: its place among the tokens, and how much of it a window shows.
FOCUS = """
() => {
  const node = focused();
  const { top, left, bottom, right } = node.getBoundingClientRect();
  const whole = top >= 0 && left >= 0 && bottom <= innerHeight && right <= innerWidth;
  const inside = root.getRootNode().elementFromPoint((left + right) / 2, (top + bottom) / 2);
  const chosen = node.classList.contains("chosen") && node.matches(":focus-visible");
  return whole && node.contains(inside) && chosen;
}
"""


@pytest.mark.browser
@pytest.mark.slow
def test_the_focus_stays_in_a_small_window(page, inspect):
    """1,280 × 800 at 200 %."""
    made = inspect(token=0)
    page.set_viewport_size({"width": 640, "height": 400})
    page.evaluate("(state) => show(state)", made.state)
    page.locator(".scroll .cell").first.click()
    page.keyboard.press("ArrowRight")
    assert page.evaluate(FOCUS)  # and no outline stays where the mouse was
    keys = ["ArrowDown"] * 40 + ["ArrowRight"] * 10 + ["ArrowUp"] * 40
    keys += ["PageDown"] * 6 + ["PageUp"] * 3 + ["Control+End", "Control+Home", "End"]
    lost = [(i, key) for i, key in enumerate(keys) if page.keyboard.press(key) or not
            page.evaluate(FOCUS)]  # fmt: skip
    assert lost == []


@pytest.mark.browser
@pytest.mark.slow
def test_keys_jump_from_prompt_to_prompt_and_to_both_ends(page, inspect):
    made = inspect(record=TOY, algorithm="dr_grpo", token=0)
    starts = [made.step["responses"][4 * g]["span"][0] for g in range(3)]
    page.locator(".scroll .cell").first.focus()
    seen = []
    for key in ("PageDown", "PageDown", "ArrowRight", "PageUp", "Control+End", "Control+Home"):
        page.keyboard.press(key)
        seen.append(page.evaluate(AT)[0])
    assert seen == [starts[1], starts[2], starts[2] + 1, starts[1], made.tokens - 1, 0]


@pytest.mark.browser
@pytest.mark.slow
def test_a_screen_reader_hears_a_grid_its_rows_and_the_chosen_tokens_weight(page, inspect):
    inspect(algorithm="dr_grpo", token=3, compare="gspo")
    grid = page.get_by_role("grid", name="Tokens of the step", exact=True)
    assert grid.count() == 1
    row = grid.get_by_role("row", name="response 2 of 8: edircs, reward 1.10", exact=True)
    assert row.count() >= 1
    assert grid.get_by_role("rowgroup").count() == 6
    assert row.first.get_by_role("gridcell").count() == 9
    assert grid.get_by_role("gridcell", selected=True).count() == 1
    cell = page.locator(".scroll .cell.chosen")
    assert cell.get_attribute("aria-label").startswith("i, token 4 of 9, weight 0")
    described = cell.get_attribute("aria-describedby").split()
    words = [page.locator(f"#{name}").inner_text() for name in described]
    assert words[0].startswith("A is 0")
    assert words[1].endswith(" = 0")
    page.keyboard.press("Tab")
    assert page.locator(".scroll [aria-describedby]").count() == 1


@pytest.mark.browser
@pytest.mark.slow
def test_what_the_kl_pushes_is_coloured_under_the_hatching(page, inspect):
    """The largest is +1.11 of ±2."""
    made = inspect(filter="clipped")
    weights, gates = made._row()["weights"][3], made._row()["gates"][3]
    clipped = [i for i, gate in enumerate(gates) if gate != "."]
    largest = max(clipped, key=lambda i: weights[i])
    assert weights[largest] == pytest.approx(1.11, abs=0.01)
    look = "(n) => [getComputedStyle(n).backgroundColor, getComputedStyle(n).backgroundImage]"
    color, hatching = page.locator(".scroll .cell").nth(largest).evaluate(look)
    red, _, blue = map(int, re.findall(r"\d+", color)[:3])
    assert blue > red + 60
    assert "gradient" in hatching
    assert "clipped, only the KL pushes" in page.locator(".scale").inner_text()
    assert "weight × 1,000" in page.locator(".scale").inner_text()
    page.evaluate("() => change({ algorithm: 'dr_grpo' })")
    assert page.locator(".scale").inner_text().endswith("clipped")


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 640, 980])
def test_odd_records_fit_their_place(width, page, inspect, plain):
    """A huge reward, a long token, an unbroken prompt; the legend may wrap."""
    first = plain["groups"][0]
    first["prompt"] = "y" * 3000
    first["responses"][0]["tokens"][0] = "x" * 10_000
    first["responses"][0]["reward"] = plain["rewards"][0][0] = -1e6
    made = inspect(record=plain, compare="gspo", token=0)
    page.set_viewport_size({"width": width, "height": 1200})
    for show in ("weight", "factor"):
        page.evaluate("(state) => show(state)", {**made.state, "show": show})
        size = page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
        assert size[0] <= size[1]
        for part in (".picture", ".scroll"):
            spare = page.locator(part).evaluate("(n) => n.clientWidth - n.scrollWidth")
            assert spare >= 0, part
    fact, cell = (
        page.locator(f".scroll .{name}").first.bounding_box() for name in ("fact", "cell")
    )
    assert fact["x"] + fact["width"] <= cell["x"]
    assert page.locator(".fact").first.inner_text().startswith("r = −1·10⁶")
    token = page.locator(".scroll .cell").first
    assert token.get_attribute("title") == "x" * 10_000
    assert "x" * 23 + "…" in token.inner_text()
    assert page.locator(".head b").first.get_attribute("title") == "y" * 3000


@pytest.mark.browser
@pytest.mark.slow
def test_forced_colours_keep_the_scale_and_the_underline(page, inspect):
    made = inspect(algorithm="gspo", compare="grpo")
    page.emulate_media(forced_colors="active")
    page.evaluate("(state) => show(state)", made.state)
    turned = made.numbers["differs"]["turned"]
    cell = page.locator(".scroll .cell").nth(turned[0])
    assert "inset" in cell.evaluate("(n) => getComputedStyle(n).boxShadow")
    pixels = Image.open(io.BytesIO(cell.screenshot())).convert("L")
    assert [pixels.getpixel((pixels.width // 2, pixels.height - y)) < 80 for y in (2, 3)] == [1, 1]
    colors = page.locator(".ramp span").evaluate_all(
        "(all) => new Set(all.map((n) => getComputedStyle(n).backgroundColor)).size"
    )
    assert colors == 5
    page.emulate_media(forced_colors="none")


@pytest.mark.browser
@pytest.mark.slow
def test_factors_are_coloured_around_their_median(page, inspect):
    """Dr. GRPO divides by no deviation: all factors are small, and differ between responses."""
    made = inspect(compare="dr_grpo", show="factor")
    assert "Dr. GRPO's weight ÷ GRPO's" in page.locator(".scale").inner_text()
    words = page.locator(".ramp span").all_inner_texts()
    assert words[2] == f"×{made._middle():.2f}"
    numbers = page.locator(".scroll .cell .number").all_inner_texts()
    weights = [made._row(key)["weights"][3] for key in ("grpo", "dr_grpo")]
    assert numbers == [si._factor(a, b)[0] for a, b in zip(*weights, strict=True)]
    page.evaluate("() => change({ compare: 'none' })")
    assert "choose an algorithm to compare with" in page.locator(".scale").inner_text()
