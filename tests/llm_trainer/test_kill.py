"""kill -9 at random moments, and a disk that is full: nothing is lost that was saved.

The runs are real processes of the command line. PPO with minibatches has the most to bring back:
policy, critic, optimiser, two random generators, the place in the stream of tasks.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest
import torch
import yaml

from llm_trainer import train as train_module
from llm_trainer.config import RunError
from llm_trainer.train import train

POSIX = pytest.mark.skipif(os.name == "nt", reason="fork and kill -9 are not for Windows")
SERVER = Path(__file__).with_name("fork_server.py")


class Runs:
    """Runs of one configuration, as processes that can be killed."""

    def __init__(self, config, tmp_path):
        self.folder = Path(config.output_dir)
        self.file = tmp_path / f"{self.folder.name}.yaml"
        self.file.write_text(yaml.safe_dump(config.model_dump()))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.server = subprocess.Popen([sys.executable, SERVER], env=environment, **pipes)

    def start(self) -> int:
        """A new process: fresh if nothing was written yet, else resumed; its pid."""
        begun = [] if not self.folder.exists() else ["--resume"]
        if begun and not (self.folder / "run.yaml").exists():
            begun = ["--overwrite"]  # killed before it had written its configuration
        command = ["train", "--config", str(self.file), "--quiet", *begun]
        print(json.dumps(command), file=self.server.stdin, flush=True)
        return int(self.server.stdout.readline())

    def end(self) -> int:
        """Wait until it is over; its exit code."""
        return int(self.server.stdout.readline())

    def lines(self) -> int:
        log = self.folder / "metrics.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def kill_when(self, moment) -> tuple[int, int]:
        """Start it, kill it when `moment()` is true; (exit code, step of the checkpoint or -1)."""
        pid = self.start()
        deadline = time.monotonic() + 100
        while not moment() and alive(pid):
            assert time.monotonic() < deadline, "the moment never came"
            time.sleep(0.001)
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
        code = self.end()
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return code, -1
        return code, torch.load(path, weights_only=True)["done"]["step"]  # readable, always


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def moments(runs, rng):
    """Ever new moments to kill at: some steps further, inside a checkpoint's write, anywhere."""
    while True:
        goal, pause = runs.lines() + rng.randint(1, 3), time.monotonic() + rng.uniform(0, 0.1)
        yield lambda goal=goal, pause=pause: runs.lines() >= goal and time.monotonic() > pause
        yield lambda: (runs.folder / "checkpoint.pt.tmp").exists()
        late = time.monotonic() + rng.uniform(0, 1.5)
        yield lambda late=late: time.monotonic() > late


PPO = {
    "algorithm": "ppo", "minibatches": 2, "micro_batch": 2, "epochs": 2, "kl_coef": 0.01,
    "save_every": 1, "eval_every": 5,
}  # fmt: skip


