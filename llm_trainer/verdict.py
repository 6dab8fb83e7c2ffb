"""What a run's last numbers say about why it does not get better, and what to change first."""

from typing import Any

from llm_trainer.config import Config

MANY_CUT = 0.9  # share of answers without an end token
FEW_TAGGED = 0.05  # share of answers in the right format
NO_CHOICE = 0.01  # nats of entropy per token
STILL = 0.01  # of held-out words: the noise of an evaluation of 1,000
MASTERED = 0.9  # share of held-out words above which little is left to gain


def verdict(history: list[dict[str, Any]], config: Config, *, own_loss: bool = False) -> str:
    """What a finished run should not hide: it got worse, stood still, or answers do not end."""
    exact = [line["eval/exact"] for line in history if "eval/exact" in line]
    first, last = exact[0], exact[-1]
    text, line = f"held-out exact went from {first:.1%} to {last:.1%}", history[-1]
    if last < first - STILL or line.get("length/truncated", 0.0) > MANY_CUT:
        sign = "Is the sign of your loss right? It is minimised. If so, try a smaller lr"
        other = sign if own_loss else "Try a smaller lr"
        return f"warning: {text}. {likely_cause(line, config, beginning(history)) or other}"
    if abs(last - first) <= STILL and first < MASTERED and line.get("step", 0) >= 20:
        return f"{text}, which is next to nothing. More steps, or a larger lr, may show more"
    return text


def beginning(history: list[dict[str, Any]]) -> dict[str, Any]:
    """The first line that describes samples; empty if there is none yet."""
    return next((line for line in history if "length/truncated" in line), {})


def no_signal(
    idle: int, line: dict[str, Any], config: Config, *, begun: dict[str, Any] | None = None
) -> str:
    """Why a run was stopped after so many steps without contrast; begun: its first step's line."""
    hard = "Use easier words, a better starting model, a larger group or a higher temperature"
    return (
        f"step {line['step']}: no group of the last {idle} steps can teach anything; their "
        f"rewards are all alike (mean {line['reward/mean']:.3g}). "
        + (likely_cause(line, config, begun or line) or hard)
    )


def likely_cause(line: dict[str, Any], config: Config, begun: dict[str, Any]) -> str | None:
    """The first of the known causes that a step's numbers show, and its remedy.

    begun: the numbers of the run's first step, which tell what was lost from what was never there.
    """
    if config.reward_correctness == 0:
        return "reward_correctness = 0 pays nothing for right answers: raise it"
    brevity = config.reward_length * line.get("reward/length", 0.0)
    others = config.reward_correctness + config.reward_format
    if brevity > others:
        return (
            f"Brevity pays {brevity:.3g}, and all else about a right answer {others:.3g} at most: "
            f"answers have {line['length/mean']:.3g} tokens. Lower reward_length"
        )
    if line.get("length/truncated", 0.0) > MANY_CUT:
        return cut_cause(line, config, begun)
    if line.get("reward/format", 1.0) < FEW_TAGGED:
        return (
            "Hardly any response is one <answer>…</answer> tag: let task.instruction ask for it, "
            "or start from a model that writes it"
        )
    if line.get("entropy", 1.0) < NO_CHOICE:
        return (
            f"Responses to a prompt are all the same (entropy {line['entropy']:.2g} nats): raise "
            "temperature, or lower lr if they used to differ"
        )
    return None


def cut_cause(line: dict[str, Any], config: Config, begun: dict[str, Any]) -> str:
    """Why nearly all answers are cut at the token limit."""
    if config.reward_format == 0:
        return (
            "Nearly all answers are cut, and reward_format = 0 pays nothing for ending them: set "
            "it to 0.1"
        )
    if begun.get("length/truncated", 1.0) < MANY_CUT / 2:
        return "Answers ended at first, and nearly all are cut now: lower lr"
    if line.get("reward/format", 1.0) < FEW_TAGGED:
        return (
            "Nearly all answers are cut, from the first step on, and none is an answer tag: raise "
            "max_new_tokens; if that changes nothing, the model was never taught this task"
        )
    return "Nearly all answers are cut: raise max_new_tokens"
