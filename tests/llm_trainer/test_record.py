"""The token-level record of a step: it is true, it changes nothing, and only records are loaded."""

import copy
import json

import pytest
import torch

from llm_trainer.config import ConfigError, build
from llm_trainer.record import RecordError, load_record
from llm_trainer.train import train
from policy_gradients.algorithms import ALGORITHMS


def without_times(history):
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in history]


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def recorded(model_folder, tmp_path_factory):
    """A run of three updates per batch with a KL term; (its folder, its log), records of 1 and 3.

    The learning rate is large, so that ratios leave 1 and tokens are clipped within three updates.
    """
    folder = tmp_path_factory.mktemp("recorded") / "run"
    config = build(
        {
            "model": str(model_folder), "output_dir": str(folder), "prompts": 4, "group": 4,
            "micro_batch": 2, "steps": 3, "eval_words": 8, "epochs": 3, "kl_coef": 0.04,
            "lr": 3e-3, "lr_warmup": 0, "record_steps": [1, 3],
        }
    )  # fmt: skip
    return folder, train(config, quiet=True).history


@pytest.fixture
def record(recorded):
    return load_record(recorded[0] / "steps/step_0003.json")


@pytest.fixture
def plain(record):
    """The same as a dict that may be spoilt."""
    return copy.deepcopy(record.model_dump())


def column(record, pick):
    """(tokens,) over all tokens of the record, in order."""
    return torch.tensor(
        [x for group in record.groups for response in group.responses for x in pick(response)],
        dtype=torch.float64,
    )


# ------------------------------------------------------------------ what is written is true


def test_a_record_describes_the_step_that_was_logged(recorded, record):
    line = recorded[1][3]
    assert [record.step, record.updates, record.group, len(record.groups)] == [3, 3, 4, 4]
    assert record.counts.model_dump() == {"sequences": 16, "tokens": line["tokens"], "length": 12}
    assert torch.tensor(record.rewards).mean().item() == pytest.approx(line["reward/mean"])
    assert record.run.model_dump() == {
        "name": "run", "algorithm": "grpo", "model": record.run.model, "loss": "grpo (the row's)",
        "knobs": {"eps_low": 0.2, "eps_high": 0.2}, "kl": "loss", "kl_coefficient": 0.04,
        "epochs": 3, "seed": 0,
    }  # fmt: skip
    assert "/" not in record.run.model


def test_ratios_and_clipping_of_the_last_update_are_those_of_the_log(recorded, record):
    """The record's log-probabilities give the numbers that the trainer measured on its own."""
    line = recorded[1][3]
    old = column(record, lambda r: r.logp_old)
    advantages = column(record, lambda r: r.advantages * len(r.tokens))
    for update in (0, 2):
        logp = column(record, lambda r: r.updates[update].logp)  # noqa: B023  (used at once)
        ratio = (logp - old).exp()
        if update == 0:
            assert (ratio - 1).abs().max() < 1e-4
    high = ((ratio > 1.2) & (advantages > 0)).double().mean().item()
    low = ((ratio < 0.8) & (advantages < 0)).double().mean().item()
    assert high > 0
    assert low > 0
    assert [high, low] == pytest.approx([line["clip/high"], line["clip/low"]], abs=1e-6)
    assert ratio.max().item() == pytest.approx(line["ratio/max"], rel=1e-4)
    assert ratio.min().item() == pytest.approx(line["ratio/min"], rel=1e-4)


def test_every_token_has_its_text_and_the_end_token_is_there(record, policy):
    for group in record.groups:
        assert "Spell this word backward" in group.prompt
        for response in group.responses:
            assert response.ended == (response.tokens[-1] == "<|im_end|>")
            visible = response.tokens[:-1] if response.ended else response.tokens
            assert "".join(visible) == response.text
            assert policy.text(response.token_ids) == response.text
            parts = response.parts
            assert response.reward == pytest.approx(parts["correctness"] + 0.1 * parts["format"])


def test_the_reference_is_the_start_and_numbers_have_six_digits(recorded):
    first = load_record(recorded[0] / "steps/step_0001.json")
    start, reference = (
        column(first, lambda r: r.updates[0].logp),
        column(first, lambda r: r.logp_ref),
    )
    assert (start - reference).abs().max() < 1e-4
    assert all(x == float(f"{x:.6g}") for x in start.tolist())


def test_a_learners_advantages_can_be_computed_again_from_the_rewards(record):
    again = ALGORITHMS["grpo"].advantage(torch.tensor(record.rewards, dtype=torch.float64))
    for group in record.groups:
        for member, response in enumerate(group.responses):
            assert len(response.advantages) == 1
            assert response.advantages[0] == pytest.approx(
                again[group.index, member].item(), abs=2e-5
            )


