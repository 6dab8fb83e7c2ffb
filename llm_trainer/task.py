"""Tasks of reasoning-gym: the questions, which of them are held out, what an answer earns.

`load_task(config.task)` gives one task or a mixture. All have the same methods: `stream(seed)`
draws training items for ever, `draw(rng)` one of them, `held_out` lists items that are never drawn,
`entry(item)` is reasoning-gym's own item (question, answer, metadata), `question(entry)` the
user's turn, `score(response, entry)` the reward parts.

Nothing is held out by seed. reasoning-gym draws item `i` with the random state `seed + i`, so the
data sets of seeds 42 and 43 share all but one item. spell_backward is split by the word, every
other task by the md5 of the question's text.

Left out: near-copies. Two questions that differ only in their wording or in the order of their
parts may land on different sides. And six tasks of reasoning-gym 0.1.25 (isomorphic_strings,
knight_swap, list_functions, polynomial_multiplication, ransom_note, word_ladder) make items that
depend on Python's hash seed: the sides hold, but runs repeat only with PYTHONHASHSEED set.
"""

import copy
import hashlib
import random
import re
from dataclasses import dataclass, fields
from enum import Enum

from reasoning_gym.algorithmic.spell_backward import SpellBackwardConfig, SpellBackwardDataset
from reasoning_gym.factory import DATASETS
from reasoning_gym.utils import extract_answer

from llm_trainer.config import TaskConfig, closest, first_line, require

# Partial credit counts matching positions over the length of the right answer, so the right answer
# followed by junk would match everywhere. No over-long answer may earn more than this.
OVERLONG_CAP = 0.8
WORD_RESPONSE = re.compile(r"<answer>[^<>]*</answer>")
# Other tasks may have < and > in their answers, but neither a tag nor a marker such as <|im_end|>.
WHOLE_RESPONSE = re.compile(r"<answer>(?:(?!</?answer>|<\|).)*</answer>", re.DOTALL)
VIRTUAL_SIZE = 20_000  # items of a generated task, where task.options sets no `size`
LARGEST_SIZE = 10_000_000
HIDDEN_SHARE = 4  # one question in so many is on the held-out side
RIGHT = 1 - 1e-9  # a score from here on is full credit: some are sums of fractions


@dataclass(frozen=True)
class Rewards:
    """What one response earned. Each part is between 0 and 1."""

    correctness: float  # reasoning-gym's partial credit
    format: float  # 1 if the whole response is one answer tag and its end token
    exact: float  # 1 if it is right as a whole: what we evaluate, no part of the reward


class Stream:
    """Training items one after the other, for ever; `position` is all there is to save."""

    def __init__(self, seed: int):
        self.seed, self.position = seed, 0

    def take(self, count: int) -> list:
        """The next `count` items."""
        return [self.next() for _ in range(count)]


class Task:
    """What all tasks share: the prompt's text and how a response is scored.

    Besides these: `stream(seed)`, `draw(rng)`, `entry(item)`, `held_out` and, for scores,
    `dataset`.
    """

    held_out: list
    whole_response = WHOLE_RESPONSE

    def __init__(self, config: TaskConfig, name: str):
        self.config, self.name = config, name
        self.tasks: dict[str, Task] = {name: self}  # the tasks it consists of

    def question(self, entry: dict) -> str:
        """The text of the user's turn; the instruction has to name the answer tags."""
        instruction = self.config.instruction
        return f"{instruction}\n{entry['question']}" if instruction else entry["question"]

    def label(self, entry: dict) -> str:
        """The end of the question, 60 characters at most, for people: there it differs most."""
        text = " ".join(entry["question"].split())
        return text if len(text) <= 60 else f"… {text[-58:]}"

    def score(self, response: str, entry: dict, *, ended: bool = True) -> Rewards:
        """Score one response.

        response : its text before the end token, special tokens visible
        ended : whether the end token came

        extract_answer takes the last answer tag, strips it and ignores the text around it, so
        format and exact look at the whole response. Without a tag or with an empty one,
        correctness is 0 (some of reasoning-gym's own scores give 0.01 or 0.05 for nothing).
        """
        answer = extract_answer(response)
        correctness = self.correctness(answer, entry) if answer else 0.0
        whole = ended and self.whole_response.fullmatch(response) is not None
        return Rewards(
            correctness=correctness,
            format=float(whole),
            exact=float(whole and self.is_exact(response, correctness, entry)),
        )

    def correctness(self, answer: str, entry: dict) -> float:
        """reasoning-gym's score, kept within 0 and 1; 0 where it fails on the answer."""
        try:
            score = float(self.dataset.score_answer(answer, entry))
        except Exception:  # prime_factorization, for one, raises on text that is no number
            return 0.0
        return min(max(score, 0.0), 1.0) if score == score else 0.0

    def is_exact(self, response: str, correctness: float, entry: dict) -> bool:
        """Full credit, in a response of the right format that ended."""
        return correctness >= RIGHT


