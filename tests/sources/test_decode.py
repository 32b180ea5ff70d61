"""The records of one event are decoded in steps of a bounded size, and with few requests to the registry."""

import json

from streampca.formats.record import Record
from streampca.formats.schemas import WriterSchema
from streampca.sources.events import Records, Undecoded, Vectors, decode_records
from tests.formats.structured import (
    ARRAY,
    WIDE,
    CountingSchemas,
    avro,
    codec,
    framed,
    zeros,
)


def test_unknown_ids_change_nothing_for_a_known_one() -> None:
    """As after a kill -9, the known id is not in the cache. Each step of decoding makes a few requests."""
    known = WriterSchema("AVRO", json.dumps(ARRAY))
    registry = CountingSchemas({5000: known})
    values = [framed(schema_id, b"?") for schema_id in range(1, 1001)] + [avro(known, [1.0, 2.0], 5000)] * 3
    records = [Record(offset, value, 0) for offset, value in enumerate(values)]
    decoder = codec("avro", "", registry, 2)
    steps: list[Vectors] = []
    while records:
        before = registry.requests
        step = decode_records(decoder, Records(0, records, 1003, 1003))
        assert isinstance(step, Vectors)
        assert 100 <= registry.requests - before <= 101 or len(records) < 100
        records = records[len(step.records) :]
        steps.append(step)
    assert [step.next for step in steps[:-1]] == [step.records[-1].offset + 1 for step in steps[:-1]]
    assert sum(len(step.decoded.rejects) for step in steps) == 1000
    assert steps[-1].decoded.vectors.tolist() == [[1.0, 2.0]] * 3
    assert registry.requests == 1001


def test_the_vectors_of_one_event_are_decoded_in_steps() -> None:
    """Each record is within the limit; a hundred of them together are not."""
    value = zeros(2**20 // WIDE // 2)  # 4 MiB
    records = [Record(offset, value, timestamp=offset) for offset in (3, 4, 6, 7, 9)]
    decoder = codec("arrow", "v", d=WIDE)
    offsets = []
    event = Records(0, records, 12, 20)
    while event.records:
        vectors = decode_records(decoder, event)
        assert not isinstance(vectors, Undecoded)
        assert vectors.decoded.vectors.nbytes <= 8 * 2**20
        assert len(vectors.timestamps) == len(vectors.records)
        offsets += [record.offset for record in vectors.records]
        rest = event.records[len(vectors.records) :]
        assert vectors.next == (rest[0].offset if rest else 12)
        event = Records(0, rest, 12, 20)
    assert offsets == [3, 4, 6, 7, 9]
