"""The pictures that only lecture 10 draws: plain matplotlib, no arithmetic worth reading.

Each function takes numbers that the lecture has computed and returns a figure for
`lectures.figures.show`.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from lectures.figures import FAINT, INK, framed_cells, style

LABELS = {
    "reinforce": "REINFORCE",
    "rloo": "RLOO",
    "ppo": "PPO",
    "grpo": "GRPO",
    "dr_grpo": "Dr. GRPO",
    "gspo": "GSPO",
    "cispo": "CISPO",
    "dapo": "DAPO",
    "sapo": "SAPO",
    "maxrl": "MaxRL",
}

NO_BOUND = {"color": FAINT, "linewidth": 1.4, "linestyle": ":"}


def leaderboards(races: dict) -> Figure:
    """Every seed's score and the mean, one panel per race, rows in the first one's order.

    races : title → `toy_models.race.Race`
    """
    order = next(iter(races.values())).ranking()[::-1]
    height = 0.9 + 0.27 * len(order)
    figure, axes = plt.subplots(1, len(races), figsize=(7.6, height), sharex=True, sharey=True)
    for axis, (title, race) in zip(axes, races.items(), strict=True):
        place = {name: rank + 1 for rank, name in enumerate(race.ranking())}
        for y, name in enumerate(order):
            scores, look = np.asarray(race.scores[name]), style(name)["color"]
            axis.plot(scores, np.full(len(scores), y), "o", markersize=4, alpha=0.45, color=look)
            axis.plot(scores.mean(), y, "|", markersize=15, markeredgewidth=3, color=look)
            axis.text(1.02, y, place[name], transform=axis.get_yaxis_transform(), va="center")
        axis.text(1.02, len(order) - 0.35, "place", transform=axis.get_yaxis_transform(), size=8)
        axis.set(title=title, xlabel="exact J at the end (points)")
    axes[0].set_yticks(range(len(order)), [LABELS.get(name, name) for name in order])
    return figure


def gates(rho, curves: dict) -> Figure:
    """Push against ratio for A = +1 and A = −1: name → (2, ratios), NaN where not drawn."""
    figure, axes = plt.subplots(1, 2, figsize=(7.6, 3.7), sharex=True)
    for axis, sign, title in zip(axes, (0, 1), ("A = +1", "A = −1"), strict=True):
        for name, pushes in curves.items():
            look = style(name) | {"marker": "", "linewidth": 2.2}
            look |= {"label": LABELS.get(name, "no bound")}
            if name == "unclipped":
                look |= NO_BOUND
            axis.plot(rho, pushes[sign], **look)
        axis.set(title=title, xlabel="ratio (GSPO: of the whole answer)")
    axes[0].set(ylabel="push on the token", ylim=(-0.1, 2.1))
    axes[1].set(ylim=(-3.1, 0.15))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return figure


def one_batch(steps, kl: dict, dead: dict) -> Figure:
    """Left: KL against inner steps, name → (steps,). Right: dead share by rarity, → (bins,)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.5), width_ratios=(1.25, 1))
    for name, values in kl.items():
        base = name.split()[0]
        look = style(base) | ({"linestyle": ":"} if name != base else {})
        look |= NO_BOUND if name == "unclipped" else {}
        label = name.replace(base, LABELS.get(base, "no bound"))
        left.loglog(steps, values, label=label, **look)
    left.set(title="how far one batch is taken", xlabel="inner steps", ylabel="KL(old ‖ new), nats")
    left.set_xticks(steps, [str(k) for k in steps])
    left.minorticks_off()
    width = 0.8 / len(dead)
    for k, (name, shares) in enumerate(dead.items()):
        x = np.arange(len(shares)) + (k - (len(dead) - 1) / 2) * width
        none = "" if max(shares) > 0 else ": none"
        look = {"color": style(name)["color"], "label": LABELS[name] + none}
        hatch = {"ppo": "", "dapo": "//", "cispo": ""}[name]
        right.bar(x, shares, 0.92 * width, hatch=hatch, edgecolor="white", **look)
        for at, share in zip(x, shares, strict=True):
            text = {"ha": "center", "va": "bottom", "fontsize": 7.5}
            right.text(at, float(share) + 0.01, f"{float(share):.2f}".lstrip("0"), **text)
    right.set_xticks(range(len(shares)), ["< .05", ".05–.2", ".2–.5", "> .5"])
    right.set(title="silenced, by rarity", xlabel="probability when sampled", ylabel="share dead")
    right.set_ylim(0, 1)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9)
    right.legend(fontsize=8.5)
    return figure


