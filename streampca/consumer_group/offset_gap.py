"""The position to resume at when the log of a partition does not hold the next record any more."""

from dataclasses import dataclass

from streampca.errors import OffsetGapError
from streampca.fold.events import OutOfRange


@dataclass(frozen=True)
class OffsetGapPolicy:
    """The policy for lost records of a topic."""

    topic: str
    on_offset_gap: str  # fail, earliest or latest
    start_over: str  # with these settings, for errors

    def resolve(self, event: OutOfRange) -> int:
        """The offset to resume at. Raises `OffsetGapError`."""
        where = f"partition {event.partition} of {self.topic}: offset {event.position}"
        if event.diverged is not None:
            if self.on_offset_gap == "fail":
                raise OffsetGapError(
                    f"{where} follows records that are not in the log any more: it was cut at offset {event.diverged} "
                    "or before and has grown again, so records that were read are gone and others were not read; start "
                    f"over with {self.start_over}, or set on_offset_gap to earliest or latest to continue"
                )
            return event.position if self.on_offset_gap == "earliest" else event.latest
        if event.position >= event.earliest:  # it was beyond the end of the log, which may have grown since
            raise OffsetGapError(
                f"{where} is beyond the end of the log (it holds {event.earliest} to {event.latest}): records that "
                f"were read are gone from the broker (it lost data); start over with {self.start_over}"
            )
        if self.on_offset_gap == "fail":
            raise OffsetGapError(
                f"{where} was removed by retention, the log starts at {event.earliest}; set on_offset_gap to earliest "
                "or latest to resume without the records between"
            )
        return event.earliest if self.on_offset_gap == "earliest" else event.latest
