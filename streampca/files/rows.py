"""Vectors from .npy, .csv, .jsonl and .parquet files, in chunks, so that a file may be larger than memory.

Errors name the row. So text is parsed here, and .npy and text need no pyarrow; `files.chunks` reads Parquet.
"""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streampca.errors import InputError, naming_the_extra
from streampca.files import npy
from streampca.files.columns import matching
from streampca.formats.json import loads
from streampca.formats.packing import NumberPacker, VectorError, listed, type_name
from streampca.pca.arrays import Array

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


def open_rows(path: Path, *, gaps: bool = False, column: str | None = None, others: bool = False) -> Rows:
    """The rows of a .npy, .csv, .jsonl or .parquet file.

    Raises `InputError` that names the bad row, here or in `chunks`.

    With `gaps` entries may be missing, and become NaN: NaN, an empty field of CSV, null in JSON and Parquet. `column`
    names the column of lists in a table that has others, or is a pattern of several columns of numbers. With `others`
    the other columns of a table are read, too.
    """
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".csv", ".jsonl", ".ndjson", ".parquet"):
        raise InputError(f"{path}: only .npy, .csv, .jsonl and .parquet files can be read")
    if column is not None and suffix not in (".csv", ".parquet"):
        raise InputError(f"{path} has no columns with a vector in each row: leave --column away")
    try:
        match suffix:
            case ".npy":
                return _npy(path, gaps)
            case ".csv":
                return _csv(path, gaps, column, others)
            case ".parquet":
                return _parquet(path, gaps, column, others)
        return _jsonl(path, gaps)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def _npy(path: Path, gaps: bool) -> Rows:
    array = npy.mapped(path)
    if not len(array):
        raise InputError(f"{path} holds no vectors: its shape is {array.shape}")
    step = _rows_of_chunk(array.shape[1])

    def chunks() -> Iterator[RowChunk]:
        for start in range(0, len(array), step):
            vectors = np.asarray(array[start : start + step])
            vectors = vectors if vectors.dtype.kind == "f" else vectors.astype(np.float64)
            yield RowChunk(_finite(vectors, path, start, gaps), min(start + step, len(array)) / len(array))

    return Rows(path, array.shape[1], chunks)


def _csv(path: Path, gaps: bool, column: str | None, others: bool) -> Rows:
    """Numbers between commas; a first line without any number is a header."""
    first, _ = next(_csv_records(path), ([], 0))
    has_header = column is not None or not any(map(_is_number, first))
    names = first if has_header else []
    numbers = None if column is None else [names.index(name) for name in matching(names, column, path)]
    texts = [i for i in range(len(names)) if numbers is not None and i not in numbers]

    def parse(fields: list[str]) -> tuple[list[float], list[str]]:
        if numbers is not None and len(fields) != len(names):
            raise VectorError("wrong_length", f"{len(fields)} fields, but the header has {len(names)}")
        for i in range(len(fields)) if numbers is None else numbers:
            if not (_is_number(fields[i]) or (gaps and not fields[i])):
                name = f" ({names[i]})" if i < len(names) else ""
                raise VectorError("undecodable", f"column {i + 1}{name} is no number: {fields[i][:40]!r}")
        chosen = fields if numbers is None else [fields[i] for i in numbers]
        return [float(text or math.nan) for text in chosen], [fields[i] for i in texts]

    def records() -> Iterator[tuple[list[str], int]]:
        return islice(_csv_records(path), int(has_header), None)

    return _text(path, records, parse, gaps, [names[i] for i in texts] if others else [])


def _jsonl(path: Path, gaps: bool) -> Rows:
    """A JSON array of numbers on each line."""

    def parse(line: str) -> tuple[list[float], list[str]]:
        row = loads(line.encode(), nan=gaps)
        if not isinstance(row, list):
            raise VectorError("undecodable", f"expected a JSON array of numbers, not {type_name(row)}")
        return np.frombuffer(NumberPacker(len(row), gaps=gaps).pack(row, booleans=True)).tolist(), []

    def records() -> Iterator[tuple[str, int]]:
        return ((line, end) for line, end in _lines(path) if line.strip())

    return _text(path, records, parse, gaps)


