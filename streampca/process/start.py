"""The start of a process, and its end: the same for worker, transform and sidecar."""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Self

import structlog
from prometheus_client import disable_created_metrics
from threadpoolctl import threadpool_limits

from streampca.errors import StreampcaError, exit_code_of, naming_the_extra
from streampca.process.machine import keep_freed_memory

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

log = structlog.get_logger()

# Longest time that one thread holds the GIL while another waits for it. With Python's default, ten times as long,
# learning waits for the loop more than it works, and the event loop for threads that parse large bodies.
_SWITCH_INTERVAL_S = 0.0005
# Objects that are made between two garbage collections: Python's default of 700 would search a batch of records, none
# of which is in a cycle, several times.
_GARBAGE = 10_000
_SIGNALS = signal.SIGTERM, signal.SIGINT
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def end_on_signals() -> None:
    """End the process at once at SIGTERM and SIGINT.

    An exception is lost where a callback of C code or a finalizer runs, as while kernels are compiled.
    """
    for number in _SIGNALS:
        signal.signal(number, lambda number, _: os._exit(128 + number))


def stop_on_signals(stop: Callable[[str], object]) -> None:
    """Call `stop` with the name of the signal at SIGTERM and SIGINT (Ctrl-C)."""
    for number in _SIGNALS:
        signal.signal(number, lambda number, _: stop(signal.Signals(number).name))


class ThreadFailures:
    """While entered, keeps the first error that ends a thread: without it, a process would look alive."""

    def __init__(self) -> None:
        self.notify: Callable[[], object] = lambda: None
        """Called in the thread that fails."""
        self._first: BaseException | None = None

    def raise_first(self) -> None:
        if self._first is not None:
            raise self._first

    def __enter__(self) -> Self:
        self._before, threading.excepthook = threading.excepthook, self._failed
        return self

    def __exit__(self, *_: object) -> None:
        threading.excepthook = self._before

    def _failed(self, failure: threading.ExceptHookArgs) -> None:
        self._first = self._first or failure.exc_value or failure.exc_type()
        self.notify()


class Started(NamedTuple):
    """A process that is set up."""

    tracer: "Tracer | None"
    threads: ThreadFailures

    def run(self, loop: Callable[[], object], stop: Callable[[str], object]) -> None:
        """Run the loop of the process; signals `stop` it."""
        stop_on_signals(stop)
        gc.freeze()  # keeps the collector from scanning all that is imported and compiled by now
        loop()


@contextmanager
def started() -> Iterator[Started]:
    """Set up threads, memory, metrics and traces. Raises the error that has ended a thread, at the latest at the end.

    BLAS gets one thread: the same bits, and no threads that compete for blocks this small. Until `Started.run` there is
    nothing to save, so signals end the process at once.
    """
    end_on_signals()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(_GARBAGE)
    keep_freed_memory()
    disable_created_metrics()  # type: ignore[no-untyped-call]  # nobody uses them, and they double the number of series
    with ThreadFailures() as threads, threadpool_limits(1):
        yield Started(_start_tracing(), threads)
        threads.raise_first()


@contextmanager
def errors_logged() -> Iterator[None]:
    """Log the error that ends the block, as the last line of the log, and exit with its code."""
    try:
        yield
    except StreampcaError as error:
        code = exit_code_of(error)
        log.error("fatal error", error=" ".join(str(error).split()), exit_code=code)
        raise SystemExit(code) from None
    except Exception as error:
        log.error("unexpected error", error=f"{type(error).__name__}: {error}", exit_code=1, exc_info=True)
        raise SystemExit(1) from None


def _start_tracing() -> "Tracer | None":
    """Export spans by OpenTelemetry if its variables say where to. Raises `SettingsError` without its packages."""
    if not any(map(os.environ.get, _ENDPOINTS)) or os.environ.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    with naming_the_extra(f"an environment with {' or '.join(_ENDPOINTS)}", "otel"):
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    if "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        os.environ.setdefault("OTEL_SERVICE_NAME", "streampca")
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return trace.get_tracer("streampca")
