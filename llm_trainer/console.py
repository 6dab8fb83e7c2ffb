"""What a run shows while it goes on: a block of numbers and samples, on whatever is there.

A terminal and a notebook redraw it in place; a pipe or a file gets lines that stay.
"""

import html
import itertools
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from llm_trainer.log import METRICS

# ------------------------------------------------------------------ samples to look at

PROMPTS_SHOWN = 3


@dataclass(frozen=True)
class Sample:
    """One response to look at."""

    prompt: str
    response: str
    reward: float
    place: str  # in its group: "best of 8", "worst of 8", "all 8 equal"; "" without a group


def pick_samples(
    prompts: Sequence[str], responses: Sequence[str], rewards: Sequence[Sequence[float]]
) -> list[Sample]:
    """Best and worst response to each of the step's first prompts; one where all earned the same.

    responses : (prompts · group), neighbours share a prompt      rewards : (prompts, group)
    """
    samples = []
    for i, (prompt, earned) in enumerate(zip(prompts[:PROMPTS_SHOWN], rewards, strict=False)):
        group = len(earned)
        best, worst = max(earned), min(earned)
        places = {f"best of {group}": best, f"worst of {group}": worst}
        if best == worst:
            places = {f"all {group} equal" if group > 1 else "": best}
        for place, reward in places.items():
            response = responses[i * group + list(earned).index(reward)]
            samples.append(Sample(prompt, response, reward, place))
    return samples


# ------------------------------------------------------------------ the console

SHOWN = [metric for metric in METRICS if metric.row]
FORMS = {metric.name: metric.form for metric in METRICS}
BRIEF = {  # one line a step, where lines stay
    "reward/mean": "reward",
    "reward/exact": "exact",
    "groups/contrast": "contrast",
    "entropy": "entropy",
    "length/mean": "length",
    "grad_norm": "gradient",
}
LABEL = 11  # cells of the first column
PAGE = 100  # cells of a line where nobody knows the width
REDRAW = 0.1  # seconds between two drawings in place
DIM, PLAIN, ERASE_LINE, ERASE_BELOW = "\x1b[2m", "\x1b[0m", "\x1b[K", "\x1b[J"


