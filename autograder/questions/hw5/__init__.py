"""Homework 5: preferences and rewards. 20 points."""

from autograder.questions.hw5 import bradley_terry, dpo, hack_proof_reward, ipo, kto

QUESTIONS = (
    bradley_terry.QUESTION,
    dpo.QUESTION,
    ipo.QUESTION,
    kto.QUESTION,
    hack_proof_reward.QUESTION,
)
