"""What a run shows and where its numbers go: terminal, notebook, pipe, metrics.jsonl, trackers."""

import importlib.machinery
import io
import json
import os
import re
import sys
import types
from pathlib import Path

import pytest

from llm_trainer import console as console_module
from llm_trainer import log
from llm_trainer.config import ConfigError, RunError
from llm_trainer.console import Console, Sample, pick_samples
from llm_trainer.train import train

README = (Path(log.__file__).parent / "README.md").read_text(encoding="utf-8")
MEASURED = {
    "reward/mean": 0.5, "reward/correctness": 0.45, "reward/format": 1.0, "reward/exact": 0.2,
    "groups/contrast": 0.5, "groups/sampled": 16, "groups/trained": 12, "entropy": 0.1,
    "length/mean": 7.0, "length/truncated": 0.0, "grad_norm": 0.8, "clip/high": 0.01,
    "clip/low": 0.02, "kl/old": 0.001, "time/tokens_per_second": 1234.5,
}  # fmt: skip
SAMPLES = [Sample("sun", "<answer>nus</answer>", 1.1, "best of 8"),
           Sample("sun", "<answer>snu</answer>", 0.6, "worst of 8")]  # fmt: skip


class Screen(io.StringIO):
    """A terminal, as far as the console uses one: line ends, cursor up, two ways to erase."""

    def __init__(self, columns=80, lines=24):
        super().__init__()
        self.size = os.terminal_size((columns, lines))
        self.rows, self.row, self.column, self.writes = [""], 0, 0, 0

    def isatty(self):
        return True

    def write(self, text):
        self.writes += 1
        for part in re.findall(r"\x1b\[[0-9?]*[A-Za-z]|[^\x1b]", text):
            if part == "\n":
                self.row, self.column = self.row + 1, 0
                self.rows += [""] * (self.row == len(self.rows))
            elif part == "\x1b[K":
                self.rows[self.row] = self.rows[self.row][: self.column]
            elif part == "\x1b[J":
                del self.rows[self.row + 1 :]
                self.rows[self.row] = self.rows[self.row][: self.column]
            elif part.startswith("\x1b") and part.endswith("F"):
                up = int(part[2:-1])
                assert up < self.size.lines, "the cursor cannot leave the screen"
                self.row, self.column = self.row - up, 0
            elif part.startswith("\x1b"):
                pass
            else:
                old = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = old[: self.column] + part + old[self.column + 1 :]
                self.column += 1
                assert self.column < self.size.columns, "the line would wrap"
        return len(text)


@pytest.fixture
def terminal(monkeypatch):
    """A function: a console on a screen of a given size, redrawn at every step."""
    monkeypatch.setattr(console_module, "REDRAW", 0.0)

    def make(columns=80, lines=24, steps=10, **more):
        screen = Screen(columns, lines)
        monkeypatch.setattr(console_module.shutil, "get_terminal_size", lambda: screen.size)
        return screen, Console("grpo on tiny", steps, quiet=False, out=screen, **more)

    return make


# ------------------------------------------------------------------ samples


def test_the_best_and_the_worst_of_each_group_are_shown():
    rewards = [[0.5, 1.1, 0.1], [1.1, 1.1, 1.1], [0.0, 0.0, 0.2], [1.0, 2.0, 3.0]]
    responses = [f"{word}{i}" for word in "abcd" for i in range(3)]
    assert pick_samples("abcd", responses, rewards) == [
        Sample("a", "a1", 1.1, "best of 3"),
        Sample("a", "a2", 0.1, "worst of 3"),
        Sample("b", "b0", 1.1, "all 3 equal"),
        Sample("c", "c2", 0.2, "best of 3"),
        Sample("c", "c0", 0.0, "worst of 3"),
    ]
    assert pick_samples(["a"], ["x"], [[0.3]]) == [Sample("a", "x", 0.3, "")]


