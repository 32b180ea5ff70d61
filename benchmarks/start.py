"""The time until a process is ready: `python -m benchmarks.start`.

From the start of the process: `streampca --help` and `import streampca` to their end; the sidecar to its first answer
that it is ready, with a model in its store; a worker to its first learned message, on a real broker, with compiled
code in numba's cache, with either client. Each worker is the first of a new group on a new store. Medians.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.brokers import broker_of, parser_with_broker
from benchmarks.report import Bar, publish
from benchmarks.serving import model
from benchmarks.workers import CLIENTS
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from tests.broker_client import BrokerClient
from tests.ports import free_ports

PART, TOPIC, D, K, MESSAGES = "start", "readings", 784, 20, 2000
RUNS, TIMEOUT_S = 5, 120.0
PROGRAM = [sys.executable, "-m", "streampca"]
LOGGED = ("worker started", "partitions assigned")
STAGES = (*LOGGED, "first message learned")

Figures = dict[str, float]  # stage → seconds since the process was started


def main() -> None:
    """Measure and write."""
    given = parser_with_broker(__doc__).parse_args()
    runs = 1 if given.smallest else RUNS
    lines = [f"| client | {' | '.join(f'{stage}, s' for stage in STAGES)} |", "|---" * (len(STAGES) + 1) + "|"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bars = [
            bar("Time of `streampca --help`", [ended([*PROGRAM, "--help"]) for _ in range(runs)], 0.3),
            bar(
                "Time of `import streampca`",
                [ended([sys.executable, "-c", "import streampca"]) for _ in range(runs)],
                0.3,
            ),
            bar("Time until the sidecar is ready", [sidecar(folder) for _ in range(runs)], 1.5),
        ]
        with broker_of(given) as broker:  # not before: the figures above are of a machine at rest
            by_client = dict(workers(broker, folder, runs))
    for client, found in by_client.items():
        bars.append(
            bar(f"Time until a worker's first message is learned, {client}", [f[STAGES[-1]] for f in found], 2.0)
        )
        lines.append(f"| {client} | {' | '.join(f'{median(f[stage] for f in found):.2f}' for stage in STAGES)} |")
    publish(PART, given, lines, bars)


def bar(metric: str, seconds: list[float], most: float) -> Bar:
    """The bar of the median."""
    return Bar(metric, median(seconds), "≤", most, "s")


def ended(command: list[str]) -> float:
    """Seconds that a command takes."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)  # noqa: S603 - ourselves
    return time.perf_counter() - began


def sidecar(folder: Path) -> float:
    """Seconds until `/readyz` answers 200."""
    Models(DirectoryStore(folder / "served"), TOPIC).save(model(1))
    (port,) = free_ports(1)
    options = ["--topic", TOPIC, "--store", str(folder / "served"), "--port", str(port)]
    with process([*PROGRAM, "serve", *options]) as (running, began):
        return until(lambda: text_of(f"http://127.0.0.1:{port}/readyz") != "", running) - began


def workers(broker: BrokerClient, folder: Path, runs: int) -> Iterator[tuple[str, list[Figures]]]:
    """The figures of each run, by client; a run before them fills numba's cache, except in the smallest size."""
    broker.create_topic(TOPIC, 1)
    rows = np.random.default_rng(0).standard_normal((MESSAGES, D)).astype("<f4")
    broker.produce(TOPIC, 0, [row.tobytes() for row in rows])
    if runs > 1:
        worker(broker, folder / "first", CLIENTS[0])
    for client in CLIENTS:
        yield client, [worker(broker, folder / f"{client}-{i}", client) for i in range(runs)]


def worker(broker: BrokerClient, store: Path, client: str) -> Figures:
    """Seconds until each stage."""
    (port,) = free_ports(1)
    options = {"topic": TOPIC, "store": store, "group-id": store.name, "dimensions": D, "components": K}
    options |= {"bootstrap-servers": broker.bootstrap, "format": "float32", "worker-port": port, "log-format": "json"}
    command = [*PROGRAM, "worker", *(part for key, value in options.items() for part in (f"--{key}", str(value)))]
    learned = re.compile(r'^streampca_messages_total\{[^}]*outcome="learned"[^}]*\} (.*)$', re.MULTILINE)
    reached: Figures = {}
    log: deque[str] = deque(maxlen=20)

    def has_learned() -> bool:
        found = learned.search(text_of(f"http://127.0.0.1:{port}/metrics"))
        return found is not None and float(found[1]) >= 1

    with process(command, STREAMPCA_KAFKA_CLIENT=client) as (running, began):
        reading = threading.Thread(target=read_log, args=(running, reached, log))
        reading.start()
        try:
            reached[STAGES[-1]] = until(has_learned, running)
        except (TimeoutError, ChildProcessError) as error:
            reading.join(1)
            raise type(error)(f"{error}; the worker's last lines:\n{''.join(log)}") from None
        running.terminate()
        reading.join(TIMEOUT_S)
    return {stage: reached[stage] - began for stage in STAGES}


def read_log(running: "subprocess.Popen[str]", reached: Figures, log: deque[str]) -> None:
    """Note the last lines of the log, and when it reports a stage."""
    assert running.stderr is not None
    for line in running.stderr:
        log.append(line)
        if line.startswith("{") and (event := json.loads(line)["event"]) in LOGGED:
            reached.setdefault(event, time.perf_counter())


@contextlib.contextmanager
def process(command: list[str], **environment: str) -> Iterator[tuple["subprocess.Popen[str]", float]]:
    """A process, and when it was started."""
    began = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | environment) as running:  # noqa: S603 - ourselves
        try:
            yield running, began
        finally:
            running.terminate()


def until(condition: Callable[[], bool], running: "subprocess.Popen[str]") -> float:
    """The time at which the condition became true, to 10 ms."""
    deadline = time.perf_counter() + TIMEOUT_S
    while not condition():
        if running.poll() is not None:
            raise ChildProcessError(f"the process ended with exit code {running.returncode}")
        if time.perf_counter() > deadline:
            raise TimeoutError(f"nothing within {TIMEOUT_S:g} s")
        time.sleep(0.01)
    return time.perf_counter()


def text_of(url: str) -> str:
    """The body of a response with status 200; empty for any other, and without a server."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own
            return str(answer.read(), "utf-8")
    except (urllib.error.URLError, OSError):
        return ""


if __name__ == "__main__":
    main()
