"""The judge: its contract, the order of its checks, its points and what it says."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autograder import check
from autograder.cases import Case, Outcome, Outcomes, collect, identical
from autograder.judge import (
    Verdict,
    assess,
    cases_for,
    forbidden_imports,
    judge,
    redact,
    refusal,
)
from autograder.patterns import speciality
from autograder.questions import QUESTIONS

ROOT = Path(__file__).parents[2]
IDS = list(QUESTIONS)


def right(question_id):
    return QUESTIONS[question_id].reference


def failed(verdict):
    return verdict.details["property"]


# The contract.


@pytest.mark.parametrize("question_id", IDS)
@pytest.mark.parametrize("cases", ["visible", "final"])
def test_the_reference_gets_full_points(question_id, cases):
    verdict = judge(question_id, right(question_id), cases=cases)
    assert verdict.passed
    assert verdict.cause is None
    assert verdict.points == verdict.max_points == QUESTIONS[question_id].points


@pytest.mark.parametrize("call", [judge, cases_for])
def test_an_unknown_question_raises_and_names_the_known_ones(call):
    arguments = ("hw1/leave_two_out", len) if call is judge else ("hw1/leave_two_out",)
    with pytest.raises(KeyError, match="hw1/leave_one_out"):
        call(*arguments)


def test_unknown_cases_raise():
    with pytest.raises(ValueError, match="visible"):
        judge("hw1/reinforce", right("hw1/reinforce"), cases="hidden")


def test_judge_is_assess_after_collect():
    def answer(rewards):
        return rewards - rewards.mean(0)

    cases = cases_for("hw1/group_centered", seed=3)
    assert judge("hw1/group_centered", answer, seed=3) == assess(
        "hw1/group_centered", collect(answer, cases)
    )


@pytest.mark.parametrize("question_id", IDS)
def test_seeds_give_other_numbers_and_the_same_seed_the_same(question_id):
    first, again, other = (cases_for(question_id, seed=s) for s in (1, 1, 2))
    assert all(identical(a, b) for c, d in zip(first, again, strict=True)
               for a, b in zip(c.tensors, d.tensors, strict=True))  # fmt: skip
    assert not all(identical(a, b) for c, d in zip(first, other, strict=True)
                   for a, b in zip(c.tensors, d.tensors, strict=False))  # fmt: skip
    visible = cases_for(question_id, cases="visible", seed=1)
    same = cases_for(question_id, cases="visible", seed=2)
    assert all(map(identical, visible[0].tensors, same[0].tensors))


@pytest.mark.parametrize("question_id", IDS)
def test_inputs_hide_no_bug(question_id):
    """Two seeds, several sizes or knobs, float64 where numbers are real, no square batch."""
    cases = cases_for(question_id)
    settings = {(tuple(c.args[0].shape), str(sorted(map(str, c.knobs.items())))) for c in cases}
    shapes = {tuple(c.args[0].shape) for c in cases}
    assert len(settings) >= 2
    assert sum(len(s) > 1 and s[0] == s[1] for s in shapes) < max(len(shapes), 2) / 2
    real = [t for c in cases for t in c.args if t.is_floating_point()]
    assert not real or any(t.dtype == torch.float64 for t in real)
    half = len(cases) // 2
    assert not all(map(identical, cases[0].tensors, cases[half].tensors))
    visible = cases_for(question_id, cases="visible")
    shown = {(tuple(c.args[0].shape), str(sorted(map(str, c.knobs.items())))) for c in visible}
    assert settings - shown


def test_a_process_that_only_collects_loads_no_reference():
    import subprocess
    import sys

    code = (
        "import sys, autograder.cases; "
        "print([m for m in sys.modules if m.startswith(('policy_gradients', 'autograder.q', "
        "'autograder.j', 'toy_models'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_package_and_module_both_offer_judge():
    import autograder

    verdict = autograder.judge("hw1/batch_centered", lambda r: r - r.mean())
    assert verdict.passed


@pytest.mark.parametrize("question_id", IDS)
def test_details_are_plain_data_without_tensors(question_id):
    for answer in (right(question_id), lambda *a, **k: a[0] * 0):
        verdict = judge(question_id, answer)
        json.dumps(verdict.details)


# Wrong answers that fit every question.


def parts(result):
    return result if isinstance(result, tuple) else (result,)


def broken(question_id, change, *, before=None):
    """The right answer, with every tensor that it returns changed.

    before : what happens to the arguments (a list, in place), if anything.
    """
    function = right(question_id)

    def answer(*args, **knobs):
        args = list(args)
        if before:
            before(args)
        changed = tuple(change(x) for x in parts(function(*args, **knobs)))
        return changed if len(changed) > 1 else changed[0]

    return answer


def times(factor):
    """A multiple; of True and False: -1 is the opposite, other factors are taken as 0 or 1."""

    def change(x):
        if x.dtype is torch.bool:
            return ~x if factor < 0 else x & bool(factor)
        return x * factor if x.is_floating_point() or factor >= 0 else 1 - x

    return change


def same_kind(x):
    return x


FLOATING = [i for i in IDS if QUESTIONS[i].result == "floating"]
MASKED = [
    i
    for i in IDS
    if re.search(r"\bmask\b", QUESTIONS[i].signature) and QUESTIONS[i].homework != "hw1"
]
VALUES = {i: [x for o in collect(right(i), cases_for(i)) for x in o.value.flatten()] for i in IDS}
BINARY = [i for i in IDS if all(x in (0, 1) for x in VALUES[i])]
DIGITS = [i for i in FLOATING if any(x != x.bfloat16() for x in VALUES[i])]
SEVERAL_AXES = [i for i in IDS if any(c.args[0].dim() > 1 for c in cases_for(i))]


@pytest.mark.parametrize("question_id", FLOATING)
@pytest.mark.parametrize("factor", [0.0, 2.0, 0.5, -1.0, 1.01])
def test_zeros_multiples_and_the_negated_answer_never_pass(question_id, factor):
    verdict = judge(question_id, broken(question_id, times(factor)))
    assert not verdict.passed
    assert verdict.points == 0
    assert "unknown" not in verdict.cause
    # Where it is a mistake of the catalogue, its cause speaks.
    words = {0.0: "zero", -1.0: "sign"}
    expected = words.get(factor, f"{factor:g} times")
    found = expected in verdict.cause or "in every entry" in verdict.cause
    assert verdict.details["named"] or found, verdict.cause


@pytest.mark.parametrize("question_id", BINARY)
def test_a_mask_turned_over_all_zero_or_all_one_never_passes(question_id):
    for change, words in (
        (lambda x: (1 - x.double()).to(x.dtype), "opposite"),
        (torch.zeros_like, "in every entry"),
        (torch.ones_like, "in every entry"),
    ):
        verdict = judge(question_id, broken(question_id, change))
        assert verdict.points == 0
        assert verdict.details["named"] or words in verdict.cause, verdict.cause


@pytest.mark.parametrize("question_id", IDS)
@pytest.mark.parametrize("number", [0.0, 1.0, 0.5])
def test_a_constant_answer_never_passes(question_id, number):
    verdict = judge(question_id, broken(question_id, lambda x: torch.full_like(x, number)))
    assert verdict.points == 0
    assert "unknown" not in verdict.cause or number


@pytest.mark.parametrize(
    "question_id", [i for i in IDS if any(c.differentiable for c in cases_for(i))]
)
def test_a_detached_answer_loses_points(question_id):
    verdict = judge(question_id, broken(question_id, torch.Tensor.detach))
    assert failed(verdict) == "gradient"
    assert 0 < verdict.points < verdict.max_points
    assert "gradient" in verdict.cause or verdict.details["named"]


@pytest.mark.parametrize("question_id", IDS)
def test_an_answer_that_writes_into_its_inputs_loses_points(question_id):
    """After it has computed the right thing: what is graded is that the inputs are changed."""
    function = right(question_id)

    def answer(*args, **knobs):
        with torch.no_grad():
            result = function(*args, **knobs)
        for arg in args:
            arg.detach().copy_(torch.where(arg.bool(), 0, 1).to(arg.dtype))
        return result

    verdict = judge(question_id, answer)
    assert failed(verdict) in ("inputs", "gradient")
    assert "in place" in verdict.cause
    assert verdict.points < verdict.max_points


@pytest.mark.parametrize("question_id", SEVERAL_AXES)
def test_an_answer_that_only_works_for_a_square_batch_is_refused(question_id):
    def before(args):
        i = next(i for i, arg in enumerate(args) if arg.dim() > 1)
        args[i] = args[i] + 0 * args[i].transpose(0, 1)

    verdict = judge(question_id, broken(question_id, same_kind, before=before))
    assert (verdict.points, failed(verdict)) == (0, "runs")
    assert "must match" in verdict.cause


@pytest.mark.parametrize("question_id", MASKED)
def test_an_answer_that_ignores_the_mask_is_refused(question_id):
    place = [n.strip() for n in QUESTIONS[question_id].signature.strip("()").split(",")].index(
        "mask"
    )

    def before(args):
        args[place] = torch.ones_like(args[place])

    verdict = judge(question_id, broken(question_id, same_kind, before=before))
    assert not verdict.passed
    assert failed(verdict) in ("value", "finite", "padding")


@pytest.mark.parametrize("question_id", IDS)
def test_an_answer_that_knows_only_the_visible_inputs_is_refused(question_id):
    """It gives the right values for each input that a learner can see, and zeros for others."""
    known = {}
    for case in cases_for(question_id, cases="visible"):
        key = [(tuple(a.shape), a.nan_to_num().double().sum().item()) for a in case.args]
        known[str(key)] = None
    function = right(question_id)

    def answer(*args, **knobs):
        key = [(tuple(a.shape), a.detach().nan_to_num().double().sum().item()) for a in args]
        result = function(*args, **knobs)
        if str(key) in known:
            return result
        changed = tuple(torch.zeros_like(x) for x in parts(result))
        return changed if len(changed) > 1 else changed[0]

    assert judge(question_id, answer, cases="visible").passed
    for seed in (0, 1):
        verdict = judge(question_id, answer, seed=seed)
        assert verdict.points == 0


@pytest.mark.parametrize("question_id", IDS)
@pytest.mark.parametrize(
    ("returned", "prop"),
    [
        (None, "runs"),
        ("a string", "runs"),
        ((1, 2), "runs"),
        (torch.zeros(17, 3), "shape"),
    ],
)
def test_what_is_no_tensor_of_the_right_shape_is_refused_in_words(question_id, returned, prop):
    verdict = judge(question_id, lambda *a, **k: returned)
    assert (verdict.points, failed(verdict)) == (0, prop)
    assert "unknown" not in verdict.cause


@pytest.mark.parametrize("question_id", IDS)
def test_dtype_nan_and_a_missing_function_end_in_the_right_check(question_id):
    odd = {
        "floating": lambda x: x.round().long(),
        "bool": lambda x: x.double(),
        "mask": lambda x: x * (1 + 0j),
    }[QUESTIONS[question_id].result]
    verdict = judge(question_id, broken(question_id, odd))
    assert failed(verdict) == "floating"
    assert "dtype" in verdict.cause
    if QUESTIONS[question_id].result != "bool":
        verdict = judge(question_id, broken(question_id, lambda x: x.double() * math.nan))
        assert failed(verdict) == "finite"
        assert "NaN" in verdict.cause or verdict.details["named"]
    for nothing in (None, 3, "name"):
        verdict = judge(question_id, nothing)
        assert (verdict.points, failed(verdict)) == (0, "callable")


@pytest.mark.parametrize("question_id", IDS)
def test_an_exception_is_called_one(question_id):
    def answer(*args, **knobs):
        raise ValueError("no idea")

    verdict = judge(question_id, answer)
    assert (verdict.points, failed(verdict)) == (0, "runs")
    assert "ValueError: no idea (line" in verdict.cause


@pytest.mark.parametrize("question_id", IDS)
def test_an_error_on_one_input_alone_costs_all_points(question_id):
    """One entry off by 3 % of the answer's size, on the last of the final inputs only."""
    cases = [c for c in cases_for(question_id) if not c.stability]
    function, calls = right(question_id), []

    def answer(*args, **knobs):
        calls.append(1)
        result = parts(function(*args, **knobs))
        if len(calls) == len(cases_for(question_id)):
            first = result[0].clone().flatten()
            size = result[0].abs().max() if result[0].dtype is not torch.bool else 1
            step = max(size, 1) * 0.03 if first.is_floating_point() else 1
            first[-1] = ~first[-1] if first.dtype is torch.bool else first[-1] + step
            result = (first.reshape(result[0].shape), *result[1:])
        return result if len(result) > 1 else result[0]

    assert cases
    assert not judge(question_id, answer).passed


