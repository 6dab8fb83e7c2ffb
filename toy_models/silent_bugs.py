"""A trainer with replaceable parts, and the silent bugs that people plant in them.

    healthy = practise(RIGHT, seed=0)
    broken = practise(BUGS["end_dropped"].patch(RIGHT), seed=0)
    broken.curves["J"]                  # exact, one number per batch: no real log contains it
    gradient_map(broken)                # what the run does to each token ÷ what it should do

The loop is GRPO on the sorting task with an end token, written so that each choice is a field of
`Parts`; with `RIGHT` it makes the same updates as `toy_models.train` (tested). A bug is a frozen
record whose `patch` replaces parts. Exact J, entropy and the right pushes never go through the
parts, so a bug cannot hide itself. `Ward` deals out runs without their names. Lecture 11.

Left out: devices, workers and text, where the same mistakes are made in other ways.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import Tensor

from policy_gradients.advantages import batch_centered, group_standardized
from policy_gradients.aggregation import mean_per_sequence, mean_per_token
from policy_gradients.kl import k3
from policy_gradients.logprobs import entropy, response_mask, token_log_probs
from policy_gradients.ratios import token_ratio
from policy_gradients.surrogates import ppo_clip
from toy_models.exact import all_rewards, response_log_probs
from toy_models.policies import AutoregressivePolicy
from toy_models.sorting import sort_then_end_reward

END = 3  # the end token; the numbers are 0, 1, 2
LIMIT = 5  # most tokens of a response
GROUP = 8
INNER = 4  # updates on each batch
CLIP = 0.2
PROMPTS = ((1, 0, 2), (2, 1, 1), (0, 2, 0), (2, 2, 1), (1, 0, 0), (0, 1, 2))
LOOKED_AT = 6  # the batch of which `Run` keeps the tensors
COLD = 0.6  # the temperature of the bugs that have one

Score = Callable[[Tensor], Tensor]


def reward(prompts: Tensor, responses: Tensor) -> Tensor:
    """Points for right numbers and for holding exactly as many: 0 to 4 for a prompt of three."""
    return sort_then_end_reward(prompts, responses, eos_id=END)


# --- the right parts ----------------------------------------------------------------------------


def sample(policy: AutoregressivePolicy, prompts: Tensor, seed: torch.Generator) -> Tensor:
    """(prompts, L) -> (batch, time) tokens, a prompt's responses adjacent."""
    return policy.sample(prompts, GROUP, seed=seed)


def mask(tokens: Tensor) -> Tensor:
    """(batch, time) -> bool: true up to and including the first end token."""
    return response_mask(tokens, eos_id=END)


def advantages(rewards: Tensor, valid: Tensor) -> Tensor:
    """rewards (prompts, group), mask (batch, time) -> (batch, 1)."""
    return group_standardized(rewards).reshape(-1, 1)


def remember(first: Tensor, now: Tensor, score: Score, memory: dict) -> Tensor:
    """log pi_old of a batch, (batch, time).

    first, now : logits when the batch was new, and at this update   score : logits -> log-probs of
    the batch's tokens   memory : a dict that lives as long as the run
    """
    return score(first)


def average(per_token: Tensor, valid: Tensor) -> Tensor:
    """(batch, time) -> scalar."""
    return mean_per_sequence(per_token, valid)


@dataclass(frozen=True)
class Parts:
    """What a training step is made of; the defaults are right."""

    sample: Callable[..., Tensor] = sample
    mask: Callable[[Tensor], Tensor] = mask
    log_probs: Callable[[Tensor, Tensor], Tensor] = token_log_probs  # of (logits, tokens)
    advantages: Callable[[Tensor, Tensor], Tensor] = advantages
    remember: Callable[[Tensor, Tensor, Score, dict], Tensor] = remember
    surrogate: Callable[..., Tensor] = ppo_clip  # of (logp, logp_old, advantages, edges)
    average: Callable[[Tensor, Tensor], Tensor] = average
    beta: float = 0.02  # weight of k3 in the loss, points per nat
    bonus: float = 0.01  # weight of the entropy in the objective, points per nat
    max_grad_norm: float = torch.inf

    def loss(self, logits, logp_old, logp_ref, weights, tokens, valid) -> Tensor:
        """The scalar that is minimised, from logits (batch, time, vocab)."""
        logp = self.log_probs(logits, tokens)
        per_token = self.surrogate(logp, logp_old, weights, eps_low=CLIP, eps_high=CLIP)
        per_token = per_token + self.beta * k3(logp, logp_ref) - self.bonus * entropy(logits)
        return self.average(per_token, valid)


