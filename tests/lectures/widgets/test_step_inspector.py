"""The step inspector's numbers are those of policy_gradients, on any record and any algorithm."""

import copy
import dataclasses
import json
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch

from lectures.widgets import StepInspector, base
from lectures.widgets import step_view as sv
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
    assert "get no gradient" in made.sentence


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
    assert "0 tokens differently" in made.sentence
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
        ({"step": 3}, TypeError, "multiple values|step"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        StepInspector(**arguments)


def test_a_token_that_is_not_there_cannot_be_set_later():
    made = StepInspector(TOY)
    with pytest.raises(ValueError, match=r"token is 48; .*this record has 48 tokens"):
        made.token = 48
    with pytest.raises(ValueError, match="make a new StepInspector"):
        made.step = 3


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
    assert page.evaluate(AT) == [0, "token 0, weight 0.00", 0]
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp", "End", "ArrowRight", "Home",
                "ArrowLeft", "ArrowLeft"):  # fmt: skip
        page.keyboard.press(key)
        at, _, tab = page.evaluate(AT)
        seen.append(at)
        assert tab == 0
        assert page.locator(".scroll .cell[tabindex='0']").count() == 1
        assert page.locator(".scroll .cell[aria-pressed=true]").count() == 1
    assert seen == [1, 2, 6, 2, 3, 4, 4, 3, 2]
    node = page.evaluate_handle("() => focused()")
    for changes in ({"update": 1}, {"algorithm": "gspo"}, {"show": "ratio"}, {"compare": "ppo"}):
        page.evaluate("(changes) => change(changes)", changes)
        assert page.evaluate("(node) => focused() === node", node)
    assert page.evaluate(AT)[1].startswith("token 2, ratio ρ 1.00")


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
