"""Mutants of transform: see `tests.simulation.mutants`. Some are of the simulated brokers, which do what Kafka's do."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import numpy as np

from streampca.consumer_group.assignment import Assignment
from streampca.consumer_group.policy import FirstRecords
from streampca.fold.model_file import PublishedModel
from streampca.formats.base import Fields
from streampca.pca.arrays import Array
from streampca.sources.base import Committed
from streampca.sources.events import OutOfRange
from streampca.stores.model_cache import ModelCache
from streampca.transform import position
from streampca.transform.loop import Transformer
from streampca.transform.models import CurrentModel
from streampca.transform.output_fields import OutputFields
from streampca.transform.outputs import TransformedBatch
from streampca.transform.position import Position
from tests.in_memory.coordinator import Transaction
from tests.simulation.plan import DEAD
from tests.simulation.transform.coordinator import ClusterCoordinator, TransformCluster
from tests.simulation.transform.member import ClusterTransactions, TransformSource
from tests.simulation.transform.world import TransformWorld

Patch = Callable[[], AbstractContextManager[Any]]
Mutants = dict[str, tuple[int | Patch, ...]]  # name → the first seed that finds it, and its patches


def patched(owner: Any, **attributes: Any) -> Patch:
    """Other attributes of a class or module."""
    return lambda: mock.patch.multiple(owner, **attributes)


# Makes a model cache load an older model when the file of a newer one is damaged.
LOADS_OLDER_MODELS = patched(ModelCache, _candidates=lambda self, versions: list(reversed(versions)))


def nothing(*arguments: Any, **options: Any) -> None:
    """A method that does nothing."""


_commit, _release, _restore = Transformer._commit, Transformer._release, Transformer._restore
_write = Transformer._write
_compute = OutputFields._compute
_start_over, _skip_lost_records, _send = Transformer._start_over, Assignment.skip_lost_records, ClusterTransactions.send


def _commits_offsets_apart(self: Transformer) -> None:
    self._source.commit({p: position.position for p, position in self._uncommitted.items()}, str(self._model.shape))
    self._transactions.commit({})
    self._end("committed", "")


def _commits_for_the_present_topic(self: Transformer) -> None:
    """Name the topic that has the name now, which need not be the one that was read."""
    self._topic_id = self._source.topic_id()
    _commit(self)


def _starts_over_where_it_was(self: Transformer, outcome: str, cause: str) -> None:
    _remembered(self).update(self._positions)
    _start_over(self, outcome, cause)


def _commits_and_remembers(self: Transformer) -> None:
    pending = self._uncommitted
    _commit(self)
    _remembered(self).update(pending)


def _restores_what_it_remembers(self: Transformer, partitions: Collection[int]) -> Mapping[int, Position]:
    restored = {p: _remembered(self).get(p, committed) for p, committed in _restore(self, partitions).items()}
    _remembered(self).update(restored)
    return restored


def _releases_and_forgets(self: Transformer, partitions: Collection[int], *, lost: bool) -> None:
    _release(self, partitions, lost=lost)
    _remembered(self).clear()


def _remembered(member: Any) -> dict[int, Position]:
    return member.__dict__.setdefault("remembered", {})


def _releases_without_abort(self: Transformer, partitions: Collection[int], *, lost: bool) -> None:
    self._end("aborted", "")
    self._assignment.release(partitions, lost=lost)


def _writes_as_at_the_first_start(self: Transformer, event: TransformedBatch) -> None:
    self._is_first_start = True
    _write(self, event)


def _recovers_without_fencing(self: ClusterTransactions) -> None:
    if self._epoch is None:
        self._source._request("recover")
        self._epoch = self._coordinator._epochs.setdefault(self._id, 1)


def _accepts_any_epoch(self: ClusterCoordinator, id_: str, epoch: int) -> Transaction:
    return self._unfinished.setdefault(id_, Transaction(id_, self._scheduler.now))


def _skips_silently(self: Assignment[Position], event: OutOfRange) -> None:
    with mock.patch.object(self, "_listener"):
        _skip_lost_records(self, event)


def _rounds_by_place(self: OutputFields, published: PublishedModel, rows: Array) -> Fields:
    """As some processors do, but not all: each row of a product is rounded in another way."""
    found = _compute(self, published, rows)
    return {
        name: (values.T * (1 + np.finfo(values.dtype).eps * (np.arange(len(rows)) % 32))).T
        for name, values in found.items()
    }


KEEPS_POSITIONS = patched(Transformer, _restore=_restores_what_it_remembers, _release=_releases_and_forgets)
TRANSFORM_MUTANTS: Mutants = {
    "offsets are committed outside of the transaction": (1, patched(Transformer, _commit=_commits_offsets_apart)),
    "nothing is read again after a failed transaction":
        (16, patched(Transformer, _start_over=_starts_over_where_it_was), KEEPS_POSITIONS),
    "a transaction that failed counts as not committed":
        (34, patched(Transformer, _commit=_commits_and_remembers), KEEPS_POSITIONS),
    "records that were only compared count as written when the log is cut":
        (900710, patched(FirstRecords, holds_back=lambda self, partition: False)),
    "a revocation does not abort the transaction": (1, patched(Transformer, _release=_releases_without_abort)),
    "members begin at the earliest record":
        (1, patched(Transformer, _restore=lambda self, owned: dict.fromkeys(_restore(self, owned), Position(-1)))),
    "bad records end members that continue others' work":
        (459, patched(Transformer, _write=_writes_as_at_the_first_start)),
    "recovery fences nobody": (23, patched(ClusterTransactions, recover=_recovers_without_fencing)),
    "brokers accept offsets of members that the group has given up":
        (62, patched(TransformCluster, counts_in=lambda self, member, generation: True)),
    "brokers accept producers that were replaced": (16, patched(ClusterCoordinator, _current=_accepts_any_epoch)),
    "offsets are read while a transaction has others":
        (13, patched(TransformSource, is_stable=lambda self, partitions: True)),
    "dead letters are not sent":
        (1, patched(ClusterTransactions, send=lambda self, records: _send(self, [r for r in records if r[0] != DEAD]))),
    "models of another shape are used": (7, patched(CurrentModel, require_shape=nothing)),
    "the model goes back when a newer one is damaged": (962, LOADS_OLDER_MODELS),
    "a topic that was replaced is not noticed": (22, patched(Transformer, _check_topic=nothing)),
    "offsets name a topic that was not read": (10, patched(Transformer, _commit=_commits_for_the_present_topic)),
    "another topic's offsets are used": (10, patched(position, refuse_other_topic=nothing)),
    "gaps are not counted": (19, patched(Assignment, skip_lost_records=_skips_silently)),
    "the last record is not committed":
        (19, patched(Position, as_committed=lambda self, shape, topic_id: Committed(self.position, str(shape)))),
    "transform does not retry a restore that failed": (16, patched(Assignment, _retry_restore=nothing)),
    "transform does not resume paused partitions": (11, patched(Assignment, _read_undecoded=nothing)),
    "what hangs is not ended": (44, patched(TransformWorld, _end_what_hangs=nothing)),
    "rows are computed in any place":
        (3, patched(OutputFields, _project_run=lambda self, published, vectors, _: self._compute(published, vectors)),
         patched(OutputFields, _compute=_rounds_by_place)),
}  # fmt: skip
