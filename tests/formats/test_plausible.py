"""Raw numbers of another type are odd, and honest ones are not, whatever their units and their spread."""

import base64
import re

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from streampca.formats.codec import Codec
from streampca.formats.plausible import explain_problem, find_plausible_formats, find_problem
from streampca.formats.record import Record
from streampca.formats.schemas import WriterSchema
from streampca.pca.arrays import Array
from streampca.pca.missing_values import MissingValues
from tests.formats.structured import avro, codec, ipc
from tests.in_memory.schemas import MemorySchemas

N, D = 100, 8
RNG = np.random.default_rng(7)
SECONDS = "counts and seconds of the epoch"
WHOLE = {
    "counts": RNG.integers(0, 200, (N, D)),
    "signed": RNG.integers(-100, 100, (N, D)),
    "17 bits": RNG.integers(50_000, 150_000, (N, D)),
    SECONDS: np.hstack([RNG.integers(1, 200, (N, D - 1)), 1_700_000_000 + np.arange(N)[:, None]]),
}
REALS = {
    "quarters": np.round(RNG.normal(20, 5, (N, D)) * 4) / 4,
    "tenths": np.round(RNG.normal(20, 5, (N, D)), 1),
    "prices": np.round(RNG.uniform(1000, 5000, (N, D)) * 4) / 4,
    "reals": RNG.normal(size=(N, D)),
}
MEASURED = {
    **{name: X.astype(float) for name, X in WHOLE.items()},
    **REALS,
    "log-normal": RNG.lognormal(0, 3, (N, D)),
    "Cauchy": RNG.standard_cauchy((N, D)),
    "1e-19": RNG.normal(size=(N, D)) * 1e-19,
    "units": RNG.normal(size=(N, D)) * 10.0 ** np.linspace(-20, 20, D),
    "p-values": RNG.uniform(size=(N, D)) ** 3,
    "zeros": np.zeros((N, D)),
    "constant": np.full((N, D), 3.7),
    "mostly zero": np.where(RNG.random((N, D)) < 0.95, 0.0, RNG.normal(size=(N, D))),
    "a third is missing": np.where(RNG.random((N, D)) < 0.3, np.nan, RNG.normal(size=(N, D))),
    "a third is infinite": np.where(RNG.random((N, D)) < 0.3, np.inf, RNG.normal(size=(N, D))),
}


def as_read(X: Array, wire: str, read: str) -> Array:
    """Vectors that were written as one type, read as another."""
    return np.frombuffer(np.ascontiguousarray(X).astype(wire).tobytes(), read).reshape(len(X), -1)


@pytest.mark.parametrize("kind", ["<f8", "<f4"])
@pytest.mark.parametrize("name", MEASURED)
def test_measured_numbers_have_no_problem(name: str, kind: str) -> None:
    assert find_problem(MEASURED[name].astype(kind)) == ""


@pytest.mark.parametrize(
    ("name", "wire", "read"),
    [(name, ">f8", "<f8") for name in {**WHOLE, **REALS}]
    + [(name, f"{order}i8", "<f8") for name in WHOLE for order in "<>"]
    + [(name, ">f4", "<f4") for name in {**WHOLE, **REALS} if name != SECONDS]  # one dimension is ordinary
    + [(name, f"{order}i4", "<f4") for name in WHOLE if name != SECONDS for order in "<>"]
    + [("tenths", "<f8", "<f4"), ("reals", "<f8", "<f4"), ("counts", "u1", "<f4"), ("counts", "<i2", "<f4")],
)
def test_numbers_of_another_type_have_a_problem_and_their_type_is_named(name: str, wire: str, read: str) -> None:
    rows = as_read({**WHOLE, **REALS}[name], wire, read)
    assert find_problem(rows)
    named = find_plausible_formats(rows, rows.shape[1])
    kind = np.dtype(wire)
    d = "" if rows.shape[1] == D else f" (dimensions={D})"
    assert (kind.str if wire[0] == ">" else kind.name) + d in named
    assert named[0] == wire or wire[0] != ">" or kind.kind != "f"  # the other byte order is the first
    floats = ["float" in name or "f" in name for name in named]
    assert floats == sorted(floats, reverse=True)  # integers are last


