"""Avro, Protobuf and Arrow: values of their own libraries are decoded bit for bit, invalid ones are rejected."""

import io
import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streampca.formats.codec import Codec
from streampca.formats.judge import Judge
from streampca.formats.schemas import WriterSchema
from tests.formats.structured import (
    READING,
    arrow,
    avro,
    avro_datum,
    avro_schema,
    bytes_of,
    framed,
    memory,
    only_reject,
    protobuf,
    reading,
)
from tests.in_memory.schemas import MemorySchemas

D = 3
ROW = [1.0, -2.5, 3.25]
DOUBLES = st.lists(st.floats(-1e149, 1e149), min_size=D, max_size=D)
SINGLES = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=D, max_size=D)
INTEGERS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=D, max_size=D)
ARRAY = {"type": "array", "items": "double"}


def codec(kind: str, field: str = "", schemas: MemorySchemas | None = None) -> Codec:
    return Codec(kind, Judge(D, 1e150), field, schemas)


@cache
def readings(field: str) -> Codec:
    """Cached, because compiling the schema takes a while."""
    return codec("protobuf", field, memory(READING))


# Avro.


@settings(deadline=None)
@given(data=st.data(), path=st.sampled_from(["", "v", "a.b", "a.b.c"]))
@pytest.mark.parametrize(
    ("vector", "rows", "packed"),
    [
        (ARRAY, DOUBLES, ""), (["null", ARRAY], DOUBLES, ""), ({"type": "array", "items": "float"}, SINGLES, ""),
        ({"type": "array", "items": "long"}, INTEGERS, ""), ("bytes", DOUBLES, "<f8"), ("bytes", SINGLES, "<f4"),
        ({"type": "fixed", "name": "F", "size": 8 * D}, DOUBLES, "<f8"),
    ],
)  # fmt: skip
def test_avro_numbers_are_decoded_bit_for_bit(
    vector: Any, rows: Any, packed: str, data: st.DataObject, path: str
) -> None:
    """Integers are rounded as in Python."""
    row = data.draw(rows)
    steps = path.split(".") if path else []
    schema = avro_schema(vector, *steps)
    datum = bytes_of(row, packed) if packed else row
    decoded = codec("avro", path, memory(schema)).decode([avro(schema, avro_datum(datum, *steps))] * 2)
    assert decoded.rejects == []
    assert decoded.vectors.tobytes() == np.array([row, row], np.float64).tobytes()


def long(number: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema("long"), number)
    return out.getvalue()


@pytest.mark.parametrize("cuts", [[3], [1, 2], [2, 1], [1, 1, 1], [-3], [-1, 2], [2, -1], [0, 3], [4], [2], [3, 1]])
def test_avro_arrays_may_be_split_into_any_blocks(cuts: list[int]) -> None:
    """A negative count is followed by the block's size in bytes; a count of zero ends the array."""
    schema, numbers, payload, taken = WriterSchema("AVRO", json.dumps(ARRAY)), [*ROW, 9.0], b"", 0
    for cut in cuts:
        if cut == 0:
            break
        payload += long(cut) + (long(abs(cut) * 8) if cut < 0 else b"")
        payload += bytes_of(numbers[taken : taken + abs(cut)], "<f8")
        taken += abs(cut)
    decoded = codec("avro", "", memory(schema)).decode([framed(1, payload + long(0))])
    if taken == D:
        assert decoded.vectors.tolist() == [ROW]
    else:
        assert only_reject(decoded) == ("wrong_length", f"{taken} numbers, not 3")


def test_avro_a_named_type_may_be_used_twice() -> None:
    """At its second use the vector's type is given by name only, which the fast path does not resolve."""
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "v", "type": ARRAY}]}
    outer = {"type": "record", "name": "Outer", "fields": [
        {"name": "first", "type": inner}, {"name": "second", "type": "Inner"},
    ]}  # fmt: skip
    schema = WriterSchema("AVRO", json.dumps(outer))
    value = avro(schema, {"first": {"v": [0.0] * 5}, "second": {"v": ROW}})
    assert codec("avro", "second.v", memory(schema)).decode([value]).vectors.tolist() == [ROW]
    value = avro(schema, {"first": {"v": ROW}, "second": {"v": [0.0] * 5}})
    assert codec("avro", "first.v", memory(schema)).decode([value]).vectors.tolist() == [ROW]


