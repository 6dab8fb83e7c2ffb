"""The experiments behind lecture 13: what was trained, how it is trained again, how it is read.

    python -m lectures.experiments --list                   (the questions, rows and seeds)
    python -m lectures.experiments group --jobs 2           (trains what has no log yet)
    python -m lectures.experiments group --table            (only reads the logs)

    from lectures.experiments import load, run
    runs = load("group")                                    # row → its runs, by seed
    steps, exact = runs["group_2"][0].column("eval/exact")
    again = run("group", "group_2", seed=0)                 # trains it now

A row is `configs/grpo_tiny.yaml` (sums: `grpo_tiny_arithmetic.yaml`) with the changes named here.
Rows of one experiment stop after the same number of *sampled* responses, thrown-away ones included,
and are evaluated, on the same 1,000 words, each time another 1,280 of them were sampled. The same
settings are trained once, in the first experiment that has them, and read by all.

A log, `reference_runs/experiments/NAME/ROW_seedS.jsonl`, has the run's settings in its first line.
Each further line has the names of `metrics.jsonl`, to four digits, for one step (`reference` and
`matched`) or from one evaluation to the next: then what was measured at every step is the mean over
those steps. `responses` counts all that were sampled so far, `eval/exact/5_letters` is
`eval/exact` on the words that long, `samples` are the best and worst response to three prompts of
that step. `about.json` names versions and machine.

Left out: a search for each row's best settings.
"""

import argparse
import json
import math
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from llm_trainer.checkpoint import check_folder, locked
from llm_trainer.config import CONFIGS, Config, RunError, TaskConfig, first_line, with_values
from llm_trainer.config import load as load_config
from llm_trainer.console import Sample
from llm_trainer.devices import ONE
from llm_trainer.evaluate import Evaluation, evaluate
from llm_trainer.task import Spelling, Stream, Task, WordStream
from llm_trainer.train import Run as Training
from llm_trainer.train import starting_model

ROOT = Path(__file__).parents[1]
LOGS = Path(__file__).parent / "reference_runs" / "experiments"
EVALUATED = 1_280  # sampled responses from one evaluation to the next: 10 steps of the shipped file
LONG, SHORT = 30_720, 20_480  # sampled responses of a run: 240 and 160 such steps
COUNTED = ("step", "responses", "time/cpu_seconds")  # counted up, so never averaged
USUAL = (  # what a log keeps beside these
    "eval/exact",
    "eval/correctness",
    "train/exact",
    "reward/mean",
    "reward/correctness",
    "reward/format",
    "reward/exact",
    "groups/contrast",
    "entropy",
    "length/mean",
    "length/truncated",
    "loss",
    "grad_norm",
)
MORE = ("groups/trained", "clip/high", "clip/low", "kl/old", "kl/ref")
BY_LENGTH = tuple(f"eval/exact/{n}_letters" for n in range(3, 8))
CHOSEN = ("letters", "order", "only")  # fields of a row that say which words are drawn


# ------------------------------------------------------------------ what was asked


@dataclass(frozen=True)
class Row:
    """What is changed in the shipped configuration, as for `--set`, and which words are drawn."""

    changes: tuple[str, ...] = ()
    letters: tuple[int, int] | None = None  # only words this long are trained on; None: 3 to 7
    order: str = ""  # easy_first, hard_first: the same words as without, sorted by length
    only: int = 0  # the first so many words again and again, and a look at their accuracy too
    config: str = "grpo_tiny"  # the shipped configuration that is changed


@dataclass(frozen=True)
class Experiment:
    """One question and the rows that answer it."""

    question: str
    rows: dict[str, Row]
    seeds: range = range(3)
    responses: int = SHORT  # sampled in each run
    every_step: bool = False  # a line per step, not per evaluation
    samples: tuple[int, ...] = ()  # steps whose samples are kept, beside the last one's
    columns: tuple[str, ...] = USUAL  # kept in the logs
    shown: tuple[str, ...] = ()  # kept too, and in the table beside what it always shows


def row(*changes: str, **fields: Any) -> Row:
    return Row(changes, **fields)


