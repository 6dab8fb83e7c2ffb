"""What only lecture 20 needs: a few counts, and its pictures.

Each picture takes numbers that the lecture has computed and returns a figure for
`lectures.figures.show`. A way of searching or of training wears one colour throughout (`LOOKS`).
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, StrMethodFormatter
from torch import Tensor

from lectures import experiments
from lectures.figures import FAINT, INK, WRONG_SIDE, style
from toy_models import soft_control
from toy_models.planning import Search, gibbs_at_kl, tree_search
from toy_models.policies import AutoregressivePolicy

# --- counts -------------------------------------------------------------------------------------


def calls_of_sampling(
    policy: AutoregressivePolicy, prompt: Tensor, goal: list[int], seed: int
) -> float:
    """Distinct beginnings asked by independent answers until one is `goal`; inf after 3,000."""
    asked: set[tuple[int, ...]] = set()
    for y in policy.sample(prompt, 3000, seed=seed).tolist():
        length = y.index(policy.eos_id) + 1 if policy.eos_id in y else len(y)
        asked |= {tuple(y[:k]) for k in range(length)}
        if y == goal:
            return len(asked)
    return math.inf


def calls_of_search(
    policy: AutoregressivePolicy, prompt: Tensor, goal: list[int], judge: Callable, seed: int
) -> float:
    """The same for `tree_search`; inf if 150 walks did not find it."""

    def reward(prompts: Tensor, answers: Tensor) -> Tensor:
        return judge(prompts, answers, eos_id=policy.eos_id)

    found = tree_search(policy, prompt, reward, simulations=150, seed=seed)
    top = float(reward(prompt[0], torch.tensor(goal)))
    return next((calls for calls, value in found.trace if value == top), math.inf)


def same_letters(texts: list[str], words: list[str]) -> Tensor:
    """(texts,) 1 where the answer tag holds the word's letters in some order, else 0."""
    group = len(texts) // len(words)
    inside = [text.removeprefix("<answer>").removesuffix("</answer>").lower() for text in texts]
    wanted = [sorted(word.lower()) for word in words for _ in range(group)]
    same = [sorted(a) == b for a, b in zip(inside, wanted, strict=True)]
    return torch.tensor(same, dtype=torch.float64)


def vote(texts: list[str], correct: Tensor, k: int) -> float:
    """Share of words right if the most frequent of k answers wins, ties broken evenly.

    texts : words · n of them, a word's adjacent     correct : (words, n), 0 or 1; k divides n
    """
    total, blocks, ok = 0.0, len(texts) // k, correct.flatten().tolist()
    for start in range(0, len(texts), k):
        part = texts[start : start + k]
        count = Counter(part)
        top = [text for text, c in count.items() if c == max(count.values())]
        total += sum(ok[start + part.index(text)] for text in top) / len(top)
    return total / blocks


def best_of(k: int, judged: Tensor, correct: Tensor) -> float:
    """Share of words right if a judge picks the best of k answers, among ties at random.

    judged, correct : (words, n)

    Averaged over all choices of k of the n answers: the one at rank j is the best of
    C(j, k) − C(j − 1, k) of them. With judged = correct it is pass@k.
    """
    n, total = judged.shape[1], 0.0
    for scores, ok in zip(judged, correct, strict=True):
        for level in scores.unique():
            upto, below = int((scores <= level).sum()), int((scores < level).sum())
            ways = (math.comb(upto, k) - math.comb(below, k)) / math.comb(n, k)
            total += ways * float(ok[scores == level].mean())
    return total / len(judged)


def reference_run() -> tuple[Tensor, Tensor]:
    """Lecture 13's reference run: steps, and the greedy share right there, mean of five seeds."""
    columns = [log.column("eval/exact") for log in experiments.load("reference")["grpo"]]
    return torch.tensor(columns[0][0]), torch.tensor([y.tolist() for _, y in columns]).mean(0)


def crosses(target: float, x: Sequence[float], y: Sequence[float]) -> float:
    """Where a rising curve first reaches the target, by straight lines between its points."""
    k = next(i for i, value in enumerate(y) if value >= target)
    return float(x[k - 1] + (x[k] - x[k - 1]) * (target - y[k - 1]) / (y[k] - y[k - 1]))


