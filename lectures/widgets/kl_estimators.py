"""KL estimators: what k1, k2 and k3 say about a policy, and where they push it.

Lecture 05. For one policy and its reference, every response listed: the value and the spread of
each estimator over one response, and its expected gradient in five places (in the loss, or paid as
a reward; per token, to go, or for the whole response) beside the gradient of the KL itself.
Numbers and sentence come from `policy_gradients.kl` and `toy_models.exact`; kl_estimators.js
draws in the browser and computes the same.
Leaves out: the variance of the gradient, responses written by an older policy, and the float32
rounding of k3.
"""

import math
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from lectures.widgets.base import Choice, Data, InvalidValueError, LectureWidget, Slider, module
from lectures.widgets.still import (
    BOLD,
    GRID,
    HALO,
    INK,
    LINE,
    PICTURE_WIDTH,
    SERIES,
    SOFT,
    Still,
    fixed,
    frame,
    significant,
    spread,
)
from policy_gradients.kl import k1, k2, k3
from toy_models.exact import (
    exact_kl,
    flat_gradient,
    kl_in_loss,
    kl_in_reward,
    response_log_probs,
    token_log_probs_of,
)
from toy_models.policies import AutoregressivePolicy, Policy, TabularPolicy

ESTIMATORS = (k1, k2, k3)
NAMES = ("k1", "k2", "k3")
PROMPT = torch.zeros(1, 1, dtype=torch.long)  # the policies here ignore it
LOGIT_LIMIT = 20.0
MOST_ROWS, MOST_TOKENS = 40, 6  # of a table of logits; the browser lists every response
SAME = 1e-9  # nats: a KL this small is mostly rounding
ROUNDING = 1e-6  # relative to what is compared
ACROSS = 0.05  # cosine below which a gradient points neither towards π_ref nor away from it

# The independent positions: KL 0.052 at distance 1.
INDEPENDENT = {
    "reference": [[0.3456, 0.8216, 0.3304], [-1.3032, 0.9054, 0.4464], [-0.537, 0.5811, 0.3646]],
    "policy": [[0.111, 0.7445, 0.3329], [-1.3858, 1.2936, 0.7484], [-1.3503, 0.0144, 0.3121]],
}


def tree_tables(seed: int = 946) -> dict[str, list[list[float]]]:
    """Reference and policy of the tree: normal logits, (13 prefixes, 3 tokens), three decimals.

    The seed was chosen, among a few thousand, because this tree shows the per-token error
    clearly: cosine .864 for k2 and .919 for k3 at distance 1. One such tree in twelve is as bad
    for k2; half of them give it more than .97.
    """
    normal = np.random.default_rng(seed).normal(size=(2, 13, 3))
    reference = 0.52 * normal[0]
    policy = reference + 1.15 * normal[1]
    return {"reference": reference.round(3).tolist(), "policy": policy.round(3).tolist()}


def default_tables() -> dict[str, dict[str, list[list[float]]]]:
    """The logits behind each choice of the widget; the last has p = (.999, .001) at distance 2."""
    certain = {"reference": [[0.0, 0.0]], "policy": [[math.log(999) / 2, 0.0]]}
    return {"independent": INDEPENDENT, "tree": tree_tables(), "certain": certain}


class Place(NamedTuple):
    """One place for k: its option, its words in the sentence, and the gradient it gives."""

    label: str
    words: str
    loss: bool
    per_token: bool
    to_go: bool = False

    def scalar(self, policy: Policy, reference: Policy, estimator: Any) -> Tensor:
        """Scalar whose gradient is the estimator's expected gradient in this place."""
        args = (policy, reference, PROMPT, estimator)
        if self.loss:
            return kl_in_loss(*args, per_token=self.per_token)
        return kl_in_reward(*args, per_token=self.per_token, to_go=self.to_go)


