"""Reads the records of a text file in batches."""

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.files.rows import FileBatch, choose_batch_size, input_errors, open_stream
from streampca.formats.fields import NumberFields
from streampca.formats.numbers import VectorBytes, pack_rows

_TEXT_ROWS = 256  # largest number of rows in a batch: the objects of more rows do not stay in the processor's cache


def text_batches(
    path: str, read_records: Callable[[Any], Iterator[Any]], pack: Callable[[Any], VectorBytes],
    getter_by_column: Mapping[str, Callable[[Any], Any]], d: int, vector_reader: NumberFields | None,
) -> Iterator[FileBatch]:  # fmt: skip
    """Yield the vectors of d numbers in a file of text, in batches.

    `read_records` yields the records of an opened file, `pack` returns the numbers of a record, and each function in
    `getter_by_column` returns the value of a further column in a record. `vector_reader` is the reader that `pack`
    uses, if any. If a field is an array of named elements, each batch has the reader's `element_indices`: the index of
    each element in all rows so far. If an element is at another index in a later row, the caller warns the user.
    """
    rows_per_batch = min(choose_batch_size(d), _TEXT_ROWS)
    with input_errors(path, csv.Error), open_stream(path) as (file, compute_progress):
        records = read_records(file)
        while batch := list(islice(records, rows_per_batch)):
            yield FileBatch(
                row_vectors=pack_rows(batch, pack, d),
                progress=compute_progress(),
                other_columns={name: _make_column(get_value, batch) for name, get_value in getter_by_column.items()},
                element_indices=vector_reader.element_indices if vector_reader else None,
            )


def _make_column(get_value: Callable[[Any], Any], records: Sequence[Any]) -> NDArray[Any]:
    """Return an array of Python objects: the value of a column in each record."""
    return np.fromiter(map(get_value, records), object, len(records))
