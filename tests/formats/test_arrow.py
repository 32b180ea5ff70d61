"""Arrow: rows of pyarrow are decoded bit for bit, up to a limit of bytes; a message is accepted or rejected whole."""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from tests.formats.structured import (
    GAPPY,
    ROW,
    WIDE,
    D,
    arrow,
    assert_rejected,
    codec,
    ipc,
    skipped_in,
    stream,
    zeros,
)

LISTS = [
    pa.list_(pa.float64(), D), pa.list_(pa.float32(), D), pa.list_(pa.float64()), pa.large_list(pa.float32()),
    pa.list_(pa.int32()), pa.list_(pa.float16(), D),
]  # fmt: skip


@settings(deadline=None)
@given(batches=st.lists(st.lists(st.lists(st.integers(-100, 100), min_size=D, max_size=D), max_size=4), max_size=3))
@pytest.mark.parametrize("kind", LISTS, ids=str)
def test_each_row_of_an_arrow_list_column_is_a_vector(kind: Any, batches: list[list[list[int]]]) -> None:
    rows = [row for batch in batches for row in batch]
    if pa.types.is_float16(kind.value_type):
        batches = [[[np.float16(entry) for entry in row] for row in batch] for batch in batches]  # type: ignore[misc]
    value = arrow(*batches, kind=kind, other=1)
    decoded = codec("arrow", "v").decode([value, None, value])
    assert decoded.vectors.tolist() == rows * 2
    assert decoded.indices.tolist() == ([0, 2] if rows else [])
    assert decoded.counts.tolist() == ([len(rows)] * 2 if rows else [])
    assert (decoded.rejects, skipped_in(decoded)) == ([], [1])


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_slices_and_compressed_buffers_of_arrow_are_read(compression: str | None) -> None:
    kind = pa.list_(pa.float64(), D)
    batch = pa.record_batch([pa.array([[9.0] * D, ROW, ROW, [9.0] * D], kind)], ["v"]).slice(1, 2)
    assert codec("arrow").decode([ipc(batch.schema, [batch], compression)]).vectors.tolist() == [ROW, ROW]


ARROW = arrow([ROW, ROW])


@pytest.mark.parametrize(
    ("value", "field", "reason", "words"),
    [
        (b"", "", "undecodable", "not an Arrow IPC stream"),
        (ARROW[:-20], "", "undecodable", "not an Arrow IPC stream"),
        (ARROW, "w", "undecodable", "no column 'w' in the record batch: there is 'v'"),
        (arrow([ROW], other=1), "", "undecodable", "2 columns in the record batch: field must name one"),
        (arrow([ROW], other=1), "other", "wrong_length", "1 numbers, not 3"),
        (arrow([ROW, [1.0, 2.0]], kind=pa.list_(pa.float64())), "", "wrong_length", "2 numbers, not 3"),
        (arrow([[1.0, 2.0]], kind=pa.list_(pa.float64(), 2)), "", "wrong_length", "2 numbers, not 3"),
        (arrow([[1.0, None, 2.0]]), "", "undecodable", "an entry of the record batch is null"),  # type: ignore[list-item]
        (
            arrow([["a", "b", "c"]], kind=pa.list_(pa.string())),
            "",
            "undecodable",
            "entry 0 must be a number, not a string",
        ),  # type: ignore[list-item]
        (arrow([ROW, [1.0, float("inf"), 2.0], ROW]), "", "not_finite", "entry 1 is inf"),
        (arrow([ROW], [ROW, [1.0, 1e200, 2.0]]), "", "too_large", "entry 1"),
    ],
)
def test_invalid_arrow_messages_are_rejected(value: bytes, field: str, reason: str, words: str) -> None:
    assert_rejected(codec("arrow", field).decode([value]), reason, words)


POINTS = [{"x": 1, "y": 2}, {"x": 3, "y": None}]
TABLE = pa.record_batch({
    "s": pa.array(POINTS), "n": pa.array([True, False]), "z": pa.array([Decimal("1.5"), Decimal("-2.25")]),
    "v": pa.array([[1.0, 2.0], None]), "rows": pa.array([POINTS[:1], POINTS[:1] * 2]),
    "half": pa.array(np.array([1, 2], np.float16)), "text": pa.array(["[1,2]", "AAAAAAAAAAA="]),
    "when": pa.array([1, 2], pa.timestamp("ms")), "none": pa.array([None, {"x": 1.0, "y": 2.0}]),
})  # fmt: skip


@pytest.mark.parametrize(
    ("field", "rows"),
    [
        ("s.x,s.y", [[1, 2], [3, np.nan]]), ("z,n", [[1.5, 1], [-2.25, 0]]), ("half,s.x", [[1, 1], [2, 3]]),
        ("v", [[1, 2]]), ("rows.x,rows.y", [[1, 2]] * 3), ("text", [[1, 2], [0, 0]]), ("none.y,none.x", [[2, 1]]),
        ("s.x,s.w", [[1, np.nan], [3, np.nan]]), ("z,no.w", [[1.5, np.nan], [-2.25, np.nan]]),
    ],
)  # fmt: skip
def test_columns_structs_and_text_may_hold_vectors(field: str, rows: list[list[float]]) -> None:
    decoded = codec("arrow", field, d=2, min_observed=1).decode([ipc(TABLE.schema, [TABLE])])
    assert decoded.rejects == []
    np.testing.assert_array_equal(decoded.vectors, rows)


