"""The page of a class counts right, is escaped and self-contained, and can be read in grey."""

import html
import re
from dataclasses import replace
from datetime import datetime, timedelta
from xml.etree import ElementTree

import pytest

from autograder.class_page import FILLS, page
from autograder.feedback import lecture_reference
from autograder.grade import Result, checked_release
from autograder.gradebook import Score
from autograder.judge import judge, refusal
from autograder.kept import Mark
from autograder.questions import find
from autograder.sandbox import NOT_ISOLATED

RELEASE = checked_release("hw1_policy_gradient")


def mark(question, status, verdict):
    return Mark(
        question.id, question.grade_id, verdict.points, verdict.max_points, status,
        verdict.cause or "", verdict.details,
    )  # fmt: skip


def all_right():
    return {q.id: mark(q, "right", judge(q.id, find(q.id).reference)) for q in RELEASE.questions}


RIGHT = all_right()
CAUSES = {q.id: find(q.id).mistakes[0] for q in RELEASE.questions}


def wrong(question):
    """The first mistake of the question's catalogue."""
    mistake = CAUSES[question.id].name

    def answer(*args, **knobs):
        return find(question.id).buggy(*args, mistakes=frozenset([mistake]), **knobs)

    return mark(question, "wrong", judge(question.id, answer))


def learner(name, changes=(), late=timedelta(0), **more):
    """A result and its score; `changes` : marks in place of right ones."""
    marks = tuple((RIGHT | {m.id: m for m in changes}).values())
    points = {m.grade_id: m.points for m in marks}
    score = Score(sum(points.values()), 20.0, points, frozenset(), {}, late)
    return Result(name, marks, file="x", score=score, **more)


@pytest.fixture(scope="module")
def group():
    """Twelve learners: 6 right, 3 with one mistake, one each unanswered, damaged, not there."""
    first, second = RELEASE.questions[:2]
    unanswered = refusal(second.id, "Not answered yet.")
    learners = [learner(f"right-{i}") for i in range(5)] + [learner("late", late=timedelta(days=1))]
    learners += [learner(f"wrong-{i}", [wrong(first)]) for i in range(3)]
    learners.append(learner("open", [mark(second, "unanswered", unanswered)]))
    nothing = tuple(
        mark(q, "not run", refusal(q.id, "There was nothing to run.")) for q in RELEASE.questions
    )
    for name, file in (("torn", "x"), ("absent", "")):
        zero = Score(0.0, 20.0, {q.grade_id: 0.0 for q in RELEASE.questions}, frozenset(), {})
        notes = ("The file is damaged.",) if file else ("No notebook was handed in.",)
        learners.append(Result(name, nothing, notes, empty=True, file=file, score=zero))
    return learners


def text_of(page):
    return html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", page, flags=re.S))


def pictures(page):
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.S)]


def test_tiles_count_who_handed_in(group):
    text = " ".join(text_of(page(RELEASE, group, due=datetime(2026, 12, 1, 23, 59))).split())
    assert "11 of 12 handed in" in text
    assert "1 of them late" in text
    assert "1 could not be read" in text
    assert "20 median of 20 points" in text
    assert "Deadline 2026-12-01 23:59 UTC" in text


def test_the_histogram_counts_everyone_once(group):
    histogram, _ = pictures(page(RELEASE, group))
    alt = histogram.get("aria-label")
    assert "10 learners" in alt
    counts = {span: int(count) for span, count in re.findall(r"(\d+ to \d+) points: (\d+)", alt)}
    first, second = (find(q.id).points for q in RELEASE.questions[:2])
    assert (first, second) == (3, 3)
    assert sum(counts.values()) == 10
    assert counts == {"16 to 18": 4, "18 to 20": 6}
    words = [node.text for node in histogram.iter("text")]
    assert {"points", "learners", "median 20"} <= set(words)
    assert len(list(histogram.iter("rect"))) == len(counts)


