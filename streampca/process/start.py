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

from streampca.errors import StreampcaError, explain_missing_extra, find_exit_code, on_one_line
from streampca.process.machine import keep_freed_memory

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

log = structlog.get_logger()

# Longest time that one thread holds the GIL while another waits for it. With Python's default, ten times as long,
# learning waits for the loop more than it works, and the event loop for threads that parse large bodies.
_SWITCH_INTERVAL_S = 0.0005
# Objects that are made between two garbage collections. With Python's default of 700, a batch of records would be
# searched several times, although no record is in a cycle.
_COLLECT_AFTER_OBJECTS = 10_000
_SIGNALS = signal.SIGTERM, signal.SIGINT
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def end_on_signals() -> None:
    """End the process at once at SIGTERM and SIGINT, with the exit code that a shell reports for the signal.

    An exception could be lost: Python ignores exceptions in finalizers and in callbacks from C.
    """
    for number in _SIGNALS:
        signal.signal(number, lambda signal_number, frame: os._exit(128 + signal_number))


def stop_on_signals(stop: Callable[[str], object]) -> None:
    """Call `stop` with the name of the signal at SIGTERM and SIGINT (Ctrl-C)."""
    for number in _SIGNALS:
        signal.signal(number, lambda signal_number, frame: stop(signal.Signals(signal_number).name))


class ThreadFailures:
    """A context in which the first error that ends a thread is kept, so that the process does not go on without it."""

    def __init__(self) -> None:
        self.notify: Callable[[], object] = lambda: None
        """Called in the thread that fails."""
        self._first: BaseException | None = None

    def raise_first_error(self) -> None:
        """Raise the first error that has ended a thread, if there is one."""
        if self._first is not None:
            raise self._first

    def __enter__(self) -> Self:
        self._hook_before = threading.excepthook
        threading.excepthook = self._keep_first_error
        return self

    def __exit__(self, *_: object) -> None:
        threading.excepthook = self._hook_before

    def _keep_first_error(self, failure: threading.ExceptHookArgs) -> None:
        """Keep the error that has just ended a thread, unless an earlier one is kept, and call `notify`."""
        if self._first is None:
            self._first = failure.exc_value or failure.exc_type()
        self.notify()


class PreparedProcess(NamedTuple):
    """A process that can run its loop."""

    tracer: "Tracer | None"
    thread_failures: ThreadFailures

    def run_loop(self, loop: Callable[[], object], stop: Callable[[str], object]) -> None:
        """Run the loop of the process. At SIGTERM and SIGINT, `stop` is called with the name of the signal."""
        stop_on_signals(stop)
        gc.freeze()  # do not scan what is imported and compiled by now
        loop()


@contextmanager
def prepare_process() -> Iterator[PreparedProcess]:
    """Set up threads, memory, metrics and traces of the process.

    If an error has ended a thread, it is raised when the block ends.
    """
    end_on_signals()  # until `run_loop` replaces the handlers
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(_COLLECT_AFTER_OBJECTS)
    keep_freed_memory()
    disable_created_metrics()  # type: ignore[no-untyped-call]  # nobody uses them, and they double the number of series
    # One thread of BLAS, so that each run gives the same bits.
    with ThreadFailures() as thread_failures, threadpool_limits(1):
        yield PreparedProcess(_start_tracing(), thread_failures)
        thread_failures.raise_first_error()


@contextmanager
def exit_on_error() -> Iterator[None]:
    """If an error ends the block, log it as the last line of the log, and exit with its code."""
    try:
        yield
    except StreampcaError as error:
        code = find_exit_code(error)
        log.error("fatal error", error=on_one_line(error), exit_code=code)
        raise SystemExit(code) from None
    except Exception as error:
        log.error("unexpected error", error=f"{type(error).__name__}: {error}", exit_code=1, exc_info=True)
        raise SystemExit(1) from None


def _start_tracing() -> "Tracer | None":
    """If an environment variable of OpenTelemetry names an endpoint, export spans to it; else return None.

    Raises `SettingsError` if the packages of OpenTelemetry are not installed.
    """
    has_endpoint = any(os.environ.get(name) for name in _ENDPOINTS)
    is_switched_off = os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    if not has_endpoint or is_switched_off:
        return None
    with explain_missing_extra("otel", needed_by=f"an environment with {' or '.join(_ENDPOINTS)}"):
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