PLACES = {
    "loss_token": Place("loss, per token", "In the loss, per token", True, True),
    "loss_response": Place("loss, sequence", "In the loss, for the whole response", True, False),
    "reward_token": Place(
        "reward, per token", "In the reward, each token paid only its own k", False, True
    ),
    "reward_to_go": Place(
        "reward, to go", "In the reward, each token paid its own and all later k", False, True, True
    ),
    "reward_response": Place(
        "reward, sequence", "In the reward, for the whole response", False, False
    ),
}


def _check_tables(value: Any) -> dict[str, dict[str, list[list[float]]]]:
    known = ("independent", "tree", "certain")
    if not isinstance(value, dict) or sorted(value) != sorted(known):
        raise InvalidValueError(
            f"tables must be a dictionary with the keys {', '.join(known)}; start from "
            "default_tables() and change what you like"
        )
    return {key: _check_pair(key, value[key]) for key in known}


def _check_pair(key: str, pair: Any) -> dict[str, list[list[float]]]:
    if not isinstance(pair, dict) or sorted(pair) != ["policy", "reference"]:
        raise InvalidValueError(f'tables["{key}"] must hold "reference" and "policy"')
    tables = {}
    for name in ("reference", "policy"):
        where = f'tables["{key}"]["{name}"]'
        try:
            table = np.array(
                pair[name].tolist() if hasattr(pair[name], "tolist") else pair[name],
                dtype=np.float64,
            )
        except (TypeError, ValueError) as error:
            raise InvalidValueError(f"{where} must be rows of logits: {error}") from None
        if table.ndim != 2 or table.shape[1] < 2 or not 1 <= len(table) <= MOST_ROWS:
            raise InvalidValueError(
                f"{where} has shape {table.shape}; expected (rows, vocab): at most {MOST_ROWS} "
                "rows, at least 2 tokens"
            )
        if not (np.abs(table) <= LOGIT_LIMIT).all():  # false for NaN too
            raise InvalidValueError(
                f"{where} holds a logit that is not between −{LOGIT_LIMIT:g} and {LOGIT_LIMIT:g}"
            )
        tables[name] = table
    if tables["reference"].shape != tables["policy"].shape:
        raise InvalidValueError(
            f'tables["{key}"]: the reference has shape {tables["reference"].shape}, the policy '
            f"{tables['policy'].shape}; they must be the same"
        )
    rows, vocab = tables["policy"].shape
    length = _length(rows, vocab, tree=key == "tree")
    if length is None or length > MOST_TOKENS or vocab**length > 1000:
        raise InvalidValueError(
            f'tables["{key}"] has {rows} rows of {vocab} tokens; expected one row per '
            + ("prefix (1 + V + V² …)" if key == "tree" else "position")
            + ", and at most 1000 responses"
        )
    return {name: table.tolist() for name, table in tables.items()}


def _length(rows: int, vocab: int, *, tree: bool) -> int | None:
    """Tokens in a response; None if `rows` is not 1 + V + V² + … for a tree."""
    if not tree:
        return rows
    length = 0
    while rows > 0:
        rows -= vocab**length
        length += 1
    return length if rows == 0 else None


SAME_GRADIENT = (
    "Independent tokens: in the loss, per token and sequence give the same gradient on "
    "average: the other tokens' parts of the response's k average out. "
)


def nats(value: float) -> str:
    return significant(value, 3)


def _state(policy: str, distance: float, place: str) -> dict[str, Any]:
    return {"policy": policy, "distance": distance, "place": place}


