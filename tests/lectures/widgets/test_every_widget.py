"""What every widget of the course promises, checked on each state in its `examples`.

One mathematics: Python computes the numbers and the sentence with our libraries, JavaScript with
its own few lines, and both are compared with a committed file.
`python tests/lectures/widgets/test_every_widget.py` writes the files anew; with names of widgets
behind it, only theirs.
"""

import base64
import io
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib
import nbformat
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from lectures import execute
from lectures import widgets as course_widgets
from lectures.figures import use_course_style
from lectures.widgets import base
from lectures.widgets import still as still_pictures
from policy_gradients.algorithms import PALETTE

HERE = Path(__file__).parent
WIDGETS = [getattr(course_widgets, name) for name in course_widgets.__all__]
VIEW = "application/vnd.jupyter.widget-view+json"
STATES = [(widget, i) for widget in WIDGETS for i in range(len(widget.examples))]
every_widget = pytest.mark.parametrize("widget", WIDGETS, ids=lambda w: w.name)
every_state = pytest.mark.parametrize(
    ("widget", "i"), STATES, ids=[f"{widget.name}-{i}" for widget, i in STATES]
)


def golden_path(widget) -> Path:
    return HERE / "golden" / f"{widget.name}.json"


def golden(widget) -> list[dict]:
    rows = [golden_row(widget(**changes)) for changes in widget.examples]
    return json.loads(json.dumps(rows, allow_nan=False))


def golden_row(made) -> dict:
    keys = [*made.declared(), *(key for key, (_, changes) in made.presets.items() if not changes)]
    return {
        "state": made.state,
        "numbers": made.numbers,
        "sentence": made.sentence,
        "note": made.note,
        "off": sorted(made.off),
        "react": {key: made.react(key) for key in keys},
    }


# --- one mathematics ----------------------------------------------------------------------------


def same(actual, expected, where: str) -> None:
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for key in expected:
            same(actual[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), where
        for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
            same(one, other, f"{where}[{i}]")
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=1e-9, abs=1e-9), where
    else:
        assert actual == expected, where


@every_widget
def test_python_agrees_with_the_golden_file(widget):
    same(golden(widget), json.loads(golden_path(widget).read_text("utf-8")), widget.name)