def test_groups_without_contrast_are_recorded_although_they_are_not_computed(make_config, tmp_path):
    """Without a KL term a group whose rewards are all alike is dropped; the record keeps it."""
    config = make_config(
        group=2, prompts=16, micro_batch=16, steps=2, epochs=2, record_steps=[1, 2],
        reward_correctness=0.0,
    )  # fmt: skip
    history = train(config, quiet=True).history
    for step in (1, 2):
        record = load_record(tmp_path / f"run/steps/step_000{step}.json")
        status = [group.status for group in record.groups]
        assert status.count("trained") == history[step]["groups/trained"]
        assert "silent" in status
        for group in record.groups:
            if group.status == "silent":
                assert {r.reward for r in group.responses} == {group.responses[0].reward}
                assert all(r.advantages == [0.0] for r in group.responses)
                assert len(group.responses[0].updates) == record.updates


def test_groups_that_dynamic_sampling_replaced_are_recorded_but_not_counted(make_config, tmp_path):
    config = make_config(
        algorithm="dapo", group=2, prompts=8, micro_batch=8, record_steps=[1], resample_limit=2
    )
    train(config, quiet=True)
    record = load_record(tmp_path / "run/steps/step_0001.json")
    discarded = [group for group in record.groups if group.status == "discarded"]
    assert discarded
    assert len(record.rewards) == len(record.groups) - len(discarded)
    for group in discarded:
        assert group.index is None
        assert len({r.parts["correct"] for r in group.responses}) == 1
        assert all(r.advantages is None for r in group.responses)


def test_a_step_that_was_skipped_has_a_record_without_updates(make_config, tmp_path):
    """Rewards that are all 0: no group can teach, no update is made."""
    config = make_config(steps=1, record_steps=[1], reward_correctness=0.0, reward_format=0.0)
    train(config, quiet=True)
    record = load_record(tmp_path / "run/steps/step_0001.json")
    assert record.updates == 0
    assert {group.status for group in record.groups} == {"silent"}


# ------------------------------------------------------------------ it changes nothing


def test_recording_changes_no_number_of_the_run(make_config, tmp_path):
    settings = {"steps": 3, "epochs": 2, "prompts": 4, "group": 3, "kl_coef": 0.01}
    one, two = (
        train(
            make_config(output_dir=str(tmp_path / name), record_steps=steps, **settings), quiet=True
        )
        for name, steps in (("without", []), ("with", [1, 2, 3]))
    )
    assert without_times(one.history) == without_times(two.history)
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "with" / name).read_bytes() == (tmp_path / "without" / name).read_bytes()
    assert not (tmp_path / "without/steps").exists()


def test_a_resumed_run_writes_the_same_record(make_config, tmp_path, crash):
    """Killed after step 3 with its checkpoint at step 2: step 3 is recorded again, the same."""
    settings = {"steps": 4, "save_every": 2, "record_steps": [2, 3, 4]}
    train(make_config(output_dir=str(tmp_path / "whole"), **settings), quiet=True)

    cut = make_config(output_dir=str(tmp_path / "cut"), **settings)
    crash(cut)
    assert set(contents(tmp_path / "cut/steps")) == {"step_0002.json", "step_0003.json"}
    train(cut, resume=True, quiet=True)

    named = [contents(tmp_path / name / "steps") for name in ("whole", "cut")]
    renamed = {k: v.replace(b'"whole"', b'"cut"') for k, v in named[0].items()}
    assert renamed == named[1]
    assert set(named[1]) == {f"step_000{n}.json" for n in (2, 3, 4)}


def test_record_steps_may_change_when_a_run_is_resumed(make_config, tmp_path):
    train(make_config(steps=1), quiet=True)
    train(make_config(steps=2, record_steps=[2]), resume=True, quiet=True)
    assert load_record(tmp_path / "run/steps/step_0002.json").step == 2


def test_overwriting_discards_records_and_nothing_else(make_config, tmp_path):
    steps = tmp_path / "run/steps"
    steps.mkdir(parents=True)
    (steps / "step_0001.json").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=r"already holds steps/step_0001.json, which no run"):
            train(make_config(steps=1), overwrite=overwrite, quiet=True)
    assert (steps / "step_0001.json").read_text() == "mine"
    (steps / "step_0001.json").unlink()
    train(make_config(steps=2, record_steps=[1, 2]), quiet=True)
    (steps / "notes.txt").write_text("mine")
    train(make_config(steps=1, record_steps=[1]), overwrite=True, quiet=True)
    assert set(contents(steps)) == {"step_0001.json", "notes.txt"}
    (steps / "notes.txt").unlink()
    train(make_config(steps=1), overwrite=True, quiet=True)
    assert not steps.exists()


@pytest.mark.parametrize("steps", [[0], [-1], [True], [1, 1], [1.5], 20, "all", [[1]], None])
def test_impossible_record_steps_are_refused(make_config, steps):
    with pytest.raises(ConfigError, match=r"record_steps = .*a list of different step numbers"):
        make_config(record_steps=steps)


def test_a_step_that_the_run_never_reaches_is_refused(make_config):
    with pytest.raises(ConfigError, match=r"record_steps = \[2, 3\]: the run has only steps = 2"):
        make_config(record_steps=[2, 3])


