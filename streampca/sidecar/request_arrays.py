"""Rows of numbers in a request's body → an array, with an error that names the row and the column.

JSON gives lists, `.npy` an array. Numbers without a header are one row until `fit`, which knows a row's length.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from pydantic import ValidationInfo

from streampca.formats import npy
from streampca.formats.json import may_hold_booleans
from streampca.formats.packing import NumberPacker, VectorError, type_name
from streampca.pca.arrays import Array
from streampca.sidecar.errors import Problem, RequestError, invalid
from streampca.sidecar.request import RAW


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest request and answer."""

    rows: int
    numbers: int


def from_body(body: bytes, media_type: str, name: str) -> Array:
    """The rows of a binary body: (n, width); for one of `RAW` all numbers, (n · width,), which `fit` cuts into rows."""
    if media_type not in RAW:
        return _from_npy(body, name)
    dtype = np.dtype(RAW[media_type])
    if len(body) % dtype.itemsize:
        raise invalid(f"{name}: {len(body)} bytes are not a whole number of {dtype.name} numbers")
    return np.frombuffer(body, dtype)


def validate(value: Any, info: ValidationInfo) -> Array:
    """For pydantic: lists of numbers → (n, width), all of one length; arrays pass. The context is the JSON text.

    null becomes NaN: whether an entry may be missing depends on the model.
    """
    return value if isinstance(value, np.ndarray) else rows(value, info.field_name or "rows", info.context)


def rows(value: Any, name: str, text: bytes | None = None) -> Array:
    """Lists of numbers, from this JSON text, as an array (n, width), all of one length. Raises `RequestError`."""
    if not isinstance(value, list):
        raise invalid(f"{name} must be an array of arrays of numbers, not {type_name(value)}")
    width = len(value[0]) if value and isinstance(value[0], list) else 0
    packer = _packer(width)
    booleans = text is None or may_hold_booleans(text)
    packed = [_pack(packer, row, booleans, f"{name}[{i}]") for i, row in enumerate(value)]
    return np.frombuffer(b"".join(packed)).reshape(len(value), width)


def fit(rows: Array, name: str, width: int, limits: Limits, *, gaps: bool = False) -> Array:
    """The rows, (n, width), in float32 or else float64, within the limits, all finite; or `RequestError`.

    With `gaps` entries may be missing, NaN, but not all entries of a row.
    """
    if rows.ndim == 1:
        rows = _cut(rows, name, width)
    if len(rows) > limits.rows:
        text = f"{name} has {len(rows)} rows, at most {limits.rows} are allowed: send fewer"
        raise RequestError(Problem.TOO_LARGE, text, limit="rows")
    if rows.size > limits.numbers:
        text = f"{name} has {rows.size} numbers, at most {limits.numbers} are allowed: send fewer rows"
        raise RequestError(Problem.TOO_LARGE, text, limit="numbers")
    if len(rows) == 0:
        return np.empty((0, width))
    if rows.shape[1] != width:
        raise invalid(f"{name}[0] has {rows.shape[1]} numbers where this model has {width}")
    if not np.isfinite(rows).all():
        _check_gaps(rows, name, gaps=gaps)
    return rows.astype(np.float32 if rows.dtype.newbyteorder("=") == np.float32 else np.float64, copy=False)


def _check_gaps(rows: Array, name: str, *, gaps: bool) -> None:
    missing = np.isnan(rows)
    if (bad := np.isinf(rows) if gaps else ~np.isfinite(rows)).any():
        i, j = np.argwhere(bad)[0]
        value = "null or NaN (this model was learned with missing=refuse)" if missing[i, j] else rows[i, j]
        raise invalid(f"{name}[{i}][{j}] must be a finite number, not {value}")
    if (empty := missing.all(axis=1)).any():
        raise invalid(f"{name}[{int(empty.argmax())}] has no number")


def _from_npy(body: bytes, name: str) -> Array:
    try:
        array = npy.parse_array(body)
    except VectorError as error:
        raise RequestError(Problem.MALFORMED_BODY, f"the body is not a valid .npy file: {error}") from None
    if array.ndim not in (1, 2):
        raise invalid(f"{name} must be an array of 1 or 2 axes, not of {array.ndim}")
    return array.reshape(1, -1) if array.ndim == 1 else array


def _cut(numbers: Array, name: str, width: int) -> Array:
    if numbers.size % width:
        raise invalid(f"{name}: {numbers.size} numbers are not a whole number of rows of {width}")
    return numbers.reshape(-1, width)


@lru_cache(maxsize=16)
def _packer(width: int) -> NumberPacker:
    return NumberPacker(width, gaps=True)


def _pack(packer: NumberPacker, row: Any, booleans: bool, label: str) -> bytes:
    if not isinstance(row, list):
        hint = "; write a single vector as [[…]]" if type(row) in (int, float) else ""
        raise invalid(f"{label} must be an array of numbers, not {type_name(row)}{hint}")
    try:
        return packer.pack(row, booleans=booleans, entry=f"{label}[{{}}]")
    except VectorError as error:
        ragged = error.reason == "wrong_length"
        text = f"{label} has {error} as the rows before it: all need the model's dimensions" if ragged else str(error)
        raise invalid(text) from None
