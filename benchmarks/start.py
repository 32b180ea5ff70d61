"""The time until a process is ready: `python -m benchmarks.start`.

From the start of the process: `streampca --help` and `import streampca` to their end; the sidecar to its first answer
that it is ready, with a model in its store; a worker to its first learned message, on a real broker, with compiled
code in numba's cache, with either client. Each worker is the first of a new group on a new store. Medians.
"""

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from statistics import median

from benchmarks import workers
from benchmarks.report import Bar, publish
from experiments.report import table
from streampca.stores.directory import DirectoryStore
from streampca.stores.models import Models
from tests.broker_client import BrokerClient
from tests.example_models import TOPIC, numbered
from tests.guarantees.worker_process import own_interpreter
from tests.ports import free_ports

PART, D, K = "start", 784, 20
LOAD = workers.Load("float32", D, K, 2000, TOPIC)
RUNS, TIMEOUT_S = 5, 120.0
COMMANDS = {"`streampca --help`": ["-m", "streampca", "--help"], "`import streampca`": ["-c", "import streampca"]}


def main() -> None:
    """Measure and write."""
    options = workers.parser_with_broker(__doc__).parse_args()
    runs = 1 if options.smallest else RUNS
    with tempfile.TemporaryDirectory() as folder:
        seconds = {words: median(ended(words) for _ in range(runs)) for words in COMMANDS}
        seconds["sidecar, ready"] = median(sidecar(Path(folder)) for _ in range(runs))
        with workers.broker_of(options) as broker:  # not before: the figures above are of a machine at rest
            broker.create_topic(TOPIC, 1)
            workers.fill(broker, LOAD, 1)
            if runs > 1:
                worker(broker, workers.CLIENTS[0])  # fills numba's cache
            for client in workers.CLIENTS:
                times = [worker(broker, client) for _ in range(runs)]
                seconds[f"worker, first message learned, {client}"] = median(times)
    rows = [[process, f"{time_s:.3g}"] for process, time_s in seconds.items()]
    *commands, ready, kafka_python, confluent = seconds.values()
    bars = [
        Bar("Time of `streampca --help` and `import streampca`", commands, "≤", 0.3, "s"),
        Bar("Time until the sidecar is ready", [ready], "≤", 1.5, "s"),
        Bar("Time until a worker's first message is learned", [kafka_python, confluent], "≤", 2.0, "s"),
    ]
    publish(PART, options, table(["process", "seconds"], rows), bars)


def ended(words: str) -> float:
    """Seconds that a command takes."""
    began = time.perf_counter()
    command = [sys.executable, *COMMANDS[words]]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S)  # noqa: S603 - ourselves
    return time.perf_counter() - began


def sidecar(folder: Path) -> float:
    """Seconds until `/readyz` answers 200."""
    Models(DirectoryStore(folder / "served"), TOPIC).save(numbered(1, d=D, k=K))
    (port,) = free_ports(1)
    settings = {"STREAMPCA_TOPIC": TOPIC, "STREAMPCA_STORE": str(folder / "served"), "STREAMPCA_PORT": str(port)}
    began = time.perf_counter()
    with own_interpreter(["serve"], {**os.environ, **settings}, folder / "log") as process:
        try:
            while process.poll() is None and time.perf_counter() - began < TIMEOUT_S:
                with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                    return time.perf_counter() - began
                time.sleep(0.01)
            raise ChildProcessError(f"the sidecar did not start:\n{(folder / 'log').read_text()}")
        finally:
            process.kill()


def worker(broker: BrokerClient, client: str) -> float:
    """Seconds until the first message is learned."""
    with workers.group_of(broker, LOAD, client) as members:
        began = time.perf_counter()
        url = workers.metrics_url(members.start().log)
        return workers.samples_until(1, lambda: workers.counted(url, workers.LEARNED))[-1][0] - began


if __name__ == "__main__":
    main()
