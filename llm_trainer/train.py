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
from collections.abc import Callable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llm_trainer.batch import StepBatch, join
from llm_trainer.checkpoint import (
    STATE,
    check_folder,
    check_state,
    check_unseen,
    load_state,
    locked,
    save_model,
    save_record,
    start_folder,
    write_atomically,
)
from llm_trainer.config import Config, RunError, require
from llm_trainer.console import Console, Sample, pick_samples
from llm_trainer.devices import ONE, Devices, find_devices, like, with_launcher
from llm_trainer.evaluate import evaluate, room_for
from llm_trainer.log import Log, Silent, check_tracker, make_tracker
from llm_trainer.loss_file import loss_name, try_loss
from llm_trainer.models import Policy, load_policy
from llm_trainer.record import Recorder
from llm_trainer.rollout import (
    Answers,
    Sampler,
    check_sampler,
    make_sampler,
    respond,
    worker_seed,
)
from llm_trainer.sharded import make_learner
from llm_trainer.step import Learner, NonFiniteError
from llm_trainer.task import Stream, Task, by_task, load_task
from llm_trainer.tiny import warm_start
from llm_trainer.verdict import beginning, no_signal, verdict
from policy_gradients.diagnostics import sampled_entropy, zero_contrast_share
from policy_gradients.filters import dapo_filter, overlong_penalty

