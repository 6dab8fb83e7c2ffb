"""Samplers, a queue and a learner in simulated time: who waits for whom, and how stale it gets.

    trace = simulate(Setup(bound=0))            # synchronous: generate, train, load weights, again
    trace = simulate(Setup(bound=1))            # one step off
    trace = simulate(Setup(bound=4))            # asynchronous, at most four updates stale
    trace.actor_busy, trace.learner_busy, trace.tokens_per_second, trace.staleness

One rule covers the three loops. Groups of answers are numbered as they start; `prompts` of them
make an update; group N may start once N // prompts <= version + bound, where version counts the
updates whose weights have been published. The learner takes groups in the order of their numbers,
so none is ever more than `bound` updates stale, and nothing is thrown away. The alternatives are
knobs: `drop` (start at once, throw away what is too old), `partial` (new weights in mid-answer),
`static` (batches that wait for their longest answer), `colocated` (the same cards do both).

Time is a model, not a measurement: a decoding step of an actor with n answers takes step_fixed +
step_per_slot · n seconds and writes a token of each. Tokens flow evenly between events, so an
answer that ends or starts in mid-step changes the pace at once. Cards work in parallel without
loss. The default seconds are of the size of a small model's on one card; ratios matter, not they.

Left out: networks between machines, failures, attention's growing cost, the reward's time.
Closed forms of the parts: `serving`. What staleness does to J: `stale_learning`. Lecture 15.
"""

import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from toy_models.serving import Lengths


@dataclass(frozen=True)
class Setup:
    """One way to run the loop. Seconds are simulated; knobs that make no sense together raise.

    actors, learners : cards that sample, cards that train; colocated: `actors` cards do both
    slots            : answers an actor writes at once
    static           : an actor fills its slots, waits for the longest answer, fills them again;
                       finished answers are computed along. False: a free slot is filled at once
    step_fixed, step_per_slot : seconds of a decoding step, and per answer in it
    prefill          : seconds per prompt token read; the actor writes nothing meanwhile
    update           : seconds per answer token trained, on one card
    sync             : seconds until new weights are loaded (colocated: to switch there and back)
    prompts, group   : groups in an update, answers in a group (all on one actor)
    prompt_tokens    : of each prompt     share_prefix : read once per group and set of weights
    lengths          : of the answers
    bound            : most updates an answer may be stale; None = any (needs `queue`)
    drop             : keep the bound by throwing away instead of by waiting (needs `queue`)
    queue            : finished groups waiting at which actors start nothing new; None = any number
    partial          : load new weights at once and go on with half-written answers (their cache is
                       read again); False: finish them first
    """

    actors: int = 2
    learners: int = 2
    colocated: bool = False
    slots: int = 32
    static: bool = False
    step_fixed: float = 0.02
    step_per_slot: float = 0.0005
    prefill: float = 0.00005
    update: float = 0.001
    sync: float = 2.0
    prompts: int = 8
    group: int = 8
    prompt_tokens: int = 200
    share_prefix: bool = True
    lengths: Lengths = field(default_factory=Lengths)
    bound: int | None = 0
    drop: bool = False
    queue: int | None = None
    partial: bool = False

    def __post_init__(self) -> None:
        for name in ("actors", "learners", "slots", "prompts", "group"):
            _check(name, getattr(self, name), whole=True, least=1)
        for name in ("step_fixed", "step_per_slot", "prefill", "update", "sync", "prompt_tokens"):
            _check(name, getattr(self, name), whole=name == "prompt_tokens", least=0)
        if self.step_fixed + self.step_per_slot == 0 or self.update == 0:
            raise ValueError("a decoding step and an update must take time: step_fixed, update > 0")
        if self.bound is not None:
            _check("bound", self.bound, whole=True, least=0)
        if self.queue is not None:
            _check("queue", self.queue, whole=True, least=self.prompts)
        if self.queue is None and (self.drop or self.bound is None):
            raise ValueError(
                "with drop, or without a bound, nothing stops the actors from running ahead: set "
                f"queue, at least prompts={self.prompts}"
            )
        if self.drop and self.bound is None:
            raise ValueError("drop throws away what is staler than bound: set bound")
        if self.colocated and (self.bound != 0 or self.drop):
            raise ValueError("cards that do both must alternate: colocated needs bound=0, no drop")

    @property
    def cards(self) -> int:
        return self.actors if self.colocated else self.actors + self.learners

    @property
    def generation_rate(self) -> float:
        """Tokens per second that all actors write with every slot busy, prompts not counted."""
        return self.actors * self.slots / (self.step_fixed + self.step_per_slot * self.slots)

    @property
    def training_rate(self) -> float:
        """Answer tokens per second that the learner can train."""
        return (self.actors if self.colocated else self.learners) / self.update


