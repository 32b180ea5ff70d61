"""The schema registry of the simulation, and values framed with the ids of its schemas: raw numbers after the id."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streampca.formats import reader_of
from streampca.formats.codec import Codec
from streampca.formats.numbers import VectorBytes
from streampca.formats.schemas import SCHEMA_PREFIX_BYTES, SchemaCache, WriterSchema
from tests.formats.structured import framed
from tests.in_memory.schemas import MemorySchemas
from tests.simulation.scheduler import Process

_KNOWN = 40  # schemas
_POISON = b"poison"


def make_value(vector: bytes, number: int) -> bytes:
    """A vector with a schema; equal numbers have the same."""
    return framed(1 + number % _KNOWN, vector)


def make_poison(number: int) -> bytes:
    """Six bytes that hold no vector: in half of them is an id that the registry does not know."""
    return framed(1 + _KNOWN + number, b"?") if number % 2 else _POISON


def is_poison(value: bytes | None) -> bool:
    """Whether a value is one of `make_poison`."""
    return value is not None and len(value) == len(_POISON)


def registry() -> MemorySchemas:
    """The registry, which does not answer while it is away."""
    return MemorySchemas(dict.fromkeys(range(1, 1 + _KNOWN), WriterSchema("AVRO", "")))


@dataclass(frozen=True)
class ProcessSchemas:
    """The registry, as asked by a process."""

    registry: MemorySchemas
    process: Process

    def get(self, schema_id: int | str) -> WriterSchema:
        self.process.call("schema")
        return self.registry.get(schema_id)


class FramedCodec(Codec):
    """Decodes these values."""

    @cached_property
    def _reader(self) -> "_FramedReader":
        return _FramedReader(
            self.format, self.judge.dimensions, SchemaCache(self.schemas, "AVRO", lambda schema: schema)
        )


class _FramedReader:
    dtype = np.dtype(np.float64)
    raw_size = None
    is_batch = False

    def __init__(self, kind: str, dimensions: int, cache: SchemaCache[WriterSchema]) -> None:
        self._cache = cache
        self._raw = reader_of(kind, dimensions, "", None)
        self.dtype_to_check = self._raw.dtype_to_check
        self.numbers = self._raw.numbers

    def read(self, value: bytes) -> VectorBytes:
        self._cache.get(value)
        return self._raw.read(value[SCHEMA_PREFIX_BYTES:])
