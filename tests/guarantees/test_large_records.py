"""A real worker under the memory limit that it is shipped with, on records that become large when decoded."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.formats.structured import stream
from tests.guarantees.harness import group
from tests.guarantees.worker_process import WorkerProcess
from tests.kafka_broker import Broker

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

LIMIT_MIB = 512  # docker-compose.yml and helm
MIB = 2**20
WIDE = 128  # dimensions: fewer vectors a MiB, which are learned sooner


def arrow(rows: np.ndarray, batches: int = 1) -> bytes:
    return stream(pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), WIDE), "zstd", batches)


def peak_mib(worker: WorkerProcess) -> float:
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


@pytest.mark.parametrize("client", ["kafka-python", "confluent"])
def test_a_small_record_that_becomes_large_is_rejected(broker: Broker, topic: str, tmp_path: Path, client: str) -> None:
    zeros = np.zeros((MIB // 8 // WIDE * 8, WIDE))  # 8 MiB
    good = [arrow(row[None]) for row in np.random.default_rng(2).standard_normal((300, WIDE))]
    large = [arrow(zeros)] * 60 + [arrow(zeros, 3)] * 12  # 480 MiB, and 12 times 24 MiB, all allowed
    bomb = arrow(zeros, 128)
    assert len(bomb) < 200_000
    dead = broker.create_topic(f"{topic}-dead", 1)
    broker.create_topic(topic, 1)
    broker.produce(topic, 0, [*good, bomb, *large, bomb])
    settings = {"dead_letter_topic": dead, "dimensions": WIDE, "format": "arrow", "field": "v"}
    with group(broker, topic, tmp_path, [client], False, **settings) as members:
        worker = members.start()
        members.wait_until_learned(120)
        assert peak_mib(worker) < LIMIT_MIB
        stats = members.newest()[0].fold.stats
    assert dict(stats.rejected) == {"too_many_bytes": 2}
    assert stats.learned == len(good) + len(zeros) * (60 + 12 * 3)
    assert [record.value for record in broker.read_all(dead)] == [bomb, bomb]
