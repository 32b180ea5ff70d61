"""The undisturbed run: every partition learned in one batch from checkpoint to checkpoint, without a worker."""

from collections.abc import Collection

from streampca.stream import plausibility
from streampca.stream.checkpoint import Checkpoint, encode
from streampca.stream.fold import Fold
from streampca.stream.record import Records
from tests.simulation.plan import TOPIC
from tests.simulation.world import World


class Calm:
    """The folds of one partition."""

    def __init__(self, world: World, partition: int) -> None:
        self._world, self._partition = world, partition
        self.fold = Fold.empty(world.config.fold.learning)
        self.rejected: set[int] = set()  # offsets of the records that cannot be learned, up to the fold's position

    def checkpoints(self, offsets: Collection[int]) -> dict[int, bytes]:
        """The checkpoints at these offsets; the fold is then at the greatest."""
        return {offset: self._checkpoint(offset) for offset in sorted(offsets)}

    def learn(self, offset: int) -> None:
        """Advance the fold to this offset."""
        config, history = self._world.config, self._world.history(self._partition)
        records = [record for record in history if self.fold.position <= record.offset < offset]
        event = config.codec.vectors_of(Records(self._partition, records, offset, offset))
        fold, _, rejects = plausibility.learn(self.fold, event, config.fold, config.implausible_factor)
        fold = fold.after(event.last) if records else fold
        self.fold = fold.reject([reject.reason for reject in rejects])
        self.rejected |= {records[reject.place].offset for reject in rejects}

    def _checkpoint(self, offset: int) -> bytes:
        self.learn(offset)
        world = self._world
        return encode(Checkpoint(TOPIC, world.cluster.id, self._partition, self.fold, world.config.fold.as_dict()))
