"""The one format in which inputs and answers cross the border to a learner's process.

Plain JSON, no pickle: loading it can never run code. `encode` turns a tree of None, bool, int,
float, str, list, tuple, dict with string keys and tensors into JSON-ready values; `decode` turns
it back and refuses everything else. NaN and infinities are allowed, as Python's json writes them;
floats survive exactly (repr of a float64, and every float32 is a float64).

Imports torch and nothing of ours, because a learner's process loads it.
"""

import json
import math

import torch

MAX_BYTES = 16 * 2**20  # one message, either way
MAX_ELEMENTS = 2**20  # one tensor
MAX_DEPTH = 32
MAX_AXES = 16

KINDS = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool"
DTYPES = {name: getattr(torch, name) for name in KINDS.split()}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class WireError(ValueError):
    """A message is not in the format: wrong type, wrong shape, too large or too deep."""


def encode(value, depth=0):
    """JSON-ready form of `value`. Raises WireError for a type outside the list above."""
    if depth > MAX_DEPTH:
        raise WireError(f"nested more than {MAX_DEPTH} levels deep")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        return {"tensor": _encode_tensor(value)}
    if type(value) is list:
        return [encode(item, depth + 1) for item in value]
    if type(value) is tuple:
        return {"tuple": [encode(item, depth + 1) for item in value]}
    if type(value) is dict:
        if not all(type(key) is str for key in value):
            raise WireError("a dictionary needs text as keys")
        return {"dict": {key: encode(item, depth + 1) for key, item in value.items()}}
    raise WireError(f"a value of type {type(value).__name__} cannot be sent")


def decode(value, depth=0):
    """The tree that `encode` was given. Raises WireError on anything else."""
    if depth > MAX_DEPTH:
        raise WireError(f"nested more than {MAX_DEPTH} levels deep")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [decode(item, depth + 1) for item in value]
    if type(value) is not dict or len(value) != 1:
        raise WireError("expected one of: tensor, tuple, dict")
    (kind, content), *_ = value.items()
    if kind == "tensor":
        return _decode_tensor(content)
    if kind == "tuple" and type(content) is list:
        return tuple(decode(item, depth + 1) for item in content)
    if kind == "dict" and type(content) is dict:
        return {key: decode(item, depth + 1) for key, item in content.items()}
    raise WireError(f"unknown kind {kind[:40]!r}; expected one of: tensor, tuple, dict")


def dumps(value) -> bytes:
    """`value` as one UTF-8 line of JSON. Raises WireError above MAX_BYTES."""
    data = json.dumps(encode(value), ensure_ascii=True).encode()
    if len(data) > MAX_BYTES:
        raise WireError(f"{len(data):,} bytes, more than the {MAX_BYTES:,} allowed")
    return data


def loads(data: bytes):
    """The inverse of `dumps`. Raises WireError on anything malformed."""
    if len(data) > MAX_BYTES:
        raise WireError(f"{len(data):,} bytes, more than the {MAX_BYTES:,} allowed")
    try:
        return decode(json.loads(data))
    except WireError:
        raise
    except (ValueError, RecursionError) as error:
        raise WireError(f"not in the expected format: {error}") from None


def _encode_tensor(tensor):
    if tensor.numel() > MAX_ELEMENTS:
        raise WireError(f"a tensor of {tensor.numel():,} elements, more than {MAX_ELEMENTS:,}")
    if tensor.layout != torch.strided or tensor.dtype not in NAMES:
        raise WireError(f"a tensor of type {tensor.dtype}, {tensor.layout} cannot be sent")
    return {
        "dtype": NAMES[tensor.dtype],
        "shape": list(tensor.shape),
        "data": tensor.detach().cpu().reshape(-1).tolist(),
        "requires_grad": bool(tensor.requires_grad),
    }


def _decode_tensor(content):
    if type(content) is not dict or set(content) != {"dtype", "shape", "data", "requires_grad"}:
        raise WireError("a tensor needs exactly dtype, shape, data and requires_grad")
    name, shape, data = content["dtype"], content["shape"], content["data"]
    dtype = DTYPES.get(name) if type(name) is str else None
    if dtype is None:
        raise WireError(f"unknown dtype {str(name)[:40]!r}")
    if type(shape) is not list or len(shape) > MAX_AXES:
        raise WireError(f"a shape is a list of at most {MAX_AXES} integers")
    if not all(type(n) is int and 0 <= n <= MAX_ELEMENTS for n in shape):
        raise WireError(f"the numbers in a shape lie between 0 and {MAX_ELEMENTS:,}")
    if type(data) is not list or len(data) > MAX_ELEMENTS or len(data) != math.prod(shape):
        raise WireError(f"shape {shape} does not fit the number of values")
    kinds = {bool} if dtype is torch.bool else {int, float} if dtype.is_floating_point else {int}
    if not all(type(item) in kinds for item in data):
        raise WireError(f"a value that is not a number of type {name}")
    try:
        tensor = torch.tensor(data, dtype=dtype).reshape(shape)
    except (RuntimeError, OverflowError, ValueError, TypeError) as error:
        raise WireError(f"values that do not fit {name}: {error}") from None
    return tensor.requires_grad_(bool(content["requires_grad"]) and dtype.is_floating_point)
