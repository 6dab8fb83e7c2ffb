"""Does every row of the table learn? The tiny Qwen, 5 seeds each, and what it costs.

    python -m benchmarks.learning_curves --jobs 2            (trains what has no log yet)
    python -m benchmarks.learning_curves --table             (only prints the table of the logs)
    python -m benchmarks.learning_curves --rows grpo --seeds 0 --set lr=1e-3 --out runs/lr_1e-3

A row's run is the shipped configuration with `algorithm` and `seed` set: `configs/ROW_tiny.yaml`
where there is one, else `configs/grpo_tiny.yaml`. One row is added for the comparison,
`no_baseline`: REINFORCE whose advantage is the reward itself. Seed 0 of every row comes first, so
a benchmark that is stopped has fewer seeds, not fewer rows; started again, it goes on.

A log, `logs/learning/ROW_seedS.jsonl`, has the run's settings in its first line and then a line
per evaluation, under the names of `metrics.jsonl` and rounded; `responses` counts all responses
sampled so far. `warmstart_seedS.jsonl` is a warm start from scratch: its seconds, and where it
ends. Runs start from the shipped one (seed 0). `about.json` names versions and machine.

Left out: a search for each row's best settings. All share one learning rate.
"""

import argparse
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lectures.experiments import changed, commit, in_parallel, same_place, write
from llm_trainer import tiny
from llm_trainer.config import CONFIGS, Config, RunError, first_line, load, with_values
from llm_trainer.evaluate import evaluate
from llm_trainer.log import LOG
from llm_trainer.models import load_policy
from llm_trainer.task import load_task
from llm_trainer.train import starting_model, train
from policy_gradients.algorithms import ALGORITHMS

LOGS = Path(__file__).parent / "logs" / "learning"
SCRIPT = "benchmarks/learning_curves.py"
EXTRA, WARMSTART = "no_baseline", "warmstart"
ROWS = [*ALGORITHMS, EXTRA]
SEEDS = range(5)
LEVELS = (0.85, 0.95)  # of held-out exact
BAR_MEDIAN, BAR_WORST = 0.85, 0.80  # what the rows of the table must reach within their budget
KEPT = {  # of a line of metrics.jsonl, with the digits that stay
    "step": 0,
    "eval/exact": 4,
    "time/cpu_seconds": 1,
    "reward/exact": 4,
    "reward/format": 4,
    "length/truncated": 4,
    "entropy": 4,
    "groups/contrast": 4,
    "grad_norm": 3,
    "critic/explained_variance": 3,
}


# ------------------------------------------------------------------ one run


def no_baseline(rewards: Tensor) -> Tensor:
    """(prompts, group) → the same: the reward is the weight."""
    return rewards


@contextmanager
def extra_row() -> Iterator[None]:
    """The table with REINFORCE without a baseline in it: a new algorithm is a new row."""
    ALGORITHMS[EXTRA] = replace(
        ALGORITHMS["reinforce"],
        name=EXTRA,
        title="REINFORCE without a baseline",
        advantage=no_baseline,
    )
    try:
        yield
    finally:
        del ALGORITHMS[EXTRA]


def settings(row: str, seed: int, changes: list[str]) -> Config:
    """The configuration of one run; inside `extra_row`."""
    own = CONFIGS / f"{row}_tiny.yaml"
    path = own if own.is_file() else CONFIGS / "grpo_tiny.yaml"
    return load(path, [f"algorithm={row}", f"seed={seed}", "device=cpu", *changes])


def begin(row: str, seed: int) -> dict[str, Any]:
    """What a log's first line says before the run."""
    load_average = round(os.getloadavg()[0], 1)
    return {"row": row, "seed": seed, "commit": commit(SCRIPT), "load": load_average}


def learn(row: str, seed: int, changes: list[str], path: Path) -> str:
    """Train once, keep the log at `path`; what happened, in one line."""
    with extra_row(), tempfile.TemporaryDirectory() as place:
        config = with_values(settings(row, seed, changes), output_dir=f"{place}/run")
        head = begin(row, seed)
        try:
            train(config, quiet=True)
        except RunError as error:
            head["stopped"] = first_line(error)
        history = [json.loads(text) for text in (Path(place) / "run" / LOG).open()]
    lines, responses = [], 0
    for line in history:
        responses += line.get("groups/sampled", 0) * config.group
        if "eval/exact" in line:
            kept = {k: round(line[k], n) for k, n in KEPT.items() if k in line}
            lines.append({**kept, "responses": responses})
    write(path, [{**head, "config": changed(config)}, *lines])
    return f"{row}, seed {seed}: {lines[-1]['eval/exact']:.1%} held-out exact" + (
        f"; stopped: {head['stopped']}" if "stopped" in head else ""
    )


def warm(row: str, seed: int, changes: list[str], path: Path) -> str:
    """Build a warm start with this seed of its own, from nothing."""
    config = settings("grpo", 0, [*changes, f"warmstart.seed={seed}"])
    torch.set_num_threads(config.threads)
    with tempfile.TemporaryDirectory() as cache:
        start = time.process_time()
        folder = tiny.warm_start(config.task, config.warmstart, cache=Path(cache), quiet=True)
        seconds = time.process_time() - start
        report = json.loads((folder / "warmstart.json").read_text())
        task, policy = load_task(config.task), load_policy(config, folder)
    words = task.held_out[: config.eval_words]
    exact = evaluate(policy, task, words, max_new_tokens=config.max_new_tokens).exact
    head = begin(row, seed)
    line = {
        "updates": report["updates"],
        "time/cpu_seconds": round(seconds, 1),
        "eval/exact": round(exact, 4),
    }
    write(path, [{**head, "config": changed(config)}, line])
    return f"warm start, seed {seed}: {exact:.1%} held-out exact"


