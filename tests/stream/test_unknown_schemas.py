"""A schema id that the registry does not know is requested once a minute, and no more than a hundred of them."""

import pytest

from streampca.stream.formats.schemas import MemorySchemas, SchemaCache, WriterSchema
from streampca.vectors.packing import VectorError
from tests.clock import Clock
from tests.stream.structured import framed


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
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(registry: CountingSchemas, clock: Clock) -> SchemaCache[str]:
    return SchemaCache(registry, "AVRO", lambda schema: schema.text, clock)


def reject(cache: SchemaCache[str], schema_id: int) -> str:
    with pytest.raises(VectorError) as caught:
        cache.get(framed(schema_id, b""))
    assert f"no schema {schema_id}" in str(caught.value)
    return caught.value.reason


def test_an_unknown_schema_is_requested_once_a_minute(
    cache: SchemaCache[str], registry: CountingSchemas, clock: Clock
) -> None:
    for second in range(120):
        clock.now = float(second)
        assert [reject(cache, 7) for _ in range(10)] == ["unknown_schema"] * 10
    assert registry.requests == 2
    reject(cache, 8)
    assert registry.requests == 3


def test_a_schema_that_is_registered_later_is_found(
    cache: SchemaCache[str], registry: CountingSchemas, clock: Clock
) -> None:
    reject(cache, 7)
    registry.schemas[7] = WriterSchema("AVRO", "text")
    clock.now = 59.9
    reject(cache, 7)
    clock.now = 60.1
    assert cache.get(framed(7, b"")) == "text"
    assert cache.get(framed(7, b"")) == "text"
    assert registry.requests == 2


def test_a_registry_that_is_away_is_asked_again(
    cache: SchemaCache[str], registry: CountingSchemas, clock: Clock
) -> None:
    """Its absence says nothing about the schema."""
    registry.away = True
    for _ in range(3):
        with pytest.raises(TimeoutError):
            cache.get(framed(7, b""))
    assert registry.requests == 3
    registry.away = False
    reject(cache, 7)
    registry.away, clock.now = True, 30.0
    reject(cache, 7)


def test_random_ids_are_a_hundred_requests_a_minute(
    cache: SchemaCache[str], registry: CountingSchemas, clock: Clock
) -> None:
    registry.schemas[5000] = WriterSchema("AVRO", "known")
    cache.get(framed(5000, b""))
    for schema_id in range(2000):
        with pytest.raises(VectorError, match=str(schema_id)):
            cache.get(framed(schema_id, b""))
    assert registry.requests == 1 + 100
    assert cache.get(framed(5000, b"")) == "known"
    registry.schemas[1999] = WriterSchema("AVRO", "late")
    with pytest.raises(VectorError, match="schema 1999 is not looked up"):
        cache.get(framed(1999, b""))
    clock.now = 60.1
    assert cache.get(framed(1999, b"")) == "late"
