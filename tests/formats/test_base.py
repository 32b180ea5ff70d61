"""Every format reads what it writes, to the bit, and independent readers find the same numbers."""

import base64
import io
import json
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import fastavro
import numpy as np
import orjson
import pyarrow as pa
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from streampca.errors import SettingsError
from streampca.formats import reader_of, schema_of, writer_of
from streampca.formats.base import Counts, Fields, Layout
from streampca.formats.protobuf import MAIN, compiled
from streampca.formats.schemas import WriterSchema, frame_of
from streampca.pca.arrays import Array
from tests.in_memory.schemas import MemorySchemas

PLUG_INS = [plug_in.name for plug_in in entry_points(group="streampca.formats")]  # formats of installed packages
FORMATS = ("json", "float32", "float64", "npy", "arrow", "avro", "protobuf", *PLUG_INS)
PATHS = {"json": ("", "v", "a.v", "a.b.c"), "avro": ("", "v", "a.b.c"), "protobuf": ("v", "a.v", "a.b.c"),
         "arrow": ("", "v", "a.v")}  # fmt: skip
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
FIELDS: Fields = {
    "coordinates": np.random.default_rng(4).normal(size=(3, 70)),
    "residual": np.random.default_rng(5).normal(size=3),
    "reconstruction": np.random.default_rng(6).normal(size=(3, 5)),
}
LAYOUT = Layout({name: "numbers" if v.ndim == 2 else "number" for name, v in FIELDS.items()}, record="Projection")
SIDE_BY_SIDE = np.column_stack(list(FIELDS.values()))


def schemas(kind: str, layout: Layout) -> MemorySchemas:
    schema = schema_of(kind, layout)
    return MemorySchemas({1: schema} if schema else {})


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=8, deadline=None)  # protoc is a process
@given(st.data())
def test_a_reader_reads_what_a_writer_has_written(kind: str, data: st.DataObject) -> None:
    n, d = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([1, 2, 7, 150]))
    Y = data.draw(arrays(np.float64, (n, d), elements=NUMBERS, fill=NUMBERS))
    if kind == "float32" or data.draw(st.booleans()):
        Y = np.clip(Y, -3e38, 3e38).astype(np.float32)
    if data.draw(st.booleans()):
        Y = np.asfortranarray(Y)
    field = data.draw(st.sampled_from(PATHS.get(kind, ("",))))
    layout = Layout.of_vector(kind, field)
    [name] = layout.fields
    values = writer_of(kind, layout.enclosing_names, frame_of(1)).write({name: Y})
    reader = reader_of(kind, d, field, schemas(kind, layout))
    read = [np.frombuffer(reader.read(value), reader.dtype) for value in values]
    np.testing.assert_array_equal(np.stack(read), Y)
    assert np.array_equal(np.signbit(np.stack(read)), np.signbit(Y))


@pytest.mark.parametrize("kind", ["json", "avro", "protobuf", "arrow"])
@pytest.mark.parametrize("around", ["", "a.", "a.b."])
@pytest.mark.parametrize("d", [2, 15, 16, 31, 32, 400])  # in Protobuf, tags get longer from 16 on
def test_a_reader_reads_vectors_whose_numbers_are_fields_each(kind: str, around: str, d: int) -> None:
    Y = np.random.default_rng(d).normal(size=(3, d))
    field = ",".join(f"{around}n{i}" for i in range(d))
    layout = Layout.of_vector(kind, field)
    values = writer_of(kind, layout.enclosing_names, frame_of(1)).write(dict(zip(layout.fields, Y.T, strict=True)))
    reader = reader_of(kind, d, field, schemas(kind, layout))
    np.testing.assert_array_equal([np.frombuffer(reader.read(value)) for value in values], Y)


@pytest.mark.parametrize("kind", ["json", "avro", "protobuf", "arrow"])
@pytest.mark.parametrize("name", ["coordinates", "reconstruction"])
def test_a_reader_reads_one_of_several_fields(kind: str, name: str) -> None:
    values = writer_of(kind, schema_prefix=frame_of(1)).write(FIELDS)
    reader = reader_of(kind, FIELDS[name].shape[1], name, schemas(kind, LAYOUT))
    np.testing.assert_array_equal([np.frombuffer(reader.read(value)) for value in values], FIELDS[name])


def of_avro(value: bytes, schema: WriterSchema) -> dict[str, Any]:
    parsed: Any = fastavro.schemaless_reader(
        io.BytesIO(value[5:]), fastavro.parse_schema(json.loads(schema.text)), None
    )
    return dict(parsed)


def of_protobuf(value: bytes, schema: WriterSchema) -> dict[str, Any]:
    """Return the fields of a value, which begins with a frame of five bytes and the index of the message's type."""
    pool = DescriptorPool()
    for file in compiled(schema).file:
        pool.Add(file)
    kind = pool.FindFileByName(MAIN).message_types_by_name["Projection"]
    message = message_factory.GetMessageClass(kind).FromString(value[6:])
    numbers = {field.name: getattr(message, field.name) for field in kind.fields}
    return {name: value if isinstance(value, float | bytes | str) else list(value) for name, value in numbers.items()}


@pytest.mark.parametrize(("kind", "read"), [("avro", of_avro), ("protobuf", of_protobuf)])
def test_libraries_read_values_with_a_schema(kind: str, read: Callable[[bytes, WriterSchema], dict[str, Any]]) -> None:
    schema = schema_of(kind, LAYOUT)
    for i, value in enumerate(writer_of(kind, schema_prefix=frame_of(1)).write(FIELDS)):
        assert read(value, schema) == {name: values[i].tolist() for name, values in FIELDS.items()}


