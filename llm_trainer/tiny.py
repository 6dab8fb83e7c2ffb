"""A Qwen3 small enough for a laptop: its tokenizer, its weights, its warm start.

The architecture is Qwen3's own class with small numbers in its configuration (two layers, width
128, about 408,000 parameters), so every line of the trainer that runs on it also runs on
Qwen3-1.7B. What makes it small is the tokenizer: one token per character, plus Qwen's chat
markers and the fixed phrases of the task's prompt as single tokens. Everything is saved as
ordinary Hugging Face files and loaded with AutoTokenizer and AutoModelForCausalLM.

Reinforcement learning can only strengthen what a model sometimes does. The *warm start* is the
little supervised training that gives it something to strengthen: see `demonstration`.
"""

import hashlib
import json
import os
import random
import re
import shutil
import string
import tempfile
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from llm_trainer.config import ConfigError, TaskConfig, WarmstartConfig
from llm_trainer.evaluate import evaluate, letters
from llm_trainer.log import writing
from llm_trainer.models import Policy
from llm_trainer.task import Task, load_task, name_of

END, PAD, UNKNOWN, START = "<|im_end|>", "<|endoftext|>", "<|unknown|>", "<|im_start|>"
# Text that the prompt repeats every time: one token each. Roles include their line break, so that
# the word "user" in a task is still spelled with four tokens.
ROLES = ["system\n", "user\n", "assistant\n"]
PHRASES = ["Spell this word backward", " (example: ", "sun -> nus", "): "]
TAGS = ["<think>", "</think>", "<answer>", "</answer>"]

# Qwen3's chat format. The tiny model never learned to think, so its thinking block is empty unless
# enable_thinking is true; the real Qwen3 thinks unless it is false.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- if enable_thinking is not defined or enable_thinking is false -%}
{{- '<think>\n\n</think>\n\n' -}}
{%- endif -%}
{%- endif -%}"""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A character tokenizer with Qwen's chat markers; 110 tokens, exact round trip for ASCII."""
    characters = list(string.digits + string.ascii_letters + string.punctuation + " \n")
    vocabulary = {text: i for i, text in enumerate([*characters, UNKNOWN])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    plain = [*TAGS, "\n\n", *ROLES, *PHRASES]
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in plain])
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (START, END, PAD)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


def build_model(tokenizer, *, seed: int) -> Qwen3ForCausalLM:
    """A random Qwen3 with 2 layers of width 128 whose vocabulary is the tokenizer's."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
        )
    )


# ---------------------------------------------------------------- the warm start

EXTRA_ROUNDS, EXTRA_UPDATES = 5, 60  # while held-out short words are not right often enough
RECIPE = 3  # raise it when code below changes what the same configuration produces


def warm_start(
    task: TaskConfig, config: WarmstartConfig, *, cache: Path | None = None, quiet: bool = False
) -> Path:
    """Folder with the warm-started tiny model; trained now if the cache does not have it yet.

    The cache key is a hash of the task as far as it is taught (`teachable`) and of the warm start's
    own configuration and seed, so no run's seed or learning rate can change where the run starts
    from.
    """
    asked = task.model_dump(include={"min_letters", "max_letters", "held_out", "instruction"})
    taught = teachable(task)
    if [*taught.mixture] != ["spell_backward"]:
        asked |= {"mixture": taught.mixture, "options": taught.options}
    key = json.dumps([RECIPE, asked, config.model_dump()], sort_keys=True)
    root = cache or cache_folder()
    folder = root / f"tiny-qwen-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if is_whole(folder):
        return folder
    transformers_logging.disable_progress_bar()
    policy, report = train_warm_start(task, config, quiet=quiet)
    building = Path(tempfile.mkdtemp(prefix="building-", dir=root))
    try:
        with writing(building):
            policy.model.save_pretrained(building)
            policy.tokenizer.save_pretrained(building)
            report |= {"key": json.loads(key), "files": digests(building)}
            (building / "warmstart.json").write_text(json.dumps(report))
        if not is_whole(folder):  # another process may have been faster
            shutil.rmtree(folder, ignore_errors=True)  # damaged: this cache is ours
            os.replace(building, folder)  # whole or not at all
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return folder


def digests(folder: Path) -> dict[str, str]:
    """sha256 of each file, by name; 1.6 MB in all."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.iterdir())}


def is_whole(folder: Path) -> bool:
    """Whether a cached warm start has the files it was saved with, byte by byte."""
    try:
        files = json.loads((folder / "warmstart.json").read_text())["files"]
        return files == {k: v for k, v in digests(folder).items() if k != "warmstart.json"}
    except (OSError, ValueError, KeyError, TypeError):
        return False


