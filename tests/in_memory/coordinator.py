"""The brokers' side of transactions: who may write and commit, and what readers of committed records see."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streampca.sources.base import Committed, Outgoing

if TYPE_CHECKING:
    from tests.in_memory.topic import MemoryTopic


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


class Coordinator:
    """The transactions of all producers, of which each has an id, and an epoch that fences the one before it.

    What was decided is visible at once; in the simulation it takes some time.
    """

    def __init__(self, topic: "MemoryTopic") -> None:
        self._topic = topic
        self._epochs: dict[str, int] = {}
        self._unfinished: dict[str, Transaction] = {}
        self.logs: dict[tuple[str, int], list[tuple[Transaction, Outgoing]]] = defaultdict(list)
        self.first: dict[tuple[str, int], int] = defaultdict(int)  # by log, the first offset that it holds
        self.written: dict[str, list[Outgoing]] = defaultdict(list)  # by topic, what readers of committed records see
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

    def add_offsets(self, id_: str, epoch: int, member: tuple[Any, int], offsets: Mapping[int, Committed]) -> None:
        """Add offsets of a member of that generation. Raises `RefusedError`."""
        transaction = self._current(id_, epoch)
        if not self._topic.counts_in(*member):
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
        return self._unfinished.setdefault(id_, Transaction(id_, self._now()))

    def _end(self, transaction: Transaction, state: str) -> None:
        transaction.state = state
        self._show_later(transaction)

    def _show_later(self, transaction: Transaction) -> None:
        self._show(transaction)

    def _show(self, transaction: Transaction) -> None:
        """Make what was decided visible."""
        del self._unfinished[transaction.id]
        transaction.is_visible = True
        if transaction.state == "committed":
            self._topic.committed |= {p: committed.offset for p, committed in transaction.offsets.items()}
            self._topic.metadata |= {p: committed.metadata for p, committed in transaction.offsets.items()}
            for record in transaction.records:
                self.written[record.topic].append(record)
        self.on_end(transaction)

    def _now(self) -> float:
        """Seconds."""
        return 0.0