def prompt_weights(p, curves: dict) -> Figure:
    """Weight of a prompt against its pass rate: name → (p,); "log p" is drawn as the limit."""
    figure, axis = plt.subplots(figsize=(6.6, 3.2))
    for name, weights in curves.items():
        if name == "1/p":
            axis.loglog(p, weights, "--", color=INK, linewidth=1.2, label="1/p: all of log p")
        else:
            axis.loglog(p, weights, **style(name) | {"markevery": 12}, label=LABELS[name])
    axis.set(xlabel="pass rate p", ylabel="weight of the prompt", ylim=(0.4, 40))
    axis.set_xticks((0.01, 0.1, 0.5, 1), (".01", ".1", ".5", "1"))
    axis.set_yticks((0.5, 1, 2, 5, 10, 30), (".5", "1", "2", "5", "10", "30"))
    axis.minorticks_off()
    axis.legend(ncols=2)
    return figure


def routing(token, replayed, lengths, spreads: dict) -> Figure:
    """Left: token ratios with and without the router's part. Right: spread of the mean log-ratio.

    token, replayed : (tokens,) ratios   spreads : label → (lengths,)
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.3))
    bins = np.linspace(-4, 3, 141)
    looks = {"routes move": style("wrong"), "old routes kept": style("right")}
    for (label, look), ratios in zip(looks.items(), (token, replayed), strict=True):
        look = {"color": look["color"], "linewidth": 1.6, "label": label}
        left.hist(np.log(np.asarray(ratios)), bins, histtype="step", log=True, **look)
    for edge in np.log((0.8, 1.2)):
        left.axvline(edge, color=FAINT, linewidth=1, linestyle=":")
    marks = (0.02, 0.1, 0.8, 1.2, 10)
    left.set_xticks(np.log(marks), ["1/50", "1/10", "", ".8 1.2", "10"])
    left.set(title="ratio of one token", xlabel="ratio (logarithmic)", ylabel="tokens")
    left.legend(fontsize=8.5, loc="upper left")
    left.set_ylim(0.6, 5e5)
    looks = list(looks.values())
    for (label, values), look in zip(spreads.items(), looks, strict=True):
        right.loglog(lengths, values, label=label, **look)
    for level, text in ((0.2, "PPO's ε = .2"), (3e-4, "GSPO's ε = .0003")):
        right.axhline(level, color=INK, linewidth=1, linestyle=(0, (5, 3)))
        right.text(lengths[-1], level * 1.12, text, ha="right", va="bottom", fontsize=8.5)
    right.set(title="ratio of an answer (mean)", xlabel="tokens", ylabel="spread between answers")
    right.set_ylim(1e-4, 0.6)
    right.set_xticks(lengths, [f"{n:,}" for n in lengths])
    right.minorticks_off()
    return figure


def differences(panels: dict) -> Figure:
    """Paired differences with their intervals: title → {label: (seeds,) pairs, Difference}.

    Filled marks and thick lines where zero lies outside the interval.
    """
    rows = len(next(iter(panels.values())))
    figure, axes = plt.subplots(
        1, len(panels), figsize=(7.6, 1.0 + 0.36 * rows), sharey=True, squeeze=False
    )
    for axis, (title, gaps) in zip(axes[0], panels.items(), strict=True):
        axis.axvline(0, color=INK, linewidth=1)
        for y, (pairs, gap) in enumerate(reversed(gaps.values())):
            color = style("first" if gap.carried else "second")["color"]
            axis.plot(
                pairs, np.full(len(pairs), y + 0.3), "o", markersize=3.5, alpha=0.4, color=INK
            )
            axis.plot([gap.low, gap.high], [y, y], color=color, linewidth=1 + 2 * gap.carried)
            face = color if gap.carried else "white"
            axis.plot(gap.mean, y, "D", color=color, markerfacecolor=face)
        axis.set(title=title, xlabel="difference in J (points)", ylim=(-0.6, rows - 0.4))
    axes[0, 0].set_yticks(range(rows), [LABELS.get(name, name) for name in reversed(gaps)])
    return figure


def pairs_map(pairs: dict, probes: list[str]) -> Figure:
    """Pushes of right and wrong losses, "right | wrong" → (2, probes); differences are framed."""
    figure, axis = plt.subplots(figsize=(7.6, 0.9 + 0.62 * len(pairs)))
    table = np.concatenate([np.asarray(pair) for pair in pairs.values()])
    differs = np.zeros(table.shape, dtype=bool)
    differs[1::2] = np.abs(table[1::2] - table[::2]) > 1e-9  # each wrong row against its right one
    framed_cells(axis, table, differs, limit=3)
    for k in range(1, len(pairs)):
        axis.axhline(2 * k - 0.5, color="white", linewidth=5)
    axis.set_xticks(range(len(probes)), probes, fontsize=8.5)
    labels = [label for name in pairs for label in name.split(" | ")]
    axis.set_yticks(range(len(labels)), labels)
    return figure
