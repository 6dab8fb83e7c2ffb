"""Predict first: keep the reader's prediction and show it beside the result.

    predict("zero share", 0.1, "share of groups that teach nothing")
    reveal("zero share", measured)

A prediction lives in the kernel's memory and nowhere else. Leaves out: scores and files; being
wrong here costs nothing and is where the learning happens.
"""

from numbers import Real

from IPython.display import display

_predictions: dict[str, tuple[object, str]] = {}


def predict(key: str, value: object, what: str) -> None:
    """Keep `value` as the reader's prediction under `key`; `what` says what it is, with its unit.

    The notebook ships a natural guess; the reader replaces it and runs the cell again.
    """
    _predictions[key] = (value, what)
    _say(f"**Predicted** {what}: **{_format(value)}**")


def reveal(key: str, truth: object) -> None:
    """Show the prediction under `key`, the truth, and how far apart they are.

    Numbers get a signed difference; anything else is compared for equality. Raises KeyError for
    a key without a prediction.
    """
    if key not in _predictions:
        known = ", ".join(repr(k) for k in _predictions) or "none yet"
        raise KeyError(f"no prediction named {key!r} (there are: {known}): run its predict() cell")
    value, what = _predictions[key]
    _say(
        f"| {what} | |\n|:--|--:|\n"
        f"| predicted | {_format(value)} |\n"
        f"| **it is** | **{_format(truth)}** |\n"
        f"| difference | {_difference(value, truth)} |"
    )


def _number(value: object) -> float | None:
    """Return a number, or a one-element tensor or array, as a float; None for anything else."""
    if hasattr(value, "item") and getattr(value, "shape", None) in ((), (1,)):
        value = value.item()
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else None


def _format(value: object) -> str:
    number = _number(value)
    return str(value) if number is None else f"{number:.4g}".replace("-", "−")


def _difference(value: object, truth: object) -> str:
    guess, fact = _number(value), _number(truth)
    if guess is None or fact is None:
        return "none: as predicted" if value == truth else "not as predicted"
    if guess == fact:
        return "none: as predicted"
    side = "too high" if guess > fact else "too low"
    return f"{_format(float(f'{abs(guess - fact):.2g}'))} {side}"  # 160, not 1.6e+02


def _say(markdown: str) -> None:
    plain = markdown.replace("**", "").replace("|:--|--:|\n", "")
    display({"text/markdown": markdown, "text/plain": plain}, raw=True)
