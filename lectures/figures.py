"""How the course draws: one style, one colour per method, and the gradient compass.

A figure is made, then shown with a caption and a description in words:

    use_course_style()
    figure = compass(true_gradient, {"rloo": (mean, samples)})
    show(figure, "What to see.", alt="What is drawn, for someone who cannot see it.")

Leaves out: anything that only one lecture draws; that code stands in the lecture.
"""

import ast
import base64
import html
import inspect
import io
import itertools
import math
import re
import textwrap
from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from policy_gradients.algorithms import PALETTE

INK = "#1a1a1a"
FAINT = "#8a8a8a"
WRONG_SIDE = "#f2e6e0"
BOX_FILLS = {
    "plain": ("#f4f4f4", "#b5b5b5"),
    "data": ("#fdf1d8", "#d8a93a"),
    "trained": ("#d9ebf7", "#0072B2"),
    "frozen": ("#e9e9e9", "#8a8a8a"),
    "next": ("#dff3ea", "#009E73"),
    "step": ("#ffffff", "#8a8a8a"),
    "none": ("none", "none"),
}
SCREEN_DPI = 96
PIXELS_PER_SCREEN_PIXEL = 1.6


def use_course_style() -> None:
    """Set matplotlib's defaults for every figure of the course."""
    plt.rcParams.update(
        {
            "figure.dpi": SCREEN_DPI,
            "figure.figsize": (7.2, 3.6),
            "figure.facecolor": "white",
            "figure.constrained_layout.use": True,
            "savefig.facecolor": "white",
            "font.size": 10,
            "font.family": "DejaVu Sans",
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.edgecolor": FAINT,
            "axes.labelcolor": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.grid": True,
            "grid.color": "#e6e6e6",
            "grid.linewidth": 0.8,
            "xtick.color": INK,
            "ytick.color": INK,
            "xtick.labelsize": 9,
            "ytick.labelsize": 9,
            "text.color": INK,
            "lines.linewidth": 2.0,
            "lines.markersize": 5.0,
            "legend.frameon": False,
        }
    )


# --- colours -------------------------------------------------------------------------------

# An advantage estimator wears the colour of the algorithm that uses it ...
_SAME_AS = {
    "raw": "reinforce",
    "leave_one_out": "rloo",
    "group_centered": "dr_grpo",
    "group_standardized": "grpo",
    "clipped": "ppo",
}
# ... and what belongs to no row of the table has its own.
_OTHERS = {
    "exact": {"color": INK, "linestyle": "--", "marker": ""},
    "value_baseline": {"color": "#009E73", "linestyle": "-.", "marker": "h"},
    "optimal_baseline": {"color": "#CC79A7", "linestyle": "-.", "marker": "p"},
    "batch_centered": {"color": "#000000", "linestyle": ":", "marker": "d"},
    "moving_average": {"color": FAINT, "linestyle": "-.", "marker": "+"},
    "max_only": {"color": "#7a5c00", "linestyle": ":", "marker": "x"},
    "unclipped": {"color": "#D55E00", "linestyle": "--", "marker": "1"},
    "supervised": {"color": FAINT, "linestyle": "-", "marker": "."},
    "flawed_teacher": {"color": FAINT, "linestyle": ":", "marker": "x"},
    "supervised_then_score": {"color": "#000000", "linestyle": "-.", "marker": "s"},
    # comparisons that are not between methods: right against broken, one quantity and another
    "right": {"color": "#117733", "linestyle": "-", "marker": "o"},
    "wrong": {"color": "#882255", "linestyle": "--", "marker": "X"},
    "first": {"color": "#332288", "linestyle": "-", "marker": "s"},
    "second": {"color": "#44AA99", "linestyle": "-", "marker": "^"},
}


