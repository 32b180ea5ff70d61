"""Notices that the elements of an array change their order: then numbers that are read by index are mixed up.

For example, the array [{"id": "temp", "value": 20.5}, {"id": "hum", "value": 40}] has the element of the sensor `temp`
at index 0. No two elements have the same text for the key `id`, so that elements can be identified by this key.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from streampca.settings.field_paths import Choice, Step, spell_path

# Limits of what is kept. Elements beyond them are not identified.
_MAX_ARRAYS = 256
_MAX_KEYS = 64  # of an array
_MAX_UNUSABLE_KEYS = 256  # of an array
_MAX_TEXTS_OF_KEY = 1000
_MAX_TOTAL_TEXTS = 64_000  # of all keys of all arrays
_MAX_TEXT_LENGTH = 256


class _ArrayId(NamedTuple):
    """Identifies an array in each value. Only arrays with equal ids are compared.

    The `sensors` of the second machine have the path `machines.sensors` and the outer index 1.
    """

    path: str  # to the array
    outer_indices: tuple[int, ...]  # of the elements that the array is inside of, from the outermost


@dataclass
class _EarlierElements:
    """The elements of an array that were found in all values so far.

    An element is identified by its text for a key, such as "temp" for `id`, if no two elements have the same text.
    """

    # indices_by_key["id"]["temp"] is the index of the element with the text `temp` for the key `id`.
    indices_by_key: dict[str, dict[str, int]] = field(default_factory=dict)
    # Keys that identify no element: two elements had the same text, or the texts are too many or too long.
    unusable_keys: set[str] = field(default_factory=set)

    def may_identify_by(self, key: str) -> bool:
        """Return whether a key, such as `id`, may identify elements.

        It may not if two elements had the same text for the key, or if a new key is too long or finds no room.
        """
        if key in self.unusable_keys:  # two elements had the same text, for example
            return False
        if key in self.indices_by_key:
            return True
        # A new key may turn out to be unusable, so there must be room for it in both collections.
        has_room = len(self.indices_by_key) < _MAX_KEYS and len(self.unusable_keys) < _MAX_UNUSABLE_KEYS
        return has_room and len(key) <= _MAX_TEXT_LENGTH

    def find_indices(self, array: Sequence[Any]) -> dict[str, dict[str, int]]:
        """Return, for each key, the text of each element and the index of this element.

        For [{"id": "temp"}, {"id": "hum"}], the result is {"id": {"temp": 0, "hum": 1}}. By its text for `id`, an
        element is found again in later values.

        If two elements have the same text for a key, or if the texts of a key are too many or too long, the key cannot
        identify elements, and is added to `unusable_keys`. The result may still have this key, with some of the
        elements, so the caller must ignore it.
        """
        indices_by_key: dict[str, dict[str, int]] = {}
        for index, element in enumerate(array):
            for key, text in _texts_of(element):
                if not self.may_identify_by(key):
                    continue
                index_by_text = indices_by_key.setdefault(key, {})
                is_shared = text in index_by_text  # by two elements
                if is_shared or len(index_by_text) >= _MAX_TEXTS_OF_KEY or len(text) > _MAX_TEXT_LENGTH:
                    self.unusable_keys.add(key)
                    continue
                index_by_text[text] = index
        return indices_by_key


def _texts_of(element: Any) -> Iterator[tuple[str, str]]:
    """Yield each key of an element whose value is a text, and the text. Only objects have keys."""
    entries = element if isinstance(element, dict) else {}
    for key, value in entries.items():
        if isinstance(value, bytes):
            yield key, value.decode(errors="replace")
        elif isinstance(value, str):
            yield key, value


class ElementIndices:
    """Keeps at which index each element of an array was found, and warns if a later value has it at another index.

    An element is identified by one of its texts, such as the id of a sensor, if this text differs in all elements. For
    example, the key `id` and its text `temp` name the element {"id": "temp", "value": 20.5}. If this element is at
    another index in a later value, it has moved, and the choice [id=temp] in `field` would find it at any index. Each
    array is compared only with itself.
    """

    def __init__(self) -> None:
        """Start without elements. `compare` and `add` remember at which index of an array each element was.

        An element is identified by a text, such as "temp" in {"id": "temp", "value": 20.5}.
        """
        self.warning = ""
        """A message for the user about the first element that was found at two indices; "" if no element has moved."""
        # By array: the index of each element, by the text that identifies the element.
        self._earlier_elements: dict[_ArrayId, _EarlierElements] = {}
        # For the warning: how the paths of `field` go on from each array. If `field` is "items.x,items.y", this is
        # {"items": [".x", ".y"]}.
        self._path_ends_by_array: dict[str, list[str]] = {}
        self._remembered_text_count = 0  # how many texts identify elements, in all arrays; it is limited

    def compare(
        self,
        array: Sequence[Any],
        paths: Sequence[Sequence[Step]],
        depth: int,
        outer_indices: Sequence[int] = (),
    ) -> None:
        """Compare the index of each element of an array with the element's earlier index; remember new elements.

        An element is identified by a text, such as "temp" in [{"id": "temp"}]. If an element has another index than in
        earlier values, sets the warning.

        The first `depth` steps of each of the `paths` lead to the array. `outer_indices` are the indices of the
        elements that the array is inside of. With the path `machines.sensors.x`, in
        {"machines": [{"sensors": [{"x": 1}]}]}:
        array at `machines`  `depth` is 1, and `outer_indices` is ()
        array at `sensors`   `depth` is 2, and `outer_indices` is (0,): the array is inside of element 0 of `machines`
        """
        if self.warning:  # one warning is enough
            return
        array_id = _ArrayId(spell_path(paths[0][:depth]), tuple(outer_indices))
        # The warning will need how the paths go on from the array, such as ".value".
        if array_id.path not in self._path_ends_by_array:
            self._path_ends_by_array[array_id.path] = [_spell_end(path, depth) for path in paths]
        earlier_elements = self._find_or_add(array_id)
        if earlier_elements is not None:  # None if there are too many arrays
            self._compare_and_add(array_id, earlier_elements.find_indices(array))

    def add(self, later: Self) -> None:
        """Add the indices at which `later` has found elements in further values.

        The element {"id": "temp"} is identified by its text "temp" for the key `id`. If an element has another index
        here than in `later`, sets the warning. A key is unusable if, for example, two elements have the same text.
        """
        # For the warning: how the paths of `field` go on from each array, such as `.value` from the array `sensors`.
        # The right operand wins, so `self` keeps its own entries.
        self._path_ends_by_array = later._path_ends_by_array | self._path_ends_by_array
        for array_id, later_elements in later._earlier_elements.items():
            own_elements = self._find_or_add(array_id)
            if own_elements is None:  # the array is new, and there are too many already
                continue
            self._compare_and_add(array_id, later_elements.indices_by_key)
            # Only after the comparison, which leaves out unusable keys: before a key became unusable, `later` may have
            # found elements by it. Sorted: if there is not room for all keys, the same are kept in every process.
            for key in sorted(later_elements.unusable_keys):
                if own_elements.may_identify_by(key):
                    own_elements.unusable_keys.add(key)
        self.warning = self.warning or later.warning

    def encode(self) -> str:
        """Return all that is remembered, as a text of JSON that `decode` reads.

        If `field` is "sensors.value", the text is for example:
        {"arrays": [["sensors", [], {"id": {"temp": 0}}, ["unit"]]], "ends": {"sensors": [".value"]}, "warning": ""}

        Each of `arrays` is [path, outer indices, {key: {text: index}}, keys that do not identify elements]. `ends` says
        how the paths of `field` go on from each array. `warning` is for the user; it is "" if no element has moved.
        """
        arrays = []
        for (path, outer_indices), elements in self._earlier_elements.items():
            arrays.append([path, outer_indices, elements.indices_by_key, sorted(elements.unusable_keys)])
        return json.dumps({"arrays": arrays, "ends": self._path_ends_by_array, "warning": self.warning})

    @classmethod
    def decode(cls, text: str) -> Self:
        """Return the `ElementIndices` that `encode` has written to a text, such as:

        {"arrays": [["sensors", [], {"id": {"temp": 0}}, ["unit"]]], "ends": {"sensors": [".value"]}, "warning": ""}
        """
        decoded = cls()
        content = json.loads(text)
        for path, outer_indices, indices_by_key, unusable_keys in content["arrays"]:
            array_id = _ArrayId(path, tuple(outer_indices))
            decoded._earlier_elements[array_id] = _EarlierElements(indices_by_key, set(unusable_keys))
            decoded._remembered_text_count += sum(len(index_by_text) for index_by_text in indices_by_key.values())
        decoded._path_ends_by_array = content["ends"]
        decoded.warning = content["warning"]
        return decoded

    def _find_or_add(self, array_id: _ArrayId) -> _EarlierElements | None:
        """Return the earlier elements of an array; None if the array is new, and there are too many arrays already."""
        if array_id not in self._earlier_elements and len(self._earlier_elements) < _MAX_ARRAYS:
            self._earlier_elements[array_id] = _EarlierElements()
        return self._earlier_elements.get(array_id)

    def _compare_and_add(self, array_id: _ArrayId, indices_by_key: Mapping[str, Mapping[str, int]]) -> None:
        """Compare the indices of an array's elements with earlier indices. Warn if an element moved; add new elements.

        An element is identified by its text for a key, such as "temp" for `id`. For the elements
        [{"id": "temp"}, {"id": "hum"}], `indices_by_key` is {"id": {"temp": 0, "hum": 1}}.
        """
        earlier_elements = self._earlier_elements[array_id]
        for key, index_by_text in indices_by_key.items():
            if not earlier_elements.may_identify_by(key):  # such as a key for which two elements had the same text
                continue
            earlier_index_by_text = earlier_elements.indices_by_key.setdefault(key, {})
            if len(earlier_index_by_text) > _MAX_TEXTS_OF_KEY:
                # A key with so many texts, such as a time, identifies no element, and its texts would fill the memory.
                earlier_elements.unusable_keys.add(key)
                continue
            for text, index in index_by_text.items():
                if text not in earlier_index_by_text:
                    if self._remembered_text_count < _MAX_TOTAL_TEXTS:
                        earlier_index_by_text[text] = index
                        self._remembered_text_count += 1
                elif earlier_index_by_text[text] != index and not self.warning:
                    self.warning = self._describe_move(array_id.path, Choice(key, text))

    def _describe_move(self, path: str, choice: Choice) -> str:
        """Return the warning that an element of the array at this path has moved. `choice` chooses this element.

        If `field` is `sensors.value`, the warning suggests `sensors[id=temp].value`. In this example, `path` is
        "sensors", and `choice` is [id=temp].

        If the value itself is the array, `path` is "". Then `field` is `value`, and the warning suggests
        `[id=temp].value`.
        """
        ends = self._path_ends_by_array[path]  # how the paths of `field` go on from the array: [".value"]
        # "sensors" + ".value", or "" + ".value", which must lose its dot.
        paths_in_field = ",".join((path + end).removeprefix(".") for end in ends)
        # "sensors" + "[id=temp]" + ".value"
        better_paths = ",".join(path + spell_path([choice]) + end for end in ends)
        return (
            f"the elements at {paths_in_field} change their places, but are read by position: name each of them, "
            f"such as by field={better_paths}"
        )


def _spell_end(path: Sequence[Step], depth: int) -> str:
    """Return the text of a path behind its first `depth` steps, such as `.value`."""
    element = "element"  # any name, so that a dot separates it from the name of the next step
    return spell_path([element, *path[depth:]]).removeprefix(element)
