"""`streampca demo`: runs a broker and every role of streampca on this machine and displays their progress."""

import contextlib
import json
import tempfile
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from streampca.demo.processes import ChildProcess, EmbeddedBroker, first_record, free_port, stop
from streampca.errors import InputError, SettingsError, StreampcaError
from streampca.files import open_rows
from streampca.files.rows import Rows
from streampca.files.synthetic import LowRank, Sensors
from streampca.process.start import stop_on_signals
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store
from streampca.stores.models import Models

TOPIC, DEAD_LETTERS, PROJECTED = "readings", "readings-dead-letters", "readings-projected"
_COMPONENTS = 8
_UPDATE_EVERY_S, _PRINT_EVERY_S = 0.5, 2.0
_FIRST_PROJECTION_WITHIN_S = 180.0  # the first start compiles, on a busy machine for minutes
_VECTORS_PER_REQUEST = 8  # for the page to show
_REQUEST_TIMEOUT_S = 2.0


class Stream(NamedTuple):
    """Rows that `produce` sends, and the settings that they need."""

    rows: Rows  # the same, to project some
    source: Sequence[str]  # what `produce` sends
    records: Mapping[str, object]  # settings of all that read or write records
    model: Mapping[str, object]  # settings of the worker alone
    truth: LowRank | None = None  # None: not known


def stream_of(file: Path | None, *, sensors: bool) -> Stream:
    """The rows of a file, readings of sensors, or else vectors. Raises `InputError`."""
    if file and sensors:
        raise InputError("give either --file or --sensors")
    if sensors:
        rows = Sensors().rows()
        records = {"format": "json", "field": ",".join(rows.names or ())}
        model = {"dimensions": rows.dimensions, "components": 3, "standardize": True}
        return Stream(rows, ["--synthetic"], records, model)
    truth = LowRank()
    rows = open_rows(file) if file else truth.rows()
    model = {"dimensions": rows.dimensions, "components": min(_COMPONENTS, rows.dimensions)}
    source = [str(file.absolute()), "--repeat"] if file else ["--synthetic"]
    return Stream(rows, source, {"format": "float32"}, model, None if file else truth)


def run(stream: Stream, seconds: float | None, rate: float, store: str | None, port: int) -> None:
    """Run until `seconds` after the first projection, Ctrl-C or SIGTERM. Raises `StreampcaError` if a part fails."""
    ended = threading.Event()
    stop_on_signals(lambda _: ended.set())
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streampca-demo-")))
        location = store or str(folder / "store")
        own_store = open_store(location)
        if Checkpoints(own_store, TOPIC).partitions():
            raise SettingsError(
                f"{location} holds checkpoints of an earlier demo, whose broker is gone; choose another store"
            )
        own_store.check()
        models = Models(own_store, TOPIC)
        broker = EmbeddedBroker(TOPIC, DEAD_LETTERS, PROJECTED)
        output = stack.enter_context(contextlib.closing(first_record(broker, PROJECTED)))
        port, metrics_port = free_port(port), free_port(0)
        children: list[ChildProcess] = []
        stack.callback(stop, children)
        connected = {
            "topic": TOPIC,
            "bootstrap_servers": broker.address,
            "kafka_client": "kafka-python",  # the other asks a controller, which the broker in memory does not name
            **stream.records,
        }
        member = {
            **connected,
            "store": location,
            "dead_letter_topic": DEAD_LETTERS,
            "on_offset_gap": "latest",  # the broker drops its earliest record at each new one, once it has 5 MB
        }

        def start(*command: str, **settings: object) -> None:
            children.append(ChildProcess(command, settings, folder / f"{command[0]}.log"))

        start("worker", **member, **stream.model, checkpoint_interval_s=1, metrics_port=metrics_port)
        start("serve", topic=TOPIC, store=location, port=port)
        start("transform", **member, output_topic=PROJECTED, metrics_port=0)
        _print(_addresses(broker.address, port, metrics_port, location, folder))
        produce = partial(start, "produce", *stream.source, "--rate", str(rate), **connected)
        _Demo(children, produce, models, output, stream).run(
            f"http://127.0.0.1:{port}/v1/project", folder / "request.json", seconds, ended
        )
        _print("stopping: the worker saves and leaves its group")


