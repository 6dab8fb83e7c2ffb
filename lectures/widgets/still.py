"""The still picture of a widget: the controls as they stand, the picture, the sentence.

It stands where no kernel runs (a code host's view of a notebook) and on a site until the widget
itself has loaded. Lengths are screen pixels; the picture area is 680 wide.
Leaves out: the picture itself, which the widget draws into axes from `Still.axes`.
"""

import io
import math
import re
import textwrap
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.patheffects import withStroke
from PIL import Image

STILL_WIDTH = 960
SCALE = 1.6  # image pixels per screen pixel
PANEL_WIDTH = 250
PICTURE_WIDTH = STILL_WIDTH - PANEL_WIDTH - 16
SENTENCE_LINE, CHARACTERS = 19, 132

# the light palette of base.js
INK, SOFT, LINE, GRID = "#1a1a1a", "#595959", "#8a8a8a", "#dedede"
DEAD, HATCH, PAPER = "#f1f1f1", "#a6a6a6", "#ffffff"
POSITIVE, NEGATIVE = "#0072B2", "#D55E00"
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # up to four series in one picture
SYMBOL = r"(?<!\w)([α-ωL])_(θ|\w+)"
HALO = [withStroke(linewidth=3, foreground="white")]
BOLD = {"fontweight": "bold", "fontsize": 10, "color": INK}


def fixed(value: float, digits: int) -> str:
    """Format with `digits` decimals, halves rounded up and a true minus, as base.js does."""
    scale = 10**digits
    text = f"{math.floor(value * scale + 0.5) / scale:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", "−")


def brief(value: float) -> str:
    """At most four significant digits, no more than needed: 0.2, 0.0003, 1.05; as base.js does."""
    number = Decimal(float(value))
    last = Decimal(1).scaleb(number.adjusted() - 3)  # place of the fourth digit
    rounded = number.quantize(last, ROUND_HALF_UP) if number else number
    return f"{rounded.normalize():f}".replace("-", "−")


def significant(value: float, digits: int) -> str:
    """`digits` significant digits: 23.2, 0.00120, 157; below 0.0001 as 4.01·10⁻⁶; as base.js."""
    if abs(value) < 1e-12:
        return "0"
    power = math.floor(math.log10(abs(value)))
    if power < -4:
        exponent = "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(-power))
        return f"{fixed(value * 10.0**-power, digits - 1)}·10⁻{exponent}"
    if power < digits:
        return fixed(value, digits - 1 - power)
    unit = 10 ** (power - digits + 1)
    return fixed(unit * math.floor(value / unit + 0.5), 0)


def subscripted(words: str) -> dict[str, Any]:
    """Arguments of `Axes.text`: "π_ref" with a subscript, as in base.js, and no other mathematics
    (a token may hold dollar signs)."""
    if "$" in words or not re.search(SYMBOL, words):
        return {"s": words, "parse_math": False}
    return {"s": re.sub(SYMBOL, r"\1$_{\\mathregular{\2}}$", words)}


def signed_color(value: float, largest: float) -> tuple[str, str]:
    """(fill, ink) for a signed number on a diverging scale: white at 0, full at ±largest."""
    strength = min(1.0, abs(value) / largest) if largest > 0 else 0.0
    full = POSITIVE if value > 0 else NEGATIVE
    channels = [int(full[i : i + 2], 16) for i in (1, 3, 5)]
    mixed = [round(255 + (channel - 255) * strength) for channel in channels]
    linear = [(c / 255 / 12.92) if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in mixed]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#" + "".join(f"{c:02x}" for c in mixed), "#000000" if luminance > 0.179 else "#ffffff"


def spread(wanted: list[float], gap: float, low: float, high: float) -> list[float]:
    """Move label centres apart until neighbours are `gap` apart and lie in [low, high]; as base.js
    does. `wanted` must be sorted."""
    count = len(wanted)
    if (count - 1) * gap > high - low:
        return [low + (high - low) * (i + 0.5) / count for i in range(count)]
    placed = [min(high, max(low, x)) for x in wanted]
    for i in range(1, count):
        placed[i] = max(placed[i], placed[i - 1] + gap)
    limit = high
    for i in reversed(range(count)):
        placed[i] = min(placed[i], limit)
        limit = placed[i] - gap
    return placed