def test_avro_a_schema_may_refer_to_another() -> None:
    part = {"type": "record", "name": "Part", "namespace": "x", "fields": [{"name": "v", "type": ARRAY}]}
    whole = {"type": "record", "name": "Whole", "fields": [{"name": "part", "type": "x.Part"}]}
    schema = WriterSchema("AVRO", json.dumps(whole), {"x.Part": json.dumps(part)})
    payload = long(3) + bytes_of(ROW, "<f8") + long(0)
    assert codec("avro", "part.v", memory(schema)).decode([framed(1, payload)]).vectors.tolist() == [ROW]


GOOD = avro_schema(ARRAY, "v")
WHOLE = avro(GOOD, avro_datum(ROW, "v"))


@pytest.mark.parametrize(
    ("value", "reason", "words"),
    [
        (None, "no_value", "tombstone"),
        (b"", "undecodable", "not framed"),
        (b"\0\0\0\0", "undecodable", "not framed"),
        (b"\1" + WHOLE[1:], "undecodable", "not framed"),
        (framed(77, WHOLE[5:]), "unknown_schema", "no schema 77"),
        (framed(2, WHOLE[5:]), "undecodable", "schema 2 is PROTOBUF, not AVRO"),
        (framed(3, WHOLE[5:]), "undecodable", "schema 3 cannot be used"),
        (framed(4, b""), "undecodable", "no field 'v'"),
        (WHOLE[:-1], "undecodable", "not Avro of its schema"),
        (WHOLE + b"\0", "undecodable", "left over"),
        (WHOLE[:5], "undecodable", "not Avro of its schema"),
        (avro(GOOD, avro_datum([1.0, 2.0], "v")), "wrong_length", "2 numbers, not 3"),
        (avro(GOOD, avro_datum([1.0, float("nan"), 2.0], "v")), "not_finite", "entry 1 is nan"),
        (avro(GOOD, avro_datum([1.0, 2.0, -1e200], "v")), "too_large", "entry 2"),
        (framed(5, b"\0"), "undecodable", "not null"),
        (framed(6, long(3) + b"\1\0\1" + long(0)), "undecodable", "entry 0 must be a number, not a boolean"),
        (framed(7, long(5) + b"12345"), "wrong_length", "5 bytes are not 3 numbers"),
        (framed(8, long(1) + b"x"), "undecodable", "not a string"),
    ],
)
def test_invalid_avro_vectors_are_rejected(value: bytes | None, reason: str, words: str) -> None:
    schemas = memory(GOOD, READING, WriterSchema("AVRO", "{"), *(
        WriterSchema("AVRO", json.dumps(kind))
        for kind in (
            {"type": "record", "name": "None", "fields": []},
            ["null", ARRAY], {"type": "array", "items": "boolean"}, "bytes", "string",
        )
    ))  # fmt: skip
    schema_id = value[4] if value and len(value) > 4 and value[0] == 0 else 1
    actual, message = only_reject(codec("avro", "" if schema_id in (5, 6, 7, 8) else "v", schemas).decode([value]))
    assert actual == reason
    assert words in message


# Protobuf.


MESSAGES: list[tuple[str, st.SearchStrategy[list[float]], Callable[[list[float]], Any]]] = [
    ("doubles", DOUBLES, lambda row: reading(sensor="é", doubles=row, singles=[1])),
    ("loose", DOUBLES, lambda row: reading(loose=row)),
    ("blob", DOUBLES, lambda row: reading(blob=bytes_of(row, "<f8"))),
    ("blob", SINGLES, lambda row: reading(blob=bytes_of(row, "<f4"))),
    ("step.deep.v", DOUBLES, lambda row: reading(step={"deep": {"v": row, "unit": "m"}})),
    ("singles", SINGLES, lambda row: reading(singles=row)),
    ("counts", INTEGERS, lambda row: reading(counts=row)),
    ("part.v", SINGLES, lambda row: reading(part={"v": row})),  # defined in an imported file
]