class KLEstimators(LectureWidget):
    """The KL-estimator widget: `kl = KLEstimators(policy="tree", place="loss_token")`.

    policy   : independent (a table of logits per position), tree (per prefix), certain (one
               token, all but decided)
    distance : 0 is the reference, 1 the policy of `tables`, beyond it the same line continued
    place    : where k stands, one of PLACES
    tables   : the logits behind the choices, {"tree": {"reference": rows, "policy": rows}, …};
               see `default_tables`

    Everything can be read after the controls have moved, and set from Python. A value that makes
    no sense raises InvalidValueError (a ValueError) and changes nothing.
    """

    name = "kl_estimators"
    _esm = module("kl_estimators")
    still_height = 572

    policy = Choice(
        "independent",
        "Policy",
        {
            "independent": "independent tokens",
            "tree": "autoregressive tree",
            "certain": "near-certain token",
        },
    )
    distance = Slider(
        1.0, "Distance from π_ref", low=0.0, high=4.0, step=0.05, digits=2,
        spoken="distance from pi ref",
    )  # fmt: skip
    place = Choice(
        "loss_token", "Where k stands", {key: place.label for key, place in PLACES.items()}
    )
    tables = Data(default_tables(), _check_tables)

    presets: ClassVar = {
        "toy": ("Independent toy", _state("independent", 1, "loss_token")),
        "grpo": ("GRPO: k3 in the loss", _state("tree", 1, "loss_token")),
        "ppo": ("PPO: k1 in the reward", _state("tree", 1, "reward_to_go")),
        "rare": ("The rare token", _state("certain", 2, "loss_token")),
    }
    examples: ClassVar = [
        {},
        _state("tree", 1.0, "loss_token"),
        _state("tree", 1.0, "reward_to_go"),
        _state("tree", 2.0, "reward_token"),
        _state("tree", 4.0, "loss_response"),
        _state("independent", 0.0, "loss_token"),
        _state("independent", 0.05, "reward_response"),
        _state("independent", 1.3, "reward_token"),
        _state("independent", 4.0, "loss_response"),
        _state("independent", 4.0, "reward_to_go"),
        _state("certain", 2.0, "reward_response"),
        _state("certain", 4.0, "loss_token"),
        _state("certain", 4.0, "reward_token"),
    ]

    def pair(self) -> tuple[Policy, Policy]:
        """The policy at the present distance and its reference, in float64."""
        tables = {name: np.array(rows) for name, rows in self.tables[self.policy].items()}
        reference = tables["reference"]
        moved = reference + self.distance * (tables["policy"] - reference)
        return self._policy(moved), self._policy(reference)

    def _policy(self, table: np.ndarray) -> Policy:
        rows, vocab = table.shape
        tree = self.policy == "tree"
        length = _length(rows, vocab, tree=tree)
        if tree:
            made: Policy = AutoregressivePolicy(vocab, length, eos_id=None).double()
        else:
            made = TabularPolicy(vocab, length).double()
        with torch.no_grad():
            made.table.copy_(torch.from_numpy(table).view_as(made.table))
        return made

    @property
    def numbers(self) -> dict[str, Any]:
        """What the picture shows; lists hold k1, k2, k3.

        kl          : KL(π‖π_ref) over whole responses, nats
        mean, spread: of the estimator over one response, nats
        slope       : ‖∇KL‖, nats per unit of logit; 0 at the reference
        along, across : the expected gradient's part along ∇KL, and the length of the rest, in
                      units of ‖∇KL‖: `along` is the projection, 1 for the exact gradient
        cosine      : between the expected gradient and ∇KL; 0 where one of them is zero
        gap, gap_forward : distance of the expected gradient from ∇KL(π‖π_ref), and from
                      ∇KL(π_ref‖π), in the same units
        axis        : [low, high, step] of the value axis, nats
        """
        policy, reference = self.pair()
        place = PLACES[self.place]
        kl = exact_kl(policy, reference, PROMPT)
        truth = flat_gradient(kl, policy)
        forward = flat_gradient(exact_kl(reference, policy, PROMPT), policy)
        slope = float(truth.norm())
        if kl.item() < SAME:
            zeros = [0.0, 0.0, 0.0]
            rest = ("mean", "spread", "along", "across", "cosine", "gap", "gap_forward")
            return {"kl": 0.0, "slope": 0.0} | dict.fromkeys(rest, zeros) | {"axis": [-1, 1, 0.5]}
        values = [self._value(policy, reference, place, estimator) for estimator in ESTIMATORS]
        gradients = [
            flat_gradient(place.scalar(policy, reference, estimator), policy)
            for estimator in ESTIMATORS
        ]
        along = [float(g @ truth) / slope**2 for g in gradients]
        across = [_apart(g, a * truth, slope) for g, a in zip(gradients, along, strict=True)]
        sizes = [math.hypot(a, b) for a, b in zip(along, across, strict=True)]
        mean, deviation = ([value[i] for value in values] for i in (0, 1))
        return {
            "kl": kl.item(),
            "slope": slope,
            "mean": mean,
            "spread": deviation,
            "along": along,
            "across": across,
            "cosine": [
                a / size if size > ROUNDING else 0.0 for a, size in zip(along, sizes, strict=True)
            ],
            "gap": [_apart(g, truth, slope) for g in gradients],
            "gap_forward": [_apart(g, forward, slope) for g in gradients],
            "axis": value_axis(kl.item(), mean, deviation),
        }

    @staticmethod
    def _value(policy: Policy, reference: Policy, place: Place, estimator: Any) -> list[float]:
        """Mean and standard deviation of the estimator over one response."""
        with torch.no_grad():
            probs = response_log_probs(policy, PROMPT)[0].exp()
            logp, logp_ref = (token_log_probs_of(p, PROMPT)[0] for p in (policy, reference))
            if not place.per_token:
                logp, logp_ref = logp.sum(-1, keepdim=True), logp_ref.sum(-1, keepdim=True)
            value = estimator(logp, logp_ref).sum(-1)  # (responses,)
            mean = probs @ value
            return [float(mean), float((probs @ (value - mean).square()).sqrt())]

    @property
    def sentence(self) -> str:
        n = self.numbers
        if n["slope"] == 0:
            return (
                "At this distance the policy is the reference: KL(π‖π_ref), every k and every "
                "gradient are 0. Move the distance."
            )
        hit = [i for i in range(3) if abs(n["mean"][i] - n["kl"]) <= ROUNDING * n["kl"]]
        named = [f"{NAMES[i]} (±{nats(n['spread'][i])})" for i in range(3)]
        named[0] = named[0].replace("±", "spread ±")
        values = [
            f"KL(π‖π_ref) is {nats(n['kl'])} nats: over responses "
            f"{' and '.join(named[i] for i in hit)} "
            f"{'average' if len(hit) > 1 else 'averages'} exactly that"
        ]
        values += [f"{named[i]} {_bias(n['mean'][i] / n['kl'])}" for i in range(3) if i not in hit]
        kinds = [kind(n, i) for i in range(3)]
        pushes = "; ".join(f"{NAMES[i]} {_push(n, i, kinds[i])}" for i in range(3))
        right = [NAMES[i] for i in range(3) if kinds[i] == "exact"]
        if right:
            gives = "gives" if len(right) == 1 else "give"
            verdict = f"Here {' and '.join(right)} alone {gives} the gradient of the KL."
        elif self.policy == "tree":
            verdict = (
                "Here none of them gives the gradient of the KL of whole responses: a token also "
                "decides which prefixes come next, and no k of one token knows about them."
            )
        else:
            verdict = "Here none of them gives the gradient of the KL."
        return f"{', '.join(values)}. {PLACES[self.place].words}, {pushes}. {verdict}"

    @property
    def note(self) -> str:
        same = self.policy == "independent" and PLACES[self.place].loss
        return (SAME_GRADIENT if same else "") + (
            "Per token: each token's k, summed; sequence: k of the response's ℓ. Distance: 0 is "
            "π_ref, 1 the built-in policy, straight on in the logits. "
            "Half disc: to the right along ∇KL; upwards the part at right angles to it, each k in "
            "a direction of its own. Responses are sampled from π. k1 = ℓ, k2 = ½ℓ², "
            "k3 = exp(−ℓ) − 1 + ℓ, ℓ = log π − log π_ref (Schulman 2020). GRPO: Shao et al. 2024, "
            "eq. 4. PPO: Ouyang et al. 2022, eq. 2. The built-in tree was chosen because it shows "
            "the error clearly."
        )

    def draw_still(self, still: Still) -> None:
        n = self.numbers
        values = [f"{nats(n['mean'][i])} ± {nats(n['spread'][i])}" for i in range(3)]
        width = WIDTH - 38 - max(118, 7.3 * max(map(len, values)) + 12)
        _draw_values(still.axes(LEFT + 38, 56, width, 81), n, width)
        canvas = still.axes(LEFT, 0, WIDTH, self.still_height)
        canvas.set(xlim=(0, WIDTH), ylim=(self.still_height, 0))
        canvas.axis("off")
        canvas.text(0, 22, "Value of k over one response, nats", **BOLD)
        canvas.text(WIDTH, 47, "mean ± deviation", ha="right", fontsize=9.5, color=SOFT)
        for i, name in enumerate(NAMES):
            y = 56 + 27 * (i + 0.5)
            canvas.text(28, y, name, ha="right", va="center", **TEXT)
            canvas.text(WIDTH, y, values[i], ha="right", va="center", **TEXT)
        canvas.text(0, 187, "Expected gradient of k, ‖∇KL‖ = 1", **BOLD)
        _draw_compass(canvas, n)
        _draw_table(canvas, n)


