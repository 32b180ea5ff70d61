"""Searches a value for a `field` that would read a vector, for messages about a value that `field` cannot read."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeAlias

from streampca.formats.errors import VectorError
from streampca.formats.numbers import guessed_dtype_of
from streampca.settings.field_paths import Path, parse_paths, spell_path

# Limits of the search.
_MAX_DEPTH = 4
_MAX_NAMES = 64
_MAX_CANDIDATES = 64

_Names: TypeAlias = tuple[str, ...]  # in a path


def suggest_field(value: Any, dimensions: int, pack_numbers_at: Callable[[Sequence[Path]], object]) -> str | None:
    """Return a value of the setting `field` with which one vector of d numbers is read from an object.

    `pack_numbers_at` returns the numbers at some paths in the object, as the bytes of float64. If it fails, or returns
    anything but the bytes of one vector, the next paths are tried. If no paths lead to one vector, returns None.
    """
    vector_size = 8 * dimensions
    for paths in islice(_find_candidate_paths(value, (), dimensions), _MAX_CANDIDATES):
        field = ",".join(map(spell_path, paths))
        with suppress(ValueError, VectorError):  # some names cannot be written in a path
            packed = pack_numbers_at(parse_paths(field))
            is_one_vector = guessed_dtype_of(packed) is None and len(packed) == vector_size
            if is_one_vector:
                return field
    return None


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