@pytest.mark.parametrize(("kind", "read"), [("avro", of_avro), ("protobuf", of_protobuf)])
def test_libraries_read_values_with_hundreds_of_fields(kind: str, read: Callable[[bytes, WriterSchema], Any]) -> None:
    """A number, an array, whole numbers and a text take turns, so that each has small and large numbers as a field."""
    kinds = {"number": [0.5], "numbers": [[1.5, -2.0]], "integers": [[7, 300]], "text": ["ü"]}
    names = {f"{name}_{i}": name for i in range(100) for name in kinds}
    layout = Layout(names, record="Projection")  # type: ignore[arg-type]
    fields: Fields = {field: np.array(kinds[name], object if name == "text" else None) for field, name in names.items()}
    [value] = writer_of(kind, schema_prefix=frame_of(1)).write(fields)
    assert read(value, schema_of(kind, layout)) == {field: kinds[name][0] for field, name in names.items()}


OTHERS: Fields = {
    "dimensions": np.array([[0, 300], [70_000, 5]]),
    "names": np.array([["temp", "ü" * 200], ["", "hum"]], object),
    "contributions": np.array([[0.5, -1.0], [2.0, 0.0]]),
    "label": np.array(["pump ü", ""], object),
    "record": np.array([b'{"id": 7}', b"\0" * 300], object),
    "residual": np.array([1.5, 2.5]),
}


@pytest.mark.parametrize("of_vectors", [None, np.zeros(0, np.int64)])
def test_json_of_fields_without_rows_is_no_document(of_vectors: Any) -> None:
    """A chunk of a file may hold only rows that are skipped."""
    fields = {name: rows[:0] for name, rows in OTHERS.items()} | {"v": np.zeros((0, 3))}
    assert writer_of("json").write(fields, of_vectors) == []


@pytest.mark.parametrize("order", [list(OTHERS), ["names"]])
@pytest.mark.parametrize(("kind", "read"), [("avro", of_avro), ("protobuf", of_protobuf)])
def test_libraries_read_whole_numbers_texts_and_bytes(
    kind: str, read: Callable[[bytes, WriterSchema], Any], order: list[str]
) -> None:
    kinds = {"dimensions": "integers", "names": "texts", "contributions": "numbers", "label": "text", "record": "bytes"}
    layout = Layout({name: kinds.get(name, "number") for name in order}, record="Projection")  # type: ignore[misc]
    schema = schema_of(kind, layout)
    for i, value in enumerate(writer_of(kind, schema_prefix=frame_of(1)).write({name: OTHERS[name] for name in order})):
        assert read(value, schema) == {name: OTHERS[name].tolist()[i] for name in order}


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(), lambda some: st.lists(some) | st.dictionaries(st.text(), some)
)
BEFORE = st.sampled_from([b"", b"\xef\xbb\xbf", frame_of(7), b"\1" + bytes(16), b" \n", frame_of(7) + b"\xef\xbb\xbf"])


@given(st.binary() | JSON_LIKE.map(lambda content: json.dumps(content).encode()), BEFORE)
def test_a_record_becomes_a_part_of_json_if_it_is_standard_json(value: bytes, before: bytes) -> None:
    try:
        expected = orjson.loads(value)
    except ValueError:
        expected = base64.b64encode(before + value).decode()
    record = np.array([before + value, None], object)[:1]
    (written,) = writer_of("json").write({"record": record, "residual": np.zeros(1)})
    assert orjson.loads(written) == {"record": expected, "residual": 0.0}
    rows = np.array([before + value, None], object)
    (together,) = writer_of("json").write({"record": rows, "residual": np.zeros(2)}, np.array([2]))
    assert orjson.loads(together) == {"record": expected, "residual": [0.0, 0.0]}


def of_json(value: bytes) -> Array:
    return np.column_stack([np.array(values, float).reshape(-1, w) for values, w in zip(
        json.loads(value).values(), (70, 1, 5), strict=True)])  # fmt: skip


def of_arrow(value: bytes) -> Array:
    return np.column_stack([np.array(column.to_pylist()) for column in pa.ipc.open_stream(value).read_all().columns])


def of_npy(value: bytes) -> Array:
    return np.atleast_2d(np.load(io.BytesIO(value), allow_pickle=False))


def of_float64(value: bytes) -> Array:
    return np.frombuffer(value, "<f8").reshape(-1, SIDE_BY_SIDE.shape[1])


@pytest.mark.parametrize("read", [of_json, of_arrow, of_npy, of_float64])
@pytest.mark.parametrize("counts", [None, np.array([1, 2])])
def test_a_value_holds_one_row_or_a_group_of_rows(read: Callable[[bytes], Array], counts: Counts) -> None:
    values = writer_of(read.__name__.removeprefix("of_")).write(FIELDS, counts)
    assert [len(read(value)) for value in values] == ([1, 1, 1] if counts is None else [1, 2])
    np.testing.assert_array_equal(np.concatenate([read(value) for value in values]), SIDE_BY_SIDE)


def test_the_error_names_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "streampca.formats.avro", None)
    with pytest.raises(SettingsError, match=r"format avro needs .*: pip install '\.\[avro\]'"):
        writer_of("avro")
