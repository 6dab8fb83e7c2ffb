"""A run's folder: one process at a time, and no damaged or foreign file is taken for a run's."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from llm_trainer.checkpoint import locked
from llm_trainer.config import ConfigError, with_values
from llm_trainer.train import train

POSIX = pytest.mark.skipif(os.name == "nt", reason="Windows has no lock on a folder")
BUSY = "output_dir = .*: another run is writing there right now"


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def finished(model_folder, tmp_path_factory):
    """A folder with a run of two steps, to be copied."""
    from llm_trainer.config import build

    folder = tmp_path_factory.mktemp("finished") / "run"
    small = {"prompts": 2, "group": 4, "micro_batch": 2, "steps": 2, "eval_words": 4}
    config = build({"model": str(model_folder), "output_dir": str(folder), **small})
    train(config, quiet=True)
    return config


@pytest.fixture
def run(finished, tmp_path):
    """The same run in a folder of its own that may be spoilt."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name, content in contents(Path(finished.output_dir)).items():
        (folder / name).write_bytes(content)
    return with_values(finished, output_dir=str(folder))


@POSIX
@pytest.mark.parametrize("how", [{}, {"resume": True}, {"overwrite": True}], ids=str)
def test_a_second_run_in_a_folder_is_refused_and_changes_nothing(run, how):
    before = contents(Path(run.output_dir))
    with locked(run), pytest.raises(ConfigError, match=BUSY):
        train(with_values(run, steps=3), quiet=True, **how)
    assert contents(Path(run.output_dir)) == before


@POSIX
def test_a_new_folder_is_kept_from_others_before_anything_is_in_it(run, tmp_path):
    """Two commands at once: both find nothing there, and only one may begin."""
    config = with_values(run, output_dir=str(tmp_path / "new/run"))
    with locked(config), pytest.raises(ConfigError, match=BUSY):
        train(config, quiet=True)
    assert not (tmp_path / "new").exists()  # nothing was written, so nothing stays
    train(config, quiet=True)
    assert (tmp_path / "new/run/run.yaml").exists()


@POSIX
def test_the_lock_ends_with_its_process_however_that_ends(run):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with locked(run):
                os.write(writing, b"x")
                time.sleep(60)
        finally:
            os._exit(0)
    assert os.read(reading, 1) == b"x"
    with pytest.raises(ConfigError, match=BUSY), locked(run):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with locked(run):
        pass
    os.close(reading), os.close(writing)


def test_an_error_that_is_kept_keeps_no_lock(run):
    """As in a notebook, where the last error and all its frames stay alive."""
    with pytest.raises(ConfigError) as kept:
        train(with_values(run, model="/no/such/model"), quiet=True, overwrite=True)
    assert "no such folder" in str(kept.value)
    assert train(run, resume=True, quiet=True).finished


def change(path, spoil):
    state = torch.load(path / "checkpoint.pt", weights_only=True)
    torch.save(spoil(state) or state, path / "checkpoint.pt")


def narrow(state):
    """Every weight's first row: it would broadcast into place."""
    state["model"] = {name: weight[:1] for name, weight in state["model"].items()}


def edit(log, old, new):
    text = log.read_text()
    assert old in text
    log.write_text(text.replace(old, new))


DAMAGED = {
    "an empty learner": (
        lambda run: change(run, lambda state: state["learner"].clear()),
        "checkpoint.pt is not a checkpoint of this run's model",
    ),
    "weights of another shape": (
        lambda run: change(run, narrow),
        "checkpoint.pt is not a checkpoint of this run's model",
    ),
    "weights of another name": (
        lambda run: change(run, lambda state: state["model"].popitem() and None),
        "checkpoint.pt is not a checkpoint of this run's model",
    ),
    "a list": (lambda run: change(run, lambda state: [1]), "checkpoint.pt cannot be read"),
    "a step that is another": (
        lambda run: edit(run / "metrics.jsonl", '"step": 1', '"step": 9'),
        "metrics.jsonl is damaged",
    ),
    "a number that is text": (
        lambda run: edit(run / "metrics.jsonl", '"eval/exact": 0', '"eval/exact": "'),
        "metrics.jsonl is damaged",
    ),
    "a list of files that is not text": (
        lambda run: (run / "written.txt").write_bytes(b"\xff\xfe\xff"),
        "written.txt is damaged",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named_and_nothing_is_changed(run, name):
    spoil, says = DAMAGED[name]
    folder = Path(run.output_dir)
    spoil(folder)
    before = contents(folder)
    with pytest.raises(ConfigError, match=says):
        train(with_values(run, steps=3), resume=True, quiet=True)
    assert contents(folder) == before


def test_a_run_is_not_resumed_to_an_earlier_step(run):
    before = contents(Path(run.output_dir))
    with pytest.raises(ConfigError, match="at step 2 already, beyond steps = 1"):
        train(with_values(run, steps=1), resume=True, quiet=True)
    assert contents(Path(run.output_dir)) == before


def test_overwriting_leaves_folders_alone_that_the_list_of_files_names(run):
    """Lines that someone put there: a folder, what is outside, an absolute path."""
    folder = Path(run.output_dir)
    (folder / "notes").mkdir()
    (folder / "notes/mine.txt").write_text("mine")
    (folder.parent / "outside.txt").write_text("mine")
    with open(folder / "written.txt", "a") as file:
        file.write(f"notes\n../outside.txt\n{folder.parent / 'outside.txt'}\n..\n.\n")
    assert train(run, overwrite=True, quiet=True).finished
    assert (folder / "notes/mine.txt").read_text() == "mine"
    assert (folder.parent / "outside.txt").read_text() == "mine"
