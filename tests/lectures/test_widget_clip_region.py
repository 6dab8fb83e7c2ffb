"""The clip-region widget: one mathematics in two languages, and what Python refuses and shows.

`python tests/lectures/test_widget_clip_region.py` writes clip_golden.json anew, from
policy_gradients.surrogates.ppo_clip. Both languages are tested against that file.
"""

import base64
import io
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path

import matplotlib
import nbformat
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from lectures import execute
from lectures.figures import use_course_style
from lectures.widgets import ClipRegion, base
from lectures.widgets.clip_region import (
    METHODS,
    NEGATIVE,
    POSITIVE,
    default_tokens,
    objective_and_weight,
)
from policy_gradients.algorithms import PALETTE

HERE = Path(__file__).parent
GOLDEN = HERE / "clip_golden.json"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def golden() -> dict:
    """Values and gradients on a grid without kinks, and the result of whole widget states."""
    ratios = [0.05, 0.3, 0.75, 0.85, 0.97, 1.0, 1.15, 1.25, 1.35, 1.9, 3.0]
    grid = []
    for eps_low, eps_high in [(0.2, 0.2), (0.2, 0.28), (0.01, 0.5), (0.9, 0.02)]:
        for advantage in [2.0, 0.5, 0.0, -0.5, -1.3]:
            values = objective_and_weight(ratios, advantage, eps_low=eps_low, eps_high=eps_high)
            for ratio, objective, weight in zip(ratios, *(v.tolist() for v in values), strict=True):
                grid.append([ratio, advantage, eps_low, eps_high, objective, weight])
    odd_tokens = [[1.5, 1.0], [1.0, 0.0], [2.5, -1.0], [0.25, -0.5]]
    states = [
        {},
        {"method": "dapo", "advantage": -1.5},
        {"method": "grpo", "eps_low": 0.99, "eps_high": 0.99, "advantage": 3.0},
        {"eps_low": 0.01, "eps_high": 0.01, "advantage": -0.1},
        {"method": "dapo", "tokens": odd_tokens},
    ]
    return {
        "columns": ["ratio", "advantage", "eps_low", "eps_high", "objective", "weight"],
        "grid": grid,
        "states": [
            {"state": w.state, "counts": w.counts, "kept": w.kept, "sentence": w.sentence}
            for w in (ClipRegion(**changes) for changes in states)
        ],
    }


@pytest.fixture(scope="module")
def committed() -> dict:
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


# --- one mathematics ---------------------------------------------------------------------------


def test_golden_numbers_are_those_of_ppo_clip(committed):
    fresh = golden()
    np.testing.assert_allclose(fresh["grid"], committed["grid"], rtol=1e-12, atol=1e-14)
    for new, old in zip(fresh["states"], committed["states"], strict=True):
        assert new["kept"] == pytest.approx(old["kept"], rel=1e-12)
        new["kept"] = old["kept"]
        assert new == old


def test_golden_grid_agrees_with_the_formula_and_reaches_every_region(committed):
    regions = set()
    for ratio, advantage, low, high, objective, weight in committed["grid"]:
        clipped = min(max(ratio, 1 - low), 1 + high)
        assert objective == pytest.approx(min(ratio * advantage, clipped * advantage), abs=1e-12)
        dead = (advantage > 0 and ratio > 1 + high) or (advantage < 0 and ratio < 1 - low)
        assert weight == pytest.approx(0 if dead else ratio * advantage, abs=1e-12)
        regions.add((np.sign(advantage), np.sign(ratio - clipped)))
    assert regions == set(itertools.product((-1, 0, 1), (-1, 0, 1)))


def test_javascript_agrees_with_the_golden_numbers(tmp_path, missing):
    node = shutil.which("node")
    if node is None:
        missing("node", "install nodejs to check the widgets' JavaScript")
    module = tmp_path / "clip_region.mjs"  # exactly the text that the browser gets
    module.write_text(base.module("clip_region"), encoding="utf-8")
    run = subprocess.run(
        [node, HERE / "clip_region.mjs", module, GOLDEN], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"^[1-9]\d+ checks passed$", run.stdout, re.MULTILINE)


def test_the_module_stands_alone():
    source = base.module("clip_region")
    assert not re.search(r"^\s*import\b", source, re.MULTILINE)
    assert re.findall(r"^export default", source, re.MULTILINE) == ["export default"]


