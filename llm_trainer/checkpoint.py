"""A run's folder: who may write into it, and files that a crash leaves whole.

`run.yaml` is the configuration, `metrics.jsonl` the log, `checkpoint.pt` everything `--resume`
needs; `steps/` holds the records of single steps; at the end the model and tokenizer lie beside
them as ordinary Hugging Face files, and LoRA's adapters, which are merged in them, in `adapter/`.
`written.txt` names every file that the run wrote. Nothing else is ever replaced or deleted.
"""

import json
import os
import pickle
import shutil
from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import yaml

from llm_trainer.config import Config, ConfigError, TaskConfig, first_line, load, require
from llm_trainer.log import LOG, read_lines, writing
from llm_trainer.models import Policy
from llm_trainer.record import FOLDER, PATTERN, Record, record_path
from llm_trainer.task import Spelling, Task

RUN, STATE, WRITTEN, BUILDING = "run.yaml", "checkpoint.pt", "written.txt", ".building"
OWN = [RUN, STATE, LOG, WRITTEN, BUILDING, *(f"{name}.tmp" for name in (RUN, STATE, WRITTEN))]
INSIDE = [PATTERN, f"{PATTERN}.tmp", "adapter/adapter_*"]  # step records; LoRA's matrices
# What save_pretrained of models and tokenizers may write; a folder that holds one is no free place.
MODEL_FILES = (
    "config.json", "generation_config.json", "model*.safetensors*", "tokenizer.*",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "chat_template.jinja",
)  # fmt: skip
SPLIT = ("min_letters", "max_letters", "held_out")  # fields that say which words are held out
# Fields that may change when a run is resumed; any other would make it another run.
MAY_CHANGE = {
    "steps", "eval_every", "save_every", "output_dir", "threads", "record_steps", "track", "shard",
}  # fmt: skip


def check_folder(config: Config, *, resume: bool, overwrite: bool) -> Path:
    """The run's folder; ConfigError, with nothing touched, if this run must not write there."""
    folder = Path(config.output_dir)
    name = f"output_dir = {config.output_dir!r}"
    require(not (resume and overwrite), "--resume and --overwrite contradict each other")
    require(folder.is_dir() or not folder.exists(), f"{name}: this is a file")
    parent = next(path for path in [folder, *folder.absolute().parents] if path.exists())
    require(parent.is_dir() and os.access(parent, os.W_OK), f"{name}: cannot write in {parent}")
    model = Path(config.model)
    require(
        not (folder.exists() and model.exists() and folder.samefile(model)),
        f"{name}: this is the folder of the model to start from",
    )
    if resume:
        require((folder / RUN).exists(), f"--resume: {name} holds no run (no {RUN})")
        before = load(folder / RUN).model_dump()
        changed = {k: v for k, v in config.model_dump().items() if v != before[k]}
        require(
            changed.keys() <= MAY_CHANGE,
            "--resume: this run was started with "
            + ", ".join(f"{k} = {before[k]!r}" for k in changed if k not in MAY_CHANGE)
            + f"; only {', '.join(sorted(MAY_CHANGE))} may change",
        )
    holds = {
        path.relative_to(folder).as_posix()
        for pattern in (*OWN, *MODEL_FILES, *INSIDE)
        for path in folder.glob(pattern)
    }
    foreign = ", ".join(sorted(holds - written(folder)))
    require(
        not foreign,
        f"{name}: it already holds {foreign}, which no run wrote (no {WRITTEN} names it). Nothing "
        "was changed; choose another folder, or move these away",
    )
    require(
        not holds or resume or overwrite,
        f"{name}: it already holds {', '.join(sorted(holds))}. Nothing was changed. Go on with "
        "--resume, start anew with --overwrite, or choose another folder",
    )
    return folder


def written(folder: Path) -> set[str]:
    """Names of the files that runs in this folder wrote."""
    path = folder / WRITTEN
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {line for line in lines if line and (Path(line).name == line or is_inside(line))}


def is_inside(name: str) -> bool:
    """Whether this names a file in one of the run's folders; no other path with a folder is."""
    return any(fnmatchcase(name, pattern) for pattern in INSIDE) and name.count("/") == 1


