"""A class in one page."""


def page(release, results, scores, *, due=None, isolated=True) -> str:
    return ""
