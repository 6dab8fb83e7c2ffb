"""The numbers of a run: their names, `metrics.jsonl`, and other places that keep them too.

One JSON object a line. Line n is `step: n`, every other value a finite number. README.md explains
each name, `console.py` shows them while the run goes on, `report.py` draws them.
"""

import importlib.util
import json
import os
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError

from llm_trainer.config import Config, ConfigError, RunError, first_line, require

LOG = "metrics.jsonl"


@dataclass(frozen=True)
class Metric:
    """How one of the numbers is shown: in a row of the console, in a titled panel of a report."""

    name: str
    row: str  # of the console; "" if it is not in the block
    label: str
    form: str  # ending with %: a share
    title: str = ""  # of its panel; "" if it has none
    unit: str = ""
    limits: tuple[float | None, float | None] = (None, None)  # of its axis; None: by the data
    raw: bool = False  # drawn as logged: an evaluation, or no sample's number


# In reading order. A number that was not measured (a skipped step, no critic) is not shown.
SHARE, FROM_0 = (0, 1.02), (0, None)
METRICS = [
    Metric("eval/exact", "", "", ".1%", "Held-out exact", "of words, greedy", SHARE, raw=True),
    Metric("reward/mean", "reward", "mean", ".3f", "Reward", "weighted sum"),
    Metric("reward/correctness", "reward", "correctness", ".3f", "Correctness", "partial credit"),
    Metric("reward/format", "reward", "format", ".0%", "Format", "of samples", SHARE),
    Metric("reward/exact", "reward", "exact", ".1%", "Exact, sampled", "of samples", SHARE),
    Metric("reward/length", "reward", "brevity", ".2f", "Brevity", "1 − tokens/limit"),
    Metric("reward/overlong", "reward", "overlong", ".3f", "Overlong penalty", "reward"),
    Metric("groups/contrast", "groups", "with contrast", ".0%",
           "Groups with contrast", "of groups drawn", SHARE),
    Metric("groups/sampled", "groups", "drawn", ".0f"),
    Metric("groups/trained", "groups", "trained", ".0f",
           "Groups trained", "groups per step", FROM_0),
    Metric("grad_norm", "update", "gradient", ".2f",
           "Gradient norm before clipping", "norm", FROM_0),
    Metric("clip/high", "update", "clip high", ".1%",
           "Clipped, advantage above 0", "of tokens", FROM_0),
    Metric("clip/low", "update", "clip low", ".1%",
           "Clipped, advantage below 0", "of tokens", FROM_0),
    Metric("lr", "", "", ".2g", "Learning rate", "per update", FROM_0, raw=True),
    Metric("importance/mean", "update", "sampler weight", ".3f",
           "Weight of the sampler's tokens", "π learner / π sampler"),
    Metric("importance/capped", "update", "capped", ".1%",
           "Such weights at their cap", "of weights", FROM_0),
    Metric("critic/loss", "critic", "loss", ".4f", "Critic loss", "reward²", FROM_0),
    Metric("critic/explained_variance", "critic", "explained variance", ".2f",
           "Critic: explained variance", "of the returns"),
    Metric("value/mean", "critic", "value", ".3f", "Critic: mean value", "reward"),
    Metric("entropy", "policy", "entropy", ".3f", "Entropy", "nats per token", FROM_0),
    Metric("entropy/full", "policy", "of all tokens", ".3f",
           "Entropy over all tokens", "nats per token", FROM_0),
    Metric("kl/old", "policy", "KL old", ".4f", "KL to the sampling policy", "nats per token"),
    Metric("kl/ref", "policy", "KL ref", ".4f", "KL to the starting model", "nats per token"),
    Metric("length/mean", "responses", "length", ".1f", "Response length", "tokens"),
    Metric("length/truncated", "responses", "truncated", ".1%",
           "Cut at the token limit", "of responses", FROM_0),
    Metric("time/tokens_per_second", "responses", "tokens/s", ",.0f"),
]  # fmt: skip


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


def read_lines(text: str, path: Path) -> list[dict[str, Any]]:
    """What the lines of a `metrics.jsonl` say. path: named in errors.

    Raises ConfigError: a line is not what `Log.write` writes.
    """
    lines = []
    for step, line in enumerate(text.splitlines()):
        where = f"{path} is damaged in line {step + 1}"
        try:
            found = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{where} ({first_line(error)})") from None
        require(isinstance(found, dict), f"{where} (no object)")
        bad = [name for name, value in found.items() if not is_number(value)]
        require(not bad, f"{where} ({', '.join(bad)}: not a finite number)")
        require(found.get("step") == step, f"{where} (step {found.get('step')}, not {step})")
        lines.append(found)
    return lines


def is_number(value: Any) -> bool:
    """JSON knows no infinity and no NaN."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


class Log:
    """Appends to `metrics.jsonl`; `size` lets a resumed run cut off what came after its state."""

    def __init__(self, folder: Path, *, size: int = 0):
        self.path = folder / LOG
        self.tracker: Tracker | None = None
        with writing(self.path):
            self.file = open(self.path, "a+", encoding="utf-8")  # noqa: SIM115  (see close)
            self.file.truncate(size)
            self.file.seek(0)
        self.history = read_lines(self.file.read(), self.path)

    def write(self, metrics: dict[str, Any]) -> None:
        """One line more. Raises RunError: the disk is full, or a number is not finite."""
        check_finite(metrics)
        with writing(self.path):
            self.file.write(json.dumps(metrics, allow_nan=False) + "\n")
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


def check_finite(metrics: dict[str, Any]) -> None:
    """RunError that names the numbers which are none; they would make the log no JSON."""
    bad = [f"{name} is {value}" for name, value in metrics.items() if not is_number(value)]
    if bad:
        raise RunError(
            f"step {metrics['step']}: {', '.join(bad)}, and {LOG} holds finite numbers only. The "
            "step was not logged; an earlier checkpoint is intact. Lower what can be that large: "
            "the reward's weights, kl_coef, entropy_coef"
        )


class Silent(Log):
    """Remembers what another process writes down."""

    def __init__(self, folder: Path, *, size: int = 0):
        self.path = folder / LOG
        text = self.path.read_bytes()[:size].decode() if size else ""
        self.history = read_lines(text, self.path)

    def write(self, metrics: dict[str, Any]) -> None:
        check_finite(metrics)
        self.history.append(metrics)

    def sync(self) -> int:
        return 0

    def close(self) -> None:
        pass
