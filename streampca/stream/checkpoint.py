"""Checkpoints: the state of one partition together with its next offset, and the file that holds both.

The file names its topic, the topic's id, the partition, the offset, and all settings that shape the state. Nothing in
it depends on the time or the machine: the same records give the same bytes.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.errors import DamagedFileError
from streampca.pca.arrays import F64, Array
from streampca.pca.state import State
from streampca.stream import npz
from streampca.stream.event_time import EventTime
from streampca.stream.fold import Fold, FoldStats

KIND = "checkpoint"
FORMAT_VERSION = 1


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The fold of one partition and what it belongs to."""

    topic: str
    topic_id: str  # "" if the brokers give topics no id
    partition: int
    fold: Fold
    settings: dict[str, Any]  # as `Shape.as_dict` gives them


def encode(checkpoint: Checkpoint) -> bytes:
    """The bytes of a checkpoint file."""
    fold = checkpoint.fold
    state = fold.state
    header = {
        "kind": KIND,
        "format_version": FORMAT_VERSION,
        "numpy": np.__version__,
        "topic": checkpoint.topic,
        "topic_id": checkpoint.topic_id,
        "partition": checkpoint.partition,
        "next_offset": fold.position,
        "settings": checkpoint.settings,
        "weight": state.weight,
        "total_variance": state.total_variance,
        "count": state.count,
        "blocks": state.blocks,
        "clock": asdict(fold.event_time),
        "tally": {**asdict(fold.stats), "rejected": dict(fold.stats.rejected)},
    }
    arrays = {
        "C": state.C,
        "C_pinv": state.C_pinv,
        "N": state.N,
        "mean": state.mean,
        "pending": fold.pending,
        "pending_retention": fold.retention,
    }
    return npz.encode(header, arrays)


def decode(data: bytes) -> Checkpoint:
    """The checkpoint that `encode` wrote. Raises `DamagedFileError` for anything else."""
    header, arrays = npz.decode(data, KIND, FORMAT_VERSION)
    try:
        state = State(
            arrays["C"],
            arrays["N"],
            arrays["mean"],
            float(header["weight"]),
            float(header["total_variance"]),
            int(header["count"]),
            int(header["blocks"]),
        )
        event_time, stats = EventTime(**header["clock"]), FoldStats(**header["tally"])
        fold = Fold(
            int(header["next_offset"]), state, arrays["pending"], arrays["pending_retention"], event_time, stats
        )
        checkpoint = Checkpoint(header["topic"], header["topic_id"], int(header["partition"]), fold, header["settings"])
        _verify(arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedFileError(f"not a checkpoint: {error!r}") from None
    return checkpoint


def _verify(arrays: dict[str, NDArray[Any]]) -> None:
    C, C_pinv, N, mean, pending = (arrays[name] for name in ("C", "C_pinv", "N", "mean", "pending"))
    d, r = C.shape
    shapes = (C_pinv.shape, N.shape, mean.shape, pending.shape[1:], arrays["pending_retention"].shape)
    if shapes != ((r, d), (r, r), (d,), (d,), pending.shape[:1]):
        raise DamagedFileError("the arrays of the checkpoint do not fit each other")
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise DamagedFileError(f"{name} holds values that are not finite")
    if r and not _agree(C, C_pinv, N):
        raise DamagedFileError("C, its pseudo-inverse and its Gram matrix do not agree")


def _agree(C: Array, C_pinv: Array, N: F64) -> bool:
    """Whether N = CᵀC and C†C = I, up to rounding.

    The second is checked with the columns of C scaled to length one, and with a tolerance that grows with the ratio of
    the longest column to the shortest: constant sensors and exact linear relations make ratios of 1e10.
    """
    tolerance, rounding = (1e-6 if C.dtype == np.float64 else 1e-2), 100 * float(np.finfo(C.dtype).eps)
    C, squares = C.astype(np.float64), N.diagonal()
    if not (squares > 0).all():
        return False
    unit = np.sqrt(squares)
    gram = np.abs(C.T @ C - N).max() / squares.max()
    inverse = np.abs((unit[:, None] * C_pinv) @ (C / unit) - np.eye(len(N))).max()
    return bool(gram <= tolerance and inverse <= tolerance + rounding * (unit.max() / unit.min()) ** 2)
