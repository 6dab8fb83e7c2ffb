"""A learner's own loss: out of a file (`--loss path/to/file.py:function`), tried, and called.

Left out: other files that this one imports; they are found as Python finds any module, and the
recorded sha256 does not cover them.
"""

import functools
import hashlib
import inspect
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llm_trainer.config import Config, ConfigError, RunError, closest, first_line, require
from llm_trainer.oom import is_out_of_memory
from policy_gradients.algorithms import Algorithm, Batch


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
    function = getattr(module, name, None)
    own = [key for key, value in vars(module).items() if is_from(value, module)]
    require(
        callable(function),
        f"{about}: {path} has no function {name!r}; {closest(name, own) if own else 'it has none'}",
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


def loss_name(function: Callable | None, algorithm: str) -> str:
    """What a run records as its loss, and compares when it is resumed: a name, not the code."""
    if function is None:
        return f"{algorithm} (the row's)"
    return getattr(function, "__name__", None) or type(function).__name__


FIELDS = ("logp", "logp_old", "advantages", "mask")  # what a loss is called with, in this order
COUNTS = ("sequences", "tokens", "length")  # and these by keyword


def own_loss(function: Callable, row: Algorithm) -> Callable[[Batch], Tensor]:
    """A learner's loss with the signature of `grpo_loss`, called as a row's loss is.

    It gets eps_low, eps_high and sequences by keyword, and tokens and length if it takes them.
    Raises ConfigError if it cannot be called so; the result raises RunError, which names the file
    and line, for whatever the function raises, and for a result that is no scalar tensor.
    """
    name = loss_name(function, row.name)
    wanted = accepted(function, name)
    knobs = {k: row.knobs.get(k, 0.2) for k in ("eps_low", "eps_high") if k in wanted}

    def loss(batch: Batch) -> Tensor:
        mask = batch.mask.to(batch.logp.dtype)  # so that 1 - mask and mask.mean() work
        given = {count: getattr(batch, count) for count in COUNTS if count in wanted}
        try:
            value = function(batch.logp, batch.logp_old, batch.advantages, mask, **knobs, **given)
        except (Exception, SystemExit) as error:
            if is_out_of_memory(error):
                raise
            where = f"{type(error).__name__}{place(error)}: {first_line(error)}"
            raise RunError(f"loss {name}: {where}") from error
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            kind = f" of {value.dtype}" if isinstance(value, Tensor) else ""
            raise RunError(f"loss {name}: it must return a scalar tensor, got {shape}{kind}")
        return value.squeeze()

    return loss


def accepted(function: Callable, name: str) -> set[str]:
    """The keywords that a loss takes. Raises ConfigError if it cannot be called as losses are."""
    keywords = {"eps_low", "eps_high", *COUNTS}
    try:
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            keywords &= signature.parameters.keys()
        signature.bind(*FIELDS, **dict.fromkeys(keywords))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"loss {name}: it is called with {', '.join(FIELDS)} and by keyword eps_low, eps_high, "
            f"sequences, tokens, length as far as it takes them, but: {error}"
        ) from None
    first = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY][: len(FIELDS)]
    moved = [n for n, field in zip(first, FIELDS, strict=False) if n in FIELDS and n != field]
    require(
        not moved,
        f"loss {name}: it takes {', '.join(first)}, but it is called with {', '.join(FIELDS)}, in "
        "this order",
    )
    return keywords


def place(error: BaseException) -> str:
    """Where in the learner's own file an error came from."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # without `loss` itself
    files = [f.filename for f in frames if f.filename != __file__]
    return f" in {Path(files[0]).name}, line {line_of(error, Path(files[0]))}" if files else ""


def try_loss(loss: Callable[[Batch], Tensor], name: str, config: Config, device: Any) -> None:
    """Call a learner's loss once on made-up numbers, before a run has written anything.

    They are one prompt's responses of 1 to 5 tokens, with ratios near 1. Raises ConfigError: it
    raises, its result is no finite scalar that depends on logp, it calls backward, or it changes
    what it is given.
    """
    group = config.group
    rows = torch.arange(float(group), device=device)[:, None]
    time = torch.arange(5.0, device=device)
    mask = (time <= rows % 5).float()  # (group, 5): 1 to 5 tokens
    logp_old = -0.2 - 0.1 * time - 0.05 * rows / group
    logp = (logp_old + 0.02 * (time - 2)).requires_grad_()
    advantages = 1 - 2 * (rows % 2)  # (group, 1)
    if config.row().needs_critic or {"token", "to_go"} & {config.importance, config.kl_credit}:
        advantages = advantages.expand_as(mask).clone()  # (group, 5)
    counts = {"sequences": group, "tokens": int(mask.sum()), "length": config.max_new_tokens}
    given = (logp.detach(), logp_old, advantages)
    batch = Batch(logp, logp_old, advantages, mask, **counts)
    before = [x.clone() for x in given]
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        try:
            value = loss(batch)
        except RunError as error:
            raise ConfigError(f"{error} (tried on made-up numbers; nothing was written)") from error
    require(logp.grad is None, f"loss {name}: it must not call backward; the trainer does")
    require(
        all(map(torch.equal, given, before)),
        f"loss {name}: it changes logp, logp_old or advantages in place; work on a copy",
    )
    require(value.isfinite(), f"loss {name}: {value.item()} on made-up, ordinary numbers")
    depends = value.requires_grad and torch.autograd.grad(value, logp, allow_unused=True)[0]
    require(
        isinstance(depends, Tensor),
        f"loss {name}: it has no gradient: compute it from logp, and do not detach it",
    )
