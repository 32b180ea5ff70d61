"""What a worker learns, how it treats bad records, and how often it saves."""

from dataclasses import dataclass

from streampca.fold.fold import FoldConfig
from streampca.formats.codec import Codec


@dataclass(frozen=True)
class WorkerConfig:
    """The part of the settings that a worker's loop uses."""

    topic: str
    fold: FoldConfig
    codec: Codec
    on_bad_record: str = "stop"  # stop, skip, or dead_letter
    on_offset_gap: str = "fail"  # fail, earliest or latest
    checkpoint_interval_s: float = 5.0
    start: str | int = "earliest"  # of partitions without a checkpoint: latest, backfill, or a time in milliseconds
