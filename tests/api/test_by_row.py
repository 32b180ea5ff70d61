"""A body read row by row is never but what it is read at once, to the bit and to the word; ordinary ones always are."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from streampca.api import by_row, parsing
from streampca.api.by_row import fields_by_row
from streampca.api.request import Body, RequestError
from tests.api.test_faults import JSON

PROJECT, RECONSTRUCT = ("vectors",), ("coordinates", "vectors")
CHANCE = np.random.default_rng(0)
thorough = settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def short(reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short bodies and rows are read as long ones are."""
    monkeypatch.setattr(by_row, "_LONG_BODY", 0)
    monkeypatch.setattr(by_row, "_LONG_ROW", 1)


def outcome(text: bytes, names: Sequence[str], width: int, most: int) -> list[Any]:
    """All that can be asked of a body, as answers or faults."""
    told: list[Any] = []
    for ask in (
        lambda: parsing.parse(Body(text), names).basis,
        lambda: parsing.parse(Body(text), names).version,
        lambda: [parsing.parse(Body(text), names).has(name) for name in names],
        *(lambda name=name: numbers_of(parsing.parse(Body(text), names).rows(name, width, most)) for name in names),
    ):
        try:
            told.append(ask())
        except RequestError as fault:
            told.append((fault.status, str(fault)))
    return told


def numbers_of(rows: np.ndarray) -> tuple[Any, ...]:
    return rows.shape, rows.dtype, rows.tobytes()


def check(text: bytes, names: Sequence[str] = PROJECT, *, taken: bool | None = None, width: int = 2) -> None:
    """Both ways give the same; `taken`: whether rows are read one by one."""
    found = fields_by_row(text, names)
    by_rows = [outcome(text, names, width, most) for most in (2, 100)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parsing, "fields_by_row", lambda text, names: None)
        assert by_rows == [outcome(text, names, width, most) for most in (2, 100)], text
    if taken is not None:
        assert (found is not None) is taken, text


# --- what is read row by row ----------------------------------------------------------------------------------------

numbers = (
    st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(width=32).filter(np.isfinite)
)
tables = st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=1, max_size=4)


@pytest.mark.usefixtures("short")
@thorough
@given(rows=tables, layout=st.integers(0, 3), before=st.booleans(), version=st.none() | st.integers(0, 9))
def test_ordinary_bodies_are_read_row_by_row(rows: list[list[float]], layout: int, before: bool, version: Any) -> None:
    write = [
        orjson.dumps,
        lambda content: json.dumps(content).encode(),
        lambda content: b"\n" + json.dumps(content, indent="\t").encode() + b"\r\n",
        lambda content: json.dumps(content).encode().replace(b",", b" ,\n").replace(b"[", b"[\r").replace(b"]", b"\t]"),
    ][layout]
    others = {"basis": "whitened", "version": version}
    check(write({"vectors": rows}), taken=True)
    check(write(others | {"vectors": rows} if before else {"vectors": rows} | others), taken=True)
    check(write({"coordinates": rows, "version": version}), RECONSTRUCT, taken=True)
    check(write({"vectors": rows, "coordinates": None}), RECONSTRUCT, taken=True)
    check(write({"vectors": rows}), taken=True, width=3)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    "body",
    [
        b'{"vectors":@}', b'{"vectors":@,"version":7}', b'{"version":-7.5,"vectors":@}',
        b' {"basis" : "x", "vectors" : @ } ', b'{"vectors":@,"other":1}', b'{"\xc3\xa9":{"vectors":0},"vectors":@}',
        b'{"\\u0076ectors":@}', b'{"vectors":1,"vectors":@}',
        b'{"version":1,"version":{"a":null},"vectors":@,"basis":"\\"\\\\"}', b'{"vectors":@,"basis":"{}"}',
        b'{"vectors":@,"basis":"["}', b'{"basis":"]","vectors":@}', b'{"vectors":@,"version":true}',
        b'{"vectors":@,"version":18446744073709551615}',
        b'{"coordinates":{},"vectors":@,"version":1e5}',
    ],
)  # fmt: skip
def test_frames_that_are_read_by_orjson_say_the_rest(body: bytes) -> None:
    for rows in (
        b"[[1,2]]",
        b"[[1,-2.5e3],[0,-0]]",
        b"[ [ 1 , 2 ] , [ 3 , 4 ] ]",
        b"[[1],[2]]",
        b"[[1,2],[3,4],[5,6]]",
    ):
        check(body.replace(b"@", rows), taken=True)


# --- what is left to who reads all at once --------------------------------------------------------------------------