def test_the_learners_global_settings_and_exits_do_not_matter():
    function = right("hw1/token_log_probs")
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    try:
        assert judge("hw1/token_log_probs", function).passed
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
    verdict = judge("hw1/reinforce", lambda logp, advantages: exit(0))
    assert "SystemExit" in verdict.cause


@pytest.mark.parametrize("question_id", DIGITS)
def test_half_precision_inside_is_not_accurate_enough(question_id):
    """Asked where the results are no small whole numbers, which have no digits to lose."""
    answer = broken(question_id, lambda x: x.to(torch.bfloat16).to(x.dtype))
    assert not judge(question_id, answer).passed


def everything_set():
    return (
        torch.get_default_device(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        torch.is_anomaly_enabled(),
        torch.is_grad_enabled(),
        torch.get_rng_state().tolist(),
    )


@pytest.mark.parametrize("ending", ["return", "raise", "interrupt", "too long"])
def test_check_leaves_torch_as_it_was_and_judges_what_changes_it(ending, monkeypatch, capsys):
    """Printed text, warnings and global settings of an answer reach nobody else."""
    import signal
    import warnings

    if ending == "too long":
        monkeypatch.setattr("autograder.checks.SECONDS", 0.5)

    def batch_centered(rewards):
        print("seen")
        warnings.warn("careful", stacklevel=1)
        result = rewards - rewards.mean()
        torch.manual_seed(7)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_deterministic_debug_mode("error")
        torch.autograd.set_detect_anomaly(True)
        torch.set_num_threads(3)
        torch.set_default_device("meta")
        if ending == "raise":
            raise ValueError("no")
        if ending == "interrupt":
            raise KeyboardInterrupt
        while ending == "too long":
            pass
        return result

    before, handler = everything_set(), signal.getsignal(signal.SIGALRM)
    running = signal.getitimer(signal.ITIMER_REAL)[0] > 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if ending == "interrupt":
            with pytest.raises(KeyboardInterrupt):
                check("hw1/batch_centered", batch_centered)
        else:
            assert check("hw1/batch_centered", batch_centered).passed == (ending == "return")
    assert everything_set() == before
    assert signal.getsignal(signal.SIGALRM) == handler
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0) == running
    assert "seen" in capsys.readouterr().out


