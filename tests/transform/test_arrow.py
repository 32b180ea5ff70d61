"""Arrow outputs: pyarrow reads every record, with all that it had, from messages of a bounded size."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from streampca.fold.model_file import PublishedModel
from streampca.formats import writer_of
from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.formats.record import Decoded, Record
from streampca.settings.commands import EMITTED
from streampca.sources.base import Outgoing
from streampca.sources.events import Records, Vectors, decode_records
from streampca.transform.arrow import MESSAGE_BYTES, ArrowPacker, read_last_offset
from streampca.transform.metrics import TransformMetrics
from streampca.transform.output_fields import OutputFields
from streampca.transform.output_limit import OutputLimit
from streampca.transform.outputs import Outputs, TransformedBatch
from streampca.transform.record_packer import Packer, RecordPacker
from tests.example_models import D, K, numbered
from tests.members import make_member
from tests.transform.harness import Member, World, make_model_with_past_scores, project_batches, read_output_origin

FRAME = 4096  # bytes of a stream besides its rows, at most
KEYS = st.none() | st.binary(max_size=8)
HEADERS = st.lists(st.tuples(st.text(max_size=4), KEYS), max_size=3)
RECORDS = st.lists(
    st.builds(
        Record, offset=st.integers(0, 3), value=st.just(b""), timestamp=st.integers(-1, 2**41), key=KEYS,
        headers=HEADERS,
    ),
    min_size=1, max_size=25,
)  # fmt: skip


def event(records: Sequence[Record], counts: Sequence[int]) -> Vectors:
    """Return a batch of the records, which hold these `counts` of vectors.

    A record without vectors stands for a reject. The offsets of records are taken as gaps, so that offsets ascend.
    """
    ascending = np.cumsum([1 + record.offset for record in records]).tolist()
    records = [replace(record, offset=offset) for record, offset in zip(records, ascending, strict=True)]
    indices = np.flatnonzero(counts)
    several = np.array(counts, np.int64)[indices]
    vectors = np.random.default_rng(len(records)).normal(size=(several.sum(), D))
    timestamps = np.array([records[i].timestamp for i in indices], np.int64)
    return Vectors(Decoded(vectors, indices, [], several), timestamps, records, ascending[-1] + 1, 3, 10**6)


def written(
    packer: Packer, batch: Vectors, several: bool = False, p: float | None = None,
    fields: tuple[str, ...] = EMITTED, published: PublishedModel | None = None,
) -> TransformedBatch:  # fmt: skip
    used: Any = SimpleNamespace(published=published or make_model_with_past_scores(7))
    output_fields = OutputFields(fields, with_p=p is not None)
    codec = Codec("arrow" if several else "float64", Judge.of_projected(D))
    outputs = Outputs("projected", codec, used, output_fields, packer, "readings", None, p, "topic-id")
    return outputs.project(used.published, OutputLimit(), batch)


def outgoing(projected: TransformedBatch) -> list[Outgoing]:
    return [Outgoing(*fields) for fields in projected.outputs]


def rows_of(messages: Sequence[Outgoing]) -> list[dict[str, Any]]:
    """Return the rows of Arrow messages."""
    tables = [pa.ipc.open_stream(message.value).read_all() for message in messages]
    return pa.concat_tables(tables).to_pylist() if tables else []  # type: ignore[no-any-return]


def rows_of_json(outputs: Sequence[Outgoing], several: bool) -> list[dict[str, Any]]:
    """Return the rows that Arrow messages would have, from messages of one record each."""
    rows = []
    for output in outputs:
        *own, origin = output.headers
        record = {
            "key": output.key,
            "timestamp": None if output.timestamp < 0 else output.timestamp,
            "headers": [{"key": name, "value": value} for name, value in own],
            **read_output_origin([origin])._asdict(),
        }
        del record["topic_id"]  # a column of its own would say the same in every row
        fields = orjson.loads(output.value or b"")
        vectors = zip(*fields.values(), strict=True) if several else [fields.values()]
        rows += [record | dict(zip(fields, vector, strict=True)) for vector in vectors]
    return rows


@settings(max_examples=30)
@given(data=st.data(), records=RECORDS, several=st.booleans(), p=st.sampled_from([None, 0.3]))
def test_rows_hold_all_that_messages_of_one_record_hold(
    data: st.DataObject, records: list[Record], several: bool, p: float | None
) -> None:
    vectors_of_a_record = st.integers(0, 3 if several else 1)
    counts = data.draw(st.lists(vectors_of_a_record, min_size=len(records), max_size=len(records)))
    batch = event(records, counts)
    most = data.draw(st.sampled_from([1, 500, 2000, MESSAGE_BYTES]))
    alone, packed = (
        written(packer, batch, several, p)
        for packer in (RecordPacker(writer_of("json"), always_lists=several), ArrowPacker(most))
    )
    rows = rows_of(outgoing(packed))
    for row in rows:
        row["timestamp"] = row["timestamp"] and round(row["timestamp"].timestamp() * 1000)
    assert rows == rows_of_json(outgoing(alone), several)
    assert packed.output_record_count == alone.output_record_count == len(alone.outputs)
    for message in outgoing(packed):
        assert_message(message, most)


def assert_message(message: Outgoing, most: int) -> None:
    """Assert that a message is in the partition of its records, and has at most `most` bytes of rows, or one row."""
    table = pa.ipc.open_stream(message.value).read_all()
    assert (message.topic, message.partition, message.key) == ("projected", 3, None)
    assert read_output_origin(message.headers) == (7, 3, table["offset"][0].as_py(), "topic-id")
    assert read_last_offset(message.value or b"") == table["offset"][-1].as_py()
    latest = max((time for time in table["timestamp"].cast(pa.int64()).to_pylist() if time is not None), default=-1)
    assert message.timestamp == latest
    assert len(message.value or b"") <= most + FRAME or len(table) == 1


@pytest.mark.parametrize("fields", [("coordinates", "residual"), EMITTED])
def test_the_schema_is_that_of_the_documentation(fields: tuple[str, ...]) -> None:
    (message,) = outgoing(written(ArrowPacker(), event([Record(1, b"")], [1]), fields=fields))
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    record = [
        ("key", pa.binary()), ("timestamp", pa.timestamp("ms", "UTC")), ("headers", pa.list_(header)),
        ("partition", pa.int32()), ("offset", pa.int64()), ("model_version", pa.int64()),
    ]  # fmt: skip
    lengths = {"coordinates": K, "reconstruction": D}
    kinds = [pa.list_(pa.float64(), lengths[name]) if name in lengths else pa.float64() for name in fields]
    assert pa.ipc.open_stream(message.value).schema == pa.schema([*record, *zip(fields, kinds, strict=True)])


def test_messages_are_nearly_as_large_as_they_may_be_whatever_makes_rows_large() -> None:
    trace = [("trace", b"x" * 400), ("é" * 50, None)]
    records = [Record(0, b"v" * (i % 700), i, b"k" * (i % 900), trace * (i % 3)) for i in range(3000)]
    for batch in (event(records, [1] * 3000), event(records[:40], [75] * 40)):
        packed = written(ArrowPacker(), batch, several=True, fields=(*EMITTED, "record"))
        messages = [message.value or b"" for message in outgoing(packed)]
        assert len(messages) > 2
        for value in messages[:-1]:
            assert MESSAGE_BYTES * 0.95 < len(value) < MESSAGE_BYTES * 1.02


def test_a_number_that_is_not_known_is_null() -> None:
    batch = event([Record(0, b"")], [1])
    (row,) = rows_of(outgoing(written(ArrowPacker(), batch, fields=("p",), published=numbered(7))))  # no past scores
    assert row["p"] is None


@pytest.mark.parametrize("name", ["coordinates", "reconstruction"])
def test_a_worker_reads_the_vectors(name: str) -> None:
    batch = event([Record(0, b"", 5, None, [("a", None)])] * 70, [2] * 70)
    messages = outgoing(written(ArrowPacker(9000), batch, several=True))
    values = [message.value for message in messages]
    assert len(values) > 1
    decoded = Codec("arrow", Judge.of_projected({"coordinates": K, "reconstruction": D}[name]), name).decode(values)
    assert decoded.rejects == []
    fields = project_batches(
        OutputFields(EMITTED), make_model_with_past_scores(7), batch.decoded.vectors, batch.decoded.counts
    )
    np.testing.assert_array_equal(decoded.vectors, fields[name])


def test_another_member_reads_what_one_has_written() -> None:
    first, metrics = World(50), TransformMetrics("t")
    Member(first, batch=20, packer=ArrowPacker(), also_notify=make_member(metrics).notify).run()
    assert len(first.outputs()) == 3
    count = metrics.registry.get_sample_value("streampca_transform_records_total", {"topic": "t", "outcome": "written"})
    assert count == 50
    records = [Record(i, message.value) for i, message in enumerate(first.outputs())]
    batch = decode_records(Codec("arrow", Judge.of_projected(K), "coordinates"), Records(0, records, 3, 3))
    assert isinstance(batch, Vectors)
    rows = rows_of(outgoing(written(ArrowPacker(), batch, True, fields=("residual",), published=numbered(7, d=K, k=1))))
    assert [row["offset"] for row in rows] == [0] * 20 + [1] * 20 + [2] * 10


def test_nothing_is_written_where_no_record_is_left() -> None:
    nothing = written(ArrowPacker(), event([Record(0, b"")] * 3, [1] * 3), p=1e-9)
    assert (nothing.outputs, nothing.output_record_count) == ([], 0)
