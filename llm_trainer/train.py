"""The training loop: sample, score, update; evaluate, log, save; stop and go on.

    from llm_trainer.config import load
    from llm_trainer.train import train
    train(load("llm_trainer/configs/grpo_tiny.yaml"))               # the table's row
    train(load("llm_trainer/configs/grpo_tiny.yaml"), loss=my_loss)  # your own grpo_loss

A run's folder holds `run.yaml` (its configuration), `metrics.jsonl`, `checkpoint.pt` (what
`resume` needs), a token-level record of each step in `record_steps` (`steps/step_0020.json`) and
at the end the model and tokenizer as ordinary Hugging Face files.

Left out: devices of unequal speed. What several share out is in `devices.py`.
"""

import signal
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from llm_trainer.batch import StepBatch, join
from llm_trainer.checkpoint import (
    STATE,
    check_folder,
    check_unseen,
    load_state,
    save_model,
    save_record,
    start_folder,
    write_atomically,
)
from llm_trainer.config import Config, RunError, require
from llm_trainer.console import Console, Sample, pick_samples
from llm_trainer.devices import ONE, Devices, find_devices, like, with_launcher
from llm_trainer.evaluate import evaluate
from llm_trainer.log import Log, Silent, check_tracker, make_tracker
from llm_trainer.losses import loss_name
from llm_trainer.models import load_policy
from llm_trainer.oom import InRoom, Room
from llm_trainer.record import Recorder
from llm_trainer.rollout import Sampler, check_sampler, make_sampler, pad_prompts, worker_seed
from llm_trainer.step import Learner, NonFiniteError
from llm_trainer.task import Stream, Task, by_task, load_task
from llm_trainer.tiny import warm_start
from policy_gradients.diagnostics import sampled_entropy, zero_contrast_share
from policy_gradients.filters import dapo_filter, overlong_penalty

PARTS = ("correctness", "format", "length")  # of the reward, each with its weight reward_NAME
NO_SIGNAL_LIMIT = 20  # steps in a row without anything to learn from
MANY_CUT = 0.9  # share of answers without an end token, above which length is what is wrong
TOO_LONG = "Nearly all answers are cut: raise max_new_tokens, or lower lr if they used to end"
TOO_HARD = "Use easier words, a better starting model, a larger group or a higher temperature"


