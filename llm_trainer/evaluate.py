"""Held-out accuracy by generating: greedy responses, equal to the expected text or not.

Accuracy measured on teacher-forced tokens says nothing after reinforcement learning: the model
is then judged on prefixes it would never write.
"""

from collections import defaultdict
from dataclasses import dataclass

from llm_trainer.models import Policy
from llm_trainer.rollout import pad_prompts, sample
from llm_trainer.task import Spelling


@dataclass(frozen=True)
class Evaluation:
    """Shares between 0 and 1, over held-out words."""

    exact: float
    correctness: float  # mean partial credit
    by_letters: dict[int, float]  # exact, by length of the word
    answers: list[tuple[str, str, bool]]  # word, response, exact


def evaluate(
    policy: Policy, task: Spelling, words: list[str], *, max_new_tokens: int, batch: int = 256
) -> Evaluation:
    """Greedy decoding of every word; `batch` bounds the rows in memory and changes no result."""
    answers, exact, credit = [], defaultdict(list), 0.0
    for start in range(0, len(words), batch):
        entries = [task.entry(word) for word in words[start : start + batch]]
        ids = [policy.prompt(task.question(e)) for e in entries]
        responses = sample(
            policy,
            pad_prompts(ids, policy),
            group=1,
            max_new_tokens=max_new_tokens,
            temperature=1.0,
            generator=None,
        )
        for entry, tokens in zip(entries, responses.tokens.tolist(), strict=True):
            text, word = policy.text(tokens), entry["metadata"]["word"]
            rewards = task.score(text, entry, ended=policy.end_id in tokens)
            answers.append((word, text, rewards.exact == 1))
            exact[len(word)].append(rewards.exact)
            credit += rewards.correctness
    total = sum(sum(values) for values in exact.values())
    return Evaluation(
        exact=total / len(words),
        correctness=credit / len(words),
        by_letters={n: sum(v) / len(v) for n, v in sorted(exact.items())},
        answers=answers,
    )
