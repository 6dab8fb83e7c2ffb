"""The words, the split by word, and the rewards with their corner cases; mixtures of tasks."""

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from reasoning_gym.factory import create_dataset

from llm_trainer.config import ConfigError, TaskConfig, build
from llm_trainer.task import Generated, Spelling, WordStream, is_hidden, load_task, name_of, split
from llm_trainer.train import train


def test_the_split_is_by_word_whatever_its_case(spelling):
    held_out = {w.lower() for w in spelling.held_out}
    assert len(held_out) == len(spelling.held_out) == 1000
    assert not held_out & {w.lower() for w in spelling.train}
    assert {len(w) for w in spelling.train} == {3, 4, 5, 6, 7}
    # In this list some words come in two spellings; both must be on one side.
    train, hidden = split(["Abe", "abe", "cat", "dog"], 2)
    assert not {w.lower() for w in train} & {w.lower() for w in hidden}


def test_splitting_by_seed_would_leak():
    from reasoning_gym.algorithmic.spell_backward import SpellBackwardConfig, SpellBackwardDataset

    one, two = (SpellBackwardDataset(SpellBackwardConfig(seed=s, size=50)) for s in (42, 43))
    answers = [{d[i]["answer"] for i in range(50)} for d in (one, two)]
    assert len(answers[0] & answers[1]) >= 48


def test_a_smaller_held_out_set_is_part_of_the_larger(spelling):
    fewer = Spelling(TaskConfig(held_out=100))
    assert set(fewer.held_out) < set(spelling.held_out)


def test_more_held_out_words_than_there_are_is_refused():
    with pytest.raises(ConfigError, match=r"task\.held_out = 99999999.*only \d+ words"):
        Spelling(TaskConfig(held_out=99_999_999))


def test_the_entry_is_the_datasets_own(spelling):
    entry = spelling.entry("orange")
    assert entry["question"] == "Spell this word backward (example: sun -> nus): orange"
    assert entry["answer"] == "egnaro"


def tagged(text):
    return f"<answer>{text}</answer>"


@pytest.mark.parametrize(
    ("word", "answer", "correctness", "exact"),
    [
        ("orange", "egnaro", 1.0, 1.0),
        ("orange", "EGNARO", 1.0, 0.0),  # the score ignores case, equality does not
        ("orange", "egnarx", 5 / 6, 0.0),
        ("orange", "orange", 2 / 6, 0.0),  # the middle "an" of "egnaro" is "na": o≠e r≠g a≠n …
        ("orange", "", 0.0, 0.0),
        ("notebook", "koobeton", 1.0, 1.0),  # eight letters
    ],
)
def test_scores(spelling, word, answer, correctness, exact):
    if (word, answer) == ("orange", "orange"):
        correctness = sum(a == b for a, b in zip("orange", "egnaro", strict=True)) / 6
    rewards = spelling.score(tagged(answer), spelling.entry(word))
    assert rewards.correctness == pytest.approx(correctness)
    assert rewards.exact == exact


@pytest.mark.parametrize("letters", range(3, 11))
def test_the_right_answer_followed_by_junk_earns_the_cap_at_every_length(spelling, letters):
    word = "abcdefghij"[:letters]
    entry = spelling.entry(word)
    junk = entry["answer"] + "zzz"
    rewards = spelling.score(tagged(junk), entry)
    assert rewards.correctness == pytest.approx(0.8)
    assert rewards.correctness <= 0.8
    assert rewards.exact == 0.0


def test_reasoning_gyms_own_score_needs_the_cap(spelling):
    """Without the cap, junk behind the right answer scores above 0.8 at 6, 7, 9, 10 letters."""
    uncapped = [
        spelling.dataset.score_answer(
            ("abcdefghij"[:n])[::-1] + "z", spelling.entry("abcdefghij"[:n])
        )
        for n in range(3, 11)
    ]
    assert [n for n, score in zip(range(3, 11), uncapped, strict=True) if score > 0.8] == [
        6,
        7,
        9,
        10,
    ]
    assert uncapped[9 - 3] > 1.0