class _Demo:
    """Checks all parts, projects some vectors and displays the progress, twice a second."""

    def __init__(
        self, children: list[ChildProcess], produce: Callable[[], None], models: Models, output: Iterator[str],
        stream: Stream,
    ) -> None:  # fmt: skip
        self._children, self._models, self._stream = children, models, stream
        self._produce: Callable[[], None] | None = produce  # until the worker reads
        self._output = output
        self._history: deque[tuple[float, int]] = deque(maxlen=11)  # time and messages learned, over 5 seconds
        self._next_line = 0.0  # seconds from the start
        self._newest = models.newest()  # as last read

    def run(self, url: str, request_file: Path, seconds: float | None, ended: threading.Event) -> None:
        """Run until the end. Raises `StreampcaError` if a part fails or nothing is served in time."""
        started, served_at = time.monotonic(), None  # the latter in seconds from the start
        for body in _bodies(self._stream.rows):
            if ended.wait(_UPDATE_EVERY_S):
                return
            elapsed = time.monotonic() - started
            self._update(elapsed)
            answer = _project(url, body)
            if served_at is None and answer is not None:
                served_at = elapsed
                request_file.write_text(body, encoding="utf-8")
                _print(_projection(url, answer, request_file, elapsed))
            if served_at is None and elapsed > _FIRST_PROJECTION_WITHIN_S:
                raise StreampcaError(f"no projection within {_FIRST_PROJECTION_WITHIN_S:.0f} s")
            if served_at is not None and seconds is not None and elapsed >= served_at + seconds:
                return

    def _update(self, elapsed: float) -> None:
        for child in self._children:
            child.verify()
        if self._produce is not None and "partitions assigned" in self._children[0].log.read_text(encoding="utf-8"):
            self._produce()
            self._produce = None
        self._newest = self._models.newest()
        self._history.append((elapsed, self._newest.version if self._newest else 0))
        if first := next(self._output, ""):
            _print(f"first output in topic {PROJECTED}:\n{first}")
        if elapsed >= self._next_line:
            self._next_line = elapsed + _PRINT_EVERY_S
            (t0, n0), (t1, n1) = self._history[0], self._history[-1]
            rate = (n1 - n0) / max(t1 - t0, _UPDATE_EVERY_S)
            _print(f"{elapsed:5.1f} s  {self._progress(rate)}")

    def _progress(self, rate: float) -> str:
        """The figures of the newest model; before the first, what the worker does by its log file."""
        if self._newest is None:
            text = self._children[0].log.read_text(encoding="utf-8")
            is_compiling = "compiling kernels" in text and "worker started" not in text
            return "compiling, once on this machine …" if is_compiling else "starting …"
        loss, model, truth = self._newest.stats.loss_ewma, self._newest.model, self._stream.truth
        optimum = f" (optimum: {truth.loss_ratio:.4f})" if truth else ""
        figures = {
            "learned": f"{self._newest.version:,} ({rate:,.0f} per second)",
            "loss ratio": "–" if loss is None else f"{loss:.4f}{optimum}",
            "explained variance": f"{model.explained_variance_ratio.sum():.2%}",
        }
        if truth is not None:
            angle = truth.largest_angle(model.components)
            figures["subspace found"] = f"{truth.coverage(model.components):.3%} (largest angle {angle:.2f}°)"
        return "  ".join(f"{name}: {value}" for name, value in figures.items())


def _bodies(rows: Rows) -> Iterator[str]:
    """Bodies of requests, endlessly."""
    while True:
        for chunk in rows.chunks():
            for start in range(0, len(chunk.vectors), _VECTORS_PER_REQUEST):
                yield json.dumps({"vectors": chunk.vectors[start : start + _VECTORS_PER_REQUEST].round(4).tolist()})


def _project(url: str, body: str) -> dict[str, Any] | None:
    """The response for vectors, which the page then shows; None if it fails."""
    request = urllib.request.Request(url, body.encode(), {"content-type": "application/json"})  # noqa: S310 - local
    try:
        with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT_S) as answer:  # noqa: S310
            return dict(json.load(answer))
    except OSError:  # no model yet; or it is tried again soon
        return None


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def _addresses(broker: str, port: int, metrics_port: int, store: str, folder: Path) -> str:
    return (
        f"page     http://127.0.0.1:{port}/\n"
        f"broker   {broker} (in memory), topics {TOPIC} and {PROJECTED}\n"
        f"API      http://127.0.0.1:{port}/docs\n"
        f"model    http://127.0.0.1:{port}/v1/model\n"
        f"metrics  http://127.0.0.1:{metrics_port}/metrics (worker)  http://127.0.0.1:{port}/metrics (sidecar)\n"
        f"store    {store}\n"
        f"logs     {folder}/*.log\n"
    )


def _projection(url: str, answer: dict[str, Any], request_file: Path, elapsed: float) -> str:
    """The first projection and the curl command that repeats it."""
    coordinates = ", ".join(f"{number:.3f}" for number in answer["coordinates"][0])
    return (
        f"first projection after {elapsed:.1f} s, by model version {answer['version']}:\n"
        f"  coordinates [{coordinates}]\n"
        f"  residual    {answer['residual'][0]:.3f}\n"
        "the same with curl:\n"
        f"  curl -s {url} -H 'content-type: application/json' -d @{request_file}\n"
    )
