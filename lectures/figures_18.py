"""What only lecture 18 needs: its pictures, and the sampler and the loop that section 6 measures.

Each picture takes numbers that the lecture has computed and returns a figure for
`lectures.figures.show`. A method wears one colour and one line throughout (`LOOKS`).
"""

import itertools
import math
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from lectures.figures import FAINT, style
from policy_gradients import leave_one_out
from toy_models.finite_mdp import FiniteMDP, learn_table, sorter_tree
from toy_models.policies import AutoregressivePolicy
from toy_models.sorting import sorted_reward
from toy_models.value_based import QNetwork, observe

LOOKS = {  # name: (colour, line, marker)
    "Q-learning": ("#332288", "-", "o"),
    "SARSA": ("#009E73", "--", "s"),
    "Double Q-learning": ("#D55E00", "--", "^"),
    "Q, from nothing": ("#332288", "-", "o"),
    "Q, sampled by the half-trained": ("#332288", ":", "s"),
    "REINFORCE, from nothing": (style("reinforce")["color"], "-", "^"),
    "REINFORCE, half-trained": (style("reinforce")["color"], ":", "D"),
    "DQN": ("#332288", "-", "o"),
    "without replay": ("#E69F00", "--", "s"),
    "without frozen target": ("#882255", "-.", "X"),
    "no frozen target, plain square": ("#CC6677", (0, (5, 1, 1, 1, 1, 1)), "P"),
    "without exploration": ("#777777", ":", "v"),
    "right": ("#117733", "-", "o"),
    "end forgotten": ("#882255", "--", "X"),
}


LOWER = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.02), "ncols": 3, "fontsize": 8.5}


def look(name: str) -> dict:
    """Colour, line and marker of a method, as plot's keyword arguments."""
    if name not in LOOKS:
        return style(name)
    color, line, marker = LOOKS[name]
    return {"color": color, "linestyle": line, "marker": marker}