def sized(prompts: int, group: int, *changes: str) -> Row:
    """So many prompts and responses a step; the warm-up as long in responses as the shipped one."""
    warmup = max(1, round(5 * 128 / (prompts * group)))
    sizes = (f"prompts={prompts}", f"group={group}", f"micro_batch={prompts}")
    return row(*sizes, *(() if warmup == 5 else (f"lr_warmup={warmup}",)), *changes)


SHIPPED = row()
MATCHED = {
    "reinforce": row("algorithm=reinforce"),
    "rloo": row("algorithm=rloo"),
    "grpo": SHIPPED,
    "dr_grpo": row("algorithm=dr_grpo"),
    "dapo": row("algorithm=dapo"),
}
EXPERIMENTS = {
    "reference": Experiment(
        "What does a run look like from its first step to its last?",
        {"grpo": SHIPPED},
        seeds=range(5),
        responses=LONG,
        every_step=True,
        samples=(1, 10, 20, 40, 80, 160),
        columns=(*USUAL, *MORE, *BY_LENGTH),
    ),
    "matched": Experiment(
        "Which algorithm learns most from equally many sampled responses?",
        MATCHED,
        seeds=range(5),
        responses=LONG,
        every_step=True,
        columns=(
            "eval/exact",
            "eval/correctness",
            "reward/mean",
            "reward/exact",
            "groups/contrast",
            "entropy",
            "length/truncated",
            "loss",
            "grad_norm",
        ),
    ),
    "group": Experiment(
        "At 128 responses a step: few prompts with many responses, or many with few?",
        {
            "group_2": sized(64, 2),
            "group_4": sized(32, 4),
            "group_8": SHIPPED,
            "group_16": sized(8, 16),
        },
    ),
    "temperature": Experiment(
        "How much randomness while sampling?",
        {
            "temperature_0.3": row("temperature=0.3"),
            "temperature_0.6": row("temperature=0.6"),
            "temperature_1": SHIPPED,
            "temperature_1.5": row("temperature=1.5"),
        },
    ),
    "curriculum": Experiment(
        "The same words in another order: does it help to begin with the easy ones?",
        {
            "mixed": SHIPPED,
            "easy_first": row(order="easy_first"),
            "hard_first": row(order="hard_first"),
            "hard_only": row(letters=(6, 7)),
        },
        seeds=range(5),
        responses=LONG,
        shown=BY_LENGTH,
    ),
    "letters": Experiment(
        "How hard should the words be? All are judged on the same words of 3 to 7 letters.",
        {
            "letters_3_to_4": row(letters=(3, 4)),
            "letters_5": row(letters=(5, 5)),
            "letters_3_to_7": SHIPPED,
            "letters_6_to_7": row(letters=(6, 7)),
            "letters_8_to_9": row(letters=(8, 9)),
        },
        shown=BY_LENGTH,
    ),
    "format": Experiment(
        "How much should the right format earn, beside 1 for the right letters?",
        {
            "grpo_format_0": row("reward_format=0"),
            "grpo_format_0.1": SHIPPED,
            "grpo_format_1": row("reward_format=1"),
            "rloo_format_0": row("algorithm=rloo", "reward_format=0"),
            "rloo_format_0.1": MATCHED["rloo"],
            "rloo_format_1": row("algorithm=rloo", "reward_format=1"),
        },
        responses=LONG,
    ),
    "batch": Experiment(
        "Many small steps or few large ones, and with which learning rate?",
        {
            "prompts_4": sized(4, 8),
            "prompts_4_lr_scaled": sized(4, 8, "lr=2.5e-4"),
            "prompts_16": SHIPPED,
            "prompts_64": sized(64, 8),
            "prompts_64_lr_scaled": sized(64, 8, "lr=1e-3"),
        },
    ),
    "arithmetic": Experiment(
        "The same code on sums of three numbers: does it learn another task?",
        {"grpo": row(config="grpo_tiny_arithmetic")},
        responses=51_200,
    ),
    "words": Experiment(
        "Is it learned, or learned by heart? `train/exact` is greedy accuracy on the words that "
        "are trained on (up to 1,000 of them).",
        {f"words_{n}": row(only=n) for n in (32, 256, 3840)},
        responses=LONG,
        shown=("train/exact",),
    ),
    "updates": Experiment(
        "What do clip and KL show once a batch is used more than once? A weight of 1e-9 measures "
        "the KL to the starting model and does not pull.",
        {
            "epochs_1": row("kl_coef=1e-9"),
            "epochs_4": row("kl_coef=1e-9", "epochs=4"),
            "epochs_4_kl_0.04": row("kl_coef=0.04", "epochs=4"),
        },
        shown=("kl/ref", "kl/old", "clip/high", "clip/low"),
    ),
    "learning_rate": Experiment(
        "Is the order of the algorithms the same at another learning rate?",
        {
            f"{name}_lr_{lr}": row(*base.changes, *(() if lr == "5e-4" else (f"lr={lr}",)))
            for name, base in MATCHED.items()
            for lr in ("2.5e-4", "5e-4", "1e-3")
        },
        seeds=range(2),
        responses=LONG,
    ),
}


