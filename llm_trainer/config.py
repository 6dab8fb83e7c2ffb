"""One run is one frozen, validated object, read from one YAML file.

`load("run.yaml", ["lr=1e-3", "warmstart.seed=2"])` gives a `Config` or raises `ConfigError`, whose
text names the field, the value it had and the values it may have. Nothing else in the trainer
starts before this has passed. `describe()` prints every field with its unit, default and range.

A new knob is a new field here; nothing below this file reads YAML or command lines.
"""

import difflib
import inspect
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from policy_gradients.advantages import maxrl
from policy_gradients.algorithms import ALGORITHMS, Algorithm
from policy_gradients.kl import k1, k2, k3

CONFIGS = Path(__file__).parent / "configs"
ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}

LARGE = 1_000_000  # of weights and distances: what they multiply stays finite in float32
COUNT = {"ge": 1, "le": 65536}  # more would only fail later, for memory
SEEDS = {"ge": 0, "lt": 2**63}


class ConfigError(ValueError):
    """The run cannot start as described: which field, which value, what is allowed."""


class RunError(RuntimeError):
    """A run that had started was stopped; the text says why. Its last checkpoint is intact."""


def require(condition: bool, message: str) -> None:
    """Raise a ConfigError with this message unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def first_line(error: Exception) -> str:
    """What another library's error says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def knob(default: Any, about: str, unit: str = "-", allowed: str = "", **limits: Any) -> Any:
    """A field: its default, what it means, its unit, and the allowed values.

    allowed: these in words, where limits and type do not say them.
    """
    extra = {"unit": unit, "allowed": allowed}
    return Field(default, description=about, json_schema_extra=extra, **limits)


def allowed_values(field: FieldInfo) -> str:
    """The values a field may have, in words."""
    if field.json_schema_extra["allowed"]:
        return field.json_schema_extra["allowed"]
    if field.annotation is bool:
        return "true, false"
    if get_origin(field.annotation) is Literal:
        return ", ".join(get_args(field.annotation))
    limits = {}
    for limit in field.metadata:  # Ge(ge=0) and its like
        name = type(limit).__name__.lower()
        limits[name] = f"{getattr(limit, name):.7g}"
    low = f"above {limits['gt']}," if "gt" in limits else limits["ge"]
    return f"{low} to {limits['le']}" if "le" in limits else f"{low} or more"


