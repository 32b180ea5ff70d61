"""Mutants of transform: see `tests.simulation.mutants`. Some are of the simulated brokers, which do what Kafka's do."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from streampca.consumer_group.assignment import Assignment
from streampca.consumer_group.first_records import FirstRecords
from streampca.fold.model_file import PublishedModel
from streampca.formats.base import Fields
from streampca.pca.arrays import Array
from streampca.sources.base import Committed, OutgoingFields
from streampca.sources.events import OutOfRange
from streampca.stores.model_cache import ModelCache
from streampca.transform import output_fields, position, starts
from streampca.transform.loop import Transformer
from streampca.transform.models import CurrentModel
from streampca.transform.output_fields import OutputFields
from streampca.transform.outputs import TransformedBatch
from streampca.transform.position import Position
from streampca.transform.starts import StartFinder
from tests.in_memory.coordinator import Transaction
from tests.simulation.plan import DEAD
from tests.simulation.transform.coordinator import ClusterCoordinator, TransformCluster
from tests.simulation.transform.member import ClusterTransactions, TransformSource
from tests.simulation.transform.world import TransformWorld

Patch = Callable[[], AbstractContextManager[Any]]
Mutants = dict[str, tuple[int | Patch, ...]]  # name → the first seed that finds it, and its patches


def make_patch(owner: Any, **attributes: Any) -> Patch:
    """Other attributes of a class or module."""
    return lambda: mock.patch.multiple(owner, **attributes)


# Makes a model cache load an older model when the file of a newer one is damaged.
LOADS_OLDER_MODELS = make_patch(ModelCache, _list_candidates=lambda self, versions: list(reversed(versions)))


def do_nothing(*arguments: Any, **options: Any) -> None:
    """A method that does nothing."""


_commit, _release, _restore = Transformer._commit, Transformer._release, Transformer._restore
_write = Transformer._write
_compute = OutputFields._compute
_start_over, _skip_lost_records, _send = Transformer._start_over, Assignment.skip_lost_records, ClusterTransactions.send


def _commits_offsets_apart(self: Transformer) -> None:
    offsets = {p: position.position for p, position in self._positions_to_commit.items()}
    self._source.commit(offsets, str(self._model.shape))
    self._transactions.commit({})
    self._report_end("committed", "")


def _commits_for_the_present_topic(self: Transformer) -> None:
    """Name the topic that has the name now, which need not be the one that was read."""
    self._outputs = replace(self._outputs, source_topic_id=self._source.topic_id())
    _commit(self)


def _starts_over_where_it_was(self: Transformer, outcome: str, cause: str) -> None:
    _remembered(self).update(self._positions)
    _start_over(self, outcome, cause)


def _commits_and_remembers(self: Transformer) -> None:
    pending = self._positions_to_commit
    _commit(self)
    _remembered(self).update(pending)


def _restores_what_it_remembers(self: Transformer, partitions: Collection[int]) -> Iterator[Mapping[int, Position]]:
    for positions in _restore(self, partitions):
        restored = {p: _remembered(self).get(p, committed) for p, committed in positions.items()}
        _remembered(self).update(restored)
        yield restored


def _restores_from_the_start(self: Transformer, partitions: Collection[int]) -> Iterator[Mapping[int, Position]]:
    for positions in _restore(self, partitions):
        yield dict.fromkeys(positions, Position(-1))


def _releases_and_forgets(self: Transformer, partitions: Collection[int], *, lost: bool) -> None:
    _release(self, partitions, lost=lost)
    _remembered(self).clear()


def _remembered(member: Any) -> dict[int, Position]:
    return member.__dict__.setdefault("remembered", {})


def _releases_without_abort(self: Transformer, partitions: Collection[int], *, lost: bool) -> None:
    self._report_end("aborted", "")
    self._assignment.release(partitions, lost=lost)


def _writes_as_at_the_first_start(self: Transformer, event: TransformedBatch) -> None:
    self._has_accepted_vector = False
    _write(self, event)


def _recovers_without_fencing(self: ClusterTransactions) -> None:
    if self._epoch is None:
        self._source._request("recover")
        self._epoch = self._coordinator._epochs.setdefault(self._id, 1)


def _accepts_any_epoch(self: ClusterCoordinator, id_: str, epoch: int) -> Transaction:
    return self._unfinished.setdefault(id_, Transaction(id_, self._scheduler.now))


def _sends_no_dead_letters(self: ClusterTransactions, records: Sequence[OutgoingFields]) -> None:
    _send(self, [record for record in records if record[0] != DEAD])


def _skips_silently(self: Assignment[Position], event: OutOfRange) -> None:
    with mock.patch.object(self, "_notify"):
        _skip_lost_records(self, event)


def _rounds_by_place(self: OutputFields, published: PublishedModel, rows: Array) -> Fields:
    """As some processors do, but not all: each row of a product is rounded in another way."""
    found = _compute(self, published, rows)
    return {
        name: (values.T * (1 + np.finfo(values.dtype).eps * (np.arange(len(rows)) % 32))).T
        for name, values in found.items()
    }


KEEPS_POSITIONS = make_patch(Transformer, _restore=_restores_what_it_remembers, _release=_releases_and_forgets)
TRANSFORM_MUTANTS: Mutants = {
    "offsets are committed outside of the transaction": (1, make_patch(Transformer, _commit=_commits_offsets_apart)),
    "nothing is read again after a failed transaction":
        (16, make_patch(Transformer, _start_over=_starts_over_where_it_was), KEEPS_POSITIONS),
    "a transaction that failed counts as not committed":
        (34, make_patch(Transformer, _commit=_commits_and_remembers), KEEPS_POSITIONS),
    "records that were only compared count as written when the log is cut":
        (900710, make_patch(FirstRecords, holds_back=lambda self, partition: False)),
    "a revocation does not abort the transaction": (60, make_patch(Transformer, _release=_releases_without_abort)),
    "members begin at the earliest record":
        (1, make_patch(Transformer, _restore=_restores_from_the_start)),
    "outputs are written again when the group's offsets are gone":
        (8, make_patch(StartFinder,
                       _choose_starts=lambda self, partitions, written: dict.fromkeys(partitions, Position(-1)))),
    "outputs of a topic that was deleted count": (3, make_patch(starts, _is_of_other_topic=do_nothing)),
    "bad records end members that continue others' work":
        (459, make_patch(Transformer, _write=_writes_as_at_the_first_start)),
    "recovery fences nobody": (23, make_patch(ClusterTransactions, recover=_recovers_without_fencing)),
    "brokers accept offsets of members that the group has given up":
        (62, make_patch(TransformCluster, counts_in=lambda self, member, generation: True)),
    "brokers accept producers that were replaced": (16, make_patch(ClusterCoordinator, _current=_accepts_any_epoch)),
    "offsets are read while a transaction has others":
        (13, make_patch(TransformSource, is_stable=lambda self, partitions: True)),
    "dead letters are not sent":
        (1, make_patch(ClusterTransactions, send=_sends_no_dead_letters)),
    "all members begin a group at once":
        (902996, make_patch(StartFinder, _refuse_to_begin_before_owner_of_lowest_partition=do_nothing)),
    "models of another shape are used": (7, make_patch(CurrentModel, check_metadata=do_nothing)),
    "the model goes back when a newer one is damaged": (515, LOADS_OLDER_MODELS),
    "a topic that was replaced is not noticed": (22, make_patch(Transformer, _require_same_topic=do_nothing)),
    "offsets name a topic that was not read": (10, make_patch(Transformer, _commit=_commits_for_the_present_topic)),
    "another topic's offsets are used": (10, make_patch(position, refuse_other_topic=do_nothing)),
    "gaps are not counted": (19, make_patch(Assignment, skip_lost_records=_skips_silently)),
    "the last record is not committed":
        (19, make_patch(Position, as_committed=lambda self, shape, topic_id: Committed(self.position, str(shape)))),
    "transform does not retry a restore that failed": (16, make_patch(Assignment, _continue_restore=do_nothing)),
    "transform does not resume paused partitions": (11, make_patch(Assignment, _resume_undecoded=do_nothing)),
    "what hangs is not ended": (44, make_patch(TransformWorld, _end_what_hangs=do_nothing)),
    "rows are computed in any place":
        (3, make_patch(output_fields, _find_matrix_rows=lambda offsets, counts, own: np.arange(counts.sum())),
         make_patch(OutputFields, _compute=_rounds_by_place)),
}  # fmt: skip
