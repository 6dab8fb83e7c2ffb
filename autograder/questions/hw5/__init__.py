"""Homework 5: preferences and rewards. 20 points."""

QUESTIONS = ()
