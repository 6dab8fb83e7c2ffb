"""The numbers behind the step inspector: every token's gradient weight under every algorithm.

    step = view(load_record("runs/x/steps/step_0020.json"))   # what the browser draws
    rows = weights(record, {**ALGORITHMS, "mine": mine})      # d(loss)/d(log π), by autograd

A weight is −∂loss/∂log π of one sampled token, times a stated power of ten: positive pushes the
token's probability up. Everything is computed by `policy_gradients` in float64, on the record's
own samples and with the denominators of the record's whole step.

Two things a record cannot know are replaced, and the row's note says so: without a critic V is the
group's mean reward at every token (γ = λ = 1), and without a reference β is 0. A penalty that a row
puts into the reward is known for the groups shown only.
Leaves out: the gradient of the weights of the network, and a critic's own loss.
"""

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from llm_trainer.record import SCHEMA_VERSION, Record, load_record, six_digits
from policy_gradients import advantages, aggregation, kl, surrogates
from policy_gradients.algorithms import ALGORITHMS, Algorithm, Batch
from policy_gradients.filters import dapo_filter
from toy_models.policies import Policy, check_prompts

MOST_TOKENS = 2_000  # drawn at once; more would no longer feel instant
NO_SIGNAL = 1e-6  # an advantage this small is rounding: the rewards were all the same
LABELS = {
    "reinforce": "REINFORCE", "rloo": "RLOO", "ppo": "PPO", "grpo": "GRPO", "dr_grpo": "Dr. GRPO",
    "gspo": "GSPO", "cispo": "CISPO", "dapo": "DAPO", "sapo": "SAPO", "maxrl": "MaxRL",
}  # fmt: skip
# What the browser has a formula for; a row with anything else shows Python's numbers alone.
SURROGATES = ("reinforce", "unclipped", "ppo_clip", "gspo", "cispo", "sapo")
AVERAGES = ("mean_per_sequence", "mean_per_token", "mean_fixed_length", "sum_per_sequence")
ESTIMATORS = ("k1", "k2", "k3")
ADVANTAGES = (
    "group_standardized", "group_centered", "leave_one_out", "batch_centered", "maxrl", "max_only",
)  # fmt: skip

Own = Algorithm | Callable[..., Tensor]  # a row, or a loss with the signature of grpo_loss


# --- the record as tensors ----------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """The shown groups of a record; batch = shown prompts · group, padded with 0."""

    record: Record
    mask: Tensor  # (batch, time) bool
    rewards: Tensor  # (prompts, group) of the whole step
    index: list[int | None]  # row of `rewards` for each shown group
    old: Tensor  # (batch, time) nats
    sampler: Tensor
    reference: Tensor | None
    values: Tensor | None
    updates: list[Tensor]  # (batch, time) each; the old ones if no update was made

    @property
    def own_rewards(self) -> Tensor:
        """(batch,) of the shown responses."""
        return torch.tensor(
            [r.reward for g in self.record.groups for r in g.responses], dtype=torch.float64
        )


def tensors(record: Record) -> Step:
    """Pad the record's lists."""
    responses = [r for group in record.groups for r in group.responses]
    width = max(len(r.tokens) for r in responses)

    def padded(pick: Callable) -> Tensor:
        rows = [pick(r) + [0.0] * (width - len(r.tokens)) for r in responses]
        return torch.tensor(rows, dtype=torch.float64)

    def optional(name: str) -> Tensor | None:
        missing = getattr(responses[0], name) is None
        return None if missing else padded(lambda r: getattr(r, name))

    old = padded(lambda r: r.logp_old)
    made = [padded(lambda r, u=u: r.updates[u].logp) for u in range(record.updates)]
    return Step(
        record=record,
        mask=padded(lambda r: [1.0] * len(r.tokens)).bool(),
        rewards=torch.tensor(record.rewards, dtype=torch.float64).view(
            len(record.rewards), record.group
        ),
        index=[group.index for group in record.groups],
        old=old,
        sampler=padded(lambda r: r.logp_sampler),
        reference=optional("logp_ref"),
        values=optional("values"),
        updates=made or [old],
    )


# --- one algorithm on it ------------------------------------------------------------------------