def find(name: str, label: str = "") -> Experiment:
    """The experiment; KeyError in our own words if there is none, or if it has no such row."""
    if name not in EXPERIMENTS:
        raise KeyError(f"no experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    if label and label not in EXPERIMENTS[name].rows:
        raise KeyError(f"{name} has no row {label!r}; it has {', '.join(EXPERIMENTS[name].rows)}")
    return EXPERIMENTS[name]


def home(name: str, label: str) -> tuple[str, str]:
    """(experiment, row) that has the log: the first one with the same settings, and long enough."""
    wanted = find(name, label)
    for first, experiment in EXPERIMENTS.items():
        longer = experiment.responses >= wanted.responses
        known = {*wanted.seeds} <= {*experiment.seeds}
        for other, settings in experiment.rows.items():
            if settings == wanted.rows[label] and longer and known:
                return first, other
    raise AssertionError("an experiment is at least its own home")


# ------------------------------------------------------------------ one run


def settings(name: str, label: str, seed: int) -> Config:
    """The configuration of one run. How often it is evaluated is decided by `Watched`."""
    experiment = find(name, label)
    fixed = [f"seed={seed}", "device=cpu", "eval_every=1"]
    chosen = experiment.rows[label]
    config = load_config(CONFIGS / f"{chosen.config}.yaml", [*fixed, *chosen.changes])
    steps = math.ceil(experiment.responses / (config.prompts * config.group))
    return with_values(config, steps=steps)


class Listed(Stream):
    """Items in a given order, once."""

    def __init__(self, items: list, seed: int):
        super().__init__(seed)
        self.items = items

    def next(self) -> Any:
        self.position += 1
        return self.items[self.position - 1]


def stream_of(row: Row, task: Task, seed: int, prompts: int) -> Stream:
    """The prompts of a run that draws `prompts` of them; held-out words are in no row's."""
    stream = task.stream(seed)
    if row.letters:
        low, high = row.letters
        words = Spelling(TaskConfig(min_letters=low, max_letters=high, held_out=1)).dataset.words
        hidden = {word.lower() for word in task.held_out}
        stream = WordStream([w for w in words if w.lower() not in hidden], seed)
    if row.only:
        stream = WordStream(stream.take(row.only), seed)
    if row.order:
        drawn = stream.take(prompts)
        stream = Listed(sorted(drawn, key=len, reverse=row.order == "hard_first"), seed)
    return stream


class Watched(Training):
    """A training run that ends, and is evaluated, by the number of responses sampled."""

    def __init__(self, config: Config, row: Row, budget: int, folder: Path):
        super().__init__(config, None, ONE, folder, quiet=True)
        self.stream = stream_of(row, self.task, config.seed, config.steps * config.prompts)
        self.seen = self.stream.words if row.only else []
        self.budget, self.evaluations = budget, 0
        self.samples: dict[int, Sequence[Sample]] = {}

    @property
    def responses(self) -> int:
        return self.stream.position * self.config.group

    @property
    def finished(self) -> bool:
        return self.responses >= self.budget

    def evaluate(self) -> dict[str, float]:
        """As the trainer's, by length too; nothing where it is not yet time."""
        if self.responses < self.evaluations * EVALUATED:
            return {}
        self.evaluations = self.responses // EVALUATED + 1
        result = self.judge(self.task.held_out)
        found = {"eval/exact": result.exact, "eval/correctness": result.correctness}
        found |= {f"eval/exact/{n}_letters": share for n, share in result.by_letters.items()}
        return found | ({"train/exact": self.judge(self.seen).exact} if self.seen else {})

    def judge(self, items: list) -> Evaluation:
        """Greedy, on the first `eval_words` of these."""
        return evaluate(
            self.learner.policy,
            self.task,
            items[: self.config.eval_words],
            max_new_tokens=self.config.max_new_tokens,
            room=self.room,
        )

    def write(self, metrics: dict[str, Any], samples: Sequence[Sample] = ()) -> None:
        super().write({**metrics, "responses": self.responses}, samples)
        self.samples[metrics["step"]] = samples


def train_row(name: str, label: str, seed: int) -> "Run":
    """Train one run in a folder that is thrown away; what its log will hold."""
    experiment = find(name, label)
    with tempfile.TemporaryDirectory() as place:
        config = with_values(settings(name, label, seed), output_dir=f"{place}/run")
        head = head_of(name, label, config)
        with locked(config):
            folder = check_folder(config, resume=False, overwrite=False)
            training = Watched(config, experiment.rows[label], experiment.responses, folder)
            try:
                done = training.go(overwrite=False).finished
            except RunError as error:
                head["stopped"], done = first_line(error), True
    if not done:  # Ctrl-C: half a run is no log
        raise KeyboardInterrupt
    kept = {*experiment.samples, training.done.step}
    samples = {step: found for step, found in training.samples.items() if step in kept}
    return Run(head, summed_up(training.log.history, samples, experiment))


def head_of(name: str, label: str, config: Config) -> dict[str, Any]:
    """The first line of a log: what was run, by which code."""
    experiment = find(name, label)
    command = f"python -m lectures.experiments {name} --rows {label} --seeds {config.seed}"
    words = {k: v for k, v in asdict(experiment.rows[label]).items() if v and k in CHOSEN}
    return {
        "experiment": name,
        "row": label,
        "seed": config.seed,
        "command": command,
        "commit": commit("lectures/experiments.py"),
        "responses": experiment.responses,
        "config": changed(config),
        **({"words": words} if words else {}),
    }


def summed_up(
    history: list[dict[str, Any]], samples: dict[int, Sequence[Sample]], experiment: Experiment
) -> list[dict[str, Any]]:
    """metrics.jsonl's lines as a log keeps them: each step, or means from evaluation to evaluation.

    CPU seconds are kept where there is an evaluation, and at the end. A number that some of these
    steps do not have (a skipped update) is averaged over the others.
    """
    lines, waiting = [], []
    for metrics in history:
        waiting.append(metrics)
        judged = "eval/exact" in metrics or metrics is history[-1]
        if not (experiment.every_step or judged):
            continue
        line = {}
        for name in {name: None for measured in waiting for name in measured}:  # in order
            values = [measured[name] for measured in waiting if name in measured]
            if name in COUNTED[:2] or (name in COUNTED and judged):
                line[name] = digits(values[-1])
            elif name in (*experiment.columns, *experiment.shown):
                line[name] = digits(statistics.fmean(values))
        if metrics["step"] in samples and metrics["step"]:
            shown = [asdict(sample) for sample in samples[metrics["step"]]]
            line["samples"] = [{**s, "reward": digits(s["reward"])} for s in shown]
        lines.append(line)
        waiting = []
    return lines


def digits(value: float) -> float | int:
    """Four significant digits; below a millionth it is float32's rounding, and 0."""
    if isinstance(value, int) or abs(value) < 1e-6:
        return int(value)
    short = float(f"{value:.4g}")
    return int(short) if short == int(short) else short


# ------------------------------------------------------------------ shared with the benchmarks


def changed(config: Config) -> dict[str, Any]:
    """The fields that are not at their default, but for where the run is kept."""
    default = Config().model_dump()
    values = config.model_dump(exclude={"output_dir"})
    return {name: value for name, value in values.items() if value != default[name]}


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    """Whole or not at all: a log that is there is a run that is finished."""
    beside = path.with_suffix(".tmp")
    text = [json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in lines]
    beside.write_text("\n".join(text) + "\n", encoding="utf-8")
    os.replace(beside, path)


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of one log, the run's settings first."""
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]


