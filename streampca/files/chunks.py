"""Files in chunks that are learned one by one: row groups of Parquet, parts of .npy files, and whole other files.

The chunks follow from the data alone, never from who reads them, so that the number of workers changes no bit.
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
from streampca.files.rows import READABLE, FileBatch, kind_of, mapped_npy, naming, readable, seekable

_NPY_ROWS = 2**16  # of a chunk


class Chunk(NamedTuple):
    path: str  # absolute, or a URL
    size: int  # of the file
    changed_ns: int  # when the file was changed; two of one name are different files
    start: int = 0  # row group of Parquet; first row of .npy
    end: int | None = None  # None: the chunk is the whole file


def chunks_of(sources: Sequence[str]) -> list[Chunk]:
    """The chunks of files, of folders with files, and of Delta tables, by name. Raises `InputError`."""
    paths = [_spelled_alike(path) for source in sources for path in _files(source)]
    once = {os.path.realpath(path): path for path in paths}  # a link's own name says what the file is
    chunks = [chunk for path in once.values() for chunk in _chunks(path)]
    if not chunks:
        raise InputError(f"no rows in {', '.join(sources)}: files {READABLE}")
    return chunks


def read(chunk: Chunk, options: FileOptions) -> Iterator[FileBatch]:
    """The rows of a chunk.

    Raises `InputError`, also if the file is another one than when the chunk was made, or becomes another one.
    """
    _refuse_changed(chunk)
    try:
        rows = open_rows(chunk.path, options, None if chunk.end is None else (chunk.start, chunk.end))
        if rows.names and not options.names:
            raise InputError(f"{chunk.path} has names for the dimensions, but the first file has none: name it first")
        yield from rows.batches()
    finally:  # what cannot be read may be half of another file
        _refuse_changed(chunk)


def _refuse_changed(chunk: Chunk) -> None:
    system, path = _opened(chunk.path)
    info = system.get_file_info(path)
    if (info.size, info.mtime_ns) != (chunk.size, chunk.changed_ns):
        raise InputError(f"{chunk.path} has changed since this command began: run it again when nothing writes to it")


def _files(source: str) -> list[str]:
    if source.endswith(".metadata.json"):
        raise InputError(f"{source}: of tables those of Delta can be read")
    system, path = _opened(source)
    info = system.get_file_info(path)
    if info.type == pa.fs.FileType.NotFound:
        raise InputError(f"there is no {source}")
    if info.is_file:
        readable(source)
        return [source]
    if system.get_file_info(f"{path}/_delta_log").type != pa.fs.FileType.NotFound:
        return _delta_files(source)
    prefix = source.partition("://")[0] + "://" if "://" in source else ""
    files = [file for file in system.get_file_info(pa.fs.FileSelector(path, recursive=True)) if file.is_file]
    return sorted(prefix + file.path for file in files if _is_data(file.path.removeprefix(path)))


def _is_data(path: str) -> bool:
    """Return whether files of that name are read. Names that start with _ or . are engines' temporary files."""
    return kind_of(path) is not None and not any(name.startswith(("_", ".")) for name in path.split("/"))


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


def _chunks(path: str) -> list[Chunk]:
    system, local = _opened(path)
    info, (kind, packing) = system.get_file_info(local), readable(path)
    whole = Chunk(path, info.size, info.mtime_ns)
    if packing or kind not in ("parquet", "npy"):
        return [whole]
    with naming(path, pa.ArrowException), seekable(path) as file:
        if kind == "npy":
            n = len(mapped_npy(file, path))
            bounds = [(start, min(start + _NPY_ROWS, n)) for start in range(0, n, _NPY_ROWS)]
        else:
            with parquet.ParquetFile(file) as table:
                groups = range(table.num_row_groups)
                bounds = [(i, i + 1) for i in groups if table.metadata.row_group(i).num_rows]
    return [whole._replace(start=start, end=end) for start, end in bounds]
