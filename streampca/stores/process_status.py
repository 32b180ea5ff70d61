"""Status reports of workers and members of transform, in the store: `workers/<topic>/<name>.json`."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from streampca.stores.base import Store

OUTDATED_AFTER_S = 3600.0  # older reports are removed
SILENT_AFTER_S = 60.0  # a process that has not reported for this long is not running: it reports every few seconds

Phase = Literal["starting", "learning", "transforming", "waiting", "stopping", "stopped"]


class PartitionStatus(BaseModel):
    """A member's progress on one of its partitions; null: not known yet, or of transform, which learns nothing."""

    position: int = Field(description="Next offset to read; -1: the earliest record.")
    lag: int | None = Field(None, description="Consumer lag: messages behind the log's end.")
    learned: int | None = Field(None, description="Messages of the partition learned so far, by any worker.")
    rejected: int | None = Field(None, description="Records of the partition rejected so far.")
    loss_ewma: float | None = Field(None, description="Relative residual ‖r‖²/‖y‖² over the last 1000 messages or so.")
    clipped: int | None = Field(None, description="Messages clipped to the influence limit.")


class TransformStatus(BaseModel):
    """The records that a member of `streampca transform` has written since its start."""

    output_topic: str
    model_version: int | None = Field(None, description="Version of the model used last, or fixed; null: none yet.")
    awaits: str | None = Field(None, description="Why there is no model to project with yet.")
    written: int = Field(0, description="Records written to the output topic by committed transactions.")
    rejected: int = Field(0, description="Records rejected in committed transactions.")
    committed_at: float | None = Field(None, description="When the last one was committed, seconds since 1970.")


class ProcessStatus(BaseModel):
    """The status of one worker, or of one member of `streampca transform`."""

    name: Annotated[str, Field(description="Host name and process id.", pattern=r"^[A-Za-z0-9._-]+$")]
    state: Phase = Field(description="State of the worker; waiting: no messages for some seconds.")
    trouble: str | None = Field(
        description="The error that stops it from reading, saving, publishing or writing, or that ended it."
    )
    started_at: float = Field(description="Start time, seconds since 1970.")
    updated_at: float = Field(description="Time of this report, seconds since 1970.")
    messages_per_second: float = Field(description="Throughput over the last 10 seconds or so.")
    partitions: dict[str, PartitionStatus] = Field(description="Partitions assigned to it.")
    transform: TransformStatus | None = Field(None, description="Null: a worker.")
    group: str | None = Field(None, description="Consumer group; null: of another release.")

    def is_running(self, now: float) -> bool:
        """Return whether the process has reported within the last minute, and has not said that it ends."""
        return self.state != "stopped" and now - self.updated_at < SILENT_AFTER_S


class ProcessStatuses:
    """The status reports of one topic."""

    def __init__(self, store: Store, topic: str) -> None:
        self._store = store
        self._folder = f"workers/{topic}"

    def store_exists(self) -> bool:
        """Return whether the store exists, so that writing a report would not create it. Raises `StoreError`."""
        return self._store.missing() is None

    def write(self, report: ProcessStatus) -> None:
        """Replace the previous report of the same name. Raises `StoreError`."""
        self._store.write(f"{self._folder}/{report.name}.json", report.model_dump_json().encode())

    def all(self) -> list[ProcessStatus]:
        """Read all reports that can be read, sorted by name. Raises `StoreError`."""
        reports = [report for _, report in self._read_reports() if report is not None]
        return sorted(reports, key=lambda report: report.name)

    def find_used_versions(self) -> set[int]:
        """Return the versions of models that members of transform use, by their reports."""
        used = set()
        for report in self.all():
            if report.transform and report.transform.model_version is not None:
                used.add(report.transform.model_version)
        return used

    def remove(self, before: float) -> None:
        """Delete reports that cannot be read, and reports that were written before this time (seconds since 1970)."""
        for path, report in self._read_reports():
            if report is None or report.updated_at < before:
                self._store.delete(path)

    def _read_reports(self) -> Iterator[tuple[str, ProcessStatus | None]]:
        """Yield the path of each report, and the report; None if it cannot be read."""
        for path in self._store.names(self._folder):
            if not path.endswith(".json"):
                continue
            try:
                yield path, ProcessStatus.model_validate_json(self._store.read(path), strict=True)
            except (FileNotFoundError, ValidationError):  # removed meanwhile, damaged, or of another release
                yield path, None
