"""The registry of questions: ``QUESTIONS["hw1/leave_one_out"]``."""

from autograder.questions import hw1, hw2, hw3, hw4, hw5
from autograder.questions.base import Draw, Mistake, Question

QUESTIONS: dict[str, Question] = {
    q.id: q for homework in (hw1, hw2, hw3, hw4, hw5) for q in homework.QUESTIONS
}

__all__ = ["QUESTIONS", "Draw", "Mistake", "Question", "find"]


def find(question_id: str) -> Question:
    """The question of that id; KeyError with the known ids otherwise."""
    if question_id not in QUESTIONS:
        known = ", ".join(QUESTIONS)
        raise KeyError(f"unknown question {question_id!r}; the known ones are: {known}")
    return QUESTIONS[question_id]
