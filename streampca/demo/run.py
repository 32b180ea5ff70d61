"""`streampca demo`: runs a broker and every role of streampca on this machine and displays their progress."""

import contextlib
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from streampca.demo import processes, projection
from streampca.demo.broker import EmbeddedBroker
from streampca.demo.display import DemoStatus, Display, phase_of
from streampca.demo.output import Output
from streampca.demo.processes import ChildProcess
from streampca.demo.producer import DemoProducer
from streampca.errors import SettingsError, StreampcaError
from streampca.pca.arrays import F32
from streampca.stores.base import Store
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import store_of
from streampca.stores.models import Models
from streampca.stream.model_file import PublishedModel
from streampca.vectors.synthetic import FileVectors, LowRank, VectorStream

TOPIC, DEAD_LETTERS, PROJECTED = "readings", "readings-dead-letters", "readings-projected"
_STATUS_EVERY_S = 0.5
_FIRST_PROJECTION_WITHIN_S = 180.0  # the first start compiles, on a busy machine for minutes
_PROJECT_EVERY_S = 1.0
_VECTORS_PER_REQUEST = 8  # for the page to show


@dataclass(frozen=True)
class DemoOptions:
    """The options of `streampca demo`."""

    seconds: float | None = None  # from the first projection on
    file: Path | None = None
    rate: float = 2000.0
    store: str | None = None  # a folder or a URL
    port: int = 8000


def run(options: DemoOptions) -> None:
    """Run until `seconds` after the first projection, Ctrl-C or SIGTERM. Raises `StreampcaError` if a part fails."""
    vectors: VectorStream = FileVectors(options.file) if options.file else LowRank()
    ended = _end_on_signals()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streampca-demo-")))
        place = options.store or str(folder / "store")
        store = _new_store(place)
        broker = EmbeddedBroker(TOPIC, DEAD_LETTERS, PROJECTED)
        stack.callback(broker.close)
        ports = processes.free_port(options.port), processes.free_port(0)
        children: list[ChildProcess] = []
        stack.callback(processes.stop, children)
        common = _of_both(broker, place)
        shape = {"dimensions": vectors.dimensions, "components": vectors.components}
        worker = {**common, **shape, "checkpoint_interval_s": 1, "metrics_port": ports[1]}
        serve = {"topic": TOPIC, "store": place, "port": ports[0]}
        transform = {**common, "output_topic": PROJECTED, "metrics_port": 0}
        for name, settings in (("worker", worker), ("serve", serve), ("transform", transform)):
            children.append(ChildProcess(name, settings, folder / f"{name}.log"))
        output = Output(broker.address, PROJECTED, broker.partitions[PROJECTED])
        stack.callback(output.close)
        producer = DemoProducer(vectors, broker.address, TOPIC, broker.partitions[TOPIC], options.rate)
        stack.callback(producer.stop)
        display = stack.enter_context(Display(Console()))
        display.note(_addresses(broker.address, ports, place, folder))
        _Monitor(producer, children, Models(store, TOPIC), output, display, folder).run(
            ports[0], options.seconds, ended
        )
        display.note("stopping: the worker saves and leaves its group")


