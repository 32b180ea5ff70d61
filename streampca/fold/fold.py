"""The fold of one partition: what was learned from its records, with their counts and losses.

A fold is a pure function of the records: only the number of messages decides where a block ends. Messages that do not
fill a block are pending. They are part of the checkpoint, and each published model has learned them. The fold itself
learns them when their block is full.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.fold.event_time import EventTime
from streampca.fold.names import Names
from streampca.fold.stats import FoldStats
from streampca.formats.record import Batch, LastRecord
from streampca.pca import axes
from streampca.pca.arrays import Array
from streampca.pca.learning import BeforeBlock, LearningConfig, Messages, learn, learn_whole_blocks
from streampca.pca.state import Losses, State


@dataclass(frozen=True, eq=False)
class Fold:
    """What was learned from a partition up to `position`."""

    position: int  # the next offset to read; −1 if nothing was read yet
    state: State
    pending: Array  # (p, d): vectors that do not fill a block; NaN where an entry is missing
    pending_retention: NDArray[np.float64]  # (p,): ρ, the share of the earlier weight that each pending vector leaves
    event_time: EventTime
    stats: FoldStats
    last: LastRecord | None = None  # the record before `position`; None: nothing was read, or its epoch is unknown

    @classmethod
    def empty(cls, learning_config: LearningConfig) -> "Fold":
        """Return the fold before the first record."""
        d = learning_config.dimensions
        dtype = learning_config.dtype
        return cls(
            position=-1,
            state=State.empty(d, dtype),
            pending=np.zeros((0, d), dtype),
            pending_retention=np.zeros(0),
            event_time=EventTime(),
            stats=FoldStats.total([]),
        )

    @property
    def nbytes(self) -> int:
        """The bytes of the state and of the pending vectors."""
        arrays = [value for value in vars(self.state).values() if isinstance(value, np.ndarray)]
        return sum(array.nbytes for array in [*arrays, self.pending])

    @property
    def has_handled_none(self) -> bool:
        """Whether no record was learned or rejected."""
        return not self.stats.learned and not self.stats.rejected

    def take(
        self, batch: Batch, config: "FoldConfig", before_block: BeforeBlock | None = None
    ) -> tuple["Fold", list[Losses]]:
        """Learn a batch: return the next fold, and the losses of the completed blocks.

        `before_block` is called before each block is learned, with the state and the block's vectors. How a stream is
        divided into batches changes no bit of the fold. The position never moves back.
        """
        decoded = batch.decoded
        event_time, elapsed_ms_by_record = self.event_time.advance(batch.timestamps)
        V = np.ascontiguousarray(decoded.vectors, config.learning.dtype)
        # The vectors of a record have one timestamp, so time passes only before the first of them.
        elapsed_ms_by_vector = _assign_to_first_vectors(elapsed_ms_by_record, decoded.counts)
        retention = config.compute_retention(elapsed_ms_by_vector)  # the share of the earlier weight that is left
        learned = learn_whole_blocks(
            config.learning,
            self.state,
            pending=Messages(self.pending, self.pending_retention),
            new=Messages(V, retention),
            before_block=before_block,
        )
        # A batch of a file has no records of Kafka: then the last record stays as it was.
        last_record = batch.last if len(batch.records) else self.last
        next_offset = batch.next
        fold = Fold(
            position=max(next_offset, self.position),
            state=learned.state,
            pending=learned.pending.V,
            pending_retention=learned.pending.retention,
            event_time=event_time,
            stats=self.stats.with_messages(batch.timestamps, len(V)).with_losses(learned.losses),
            last=last_record,
        )
        reasons = [reject.reason for reject in decoded.rejects]
        return fold.count_rejects(reasons, skipped=len(decoded.skipped)), learned.losses

    def count_rejects(self, reasons: Sequence[str], skipped: int = 0) -> "Fold":
        """Return the fold with rejected records counted by these reasons, and `skipped` deletes."""
        return replace(self, stats=self.stats.with_rejects(reasons, skipped))

    def at(self, position: int) -> "Fold":
        """Return the fold at this position. A fold that is already further stays where it is."""
        return replace(self, position=max(position, self.position))

    def skip(self, position: int, lost_from: int | None = None) -> "Fold":
        """Return the fold at a later position, with the offsets before this position counted as lost.

        The lost offsets begin at `lost_from`, or without it at the fold's own position. A fold that has read nothing
        loses no offsets.
        """
        if lost_from is None:
            lost_from = self.position
        has_read = self.position >= 0
        lost_count = max(position - lost_from, 0) if has_read else 0
        stats = replace(self.stats, gap=self.stats.gap + lost_count)  # `gap` counts lost offsets
        return replace(self, position=position, last=None, stats=stats)  # the record before the position is unknown

    def adapt_to(self, learning_config: LearningConfig) -> "Fold":
        """Return the fold from which learning continues with another configuration, of the same dimensions.

        If the blocks are smaller now, the pending vectors may fill a block. So they are learned like new vectors.
        """
        pending = Messages(self.pending, self.pending_retention)
        no_messages = pending.part(0, 0)
        learned = learn_whole_blocks(
            learning_config, axes.adapt_columns(self.state, learning_config), pending=no_messages, new=pending
        )
        return replace(
            self,
            state=learned.state,
            pending=learned.pending.V,
            pending_retention=learned.pending.retention,
            stats=self.stats.with_losses(learned.losses),
        )

    def without_pending(self) -> "Fold":
        """Return the fold without its pending messages, at the same position."""
        return replace(self, pending=self.pending[:0], pending_retention=self.pending_retention[:0])

    def provisional(self, learning_config: LearningConfig) -> State:
        """Return the state that has also learned the pending vectors, for a model; the fold does not change."""
        state, _losses = learn(self.state, self.pending, self.pending_retention, learning_config)
        return state


@dataclass(frozen=True)
class FoldConfig:
    """All settings that change the bits of a fold, and the names of the dimensions.

    A checkpoint that was made with other settings is refused.
    """

    learning: LearningConfig
    half_life_messages: float | None = None
    half_life_seconds: float | None = None
    format: str = "json"
    field: str = ""
    where: str = ""
    names: Names = None

    def as_dict(self) -> dict[str, Any]:
        """Return the settings in the form that a checkpoint keeps."""
        settings = vars(self.learning) | vars(self)
        settings["start"] = self.learning.first_block_size  # a property; checkpoints call it `start`
        settings["missing"] = "impute" if self.learning.impute else "refuse"  # replaces `impute`
        del settings["impute"]
        del settings["learning"]  # its fields are settings of their own
        del settings["names"]  # a checkpoint keeps the names apart from the settings
        del settings["factor"]  # set only by tests
        for name in ("missing_values", "where"):  # the checkpoints of earlier releases lack these
            if not settings[name]:
                del settings[name]
        return settings

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], names: Names = None) -> "FoldConfig":
        """Return the configuration that `as_dict` turned into these settings."""
        values = dict(settings)
        values.setdefault("missing_values", "")  # `as_dict` leaves it out if it is empty
        values["factor"] = False  # True (never keep Σ) only in tests and experiments; `as_dict` leaves it out
        values["impute"] = values["missing"] == "impute"  # `as_dict` writes `impute` as the setting `missing`
        learning = LearningConfig(**{field.name: values[field.name] for field in fields(LearningConfig)})
        fold_names = [field.name for field in fields(cls) if field.name not in ("learning", "names")]
        # `as_dict` leaves out `where` if it is empty, which is its default.
        fold_values = {name: values[name] for name in fold_names if name in values}
        return cls(learning=learning, names=names, **fold_values)

    def compute_retention(self, elapsed_ms: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the share ρ of the earlier weight that each message leaves (n,).

        `elapsed_ms` (n,) says by how much each message advanced the event time.
        """
        if self.half_life_messages:
            return np.full(len(elapsed_ms), 2.0 ** (-1.0 / self.half_life_messages))
        retention = np.ones(len(elapsed_ms))
        if self.half_life_seconds:
            half_lives_per_ms = 1.0 / (self.half_life_seconds * 1000.0)
            # An optimisation: of thousands of messages in a second, few advance the time.
            advancing = np.flatnonzero(elapsed_ms)
            # A loop, because `np.exp2` rounds some powers differently than `**`, which would change the bits of folds.
            retention[advancing] = [2.0 ** (-float(ms) * half_lives_per_ms) for ms in elapsed_ms[advancing]]
        return retention

    def compute_decay(self, elapsed_ms: int) -> float:
        """Return the share of a fold's weight that is left after this time without messages."""
        if not self.half_life_seconds:
            return 1.0
        elapsed_half_lives = elapsed_ms / (self.half_life_seconds * 1000.0)
        return float(2.0**-elapsed_half_lives)


def _assign_to_first_vectors(elapsed_ms: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the elapsed time of each vector (n,): the first vector of a record has the record's, all others 0."""
    first_vectors = np.cumsum(counts) - counts
    elapsed_ms_by_vector = np.zeros(counts.sum(), np.int64)
    elapsed_ms_by_vector[first_vectors] = elapsed_ms
    return elapsed_ms_by_vector
