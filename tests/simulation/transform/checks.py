"""What must hold in every run of transform: checked at the end of every transaction, and at the end."""

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from functools import cache

import numpy as np

from streampca.errors import (
    BadRecordError,
    InputError,
    OffsetGapError,
    RejectLimitError,
    SettingsError,
    StoreError,
    StreampcaError,
    TopicReplacedError,
)  # fmt: skip
from streampca.formats.record import Record
from streampca.formats.schemas import SCHEMA_PREFIX_BYTES
from streampca.pca.model import Model
from streampca.sources.base import Committed, Outgoing
from streampca.sources.dead_letters import read_origin
from tests.example_models import example_model
from tests.in_memory.coordinator import Transaction
from tests.simulation.cluster import SESSION_S
from tests.simulation.history import Course, joined
from tests.simulation.plan import DEAD, OUTPUT, D
from tests.simulation.registry import is_poison
from tests.simulation.transform.world import Place, TransformWorld
from tests.transform.harness import read_output_origin

_known_model = cache(example_model)


class TransformChecks:
    """Watches a world of transform and reports what is wrong to it."""

    def __init__(self, world: TransformWorld) -> None:
        self._world, self._logs = world, world.cluster.coordinator.logs
        self._read: dict[tuple[str, int], int] = {}  # by log: records that a reader of committed records has passed
        self._last: dict[tuple[int, bytes], int] = {}  # by partition and topic: the offset of the last output read
        self._committed: dict[Place, int] = {}
        self._origins: dict[Place, list[tuple[int, bytes | None]]] = defaultdict(list)  # offsets and keys, committed
        self._shapes: dict[str, set[int]] = defaultdict(set)  # by topic: components of the outputs, committed
        self._refusals = 0  # before the last records came
        world.cluster.coordinator.on_end = self._on_end
        world.cluster.on_commit = self._on_commit
        world.forgotten = self._on_forgotten

    def is_complete(self) -> bool:
        """Whether all offsets are committed, or members refuse another shape or another topic's offsets, rightly."""
        return not self.missing() or self._is_refused()

    def missing(self) -> list[str]:
        cluster = self._world.cluster
        ends = enumerate(log.end for log in cluster.logs)
        others = {p for p, metadata in cluster.metadata.items() if _topic_in(metadata) != cluster.id}
        return [f"partition {p} up to {end}" for p, end in ends if cluster.committed.get(p) != end or p in others]

    def expect_all(self) -> None:
        """No more records will come."""
        self._refusals = len(self._world.refusals)

    def at_the_end(self) -> None:
        """Wait for transactions that are open, and compare the outputs of all attempts."""
        self._world.scheduler.run(self._world.scheduler.now + SESSION_S + 2)
        for place, records in self._logs.items():
            if self._read.get(place, 0) < len(records):
                self._world.report(f"readers of {place} wait for ever")
        values: dict[tuple[object, ...], bytes | None] = {}
        for (topic, partition), records in self._logs.items():
            for _, record in records if topic == OUTPUT else ():
                version, offset = _version(record), _origin(record)[1]
                if values.setdefault((partition, offset, record.key, version), record.value) != record.value:
                    self._world.report(f"partition {partition}: two values of offset {offset}, version {version}")

    def is_expected(self, error: StreampcaError) -> bool:
        """Whether a member may end with this error, to be started again."""
        plan = self._world.plan
        kinds = {fault.kind for fault in plan.faults}
        may_miss_records = plan.on_offset_gap == "fail" and bool(kinds & {"trim", "cut_log"})
        return (
            type(error) is StoreError
            or (isinstance(error, RejectLimitError) and plan.reaches_reject_limit)
            or (isinstance(error, TopicReplacedError) and self._world.history.is_replaced)
            or (isinstance(error, BadRecordError) and plan.on_bad_record == "stop")
            or (isinstance(error, OffsetGapError) and may_miss_records)
            or (isinstance(error, InputError) and (plan.version is not None or "reshape" in kinds))
            or (type(error) is SettingsError and self._world.has_forgotten)
        )

    def _is_refused(self) -> bool:
        refusals = {type(error) for error in self._world.refusals[self._refusals :]}
        topics = {_topic_in(metadata) for metadata in self._world.cluster.metadata.values()}
        is_reshaped = len(set(self._world.components.values())) > 1 and InputError in refusals
        return is_reshaped or (bool(topics - {self._world.cluster.id}) and TopicReplacedError in refusals)

    def _on_commit(self, positions: dict[int, int], metadata: str) -> None:
        self._world.report(f"{positions} are committed outside of a transaction")

    def _on_forgotten(self) -> None:
        """The group's offsets are gone: each partition continues behind its last output; rejects may come again."""
        id_ = self._world.cluster.id
        for partition in range(len(self._world.cluster.logs)):
            written = [
                origin.offset
                for transaction, record in self._logs[OUTPUT, partition]
                if transaction.state == "committed" and (origin := read_output_origin(record.headers)).topic_id == id_
            ]
            begin = written[-1] + 1 if written else 0
            place = partition, id_
            self._committed[place] = begin
            self._origins[place] = [origin for origin in self._origins[place] if origin[0] < begin]
            if not written:  # it begins at the earliest record
                self._world.note_skipped(partition, 0, self._world.cluster.logs[partition].start)

    def _on_end(self, transaction: Transaction) -> None:
        if transaction.state == "committed":
            outputs = [record for record in transaction.records if record.topic == OUTPUT]
            letters = [record for record in transaction.records if record.topic == DEAD]
            partitions = {_origin(record)[0] for record in transaction.records} | transaction.offsets.keys()
            for partition in sorted(partitions):
                ours, bad = ([r for r in records if _origin(r)[0] == partition] for records in (outputs, letters))
                self._check_range(partition, transaction.offsets.get(partition), ours, bad)
        for place in self._logs:
            self._read_on(place)

    def _check_range(
        self, partition: int, committed: Committed | None, outputs: Sequence[Outgoing], letters: Sequence[Outgoing]
    ) -> None:
        """The records between two committed offsets have the outputs and dead letters of the transaction."""
        if committed is None:
            self._world.report(f"partition {partition} has outputs without offsets")
            return
        end, place = committed.offset, (partition, _topic_in(committed.metadata) or self._world.cluster.id)
        begin = self._committed.get(place, 0)
        if end < begin:
            self._world.report(f"partition {partition}: the committed offset goes back from {begin} to {end}")
        self._committed[place] = end
        self._origins[place] += [(_origin(record)[1], record.key) for record in (*outputs, *letters)]
        records = [r for r in self._course(place, end).records if begin <= r.offset < end]
        good = {record.offset: record for record in records if not is_poison(record.value)}
        bad = {record.offset for record in records if is_poison(record.value)}
        self._compare(f"partition {partition}: outputs", place, set(good), outputs)
        skips = self._world.config.on_bad_record == "skip" and not letters  # an older member may not skip them
        self._compare(f"partition {partition}: dead letters", place, set() if skips else bad, letters)
        self._check_values(place, [(good[at], r) for r in outputs if (at := _origin(r)[1]) in good])

    def _course(self, place: Place, end: int) -> Course:
        """The course of the outputs committed up to this offset: where a log was cut, there are several courses.

        Also where the topic was replaced: until a member notices, it reads the new one from where it was.
        """
        partition, topic = place
        now, *former = self._world.history.courses(partition)
        courses = [course for course in (now, *former) if course.topic_id == topic]
        if now.topic_id != topic:
            courses += [joined(courses[0], now, at, at) for at in range(end)]
        if len(courses) == 1:
            return courses[0]
        skips, found = self._world.config.on_bad_record == "skip", set(self._origins[place])
        for course in courses:
            records = [record for record in course.records if record.offset < end]
            lost = self._lost(place, {record.offset for record in records})
            without = [r for r in records if r.offset in lost or (skips and is_poison(r.value))]
            if found | _names(without) == _names(records) and end <= course.end:
                return course
        self._world.report(f"partition {partition}: up to {end}, outputs are of records before and after a cut")
        return courses[0]

    def _lost(self, place: Place, offsets: Collection[int]) -> set[int]:
        """The offsets that members need not transform, since retention has removed records before they were read.

        If the topic was replaced while a member skipped them, they are noted as those of the new topic.
        """
        partition, topic = place
        skipped = [self._world.skipped.get((partition, id_), []) for id_ in {topic, self._world.cluster.id}]
        return {offset for begin, end in itertools.chain(*skipped) for offset in offsets if begin <= offset < end}

    def _compare(self, what: str, place: Place, wanted: set[int], records: Sequence[Outgoing]) -> None:
        found = [_origin(record)[1] for record in records]
        if missing := wanted - self._lost(place, wanted) - set(found):
            self._world.report(f"{what} of {sorted(missing)} are missing")
        if unwanted := set(found) - wanted:
            self._world.report(f"{what} of {sorted(unwanted)} are not in order")
        if any(after <= before for before, after in itertools.pairwise(found)):
            self._world.report(f"{what} are written twice, or not in order: {found}")

    def _check_values(self, place: Place, pairs: Sequence[tuple[Record, Outgoing]]) -> None:
        (partition, topic), versions = place, {_version(output) for _, output in pairs}
        for version in versions:
            components = self._world.components[version]
            self._shapes[topic].add(components)
            ours = [(record, output) for record, output in pairs if _version(output) == version]
            tails = b"".join((output.value or b"")[-8 * (components + 1) :] for _, output in ours)
            found = np.frombuffer(tails).reshape(-1, components + 1)
            vectors = np.frombuffer(
                b"".join((record.value or b"")[SCHEMA_PREFIX_BYTES:] for record, _ in ours)
            ).reshape(-1, D)
            if not np.allclose(found, _projected(_known_model(version, D, components), vectors), rtol=1e-9, atol=1e-9):
                self._world.report(f"partition {partition}: outputs of version {version} are wrong")
            if any((r.key, r.timestamp) != (o.key, o.timestamp) for r, o in ours):
                self._world.report(f"partition {partition}: outputs lack the key or the timestamp of their records")
        if self._world.plan.version is not None and versions - {self._world.plan.version}:
            self._world.report(f"partition {partition}: versions {versions} are used, not the one asked for")
        if len(shapes := self._shapes[topic]) > 1:
            self._world.report(f"outputs of {sorted(shapes)} components are mixed")

    def _read_on(self, place: tuple[str, int]) -> None:
        """Let a reader of committed records read on, up to the first record whose transaction has not ended."""
        records = self._logs[place]
        for transaction, record in records[self._read.get(place, 0) :]:
            if not transaction.is_visible:
                return
            self._read[place] = self._read.get(place, 0) + 1
            if transaction.state == "committed" and place[0] == OUTPUT:
                partition, offset = _origin(record)
                if partition != place[1]:
                    self._world.report(f"the output of partition {partition} is in partition {place[1]}")
                log = partition, (record.key or b"").split(b".")[0]
                if offset <= self._last.get(log, -1):
                    self._world.report(f"partition {partition}: {offset} is read after {self._last[log]}")
                self._last[log] = offset


def _origin(record: Outgoing) -> tuple[int, int]:
    """The partition and the offset of the record that an output or a dead letter was made of."""
    if record.topic == DEAD:
        origin = read_origin(record.headers)
        return origin.partition, origin.offset
    origin = read_output_origin(record.headers)
    return origin.partition, origin.offset


def _names(records: Iterable[Record]) -> set[tuple[int, bytes | None]]:
    """Offsets and keys, which tell records from those of another topic, or from before a cut."""
    return {(record.offset, record.key) for record in records}


def _topic_in(metadata: str) -> str:
    """The id of the topic in the metadata of an offset."""
    return metadata.partition(" topic=")[2].split(" ")[0]


def _version(output: Outgoing) -> int:
    return read_output_origin(output.headers).model_version


def _projected(model: Model, vectors: np.ndarray) -> np.ndarray:
    """Coordinates and residuals, one vector after the other."""
    centred = vectors - model.mean
    coordinates = np.einsum("nd,kd->nk", centred, model.components)
    rest = centred - np.einsum("nk,kd->nd", coordinates, model.components)
    return np.column_stack([coordinates, np.einsum("nd,nd->n", rest, rest)])
