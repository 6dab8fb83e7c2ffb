"""Set the course up: create .venv beside this file and install everything into it.

    python3 bootstrap.py        (Windows: py bootstrap.py)

Needs Python 3.11 or newer and nothing else. `make` calls this before each of its commands. A second
run finds a stamp and does no work; after a change of requirements or a moved folder it installs
again. Every failure ends in one sentence that says what to do.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "course-installed"
LOG = VENV / "install.log"
INPUTS = ("requirements.txt", "constraints.txt", "pyproject.toml", "bootstrap.py")
FREE_GB = 4  # the CPU set takes about 2 GB; pip needs room to unpack
# In this .venv only: JupyterLab shows Markdown pages rendered, does not phone home for news, and
# saves a widget as its still picture (a view without its kernel says "model not found").
SERVER_SETTINGS = {"ContentsManager": {"pre_save_hook": "lectures.execute.save_stills"}}
LAB_SETTINGS = {
    "@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Markdown Preview"}},
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
}
CAUSES = (
    (r"No space left on device|Errno 28", "the disk is full; free about 4 GB and run this again"),
    (
        r"NewConnectionError|ConnectTimeout|ReadTimeout|NameResolutionError|ProxyError|"
        r"Connection (?:refused|reset|aborted)|Network is unreachable|Temporary failure in name",
        "the package index cannot be reached; check the network (or pip's proxy setting) "
        "and run this again",
    ),
    (r"Permission denied|Errno 13", f"no permission to write into {ROOT}; check who owns it"),
)


def stop(sentence: str) -> None:
    sys.exit(f"setup: {sentence}")


def venv_python(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def fingerprint(inputs: tuple[str, ...] = INPUTS) -> str:
    """Return a hash of all that an installation depends on, the folder's place included."""
    digest = hashlib.sha256(f"{ROOT} {sys.version_info[:2]}".encode())
    for name in inputs:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def check_machine() -> None:
    if sys.version_info < (3, 11):
        stop(
            f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}; "
            "install one and name it: `python3.12 bootstrap.py` or `make PYTHON=python3.12 ...`"
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        stop(
            "this Python lacks the venv module; on Debian or Ubuntu `sudo apt install "
            "python3-venv` brings it, then run this again"
        )
    free = shutil.disk_usage(ROOT).free / 1e9
    if free < FREE_GB:
        stop(f"about {FREE_GB} GB of free disk are needed here, {free:.1f} GB are left; free some")


def run(command: list, doing: str, log: Path | None = None) -> None:
    """Run a command, its output in a log, its progress on one line; stop with the cause."""
    log = log or LOG
    print(f"setup: {doing} ...", flush=True)
    width, lines = shutil.get_terminal_size().columns - 1, []
    with subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout:
            lines.append(line)
            if sys.stdout.isatty() and re.match(r"\s*(Collecting|Downloading|Installing)", line):
                print("\r" + line.strip()[:width].ljust(width), end="", flush=True)
    if sys.stdout.isatty():
        print("\r" + " " * width + "\r", end="")
    text = "".join(lines)
    try:
        with log.open("a") as file:
            file.write(text)
    except OSError:
        pass  # the disk may be what failed
    if process.returncode:
        sentences = [sentence for pattern, sentence in CAUSES if re.search(pattern, text)]
        errors = [line.strip() for line in lines if "ERROR" in line.upper()]
        last = errors[0] if errors else (lines or ["no output"])[-1].strip()
        stop(sentences[0] if sentences else f"{doing} failed: {last} (all of it is in {log})")


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Wait, and say so, while another process sets this folder up (not on Windows)."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    folder = os.open(ROOT, os.O_RDONLY)  # its lock goes with this process, whatever ends it
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("setup: waiting for another setup of this folder to end ...", flush=True)
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def install(
    venv: Path,
    inputs: tuple[str, ...],
    steps: list[tuple[str, list]],
    finish: Callable[[], object] = lambda: None,
) -> None:
    """Make a virtual environment, unless its stamp says that it is there; one at a time.

    inputs : files that the installation depends on, relative to ROOT
    steps  : (what is being done, arguments of `pip install`), in order
    finish : called when all is installed
    """
    wanted, stamp, log = fingerprint(inputs), venv / STAMP.name, venv / LOG.name

    def done() -> bool:
        return stamp.exists() and stamp.read_text() == wanted

    if done():
        return
    python = venv_python(venv)
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--retries", "2"]
    try:
        with alone():
            if done():  # by the other one
                return
            if not python.exists() or subprocess.call([python, "-c", "import pip"]):
                shutil.rmtree(venv, ignore_errors=True)
                venv.mkdir()
                run([sys.executable, "-m", "venv", venv], f"creating {venv.name}", log)
            for doing, arguments in steps:
                run([*pip, *arguments], doing, log)
            finish()
            stamp.write_text(wanted)
    except KeyboardInterrupt:
        stop("interrupted; run it again to continue")
    except OSError as error:
        sentences = [sentence for pattern, sentence in CAUSES if re.search(pattern, str(error))]
        stop(sentences[0] if sentences else f"{error}")
    print("setup: done", flush=True)


def write_settings() -> None:
    for path, settings in (
        ("share/jupyter/lab/settings/overrides.json", LAB_SETTINGS),
        ("etc/jupyter/jupyter_server_config.json", SERVER_SETTINGS),
    ):
        file = VENV / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(settings, indent=2))


def main() -> None:
    check_machine()
    pins = ["-r", ROOT / "requirements.txt", "-c", ROOT / "constraints.txt"]
    steps = [
        ("installing the packages (about 2 GB, a few minutes)", pins),
        ("installing the course itself", ["--no-deps", "-e", ROOT]),
    ]
    install(VENV, INPUTS, steps, write_settings)


if __name__ == "__main__":
    main()
