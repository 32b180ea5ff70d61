"""Searches a value for a `field` that may read a vector, for messages about a value that `field` cannot read."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, TypeAlias

from streampca.settings.field_paths import spell_path

# Limits of the search.
_MAX_DEPTH = 4
_MAX_NAMES = 64
_MAX_CANDIDATES = 64

_Names: TypeAlias = tuple[str, ...]  # in a path


def find_candidate_fields(value: Any, dimensions: int) -> Iterator[str]:
    """Yield values of the setting `field` with which a vector of d numbers may be read from an object.

    Some of them are not valid, because some names cannot be written in a path.
    """
    for paths in islice(_find_candidate_paths(value, (), dimensions), _MAX_CANDIDATES):
        yield ",".join(map(spell_path, paths))


def _find_candidate_paths(value: Any, path: _Names, dimensions: int) -> Iterator[list[_Names]]:
    """Yield lists of paths that may lead to a vector, in the object at `path` and in the objects inside of it.

    All numbers of an object may be a vector: the list has the path to each number. An array of d items may be a vector,
    too: the list has only the path to the array.
    """
    if not isinstance(value, dict) or len(value) > _MAX_NAMES or len(path) >= _MAX_DEPTH:
        return
    # Not bool, which is an int. If the object has no numbers, the list is empty, and leads to no vector.
    yield [(*path, name) for name, entry in value.items() if type(entry) in (int, float)]
    for name, entry in value.items():
        if isinstance(entry, list) and len(entry) == dimensions:
            yield [(*path, name)]
    for name, inner in value.items():
        yield from _find_candidate_paths(inner, (*path, name), dimensions)
