"""The figures every lecture shares: headless, labelled, described, and true to the given data."""

import base64
import io
import json
import re
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from PIL import Image

from lectures import figures
from policy_gradients.algorithms import ALGORITHMS, PALETTE
from policy_gradients.logprobs import response_mask

LECTURES = Path(figures.__file__).parent


@pytest.fixture(autouse=True)
def _style():
    with plt.rc_context():
        figures.use_course_style()
        yield
    plt.close("all")


@pytest.fixture
def shown(monkeypatch):
    """What `show` hands to the notebook: a list of (data, metadata)."""
    outputs = []

    def display(data, metadata=None, raw=False):
        assert raw
        outputs.append((data, metadata or {}))

    monkeypatch.setattr(figures, "display", display)
    return outputs


def estimates(parameters: int = 9, samples: int = 200) -> tuple[np.ndarray, dict]:
    """A gradient, and four estimates of it: unbiased, short, turned, and turned the other way."""
    rng = np.random.default_rng(0)
    gradient = rng.normal(size=parameters)
    turned = rng.normal(size=parameters)
    turned -= (turned @ gradient) / (gradient @ gradient) * gradient
    means = {
        "rloo": gradient,
        "dr_grpo": gradient / 2,
        "grpo": gradient + turned / 3,
        "reinforce": -gradient + turned / 9,
    }
    spread = 0.2 * np.linalg.norm(gradient)
    draws = {name: m + spread * rng.normal(size=(samples, parameters)) for name, m in means.items()}
    return gradient, {name: (means[name], draws[name]) for name in means}


def arrow(axis, gid: str) -> np.ndarray:
    (note,) = [text for text in axis.texts if text.get_gid() == gid]
    return np.array(note.xy)


# --- the compass -----------------------------------------------------------------------------


def test_compass_draws_the_means_it_is_given():
    gradient, given = estimates()
    figure = figures.compass(gradient, given)
    length = np.linalg.norm(gradient)
    for axis, (mean, _) in zip(figure.axes, given.values(), strict=False):
        x, y = arrow(axis, "mean")
        along = mean @ gradient / length**2
        rest = mean - along * gradient
        assert x == pytest.approx(along, abs=1e-12)
        # all means lie in one plane with the gradient, so nothing of them may get lost
        assert abs(y) == pytest.approx(np.linalg.norm(rest) / length, abs=1e-12)
        np.testing.assert_allclose(arrow(axis, "truth"), [1, 0], atol=1e-12)


def test_compass_draws_every_sample_and_counts_in_the_full_space():
    gradient, given = estimates()
    figure = figures.compass(gradient, given)
    plane = figures.compass_plane(gradient, given) / np.linalg.norm(gradient)
    for axis, (mean, draws) in zip(figure.axes, given.values(), strict=False):
        (dots,) = [line for line in axis.lines if line.get_marker() == "."]
        np.testing.assert_allclose(dots.get_xydata(), draws @ plane.T, atol=1e-12)
        numbers = axis.get_xlabel()
        cosine = gradient @ mean / np.linalg.norm(gradient) / np.linalg.norm(mean)
        assert f"cosine {cosine:.3f}".replace("-", "−") in numbers
        assert f"wrong side {(draws @ gradient < 0).mean():.0%}" in numbers


def test_compass_plane_is_orthonormal_and_holds_the_gradient():
    gradient, given = estimates()
    plane = figures.compass_plane(gradient, given)
    np.testing.assert_allclose(plane @ plane.T, np.eye(2), atol=1e-12)
    np.testing.assert_allclose(plane[0] * np.linalg.norm(gradient), gradient, atol=1e-12)


def test_compass_of_unbiased_estimates_looks_where_the_samples_spread():
    rng = np.random.default_rng(1)
    gradient = np.array([1.0, 0, 0])
    draws = gradient + rng.normal(size=(200, 3)) * [0.1, 0.1, 2.0]
    plane = figures.compass_plane(gradient, {"rloo": (gradient, draws)})
    assert abs(plane[1][2]) > 0.99


def test_compass_accepts_tensors_that_carry_a_graph():
    gradient, given = estimates()
    tensors = {
        name: (torch.tensor(mean, requires_grad=True), torch.tensor(draws))
        for name, (mean, draws) in given.items()
    }
    figure = figures.compass(torch.tensor(gradient, requires_grad=True), tensors)
    assert len(figure.axes) >= len(given)


@pytest.mark.parametrize(
    ("gradient", "given", "words"),
    [
        (np.zeros(3), {"rloo": (np.ones(3), np.ones((5, 3)))}, "no north"),
        (np.ones(3), {"rloo": (np.ones(4), np.ones((5, 4)))}, "rloo"),
        (np.ones(3), {"rloo": (np.ones(3), np.ones((5, 2)))}, "rloo"),
        (np.ones(3), {"rloo": (np.ones(3), np.ones((5, 3)))}, "parallel"),
    ],
)
def test_compass_refuses_what_it_cannot_draw(gradient, given, words):
    with pytest.raises(ValueError, match=words):
        figures.compass(gradient, given)