def test_an_unanswered_question_is_called_unanswered():
    def reinforce(logp, advantages):
        raise NotImplementedError

    verdict = judge("hw1/reinforce", reinforce)
    assert (verdict.points, failed(verdict)) == (0, "callable")
    assert verdict.cause.startswith("Not answered yet")


def test_an_exception_is_reported_with_its_line_and_without_numbers_of_the_input():
    def reinforce(logp, advantages):
        raise ValueError(f"secret {logp}")

    verdict = judge("hw1/reinforce", reinforce)
    hidden = cases_for("hw1/reinforce")[0].args[0]
    assert "ValueError" in verdict.cause
    assert "(line" in verdict.cause
    everything = verdict.cause + json.dumps(verdict.details)
    assert not any(f"{x:.4f}" in everything for x in hidden.flatten().tolist())


def test_redaction_keeps_sizes_and_drops_decimals():
    text = redact("size 3 must match 4: tensor([1.25, -3e-05, .5e+3])")
    assert "size 3 must match 4" in text
    assert "25" not in text
    assert "5e" not in text


def test_the_order_of_the_checks_is_the_contracts():
    verdict = judge("hw1/token_log_probs", right("hw1/token_log_probs"))
    assert [c["property"] for c in verdict.details["checks"]] == [
        "callable", "runs", "shape", "floating", "finite", "value", "gradient", "inputs",
        "stability",
    ]  # fmt: skip


