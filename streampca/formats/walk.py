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
from streampca.formats.text import is_unavailable
from streampca.settings.field_paths import Choice, Condition, Step, is_word

MAX_TEXTS = 2
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
class _Branch:
    """A node in the tree of paths: the paths that lead to the same value, and how they go on from this value."""

    path_indices: tuple[int, ...]  # of these paths in `field`
    ends: tuple[int, ...]  # indices of the paths that end at this value
    next: Mapping[Step, "_Branch"]  # the children: for each step, the node of the paths that go on with this step

    @classmethod
    def of(cls, steps_by_path: Mapping[int, Sequence[Step]]) -> "_Branch":
        """Create a branch from the steps that each path has left, by the index of the path."""
        ends = []
        rest_by_step: dict[Step, dict[int, Sequence[Step]]] = {}
        for index, steps in steps_by_path.items():
            if steps:
                rest_by_step.setdefault(steps[0], {})[index] = steps[1:]
            else:
                ends.append(index)
        following = {step: cls.of(rest_by_path) for step, rest_by_path in rest_by_step.items()}
        return cls(path_indices=tuple(steps_by_path), ends=tuple(ends), next=following)

    @cached_property
    def common_step(self) -> Step | None:
        """The step with which all of the paths go on; None if they go on with different steps, or if any ends here."""
        return next(iter(self.next)) if len(self.next) == 1 and not self.ends else None

    def count_steps_left(self, path_index: int) -> int:
        """Return how many steps a path of this branch has left."""
        if path_index in self.ends:
            return 0
        [following] = [branch for branch in self.next.values() if path_index in branch.path_indices]
        return 1 + following.count_steps_left(path_index)

    def items_without_value(self, step: Step, parent: Any) -> list[Item]:
        """For each path of this branch, return an item that says why the path has no value."""
        if parent is None:
            return [Item((index,), SkipReason.NULL) for index in self.path_indices]
        return [Item((index,), Absent(index, step, parent)) for index in self.path_indices]

    def leave_out(self, steps: Sequence[Step]) -> "_Branch":
        """Return the branch without the paths that end here, and without those that go on with one of these steps."""
        following = {step: branch for step, branch in self.next.items() if step not in steps}
        path_indices = sorted(index for branch in following.values() for index in branch.path_indices)
        return _Branch(tuple(path_indices), ends=(), next=following)


class _Test(NamedTuple):
    """A condition of `where`, and the rest of the path to the value that it is about."""

    condition: Condition
    branch: _Branch  # of this path alone

    @property
    def next_step(self) -> Step | None:
        """The step with which the path goes on; None if it ends here."""
        return self.branch.common_step

    def after_next_step(self) -> "_Test":
        """Return the test with the rest of the path after its next step."""
        [following] = self.branch.next.values()
        return self._replace(branch=following)


class Elements(NamedTuple):
    """An array through which paths lead: they go on in each of its elements."""

    array: list[Any]
    branch: _Branch  # the paths through this array, and the steps that they have left in each element
    tests: Sequence[_Test]  # which each element must meet
    max_texts: int  # texts that hold JSON, which the paths may still lead through

    def find_depth(self, paths: Sequence[Sequence[Step]]) -> int:
        """Return how many steps lead from the value to this array. `paths` are all paths of `field`."""
        first_path_index = self.branch.path_indices[0]
        return len(paths[first_path_index]) - self.branch.count_steps_left(first_path_index)

    def is_accepted(self, element: Any) -> bool:
        """Return whether an element meets the tests."""
        return all(_is_met(test, element, self.max_texts) for test in self.tests)

    def find_in_each(self) -> Iterator[Found]:
        """Yield what the paths lead to in each element."""
        return (_find(element, self.branch, self.tests, self.max_texts) for element in self.array)


class Walk:
    """Finds what is at the end of each path in a value."""

    def __init__(self, paths: Sequence[Sequence[Step]], where: Sequence[Condition] = ()) -> None:
        self._root = _Branch.of(dict(enumerate(paths)))
        self._tests = [_Test(condition, _Branch.of({0: condition.steps})) for condition in where]

    def find(self, value: Any) -> Found:
        """Return the items in the order of the paths; `SkipReason.UNMET` if the value does not meet `where`.

        If a path should choose one element of an array, but several fit, raises `VectorError`.
        """
        return _find(value, self._root, self._tests, MAX_TEXTS)


def _find(value: Any, branch: _Branch, tests: Sequence[_Test], max_texts: int) -> Found:
    """Find what the paths of a branch lead to in a value. Parse at most `max_texts` texts as JSON."""
    if is_unavailable(value):
        return [Item((index,), SkipReason.NULL) for index in branch.path_indices]
    if branch.next:
        value, max_texts = open_texts(value, max_texts)
    if isinstance(value, list) and branch.next:
        return _find_in_array(value, branch, tests, max_texts)
    entries = value if isinstance(value, dict) else {}
    tests_here, inner_tests = _divide_tests(tests, branch, entries)
    if not all(_is_met(test, value, max_texts) for test in tests_here):
        return SkipReason.UNMET
    items = [Item((index,), value) for index in branch.ends]
    for step, child in branch.next.items():
        if step not in entries:
            items += child.items_without_value(step, parent=value)
            continue
        # The entries beside an array may make it a tensor.
        inner_value = read_array(entries, step) if child.ends else entries[step]
        found = _find(inner_value, child, inner_tests, max_texts)
        if isinstance(found, SkipReason):
            return found
        items += found
    return sorted(items, key=_first_path_index)