@settings(deadline=None)
@given(data=st.data())
@pytest.mark.parametrize(("field", "rows", "message"), MESSAGES)
def test_protobuf_numbers_are_decoded_bit_for_bit(field: str, rows: Any, message: Any, data: st.DataObject) -> None:
    row = data.draw(rows)
    decoded = readings(field).decode([protobuf(message(row))] * 2)
    assert decoded.rejects == []
    assert decoded.vectors.tobytes() == np.array([row, row], np.float64).tobytes()


def field_3(data: bytes) -> bytes:
    """Field `doubles`, packed, as on the wire."""
    return b"\x1a" + bytes([len(data)]) + data


def loose_3(number: float) -> bytes:
    """One entry of `doubles`, unpacked, as on the wire."""
    return b"\x19" + bytes_of([number], "<f8")


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (field_3(bytes_of(ROW, "<f8")), 3),
        (field_3(bytes_of(ROW[:1], "<f8")) + field_3(bytes_of(ROW[1:], "<f8")), 3),
        (b"".join(map(loose_3, ROW)), 3),
        (field_3(bytes_of(ROW[:2], "<f8")) + loose_3(ROW[2]), 3),
        (field_3(bytes_of(ROW, "<f8")) + loose_3(9.0), 4),
        (field_3(bytes_of(ROW[:2], "<f8")), 2),
        (b"", 0),
        (field_3(bytes_of(ROW, "<f8")[:11]) + field_3(bytes_of(ROW, "<f8")[11:]), None),
        (field_3(bytes_of(ROW, "<f8")[:-1]), None),
        (field_3(bytes_of(ROW, "<f8"))[:-1], None),
    ],
)
def test_protobuf_arrays_may_be_packed_or_unpacked(payload: bytes, count: int | None) -> None:
    """A reader must accept both, even mixed."""
    decoded = readings("doubles").decode([framed(1, b"\x02\x02" + payload)])
    if count == D:
        assert decoded.vectors.tolist() == [ROW]
    elif count is None:
        assert only_reject(decoded) == ("undecodable", "not Protobuf of its schema")
    else:
        assert only_reject(decoded) == ("wrong_length", f"{count} numbers, not 3")


def test_protobuf_indexes_select_the_message_type() -> None:
    schema = WriterSchema(
        "PROTOBUF", 'syntax = "proto3"; message A { repeated double v = 1; message B { bytes v = 1; } }'
    )
    row = bytes_of(ROW, "<f8")
    first, inner = b"\x0a\x18" + row, b"\x0a\x18" + row
    values = [framed(1, indexes + body) for indexes, body in [(b"\0", first), (b"\x02\0", first), (b"\x04\0\0", inner)]]
    assert codec("protobuf", "v", memory(schema)).decode(values).vectors.tolist() == [ROW] * 3


@pytest.mark.parametrize(
    ("indexes", "words"),
    [
        (b"", "ends within"), (b"\x02", "ends within"), (b"\x80", "ends within"), (b"\xff" * 200, "ends within"),
        (b"\x01", "negative"), (b"\x02\x01", "negative"), (b"\x02\x08", "no such message"),
        (b"\x04\x02\x06", "no such message"), (b"\x7f", "negative"),
    ],
)  # fmt: skip
def test_invalid_protobuf_indexes_are_rejected(indexes: bytes, words: str) -> None:
    reason, message = only_reject(readings("doubles").decode([framed(1, indexes)]))
    assert reason == "undecodable"
    assert words in message


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("vector", "no field 'vector'"), ("step.v", "no field 'step.v'"), ("sensor.v", "no field"),
        ("steps.deep.v", "no field"), ("one", "neither repeated numbers nor bytes"), ("words", "neither"),
        ("flags", "neither"), ("sensor", "neither"), ("step", "neither"),
    ],
)  # fmt: skip
def test_protobuf_fields_without_a_vector_are_rejected(field: str, words: str) -> None:
    reason, message = only_reject(readings(field).decode([protobuf(reading(one=1))]))
    assert reason == "undecodable"
    assert words in message


# The registry.