def test_a_run_shows_samples_of_its_own_step(make_config, capsys):
    result = train(make_config(steps=1, eval_every=1))
    shown = capsys.readouterr().out
    best = [float(x) for x in re.findall(r"(-?\d\.\d\d)  (?:best|all)", shown)]
    worst = [float(x) for x in re.findall(r"(-?\d\.\d\d)  (?:worst|all)", shown)]
    assert len(best) == len(worst) == 3
    assert all(b >= w for b, w in zip(best, worst, strict=True))
    assert f"mean {result.history[1]['reward/mean']:.3f}" in shown
    assert "<answer>" in shown


# ------------------------------------------------------------------ the block


def test_the_console_prints_no_zero_for_what_was_not_measured():
    shown = Console("a run", 10, quiet=False)
    skipped = {k: v for k, v in MEASURED.items() if k.split("/")[0] not in ("clip", "kl")}
    del skipped["grad_norm"]
    text = "\n".join(shown.lines({"step": 1, **skipped}, ()))
    assert "entropy 0.100" in text
    for name in ("KL", "clip", "gradient", "critic", "sampler weight", "samples", "brevity"):
        assert name not in text
    more = {"kl/ref": 0.03, "critic/loss": 0.25, "critic/explained_variance": -0.5}
    text = "\n".join(shown.lines({"step": 1, **skipped, **more}, ()))
    assert "KL ref 0.0300" in text
    assert re.search(r"^critic +loss 0.2500   explained variance -0.50$", text, re.M)


def test_no_line_is_wider_than_the_terminal():
    awful = [
        Sample(
            "日本語の長い質問" * 5, "👩‍👩‍👧 " * 30 + "<answer>正解</answer>", -12.34, "worst of 128"
        ),
        Sample("plain", "e\u0301" * 200, 1.0, ""),
        Sample("", "", 0.0, "best of 8"),
    ]
    console = Console("grpo on /a/very/long/path/to/a/model", 10**6, quiet=False)
    console.evaluations = [{"step": s, "eval/exact": 0.5} for s in range(100)]
    for width in (20, 33, 44, 59, 60, 80, 200):
        for line in console.lines({"step": 9, **MEASURED, "kl/ref": 1.0}, awful, width):
            assert console_module._cells(line) <= width


def test_cells_are_counted_as_terminals_do():
    assert console_module._cells("abc") == 3
    assert console_module._cells("日本") == 4
    assert console_module._cells("e\u0301") == 1
    assert console_module._fit("0123456789", 7) == "012…789"
    assert console_module._fit("日本語日本語", 7) == "日…語"
    assert console_module._fit("abc", 3) == "abc"


def test_the_end_of_a_long_response_stays_in_sight():
    sample = Sample("q " * 200, "thinking " * 200 + "<answer>42</answer>", 1.0, "best of 8")
    line = Console("x", 1, quiet=False).lines({"step": 1}, [sample])[-1]
    assert line.endswith("<answer>42</answer>")


def test_a_response_cannot_move_the_cursor(terminal):
    screen, console = terminal()
    console.step({"step": 1}, [Sample("a\nb", "\x1b[2J\x1b[H\r\b\u202egone", 0.0, "")])
    assert "a\\nb → \\x1b[2J\\x1b[H\\r\\x08\\u202egone" in screen.rows[-2]


# ------------------------------------------------------------------ on a terminal


def test_a_block_is_redrawn_in_place_and_what_was_said_stays(terminal):
    screen, console = terminal()
    console.say("hello")
    for step in range(1, 6):
        before = screen.writes
        samples = SAMPLES[: 2 - step % 2]  # blocks of different heights and lines that shrink
        metrics = {"step": step, **MEASURED, "grad_norm": 10.0 ** (6 - step)}
        console.step(metrics, samples)
        assert screen.writes == before + 1  # one write: never half a block
        block = console.lines(metrics, samples, 79)
        assert screen.rows[0] == "hello"
        assert [row.split() for row in screen.rows[2:]] == [line.split() for line in block[1:]] + [
            []
        ]
        assert screen.rows[1].startswith(f"grpo on tiny   step {step}/10")
    console.say("done")
    assert screen.rows[-2:] == ["done", ""]
    assert "tokens/s 1,234" in "\n".join(screen.rows)