def test_the_message_says_how_to_continue() -> None:
    rows = as_read(REALS["reals"], ">f8", "<f8")
    assert explain_problem(REALS["reals"], is_raw_format=True, dimensions=D) == ""
    raw = explain_problem(rows, is_raw_format=True, dimensions=D)
    assert re.search(r"read as float64, the middle 80 % .* span \d+ decades; .* plausible as >f8, .*format=<f8 if", raw)
    assert "(in the other byte order they are plausible); the producer must write little-end" in explain_problem(
        rows, is_raw_format=False, dimensions=D
    )


@given(rows=arrays.arrays("<f8", (30, 2), elements=st.floats(allow_subnormal=True)), scale=st.sampled_from([1, -1]))
def test_neither_zeros_nor_signs_nor_the_order_of_records_say_anything(rows: Array, scale: int) -> None:
    found = find_problem(rows)
    zeros = np.zeros((3, 2))
    zeros[0] = np.nan
    assert find_problem(scale * np.vstack([zeros, rows[::-1]])) == found


@given(st.binary(min_size=48, max_size=48), st.sampled_from([4, 8]), st.integers(1, 3), st.booleans())
def test_any_bytes_can_be_explained(data: bytes, width: int, n: int, raw: bool) -> None:
    rows = np.frombuffer(data, f"<f{width}").reshape(n, -1)
    assert isinstance(explain_problem(rows, is_raw_format=raw, dimensions=rows.shape[1]), str)


def test_the_spread_of_fewer_than_20_numbers_is_not_judged() -> None:
    spread = np.zeros((30, 2))
    spread[:19, 0] = 10.0 ** np.linspace(-200, 200, 19)
    assert find_problem(spread) == ""
    spread[19, 0] = 1.0
    assert "decades" in find_problem(spread)


def test_wide_vectors_are_sampled() -> None:
    wide = np.tile(REALS["reals"], (1, 5000))[:20]
    assert find_problem(wide) == ""
    assert find_problem(as_read(wide, ">f8", "<f8"))


SCHEMA = WriterSchema("AVRO", '{"type": "record", "name": "R", "fields": [{"name": "v", "type": "bytes"}]}')


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("kind", ["avro", "json"])
def test_floats_in_bytes_and_base64_are_compared_too(kind: str, width: int, order: str) -> None:
    decoder, schemas = codec(kind, "v", MemorySchemas({1: SCHEMA}), d=D), MemorySchemas({1: SCHEMA})
    data = [row.astype(f"{order}f{width}").tobytes() for row in REALS["quarters"]]
    if kind == "avro":
        values = [avro(schemas.get(1), {"v": row}) for row in data]
    else:
        values = [orjson.dumps({"v": base64.b64encode(row).decode()}) for row in data]
    odd = decoder.explain_wrong_type(
        decoder.sample_untyped([Record(0, value) for value in (None, b"neither", *values)])
    )
    assert ("little-endian" in odd) == (order == ">")


@pytest.mark.parametrize("kind", ["json", "npy", "<f8", ">f8", "int64", "float16"])
def test_formats_that_name_the_type_are_not_compared(kind: str) -> None:
    foreign = [row.astype(">f8").tobytes() for row in REALS["reals"]]
    values = foreign if kind != "json" else [orjson.dumps({"v": row}) for row in REALS["reals"].tolist()]
    assert codec(kind, "v" if kind == "json" else "", d=D).sample_untyped([Record(0, value) for value in values]) == []


def test_floats_in_a_column_of_bytes_are_compared_beside_a_batch_without_rows() -> None:
    column = pa.array([row.astype(">f8").tobytes() for row in REALS["quarters"]])
    batch = pa.record_batch([column], ["v"])
    value = ipc(batch.schema, [batch, batch.slice(0, 0)])
    assert "little-endian" in explain(codec("arrow", d=D), [Record(0, value)])


def test_missing_values_are_left_out_of_the_comparison() -> None:
    """A fill value is far from all measured numbers, but its bytes were not misread."""
    rows = np.where(RNG.random((N, D)) < 0.3, 1.7e308, RNG.normal(size=(N, D)))
    records = [Record(0, row.tobytes()) for row in rows]
    assert "decades" in explain(codec("float64", d=D), records)
    with_missing_values = codec("float64", d=D, missing_values=MissingValues.of("1.7e308", "float64"))
    assert explain(with_missing_values, records) == ""


def explain(decoder: Codec, records: list[Record]) -> str:
    return decoder.explain_wrong_type(decoder.sample_untyped(records))
