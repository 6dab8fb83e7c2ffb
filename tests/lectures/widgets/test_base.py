"""What the base of the widgets takes, refuses and keeps, without a browser."""

import copy
import fractions
import json
import pickle

import numpy as np
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from lectures.widgets import ClipRegion, LengthBias, StepInspector
from lectures.widgets.still import subscripted


@pytest.mark.parametrize(
    "value",
    [0.5, 1, np.float32(0.5), np.int64(1), torch.tensor(0.5), np.array(2.0), fractions.Fraction(1)],
)
def test_numbers_of_every_library_are_taken(value):
    assert ClipRegion(size=value).size == float(value)


@pytest.mark.parametrize(
    "value", [True, np.bool_(True), "0.5", b"1", None, 1j, [0.5], np.array([0.5])]
)
def test_what_only_looks_like_a_number_is_refused(value):
    with pytest.raises(ValueError, match=r"^size is .*; expected a number$"):
        ClipRegion(size=value)


@pytest.mark.parametrize("value", [10**400, 10**5000, float("nan"), float("-inf")], ids=type)
def test_what_no_float_holds_is_refused(value):
    with pytest.raises(ValueError, match=r"^size is .*; expected a finite number$"):
        ClipRegion(size=value)


def test_a_limit_missed_by_rounding_is_the_limit():
    assert 0.1 * 3 * 10 > 3
    assert ClipRegion(size=0.1 * 3 * 10).size == 3
    assert ClipRegion(size=0.1 - 1e-12).size == 0.1
    with pytest.raises(ValueError, match=r"^size is 3\.000001; it must lie between 0\.1 and 3$"):
        ClipRegion(size=3.000001)


@pytest.mark.parametrize("key", ["size", "method", "tokens"])
def test_a_refusal_repeats_the_beginning_of_a_long_value(key):
    with pytest.raises(ValueError, match=f"^{key}") as refused:
        ClipRegion(**{key: ["x" * 20] * 10_000})
    assert len(str(refused.value)) < 250


def test_a_mistyped_name_is_refused_with_the_closest_one():
    widget = ClipRegion()
    with pytest.raises(AttributeError, match=r"no 'epsilon_low' \(did you mean 'eps_low'\?\)"):
        widget.epsilon_low = 0.5
    with pytest.raises(TypeError, match=r"no 'eps_lo' \(did you mean 'eps_low'\?\); it takes"):
        ClipRegion(eps_lo=0.5)
    widget.layout.width = "50%"  # what ipywidgets itself has stays as it is
    widget.tooltip, widget._own = "a tooltip", 1


def test_a_value_cannot_be_changed_in_place():
    lengths, clip, inspector = LengthBias(), ClipRegion(), StepInspector()
    before = lengths.state
    changes = [
        lambda: lengths.lengths.__setitem__(0, -999),
        lambda: lengths.lengths.append(1),
        lambda: lengths.lengths.sort(),
        lambda: clip.tokens[0].__setitem__(0, -1),
        lambda: inspector.step.update(texts=[]),
        lambda: inspector.step["texts"].pop(),
    ]
    for change in changes:
        with pytest.raises(ValueError, match="cannot be changed in place: copy it"):
            change()
    assert lengths.state == before
    for copied in (list, copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        mine = copied(lengths.lengths)
        mine[0] = 40
        lengths.lengths = mine
        mine[0] = -999  # nor through what was assigned
        assert lengths.lengths[0] == 40


def test_whole_numbers_are_written_as_a_browser_writes_them():
    widget = ClipRegion(size=1.0)
    assert isinstance(widget.size, float)
    written = json.dumps(widget.state)
    assert '"size": 1,' in written
    assert ".0," not in written
    assert ".0]" not in written


def test_the_still_sets_subscripts_and_leaves_dollar_signs_and_code_alone():
    assert subscripted("log π_ref")["s"] == r"log π$_{\mathregular{ref}}$"
    for plain in ("mean_per_token", "“$x_1$” and π_ref", "ε low"):
        assert subscripted(plain) == {"s": plain, "parse_math": False}


def test_a_notebook_shows_a_refusal_as_one_sentence(capsys):
    code = "from lectures.widgets import Gae\nGae(lam=1.4)"
    InteractiveShell.instance().run_cell(code, store_history=False)
    shown = capsys.readouterr()
    lines = (shown.out + shown.err).strip().splitlines()
    assert len(lines) == 1
    assert "lam is 1.4; it must lie between 0 and 1" in lines[0]
