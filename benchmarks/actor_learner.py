"""Two processes against one: steps per second, utilisation, and what old samples do to learning.

    python -m benchmarks.actor_learner                   (runs what has no log yet)
    python -m benchmarks.actor_learner --table           (only prints the table of the logs)

Every run is `configs/grpo_tiny.yaml` with 60 steps, so 7,680 responses, and is evaluated before
and after. `train` is one process. The others are two, with a bound on the staleness, and one of
three treatments of old samples:

    clip      the actor's log-probs stay below the ratio; GRPO's clip is all that bounds them
    weights   log-probs are computed anew, tokens are weighed by π_learner/π_actor, at most 2
    nothing   log-probs are computed anew, and old samples count as new ones

All kinds take turns, seed by seed, in one process, and each seed begins with another kind: a busy
machine is busy for all. A speed is that of the steps alone: no start, no evaluation.

A log, `logs/actor_learner/KIND_seedS.jsonl`: settings, means over the run and result in its first
line, then a line for every step, under the names of `metrics.jsonl` and rounded.

Left out: machines with more cores than two, and models for which sampling takes longer than
learning.
"""

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from lectures.experiments import changed, commit, read, same_place, write
from llm_trainer.actor_learner import train_in_two_processes
from llm_trainer.config import CONFIGS, Config, load
from llm_trainer.train import Result, train

LOGS = Path(__file__).parent / "logs" / "actor_learner"
STEPS, SEEDS = 60, (0, 1, 2)
WEIGHTS = ["old_logprobs=recompute", "importance=token"]
NOTHING = ["old_logprobs=recompute"]
KINDS: dict[str, tuple[int | None, list[str]]] = {  # name → (max_staleness, fields)
    "train": (None, []),
    "two_0": (0, []),
    "two_1_clip": (1, []),
    "two_4_clip": (4, []),
    "two_16_weights": (16, WEIGHTS),
    "two_16_nothing": (16, NOTHING),
}
KEPT = (
    "step", "eval/exact", "reward/exact", "ratio/min", "ratio/max", "clip/high", "clip/low",
    "importance/mean", "importance/capped", "grad_norm", "entropy", "time/step_seconds",
    "time/cpu_seconds",
)  # fmt: skip


def digits(value: float) -> float:
    """Four of them."""
    return value if isinstance(value, int) else float(f"{value:.4g}")


def settings(kind: str, seed: int, folder: str) -> Config:
    """The configuration of a run, without its bound on the staleness."""
    fixed = [f"steps={STEPS}", f"eval_every={STEPS}", f"save_every={STEPS}", "device=cpu"]
    own = [f"seed={seed}", f"output_dir={folder}"]
    return load(CONFIGS / "grpo_tiny.yaml", [*fixed, *own, *KINDS[kind][1]])


def run(kind: str, seed: int) -> Result:
    """Train once, in a folder that is thrown away."""
    bound = KINDS[kind][0]
    with tempfile.TemporaryDirectory() as place:
        config = settings(kind, seed, f"{place}/run")
        if bound is None:
            result = train(config, quiet=True)
        else:
            result = train_in_two_processes(config, max_staleness=bound)
    if not result.finished:  # Ctrl-C: half a run is no log
        raise KeyboardInterrupt
    return result


def on_two_free_cores(sampling: list[float], learning: list[float], bound: int) -> float:
    """How much sooner two processes would be done than one, by the CPU seconds of every step.

    Computed, not measured: the rule of `llm_trainer/actor_learner.py` with these seconds as the
    time that each batch takes its actor and its learner, and none for what passes between them.
    """
    sampled, learned = [0.0], [0.0]  # when batch k was written, when step k was done
    for k, (writes, learns) in enumerate(zip(sampling, learning, strict=True), 1):
        allowed = learned[max(0, k - 1 - bound)]
        sampled.append(max(sampled[-1], allowed) + writes)
        learned.append(max(sampled[-1], learned[-1]) + learns)
    return (sum(sampling) + sum(learning)) / learned[-1]


