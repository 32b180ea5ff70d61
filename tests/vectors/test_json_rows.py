"""simdjson finds the same fields and rows as orjson, to the bit, and parses all ordinary bodies."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streampca.vectors import json_rows
from streampca.vectors.json_rows import parse_rows
from streampca.vectors.json_sizes import count

if sys.version_info >= (3, 14):
    pytest.skip("the extra has no simdjson for this Python", allow_module_level=True)
simdjson = pytest.importorskip("simdjson")
thorough = settings(deadline=None, max_examples=200)

NAMES = ("vectors", "basis", "version")


@pytest.fixture(params=[name for name, _ in simdjson.Parser().get_implementations()])
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each of simdjson's implementations; by default the processor selects one."""
    parser = simdjson.Parser()
    default = parser.implementation[0]
    parser.implementation = request.param
    yield
    parser.implementation = default


def as_array(rows: Any) -> np.ndarray:
    """The rows that orjson found; nothing but numbers, all rows of one length."""
    assert {type(number) for row in rows for number in row} <= {int, float}
    assert len({len(row) for row in rows}) == 1
    return np.array([[float(number) for number in row] for row in rows])


def check(text: bytes, *, accepted: bool | None = None) -> None:
    """What simdjson finds, orjson finds too; `accepted`: whether simdjson parses it."""
    found = parse_rows(text, NAMES)
    if accepted is not None:
        assert (found is not None) is accepted, text
    if found is None:
        return
    expected = orjson.loads(text)
    assert found.keys() == expected.keys(), text
    for name, value in found.items():
        if isinstance(value, np.ndarray):
            rows = as_array(expected[name])
            assert (value.dtype, value.shape, value.tobytes()) == (rows.dtype, rows.shape, rows.tobytes()), text
        else:
            assert (type(value), value) == (type(expected[name]), expected[name]), text


floats = st.floats(allow_nan=False, allow_infinity=False)
numbers = st.one_of(floats, st.floats(-1, 1, width=32), st.integers(-(2**63), 2**64 - 1))
tables = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=1, max_size=4)
)


@thorough
@given(rows=tables, layout=st.integers(0, 3), basis=st.sampled_from(["principal", "é\n", None]))
def test_ordinary_bodies_are_parsed_by_simdjson(rows: list[list[float]], layout: int, basis: str | None) -> None:
    write = [
        lambda value: json.dumps(value).encode(),
        orjson.dumps,
        lambda value: b"\n" + json.dumps(value, indent="\t").encode() + b"\r\n",
        lambda value: json.dumps(value).encode().replace(b",", b" ,\n"),
    ][layout]
    check(write({"vectors": rows}), accepted=True)
    check(write({"version": None, "basis": basis, "vectors": rows}), accepted=True)
    check(write({"basis": basis, "vectors": rows, "version": 2**63 - 1}), accepted=True)


@pytest.mark.parametrize(("n", "d"), [(256, 784), (1, 20_000), (20_000, 1)])
def test_long_bodies_are_parsed_by_simdjson(n: int, d: int) -> None:
    rows = np.random.default_rng(0).standard_normal((n, d))
    check(orjson.dumps({"vectors": rows}, option=orjson.OPT_SERIALIZE_NUMPY), accepted=True)