def style(name: str) -> dict[str, str]:
    """Return `color`, `linestyle` and `marker` of a method, as plot's keyword arguments.

    name : an algorithm of the table ("grpo"), an advantage estimator ("leave_one_out", "raw"),
    or a reference ("exact"). Raises KeyError, with the known names, for anything else.
    """
    styles = PALETTE | _OTHERS
    name = _SAME_AS.get(name, name)
    if name not in styles:
        known = ", ".join(sorted(styles.keys() | _SAME_AS.keys()))
        raise KeyError(f"no colour for {name!r}; there are: {known}")
    return dict(styles[name])


# --- showing -------------------------------------------------------------------------------


def png(figure: Figure) -> bytes:
    """Return the figure as a small PNG (128 colours), and close it."""
    buffer = io.BytesIO()
    dpi = SCREEN_DPI * PIXELS_PER_SCREEN_PIXEL
    figure.savefig(buffer, format="png", dpi=dpi, bbox_inches="tight", pad_inches=0.05)
    plt.close(figure)
    image = Image.open(buffer).convert("RGB")
    # Median cut, Pillow's default, gives the colour of a few marks to another method's.
    image = image.quantize(128, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small = io.BytesIO()
    image.save(small, format="png", optimize=True)
    return small.getvalue()


def show(figure: Figure, caption: str, *, alt: str) -> None:
    """Display a figure as PNG with a caption under it, and close it.

    `caption` (Markdown) says what to see; `alt` says what is drawn. JupyterLab draws PNG outputs
    without alternative text, so `alt` also stands, folded, under the caption; pages made from
    the notebook find it in the output's metadata.
    """
    if not caption.strip() or not alt.strip():
        raise ValueError("a figure needs a caption (what to see) and alt (what is drawn)")
    data = png(figure)
    width = round(Image.open(io.BytesIO(data)).width / PIXELS_PER_SCREEN_PIXEL)
    display(
        {"image/png": base64.b64encode(data).decode(), "text/plain": f"Figure: {alt}"},
        metadata={"image/png": {"alt": alt, "width": width}},
        raw=True,
    )
    fold = f"<details><summary>The figure in words</summary>{html.escape(alt)}</details>"
    display(
        {"text/markdown": f"**Figure.** {caption}\n\n{fold}", "text/plain": f"Figure. {caption}"},
        raw=True,
    )


# --- code -----------------------------------------------------------------------------------


def show_code(function: Callable) -> None:
    """Display a function's source without its docstring, so that the arithmetic stands out."""
    lines = textwrap.dedent(inspect.getsource(function)).splitlines()
    definition = ast.parse("\n".join(lines)).body[0]
    if ast.get_docstring(definition):
        docstring = definition.body[0]
        del lines[docstring.lineno - 1 : docstring.end_lineno]
    code = "\n".join(lines)
    where = f"`{function.__module__}.{function.__name__}`"
    display({"text/markdown": f"{where}\n```python\n{code}\n```", "text/plain": code}, raw=True)


# --- numbers in a table --------------------------------------------------------------------


def signed(value: float, digits: int = 2) -> str:
    """A number with its sign, a true minus, and 0 for what is printed as zero."""
    text = f"{value:+.{digits}f}"
    return "0" if float(text) == 0 else text.replace("-", "−")


def framed_cells(axis: Axes, table: np.ndarray, framed: np.ndarray, *, limit: float, marks=None):
    """A heat map of signed numbers with the numbers in it; the `framed` ones stand out.

    table  : (rows, columns), nan for an empty cell      framed : bool, the same shape
    limit  : the value of the strongest colour           marks  : texts above the numbers
    """
    axis.imshow(table, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    for (row, column), value in np.ndenumerate(table):
        if np.isnan(value):
            continue
        text = signed(value) if marks is None else f"{marks[row][column]}\n{signed(value)}"
        weight = "bold" if framed[row, column] else "normal"
        look = {"ha": "center", "va": "center", "fontsize": 9, "linespacing": 1.1}
        color = "white" if abs(value) > 0.72 * limit else INK
        axis.text(column, row, text, weight=weight, color=color, **look)
        if framed[row, column]:
            corner = (column - 0.46, row - 0.43)
            axis.add_patch(Rectangle(corner, 0.92, 0.86, fill=False, edgecolor=INK, linewidth=1.6))
    axis.xaxis.tick_top()
    axis.grid(False)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)


# --- learning curves -----------------------------------------------------------------------


def learning_curves(
    curves: dict[str, object],
    *,
    ylabel: str,
    xlabel: str = "updates",
    x: object = None,
    labels: dict[str, str] | None = None,
    axis: Axes | None = None,
) -> Figure:
    """Draw one line per method: the mean over seeds, with a band from the lowest to the highest.

    curves : name → (seeds, points), or (points,) for a single run; the names pick the colours
    x : (points,) positions (default 0, 1, 2, …); labels : name → text in the legend;
    axis : where to draw (default: a new figure)
    """
    if axis is None:
        _, axis = plt.subplots()
    for name, values in curves.items():
        runs = np.atleast_2d(_array(values))
        positions = np.arange(runs.shape[1]) if x is None else _array(x)
        look = style(name) | {"markevery": max(1, runs.shape[1] // 8)}
        axis.plot(positions, runs.mean(axis=0), label=(labels or {}).get(name, name), **look)
        if len(runs) > 1:
            band = {"color": look["color"], "alpha": 0.15, "linewidth": 0}
            axis.fill_between(positions, runs.min(axis=0), runs.max(axis=0), **band)
    axis.set(xlabel=xlabel, ylabel=ylabel)
    axis.legend()
    return axis.figure


# --- boxes and arrows ----------------------------------------------------------------------


def flow(boxes: str, arrows: str, *, size: tuple[float, float], fontsize: float = 9.5) -> Figure:
    """Draw labelled boxes joined by labelled arrows.

        flow("a 1 2 data prompts | b 4 2 trained the/policy", "a > b: sampled", size=(5, 4))

    boxes : one box per line or between bars: name, x and y of its centre in inches, kind, text
    ("/" breaks a line); the kind ("plain", "step", "data", "trained", "frozen", "next", "none") is
    its fill
    arrows : one chain per line or between commas, "a > b > c"; ": label" labels its last arrow
    size : width and height in inches
    Raises ValueError for a box that cannot be read, KeyError for an unknown kind or box.
    """
    figure = plt.figure(figsize=size, layout="none")
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, size[0]), ylim=(0, size[1]))
    axis.axis("off")
    middle = {"ha": "center", "va": "center", "fontsize": fontsize, "linespacing": 1.35}
    places, patches = {}, {}
    for entry in re.split(r"\s*[|\n]\s*", boxes.strip()):
        parts = entry.split(maxsplit=4)
        if len(parts) != 5:
            raise ValueError(f"a box needs name, x, y, kind and text, got {entry!r}")
        name, x, y, kind, text = parts
        fill, edge = BOX_FILLS[kind]
        box = {"boxstyle": "round,pad=0.45", "facecolor": fill, "edgecolor": edge}
        places[name] = (float(x), float(y))
        drawn = axis.text(*places[name], text.replace("/", "\n"), bbox=box, **middle)
        patches[name] = drawn.get_bbox_patch()
    line = {"arrowstyle": "-|>", "color": "#555555", "linewidth": 1.3, "shrinkA": 2, "shrinkB": 2}
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
    for chain in re.split(r"\s*[,\n]\s*", arrows.strip()):
        path, _, label = chain.partition(":")
        for start, end in itertools.pairwise(path.replace(" ", "").split(">")):
            ends = line | {"patchA": patches[start], "patchB": patches[end]}
            axis.annotate("", xy=places[end], xytext=places[start], arrowprops=ends)
        if label:
            x, y = (0.6 * a + 0.4 * b for a, b in zip(places[start], places[end], strict=True))
            look = middle | {"fontsize": fontsize - 1, "color": "#444444", "style": "italic"}
            axis.text(x, y, label.strip(), bbox=paper, **look)
    return figure


# --- the gradient compass ------------------------------------------------------------------


def compass_plane(true_gradient: object, estimates: dict[str, tuple]) -> np.ndarray:
    """Return two orthonormal rows (2, parameters): along ∇J, and across it.

    The second is the direction orthogonal to ∇J in which the expected gradients stray most; if
    none strays by more than a billionth of |∇J|, the one in which the samples spread most.
    """
    gradient = _array(true_gradient)
    length = np.linalg.norm(gradient)
    if gradient.ndim != 1 or length == 0:
        raise ValueError(
            f"true_gradient must be a non-zero flat vector, got shape {gradient.shape} "
            f"and length {length}: at an optimum a compass has no north"
        )
    along = gradient / length
    means = np.stack([_array(mean) for mean, _ in estimates.values()])
    samples = np.concatenate([_array(samples) for _, samples in estimates.values()])
    for vectors in (means, samples):
        across = vectors - np.outer(vectors @ along, along)
        _, sizes, directions = np.linalg.svd(across, full_matrices=False)
        if sizes[0] > 1e-9 * length:
            second = directions[0] - (directions[0] @ along) * along
            return np.stack([along, second / np.linalg.norm(second)])
    raise ValueError("every mean and sample is parallel to true_gradient: nothing lies across it")


def compass(
    true_gradient: object,
    estimates: dict[str, tuple],
    *,
    labels: dict[str, str] | None = None,
    styles: dict[str, str] | None = None,
    limit: float | None = None,
    columns: int = 3,
) -> Figure:
    """Draw the gradient compass: one panel per estimator, all in one plane and one scale.

    true_gradient : (parameters,) the exact ∇J; it points right and has length 1 in the picture
    estimates : name → (mean (parameters,), samples (n, parameters)); the names pick the colours
    labels : name → panel title; styles : name → whose colour it wears (default: its own), for
    several panels of one method; limit : half-width of a panel in units of |∇J| (default: wide
    enough for 95 % of all samples); columns : panels per row

    Vectors with many entries are drawn in a plane (`compass_plane`): to the right goes the
    component along ∇J, upwards the component along the *one* orthogonal direction in which the
    expectations stray most (or, where none strays, the samples spread most). All other
    directions are not drawn. Each panel shows ∇J (thin black arrow, a ring at its tip), the
    estimator's expectation (broad pale arrow, a cross at its tip) and its samples (faint lines
    that end in dots). A cross off the thin arrow is bias in direction, one on its line that
    misses the ring is a factor, the cloud is variance, and a sample in the shaded half lowers J
    to first order.

    The numbers under the panel are taken in all directions, not in the plane. mean: length of
    the expectation, in units of |∇J|, and its cosine with ∇J. spread: root-mean-square distance
    of the samples from the expectation, in the same unit. wrong side: share of samples with a
    negative component along ∇J. zero: share that is exactly the zero vector (it teaches nothing).
    Raises ValueError if ∇J is zero or a shape does not fit.
    """
    gradient = _array(true_gradient)
    estimates = {name: (_array(mean), _array(draws)) for name, (mean, draws) in estimates.items()}
    for name, (mean, draws) in estimates.items():
        if mean.shape != gradient.shape or draws.shape[1:] != gradient.shape:
            raise ValueError(
                f"{name}: expected mean {gradient.shape} and samples (n, {gradient.size}), "
                f"got {mean.shape} and {draws.shape}"
            )
    plane = compass_plane(gradient, estimates) / np.linalg.norm(gradient)
    if limit is None:
        tips = np.concatenate([draws @ plane.T for _, draws in estimates.values()])
        means = np.stack([mean @ plane.T for mean, _ in estimates.values()])
        limit = 1.08 * max(1.0, np.abs(means).max(), np.quantile(np.abs(tips).max(axis=1), 0.95))

    columns = min(columns, len(estimates))
    rows = math.ceil(len(estimates) / columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(2.75 * columns, 3.5 * rows), sharex=True, sharey=True, squeeze=False
    )
    for axis in axes.flat[len(estimates) :]:
        axis.set_visible(False)
    for axis, (name, (mean, draws)) in zip(axes.flat, estimates.items(), strict=False):
        color = style((styles or {}).get(name, name))["color"]
        _draw_needles(axis, mean @ plane.T, draws @ plane.T, color, limit)
        axis.set_title((labels or {}).get(name, name))
        axis.set_xlabel("along ∇J\n" + _compass_numbers(gradient, mean, draws), fontsize=9)
    for axis in axes[:, 0]:
        axis.set_ylabel("across ∇J", fontsize=9)
    return figure


def _draw_needles(axis, mean: np.ndarray, draws: np.ndarray, color: str, limit: float) -> None:
    axis.axvspan(-limit, 0, color=WRONG_SIDE, zorder=0, linewidth=0)
    zeros = np.zeros(len(draws))
    axis.plot([zeros, draws[:, 0]], [zeros, draws[:, 1]], color=color, alpha=0.16, linewidth=0.8)
    axis.plot(draws[:, 0], draws[:, 1], ".", color=color, alpha=0.5, markersize=3)
    _arrow(axis, mean, color, limit, gid="mean", head=11.0, tail=5.0, alpha=0.45)
    _arrow(axis, np.array([1.0, 0.0]), INK, limit, gid="truth", head=5.0, tail=1.2)
    for size, width, ink in ((6.0, 3.2, "white"), (5.0, 1.6, color)):  # a cross with a white rim
        axis.plot(*mean, "x", markersize=size, markeredgewidth=width, color=ink, zorder=6)
    ring = {"markersize": 12, "markerfacecolor": "none", "markeredgecolor": INK}
    axis.plot(1, 0, "o", zorder=7, **ring)
    axis.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect="equal")
    axis.text(-0.96 * limit, -0.96 * limit, "lowers J", fontsize=8, color="#7a4a36")


