"""Homework 2: the functions of lectures 03 to 07. 20 points and a bonus."""

from autograder.questions.hw2 import (
    gae,
    k1,
    k2,
    k3,
    natural_gradient_step,
    ppo_clip,
    shape_rewards_with_kl,
    token_ratio,
    value_loss,
)

QUESTIONS = (
    token_ratio.QUESTION,
    ppo_clip.QUESTION,
    k1.QUESTION,
    k2.QUESTION,
    k3.QUESTION,
    gae.QUESTION,
    value_loss.QUESTION,
    shape_rewards_with_kl.QUESTION,
    natural_gradient_step.QUESTION,
)
