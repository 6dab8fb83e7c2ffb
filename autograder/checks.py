"""``check("hw1/leave_one_out", fn)``: the verdict on the visible cases, in the notebook."""

from autograder.judge import judge


def check(question_id, function):
    verdict = judge(question_id, function, cases="visible")
    print(verdict)
    return verdict


def forbidden_imports(source: str) -> list[str]:
    return []


def as_html(verdict) -> str:
    return ""


def shown_just_now(verdict) -> bool:
    return False