ROWS = b"[[1,2],[3,4]]"
ACCEPTED = [
    b'{"vectors":@}', b'{"\\u0076ectors":@}', b'{"vectors":[[1]]}',
    b'{"vectors":[[-0,-0.0],[1e-400,18446744073709551615]]}',
    b"{}", b'{"basis":"x"}', b'{"version":-0}', b'{"version":-0.0}', b'{"version":1e2}',
    b'{"version":true,"vectors":@}',
    b'{"vectors":null}', b'{"vectors":"x"}', b'{"vectors":1}', b'{"basis":"\\"]}","vectors":@}', b'{"basis":@}',
    b'{"basis":"\\u0000","vectors":@}', b'{"basis":"\\ud83d\\ude00","vectors":@}',
]  # fmt: skip
DECLINED = [
    # Nested, ragged, empty or mixed rows; of some, the flattened numbers are as many as those of rows.
    b'{"vectors":[]}', b'{"vectors":[[]]}', b'{"vectors":[[],[]]}', b'{"vectors":[1,2]}', b'{"vectors":[[1],2]}',
    b'{"vectors":[1,[2]]}', b'{"vectors":[[1],[]]}', b'{"vectors":[[1],[2,3]]}', b'{"vectors":[[[1,2]]]}',
    b'{"vectors":[[[1],[2]]]}', b'{"vectors":[[1,[2]],[3,4]]}', b'{"vectors":[[[1,2],[]],[3,4]]}',
    b'{"vectors":[[[1,2],3],[[],4]]}', b'{"vectors":[1,[2,[3]]]}', b'{"vectors":[[1,2],{"a":3}]}',
    b'{"vectors":[[1,{}]]}',
    b'{"vectors":[[1,true]]}', b'{"vectors":[[false]]}', b'{"vectors":[[null]]}', b'{"vectors":[["1"]]}',
    b'{"vectors":["12",[1,2]]}', b'{"vectors":["12","34"]}', b'{"vectors":[{"a":1}]}', b'{"vectors":{"0":[1]}}',
    # Numbers that one of the two refuses or rounds.
    b'{"vectors":[[18446744073709551616]]}', b'{"vectors":[[1e400]]}', b'{"vectors":[[NaN]]}', b'{"vectors":[[01]]}',
    b'{"version":18446744073709551616}', b'{"vectors":@,"version":1e400}',
    # Fields: unknown, duplicate, or more than one array.
    b'{"vector":@}', b'{"vectors":@,"more":1}', b'{"vectors":@,"vectors":@}', b'{"vectors":1,"vectors":@}',
    b'{"vectors":@,"\\u0076ectors":1}', b'{"version":1,"version":2,"vectors":@}', b'{"vectors\\u0000":@}',
    b'{"vectors\0":@}', b'{"vectors":@,"basis":[]}', b'{"vectors":@,"basis":@}', b'{"basis":{},"vectors":@}',
    b'{"basis":"[","vectors":@}', b'{"1":1,"2":2,"3":3,"4":4}',
    # Not JSON, or no object.
    b"", b" ", b"{", b"@", b"[@]", b"1", b"null", b'"vectors"', b'{"vectors":@', b'{"vectors":@}}', b'{"vectors":@}{}',
    b'{"vectors":@}\0', b'{"vectors":@,}', b"{'vectors':@}", b'\xef\xbb\xbf{"vectors":@}', b'{"vectors":[[1,]]}',
    b'{"vectors":@,"basis":"\xff"}', b'{"vectors":@,"basis":"\\ud800"}', b'{"vectors":@,"basis":"\xed\xa0\x80"}',
    b'{"vectors":@,"basis":"\x01"}', b'{"vectors":@,"\\ud800":1}', b'{"vectors":@,"basis":tru}',
    b'{"vectors":' + b"[" * 2000 + b"1" + b"]" * 2000 + b"}",
]  # fmt: skip


@pytest.mark.usefixtures("implementation")
def test_bodies_on_either_side() -> None:
    for texts, accepted in ((ACCEPTED, True), (DECLINED, False)):
        for text in texts:
            check(text.replace(b"@", ROWS), accepted=accepted)


pieces = st.sampled_from(
    [*'[]{},:"\\ 0@', '"vectors":', '"vectors":@', '"basis":', '"version":', "\\u0076", "[[0],", "[1,2]", "],[", "null",
     "true", "-0", "1e5", "1.5", '"principal"', "\ufeff", "é"]
)  # fmt: skip


@thorough
@given(
    text=st.lists(pieces, max_size=8).map("".join),
    around=st.sampled_from(["%", "{%}", '{"vectors":[%]}', '{"vectors":[[%]]}', '{"vectors":[[1],[%]]}',
                            '{"vectors":@,%}', '{%,"vectors":@}']),
)  # fmt: skip
def test_anything_like_a_body(text: str, around: str) -> None:
    check(around.replace("%", text).replace("@", ROWS.decode()).encode())


@thorough
@given(text=st.binary(max_size=12))
def test_any_bytes(text: bytes) -> None:
    check(text)
    check(b'{"vectors":[[1' + text + b"]]}")
    check(b'{"basis":"' + text + b'","vectors":[[1]]}')


def test_nothing_is_parsed_without_simdjson(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows, "_simdjson", lambda: None)
    check(b'{"vectors":[[1]]}', accepted=False)


@given(
    st.lists(st.sampled_from([b"[", b"[[", b"]", b"12", "é".encode()]), max_size=50).map(b"".join), st.integers(1, 9)
)
def test_count_counts_as_bytes_do(text: bytes, at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("streampca.vectors.json_sizes._AT_ONCE", at_once)
        assert count(text, b"[") == text.count(b"[")
