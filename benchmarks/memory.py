"""The resident memory of every role, on a real broker: `python -m benchmarks.memory`.

First for ten minutes in which a worker, `transform` with each client and a sidecar are never idle: each has messages to
read, or a request to answer, all the time. Then of a worker with a backlog, a topic that holds far more than it can
learn at once, with 1, 8 and 64 partitions: its peak beside the memory of the folds by arithmetic.
"""

import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import orjson

from benchmarks import workers
from benchmarks.report import Bar, publish
from benchmarks.transform import WRITTEN, transforming
from experiments.report import table
from streampca.pca.learning_config import SHORT_BLOCK
from tests.broker_client import BrokerClient
from tests.sidecar.process import SidecarProcess
from tests.waiting import every, wait_until

PART, D, K = "memory", 784, 20
VECTORS = orjson.dumps({"vectors": np.random.default_rng(0).standard_normal((256, D)).round(6).tolist()})
BACKLOG_D, BACKLOG_K, COLUMNS = 3072, 20, 30
MIB = 1 << 20


class Size(NamedTuple):
    """What is measured."""

    seconds: float  # over time
    samples: int  # of the memory over time
    batch: int  # messages that are produced at once
    backlog: int  # messages
    partitions: tuple[int, ...]  # with a backlog
    interval_s: float  # of checkpoints, with a backlog


FULL, SMALLEST = Size(600.0, 20, 20_000, 60_000, (1, 8, 64), 5.0), Size(4.0, 2, 1000, 500, (1, 2), 0.5)


def main() -> None:
    """Measure and write."""
    options = workers.parser_with_broker(__doc__).parse_args()
    size = SMALLEST if options.smallest else FULL
    with tempfile.TemporaryDirectory() as folder, workers.broker_of(options) as broker:
        lines, growth = over_time(broker, Path(folder), size)
        more, extra = with_backlogs(broker, size)
    publish(PART, options, [*lines, "", *more], [growth, extra])


def over_time(broker: BrokerClient, folder: Path, size: Size) -> tuple[list[str], Bar]:
    """Resident memory of every role at some of the samples, while all are busy."""
    load, logs = workers.Load("json", D, K, size.batch, "busy"), {c: folder / f"{c}.log" for c in workers.CLIENTS}
    broker.create_topic(load.topic, workers.PARTITIONS, segment_bytes=64 * MIB)
    with ExitStack() as stack:
        members = stack.enter_context(workers.group_of(broker, load, workers.CLIENTS[0]))
        worker = members.start()
        sidecar = stack.enter_context(SidecarProcess(members.store, forked=False, topic=load.topic))
        pids = {"worker": worker.process.pid, "sidecar": sidecar.process.pid}
        for client in workers.CLIENTS:
            output = broker.create_topic(f"busy-{client}", workers.PARTITIONS)
            process = stack.enter_context(transforming(broker, load, client, members.store, output, logs[client]))
            pids[f"transform, {client}"] = process.pid
        produced = fill_up_to(broker, load, 0, load.messages)
        done = {workers.metrics_url(log): WRITTEN for log in logs.values()}
        done[workers.metrics_url(worker.log)] = workers.LEARNED
        members.wait(lambda: slowest(done) == load.messages, "all to have begun", 120)
        url = f"{sidecar.wait_for_url()}/v1/project"
        stack.enter_context(every(0.0, partial(httpx.post, url, content=VECTORS, timeout=60)))
        samples: list[list[float]] = []
        for _ in range(size.samples):
            until = time.monotonic() + size.seconds / size.samples
            while time.monotonic() < until:
                produced = fill_up_to(broker, load, produced, slowest(done) + 2 * load.messages)
            samples.append([resident(pid, "VmRSS") for pid in pids.values()])
            print(slowest(done), samples[-1], flush=True)
    shown = (0, size.samples // 2 - 1, size.samples - 1)
    rows = [[role, *(f"{samples[i][j]:.0f}" for i in shown)] for j, role in enumerate(pids)]
    head = ["role", *(f"MiB after {(i + 1) * size.seconds / size.samples / 60:.3g} min" for i in shown)]
    growth = [last - middle for last, middle in zip(samples[-1], samples[shown[1]], strict=True)]
    metric = f"Memory growth of any role over the last half of {size.seconds / 60:.2g} minutes"
    return table(head, rows), Bar(metric, growth, "≤", 5, "MiB")


def fill_up_to(broker: BrokerClient, load: workers.Load, produced: int, total: int) -> int:
    """Produce a batch if fewer than `total` messages were produced; return their number. Deletes what all have read.

    Sixteen batches are left: even if all that is to be read were in one partition, it would be among these.
    """
    if produced >= total:
        time.sleep(0.05)
        return produced
    workers.fill(broker, load)
    if (read := (produced - 16 * load.messages) // workers.PARTITIONS) > 0:
        for partition in range(workers.PARTITIONS):
            broker.delete_records(load.topic, partition, read)
    return produced + load.messages


def slowest(done: dict[str, str]) -> int:
    """Messages that every process has done, by its metrics."""
    return min(workers.counted(url, series) for url, series in done.items())


def with_backlogs(broker: BrokerClient, size: Size) -> tuple[list[str], Bar]:
    """The peak for each number of partitions, and the folds' part of it."""
    rows, peaks = [], []
    for partitions in size.partitions:
        before, peak = backlog(broker, partitions, size)
        peaks.append(peak)
        rows.append([str(partitions), f"{before:.0f}", f"{peak:.0f}", f"{folds(partitions):.0f}"])
        print(rows[-1], flush=True)
    few, many = size.partitions[0], size.partitions[-1]
    limit = round(1.5 * (folds(many) - folds(few)) + 50)
    lines = table(["partitions", "at the start, MiB", "peak, MiB", "folds, by arithmetic, MiB"], rows)
    return lines, Bar(f"Extra memory of {many} partitions with a backlog", [peaks[-1] - peaks[0]], "≤", limit, "MiB")


def folds(partitions: int) -> float:
    """MiB of the partitions' folds: C now, saved and being saved; C† and bytes of one; pending vectors."""
    factor, pending = BACKLOG_D * COLUMNS * 8, SHORT_BLOCK * BACKLOG_D * 8
    return (partitions * (3 * factor + 2 * pending) + 4 * factor) / MIB


def backlog(broker: BrokerClient, partitions: int, size: Size) -> tuple[float, float]:
    """Resident memory in MiB when the worker has its partitions, and its peak until all is learned."""
    load = workers.Load("float32", BACKLOG_D, BACKLOG_K, size.backlog, f"backlog-{partitions}")
    broker.create_topic(load.topic, partitions)
    with workers.group_of(broker, load, workers.CLIENTS[0], checkpoint_interval_s=size.interval_s) as members:
        worker = members.start()
        members.wait(lambda: worker.count("partitions assigned"), "the partitions", 120)
        before = resident(worker.process.pid, "VmRSS")
        workers.fill(broker, load, partitions)
        members.wait_until_learned(600)
        return before, resident(worker.process.pid, "VmHWM")


def resident(pid: int, kind: str) -> float:
    """MiB of a process: VmRSS now, VmHWM at its peak."""
    status = Path(f"/proc/{pid}/status")
    lines = wait_until(lambda: [line for line in status.read_text().splitlines() if line.startswith(kind)])
    return int(lines[0].split()[1]) / 1024


if __name__ == "__main__":
    main()
