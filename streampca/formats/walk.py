"""Walks from a value along the paths of `field`: through objects, arrays, and texts that hold JSON.

If paths share an array, the walk goes on in each of its elements, with all of these paths together. A condition of
`where` goes along while its path has the same steps as all of these paths. Where the steps differ, it is tested.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import orjson

from streampca.formats.errors import VectorError
from streampca.formats.numbers import plain_number
from streampca.formats.tensors import read_array
from streampca.formats.text import is_debezium_placeholder
from streampca.settings.field_paths import Choice, Condition, Step, is_word

MAX_JSON_TEXTS = 2
"""Texts that hold JSON, one inside of the other, that a path may lead through."""


class SkipReason(Enum):
    """Why there is nothing at the end of a path, although no name is missing. The record may be skipped."""

    NULL = "null, or a placeholder of Debezium, is in place of a vector or an entry, or of what should hold it"
    UNMET = "a condition of `where` is not met"


class Absent(NamedTuple):
    """A step of a path leads to nothing: the path may be wrong."""

    path_index: int  # in `field`
    step: Step
    parent: Any  # the value in which the step leads to nothing

    @property
    def may_be_missing(self) -> bool:
        """Whether the vector may have a missing entry here. If not, the path is wrong."""
        type_for_step = list if isinstance(self.step, Choice) else dict
        return isinstance(self.parent, type_for_step)


class Item(NamedTuple):
    """What is at the end of a path, or an array through which several paths lead."""

    path_indices: Sequence[int]  # in `field`
    value: Any  # a value, `SkipReason`, `Absent`, or `Elements`


Found: TypeAlias = list[Item] | SkipReason
"""What the paths lead to in a value; `SkipReason.UNMET` if the value does not meet a condition of `where`."""


@dataclass(frozen=True)
class _Paths:
    """Paths that lead to the same value, and the steps with which they go on from this value."""

    indices: tuple[int, ...]  # of all these paths in `field`
    ending_here: tuple[int, ...]  # indices of the paths that end at this value
    by_next_step: Mapping[Step, "_Paths"]  # the other paths, after their next step

    @classmethod
    def of(cls, steps_by_path: Mapping[int, Sequence[Step]]) -> "_Paths":
        """Create paths from the steps that each path has left, by the index of the path."""
        ending_here = []
        rest_by_next_step: dict[Step, dict[int, Sequence[Step]]] = {}
        for index, steps in steps_by_path.items():
            if steps:
                rest_by_next_step.setdefault(steps[0], {})[index] = steps[1:]
            else:
                ending_here.append(index)
        by_next_step = {step: cls.of(rest_by_path) for step, rest_by_path in rest_by_next_step.items()}
        return cls(indices=tuple(steps_by_path), ending_here=tuple(ending_here), by_next_step=by_next_step)

    @cached_property
    def common_next_step(self) -> Step | None:
        """The step with which all of the paths go on; None if they go on with different steps, or if any ends here."""
        all_go_on_together = len(self.by_next_step) == 1 and not self.ending_here
        return next(iter(self.by_next_step)) if all_go_on_together else None

    def count_steps_left(self, index: int) -> int:
        """Return how many steps the path with this index has left."""
        if index in self.ending_here:
            return 0
        [paths_after_step] = [paths for paths in self.by_next_step.values() if index in paths.indices]
        return 1 + paths_after_step.count_steps_left(index)

    def items_without_value(self, step: Step, parent: Any) -> list[Item]:
        """For each path, return an item that says why the path has no value: `parent` is null, or has no `step`."""
        if parent is None:
            return [Item((index,), SkipReason.NULL) for index in self.indices]
        return [Item((index,), Absent(index, step, parent)) for index in self.indices]

    def going_on_except(self, steps: Sequence[Step]) -> "_Paths":
        """Return the paths that go on from here with a step that is not one of these."""
        by_next_step = {step: paths for step, paths in self.by_next_step.items() if step not in steps}
        indices = sorted(index for paths in by_next_step.values() for index in paths.indices)
        return _Paths(tuple(indices), ending_here=(), by_next_step=by_next_step)


class _Condition(NamedTuple):
    """A condition of `where` that is not tested yet, and the rest of the path to the value that it is about."""

    whole: Condition
    rest_of_path: _Paths  # only this path

    @property
    def next_step(self) -> Step | None:
        """The step with which the path goes on; None if it ends here."""
        return self.rest_of_path.common_next_step

    def after_next_step(self) -> "_Condition":
        """Return the condition with the rest of the path after its next step."""
        [rest_of_path] = self.rest_of_path.by_next_step.values()
        return self._replace(rest_of_path=rest_of_path)


class Elements(NamedTuple):
    """An array through which paths lead: they go on in each of its elements."""

    array: list[Any]
    paths: _Paths  # the paths through this array, and the steps that they have left in each element
    conditions: Sequence[_Condition]  # which each element must meet
    max_json_texts: int  # texts that hold JSON, which the paths may still lead through

    def find_depth(self, all_paths: Sequence[Sequence[Step]]) -> int:
        """Return how many steps lead from the value to this array. `all_paths` are those of `field`."""
        first_index = self.paths.indices[0]
        return len(all_paths[first_index]) - self.paths.count_steps_left(first_index)

    def is_accepted(self, element: Any) -> bool:
        """Return whether an element meets the conditions."""
        return all(_is_met(condition, element, self.max_json_texts) for condition in self.conditions)

    def find_in_each(self) -> Iterator[Found]:
        """Yield what the paths lead to in each element."""
        return (_find(element, self.paths, self.conditions, self.max_json_texts) for element in self.array)


class Walk:
    """Finds what is at the end of each path in a value."""

    def __init__(self, paths: Sequence[Sequence[Step]], where: Sequence[Condition] = ()) -> None:
        self._paths = _Paths.of(dict(enumerate(paths)))
        self._conditions = [_Condition(condition, _Paths.of({0: condition.steps})) for condition in where]

    def find(self, value: Any) -> Found:
        """Return the items in the order of the paths; `SkipReason.UNMET` if the value does not meet `where`.

        If a path should choose one element of an array, but several fit, raises `VectorError`.
        """
        return _find(value, self._paths, self._conditions, MAX_JSON_TEXTS)


def _find(value: Any, paths: _Paths, conditions: Sequence[_Condition], max_json_texts: int) -> Found:
    """Return what paths lead to in a value; `SkipReason.UNMET` if the value does not meet the conditions.

    At most `max_json_texts` texts, one inside of the other, are parsed as JSON.
    """
    if is_debezium_placeholder(value):
        return [Item((index,), SkipReason.NULL) for index in paths.indices]
    if paths.by_next_step:  # not all paths end at this value
        value, max_json_texts = parse_json_texts(value, max_json_texts)
        if isinstance(value, list):
            return _find_in_array(value, paths, conditions, max_json_texts)
    return _find_in_object(value, paths, conditions, max_json_texts)


def _find_in_object(value: Any, paths: _Paths, conditions: Sequence[_Condition], max_json_texts: int) -> Found:
    """Return what paths lead to in an object: items, each with the indices of its paths.

    If a path leads to nothing, its item says why. A value that is not an object has no entries.
    """
    entries = value if isinstance(value, dict) else {}
    conditions_here, inner_conditions = _divide_conditions(conditions, paths, entries)
    if not all(_is_met(condition, value, max_json_texts) for condition in conditions_here):
        return SkipReason.UNMET
    items = [Item((index,), value) for index in paths.ending_here]
    for step, inner_paths in paths.by_next_step.items():
        if step not in entries:
            items += inner_paths.items_without_value(step, parent=value)
            continue
        # If a path ends at an array, entries beside it, such as its shape, may say how it is read.
        inner_value = read_array(entries, step) if inner_paths.ending_here else entries[step]
        found = _find(inner_value, inner_paths, inner_conditions, max_json_texts)
        if isinstance(found, SkipReason):
            return found
        items += found
    return sorted(items, key=_first_path_index)


def _divide_conditions(
    conditions: Sequence[_Condition], paths: _Paths, entries: Mapping[Step, Any]
) -> tuple[Sequence[_Condition], Sequence[_Condition]]:
    """Divide conditions into those to test on an object, and those to test on the entry that all paths lead into.

    With the paths `a.x` and `a.y`, the condition `a.id=1` is tested on the entry `a`, and `b=2` on the object.
    """
    step = paths.common_next_step
    if step is None or step not in entries:
        return conditions, ()
    conditions_here = [condition for condition in conditions if condition.next_step != step]
    inner_conditions = [condition.after_next_step() for condition in conditions if condition.next_step == step]
    return conditions_here, inner_conditions


def _first_path_index(item: Item) -> int:
    return item.path_indices[0]


def _find_in_array(array: list[Any], paths: _Paths, conditions: Sequence[_Condition], max_json_texts: int) -> Found:
    """Return what paths lead to in an array; `SkipReason.UNMET` if the array does not meet the conditions."""
    # In an array of arrays, a choice such as `[id=temp]` is made in each inner array.
    can_choose = not any(isinstance(element, list) for element in array)
    choices = [step for step in paths.by_next_step if isinstance(step, Choice)] if can_choose else []
    divided = _divide_conditions_in_array(conditions, paths, can_choose=can_choose)
    if not all(_is_met(condition, array, max_json_texts) for condition in divided.on_array):
        return SkipReason.UNMET
    items = [Item((index,), array) for index in paths.ending_here]
    for choice in choices:
        elements = Elements(array, paths.by_next_step[choice], divided.on_each_element, max_json_texts)
        found = _find_in_chosen(elements, choice, divided.on_chosen_element)
        if isinstance(found, SkipReason):
            return found
        items += found
    paths_into_each_element = paths.going_on_except(choices)
    if paths_into_each_element.indices:
        elements = Elements(array, paths_into_each_element, divided.on_each_element, max_json_texts)
        items.append(Item(paths_into_each_element.indices, elements))
    return sorted(items, key=_first_path_index)


class _DividedConditions(NamedTuple):
    """The conditions of an array, by what they are tested on. For example, with the path `[id=temp].v`:"""

    on_chosen_element: list[_Condition]  # `[id=temp].unit=C`: tested on the element that all paths choose
    on_each_element: list[_Condition]  # `unit=C`: tested on each element
    on_array: list[_Condition]  # `[id=hum].v=1`: tested on the array, in which it looks for an element of its own


def _divide_conditions_in_array(
    conditions: Sequence[_Condition], paths: _Paths, *, can_choose: bool
) -> _DividedConditions:
    """Divide the conditions of an array by what they are tested on.

    With `can_choose`, the step `[id=temp]` chooses an element.
    """
    divided = _DividedConditions(on_chosen_element=[], on_each_element=[], on_array=[])
    for condition in conditions:
        chooses_element = can_choose and isinstance(condition.next_step, Choice)
        chooses_same_as_paths = chooses_element and condition.next_step == paths.common_next_step
        ends_here = condition.next_step is None
        if chooses_same_as_paths:
            divided.on_chosen_element.append(condition.after_next_step())
        elif chooses_element or ends_here or paths.ending_here:
            # If a path ends at the array, no element can be left out.
            divided.on_array.append(condition)
        else:
            divided.on_each_element.append(condition)
    return divided


def _find_in_chosen(elements: Elements, choice: Choice, conditions: Sequence[_Condition]) -> Found:
    """Return what the paths lead to in the element that a choice chooses. Raises `VectorError` if several fit.

    Elements that do not meet `elements.conditions` are not chosen. The chosen one must meet `conditions`.
    """
    paths = elements.paths
    fitting = [element for element in elements.array if _fits(element, choice, elements.max_json_texts)]
    if not fitting:
        return paths.items_without_value(choice, parent=elements.array)
    accepted = list(filter(elements.is_accepted, fitting))
    if not accepted:
        # Paths that do not make this choice may still have a value.
        return [Item((index,), SkipReason.UNMET) for index in paths.indices]
    if len(accepted) > 1:
        raise VectorError("undecodable", f"{len(accepted)} elements have {choice.key}={choice.word}, not one")
    return _find(accepted[0], paths, conditions, elements.max_json_texts)


def _is_met(condition: _Condition, value: Any, max_json_texts: int) -> bool:
    """Return whether a value meets a condition. If its path leads to several values, any one of them is enough."""
    found = _find(value, condition.rest_of_path, (), max_json_texts)
    values = list(single_values(found)) or [None]
    return any(map(condition.whole.accepts, values))


def single_values(found: Found) -> Iterator[Any]:
    """Yield the values at the ends of paths, also each value inside of an array; None for a path without a value.

    If the whole record is skipped, yields nothing.
    """
    if isinstance(found, SkipReason):
        return
    for item in found:
        if isinstance(item.value, Elements):
            for found_in_element in item.value.find_in_each():
                yield from single_values(found_in_element)
        elif isinstance(item.value, SkipReason | Absent):
            yield None
        else:
            yield from _values_inside(item.value)


def _values_inside(value: Any) -> Iterator[Any]:
    """Yield each value inside of nested arrays; the value itself if it is not an array."""
    if isinstance(value, list):
        for element in value:
            yield from _values_inside(element)
    else:
        yield plain_number(value)


def _fits(element: Any, choice: Choice, max_json_texts: int) -> bool:
    """Return whether a choice such as `[id=temp]` chooses this element of an array."""
    content, _ = parse_json_texts(element, max_json_texts)
    return isinstance(content, dict) and is_word(content.get(choice.key), choice.word)


def parse_json_texts(value: Any, max_json_texts: int) -> tuple[Any, int]:
    """If a value is a text of JSON, return what it holds, and how many more texts may be parsed."""
    while max_json_texts and isinstance(value, str):
        max_json_texts -= 1
        try:
            value = orjson.loads(value)
        except ValueError:
            break
    return value, max_json_texts
