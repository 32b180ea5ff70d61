"""Avro: values of fastavro are decoded bit for bit; hostile schemas and values reject their records alone."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streampca.formats.layout import varint
from streampca.formats.schemas import WriterSchema
from tests.command_line import output_of
from tests.formats.structured import (
    ARRAY,
    DOUBLES,
    GAPPY,
    INTEGERS,
    READING,
    ROW,
    SINGLES,
    D,
    assert_rejected,
    avro,
    avro_datum,
    avro_schema,
    bytes_of,
    codec,
    framed,
    long,
    memory,
    only_reject,
)


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


@pytest.mark.parametrize(("one", "other"), [("first", "second"), ("second", "first")])
def test_avro_a_named_type_may_be_used_twice(one: str, other: str) -> None:
    """At its second use the vector's type is given by name only, which the fast path does not resolve."""
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "v", "type": ARRAY}]}
    outer = {"type": "record", "name": "Outer", "fields": [
        {"name": "first", "type": inner}, {"name": "second", "type": "Inner"},
    ]}  # fmt: skip
    schema = WriterSchema("AVRO", json.dumps(outer))
    value = avro(schema, {one: {"v": ROW}, other: {"v": [0.0] * 5}})
    assert codec("avro", f"{one}.v", memory(schema)).decode([value]).vectors.tolist() == [ROW]


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
        (b"", "undecodable", "not framed"),
        (b"\0\0\0\0", "undecodable", "not framed"),
        (b"\2" + WHOLE[1:], "undecodable", "not framed"),
        (b"\1" + WHOLE[1:16], "undecodable", "not framed"),
        (framed(77, WHOLE[5:]), "unknown_schema", "does not know schema 77"),
        (framed(2, WHOLE[5:]), "undecodable", "schema 2 is PROTOBUF, not AVRO"),
        (framed(3, WHOLE[5:]), "undecodable", "schema 3 cannot be used"),
        (framed(4, b""), "undecodable", "no field 'v'"),
        (WHOLE[:-1], "undecodable", "not Avro of its schema"),
        (WHOLE + b"\0", "undecodable", "left over"),
        (WHOLE[:5], "undecodable", "not Avro of its schema"),
        (avro(GOOD, avro_datum([1.0, 2.0], "v")), "wrong_length", "2 numbers, not 3"),
        (avro(GOOD, avro_datum([1.0, float("nan"), 2.0], "v")), "not_finite", "entry 1 is nan"),
        (avro(GOOD, avro_datum([1.0, 2.0, -1e200], "v")), "too_large", "entry 2"),
        (framed(7, long(5) + b"12345"), "wrong_length", "5 bytes are not 3 numbers"),
        (framed(8, long(1) + b"x"), "undecodable", "not a string"),
    ],
)
def test_invalid_avro_vectors_are_rejected(value: bytes, reason: str, words: str) -> None:
    schemas = memory(GOOD, READING, WriterSchema("AVRO", "{"), *(
        WriterSchema("AVRO", json.dumps(kind))
        for kind in (
            {"type": "record", "name": "None", "fields": []},
            "int", {"type": "array", "items": "boolean"}, "bytes", "string",
        )
    ))  # fmt: skip
    schema_id = value[4] if len(value) > 4 and value[0] == 0 else 1
    assert_rejected(codec("avro", "" if schema_id in (5, 6, 7, 8) else "v", schemas).decode([value]), reason, words)


@pytest.mark.parametrize("min_observed", [2, None])
def test_null_and_nan_in_avro_are_missing_entries(min_observed: int | None) -> None:
    rows = [[None if np.isnan(entry) else entry for entry in row] for row in GAPPY.tolist()]
    nulls, plain = avro_schema({"type": "array", "items": ["null", "double"]}, "v"), avro_schema(ARRAY, "v")
    values = [avro(nulls, avro_datum(row, "v")) for row in rows]
    values += [avro(plain, avro_datum(row, "v"), schema_id=2) for row in GAPPY.tolist()]
    decoded = codec("avro", "v", memory(nulls, plain), 4, min_observed=min_observed).decode(values)
    assert decoded.vectors.tobytes() == np.tile(GAPPY[[0, 1, 3] if min_observed else [1]], (2, 1)).tobytes()
    assert {reject.reason for reject in decoded.rejects} == (
        {"too_few_observed"} if min_observed else {"undecodable", "not_finite"}
    )
    assert min_observed or all("missing=impute" in reject.message for reject in decoded.rejects)


# Schemas and values made to break a decoder.


VECTOR = varint(2 * D) + np.zeros(D).tobytes() + b"\0"  # counts are zigzag varints


def avro_beside(other: Any, name: str = "R") -> WriterSchema:
    """A record of a vector and something else."""
    fields = [{"name": "v", "type": ARRAY}, {"name": "other", "type": other}]
    return WriterSchema("AVRO", json.dumps({"type": "record", "name": name, "fields": fields}))


def rejected(schema: WriterSchema, value: bytes) -> tuple[str, str]:
    return only_reject(codec("avro", "v", memory(schema)).decode([value]))


def logical(base: str, name: str) -> dict[str, str]:
    return {"type": base, "logicalType": name}


TIMES = [
    (logical("long", "timestamp-micros"), 2**63 - 1), (logical("long", "timestamp-millis"), 253402300800000),
    (logical("long", "local-timestamp-micros"), 2**63 - 1), (logical("int", "date"), -800000),
    (logical("int", "time-millis"), 86400000), (logical("long", "time-micros"), -1), (logical("string", "uuid"), "x"),
]  # fmt: skip