NO_SIGNAL_LIMIT = 20  # steps in a row without anything to learn from


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

    Raises ConfigError before anything is written, RunError (InvariantError, NonFiniteError and
    NoSignalError are some) after that; KeyboardInterrupt for a second Ctrl-C.
    """
    require(
        config.max_staleness == 0,
        f"max_staleness = {config.max_staleness}: train samples and learns in turn, so nothing is "
        "ever old; use actor-learner"
        + (f" --resume {config.output_dir}" if resume else ", or leave it out"),
    )
    config = with_launcher(config)
    check_tracker(config)
    check_sampler(config)
    devices = find_devices(config)
    with locked(config) if devices.first else nullcontext():
        folder = check_folder(config, resume=resume, overwrite=overwrite)
        name = loss_name(loss, config.algorithm)
        state = load_state(folder, name, config.steps) if resume else None
        run = Run(config, loss, devices, folder, quiet=quiet or not devices.first)
        if resume:
            run.restore(state)
        # Everything that could be refused has been; from here on files change.
        return run.go(overwrite=overwrite)


@dataclass
class Progress:
    """How far a run has come; part of its checkpoint."""

    step: int = 0
    idle: int = 0  # steps in a row whose rewards favour nothing
    cpu_seconds: float = 0.0  # of all processes, also those before a --resume
    log_bytes: int = 0
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)  # by which a tracker knows it


class Run:
    """What one process of a run works with. To make one writes nothing."""

    command = "train"  # of the command line

    def __init__(
        self, config: Config, loss: Callable | None, devices: Devices, folder: Path, *, quiet: bool
    ):
        self.config, self.devices, self.folder = config, devices, folder
        self.loss = loss_name(loss, config.algorithm)
        self.loss_code = getattr(loss, "sha256", None)  # of the file that --loss read it from
        self.task = load_task(config.task)
        check_unseen(config.model, self.task)
        self.start = devices.in_turn(lambda: starting_model(config, quiet=quiet))
        policy = load_policy(config, self.start)
        self.learner = self.make_learner(policy, loss)
        if loss:
            try_loss(self.learner.loss.policy, self.loss, config, policy.device)
        self.sampler = make_sampler(policy, config)
        self.room = room_for(config.prompts * config.group)  # no more at once than a step samples
        self.stream = self.task.stream(config.seed)
        seed = worker_seed(config.seed, devices.rank)  # or all would write the same responses
        self.generator = torch.Generator(policy.device).manual_seed(seed)
        self.quiet, self.notes = quiet, []  # notes: what the console says first
        self.done, self.cpu_before = Progress(), 0.0
        if loss is None and config.doubt():
            self.notes.append(f"warning: {config.doubt()}")

    def make_learner(self, policy: Policy, loss: Callable | None) -> Learner:
        return make_learner(policy, self.config, loss, self.devices)

    # ------------------------------------------------------------ from and to files

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on from a checkpoint, or from step 0 if there is none yet. Raises ConfigError."""
        if state is None:
            self.notes.append("no checkpoint yet: this run starts at step 0")
            return
        policy, wrote = self.learner.policy, len(state["generators"])
        require(
            wrote == self.devices.world,
            f"--resume: this run has {wrote} processes; start as many",
        )
        check_state(state, policy.state(), self.learner.state())
        policy.load_state({n: like(state["model"][n], w) for n, w in policy.state().items()})
        self.learner.load_state(state["learner"])
        self.stream.position = state["position"]
        self.generator.set_state(state["generators"][self.devices.rank])
        self.done = Progress(**state["done"])
        if state.get("loss_sha256") != self.loss_code:
            self.notes.append(
                f"warning: the file of {self.loss} has changed since this run's last checkpoint"
            )

    def save(self) -> None:
        """Everything that `restore` needs."""
        self.done.cpu_seconds, self.done.log_bytes = self.cpu_seconds(), self.log.sync()
        everyone, together = self.devices.everyone, self.devices.together
        values = {
            "loss": self.loss,
            "loss_sha256": self.loss_code,
            "model": together(self.learner.policy.state()),
            "learner": together(self.learner.state()),
            "position": self.stream.position,
            "generators": [x.cpu() for x in everyone(self.generator.get_state())],
            "done": asdict(self.done),
        }
        if self.devices.first:
            write_atomically(self.folder / STATE, lambda path: torch.save(values, path))

    def save_finished(self) -> None:
        """The model as ordinary files, by the first process; split weights are put together."""
        policy = self.learner.policy
        if self.devices.shard:
            state = self.devices.together(policy.state())
            if self.devices.first:
                policy = load_policy(self.config, self.start)
                policy.load_state(state)
        if self.devices.first:
            save_model(policy, self.folder)

    def open(self, *, overwrite: bool) -> None:
        """The folder, its log and the console."""
        self.devices.everyone(None)  # none of them is still looking at what is there
        if self.devices.first:
            code = f" (sha256 {self.loss_code})" if self.loss_code else ""
            start_folder(self.folder, self.config, self.loss + code, overwrite=overwrite)
        self.log = (Log if self.devices.first else Silent)(self.folder, size=self.done.log_bytes)
        name = self.loss if self.learner.own_loss else self.config.algorithm
        title = f"{name} on {self.config.model}"
        self.console = Console(title, self.config.steps, self.log.history, quiet=self.quiet)
        for note in self.notes:
            self.console.say(note)
        self.cpu_before = self.done.cpu_seconds - self.cpu_seconds()

    # ------------------------------------------------------------ the loop

    def go(self, *, overwrite: bool) -> Result:
        """Train from where the run stands to its end, to Ctrl-C, or to what stops it."""
        self.open(overwrite=overwrite)
        try:
            if self.devices.first:
                run_id, lines = self.done.run_id, len(self.log.history)
                self.log.tracker = make_tracker(self.config, run_id, lines)
            if not self.log.history:
                self.write({"step": 0, **self.evaluate()})
                self.save()
            with stop_requested(patient=self.devices.world > 1) as self.stop:
                while not self.finished and not self.devices.any(self.stop.is_set()):
                    self.step()
            self.save()
            self.finish()
        except NonFiniteError as error:
            raise NonFiniteError(
                f"step {self.done.step + 1}: {error}. This update was not made; the last good "
                f"state is in {self.folder / STATE}"
            ) from None
        finally:
            self.log.close()
        return Result(self.folder, self.log.history, self.finished)

    @property
    def finished(self) -> bool:
        return self.done.step >= self.config.steps

    def step(self) -> None:
        """Sample, learn, evaluate and save if it is time to, log."""
        config, learner, started = self.config, self.learner, time.monotonic()
        step = self.done.step + 1
        recorder = Recorder(learner, step, self.loss) if step in config.record_steps else None
        batch, metrics, samples = self.draw(recorder)
        updated = self.learn(batch, recorder)
        if recorder and self.devices.first:
            save_record(recorder.record(), self.folder)
        metrics = {"step": step, **metrics, **(updated or {"groups/trained": 0})}
        self.check_signal(batch, metrics)
        seconds = time.monotonic() - started
        if step % config.eval_every == 0 or step == config.steps:
            metrics |= self.evaluate()
        metrics |= {
            "time/step_seconds": seconds,
            "time/tokens_per_second": metrics["tokens"] / seconds,
            "time/cpu_seconds": self.cpu_seconds(),
        }
        self.write(metrics, samples)
        self.done.step = step
        if step % config.save_every == 0:
            self.save()

    def draw(self, recorder: Recorder | None) -> tuple[StepBatch | None, dict, list[Sample]]:
        """What the next step trains on, and what `collect` says of it."""
        self.sampler.sync()
        return collect(self.sampler, self.task, self.stream, self.learner, self.generator, recorder)

    def learn(self, batch: StepBatch | None, recorder: Recorder | None) -> dict | None:
        """The updates of this step."""
        return learn(self.learner, batch, recorder)

    def check_signal(self, batch: StepBatch | None, metrics: dict[str, Any]) -> None:
        """A few steps without contrast are normal near the end; many at low accuracy are not."""
        favours = batch is not None and self.learner.has_contrast(batch)
        self.done.idle = 0 if favours else self.done.idle + 1
        if self.done.idle >= NO_SIGNAL_LIMIT and metrics["reward/exact"] < 0.5:
            begun = beginning(self.log.history)
            raise NoSignalError(no_signal(self.done.idle, metrics, self.config, begun=begun))

    def evaluate(self) -> dict[str, float]:
        """Accuracy on held-out items, of each task too if there are several."""
        with self.learner.whole():
            result = evaluate(
                self.learner.policy,
                self.task,
                self.task.held_out[: self.config.eval_words],
                max_new_tokens=self.config.max_new_tokens,
                room=self.room,
                devices=self.devices,
            )
        parts = {f"eval/exact/{name}": exact for name, exact in result.by_task.items()}
        total = {"eval/exact": result.exact, "eval/correctness": result.correctness}
        return total | (parts if len(parts) > 1 else {})

    def write(self, metrics: dict[str, Any], samples: Sequence[Sample] = ()) -> None:
        """Into the log and onto the console."""
        self.log.write(metrics)
        self.console.step(metrics, samples)

    def finish(self) -> None:
        """The model, if this is the end; what has become of it; leave the other processes."""
        if self.finished:
            self.save_finished()
            own = self.learner.own_loss is not None
            self.console.say(verdict(self.log.history, self.config, own_loss=own))
            self.console.say(f"model, tokenizer, log and checkpoint are in {self.folder}")
        else:
            step, folder = self.done.step, self.folder
            again = f"{self.command} --resume {folder}"
            self.console.say(f"stopped after step {step}; go on with {again}")
        self.devices.end()

    def cpu_seconds(self) -> float:
        """Of all processes together, also of those that this run goes on from."""
        return self.cpu_before + sum(self.devices.everyone(time.process_time()))


