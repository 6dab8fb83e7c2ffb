"""What a run leaves behind and what it shows: `metrics.jsonl` and the console.

One JSON object a line, each with `step`. README.md explains every name.
"""

import json
import os
import shutil
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from safetensors import SafetensorError

from llm_trainer.config import RunError, first_line

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


class Log:
    """Appends to `metrics.jsonl`; `size` lets a resumed run cut off what came after its state."""

    def __init__(self, folder: Path, *, size: int = 0):
        self.path = folder / LOG
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

    def sync(self) -> int:
        """Everything is on disk; returns the size in bytes."""
        with writing(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
        return self.file.tell()

    def close(self) -> None:
        with suppress(OSError):  # what could not be written has been reported
            self.file.close()


class Console:
    """A block redrawn in place on a terminal; elsewhere a line now and then, all at evaluations."""

    def __init__(
        self, title: str, steps: int, first: int, *, quiet: bool, out: TextIO | None = None
    ):
        self.title, self.steps, self.first, self.quiet = title, steps, first, quiet
        self.out = out or sys.stdout
        self.live = self.out.isatty()
        self.started, self.drawn = time.monotonic(), 0
        self.exact: list[str] = []

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.quiet:
            print(text, file=self.out, flush=True)
            self.drawn = 0

    def step(self, metrics: dict[str, Any], sample: str) -> None:
        """Show one step: progress, rewards, what the loss did, one sample."""
        step = metrics["step"]
        if "eval/exact" in metrics:
            self.exact.append(f"{step}: {metrics['eval/exact']:.1%}")
        if self.quiet:
            return
        lines = self._lines(metrics, sample)
        if self.live:
            self.out.write(f"\x1b[{self.drawn}F\x1b[J" if self.drawn else "")
            width = shutil.get_terminal_size().columns - 1  # a wrapped line could not be redrawn
            self.out.write("\n".join(line[:width] for line in lines) + "\n")
            self.out.flush()
            self.drawn = len(lines)
        elif "eval/exact" in metrics:
            print("\n    ".join(lines), file=self.out, flush=True)
        elif step % max(1, self.steps // 40) == 0:
            print(lines[0], file=self.out, flush=True)

    def _lines(self, m: dict[str, Any], sample: str) -> list[str]:
        done = m["step"] - self.first
        elapsed = time.monotonic() - self.started
        left = elapsed / done * (self.steps - m["step"]) if done else 0.0
        bar = "#" * round(20 * m["step"] / max(1, self.steps))
        lines = [
            f"{self.title} step {m['step']}/{self.steps} [{bar:.<20}] "
            f"{done / elapsed if elapsed else 0:.1f} steps/s, "
            f"{m.get('time/tokens_per_second', 0):.0f} tokens/s, {_clock(left)} left"
        ]
        if "reward/mean" in m:
            lines.append(
                f"reward {m['reward/mean']:.3f} (correctness {m['reward/correctness']:.3f}, format "
                f"{m['reward/format']:.2f}, exact {m['reward/exact']:.2f}), contrast in "
                f"{m['groups/contrast']:.0%} of groups, {m['groups/trained']} trained"
            )
            parts = [  # what was not measured (a skipped step, no reference) is not printed
                ("clip high", "clip/high", ".1%"),
                ("clip low", "clip/low", ".1%"),
                ("KL old", "kl/old", ".4f"),
                ("KL ref", "kl/ref", ".4f"),
                ("entropy", "entropy", ".3f"),
                ("length", "length/mean", ".1f"),
                ("truncated", "length/truncated", ".1%"),
                ("gradient", "grad_norm", ".2f"),
            ]
            known = (f"{name} {m[key]:{form}}" for name, key, form in parts if key in m)
            lines.append(", ".join(known))
        if self.exact:
            lines.append("held-out exact at step " + ", ".join(self.exact[-8:]))
        if sample:
            lines.append("sample " + sample)
        return lines


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02d}"
