"""The process around a member of a consumer group: worker or transform."""

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import structlog

from streampca.consumer_group.events import StartDelayed
from streampca.consumer_group.listeners import MemberLog, MemberMetrics
from streampca.consumer_group.member import Member
from streampca.consumer_group.port import member_port
from streampca.consumer_group.status import StatusReports
from streampca.consumer_group.step import Step
from streampca.consumer_group.tracing import BatchSpans
from streampca.errors import CertificateError, NoBrokerError, StoreBusyError
from streampca.process import watchdog
from streampca.process.listening import BearerTokens, server_context
from streampca.process.start import Started, started
from streampca.settings.commands import ConsumerSettings
from streampca.stores.base import Store
from streampca.stores.process_status import ProcessStatuses

log = structlog.get_logger()

_RETRY_S = 1.0
_LONGEST_HOST = 200  # characters


class Process(NamedTuple):
    """The parts of a process that a member uses."""

    listener: Member
    started: Started
    trace: Callable[[Any], Any]  # wraps a function that decodes, so that it begins a span; without traces, returns it

    def start(self, steps: Iterable[Step], stops: Sequence[str] = ()) -> None:
        """Do the steps in order; repeat a step until what it waits for is there.

        When a signal handler adds a signal to `stops`, returns early. Raises the error of a mistake, which waiting
        cannot end.
        """
        for step in steps:
            while not stops and not self._try_step(step):
                time.sleep(_RETRY_S)

    def _try_step(self, step: Step) -> bool:
        """Return whether the step is done; if a later attempt may succeed, report the cause."""
        try:
            finding = step.attempt()
        except CertificateError:  # is a `NoBrokerError`, and waiting cannot end it: somebody must renew the certificate
            raise
        except (StoreBusyError, NoBrokerError, TimeoutError) as error:
            self.listener.notify(StartDelayed(step.waits_for, str(error)))
            return False
        finally:
            watchdog.forget()  # a step may have ticked, and the pause until the next tick may last for days
        log.debug("start step done", step=step.name, finding=finding)
        return True


@contextlib.contextmanager
def member_process(
    settings: ConsumerSettings,
    store: Store,
    metrics: MemberMetrics,
    log_listener: MemberLog,
    log_fields: Mapping[str, str],
    could_save: Callable[[str], bool],
    save_after_s: float,
    output_topic: str | None = None,
) -> Iterator[Process]:
    """Run the threads, metrics, health, status reports and log of one member; the first line has the `log_fields`.

    For `could_save` see `Member`. Records are to be saved `save_after_s` after they were read. Only members of
    transform have an output topic. If an error has ended a thread, raises it, at the latest at the end.
    """
    context = server_context(settings.tls_folder)
    tokens = BearerTokens(settings.tokens_file) if settings.tokens_file else None
    with watchdog.watching(), started() as process:
        spans = BatchSpans(process.tracer, settings.topic, settings.group) if process.tracer else None
        status = StatusReports(ProcessStatuses(store, settings.topic), process_name(), output_topic)
        observers = [log_listener, metrics, status]
        if spans:
            observers.append(spans)
        bad_records = f"to {settings.dead_letter_topic}" if settings.dead_letter_topic else settings.on_bad_record
        member = Member(observers, save_after_s, could_save)
        with member_port(settings.host, settings.metrics_port, metrics.registry, member, context, tokens) as url:
            log.info(
                "transform starting" if output_topic else "worker starting",
                topic=settings.topic,
                brokers=settings.bootstrap_servers,
                group=settings.group,
                store=store.location,
                bad_records=bad_records,
                metrics=url,
                **log_fields,
            )
            status.begin(member.state)
            with member:
                yield Process(member, process, trace=spans.trace if spans else lambda decode: decode)


def process_name() -> str:
    """Return host name and process id, in characters that the name of a file in a store may have."""
    host = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())
    return f"{host[:_LONGEST_HOST]}-{os.getpid()}"