@pytest.mark.parametrize(("kind", "field"), [("avro", "v"), ("protobuf", "doubles")])
def test_an_unavailable_registry_rejects_no_records(kind: str, field: str) -> None:
    good = GOOD if kind == "avro" else READING
    value = WHOLE if kind == "avro" else protobuf(reading(doubles=ROW))
    schemas = memory(good)
    one = codec(kind, field, schemas)
    schemas.away = True
    assert [reject.reason for reject in one.decode([None, b"?"]).rejects] == ["no_value", "undecodable"]
    with pytest.raises(TimeoutError):
        one.decode([value])
    schemas.away = False
    assert one.decode([value]).vectors.tolist() == [ROW]
    schemas.away = True  # cached schemas are still used
    assert one.decode([value]).vectors.tolist() == [ROW]


# Arrow.

LISTS = [
    pa.list_(pa.float64(), D), pa.list_(pa.float32(), D), pa.list_(pa.float64()), pa.large_list(pa.float32()),
    pa.list_(pa.int32()), pa.list_(pa.float16(), D),
]  # fmt: skip


@settings(deadline=None)
@given(batches=st.lists(st.lists(st.lists(st.integers(-100, 100), min_size=D, max_size=D), max_size=4), max_size=3))
@pytest.mark.parametrize("kind", LISTS, ids=str)
def test_arrow_rows_are_vectors(kind: Any, batches: list[list[list[int]]]) -> None:
    rows = [row for batch in batches for row in batch]
    if pa.types.is_float16(kind.value_type):
        batches = [[[np.float16(entry) for entry in row] for row in batch] for batch in batches]  # type: ignore[misc]
    value = arrow(*batches, kind=kind, other=1)
    decoded = codec("arrow", "v").decode([value, None, value])
    assert decoded.vectors.tolist() == rows * 2
    assert decoded.indices.tolist() == ([0, 2] if rows else [])
    assert decoded.counts.tolist() == ([len(rows)] * 2 if rows else [])
    assert [reject.reason for reject in decoded.rejects] == ["no_value"]


@settings(deadline=None)
@given(rows=st.lists(DOUBLES, min_size=1, max_size=5))
def test_arrow_doubles_are_decoded_bit_for_bit(rows: list[list[float]]) -> None:
    assert codec("arrow").decode([arrow(rows)]).vectors.tobytes() == np.array(rows).tobytes()


