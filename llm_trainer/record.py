"""One step of a run, token by token, as a JSON file that can be looked at afterwards.

`--set record_steps=[1,20]` makes the trainer write `output_dir/steps/step_0001.json` and
`step_0020.json`; `load_record` reads them back and refuses anything else. Recording changes no
number of the run: it runs the model a few more times without gradient.

A record holds the whole step, also the groups that were never computed because they teach nothing.
Its fields are those of `Record` and of the classes above it. All numbers are finite and rounded to
six significant digits; log-probabilities are natural ones; a list per token has no padding.
Left out: logits, entropy, gradients of weights, and anything of the optimiser.
"""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from llm_trainer.config import RunError, first_line

if TYPE_CHECKING:  # only the recorder needs them; reading a record should not load transformers
    from torch import Tensor

    from llm_trainer.batch import StepBatch
    from llm_trainer.step import Learner

SCHEMA_VERSION = 1
FOLDER = "steps"
PATTERN = f"{FOLDER}/step_*.json"
ROUNDING = 1e-3  # how far sums and log-probabilities may be off: float32, then six digits


def _comparable(reward: float) -> float:
    if abs(reward) > 1e18:  # its square overflows in float32
        raise PydanticCustomError("large", "Too large for a standard deviation; at most 1e18")
    return reward


Reward = Annotated[float, AfterValidator(_comparable)]
Count = Annotated[int, Field(ge=1)]


class RecordError(ValueError):
    """This is not a step record; the text says where and what was expected."""


def record_path(step: int) -> str:
    """Where the record of a step lies inside a run's folder."""
    return f"{FOLDER}/step_{step:04d}.json"


# ---------------------------------------------------------------------------- what is in a record


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Run(_Part):
    """Where the record comes from, as configured."""

    name: str
    algorithm: str
    model: str = ""
    loss: str = ""
    knobs: dict[str, float] = {}  # of the row's surrogate
    kl: str = "none"
    kl_coefficient: float = 0.0
    epochs: Count = 1
    seed: int = 0


class Counts(_Part):
    """What the averages of the step divide by; never those of the part that is shown."""

    sequences: Annotated[int, Field(ge=0)]  # 0 if dynamic sampling discarded everything
    tokens: Annotated[int, Field(ge=0)]  # response tokens
    length: Count  # the token limit


class Update(_Part):
    """One optimiser update on the step's samples."""

    logp: list[float]  # per token: the learner's, just before the update


class Response(_Part):
    """One response; the lists have one entry per token."""

    text: str  # before the end token
    ended: bool
    reward: Reward
    parts: dict[str, float] = {}  # what the reward is made of
    token_ids: list[int]
    tokens: list[str]  # their texts, the end token included
    advantages: (
        list[float] | None
    )  # as computed: one for the response or per token; null: discarded
    logp_sampler: list[float]
    logp_old: list[float]  # the ratio's denominator
    logp_ref: list[float] | None = None  # null in a run without a KL term
    values: list[float] | None = None  # null without a critic
    updates: list[Update]  # empty if the step was skipped

    @model_validator(mode="after")
    def _one_entry_per_token(self) -> "Response":
        time = len(self.tokens)
        _hold(time > 0, "tokens: empty; a response has at least one token")
        per_token = ("token_ids", "logp_sampler", "logp_old", "logp_ref", "values")
        lists = {name: getattr(self, name) for name in per_token}
        lists |= {f"updates[{i}].logp": u.logp for i, u in enumerate(self.updates)}
        for name, values in lists.items():
            if values is not None:
                _hold(len(values) == time, f"{name}: {len(values)} entries for {time} tokens")
                _hold(
                    "logp" not in name or max(values) <= ROUNDING,
                    f"{name}: a log-probability above 0 is no log-probability",
                )
        _hold(
            self.advantages is None or len(self.advantages) in (1, time),
            f"advantages: {len(self.advantages or ())} entries; one for the response or one for "
            f"each of its {time} tokens",
        )
        return self


class Group(_Part):
    """The responses to one prompt."""

    index: int | None  # its row in `rewards`; null for a discarded group
    prompt: str  # the text the model saw, chat markers included
    # silent: counted, but not computed, as every advantage is 0; discarded: replaced by dynamic
    # sampling, not counted
    status: Literal["trained", "silent", "discarded"]
    responses: list[Response]


