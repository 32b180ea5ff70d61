"""The memory of a worker over a million messages, from a real broker: `python -m benchmarks.memory`.

Prints the resident memory of the worker process at every tenth of the stream, as a markdown table.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from tests.guarantees.harness import Group, group
from tests.kafka_broker import Broker, wait_until

D, K, PARTITIONS, BATCH = 64, 8, 4, 50_000


def main() -> None:
    """Fill a topic, let one worker learn it, and look at its memory meanwhile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    messages = parser.parse_args().messages
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "broker") as broker:
        broker.create_topic("memory", PARTITIONS)
        settings = {"dimensions": D, "components": K, "format": "float32", "checkpoint_interval_s": 1}
        with group(broker, "memory", Path(folder) / "work", log_level="info", **settings) as members:
            print(f"d={D}, k={K}, {PARTITIONS} partitions, raw float32, one worker\n")
            print("| messages learned | resident memory, MiB |\n|---|---|")
            members.start()
            for tenth in range(10):
                produce(broker, messages // 10, seed=tenth)
                members.wait_until_learned(600)
                print(f"| {learned(members):,} | {resident_mib(members):.1f} |", flush=True)


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
    return sum(checkpoint.fold.tally.learned for checkpoint in members.newest().values())


def resident_mib(members: Group) -> float:
    """VmRSS of the worker."""
    status = Path(f"/proc/{members.workers[0].process.pid}/status")
    found = wait_until(lambda: [line for line in status.read_text().splitlines() if line.startswith("VmRSS")])
    return int(found[0].split()[1]) / 1024


if __name__ == "__main__":
    main()
