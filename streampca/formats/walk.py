"""Walks from a value along the paths of `field`: through objects, arrays, and texts that hold JSON.

A path consists of steps. A step is the name of a field of an object, or a choice such as `[id=temp]`, which chooses an
element of an array. If several paths lead into the same array, one walk goes on in each element with all these paths.

A condition of `where` is tested on the innermost value that all paths share with it. With the paths `a.x` and `a.y`,
the condition `a.id=1` is tested on the value at `a`, as `id=1`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
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
    CONDITION_UNMET = "a condition of `where` is not met"


class Absent(NamedTuple):
    """A step of a path leads to nothing: the path may be wrong."""

    path_index: int  # in `field`
    step: Step
    parent: Any  # the value in which the step leads to nothing

    @property
    def is_parent_of_right_type(self) -> bool:
        """Whether `parent` only lacks this field or element. If not, the path is wrong: a number has no fields."""
        type_for_step = list if isinstance(self.step, Choice) else dict
        return isinstance(self.parent, type_for_step)


class Item(NamedTuple):
    """What one path leads to. Paths that go on in the elements of the same array share an item."""

    path_indices: Sequence[int]  # in `field`
    value: Any  # what is at the end of the path; `SkipReason` or `Absent` if nothing is; `Elements` if paths go on


ItemsOrReason: TypeAlias = list[Item] | SkipReason
"""What the paths lead to in a value; `SkipReason.CONDITION_UNMET` if the value does not meet a condition of `where`."""


@dataclass(frozen=True)
class _PathTree:
    """Paths that lead to the same value, as a tree of the steps with which they go on from this value."""

    path_indices: tuple[int, ...]  # of all these paths in `field`
    depth: int  # how many steps of each path lead to this value
    ending_here: tuple[int, ...]  # indices of the paths that end at this value
    by_next_step: Mapping[Step, "_PathTree"]  # the other paths, after their next step

    @classmethod
    def of(cls, remaining_steps: Mapping[int, Sequence[Step]], depth: int = 0) -> "_PathTree":
        """Create a tree of paths from the steps that remain of each path, with the path's index in `field` as key.

        {0: ("a", "x"), 1: ("a", "y"), 2: ()} gives a tree in which path 2 ends, and the step `a` leads to the tree of
        {0: ("x",), 1: ("y",)}. `depth` is the number of earlier steps, which all these paths share.
        """
        ending_here = []
        inner_steps_by_step: dict[Step, dict[int, Sequence[Step]]] = {}
        for index, steps in remaining_steps.items():
            if steps:
                inner_steps_by_step.setdefault(steps[0], {})[index] = steps[1:]
            else:
                ending_here.append(index)
        by_next_step = {step: cls.of(inner_steps, depth + 1) for step, inner_steps in inner_steps_by_step.items()}
        return cls(
            path_indices=tuple(remaining_steps),
            depth=depth,
            ending_here=tuple(ending_here),
            by_next_step=by_next_step,
        )

    @cached_property
    def common_next_step(self) -> Step | None:
        """The step that all these paths take next; None if they take different steps, or if one of them ends here."""
        all_go_on_together = len(self.by_next_step) == 1 and not self.ending_here
        return next(iter(self.by_next_step)) if all_go_on_together else None

    def item_for_each_path(self, value: Any) -> list[Item]:
        """Return an item for each path, all with the same value."""
        return [Item((index,), value) for index in self.path_indices]

    def items_of_paths_ending_here(self, value: Any) -> list[Item]:
        """Return an item with this value for each path that ends here."""
        return [Item((index,), value) for index in self.ending_here]

    def items_for_absent(self, step: Step, parent: Any) -> list[Item]:
        """Return, for each path, an item that says why there is no value: `parent` is null, or has no `step`."""
        if parent is None:
            return self.item_for_each_path(SkipReason.NULL)
        return [Item((index,), Absent(index, step, parent)) for index in self.path_indices]

    def without_choices(self, choices: Sequence[Choice]) -> "_PathTree":
        """Return the paths that go on from here, except those that go on with one of these choices."""
        by_next_step = {step: paths for step, paths in self.by_next_step.items() if step not in choices}
        path_indices = sorted(index for paths in by_next_step.values() for index in paths.path_indices)
        return _PathTree(tuple(path_indices), self.depth, ending_here=(), by_next_step=by_next_step)


class Walk(NamedTuple):
    """Finds what is at the ends of paths in a value that meets conditions."""

    paths: _PathTree
    conditions: Sequence[Condition]  # of `where`; their steps lead on from the value
    max_json_texts: int = MAX_JSON_TEXTS  # how many texts that hold JSON, one inside of the other, are parsed

    @classmethod
    def along(cls, paths: Sequence[Sequence[Step]], where: Sequence[Condition] = ()) -> "Walk":
        """Create the walk along all steps of these paths."""
        return cls(_PathTree.of(dict(enumerate(paths))), where)

    def find(self, value: Any) -> ItemsOrReason:
        """Return items, in the order of the paths: what each path leads to, or why the path leads to nothing.

        If the value does not meet the conditions, returns only `SkipReason.CONDITION_UNMET`. If a path should choose
        one element of an array, but several fit, raises `VectorError`.
        """
        if is_debezium_placeholder(value):  # counts as null, so no path has a value
            return self.paths.item_for_each_path(SkipReason.NULL)
        all_paths_end_here = not self.paths.by_next_step  # no path has a further step
        if all_paths_end_here:
            are_conditions_met = are_met(self.conditions, value, self.max_json_texts)
            return self.paths.item_for_each_path(value) if are_conditions_met else SkipReason.CONDITION_UNMET
        # A text that holds JSON is parsed, so that the paths can lead into its content. The content may hold such texts
        # again, down to a limited depth: below this value, fewer levels remain.
        content, remaining_json_texts = parse_json_texts(value, self.max_json_texts)
        walk = Walk(self.paths, self.conditions, max_json_texts=remaining_json_texts)
        # Both methods also test the conditions.
        return walk._find_in_array(content) if isinstance(content, list) else walk._find_in_object(content)

    def _find_in_object(self, value: Any) -> ItemsOrReason:
        """Return items, in the order of the paths: what each path leads to in an object.

        In {"a": {"x": 1, "y": 2}, "b": 3}, the paths `a.x`, `a.y` and `b` lead to 1, 2 and 3. If a path leads to
        nothing, its item says why: its value is `Absent` or `SkipReason`. A value that is not an object, such as null,
        has no fields. If a condition is not met, returns `SkipReason.CONDITION_UNMET` instead of items.
        """
        fields = value if isinstance(value, dict) else {}
        # With the paths `a.x` and `a.y`, the condition `b=2` is tested here. The condition `a.id=1` is an inner
        # condition: it is tested on the value of `a`, into which all paths lead.
        conditions_here, inner_conditions = self._divide_conditions(fields)
        if not are_met(conditions_here, value, self.max_json_texts):
            return SkipReason.CONDITION_UNMET
        items = self.paths.items_of_paths_ending_here(value)
        # From the paths `a.x` and `a.y`, `step` is `a`, and `inner_paths` are `x` and `y`.
        for step, inner_paths in self.paths.by_next_step.items():
            if step not in fields:
                items += inner_paths.items_for_absent(step, parent=value)
                continue
            # An array at the end of a path may be a tensor, as in {"data": [1, 2, 3, 4], "shape": [2, 2]}.
            inner_value = read_array(fields, step) if inner_paths.ending_here else fields[step]
            inner_items = Walk(inner_paths, inner_conditions, self.max_json_texts).find(inner_value)
            if isinstance(inner_items, SkipReason):  # an inner condition is not met
                return inner_items
            items += inner_items
        return sorted(items, key=_first_path_index)

    def _divide_conditions(self, fields: Mapping[Any, Any]) -> tuple[Sequence[Condition], Sequence[Condition]]:
        """Return the conditions to test on an object, and the conditions to test on the field that all paths lead into.

        For example, the paths `a.x` and `a.y` lead into the field `a`. The condition `a.id=1` is then tested on the
        value of `a`, and `b=2` is tested on the object. If the paths lead into different fields, or if the object lacks
        the field, all conditions are tested on the object. `fields` are all fields of the object.
        """
        step = self.paths.common_next_step  # such as `a`; None if there is no field into which all paths lead
        if step not in fields:
            return self.conditions, ()
        conditions_here = [condition for condition in self.conditions if _next_step(condition) != step]
        # On the field `a`, the condition `a.id=1` is tested as `id=1`.
        inner_conditions = [_without_next_step(each) for each in self.conditions if _next_step(each) == step]
        return conditions_here, inner_conditions

    def _find_in_array(self, array: list[Any]) -> ItemsOrReason:
        """Return items, in the order of the paths: what each path leads to in an array.

        For example, the paths are `[id=temp].v`, `x` and `y`. The path `[id=temp].v` leads to the `v` of the element
        whose `id` is `temp`. The paths `x` and `y` lead into each element, and share one item. The value of this item
        is `Elements`: the array, and a walk that finds `x` and `y` in an element.
        """
        has_inner_arrays = any(isinstance(element, list) for element in array)
        # If there are inner arrays, each of them is an element, in which the walk then makes the choices.
        choices = [] if has_inner_arrays else [step for step in self.paths.by_next_step if isinstance(step, Choice)]
        conditions = self._divide_conditions_in_array(has_inner_arrays=has_inner_arrays)
        if not are_met(conditions.on_array, array, self.max_json_texts):
            return SkipReason.CONDITION_UNMET
        items = self.paths.items_of_paths_ending_here(array)
        for choice in choices:  # `[id=temp]` gives the item of `[id=temp].v`
            chosen_items = self._find_in_chosen(array, choice, conditions)
            if isinstance(chosen_items, SkipReason):
                return chosen_items
            items += chosen_items
        paths_into_each_element = self.paths.without_choices(choices)  # `x` and `y`
        if paths_into_each_element.path_indices:  # if there are such paths, add one item for all of them
            walk = Walk(paths_into_each_element, conditions.on_each_element, self.max_json_texts)
            items.append(Item(paths_into_each_element.path_indices, Elements(array, walk)))
        return sorted(items, key=_first_path_index)

    def _divide_conditions_in_array(self, *, has_inner_arrays: bool) -> "_DividedConditions":
        """Return which conditions are tested on an array, which on each element, and which on the chosen element.

        If a condition on each element is not met, only this element is left out. If any other condition is not met, the
        whole array is left out.

        With the path `[id=temp].value`, in an array such as [{"id": "temp", "value": 20}, {"id": "hum", "value": 40}]:
        `[id=temp].unit=C`  is tested on the chosen element, as `unit=C`
        `[id=hum].value=1`  is tested on the array, in which it looks for the element `hum`
        `unit=C`            is tested on each element

        In [[{"id": "temp"}], [{"id": "temp"}]], each element is an inner array. All three conditions are tested on each
        inner array, where they are divided again.
        """
        divided = _DividedConditions(on_chosen_element=[], on_each_element=[], on_array=[])
        for condition in self.conditions:
            step = _next_step(condition)  # such as `[id=temp]` or `unit`; None if the condition is on the array itself
            if step is None or self.paths.ending_here:
                # If a path ends at the array, the path leads to the whole array: no element may be left out.
                divided.on_array.append(condition)
            elif has_inner_arrays or not isinstance(step, Choice):  # `unit=C`
                divided.on_each_element.append(condition)
            elif step == self.paths.common_next_step:  # `[id=temp].unit=C`: all paths choose this element, too
                divided.on_chosen_element.append(_without_next_step(condition))
            else:  # `[id=hum].value=1`: the path does not choose this element
                divided.on_array.append(condition)
        return divided

    def _find_in_chosen(self, array: list[Any], choice: Choice, conditions: "_DividedConditions") -> ItemsOrReason:
        """Return what each path with a choice, such as `[id=temp].value`, leads to in the element that it chooses.

        1. Find the elements with this id. Without such an element, the paths may be wrong.
        2. Choose the element that also meets the conditions on each element, such as `unit=C`. If several elements meet
           them, raises `VectorError`.
        3. Walk on in the chosen element. This also tests the conditions on this element only: `[id=temp].unit=C`.
        """
        inner_paths = self.paths.by_next_step[choice]  # such as `value`
        fitting = [element for element in array if self._fits(element, choice)]  # 1.
        if not fitting:
            return inner_paths.items_for_absent(choice, parent=array)
        # 2.
        accepted = [element for element in fitting if are_met(conditions.on_each_element, element, self.max_json_texts)]
        if not accepted:  # only the paths with this choice lead to nothing: other paths may lead to a value
            return inner_paths.item_for_each_path(SkipReason.CONDITION_UNMET)
        if len(accepted) > 1:
            raise VectorError("undecodable", f"{len(accepted)} elements have {choice.key}={choice.word}, not one")
        walk_in_element = Walk(inner_paths, conditions.on_chosen_element, self.max_json_texts)  # 3.
        return walk_in_element.find(accepted[0])

    def _fits(self, element: Any, choice: Choice) -> bool:
        """Return whether a choice such as `[id=temp]` chooses this element of an array."""
        content, _ = parse_json_texts(element, self.max_json_texts)
        return isinstance(content, dict) and is_word(content.get(choice.key), choice.word)


class Elements(NamedTuple):
    """An array in whose elements paths go on, and the walk along these paths in an element."""

    array: list[Any]
    walk: Walk

    def items_of_each_element(self) -> Iterator[ItemsOrReason]:
        """For each element, yield what the paths lead to in this element; or the reason to skip it, an unmet condition.

        In the array [{"x": 1}, {"x": 2}], the path `x` gives two lists: one with the item 1, and one with the item 2.
        """
        return map(self.walk.find, self.array)


class _DividedConditions(NamedTuple):
    """The conditions of an array, by what they are tested on. For example, with the path `[id=temp].v`:"""

    on_chosen_element: list[Condition]  # `[id=temp].unit=C`: tested on the element that all paths choose
    on_each_element: list[Condition]  # `unit=C`: tested on each element
    on_array: list[Condition]  # `[id=hum].v=1`: tested on the array, in which it looks for an element of its own


def _next_step(condition: Condition) -> Step | None:
    """Return the step with which a condition's path goes on; None if the path ends here."""
    return condition.steps[0] if condition.steps else None


