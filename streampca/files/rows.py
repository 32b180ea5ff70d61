"""Reads vectors from .npy, .csv, .jsonl and .parquet files, in pieces, so that a file may be larger than memory."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from streampca.errors import InputError
from streampca.formats.json import loads
from streampca.formats.packing import NumberPacker, VectorError, listed, type_name
from streampca.pca.arrays import Array

_PIECE_BYTES = 1 << 20
_PIECE_ROWS = 4096


@dataclass(frozen=True)
class Rows:
    """The rows of a file. `count` is None for text, which is not counted in advance."""

    path: Path
    dimensions: int
    count: int | None
    pieces: Callable[[], Iterator[tuple[Array, float]]]  # rows (n, d), and the share of the file read after them


def open_rows(path: Path, *, gaps: bool = False, column: str | None = None) -> Rows:
    """The rows of a .npy, .csv, .jsonl or .parquet file.

    Raises `InputError` that names the bad row, here or in `pieces`.

    With `gaps` entries may be missing, and become NaN: NaN, an empty field of CSV, null in JSON and Parquet.
    `column` names the one that holds the vectors of a Parquet file with several.
    """
    suffix = path.suffix.lower()
    opener = {".npy": _npy, ".csv": _csv, ".jsonl": _jsonl, ".ndjson": _jsonl}.get(suffix)
    if opener is None and suffix != ".parquet":
        raise InputError(f"{path}: only .npy, .csv, .jsonl and .parquet files can be read")
    if opener and column is not None:
        raise InputError(f"{path} has no columns with a vector in each row: leave --column away")
    try:
        return opener(path, gaps) if opener else _parquet(path, gaps, column)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def npy_rows(path: Path) -> Array:
    """The array (n, d) of an .npy file, mapped into memory. Raises `InputError`."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # `np.load` opens archives, too, and advises to unpickle
    except ValueError as error:
        raise InputError(f"{path} is not an .npy array of numbers, as numpy.save writes it: {error}") from None
    if array.ndim != 2 or not array.shape[1] or array.dtype.kind not in "fiub":
        found = f"{array.dtype} of shape {array.shape}"
        raise InputError(f"{path} must hold real numbers of shape (rows, dimensions), not {found}")
    return array


def _npy(path: Path, gaps: bool) -> Rows:
    array = npy_rows(path)
    if not len(array):
        raise InputError(f"{path} holds no vectors: its shape is {array.shape}")

    step = _rows_of_piece(array.shape[1])

    def pieces() -> Iterator[tuple[Array, float]]:
        for start in range(0, len(array), step):
            piece = np.asarray(array[start : start + step])
            piece = piece if piece.dtype.kind == "f" else piece.astype(np.float64)
            yield _finite(piece, path, start, gaps), min(start + step, len(array)) / len(array)

    return Rows(path, array.shape[1], len(array), pieces)


def _csv(path: Path, gaps: bool) -> Rows:
    """Numbers between commas; a first line without any number is a header."""

    names: list[str] = []

    def parse(line: str) -> list[float]:
        fields = [field.strip() for field in line.split(",")]
        for column, field in enumerate(fields):
            if not (_is_number(field) or (gaps and not field)):
                name = f" ({names[column]})" if column < len(names) else ""
                raise VectorError("undecodable", f"column {column + 1}{name} is no number: {field[:40]!r}")
        return [float(field or math.nan) for field in fields]

    def is_header(line: str) -> bool:
        fields = [field.strip() for field in line.split(",")]
        header = not any(map(_is_number, fields))
        names[:] = fields if header else []
        return header

    return _text(path, parse, is_header, gaps)


def _jsonl(path: Path, gaps: bool) -> Rows:
    """A JSON array of numbers on each line."""

    def parse(line: str) -> list[float]:
        row = loads(line.encode(), nan=gaps)
        if not isinstance(row, list):
            raise VectorError("undecodable", f"expected a JSON array of numbers, not {type_name(row)}")
        numbers: list[float] = np.frombuffer(NumberPacker(len(row), gaps=gaps).pack(row, booleans=True)).tolist()
        return numbers

    return _text(path, parse, lambda line: False, gaps)