class Record(_Part):
    """A whole step, or some of its groups."""

    schema_version: Literal[1]
    run: Run
    step: Annotated[int, Field(ge=0)]  # from 1 in records of the trainer
    temperature: Annotated[float, Field(gt=0)]  # of sampling and scoring
    group: Count  # G, responses per prompt
    counts: Counts
    rewards: list[list[Reward]]  # (prompts, G), also of groups that are not shown
    groups: Annotated[list[Group], Field(min_length=1)]

    @model_validator(mode="after")
    def _fits_together(self) -> "Record":
        size, rows = self.group, len(self.rewards)
        _hold(
            all(len(row) == size for row in self.rewards),
            f"rewards: every row must hold the group's {size} rewards",
        )
        _hold(
            self.counts.sequences == rows * size,
            f"counts.sequences = {self.counts.sequences}, but rewards has {rows} x {size}",
        )
        for i, group in enumerate(self.groups):
            self._check_group(group, f"groups[{i}]")
        counted = [group for group in self.groups if group.status != "discarded"]
        _hold(
            len({group.index for group in counted}) == len(counted),
            "groups: two of them have the same index",
        )
        shown = sum(len(r.tokens) for group in counted for r in group.responses)
        _hold(
            shown <= self.counts.tokens,
            f"counts.tokens = {self.counts.tokens}, but the groups shown already hold {shown}",
        )
        return self

    def _check_group(self, group: Group, where: str) -> None:
        """As many responses, updates and lists as all others, and the rewards of its row."""
        _hold(
            len(group.responses) == self.group,
            f"{where}.responses: {len(group.responses)}, but group = {self.group}",
        )
        first = self.groups[0].responses[0]
        for name in ("logp_ref", "values"):
            given = {getattr(r, name) is None for r in group.responses}
            _hold(
                given == {getattr(first, name) is None},
                f"{where}: {name} must be there for all responses or for none",
            )
        _hold(
            {len(r.updates) for r in group.responses} == {len(first.updates)},
            f"{where}: every response must have the same {len(first.updates)} updates",
        )
        discarded = group.status == "discarded"
        _hold(
            (group.index is None) == discarded
            and (discarded or 0 <= group.index < len(self.rewards)),
            f"{where}.index = {group.index}: one of the {len(self.rewards)} rows of rewards, null "
            "for a discarded group",
        )
        if not discarded:
            own = [r.reward for r in group.responses]
            _hold(
                all(map(_close, own, self.rewards[group.index])),
                f"{where}: its rewards are not those of row {group.index} of rewards",
            )
            _hold(
                all(r.advantages is not None for r in group.responses),
                f"{where}: a {group.status} group must have advantages",
            )

    @property
    def updates(self) -> int:
        """Updates made on these samples; 0 if the step was skipped."""
        return len(self.groups[0].responses[0].updates)

    def take(self, indices: list[int]) -> "Record":
        """The record with only these entries of `groups`, in this order.

        The counts and rewards stay those of the whole step, so advantages and averages do too.
        """
        return self.model_copy(update={"groups": [self.groups[i] for i in indices]})

    def save(self, path: Path) -> None:
        """Write it as compact JSON."""
        text = json.dumps(self.model_dump(), ensure_ascii=False, allow_nan=False, indent=None,
                          separators=(",", ":"))  # fmt: skip
        path.write_text(text + "\n", encoding="utf-8")


def load_record(source: str | Path | dict[str, Any] | Record) -> Record:
    """Read a record from a file or a dict (as `Record.model_dump()` gives it), and check it.

    Raises RecordError: no such file, not JSON, another schema, a field that is missing, unknown or
    of the wrong kind, a number that is not finite, a reward beyond 1e18, lists that do not fit
    together.
    """
    if isinstance(source, Record):
        return source
    where = "this record"
    if isinstance(source, str | Path):
        where, source = str(source), _read(Path(source))
    if not isinstance(source, dict):
        raise RecordError(
            f"{where}: a record is a path or a mapping, not a {type(source).__name__}"
        )
    version = source.get("schema_version")
    if version is None:
        raise RecordError(f"{where}: this is no step record (it has no schema_version)")
    if version != SCHEMA_VERSION:
        raise RecordError(
            f"{where}: schema_version is {version!r}, this code reads {SCHEMA_VERSION}"
        )
    try:
        return Record(**source)
    except ValidationError as error:
        raise RecordError(f"{where}: {_explain(error.errors()[0])}") from None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(
            f"{path}: {(error.strerror or first_line(error)).lower()}; the trainer writes records "
            "with --set record_steps=[20] to output_dir/steps/step_0020.json"
        ) from None
    except ValueError as error:
        raise RecordError(f"{path}: not a JSON file ({first_line(error)})") from None


def six_digits(values: Any) -> list[float]:
    """Rounded to six significant digits, which is what float32 is good for.

    Raises RunError for a number that is not finite.
    """
    rounded = [float(f"{float(x):.6g}") for x in values]
    if not all(map(math.isfinite, rounded)):
        raise RunError("a number of the step record is not finite: the policy's weights overflow")
    return rounded


