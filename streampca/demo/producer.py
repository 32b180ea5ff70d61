"""The demo's producer: a thread that sends vectors at a given rate, limited by what the broker retains."""

import threading
import time
from collections.abc import Callable

from streampca.demo import broker
from streampca.errors import StreampcaError
from streampca.vectors.synthetic import VectorStream

_TICK_S = 0.05
_RECORD_OVERHEAD = 100  # bytes beside the value, an upper bound


class DemoProducer:
    """Sends raw float32 vectors to the partitions in turn until it is stopped."""

    def __init__(self, vectors: VectorStream, address: str, topic: str, partitions: int, rate: float) -> None:
        self.vectors, self._topic, self._partitions, self._rate = vectors, topic, partitions, rate
        self._producer = broker.client({"bootstrap.servers": address, "linger.ms": 20})
        self._max_backlog = broker.RETAINED_BYTES // 2 // (4 * vectors.dimensions + _RECORD_OVERHEAD)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer")
        self.sent = 0
        self.error: StreampcaError | None = None

    def start(self, learned: Callable[[], int]) -> None:
        """Start sending; `learned` returns the number of messages that the worker has learned."""
        self._learned = learned
        self._thread.start()

    def stop(self) -> None:
        """Stop sending and join the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._send_all()
        except StreampcaError as error:  # a row of the user's file is not a vector
            self.error = error
        self._producer.flush(2)

    def _send_all(self) -> None:
        due = 0.0
        before = time.monotonic()
        for piece in self.vectors.pieces():
            for vector in piece:
                while due < 1:
                    if self._stopping.wait(_TICK_S):
                        return
                    now = time.monotonic()
                    due, before = min(due + (now - before) * self._rate, self._allowed()), now
                self._send(vector.tobytes())
                due -= 1

    def _allowed(self) -> float:
        return min(self._rate, self._learned() + self._max_backlog - self.sent)

    def _send(self, value: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, partition=self.sent % self._partitions)
            except BufferError:  # the client's queue is full
                self._producer.poll(_TICK_S)
                continue
            self._producer.poll(0)
            self.sent += 1
            return
