"""Length bias: how much one token of a short and of a long answer weighs under three averages.

Lecture 09. Four answers to one prompt, the whole of an optimiser step, with their lengths and
advantages; the weight of a token is the factor on the gradient of its log-probability,
−∂loss/∂log π, from `policy_gradients` and autograd. A split into two micro-batches shows why a
denominator belongs to the whole step.
Leaves out: ratios and clipping (every ratio is 1), and how the advantages came about.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from lectures.widgets.base import Choice, LectureWidget, Slider, Sliders, Toggle, module
from lectures.widgets.still import (
    BOLD,
    GRID,
    INK,
    LINE,
    NEGATIVE,
    PICTURE_WIDTH,
    POSITIVE,
    SOFT,
    Still,
    fixed,
    signed_color,
)
from policy_gradients.aggregation import mean_fixed_length, mean_per_sequence, mean_per_token
from policy_gradients.surrogates import reinforce

NAMES = "ABCD"
AVERAGES = ("mean_per_sequence", "mean_per_token", "mean_fixed_length")
LENGTHS = [8, 12, 16, 60]
HALVES = (slice(0, 2), slice(2, 4))  # the two micro-batches


def token_weights(
    average: str,
    lengths: Sequence[int],
    advantages: Sequence[float],
    *,
    l_max: float,
    micro_batches: Sequence[slice] = (slice(None),),
    own_counts: bool = True,
) -> Tensor:
    """Return the weight of every token, −∂loss/∂log π, accumulated over the micro-batches.

    average       : name of a function of `policy_gradients.aggregation`, of AVERAGES
    lengths       : (batch,) tokens; advantages : (batch,); l_max : divisor of mean_fixed_length
    micro_batches : slices of the batch, one backward pass each
    own_counts    : each micro-batch divides by its own tokens and answers, and the means are
                    averaged; otherwise all divide by those of the whole step
    returns       : (batch, time) float64, 0 after a response's end
    """
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    counts = {} if own_counts else {"sequences": len(lengths), "tokens": int(mask.sum())}
    constants = torch.tensor(advantages, dtype=torch.float64)[:, None]
    with torch.enable_grad():
        logp = torch.zeros(mask.shape, dtype=torch.float64, requires_grad=True)
        for part in micro_batches:
            per_token = reinforce(logp[part], constants[part])
            loss = _average(average, per_token, mask[part], l_max=l_max, **counts)
            (loss / len(micro_batches) if own_counts else loss).backward()
    return -logp.grad


def _average(name, x, mask, *, l_max, sequences=None, tokens=None) -> Tensor:
    if name == "mean_per_sequence":
        return mean_per_sequence(x, mask, sequences=sequences)
    if name == "mean_per_token":
        return mean_per_token(x, mask, tokens=tokens)
    return mean_fixed_length(x, mask, length=l_max, sequences=sequences)


def _state(lengths: list[int], advantages: list[float]) -> dict[str, Any]:
    """The whole state, so that a preset leaves nothing over from another one."""
    return {
        "lengths": lengths, "advantages": advantages, "l_max": 64, "split": False, "divide": "step",
    }  # fmt: skip


class LengthBias(LectureWidget):
    """The length-bias widget: `LengthBias(lengths=[8, 12, 16, 60], advantages=[1, 1, 1, -1])`.

    lengths    : tokens of the answers A to D, whole numbers from 1 to 64
    advantages : one per answer, −2 to 2; right answers have a positive one, wrong ones a negative
    l_max      : constant divisor of the fixed-length average, 64 to 128: a budget of the run,
                 so never below the longest answer that is allowed
    split      : two micro-batches, A with B and C with D
    divide     : "step", by the counts of the whole step, or "own", by each micro-batch's own

    `weights`, `sums` and `sentence` can be read after the sliders have moved. A value that makes
    no sense raises InvalidValueError (a ValueError) and changes nothing.
    """

    name = "length_bias"
    _esm = module("length_bias")
    lengths = Sliders(
        [8, 12, 16, 60], "Tokens", names=list(NAMES), low=1, high=64, step=1, digits=0
    )
    advantages = Sliders(
        [1.0, 1.0, 1.0, -1.0], "Advantage", names=list(NAMES), low=-2, high=2, step=0.1, digits=1
    )
    l_max = Slider(64, "L max (budget)", low=64, high=128, step=4, digits=0)
    split = Toggle(False, "Micro-batches A, B | C, D")
    divide = Choice(
        "step",
        "Divide by counts of",
        {"step": "the whole step", "own": "each micro-batch"},
    )
    presets: ClassVar = {
        "long_wrong": ("Long, wrong", _state(LENGTHS, [1, 1, 1, -1])),
        "long_right": ("Long, right", _state(LENGTHS, [-1, -1, -1, 1])),
        "both_wrong": ("Both wrong", _state(LENGTHS, [-1, 1, 1, -1])),
        "both_right": ("Both right", _state(LENGTHS, [1, -1, -1, 1])),
        "equal": ("Equal lengths", _state([16, 16, 16, 16], [1, 1, 1, -1])),
        "trap": ("The trap", _state(LENGTHS, [1, 1, 1, -1]) | {"split": True, "divide": "own"}),
    }
    examples: ClassVar = [
        {},
        {"advantages": [-1, -1, -1, 1], "l_max": 128},
        {"lengths": [16, 16, 16, 16]},
        {"lengths": [64, 64, 64, 64], "advantages": [-2, -0.1, -2, -0.1], "split": True},
        {"split": True},
        {"split": True, "divide": "own"},
        {"lengths": [64, 64, 1, 1], "advantages": [2, -2, 2, -2], "split": True, "divide": "own"},
        {"lengths": [1, 64, 64, 1], "advantages": [2, 2, -2, -2], "split": True, "divide": "own"},
        {"lengths": [1, 64, 30, 7], "advantages": [-2, -2, -0.1, 0]},
        {"lengths": [63, 64, 17, 60], "advantages": [0, 0, 0, 0]},
        {"lengths": [8, 12, 16, 60], "advantages": [0.5, 0, -1.5, 0]},
    ]
    still_height = 607

    # --- numbers -------------------------------------------------------------------------------

    @property
    def weights(self) -> dict[str, list[float]]:
        """Weight of one token of each answer, by the name of the average."""
        return {name: rows[:, 0].tolist() for name, rows in self._gradients().items()}

    @property
    def sums(self) -> dict[str, list[float]]:
        """Sum of the weights of each answer's tokens, by the name of the average."""
        return {name: rows.sum(1).tolist() for name, rows in self._gradients().items()}

    @property
    def numbers(self) -> dict[str, Any]:
        short, long = self._ends()
        alike = self._gradients(advantages=[1.0] * 4)
        whole = token_weights("mean_per_token", self.lengths, self.advantages, l_max=self.l_max)
        return {
            "weights": self.weights,
            "sums": self.sums,
            # sums of the per-token average as they should be, whatever the micro-batches
            "whole_step": whole.sum(1).tolist(),
            # at equal advantage, one token of the shortest answer against one of the longest
            "ratios": {n: float(rows[short, 0] / rows[long, 0]) for n, rows in alike.items()},
        }

    def _gradients(self, advantages: list[float] | None = None) -> dict[str, Tensor]:
        advantages = self.advantages if advantages is None else advantages
        split = {"micro_batches": HALVES, "own_counts": self.divide == "own"} if self.split else {}
        return {
            name: token_weights(name, self.lengths, advantages, l_max=self.l_max, **split)
            for name in AVERAGES
        }

    def _ends(self) -> tuple[int, int]:
        """The first of the shortest answers and the last of the longest."""
        backwards = self.lengths[::-1]
        return self.lengths.index(min(backwards)), 3 - backwards.index(max(backwards))

    # --- words ---------------------------------------------------------------------------------

    @property
    def sentence(self) -> str:
        if not any(self.advantages):
            return (
                "All advantages are 0, so every weight is 0: "
                "whatever the average, these four answers teach nothing."
            )
        if self.split and self.divide == "own":
            first, second = sum(self.lengths[:2]), sum(self.lengths[2:])
            if first != second:
                return _trap(first, second)
            split = f"Both micro-batches hold {first} tokens, so their own counts do no harm here. "
        elif self.split:
            split = (
                f"The split changes nothing: both micro-batches divide by the counts of the "
                f"whole step, {sum(self.lengths)} tokens and 4 answers. "
            )
        else:
            split = ""
        return split + self._comparison() + ("" if self.split else self._law())

    def _comparison(self) -> str:
        short, long = self._ends()
        fewest, most = self.lengths[short], self.lengths[long]
        if fewest == most:
            scale = self.l_max / fewest
            fixed_length = (
                "all three averages agree"
                if scale == 1
                else f"fixed length is {_times(scale)} × smaller throughout, only a constant"
            )
            return (
                f"All four answers have {_tokens(most)}, so within each average every token "
                f"weighs the same at equal advantage and no length is favoured; {fixed_length}."
            )
        ratios = self.numbers["ratios"]
        return (
            f"At equal advantage one token of {NAMES[short]} ({_tokens(fewest)}) weighs "
            f"{_times(ratios['mean_per_sequence'])} × one token of {NAMES[long]} "
            f"({_tokens(most)}) per sequence, but {_times(ratios['mean_per_token'])} × per token "
            "and at fixed length."
        )

    def _law(self) -> str:
        """The sign law, on the longest answer that has an advantage at all."""
        short, _ = self._ends()
        fewest = self.lengths[short]
        _, i = max((n, i) for i, n in enumerate(self.lengths) if self.advantages[i] != 0)
        if self.lengths[i] == fewest:
            return ""
        tail = self._against(short, i)
        longer = f" {NAMES[i]} is longer than {NAMES[short]} and"
        if self.advantages[i] > 0:
            return (
                f"{longer} right: per-sequence averaging spreads its credit thin, so among right "
                f"answers it favours short ones.{tail}"
            )
        return (
            f"{longer} wrong: per-sequence averaging spreads its penalty thin, so among wrong "
            f"answers it favours long ones.{tail}"
        )

    def _against(self, short: int, i: int) -> str:
        """How hard a token of the shortest answer is pushed beside one of answer i."""
        weights = self.weights["mean_per_sequence"]
        if weights[short] == 0:
            return ""
        also = " too" if weights[short] * weights[i] > 0 else ""
        words, way = ("right", "up") if weights[short] > 0 else ("wrong", "down")
        other = "" if also else f" {'up' if way == 'down' else 'down'}"
        return (
            f" {NAMES[short]} is {words}{also}: each of its tokens is pushed {way} "
            f"{_times(abs(weights[short] / weights[i]))} × as hard as one of {NAMES[i]}{other}."
        )

    @property
    def note(self) -> str:
        code = f"Whole step: tokens={sum(self.lengths)} in mean_per_token. "
        return (code if self.split else "") + (
            "Numbers: 1000 × the weight of a token, the factor on its ∇log π. One colour scale "
            "for all. “Right” means an advantage above 0. The four answers are one prompt's "
            "group; the papers define their averages over such a group. GRPO: Shao et al. 2024, "
            "eq. 3. DAPO: Yu et al. 2025, eq. 12. Dr. GRPO: Liu et al. 2025, section 3.2."
        )

    @property
    def off(self) -> set[str]:
        return set() if self.split else {"divide"}

    # --- still picture -------------------------------------------------------------------------

    def draw_still(self, still: Still) -> None:
        axis = still.axes(0, 0, PICTURE_WIDTH, HEIGHT)
        axis.set(xlim=(0, PICTURE_WIDTH), ylim=(HEIGHT, 0))
        axis.axis("off")
        numbers = self.numbers
        look = {"fontsize": 9.5, "color": SOFT, "va": "center"}
        axis.text(LEFT - 10, 13, "one token", ha="right", **look)
        axis.text(LEFT, 13, "the answer's tokens", **look)
        axis.text(ZERO, 13, "their sum", ha="center", **look)
        for g, (name, title) in enumerate(zip(AVERAGES, self._titles(), strict=True)):
            top = TOP + g * GROUP
            words = axis.text(0, top + 10, title[0], va="center", **BOLD)
            axis.annotate(
                title[1], (1, 0), xycoords=words, xytext=(7, 0), textcoords="offset pixels",
                fontsize=10, color=INK, va="bottom",
            )  # fmt: skip
            self._draw_group(axis, top + TITLE, numbers, name)
        for value in MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(0, self.l_max):
            if value <= self.l_max:
                axis.text(self._x(value), BOTTOM + 13, fixed(value, 0), ha="center", **look)
        axis.text((LEFT + RIGHT) / 2, BOTTOM + 30, "tokens", ha="center", **look)
        axis.text(LEFT - 10, BOTTOM + 13, "× 1000", ha="right", **look)
        axis.text(ZERO, BOTTOM + 13, "× 1000", ha="center", **look)
        if self._trapped():
            axis.plot([ZERO - 44, ZERO - 44], [BOTTOM + 22, BOTTOM + 38], color=INK, linewidth=2)
            axis.text(ZERO - 36, BOTTOM + 30, "whole step", **look)

    def _x(self, tokens: float) -> float:
        return LEFT + (RIGHT - LEFT) * tokens / self.l_max

    def _trapped(self) -> bool:
        first, second = sum(self.lengths[:2]), sum(self.lengths[2:])
        return self.split and self.divide == "own" and first != second

    def _titles(self) -> list[tuple[str, str]]:
        first, second = sum(self.lengths[:2]), sum(self.lengths[2:])
        tokens = (
            f"÷ (2 × {first}) or (2 × {second})"
            if self._trapped()
            else f"÷ {first + second} tokens"
        )
        return [
            ("per sequence (GRPO)", "÷ (4 × own length)"),
            ("per token (DAPO)", tokens),
            ("fixed length (Dr. GRPO)", f"÷ (4 × {self.l_max})"),
        ]

    def _draw_group(self, axis: Axes, top: float, numbers: dict, name: str) -> None:
        weights, sums = numbers["weights"], numbers["sums"]
        largest, longest = (
            max(abs(x) for row in rows.values() for x in row) or 1.0 for rows in (weights, sums)
        )
        longest = max(longest, *(abs(x) for x in numbers["whole_step"]))
        end = top + 3 * ROW + BAR
        for value in MaxNLocator(4, steps=[1, 2, 5, 10]).tick_values(0, self.l_max):
            if value <= self.l_max:
                x = self._x(value)
                axis.plot([x, x], [top - 3, end + 3], color=GRID, linewidth=0.8, zorder=0)
        axis.plot([ZERO, ZERO], [top - 3, end + 3], color=LINE, linewidth=1, zorder=4)
        if name == "mean_fixed_length":
            look = {"color": INK, "linewidth": 1.4, "linestyle": (0, (4, 2.7))}
            axis.plot([RIGHT, RIGHT], [top - 5, end + 5], **look)
            look = {"ha": "right", "va": "center", "fontsize": 10, "color": INK}
            axis.text(RIGHT, top - 14, rf"$L_{{\mathrm{{max}}}}$ = {self.l_max}", **look)
        number = {"ha": "right", "va": "center", "fontsize": 10, "color": INK}
        for i, (length, weight, total) in enumerate(
            zip(self.lengths, weights[name], sums[name], strict=True)
        ):
            y = top + i * ROW
            middle = y + BAR / 2
            edge = POSITIVE if weight > 0 else NEGATIVE if weight < 0 else LINE
            fill, ink = signed_color(weight, largest)
            axis.text(10, middle, NAMES[i], va="center", **BOLD)
            axis.text(LEFT - 10, middle, signed(1000 * weight), **number)
            look = {"facecolor": fill, "edgecolor": edge, "linewidth": 1, "zorder": 2}
            axis.add_patch(Rectangle((LEFT, y), self._x(length) - LEFT, BAR, **look))
            marks = [self._x(t) for t in range(1, length)]
            if self._x(1) - LEFT >= 4:
                axis.vlines(marks, y, y + BAR, color=ink, alpha=0.28, linewidth=0.7, zorder=3)
            width = HALF * total / longest
            axis.add_patch(Rectangle((ZERO, y), width, BAR, facecolor=edge, linewidth=0, zorder=2))
            at, side = (ZERO - 6, "right") if total >= 0 else (ZERO + 6, "left")
            axis.text(at, middle, signed(1000 * total), **(number | {"ha": side}))
            if name == "mean_per_token" and self._trapped():
                x = ZERO + HALF * numbers["whole_step"][i] / longest
                axis.plot([x, x], [y - 2.5, y + BAR + 2.5], color=INK, linewidth=2, zorder=5)
        if self.split:
            for half in (0, 2):
                ends = [top + half * ROW - 1, top + (half + 1) * ROW + BAR + 1]
                axis.plot([5, 1, 1, 5], [ends[0], *ends, ends[1]], color=SOFT, linewidth=1.2)


