"""How do wrong numbers differ from the right ones? In words, when no known mistake matches."""

UNKNOWN = "The cause is unknown: the numbers are those of no mistake in the catalogue."
UNKNOWN_HINT = (
    "Work out the small example of the statement by hand and compare entry by entry; "
    "then change one knob at a time."
)


def describe(question, cases, expected, outcomes, failed) -> tuple[str, str]:
    """(sentence, hint)."""
    return UNKNOWN, UNKNOWN_HINT
