"""Notices that the elements of an array change their places: then numbers that are read by position are mixed up."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from streampca.settings.field_paths import Choice, Step, spell_path

# Limits of what is kept. A key with more or longer texts does not name the elements.
_MAX_KEYS = 64
_MAX_TEXTS = 1000  # of a key
_MAX_TEXT_LENGTH = 256


class ElementPlaces:
    """The places at which the elements of arrays were seen.

    An element is recognised by one of its texts, such as the id of a sensor, if this text differs in all elements.
    """

    def __init__(self) -> None:
        self._places_by_key: dict[str, dict[str, int]] = {}  # key → its texts → places where these were seen
        self._other_keys = set[str]()  # keys whose texts do not differ in all elements
        self._paths: list[tuple[str, str]] = []  # through the array: what is before its elements, and what is behind
        self._moved = ""  # the choice of the first element that was seen at two places, such as [id=temp]

    @property
    def warning(self) -> str:
        """For the user, if an element was seen at two places; else empty."""
        if not self._moved:
            return ""
        path = ",".join((before + behind).removeprefix(".") for before, behind in self._paths)
        better_path = ",".join(before + self._moved + behind for before, behind in self._paths)
        return (
            f"the elements at {path} change their places, but are read by position: name each of them, "
            f"such as by field={better_path}"
        )

    def look_at(self, array: Sequence[Any], paths: Sequence[Sequence[Step]], depth: int) -> None:
        """Compare the places of an array's elements with earlier arrays.

        Elements are recognised by the keys whose texts differ in all elements of an array, such as `id`. The `paths`
        lead through the array; their first `depth` steps lead to it.
        """
        if self._moved:
            return
        places_by_key: dict[str, dict[str, int]] = {}  # key → its texts → places of the elements with these texts
        for place, element in enumerate(array):
            for key, value in element.items() if isinstance(element, dict) else ():  # only objects have keys
                text = value.decode(errors="replace") if isinstance(value, bytes) else value
                if not isinstance(text, str) or not self._may_name(key):
                    continue
                places = places_by_key.setdefault(key, {})
                is_shared = text in places  # by two elements
                if is_shared or len(places) >= _MAX_TEXTS or len(text) > _MAX_TEXT_LENGTH:
                    self._other_keys.add(key)  # its texts do not tell the elements apart, or are too many to keep
                places[text] = place
        self._compare(places_by_key)
        # For the warning: the paths through the first array or, once an element has moved, through its array.
        if self._moved or not self._paths:
            self._paths = [_split(path, depth) for path in paths]

    def add(self, later: Self) -> None:
        """Compare the places with those in further arrays, which `later` has looked at."""
        self._other_keys |= later._other_keys
        self._paths = self._paths or later._paths
        self._moved = self._moved or later._moved
        self._compare(later._places_by_key)

    def encode(self) -> str:
        """Return all that was seen as JSON."""
        return json.dumps([self._places_by_key, sorted(self._other_keys), self._paths, self._moved])

    @classmethod
    def decode(cls, text: str) -> Self:
        """Return what `encode` has written."""
        places = cls()
        places_by_key, other_keys, paths, moved = json.loads(text)
        places._places_by_key = places_by_key
        places._other_keys = set(other_keys)
        places._paths = paths
        places._moved = moved
        return places

    def _may_name(self, key: str) -> bool:
        """Return whether the texts of a key may name the elements."""
        is_known = key in self._places_by_key
        return key not in self._other_keys and (is_known or len(self._places_by_key) < _MAX_KEYS)

    def _compare(self, places_by_key: Mapping[str, Mapping[str, int]]) -> None:
        """Compare the places of elements with their places in earlier arrays, until an element has moved."""
        for key, places in places_by_key.items():
            if not self._may_name(key):
                continue
            earlier_places = self._places_by_key.setdefault(key, {})
            if len(earlier_places) > _MAX_TEXTS:
                self._other_keys.add(key)
                continue
            for text, place in places.items():
                earlier_place = earlier_places.setdefault(text, place)  # adds a text that is new
                if earlier_place != place and not self._moved:
                    self._moved = spell_path([Choice(key, text)])


def _split(path: Sequence[Step], depth: int) -> tuple[str, str]:
    """Return the text of a path in two parts: the first `depth` steps, and the steps behind them."""
    before = spell_path(path[:depth])
    element = "element"  # any name, so that a dot separates it from the name of the next step
    return before, spell_path([element, *path[depth:]]).removeprefix(element)
