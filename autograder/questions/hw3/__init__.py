"""Homework 3: the functions of lectures 08 to 10. 20 points."""

from autograder.questions.hw3 import mean_fixed_length, mean_per_sequence, mean_per_token

QUESTIONS = (
    mean_per_sequence.QUESTION,
    mean_per_token.QUESTION,
    mean_fixed_length.QUESTION,
)
