"""A run's folder: who may write into it, and files that a crash leaves whole.

`run.yaml` is the configuration, `metrics.jsonl` the log, `checkpoint.pt` everything `--resume`
needs; `steps/` holds the records of single steps; at the end the model and tokenizer lie beside
them as ordinary Hugging Face files, and LoRA's adapters, which are merged in them, in `adapter/`.
`written.txt` names every file that the run wrote. Nothing else is ever replaced or deleted.
One process at a time writes into a folder (`locked`).
"""

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from llm_trainer.config import Config, ConfigError, TaskConfig, first_line, load, require
from llm_trainer.log import LOG, read_lines, writing
from llm_trainer.models import Policy
from llm_trainer.record import FOLDER, PATTERN, Record, record_path
from llm_trainer.task import Spelling, Task

try:
    import fcntl
except ImportError:  # Windows: nothing keeps a second process out there
    fcntl = None

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


@contextmanager
def locked(config: Config) -> Iterator[None]:
    """Keep the run's folder for this process; it is made, and goes again if it stays empty.

    The lock is the operating system's and on the folder itself: it leaves nothing behind and ends
    with the process, however that ends. Raises ConfigError: another process has it, or there can
    be no such folder.
    """
    folder, name = Path(config.output_dir).absolute(), f"output_dir = {config.output_dir!r}"
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    above = folder.parents[len(made) - 1] if made else folder
    require(not folder.is_file(), f"{name}: this is a file")
    require(above.is_dir() and os.access(above, os.W_OK), f"{name}: cannot write in {above}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{name}: {error}") from None
    handle = os.open(folder, os.O_RDONLY) if fcntl else None
    try:
        if fcntl:
            lock(handle, name)
        yield
    finally:
        if fcntl:
            os.close(handle)
        for path in made:
            with suppress(OSError):  # not empty: the run has started
                path.rmdir()


def lock(handle: int, name: str) -> None:
    """Take the lock that one process can have. Some network file systems have none on folders."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"{name}: another run is writing there right now. Nothing was changed; wait until it "
            "ends, or choose another folder"
        ) from None
    except OSError:
        pass


def check_folder(config: Config, *, resume: bool, overwrite: bool) -> Path:
    """The run's folder; ConfigError, with nothing touched, if this run must not write there."""
    folder = Path(config.output_dir)
    name = f"output_dir = {config.output_dir!r}"
    require(not (resume and overwrite), "--resume and --overwrite contradict each other")
    model = Path(config.model)
    require(
        not (folder.exists() and model.exists() and folder.samefile(model)),
        f"{name}: this is the folder of the model to start from",
    )
    if resume:
        require((folder / RUN).exists(), f"--resume: {name} holds no run (no {RUN})")
        check_same_run(load(folder / RUN), config)
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


def check_same_run(before: Config, now: Config) -> None:
    """ConfigError if a resumed run would be another one."""
    old, new = before.model_dump(), now.model_dump()
    changed = [name for name in new if new[name] != old[name] and name not in MAY_CHANGE]
    require(
        not changed,
        f"--resume: this run was started with {', '.join(f'{k} = {old[k]!r}' for k in changed)}; "
        f"only {', '.join(sorted(MAY_CHANGE))} may change. --resume FOLDER, without --config, "
        "takes all fields from the run",
    )


def written(folder: Path) -> set[str]:
    """Names of the files that runs in this folder wrote. ConfigError if the list is damaged."""
    path = folder / WRITTEN
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is damaged ({error}). Nothing was changed") from None
    return {line for line in lines if line and (Path(line).name == line or is_inside(line))}


def is_inside(name: str) -> bool:
    """Whether this names a file in one of the run's folders; no other path with a folder is."""
    return any(fnmatchcase(name, pattern) for pattern in INSIDE) and name.count("/") == 1


def start_folder(folder: Path, config: Config, loss: str, *, overwrite: bool) -> None:
    """Delete the run that `overwrite` discards, write the configuration of this one."""
    if overwrite:
        delete_run(folder)
    record(folder, OWN)
    settings = f"# loss: {loss}\n{yaml.safe_dump(config.model_dump(), sort_keys=False)}"
    write_atomically(folder / RUN, lambda path: path.write_text(settings, encoding="utf-8"))


def delete_run(folder: Path) -> None:
    """The files that runs in this folder wrote, and the folders in it that are then empty."""
    shutil.rmtree(folder / BUILDING, ignore_errors=True)
    for name in written(folder) - {WRITTEN}:
        path = folder / name
        if path.is_symlink() or not path.is_dir():  # someone's folder may have such a name
            path.unlink(missing_ok=True)
    for inside in {folder / Path(pattern).parent for pattern in INSIDE}:
        if inside.is_dir() and not any(inside.iterdir()):
            inside.rmdir()


def record(folder: Path, names: Collection[str]) -> None:
    """Add names to the list of files that this run wrote, before they are written."""
    text = "\n".join(sorted(written(folder) | set(names))) + "\n"
    write_atomically(folder / WRITTEN, lambda path: path.write_text(text, encoding="utf-8"))


def load_state(folder: Path, loss: str, steps: int) -> dict[str, Any] | None:
    """The last checkpoint; None if the run was stopped before its first.

    Raises ConfigError, with nothing touched: it cannot be read, the log beside it is not that of
    its steps, the run had another loss, or is further than `steps`.
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
        before, size, done = state["loss"], state["done"]["log_bytes"], state["done"]["step"]
    except Exception as error:  # torch raises many kinds, by where the file is damaged
        raise ConfigError(
            f"--resume: {path} cannot be read ({first_line(error)}). {refused}"
        ) from None
    try:
        require(len(lines) >= size, f"{log} is damaged ({len(lines)} bytes of {size})")
        read_lines(lines[:size].decode(), log)
    except ValueError as error:  # ConfigError is one, UnicodeDecodeError another
        raise ConfigError(f"--resume: {first_line(error)}. {refused}") from None
    require(
        before == loss,
        f"--resume: this run's loss is {before}, not {loss}; a loss of your own is given again",
    )
    require(done <= steps, f"--resume: this run is at step {done} already, beyond steps = {steps}")
    return state


def check_state(state: dict[str, Any], model: dict[str, Tensor], learner: dict[str, Any]) -> None:
    """ConfigError unless a checkpoint has the parts, names and shapes that these have now."""
    require(
        shapes(state.get("model")) == shapes(model)
        and shapes(state.get("learner")) == shapes(learner)
        and shapes(state["learner"]["critic"]) == shapes(learner["critic"])
        and {"position", "generators"} <= state.keys(),
        f"--resume: {STATE} is not a checkpoint of this run's model: its parts or their shapes "
        "differ. Nothing was changed; put a good copy there, or start anew with --overwrite",
    )


def shapes(parts: Any) -> dict[str, Any] | None:
    """The shape of each tensor by its name; None for any other part."""
    if not isinstance(parts, dict):
        return None
    return {name: getattr(part, "shape", None) for name, part in parts.items()}


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