class Spelling(Task):
    """spell_backward, with its fixed split into training and held-out words; items are words."""

    name = "spell_backward"
    whole_response = WORD_RESPONSE

    def __init__(self, config: TaskConfig):
        super().__init__(config, self.name)
        self.dataset = SpellBackwardDataset(
            SpellBackwardConfig(
                min_word_len=config.min_letters, max_word_len=config.max_letters, seed=0, size=1
            )
        )
        self.train, self.held_out = split(self.dataset.words, config.held_out)

    def stream(self, seed: int) -> "WordStream":
        return WordStream(self.train, seed)

    def draw(self, rng: random.Random) -> str:
        return rng.choices(self.train)[0]

    def entry(self, word: str) -> dict:
        """reasoning-gym's own item for this word: question, answer, metadata."""
        single = copy.copy(self.dataset)
        single.words = [word]
        return single[0]

    def label(self, entry: dict) -> str:
        return entry["metadata"]["word"]

    def correctness(self, answer: str, entry: dict) -> float:
        """Matching positions over the length of the right answer, capped for over-long answers."""
        correctness = self.dataset.score_answer(answer, entry)
        too_long = len(answer) > len(entry["answer"])
        return min(correctness, OVERLONG_CAP) if too_long else correctness

    def is_exact(self, response: str, correctness: float, entry: dict) -> bool:
        """The whole response is the expected text: its score ignores case and blanks."""
        return response == f"<answer>{entry['answer']}</answer>"


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


class WordStream(Stream):
    """Training words in a seeded shuffle, epoch after epoch."""

    def __init__(self, words: list[str], seed: int):
        super().__init__(seed)
        self.words, self._epoch, self._order = words, -1, []

    def next(self) -> str:
        epoch, index = divmod(self.position, len(self.words))
        if epoch != self._epoch:
            self._order = list(range(len(self.words)))
            random.Random(f"{self.seed}/{epoch}").shuffle(self._order)
            self._epoch = epoch
        self.position += 1
        return self.words[self._order[index]]


class Generated(Task):
    """Any other task of reasoning-gym; items are its entries.

    A fixed rule on the question's text decides its side (`is_hidden`), whatever the seed, the
    options or the run: a quarter of all questions is never trained on, and `held_out` lists the
    first of them. Raises ConfigError for options that the task does not have, for values that it
    refuses, and where it has too few different questions.
    """

    def __init__(self, name: str, config: TaskConfig):
        super().__init__(config, name)
        self.dataset = make_dataset(name, config.options.get(name, {}))
        self.held_out = self._first_hidden(config.held_out)

    def _first_hidden(self, count: int) -> list[dict]:
        found, seen, tries = {}, set(), min(self.dataset.size, 50 * count + 1000)
        for index in range(tries):
            entry = self.dataset[index]
            seen.add(entry["question"])
            if is_hidden(entry["question"]):
                found.setdefault(entry["question"], entry)
            if len(found) >= count and len(seen) > len(found):  # some are left to train on
                return list(found.values())[:count]
        require(
            False,
            f"task.held_out = {count}: {tries} items of {self.name} have {len(seen)} different "
            f"questions, {len(found)} of them on the held-out side, and some must be left to "
            "train on; lower task.held_out, or make the task more varied in task.options",
        )

    def stream(self, seed: int) -> "EntryStream":
        return EntryStream(self, seed)

    def draw(self, rng: random.Random) -> dict:
        """A training entry; questions of the held-out side are drawn again."""
        while True:
            entry = self.dataset[rng.randrange(self.dataset.size)]
            if not is_hidden(entry["question"]):
                return entry

    def entry(self, item: dict) -> dict:
        return item


def is_hidden(question: str) -> bool:
    """Whether this question is on the held-out side: decided by the md5 of its text alone."""
    return int(hashlib.md5(question.encode()).hexdigest(), 16) % HIDDEN_SHARE == 0