def _apart(g: Tensor, other: Tensor, slope: float) -> float:
    """‖g − other‖ in units of `slope`; exactly 0 where only rounding is left."""
    distance = float((g - other).norm())
    return distance / slope if distance > ROUNDING * float(g.norm()) else 0.0


def value_axis(kl: float, mean: list[float], deviation: list[float]) -> list[float]:
    """[low, high, step]: round, wide enough for k1, at most three times that for the others."""
    scale = kl + deviation[0]
    pairs = list(zip(mean, deviation, strict=True))
    low = max(min(0.0, *(m - s for m, s in pairs)), -1.5 * scale)
    high = min(max(m + s for m, s in pairs), 3 * scale)
    rough = (high - low) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = power * next(f for f in (1, 2, 5, 10) if f * power >= rough * 0.999)
    return [math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, step]


def kind(n: dict[str, Any], i: int) -> str:
    """What estimator i's expected gradient is: zero, exact, forward, across, away or biased."""
    if math.hypot(n["along"][i], n["across"][i]) <= ROUNDING:
        return "zero"
    if n["gap"][i] == 0:
        return "exact"
    if n["gap_forward"][i] == 0:
        return "forward"
    if abs(n["cosine"][i]) < ACROSS:
        return "across"
    return "away" if n["along"][i] < 0 else "biased"