def commit(script: str) -> str:
    """Of the code that runs, `script` included; + if its files differ; unknown without git."""
    git = ["git", "-C", str(ROOT)]
    rooms = ["llm_trainer", "policy_gradients", script]
    try:
        found = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True)
        same = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *rooms]).returncode == 0
    except OSError:
        return "unknown"
    return found.stdout.decode().strip() + "+" * (not same) if found.stdout else "unknown"


def about() -> dict[str, Any]:
    """Versions and machine, which all logs in one folder share."""
    try:
        cpus = Path("/proc/cpuinfo").read_text()
        name = cpus.partition("model name")[2].partition("\n")[0].strip("\t :")
    except OSError:
        name = platform.processor()
    packages = ("torch", "transformers", "reasoning-gym")
    versions = {"python": platform.python_version(), **{p: version(p) for p in packages}}
    return {"versions": versions, "machine": f"{os.cpu_count()} CPUs, {name or platform.machine()}"}


def same_place(out: Path, module: str) -> None:
    """Write about.json, or compare with the one that is there: seconds of two machines do not mix.

    Raises SystemExit.
    """
    now, path = about(), out / "about.json"
    out.mkdir(parents=True, exist_ok=True)
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        different = {k: (before.get(k), v) for k, v in now.items() if before.get(k) != v}
        if different:
            raise SystemExit(f"{out} was made elsewhere: {different}. Choose another --out")
        return
    command = shlex.join(["python", "-m", module, *sys.argv[1:]])
    path.write_text(json.dumps({"command": command, **now}, indent=1) + "\n", encoding="utf-8")