# ------------------------------------------------------------------ only records are loaded


def test_a_record_survives_writing_and_cutting(record, tmp_path):
    record.save(tmp_path / "again.json")
    assert load_record(tmp_path / "again.json") == record
    assert load_record(str(tmp_path / "again.json")) == load_record(record.model_dump()) == record
    part = record.take([2, 0])
    part.save(tmp_path / "part.json")
    part = load_record(tmp_path / "part.json")
    assert [group.prompt for group in part.groups] == [
        record.groups[2].prompt,
        record.groups[0].prompt,
    ]
    assert part.counts == record.counts
    assert part.rewards == record.rewards


def spoilt(change):
    def spoil(data):
        change(data)
        return data

    return spoil


def response(data):
    return data["groups"][1]["responses"][2]


NOT_A_RECORD = {
    "a list": (lambda data: [data], "a path or a mapping, not a list"),
    "an empty dict": (lambda data: {}, "no step record"),
    "a later schema": (lambda data: data | {"schema_version": 2}, "schema_version is 2.*reads 1"),
    "no groups": (
        lambda data: data | {"groups": []},
        r"groups = \[\]: list should have at least 1 item",
    ),
    "a missing field": (spoilt(lambda d: d.pop("counts")), "counts is missing"),
    "an unknown field": (lambda data: data | {"colour": 1}, "colour: a record has no such field"),
    "a missing token list": (
        spoilt(lambda d: response(d).pop("logp_old")),
        r"groups\[1\].responses\[2\].logp_old is missing",
    ),
    "a short list": (
        spoilt(lambda d: response(d)["logp_old"].pop()),
        r"groups\[1\].responses\[2\].logp_old: \d+ entries for \d+ tokens",
    ),
    "a short update": (
        spoilt(lambda d: response(d)["updates"][1]["logp"].pop()),
        r"responses\[2\].updates\[1\].logp: \d+ entries",
    ),
    "a NaN": (
        spoilt(lambda d: response(d)["logp_old"].__setitem__(0, float("nan"))),
        r"logp_old\[0\] = nan: input should be a finite number",
    ),
    "text for a number": (
        spoilt(lambda d: response(d)["logp_old"].__setitem__(0, "x")),
        r"logp_old\[0\] = x: input should be a valid number",
    ),
    "a probability above 1": (
        spoilt(lambda d: response(d)["logp_old"].__setitem__(0, 0.5)),
        "logp_old: a log-probability above 0",
    ),
    "an unequal number of updates": (
        spoilt(lambda d: response(d)["updates"].pop()),
        r"groups\[1\]: every response must have the same 3 updates",
    ),
    "a lost response": (
        spoilt(lambda d: d["groups"][1]["responses"].pop()),
        r"groups\[1\].responses: 3, but group = 4",
    ),
    "a reward that is not the table's": (
        spoilt(lambda d: response(d).__setitem__("reward", 7.0)),
        r"groups\[1\]: its rewards are not those of row 1",
    ),
    "a reward whose square is infinite": (
        spoilt(lambda d: response(d).__setitem__("reward", 1e160)),
        r"responses\[2\].reward = 1e\+160: too large for a standard deviation; at most 1e18",
    ),
    "such a reward outside the groups": (
        spoilt(lambda d: d["rewards"][1].__setitem__(0, -1e160)),
        r"rewards\[1\]\[0\] = -1e\+160: too large for",
    ),
    "a group twice": (spoilt(lambda d: d["groups"].append(d["groups"][0])), "the same index"),
    "a reference for some": (
        spoilt(lambda d: response(d).__setitem__("logp_ref", None)),
        "logp_ref must be there for all responses or for none",
    ),
    "counts too small": (
        spoilt(lambda d: d["counts"].__setitem__("tokens", 3)),
        "counts.tokens = 3, but the groups shown already hold",
    ),
    "an empty response": (
        spoilt(lambda d: response(d).__setitem__("tokens", [])),
        "at least one token",
    ),
}


@pytest.mark.parametrize("name", NOT_A_RECORD)
def test_what_is_no_record_is_refused_in_one_sentence(plain, name):
    spoil, message = NOT_A_RECORD[name]
    with pytest.raises(RecordError, match=message) as refused:
        load_record(spoil(plain))
    assert "\n" not in str(refused.value)


def test_files_that_are_no_records_are_refused(tmp_path):
    with pytest.raises(RecordError, match=r"nothing\.json: no such file"):
        load_record(tmp_path / "nothing.json")
    with pytest.raises(RecordError, match="is a directory"):
        load_record(tmp_path)
    for name, text in (("a.json", "{"), ("b.json", ""), ("c.json", "\x00\xff")):
        (tmp_path / name).write_bytes(text.encode("latin-1"))
        with pytest.raises(RecordError, match="not a JSON file"):
            load_record(tmp_path / name)
    (tmp_path / "d.json").write_text(json.dumps([1, 2]))
    with pytest.raises(RecordError, match="not a list"):
        load_record(tmp_path / "d.json")
