"""Writes the example submissions of homework 1 from its release and its solution.

    python -m autograder.examples.make [FOLDER]

`python -m autograder release` runs it too, because the examples follow the release.
Every learner here is invented. Each folder shows one thing that happens in a real class; the
table in autograder/README.md says what to expect of each.
"""

import copy
import json
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HOMEWORK = "hw1_policy_gradient"
TARGET = Path(__file__).with_name(HOMEWORK)
POINTS = {
    "ada": 20, "ben": 12, "chen": 18, "dora": 17, "emil": 0, "fay": 0, "gus": 17, "hana": 18,
}  # fmt: skip

WRONG_LEAVE_ONE_OUT = '''def leave_one_out(rewards):
    """Divides the others' sum by G."""
    total = rewards.sum(dim=1, keepdim=True)
    return rewards - (total - rewards) / rewards.shape[1]
'''
WRONG_REINFORCE = '''def reinforce(logp, advantages):
    """Forgets that a loss is minimised."""
    return logp * advantages
'''
WRONG_STANDARDIZED = '''def group_standardized(rewards, *, eps=1e-4):
    """Standardises over the whole batch."""
    return (rewards - rewards.mean()) / (rewards.std() + eps)
'''
SYNTAX_ERROR = """def group_centered(rewards)
    return rewards - rewards.mean(dim=1, keepdim=True)
"""
ENDLESS = '''def reward_to_go(rewards, done, *, gamma):
    """The index is never moved."""
    out = torch.zeros_like(rewards)
    t = rewards.shape[1] - 1
    while t >= 0:
        out[:, t] = rewards[:, t]
    return out
'''
IMPORTED = """def leave_one_out(rewards):
    from policy_gradients.advantages import leave_one_out as library

    return library(rewards)
"""
HELPED = """def batch_centered(rewards):
    return rewards - average(rewards)
"""
HELPER = '''def average(x):
    """A helper of my own."""
    return x.sum() / x.numel()
'''


def make(target: Path, root: Path = ROOT):
    """Write all examples below `target`, replacing what is there."""
    release = json.loads((root / "homework" / HOMEWORK / f"{HOMEWORK}.ipynb").read_text("utf-8"))
    solution = json.loads((root / "solutions" / HOMEWORK / f"{HOMEWORK}.ipynb").read_text("utf-8"))
    answers = {
        name: re.sub(r"(?m)^.*(BEGIN|END) SOLUTION.*\n?", "", text(cell))
        for cell in solution["cells"]
        if (name := answered(cell))
    }

    def submission(changes=(), given=release):
        notebook = copy.deepcopy(given)
        for cell in notebook["cells"]:
            if name := answered(cell):
                cell["source"] = dict(changes).get(name, answers[name])
        return notebook

    if target.exists():
        shutil.rmtree(target)
    name = f"{HOMEWORK}.ipynb"
    write(target / "ada" / HOMEWORK / name, submission())
    partly = {
        "leave_one_out": WRONG_LEAVE_ONE_OUT,
        "reinforce": WRONG_REINFORCE,
        "group_standardized": WRONG_STANDARDIZED,
    }
    write(target / "ben" / name, submission(partly))
    write(target / "chen" / "hw1 (1).ipynb", submission({"group_centered": SYNTAX_ERROR}))
    write(target / "dora" / HOMEWORK / name, submission({"reward_to_go": ENDLESS}))
    (target / "emil").mkdir()
    (target / "emil" / "message.txt").write_text("Sorry, I could not finish. Emil\n")
    broken = json.dumps(submission(), indent=1, ensure_ascii=False)
    (target / "fay" / HOMEWORK).mkdir(parents=True)
    (target / "fay" / HOMEWORK / name).write_text(broken[: len(broken) // 2], "utf-8")
    write(target / "gus.ipynb", rearranged(submission({"batch_centered": HELPED})))
    write(target / "hana" / name, submission({"leave_one_out": IMPORTED}))


def rearranged(notebook):
    """A helper cell added, one answer deleted, one duplicated, one without its label."""
    cells = notebook["cells"]
    first = next(i for i, c in enumerate(cells) if answered(c))
    place = {answered(c): i for i, c in enumerate(cells) if answered(c)}
    cells[place["token_log_probs"]].update(metadata={}, id="pasted-back")
    twin = copy.deepcopy(cells[place["group_centered"]])
    twin["id"] = "pasted-again"
    helper = {
        "cell_type": "code", "id": "my-helper", "metadata": {}, "source": HELPER,
        "outputs": [], "execution_count": None,
    }  # fmt: skip
    gone = cells[place["optimal_baseline"]]
    cells.insert(place["group_centered"] + 1, twin)
    cells.insert(first, helper)
    cells.remove(gone)
    return notebook


def answered(cell) -> str:
    """The function that a code answer cell defines, "" for every other cell."""
    nbgrader = cell["metadata"].get("nbgrader", {})
    if cell["cell_type"] != "code" or not nbgrader.get("solution"):
        return ""
    match = re.search(r"^def (\w+)", text(cell), re.M)
    return match[1] if match else ""


def text(cell) -> str:
    return "".join(cell["source"])


def write(path: Path, notebook):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET)
