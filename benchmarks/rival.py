"""What one would write by hand instead of a worker: learn 1,000 rows at once, save every five seconds.

`python -m benchmarks.rival BOOTSTRAP TOPIC GROUP DIMENSIONS COMPONENTS FILE` prints how many messages it has learned.
After a crash it learns some messages twice, and it has no answer to a bad record.
"""

import sys
import time

import joblib
import numpy as np
from confluent_kafka import Consumer
from sklearn.decomposition import IncrementalPCA

BATCH, SAVE_EVERY_S = 1000, 5.0


def main(bootstrap: str, topic: str, group: str, dimensions: int, components: int, file: str) -> None:
    """Learn until the process is ended."""
    options = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer(options | {"auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    pca = IncrementalPCA(components)
    values: list[bytes] = []
    learned, saved_at = 0, time.monotonic()
    while True:
        messages = consumer.consume(BATCH - len(values), timeout=0.2)
        values += [message.value() or b"" for message in messages if not message.error()]
        if len(values) < BATCH:
            continue
        pca.partial_fit(np.frombuffer(b"".join(values), "<f4").reshape(BATCH, dimensions))
        values = []
        learned += BATCH
        print(learned, flush=True)
        if time.monotonic() - saved_at >= SAVE_EVERY_S:
            joblib.dump(pca, file)
            consumer.commit(asynchronous=False)
            saved_at = time.monotonic()


if __name__ == "__main__":
    _, bootstrap, topic, group, dimensions, components, file = sys.argv
    main(bootstrap, topic, group, int(dimensions), int(components), file)