def _push(n: dict[str, Any], i: int, what: str) -> str:
    part = f"projects to {_share(n['along'][i])} × ∇KL (cosine {fixed(n['cosine'][i], 3)})"
    return {
        "zero": "averages to no gradient",
        "exact": "gives exactly ∇KL",
        "forward": f"gives ∇KL(π_ref‖π) instead, which {part}",
        "across": f"stands almost at right angles to ∇KL: it {part}",
        "away": f"raises the KL: it {part}",
        "biased": part,
    }[what]


def _share(value: float) -> str:
    """Three decimals, or three significant digits where that is enough."""
    return fixed(value, 3) if abs(value) < 10 else ("−" if value < 0 else "") + nats(abs(value))


def _bias(factor: float) -> str:
    """How far a mean is off, as `factor` times the true value."""
    if factor >= 2:
        return f"averages {nats(factor)} times that"
    percent = 100 * abs(factor - 1)
    words = "less than 0.1" if percent < 0.1 else fixed(percent, 1)
    return f"averages {words} % {'more' if factor > 1 else 'less'}"


# --- the still picture: the layout of kl_estimators.js, in screen pixels -------------------------

LEFT, WIDTH = 14, PICTURE_WIDTH - 14
MARKERS, DASHES = ("o", "s", "^"), ((0, (1, 1.5)), "-", (0, (4, 2)))
REACH = 1.6  # the compass' rim, in units of ‖∇KL‖
MIDDLE, BASE, RADIUS = WIDTH / 2, 409, 190
TEXT = {"fontsize": 9.5, "color": INK}
WORDS = {
    "zero": "nothing",
    "exact": "exact",
    "forward": "other KL",
    "across": "sideways",
    "away": "away",
    "biased": "biased",
}