def test_the_format_part_matches_the_whole_response(spelling):
    entry = spelling.entry("sun")
    assert spelling.score("<answer>nus</answer>", entry).format == 1
    for text in ("x<answer>nus</answer>", "<answer>nus</answer>x", "<answer>a</answer>" * 2, "nus"):
        assert spelling.score(text, entry).format == 0
    # extract_answer takes the last tag and ignores junk, so correctness alone cannot see it.
    assert spelling.score("<answer>zzz</answer>junk<answer>nus</answer>", entry).correctness == 1
    assert spelling.score("nus", entry).correctness == 0


@pytest.mark.parametrize(
    ("response", "ended", "exact"),
    [
        ("<answer>nus</answer>", True, 1),
        ("<answer>nus</answer>", False, 0),  # cut at the token limit
        ("<answer>nus</answer></answer>", True, 0),
        ("<answer>nus</answer>nus", True, 0),
        ("x<answer>nus</answer>", True, 0),
        ("<answer>x</answer><answer>nus</answer>", True, 0),
        ("<answer> nus</answer>", True, 0),  # extract_answer strips: full score, not exact
        ("<answer>nus\n</answer>", True, 0),
        ("<answer>Nus</answer>", True, 0),
        ("nus", True, 0),
    ],
)
def test_exact_is_equality_of_the_whole_response(spelling, response, ended, exact):
    rewards = spelling.score(response, spelling.entry("sun"), ended=ended)
    assert rewards.exact == exact
    assert rewards.format <= ended
    if response != "nus":
        assert rewards.correctness == 1.0


def test_the_stream_visits_every_word_once_an_epoch_and_goes_on_from_its_position():
    words = list("abcdefg")
    stream = WordStream(words, seed=3)
    first, second = stream.take(7), stream.take(7)
    assert sorted(first) == sorted(second) == words
    assert first != second
    other = WordStream(words, seed=3)
    other.position = 5
    assert other.take(9) == (first + second)[5:]


def test_the_default_task_draws_the_words_it_always_drew(spelling):
    """Recorded before there were other tasks; a change would make old and new runs differ."""

    def digest(words):
        return hashlib.md5(" ".join(words).encode()).hexdigest()

    task = load_task(TaskConfig())
    assert type(task) is Spelling
    assert digest(task.held_out) == "c830419a56e14cd84ebb89aa8df0226c"
    assert digest(task.stream(0).take(5000)) == "77db5e703561c0452ff60b0bafe54780"
    assert digest(task.stream(1).take(5000)) == "ce731e5d1ceac2c950fd9a903cbf2d54"


# ---------------------------------------------------------------- other tasks and mixtures

FOUR = {"leg_counting": 3, "basic_arithmetic": 1, "letter_counting": 1, "word_sorting": 1}


@pytest.fixture(scope="module")
def four():
    """Tasks of different kind: word problem, sums, letters of a text, order of words."""
    return load_task(TaskConfig(mixture=FOUR, held_out=50))


def questions(entries):
    return [entry["question"] for entry in entries]


def test_no_held_out_question_is_drawn_for_training_whatever_the_seed(four):
    held_out = questions(four.held_out)
    assert len(set(held_out)) == len(held_out) == 4 * 50
    assert all(map(is_hidden, held_out))
    for seed in (0, 1, 2**62):
        assert not any(map(is_hidden, questions(four.stream(seed).take(500))))


def test_a_split_by_seed_would_leak_and_a_split_by_item_would_too():
    """The next seed has the same items one place further on, and items repeat questions."""
    one, two = (create_dataset("leg_counting", seed=seed, size=100) for seed in (42, 43))
    assert len(set(questions(one)) & set(questions(two))) >= 99
    options = {"min_animals": 1, "max_animals": 1, "max_instances": 3}
    small = create_dataset("leg_counting", seed=0, size=400, **options)
    assert set(questions(small)[:200]) & set(questions(small)[200:])


def test_a_small_task_that_repeats_its_questions_still_keeps_the_sides_apart():
    options = {"leg_counting": {"min_animals": 1, "max_animals": 1, "max_instances": 3}}
    task = load_task(TaskConfig(mixture={"leg_counting": 1}, options=options, held_out=20))
    drawn = set(questions(task.stream(0).take(2000)))
    assert 40 < len(drawn) < 111  # 37 animals, one to three of each, a quarter held out
    assert not drawn & set(questions(task.held_out))