def test_after_a_change_of_size_nothing_above_is_overwritten(terminal):
    screen, console = terminal()
    console.say("hello")
    console.step({"step": 1, **MEASURED}, SAMPLES)
    before = list(screen.rows[:-1])
    screen.size = os.terminal_size((50, 24))
    console.step({"step": 2, **MEASURED}, SAMPLES)
    assert screen.rows[: len(before)] == before
    height = len(screen.rows)
    console.step({"step": 3, **MEASURED}, SAMPLES)
    assert len(screen.rows) == height


def test_a_terminal_of_few_lines_gets_the_top_of_the_block(terminal):
    screen, console = terminal(lines=5)
    for step in (1, 2, 3):
        console.step({"step": step, **MEASURED}, SAMPLES)
    assert len(screen.rows) == 5
    assert "step 3/10" in screen.rows[0]


def test_steps_that_follow_at_once_are_not_all_drawn_but_the_last_is(terminal, monkeypatch):
    screen, console = terminal(steps=50)
    monkeypatch.setattr(console_module, "REDRAW", 1e9)
    for step in range(1, 51):
        console.step({"step": step, **MEASURED}, SAMPLES)
    assert screen.writes <= 2
    assert "step 50/50" in screen.rows[0]


def test_labels_are_dim_unless_the_user_wants_no_colour(terminal, monkeypatch):
    for no_color in (False, True):
        monkeypatch.setenv("NO_COLOR", "1") if no_color else monkeypatch.delenv("NO_COLOR", False)
        screen, console = terminal()
        written = []
        monkeypatch.setattr(screen, "write", written.append)
        console.step({"step": 1, **MEASURED}, SAMPLES)
        assert ("\x1b[2mreward" in written[0]) is not no_color


def test_a_resumed_run_shows_the_evaluations_before_it(terminal):
    history = [{"step": 0, "eval/exact": 0.4}, {"step": 1}, {"step": 2, "eval/exact": 0.6}]
    screen, console = terminal(history=history)
    console.step({"step": 3, **MEASURED})
    assert "exact 40.0% at 0   60.0% at 2" in "\n".join(screen.rows)
    assert console.first == 2  # the rate counts from here


# ------------------------------------------------------------------ elsewhere


def test_a_pipe_gets_plain_lines_and_the_block_at_evaluations():
    out = io.StringIO()
    console = Console("a run", 400, quiet=False, out=out)
    for step in range(1, 101):
        metrics = {"step": step, **MEASURED} | ({"eval/exact": 0.7} if step == 100 else {})
        console.step(metrics, SAMPLES)
    text = out.getvalue()
    assert "\x1b" not in text
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("step")] == lines[:9]  # 10, 20, …, 90
    assert lines[0].startswith("step 10/400   reward 0.500   exact 20.0%   contrast 50%")
    assert "held-out   exact 70.0% at 100" in lines
    assert text.count("best of 8") == 1


def test_what_the_output_cannot_spell_stops_no_run():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    console = Console("a run", 2, quiet=False, out=out)
    console.step({"step": 1, "eval/exact": 0.5}, [Sample("日本", "naïve 😀", 1.0, "")])
    out.seek(0)
    shown = out.read()
    assert "?? ? na?ve ?" in shown
    assert "[########" not in shown
    assert "########........" in shown


def test_an_output_that_is_gone_stops_no_run(make_config):
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError(32, "Broken pipe")

    console = Console("a run", 2, quiet=False, out=Gone())
    console.step({"step": 1, "eval/exact": 0.5}, SAMPLES)
    console.say("still here")
    assert console.quiet


def test_a_closed_standard_output_stops_no_run(monkeypatch):
    """Python's sys.stdout is None after `>&-`."""
    monkeypatch.setattr(sys, "stdout", None)
    console = Console("a run", 2, quiet=False)
    console.step({"step": 1, "eval/exact": 0.5}, SAMPLES)
    console.say("still here")


