"""What a run's last numbers say about why it does not get better, and what to change first."""

from typing import Any

from llm_trainer.config import Config

MANY_CUT = 0.9  # share of answers without an end token
FEW_TAGGED = 0.05  # share of answers in the right format
NO_CHOICE = 0.01  # nats of entropy per token


def verdict(history: list[dict[str, Any]], config: Config) -> str:
    """What a finished run should not hide: it got worse, or its answers no longer end."""
    exact = [line["eval/exact"] for line in history if "eval/exact" in line]
    first, last = exact[0], exact[-1]
    text, line = f"held-out exact went from {first:.1%} to {last:.1%}", history[-1]
    if last < first or line.get("length/truncated", 0.0) > MANY_CUT:
        return f"warning: {text}. {likely_cause(line, config) or 'Try a smaller lr'}"
    return text


def no_signal(idle: int, line: dict[str, Any], config: Config) -> str:
    """Why a run was stopped after so many steps without contrast."""
    hard = "Use easier words, a better starting model, a larger group or a higher temperature"
    return (
        f"step {line['step']}: no group of the last {idle} steps can teach anything; their "
        f"rewards are all alike (mean {line['reward/mean']:.3g}). "
        + (likely_cause(line, config) or hard)
    )


def likely_cause(line: dict[str, Any], config: Config) -> str | None:
    """The first of the known causes that the numbers of a step show, and its remedy."""
    if config.reward_correctness == 0:
        return "reward_correctness = 0 pays nothing for right answers: raise it"
    brevity = config.reward_length * line.get("reward/length", 0.0)
    others = config.reward_correctness + config.reward_format
    if brevity > others:
        return (
            f"Brevity pays {brevity:.3g}, and all else about a right answer {others:.3g} at most: "
            f"answers are {line['length/mean']:.3g} tokens long. Lower reward_length"
        )
    if line.get("length/truncated", 0.0) > MANY_CUT:
        unpaid = ", and reward_format = 0 pays nothing for ending them: set it to 0.1, or "
        return (
            f"Nearly all answers are cut{unpaid if config.reward_format == 0 else ': '}raise "
            "max_new_tokens, or lower lr if they used to end"
        )
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
