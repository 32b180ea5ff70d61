"""Checkpoints in a store: `checkpoints/<topic>/<partition>/<next offset, 20 digits>.npz`.

A backfill is one more partition; its folder is `backfill-<number>`.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import NoReturn

import structlog

from streampca.errors import DamagedFileError, ForeignStoreError, NewerFormatError, StaleListingError, StoreError
from streampca.fold import checkpoint as files
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.partitions import BACKFILL, backfill_partition, partition_name
from streampca.stores import identity, numbered
from streampca.stores.base import Store
from streampca.stores.identity import StoreIdentity

log = structlog.get_logger()


class Checkpoints:
    """The checkpoints of one topic. Each is a correct state, so the newest undamaged one is used."""

    def __init__(self, store: Store, topic: str, keep: int = 3) -> None:
        self._store, self.topic, self._folder, self._keep = store, topic, f"checkpoints/{topic}", keep
        self._skipped: set[tuple[int, int]] = set()  # partition, offset: not usable, so an older one was used
        self._held: dict[int, int] = {}  # partition → offset of the newest checkpoint loaded or saved

    def snapshot(self) -> "Checkpoints":
        """A short-lived view with one cached listing."""
        same = copy.copy(self)  # shares _skipped and _held
        same._store = self._store.snapshot(self._folder)
        return same

    def identity(self) -> StoreIdentity:
        """The identity of the store, which is created if it has none. Raises as `stores.identity.ensure`."""
        return identity.ensure(self._store)

    def partitions(self) -> list[int]:
        """Partitions that have checkpoints, ascending; backfills come last."""
        stems = [name.rsplit("/", 1)[-1] for name in self._store.names(self._folder)]
        numbers = [stem.removeprefix(BACKFILL) for stem in stems if stem.startswith(BACKFILL)]
        backfills = (backfill_partition(int(number)) for number in numbers if number.isdigit())
        return sorted([*(int(stem) for stem in stems if stem.isdigit()), *backfills])

    def offsets(self, partition: int) -> list[int]:
        """Next offsets of a partition's checkpoints, ascending."""
        return numbered.numbers(self._store, folder_of(self.topic, partition))

    def newest(self, partition: int) -> Checkpoint | None:
        """The newest checkpoint that is undamaged and can be read; None if there are none. Others are logged.

        Raises `DamagedFileError` if all files are damaged: a person must decide whether to start from scratch.
        Raises `StoreError` if a retry can help: none can be read, or all that were listed are gone.
        """
        failures: dict[int, Exception] = {}
        while left := [offset for offset in self.offsets(partition) if offset not in failures]:
            try:
                checkpoint = self._load(partition, left[-1])
            except NewerFormatError:
                raise  # not damaged: falling back would learn again what a newer release has learned
            except (FileNotFoundError, DamagedFileError, StoreError) as error:
                failures[left[-1]] = error  # not found: pruned since it was listed, so a newer one exists
            else:
                self._log_skipped(partition, {o: e for o, e in failures.items() if o > left[-1]})
                self._held[partition] = max(left[-1], self._held.get(partition, -1))
                return checkpoint
        if failures:
            self._raise_unusable(partition, failures)
        self._held.pop(partition, None)
        return None

    def at(self, partition: int, offset: int) -> bytes:
        """The file of one checkpoint. Raises `FileNotFoundError`."""
        return self._store.read(self._path(partition, offset))

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then delete the partition's oldest ones beyond `keep`.

        Raises `DamagedFileError` if it could not be read back: it must not replace a readable one. Raises `StoreError`
        if the store holds one that is ahead of it, or no longer holds the one before it.
        """
        partition, data = checkpoint.partition, files.encode(checkpoint)
        try:
            files.decode(data)
        except DamagedFileError as error:
            raise DamagedFileError(f"the state of partition {partition} cannot be saved: {error}") from None
        position, existing = checkpoint.fold.position, self.offsets(partition)
        self._refuse_ahead(partition, position, existing)
        self._refuse_emptied(partition, existing)
        numbered.write(self._store, folder_of(self.topic, partition), position, data, existing, self._keep)
        self._held[partition] = position

    def refuse_group_ahead(self, partition: int, committed: int) -> None:
        """Raise `ForeignStoreError` if the group has committed an offset that no checkpoint has reached.

        Offsets are committed after their checkpoint is on disk, so with our own store this cannot be.
        """
        newest = max(self.offsets(partition), default=None)  # by the files' names: the newest file may be damaged
        if newest is None or committed > newest:
            held = "no checkpoint" if newest is None else f"no checkpoint beyond offset {newest}"
            raise ForeignStoreError(
                f"the consumer group has committed offset {committed} of partition {partition} of {self.topic}, but "
                f"the store holds {held} of it: is the volume mounted, is it this group's store, or was it restored "
                "from an older backup? To continue from this store all the same, run `streampca reset`"
            )

    def _log_skipped(self, partition: int, failures: Mapping[int, Exception]) -> None:
        for offset, error in failures.items():
            if not isinstance(error, FileNotFoundError):
                self._skipped.add((partition, offset))
                state = "damaged" if isinstance(error, DamagedFileError) else "unreadable"  # it may be readable later
                log.error(f"checkpoint {state}, falling back", file=self._path(partition, offset), error=str(error))

    def _raise_unusable(self, partition: int, failures: Mapping[int, Exception]) -> NoReturn:
        for error in failures.values():
            if isinstance(error, StoreError):
                raise error
        names = [self._path(partition, offset) for offset in failures]
        if any(isinstance(error, FileNotFoundError) for error in failures.values()):
            raise StaleListingError(
                f"every checkpoint of partition {partition} that the store lists is gone ({', '.join(names)}): a "
                "network file system may list a folder as it was a minute ago"
            )
        for name, error in zip(names, failures.values(), strict=True):
            log.error("checkpoint damaged", file=name, error=str(error))
        raise DamagedFileError(
            f"every checkpoint of partition {partition} is damaged ({', '.join(names)}); restore one from a "
            "backup, or delete them to learn the partition again from its earliest record, and run `streampca reset`"
        )

    def _refuse_ahead(self, partition: int, position: int, existing: Sequence[int]) -> None:
        """Raise `StoreError` if another writer, or another store's contents, are ahead of us."""
        for offset in reversed(existing):
            if offset > position and (partition, offset) not in self._skipped and self._is_intact(partition, offset):
                raise StoreError(
                    f"the store holds a checkpoint of partition {partition} at offset {offset}, which is ahead of "
                    f"this worker's, {position}: another worker has written it, or another volume was mounted"
                )

    def _refuse_emptied(self, partition: int, existing: Sequence[int]) -> None:
        """Raise `StoreError` if the checkpoint before is gone: only a writer ahead of us could have pruned it."""
        held = self._held.get(partition)
        if held is not None and held not in existing:
            raise StoreError(
                f"the store no longer holds the checkpoint of partition {partition} at offset {held}, which this "
                "worker has loaded or written: was the volume unmounted, or were files deleted?"
            )

    def _is_intact(self, partition: int, offset: int) -> bool:
        try:
            self._load(partition, offset)
        except (FileNotFoundError, DamagedFileError, StoreError):
            return False
        return True

    def _load(self, partition: int, offset: int) -> Checkpoint:
        checkpoint = files.decode(self._store.read(self._path(partition, offset)))
        held = (checkpoint.topic, checkpoint.partition, checkpoint.fold.position)
        if held != (self.topic, partition, offset):
            raise DamagedFileError("it holds the checkpoint of topic {}, partition {}, offset {}".format(*held))
        return checkpoint

    def _path(self, partition: int, offset: int) -> str:
        return numbered.path(folder_of(self.topic, partition), offset)


def folder_of(topic: str, partition: int) -> str:
    """The folder of a partition's checkpoints; of a backfill, also of its other files."""
    return f"checkpoints/{topic}/{partition_name(partition)}"
