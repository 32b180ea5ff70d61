"""Checkpoints in a store: `checkpoints/<topic>/<partition>/<next offset, 20 digits>.npz`."""

import structlog

from streampca.errors import DamagedFileError, StoreError
from streampca.stores import numbered
from streampca.stores.base import Store
from streampca.stream import checkpoint as files
from streampca.stream.checkpoint import Checkpoint

log = structlog.get_logger()


class Checkpoints:
    """The checkpoints of one topic. Each is a correct state, so the newest undamaged one is used."""

    def __init__(self, store: Store, topic: str, keep: int = 3) -> None:
        self._store, self._folder, self._keep = store, f"checkpoints/{topic}", keep

    def partitions(self) -> list[int]:
        """Partitions that have checkpoints, ascending."""
        stems = (name.rsplit("/", 1)[-1] for name in self._store.names(self._folder))
        return sorted(int(stem) for stem in stems if stem.isdigit())

    def offsets(self, partition: int) -> list[int]:
        """Next offsets of a partition's checkpoints, ascending."""
        return numbered.numbers(self._store, self._folder_of(partition))

    def newest(self, partition: int) -> Checkpoint | None:
        """The newest undamaged checkpoint; None if there are none. A damaged file is skipped and logged.

        Raises `DamagedFileError` if all files are damaged: a person must decide whether to start from scratch.
        """
        tried: set[int] = set()
        damaged: list[str] = []
        while left := [offset for offset in self.offsets(partition) if offset not in tried]:
            try:
                return self._load(partition, left[-1])
            except FileNotFoundError:  # pruned since it was listed: list again, a newer one exists
                tried.add(left[-1])
            except DamagedFileError as error:
                tried.add(left[-1])
                damaged.append(name := numbered.path(self._folder_of(partition), left[-1]))
                log.error("checkpoint damaged, falling back", file=name, error=str(error))
        if damaged:
            raise DamagedFileError(
                f"every checkpoint of partition {partition} is damaged ({', '.join(damaged)}); restore one from a "
                "backup, or delete them to learn the partition again from its earliest record, and run `streampca "
                "reset`"
            )
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then delete the partition's oldest ones beyond those kept.

        Raises `DamagedFileError` for one that could not be read back: it must not replace a readable one; and
        `StoreError` if the store holds one that is ahead of it.
        """
        partition, data = checkpoint.partition, files.encode(checkpoint)
        try:
            files.decode(data)
        except DamagedFileError as error:
            raise DamagedFileError(f"the state of partition {partition} cannot be saved: {error}") from None
        self._refuse_ahead(partition, checkpoint.fold.position)
        numbered.write(self._store, self._folder_of(partition), checkpoint.fold.position, data, self._keep)

    def _refuse_ahead(self, partition: int, position: int) -> None:
        """Raise `StoreError` if another writer, or another store's contents, are ahead of us."""
        for offset in reversed(self.offsets(partition)):
            if offset > position and self._is_intact(partition, offset):  # damaged: we resumed from the one before
                raise StoreError(
                    f"the store holds a checkpoint of partition {partition} at offset {offset}, which is ahead of "
                    f"this worker's, {position}: another worker has written it, or another volume was mounted"
                )

    def _is_intact(self, partition: int, offset: int) -> bool:
        try:
            self._load(partition, offset)
        except (FileNotFoundError, DamagedFileError, StoreError):
            return False
        return True

    def _load(self, partition: int, offset: int) -> Checkpoint:
        return files.decode(self._store.read(numbered.path(self._folder_of(partition), offset)))

    def _folder_of(self, partition: int) -> str:
        return f"{self._folder}/{partition}"
