"""Checkpoints in a store: `checkpoints/<topic>/<partition>/<next offset, 20 digits>.npz`.

A backfill is one more partition; its folder is `backfill-<number>`.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import NoReturn

import structlog

from streampca.errors import DamagedFileError, StaleListingError, StoreError
from streampca.fold import checkpoint as files
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.partitions import parse_partition, partition_name
from streampca.stores import identity, numbered
from streampca.stores.base import Store
from streampca.stores.identity import StoreIdentity
from streampca.stores.parallel_requests import ParallelRequests, R, RequestThreads

log = structlog.get_logger()


class _Memory:
    """What a process remembers of the checkpoints in its store. Threads may share it: each step is atomic."""

    def __init__(self) -> None:
        self.found_damaged: set[tuple[int, int]] = set()  # partition and offset of checkpoints that are damaged
        self.newest_known: dict[int, int] = {}  # partition → highest offset of a checkpoint loaded or saved
        self.identity: StoreIdentity | None = None  # None until it was asked for


class Checkpoints:
    """The checkpoints of one topic. Each is a correct state, so the newest undamaged one is used."""

    def __init__(self, store: Store, topic: str, keep: int = 3, threads: Executor | None = None) -> None:
        """`threads` run the requests of `for_each`; by default, each request has a thread of its own."""
        self._store = store
        self.threads = threads or RequestThreads()
        self.topic = topic
        self._folder = f"checkpoints/{topic}"
        self._keep = keep  # checkpoints of each partition
        self._memory = _Memory()

    def snapshot(self) -> "Checkpoints":
        """Return a short-lived view that lists the store once, now."""
        view = copy.copy(self)  # shares the memory
        view._store = self._store.snapshot(self._folder)
        return view

    def ensure_identity(self, found: StoreIdentity | None = None) -> StoreIdentity:
        """Create the identity of the store if it has none. Remember it for `is_same_store`, and return it.

        `found` is what `find_identity` has returned. A real identity is not read again: if its file was deleted
        meanwhile, the store would get a second identity, which the group does not know. Raises `StoreError`, and
        `DamagedFileError` if the file is damaged.
        """
        if found is None or found.is_placeholder:  # a placeholder stands in for the identity of a store that has none
            found = identity.ensure(self._store)  # reads the file, and creates it if it is missing
        self._memory.identity = found
        return found

    def is_same_store(self) -> bool:
        """Return whether the store still has the identity that `ensure_identity` has returned."""
        if self._memory.identity is None:  # `ensure_identity` was not called
            return True
        try:
            return identity.find(self._store) == self._memory.identity
        except DamagedFileError:
            return False

    def find_identity(self) -> StoreIdentity:
        """Return the identity of the store; if it has none yet, a placeholder, which differs from every identity.

        Nothing is written to the store. Raises `StoreError`, and `DamagedFileError` if the identity's file is damaged.
        """
        return identity.find(self._store) or identity.create_placeholder(self._store)

    def partitions(self) -> list[int]:
        """List the partitions that have checkpoints, ascending; backfills come last."""
        names = [path.rsplit("/", 1)[-1] for path in self._store.names(self._folder)]
        partitions = [parse_partition(name) for name in names]  # None: the name is not that of a partition
        return sorted(partition for partition in partitions if partition is not None)

    def offsets(self, partition: int) -> list[int]:
        """List the next offsets of a partition's checkpoints, ascending."""
        return numbered.list_numbers(self._store, name_folder(self.topic, partition))

    def newest_offsets(self) -> dict[int, int]:
        """Return the next offset of the newest checkpoint of each partition that has one."""
        offsets: dict[int, int] = {}
        for partition in self.partitions():
            offsets_of_partition = self.offsets(partition)  # empty if the partition's folder has no checkpoint
            if offsets_of_partition:
                offsets[partition] = offsets_of_partition[-1]
        return offsets

    def sizes(self, offsets: Mapping[int, int]) -> dict[int, int]:
        """Return the bytes of the checkpoints at these offsets, by partition."""
        return {partition: self._store.size(self._path(partition, offset)) for partition, offset in offsets.items()}

    def for_each(self, sizes: Mapping[int, int], function: Callable[[int], R]) -> ParallelRequests[R]:
        """Call a function for each partition, in parallel.

        `sizes` are the bytes that each call reads or writes, by partition.
        """
        return ParallelRequests(self.threads, function, sizes)

    def load_newest(self, offsets: Mapping[int, int]) -> ParallelRequests[Checkpoint | None]:
        """Load the newest checkpoints of partitions in parallel. `offsets` are what `newest_offsets` has returned."""
        return self.for_each(self.sizes(offsets), self.newest)

    def newest(self, partition: int) -> Checkpoint | None:
        """Load the newest undamaged checkpoint; None if there are no files.

        Raises `DamagedFileError` if all files are damaged, and `StoreError` if a retry can help.
        """
        error_by_offset: dict[int, Exception] = {}  # of the checkpoints that could not be loaded
        while True:
            # List again after each error: a newer checkpoint may have been saved.
            untried_offsets = [offset for offset in self.offsets(partition) if offset not in error_by_offset]
            if not untried_offsets:
                break
            offset = untried_offsets[-1]  # the newest
            try:
                checkpoint = self._load(partition, offset)
            except (FileNotFoundError, DamagedFileError) as error:  # a `StoreError` is not caught: a retry may help
                error_by_offset[offset] = error
                continue
            self._remember_loaded(partition, offset, error_by_offset)
            return checkpoint
        if error_by_offset:
            self._raise_unusable(partition, error_by_offset)
        # A user may have deleted all checkpoints. Forget the newest one, so that no error of `save` calls it lost.
        self._memory.newest_known.pop(partition, None)
        return None

    def read_file(self, partition: int, offset: int) -> bytes:
        """Return the content of a checkpoint's file. Raises `FileNotFoundError`."""
        return self._store.read(self._path(partition, offset))

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then delete the oldest of its partition until `keep` are left.

        Raises `DamagedFileError`, and writes nothing, if the checkpoint's bytes cannot be decoded. Raises `StoreError`
        if another worker is ahead, or if the store was replaced.
        """
        partition = checkpoint.partition
        data = _encode_readable(checkpoint)
        position = checkpoint.fold.position
        existing_offsets = self.offsets(partition)
        self._refuse_if_store_is_ahead(partition, position, existing_offsets)
        self._refuse_if_store_was_replaced(partition, existing_offsets)
        folder = name_folder(self.topic, partition)
        numbered.write(self._store, folder, position, data, existing=existing_offsets, keep=self._keep)
        self._memory.newest_known[partition] = position

    def replace(self, before: Checkpoint, after: Checkpoint) -> None:
        """Write `after`, and delete all other checkpoints of its partition. No worker of the group may be running.

        `before`, the newest checkpoint, is deleted last, so that an interrupted call can be repeated.
        """
        data = _encode_readable(after)
        partition = before.partition
        offset_before = before.fold.position
        offset_after = after.fold.position
        for offset in self.offsets(partition):
            if offset != offset_before:
                self._store.delete(self._path(partition, offset))
        self._store.write(self._path(partition, offset_after), data)
        if offset_before != offset_after:
            self._store.delete(self._path(partition, offset_before))
        self._memory.newest_known[partition] = offset_after

    def _remember_loaded(self, partition: int, offset: int, error_by_offset: Mapping[int, Exception]) -> None:
        """Remember for `save` the checkpoint that was loaded. Remember and log the newer ones that are damaged."""
        for failed_offset, error in error_by_offset.items():
            # A checkpoint that was deleted between listing and loading it is not damaged.
            was_deleted = isinstance(error, FileNotFoundError)
            if failed_offset > offset and not was_deleted:
                self._memory.found_damaged.add((partition, failed_offset))
                file = self._path(partition, failed_offset)
                log.error("checkpoint damaged, falling back", file=file, error=str(error))
        newest_known = self._memory.newest_known.get(partition, offset)
        self._memory.newest_known[partition] = max(newest_known, offset)

    def _raise_unusable(self, partition: int, error_by_offset: Mapping[int, Exception]) -> NoReturn:
        """Raise the error that explains why none of the partition's checkpoints can be used."""
        name = partition_name(partition)
        error_by_file = {self._path(partition, offset): error for offset, error in error_by_offset.items()}
        files_text = ", ".join(error_by_file)
        # One missing file is enough: a later listing may show other checkpoints, which are undamaged.
        is_listing_stale = any(isinstance(error, FileNotFoundError) for error in error_by_offset.values())
        if is_listing_stale:
            raise StaleListingError(
                f"every checkpoint of partition {name} that the store lists is gone ({files_text}): a "
                "network file system may list a folder as it was a minute ago"
            )
        for file, error in error_by_file.items():
            log.error("checkpoint damaged", file=file, error=str(error))
        raise DamagedFileError(
            f"every checkpoint of partition {name} is damaged ({files_text}); restore one from a backup and run "
            f"`streampca reset`, or do without what was learned: `streampca reset --drop {name}`"
        )

    def _refuse_if_store_is_ahead(self, partition: int, position: int, existing_offsets: Sequence[int]) -> None:
        """Raise `StoreError` if the store holds an intact checkpoint ahead of the position that this worker saves."""
        offsets_ahead = [offset for offset in existing_offsets if offset > position]
        for offset in reversed(offsets_ahead):  # the newest first: the error names it
            was_found_damaged = (partition, offset) in self._memory.found_damaged
            if not was_found_damaged and self._is_intact(partition, offset):
                raise StoreError(
                    f"the store holds a checkpoint of partition {partition} at offset {offset}, which is ahead of "
                    f"this worker's, {position}: another worker has written it, or another volume was mounted"
                )

    def _refuse_if_store_was_replaced(self, partition: int, existing_offsets: Sequence[int]) -> None:
        """Raise `StoreError` if the store was replaced, for example because its volume was unmounted.

        If the store still holds the newest checkpoint that this process has loaded or saved, it was not replaced.
        """
        newest_known = self._memory.newest_known.get(partition)  # None: no checkpoint of the partition is known
        if newest_known is not None and newest_known in existing_offsets:
            return
        if self.is_same_store():  # no checkpoint was known yet, or a user has deleted the newest one
            return
        name = partition_name(partition)
        lost_files = f"this store's own {identity.NAME}"  # now another store's identity is there, or none
        if newest_known is not None:
            lost_files = f"the checkpoint of partition {name} at offset {newest_known}, and {lost_files}"
        raise StoreError(
            f"the store no longer holds {lost_files}, so partition {name} is not saved: was the volume "
            "unmounted, or were files deleted?"
        )

    def _is_intact(self, partition: int, offset: int) -> bool:
        """Return whether a checkpoint exists and is undamaged."""
        try:
            self._load(partition, offset)
        except (FileNotFoundError, DamagedFileError):
            return False
        return True

    def _load(self, partition: int, offset: int) -> Checkpoint:
        """Load one checkpoint. Raises `DamagedFileError` if its file is damaged or holds another checkpoint."""
        checkpoint = files.decode(self._store.read(self._path(partition, offset)))
        position = checkpoint.fold.position
        is_expected = (checkpoint.topic, checkpoint.partition, position) == (self.topic, partition, offset)
        if not is_expected:
            raise DamagedFileError(
                f"it holds the checkpoint of topic {checkpoint.topic}, partition {checkpoint.partition}, "
                f"offset {position}"
            )
        return checkpoint

    def _path(self, partition: int, offset: int) -> str:
        return numbered.path(name_folder(self.topic, partition), offset)


def _encode_readable(checkpoint: Checkpoint) -> bytes:
    """Return the bytes of a checkpoint's file. Raises `DamagedFileError` if they cannot be decoded."""
    data = files.encode(checkpoint)
    try:
        files.decode(data)
    except DamagedFileError as error:
        raise DamagedFileError(f"the state of partition {checkpoint.partition} cannot be saved: {error}") from None
    return data


def name_folder(topic: str, partition: int) -> str:
    """Return the folder of a partition's checkpoints. A backfill keeps its other files there, too."""
    return f"checkpoints/{topic}/{partition_name(partition)}"
