"""Arrays as they lie in memory: rows from an `.npy` file or from nothing but float32 numbers, answers as `.npz`."""

import io
from typing import Any

import numpy as np

from streampca.api.request import NPY, Body, RequestError, check_width
from streampca.pca.arrays import Array
from streampca.vectors import npy
from streampca.vectors.packing import VectorError

NPZ = "application/x-npz"


def rows(body: Body, name: str, width: int) -> Array:
    """The rows of `width` numbers in a binary body, (n, width). Raises `RequestError`."""
    found = _npy(body.data, name, width) if body.kind == NPY else _raw(body.data, name, width)
    if not np.isfinite(found).all():
        i, j = np.argwhere(~np.isfinite(found))[0]
        raise RequestError(422, f"{name}[{i}][{j}] must be a finite number, not {found[i, j]}")
    return found


def npz(fields: dict[str, Any]) -> bytes:
    """The fields of an answer as an `.npz` file, not compressed."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **fields)
    return buffer.getvalue()


def _npy(data: bytes, name: str, width: int) -> Array:
    """An array of one row or of several."""
    try:
        array = npy.parse_array(data)
    except VectorError as error:
        raise RequestError(400, f"the body is no .npy file that can be taken: {error}") from None
    rows = array[np.newaxis] if array.ndim == 1 else array
    if rows.ndim != 2:
        raise RequestError(422, f"{name} must be an array of 1 or 2 axes, not of {array.ndim}")
    check_width(f"{name}[0]", rows.shape[1], width)
    return rows


def _raw(data: bytes, name: str, width: int) -> Array:
    """Little-endian float32 numbers, row after row."""
    if len(data) % (4 * width):
        raise RequestError(
            422, f"{name}: {len(data)} bytes are no whole number of rows of {width} float32 numbers ({4 * width} bytes)"
        )
    return np.frombuffer(data, "<f4").reshape(-1, width)