def test_the_mixture_keeps_its_shares_and_held_out_questions_take_turns(four):
    drawn = Counter(map(name_of, four.stream(0).take(1200)))
    for name, weight in FOUR.items():  # binomial: four standard deviations are 70 of 1,200
        assert drawn[name] == pytest.approx(1200 * weight / 6, abs=70)
    assert [name_of(e) for e in four.held_out[:8]] == 2 * list(FOUR)


@pytest.mark.parametrize("mixture", [{"spell_backward": 1}, {"leg_counting": 1}, FOUR,
                                     {"spell_backward": 1, "leg_counting": 2}])  # fmt: skip
def test_a_stream_goes_on_from_its_position_and_seeds_differ(mixture):
    task = load_task(TaskConfig(mixture=mixture, held_out=20))
    whole = task.stream(5).take(40)
    for position in (0, 1, 17, 39):
        again = task.stream(5)
        again.position = position
        assert again.take(40 - position) == whole[position:]
        assert again.position == 40
    assert task.stream(6).take(40) != whole


def test_another_process_holds_out_and_draws_the_same(four):
    """Nothing may hang on Python's hash seed, which differs from process to process."""
    code = (
        "import sys, json; from llm_trainer.config import TaskConfig\n"
        "from llm_trainer.task import load_task\n"
        "task = load_task(TaskConfig(mixture=json.loads(sys.argv[1]), held_out=50))\n"
        "print(json.dumps([task.held_out, task.stream(3).take(40)]))"
    )
    here = json.dumps([four.held_out, four.stream(3).take(40)])
    there = subprocess.run(
        [sys.executable, "-c", code, json.dumps(FOUR)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "123", "OMP_NUM_THREADS": "1"},
        timeout=100,
    ).stdout
    assert json.loads(there) == json.loads(here)


def test_words_in_a_mixture_keep_their_split_and_their_scores(spelling):
    task = load_task(TaskConfig(mixture={"spell_backward": 1, "leg_counting": 1}))
    assert task.tasks["spell_backward"].held_out == spelling.held_out
    words = [e for e in task.stream(0).take(200) if name_of(e) == "spell_backward"]
    assert 60 < len(words) < 140
    assert {e["metadata"]["word"] for e in words} <= set(spelling.train)
    junk = tagged(words[0]["answer"] + "zzz")
    assert task.score(junk, words[0]).correctness == pytest.approx(0.8)
    assert task.score(tagged(words[0]["answer"].swapcase()), words[0]).exact == 0
    assert task.label(words[0]) == words[0]["metadata"]["word"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"mixture": {"spel_backward": 1}}, "no task 'spel_backward'; did you mean 'spell_back"),
        ({"mixture": {"composite": 1}}, "no task 'composite'"),
        ({"mixture": {"leg_counting": 1}, "options": {"leg_counting": {"max_animal": 3}}},
         "leg_counting has no setting 'max_animal'; did you mean 'max_animals'"),
        ({"mixture": {"leg_counting": 1}, "options": {"leg_counting": {"seed": 3}}},
         "leg_counting has no setting 'seed'"),  # the split must not depend on it
        ({"mixture": {"leg_counting": 1}, "options": {"leg_counting": {"max_animals": 99}}},
         "leg_counting refuses max_animals = 99: max_animals must be <= number of available"),
        ({"mixture": {"leg_counting": 1}, "options": {"leg_counting": {"max_animals": "x"}}},
         "leg_counting refuses max_animals = 'x'"),
        ({"mixture": {"word_sorting": 1}, "options": {"word_sorting": {"transformation": "up"}}},
         "word_sorting refuses transformation = 'up'"),
        ({"mixture": {"leg_counting": 1}, "held_out": 40,
          "options": {"leg_counting": {"max_animals": 1, "min_animals": 1, "max_instances": 2}}},
         "task.held_out = 40: .*74 different questions, .* on the held-out side"),
        *(
            ({"mixture": {"leg_counting": 1}, "options": {"leg_counting": {"size": size}}},
             f"leg_counting size = .*{size}.*: a whole number from 1 to 10000000")
            for size in (1.5, "10", 0, True, 10**20)
        ),
        ({"mixture": {"leg_counting": 1}, "options": {"leg_counting": {"max_animals": 2.5}}},
         "leg_counting refuses max_animals = 2.5"),
        ({"mixture": {"leg_counting": 1}, "options": {"leg_counting": {"size": 5}}},
         "5 items of leg_counting have 5 different questions"),
    ],
)  # fmt: skip
def test_a_task_that_cannot_be_is_refused_by_name(values, says):
    with pytest.raises(ConfigError, match=says):
        load_task(TaskConfig(**values))


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ({"mixture": {}}, "name one task or more"),
        ({"mixture": {"leg_counting": 0}}, "weights above 0"),
        ({"mixture": {"leg_counting": True}}, "true or false is not a value"),
        ({"mixture": {"leg_counting": 1e308, "spell_backward": 1e308}}, "weights above 0, to 1000"),
        ({"mixture": {"leg_counting": "much"}}, "task.mixture.leg_counting = 'much'"),
        ({"mixture": {"leg_counting": float("inf")}}, "finite"),
        ({"options": {"leg_counting": {}}}, "leg_counting is not in task.mixture"),
        ({"options": {"spell_backward": {"min_word_len": 3}}}, "task.min_letters"),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused_before_anything_is_imported(task, says):
    with pytest.raises(ConfigError, match=says):
        build({"task": task})


