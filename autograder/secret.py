"""The key from which the inputs that count are drawn, kept outside the repository.

The course is public, so whoever knows how final cases are drawn could compute them. `grade` draws
them from ``HMAC-SHA256(key, question id)``: without the key they cannot be foretold, and with it
every run of a class gives the same numbers. `judge` and `check` do not use the key.
"""

import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from autograder.notebooks import HomeworkError

VARIABLE = "POLICY_GRADIENTS_GRADING_KEY"
BYTES = 32


def key_path() -> Path:
    """Where the key lies: $POLICY_GRADIENTS_GRADING_KEY, else in the user's configuration."""
    if chosen := os.environ.get(VARIABLE):
        return Path(chosen)
    try:
        home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    except RuntimeError:
        raise HomeworkError(
            f"there is no home folder for the grading key; name a file for it in {VARIABLE}"
        ) from None
    return Path(home) / "policy_gradients_course" / "grading.key"


def final_seed(question_id: str) -> int:
    """The seed of a question's final cases; makes the key if there is none.

    Raises HomeworkError when the key cannot be made or read, or others may read it.
    """
    return int.from_bytes(hmac.digest(_key(), question_id.encode(), hashlib.sha256), "big")


def fingerprint() -> str:
    """Tells one key from another, and tells nothing about either. Raises as `final_seed`."""
    return hmac.digest(_key(), b"fingerprint", hashlib.sha256).hex()[:16]


def _key() -> bytes:
    path = key_path()
    try:
        if not path.exists():
            _make(path)
        with path.open("rb") as file:  # one open file for both: what is checked is what is read
            status = os.fstat(file.fileno())
            key = file.read(BYTES + 1) if stat.S_ISREG(status.st_mode) else b""
    except OSError as error:
        raise HomeworkError(
            f"the grading key {path} cannot be read or made ({error.strerror}); mend that, or name "
            f"another file in {VARIABLE}"
        ) from None
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o077):
        raise HomeworkError(
            f"the grading key {path} can be read by others, who could compute the inputs; make it "
            f"yours alone (chmod 600 {path}), or move it away: a new one is made then"
        )
    if len(key) != BYTES:
        raise HomeworkError(
            f"{path} is not a grading key ({BYTES} bytes); put the key back from a copy, or move "
            "the file away: a new one is made then"
        )
    return key


def _make(path: Path):
    """A new key, complete or not at all, also when two commands make one at a time."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(BYTES))
    try:
        os.link(unfinished, path)  # unlike a rename, never replaces a key that is there
    except FileExistsError:
        pass
    finally:
        unfinished.unlink()
