"""The training loop: sample, score, update; evaluate, log, save; stop and go on.

    from llm_trainer.config import load
    from llm_trainer.train import train
    train(load("llm_trainer/configs/grpo_tiny.yaml"))               # the table's row
    train(load("llm_trainer/configs/grpo_tiny.yaml"), loss=my_loss)  # your own grpo_loss

A run's folder holds `run.yaml` (its configuration), `metrics.jsonl`, `checkpoint.pt` (what
`resume` needs) and at the end the model and tokenizer as ordinary Hugging Face files.

Left out: critics, adapters, several devices, several minibatches per batch of samples.
"""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from llm_trainer.batch import Experience, join
from llm_trainer.config import Config, build, require
from llm_trainer.evaluate import evaluate
from llm_trainer.log import LOG, Console, Log
from llm_trainer.models import Policy, load_policy
from llm_trainer.rollout import pad_prompts, sample
from llm_trainer.step import Learner, NonFiniteError
from llm_trainer.task import Spelling, WordStream
from llm_trainer.tiny import warm_start
from policy_gradients.diagnostics import sampled_entropy, zero_contrast_share
from policy_gradients.filters import dapo_filter

RUN, STATE = "run.yaml", "checkpoint.pt"
# Fields that may change when a run is resumed; all others would make it another run.
MAY_CHANGE = {"steps", "eval_every", "save_every", "output_dir", "threads"}
NO_SIGNAL_LIMIT = 20  # steps in a row without anything to learn from


class NoSignalError(RuntimeError):
    """For many steps in a row every group scored the same: there is nothing to learn from."""


@dataclass(frozen=True)
class Result:
    """What a finished (or interrupted) run hands back."""

    output_dir: Path
    history: list[dict[str, Any]]  # the lines of metrics.jsonl
    finished: bool

    @property
    def exact(self) -> float:
        """Held-out exact accuracy at the last evaluation."""
        return [line["eval/exact"] for line in self.history if "eval/exact" in line][-1]


def train(
    config: Config,
    loss: Callable | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> Result:
    """Train as `config` says and return the log.

    loss: a function with the signature of `policy_gradients.algorithms.grpo_loss`, used in place
    of the row's loss; advantages, clip distances and the rest still come from the row. If it
    takes `tokens` or `length`, it gets the step's response tokens and the token limit.

    Raises ConfigError (before anything is written), InvariantError, NonFiniteError, NoSignalError.
    """
    folder = Path(config.output_dir)
    check_folder(folder, config, resume=resume, overwrite=overwrite)
    task = Spelling(config.task)
    policy = load_policy(config, starting_model(config, quiet=quiet))
    learner = Learner(policy, config, loss)
    stream = WordStream(task.train, config.seed)
    generator = torch.Generator(policy.device).manual_seed(config.seed)
    words = task.held_out[: config.eval_words]

    state = load_state(folder, policy) if resume else None
    if overwrite:
        clear_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / RUN, lambda path: path.write_text(yaml_of(config)))
    step, idle, cpu_before = 0, 0, 0.0
    if state:
        step, idle, cpu_before = state["step"], state["idle"], state["cpu_seconds"]
        policy.model.load_state_dict(state["model"])
        learner.optimizer.load_state_dict(state["optimizer"])
        learner.updates, stream.position = state["updates"], state["position"]
        generator.set_state(state["generator"])
    log = Log(folder, size=state["log_bytes"] if state else 0)
    title = f"{config.algorithm if loss is None else loss.__name__} on {config.model}:"
    console = Console(title, config.steps, step, quiet=quiet)
    cpu_start = time.process_time()

    def held_out() -> dict[str, float]:
        result = evaluate(policy, task, words, max_new_tokens=config.max_new_tokens)
        return {"eval/exact": result.exact, "eval/correctness": result.correctness}

    def save() -> None:
        values = {
            "step": step,
            "idle": idle,
            "cpu_seconds": cpu_before + time.process_time() - cpu_start,
            "model": policy.model.state_dict(),
            "optimizer": learner.optimizer.state_dict(),
            "updates": learner.updates,
            "position": stream.position,
            "generator": generator.get_state(),
            "log_bytes": log.sync(),
        }
        write_atomically(folder / STATE, lambda path: torch.save(values, path))

    try:
        if not log.history:
            log.write({"step": 0, **held_out()})
            console.step(log.history[-1], "")
            save()
        with stop_requested() as stop:
            while step < config.steps and not stop.is_set():
                started = time.monotonic()
                seen, kept = collect(policy, task, stream, learner, generator)
                metrics = {"step": step + 1, **sample_metrics(seen)}
                updated = learn(learner, kept) if kept else None
                idle = 0 if updated else idle + 1
                metrics |= updated or {"groups/trained": 0}
                check_signal(idle, metrics)
                step += 1
                if step % config.eval_every == 0 or step == config.steps:
                    metrics |= held_out()
                seconds = time.monotonic() - started
                metrics |= {
                    "time/seconds": seconds,
                    "time/cpu_seconds": cpu_before + time.process_time() - cpu_start,
                    "time/tokens_per_second": int(seen.mask.sum()) / seconds,
                }
                log.write(metrics)
                console.step(metrics, describe_sample(seen))
                if step % config.save_every == 0:
                    save()
        save()
        if step >= config.steps:
            save_model(policy, folder)
            console.say(f"model, tokenizer, log and checkpoint are in {folder}")
        else:
            console.say(f"stopped after step {step}; go on with --resume")
    except NonFiniteError as error:
        raise NonFiniteError(
            f"step {step + 1}: {error}. No weight was changed; the last good state is in "
            f"{folder / STATE}. Try a smaller lr or max_grad_norm"
        ) from None
    finally:
        log.close()
    return Result(folder, log.history, step >= config.steps)


