"""The widget gallery: complete, fresh, and its answers are the widgets' own numbers."""

import json
import re
from pathlib import Path

import pytest

from lectures import widgets as course_widgets
from lectures.widgets import (
    BaselineVariance,
    ClipRegion,
    Gae,
    KLEstimators,
    LengthBias,
    StepInspector,
    base,
)

GALLERY = Path(__file__).parents[3] / "lectures" / "widget_gallery.ipynb"
WIDGETS = [getattr(course_widgets, name) for name in course_widgets.__all__]


@pytest.fixture
def cells(committed):
    committed(GALLERY)
    return {cell["id"]: cell for cell in json.loads(GALLERY.read_text("utf-8"))["cells"]}


def source(cell: dict) -> str:
    return "".join(cell["source"])


@pytest.mark.parametrize("widget", WIDGETS, ids=lambda w: w.name)
def test_each_widget_has_its_text_its_picture_and_a_cell_that_reads_it(widget, cells):
    own = widget.name.replace("_", "-")
    first = list(cells).index(f"{own}-text")
    assert list(cells)[first : first + 3] == [f"{own}-text", own, f"{own}-read"]
    assert "**Predict.**" in source(cells[f"{own}-text"])
    (shown,) = cells[own]["outputs"]
    made = widget()  # if the two differ: python -m lectures.execute widget --write
    assert "".join(shown["data"]["text/plain"]) == repr(made)
    kept = {"widget": widget.name, "state": json.loads(json.dumps(made.state))}
    assert shown["metadata"][base.METADATA_KEY] == kept
    (value,) = cells[f"{own}-read"]["outputs"]
    assert value["output_type"] == "execute_result"


def test_the_answers_are_the_widgets_numbers(cells):
    texts = {own: source(cell) for own, cell in cells.items()}

    expert = BaselineVariance(reward="binary", skill=4)
    assert BaselineVariance.presets["hits"][1].items() >= {"reward": "binary", "skill": 4}.items()
    (factor,) = re.findall(r"is ([\d.]+) times worse than nothing", expert.sentence)
    assert f"by a factor of {factor}" in texts["baseline-variance-text"]

    clip = ClipRegion(method="ppo")
    assert clip.weights([3.5], [-1.0]).tolist() == [-3.5]
    assert ClipRegion(method="dual_clip").weights([3.5], [-1.0]).tolist() == [0.0]
    assert ClipRegion(method="dual_clip").dual_clip == 3

    for distance in (0.5, 1, 3):
        for policy in ("independent", "tree"):
            loss = KLEstimators(policy=policy, distance=distance, place="loss_token").numbers
            paid = KLEstimators(policy=policy, distance=distance, place="reward_to_go").numbers
            assert loss["along"][0] == pytest.approx(0, abs=1e-9)
            assert loss["across"][0] == pytest.approx(0, abs=1e-9)
            assert paid["gap"][0] == pytest.approx(0, abs=1e-9)

    for answers, ending in ((4, "for 4 answers"), (1024, "for 1,024.")):
        sentence = Gae(critic="noise", error=0.5, gamma=1, answers=answers).sentence
        best, perfect = re.search(r"best λ is ([\d.]+) .*critic ([\d.]+)", sentence).groups()
        assert f"{best} {ending}" in texts["gae-text"]
        assert float(perfect) == 0

    weights = LengthBias(lengths=[8, 12, 16, 60], advantages=[1, 1, 1, -1]).weights
    per_sequence = next(iter(weights.values()))
    assert per_sequence[0] / -per_sequence[3] == pytest.approx(60 / 8)
    assert "$60/8=7.5$" in texts["length-bias-text"]

    cut = {}
    for name in ("grpo", "gspo"):
        (row,) = [r for r in StepInspector().step["rows"] if r["key"] == name]
        cut[name] = sum(gate in "hld" for gate in row["gates"][-1])
    tokens = len(row["gates"][-1])
    assert f"cuts off {cut['grpo']} of the {tokens} tokens" in texts["step-inspector-text"]
    assert f"\n{cut['gspo']}, more than half." in texts["step-inspector-text"]
    assert cut["gspo"] > tokens / 2