def test_the_bars_hold_the_verdicts_and_the_share_of_points(group):
    _, bars = pictures(page(RELEASE, group))
    alt = bars.get("aria-label")
    first, second = RELEASE.questions[:2]
    assert f"{first.function}: 7 right, 3 not yet right; 70 % of the points" in alt
    assert f"{second.function}: 9 right, 1 not answered; 90 % of the points" in alt
    assert "share of learners" in [node.text for node in bars.iter("text")]


def test_statuses_differ_in_grey_or_in_pattern():
    def lightness(colour):
        red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        return 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2

    looks = [(lightness(colour), pattern) for colour, pattern, _ in FILLS.values()]
    for i, (light, pattern) in enumerate(looks):
        for other, other_pattern in looks[:i]:
            assert abs(light - other) > 0.15 or pattern != other_pattern
    for colour, _, ink in FILLS.values():
        bright, dark = sorted((lightness(colour), lightness(ink)), reverse=True)
        assert (bright + 0.05) / (dark + 0.05) > 4.5


def test_the_commonest_mistake_stands_there_with_its_hint(group):
    text = " ".join(text_of(page(RELEASE, group)).split())
    mistake = CAUSES[RELEASE.questions[0].id]
    assert f"3 × {mistake.cause}" in text.replace("`", "")
    assert mistake.hint.replace("`", "") in text
    assert "3 wrong or partly right; 9 points lost in all" in text


def test_names_stand_in_one_section_that_can_be_left_out(group):
    names = {result.student for result in group}
    whole, anonymous = page(RELEASE, group), page(RELEASE, group, anonymous=True)
    assert {n for n in names if f">{n}<" in whole} == {"late", "open", "torn", "absent"}
    assert not any(f">{name}<" in anonymous for name in names)
    assert "Who needs attention" not in anonymous


def test_it_says_when_answers_were_not_isolated(group):
    assert NOT_ISOLATED in text_of(page(RELEASE, group, isolated=False))
    assert NOT_ISOLATED not in text_of(page(RELEASE, group))


def test_long_labels_fit_and_reflections_without_points_alarm_nobody():
    release = checked_release("hw4_silent_bugs")
    points = {q.grade_id: float(q.points) for q in release.questions}
    marks = tuple(
        Mark(q.id, q.grade_id, q.points, q.points, "right", "", {}) for q in release.questions
    )
    results = [
        Result(name, marks, file="x", unanswered=frozenset([empty]),
               score=Score(17.0, 20.0, points, frozenset(), {}))
        for name, empty in (("ann", "q1_reflection"), ("bob", "experiment_report"))
    ]  # fmt: skip
    text = page(release, results)
    assert "left empty: experiment_report" in text
    assert "q1_reflection" not in text
    assert "ann" not in text_of(text).split("Who needs attention")[1]
    for words in pictures(text)[1].iter("text"):
        if words.get("text-anchor") == "end":
            assert float(words.get("x")) > 8.5 * len(words.text)


def test_what_learners_write_is_text(group):
    evil = '<script>alert(1)</script>"><img src=x>`</code><b>`'
    question = RELEASE.questions[0]
    bad = replace(wrong(question), cause=evil)
    result = learner(evil, [bad], notes=(evil,), late=timedelta(hours=1))
    broken = Result("broken", error=evil)
    empty = replace(group[-1], student=f"no {evil}", notes=(evil,))
    made = page(RELEASE, [*group, result, broken, empty])
    assert "&lt;script&gt;" in made
    for raw in ("<script", "<img", "<b>`", "</code><b>"):
        assert raw not in made
    assert "href" not in made
    assert "src=" not in made.replace("src=x&gt;", "")


def test_a_class_without_a_graded_notebook_has_a_page_too(group):
    nobody = [result for result in group if result.empty]
    made = page(RELEASE, nobody)
    assert "Nothing that could be run" in made
    assert not pictures(made)


def test_the_statement_reads_as_a_place():
    assert lecture_reference("the statement, [PREF-2]") == (
        "The statement of this question, equation PREF-2"
    )
    assert lecture_reference("the statement") == "The statement of this question"
    assert lecture_reference("02, [BL-8]").startswith("Lecture 02, baselines and advantages, equa")
    assert (
        lecture_reference("06, [GAE-1]", file=False) == "Lecture 06, values and GAE, equation GAE-1"
    )
