"""Seconds without learning while workers restart, one after the other: `python -m benchmarks.restart`.

Three workers share six partitions of a real broker, to which messages are sent all the time. Each worker is stopped by
SIGTERM, or killed, and started again at once; the next one when all partitions are learned again. A figure is the
longest time between two checkpoints of a partition, of those of the worker that restarts or of those of the others.
The workers save five times a second; the other settings are the defaults.
"""

import itertools
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
from confluent_kafka import Producer

from benchmarks.report import publish
from benchmarks.workers import CLIENTS, broker_of, owned, parser_with_broker
from experiments.report import table
from tests.background import every
from tests.broker_client import BrokerClient
from tests.guarantees.harness import Group, group, vectors
from tests.guarantees.worker_process import WorkerProcess

PART, WORKERS, PARTITIONS = "restart", 3, 6
SEND_INTERVAL_S, SETTLED_S, TIMEOUT_S = 0.05, 2.0, 120.0
SESSION_TIMEOUT_S = 15  # the default


def main() -> None:
    """Measure and write."""
    given = parser_with_broker(__doc__).parse_args()
    cases = [(cause, named) for cause in ("SIGTERM", "kill -9") for named in (False, True)]
    clients = CLIENTS[:1] if given.smallest else CLIENTS
    rows: list[list[str]] = []
    with broker_of(given) as broker, tempfile.TemporaryDirectory() as folder:
        for cause, named in cases[1:2] if given.smallest else cases:
            cells = [cause, "one each" if named else "none"]
            for client in clients:
                topic = broker.create_topic(f"restart-{len(rows)}-{client}", PARTITIONS)
                settings = {"session_timeout_s": SESSION_TIMEOUT_S}
                with (
                    group(broker, topic, Path(folder) / topic, [client], False, **settings) as members,
                    sending(broker, topic),
                ):
                    count = 1 if given.smallest else WORKERS
                    own, others = rolling_restart(members, count, kill=cause != "SIGTERM", named=named)
                cells += [f"{own:.1f}", f"{others:.1f}"]
            rows.append(cells)
            print(cells, flush=True)
    head = [f"{client}, {whose} s" for client in clients for whose in ("own,", "others',")]
    publish(PART, given, table(["stopped by", "`group_instance_id`", *head], rows))


def rolling_restart(members: Group, restarts: int, *, kill: bool, named: bool) -> tuple[float, float]:
    """The longest times without learning: of the partitions of the worker that restarts, and of the others."""

    def start(number: int) -> WorkerProcess:
        return members.start(**({"group_instance_id": f"worker-{number}"} if named else {}))

    workers, longest = [start(number) for number in range(WORKERS)], (0.0, 0.0)
    gaps = Gaps(members)
    with every(0.02, gaps.look):
        for number, worker in enumerate(workers[:restarts]):
            gaps.wait_until_all_learn()
            own = owned(worker)
            gaps.begin()
            (worker.kill if kill else worker.stop)()
            start(number)
            gaps.wait_until_all_learn()
            of_own = max(gap for p, gap in gaps.longest.items() if p in own)
            of_others = max(gap for p, gap in gaps.longest.items() if p not in own)
            longest = max(longest[0], of_own), max(longest[1], of_others)
    return longest


class Gaps:
    """The longest times that the checkpoints of each partition stood still."""

    def __init__(self, members: Group) -> None:
        self._members, self._lock, self._positions = members, threading.Lock(), dict[int, int]()
        self.begin()

    def begin(self) -> None:
        """Forget the times so far."""
        now = time.monotonic()
        with self._lock:
            self.longest = dict.fromkeys(range(PARTITIONS), 0.0)
            self._moved_at = dict.fromkeys(range(PARTITIONS), now)

    def look(self) -> None:
        """Compare the newest checkpoints with those of the last look."""
        now, positions = time.monotonic(), self._members.positions()
        with self._lock:
            for partition in range(PARTITIONS):
                self.longest[partition] = max(self.longest[partition], now - self._moved_at[partition])
                if positions.get(partition, 0) > self._positions.get(partition, 0):
                    self._moved_at[partition] = now
        self._positions = positions

    def wait_until_all_learn(self) -> None:
        """Wait until every partition has moved in each second for some time."""
        since = deadline = time.monotonic()
        while time.monotonic() - since < SETTLED_S:
            time.sleep(0.05)
            if time.monotonic() - deadline > TIMEOUT_S:
                raise TimeoutError(f"not all partitions are learned: {self.longest}")
            with self._lock:
                oldest = min(self._moved_at.values())
            if time.monotonic() - oldest > 1 or oldest < deadline:
                since = time.monotonic()


@contextmanager
def sending(broker: BrokerClient, topic: str) -> Iterator[None]:
    """Send a message to each partition every 50 ms."""
    values = itertools.cycle([orjson.dumps(row.tolist()) for row in vectors(1000, seed=1)])
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})

    def send() -> None:
        value = next(values)
        for partition in range(PARTITIONS):
            producer.produce(topic, value, partition=partition)
        producer.poll(0)

    with every(SEND_INTERVAL_S, send):
        yield
    producer.flush(10)


if __name__ == "__main__":
    main()
