"""Paths find the numbers of a record, in their order, as an independent enumeration of its leaves does."""

import base64
import itertools
import json
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, strategies as st

from streampca.formats.errors import VectorError
from streampca.formats.fields import NumberFields
from streampca.formats.numbers import VectorBytes
from streampca.settings.field_paths import PathPart, name_paths, parse_paths, spell_path
from tests.formats.structured import ROW, assert_rejected, codec

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
    assert [[part.name for part in path] for path in parse_paths(field)] == paths


@pytest.mark.parametrize("field", [".", "a.", ".a", "a..b", ",", "a,", ",a", "`a", "a`b`", "``", "a,a", "`a`.b,a.`b`"])
def test_invalid_paths_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match="path"):
        parse_paths(field)


@given(st.lists(st.text(min_size=1).filter(lambda name: "`" not in name), min_size=1, max_size=4))
def test_spelled_paths_are_read_again(names: list[str]) -> None:
    [path] = parse_paths(spell_path(names))
    assert [part.name for part in path] == names


def test_names_are_the_shortest_endings_that_differ() -> None:
    assert name_paths(parse_paths("fields.temp,fields.hum")) == ("temp", "hum")
    assert name_paths(parse_paths("in.temp,out.temp,out.hum")) == ("in.temp", "out.temp", "hum")
    assert name_paths(parse_paths("x.in.temp,y.in.temp,temp")) == ("x.in.temp", "y.in.temp", "temp")


# An enumeration of leaves, beside the product's recursion.


class Leaf(NamedTuple):
    """A number in a record. Keys are the indices on the way to it, and the first paths that lead through its arrays."""

    key: tuple[int, ...]  # sorts the leaves of all paths
    number: int
    group: tuple[int, ...]  # key of the array or the element that may be a vector with this number; () without arrays


def leaves_at(path_index: int, paths: list[list[str]], record: Any) -> Iterator[Leaf]:
    """Yield each number to which a path leads."""
    path = paths[path_index]

    def walk(
        value: Any, depth: int, sharing: list[int], key: tuple[int, ...], array: tuple[int, ...], element: Any
    ) -> Iterator[Leaf]:
        """Yield the numbers in a value to which the first `depth` names of the path lead.

        `sharing` are the paths that lead through the innermost array around the value, and `array` is its key.
        `element` is the key of the element, around the value, in which several of these paths part; None without one.
        """
        if isinstance(value, dict):
            yield from walk(value[path[depth]], depth + 1, sharing, key, array, element)
            return
        is_end = depth == len(path)
        going_on = [p for p in sharing if paths[p][:depth] == path[:depth] and len(paths[p]) > depth]
        do_paths_part = is_end or going_on != sharing
        if element is None and key and len(sharing) > 1 and do_paths_part:
            element = key
        if not isinstance(value, list):
            yield Leaf(key=(*key, path_index), number=value, group=element or array)
            return
        sharing_inside = [path_index] if is_end else going_on
        key_of_array = (*key, sharing_inside[0])
        for i, inner in enumerate(value):
            yield from walk(inner, depth, sharing_inside, (*key_of_array, i), key_of_array, element)

    yield from walk(record, 0, list(range(len(paths))), key=(), array=(), element=None)


@st.composite
def records(draw: st.DrawFn) -> tuple[list[list[str]], Any]:
    """Draw paths, and a record in which each leads to numbers, through arrays here and there."""
    paths = draw(st.lists(st.lists(NAMES, min_size=1, max_size=3), min_size=1, max_size=3, unique_by=tuple))
    paths = [p for p in paths if not any(q != p and q[: len(p)] == p for q in paths)]
    next_number = itertools.count(1)
    arrays_at_end = draw(st.integers(0, 2))  # one inside of the other, at the end of each path
    is_array = dict[Any, bool]()  # by the paths inside, and the number of arrays around

    def draw_end(arrays: int) -> Any:
        """Draw a number inside of so many arrays."""
        if not arrays:
            return next(next_number)
        return [draw_end(arrays - 1) for _ in range(draw(st.integers(1, 3)))]

    def draw_value(rests: list[list[str]], arrays_around: int = 0) -> Any:
        """Draw the value from which paths go on with these names."""
        if rests == [[]]:
            return draw_end(arrays_at_end)
        place = (str(rests), arrays_around)
        if place not in is_array:
            is_array[place] = arrays_around < 2 and draw(st.booleans())
        if is_array[place]:
            return [draw_value(rests, arrays_around + 1) for _ in range(draw(st.integers(1, 3)))]
        names = dict.fromkeys(rest[0] for rest in rests)
        return {name: draw_value([rest[1:] for rest in rests if rest[0] == name]) for name in names}

    return paths, draw_value(paths)


def expected_vectors(paths: list[list[str]], record: Any, d: int) -> list[list[int]] | None:
    """Return the vectors of a record; None if it holds no vectors of d numbers."""
    if len(paths) == d > 1:
        return vectors_of_columns(paths, record)
    leaves = sorted(leaf for index in range(len(paths)) for leaf in leaves_at(index, paths, record))
    if len(leaves) == d:
        return [[leaf.number for leaf in leaves]]
    vectors = []
    for group, members in itertools.groupby(leaves, lambda leaf: leaf.group):
        vector = [leaf.number for leaf in members]
        if not group or len(vector) != d:
            return None
        vectors.append(vector)
    return vectors


