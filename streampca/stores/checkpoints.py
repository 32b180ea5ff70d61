"""Checkpoints in a store: `checkpoints/<topic>/<partition>/<next offset, 20 digits>.npz`."""

import structlog

from streampca.errors import DamagedFileError
from streampca.stores import numbered
from streampca.stores.base import Store
from streampca.stream import checkpoint as files
from streampca.stream.checkpoint import Checkpoint

log = structlog.get_logger()


class Checkpoints:
    """The checkpoints of one topic. Any of them is a correct state, so the newest that is whole will do."""

    def __init__(self, store: Store, topic: str, keep: int = 3) -> None:
        self._store, self._folder, self._keep = store, f"checkpoints/{topic}", keep

    def partitions(self) -> list[int]:
        """Partitions that have checkpoints, rising."""
        stems = (name.rsplit("/", 1)[-1] for name in self._store.names(self._folder))
        return sorted(int(stem) for stem in stems if stem.isdigit())

    def offsets(self, partition: int) -> list[int]:
        """Next offsets of a partition's checkpoints, rising."""
        return numbered.numbers(self._store, self._folder_of(partition))

    def newest(self, partition: int) -> Checkpoint | None:
        """The newest checkpoint that is whole; None when there never was one. A damaged file is passed over, loudly.

        Raises `DamagedFileError` when there are files and none is whole: starting afresh is a person's decision.
        """
        passed: set[int] = set()
        damaged: list[str] = []
        while left := [offset for offset in self.offsets(partition) if offset not in passed]:
            try:
                return files.decode(self._store.read(numbered.path(self._folder_of(partition), left[-1])))
            except FileNotFoundError:  # pruned since it was listed: list again, for there is a newer one
                passed.add(left[-1])
            except DamagedFileError as error:
                passed.add(left[-1])
                damaged.append(name := numbered.path(self._folder_of(partition), left[-1]))
                log.error("checkpoint damaged, falling back to the one before", file=name, error=str(error))
        if damaged:
            raise DamagedFileError(
                f"every checkpoint of partition {partition} is damaged ({', '.join(damaged)}); restore one from a "
                "back-up, or delete them to learn the partition afresh from its earliest record"
            )
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then remove the oldest of its partition beyond those kept.

        Raises `DamagedFileError` for one that could not be read again: it must not take the place of one that can.
        """
        partition, data = checkpoint.partition, files.encode(checkpoint)
        try:
            files.decode(data)
        except DamagedFileError as error:
            raise DamagedFileError(f"what was learned of partition {partition} cannot be saved: {error}") from None
        numbered.write(self._store, self._folder_of(partition), checkpoint.fold.position, data, self._keep)

    def _folder_of(self, partition: int) -> str:
        return f"{self._folder}/{partition}"
