"""Tables in files, in chunks that are learned one by one: row groups of Parquet, and Arrow IPC, CSV and .npy files.

The chunks follow from the data alone, never from who reads them, so that the number of workers changes no bit.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.fs
from pyarrow import parquet

from streampca.errors import InputError
from streampca.files.rows import RowChunk, Rows, finite, mapped_npy, matching, rows_of_chunk
from streampca.formats.arrow import fixed_size_lists, vectors_of
from streampca.formats.packing import VectorError, listed, type_name

_NPY_ROWS = 2**16  # of a chunk
_BATCH_NUMBERS = 2**21  # that are read at a time
_BUFFER = 2**20  # bytes of a column that are read at a time
_VECTOR = "vector"  # the only column of an .npy file
_KINDS = {"parquet": "parquet", "arrow": "arrow", "feather": "arrow", "csv": "csv", "npy": "npy"}


class Chunk(NamedTuple):
    path: str  # absolute, or a URL
    size: int  # of the file
    changed_ns: int  # when the file was changed; two of one name are different files
    start: int = 0  # row group of Parquet; first row of .npy


def chunks_of(sources: Sequence[str]) -> list[Chunk]:
    """The chunks of files, of folders with files, and of Delta tables, by name. Raises `InputError`."""
    paths = [_spelled_alike(path) for source in sources for path in _files(source)]
    once = {os.path.realpath(path): path for path in paths}  # a link's own name says what the file is
    chunks = [chunk for path in once.values() for chunk in _chunks(path)]
    if not chunks:
        raise InputError(f"no .parquet, .arrow, .csv or .npy files in {', '.join(sources)}")
    return chunks


def columns_of(chunk: Chunk, pattern: str) -> tuple[str, ...]:
    """The columns of a file whose names match a pattern, such as `feature_*`. Raises `InputError`."""
    with _naming(chunk.path):
        names = _column_names(chunk.path)
    return matching(names, pattern, chunk.path)


def read(chunk: Chunk, columns: Sequence[str], numbers: Sequence[str] = ()) -> Iterator[Any]:
    """The record batches of a chunk with these columns, as far as it has them; of CSV, `numbers` are float64.

    Raises `InputError`, also if the file is another one than when the chunk was made, or becomes another one.
    """
    with _naming(chunk.path):
        _refuse_changed(chunk)
        try:
            yield from _batches(chunk, columns, numbers)
        finally:  # what cannot be read may be half of another file
            _refuse_changed(chunk)


def rows_of_parquet(path: Path, impute: bool, column: str | None, others: bool) -> Rows:
    """A column of lists of numbers, or several columns of numbers: as `open_rows`."""
    with path.open("rb") as file, _naming(str(path)):
        schema, total = parquet.read_schema(file), parquet.read_metadata(file).num_rows
    if column is None and len(schema.names) != 1:
        raise InputError(f"{path}: name by --column the one that holds the vectors, of {listed(schema.names)}")
    columns = matching(schema.names, column or schema.names[0], path)
    types = {name: schema.field(name).type for name in schema.names if others and name not in columns}
    if len(set(schema.names)) < len(schema.names):
        raise InputError(f"{path} has several columns of one name: {listed(schema.names)}")
    if not total:
        raise InputError(f"{path} holds no vectors")
    chunks = chunks_of([str(path)])
    d = len(columns)
    if d == 1:
        first = next(read(chunks[0], columns)).column(0)[0].as_py()
        if not isinstance(first, list):
            text = f"the first row of column {columns[0]} is not a list of numbers, but {type_name(first)}"
            raise InputError(f"{path}: {text}")
        d = len(first)
    step = rows_of_chunk(d)

    def row_chunks() -> Iterator[RowChunk]:
        end = 0
        batches = (batch for chunk in chunks for batch in read(chunk, [*columns, *types]))
        for batch in (whole.slice(i, step) for whole in batches for i in range(0, len(whole), step)):
            start, end = end, end + len(batch)
            try:
                vectors = vectors_of(batch, columns, d, impute=impute)
            except VectorError as error:
                raise InputError(f"{path}, rows {start + 1} to {end}: {error}") from None
            kept = {name: batch.column(name) for name in types}
            yield RowChunk(finite(vectors, path, start, impute), end / total, kept)

    return Rows(path, d, row_chunks, types)


def _refuse_changed(chunk: Chunk) -> None:
    system, path = _opened(chunk.path)
    info = system.get_file_info(path)
    if (info.size, info.mtime_ns) != (chunk.size, chunk.changed_ns):
        raise InputError(f"{chunk.path} has changed since this command began: run it again when nothing writes to it")


@contextmanager
def _naming(path: str) -> Iterator[None]:
    try:
        yield
    except InputError:  # it names the file, and is a ValueError
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}") from None


def _files(source: str) -> list[str]:
    if source.endswith(".metadata.json"):
        raise InputError(f"{source}: of tables those of Delta are read; of files .parquet, .arrow, .csv and .npy")
    system, path = _opened(source)
    info = system.get_file_info(path)
    if info.type == pa.fs.FileType.NotFound:
        raise InputError(f"there is no {source}")
    if info.is_file:
        return [source]
    if system.get_file_info(f"{path}/_delta_log").type != pa.fs.FileType.NotFound:
        return _delta_files(source)
    prefix = source.partition("://")[0] + "://" if "://" in source else ""
    files = [file for file in system.get_file_info(pa.fs.FileSelector(path, recursive=True)) if file.is_file]
    return sorted(prefix + file.path for file in files if _is_data(file.path.removeprefix(path)))


def _is_data(path: str) -> bool:
    """Return whether files of that name are read. Names that start with _ or . are engines' temporary files."""
    return bool(_kind(path)) and not any(name.startswith(("_", ".")) for name in path.split("/"))