ROWS = b"[[1,2],[3,4]]"
LEFT_ROWS = [
    b"[]", b"[[]]", b"[[],[]]", b"[[1,2],[]]", b"[[1,2],[3]]", b"[[1],[2,3]]", b"[[1,2],3]", b"[1,2]", b"[[[1,2]]]",
    b"[[[1],2]]", b"[[1,[2]]]", b"[[1,2],[[3,4]]]", b"[[1,[2],[]]]", b"[[1,2],]", b"[,[1,2]]", b"[[1,2],,[3,4]]",
    b"[[1,2][3,4]]", b"[[1,2] [3,4]]", b"[[1,2];[3,4]]", b"[[1,2],\x0b[3,4]]", b"[[1,2],\xa0[3,4]]", b"[[1,2],\0[3,4]]",
    b"[[1,2]\0]", b"[\x0c[1,2]]", b"[[1,2],[3,4]", b"[[1,2],[3,4]]]", b"[[1,2],[3,4", b"[[1,2],[3,4}]",
    b"[[1,2],[3,true]]", b"[[1,2],[false,4]]", b"[[true,2]]", b"[[1,2],[3,null]]", b'[[1,"2"]]', b"[[1,{}]]",
    b'[[1,2],{"a":[3,4]}]', b"[[1,2],null]", b"[null,[1,2]]", b"[[1,2],null,[3,4]]", b"[[1,2],1,[3,4]]",
    b'[[1,2],"",[3,4]]', b'["[1,2]"]', b'[[1,"]"]]', b'[[1,2],["],[",3]]', b'["",[1,2]]', b"[[NaN,1]]",
    b"[[1,Infinity]]", b"[[1,-Infinity]]", b"[[1,1e400]]", b"[[1,01]]", b"[[1,+1]]", b"[[1,.5]]", b"[[1,5.]]",
    b"[[1,2,]]", b"[[,1]]", b"[[1 2]]", b"[[1,2],[3,\xff]]", b"[[1,2]//\n,[3,4]]", b"[[1,2],\xef\xbb\xbf[3,4]]",
    b"[\xef\xbb\xbf[1,2]]", b"[[1,-]]", b"[[1,'2']]", b'{"a":[[1,2]]}', b'"[[1,2]]"', b"[[1,2],[3,4]],[[5,6]]",
    b"[[1,2]],\"vectors\":[[3,4]]", b"[[1,2]],\"version\":[3,4]", b"[" * 1030 + b"]" * 1030,
    b"[" * 1030 + b"1,2" + b"]" * 1030, b"[[" + b"[" * 1030 + b"]" * 1030 + b",2],[3,4]]",
]  # fmt: skip
LEFT_BODIES = [
    b"", b"@", b"[@]", b'["vectors",@]', b'"vectors":@', b'{"vectors":@', b'{"vectors":@}}', b'{"vectors":@,}',
    b'{"vectors":@}{}', b'{"vectors":@} @', b'\xef\xbb\xbf{"vectors":@}', b'{"vectors" @}', b'{vectors:@}',
    b"{'vectors':@}", b'{"vectors":-@}', b'{"vectors":1@}', b'{"vectors":@1}', b'{"vectors":@}\0', b'{"vectors":"@"}',
    b'{"basis":"@","vectors":1}', b'{"vectors":@,"vectors":1}', b'{"vectors":@,"vectors":[]}',
    b'{"vectors":[],"vectors":@}', b'{"vectors":@,"vectors":@}', b'{"vectors":@,"\\u0076ectors":1}', b'{"other":@}',
    b'{"basis":@}', b'{"version":@}', b'{"vectors":1,"version":@}', b'{"other":{"vectors":@}}',
    b'{"vectors":{"vectors":@}}', b'{"vectors":{"a":@}}', b'{"vectors":[],"version":@}', b'{"vectors":@,"basis":"]"}',
    b'{"vectors":@,"basis":"[]"}', b'{"basis":"[","vectors":@}',
    b'{"basis":"[","version":"]"}', b'{"basis":"[","vectors":1,"version":"]"}',
    b'{"basis":"[","vectors":[],"version":"]"}', b'{"basis":"[[1,2]","vectors":[],"version":"]"}',
    b'{"basis":"[[1,2],","vectors":[[3,4]],"version":",[5,6]]"}', b'{"vectors":@,"basis":[]}',
    b'{"basis":[],"vectors":@}', b'{"vectors":@,"other":[[1,2]]}', b'{"vectors":@,"basis":"\xff"}',
    b'{"\xff":1,"vectors":@}', b'{"vectors":@,"basis":"\\ud800"}', b'{"vectors":@,"basis":"\xed\xa0\x80"}',
    b'{"vectors":@,"basis":NaN}', b'{"vectors":@,"version":1e400}', b'{"vectors":@,"version":01}',
    b'{"vectors":@,"version":tru}', b'{"vectors":@,"basis":"\x01"}', b'{"vectors":@,1:2}', b'{"vectors":@ "version":1}',
    b'{"a":' * 1030 + b'{"vectors":@}' + b"}" * 1030, b'{"vectors":@,"version":' + b'{"a":' * 1030 + b"1" + b"}" * 1031,
    b'{"coordinates":@,"vectors":@}', b']{"vectors":@', b']@', b"[", b"]", b"][", b"[]", b'{"vectors":[1',
    b'{"vectors":[[1',
]  # fmt: skip