def test_checks_after_the_first_failure_are_not_reached():
    checks = judge("hw1/reinforce", lambda logp, advantages: logp).details["checks"]
    passed = [c["passed"] for c in checks]
    assert passed.index(False) == [c["property"] for c in checks].index("value")
    assert set(passed[passed.index(False) + 1 :]) == {None}


# Half points.


def test_right_values_with_a_gradient_into_the_advantages_earn_half():
    verdict = judge("hw1/reinforce", lambda logp, advantages: -logp * advantages)
    assert (verdict.points, verdict.max_points) == (1.5, 3)
    assert "not detached" in verdict.cause


def test_a_gradient_into_constants_is_judged_only_where_the_statement_asks_for_detach():
    """Elsewhere no input that is a constant requires grad."""
    for question_id in IDS:
        if any(c.constants for c in cases_for(question_id)):
            homework = question_id.split("/")[0]
            source = next((ROOT / "solutions").glob(f"{homework}_*/*.ipynb"))
            cells = json.loads(source.read_text("utf-8"))["cells"]
            name = question_id.split("/")[1]
            place = next(
                i for i, c in enumerate(cells) if f'check("{question_id}"' in "".join(c["source"])
            )
            before = [c for c in cells[:place] if c["id"].endswith("-statement")]
            text = "".join(before[-1]["source"]) + "".join(cells[place - 1]["source"])
            assert re.search(r"[Dd]etach|constant", text.split("BEGIN SOLUTION")[0]), name


