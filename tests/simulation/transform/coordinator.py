"""The brokers' side of transactions in the simulation: markers take time, and transactions expire."""

from tests.in_memory.coordinator import Coordinator, Transaction
from tests.simulation.cluster import SESSION_S, Cluster
from tests.simulation.scheduler import Scheduler

_MARKERS_S = 0.2  # longest time from the decision until offsets and records are visible


class TransformCluster(Cluster):
    """A cluster with a coordinator of transactions."""

    def __init__(self, scheduler: Scheduler, partitions: int, name: str) -> None:
        self.output_partitions = partitions
        super().__init__(scheduler, partitions, name)
        self.coordinator: ClusterCoordinator = ClusterCoordinator(self)

    def append(self, partition: int, *values: bytes | None, timestamp: int = -1, key: bytes | None = None) -> None:
        """Append records whose keys tell them from others at their offsets: of another topic, or before a cut."""
        key = b"%d.%d" % (self.created, self.logs[partition].leader_epoch)
        super().append(partition, *values, timestamp=timestamp, key=key)

    def expire_sessions(self) -> None:
        super().expire_sessions()
        if not self.away:
            self.coordinator.expire()


class ClusterCoordinator(Coordinator):
    """The transactions of all producers."""

    def __init__(self, cluster: TransformCluster) -> None:
        super().__init__(cluster)
        self._cluster, self._scheduler = cluster, cluster.scheduler

    def expire(self) -> None:
        for id_, transaction in list(self._unfinished.items()):
            if transaction.state == "open" and self._now() - transaction.begun_at > SESSION_S:
                self.fence(id_)

    def _now(self) -> float:
        return self._scheduler.now

    def _show_later(self, transaction: Transaction) -> None:
        moment = self._scheduler.now + _MARKERS_S * self._scheduler.random.random()
        self._scheduler.at(moment, lambda: self._show(transaction))

    def _show(self, transaction: Transaction) -> None:
        if self._cluster.away:
            self._show_later(transaction)
            return
        super()._show(transaction)
        self._cluster.wake()
