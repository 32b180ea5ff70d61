"""The brokers' side of transactions: who may write and commit, and what is visible to readers of committed records."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from streampca.sources.base import Committed, Outgoing
from tests.in_memory import MemorySource
from tests.simulation.cluster import SESSION_S, Cluster
from tests.simulation.scheduler import Scheduler

_MARKERS_S = 0.2  # longest time from the decision until offsets and records are visible


class RefusedError(Exception):
    """The coordinator refuses a request: the producer or the member has been replaced."""


@dataclass(eq=False)
class Transaction:
    """Records and offsets; `state` is open, committed or aborted, and decided before readers see it."""

    id: str
    begun_at: float
    state: str = "open"
    is_visible: bool = False
    records: list[Outgoing] = field(default_factory=list)
    offsets: dict[int, Committed] = field(default_factory=dict)


class TransformCluster(Cluster):
    """A cluster whose group counts its generations, with a coordinator of transactions."""

    def __init__(self, scheduler: Scheduler, partitions: int, name: str) -> None:
        self.generation, self.output_partitions = 0, partitions
        self.coordinator = Coordinator(self, scheduler)
        super().__init__(scheduler, partitions, name)

    def append(self, partition: int, *values: bytes | None, timestamp: int = -1, key: bytes | None = None) -> None:
        """Append records whose keys tell them from others at their offsets: of another topic, or before a cut."""
        key = b"%d.%d" % (self.created, self.logs[partition].leader_epoch)
        super().append(partition, *values, timestamp=timestamp, key=key)

    def give_up(self, member: MemorySource) -> None:
        was_settled = self.is_settled
        super().give_up(member)
        self.generation += self.is_settled and not was_settled

    def expire_sessions(self) -> None:
        super().expire_sessions()
        if not self.away:
            self.coordinator.expire()

    def counts_in(self, member: MemorySource, generation: int) -> bool:
        """Whether the group still counts the member in, with the assignment of that generation (KIP-447)."""
        return member in self._members and generation == self.generation


class Coordinator:
    """The transactions of all producers, of which each has an id, and an epoch that fences the one before it."""

    def __init__(self, cluster: TransformCluster, scheduler: Scheduler) -> None:
        self._cluster, self._scheduler = cluster, scheduler
        self._epochs: dict[str, int] = {}
        self._unfinished: dict[str, Transaction] = {}
        self.logs: dict[tuple[str, int], list[tuple[Transaction, Outgoing]]] = defaultdict(list)
        self.on_end: Callable[[Transaction], object] = lambda transaction: None

    def begin(self, id_: str) -> int:
        """A new epoch of the id: what the one before has left open is aborted. Raises `TimeoutError` until it is."""
        self.fence(id_)
        if id_ in self._unfinished:
            raise TimeoutError("concurrent transactions")
        return self._epochs[id_]

    def fence(self, id_: str) -> None:
        """Abort the open transaction of an id, and refuse the producer that began it."""
        self._epochs[id_] = self._epochs.get(id_, 0) + 1
        transaction = self._unfinished.get(id_)
        if transaction and transaction.state == "open":
            self._end(transaction, "aborted")

    def expire(self) -> None:
        for id_, transaction in list(self._unfinished.items()):
            if transaction.state == "open" and self._scheduler.now - transaction.begun_at > SESSION_S:
                self.fence(id_)

    def is_ending(self, id_: str) -> bool:
        """Whether the last transaction of an id is decided, but not visible yet."""
        return id_ in self._unfinished and self._unfinished[id_].state != "open"

    def is_stable(self, partitions: Collection[int]) -> bool:
        """Whether no transaction that is not visible yet has offsets of these partitions."""
        return not any(found.offsets.keys() & set(partitions) for found in self._unfinished.values())

    def write(self, id_: str, epoch: int, records: Sequence[Outgoing]) -> None:
        """Append records. Raises `RefusedError`."""
        transaction = self._current(id_, epoch)
        for record in records:
            self.logs[record.topic, record.partition or 0].append((transaction, record))
        transaction.records += records

    def add_offsets(
        self, id_: str, epoch: int, member: tuple[MemorySource, int], offsets: Mapping[int, Committed]
    ) -> None:
        """Add offsets of a member of that generation. Raises `RefusedError`."""
        transaction = self._current(id_, epoch)
        if not self._cluster.counts_in(*member):
            raise RefusedError("illegal generation")
        transaction.offsets |= offsets

    def commit(self, id_: str, epoch: int) -> None:
        """Decide that the transaction is committed. Raises `RefusedError`."""
        self._end(self._current(id_, epoch), "committed")

    def abort(self, id_: str, epoch: int) -> None:
        """Decide that the transaction is aborted. Raises `RefusedError`."""
        self._end(self._current(id_, epoch), "aborted")

    def _current(self, id_: str, epoch: int) -> Transaction:
        """The open transaction of the producer with this epoch, which begins if there is none."""
        if self._epochs[id_] != epoch:
            raise RefusedError("producer fenced")
        return self._unfinished.setdefault(id_, Transaction(id_, self._scheduler.now))

    def _end(self, transaction: Transaction, state: str) -> None:
        transaction.state = state
        self._show_later(transaction)

    def _show_later(self, transaction: Transaction) -> None:
        moment = self._scheduler.now + _MARKERS_S * self._scheduler.random.random()
        self._scheduler.at(moment, lambda: self._show(transaction))

    def _show(self, transaction: Transaction) -> None:
        """Make what was decided visible."""
        if self._cluster.away:
            self._show_later(transaction)
            return
        del self._unfinished[transaction.id]
        transaction.is_visible = True
        if transaction.state == "committed":
            self._cluster.committed |= {p: committed.offset for p, committed in transaction.offsets.items()}
            self._cluster.metadata |= {p: committed.metadata for p, committed in transaction.offsets.items()}
        self.on_end(transaction)
        self._cluster.wake()
