"""What workers report of themselves, for people to see: `workers/<topic>/<name>.json` in a store."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from streampca.stores.base import Store

OUTDATED_AFTER_S = 3600.0  # a worker that has been silent for so long is no news

State = Literal["starting", "learning", "waiting", "stopping", "stopped"]


class PartitionStatus(BaseModel):
    """How far a worker is with one of its partitions; null: not known yet."""

    position: int = Field(description="Next offset to be learned; -1: from the earliest record on.")
    lag: int | None = Field(description="Offsets between it and the log's end.")
    learned: int | None = Field(description="Messages learned of the partition since its start, by whomever.")
    rejected: int | None = Field(description="Records of it that could not be learned.")
    loss_ewma: float | None = Field(description="‖r‖²/‖y‖² over the last 1000 messages or so.")


class WorkerStatus(BaseModel):
    """What a worker says of itself."""

    name: Annotated[str, Field(description="Host and process.", pattern=r"^[A-Za-z0-9._-]+$")]
    state: State = Field(description="waiting: nothing to read for some seconds.")
    trouble: str | None = Field(description="What keeps it from saving, publishing or reading, or has ended it.")
    started_at: float = Field(description="Seconds since 1970.")
    updated_at: float = Field(description="The same, of this report.")
    messages_per_second: float = Field(description="Learned, over the last 10 seconds or so.")
    partitions: dict[str, PartitionStatus] = Field(description="Those that it owns.")


class WorkerStatuses:
    """The reports of one topic's workers."""

    def __init__(self, store: Store, topic: str) -> None:
        self._store, self._folder = store, f"workers/{topic}"

    def write(self, report: WorkerStatus) -> None:
        """Put it in the place of the same worker's last one. Raises `StoreError`."""
        self._store.write(self._path(report.name), report.model_dump_json().encode())

    def all(self) -> list[WorkerStatus]:
        """Those that can be understood, by name. Raises `StoreError`."""
        found = (self._load(path) for path in self._paths())
        return sorted((report for report in found if report is not None), key=lambda report: report.name)

    def remove(self, before: float) -> None:
        """Remove those last written before then (seconds since 1970), and damaged ones: who lives writes anew."""
        for path in self._paths():
            report = self._load(path)
            if report is None or report.updated_at < before:
                self._store.delete(path)

    def _paths(self) -> list[str]:
        return [path for path in self._store.names(self._folder) if path.endswith(".json")]

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}.json"

    def _load(self, path: str) -> WorkerStatus | None:
        try:
            return WorkerStatus.model_validate_json(self._store.read(path), strict=True)
        except (FileNotFoundError, ValidationError):  # removed since it was listed; damaged, or of another release
            return None