def _draw_values(axis: Axes, n: dict[str, Any], width: float) -> None:
    low, high, step = n["axis"]
    frame(axis, "")
    axis.set(xlim=(low, high), ylim=(3, 0), yticks=[])
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    places = [low + step * i for i in range(round((high - low) / step) + 1)]
    axis.set_xticks(places, [fixed(place, digits) for place in places])
    axis.tick_params(length=0)
    axis.grid(True, axis="x", color=GRID, linewidth=1)
    axis.axvline(n["kl"], color=INK, linewidth=1.5)
    label = f"KL {nats(n['kl'])}"
    half = 4.2 * len(label) / width * (high - low)
    at = min(high - half, max(low + half, n["kl"]))
    axis.text(at, -0.22, label, ha="center", va="bottom", **BOLD)
    for i in range(3):
        y, color = i + 0.5, SERIES[i]
        ends = [n["mean"][i] - n["spread"][i], n["mean"][i] + n["spread"][i]]
        inside = [max(low, ends[0]), min(high, ends[1])]
        if inside[0] < inside[1]:
            axis.plot(inside, [y, y], color=color, linewidth=2.5, solid_capstyle="butt")
        for end, edge, arrow in zip(ends, (low, high), ("<", ">"), strict=True):
            beyond = end < edge if arrow == "<" else end > edge
            if beyond:
                axis.plot(edge, y, arrow, color=color, markersize=8, clip_on=False)
            elif n["spread"][i] > 0:
                axis.plot(end, y, "|", color=color, markersize=9, markeredgewidth=2.5)
        if n["mean"][i] <= high:
            axis.plot(n["mean"][i], y, MARKERS[i], color=color, markersize=7, mec="white")