def test_the_softmax_before_the_log_earns_half_and_is_named():
    def answer(logits, tokens, *, temperature=1.0):
        chance = torch.softmax(logits / temperature, -1)
        return torch.log(chance.gather(-1, tokens.unsqueeze(-1)).squeeze(-1))

    verdict = judge("hw1/token_log_probs", answer)
    assert (verdict.points, failed(verdict)) == (1.5, "stability")
    assert "softmax" in verdict.cause


def test_padding_is_judged_after_everything_on_the_valid_tokens(monkeypatch):
    """No question of homework 1 has a mask; this one is its REINFORCE loss with padding."""
    question = QUESTIONS["hw1/reinforce"]

    def generate(draw, final):
        (case, *_) = question.generate(draw, final)
        padding = torch.zeros(case.weights.shape, dtype=torch.bool)
        padding[0, 2:] = True
        return [replace(case, padding=padding, differentiable=(), weights=None)]

    monkeypatch.setitem(QUESTIONS, question.id, replace(question, generate=generate))
    assert judge(question.id, question.reference).passed

    def felt(logp, advantages):
        loss = question.reference(logp, advantages)
        return torch.cat([loss[:1] + torch.arange(loss.shape[1]).clamp(min=1) - 1, loss[1:]])

    verdict = judge(question.id, felt)
    assert (failed(verdict), verdict.points) == ("padding", 1.5)
    assert "padding" in verdict.cause


# Outcomes may come from a foreign process.


def test_outcomes_that_do_not_fit_cost_points_and_raise_nothing():
    cases = cases_for("hw1/token_log_probs")
    honest = collect(right("hw1/token_log_probs"), cases)
    oddities = [
        Outcome(),
        replace(honest[0], gradients=()),
        replace(honest[0], gradients=(torch.zeros(1),) * 9),
        replace(honest[0], gradients=(torch.zeros(2, 2),)),
        replace(honest[0], modified=(0, 99, -3)),
        replace(honest[0], value=torch.tensor(True)),
        replace(honest[0], value=torch.full((3, 5), complex(1, 2))),
        replace(honest[0], error="<b>x</b>"),
    ]
    for odd in oddities:
        verdict = assess("hw1/token_log_probs", Outcomes(cases, [odd, *honest[1:]]))
        assert not verdict.passed, odd
    with pytest.raises(ValueError, match="outcomes"):
        Outcomes(cases, honest[1:])


def test_a_refusal_is_a_verdict_of_no_points():
    verdict = refusal("hw1/reinforce", "Took too long.", hint="Is there an endless loop?")
    assert isinstance(verdict, Verdict)
    assert (verdict.points, verdict.passed, verdict.cause) == (0, False, "Took too long.")


# Imports.


@pytest.mark.parametrize(
    "source",
    [
        "import policy_gradients",
        "import numpy as np",
        "from scipy.special import logsumexp",
        "import torch, policy_gradients.advantages as pg",
        "from toy_models.exact import *",
        "def f(x):\n    from autograder.judge import judge\n    return x",
        "import importlib\nimportlib.import_module('policy_gradients.advantages')",
        "importlib.import_module('policy_' + 'gradients')",
        "__import__('toy_models')",
        "exec('from policy_gradients import advantages')",
        "import sys\nsys.modules['policy_gradients.advantages']",
        "%matplotlib inline\nfrom policy_gradients.advantages import leave_one_out",
        "def broken(:\n    import policy_gradients",
    ],
)
def test_course_packages_are_found_however_they_are_imported(source):
    assert forbidden_imports(source)


@pytest.mark.parametrize(
    "source",
    [
        "import torch\nfrom einops import rearrange\nimport math",
        "# import policy_gradients",
        "'''see policy_gradients'''\nx = 'toy_models'",
        "import torch.nn.functional as F\nfrom collections import deque",
        "from autograder import check",
        "policy_gradients = 3",
        "table['lectures'] + settings.get('solutions')",
        "%timeit f(x)\n!ls",
        "",
        "def broken(:",
    ],
)
def test_honest_sources_are_not_refused(source):
    assert forbidden_imports(source) == []


