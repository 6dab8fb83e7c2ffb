"""Two processes: an actor writes responses while a learner learns from earlier ones.

    python -m llm_trainer actor-learner --set max_staleness=1
    train_in_two_processes(load("llm_trainer/configs/actor_learner_tiny.yaml"), max_staleness=1)

`train` samples, then learns, then samples: each half waits for the other. Here each half is a
process with a policy of its own. The learner is the process that calls; it is a `train.Run` whose
batches come from elsewhere, and it alone has optimiser, critic, log, checkpoints and evaluation.
The actor is started by it, and knows how to sample and to score.

    actor                                           learner
    wait for version k − 1 − max_staleness
    take the newest weights, of version v
    collect batch k (train.collect)
    send it with v, go on to batch k + 1   ──▶      inbox: finished batches, in order
                                                    step k: learn from batch k (train.learn)
    weights in shared memory, "version k"  ◀──      publish, then evaluate and log

Version k is the policy after step k. Step k changes version k − 1, so batch k is k − 1 − v steps
old, and the actor's wait bounds this by max_staleness, whoever is faster (the rule of AReaL, Fu et
al. 2025, arXiv 2505.24298, section 5.1, for whole batches). No more than max_staleness + 1 batches
are on the way at once: the wait also bounds the queue. With max_staleness = 0 the two take turns,
and on a CPU the numbers are those of `train`, to the last bit.

Older samples are of another policy. Two cases, both the trainer's own fields: `old_logprobs:
sampler` puts the actor's log-probs below the ratio, so that the row's clip sees the difference;
`old_logprobs: recompute` with `importance: token | sequence` computes them anew with the learner's
weights and weighs by π_learner/π_actor, cut at `importance_cap` (Lecture 14).

What is checked: at staleness 0 "sampler and learner agree", as in `train`. Above, they must differ;
there the learner scores the first prompt's responses again with the weights of the version that the
batch names, and these must agree. A wrong version number, weights read half-way, or another
temperature stop the run.

Left out: GPUs, several actors or learners, records of steps, weights taken in the middle of a
response, batches in another order than they were started in.
"""

import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import Tensor

from llm_trainer.batch import StepBatch
from llm_trainer.checkpoint import check_folder, load_state, locked
from llm_trainer.config import Config, ConfigError, RunError, require, with_values
from llm_trainer.console import Sample
from llm_trainer.devices import ONE, find_devices
from llm_trainer.invariants import Piece, hold
from llm_trainer.log import check_tracker
from llm_trainer.loss_file import loss_name
from llm_trainer.models import Policy, load_policy
from llm_trainer.record import Recorder
from llm_trainer.rollout import make_sampler
from llm_trainer.step import Learner
from llm_trainer.task import load_task
from llm_trainer.train import Result, Run, collect

QUANTILES = {"p05": 0.05, "p50": 0.5, "p95": 0.95}
READY = "ready"
GLANCE = 1.0  # seconds from one look at what is waited for to the next


def train_in_two_processes(
    config: Config,
    *,
    max_staleness: int = 1,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = True,
) -> Result:
    """Train as `config` says, sampling in a process of its own, and return the log.

    max_staleness takes the place of the field of that name. A resumed run starts the actor behind
    the last batch that was trained on; what was on the way is drawn anew, so only with
    max_staleness = 0 is it the run that was not stopped.

    In a script call it under `if __name__ == "__main__":`, as the new process imports the script.

    Raises ConfigError before anything is written; RunError after that, also where the actor died;
    KeyboardInterrupt for a second Ctrl-C. No process is left behind.
    """
    config = with_values(config, max_staleness=max_staleness)
    check(config)
    with locked(config):
        folder = check_folder(config, resume=resume, overwrite=overwrite)
        name = loss_name(None, config.algorithm)
        state = load_state(folder, name, config.steps) if resume else None
        run = TwoProcessRun(config, None, ONE, folder, quiet=quiet)
        if resume:
            run.restore(state)
        return run.go(overwrite=overwrite)


def check(config: Config) -> None:
    """ConfigError for what two processes cannot do."""
    check_tracker(config)
    require(
        find_devices(config).world == 1,
        "actor-learner starts its second process itself; call it without a launcher",
    )
    require(config.sampler == "own", f"sampler = {config.sampler!r}: an actor has only own")
    require(
        config.device == "cpu" or not torch.cuda.is_available(),
        f"device = {config.device!r}: two processes were only built for the CPU; set it to cpu",
    )
    require(
        not config.record_steps,
        f"record_steps = {config.record_steps}: a record needs samples that the actor does not "
        "send; record a step of train",
    )


