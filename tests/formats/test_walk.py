"""Names, choices, conditions and texts of JSON on the way of a path, compared with a naive reader."""

import json
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from streampca.formats.record import Decoded
from streampca.settings.field_paths import (
    Choice,
    PathPart,
    get_steps,
    name_paths,
    parse_conditions,
    parse_paths,
    spell_path,
)
from tests.formats.structured import assert_rejected, codec, only_reject

SENSORS = ["a", "b", "c"]
TAGS = ",".join(f"values[id={sensor}].v" for sensor in SENSORS)
elements = st.lists(
    st.fixed_dictionaries(
        {"id": st.sampled_from([*SENSORS, "other", 7, None])},
        optional={"v": st.integers(-(2**53), 2**53), "q": st.booleans()},
    ),
    max_size=6,
)


def decode(record: Any, field: str, d: int = 3, *, impute: bool = True, where: str = "") -> Decoded:
    decoder = codec("json", field, d=d, where=where, min_observed=1 if impute else None)
    return decoder.decode([json.dumps(record).encode()])


def outcome(decoded: Decoded) -> Any:
    """The vectors, with None for gaps, or why there are none."""
    reasons = [reject.reason for reject in (*decoded.rejects, *decoded.skipped)]
    return reasons[0] if reasons else np.where(np.isnan(decoded.vectors), None, decoded.vectors).tolist()  # type: ignore[call-overload]


@given(elements, st.booleans())
def test_chosen_elements_are_found_whatever_their_order_and_number(
    values: list[dict[str, Any]], only_good: bool
) -> None:
    found: list[Any] = []
    for sensor in SENSORS:
        fitting = [element for element in values if element["id"] == sensor]
        good = [element for element in fitting if element.get("q") is True or not only_good]
        found.append(
            "twice" if len(good) > 1 else "unmet" if fitting and not good else good[0].get("v") if good else None
        )
    there = [value for value in found if isinstance(value, int)]
    expected: Any = [[value if isinstance(value, int) else None for value in found]]
    if "twice" in found:
        expected = "undecodable"
    elif not there:
        expected = "where" if "unmet" in found else "undecodable"
    assert outcome(decode({"values": values}, TAGS, where="values.q=true" if only_good else "")) == expected


@given(
    st.lists(
        st.fixed_dictionaries(
            {}, optional={"x": st.integers(-(2**53), 2**53), "y": st.integers(), "k": st.sampled_from("pq")}
        )
    )
)
def test_elements_that_are_vectors_are_left_out_unless_they_meet_the_condition(rows: list[dict[str, Any]]) -> None:
    kept = [row for row in rows if row.get("k") != "q"]
    expected: Any = [[row.get("x"), row.get("y")] for row in kept]
    if [None, None] in expected:
        expected = "undecodable"
    if rows and not kept:
        expected = "where"
    assert outcome(decode(rows, "x,y", 2, where="k!=q")) == expected


@pytest.mark.parametrize(
    ("record", "where", "is_met"),
    [
        ({"t": "cpu"}, "t=cpu", True), ({"t": "cpu"}, "t!=cpu", False), ({}, "t=cpu", False), ({}, "t!=cpu", True),
        ({"t": None}, "t=null", False), ({"t": None}, "t!=x", True), ({"t": True}, "t=true", True),
        ({"t": 1.5}, "t=1.5", True), ({"t": 192}, "t=192", True), ({"t": 1}, "t=true", False),
        ({"t": ["x", "p"]}, "t=p", True), ({"t": [{"k": "x"}, {"k": "p"}]}, "t.k=p", True), ({"t": []}, "t=p", False),
        ({"t": []}, "t!=p", True), ({"t": {"k": {"$numberInt": "3"}}}, "t.k=3", True),
        ({"t": json.dumps({"k": "p"})}, "t.k=p", True), ({"t": "a=b,c"}, "t=`a=b,c`", True),
        ({"t": [{"id": "x", "q": False}, {"id": "y", "q": True}]}, "t[id=y].q=true,t[id=x].q=false", True),
        ({"t": 5}, "t.k=p", False), ({"t": "cpu", "u": "b"}, "t=cpu,u=a", False),
    ],
)  # fmt: skip
def test_a_record_counts_if_it_meets_all_conditions(record: Any, where: str, is_met: bool) -> None:
    assert outcome(decode(record | {"v": [1, 2, 3]}, "v", where=where)) == ([[1, 2, 3]] if is_met else "where")


