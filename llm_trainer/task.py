"""spell_backward from reasoning-gym: the words, the split, the rewards.

The words are split by the word itself. Splitting by seed does not work: reasoning-gym draws item
`i` with the random state `seed + i`, so the data sets of seed 42 and seed 43 share all but one
item. Here the md5 of the lower-cased word decides, so *Abe* and *abe* land on the same side.
"""

import copy
import hashlib
import random
import re
from dataclasses import dataclass

from reasoning_gym.algorithmic.spell_backward import SpellBackwardConfig, SpellBackwardDataset
from reasoning_gym.utils import extract_answer

from llm_trainer.config import TaskConfig, require

# Partial credit counts matching positions over the length of the right answer, so the right answer
# followed by junk would match everywhere. No over-long answer may earn more than this.
OVERLONG_CAP = 0.8
WHOLE_RESPONSE = re.compile(r"<answer>[^<>]*</answer>")


@dataclass(frozen=True)
class Rewards:
    """What one response earned. Each part is between 0 and 1."""

    correctness: float  # reasoning-gym's partial credit, capped for over-long answers
    format: float  # 1 if the whole response is one answer tag and its end token
    exact: float  # 1 if the whole response is the expected text and its end token: what we evaluate


class Spelling:
    """The task with its fixed split into training and held-out words."""

    def __init__(self, config: TaskConfig):
        self.config = config
        self.dataset = SpellBackwardDataset(
            SpellBackwardConfig(
                min_word_len=config.min_letters, max_word_len=config.max_letters, seed=0, size=1
            )
        )
        self.train, self.held_out = split(self.dataset.words, config.held_out)

    def entry(self, word: str) -> dict:
        """reasoning-gym's own item for this word: question, answer, metadata."""
        single = copy.copy(self.dataset)
        single.words = [word]
        return single[0]

    def question(self, entry: dict) -> str:
        """The text of the user's turn."""
        instruction = self.config.instruction
        return f"{instruction}\n{entry['question']}" if instruction else entry["question"]

    def score(self, response: str, entry: dict, *, ended: bool = True) -> Rewards:
        """Score one response: its text before the end token, and whether the end token came.

        extract_answer takes the last answer tag, strips it and ignores the text around it, so
        format and exact compare the whole response. Without a tag correctness is 0.
        """
        answer = extract_answer(response)
        expected = entry["answer"]
        correctness = self.dataset.score_answer(answer, entry)
        if answer is not None and len(answer) > len(expected):
            correctness = min(correctness, OVERLONG_CAP)
        return Rewards(
            correctness=correctness,
            format=float(ended and WHOLE_RESPONSE.fullmatch(response) is not None),
            exact=float(ended and response == f"<answer>{expected}</answer>"),
        )


def split(words: list[str], held_out: int) -> tuple[list[str], list[str]]:
    """(training words, held-out words): the `held_out` smallest hashes are never trained on.

    Each held-out word appears once, in the first spelling the list has; its other spellings are
    in neither part.
    """
    spellings: dict[str, str] = {}
    for word in words:
        spellings.setdefault(word.lower(), word)
    require(
        held_out < len(spellings),
        f"task.held_out = {held_out}: only {len(spellings)} words have this many letters, and "
        "some must be left to train on",
    )
    hidden = sorted(spellings, key=lambda w: hashlib.md5(w.encode()).hexdigest())[:held_out]
    secret = set(hidden)
    return [w for w in words if w.lower() not in secret], [spellings[w] for w in hidden]


class WordStream:
    """Training words in a seeded shuffle, epoch after epoch; `position` is all there is to save."""

    def __init__(self, words: list[str], seed: int):
        self.words, self.seed, self.position = words, seed, 0
        self._epoch, self._order = -1, []

    def take(self, count: int) -> list[str]:
        """The next `count` words."""
        return [self._next() for _ in range(count)]

    def _next(self) -> str:
        epoch, index = divmod(self.position, len(self.words))
        if epoch != self._epoch:
            self._order = list(range(len(self.words)))
            random.Random(f"{self.seed}/{epoch}").shuffle(self._order)
            self._epoch = epoch
        self.position += 1
        return self.words[self._order[index]]
