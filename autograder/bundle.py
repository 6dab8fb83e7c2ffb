"""`python -m autograder release --bundle FILE.zip`: the course as a learner gets it, in one file.

Lectures, homework, and the packages that they import; no solutions, no example submissions, no
tests. Answers are not secret in a public course, so the loss library and the judge's questions are
in it: `check` needs them. The same course gives the same bytes.
"""

import os
import subprocess
import tempfile
import zipfile
from pathlib import Path

from autograder.notebooks import HomeworkError
from autograder.release import RELEASED, ROOT, generate, homeworks, source_of

ROOMS = ("autograder", "lectures", "llm_trainer", "policy_gradients", "toy_models")
FILES = (
    "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "bootstrap.py",
    "constraints.txt", "environment.yml", "pyproject.toml", "requirements.txt",
)  # fmt: skip
LEFT_OUT = ("autograder/examples/hw",)  # learners' folders with right answers
START = """# Start here

This is a learner's copy of the course: lectures, homework, the loss library, the toy problems, the
small trainer and the checks. Solutions, tests, benchmarks and the site's builder are not in it, so
`make test`, `make bench`, `make site` and the commands for instructors do nothing useful here.

    make lab                    sets up .venv (needs the network once), then opens JupyterLab
    python bootstrap.py         the same set-up without make (Windows: py bootstrap.py)

Then, with .venv/bin/python (Windows: .venv\\Scripts\\python), and from then on offline:

    python -m autograder status                          what is done, what comes next
    python -m autograder check homework/HW/HW.ipynb      before you hand a notebook in

Homework in this copy: {homework}
"""
STAMP = (1980, 1, 1, 0, 0, 0)  # a zip file keeps times, and two bundles shall be the same


def bundle(target: Path, names: list[str], root: Path = ROOT) -> list[str]:
    """Write the bundle to `target` with these homeworks, all for none; returns the names in it.

    The homework is generated afresh, whatever somebody has written into homework/. Raises
    HomeworkError; `target` is then as it was.
    """
    if not (root / "solutions").is_dir():
        raise HomeworkError("this copy of the course has no solutions to make a bundle from")
    if target.suffix.lower() != ".zip" or target.is_dir():
        raise HomeworkError(f"{target} is no name of a zip file; expected for example course.zip")
    if not target.absolute().parent.is_dir():
        raise HomeworkError(f"{target} cannot be written: there is no folder {target.parent}")
    names = list(dict.fromkeys(names)) or homeworks(root)
    for homework in names:
        source_of(homework, root)
    contents = {name: (root / name).read_bytes() for name in course_files(root)}
    contents["START.md"] = START.format(homework=", ".join(names)).encode()
    with tempfile.TemporaryDirectory(prefix="bundle-") as folder:
        for homework in names:
            generated = generate(homework, root, Path(folder))
            for path in sorted(p for p in generated.rglob("*") if p.is_file()):
                data = path.read_bytes()
                contents[f"homework/{homework}/{path.relative_to(generated).as_posix()}"] = data
                if path.name == f"{homework}.ipynb":  # what check compares a learner's work with
                    contents[(RELEASED / path.name).as_posix()] = data
    temporary = target.with_name(f".{target.name}.new")
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in sorted(contents):
                entry = zipfile.ZipInfo(name, STAMP)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, contents[name])
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return names


def course_files(root: Path) -> list[str]:
    """The course's own files that a learner gets: no caches, no runs, nothing that git ignores."""
    command = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard", "--", *ROOMS]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        paths = [Path(name) for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):  # a downloaded archive
        paths = [p.relative_to(root) for room in ROOMS for p in (root / room).rglob("*")]
    kept = [
        path.as_posix()
        for path in paths
        if (root / path).is_file()
        and not any(part.startswith((".", "__pycache__", "runs")) for part in path.parts)
        and not path.as_posix().startswith((*LEFT_OUT, RELEASED.as_posix()))
    ]
    return sorted({*kept, *FILES})
