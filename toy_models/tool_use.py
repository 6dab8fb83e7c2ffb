"""An agent that must ask before it can answer: several turns, a tool, and tokens that are not its.

Three numbers are hidden. The agent may call "compare 1 2", "compare 1 3" or "compare 2 3", up to
three times; the tool's answer, "<" or ">", is appended to what it sees. Then it names the order,
and gets 1 point if that is right. Whoever does not ask can only guess.

    env = SortByAsking()
    env.reset(hidden=(20, 5, 11))                # or seed=3: the same seed, the same numbers
    env.step(TOKENS.index("compare 1 2"))        # Step(observation=(5,), reward=0.0, done=False)
    policy = AskingPolicy()
    records = train(policy, "rloo", steps=200)

A trajectory is one row of tokens: prompt, action, observation, action, observation, ..., answer.
The policy gives every one of them a probability, as a language model does, but only actions are
its own doing: `mask` is 1 on them, and on nothing else. There are few enough trajectories to list
them all (481 per hidden order), so J, its gradient and what training on observations does to it
are exact sums.

`Sandbox` runs code in a child process with limits: a tool that hangs, crashes or eats memory ends
in an observation "error", never in a hang. It guards against accidents, not against malice: the
code runs as the same user, may read that user's files, write files of limited size, use the network
and start a process that outlives it. For hostile code use containers or virtual machines.

Left out: free text, a tool with side effects, rewards for single turns. Lecture 15.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from numbers import Real
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor, nn

from policy_gradients.algorithms import ALGORITHMS, Algorithm, Batch
from policy_gradients.logprobs import token_log_probs

Hidden = tuple[int, ...]
Tool = Callable[[Hidden, int, int], str]  # hidden numbers, two positions -> "<" or ">"

PAIRS = ((0, 1), (0, 2), (1, 2))
ORDERS = tuple(permutations(range(3)))  # positions, smallest number first
TOKENS = (
    "sort",  # the prompt
    *(f"compare {i + 1} {j + 1}" for i, j in PAIRS),
    "<",
    ">",
    "error",
    *("<".join(str(i + 1) for i in order) for order in ORDERS),  # the answers
)
PROMPT, CALLS, OBSERVATIONS, ANSWERS = 0, range(1, 4), range(4, 7), range(7, 13)
ERROR = OBSERVATIONS[2]
MAX_CALLS = 3
LENGTH = 2 + 2 * MAX_CALLS  # prompt, three pairs of call and observation, answer


# --- the tool -----------------------------------------------------------------------------------


def compare(hidden: Hidden, i: int, j: int) -> str:
    """The tool itself: "<" or ">"."""
    return "<" if hidden[i] < hidden[j] else ">"


class ToolResult(NamedTuple):
    """What a call in the sandbox came to."""

    output: str  # what it printed
    error: str | None  # why it failed, None if it did not
    seconds: float  # wall time


_CHILD = """
import resource, sys
cpu, memory, size = map(int, sys.argv[1:4])
limits = {"CPU": cpu, "FSIZE": size, "NOFILE": 32, "CORE": 0, "NPROC": 0}
if sys.platform != "darwin":
    limits["AS"] = memory
for name, limit in limits.items():
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (limit, limit))
with open(int(sys.argv[4]), "rb") as file:
    code = file.read()