# -------------------------------------------------------------------------- one step


def collect(
    policy: Policy,
    task: Spelling,
    stream: WordStream,
    learner: Learner,
    generator: torch.Generator,
) -> tuple[Experience, Experience | None]:
    """(everything that was sampled, what to train on).

    Under dynamic sampling (DAPO) groups that are all right or all wrong are replaced by newly
    sampled ones, for at most `resample_limit` rounds; then the step makes do with what it has.
    """
    config, rounds, kept = learner.config, [], []
    for _ in range(config.resample_limit if learner.row.dynamic_sampling else 1):
        seen = sample_and_score(policy, task, stream.take(config.prompts), config, generator)
        rounds.append(seen)
        if not learner.row.dynamic_sampling:
            return seen, seen
        kept.append(seen.select(dapo_filter(seen.correct)))
        if sum(len(k.words) for k in kept) >= config.prompts:
            break
    kept = [k for k in kept if k.words]
    if not kept:
        return join(rounds, policy.pad_id), None
    enough = join(kept, policy.pad_id)
    first = torch.arange(len(enough.words), device=policy.device) < config.prompts
    return join(rounds, policy.pad_id), enough.select(first)


def sample_and_score(
    policy: Policy, task: Spelling, words: list[str], config: Config, generator: torch.Generator
) -> Experience:
    """`group` responses to each word's prompt, with their rewards."""
    entries = [task.entry(word) for word in words]
    prompts = pad_prompts(
        [policy.prompt(task.question(e), thinking=config.task.thinking) for e in entries], policy
    )
    responses = sample(
        policy,
        prompts,
        group=config.group,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        generator=generator,
    )
    texts = [policy.text(row) for row in responses.tokens.tolist()]
    parts = [task.score(text, entries[i // config.group]) for i, text in enumerate(texts)]
    total = [
        config.reward_correctness * p.correctness + config.reward_format * p.format for p in parts
    ]

    def grouped(values: list[float]) -> torch.Tensor:  # (prompts, group)
        return torch.tensor(values, device=policy.device).view(len(words), config.group)

    return Experience(
        prompts=prompts,
        tokens=responses.tokens,
        mask=responses.mask,
        logp_sampler=responses.logp,
        rewards=grouped(total),
        correct=grouped([p.exact for p in parts]),
        parts=parts,
        texts=texts,
        words=words,
        truncated=(responses.tokens != policy.end_id).all(1),
    )


def learn(learner: Learner, kept: Experience) -> dict[str, Any] | None:
    """All updates on one batch of samples; None if no group can teach anything."""
    batch = learner.prepare(kept)
    if batch is None:
        return None
    metrics: dict[str, Any] = {"groups/trained": len(batch.prompts.tokens)}
    for epoch in range(learner.config.epochs):
        metrics |= learner.update(batch, fresh=epoch == 0)
    return metrics


def sample_metrics(seen: Experience) -> dict[str, float]:
    """What the samples themselves say, before any learning."""
    lengths = seen.mask.sum(1).float()
    return {
        "reward/mean": seen.rewards.mean().item(),
        "reward/correctness": sum(p.correctness for p in seen.parts) / len(seen.parts),
        "reward/format": sum(p.format for p in seen.parts) / len(seen.parts),
        "reward/exact": seen.correct.mean().item(),
        "groups/contrast": 1 - zero_contrast_share(seen.rewards),
        "groups/sampled": len(seen.words),
        "entropy": sampled_entropy(seen.logp_sampler, seen.mask),
        "length/mean": lengths.mean().item(),
        "length/max": int(lengths.max()),
        "length/truncated": seen.truncated.float().mean().item(),
    }


def describe_sample(seen: Experience) -> str:
    """The first response of the step, as text."""
    return f"{seen.words[0]} → {seen.texts[0]!r} (reward {seen.rewards[0, 0]:.2f})"


def check_signal(idle: int, metrics: dict[str, Any]) -> None:
    """A few steps without contrast are normal near the end; many at low accuracy are not."""
    if idle >= NO_SIGNAL_LIMIT and metrics["reward/exact"] < 0.5:
        raise NoSignalError(
            f"step {metrics['step']}: no group of the last {idle} steps can teach anything; their "
            f"rewards are all alike (mean {metrics['reward/mean']:.3g}). Use easier words, a "
            "better starting model, a larger group or a higher temperature"
        )


# -------------------------------------------------------------------------- files


def starting_model(config: Config, *, quiet: bool = False) -> Path | str:
    """Where the weights come from: the cached warm start for `tiny`, else folder or name."""
    if config.model == "tiny":
        return warm_start(config.task, config.warmstart, quiet=quiet)
    return config.model


def check_folder(folder: Path, config: Config, *, resume: bool, overwrite: bool) -> None:
    """Refuse, with nothing touched, a folder that this run must not write into."""
    require(not (resume and overwrite), "--resume and --overwrite contradict each other")
    require(not folder.exists() or folder.is_dir(), f"output_dir = {str(folder)!r}: this is a file")
    same = Path(config.model).exists() and folder.exists() and folder.samefile(config.model)
    require(
        not same or resume,
        f"output_dir = {str(folder)!r}: it is the folder of the model to start from",
    )
    holds = sorted(p.name for p in folder.iterdir() if is_ours(p)) if folder.exists() else []
    if resume:
        require((folder / RUN).exists(), f"--resume: {folder} holds no run (no {RUN})")
        before = build(yaml.safe_load((folder / RUN).read_text(encoding="utf-8"))).model_dump()
        now = config.model_dump()
        changed = [name for name in now if now[name] != before[name] and name not in MAY_CHANGE]
        require(
            not changed,
            "--resume: the run was started with "
            + ", ".join(f"{name} = {before[name]!r} (now {now[name]!r})" for name in changed)
            + f"; only {', '.join(sorted(MAY_CHANGE))} may change",
        )
    else:
        require(
            overwrite or not holds,
            f"output_dir = {str(folder)!r}: it already holds {', '.join(holds)}. Nothing was "
            "changed. Go on with --resume, start anew with --overwrite, or choose another folder",
        )


def is_ours(path: Path) -> bool:
    """Files that a run writes (or a model folder holds)."""
    names = {RUN, STATE, LOG, "config.json", "generation_config.json", "chat_template.jinja"}
    kinds = {".safetensors"}
    return path.name in names or path.suffix in kinds or path.name.startswith("tokenizer")


def clear_folder(folder: Path) -> None:
    """Remove a former run's files, and nothing else."""
    if folder.exists():
        for path in filter(is_ours, list(folder.iterdir())):
            path.unlink()


def load_state(folder: Path, policy: Policy) -> dict[str, Any] | None:
    """The last checkpoint; None if the run was stopped before its first."""
    path = folder / STATE
    if not path.exists():
        return None
    state = torch.load(path, map_location=policy.device, weights_only=True)
    return {**state, "generator": state["generator"].cpu()}


def save_model(policy: Policy, folder: Path) -> None:
    """Model and tokenizer as Hugging Face files; each replaces the old one whole."""
    building = folder / "building"
    policy.model.save_pretrained(building)
    policy.tokenizer.save_pretrained(building)
    for path in building.iterdir():
        os.replace(path, folder / path.name)
    shutil.rmtree(building)


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Write beside the file, flush, replace: a crash leaves the old file or the new one."""
    beside = path.with_name(path.name + ".tmp")
    write(beside)
    with open(beside, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(beside, path)


def yaml_of(config: Config) -> str:
    return yaml.safe_dump(config.model_dump(), sort_keys=False)


@contextmanager
def stop_requested():
    """An event that the first Ctrl-C (or a polite kill) sets; a second one stops at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # signals only reach the main thread
        return

    def handler(number, frame):
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    former = {n: signal.signal(n, handler) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handle in former.items():
            signal.signal(number, handle)
