"""The class that the benchmark of grading makes."""

from collections import Counter

from benchmarks.grading import COMPARED, LEARNERS, make_class


def test_the_class_is_of_mixed_quality_and_the_same_every_time():
    learners = make_class(0)
    assert learners == make_class(0)
    assert learners != make_class(1)
    assert len({learner.name for learner in learners}) == LEARNERS == 40
    kinds = Counter(learner.kind for learner in learners)
    assert {"right", "wrong", "unfinished", "crash", "endless", "damaged", "nothing"} <= set(kinds)
    honest = {learner.kind for learner in learners if learner.honest}
    assert not honest & {"endless", "damaged", "nothing", "syntax error", "library"}
    assert sum(learner.honest for learner in learners) >= COMPARED
