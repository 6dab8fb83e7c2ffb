"""One step of llm_trainer against one of TRL's GRPOTrainer and RLOOTrainer, on the same work.

    python -m benchmarks.trainer_step                  (needs `pip install trl==1.16.0`)
    python -m benchmarks.trainer_step --skip-trl       (our numbers only)
    python -m benchmarks.trainer_step --model runs/grpo_tiny      (a finished run's folder)

Same: starting checkpoint, words in the same order, prompt tokens, group, token limit, temperature,
loss (GRPO: clipped ratio, mean per sequence, group-standardised rewards; RLOO: leave-one-out, sum
per sequence; no KL), reward function, clipping of the gradient's norm, AdamW, float32, one thread,
one process. Ours and TRL's take turns step by step, so that other load on the machine hits both.
The learning rate is 1e-6 for all: answers keep their length and groups their contrast, so every
step is the same amount of work. TRL's gradient checkpointing, on by default, is switched off: it
would only slow TRL down. Each step samples, scores, and makes one update.

Before TRL's first update its samples are given to our trainer: it has to score them alike, find the
same advantages and the same gradient of all weights (relative difference 1e-5 at most).

Prints medians and quartiles of CPU seconds per step, response tokens per second, and the ratios.
"""

import argparse
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import torch
from torch import Tensor

from llm_trainer.batch import StepBatch
from llm_trainer.config import CONFIGS, Config, load
from llm_trainer.models import Policy, load_policy
from llm_trainer.rollout import OwnSampler, Prompts
from llm_trainer.step import Learner
from llm_trainer.task import Task, load_task
from llm_trainer.train import collect, learn, starting_model

PLAIN = {"shared_prefix": False, "old_logprobs": "recompute"}  # as trainers usually do it
CASES = {  # of each algorithm: what runs of ours, and TRL's trainer
    "grpo": ({"ours": {}, "ours, plain forward and second pass": PLAIN}, "GRPOTrainer"),
    "rloo": ({"ours": {}}, "RLOOTrainer"),
}
SAME = 1e-5  # relative difference of two gradients, and of an advantage


class Clock:
    """What each step took and had to do."""

    def __init__(self):
        self.wall, self.cpu, self.tokens, self.rewards = [], [], [], []

    def start(self) -> None:
        self.started = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        self.wall.append(time.perf_counter() - self.started[0])
        self.cpu.append(time.process_time() - self.started[1])


class Ours(Clock):
    """Steps of llm_trainer, one per call."""

    def __init__(self, config: Config):
        super().__init__()
        self.task = load_task(config.task)
        self.learner = Learner(load_policy(config, starting_model(config)), config)
        self.sampler = OwnSampler(self.learner.policy)
        self.stream = self.task.stream(config.seed)
        self.generator = torch.Generator().manual_seed(config.seed)

    def step(self) -> None:
        self.start()
        batch, numbers, _ = collect(
            self.sampler, self.task, self.stream, self.learner, self.generator
        )
        learn(self.learner, batch)
        self.stop()
        self.tokens.append(numbers["tokens"])
        self.rewards.append(numbers["reward/mean"])