def make_dataset(name: str, options: dict):
    """reasoning-gym's data set with these options; ConfigError in our own words if it cannot be."""
    dataset, settings = DATASETS[name]
    known = {field.name: field.default for field in fields(settings) if field.name != "seed"}
    unknown = [option for option in options if option not in known]
    require(
        not unknown,
        f"task.options: {name} has no setting {', '.join(map(repr, unknown))}; "
        f"{closest(unknown[0] if unknown else '', known)}",
    )
    size = options.get("size", VIRTUAL_SIZE)
    require(
        type(size) is int and 1 <= size <= LARGEST_SIZE,
        f"task.options: {name} size = {size!r}: a whole number from 1 to {LARGEST_SIZE}",
    )
    try:
        chosen = {  # YAML has no enumerations
            key: type(known[key])(value) if isinstance(known[key], Enum) else value
            for key, value in options.items()
        }
        made = dataset(settings(**{**chosen, "size": size, "seed": 0}))
        made[0]  # some refuse a value only when they use it
        return made
    except Exception as error:  # each task checks its settings in its own way
        given = ", ".join(f"{key} = {value!r}" for key, value in options.items()) or "no options"
        require(False, f"task.options: {name} refuses {given}: {first_line(error)}")


class EntryStream(Stream):
    """Training entries drawn at random, with replacement.

    Each position has random numbers of its own.
    """

    def __init__(self, task: Generated, seed: int):
        super().__init__(seed)
        self.task = task

    def next(self) -> dict:
        rng = random.Random(f"{self.seed}/{self.task.name}/{self.position}")
        self.position += 1
        return self.task.draw(rng)


class Mixture(Task):
    """Several tasks: each training item is drawn from one of them, by weight; items are entries.

    `held_out` takes one question of each task in turn, so any beginning of it has as many of each,
    and an accuracy over it counts the tasks alike, whatever their weights.
    """

    def __init__(self, tasks: dict[str, Task], config: TaskConfig):
        super().__init__(config, "mixture")
        self.tasks = tasks
        each = [[task.entry(item) for item in task.held_out] for task in tasks.values()]
        self.held_out = [entry for turn in zip(*each, strict=True) for entry in turn]

    def stream(self, seed: int) -> "MixtureStream":
        return MixtureStream(self, seed)

    def draw(self, rng: random.Random) -> dict:
        name = rng.choices(list(self.config.mixture), list(self.config.mixture.values()))[0]
        return self.tasks[name].entry(self.tasks[name].draw(rng))

    def entry(self, item: dict) -> dict:
        return item

    def label(self, entry: dict) -> str:
        return self.tasks[name_of(entry)].label(entry)

    def score(self, response: str, entry: dict, *, ended: bool = True) -> Rewards:
        """As the entry's own task scores it."""
        return self.tasks[name_of(entry)].score(response, entry, ended=ended)


class MixtureStream(Stream):
    """Entries of a mixture.

    The draw at a position decides whose turn it is; that task's own stream then gives what it has
    at this position. Words so come at most once an epoch, as in `WordStream`, and some are skipped.
    """

    def __init__(self, mixture: Mixture, seed: int):
        super().__init__(seed)
        self.mixture = mixture
        self.streams = {name: task.stream(seed) for name, task in mixture.tasks.items()}

    def next(self) -> dict:
        weights = self.mixture.config.mixture
        rng = random.Random(f"{self.seed}/whose turn/{self.position}")
        name = rng.choices(list(weights), list(weights.values()))[0]
        self.streams[name].position = self.position
        self.position += 1
        return self.mixture.tasks[name].entry(*self.streams[name].take(1))


def name_of(entry: dict) -> str:
    """Which task an entry is from."""
    return entry["metadata"]["source_dataset"]


def by_task(entries: list[dict], values: list[float]) -> dict[str, float]:
    """Mean value of each task's entries, by the task's name."""
    found: dict[str, list[float]] = {}
    for entry, value in zip(entries, values, strict=True):
        found.setdefault(name_of(entry), []).append(value)
    return {name: sum(values) / len(values) for name, values in sorted(found.items())}


def load_task(config: TaskConfig) -> Task:
    """The task or mixture of tasks that the configuration names; ConfigError if there is none."""
    known = DATASETS.keys() - {"composite"}  # reasoning-gym's own mixture
    for name in config.mixture:
        require(
            name in known,
            f"task.mixture: reasoning-gym has no task {name!r}; {closest(name, sorted(known))}",
        )
    tasks = {
        name: Spelling(config) if name == Spelling.name else Generated(name, config)
        for name in config.mixture
    }
    return Mixture(tasks, config) if len(tasks) > 1 else next(iter(tasks.values()))