def _draw_compass(canvas: Axes, n: dict[str, Any]) -> None:
    unit = RADIUS / REACH
    turn = np.linspace(0, math.pi, 181)
    for size, dash in ((RADIUS, "-"), (unit, (0, (3, 3)))):
        x, y = MIDDLE + size * np.cos(turn), BASE - size * np.sin(turn)
        canvas.plot(x, y, color=LINE, linewidth=1, linestyle=dash)
    canvas.plot([MIDDLE - RADIUS, MIDDLE + RADIUS], [BASE, BASE], color=LINE, linewidth=1)
    canvas.plot([MIDDLE, MIDDLE], [BASE, BASE - RADIUS], color=GRID, linewidth=1)
    canvas.text(MIDDLE - RADIUS, BASE + 39, "← a step raises KL", fontsize=9.5, color=SOFT)
    canvas.text(
        MIDDLE + RADIUS, BASE + 39, "a step lowers KL →", ha="right", fontsize=9.5, color=SOFT
    )
    kinds = _kinds(n)
    if n["slope"] > 0:
        for size, words in ((RADIUS, f"{REACH}"), (unit, "1")):
            look = {"fontsize": 8.5, "color": SOFT, "path_effects": HALO}
            canvas.text(MIDDLE + 5, BASE - size + 15, words, **look)
        canvas.text(MIDDLE - unit, BASE + 19, "−∇KL", ha="center", **TEXT)
        canvas.text(MIDDLE + unit, BASE + 19, "∇KL", ha="center", **BOLD)
        thick = {"width": 5, "head_width": 16, "head_length": 13, "length_includes_head": True}
        canvas.arrow(MIDDLE, BASE, unit, 0, color=INK, alpha=0.3, linewidth=0, **thick)
    angles = {i: math.atan2(n["across"][i], n["along"][i]) for i in range(3) if kinds[i] != "zero"}
    order = sorted(angles, key=lambda i: (angles[i], i))
    degree = math.pi / 180
    wanted = [angles[i] for i in order]
    for i, at in zip(order, spread(wanted, 12 * degree, 7 * degree, 173 * degree), strict=True):
        size = math.hypot(n["along"][i], n["across"][i])
        dx, dy = math.cos(angles[i]), -math.sin(angles[i])
        x, y = MIDDLE + min(size, REACH) * unit * dx, BASE + min(size, REACH) * unit * dy
        canvas.plot([MIDDLE, x], [BASE, y], color=SERIES[i], linewidth=2.2, linestyle=DASHES[i])
        rim = RADIUS + 6
        ends = [[x, MIDDLE + rim * math.cos(at)], [y, BASE - rim * math.sin(at)]]
        canvas.plot(*ends, color=SERIES[i], linewidth=0.9, linestyle=(0, (1, 2)))
        if size > REACH:  # two heads: longer than drawn
            for back in (0, 9):
                tip = (x - back * dx, y - back * dy)
                tail = (tip[0] - 10 * dx, tip[1] - 10 * dy)
                look = {"arrowstyle": "-|>,head_length=0.5,head_width=0.3", "color": SERIES[i]}
                canvas.annotate("", tip, tail, arrowprops=look | {"shrinkA": 0, "shrinkB": 0})
        else:
            canvas.plot(x, y, MARKERS[i], color=SERIES[i], markersize=7, mec="white")
        rim = RADIUS + 17
        place = (MIDDLE + rim * math.cos(at), BASE - rim * math.sin(at))
        canvas.text(*place, NAMES[i], ha="center", va="center", **BOLD)
    nothing = [i for i in range(3) if i not in angles]
    for i in nothing:
        canvas.plot(MIDDLE, BASE, MARKERS[i], color=SERIES[i], markersize=7, mec="white")
    if nothing:
        words = " = ".join(NAMES[i] for i in nothing) + " = 0"
        canvas.text(MIDDLE, BASE + 19, words, ha="center", **TEXT)


def _draw_table(canvas: Axes, n: dict[str, Any]) -> None:
    left, top, width = MIDDLE - 230, BASE + 70, 460
    columns = left + 46, left + 0.52 * width, left + 0.72 * width, left + 0.76 * width
    soft = {"ha": "right", "fontsize": 9.5, "color": SOFT}
    canvas.text(columns[1], top, "along ∇KL", **soft)
    canvas.text(columns[2], top, "cosine", **soft)
    canvas.plot([left, left + width], [top + 9, top + 9], color=GRID, linewidth=1)
    for i, what in enumerate(_kinds(n)):
        y = top + 29 + 25 * i
        look = {"color": SERIES[i], "linewidth": 2.2}
        canvas.plot([left, left + 36], [y - 4.5] * 2, linestyle=DASHES[i], **look)
        canvas.plot(left + 18, y - 4.5, MARKERS[i], color=SERIES[i], markersize=7, mec="white")
        canvas.text(columns[0], y, NAMES[i], **BOLD)
        cosine = "–" if what == "zero" else fixed(n["cosine"][i], 3)
        canvas.text(columns[1], y, _share(n["along"][i]), ha="right", **TEXT)
        canvas.text(columns[2], y, cosine, ha="right", **TEXT)
        canvas.text(columns[3], y, WORDS[what], **TEXT)


def _kinds(n: dict[str, Any]) -> list[str]:
    return [kind(n, i) if n["slope"] > 0 else "zero" for i in range(3)]
