"""Paths find the numbers of a record, in their order, as an independent enumeration of its leaves does."""

import base64
import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from streampca.formats.errors import VectorError
from streampca.formats.fields import NumberFields, suggest_field
from streampca.settings.field_paths import Part, names_of, paths_of, spelled
from tests.formats.structured import ROW, assert_rejected, codec, numbers_alone

NAMES = st.sampled_from(["a", "b", "c"])


@pytest.mark.parametrize(
    ("field", "paths"),
    [
        ("", []), (" ", []), ("v", [["v"]]), ("a.b", [["a", "b"]]), ("x,y", [["x"], ["y"]]),
        (" fields.temp , fields.hum ", [["fields", "temp"], ["fields", "hum"]]), ("`a.b`.c", [["a.b", "c"]]),
        ("`x,y`,`a b`", [["x,y"], ["a b"]]), ("wind speed,é", [["wind speed"], ["é"]]), ("f_*", [["f_*"]]),
    ],
)  # fmt: skip
def test_a_field_names_paths(field: str, paths: list[list[str]]) -> None:
    assert [[part.name for part in path] for path in paths_of(field)] == paths


@pytest.mark.parametrize("field", [".", "a.", ".a", "a..b", ",", "a,", ",a", "`a", "a`b`", "``", "a,a", "`a`.b,a.`b`"])
def test_invalid_paths_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match="path"):
        paths_of(field)


@given(st.lists(st.text(min_size=1).filter(lambda name: "`" not in name), min_size=1, max_size=4))
def test_spelled_paths_are_read_again(names: list[str]) -> None:
    [path] = paths_of(spelled(names))
    assert [part.name for part in path] == names


def test_names_are_the_shortest_endings_that_differ() -> None:
    assert names_of(paths_of("fields.temp,fields.hum")) == ("temp", "hum")
    assert names_of(paths_of("in.temp,out.temp,out.hum")) == ("in.temp", "out.temp", "hum")
    assert names_of(paths_of("x.in.temp,y.in.temp,temp")) == ("x.in.temp", "y.in.temp", "temp")


# An enumeration of leaves, beside the product's recursion.


def leaves(record: Any, me: int, paths: list[list[str]]) -> Iterator[tuple[Any, Any, Any]]:
    """Each number of a path: what orders it, itself, and the array or the element that it is a part of."""
    path = paths[me]

    def walk(value: Any, depth: int, sharing: list[int], key: Any, part: Any, element: Any) -> Iterator[Any]:
        """`sharing`: paths through the innermost array around; `part`: that array; `element`: one that others share."""
        if isinstance(value, dict):
            yield from walk(value[path[depth]], depth + 1, sharing, key, part, element)
            return
        inside = [p for p in sharing if paths[p][:depth] == path[:depth] and len(paths[p]) > depth]
        is_end = depth == len(path)
        if element is None and key and len(sharing) > 1 and (is_end or inside != sharing):
            element = key
        if not isinstance(value, list):
            yield (*key, me), value, element or part
            return
        first = me if is_end else inside[0]
        for i, inner in enumerate(value):
            yield from walk(inner, depth, [me] if is_end else inside, (*key, first, i), (*key, first), element)

    yield from walk(record, 0, list(range(len(paths))), (), (), None)


@st.composite
def records(draw: st.DrawFn) -> tuple[list[list[str]], Any]:
    """Paths, and a record in which each leads to numbers, through arrays here and there."""
    paths = draw(st.lists(st.lists(NAMES, min_size=1, max_size=3), min_size=1, max_size=3, unique_by=tuple))
    paths = [p for p in paths if not any(q != p and q[: len(p)] == p for q in paths)]
    numbers, depth = itertools.count(1), draw(st.integers(0, 2))  # of the arrays at the ends of paths
    are_arrays = dict[Any, bool]()  # by the paths inside, and the number of arrays around

    def nested(depth: int) -> Any:
        return [nested(depth - 1) for _ in range(draw(st.integers(1, 3)))] if depth else next(numbers)

    def value(rests: list[list[str]], around: int = 0) -> Any:
        if rests == [[]]:
            return nested(depth)
        place = (str(rests), around)
        if place not in are_arrays:
            are_arrays[place] = around < 2 and draw(st.booleans())
        if are_arrays[place]:
            return [value(rests, around + 1) for _ in range(draw(st.integers(1, 3)))]
        return {name: value([rest[1:] for rest in rests if rest[0] == name]) for name in {r[0]: None for r in rests}}

    return paths, value(paths)


