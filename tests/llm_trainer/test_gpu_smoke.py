"""The script for a GPU, run small on the CPU; and tensors made in the wrong place."""

import pytest
import torch

from benchmarks import gpu_smoke
from llm_trainer.models import load_policy
from llm_trainer.rollout import OwnSampler
from llm_trainer.step import Learner
from llm_trainer.train import collect, learn

SMALL = ["--device", "cpu", "--layers", "2", "--width", "32", "--vocabulary", "500", "--steps", "1",
         "--skip-trl", "--set", "prompts=4", "group=4", "max_new_tokens=6"]  # fmt: skip


def test_real_steps_with_adapters_and_with_all_weights(capsys):
    presets = ["--presets", "grpo_qwen3_0.6b_8gb", "grpo_qwen3_1.7b_80gb"]
    assert gpu_smoke.main([*SMALL, *presets]) == 0
    shown = capsys.readouterr().out
    assert shown.count("| sampling |") == shown.count("| training |") == 2
    assert "random weights, median of 1 steps" in shown


def test_the_reward_has_contrast_for_ids_that_are_no_tokens(spelling):
    entry = spelling.entry("orange")
    task = gpu_smoke.EvenIds(spelling.config)
    shares = [
        task.score(text, entry, ended=False).correctness for text in ("151000 2 4", "3 5", "")
    ]
    assert shares == [1.0, 0.0, 0.0]


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu_smoke.main([])
    assert "no GPU here; on a CPU only a small form is of use" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes",
    [
        {"kl_coef": 0.1},
        {"algorithm": "ppo", "kl_coef": 0.1},
        {"algorithm": "cispo", "overlong": "penalty", "overlong_cache": 4, "entropy_coef": 0.01},
        {"importance": "token", "old_logprobs": "recompute", "shared_prefix": False},
    ],
    ids=["grpo", "ppo", "cispo", "importance"],
)
def test_every_tensor_is_made_where_the_policy_is(make_config, spelling, changes):
    """A tensor made without `device=` lands on the default device. Here that is neither the
    policy's nor one that can be mixed with it, so it would stop the step, as it would on a GPU."""
    config = make_config(prompts=4, micro_batch=2, group=8, **changes)
    policy = load_policy(config)
    learner, stream = Learner(policy, config), spelling.stream(0)
    generator = torch.Generator(policy.device).manual_seed(0)
    for network in (policy, learner.reference or policy):
        assert network.head_is_plain  # asked once, with a tensor that is moved on purpose
    with torch.device("meta"):
        batch, _, _ = collect(OwnSampler(policy), spelling, stream, learner, generator)
        metrics = learn(learner, batch)
    assert metrics["grad_norm"] > 0
