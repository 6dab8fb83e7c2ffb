"""Call a learner's function on given inputs and record plain data. Nothing else.

This is the only part of the judge that runs beside a learner's code: it imports torch and the
standard library, and knows no reference, no expected value and no tolerance. `Case` and
`Outcome` hold tensors, strings, numbers and tuples of them only, so that both can cross a
process boundary in any plain format.
"""

import contextlib
import traceback
from dataclasses import dataclass, field

import torch

DTYPES = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Case:
    """One call: ``function(*args, **knobs)``.

    args : tensors, passed by position.
    knobs : numbers, tensors or None, passed by keyword.
    differentiable : positions in ``args`` whose gradient is expected to be right.
    constants : positions that require grad but into which no gradient may flow.
    weights : the gradient recorded is that of ``(output * weights).sum()``; the expected output's
        shape. None where no gradient is asked for.
    padding : bool, the output's shape, True where the entry belongs to padding. None without any.
    stability : a case in float32 that only a numerically careful answer survives.
    name : a few words for messages, e.g. "temperature .7". Holds no numbers of the inputs.
    """

    name: str
    args: tuple[torch.Tensor, ...]
    knobs: dict[str, float | torch.Tensor | None] = field(default_factory=dict)
    differentiable: tuple[int, ...] = ()
    constants: tuple[int, ...] = ()
    weights: torch.Tensor | None = None
    padding: torch.Tensor | None = None
    stability: bool = False

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Everything that the function must leave as it is: ``args``, then the tensor knobs."""
        return (*self.args, *(v for v in self.knobs.values() if isinstance(v, torch.Tensor)))


@dataclass(frozen=True)
class Outcome:
    """What one call did.

    value : what was returned, detached and copied; None when that was no tensor or number. Several
        tensors of one shape and dtype are stacked along a new first axis.
    kind : "tensor", "number", "2 tensors", or the name of the type that came back instead.
    gradients : one entry per position of ``case.differentiable + case.constants``; None where
        nothing flows.
    modified : positions in ``case.tensors`` that the function changed: entries, shape, dtype or
        graph.
    error : "" or "TypeName: message (line n)", the exception of the call or of its backward pass.
    """

    value: torch.Tensor | None = None
    kind: str = ""
    gradients: tuple[torch.Tensor | None, ...] = ()
    modified: tuple[int, ...] = ()
    error: str = ""


class Outcomes(list):
    """One `Outcome` per case; ``cases`` says which."""

    def __init__(self, cases, outcomes):
        super().__init__(outcomes)
        self.cases = list(cases)
        if len(self) != len(self.cases):
            raise ValueError(f"{len(self.cases)} cases, but {len(self)} outcomes")


def collect(function, cases) -> Outcomes:
    """Call ``function`` once per case, on copies of its inputs."""
    return Outcomes(cases, [_outcome(function, case) for case in cases])


def _outcome(function, case: Case) -> Outcome:
    with torch.enable_grad():
        return _called(function, case)


@contextlib.contextmanager
def torch_as_it_was():
    """Undo what a block sets for all of torch: default dtype and device, modes, threads, seed."""
    state = torch.get_rng_state()
    settings = [(get(), get, put) for get, put in SETTINGS]
    gradients = torch.is_grad_enabled()
    try:
        yield
    finally:
        for before, get, put in settings:
            if get() != before:
                put(before)
        torch.set_grad_enabled(gradients)
        torch.set_rng_state(state)


SETTINGS = (
    (torch.get_default_device, torch.set_default_device),  # first: others make tensors
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
)


def _called(function, case: Case) -> Outcome:
    tracked = case.differentiable + case.constants
    leaves = [a.clone().requires_grad_(i in tracked) for i, a in enumerate(case.args)]
    # A copy of the leaf, not the leaf: torch would refuse to write into a leaf, and we want to
    # see the write.
    given = [leaf.clone() if leaf.requires_grad else leaf for leaf in leaves]
    knobs = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in case.knobs.items()}
    watched = [*given, *(v for v in knobs.values() if isinstance(v, torch.Tensor))]
    try:
        with torch_as_it_was():
            result = function(*given, **knobs)
        value, kind = _plain(result)
    except (Exception, SystemExit) as error:
        modified = _modified(watched, case.tensors, tracked)
        return Outcome(error=_describe(error, function), modified=modified)
    gradients: tuple[torch.Tensor | None, ...] = (None,) * len(tracked)
    error_text = ""
    if tracked and kind == "tensor" and result.requires_grad:
        try:
            weights = case.weights
            if weights is None or weights.shape != result.shape:
                weights = torch.ones(result.shape)
            total = (result * weights.to(result.dtype)).sum()
            gradients = torch.autograd.grad(total, [leaves[i] for i in tracked], allow_unused=True)
        except Exception as error:
            error_text = _describe(error, function)
    return Outcome(
        value=value,
        kind=kind,
        gradients=tuple(None if g is None else g.detach().clone() for g in gradients),
        modified=_modified(watched, case.tensors, tracked),
        error=error_text,
    )


def _plain(result) -> tuple[torch.Tensor | None, str]:
    """The returned object as a copied tensor, and what kind of object it was."""
    if isinstance(result, torch.Tensor):
        ordinary = result.layout is torch.strided and not (result.is_nested or result.is_quantized)
        if not ordinary or result.device.type == "meta" or result.dtype not in DTYPES:
            return None, "tensor of an unusual kind"
        return result.detach().cpu().clone(), "tensor"
    if type(result) in (tuple, list) and len(result) > 1:
        parts = [_plain(part) for part in result]
        alike = {(p.shape, p.dtype) for p, kind in parts if kind == "tensor"}
        if len(alike) == 1 and all(kind == "tensor" for _, kind in parts):
            return torch.stack([part for part, _ in parts]), f"{len(parts)} tensors"
    if isinstance(result, float):
        return torch.tensor(result, dtype=torch.float64), "number"
    return None, type(result).__name__


def _modified(given, originals, tracked) -> tuple[int, ...]:
    return tuple(
        i
        for i, (now, before) in enumerate(zip(given, originals, strict=True))
        if now.requires_grad != (i in tracked) or not identical(now.detach(), before)
    )


def identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Same shape, dtype and entries; NaN counts as equal to NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _describe(error: BaseException, function) -> str:
    """Type, message and the line inside the learner's code, on one line."""
    try:
        message = " ".join(str(error).split())
    except Exception:
        message = "it cannot say what it is"
    code = getattr(function, "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if code is not None and f.filename == code.co_filename]
    where = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {message[:300]}{where}".replace(": (", " (")
