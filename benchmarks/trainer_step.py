"""One GRPO step of llm_trainer against one of TRL's GRPOTrainer, on the same work.

    python -m benchmarks.trainer_step                  (needs `pip install trl==1.16.0`)
    python -m benchmarks.trainer_step --skip-trl       (our numbers only)

Same: starting checkpoint (the cached warm start of the tiny Qwen), words in the same order, prompt
tokens, group, token limit, temperature, loss (clipped ratio, mean per sequence, group-standardised
rewards, no KL), reward function, float32, one thread, one process. The two take turns step by step,
so that other load on the machine hits both. The learning rate is 1e-6 for both: answers keep their
length and groups their contrast, so every step is the same amount of work. TRL's gradient
checkpointing, on by default, is switched off: it would only slow TRL down.

Prints median seconds and CPU seconds per step, response tokens per second, and the ratios.
"""

import argparse
import os
import platform
import shlex
import statistics
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version

import torch

from llm_trainer.config import CONFIGS, load
from llm_trainer.models import load_policy
from llm_trainer.rollout import OwnSampler
from llm_trainer.step import Learner
from llm_trainer.task import Spelling, WordStream
from llm_trainer.train import collect, learn, starting_model

VARIANTS = {
    "ours": {},
    "ours, plain forward and second pass": {
        "shared_prefix": False,
        "old_logprobs": "recompute",
    },
}


class Ours:
    """Steps of llm_trainer, one per call; keeps what each took."""

    def __init__(self, config):
        self.task = Spelling(config.task)
        self.learner = Learner(load_policy(config, starting_model(config)), config)
        self.stream = WordStream(self.task.train, config.seed)
        self.generator = torch.Generator().manual_seed(config.seed)
        self.wall, self.cpu, self.tokens, self.rewards = [], [], [], []

    def step(self) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        sampler = OwnSampler(self.learner.policy)
        batch, numbers, _ = collect(sampler, self.task, self.stream, self.learner, self.generator)
        learn(self.learner, batch)
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)
        self.tokens.append(numbers["tokens"])
        self.rewards.append(numbers["reward/mean"])


class Trl:
    """TRL's trainer, which calls `between` after each of its steps."""

    def __init__(self, config, steps: int, between):
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, TrainerCallback
        from trl import GRPOConfig, GRPOTrainer

        self.wall, self.cpu, self.tokens, self.rewards = [], [], [], []
        task, policy = Spelling(config.task), load_policy(config, starting_model(config))
        entries = [
            task.entry(w) for w in WordStream(task.train, config.seed).take(config.prompts * steps)
        ]
        prompts = [policy.tokenizer.decode(policy.prompt(task.question(e))) for e in entries]
        by_prompt = dict(zip(prompts, entries, strict=True))

        def reward(prompts, completions, completion_ids, **_):
            scores = [
                task.score(c, by_prompt[p]).correctness
                for p, c in zip(prompts, completions, strict=True)
            ]
            self.tokens.append(sum(len(ids) for ids in completion_ids))
            self.rewards.append(sum(scores) / len(scores))
            return scores

        clock = self

        class Timer(TrainerCallback):
            def on_step_begin(self, *_, **__):
                clock.started = time.perf_counter(), time.process_time()

            def on_step_end(self, *_, **__):
                clock.wall.append(time.perf_counter() - clock.started[0])
                clock.cpu.append(time.process_time() - clock.started[1])
                between()

        self.folder = tempfile.TemporaryDirectory()
        rows = config.prompts * config.group
        self.trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(starting_model(config), dtype=torch.float32),
            processing_class=policy.tokenizer,
            reward_funcs=reward,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            callbacks=[Timer()],
            args=GRPOConfig(
                output_dir=self.folder.name,
                per_device_train_batch_size=rows,
                num_generations=config.group,
                max_completion_length=config.max_new_tokens,
                max_steps=steps,
                temperature=config.temperature,
                learning_rate=config.lr,
                lr_scheduler_type="constant",
                beta=0.0,
                loss_type="grpo",
                gradient_checkpointing=False,
                shuffle_dataset=False,
                use_cpu=True,
                bf16=False,
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                seed=config.seed,
            ),
        )

    def run(self) -> None:
        self.trainer.train()
        self.folder.cleanup()


def row(name: str, run, warm: int, base) -> str:
    wall, cpu = (statistics.median(x[warm:]) for x in (run.wall, run.cpu))
    ratio = statistics.median(base.cpu[warm:])
    tokens = sum(run.tokens[warm:]) / sum(run.wall[warm:])
    reward = sum(run.rewards[warm:]) / len(run.rewards[warm:])
    return f"| {name} | {wall:.3f} | {cpu:.3f} | {tokens:,.0f} | {cpu / ratio:.2f} | {reward:.3f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="measured steps of each")
    parser.add_argument("--warm", type=int, default=3, help="steps of each before measuring")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--skip-trl", action="store_true", help="measure only llm_trainer")
    options = parser.parse_args()
    torch.set_num_threads(1)

    size = [f"prompts={options.prompts}", f"micro_batch={options.prompts}"]
    common = [*size, f"group={options.group}", "lr=1e-6", "device=cpu", "reward_format=0"]
    settings = {
        name: load(CONFIGS / "grpo_tiny.yaml", [*common, *(f"{k}={v}" for k, v in extra.items())])
        for name, extra in VARIANTS.items()
    }
    runs = {name: Ours(config) for name, config in settings.items()}
    total = options.warm + options.steps

    def one_step_each() -> None:
        for run in runs.values():
            run.step()

    try:
        trl = "not compared" if options.skip_trl else version("trl")
    except PackageNotFoundError:
        trl = "not installed: `pip install trl==1.16.0` for the comparison"
    if trl[0].isdigit():
        other = Trl(settings["ours"], total, one_step_each)
        other.run()
        runs[f"TRL {trl} GRPOTrainer"] = other
    else:
        print(f"TRL {trl}")
        for _ in range(total):
            one_step_each()

    command = shlex.join(["python", "-m", "benchmarks.trainer_step", *sys.argv[1:]])
    print(f"\n`{command}`\n")
    print(
        f"{options.prompts} prompts, {options.group} responses each, at most "
        f"{settings['ours'].max_new_tokens} tokens; median of {options.steps} steps, taking turns; "
        f"{platform.machine()}, {os.cpu_count()} CPUs, 1 thread; torch {torch.__version__}, "
        f"transformers {version('transformers')}, Python {platform.python_version()}\n"
    )
    print("| | seconds/step | CPU s/step | response tokens/s | CPU time, ours = 1 | mean reward |")
    print("|---|---|---|---|---|---|")
    for name, run in runs.items():
        print(row(name, run, options.warm, runs["ours"]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
