"""The memory of a worker, from a real broker: `python -m benchmarks.memory`.

First over a million messages, at every tenth of the stream. Then under a flood, a topic that holds far more than the
worker can learn at once, with 1, 8 and 64 partitions: its peak beside what the arithmetic says. Resident memory of the
process, as the kernel tells it. Writes benchmarks/results/memory.md.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.bars import RESULTS, Bar, record
from benchmarks.daemon import Load, fill
from benchmarks.machine import machine
from streampca.pca.learning import BLOCK
from tests.guarantees.harness import Group, group
from tests.kafka_broker import Broker, wait_until

PART, D, K, PARTITIONS, BATCH = "memory", 64, 8, 4, 50_000
FLOOD_D, FLOOD_K, COLUMNS = 3072, 20, 30
FLOODS = (1, 8, 64)
MIB = 1 << 20


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--flood", type=int, default=60_000)
    given = parser.parse_args()
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "broker") as broker:
        lines = over_time(broker, Path(folder), given.messages, bars)
        lines += ["", *under_floods(broker, Path(folder), given.flood, bars)]
    head = "# Memory of a worker\n\nMade by `python -m benchmarks.memory`.\n\n"
    (RESULTS / f"{PART}.md").write_text(head + "\n".join(lines) + f"\n\n{machine()}\n")
    record(PART, bars)


def over_time(broker: Broker, folder: Path, messages: int, bars: list[Bar]) -> list[str]:
    """Resident memory at each tenth."""
    broker.create_topic("memory", PARTITIONS)
    settings = {"dimensions": D, "components": K, "format": "float32", "checkpoint_interval_s": 1}
    lines = [f"Over time: d = {D}, k = {K}, {PARTITIONS} partitions, raw float32, one worker.", ""]
    lines += ["| messages learned | resident, MiB |", "|---|---|"]
    sizes: list[float] = []
    with group(broker, "memory", folder / "time", log_level="info", **settings) as members:
        members.start()
        for tenth in range(10):
            produce(broker, messages // 10, seed=tenth)
            members.wait_until_learned(600)
            sizes.append(resident(members, "VmRSS"))
            lines.append(f"| {learned(members):,} | {sizes[-1]:.1f} |")
            print(lines[-1], flush=True)
    bars.append(Bar(PART, "growth over the last half of a million messages", sizes[-1] - sizes[4], "≤", 5, "MiB"))
    return lines


def under_floods(broker: Broker, folder: Path, messages: int, bars: list[Bar]) -> list[str]:
    """The peak, and what it should be."""
    lines = [
        f"Under a flood: d = {FLOOD_D}, k = {FLOOD_K}, {messages:,} messages ({messages * FLOOD_D * 4 // MIB:,} MiB).",
        "",
    ]
    lines += [
        "| partitions | before the first message, MiB | peak, MiB | of it folds, by arithmetic, MiB |",
        "|---|---|---|---|",
    ]
    peaks: dict[int, float] = {}
    for partitions in FLOODS:
        before, peaks[partitions] = flood(broker, folder, partitions, messages)
        lines.append(f"| {partitions} | {before:.0f} | {peaks[partitions]:.0f} | {folds(partitions):.0f} |")
        print(lines[-1], flush=True)
    growth = peaks[FLOODS[-1]] - peaks[FLOODS[0]]
    most = 1.5 * (folds(FLOODS[-1]) - folds(FLOODS[0])) + 50
    bars.append(Bar(PART, "64 partitions beside 1, under a flood: more memory", growth, "≤", round(most), "MiB"))
    return lines


def folds(partitions: int) -> float:
    """MiB of what is kept of so many partitions: C now, as saved, and as being saved; C† and bytes of one; pending."""
    factor, pending = FLOOD_D * COLUMNS * 8, BLOCK * FLOOD_D * 8
    return (partitions * (3 * factor + 2 * pending) + 4 * factor) / MIB


def flood(broker: Broker, folder: Path, partitions: int, messages: int) -> tuple[float, float]:
    """Resident memory in MiB when the worker has its partitions, and its peak until everything is learned."""
    topic = f"flood-{partitions}"
    broker.create_topic(topic, partitions)
    settings = {"dimensions": FLOOD_D, "components": FLOOD_K, "format": "float32", "checkpoint_interval_s": 5}
    with group(broker, topic, folder / topic, log_level="info", **settings) as members:
        worker = members.start()
        wait_until(lambda: worker.count("partitions assigned"), 60, "its partitions")
        before = resident(members, "VmRSS")
        fill(broker, Load("float32", FLOOD_D, FLOOD_K, messages, topic), messages, partitions)
        members.wait_until_learned(600)
        return before, resident(members, "VmHWM")


def produce(broker: Broker, count: int, seed: int) -> None:
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
