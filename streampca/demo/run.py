"""`streampca demo`: runs a broker and every role of streampca on this machine and displays their progress."""

import contextlib
import json
import math
import tempfile
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streampca.demo.processes import Children, EmbeddedBroker, free_port, open_consumer, poll_record
from streampca.errors import InputError, SettingsError, StreampcaError
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from streampca.files.rows import Rows
from streampca.files.synthetic import LowRank, Sensors
from streampca.fold.dominance import describe_dominant_dimension
from streampca.fold.model_file import PublishedModel
from streampca.settings.field_paths import spell_path
from streampca.stores.checkpoints import Checkpoints
from streampca.stores.choice import open_store
from streampca.stores.models import Models

TOPIC = "readings"
DEAD_LETTERS = "readings-dead-letters"
PROJECTED = "readings-projected"
_COMPONENTS = 8
_SENSOR_COMPONENTS = 3  # readings of sensors follow three causes
_UPDATE_EVERY_S = 0.5
_PRINT_EVERY_S = 2.0
_UPDATES_OF_RATE = 11  # the printed rate is a mean over the last five seconds
_FIRST_PROJECTION_TIMEOUT_S = 180.0  # the first start compiles, on a busy machine for minutes
_VECTORS_PER_REQUEST = 8  # the page displays each vector of a request
_REQUEST_TIMEOUT_S = 2.0


class Stream(NamedTuple):
    """The rows that the demo sends to its topic, and the settings that they need."""

    rows: Rows  # some of them are projected, too
    produce_arguments: Sequence[str]  # make `streampca produce` send these rows
    record_settings: Mapping[str, object]  # of every command that reads or writes records
    model_settings: Mapping[str, object]  # of the worker alone
    truth: LowRank | None = None  # the distribution of synthetic vectors; None for other rows


def choose_stream(file: Path | None, field: str, *, standardize: bool, sensors: bool) -> Stream:
    """Return the rows of `file`, or readings of sensors; if neither is asked for, synthetic vectors.

    Raises `InputError` if options exclude each other, or if the file cannot be read.
    """
    if file and sensors:
        raise InputError("give either --file or --sensors")
    if not file and (field or standardize):
        raise InputError("--field and --standardize need --file")
    if file:
        return _open_file(file, field, standardize=standardize)
    if sensors:
        readings = Sensors().rows()
        return Stream(
            rows=readings,
            produce_arguments=["--synthetic"],  # sends readings of sensors if the format is json
            record_settings={"format": "json", "field": ",".join(readings.names or ())},
            model_settings={"dimensions": readings.dimensions, "components": _SENSOR_COMPONENTS, "standardize": True},
        )
    truth = LowRank()
    vectors = truth.rows()
    return Stream(
        rows=vectors,
        produce_arguments=["--synthetic"],
        record_settings={"format": "float32"},
        model_settings={"dimensions": vectors.dimensions, "components": _COMPONENTS},
        truth=truth,
    )


def _open_file(file: Path, file_field: str, *, standardize: bool) -> Stream:
    """Return the rows of a file with their settings. Raises `InputError` if the first rows are bad.

    `file_field` says where the numbers are in the file. `streampca produce` will write each row as a record. The
    setting `field` in `record_settings` says where the numbers are in these records.
    """
    rows = open_rows(file, FileOptions(field=file_field))
    first_chunk = next(rows.chunks(skip_nulls=True))
    record_settings: dict[str, object]
    if rows.names:
        # A name with a dot must not be taken for a path.
        record_settings = {"format": "json", "field": ",".join(spell_path([name]) for name in rows.names)}
    else:
        is_float32 = first_chunk.vectors.dtype == np.float32
        record_settings = {"format": "float32" if is_float32 else "float64"}
    return Stream(
        rows=rows,
        produce_arguments=[str(file.absolute()), "--repeat", "--field", file_field],
        record_settings=record_settings,
        model_settings={
            "dimensions": rows.dimensions,
            "components": min(_COMPONENTS, rows.dimensions),
            "standardize": standardize,
        },
    )


class _Addresses(NamedTuple):
    """Where the parts of the demo are found on this machine."""

    broker: str  # host:port
    store: str  # a folder or a URL
    port: int  # of the sidecar
    metrics_port: int  # of the worker


