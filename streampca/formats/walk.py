"""Walks from a value along the paths of `field`: through objects, arrays, and texts that hold JSON.

If paths share an array, the walk goes on in each of its elements, with all of these paths together. A condition of
`where` goes along while its path has the same steps as all of these paths. Where the steps differ, it is tested.
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
        """Whether `parent` only lacks this entry or element. If not, the path is wrong: a number has no names."""
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

    indices: tuple[int, ...]  # of all these paths in `field`
    depth: int  # how many steps of each path lead to this value
    ending_here: tuple[int, ...]  # indices of the paths that end at this value
    by_next_step: Mapping[Step, "_PathTree"]  # the other paths, after their next step

    @classmethod
    def of(cls, steps_by_path: Mapping[int, Sequence[Step]], depth: int = 0) -> "_PathTree":
        """Create a tree of paths. `steps_by_path` are the steps that are left of each path, by the path's index.

        `depth` is the number of earlier steps, which all paths share.
        """
        ending_here = []
        rest_by_next_step: dict[Step, dict[int, Sequence[Step]]] = {}
        for index, steps in steps_by_path.items():
            if steps:
                rest_by_next_step.setdefault(steps[0], {})[index] = steps[1:]
            else:
                ending_here.append(index)
        by_next_step = {step: cls.of(rest_by_path, depth + 1) for step, rest_by_path in rest_by_next_step.items()}
        return cls(tuple(steps_by_path), depth, tuple(ending_here), by_next_step)

    @cached_property
    def common_next_step(self) -> Step | None:
        """The step with which all of the paths go on; None if they go on with different steps, or if any ends here."""
        all_go_on_together = len(self.by_next_step) == 1 and not self.ending_here
        return next(iter(self.by_next_step)) if all_go_on_together else None

    def item_for_each_path(self, value: Any) -> list[Item]:
        """Return an item with this value for each path."""
        return [Item((index,), value) for index in self.indices]

    def items_ending_here(self, value: Any) -> list[Item]:
        """Return an item with this value for each path that ends here."""
        return [Item((index,), value) for index in self.ending_here]

    def items_without_value(self, step: Step, parent: Any) -> list[Item]:
        """For each path, return an item that says why the path has no value: `parent` is null, or has no `step`."""
        if parent is None:
            return self.item_for_each_path(SkipReason.NULL)
        return [Item((index,), Absent(index, step, parent)) for index in self.indices]

    def going_on_except(self, steps: Sequence[Step]) -> "_PathTree":
        """Return the paths that go on from here with a step that is not one of these."""
        by_next_step = {step: paths for step, paths in self.by_next_step.items() if step not in steps}
        indices = sorted(index for paths in by_next_step.values() for index in paths.indices)
        return _PathTree(tuple(indices), self.depth, ending_here=(), by_next_step=by_next_step)


class Walk(NamedTuple):
    """Finds what is at the ends of paths in a value that meets conditions."""

    paths: _PathTree
    conditions: Sequence[Condition]  # of `where`; their steps lead on from the value
    max_json_texts: int = MAX_JSON_TEXTS

    @classmethod
    def along(cls, paths: Sequence[Sequence[Step]], where: Sequence[Condition] = ()) -> "Walk":
        """Create the walk along all steps of these paths."""
        return cls(_PathTree.of(dict(enumerate(paths))), where)

    def find(self, value: Any) -> ItemsOrReason:
        """Return items, in the order of the paths: what each path leads to, or why it leads to nothing.

        If the value does not meet the conditions, returns only `SkipReason.CONDITION_UNMET`. If a path should choose
        one element of an array, but several fit, raises `VectorError`.
        """
        if is_debezium_placeholder(value):  # counts as null, so no path has a value
            return self.paths.item_for_each_path(SkipReason.NULL)
        all_paths_end_here = not self.paths.by_next_step
        if all_paths_end_here:
            return self._take_whole(value)
        # A text that holds JSON is parsed, so that the paths can lead into it.
        content, max_json_texts = parse_json_texts(value, self.max_json_texts)
        walk = Walk(self.paths, self.conditions, max_json_texts)
        return walk._find_in_array(content) if isinstance(content, list) else walk._find_in_object(content)

    def _take_whole(self, value: Any) -> ItemsOrReason:
        """Return the value itself for each path, if the value meets the conditions."""
        if not are_met(self.conditions, value, self.max_json_texts):
            return SkipReason.CONDITION_UNMET
        return self.paths.item_for_each_path(value)

    def _find_in_object(self, value: Any) -> ItemsOrReason:
        """Return items, in the order of the paths: what each path leads to in an object.

        A path ends at the object, or goes on in the entry that its next step names. A value that is not an object, such
        as null, has no entries. If a condition is not met, returns `SkipReason.CONDITION_UNMET`.
        """
        entries = value if isinstance(value, dict) else {}
        conditions_here, inner_conditions = self._divide_conditions(entries)
        if not are_met(conditions_here, value, self.max_json_texts):
            return SkipReason.CONDITION_UNMET
        items = self.paths.items_ending_here(value)
        # `inner_paths` are the paths that go on with the same step, without this step.
        for step, inner_paths in self.paths.by_next_step.items():
            if step not in entries:
                items += inner_paths.items_without_value(step, parent=value)
                continue
            # If a path ends at an array, an entry beside the array, such as `shape`, may say how to read the array.
            inner_value = read_array(entries, step) if inner_paths.ending_here else entries[step]
            inner_items = Walk(inner_paths, inner_conditions, self.max_json_texts).find(inner_value)
            if isinstance(inner_items, SkipReason):
                return inner_items
            items += inner_items
        return sorted(items, key=_first_path_index)

    def _divide_conditions(self, entries: Mapping[Any, Any]) -> tuple[Sequence[Condition], Sequence[Condition]]:
        """Return the conditions to test on an object, and those to test on the entry into which all paths lead.

        With the paths `a.x` and `a.y`, the condition `b=2` is tested on the object, and `a.id=1` on the entry `a`. If
        the paths lead into different entries, all conditions are tested on the object.
        """
        step = self.paths.common_next_step  # None if the paths lead into different entries
        if step not in entries:
            return self.conditions, ()
        conditions_here = [condition for condition in self.conditions if _next_step(condition) != step]
        # On the entry `a`, the condition `a.id=1` is tested as `id=1`.
        inner_conditions = [_without_next_step(each) for each in self.conditions if _next_step(each) == step]
        return conditions_here, inner_conditions

    def _find_in_array(self, array: list[Any]) -> ItemsOrReason:
        """Return what the paths lead to in an array, as items in the order of the paths.

        With the paths `[id=temp].v`, `x` and `y`, the first item is the `v` of the element whose `id` is `temp`. The
        paths `x` and `y` lead into each element, and share an item. This item is `Elements`: the array and a walk that
        finds `x` and `y` in an element.
        """
        has_inner_arrays = any(isinstance(element, list) for element in array)
        # A choice such as `[id=temp]` is made here. But if there are inner arrays, the choice is made in each of them.
        choices = [] if has_inner_arrays else [step for step in self.paths.by_next_step if isinstance(step, Choice)]
        # Some conditions are tested on the array, some on each element, and some on the element that paths choose.
        conditions = self._divide_conditions_in_array(has_inner_arrays=has_inner_arrays)
        if not are_met(conditions.on_array, array, self.max_json_texts):
            return SkipReason.CONDITION_UNMET
        items = self.paths.items_ending_here(array)
        for choice in choices:
            chosen_items = self._find_in_chosen(array, choice, conditions)
            if isinstance(chosen_items, SkipReason):
                return chosen_items
            items += chosen_items
        paths_into_each_element = self.paths.going_on_except(choices)
        if paths_into_each_element.indices:
            walk = Walk(paths_into_each_element, conditions.on_each_element, self.max_json_texts)
            items.append(Item(paths_into_each_element.indices, Elements(array, walk)))
        return sorted(items, key=_first_path_index)

    def _divide_conditions_in_array(self, *, has_inner_arrays: bool) -> "_DividedConditions":
        """Return which conditions are tested on an array, which on each element, and which on the chosen element.

        With the path `[id=temp].value`, `[id=temp].unit=C` is tested on the chosen element, and `unit=C` on each
        element. `[id=hum].value=1` is tested on the array, because it is about another element of the array.
        """
        divided = _DividedConditions(on_chosen_element=[], on_each_element=[], on_array=[])
        for condition in self.conditions:
            step = _next_step(condition)  # `unit` or `[id=temp]`; None if the condition is on the array itself
            # If there are inner arrays, `[id=temp]` chooses an element of an inner array, and none of this array.
            if isinstance(step, Choice) and not has_inner_arrays:
                all_paths_choose_the_same = step == self.paths.common_next_step
                if all_paths_choose_the_same:
                    divided.on_chosen_element.append(_without_next_step(condition))
                else:
                    divided.on_array.append(condition)
            elif step is None or self.paths.ending_here:
                # If a path ends at the array, it needs the whole array, so that no element may be left out.
                divided.on_array.append(condition)
            else:
                divided.on_each_element.append(condition)
        return divided

    def _find_in_chosen(self, array: list[Any], choice: Choice, conditions: "_DividedConditions") -> ItemsOrReason:
        """Return what paths such as `[id=temp].value` lead to in the element that the choice `[id=temp]` chooses.

        The element must also meet the conditions that are tested on each element. If several elements fit and meet
        these conditions, raises `VectorError`.
        """
        # This walk goes on in the chosen element, and tests the conditions on this element.
        walk = Walk(self.paths.by_next_step[choice], conditions.on_chosen_element, self.max_json_texts)
        fitting = [element for element in array if self._fits(element, choice)]
        if not fitting:
            return walk.paths.items_without_value(choice, parent=array)
        accepted = [element for element in fitting if are_met(conditions.on_each_element, element, self.max_json_texts)]
        if not accepted:
            # Only the paths with this choice lead to nothing. Other paths may lead to a value.
            return walk.paths.item_for_each_path(SkipReason.CONDITION_UNMET)
        if len(accepted) > 1:
            raise VectorError("undecodable", f"{len(accepted)} elements have {choice.key}={choice.word}, not one")
        return walk.find(accepted[0])

    def _fits(self, element: Any, choice: Choice) -> bool:
        """Return whether a choice such as `[id=temp]` chooses this element of an array."""
        content, _ = parse_json_texts(element, self.max_json_texts)
        return isinstance(content, dict) and is_word(content.get(choice.key), choice.word)


class Elements(NamedTuple):
    """An array in whose elements paths go on, and the walk along these paths in an element."""

    array: list[Any]
    walk: Walk

    def items_of_each_element(self) -> Iterator[ItemsOrReason]:
        """Yield, for each element, the items of the paths in it; or the reason to skip it, an unmet condition."""
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
    """Return whether a value meets all conditions. If a condition's path leads to several values, one is enough."""
    for condition in conditions:
        walk = Walk(_tree_of_one_path(condition.steps), conditions=(), max_json_texts=max_json_texts)
        values = list(single_values(walk.find(value))) or [None]  # an empty array on the path counts as null
        if not any(map(condition.accepts, values)):
            return False
    return True


