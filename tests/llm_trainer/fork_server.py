"""Imports the trainer once (seconds), then forks one process for each run it is asked for.

One line of JSON in: the arguments of `python -m llm_trainer`. Two lines out: the pid of the run
when it starts, and its exit code when it is over (negative: the signal that killed it). Files are
replaced slowly and checkpoints written in two halves, so that a kill often falls inside.
"""

import io
import json
import os
import sys
import time
from pathlib import Path

import torch

from llm_trainer import checkpoint
from llm_trainer import train as train_module  # noqa: F401  (what the command would import)
from llm_trainer.__main__ import main

PAUSE = 0.02  # seconds
real_save, real_replace = torch.save, checkpoint.replace


def save_slowly(values, path):
    buffer = io.BytesIO()
    real_save(values, buffer)
    content = buffer.getvalue()
    with open(path, "wb") as file:
        file.write(content[: len(content) // 2])
        file.flush()
        time.sleep(PAUSE)
        file.write(content[len(content) // 2 :])


def replace_slowly(new: Path, old: Path):
    time.sleep(PAUSE)
    real_replace(new, old)


torch.set_num_threads(1)
torch.save, checkpoint.replace = save_slowly, replace_slowly
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = main(json.loads(line))
        finally:
            sys.stdout.flush()
            os._exit(code)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