class NoSignalError(RunError):
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
    of the row's loss; advantages, clip distances and the rest still come from the row, and with
    kl_coef its KL is added. If it takes `tokens` or `length`, it gets the step's response tokens
    and the token limit.

    Raises ConfigError (before anything is written), InvariantError, NonFiniteError, NoSignalError.
    """
    config = with_launcher(config)
    check_tracker(config)
    check_sampler(config)
    devices = find_devices(config)
    folder = check_folder(config, resume=resume, overwrite=overwrite)
    name = loss_name(loss, config.algorithm)
    code = getattr(loss, "sha256", None)  # of the file that --loss read it from
    state = load_state(folder, name) if resume else None
    wrote = len(state["generators"]) if state else devices.world
    require(wrote == devices.world, f"--resume: this run has {wrote} processes; start as many")
    task = load_task(config.task)
    check_unseen(config.model, task)
    quiet = quiet or not devices.first
    start = devices.in_turn(lambda: starting_model(config, quiet=quiet))
    policy = load_policy(config, start)
    learner = Learner(policy, config, loss, devices)
    room = Room(config.prompts, "sampling", "prompts, group or max_new_tokens")
    sampler = InRoom(make_sampler(policy, config), room)
    stream = task.stream(config.seed)
    seed = worker_seed(config.seed, devices.rank)  # or all would write the same responses
    generator = torch.Generator(policy.device).manual_seed(seed)
    words = task.held_out[: config.eval_words]

    # Everything that could be refused has been; from here on files change.
    about = f"{name} (sha256 {code})" if code else name
    devices.everyone(None)  # none of them is still looking at what is there
    if devices.first:
        start_folder(folder, config, about, overwrite=overwrite)
    done = {"step": 0, "idle": 0, "cpu_seconds": 0.0, "log_bytes": 0}  # what the loop counts
    done["run_id"] = uuid.uuid4().hex  # by which a tracker knows the run again
    if state:
        policy.load_state({n: like(state["model"][n], w) for n, w in policy.state().items()})
        learner.load_state(state["learner"])
        stream.position = state["position"]
        generator.set_state(state["generators"][devices.rank])
        done |= state["done"]
    log = (Log if devices.first else Silent)(folder, size=done["log_bytes"])
    title = f"{name if loss else config.algorithm} on {config.model}"
    console = Console(title, config.steps, log.history, quiet=quiet)
    if resume and state is None:
        console.say("no checkpoint yet: this run starts at step 0")
    if state and state.get("loss_sha256") != code:
        console.say(f"warning: the file of {name} has changed since this run's last checkpoint")
    cpu_offset = done["cpu_seconds"] - cpu_seconds(devices)

    def held_out() -> dict[str, float]:
        rows = config.prompts * config.group  # no more at once than a step samples
        with devices.whole(learner.roots):
            result = evaluate(
                policy,
                task,
                words,
                max_new_tokens=config.max_new_tokens,
                batch=rows,
                devices=devices,
            )
        parts = {f"eval/exact/{name}": exact for name, exact in result.by_task.items()}
        total = {"eval/exact": result.exact, "eval/correctness": result.correctness}
        return total | (parts if len(parts) > 1 else {})

    def save() -> None:
        done["cpu_seconds"], done["log_bytes"] = cpu_offset + cpu_seconds(devices), log.sync()
        values = {
            "loss": name,
            "loss_sha256": code,
            "model": devices.together(policy.state()),
            "learner": devices.together(learner.state()),
            "position": stream.position,
            "generators": [x.cpu() for x in devices.everyone(generator.get_state())],
            "done": done,
        }
        if devices.first:
            write_atomically(folder / STATE, lambda path: torch.save(values, path))

    try:
        if devices.first:
            log.tracker = make_tracker(config, done["run_id"], len(log.history))
        if not log.history:
            log.write({"step": 0, **held_out()})
            console.step(log.history[-1])
            save()
        with stop_requested(patient=devices.world > 1) as stop:
            while done["step"] < config.steps and not devices.any(stop.is_set()):
                started = time.monotonic()
                step = done["step"] + 1
                recorder = Recorder(learner, step, name) if step in config.record_steps else None
                sampler.sync()
                batch, metrics, samples = collect(
                    sampler, task, stream, learner, generator, recorder
                )
                updated = learn(learner, batch, recorder)
                if recorder and devices.first:
                    save_record(recorder.record(), folder)
                metrics = {"step": step, **metrics, **(updated or {"groups/trained": 0})}
                favours = batch is not None and learner.has_contrast(batch)
                done["idle"] = 0 if favours else done["idle"] + 1
                check_signal(done["idle"], metrics)
                seconds = time.monotonic() - started
                if step % config.eval_every == 0 or step == config.steps:
                    metrics |= held_out()
                metrics |= {
                    "time/step_seconds": seconds,
                    "time/tokens_per_second": metrics["tokens"] / seconds,
                    "time/cpu_seconds": cpu_offset + cpu_seconds(devices),
                }
                log.write(metrics)
                console.step(metrics, samples)
                done["step"] = step
                if step % config.save_every == 0:
                    save()
        save()
        finished = done["step"] >= config.steps
        if finished:
            save_finished(learner, start, folder)
            console.say(verdict(log.history))
            console.say(f"model, tokenizer, log and checkpoint are in {folder}")
        else:
            console.say(f"stopped after step {done['step']}; go on with --resume")
        devices.end()
    except NonFiniteError as error:
        raise NonFiniteError(
            f"step {done['step'] + 1}: {error}. This update was not made; the last good state is "
            f"in {folder / STATE}"
        ) from None
    finally:
        log.close()
    return Result(folder, log.history, finished)


def cpu_seconds(devices: Devices) -> float:
    """Of all processes of the run together."""
    return sum(devices.everyone(time.process_time()))


def save_finished(learner: Learner, start: Path | str, folder: Path) -> None:
    """The model as ordinary files, by the first process; split weights are put together first."""
    policy = learner.policy
    if learner.roots:
        state = learner.devices.together(policy.state())
        if learner.devices.first:
            policy = load_policy(learner.config, start)
            policy.load_state(state)
    if learner.devices.first:
        save_model(policy, folder)


def check_signal(idle: int, metrics: dict[str, Any]) -> None:
    """A few steps without contrast are normal near the end; many at low accuracy are not."""
    if idle >= NO_SIGNAL_LIMIT and metrics["reward/exact"] < 0.5:
        many_cut = metrics["length/truncated"] > MANY_CUT
        raise NoSignalError(
            f"step {metrics['step']}: no group of the last {idle} steps can teach anything; their "
            f"rewards are all alike (mean {metrics['reward/mean']:.3g}). "
            + (TOO_LONG if many_cut else TOO_HARD)
        )


def verdict(history: list[dict[str, Any]]) -> str:
    """What a finished run should not hide: it got worse, or its answers no longer end."""
    first, *_, last = [line["eval/exact"] for line in history if "eval/exact" in line] * 2
    text = f"held-out exact went from {first:.1%} to {last:.1%}"
    if history[-1].get("length/truncated", 0.0) > MANY_CUT:
        return f"warning: {text}. {TOO_LONG}"
    return f"warning: {text}. Try a smaller lr" if last < first else text


def collect(
    sampler: Sampler,
    task: Task,
    stream: Stream,
    learner: Learner,
    generator: torch.Generator,
    recorder: Recorder | None = None,
) -> tuple[StepBatch | None, dict[str, float], list[Sample]]:
    """(what to train on or None, metrics of everything sampled, a few samples to look at).

    Under dynamic sampling (DAPO) groups that are all right or all wrong are replaced by newly
    sampled ones, for at most `resample_limit` rounds; then the step makes do with what it has.
    """
    config, kept, metrics = learner.config, [], []
    rounds = config.resample_limit if learner.row.dynamic_sampling else 1
    while len(metrics) < rounds and sum(len(b.rewards) for b in kept) < config.prompts:
        words = stream.take(config.prompts)
        with learner.devices.whole(learner.roots):
            batch, numbers, samples = sample_and_score(
                sampler, task, words, config, generator, learner.devices
            )
        metrics.append(numbers)
        if learner.row.dynamic_sampling:
            keep = dapo_filter(batch.correct)
            if recorder and not keep.all():
                recorder.see(batch.take(~keep), discarded=True)
            batch = batch.take(keep)
        if len(batch.rewards):
            kept.append(batch)
    found = {name: [m[name] for m in metrics if name in m] for m in metrics for name in m}
    means = {name: sum(values) / len(values) for name, values in found.items()}
    means["tokens"] = sum(m["tokens"] for m in metrics)
    means["groups/sampled"] = len(metrics) * config.prompts
    if not kept:
        return None, means, samples
    step = join(kept, sampler.policy.pad_id)
    wanted = torch.arange(len(step.rewards), device=step.rewards.device) < config.prompts
    return step.take(wanted), means, samples


def sample_and_score(
    sampler: Sampler,
    task: Task,
    words: list,
    config: Config,
    generator: torch.Generator,
    devices: Devices = ONE,
) -> tuple[StepBatch, dict[str, float], list[Sample]]:
    """`group` responses to each word's prompt, scored; what they say as numbers; a few.

    Each process writes those to its share of the words, and all get the whole batch.
    """
    policy, everything = sampler.policy, [task.entry(word) for word in words]
    entries = devices.share(everything)
    prompts = pad_prompts([policy.prompt(task.question(e)) for e in entries], policy)
    responses = sampler.sample(
        prompts,
        group=config.group,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        generator=generator,
    )
    texts = [policy.text(row) for row in responses.tokens.tolist()]
    ended = (responses.tokens == policy.end_id).any(1)
    parts = [
        task.score(
            text, entries[i // config.group], ended=end, tokens=length, limit=config.max_new_tokens
        )
        for i, (text, end, length) in enumerate(
            zip(texts, ended.tolist(), responses.mask.sum(1).tolist(), strict=True)
        )
    ]

    def grouped(values: list[float]) -> torch.Tensor:  # (prompts, group)
        return torch.tensor(values, device=policy.device).view(len(entries), config.group)

    exact = grouped([p.exact for p in parts])
    parts = {name: grouped([getattr(p, name) for p in parts]) for name in PARTS}
    rewards = sum(getattr(config, f"reward_{name}") * parts[name] for name in PARTS)
    if config.overlong == "penalty":
        lengths = responses.mask.sum(1).view_as(rewards)
        parts["overlong"] = overlong_penalty(
            lengths, max_length=config.max_new_tokens, cache=config.overlong_cache
        )
        rewards = rewards + parts["overlong"]
    samples = pick_samples([task.label(e) for e in entries], texts, rewards.tolist())
    own = StepBatch(
        prompts=prompts,
        rewards=rewards,
        correct=exact,
        tokens=responses.tokens,
        mask=responses.mask,
        logp_sampler=responses.logp,
        parts=parts,
    )
    batch = join(devices.everyone(own), policy.pad_id)
    metrics = {
        "reward/mean": batch.rewards.mean().item(),
        **{f"reward/{name}": part.mean().item() for name, part in batch.parts.items()},
        "reward/exact": batch.correct.mean().item(),
        "groups/contrast": 1 - zero_contrast_share(batch.rewards),
        "entropy": sampled_entropy(batch.logp_sampler, batch.mask),
        "length/mean": batch.mask.sum(1).float().mean().item(),
        "length/truncated": 1 - (batch.tokens == policy.end_id).any(1).float().mean().item(),
        "tokens": int(batch.mask.sum()),
    }
    if len(task.tasks) > 1:
        right = by_task(everything, batch.correct.mean(1).tolist())
        metrics |= {f"reward/exact/{name}": share for name, share in right.items()}
    return batch, metrics, samples


def learn(
    learner: Learner, batch: StepBatch | None, recorder: Recorder | None = None
) -> dict[str, Any] | None:
    """All updates on one batch of samples; None if no group can teach anything."""
    if recorder and batch:
        recorder.see(batch)
    batch = learner.measure(batch) if batch else None
    if batch is None or not learner.teaches(batch).any():
        return None
    metrics, fresh = learner.describe(batch), True
    for _ in range(learner.config.epochs):
        for part in learner.minibatches(batch):
            if recorder:
                recorder.before_update()
            metrics |= learner.update(part, fresh=fresh)
            fresh = False
    learner.optimizer.zero_grad()  # its memory is free while the next responses are written
    return metrics


def starting_model(config: Config, *, quiet: bool = False) -> Path | str:
    """Where the weights come from: the cached warm start for `tiny`, else folder or name."""
    if config.model == "tiny":
        return warm_start(config.task, config.warmstart, quiet=quiet)
    return config.model


@contextmanager
def stop_requested(*, patient: bool):
    """An event that the first Ctrl-C (or a polite kill) sets; a second one stops at once.

    patient: it does not. A launcher passes Ctrl-C on to processes that have it already from the
    terminal; those that then do not end within 30 seconds it kills.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event  # signals only reach the main thread
        return

    def handler(number, frame):
        if event.is_set() and not patient:
            raise KeyboardInterrupt
        event.set()

    former = {n: signal.signal(n, handler) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handle in former.items():
            signal.signal(number, handle)
