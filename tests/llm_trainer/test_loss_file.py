"""`--loss file.py:function`: what is loaded, what is refused, what a resumed run notices."""

import json
from pathlib import Path

import pytest
import torch

from llm_trainer import loss_file
from llm_trainer.__main__ import main
from llm_trainer.config import ConfigError, RunError
from llm_trainer.loss_file import load_loss
from llm_trainer.train import train
from policy_gradients.algorithms import grpo_loss

EXAMPLE = Path(loss_file.__file__).parent / "examples" / "my_loss.py"
MINE = """\
import torch

def mine(logp, logp_old, advantages, mask, *, sequences):
    ratio = (logp - logp_old).exp()
    return -(ratio * advantages * mask).sum() / sequences

class Mine:
    def __call__(self, logp, logp_old, advantages, mask, *, tokens):
        return -((logp - logp_old).exp() * advantages * mask).sum() / tokens

not_a_function, mine_too = 3, Mine()
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A file in the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(MINE)
    return tmp_path / "own.py"


def test_the_example_is_grpos_loss_and_gradient():
    """Unequal lengths, ratios on both sides of the clip, dirt in the padding, its own count."""
    torch.manual_seed(0)
    logp_old = -torch.rand(4, 6, dtype=torch.float64) - 0.3
    mask = (torch.arange(6) < torch.tensor([[3], [1], [6], [4]])).double()
    advantages = torch.tensor([[2.0], [-1.0], [0.6], [-0.7]], dtype=torch.float64)
    logp = logp_old + 0.6 * torch.randn(4, 6, dtype=torch.float64)
    logp[0, 4], logp_old[1, 3] = 900.0, float("inf")  # padding
    results = []
    for function in (load_loss(f"{EXAMPLE}:grpo"), grpo_loss):
        leaf = logp.clone().requires_grad_()
        loss = function(leaf, logp_old, advantages, mask, eps_low=0.2, eps_high=0.3, sequences=9)
        loss.backward()
        results.append((loss.detach(), leaf.grad))
    assert torch.allclose(results[0][0], results[1][0], rtol=1e-12)
    assert torch.allclose(results[0][1], results[1][1], rtol=1e-12, atol=0)
    assert results[0][1].abs().sum() > 0.1


def test_a_run_with_the_example_is_a_run_with_the_row(make_config, tmp_path):
    """In pieces, with groups that were dropped: a mean over what it sees would differ."""
    shared = {"epochs": 2, "micro_batch": 1, "steps": 2}
    row = train(make_config(**shared, output_dir=str(tmp_path / "row")), quiet=True)
    own = train(
        make_config(**shared, output_dir=str(tmp_path / "own")),
        load_loss(f"{EXAMPLE}:grpo"),
        quiet=True,
    )
    for name in ("reward/mean", "grad_norm", "kl/old", "clip/high"):
        assert own.history[-1][name] == pytest.approx(row.history[-1][name], rel=1e-4, abs=1e-7)


def test_the_name_the_signature_and_the_sha256_come_from_the_file(mine):
    loss = load_loss("own.py:mine")
    assert loss.__name__ == "own.py:mine"
    assert loss.sha256 == load_loss(str(mine) + ":mine").sha256
    mine.write_text(MINE + "# a remark\n")
    assert load_loss("own.py:mine").sha256 != loss.sha256
    assert not (mine.parent / "__pycache__").exists()


@pytest.mark.parametrize("name", ["mine", "mine_too"])
def test_a_function_or_an_object_from_a_file_trains(mine, make_config, name):
    result = train(make_config(steps=1), load_loss(f"own.py:{name}"), quiet=True)
    assert result.finished
    first_line = (result.output_dir / "run.yaml").read_text().splitlines()[0]
    assert first_line.startswith(f"# loss: own.py:{name} (sha256 ")


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("own.py", "expected path/to/file.py:function"),
        ("own.py:", "expected path/to/file.py:function"),
        (":mine", "expected path/to/file.py:function"),
        ("other.py:mine", "no file other.py (looked in"),
        ("own.py:mien", "has no function 'mien'; did you mean 'mine'? Allowed: mine, Mine"),
        ("own.py:not_a_function", "has no function 'not_a_function'"),
        ("own.py:torch", "has no function 'torch'"),
    ],
)
def test_what_is_not_there_is_named(mine, place, says):
    with pytest.raises(ConfigError) as error:
        load_loss(place)
    assert str(error.value).startswith(f"--loss {place}: ")
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("import torch\nimport no_such_module_here\n", 2, "ModuleNotFoundError: No module named"),
        ("\n\ndef f(:\n", 3, "SyntaxError"),
        ("def g():\n    return 1 / 0\n\nx = g()\n", 2, "ZeroDivisionError: division by zero"),
        ("import json\njson.loads('{')\n", 2, "JSONDecodeError"),
        ("raise SystemExit(3)\n", 1, "SystemExit: 3"),
    ],
)
def test_a_file_that_fails_says_where(mine, text, line, says):
    mine.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_loss("own.py:f")
    assert f"own.py, line {line}: {says}" in str(error.value)


def test_the_command_line_trains_with_it_and_notices_a_changed_file(mine, capsys, model_folder):
    def command(*more, loss="own.py:mine", steps=1):
        small = [f"model={model_folder}", "output_dir=run", "prompts=2", "micro_batch=2",
                 "eval_words=8", f"steps={steps}"]  # fmt: skip
        return main(["train", *(["--loss", loss] if loss else []), *more, "--set", *small])

    assert command(loss="own.py:nope") == 2
    assert "has no function 'nope'" in capsys.readouterr().err
    assert not Path("run").exists()
    assert command() == 0
    assert "own.py:mine on" in capsys.readouterr().out
    assert command("--resume", loss=None, steps=2) == 2
    assert "this run's loss is own.py:mine, not grpo" in capsys.readouterr().err
    assert command("--resume", loss="own.py:mine_too", steps=2) == 2
    assert "this run's loss is own.py:mine, not own.py:mine_too" in capsys.readouterr().err
    assert command("--resume", steps=2) == 0
    assert "has changed" not in capsys.readouterr().out
    mine.write_text(MINE + "# a remark\n")
    assert command("--resume", steps=3) == 0
    assert "warning: the file of own.py:mine has changed" in capsys.readouterr().out
    lines = Path("run/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2, 3]


# ------------------------------------------------------------------ what a loss does wrong

KEEPS = "    return -((logp - logp_old).exp() * advantages * mask).sum() / 4\n"
HEAD = "import torch\ndef bad(logp, logp_old, advantages, mask):\n"
WRONG = {  # the body of a loss → what is said before anything is written
    "    return logp.no_such_thing\n": "own.py:bad: AttributeError in own.py, line 3: 'Tensor'",
    "    return {}['x']\n": "KeyError in own.py, line 3",
    "    assert False, 'mine'\n": "AssertionError in own.py, line 3: mine",
    "    return (logp * torch.zeros(7)).sum()\n": "RuntimeError in own.py, line 3: The size",
    "    raise SystemExit(0)\n": "SystemExit in own.py, line 3: 0",
    "    open('no_such_file')\n": "FileNotFoundError in own.py, line 3",
    "    logp.mul_(mask)\n" + KEEPS: "RuntimeError in own.py, line 3: a leaf Variable",
    "    advantages.sub_(1)\n" + KEEPS: "it changes logp, logp_old or advantages in place",
    "    torch.set_grad_enabled(False)\n" + KEEPS: "it has no gradient",
    "    return logp.detach().sum()\n": "it has no gradient",
    "    return torch.zeros((), requires_grad=True) * 1\n": "it has no gradient",
    "    return logp.sum() * float('nan')\n": "nan on made-up, ordinary numbers",
    "    return torch.complex(logp, logp).sum()\n": r"scalar tensor, got \(\) of torch.complex64",
    "    return logp\n": r"it must return a scalar tensor, got \(4, 5\) of torch.float32",
    "    return 1.0\n": "it must return a scalar tensor, got float",
    "    x = logp.sum()\n    x.backward()\n    return x\n": "it must not call backward",
}


@pytest.mark.parametrize("body", WRONG)
def test_a_loss_that_goes_wrong_is_named_before_anything_is_written(mine, make_config, body):
    mine.write_text(HEAD + body)
    with pytest.raises(ConfigError, match=WRONG[body]) as refused:
        train(make_config(), load_loss("own.py:bad"), quiet=True)
    assert str(refused.value).startswith("loss own.py:bad: ")
    assert "\n" not in str(refused.value)
    assert not Path(make_config().output_dir).exists()
    assert torch.is_grad_enabled()


def test_the_error_of_a_loss_is_kept_with_its_traceback(mine, make_config):
    """For a notebook: the message names the line, the cause shows how it was reached."""
    mine.write_text(HEAD + "    return logp.no_such_thing\n")
    with pytest.raises(ConfigError) as refused:
        train(make_config(), load_loss("own.py:bad"), quiet=True)
    assert isinstance(refused.value.__cause__.__cause__, AttributeError)


def test_arguments_in_another_order_are_refused_other_names_are_not(make_config):
    """Called by place, the mask would be taken for logp, and every invariant would hold."""

    def moved(mask, adv, logp_old, logp):
        return -(logp * adv * mask).sum()

    def renamed(new, old, adv, m, *, sequences):
        return -((new - old).exp() * adv * m).sum() / sequences

    with pytest.raises(ConfigError, match="it takes mask, adv, logp_old, logp, but it is called"):
        train(make_config(), moved, quiet=True)
    assert train(make_config(steps=1), renamed, quiet=True).finished


def test_a_loss_that_fails_later_stops_the_run_by_name(make_config):
    calls = []

    def loss(logp, logp_old, advantages, mask, *, sequences):
        calls.append(1)
        if len(calls) > 8:
            raise KeyError("later")
        return -((logp - logp_old).exp() * advantages * mask).sum() / sequences

    with pytest.raises(
        RunError, match=r"loss loss: KeyError in test_loss_file.py, line .*: 'later'"
    ):
        train(make_config(steps=9), loss, quiet=True)


@pytest.mark.parametrize("values", [{}, {"algorithm": "ppo"}], ids=["grpo", "ppo"])
def test_a_loss_for_whole_groups_or_per_token_advantages_passes_the_trial(make_config, values):
    """The made-up batch has a run's shapes: whole groups; one advantage per token for PPO."""

    def loss(logp, logp_old, advantages, mask):
        ratio = (logp - logp_old).exp().view(-1, 4, logp.shape[1])
        assert advantages.shape == (logp.shape if values else (len(logp), 1))
        return -(ratio * advantages.view(-1, 4, advantages.shape[1])).mul(mask.view_as(ratio)).sum()

    assert train(make_config(steps=1, **values), loss, quiet=True).finished