def _parquet(path: Path, gaps: bool, column: str | None, others: bool) -> Rows:
    """A column of lists of numbers, or several columns of numbers."""
    with naming_the_extra(f"{path}: reading Parquet", "arrow"):
        from pyarrow import parquet

        from streampca.files import chunks as tables
        from streampca.formats import arrow
    with path.open("rb") as file:
        schema, total = parquet.read_schema(file), parquet.read_metadata(file).num_rows
    if column is None and len(schema.names) != 1:
        raise InputError(f"{path}: name by --column the one that holds the vectors, of {listed(schema.names)}")
    columns = matching(schema.names, column or schema.names[0], path)
    types = {name: schema.field(name).type for name in schema.names if others and name not in columns}
    if len(set(schema.names)) < len(schema.names):
        raise InputError(f"{path} has several columns of one name: {listed(schema.names)}")
    if not total:
        raise InputError(f"{path} holds no vectors")
    chunks = tables.chunks_of([str(path)])
    d = len(columns)
    if d == 1:
        first = next(tables.read(chunks[0], columns)).column(0)[0].as_py()
        if not isinstance(first, list):
            text = f"the first row of column {columns[0]} is not a list of numbers, but {type_name(first)}"
            raise InputError(f"{path}: {text}")
        d = len(first)
    step = _rows_of_chunk(d)

    def row_chunks() -> Iterator[RowChunk]:
        end = 0
        batches = (batch for chunk in chunks for batch in tables.read(chunk, [*columns, *types]))
        for batch in (whole.slice(i, step) for whole in batches for i in range(0, len(whole), step)):
            start, end = end, end + len(batch)
            try:
                vectors = arrow.vectors_of(batch, columns, d, gaps=gaps)
            except VectorError as error:
                raise InputError(f"{path}, rows {start + 1} to {end}: {error}") from None
            kept = {name: batch.column(name) for name in types}
            yield RowChunk(_finite(vectors, path, start, gaps), end / total, kept)

    return Rows(path, d, row_chunks, types)


def _text(
    path: Path,
    records: Callable[[], Iterator[tuple[Any, int]]],
    parse: Callable[[Any], tuple[list[float], list[str]]],
    gaps: bool,
    others: Sequence[str] = (),
) -> Rows:
    """The rows of a text, of whose records `parse` makes numbers and other fields; records come with their ends."""

    def rows(d: int | None) -> Iterator[tuple[list[float], list[str], int]]:
        for number, (record, end) in enumerate(records(), 1):
            try:
                numbers, texts = parse(record)
            except (ValueError, RecursionError, VectorError) as error:
                raise InputError(f"{path}, row {number}: {error}") from None
            if d is not None and len(numbers) != d:
                raise InputError(f"{path}, row {number}: {len(numbers)} numbers, but {d} in the rows before")
            yield numbers, texts, end

    first = next(rows(None), None)
    if first is None:
        raise InputError(f"{path} holds no vectors")
    d, size = len(first[0]), path.stat().st_size

    def chunks() -> Iterator[RowChunk]:
        start, remaining = 0, rows(d)
        while some := list(islice(remaining, _rows_of_chunk(d))):
            numbers, texts, ends = zip(*some, strict=True)
            columns = zip(others, zip(*texts, strict=True), strict=True) if others else ()
            yield RowChunk(_finite(np.array(numbers), path, start, gaps), ends[-1] / size, dict(columns))
            start += len(some)

    return Rows(path, d, chunks, dict.fromkeys(others))


def _csv_records(path: Path) -> Iterator[tuple[list[str], int]]:
    """The fields of each record that is not empty, and the bytes read up to its end."""
    end = 0

    def lines() -> Iterator[str]:
        nonlocal end
        for line, end in _lines(path):  # noqa: B007 - of the enclosing function
            yield line

    try:
        for fields in csv.reader(lines(), strict=True, skipinitialspace=True):
            if "".join(fields).strip() or len(fields) > 1:
                yield [text.strip() for text in fields], end
    except csv.Error as error:
        raise InputError(f"{path} is not CSV: {error}") from None


def _lines(path: Path) -> Iterator[tuple[str, int]]:
    """The lines of a text, and the bytes read up to their ends."""
    with path.open("rb") as file:
        while line := file.readline():  # since `tell` is wrong during iteration
            try:
                yield line.decode("utf-8-sig"), file.tell()
            except UnicodeDecodeError:
                raise InputError(f"{path} is not text in UTF-8") from None


def _rows_of_chunk(d: int) -> int:
    return max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // (8 * d)))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _finite(vectors: Array, path: Path, start: int, gaps: bool) -> Array:
    bad = np.isinf(vectors) if gaps else ~np.isfinite(vectors)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise InputError(f"{path}, row {start + row + 1}: number {column + 1} is {vectors[row, column]}")
    return vectors