def _check(name: str, value: float, *, whole: bool, least: int) -> None:
    kind = int if whole else (int, float)
    fine = isinstance(value, kind) and not isinstance(value, bool)
    if not (fine and value >= least and math.isfinite(value)):
        what = "a whole number" if whole else "a finite number"
        raise ValueError(f"Setup.{name} must be {what} of at least {least}, got {value!r}")


# --- what happened ------------------------------------------------------------------------------


class Span(NamedTuple):
    """A bar of a Gantt picture: lane "actor 0".. or "learner", kind generate, load or update."""

    lane: str
    kind: str
    start: float  # seconds
    end: float
    version: int  # of the weights: in use, loaded, or trained (the update starts from them)


@dataclass
class Answer:
    """One answer in its slot. `end` is nan where the run ended first."""

    group: int
    actor: int
    length: int  # tokens
    slot: int = -1
    start: float = math.nan  # seconds
    end: float = math.nan
    pieces: dict[int, float] = field(default_factory=dict)  # version of the weights -> tokens


@dataclass
class Group:
    """The answers to one prompt, which are trained together."""

    index: int  # in the order of starting
    answers: list[Answer]
    ready: float = math.nan  # seconds: the last answer ended
    used: float = math.nan  # seconds: its update started, or it was thrown away
    trained_at: int | None = None  # version of the weights it was trained on; None: not trained

    @property
    def version(self) -> int:
        """The oldest weights that wrote any of it."""
        return min(min(answer.pieces) for answer in self.answers)

    @property
    def start(self) -> float:
        return min(answer.start for answer in self.answers)

    @property
    def tokens(self) -> int:
        return sum(answer.length for answer in self.answers)

    @property
    def staleness(self) -> int | None:
        return None if self.trained_at is None else self.trained_at - self.version


@dataclass(frozen=True)
class Trace:
    """Everything a run did, and rates between the ends of update `warmup` and of the last one."""

    setup: Setup
    spans: tuple[Span, ...]
    groups: tuple[Group, ...]  # in the order of starting, unfinished ones included
    batches: tuple[tuple[Group, ...], ...]  # one per update
    updates: tuple[Span, ...]
    dropped: tuple[Group, ...]
    prefilled: int  # prompt tokens read, all in all
    reread: int  # prompt and answer tokens read again for weights that came in mid-answer
    warmup: int

    @property
    def begin(self) -> float:
        return self.updates[self.warmup - 1].end if self.warmup else 0.0

    @property
    def end(self) -> float:
        return self.updates[-1].end

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    def _busy(self, kind: str) -> float:
        inside = (min(s.end, self.end) - max(s.start, self.begin) for s in self._of(kind))
        return sum(max(0.0, x) for x in inside) / self.seconds

    def _of(self, kind: str):
        return (span for span in self.spans if span.kind == kind)

    @property
    def actor_busy(self) -> float:
        """Share of the actors' time in which they write at least one answer."""
        return self._busy("generate") / self.setup.actors

    @property
    def learner_busy(self) -> float:
        """Share of the time in which the learner trains."""
        return self._busy("update") / (self.setup.actors if self.setup.colocated else 1)

    @property
    def card_busy(self) -> float:
        """Share of all cards' time in which they generate or train."""
        train = self.setup.actors if self.setup.colocated else self.setup.learners
        busy = self.actor_busy * self.setup.actors + self.learner_busy * train
        return busy / self.setup.cards

    @property
    def slot_use(self) -> float:
        """Share of the actors' slots that hold an unfinished answer, over time."""
        held = 0.0
        for answer in (a for g in self.groups for a in g.answers if not math.isnan(a.start)):
            end = self.end if math.isnan(answer.end) else answer.end
            held += max(0.0, min(end, self.end) - max(answer.start, self.begin))
        return held / (self.seconds * self.setup.actors * self.setup.slots)

    @property
    def trained(self) -> list[Group]:
        """Groups trained after the warm-up."""
        return [group for batch in self.batches[self.warmup :] for group in batch]

    @property
    def tokens_per_second(self) -> float:
        """Answer tokens trained per second."""
        return sum(group.tokens for group in self.trained) / self.seconds

    @property
    def seconds_per_update(self) -> float:
        return self.seconds / (len(self.updates) - self.warmup)

    @property
    def staleness(self) -> dict[int, float]:
        """{updates: share of the trained groups}; of a group by the oldest weights in it."""
        counts = Counter(group.staleness for group in self.trained)
        return {s: counts[s] / counts.total() for s in sorted(counts)}

    @property
    def mean_staleness(self) -> float:
        return sum(s * share for s, share in self.staleness.items())

    @property
    def token_staleness(self) -> dict[int, float]:
        """{updates: share of the trained tokens}; differs from `staleness` for partial answers."""
        counts: Counter = Counter()
        for group in self.trained:
            for answer in group.answers:
                for version, tokens in answer.pieces.items():
                    counts[group.trained_at - version] += tokens
        return {s: counts[s] / counts.total() for s in sorted(counts)}

    @property
    def dropped_share(self) -> float:
        """Share of the finished and used tokens that were thrown away, whole run."""
        lost = sum(group.tokens for group in self.dropped)
        kept = sum(group.tokens for batch in self.batches for group in batch)
        return lost / (lost + kept)