def expected(paths: list[list[str]], record: Any, d: int) -> list[list[int]] | None:
    """The vectors; None for wrong_length."""
    found = sorted((leaf for me in range(len(paths)) for leaf in leaves(record, me, paths)), key=lambda leaf: leaf[0])
    if len(found) == d:
        return [[number for _, number, _ in found]]
    groups = [
        (array, [number for _, number, _ in some]) for array, some in itertools.groupby(found, lambda leaf: leaf[2])
    ]
    return [row for _, row in groups] if all(array and len(row) == d for array, row in groups) else None


@given(records(), st.integers(1, 6))
def test_paths_find_what_an_enumeration_finds(drawn: tuple[list[list[str]], Any], d: int) -> None:
    paths, record = drawn
    fields = NumberFields([tuple(Part(name) for name in path) for path in paths], d, impute=False, value_name="record")
    found = None
    with suppress(VectorError):
        found = np.frombuffer(numbers_alone(fields.pack(record, refuse_booleans=True))).reshape(-1, d).tolist()
    assert found == expected(paths, record, d), (paths, record)


# What the rules say of cases.


def vectors(record: Any, field: str, d: int = 3, **judging: Any) -> list[list[float]]:
    decoded = codec("json", field, d=d, **judging).decode([json.dumps(record).encode()])
    assert decoded.rejects == [], record
    assert decoded.counts.sum() == len(decoded.vectors)
    return list(decoded.vectors.tolist())


XY = [{"x": 1, "y": 2}, {"x": 3, "y": 4}]


@pytest.mark.parametrize(
    ("record", "field", "d", "rows"),
    [
        ({"temp": 21.5, "hum": 48, "press": 1013}, "temp,hum,press", 3, [[21.5, 48, 1013]]),
        ({"temp": 21.5, "hum": 48, "press": 1013}, "press,temp", 2, [[1013, 21.5]]),
        ({"a": {"v": [1, 2]}, "w": [3]}, "a.v,w", 3, [[1, 2, 3]]),
        ({"v": [1, 2], "w": [3, 4]}, "v,w", 2, [[1, 2], [3, 4]]),
        (XY, "x,y", 2, [[1, 2], [3, 4]]),
        (XY, "x,y", 4, [[1, 2, 3, 4]]),
        (XY, "x", 2, [[1, 3]]),
        ({"at": 0, "rows": XY, "z": 9}, "at,rows.y,z,rows.x", 6, [[0, 2, 1, 4, 3, 9]]),
        ({"outer": [{"rows": XY}, {"rows": XY[:1]}]}, "outer.rows.x,outer.rows.y", 2, [[1, 2], [3, 4], [1, 2]]),
        ({"rows": [{"v": [1, 2, 3]}, {"v": [4, 5, 6]}]}, "rows.v", 3, [[1, 2, 3], [4, 5, 6]]),
        ([[[1, 2], [3, 4]], [[5, 6]]], "", 2, [[1, 2], [3, 4], [5, 6]]),
        ([[1, 2, 3]], "", 3, [[1, 2, 3]]),
        ({"rows": []}, "rows.v", 3, []),
        ({"v": "[1, 2.5, 3]"}, "v", 3, [[1, 2.5, 3]]),
        ({"v": base64.b64encode(np.array(ROW, "<f8").tobytes()).decode()}, "v", 3, [ROW]),
        ({"rows": [{"v": "[1,2]"}, {"v": None}, {"v": [3, 4]}]}, "rows.v", 2, [[1, 2], [3, 4]]),
        ({"rows": [None, {"v": [3, 4]}]}, "rows.v", 2, [[3, 4]]),
        ({"rows": [None, XY[0], XY[1]]}, "rows.x,rows.y", 2, [[1, 2], [3, 4]]),
    ],
)
def test_a_record_holds_these_vectors(record: Any, field: str, d: int, rows: list[list[float]]) -> None:
    assert vectors(record, field, d) == rows