def test_check_refuses_an_answer_that_calls_the_library(capsys):
    from policy_gradients.advantages import leave_one_out as ready

    namespace = {"ready": ready}
    exec("def leave_one_out(rewards):\n    return ready(rewards)", namespace)
    for function in (namespace["leave_one_out"], ready):
        verdict = check("hw1/leave_one_out", function)
        assert (verdict.points, verdict.passed) == (0, False)
        assert "policy_gradients" in verdict.cause


def test_check_follows_helper_functions():
    import policy_gradients.advantages as advantages

    namespace = {"advantages": advantages}
    exec(
        "def helper(r):\n    return advantages.leave_one_out(r)\n"
        "def leave_one_out(r):\n    return helper(r)\n",
        namespace,
    )
    assert not check("hw1/leave_one_out", namespace["leave_one_out"]).passed


def test_check_refuses_packages_that_are_not_allowed():
    import numpy

    namespace = {"np": numpy}
    exec("def batch_centered(r):\n    return r - float(np.mean(r.numpy()))\n", namespace)
    verdict = check("hw1/batch_centered", namespace["batch_centered"])
    assert verdict.points == 0
    assert "numpy" in verdict.cause
    assert "torch, einops and the standard library" in verdict.cause


def endless(rewards):
    while True:
        try:
            while True:
                pass
        except Exception:
            pass


def test_check_interrupts_what_does_not_end_and_leaves_the_timer_as_it_was(monkeypatch):
    import signal

    monkeypatch.setattr("autograder.checks.SECONDS", 0.2)
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    signal.setitimer(signal.ITIMER_REAL, 300)
    try:
        verdict = check("hw1/batch_centered", endless)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 300
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert (verdict.points, verdict.details["property"]) == (0, "runs")
    assert "batch_centered was still running after 0.2 seconds" in verdict.cause
    assert not rung


def test_check_works_where_there_is_no_timer(monkeypatch):
    import signal
    import threading

    verdicts = []

    def there():
        verdicts.append(check("hw1/batch_centered", lambda r: r - r.mean()))

    thread = threading.Thread(target=there)
    thread.start()
    thread.join()
    monkeypatch.delattr(signal, "setitimer")
    there()
    assert [v.passed for v in verdicts] == [True, True]


def test_a_wrong_entry_is_shown_on_visible_inputs_only():
    def answer(rewards):
        return rewards - rewards.amin()

    shown = judge("hw1/batch_centered", answer, cases="visible").details
    case = next(
        c for c in cases_for("hw1/batch_centered", cases="visible") if c.name == shown["case"]
    )
    words = re.fullmatch(r"at \[(.*)\]: yours (.*), expected (.*)", shown["example"])
    where, yours, expected = words.groups()
    place = tuple(map(int, where.split(", ")))
    rewards = case.args[0]
    assert float(yours) == pytest.approx(float(answer(rewards)[place]), rel=1e-3)
    assert float(expected) == pytest.approx(float((rewards - rewards.mean())[place]), rel=1e-3)
    assert judge("hw1/batch_centered", answer).details["example"] == ""


def test_an_input_cut_from_its_graph_counts_as_changed():
    verdict = judge("hw1/reinforce", lambda logp, a: -a.detach_() * logp)
    assert failed(verdict) == "inputs"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("unknown_name + rewards", "spelled"),
        ("rewards.mean(axes=1)", "signature"),
        ("1 - (rewards > 0)", "convert it first"),
        ("rewards - rewards.mean(1)", "keepdim=True"),
        ("rewards.nothing", "type"),
        ("rewards.mean(2)", "sizes differ"),
        ("int('x')", "small example"),
    ],
)
def test_each_kind_of_exception_has_its_hint(error, words):
    namespace = {}
    exec(f"def answer(rewards):\n    return {error}", namespace)
    assert words in judge("hw1/group_centered", namespace["answer"]).details["hint"]


def test_returning_an_argument_is_called_that():
    for question_id in IDS:
        assert "unchanged" in judge(question_id, lambda first, *_, **__: first).cause


