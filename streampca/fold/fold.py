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
    retention: NDArray[np.float64]  # (p,): ρ of each pending vector
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
            retention=np.zeros(0),
            event_time=EventTime(),
            stats=FoldStats.total([]),
        )

    @property
    def nbytes(self) -> int:
        """The bytes of the state and of the pending vectors."""
        arrays = [value for value in vars(self.state).values() if isinstance(value, np.ndarray)]
        return sum(array.nbytes for array in [*arrays, self.pending])

    @property
    def is_first_start(self) -> bool:
        """Whether nothing was learned or rejected."""
        return not self.stats.learned and not self.stats.rejected

    def take(
        self, batch: Batch, config: "FoldConfig", before_block: BeforeBlock | None = None
    ) -> tuple["Fold", list[Losses]]:
        """Learn a batch: return the next fold, and the losses of the blocks that were completed.

        Everything that learns uses this step. Vectors are learned, rejects and deletes are counted, and the position
        moves past the batch. How a stream is divided into batches changes no bit of the fold.
        """
        decoded = batch.decoded
        event_time, record_steps_ms = self.event_time.advance(batch.timestamps)
        V = np.ascontiguousarray(decoded.vectors, config.learning.dtype)
        vector_steps_ms = _assign_steps(record_steps_ms, decoded.counts)
        learned = learn_whole_blocks(
            config.learning,
            self.state,
            pending=Messages(self.pending, self.retention),
            new=Messages(V, config.compute_retention(vector_steps_ms)),
            before_block=before_block,
        )
        last_record = batch.last if len(batch.records) else self.last  # the vectors of a file come without records
        next_offset = batch.next
        fold = Fold(
            position=max(next_offset, self.position),
            state=learned.state,
            pending=learned.pending.V,
            retention=learned.pending.retention,
            event_time=event_time,
            stats=self.stats.with_messages(batch.timestamps, len(V)).with_losses(learned.losses),
            last=last_record,
        )
        reasons = [reject.reason for reject in decoded.rejects]
        return fold.reject(reasons, skipped=len(decoded.skipped)), learned.losses

    def reject(self, reasons: Sequence[str], skipped: int = 0) -> "Fold":
        """Return the fold with rejected records counted, one for each of the reasons, and with `skipped` deletes."""
        return replace(self, stats=self.stats.with_rejects(reasons, skipped))

    def at(self, position: int) -> "Fold":
        """Return the fold at this position. A fold that is already further stays where it is."""
        return replace(self, position=max(position, self.position))

    def skip(self, position: int, lost_from: int | None = None) -> "Fold":
        """Return the fold at a later position, and count the skipped offsets as lost.

        Lost offsets begin at `lost_from`, by default at the fold's position. If nothing was read yet, none is lost.
        """
        if lost_from is None:
            lost_from = self.position
        has_read = self.position >= 0
        lost_count = max(position - lost_from, 0) if has_read else 0
        stats = replace(self.stats, gap=self.stats.gap + lost_count)  # `gap` counts the lost offsets
        return replace(self, position=position, last=None, stats=stats)  # the record before the position was not read

    def adapt_to(self, learning_config: LearningConfig) -> "Fold":
        """Return the fold from which learning continues with another configuration, of the same dimensions.

        Blocks of the new configuration may be smaller. If the pending vectors fill such blocks, the blocks are learned.
        """
        # `retention` has, for each pending vector, the share of the earlier weight that the vector leaves.
        pending = Messages(self.pending, self.retention)
        no_messages = pending.part(0, 0)
        learned = learn_whole_blocks(
            learning_config,
            # If the state keeps the covariance, C gets as many columns as the new configuration asks for.
            axes.adapt_columns(self.state, learning_config),
            # Blocks end elsewhere now, so the pending vectors are divided into blocks again, like new vectors.
            pending=no_messages,
            new=pending,
        )
        return replace(
            self,
            state=learned.state,
            pending=learned.pending.V,
            retention=learned.pending.retention,
            stats=self.stats.with_losses(learned.losses),
        )

    def without_pending(self) -> "Fold":
        """Return the fold without its pending messages, at the same position."""
        return replace(self, pending=self.pending[:0], retention=self.retention[:0])

    def provisional(self, learning_config: LearningConfig) -> State:
        """Return the state after the pending messages, for a model.

        The fold itself does not learn the pending messages until they fill a block.
        """
        # `retention` has, for each pending message, the share of the earlier weight that the message leaves.
        state, _losses = learn(self.state, self.pending, self.retention, learning_config)
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
        settings["start"] = self.learning.first_block_size  # a property, so it is not in `vars`
        settings["missing"] = "impute" if self.learning.impute else "refuse"  # as users set it
        left_out = [
            "names",  # a checkpoint keeps them beside its settings
            "learning",  # its settings are here one by one
            "impute",  # "missing" says it
            "factor",  # set only by tests
        ]
        # Earlier releases did not have these two settings. They are left out if they are empty, so that settings are
        # equal to those in the files of these releases.
        left_out += [name for name in ("missing_values", "where") if not settings[name]]
        return {name: value for name, value in settings.items() if name not in left_out}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any], names: Names = None) -> "FoldConfig":
        """Return the configuration that `as_dict` turned into these settings."""
        values = dict(settings)
        values.setdefault("missing_values", "")  # left out if no number means "missing", and by earlier releases
        values["impute"] = values["missing"] == "impute"  # whether vectors may lack entries
        # True would forbid to keep the covariance in few dimensions. Only tests set it, and `as_dict` leaves it out.
        values["factor"] = False
        learning = LearningConfig(**{field.name: values[field.name] for field in fields(LearningConfig)})
        own_names = [field.name for field in fields(cls) if field.name not in ("learning", "names")]
        own_values = {name: values[name] for name in own_names if name in values}  # `where` is left out if it is empty
        return cls(learning=learning, names=names, **own_values)

    def compute_retention(self, steps_ms: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the retention ρ of each message, (n,): the share of the earlier weight that the message leaves.

        `steps_ms` (n,) are the milliseconds by which each message advanced the event time.
        """
        if self.half_life_messages:
            return np.full(len(steps_ms), 2.0 ** (-1.0 / self.half_life_messages))
        retention = np.ones(len(steps_ms))
        if self.half_life_seconds:
            half_lives_per_ms = 1.0 / (self.half_life_seconds * 1000.0)
            # An optimisation: powers are computed only for messages that advanced the time. If thousands of messages
            # arrive in a second, few of them do.
            advancing = np.flatnonzero(steps_ms)
            retention[advancing] = [2.0 ** (-float(step_ms) * half_lives_per_ms) for step_ms in steps_ms[advancing]]
        return retention

    def compute_decay(self, elapsed_ms: int) -> float:
        """Return the share of a fold's weight that is left after this time without messages."""
        if not self.half_life_seconds:
            return 1.0
        elapsed_half_lives = elapsed_ms / (self.half_life_seconds * 1000.0)
        return float(2.0**-elapsed_half_lives)


def _assign_steps(steps_ms: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the time step of each vector: the first vector of a record has the record's step, its other vectors 0.

    `steps_ms` are the steps of the records, and `counts` the numbers of their vectors, at least 1 each.
    """
    vector_count = int(counts.sum())
    if len(steps_ms) == vector_count:  # each record has one vector
        return steps_ms
    first_vectors = np.cumsum(counts) - counts  # the index of the first vector of each record
    vector_steps_ms = np.zeros(vector_count, np.int64)
    vector_steps_ms[first_vectors] = steps_ms
    return vector_steps_ms
