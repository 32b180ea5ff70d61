"""Checkpoints: the state of one partition together with its next offset, and the file that holds both.

Nothing in the file depends on the time or the machine: the same records give the same bytes.
"""

from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from streampca.errors import DamagedFileError, SettingsError, refuse_other_topic
from streampca.fold import earlier_format, npz
from streampca.fold.event_time import EventTime
from streampca.fold.fold import Fold, FoldConfig, FoldStats
from streampca.fold.names import Names, agreed, difference
from streampca.fold.partitions import FIRST_BACKFILL, offsets_in, partition_name
from streampca.formats.record import LastRecord
from streampca.pca.arrays import not_finite, packed_diagonal
from streampca.pca.state import State

KIND = "checkpoint"
FORMAT_VERSION = 4
_OPTIONAL = ("missing", "covariance", "scale", "variances", "known")  # arrays that a state may lack


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The fold of one partition and what it belongs to."""

    topic: str
    topic_id: str  # "" if the brokers give topics no id
    partition: int
    fold: Fold
    settings: dict[str, Any]  # as `FoldConfig.as_dict` gives them
    until: str = ""  # of a backfill: where it ends, a time in milliseconds or partition:offset,…
    names: Names = None

    @property
    def end(self) -> int | dict[int, int] | None:
        """End of a backfill: a time in milliseconds, or the next offset of each partition.

        None if there is no end: what a backfill has read is then older than the topic's first record.
        """
        return (offsets_in(self.until) or int(self.until)) if self.until else None

    def refuse_other_settings(self, fold_config: FoldConfig) -> None:
        """Raise `SettingsError` that lists all settings in which the checkpoint differs from the worker.

        If one of the two has no names, these do not differ. `field` may differ if there are names, or in a backfill.
        """
        then, now = dict(self.settings), fold_config.as_dict()
        if self.names or fold_config.names or self.partition >= FIRST_BACKFILL:
            now["field"] = then.get("field")  # names say which numbers these are, wherever they lie
        if names := difference(self.names, fold_config.names):
            then["names"], now["names"] = names
        if differing := [n for n in sorted(now.keys() | then.keys()) if now.get(n) != then.get(n)]:
            listed = ", ".join(f"{n}={then.get(n)} (now {now.get(n)})" for n in differing)
            otherwise = "start over with another store folder and another group_id"
            if self.partition >= FIRST_BACKFILL:
                otherwise = f"delete it: `streampca backfill --remove {self.partition - FIRST_BACKFILL}`"
            raise SettingsError(
                f"the checkpoint of partition {partition_name(self.partition)} of {self.topic} was made with "
                f"{listed}; restore these settings, or {otherwise}"
            )

    def usable_by(self, fold_config: FoldConfig, topic_id: str = "") -> "Checkpoint":
        """The checkpoint, if a worker of a topic with this id may continue from it; any id if it is empty.

        A checkpoint that has learned nothing is given the settings. Raises `SettingsError` if another one was made with
        other settings, and `TopicReplacedError` if it was made from another topic of the same name.
        """
        self.refuse_other_topic(topic_id)
        now, fold = fold_config.as_dict(), self.fold
        if fold.stats.learned or self.settings == now:
            self.refuse_other_settings(fold_config)
            return self
        empty = Fold.empty(fold_config.learning)
        stats = replace(empty.stats, **{name: getattr(fold.stats, name) for name in ("rejected", "skipped", "gap")})
        fold = replace(empty, position=fold.position, stats=stats, last=fold.last)
        return replace(self, fold=fold, settings=now, names=fold_config.names)

    def agreed_names(self, names: Names) -> Names:
        """These names, or the checkpoint's if these are None.

        Raises `SettingsError` if both have names that differ.
        """
        return agreed(names, self.names, "others", f"the checkpoint of partition {partition_name(self.partition)}")

    def refuse_other_topic(self, topic_id: str) -> None:
        """Raise `TopicReplacedError` if the checkpoint was made from another topic of the same name."""
        refuse_other_topic(
            self.topic,
            self.topic_id,
            topic_id,
            f"in the checkpoint of partition {self.partition}",
            "to learn the new one, use another store folder",
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
    """The bytes of a checkpoint file."""
    fold, state = checkpoint.fold, checkpoint.fold.state
    stats = {**vars(fold.stats), "rejected": dict(fold.stats.rejected)}
    header = {
        "kind": KIND,
        "format_version": FORMAT_VERSION,
        "numpy": np.__version__,
        **{name: getattr(checkpoint, name) for name in ("topic", "topic_id", "partition", "settings")},
        "next_offset": fold.position,
        "last_record": fold.last and fold.last._asdict(),
        **{name: getattr(state, name) for name in ("weight", "total_variance", "count", "concentration", "clipped")},
        "event_time": asdict(fold.event_time),
        "stats": {name: value for name, value in stats.items() if value or name != "skipped"},
        **{name: value for name in ("until", "names") if (value := getattr(checkpoint, name))},
    }
    arrays: dict[str, NDArray[Any]] = {
        "C": state.C,
        "C_pinv": state.C_pinv,
        "mean": state.mean,
        "pending": fold.pending,
        "pending_retention": fold.retention,
    }
    arrays |= {name: array for name in _OPTIONAL if (array := getattr(state, name)) is not None}
    return npz.encode(header, arrays)


def decode(data: bytes) -> Checkpoint:
    """The checkpoint that `encode` wrote, in this release or the one before.

    Raises `DamagedFileError` for other bytes, and as `npz.decode` for the formats of other releases.
    """
    fields, arrays = npz.decode(data, KIND, FORMAT_VERSION, earlier_format.checkpoint)
    header = npz.validate(CheckpointHeader, fields)
    _verify(header, arrays)
    state = State(
        C=arrays["C"],
        mean=arrays["mean"],
        weight=header.weight,
        total_variance=header.total_variance,
        count=header.count,
        concentration=header.concentration,
        clipped=header.clipped,
        missing=arrays.get("missing"),
        covariance=arrays.get("covariance"),
        scale=arrays.get("scale"),
        variances=arrays.get("variances"),
        known=arrays.get("known"),
    )
    last = LastRecord(**dict(header.last_record)) if header.last_record else None
    fold = Fold(
        position=header.next_offset,
        state=state,
        pending=arrays["pending"],
        retention=arrays["pending_retention"],
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


def _verify(header: CheckpointHeader, arrays: dict[str, NDArray[Any]]) -> None:
    """Raise `DamagedFileError` for content that no release of this format can have written.

    `Checkpoints.save` calls this before it writes, so each rule must hold for every state that can be learned or
    merged: if one is refused, the worker stops, and reads the same records again at every start, and stops again.
    """
    d, dtype = header.settings.get("dimensions"), header.settings.get("dtype")
    r = arrays["C"].shape[-1] if "C" in arrays and arrays["C"].ndim else 0
    pairs = d * (d + 1) // 2 if isinstance(d, int) else 0
    keeps_covariance = "covariance" in arrays
    n = len(arrays["pending"]) if "pending" in arrays and arrays["pending"].ndim else 0
    standardised = bool(header.settings.get("standardize") and header.count)
    of_dimensions = {"mean"}  # arrays with a number for each dimension
    if "missing" in arrays:
        of_dimensions.add("missing")
    if standardised:
        of_dimensions.add("scale")
        if not keeps_covariance:
            of_dimensions.add("variances")
    expected = {
        "C": ((d, r), dtype),
        "C_pinv": ((r, d), dtype),  # only for readers of the file: it follows from C
        "pending": ((n, d), dtype),
        "pending_retention": ((n,), "float64"),
        **dict.fromkeys(of_dimensions, ((d,), "float64")),
    }
    if keeps_covariance:
        expected["covariance"] = ((pairs,), "float64")
    if "known" in arrays:
        expected["known"] = ((pairs if keeps_covariance else d,), "float64")
    actual = {name: (array.shape, array.dtype.name) for name, array in arrays.items()}
    if actual != expected or not all(a.dtype.isnative and a.flags.c_contiguous for a in arrays.values()):
        raise DamagedFileError("the arrays of the checkpoint fit neither each other nor the settings")
    if not npz.are_names(header.names, d):
        raise DamagedFileError(f"the names of the dimensions are not {d} different names")
    may_have_gaps = header.settings.get("missing") == "impute"
    for name, array in arrays.items():
        if not_finite(array, impute=may_have_gaps and name == "pending").any():
            raise DamagedFileError(f"{name} holds values that are not finite")
    _verify_ranges(arrays)


def _verify_ranges(arrays: dict[str, NDArray[Any]]) -> None:
    """Raise `DamagedFileError` for numbers that cannot have been learned: shares outside 0 … 1, or too large numbers.

    The squares of numbers beyond the limits here would overflow. A vector is rejected if an entry is larger than the
    root of the type's largest number, divided by 128 √d, so what is learned of vectors is far below these limits.
    """
    largest_square = float(np.finfo(arrays["C"].dtype).max)
    largest = np.sqrt(largest_square) / 8
    largest_variance = 0.0
    covariance = arrays.get("covariance")
    if (
        covariance is not None
    ):  # correlations are at most 1, so no covariance exceeds the largest variance, but rounding
        variances = covariance[packed_diagonal(len(arrays["mean"]))]
        largest_variance = min(1.01 * float(variances.max()), largest_square / 64)
    ranges = {
        "C": (-largest, largest),
        "C_pinv": (-np.inf, np.inf),
        "mean": (-largest, largest),
        "pending": (-largest, largest),
        "pending_retention": (0.0, 1.0),
        "missing": (0.0, 1.0 + 1e-6),
        "known": (0.0, 1.0 + 1e-6),
        "scale": (np.nextafter(0.0, 1.0), np.inf),
        "variances": (0.0, np.inf),
        "covariance": (-largest_variance, largest_variance),
    }
    for name, array in arrays.items():
        low, high = ranges[name]
        if ((array < low) | (array > high)).any():
            raise DamagedFileError(f"{name} holds values outside {low:g} … {high:g}, which cannot have been learned")
