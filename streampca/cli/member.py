"""What worker and transform have in common: the process around a member of a consumer group."""

import contextlib
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import structlog
from prometheus_client import disable_created_metrics
from threadpoolctl import threadpool_limits

from streampca.consumer_group.health import HealthListener, health_server
from streampca.consumer_group.listener import Listener, Listeners
from streampca.consumer_group.log import MemberLog
from streampca.consumer_group.status import StatusListener
from streampca.consumer_group.tracing import TracingListener
from streampca.process import watchdog
from streampca.process.bearer_tokens import Tokens
from streampca.process.memory import keep_freed_memory
from streampca.process.thread_failures import ThreadFailures
from streampca.process.tls import server_context
from streampca.process.tracing import start_tracing
from streampca.settings.consumer import ConsumerSettings
from streampca.settings.transform import TransformSettings
from streampca.stores.base import Store
from streampca.stores.choice import store_of
from streampca.stores.process_status import ProcessStatuses
from streampca.transform.metrics import TransformMetrics
from streampca.worker.listeners.metrics import WorkerMetrics

log = structlog.get_logger()

# Longest time that the prefetch thread may hold the GIL while the learning thread, which releases it at every block,
# waits for it. With Python's default, ten times as long, learning waits more than it works.
_SWITCH_INTERVAL_S = 0.0005


class Process(NamedTuple):
    """What a member needs of its process."""

    store: Store
    listener: Listener
    raise_first: Callable[[], None]
    """Raises the error that has ended a thread."""
    traced: Callable[[Any], Any]
    """Decoding that begins the spans of batches; without traces, the same."""


@contextlib.contextmanager
def process_of(
    settings: ConsumerSettings, metrics: WorkerMetrics | TransformMetrics, log_listener: MemberLog, **logged: str
) -> Iterator[Process]:
    """The process of one member: its threads, metrics, health, status reports and log; `logged` is in the first line.

    Raises the error that has ended a thread, at the latest at the end.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    keep_freed_memory()
    disable_created_metrics()  # type: ignore[no-untyped-call]  # nobody uses them, and they double the number of series
    output_topic, health = settings.output_topic if isinstance(settings, TransformSettings) else None, HealthListener()
    tracer, context = start_tracing(), server_context(settings.tls_folder)
    tracing = TracingListener(tracer, settings.topic, settings.group) if tracer else None
    tokens = Tokens(settings.tokens_file) if settings.tokens_file else None
    with (
        watchdog.watching(),
        ThreadFailures() as threads,
        threadpool_limits(1),  # one BLAS thread: the same bits, and no threads competing for blocks this small
        health_server(settings.host, settings.metrics_port, metrics.registry, health, context, tokens) as server,
    ):
        store = store_of(settings.store, metrics.store.observe)
        log.info(
            "transform starting" if output_topic else "worker starting",
            topic=settings.topic,
            brokers=settings.bootstrap_servers,
            group=settings.group,
            store=store.place,
            bad_records=f"to {settings.dead_letter_topic}" if settings.dead_letter_topic else settings.on_bad_record,
            metrics=server.url,
            **logged,
        )
        reports = ProcessStatuses(store, settings.topic)
        with StatusListener(reports, name_of_process(), output_topic=output_topic) as status:
            listener = Listeners(log_listener, metrics, health, status, tracing or Listener())
            traced = tracing.traced if tracing else lambda decode: decode
            yield Process(store, listener, threads.raise_first, traced)
            threads.raise_first()


def stop_on_signals(stop: Callable[[str], object]) -> None:
    """Call `stop` with the name of the signal on SIGTERM and SIGINT."""

    def handle(number: int, frame: FrameType | None) -> None:
        stop(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)


def name_of_process() -> str:
    """Host name and process id, in characters that a file of the store may have."""
    host = re.sub(r"[^A-Za-z0-9._-]", "_", socket.gethostname())
    return f"{host[:200]}-{os.getpid()}"
