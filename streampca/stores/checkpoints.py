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
        self._store = store
        self.topic = topic
        self._folder = f"checkpoints/{topic}"
        self._keep = keep  # checkpoints of each partition
        self._skipped: set[tuple[int, int]] = set()  # partition and offset of checkpoints that could not be read
        self._newest_known: dict[int, int] = {}  # partition → offset of the newest checkpoint loaded or saved

    def snapshot(self) -> "Checkpoints":
        """Return a short-lived view that lists the store once, now."""
        view = copy.copy(self)  # shares _skipped and _newest_known
        view._store = self._store.snapshot(self._folder)
        return view

    def identity(self) -> StoreIdentity:
        """Return the identity of the store; if it has none, create it. Raises what `stores.identity.ensure` raises."""
        return identity.ensure(self._store)

    def known_identity(self) -> StoreIdentity:
        """The identity of the store; if it has none yet, one that equals no other. Raises as `stores.identity.find`."""
        return identity.find(self._store) or identity.absent(self._store)

    def partitions(self) -> list[int]:
        """List the partitions that have checkpoints, ascending; backfills come last."""
        partitions = []
        for path in self._store.names(self._folder):
            name = path.rsplit("/", 1)[-1]
            number = name.removeprefix(BACKFILL)
            if number.isdigit():
                is_backfill = number != name
                partitions.append(backfill_partition(int(number)) if is_backfill else int(number))
        return sorted(partitions)

    def offsets(self, partition: int) -> list[int]:
        """List the next offsets of a partition's checkpoints, ascending."""
        return numbered.numbers(self._store, folder_of(self.topic, partition))

    def newest(self, partition: int) -> Checkpoint | None:
        """Load the newest checkpoint that is undamaged and can be read. If there are no files, return None.

        Raises `DamagedFileError` if all files are damaged: a person must decide whether to start from scratch.
        Raises `StoreError` if a retry can help: no file can be read, or all that were listed are gone.
        """
        failures: dict[int, Exception] = {}
        # The folder is listed again after each failure: the file may be gone because a newer one was saved meanwhile.
        while untried := [offset for offset in self.offsets(partition) if offset not in failures]:
            offset = untried[-1]
            try:
                checkpoint = self._load(partition, offset)
            except NewerFormatError:
                raise  # not damaged: falling back would learn again what a newer release has learned
            except (FileNotFoundError, DamagedFileError, StoreError) as error:
                failures[offset] = error
            else:
                self._note_skipped(partition, {later: error for later, error in failures.items() if later > offset})
                self._newest_known[partition] = max(offset, self._newest_known.get(partition, offset))
                return checkpoint
        if failures:
            self._raise_unusable(partition, failures)
        self._newest_known.pop(partition, None)
        return None

    def at(self, partition: int, offset: int) -> bytes:
        """Read the file of one checkpoint. Raises `FileNotFoundError`."""
        return self._store.read(self._path(partition, offset))

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then delete the partition's oldest ones beyond `keep`.

        Raises `DamagedFileError` if the checkpoint could not be read back: it must not replace a readable one. Raises
        `StoreError` if the store holds a checkpoint ahead of it, or no longer holds the one before it.
        """
        partition = checkpoint.partition
        data = files.encode(checkpoint)
        try:
            files.decode(data)
        except DamagedFileError as error:
            raise DamagedFileError(f"the state of partition {partition} cannot be saved: {error}") from None
        position = checkpoint.fold.position
        existing = self.offsets(partition)
        self._refuse_ahead(partition, position, existing)
        self._refuse_emptied(partition, existing)
        folder = folder_of(self.topic, partition)
        numbered.write(self._store, folder, position, data, existing=existing, keep=self._keep)
        self._newest_known[partition] = position

    def refuse_group_ahead(self, partition: int, committed: int) -> None:
        """Raise `ForeignStoreError` if the group has committed an offset that no checkpoint has reached.

        Offsets are committed after their checkpoint is on disk, so with the group's own store this cannot happen.
        """
        newest = max(self.offsets(partition), default=None)  # from the files' names: the newest file may be damaged
        if newest is None or committed > newest:
            held = "no checkpoint" if newest is None else f"no checkpoint beyond offset {newest}"
            raise ForeignStoreError(
                f"the consumer group has committed offset {committed} of partition {partition} of {self.topic}, but "
                f"the store holds {held} of it: is the volume mounted, is it this group's store, or was it restored "
                "from an older backup? To continue from this store all the same, run `streampca reset`"
            )

    def _note_skipped(self, partition: int, failures: Mapping[int, Exception]) -> None:
        """Note and log checkpoints that could not be read, so that an older one is used."""
        for offset, error in failures.items():
            if isinstance(error, FileNotFoundError):
                continue  # it was deleted after it was listed
            self._skipped.add((partition, offset))
            state = "damaged" if isinstance(error, DamagedFileError) else "unreadable"  # the second may pass
            log.error(f"checkpoint {state}, falling back", file=self._path(partition, offset), error=str(error))

    def _raise_unusable(self, partition: int, failures: Mapping[int, Exception]) -> NoReturn:
        """Raise why none of the partition's checkpoints can be used."""
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
        """Raise `StoreError` if the store holds a checkpoint ahead of this position: another writer's or store's.

        A checkpoint that is not intact does not count: a worker that fell back from it reaches it again.
        """
        for offset in reversed(existing):
            is_ahead = offset > position
            if is_ahead and (partition, offset) not in self._skipped and self._is_intact(partition, offset):
                raise StoreError(
                    f"the store holds a checkpoint of partition {partition} at offset {offset}, which is ahead of "
                    f"this worker's, {position}: another worker has written it, or another volume was mounted"
                )

    def _refuse_emptied(self, partition: int, existing: Sequence[int]) -> None:
        """Raise `StoreError` if the checkpoint that this process loaded or saved last is gone.

        It is the newest that this process knows, so only a worker that has saved later ones would have deleted it.
        """
        known = self._newest_known.get(partition)
        if known is not None and known not in existing:
            raise StoreError(
                f"the store no longer holds the checkpoint of partition {partition} at offset {known}, which this "
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
        position = checkpoint.fold.position
        if (checkpoint.topic, checkpoint.partition, position) != (self.topic, partition, offset):
            raise DamagedFileError(
                f"it holds the checkpoint of topic {checkpoint.topic}, partition {checkpoint.partition}, "
                f"offset {position}"
            )
        return checkpoint

    def _path(self, partition: int, offset: int) -> str:
        return numbered.path(folder_of(self.topic, partition), offset)


def folder_of(topic: str, partition: int) -> str:
    """Return the folder of a partition's checkpoints. A backfill's other files lie there, too."""
    return f"checkpoints/{topic}/{partition_name(partition)}"
