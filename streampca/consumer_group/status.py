"""Writes the status reports of a member to the store, from which the sidecar reads them.

A report is a convenience: if it cannot be written, the process continues. A thread writes it, so that a store that
hangs does not stop the loop.
"""

from collections import deque
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from typing import NamedTuple

import structlog

from streampca.consumer_group.events import (
    MemberEnded,
    MemberStopping,
    PartitionsAssigned,
    PartitionsReleased,
    StartDelayed,
)
from streampca.consumer_group.member import Change, Observer
from streampca.consumer_group.member_state import SAVING_HAS_STOPPED, MemberState, Moment
from streampca.consumer_group.partition_state import PartitionState
from streampca.errors import StoreError
from streampca.stores.process_status import (
    OUTDATED_AFTER_S,
    PartitionStatus,
    Phase,
    ProcessStatus,
    ProcessStatuses,
    TransformStatus,
)

log = structlog.get_logger()

_REPORT_EVERY_S = 3.0  # a report costs one or two fsyncs, or a request
_LAST_WRITE_S = 2.0  # when the member ends: longest wait for the report that is being written
_RATE_OVER_S = 10.0  # the time over which messages per second are averaged
_WAITING_AFTER_S = 5.0  # a member without a message for this long is waiting
_REPORTED_AT_ONCE = PartitionsAssigned | PartitionsReleased | MemberStopping | MemberEnded


class _Sample(NamedTuple):
    """How many messages a member had handled at a time."""

    at_s: float  # monotonic
    messages: int


class StatusReports(Observer):
    """Reports every few seconds while the loop runs, and at once when partitions are assigned or released."""

    def __init__(
        self,
        reports: ProcessStatuses,
        name: str,
        output_topic: str | None = None,  # a member of transform has one; None: the member is a worker
        group: str | None = None,
        executor: Executor | None = None,
    ) -> None:
        self._reports = reports
        self._name = name
        self._group = group
        self._output_topic = output_topic
        # A worker warns once if another group of workers uses its store. Groups of transform may share a store.
        is_worker = output_topic is None
        self._must_check_for_other_groups = is_worker
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="status")
        self._writing: Future[None] | None = None  # ends when the thread has written the last report; None: no report
        self._next_report = 0.0  # when the next report is due, in monotonic seconds
        self._samples: deque[_Sample] = deque()  # the counts of messages at the last reports, for their rate

    def begin(self, state: MemberState) -> None:
        """Remove the reports of processes that have ended long ago, and write the first report."""
        try:
            self._reports.remove(before=state.started.unix_s - OUTDATED_AFTER_S)
        except StoreError as error:
            log.debug("stale reports not removed", cause=str(error))
        self._report(state, state.started)

    def observe(self, change: Change) -> None:
        """Write a report if it is due.

        When the member ends, wait for the report that is being written, then write the last report and wait for it.
        """
        has_ended = isinstance(change.event, MemberEnded)
        if has_ended and self._writing is not None:
            wait([self._writing], timeout=_LAST_WRITE_S)
        must_report_at_once = isinstance(change.event, _REPORTED_AT_ONCE)  # also when the member ends
        if must_report_at_once or change.now.monotonic_s >= self._next_report:
            self._report(change.after, change.now)
        if has_ended:
            self._executor.shutdown(wait=True)  # waits for the last report

    def _report(self, state: MemberState, now: Moment) -> None:
        """Start to write a report. If the earlier report is still being written, try again at the next event."""
        if self._writing is not None and not self._writing.done():
            self._next_report = now.monotonic_s
            return
        self._next_report = now.monotonic_s + _REPORT_EVERY_S
        per_second = self._messages_per_second(state.messages, now.monotonic_s)
        report = make_report(state, now, self._name, per_second, self._output_topic)
        report.group = self._group
        self._writing = self._executor.submit(self._write, report)

    def _write(self, report: ProcessStatus) -> None:
        """Write a report, if the store exists.

        Once, when a worker has partitions, also warn if another group uses the store.
        """
        try:
            # A report would create the folder of a store that does not exist.
            if self._reports.store_exists():
                self._reports.write(report)
                if report.partitions and self._must_check_for_other_groups:
                    self._must_check_for_other_groups = False
                    self._warn_of_other_group(report)
        except StoreError as error:
            log.debug("status report not written", cause=str(error))

    def _warn_of_other_group(self, own_report: ProcessStatus) -> None:
        """Log if workers of another group save to the same store, as a copied deployment does."""
        other_groups = set()
        for report in self._reports.all():
            is_running_worker = report.transform is None and report.is_running(own_report.updated_at)
            if is_running_worker and report.group and report.group != own_report.group:
                other_groups.add(report.group)
        if other_groups:
            cause = "nothing is wrong with the models; if this is not meant, give this group a store of its own"
            log.warning(
                "store shared with another group", group=own_report.group, others=sorted(other_groups), cause=cause
            )

    def _messages_per_second(self, messages: int, now: float) -> float:
        """Return the mean rate since a report about ten seconds ago, or since the first report."""
        self._samples.append(_Sample(now, messages))
        while len(self._samples) > 2 and self._samples[1].at_s <= now - _RATE_OVER_S:
            self._samples.popleft()
        oldest = self._samples[0]
        seconds = now - oldest.at_s
        return (messages - oldest.messages) / seconds if seconds > 0 else 0.0


