"""How fast is a class graded, against plain `nbgrader autograde` on the same notebooks?

    python -m benchmarks.grading [--jobs 2] [--keep FOLDER]

Makes 40 submissions of homework 1 (seeded: right, right in another way, wrong, unanswered, damaged,
endless, …), grades them with one command, and lets nbgrader autograde 10 of the same notebooks
in one process: 5 before and 5 after, so that both meet the same machine. Both start cold and are
timed from command to exit. Prints seconds per submission, and checks that there are 40 results
and that the honest learners get the same points from both.
"""

import argparse
import copy
import csv
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOMEWORK = "hw1_policy_gradient"
LEARNERS = 40
COMPARED = 10
BAR = 6.0

# function -> bodies of right answers written another way, and of wrong ones
RIGHT = {
    "reinforce": ["return -(advantages.detach() * logp)"],
    "reward_to_go": [
        "out = []\nlater = 0.0\nfor t in range(rewards.shape[1] - 1, -1, -1):\n"
        "    later = rewards[:, t] + gamma * later * (1 - done[:, t].to(rewards.dtype))\n"
        "    out.append(later)\nreturn torch.stack(out[::-1], dim=1)"
    ],
    "group_centered": ["return torch.stack([row - row.mean() for row in rewards])"],
    "leave_one_out": [
        "G = rewards.shape[1]\nreturn (rewards - rewards.mean(1, keepdim=True)) * G / (G - 1)",
        "rows = []\nfor row in rewards:\n    total = row.sum()\n    rows.append(torch.stack("
        "[r - (total - r) / (len(row) - 1) for r in row]))\nreturn torch.stack(rows)",
    ],
}
WRONG = {
    "token_log_probs": [
        "p = torch.softmax(logits / temperature, -1)\n"
        "return p.gather(-1, tokens[..., None]).squeeze(-1)",
        "return torch.log_softmax(logits, -1).gather(-1, tokens[..., None]).squeeze(-1)",
        "return torch.log_softmax(logits * temperature, -1).gather(-1, tokens[..., None])[..., 0]",
        "return (logits / temperature).gather(-1, tokens[..., None]).squeeze(-1)",
    ],
    "reinforce": [
        "return logp * advantages.detach()",
        "return -advantages * logp",
        "return -(advantages.detach() * logp).mean()",
        "return -advantages.detach() * logp.exp()",
    ],
    "reward_to_go": [
        "return rewards.flip(1).cumsum(1).flip(1)",
        "out = torch.zeros_like(rewards)\nlater = torch.zeros_like(rewards[:, 0])\n"
        "for t in reversed(range(rewards.shape[1])):\n"
        "    later = rewards[:, t] + gamma * later\n    out[:, t] = later\nreturn out",
        "return rewards.cumsum(1)",
    ],
    "batch_centered": [
        "return rewards - rewards.mean(dim=1, keepdim=True)",
        "return rewards - rewards.mean(dim=0)",
    ],
    "group_centered": [
        "return rewards - rewards.mean()",
        "return rewards - rewards.mean(dim=0, keepdim=True)",
        "rewards -= rewards.mean(dim=1, keepdim=True)\nreturn rewards",
    ],
    "group_standardized": [
        "return (rewards - rewards.mean()) / (rewards.std() + eps)",
        "return (rewards - rewards.mean(1, keepdim=True)) / rewards.std(1, keepdim=True)",
        "return (rewards - rewards.mean(1, keepdim=True)) / (rewards.var(1, keepdim=True) + eps)",
        "return rewards / (rewards.std(1, keepdim=True) + eps)",
    ],
    "leave_one_out": [
        "return rewards - (rewards.sum(1, keepdim=True) - rewards) / rewards.shape[1]",
        "return rewards - rewards.mean(1, keepdim=True)",
        "total = rewards.sum()\nreturn rewards - (total - rewards) / (rewards.numel() - 1)",
    ],
    "optimal_baseline": [
        "return rewards.mean()",
        "w = scores.norm(dim=1)\nreturn (w * rewards).sum() / w.sum()",
        "w = scores.square().sum(1)\nreturn (w * rewards).mean()",
    ],
}
CRASHES = ["return rewards.meen()", "return rewards - undefined", "return rewards @ rewards"]
ENDLESS = "while True:\n    pass"


@dataclass(frozen=True)
class Learner:
    """An invented submission. honest : a notebook that nbgrader can grade as well."""

    name: str
    kind: str
    data: str | None
    honest: bool


