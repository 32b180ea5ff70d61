"""Subtotals: the merged states of a range of partitions, each up to an offset, and the file that holds them.

With many partitions the model is merged from them, so that workers share the work. Like a checkpoint, a subtotal does
not depend on who has made it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from streampca.errors import DamagedFileError
from streampca.pca.arrays import Array
from streampca.pca.learning import LearningConfig
from streampca.pca.state import State
from streampca.stream import npz
from streampca.stream.checkpoint import Checkpoint
from streampca.stream.fold import FoldStats
from streampca.stream.headers import SubtotalHeader

KIND = "subtotal"
FORMAT_VERSION = 1
RECENT = 16  # messages of each partition that are kept to be scored


@dataclass(frozen=True, eq=False)
class Subtotal:
    """The merged states of a range of partitions."""

    topic: str
    topic_id: str  # "" if the brokers give topics no id
    positions: dict[int, int]  # partition → next offset
    state: State  # the columns of its factor are orthogonal, by falling variance
    time_ms: int  # event time at which its weight counts; -1: unknown
    stats: FoldStats  # of all partitions
    settings: dict[str, Any]  # as in their checkpoints
    recent: dict[int, Array]  # partition → its newest messages (m, d), to be scored; NaN where an entry is missing

    @classmethod
    def of(cls, checkpoint: Checkpoint, config: LearningConfig) -> "Subtotal":
        """One partition, with its pending messages learned."""
        fold = checkpoint.fold
        return cls(
            checkpoint.topic,
            checkpoint.topic_id,
            {checkpoint.partition: fold.position},
            fold.provisional(config),
            fold.event_time.now_ms,
            fold.stats,
            checkpoint.settings,
            {checkpoint.partition: fold.pending},
        )

    @property
    def partition(self) -> int:
        """The lowest partition."""
        return min(self.positions)

    @property
    def progress(self) -> int:
        """The sum of the offsets, which grows with each of them."""
        return sum(self.positions.values())

    @property
    def nbytes(self) -> int:
        """The size of its arrays."""
        state = self.state
        return sum(array.nbytes for array in (state.C, state.N, state.mean, *self.recent.values()))


def encode(subtotal: Subtotal) -> bytes:
    """The bytes of a subtotal file; the same subtotal gives the same bytes."""
    state = subtotal.state
    header = {
        "kind": KIND,
        "format_version": FORMAT_VERSION,
        "topic": subtotal.topic,
        "topic_id": subtotal.topic_id,
        "positions": {str(p): offset for p, offset in sorted(subtotal.positions.items())},
        "settings": subtotal.settings,
        "weight": state.weight,
        "total_variance": state.total_variance,
        "count": state.count,
        "time_ms": subtotal.time_ms,
        "tally": {**vars(subtotal.stats), "rejected": dict(subtotal.stats.rejected)},
        "recent": {str(p): len(rows) for p, rows in sorted(subtotal.recent.items())},
    }
    recent = np.concatenate([np.zeros((0, *state.mean.shape), state.C.dtype), *_by_number(subtotal.recent)])
    return npz.encode(header, {"C": state.C, "variance": state.N.diagonal(), "mean": state.mean, "recent": recent})


def decode(data: bytes) -> Subtotal:
    """The subtotal that `encode` wrote. Raises `DamagedFileError` for anything else."""
    fields, arrays = npz.decode(data, KIND, FORMAT_VERSION)
    header = npz.validate(SubtotalHeader, fields)
    d, dtype = header.settings.get("dimensions"), header.settings.get("dtype")
    r = arrays["C"].shape[-1] if "C" in arrays and arrays["C"].ndim else 0
    m = sum(header.recent.values())
    expected = {
        "C": ((d, r), dtype), "variance": ((r,), "float64"), "mean": ((d,), "float64"), "recent": ((m, d), dtype)
    }  # fmt: skip
    if {name: (array.shape, array.dtype.name) for name, array in arrays.items()} != expected:
        raise DamagedFileError("the arrays of the subtotal fit neither each other nor the settings")
    if not header.recent.keys() <= header.positions.keys():
        raise DamagedFileError("it holds messages of partitions that it does not name")
    for name, array in arrays.items():
        if (np.isinf(array) if name == "recent" and header.settings.get("missing") else ~np.isfinite(array)).any():
            raise DamagedFileError(f"{name} holds values that are not finite")
    C, variance, mean = arrays["C"], arrays["variance"], arrays["mean"]
    recent, start = {}, 0
    for partition, rows in sorted((int(name), rows) for name, rows in header.recent.items()):
        recent[partition], start = arrays["recent"][start : start + rows], start + rows
    return Subtotal(
        header.topic,
        header.topic_id,
        {int(partition): offset for partition, offset in header.positions.items()},
        State(C, np.diag(variance), mean, header.weight, header.total_variance, header.count, 0),
        header.time_ms,
        FoldStats(**dict(header.tally)),
        header.settings,
        recent,
    )


def _by_number(recent: dict[int, Array]) -> list[Array]:
    return [rows for _, rows in sorted(recent.items())]
