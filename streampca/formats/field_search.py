"""Searches a value for a `field` that would read a vector, for messages about a value that `field` cannot read."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeAlias

from streampca.formats.errors import VectorError
from streampca.settings.field_paths import Path, parse_paths, spell_path

# Limits of the search.
_MAX_DEPTH = 4
_MAX_NAMES = 64
_MAX_CANDIDATES = 64

_Names: TypeAlias = tuple[str, ...]  # in a path


def suggest_field(value: Any, dimensions: int, pack_numbers_at: Callable[[Sequence[Path]], object]) -> str | None:
    """Return a text for the setting `field` that reads one vector of d numbers from an object; None if none was found.

    `pack_numbers_at` tries paths: it returns the numbers at the paths in the object, as the bytes of float64. If it
    fails, or returns anything but the bytes of one vector, the next paths are tried.
    """
    vector_size = 8 * dimensions
    for paths in islice(_find_candidates(value, (), dimensions), _MAX_CANDIDATES):
        field = ",".join(map(spell_path, paths))
        with suppress(ValueError, VectorError):  # some names cannot be written in a path
            packed = pack_numbers_at(parse_paths(field))
            is_one_vector = isinstance(packed, bytes) and len(packed) == vector_size
            if is_one_vector:
                return field
    return None


def _find_candidates(value: Any, path: _Names, dimensions: int) -> Iterator[list[_Names]]:
    """Yield what may be a vector in the object at `path`: the paths of its numbers, or the one path of an array."""
    if not isinstance(value, dict) or len(value) > _MAX_NAMES or len(path) >= _MAX_DEPTH:
        return
    yield [(*path, name) for name, entry in value.items() if type(entry) in (int, float)]  # not bool, which is an int
    for name, entry in value.items():
        if isinstance(entry, list) and len(entry) == dimensions:
            yield [(*path, name)]
    for name, inner in value.items():
        yield from _find_candidates(inner, (*path, name), dimensions)