def weights(record: Record, algorithms: Mapping[str, Own]) -> list[dict[str, Any]]:
    """For each algorithm what the browser needs: its parts by name, advantages, weights, gates.

    algorithms : key → a row, or a loss; the key is what a learner chooses by
    weights : per update, per token, −∂loss/∂log π · scale, to four significant digits
    bare    : the same without the row's KL; None where it has none in the loss
    gates   : per update a text with one letter per token: "h" no gradient with A > 0, "l" no
              gradient with A < 0 and ρ < 1, "d" no gradient with A < 0 and ρ ≥ 1 (dual clip),
              "b" ratio cut to the upper bound (CISPO), "f" ratio raised to its floor (CISPO),
              "." none of these, as is every token with A = 0
    A row that cannot be computed on this record is left out; `row(step, algorithm)` says why.
    """
    step, rows = tensors(record), []
    for key, algorithm in algorithms.items():
        try:
            rows.append({"key": key, "label": LABELS.get(key, key)} | row(step, algorithm))
        except ValueError:
            continue
    return rows


def row(step: Step, algorithm: Own, exact: bool = False) -> dict[str, Any]:
    """One algorithm on one record; raises ValueError where it cannot be computed on it.

    exact : weights with all their digits
    """
    known = isinstance(algorithm, Algorithm)
    table = algorithm if known else replace(ALGORITHMS["grpo"], kl="none", kl_coefficient=0.0)
    notes = []
    if table.needs_reference and step.reference is None:
        table = replace(table, kl="none", kl_coefficient=0.0)
        notes.append("The record has no reference log-probabilities, so β is 0 here.")
    bare = replace(table, kl="none", kl_coefficient=0.0)
    loss, bare_loss = table.loss, bare.loss
    if not known:
        from llm_trainer.loss_file import own_loss  # which a row of the table never needs

        loss = bare_loss = own_loss(algorithm, bare)
        notes.append("Your own loss, with GRPO's advantages and clip distances; numbers by Python.")
        notes += _averages_a_part(algorithm, step)
    given, extra = _advantages(step, table)
    given = torch.where(given.abs() < NO_SIGNAL, 0.0, given)
    if table.needs_critic:
        own = step.values is not None
        notes.append(
            "The critic's values come from the record, γ = λ = 1."
            if own
            else "The record has no critic: V is the group's mean reward at every token, γ = λ = 1."
        )
    counted, dropped = _counted(step, table)
    if dropped:
        notes.append(
            "Dynamic sampling would have replaced the groups that are all right or all wrong; they "
            "are left out here, and the averages still divide by this step's counts."
        )
    mask = step.mask & counted
    scale = scale_of(step.record)

    def listed(gradient: Tensor) -> list[float]:
        numbers = (-scale * gradient)[step.mask].tolist()
        return numbers if exact else [_digits(x, 4) for x in numbers]

    per_update, without_kl, gates = [], [], []
    for logp in step.updates:
        per_update.append(listed(_gradient(loss, step, logp, given, extra, mask)))
        gradient = _gradient(bare_loss, step, logp, given, extra, mask)
        without_kl.append(listed(gradient))
        gates.append(_gates(bare, step, logp, given, (gradient == 0) & mask, mask))
    per_token = given.shape[1] > 1
    flat = given.expand(step.mask.shape)[step.mask] if per_token else given[:, 0]
    beta = table.kl_coefficient if table.kl == "loss" else 0.0
    parts = {
        "surrogate": _known(bare.surrogate, SURROGATES, surrogates),
        "average": _known(bare.aggregation, AVERAGES, aggregation),
        "estimator": _known(table.kl_estimator, ESTIMATORS, kl) if beta else "k3",
    }
    formula = known and all(parts.values())
    penalty = table.kl_coefficient if table.kl == "reward" else 0.0
    return {
        "formula": formula,
        **parts,
        "knobs": dict(bare.knobs),
        "beta": beta,
        "advantage": _advantage_name(table),
        "penalty": penalty,
        "scores": _scores(step, table).tolist() if penalty and not table.needs_critic else None,
        "advantages": flat.tolist(),
        "per_token": per_token,
        "dropped": dropped,
        "weights": per_update,
        "bare": without_kl if beta else None,
        "gates": gates,
        "note": " ".join(notes),
    }


