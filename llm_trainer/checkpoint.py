"""A run's folder: who may write into it, and files that a crash leaves whole.

`run.yaml` is the configuration, `metrics.jsonl` the log, `checkpoint.pt` everything `--resume`
needs; at the end the model and tokenizer lie beside them as ordinary Hugging Face files.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

from llm_trainer.config import Config, build, require
from llm_trainer.log import LOG
from llm_trainer.models import Policy

RUN, STATE = "run.yaml", "checkpoint.pt"
# Fields that may change when a run is resumed; any other would make it another run.
MAY_CHANGE = {"steps", "eval_every", "save_every", "output_dir", "threads"}


def check_folder(config: Config, *, resume: bool, overwrite: bool) -> Path:
    """The run's folder; ConfigError, with nothing touched, if this run must not write there."""
    folder = Path(config.output_dir)
    name = f"output_dir = {config.output_dir!r}"
    require(not (resume and overwrite), "--resume and --overwrite contradict each other")
    require(folder.is_dir() or not folder.exists(), f"{name}: this is a file")
    parent = next(path for path in [folder, *folder.absolute().parents] if path.exists())
    require(os.access(parent, os.W_OK), f"{name}: {parent} cannot be written")
    model = Path(config.model)
    require(
        resume or not (folder.exists() and model.exists() and folder.samefile(model)),
        f"{name}: this is the folder of the model to start from",
    )
    if resume:
        require((folder / RUN).exists(), f"--resume: {name} holds no run (no {RUN})")
        before = build(yaml.safe_load((folder / RUN).read_text(encoding="utf-8"))).model_dump()
        changed = {k: v for k, v in config.model_dump().items() if v != before[k]}
        require(
            changed.keys() <= MAY_CHANGE,
            "--resume: this run was started with "
            + ", ".join(f"{k} = {before[k]!r}" for k in changed if k not in MAY_CHANGE)
            + f"; only {', '.join(sorted(MAY_CHANGE))} may change",
        )
    elif not overwrite:
        holds = ", ".join(path.name for path in run_files(folder))
        require(
            not holds,
            f"{name}: it already holds {holds}. Nothing was changed. Go on with --resume, start "
            "anew with --overwrite, or choose another folder",
        )
    return folder


def run_files(folder: Path) -> list[Path]:
    """What a run writes into its folder, and what a model folder holds; nothing else."""
    patterns = (RUN, STATE, LOG, "*config.json", "*.safetensors*", "tokenizer*", "chat_template*")
    return sorted({path for pattern in patterns for path in folder.glob(pattern)})


def load_state(folder: Path) -> dict[str, Any] | None:
    """The last checkpoint; None if the run was stopped before its first."""
    path = folder / STATE
    return torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None


def save_model(policy: Policy, folder: Path) -> None:
    """Model and tokenizer as Hugging Face files; each replaces the old one whole."""
    building = folder / "building"
    shutil.rmtree(building, ignore_errors=True)  # left by a crash
    policy.model.save_pretrained(building)
    policy.tokenizer.save_pretrained(building)
    for path in building.iterdir():
        os.replace(path, folder / path.name)
    shutil.rmtree(building)


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Write beside the file, flush, replace: a crash leaves the old file or the new one."""
    beside = path.with_name(path.name + ".tmp")
    write(beside)
    with open(beside, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(beside, path)