@pytest.mark.parametrize(
    ("record", "field", "rows"),
    [
        ({"x": [1, 2], "y": [3, 4], "z": [5, 6]}, "x,y,z", [[1, 3, 5], [2, 4, 6]]),
        ({"x": [], "y": [], "z": []}, "x,y,z", []),
        ({"x": [1, 2], "z": [5, 6]}, "x,y,z", [[1, None, 5], [2, None, 6]]),
        ({"x": [1, 2], "y": None, "z": [5, 6]}, "x,y,z", [[1, None, 5], [2, None, 6]]),
        ({"x": 1, "z": 5}, "x,y,z", [[1, None, 5]]), ({"in": {"x": 1}}, "in.x,in.y,out.z", [[1, None, None]]),
        ([{"x": 1}, {"x": 2, "z": 3}], "x,y,z", [[1, None, None], [2, None, 3]]),
        ([{"v": 1}, {}, {"v": 3}], "v", [[1, None, 3]]),
        ([[{"n": s, "v": 1} for s in "xy"]] * 2, "[n=x].v,[n=y].v,[n=z].v", [[1, 1, None]] * 2),
        (json.dumps({"after": json.dumps({"v": [1, 2, 3]})}), "after.v", [[1, 2, 3]]),
        ({"x": {"$numberDouble": "1.5"}, "y": {"$numberLong": "2"}, "z": 3}, "x,y,z", [[1.5, 2, 3]]),
        ([{"k": "a", "v": 1}, {"k": "b", "v": 2}, {"k": "a", "v": 3}], "v", [[1, None, 3]]),
    ],
)  # fmt: skip
def test_what_is_not_there_is_a_gap(record: Any, field: str, rows: list[list[Any]]) -> None:
    where = "k!=b" if isinstance(record, list) else ""
    assert outcome(decode(record, field, where=where)) == rows