def cache_folder() -> Path:
    """The user's cache, or `.cache/` in the working folder where that cannot be written."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for folder in (home / "policy_gradients_course", Path(".cache")):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    raise ConfigError(f"no folder for the warm start: neither {home} nor .cache/ can be written")


def teachable(task: TaskConfig) -> TaskConfig:
    """The part of a mixture that the warm start knows how to demonstrate; if none, words only.

    In alphabetical order, or two ways of writing a mixture would draw other questions.
    """
    mixture = {name: share for name, share in sorted(task.mixture.items()) if name in MISTAKES}
    options = {name: own for name, own in task.options.items() if name in mixture}
    return task.model_copy(
        update={"mixture": mixture or {"spell_backward": 1.0}, "options": options}
    )


def train_warm_start(
    task_config: TaskConfig, config: WarmstartConfig, *, quiet: bool = False
) -> tuple[Policy, dict]:
    """Supervised training on mixed demonstrations; returns the policy and what it reached.

    The number of updates is fixed. Only if held-out questions with short answers are below
    `short_exact` are more updates added, up to five times 60: a model stopped at a target accuracy
    on clean demonstrations hardly improves under reinforcement learning afterwards.
    """
    task, rng = load_task(teachable(task_config)), random.Random(config.seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed=config.seed)
    policy = Policy(
        model, tokenizer, tokenizer.eos_token_id, tokenizer.pad_token_id, model.device, model.dtype
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.98))
    lengths = [letters(task.entry(item)) for item in task.held_out]
    pairs = zip(task.held_out, lengths, strict=True)
    short = [item for item, length in pairs if length <= config.always_right][:100]

    def exact() -> float:
        room = max(lengths) + 5  # two tags, the end, and two to spare
        return evaluate(policy, task, short, max_new_tokens=room).exact if short else 1.0

    # 30 updates up, then flat, then down to zero over the last 30 %.
    n = config.steps
    rates = [min((s + 1) / 30, 1, (n - s) / (0.3 * n)) for s in range(n)]
    extra = [0.3 * (EXTRA_UPDATES - s) / EXTRA_UPDATES for s in range(EXTRA_UPDATES)]
    model.train()
    _updates(policy, task, optimizer, rng, config, rates, quiet=quiet)
    done, exact_short = n, exact()
    for _ in range(EXTRA_ROUNDS):
        if exact_short >= config.short_exact:
            break
        _updates(policy, task, optimizer, rng, config, extra, quiet=quiet)
        done, exact_short = done + len(extra), exact()
    model.eval()
    return policy, {"updates": done, "exact_short": exact_short}


def _updates(
    policy: Policy,
    task: Task,
    optimizer: torch.optim.Optimizer,
    rng: random.Random,
    config: WarmstartConfig,
    rates: list[float],
    *,
    quiet: bool,
) -> None:
    """One update for each of `rates`, the shares of the learning rate."""
    about = {"desc": "warm start of the tiny Qwen", "unit": "update", "mininterval": 1.0}
    bar = tqdm(rates, disable=quiet, **about)
    for step, rate in enumerate(bar):
        for settings in optimizer.param_groups:
            settings["lr"] = config.lr * rate
        entries = [task.entry(task.draw(rng)) for _ in range(config.batch)]
        loss = supervised_loss(policy, task, entries, rng, config)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)


def supervised_loss(
    policy: Policy, task: Task, entries: list[dict], rng: random.Random, config: WarmstartConfig
) -> Tensor:
    """Cross-entropy of the demonstrated responses, end token included, prompts not.

    A scalar: the mean over all their tokens, in nats.
    """
    rows = []
    for entry in entries:
        prompt = policy.prompt(task.question(entry))
        answer = demonstration(entry, rng, config)
        response = policy.tokenizer(f"<answer>{answer}</answer>{END}")["input_ids"]
        rows.append((prompt + response, len(prompt)))
    width = max(len(ids) for ids, _ in rows)
    tokens = torch.tensor([ids + [policy.pad_id] * (width - len(ids)) for ids, _ in rows])
    column = torch.arange(width)
    start = torch.tensor([n for _, n in rows])[:, None]
    end = torch.tensor([len(ids) for ids, _ in rows])[:, None]
    positions = column.expand_as(tokens)
    logits = policy.forward(tokens, (column < end).long(), positions)  # (rows, width, vocabulary)
    # Column t predicts token t + 1; everything outside the response is ignored.
    targets = tokens.masked_fill((column < start) | (column >= end), -100)[:, 1:]
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=-100)


def demonstration(entry: dict, rng: random.Random, config: WarmstartConfig) -> str:
    """What the warm start shows as the answer: right where it is short, mixed where it is long.

    So the model can do it, but does not do it always.
    """
    right = entry["answer"]
    if len(right) <= config.always_right or rng.random() < config.right_share:
        return right
    return MISTAKES[name_of(entry)](entry, rng)


def misspelt(entry: dict, rng: random.Random) -> str:
    """Half copies of the word; a quarter two letters swapped, a quarter one dropped."""
    kind = rng.random()
    if kind < 0.5:
        return entry["metadata"]["word"]
    characters = list(entry["answer"])
    i, j = rng.sample(range(len(characters)), 2)
    if kind < 0.75:
        characters[i], characters[j] = characters[j], characters[i]
    else:
        del characters[i]
    return "".join(characters)


def miscalculated(entry: dict, rng: random.Random) -> str:
    """Three quarters overlook the last number of the sum; a quarter has one digit off by one.

    An expression with anything but + and - is always wrong by a digit.
    """
    expression, digits = entry["metadata"]["expression"], list(entry["answer"])
    if rng.random() < 0.75 and SUM.fullmatch(expression):
        return overlooked(expression)
    i = rng.randrange(digits[0] == "-", len(digits))
    digits[i] = str((int(digits[i]) + rng.choice([-1, 1])) % 10)
    return "".join(digits)


def overlooked(expression: str) -> str:
    """What a sum is without its last number: "7 + 8 - 6" is 15."""
    without, _, _ = expression.rsplit(" ", 2)
    return str(sum(int(term) for term in re.findall(r"-?\d+", without.replace(" ", ""))))


# The tasks that the warm start can demonstrate, each with the wrong answers that it invites.
MISTAKES = {"spell_backward": misspelt, "basic_arithmetic": miscalculated}
SUM = re.compile(r"\d+(?: [+-] \d+)+")
