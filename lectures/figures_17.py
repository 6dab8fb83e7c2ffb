"""Lecture 17: its pictures, and the experiments that are too long for a cell.

A picture takes numbers that the lecture has computed and returns a figure for
`lectures.figures.show`. An experiment trains what its docstring says and returns numbers.
"""

import copy
import math
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import policy_gradients as pg
from lectures.figures import FAINT, INK, style
from toy_models import exact
from toy_models import preferences as prefs
from toy_models.policies import AutoregressivePolicy, Policy, PositionalPolicy

# learner → whose colour it wears
WEARS = {
    "ppo": "ppo",
    "grpo": "grpo",
    "reward model": "max_only",
    "dpo": "first",
    "online dpo": "second",
    "iterative dpo": "cispo",
}
NAMES = {
    "ppo": "PPO",
    "grpo": "GRPO",
    "reward model": "reward model,\nthen GRPO",
    "dpo": "DPO",
    "online dpo": "online DPO",
    "iterative dpo": "iterative DPO",
}
CHOSEN, REJECTED = style("right"), style("wrong")


def falling(loss, chosen, rejected, J) -> Figure:
    """Over updates. Left: the loss. Middle: two probabilities. Right: exact J, points."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(7.8, 2.9))
    left.plot(loss, color=INK)
    left.set(ylim=(0, 0.75), ylabel="DPO loss (nats)", title="what the log says")
    for values, look, name in ((chosen, CHOSEN, "chosen"), (rejected, REJECTED, "rejected")):
        middle.plot(values, **look, markevery=20, label=name)
    middle.set(yscale="log", ylim=(1e-10, 1), ylabel="probability", title="the two answers")
    middle.legend(loc="lower left")
    right.plot(J, color=INK)
    right.set(ylim=(2.9, 3.5), ylabel="exact J (points)", title="the policy")
    for axis in (left, middle, right):
        axis.set_xlabel("updates")
    return figure


def implied(true, implicit, names: tuple[str, str]) -> Figure:
    """(prompts, answers) points each: implied over true reward, a line of dots per prompt."""
    figure, axis = plt.subplots(figsize=(6.6, 3.3))
    for name, x, y, which in zip(names, true, implicit, ("first", "second"), strict=True):
        x, y, look = np.asarray(x), np.asarray(y), style(which)
        line = np.array([2.7, 5.3])
        axis.plot(line, line - (x - y).mean(), color=look["color"], linewidth=1, alpha=0.6)
        axis.plot(x, y, look["marker"], color=look["color"], label=name, markersize=7)
    axis.axhline(0, color=FAINT, linewidth=0.8)
    axis.set(xlabel="true reward R (points)", ylabel="implied reward (points)")
    axis.set_xticks([3, 4, 5])
    axis.legend(loc="upper left", fontsize=9)
    return figure


def gaps(curves: dict, ends: dict) -> Figure:
    """name → gap after 1, 2, … updates on one pair that always wins; name → where it must end."""
    figure, axis = plt.subplots(figsize=(7.0, 3.3))
    looks = [style(name) for name in ("wrong", "ppo", "right", "grpo")]
    for (name, values), look in zip(curves.items(), looks, strict=True):
        x = np.arange(1, len(values) + 1)
        axis.plot(x, values, color=look["color"], linestyle=look["linestyle"], label=name)
        if name in ends:
            axis.axhline(ends[name], color=look["color"], linestyle=":", linewidth=1)
    axis.set(xscale="log", xlabel="updates on one pair", ylabel="gap of the log-ratios (nats)")
    axis.set_ylim(bottom=0)
    axis.legend(loc="upper left", fontsize=9)
    return figure


def first_steps(grams: dict, starts: dict) -> Figure:
    """policy → change of log π (chosen, rejected) of every ordered pair, at one slow step.

    grams : name → (2, pairs)     starts : name → share of pairs in which both fall
    """
    figure, axes = plt.subplots(1, len(grams), figsize=(7.8, 2.9))
    for axis, (name, (chosen, rejected)) in zip(axes, grams.items(), strict=True):
        chosen, rejected = np.asarray(chosen), np.asarray(rejected)
        both = (chosen < -1e-9) & (rejected < -1e-9)
        up = (chosen > 1e-9) & (rejected > 1e-9)
        one = ~both & ~up
        axis.plot(chosen[one], rejected[one], "o", color=FAINT, markersize=3, alpha=0.5)
        axis.plot(chosen[both], rejected[both], "X", color=REJECTED["color"], markersize=5)
        axis.plot(chosen[up], rejected[up], "^", color=CHOSEN["color"], markersize=4)
        axis.axhline(0, color=INK, linewidth=0.8)
        axis.axvline(0, color=INK, linewidth=0.8)
        axis.set_title(f"{name}\nboth fall: {starts[name]:.0%}", fontsize=9.5)
        axis.set_xlabel("chosen")
    axes[0].set_ylabel("rejected")
    return figure


def authors(J: dict) -> Figure:
    """author of the pairs → (runs,) exact J: dots and their mean."""
    figure, axis = plt.subplots(figsize=(7.0, 0.42 * len(J) + 0.9))
    for place, values in enumerate(reversed(J.values())):
        _dots(axis, place, values, style("first"))
    axis.axvline(5, color=INK, linestyle="--", linewidth=1)
    axis.set_yticks(range(len(J)), list(J)[::-1], fontsize=9)
    axis.set(xlabel="exact J after 60 pairs (points)", ylim=(-0.5, len(J) - 0.3))
    axis.grid(axis="y", visible=False)
    return figure


def race(races: dict) -> Figure:
    """title → `Matched`: a panel each, methods in rows, with their 95 % intervals."""
    names = list(NAMES)
    figure, axes = plt.subplots(1, len(races), figsize=(7.9, 3.5), sharey=True, sharex=True)
    for axis, (title, run) in zip(axes, races.items(), strict=True):
        for place, name in enumerate(reversed(names)):
            span = run.interval(name)
            _dots(axis, place, run.scores[name], style(WEARS[name]), (span.low, span.high))
        axis.set_title(title, fontsize=10)
        axis.axvline(4, color=INK, linestyle="--", linewidth=1)
        axis.set(xlabel="exact J (points)", ylim=(-0.5, len(names) - 0.3))
        axis.grid(axis="y", visible=False)
    axes[0].set_yticks(range(len(names)), [NAMES[name] for name in names][::-1], fontsize=9)
    return figure


def _dots(axis, place: int, values, look: dict, span: tuple | None = None) -> None:
    values, above = np.asarray(values), {"xytext": (0, 8), "textcoords": "offset points"}
    axis.plot(values, np.full(len(values), place), "o", color=look["color"], alpha=0.3)
    if span is not None:
        axis.plot(span, [place, place], color=look["color"], linewidth=2.5)
    mean = values.mean()
    axis.plot(mean, place, look["marker"], color=look["color"], markersize=9)
    axis.annotate(
        f"{mean:.2f}", (mean, place), **above, ha="center", fontsize=8.5, zorder=5,
        bbox={"facecolor": axis.get_facecolor(), "edgecolor": "none", "pad": 1},
    )  # fmt: skip


def lengths(rows: dict) -> Figure:
    """rule → (mean length of right answers, of wrong ones), tokens."""
    figure, axis = plt.subplots(figsize=(6.4, 2.4))
    for place, (right, wrong) in enumerate(reversed(rows.values())):
        axis.plot([wrong, right], [place, place], color=FAINT, linewidth=1.2)
        for value, look in ((right, CHOSEN), (wrong, REJECTED)):
            axis.plot(value, place, look["marker"], color=look["color"], markersize=9)
            axis.annotate(
                f"{value:.2f}", (value, place), xytext=(0, 9), textcoords="offset points",
                ha="center", fontsize=8.5,
            )  # fmt: skip
    axis.set_yticks(range(len(rows)), list(rows)[::-1], fontsize=9)
    axis.set(xlabel="mean length (tokens)", xlim=(1, 5), ylim=(-0.5, len(rows) + 0.2))
    handles = [
        plt.Line2D([], [], color=look["color"], marker=look["marker"], linestyle="", label=label)
        for look, label in ((CHOSEN, "right answers"), (REJECTED, "wrong answers"))
    ]
    axis.legend(handles=handles, fontsize=8.5, loc="upper right", ncols=2)
    axis.grid(axis="y", visible=False)
    return figure


# --- experiments ---------------------------------------------------------------------------------


def generalisation(every: Tensor, reward, dpo) -> dict[str, list[float]]:
    """Judge → share of pairs in the labelled order: its own 600, new ones, ones of new prompts.

    every : (27, 3) prompts; the last 7 are new. A uniform policy writes, [PREF-1] decides. Two
    reward models and two policies learn for 100 Adam updates; `dpo` is the loss with β = .5.
    """
    writer = AutoregressivePolicy(3, 3, eos_id=None, prompts=every).double()
    compare = partial(prefs.sample_comparisons, writer, reward=reward)
    plan = [(every[:20], 600), (every[:20], 3000), (every[20:], 3000)]
    pairs = [compare(rows, pairs=n, seed=k) for k, (rows, n) in enumerate(plan)]
    judges = {"true reward": reward, "RM, table": prefs.TableReward(every, 3, 3).double()}
    judges["RM, features"] = prefs.FeatureReward(3, 3).double()
    for name in ("RM, table", "RM, features"):
        prefs.fit_reward_model(judges[name], pairs[0], steps=100, learning_rate=0.05)
    starts = {"DPO, tree": writer, "DPO, network": PositionalPolicy(3, 3).double()}
    for name, start in starts.items():
        policy = copy.deepcopy(start)
        knobs = {"steps": 100, "learning_rate": 0.03, "record_every": 100}
        prefs.learn_from_pairs(policy, start, pairs[0], dpo, **knobs)
        judges[name] = prefs.implicit_reward(policy, start, beta=0.5)
    return {n: [prefs.ranking_accuracy(judge, p) for p in pairs] for n, judge in judges.items()}


def both_fall(prompt: Tensor, width: int, networks: int = 8) -> float:
    """Share of ordered pairs whose answers both fall at the first step of DPO [PREF-15], over
    untrained networks."""
    shares = []
    for seed in range(networks):
        u = exact.scores(PositionalPolicy(3, 3, embedding_dim=width, seed=seed).double(), prompt)
        gram = u @ u.T
        own = gram.diag()
        falls = (own[:, None] - gram < -1e-9) & (gram - own < -1e-9)
        shares.append(falls.sum().item() / (len(u) * (len(u) - 1)))
    return sum(shares) / len(shares)


def by_author(author: Policy, home: Policy, prompt: Tensor, reward, runs: int = 48) -> Tensor:
    """(runs,) exact J after 60 pairs of `author` and 150 Adam updates of DPO from `home`, β = .1.

    The better answer wins every pair; pairs of equally good answers are left out.
    """
    found = []
    for seed in range(runs):
        policy = copy.deepcopy(home)
        drawn = prefs.sample_comparisons(
            author, prompt, reward, pairs=300, scale=math.inf, seed=seed
        )
        differ = reward(drawn.prompts, drawn.chosen) > reward(drawn.prompts, drawn.rejected)
        knobs = {"steps": 150, "learning_rate": 0.1, "record_every": 150}
        pairs = drawn.take(differ.nonzero()[:60, 0])
        prefs.learn_from_pairs(policy, home, pairs, partial(pg.dpo, beta=0.1), **knobs)
        found.append(exact.expected_reward(policy, prompt, reward).detach())
    return torch.stack(found)


def lead(better: Tensor, worse: Tensor) -> tuple[float, float, float]:
    """Mean difference of paired runs, (runs,) each, and two standard errors below and above it."""
    gap = better - worse
    error = gap.std() / len(gap) ** 0.5
    return tuple((gap.mean() + z * error).item() for z in (0, -2, 2))


def poor_ends(start: Policy, R: Tensor, logp, beta: float) -> dict[str, float]:
    """What the optimum is worth, J_β in points, and where exact flows of a poor class end.

    Reinforcement learning climbs J_β; DPO minimises [PREF-14] on pairs of `start`, or online on
    those of the present policy. R : (answer,) points; logp : policy → (answer,) nats.
    """
    ref, wins = logp(start).detach(), (R[:, None] - R).sigmoid()

    def leashed(policy):
        return logp(policy).exp() @ (R - beta * (logp(policy) - ref))

    def coins(policy, online: bool):
        ell = logp(policy) - ref
        mu = (logp(policy) if online else ref).detach().exp()
        claim = torch.nn.functional.logsigmoid(beta * (ell[:, None] - ell))
        return 5 / beta * (mu[:, None] * wins * mu * claim).sum()  # 5 / β: larger steps

    flows = {"reinforcement learning": leashed, "DPO, home's pairs": partial(coins, online=False)}
    flows["DPO, its own pairs"] = partial(coins, online=True)
    ends = {"optimum": (beta * (ref + R / beta).logsumexp(0)).item()}
    for name, objective in flows.items():
        policy = copy.deepcopy(start)
        exact.exact_flow(policy, objective, steps=1500, learning_rate=1.0)
        ends[name] = leashed(policy).item()
    return ends


def after_thumbs(start: Policy, win: Tensor, logp, beta: float) -> tuple[Policy, Tensor]:
    """Where KTO ends on answers of `start`, thumbs up with probability win (answer,), equal
    weights, and the exact KL as zero point z0: the policy, and that zero point."""
    ref, ones, policy = logp(start).detach(), torch.ones(len(win)), copy.deepcopy(start)

    def zero(policy):
        return (logp(policy).exp() @ (logp(policy) - ref)).detach().view(1)

    def thumbs(policy):  # minus the expected loss
        z = zero(policy)
        up, down = (pg.kto(logp(policy), ref, k * ones, z, 0 * z, beta=beta) for k in (1, 0))
        return -(ref.exp() * (win * up + (1 - win) * down)).sum()

    exact.exact_flow(policy, thumbs, steps=2000, learning_rate=20.0)
    return policy, zero(policy)


def ranked_fours(seed: int, every: Tensor, reward, dpo) -> list[float]:
    """100 noisy rankings of four answers: what a network learns from all pairs of each ranking, and
    from the best against the worst; as the share of clear pairs that it puts in order.

    Noise from the Gumbel distribution on the points makes every two answers compare as in [PREF-1].
    """
    writer = AutoregressivePolicy(3, 3, eos_id=None, prompts=every).double()
    clear = {"pairs": 4000, "scale": math.inf, "seed": 99}
    test = prefs.sample_comparisons(writer, every, reward, **clear)
    dice, start = torch.Generator().manual_seed(seed), PositionalPolicy(3, 3).double()
    prompts = every[torch.randint(len(every), (100,), generator=dice)]
    answers = writer.sample(prompts, 4, seed=dice)  # (100 · 4, time)
    noise = -(-torch.rand(100, 4, generator=dice, dtype=torch.float64).log()).log()
    fours = answers.unflatten(0, (100, 4))
    points = reward(prompts[:, None], fours) + noise  # (100, 4)
    two = torch.stack([points.argmax(1), points.argmin(1)], 1)  # (100, 2)
    row = torch.arange(100)[:, None]
    shares = []
    for texts, marks in ((answers, points), (fours[row, two].flatten(0, 1), points[row, two])):
        policy, knobs = copy.deepcopy(start), {"steps": 60, "learning_rate": 0.02}
        pairs = prefs.from_ranking(prompts, texts, marks)
        prefs.learn_from_pairs(policy, start, pairs, dpo, record_every=60, **knobs)
        judge = prefs.implicit_reward(policy, start, beta=0.5)
        shares.append(prefs.ranking_accuracy(judge, test))
    return shares


def fitted(start: Policy, loss, logp, steps: int = 400) -> Tensor:
    """(answers,) probabilities of a copy of `start` after `steps` Adam updates on loss(policy)."""
    policy = copy.deepcopy(start)
    adam = torch.optim.Adam(policy.parameters(), lr=0.05)
    for _ in range(steps):
        adam.zero_grad()
        loss(policy).backward()
        adam.step()
    return logp(policy).detach().exp()


def summing_to_one(logp_ref: Tensor, length: Tensor, reward: Tensor, beta: float = 1.0) -> Tensor:
    """(answers,) the distribution ref · exp(length (reward − c) / β), c found by bisection."""
    low, high = reward.min() - 50.0, reward.max() + 50.0
    for _ in range(80):
        c = (low + high) / 2
        total = (logp_ref + length * (reward - c) / beta).exp().sum()
        low, high = (c, high) if total > 1 else (low, c)
    return (logp_ref + length * (reward - c) / beta).exp()