# --- the simulation -----------------------------------------------------------------------------


class _Actor:
    """Slots, what waits for one, and which weights are in use."""

    def __init__(self, name: int, setup: Setup):
        self.name, self.setup = name, setup
        self.running: dict[int, Answer] = {}  # slot -> answer
        self.left: dict[int, float] = {}  # slot -> tokens still to write
        self.waiting: deque[Answer] = deque()
        self.version, self.pending = 0, None  # weights in use, weights to load
        self.load_until = 0.0
        self.stall = 0.0  # seconds of reading before the next token
        self.wave = 0  # static: answers that are computed until all of them have ended
        self.cached: set[int] = set()  # groups whose prompt is in the cache
        self.busy_since = 0.0

    @property
    def pace(self) -> float:
        """Seconds per step."""
        busy = self.wave if self.setup.static else len(self.running)
        return self.setup.step_fixed + self.setup.step_per_slot * busy

    def is_open(self, now: float) -> bool:
        """Whether it may start an answer now."""
        if self.pending is not None or now < self.load_until:
            return False
        return len(self.running) < self.setup.slots and (not self.setup.static or self.wave == 0)

    @property
    def room(self) -> int:
        return self.setup.slots - len(self.running) - len(self.waiting)

    def next_event(self, now: float) -> float:
        if now < self.load_until:
            return self.load_until
        return now + self.stall + min(self.left.values()) * self.pace if self.left else math.inf

    def advance(self, now: float, then: float) -> list[Answer]:
        """Write until `then`; the answers that end there. Nothing moves while weights load."""
        dt = max(0.0, then - max(now, self.load_until))
        reading = min(self.stall, dt)
        self.stall -= reading
        tokens = (dt - reading) / self.pace if self.left else 0.0
        for slot, answer in self.running.items():
            self.left[slot] -= tokens
            answer.pieces[self.version] = answer.pieces.get(self.version, 0.0) + tokens
        ended = [slot for slot, left in self.left.items() if left < 1e-6]
        for slot in ended:
            del self.left[slot]
        return [self.running.pop(slot) for slot in ended]


