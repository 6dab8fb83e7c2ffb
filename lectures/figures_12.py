"""What only lecture 12 draws and quotes: no arithmetic worth reading.

The pictures take numbers that the lecture has computed and return a figure for
`lectures.figures.show`; `lines_table` quotes single lines of the trainer's real source.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import policy_gradients as pg
from lectures.figures import BOX_FILLS, FAINT, INK, WRONG_SIDE, style
from llm_trainer import batch, credit, invariants, losses, models, rollout, scoring, step, train

QWEN_TOKENS = Path(__file__).parent / "reference_runs" / "qwen_tokens.json"

# Kinds of tokens: fill, edge, what the legend says.
KINDS = {
    "format": (*BOX_FILLS["plain"], "the chat format"),
    "task": (*BOX_FILLS["data"], "the task's text"),
    "word": ("#f7cf7a", "#b07a00", "the word"),
    "answer": (*BOX_FILLS["next"], "response: sampled and trained"),
    "end": ("#8fd6bb", "#00694e", "the end token, trained too"),
    "padding": ("white", "#cccccc", "padding"),
}
WIDTH, LINE, LETTER = 7.6, 0.60, 0.079  # inches: of the picture, of a line, of a letter


def conversation(strips: dict[str, list[tuple[str, str, bool]]]) -> Figure:
    """Tokens as boxes in reading order, the mask under each.

    strips : title → (text, kind, in the mask) for each token; kinds are those of KINDS
    """
    laid = {title: _lines(tokens) for title, tokens in strips.items()}
    rows = sum(len(lines) for lines in laid.values())
    height = LINE * rows + 0.32 * len(laid) + 0.42
    figure = plt.figure(figsize=(WIDTH, height), layout="none")
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, WIDTH), ylim=(0, height))
    axis.axis("off")
    top = height - 0.08
    for title, lines in laid.items():
        axis.text(0.06, top, title, weight="bold", fontsize=10, va="top")
        top -= 0.30
        for line in lines:
            for x, width, text, kind, trained in line:
                _token(axis, x, top - 0.29, width, text, kind, trained)
            top -= LINE
    x = 0.08
    for fill, edge, label in KINDS.values():
        box = {"facecolor": fill, "edgecolor": edge, "linewidth": 1, "boxstyle": "round,pad=0.02"}
        axis.add_patch(FancyBboxPatch((x, 0.12), 0.13, 0.13, **box))
        said = axis.text(x + 0.20, 0.185, label, fontsize=8, va="center")
        x += 0.29 + said.get_window_extent().width / figure.dpi
    return figure


def told_apart(
    prompt: list[str],
    answer: list[str],
    question: str,
    word: str,
    *,
    mask: Sequence[bool] | None = None,
) -> list[tuple[str, str, bool]]:
    """Pieces of a prompt and its answer, each with its kind and whether the mask holds it.

    prompt, answer : texts of the tokens; the answer's last one is the end token
    mask : of the answer and the padding behind it; without one there is no padding
    question : the user's turn, inside the prompt; it ends with `word`
    """
    begin = "".join(prompt).index(question)
    end, found, at = begin + len(question), [], 0
    for piece in prompt:
        at += len(piece)
        inside = begin < at <= end
        kind = "word" if inside and at > end - len(word) else "task" if inside else "format"
        found.append((piece, kind, False))
    mask = [True] * len(answer) if mask is None else mask
    kinds = ["answer"] * (len(answer) - 1) + ["end"] + ["padding"] * (len(mask) - len(answer))
    pieces = answer + ["pad"] * (len(mask) - len(answer))
    return found + list(zip(pieces, kinds, mask, strict=True))


def visible(text: str) -> str:
    return text.replace("\n", "↵").replace(" ", "·")


def _lines(tokens: list[tuple[str, str, bool]]) -> list[list[tuple]]:
    """(x, width, text, kind, in the mask) of each token, line by line."""
    lines, x = [[]], 0.08
    for text, kind, trained in tokens:
        text = visible(text)
        width = max(0.20, LETTER * len(text) + 0.09)
        if x + width > WIDTH - 0.05:
            lines.append([])
            x = 0.08
        lines[-1].append((x, width, text, kind, trained))
        x += width + 0.045
    return lines


def _token(axis: Axes, x, y, width, text, kind, trained) -> None:
    fill, edge, _ = KINDS[kind]
    box = {"facecolor": fill, "edgecolor": edge, "linewidth": 1, "boxstyle": "round,pad=0.01"}
    axis.add_patch(FancyBboxPatch((x, y), width, 0.25, **box))
    look = {"ha": "center", "va": "center", "family": "monospace"}
    axis.text(x + width / 2, y + 0.12, text, fontsize=8.6, **look)
    ink, weight = (KINDS["end"][1], "bold") if trained else (FAINT, "normal")
    axis.text(x + width / 2, y - 0.10, int(trained), fontsize=7.5, color=ink, weight=weight, **look)


PARTS = {
    "weights": ("#0072B2", ""),
    "gradients": ("#56B4E9", ""),
    "float32 copy": ("#9fd3f2", "///"),
    "Adam's two moments": ("#d9ebf7", "..."),
    "frozen weights": ("#c9c9c9", ""),
}


def memory_bars(bars: dict[str, list[tuple[str, dict[str, float]]]]) -> Figure:
    """One stacked bar per way of training: name → (network, {part: GB}) from left to right."""
    figure, axis = plt.subplots(figsize=(7.6, 0.9 + 0.52 * len(bars)))
    names = list(bars)[::-1]
    for row, name in enumerate(names):
        left = 0.0
        for network, parts in bars[name]:
            begin = left
            for part, size in parts.items():
                color, hatch = PARTS[part]
                look = {"color": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0.8}
                axis.barh(row, size, 0.62, left=left, **look)
                left += size
            if left - begin > 1:
                axis.plot([begin, left], [row - 0.36] * 2, color=INK, linewidth=1.1)
                middle = {"ha": "center", "va": "top", "fontsize": 8}
                axis.text((begin + left) / 2, row - 0.40, network, **middle)
        thin = [f", {n} {sum(p.values()):.1f}" for n, p in bars[name] if sum(p.values()) < 1]
        said = axis.text(left + 3, row, f"{left:.0f} GB", va="center", weight="bold")
        if thin:  # too thin to be seen
            axis.annotate("".join(thin), (1, 0), xycoords=said, va="bottom", fontsize=8)
    for part, (color, hatch) in PARTS.items():
        axis.bar(0, 0, color=color, hatch=hatch, edgecolor="white", label=part)
    axis.set_yticks(range(len(names)), names)
    axis.set(xlabel="GB for models of 7 billion parameters", xlim=(0, 285))
    axis.set_ylim(-0.75, len(names) - 0.45)
    axis.grid(axis="y", visible=False)
    axis.legend(loc="lower right", fontsize=8)
    return figure


def live_curve(logs: list[tuple], live: tuple, title: str) -> Figure:
    """Held-out accuracy of committed runs as a band, and of the run just made on top.

    logs : (steps, values) of each run, all at the same steps; live : (steps, values)
    """
    figure, axis = plt.subplots(figsize=(7.2, 3.4))
    steps = logs[0][0]
    values = 100 * np.array([run[1] for run in logs])
    look = style("grpo") | {"marker": ""}
    low, high = values.min(0), values.max(0)
    axis.fill_between(steps, low, high, color=look["color"], alpha=0.2, linewidth=0)
    axis.plot(
        steps, values.mean(0), label=f"committed logs: {len(logs)} seeds, mean and range", **look
    )
    live_look = {"color": INK, "linestyle": "--", "marker": "o", "markersize": 4.5}
    axis.plot(live[0], 100 * np.array(live[1]), label=title, **live_look)
    axis.set(xlabel="steps of 16 prompts × 8 responses", ylabel="held-out words right (%)")
    axis.set_ylim(40, 100)
    axis.legend(loc="lower right")
    return figure


def flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Tensors as one vector: (parameters,)."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def set_dropout(policy: models.Policy, rate: float) -> None:
    """Attention drops this share of its weights from now on, as in a forgotten training mode."""
    for module in policy.model.modules():
        if hasattr(module, "attention_dropout"):
            module.attention_dropout = rate
    policy.model.train()


def folded_compass(true: torch.Tensor, clouds: dict[str, tuple[str, torch.Tensor]]) -> Figure:
    """Where estimates lie: along ∇J to the right, everything across it upwards (log scale).

    true : (parameters,); clouds : title → (style's name, (n, parameters)); a cross is their mean
    """
    figure, axis = plt.subplots(figsize=(7.2, 4.0))
    axis.axvspan(-1, 0, color=WRONG_SIDE, zorder=0)
    for title, (name, samples) in clouds.items():
        look = style(name)
        x, y = _folded(true, samples)
        face = {"markersize": 9, "fillstyle": "none"} if name == "rloo" else {"markersize": 5}
        axis.plot(x, y, look["marker"], color=look["color"], alpha=0.6, label=title, **face)
        x, y = _folded(true, samples.mean(0, keepdim=True))
        ring = {"markersize": 9, "markeredgecolor": "white", "markeredgewidth": 1.1}
        axis.plot(x, y, "X", color=look["color"], **ring)
    axis.axvline(1, color=INK, linewidth=1.2, linestyle="--")
    axis.text(1.015, 14, "∇J", fontsize=10, va="top")
    axis.text(-0.47, 0.036, "lowers J", fontsize=9, color="#7a4a35")
    axis.set(xlim=(-0.5, 1.6), yscale="log", ylim=(0.03, 16))
    axis.set(xlabel="part along ∇J (in |∇J|)", ylabel="length of all that is across (in |∇J|)")
    axis.legend(loc="upper left", fontsize=9)
    return figure


def _folded(true: torch.Tensor, samples: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    unit = true / true.norm()
    along = samples @ unit
    across = (samples - along[:, None] * unit).norm(dim=1)
    return along / true.norm(), across / true.norm()


def cuts_table(examples: dict[str, dict[str, list[str]]]) -> str:
    """Words: the pieces they are read in, and those that the answer is written in."""
    rows = ["| word | read as, after a blank | to be written as |", "|:--|:--|:--|"]
    for word, seen in examples.items():
        written = seen["answer"][: seen["answer"].index("</")]  # from the tag's last piece on
        last = max(i for i, piece in enumerate(written) if ">" in piece)
        columns = [" ".join(f"`{p}`" for p in parts) for parts in (seen["prompt"], written[last:])]
        rows.append(f"| {word} | {columns[0]} | {columns[1]} |")
    return "\n".join(rows)


def show_table(markdown: str) -> None:
    """Display a Markdown table."""
    display({"text/markdown": markdown, "text/plain": markdown}, raw=True)


Learner = step.Learner
LINES = (  # idea, tag, function, a piece of the line that does it
    ("a row: surrogate, then average", "[VAR-1]", pg.Algorithm.loss, "per_token = self.surrogate("),
    ("whole groups: a prompt serves its rows", "[GR-1]", batch.StepBatch.take, "rows = (index"),
    ("the reference: adapters off", "[LM-6]", models.Policy.reference, "return replace"),
    ("up to the first end token", "[MAP-5]", rollout.sample, "mask = response_mask"),
    ("the score of a softmax, in place", "[LM-7]", scoring.HeadLogProbs.backward, "z.scatter_add_"),
    ("advantages from groups", "[GR-1]", credit.compare, "= row.advantage(scores)"),
    ("your loss, or the row's", "[GR-2]", losses.Loss.__init__, "self.policy = own_loss"),
    ("the first ratio is 1", "[BUG-7]", invariants.check_start, "off = [((p.logp"),
    (
        "the sampler's log-probs are the old ones",
        "[RC-3]",
        Learner.measure,
        "logp_old=batch.logp_s",
    ),
    ("counts of the whole step", "[AGG-9]", step.count, "sequences=len"),
    (
        "the push on each token",
        "[BUG-1]",
        Learner.policy_gradient,
        "gradient = torch.autograd.grad",
    ),
    ("the reward's parts", "[LM-2]", train.rewarded, "rewards = sum("),
)


EXERCISE = (  # four more, without their tags, for exercise 1
    ("silent groups are not computed", "[GR-4]", Learner.teaches, "batch.advantages.abs()"),
    ("advantages from a critic", "[GAE-13]", credit.criticise, "advantages, returns = gae("),
    ("mixed groups only", "[GR-10]", train.collect, "keep = dapo_filter"),
    ("the gradient's length is bounded", "[BUG-9]", Learner.clip, "clip_grad_norm_"),
)


def lines_table(rows: Sequence[tuple[str, str, Callable | property, str]] = LINES) -> str:
    """Idea, tag, where, and the one line of the function's source that does it.

    Raises ValueError unless exactly one line of the function holds the piece: the table cannot say
    what the source does not.
    """
    table = ["| idea | tag | where | the line |", "|:--|:--|:--|:--|"]
    for idea, tag, function, piece in rows:
        function = function.fget if isinstance(function, property) else function
        folder, file = function.__module__.split(".")
        folder = f"{folder}/" if folder != "llm_trainer" else ""
        where = f"`{folder}{file}.py` `{function.__qualname__}`"
        line = quoted(function, piece).replace("|", r"\|")
        table.append(f"| {idea} | {tag} | {where} | `{line}` |")
    return "\n".join(table)


def quoted(function: Callable, piece: str) -> str:
    """The one line of the function's source that holds the piece, without its comment."""
    lines = [line.strip() for line in inspect.getsource(function).splitlines() if piece in line]
    if len(lines) != 1:
        raise ValueError(f"{function.__qualname__}: {len(lines)} lines hold {piece!r}")
    return lines[0].split("  # ")[0]