def run(
    stream: Stream, seconds: float | None, rate: float, store: str | None, port: int, ended: threading.Event
) -> None:
    """Run the processes of the demo until `ended` is set, or `seconds` after the first projection.

    `rate` is in messages per second. Without `store`, a temporary folder is used.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streampca-demo-")))
        location = store or str(folder / "store")
        models = _open_models(location)
        broker = EmbeddedBroker(TOPIC, DEAD_LETTERS, PROJECTED)  # stops when this function ends, and drops the object
        consumer = stack.enter_context(contextlib.closing(open_consumer(broker, PROJECTED)))
        addresses = _Addresses(broker=broker.address, store=location, port=free_port(port), metrics_port=free_port(0))
        children = Children(_list_settings(stream, addresses), folder)
        stack.callback(children.stop)
        for command in ("worker", "serve", "transform"):
            children.start(command)
        _print(_describe_addresses(addresses, folder))
        if stream.rows.notes:
            _print(f"{stream.rows.path}: {stream.rows.notes}")
        demo = _Demo(children, models, consumer, stream, rate)
        demo.run(
            url=f"http://127.0.0.1:{addresses.port}/v1/project",
            request_file=folder / "request.json",
            seconds=seconds,
            ended=ended,
        )
        _print("stopping: the worker saves and leaves its group")


def _list_settings(stream: Stream, addresses: _Addresses) -> dict[str, dict[str, object]]:
    """Return the settings of each command that the demo runs."""
    kafka_settings = {
        "topic": TOPIC,
        "bootstrap_servers": addresses.broker,
        # The confluent client asks the cluster's controller, and the broker in memory names none.
        "kafka_client": "kafka-python",
        **stream.record_settings,
    }
    member_settings = {
        **kafka_settings,
        "store": addresses.store,
        "dead_letter_topic": DEAD_LETTERS,
        "on_offset_gap": "latest",  # the broker drops old records, once it has 5 MB
    }
    worker_settings = {
        **member_settings,
        **stream.model_settings,
        "checkpoint_interval_s": 1,
        "metrics_port": addresses.metrics_port,
    }
    return {
        "produce": kafka_settings,
        "worker": worker_settings,
        "serve": {"topic": TOPIC, "store": addresses.store, "port": addresses.port},
        "transform": {**member_settings, "output_topic": PROJECTED, "metrics_port": 0},  # 0: any free port
    }


def _describe_addresses(addresses: _Addresses, folder: Path) -> str:
    """Return the text that says where to look; the logs are in the folder."""
    sidecar = f"http://127.0.0.1:{addresses.port}"
    worker_metrics = f"http://127.0.0.1:{addresses.metrics_port}/metrics"
    return (
        f"page     {sidecar}/\n"
        f"broker   {addresses.broker} (in memory), topics {TOPIC} and {PROJECTED}\n"
        f"API      {sidecar}/docs\n"
        f"model    {sidecar}/v1/model\n"
        f"metrics  {worker_metrics} (worker)  {sidecar}/metrics (sidecar)\n"
        f"store    {addresses.store}\n"
        f"logs     {folder}/*.log\n"
    )


def _open_models(location: str) -> Models:
    """Return the models of the store at this location, which must be writable and new. Raises `SettingsError`."""
    store = open_store(location)
    if Checkpoints(store, TOPIC).partitions():
        raise SettingsError(
            f"{location} holds checkpoints of an earlier demo, whose broker is gone; choose another store"
        )
    store.check()
    return Models(store, TOPIC)


class _Demo:
    """Twice a second, checks all processes, projects some vectors and prints the progress."""

    def __init__(self, children: Children, models: Models, consumer: Any, stream: Stream, rate: float) -> None:
        self._children = children
        self._models = models
        self._consumer = consumer  # of transform's outputs
        self._has_output = False
        self._stream = stream
        self._rate = rate  # messages per second
        # For the rate of learning: the elapsed seconds and the learned messages of the last updates.
        self._recent_progress: deque[tuple[float, int]] = deque(maxlen=_UPDATES_OF_RATE)
        self._next_line_s = 0.0  # when the next line of figures is printed
        self._has_warned = False  # of a dimension with nearly all of the variance

    def run(self, *, url: str, request_file: Path, seconds: float | None, ended: threading.Event) -> None:
        """Check the processes, print the progress and project some vectors, again and again, until `ended` is set.

        If `seconds` is given, ends so long after the first projection. Raises `StreampcaError` if a process fails or no
        vector is projected in time.
        """
        started = time.monotonic()
        has_projected = False
        end_s = math.inf  # set after the first projection, if `seconds` is given
        for body in _create_request_bodies(self._stream.rows):  # endlessly
            if ended.wait(_UPDATE_EVERY_S):
                return
            elapsed_s = time.monotonic() - started
            self._update(elapsed_s)
            answer = _project(url, body)
            if has_projected:
                if elapsed_s >= end_s:
                    return
            elif answer is not None:
                has_projected = True
                if seconds is not None:
                    end_s = elapsed_s + seconds
                request_file.write_text(body, encoding="utf-8")
                _print(_describe_projection(url, answer, request_file, elapsed_s))
            elif elapsed_s >= _FIRST_PROJECTION_TIMEOUT_S:
                raise StreampcaError(f"no projection within {_FIRST_PROJECTION_TIMEOUT_S:.0f} s")

    def _update(self, elapsed_s: float) -> None:
        """Check all processes, and print what is new. Raises `StreampcaError` if a process has exited."""
        children = self._children
        for process in children.started.values():
            process.verify()
        # The broker in memory would soon drop records that are sent before the worker reads.
        if "produce" not in children.started and "partitions assigned" in children.read_log("worker"):
            children.start("produce", *self._stream.produce_arguments, "--rate", str(self._rate))
        newest_model = self._models.newest()
        self._warn_of_dominant_dimension(newest_model)
        # A version is the number of learned messages.
        learned_count = newest_model.version if newest_model else 0
        self._recent_progress.append((elapsed_s, learned_count))
        self._print_first_output()
        if elapsed_s >= self._next_line_s:
            self._next_line_s = elapsed_s + _PRINT_EVERY_S
            _print(f"{elapsed_s:5.1f} s  {self._describe_progress(newest_model)}")

    def _print_first_output(self) -> None:
        """Print once the first record that transform has written."""
        if self._has_output:
            return
        output = poll_record(self._consumer)
        if output is not None:
            self._has_output = True
            self._consumer.close()  # otherwise it would fetch all later outputs, too
            _print(f"first output in topic {PROJECTED}:\n{output}")

    def _warn_of_dominant_dimension(self, newest_model: PublishedModel | None) -> None:
        """Print once that one dimension has nearly all of the variance."""
        if newest_model is None or self._has_warned:
            return
        warning = describe_dominant_dimension(newest_model)
        if warning:
            self._has_warned = True
            _print(f"warning: {warning}")

    def _compute_messages_per_second(self) -> float:
        first_s, first_count = self._recent_progress[0]
        last_s, last_count = self._recent_progress[-1]
        # After the first update, both are the same: no time may have passed.
        return (last_count - first_count) / max(last_s - first_s, _UPDATE_EVERY_S)

    def _describe_progress(self, newest_model: PublishedModel | None) -> str:
        """Return the figures of the newest model; without a model, what the worker does."""
        if newest_model is None:
            return self._describe_start()
        model = newest_model.model
        # ‖r‖²/‖y‖² of the newest messages; None: no message was scored yet.
        loss_ratio = newest_model.stats.loss_ewma
        loss_text = "–" if loss_ratio is None else f"{loss_ratio:.4f}"
        truth = self._stream.truth
        if truth is not None and loss_ratio is not None:
            loss_text += f" (optimum: {truth.loss_ratio:.4f})"
        figures = {
            "learned": f"{newest_model.version:,} ({self._compute_messages_per_second():,.0f} per second)",
            "loss ratio": loss_text,
            "explained variance": f"{model.explained_variance_ratio.sum():.2%}",
        }
        if truth is not None:
            share_found = truth.coverage(model.components)  # of the subspace in which the vectors vary
            angle = truth.largest_angle(model.components)  # in degrees
            figures["subspace found"] = f"{share_found:.3%} (largest angle {angle:.2f}°)"
        return "  ".join(f"{name}: {value}" for name, value in figures.items())

    def _describe_start(self) -> str:
        log = self._children.read_log("worker")
        is_compiling = "compiling kernels" in log and "worker started" not in log
        return "compiling, once on this machine …" if is_compiling else "starting …"


def _create_request_bodies(rows: Rows) -> Iterator[str]:
    """Yield the body of a request for the next few rows; after the last row, begin again."""
    while True:
        for chunk in rows.chunks(skip_nulls=True):
            for start in range(0, len(chunk.vectors), _VECTORS_PER_REQUEST):
                vectors = chunk.vectors[start : start + _VECTORS_PER_REQUEST]
                yield json.dumps({"vectors": vectors.tolist()})


def _project(url: str, body: str) -> dict[str, Any] | None:
    """Ask the sidecar to project vectors. Return None if it does not answer."""
    request = urllib.request.Request(url, body.encode(), {"content-type": "application/json"})  # noqa: S310 - local
    try:
        with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT_S) as answer:  # noqa: S310
            return dict(json.load(answer))
    except OSError:  # there is no model yet, or the sidecar is busy
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