class Trl(Clock):
    """One of TRL's trainers, which calls `between` after each of its steps."""

    def __init__(self, name: str, config: Config, steps: int, between):
        import trl
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, TrainerCallback

        super().__init__()
        self.config, self.task = config, load_task(config.task)
        self.policy = load_policy(config, starting_model(config))
        entries = [
            self.task.entry(item)
            for item in self.task.stream(config.seed).take(config.prompts * steps)
        ]
        prompts = [
            self.policy.tokenizer.decode(self.policy.prompt(self.task.question(e))) for e in entries
        ]
        self.by_prompt = dict(zip(prompts, entries, strict=True))
        self.seen: dict[tuple, float] = {}  # reward by prompt and tokens of the first step
        self.said = ""  # what the comparison with ours found

        def reward(prompts, completions, completion_ids, **_):
            scores = [
                self.task.score(c, self.by_prompt[p]).correctness
                for p, c in zip(prompts, completions, strict=True)
            ]
            self.tokens.append(sum(len(ids) for ids in completion_ids))
            self.rewards.append(sum(scores) / len(scores))
            if not self.said:
                keys = zip(prompts, map(tuple, completion_ids), strict=True)
                self.seen = dict(zip(keys, scores, strict=True))
            return scores

        clock = self

        class Timer(TrainerCallback):
            def on_step_begin(self, *_, **__):
                clock.start()

            def on_step_end(self, *_, **__):
                clock.stop()
                between()

        self.folder = tempfile.TemporaryDirectory()
        settings = {"loss_type": "grpo"} if name == "GRPOTrainer" else {}
        self.trainer = getattr(trl, name)(
            model=AutoModelForCausalLM.from_pretrained(starting_model(config), dtype=torch.float32),
            processing_class=self.policy.tokenizer,
            reward_funcs=reward,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            callbacks=[Timer()],
            args=getattr(trl, name.replace("Trainer", "Config"))(
                output_dir=self.folder.name,
                per_device_train_batch_size=config.prompts * config.group,
                num_generations=config.group,
                max_completion_length=config.max_new_tokens,
                max_steps=steps,
                temperature=config.temperature,
                learning_rate=config.lr,
                lr_scheduler_type="constant",
                max_grad_norm=config.max_grad_norm,
                beta=0.0,
                gradient_checkpointing=False,
                shuffle_dataset=False,
                use_cpu=True,
                bf16=False,
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                seed=config.seed,
                **settings,
            ),
        )
        self.loss, self.trainer._compute_loss = self.trainer._compute_loss, self.compare_first

    def compare_first(self, model, inputs):
        """TRL's loss; at its first call its gradient is compared with ours on the same samples."""
        loss = self.loss(model, inputs)
        if not self.said:
            weights = list(model.parameters())
            theirs = flat(torch.autograd.grad(loss, weights, retain_graph=True))
            self.said = compare(self, inputs, theirs)
        return loss

    def run(self) -> None:
        self.trainer.train()
        self.folder.cleanup()


def step_all(runs: list[Ours]) -> None:
    for run in runs:
        run.step()