class Author:
    """Writes notebooks from the release, with any body for any answer."""

    def __init__(self):
        self.release = read(ROOT / "homework" / HOMEWORK / f"{HOMEWORK}.ipynb")
        solution = read(ROOT / "solutions" / HOMEWORK / f"{HOMEWORK}.ipynb")
        self.answers, self.heads = {}, {}
        for source in (cell["source"] for cell in answer_cells(solution)):
            name = re.search(r"^def (\w+)", source, re.M)[1]
            self.answers[name] = re.sub(r"(?m)^.*### (BEGIN|END) SOLUTION.*\n?", "", source)
            self.heads[name] = re.search(r"^def [^\n]*:$", source, re.M)[0]

    def cell(self, name: str, body: str) -> str:
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        return f"{self.heads[name]}\n{lines}\n"

    def notebook(self, changes: dict[str, str], empty=()) -> dict:
        """Right answers, but for `changes` (function -> body) and the `empty` ones."""
        notebook = copy.deepcopy(self.release)
        for cell, name in zip(answer_cells(notebook), self.answers, strict=True):
            if name in changes:
                cell["source"] = self.cell(name, changes[name])
            elif name not in empty:
                cell["source"] = self.answers[name]
        return notebook


def make_class(seed: int = 0) -> list[Learner]:
    """40 learners; the same seed gives the same class."""
    rng, author = random.Random(seed), Author()
    names = list(author.answers)

    def wrong(count):
        return {name: rng.choice(WRONG[name]) for name in rng.sample(names, count)}

    def other_way():
        return {name: rng.choice(bodies) for name, bodies in RIGHT.items() if rng.random() < 0.7}

    plans = [("right", {}, ()) for _ in range(5)]
    plans += [("right, written another way", other_way(), ()) for _ in range(5)]
    plans += [("wrong", other_way() | wrong(rng.randint(1, 3)), ()) for _ in range(12)]
    plans += [("mostly wrong", wrong(rng.randint(5, 8)), ()) for _ in range(3)]
    plans += [("unfinished", wrong(1), rng.sample(names, rng.randint(1, 3))) for _ in range(3)]
    plans += [("crash", {"group_centered": rng.choice(CRASHES)}, ()) for _ in range(2)]
    learners = [(kind, dump(author.notebook(*rest)), True) for kind, *rest in plans]

    endless = [author.notebook({name: ENDLESS}) for name in ("reward_to_go", "leave_one_out")]
    learners += [("endless", dump(notebook), False) for notebook in endless]
    torn = dump(author.notebook({}))
    learners += [
        ("damaged", torn[: len(torn) // 2], False),
        ("empty file", "", False),
        ("nothing", None, False),
        ("syntax error", dump(broken(author.notebook({}), "group_centered")), False),
        ("library", dump(imported(author.notebook({}))), False),
        ("deleted", dump(without(author.notebook({}), "leave_one_out", twice=False)), False),
        ("duplicated", dump(without(author.notebook({}), "leave_one_out", twice=True)), False),
        ("no labels", dump(unlabelled(author.notebook(wrong(1)))), False),
    ]
    assert len(learners) == LEARNERS
    rng.shuffle(learners)
    return [Learner(f"learner-{i:02}", *one) for i, one in enumerate(learners, 1)]


def answer_cells(notebook) -> list[dict]:
    cells = []
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
        label = cell["metadata"].get("nbgrader", {}).get("grade_id", "")
        if cell["cell_type"] == "code" and label.endswith("_answer"):
            cells.append(cell)
    return cells


def the_cell(notebook, function):
    return next(c for c in answer_cells(notebook) if f"def {function}(" in c["source"])


def broken(notebook, function):
    cell = the_cell(notebook, function)
    cell["source"] = cell["source"].replace("):", ")", 1)
    return notebook


def imported(notebook):
    the_cell(notebook, "leave_one_out")["source"] = (
        "from policy_gradients.advantages import leave_one_out"
    )
    return notebook


def without(notebook, function, *, twice):
    cell = the_cell(notebook, function)
    place = notebook["cells"].index(cell)
    notebook["cells"][place : place + 1] = [cell, copy.deepcopy(cell)] if twice else []
    return notebook


def unlabelled(notebook):
    for cell in notebook["cells"]:
        cell["metadata"] = {}
    return notebook


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def dump(notebook) -> str:
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def write(folder: Path, learners: list[Learner]):
    """Hand in, as nbgrader collects."""
    for learner in learners:
        place = folder / learner.name / HOMEWORK
        place.mkdir(parents=True)
        if learner.data is not None:
            (place / f"{HOMEWORK}.ipynb").write_text(learner.data, encoding="utf-8")


def timed(command: list[str], **options) -> tuple[float, float]:
    """(wall seconds, CPU seconds with all children) of a command; its output if it fails."""
    before, start = os.times(), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, **options)
    wall, after = time.monotonic() - start, os.times()
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    cpu = after.children_user + after.children_system
    return wall, cpu - before.children_user - before.children_system


def ours(folder: Path, learners, jobs: int, extra: list[str]) -> tuple[float, float, dict]:
    """Grade everyone; (wall, CPU, points)."""
    write(folder / "submissions", learners)
    command = [sys.executable, "-m", "autograder", "grade", HOMEWORK, str(folder / "submissions")]
    environment = os.environ | {"POLICY_GRADIENTS_GRADING_KEY": str(folder / "grading.key")}
    wall, cpu = timed([*command, "--jobs", str(jobs), *extra], cwd=ROOT, env=environment)
    with (folder / "grades.csv").open(newline="", encoding="utf-8") as file:
        points = {row["student"]: float(row["total"]) for row in csv.DictReader(file)}
    return wall, cpu, points


def theirs(folder: Path, learners) -> tuple[float, float, dict]:
    """nbgrader autogrades these; (wall, CPU, points). Its set-up is not timed."""
    from autograder.gradebook import nbgrader_environment

    environment = nbgrader_environment() | {"JUPYTER_CONFIG_PATH": str(folder)}
    folder.mkdir()
    shutil.copy(ROOT / "autograder" / "nbgrader_config.py", folder)
    shutil.copytree(ROOT / "solutions" / HOMEWORK, folder / "solutions" / HOMEWORK)
    write(folder / "submissions", learners)
    nbgrader = [str(Path(sys.executable).parent / "nbgrader")]
    options = {"cwd": folder, "env": environment}
    timed([*nbgrader, "generate_assignment", HOMEWORK, "--create"], **options)
    wall, cpu = timed([*nbgrader, "autograde", HOMEWORK, "--create"], **options)
    timed([*nbgrader, "export"], **options)
    with (folder / "grades.csv").open(newline="", encoding="utf-8") as file:
        points = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    return wall, cpu, points


def report(command: str, count: int, wall: float, cpu: float) -> tuple[float, float]:
    """Print a line of the table; seconds and CPU seconds per submission."""
    print(f"| {command} | {count} | {wall:.1f} | {wall / count:.2f} | {cpu / count:.2f} |")
    return wall / count, cpu / count


def main(argv=None) -> int:
    """Run the benchmark; 1 when something is lost, points differ, or the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the results there")
    parser.add_argument("--not-isolated", action="store_true", help="passed on to grade")
    arguments = parser.parse_args(argv)
    learners = make_class(arguments.seed)
    honest = [learner for learner in learners if learner.honest]
    compared = random.Random(arguments.seed).sample(honest, COMPARED)
    half = COMPARED // 2
    extra = ["--not-isolated"] if arguments.not_isolated else []
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        first = theirs(folder / "nbgrader-1", compared[:half])
        graded = ours(folder / "class", learners, arguments.jobs, extra)
        second = theirs(folder / "nbgrader-2", compared[half:])
    wall, cpu, points = graded
    print("| command | submissions | seconds | s each | CPU s each |\n|---|---|---|---|---|")
    plain = f"nbgrader autograde, {COMPARED} of them"
    pace, effort = report(plain, COMPARED, first[0] + second[0], first[1] + second[1])
    command = f"autograder grade --jobs {arguments.jobs}"
    our_pace, our_effort = report(command, len(learners), wall, cpu)
    ratio = pace / our_pace
    print(f"\n{ratio:.1f} times faster per submission (the bar: {BAR:g})")
    print(f"{effort / our_effort:.1f} times less CPU time; load {os.getloadavg()[0]:.1f}")
    lost = {learner.name for learner in learners} - set(points)
    other = first[2] | second[2]
    differ = {n: (points.get(n), other[n]) for n in other if points.get(n) != other[n]}
    print(f"results: {len(points)} of {len(learners)}; lost: {', '.join(sorted(lost)) or 'none'}")
    print(f"points of the {len(other)}: {f'differ, {differ}' if differ else 'the same'}")
    return 0 if ratio >= BAR and not lost and not differ and len(other) == COMPARED else 1


if __name__ == "__main__":
    sys.exit(main())
