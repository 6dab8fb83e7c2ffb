"""Homework 3: the functions of lectures 08 to 10. 20 points."""

from autograder.questions.hw3 import (
    cispo,
    dapo_filter,
    grpo_loss,
    gspo,
    mean_fixed_length,
    mean_per_sequence,
    mean_per_token,
    overlong_penalty,
    sapo,
)

QUESTIONS = (
    mean_per_sequence.QUESTION,
    mean_per_token.QUESTION,
    mean_fixed_length.QUESTION,
    gspo.QUESTION,
    cispo.QUESTION,
    sapo.QUESTION,
    dapo_filter.QUESTION,
    overlong_penalty.QUESTION,
    grpo_loss.QUESTION,
)
