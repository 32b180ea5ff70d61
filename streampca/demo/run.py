"""`streampca demo`: broker, stream, worker and sidecar on this machine, and a look at how they get on."""

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
from streampca.demo.broker import API_VERSION, EmbeddedBroker
from streampca.demo.display import Display, Reading
from streampca.demo.processes import ChildProcess
from streampca.demo.producer import DemoProducer
from streampca.errors import SettingsError, StreampcaError
from streampca.pca.arrays import F32
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from streampca.stream.model_file import PublishedModel
from streampca.vectors.synthetic import FileVectors, LowRank, VectorStream

TOPIC, DEAD_LETTERS = "readings", "readings-dead-letters"
_LOOK_EVERY_S = 0.5
_PATIENCE_S = 60.0  # for the first projection
_PROBE_EVERY_S = 1.0
_PROBES = 8  # vectors at a time, for the page to show


@dataclass(frozen=True)
class DemoOptions:
    """What the person asked for."""

    seconds: float | None = None  # from the first projection on
    file: Path | None = None
    rate: float = 2000.0
    store: Path | None = None
    port: int = 8000


def run(wishes: DemoOptions) -> None:
    """Until `seconds` have passed since the first projection, Ctrl-C or SIGTERM.

    Raises `StreampcaError` when a part of it fails.
    """
    vectors: VectorStream = FileVectors(wishes.file) if wishes.file else LowRank()
    ended = _end_on_signals()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streampca-demo-")))
        store = _fresh(wishes.store or folder / "store")
        broker = EmbeddedBroker(TOPIC, DEAD_LETTERS)
        stack.callback(broker.close)
        ports = processes.free_port(wishes.port), processes.free_port(0)
        family: list[ChildProcess] = []
        stack.callback(processes.stop, family)
        family.append(ChildProcess("worker", _worker_settings(broker, store, vectors, ports[1]), folder / "worker.log"))
        family.append(
            ChildProcess("serve", {"topic": TOPIC, "store": store.root, "port": ports[0]}, folder / "serve.log")
        )
        streamer = DemoProducer(vectors, broker.address, TOPIC, broker.partitions[TOPIC], wishes.rate)
        stack.callback(streamer.stop)
        display = stack.enter_context(Display(Console()))
        display.note(_where_to_look(broker.address, ports, store, folder))
        _Watch(vectors, streamer, family, Models(store, TOPIC), display, folder).run(ports[0], wishes.seconds, ended)
        display.note("ending: the worker saves and leaves its group")


class _Watch:
    """Looks at everything, twice a second, until the end."""

    def __init__(
        self,
        vectors: VectorStream,
        streamer: DemoProducer,
        family: list[ChildProcess],
        models: Models,
        display: Display,
        folder: Path,
    ) -> None:
        self._vectors, self._streamer, self._family = vectors, streamer, family
        self._models, self._display, self._folder = models, display, folder
        self._model: PublishedModel | None = None
        self._history: deque[tuple[float, int]] = deque(maxlen=11)  # time and messages learned, of 5 seconds
        self._probes = _portions(vectors)
        self._next_probe = 0.0  # seconds from the start
        self._served: float | None = None  # seconds from the start to the first projection

    def run(self, port: int, seconds: float | None, ended: threading.Event) -> None:
        """Raises `StreampcaError` when a part fails, or nothing is served in time."""
        started = time.monotonic()
        self._streamer.start(lambda: self._model.version if self._model else 0)
        for elapsed in _ticks(started, ended):
            self._look(elapsed)
            if self._served is None:
                self._project(f"http://127.0.0.1:{port}", elapsed)
                if self._served is not None and seconds is not None:
                    self._display.ends_at(self._served + seconds)
            elif elapsed >= self._next_probe:
                self._next_probe = elapsed + _PROBE_EVERY_S
                projection.probe(f"http://127.0.0.1:{port}", next(self._probes))
            if self._served is None and elapsed > _PATIENCE_S:
                raise StreampcaError(f"nothing was served within {_PATIENCE_S:.0f} s")
            if self._served is not None and seconds is not None and elapsed >= self._served + seconds:
                return

    def _look(self, elapsed: float) -> None:
        for child in self._family:
            child.verify()
        if self._streamer.error is not None:
            raise self._streamer.error
        self._model = self._models.newest() or self._model
        self._history.append((elapsed, self._model.version if self._model else 0))
        self._display.show(Reading(elapsed, self._streamer.sent, self._rate(), self._model, self._vectors.truth))

    def _rate(self) -> float:
        (t0, n0), (t1, n1) = self._history[0], self._history[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else 0.0

    def _project(self, address: str, elapsed: float) -> None:
        if not projection.is_ready(address):
            return
        request_file = self._folder / "request.json"
        vector = next(self._probes)[0]
        try:
            answer = projection.project(address, vector, request_file)
        except OSError:  # next time
            return
        self._served = elapsed
        self._display.note(projection.told(address, answer, request_file, elapsed))


def _portions(vectors: VectorStream) -> Iterator[F32]:
    """A few at a time, for ever."""
    for piece in vectors.pieces():
        for start in range(0, len(piece), _PROBES):
            yield piece[start : start + _PROBES]


def _ticks(started: float, ended: threading.Event) -> Iterator[float]:
    """Seconds since the start, twice a second, until the end is asked for."""
    while not ended.wait(_LOOK_EVERY_S):
        yield time.monotonic() - started


def _worker_settings(
    broker: EmbeddedBroker, store: DirectoryStore, vectors: VectorStream, port: int
) -> dict[str, object]:
    return {
        "topic": TOPIC,
        "dead_letter_topic": DEAD_LETTERS,
        "bootstrap_servers": broker.address,
        "kafka_api_version": API_VERSION,
        "store": store.root,
        "dimensions": vectors.dimensions,
        "components": vectors.components,
        "format": "float32",
        "checkpoint_interval_s": 1,
        "on_offset_gap": "earliest",  # the broker in memory forgets when the worker is slow to start
        "worker_port": port,
    }


def _fresh(path: Path) -> DirectoryStore:
    store = DirectoryStore(path)
    if Checkpoints(store, TOPIC).partitions():
        raise SettingsError(f"{path} holds checkpoints of an earlier demo, whose broker is gone; name another folder")
    store.check()
    return store


def _end_on_signals() -> threading.Event:
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    return ended


def _where_to_look(broker: str, ports: tuple[int, int], store: DirectoryStore, folder: Path) -> str:
    return (
        f"page     http://127.0.0.1:{ports[0]}/\n"
        f"broker   {broker} (in memory), topic {TOPIC}\n"
        f"API      http://127.0.0.1:{ports[0]}/docs\n"
        f"model    http://127.0.0.1:{ports[0]}/v1/model\n"
        f"metrics  http://127.0.0.1:{ports[1]}/metrics (worker)  http://127.0.0.1:{ports[0]}/metrics (sidecar)\n"
        f"store    {store.root}\n"
        f"logs     {folder}/worker.log {folder}/serve.log\n"
    )