def in_parallel(work: list[tuple[str, Callable, tuple]], jobs: int) -> int:
    """Call each (name, function, arguments) in a process of its own; 1 if any failed.

    A function returns what happened, in one line; that is printed as soon as it is known.
    """
    failed = 0
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        waiting = {pool.submit(function, *given): name for name, function, given in work}
        for number, done in enumerate(as_completed(waiting), 1):
            error = done.exception()
            failed += error is not None
            text = f"{waiting[done]} failed: {error!r}" if error else done.result()
            print(f"[{number}/{len(work)}] {text}", flush=True)
    return int(failed > 0)


# ------------------------------------------------------------------ all runs


def run_all(names: list[str], labels: list[str], seeds: list[int], out: Path, jobs: int) -> int:
    """Train what has no log yet, seed 0 of every row first; 1 if a run failed."""
    same_place(out, "lectures.experiments")
    work = []
    for name in names:
        (out / name).mkdir(exist_ok=True)
        for seed in seeds or find(name).seeds:
            for label in labels or find(name).rows:
                path = out / name / f"{label}_seed{seed}.jsonl"
                if home(name, label) == (name, label) and not path.exists():
                    starting_model(settings(name, label, seed))  # once, before they all look for it
                    work.append((f"{name}/{path.stem}", keep, (name, label, seed, path)))
    return in_parallel(work, jobs)


def keep(name: str, label: str, seed: int, path: Path) -> str:
    """Train once, keep the log at `path`; what happened, in one line."""
    made = train_row(name, label, seed)
    write(path, [made.head, *made.lines])
    exact, seconds = made.column("eval/exact")[1], made.lines[-1]["time/cpu_seconds"]
    said = f"{name}/{path.stem}: {exact[0]:.1%} to {exact[-1]:.1%} in {seconds:.0f} CPU s"
    return said + (f"; stopped: {made.head['stopped']}" if "stopped" in made.head else "")