def _hold(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _close(one: float, two: float) -> bool:
    return abs(one - two) <= ROUNDING * max(1.0, abs(one))


def _explain(error: dict[str, Any]) -> str:
    """One sentence for one pydantic error: where, what is wrong."""
    where = ""
    for part in error["loc"]:
        where += f"[{part}]" if isinstance(part, int) else f".{part}" if where else part
    own = error.get("ctx", {}).get("error")
    if own is not None:
        return f"{where}.{own}" if where else str(own)
    if error["type"] == "missing":
        return f"{where} is missing"
    if error["type"] == "extra_forbidden":
        return f"{where}: a record has no such field"
    return f"{where} = {str(error['input'])[:40]}: {error['msg'][0].lower()}{error['msg'][1:]}"


# ---------------------------------------------------------------------------- how it is taken


class Recorder:
    """Looks on while one step is made and builds its record; changes nothing of the run."""

    def __init__(self, learner: "Learner", step: int, loss: str):
        self.learner, self.step, self.loss = learner, step, loss
        self.batches: list[tuple[StepBatch, bool]] = []  # (batch, whether it was discarded)
        self.logp: list[list[Tensor]] = []  # per update, per batch (batch, time)

    def see(self, batch: "StepBatch", *, discarded: bool = False) -> None:
        """Groups as they were sampled and scored, before anything is dropped."""
        self.batches.append((self.learner.measure(batch), discarded))

    def before_update(self) -> None:
        """One more forward over everything, without gradient, also over what is not trained."""
        policy = self.learner.policy
        self.logp.append([self.learner.frozen_log_probs(policy, b) for b, _ in self.batches])

    def record(self) -> Record:
        """The step as it was; raises RunError for a number that is not finite."""
        config, row = self.learner.config, self.learner.row
        in_step = [batch for batch, discarded in self.batches if not discarded]
        run = {
            "name": Path(config.output_dir).name,
            "algorithm": config.algorithm,
            "model": Path(config.model).name,  # of a folder only its name: paths are private
            "loss": self.loss,
            "knobs": {name: float(value) for name, value in row.knobs.items()},
            "kl": row.kl if row.needs_reference else "none",
            "kl_coefficient": row.kl_coefficient,
            "epochs": config.epochs,
            "seed": config.seed,
        }
        return load_record(
            {
                "schema_version": SCHEMA_VERSION,
                "run": run,
                "step": self.step,
                "temperature": config.temperature,
                "group": config.group,
                "counts": {
                    "sequences": sum(b.sequences for b in in_step),
                    "tokens": sum(b.total_tokens for b in in_step),
                    "length": config.max_new_tokens,
                },
                "rewards": [six_digits(row) for b in in_step for row in b.rewards.tolist()],
                "groups": [group for i in range(len(self.batches)) for group in self._groups(i)],
            }
        )

    def _groups(self, part: int) -> list[dict[str, Any]]:
        batch, discarded = self.batches[part]
        tokenizer = self.learner.policy.tokenizer
        teaches = self.learner.teaches(batch).tolist()
        groups = []
        for i, (ids, attended) in enumerate(
            zip(batch.prompts.tokens.tolist(), batch.prompts.attention.tolist(), strict=True)
        ):
            prompt = [t for t, real in zip(ids, attended, strict=True) if real]
            members = range(i * batch.group, (i + 1) * batch.group)
            status = "trained" if teaches[i] else "silent"
            groups.append(
                {
                    "index": None if discarded else i,
                    "prompt": tokenizer.decode(prompt, skip_special_tokens=False),
                    "status": "discarded" if discarded else status,
                    "responses": [self._response(part, row) for row in members],
                }
            )
        return groups

    def _response(self, part: int, row: int) -> dict[str, Any]:
        batch, discarded = self.batches[part]
        policy = self.learner.policy
        time = int(batch.mask[row].sum())
        ids = batch.tokens[row, :time].tolist()
        cell = divmod(row, batch.group)

        def numbers(x: "Tensor") -> list[float]:
            return six_digits(x[row, :time].tolist())

        updates = [logp[part] for logp in self.logp]
        recomputed = not self.learner.keep_sampler_logp and updates
        return {
            "text": policy.text(ids),
            "ended": policy.end_id in ids,
            "reward": six_digits([batch.rewards[cell]])[0],
            "parts": {
                name: six_digits([part[cell]])[0]
                for name, part in {**batch.parts, "correct": batch.correct}.items()
            },
            "token_ids": ids,
            "tokens": [policy.tokenizer.decode([t], skip_special_tokens=False) for t in ids],
            "advantages": None if discarded else numbers(batch.advantages),
            "logp_sampler": numbers(batch.logp_sampler),
            "logp_old": numbers(updates[0] if recomputed else batch.logp_sampler),
            "logp_ref": None if batch.logp_ref is None else numbers(batch.logp_ref),
            "values": None if batch.values_old is None else numbers(batch.values_old),
            "updates": [{"logp": numbers(logp)} for logp in updates],
        }