class _Monitor:
    """Checks all parts and displays their progress, twice a second."""

    def __init__(
        self,
        producer: DemoProducer,
        children: list[ChildProcess],
        models: Models,
        output: Output,
        display: Display,
        folder: Path,
    ) -> None:
        self._vectors, self._producer, self._children = producer.vectors, producer, children
        self._models, self._display, self._folder = models, display, folder
        self._output: Output | None = output  # until one was shown
        self._model: PublishedModel | None = None
        self._history: deque[tuple[float, int]] = deque(maxlen=11)  # time and messages learned, over 5 seconds
        self._requests = _requests(producer.vectors)
        self._next_request = 0.0  # seconds from the start
        self._served_at: float | None = None  # first projection, seconds from the start

    def run(self, port: int, seconds: float | None, ended: threading.Event) -> None:
        """Run until the end. Raises `StreampcaError` if a part fails or nothing is served in time."""
        started = time.monotonic()
        self._producer.start(lambda: self._model.version if self._model else 0)
        for elapsed in _ticks(started, ended):
            self._update(elapsed)
            if self._served_at is None:
                self._project(f"http://127.0.0.1:{port}", elapsed)
            elif elapsed >= self._next_request:
                self._next_request = elapsed + _PROJECT_EVERY_S
                projection.project_for_page(f"http://127.0.0.1:{port}", next(self._requests))
            if self._served_at is None and elapsed > _FIRST_PROJECTION_WITHIN_S:
                raise StreampcaError(f"no projection within {_FIRST_PROJECTION_WITHIN_S:.0f} s")
            if self._served_at is not None and seconds is not None and elapsed >= self._served_at + seconds:
                return

    def _update(self, elapsed: float) -> None:
        for child in self._children:
            child.verify()
        if self._producer.error is not None:
            raise self._producer.error
        self._model = self._models.newest() or self._model
        self._history.append((elapsed, self._model.version if self._model else 0))
        if self._output is not None and (first := self._output.first()):
            self._display.note(first)
            self._output = None
        phase = "" if self._model else phase_of(self._children[0].log)
        self._display.show(
            DemoStatus(elapsed, self._producer.sent, self._rate(), self._model, self._vectors.truth, phase)
        )

    def _rate(self) -> float:
        (t0, n0), (t1, n1) = self._history[0], self._history[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0

    def _project(self, address: str, elapsed: float) -> None:
        if not projection.is_ready(address):
            return
        request_file = self._folder / "request.json"
        vector = next(self._requests)[0]
        try:
            answer = projection.project(address, vector, request_file)
        except OSError:  # retried at the next tick
            return
        self._served_at = elapsed
        self._display.note(projection.describe(address, answer, request_file, elapsed))


def _requests(vectors: VectorStream) -> Iterator[F32]:
    """The vectors of one request after the other, endlessly."""
    for piece in vectors.pieces():
        for start in range(0, len(piece), _VECTORS_PER_REQUEST):
            yield piece[start : start + _VECTORS_PER_REQUEST]


def _ticks(started: float, ended: threading.Event) -> Iterator[float]:
    """Seconds since the start, twice a second, until `ended` is set."""
    while not ended.wait(_STATUS_EVERY_S):
        yield time.monotonic() - started


def _of_both(broker: EmbeddedBroker, store: str) -> dict[str, object]:
    """The settings of worker and transform."""
    return {
        "topic": TOPIC,
        "dead_letter_topic": DEAD_LETTERS,
        "bootstrap_servers": broker.address,
        "store": store,
        "format": "float32",
        "on_offset_gap": "earliest",  # the in-memory broker may have dropped records before the start
    }


def _new_store(place: str) -> Store:
    store = store_of(place)
    if Checkpoints(store, TOPIC).partitions():
        raise SettingsError(f"{place} holds checkpoints of an earlier demo, whose broker is gone; choose another store")
    store.check()
    return store


def _end_on_signals() -> threading.Event:
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    return ended


def _addresses(broker: str, ports: tuple[int, int], store: str, folder: Path) -> str:
    return (
        f"page     http://127.0.0.1:{ports[0]}/\n"
        f"broker   {broker} (in memory), topics {TOPIC} and {PROJECTED}\n"
        f"API      http://127.0.0.1:{ports[0]}/docs\n"
        f"model    http://127.0.0.1:{ports[0]}/v1/model\n"
        f"metrics  http://127.0.0.1:{ports[1]}/metrics (worker)  http://127.0.0.1:{ports[0]}/metrics (sidecar)\n"
        f"store    {store}\n"
        f"logs     {folder}/worker.log {folder}/serve.log {folder}/transform.log\n"
    )