# ------------------------------------------------------------------ all runs


def run_all(rows: list[str], seeds: list[int], changes: list[str], out: Path, jobs: int) -> int:
    """Train what has no log yet; 1 if a run failed for a reason that is no result."""
    same_place(out, "benchmarks.learning_curves")
    starting_model(load(CONFIGS / "grpo_tiny.yaml"))  # once, before they all look for it
    work = []
    for seed in seeds:
        for row in rows:
            path = out / f"{row}_seed{seed}.jsonl"
            if not path.exists():
                train_one = warm if row == WARMSTART else learn
                work.append((row, train_one, (row, seed, changes, path)))
    return in_parallel(work, jobs)


# ------------------------------------------------------------------ the table


def read(out: Path) -> dict[str, list[list[dict[str, Any]]]]:
    """row → its logs by seed, each as a list of lines, the run's settings first."""
    found: dict[str, list] = {}
    for row in [WARMSTART, *ROWS]:
        paths = [out / f"{row}_seed{seed}.jsonl" for seed in SEEDS]
        logs = [[json.loads(text) for text in path.open()] for path in paths if path.exists()]
        if logs:
            found[row] = logs
    return found


def first(log: list[dict[str, Any]], level: float, name: str) -> float:
    """`name` at the first evaluation at or above the level; infinite if there is none."""
    return next((x[name] for x in log[1:] if x["eval/exact"] >= level), math.inf)


def finals(logs: list[list[dict[str, Any]]]) -> list[float]:
    """Held-out exact at the end of each run."""
    return [log[-1]["eval/exact"] for log in logs]


def meets_bars(logs: list[list[dict[str, Any]]]) -> bool:
    exact = finals(logs)
    return statistics.median(exact) >= BAR_MEDIAN and min(exact) >= BAR_WORST


def table(found: dict[str, list[list[dict[str, Any]]]]) -> str:
    """What each row reached and what it cost, as markdown. A run that never gets there counts as
    infinite in a median.
    """
    names = ["row", "seeds"]
    for level in LEVELS:
        names += [f"{what} to {level:.0%}" for what in ("steps", "CPU s", "responses")]
    names += ["end: median", "end: worst", "CPU s in all"]
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for row, logs in found.items():
        if row == WARMSTART:
            continue
        cells = [f"`{row}`", str(len(logs))]
        for level in LEVELS:
            cells += cost(logs, level)
        exact, seconds = finals(logs), [log[-1]["time/cpu_seconds"] for log in logs]
        cells += [f"{statistics.median(exact):.1%}", f"{min(exact):.1%}"]
        lines.append(f"| {' | '.join([*cells, f'{statistics.median(seconds):.0f}'])} |")
    return "\n".join(lines).replace("%", " %")


def cost(logs: list[list[dict[str, Any]]], level: float) -> list[str]:
    """Median steps, CPU seconds and responses to a level; how many got there, if not all."""
    columns = ("step", "time/cpu_seconds", "responses")
    reached = sum(first(log, level, "step") < math.inf for log in logs)
    if reached * 2 <= len(logs):
        return [f"{reached} of {len(logs)} get there" if reached else "never", "–", "–"]
    medians = [statistics.median(first(log, level, name) for log in logs) for name in columns]
    missing = f" ({reached} of {len(logs)})" if reached < len(logs) else ""
    return [f"{medians[0]:.0f}{missing}", f"{medians[1]:.0f}", f"{medians[2]:,.0f}"]


def warm_starts(found: dict[str, list[list[dict[str, Any]]]]) -> str:
    """The warm starts in one sentence."""
    lines = [log[1] for log in found.get(WARMSTART, [])]
    if not lines:
        return "No warm start was measured."
    seconds, exact = ([x[name] for x in lines] for name in ("time/cpu_seconds", "eval/exact"))
    return (
        f"A warm start from nothing takes {statistics.median(seconds):.0f} CPU seconds (median of "
        f"{len(lines)} seeds; {min(seconds):.0f} to {max(seconds):.0f}) and ends at "
        f"{min(exact):.1%} to {max(exact):.1%} held-out exact.".replace("%", " %")
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", choices=[WARMSTART, *ROWS], default=[WARMSTART, *ROWS])
    parser.add_argument("--seeds", nargs="+", type=int, choices=SEEDS, default=list(SEEDS))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--out", type=Path, default=LOGS, help="folder of the logs")
    parser.add_argument("--set", nargs="+", default=[], metavar="FIELD=VALUE", dest="changes")
    parser.add_argument("--table", action="store_true", help="train nothing")
    options = parser.parse_args()
    if options.changes and options.out == LOGS:
        parser.error("--set makes other runs than the table's: give them a folder with --out")
    failed = 0
    if not options.table:
        failed = run_all(options.rows, options.seeds, options.changes, options.out, options.jobs)
    found = read(options.out)
    print(f"\n{table(found)}\n\n{warm_starts(found)}")
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
