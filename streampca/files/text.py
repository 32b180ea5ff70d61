"""Files of text: a record after the other, and JSON Lines, which have a document on each line."""

import csv
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from streampca.errors import InputError
from streampca.files.columns import Columns, FileOptions, resolved
from streampca.files.kinds import naming, opened
from streampca.files.rows import FileBatch, Rows, rows_of_batch
from streampca.formats.fields import NumberFields
from streampca.formats.json import loads
from streampca.formats.packing import VectorBytes, VectorError, packed_rows
from streampca.settings.field_paths import paths_of

_MAX_LINE = 2**24  # bytes of a row of text
_TEXT_ROWS = 256  # of a batch: the objects of more rows do not stay in the processor's cache


def text_batches(
    path: str, records: Callable[[Any], Iterator[Any]], pack: Callable[[Any], VectorBytes],
    others: Mapping[str, Callable[[Any], Any]], d: int,
) -> Iterator[FileBatch]:  # fmt: skip
    """The `records` of a file, the vectors that `pack` finds in each, and the `others`, columns of them."""
    with naming(path, csv.Error), opened(path) as (file, share):
        rest = records(file)
        while some := list(islice(rest, min(rows_of_batch(d), _TEXT_ROWS))):
            columns = {name: np.fromiter(map(of, some), object, len(some)) for name, of in others.items()}
            yield FileBatch(packed_rows(some, pack, d), share(), columns)


def lines(file: Any) -> Iterator[str]:
    """The lines of a text in UTF-8. Raises `ValueError` for a longer line, and for bytes that are no text."""
    while line := file.readline(_MAX_LINE + 1):
        if len(line) > _MAX_LINE:
            raise ValueError(f"a line has more than {_MAX_LINE >> 20} MiB")
        yield line.decode("utf-8-sig")


def rows_of_jsonl(path: str, options: FileOptions) -> Rows:
    """The rows are read as messages of the format json are, but may hold NaN."""
    with naming(path):
        columns, d = _columns(path, options)
    fields = NumberFields(columns.paths, d, impute=options.impute, kind="JSON document")

    def pack(value: Any) -> VectorBytes:
        if isinstance(value, VectorError):
            raise value
        return fields.pack(value, booleans=True)

    others = {} if options.others is True else {name: partial(_entry, name) for name in columns.others}
    batches = partial(text_batches, path, _documents, pack, others, d)
    return Rows(path, d, batches, options.impute, columns.names, "; ".join(columns.said))


def _columns(path: str, options: FileOptions) -> tuple[Columns, int]:
    """Where the numbers of the first row with a vector are, and how many a vector has."""
    with opened(path) as (file, _):
        for row, value in enumerate(_documents(file), 1):
            if isinstance(value, VectorError):
                raise InputError(f"{path}, row {row}: {value}")
            if value is None or (columns := resolved(value, options, path)).is_null:
                continue
            if d := options.dimensions or columns.dimensions_in(value, path):
                return resolved(value, options._replace(dimensions=d), path), d
    if options.dimensions is None:
        raise InputError(f"{path} holds no vectors")
    return Columns(paths_of(options.field)), options.dimensions


def _documents(file: Any) -> Iterator[Any]:
    """The value on each line that is not empty, or the error of one that is no JSON."""
    for line in filter(str.strip, lines(file)):
        try:
            yield loads(line.encode(), nan=True)
        except VectorError as error:
            yield error


def _entry(name: str, value: Any) -> Any:
    return value.get(name) if isinstance(value, dict) else None
