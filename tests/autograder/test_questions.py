"""The catalogue: every known mistake loses points and is named, alone and in pairs."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from autograder.cases import collect
from autograder.catalogue import measure, verdict_of
from autograder.judge import argument_names, cases_for
from autograder.questions import QUESTIONS
from autograder.questions.base import LECTURES, STATEMENT, excluding

IDS = list(QUESTIONS)


@pytest.mark.parametrize("question_id", IDS)
def test_a_question_is_complete(question_id):
    question = QUESTIONS[question_id]
    names = [m.name for m in question.mistakes]
    assert question.id == f"{question.homework}/{question.function_name}"
    assert len(names) == len(set(names)) >= 10
    assert {n for pair in question.excludes for n in pair} <= set(names)
    for mistake in question.mistakes:
        assert mistake.cause.endswith(".")
        assert "unknown" not in mistake.cause
        assert mistake.hint.strip()[-1] in ".?"
    for place in (question.lecture, *(m.lecture for m in question.mistakes)):
        assert place[:2] in LECTURES or place.startswith(STATEMENT)
    for case in cases_for(question_id) + cases_for(question_id, cases="visible"):
        assert len(argument_names(question)) == len(case.args)
        assert all(f"{k}=" in question.signature or k in question.signature for k in case.knobs)


@pytest.mark.parametrize("question_id", IDS)
def test_buggy_without_mistakes_is_the_reference(question_id):
    """Two implementations that were written apart from each other."""
    question = QUESTIONS[question_id]
    for variant in question.variants:
        for case in cases_for(question_id, seed=5):
            if case.stability:
                continue
            ours, theirs = (
                collect(partial(f, **variant), [case])[0]
                for f in (question.buggy, question.reference)
            )
            assert ours.kind == theirs.kind
            single = torch.float32 in (ours.value.dtype, theirs.value.dtype)
            close = {"rtol": 1e-6 if single else 1e-10, "atol": 1e-12, "check_dtype": False}
            torch.testing.assert_close(ours.value, theirs.value, **close)
            for mine, right in zip(ours.gradients, theirs.gradients, strict=True):
                if right is not None:
                    torch.testing.assert_close(mine, right, **close)


@pytest.mark.parametrize("question_id", IDS)
def test_every_mistake_loses_points_and_is_named_alone_and_in_pairs(question_id):
    """All lose points; 95 % of the single ones and 70 % of the pairs are named, none wrongly."""
    row = measure(question_id, seed=11)
    assert row.killed == row.mistakes, row.problems
    assert row.named >= 0.95 * row.mistakes, row.problems
    assert row.pairs_named >= 0.7 * row.pairs, row
    assert row.pairs_wrongly_named == 0, row.problems


@pytest.mark.parametrize("question_id", IDS)
def test_the_verdict_says_the_mistakes_own_cause_and_hint(question_id):
    question = QUESTIONS[question_id]
    cases = cases_for(question_id, cases="visible")
    for mistake in question.mistakes:
        verdict = verdict_of(question, [mistake.name], cases, question.variants[0])
        if verdict.details["named"] == [mistake.name]:
            assert mistake.cause in verdict.cause
            assert verdict.details["hint"] == mistake.hint
            assert verdict.details["lecture"] == mistake.lecture


@pytest.mark.parametrize("question_id", IDS)
def test_a_mistake_that_is_not_in_the_catalogue_is_never_given_another_name(
    question_id, monkeypatch
):
    """Each mistake in turn is taken out, and an answer that makes it is judged.

    A name is right only if what it stands for does the very same on other inputs too (entries that
    are NaN in the answer left out); else the verdict describes the numbers or says "unknown".
    """
    question = QUESTIONS[question_id]
    cases = cases_for(question_id)
    others = [c for seed in (21, 22) for c in cases_for(question_id, seed=seed) if not c.stability]
    described = 0
    for mistake in question.mistakes:
        rest = tuple(m for m in question.mistakes if m is not mistake)
        less = replace(question, mistakes=rest)
        monkeypatch.setitem(QUESTIONS, question_id, less)
        verdict = verdict_of(less, [mistake.name], cases, question.variants[0])
        named = verdict.details["named"]
        described += "unknown" not in verdict.cause
        assert verdict.points < verdict.max_points
        assert mistake.cause not in verdict.cause
        assert verdict.details["hint"]
        if named:
            for case in others:
                ours, theirs = (
                    collect(partial(question.buggy, mistakes=frozenset(x)), [case])[0].value
                    for x in ([mistake.name], named)
                )
                seen = ~ours.isnan()
                torch.testing.assert_close(ours[seen], theirs[seen], rtol=1e-5, atol=1e-6)
        else:
            assert verdict.cause.startswith(SAID), verdict.cause
    assert described >= DESCRIBED * len(question.mistakes)


SAID = ("The ", "On ", "Right on ordinary")  # describe's sentences; "The cause is unknown" too
DESCRIBED = 0.25  # of a question's mistakes; the rest is called unknown


def test_measure_counts_what_is_confused_and_what_passes(monkeypatch):
    """A catalogue with a double and with a mistake that is none falls below every bar."""
    question = QUESTIONS["hw1/batch_centered"]
    known = {m.name: m for m in question.mistakes}
    sign, other = known["sign"], known["group_mean"]
    double, harmless = (replace(sign, name=name) for name in ("double", "harmless"))

    def buggy(rewards, *, mistakes=frozenset()):
        mistakes = {"sign" if name == "double" else name for name in mistakes}
        return question.buggy(rewards, mistakes=frozenset(mistakes))

    worse = replace(question, buggy=buggy, mistakes=(sign, other, double, harmless))
    monkeypatch.setitem(QUESTIONS, question.id, worse)
    row = measure(question.id)
    assert (row.mistakes, row.killed, row.named) == (4, 3, 1)
    assert row.confusable == (frozenset({"sign", "double"}),)
    assert "harmless passes the visible cases" in row.problems


def test_excluding_reads_groups_and_one_against_many():
    assert excluding("a b c") == {frozenset("ab"), frozenset("ac"), frozenset("bc")}
    assert excluding("a: b c", "d e") == {frozenset("ab"), frozenset("ac"), frozenset("de")}