def test_yaml_text_stands_for_reasoning_gyms_enumerations():
    options = {"word_sorting": {"transformation": "uppercase"}}
    task = load_task(TaskConfig(mixture={"word_sorting": 1}, options=options, held_out=5))
    words = task.held_out[0]["metadata"]["transformed_words"]
    assert words == [word.upper() for word in words]


# ---------------------------------------------------------------- rewards of other tasks


def test_the_right_answer_is_exact_in_every_kind_of_task(four):
    for entry in four.held_out[:40]:
        rewards = four.score(tagged(entry["answer"]), entry)
        assert (rewards.correctness, rewards.format, rewards.exact) == (1, 1, 1)
        assert four.score(tagged(entry["answer"]), entry, ended=False).exact == 0
        assert four.score(f"x{tagged(entry['answer'])}", entry).exact == 0


@pytest.fixture(scope="module")
def legs():
    """A task with reasoning-gym's default score, and a question whose answer is a number."""
    task = load_task(TaskConfig(mixture={"leg_counting": 1}, held_out=5))
    return task, next(entry for entry in task.held_out if len(entry["answer"]) == 3)


@pytest.mark.parametrize(
    ("response", "correctness", "formatted", "exact"),
    [
        ("<answer>{0}</answer>", 1, 1, 1),
        ("<answer> {0}\n</answer>", 1, 1, 1),  # blanks are stripped
        ("{0}", 0, 0, 0),  # no tag
        ("", 0, 0, 0),
        ("<answer></answer>", 0, 1, 0),
        ("<answer> </answer>", 0, 1, 0),
        ("<answer>{0}", 0, 0, 0),
        ("<answer>{0}</answer><answer>{0}</answer>", 1, 0, 0),
        ("<answer>7</answer><answer>{0}</answer>", 1, 0, 0),  # the last one counts
        ("<answer>{0}</answer><answer>7</answer>", 0, 0, 0),
        ("<answer><answer>{0}</answer>", 3 / 11, 0, 0),  # nested: the text then holds a tag
        ("<answer><answer>{0}</answer></answer>", 3 / 11, 0, 0),
        ("<answer>{0}</answer> because", 1, 0, 0),
        ("<think>hm</think><answer>{0}</answer>", 1, 0, 0),
        ("<answer>{0}<|im_start|></answer>", 3 / 15, 0, 0),
        ("<answer>{0}<|endoftext|></answer>", 3 / 16, 0, 0),
        ("<ANSWER>{0}</ANSWER>", 0, 0, 0),
        ("<answer>{0} legs</answer>", 3 / 8, 1, 0),  # reasoning-gym's default: share of the text
        ("<answer>100 101 {0}</answer>", 3 / 11, 1, 0),  # guessing many is paid as a share too
    ],
)
def test_attacks_on_the_reward_of_a_generated_task(legs, response, correctness, formatted, exact):
    task, entry = legs
    rewards = task.score(response.format(entry["answer"]), entry)
    assert rewards.correctness == pytest.approx(correctness)
    assert (rewards.format, rewards.exact) == (formatted, exact)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("power_function", ""),  # reasoning-gym: 0.01 for an empty answer
        ("fraction_simplification", None),  # 0.01 for none
        ("sentence_reordering", " "),  # 0.05
        ("prime_factorization", "x"),  # ValueError
    ],
)
def test_reasoning_gyms_gifts_and_crashes_are_worth_nothing(name, answer):
    task = load_task(TaskConfig(mixture={name: 1}, held_out=1))
    response = "nothing" if answer is None else tagged(answer)
    assert task.score(response, task.held_out[0]).correctness == 0


