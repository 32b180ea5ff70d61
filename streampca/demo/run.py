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

from streampca.demo.processes import ChildProcess, EmbeddedBroker, free_port, poll_first_record, stop
from streampca.errors import InputError, SettingsError, StreampcaError
from streampca.files import open_rows
from streampca.files.rows import Rows
from streampca.files.synthetic import LowRank, Sensors
from streampca.process.start import stop_on_signals
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store
from streampca.stores.models import Models

TOPIC = "readings"
DEAD_LETTERS = "readings-dead-letters"
PROJECTED = "readings-projected"
_COMPONENTS = 8
_UPDATE_EVERY_S = 0.5
_PRINT_EVERY_S = 2.0
_RATE_OVER_UPDATES = 11  # the printed rate is a mean over the last five seconds
_FIRST_PROJECTION_WITHIN_S = 180.0  # the first start compiles, on a busy machine for minutes
_VECTORS_PER_REQUEST = 8  # the page displays each vector of a request
_REQUEST_TIMEOUT_S = 2.0


class Stream(NamedTuple):
    """The rows that the demo sends to its topic, and the settings that they need."""

    rows: Rows  # some of them are projected, too
    produce_arguments: Sequence[str]  # make `streampca produce` send these rows
    record_settings: Mapping[str, object]  # of every command that reads or writes records
    model_settings: Mapping[str, object]  # of the worker alone
    truth: LowRank | None = None  # the distribution of synthetic vectors; None for other rows


def choose_stream(file: Path | None, *, sensors: bool) -> Stream:
    """Return the rows of a file, readings of sensors, or synthetic vectors if neither is asked for.

    Raises `InputError` if both are asked for, or if the file cannot be read.
    """
    if file and sensors:
        raise InputError("give either --file or --sensors")
    if sensors:
        readings = Sensors().rows()
        return Stream(
            rows=readings,
            produce_arguments=["--synthetic"],
            record_settings={"format": "json", "field": ",".join(readings.names or ())},
            model_settings={"dimensions": readings.dimensions, "components": 3, "standardize": True},
        )
    if file:
        truth = None
        rows = open_rows(file)
        produce_arguments = [str(file.absolute()), "--repeat"]
    else:
        truth = LowRank()
        rows = truth.rows()
        produce_arguments = ["--synthetic"]
    return Stream(
        rows=rows,
        produce_arguments=produce_arguments,
        record_settings={"format": "float32"},
        model_settings={"dimensions": rows.dimensions, "components": min(_COMPONENTS, rows.dimensions)},
        truth=truth,
    )


def run(stream: Stream, seconds: float | None, rate: float, store: str | None, port: int) -> None:
    """Run until `seconds` after the first projection, Ctrl-C or SIGTERM. Raises `StreampcaError` if a process fails."""
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
        output = stack.enter_context(contextlib.closing(poll_first_record(broker, PROJECTED)))
        port = free_port(port)
        metrics_port = free_port(0)
        children: list[ChildProcess] = []
        stack.callback(stop, children)
        kafka_settings = {
            "topic": TOPIC,
            "bootstrap_servers": broker.address,
            # The confluent client asks the cluster's controller, and the broker in memory names none.
            "kafka_client": "kafka-python",
            **stream.record_settings,
        }
        member_settings = {
            **kafka_settings,
            "store": location,
            "dead_letter_topic": DEAD_LETTERS,
            "on_offset_gap": "latest",  # the broker drops its earliest record at each new one, once it has 5 MB
        }

        def start(*command: str, **settings: object) -> None:
            children.append(ChildProcess(command, settings, folder / f"{command[0]}.log"))

        start("worker", **member_settings, **stream.model_settings, checkpoint_interval_s=1, metrics_port=metrics_port)
        start("serve", topic=TOPIC, store=location, port=port)
        start("transform", **member_settings, output_topic=PROJECTED, metrics_port=0)
        _print(
            f"page     http://127.0.0.1:{port}/\n"
            f"broker   {broker.address} (in memory), topics {TOPIC} and {PROJECTED}\n"
            f"API      http://127.0.0.1:{port}/docs\n"
            f"model    http://127.0.0.1:{port}/v1/model\n"
            f"metrics  http://127.0.0.1:{metrics_port}/metrics (worker)  http://127.0.0.1:{port}/metrics (sidecar)\n"
            f"store    {location}\n"
            f"logs     {folder}/*.log\n"
        )
        produce = partial(start, "produce", *stream.produce_arguments, "--rate", str(rate), **kafka_settings)
        demo = _Demo(children=children, produce=produce, models=models, first_output=output, stream=stream)
        demo.run(
            url=f"http://127.0.0.1:{port}/v1/project",
            request_file=folder / "request.json",
            seconds=seconds,
            ended=ended,
        )
        _print("stopping: the worker saves and leaves its group")


