"""What must hold in every run: checked at every change of the store and every commit, and at the end."""

import posixpath
from collections.abc import Mapping

from streampca.api.model_cache import ModelCache
from streampca.stream import model_file
from streampca.stream.checkpoint import Checkpoint, encode
from streampca.stream.fold import Fold
from streampca.stream.record import Records
from tests.simulation.disk import STALE_S, File, Volume
from tests.simulation.plan import TOPIC
from tests.simulation.world import POISON, World

_CHECKPOINTS, _MODELS = f"/store/checkpoints/{TOPIC}", f"/store/models/{TOPIC}"


class Calm:
    """The folds of an undisturbed run: one batch from record to record, without a worker."""

    def __init__(self, world: World) -> None:
        self._world = world

    def checkpoints(self, partition: int, offsets: list[int]) -> dict[int, bytes]:
        """The checkpoints at these offsets."""
        found, config = {}, self._world.config.fold
        fold = Fold.empty(config.learning)
        for offset in sorted(offsets):
            fold = self._learned(fold, partition, offset)
            found[offset] = encode(Checkpoint(TOPIC, self._world.cluster.id, partition, fold, config.as_dict()))
        return found

    def fold(self, partition: int, offset: int) -> Fold:
        """The fold at one offset."""
        return self._learned(Fold.empty(self._world.config.fold.learning), partition, offset)

    def _learned(self, fold: Fold, partition: int, offset: int) -> Fold:
        log = self._world.history(partition)
        records = [record for record in log if fold.position <= record.offset < offset]
        event = self._world.config.codec.vectors_of(Records(partition, records, offset, offset))
        learned, _ = fold.learn(event.decoded.vectors, event.timestamps, offset, self._world.config.fold)
        return learned.reject([reject.reason for reject in event.decoded.rejects])


