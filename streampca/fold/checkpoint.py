"""Checkpoints: the fold of one partition, with its position, and the file that holds it.

The file holds neither times nor anything about the machine: the same records give the same bytes.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from streampca.errors import DamagedFileError, SettingsError, refuse_other_topic
from streampca.fold import earlier_format, npz
from streampca.fold.changed_settings import Change, explain_refusal
from streampca.fold.checkpoint_arrays import refuse_wrong_arrays
from streampca.fold.event_time import EventTime
from streampca.fold.fold import Fold, FoldConfig
from streampca.fold.names import Names, choose_common_names, describe_difference
from streampca.fold.partitions import FIRST_BACKFILL, is_backfill, parse_offsets, partition_name
from streampca.fold.stats import FoldStats
from streampca.formats.record import LastRecord
from streampca.pca.state import State

KIND = "checkpoint"
FORMAT_VERSION = 4
# Fields of a state by the same names in the header and among the arrays of a file.
_STATE_NUMBERS = ("weight", "total_variance", "count", "concentration", "clipped")
_OPTIONAL_ARRAYS = ("missing", "covariance", "scale", "variances", "known")  # a state may lack them


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The fold of one partition, with the topic and the settings that it belongs to."""

    topic: str
    topic_id: str  # "" if the brokers give topics no id
    partition: int
    fold: Fold
    settings: dict[str, Any]  # as `FoldConfig.as_dict` gives them
    # Where a backfill ends: milliseconds, or partition:offset,…; "" if it has learned all rows, and for other folds.
    until: str = ""
    names: Names = None

    @property
    def backfill_end(self) -> int | dict[int, int] | None:
        """Where the backfill ended: a time in milliseconds, or by partition the first offset that it has not learned.

        None if the backfill has learned all rows of its files.
        """
        if not self.until:
            return None
        offsets = parse_offsets(self.until)  # {0: 500, 1: 20} from "0:500,1:20"; None from a time
        return int(self.until) if offsets is None else offsets

    def find_changes(self, fold_config: FoldConfig) -> list[Change]:
        """Return all settings that differ between the checkpoint and the worker.

        The setting `field` and the names of dimensions both say which numbers are learned:

        - If checkpoint and worker both have names, the names are compared, and `field` is not.
        - If only one of the two has names, neither the names nor `field` are compared.
        - If neither has names, `field` is compared, except for a backfill.
        """
        then = dict(self.settings)
        now = fold_config.as_dict()
        names_then_and_now = describe_difference(self.names, fold_config.names)  # None: equal, or one has no names
        if names_then_and_now:
            then["names"], now["names"] = names_then_and_now
        not_compared = set[str]()
        if self.names or fold_config.names:
            not_compared.add("field")
        if is_backfill(self.partition):
            # In a backfill, these two settings name columns of files. In a worker, they name fields of records.
            not_compared |= {"field", "where"}
        compared = sorted((then.keys() | now.keys()) - not_compared)
        possible_changes = [Change(name, then.get(name), now.get(name)) for name in compared]
        return [change for change in possible_changes if change.then != change.now]

    def refuse_other_settings(self, fold_config: FoldConfig) -> None:
        """Raise `SettingsError` if settings differ between the checkpoint and the worker."""
        changes = self.find_changes(fold_config)
        if not changes:
            return
        remedy = "start over with another store folder and another group_id"
        if is_backfill(self.partition):
            remedy = f"delete it: `streampca backfill --remove {self.partition - FIRST_BACKFILL}`"
        is_adoptable = not self._why_not_adoptable(changes)
        if is_adoptable:
            remedy = f"keep what was learned: `streampca reset --adopt-settings`, or {remedy}"
        raise SettingsError(
            f"the checkpoint of partition {partition_name(self.partition)} of {self.topic} was made with "
            f"{', '.join(map(str, changes))}; restore these settings, or {remedy}"
        )

    def adopt_settings(self, fold_config: FoldConfig) -> "Checkpoint":
        """Return the checkpoint from which a worker with other settings continues.

        Raises `SettingsError` if learning cannot continue with these settings.
        """
        refusal = self._why_not_adoptable(self.find_changes(fold_config))
        if refusal:
            raise SettingsError(f"partition {partition_name(self.partition)} cannot continue with {refusal}")
        return replace(self, fold=self.fold.adapt_to(fold_config.learning), settings=fold_config.as_dict())

    def _why_not_adoptable(self, changes: Sequence[Change]) -> str:
        """Return why learning cannot continue from the checkpoint with these changes, or "" if it can."""
        state = self.fold.state
        knows_all_axes = state.covariance is not None or state.count == 0
        return explain_refusal(changes, knows_all_axes=knows_all_axes)

    def adapt_to(self, fold_config: FoldConfig, topic_id: str = "") -> "Checkpoint":
        """Return the checkpoint from which a worker with these settings continues.

        A checkpoint that has learned no vector takes other settings, and other names of dimensions. A checkpoint that
        has learned vectors with other settings raises `SettingsError`. Another topic id raises `TopicReplacedError`.
        """
        self.refuse_other_topic(topic_id)
        fold = self.fold
        settings = fold_config.as_dict()
        if fold.stats.learned:
            # This also refuses other names of dimensions, which are not among the settings.
            self.refuse_other_settings(fold_config)
            return self
        if self.settings == settings:
            return replace(self, names=fold_config.names or self.names)
        empty_fold = Fold.empty(fold_config.learning)
        # The counts of records from which no vector was learned stay valid with any settings.
        stats = replace(
            empty_fold.stats,
            rejected=fold.stats.rejected,
            skipped=fold.stats.skipped,  # deletes
            gap=fold.stats.gap,  # lost offsets
        )
        # `last` is the last record that was read. The source compares this record with the log, to notice that the log
        # was replaced.
        fold = replace(empty_fold, position=fold.position, stats=stats, last=fold.last)
        # The old names need not fit the new settings, which may have more or fewer dimensions.
        return replace(self, fold=fold, settings=settings, names=fold_config.names)

    def agree_on_names(self, names: Names) -> Names:
        """Return these names of dimensions or, if they are None, the names in the checkpoint.

        Raises `SettingsError` if both are set and differ.
        """
        return choose_common_names(
            names,
            self.names,
            named_by="the settings or another checkpoint",
            other_named_by=f"the checkpoint of partition {partition_name(self.partition)}",
        )

    def refuse_other_topic(self, topic_id: str) -> None:
        """Raise `TopicReplacedError` if the topic had another id when the checkpoint was made."""
        refuse_other_topic(
            self.topic,
            self.topic_id,
            topic_id,
            f"in the checkpoint of partition {self.partition}",
            "learn it in another store folder",
        )


