"""Whether the newest model has become too old.

The age of a model counts by this sidecar's clock, from when it found the model: the clock of the worker that published
it may be wrong. On a quiet topic a model becomes old, but stays right while running workers report that they have read
every record and are at the positions of the model. Workers report every few seconds.
"""

import math
from collections.abc import Callable, Iterable

from streampca.fold.model_file import PublishedModel
from streampca.fold.partitions import is_backfill
from streampca.stores.process_status import SILENT_AFTER_S, ProcessStatus, ProcessStatuses

_READ_EVERY_S = 9.0  # each request to a bucket costs money
_READ_BEFORE_S = 30.0  # before the model is too old: only a second reading shows whether a report has changed


class ModelAge:
    """Decides whether the newest model is too old, by its age and the reports of workers."""

    def __init__(self, statuses: ProcessStatuses, clock: Callable[[], float], max_age_s: float) -> None:
        """A model older than `max_age_s` is too old, unless workers report that the model has learned every record."""
        self._statuses = statuses
        self._clock = clock
        self._max_age_s = max_age_s
        self._read_at = -math.inf  # when the workers' reports were read last
        # Name of a worker → when it wrote its latest report that was read here, by the clock of the worker.
        self._reported_at: dict[str, float] = {}
        # When this object last read reports by which the newest model had learned every record of the topic.
        self._confirmed_at = -math.inf

    def refresh(self, newest: PublishedModel, age_s: float) -> None:
        """If the newest model will soon be too old, look whether workers report that it has learned every record.

        If they do, the model is current, whatever its age. Raises `StoreError`.
        """
        now = self._clock()
        is_nearly_too_old = age_s >= self._max_age_s - _READ_BEFORE_S
        is_due = now >= self._read_at + _READ_EVERY_S
        if not is_nearly_too_old or not is_due:
            return
        self._read_at = now
        if _has_every_record(newest, self._read_reports_of_running_workers()):
            self._confirmed_at = now

    def explain_too_old(self, age_s: float) -> str | None:
        """Return why the newest model, which has this age, is too old; None if it is not too old.

        A model is too old if its age exceeds the limit, unless running workers reported within the last minute that
        the model has learned every record.
        """
        is_confirmed_by_workers = self._clock() - self._confirmed_at < SILENT_AFTER_S
        if age_s <= self._max_age_s or is_confirmed_by_workers:
            return None
        return (
            f"the newest model was found {age_s:.0f} s ago, more than {self._max_age_s:g} s, and no running workers "
            "report that it has every record"
        )

    def _read_reports_of_running_workers(self) -> list[ProcessStatus]:
        """Return the reports that have changed since they were read last, so their workers are running.

        A report that is seen for the first time does not count: its worker may have died since it was written.
        """
        # Members of transform report, too, with the field `transform`: they learn no records.
        reports = [report for report in self._statuses.all() if report.transform is None and report.state != "stopped"]
        earlier = self._reported_at
        self._reported_at = {report.name: report.updated_at for report in reports}
        return [report for report in reports if report.name in earlier and report.updated_at != earlier[report.name]]


def _has_every_record(model: PublishedModel, workers: Iterable[ProcessStatus]) -> bool:
    """Return whether a model has learned every record of the topic, by the reports of the workers.

    The model has every record if all workers have read their partitions to the end, and the model has learned up to the
    same positions. Without workers, nobody knows. A worker with a problem may not know of newer records, so its report
    proves nothing.
    """
    read_up_to: dict[int, int] = {}  # partition → position of its worker; partitions without records are left out
    for worker in workers:
        if worker.trouble:  # the text of an error; None if the worker has no problem
            return False
        for name, partition in worker.partitions.items():
            # The lag (number of unread records) is None until the worker has read a record of the partition. The state
            # "waiting" means that no message has come for some seconds: then the lag None means no unread records.
            is_at_end = partition.lag == 0 or (partition.lag is None and worker.state == "waiting")
            if not is_at_end:
                return False
            if partition.position > 0:
                read_up_to[int(name)] = partition.position
    learned_up_to = {
        partition: position
        for partition, position in model.positions.items()
        if position > 0
        and not is_backfill(partition)  # a backfill (records from files) has a partition that no worker reads
    }
    return len(read_up_to) > 0 and read_up_to == learned_up_to
