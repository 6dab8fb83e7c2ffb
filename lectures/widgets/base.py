"""What every widget of the course shares on the Python side.

A widget is one subclass of `LectureWidget` and one ES module beside it. The browser draws on its
own and sends its state here a moment after the last move, so a notebook can read it. Where no
kernel runs, the widget is a PNG of the same layout and state, and the output's own metadata says
which module and state it was (a site can bring it back to life from that).
Leaves out: anything that only one widget knows.
"""

import base64
import io
import math
import re
from pathlib import Path
from typing import Any, ClassVar

import anywidget
import matplotlib.style
import traitlets
from matplotlib.figure import Figure
from PIL import Image

FOLDER = Path(__file__).parent
METADATA_KEY = "policy_gradients_course"
STILL_WIDTH = 960  # screen pixels
STILL_SCALE = 1.6  # image pixels per screen pixel


class InvalidValueError(traitlets.TraitError, ValueError):
    """A value that a widget refuses; both a TraitError and a ValueError."""


def module(name: str) -> str:
    """Return the ES module `name`.js with base.js written in place of its import.

    The browser gets each widget as one text without a folder around it, so it cannot import a
    neighbour; on disk the two files stay separate and can be imported as they are.
    """
    source = (FOLDER / f"{name}.js").read_text(encoding="utf-8")
    base = (FOLDER / "base.js").read_text(encoding="utf-8")
    shared = re.sub(r"^export (?=function|const)", "", base, flags=re.MULTILINE)
    bundled, count = re.subn(
        r'^import \{[^}]*\} from "\./base\.js";$', lambda _: shared, source, flags=re.MULTILINE
    )
    if count != 1:
        raise ValueError(f"{name}.js must import from ./base.js in exactly one statement")
    return bundled


def fixed(value: float, digits: int) -> str:
    """Format with `digits` decimals, halves rounded up and a true minus, as base.js does."""
    scale = 10**digits
    return f"{math.floor(value * scale + 0.5) / scale:.{digits}f}".replace("-", "−")


class LectureWidget(anywidget.AnyWidget):
    """Base of the course's widgets: state, still picture and output metadata.

    A subclass sets `name` (its module's file name), `_esm = module(name)` and `state_keys` (the
    synchronised traits that make up its state), and defines `sentence` (the result in words) and
    `draw_still(figure)` (the same picture in matplotlib).
    """

    name: ClassVar[str]
    state_keys: ClassVar[tuple[str, ...]]
    _from_browser = False

    @property
    def sentence(self) -> str:
        raise NotImplementedError(f"{type(self).__name__} needs a sentence that states its result")

    def draw_still(self, figure: Figure) -> None:
        raise NotImplementedError(f"{type(self).__name__} needs a still picture")

    @property
    def state(self) -> dict[str, Any]:
        """What the picture depends on, as JSON values."""
        return {key: getattr(self, key) for key in self.state_keys}

    def still(self) -> bytes:
        """Return the present picture as a PNG, 960 screen pixels wide."""
        buffer = io.BytesIO()
        with matplotlib.style.context("default"):  # whatever style the notebook has set
            figure = Figure(dpi=100 * STILL_SCALE, facecolor="white", layout="none")
            self.draw_still(figure)
            figure.savefig(buffer, format="png")
        image = Image.open(buffer).convert("RGB").quantize(128, dither=Image.Dither.NONE)
        small = io.BytesIO()
        image.save(small, format="png", optimize=True)
        return small.getvalue()

    def set_state(self, sync_data: dict) -> None:
        """Take values from the browser; observers can tell by `_from_browser`."""
        self._from_browser = True
        try:
            super().set_state(sync_data)
        finally:
            self._from_browser = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.sentence}"

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict, dict]:
        data, metadata = super()._repr_mimebundle_(**kwargs)
        picture = base64.b64encode(self.still()).decode("ascii")
        data |= {"text/plain": repr(self), "image/png": picture}
        metadata = metadata | {
            "image/png": {"alt": repr(self), "width": STILL_WIDTH},
            METADATA_KEY: {"widget": self.name, "state": self.state},
        }
        return data, metadata
