"""Whether the newest model has become too old.

The age of a model counts by this sidecar's clock, from when it found the model: the clock of the worker that published
it may be wrong. On a quiet topic a model becomes old, but stays right while running workers report that they have read
every record and are at the positions of the model. Workers report every few seconds.
"""

import math
from collections.abc import Callable, Sequence

from streampca.fold.model_file import PublishedModel
from streampca.fold.partitions import is_backfill
from streampca.stores.process_status import SILENT_AFTER_S, ProcessStatus, ProcessStatuses

_READ_REPORTS_EVERY_S = 9.0  # each request to a bucket costs money
# Reports are read from this time before the model is too old: only a second reading shows whether a report has changed.
_NEARLY_TOO_OLD_S = 30.0


class ModelAge:
    """Decides whether the newest model is too old, by its age and the reports of workers."""

    def __init__(self, statuses: ProcessStatuses, clock: Callable[[], float], max_age_s: float) -> None:
        """A model older than `max_age_s` is too old, unless workers report that it has every record."""
        self._statuses = statuses
        self._clock = clock
        self._max_age_s = max_age_s
        self._reports_read_at = -math.inf
        self._report_time_by_worker: dict[str, float] = {}  # by the clock of the worker
        # When workers last reported that the newest model has every record.
        self._confirmed_at = -math.inf

    def confirm_if_every_record_is_learned(self, newest: PublishedModel, age_s: float) -> None:
        """If the newest model will soon be too old, find out from workers whether it has learned every record.

        If it has, it is confirmed for now: `explain_too_old` does not count it as too old. Raises `StoreError`.
        """
        now = self._clock()
        is_nearly_too_old = age_s >= self._max_age_s - _NEARLY_TOO_OLD_S
        reports_were_just_read = now < self._reports_read_at + _READ_REPORTS_EVERY_S
        if not is_nearly_too_old or reports_were_just_read:
            return
        self._reports_read_at = now
        if _has_learned_every_record(newest, self._read_reports_of_running_workers()):
            self._confirmed_at = now

    def explain_too_old(self, age_s: float) -> str | None:
        """Return why the newest model is too old; None if it is not too old.

        `age_s` is the time since this process found the model in the store. While running workers report that the model
        has learned every record, it may be of any age.
        """
        is_confirmed_by_workers = self._clock() - self._confirmed_at < SILENT_AFTER_S
        if age_s <= self._max_age_s or is_confirmed_by_workers:
            return None
        return (
            f"the newest model was found {age_s:.0f} s ago, more than {self._max_age_s:g} s, and no running workers "
            "report that it has every record"
        )

    def _read_reports_of_running_workers(self) -> list[ProcessStatus]:
        """Return the reports of the workers whose report has changed since the last call: these workers are running.

        A worker that is new in this call may have died long ago. So it counts from its next report on.
        """
        # Reports of members of transform, whose `transform` is set, are left out: these members learn no records.
        reports = [report for report in self._statuses.all() if report.transform is None and report.state != "stopped"]
        earlier_times = self._report_time_by_worker
        self._report_time_by_worker = {report.name: report.updated_at for report in reports}
        reports_of_known_workers = [report for report in reports if report.name in earlier_times]
        return [report for report in reports_of_known_workers if report.updated_at != earlier_times[report.name]]


def _has_learned_every_record(model: PublishedModel, workers: Sequence[ProcessStatus]) -> bool:
    """Return whether a model has learned every record of the topic, by the reports of workers."""
    read_up_to: dict[int, int] = {}  # positions of the workers by partition
    for worker in workers:
        if not _has_read_every_record(worker):
            return False
        for name, partition in worker.partitions.items():
            if partition.position > 0:
                read_up_to[int(name)] = partition.position
    learned_up_to = {
        partition: position
        for partition, position in model.positions.items()
        if position > 0 and not is_backfill(partition)  # no worker reads the partition of a backfill
    }
    # Without running workers, it is unknown.
    return len(read_up_to) > 0 and read_up_to == learned_up_to


def _has_read_every_record(worker: ProcessStatus) -> bool:
    """Return whether a worker has reported that it is at the end of each of its partitions."""
    if worker.trouble:  # the worker may not know of newer records
        return False
    # A worker that waits for its first record reports no lag.
    lags_at_end = (0, None) if worker.state == "waiting" else (0,)
    return all(partition.lag in lags_at_end for partition in worker.partitions.values())
