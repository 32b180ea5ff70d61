"""Executes a backfill into a store.

The parts of finished chunks are kept until all are merged, so that an interrupted backfill continues where it was.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from streampca.backfill.engines import Engine
from streampca.backfill.folding import ELEMENT_INDICES_KEY, BackfillPlan, Part, decode_element_indices, merge
from streampca.errors import InputError, SettingsError, StoreError
from streampca.files import open_rows
from streampca.files.chunks import Chunk
from streampca.files.columns import FileOptions
from streampca.files.rows import Rows
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.partitions import backfill_partition, partition_name
from streampca.formats.element_indices import ElementIndices
from streampca.stores.base import Store
from streampca.stores.checkpoints import Checkpoints, name_folder

# Fields of `FileOptions`. The key of a chunk always holds their values, see `_make_chunk_key`.
_OPTIONS_OF_FIRST_RELEASE = ("field", "header", "separator", "dimensions", "names", "impute", "other_columns")


def execute(
    store: Store, plan: BackfillPlan, chunks: Sequence[Chunk], engine: Engine, on_done: Callable[[int], object]
) -> tuple[Checkpoint, Any]:
    """Learn the chunks of files, and save the result: return the checkpoint and a table of the rejected rows.

    `on_done` is called with the number of finished chunks. Raises `InputError` if no row can be learned, and
    `SettingsError` if the store has checkpoints with other settings, or a backfill of other files with `plan.number`.
    """
    backfill = _StoredBackfill(store, plan, chunks)
    backfill.refuse_other_settings()
    backfill.refuse_other_sources()
    checkpoint = backfill.read_checkpoint()
    if checkpoint is None:
        backfill.fold_missing_chunks(engine, on_done)  # saves a part for each chunk: its fold and its rejected rows
        checkpoint = backfill.merge_and_save()
    rejects = backfill.read_table("rejects.parquet")
    backfill.delete_parts()
    return checkpoint, rejects


def add_names_of_dimensions(store: Store, plan: BackfillPlan, chunks: Sequence[Chunk]) -> tuple[BackfillPlan, Rows]:
    """Return the plan with names of the dimensions, and the opened first file. Raises `InputError`.

    The names are those of the plan, of the topic's checkpoints, or of the first file.
    """
    config = plan.fold_config
    names = config.names or _find_names_in_checkpoints(Checkpoints(store, plan.topic))
    first_file = open_rows(chunks[0].path, plan.options._replace(names=names))
    config = replace(config, names=names or first_file.names)
    return replace(plan, fold_config=config), first_file


def _find_names_in_checkpoints(checkpoints: Checkpoints) -> list[str] | None:
    """Return the names of the dimensions in the first checkpoint that has names, or None."""
    for partition in checkpoints.partitions():
        checkpoint = checkpoints.newest(partition)
        if checkpoint and checkpoint.names:
            return checkpoint.names
    return None


class _StoredBackfill:
    """A backfill in the store: the parts of its chunks, and when they are merged, a checkpoint and rejected rows."""

    def __init__(self, store: Store, plan: BackfillPlan, chunks: Sequence[Chunk]) -> None:
        self._store = store
        self._plan = plan
        self._checkpoints = Checkpoints(store, plan.topic)
        self._partition = backfill_partition(plan.number)
        self.folder = name_folder(plan.topic, self._partition)
        self._parts_folder = f"{self.folder}/parts"  # a part is the fold of a chunk, which is a piece of a file
        self._chunk_by_key = {_make_chunk_key(chunk, plan): chunk for chunk in chunks}
        all_keys = "".join(self._chunk_by_key)
        # If a saved backfill has another digest of the chunks' keys, it has learned other files or columns.
        self._sources_digest = hashlib.blake2b(all_keys.encode(), digest_size=16).hexdigest()

    def refuse_other_settings(self) -> None:
        """Raise `SettingsError` if workers could not merge the backfill with what they have learned."""
        for partition in self._checkpoints.partitions():
            newest = self._checkpoints.newest(partition)
            if newest and newest.fold.stats.learned:
                # In files, `field` and `where` mean something else than in records. They are taken from the checkpoint,
                # so that only the remaining settings are compared.
                where = str(newest.settings.get("where", ""))
                compared_config = replace(self._plan.fold_config, field=newest.settings["field"], where=where)
                newest.refuse_other_settings(compared_config)

    def refuse_other_sources(self) -> None:
        """Raise `SettingsError` if this backfill's number is already used by a backfill of other files or columns."""
        saved_files = set(self._store.names(self.folder)) - {self._parts_folder}
        if not saved_files:  # no backfill, or an unfinished one, which has only parts
            return
        sources_file = f"{self.folder}/sources"
        if sources_file in saved_files and self._store.read(sources_file).decode() == self._sources_digest:
            return
        raise SettingsError(
            f"{partition_name(self._partition)} of {self._plan.topic} exists, of other files or "
            f"columns: give another --number, or `streampca backfill --remove {self._plan.number}` first; no row may "
            "be learned twice"
        )

    def read_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint of the backfill; None if it is not saved yet."""
        return self._checkpoints.newest(self._partition)

    def fold_missing_chunks(self, engine: Engine, on_done: Callable[[int], object]) -> None:
        """Fold the chunks that have no part yet, and save their parts."""
        paths = [path for path in self._store.names(self._parts_folder) if path.endswith(".npz")]
        saved_keys = {path.rsplit("/", 1)[-1].removesuffix(".npz") for path in paths}
        missing_chunks = {key: chunk for key, chunk in self._chunk_by_key.items() if key not in saved_keys}
        done_count = len(self._chunk_by_key) - len(missing_chunks)
        on_done(done_count)
        if not missing_chunks:
            return  # an engine would start its processes for nothing
        for key, part in engine(missing_chunks, self._plan):
            self._store.write(f"{self._parts_folder}/{key}.parquet", part.rejects_bytes)
            # Last: it marks the part as saved.
            self._store.write(f"{self._parts_folder}/{key}.npz", part.checkpoint_bytes)
            done_count += 1
            on_done(done_count)

    def merge_and_save(self) -> Checkpoint:
        """Merge the parts, save the result, and return its checkpoint.

        Raises `StoreError` if a part was deleted meanwhile, and `InputError` if no row was learned.
        """
        try:
            return self._merge_and_save_parts()
        except FileNotFoundError:
            # Perhaps another process has saved the same backfill, and then deleted its parts.
            checkpoint = self.read_checkpoint()
            if checkpoint is None:
                raise StoreError(f"parts of {self.folder} were deleted while they were merged: run it again") from None
            return checkpoint

    def _merge_and_save_parts(self) -> Checkpoint:
        """Merge the parts, and save the checkpoint and the table of rejected rows.

        Raises `FileNotFoundError` if a part was deleted, and `InputError` if no row was learned.
        """
        keys = list(self._chunk_by_key)
        # A generator keeps one part in memory at a time. `merge` does not need the rejects, which are joined below.
        parts = (Part(self._store.read(f"{self._parts_folder}/{key}.npz"), rejects_bytes=b"") for key in keys)
        checkpoint = merge(parts, self._plan)
        rejects = _join_rejects([self.read_table(f"parts/{key}.parquet") for key in keys])
        if not checkpoint.fold.stats.learned:
            row_count = checkpoint.fold.position  # rows of files have no offsets, so the position counts them
            raise InputError(f"no row was learned: {_explain_nothing_learned(row_count, rejects)}")
        self.refuse_other_settings()  # again, since folding may have taken hours
        self._store.create(f"{self.folder}/sources", self._sources_digest.encode())  # keeps a file that exists already
        self.refuse_other_sources()  # raises if the file exists already with the digest of other sources
        out = pa.BufferOutputStream()
        parquet.write_table(rejects, out)
        self._store.write(f"{self.folder}/rejects.parquet", out.getvalue().to_pybytes())
        self._checkpoints.save(checkpoint)  # last: a checkpoint marks the backfill as done
        return checkpoint

    def delete_parts(self) -> None:
        """Delete the parts of these chunks. Another process may be folding other files, whose parts stay."""
        for key in self._chunk_by_key:
            for suffix in ("npz", "parquet"):
                self._store.delete(f"{self._parts_folder}/{key}.{suffix}")

    def read_table(self, name: str) -> Any:
        """Read a Parquet file in the folder of the backfill as an Arrow table."""
        data = self._store.read(f"{self.folder}/{name}")
        # Threads of Arrow may abort the process at its exit.
        return parquet.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def _join_rejects(tables: Sequence[Any]) -> Any:
    """Return the tables of rejected rows as one table.

    If rows hold arrays such as [{"id": "temp", "value": 20.5}, …], the metadata of a table say which index each named
    element had in the rows of a chunk: here `temp` has the index 0. The metadata of the joined table say this for all
    chunks, with a warning if a name has different indices in some rows.
    """
    element_indices = ElementIndices()
    for table in tables:
        element_indices.add(decode_element_indices(table))
    return pa.concat_tables(tables).replace_schema_metadata({ELEMENT_INDICES_KEY: element_indices.encode()})


def _explain_nothing_learned(row_count: int, rejects: Any) -> str:
    """Say why no row was learned. `rejects` is the table of the rejected rows."""
    if row_count == 0:
        return "the files have no rows"
    skipped_count = row_count - len(rejects)
    first_reject = f", the first: {rejects['message'][0]}" if len(rejects) else ""
    return (
        f"of {row_count:,} rows {skipped_count:,} are not before --until or hold no vector, "
        f"{len(rejects):,} were rejected{first_reject}"
    )


def _make_chunk_key(chunk: Chunk, plan: BackfillPlan) -> str:
    """Return the key under which the part of a chunk is saved. It changes with the file and the settings.

    Options that a later release has added are in the key only if they are set. So a part that an earlier release has
    saved is found again.
    """
    config = plan.fold_config
    options = []
    for name, value in plan.files._asdict().items():
        is_set = value != FileOptions._field_defaults[name]
        if name in _OPTIONS_OF_FIRST_RELEASE or is_set:
            name_in_key = "others" if name == "other_columns" else name  # as the first release called it
            options.append(f"{name_in_key}={value!r}")
    # The first release hashed the `repr` of a tuple of these: any other text gives other keys.
    elements = [
        repr(tuple(chunk)),
        repr(config.as_dict()),
        repr(config.names),
        f"FileOptions({', '.join(options)})",
        repr(plan.timestamp_column),
        repr(plan.until),
    ]
    content = f"({', '.join(elements)})"
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()
