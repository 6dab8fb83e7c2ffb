"""What someone who cannot see a picture of curves is told: their values, crossings and minima."""

import re
from pathlib import Path

import pytest

from lectures.widgets import BaselineVariance, Gae, base, gae
from lectures.widgets import baseline_variance as baseline
from lectures.widgets.still import fixed, significant

STAGE = (Path(__file__).parent / "stage.js").read_text("utf-8")
pytestmark = pytest.mark.browser


@pytest.fixture
def told(page):
    """A function that gives the description of a widget's picture."""

    def describe(made) -> str:
        page.set_content("<body></body>")
        page.evaluate(STAGE, base.module(made.name))
        page.evaluate("(state) => { show(state); }", made.state)
        return page.evaluate("() => root.querySelector('svg').getAttribute('aria-label')")

    return describe


@pytest.mark.parametrize("changes", [{}, {"answers": 1024, "gamma": 0.9}, {"critic": "zero"}])
def test_gae_says_its_curves(told, changes):
    made = Gae(**changes)
    words = told(made)
    for critic, key in (("perfect", "perfect"), (made.critic, "other")):
        biases, variances = gae.curves(made.skill, critic, made.error, made.gamma).T
        for i in (0, 25, 50, 75, 100):
            parts = [biases[i], variances[i] / made.answers]
            printed = [significant(float(x), 3) for x in (*parts, sum(parts))]
            assert f"λ = {i / 100:.2f}: {printed[0]} + {printed[1]} = {printed[2]}" in words
        found = made.numbers[key]
        lowest = f"lowest {significant(found['best_error'], 3)} at λ = {fixed(found['best'], 2)}"
        assert lowest in words
    for at in re.findall(r"cross near λ = (\d\.\d\d)", words):
        i = round(100 * float(at))
        signs = [
            [bool(b > v / made.answers) for b, v in grid[i - 1 : i + 1]]
            for grid in (
                gae.curves(made.skill, critic, made.error, made.gamma)
                for critic in ("perfect", made.critic)
            )
        ]
        assert [True, False] in signs or [False, True] in signs
    assert ("cross near" in words) == (not changes or "answers" in changes)


@pytest.mark.parametrize("changes", [{}, {"reward": "graded", "baseline": 4.5}, {"reward": "arms"}])
def test_the_baseline_says_its_curves(told, changes):
    made = BaselineVariance(**changes)
    found, words = made.numbers, told(made)
    for key in ("none", "mean", "best", "own"):
        assert significant(found["variance"][key], 3) in words
    assert f"lowest at b* = {baseline.rate(found['best'])}" in words
    for i in (0, 15, 30, 45, 60):
        row = ", ".join(significant(value, 3) for value in baseline.sweep(made.reward)[i])
        assert re.search(rf"skill {i / 10:.1f}, pass rate [\d.]+: {re.escape(row)}", words)
    flip = found["crossing"]["skill"]
    crossing = "V is better than nothing at every skill"
    assert (crossing if flip is None else f"cross at skill {fixed(flip, 2)}") in words