# the picture, as in length_bias.js: screen pixels
TOP, TITLE, ROW, BAR, GAP = 24, 25, 33, 24, 16
GROUP = TITLE + 4 * ROW + GAP
BOTTOM = TOP + 3 * GROUP - GAP
HEIGHT = BOTTOM + 42
LEFT, HALF = 84, 72  # of the token bars; half of the sums' width
ZERO = PICTURE_WIDTH - HALF - 6
RIGHT = ZERO - HALF - 22


def signed(value: float) -> str:
    """One decimal, with its sign unless that rounds to 0; the same size for x and −x."""
    size = fixed(abs(value), 1)
    return size if size == "0.0" else f"{'+' if value > 0 else '−'}{size}"


def _times(ratio: float) -> str:
    return fixed(ratio, 2 if ratio < 1.95 else 1)


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _trap(first: int, second: int) -> str:
    """What goes wrong when the micro-batches divide by their own, unequal, numbers of tokens."""
    whole = first + second
    heavy, light = ("A or B", "C or D") if first < second else ("C or D", "A or B")
    return (
        f"Each micro-batch divides by its own tokens, {first} and {second}: per token, A and B "
        f"weigh {fixed(whole / (2 * first), 2)} × and C and D {fixed(whole / (2 * second), 2)} × "
        f"what they should, so at equal advantage one token of {heavy} weighs "
        f"{_times(max(first, second) / min(first, second))} × one of {light}. Dividing by the "
        f"{whole} tokens of the whole step repairs it; the other two averages do not change, "
        "because both micro-batches hold two answers."
    )
