"""The process around a member of a consumer group: worker or transform."""

import contextlib
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import structlog

from streampca.consumer_group.events import Listener, Listeners
from streampca.consumer_group.health import HealthListener, health_server
from streampca.consumer_group.listeners import MemberLog, MemberMetrics
from streampca.consumer_group.status import StatusListener
from streampca.consumer_group.tracing import TracingListener
from streampca.process import watchdog
from streampca.process.listening import BearerTokens, server_context
from streampca.process.start import Started, started
from streampca.settings.commands import ConsumerSettings
from streampca.stores.base import Store
from streampca.stores.process_status import ProcessStatuses

log = structlog.get_logger()


class Process(NamedTuple):
    """The parts of a process that a member uses."""

    listener: Listener
    started: Started
    traced: Callable[[Any], Any]  # wraps decoding, to begin the spans of batches; does nothing without traces


@contextlib.contextmanager
def member_process(
    settings: ConsumerSettings,
    store: Store,
    metrics: MemberMetrics,
    log_listener: MemberLog,
    shown: Mapping[str, str],
    output_topic: str | None = None,
) -> Iterator[Process]:
    """The process of one member: its threads, metrics, health, status reports and log; `shown` is in the first line.

    Only members of transform have an output topic. Raises the error that has ended a thread, at the latest at the end.
    """
    health, context = HealthListener(), server_context(settings.tls_folder)
    tokens = BearerTokens(settings.tokens_file) if settings.tokens_file else None
    with (
        watchdog.watching(),
        started() as process,
        health_server(settings.host, settings.metrics_port, metrics.registry, health, context, tokens) as server,
    ):
        log.info(
            "transform starting" if output_topic else "worker starting",
            topic=settings.topic,
            brokers=settings.bootstrap_servers,
            group=settings.group,
            store=store.location,
            bad_records=f"to {settings.dead_letter_topic}" if settings.dead_letter_topic else settings.on_bad_record,
            metrics=server.url,
            **shown,
        )
        tracing = TracingListener(process.tracer, settings.topic, settings.group) if process.tracer else None
        with StatusListener(
            ProcessStatuses(store, settings.topic), name_of_process(), output_topic=output_topic
        ) as status:
            listener = Listeners(log_listener, metrics, health, status, tracing or Listener())
            yield Process(listener, process, tracing.traced if tracing else lambda decode: decode)


def name_of_process() -> str:
    """Host name and process id, in characters that a file of the store may have."""
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', socket.gethostname())[:200]}-{os.getpid()}"
