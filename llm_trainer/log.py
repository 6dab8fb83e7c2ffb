"""What a run leaves behind and what it shows: `metrics.jsonl`, trackers, and the console.

One JSON object a line, each with `step`. README.md explains every name. `report.py` draws them.
"""

import html
import importlib.util
import json
import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

from safetensors import SafetensorError

from llm_trainer.config import Config, RunError, first_line, require

LOG = "metrics.jsonl"


@contextmanager
def writing(path: Path):
    """Say which file could not be written. torch and safetensors report a full disk their own way.

    Raises RunError.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        raise RunError(
            f"{path} could not be written ({first_line(error)}); is the disk full? Older files, "
            "the last checkpoint among them, are intact: make room and go on with --resume"
        ) from None


# ------------------------------------------------------------------ numbers that stay


class Tracker(Protocol):
    """A second place for the numbers of `metrics.jsonl`."""

    def write(self, metrics: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Scalars as event files in the run's folder: `tensorboard --logdir runs`."""

    def __init__(self, config: Config, run_id: str, next_step: int):
        from torch.utils.tensorboard import SummaryWriter

        self.path = Path(config.output_dir) / "tensorboard"
        with writing(self.path):  # TensorBoard hides what older files there say of later steps
            self.writer = SummaryWriter(self.path, purge_step=next_step)

    def write(self, metrics: dict[str, Any]) -> None:
        with writing(self.path):
            for name, value in metrics.items():
                if name != "step":
                    self.writer.add_scalar(name, value, metrics["step"])

    def close(self) -> None:
        self.writer.close()


class WandB:
    """The same names at Weights & Biases, or in `wandb/` of the run's folder if offline.

    wandb takes each step once: what a resumed run does again, bit by bit the same, it ignores.
    """

    def __init__(self, config: Config, run_id: str, next_step: int):
        import wandb

        try:
            self.run = wandb.init(
                project="llm_trainer",
                name=Path(config.output_dir).name,
                id=run_id,
                resume="allow",
                dir=config.output_dir,
                config=config.model_dump(),
            )
        except Exception as error:  # no account, no network: many kinds, none documented
            raise RunError(
                f"track = 'wandb': it could not start a run ({first_line(error)}); log in, set "
                "WANDB_MODE=offline, or leave track out. Nothing was trained yet"
            ) from None

    def write(self, metrics: dict[str, Any]) -> None:
        self.run.log({k: v for k, v in metrics.items() if k != "step"}, step=metrics["step"])

    def close(self) -> None:
        self.run.finish()


TRACKERS = {"tensorboard": TensorBoard, "wandb": WandB}


def check_tracker(config: Config) -> None:
    """ConfigError if `config.track` names a package that is not installed."""
    require(
        config.track == "none" or importlib.util.find_spec(config.track) is not None,
        f"track = {config.track!r}: it is not installed; pip install {config.track}, or leave "
        f"track out: {LOG} is always written",
    )


def make_tracker(config: Config, run_id: str, next_step: int) -> Tracker | None:
    """The tracker that `config.track` names, ready for the line of `next_step`."""
    kind = TRACKERS.get(config.track)
    return kind(config, run_id, next_step) if kind else None


class Log:
    """Appends to `metrics.jsonl`; `size` lets a resumed run cut off what came after its state."""

    def __init__(self, folder: Path, *, size: int = 0, tracker: Tracker | None = None):
        self.path, self.tracker = folder / LOG, tracker
        with writing(self.path):
            self.file = open(self.path, "a+", encoding="utf-8")  # noqa: SIM115  (see close)
            self.file.truncate(size)
            self.file.seek(0)
        self.history: list[dict[str, Any]] = [json.loads(line) for line in self.file]

    def write(self, metrics: dict[str, Any]) -> None:
        with writing(self.path):
            self.file.write(json.dumps(metrics) + "\n")
            self.file.flush()
        self.history.append(metrics)
        if self.tracker:
            self.tracker.write(metrics)

    def sync(self) -> int:
        """Everything is on disk; returns the size in bytes."""
        with writing(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        with suppress(OSError):  # what could not be written has been reported
            self.file.close()
        if self.tracker:
            self.tracker.close()


class Silent(Log):
    """Remembers what another process writes down."""

    def __init__(self, folder: Path, *, size: int = 0):
        lines = (folder / LOG).read_bytes()[:size] if size else b""
        self.history = [json.loads(line) for line in lines.splitlines()]

    def write(self, metrics: dict[str, Any]) -> None:
        self.history.append(metrics)

    def sync(self) -> int:
        return 0

    def close(self) -> None:
        pass


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

# Row by row: what is shown of a step, its name in metrics.jsonl, its format. What was not measured
# (a skipped step, no critic) is not printed; a row without any number is left out.
ROWS = {
    "reward": [
        ("mean", "reward/mean", ".3f"),
        ("correctness", "reward/correctness", ".3f"),
        ("format", "reward/format", ".2f"),
        ("overlong", "reward/overlong", ".3f"),
        ("exact", "reward/exact", ".1%"),
        ("brevity", "reward/length", ".2f"),
    ],
    "groups": [
        ("with contrast", "groups/contrast", ".0%"),
        ("drawn", "groups/sampled", ".0f"),
        ("trained", "groups/trained", ".0f"),
    ],
    "update": [
        ("gradient", "grad_norm", ".2f"),
        ("clip high", "clip/high", ".1%"),
        ("clip low", "clip/low", ".1%"),
        ("sampler weight", "importance/mean", ".3f"),
        ("capped", "importance/capped", ".1%"),
    ],
    "critic": [
        ("loss", "critic/loss", ".4f"),
        ("explained variance", "critic/explained_variance", ".2f"),
        ("value", "value/mean", ".3f"),
    ],
    "policy": [
        ("entropy", "entropy", ".3f"),
        ("KL old", "kl/old", ".4f"),
        ("KL ref", "kl/ref", ".4f"),
    ],
    "responses": [
        ("length", "length/mean", ".1f"),
        ("truncated", "length/truncated", ".1%"),
        ("tokens/s", "time/tokens_per_second", ",.0f"),
    ],
}
BRIEF = [  # one line a step, where lines stay
    ("reward", "reward/mean", ".3f"),
    ("exact", "reward/exact", ".1%"),
    ("contrast", "groups/contrast", ".0%"),
    ("entropy", "entropy", ".3f"),
    ("length", "length/mean", ".1f"),
    ("gradient", "grad_norm", ".2f"),
]
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
        self.title, self.steps, self.quiet = title, steps, quiet
        self.first = history[-1]["step"] if history else 0
        self.evaluations = [line for line in history if "eval/exact" in line]
        self.notebook = _notebook() if out is None else None
        self.out = out or sys.stdout
        self.live = self.out.isatty() and os.environ.get("TERM") != "dumb"
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
        for label, row in ROWS.items():
            lines += _labelled(label, _numbers(metrics, row), width)
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


def _numbers(metrics: dict[str, Any], row: list[tuple[str, str, str]]) -> list[str]:
    return [f"{name} {metrics[key]:{form}}" for name, key, form in row if key in metrics]


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
    known = label.strip() in {*ROWS, "held-out", "samples"}
    return f"{DIM}{label}{PLAIN}{line[LABEL:]}" if known else line


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
