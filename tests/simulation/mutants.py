"""The simulation at work: each mutant breaks one mechanism, and the seed beside it finds that.

`python -m tests.simulation.mutants` looks for the first seed that finds each, after a change of the plans.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any
from unittest import mock

from streampca.consumer_group.assignment import Assignment
from streampca.consumer_group.events import CheckpointSaved
from streampca.consumer_group.in_flight import InFlight
from streampca.consumer_group.policy import FirstRecords
from streampca.errors import DamagedFileError, StaleListingError, StoreError
from streampca.fold import npz
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold
from streampca.formats.errors import VectorError
from streampca.formats.record import Batch, Decoded
from streampca.formats.schemas import FRAME_BYTES, SchemaCache
from streampca.pca.compilation import compile_kernels
from streampca.sources.events import Lost, Vectors
from streampca.stores import directory, numbered
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.model_cache import ModelCache
from streampca.worker import checkpointer, group_store
from streampca.worker.checkpointer import Checkpointer
from streampca.worker.loop import Learned, Worker
from streampca.worker.writer import CheckpointWriter, SaveResult
from tests.in_memory.topic import Log
from tests.simulation.plan import plan_of
from tests.simulation.run import PLANS, simulate
from tests.simulation.transform.mutants import LOADS_OLDER_MODELS, TRANSFORM_MUTANTS, Mutants, nothing, patched

_handle = Worker._handle
_start_save, _load = Checkpointer.start_save, Checkpointer._load
_write_numbered = numbered.write
_learn, _install, _take, _schema_of = Worker._learn, Worker._install, Fold.take, SchemaCache.get
_release = Assignment.release
_partitions, _write_durably = Checkpoints.partitions, directory._write_durably
_raise_unusable = Checkpoints._raise_unusable


def _commits_first(self: Checkpointer, folds: Mapping[int, Fold], **merging: Any) -> None:
    self._group_store.commit({partition: fold.position for partition, fold in folds.items() if fold.position >= 0})
    _start_save(self, folds, **merging)


def _does_not_flush(self: Checkpointer, folds: Mapping[int, Fold], **merging: Any) -> None:
    with mock.patch.object(self, "_dead_letters"):
        _start_save(self, folds, **merging)


def _installs_before_it_sends(self: Worker, batch: Vectors, learned: Learned) -> None:
    self._folds[batch.partition] = learned.fold
    _install(self, batch, learned)


def _keeps_what_is_in_flight(method: Callable[..., Any], *, if_lost: bool = False) -> Callable[..., Any]:
    def without_drop(self: Assignment[Fold], *arguments: Any, **options: Any) -> Any:
        if if_lost and not options["lost"]:
            return method(self, *arguments, **options)
        with mock.patch.object(self._in_flight, "drop"):
            return method(self, *arguments, **options)

    return without_drop


def _drops_before_it_has_saved(self: Worker, event: Any) -> None:
    if isinstance(event, Lost):
        self._checkpointer.forget(self._assignment.release(event.partitions, lost=True))
    else:
        _handle(self, event)


def _seeks_to_the_start(self: Assignment[Fold], folds: Mapping[int, Fold]) -> None:
    self.progress |= folds
    self._source.seek(dict.fromkeys(folds))


def _seeks_to_committed(self: Assignment[Fold], folds: Mapping[int, Fold]) -> None:
    self.progress |= folds
    committed = {p: found.offset for p, found in self._source.committed(list(folds)).items()}
    self._source.seek(dict.fromkeys(folds) | committed)


def _writes_in_place(self: directory.DirectoryStore, name: str, data: bytes) -> None:
    path = self._path(name)
    try:
        self._make_folder(path.parent)
        _write_durably(path, data)
        directory._flush_folder(path.parent)
    except OSError as error:
        raise StoreError(str(error)) from None


def _does_not_flush_the_file(path: Any, data: bytes) -> None:
    with directory.open(path, "xb", opener=None) as file:  # type: ignore[attr-defined]
        file.write(data)


def _forgets_pending(self: Checkpointer, partition: int) -> Fold:
    fold = _load(self, partition)
    return replace(fold, pending=fold.pending[:0], retention=fold.retention[:0])


def _begins_unsaved(self: Checkpointer, folds: Mapping[int, Fold]) -> dict[int, Fold]:
    offsets = self._find_starts(folds) if folds else {}
    return {partition: folds[partition].at(offset) for partition, offset in offsets.items()}


def _takes_failed_for_saved(
    self: CheckpointWriter, stored: Checkpoints, checkpoints: Sequence[Checkpoint], result: SaveResult
) -> Sequence[Checkpoint]:
    for checkpoint in checkpoints:
        with suppress(StoreError):
            stored.save(checkpoint)
        result.events.append(CheckpointSaved(checkpoint.partition, checkpoint.fold, 0.0))
    return checkpoints


def _prunes_first(store: Any, folder: str, number: int, data: bytes, existing: list[int], keep: int) -> Any:
    for low in existing:
        store.delete(numbered.path(folder, low))
    return _write_numbered(store, folder, number, data, [], keep)


def _prunes_newer(store: Any, folder: str, number: int, data: bytes, existing: list[int], keep: int) -> Any:
    written = _write_numbered(store, folder, number, data, existing, keep)
    for high in existing:
        if high > number:
            store.delete(numbered.path(folder, high))
    return written


def _never_falls_back(self: Checkpoints, partition: int) -> Checkpoint | None:
    offsets = self.offsets(partition)
    return self._load(partition, offsets[-1]) if offsets else None


def _ignores_stale_listing(self: Checkpoints, partition: int, failures: Mapping[int, Exception]) -> None:
    with suppress(StaleListingError):
        _raise_unusable(self, partition, failures)


def _refuses_far(self: Fold, batch: Batch, *others: Any) -> Any:
    vectors, indices, rejects, counts, skipped = batch.decoded
    distances = ((vectors - self.state.mean) ** 2).sum(axis=1)
    near = distances <= 1e6 * max(self.state.total_variance, 1.0 - self.state.count)
    decoded = Decoded(vectors[near], indices[near], rejects, counts[near], skipped)
    return _take(self, replace(batch, decoded=decoded, timestamps=batch.timestamps[near]), *others)


def _rejects_by_its_cache(self: SchemaCache[Any], value: bytes) -> Any:
    unknown, frame = self.__dict__.setdefault("unknown", set()), value[:FRAME_BYTES]
    if frame not in self._cache and len(unknown) >= 10:
        raise VectorError("unknown_schema", "too many unknown ids")
    try:
        return _schema_of(self, value)
    except VectorError as error:
        unknown |= {frame} if error.reason == "unknown_schema" else set()
        raise


MUTANTS: Mutants = {
    "offsets are committed before the checkpoint is saved": (1, patched(Checkpointer, start_save=_commits_first)),
    "dead letters are not flushed before a save": (1, patched(Checkpointer, start_save=_does_not_flush)),
    "the fold moves before dead letters are sent": (2, patched(Worker, _install=_installs_before_it_sends)),
    "reading starts at the earliest record, not at the checkpoint":
        (2, patched(Assignment, _start_reading=_seeks_to_the_start)),
    "reading starts at the committed offset, not at the checkpoint":
        (3, patched(Assignment, _start_reading=_seeks_to_committed)),
    "files are written in place, not renamed": (1, patched(directory.DirectoryStore, write=_writes_in_place)),
    "files are not flushed": (1, patched(directory, _write_durably=_does_not_flush_the_file)),
    "folders are not flushed": (1, patched(directory, _flush_folder=nothing)),
    "the publisher leaves out a partition":
        (1, patched(Checkpoints, partitions=lambda self: _partitions(self)[1:] or _partitions(self))),
    "what is in flight is handled after a release":
        (2, patched(Assignment, release=_keeps_what_is_in_flight(_release))),
    "what is in flight is kept by a worker that has lost the partition":
        (8, patched(Assignment, release=_keeps_what_is_in_flight(_release, if_lost=True))),
    "a gap is counted before what is in flight was handled": (36, patched(InFlight, finish=nothing)),
    "the first records are kept when they are read again": (2, patched(FirstRecords, forget=nothing)),
    "records that were only compared are not read again": (2, patched(FirstRecords, take_due=lambda self, now: [])),
    "a save is not finished when partitions are lost": (3, patched(Worker, _handle=_drops_before_it_has_saved)),
    "where a partition begins is not saved": (2, patched(Checkpointer, _save_starts=_begins_unsaved)),
    "the offsets of a backfill are ignored": (11, patched(Checkpointer, _find_starts=lambda self, partitions: {})),
    "pending vectors are forgotten": (3, patched(Checkpointer, _load=_forgets_pending)),
    "a store behind the group is accepted": (1317, patched(Checkpoints, refuse_group_ahead=nothing)),
    "another store than the group's is accepted":
        (120, patched(group_store, refuse_other_store=nothing), patched(checkpointer, refuse_other_store=nothing)),
    "a failed write counts as saved": (4, patched(CheckpointWriter, _save=_takes_failed_for_saved)),
    "old checkpoints are deleted before the new one is written": (94, patched(numbered, write=_prunes_first)),
    "zombies are not fenced: they delete newer checkpoints":
        (642, patched(numbered, write=_prunes_newer), patched(Checkpoints, _refuse_ahead=nothing)),
    "a damaged checkpoint has no fallback": (14, patched(Checkpoints, newest=_never_falls_back)),
    "the reader goes back when its model's file is damaged": (9, LOADS_OLDER_MODELS),
    "a restore that failed is not retried": (33, patched(Assignment, _retry_restore=nothing)),
    "a stale listing counts as no checkpoint": (272, patched(Checkpoints, _raise_unusable=_ignores_stale_listing)),
    "a log that was cut is not noticed": (7, patched(Log, end_of=lambda self, epoch: sys.maxsize)),
    "a topic that was replaced is not noticed in a save": (47, patched(checkpointer, refuse_other_topic=nothing)),
    "a topic that was replaced is not noticed at a start": (27, patched(Checkpoint, refuse_other_topic=nothing)),
    "records that a cut has removed are not counted":
        (22, patched(Fold, skip=lambda self, position, lost_from=None: replace(self, position=position, last=None))),
    "bad records end workers that have learned": (46, patched(Worker, _has_learned=lambda self: False)),
    "a newer release's checkpoint counts as damaged": (10, patched(npz, NewerFormatError=DamagedFileError)),
    "the reader goes back with the listing": (9, patched(ModelCache, _is_stored=lambda self, version: False)),
    "what is far from a quiet beginning is not learned": (1, patched(Fold, take=_refuses_far)),
    "paused partitions are not resumed": (47, patched(Assignment, _read_undecoded=nothing)),
    "known schemas are rejected after many unknown ones": (1, patched(SchemaCache, get=_rejects_by_its_cache)),
}  # fmt: skip


def finds(name: str, seed: int) -> tuple[str, ...]:
    """What the run of the seed finds with this mutant."""
    _, *patches = (MUTANTS | TRANSFORM_MUTANTS)[name]
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch())
        return simulate(PLANS["worker" if name in MUTANTS else "transform"](seed)).violations


def main() -> None:
    """Print the first seed that finds each mutant."""
    compile_kernels(plan_of(1).fold_config().learning)
    for name in sys.argv[1:] or [*MUTANTS, *TRANSFORM_MUTANTS]:
        found = ((seed, violations) for seed in range(1, 2000) if (violations := finds(name, seed)))
        seed, violations = next(found, (0, ("nothing",)))
        sys.stdout.write(f"{seed:4}  {name}: {violations[0]}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
