"""Finds the label of a record: a text in it, at the path of the setting `label`, that says whose record it is."""

import json
from typing import Any

from streampca.formats.errors import VectorError
from streampca.formats.walk import Walk, single_values
from streampca.settings.field_paths import get_steps, parse_paths

MAX_CHARACTERS = 64  # of a label; a longer one is cut
NO_LABEL = ""


class LabelFinder:
    """Finds labels in records that are trees of objects and arrays."""

    def __init__(self, label: str) -> None:
        """`label` is the setting, a path."""
        [path] = parse_paths(label)
        self._walk = Walk.along([get_steps(path)])

    def find(self, record: Any) -> str:
        """Return the label of a record; `NO_LABEL` if the path does not lead to a single text or number."""
        try:
            labels = self.find_all(record)
        except VectorError:  # the path chooses several elements of an array
            return NO_LABEL
        return labels[0] if len(labels) == 1 else NO_LABEL

    def find_all(self, record: Any) -> list[str]:
        """Return the labels in a record: several if the path leads through an array. Raises `VectorError`."""
        return [_to_text(value)[:MAX_CHARACTERS] for value in single_values(self._walk.find(record))]


def _to_text(value: Any) -> str:
    """Return a text as it is, and a number as text; `NO_LABEL` for any other value."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        # Lone surrogates, which JSON allows, cannot be written again.
        return value.encode(errors="replace").decode()
    return json.dumps(value) if isinstance(value, int | float) else NO_LABEL
