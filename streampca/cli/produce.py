"""`streampca produce`: sends the rows of a file to a topic, one message per row."""

import itertools
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from streampca.cli.console import console, print_notes, progress
from streampca.errors import InputError, SettingsError, SourceError
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from streampca.files.rows import Rows
from streampca.files.synthetic import generate_rows
from streampca.formats.base import Layout
from streampca.settings.commands import ProduceSettings
from streampca.settings.field_paths import names_of, paths_of
from streampca.sources.clients import create_producer
from streampca.sources.schema_registry import create_writer

_ACKNOWLEDGED_WITHIN_S = 60.0
_SHORTEST_SLEEP_S = 0.02  # shorter sleeps would take much of the processor at high rates
_LONGEST_SLEEP_S = 1.0


def run(
    settings: ProduceSettings,
    file: Path | None,
    rate: float | None,
    files: FileOptions,
    *,
    repeat: bool,
    synthetic: bool,
) -> None:
    """Send the rows of a file once or repeatedly, or generated rows without end; `rate` is in messages per second.

    Raises `InputError` or `SourceError`.
    """
    if (file is not None) == synthetic:
        raise InputError("give either a file to send or --synthetic")
    try:
        layout = Layout.of_vector(settings.format, settings.field)
    except ValueError as error:
        raise SettingsError(f"field={settings.field}: {error}") from None
    names = names_of(paths_of(settings.field)) if len(layout.fields) > 1 else None
    d = len(names or ()) or settings.dimensions
    rows = open_rows(file, files._replace(dimensions=d, names=names)) if file else generate_rows(names, d)
    print_notes(rows)
    started = time.monotonic()
    sent = 0
    total = None if repeat or synthetic else 1.0
    with closing(create_producer(settings)) as producer:
        partitions = itertools.cycle(sorted(producer.partitions()))
        with progress(f"to {settings.topic}", total) as update:
            for value, share in _pace(_encode_rows(rows, settings, layout, repeat), rate):
                producer.produce(value, next(partitions))
                producer.raise_refused()
                sent += 1
                if sent % 256 == 0:
                    per_s = sent / max(time.monotonic() - started, 1e-9)
                    update(completed=share, rows=sent, note=f"{per_s:,.0f} per second")
            update(completed=1.0, rows=sent)
        try:
            producer.flush(_ACKNOWLEDGED_WITHIN_S)
        except TimeoutError:
            raise SourceError(
                f"the broker has not acknowledged every message within {_ACKNOWLEDGED_WITHIN_S:.0f} s; "
                "some may be missing from the topic"
            ) from None
    seconds = time.monotonic() - started
    console().print(f"sent {sent:,} messages of {rows.dimensions} dimensions to {settings.topic} in {seconds:.1f} s")


def _encode_rows(rows: Rows, settings: ProduceSettings, layout: Layout, repeat: bool) -> Iterator[tuple[bytes, float]]:
    """Yield the encoded rows, each with the share of the file that was read."""
    writer = create_writer(settings, settings.format, settings.topic, layout)
    names = list(layout.fields)
    for _ in itertools.count() if repeat else range(1):
        for vectors, share, others, *_ in rows.chunks(skip_nulls=True):
            columns = [vectors] if len(names) == 1 else vectors.T
            other_columns = others if settings.format == "json" else {}  # the other formats hold only the vector
            for value in writer.write({**other_columns, **dict(zip(names, columns, strict=True))}):
                yield value, share


def _pace(values: Iterator[tuple[bytes, float]], rate: float | None) -> Iterator[tuple[bytes, float]]:
    """Yield the values no faster than `rate` per second; None: without delay."""
    started = 0.0
    for n, value in enumerate(values):
        started = started or time.monotonic()  # when the first value is there, which may take long
        while rate is not None:
            ahead_s = n / rate - (time.monotonic() - started)
            if ahead_s <= 0:
                break
            time.sleep(min(max(ahead_s, _SHORTEST_SLEEP_S), _LONGEST_SLEEP_S))
        yield value