def band(axis: Axes, x, runs, name: str, label: str | None = None) -> None:
    """Mean and middle half of runs (seeds, points)."""
    runs, x = np.asarray(runs, dtype=float), np.asarray(x)
    every = {"markevery": max(1, len(x) // 7)}
    axis.plot(x, runs.mean(0), label=label or name, **look(name), **every)
    low, high = np.quantile(runs, (0.25, 0.75), axis=0)
    axis.fill_between(x, low, high, color=look(name)["color"], alpha=0.15, linewidth=0)


def race(answers: list[int], scores: dict) -> Figure:
    """Share of prompts sorted by greedy choice: name → (seeds, points) at each budget."""
    figure, axis = plt.subplots(figsize=(6.8, 3.1))
    for name, runs in scores.items():
        band(axis, answers, runs, name, {"grpo": "GRPO"}.get(name))
    axis.set(
        xscale="log", xlabel="answers written", ylabel="prompts sorted (share)", ylim=(0, 1.04)
    )
    axis.set_xticks(answers, [f"{n:,}" for n in answers])
    axis.minorticks_off()
    axis.legend(loc="lower right")
    return figure


def cliff(paths: dict, returns: dict) -> Figure:
    """The walks that two tables prefer, and what was earned while they were learned.

    paths : name → list of states of the 4 × 12 grid; returns : name → (seeds, episodes)
    """
    figure, (grid, axis) = plt.subplots(1, 2, figsize=(8.6, 2.9), width_ratios=(1.15, 1))
    for row in range(4):
        for column in range(12):
            fall = row == 3 and 0 < column < 11
            fill = "#f2d9d0" if fall else "white"
            grid.add_patch(Rectangle((column, row), 1, 1, facecolor=fill, edgecolor="#cccccc"))
    for (name, path), shift in zip(paths.items(), (-0.09, 0.09), strict=True):
        y, x = np.divmod(np.asarray(path), 12)
        line = look(name) | {"marker": ""}
        grid.plot(x + 0.5 + shift, y + 0.5 + shift, label=name, linewidth=2.6, **line)
    grid.text(6, 3.5, "the cliff: −100 and back to S", ha="center", va="center", color="#8c3a22")
    for text, x in (("S", 0.2), ("G", 11.8)):
        grid.text(x, 3.78, text, ha="center", va="center", weight="bold")
    grid.set(xlim=(-0.05, 12.05), ylim=(4.05, -0.05), xticks=[], yticks=[], aspect="equal")
    grid.grid(False)
    grid.spines[:].set_visible(False)
    grid.legend(loc="upper center", bbox_to_anchor=(0.5, 1.28), ncols=2)
    for name, runs in returns.items():
        runs = np.asarray(runs, dtype=float)
        width = 20
        smooth = runs[:, : runs.shape[1] // width * width].reshape(len(runs), -1, width).mean(2)
        band(axis, np.arange(smooth.shape[1]) * width + width / 2, smooth, name)
    axis.set(xlabel="episodes", ylabel="return while learning (points)", ylim=(-150, 0))
    return figure


def doors(shares: dict, exact: float) -> Figure:
    """How often the worse door is taken, episode by episode: name → (episodes,)."""
    figure, axis = plt.subplots(figsize=(6.8, 2.8))
    for name, share in shares.items():
        x = np.arange(1, len(share) + 1)
        axis.plot(x, np.asarray(share), label=name, markevery=40, **look(name))
    axis.axhline(exact, label="exploration alone, if the values were right", **style("exact"))
    axis.set(xlabel="episode", ylabel="share that goes to B", ylim=(0, 0.85))
    axis.legend()
    return figure


def tricks(runs: dict, *, possible: float) -> Figure:
    """Training returns and believed values of variants of DQN: name → QRun of 6,000 steps."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.2))
    for name, run in runs.items():
        band(left, *episode_curve(run.episodes, 6000), name)
        band(right, _updates(run.values), run.values.T, name)
    left.set(xlabel="environment steps", ylabel="steps the pole stands", ylim=(0, 290))
    copies = np.arange(1, 28)
    arrived = possible * (1 - (1 - 1 / possible) ** copies)  # one step of news per copy
    right.axhline(possible, label="nothing is worth more", **style("exact"))
    right.plot(100 * copies, arrived, label="one step of news per copy", color="black", linewidth=1)
    right.set(xlabel="updates", ylabel="believed value (points)", yscale="log")
    figure.legend(*left.get_legend_handles_labels(), **LOWER)
    right.legend(fontsize=8, handles=right.get_lines()[-2:], loc="upper left")
    return figure


def _updates(log: Tensor) -> np.ndarray:
    return 100 * np.arange(1, len(log) + 1)


def vocabulary(sizes: list[int], needed: dict, budget: int) -> Figure:
    """Answers until the greedy answer is right: name → (sizes, seeds), budget + 1 = never."""
    figure, axis = plt.subplots(figsize=(6.8, 3.3))
    for k, (name, runs) in enumerate(needed.items()):
        runs = np.asarray(runs, dtype=float)
        x = np.asarray(sizes) * 1.015 ** (k - 1.5)
        middle, (low, high) = np.median(runs, 1), np.quantile(runs, (0.25, 0.75), axis=1)
        spread = [middle - low, high - middle]
        axis.errorbar(x, middle, yerr=spread, label=name, capsize=3, **look(name))
    axis.axhline(budget, color=FAINT, linewidth=1)
    axis.text(sizes[0], budget * 1.08, "not within the budget", color=FAINT, fontsize=9)
    axis.set(xscale="log", yscale="log", xlabel="vocabulary $V$ (tokens)", ylim=(5, budget * 1.7))
    axis.set(ylabel="answers until right (median)")
    axis.set_xticks(sizes, [str(n) for n in sizes])
    axis.minorticks_off()
    axis.legend(fontsize=8.5, loc="upper left", bbox_to_anchor=(0.0, 0.9))
    return figure


def news(values: dict, *, every: int) -> Figure:
    """Learned values along the right answer: name → (points, depth), `every` answers apart."""
    figure, axes = plt.subplots(1, len(values), figsize=(8.6, 2.9), sharey=True)
    for axis, (name, table) in zip(axes, values.items(), strict=True):
        table = np.asarray(table)
        edges = (-0.5 * every, (len(table) - 0.5) * every, table.shape[1] - 0.5, -0.5)
        picture = axis.imshow(table.T, cmap="Blues", vmin=0, vmax=1, aspect="auto", extent=edges)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("answers written")
        axis.grid(False)
    axes[0].set_ylabel("token $t$")
    figure.colorbar(picture, ax=axes, label="learned $Q(s_t, a_t)$ (points)", pad=0.02)
    return figure


def penalties(strengths: list[float], scores, said, *, logged: float) -> Figure:
    """Offline: real score of the greedy answers and what Q promised, by strength of the penalty.

    scores, said : (strengths, seeds)
    """
    figure, axis = plt.subplots(figsize=(6.8, 3.1))
    x = np.arange(len(strengths))
    axis.axhline(1, label="$Q^*$, what the best answer earns", **style("exact"))
    for values, name, label in (
        (said, "wrong", "what Q promises at the start"),
        (scores, "right", "what its greedy answers earn"),
    ):
        values = np.asarray(values)
        dots = {"linestyle": "", "alpha": 0.45, "markersize": 4}
        for seed in values.T:
            axis.plot(x, seed, **style(name) | dots)
        axis.plot(x, values.mean(1), label=label, **style(name))
    axis.axhline(logged, label="mean of the logged answers", color=FAINT, linewidth=1)
    axis.set_xticks(x, [f"{s:g}" for s in strengths])
    axis.set(xlabel="strength of the penalty (not to scale)", ylabel="points", ylim=(-0.05, 2.3))
    axis.legend(loc="upper left", fontsize=8.5, ncols=2)
    return figure


def hidden(runs: dict) -> Figure:
    """The TD error that a log shows, and what the pole thinks of it: name → QRun."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 2.9))
    for name, run in runs.items():
        band(left, _updates(run.errors), run.errors.T, name)
        band(right, *episode_curve(run.episodes, 6000), name)
    left.set(xlabel="updates", ylabel="mean |TD error| (points)", ylim=(0, None))
    right.set(xlabel="environment steps", ylabel="steps the pole stands", ylim=(0, None))
    right.legend(loc="center right")
    left.legend(loc="upper left")
    return figure


def episode_curve(episodes: list, steps: int, *, points: int = 12) -> tuple:
    """Mean return of the episodes that ended in each of `points` stretches: (x, (seeds, points)).

    A stretch in which none ended repeats the one before.
    """
    edges = np.linspace(0, steps, points + 1)
    rows = []
    for run in episodes:
        ends, returns = np.array(run).T
        row: list[float] = []
        for low, high in itertools.pairwise(edges):
            inside = returns[(ends > low) & (ends <= high)]
            row.append(inside.mean() if len(inside) else (row[-1] if row else 0.0))
        rows.append(row)
    return (edges[:-1] + edges[1:]) / 2, np.array(rows)


# --- the little machinery ------------------------------------------------------------------------


def quickest(work, tries: int = 40) -> float:
    """The shortest of many runs, which other programs disturb least: seconds."""
    times = []
    for _ in range(tries):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def softened(process: FiniteMDP, beta: float) -> tuple[Tensor, Tensor]:
    """Optimal V (states,) and Q (states, vocab) with KL weight beta, uniform reference, of a tree.

    Formula: V(s) = beta log mean_a exp(Q(s, a) / beta), Q(s, a) = r + V(s'). Lecture 20 derives it
    """
    q = torch.zeros_like(process.rewards[..., 0])
    while True:
        v = beta * ((q / beta).logsumexp(1) - math.log(q.shape[1]))
        following = torch.where(process.ends, 0.0, v[process.next_state])
        after = (process.rewards + following)[..., 0]
        if torch.equal(after, q):
            return v, q
        q = after


def half_trained_answers(prompts: Tensor, vocab: int, *, first: float, later: float, seed: int):
    """An answer of `half_trained` to each prompt, and the share that is right: (n, L), float."""
    policy = AutoregressivePolicy(vocab, prompts.shape[1], eos_id=None)
    dice, answers = torch.Generator().manual_seed(seed), []
    for prompt in prompts:
        sampler = half_trained(policy, prompt.sort().values, first=first, later=later)
        policy.table.data[0] = sampler.log()
        answers.append(policy.sample(prompt[None], 1, seed=dice))
    answers = torch.cat(answers)
    return answers, sorted_reward(prompts, answers).mean().item()


def half_trained(policy: AutoregressivePolicy, right: Tensor, *, first: float, later: float):
    """A sampler that could answer, and prefers not to: (states, vocab) probabilities.

    At the first token `right` has the probability `first` and the token above it half of all; at
    the others right has `later`. What is left is shared evenly. right : (L,) the right answer
    """
    depth = (policy.states >= 0).sum(1)
    place, vocab = torch.arange(len(right)), policy.vocab_size
    chances = torch.zeros(len(right), vocab, dtype=torch.float64)
    chances[place, right] = torch.tensor([first] + [later] * (len(right) - 1), dtype=torch.float64)
    chances[0, (right[0] + 1) % vocab] = 0.5
    rest = chances == 0
    chances[rest] = ((1 - chances.sum(1)) / rest.sum(1))[:, None].expand_as(chances)[rest]
    return chances[depth]


def first_time(values) -> int:
    """Where a list of numbers is above 0 for the first time; its length if nowhere."""
    return next((k for k, value in enumerate(values) if value > 0), len(values))


def answers_right(tables: Tensor, process: FiniteMDP, right: Tensor) -> Tensor:
    """Whether the greedy answer is `right` (L,), a tie counting as wrong: (n,) bool.

    tables : (n, states, vocab) values or logits of one prompt's tree
    """
    path = [0]
    for token in right[:-1].tolist():
        path.append(process.next_state[path[-1], token, 0].item())
    rows = tables[:, path]  # (n, L, vocab)
    others = rows.scatter(2, right[None, :, None].expand(len(rows), -1, 1), -math.inf).amax(2)
    return (rows.gather(2, right[None, :, None].expand(len(rows), -1, 1))[..., 0] > others).all(1)


def reinforce_until(process: FiniteMDP, policy: AutoregressivePolicy, seed: int, budget: int):
    """Answers that REINFORCE needs, eight at a time, until its greedy answer is right."""
    dice, prompt = torch.Generator().manual_seed(seed), policy.index.known
    for written in range(8, budget + 1, 8):
        answers = policy.sample(prompt, 8, seed=dice)
        advantages = leave_one_out(sorted_reward(prompt, answers).double()[None])[0]
        loss = -(advantages * policy.log_probs(prompt, answers).sum(1)).mean()
        policy.table.data -= 2.0 * torch.autograd.grad(loss, policy.table)[0]
        if answers_right(policy.table.detach(), process, prompt[0].sort().values)[0]:
            return written
    return budget + 8


def answers_needed(sizes: list[int], *, seeds: range, budget: int) -> dict[str, Tensor]:
    """Section 6.1: learner → (sizes, seeds), answers until the greedy answer is right, no tie.

    Three tokens, one prompt for each size of the vocabulary. From nothing, or with a sampler that
    is right with probability .1: Q-learning lets it write the answers, REINFORCE trains it.
    """
    knobs = {"gamma": 1.0, "lr": 1.0, "epsilon": 0.3, "every": 8}
    needed: dict[str, list[int]] = {}
    for vocab in sizes:
        prompt = torch.tensor([[vocab - 1, 0, vocab - 2]])
        process = sorter_tree(prompt, vocab_size=vocab, reward=sorted_reward)
        answer = prompt[0].sort().values
        for seed in seeds:
            for start in ("from nothing", "half-trained"):
                policy = AutoregressivePolicy(vocab, 3, eos_id=None, prompts=prompt).double()
                sampler = None
                if start == "half-trained":
                    sampler = half_trained(policy, answer, first=0.2, later=0.5**0.5)
                    policy.table.data[0] = sampler.log()
                for episodes in (min(320, budget), budget):  # a longer run begins like a shorter
                    run = learn_table(
                        process, seed=seed, behaviour=sampler, episodes=episodes, **knobs
                    )
                    works = answers_right(run.snapshots, process, answer)
                    if works.any():
                        break
                own = {"from nothing": start, "half-trained": "sampled by the half-trained"}[start]
                needed.setdefault(f"Q, {own}", []).append(8 * first_time(works))
                count = reinforce_until(process, policy, seed, budget)
                needed.setdefault(f"REINFORCE, {start}", []).append(count)
    return {name: torch.tensor(x).view(len(sizes), -1).double() for name, x in needed.items()}


def untried(network: QNetwork, prompts: Tensor, asked: Tensor, answers: Tensor) -> float:
    """Share of a network's greedy answers with a token that the log never has at that prefix.

    prompts : (prompts, L) to answer   asked, answers : (n, L) the log
    """
    length, vocab = prompts.shape[1], network.actions
    log = {
        (*x, *y[: k + 1])
        for x, y in zip(asked.tolist(), answers.tolist(), strict=True)
        for k in range(length)
    }
    runs = network.weights[0].shape[0]
    written = torch.full((runs, len(prompts), length), vocab)
    for t in range(length):
        seen = torch.stack([observe(prompts, prefix, vocab) for prefix in written])
        written[..., t] = network(seen).detach().argmax(-1)
    left = [
        (*x, *y) not in log
        for greedy_answers in written.tolist()
        for x, y in zip(prompts.tolist(), greedy_answers, strict=True)
    ]
    return sum(left) / len(left)
