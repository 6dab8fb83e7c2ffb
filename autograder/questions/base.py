"""What a question is: `Question` and `Mistake`, and helpers to draw its inputs.

A question is one small module, e.g. `autograder/questions/hw1/leave_one_out.py`: a generator of
cases, ``buggy`` with its switches, the list of mistakes, and a `Question` that ties them to the
reference. Write ``buggy`` apart from the reference, so that a test can compare the two. Choose
inputs on which every mistake shows: sizes that differ from each other, knobs off their defaults,
no ratio or difference that is accidentally 1 or 0. Mistakes that are nothing new together (one
undoes or hides the other) go into ``excludes``. Two mistakes that no case tells apart are reported
as "A or B"; add a case that separates them. `python -m autograder catalogue ID` measures all this.

What is no known mistake is described by how its numbers differ (`autograder.patterns`). That uses
the names in the signature: an argument called ``mask`` lets it say "on the last valid token", one
that holds only 0 and 1 "where done is 1". So name arguments as the library does.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import torch

from autograder.cases import Case

LECTURES = {
    "00": "00_map",
    "01": "01_policy_gradient",
    "02": "02_baselines_and_advantages",
    "03": "03_ratios_and_clipping",
    "04": "04_trust_regions",
    "05": "05_kl_regularisation",
    "06": "06_values_and_gae",
    "07": "07_actor_critic_and_ppo",
    "08": "08_group_relative_policy_optimization",
    "09": "09_loss_aggregation_and_length_bias",
    "10": "10_the_variant_family",
    "11": "11_silent_bugs",
    "12": "12_from_toy_to_qwen",
    "13": "13_experiments",
    "14": "14_off_policy_correction",
    "15": "15_systems_and_agents",
    "16": "16_rewards",
    "17": "17_preferences",
    "18": "18_value_based",
    "19": "19_continuous_and_max_entropy",
    "20": "20_control_as_inference_and_planning",
}
STATEMENT = "the statement"  # "the statement, [PREF-2]": explained in the homework's own text
RESULTS = {  # what a question may ask for -> is this dtype accepted?
    "floating": lambda dtype: dtype.is_floating_point,
    "bool": lambda dtype: dtype is torch.bool,
    "mask": lambda dtype: not dtype.is_complex,
}


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that people really write.

    name : the switch of the question's ``buggy`` function.
    cause : one sentence that says what the answer does, without numbers of any input.
    hint : one sentence that says what to look at.
    lecture : where it is explained, e.g. "02, [BL-8]" or "the statement, [PREF-2]".
    """

    name: str
    cause: str
    hint: str
    lecture: str


@dataclass(frozen=True)
class Question:
    """One function that a learner writes.

    id : "hw1/leave_one_out"; the part after the slash is the function's name.
    generate : ``generate(draw, final)`` -> cases; ``draw`` is a `Draw`. The visible and the final
        cases test the same properties on different sizes and numbers.
    reference : the right function.
    buggy : ``buggy(*args, mistakes=frozenset(), **knobs)``, the right function with one switch per
        mistake; it is written independently of ``reference``.
    excludes : pairs of mistakes that cannot be made together.
    variants : keywords under which reference and buggy are both accepted, e.g. ddof 0 or 1.
    tolerance : largest difference relative to the largest entry of the expected tensor.
    zero : largest absolute value accepted where the expected entry is exactly 0; None: as others.
    result : "floating", "bool", or "mask" (bool, integer or floating 0 and 1); a key of RESULTS.
    bonus : its points come on top of the homework's 20.
    """

    id: str
    title: str
    points: int
    signature: str
    lecture: str
    generate: Callable[["Draw", bool], list[Case]]
    reference: Callable
    buggy: Callable
    mistakes: tuple[Mistake, ...]
    excludes: frozenset[frozenset[str]] = frozenset()
    variants: tuple[dict, ...] = ({},)
    tolerance: float = 1e-4
    zero: float | None = None
    result: str = "floating"
    bonus: bool = False

    @property
    def homework(self) -> str:
        return self.id.split("/")[0]

    @property
    def function_name(self) -> str:
        return self.id.split("/")[1]


def where(lecture: str) -> str:
    """ "02, [BL-8]" -> "lecture 02, [BL-8]"; "the statement, …" stays."""
    return lecture if lecture.startswith(STATEMENT) else f"lecture {lecture}"


def excluding(*groups: str) -> frozenset[frozenset[str]]:
    """Pairs that cannot be made together, or that together are nothing new.

    "a b c" is all pairs of the three; "a: b c" is a with each of the others.
    """
    pairs = set()
    for group in groups:
        one, _, many = group.rpartition(":")
        names = many.split()
        firsts = one.split() or names
        pairs |= {frozenset((a, b)) for a in firsts for b in names if a != b}
    return frozenset(pairs)


class Draw:
    """Seeded random tensors for a question's inputs, float64 unless a dtype is given."""

    def __init__(self, *key):
        digest = hashlib.sha256("/".join(map(str, key)).encode()).digest()
        self._rng = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._rng, dtype=torch.float64)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
        unit = torch.rand(*shape, generator=self._rng, dtype=torch.float64)
        return low + (high - low) * unit

    def weights(self, *shape: int) -> torch.Tensor:
        """Weights of a backward pass: of order one, both signs, none near zero."""
        sign = torch.where(self.uniform(*shape) < 0.5, -1.0, 1.0).to(torch.float64)
        return sign * self.uniform(*shape, low=0.5, high=1.5)

    def rewards(self, prompts: int, group: int) -> torch.Tensor:
        """Rewards (prompts, group) of order one; within a group well apart, in random order."""
        rungs = torch.linspace(-1.0, 2.0, group, dtype=torch.float64).expand(prompts, group)
        shuffled = rungs.gather(1, self.uniform(prompts, group).argsort(1))
        return shuffled + self.uniform(prompts, group, high=1.5 / group) + self.normal(prompts, 1)

    def integers(self, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, shape, generator=self._rng)