def _without_next_step(condition: Condition) -> Condition:
    """Return the condition to test on the value to which its next step leads: `id=1` for `a.id=1`."""
    return condition._replace(steps=condition.steps[1:])


def _first_path_index(item: Item) -> int:
    return item.path_indices[0]


def are_met(conditions: Sequence[Condition], value: Any, max_json_texts: int = MAX_JSON_TEXTS) -> bool:
    """Return whether a value meets all conditions.

    If a condition's path leads to several values, one of these values must meet the condition: {"tags": ["a", "b"]}
    meets `tags=b`. The path may lead through at most `max_json_texts` texts that hold JSON.
    """
    for condition in conditions:
        walk_to_values = Walk(_tree_of_one_path(condition.steps), conditions=(), max_json_texts=max_json_texts)
        # An empty array on the path holds no values, and counts as null.
        values_at_path = list(single_values(walk_to_values.find(value))) or [None]
        if not any(map(condition.accepts, values_at_path)):
            return False
    return True


@cache  # only the steps of the setting `where` come here
def _tree_of_one_path(steps: tuple[Step, ...]) -> _PathTree:
    return _PathTree.of({0: steps})


def single_values(items: ItemsOrReason) -> Iterator[Any]:
    """Yield each number, text or other value that paths lead to. The values in an array are yielded one by one.

    `items` has what each path leads to. With the path `a.b`, {"a": [{"b": 1}, {"b": [2, 3]}, {"c": 4}]} gives 1, 2, 3
    and None, because the path leads to nothing in the last element.
    """
    if isinstance(items, SkipReason):  # a condition of `where` is not met, so there are no items
        return
    for item in items:
        leads_to_nothing = isinstance(item.value, SkipReason | Absent)  # to a null on the way, or to a missing field
        if leads_to_nothing:
            yield None
        elif isinstance(item.value, Elements):  # the array at `a`: the path goes on in each element, with `b`
            for items_in_element in item.value.items_of_each_element():
                yield from single_values(items_in_element)
        else:
            yield from _values_inside(item.value)


def _values_inside(value: Any) -> Iterator[Any]:
    """Yield each value inside of nested arrays; the value itself if it is not an array.

    For a number in MongoDB's notation, such as {"$numberDouble": "1.5"}, yields the plain number.
    """
    if isinstance(value, list):
        for element in value:
            yield from _values_inside(element)
    else:
        yield plain_number(value)


def parse_json_texts(value: Any, max_json_texts: int) -> tuple[Any, int]:
    """Return the content of a text that holds JSON, and how many more texts may be parsed inside of the content.

    The content may be a text that holds JSON again: at most `max_json_texts` texts are parsed. Any other value is
    returned as it is.
    """
    content = value
    remaining_texts = max_json_texts
    while remaining_texts > 0 and isinstance(content, str):
        try:
            content = orjson.loads(content)
        except ValueError:  # a text that is not JSON
            break
        remaining_texts -= 1
    return content, remaining_texts