class Section(BaseModel):
    """Frozen; unknown fields, infinities, NaN and true or false for a number are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool(cls, value: Any, info: Any) -> Any:
        given = value.values() if isinstance(value, dict) else [value]
        wants = cls.model_fields[info.field_name].annotation is bool
        if not wants and any(isinstance(x, bool) for x in given):
            raise PydanticCustomError("bool", "true or false is not a value of this field")
        return value


class TaskConfig(Section):
    """Tasks of reasoning-gym, and which of their questions are never trained on."""

    mixture: dict[str, Annotated[float, Field(gt=0, le=LARGE)]] = knob(
        {"spell_backward": 1.0},
        "reasoning-gym tasks with their share of the prompts",
        "weight",
        f"names of reasoning-gym, weights above 0, to {LARGE}, e.g. "
        "{spell_backward: 2, leg_counting: 1}",
    )
    options: dict[str, dict[str, Any]] = knob(
        {},
        "reasoning-gym's own settings of a task",
        allowed="e.g. {leg_counting: {max_animals: 3}}; spell_backward has the next two fields",
    )
    min_letters: int = knob(3, "shortest word of spell_backward", "letters", ge=3, le=10)
    max_letters: int = knob(
        7, "longest word of spell_backward", "letters", "min_letters to 10", ge=3, le=10
    )
    held_out: int = knob(
        1000,
        "questions of each task (words of spell_backward) to evaluate, never trained on",
        "questions",
        ge=1,
    )
    instruction: str = knob(
        "", "text put before the task; must ask a real model for answer tags", "text", "any text"
    )

    @model_validator(mode="after")
    def _order(self) -> "TaskConfig":
        require(
            self.min_letters <= self.max_letters,
            f"task.max_letters = {self.max_letters}: must be at least task.min_letters = "
            f"{self.min_letters}",
        )
        require(len(self.mixture) > 0, "task.mixture = {}: name one task or more, with its weight")
        idle = self.options.keys() - self.mixture.keys()
        require(
            not idle,
            f"task.options: {', '.join(sorted(idle))} is not in task.mixture, which has "
            f"{', '.join(self.mixture)}",
        )
        require(
            "spell_backward" not in self.options,
            "task.options: spell_backward has task.min_letters and task.max_letters instead",
        )
        return self


class WarmstartConfig(Section):
    """How the tiny model is taught before reinforcement learning; the cache is keyed by this."""

    seed: int = knob(0, "seed of weights and demonstrations", allowed="0 to 2⁶³ − 1", **SEEDS)
    steps: int = knob(420, "supervised updates", "updates", **COUNT)
    batch: int = knob(32, "demonstrations per update", "sequences", **COUNT)
    lr: float = knob(3e-3, "peak learning rate", "per update", gt=0, le=1)
    always_right: int = knob(4, "answers up to here are shown right", "characters", ge=0)
    right_share: float = knob(0.32, "share of right demonstrations for longer answers", ge=0, le=1)
    short_exact: float = knob(
        0.8,
        "held-out questions with short answers that must be right before we stop",
        ge=0,
        le=1,
    )


class Config(Section):
    """Everything one training run depends on."""

    # what is trained, on what, and where it goes; ~ is the home folder
    model: str = knob(
        "tiny",
        "policy to start from",
        allowed="tiny, a folder, or a Hugging Face name",
        min_length=1,
    )
    output_dir: str = knob(
        "runs/grpo_tiny",
        "folder for log, checkpoints and final model",
        allowed="a path",
        min_length=1,
    )
    seed: int = knob(0, "seed of prompts and sampling", allowed="0 to 2⁶³ − 1", **SEEDS)
    lora_rank: int = knob(0, "rank of LoRA adapters; 0 trains all weights", ge=0, le=1024)
    lora_alpha: float = knob(
        32.0, "LoRA's update is scaled by lora_alpha / lora_rank", gt=0, le=LARGE
    )
    task: TaskConfig = TaskConfig()
    warmstart: WarmstartConfig = WarmstartConfig()

    # the algorithm: a row of policy_gradients.ALGORITHMS
    algorithm: str = knob("grpo", "row of the table of algorithms", allowed=", ".join(ALGORITHMS))
    # (below 1e-4 rounding alone would clip: it moves the ratio of a fresh sample by about 1e-6)
    eps_low: float | None = knob(
        None, "clip distance below a ratio of 1; empty: the row's", ge=1e-4, le=LARGE
    )
    eps_high: float | None = knob(
        None, "clip distance above a ratio of 1; empty: the row's", ge=1e-4, le=LARGE
    )
    kl_coef: float = knob(0.0, "weight of the KL to the starting model", "per nat", ge=0, le=LARGE)
    kl_in: Literal["row", "loss", "reward"] = knob(
        "row", "where the KL acts; row: where the row's paper puts it, in the loss if it has none"
    )
    kl_estimator: Literal["row", "k1", "k2", "k3"] = knob(
        "row", "how the KL is estimated from one sample; row: as the row does"
    )
    kl_credit: Literal["sequence", "to_go", "token"] = knob(
        "sequence",
        "which tokens pay for a token's KL in the reward: all of the response, those up to it, or "
        "itself only; not for a KL in the loss; with a critic always to_go, through GAE",
    )
    entropy_coef: float = knob(0.0, "weight of the entropy bonus", "per nat", ge=0, le=LARGE)
    importance: Literal["none", "token", "sequence"] = knob(
        "none",
        "weight the loss by π_learner/π_sampler, cut at importance_cap: per token or per response",
    )
    importance_cap: float = knob(2.0, "largest such weight", ge=1, le=LARGE)

    # the rewards
    reward_correctness: float = knob(
        1.0, "weight of reasoning-gym's score, 0 to 1", "reward", ge=0, le=LARGE
    )
    reward_format: float = knob(
        0.1, "weight of 'the whole response is one answer tag'", "reward", ge=0, le=LARGE
    )
    reward_length: float = knob(
        0.0, "weight of brevity, 1 − tokens/max_new_tokens", "reward", ge=0, le=LARGE
    )
    overlong: Literal["none", "penalty", "mask"] = knob(
        "none",
        "what becomes of long responses: nothing, DAPO's penalty added to the reward, or no "
        "gradient for those that were cut",
    )
    overlong_cache: int = knob(
        0,
        "length of the penalty's ramp below max_new_tokens",
        "tokens",
        "1 to max_new_tokens with overlong = penalty",
        ge=0,
    )

    # the critic, for rows without a group (ppo)
    critic: Literal["head", "model"] = knob(
        "model", "a network of its own, as large as the policy, or a value head on its states"
    )
    critic_lr: float = knob(
        5e-4, "learning rate of the critic's own weights", "per update", gt=0, le=1
    )
    critic_warmup: int = knob(0, "steps in which only the critic learns", "steps", ge=0)
    gamma: float = knob(1.0, "discount per token", gt=0, le=1)
    lam: float = knob(0.95, "λ of GAE", ge=0, le=1)
    whiten: bool = knob(True, "whiten the critic's advantages over the step's tokens")

    # one step
    prompts: int = knob(16, "prompts per step (P)", "prompts", **COUNT)
    group: int = knob(8, "responses per prompt (G)", "responses", **COUNT)
    micro_batch: int = knob(
        16,
        "prompts whose groups are in memory at once",
        "prompts",
        "a divisor of prompts / minibatches",
        ge=1,
    )
    epochs: int = knob(1, "passes over a batch of samples", "passes", **COUNT)
    minibatches: int = knob(1, "optimiser updates per pass", "updates", **COUNT)
    max_new_tokens: int = knob(12, "longest response", "tokens", **COUNT)
    temperature: float = knob(
        1.0, "softmax temperature of sampling and scoring alike", ge=1e-3, le=LARGE
    )
    resample_limit: int = knob(
        4, "most sampling rounds per step under dynamic sampling", "rounds", ge=1
    )

    max_staleness: int = knob(
        0,
        "in two processes (actor-learner): steps by which the policy that writes a batch may be "
        "behind the one that learns from it; 0 is what train does",
        "steps",
        ge=0,
        le=64,
    )

    # optimiser
    lr: float = knob(5e-4, "learning rate after warm-up", "per update", gt=0, le=1)
    lr_warmup: int = knob(5, "updates of linear warm-up", "updates", ge=0)
    weight_decay: float = knob(0.0, "AdamW's decay", "per update and unit of lr", ge=0, le=1)
    max_grad_norm: float = knob(1.0, "gradient norm is clipped to this", gt=0, le=LARGE)

    # length of the run
    steps: int = knob(240, "steps to train", "steps", ge=0)
    eval_every: int = knob(20, "held-out evaluation every so many steps", "steps", ge=1)
    eval_words: int = knob(1000, "held-out words evaluated", "words", ge=1)
    save_every: int = knob(20, "training checkpoint every so many steps", "steps", ge=1)
    record_steps: list[int] = knob(
        [], "steps written down token by token, to steps/", "steps", "a list such as [1, 20]"
    )

    # machine
    device: Literal["auto", "cpu", "cuda"] = knob(
        "auto", "where to compute; auto: a GPU if there is one"
    )
    dtype: Literal["float32", "bfloat16"] = knob(
        "float32",
        "arithmetic of the forward pass, and LoRA's frozen weights; what learns is float32",
    )
    threads: int = knob(1, "CPU threads; 1 is fastest for the tiny model", ge=1, le=1024)
    shared_prefix: bool = knob(True, "run each prompt once for its whole group when training")
    gradient_checkpointing: bool = knob(
        False, "recompute activations in backward: less memory, more time"
    )
    logprob_chunk: int = knob(
        1024,
        "tokens whose logits are held at once; the (batch, time, vocabulary) tensor never is",
        "tokens",
        ge=1,
    )
    shard: bool = knob(
        False,
        "split weights, gradients and optimiser over the processes of a run (FSDP), instead of "
        "keeping them whole on each",
    )
    compile: bool = knob(False, "torch.compile the network (for a GPU)")
    sampler: Literal["own", "vllm"] = knob(
        "own", "who writes the responses; vllm must be installed"
    )
    track: Literal["none", "tensorboard", "wandb"] = knob(
        "none", "also log there; it must be installed"
    )
    old_logprobs: Literal["auto", "sampler", "recompute"] = knob(
        "auto",
        "the ratio's denominator: kept from sampling, or recomputed by the learner; "
        "auto: kept in float32, recomputed in bfloat16 and where vLLM samples",
    )

    def row(self) -> Algorithm:
        """The table's row with this run's clip distances and KL weight.

        A KL weight acts where the row's paper puts it, unless `kl_in` says otherwise; rows without
        a KL get it in the loss.
        """
        row = ALGORITHMS[self.algorithm]
        given = {"eps_low": self.eps_low, "eps_high": self.eps_high}
        given = {name: value for name, value in given.items() if value is not None}
        require(
            row.knobs.keys() >= given.keys(),
            f"{', '.join(given)}: {self.algorithm} has no clip distance to set; its knobs are "
            f"{', '.join(row.knobs) or 'none'}",
        )
        placement = row.kl if self.kl_in == "row" else self.kl_in
        if self.kl_coef > 0 and placement == "none":
            placement = "loss"
        # Only k1 has the KL's gradient in the reward, and k1 has none in the loss: there k2 has.
        in_loss = k2 if row.kl_estimator is k1 else row.kl_estimator
        usual = k1 if placement == "reward" else in_loss
        return replace(
            row,
            knobs={**row.knobs, **given},
            kl=placement,
            kl_coefficient=self.kl_coef,
            kl_estimator=ESTIMATORS.get(self.kl_estimator, usual),
        )

    @field_validator("record_steps", mode="before")
    @classmethod
    def _step_numbers(cls, value: Any) -> Any:
        numbers = value if isinstance(value, list) else [None]
        require(
            all(type(n) is int and n >= 1 for n in numbers) and len({*numbers}) == len(numbers),
            f"record_steps = {value!r}: give a list of different step numbers, from 1 on, such as "
            "[1, 20]; [] records nothing",
        )
        return value

    @field_validator("model", "output_dir", mode="after")
    @classmethod
    def _home(cls, path: str) -> str:
        return os.path.expanduser(path)

    @property
    def recomputes_old(self) -> bool:
        """Whether the learner computes the ratio's denominator instead of keeping the sampler's."""
        differs = self.dtype == "bfloat16" or self.sampler == "vllm"
        return self.old_logprobs == "recompute" or (self.old_logprobs == "auto" and differs)

    def doubt(self) -> str:
        """What is allowed, but is not what the row's derivation assumes; empty if nothing is."""
        has_ratio = self.row().needs_old_logp and not self.recomputes_old
        if self.max_staleness > 0 and self.importance == "none" and not has_ratio:
            return (
                f"max_staleness = {self.max_staleness}: samples of older policies are trained on "
                "as if they were new, and nothing corrects for it. Set old_logprobs to recompute "
                "and importance to token or sequence"
            )
        if self.epochs * self.minibatches == 1 or self.row().needs_old_logp:
            return ""
        return (
            f"{self.algorithm} has no ratio to the policy that sampled: with epochs = "
            f"{self.epochs} and minibatches = {self.minibatches} all updates but the first of a "
            "batch are off-policy, and nothing corrects or clips them"
        )

    def _not_without(self, reason: str, *names: str) -> None:
        """Refuse these fields unless they have their defaults: they would change nothing."""
        default = {name: type(self).model_fields[name].default for name in names}
        idle = [f"{n} = {getattr(self, n)!r}" for n in names if getattr(self, n) != default[n]]
        require(not idle, f"{', '.join(idle)}: without effect, as {reason}")

    def _refuse_idle_fields(self, row: Algorithm) -> None:
        if self.kl_coef == 0:
            self._not_without("kl_coef is 0", "kl_in", "kl_estimator", "kl_credit")
        elif row.kl == "loss":
            self._not_without("the KL is in the loss, where no token pays for another", "kl_credit")
        if not row.needs_critic:
            fields = ("critic", "critic_lr", "critic_warmup", "gamma", "lam", "whiten")
            self._not_without(f"{self.algorithm} has no critic", *fields)
        if self.importance == "none":
            self._not_without("importance is 'none'", "importance_cap")
        if not row.dynamic_sampling:
            self._not_without(f"{self.algorithm} samples once a step", "resample_limit")
        if self.lora_rank == 0:
            self._not_without("lora_rank is 0", "lora_alpha")
        if self.model != "tiny":
            self._not_without(f"model = {self.model!r} needs no warm start", "warmstart")

    def _check_kl(self, row: Algorithm) -> None:
        if self.kl_coef == 0:
            return
        require(
            row.kl != "loss" or row.kl_estimator is not k1,
            "kl_estimator = 'k1': as a loss its gradient averages to zero, for any policy (with a "
            "mean per response, to a push towards longer ones); use k2 (at each token's state the "
            "gradient of KL(π‖π_ref)) or k3 (that of KL(π_ref‖π)), or kl_in = 'reward'",
        )
        require(
            row.kl != "reward" or row.kl_estimator is k1,
            f"kl_estimator = {self.kl_estimator!r}: paid as a reward, only k1 has the gradient of "
            "the KL; k2 and k3 have next to none of it near the reference, and far from it any "
            "share of it, the opposite sign included. Use k1, or kl_in = 'loss'",
        )
        require(
            self.kl_credit != "token" or not row.needs_critic,
            f"kl_credit = 'token': the critic's advantages ({self.algorithm}) add up what follows, "
            "by GAE; use to_go, or leave it out",
        )

    def _check_weights(self, row: Algorithm) -> None:
        require(
            self.importance == "none" or self.recomputes_old,
            f"importance = {self.importance!r}: it compares the learner's log-probabilities with "
            "the sampler's, but only the sampler's are kept; set old_logprobs to recompute",
        )
        if "mask" in inspect.signature(row.surrogate).parameters:  # a ratio of the whole response
            for name in ("kl_credit", "importance"):
                value = getattr(self, name)
                require(
                    value in ("none", "sequence"),
                    f"{name} = {value!r}: {self.algorithm} has one ratio for the whole response, "
                    "so what one token is given would reach all; use sequence",
                )
        require(
            self.overlong != "penalty" or row.advantage is not maxrl,
            f"overlong = 'penalty' makes rewards negative, and {self.algorithm} divides by their "
            "mean; use another row",
        )

    def _check_sizes(self, row: Algorithm) -> None:
        require(
            self.group > 1 or not row.needs_group,
            f"group = {self.group}: {self.algorithm} compares the responses to one prompt, "
            "so it needs 2 or more",
        )
        whole = [n for n in range(1, self.prompts + 1) if self.prompts % n == 0]
        require(
            self.minibatches in whole,
            f"minibatches = {self.minibatches}: must divide prompts = {self.prompts}; choose one "
            f"of {whole}",
        )
        part = self.prompts // self.minibatches
        require(
            part % self.micro_batch == 0,
            f"micro_batch = {self.micro_batch}: must divide the {part} prompts of a minibatch "
            f"(prompts = {self.prompts}, minibatches = {self.minibatches}); choose "
            f"one of {[n for n in whole if part % n == 0]}",
        )
        least, most = (1, self.max_new_tokens) if self.overlong == "penalty" else (0, 0)
        require(
            least <= self.overlong_cache <= most,
            f"overlong_cache = {self.overlong_cache}: with overlong = {self.overlong!r} it must be "
            + (f"1 to max_new_tokens = {most}" if most else "0"),
        )
        shortest = self.task.min_letters + 3  # two tags and the end token
        require(
            self.model != "tiny" or self.max_new_tokens >= shortest,
            f"max_new_tokens = {self.max_new_tokens}: no answer fits; the tiny model needs "
            f"{shortest} tokens for {self.task.min_letters} letters, two tags and the end",
        )

    def _check_records(self) -> None:
        require(
            not self.record_steps or self.minibatches == 1,
            f"record_steps = {self.record_steps}: a record shows one loss over the whole step, but "
            f"with minibatches = {self.minibatches} each update has its own; set minibatches to 1",
        )
        require(
            max(self.record_steps, default=0) <= self.steps,
            f"record_steps = {self.record_steps}: the run has only steps = {self.steps}",
        )

    def _check_machine(self, row: Algorithm) -> None:
        low, vllm, kept = self.dtype == "bfloat16", self.sampler == "vllm", "old_logprobs"
        kept_only = self.old_logprobs == "sampler"
        refused = {
            "gradient_checkpointing = true: a shared prefix lives in the attention cache, which "
            "checkpointing cannot recompute; set shared_prefix to false": (
                self.gradient_checkpointing and self.shared_prefix
            ),
            f"{kept} = 'sampler': in bfloat16 sampler and learner round differently, so the ratio "
            "would not start at 1; use auto or recompute": kept_only and low,
            f"{kept} = 'sampler': vLLM rounds otherwise than the learner, so the ratio would not "
            "start at 1; use auto or recompute": kept_only and vllm,
            f"temperature = {self.temperature}: vLLM samples at 0.01 or more; use that, or sampler "
            "= own": vllm and self.temperature < 0.01,
            "shard = true, shared_prefix = true: its two passes through one layer before a "
            "backward pass do not work on split weights; set shared_prefix to false": (
                self.shard and self.shared_prefix
            ),
            "shard = true, critic = 'model': a critic's own network is not split; use head": (
                self.shard and row.needs_critic and self.critic == "model"
            ),
            "shard = true, compile = true: not supported for split weights": (
                self.shard and self.compile
            ),
            "shard = true, sampler = 'vllm': it needs whole weights; use own": self.shard and vllm,
            f"shard = true, lora_rank = {self.lora_rank}: adapters are float32 beside bfloat16 "
            "weights, which cannot be split together; set dtype to float32, or shard to false "
            "(with adapters little is left to split)": self.shard and self.lora_rank > 0 and low,
        }
        for message, is_so in refused.items():
            require(not is_so, message)

    @model_validator(mode="after")
    def _possible(self) -> "Config":
        require(
            self.algorithm in ALGORITHMS,
            f"algorithm = {self.algorithm!r}: unknown; {closest(self.algorithm, ALGORITHMS)}",
        )
        row = self.row()
        self._refuse_idle_fields(row)
        self._check_kl(row)
        self._check_weights(row)
        self._check_sizes(row)
        self._check_records()
        self._check_machine(row)
        return self