def buying(prizes: Sequence[float]) -> tuple[Sequence[float], dict[str, dict[str, list[float]]]]:
    """For each prize of the lottery: how often a policy buys, what it gets and believes."""
    rows = {}
    for name, solve in (("posterior", soft_control.messages), ("cured", soft_control.soft_optimal)):
        rows[name] = {"buys": [], "gets": [], "believes": []}
        for prize in prizes:
            shop = soft_control.lottery(prize=float(prize))
            policy, dream = solve(shop).policy, soft_control.posterior_dynamics(shop)
            rows[name]["buys"].append(policy[0, 0, 1].item())
            rows[name]["gets"].append(soft_control.evaluate(shop, policy).J.item())
            hoped = soft_control.evaluate(shop, policy, dynamics=dream).J.item()
            rows[name]["believes"].append(hoped)
    return prizes, rows


def by_round(found: list[Search]) -> tuple[Tensor, Tensor]:
    """Means over runs, (rounds,) each: score of the best two draws, spread of the plan."""
    top = torch.stack([run.scores.topk(2).values.mean(1) for run in found]).mean(0)
    spread = [torch.stack([plan.std.mean() for plan in run.plans]) for run in found]
    return top, torch.stack(spread).mean(0)


def learned_worlds(tries: int, *, horizon: int = 20, worlds: int = 200) -> Tensor:
    """Plan with counted transitions, live in the true ones: (horizon, 3) mean points.

    Columns: promised by the learned model, delivered by its plan, possible. Worlds of 6 states and
    6 actions with random transitions and rewards (known, between 0 and 1 a step); each action was
    tried `tries` times in each state.
    """
    dice, rows = torch.Generator().manual_seed(0), []
    true = (2 * torch.randn(worlds, 6, 6, 6, generator=dice)).softmax(-1)  # world, s, a, s'
    pays = torch.rand(worlds, 6, 6, generator=dice)
    seen = torch.multinomial(true.flatten(0, 2), tries, True, generator=dice)
    model = torch.nn.functional.one_hot(seen, 6).float().mean(1).view_as(true)
    ahead = [torch.zeros(worlds, 6)] * 3
    for _ in range(horizon):
        pairs = zip((model, true, true), ahead, strict=True)
        q = [pays + torch.einsum("wsax,wx->wsa", world, value) for world, value in pairs]
        plan = q[0].argmax(-1, keepdim=True)
        ahead = [*(x.gather(-1, plan)[..., 0] for x in q[:2]), q[2].amax(-1)]
        rows.append(torch.stack([value.mean() for value in ahead]))
    return torch.stack(rows)


# --- pictures -----------------------------------------------------------------------------------

# what is drawn → whose colour it wears
WAYS = {
    "posterior": "wrong",
    "cured": "right",
    "Gibbs": "exact",
    "best of N": "first",
    "gradient flow": "second",
    "the rule": "right",
    "own probability": "first",
    "majority": "second",
    "right letters": "wrong",
    "partial credit": "wrong",
    "successes only": "right",
    "RLOO": "rloo",
    "train": "grpo",
}
LOOKS = {name: style(method) for name, method in WAYS.items()}

# titles of the compass: whose push an estimate contains
HEARD = {"raw": "successes only", "leave_one_out": "minus the others' mean"}


def _line(axis, x, y, name: str, *, label: str = "", **more) -> None:
    axis.plot(x, y, label=label or name, **(LOOKS[name] | more))


def prizes(prize, rows: dict[str, dict[str, object]], fair: float) -> Figure:
    """rows: "posterior", "cured" → {"buys", "believes", "gets"}, each along `prize`."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.3))
    for name, row in rows.items():
        _line(left, prize, row["buys"], name, markevery=8)
        _line(right, prize, row["gets"], name, label=f"{name}: what it gets", markevery=8)
    _line(
        right,
        prize,
        rows["posterior"]["believes"],
        "posterior",
        label="posterior: what it believes",
        linestyle=":",
        marker="",
    )
    for axis in (left, right):
        axis.axvspan(min(prize), fair, color=WRONG_SIDE, zorder=0, linewidth=0)
        axis.set(xlabel="prize (points); a blank costs 2", xlim=(min(prize), max(prize)))
    left.annotate("the ticket\nloses on average", (fair / 2, 0.03), ha="center", fontsize=8.5)
    left.set(ylabel="probability of buying", ylim=(-0.02, 1.03))
    left.legend(loc="lower right", bbox_to_anchor=(1, 0.12), fontsize=9)
    right.set(ylabel="expected points", ylim=(-2.2, 8))
    right.legend(loc="center right", fontsize=8.5, bbox_to_anchor=(1, 0.6))
    return figure


def frontier(prob, R, flow, best, bound, proxy: dict[str, Sequence[float]], ns) -> Figure:
    """Two panels: score over distance; what happens to right answers if the judge is wrong.

    prob, R     : (answers,) home and its points
    flow        : (steps, 2) KL and J        best : (ns, 2) the same, exactly
    bound       : (ns,) what is usually quoted for the KL
    proxy       : judge → probability of the right answer for each n
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.5))
    reach = np.linspace(0.01, 2.96, 60)
    gibbs = np.array([(kl, float(gibbs_at_kl(prob, R, kl)[0] @ R)) for kl in reach])
    flow, best = np.asarray(flow), np.asarray(best)
    _line(left, *gibbs.T, "Gibbs", label="Gibbs: the frontier")
    _line(left, *flow.T, "gradient flow", marker="", linestyle="-.")
    look = LOOKS["best of N"] | {"linestyle": "none", "markersize": 6}
    left.plot(*best.T, label="best of N", **look)
    ticks = {"color": FAINT, "markersize": 15, "markeredgewidth": 1.6, "zorder": 5}
    left.plot(bound, best[:, 1], "|", label="at log N − (N−1)/N", **ticks)
    for n, (kl, J) in zip(ns, best, strict=True):
        if n > 1:
            left.annotate(f"N = {n}", (kl, J), (kl + 0.11, J - 0.26), fontsize=8.5)
    left.set(xlabel="KL from home (nats)", ylabel="J (points of 4)", xlim=(-0.05, 3.3))
    left.legend(loc="lower right", fontsize=8.5)
    for name, values in proxy.items():
        _line(right, ns, values, name)
    right.set(xscale="log", xlabel="N", ylabel="probability of the right answer", ylim=(0, 1))
    right.set_xticks(list(ns), [str(n) for n in ns])
    right.minorticks_off()
    right.legend(loc="upper left", fontsize=8.5, title="chosen by", title_fontsize=8.5)
    return figure


