"""What must hold in every run: checked at every change of the store and every commit, and at the end."""

import itertools
import posixpath
from collections.abc import Iterable, Mapping

from streampca.consumer_group.committed import marks_start, parse_store_metadata
from streampca.errors import (
    ForeignStoreError,
    NewerFormatError,
    OffsetGapError,
    RejectLimitError,
    SettingsError,
    SourceError,
    StoreError,
    StreampcaError,
    TopicReplacedError,
)  # fmt: skip
from streampca.fold import model_file
from streampca.fold.checkpoint import decode
from streampca.fold.model_file import PublishedModel
from streampca.fold.partitions import BACKFILL, FIRST_BACKFILL
from streampca.formats.record import LastRecord, Record
from streampca.stores.model_cache import ModelCache
from tests.simulation.disk import STALE_S, File, Mount, Volume
from tests.simulation.history import Calm, Course
from tests.simulation.plan import TOPIC
from tests.simulation.registry import is_poison
from tests.simulation.world import World

_CHECKPOINTS, _MODELS = f"/store/checkpoints/{TOPIC}", f"/store/models/{TOPIC}"
_FIRST_VERSION = 2  # messages learned: one vector has no direction from the mean, so it has no model


class Checks:
    """Watches a world and reports what is wrong to it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._written: dict[tuple[int, int], set[bytes]] = {}  # partition, offset → contents written by workers
        self._begun: dict[tuple[int, str], int] = {}  # partition, id of the topic → offset of the first checkpoint
        self._newest_model: dict[Volume, int] = {}
        self._positions: dict[Volume, PublishedModel] = {}
        self._read: tuple[ModelCache | None, int] = (None, 0)
        self._learnable: int | None = None  # messages, in all
        self._refusals = 0  # before the last records came
        self._oldest: dict[int, list[tuple[float, int]]] = {}  # partition → times, and the oldest checkpoint since then
        world.changed = self._on_change
        world.cluster.on_commit = self._on_commit
        world.model_loaded = self._on_model_loaded
        world.assigned = self._on_assigned

    def is_complete(self) -> bool:
        """Whether every record is in a checkpoint or a dead letter, and the reader has the model of all.

        Or the workers refuse a topic that is not the one that they have learned, as they should.
        """
        return not self.missing() or self._is_refused()

    def missing(self) -> list[str]:
        logs = enumerate(self._world.cluster.logs)
        paths = [f"{_CHECKPOINTS}/{partition}/{log.end:020d}.npz" for partition, log in logs]
        files = [self._world.volume.entries.get(path) for path in paths]
        found = [path for path, file in zip(paths, files, strict=True) if file is None or file.is_damaged]
        if not found and self._learnable is None:  # `at_the_end` compares the files with the calm run's
            learned = [*self._world.backfills, *(decode(file.data) for file in files if file)]
            self._learnable = sum(checkpoint.fold.stats.learned for checkpoint in learned)
        if found or (self._read[1] != self._last_version() and not self._is_model_ahead()):
            found.append(f"model {self._learnable}: the reader has {self._read[1]}")
        return found

    def _last_version(self) -> int | None:
        """The version of the model of all messages; 0 if they are too few for a model, None if it is not known yet."""
        if self._learnable is not None and self._learnable < _FIRST_VERSION:
            return 0
        return self._learnable

    def _is_model_ahead(self) -> bool:
        """Whether a model has learned messages that are gone from the log, and whose checkpoint was deleted as well.

        Nobody can learn them again, and models do not shrink: the next one comes when more has been learned.
        """
        are_records_gone = bool(self._world.history.cuts and self._world.deleted)
        return are_records_gone and self._learnable is not None and self._read[1] > self._learnable

    def expect_all(self) -> None:
        """No more records will come: `is_complete` waits for those that exist."""
        self._refusals = len(self._world.refusals)

    def at_the_end(self) -> None:
        """Compare all checkpoints that were written with those of the calm run, and count records."""
        for partition in range(len(self._world.cluster.logs)):
            self._compare(partition, {offset: data for (p, offset), data in self._written.items() if p == partition})
        if not self._is_refused():
            self._check_last_model()

    def is_expected(self, error: StreampcaError) -> bool:
        """Whether a worker may end with this error, to be started again."""
        replaced, cut = self._world.history.is_replaced, self._world.history.cuts
        return (
            type(error) in (StoreError, ForeignStoreError, SourceError)
            or (isinstance(error, RejectLimitError) and self._world.plan.reaches_reject_limit)
            or (isinstance(error, SettingsError) and bool(self._world.backfills))  # which is not listed yet
            or isinstance(error, NewerFormatError)  # only a start ends: the member has taken no partition
            or (isinstance(error, TopicReplacedError) and replaced)
            or (isinstance(error, OffsetGapError) and bool(cut) and self._world.config.on_offset_gap == "fail")
            or (isinstance(error, OffsetGapError) and replaced and bool(self._world.backfills))  # see `_is_outdated`
        )

    @property
    def _skips(self) -> bool:
        """Whether workers skip bad records, or the next one that starts."""
        return self._world.config.on_bad_record == "skip"

    def _compare(self, partition: int, written: Mapping[int, set[bytes]]) -> None:
        """Compare a partition's checkpoints and dead letters with those of the calm runs."""
        newest, right = max(written, default=-1), dict[int, set[bytes]]()
        sent = {r for p, r in self._world.cluster.dead_letters if p == partition and r.offset < newest}
        courses = self._world.history.courses(partition)
        for course in courses:
            start = self._start_of(partition, course)
            calm = Calm(self._world.config, partition, course, start)
            for offset, data in calm.checkpoints(written).items():
                right.setdefault(offset, set()).add(data)
                if offset == newest and data in written[offset] and not self._skips and not calm.rejected <= sent:
                    lost = _offsets(calm.rejected - sent)
                    self._world.report(f"partition {partition}: {lost} are not in the dead-letter topic")
            learnable = sum(not is_poison(r.value) and start <= r.offset < calm.fold.position for r in course.records)
            if learnable != calm.fold.stats.learned:
                self._world.report(f"{calm.fold.stats.learned} of {learnable} records of {partition} can be learned")
            if len(courses) == 1 and sent - calm.rejected:
                both = _offsets(sent - calm.rejected)
                self._world.report(f"partition {partition}: {both} were learned, and are dead letters")
        for offset, found in written.items():
            if not found <= right.get(offset, set()):
                self._world.report(f"checkpoint {offset} of partition {partition} differs from the calm run's")

    def _start_of(self, partition: int, course: Course) -> int:
        """Where it began: at the first checkpoint, or at the earliest record."""
        starts = self._world.cluster.starts.get(partition, {0})
        start = self._begun.get((partition, course.topic_id), -1)
        if start >= 0 and not starts & {start, 0}:
            self._world.report(f"partition {partition} began at {start}, not at one of {starts}")
        return start if start in starts else -1

    def _is_refused(self) -> bool:
        """Whether the workers end, again and again, because the newest checkpoint is of records that are gone."""
        refusals = {type(error) for error in self._world.refusals[self._refusals :]}
        partitions = range(len(self._world.cluster.logs))
        return bool(refusals & {TopicReplacedError, OffsetGapError}) and any(map(self._is_outdated, partitions))

    def _is_outdated(self, partition: int) -> bool:
        """Whether the newest checkpoint of a partition must be refused.

        When a topic is created again, and a partition has no checkpoint that names the old topic, the partition begins
        where the backfill ended. The new topic may end before this offset.
        """
        entries = self._world.volume.entries
        files = [entries[path] for path in self._world.volume.files(f"{_CHECKPOINTS}/{partition}/")]
        if not (whole := [file for file in files if not file.is_damaged]):
            return False
        newest = decode(whole[-1].data)
        log = self._world.cluster.logs[partition]
        is_beyond_end = self._world.history.is_replaced and newest.fold.position > log.end
        if newest.topic_id != self._world.cluster.id or is_beyond_end:
            return True
        last, cut = newest.fold.last, self._world.history.cuts.get(partition)
        if self._world.config.on_offset_gap != "fail" or cut is None or last is None or last.offset < cut:
            return False
        return last not in {LastRecord(record.offset, record.leader_epoch) for record in log.records}

    def _on_change(self, path: str) -> None:
        volume, name = self._world.mounted, posixpath.basename(path)
        file = volume.entries.get(path)
        if path.startswith(_MODELS) and name.endswith(".npz"):
            newest = max((int(n[:20]) for n in volume.names(_MODELS) if n.endswith(".npz")), default=0)
            if newest < self._newest_model.get(volume, 0):
                self._world.report(f"the newest model was version {self._newest_model[volume]}, now it is {newest}")
            self._newest_model[volume] = newest
            if file and file.is_readable:
                self._refuse_shrinking(volume, model_file.decode(file.data))
        elif path.startswith(_CHECKPOINTS) and name.endswith(".npz") and BACKFILL not in path:
            partition = int(posixpath.basename(posixpath.dirname(path)))
            self._note_oldest(partition)
            if file:
                self._on_checkpoint(partition, int(name[:20]), file)

    def _refuse_shrinking(self, volume: Volume, model: PublishedModel) -> None:
        """A model contains all that the one before it contained, unless the topic was replaced.

        If the one before is damaged, and checkpoints were deleted, no file tells any more what it contained. Then a
        model contains all that the newest undamaged one contained.
        """
        before = self._positions.get(volume)
        self._positions[volume] = model
        if before is not None and self._world.deleted and self._is_damaged(volume, before):
            before = self._find_undamaged(volume, below=model.version)
        if before is None or before.version >= model.version:
            return
        for partition, position in before.positions.items():
            is_comparable = partition >= FIRST_BACKFILL or before.topic_id == model.topic_id
            if is_comparable and model.positions.get(partition, -1) < position:
                self._world.report(f"model {model.version} has less of {partition} than model {before.version}")

    def _is_damaged(self, volume: Volume, model: PublishedModel) -> bool:
        file = volume.entries.get(_path_of_model(model.version))
        return file is not None and file.is_damaged

    def _find_undamaged(self, volume: Volume, below: int) -> PublishedModel | None:
        """The newest model before a version that can be read; None if there is none."""
        paths = [path for path in _list_models(volume) if path < _path_of_model(below)]
        undamaged = [path for path in paths if not volume.entries[path].is_damaged]
        return model_file.decode(volume.entries[undamaged[-1]].data) if undamaged else None

    def _on_checkpoint(self, partition: int, offset: int, file: File) -> None:
        self._written.setdefault((partition, offset), set()).add(file.data)
        place = partition, decode(file.data).topic_id
        self._begun[place] = min(offset, self._begun.get(place, offset))
        courses = self._world.history.courses(partition)
        if not self._skips and not any(self._has_sent(partition, offset, course) for course in courses):
            self._world.report(f"checkpoint {offset} of partition {partition} passes an unsent dead letter")

    def _has_sent(self, partition: int, offset: int, course: Course) -> bool:
        """Whether the bad records of a course before an offset are in the dead-letter topic."""
        sent = self._world.cluster.dead_letters
        return all(
            (partition, record) in sent
            for record in course.records
            if is_poison(record.value) and self._start_of(partition, course) <= record.offset < offset
        )

    def _note_oldest(self, partition: int) -> None:
        folder, entries = f"{_CHECKPOINTS}/{partition}", self._world.volume.entries
        names = (name for name in self._world.volume.names(folder) if name.endswith(".npz"))
        offsets = [int(name[:20]) for name in names if not entries[f"{folder}/{name}"].is_damaged]
        self._oldest.setdefault(partition, []).append((self._world.scheduler.now, min(offsets, default=-1)))

    def _on_assigned(self, mount: Mount, positions: Mapping[int, int]) -> None:
        """A worker continues from a checkpoint that exists, or existed when its view of the store was made."""
        since = self._world.scheduler.now - 2 * STALE_S
        for partition, position in positions.items():
            listed = sorted(name for name in mount.seen(f"{_CHECKPOINTS}/{partition}") if name.endswith(".npz"))
            if position < 0 and listed:
                self._world.report(f"partition {partition} starts again, although {listed} are listed")
            newer = [name for name in listed if f"{_CHECKPOINTS}/{partition}/{name}" in self._world.newer_files]
            if newer and position < int(newer[-1][:20]):
                self._world.report(f"partition {partition} is restored at {position}, below {newer} of a newer release")
            self._note_oldest(partition)
            seen = self._oldest[partition]
            recent = [oldest for (_, oldest), (until, _) in itertools.pairwise(seen) if until >= since]
            if position < min([*recent, seen[-1][1]]):
                self._world.report(f"partition {partition} is restored at {position}, older than all checkpoints")

    def _on_commit(self, positions: Mapping[int, int], metadata: str) -> None:
        cluster = self._world.cluster
        named = {p: cluster.metadata[p] for p in cluster.committed} | dict.fromkeys(positions, metadata)
        stores = {known.id for text in named.values() if (known := parse_store_metadata(text))}
        if positions and len(stores) != 1:
            self._world.report(f"the group's offsets are of {len(stores)} stores")
        for partition, committed in positions.items():
            if marks_start(metadata):  # decided before it is saved
                continue
            saved = max(self._saved(volume, partition) for volume in (self._world.volume, self._world.stray))
            if committed > saved:
                self._world.report(f"partition {partition}: {committed} is committed, {saved} is saved durably")

    def _saved(self, volume: Volume, partition: int) -> int:
        folder = f"{_CHECKPOINTS}/{partition}/"
        paths = [path for path in volume.files(folder) if volume.is_durable(path)]
        paths += [path for path in self._world.deleted if path.startswith(folder)]
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
        models = _list_models(self._world.volume)
        if not models:
            return
        model = model_file.decode(self._world.volume.entries[models[-1]].data)
        ends = {p: log.end for p, log in enumerate(self._world.cluster.logs)}
        ends |= {backfill.partition: backfill.fold.position for backfill in self._world.backfills}
        is_gap = model.version == self._learnable  # no message was learned between these positions
        if dict(model.positions) != ends and not is_gap and not self._is_model_ahead():
            self._world.report(f"the last model is of {model.positions}, the ends are {ends}")


def _list_models(volume: Volume) -> list[str]:
    """The paths of the models, the newest one last."""
    return [path for path in volume.files(_MODELS) if path.endswith(".npz")]


def _path_of_model(version: int) -> str:
    return f"{_MODELS}/{version:020d}.npz"


def _offsets(records: Iterable[Record]) -> list[int]:
    return sorted(record.offset for record in records)