# ------------------------------------------------------------------ reading them


@dataclass(frozen=True)
class Run:
    """One log."""

    head: dict[str, Any]
    lines: list[dict[str, Any]] = field(repr=False)

    def column(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values) of the lines that have this number; KeyError if none has."""
        found = [(line["step"], line[name]) for line in self.lines if name in line]
        if not found:
            known = ", ".join({key: None for line in self.lines for key in line})
            raise KeyError(f"no line of this run has {name!r}; they have {known}")
        steps, values = zip(*found, strict=True)
        return np.array(steps), np.array(values, dtype=float)

    def within(self, responses: int) -> "Run":
        """The run as if it had stopped at this many sampled responses."""
        number = next(
            (i for i, line in enumerate(self.lines) if line["responses"] >= responses),
            len(self.lines) - 1,
        )
        return Run(self.head, self.lines[: number + 1])

    def mean(self, name: str, first: float, last: float) -> float:
        """Mean over what was sampled from response `first` to `last`, each response alike."""
        total = weight = start = 0
        for line in self.lines:
            size, start = line["responses"] - start, line["responses"]
            if name in line and first < start <= last:
                total, weight = total + size * line[name], weight + size
        return total / weight if weight else math.nan


def load(name: str, *, out: Path = LOGS) -> dict[str, list[Run]]:
    """row → its runs by seed, read from the logs; each ends at the experiment's budget.

    Raises KeyError for an unknown experiment, FileNotFoundError for a row without any log.
    """
    experiment, found = find(name), {}
    for label in experiment.rows:
        folder, row = home(name, label)
        paths = [out / folder / f"{row}_seed{seed}.jsonl" for seed in experiment.seeds]
        logs = [read(path) for path in paths if path.exists()]
        if not logs:
            raise FileNotFoundError(
                f"no log of {name}, {label}, in {out / folder}; "
                f"python -m lectures.experiments {name} trains it"
            )
        found[label] = [Run(log[0], log[1:]).within(experiment.responses) for log in logs]
    return found


def run(name: str, label: str, seed: int = 0) -> Run:
    """Train it again, now: the numbers of its log, on the same machine and versions bit by bit."""
    before = torch.get_num_threads()
    try:
        first, other = home(name, label)
        return train_row(first, other, seed).within(find(name).responses)
    finally:
        torch.set_num_threads(before)


T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t, two-sided, by number of values


def interval(values: Sequence[float]) -> tuple[float, float]:
    """(mean, half width of its 95 % interval): Student's t, for up to 5 seeds; one: no width."""
    if len(values) == 1:
        return values[0], math.inf
    spread = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), T_95[len(values)] * spread


def reach(run: Run, level: float) -> float:
    """Responses sampled until held-out exact is at `level` or above; infinite if it never is."""
    ways = ((x["responses"], x["eval/exact"]) for x in run.lines if "eval/exact" in x)
    return next((responses for responses, exact in ways if exact >= level), math.inf)


def change(runs: Sequence[Run], column: str, budget: int, scale: float, form: str) -> str:
    """The mean over seeds of what was sampled first and last, 2,560 responses each."""
    spans = [(0, 2 * EVALUATED), (budget - 2 * EVALUATED, math.inf)]
    means = [statistics.fmean(run.mean(column, *span) for run in runs) for span in spans]
    return " → ".join(f"{scale * mean:{form}}" for mean in means)


def bounded(shares: Sequence[float]) -> str:
    """Mean and interval of percentages; no interval where it would say nothing."""
    mean, half = interval(shares)
    sound = len(shares) > 2 and half <= mean <= 100 - half
    return f"{mean:.1f} ± {half:.1f}" if sound else f"{mean:.1f}"


