"""JSON Lines: a document on each line, an array of numbers or an object with the numbers in its fields."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from streampca.errors import InputError
from streampca.files.columns import NULL, Columns, Wanted, dimensions_in, kind_at, resolved, tree_of
from streampca.files.kinds import naming, opened
from streampca.files.rows import FileBatch, Rows, Text, lines, text_batches
from streampca.formats.fields import NumberFields
from streampca.formats.json import loads
from streampca.formats.packing import VectorError
from streampca.settings.field_paths import paths_of


def rows_of_jsonl(path: str, wanted: Wanted) -> Rows:
    """The rows are read as messages of the format json are, but true and false in them are no numbers."""
    with naming(path):
        columns, d = _columns(path, wanted)
    fields = NumberFields(columns.paths, d, impute=wanted.impute, kind="JSON document")
    others = {} if isinstance(wanted.others, bool) else {name: partial(_entry, name) for name in wanted.others}
    text = Text(_documents, _loaded, partial(fields.pack, booleans=True), others)

    def batches() -> Iterator[FileBatch]:
        with naming(path), opened(path) as file:
            yield from text_batches(file, text, d)

    return Rows(path, d, batches, columns.named(d), wanted.impute, said=columns.said)


def _columns(path: str, wanted: Wanted) -> tuple[Columns, int]:
    """Where the numbers of the first row with a vector are, and how many a vector has."""
    with opened(path) as file:
        for row, line in enumerate(_documents(file.file), 1):
            try:
                value = _loaded(line)
                tree = tree_of(value)
            except (ValueError, RecursionError, VectorError) as error:
                raise InputError(f"{path}, row {row}: {error}") from None
            if tree == NULL:
                continue
            columns = resolved(tree, wanted, path)
            if len(columns.paths) == 1 and kind_at(tree, columns.paths[0]) == NULL:
                continue
            return columns, wanted.dimensions or dimensions_in(value, columns, path)
    if wanted.dimensions is None:
        raise InputError(f"{path} holds no vectors")
    return Columns(paths_of(wanted.options.field), None, ""), wanted.dimensions


def _documents(file: Any) -> Iterator[str]:
    return filter(str.strip, lines(file))


def _loaded(line: str) -> Any:
    return loads(line.encode(), nan=True)


def _entry(name: str, value: Any) -> Any:
    return value.get(name) if isinstance(value, dict) else None