def _averages_a_part(loss: Callable, step: Step) -> list[str]:
    """A warning, if the loss must average over the tokens it sees and they are not the whole step.

    `own_loss` has shown that it can be called.
    """
    parameters = inspect.signature(loss).parameters.values()
    told = any(p.kind is p.VAR_KEYWORD or p.name in ("sequences", "tokens") for p in parameters)
    shown = sum(len(r.tokens) for g in step.record.groups if g.index is not None
                for r in g.responses)  # fmt: skip
    whole = step.record.counts.tokens
    if told or shown == whole:
        return []
    return [
        f"It takes neither `tokens` nor `sequences`, and only {shown} of the step's {whole:,} "
        "tokens are here: an average over what it sees, as mask.sum() gives, makes every weight "
        "larger than in the run. Take `tokens` as an argument and divide by it."
    ]


def scale_of(record: Record) -> float:
    """The power of ten next to the step's tokens: typical weights come out near 1."""
    return 10.0 ** round(math.log10(max(1, record.counts.tokens)))


def _counted(step: Step, table: Algorithm) -> tuple[Tensor, list[int]]:
    """((batch, 1) bool: responses that the loss sees, shown groups that the row itself drops)."""
    groups = step.record.groups
    counted = torch.tensor([group.status != "discarded" for group in groups])
    dropped: list[int] = []
    judged = all("correct" in r.parts for group in groups for r in group.responses)
    if table.dynamic_sampling and judged:
        correct = [[r.parts["correct"] for r in group.responses] for group in groups]
        keep = dapo_filter(torch.tensor(correct, dtype=torch.float64))
        dropped = (counted & ~keep).nonzero().flatten().tolist()
        counted = counted & keep
    return counted.repeat_interleave(step.record.group)[:, None], dropped


def _scores(step: Step, table: Algorithm) -> Tensor:
    """(batch,) what the advantages of the shown responses are computed from."""
    return table.sequence_rewards(step.own_rewards, step.sampler, step.reference, step.mask)


def _advantages(step: Step, table: Algorithm) -> tuple[Tensor, dict[str, Tensor]]:
    """(batch, 1) or (batch, time), and what a critic's loss needs."""
    if table.needs_critic:
        return _critic_advantages(step, table)
    group = step.record.group
    shown = _scores(step, table).view(-1, group)
    everything = step.rewards.clone()
    for i, at in enumerate(step.index):
        if at is not None:
            everything[at] = shown[i]
    found = table.advantage(everything) if len(everything) else everything
    nothing = torch.zeros(group, dtype=torch.float64)
    rows = [nothing if at is None else found[at] for at in step.index]
    return torch.stack(rows).reshape(-1, 1), {}


def _critic_advantages(step: Step, table: Algorithm) -> tuple[Tensor, dict[str, Tensor]]:
    mask, scores = step.mask, step.own_rewards
    if table.kl == "reward" and table.kl_coefficient > 0:
        rewards = advantages.shape_rewards_with_kl(
            scores, step.old, step.reference, mask, beta=table.kl_coefficient
        )
    else:
        rewards = advantages.shape_rewards_with_kl(scores, step.old, step.old, mask, beta=0.0)
    if step.values is not None:
        values = step.values
    else:
        mean = scores.view(-1, step.record.group).mean(1, keepdim=True)
        values = mean.expand(-1, step.record.group).reshape(-1, 1).expand(mask.shape)
    done = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    given, returns = advantages.gae(rewards, values, done, gamma=1.0, lam=1.0)
    return given, {"values": values, "values_old": values, "returns": returns}


def _gradient(
    loss: Callable[[Batch], Tensor],
    step: Step,
    logp: Tensor,
    given: Tensor,
    extra: dict[str, Tensor],
    mask: Tensor,
) -> Tensor:
    """(batch, time) ∂loss/∂log π, 0 where the loss does not look."""
    logp = logp.clone().requires_grad_()
    counts = step.record.counts
    value = loss(
        Batch(
            logp=logp,
            logp_old=step.old,
            advantages=given,
            mask=mask,
            logp_ref=step.reference,
            sequences=max(1, counts.sequences),
            tokens=max(1, counts.tokens),
            length=counts.length,
            **extra,
        )
    )
    if not value.requires_grad:
        raise ValueError("the loss has no gradient: compute it from logp, and do not detach it")
    gradient = torch.autograd.grad(value, logp)[0]
    if not torch.isfinite(gradient).all():
        raise ValueError("the gradient of the loss is NaN or infinite on this record")
    return torch.where(mask, gradient, 0.0)


