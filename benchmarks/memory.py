"""The resident memory of a worker, on a real broker: `python -m benchmarks.memory`.

First over a million messages, at every tenth of the stream. Then with a backlog, a topic that holds far more than the
worker can learn at once, with 1, 8 and 64 partitions: its peak beside the memory of the folds by arithmetic.
"""

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.report import Bar, publish
from benchmarks.workers import Load, broker_of, fill, parser_with_broker
from experiments.report import table
from streampca.pca.learning import BLOCK
from tests.broker_client import BrokerClient
from tests.guarantees.harness import Group, group
from tests.kafka_broker import wait_until

PART, D, K, PARTITIONS, BATCH = "memory", 64, 8, 4, 50_000
BACKLOG_D, BACKLOG_K, COLUMNS = 3072, 20, 30
MIB = 1 << 20


class Size(NamedTuple):
    """What is measured."""

    messages: int  # over time
    samples: int  # of the memory over time
    backlog: int  # messages
    partitions: tuple[int, ...]  # with a backlog
    checkpoint_interval_s: float  # with a backlog


FULL, SMALLEST = Size(1_000_000, 10, 60_000, (1, 8, 64), 5.0), Size(5000, 2, 500, (1, 2), 0.5)
SHOWN = (0, 4, 9)  # samples in the table


def main() -> None:
    """Measure and write."""
    given = parser_with_broker(__doc__).parse_args()
    size = SMALLEST if given.smallest else FULL
    with tempfile.TemporaryDirectory() as folder, broker_of(given) as broker:
        lines, growth = over_time(broker, Path(folder), size)
        more, extra = with_backlogs(broker, Path(folder), size)
    publish(PART, given, [*lines, "", *more], [growth, extra])


def over_time(broker: BrokerClient, folder: Path, size: Size) -> tuple[list[str], Bar]:
    """Resident memory at some tenths of the messages."""
    broker.create_topic("memory", PARTITIONS)
    settings: dict[str, Any] = {"dimensions": D, "components": K, "format": "float32", "checkpoint_interval_s": 1}
    sizes: list[float] = []
    rows: list[list[str]] = []
    with group(broker, "memory", folder / "time", forked=False, log_level="info", **settings) as members:
        members.start()
        for tenth in range(size.samples):
            produce(broker, size.messages // size.samples, seed=tenth)
            members.wait_until_learned(600)
            sizes.append(resident(members, "VmRSS"))
            rows.append([f"{learned(members):,}", f"{sizes[-1]:.1f}"])
            print(rows[-1], flush=True)
    growth = sizes[-1] - sizes[size.samples // 2 - 1]
    lines = table(["messages learned", "resident, MiB"], [rows[i] for i in SHOWN if i < len(rows)])
    return lines, Bar(f"Memory growth over the last half of {size.messages:,} messages", [growth], "≤", 5, "MiB")


def with_backlogs(broker: BrokerClient, folder: Path, size: Size) -> tuple[list[str], Bar]:
    """The peak for each number of partitions, and the folds' part of it."""
    rows: list[list[str]] = []
    peaks: list[float] = []
    for partitions in size.partitions:
        before, peak = backlog(broker, folder, partitions, size)
        peaks.append(peak)
        rows.append([str(partitions), f"{before:.0f}", f"{peak:.0f}", f"{folds(partitions):.0f}"])
        print(rows[-1], flush=True)
    few, many = size.partitions[0], size.partitions[-1]
    limit = round(1.5 * (folds(many) - folds(few)) + 50)
    lines = table(["partitions", "at the start, MiB", "peak, MiB", "folds, by arithmetic, MiB"], rows)
    return lines, Bar(f"Extra memory of {many} partitions with a backlog", [peaks[-1] - peaks[0]], "≤", limit, "MiB")


def folds(partitions: int) -> float:
    """MiB of the folds of so many partitions: C now, saved and being saved; C† and bytes of one; pending vectors."""
    factor, pending = BACKLOG_D * COLUMNS * 8, BLOCK * BACKLOG_D * 8
    return (partitions * (3 * factor + 2 * pending) + 4 * factor) / MIB


def backlog(broker: BrokerClient, folder: Path, partitions: int, size: Size) -> tuple[float, float]:
    """Resident memory in MiB when the worker has its partitions, and its peak until all is learned."""
    topic = f"backlog-{partitions}"
    broker.create_topic(topic, partitions)
    settings: dict[str, Any] = {
        "dimensions": BACKLOG_D, "components": BACKLOG_K, "format": "float32", "log_level": "info",
        "checkpoint_interval_s": size.checkpoint_interval_s,
    }  # fmt: skip
    with group(broker, topic, folder / topic, forked=False, **settings) as members:
        worker = members.start()
        members.wait(lambda: worker.count("partitions assigned"), "the partitions", 120)
        before = resident(members, "VmRSS")
        fill(broker, Load("float32", BACKLOG_D, BACKLOG_K, size.backlog, topic), partitions)
        members.wait_until_learned(600)
        return before, resident(members, "VmHWM")


def produce(broker: BrokerClient, count: int, seed: int) -> None:
    """`count` more messages, evenly over the partitions."""
    rng = np.random.default_rng(seed)
    plane = np.random.default_rng(0).standard_normal((K, D))
    for start in range(0, count, BATCH):
        size = min(BATCH, count - start)
        rows = (rng.standard_normal((size, K)) @ plane + rng.standard_normal((size, D))).astype(np.float32)
        for partition, share in enumerate(np.array_split(rows, PARTITIONS)):
            broker.produce("memory", partition, [row.tobytes() for row in share])


def learned(members: Group) -> int:
    """Messages in the newest checkpoints."""
    return sum(checkpoint.fold.stats.learned for checkpoint in members.newest().values())


def resident(members: Group, kind: str) -> float:
    """MiB of the worker: VmRSS now, VmHWM at its peak."""
    status = Path(f"/proc/{members.workers[0].process.pid}/status")
    found = wait_until(lambda: [line for line in status.read_text().splitlines() if line.startswith(kind)])
    return int(found[0].split()[1]) / 1024


if __name__ == "__main__":
    main()