def test_a_module_without_the_base_is_refused(tmp_path, monkeypatch):
    (tmp_path / "base.js").write_text("")
    (tmp_path / "odd.js").write_text("export default {};")
    monkeypatch.setattr(base, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"odd\.js must import from \./base\.js"):
        base.module("odd")


# --- state -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "low", "high"), [(k, m.eps_low, m.eps_high) for k, m in METHODS.items()]
)
def test_choosing_a_method_sets_its_papers_epsilons(name, low, high):
    clip = ClipRegion(eps_low=0.5, eps_high=0.6)
    assert (clip.eps_low, clip.eps_high) == (0.5, 0.6)
    clip.method = "dapo" if name == "ppo" else "ppo"
    clip.method = name
    assert (clip.eps_low, clip.eps_high) == (low, high)
    clip.eps_high = 0.4
    clip.reset()
    assert clip.eps_high == high


def test_what_the_browser_sends_is_taken_as_it_is():
    clip = ClipRegion()
    clip.set_state({"method": "dapo", "eps_low": 0.25, "eps_high": 0.31, "advantage": -2})
    assert (clip.method, clip.eps_low, clip.eps_high, clip.advantage) == ("dapo", 0.25, 0.31, -2.0)


def test_the_notes_under_the_controls_print_the_epsilons_in_use():
    for method in METHODS.values():
        printed = {float(number) for number in re.findall(r"\b0\.\d+", method.source)}
        assert printed == {method.eps_low, method.eps_high}


def test_default_tokens_are_seeded_and_fill_all_six_regions():
    assert default_tokens() == default_tokens()
    assert default_tokens() != default_tokens(seed=1)
    clip = ClipRegion()
    counts = [n for side in clip.counts.values() for n in side.values()]
    assert sum(counts) == len(clip.tokens) == 256
    assert min(counts) >= 10


@pytest.mark.parametrize(
    "tokens",
    [
        torch.tensor([[1.5, 1.0], [0.5, -2.0]], requires_grad=True),
        np.array([[1.5, 1.0], [0.5, -2.0]], dtype=np.float32),
        [(1.5, 1), (0.5, -2)],
    ],
)
def test_tokens_may_be_a_tensor_an_array_or_lists(tokens):
    clip = ClipRegion()
    clip.tokens = tokens
    assert clip.tokens == [[1.5, 1.0], [0.5, -2.0]]
    assert "silences 2 of 2 tokens (100.0 %) and keeps 0 %" in clip.sentence
    with torch.no_grad():
        assert clip.kept == 0


REFUSED = [
    ("eps_high", 1.5, "eps_high is 1.5; it must lie between 0 and 1"),
    ("eps_low", 0, "eps_low is 0.0"),
    ("eps_low", float("nan"), "eps_low is nan"),
    ("eps_low", None, "expected a number"),
    ("eps_high", "wide", "expected a number"),
    ("advantage", 0, "size must lie between 0.1 and 3.0"),
    ("method", "sapo", "made with: ppo, grpo, dapo"),
    ("tokens", [], "tokens is empty"),
    ("tokens", None, r"expected \(tokens, 2\)"),
    ("tokens", [1.0, 2.0], r"shape \(2,\); expected \(tokens, 2\)"),
    ("tokens", [[1.0, 2.0], [1.0]], "pairs"),
    ("tokens", [[1.0, 2.0], [1.0, float("nan")]], r"tokens\[1\]"),
    ("tokens", [[-0.2, 1.0]], "take exp first"),
    ("tokens", torch.ones(5000, 2), "at most 4096"),
]


@pytest.mark.parametrize(("name", "value", "message"), REFUSED)
def test_bad_input_is_refused_with_a_message_and_changes_nothing(name, value, message):
    clip = ClipRegion(method="dapo")
    before = clip.state
    with pytest.raises(ValueError, match=message):
        setattr(clip, name, value)
    assert clip.state == before
    if value is not None:
        with pytest.raises(ValueError, match=message):
            ClipRegion(**{name: value})


@pytest.mark.parametrize("methods", ["ppo", (), ("ppo", "gspo"), 3])
def test_unknown_methods_are_refused(methods):
    with pytest.raises(ValueError, match="expected one or more of: ppo, grpo, dapo"):
        ClipRegion(methods=methods)


def test_an_unknown_knob_is_refused():
    with pytest.raises(TypeError, match="epsilon"):
        ClipRegion(epsilon=0.2)


# --- what stands where no kernel runs ----------------------------------------------------------


