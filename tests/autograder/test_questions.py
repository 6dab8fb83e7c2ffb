"""The catalogue: every known mistake loses points and is named, alone and in pairs."""

from functools import partial
from itertools import combinations

import pytest
import torch

from autograder.cases import collect
from autograder.judge import argument_names, assess, cases_for
from autograder.questions import QUESTIONS
from autograder.questions.base import LECTURES, excluding

IDS = list(QUESTIONS)
SINGLES = [(q.id, m.name) for q in QUESTIONS.values() for m in q.mistakes]


def verdict_of(question, chosen, cases, variant):
    answer = partial(question.buggy, mistakes=frozenset(chosen), **variant)
    return assess(question.id, collect(answer, cases))


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
        assert mistake.lecture[:2] in LECTURES
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
            torch.testing.assert_close(ours.value, theirs.value, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("question_id", "name"), SINGLES)
def test_every_mistake_loses_points_and_is_named(question_id, name):
    question = QUESTIONS[question_id]
    mistake = next(m for m in question.mistakes if m.name == name)
    for which in ("visible", "final"):
        cases = cases_for(question_id, cases=which, seed=11)
        for variant in question.variants:
            verdict = verdict_of(question, [name], cases, variant)
            assert verdict.points < verdict.max_points
            assert verdict.details["named"] == [name], verdict.cause
            assert mistake.cause in verdict.cause
            assert verdict.details["hint"] == mistake.hint


@pytest.mark.slow
def test_pairs_of_mistakes_are_named(capsys):
    """At least 70 % of the pairs named as exactly those two, and not one named as others."""
    lines, wrong = [], []
    for question in QUESTIONS.values():
        cases = cases_for(question.id)
        count = dict.fromkeys(("exact", "one of the two", "among alternatives", "no name"), 0)
        pairs = [
            pair
            for pair in combinations([m.name for m in question.mistakes], 2)
            if frozenset(pair) not in question.excludes
        ]
        for pair in pairs:
            verdict = verdict_of(question, pair, cases, question.variants[0])
            assert verdict.points < verdict.max_points, (question.id, pair)
            named = set(verdict.details["named"])
            if named == set(pair):
                count["exact"] += 1
            elif named and named < set(pair):
                count["one of the two"] += 1
            elif set(pair) < named:
                count["among alternatives"] += 1
            elif named:
                wrong.append((question.id, pair, named))
            else:
                count["no name"] += 1
        assert count["exact"] >= 0.7 * len(pairs), (question.id, count)
        lines.append(
            f"{question.id:24s} mistakes {len(question.mistakes):3d}  pairs {len(pairs):4d}  "
            + "  ".join(f"{k} {v}" for k, v in count.items())
        )
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert not wrong


def test_excluding_reads_groups_and_one_against_many():
    assert excluding("a b c") == {frozenset("ab"), frozenset("ac"), frozenset("bc")}
    assert excluding("a: b c", "d e") == {frozenset("ab"), frozenset("ac"), frozenset("de")}
