"""Seconds without learning while workers restart, one after the other: `python -m benchmarks.restart`.

Three workers share six partitions of a real broker, to which messages are sent all the time. Each worker is stopped by
SIGTERM, or killed, and started again at once; the next one when all partitions are learned again. A figure is the
longest time between two checkpoints of a partition, for partitions of the worker that restarts or of the others.
The workers save five times a second; the other settings are the defaults.
"""

import itertools
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
from confluent_kafka import Producer

from benchmarks.report import publish
from benchmarks.workers import CLIENTS, broker_of, owned, parser_with_broker
from experiments.report import table
from tests.broker_client import BrokerClient
from tests.guarantees.harness import Group, group, vectors
from tests.guarantees.worker_process import WorkerProcess
from tests.waiting import every, wait_until

PART, WORKERS, PARTITIONS = "restart", 3, 6
SEND_INTERVAL_S, SETTLED_S, TIMEOUT_S = 0.05, 3.0, 120.0
Look = tuple[float, dict[int, int]]  # a time, and the position of each partition's newest checkpoint
SESSION_TIMEOUT_S = 15  # the default


def main() -> None:
    """Measure and write."""
    options = parser_with_broker(__doc__).parse_args()
    cases = [(cause, named) for cause in ("SIGTERM", "kill -9") for named in (False, True)]
    clients = CLIENTS[:1] if options.smallest else CLIENTS
    rows: list[list[str]] = []
    with broker_of(options) as broker, tempfile.TemporaryDirectory() as folder:
        for cause, named in cases[1:2] if options.smallest else cases:
            cells = [cause, "one each" if named else "none"]
            for client in clients:
                topic = broker.create_topic(f"restart-{len(rows)}-{client}", PARTITIONS)
                settings = {"session_timeout_s": SESSION_TIMEOUT_S}
                with (
                    group(broker, topic, Path(folder) / topic, [client], False, **settings) as members,
                    sending(broker, topic),
                ):
                    count = 1 if options.smallest else WORKERS
                    own, others = rolling_restart(members, count, kill=cause != "SIGTERM", named=named)
                cells += [f"{own:.1f}", f"{others:.1f}"]
            rows.append(cells)
            print(cells, flush=True)
    head = [f"{client}, {whose} s" for client in clients for whose in ("own,", "others',")]
    publish(PART, options, table(["stopped by", "`group_instance_id`", *head], rows))


def rolling_restart(members: Group, restarts: int, *, kill: bool, named: bool) -> tuple[float, float]:
    """The longest times without learning: of the partitions of the worker that restarts, and of the others."""

    def start(number: int) -> WorkerProcess:
        return members.start(**({"group_instance_id": f"worker-{number}"} if named else {}))

    workers, longest = [start(number) for number in range(WORKERS)], (0.0, 0.0)
    members.wait(lambda: all(len(owned(w)) == PARTITIONS // WORKERS for w in workers), "the partitions", TIMEOUT_S)
    looks: list[Look] = []
    with every(0.02, lambda: looks.append((time.monotonic(), members.positions()))):
        for number, worker in enumerate(workers[:restarts]):
            wait_until_all_learn(looks)
            own, first = owned(worker), len(looks) - 1
            (worker.kill if kill else worker.stop)()
            start(number)
            wait_until_all_learn(looks)
            gaps = gaps_between(looks[first:])
            of_own, of_others = ([gaps[p] for p in gaps if (p in own) == mine] for mine in (True, False))
            longest = max(longest[0], *of_own), max(longest[1], *of_others)
    return longest


def wait_until_all_learn(looks: list[Look]) -> None:
    """Wait until, for some time from now on, the checkpoints of every partition have moved in each second."""
    began = time.monotonic()

    def settled() -> bool:
        recent = [look for look in looks if look[0] >= max(began, time.monotonic() - SETTLED_S)]
        return time.monotonic() - began > SETTLED_S and len(recent) > 1 and max(gaps_between(recent).values()) < 1

    wait_until(settled, TIMEOUT_S, "all partitions to be learned")


def gaps_between(looks: list[Look]) -> dict[int, float]:
    """The longest time for which the checkpoints of each partition stood still."""
    gaps = {}
    for p in range(PARTITIONS):
        moves = [now for (_, before), (now, after) in itertools.pairwise(looks) if after.get(p, 0) > before.get(p, 0)]
        times = [looks[0][0], *moves, looks[-1][0]]
        gaps[p] = max(after - before for before, after in itertools.pairwise(times))
    return gaps


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