@pytest.mark.parametrize(
    ("field", "reason", "words"),
    [
        ("when,z", "undecodable", "'when' must be a number, not a datetime"), ("s.u,s.w", "undecodable", "but not 'u'"),
        ("text,z", "wrong_length", "some paths lead to arrays"), ("s", "undecodable", "not an object"),
        ("s.x,s.y,z", "wrong_length", "3 numbers, not 2"), ("v.x", "undecodable", "a number has no field 'x'"),
    ],
)  # fmt: skip
def test_arrow_columns_without_a_vector_are_rejected(field: str, reason: str, words: str) -> None:
    decoder = codec("arrow", field, d=2, min_observed=1)
    assert_rejected(decoder.decode([ipc(TABLE.schema, [TABLE])]), reason, words)


def test_an_arrow_message_is_accepted_or_rejected_as_a_whole() -> None:
    bad = arrow([ROW, [1.0, float("nan"), 2.0], [float("inf")] * 3])
    decoded = codec("arrow").decode([ARROW, bad, ARROW, b"?", bad])
    assert decoded.vectors.tolist() == [ROW] * 4
    assert (decoded.indices.tolist(), decoded.counts.tolist()) == ([0, 2], [2, 2])
    assert [(reject.index, reject.reason, reject.message[:7]) for reject in decoded.rejects] == [
        (1, "not_finite", "entry 1"), (3, "undecodable", "not an "), (4, "not_finite", "entry 1"),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [pa.list_(pa.float64(), 4), pa.list_(pa.float32()), pa.large_list(pa.int32())])
@pytest.mark.parametrize("min_observed", [2, None])
def test_null_entries_of_arrow_are_missing_entries(kind: Any, min_observed: int | None) -> None:
    rows = [[None if np.isnan(entry) else int(entry) for entry in row] for row in GAPPY.tolist()]
    values = [arrow(rows[:2], kind=kind), arrow(rows[2:], kind=kind), arrow([rows[1], None], kind=kind)]
    decoded = codec("arrow", "", None, 4, min_observed=min_observed).decode(values)
    assert decoded.vectors.tobytes() == (GAPPY[[0, 1, 1] if min_observed else [1]].tobytes())
    found = [(reject.index, reject.reason) for reject in decoded.rejects]
    assert found == ([(1, "too_few_observed")] if min_observed else [(0, "undecodable"), (1, "undecodable")])
    assert min_observed or "missing=impute" in decoded.rejects[0].message


MIB = 2**20


def reject_reasons(value: bytes) -> list[str]:
    """The reason for which the value is rejected, if it is."""
    return [reject.reason for reject in codec("arrow", "v", d=WIDE).decode([value]).rejects]


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
@pytest.mark.parametrize("dtype", ["f8", "i1"])  # of a byte, which becomes eight
def test_arrow_is_learned_up_to_64_mib(compression: str | None, dtype: str) -> None:
    row = WIDE * (8 + np.dtype(dtype).itemsize)
    batches, most = 8, 64 * MIB // row // 8
    assert reject_reasons(zeros(most, compression, batches, dtype)) == []
    assert reject_reasons(zeros(most + 1, compression, batches, dtype)) == ["too_many_bytes"]


def test_arrow_beyond_64_mib_is_not_decoded() -> None:
    assert reject_reasons(bytes(64 * MIB)) == ["undecodable"]
    assert reject_reasons(bytes(64 * MIB + 1)) == ["too_many_bytes"]


@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.large_list(pa.float32())], ids=str)
def test_damaged_offsets_are_not_followed(kind: Any) -> None:
    """Neither into other memory, nor to a size that no buffer has."""
    values = pa.array([[1.0] * D] * 3, kind)
    _, offsets, *_ = values.buffers()
    value = arrow([[1.0] * D] * 3, kind=kind)
    damaged = np.frombuffer(offsets, values.offsets.type.to_pandas_dtype()).copy()
    damaged[3] = 2**30
    old = memoryview(offsets)[: 4 * damaged.itemsize].tobytes()
    assert value.count(old) == 1
    value = value.replace(old, damaged[:4].tobytes())
    assert_rejected(codec("arrow").decode([value]), "undecodable", "not an Arrow IPC stream")


def test_arrow_lists_without_numbers_are_rejected() -> None:
    """Two billion of them are a short value."""
    kind = pa.list_(pa.float64(), 0)
    column = pa.Array.from_buffers(kind, 2**31 - 1, [None], children=[pa.array([], pa.float64())])
    assert reject_reasons(stream(column)) == ["too_many_bytes"]


