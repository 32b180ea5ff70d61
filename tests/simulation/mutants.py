"""The simulation at work: each mutant breaks one mechanism, and the seed beside it finds that.

`python -m tests.simulation.mutants` looks for the first seed that finds each, after a change of the plans.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any
from unittest import mock

from streampca.consumer_group.assignment import Assignment
from streampca.consumer_group.events import CheckpointSaved
from streampca.consumer_group.first_records import FirstRecords
from streampca.consumer_group.in_flight import InFlight
from streampca.errors import DamagedFileError, StaleListingError, StoreError
from streampca.fold import npz
from streampca.fold.checkpoint import Checkpoint
from streampca.fold.fold import Fold
from streampca.fold.model_file import PublishedModel
from streampca.fold.partitions import is_backfill
from streampca.formats.errors import VectorError
from streampca.formats.record import Batch, Decoded
from streampca.formats.schemas import SCHEMA_PREFIX_BYTES, SchemaCache
from streampca.pca.compilation import compile_learning_functions
from streampca.sources.events import Lost, Vectors
from streampca.stores import directory, numbered
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.readable_models import ReadableModels
from streampca.worker import checkpointer, group_store, learned_topic, publisher, restorer
from streampca.worker.checkpointer import Checkpointer
from streampca.worker.learned_topic import LearnedTopic
from streampca.worker.loop import Learned, Worker
from streampca.worker.missing import find_partitions_behind_model
from streampca.worker.restorer import Restorer
from streampca.worker.writer import CheckpointWriter, SaveResult
from tests.in_memory.topic import Log
from tests.simulation.plan import make_plan
from tests.simulation.run import PLANS, simulate
from tests.simulation.transform.mutants import LOADS_OLDER_MODELS, TRANSFORM_MUTANTS, Mutants, do_nothing, make_patch

_handle = Worker._handle
_start_save, _adopt_checkpoint = Checkpointer.start_save, LearnedTopic.adopt_checkpoint
_write_numbered = numbered.write
_learn, _install, _take, _schema_of = Worker._learn, Worker._install, Fold.take, SchemaCache.get
_release = Assignment.release
_partitions, _write_durably = Checkpoints.partitions, directory._write_durably
_newest = Checkpoints.newest


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
        self._release(event.partitions, lost=True)
    else:
        _handle(self, event)


def _seeks_to_the_start(self: Assignment[Fold], folds: Mapping[int, Fold]) -> None:
    self.progress |= folds
    self._source.seek(dict.fromkeys(folds))


def _seeks_to_committed(self: Assignment[Fold], folds: Mapping[int, Fold]) -> None:
    self.progress |= folds
    committed = {p: found.offset for p, found in self._source.committed().items() if p in folds}
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


def _forgets_pending(self: LearnedTopic, checkpoint: Checkpoint) -> Fold:
    fold = _adopt_checkpoint(self, checkpoint)
    return replace(fold, pending=fold.pending[:0], pending_retention=fold.pending_retention[:0])


def _begins_unsaved(self: Restorer, offsets: Mapping[int, int], comparison: Any) -> Iterator[Any]:
    empty = Fold.empty(self._topic.config.learning)
    yield {}
    return {partition: empty.at(offset) for partition, offset in offsets.items()}


def _finds_no_difference(*arguments: Any) -> group_store.OffsetDifferences:
    return group_store.OffsetDifferences(set_by_other_tools={}, why_ahead_of_store={}, committed_starts={})


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


def _never_falls_back(self: Checkpoints, partition: int) -> Checkpoint | None:
    offsets = self.offsets(partition)
    return self._load(partition, offsets[-1]) if offsets else None


def _ignores_stale_listing(self: Checkpoints, partition: int) -> Checkpoint | None:
    try:
        return _newest(self, partition)
    except StaleListingError:
        config = make_plan(1).fold_config()
        return Checkpoint(self.topic, "", partition, Fold.empty(config.learning), config.as_dict())


def _refuses_far(self: Fold, batch: Batch, *others: Any) -> Any:
    whole = batch.decoded
    distances = ((whole.vectors - self.state.mean) ** 2).sum(axis=1)
    near = distances <= 1e6 * max(self.state.total_variance, 1.0 - self.state.count)
    decoded = Decoded(whole.vectors[near], whole.indices[near], whole.rejects, whole.counts[near], whole.skipped)
    return _take(self, replace(batch, decoded=decoded, timestamps=batch.timestamps[near]), *others)


def _rejects_by_its_cache(self: SchemaCache[Any], value: bytes) -> Any:
    unknown, prefix = self.__dict__.setdefault("unknown", set()), value[:SCHEMA_PREFIX_BYTES]
    if prefix not in self._cache and len(unknown) >= 10:
        raise VectorError("unknown_schema", "too many unknown ids")
    try:
        return _schema_of(self, value)
    except VectorError as error:
        unknown |= {prefix} if error.reason == "unknown_schema" else set()
        raise


def _misses_nothing_of_another_topic(model: PublishedModel | None, offsets: Mapping[int, int], topic_id: str) -> Any:
    missing = find_partitions_behind_model(model, offsets, topic_id)
    is_other_topic = model is not None and model.topic_id != topic_id
    return {partition: cause for partition, cause in missing.items() if is_backfill(partition) or not is_other_topic}


MUTANTS: Mutants = {
    "offsets are committed before the checkpoint is saved": (1, make_patch(Checkpointer, start_save=_commits_first)),
    "dead letters are not flushed before a save": (1, make_patch(Checkpointer, start_save=_does_not_flush)),
    "the fold moves before dead letters are sent": (2, make_patch(Worker, _install=_installs_before_it_sends)),
    "reading starts at the earliest record, not at the checkpoint":
        (2, make_patch(Assignment, _start_reading=_seeks_to_the_start)),
    "reading starts at the committed offset, not at the checkpoint":
        (3, make_patch(Assignment, _start_reading=_seeks_to_committed)),
    "files are written in place, not renamed": (1, make_patch(directory.DirectoryStore, write=_writes_in_place)),
    "files are not flushed": (1, make_patch(directory, _write_durably=_does_not_flush_the_file)),
    "folders are not flushed": (1, make_patch(directory, _flush_folder=do_nothing)),
    "the publisher leaves out a partition":
        (1, make_patch(Checkpoints, partitions=lambda self: _partitions(self)[1:] or _partitions(self))),
    "what is in flight is handled after a release":
        (2, make_patch(Assignment, release=_keeps_what_is_in_flight(_release))),
    "what is in flight is kept by a worker that has lost the partition":
        (8, make_patch(Assignment, release=_keeps_what_is_in_flight(_release, if_lost=True))),
    "a gap is counted before what is in flight was handled": (36, make_patch(InFlight, finish=do_nothing)),
    "the first records are kept when they are read again": (2, make_patch(FirstRecords, forget=do_nothing)),
    "records that were only compared are not read again": (2, make_patch(FirstRecords, take_due=lambda self, now: [])),
    "a save is not finished when partitions are lost": (3, make_patch(Worker, _handle=_drops_before_it_has_saved)),
    "where a partition begins is not saved": (10, make_patch(Restorer, _save_starts=_begins_unsaved)),
    "the offsets of a backfill are ignored": (11, make_patch(restorer, find_start_offsets=lambda *arguments: {})),
    "pending vectors are forgotten": (3, make_patch(LearnedTopic, adopt_checkpoint=_forgets_pending)),
    "another store than the group's is accepted":
        (120, make_patch(group_store, refuse_other_store=do_nothing),
         make_patch(checkpointer, refuse_other_store=do_nothing),
         make_patch(group_store, compare_offsets=_finds_no_difference)),
    "a failed write counts as saved": (4, make_patch(CheckpointWriter, _save=_takes_failed_for_saved)),
    "old checkpoints are deleted before the new one is written": (94, make_patch(numbered, write=_prunes_first)),
    "a damaged checkpoint has no fallback": (14, make_patch(Checkpoints, newest=_never_falls_back)),
    "the reader goes back when its model's file is damaged": (9, LOADS_OLDER_MODELS),
    "partitions that were revoked are restored all the same":
        (1060, make_patch(Assignment, _end_restore_attempt=do_nothing)),
    "a restore that failed is not retried": (33, make_patch(Assignment, _continue_restore=do_nothing)),
    "a stale listing counts as no checkpoint":
        (48, make_patch(Checkpoints, newest=_ignores_stale_listing)),
    "a log that was cut is not noticed": (7, make_patch(Log, end_of=lambda self, epoch: sys.maxsize)),
    "a topic that was replaced is not noticed in a save":
        (47, make_patch(learned_topic, refuse_other_topic=do_nothing)),
    "a topic that was replaced is not noticed at a start": (27, make_patch(Checkpoint, refuse_other_topic=do_nothing)),
    "records that a cut has removed are not counted":
        (22, make_patch(Fold, skip=lambda self, position, lost_from=None: replace(self, position=position, last=None))),
    "bad records end workers that have learned": (46, make_patch(Worker, _has_learned=lambda self: False)),
    "a newer release's checkpoint counts as damaged": (10, make_patch(npz, NewerFormatError=DamagedFileError)),
    "the reader goes back with the listing": (9, make_patch(ReadableModels, is_stored=lambda self, version: False)),
    "what is far from a quiet beginning is not learned": (1, make_patch(Fold, take=_refuses_far)),
    "paused partitions are not resumed": (47, make_patch(Assignment, _resume_undecoded=do_nothing)),
    "known schemas are rejected after many unknown ones": (1, make_patch(SchemaCache, get=_rejects_by_its_cache)),
}  # fmt: skip
# Of runs in which something in the store is gone.
GONE_MUTANTS: Mutants = {
    "a topic that was created again begins beside models of the old one": (
        900701,
        make_patch(restorer, find_partitions_behind_model=_misses_nothing_of_another_topic),
    ),
    "models shrink": (4, make_patch(publisher, _raise_if_missing=do_nothing)),
}
ALL_MUTANTS = {"worker": MUTANTS, "gone": GONE_MUTANTS, "transform": TRANSFORM_MUTANTS}


def find_violations(role: str, name: str, seed: int) -> tuple[str, ...]:
    """What the run of the seed finds with this mutant."""
    _, *patches = ALL_MUTANTS[role][name]
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch())
        return simulate(PLANS[role](seed)).violations


def main() -> None:
    """Print the first seed that finds each mutant."""
    compile_learning_functions(make_plan(1).fold_config().learning)
    for role, mutants in ALL_MUTANTS.items():
        for name in mutants:
            if name not in (sys.argv[1:] or mutants):
                continue
            found = ((seed, violations) for seed in range(1, 2000) if (violations := find_violations(role, name, seed)))
            seed, violations = next(found, (0, ("nothing",)))
            sys.stdout.write(f"{seed:4}  {name}: {violations[0]}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
