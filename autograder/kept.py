"""What is graded stays graded: one record per learner, so that a run can go on where one ended.

A record is written last, when gradebook, graded notebook and page are there. It holds the marks
and a digest of everything they depend on; as long as that is unchanged, grading again takes the
marks from the record. A run that is killed therefore loses at most the submissions that it had in
hand, and those are graded again.
"""

import functools
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from autograder.notebooks import HomeworkError, Release
from autograder.table import write_atomically

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Mark:
    """The result of one question.

    status : "right", "wrong", "unanswered" or "not run".
    """

    id: str
    grade_id: str
    points: float
    max_points: float
    status: str
    cause: str
    details: dict


@dataclass(frozen=True)
class Record:
    """One graded submission, without anything of the learner's but what the marks say.

    notes : what was unusual. unanswered : grade ids of written answers left as released.
    empty : there was nothing to run. file : digest of the file, "" for none.
    cells : grade id of each answer cell -> digest of its text, to see which answers change.
    replaces : a sentence about the attempt graded before this one, "" for a first one.
    digest : of all that the marks depend on.
    """

    marks: tuple[Mark, ...]
    notes: tuple[str, ...]
    unanswered: tuple[str, ...]
    empty: bool
    file: str
    cells: dict[str, str]
    replaces: str = ""
    digest: str = ""


class Kept:
    """The records of one homework below an output folder."""

    def __init__(self, output: Path, homework: str):
        self.folder = output / ".autograder" / "graded" / homework

    def read(self, student: str) -> Record | None:
        """A learner's record; None when there is none that this version can read."""
        try:
            fields = json.loads(self._path(student).read_text(encoding="utf-8"))
            marks = tuple(Mark(**mark) for mark in fields.pop("marks"))
            notes, unanswered = tuple(fields.pop("notes")), tuple(fields.pop("unanswered"))
            return Record(marks=marks, notes=notes, unanswered=unanswered, **fields)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def write(self, student: str, record: Record):
        """Keep a learner's record, in place of an earlier one."""
        write_atomically(self._path(student), json.dumps(asdict(record), indent=1) + "\n")

    def students(self) -> list[str]:
        """Everyone who has a record."""
        return sorted(path.parent.name for path in self.folder.glob("learners/*/record.json"))

    def _path(self, student: str) -> Path:
        return self.folder / "learners" / student / "record.json"

    def settings(self) -> dict:
        """What holds for the whole class: `key` (a fingerprint) and `late_penalty`."""
        path = self.folder / "class.json"
        try:
            settings = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError:
            settings = None
        if not isinstance(settings, dict):
            raise HomeworkError(f"{path} is damaged; put it back from a copy, or move it away")
        return settings

    def set(self, **settings):
        """Change some of the settings."""
        text = json.dumps(self.settings() | settings, indent=1) + "\n"
        write_atomically(self.folder / "class.json", text)


def digest(*parts) -> str:
    """Of plain data; the same parts give the same digest."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def rules(release: Release, limits, isolated: bool, key: str) -> str:
    """A digest of what decides about every submission: the homework, our code, key and limits."""
    code = code_digest(release.questions[0].id.partition("/")[0])
    return digest(release.notebook, asdict(limits), isolated, key, code)


@functools.cache
def code_digest(homework: str) -> str:
    """Of torch's version, the judge, this homework's questions and the libraries they use."""
    files = [
        *ROOT.glob("autograder/*.py"),
        *ROOT.glob("autograder/questions/*.py"),
        *ROOT.glob(f"autograder/questions/{homework}/*.py"),
        *ROOT.glob("policy_gradients/**/*.py"),
        *ROOT.glob("toy_models/**/*.py"),
    ]
    whole = hashlib.sha256(torch.__version__.encode())
    for path in sorted(files):
        whole.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return whole.hexdigest()
