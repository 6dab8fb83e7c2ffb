"""The command line: what is refused, how it says so, and that it leaves nothing behind."""

import io
import os
import re
import subprocess
import sys

import pytest
import yaml

from llm_trainer.__main__ import main
from llm_trainer.config import (
    CONFIGS,
    Config,
    ConfigError,
    Section,
    allowed_values,
    build,
    load,
    with_values,
)
from llm_trainer.train import train


def run(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "llm_trainer", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=200,
    )


# Finite, but what they multiply would not be: in float32, or in a line of the log.
UNBOUNDED = ("reward_correctness", "reward_format", "reward_length", "kl_coef", "entropy_coef",
             "eps_low", "eps_high", "importance_cap", "max_grad_norm", "temperature")  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("lr=-1", ["lr = -1", "above 0", "default 0.0005"]),
        ("temperature=0", ["temperature = 0", "0.001 to 1000000"]),
        ("group=1", ["group = 1", "grpo", "2 or more"]),
        ("micro_batch=5", ["micro_batch = 5", "prompts = 16", "[1, 2, 4, 8, 16]"]),
        ("algorithm=grop", ["algorithm = 'grop'", "did you mean 'grpo'", "rloo", "dapo"]),
        ("critic_warmup=5", ["critic_warmup = 5", "without effect", "grpo has no critic"]),
        ("kl_in=reward", ["kl_in = 'reward'", "without effect", "kl_coef is 0"]),
        ("importance_cap=5", ["importance_cap = 5", "importance is 'none'"]),
        ("importance=token", ["importance = 'token'", "old_logprobs to recompute"]),
        ("minibatches=3", ["minibatches = 3", "[1, 2, 4, 8, 16]"]),
        ("minibatches=2", ["micro_batch = 16", "8 prompts of a minibatch", "[1, 2, 4, 8]"]),
        ("learning_rates=1", ["learning_rates", "unknown field", "Allowed", "lr"]),
        ("warmstart.step=1", ["warmstart.step", "unknown field", "did you mean 'steps'"]),
        ("steps=many", ["steps = 'many'", "integer", "0 or more"]),
        ("dtype=fp16", ["dtype = 'fp16'", "float32", "bfloat16"]),
        ("lr=.nan", ["lr = nan", "above 0"]),
        ("task.min_letters=9", ["task.max_letters = 7", "task.min_letters = 9"]),
        ("task.held_out=10000000", ["task.held_out = 10000000", "words have this many letters"]),
        ("model=/no/such/checkpoint", ["model = '/no/such/checkpoint'", "no such folder"]),
        ("gradient_checkpointing=true", ["gradient_checkpointing", "shared_prefix"]),
        ("lr", ["--set lr", "key=value"]),
        ("warmstart=3", ["warmstart = 3", "section", "right_share"]),
        ("=5", ["--set =5", "key=value"]),
        ("lr=[1", ["--set lr=[1", "not valid YAML"]),
        ("lr=: :", ["--set lr=: :", "not valid YAML"]),
        ("lr=!!python/object:os.system x", ["not valid YAML"]),
        ("task={held_out: 5, held_out: 6}", ["held_out: given twice"]),
        ("lr=true", ["lr = True", "true or false", "above 0"]),
        ("steps=false", ["steps = False", "true or false"]),
        ("model=true", ["model = True", "true or false"]),
        ("prompts=1000000000000", ["prompts = 1000000000000", "1 to 65536"]),
        ("seed=99999999999999999999999", ["seed", "2⁶³"]),
        ("threads=100000000000", ["threads", "1 to 1024"]),
        ("temperature=1e-40", ["temperature", "0.001 to 1000000"]),
        ("max_new_tokens=5", ["max_new_tokens = 5", "6 tokens"]),
        ("lr=1e30", ["lr", "above 0, to 1"]),
        ("weight_decay=1e300", ["weight_decay", "0 to 1"]),
        ("eps_low=0", ["eps_low = 0", "0.0001 to 1000000"]),
        *((f"{name}=1e300", [name, "to 1000000"]) for name in UNBOUNDED),
        (".lr=1", ["--set .lr=1", "key=value"]),
        ("lora_alpha=5", ["lora_alpha = 5.0", "without effect", "lora_rank is 0"]),
        ("resample_limit=9", ["resample_limit = 9", "grpo samples once a step"]),
        ("shard=true", ["shard = true", "shared_prefix"]),
        ("model=runs/nope", ["model = 'runs/nope'", "no such folder"]),
    ],
)
def test_a_configuration_that_cannot_work_ends_in_one_message(capsys, tmp_path, change, says):
    folder = tmp_path / "run"
    code = main(["train", "--set", f"output_dir={folder}", change])
    message = capsys.readouterr().err
    assert code == 2
    assert message.count("configuration error") == 1
    assert "Traceback" not in message
    for words in says:
        assert words in message
    assert not folder.exists()