def vectors_of_columns(paths: list[list[str]], record: Any) -> list[list[int]] | None:
    """Return the vectors if each of d paths leads to a number, or to a column of numbers; None if they do not fit.

    If all paths share an array, each of its elements has vectors of its own.
    """
    if all(paths) and isinstance(record, list):
        return joined([vectors_of_columns(paths, element) for element in record])
    if all(paths) and len({path[0] for path in paths}) == 1:
        return vectors_of_columns([path[1:] for path in paths], record[paths[0][0]])
    return transposed([at(path, record) for path in paths])


def at(path: list[str], value: Any) -> Any:
    """Return what a path leads to; from an array, the list of what it leads to from each element."""
    if path and isinstance(value, list):
        return [at(path, element) for element in value]
    return at(path[1:], value[path[0]]) if path else value


def transposed(columns: list[Any]) -> list[list[int]] | None:
    """Return the rows of columns, or of arrays of columns; None if their lengths differ."""
    if not any(isinstance(column, list) for column in columns):
        return [columns]  # they are the numbers of a row
    if not all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns):
        return None
    return joined([transposed(list(row)) for row in zip(*columns, strict=True)])


def joined(parts: list[list[list[int]] | None]) -> list[list[int]] | None:
    """Return the rows of all parts in one list; None if any part has none."""
    rows = []
    for part in parts:
        if part is None:
            return None
        rows += part
    return rows


@given(records(), st.integers(1, 6))
def test_paths_find_what_an_enumeration_finds(drawn: tuple[list[list[str]], Any], d: int) -> None:
    paths, record = drawn
    fields = NumberFields(
        [tuple(PathPart(name) for name in path) for path in paths], d, impute=False, value_name="record"
    )
    found = None
    with suppress(VectorError):
        found = np.frombuffer(fields.pack(record)).reshape(-1, d).tolist()
    assert found == expected_vectors(paths, record, d), (paths, record)


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
        ({"v": [1, 2], "w": [3, 4]}, "v,w", 2, [[1, 3], [2, 4]]),
        ({"v": [1, 2, 3], "w": [4, 5, 6]}, "v,w", 3, [[1, 2, 3], [4, 5, 6]]),
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
        ({"t": 1, "v": [1, 2]}, "t,v", 2, "wrong_length", "some paths lead to arrays and some to numbers"),
        ({"t": 1, "v": [1, 2]}, "t,v", 4, "wrong_length", "3 numbers, not 4"),
        ({"t": 1, "rows": XY}, "t,rows.x,rows.y", 2, "wrong_length", "2 arrays of 2 numbers and others beside them"),
        ({"rows": [{"v": []}]}, "rows.v", 3, "wrong_length", "0 numbers"),
        ({"v": []}, "v", 3, "wrong_length", "0 numbers"),
        ({"x": 1, "y": 2}, "x,z", 2, "undecodable", "there is 'x', 'y', but not 'z' (missing=impute"),
        ({"x": 1, "y": 2}, "x,z", 2, "undecodable", "; field=x,y reads 2 numbers"),
        ({"x": 1, "y": 2}, "a,b", 2, "undecodable", "there is 'x', 'y', but not 'a'; field=x,y reads 2 numbers"),
        ({"x": 1, "y": "2"}, "x,y", 2, "undecodable", "'y' must be a number, not a string (numbers have no quotes)"),
        ({"x": 1, "y": None}, "x,y", 2, "undecodable", "'y' must be a number, not null (missing=impute"),
        ({"v": "AAAAAA=="}, "v", 3, "wrong_length", "4 bytes are not 3 numbers of 4 or 8 bytes"),
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
    fields = NumberFields(parse_paths(field), 3, impute=True, value_name="record")
    with pytest.raises(VectorError, match="is null") as caught:
        fields.pack(record)
    assert caught.value.reason == "no_value"


@pytest.mark.parametrize(
    ("s", "x"), [({"x": 1, "y": None}, 1), ({"x": 1, "y": "NaN"}, 1), (None, np.nan)], ids=["null", "NaN", "all"]
)
def test_a_named_number_may_be_missing(s: Any, x: float) -> None:
    [row] = vectors({"s": s, "z": 3}, "s.x,s.y,z", min_observed=1)
    np.testing.assert_array_equal(row, [x, np.nan, 3])


def test_decimals_are_numbers_and_booleans_are_1_and_0() -> None:
    fields = NumberFields(parse_paths("x,y"), 2, impute=True, value_name="record")
    exact = fields.pack({"x": Decimal("1.50"), "y": True})
    assert np.frombuffer(exact).tolist() == [1.5, 1]
    gap = fields.pack({"x": None, "y": True})
    assert np.isnan(np.frombuffer(gap)[0])


@given(
    st.recursive(
        st.integers() | st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_a_suggested_field_reads_a_vector(value: Any) -> None:
    def pack(field: str) -> VectorBytes:
        return NumberFields(parse_paths(field), 2, impute=False, value_name="").pack(value)

    message = ""
    try:
        pack("no.where")
    except VectorError as error:
        message = str(error)
    _, is_suggested, field = message.rpartition("; field=")
    if is_suggested:
        assert len(pack(field.removesuffix(" reads 2 numbers"))) == 16