class _Simulation:
    def __init__(self, setup: Setup, seed: int):
        self.setup, self.now, self.version = setup, 0.0, 0
        self.dice = torch.Generator().manual_seed(seed)
        self.actors = [_Actor(i, setup) for i in range(setup.actors)]
        self.groups: list[Group] = []
        self.ready: list[Group] = []  # finished, neither trained nor thrown away; oldest first
        self.spans: list[Span] = []
        self.updates: list[Span] = []
        self.batches: list[tuple[Group, ...]] = []
        self.dropped: list[Group] = []
        self.prefilled = self.reread = 0

    def run(self, updates: int, warmup: int) -> Trace:
        while True:
            self.start_answers()
            self.start_update(updates)
            learner = self.updates[-1].end if self.training else math.inf
            then = min(learner, *(actor.next_event(self.now) for actor in self.actors))
            if math.isinf(then):
                raise RuntimeError("simulation stands still; this is an error of actor_learner.py")
            before, self.now = self.now, then
            for actor in self.actors:
                self.end_answers(actor, actor.advance(before, then))
            if then == learner:
                if len(self.updates) == updates:
                    break
                self.publish()
        for actor in self.actors:
            self.close(actor)
        return Trace(
            self.setup,
            tuple(self.spans),
            tuple(self.groups),
            tuple(self.batches),
            tuple(self.updates),
            tuple(self.dropped),
            self.prefilled,
            self.reread,
            warmup,
        )

    # actors

    def start_answers(self) -> None:
        setup, filled = self.setup, set()
        for actor in self.actors:
            self.fill(actor, filled)
        while self.may_start(len(self.groups)):
            able = [a for a in self.actors if a.room > 0 and a.is_open(self.now)]
            if not able:
                break
            actor = max(able, key=lambda a: (a.room, -a.name))
            lengths = setup.lengths.sample(setup.group, seed=self.dice)
            answers = [Answer(len(self.groups), actor.name, length) for length in lengths]
            self.groups.append(Group(len(self.groups), answers))
            actor.waiting.extend(answers)
            self.fill(actor, filled)
        for actor in filled:
            actor.wave = len(actor.running)

    def may_start(self, index: int) -> bool:
        setup = self.setup
        if setup.queue is not None and len(self.ready) >= setup.queue:
            return False
        waits = setup.bound is not None and not setup.drop
        return not waits or index // setup.prompts <= self.version + setup.bound

    def fill(self, actor: _Actor, filled: set) -> None:
        setup = self.setup
        while actor.waiting and actor.is_open(self.now):
            if not actor.running:
                actor.busy_since = self.now
            answer = actor.waiting.popleft()
            answer.slot = min(set(range(setup.slots)) - set(actor.running))
            answer.start, answer.pieces = self.now, {actor.version: 0.0}
            actor.running[answer.slot], actor.left[answer.slot] = answer, float(answer.length)
            if not (setup.share_prefix and answer.group in actor.cached):
                actor.stall += setup.prefill * setup.prompt_tokens
                self.prefilled += setup.prompt_tokens
            actor.cached.add(answer.group)
            filled.add(actor)

    def end_answers(self, actor: _Actor, ended: list[Answer]) -> None:
        for answer in ended:
            answer.end = self.now
            group = self.groups[answer.group]
            if not any(math.isnan(a.end) for a in group.answers):
                group.ready = self.now
                self.ready.append(group)
                actor.cached.discard(group.index)
        if ended and not actor.running:
            self.close(actor)
            actor.wave = 0
            if actor.pending is not None:
                self.load(actor)

    def close(self, actor: _Actor) -> None:
        """Write down the stretch of generating that ends now."""
        if (actor.running or actor.wave) and actor.busy_since < self.now:
            lane = f"actor {actor.name}"
            self.spans.append(Span(lane, "generate", actor.busy_since, self.now, actor.version))

    # weights

    def publish(self) -> None:
        self.version += 1
        for actor in self.actors:
            actor.pending = self.version
            if self.setup.partial or not actor.running:
                self.load(actor)

    def load(self, actor: _Actor) -> None:
        """Load the newest weights; half-written answers go on, their cache is read again."""
        setup = self.setup
        if actor.running:
            self.close(actor)
        start = max(self.now, actor.load_until)
        actor.load_until = actor.busy_since = start + setup.sync
        actor.version, actor.pending = actor.pending, None
        actor.cached = {answer.group for answer in actor.running.values()}
        prompts = len(actor.cached) if setup.share_prefix else len(actor.running)
        written = sum(a.length - actor.left[slot] for slot, a in actor.running.items())
        tokens = prompts * setup.prompt_tokens + round(written)
        self.reread += tokens
        actor.stall = setup.prefill * tokens
        if setup.sync > 0:
            lane = f"actor {actor.name}"
            self.spans.append(Span(lane, "load", start, actor.load_until, actor.version))

    # learner

    @property
    def training(self) -> bool:
        return bool(self.updates) and self.updates[-1].end > self.now

    def start_update(self, updates: int) -> None:
        if self.training or len(self.updates) == updates:
            return
        batch = self.next_batch()
        if batch is None:
            return
        for group in batch:
            group.used, group.trained_at = self.now, self.version
            self.ready.remove(group)
        end = self.now + sum(group.tokens for group in batch) / self.setup.training_rate
        self.batches.append(batch)
        self.updates.append(Span("learner", "update", self.now, end, self.version))
        lanes = [f"actor {a.name}" for a in self.actors] if self.setup.colocated else ["learner"]
        self.spans.extend(self.updates[-1]._replace(lane=lane) for lane in lanes)

    def next_batch(self) -> tuple[Group, ...] | None:
        setup = self.setup
        if setup.bound is None or setup.drop:
            if setup.drop:
                stale = [g for g in self.ready if self.version - g.version > setup.bound]
                for group in stale:
                    group.used = self.now
                    self.ready.remove(group)
                self.dropped.extend(stale)
            batch = self.ready[: setup.prompts]
        else:
            first = len(self.batches) * setup.prompts
            batch = [g for g in self.ready if first <= g.index < first + setup.prompts]
            batch.sort(key=lambda group: group.index)
        return tuple(batch) if len(batch) == setup.prompts else None


def simulate(setup: Setup, *, updates: int = 20, warmup: int = 1, seed: int = 0) -> Trace:
    """Run until the learner has done `updates` updates; the same seed gives the same trace.

    warmup : updates left out of the rates of the `Trace`. Raises ValueError unless it is less than
    `updates`.
    """
    if not 0 <= warmup < updates:
        raise ValueError(f"warmup={warmup} must be at least 0 and less than updates={updates}")
    return _Simulation(setup, seed).run(updates, warmup)
