"""Elements that change their order are noticed, and the path that is named then reads each of them."""

import json
import re
from itertools import pairwise, permutations
from typing import Any

import pytest
from hypothesis import given, strategies as st

from streampca.formats.element_indices import ElementIndices
from streampca.formats.fields import NumberFields
from streampca.settings.field_paths import parse_paths


def elements(*names: str) -> list[dict[str, Any]]:
    """Elements in this order: each name with the same numbers, whatever its index."""
    return [{"id": name, "unit": "C", "v": ord(name), "lo": 1, "hi": ord(name), "w": [2, ord(name)]} for name in names]


def read(field: str, dimensions: int, *values: object) -> NumberFields:
    fields = NumberFields(parse_paths(field), dimensions, impute=False, value_name="value")
    for value in values:
        fields.pack(value)
    return fields


def follow(warning: str, names: str) -> str:
    """The setting `field` that the warning proposes, for elements of all names."""
    field = warning.rsplit("field=", 1)[1]
    [named] = [name for name in names if f"[id={name}]" in field]
    return ",".join(field.replace(f"[id={named}]", f"[id={name}]") for name in names)


@pytest.mark.parametrize(
    ("field", "dimensions"), [("v", 3), ("lo,hi", 6), ("w", 6)], ids=["a number", "two numbers", "an array"]
)
@pytest.mark.parametrize("way", ["", "values", "payload.values"])
def test_the_path_that_the_warning_names_reads_elements_at_any_place(field: str, dimensions: int, way: str) -> None:
    def inside(array: object) -> object:
        for name in reversed(way.split(".") if way else []):
            array = {name: array}
        return array

    paths = ",".join(f"{way}.{path}".removeprefix(".") for path in field.split(","))
    values = [inside(elements(*names)) for names in permutations("abc")]
    assert read(paths, dimensions, values[0], values[0]).element_indices.warning == ""
    warning = read(paths, dimensions, *values).element_indices.warning
    assert f"the elements at {paths} change their places" in warning
    better = NumberFields(parse_paths(follow(warning, "abc")), dimensions, impute=False, value_name="value")
    assert len({bytes(better.pack(value)) for value in values}) == 1


@pytest.mark.parametrize(("field", "dimensions"), [("lo,hi", 2), ("w", 2), ("[id=a].v,[id=b].v", 2)])
def test_elements_that_are_vectors_or_chosen_may_move(field: str, dimensions: int) -> None:
    assert read(field, dimensions, elements("a", "b"), elements("b", "a")).element_indices.warning == ""


@pytest.mark.parametrize("moved", [elements("a"), elements("a", "c")])
def test_elements_that_come_and_go_have_not_moved(moved: list[dict[str, Any]]) -> None:
    assert read("v", len(moved), elements("a", "b")[: len(moved)], moved).element_indices.warning == ""


def test_texts_of_bytes_name_the_elements() -> None:
    first, second = ([{"id": name.encode(), "v": 1} for name in names] for names in ("ab", "ba"))
    warning = read("v", 2, first, second).element_indices.warning
    assert read(follow(warning, "ab"), 2, first, second).element_indices.warning == ""


def seen(*arrays: list[dict[str, Any]]) -> ElementIndices:
    indices = ElementIndices()
    for array in arrays:
        indices.compare(array, [("values", "v")], depth=1)
    return indices


A, B, SHARED = elements("a", "b"), elements("b", "a"), [{"id": "a", "v": 1}, {"id": "a", "v": 2}]


@pytest.mark.parametrize("parts", [[[A], [B]], [[A, B], [A]], [[A], [A, B]], [[], [A, B]], [[A], [], [B]]])
def test_parts_that_are_added_in_order_warn_as_one(parts: list[list[list[dict[str, Any]]]]) -> None:
    whole = seen(*[array for part in parts for array in part])
    added = ElementIndices()
    for part in parts:
        added.add(ElementIndices.decode(seen(*part).encode()))
    assert added.warning == whole.warning != ""


@pytest.mark.parametrize("parts", [[[A], [A]], [[A], [SHARED], [B]], [[SHARED], [A, A]], [[]]])
def test_parts_without_a_move_do_not_warn(parts: list[list[list[dict[str, Any]]]]) -> None:
    added = ElementIndices()
    for part in parts:
        added.add(seen(*part))
    assert added.warning == ""


