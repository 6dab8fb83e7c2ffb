"""Homework 2: the functions of lectures 03 to 07. 20 points and a bonus."""

QUESTIONS = ()
