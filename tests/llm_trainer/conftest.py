"""One small start for all tests: the tiny Qwen after 80 supervised updates (about 3 CPU seconds).

It writes answers in the right format and is right now and then: enough to take real steps.
"""

import pytest
import torch

from llm_trainer import tiny
from llm_trainer import train as train_module
from llm_trainer.config import TaskConfig, WarmstartConfig, build
from llm_trainer.models import load_policy
from llm_trainer.rollout import OwnSampler
from llm_trainer.step import Learner
from llm_trainer.task import Spelling, WordStream


@pytest.fixture(scope="session")
def short_warm_start():
    """80 updates and no more, however little that reaches."""
    return WarmstartConfig(steps=80, short_exact=0.0)


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A folder in place of the user's cache."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def model_folder(cache, short_warm_start):
    """The warm-started model as a folder of ordinary files."""
    return tiny.warm_start(TaskConfig(), short_warm_start, cache=cache, quiet=True)


@pytest.fixture(scope="session")
def spelling():
    return Spelling(TaskConfig())


@pytest.fixture
def make_config(model_folder, tmp_path):
    """A valid small configuration; keyword arguments change fields."""

    def make(**values):
        small = {
            "model": str(model_folder),
            "output_dir": str(tmp_path / "run"),
            "prompts": 4,
            "group": 4,
            "micro_batch": 4,
            "steps": 2,
            "eval_every": 10,
            "eval_words": 8,
        }
        return build({**small, **values})

    return make


@pytest.fixture
def policy(make_config):
    """A fresh copy of the warm-started policy."""
    return load_policy(make_config())


@pytest.fixture
def make_learner(make_config):
    """A learner on a fresh copy of the policy; keyword arguments change fields."""

    def make(loss=None, **values):
        config = make_config(**values)
        return Learner(load_policy(config), config, loss)

    return make


@pytest.fixture
def draw(spelling):
    """A function: one batch straight from the sampler."""

    def samples(learner, seed=0):
        generator = torch.Generator().manual_seed(seed)
        sampler, stream = OwnSampler(learner.policy), WordStream(spelling.train, seed)
        return train_module.collect(sampler, spelling, stream, learner, generator)[0]

    return samples


class CrashError(RuntimeError):
    """What `crash` stops a run with."""


@pytest.fixture
def crash(monkeypatch):
    """A function that starts a run and lets it crash in the update of its fourth step."""

    def start(config):
        real, calls = train_module.learn, []

        def learn(*arguments):
            calls.append(1)
            if len(calls) == 4:
                raise CrashError
            return real(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(train_module, "learn", learn)
            with pytest.raises(CrashError):
                train_module.train(config, quiet=True)

    return start