def _delta_files(source: str) -> list[str]:
    from deltalake import DeltaTable, exceptions  # an optional package

    table = DeltaTable(source)
    try:
        table.to_pyarrow_dataset()  # refuses what its files do not show, such as deletion vectors
    except exceptions.DeltaProtocolError as error:
        raise InputError(f"{source} is more than its files: {error}") from None
    return sorted(table.file_uris())


def _opened(path: str) -> tuple[Any, str]:
    opened: tuple[Any, str] = pa.fs.FileSystem.from_uri(path if "://" in path else str(Path(path).absolute()))
    return opened


def _spelled_alike(path: str) -> str:
    """The path or the URL as all spellings of it are: absolute and in a folder without links."""
    system, local = _opened(path)
    folder, name = os.path.split(local)
    return f"{os.path.realpath(folder)}/{name}" if isinstance(system, pa.fs.LocalFileSystem) else path


def _kind(path: str) -> str:
    return _KINDS.get(path.rsplit(".", 1)[-1].lower(), "")


def _chunks(path: str) -> list[Chunk]:
    system, local = _opened(path)
    info, starts = system.get_file_info(local), list[int]([0])
    with _naming(path):
        if _kind(path) == "parquet":
            with system.open_input_file(local) as file:
                metadata = parquet.ParquetFile(file).metadata
                starts = [i for i in range(metadata.num_row_groups) if metadata.row_group(i).num_rows]
        elif _kind(path) == "npy":
            if not isinstance(system, pa.fs.LocalFileSystem):
                raise InputError(f"{path}: .npy files are read from local folders, files in buckets as .parquet")
            starts = list(range(0, len(mapped_npy(Path(local))), _NPY_ROWS))
    return [Chunk(path, info.size, info.mtime_ns, start) for start in starts]


def _column_names(path: str) -> list[str]:
    system, local = _opened(path)
    if _kind(path) == "npy":
        return [_VECTOR]
    with system.open_input_file(local) as file:
        if _kind(path) == "parquet":
            return list(parquet.read_schema(file).names)
        opened = pa.ipc.open_file(file) if _kind(path) == "arrow" else pa.csv.open_csv(file)
        return list(opened.schema.names)


def _batches(chunk: Chunk, columns: Sequence[str], numbers: Sequence[str]) -> Iterator[Any]:
    system, path = _opened(chunk.path)
    kind = _kind(path)
    if kind == "npy":
        rows = mapped_npy(Path(path))[chunk.start : chunk.start + _NPY_ROWS]
        step = max(_BATCH_NUMBERS // rows.shape[1], 1)
        for start in range(0, len(rows), step):
            vectors = np.ascontiguousarray(rows[start : start + step], np.float64)
            yield pa.record_batch([fixed_size_lists(vectors)], [_VECTOR])
        return
    with system.open_input_file(path) as file:
        if kind == "parquet":
            # else it reads the whole row group
            opened = parquet.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)
            group = opened.metadata.row_group(chunk.start)
            entries = sum(group.column(i).num_values for i in range(group.num_columns))  # bytes say little: encodings
            step = max(_BATCH_NUMBERS * group.num_rows // max(entries, 1), 1)
            yield from opened.iter_batches(step, row_groups=[chunk.start], columns=columns)
        elif kind == "arrow":
            batches = pa.ipc.open_file(file)
            for i in range(batches.num_record_batches):
                batch = batches.get_batch(i)
                step = max(8 * _BATCH_NUMBERS * len(batch) // max(batch.nbytes, 1), 1)
                yield from (batch.slice(start, step) for start in range(0, max(len(batch), 1), step))
        else:  # the start of a file says neither the types of its columns nor whether others can be read
            types = {"partition": pa.int64(), "offset": pa.int64(), **dict.fromkeys(numbers, pa.float64())}
            names = [name for name in _column_names(chunk.path) if name in columns]
            options = pa.csv.ConvertOptions(column_types=types, include_columns=names)
            yield from pa.csv.open_csv(file, convert_options=options)