# ------------------------------------------------------------------ one step


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
        items = stream.take(config.prompts)
        with learner.whole():
            batch, numbers, samples = sample_and_score(
                sampler, task, items, config, generator, learner.devices
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
    items: list,
    config: Config,
    generator: torch.Generator,
    devices: Devices = ONE,
) -> tuple[StepBatch, dict[str, float], list[Sample]]:
    """`group` responses to each item, scored; what they say as numbers; a few.

    Each process writes those to its share of the items, and all get the whole batch.
    """
    policy, entries = sampler.policy, [task.entry(item) for item in items]
    own = devices.share(entries)
    answers = respond(
        sampler,
        task,
        own,
        group=config.group,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        generator=generator,
    )
    part = rewarded(answers, config)
    samples = pick_samples([task.label(e) for e in own], answers.texts, part.rewards.tolist())
    batch = join(devices.everyone(part), policy.pad_id)
    metrics = sample_metrics(batch, policy.end_id)
    if len(task.tasks) > 1:
        right = by_task(entries, batch.correct.mean(1).tolist())
        metrics |= {f"reward/exact/{name}": share for name, share in right.items()}
    return batch, metrics, samples


def rewarded(answers: Answers, config: Config) -> StepBatch:
    """The answers with their rewards: the weighted sum of the parts, and DAPO's penalty."""
    responses, lengths = answers.responses, answers.responses.mask.sum(1)  # (batch,)

    def grouped(values: list[float]) -> Tensor:  # (prompts, group)
        return torch.tensor(values, device=lengths.device).view(-1, config.group)

    parts = {
        "correctness": grouped([score.correctness for score in answers.scores]),
        "format": grouped([score.format for score in answers.scores]),
        "length": grouped([1 - n / config.max_new_tokens for n in lengths.tolist()]),
    }
    rewards = sum(getattr(config, f"reward_{name}") * part for name, part in parts.items())
    if config.overlong == "penalty":
        parts["overlong"] = overlong_penalty(
            lengths.view_as(rewards),
            max_length=config.max_new_tokens,
            cache=config.overlong_cache,
        )
        rewards = rewards + parts["overlong"]
    return StepBatch(
        prompts=answers.prompts,
        rewards=rewards,
        correct=grouped([score.exact for score in answers.scores]),
        tokens=responses.tokens,
        mask=responses.mask,
        logp_sampler=responses.logp,
        parts=parts,
    )


def sample_metrics(batch: StepBatch, end_id: int) -> dict[str, float]:
    """Numbers of everything that was sampled."""
    return {
        "reward/mean": batch.rewards.mean().item(),
        **{f"reward/{name}": part.mean().item() for name, part in batch.parts.items()},
        "reward/exact": batch.correct.mean().item(),
        "groups/contrast": 1 - zero_contrast_share(batch.rewards),
        "entropy": sampled_entropy(batch.logp_sampler, batch.mask),
        "length/mean": batch.mask.sum(1).float().mean().item(),
        "length/truncated": 1 - (batch.tokens == end_id).any(1).float().mean().item(),
        "tokens": int(batch.mask.sum()),
    }


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
