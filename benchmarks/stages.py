"""Where a worker's time goes: `python -m benchmarks.stages`.

Microseconds a message of each stage, in a real worker on a real broker. Calls are timed from outside, so a stage
includes the time that it waits for the GIL. Reading and decoding, learning, and saving run in three threads, so the
columns need not add up to the last, which is the time between two messages.
"""

import os
import signal
import sys
import tempfile
import threading
import time
from dataclasses import replace
from typing import Any

import orjson

from benchmarks.brokers import broker_of, parser_with_broker
from benchmarks.children import output_of
from benchmarks.report import publish
from benchmarks.throughput import LOADS
from benchmarks.workers import CLIENTS, PARTITIONS, Load, fill
from streampca.commands import worker
from streampca.consumer_group.listener import BatchLearned, MemberEvent
from streampca.settings import WorkerSettings
from streampca.sources.confluent.source import ConfluentSource
from streampca.sources.kafka_python.source import KafkaPythonSource
from streampca.stores.checkpoints import Checkpoints
from streampca.stream.codec import Codec
from streampca.stream.fold import Fold
from streampca.worker.listeners.metrics import WorkerMetrics
from streampca.worker.publisher import Publisher
from tests.broker_client import BrokerClient

PART = "stages"
STAGES: dict[str, list[tuple[type[Any], str]]] = {
    "poll": [(KafkaPythonSource, "poll"), (ConfluentSource, "poll")],
    "decode": [(Codec, "decode")],
    "learn": [(Fold, "learn")],
    "metrics": [(WorkerMetrics, "notify")],
    "checkpoint": [(Checkpoints, "save")],
    "publish": [(Publisher, "publish")],
}


def main() -> None:
    """Measure and write."""
    given = parser_with_broker(__doc__).parse_args()
    loads = [replace(load, messages=load.messages // 2) for load in LOADS]
    lines = [
        f"| format | d × k | client | {' | '.join(STAGES)} | a message |",
        "|---|---|---|" + "---|" * (len(STAGES) + 1),
    ]
    with broker_of(given) as broker:
        for load in [replace(LOADS[0], messages=20_000)] if given.smallest else loads:
            broker.create_topic(load.topic, PARTITIONS)
            fill(broker, load)
            for client in CLIENTS[:1] if given.smallest else CLIENTS:
                lines.append(row(broker, load, client))
                print(lines[-1], flush=True)
            broker.delete_topic(load.topic)
    publish(PART, given, lines)


def row(broker: BrokerClient, load: Load, client: str) -> str:
    """One line of the table."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "bootstrap_servers": broker.bootstrap, "topic": load.topic, "store": folder, "kafka_client": client,
            "dimensions": load.d, "components": load.k, "format": load.format, "dtype": "float32", "metrics_port": 0,
            "group_id": f"stages-{time.monotonic_ns()}", "session_timeout_s": 6,
        }  # fmt: skip
        out = output_of("stages", "child", orjson.dumps(settings).decode(), str(load.messages))
    spent = orjson.loads(out.splitlines()[-1])
    cells = [f"{1e6 * spent[stage] / load.messages:.2f}" for stage in [*STAGES, "all"]]
    return f"| {load.format} | {load.d} × {load.k} | {client} | {' | '.join(cells)} |"


def child(settings: dict[str, Any], count: int) -> None:
    """A worker whose parts are timed; prints the seconds of each stage."""
    spent = dict.fromkeys(STAGES, 0.0)
    for stage, places in STAGES.items():
        for owner, name in places:
            time_calls(owner, name, spent, stage)
    times = stop_at(count)
    worker.run(WorkerSettings(**settings))
    print(orjson.dumps(spent | {"all": times[-1] - times[0]}).decode())


def time_calls(owner: type[Any], name: str, spent: dict[str, float], stage: str) -> None:
    """Add the time of every call of a method to its stage; of a poll, only if it returns something."""
    plain = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        found = plain(*args, **kwargs)
        if stage != "poll" or found:
            spent[stage] += time.perf_counter() - started
        return found

    setattr(owner, name, timed)


def stop_at(count: int) -> list[float]:
    """Send this process SIGTERM when so many messages are learned; returns the times of the batches."""
    times: list[float] = []
    plain = WorkerMetrics.notify
    seen = 0

    def notify(self: WorkerMetrics, event: MemberEvent) -> None:
        nonlocal seen
        plain(self, event)
        if isinstance(event, BatchLearned):
            seen += event.messages
            times.append(time.perf_counter())
            if seen >= count:
                threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM)).start()

    WorkerMetrics.notify = notify  # type: ignore[method-assign]
    return times


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(orjson.loads(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
