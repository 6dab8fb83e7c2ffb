"""The clip region: which tokens of a batch still push the policy under a clipped objective.

Lecture 03, [RC-6] to [RC-8]. The picture is drawn by clip_region.js; the still picture and the
sentence here come from `policy_gradients.surrogates.ppo_clip` itself.
Leaves out: dual clip [RC-9], and surrogates of another shape (GSPO, CISPO, SAPO).
"""

import textwrap
from typing import Any, NamedTuple

import numpy as np
import torch
import traitlets
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MultipleLocator

from lectures.widgets.base import STILL_WIDTH, InvalidValueError, LectureWidget, fixed, module
from policy_gradients.algorithms import ALGORITHMS
from policy_gradients.surrogates import ppo_clip

RATIO_MAX = 2.0  # right end of the ρ axis, as in clip_region.js
SIZE_RANGE = (0.1, 3.0)  # |A| that the slider can show
MOST_TOKENS = 4096  # every token is a mark in the picture and a row of the saved notebook


class Method(NamedTuple):
    """One choice of the widget: its name, its paper's two epsilons and where they stand."""

    label: str
    eps_low: float
    eps_high: float
    source: str


def _method(key: str, label: str, source: str) -> Method:
    knobs = ALGORITHMS[key].knobs
    return Method(label, knobs["eps_low"], knobs["eps_high"], source)


METHODS = {
    "ppo": _method("ppo", "PPO", "ε = 0.2: Schulman et al. 2017, section 6.1."),
    "grpo": _method("grpo", "GRPO", "Shao et al. 2024 print no ε; 0.2 is PPO's."),
    "dapo": _method("dapo", "DAPO", "ε = 0.2 and 0.28: Yu et al. 2025, section 4.1."),
}


def default_tokens(seed: int = 0) -> list[list[float]]:
    """Return 256 pairs (ratio, advantage): log ρ normal with deviation 0.25, A standard normal.

    That is how far a batch drifts after a few epochs of minibatch steps, far enough that every
    one of the six regions holds tokens. Four decimals, so that a saved notebook stays small.
    """
    normal = np.random.default_rng(seed).standard_normal((256, 2))
    ratios, advantages = np.exp(0.25 * normal[:, 0]), normal[:, 1]
    return np.stack([ratios, advantages], axis=1).round(4).tolist()