class _Loader(yaml.SafeLoader):
    """YAML whose fields are names, each given once (YAML itself lets the last one win)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        names = [self.construct_object(key) for key, _ in node.value]
        for name in names:
            require(isinstance(name, str), f"{name!r} is not the name of a field")
            require(names.count(name) == 1, f"{name}: given twice")
        return super().construct_mapping(node, deep)


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or first_line(error)
        raise ConfigError(f"{where}{place}: not valid YAML: {problem}") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file, apply `key=value` overrides (dots reach into sections), validate.

    Raises ConfigError: no such file, not a mapping, a field given twice, an override without `=`,
    an unknown field, a value out of range, or fields that contradict each other.
    """
    path = Path(path)
    shipped = ", ".join(str(p) for p in sorted(CONFIGS.glob("*.yaml")))
    require(path.is_file(), f"no configuration file at {path}; the trainer ships {shipped}")
    try:
        values = _parse(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from None
    values = {} if values is None else values
    kind = type(values).__name__
    require(isinstance(values, dict), f"{path} must hold `field: value` lines, not a {kind}")
    for override in overrides:
        name, found, text = override.partition("=")
        name, where = name.strip(), f"--set {override}"
        require(found and all(name.split(".")), f"{where}: expected key=value, e.g. --set lr=1e-3")
        *sections, last = name.split(".")
        target = values
        for section in sections:
            inner = target.get(section) or {}
            require(isinstance(inner, dict), f"{where}: {section} has no fields inside")
            target[section] = target = dict(inner)
        target[last] = _parse(text, where)
    try:
        return build(values)
    except ConfigError as error:
        raise ConfigError(f"{error}\n(read from {path}{' and --set' * bool(overrides)})") from None


def build(values: dict[str, Any]) -> Config:
    """Validate a mapping; the same errors as `load`."""
    try:
        return Config(**values)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(e) for e in error.errors())) from None