# --- style ---------------------------------------------------------------------------------


def test_every_algorithm_has_its_colour_from_the_table():
    for name in ALGORITHMS:
        assert figures.style(name) == PALETTE[name]


def test_no_two_methods_look_the_same():
    names = [*PALETTE, *figures._OTHERS]
    looks = [tuple(figures.style(name)[k] for k in ("color", "linestyle")) for name in names]
    assert len(set(looks)) == len(looks)


def test_unknown_method_is_named():
    with pytest.raises(KeyError, match=r"grop.*grpo"):
        figures.style("grop")


# --- showing -------------------------------------------------------------------------------


def test_show_carries_picture_caption_and_description(shown):
    figure = figures.learning_curves({"rloo": np.random.default_rng(0).random((3, 20))}, ylabel="J")
    figures.show(figure, "What *to see*.", alt="A line that rises, <not> falls.")
    (picture, metadata), (words, _) = shown
    image = Image.open(io.BytesIO(base64.b64decode(picture["image/png"])))
    assert metadata["image/png"]["alt"] == "A line that rises, <not> falls."
    assert image.width > metadata["image/png"]["width"] > 400
    assert "A line that rises" in picture["text/plain"]
    assert "What *to see*." in words["text/markdown"]
    assert "A line that rises, &lt;not&gt; falls." in words["text/markdown"]
    assert not plt.fignum_exists(figure.number)


@pytest.mark.parametrize(("caption", "alt"), [("", "x"), ("x", " ")])
def test_show_insists_on_caption_and_description(caption, alt):
    with pytest.raises(ValueError, match="caption"):
        figures.show(plt.figure(), caption, alt=alt)


def test_figures_are_small_and_silent():
    gradient, given = estimates()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(figures.png(figures.compass(gradient, given, columns=4))) < 120_000
        assert len(figures.png(figures.flow("a 1 1 data x", "", size=(2, 2)))) < 20_000


# --- curves, boxes, code -------------------------------------------------------------------


def test_learning_curves_show_mean_and_range():
    runs = np.array([[0.0, 1.0, 4.0], [2.0, 3.0, 6.0]])
    figure = figures.learning_curves({"grpo": runs}, ylabel="mean reward", x=[0, 10, 20])
    (axis,) = figure.axes
    (line,), (band,) = axis.lines, axis.collections
    np.testing.assert_allclose(line.get_xydata(), [[0, 1], [10, 2], [20, 5]])
    corners = band.get_paths()[0].get_extents()
    assert (corners.ymin, corners.ymax) == (0, 6)
    assert axis.get_xlabel() == "updates"
    assert axis.get_ylabel() == "mean reward"


def test_flow_joins_the_boxes_it_names():
    figure = figures.flow("a 1 1 data one | b 3 1 plain two/lines", "a > b: label", size=(4, 2))
    (axis,) = figure.axes
    texts = {text.get_text() for text in axis.texts}
    assert {"one", "two\nlines", "label"} <= texts
    (joint,) = [t for t in axis.texts if getattr(t, "arrow_patch", None)]
    assert joint.xy == (3, 1)


@pytest.mark.parametrize(
    ("boxes", "arrows", "error"),
    [
        ("a 1 data", "", ValueError),
        ("a 1 1 nokind x", "", KeyError),
        ("a 1 1 data x", "a > b", KeyError),
    ],
)
def test_flow_refuses_what_it_cannot_read(boxes, arrows, error):
    with pytest.raises(error):
        figures.flow(boxes, arrows, size=(2, 2))


def test_show_code_leaves_the_docstring_out(shown):
    figures.show_code(response_mask)
    text = shown[0][0]["text/markdown"]
    assert "policy_gradients.logprobs.response_mask" in text
    assert "is_end.cumsum(1)" in text
    assert '"""' not in text


# --- the start page ------------------------------------------------------------------------


def test_the_start_page_shows_the_map_of_lecture_00():
    cells = json.loads((LECTURES / "00_map.ipynb").read_text(encoding="utf-8"))["cells"]
    (cell,) = [c for c in cells if c["id"] == "map"]
    (picture,) = [o["data"]["image/png"] for o in cell["outputs"] if "image/png" in o["data"]]
    assert base64.b64decode(picture) == (LECTURES / "images/course_map.png").read_bytes()


@pytest.mark.parametrize("page", ["README.md", "notation.md"])
def test_pages_link_to_what_exists(page):
    text = (LECTURES / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text) if "://" not in link]
    assert [link for link in links if not (LECTURES / link).exists()] == []
