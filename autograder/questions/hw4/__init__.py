"""Homework 4: bugs that raise no error. 17 points here, 3 for a report that is read by hand."""

from autograder.questions.hw4 import (
    bug_1,
    bug_2,
    bug_3,
    bug_4,
    bug_5,
    response_mask,
    step_normaliser,
    truncated_importance_weight,
    whiten,
)

QUESTIONS = (
    response_mask.QUESTION,
    whiten.QUESTION,
    truncated_importance_weight.QUESTION,
    step_normaliser.QUESTION,
    bug_1.QUESTION,
    bug_2.QUESTION,
    bug_3.QUESTION,
    bug_4.QUESTION,
    bug_5.QUESTION,
)
