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
from streampca.consumer_group.member import Member, Observer
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


class Process(NamedTuple):
    """The parts of a process that a member uses."""

    listener: Member
    started: Started
    traced: Callable[[Any], Any]  # wraps decoding, to begin the spans of batches; does nothing without traces

    def start(self, steps: Iterable[Step], stops: Sequence[str] = ()) -> None:
        """Do the steps in order; repeat a step until what it waits for is there.

        Returns early when there is a signal in `stops`. Raises the error of a mistake, which waiting cannot end.
        """
        for step in steps:
            while not stops and not self._has_done(step):
                time.sleep(_RETRY_S)

    def _has_done(self, step: Step) -> bool:
        """Return False if a later attempt may succeed; the cause is reported."""
        try:
            finding = step.attempt()
        except CertificateError:  # a `NoBrokerError`, but only a person can renew a certificate
            raise
        except (StoreBusyError, NoBrokerError, TimeoutError) as error:
            self.listener.notify(StartDelayed(step.waits_for, str(error)))
            return False
        finally:
            watchdog.forget()  # requests to a schema registry tick, and the next wait may last for days
        log.debug("start step done", step=step.name, finding=finding)
        return True


@contextlib.contextmanager
def member_process(
    settings: ConsumerSettings,
    store: Store,
    metrics: MemberMetrics,
    log_listener: MemberLog,
    shown: Mapping[str, str],
    could_save: Callable[[str], bool],
    save_after_s: float,
    output_topic: str | None = None,
) -> Iterator[Process]:
    """The process of one member: its threads, metrics, health, status reports and log; `shown` is in the first line.

    For `could_save` see `Member`; a save of records is due after `save_after_s`. Only members of transform have an
    output topic. Raises the error that has ended a thread, at the latest at the end.
    """
    context = server_context(settings.tls_folder)
    tokens = BearerTokens(settings.tokens_file) if settings.tokens_file else None
    with watchdog.watching(), started() as process:
        spans = BatchSpans(process.tracer, settings.topic, settings.group) if process.tracer else None
        status = StatusReports(ProcessStatuses(store, settings.topic), name_of_process(), output_topic)
        observers = (log_listener, metrics, status, spans or Observer())
        member = Member(observers, save_after_s, could_save)
        with member_port(settings.host, settings.metrics_port, metrics.registry, member, context, tokens) as url:
            log.info(
                "transform starting" if output_topic else "worker starting",
                topic=settings.topic,
                brokers=settings.bootstrap_servers,
                group=settings.group,
                store=store.location,
                bad_records=f"to {settings.dead_letter_topic}"
                if settings.dead_letter_topic
                else settings.on_bad_record,
                metrics=url,
                **shown,
            )
            status.begin(member.state)
            with member:
                yield Process(member, process, spans.traced if spans else lambda decode: decode)


def name_of_process() -> str:
    """Host name and process id, in characters that a file of the store may have."""
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', socket.gethostname())[:200]}-{os.getpid()}"