def frame(axis: Axes, title: str) -> None:
    """A titled panel with a thin border, as in the browser."""
    axis.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK, y=1.0, pad=5)
    axis.tick_params(labelsize=9.5, labelcolor=INK, color=LINE)
    axis.spines[:].set(visible=True, color=LINE)
    axis.grid(False)


def hatched(axis: Axes, left: float, right: float, low: float, high: float) -> None:
    """Hatch a region of the axes (data coordinates): nothing happens here."""
    look = {"facecolor": DEAD, "edgecolor": HATCH, "hatch": "////", "linewidth": 0, "zorder": 0}
    axis.add_patch(Rectangle((left, low), right - left, high - low, **look))


class Still:
    """One still picture in the making; `axes` is what a widget's `draw_still` uses."""

    def __init__(
        self,
        state: dict[str, Any],
        note: str,
        off: set[str],
        sentence: str,
        *,
        picture_height: int,
    ):
        self.state, self.note, self.off = state, note, off
        self.words = textwrap.wrap(sentence, CHARACTERS)
        panel = Figure(figsize=(1, 1))
        controls = _Panel(panel.add_axes((0, 0, 1, 1)))
        self.body = max(picture_height, controls.draw(self)) + 12
        self.height = self.body + 16 + SENTENCE_LINE * len(self.words)

    def png(self, draw: Callable[["Still"], None]) -> bytes:
        """Draw the whole and return it as a small PNG."""
        buffer = io.BytesIO()
        with matplotlib.style.context("default"):  # whatever style the notebook has set
            self.figure = Figure(dpi=100 * SCALE, facecolor=PAPER, layout="none")
            self.draw(draw)
            self.figure.savefig(buffer, format="png")
        look = {"method": Image.Quantize.MAXCOVERAGE, "dither": Image.Dither.NONE}
        image = Image.open(buffer).convert("RGB").quantize(128, **look)  # keeps rare colours
        small = io.BytesIO()
        image.save(small, format="png", optimize=True)
        return small.getvalue()

    def draw(self, draw: Callable[["Still"], None], figure: Figure | None = None) -> None:
        """Draw into self.figure (or the one given, for tests of the layout)."""
        self.figure = self.figure if figure is None else figure
        self.figure.set_size_inches(STILL_WIDTH / 100, self.height / 100)
        panel = self._axes(0, 0, PANEL_WIDTH, self.body)
        panel.set(xlim=(0, PANEL_WIDTH), ylim=(self.body, 0))
        panel.axis("off")
        _Panel(panel).draw(self)
        draw(self)
        foot = self._axes(0, self.body, STILL_WIDTH, self.height - self.body)
        foot.set(xlim=(0, STILL_WIDTH), ylim=(self.height - self.body, 0))
        foot.axis("off")
        foot.plot([0, STILL_WIDTH], [0, 0], color=GRID, linewidth=1)
        for i, line in enumerate(self.words):
            look = {"fontsize": 9.5, "color": INK, "va": "center"}
            foot.text(18, 16 + SENTENCE_LINE * i, **subscripted(line), **look)

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Axes inside the picture area, from its top left corner, in screen pixels."""
        return self._axes(PANEL_WIDTH + left, top, width, height)

    def _axes(self, left: float, top: float, width: float, height: float) -> Axes:
        bottom = 1 - (top + height) / self.height
        box = (left / STILL_WIDTH, bottom, width / STILL_WIDTH, height / self.height)
        return self.figure.add_axes(box)


class _Panel:
    """The controls as they stand: nothing here can be moved. `draw` returns the height used."""

    LEFT, RIGHT = 18, 232

    def __init__(self, axis: Axes):
        self.axis, self.top = axis, 22

    def draw(self, still: Still) -> float:
        for control in still.state["controls"]:
            if control["kind"] in ("data", "presets"):
                continue
            self.ink = HATCH if control["key"] in still.off else INK
            getattr(self, control["kind"])(control, still.state[control["key"]])
        text = "A still picture: run the notebook to move the controls."
        notes = [note for note in (still.note, text) if note]
        lines = [line for note in notes for line in [*textwrap.wrap(note, 34), ""]]
        words = "\n".join(lines[:-1])
        look = {"va": "top", "fontsize": 9, "color": SOFT, "linespacing": 1.3}
        self.axis.text(self.LEFT, self.top - 8, **subscripted(words), **look)
        return self.top + 16.5 * len(lines)

    def title(self, text: str) -> None:
        look = {"fontweight": "bold", "fontsize": 10, "color": self.ink}
        self.axis.text(self.LEFT, self.top, **subscripted(text), va="center", **look)

    def track(self, y: float, left: float, share: float) -> None:
        at = left + (self.RIGHT - left) * min(1, max(0, share))
        look = {"linewidth": 5, "solid_capstyle": "round"}
        color = POSITIVE if self.ink == INK else HATCH
        self.axis.plot([left, self.RIGHT], [y, y], color=GRID, **look)
        self.axis.plot([left, at], [y, y], color=color, **look)
        self.axis.plot(at, y, "o", color=color, markersize=10, linestyle="", clip_on=False)

    def slider(self, control: dict, value: float) -> None:
        self.title(control["label"])
        look = {"ha": "right", "va": "center", "fontsize": 10, "color": self.ink}
        self.axis.text(self.RIGHT, self.top, shown(control, value), **look)
        self.track(self.top + 20, self.LEFT, share(control, value))
        self.top += 52

    def sliders(self, control: dict, values: list[float]) -> None:
        self.title(control["label"])
        for name, value in zip(control["names"], values, strict=True):
            self.top += 24
            look = {"va": "center", "fontsize": 10, "color": self.ink}
            self.axis.text(self.LEFT, self.top, name, **look)
            self.track(self.top, self.LEFT + 62, share(control, value))
            self.axis.text(self.LEFT + 54, self.top, shown(control, value), ha="right", **look)
        self.top += 34

    def choice(self, control: dict, value: str) -> None:
        self.title(control["label"])
        self.top += 24
        if control["menu"]:
            label = next(o["label"] for o in control["options"] if o["value"] == value)
            box = FancyBboxPatch(
                (self.LEFT + 3, self.top - 8), 207, 17, boxstyle="round,pad=3", facecolor=DEAD,
                edgecolor=LINE,
            )  # fmt: skip
            self.axis.add_patch(box)
            self.axis.text(self.LEFT + 6, self.top, label, va="center", fontsize=10, color=self.ink)
            self.axis.text(self.RIGHT - 8, self.top, "▾", ha="right", va="center", fontsize=10)
            self.top += 34
            return
        x = self.LEFT
        for option in control["options"]:
            width = 27 + 8.2 * len(option["label"])
            if x > self.LEFT and x + width > self.RIGHT + 14:
                x, self.top = self.LEFT, self.top + 23
            look = {"markerfacecolor": POSITIVE if option["value"] == value else "white"}
            self.axis.plot(x + 7, self.top, "o", markersize=7, color=LINE, clip_on=False, **look)
            look = {"va": "center", "fontsize": 10, "color": self.ink}
            self.axis.text(x + 17, self.top, option["label"], **look)
            x += width
        self.top += 34

    def toggle(self, control: dict, value: bool) -> None:
        look = {"marker": "s", "markersize": 9, "color": LINE, "clip_on": False}
        self.axis.plot(self.LEFT + 6, self.top, markerfacecolor="white", **look)
        if value:
            self.axis.plot(self.LEFT + 6, self.top, "x", markersize=5, color=INK, clip_on=False)
        look = {"va": "center", "fontsize": 10, "color": self.ink}
        self.axis.text(self.LEFT + 19, self.top, control["label"], **look)
        self.top += 32


def share(control: dict, value: float) -> float:
    """Where on its track the slider's knob stands, 0 to 1."""
    stops = control["stops"]
    if stops:
        nearest = min(range(len(stops)), key=lambda i: abs(stops[i] - value))
        return nearest / (len(stops) - 1)
    return (value - control["low"]) / (control["high"] - control["low"])


def shown(control: dict, value: float) -> str:
    """The value as the control prints it."""
    digits = control["digits"]
    return brief(value) if digits is None else fixed(value, digits)
