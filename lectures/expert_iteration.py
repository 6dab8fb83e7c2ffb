"""Expert iteration on the tiny Qwen: the runs that lecture 20 sets beside GRPO's.

    python -m lectures.expert_iteration --seeds 0 1 2    (trains what has no log yet)

    from lectures.expert_iteration import load
    for run in load("successes"):                        # by seed
        steps, exact = run.column("eval/exact")

Each run is `configs/grpo_tiny.yaml` on the same words, with the same group size and learning rate,
but every reward is 1 for an answer that is exactly right and 0 for any other. A run takes 20
to 40 CPU seconds. The rows:

- successes       fine-tune on the right answers, one update for each batch
- successes_again the same with four updates for each batch
- failures_too    the same rewards minus the mean of the other answers in the group (row `rloo`)

and the first and last of them at half and at double the learning rate (`successes_lr_1e-3`), and
without the cut of gradients at norm 1 (`successes_uncut`; a bound of 1000 is never reached). The
cut matters to the comparison: leave-one-out's gradients are about twice as long.

A log has the names of `metrics.jsonl`, a line for each evaluation. `tokens` is the mean per step
since the last one; `reward/exact`, `entropy` and `groups/contrast` are such means too.

Left out: partial credit (row `rloo` of the experiment `matched` has it), and a search for each
row's best settings.
"""

import argparse
import dataclasses
import tempfile
from pathlib import Path

from torch import Tensor

from lectures.experiments import LOGS, Experiment, Run, changed, commit, read, summed_up, write
from llm_trainer.checkpoint import check_folder, locked
from llm_trainer.config import CONFIGS, Config, with_values
from llm_trainer.config import load as load_config
from llm_trainer.devices import ONE
from llm_trainer.train import Run as Training

FOLDER = LOGS.parent / "expert_iteration"
ROWS = {
    "successes": ["algorithm=reinforce"],
    "successes_again": ["algorithm=reinforce", "epochs=4"],
    "failures_too": ["algorithm=rloo"],
}
ROWS |= {
    f"{name}_lr_{lr}": [*ROWS[name], f"lr={lr}"]
    for name in ("successes", "failures_too")
    for lr in ("2.5e-4", "1e-3")
}
ROWS |= {
    f"{name}_uncut": [*ROWS[name], "max_grad_norm=1000"] for name in ("successes", "failures_too")
}
KEPT = ("eval/exact", "reward/exact", "groups/contrast", "entropy", "tokens", "grad_norm")


def imitate(logp: Tensor, logp_old: Tensor, advantages: Tensor, mask: Tensor, *, sequences: int):
    """Fine-tuning on the right answers: −(1/B) Σ 1[right] log π(y). Lecture 20.

    logp, mask : (batch, time), mask 1 on response tokens; advantages : (batch, 1)
    returns : a scalar to minimise

    The advantage of row `reinforce` is a 0/1 reward minus the mean of the batch: positive where
    the answer is right, unless all are (then nothing is imitated). Failures count in B and nowhere
    else. Divided by B and not by the number of right answers, it is REINFORCE with a 0/1 reward
    and no baseline (on fresh answers), not the mean over accepted ones.
    """
    right = (advantages > 0).to(logp.dtype)
    return -(right * logp * mask).sum() / sequences


class RightOrWrong(Training):
    """A training run whose reward is whether the answer is exactly right."""

    def draw(self, recorder=None):
        batch, metrics, samples = super().draw(recorder)
        return dataclasses.replace(batch, rewards=batch.correct), metrics, samples


def train(name: str, config: Config) -> Run:
    """Train one row in a folder that is thrown away; the log."""
    loss = None if name.startswith("failures_too") else imitate
    with tempfile.TemporaryDirectory() as place:
        config = with_values(config, output_dir=f"{place}/run")
        with locked(config):
            folder = check_folder(config, resume=False, overwrite=False)
            training = RightOrWrong(config, loss, ONE, folder, quiet=True)
            if not training.go(overwrite=False).finished:
                raise KeyboardInterrupt  # half a run is no log
    head = {
        "experiment": "expert_iteration",
        "row": name,
        "seed": config.seed,
        "command": f"python -m lectures.expert_iteration --rows {name} --seeds {config.seed}",
        "commit": commit("lectures/expert_iteration.py"),
        "config": changed(config),
    }
    kept = Experiment("", {}, columns=KEPT)
    return Run(head, summed_up(training.log.history, {}, kept))


def load(name: str, *, out: Path = FOLDER) -> list[Run]:
    """The committed logs of one row, by seed; KeyError for a row there is not."""
    if name not in ROWS:
        raise KeyError(f"no row {name!r}; there are {', '.join(ROWS)}")
    logs = [read(path) for path in sorted(out.glob(f"{name}_seed*.jsonl"))]
    if not logs:
        raise FileNotFoundError(f"no log in {out}; python -m lectures.expert_iteration makes one")
    return [Run(log[0], log[1:]) for log in logs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the logs")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        for name in options.rows:
            path = options.out / f"{name}_seed{seed}.jsonl"
            if not path.exists():
                changes = [f"seed={seed}", "device=cpu", *ROWS[name]]
                made = train(name, load_config(CONFIGS / "grpo_tiny.yaml", changes))
                write(path, [made.head, *made.lines])
                print(f"{path.stem}: {made.column('eval/exact')[1][-1]:.1%}", flush=True)


if __name__ == "__main__":
    main()