# ------------------------------------------------------------------ what passes between the two


class Weights:
    """The newest weights and their version, in memory that both processes see."""

    def __init__(self, policy: Policy, lock: Any):
        self.state = {n: w.detach().clone().share_memory_() for n, w in policy.state().items()}
        self.version = torch.zeros((), dtype=torch.long).share_memory_()
        self.lock = lock  # or one would read what the other has half written

    def write(self, policy: Policy, version: int) -> None:
        """Within the lock."""
        for name, weight in policy.state().items():
            self.state[name].copy_(weight)
        self.version.fill_(version)

    def read(self, policy: Policy) -> int:
        """The policy takes them over; their version."""
        with self.lock:
            policy.load_state(self.state)
            return int(self.version)


@dataclass(frozen=True)
class Delivery:
    """A finished batch, whose it is, and where the actor stood when it was done."""

    version: int  # of the weights that wrote it
    batch: StepBatch | None  # None: no group has contrast (dynamic sampling)
    metrics: dict[str, float]  # of everything sampled
    samples: list[Sample]
    position: int  # in the stream of questions
    generator: Tensor  # state of the sampler's random numbers
    waited: float  # seconds until its turn
    worked: float  # seconds of taking the weights, sampling and scoring
    cpu_seconds: float  # the same in CPU time


@dataclass(frozen=True)
class Failure:
    """Why the actor cannot go on."""

    reason: str


# ------------------------------------------------------------------ the actor


class Actor:
    """Writes and scores batches. `collect` asks of it what it would ask of a `Learner`."""

    devices = ONE

    def __init__(self, config: Config, start: str | Path, position: int, generator: Tensor):
        self.config, self.row = config, config.row()
        self.task = load_task(config.task)
        self.policy = load_policy(config, start)
        self.sampler = make_sampler(self.policy, config)
        self.stream = self.task.stream(config.seed)
        self.stream.position = position
        self.generator = torch.Generator(self.policy.device)
        self.generator.set_state(generator)

    def whole(self) -> Any:
        return nullcontext()

    def deliver(self, weights: Weights, waited: float) -> Delivery:
        """One batch, by the newest policy there is."""
        started, cpu = time.monotonic(), time.process_time()
        version = weights.read(self.policy)
        batch, metrics, samples = collect(
            self.sampler, self.task, self.stream, self, self.generator
        )
        return Delivery(
            version,
            batch,
            metrics,
            samples,
            self.stream.position,
            self.generator.get_state(),
            waited,
            time.monotonic() - started,
            time.process_time() - cpu,
        )


def act(
    config: Config,
    start: str | Path,
    first: int,
    position: int,
    generator: Tensor,
    weights: Weights,
    versions: Connection,
    batches: Connection,
) -> None:
    """The actor's process: batches `first` to `config.steps`, then it ends.

    It also ends when the learner does: then nobody writes to `versions` or reads from `batches`.
    """

    def send(thing: Any) -> None:
        batches.send_bytes(pickle.dumps(thing))  # a plain copy: it stays if the actor dies

    try:
        actor = Actor(config, start, position, generator)
        send(READY)
        known = versions.recv()
        for step in range(first, config.steps + 1):
            asked = time.monotonic()
            while known < step - 1 - config.max_staleness or versions.poll():
                known = versions.recv()
            send(actor.deliver(weights, time.monotonic() - asked))
    except (EOFError, ConnectionError):
        pass  # the learner has gone
    except (RunError, ConfigError) as error:
        send(Failure(str(error)))
    except Exception:
        send(Failure(traceback.format_exc()))


class GivenUpError(Exception):
    """Ctrl-C came while the learner waited for the actor."""


