"""Homework 1: the functions of lectures 01 and 02. 20 points."""

from autograder.questions.hw1 import (
    batch_centered,
    group_centered,
    group_standardized,
    leave_one_out,
    optimal_baseline,
    reinforce,
    reward_to_go,
    token_log_probs,
)

QUESTIONS = (
    token_log_probs.QUESTION,
    reinforce.QUESTION,
    reward_to_go.QUESTION,
    batch_centered.QUESTION,
    group_centered.QUESTION,
    group_standardized.QUESTION,
    leave_one_out.QUESTION,
    optimal_baseline.QUESTION,
)
