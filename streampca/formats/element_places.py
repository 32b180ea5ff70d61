"""Notices that the elements of an array change their places: then numbers that are read by position are mixed up."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from streampca.settings.field_paths import Choice, Step, spell_path

# Limits of what is kept. Elements beyond them are not recognised.
_MAX_ARRAYS = 256
_MAX_KEYS = 64  # of an array
_MAX_UNUSABLE_KEYS = 256  # of an array
_MAX_TEXTS_OF_KEY = 1000
_MAX_TOTAL_TEXTS = 64_000  # of all keys of all arrays
_MAX_TEXT_LENGTH = 256


class _ArrayId(NamedTuple):
    """Identifies an array in each value: values may hold several arrays, whose elements are not compared."""

    path: str  # to the array
    outer_places: tuple[int, ...]  # of the elements that the array is inside of, see `ElementPlaces.look_at`


@dataclass
class _SeenArray:
    """The places at which the elements of an array were seen, in all values so far."""

    # places_by_key["id"]["temp"] is the place of the element whose entry `id` is `temp`.
    places_by_key: dict[str, dict[str, int]] = field(default_factory=dict)
    # By these, no element is recognised: two elements had the same text, or the texts are too many or too long.
    unusable_keys: set[str] = field(default_factory=set)

    def can_recognise_by(self, key: str) -> bool:
        """Return whether elements may be recognised by the texts that they have for a key."""
        if key in self.unusable_keys:
            return False
        if key in self.places_by_key:
            return True
        has_room = len(self.places_by_key) < _MAX_KEYS and len(self.unusable_keys) < _MAX_UNUSABLE_KEYS
        return has_room and len(key) <= _MAX_TEXT_LENGTH

    def add_unusable_keys(self, keys: Sequence[str]) -> None:
        """Use no longer these keys, as far as there is room to remember them."""
        for key in keys:
            if self.can_recognise_by(key):
                self.unusable_keys.add(key)

    def find_places(self, array: Sequence[Any]) -> dict[str, dict[str, int]]:
        """Return the places of the elements, as in `places_by_key`. Adds new unusable keys to `unusable_keys`."""
        places_by_key: dict[str, dict[str, int]] = {}
        for place, element in enumerate(array):
            for key, text in _texts_of(element):
                if not self.can_recognise_by(key):
                    continue
                places = places_by_key.setdefault(key, {})
                is_shared = text in places  # by two elements
                if is_shared or len(places) >= _MAX_TEXTS_OF_KEY or len(text) > _MAX_TEXT_LENGTH:
                    self.unusable_keys.add(key)
                places[text] = place
        return places_by_key


def _texts_of(element: Any) -> Iterator[tuple[str, str]]:
    """Yield each key of an element whose value is a text, and the text. Only objects have keys."""
    entries = element if isinstance(element, dict) else {}
    for key, value in entries.items():
        if isinstance(value, bytes):
            yield key, value.decode(errors="replace")
        elif isinstance(value, str):
            yield key, value


class ElementPlaces:
    """The places (indices) at which the elements of arrays were seen. Each array is compared only with itself.

    An element is recognised by one of its texts, such as the id of a sensor, if this text differs in all elements. For
    example, the key `id` and its text `temp` name the element {"id": "temp", "value": 20.5}. If this element is at
    another place in a later value, it has moved, and the choice [id=temp] in `field` would find it anywhere.
    """

    def __init__(self) -> None:
        self.warning = ""
        """For the user, if an element was seen at two places; else empty. It is about the first such element."""
        self._arrays: dict[_ArrayId, _SeenArray] = {}
        # For the warning: path to an array → what follows it in the paths of `field`, such as [".x", ".y"].
        self._path_ends_by_array: dict[str, list[str]] = {}
        self._total_text_count = 0

    def look_at(
        self,
        array: Sequence[Any],
        paths: Sequence[Sequence[Step]],
        depth: int,
        outer_places: Sequence[int] = (),
    ) -> None:
        """Compare the places of an array's elements with their places in earlier values.

        The first `depth` steps of `paths` lead to the array. `outer_places` are the places of the elements around it.
        """
        if self.warning:
            return
        array_id = _ArrayId(spell_path(paths[0][:depth]), tuple(outer_places))
        if array_id.path not in self._path_ends_by_array:
            self._path_ends_by_array[array_id.path] = [_spell_end(path, depth) for path in paths]
        seen = self._find_or_add(array_id)
        if seen is not None:
            self._compare_and_add(array_id, seen.find_places(array))

    def add(self, later: Self) -> None:
        """Take over what `later` has seen in further values.

        If an element is at another place here than in `later`, sets the warning.
        """
        # For an array that both have seen, the earlier ends stay.
        self._path_ends_by_array = later._path_ends_by_array | self._path_ends_by_array
        for array_id, seen_later in later._arrays.items():
            seen = self._find_or_add(array_id)
            if seen is None:  # there are too many arrays
                continue
            self._compare_and_add(array_id, seen_later.places_by_key)
            # Not before: places of unusable keys would not be compared.
            seen.add_unusable_keys(sorted(seen_later.unusable_keys))
        self.warning = self.warning or later.warning

    def encode(self) -> str:
        """Return all that was seen as JSON."""
        arrays = []
        for array_id, seen in self._arrays.items():
            arrays.append([*array_id, seen.places_by_key, sorted(seen.unusable_keys)])
        return json.dumps({"arrays": arrays, "ends": self._path_ends_by_array, "warning": self.warning})

    @classmethod
    def decode(cls, text: str) -> Self:
        """Return what `encode` has written: the places of the elements of each array, and what the warning needs."""
        places = cls()
        content = json.loads(text)
        for path, outer_places, places_by_key, unusable_keys in content["arrays"]:
            array_id = _ArrayId(path, tuple(outer_places))
            places._arrays[array_id] = _SeenArray(places_by_key, set(unusable_keys))
            places._total_text_count += sum(map(len, places_by_key.values()))
        places._path_ends_by_array = content["ends"]  # what follows an array in the paths of `field`
        places.warning = content["warning"]
        return places

    def _find_or_add(self, array_id: _ArrayId) -> _SeenArray | None:
        """Return what was seen of an array; None if it is new, and there are too many arrays already."""
        if array_id not in self._arrays and len(self._arrays) < _MAX_ARRAYS:
            self._arrays[array_id] = _SeenArray()
        return self._arrays.get(array_id)

    def _compare_and_add(self, array_id: _ArrayId, places_by_key: Mapping[str, Mapping[str, int]]) -> None:
        """Compare the places of an array's elements with earlier ones, and add new ones. Warn if any has moved."""
        seen = self._arrays[array_id]
        for key, places in places_by_key.items():
            if not seen.can_recognise_by(key):
                continue
            earlier_places = seen.places_by_key.setdefault(key, {})
            if len(earlier_places) > _MAX_TEXTS_OF_KEY:
                # Texts that never come again recognise no element, and would fill the memory.
                seen.unusable_keys.add(key)
                continue
            for text, place in places.items():
                if text not in earlier_places:
                    if self._total_text_count < _MAX_TOTAL_TEXTS:
                        earlier_places[text] = place
                        self._total_text_count += 1
                elif earlier_places[text] != place and not self.warning:
                    self.warning = self._warn_of(array_id.path, Choice(key, text))

    def _warn_of(self, path: str, moved: Choice) -> str:
        """Return the warning that elements of the array at this path move. `moved` chooses one of them."""
        ends = self._path_ends_by_array[path]  # what follows the array in the paths of `field`
        # For example, sensors.value should be sensors[id=temp].value.
        paths_in_field = ",".join((path + end).removeprefix(".") for end in ends)
        better_paths = ",".join(path + spell_path([moved]) + end for end in ends)
        return (
            f"the elements at {paths_in_field} change their places, but are read by position: name each of them, "
            f"such as by field={better_paths}"
        )


def _spell_end(path: Sequence[Step], depth: int) -> str:
    """Return the text of a path behind its first `depth` steps, such as `.value`."""
    element = "element"  # any name, so that a dot separates it from the name of the next step
    return spell_path([element, *path[depth:]]).removeprefix(element)