GSPO = "gspo has one ratio for the whole response"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"algorithm": "gspo", "kl_coef": 0.1, "kl_in": "reward", "kl_credit": "to_go"},
            GSPO,
        ),
        (
            {"algorithm": "gspo", "kl_coef": 0.1, "kl_in": "reward", "kl_credit": "token"},
            GSPO,
        ),
        (
            {"algorithm": "gspo", "importance": "token", "old_logprobs": "recompute"},
            "importance = 'token': gspo has one ratio for the whole response",
        ),
        ({"model": "x", "warmstart": {"seed": 1}}, "needs no warm start"),
        ({"algorithm": "ppo", "shard": True, "shared_prefix": False}, "critic = 'model'.*use head"),
    ],
)
def test_combinations_that_would_not_be_what_they_say_are_refused(values, says):
    with pytest.raises(ConfigError, match=says):
        build(values)


def test_several_updates_without_a_ratio_are_doubted():
    assert build({"algorithm": "rloo"}).doubt() == build({"epochs": 4}).doubt() == ""
    for several in ({"epochs": 2}, {"minibatches": 2, "micro_batch": 8}):
        assert "rloo has no ratio" in build({"algorithm": "rloo", **several}).doubt()


def test_ppo_by_its_name_alone_is_the_shipped_ppo_but_for_epochs():
    """The row without further fields should not be a worse PPO than the one in configs/."""
    shipped = load(CONFIGS / "ppo_tiny.yaml")
    assert with_values(shipped, epochs=1, output_dir=Config().output_dir) == Config(algorithm="ppo")


def test_clip_distances_are_refused_where_the_row_has_no_clip(capsys, tmp_path):
    code = main(["train", "--set", f"output_dir={tmp_path / 'r'}", "algorithm=sapo", "eps_low=.1"])
    assert code == 2
    assert "eps_low: sapo has no clip distance" in capsys.readouterr().err


def test_as_a_real_process_an_error_is_one_line_and_a_code(tmp_path):
    result = run("train", "--config", "no.yaml", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("configuration error: no configuration file at no.yaml")
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_train_then_evaluate_from_the_command_line(capsys, tmp_path, model_folder):
    small = [f"model={model_folder}", f"output_dir={tmp_path / 'run'}", "steps=1", "prompts=2",
             "micro_batch=2", "group=4", "eval_words=20"]  # fmt: skip
    train = ["train", "--config", str(CONFIGS / "grpo_tiny.yaml"), "--set", *small]
    assert main(train) == 0
    shown = capsys.readouterr().out
    for words in ("held-out exact", "sample", "contrast", "clip high", "KL old", "entropy"):
        assert words in shown
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    assert "of 20 held-out words" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "run"), "--samples", "4", "--k", "4", "2"]) == 0
    shown = capsys.readouterr().out
    assert "4 samples each at temperature 1, top-p 1; standard errors over the 20 words" in shown
    (two,), (four,) = (re.findall(rf"pass@{k} (.*)% \(standard error .*%\)", shown) for k in (2, 4))
    assert 0 <= float(two) <= float(four) <= 100
    assert main(train) == 2
    assert "already holds" in capsys.readouterr().err
    assert main([*train, "--resume"]) == 0  # already finished: nothing to do


def test_resume_with_a_folder_takes_everything_from_the_run(capsys, tmp_path, model_folder):
    """No --config and no --set again; what is set may be what a resumed run may change."""
    small = [f"model={model_folder}", f"output_dir={tmp_path / 'run'}", "steps=1", "prompts=2",
             "micro_batch=2", "group=4", "eval_words=4", "lr=1e-4"]  # fmt: skip
    assert main(["train", "--set", *small]) == 0
    assert main(["train", "--resume", "--set", f"output_dir={tmp_path / 'run'}"]) == 2
    assert "--resume FOLDER, without --config" in capsys.readouterr().err
    (tmp_path / "run").rename(tmp_path / "moved")
    resume = ["train", "--quiet", "--resume", str(tmp_path / "moved")]
    assert main([*resume, "--set", "steps=2"]) == 0
    assert len((tmp_path / "moved/metrics.jsonl").read_text().splitlines()) == 3
    again = load(tmp_path / "moved/run.yaml")
    assert (again.steps, again.lr, again.output_dir) == (2, 1e-4, str(tmp_path / "moved"))
    assert not (tmp_path / "run").exists()
    for command, says in {
        (*resume, "--set", "lr=1"): "was started with lr = 0.0001",
        (*resume, "--set", "steps=1"): "at step 2 already",
        (*resume, "--config", "x.yaml"): "leave --config out",
        ("train", "--resume", str(tmp_path / "no")): "no holds no run (no run.yaml)",
    }.items():
        assert main([*command]) == 2
        assert says in capsys.readouterr().err