def _gates(
    bare: Algorithm, step: Step, logp: Tensor, given: Tensor, silent: Tensor, mask: Tensor
) -> str:
    given = given.expand(mask.shape)
    ratio = (logp - step.old).exp()
    letters = torch.full(mask.shape, ord("."))
    letters[silent & (given > 0)] = ord("h")
    letters[silent & (given < 0)] = ord("l")
    if bare.surrogate is not surrogates.gspo:  # whose ratio is the sequence's
        letters[silent & (given < 0) & (ratio >= 1)] = ord("d")
    if bare.surrogate is surrogates.cispo:
        pushed = mask & (given != 0)
        letters[pushed & (ratio > 1 + bare.knobs["eps_high"])] = ord("b")
        letters[pushed & (ratio < 1 - bare.knobs["eps_low"])] = ord("f")
    return "".join(map(chr, letters[step.mask].tolist()))


def _known(function: Callable, names: tuple[str, ...], module: Any) -> str | None:
    """The name under which the browser knows this function."""
    return next((name for name in names if getattr(module, name) is function), None)


def _advantage_name(table: Algorithm) -> str:
    if table.needs_critic:
        return "critic"
    known = _known(table.advantage, ADVANTAGES, advantages)
    return known or getattr(table.advantage, "__name__", "your own function")


def _digits(x: float, digits: int) -> float:
    return float(f"{x:.{digits}g}")


# --- what the browser draws ---------------------------------------------------------------------


def view(record: Record) -> dict[str, Any]:
    """The record as flat lists over its tokens, in order, as JSON values."""
    step, run = tensors(record), record.run
    responses = [r for group in record.groups for r in group.responses]
    ends, start = [], 0
    for response in responses:
        ends.append([start, start + len(response.tokens)])
        start = ends[-1][1]
    algorithm = LABELS.get(run.algorithm, run.algorithm)
    if run.loss and not run.loss.endswith("(the row's)"):
        algorithm += f" with the loss {run.loss}"
    made = f"{record.updates} update{'s' * (record.updates != 1)} on its samples"
    shown = sum(group.index is not None for group in record.groups)
    of = f", {shown} of its {len(record.rewards)} prompts" if shown < len(record.rewards) else ""
    rewards = step.rewards
    return {
        "source": f"{run.name}, step {record.step}: {algorithm}, "
        + (made if record.updates else "no update was made")
        + of,
        "scale": scale_of(record),
        "counts": record.counts.model_dump(),
        "group": record.group,
        "batch_mean": rewards.mean().item() if rewards.numel() else 0.0,
        "groups": [
            {
                "label": short(question(group.prompt)),
                "prompt": question(group.prompt),
                "discarded": group.status == "discarded",
                "alike": len({r.reward for r in group.responses}) == 1,
            }
            for group in record.groups
        ],
        "responses": [
            {
                "span": span,
                "reward": r.reward,
                "parts": dict(r.parts),
                "answer": short(answer(r.text)),
                "ended": r.ended,
            }
            for span, r in zip(ends, responses, strict=True)
        ],
        "texts": [visible(text) for r in responses for text in r.tokens],
        "old": step.old[step.mask].tolist(),
        "ref": None if step.reference is None else step.reference[step.mask].tolist(),
        "logp": [logp[step.mask].tolist() for logp in step.updates],
        "made": record.updates,
    }


def fitting(record: Record) -> Record:
    """The first whole groups that hold at most MOST_TOKENS tokens."""
    total, chosen = 0, []
    for i, group in enumerate(record.groups):
        total += sum(len(r.tokens) for r in group.responses)
        if total > MOST_TOKENS:
            break
        chosen.append(i)
    if not chosen:
        raise ValueError(
            f"record: its first group alone has {total} tokens, and at most {MOST_TOKENS} are "
            "drawn; choose a smaller group with record.take([i])"
        )
    return record.take(chosen)


