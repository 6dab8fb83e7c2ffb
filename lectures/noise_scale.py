"""The gradient noise scale during a run: the logs that lecture 13 reads.

    python -m lectures.noise_scale --seeds 0 1 2        (trains and measures what has no log yet)

    from lectures.noise_scale import load
    for run in load():                                  # by seed
        steps, scale = run.column("b_simple")

Each run is `configs/grpo_tiny.yaml`, untouched: at some steps its policy is measured on `PROMPTS`
training questions of another seed, whose responses are thrown away. A line has `step`, `prompts`,
`group`, `signal` (|∇J|²), `trace` (tr Σ of one prompt's gradient), `b_simple` in prompts,
`responses` (the same, times `group`), their standard errors, `low` to `high`, two standard
errors of 1/b_simple either way, and `eval/exact`. null: not resolved, or without an upper end.
What is estimated, and how, is in `llm_trainer/noise_scale.py`.
"""

import argparse
import math
import tempfile
from pathlib import Path
from typing import Any

from lectures.experiments import LOGS, Run, changed, commit, digits, read, write
from llm_trainer.checkpoint import check_folder, locked
from llm_trainer.config import CONFIGS, Config, with_values
from llm_trainer.config import load as load_config
from llm_trainer.devices import ONE
from llm_trainer.noise_scale import NoiseScale, noise_scale
from llm_trainer.train import Run as Training

STEPS = (0, 20, 60, 120, 240)
PROMPTS = 256
OTHER = 1_000  # added to the seed of a run: its own questions are drawn from the seed
FOLDER = LOGS / "noise_scale"


class Measured(Training):
    """A training run whose policy is measured after some of its steps; the run is unchanged."""

    def __init__(self, config: Config, folder: Path, steps: tuple[int, ...], prompts: int):
        super().__init__(config, None, ONE, folder, quiet=True)
        self.at, self.prompts, self.exact, self.lines = steps, prompts, math.nan, []

    def write(self, metrics: dict[str, Any], samples: Any = ()) -> None:
        super().write(metrics, samples)
        self.exact = metrics.get("eval/exact", self.exact)
        if metrics["step"] in self.at:
            seed, policy = self.config.seed + OTHER, self.learner.policy
            found = noise_scale(policy, self.task, self.config, prompts=self.prompts, seed=seed)
            line = {"step": metrics["step"], **line_of(found), "eval/exact": self.exact}
            self.lines.append(line)
            print(f"step {metrics['step']}: {found}", flush=True)


def line_of(found: NoiseScale) -> dict[str, float | int | None]:
    """One measurement with its derived numbers, to four digits; null for what is not a number."""
    low, high = found.interval
    values = {
        "prompts": found.prompts,
        "group": found.group,
        "signal": found.signal,
        "signal_se": found.signal_se,
        "trace": found.trace,
        "trace_se": found.trace_se,
        "b_simple": found.b_simple,
        "se": found.se,
        "low": low,
        "high": high,
        "responses": found.responses,
    }
    return {name: short(value) if math.isfinite(value) else None for name, value in values.items()}


def short(value: float) -> float | int:
    """As `experiments.digits`, but squared gradients may be as small as they like."""
    return digits(value) if abs(value) >= 1e-6 else float(f"{value:.4g}")


def train_and_measure(
    config: Config, *, steps: tuple[int, ...] = STEPS, prompts: int = PROMPTS
) -> Run:
    """Train in a folder that is thrown away; the log."""
    with tempfile.TemporaryDirectory() as place:
        config = with_values(config, output_dir=f"{place}/run")
        with locked(config):
            folder = check_folder(config, resume=False, overwrite=False)
            training = Measured(config, folder, steps, prompts)
            if not training.go(overwrite=False).finished:
                raise KeyboardInterrupt  # half a run is no log
    head = {
        "experiment": "noise_scale",
        "row": "grpo",
        "seed": config.seed,
        "command": f"python -m lectures.noise_scale --seeds {config.seed}",
        "commit": commit("lectures/noise_scale.py"),
        "config": changed(config),
    }
    return Run(head, training.lines)


def load(*, out: Path = FOLDER) -> list[Run]:
    """The committed logs, by seed; FileNotFoundError if there is none."""
    logs = [read(path) for path in sorted(out.glob("grpo_seed*.jsonl"))]
    if not logs:
        raise FileNotFoundError(f"no log in {out}; python -m lectures.noise_scale makes one")
    return [Run(log[0], log[1:]) for log in logs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the logs")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        path = options.out / f"grpo_seed{seed}.jsonl"
        if not path.exists():
            shipped = [f"seed={seed}", "device=cpu"]
            made = train_and_measure(load_config(CONFIGS / "grpo_tiny.yaml", shipped))
            write(path, [made.head, *made.lines])


if __name__ == "__main__":
    main()
