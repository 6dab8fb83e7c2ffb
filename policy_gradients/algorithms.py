"""The table of algorithms: an acronym is a row, and a row is five choices (Lecture 10).

    advantage × surrogate × average × KL × which groups are kept

`ALGORITHMS["grpo"]` is a frozen `Algorithm`; `row.loss(batch)` puts its choices together, so no
caller ever asks for a name. A new algorithm is a new row:

    mine = dataclasses.replace(ALGORITHMS["grpo"], name="mine", aggregation=mean_per_token)

Leaves out: sampling, the optimiser, the number of inner steps (they belong to the training loop),
and an entropy bonus (it needs the logits).
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from policy_gradients import _checks, advantages, aggregation, surrogates
from policy_gradients.kl import k1, k3
from policy_gradients.values import value_loss

KL_PLACEMENTS = ("none", "loss", "reward")


def _positional(function: Callable) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]


def _keywords(function: Callable) -> dict[str, object]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def _name(function: Callable) -> str:
    """Also of a functools.partial, which a variant of a row may well hold."""
    return getattr(getattr(function, "func", function), "__name__", repr(function))


def _clean(name: str, x: Tensor, logp: Tensor, valid: Tensor) -> Tensor:
    """(batch, time) x with 0 on padding, before any arithmetic: 0 · NaN in a backward is NaN."""
    if name == "advantages":
        x = _checks.advantages_for(logp, x).expand(logp.shape)
    _checks.floats("(batch, time)", **{"logp": logp, name: x})
    return torch.where(valid, x, 0.0)


@dataclass(frozen=True, eq=False)
class Batch:
    """What a loss may need. Tensors are (batch, time) unless said; padding may hold anything.

    The counts are those of the whole optimiser step; without them the batch counts itself,
    which is right only if it is the whole step.
    """

    logp: Tensor  # log-probabilities under the policy being trained, nats
    logp_old: Tensor | None  # log-probabilities at sampling time, nats
    advantages: Tensor  # (batch, 1) or (batch, time)
    mask: Tensor  # 1 on response tokens
    logp_ref: Tensor | None = None  # under the reference policy, for a KL term in the loss
    values: Tensor | None = None  # critic: V now, in the unit of the rewards
    values_old: Tensor | None = None  # critic: V at sampling time
    returns: Tensor | None = None  # critic: targets
    sequences: int | None = None  # responses in the optimiser step
    tokens: int | None = None  # response tokens in the optimiser step
    length: int | None = None  # constant of mean_fixed_length, for example the token budget


@dataclass(frozen=True, eq=False)
class Algorithm:
    """One row of the table. `dataclasses.replace(row, kl_coefficient=0.0)` makes a variant."""

    name: str
    title: str
    paper: str
    advantage: Callable[[Tensor], Tensor] | None  # (prompts, group) → same; None: gae of a critic
    surrogate: Callable[..., Tensor]  # its positional arguments are fields of Batch
    aggregation: Callable[..., Tensor]  # its keyword arguments are fields of Batch
    knobs: Mapping[str, float] = field(default_factory=dict)  # keyword arguments of the surrogate
    kl: str = "none"  # where the KL to the reference acts: "none", "loss" or "reward"
    kl_coefficient: float = 0.0  # β, in rewards per nat
    kl_estimator: Callable[[Tensor, Tensor], Tensor] = k3
    dynamic_sampling: bool = False  # replace groups that are all right or all wrong
    value_coefficient: float = 0.0  # weight of the critic's loss
    value_clip: float | None = None  # in the unit of the rewards

    def __post_init__(self):
        if self.kl not in KL_PLACEMENTS:
            raise ValueError(f"{self.name}: kl must be one of {KL_PLACEMENTS}, got {self.kl!r}")
        _checks.knob(f"{self.name}: kl_coefficient", self.kl_coefficient, at_least=0)
        if self.kl == "none" and self.kl_coefficient > 0:
            raise ValueError(
                f"{self.name}: kl_coefficient {self.kl_coefficient} has no effect with kl='none'; "
                f"say where it acts: 'loss' or 'reward'"
            )
        fields = set(Batch.__dataclass_fields__)
        unknown = {*_positional(self.surrogate), *_keywords(self.aggregation)} - fields
        if unknown:
            raise ValueError(
                f"{self.name}: {_name(self.surrogate)} or {_name(self.aggregation)} asks for "
                f"{sorted(unknown)}, but a Batch has {sorted(fields)}"
            )
        takes = _keywords(self.surrogate)
        required = {name for name, default in takes.items() if default is inspect.Parameter.empty}
        if set(self.knobs) - set(takes) or required - set(self.knobs):
            raise ValueError(
                f"{self.name}: {_name(self.surrogate)} takes the knobs {sorted(takes)} and needs "
                f"{sorted(required)}, got {dict(self.knobs)}"
            )
        object.__setattr__(self, "knobs", MappingProxyType(dict(self.knobs)))

    @property
    def needs_critic(self) -> bool:
        """Advantages come from values (`advantages.gae`), and the loss trains the critic."""
        return self.advantage is None

    @property
    def needs_group(self) -> bool:
        """Advantages compare the responses to one prompt: at least two are needed."""
        return self.advantage not in (None, advantages.batch_centered)

    @property
    def needs_old_logp(self) -> bool:
        """The surrogate has a ratio to the policy that sampled."""
        return "logp_old" in _positional(self.surrogate)

    @property
    def needs_reference(self) -> bool:
        """A KL to a reference policy acts somewhere."""
        return self.kl_coefficient > 0

    @property
    def zero_advantage_is_silent(self) -> bool:
        """A response with advantage 0 has no gradient, so it may be dropped before the forward.

        Not with a KL or a critic's term in the loss; the denominators stay those of the whole
        step either way.
        """
        return self.value_coefficient == 0 and not self._kl_in_loss

    def sequence_rewards(
        self, scores: Tensor, logp: Tensor, logp_ref: Tensor | None, mask: Tensor
    ) -> Tensor:
        """What the advantages of a critic-free row are computed from: score − β Σ_t k_t.

        The penalty is there only where this row puts its KL into the reward; it is detached.
        k is the row's estimator; only k1 gives the right gradient here (Lecture 05).
        For a critic use `advantages.shape_rewards_with_kl` with beta = row.kl_coefficient.

        Args:
            scores: (batch,) one score per response.
            logp, logp_ref: (batch, time) log-probabilities at sampling time and under the
                reference, nats; logp_ref may be None where no penalty is due.
            mask: (batch, time) 1 on response tokens.

        Returns:
            (batch,) in the unit of the scores.

        Raises:
            TypeError, ValueError: wrong dtype or shape, a missing logp_ref.
        """
        if self.kl != "reward" or self.kl_coefficient == 0:
            return scores.detach()
        if logp_ref is None:
            raise ValueError(f"{self._missing('logp_ref')}, for its KL in the reward")
        _checks.floats("(batch,)", scores=scores)
        valid = _checks.as_mask("mask", mask, logp=logp)
        kl = torch.where(valid, self.kl_estimator(logp, logp_ref), 0.0).sum(1)
        return (scores - self.kl_coefficient * kl).detach()

    def loss(self, batch: Batch) -> Tensor:
        """The row's loss, to be minimised: surrogate + β·KL + critic, averaged.

        Args:
            batch: a `Batch`, or any object with logp, mask and the other fields this row needs;
                a field that it lacks counts as None.

        Returns:
            scalar.

        Raises:
            TypeError, ValueError: wrong dtype or shape, a field that this row needs is None.
        """
        _checks.floats("(batch, time)", logp=batch.logp)
        valid = _checks.as_mask("mask", batch.mask, logp=batch.logp)
        cleaned = {"mask": valid}

        def get(name: str) -> Tensor:
            if name not in cleaned:
                given = getattr(batch, name, None)
                if given is None:
                    raise ValueError(self._missing(name))
                cleaned[name] = _clean(name, given, batch.logp, valid)
            return cleaned[name]

        per_token = self.surrogate(*map(get, _positional(self.surrogate)), **self.knobs)
        if self._kl_in_loss:
            per_token = per_token + self.kl_coefficient * self.kl_estimator(
                get("logp"), get("logp_ref").detach()
            )
        if self.value_coefficient > 0:
            values_old = get("values_old") if self.value_clip is not None else None
            critic = value_loss(get("values"), values_old, get("returns"), clip=self.value_clip)
            per_token = per_token + self.value_coefficient * critic
        counts = {name: getattr(batch, name, None) for name in _keywords(self.aggregation)}
        if "length" in counts and counts["length"] is None:
            raise ValueError(self._missing("length"))
        return self.aggregation(per_token, valid, **counts)

    @property
    def _kl_in_loss(self) -> bool:
        return self.kl == "loss" and self.kl_coefficient > 0

    def _missing(self, name: str) -> str:
        return f"{self.name} needs {name}, which is None or missing"


_ROWS = (
    Algorithm(
        name="reinforce",
        title="REINFORCE with a batch-mean baseline",
        paper="Williams 1992",
        advantage=advantages.batch_centered,
        surrogate=surrogates.reinforce,
        aggregation=aggregation.sum_per_sequence,
    ),
    Algorithm(
        name="rloo",
        title="REINFORCE leave-one-out",
        paper="Ahmadian et al. 2024, arXiv 2402.14740",
        advantage=advantages.leave_one_out,
        surrogate=surrogates.reinforce,
        aggregation=aggregation.sum_per_sequence,
        kl="reward",
        kl_coefficient=0.05,  # TRL's default; the paper has .03 and .10, by data set (appendix C)
        kl_estimator=k1,
    ),
    Algorithm(
        name="ppo",
        title="Proximal policy optimisation, as used for RLHF",
        paper="Schulman et al. 2017, arXiv 1707.06347; Ouyang et al. 2022, arXiv 2203.02155",
        advantage=None,
        surrogate=surrogates.ppo_clip,
        knobs={"eps_low": 0.2, "eps_high": 0.2},
        aggregation=aggregation.mean_per_token,
        kl="reward",
        kl_coefficient=0.02,  # InstructGPT, appendix C.4
        kl_estimator=k1,
        value_coefficient=0.5,  # beside the ½ of value_loss, as in OpenAI's Baselines (ppo2);
        value_clip=0.2,  # the paper itself has no value clip and prints c₁ = 1 for Atari
    ),
    Algorithm(
        name="grpo",
        title="Group relative policy optimisation",
        paper="Shao et al. 2024, arXiv 2402.03300",
        advantage=advantages.group_standardized,
        surrogate=surrogates.ppo_clip,
        knobs={"eps_low": 0.2, "eps_high": 0.2},  # PPO's: the paper writes ε without a value
        aggregation=aggregation.mean_per_sequence,
        kl="loss",
        kl_coefficient=0.04,  # the paper's section 4.2
    ),
    Algorithm(
        name="dr_grpo",
        title="GRPO done right: neither standard deviation nor length",
        paper="Liu et al. 2025, arXiv 2503.20783",
        advantage=advantages.group_centered,
        surrogate=surrogates.ppo_clip,
        knobs={"eps_low": 0.2, "eps_high": 0.2},  # the paper's table 6
        aggregation=aggregation.mean_fixed_length,
    ),
    Algorithm(
        name="gspo",
        title="Group sequence policy optimisation",
        paper="Zheng et al. 2025, arXiv 2507.18071",
        advantage=advantages.group_standardized,
        surrogate=surrogates.gspo,
        knobs={"eps_low": 3e-4, "eps_high": 4e-4},  # the paper's section 5.1
        aggregation=aggregation.mean_per_sequence,
    ),
    Algorithm(
        name="cispo",
        title="Clipped importance-sampling weights",
        paper="MiniMax 2025, arXiv 2506.13585",
        advantage=advantages.group_standardized,
        surrogate=surrogates.cispo,
        # no lower bound, as in the paper, which tuned eps_high and does not print its value;
        # .28 is borrowed from DAPO's clip-higher. The paper's runs also took dynamic sampling and
        # the length penalty from DAPO; this row is the objective alone
        knobs={"eps_low": 1.0, "eps_high": 0.28},
        aggregation=aggregation.mean_per_token,
    ),
    Algorithm(
        name="dapo",
        title="Decoupled clip and dynamic sampling",
        paper="Yu et al. 2025, arXiv 2503.14476",
        advantage=advantages.group_standardized,
        surrogate=surrogates.ppo_clip,
        knobs={"eps_low": 0.2, "eps_high": 0.28},  # the paper's section 4.1
        aggregation=aggregation.mean_per_token,
        dynamic_sampling=True,
    ),
    Algorithm(
        name="sapo",
        title="Soft adaptive policy optimisation",
        paper="Gao et al. 2025, arXiv 2511.20347",
        advantage=advantages.group_standardized,
        surrogate=surrogates.sapo,
        knobs={"tau_pos": 1.0, "tau_neg": 1.05},
        aggregation=aggregation.mean_per_sequence,
    ),
    Algorithm(
        name="maxrl",
        title="Maximum-likelihood reinforcement learning",
        paper="Tajwar et al. 2026, arXiv 2602.02710",
        advantage=advantages.maxrl,
        surrogate=surrogates.reinforce,
        aggregation=aggregation.sum_per_sequence,
    ),
)


class _Table(dict):
    """name → row. An unknown name is answered with the known ones."""

    def __missing__(self, name):
        raise KeyError(f"unknown algorithm {name!r}; the table has {', '.join(self)}")


ALGORITHMS: Mapping[str, Algorithm] = _Table({row.name: row for row in _ROWS})

# name → keyword arguments of matplotlib's plot: one look per algorithm through the whole course.
# Okabe-Ito colours, doubled by line style and marker, because there are ten rows and grey print.
PALETTE: dict[str, dict[str, str]] = {
    "reinforce": {"color": "#000000", "linestyle": "-", "marker": "o"},
    "rloo": {"color": "#E69F00", "linestyle": "-", "marker": "s"},
    "ppo": {"color": "#D55E00", "linestyle": "-", "marker": "^"},
    "grpo": {"color": "#0072B2", "linestyle": "-", "marker": "D"},
    "dr_grpo": {"color": "#56B4E9", "linestyle": "--", "marker": "v"},
    "gspo": {"color": "#009E73", "linestyle": "-", "marker": "P"},
    "cispo": {"color": "#CC79A7", "linestyle": "-", "marker": "X"},
    "dapo": {"color": "#0072B2", "linestyle": ":", "marker": "<"},
    "sapo": {"color": "#009E73", "linestyle": "--", "marker": ">"},
    "maxrl": {"color": "#E69F00", "linestyle": "--", "marker": "*"},
}


def algorithm_table(algorithms: Mapping[str, Algorithm] = ALGORITHMS) -> str:
    """The table as markdown, one line per row, for the README and Lecture 10."""
    head = "| algorithm | advantage | surrogate | average | KL | keeps | needs | paper |"
    lines = [head, "|" + "---|" * 8]
    for row in algorithms.values():
        knobs = ", ".join(f"{name}={value:g}" for name, value in row.knobs.items())
        kl = f"{_name(row.kl_estimator)} in the {row.kl}, β={row.kl_coefficient:g}"
        needs = {
            "critic": row.needs_critic,
            "group": row.needs_group,
            "old log-probs": row.needs_old_logp,
            "reference": row.needs_reference,
        }
        cells = (
            f"`{row.name}`",
            f"`{_name(row.advantage)}`" if row.advantage else "`gae`",
            f"`{_name(row.surrogate)}`" + (f" ({knobs})" if knobs else ""),
            f"`{_name(row.aggregation)}`",
            kl if row.needs_reference else "none",
            "groups with contrast" if row.dynamic_sampling else "all",
            ", ".join(name for name, needed in needs.items() if needed) or "nothing",
            row.paper,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def grpo_loss(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    eps_low: float,
    eps_high: float,
    sequences: int | None = None,
) -> Tensor:
    """GRPO's loss without its KL term: `ppo_clip` averaged by `mean_per_sequence`.

    Also the form in which a learner's own loss is passed to the trainer, which adds `tokens` and
    `length` by keyword for losses that take them. Padding may hold anything, NaN included.
    Shao et al. 2024 (DeepSeekMath, arXiv 2402.03300), eq. 3 with β = 0.

    Args:
        logp, logp_old: (batch, time) log-probabilities now and at sampling time, nats.
        advantages: (batch, 1) or (batch, time); detached.
        mask: (batch, time) 1 on response tokens.
        eps_low, eps_high: distance of the clip's edges from ratio 1, ≥ 0.
        sequences: responses of the whole optimiser step; None = this batch.

    Returns:
        scalar.

    Raises:
        TypeError, ValueError: wrong dtype or shape, a knob outside its range.
    """
    _checks.floats("(batch, time)", logp=logp, logp_old=logp_old)
    valid = _checks.as_mask("mask", mask, logp=logp)
    per_token = surrogates.ppo_clip(
        _clean("logp", logp, logp, valid),
        _clean("logp_old", logp_old, logp, valid),
        _clean("advantages", advantages, logp, valid),
        eps_low=eps_low,
        eps_high=eps_high,
    )
    return aggregation.mean_per_sequence(per_token, valid, sequences=sequences)