def flat(tensors) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def compare(trl: Trl, inputs: dict[str, Tensor], gradient: Tensor) -> str:
    """Our rewards, advantages and gradient of TRL's samples against its own, as a sentence.

    gradient : (weights,) of TRL's loss. AssertionError if anything differs.
    """
    config, policy = trl.config, trl.policy
    # TRL has shuffled its rows, and ours have to stand in groups.
    _, prompt = inputs["prompt_ids"].unique(dim=0, return_inverse=True)
    order = prompt.argsort(stable=True)
    assert (prompt.bincount() == config.group).all()
    tokens, mask = inputs["completion_ids"][order], inputs["completion_mask"][order].bool()
    first = order[:: config.group]
    prompts = Prompts(inputs["prompt_ids"][first], inputs["prompt_mask"][first])
    scores, given = [], []
    for i, row in enumerate(tokens):
        ids = prompts.tokens[i // config.group][prompts.attention[i // config.group].bool()]
        text, said = policy.tokenizer.decode(ids.tolist()), tuple(row[mask[i]].tolist())
        scores.append(ours_score(trl.task, policy, said, trl.by_prompt[text]))
        given.append(trl.seen[text, said])
    unequal = sum(a != b for a, b in zip(scores, given, strict=True))
    assert unequal == 0, f"{unequal} samples are scored differently"

    rewards = torch.tensor(scores).view(-1, config.group)
    learner = Learner(policy, config)
    batch = StepBatch(prompts, rewards, rewards, tokens, mask, torch.zeros(tokens.shape))
    batch = learner.measure(batch)
    advantages = inputs["advantages"][order].view(-1, 1)
    off = (batch.advantages - advantages).abs().max().item()
    assert off <= SAME, f"advantages differ by {off}"
    with torch.no_grad():  # the ratio is 1, as it is for TRL
        batch = learner.taught(batch)
        logp = learner.log_probs(policy, batch)
    learner.gradients(StepBatch(**{**vars(batch), "logp_old": logp}), config.prompts)
    ours = flat([weight.grad for weight in policy.trainable()])
    relative = ((ours - gradient).norm() / gradient.norm()).item()
    assert relative <= SAME, f"gradients differ by {relative} of their size"
    return (
        f"the {len(scores)} samples of its first step score alike (mean {rewards.mean():.3f}), "
        f"advantages differ by {off:.1e} at most, the gradient of all {len(ours):,} weights by "
        f"{relative:.1e} of its size"
    )


def ours_score(task: Task, policy: Policy, tokens: tuple[int, ...], entry: dict) -> float:
    return task.score(policy.text(list(tokens)), entry, ended=policy.end_id in tokens).correctness


def spread(values: list[float], digits: int) -> str:
    """Median, and the quartiles in brackets."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def row(name: str, run: Clock, warm: int, base: Clock) -> str:
    """Ratios are of neighbouring steps, and of whole sums."""
    cpu, wall = run.cpu[warm:], run.wall[warm:]
    ratio = [a / b for a, b in zip(cpu, base.cpu[warm:], strict=True)]
    tokens = sum(run.tokens[warm:]) / sum(cpu)
    reward = sum(run.rewards[warm:]) / len(run.rewards[warm:])
    return (
        f"| {name} | {spread(cpu, 3)} | {statistics.median(wall):.3f} | {tokens:,.0f} | "
        f"{spread(ratio, 2)} | {reward:.3f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny", help="tiny (its warm start), or a folder")
    parser.add_argument("--steps", type=int, default=20, help="measured steps of each")
    parser.add_argument("--warm", type=int, default=3, help="steps of each before measuring")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--skip-trl", action="store_true", help="measure only llm_trainer")
    options = parser.parse_args()
    torch.set_num_threads(1)

    try:
        trl = "not compared" if options.skip_trl else version("trl")
    except PackageNotFoundError:
        trl = "not installed: `pip install trl==1.16.0` for the comparison"
    total, lines = options.warm + options.steps, []
    common = [f"model={options.model}", f"prompts={options.prompts}", f"group={options.group}"]
    common += [f"micro_batch={options.prompts}", "lr=1e-6", "device=cpu", "reward_format=0"]
    for algorithm, (variants, name) in CASES.items():
        settings = {
            run: load(
                CONFIGS / "grpo_tiny.yaml",
                [*common, f"algorithm={algorithm}", *(f"{k}={v}" for k, v in extra.items())],
            )
            for run, extra in variants.items()
        }
        ours = {run: Ours(config) for run, config in settings.items()}
        runs: dict[str, Clock] = dict(ours)
        one_step_each = partial(step_all, [*ours.values()])
        if trl[0].isdigit():
            other = Trl(name, settings["ours"], total, one_step_each)
            other.run()
            runs[f"TRL {trl} {name}"] = other
            print(f"{name}: {other.said}.")
        else:
            print(f"{name}: TRL {trl}")
            for _ in range(total):
                one_step_each()
        lines += [row(f"{algorithm}, {k}", v, options.warm, runs["ours"]) for k, v in runs.items()]

    command = shlex.join(["python", "-m", "benchmarks.trainer_step", *sys.argv[1:]])
    print(f"\n`{command}`\n")
    print(
        f"{options.prompts} prompts, {options.group} responses each, at most "
        f"{settings['ours'].max_new_tokens} tokens; median (quartiles) of {options.steps} steps, "
        f"taking turns; {platform.machine()}, {os.cpu_count()} CPUs, 1 thread; torch "
        f"{torch.__version__}, transformers {version('transformers')}, Python "
        f"{platform.python_version()}; load {os.getloadavg()[0]:.0f}\n"
    )
    print("| | CPU s/step | seconds/step | tokens per CPU s | CPU time, ours = 1 | mean reward |")
    print("|---|---|---|---|---|---|")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