@pytest.mark.parametrize(
    ("record", "field", "reason", "words"),
    [
        ({"u": 1}, "x,y,z", "undecodable", "there is 'u', but not 'x'"),
        ({"x": 1, "y": 5}, "x,y.k,z", "undecodable", "a number has no"),
        ({"x": [1, 2], "y": [3], "z": [5, 6]}, "x,y,z", "wrong_length", "arrays of 1 to 2 numbers"),
        ({"x": [1], "y": 3, "z": 5}, "x,y,z", "wrong_length", "some paths lead to arrays"),
        ({"values": [{"id": "u"}]}, TAGS, "undecodable", "no field 'values[id=a].v'"),
        ({"values": {"id": "a", "v": 1}}, TAGS, "undecodable", "'values[id=a].v'"),
        (json.dumps(json.dumps(json.dumps({"v": [1, 2, 3]}))), "v", "undecodable", "a string has no field 'v'"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_gap_is_rejected(record: Any, field: str, reason: str, words: str) -> None:
    assert_rejected(decode(record, field, d=field.count(",") + 1), reason, words)


def test_the_message_advises_to_impute_where_other_names_are_there() -> None:
    for record, field in [({"x": 1}, "x,y"), ({"values": [{"id": "a", "v": 1}]}, "values[id=a].v,values[id=b].v")]:
        _, message = only_reject(decode(record, field, 2, impute=False))
        assert "missing=impute" in message
    _, message = only_reject(decode({"u": 1}, "x,y", 2, impute=False))
    assert "missing=impute" not in message


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("values[id=temp].v,values[id=hum].v", ("temp", "hum")),
        ("[n=temp].low,[n=temp].high", ("temp.low", "temp.high")),
        ("g[n=a].v[id=t].x,g[n=b].v[id=t].x", ("a.t", "b.t")), ("a[id=x].v,b[id=x].v", ("a[id=x].v", "b[id=x].v")),
        ("v[id=a.b,c].x,v[id=`]`].x", ("a.b,c", "]")),
    ],
)  # fmt: skip
def test_a_path_with_a_choice_is_named_by_its_word(field: str, names: tuple[str, ...]) -> None:
    assert name_paths(parse_paths(field)) == names
    assert parse_paths(",".join(spell_path(get_steps(path)) for path in parse_paths(field))) == parse_paths(field)


def test_brackets_without_an_equals_sign_belong_to_the_name() -> None:
    [path] = parse_paths("f_[ab].`x[y=z]`")
    assert get_steps(path) == ("f_[ab]", "x[y=z]")
    [path] = parse_paths("[ n = a b ] . v")
    assert get_steps(path) == (Choice("n", "a b"), "v")
    for wrong in ("a[b=c", "a[id!=x].v", "[=x].v", "a[x=1]b", "a[x=1][y=2]"):
        with pytest.raises(ValueError, match="path"):
            parse_paths(wrong)


@pytest.mark.parametrize(
    "start", ["", "a", "`a`", "`", "a[", "a[x", "a[x=", "a[x=`", "a[x=`w`", "a[x=1]", "[x=[y=", "a[b", "a,b", "a.b"]
)
@pytest.mark.parametrize("repeated", [" ", "a ", "[", "[x=", "!", "`"])
def test_long_paths_and_conditions_are_read_in_a_time_linear_in_their_length(start: str, repeated: str) -> None:
    """A quadratic reader would take minutes, so the limit holds on any machine."""
    text = start + repeated * 300_000
    started = time.process_time()
    for read, spelled_text in ((parse_paths, text), (parse_conditions, text), (parse_conditions, f"a={text}")):
        with suppress(ValueError):
            read(spelled_text)
    assert time.process_time() - started < 20


def test_spaces_around_names_and_words_are_left_out() -> None:
    space = " " * 3000
    assert parse_paths(f"a [ x = w{space} ]{space} . v{space}") == parse_paths("a[x=w].v")
    assert parse_paths(f"a{space}b,`c `{space}") == ((PathPart(f"a{space}b"),), (PathPart("c ", quoted=True),))
    assert parse_conditions(f"a ={space}b{space}") == parse_conditions("a=b")


@pytest.mark.parametrize("where", ["type", "=cpu", "a=", "a=b,", "a=b,,c=d", "a.=b"])
def test_what_is_not_a_condition_is_refused(where: str) -> None:
    with pytest.raises(ValueError, match=r"where=|path"):
        parse_conditions(where)


def test_gaps_cannot_make_a_short_value_take_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streampca.formats.fields._MAX_BYTES", 1000)
    assert_rejected(decode([{"x": 1}] * 100, "x,y,z", 3), "too_many_bytes", "more than the limit of 1000")
    assert_rejected(decode({"a": [{"x": 1}] * 100, "z": 0}, "a.x,a.y,z", 3), "too_many_bytes", "limit of 1000")


def test_elements_that_change_their_places_are_warned_of() -> None:
    """Only where they make one vector, and a text that differs in each of them names them."""

    def warning(records: list[Any], field: str) -> str:
        return codec("json", field).decode([json.dumps(record).encode() for record in records]).warning

    def tags(*names: str, unit: str = "C") -> dict[str, Any]:
        return {"values": [{"unit": unit, "id": name, "v": 1.0} for name in names]}

    assert warning([tags("a", "b", "c")] * 3, "values.v") == ""
    assert "field=values[id=b].v" in warning([tags("a", "b", "c"), tags("b", "a", "c")], "values.v")
    assert "field=[id=c].v" in warning([tags("a", "b", "c")["values"], tags("c", "a", "b")["values"]], "v")
    assert warning([tags("t0", "t1", "t2"), tags("t3", "t4", "t5")], "values.v") == ""  # each name is seen once
    states = [["on", "off", "off"], ["off", "on", "on"]]
    assert warning([{"values": [{"s": s, "v": 1} for s in row]} for row in states], "values.v") == ""
    users = [{"rows": [{"id": name, "v": [1, 2, 3]} for name in names]} for names in ("ab", "ba")]
    assert warning(users, "rows.v") == ""
    assert warning([tags("a", "b", "c"), tags("c", "a", "b")], "values[id=a].v,values[id=b].v,values[id=c].v") == ""


@pytest.mark.parametrize("outer", [list, json.dumps], ids=["an array", "a text of an array"])
@pytest.mark.parametrize("inner", [dict, json.dumps], ids=["objects", "texts of objects"])
def test_elements_are_chosen_in_texts_of_json_too(outer: Any, inner: Any) -> None:
    elements = [inner({"id": name, "v": ord(name), "q": name != "b"}) for name in "cab"]
    record = {"values": outer(elements)}
    field = ",".join(f"values[id={name}].v" for name in "abc")
    assert outcome(decode(record, field)) == [[97, 98, 99]]
    assert outcome(decode(record, field, where="values.q=true")) == [[97, None, 99]]
    assert outcome(decode(record, "values.v")) == [[99, 97, 98]]