def with_values(config: Config, **values: Any) -> Config:
    """A copy with some fields changed, validated again (for notebooks and tests)."""
    return build({**config.model_dump(), **values})


def describe(section: type[Section] = Config, prefix: str = "") -> str:
    """Every field on one line: name, default, unit, allowed values, meaning."""
    lines = []
    for name, field in section.model_fields.items():
        if isinstance(field.default, Section):
            lines.append(describe(type(field.default), f"{name}."))
        else:
            extra = field.json_schema_extra
            lines.append(
                f"{prefix + name:28} default {field.default!s:16} [{extra['unit']}] "
                f"allowed: {allowed_values(field)} - {field.description}"
            )
    return "\n".join(lines)


def _explain(error: dict[str, Any]) -> str:
    """One sentence for one pydantic error: field, value, what is allowed, what it means."""
    if isinstance(error.get("ctx", {}).get("error"), ConfigError):
        return str(error["ctx"]["error"])
    names = [str(part) for part in error["loc"]]
    section: type[Section] = Config
    depth = 0  # the error may lie inside a field's own value, as a weight in task.mixture
    while depth + 1 < len(names):
        inner = section.model_fields[names[depth]].default
        if not isinstance(inner, Section):
            break
        section, depth = type(inner), depth + 1
    name, full_name = names[depth], ".".join(names)
    if name not in section.model_fields:
        return f"{full_name}: unknown field; {closest(name, section.model_fields)}"
    field = section.model_fields[name]
    given = f"{full_name} = {error['input']!r}"
    if isinstance(field.default, Section):
        inside = ", ".join(type(field.default).model_fields)
        return f"{given}: this is a section; set its fields, as {full_name}.NAME ({inside})"
    extra = field.json_schema_extra
    return (
        f"{given}: {error['msg'].lower()}; allowed: {allowed_values(field)} [{extra['unit']}], "
        f"default {field.default!s}. Meaning: {field.description}."
    )


def closest(name: str, known: Iterable[str]) -> str:
    """For the end of a message: the known names, and one that looks like this one."""
    known = list(known)
    match = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {match[0]!r}? " if match else ""
    return f"{hint}Allowed: {', '.join(known)}"