def test_unusual_tensors_and_classes_are_refused_in_words():
    class Secret12345:
        pass

    for odd in (torch.zeros(3, 4).to_sparse(), torch.zeros(3, 4, device="meta"), Secret12345()):
        verdict = judge("hw1/group_centered", lambda rewards, odd=odd: odd)
        assert failed(verdict) == "runs"
        assert "Secret" not in verdict.cause


def test_nan_does_not_hide_a_known_mistake():
    verdict = judge(
        "hw1/group_centered", lambda r: (r - r.mean(1, keepdim=True)) / r.std(1, keepdim=True)
    )
    assert verdict.details["named"] == ["standardised"]
    assert "NaN" in verdict.cause


def test_what_is_said_of_some_inputs_is_not_said_of_all():
    from policy_gradients.advantages import optimal_baseline

    cause = judge("hw1/optimal_baseline", lambda r, s: optimal_baseline(r, s).clamp(max=1.0)).cause
    assert re.search(r"goes wrong on \d of \d inputs", cause)


def test_check_returns_the_verdict_and_prints_it_outside_a_notebook(capsys):
    verdict = check("hw1/group_centered", lambda rewards: rewards - rewards.mean())
    shown = capsys.readouterr().out
    assert verdict == judge(
        "hw1/group_centered", lambda rewards: rewards - rewards.mean(), cases="visible"
    )
    assert verdict.cause in shown
    assert verdict.details["hint"] in shown
    with pytest.raises(KeyError):
        check("hw1/nothing", len)


def test_the_table_escapes_what_a_learner_wrote():
    from autograder.checks import as_html

    def answer(rewards):
        raise ValueError("<script>alert(1)</script>")

    html = as_html(judge("hw1/batch_centered", answer))
    assert "<script" not in html
    assert "&lt;script" in html


@pytest.mark.parametrize("form", ["{:d}", "{:x}", "{:e}"])
def test_a_message_cannot_carry_the_inputs_in_another_form(form):
    def answer(rewards):
        numbers = [int(1e6 * x) for x in rewards.flatten().tolist()]
        raise ValueError(" ".join(form.format(n).replace(".", "p") for n in numbers))

    cause = judge("hw1/batch_centered", answer).cause
    assert "ValueError" in cause
    assert "(line" in cause
    assert not re.search(r"\d\d", cause.partition("(line")[0])


# --- what is said where no mistake is known has to be true of every question ------------------


def visible(question_id, function):
    return judge(question_id, function, cases="visible")


def test_of_several_results_the_wrong_one_is_told_and_shown():
    from policy_gradients.advantages import gae

    def answer(rewards, values, done, **knobs):
        advantages, _ = gae(rewards, values, done, **knobs)
        return advantages, advantages + rewards * values

    verdict = visible("hw2/gae", answer)
    assert verdict.cause.startswith("The first result is right; the second result ")
    assert re.match(r"second result at \[\d+, \d+\]: yours ", verdict.details["example"])
    for text in (verdict.cause, verdict.details["hint"]):
        assert "others" not in text
    assert "where 2 tensors are expected" in visible("hw2/gae", lambda *a, **k: "text").cause
    wide = visible("hw2/gae", lambda r, v, d, **k: (r[:, :-1], r[:, :-1]))
    assert "one too short" in wide.cause  # of each of the two


def test_inputs_that_go_wrong_are_told_with_what_they_have():
    right_clip = right("hw2/ppo_clip")
    verdict = visible(
        "hw2/ppo_clip", lambda logp, old, a, **knobs: right_clip(logp, old, a[:, :1], **knobs)
    )
    assert "others" not in verdict.cause
    assert "goes wrong on" in verdict.cause
    assert "advantages has more than one column" in verdict.details["hint"]


def test_what_sets_cases_apart_is_found():
    def case(x, mask, clip):
        return Case("", (torch.zeros(x), torch.tensor(mask)), knobs={"clip": clip})

    bad, good = case((2, 3), [[1, 0], [0, 0]], None), case((2,), [[1, 0], [1, 0]], 0.5)
    empty, other = (case((2,), m, 1.0) for m in ([[1], [0]], [[1], [1]]))
    assert speciality([bad], [good], ("x", "mask")) == "x has 2 axes and a response is empty"
    assert speciality([bad], [good], ("x", "y")) == "x has 2 axes and clip is None"
    assert speciality([empty], [other], ("x", "mask")) == "a response is empty"
    assert speciality([bad], [bad], ("x", "mask")) == ""
    assert speciality([bad], [], ("x", "mask")) == ""


