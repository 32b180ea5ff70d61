"""What is kept of a partition's first records: numbers alone, in a bounded number of bytes, of records of any size."""

import gc
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson
import pytest

from streampca.consumer_group.first_records import FIRST_RECORDS, FirstRecords
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.formats.record import Record
from streampca.pca.arrays import Array
from streampca.sources.events import Records, Vectors, decode_records

PARTITIONS, BAD, MEGABYTE = 3, 30, 2**20
SAMPLE = 4096 * 8  # bytes of a vector that are kept, at most


class CountingCodec(Codec):
    """Counts how often each record is looked at for its type, by its offset."""

    def sample_untyped(self, records: Sequence[Record]) -> list[Array]:
        for record in records:
            self.__dict__.setdefault("counts", []).append(record.offset)
        return super().sample_untyped(records)


def codec_of(kind: str, d: int) -> CountingCodec:
    return CountingCodec(kind, Judge(d, 1e150), "v" if kind == "json" else "")


def value_of(kind: str, vector: Array) -> bytes:
    return orjson.dumps({"v": vector.tolist()}) if kind == "json" else vector.tobytes()


def first_events(codec: Codec, partition: int, good: int) -> Iterator[Vectors]:
    """Vectors, then bad records of a megabyte each, one in an event."""
    for offset in range(good + BAD):
        vector = np.random.default_rng(offset).normal(size=codec.judge.dimensions)
        value = value_of(codec.format, vector) if offset < good else b"[" * MEGABYTE
        event = decode_records(codec, Records(partition, [Record(offset, value)], offset + 1, good + BAD))
        assert isinstance(event, Vectors)
        yield event


@pytest.mark.parametrize("good", [0, 20])
@pytest.mark.parametrize(("kind", "d"), [("json", 5), ("<f8", 20_001), ("float64", 5), ("float64", 20_001)])
def test_no_record_is_kept_and_each_is_looked_at_once(kind: str, d: int, good: int) -> None:
    warm = codec_of(kind, d)
    first = FirstRecords("readings", warm)
    first.begin_checks([0])
    for event in first_events(warm, 0, good):  # what is made once in a process is not kept of a record
        first.check(event)
    codec = codec_of(kind, d)
    first, handled = FirstRecords("readings", codec), 0
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for partition in range(PARTITIONS):
            first.begin_checks([partition])
            handled += sum(first.check(event) for event in first_events(codec, partition, good))
        gc.collect()  # what is only in a cycle is not kept
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    names_its_type = kind != "float64" or not good
    assert handled == (PARTITIONS * (good + BAD) if names_its_type else 0)
    assert kept <= PARTITIONS * (good * min(8 * d, SAMPLE) * (not names_its_type) + 20_000)
    assert codec.counts == [*range(good + BAD)] * PARTITIONS  # type: ignore[attr-defined]


def events_of(codec: Codec, V: Array, size: int, start: int = 0) -> Iterator[Any]:
    """All vectors (n, d) in events of so many records, from an offset on."""
    records = [Record(offset, row.tobytes()) for offset, row in enumerate(V)]
    for begin in range(start, len(V), size):
        part = records[begin : begin + size]
        yield decode_records(codec, Records(0, part, begin + len(part), len(V)))


@pytest.mark.parametrize("size", [1, 7, 60, FIRST_RECORDS, 250])
@pytest.mark.parametrize("again", [1, 7, 60, FIRST_RECORDS, 250])
def test_records_that_are_read_again_are_handled_in_batches_of_any_size(size: int, again: int) -> None:
    """Nothing is handled before the hundredth record was compared, and nothing is compared twice."""
    codec, V = codec_of("float64", 5), np.random.default_rng(0).normal(size=(250, 5))
    first = FirstRecords("readings", codec)
    first.begin_checks([0])
    compared = 0
    for event in events_of(codec, V, size):
        compared = event.next
        if first.check(event):
            assert size >= FIRST_RECORDS
            return
        if due := first.take_due(0.0):
            assert (due, compared - size < FIRST_RECORDS <= compared) == ([0], True)
            break
    assert all(first.check(event) for event in events_of(codec, V, again))
    assert codec.counts == [*range(FIRST_RECORDS)]  # type: ignore[attr-defined]
    assert 0 not in first._checks


def test_after_a_minute_records_are_handled_and_still_compared() -> None:
    codec, V = codec_of("float64", 5), np.random.default_rng(0).normal(size=(30, 5))
    first = FirstRecords("readings", codec)
    first.begin_checks([0])
    assert [first.check(event) for event in events_of(codec, V[:15], 5)] == [False] * 3
    assert (first.take_due(0.0), first.take_due(59.0), first.take_due(60.0), first.take_due(61.0)) == ([], [], [0], [])
    assert all(first.check(event) for event in events_of(codec, V, 4))
    assert codec.counts == [*range(30)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("read", "written"), [("<f8", ">f8"), ("<f4", ">f4"), ("<f4", "<f8")])
def test_wide_vectors_of_another_type_are_noticed_and_named(read: str, written: str) -> None:
    """Only some of their numbers are kept; what is said of them is true of all."""
    V = (100 * np.random.default_rng(0).normal(size=(30, 40_000))).astype(written)
    kind, sent = np.dtype(read), np.dtype(written)
    codec = codec_of(kind.name, V[0].nbytes // kind.itemsize)
    records = [Record(offset, row.tobytes()) for offset, row in enumerate(V)]
    d = "" if kind.itemsize == sent.itemsize else " (dimensions=40000)"
    name = sent.str if sent.str[0] == ">" else sent.name
    assert f"plausible as {name}{d}," in (codec.explain_wrong_type(codec.sample_untyped(records)))
    assert sum(row.nbytes for row in codec.sample_untyped(records)) <= len(V) * SAMPLE
