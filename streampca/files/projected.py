"""Writes coordinates and residuals to .npy, .csv, .jsonl and .parquet files, piece by piece."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import orjson

from streampca.errors import InputError
from streampca.pca.arrays import Array

Write = Callable[[Array, Array], object]
"""Takes coordinates (n, k) and residuals (n,)."""


@contextmanager
def projected_file(path: Path, k: int) -> Iterator[Write]:
    """A function that appends rows to a file, which appears at the end of the block. Raises `InputError`.

    An .npy file holds only the coordinates, as an array (n, k).
    """
    opener = {".npy": _npy, ".csv": _csv, ".jsonl": _jsonl, ".ndjson": _jsonl, ".parquet": _parquet}.get(path.suffix)
    if opener is None:
        raise InputError(f"{path}: only .npy, .csv, .jsonl and .parquet files can be written")
    temporary = path.with_name(f"~{path.name}")
    try:
        with temporary.open("wb") as file, contextmanager(opener)(file, k) as write:
            yield write
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _npy(file: BinaryIO, k: int) -> Iterator[Write]:
    rows = 0

    def header() -> None:  # numpy leaves room in it for more rows
        numbers = {"descr": "<f8", "fortran_order": False, "shape": (rows, k)}
        np.lib.format.write_array_header_1_0(file, numbers)

    def write(coordinates: Array, residual: Array) -> None:
        nonlocal rows
        file.write(np.ascontiguousarray(coordinates, "<f8").data)
        rows += len(coordinates)

    header()
    yield write
    file.seek(0)
    header()


def _csv(file: BinaryIO, k: int) -> Iterator[Write]:
    file.write(",".join([*(f"coordinate_{i + 1}" for i in range(k)), "residual"]).encode() + b"\n")
    yield lambda coordinates, residual: np.savetxt(
        file, np.column_stack([coordinates, residual]), fmt="%.17g", delimiter=","
    )


def _jsonl(file: BinaryIO, k: int) -> Iterator[Write]:
    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    yield lambda coordinates, residual: file.writelines(
        orjson.dumps({"coordinates": row, "residual": distance}, option=option)
        for row, distance in zip(coordinates, residual, strict=True)
    )


def _parquet(file: BinaryIO, k: int) -> Iterator[Write]:
    try:  # here: an optional dependency
        import pyarrow as pa
        from pyarrow import parquet

        from streampca.formats.arrow import fixed_size_lists
    except ImportError:
        raise InputError("to write Parquet, pip install 'streampca[arrow]'") from None
    schema = pa.schema({"coordinates": pa.list_(pa.float64(), k), "residual": pa.float64()})
    with parquet.ParquetWriter(file, schema) as writer:
        yield lambda coordinates, residual: writer.write_batch(
            pa.record_batch([fixed_size_lists(np.ascontiguousarray(coordinates)), pa.array(residual)], schema=schema)
        )