class Checks:
    """Watches a world and reports what is wrong to it."""

    def __init__(self, world: World) -> None:
        self._world, self._calm = world, Calm(world)
        self._written: dict[tuple[int, int], set[bytes]] = {}  # partition, offset → contents written by workers
        self._newest_model: dict[Volume, int] = {}
        self._read: tuple[ModelCache | None, int] = (None, 0)
        self._learnable = 0
        self._oldest: dict[int, list[tuple[float, int]]] = {}  # partition → times, and the oldest checkpoint since then
        world.changed.append(self._on_change)
        world.cluster.on_commit = self._on_commit
        world.model_loaded = self._on_model_loaded
        world.assigned = self._on_assigned

    def is_complete(self) -> bool:
        """Whether every record is in a checkpoint or a dead letter, and the reader has the model of all."""
        return not self.missing()

    def missing(self) -> list[str]:
        """What is not done yet."""
        found = []
        for partition, log in enumerate(self._world.cluster.logs):
            file = self._world.volume.entries.get(f"{_CHECKPOINTS}/{partition}/{log.end:020d}.npz")
            if file is None or file.is_damaged:
                found.append(f"checkpoint {log.end} of partition {partition}")
        if self._read[1] != self._learnable:
            found.append(f"model {self._learnable}: the reader has {self._read[1]}")
        return found

    def at_the_end(self) -> None:
        """Compare all checkpoints that were written with those of the calm run, and count records."""
        for partition in range(len(self._world.cluster.logs)):
            offsets = [offset for p, offset in self._written if p == partition]
            calm = self._calm.checkpoints(partition, offsets)
            for offset in sorted(offsets):
                if self._written[partition, offset] != {calm[offset]}:
                    self._world.report(f"checkpoint {offset} of partition {partition} differs from the calm run's")
            bad = {(partition, r.offset) for r in self._world.history(partition) if r.value == POISON}
            if not bad <= self._world.cluster.dead_letters:
                self._world.report(f"partition {partition}: poison is not in the dead-letter topic")
            good = {(p, o) for p, o in self._world.cluster.dead_letters if p == partition} - bad
            if good:
                self._world.report(f"partition {partition}: good records are in the dead-letter topic")
        self._check_last_model()

    def expect_all(self) -> None:
        """No more records will come: `is_complete` waits for those that exist."""
        logs = map(self._world.history, range(len(self._world.cluster.logs)))
        self._learnable = sum(record.value != POISON for log in logs for record in log)

    def _on_change(self, path: str) -> None:
        volume, name = self._world.mounted, posixpath.basename(path)
        file = volume.entries.get(path)
        if path.startswith(_MODELS) and name.endswith(".npz"):
            newest = max((int(n[:20]) for n in volume.names(_MODELS) if n.endswith(".npz")), default=0)
            if newest < self._newest_model.get(volume, 0):
                self._world.report(f"the newest model was version {self._newest_model[volume]}, now it is {newest}")
            self._newest_model[volume] = newest
        elif path.startswith(_CHECKPOINTS) and name.endswith(".npz"):
            partition = int(posixpath.basename(posixpath.dirname(path)))
            self._note_oldest(partition)
            if file:
                self._on_checkpoint(partition, int(name[:20]), file)

    def _on_checkpoint(self, partition: int, offset: int, file: File) -> None:
        self._written.setdefault((partition, offset), set()).add(file.data)
        for record in self._world.history(partition):
            bad = record.offset < offset and record.value == POISON
            if bad and (partition, record.offset) not in self._world.cluster.dead_letters:
                self._world.report(f"checkpoint {offset} of partition {partition} passes an unsent dead letter")
                return

    def _note_oldest(self, partition: int) -> None:
        """Note the oldest checkpoint that is left."""
        folder, entries = f"{_CHECKPOINTS}/{partition}", self._world.volume.entries
        names = (name for name in self._world.volume.names(folder) if name.endswith(".npz"))
        offsets = [int(name[:20]) for name in names if not entries[f"{folder}/{name}"].is_damaged]
        self._oldest.setdefault(partition, []).append((self._world.scheduler.now, min(offsets, default=-1)))

    def _on_assigned(self, positions: Mapping[int, int]) -> None:
        """A worker continues from a checkpoint that exists, or existed when its view of the store was made."""
        since = self._world.scheduler.now - 2 * STALE_S
        for partition, position in positions.items():
            self._note_oldest(partition)
            seen = self._oldest[partition]
            recent = [oldest for (_, oldest), (until, _) in zip(seen, seen[1:], strict=False) if until >= since]
            if position < min([*recent, seen[-1][1]]):
                self._world.report(f"partition {partition} is restored at {position}, older than all checkpoints")

    def _on_commit(self, positions: Mapping[int, int]) -> None:
        for partition, committed in positions.items():
            saved = max((self._saved(volume, partition) for volume in (self._world.volume, self._world.stray)))
            if committed > saved:
                self._world.report(f"partition {partition}: {committed} is committed, {saved} is saved durably")

    def _saved(self, volume: Volume, partition: int) -> int:
        paths = (path for path in volume.files(f"{_CHECKPOINTS}/{partition}/") if volume.is_durable(path))
        return max((int(posixpath.basename(path)[:20]) for path in paths), default=0)

    def _on_model_loaded(self, cache: ModelCache) -> None:
        model = cache.current
        before = self._read[1] if self._read[0] is cache else 0
        if model is None:
            return
        if model.version < before:
            self._world.report(f"the reader went back from version {before} to {model.version}")
        self._read = cache, model.version

    def _check_last_model(self) -> None:
        models = [path for path in self._world.volume.files(_MODELS) if path.endswith(".npz")]
        if not models:
            return
        model = model_file.decode(self._world.volume.entries[models[-1]].data)
        ends = {p: log.end for p, log in enumerate(self._world.cluster.logs)}
        if dict(model.positions) != ends:
            self._world.report(f"the last model is of {model.positions}, the ends are {ends}")
