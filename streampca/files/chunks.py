"""Divides files into chunks that are learned one by one: row groups of Parquet, parts of .npy files, and other files.

The chunks depend on the files alone, so that the number of workers changes no bit of what is learned.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.fs
from pyarrow import parquet

from streampca.errors import InputError
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from streampca.files.rows import (
    READABLE_SUFFIXES,
    FileBatch,
    find_kind,
    input_errors,
    map_npy,
    open_seekable,
    require_kind,
)

_NPY_ROWS = 2**16  # number of rows in a chunk of an .npy file


class Chunk(NamedTuple):
    """A file, or the part of a file that is learned in one step."""

    path: str  # absolute, or a URL
    size: int  # of the file
    changed_ns: int  # when the file was last changed; another size or time shows that the file was replaced
    start: int = 0  # first row group of Parquet, or first row of .npy
    end: int | None = None  # the row group or row after the last one; None: the chunk is the whole file


def chunks_of(sources: Sequence[str]) -> list[Chunk]:
    """Divide files, folders and Delta tables into chunks, which are read one by one. Raises `InputError`."""
    # Links to folders are resolved, but not links to files, whose own names tell the kind of file.
    paths = [_resolve_folder(path) for source in sources for path in _list_files(source)]
    # A file is read once, even if several links lead to it.
    path_by_file = {os.path.realpath(path): path for path in paths}
    chunks = [chunk for path in path_by_file.values() for chunk in _split_file(path)]
    if not chunks:
        raise InputError(f"no rows in {', '.join(sources)}: these files can be read: {READABLE_SUFFIXES}")
    return chunks


def read(chunk: Chunk, options: FileOptions) -> Iterator[FileBatch]:
    """Yield the rows of a chunk. Raises `InputError`, also if the file has changed since the chunk was made."""
    _refuse_changed(chunk)
    bounds = None if chunk.end is None else (chunk.start, chunk.end)
    try:
        rows = open_rows(chunk.path, options, bounds)
        # `options.names` were learned before, or are those of the first file. If the first file has none, such as .npy,
        # its columns cannot be matched with the named columns of this file.
        if rows.names and not options.names:
            raise InputError(
                f"{chunk.path} has names for the dimensions, but the first file has none: give this file first"
            )
        yield from rows.batches()
    finally:
        # If the file changed meanwhile, another error would mislead.
        _refuse_changed(chunk)


def _refuse_changed(chunk: Chunk) -> None:
    """Raise `InputError` if the file has changed since the chunk was made."""
    file_system, path = _locate(chunk.path)
    info = file_system.get_file_info(path)
    if (info.size, info.mtime_ns) != (chunk.size, chunk.changed_ns):
        raise InputError(f"{chunk.path} has changed since this command began: run it again when nothing writes to it")


def _list_files(source: str) -> list[str]:
    """Return the paths of the files in a source: a file, a folder or a Delta table. Raises `InputError`."""
    is_iceberg_table = source.endswith(".metadata.json")
    if is_iceberg_table:  # its data files may hold deleted rows
        raise InputError(f"{source} is an Iceberg table, and only Delta tables can be read")
    file_system, path = _locate(source)
    info = file_system.get_file_info(path)
    if info.type == pa.fs.FileType.NotFound:
        raise InputError(f"there is no {source}")
    if info.is_file:
        require_kind(source)
        return [source]
    is_delta_table = file_system.get_file_info(f"{path}/_delta_log").type != pa.fs.FileType.NotFound
    if is_delta_table:
        return _list_delta_files(source)
    return _list_folder(source, file_system, path)


def _list_folder(source: str, file_system: Any, path: str) -> list[str]:
    """Return the paths or URLs of the files in a folder and its subfolders, sorted."""
    entries = file_system.get_file_info(pa.fs.FileSelector(path, recursive=True))
    files = sorted(entry.path for entry in entries if entry.is_file and _is_data_file(entry.path.removeprefix(path)))
    if "://" not in source:
        return files
    scheme, _, _ = source.partition("://")  # which pyarrow leaves out
    return [f"{scheme}://{file}" for file in files]


def _is_data_file(path: str) -> bool:
    """Return whether a file in a folder is read: its suffix is known, and it is not an engine's temporary file."""
    is_temporary = any(name.startswith(("_", ".")) for name in path.split("/"))
    return not is_temporary and find_kind(path) is not None


def _list_delta_files(source: str) -> list[str]:
    """Return the URLs of the files of a Delta table. If these do not suffice to read it, raises `InputError`."""
    from deltalake import DeltaTable, exceptions

    table = DeltaTable(source)
    try:
        table.to_pyarrow_dataset()  # raises if a reader needs more than the files, such as lists of deleted rows
    except exceptions.DeltaProtocolError as error:
        raise InputError(f"{source} is more than its files: {error}") from None
    return sorted(table.file_uris())


def _locate(path: str) -> tuple[Any, str]:
    """Return the file system of a path or URL, and the path in it."""
    located: tuple[Any, str] = pa.fs.FileSystem.from_uri(path if "://" in path else str(Path(path).absolute()))
    return located


def _resolve_folder(path: str) -> str:
    """Return the absolute path of a local file with the links in its folder resolved, or a URL as it is.

    A link to the file itself is kept, because its name tells the kind of file.
    """
    file_system, local_path = _locate(path)
    if not isinstance(file_system, pa.fs.LocalFileSystem):
        return path
    folder, name = os.path.split(local_path)
    return f"{os.path.realpath(folder)}/{name}"


def _split_file(path: str) -> list[Chunk]:
    """Divide a file into chunks: row groups of Parquet, equal parts of .npy, otherwise the whole file."""
    file_system, local_path = _locate(path)
    info = file_system.get_file_info(local_path)
    whole_file = Chunk(path, info.size, info.mtime_ns)
    kind, compression = require_kind(path)
    if compression or kind not in ("parquet", "npy"):
        return [whole_file]
    with input_errors(path, pa.ArrowException), open_seekable(path) as file:
        if kind == "npy":
            row_count = len(map_npy(file, path))
            bounds = [(start, min(start + _NPY_ROWS, row_count)) for start in range(0, row_count, _NPY_ROWS)]
        else:
            with parquet.ParquetFile(file) as table:
                row_groups = range(table.num_row_groups)
                bounds = [(i, i + 1) for i in row_groups if table.metadata.row_group(i).num_rows]
    return [whole_file._replace(start=start, end=end) for start, end in bounds]