@every_widget
def test_javascript_agrees_with_the_golden_file(widget, tmp_path, missing):
    node = shutil.which("node")
    if node is None:
        missing("node", "install nodejs to check the widgets' JavaScript")
    module = tmp_path / "widget.mjs"  # exactly the text that the browser gets
    module.write_text(base.module(widget.name), encoding="utf-8")
    command = [node, HERE / "check.mjs", module, golden_path(widget)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stdout + run.stderr
    assert re.search(r"^[1-9]\d* checks passed$", run.stdout, re.MULTILINE)


@every_widget
def test_the_states_worth_testing_are_several_and_differ(widget):
    rows = golden(widget)
    assert len(rows) >= 4
    assert len({json.dumps(row["numbers"]) for row in rows}) >= 4


@every_widget
def test_the_module_stands_alone(widget):
    source = base.module(widget.name)
    assert not re.search(r"^\s*import\b", source, re.MULTILINE)
    assert re.findall(r"^export default", source, re.MULTILINE) == ["export default"]
    assert len(source) < 80_000  # a page holds it once per widget


# --- state --------------------------------------------------------------------------------------


@every_widget
def test_an_unknown_knob_is_refused_by_name(widget):
    with pytest.raises(TypeError, match="has no 'nonsense'"):
        widget(nonsense=1)


@every_widget
def test_every_slider_refuses_what_lies_outside_and_what_is_no_number(widget):
    made = widget()
    for name, control in widget.declared().items():
        if not isinstance(control, base.Slider):
            continue
        value = getattr(made, name)
        wrap = (lambda x: [x, *value[1:]]) if isinstance(control, base.Sliders) else (lambda x: x)  # noqa: B023
        for wrong in (control.low - 1, control.high + 1, float("nan"), "wide", None):
            before = made.state
            with pytest.raises(ValueError, match=name):
                setattr(made, name, wrap(wrong))
            assert made.state == before
        for right in (control.low, control.high):
            setattr(made, name, wrap(right))


@every_widget
def test_every_choice_refuses_an_unknown_name_and_lists_the_known_ones(widget):
    made = widget()
    for name, control in widget.declared().items():
        if isinstance(control, base.Choice):
            with pytest.raises(ValueError, match=f"{name} is 'nonsense'.*{made.state[name]}"):
                setattr(made, name, "nonsense")


@every_widget
def test_presets_can_be_pressed_from_python(widget):
    for key in widget.presets:
        made = widget()
        made.preset(key)
        assert made.sentence
    with pytest.raises(ValueError, match="no preset 'nonsense'"):
        widget().preset("nonsense")


@every_widget
def test_the_state_is_plain_json_and_makes_the_same_widget_again(widget):
    for changes in widget.examples:
        made = widget(**changes)
        state = json.loads(json.dumps(made.state, allow_nan=False))
        again = widget(**changes)
        again.set_state({k: v for k, v in state.items() if k != "controls"})
        assert again.state == made.state
        assert again.sentence == made.sentence


# --- what stands where no kernel runs -----------------------------------------------------------


@every_widget
def test_still_picture_and_metadata_are_in_the_bundle(widget):
    made = widget()
    data, metadata = made._repr_mimebundle_()
    assert VIEW in data
    assert data["text/plain"] == f"{widget.__name__}: {made.sentence}"
    picture = base64.b64decode(data["image/png"])
    assert Image.open(io.BytesIO(picture)).width == 1536
    assert len(picture) < 140_000
    assert metadata["policy_gradients_course"] == {"widget": widget.name, "state": made.state}
    assert json.loads(json.dumps(metadata)) == metadata
    assert made.sentence in metadata["image/png"]["alt"]


@every_widget
def test_the_still_follows_the_state(widget):
    first, second = (widget(**changes) for changes in widget.examples[:2])
    assert first.still() == widget(**widget.examples[0]).still()
    assert first.still() != second.still()


@every_widget
@pytest.mark.filterwarnings("error")
def test_the_still_does_not_depend_on_the_style_of_the_notebook(widget):
    plain = widget().still()
    with matplotlib.rc_context():
        use_course_style()
        assert widget().still() == plain


@every_state
def test_no_two_texts_of_the_still_collide(widget, i):
    figure = Figure(dpi=100, layout="none")
    made = widget(**widget.examples[i])
    still = still_pictures.Still(
        made.state, made.note, made.off, made.sentence, picture_height=made.still_height
    )
    with matplotlib.style.context("default"):
        still.draw(made.draw_still, figure)
        FigureCanvasAgg(figure).draw()
        boxes = []
        for axes in figure.axes:
            texts = [*axes.texts, axes._left_title]
            if axes.axison:
                texts += [axes.xaxis.label, axes.yaxis.label]
                for axis, limits in (
                    (axes.xaxis, axes.get_xlim()),
                    (axes.yaxis, axes.get_ylim()),
                ):
                    for tick in axis.get_major_ticks():
                        inside = min(limits) <= tick.get_loc() <= max(limits)
                        if inside and tick.label1.get_visible():
                            texts.append(tick.label1)
            if axes.get_legend():
                texts += axes.get_legend().get_texts()
            boxes += [(t.get_text(), t.get_window_extent()) for t in texts if t.get_text()]
    frame = figure.bbox
    outside = [
        words
        for words, box in boxes
        if box.x0 < frame.x0 - 1 or box.x1 > frame.x1 + 1 or box.y0 < -1 or box.y1 > frame.y1 + 1
    ]
    assert outside == []
    hits = [
        (a, b)
        for (a, box), (b, other) in itertools.combinations(boxes, 2)
        if box.overlaps(other.padded(-1.5))
    ]
    assert hits == []


@pytest.mark.slow  # starts a kernel that imports torch
def test_a_saved_lecture_keeps_the_still_and_never_the_view(tmp_path):
    path = tmp_path / "00_widget.ipynb"
    names = ", ".join(course_widgets.__all__)
    cells = [nbformat.v4.new_code_cell(f"from lectures.widgets import {names}", id="import")]
    cells += [
        nbformat.v4.new_code_cell(f"{widget.__name__}()", id=widget.name.replace("_", "-"))
        for widget in WIDGETS
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    notebook, _, error = execute.run(path)
    assert error is None
    nbformat.write(notebook, path)
    saved = nbformat.read(path, as_version=4)
    nbformat.validate(saved)
    assert "widgets" not in saved.metadata
    for widget, cell in zip(WIDGETS, saved.cells[1:], strict=True):
        (output,) = cell.outputs
        assert set(output["data"]) == {"text/plain", "image/png"}
        kept = output["metadata"]["policy_gradients_course"]
        assert kept == {"widget": widget.name, "state": widget().state}


# --- readable -----------------------------------------------------------------------------------


def contrast(first: str, second: str) -> float:
    def luminance(color: str) -> float:
        channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(
            channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4
        )
        return float(linear @ [0.2126, 0.7152, 0.0722])

    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def palette(theme: str) -> dict[str, str]:
    source = (base.FOLDER / "base.js").read_text(encoding="utf-8")
    block = re.search(rf"^  {theme} \{{(.*?)\}}", source, re.MULTILINE | re.DOTALL).group(1)
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))