def latin_1(rows: int) -> Any:
    """Texts that are not UTF-8."""
    return pa.array(["Straße".encode("latin-1")] * rows).view(pa.string())


BESIDE = {
    "a column": lambda texts: texts,
    "a struct": lambda texts: pa.StructArray.from_arrays([texts], ["text"]),
    "lists": lambda texts: pa.FixedSizeListArray.from_arrays(texts, 1),
    "a map": lambda texts: pa.MapArray.from_arrays(list(range(len(texts) + 1)), texts, texts),
    "lists of structs": lambda texts: pa.ListArray.from_arrays(
        list(range(len(texts) + 1)), pa.StructArray.from_arrays([texts], ["text"])
    ),
}


@pytest.mark.parametrize("around", [False, True], ids=["beside", "in the struct of the vector"])
@pytest.mark.parametrize("vector", ["numbers", "text"])
@pytest.mark.parametrize("place", BESIDE)
def test_text_in_any_encoding_rejects_nothing_beside_the_vector(place: str, vector: str, around: bool) -> None:
    vectors = pa.array([[1.0, 2.0, 3.0]] * 2) if vector == "numbers" else pa.array(["[1, 2, 3]"] * 2)
    columns = {"v": vectors, "other": BESIDE[place](latin_1(2))}
    if around:
        columns = {"s": pa.StructArray.from_arrays(list(columns.values()), list(columns))}
    batch = pa.record_batch(columns)
    decoded = codec("arrow", "s.v" if around else "v").decode([ipc(batch.schema, [batch])])
    assert decoded.vectors.tolist() == [[1, 2, 3]] * 2, decoded.rejects


@pytest.mark.parametrize("around", [False, True])
def test_sparse_vectors_are_refused_as_sparse(around: bool) -> None:
    columns = {"indices": pa.array([None, [0, 2]]), "values": pa.array([[1.0, 2.0], [3.0, 4.0]])}
    if around:
        columns = {"s": pa.StructArray.from_arrays(list(columns.values()), list(columns))}
    batch = pa.record_batch(columns)
    field = "s.values" if around else "values"
    dense, whole = ipc(batch.schema, [batch.slice(0, 1)]), ipc(batch.schema, [batch])
    decoded = codec("arrow", field, d=2).decode([dense, whole])
    assert decoded.vectors.tolist() == [[1, 2]]
    assert ["sparse" in reject.message for reject in decoded.rejects] == [True]


TEXT_TYPES = {
    "string": pa.string(), "large string": pa.large_string(), "binary": pa.binary(),
    "dictionary": pa.dictionary(pa.int8(), pa.string()),
}  # fmt: skip


@pytest.mark.parametrize("kind", TEXT_TYPES)
@pytest.mark.parametrize(
    ("types", "row_numbers"),
    [(["cpu", "cpu"], [0, 1]), (["cpu", "mem"], [0]), (["mem", "cpu"], [1]), ([None, "cpu"], [1]), (["mem", None], [])],
)
def test_rows_that_do_not_meet_the_conditions_are_left_out(
    kind: str, types: list[str | None], row_numbers: list[int]
) -> None:
    rows = np.arange(6.0).reshape(2, 3)
    columns = {
        "v": pa.array(rows.tolist()),
        "type": pa.array(types).cast(pa.binary() if kind == "binary" else pa.string()),
    }
    if kind not in ("string", "binary"):
        columns["type"] = pa.array(types, TEXT_TYPES[kind])
    batch = pa.record_batch(columns)
    decoded = codec("arrow", "v", where="type=cpu").decode([ipc(batch.schema, [batch])])
    assert decoded.rejects == []
    assert decoded.vectors.tolist() == rows[row_numbers].tolist()
    assert [skipped.reason for skipped in decoded.skipped] == ([] if row_numbers else ["where"])


def test_a_text_that_is_needed_and_is_not_utf_8_is_named() -> None:
    batch = pa.record_batch({"v": pa.array([[1.0, 2.0, 3.0]] * 2), "type": latin_1(2)})
    decoded = codec("arrow", "v", where="type=cpu").decode([ipc(batch.schema, [batch])])
    assert_rejected(decoded, "undecodable", "the field 'type' holds a text that is not UTF-8")


def test_elements_that_change_their_places_are_warned_of() -> None:
    rows = [[{"id": name, "v": float(ord(name))} for name in names] for names in ("abc", "cab")]
    values = []
    for row in rows:
        batch = pa.record_batch({"values": [row]})
        values.append(ipc(batch.schema, [batch]))
    reader = codec("arrow", "values.v")
    assert reader.decode(values[:1]).warning == ""
    warning = reader.decode(values).warning
    assert "such as by field=values[id=c].v" in warning
    better = codec("arrow", ",".join(f"values[id={name}].v" for name in "abc")).decode(values)
    assert better.vectors.tolist() == [[97, 98, 99]] * 2
    assert better.warning == ""