@pytest.mark.parametrize(
    ("record", "field", "d", "reason", "words"),
    [
        ([1, 2, 3, 4], "", 2, "wrong_length", "4 numbers, not 2"),
        ({"t": 1, "v": [1, 2]}, "t,v", 2, "wrong_length", "3 numbers, not 2"),
        ({"t": 1, "rows": XY}, "t,rows.x,rows.y", 2, "wrong_length", "2 arrays of 2 numbers and others beside them"),
        ({"rows": [{"v": []}]}, "rows.v", 3, "wrong_length", "0 numbers"),
        ({"v": []}, "v", 3, "wrong_length", "0 numbers"),
        ({"x": 1, "y": 2}, "x,z", 2, "undecodable", "there is 'x', 'y', but not 'z'; field=x,y reads 2 numbers"),
        ({"x": 1, "y": True}, "x,y", 2, "undecodable", "'y' must be a number, not a boolean"),
        ({"x": 1, "y": "2"}, "x,y", 2, "undecodable", "'y' must be a number, not a string (numbers have no quotes)"),
        ({"x": 1, "y": None}, "x,y", 2, "undecodable", "'y' must be a number, not null (missing=impute"),
        ({"v": "AAAA"}, "v", 3, "wrong_length", "3 bytes are not 3 numbers of 4 or 8 bytes"),
        ({"v": "a text"}, "v", 3, "undecodable", "not a string"),
        ({"v": "[1,2"}, "v", 3, "undecodable", "not a string"),
    ],
)
def test_records_without_a_vector_are_rejected_with_the_reason(
    record: Any, field: str, d: int, reason: str, words: str
) -> None:
    assert_rejected(codec("json", field, d=d).decode([json.dumps(record).encode()]), reason, words)


@pytest.mark.parametrize(
    ("record", "field"),
    [(None, ""), ({"v": None}, "v"), ({"after": None}, "after.v"), ({"after": None}, "after.x,after.y,after.z"),
     ({"rows": [None]}, "rows.v"), ({"rows": [None] * 2}, "rows.x,rows.y,rows.z"),
     ({"rows": [{"v": None}]}, "rows.v"), ({"v": [1], "w": None}, "v,w")],
)  # fmt: skip
def test_null_in_place_of_a_vector_is_no_value(record: Any, field: str) -> None:
    fields = NumberFields(paths_of(field), 3, impute=True, value_name="record")
    with pytest.raises(VectorError, match="is null") as caught:
        fields.pack(record, refuse_booleans=True)
    assert caught.value.reason == "no_value"


@pytest.mark.parametrize(
    ("s", "x"), [({"x": 1, "y": None}, 1), ({"x": 1, "y": "NaN"}, 1), (None, np.nan)], ids=["null", "NaN", "all"]
)
def test_a_named_number_may_be_missing(s: Any, x: float) -> None:
    [row] = vectors({"s": s, "z": 3}, "s.x,s.y,z", min_observed=1)
    np.testing.assert_array_equal(row, [x, np.nan, 3])


def test_decimals_are_numbers_and_booleans_are_unless_they_are_refused() -> None:
    fields = NumberFields(paths_of("x,y"), 2, impute=True, value_name="record")
    exact = numbers_alone(fields.pack({"x": Decimal("1.50"), "y": True}, refuse_booleans=False))
    assert np.frombuffer(exact).tolist() == [1.5, 1]
    gap = numbers_alone(fields.pack({"x": None, "y": True}, refuse_booleans=False))
    assert np.isnan(np.frombuffer(gap)[0])


@given(
    st.recursive(
        st.integers() | st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_a_suggested_field_reads_a_vector(value: Any) -> None:
    if (field := suggest_field(value, 2)) is not None:
        assert (
            len(NumberFields(paths_of(field), 2, impute=False, value_name="").pack(value, refuse_booleans=True)) == 16
        )