def test_what_is_kept_is_bounded() -> None:
    many_keys = seen(*[[{f"key{i}": "a", "v": 1}] for i in range(500)])
    many_texts = seen(*[[{"id": str(i), "v": 1}] for i in range(5000)])
    long_texts = seen(*[[{"id": f"{i}" * 10**5, "v": 1}] for i in range(9)])
    unusable_keys = seen(*[[{f"key{i}": "x" * 1000, "v": 1}] for i in range(5000)])
    for indices in (many_keys, many_texts, long_texts, unusable_keys):
        assert len(indices.encode()) < 20_000
    assert json.loads(many_keys.encode())["arrays"][0][-1] == []  # new keys are left out, and the earlier ones stay


def test_what_is_kept_of_many_arrays_is_bounded() -> None:
    many_arrays, many_texts = ElementIndices(), ElementIndices()
    for i in range(5000):
        many_arrays.compare([{"id": "a"}], [("machines", "values", "v")], depth=2, outer_indices=[i])
    for i in range(100):
        array = [{"id": str(j)} for j in range(1000)]
        many_texts.compare(array, [("machines", "values", "v")], depth=2, outer_indices=[i])
    assert len(many_arrays.encode()) < 20_000
    assert len(many_texts.encode()) < 64_000 * len('"999": 999, ') + 20_000
    joined = ElementIndices()
    for _ in range(3):
        joined.add(many_arrays)
        joined.add(ElementIndices.decode(many_texts.encode()))
    assert len(joined.encode()) < 64_000 * len('"999": 999, ') + 40_000


ORDERS = st.permutations("xy").map("".join)
VALUES = st.lists(st.fixed_dictionaries({}, optional={"a": ORDERS, "b": ORDERS, "c": ORDERS}), max_size=6)


def indices_in(*values: dict[str, str]) -> ElementIndices:
    """The indices in values of some arrays, of which the names of the elements are given in their order."""
    indices = ElementIndices()
    for value in values:
        for array, names in value.items():
            indices.compare(elements(*names), [(array, "lo"), (array, "hi")], depth=1)
    return indices


@given(values=VALUES, cuts=st.lists(st.integers(0, 6)).map(sorted))
def test_an_array_is_compared_only_with_itself_also_in_parts(values: list[dict[str, str]], cuts: list[int]) -> None:
    moved = {array for array in "abc" if len({value[array] for value in values if array in value}) > 1}
    added = ElementIndices()
    for start, end in pairwise([0, *cuts, len(values)]):
        added.add(ElementIndices.decode(indices_in(*values[start:end]).encode()))
    for indices in (added, indices_in(*values)):
        named = set(re.findall(r"([abc])\.lo", indices.warning))
        assert bool(indices.warning) == bool(moved)
        assert named <= moved
        for array in named:
            assert f"at {array}.lo,{array}.hi change" in indices.warning
            assert re.search(rf"field={array}\[id=([xy])\]\.lo,{array}\[id=\1\]\.hi$", indices.warning)


@given(a=ORDERS, b=ORDERS, later_a=ORDERS, later_b=ORDERS)
def test_arrays_at_different_paths_are_not_mixed_up(a: str, b: str, later_a: str, later_b: str) -> None:
    values = [{"a": elements(*a), "b": elements(*b)}, {"a": elements(*later_a), "b": elements(*later_b)}]
    warning = read("a.v,b.v", 4, *values).element_indices.warning
    assert ("at a.v change" in warning) == (a != later_a)
    assert ("at b.v change" in warning) == (a == later_a and b != later_b)
    assert bool(warning) == (values[0] != values[1])


MACHINES = st.tuples(ORDERS, ORDERS)


def machines(orders: tuple[str, str]) -> dict[str, Any]:
    return {"machines": [{"sensors": elements(*names)} for names in orders]}


@given(first=MACHINES, later=MACHINES)
def test_arrays_inside_of_elements_of_one_vector_are_kept_apart(first: Any, later: Any) -> None:
    warning = read("machines.sensors.v", 4, machines(first), machines(later)).element_indices.warning
    assert ("at machines.sensors.v change" in warning) == (first != later)


@given(first=MACHINES, later=MACHINES)
def test_arrays_inside_of_elements_that_are_vectors_are_compared(first: Any, later: Any) -> None:
    warning = read("machines.sensors.v", 2, machines(first), machines(later)).element_indices.warning
    assert ("at machines.sensors.v change" in warning) == (len({*first, *later}) > 1)


def test_a_part_in_which_a_key_becomes_unusable_is_compared_with_the_part_before() -> None:
    added = ElementIndices()
    for part in ([A], [B, SHARED]):
        added.add(seen(*part))
    assert added.warning == seen(A, B, SHARED).warning != ""
