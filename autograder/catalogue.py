"""How well does the judge know a question's mistakes? `measure` asks it, mistake by mistake.

Every known mistake is written down (by ``buggy``) and judged like a learner's answer, on the
visible and on the final cases and under every accepted variant; then every pair that fits
together, on the final cases. The bars that the course holds itself to are in
`autograder.catalogue_report`; `python -m autograder catalogue` prints the rows.
"""

from dataclasses import dataclass
from functools import partial
from itertools import combinations
from math import comb

from autograder.cases import Case, collect
from autograder.judge import Verdict, assess, cases_for
from autograder.questions import find
from autograder.questions.base import Question


@dataclass(frozen=True)
class Row:
    """What the judge makes of one question's catalogue.

    mistakes, killed, named : how many single mistakes there are, lose points, and are named
        exactly (that one name and no other), on all cases and under all variants.
    pairs, pairs_named : how many pairs fit together, and are named as exactly those two.
    excluded : how many pairs the question leaves out, because the two cannot be made together, or
        are nothing new together.
    pairs_wrongly_named : a name was given that is in the pair only partly or not at all.
    confusable : groups of mistakes that no case tells apart ("A or B").
    problems : in words, what a bar would count: which mistake or pair was called what.
    """

    mistakes: int
    killed: int
    named: int
    pairs: int
    pairs_named: int
    pairs_wrongly_named: int
    excluded: int = 0
    confusable: tuple[frozenset[str], ...] = ()
    problems: tuple[str, ...] = ()


def measure(question_id: str, *, seed: int = 0) -> Row:
    """Judge every mistake of a question and every pair of them.

    seed : of the final cases. Raises KeyError for an unknown question.
    """
    question = find(question_id)
    final = cases_for(question_id, seed=seed)
    asked = [(cases_for(question_id, cases="visible"), "visible"), (final, "final")]
    killed = named = 0
    confusable, problems = [], []
    for mistake in question.mistakes:
        verdicts = [
            (which, verdict_of(question, [mistake.name], cases, variant))
            for cases, which in asked
            for variant in question.variants
        ]
        alive = [which for which, verdict in verdicts if verdict.points >= verdict.max_points]
        other = [(w, v) for w, v in verdicts if v.details["named"] != [mistake.name]]
        killed += not alive
        named += not other
        problems += [f"{mistake.name} passes the {which} cases" for which in dict.fromkeys(alive)]
        for which, verdict in other:
            if mistake.name in verdict.details["named"]:
                confusable.append(frozenset(verdict.details["named"]))
            problems.append(f"{mistake.name} on the {which} cases: {_called(verdict)}")
    pairs = pairs_of(question)
    exact = wrong = 0
    for pair in pairs:
        verdict = verdict_of(question, pair, final, question.variants[0])
        names = set(verdict.details["named"])
        exact += names == set(pair)
        if names and not names <= set(pair) and not set(pair) <= names:
            wrong += 1
            problems.append(f"{' + '.join(pair)}: {_called(verdict)}")
        elif verdict.passed:
            problems.append(f"{' + '.join(pair)} pass together")
    return Row(
        mistakes=len(question.mistakes),
        killed=killed,
        named=named,
        pairs=len(pairs),
        pairs_named=exact,
        pairs_wrongly_named=wrong,
        excluded=comb(len(question.mistakes), 2) - len(pairs),
        confusable=tuple(dict.fromkeys(confusable)),
        problems=tuple(dict.fromkeys(problems)),
    )


def pairs_of(question: Question) -> list[tuple[str, str]]:
    """The pairs of mistakes that can be made together."""
    names = [mistake.name for mistake in question.mistakes]
    return [p for p in combinations(names, 2) if frozenset(p) not in question.excludes]


def verdict_of(question: Question, names, cases: list[Case], variant: dict) -> Verdict:
    """The verdict on an answer that makes these mistakes and no other."""
    answer = partial(question.buggy, mistakes=frozenset(names), **variant)
    return assess(question.id, collect(answer, cases))


def _called(verdict: Verdict) -> str:
    return f"called {' + '.join(verdict.details['named']) or repr(verdict.cause)}"