def start_folder(folder: Path, config: Config, loss: str, *, overwrite: bool) -> None:
    """Make the folder, delete the run that `overwrite` discards, write its configuration."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"output_dir = {config.output_dir!r}: {error}") from None
    for name in written(folder) - {WRITTEN} if overwrite else ():
        path = folder / name
        shutil.rmtree(path) if name == BUILDING and path.is_dir() else path.unlink(missing_ok=True)
    for inside in {folder / Path(pattern).parent for pattern in INSIDE} if overwrite else ():
        if inside.is_dir() and not any(inside.iterdir()):
            inside.rmdir()
    record(folder, OWN)
    settings = f"# loss: {loss}\n{yaml.safe_dump(config.model_dump(), sort_keys=False)}"
    write_atomically(folder / RUN, lambda path: path.write_text(settings, encoding="utf-8"))


def record(folder: Path, names: Collection[str]) -> None:
    """Add names to the list of files that this run wrote, before they are written."""
    text = "\n".join(sorted(written(folder) | set(names))) + "\n"
    write_atomically(folder / WRITTEN, lambda path: path.write_text(text, encoding="utf-8"))


def load_state(folder: Path, loss: str) -> dict[str, Any] | None:
    """The last checkpoint; None if the run was stopped before its first.

    Raises ConfigError, with nothing touched: it cannot be read, the log beside it has lost lines,
    or the run had another loss.
    """
    path, log = folder / STATE, folder / LOG
    lines = log.read_bytes() if log.exists() else b""
    refused = "Nothing was changed; put a good copy there, or start anew with --overwrite"
    if not path.exists():
        started = lines.count(b"\n") > 1  # the line of step 0 comes before the first checkpoint
        require(not started, f"--resume: {path} is missing, but {LOG} has steps. {refused}")
        return None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        before, size = state["loss"], state["done"]["log_bytes"]
    except (RuntimeError, OSError, EOFError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise ConfigError(
            f"--resume: {path} cannot be read ({first_line(error)}). {refused}"
        ) from None
    try:
        require(len(lines) >= size, f"{log} is damaged ({len(lines)} bytes of {size})")
        read_lines(lines[:size].decode(), log)
    except ValueError as error:  # ConfigError is one
        raise ConfigError(f"--resume: {first_line(error)}. {refused}") from None
    require(before == loss, f"--resume: this run's loss is {before}, not {loss}")
    return state


def check_unseen(folder: str | Path, task: Task) -> None:
    """ConfigError if the model in `folder` was trained on words that `task` holds out.

    Only spell_backward has a split that is configured; that of other tasks is always the same.
    """
    run, start = Path(folder) / RUN, Path(folder) / "warmstart.json"
    spelling = task.tasks.get(Spelling.name)
    if spelling is None:
        return
    if run.is_file():
        config = load(run)
        before = config.task
        if config.model != "tiny" and Spelling.name not in before.mixture:
            return check_unseen(config.model, task)  # what it started from may have seen words
    elif start.is_file():
        before = TaskConfig(**json.loads(start.read_text(encoding="utf-8"))["key"][1])
    else:
        return
    seen = {word.lower() for word in Spelling(before).train}
    count = sum(word.lower() in seen for word in spelling.held_out)
    split = ", ".join(f"task.{k}={getattr(before, k)}" for k in SPLIT)
    require(
        count == 0,
        f"task: {count} of its {len(spelling.held_out)} held-out words were trained on by the "
        f"model in {folder}; use its own split: {split}",
    )


def save_model(policy: Policy, folder: Path) -> None:
    """Model and tokenizer as Hugging Face files; each replaces the old one whole."""
    building = folder / BUILDING
    shutil.rmtree(building, ignore_errors=True)  # left by a crash of this run
    try:
        with writing(folder):
            building.mkdir()
            policy.save(building)
        files = [path for path in building.rglob("*") if path.is_file()]
        names = [path.relative_to(building).as_posix() for path in files]
        record(folder, names)
        for path, name in zip(files, names, strict=True):
            (folder / name).parent.mkdir(exist_ok=True)
            replace(path, folder / name)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def save_record(step: Record, folder: Path) -> None:
    """A step's record as steps/step_0020.json; a crash leaves it whole or not there."""
    name = record_path(step.step)
    record(folder, [name, f"{name}.tmp"])
    with writing(folder / name):
        (folder / FOLDER).mkdir(exist_ok=True)
    write_atomically(folder / name, step.save)


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Write beside the file, then replace it: a crash leaves the old file or the new one."""
    beside = path.with_name(path.name + ".tmp")
    try:
        with writing(path):
            write(beside)
            replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def replace(new: Path, old: Path) -> None:
    """`new` takes the place of `old`, also if the power fails: content first, then the name."""
    flush(new, os.O_RDWR)
    os.replace(new, old)
    if os.name != "nt":  # Windows has no handle on a folder
        flush(old.parent, os.O_RDONLY)


def flush(path: Path, mode: int) -> None:
    """Onto the disk."""
    handle = os.open(path, mode)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
