"""Homework 3: the functions of lectures 08 to 10. 20 points."""

QUESTIONS = ()