def objective_and_weight(
    ratios: Any, advantages: Any, *, eps_low: float, eps_high: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return each token's objective and its derivative by log π, from `ppo_clip` and autograd.

    ratios, advantages : (tokens,), ratios > 0; both results : (tokens,), float64
    """
    ratios = torch.as_tensor(ratios, dtype=torch.float64).reshape(1, -1)
    advantages = torch.as_tensor(advantages, dtype=torch.float64).expand_as(ratios)
    with torch.enable_grad():
        logp = ratios.log().requires_grad_()
        old = torch.zeros_like(logp)
        objective = -ppo_clip(logp, old, advantages, eps_low=eps_low, eps_high=eps_high)
        (weight,) = torch.autograd.grad(objective.sum(), logp)
    return objective.detach().numpy()[0], weight.numpy()[0]


class ClipRegion(LectureWidget):
    """The clip-region widget: `clip = ClipRegion(methods=("ppo", "grpo", "dapo"))`.

    methods : which presets to offer, in this order
    method : the one chosen; choosing another sets both epsilons to its paper's values
    advantage : A of the two curves; its sign picks the panel, 0.1 ≤ |A| ≤ 3
    eps_low, eps_high : the clip interval is [1 − eps_low, 1 + eps_high]; both in (0, 1)
    tokens : (tokens, 2) pairs (ratio, advantage), as tensor, array or lists, at most 4096

    Everything can be read after the sliders have moved, and set from Python. A value that makes
    no sense raises InvalidValueError (a ValueError) and changes nothing.
    """

    name = "clip_region"
    state_keys = ("methods", "method", "advantage", "eps_low", "eps_high", "tokens")
    _esm = module("clip_region")
    _ready = False

    methods = traitlets.TraitType([], read_only=True).tag(sync=True)
    method = traitlets.TraitType("ppo").tag(sync=True)
    advantage = traitlets.TraitType(1.0).tag(sync=True)
    eps_low = traitlets.TraitType(0.2).tag(sync=True)
    eps_high = traitlets.TraitType(0.2).tag(sync=True)
    tokens = traitlets.TraitType([]).tag(sync=True)

    def __init__(
        self,
        methods: tuple[str, ...] = tuple(METHODS),
        *,
        method: str | None = None,
        advantage: float = 1.0,
        eps_low: float | None = None,
        eps_high: float | None = None,
        tokens: Any = None,
    ) -> None:
        rows = _rows(methods)
        self.set_trait("methods", rows)
        method = rows[0]["key"] if method is None else method
        preset = METHODS.get(method, METHODS["ppo"])  # an unknown name is refused just below
        super().__init__(
            method=method,
            advantage=advantage,
            eps_low=preset.eps_low if eps_low is None else eps_low,
            eps_high=preset.eps_high if eps_high is None else eps_high,
            tokens=default_tokens() if tokens is None else tokens,
        )
        self._ready = True

    def reset(self) -> None:
        """Set both epsilons to the values of the chosen method's paper."""
        preset = METHODS[self.method]
        self.eps_low, self.eps_high = preset.eps_low, preset.eps_high

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Tokens by the sign of A ("positive", "negative") and the side of the clip interval."""
        ratios, advantages = self._pairs().T
        below, above = ratios < 1 - self.eps_low, ratios > 1 + self.eps_high
        sides = {"below": below, "inside": ~below & ~above, "above": above}
        signs = {"positive": advantages > 0, "negative": advantages < 0}
        return {
            name: {where: int((sign & side).sum()) for where, side in sides.items()}
            for name, sign in signs.items()
        }

    @property
    def kept(self) -> float:
        """Share of the batch's gradient weight that the clip keeps: Σ|weight| / Σ|ρA|."""
        ratios, advantages = self._pairs().T
        _, weight = objective_and_weight(ratios, advantages, **self._epsilons())
        unclipped = np.abs(ratios * advantages).sum()
        return float(np.abs(weight).sum() / unclipped) if unclipped > 0 else 0.0

    @property
    def sentence(self) -> str:
        """The result in words, as it stands under the picture."""
        counts = self.counts
        dead = counts["positive"]["above"] + counts["negative"]["below"]
        total = len(self.tokens)
        if self.advantage > 0:
            edge, sign = f"above ρ = {fixed(1 + self.eps_high, 2)}", "A > 0"
        else:
            edge, sign = f"below ρ = {fixed(1 - self.eps_low, 2)}", "A < 0"
        parts = [
            f"{METHODS[self.method].label}: {edge} a token with {sign} gets no gradient.",
            f"In this batch the clip silences {dead} of {total} tokens "
            f"({fixed(100 * dead / total, 1)} %) and keeps {fixed(100 * self.kept, 0)} % "
            "of the unclipped gradient weight.",
        ]
        ratios, advantages = self._pairs().T
        if zero := int((advantages == 0).sum()):
            parts.append(f"Tokens with A = 0, which never push: {zero}.")
        if beyond := int((ratios > RATIO_MAX).sum()):
            parts.append(f"Tokens beyond ρ = 2, drawn on the right edge: {beyond}.")
        return " ".join(parts)

    def draw_still(self, figure: Figure) -> None:
        _draw(self, figure)

    def _pairs(self) -> np.ndarray:
        return np.array(self.tokens, dtype=np.float64)

    def _epsilons(self) -> dict[str, float]:
        return {"eps_low": self.eps_low, "eps_high": self.eps_high}

    # --- what is refused -------------------------------------------------------------------

    @traitlets.validate("method")
    def _check_method(self, proposal: Any) -> str:
        known = [row["key"] for row in self.methods]
        if proposal["value"] not in known:
            raise InvalidValueError(
                f"method is {proposal['value']!r}; this widget was made with: {', '.join(known)}"
            )
        return proposal["value"]

    @traitlets.validate("eps_low", "eps_high")
    def _check_epsilon(self, proposal: Any) -> float:
        name = proposal["trait"].name
        value = _number(name, proposal["value"])
        if not 0 < value < 1:
            raise InvalidValueError(f"{name} is {value}; it must lie between 0 and 1, such as 0.2")
        return value

    @traitlets.validate("advantage")
    def _check_advantage(self, proposal: Any) -> float:
        value = _number("advantage", proposal["value"])
        low, high = SIZE_RANGE
        if not low <= abs(value) <= high:
            raise InvalidValueError(
                f"advantage is {value}; its size must lie between {low} and {high} "
                "(the curves only scale with it), its sign is yours"
            )
        return value

    @traitlets.validate("tokens")
    def _check_tokens(self, proposal: Any) -> list[list[float]]:
        return _token_list(proposal["value"])

    @traitlets.observe("method")
    def _use_paper_values(self, change: Any) -> None:
        # The browser sends its own epsilons along, and so does the constructor.
        if self._ready and not self._from_browser:
            self.reset()


def _rows(methods: tuple[str, ...]) -> list[dict[str, Any]]:
    listed = isinstance(methods, tuple | list) and len(methods) > 0
    if not listed or any(key not in list(METHODS) for key in methods):
        raise InvalidValueError(
            f"methods is {methods!r}; expected one or more of: {', '.join(METHODS)}, "
            'as a tuple such as ("ppo", "dapo")'
        )
    return [{"key": key, **METHODS[key]._asdict()} for key in methods]


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidValueError(f"{name} is {value!r}; expected a number") from None


def _token_list(value: Any) -> list[list[float]]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().double().numpy()
    try:
        pairs = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(
            f"tokens must be pairs (ratio, advantage) of numbers: {error}"
        ) from None
    if pairs.size == 0:
        raise InvalidValueError("tokens is empty; give at least one pair (ratio, advantage)")
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise InvalidValueError(
            f"tokens has shape {pairs.shape}; expected (tokens, 2), a row per token with its ratio "
            "and its advantage, as torch.stack([ratio, advantage], dim=-1) makes it"
        )
    if len(pairs) > MOST_TOKENS:
        raise InvalidValueError(
            f"tokens holds {len(pairs)} pairs; at most {MOST_TOKENS} can be drawn: pass a sample"
        )
    wrong = ~np.isfinite(pairs).all(axis=1)
    if wrong.any():
        row = int(wrong.argmax())
        raise InvalidValueError(
            f"tokens[{row}] is {pairs[row].tolist()}; NaN and inf cannot be drawn"
        )
    wrong = pairs[:, 0] <= 0
    if wrong.any():
        row = int(wrong.argmax())
        raise InvalidValueError(
            f"tokens[{row}] has ratio {pairs[row, 0]}; a ratio of probabilities is above 0 "
            "(were log-ratios passed? take exp first)"
        )
    return pairs.tolist()


# --- the still picture: the layout of clip_region.js, in screen pixels --------------------------

INK, SOFT, LINE, GRID = "#1a1a1a", "#595959", "#8a8a8a", "#dedede"
DEAD, HATCH = "#f1f1f1", "#a6a6a6"
POSITIVE, NEGATIVE = "#0072B2", "#D55E00"
HEIGHT, LEFT, WIDTH, PANEL, STRIP = 580, 310, 634, 138, 100
OBJECTIVE_TOP, WEIGHT_TOP, STRIP_TOP = 34, 198, 380
AXIS_STEPS = {0.2: 0.05, 0.5: 0.2, 1: 0.5, 2: 0.5, 4: 1, 6: 2}  # top of the axis: its ticks


def _draw(clip: ClipRegion, figure: Figure) -> None:
    figure.set_size_inches(STILL_WIDTH / 100, HEIGHT / 100)

    def axes(left: float, top: float, width: float, height: float) -> Axes:
        bottom = 1 - (top + height) / HEIGHT
        box = (left / STILL_WIDTH, bottom, width / STILL_WIDTH, height / HEIGHT)
        return figure.add_axes(box)

    objective = axes(LEFT, OBJECTIVE_TOP, WIDTH, PANEL)
    weight = axes(LEFT, WEIGHT_TOP, WIDTH, PANEL)
    strip = axes(LEFT, STRIP_TOP, WIDTH, STRIP)
    _draw_controls(clip, axes(0, 0, 250, HEIGHT))
    _draw_curves(clip, objective, weight)
    _draw_tokens(clip, strip)
    for axis in (objective, weight, strip):
        axis.set_xlim(0, RATIO_MAX)
        axis.axvline(1, color=LINE, linewidth=0.8, zorder=1.5)
        for edge in (1 - clip.eps_low, 1 + clip.eps_high):
            axis.axvline(edge, color=INK, linewidth=1.2, linestyle=(0, (5, 3)), zorder=4)
    words = textwrap.fill(clip.sentence, 132)
    figure.text(18 / STILL_WIDTH, 28 / HEIGHT, words, color=INK, fontsize=9, va="center")


def _draw_controls(clip: ClipRegion, axis: Axes) -> None:
    """The controls as they stand, as a picture of them: nothing here can be moved."""
    axis.set(xlim=(0, 250), ylim=(HEIGHT, 0))
    axis.axis("off")
    dot = {"linestyle": "", "clip_on": False}

    def options(top: float, title: str, names: list[str], chosen: int, step: int) -> None:
        axis.text(18, top, title, fontweight="bold", fontsize=10, color=INK)
        for i, name in enumerate(names):
            look = {"markerfacecolor": POSITIVE if i == chosen else "white"}
            axis.plot(25 + step * i, top + 22, "o", markersize=7, color=LINE, **look, **dot)
            axis.text(36 + step * i, top + 26, name, fontsize=10, color=INK)

    options(40, "Method", [METHODS[r["key"]].label for r in clip.methods], _index(clip), 72)
    options(104, "Advantage sign", ["▲ A > 0", "▼ A < 0"], 0 if clip.advantage > 0 else 1, 96)
    rows = [
        ("|A| size", fixed(abs(clip.advantage), 1), (abs(clip.advantage) - 0.1) / 2.9),
        ("ε low", fixed(clip.eps_low, 2), (clip.eps_low - 0.01) / 0.98),
        ("ε high", fixed(clip.eps_high, 2), (clip.eps_high - 0.01) / 0.98),
    ]
    for top, (name, value, part) in zip((172, 232, 292), rows, strict=True):
        axis.text(18, top, name, fontweight="bold", fontsize=10, color=INK)
        axis.text(232, top, value, ha="right", fontsize=10, color=INK)
        at = 18 + 214 * min(1, max(0, part))
        axis.plot([18, 232], [top + 20] * 2, color=GRID, linewidth=5, solid_capstyle="round")
        axis.plot([18, at], [top + 20] * 2, color=POSITIVE, linewidth=5, solid_capstyle="round")
        axis.plot(at, top + 20, "o", color=POSITIVE, markersize=11, **dot)
    notes = (
        METHODS[clip.method].source,
        "Hollow marks on hatching: tokens without gradient. The numbers count the tokens of "
        "each region.",
        "A still picture: run the notebook to move the sliders.",
    )
    words = "\n\n".join(textwrap.fill(note, 33) for note in notes)
    axis.text(18, 346, words, va="top", fontsize=9, color=SOFT, linespacing=1.3)


def _index(clip: ClipRegion) -> int:
    return [row["key"] for row in clip.methods].index(clip.method)


def _draw_curves(clip: ClipRegion, objective: Axes, weight: Axes) -> None:
    sign, size = (1 if clip.advantage > 0 else -1), abs(clip.advantage)
    color = POSITIVE if sign > 0 else NEGATIVE
    top = next(top for top in AXIS_STEPS if top >= 2 * size - 1e-9)
    edge = 1 + clip.eps_high if sign > 0 else 1 - clip.eps_low
    tiny = 1e-9  # the weight jumps at the edge: evaluate on both sides of it
    ratios = np.array([tiny, 1 - clip.eps_low, edge - tiny, edge + tiny, 1 + clip.eps_high, 2])
    ratios.sort()
    curves = objective_and_weight(ratios, clip.advantage, **clip._epsilons())
    titles = ("Objective of one token", "Gradient weight (push)")
    for axis, values, title in zip((objective, weight), curves, titles, strict=True):
        _frame(axis, title)
        axis.set_ylim(sorted((-0.08 * sign * top, 1.08 * sign * top)))
        axis.yaxis.set_major_locator(MultipleLocator(AXIS_STEPS[top]))
        axis.grid(axis="y", color=GRID, linewidth=0.8)
        axis.axhline(0, color=LINE, linewidth=0.8)
        axis.tick_params(bottom=False, labelbottom=False, left=False)
        _hatch(axis, sign, edge, *axis.get_ylim())
        dotted = {"color": INK, "linewidth": 1.4, "linestyle": ":"}
        axis.plot([0, 2], [0, 2 * clip.advantage], **dotted, label="no clip")
        axis.plot(ratios, values, color=color, linewidth=2.4, zorder=3, label="clipped")
        _name_dead_zone(axis, sign, edge, size / 2 if sign > 0 else -0.88 * top)
    objective.legend(
        *[items[::-1] for items in objective.get_legend_handles_labels()],
        loc="lower right",
        bbox_to_anchor=(1.01, 0.97),
        ncols=2,
        frameon=False,
        fontsize=9,
    )
    low, high = 1 - clip.eps_low, 1 + clip.eps_high
    look = {"fontsize": 9.5, "color": INK, "va": "top", "path_effects": _HALO, "zorder": 6}
    at = weight.get_xaxis_transform()
    label = rf"$1-\varepsilon_{{\mathrm{{low}}}}$ = {fixed(low, 2)}"
    weight.text(max(low - 0.015, 0.35), -0.04, label, ha="right", transform=at, **look)
    label = rf"$1+\varepsilon_{{\mathrm{{high}}}}$ = {fixed(high, 2)}"
    weight.text(min(high + 0.015, 1.64), -0.04, label, ha="left", transform=at, **look)


def _draw_tokens(clip: ClipRegion, strip: Axes) -> None:
    _frame(strip, f"Tokens of the batch ({len(clip.tokens)})")
    strip.set_ylim(2, 0)
    strip.set_yticks([0.5, 1.5], ["▲ A > 0", "▼ A < 0"])
    strip.xaxis.set_major_locator(MultipleLocator(0.5))
    strip.tick_params(left=False, pad=5)
    strip.set_xlabel(r"token ratio ρ = $\pi_\theta\,/\,\pi_{\mathrm{old}}$", fontsize=10, color=INK)
    strip.axhline(1, color=LINE, linewidth=0.8)
    low, high = 1 - clip.eps_low, 1 + clip.eps_high
    _hatch(strip, 1, high, 0, 1)
    _hatch(strip, -1, low, 1, 2)
    ratios, advantages = clip._pairs().T
    heights = 0.46 + 0.42 * ((0.618034 * np.arange(len(ratios))) % 1)
    for sign, top, color, marker in ((1, 0, POSITIVE, "^"), (-1, 1, NEGATIVE, "v")):
        dead = ratios > high if sign > 0 else ratios < low
        for chosen, face, alpha in ((~dead, color, 0.75), (dead, "white", 1.0)):
            mine = chosen & (np.sign(advantages) == sign)
            x, y = np.minimum(ratios[mine], RATIO_MAX), top + heights[mine]
            look = {"facecolor": face, "edgecolor": color, "linewidth": 0.9, "alpha": alpha}
            strip.scatter(x, y, s=22, marker=marker, clip_on=False, zorder=3, **look)
        counts = clip.counts["positive" if sign > 0 else "negative"].values()
        bounds = np.array([0, low, high, RATIO_MAX])
        centres = np.clip((bounds[:-1] + bounds[1:]) / 2, 0.06, 1.94)
        centres[1] = np.clip(centres[1], centres[0] + 0.12, centres[2] - 0.12)
        for x, count in zip(centres, counts, strict=True):
            look = {"ha": "center", "va": "center", "fontweight": "bold", "fontsize": 9.5}
            strip.text(x, top + 0.2, str(count), **look, color=INK, path_effects=_HALO, zorder=6)


_HALO = [withStroke(linewidth=3, foreground="white")]


def _frame(axis: Axes, title: str) -> None:
    axis.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK, y=1.0, pad=5)
    axis.tick_params(labelsize=9.5, labelcolor=INK, color=LINE)
    axis.spines[:].set(visible=True, color=LINE)
    axis.grid(False)


def _hatch(axis: Axes, sign: int, edge: float, low: float, high: float) -> None:
    """Mark where a token of this sign of A gets no gradient."""
    left, right = (edge, RATIO_MAX) if sign > 0 else (0, edge)
    look = {"facecolor": DEAD, "edgecolor": HATCH, "hatch": "////", "linewidth": 0, "zorder": 0}
    axis.add_patch(Rectangle((left, low), right - left, high - low, **look))


def _name_dead_zone(axis: Axes, sign: int, edge: float, height: float) -> None:
    """Write "no gradient" into the dead zone, or beside it with an arrow if it is narrow."""
    left, right = (edge, RATIO_MAX) if sign > 0 else (0, edge)
    look = {"fontweight": "bold", "fontsize": 9.5, "color": INK, "va": "center", "zorder": 6}
    if right - left > 0.3:
        place = {"x": (left + right) / 2, "s": "no gradient", "ha": "center"}
    elif sign > 0:
        place = {"x": left - 0.03, "s": "no gradient →", "ha": "right"}
    else:
        place = {"x": right + 0.03, "s": "← no gradient", "ha": "left"}
    axis.text(y=height, path_effects=_HALO, **place, **look)
