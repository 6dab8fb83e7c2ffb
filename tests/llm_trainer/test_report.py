"""The dashboard: which runs are one configuration, what is drawn of them, what the table says."""

import json
import statistics
from pathlib import Path

import matplotlib
import nbformat
import numpy as np
import pytest
import yaml
from nbclient import NotebookClient
from PIL import Image

import llm_trainer
from llm_trainer import report
from llm_trainer.__main__ import main
from llm_trainer.config import ConfigError, build
from llm_trainer.report import figure, grouped, load_runs, notes, save, table
from llm_trainer.train import train
from policy_gradients.algorithms import PALETTE


@pytest.fixture
def make_run(tmp_path):
    """A function: a run's folder with an invented log. exact: held-out exact every 10 steps."""

    def make(name, exact, *, loss=None, steps=None, per_step=None, **values):
        folder = tmp_path / name
        folder.mkdir()
        steps = 10 * (len(exact) - 1) if steps is None else steps
        config = build({"output_dir": str(folder), "steps": steps, **values})
        loss = loss or f"{config.algorithm} (the row's)"
        settings = f"# loss: {loss}\n{yaml.safe_dump(config.model_dump(), sort_keys=False)}"
        (folder / "run.yaml").write_text(settings, encoding="utf-8")
        lines = []
        for step in range(10 * (len(exact) - 1) + 1):
            line = {"step": step}
            if step % 10 == 0:
                line["eval/exact"] = exact[step // 10]
            if step:
                line |= {"reward/mean": 1.0, "clip/high": 0.0, "time/cpu_seconds": step / 2}
                line |= {key: function(step) for key, function in (per_step or {}).items()}
            lines.append(json.dumps(line) + "\n")
        (folder / "metrics.jsonl").write_text("".join(lines), encoding="utf-8")
        return folder

    return make


def panel(page, title):
    return next(axis for axis in page.axes if axis.get_title(loc="left") == title)


def titles(page):
    return [axis.get_title(loc="left") for axis in page.axes if axis.axison]


def curve(axis, marker):
    """x and y of the configuration drawn with this marker."""
    return next(line.get_data() for line in axis.lines if line.get_marker() == marker)


# ------------------------------------------------------------------ reading runs


def test_what_is_no_run_is_named(tmp_path, make_run):
    run = make_run("run", [0.1, 0.2])
    with pytest.raises(ConfigError, match=r"nope holds no run \(no run.yaml\)"):
        load_runs([run, tmp_path / "nope"])
    with pytest.raises(ConfigError, match="at least one run's folder"):
        load_runs([])
    (run / "metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"run holds no run \(no metrics.jsonl\)"):
        load_runs([run])
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(ConfigError, match="run has logged nothing yet"):
        load_runs([run])
    (run / "metrics.jsonl").write_text('{"step": 0, "eval/ex')
    with pytest.raises(ConfigError, match="run has logged nothing yet"):
        load_runs([run])
    for text in ('{"step": 0}\n{"st\n{"step": 2}\n', '{"step": 0}\n[3]\n', '{"step": 0}\n{}\n'):
        (run / "metrics.jsonl").write_text(text)
        with pytest.raises(ConfigError, match=r"metrics.jsonl is damaged in line 2"):
            load_runs([run])
    damaged = ["lr: [", "- 1", "", "steps: 3", "algorithm: grpo", "{algorithm: [1], steps: 3}"]
    damaged += ["{algorithm: grpo, steps: x}", "{algorithm: grpo, steps: 3, ? [1, 2] : 3}"]
    for text in [text.encode() for text in damaged] + [b"\xff\xfe", b"a: \xe9"]:
        (run / "run.yaml").write_bytes(text)
        with pytest.raises(ConfigError, match=r"run.yaml is damaged"):
            load_runs([run])


def test_odd_values_in_a_runs_settings_are_drawn_all_the_same(make_run):
    """What the trainer refuses today a run of another version may have allowed."""
    folders = [make_run(name, [0.1, 0.2], seed=i) for i, name in enumerate("ab")]
    extra = "? 5\n: 6\nlr: 2026-01-01\ntask: null\nwarmstart: {2: {x: 1}}\nseed: [1]\n"
    for folder in folders:
        values = yaml.safe_load((folder / "run.yaml").read_text()) | yaml.safe_load(extra)
        (folder / "run.yaml").write_text(
            yaml.safe_dump(values | {"output_dir": str(folder)}, sort_keys=False)
        )
    runs = load_runs(folders)
    assert len(grouped(runs)) == 1
    assert "seed [1] is there twice" in table(runs)
    figure(runs)


def test_a_log_that_was_cut_in_a_line_is_read_up_to_there(make_run):
    folder = make_run("run", [0.1, 0.2, 0.3])
    log = folder / "metrics.jsonl"
    log.write_text(log.read_text()[:-30])
    (run,) = load_runs([folder])
    assert [line["step"] for line in run.lines] == list(range(20))
    said = notes(grouped([run]))
    assert any("its last line was cut off and is left out" in note for note in said)
    assert any("ends at step 19 of 20" in note for note in said)
    assert "cut off" in figure([run])._supxlabel.get_text()


def test_a_folder_named_twice_is_one_run(make_run):
    folder = make_run("run", [0.1, 0.2])
    assert len(load_runs([folder, str(folder), folder / ".." / "run"])) == 1


def test_a_run_of_an_older_version_has_the_defaults_of_new_fields(make_run):
    old, new = (make_run(name, [0.1, 0.2], seed=i) for i, name in enumerate("ab"))
    values = yaml.safe_load((old / "run.yaml").read_text())
    for name in ("track", "critic", "entropy_coef"):
        del values[name]
    del values["task"]["mixture"]
    (old / "run.yaml").write_text("# loss: grpo (the row's)\n" + yaml.safe_dump(values))
    assert len(grouped(load_runs([old, new]))) == 1


# ------------------------------------------------------------------ configurations


def test_seeds_are_grouped_and_what_differs_names_the_groups(make_run):
    folders = [make_run(f"a{seed}", [0.1, 0.2], seed=seed, threads=1 + seed) for seed in range(3)]
    folders += [make_run(f"b{seed}", [0.1, 0.2], seed=seed, lr=1e-3) for seed in range(2)]
    folders += [make_run("c", [0.1, 0.2], algorithm="rloo")]
    groups = grouped(load_runs(folders))
    assert [(g.label, len(g.runs)) for g in groups] == [
        ("grpo, lr=0.0005", 3),
        ("grpo, lr=0.001", 2),
        ("rloo, lr=0.0005", 1),
    ]
    assert groups[0].look == PALETTE["grpo"]
    assert groups[2].look == PALETTE["rloo"]
    for key in ("color", "linestyle", "marker"):
        assert groups[0].look[key] != groups[1].look[key]


def test_one_configuration_needs_no_fields_in_its_name(make_run):
    (group,) = grouped(load_runs([make_run(name, [0.1], seed=i) for i, name in enumerate("ab")]))
    assert group.label == "grpo"


def test_a_learners_own_loss_is_another_configuration(make_run):
    losses = {"a": None, "b": "mine", "c": "mine.py:f (sha256 12ab)"}
    runs = load_runs([make_run(name, [0.1], loss=loss) for name, loss in losses.items()])
    groups = grouped(runs)
    assert [g.label for g in groups] == ["grpo", "mine (own loss)", "mine.py:f (own loss)"]
    assert groups[1].look["color"] not in {look["color"] for look in PALETTE.values()}


def test_two_versions_of_one_loss_are_told_apart_by_a_folder(make_run):
    runs = load_runs([make_run(n, [0.1], loss=f"f (sha256 {n})") for n in "ab"])
    one, two = (group.label for group in grouped(runs))
    assert one.startswith("f (own loss), as in ")
    assert one != two


def test_configurations_that_differ_in_much_are_named_by_a_folder(make_run):
    values = {"lr": 1e-3, "epochs": 2, "kl_coef": 0.1, "eps_low": 0.1, "temperature": 0.9}
    one, two = grouped(load_runs([make_run("a", [0.1]), make_run("b", [0.1], **values)]))
    assert (one.label, two.label) == tuple(f"grpo, as in {g.runs[0].folder}" for g in (one, two))


def test_what_makes_a_comparison_doubtful_is_said(make_run):
    folders = [
        make_run("a", [0.1, 0.2], seed=1),
        make_run("b", [0.1, 0.2], seed=1),
        make_run("c", [0.1, 0.2], seed=2, steps=50),
        make_run("d", [0.1, 0.2], seed=2, task={"max_letters": 5}),
    ]
    runs = load_runs(folders)
    said = " | ".join(notes(grouped(runs)))
    assert "seed 1 is there twice" in said
    assert "c ends at step 10 of 50" in said
    assert "different tasks or held-out words: exact cannot be compared" in said
    assert "different tasks" in table(runs)
    assert "different tasks" in figure(runs)._supxlabel.get_text()
    assert notes(grouped(runs[:1])) == []


# ------------------------------------------------------------------ the figure


def test_a_line_is_the_mean_of_the_seeds_and_the_band_reaches_to_both_ends(make_run):
    exact = [[0.4, 0.6, 0.9], [0.4, 0.8, 0.8], [0.4, 0.7, 0.7]]
    folders = [make_run(f"a{i}", values, seed=i) for i, values in enumerate(exact)]
    axis = panel(figure(load_runs(folders)), "Held-out exact")
    x, y = curve(axis, PALETTE["grpo"]["marker"])
    assert list(x) == [0, 10, 20]
    assert np.allclose(y, np.mean(exact, 0))
    (band,) = axis.collections
    corners = {(int(a), round(b, 6)) for a, b in band.get_paths()[0].vertices}
    assert corners == {(0, 0.4), (10, 0.6), (10, 0.8), (20, 0.7), (20, 0.9)}


def test_numbers_of_single_steps_are_running_means_and_the_figure_says_so(make_run):
    def noise(step):
        return float(np.random.default_rng(step).normal())

    folder = make_run("a", [0.1] * 21, per_step={"entropy": noise})  # 200 steps: 9 to a mean
    page = figure(load_runs([folder]))
    _, y = curve(panel(page, "Entropy"), PALETTE["grpo"]["marker"])
    assert y[100] == pytest.approx(np.mean([noise(step) for step in range(97, 106)]))
    assert y[0] == pytest.approx(np.mean([noise(step) for step in range(1, 6)]))
    assert "running means over 9 steps" in page._supxlabel.get_text()


def test_panels_without_data_are_hidden_and_flat_zeros_are_named(make_run):
    page = figure(load_runs([make_run("a", [0.1, 0.2], per_step={"kl/old": lambda s: 1e-13})]))
    assert titles(page) == ["Held-out exact", "Reward"]
    said = page._supxlabel.get_text()
    assert "0 at every step: Clipped, advantage above 0; KL to the sampling policy." in said
    per_step = {"critic/loss": lambda s: 1.0 / s, "clip/high": lambda s: 0.01}
    page = figure(load_runs([make_run("b", [0.1, 0.2], algorithm="ppo", per_step=per_step)]))
    expected = ["Held-out exact", "Reward", "Clipped, advantage above 0", "Critic loss"]
    assert titles(page) == expected


def test_a_mixture_has_a_panel_for_each_task(make_run):
    folder = make_run("a", [0.1, 0.2])
    log = folder / "metrics.jsonl"
    log.write_text(
        log.read_text().replace('"eval/exact": ', '"eval/exact/sums": 0.5, "eval/exact": ')
    )
    assert titles(figure(load_runs([folder])))[:2] == ["Held-out exact", "… of sums"]


def test_mean_and_band_end_with_the_shortest_seed(make_run):
    folders = [make_run("a", [0.1, 0.2, 0.3]), make_run("b", [0.3, 0.4], seed=1, steps=20)]
    axis = panel(figure(load_runs(folders)), "Held-out exact")
    x, y = curve(axis, PALETTE["grpo"]["marker"])
    assert list(x) == [0, 10]
    assert np.allclose(y, [0.2, 0.3])
    assert any(list(line.get_xdata()) == [10, 20] for line in axis.lines)  # the longer goes on


def test_a_skipped_step_of_one_seed_leaves_the_others_mean(make_run):
    folders = [make_run(n, [0.1, 0.2], seed=i, per_step={"grad_norm": lambda s, i=i: 1.0 + 2 * i})
               for i, n in enumerate("ab")]  # fmt: skip
    log = folders[0] / "metrics.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    del lines[4]["grad_norm"]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    axis = panel(figure(load_runs(folders)), "Gradient norm before clipping")
    _, y = curve(axis, PALETTE["grpo"]["marker"])
    assert list(y) == [2, 2, 2, 3, 2, 2, 2, 2, 2, 2]


def test_every_panel_has_a_unit_and_the_legend_every_configuration(make_run):
    folders = [make_run(name, [0.1, 0.2], algorithm=name) for name in PALETTE]
    page = figure(load_runs(folders))
    assert all(axis.get_ylabel() for axis in page.axes if axis.axison)
    assert panel(page, "Reward").get_xlabel() == "step"
    (legend,) = page.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"{n} (1 seed)" for n in PALETTE]


def test_drawing_changes_no_setting_of_matplotlib(make_run, tmp_path):
    before = dict(matplotlib.rcParams)
    save(figure(load_runs([make_run("a", [0.1, 0.2])])), tmp_path / "a.png")
    assert dict(matplotlib.rcParams) == before


def test_a_figure_is_saved_by_its_ending(make_run, tmp_path):
    page = figure(load_runs([make_run("a", [0.1, 0.2])]))
    save(page, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.width > 1000
    save(page, tmp_path / "a.svg")
    assert "<svg" in (tmp_path / "a.svg").read_text()
    with pytest.raises(ConfigError, match=r"a.doc: the ending must be one of .*png"):
        save(page, tmp_path / "a.doc")
    with pytest.raises(ConfigError, match="no folder"):
        save(page, tmp_path / "no" / "a.png")


# ------------------------------------------------------------------ the table


def test_the_table_counts_costs_and_those_who_never_got_there(make_run):
    exact = {"a": [0.4, 0.85, 0.9, 0.96], "b": [0.4, 0.6, 0.8, 0.9], "c": [0.4, 0.5, 0.6, 0.7]}
    runs = load_runs([make_run(n, e, seed=i) for i, (n, e) in enumerate(exact.items())])
    row = [cell.strip() for cell in table(runs).splitlines()[2].split("|")[1:-1]]
    last = [0.96, 0.9, 0.7]
    assert row == [
        "grpo", "3", "30",
        "20 (10–30); 2 of 3", "10 (5–15); 2 of 3",
        "30; 1 of 3", "15; 1 of 3",
        f"{100 * statistics.mean(last):.1f} ± {100 * statistics.stdev(last):.1f} %",
    ]  # fmt: skip
    one = table(runs[2:]).splitlines()[2]
    assert one == "| grpo | 1 | 30 | never | never | never | never | 70.0 % |"


def test_a_start_above_a_level_costs_nothing(make_run):
    row = table(load_runs([make_run("a", [0.9, 0.91])])).splitlines()[2]
    assert row == "| grpo | 1 | 10 | 0 | 0 | never | never | 91.0 % |"


# ------------------------------------------------------------------ the command, and notebooks


def test_the_command_draws_and_prints_a_real_run(make_config, tmp_path, capsys):
    folders = [str(tmp_path / name) for name in ("one", "two")]
    for seed, folder in enumerate(folders):
        train(make_config(output_dir=folder, seed=seed, eval_every=1), quiet=True)
    out = tmp_path / "both.png"
    assert main(["report", *folders, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "| grpo | 2 | 2 |" in shown
    assert str(out) in shown
    with Image.open(out) as image:
        assert image.height > 500
    assert main(["report", str(tmp_path), "--out", str(out)]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_in_a_notebook_the_console_updates_and_the_figure_shows(make_run):
    """A real kernel: one display of three steps, and one picture."""
    folder = make_run("a", [0.1, 0.2])
    show = (
        "from llm_trainer.console import Console\n"
        "console = Console('a run', 3, quiet=False)\n"
        "for step in (1, 2, 3): console.step({'step': step, 'entropy': 0.1})\n"
    )
    draw = f"from llm_trainer.report import *\nfigure(load_runs([{str(folder)!r}]))"
    cells = [nbformat.v4.new_code_cell(source) for source in (show, draw)]
    book = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(book, timeout=120, kernel_name="python3").execute()
    (block,) = book.cells[0].outputs
    assert "step 3/3" in block.data["text/plain"]
    assert "<pre" in block.data["text/html"]
    (picture,) = book.cells[1].outputs
    assert "image/png" in picture.data


def test_matplotlib_is_imported_by_the_report_only():
    rooms = Path(llm_trainer.__file__).parent.glob("*.py")
    users = {
        p.name
        for p in rooms
        if "import matplotlib" in p.read_text() or "from matplotlib" in p.read_text()
    }
    assert users == {Path(report.__file__).name}
