"""What the benchmark computes from CPU seconds, and that its table is the one of its logs."""

from pathlib import Path

import pytest

from benchmarks import actor_learner as bench
from lectures.experiments import read

README = Path(bench.__file__).parent / "README.md"


def test_taking_turns_gains_nothing():
    assert bench.on_two_free_cores([0.3, 0.1, 0.2], [0.1, 0.4, 0.2], 0) == pytest.approx(1)


@pytest.mark.parametrize("bound", [1, 3])
def test_equal_halves_overlap_but_for_the_first_and_the_last(bound):
    """n steps of 1 + 1 seconds: 2n in turns, n + 1 side by side."""
    assert bench.on_two_free_cores([1.0] * 9, [1.0] * 9, bound) == pytest.approx(18 / 10)


@pytest.mark.parametrize("bound", [1, 4])
@pytest.mark.parametrize(("writes", "learns"), [(1.0, 3.0), (3.0, 1.0)])
def test_the_slower_half_sets_the_pace(bound, writes, learns):
    """One of the faster half and n of the slower are in a row."""
    n = 20
    found = bench.on_two_free_cores([writes] * n, [learns] * n, bound)
    assert found == pytest.approx(4 * n / (1 + 3 * n))


def test_an_uneven_half_gains_from_a_longer_queue():
    """Every fourth batch takes 4 s to write, the others none; learning takes 1 s each."""
    writes, learns = [0.0, 0.0, 0.0, 4.0] * 10, [1.0] * 40
    gains = [bench.on_two_free_cores(writes, learns, bound) for bound in (0, 1, 4)]
    assert gains[0] == pytest.approx(1)
    assert gains[0] < gains[1] < gains[2] < 2


def test_the_readme_shows_what_the_logs_give():
    found = bench.heads(bench.LOGS)
    assert bench.table(found) in README.read_text(encoding="utf-8")
    assert list(found) == list(bench.KINDS)
    for runs in found.values():
        assert sorted(runs) == list(bench.SEEDS)


def test_every_log_is_whole_and_keeps_its_bound():
    for kind, (bound, _) in bench.KINDS.items():
        for seed in bench.SEEDS:
            head, *lines = read(bench.LOGS / f"{kind}_seed{seed}.jsonl")
            assert [line["step"] for line in lines] == list(range(bench.STEPS + 1))
            assert head["exact"] == lines[-1]["eval/exact"]
            if bound is not None:
                assert all(0 <= line["async/staleness"] <= bound for line in lines[1:])


def test_taking_turns_in_two_processes_is_the_same_run():
    for seed in bench.SEEDS:
        one, two = (read(bench.LOGS / f"{kind}_seed{seed}.jsonl") for kind in ("train", "two_0"))
        for a, b in zip(one[1:], two[1:], strict=True):
            assert {k: b[k] for k in a if not k.startswith("time/")} == {
                k: v for k, v in a.items() if not k.startswith("time/")
            }
