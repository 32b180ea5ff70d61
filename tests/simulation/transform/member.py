"""The clients of a member of transform: its source, and its transactions."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NoReturn

from streampca.sources.base import Committed, Outgoing, OutgoingFields, TransactionFailedError
from streampca.sources.events import Assigned, Event, Lost, Revoked
from tests.in_memory import MemorySource
from tests.simulation.cluster import ClusterSource
from tests.simulation.scheduler import Process
from tests.simulation.transform.coordinator import RefusedError, TransformCluster

_ANSWER_S, _PAUSE_S = 1.0, 0.05


class TransformSource(ClusterSource):
    """A member of the group that knows its generation, and reads the offsets of transactions that have ended only."""

    def __init__(self, cluster: TransformCluster, process: Process, batch: int) -> None:
        super().__init__(cluster, process, batch)
        self.membership: int | None = None  # the generation of the last assignment returned

    def poll(self, timeout_s: float) -> Sequence[Event]:
        events = super().poll(timeout_s)
        for event in events:
            if isinstance(event, Assigned):
                self.membership = self.cluster.generation
            elif isinstance(event, Revoked | Lost):
                self.membership = None
        return events

    def committed(self, partitions: Collection[int]) -> dict[int, Committed]:
        self._request("offsets")
        deadline = self.cluster.scheduler.now + _ANSWER_S
        while not self.is_stable(partitions):
            if self.cluster.scheduler.now >= deadline:
                raise TimeoutError("the offsets are not stable")
            self.cluster.scheduler.sleep(_PAUSE_S)
            self._request("offsets")
        return MemorySource.committed(self, partitions)

    def is_stable(self, partitions: Collection[int]) -> bool:
        return self.cluster.coordinator.is_stable(partitions)


class ClusterTransactions:
    """See `streampca.sources.base.Transactions`."""

    def __init__(self, cluster: TransformCluster, source: TransformSource, id_: str) -> None:
        self._coordinator, self._cluster, self._source, self._id = cluster.coordinator, cluster, source, id_
        self._epoch: int | None = None
        self._unsent: list[Outgoing] = []
        self._open = False

    def partitions(self, topic: str) -> int:
        self._source._request("partitions")
        return self._cluster.output_partitions

    def topic_configs(self) -> Mapping[str, str]:
        return {}

    def recover(self) -> None:
        if self._epoch is None:
            self._source._request("recover")
            self._epoch, self._unsent = self._coordinator.begin(self._id), []

    def send(self, records: Iterable[OutgoingFields]) -> None:
        self._begun()
        self._open = True
        self._unsent += map(Outgoing._make, records)
        self._source.process.call("send")
        if self._source.is_reachable:
            self._write()
        self._source.process.call("sent")

    def commit(self, offsets: Mapping[int, Committed]) -> None:
        epoch, generation = self._begun(), self._source.membership
        if generation is None:
            self._fail("the group has given this member up")
        self._reach("add offsets")
        self._write()
        try:
            self._coordinator.add_offsets(self._id, epoch, (self._source, generation), offsets)
            self._reach("commit")
            self._coordinator.commit(self._id, epoch)
        except RefusedError as error:
            self._fail(str(error))
        self._open = False
        self._reach("committed")

    def abort(self) -> None:
        if self._epoch is None or not self._open:
            return
        self._open, self._unsent = False, []
        self._source.process.call("abort")
        try:
            if not self._source.is_reachable:
                raise RefusedError("no broker answers")
            self._wait_for_the_last()
            self._coordinator.abort(self._id, self._epoch)
        except RefusedError:
            self._epoch = None

    def close(self) -> None:
        self.abort()
        self._epoch = None

    def _begun(self) -> int:
        if self._epoch is None:
            raise TransactionFailedError("the last transaction has failed")
        return self._epoch

    def _reach(self, name: str) -> None:
        """Take the time of a request; without an answer, the transaction has failed."""
        self._source.process.call(name)
        if not self._source.is_reachable:
            self._source.cluster.scheduler.sleep(_ANSWER_S)
            self._fail("no broker answers")

    def _write(self) -> None:
        self._wait_for_the_last()
        records, self._unsent = self._unsent, []
        try:
            self._coordinator.write(self._id, self._begun(), records)
        except RefusedError as error:
            self._fail(str(error))

    def _wait_for_the_last(self) -> None:
        while self._coordinator.is_ending(self._id):
            self._source.cluster.scheduler.sleep(_PAUSE_S)

    def _fail(self, cause: str) -> NoReturn:
        self._epoch, self._unsent, self._open = None, [], False
        raise TransactionFailedError(cause)