RIGHT = Parts()


# --- the loop -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What a run left behind; tensors are of one batch unless said.

    curves      : name -> one number per batch: reward (sampled), loss and gradient (its length, as
                  the optimiser gets it: after clipping) of the last update, length (tokens up to
                  the first end), at_limit (share of responses that never ended), surprise (mean of
                  -log pi of the sampled responses), entropy and kl to the start (both exact, per
                  response), J (exact)
    prompts     : (prompts, L)      tokens : (batch, time)      mask : (batch, time), the run's own
    first_ratio : (batch, time) token ratios at the batch's first update; ratio at its last one
    push        : (batch, time) what the run's loss does to each token at that last update, padding
                  included; right_push : what the right loss would have done. See `pushes`
    last_tokens, last_rewards : of the run's last batch
    """

    curves: Mapping[str, list[float]]
    prompts: Tensor
    tokens: Tensor
    mask: Tensor
    first_ratio: Tensor
    ratio: Tensor
    push: Tensor
    right_push: Tensor
    last_tokens: Tensor
    last_rewards: Tensor


def pushes(loss: Tensor, logits: Tensor, tokens: Tensor) -> Tensor:
    """What a loss does to each token, measured at the logits: (batch, time).

    -dloss/dz[y_t] / (1 - pi(y_t)). Where the loss is a function of log pi(y_t) this is
    -dloss/dlog pi(y_t); where it reads other tokens or positions, it shows that too.
    """
    (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
    at = tokens[..., None]
    others = 1 - logits.softmax(-1).gather(-1, at)
    return (-gradient.gather(-1, at) / others)[..., 0].detach()


def practise(
    parts: Parts,
    *,
    seed: int = 0,
    steps: int = 40,
    learning_rate: float = 0.08,
    looked_at: int = LOOKED_AT,
) -> Run:
    """Train a sorter that knows nothing, with these parts; the same seed gives the same run.

    steps     : batches of 6 prompts x 8 responses, with 4 updates each (Adam)
    looked_at : the batch, from 0, of which `Run` keeps the tensors

    Raises TypeError for parts that are none, ValueError for a batch that is never reached.
    """
    if not isinstance(parts, Parts):
        raise TypeError(f"practise takes Parts, as in BUGS['one_out'].patch(RIGHT), got {parts!r}")
    if not 0 <= looked_at < steps:
        raise ValueError(f"looked_at={looked_at} must be one of the {steps} batches, from 0")
    prompts, dice = torch.tensor(PROMPTS), torch.Generator().manual_seed(seed)
    policy = AutoregressivePolicy(END + 1, LIMIT, eos_id=END, prompts=prompts).double()
    optimiser = torch.optim.Adam(policy.parameters(), lr=learning_rate)
    observe = _observer(policy, prompts)
    curves: dict[str, list[float]] = {}
    memory: dict = {}
    for step in range(steps):
        seen = observe()
        tokens = parts.sample(policy, prompts, dice)
        rewards = reward(prompts[:, None], tokens.unflatten(0, (-1, GROUP))).double()
        valid = parts.mask(tokens)
        weights = parts.advantages(rewards, valid)
        first = policy.logits(prompts, tokens).detach()  # (batch, time, vocab)
        home = torch.zeros_like(first)  # the reference is the start: every token alike
        for inner in range(INNER):
            logits = policy.logits(prompts, tokens)
            logp = parts.log_probs(logits, tokens)
            logp_old = parts.remember(
                first, logits, lambda z, y=tokens: parts.log_probs(z, y), memory
            )
            loss = parts.loss(
                logits, logp_old, parts.log_probs(home, tokens), weights, tokens, valid
            )
            if step == looked_at and inner == 0:
                first_ratio = token_ratio(logp, logp_old).detach()
            if step == looked_at and inner == INNER - 1:
                kept = {"tokens": tokens, "mask": valid, "first_ratio": first_ratio}
                kept["ratio"] = token_ratio(logp, logp_old).detach()
                kept["push"] = pushes(loss, logits, tokens)
                kept["right_push"] = pushes(
                    _right_loss(logits, first, rewards, tokens), logits, tokens
                )
            optimiser.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), parts.max_grad_norm)
            optimiser.step()
        whole = torch.where(mask(tokens), token_log_probs(first, tokens), 0.0).sum(1)
        seen |= {
            "reward": rewards.mean().item(),
            "loss": loss.item(),
            "gradient": min(norm.item(), parts.max_grad_norm),
            "length": mask(tokens).sum(1).double().mean().item(),
            "at_limit": (tokens != END).all(1).double().mean().item(),
            "surprise": -whole.mean().item(),
        }
        for name, value in seen.items():
            curves.setdefault(name, []).append(value)
    last = {"last_tokens": tokens, "last_rewards": rewards.flatten()}
    return Run(curves, prompts, **kept, **last)


def _observer(policy: AutoregressivePolicy, prompts: Tensor):
    scores = all_rewards(policy, prompts, reward)  # (prompts, responses)
    start = response_log_probs(policy, prompts).detach()

    @torch.no_grad()
    def observe() -> dict[str, float]:
        logp = response_log_probs(policy, prompts)
        prob = logp.exp()
        exact = {"J": scores, "entropy": -logp, "kl": logp - start}
        return {name: (prob * x).sum(1).mean().item() for name, x in exact.items()}

    return observe


def _right_loss(logits: Tensor, first: Tensor, rewards: Tensor, tokens: Tensor) -> Tensor:
    valid = mask(tokens)
    logp_old, logp_ref = (token_log_probs(z, tokens) for z in (first, torch.zeros_like(first)))
    return RIGHT.loss(logits, logp_old, logp_ref, advantages(rewards, valid), tokens, valid)


def gradient_map(run: Run) -> Tensor:
    """push / right_push, (batch, time): 1 where the run does what it should.

    NaN where both are zero (nothing happens there, rightly); inf where only the right one is.
    """
    quiet = 1e-12
    nothing, alone = run.push.abs() < quiet, run.right_push.abs() < quiet
    ratio = run.push / torch.where(alone, torch.inf, run.right_push)
    return torch.where(alone, torch.where(nothing, torch.nan, torch.inf), ratio)


def read_map(run: Run) -> dict[str, float]:
    """The gradient map in five shares, each between 0 and 1.

    padding : of the padding, pushed      ends : of the end tokens, wrongly not pushed
    turned  : of the response tokens, wrong sign      off : of them, wrong by more than a tenth
    alike   : of them, within a tenth of their response's median factor
    """
    factors, valid = gradient_map(run), mask(run.tokens)
    counted = valid & factors.isfinite()
    typical = torch.where(counted, factors, torch.nan).nanmedian(1, keepdim=True).values
    ends = counted & (run.tokens == END)

    def share(which: Tensor, among: Tensor) -> float:
        return (which & among).sum().item() / max(int(among.sum()), 1)

    return {
        "padding": share(run.push.abs() > 1e-12, ~valid),
        "ends": share(factors.abs() < 1e-9, ends),
        "turned": share(factors < 0, counted),
        "off": share((factors - 1).abs() > 0.1, counted),
        "alike": share((factors - typical).abs() <= 0.1 * typical.abs(), counted),
    }


# --- the wrong parts ----------------------------------------------------------------------------


def _end_dropped(tokens: Tensor) -> Tensor:
    return tokens != END  # "everything that is not padding", where padding is the end token


def _all_tokens(tokens: Tensor) -> Tensor:
    return torch.ones_like(tokens, dtype=torch.bool)


def _one_out(logits: Tensor, tokens: Tensor) -> Tensor:
    return token_log_probs(logits.roll(1, 1), tokens)


def _cold(policy: AutoregressivePolicy, prompts: Tensor, seed: torch.Generator) -> Tensor:
    return policy.sample(prompts, GROUP, seed=seed, temperature=COLD)


def _cold_report(first: Tensor, now: Tensor, score: Score, memory: dict) -> Tensor:
    return score(first / COLD)


def _scrambled(rewards: Tensor, valid: Tensor) -> Tensor:
    return group_standardized(rewards).T.reshape(-1, 1)  # group-major where prompts are adjacent


def _interleaved(rewards: Tensor, valid: Tensor) -> Tensor:
    mixed = rewards.reshape(-1).view(rewards.shape[1], rewards.shape[0]).T
    return group_standardized(mixed.contiguous()).T.reshape(-1, 1)


def _over_batch(rewards: Tensor, valid: Tensor) -> Tensor:
    return (batch_centered(rewards) / (rewards.std() + 1e-4)).reshape(-1, 1)


def _twice(rewards: Tensor, valid: Tensor) -> Tensor:
    return group_standardized(group_standardized(rewards)).reshape(-1, 1)


def _with_padding(rewards: Tensor, valid: Tensor) -> Tensor:
    padded = advantages(rewards, valid) * valid
    return (padded - padded.mean()) / (padded.std() + 1e-8)


def _stale(first: Tensor, now: Tensor, score: Score, memory: dict) -> Tensor:
    updates = memory.get("updates", 0)
    if updates % (8 * INNER) == 0:
        memory["kept"] = score(first)
    memory["updates"] = updates + 1
    return memory["kept"]


def _recomputed(first: Tensor, now: Tensor, score: Score, memory: dict) -> Tensor:
    return score(now).detach()


def _attached(logp, logp_old, advantages, *, eps_low, eps_high) -> Tensor:
    ratio = (logp - logp).exp()  # old log-probs recomputed, with their graph
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - eps_low, 1 + eps_high) * advantages)


def _bf16(logits: Tensor, tokens: Tensor) -> Tensor:
    logp = token_log_probs(logits, tokens)
    return logp.to(torch.bfloat16).to(logp.dtype)


def _own_counts(per_token: Tensor, valid: Tensor) -> Tensor:
    rows = valid.sum(1).argsort(stable=True).chunk(6)  # micro-batches, sorted by length
    return sum(mean_per_token(per_token[i], valid[i]) for i in rows) / len(rows)


# --- the catalogue ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bug:
    """One silent bug: what it is, what a log shows, which probe names it, what cures it.

    patch : parts -> broken parts     probe : a key of PROBES, the cheapest that tells it apart
    """

    name: str
    title: str
    symptom: str
    patch: Callable[[Parts], Parts]
    probe: str
    shows: str
    cure: str
    lecture: str


def _bug(name: str, title: str, changes: dict, **words: str) -> Bug:
    return Bug(name=name, title=title, patch=lambda parts: replace(parts, **changes), **words)


_CATALOGUE = (
    _bug(
        "end_dropped",
        "the end token is not trained",
        {"mask": _end_dropped},
        symptom="rewards level off early, responses grow to the limit",
        probe="mask",
        shows="the mask is 0 on the end token (padding and end share an id)",
        cure="mask by position: everything up to and including the first end token",
        lecture="00",
    ),
    _bug(
        "padding_trained",
        "padding is trained",
        {"mask": _all_tokens},
        symptom="none: here the curves even look better",
        probe="mask",
        shows="the mask is 1 behind the end token",
        cure="mask by position: nothing after the first end token",
        lecture="00",
    ),
    _bug(
        "one_out",
        "log-probabilities are one position out",
        {"log_probs": _one_out},
        symptom="a lively loss, and rewards that barely rise",
        probe="map",
        shows="pushes without any relation to the right ones, signs included",
        cure="logits at t predict token t: shift once, in one place, and test it",
        lecture="00",
    ),
    _bug(
        "cold_sampler",
        "the temperature is used in sampling only",
        {"sample": _cold},
        symptom="good rewards; evaluated at temperature 1 the policy is worse than its log",
        probe="surprise",
        shows="samples are less surprising than the policy's entropy says",
        cure="divide the logits by the sampling temperature wherever log-probabilities are taken",
        lecture="11",
    ),
    _bug(
        "cold_report",
        "the temperature is on one side of the ratio",
        {"sample": _cold, "remember": _cold_report},
        symptom="as above, and a clip fraction that is not 0 at the first update",
        probe="first_ratio",
        shows="ratios differ from 1 before anything has changed",
        cure="log pi_old from the learner, or at the learner's temperature",
        lecture="03",
    ),
    _bug(
        "scrambled",
        "advantages are laid out in the wrong order",
        {"advantages": _scrambled},
        symptom="everything moves, rewards do not",
        probe="map",
        shows="one wrong factor per response, of either sign",
        cure="one layout everywhere (a prompt's responses adjacent), named axes, a test",
        lecture="02",
    ),
    _bug(
        "interleaved",
        "groups are taken across prompts",
        {"advantages": _interleaved},
        symptom="none on prompts of equal difficulty",
        probe="map",
        shows="one factor per response",
        cure="assert that all members of a group share a prompt",
        lecture="08",
    ),
    _bug(
        "over_batch",
        "advantages are standardised over the batch",
        {"advantages": _over_batch},
        symptom="none on prompts of equal difficulty",
        probe="map",
        shows="one factor per response; groups without contrast are pushed",
        cure="say over which axis, and mean it",
        lecture="08",
    ),
    _bug(
        "with_padding",
        "whitening counts the padding",
        {"advantages": _with_padding},
        symptom="none",
        probe="map",
        shows="a factor per response that depends on how much padding the batch has",
        cure="take the statistics from valid tokens only",
        lecture="11",
    ),
    _bug(
        "stale_cache",
        "old log-probabilities come from an earlier batch",
        {"remember": _stale},
        symptom="rewards rise, slowly",
        probe="first_ratio",
        shows="ratios differ from 1 before anything has changed",
        cure="tie the cache to the batch; assert ratio 1 at the first update",
        lecture="03",
    ),
    _bug(
        "recomputed",
        "old log-probabilities are recomputed at every update",
        {"remember": _recomputed},
        symptom="none with few updates per batch",
        probe="last_ratio",
        shows="every ratio is still 1 at the last update: the clip can never act",
        cure="store log pi_old when the batch is new",
        lecture="03",
    ),
    _bug(
        "attached",
        "old log-probabilities carry their graph",
        {"surrogate": _attached},
        symptom="sampled rewards jitter, nothing else moves",
        probe="map",
        shows="0 wherever a push should be",
        cure="detach what was true at sampling time",
        lecture="03",
    ),
    _bug(
        "bf16_ratio",
        "log-probabilities are rounded to bf16",
        {"log_probs": _bf16},
        symptom="none on short, likely tokens",
        probe="last_ratio",
        shows="a comb: few ratios are possible. On tokens as likely as these its teeth are too "
        "fine to see, so nobody in the ward has it",
        cure="log-softmax and the difference of logs in float32",
        lecture="11",
    ),
    _bug(
        "kl_sign",
        "the KL term has the wrong sign",
        {"beta": -RIGHT.beta},
        symptom="rewards as usual, a little less entropy",
        probe="map",
        shows="turned signs where the clip has silenced the advantage and only the KL acts",
        cure="check the sign at a place where only the KL acts: a group without contrast",
        lecture="05",
    ),
    _bug(
        "bonus_sign",
        "the entropy bonus has the wrong sign",
        {"bonus": -RIGHT.bonus},
        symptom="none at a small coefficient",
        probe="map",
        shows="other pushes only where the clip has silenced the advantage",
        cure="maximise J + c·H, so the loss has −c·H: check it on uniform advantages",
        lecture="07",
    ),
    _bug(
        "own_counts",
        "each micro-batch divides by its own tokens",
        {"average": _own_counts},
        symptom="none",
        probe="map",
        shows="one factor on all tokens of an answer, those past the clip included, never negative",
        cure="the denominator of the whole optimiser step",
        lecture="09",
    ),
    _bug(
        "always_clipped",
        "the gradient is clipped at a length it always exceeds",
        {"max_grad_norm": 1e-4},
        symptom="none: Adam takes the scale out again",
        probe="curves",
        shows="the gradient that the optimiser gets has the same length at every update",
        cure="log the length before clipping; clip outliers only",
        lecture="11",
    ),
)
BUGS: Mapping[str, Bug] = MappingProxyType({bug.name: bug for bug in _CATALOGUE})


# --- the ward: runs without their names ---------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """One look at a run. `see` gives plain numbers and texts, ready for JSON."""

    title: str
    price: int  # points
    question: str
    see: Callable[[Run], dict]


def _curves(*names: str) -> Callable[[Run], dict]:
    return lambda run: {name: list(run.curves[name]) for name in names}


def _written(tokens: Tensor) -> str:
    return "".join("012E"[token] for token in tokens.tolist())


def _samples(run: Run) -> dict:
    rows = range(0, len(run.last_tokens), len(run.last_tokens) // 8)
    found = []
    for i in list(rows)[:8]:
        row = run.last_tokens[i]
        found.append(
            {
                "prompt": _written(run.prompts[i // GROUP]),
                "response": _written(row[mask(row[None])[0]]),
                "reward": run.last_rewards[i].item(),
            }
        )
    return {"rows": found}


RATIO_EDGES = tuple(round(0.5 + 0.05 * i, 2) for i in range(21))  # 0.5 .. 1.5; the ends are open


def _histogram(name: str) -> Callable[[Run], dict]:
    def see(run: Run) -> dict:
        ratios = getattr(run, name)[mask(run.tokens)]
        edges = torch.tensor(RATIO_EDGES[1:-1], dtype=ratios.dtype)
        bins = torch.bucketize(ratios.contiguous(), edges, right=True)
        counts = torch.bincount(bins, minlength=len(RATIO_EDGES) - 1)
        one = ((ratios - 1).abs() < 1e-9).double().mean().item()
        ends = [ratios.min().item(), ratios.max().item()]
        return {"counts": counts.tolist(), "exactly_one": one, "ends": ends}

    return see


def _spread_rows(run: Run, count: int) -> list[int]:
    """Rows of different lengths, among those that are pushed at all."""
    valid = mask(run.tokens)
    pushed = (run.right_push.abs() * valid).amax(1) > 1e-3
    rows = pushed.nonzero()[:, 0]
    rows = rows[valid.sum(1)[rows].argsort(stable=True)].tolist()
    return [rows[round(i * (len(rows) - 1) / (count - 1))] for i in range(count)]


def _mask(run: Run) -> dict:
    return {
        "rows": [
            {"tokens": _written(run.tokens[i]), "mask": run.mask[i].int().tolist()}
            for i in _spread_rows(run, 6)
        ]
    }


def _map(run: Run) -> dict:
    """Factors rounded to two digits; None where nothing happens and nothing should, "+" where
    something happens and nothing should."""

    def told(factor: float) -> float | str | None:
        return None if factor != factor else "+" if factor == torch.inf else round(factor, 2)

    factors = gradient_map(run)
    return {
        "rows": [
            {"tokens": _written(run.tokens[i]), "factors": [told(x) for x in factors[i].tolist()]}
            for i in _spread_rows(run, 8)
        ]
    }


PROBES: Mapping[str, Probe] = MappingProxyType(
    {
        "curves": Probe(
            "Curves", 0, "Reward, loss and gradient length over the batches",
            _curves("reward", "loss", "gradient"),
        ),
        "samples": Probe("Samples", 1, "What does it write at the end?", _samples),
        "lengths": Probe(
            "Lengths", 1, "Mean length, and how many answers never end",
            _curves("length", "at_limit"),
        ),
        "surprise": Probe(
            "Surprise", 2, "Are its samples as surprising as its entropy says?",
            _curves("entropy", "surprise"),
        ),
        "first_ratio": Probe(
            "First ratios", 2, "Is every ratio 1 before anything has changed?",
            _histogram("first_ratio"),
        ),
        "last_ratio": Probe(
            "Last ratios", 2, "How far have tokens moved after the batch's updates?",
            _histogram("ratio"),
        ),
        "mask": Probe("Mask", 2, "Which tokens count?", _mask),
        "map": Probe(
            "Gradient map", 4, "What it does to each token ÷ what it should do", _map
        ),
    }
)  # fmt: skip

HEALTHY = "healthy"
IN_THE_WARD = (
    HEALTHY, "end_dropped", "padding_trained", "cold_sampler", "stale_cache", "recomputed",
    "own_counts",
)  # fmt: skip
TELLABLE = (  # the bugs that the probes tell from all others; wards but the first draw from them
    *IN_THE_WARD[1:], "one_out", "cold_report", "scrambled", "attached", "always_clipped",
)  # fmt: skip
POINTS, WRONG = 10, 4  # what a patient is worth; what a wrong diagnosis costs


@dataclass
class Ward:
    """Seven runs without their names, A to G: one healthy, six broken, no two in the same way.

    Deterministic by seed. Seed 0 has the runs of `IN_THE_WARD`, others draw six of `TELLABLE`.

        ward = Ward()
        ward.probe("C", "curves")         # plain numbers; each kind costs its price once
        ward.diagnose("C", "healthy")     # right or wrong, and the points so far

    A patient is worth 10 points. Probes take their price from them, a wrong diagnosis takes 4, and
    nothing falls below 0. Diagnoses are "healthy" and every name in BUGS, also those of bugs that
    no patient here has. What a patient has can be told from all of them by the probes (tested),
    but for "bf16_ratio", which no probe shows on tokens this likely, and which nobody has.
    """

    seed: int = 0
    spent: dict[str, int] = field(default_factory=dict, init=False)
    points: dict[str, int] = field(default_factory=dict, init=False)
    _seen: set[tuple[str, str]] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self):
        dice, names = random.Random(self.seed), list(IN_THE_WARD)
        if self.seed:
            names = [HEALTHY, *dice.sample(TELLABLE, 6)]
        dice.shuffle(names)
        letters = [chr(ord("A") + i) for i in range(len(names))]
        self._names = dict(zip(letters, names, strict=True))
        self._runs = {
            letter: practise(_parts(name), seed=100 * self.seed + i)
            for i, (letter, name) in enumerate(self._names.items())
        }
        self.spent = dict.fromkeys(letters, 0)

    @property
    def patients(self) -> list[str]:
        return list(self._names)

    def probe(self, patient: str, name: str) -> dict:
        """What the probe sees; its price is paid the first time."""
        self._known(patient)
        if name not in PROBES:
            raise KeyError(f"no probe {name!r}; there are: {', '.join(PROBES)}")
        if (patient, name) not in self._seen and patient not in self.points:
            self.spent[patient] += PROBES[name].price
        self._seen.add((patient, name))
        return PROBES[name].see(self._runs[patient])

    def diagnose(self, patient: str, name: str) -> str:
        """Say what it is; a sentence, with the points. A wrong diagnosis may be corrected."""
        self._known(patient)
        if name != HEALTHY and name not in BUGS:
            raise KeyError(f"no diagnosis {name!r}; there are: {HEALTHY}, {', '.join(BUGS)}")
        true = self._names[patient]
        if patient in self.points:
            return f"{patient} is already diagnosed: {true}, {self.points[patient]} points."
        if name != true:
            self.spent[patient] += WRONG
            return f"{patient} is not {name}: {WRONG} points lost. Look again."
        self.points[patient] = max(0, POINTS - self.spent[patient])
        return f"{patient} is {true}: {self.points[patient]} of {POINTS} points. {explain(true)}"

    def chart(self) -> dict[str, dict]:
        """Everything there is to see, and what each patient has: patient -> {"has": a name,
        probe: what it gives}. Spends nothing; for a picture that is drawn without a kernel."""
        return {
            patient: {"has": self._names[patient]}
            | {name: probe.see(self._runs[patient]) for name, probe in PROBES.items()}
            for patient in self.patients
        }

    def _known(self, patient: str) -> None:
        if patient not in self._names:
            raise KeyError(f"no patient {patient!r}; there are: {', '.join(self._names)}")


def _parts(name: str) -> Parts:
    return RIGHT if name == HEALTHY else BUGS[name].patch(RIGHT)


def explain(name: str) -> str:
    """Symptom, finding and cure of a bug in one line."""
    if name == HEALTHY:
        return "Nothing is wrong: ratios start at 1, the map is 1, the mask ends with the response."
    bug = BUGS[name]
    return (
        f"Symptom: {bug.symptom}. Finding: {bug.shows}. Cure: {bug.cure} (lecture {bug.lecture})."
    )