class Console:
    """A block redrawn in place on a terminal and in a notebook.

    Elsewhere (a pipe, a file) a line now and then, and the block at every evaluation.
    """

    def __init__(
        self,
        title: str,
        steps: int,
        history: Sequence[dict[str, Any]] = (),
        *,
        quiet: bool,
        out: TextIO | None = None,
    ):
        self.title, self.steps = title, steps
        self.first = history[-1]["step"] if history else 0
        self.evaluations = [line for line in history if "eval/exact" in line]
        self.notebook = _notebook() if out is None else None
        self.out = out or sys.stdout  # None where the standard output was closed
        self.quiet = quiet or self.out is None
        self.live = not self.quiet and self.out.isatty() and os.environ.get("TERM") != "dumb"
        self.started = time.monotonic()
        self.drawn, self.size, self.last = 0, None, 0.0  # lines of the block, terminal, when

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.quiet:
            self._print(text + "\n")
            self.drawn = 0

    def step(self, metrics: dict[str, Any], samples: Sequence[Sample] = ()) -> None:
        """Show one step: progress, rewards, what the update did, samples."""
        step, evaluated = metrics["step"], "eval/exact" in metrics
        if evaluated:
            self.evaluations.append(metrics)
        if self.quiet:
            return
        soon = time.monotonic() - self.last < REDRAW and not evaluated
        if self.notebook or self.live:
            if soon and step < self.steps:
                return
            self.last = time.monotonic()
            self._draw_page(metrics, samples) if self.notebook else self._redraw(metrics, samples)
        elif evaluated:
            self._print("\n".join(self.lines(metrics, samples)) + "\n")
        elif step % max(1, self.steps // 40) == 0:
            shown = [f"step {step}/{self.steps}", *_numbers(metrics, BRIEF), self._left(step)]
            self._print("   ".join(shown) + "\n")

    def lines(
        self, metrics: dict[str, Any], samples: Sequence[Sample], width: int = PAGE
    ) -> list[str]:
        """The block, no line wider than `width` cells."""
        lines = _flow(self._progress(metrics), width, indent=0)
        for label, row in itertools.groupby(SHOWN, key=lambda metric: metric.row):
            lines += _labelled(label, _numbers(metrics, {m.name: m.label for m in row}), width)
        exact = [f"{line['eval/exact']:.1%} at {line['step']}" for line in self.evaluations]
        shown = exact[:1] + exact[1:][-3:]  # where it came from, and where it is going
        lines += _labelled("held-out", [f"exact {shown[0]}", *shown[1:]] if shown else [], width)
        table = [_sample(sample, width - LABEL) for sample in samples]
        return lines + _labelled("samples", table, width, apart=True)

    def _progress(self, metrics: dict[str, Any]) -> list[str]:
        step = metrics["step"]
        filled = round(16 * step / max(1, self.steps))
        bar = "━" * filled + "─" * (16 - filled) if self._can("━─") else f"{'#' * filled:.<16}"
        return [self.title, f"step {step}/{self.steps}", bar, self._left(step)]

    def _left(self, step: int) -> str:
        """Steps per second and the time left; both count evaluations and checkpoints in."""
        done, elapsed = step - self.first, time.monotonic() - self.started
        if not done or not elapsed:
            return "starting"
        rate = done / elapsed
        speed = f"{rate:.1f} steps/s" if rate >= 0.2 else f"{1 / rate:.0f} s/step"
        rest = f"{_clock((self.steps - step) / rate)} left"
        return f"{speed}   " + (rest if step < self.steps else f"{_clock(elapsed)} in all")

    def _redraw(self, metrics: dict[str, Any], samples: Sequence[Sample]) -> None:
        """Over the block of the step before, in one write: nothing is blank in between.

        After a change of the terminal's size nobody knows where that block is: a new one starts.
        """
        size = shutil.get_terminal_size()
        back = f"\x1b[{self.drawn}F" if self.drawn and size == self.size else ""
        lines = self.lines(metrics, samples, max(20, size.columns - 1))[: max(1, size.lines - 1)]
        look = [line if "NO_COLOR" in os.environ else _dim_label(line) for line in lines]
        self._print(back + "".join(f"{line}{ERASE_LINE}\n" for line in look) + ERASE_BELOW)
        self.drawn, self.size = len(lines), size

    def _draw_page(self, metrics: dict[str, Any], samples: Sequence[Sample]) -> None:
        """Into the notebook's output area, which shows the last block and keeps it."""
        text = "\n".join(self.lines(metrics, samples))
        page = f'<pre style="white-space: pre-wrap; margin: 0">{html.escape(text)}</pre>'
        show = self.notebook.update if self.drawn else self.notebook.display
        show({"text/plain": text, "text/html": page}, raw=True)
        self.drawn = 1

    def _can(self, text: str) -> bool:
        try:
            text.encode(getattr(self.out, "encoding", None) or "utf-8")
        except UnicodeEncodeError:
            return False
        return True

    def _print(self, text: str) -> None:
        """What the output cannot spell is shown as ?; an output that is gone stops no run."""
        encoding = getattr(self.out, "encoding", None) or "utf-8"
        try:
            self.out.write(text.encode(encoding, "replace").decode(encoding))
            self.out.flush()
        except OSError:
            self.quiet = True


def _notebook() -> Any | None:
    """A handle of an output that can be updated, if this runs in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if not hasattr(shell, "kernel"):
        return None
    from IPython.display import DisplayHandle

    return DisplayHandle()


def _numbers(metrics: dict[str, Any], labels: dict[str, str]) -> list[str]:
    """Label and value of those that were measured."""
    return [f"{label} {metrics[n]:{FORMS[n]}}" for n, label in labels.items() if n in metrics]


def _labelled(label: str, items: list[str], width: int, *, apart: bool = False) -> list[str]:
    """Items behind a label, as many to a line as fit (`apart`: one each); [] without items."""
    if not items:
        return []
    rows = [[item] for item in items] if apart else [items]
    lines = [line for row in rows for line in _flow(row, width, indent=LABEL)]
    return [label + lines[0][len(label) :], *lines[1:]]


def _flow(items: list[str], width: int, *, indent: int) -> list[str]:
    """Join items with blanks, a new line before one that would not fit; a wider one is cut."""
    lines = [""]
    for item in items:
        joined = f"{lines[-1]}   {item}" if lines[-1] else item
        if lines[-1] and _cells(joined) > width - indent:
            lines.append(item)
        else:
            lines[-1] = joined
    return [" " * indent + _fit(line, width - indent) for line in lines]


def _sample(sample: Sample, width: int) -> str:
    """reward, place in the group, prompt → response."""
    place = f"{sample.place:<11}" if width >= 60 else f"{sample.place.partition(' ')[0]:<5}"
    head = f"{sample.reward:5.2f}  {place}  "
    prompt = _fit(_visible(sample.prompt), max(8, (width - len(head)) // 3))
    response = _fit(_visible(sample.response), max(8, width - len(head) - _cells(prompt) - 3))
    return f"{head}{prompt} → {response}"


def _visible(text: str) -> str:
    """Line ends, escapes and other invisible characters spelled out; they could move the cursor."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _cells(text: str) -> int:
    """Columns of a terminal that the text takes: letters of East Asia two, combining marks none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.combining(c) > 0 for c in text)


def _fit(text: str, width: int) -> str:
    """At most `width` cells; a longer text loses its middle, because answers stand at the end."""
    if _cells(text) <= width:
        return text
    half = (width - 1) // 2
    return _start(text, width - 1 - half) + "…" + _start(text[::-1], half)[::-1]


def _start(text: str, width: int) -> str:
    """The longest beginning that takes at most `width` cells."""
    end = 0
    while end < len(text) and _cells(text[: end + 1]) <= width:
        end += 1
    return text[:end]


def _dim_label(line: str) -> str:
    label = line[:LABEL]
    known = label.strip() in {*(metric.row for metric in SHOWN), "held-out", "samples"}
    return f"{DIM}{label}{PLAIN}{line[LABEL:]}" if known else line


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