def test_a_quiet_run_prints_nothing(make_config, capsys):
    train(make_config(steps=1, eval_every=1), quiet=True)
    assert capsys.readouterr().out == ""


def test_a_notebook_keeps_one_display_that_is_updated(monkeypatch):
    """A stand-in for IPython's DisplayHandle; test_report.py uses a real kernel."""
    calls = []
    handle = types.SimpleNamespace(
        display=lambda data, raw: calls.append(("display", data)),
        update=lambda data, raw: calls.append(("update", data)),
    )
    monkeypatch.setattr(console_module, "_notebook", lambda: handle)
    monkeypatch.setattr(console_module, "REDRAW", 0.0)
    console = Console("a run", 3, quiet=False)
    for step in (1, 2, 3):
        console.step({"step": step, **MEASURED}, SAMPLES)
    assert [kind for kind, _ in calls] == ["display", "update", "update"]
    assert "step 3/3" in calls[-1][1]["text/plain"]
    assert "&lt;answer&gt;nus&lt;/answer&gt;" in calls[-1][1]["text/html"]


# ------------------------------------------------------------------ trackers


def stand_in(monkeypatch, name, **contents):
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)


def logged(config):
    with open(Path(config.output_dir) / log.LOG, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("track", ["tensorboard", "wandb"])
def test_a_tracker_that_is_not_installed_is_refused_before_anything(
    make_config, tmp_path, monkeypatch, track
):
    monkeypatch.setattr(log.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=rf"track = '{track}': it is not installed; pip install"):
        train(make_config(track=track), quiet=True)
    assert not (tmp_path / "run").exists()


def test_wandb_gets_the_numbers_of_the_log_and_a_resumed_run_goes_on(make_config, monkeypatch):
    """A stand-in for wandb: the documented names of init's, log's and finish's parameters."""
    runs = []

    class Run:
        def __init__(self, **settings):
            self.settings, self.lines, self.finished = settings, [], False

        def log(self, data, step=None, commit=None):
            self.lines.append({"step": step, **data})

        def finish(self, exit_code=None, quiet=None):
            self.finished = True

    def init(*, project, name, id, resume, dir, config):
        runs.append(Run(id=id, resume=resume, dir=dir, config=config))
        return runs[-1]

    stand_in(monkeypatch, "wandb", init=init)
    config = make_config(track="wandb", steps=1)
    train(config, quiet=True)
    assert runs[0].lines == logged(config)
    assert runs[0].settings["config"] == config.model_dump()
    train(make_config(track="wandb", steps=2), resume=True, quiet=True)
    assert runs[0].settings["id"] == runs[1].settings["id"]
    assert runs[1].settings["resume"] == "allow"
    assert runs[0].lines + runs[1].lines == logged(config)
    train(make_config(track="wandb", steps=1), overwrite=True, quiet=True)
    assert runs[2].settings["id"] != runs[0].settings["id"]
    assert all(run.finished for run in runs)


def test_wandb_that_cannot_start_is_named(make_config, monkeypatch):
    def init(**settings):
        raise ValueError("api_key not configured (no-tty)\nmore")

    stand_in(monkeypatch, "wandb", init=init)
    with pytest.raises(RunError, match=r"could not start a run \(api_key not .*WANDB_MODE=offline"):
        train(make_config(track="wandb"), quiet=True)


def test_tensorboard_gets_the_numbers_of_the_log(make_config, monkeypatch):
    """A stand-in for torch's SummaryWriter, which needs the package tensorboard."""
    writers = []

    class SummaryWriter:
        def __init__(self, log_dir=None, purge_step=None):
            self.folder, self.purge_step, self.scalars = log_dir, purge_step, {}
            writers.append(self)

        def add_scalar(self, tag, scalar_value, global_step=None):
            self.scalars[global_step, tag] = scalar_value

        def close(self):
            self.closed = True

    stand_in(monkeypatch, "tensorboard")
    stand_in(monkeypatch, "torch.utils.tensorboard", SummaryWriter=SummaryWriter)
    config = make_config(track="tensorboard", steps=1)
    train(config, quiet=True)
    train(make_config(track="tensorboard", steps=2), resume=True, quiet=True)
    expected = {(m["step"], k): v for m in logged(config) for k, v in m.items() if k != "step"}
    assert writers[0].scalars | writers[1].scalars == expected
    assert [w.purge_step for w in writers] == [0, 2]
    assert writers[0].folder == Path(config.output_dir) / "tensorboard"
    assert all(w.closed for w in writers)


# ------------------------------------------------------------------ numbers only


NOT_A_LINE = {
    "no JSON": '{"st',
    "no object": "[3]",
    "no step in it": '{"loss": 0.5}',
    "another step": '{"step": 2}',
    "a step that is text": '{"step": "1"}',
    "a step that is true": '{"step": true}',
    "text": '{"step": 1, "eval/exact": "x"}',
    "nothing": '{"step": 1, "eval/exact": null}',
    "NaN": '{"step": 1, "eval/exact": NaN}',
    "infinity": '{"step": 1, "eval/exact": -Infinity}',
    "more than a float": '{"step": 1, "eval/exact": 1' + 400 * "0" + "}",
    "an empty line": "",
}


@pytest.mark.parametrize("line", NOT_A_LINE.values(), ids=NOT_A_LINE)
def test_a_line_that_no_run_wrote_is_named(line, tmp_path):
    text = f'{{"step": 0, "eval/exact": 0.5}}\n{line}\n'
    with pytest.raises(ConfigError, match=r"x.jsonl is damaged in line 2"):
        log.read_lines(text, Path("x.jsonl"))
    (tmp_path / log.LOG).write_text(text)
    for kind in (log.Log, log.Silent):
        with pytest.raises(ConfigError, match=r"metrics.jsonl is damaged in line 2"):
            kind(tmp_path, size=len(text))


@pytest.mark.parametrize("kind", [log.Log, log.Silent])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_named_and_never_written(tmp_path, kind, value):
    (tmp_path / log.LOG).touch()
    writer = kind(tmp_path)
    writer.write({"step": 0, "eval/exact": 0.5})
    with pytest.raises(RunError, match=rf"step 1: reward/mean is {value}, and .*finite numbers"):
        writer.write({"step": 1, "reward/mean": value, "entropy": 0.1})
    writer.close()
    assert writer.history == [{"step": 0, "eval/exact": 0.5}]
    assert (tmp_path / log.LOG).read_text().count("\n") == (kind is log.Log)


# ------------------------------------------------------------------ every name is explained


def documented():
    """Names in the first column of README's table of metrics."""
    table = README.split("| name | meaning | healthy |")[1].split("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    return {name for cell in cells for name in re.findall(r"`([a-z_/A-Z]+)`", cell)}


def test_the_readme_explains_every_metric_that_runs_write_and_no_other(make_config, tmp_path):
    settings = [
        {"kl_coef": 0.01, "reward_length": 0.1, "overlong": "penalty", "overlong_cache": 4,
         "importance": "token", "old_logprobs": "recompute", "entropy_coef": 0.01},
        {"algorithm": "ppo"},
        {"task": {"mixture": {"spell_backward": 1.0, "letter_counting": 1.0}}},
    ]  # fmt: skip
    written = set()
    for i, values in enumerate(settings):
        config = make_config(output_dir=str(tmp_path / str(i)), steps=1, **values)
        for line in train(config, quiet=True).history:
            written |= line.keys()
    written = {re.sub(r"exact/\w+$", "exact/TASK", name) for name in written} - {"step"}
    assert documented() == written | {"micro_batch"}  # only after memory ran out: test_oom.py


def test_console_and_report_show_metrics_that_exist():
    shown = [metric.name for metric in log.METRICS]
    assert len(shown) == len(set(shown))
    assert {*shown, *console_module.BRIEF} <= documented()
