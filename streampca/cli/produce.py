"""`streampca produce`: sends the rows of a file to a topic, one message per row."""

import itertools
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from streampca.cli.console import console, print_notes, progress
from streampca.errors import InputError, SettingsError, SourceError
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from streampca.files.rows import Rows
from streampca.files.synthetic import generate_rows
from streampca.formats.base import Layout
from streampca.settings.commands import ProduceSettings
from streampca.settings.field_paths import dimension_names
from streampca.sources.clients import create_producer
from streampca.sources.schema_registry import create_writer

_ACKNOWLEDGED_WITHIN_S = 60.0
_UPDATE_AFTER_MESSAGES = 256  # of the progress bar
_SHORTEST_SLEEP_S = 0.02  # shorter sleeps would take much of the processor at high rates
_LONGEST_SLEEP_S = 1.0  # `time.sleep` refuses extremely long times


class EncodedRow(NamedTuple):
    """A row of the file as the value of a message."""

    value: bytes
    share_read: float  # of the file, from 0 to 1, with this row; for the progress bar


def run(
    settings: ProduceSettings,
    file: Path | None,
    rate: float | None,
    file_options: FileOptions,
    *,
    repeat: bool,
    synthetic: bool,
) -> None:
    """Send the rows of a file, or generated rows without end; `rate` is in messages per second."""
    has_file = file is not None
    if has_file == synthetic:  # both are given, or neither
        raise InputError("give either a file to send or --synthetic")
    try:
        layout = Layout.of_vector(settings.format, settings.field)
    except ValueError as error:
        raise SettingsError(f"field={settings.field}: {error}") from None
    rows = _open_rows(file, file_options, settings, layout)
    print_notes(rows)
    values = _encode_rows(rows, settings, layout, repeat)
    paced_values = _pace(values, rate)
    started = time.monotonic()
    sent_count = _send(paced_values, settings, is_endless=repeat or synthetic)
    seconds = time.monotonic() - started
    console().print(
        f"sent {sent_count:,} messages of {rows.dimensions} dimensions to {settings.topic} in {seconds:.1f} s"
    )


def _open_rows(file: Path | None, file_options: FileOptions, settings: ProduceSettings, layout: Layout) -> Rows:
    """Open the rows of the file; without a file, generate rows.

    If the setting `field` has several paths, each path is a dimension; otherwise `dimensions` says how many there are.
    """
    names = dimension_names(settings.field, len(layout.fields))  # None: all numbers are in one field
    dimensions = len(names) if names else settings.dimensions
    if file is None:
        return generate_rows(names, dimensions)
    return open_rows(file, file_options._replace(dimensions=dimensions, names=names))


def _send(values: Iterator[EncodedRow], settings: ProduceSettings, *, is_endless: bool) -> int:
    """Send the values, and return how many the broker has acknowledged.

    Raises `SourceError` if some are refused or not acknowledged in time.
    """
    started = time.monotonic()
    sent_count = 0
    with closing(create_producer(settings)) as producer:
        partitions = itertools.cycle(sorted(producer.partitions()))
        with progress(f"to {settings.topic}", total=None if is_endless else 1.0) as update:
            for encoded in values:
                producer.produce(encoded.value, next(partitions))
                producer.raise_refused()
                sent_count += 1
                if sent_count % _UPDATE_AFTER_MESSAGES == 0:
                    elapsed_s = max(time.monotonic() - started, 1e-9)  # not 0: it divides
                    update(
                        completed=encoded.share_read, rows=sent_count, note=f"{sent_count / elapsed_s:,.0f} per second"
                    )
            update(completed=1.0, rows=sent_count)
        try:
            producer.flush(_ACKNOWLEDGED_WITHIN_S)
        except TimeoutError:
            raise SourceError(
                f"the broker has not acknowledged every message within {_ACKNOWLEDGED_WITHIN_S:.0f} s; "
                "some may be missing from the topic"
            ) from None
    return sent_count


def _encode_rows(rows: Rows, settings: ProduceSettings, layout: Layout, repeat: bool) -> Iterator[EncodedRow]:
    """Yield the encoded rows of the file. With `repeat`, begin again at its end, forever."""
    writer = create_writer(settings, settings.format, settings.topic, layout)
    names = list(layout.fields)
    is_vector_in_one_field = len(names) == 1  # otherwise, each field holds one number
    passes = itertools.count() if repeat else range(1)
    for _ in passes:
        for chunk in rows.chunks(skip_nulls=True):
            columns = [chunk.vectors] if is_vector_in_one_field else chunk.vectors.T
            values_by_field: dict[str, Any] = dict(zip(names, columns, strict=True))
            if settings.format == "json":  # the other formats hold only the vector
                values_by_field = {**chunk.other_columns, **values_by_field}
            for value in writer.write(values_by_field):
                yield EncodedRow(value, share_read=chunk.progress)


def _pace(values: Iterator[EncodedRow], rate: float | None) -> Iterator[EncodedRow]:
    """Yield the values no faster than `rate` per second; None: without delay."""
    if rate is None:
        yield from values
        return
    started = 0.0
    for count, value in enumerate(values):
        if count == 0:
            started = time.monotonic()  # the first value may take long
        _sleep_until(started + count / rate)
        yield value


def _sleep_until(due: float) -> None:
    """Sleep until `time.monotonic` has reached `due`.

    A sleep lasts at least 20 ms, so it may end late. A caller with a schedule catches up: if `due` has passed already,
    a call returns at once.
    """
    ahead_s = due - time.monotonic()
    while ahead_s > 0:
        time.sleep(min(max(ahead_s, _SHORTEST_SLEEP_S), _LONGEST_SLEEP_S))
        ahead_s = due - time.monotonic()