def flat(values, path=""):
    """Every leaf of a checkpoint with its place."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from flat(value, f"{path}/{key}")
    elif isinstance(values, list | tuple):
        for i, value in enumerate(values):
            yield from flat(value, f"{path}/{i}")
    else:
        yield path, values


def assert_same_run(one, two):
    def log(folder):
        lines = map(json.loads, (folder / "metrics.jsonl").open())
        return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]

    assert log(one) == log(two)
    states = [
        dict(flat(torch.load(run / "checkpoint.pt", weights_only=True))) for run in (one, two)
    ]
    own = {"/done/cpu_seconds", "/done/log_bytes", "/done/run_id"}
    assert states[0].keys() == states[1].keys()
    for name in states[0].keys() - own:
        a, b = states[0][name], states[1][name]
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, name
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()


def killed(make_config, tmp_path, *, kills, steps, seed):
    """A run killed so often, and once more while the model is saved, against one left alone."""
    rng = random.Random(seed)
    settings = {**PPO, "steps": steps}
    train(make_config(output_dir=str(tmp_path / "whole"), **settings), quiet=True)
    runs = Runs(make_config(output_dir=str(tmp_path / "cut"), **settings), tmp_path)
    try:
        found = [runs.kill_when(moment) for moment in islice(moments(runs, rng), kills)]
        found.append(runs.kill_when((runs.folder / ".building").exists))
        assert [code for code, _ in found] == [-signal.SIGKILL] * (kills + 1)
        saved = [step for _, step in found]
        assert saved == sorted(saved)  # never behind an older checkpoint
        assert -1 <= saved[0] < saved[-1] == steps
        runs.start()
        assert runs.end() == 0
    finally:
        runs.server.stdin.close()
        runs.server.wait(20)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    names = {path.name for path in (tmp_path / "cut").iterdir()}
    assert not [name for name in names if name.endswith(".tmp") or name == ".building"]


@POSIX
def test_killed_three_times_it_ends_where_an_uninterrupted_run_ends(make_config, tmp_path):
    killed(make_config, tmp_path, kills=3, steps=8, seed=0)


@POSIX
@pytest.mark.slow  # about 30 CPU seconds: 21 starts of a run
@pytest.mark.timeout(900)
def test_killed_twenty_times_it_ends_where_an_uninterrupted_run_ends(make_config, tmp_path):
    killed(make_config, tmp_path, kills=20, steps=45, seed=1)


# ------------------------------------------------------------------ a disk that is full


@pytest.fixture
def small_disk(tmp_path):
    """A function: a folder on a disk of so many bytes. Needs root; skipped without."""
    made = []

    def make(size):
        folder = tmp_path / "disk"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True).returncode == 0
        except FileNotFoundError:
            done = False
        if not done:
            pytest.skip("mounting a small disk needs root on Linux")
        made.append(folder)
        return folder

    yield make
    for folder in made:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_really_full_disk_is_named_and_the_older_checkpoint_goes_on(make_config, small_disk):
    """4 MB hold the first checkpoint (1.6 MB), not the second with its moments of AdamW (5 MB)."""
    disk = small_disk("4m")
    config = make_config(output_dir=str(disk / "run"), steps=3, save_every=1)
    with pytest.raises(RunError, match=r"checkpoint.pt could not be written .*disk full.*--resume"):
        train(config, quiet=True)
    assert not list((disk / "run").glob("*.tmp"))
    before = (disk / "run/checkpoint.pt").read_bytes()

    filler = disk / "filler"
    with pytest.raises(OSError, match="No space left"):
        filler.write_bytes(bytes(4_000_000))
    with pytest.raises(RunError, match=r"could not be written .*disk full"):
        train(config, resume=True, quiet=True)
    assert (disk / "run/checkpoint.pt").read_bytes() == before

    subprocess.run(["mount", "-o", "remount,size=32m", str(disk)], check=True)
    filler.unlink()
    result = train(config, resume=True, quiet=True)
    assert result.finished
    assert [line["step"] for line in result.history] == [0, 1, 2, 3]


def test_a_disk_without_room_for_the_model_keeps_the_finished_run(
    make_config, small_disk, monkeypatch
):
    """The last step is saved, the model is not: --resume writes it once there is room."""
    disk = small_disk("16m")
    filler, real = disk / "filler", train_module.save_model

    def fill_then_save(policy, folder):
        filler.write_bytes(bytes(16 * 2**20 - 2**18 - sum(f.stat().st_size for f in files(disk))))
        real(policy, folder)

    config = make_config(output_dir=str(disk / "run"), steps=1)
    monkeypatch.setattr(train_module, "save_model", fill_then_save)
    with pytest.raises(RunError, match="disk full"):
        train(config, quiet=True)
    monkeypatch.undo()
    assert not (disk / "run/.building").exists()
    assert not (disk / "run/model.safetensors").exists()
    filler.unlink()
    assert train(config, resume=True, quiet=True).finished
    assert (disk / "run/model.safetensors").exists()


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]
