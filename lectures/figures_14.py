"""What only lecture 14 needs: its measurements on the tiny Qwen, and its pictures.

First the little machinery: a sampler with rounded weights, what a log should say of a mismatch,
the gradient of a first update. Then the pictures: each function takes numbers that the lecture
has computed and returns a figure for `lectures.figures.show`. A way of treating an old batch wears
one colour throughout (`LOOKS`).
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import policy_gradients as pg
from lectures.figures import FAINT, INK, style
from llm_trainer.batch import StepBatch
from llm_trainer.config import Config, with_values
from llm_trainer.invariants import InvariantError, token_metrics
from llm_trainer.models import Policy, load_policy
from llm_trainer.rollout import OwnSampler
from llm_trainer.step import Learner
from llm_trainer.task import load_task
from llm_trainer.train import sample_and_score

# --- measuring a mismatch -----------------------------------------------------------------------


def rounded(policy: Policy, *, bits: int) -> Policy:
    """A copy whose matrices are rounded, row by row, to 2^bits − 1 equally spaced values.

    A stand-in for a quantised engine: it rounds weights only, and computes in float32.
    """
    copy = policy.frozen_copy()
    for weight in copy.model.parameters():
        if weight.dim() == 2:
            step = weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
            weight.data.copy_((weight / step).round() * step)
    return copy


COLUMNS = ("|log w|", "mean w", "outside %", "mean W", "worth %")


def look(log_w: Tensor, mask: Tensor) -> dict[str, Any]:
    """What a log should say of one batch of answers by another author.

    log_w : (batch, time) nats, learner minus sampler, 0 on padding     mask : (batch, time)
    """
    tokens, answers, along = log_w[mask], log_w.sum(1), log_w.cumsum(1)
    return {
        "tokens": tokens,  # (tokens,)
        "|log w|": tokens.abs().mean().item(),
        "mean w": tokens.exp().mean().item(),
        "outside %": 100 * ((tokens.exp() - 1).abs() > 0.2).double().mean().item(),
        "mean W": answers.exp().mean().item(),
        "worth %": 100 * pg.effective_sample_size(answers) / len(answers),
        # deviation of log W after 1, 2, … 8 tokens; the first one, a tag, is always the same
        "growth": [along[mask[:, t], t].std().item() for t in range(1, 9)],
        "answer": answers / mask.sum(1),  # (batch,) log of the geometric mean
    }


def table(seen: dict[str, dict]) -> str:
    """Rows of `look` as text."""
    lines = [" " * 16 + "".join(f"{column:>11}" for column in COLUMNS)]
    lines += [
        f"{name:<16}" + "".join(f"{row[column]:>11.4f}" for column in COLUMNS)
        for name, row in seen.items()
    ]
    return "\n".join(lines)


def sampled(
    config: Config, folder: Path, writer: Policy, words: list[str], seed: int, **settings: Any
) -> tuple[Learner, StepBatch]:
    """A learner in a run with these settings, and a batch for it that `writer` has written."""
    run = with_values(config, prompts=len(words), **settings)
    learner, dice = Learner(load_policy(run, folder), run), torch.Generator().manual_seed(seed)
    task = load_task(run.task)
    return learner, sample_and_score(OwnSampler(writer), task, words, run, dice)[0]


class FirstUpdate(NamedTuple):
    """What the first update on a batch would do; no weight has moved."""

    gradient: Tensor  # (weights,) float64
    log: dict[str, float]
    batch: StepBatch
    seconds: tuple[float, float]  # CPU: measuring the batch; forward and backward


def first_update(
    config: Config,
    folder: Path,
    writer: Policy,
    words: list[str],
    *,
    seed: int = 0,
    **settings: Any,
) -> FirstUpdate:
    """Sample with `writer`, measure, differentiate, in a run of `config` with these settings.

    folder : the model that learns. The trainer's invariants are not asked.
    """
    learner, batch = sampled(config, folder, writer, words, seed, **settings)
    clock = [time.process_time()]
    batch = learner.taught(learner.measure(batch))
    clock.append(time.process_time())
    pieces = learner.gradients(batch, learner.config.micro_batch)
    clock.append(time.process_time())
    flat = torch.cat([weight.grad.flatten() for weight in learner.policy.trainable()]).double()
    seconds = clock[1] - clock[0], clock[2] - clock[1]
    return FirstUpdate(flat, token_metrics(pieces), batch, seconds)


def try_update(
    config: Config,
    folder: Path,
    writer: Policy,
    words: list[str],
    *,
    fresh: bool = True,
    updates: int = 0,
    **settings: Any,
) -> str:
    """One update on answers that `writer` wrote: the alarm's message, or what the log says.

    fresh : whether the batch is declared to be by the present weights.
    updates : how many the run has made before (its first one is checked most).
    """
    learner, batch = sampled(config, folder, writer, words, 0, **settings)
    learner.updates = updates
    try:
        log = learner.update(learner.taught(learner.measure(batch)), fresh=fresh)
    except InvariantError as error:
        return str(error)
    ratios = f"{log['ratio/min']:.2f} to {log['ratio/max']:.2f}"
    return f"no alarm; loss {log['loss']:+.3f}, ratios {ratios}"


# --- pictures -----------------------------------------------------------------------------------

# way of treating a batch by another author → whose colour it wears
WAYS = {
    "fresh data": "right",
    "no weight": "reinforce",
    "clip alone": "ppo",
    "per token": "dr_grpo",
    "per token, ≤ 2": "grpo",
    "per answer": "gspo",
    "per answer, ≤ 2": "cispo",
    "TOPR": "max_only",
}
LOOKS = {name: style(method) for name, method in WAYS.items()}
BAND = "#ececec"


def _label_ends(axis, ends: dict[str, tuple[float, float]], gap: float) -> None:
    """Names beside the right ends of curves, moved apart where they would touch."""
    place = -np.inf
    for name, (x, y) in sorted(ends.items(), key=lambda item: item[1][1]):
        place = max(y, place + gap)
        axis.annotate(
            name,
            (x, y),
            xytext=(x, place),
            textcoords="data",
            fontsize=8.5,
            color=LOOKS[name]["color"],
            va="center",
            annotation_clip=False,
        )


def curves(J: dict) -> Figure:
    """name → J (updates + 1, runs): the mean, and a band with the middle 80 % of the runs."""
    figure, axis = plt.subplots(figsize=(7.2, 3.5))
    ends = {}
    for name, values in J.items():
        values, look = np.asarray(values), LOOKS[name]
        mean, x = values.mean(1), np.arange(len(values))
        low, high = np.quantile(values, [0.1, 0.9], axis=1)
        axis.fill_between(x, low, high, color=look["color"], alpha=0.12, linewidth=0)
        axis.plot(x, mean, **look, markevery=25, markersize=5)
        ends[name] = (len(values) + 3, mean[-1])
    _label_ends(axis, ends, 0.24)
    axis.set(xlabel="updates", ylabel="exact J (points of 4)", xlim=(0, len(values)), ylim=(0, 4.3))
    return figure


def caps(x, error: dict[str, dict[str, object]]) -> Figure:
    """title → way → relative error at each cap x, one panel per title."""
    figure, axes = plt.subplots(1, len(error), figsize=(7.4, 3.2), sharey=True)
    for axis, (title, rows) in zip(axes, error.items(), strict=True):
        for name, values in rows.items():
            look, best = LOOKS[name], int(np.argmin(values))
            axis.plot(x, values, color=look["color"], linestyle=look["linestyle"], label=name)
            axis.plot(x[best], values[best], look["marker"], color=look["color"], markersize=8)
        axis.set_title(title, fontsize=10)
        axis.set(xscale="log", xlabel="cap", ylim=(0, 0.8))
        axis.set_xticks([0.25, 0.5, 1, 2, 4, 8, 16], ["¼", "½", "1", "2", "4", "8", "16"])
        axis.minorticks_off()
    axes[0].set_ylabel("error, share of |∇J|²")
    axes[0].legend(loc="lower left", fontsize=8.5)
    return figure


def tapers(flows: dict[str, dict[str, object]], steps) -> Figure:
    """name → {"KL": ..., "J": ...} along offline steps: two panels."""
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.2))
    for axis, (what, label) in zip(
        axes, {"KL": "KL(author‖policy), nats", "J": "exact J (points of 4)"}.items(), strict=True
    ):
        for name, seen in flows.items():
            axis.plot(steps, np.asarray(seen[what]), **LOOKS[name], label=name)
        axis.set(xscale="log", xlabel="steps on one old batch", ylabel=label)
    axes[0].set_yscale("log")
    axes[0].set_ylim(top=3000)  # room for the names
    axes[0].legend(fontsize=8.5, loc="upper left")
    return figure


def staleness(delays, cosine: dict, noise: dict) -> Figure:
    """way → values at each delay: cosine of the expectation with ∇J, noise of one answer."""
    figure, axes = plt.subplots(1, 2, figsize=(7.8, 3.4))
    titles = ("cosine with ∇J", "noise of one answer, in |∇J|")
    for axis, rows, title in zip(axes, (cosine, noise), titles, strict=True):
        for name, values in rows.items():
            axis.plot(delays, values, **LOOKS[name], label=name)
        axis.set_title(title, fontsize=10)
        axis.set(xlabel="age of the batch (updates)", xticks=[0, 8, 16, 24, 32])
    axes[0].set_ylim(0.4, 1.02)  # the clip leaves; the others can be told apart
    axes[1].legend(fontsize=8.5, loc="upper left")
    return figure


def training(delays, J: dict) -> Figure:
    """way → (delays, runs): mean J with twice its standard error, over the age of the data."""
    figure, axis = plt.subplots(figsize=(7.2, 3.4))
    ends, x = {}, np.asarray(delays)
    for row, (name, values) in enumerate(J.items()):
        values, look = np.asarray(values), LOOKS[name]
        error = 2 * values.std(1, ddof=1) / values.shape[1] ** 0.5
        aside = 0.3 * (row - len(J) / 2)  # so that bars do not hide one another
        axis.errorbar(x + aside, values.mean(1), error, **look, capsize=2, elinewidth=1)
        ends[name] = (x[-1] + 1.5, values.mean(1)[-1])
    _label_ends(axis, ends, 0.22)
    axis.set_xticks(x, [str(delay) for delay in delays])
    axis.set(xlabel="age of the batch (updates)", ylabel="exact J after 100 updates")
    axis.set_xlim(-1.5, x[-1] + 1.2)
    return figure


def mismatch(log_ratios: dict, growth: dict) -> Figure:
    """Left: quantiles of the tokens' log-ratios per sampler. Right: their sum along the answer.

    log_ratios : sampler → (tokens,) nats     growth : sampler → deviation after 1, 2, … free tokens
    """
    figure, axes = plt.subplots(1, 2, figsize=(7.9, 3.3), width_ratios=(1.35, 1))
    left, right = axes
    left.axvspan(np.log(0.8), np.log(1.2), color=BAND)
    for row, values in enumerate(list(log_ratios.values())[::-1]):
        low, q05, middle, q95, high = np.quantile(
            np.asarray(values), [0.001, 0.05, 0.5, 0.95, 0.999]
        )
        left.plot([low, high], [row, row], color=FAINT, linewidth=1.2)
        left.plot([q05, q95], [row, row], color=style("first")["color"], linewidth=5)
        left.plot(middle, row, "o", color="white", markeredgecolor=INK, markersize=5)
    left.set_yticks(range(len(log_ratios)), list(log_ratios)[::-1], fontsize=8.5)
    left.set(xlabel="log of learner / sampler (nats)", xlim=(-4.8, 3.4))
    left.grid(axis="y", visible=False)
    looks = [style(name) for name in ("first", "second", "wrong", "right")]
    for look, (name, values) in zip(looks, growth.items(), strict=False):
        x = np.arange(1, len(values) + 1)
        right.plot(x, values, **look, label=name)
        right.plot(x, values[0] * x**0.5, color=look["color"], linestyle=":", linewidth=1)
    right.set(
        xscale="log",
        yscale="log",
        xlabel="tokens after the opening tag",
        ylabel="deviation of log W",
    )
    right.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    right.minorticks_off()
    right.legend(fontsize=8, loc="center right", bbox_to_anchor=(1, 0.55))
    return figure