@cache  # only the steps of the setting `where` come here
def _tree_of_one_path(steps: tuple[Step, ...]) -> _PathTree:
    return _PathTree.of({0: steps})


def single_values(items: ItemsOrReason) -> Iterator[Any]:
    """Yield each number, text or other value that paths lead to. The values in an array are yielded one by one.

    `items` has what each path leads to. For a path that leads to nothing, yields None.
    """
    if isinstance(items, SkipReason):  # a condition of `where` is not met, so there are no items
        return
    for item in items:
        if isinstance(item.value, Elements):  # an array in whose elements the path goes on
            for items_in_element in item.value.items_of_each_element():
                yield from single_values(items_in_element)
        elif isinstance(item.value, SkipReason | Absent):  # the path leads to nothing
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


def parse_json_texts(value: Any, max_json_texts: int) -> tuple[Any, int]:
    """Return the content of a text that holds JSON, and how many more texts may be parsed inside of the content.

    If the content is such a text again, it is parsed, too: at most `max_json_texts` texts. Any other value is its own
    content.
    """
    content = value
    remaining_texts = max_json_texts
    while remaining_texts > 0 and isinstance(content, str):
        remaining_texts -= 1
        try:
            content = orjson.loads(content)
        except ValueError:  # a text that is not JSON
            break
    return content, remaining_texts
