"""Homework 2: the functions of lectures 03 to 07. 20 points and a bonus."""

from autograder.questions.hw2 import k1, k2, k3, ppo_clip, token_ratio

QUESTIONS = (
    token_ratio.QUESTION,
    ppo_clip.QUESTION,
    k1.QUESTION,
    k2.QUESTION,
    k3.QUESTION,
)