def table(name: str, *, out: Path = LOGS) -> str:
    """What each row reached, as markdown: means over seeds, held-out exact with a 95 % interval.

    Held-out exact is that of the last evaluation; *over the run* is the mean of all. Arrows go from
    the first to the last 2,560 sampled responses. In the median of the responses to 85 % a run that
    never gets there counts as infinite. No interval for two seeds, nor where it leaves 0 to 100 %.
    """
    experiment = find(name)
    head = ["row", "seeds", "steps", "held-out exact, %", "lowest, highest", "over the run, %"]
    head += ["responses to 85 %", "contrast, %", "right samples, %", "entropy, nats", "cut, %"]
    head += [*(f"`{column}`" for column in experiment.shown), "CPU s"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for label, runs in load(name, out=out).items():
        exact = [100 * run.column("eval/exact")[1][-1] for run in runs]
        steps = sorted({run.lines[-1]["step"] for run in runs})
        reached = statistics.median(reach(run, 0.85) for run in runs)
        budget, cells = experiment.responses, [f"`{label}`", str(len(runs))]
        cells += [" to ".join(str(step) for step in (steps[0], steps[-1])[: len(steps)])]
        cells += [bounded(exact), f"{min(exact):.1f}, {max(exact):.1f}"]
        cells += [bounded([100 * statistics.fmean(run.column("eval/exact")[1]) for run in runs])]
        cells += [f"{reached:,.0f}" if reached < math.inf else "never"]
        cells += [change(runs, "groups/contrast", budget, 100, ".0f")]
        cells += [change(runs, "reward/exact", budget, 100, ".0f")]
        cells += [change(runs, "entropy", budget, 1, ".2f")]
        cells += [change(runs, "length/truncated", budget, 100, ".1f")]
        for column in experiment.shown:
            if column.startswith(("eval/", "train/")):
                ends = statistics.fmean(run.column(column)[1][-1] for run in runs)
                cells += [f"{100 * ends:.1f} %"]
            else:
                cells += [change(runs, column, budget, 1, ".2g")]
        seconds = statistics.fmean(run.lines[-1]["time/cpu_seconds"] for run in runs)
        lines.append(f"| {' | '.join([*cells, f'{seconds:.0f}'])} |")
    return "\n".join(lines)


def listed() -> str:
    """Every experiment with its question and rows."""
    lines = []
    for name, experiment in EXPERIMENTS.items():
        lines.append(f"{name}: {experiment.question}")
        lines.append(f"    {len(experiment.seeds)} seeds, {experiment.responses:,} responses each")
        for label in experiment.rows:
            first = home(name, label)
            where = "" if first == (name, label) else f"   (the runs of {first[0]}, {first[1]})"
            settings = asdict(experiment.rows[label])
            changes = " ".join(settings.pop("changes"))
            other = [f"{k} = {v}" for k, v in settings.items() if v != getattr(SHIPPED, k)]
            lines.append(f"    {label:22} {changes}{'; '.join(other)}{where}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--rows", nargs="+", default=[], help="only these")
    parser.add_argument("--seeds", nargs="+", type=int, default=[], help="only these")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each")
    parser.add_argument("--out", type=Path, default=LOGS, help="folder of the logs")
    parser.add_argument("--table", action="store_true", help="of the logs; train nothing")
    parser.add_argument("--list", action="store_true", help="name the experiments")
    options = parser.parse_args()
    if options.table and not options.names:
        parser.error(f"--table of what? Name one or more of {', '.join(EXPERIMENTS)}")
    if options.list or not options.names:
        print(listed())
        return 0
    try:
        for name in options.names:
            for label in options.rows or [""]:
                find(name, label)
    except KeyError as error:
        parser.error(error.args[0])
    failed = 0
    if options.table and (options.rows or options.seeds):
        parser.error("--table reads every row and seed: leave out --rows and --seeds")
    if not options.table:
        failed = run_all(options.names, options.rows, options.seeds, options.out, options.jobs)
    for name in options.names:
        try:
            print(f"\n{name}: {find(name).question}\n\n{table(name, out=options.out)}")
        except FileNotFoundError as error:  # of a row that was left out, or failed
            print(f"\nno table of {name}: {error}", file=sys.stderr)
            failed |= options.table
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