def question(prompt: str) -> str:
    """The user's turn of a chat prompt without its markers; any other prompt as it is."""
    found = re.search(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", prompt, re.DOTALL)
    return found.group(1) if found else prompt


def answer(text: str) -> str:
    """What stands inside an answer tag that is the whole response; any other text as it is."""
    found = re.fullmatch(r"<answer>(.*)</answer>", text, re.DOTALL)
    return found.group(1) if found else text


def short(text: str, most: int = 24) -> str:
    """One short line: what follows the last colon if there is one, cut at `most` characters."""
    line = " ".join(text.split())
    line = line.rsplit(": ", 1)[-1] if len(line) > most else line
    return line if len(line) <= most else line[: most - 1] + "…"


def visible(token: str) -> str:
    """The token with its white space made visible."""
    return token.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥") or "∅"


# --- a record of the toy ------------------------------------------------------------------------


def record_from_policies(
    policy: Policy | Sequence[Policy],
    policy_old: Policy,
    prompts: Tensor,
    reward: Callable[[Tensor, Tensor], Tensor],
    *,
    group: int,
    seed: int,
    reference: Policy | None = None,
    correct: Callable[[Tensor, Tensor], Tensor] | None = None,
    temperature: float = 1.0,
    name: str = "toy",
) -> Record:
    """A step record of a toy policy: `policy_old` samples, `policy` is what is being trained.

    policy    : one policy, or a list of them: the learner before each update on these samples
    prompts   : (prompts, L)     reward(prompts, responses) as in `toy_models.sorting`
    group     : responses per prompt     seed : of the sampling
    reference : gives `logp_ref`, for rows with a KL
    correct   : as `reward`, 1 where a response is right, for rows with dynamic sampling

    Returns the same Record as `llm_trainer.record.load_record` does; `StepInspector` shows it.
    Raises like the policies, and RecordError for numbers that are not finite.
    """
    prompts = check_prompts(prompts)
    learners = [policy] if isinstance(policy, Policy) else list(policy)
    responses = policy_old.sample(prompts, group, seed=seed, temperature=temperature)
    mask = policy_old.mask(responses)
    by_prompt = responses.unflatten(0, (-1, group))  # (prompts, group, time)
    rewards = reward(prompts[:, None], by_prompt)  # (prompts, group)
    right = None if correct is None else correct(prompts[:, None], by_prompt)
    eos = policy_old.eos_id

    @torch.no_grad()
    def logp(model: Policy) -> list[list[float]]:
        rows = model.log_probs(prompts, responses, temperature=temperature)
        return [six_digits(row[valid].tolist()) for row, valid in zip(rows, mask, strict=True)]

    old = logp(policy_old)
    ref = None if reference is None else logp(reference)
    updates = [logp(learner) for learner in learners]
    advantage = ALGORITHMS["grpo"].advantage(rewards.double())

    def response(i: int) -> dict[str, Any]:
        ids = responses[i][mask[i]].tolist()
        cell = divmod(i, group)
        ended = eos is not None and ids[-1] == eos
        texts = ["end" if token == eos else str(token) for token in ids]
        return {
            "text": " ".join(texts[:-1] if ended else texts),
            "ended": ended,
            "reward": six_digits([rewards[cell]])[0],
            "parts": {} if right is None else {"correct": float(right[cell])},
            "token_ids": ids,
            "tokens": texts,
            "advantages": six_digits([advantage[cell]]),
            "logp_sampler": old[i],
            "logp_old": old[i],
            "logp_ref": None if ref is None else ref[i],
            "updates": [{"logp": update[i]} for update in updates],
        }

    return load_record(
        {
            "schema_version": SCHEMA_VERSION,
            "run": {"name": name, "algorithm": "grpo", "epochs": len(learners), "seed": seed},
            "step": 1,
            "temperature": float(temperature),
            "group": group,
            "counts": {
                "sequences": len(responses),
                "tokens": int(mask.sum()),
                "length": policy_old.length,
            },
            "rewards": [six_digits(row) for row in rewards.tolist()],
            "groups": [
                {
                    "index": p,
                    "prompt": " ".join(map(str, prompts[p].tolist())),
                    "status": "trained",
                    "responses": [response(p * group + g) for g in range(group)],
                }
                for p in range(len(prompts))
            ],
        }
    )