def encode_plainly(schema: Any, datum: Any) -> bytes:
    """A record as it is written by a schema of the same bytes without logical types."""
    text = json.dumps(schema)
    for kind, _ in TIMES:
        text = text.replace(json.dumps(kind), json.dumps(kind["type"]))
    return avro(WriterSchema("AVRO", text), datum)


@pytest.mark.parametrize(("kind", "datum"), [*TIMES, ("string", "Straße".encode("latin-1"))])
@pytest.mark.parametrize("vector", [ARRAY, {"type": "array", "items": "int"}], ids=["fast", "slow"])
@pytest.mark.parametrize("wrap", [lambda kind: kind, lambda kind: ["null", kind]], ids=["plain", "nullable"])
def test_what_lies_beside_the_vector_rejects_nothing(kind: Any, datum: Any, vector: Any, wrap: Any) -> None:
    fields = [{"name": "x", "type": wrap(kind)}, {"name": "v", "type": vector}, {"name": "y", "type": wrap(kind)}]
    schema = {"type": "record", "name": "R", "fields": fields}
    plain = "bytes" if kind == "string" else kind["type"]  # bytes are written as texts are
    written = {**schema, "fields": [{**field, "type": wrap(plain)} for field in fields]}
    written["fields"][1]["type"] = vector
    value = avro(WriterSchema("AVRO", json.dumps(written)), {"x": datum, "v": [1, 2, 3], "y": datum})
    decoded = codec("avro", "v", memory(WriterSchema("AVRO", json.dumps(schema)))).decode([value])
    assert decoded.vectors.tolist() == [[1, 2, 3]], decoded.rejects


@pytest.mark.parametrize(("kind", "datum"), TIMES)
@pytest.mark.parametrize("around", [[], ["a"]])
def test_a_path_that_ends_at_a_time_is_refused_by_its_name(kind: Any, datum: Any, around: list[str]) -> None:
    schema = avro_schema(["null", kind], *around, "at")
    value = encode_plainly(json.loads(schema.text), avro_datum(datum, *around, "at"))
    path = ".".join([*around, "at"])
    reason, message = only_reject(codec("avro", f"{path},w", memory(schema), 2).decode([value]))
    assert (reason, message) == (
        "undecodable",
        f"schema 1: the field '{path}' is not a number but a {kind['logicalType']}",
    )


RECURSIVE = avro_beside(["null", "R"])


NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": {"type": "array", "items": "Node"}}]}


@pytest.mark.parametrize("schema", [RECURSIVE, avro_beside({"type": "map", "values": "R"}), avro_beside(NODE)])
def test_recursive_avro_schemas_are_refused(schema: WriterSchema) -> None:
    assert rejected(schema, framed(1, VECTOR + b"\0")) == (
        "undecodable", f"schema 1: recursive schemas are not supported ({'Node' if 'Node' in schema.text else 'R'!r} "
        "contains itself)",
    )  # fmt: skip


def test_deeply_nested_avro_does_not_overflow_the_stack() -> None:
    script = """
from tests.formats.test_avro import *
print(rejected(RECURSIVE, framed(1, (VECTOR + b"\\2") * 50_000 + VECTOR + b"\\0"))[0])
"""
    assert output_of(script) == "undecodable"


EMPTY = {"type": "record", "name": "Empty", "fields": [{"name": "n", "type": "null"}]}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("items", ["null", EMPTY, {"type": "fixed", "name": "F", "size": 0}])
def test_avro_arrays_of_items_without_bytes_are_refused(items: Any) -> None:
    """10¹² items in six bytes."""
    schemas = memory(avro_beside({"type": "array", "items": items}))
    decoded = codec("avro", "v", schemas).decode([framed(1, VECTOR + varint(2 * 10**12))])
    assert_rejected(decoded, "undecodable", "items without bytes")


def test_avro_schemas_that_grow_exponentially_are_refused() -> None:
    """Each type holds the previous one twice: no bytes, 2⁶⁰ objects."""
    types = {f"T{i}": json.dumps({"type": "record", "name": f"T{i}", "fields": [
        {"name": name, "type": f"T{i - 1}" if i else "null"} for name in "ab"
    ]}) for i in range(60)}  # fmt: skip
    assert "more than 10000 types" in rejected(avro_beside("T59")._replace(references=types), framed(1, VECTOR))[1]


@pytest.mark.parametrize("depth", [150, 5000])
def test_deeply_nested_avro_schemas_are_read_or_refused(depth: int) -> None:
    types = {f"T{i}": json.dumps({"type": "record", "name": f"T{i}", "fields": [
        {"name": "a", "type": f"T{i - 1}" if i else "long"},
    ]}) for i in range(depth)}  # fmt: skip
    schema = avro_beside(f"T{depth - 1}")._replace(references=types)
    rejects = codec("avro", "v", memory(schema)).decode([framed(1, VECTOR + b"\0")]).rejects
    assert [reject.reason for reject in rejects] == ([] if depth == 150 else ["undecodable"])


@pytest.mark.parametrize(
    "other",
    [
        "null", ["null", "string"], {"type": "enum", "name": "E", "symbols": ["A"]}, EMPTY,
        {"type": "map", "values": "null"}, {"type": "array", "items": ["null", "long"]},
        {"type": "long", "logicalType": "timestamp-millis"}, {"type": "string"},
    ],
)  # fmt: skip
def test_other_fields_of_an_avro_record_may_have_any_usual_type(other: Any) -> None:
    value = framed(1, VECTOR + (b"" if other in ("null", EMPTY) else b"\0"))
    decoded = codec("avro", "v", memory(avro_beside(other))).decode([value])
    assert decoded.rejects == []
    assert decoded.vectors.shape == (1, D)
