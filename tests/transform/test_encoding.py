"""Outputs in every format hold the numbers that were computed."""

import io
import json

import fastavro
import numpy as np
import pytest

from streampca.fold.codec import Codec
from streampca.formats.schemas import MemorySchemas
from streampca.pca.arrays import Array
from streampca.transform.encoding import encoder, schema_of
from streampca.transform.projection import Fields

FRAME = b"\0\0\0\0\1"
CHANCE = np.random.default_rng(4)
FIELDS: Fields = {"coordinates": CHANCE.normal(size=(3, 70)), "residual": CHANCE.normal(size=3),
                  "reconstruction": CHANCE.normal(size=(3, 5))}  # fmt: skip
TOGETHER = np.column_stack(list(FIELDS.values()))


def test_float32_is_the_fields_one_after_the_other() -> None:
    expected = TOGETHER.astype("<f4")
    assert encoder("float32")(FIELDS, None) == [row.tobytes() for row in expected]
    assert encoder("float32")(FIELDS, np.array([1, 2])) == [expected[:1].tobytes(), expected[1:].tobytes()]


def test_npy_is_a_file_of_the_same() -> None:
    def loaded(value: bytes) -> Array:
        found: Array = np.load(io.BytesIO(value), allow_pickle=False)
        return found

    for value, row in zip(encoder("npy")(FIELDS, None), TOGETHER, strict=True):
        np.testing.assert_array_equal(loaded(value), row)
    first, second = encoder("npy")(FIELDS, np.array([1, 2]))
    np.testing.assert_array_equal(loaded(first), TOGETHER[:1])
    np.testing.assert_array_equal(loaded(second), TOGETHER[1:])


@pytest.mark.parametrize("format_", ["avro", "protobuf"])
def test_values_with_a_schema_are_read_by_it(format_: str) -> None:
    schema = schema_of(format_, list(FIELDS))
    assert schema is not None
    schemas = MemorySchemas({1: schema})
    values = encoder(format_, FRAME)(FIELDS, None)
    for name in ("coordinates", "reconstruction"):
        width = FIELDS[name].shape[1]
        decoded = Codec(format_, width, 1e150, field=name, schemas=schemas).decode(values)
        assert decoded.rejects == []
        np.testing.assert_array_equal(decoded.vectors, FIELDS[name])


def test_avro_readers_find_every_field() -> None:
    schema = schema_of("avro", list(FIELDS))
    assert schema is not None
    parsed = fastavro.parse_schema(json.loads(schema.text))
    for place, value in enumerate(encoder("avro", FRAME)(FIELDS, None)):
        found = fastavro.schemaless_reader(io.BytesIO(value[5:]), parsed)
        assert found == {name: values[place].tolist() for name, values in FIELDS.items()}


def test_formats_without_a_schema_have_none() -> None:
    assert schema_of("json", ["residual"]) is None
    with pytest.raises(ValueError, match="no format csv"):
        encoder("csv")
