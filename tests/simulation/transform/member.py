"""The clients of a member of transform: its source, and its transactions."""

from collections.abc import Collection

from streampca.sources.base import Committed, TransactionFailedError
from tests.in_memory import MemorySource, MemoryTransactions
from tests.simulation.cluster import ClusterSource
from tests.simulation.transform.coordinator import TransformCluster

_ANSWER_S, _PAUSE_S = 1.0, 0.05


class TransformSource(ClusterSource):
    """A member of the group that reads the offsets of transactions that have ended only."""

    cluster: TransformCluster

    def committed(self) -> dict[int, Committed]:
        self._request("offsets")
        deadline = self.cluster.scheduler.now + _ANSWER_S
        while not self.is_stable(self.partitions()):
            if self.cluster.scheduler.now >= deadline:
                raise TimeoutError("the offsets are not stable")
            self.cluster.scheduler.sleep(_PAUSE_S)
            self._request("offsets")
        return MemorySource.committed(self)

    def is_stable(self, partitions: Collection[int]) -> bool:
        return self.cluster.coordinator.is_stable(partitions)


class ClusterTransactions(MemoryTransactions):
    """The same in a process, which may be cut off or killed at each step."""

    _source: TransformSource

    def __init__(self, cluster: TransformCluster, source: TransformSource, id_: str) -> None:
        super().__init__(cluster, source, id_)
        self._cluster = cluster

    @property
    def _is_reachable(self) -> bool:
        return self._source.is_reachable

    def partitions(self, topic: str) -> int:
        self._request("partitions")
        return self._cluster.output_partitions

    def _call(self, name: str) -> None:
        self._source.process.call(name)

    def _request(self, name: str) -> None:
        self._source._request(name)

    def _reach(self, name: str) -> None:
        self._call(name)
        if not self._is_reachable:
            self._cluster.scheduler.sleep(_ANSWER_S)
            self._fail(TransactionFailedError("no broker answers"))

    def _wait_for_the_last(self) -> None:
        while self._coordinator.is_ending(self._id):
            self._cluster.scheduler.sleep(_PAUSE_S)
