"""The clip region: which tokens of a batch still push the policy, under seven methods.

Lecture 03, [RC-6] to [RC-9], for PPO, GRPO, DAPO and dual clip; Lecture 10 for GSPO, CISPO and
SAPO. The picture is drawn by clip_region.js; the numbers, the still picture and the sentence here
come from `policy_gradients.surrogates` itself, by autograd.
Leaves out: averaging over tokens, and KL terms.
"""

import math
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator

from lectures.widgets.base import Choice, Data, InvalidValueError, LectureWidget, Slider, module
from lectures.widgets.still import (
    BOLD,
    DEAD,
    GRID,
    HALO,
    INK,
    LINE,
    NEGATIVE,
    POSITIVE,
    Still,
    fixed,
    frame,
    hatched,
    spread,
)
from llm_trainer.record import load_record
from policy_gradients import surrogates
from policy_gradients.algorithms import ALGORITHMS
from policy_gradients.ratios import sequence_ratio

MOST_TOKENS = 4096  # every token is a mark in the picture and a row of the saved notebook
LARGEST = 1e9  # number in a token's row
CURVE_POINTS = 20  # of the curves in `numbers`
SAME = 1e-12  # a ratio this close to an edge, relative to it, lies on it
HALF = math.log(3 + math.sqrt(8))  # 4σ(x)(1 − σ(x)) is ½ at x = ±HALF
SIGNS = {"positive": 1, "negative": -1}


class Method(NamedTuple):
    """One choice of the widget: its name, its paper's knobs and where they stand."""

    label: str
    knobs: dict[str, float]
    source: str


def _method(key: str, label: str, source: str, **more: float) -> Method:
    return Method(label, dict(ALGORITHMS[key].knobs) | more, source)


METHODS = {
    "ppo": _method("ppo", "PPO", "Paper's values: ε = 0.2 (Schulman et al. 2017, section 6.1)."),
    "grpo": _method(
        "grpo",
        "GRPO",
        "PPO's clip; the advantage, the average and the KL differ. Paper's values: no ε printed "
        "(Shao et al. 2024); 0.2 is PPO's.",
    ),
    "dapo": _method(
        "dapo", "DAPO", "Paper's values: ε = 0.2 and 0.28 (Yu et al. 2025, section 4.1)."
    ),
    "dual_clip": _method(
        "ppo",
        "Dual clip",
        "Ye et al. 2020, eq. 5. Usual values: ε = 0.2, as PPO; c = 3, the default of verl.",
        dual_clip=3.0,
    ),
    "gspo": _method(
        "gspo",
        "GSPO",
        "Paper's values: ε = 0.0003 and 0.0004 (Zheng et al. 2025, version 2, section 5.1).",
    ),
    "cispo": _method(
        "cispo",
        "CISPO",
        "Paper's values: ε low = 1, no lower bound (MiniMax 2025); ε high not printed, 0.28 is "
        "DAPO's.",
    ),
    "sapo": _method("sapo", "SAPO", "Paper's values: τ = 1 and 1.05 (Gao et al. 2025)."),
}
KNOBS = ("eps_low", "eps_high", "tau_pos", "tau_neg", "dual_clip")
KEY = (
    "Dotted: the same without any bound. The numbers count the tokens of each region. Weight kept: "
    "Σ|weight| ÷ Σ|ρA|."
)
ALONE = "These tokens have no sequence numbers: each is a sequence of its own."
SHADES = {
    "cispo": "Grey: the weight is held at the bound.",
    "sapo": "Grey: the gate leaves less than half of the weight.",
}
HATCHED = "Hollow marks on hatching: tokens without gradient."
EPSILONS = [
    *(round(i * 1e-4, 4) for i in range(1, 10)),
    *(round(i * 1e-3, 3) for i in range(1, 10)),
    *(round(i * 1e-2, 2) for i in range(1, 101)),
]


_FEW = [  # two sequences, far enough apart to reach every region of every method
    [0.31, 1.2, 0], [0.74, 1.2, 0], [0.97, 1.2, 0], [1.13, 1.2, 0], [1.52, 1.2, 0], [3.4, 1.2, 0],
    [0.22, -0.7, 1], [0.88, -0.7, 1], [1.04, -0.7, 1], [1.37, -0.7, 1], [3.3, -0.7, 1],
]  # fmt: skip


class Region(NamedTuple):
    """Part of the ratio's axis in which tokens of one sign of A fare alike.

    kind : "live", "dead" (no gradient), "held" (the weight stays at the bound times A) or
           "damped" (less than half of the unbounded weight)
    """

    name: str
    low: float
    high: float
    kind: str


def default_tokens(seed: int = 366) -> list[list[float]]:
    """Return 256 rows (ratio, advantage, sequence): 32 invented sequences of 8 tokens.

    log ρ is normal with deviation 0.25, which fills every region. A real batch looks different:
    in the recorded step of the gallery half of the tokens have |log ρ| below 0.0004 before the
    last update, and nine of 439 have become more than ten times less probable. The advantage is
    standard normal, one per sequence. Within a sequence the
    log-ratios are shifted so that their mean, the logarithm of the sequence's ratio, is normal
    with deviation 4e-4. That is an idealisation: eight independent tokens would have a mean of
    deviation 0.09, and it takes thousands to come near GSPO's ε. It lets one batch show every
    method. The seed is one of those that put tokens into each region under PPO and GSPO and none
    beyond ρ = 2. Five decimals, so that a saved notebook stays small.
    """
    dice = np.random.default_rng(seed)
    log_ratios = 0.25 * dice.standard_normal((32, 8))
    advantages = dice.standard_normal((32, 1)).repeat(8, axis=1)
    drift = 4e-4 * dice.standard_normal((32, 1))
    ratios = np.exp(log_ratios - log_ratios.mean(axis=1, keepdims=True) + drift)
    rows = zip(
        ratios.ravel().round(5), advantages.ravel().round(3), np.arange(256) // 8, strict=True
    )
    return [[float(ratio), float(advantage), int(i)] for ratio, advantage, i in rows]


