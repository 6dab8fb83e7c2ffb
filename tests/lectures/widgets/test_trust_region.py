"""The trust-region widget: what lecture 04 says about one softmax, in the widget's numbers."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from lectures.widgets import TrustRegion

LOGITS = [-8, -3.3, 0, 1.7, 8]
POLICIES = list(itertools.product(LOGITS, LOGITS))


def numbers(**state):
    return TrustRegion(**state).numbers


def softmax(*logits):
    weights = np.exp(np.array(logits) - max(logits))
    return weights / weights.sum()


@pytest.mark.parametrize(("first", "second"), POLICIES)
def test_the_natural_step_never_turns(first, second):
    """On a table it is the advantage, up to a constant: rewards 5, 4, 3 and token 2 pinned."""
    x, y = numbers(logit_0=first, logit_1=second)["natural"]["step"]
    assert x / y == pytest.approx(2, rel=1e-6)
    assert x > 0


@pytest.mark.parametrize(("first", "second"), POLICIES)
def test_by_hand(first, second):
    delta = 0.02
    n = numbers(logit_0=first, logit_1=second, delta=delta)
    p = softmax(first, second, 0)
    np.testing.assert_allclose(n["p"], p, atol=1e-12)
    rewards = np.array([5, 4, 3])
    fisher = np.diag(p) - np.outer(p, p)
    g = p * (rewards - p @ rewards)
    np.testing.assert_allclose(n["curvature"], np.linalg.eigvalsh(fisher[:2, :2]), atol=1e-12)
    for name in ("gradient", "natural"):
        found = n[name]
        step = np.array([*found["step"], 0])
        assert step @ fisher @ step / 2 == pytest.approx(delta, rel=1e-6)
        assert found["promised"] == pytest.approx(g @ step, rel=1e-6)
        q = softmax(*(np.array([first, second, 0]) + step))
        if q.min() > 1e-12:
            assert found["kl"] == pytest.approx(p @ np.log(p / q), rel=1e-6)
        assert found["gain"] == pytest.approx((q - p) @ rewards, abs=1e-9)
    assert n["natural"]["promised"] >= n["gradient"]["promised"] * (1 - 1e-9)


def test_the_model_is_good_for_small_steps_of_an_undecided_policy():
    n = numbers(logit_0=0, logit_1=0, delta=0.001)
    np.testing.assert_allclose(n["region"], 1, atol=0.01)


def test_against_a_confident_habit_the_model_is_off_by_a_hundred_and_the_line_search_repairs_it():
    widget = TrustRegion()
    widget.preset("sure")
    n = widget.numbers
    assert 90 < n["natural"]["kl"] / widget.delta < 110
    assert 0 < n["searched"]["kl"] <= widget.delta
    assert n["searched"]["share"] == pytest.approx(0.8**6)
    assert "100 times what the model says" in widget.sentence


def test_gained_by_less_where_the_direction_of_the_gradient_is_wasted():
    n = numbers()
    assert n["gradient"]["promised"] < 0.9 * n["natural"]["promised"]


def test_the_line_search_never_leaves_the_radius():
    for first, second in POLICIES:
        for delta in (0.001, 0.05, 0.5):
            n = numbers(logit_0=first, logit_1=second, delta=delta)["searched"]
            assert n["kl"] <= delta
            assert n["gain"] > 0 or n["share"] == 0


def test_any_radius_in_the_range_can_be_set_from_python():
    widget = TrustRegion(delta=0.03)
    assert widget.delta == 0.03
    with pytest.raises(ValueError, match="delta is 1; it must lie between"):
        widget.delta = 1
    assert math.isclose(widget.delta, 0.03)


def test_the_gallerys_answers_are_the_widgets_numbers(committed):
    gallery = Path(__file__).parents[3] / "lectures" / "widget_gallery.ipynb"
    committed(gallery)
    cells = {cell["id"]: cell for cell in json.loads(gallery.read_text("utf-8"))["cells"]}
    text = "".join(cells["trust-region-text"]["source"])
    widget = TrustRegion()
    widget.preset("sure")
    n = widget.numbers
    assert f"\n{n['natural']['kl']:.1f}, a hundred times" in text
    assert f"is {n['natural']['step'][0]:.0f} nats long in logit 0" in text
    assert f"keeps {n['searched']['share']:.2f} of it" in text
    assert "$p=(.0005,.0005,.999)$" in text
    assert [round(p, 4) for p in n["p"]] == [0.0005, 0.0005, 0.999]