def test_arrow_slices_and_compressed_buffers() -> None:
    kind = pa.list_(pa.float64(), D)
    batch = pa.record_batch([pa.array([[9.0] * D, ROW, ROW, [9.0] * D], kind)], ["v"]).slice(1, 2)
    for compression in (None, "lz4", "zstd"):
        out = io.BytesIO()
        with pa.ipc.new_stream(out, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_batch(batch)
        assert codec("arrow").decode([out.getvalue()]).vectors.tolist() == [ROW, ROW]


ARROW = arrow([ROW, ROW])


@pytest.mark.parametrize(
    ("value", "field", "reason", "words"),
    [
        (b"", "", "undecodable", "not an Arrow IPC stream"),
        (ARROW[:-20], "", "undecodable", "not an Arrow IPC stream"),
        (ARROW, "w", "undecodable", "no column 'w' in the record batch: there is 'v'"),
        (arrow([ROW], other=1), "", "undecodable", "2 columns in the record batch: field must name one"),
        (arrow([ROW], other=1), "other", "undecodable", "not int64"),
        (arrow([ROW, [1.0, 2.0]], kind=pa.list_(pa.float64())), "", "wrong_length", "2 numbers, not 3"),
        (arrow([[1.0, 2.0]], kind=pa.list_(pa.float64(), 2)), "", "wrong_length", "2 numbers, not 3"),
        (arrow([ROW, None]), "", "undecodable", "a row of the record batch is null"),  # type: ignore[list-item]
        (arrow([[1.0, None, 2.0]]), "", "undecodable", "an entry of the record batch is null"),  # type: ignore[list-item]
        (arrow([["a", "b", "c"]], kind=pa.list_(pa.string())), "", "undecodable", "lists of numbers"),  # type: ignore[list-item]
        (arrow([[True, False, True]], kind=pa.list_(pa.bool_())), "", "undecodable", "lists of numbers"),
        (arrow([ROW, [1.0, float("inf"), 2.0], ROW]), "", "not_finite", "entry 1 is inf"),
        (arrow([ROW], [ROW, [1.0, 1e200, 2.0]]), "", "too_large", "entry 1"),
    ],
)
def test_invalid_arrow_messages_are_rejected(value: bytes, field: str, reason: str, words: str) -> None:
    actual, message = only_reject(codec("arrow", field).decode([value]))
    assert actual == reason
    assert words in message


def test_an_arrow_message_is_accepted_or_rejected_as_a_whole() -> None:
    bad = arrow([ROW, [1.0, float("nan"), 2.0], [float("inf")] * 3])
    decoded = codec("arrow").decode([ARROW, bad, ARROW, b"?", bad])
    assert decoded.vectors.tolist() == [ROW] * 4
    assert decoded.indices.tolist() == [0, 2]
    assert decoded.counts.tolist() == [2, 2]
    assert [(reject.index, reject.reason, reject.message[:7]) for reject in decoded.rejects] == [
        (1, "not_finite", "entry 1"), (3, "undecodable", "not an "), (4, "not_finite", "entry 1"),
    ]  # fmt: skip


QUIET_NAN, SIGNALLING_NAN = b"\0\0\xc0\x7f", b"\1\0\x80\x7f"  # both single precision


def with_nan(make: Callable[[list[float]], bytes], nan: bytes) -> bytes:
    """A value in which one entry has exactly these bits of a NaN."""
    value = make([1.0, 123.0, 3.0])
    assert value.count(bytes_of([123.0], "<f4")) == 1
    return value.replace(bytes_of([123.0], "<f4"), nan)


@pytest.mark.parametrize("nan", [QUIET_NAN, SIGNALLING_NAN])
@pytest.mark.parametrize(
    ("kind", "field", "make"),
    [
        ("avro", "", lambda row: framed(1, long(3) + bytes_of(row, "<f4") + long(0))),
        ("avro", "", lambda row: framed(2, long(12) + bytes_of(row, "<f4"))),
        ("protobuf", "singles", lambda row: protobuf(reading(singles=row), 3)),
        ("protobuf", "blob", lambda row: protobuf(reading(blob=bytes_of(row, "<f4")), 3)),
        ("arrow", "v", lambda row: arrow([row], kind=pa.list_(pa.float32(), D))),
    ],
)
def test_no_nan_raises_a_warning(kind: str, field: str, make: Callable[[list[float]], bytes], nan: bytes) -> None:
    """The conversion of a signalling NaN would."""
    schemas = memory(WriterSchema("AVRO", '{"type":"array","items":"float"}'), WriterSchema("AVRO", '"bytes"'), READING)
    decoded = codec(kind, field, schemas).decode([with_nan(make, nan)])
    assert only_reject(decoded) == ("not_finite", "entry 1 is nan (missing=impute learns vectors with gaps)")


# All three formats.

KINDS: dict[str, tuple[Callable[[], Codec], bytes]] = {
    "avro": (lambda: codec("avro", "v", memory(GOOD)), WHOLE),
    "protobuf": (lambda: readings("doubles"), protobuf(reading(doubles=ROW, sensor="x"))),
    "arrow": (lambda: codec("arrow", "v"), ARROW),
}


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32))
@pytest.mark.parametrize("kind", KINDS)
def test_corrupted_values_are_decoded_or_rejected_without_an_exception(kind: str, seed: int) -> None:
    make, good = KINDS[kind]
    rng, values = random.Random(seed), []
    for _ in range(4):
        data = bytearray(good)
        for _ in range(rng.randint(0, 3)):
            at = rng.randrange(5 if kind != "arrow" and rng.random() < 0.9 else 0, len(data))
            data[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
        values.append(bytes(data[: rng.choice([None, None, rng.randrange(len(data))])]))
    together, one = make().decode(values), make()
    alone = [one.decode([value]) for value in values]
    assert together.vectors.tobytes() == b"".join(decoded.vectors.tobytes() for decoded in alone)
    assert together.rejects == [
        replace(reject, index=index) for index, decoded in enumerate(alone) for reject in decoded.rejects
    ]
    assert np.isfinite(together.vectors).all()
    assert together.counts.sum() == len(together.vectors)