def tries(ns, shares: dict[str, Sequence[float]], lines: dict[str, float]) -> Figure:
    """chosen by → share of words right for each N; lines: name → share of one greedy answer."""
    figure, axis = plt.subplots(figsize=(7.2, 3.6))
    for name, values in shares.items():
        _line(axis, ns, values, name)
    for name, value in lines.items():
        axis.axhline(value, color=INK, linestyle=":", linewidth=1.2)
        axis.annotate(name, (ns[0], value), (0, 3), textcoords="offset points", fontsize=8.5)
    axis.set(xscale="log", xlabel="answers sampled per word, N", ylabel="words spelled right")
    axis.set_xticks(list(ns), [str(n) for n in ns])
    axis.minorticks_off()
    axis.set_ylim(0, 1)
    axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.legend(loc="lower right", fontsize=8.5, title="one is chosen by", title_fontsize=8.5)
    return figure


def crossing(questions, cases: dict[str, tuple[float, float, float]]) -> Figure:
    """title → (tokens of training, tokens per question then, tokens per question of search)."""
    figure, axes = plt.subplots(1, len(cases), figsize=(7.6, 3.2), sharey=True)
    x = np.asarray(questions, dtype=float)
    for axis, (title, (training, after, search)) in zip(axes, cases.items(), strict=True):
        even = training / (search - after)
        look = {"marker": "", "linewidth": 2}
        axis.plot(x, training + after * x, **(LOOKS["train"] | look), label="train")
        axis.plot(x, search * x, **(LOOKS["best of N"] | look), label="search")
        axis.plot(even, search * even, "o", color=INK)
        axis.annotate(
            f"{even:,.0f}\nquestions",
            (even, search * even),
            (10, -24),
            textcoords="offset points",
            fontsize=8.5,
        )
        axis.set_title(title, fontsize=10)
        axis.set(xscale="log", yscale="log", xlabel="questions to answer")
    axes[0].set_ylabel("tokens through the network")
    axes[0].legend(loc="upper left", fontsize=9)
    return figure


def iterations(curves: dict[str, dict[str, tuple[object, object]]]) -> Figure:
    """title → name → (answers sampled (points,), held-out share (seeds, points)), a panel each."""
    figure, axes = plt.subplots(1, len(curves), figsize=(7.6, 3.4), sharey=True)
    for axis, (title, rows) in zip(axes, curves.items(), strict=True):
        for name, (x, runs) in rows.items():
            runs = np.asarray(runs)
            look = LOOKS[name] | {"markevery": 2}
            axis.plot(x, runs.mean(0), label=f"{name} ({len(runs)} seeds)", **look)
            band = {"color": look["color"], "alpha": 0.15, "linewidth": 0}
            axis.fill_between(x, runs.min(0), runs.max(0), **band)
        axis.set_title(title, fontsize=10)
        axis.set(xlabel="answers sampled", ylim=(0.8, 0.97))
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.legend(loc="lower right", fontsize=8.5)
    axes[0].set_ylabel("held-out words, greedy")
    axes[0].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    return figure
