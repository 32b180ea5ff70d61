"""`streampca produce`: sends the rows of a file to a topic, one message per row."""

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

from kafka import KafkaProducer
from kafka.errors import KafkaError

from streampca.cli.console import console, progress
from streampca.cli.encoding import encoder
from streampca.errors import InputError, SourceError
from streampca.files.rows import Rows, open_rows
from streampca.files.synthetic import LowRank
from streampca.pca.arrays import Array
from streampca.settings.commands import ProduceSettings
from streampca.sources.kafka_python.connection import Connection

_ACKNOWLEDGED_WITHIN_S = 60.0
_TICK_S = 0.02


def run(
    settings: ProduceSettings,
    file: Path | None,
    rate: float | None,
    column: str | None,
    *,
    repeat: bool,
    synthetic: bool,
) -> None:
    """Send the rows of the file, or generated ones endlessly, and wait until all are acknowledged.

    Raises `InputError` or `SourceError`.
    """
    if (file is not None) == synthetic:
        raise InputError("give either a file to send or --synthetic")
    rows = open_rows(file, column=column) if file else LowRank().rows()
    sender = _Sender(settings)
    started = time.monotonic()
    try:
        with progress() as bar:
            task = bar.add_task(f"to {settings.topic}", total=None if repeat or synthetic else 1.0, rows=0, note="")
            for vector, share in _paced(_rows(rows, repeat), rate):
                sender.send(vector)
                if sender.sent % 256 == 0:
                    per_s = sender.sent / max(time.monotonic() - started, 1e-9)
                    bar.update(task, completed=share, rows=sender.sent, note=f"{per_s:,.0f} per second")
            sender.flush()
            bar.update(task, completed=1.0, rows=sender.sent)
    finally:
        sender.close()
    seconds = time.monotonic() - started
    console().print(
        f"sent {sender.sent:,} messages of {rows.dimensions} dimensions to {settings.topic} in {seconds:.1f} s"
    )


def _rows(rows: Rows, repeat: bool) -> Iterator[tuple[Array, float]]:
    for _ in itertools.count() if repeat else range(1):
        for piece, share in rows.pieces():
            for vector in piece:
                yield vector, share


def _paced(rows: Iterator[tuple[Array, float]], rate: float | None) -> Iterator[tuple[Array, float]]:
    """The same rows, the n-th no earlier than n/rate seconds after the first."""
    started = time.monotonic()
    for n, row in enumerate(rows):
        while rate is not None and (ahead := n / rate - (time.monotonic() - started)) > 0:
            time.sleep(max(ahead, _TICK_S) if ahead < 1 else 1)
        yield row


class _Sender:
    """Sends vectors to the partitions in turn and raises the first failure."""

    def __init__(self, settings: ProduceSettings) -> None:
        self._connection, self._topic = Connection(settings, settings.topic), settings.topic
        self._encode = encoder(settings, settings.topic)
        self._failure: BaseException | None = None
        self.sent = 0
        self._producer = self._connection.start(KafkaProducer, acks="all", linger_ms=20)
        self._partitions = itertools.cycle(sorted(self._producer.partitions_for(self._topic)))

    def send(self, vector: Array) -> None:
        """Send one vector; blocks while the client's buffer is full."""
        try:
            sent = self._producer.send(self._topic, self._encode(vector), partition=next(self._partitions))
        except KafkaError as error:
            raise self._connection.source_error(error) from None
        sent.add_errback(self._failed)
        self.sent += 1
        self._raise_failure()

    def flush(self) -> None:
        """Wait until every message is acknowledged."""
        try:
            self._producer.flush(_ACKNOWLEDGED_WITHIN_S)
        except KafkaError:
            raise SourceError(
                f"the broker has not acknowledged every message within {_ACKNOWLEDGED_WITHIN_S:.0f} s; "
                "some may be missing from the topic"
            ) from None
        self._raise_failure()

    def close(self) -> None:
        """Close without waiting for acknowledgements."""
        self._producer.close(timeout=1)

    def _failed(self, error: BaseException) -> None:
        self._failure = self._failure or error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._connection.source_error(self._failure) from None