exec(compile(code, "tool", "exec"), {"__name__": "__main__"})
"""


@dataclass(frozen=True)
class Sandbox:
    """Runs Python code in a child process that cannot run, grow or print for ever.

    wall_seconds : after this the child and its process group are killed
    cpu_seconds  : of computing, whole seconds     memory_mb : address space (not on macOS)
    output_bytes : of each file it writes, what it prints included (the number of files is free)

    It also gets an empty environment, an empty working directory that is deleted afterwards, and no
    right to start processes (the super-user keeps it). What it does not do: see the top of this
    file. Linux and macOS; elsewhere `run` raises RuntimeError.
    """

    wall_seconds: float = 5.0
    cpu_seconds: int = 2
    memory_mb: int = 512
    output_bytes: int = 10_000

    def run(self, code: str, data: str = "") -> ToolResult:
        """Run `code` with `data` on its standard input; never raises for what the code does."""
        if os.name != "posix":
            raise RuntimeError(
                "limits on a child process need Linux or macOS; use `compare` itself"
            )
        started = time.monotonic()
        # Files, not pipes: a grandchild that keeps a pipe open would keep us waiting. They have no
        # name, so the child cannot put anything else in their place for us to read.
        with (
            tempfile.TemporaryFile() as program,
            tempfile.TemporaryFile() as stdin,
            tempfile.TemporaryFile() as stdout,
            tempfile.TemporaryFile() as stderr,
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
        ):
            for file, text in ((program, code), (stdin, data)):
                file.write(text.encode(errors="surrogatepass"))
                file.seek(0)
            limits = (self.cpu_seconds, self.memory_mb << 20, self.output_bytes)
            arguments = map(str, (*limits, program.fileno()))
            child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CHILD, *arguments],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[program.fileno()],
                cwd=home,
                env={},
                start_new_session=True,
            )
            try:
                status = child.wait(self.wall_seconds)
            except subprocess.TimeoutExpired:
                status = None
            finally:  # what it started too
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            output, complaint = (self._read(file) for file in (stdout, stderr))
        seconds = time.monotonic() - started
        return ToolResult(output, self._why(status, complaint.strip().splitlines()), seconds)

    def _read(self, file: BinaryIO) -> str:
        file.seek(0)
        return file.read(self.output_bytes).decode(errors="replace")

    def _why(self, status: int | None, lines: list[str]) -> str | None:
        if status == 0:
            return None
        if status is None:
            return f"no answer within {self.wall_seconds:g} s"
        if status < 0:
            known = {int(number): number.name for number in signal.Signals}
            name = known.get(-status, f"signal {-status}")
            return f"ended by {name} (limits: {self.cpu_seconds} CPU s, {self.memory_mb} MB)"
        return lines[-1] if lines else f"exit status {status}"

    def compare(self, hidden: Hidden, i: int, j: int) -> str:
        """`compare` in the sandbox, for `SortByAsking(tool=Sandbox().compare)`."""
        return self.tool(_COMPARE)(hidden, i, j)

    def tool(self, code: str) -> Tool:
        """A tool from code that reads [hidden, i, j] as JSON and prints "<" or ">".

        It raises RuntimeError with the reason where the code fails.
        """

        def call(hidden: Hidden, i: int, j: int) -> str:
            result = self.run(code, json.dumps([hidden, i, j]))
            if result.error:
                raise RuntimeError(result.error)
            return result.output.strip()

        return call


_COMPARE = 'import json; h, i, j = json.loads(input()); print("<" if h[i] < h[j] else ">")'


# --- the environment ----------------------------------------------------------------------------


class Step(NamedTuple):
    """What came back for one action."""

    observation: tuple[int, ...]  # tokens appended to the context, not the agent's own
    reward: float
    done: bool


class SortByAsking:
    """The episode. `context` is all the agent sees; `hidden` is what it must find out.

    tool : called as tool(hidden, i, j). If it raises, or says anything but "<" or ">", the
           observation is "error" and the call counts; `last_error` keeps the reason.

    An answer ends the episode, with 1 point if right. A fourth call, or a token that is not the
    agent's to write (prompt, observation), ends it with 0.
    """

    def __init__(self, tool: Tool = compare):
        self.tool = tool
        self.hidden: Hidden = ()
        self.context: tuple[int, ...] = ()
        self.done = True
        self.last_error: str | None = None

    def reset(self, *, hidden: Sequence[int] | None = None, seed: int | None = None) -> tuple:
        """Start over from these numbers, or from three drawn by `seed`; returns the context.

        Nothing survives a reset, so the same numbers and actions give the same episode. Raises
        ValueError unless exactly one of the two is given and the numbers are three different ones,
        finite.
        """
        if (hidden is None) == (seed is None):
            raise ValueError("reset needs either hidden=(20, 5, 11) or seed=3")
        if hidden is None:
            dice = torch.Generator().manual_seed(seed)
            hidden = torch.randperm(100, generator=dice)[:3].tolist()
        numbers = [x for x in hidden if isinstance(x, Real) and math.isfinite(x)]
        if len(hidden) != 3 or len(set(numbers)) != 3:
            raise ValueError(f"hidden must be three different numbers, got {tuple(hidden)}")
        self.hidden, self.context, self.done = tuple(hidden), (PROMPT,), False
        self.last_error = None
        return self.context

    def step(self, action: int) -> Step:
        """One action token. Raises RuntimeError after the end of an episode, ValueError for what is
        no token."""
        if self.done:
            raise RuntimeError("the episode is over: call reset() first")
        if type(action) is not int or not 0 <= action < len(TOKENS):
            raise ValueError(
                f"an action is the id of a token, a whole number from 0 to {len(TOKENS) - 1}, "
                f"got {action!r}; TOKENS.index names them"
            )
        calls = (len(self.context) - 1) // 2
        self.context = (*self.context, action)
        if action not in CALLS or calls == MAX_CALLS:
            self.done = True
            right = action in ANSWERS and self._is_right(ORDERS[action - ANSWERS[0]])
            return Step((), float(right), True)
        observation = self._ask(*PAIRS[action - CALLS[0]])
        self.context = (*self.context, observation)
        return Step((observation,), 0.0, False)

    def _is_right(self, order: tuple[int, ...]) -> bool:
        a, b, c = (self.hidden[i] for i in order)
        return a < b < c

    def _ask(self, i: int, j: int) -> int:
        try:
            said = self.tool(self.hidden, i, j)
            if said not in ("<", ">"):
                raise ValueError(f'the tool said {said!r}, not "<" or ">"')
        except (Exception, SystemExit) as error:  # whatever a tool does, training goes on
            self.last_error = f"{type(error).__name__}: {error}"
            return ERROR
        return TOKENS.index(said)


# --- the policy ---------------------------------------------------------------------------------


class AskingPolicy(nn.Module):
    """Linear in what the context says, so that what is learned in one place is used in others.

    Formula: logits = features @ weights. The features of a context: for each pair, whether "<",
    ">" or "error" has been seen (9); how many calls were made, one-hot (4); which call, if any,
    awaits its answer, one-hot (3). `weights` is (1, 16, 13), zero at the start: one matrix predicts
    the agent's own tokens and the tool's, as in a language model. With shared=False it is
    (2, 16, 13): the tool's tokens have a matrix of their own, which no action feels.
    """

    def __init__(self, *, shared: bool = True):
        super().__init__()
        sizes = len(PAIRS) * len(OBSERVATIONS), MAX_CALLS + 1, len(CALLS)
        self.weights = nn.Parameter(torch.zeros(1 if shared else 2, sum(sizes), len(TOKENS)))

    def features(self, tokens: Tensor) -> Tensor:
        """(batch, LENGTH) -> (batch, LENGTH, 16), 0 or 1: of the context before each token."""
        batch = len(tokens)
        seen = self.weights.new_zeros(batch, len(PAIRS), len(OBSERVATIONS))
        columns = [self.weights.new_zeros(batch, self.weights.shape[1])]  # nothing predicts "sort"
        for calls in range(MAX_CALLS + 1):
            count = nn.functional.one_hot(torch.full((batch,), calls), MAX_CALLS + 1)
            waiting = torch.zeros(batch, len(CALLS), dtype=torch.long)
            columns.append(torch.cat([seen.flatten(1), count, waiting], 1))
            if calls == MAX_CALLS:
                break
            call, said = tokens[:, 1 + 2 * calls, None], tokens[:, 2 + 2 * calls, None]
            waiting = (call == torch.tensor(CALLS)).long()
            columns.append(torch.cat([seen.flatten(1), count, waiting], 1))
            new = waiting[:, :, None] * (said == torch.tensor(OBSERVATIONS))[:, None]
            seen = torch.maximum(seen, new.to(seen.dtype))
        return torch.stack(columns, 1)

    def logits(self, tokens: Tensor) -> Tensor:
        """tokens (batch, LENGTH) -> (batch, LENGTH, vocab); [:, t] predicts tokens[:, t]."""
        of_actions, of_tool = self.weights[0], self.weights[-1]
        theirs = (torch.arange(LENGTH) % 2 == 0)[:, None]
        features = self.features(tokens)
        return torch.where(theirs, features @ of_tool, features @ of_actions)

    def log_probs(self, tokens: Tensor) -> Tensor:
        """(batch, LENGTH) nats: of every token, observations included. Mask what is not yours."""
        return token_log_probs(self.logits(tokens), tokens)


class Trajectories(NamedTuple):
    """Episodes as a batch, batch = hidden orders * group, the episodes of an order adjacent."""

    tokens: Tensor  # (batch, LENGTH) int64, "sort" after the end
    mask: Tensor  # (batch, LENGTH) bool: the agent's own tokens, the only ones to train on
    observed: Tensor  # (batch, LENGTH) bool: the tool's
    rewards: Tensor  # (hidden orders, group) points

    @property
    def calls(self) -> Tensor:
        """(batch,) how often the tool was asked."""
        return self.observed.sum(1)

    @property
    def invented(self) -> Tensor:
        """(batch,) bool: the agent wrote an observation itself."""
        theirs = (self.tokens >= OBSERVATIONS[0]) & (self.tokens <= OBSERVATIONS[-1])
        return (theirs & self.mask).any(1)


def _pack(contexts: list, rewards: list[float], group: int) -> Trajectories:
    tokens = torch.zeros(len(contexts), LENGTH, dtype=torch.long)
    for row, context in zip(tokens, contexts, strict=True):
        row[: len(context)] = torch.tensor(context)
    place = torch.arange(LENGTH)
    inside = place < torch.tensor([len(context) for context in contexts])[:, None]
    mask = inside & (place % 2 == 1)
    observed = inside & (place % 2 == 0) & (place > 0)
    return Trajectories(tokens, mask, observed, torch.tensor(rewards).view(-1, group))


def rollout(
    policy: AskingPolicy,
    hidden: Sequence[Hidden] = ORDERS,
    group: int = 1,
    *,
    tool: Tool = compare,
    seed: int | torch.Generator,
) -> Trajectories:
    """`group` episodes from each of the hidden lists, turn by turn, one environment for each."""
    dice = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    envs = [SortByAsking(tool) for _ in range(len(hidden) * group)]
    for i, env in enumerate(envs):
        env.reset(hidden=hidden[i // group])
    rewards = [0.0] * len(envs)
    for turn in range(MAX_CALLS + 1):
        alive = [i for i, env in enumerate(envs) if not env.done]
        if not alive:
            break
        tokens = _pack([envs[i].context for i in alive], [0.0] * len(alive), 1).tokens
        with torch.no_grad():
            probs = policy.logits(tokens)[:, 1 + 2 * turn].softmax(-1)
        actions = torch.multinomial(probs, 1, generator=dice)[:, 0].tolist()
        for i, action in zip(alive, actions, strict=True):
            rewards[i] += envs[i].step(action).reward
    return _pack([env.context for env in envs], rewards, group)


# --- exact --------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def all_trajectories(hidden: tuple[Hidden, ...] = ORDERS) -> Trajectories:
    """Every episode there is with each hidden list, 481 of them; shared, do not write into it."""
    contexts, rewards = [], []
    for numbers in hidden:
        unfinished: list[tuple[int, ...]] = [()]
        while unfinished:
            actions = unfinished.pop()
            for action in range(len(TOKENS)):
                env = SortByAsking()
                env.reset(hidden=numbers)
                step = [env.step(token) for token in (*actions, action)][-1]
                if step.done:
                    contexts.append(env.context)
                    rewards.append(step.reward)
                else:
                    unfinished.append((*actions, action))
    return _pack(contexts, rewards, len(contexts) // len(hidden))


def _law(policy: AskingPolicy, tree: Trajectories) -> tuple[Tensor, Tensor]:
    """(hidden orders, episodes) probabilities of all episodes, and (batch, LENGTH) log-probs.

    Only the agent's tokens have a chance in them: the tool's answer is what it is.
    """
    logp = policy.log_probs(tree.tokens)
    own = torch.where(tree.mask, logp, 0.0).sum(1)
    return own.exp().view_as(tree.rewards), logp


def expected_reward(policy: AskingPolicy, hidden: tuple[Hidden, ...] = ORDERS) -> Tensor:
    """J, mean over the hidden lists: a differentiable scalar, points (here the share right)."""
    tree = all_trajectories(hidden)
    return (_law(policy, tree)[0] * tree.rewards).sum(1).mean()


def exact_gradient(policy: AskingPolicy, hidden: tuple[Hidden, ...] = ORDERS) -> Tensor:
    """grad J: (parameters,)."""
    return _flat_gradient(expected_reward(policy, hidden), policy)


def expected_estimate(
    policy: AskingPolicy,
    hidden: tuple[Hidden, ...] = ORDERS,
    *,
    baseline: float | Tensor = 0.0,
    train_observations: bool = False,
) -> Tensor:
    """Mean of the estimate (R - b) · sum of the trained tokens' scores: (parameters,), exact.

    With the mask this is grad J for every baseline. With the observations trained too it has the
    extra term E[(R - b) · sum_t grad log pi(o_t)]. A token the agent drew has a score of mean zero;
    o_t was drawn by the tool, so the mean of its score is not zero unless the policy already
    predicts the tool exactly.

    baseline : points, a number or (hidden lists,); the mean of the estimates of RLOO has each
               list's own J
    """
    tree = all_trajectories(hidden)
    probs, logp = _law(policy, tree)
    weights = probs.detach() * (tree.rewards - torch.as_tensor(baseline).view(-1, 1))
    trained = tree.mask | tree.observed if train_observations else tree.mask
    scores = torch.where(trained, logp, 0.0).sum(1).view_as(weights)
    return _flat_gradient((weights * scores).sum(1).mean(), policy)


def _flat_gradient(value: Tensor, policy: AskingPolicy) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, list(policy.parameters()))])


class Record(NamedTuple):
    """Where the policy stands after `step` updates; exact but for `reward`."""

    step: int
    reward: float  # mean of the episodes it plays now; nan in the last record, after training
    objective: float  # J: share of right answers
    calls: float  # expected calls of the tool per episode
    asked: float  # probability of at least one call
    invented: float  # probability that the agent writes an observation itself


@torch.no_grad()
def survey(policy: AskingPolicy, step: int = 0, reward: float = float("nan")) -> Record:
    """The policy's exact numbers, over all six orders."""
    tree = all_trajectories()
    probs = _law(policy, tree)[0]

    def mean(x: Tensor) -> float:
        return (probs * x.view_as(probs)).sum(1).mean().item()

    calls = tree.calls.to(probs.dtype)
    return Record(
        step, reward, mean(tree.rewards), mean(calls), mean(calls > 0), mean(tree.invented)
    )


