"""What must hold in every run: checked at every change of the store and every commit, and at the end."""

import itertools
import posixpath
from collections.abc import Mapping

from streampca.api.model_cache import ModelCache
from streampca.stream import model_file
from tests.simulation.calm import Calm
from tests.simulation.disk import STALE_S, File, Volume
from tests.simulation.plan import TOPIC
from tests.simulation.world import POISON, World

_CHECKPOINTS, _MODELS = f"/store/checkpoints/{TOPIC}", f"/store/models/{TOPIC}"


class Checks:
    """Watches a world and reports what is wrong to it."""

    def __init__(self, world: World) -> None:
        self._world = world
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
        for partition, log in enumerate(self._world.cluster.logs):
            offsets = [offset for p, offset in self._written if p == partition]
            calm = Calm(self._world, partition)
            for offset, data in calm.checkpoints(offsets).items():
                if self._written[partition, offset] != {data}:
                    self._world.report(f"checkpoint {offset} of partition {partition} differs from the calm run's")
            calm.learn(log.end)
            self._compare_rejected(partition, calm.rejected)
        self._check_last_model()

    def expect_all(self) -> None:
        """No more records will come: `is_complete` waits for those that exist."""
        self._learnable = 0
        for partition, log in enumerate(self._world.cluster.logs):
            calm = Calm(self._world, partition)
            calm.learn(log.end)
            self._learnable += calm.fold.stats.learned

    def _compare_rejected(self, partition: int, rejected: set[int]) -> None:
        sent = {offset for p, offset in self._world.cluster.dead_letters if p == partition}
        if rejected - sent:
            self._world.report(f"partition {partition}: {sorted(rejected - sent)} are not in the dead-letter topic")
        if sent - rejected:
            self._world.report(f"partition {partition}: {sorted(sent - rejected)} were learned, and are dead letters")

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
            recent = [oldest for (_, oldest), (until, _) in itertools.pairwise(seen) if until >= since]
            if position < min([*recent, seen[-1][1]]):
                self._world.report(f"partition {partition} is restored at {position}, older than all checkpoints")

    def _on_commit(self, positions: Mapping[int, int]) -> None:
        for partition, committed in positions.items():
            saved = max(self._saved(volume, partition) for volume in (self._world.volume, self._world.stray))
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