def summary(history: list[dict[str, Any]], bound: int | None) -> dict[str, float]:
    """Means over the steps of a run; one process has no numbers of two."""
    steps = history[1:]

    def mean(name: str) -> float:
        return statistics.mean(line[name] for line in steps)

    seconds = mean("time/step_seconds")
    found = {
        "exact_before": history[0]["eval/exact"],
        "exact": history[-1]["eval/exact"],
        "steps_per_second": 1 / seconds,
    }
    if bound is not None:
        each = [[line[f"async/cpu_{who}"] for line in steps] for who in ("actor", "learner")]
        found |= {
            "staleness": mean("async/staleness"),
            "busy_actor": 1 - mean("async/wait_actor") / seconds,
            "busy_learner": 1 - mean("async/wait_learner") / seconds,
            "cpu_actor": mean("async/cpu_actor"),
            "cpu_learner": mean("async/cpu_learner"),
            "two_free_cores": on_two_free_cores(*each, bound),
            "weight_p05": mean("async/weight_p05"),
            "weight_p95": mean("async/weight_p95"),
        }
    return {name: digits(value) for name, value in found.items()}


def keep(kind: str, seed: int, out: Path) -> None:
    """Train once and write the log."""
    load_before = os.getloadavg()[0]
    history = run(kind, seed).history
    head = {
        "kind": kind,
        "seed": seed,
        "command": f"python -m benchmarks.actor_learner --kinds {kind} --seeds {seed}",
        "commit": commit("benchmarks/actor_learner.py"),
        "load": [round(load_before, 1), round(os.getloadavg()[0], 1)],
        "max_staleness": KINDS[kind][0],
        "config": changed(settings(kind, seed, "run")),
        **summary(history, KINDS[kind][0]),
    }
    names = [k for k in KEPT if k != "step"]
    lines = [
        {"step": line["step"]}
        | {k: digits(v) for k, v in line.items() if k in names or k.startswith("async/")}
        for line in history
    ]
    write(out / f"{kind}_seed{seed}.jsonl", [head, *lines])
    print(f"{kind}, seed {seed}: {head['steps_per_second']:.2f} steps/s, {head['exact']:.1%}")


def run_all(kinds: list[str], seeds: list[int], out: Path) -> None:
    """Every kind once a seed, each seed beginning with another kind."""
    same_place(out, "benchmarks.actor_learner")
    for seed in seeds:
        shift = 3 * seed % len(kinds)
        for kind in kinds[shift:] + kinds[:shift]:
            if not (out / f"{kind}_seed{seed}.jsonl").exists():
                keep(kind, seed, out)


# ------------------------------------------------------------------ the table


def heads(out: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """kind → seed → first line of its log."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for kind in KINDS:
        for path in sorted(out.glob(f"{kind}_seed*.jsonl")):
            head = read(path)[0]
            found.setdefault(kind, {})[head["seed"]] = head
    return found


def spread(values: list[float], form: Callable[[float], str]) -> str:
    """Median and, in brackets, the smallest and largest where they differ as written."""
    middle, low, high = (form(pick(values)) for pick in (statistics.median, min, max))
    return middle if low == high else f"{middle} ({low} to {high})"


def table(found: dict[str, dict[int, dict[str, Any]]]) -> str:
    """Markdown. A speed-up compares with `train` of the same seed, its neighbour in time."""
    names = [
        "run", "seeds", "steps/s", "`train` = 1", "on two free cores", "actor busy",
        "learner busy", "mean staleness", "weights, 5 to 95 %", "held-out exact after 60 steps",
    ]  # fmt: skip
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for kind, runs in found.items():
        rows, one = list(runs.values()), found.get("train", {})

        def column(name: str, form: str, rows=rows) -> str:
            if name not in rows[0]:
                return "–"
            return spread([head[name] for head in rows], lambda x: format(x, form))

        ratios = [
            head["steps_per_second"] / one[seed]["steps_per_second"]
            for seed, head in runs.items()
            if seed in one
        ]
        weights = "–"
        if "weight_p05" in rows[0]:
            low, high = (statistics.median(h[f"weight_{p}"] for h in rows) for p in ("p05", "p95"))
            weights = f"{low:.2f} to {high:.2f}"
        cells = [
            f"`{kind}`",
            str(len(rows)),
            column("steps_per_second", ".1f"),
            spread(ratios, lambda x: f"{x:.2f}") if ratios else "–",
            column("two_free_cores", ".2f"),
            column("busy_actor", ".0%"),
            column("busy_learner", ".0%"),
            column("staleness", ".1f"),
            weights,
            column("exact", ".1%"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines).replace("%", " %").replace("  %", " %")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--out", type=Path, default=LOGS, help="folder of the logs")
    parser.add_argument("--table", action="store_true", help="train nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.table:
        run_all(options.kinds, options.seeds, options.out)
    print(f"\n{table(heads(options.out))}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