class ActorProcess:
    """The learner's end: a process, the weights it reads, the batches that have come from it."""

    def __init__(self, run: "TwoProcessRun"):
        self.run = run
        context = mp.get_context("spawn")  # a fork would copy torch's threads in any state
        self.weights = Weights(run.learner.policy, context.Lock())
        to_read, self.versions = context.Pipe(duplex=False)
        self.batches, to_write = context.Pipe(duplex=False)
        self.process = context.Process(
            target=act,
            args=(
                run.config,
                run.start,
                run.done.step + 1,
                run.stream.position,
                run.generator.get_state(),
                self.weights,
                to_read,
                to_write,
            ),
            name="actor",
            daemon=True,
        )
        self.ready = self.stopped = False
        with signals_blocked():
            self.process.start()
        to_read.close()  # only the actor has them now: when it ends, so do the pipes
        to_write.close()
        self.inbox: SimpleQueue = SimpleQueue()
        self.listener = Thread(target=self.listen, daemon=True)
        self.listener.start()

    def listen(self) -> None:
        """Take in what arrives at once, so that the actor never waits for a reader."""
        try:
            while True:
                self.inbox.put(self.batches.recv_bytes())
        except (EOFError, OSError):
            self.inbox.put(None)

    def receive(self) -> Any:
        """What the actor sent next.

        Raises RunError if it failed or died, GivenUpError after Ctrl-C.
        """
        while True:
            try:
                message = self.inbox.get(timeout=GLANCE)
                break
            except Empty:
                self.wait_on()
        if message is None:
            self.process.join()
            raise RunError(self.obituary())
        found = pickle.loads(message)
        if isinstance(found, Failure):
            raise RunError(f"the actor stopped: {found.reason}")
        return found

    def wait_on(self) -> None:
        """Say so if somebody has stopped the actor. Raises GivenUpError after Ctrl-C."""
        if self.run.stop.is_set():
            raise GivenUpError
        pid, before = self.process.pid, self.stopped
        self.stopped = is_stopped(pid)
        if self.stopped and not before:
            self.run.console.say(
                f"the actor (process {pid}) was stopped from outside: `kill -CONT {pid}` lets it "
                "go on, Ctrl-C saves and ends the run"
            )

    def wait_until_ready(self) -> None:
        """It has loaded its policy. Raises RunError if it died before."""
        self.receive()
        self.ready = True

    def obituary(self) -> str:
        code = self.process.exitcode
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f"the actor process ended ({how}), and the learner with it. " + (
            "The last checkpoint is intact: go on with --resume"
            if self.ready
            else "It had not begun: a script has to call train_in_two_processes under "
            '`if __name__ == "__main__":`, or it would call it again when the actor imports it'
        )

    def publish(self, policy: Policy, version: int) -> None:
        """The actor may read these weights from now on."""
        while not self.weights.lock.acquire(timeout=GLANCE):
            if not self.process.is_alive():  # it died while reading; `receive` will say so
                return
            try:
                self.wait_on()
            except GivenUpError:  # nobody will read them
                return
        try:
            self.weights.write(policy, version)
        finally:
            self.weights.lock.release()
        with suppress(ConnectionError):  # it has ended: after its last batch, or `receive` says why
            self.versions.send(version)

    def end(self) -> None:
        """It holds nothing that anybody would miss."""
        self.process.kill()
        self.process.join()
        self.listener.join()
        self.versions.close()
        self.batches.close()


def is_stopped(pid: int) -> bool:
    """Whether this child stands still (SIGSTOP), where the system tells; it may go on one day."""
    if not hasattr(os, "waitid"):  # Windows, and macOS before Python 3.13
        return False
    with suppress(ChildProcessError):  # it has ended
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    return False


