"""Notices that the elements of an array change their places: then numbers that are read by position are mixed up."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from streampca.settings.field_paths import Choice, Step, spell_path

# Limits of what is kept. Elements are not recognised by a key with more or longer texts.
_MAX_KEYS = 64
_MAX_TEXTS_OF_KEY = 1000
_MAX_TEXT_LENGTH = 256


class ElementPlaces:
    """The places (indices) at which the elements of arrays were seen.

    An element is recognised by one of its texts, such as the id of a sensor, if this text differs in all elements. For
    example, the key `id` and its text `temp` name the element {"id": "temp", "value": 20.5}. If this element is at
    another place in a later array, it has moved, and the choice [id=temp] in `field` would find it anywhere.
    """

    def __init__(self) -> None:
        self._places_by_key: dict[str, dict[str, int]] = {}  # ["id"]["temp"]: place of the element whose `id` is temp
        self._unusable_keys = set[str]()  # two elements had the same text, or the texts are too many or too long
        self._path_parts: list[tuple[str, str]] = []  # of each path: the texts before and behind the array's element
        self._moved_choice = ""  # chooses the first element that has moved, such as [id=temp]; "": none has moved

    @property
    def warning(self) -> str:
        """Warning for the user if an element has moved; else empty."""
        if not self._moved_choice:
            return ""
        # For example, `sensors` and `.value` are the parts of the path sensors.value. With the choice between them, the
        # better path is sensors[id=temp].value. If the array is the value itself, the first part is empty.
        path = ",".join((before + behind).removeprefix(".") for before, behind in self._path_parts)
        better_path = ",".join(before + self._moved_choice + behind for before, behind in self._path_parts)
        return (
            f"the elements at {path} change their places, but are read by position: name each of them, "
            f"such as by field={better_path}"
        )

    def look_at(self, array: Sequence[Any], paths: Sequence[Sequence[Step]], depth: int) -> None:
        """Compare the places of an array's elements with their places in earlier arrays.

        Elements are recognised by the keys whose texts differ in all elements of an array, such as `id`. The `paths`
        lead through the array; their first `depth` steps lead to it.
        """
        if self._moved_choice:  # the warning is complete
            return
        places_by_key: dict[str, dict[str, int]] = {}  # ["id"]["temp"]: place of the element whose `id` is temp
        for place, element in enumerate(array):
            if not isinstance(element, dict):
                continue
            for key, value in element.items():
                text = value.decode(errors="replace") if isinstance(value, bytes) else value
                if not isinstance(text, str) or not self._can_recognise_by(key):
                    continue
                places = places_by_key.setdefault(key, {})
                is_shared = text in places  # by two elements
                if is_shared or len(places) >= _MAX_TEXTS_OF_KEY or len(text) > _MAX_TEXT_LENGTH:
                    self._unusable_keys.add(key)
                places[text] = place
        self._compare(places_by_key)
        # The warning names the paths through the array in which an element has moved. The paths through the first array
        # are kept even if none has moved, because `add` may report a move later.
        if self._moved_choice or not self._path_parts:
            self._path_parts = [_split_at_element(path, depth) for path in paths]

    def add(self, later: Self) -> None:
        """Take over what `later` has seen in further arrays, as if this object had looked at these arrays.

        An element has moved if a key, such as `id`, has the same text at another place here than in `later`.
        """
        self._unusable_keys |= later._unusable_keys  # no element is recognised by these keys
        # The warning names the first element that has moved (`_moved_choice`), and the paths to it (`_path_parts`).
        self._path_parts = self._path_parts or later._path_parts
        self._moved_choice = self._moved_choice or later._moved_choice
        self._compare(later._places_by_key)

    def encode(self) -> str:
        """Return all that was seen as JSON."""
        return json.dumps([self._places_by_key, sorted(self._unusable_keys), self._path_parts, self._moved_choice])

    @classmethod
    def decode(cls, text: str) -> Self:
        """Return what `encode` has written."""
        places = cls()
        places_by_key, unusable_keys, path_parts, moved_choice = json.loads(text)
        places._places_by_key = places_by_key
        places._unusable_keys = set(unusable_keys)
        places._path_parts = path_parts
        places._moved_choice = moved_choice
        return places

    def _can_recognise_by(self, key: str) -> bool:
        """Return whether elements may be recognised by the texts that they have for a key."""
        is_known = key in self._places_by_key
        return key not in self._unusable_keys and (is_known or len(self._places_by_key) < _MAX_KEYS)

    def _compare(self, places_by_key: Mapping[str, Mapping[str, int]]) -> None:
        """Compare the places of elements with their places in earlier arrays, and remember the first that has moved.

        `places_by_key["id"]["temp"]` is the place of the element whose entry `id` is `temp`. Keys by which elements
        cannot be recognised are left out.
        """
        for key, places in places_by_key.items():
            if not self._can_recognise_by(key):
                continue
            earlier_places = self._places_by_key.setdefault(key, {})
            if len(earlier_places) > _MAX_TEXTS_OF_KEY:  # too many to keep, such as ids that never come again
                self._unusable_keys.add(key)
                continue
            for text, place in places.items():
                earlier_place = earlier_places.setdefault(text, place)  # adds a text that was not seen before
                if earlier_place != place and not self._moved_choice:
                    self._moved_choice = spell_path([Choice(key, text)])


def _split_at_element(path: Sequence[Step], depth: int) -> tuple[str, str]:
    """Return the text of a path in two parts: of the first `depth` steps, and of the steps behind these."""
    before = spell_path(path[:depth])
    element = "element"  # any name, so that a dot separates it from the name of the next step
    return before, spell_path([element, *path[depth:]]).removeprefix(element)