class _Demo:
    """Twice a second, checks all processes, projects some vectors and prints the progress."""

    def __init__(
        self, *, children: list[ChildProcess], produce: Callable[[], None], models: Models, first_output: Iterator[str],
        stream: Stream,
    ) -> None:  # fmt: skip
        self._children = children  # the worker is the first
        self._produce = produce
        self._is_produced = False
        self._models = models
        self._first_output = first_output
        self._stream = stream
        self._learned: deque[tuple[float, int]] = deque(maxlen=_RATE_OVER_UPDATES)  # elapsed seconds, messages
        self._next_line_s = 0.0  # seconds from the start
        self._newest = models.newest()  # as last read

    def run(self, *, url: str, request_file: Path, seconds: float | None, ended: threading.Event) -> None:
        """Run until the end. Raises `StreampcaError` if a process fails or no vector is projected in time."""
        started = time.monotonic()
        served_s = None  # when a vector was first projected, in seconds from the start
        for body in _request_bodies(self._stream.rows):
            if ended.wait(_UPDATE_EVERY_S):
                return
            elapsed_s = time.monotonic() - started
            self._update(elapsed_s)
            answer = _project(url, body)
            if served_s is None and answer is not None:
                served_s = elapsed_s
                request_file.write_text(body, encoding="utf-8")
                _print(_describe_projection(url, answer, request_file, elapsed_s))
            if served_s is None and elapsed_s > _FIRST_PROJECTION_WITHIN_S:
                raise StreampcaError(f"no projection within {_FIRST_PROJECTION_WITHIN_S:.0f} s")
            if served_s is not None and seconds is not None and elapsed_s >= served_s + seconds:
                return

    def _update(self, elapsed_s: float) -> None:
        """Check all processes, and print what is new. Raises `StreampcaError` if a process has exited."""
        for child in self._children:
            child.verify()
        # Nothing is sent before the worker reads, since the broker in memory would soon drop the first records.
        if not self._is_produced and "partitions assigned" in self._worker_log():
            self._produce()
            self._is_produced = True
        self._newest = self._models.newest()
        self._learned.append((elapsed_s, self._newest.version if self._newest else 0))
        output = next(self._first_output, "")
        if output:
            _print(f"first output in topic {PROJECTED}:\n{output}")
        if elapsed_s >= self._next_line_s:
            self._next_line_s = elapsed_s + _PRINT_EVERY_S
            _print(f"{elapsed_s:5.1f} s  {self._progress()}")

    def _worker_log(self) -> str:
        return self._children[0].log.read_text(encoding="utf-8")

    def _messages_per_second(self) -> float:
        first_s, first_count = self._learned[0]
        last_s, last_count = self._learned[-1]
        return (last_count - first_count) / max(last_s - first_s, _UPDATE_EVERY_S)

    def _progress(self) -> str:
        """Return the figures of the newest model. Before there is one, say from its log what the worker does."""
        if self._newest is None:
            log = self._worker_log()
            is_compiling = "compiling kernels" in log and "worker started" not in log
            return "compiling, once on this machine …" if is_compiling else "starting …"
        model = self._newest.model
        loss_ratio = "–" if self._newest.stats.loss_ewma is None else f"{self._newest.stats.loss_ewma:.4f}"
        truth = self._stream.truth
        if truth is not None and self._newest.stats.loss_ewma is not None:
            loss_ratio += f" (optimum: {truth.loss_ratio:.4f})"
        figures = {
            "learned": f"{self._newest.version:,} ({self._messages_per_second():,.0f} per second)",
            "loss ratio": loss_ratio,
            "explained variance": f"{model.explained_variance_ratio.sum():.2%}",
        }
        if truth is not None:
            angle = truth.largest_angle(model.components)
            figures["subspace found"] = f"{truth.coverage(model.components):.3%} (largest angle {angle:.2f}°)"
        return "  ".join(f"{name}: {value}" for name, value in figures.items())


def _request_bodies(rows: Rows) -> Iterator[str]:
    """Yield the body of a request for the next few rows; after the last row, begin again."""
    while True:
        for chunk in rows.chunks():
            for start in range(0, len(chunk.vectors), _VECTORS_PER_REQUEST):
                vectors = chunk.vectors[start : start + _VECTORS_PER_REQUEST].round(4)
                yield json.dumps({"vectors": vectors.tolist()})


def _project(url: str, body: str) -> dict[str, Any] | None:
    """Send a request and return its answer, or None if it fails. The page then displays the vectors."""
    request = urllib.request.Request(url, body.encode(), {"content-type": "application/json"})  # noqa: S310 - local
    try:
        with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT_S) as answer:  # noqa: S310
            return dict(json.load(answer))
    except OSError:  # there is no model yet, or the sidecar is busy; the next update tries again
        return None


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def _describe_projection(url: str, answer: dict[str, Any], request_file: Path, elapsed_s: float) -> str:
    """Describe the first projection, with a curl command that repeats it."""
    coordinates = ", ".join(f"{number:.3f}" for number in answer["coordinates"][0])
    return (
        f"first projection after {elapsed_s:.1f} s, by model version {answer['version']}:\n"
        f"  coordinates [{coordinates}]\n"
        f"  residual    {answer['residual'][0]:.3f}\n"
        "the same with curl:\n"
        f"  curl -s {url} -H 'content-type: application/json' -d @{request_file}\n"
    )