def train(
    policy: AskingPolicy,
    algorithm: str | Algorithm = "rloo",
    *,
    steps: int = 200,
    group: int = 16,
    learning_rate: float = 0.03,
    train_observations: bool = False,
    tool: Tool = compare,
    every: int = 5,
    seed: int = 0,
) -> list[Record]:
    """Train in place with a row of the table, Adam, one update per batch; returns the records.

    Every step plays `group` episodes from each of the six hidden orders, exactly reset.
    train_observations : the bug to study: the tool's tokens get a gradient as if they were actions
    algorithm          : a row or its name; its KL term, if any, is left out
    every              : a record of the exact numbers is made every this many steps, and at the end
    Raises ValueError for a row that needs a critic.
    """
    row = algorithm if isinstance(algorithm, Algorithm) else ALGORITHMS[algorithm]
    if row.needs_critic:
        raise ValueError(f"{row.name} needs a critic, which this loop does not have; use rloo")
    row = replace(row, kl="none", kl_coefficient=0.0)
    optimise = torch.optim.Adam(policy.parameters(), lr=learning_rate)
    dice = torch.Generator().manual_seed(seed)
    records = []
    for step in range(steps):
        played = rollout(policy, ORDERS, group, tool=tool, seed=dice)
        if step % every == 0:
            records.append(survey(policy, step, played.rewards.mean().item()))
        logp = policy.log_probs(played.tokens)
        advantages = row.advantage(played.rewards.to(logp.dtype)).reshape(-1, 1)
        mask = played.mask | played.observed if train_observations else played.mask
        optimise.zero_grad()
        row.loss(Batch(logp, logp.detach(), advantages, mask, length=LENGTH)).backward()
        optimise.step()
    return [*records, survey(policy, steps)]
