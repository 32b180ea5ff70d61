"""The process around a member of a consumer group: worker or transform."""

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import structlog

from streampca.consumer_group.events import StartDelayed
from streampca.consumer_group.log import MemberLog
from streampca.consumer_group.member import Member
from streampca.consumer_group.metrics import MemberMetrics
from streampca.consumer_group.port import member_port
from streampca.consumer_group.status import StatusReports
from streampca.consumer_group.step import Step
from streampca.consumer_group.tracing import BatchSpans
from streampca.errors import CertificateError, NoBrokerError, StoreBusyError
from streampca.process import watchdog
from streampca.process.bearer_tokens import BearerTokens
from streampca.process.start import PreparedProcess, prepare_process
from streampca.process.tls_certificate import create_tls_context
from streampca.settings.commands import ConsumerSettings
from streampca.stores.base import Store
from streampca.stores.process_status import ProcessStatuses

log = structlog.get_logger()

_RETRY_S = 1.0
_LONGEST_HOST = 200  # characters


class Process(NamedTuple):
    """The parts of a process that a member uses."""

    member: Member
    prepared: PreparedProcess
    spans: BatchSpans | None  # None: no traces

    def do_steps(self, steps: Iterable[Step], stops: Sequence[str] = ()) -> None:
        """Do the steps in order, and repeat each until it is done.

        Returns early when a signal handler has added a signal to `stops`.
        """
        for step in steps:
            while not stops and not self._try_step(step):
                time.sleep(_RETRY_S)

    def _try_step(self, step: Step) -> bool:
        """Do a step, and return whether it is done. If it fails, but a later attempt may succeed, report the error."""
        try:
            finding = step.attempt()  # a sentence on what was found, for the log
        except CertificateError:  # waiting does not help
            raise
        except (StoreBusyError, NoBrokerError, TimeoutError) as error:
            self.member.notify(StartDelayed(step.waits_for, str(error)))
            return False
        finally:
            # The step may have ticked the watchdog, which must not expect another tick before the loop begins.
            watchdog.forget()
        log.debug("start step done", step=step.name, finding=finding)
        return True


@contextlib.contextmanager
def member_process(
    settings: ConsumerSettings,
    store: Store,
    metrics: MemberMetrics,
    member_log: MemberLog,
    log_fields: Mapping[str, str],
    can_new_client_save: Callable[[str], bool],
    save_after_s: float,
    output_topic: str | None = None,
) -> Iterator[Process]:
    """Run what surrounds a member: threads, HTTP port, status reports and log.

    A record should be saved `save_after_s` after it was read. If saves stop because brokers do not answer, the member
    calls `can_new_client_save(step)`, which asks them with a new Kafka client whether they would accept a save; `step`
    is the step of the save that got no answer, such as "topic". If they would, the health check fails, so that the
    process is restarted. Only transform has an output topic.
    """
    tls_context = create_tls_context(settings.tls_folder)
    tokens = BearerTokens(settings.tokens_file) if settings.tokens_file else None
    with watchdog.watch_threads(), prepare_process() as prepared:
        status = StatusReports(
            ProcessStatuses(store, settings.topic), process_name(), output_topic, group=settings.group
        )
        observers = [member_log, metrics, status]  # they get each event of the member
        spans = None
        if prepared.tracer:
            spans = BatchSpans(prepared.tracer, settings.topic, settings.group)
            observers.append(spans)
        member = Member(observers, save_after_s, can_new_client_save)
        bad_records = f"to {settings.dead_letter_topic}" if settings.dead_letter_topic else settings.on_bad_record
        with member_port(settings.host, settings.metrics_port, metrics.registry, member, tls_context, tokens) as url:
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
                yield Process(member=member, prepared=prepared, spans=spans)


def process_name() -> str:
    """Return host name and process id, in characters that the name of a file in a store may have."""
    host = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())
    return f"{host[:_LONGEST_HOST]}-{os.getpid()}"
