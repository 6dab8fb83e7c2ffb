"""What every widget of the course shares on the Python side.

A widget is one subclass of `LectureWidget` and one ES module beside it (README.md in this folder
shows a whole one). The class declares its controls; the browser builds them, draws on its own and
sends its state here a moment after the last move, so a notebook can read it. Where no kernel runs,
the widget is a PNG of the same state, and the output's own metadata says which module and state
it was (a site brings it back to life from that).
Leaves out: anything that only one widget knows.
"""

import base64
import difflib
import math
import numbers
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import anywidget
import traitlets

from lectures.widgets.still import STILL_WIDTH, Still

FOLDER = Path(__file__).parent
METADATA_KEY = "policy_gradients_course"
ROUNDING = 1e-9  # 0.1 · 3 · 10 is taken for 3
SHORT = 60  # characters of a refused value that a message repeats
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)


class InvalidValueError(traitlets.TraitError, ValueError):
    """A value that a widget refuses; both a TraitError and a ValueError."""

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the sentence, without the way through this module."""
        return [f"{type(self).__name__}: {self}"]


def module(name: str) -> str:
    """Return the ES module `name`.js with its neighbours written in place of their imports.

    The browser gets each widget as one text without a folder around it, so it cannot import a
    neighbour; on disk the files stay separate and can be imported as they are.
    """
    parts: dict[str, str] = {}

    def collect(name: str) -> None:
        source = (FOLDER / f"{name}.js").read_text(encoding="utf-8")
        parts[name] = ""  # seen, so that two modules may import a third
        for neighbour in _IMPORT.findall(source):
            if neighbour not in parts:
                collect(neighbour)
        del parts[name]
        parts[name] = _IMPORT.sub("", source)

    collect(name)
    if "base" not in parts:
        raise ValueError(f'{name}.js must import {{ … }} from "./base.js", on lines of their own')
    if left := [part for part, source in parts.items() if re.search(r"^import\b", source, re.M)]:
        raise ValueError(f'{left[0]}.js: only import {{ … }} from "./neighbour.js"; can be bundled')
    for part in list(parts)[:-1]:
        parts[part] = re.sub(r"^export (?=function|const)", "", parts[part], flags=re.MULTILINE)
    return "\n".join(parts.values())


# --- what a class declares ----------------------------------------------------------------------


class Control(traitlets.TraitType):
    """A value of the widget's state, synchronised with the browser, with a control to move it.

    label  : what the learner reads; "π_ref" is shown with "ref" as a subscript
    spoken : what a screen reader says instead, where the label holds signs: "distance from pi ref"

    A list is frozen: changed in place, it would be neither checked nor sent.
    """

    kind: ClassVar[str]

    def __init__(self, default: Any, label: str, *, spoken: str | None = None):
        super().__init__(default)
        self.label, self.spoken = label, spoken
        self.tag(sync=True)

    def _validate(self, obj: Any, value: Any) -> Any:
        return _frozen(super()._validate(obj, value))

    def describe(self, widget: "LectureWidget") -> dict[str, Any]:
        """What base.js needs in order to build the control, as JSON values."""
        described = {"key": self.name, "kind": self.kind, "label": self.label}
        return described | ({"spoken": self.spoken} if self.spoken else {})


class Slider(Control):
    """A number from a range: `Slider(0.2, "ε low", low=0.01, high=0.99, step=0.01, digits=2)`.

    low, high : the allowed range, both ends included; Python may set any number in it
    step      : distance of the slider's stops; or `stops`, an increasing list of all of them
    digits    : decimals shown, 0 for whole numbers only; None shows up to four significant digits
    """

    kind = "slider"

    def __init__(
        self,
        default: float,
        label: str,
        *,
        low: float | None = None,
        high: float | None = None,
        step: float | None = None,
        stops: list[float] | None = None,
        digits: int | None = None,
        spoken: str | None = None,
    ):
        super().__init__(default, label, spoken=spoken)
        self.low, self.high = (low, high) if stops is None else (stops[0], stops[-1])
        self.step, self.stops, self.digits = step, stops, digits

    def validate(self, obj: "LectureWidget", value: Any) -> float:
        return self.check(self.name, value)

    def check(self, name: str, value: Any) -> float:
        number = as_number(name, value)
        if not self.low - ROUNDING <= number <= self.high + ROUNDING:
            raise InvalidValueError(
                f"{name} is {number:.12g}; it must lie between {self.low:g} and {self.high:g}"
            )
        number = min(max(number, float(self.low)), float(self.high))
        if self.digits != 0:
            return number
        if number != int(number):
            raise InvalidValueError(f"{name} is {number:.12g}; expected a whole number")
        return int(number)

    def describe(self, widget: "LectureWidget") -> dict[str, Any]:
        stops = {"low": self.low, "high": self.high, "step": self.step, "stops": self.stops}
        return super().describe(widget) | stops | {"digits": self.digits}


class Sliders(Slider):
    """One slider for each of a fixed list of names; the value is a list of numbers."""

    kind = "sliders"

    def __init__(self, default: list[float], label: str, *, names: list[str], **range_: Any):
        super().__init__(default, label, **range_)
        self.names = list(names)

    def validate(self, obj: "LectureWidget", value: Any) -> list[float]:
        values = as_list(self.name, value)
        if len(values) != len(self.names):
            raise InvalidValueError(
                f"{self.name} holds {len(values)} numbers; expected {len(self.names)}, "
                f"one each for {', '.join(self.names)}"
            )
        return [self.check(f"{self.name}[{i}]", number) for i, number in enumerate(values)]

    def describe(self, widget: "LectureWidget") -> dict[str, Any]:
        return super().describe(widget) | {"names": self.names}


class Choice(Control):
    """One of several named values: `Choice("tree", "Policy", {"tree": "tree", "flat": "flat"})`.

    options : value (text) → what the learner reads. A widget may offer fewer, or others, through
    `LectureWidget.offer`.
    menu    : a drop-down menu instead of radio buttons, for more than about six options
    Values "positive" and "negative" get the colours of the two signs.
    """

    kind = "choice"

    def __init__(
        self,
        default: str,
        label: str,
        options: Mapping[str, str],
        *,
        menu: bool = False,
        spoken: str | None = None,
    ):
        super().__init__(default, label, spoken=spoken)
        self.options = dict(options)
        self.menu = menu

    def validate(self, obj: "LectureWidget", value: Any) -> str:
        offered = obj.options(self.name)
        if not isinstance(value, str) or value not in offered:
            raise InvalidValueError(
                f"{self.name} is {short_repr(value)}; this widget was made with: "
                f"{', '.join(offered)}"
            )
        return value

    def describe(self, widget: "LectureWidget") -> dict[str, Any]:
        options = [{"value": v, "label": text} for v, text in widget.options(self.name).items()]
        return super().describe(widget) | {"options": options, "menu": self.menu}


class Toggle(Control):
    """A checkbox."""

    kind = "toggle"

    def validate(self, obj: "LectureWidget", value: Any) -> bool:
        if not isinstance(value, bool):
            raise InvalidValueError(f"{self.name} is {short_repr(value)}; expected True or False")
        return value


class Data(Control):
    """A value without a control: `Data(default, check)`, where check(value) returns JSON values
    or raises InvalidValueError."""

    kind = "data"

    def __init__(self, default: Any, check: Callable[[Any], Any]):
        super().__init__(default, "")
        self.check = check

    def validate(self, obj: "LectureWidget", value: Any) -> Any:
        return self.check(value)


def as_number(name: str, value: Any) -> float:
    """Return a finite float, or refuse with a message. True and "0.5" are no numbers here."""
    plain = value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value
    try:
        if isinstance(plain, bool) or not isinstance(plain, numbers.Number):
            raise TypeError
        number = float(plain)
    except (TypeError, ValueError):
        raise InvalidValueError(f"{name} is {short_repr(value)}; expected a number") from None
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidValueError(f"{name} is {short_repr(value)}; expected a finite number")
    return number


def as_list(name: str, value: Any) -> list:
    """Return a list from a list, tuple, array or tensor, or refuse with a message."""
    items = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(items, list | tuple):
        raise InvalidValueError(f"{name} is {short_repr(value)}; expected a list")
    return list(items)


def short_repr(value: Any) -> str:
    """repr(value) for a message: one line, at most SHORT characters."""
    try:
        words = " ".join(repr(value).split())
    except Exception:  # a value's own repr may fail, as that of a very long int does
        words = f"a value of type {type(value).__name__}"
    return words if len(words) <= SHORT else f"{words[: SHORT - 1]}…"


def _refuse_change(self: Any, *_: Any, **__: Any) -> None:
    raise InvalidValueError(
        "a widget's value cannot be changed in place: copy it (list(…), copy.deepcopy(…)), change "
        "the copy and assign that, as in `widget.lengths = [40, 10, 5, 20]`"
    )


class FrozenList(list):
    """A list that refuses to be changed; its copies are plain lists."""

    append = clear = extend = insert = pop = remove = reverse = sort = _refuse_change
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse_change

    def __reduce__(self) -> tuple:
        return list, (list(self),)


class FrozenDict(dict):
    """A dict that refuses to be changed; its copies are plain dicts."""

    clear = pop = popitem = setdefault = update = _refuse_change
    __setitem__ = __delitem__ = __ior__ = _refuse_change

    def __reduce__(self) -> tuple:
        return dict, (dict(self),)


def _frozen(value: Any) -> Any:
    """JSON values, with lists and dicts frozen at every depth."""
    if isinstance(value, dict):
        return FrozenDict((key, _frozen(item)) for key, item in value.items())
    return FrozenList(map(_frozen, value)) if isinstance(value, list) else value


def _whole(value: Any) -> Any:
    """JSON values as a browser writes them: 1 for 1.0, so that saving changes nothing."""
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


# --- the widget ---------------------------------------------------------------------------------


class LectureWidget(anywidget.AnyWidget):
    """Base of the course's widgets: controls, state, still picture and output metadata.

    A subclass sets `name` (its module's file name) and `_esm = module(name)`, declares its
    controls in the order in which they stand, and defines

    sentence   : the result in words, the same text as sentence(state) in JavaScript
    numbers    : name → (nested lists of) numbers that the picture shows, computed by our own
                 libraries; the same as numbers(state) in JavaScript
    draw_still : the picture in matplotlib
    examples   : keyword arguments of states worth testing, extreme ones included
    presets    : key → (label, changes of the state), buttons below the controls; changes None
                 means that `react(key)` knows
    """

    name: ClassVar[str]
    examples: ClassVar[list[dict[str, Any]]] = [{}]
    presets: ClassVar[dict[str, tuple[str, dict[str, Any] | None]]] = {}
    presets_label: ClassVar[str] = "Examples"
    still_height: ClassVar[int] = 420  # of the picture, screen pixels
    controls = traitlets.List(read_only=True).tag(sync=True)
    _from_browser = False
    _ready = False

    def __init__(self, **state: Any):
        declared = self.declared()
        if unknown := [key for key in state if key not in declared]:
            raise TypeError(self._unknown(unknown[0]))
        described = [trait.describe(self) for trait in declared.values()]
        for control in described:
            if control["key"] in self.__dict__.get("_left_out", ()):
                control["kind"] = Data.kind
        if self.presets:
            options = [
                {"key": key, "label": label, "changes": changes}
                for key, (label, changes) in self.presets.items()
            ]
            described.append(
                {"key": "", "kind": "presets", "label": self.presets_label, "options": options}
            )
        super().__init__(**state)
        self.set_trait("controls", described)
        self._ready = True
        self.observe(self._use_reaction, names=list(declared))

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse a mistyped name, which would otherwise be set and change nothing."""
        known = name.startswith("_") or name in self.__dict__ or hasattr(type(self), name)
        if self._ready and not known:
            raise AttributeError(self._unknown(name))
        super().__setattr__(name, value)

    def _unknown(self, name: str) -> str:
        declared = list(self.declared())
        closest = difflib.get_close_matches(name, declared, n=1)
        meant = f" (did you mean {closest[0]!r}?)" if closest else ""
        return f"{type(self).__name__} has no {name!r}{meant}; it takes {', '.join(declared)}"

    @classmethod
    def declared(cls) -> dict[str, Control]:
        """The controls and data of this class by name, in the order of their declaration."""
        found: dict[str, Control] = {}
        for base in reversed(cls.__mro__):
            found |= {k: v for k, v in vars(base).items() if isinstance(v, Control)}
        return found

    def offer(self, key: str, options: Mapping[str, str]) -> None:
        """Before super().__init__: let the choice `key` have these options and no others."""
        self.__dict__.setdefault("_offered", {})[key] = dict(options)

    def leave_out(self, *keys: str) -> None:
        """Before super().__init__: keep these values in the state, without a control."""
        self.__dict__.setdefault("_left_out", set()).update(keys)

    def options(self, key: str) -> dict[str, str]:
        """The options of a choice, as offered by this widget."""
        return self.__dict__.get("_offered", {}).get(key) or type(self).declared()[key].options

    # --- what a subclass says ------------------------------------------------------------------

    @property
    def sentence(self) -> str:
        raise NotImplementedError(f"{type(self).__name__} needs a sentence that states its result")

    @property
    def numbers(self) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} needs the numbers of its picture")

    def draw_still(self, still: Still) -> None:
        raise NotImplementedError(f"{type(self).__name__} needs a still picture")

    @property
    def note(self) -> str:
        """A remark below the controls: how to read the picture, where the defaults come from."""
        return ""

    @property
    def off(self) -> set[str]:
        """Controls that change nothing in the present state; they are shown greyed."""
        return set()

    def react(self, key: str) -> dict[str, Any]:
        """Further changes that follow when `key` was set (or the preset `key` was pressed)."""
        return {}

    # --- state -----------------------------------------------------------------------------------

    @property
    def state(self) -> dict[str, Any]:
        """What the picture depends on, as JSON values; a whole number is an int."""
        values = {key: getattr(self, key) for key in self.declared()}
        return _whole({"controls": self.controls} | values)

    def preset(self, key: str) -> None:
        """Press the preset's button."""
        if key not in self.presets:
            raise InvalidValueError(
                f"no preset {key!r}; this widget has: {', '.join(self.presets)}"
            )
        changes = self.presets[key][1]
        with self.hold_trait_notifications():
            for name, value in (self.react(key) if changes is None else changes).items():
                setattr(self, name, value)

    def _use_reaction(self, change: Any) -> None:
        if self._ready and not self._from_browser:  # the browser sends its own reactions along
            for name, value in self.react(change["name"]).items():
                setattr(self, name, value)

    def set_state(self, sync_data: dict) -> None:
        """Take values from the browser."""
        self._from_browser = True
        try:
            super().set_state(sync_data)
        finally:
            self._from_browser = False

    # --- where no kernel runs --------------------------------------------------------------------

    def still(self) -> bytes:
        """Return the present picture as a PNG, 960 screen pixels wide."""
        still = Still(
            self.state, self.note, self.off, self.sentence, picture_height=self.still_height
        )
        return still.png(self.draw_still)

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