def _divide_tests(
    tests: Sequence[_Test], branch: _Branch, entries: Mapping[Step, Any]
) -> tuple[Sequence[_Test], Sequence[_Test]]:
    """Divide tests into those of an object, and those of the entry through which all paths lead.

    With the paths `a.x` and `a.y`, a condition on `a.id` goes along into the entry `a`.
    """
    step = branch.common_step
    if step is None or step not in entries:
        return tests, ()
    tests_here = [test for test in tests if test.next_step != step]
    inner_tests = [test.after_next_step() for test in tests if test.next_step == step]
    return tests_here, inner_tests


def _first_path_index(item: Item) -> int:
    return item.path_indices[0]


def _find_in_array(array: list[Any], branch: _Branch, tests: Sequence[_Test], max_texts: int) -> Found:
    """Find what the paths of a branch lead to, if some of them go on in this array."""
    # In an array of arrays, the choice is made in each inner array.
    can_choose = not any(isinstance(element, list) for element in array)
    choices = [step for step in branch.next if isinstance(step, Choice)] if can_choose else []
    divided_tests = _divide_tests_in_array(tests, branch, can_choose=can_choose)
    if not all(_is_met(test, array, max_texts) for test in divided_tests.on_array):
        return SkipReason.UNMET
    items = [Item((index,), array) for index in branch.ends]
    for choice in choices:
        elements = Elements(array, branch.next[choice], divided_tests.on_each_element, max_texts)
        found = _find_in_chosen(elements, choice, divided_tests.on_chosen_element)
        if isinstance(found, SkipReason):
            return found
        items += found
    branch_through_all = branch.leave_out(choices)
    if branch_through_all.path_indices:
        elements = Elements(array, branch_through_all, divided_tests.on_each_element, max_texts)
        items.append(Item(branch_through_all.path_indices, elements))
    return sorted(items, key=_first_path_index)


class _DividedTests(NamedTuple):
    """The tests of an array, by what they are tested on. For example, with the path `[id=temp].v`:"""

    on_chosen_element: list[_Test]  # `[id=temp].unit=C`: tested on the element that all paths choose
    on_each_element: list[_Test]  # `unit=C`: tested on each element
    on_array: list[_Test]  # `[id=hum].v=1`: tested on the array, in which the test looks for an element of its own


def _divide_tests_in_array(tests: Sequence[_Test], branch: _Branch, *, can_choose: bool) -> _DividedTests:
    """Divide the tests of an array by what they are tested on."""
    divided = _DividedTests(on_chosen_element=[], on_each_element=[], on_array=[])
    for test in tests:
        chooses_element = can_choose and isinstance(test.next_step, Choice)
        chooses_same_as_paths = chooses_element and test.next_step == branch.common_step
        ends_here = test.next_step is None
        if chooses_same_as_paths:
            divided.on_chosen_element.append(test.after_next_step())
        elif chooses_element or ends_here or branch.ends:
            # If a path ends at the array, no element can be left out.
            divided.on_array.append(test)
        else:
            divided.on_each_element.append(test)
    return divided


def _find_in_chosen(elements: Elements, choice: Choice, tests_of_chosen: Sequence[_Test]) -> Found:
    """Find what the paths lead to in the element that a choice chooses. Raises `VectorError` if several fit.

    Elements that fail `elements.tests` are not chosen.
    """
    branch = elements.branch
    fitting = [element for element in elements.array if _fits(element, choice, elements.max_texts)]
    if not fitting:
        return branch.items_without_value(choice, parent=elements.array)
    accepted = list(filter(elements.is_accepted, fitting))
    # Only the paths of this branch have no value.
    if not accepted:
        return [Item((index,), SkipReason.UNMET) for index in branch.path_indices]
    if len(accepted) > 1:
        raise VectorError("undecodable", f"{len(accepted)} elements have {choice.key}={choice.word}, not one")
    return _find(accepted[0], branch, tests_of_chosen, elements.max_texts)


def _is_met(test: _Test, value: Any, max_texts: int) -> bool:
    """Return whether a value meets a condition. If its path leads to several values, any one of them is enough."""
    found = _find(value, test.branch, (), max_texts)
    values = list(single_values(found)) or [None]
    return any(map(test.condition.accepts, values))


def single_values(found: Found | list[Any]) -> Iterator[Any]:
    """Yield each single value at the end of a path, also those inside of arrays; None if a path leads to nothing."""
    items = [] if isinstance(found, SkipReason) else found
    for item in items:
        value = item.value if isinstance(item, Item) else item
        if isinstance(value, Elements):
            for found_in_element in value.find_in_each():
                yield from single_values(found_in_element)
        elif isinstance(value, list):
            yield from single_values(value)
        else:
            yield None if isinstance(value, SkipReason | Absent) else plain_number(value)


def _fits(element: Any, choice: Choice, max_texts: int) -> bool:
    """Return whether a choice chooses this element of an array."""
    opened, _ = open_texts(element, max_texts)
    return isinstance(opened, dict) and is_word(opened.get(choice.key), choice.word)


def open_texts(value: Any, max_texts: int) -> tuple[Any, int]:
    """If a value is a text of JSON, return what it holds, and how many more texts may be parsed."""
    while max_texts and isinstance(value, str):
        max_texts -= 1
        try:
            value = orjson.loads(value)
        except ValueError:
            break
    return value, max_texts