def test_still_picture_and_metadata_are_in_the_bundle():
    clip = ClipRegion(method="dapo", advantage=-1)
    data, metadata = clip._repr_mimebundle_()
    assert WIDGET_VIEW in data
    assert data["text/plain"] == f"ClipRegion: {clip.sentence}"
    picture = base64.b64decode(data["image/png"])
    assert Image.open(io.BytesIO(picture)).width == 1536
    assert len(picture) < 120_000
    assert metadata["policy_gradients_course"] == {"widget": "clip_region", "state": clip.state}
    assert json.loads(json.dumps(metadata)) == metadata
    assert clip.sentence in metadata["image/png"]["alt"]


def test_the_still_follows_the_state():
    clip = ClipRegion()
    before = clip.still()
    assert clip.still() == before
    clip.eps_high = 0.9
    assert clip.still() != before


@pytest.mark.filterwarnings("error")
def test_the_still_does_not_depend_on_the_style_of_the_notebook():
    plain = ClipRegion().still()
    with matplotlib.rc_context():
        use_course_style()
        assert ClipRegion().still() == plain


@pytest.mark.parametrize(
    ("eps_low", "eps_high"), [(0.01, 0.01), (0.01, 0.99), (0.99, 0.01), (0.99, 0.99)]
)
@pytest.mark.parametrize("advantage", [0.3, -3.0])
def test_no_two_texts_of_the_still_collide(eps_low, eps_high, advantage):
    figure = Figure(dpi=100, layout="none")
    ClipRegion(eps_low=eps_low, eps_high=eps_high, advantage=advantage).draw_still(figure)
    FigureCanvasAgg(figure).draw()
    boxes = []
    for axes in figure.axes:
        texts = [*axes.texts, axes.xaxis.label, axes._left_title]
        if axes.get_legend():
            texts += axes.get_legend().get_texts()
        if axes.axison:
            for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
                for tick in axis.get_major_ticks():
                    if min(limits) <= tick.get_loc() <= max(limits) and tick.label1.get_visible():
                        texts.append(tick.label1)
        boxes += [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    assert len(boxes) > 30
    hits = [
        (a, b)
        for (a, box), (b, other) in itertools.combinations(boxes, 2)
        if box.overlaps(other.padded(-1.5))
    ]
    assert not hits


@pytest.mark.slow  # starts a kernel that imports torch
def test_a_saved_lecture_keeps_the_still_and_never_the_view(tmp_path):
    path = tmp_path / "00_widget.ipynb"
    source = "from lectures.widgets import ClipRegion\nclip = ClipRegion(method='dapo')\nclip"
    cells = [nbformat.v4.new_code_cell(source, id="widget")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    notebook, _, error = execute.run(path)
    assert error is None
    nbformat.write(notebook, path)
    saved = nbformat.read(path, as_version=4)
    nbformat.validate(saved)
    assert "widgets" not in saved.metadata
    (output,) = saved.cells[0].outputs
    assert set(output["data"]) == {"text/plain", "image/png"}
    kept = output["metadata"]["policy_gradients_course"]
    assert kept["widget"] == "clip_region"
    assert kept["state"] == ClipRegion(method="dapo").state


# --- readable ----------------------------------------------------------------------------------


def contrast(first: str, second: str) -> float:
    def luminance(color: str) -> float:
        channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(
            channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
        )
        return float(linear @ [0.2126, 0.7152, 0.0722])

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [r"\.widget", r"\.widget\.dark"])
def test_contrast_of_text_and_marks(theme):
    source = (base.FOLDER / "base.js").read_text(encoding="utf-8")
    block = re.search(rf"^  {theme} \{{(.*?)\}}", source, re.MULTILINE | re.DOTALL).group(1)
    colors = dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block))
    for text, ground in itertools.product(("ink", "soft"), ("paper", "dead")):
        assert contrast(colors[text], colors[ground]) >= 4.5, (text, ground)
    for mark in ("positive", "negative", "line", "focus"):
        assert contrast(colors[mark], colors["paper"]) >= 3, mark


def test_the_signs_have_colours_of_the_course_palette_the_same_in_both_languages():
    source = (base.FOLDER / "base.js").read_text(encoding="utf-8")
    palette = {look["color"].lower() for look in PALETTE.values()}
    for name, still in (("positive", POSITIVE), ("negative", NEGATIVE)):
        light, dark = re.findall(rf"--{name}: (#[0-9a-f]{{6}});", source)
        assert light == still.lower()
        assert {light, dark} <= palette


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(golden(), ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {GOLDEN}")