def test_an_output_that_is_closed_or_knows_only_ascii_stops_no_command(
    monkeypatch, make_config, tmp_path
):
    config = make_config(steps=1)
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(config.model_dump()))
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", None)
        assert main(["train", "--config", str(tmp_path / "a.yaml")]) == 0
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", ascii_only)
        assert main(["fields"]) == 0
    ascii_only.seek(0)
    assert "0 to 2\\u2076" in ascii_only.read()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"lr: 1\nlr: 2\n", "lr: given twice"),
        (b"task:\n  held_out: 5\n  held_out: 6\n", "held_out: given twice"),
        (b"1: 2\n", "1 is not the name of a field"),
        (b"null: 2\n", "None is not the name of a field"),
        (b"lr: [\n", "line 2, column 1: not valid YAML"),
        (b"- 3\n", "must hold `field: value` lines, not a list"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        (b"lr: -1\n", "read from"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path, text, says):
    path = tmp_path / "bad.yaml"
    path.write_bytes(text)
    with pytest.raises(ConfigError) as error:
        load(path)
    assert str(path) in str(error.value)
    assert says in str(error.value)


def test_words_that_a_model_was_trained_on_are_not_called_held_out(
    capsys, tmp_path, model_folder, make_config
):
    config = make_config(steps=0)
    train(config, quiet=True)
    for folder in (model_folder, config.output_dir):
        output = f"output_dir={tmp_path / 'new'}"
        for command in (
            ["evaluate", str(folder), "--set", "task.max_letters=5"],
            ["train", "--set", f"model={folder}", output, "task.held_out=2000"],
        ):
            assert main(command) == 2
            message = capsys.readouterr().err
            assert "held-out words were trained on by the model in" in message
            assert "task.max_letters=7, task.held_out=1000" in message
        one = ["task.mixture={leg_counting: 1}", "eval_words=5"]  # no words, so no split of words
        assert main(["evaluate", str(folder), "--set", *one, "task.max_letters=5"]) == 0
        fewer = ["task.held_out=100", "eval_words=5"]  # a part of what was held out
        assert main(["evaluate", str(folder), "--set", *fewer]) == 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--k", "3"], "--k needs --samples"),
        (["--samples", "4", "--k", "1", "5"], "--k 5: pass@5 needs 1 to --samples 4"),
        (["--samples", "4", "--k", "0"], "--k 0"),
        (["--samples", "-4"], "--samples -4"),
        (["--samples", "4", "--top-p", "0"], "--top-p 0.0: above 0, to 1"),
        (["--samples", "4", "--top-p", "1.5"], "--top-p 1.5"),
        (["--samples", "4", "--temperature", "0"], "--temperature 0.0"),
        (["--samples", "4", "--temperature", "nan"], "--temperature nan"),
    ],
)
def test_evaluate_refuses_what_cannot_be_sampled(capsys, given, says):
    assert main(["evaluate", *given]) == 2
    assert says in capsys.readouterr().err


def test_a_task_that_does_not_exist_is_refused_before_anything_is_written(capsys, tmp_path):
    folder = tmp_path / "run"
    code = main(["train", "--set", f"output_dir={folder}", "task.mixture={leg_countin: 1}"])
    assert code == 2
    assert "no task 'leg_countin'; did you mean 'leg_counting'" in capsys.readouterr().err
    assert not folder.exists()


def test_words_seen_before_a_run_without_words_are_remembered(capsys, make_config):
    """The run itself never drew a word, but the model it started from did."""
    config = make_config(steps=0, task={"mixture": {"leg_counting": 1}, "held_out": 10})
    train(config, quiet=True)
    words = ["task.mixture={spell_backward: 1}", "task.max_letters=5", "task.held_out=1000"]
    assert main(["evaluate", config.output_dir, "--set", *words]) == 2
    assert "held-out words were trained on by the model in" in capsys.readouterr().err


def test_evaluate_says_what_is_not_there(capsys, tmp_path):
    assert main(["evaluate", str(tmp_path / "nope")]) == 2
    assert re.search("no folder .*leave the folder out and give", capsys.readouterr().err)
    (tmp_path / "run.yaml").write_text("steps: 5\n")
    assert main(["evaluate", str(tmp_path)]) == 2
    assert "has not finished: use --resume" in capsys.readouterr().err


def test_several_errors_come_together(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("lr: -1\ngroups: 3\n")
    with pytest.raises(ConfigError) as error:
        load(path)
    assert "lr = -1" in str(error.value)
    assert "groups: unknown field; did you mean 'group'?" in str(error.value)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda p: p.stem)
def test_the_shipped_configurations_are_valid(path):
    assert isinstance(load(path), Config)


def test_the_defaults_are_the_tiny_configuration():
    assert load(CONFIGS / "grpo_tiny.yaml") == Config()


def test_overrides_reach_into_sections():
    config = load(CONFIGS / "grpo_tiny.yaml", ["lr=1e-3", "task.max_letters=5", "seed=7"])
    assert (config.lr, config.task.max_letters, config.seed) == (1e-3, 5, 7)
    assert config.task.held_out == 1000


def test_every_field_says_what_it_is(capsys):
    def fields(section):
        for name, field in section.model_fields.items():
            if isinstance(field.default, Section):
                yield from fields(type(field.default))
            else:
                yield name, field

    for name, field in fields(Config):
        assert field.description, name
        assert field.json_schema_extra["unit"], name
        assert allowed_values(field), name
    assert main(["fields"]) == 0
    listed = capsys.readouterr().out
    assert "warmstart.right_share" in listed
    assert "[per update] allowed: above 0" in listed
