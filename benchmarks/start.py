"""How long things take to start, as whole processes: `python -m benchmarks.start` (`--runs N`).

From the start of the process: `streampca --help` and `import streampca` to their end; the sidecar to its first answer
that it is ready, with a model in its store; a worker to its first learned message, which waits for it on a real broker,
with numba's cache empty (cold) and filled (warm), and to the first that takes the code that is compiled meanwhile; with
either client. Each worker is the first of a new group on a new store. Medians.
Writes benchmarks/results/start.md.
"""

import argparse
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

from benchmarks.bars import RESULTS, Bar, record
from benchmarks.daemon import CLIENTS
from benchmarks.machine import machine
from benchmarks.serving import model
from streampca.pca.learning import BLOCK, LearningConfig
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from tests.kafka_broker import Broker
from tests.ports import free_ports

PART, TOPIC, D, K, MESSAGES = "start", "readings", 784, 20, 2000
RUNS, GIVEN_UP_AFTER_S = 5, 60.0
PROGRAM = [sys.executable, "-m", "streampca"]
STAGES = ("worker started", "partitions assigned")  # what its log says on the way
WAY = {stage: stage for stage in STAGES} | {"learned": "first learned", "compiled": "first by compiled code"}
BY_COMPILED_CODE = LearningConfig(D, K).start + BLOCK  # messages: so many are not learned without it

Figures = dict[str, float]  # seconds since the process was started


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS)
    runs = parser.parse_args().runs
    lines, bars = ["| what | seconds | bar |", "|---|---|---|"], []

    def tell(what: str, seconds: float, bar: float) -> None:
        lines.append(f"| {what} | {seconds:.2f} | ≤ {bar} |")
        print(lines[-1], flush=True)
        bars.append(Bar(PART, what, round(seconds, 3), "≤", bar, "s"))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tell("`streampca --help`", median(ended([*PROGRAM, "--help"]) for _ in range(runs)), 0.3)
        tell("`import streampca`", median(ended([sys.executable, "-c", "import streampca"]) for _ in range(runs)), 0.3)
        tell("sidecar, ready", median(sidecar(folder) for _ in range(runs)), 1.5)
        stages = [
            f"\nThe worker's way there, in seconds:\n\n| | {' | '.join(WAY.values())} |",
            "|---" * (len(WAY) + 1) + "|",
        ]
        for kind, bar, found in workers(folder, runs):
            tell(f"worker, first message learned, {kind}", median(figures["learned"] for figures in found), bar)
            cells = [f"{median(figures[stage] for figures in found):.2f}" for stage in WAY]
            stages.append(f"| {kind} | {' | '.join(cells)} |")
    text = "\n".join([*lines, *stages])
    print(text)
    (RESULTS / f"{PART}.md").write_text(
        f"# Starting\n\n{_HEAD}\n\n{text}\n\n{_GROUP}\n\n{machine()}\n", encoding="utf-8"
    )
    record(PART, bars)


_HEAD = f"""Whole processes, from their start, medians. Made by `python -m benchmarks.{PART}`. A worker is the first
of its group, on an empty store, with {MESSAGES:,} messages of {D} float32 numbers waiting. Cold: numba's cache
is empty."""
_GROUP = """The first messages of a partition are learned by other, smaller functions than all later ones. Cold, these
later ones wait until what learns them is compiled (the last column), and only then is a worker at its full speed.

Between the first two stages lies the joining of the group. The broker here has
`group.initial.rebalance.delay.ms=0`; one with Kafka's default keeps the first worker of an empty group waiting for 3 s
more, so that others can join at the same time."""


def ended(command: list[str]) -> float:
    """Seconds that a command takes."""
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, timeout=GIVEN_UP_AFTER_S)  # noqa: S603 - ourselves
    return time.perf_counter() - began


