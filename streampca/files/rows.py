"""Vectors from .npy, .csv and .jsonl files, in chunks, so that a file may be larger than memory.

Errors name the row. So text is parsed here, and needs no pyarrow.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from streampca.errors import InputError
from streampca.formats.json import loads
from streampca.formats.packing import NumberPacker, VectorError, type_name
from streampca.pca.arrays import Array, not_finite

_CHUNK_BYTES = 1 << 20
_CHUNK_ROWS = 4096


class RowChunk(NamedTuple):
    vectors: Array  # (n, d)
    share: float  # of the file that has been read
    others: Mapping[str, Any] = {}  # the other columns of a table: texts of CSV, arrays of Parquet


@dataclass(frozen=True)
class Rows:
    path: Path
    dimensions: int
    chunks: Callable[[], Iterator[RowChunk]]
    others: Mapping[str, Any] = field(default_factory=dict)  # Arrow types of the other columns; None: text

    def require(self, dimensions: int, expected_by: str) -> None:
        """Raise `InputError` if the vectors have other `dimensions` than these, which follow `expected_by` in it."""
        if self.dimensions != dimensions:
            text = f"{self.path} holds vectors of {self.dimensions} numbers"
            raise InputError(f"{text}, and {expected_by} {dimensions}")


def rows_of_npy(path: Path, impute: bool) -> Rows:
    array = mapped_npy(path)
    if not len(array):
        raise InputError(f"{path} holds no vectors: its shape is {array.shape}")
    step = rows_of_chunk(array.shape[1])

    def chunks() -> Iterator[RowChunk]:
        for start in range(0, len(array), step):
            vectors = np.asarray(array[start : start + step])
            vectors = vectors if vectors.dtype.kind == "f" else vectors.astype(np.float64)
            yield RowChunk(finite(vectors, path, start, impute), min(start + step, len(array)) / len(array))

    return Rows(path, array.shape[1], chunks)


def rows_of_csv(path: Path, impute: bool, column: str | None, others: bool) -> Rows:
    """Numbers between commas; a first line without any number is a header."""
    with path.open("rb") as file:
        first = next(_csv_records(file, path), [])
    has_header = column is not None or not any(map(_is_number, first))
    names = first if has_header else []
    numbers = None if column is None else [names.index(name) for name in matching(names, column, path)]
    texts = [i for i in range(len(names)) if numbers is not None and i not in numbers]

    def parse(fields: list[str]) -> tuple[list[float], list[str]]:
        if numbers is not None and len(fields) != len(names):
            raise VectorError("wrong_length", f"{len(fields)} fields, but the header has {len(names)}")
        for i in range(len(fields)) if numbers is None else numbers:
            if not (_is_number(fields[i]) or (impute and not fields[i])):
                name = f" ({names[i]})" if i < len(names) else ""
                raise VectorError("undecodable", f"column {i + 1}{name} is no number: {fields[i][:40]!r}")
        chosen = fields if numbers is None else [fields[i] for i in numbers]
        return [float(text or math.nan) for text in chosen], [fields[i] for i in texts]

    def records(file: BinaryIO) -> Iterator[list[str]]:
        return islice(_csv_records(file, path), int(has_header), None)

    return _text(path, records, parse, impute, [names[i] for i in texts] if others else [])


def rows_of_jsonl(path: Path, impute: bool) -> Rows:
    """A JSON array of numbers on each line."""

    def parse(line: str) -> tuple[list[float], list[str]]:
        row = loads(line.encode(), nan=impute)
        if not isinstance(row, list):
            raise VectorError("undecodable", f"expected a JSON array of numbers, not {type_name(row)}")
        return np.frombuffer(NumberPacker(len(row), impute=impute).pack(row, booleans=True)).tolist(), []

    return _text(path, lambda file: filter(str.strip, _lines(file, path)), parse, impute)


def _text(
    path: Path,
    records: Callable[[BinaryIO], Iterator[Any]],
    parse: Callable[[Any], tuple[list[float], list[str]]],
    impute: bool,
    others: Sequence[str] = (),
) -> Rows:
    """The rows of a text, of whose records `parse` makes numbers and other fields."""

    def rows(file: BinaryIO, d: int | None) -> Iterator[tuple[list[float], list[str]]]:
        for number, record in enumerate(records(file), 1):
            try:
                numbers, texts = parse(record)
            except (ValueError, RecursionError, VectorError) as error:
                raise InputError(f"{path}, row {number}: {error}") from None
            if d is not None and len(numbers) != d:
                raise InputError(f"{path}, row {number}: {len(numbers)} numbers, but {d} in the rows before")
            yield numbers, texts

    with path.open("rb") as file:
        first = next(rows(file, None), None)
    if first is None:
        raise InputError(f"{path} holds no vectors")
    d, size = len(first[0]), path.stat().st_size

    def chunks() -> Iterator[RowChunk]:
        start = 0
        with path.open("rb") as file:
            remaining = rows(file, d)
            while some := list(islice(remaining, rows_of_chunk(d))):
                numbers, texts = zip(*some, strict=True)
                columns = zip(others, zip(*texts, strict=True), strict=True) if others else ()
                yield RowChunk(finite(np.array(numbers), path, start, impute), file.tell() / size, dict(columns))
                start += len(some)

    return Rows(path, d, chunks, dict.fromkeys(others))


def _csv_records(file: BinaryIO, path: Path) -> Iterator[list[str]]:
    """The fields of each record that is not empty."""
    try:
        for fields in csv.reader(_lines(file, path), strict=True, skipinitialspace=True):
            if "".join(fields).strip() or len(fields) > 1:
                yield [text.strip() for text in fields]
    except csv.Error as error:
        raise InputError(f"{path} is not CSV: {error}") from None


def _lines(file: BinaryIO, path: Path) -> Iterator[str]:
    try:
        for line in file:
            yield line.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text in UTF-8") from None


def rows_of_chunk(d: int) -> int:
    return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // (8 * d)))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def finite(vectors: Array, path: Path, start: int, impute: bool) -> Array:
    """The vectors. Raises `InputError` at a number that is not finite, with its row after `start`."""
    if (bad := not_finite(vectors, impute=impute)).any():
        row, column = np.argwhere(bad)[0]
        raise InputError(f"{path}, row {start + row + 1}: number {column + 1} is {vectors[row, column]}")
    return vectors


def mapped_npy(path: Path) -> Array:
    """The array (n, d) of a file, mapped into memory. Raises `InputError`."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # `np.load` would open archives, and advises to unpickle
    except ValueError as error:
        raise InputError(f"{path} is not an .npy array of numbers, as numpy.save writes it: {error}") from None
    if array.ndim != 2 or not array.shape[1] or array.dtype.kind not in "fiub":
        content = f"{array.dtype} of shape {array.shape}"
        raise InputError(f"{path} must hold real numbers of shape (rows, dimensions), not {content}")
    return array


def matching(names: Sequence[str], pattern: str, path: object) -> tuple[str, ...]:
    """The names that are or match a pattern, such as `embedding` or `feature_*`. Raises `InputError` if none does."""
    if not (columns := tuple(name for name in names if name == pattern or fnmatchcase(name, pattern))):
        raise InputError(f"{path} has no column {pattern}; there are {', '.join(names)}")
    return columns