def make_report(
    state: MemberState, now: Moment, name: str, messages_per_second: float, output_topic: str | None
) -> ProcessStatus:
    """Return the report of a member; only members of transform have an `output_topic`."""
    # Leave out two problems that are reported elsewhere.
    problems = dict(state.problems)
    problems.pop(SAVING_HAS_STOPPED, None)  # metrics and health report it
    if state.why_no_model:  # the start is delayed until there is a model: the field `awaits` reports it
        problems.pop(StartDelayed, None)
    causes = [problem.cause for problem in problems.values()]
    partitions = {} if state.has_ended else state.partitions
    return ProcessStatus(
        name=name,
        state=_find_phase(state, now.monotonic_s, "transforming" if output_topic else "learning"),
        trouble="; ".join(causes) or None,
        started_at=state.started.unix_s,
        updated_at=now.unix_s,
        messages_per_second=0.0 if state.has_ended else messages_per_second,
        partitions={str(p): _make_partition_status(partition) for p, partition in sorted(partitions.items())},
        transform=_make_transform_status(state, output_topic) if output_topic else None,
    )


def _find_phase(state: MemberState, now: float, working: Phase) -> Phase:
    """Return what a member does now; `working` is the word for a member that handles messages."""
    if state.has_ended:
        return "stopped"
    if state.stop_cause:
        return "stopping"
    if not state.was_ever_assigned:
        return "starting"
    return working if now - state.last_message_at < _WAITING_AFTER_S else "waiting"


def _make_partition_status(partition: PartitionState) -> PartitionStatus:
    """Return the status of one partition. For a worker, it also has the counts of the partition's fold."""
    fold = partition.fold
    if fold is None:  # a worker has learned no batch yet, or the member is one of transform
        return PartitionStatus(position=partition.position, lag=partition.lag)
    return PartitionStatus(
        position=partition.position,
        lag=partition.lag,
        learned=fold.stats.learned,
        rejected=sum(fold.stats.rejected.values()),
        loss_ewma=fold.stats.recent_loss,
        clipped=fold.state.clipped,
    )


def _make_transform_status(state: MemberState, output_topic: str) -> TransformStatus:
    """Return what only members of transform report."""
    version_in_use = state.model_version  # None: nothing was projected yet
    return TransformStatus(
        output_topic=output_topic,
        # Before the first output, report the version that the setting `model_version` names, if it names one.
        model_version=state.fixed_version if version_in_use is None else version_in_use,
        awaits=state.why_no_model,
        written=state.committed.get("written", 0),
        rejected=state.committed.get("rejected", 0),
        committed_at=state.committed_at,
    )