def _parquet(path: Path, gaps: bool, column: str | None) -> Rows:
    """A column of lists of numbers."""
    try:  # here: an optional dependency
        import pyarrow as pa
        from pyarrow import parquet

        from streampca.formats import arrow
    except ImportError:
        raise InputError(f"{path}: to read Parquet, pip install 'streampca[arrow]'") from None
    try:
        file = parquet.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise InputError(f"{path} is no Parquet file: {error}") from None
    names = file.schema_arrow.names
    if names.count(column) != 1 and (column is not None or len(names) != 1):
        raise InputError(f"{path}: name by --column the one that holds the vectors, of {listed(names)}")
    name, count = column or names[0], file.metadata.num_rows
    first = next((batch.column(0).to_pylist() for batch in file.iter_batches(1, columns=[name])), [None])[0]
    if not isinstance(first, list):
        raise InputError(f"{path}: the first row of column {name} is not a list of numbers, but {type_name(first)}")
    d = len(first)

    def pieces() -> Iterator[tuple[Array, float]]:
        start = 0
        for batch in file.iter_batches(_rows_of_piece(d), columns=[name]):
            try:
                piece = arrow.numbers(batch.column(0), d, gaps=gaps).reshape(-1, d)
            except VectorError as error:
                raise InputError(f"{path}, rows {start + 1} to {start + len(batch)}: {error}") from None
            yield _finite(piece, path, start, gaps), (start + len(batch)) / count
            start += len(batch)

    return Rows(path, d, count, pieces)


def _text(path: Path, parse: Callable[[str], list[float]], is_header: Callable[[str], bool], gaps: bool) -> Rows:
    first = next(_lines(path, parse, is_header), None)
    if first is None:
        raise InputError(f"{path} holds no vectors")
    d, size = len(first[1]), path.stat().st_size
    step = _rows_of_piece(d)

    def pieces() -> Iterator[tuple[Array, float]]:
        rows: list[list[float]] = []
        done = start = 0
        for number, row, done in _lines(path, parse, is_header):
            if len(row) != d:
                raise InputError(f"{path}, row {number}: {len(row)} numbers, but {d} in the rows before")
            rows.append(row)
            if len(rows) == step:
                yield _finite(np.array(rows), path, start, gaps), done / size
                start += step
                rows = []
        if rows:
            yield _finite(np.array(rows), path, start, gaps), done / size

    return Rows(path, d, None, pieces)


def _lines(
    path: Path, parse: Callable[[str], list[float]], is_header: Callable[[str], bool]
) -> Iterator[tuple[int, list[float], int]]:
    """Each row with its number (from 1, without headers and empty lines) and the bytes read up to its end."""
    with path.open("rb") as file:
        number = 0
        for place, line in enumerate(_decoded(file, path)):
            if not line.strip() or (place == 0 and is_header(line)):
                continue
            number += 1
            try:
                row = parse(line)
            except (ValueError, RecursionError, VectorError) as error:
                raise InputError(f"{path}, row {number}: {error}") from None
            yield number, row, file.tell()


def _decoded(file: BinaryIO, path: Path) -> Iterator[str]:
    # `readline`, since `tell` is wrong during iteration.
    while line := file.readline():
        try:
            yield line.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise InputError(f"{path} is not text in UTF-8") from None


def _rows_of_piece(d: int) -> int:
    return max(1, min(_PIECE_ROWS, _PIECE_BYTES // (8 * d)))


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _finite(piece: Array, path: Path, start: int, gaps: bool) -> Array:
    bad = np.isinf(piece) if gaps else ~np.isfinite(piece)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise InputError(f"{path}, row {start + row + 1}: number {column + 1} is {piece[row, column]}")
    return piece