def test_not_every_score_of_reasoning_gym_can_be_trained_on():
    """The README warns of this one: it compares whether both texts are non-empty."""
    task = load_task(TaskConfig(mixture={"game_of_life_halting": 1}, held_out=3))
    assert all(task.score(tagged("pay me"), entry).exact == 1 for entry in task.held_out)


def test_a_score_outside_zero_and_one_is_brought_inside(legs, monkeypatch):
    task, entry = legs
    for given, kept in ((1.5, 1), (-2.0, 0), (float("nan"), 0), (1 - 1e-12, 1 - 1e-12)):
        monkeypatch.setattr(task.dataset, "score_answer", lambda *_, given=given: given)
        rewards = task.score("<answer>5</answer>", entry)
        assert rewards.correctness == kept
        assert rewards.exact == (kept > 0.5)  # rounding does not cost exactness


def test_answers_with_angle_brackets_can_be_exact_in_generated_tasks():
    task = load_task(TaskConfig(mixture={"jugs": 1}, held_out=2))
    entry = next(entry for entry in task.held_out if ">" in entry["answer"])
    assert task.score(tagged(entry["answer"]), entry).exact == 1


# ---------------------------------------------------------------- a run on a mixture


def test_a_run_on_a_mixture_logs_each_task_and_resumes_exactly(make_config, tmp_path):
    task = {
        "mixture": {"spell_backward": 1, "leg_counting": 1, "basic_arithmetic": 1},
        "options": {"leg_counting": {"max_animals": 3}},
    }

    def config(folder, steps):
        output = str(tmp_path / folder)
        return make_config(task=task, steps=steps, eval_words=9, output_dir=output, save_every=1)

    whole = train(config("whole", 2), quiet=True)
    train(config("parts", 1), quiet=True)
    parts = train(config("parts", 2), quiet=True, resume=True)
    for one, two in zip(whole.history, parts.history, strict=True):
        assert {k: v for k, v in one.items() if not k.startswith("time/") and "eval" not in k} == {
            k: v for k, v in two.items() if not k.startswith("time/") and "eval" not in k
        }
    names = {f"eval/exact/{name}" for name in task["mixture"]}
    assert names <= whole.history[0].keys()
    assert names <= whole.history[-1].keys()
    last = whole.history[-1]
    shares = [last[name] for name in names]
    assert last["eval/exact"] == pytest.approx(sum(shares) / 3)  # three questions of each
    logged = {key for line in whole.history for key in line if key.startswith("reward/exact/")}
    assert logged <= {f"reward/exact/{name}" for name in task["mixture"]}
    assert len(logged) >= 2


def test_a_generated_task_alone_can_be_trained(make_config):
    result = train(
        make_config(task={"mixture": {"basic_arithmetic": 1}}, steps=1, eval_words=4), quiet=True
    )
    assert result.finished
    assert not any("/exact/" in key for key in result.history[-1])
    assert type(load_task(TaskConfig(mixture={"basic_arithmetic": 1}))) is Generated