@pytest.mark.usefixtures("short")
def test_rows_that_are_left_to_who_reads_all_at_once() -> None:
    for rows in LEFT_ROWS:
        for frame in (b'{"vectors":@}', b'{"version":7,"vectors":@,"basis":"x"}'):
            check(frame.replace(b"@", rows), taken=False)
        check(b'{"vectors":@}'.replace(b"@", rows), RECONSTRUCT, taken=False)


@pytest.mark.usefixtures("short")
def test_bodies_that_are_left_to_who_reads_all_at_once() -> None:
    for body in LEFT_BODIES:
        check(body.replace(b"@", ROWS), taken=False)
        check(body.replace(b"@", ROWS), RECONSTRUCT, taken=False)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("depth", range(1018, 1028))
def test_frames_as_deep_as_it_goes(depth: int) -> None:
    check(b'{"vectors":@,"version":'.replace(b"@", ROWS) + b'{"a":' * depth + b"1" + b"}" * (depth + 1))
    check(b'{"vectors":[[1,' + b"[" * depth + b"]" * depth + b"]]}")


# --- anything -------------------------------------------------------------------------------------------------------

pieces = st.sampled_from(
    [
        *"@@@{}[],:\"\\1 ", "[1,2]", ",[1,2]", "[[1,2]]", '"vectors":', '"version":', '"basis":', "true", "null", "NaN",
        "1e400", '"vectors":@', '"coordinates":@', "[]", "[[", "]]", "],[", "\ufeff", "\0", "\\u0076", "\u00e9", "\x0b",
        '"]"', '"["',
    ]
)  # fmt: skip
bodies_around = st.sampled_from(
    [
        "%", '{"vectors":%}', '{"vectors":[%]}', '{"vectors":[[1,%]]}', '{"vectors":[[1,2]%[3,4]]}', '{"vectors":@,%}',
        '{%"vectors":@}', '{"vectors":@%}', '{"basis":"%","vectors":@,"version":"%"}',
    ]
)  # fmt: skip
which = st.sampled_from([PROJECT, RECONSTRUCT])


@pytest.mark.usefixtures("short")
@thorough
@given(text=st.lists(pieces, max_size=6).map("".join), around=bodies_around, names=which)
@example(text='"version":1', around='{"vectors":@,%}', names=PROJECT)
def test_anything_like_a_body(text: str, around: str, names: Sequence[str]) -> None:
    check(around.replace("%", text).replace("@", ROWS.decode()).encode(), names)


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """A right body, in a few places of which something was put in, taken out, or repeated."""
    text = orjson.dumps({"version": 3, "vectors": draw(tables), "basis": "whitened"})
    if draw(st.booleans()):
        text = json.dumps(json.loads(text), indent=1).encode()
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(text)))
        end = min(start + draw(st.integers(0, 3)), len(text))
        new = draw(st.one_of(pieces.map(str.encode), st.binary(max_size=2), st.just(2 * text[start : end + 4])))
        text = text[:start] + new.replace(b"@", ROWS) + text[end:]
    return text


@pytest.mark.usefixtures("short")
@thorough
@given(text=spoiled(), names=which)
def test_right_bodies_that_were_spoiled(text: bytes, names: Sequence[str]) -> None:
    check(text, names)


@pytest.mark.usefixtures("short")
@thorough
@given(
    content=st.dictionaries(st.sampled_from(["vectors", "basis", "version", "coordinates", "x"]), JSON | tables),
    names=which,
)
def test_any_json(content: Any, names: Sequence[str]) -> None:
    check(json.dumps(content).encode(), names)
    check(json.dumps(content.get("vectors", content)).encode(), names)