@contextmanager
def signals_blocked() -> Iterator[None]:
    """A process started within never sees Ctrl-C (a terminal sends it to all) or a polite kill.

    The learner decides when it ends. What arrives here meanwhile is delivered afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


# ------------------------------------------------------------------ the learner


class LateLearner(Learner):
    """A learner that may be some steps ahead of the policy that wrote its samples."""

    staleness = 0  # of the batch that is being learned from

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.past: dict[int, dict[str, Tensor]] = {}  # version → weights

    def remember(self, version: int) -> None:
        """Keep these weights for as long as a batch may name them."""
        self.past[version] = {n: w.detach().clone() for n, w in self.policy.state().items()}
        self.past.pop(version - self.config.max_staleness - 1, None)

    def check_version(self, batch: StepBatch, version: int) -> dict[str, float]:
        """The invariant "sampler and learner agree", with the weights that the batch names."""
        now = {n: w.detach().clone() for n, w in self.policy.state().items()}
        first = batch.take(batch.indices[:1])
        self.policy.load_state(self.past[version])
        logp = self.frozen_log_probs(self.policy, first)
        self.policy.load_state(now)
        gap = (logp - first.logp_sampler)[first.mask].abs().mean().item()
        bound = self.bounds["agreement"]
        hold(
            gap <= bound,
            "sampler and learner agree",
            f"with the weights of version {version}, which the batch names, they differ by "
            f"{gap:.2g} nats per token, {bound:g} is allowed. It was written with other weights, "
            "or is scored differently",
        )
        return {"check/sampler_gap": gap}

    def compare_with_sampler(self, pieces: list[Piece]) -> dict[str, float]:
        """Quantiles of π_learner/π_actor before the first update, over the tokens trained on.

        At staleness 0 all are 1, and "sampler and learner agree" is checked as in `train`.
        """
        found = super().compare_with_sampler(pieces) if self.staleness == 0 else {}
        gaps = [(p.logp - p.batch.logp_sampler)[p.batch.mask] for p in pieces]
        ratios = torch.cat(gaps).exp()
        quantiles = torch.quantile(ratios, torch.tensor(list(QUANTILES.values())))
        return found | {
            f"async/weight_{name}": value
            for name, value in zip(QUANTILES, quantiles.tolist(), strict=True)
        }


class TwoProcessRun(Run):
    """A run whose batches are written by an actor. One `go` for each."""

    command = "actor-learner"
    actor: ActorProcess
    actor_cpu = 0.0  # seconds of work, without its start

    def make_learner(self, policy: Policy, loss: Callable | None) -> Learner:
        return LateLearner(policy, self.config, loss)

    def go(self, *, overwrite: bool) -> Result:
        """As `Run.go`, with the actor beside it: it gets ready while version 0 is evaluated."""
        self.actor, self.numbers = ActorProcess(self), {}
        try:
            return super().go(overwrite=overwrite)
        finally:
            self.actor.end()

    def step(self) -> None:
        """As `Run.step`; before the first one the actor has to be there.

        Ctrl-C before its batch has come: the step is not begun, and nothing has changed.
        """
        with suppress(GivenUpError):
            if not self.learner.past:
                self.actor.wait_until_ready()  # how long its start takes is in no number
                self.publish(self.done.step)
            super().step()

    def draw(self, recorder: Recorder | None) -> tuple[StepBatch | None, dict, list[Sample]]:
        """The next batch that has come, or will come, from the actor."""
        started = time.monotonic()
        found: Delivery = self.actor.receive()
        waited = time.monotonic() - started
        self.stream.position = found.position
        self.generator.set_state(found.generator)
        self.actor_cpu += found.cpu_seconds
        staleness, bound = self.done.step - found.version, self.config.max_staleness
        hold(
            0 <= staleness <= bound,
            "no batch is older than max_staleness",
            f"version {found.version} wrote this one, and step {self.done.step + 1} changes "
            f"version {self.done.step}; {bound} steps are allowed",
        )
        self.numbers = {
            "async/staleness": staleness,
            "async/wait_learner": waited,
            "async/wait_actor": found.waited,
            "async/busy_actor": found.worked / (found.worked + found.waited),
            "async/cpu_actor": found.cpu_seconds,
        }
        self.learner.staleness = staleness
        if staleness > 0 and found.batch is not None:
            self.numbers |= self.learner.check_version(found.batch, found.version)
        return found.batch, found.metrics, found.samples

    def learn(self, batch: StepBatch | None, recorder: Recorder | None) -> dict | None:
        """The updates of this step; the actor gets the weights before anything else is done."""
        started = time.process_time()
        found = super().learn(batch, recorder)
        self.publish(self.done.step + 1)
        self.numbers["async/cpu_learner"] = time.process_time() - started
        return found

    def publish(self, version: int) -> None:
        self.learner.remember(version)
        self.actor.publish(self.learner.policy, version)

    def write(self, metrics: dict[str, Any], samples: Any = ()) -> None:
        """With the numbers of the two processes, in lines of steps."""
        if "time/step_seconds" in metrics:
            share = 1 - self.numbers["async/wait_learner"] / metrics["time/step_seconds"]
            metrics |= {**self.numbers, "async/busy_learner": share}
        super().write(metrics, samples)

    def cpu_seconds(self) -> float:
        """Of both processes, the actor's start apart."""
        return super().cpu_seconds() + self.actor_cpu