@pytest.mark.parametrize(
    ("question_id", "answer", "words"),
    [
        ("hw3/mean_per_token", lambda x, mask, **_: x[mask].mean(), "`mask.bool()`"),
        ("hw4/whiten", lambda a, mask, **_: a[mask.float()], "`mask.bool()`"),
        ("hw2/shape_rewards_with_kl", lambda s, p, r, mask, **_: 1 - mask, "mask.to(scores.dtype)"),
        ("hw5/kto", lambda p, r, d, *_, **__: (1 - d) * p, "desirable.to(logp.dtype)"),
        ("hw5/kto", lambda p, r, d, *_, **__: torch.where(d, p, r), "`desirable.bool()`"),
        ("hw2/value_loss", lambda v, o, r, clip=None: v.clamp(-clip, clip), "`if clip is None`"),
        ("hw2/ppo_clip", lambda p, o, a, **_: a if a > 0 else p, "torch.where"),
        ("hw2/ppo_clip", lambda p, o, a, **_: -torch.min(p, 0), "`.values`"),
        ("hw3/dapo_filter", lambda c, **_: (c > 0).any(1).float(), "return it as it is"),
        ("hw4/bug_1", lambda mask: (mask.cumsum(1) - 1) * mask - 7 * (mask == 0), "on padding"),
    ],
)
def test_a_hint_speaks_of_this_question(question_id, answer, words):
    verdict = visible(question_id, answer)
    assert words in verdict.details["hint"]
    for text in (verdict.cause, verdict.details["hint"]):
        assert "done" not in text
        assert "do not multiply with a mask" not in text


def test_the_entry_shown_is_none_of_the_padding_where_both_fillings_are_accepted():
    right_gspo = right("hw3/gspo")

    def answer(logp, old, a, mask, **knobs):
        out = right_gspo(logp, old, a, mask, **knobs)
        return torch.where(mask.bool(), out * (1 + torch.arange(out.shape[1]) / 9), 0.0)

    verdict = visible("hw3/gspo", answer)
    place = tuple(map(int, re.match(r"at \[(.*)\]", verdict.details["example"])[1].split(", ")))
    case = next(
        c for c in cases_for("hw3/gspo", cases="visible") if c.name == verdict.details["case"]
    )
    assert case.args[3][place] == 1


def test_one_factor_for_a_whole_input_is_not_called_a_factor_per_row():
    right_whiten = right("hw4/whiten")

    def answer(advantages, mask, **knobs):
        return right_whiten(advantages, mask, **knobs) * mask.shape[1] ** 0.3

    assert "for each row" not in visible("hw4/whiten", answer).cause


def test_a_dtype_is_no_lead_where_numbers_are_wrong():
    right_rewards = right("hw2/shape_rewards_with_kl")

    def answer(scores, logp, logp_ref, mask, *, beta):
        out = right_rewards(0 * scores, logp, logp_ref, mask, beta=beta)
        lengths = mask.long().sum(1)
        paid = torch.arange(mask.shape[1]) == (lengths - 1).clamp(min=0)[:, None]
        return out + torch.where(paid & (lengths > 0)[:, None], scores[:, None], 0.0)

    verdict = visible("hw2/shape_rewards_with_kl", answer)
    assert not verdict.passed
    assert "dtype" not in verdict.details["hint"]


def test_no_outcome_makes_the_judge_itself_fail():
    class Forward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logp, advantages):
            return -advantages * logp

    verdict = judge("hw1/reinforce", Forward.apply)
    assert failed(verdict) == "gradient"
    for question_id in IDS:
        cases = cases_for(question_id, cases="visible")
        forged = [
            replace(o, error="NotImplementedError") for o in collect(right(question_id), cases)
        ]
        assess(question_id, Outcomes(cases, forged))
    many = collect(right("hw1/reinforce"), cases := cases_for("hw1/reinforce"))
    flood = [replace(o, modified=(0,) * 10_000) for o in many]
    assert len(assess("hw1/reinforce", Outcomes(cases, flood)).cause) < 200


def test_an_exceptions_text_can_be_printed_and_holds_no_long_word():
    def answer(rewards):
        raise ValueError("a\ud800b\x1b[31m\u202e" + "abcdefgh" * 5)

    cause = judge("hw1/group_centered", answer).cause
    assert cause.isprintable()
    assert "abcdefgh" not in cause
