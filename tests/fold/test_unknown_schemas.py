"""The fate of a record depends on what the registry knows of its schema's id, not on what was asked before."""

import pytest

from streampca.fold.codec import Codec
from streampca.fold.events import Records, Vectors
from streampca.fold.judge import Judge
from streampca.fold.record import PlainRecord
from streampca.formats.packing import VectorError
from streampca.formats.schemas import MemorySchemas, SchemaCache, WriterSchema
from tests.fold.structured import avro, framed

SCHEMA = WriterSchema("AVRO", '{"type": "array", "items": "double"}')


class CountingSchemas(MemorySchemas):
    """Counts the requests."""

    requests = 0

    def get(self, schema_id: int) -> WriterSchema:
        self.requests += 1
        return super().get(schema_id)


@pytest.fixture
def registry() -> CountingSchemas:
    return CountingSchemas({})


@pytest.fixture
def cache(registry: CountingSchemas) -> SchemaCache[str]:
    return SchemaCache(registry, "AVRO", lambda schema: schema.text)


def reject(cache: SchemaCache[str], schema_id: int) -> str:
    with pytest.raises(VectorError) as caught:
        cache.get(framed(schema_id, b""))
    assert f"no schema {schema_id}" in str(caught.value)
    return caught.value.reason


def test_a_schema_that_is_registered_later_is_found(cache: SchemaCache[str], registry: CountingSchemas) -> None:
    assert reject(cache, 7) == "unknown_schema"
    registry.schemas[7] = WriterSchema("AVRO", "text")
    assert cache.get(framed(7, b"")) == "text"
    assert cache.get(framed(7, b"")) == "text"
    assert registry.requests == 2


def test_a_registry_that_is_away_is_asked_again(cache: SchemaCache[str], registry: CountingSchemas) -> None:
    """Its absence says nothing about the schema."""
    registry.away = True
    for _ in range(3):
        with pytest.raises(TimeoutError):
            cache.get(framed(7, b""))
    assert registry.requests == 3
    registry.away = False
    reject(cache, 7)


def test_unknown_ids_change_nothing_for_a_known_one(registry: CountingSchemas) -> None:
    """As after a kill -9, the known id is not in the cache. Each step of decoding makes a few requests."""
    registry.schemas[5000] = SCHEMA
    values = [framed(schema_id, b"?") for schema_id in range(1000)] + [avro(SCHEMA, [1.0, 2.0], 5000)] * 3
    records = [PlainRecord(offset, value, 0) for offset, value in enumerate(values)]
    codec = Codec("avro", Judge(2, 1e100), schemas=registry)
    steps: list[Vectors] = []
    while records:
        before = registry.requests
        step = codec.vectors_of(Records(0, records, 1003, 1003))
        assert isinstance(step, Vectors)
        assert 100 <= registry.requests - before <= 101 or len(records) < 100
        records = records[len(step.records) :]
        steps.append(step)
    assert [step.next for step in steps[:-1]] == [step.records[-1].offset + 1 for step in steps[:-1]]
    assert sum(len(step.decoded.rejects) for step in steps) == 1000
    assert steps[-1].decoded.vectors.tolist() == [[1.0, 2.0]] * 3
    assert registry.requests == 1001