@pytest.mark.parametrize("theme", [r"\.widget", r"\.widget\.dark"])
def test_contrast_of_text_and_marks(theme):
    colors = palette(theme)
    for text, ground in itertools.product(("ink", "soft"), ("paper", "dead")):
        assert contrast(colors[text], colors[ground]) >= 4.5, (text, ground)
    for mark in ("positive", "negative", "line", "focus"):
        assert contrast(colors[mark], colors["paper"]) >= 3, mark
    for mark in ("series-1", "series-2", "series-3", "series-4"):
        assert contrast(colors[mark], colors["paper"]) >= 2.9, mark


def test_the_colours_are_of_the_course_palette_and_the_same_in_both_languages():
    course = {look["color"].lower() for look in PALETTE.values()}
    light, dark = palette(r"\.widget"), palette(r"\.widget\.dark")
    assert light["positive"] == still_pictures.POSITIVE.lower()
    assert light["negative"] == still_pictures.NEGATIVE.lower()
    names = [f"series-{i}" for i in (1, 2, 3, 4)]
    assert [light[name] for name in names] == [c.lower() for c in still_pictures.SERIES]
    for name in ("positive", "negative", *names):
        assert {light[name], dark[name]} <= course


def test_brief_prints_what_the_browser_prints(tmp_path, missing):
    if shutil.which("node") is None:
        missing("node", "install nodejs to check the widgets' JavaScript")
    values = [0, 0.2, 1.05, 1.0625, -1.0625, 9.99996, 0.0003, 0.00003, 12345, 1 / 3, -20.5]
    module = tmp_path / "base.mjs"
    module.write_text((base.FOLDER / "base.js").read_text("utf-8"), encoding="utf-8")
    script = tmp_path / "print.mjs"
    script.write_text(
        'import { brief } from "./base.mjs";\n'
        f"console.log(JSON.stringify({json.dumps(values)}.map(brief)));"
    )
    printed = subprocess.run(["node", script], capture_output=True, text=True, check=True).stdout
    assert [still_pictures.brief(value) for value in values] == json.loads(printed)


@pytest.mark.parametrize("share", np.linspace(-1, 1, 81))
def test_numbers_on_the_diverging_scale_can_be_read(share):
    fill, ink = still_pictures.signed_color(share, 1.0)
    assert contrast(fill, ink) >= 4.5


def test_a_module_without_the_base_is_refused(tmp_path, monkeypatch):
    (tmp_path / "odd.js").write_text("export default {};")
    monkeypatch.setattr(base, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"odd\.js must import"):
        base.module("odd")


if __name__ == "__main__":
    golden_path(WIDGETS[0]).parent.mkdir(exist_ok=True)
    for widget in WIDGETS:
        if sys.argv[1:] and widget.name not in sys.argv[1:]:
            continue
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in golden(widget))
        golden_path(widget).write_text(f"[\n{rows}\n]\n", encoding="utf-8")
        print(f"wrote {golden_path(widget)}")
