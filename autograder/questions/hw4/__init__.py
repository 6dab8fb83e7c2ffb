"""Homework 4: silent bugs, after lecture 11. 20 points."""

QUESTIONS = ()
