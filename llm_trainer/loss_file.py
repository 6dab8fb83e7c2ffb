"""A learner's own loss out of a file: `--loss path/to/file.py:function`.

Left out: other files that this one imports; they are found as Python finds any module, and the
recorded sha256 does not cover them.
"""

import difflib
import functools
import hashlib
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path

from llm_trainer.config import ConfigError, first_line, require


def load_loss(place: str) -> Callable:
    """The function that `place` names, its path relative to the working folder.

    The result calls it; its `__name__` is `file.py:function`, by which a resumed run knows its
    loss, and its `sha256` that of the file's bytes. ConfigError if there is no such file or
    function, or where the file fails, with the line.
    """
    file, colon, name = place.rpartition(":")
    path, about = Path(file).expanduser(), f"--loss {place}"
    require(bool(file and colon and name), f"{about}: expected path/to/file.py:function")
    require(path.is_file(), f"{about}: no file {path} (looked in {Path.cwd()})")
    code = path.read_bytes()
    module = types.ModuleType(f"loss_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses in the file look it up
    try:
        exec(compile(code, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{about}: {path}, line {line_of(error, path)}: {type(error).__name__}: "
            f"{first_line(error)}"
        ) from None
    own = [key for key, value in vars(module).items() if is_from(value, module)]
    match = difflib.get_close_matches(name, own, n=1)
    hint = f"did you mean {match[0]!r}? " if match else ""
    function = getattr(module, name, None)
    require(
        callable(function),
        f"{about}: {path} has no function {name!r}; {hint}It has: {', '.join(own) or 'none'}",
    )

    @functools.wraps(function)  # keeps the signature, which tells what it wants to be given
    def loss(*arguments, **knobs):
        return function(*arguments, **knobs)

    loss.__name__, loss.sha256 = f"{path.name}:{name}", hashlib.sha256(code).hexdigest()
    return loss


def is_from(value, module: types.ModuleType) -> bool:
    """Whether this is a function that the file itself defines."""
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def line_of(error: BaseException, path: Path) -> int | str:
    """The last line of this file that took part in the error."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno or "?"
    frames = traceback.extract_tb(error.__traceback__)
    return ([frame.lineno for frame in frames if frame.filename == str(path)] or ["?"])[-1]