class EventTimeHeader(npz.Strict):
    now_ms: npz.Milliseconds
    recent: Annotated[tuple[npz.Count, ...], Field(max_length=62, strict=False)]
    ahead: npz.Count


class LastRecordHeader(npz.Strict):
    offset: npz.Count
    leader_epoch: Annotated[int, Field(ge=0, lt=2**31)]


class CheckpointHeader(npz.Header):
    numpy: str
    partition: npz.Count
    next_offset: Annotated[int, Field(ge=-1, lt=2**63)]
    last_record: LastRecordHeader | None
    weight: npz.NonNegative
    total_variance: npz.NonNegative
    count: npz.Count
    concentration: npz.Share
    clipped: npz.Count
    event_time: EventTimeHeader
    stats: FoldStats
    until: Annotated[str, Field(pattern=r"^(-?\d{1,18}|\d{1,10}:\d{1,19}(,\d{1,10}:\d{1,19})*)?$")] = ""


def encode(checkpoint: Checkpoint) -> bytes:
    """Return the bytes of a checkpoint file."""
    fold = checkpoint.fold
    state = fold.state
    stats = {**vars(fold.stats), "rejected": dict(fold.stats.rejected)}  # JSON takes a dict, but no other mapping
    # Without deletes, `skipped` is left out: the bytes then equal those of a release that did not count deletes.
    if not fold.stats.skipped:
        del stats["skipped"]
    header = {
        "kind": KIND,
        "format_version": FORMAT_VERSION,
        "numpy": np.__version__,
        "topic": checkpoint.topic,
        "topic_id": checkpoint.topic_id,
        "partition": checkpoint.partition,
        "settings": checkpoint.settings,
        "next_offset": fold.position,
        "last_record": fold.last._asdict() if fold.last else None,
        "event_time": asdict(fold.event_time),
        "stats": stats,
        **{name: getattr(state, name) for name in _STATE_NUMBERS},
    }
    if checkpoint.until:  # not set if a backfill has learned all rows of its files
        header["until"] = checkpoint.until
    if checkpoint.names:
        header["names"] = checkpoint.names
    arrays: dict[str, NDArray[Any]] = {
        "C": state.C,
        "C_pinv": state.C_pinv,
        "mean": state.mean,
        "pending": fold.pending,
        "pending_retention": fold.pending_retention,
    }
    arrays |= {name: getattr(state, name) for name in _OPTIONAL_ARRAYS if getattr(state, name) is not None}
    return npz.encode(header, arrays)


def decode(data: bytes) -> Checkpoint:
    """Return the checkpoint that `encode` wrote, in this release or in the one before.

    Raises `DamagedFileError` for other bytes, and the errors of `npz.decode` for older and newer formats.
    """
    fields, arrays = npz.decode(data, KIND, FORMAT_VERSION, earlier_format.upgrade_checkpoint)
    header = npz.validate(CheckpointHeader, fields)
    refuse_wrong_arrays(arrays, header.settings, has_learned=header.count > 0)
    d = header.settings["dimensions"]
    if not npz.are_valid_names(header.names, d):
        raise DamagedFileError(f"the names of the dimensions are not {d} different names")
    state_fields: dict[str, Any] = {name: getattr(header, name) for name in _STATE_NUMBERS}
    state_fields |= {name: arrays.get(name) for name in _OPTIONAL_ARRAYS}
    last = LastRecord(**dict(header.last_record)) if header.last_record else None
    fold = Fold(
        position=header.next_offset,
        state=State(C=arrays["C"], mean=arrays["mean"], **state_fields),
        pending=arrays["pending"],
        pending_retention=arrays["pending_retention"],
        event_time=EventTime(**dict(header.event_time)),
        stats=header.stats,
        last=last,
    )
    return Checkpoint(
        topic=header.topic,
        topic_id=header.topic_id,
        partition=header.partition,
        fold=fold,
        settings=header.settings,
        until=header.until,
        names=header.names,
    )