def tokens_of(record: Any, update: int = -1) -> list[list[float]]:
    """Return (ratio, advantage, sequence) of every token that a step of the trainer counted.

    record : a path, a dict, or what `load_record` or `record_from_policies` returned
    update : which of the step's optimiser updates; the last one by default. Ratios are those just
             before it, so they are all 1 at a step's first update.

    Raises RecordError for what is no record, InvalidValueError where the step has no such update.
    Discarded groups have no advantage
    and are left out.
    """
    record = load_record(record)
    if not -record.updates <= update < record.updates:
        raise InvalidValueError(
            f"update is {update}; the record of step {record.step} has {record.updates} updates"
        )
    counted = [group for group in record.groups if group.status != "discarded"]
    responses = [response for group in counted for response in group.responses]
    rows = []
    for i, response in enumerate(responses):
        advantages = response.advantages * (len(response.tokens) // len(response.advantages))
        pairs = zip(response.updates[update].logp, response.logp_old, advantages, strict=True)
        rows += [[math.exp(logp - old), advantage, i] for logp, old, advantage in pairs]
    return rows


class ClipRegion(LectureWidget):
    """The clip-region widget: `clip = ClipRegion(methods=("ppo", "grpo", "dapo"))`.

    methods : which of METHODS to offer, in this order
    method : the one chosen; choosing another sets its paper's values
    advantage : A of the two curves, 0.1 ≤ |A| ≤ 3; the learner moves its `sign` and `size`
    eps_low, eps_high : the clip interval is [1 − eps_low, 1 + eps_high]; above 0, at most 1
    tau_pos, tau_neg : SAPO's temperatures for A > 0 and A < 0
    dual_clip : the factor c of dual clip, above 1
    tokens : (tokens, 2) pairs (ratio, advantage), or (tokens, 3) with the number of the token's
        sequence, as tensor, array or lists, at most 4096; without numbers each token is its own
        sequence under GSPO

    Everything can be read after the controls have moved, and set from Python. A value that makes
    no sense raises InvalidValueError (a ValueError) and changes nothing.
    """

    name = "clip_region"
    _esm = module("clip_region")
    presets: ClassVar = {"reset": ("Reset to the paper's values", None)}
    presets_label = ""
    still_height = 594
    examples: ClassVar = [
        {},
        {"method": "dapo", "advantage": -1.5},
        {"method": "grpo", "eps_low": 0.99, "eps_high": 0.99, "advantage": 3.0, "tokens": _FEW},
        {"eps_low": 0.0001, "eps_high": 0.0001, "advantage": -0.1, "tokens": _FEW},
        {"eps_low": 1.0, "eps_high": 1.0, "tokens": _FEW},
        {"eps_low": 1.0, "eps_high": 1.0, "advantage": -1.0, "tokens": _FEW[-1:]},
        {"method": "dual_clip", "eps_low": 1.0, "advantage": -1.0},
        {"method": "gspo", "eps_low": 1.0, "eps_high": 1.0, "advantage": -1.0,
         "tokens": [row[:2] for row in _FEW]},
        {"method": "dual_clip", "advantage": -1.0, "tokens": _FEW},
        {"method": "dual_clip", "dual_clip": 1.1, "eps_high": 0.9, "sign": "negative",
         "tokens": _FEW},
        {"method": "dual_clip", "advantage": 0.3, "tokens": _FEW},
        {"method": "gspo"},
        {"method": "gspo", "advantage": -0.1, "eps_low": 0.0001, "eps_high": 0.0001,
         "tokens": _FEW},
        {"method": "gspo", "advantage": -3.0, "eps_low": 0.2, "eps_high": 0.01, "tokens": _FEW},
        {"method": "cispo", "tokens": _FEW},
        {"method": "cispo", "advantage": -2.0, "eps_low": 0.9, "eps_high": 0.01, "tokens": _FEW},
        {"method": "sapo", "tokens": _FEW},
        {"method": "sapo", "advantage": -3.0, "tau_pos": 0.2, "tau_neg": 5.0, "tokens": _FEW},
        {"method": "sapo", "tau_pos": 0.2, "tau_neg": 0.5, "tokens": [*_FEW, [9.9, 0.5, 2]]},
        {"tokens": [[1.5, 1.0], [1.0, 0.0], [2.5, -1.0], [0.25, -0.5]]},
        {"tokens": [[1.5, 0.0], [1.0, 0.0]]},
        {"tokens": [[1.3, 0.05], *([[1.1, 2.0]] * 8)]},
    ]  # fmt: skip

    method = Choice("ppo", "Method", {key: row.label for key, row in METHODS.items()})
    sign = Choice("positive", "Advantage sign", {"positive": "▲ A > 0", "negative": "▼ A < 0"})
    size = Slider(
        1.0, "|A| size", low=0.1, high=3.0, step=0.1, digits=1, spoken="size of the advantage"
    )
    eps_low = Slider(0.2, "ε low", stops=EPSILONS, spoken="epsilon low")
    eps_high = Slider(0.2, "ε high", stops=EPSILONS, spoken="epsilon high")
    tau_pos = Slider(1.0, "τ for A > 0", low=0.2, high=5.0, step=0.05, digits=2)
    tau_neg = Slider(1.05, "τ for A < 0", low=0.2, high=5.0, step=0.05, digits=2)
    dual_clip = Slider(3.0, "c (dual clip)", low=1.1, high=3.8, step=0.1, digits=1)
    tokens = Data([], lambda value: _token_list(value))

    def __init__(self, methods: Iterable[str] = tuple(METHODS), **state: Any) -> None:
        keys = _offered(methods)
        self.offer("method", {key: METHODS[key].label for key in keys})
        used = {knob for key in keys for knob in METHODS[key].knobs}
        self.leave_out(*(knob for knob in KNOBS if knob not in used))
        if "advantage" in state:
            if both := [name for name in ("sign", "size") if name in state]:
                raise InvalidValueError(
                    f"advantage and {both[0]} are both given; advantage is the sign times the "
                    f"size, so leave one of them out"
                )
            state |= _sign_and_size(state.pop("advantage"))
        state = {"method": keys[0], "tokens": None} | state
        if state["tokens"] is None:
            state["tokens"] = default_tokens()
        known = METHODS.get(str(state["method"]), METHODS["ppo"])  # an unknown one is refused below
        super().__init__(**(known.knobs | state))

    @classmethod
    def from_record(cls, record: Any, update: int = -1, **state: Any) -> "ClipRegion":
        """The tokens of a recorded training step (see `tokens_of`), with its method and knobs.

        A run of an algorithm that this widget does not offer is shown under the first one offered.
        """
        record = load_record(record)
        rows = tokens_of(record, update)
        if len(rows) > MOST_TOKENS:
            raise InvalidValueError(
                f"the record holds {len(rows)} tokens; at most {MOST_TOKENS} can be drawn: pass "
                "record.take([0, 1]), which keeps the first two groups"
            )
        if record.run.algorithm in state.get("methods", METHODS):
            knobs = {key: value for key, value in record.run.knobs.items() if key in KNOBS}
            state = {"method": record.run.algorithm} | knobs | state
        return cls(tokens=rows, **state)

    def reset(self) -> None:
        """Set the knobs of the chosen method to its paper's values."""
        self.preset("reset")

    @property
    def advantage(self) -> float:
        """A of the two curves: `sign` times `size`."""
        return SIGNS[self.sign] * self.size

    @advantage.setter
    def advantage(self, value: float) -> None:
        for name, part in _sign_and_size(value).items():
            setattr(self, name, part)

    # --- mathematics -------------------------------------------------------------------------

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Tokens by the sign of A and the region of their ratio, as drawn."""
        ratios, advantages = self._ratios(), self._columns()[1]
        counts = {}
        for name, sign in SIGNS.items():
            own = ratios[np.sign(advantages) == sign]
            inside = {r.name: _inside(r, own) for r in self.regions(sign)}
            counts[name] = {key: int(mask.sum()) for key, mask in inside.items()}
        return counts

    @property
    def dead(self) -> int:
        """Tokens with A ≠ 0 that get no gradient."""
        return self._in_regions("dead")

    @property
    def kept(self) -> float:
        """Σ|weight| / Σ|ρA| of the batch, with ρ(y) for GSPO; 0 where every A is 0.

        The share that is left, as long as the method raises no weight; a lower bound of CISPO does.
        """
        ratios, advantages = self._ratios(), self._columns()[1]
        weight = self.weights(ratios, advantages)
        unbounded = np.abs(ratios * advantages).sum()
        return float(np.abs(weight).sum() / unbounded) if unbounded > 0 else 0.0

    @property
    def knobs(self) -> dict[str, float]:
        """What the chosen method's surrogate is called with."""
        return {name: getattr(self, name) for name in METHODS[self.method].knobs}

    def regions(self, sign: int) -> list[Region]:
        """The regions of the axis for tokens of this sign of A, from left to right."""
        low, high = self.edges(sign)
        if self.method == "sapo":
            return _three(low, high, "damped", "damped")
        if self.method == "cispo":
            return _three(low, high, "held", "held")
        if sign > 0:
            return _three(low, high, "live", "dead")
        if self.method != "dual_clip":
            return _three(low, high, "dead", "live")
        below, inside, _ = _three(low, min(high, self.dual_clip), "dead", "live")
        above = Region("above", inside.high, self.dual_clip, "live")
        return [below, inside, above, Region("floored", self.dual_clip, math.inf, "dead")]

    def edges(self, sign: int) -> tuple[float, float]:
        """Where the middle region ends on both sides: the clip, or half the weight under SAPO."""
        if self.method == "sapo":
            tau = self.tau_pos if sign > 0 else self.tau_neg
            return max(0.0, 1 - HALF / tau), 1 + HALF / tau
        return 1 - self.eps_low, 1 + self.eps_high

    @property
    def span(self) -> tuple[float, float]:
        """Both ends of the ratio's axis."""
        if self.method == "gspo":
            half = min(2.0, max(1e-3, _round_up(3 * max(self.eps_low, self.eps_high))))
            return max(0.0, 1 - half), 1 + half
        last = max(self.edges(sign)[1] for sign in SIGNS.values())  # the axis shows what follows
        far = self.method in ("sapo", "dual_clip") or self.sign == "negative"  # unbounded above
        usual = 4.0 if far else 2.0
        return 0.0, next(end for end in (usual, 3.0, 4.0, 6.0, 10.0) if end > last)

    def weights(self, ratios: Any, advantages: Any) -> np.ndarray:
        """Each token's gradient weight, from the surrogate and autograd; (tokens,), float64.

        Exactly on an edge of the clip, the objective bends and has no derivative: such a token
        counts as inside and still pushes (autograd agrees at 1 ± ε, and takes half of it at c).

        ratios, advantages : (tokens,), ratios > 0; for GSPO the sequence's ratio of each token
        """
        return self._terms(ratios, advantages)[1]

    def curves(self, ratios: Any) -> tuple[np.ndarray, np.ndarray]:
        """Objective and gradient weight of one token with `advantage`, at these ratios.

        A constant does not matter to an objective: SAPO's is shifted to be A at ρ = 1, as the
        others are. CISPO has none in ρ, because its weight is a constant; drawn is the function
        whose derivative by log π is that weight, A·b(1 + log(ρ/b)) with b the bounded ratio.
        """
        ratios = np.asarray(ratios, dtype=np.float64)
        terms, weights = self._terms(ratios, self.advantage)
        if self.method == "sapo":
            terms = terms - self._terms(np.ones(1), self.advantage)[0] + self.advantage
        if self.method == "cispo":
            bounded = weights / self.advantage
            terms = weights * (1 + np.log(ratios / bounded))
        return terms, weights

    def _terms(self, ratios: Any, advantages: Any) -> tuple[np.ndarray, np.ndarray]:
        """The surrogate's term (to be maximised) and its derivative by log π."""
        ratios = torch.as_tensor(ratios, dtype=torch.float64).reshape(-1, 1)
        for edge, inwards in self._bends():  # exp(log ρ) must not end up beyond the edge
            on_edge = (ratios - edge).abs() <= SAME * edge
            ratios = torch.where(on_edge, edge * (1 + inwards * 2 * SAME), ratios)
        advantages = torch.as_tensor(advantages, dtype=torch.float64).reshape(-1, 1)
        with torch.enable_grad():
            logp = ratios.log().requires_grad_()
            batch = [logp, torch.zeros_like(logp), advantages.expand_as(ratios)]
            if self.method == "gspo":  # a sequence of one token has the ratio of that token
                batch.append(torch.ones_like(logp))
            surrogate = surrogates.ppo_clip
            if self.method in ("gspo", "cispo", "sapo"):
                surrogate = ALGORITHMS[self.method].surrogate
            terms = -surrogate(*batch, **self.knobs)
            (weights,) = torch.autograd.grad(terms.sum(), logp)
        return terms.detach().numpy()[:, 0], weights.numpy()[:, 0]

    def _columns(self) -> np.ndarray:
        """Ratio, advantage and number of the sequence of each token: (3, tokens)."""
        rows = np.array(self.tokens, dtype=np.float64)
        if rows.shape[1] == 2:
            rows = np.column_stack([rows, np.arange(len(rows))])
        return rows.T

    def _ratios(self) -> np.ndarray:
        """Where each token stands: its ratio, or under GSPO that of its sequence; (tokens,)."""
        ratios, _, numbers = self._columns()
        return self._on_edges(ratios if self.method != "gspo" else self._of_sequences(numbers))

    def _bends(self) -> list[tuple[float, int]]:
        """The edges at which the objective bends, each with the direction of its inside."""
        if self.method == "sapo":
            return []
        low, high = self.edges(1)
        return [(low, 1), (high, -1)] + [(self.dual_clip, -1)] * (self.method == "dual_clip")

    def _on_edges(self, ratios: np.ndarray) -> np.ndarray:
        """The ratios, with those that differ from an edge by rounding only put onto it."""
        for edge, _ in self._bends():
            ratios = np.where(np.abs(ratios - edge) <= SAME * edge, edge, ratios)
        return ratios

    def _of_sequences(self, numbers: np.ndarray) -> np.ndarray:
        """The ratio of each token's sequence: (tokens,)."""
        ratios = self._columns()[0]
        _, row = np.unique(numbers, return_inverse=True)
        seen = np.zeros(row.max() + 1, dtype=int)
        column = np.zeros_like(row)
        for i, number in enumerate(row):
            column[i], seen[number] = seen[number], seen[number] + 1
        logp = torch.zeros(len(seen), seen.max(), dtype=torch.float64)
        mask = torch.zeros_like(logp)
        logp[row, column], mask[row, column] = torch.from_numpy(np.log(ratios)), 1.0
        return sequence_ratio(logp, torch.zeros_like(logp), mask)[row, 0].numpy()

    def _in_regions(self, kind: str) -> int:
        ratios, advantages = self._ratios(), self._columns()[1]
        return sum(
            int((_inside(region, ratios) & (np.sign(advantages) == sign)).sum())
            for sign in SIGNS.values()
            for region in self.regions(sign)
            if region.kind == kind
        )

    @property
    def numbers(self) -> dict[str, Any]:
        left, right = self.span
        ratios = left + (right - left) * (np.arange(CURVE_POINTS) + 0.37) / CURVE_POINTS
        objective, weight = self.curves(ratios)
        dead = [r for r in self.regions(SIGNS[self.sign]) if r.kind == "dead"]
        return {
            "ratios": ratios.tolist(),
            "objective": objective.tolist(),
            "weight": weight.tolist(),
            "dead_zones": [[max(r.low, left), min(r.high, right)] for r in dead],
            "counts": self.counts,
            "dead": self.dead,
            "kept": self.kept,
        }

    # --- words -------------------------------------------------------------------------------

    @property
    def sentence(self) -> str:
        """The result in words, as it stands under the picture."""
        ratios, advantages = self._ratios(), self._columns()[1]
        parts = [f"{METHODS[self.method].label}: {self._one_token()}", self._batch()]
        zero = int((advantages == 0).sum())
        if 0 < zero < len(advantages):
            parts.append(f"Tokens with A = 0, which never push: {zero}.")
        left, right = self.span
        if beyond := int((ratios < left).sum() + (ratios > right).sum()):
            symbol = "ρ(y)" if self.method == "gspo" else "ρ"
            where = f"Tokens beyond {symbol} = {fixed(right, 0)}, drawn on the right edge"
            if left > 0:
                ends = f"{_short(left)} and {_short(right)}"
                where = f"Tokens whose ρ(y) is not between {ends}, drawn on the edges"
            parts.append(f"{where}: {beyond}.")
        return " ".join(parts)

    def _one_token(self) -> str:
        sign = SIGNS[self.sign]
        low, high = self.edges(sign)
        own = f"A {'>' if sign > 0 else '<'} 0"
        who = f"a token with {own}"
        if self.method == "sapo":
            weight = fixed(float(self.weights([high], [self.advantage])[0]), 2)
            return (
                f"at ρ = {fixed(high, 2)} {who} still pushes with {weight}, half of what it "
                "would push without the gate; none is silenced."
            )
        if self.method == "cispo":
            below = f", below ρ = {_edge(low, self.eps_low)} at {_edge(low, self.eps_low)}·A"
            return (
                f"above ρ = {_edge(high, self.eps_high)} the weight of {who} is held at "
                f"{_edge(high, self.eps_high)}·A = "
                f"{fixed(high * self.advantage, _decimals(self.eps_high))}"
                f"{below if self.eps_low < 1 else ''}; none is silenced."
            )
        gspo, floored = self.method == "gspo", self.method == "dual_clip" and sign < 0
        if sign < 0 and low == 0:  # no ratio lies below
            if floored:
                floor = f"ρ = c = {fixed(self.dual_clip, 2)}"
                return f"with ε low = 1 {who} gets no gradient only above {floor}."
            return (
                f"with ε low = 1 the clip silences no {'sequence' if gspo else 'token'} with {own}."
            )
        symbol = "ρ(y)" if gspo else "ρ"
        edge = f"above {symbol} = {_edge(high, self.eps_high)}"
        if sign < 0:
            edge = f"below {symbol} = {_edge(low, self.eps_low)}"
        if gspo:
            return f"{edge} every token of a sequence with {own} gets no gradient."
        if floored:
            edge += f" and above ρ = c = {fixed(self.dual_clip, 2)}"
        return f"{edge} {who} gets no gradient."

    def _batch(self) -> str:
        if not self._columns()[1].any():
            return "In this batch every A is 0, so there is no gradient weight to keep."
        total, counts = len(self.tokens), self.counts
        among = f"{total} token{'' if total == 1 else 's'}"
        kept = f"keeps {_percent(self.kept, 0)} % of the "
        if self.method == "sapo":
            damped = self._in_regions("damped")
            return (
                f"In this batch the gate more than halves the weight of {damped} of {among} and "
                f"{kept}gradient weight that it would have without the gate."
            )
        if self.method == "cispo":
            held = self._in_regions("held")
            share = f"{held} of {among} ({_percent(held / total, 1)} %)"
            if counts["positive"]["below"] + counts["negative"]["below"] > 0:  # raised to the bound
                return (
                    f"In this batch the bound holds the weight of {share}; the summed |weight| is "
                    f"{fixed(100 * self.kept, 0)} % of the unbounded one."
                )
            return (
                f"In this batch the bound holds the weight of {share} and {kept}unbounded gradient "
                "weight."
            )
        floored = counts["negative"].get("floored")
        by_floor = "" if floored is None else f", {floored or 'none'} of them by c,"
        return (
            f"In this batch the clip silences {self.dead} of {among} "
            f"({_percent(self.dead / total, 1)} %){by_floor} and {kept}unclipped gradient weight."
        )

    @property
    def note(self) -> str:
        words = f"{METHODS[self.method].source} {SHADES.get(self.method, HATCHED)} {KEY}"
        alone = self.method == "gspo" and len(self.tokens[0]) == 2
        return f"{words} {ALONE}" if alone else words

    @property
    def off(self) -> set[str]:
        return {knob for knob in KNOBS if knob not in METHODS[self.method].knobs}

    def react(self, key: str) -> dict[str, Any]:
        return dict(METHODS[self.method].knobs) if key in ("method", "reset") else {}

    def draw_still(self, still: Still) -> None:
        _draw(self, still)


def _offered(methods: Iterable[str]) -> list[str]:
    listed = isinstance(methods, tuple | list) and len(methods) > 0
    if not listed or any(key not in list(METHODS) for key in methods):
        raise InvalidValueError(
            f"methods is {methods!r}; expected one or more of: {', '.join(METHODS)}, "
            'as a tuple such as ("ppo", "dapo")'
        )
    return list(methods)


def _sign_and_size(advantage: Any) -> dict[str, Any]:
    slider = ClipRegion.declared()["size"]
    try:
        value = float(advantage)
        size = slider.check("advantage", abs(value))
    except (TypeError, ValueError):
        raise InvalidValueError(
            f"advantage is {advantage!r}; expected a number whose size lies between "
            f"{slider.low:g} and {slider.high:g} (the curves only scale with it)"
        ) from None
    return {"sign": "positive" if value > 0 else "negative", "size": size}


def _three(low: float, high: float, below: str, above: str) -> list[Region]:
    return [
        Region("below", 0.0, low, below),
        Region("inside", low, high, "live"),
        Region("above", high, math.inf, above),
    ]


def _inside(region: Region, ratios: np.ndarray) -> np.ndarray:
    """Which ratios lie in the region; an edge belongs to the middle one."""
    if region.name == "below":
        return ratios < region.high
    above = ratios >= region.low if region.name == "inside" else ratios > region.low
    return above & (ratios <= region.high)


def _round_up(value: float) -> float:
    """The next number of the form 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return power * next(f for f in (1, 2, 5, 10) if f * power >= value * 0.999)


def _edge(edge: float, epsilon: float) -> str:
    """An edge of the clip, with as many decimals as ε has."""
    return fixed(edge, _decimals(epsilon))


def _decimals(epsilon: float) -> int:
    """How many decimals ε has, at least two and at most five."""
    for digits in (2, 3, 4):
        if abs(epsilon * 10**digits - math.floor(epsilon * 10**digits + 0.5)) < 1e-6:
            return digits
    return 5


def _percent(share: float, digits: int) -> str:
    """A share in per cent; 0 and 100 are printed only where nothing or all of it is meant."""
    least = 10.0**-digits
    if 1e-9 < share < least / 200:
        return f"under {fixed(least, digits)}"
    if 1 - least / 200 <= share < 1 - 1e-9:
        return f"over {fixed(100 - least, digits)}"
    return fixed(100 * share, digits)


def _short(value: float) -> str:
    """At most six significant digits: 0.998, 1.002."""
    return f"{value:.6g}"


def _token_list(value: Any) -> list[list[float]]:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().double().numpy()
    try:
        rows = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidValueError(
            f"tokens must be rows (ratio, advantage) of numbers: {error}"
        ) from None
    except OverflowError:
        raise InvalidValueError(
            f"tokens holds a whole number that is too large; beyond {LARGEST:g} nothing is a "
            "ratio, an advantage or a number"
        ) from None
    if rows.size == 0:
        raise InvalidValueError("tokens is empty; give at least one row (ratio, advantage)")
    if rows.ndim != 2 or rows.shape[1] not in (2, 3):
        raise InvalidValueError(
            f"tokens has shape {rows.shape}; expected (tokens, 2), a row per token with its ratio "
            "and its advantage, as torch.stack([ratio, advantage], dim=-1) makes it, or "
            "(tokens, 3) with the number of its sequence" + _transposed(rows)
        )
    if len(rows) > MOST_TOKENS:
        raise InvalidValueError(
            f"tokens holds {len(rows)} rows; at most {MOST_TOKENS} can be drawn: pass a sample"
        )
    size = np.abs(rows).max(axis=1)
    refuse = [
        (~np.isfinite(size), "NaN and inf cannot be drawn"),
        (size > LARGEST, f"beyond {LARGEST:g} nothing is a ratio, an advantage or a number"),
        (rows[:, 0] <= 0, "a ratio of probabilities is above 0 (log-ratios? take exp first)"),
        (rows[:, -1] % 1 != 0, "the third number, that of the sequence, must be whole"),
    ]
    for wrong, why in refuse[: 2 + (rows.shape[1] - 1)]:
        if wrong.any():
            row = int(wrong.argmax())
            raise InvalidValueError(
                f"tokens[{row}] is {rows[row].tolist()}; {why}{_transposed(rows)}"
            )
    if rows.shape[1] == 2:
        return rows.tolist()
    return [[ratio, advantage, int(i)] for ratio, advantage, i in rows.tolist()]


def _transposed(rows: np.ndarray) -> str:
    """What may have gone wrong with two or three rows: they could be the columns."""
    if rows.ndim != 2 or len(rows) not in (2, 3) or rows.shape[1] < 3:
        return ""
    return f" (expected (tokens, 2) or (tokens, 3); got {rows.shape}: transposed?)"


# --- the still picture: the layout of clip_region.js, in screen pixels --------------------------

LEFT, WIDTH, PANEL, ROW = 64, 592, 168, 56
OBJECTIVE_TOP, WEIGHT_TOP, ROWS_TOP = 34, 228, 440
DOTTED = {"color": INK, "linewidth": 1.4, "linestyle": ":"}
DASHED = {"color": INK, "linewidth": 1.2, "linestyle": (0, (5, 3))}
MIDDLE = {"ha": "center", "va": "center"}
OBJECTIVES = {
    "gspo": "Objective of one sequence",
    "cispo": "∫ weight d log ρ (no objective in ρ)",
    "sapo": "Objective of one token (shifted to A at ρ = 1)",
}
CURVE_NAMES = {"sapo": ("gated", "no gate"), "cispo": ("bounded", "no bound")}


def _draw(clip: ClipRegion, still: Still) -> None:
    sign, (left, right) = SIGNS[clip.sign], clip.span
    zones = _visible(clip, sign)
    top = right * clip.size
    whole = sorted((0.0, sign * _axis_top(top)))
    zoomed = sorted((left * clip.advantage, right * clip.advantage))
    objective, weight = (
        still.axes(LEFT, panel_top, WIDTH, PANEL) for panel_top in (OBJECTIVE_TOP, WEIGHT_TOP)
    )
    frame(objective, OBJECTIVES.get(clip.method, "Objective of one token"))
    each = "of each token (before its 1/|y|)" if clip.method == "gspo" else "(push)"
    frame(weight, f"Gradient weight {each}")
    names = {"dead"}
    _draw_curve(clip, objective, zones, 0, zoomed if clip.method == "gspo" else whole, names)
    _draw_curve(clip, weight, zones, 1, whole, names | {"held", "damped"})
    drawn, dotted = CURVE_NAMES.get(clip.method, ("clipped", "no clip"))
    lines = [
        axis_line for axis_line in objective.lines if axis_line.get_label() in ("drawn", "dotted")
    ]
    objective.legend(
        sorted(lines, key=lambda one: one.get_label(), reverse=True), (drawn, dotted),
        loc="lower right", bbox_to_anchor=(1.01, 0.98), ncols=2, frameon=False, fontsize=9,
    )  # fmt: skip
    rows = [still.axes(LEFT, ROWS_TOP + i * ROW, WIDTH, ROW) for i in (0, 1)]
    for axis, row_sign in zip(rows, SIGNS.values(), strict=True):
        _draw_row(clip, axis, row_sign, chosen=row_sign == sign)
    gspo = clip.method == "gspo"
    strip = "Tokens at their sequence's ratio" if gspo else "Tokens of the batch"
    frame(rows[0], f"{strip} ({len(clip.tokens)})")
    frame(rows[1], "")
    for axis in rows:
        axis.tick_params(left=False)
    rows[0].set_xticks([])
    marks = _ticks(left, right)
    digits = max(0, -math.floor(math.log10(marks[1] - marks[0]) + 1e-9))
    rows[1].set_xticks(marks, [fixed(mark, digits) for mark in marks])
    name = r"token ratio ρ = $\pi_\theta\,/\,\pi_{\mathrm{old}}$"
    name = "sequence ratio ρ(y), the geometric mean of its token ratios" if gspo else name
    rows[1].set_xlabel(name, fontsize=10, color=INK)
    for axis in (objective, weight, *rows):
        axis.set_xlim(left, right)
        axis.axvline(1, color=LINE, linewidth=0.8, zorder=1.5)
    _draw_edge_labels(clip, weight, zones)


def _visible(clip: ClipRegion, sign: int) -> list[Region]:
    """The regions of this sign that the axis shows, cut to it."""
    left, right = clip.span
    cut = (r._replace(low=max(r.low, left), high=min(r.high, right)) for r in clip.regions(sign))
    return [region for region in cut if region.high > region.low]


def _draw_zones(axis: Axes, zones: list[Region]) -> None:
    low, high = axis.get_ylim()
    for zone in zones:
        if zone.kind == "dead":
            hatched(axis, zone.low, zone.high, low, high)
        elif zone.kind != "live":
            axis.axvspan(zone.low, zone.high, color=DEAD, linewidth=0, zorder=0)
    for zone in zones[1:]:
        axis.axvline(zone.low, **DASHED, zorder=4)


def _draw_curve(
    clip: ClipRegion, axis: Axes, zones: list[Region], which: int, ends: list[float], named: set
) -> None:
    left, right = clip.span
    tiny = (right - left) * 1e-6
    bends = [zone.low + side for zone in zones[1:] for side in (-tiny, tiny)]
    ratios = np.sort([*np.linspace(left, right, 81), *bends]).clip(max(left, tiny), right)
    values = clip.curves(ratios)[which]
    margin = 0.08 * (ends[1] - ends[0])
    axis.set_ylim(ends[0] - margin, ends[1] + margin)
    axis.yaxis.set_major_locator(FixedLocator(_ticks(*ends, 3 if clip.method == "gspo" else 4)))
    axis.ticklabel_format(useOffset=False)
    axis.grid(axis="y", color=GRID, linewidth=0.8)
    axis.axhline(0, color=LINE, linewidth=0.8)
    axis.tick_params(bottom=False, labelbottom=False, left=False)
    axis.set_xlim(left, right)
    _draw_zones(axis, zones)
    axis.plot(
        [left, right], [left * clip.advantage, right * clip.advantage], **DOTTED, label="dotted"
    )
    color = POSITIVE if clip.advantage > 0 else NEGATIVE
    axis.plot(ratios, values, color=color, linewidth=2.4, zorder=3, label="drawn")
    bottom, top = axis.get_ylim()

    def heights(at: float) -> list[float]:
        """Of both curves, in pixels from the panel's top, at `at` pixels from its left."""
        ratio = left + (right - left) * at / WIDTH
        both = (np.interp(ratio, ratios, values), ratio * clip.advantage)
        return [PANEL * (top - value) / (top - bottom) for value in both]

    taken: list[tuple[float, float, float]] = []
    for zone in zones:
        if zone.kind in named:
            _name_zone(clip, axis, zone, heights, taken)


def _name_zone(clip: ClipRegion, axis: Axes, zone: Region, heights: Any, taken: list) -> None:
    """Write a region's name into it, or beside it; away from both curves and from other names."""
    on_left = zone.name == "below"
    edge = _edge(1 + clip.eps_high, clip.eps_high)
    if on_left:
        edge = _edge(1 - clip.eps_low, clip.eps_low)
    ways = {
        "dead": ["no gradient", "no\ngradient"],
        "held": [f"weight held at {edge}·A", f"held at {edge}·A", f"held at\n{edge}·A"],
        "damped": ["less than half", "less than\nhalf"],
    }[zone.kind]
    left, right = clip.span
    start, end = (WIDTH * (at - left) / (right - left) for at in (zone.low, zone.high))
    words = next((way for way in ways if end - start > _width_of(way)), None)
    middle = (start + end) / 2
    if words is None:
        words = ways[-1].replace("\n", " ")
        words = f"← {words}" if on_left else f"{words} →"
        middle = end + _width_of(words) / 2 if on_left else start - _width_of(words) / 2
    width = _width_of(words)
    nearby = [y for part in (-0.5, -0.25, 0, 0.25, 0.5) for y in heights(middle + part * width)]
    nearby += [y for at, wide, y in taken if abs(at - middle) < (wide + width) / 2]
    best, most = 0.0, -math.inf
    for place in (0.5, 0.26, 0.74, 0.13, 0.87):
        room = min(abs(y - PANEL * place) for y in nearby)
        if room > most + 4:
            best, most = PANEL * place, room
    taken.append((middle, width, best))
    at = (middle / WIDTH, 1 - best / PANEL)
    look = {"transform": axis.transAxes, "path_effects": HALO, "zorder": 6}
    axis.text(*at, words, **MIDDLE, **BOLD, **look)


def _width_of(words: str) -> float:
    return 7.6 * max(len(part) for part in words.split("\n")) + 8


def _draw_row(clip: ClipRegion, axis: Axes, sign: int, *, chosen: bool) -> None:
    left, right = clip.span
    zones = _visible(clip, sign)
    axis.set(xlim=(left, right), ylim=(ROW, 0))
    name, weight = ("▲ A > 0" if sign > 0 else "▼ A < 0"), ("bold" if chosen else "normal")
    axis.set_yticks([ROW / 2], [name], fontweight=weight)
    _draw_zones(axis, zones)
    ratios, advantages = clip._ratios(), clip._columns()[1]
    heights = 23 + (ROW - 29) * ((0.618034 * np.arange(len(ratios))) % 1)
    mine = np.sign(advantages) == sign
    dead = np.zeros_like(mine)
    for region in clip.regions(sign):
        if region.kind == "dead":
            dead |= _inside(region, ratios)
    color, marker = (POSITIVE, "^") if sign > 0 else (NEGATIVE, "v")
    for some, face, alpha in ((mine & ~dead, color, 0.75), (mine & dead, "white", 1.0)):
        look = {"facecolor": face, "edgecolor": color, "linewidth": 0.9, "alpha": alpha}
        x = ratios[some].clip(left, right)
        axis.scatter(x, heights[some], s=22, marker=marker, clip_on=False, zorder=3, **look)
    counts = clip.counts["positive" if sign > 0 else "negative"]
    labels = [str(counts[zone.name]) for zone in zones]
    gap = 12 + 8 * max(map(len, labels))
    middles = [WIDTH * ((z.low + z.high) / 2 - left) / (right - left) for z in zones]
    for at, label in zip(spread(middles, gap, gap / 2, WIDTH - gap / 2), labels, strict=True):
        x = left + (right - left) * at / WIDTH
        axis.text(x, 10, label, **MIDDLE, **BOLD, path_effects=HALO, zorder=6)


def _draw_edge_labels(clip: ClipRegion, axis: Axes, zones: list[Region]) -> None:
    low, high = clip.edges(SIGNS[clip.sign])
    below, above = (
        r"$1 - \varepsilon_{\mathrm{low}}$",
        r"$1 + \varepsilon_{\mathrm{high}}$",
    )
    labels = {
        "inside": f"{below} = {_edge(low, clip.eps_low)}",
        "above": f"{above} = {_edge(high, clip.eps_high)}",
        "floored": f"c = {fixed(clip.dual_clip, 2)}",
    }
    if clip.method == "sapo":
        labels = {
            "inside": f"half at ρ = {fixed(low, 2)}",
            "above": f"half at ρ = {fixed(high, 2)}",
        }
    left, right = clip.span
    centres = [WIDTH * (zone.low - left) / (right - left) for zone in zones[1:]]
    look = {"transform": axis.transAxes, "fontsize": 9.5, "color": INK, "path_effects": HALO}
    places = spread(centres, 134, 67, WIDTH - 67)
    for at, zone in zip(places, zones[1:], strict=True):
        axis.text(at / WIDTH, -11 / PANEL, labels[zone.name], **MIDDLE, **look, zorder=6)


def _axis_top(largest: float) -> float:
    """Top of a vertical axis for values up to `largest`: a whole number of the steps of ticks."""
    step = _round_up(largest / 4)
    return math.ceil(largest / step - 1e-9) * step


def _ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, about `count` of them."""
    step = _round_up((high - low) / count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]