def sidecar(folder: Path) -> float:
    """Seconds until it says that it is ready."""
    Models(DirectoryStore(folder / "served"), TOPIC).save(model(1))
    (port,) = free_ports(1)
    options = ["--topic", TOPIC, "--store", str(folder / "served"), "--port", str(port)]
    with process([*PROGRAM, "serve", *options]) as (_, began):
        return until(lambda: text_of(f"http://127.0.0.1:{port}/readyz") != "") - began


def workers(folder: Path, runs: int) -> Iterator[tuple[str, float, list[Figures]]]:
    """Kind of start, its bar, and the figures of each run."""
    with Broker(folder / "broker") as broker:
        broker.create_topic(TOPIC, 1)
        rows = np.random.default_rng(0).standard_normal((MESSAGES, D)).astype("<f4")
        broker.produce(TOPIC, 0, [row.tobytes() for row in rows])
        for client in CLIENTS:
            for kind, bar in (("cold", 5.0), ("warm", 2.0)):
                of_run = [folder / f"cache-{client}-{i if kind == 'cold' else 0}" for i in range(runs)]
                found = [worker(broker, folder / f"{kind}-{client}-{i}", client, of_run[i]) for i in range(runs)]
                yield f"{kind}, {client}", bar, found


def worker(broker: Broker, store: Path, client: str, cache: Path) -> Figures:
    """Seconds until each stage, and until something is learned."""
    (port,) = free_ports(1)
    options = {"topic": TOPIC, "store": store, "group-id": store.name, "dimensions": D, "components": K}
    options |= {"bootstrap-servers": broker.bootstrap, "format": "float32", "worker-port": port, "log-format": "json"}
    command = [*PROGRAM, "worker", *(part for key, value in options.items() for part in (f"--{key}", str(value)))]
    learned = re.compile(r'^streampca_messages_total\{[^}]*outcome="learned"[^}]*\} (.*)$', re.MULTILINE)

    def has_learned(messages: int) -> bool:
        found = learned.search(text_of(f"http://127.0.0.1:{port}/metrics"))
        return bool(found) and float(found[1]) >= messages

    with process(command, NUMBA_CACHE_DIR=str(cache), STREAMPCA_KAFKA_CLIENT=client) as (running, began):
        reached: Figures = {}
        said: deque[str] = deque(maxlen=10)
        listening = threading.Thread(target=listen, args=(running, reached, said))
        listening.start()
        try:
            reached["learned"] = until(lambda: has_learned(1))
            reached["compiled"] = until(lambda: has_learned(BY_COMPILED_CODE))
        except TimeoutError as error:
            raise TimeoutError(f"{error}; the worker's last lines:\n{''.join(said)}") from None
        running.terminate()
        listening.join(GIVEN_UP_AFTER_S)
    return {stage: reached[stage] - began for stage in WAY}


def listen(running: "subprocess.Popen[str]", reached: Figures, said: deque[str]) -> None:
    """Note when the log tells of a stage, and what it says."""
    assert running.stderr is not None
    for line in running.stderr:
        said.append(line)
        if line.startswith("{") and (event := json.loads(line)["event"]) in STAGES:
            reached.setdefault(event, time.perf_counter())


@contextlib.contextmanager
def process(command: list[str], **environment: str) -> Iterator[tuple["subprocess.Popen[str]", float]]:
    """A process, and when it was started."""
    began = time.perf_counter()
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | environment) as running:  # noqa: S603
        try:
            yield running, began
        finally:
            running.terminate()


def until(true: Callable[[], bool]) -> float:
    """When it became true, to 10 ms."""
    deadline = time.perf_counter() + GIVEN_UP_AFTER_S
    while not true():
        if time.perf_counter() > deadline:
            raise TimeoutError(f"not within {GIVEN_UP_AFTER_S:g} s")
        time.sleep(0.01)
    return time.perf_counter()


def text_of(url: str) -> str:
    """The body of an answer of 200; empty for any other, and where nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own
            return str(answer.read(), "utf-8")
    except (urllib.error.URLError, OSError):
        return ""


if __name__ == "__main__":
    main()