def _arrow(axis, tip, color, limit, *, gid, head, tail, alpha=1.0) -> None:
    """Draw an arrow from the origin; sizes in points, shrunk as a whole if the arrow is short."""
    points = np.linalg.norm(tip) * 155 / (2 * limit)  # a panel is about 155 points wide
    scale = min(1.0, points / (2.4 * head))
    shape = f"simple,head_length={1.2 * head},head_width={head},tail_width={tail}"
    look = {"arrowstyle": shape, "facecolor": color, "edgecolor": "white", "linewidth": 0.7}
    look |= {"mutation_scale": max(scale, 0.05), "shrinkA": 0, "shrinkB": 0, "alpha": alpha}
    axis.annotate("", xy=tip, xytext=(0, 0), arrowprops=look, gid=gid, zorder=5)


def _compass_numbers(gradient: np.ndarray, mean: np.ndarray, draws: np.ndarray) -> str:
    length = np.linalg.norm(gradient)
    size = np.linalg.norm(mean)
    cosine = gradient @ mean / (length * size)
    spread = np.sqrt(((draws - mean) ** 2).sum(axis=1).mean()) / length
    wrong, zero = (draws @ gradient < 0).mean(), (draws == 0).all(axis=1).mean()
    numbers = (
        f"mean: length {size / length:.2f}, cosine {cosine:.3f}\nspread {spread:.2f} |∇J|\n"
        f"wrong side {wrong:.0%}, zero {zero:.0%}"
    )
    return numbers.replace("-", "−")


def _array(values: object) -> np.ndarray:
    return np.asarray(values.detach() if hasattr(values, "detach") else values, dtype=float)
