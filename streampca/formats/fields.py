"""Finds the numbers at the paths of `field` in the values of records.

A path is the names that lead to an entry of an object inside of other objects. If there is an array on the way, the
path goes on in each of its elements. If there are d numbers along all paths, they are one vector, in this order;
otherwise each innermost array is a vector. Paths that lead through the same array are read element by element, and the
numbers of each element count as an innermost array.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import reduce
from itertools import islice
from operator import getitem
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from streampca.formats.errors import (
    NO_VALUE,
    VectorError,
    missing_field_error,
    quote_names,
    type_name,
    wrong_length_error,
)
from streampca.formats.numbers import (
    GuessedNumbers,
    NumberPacker,
    VectorBytes,
    common_dtype,
    decode_text,
    is_number_word,
    widen_floats,
)
from streampca.settings.field_paths import Path, names_in, names_of, paths_of, spelled

_ABSENT = ()  # stands for null in place of a vector; a tuple, so that it flattens to no entries

# Limits of the search for a better `field`.
_MAX_DEPTH = 4
_MAX_NAMES = 64
_MAX_CANDIDATES = 64

_Names: TypeAlias = tuple[str, ...]  # in a path, or in the rest of one


class NumberFields:
    """Finds the numbers at paths in Python values: objects, arrays, and what may be a number (`NumberPacker`)."""

    def __init__(self, paths: Sequence[Path], dimensions: int, *, impute: bool, value_name: str) -> None:
        """Without paths, the numbers are the value itself. Messages call a value `value_name`.

        A name in a path is never a pattern here. If `dimensions` is 0, only `dimensions_in` may be called.
        """
        self._paths = [names_in(path) for path in paths] or [()]
        self._only_path = self._paths[0] if len(self._paths) == 1 else None
        self._dimensions = dimensions
        self._value_name = value_name
        self._packer = NumberPacker(dimensions, impute=impute)
        self._paths_are_entries = len(paths) == dimensions  # each path leads to one of the d numbers
        self._labels: list[str] | None = None  # of the entries, in messages
        if self._paths_are_entries and len(paths) > 1:
            self._labels = [f"{name!r}" for name in names_of(paths)]

    def pack(self, value: Any, *, refuse_booleans: bool) -> VectorBytes | GuessedNumbers:
        """Return the numbers of a value's vectors as float64: d, or n·d. An empty array on the way holds no vector.

        Raises `VectorError`; for null instead of a vector its reason is no_value. `refuse_booleans` is that of
        `NumberPacker.pack`.
        """
        packed = self._pack_simple(value, refuse_booleans)
        if packed is not None:
            return packed
        try:
            return self._pack_any(value, refuse_booleans)
        except VectorError as error:
            if error.reason == NO_VALUE:
                raise
            better_field = suggest_field(value, self._dimensions)
            if better_field is None:
                raise
            text = f"{error}; field={better_field} reads {self._dimensions} numbers"
            raise VectorError(error.reason, text) from None

    def dimensions_in(self, value: Any) -> int:
        """Return how many numbers a vector of this value has: those of an innermost array, or of all paths.

        If the value holds no vector, returns 0.
        """
        stops = self._follow(value, self._paths)
        items = [item for item in self._collect(stops) if item != _ABSENT]
        for item in items:
            if isinstance(item, list):
                return len(item)
        if all(item is None for item in items):
            return 0
        return len(items)

    def _pack_simple(self, value: Any, refuse_booleans: bool) -> bytes | None:
        """Return the d numbers of a value that is as simple as most are; None if it has to be read by `_pack_any`.

        This is an optimisation. A simple value has an array of d numbers at the only path, or a number at each path.
        """
        try:
            if self._labels:
                row = [reduce(getitem, path, value) for path in self._paths]
            elif self._only_path is not None:
                row = value
                for name in self._only_path:  # faster than `reduce`
                    row = row[name]
            else:
                return None
            if type(row) is list and not (refuse_booleans and bool in map(type, row)):
                return self._packer.pack_numbers(*row)
        except (LookupError, TypeError, ValueError, struct.error, OverflowError):  # text, null, arrays of arrays …
            pass
        return None

    def _pack_any(self, value: Any, refuse_booleans: bool) -> bytes | GuessedNumbers:
        """Return the numbers of a value's vectors, as `pack` does, however the value is built."""
        items = self._items(value)
        labels = self._labels if len(items) == self._dimensions else None
        rows = self._rows(items)
        numbers = b"".join(self._packer.pack(row, refuse_booleans=refuse_booleans, labels=labels) for row in rows)
        dtype = common_dtype({item.dtype if isinstance(item, _NumbersOfBytes) else None for item in items})
        return GuessedNumbers(numbers, dtype) if dtype else numbers

    def _items(self, value: Any) -> list[Any]:
        """Return what is at the paths: entries outside of arrays, and the innermost arrays.

        If there is null in place of all vectors, raises `VectorError` with the reason no_value.
        """
        stops = self._follow(value, self._paths)
        if not self._are_null(stops):
            found = self._collect(stops)
            items = [item for item in found if item != _ABSENT]
            if items or not found:
                return items
        field = ",".join(map(spelled, self._paths))
        raise VectorError(NO_VALUE, f"the field {field!r} is null" if field else "the value is null")

    def _are_null(self, stops: Sequence["_Stop"]) -> bool:
        """Return whether there is null in place of all numbers of a value."""
        if self._paths_are_entries:  # null at the end of a path is one missing entry
            return all(map(_is_cut, stops))
        return any(stop.value is None for stop in stops)

    def _rows(self, items: list[Any]) -> list[list[Any]]:
        """Return the entries of each vector in what `_items` has found. Raises `VectorError`."""
        d = self._dimensions
        arrays = [item for item in items if isinstance(item, list)]
        entries = _flatten(items)
        if len(entries) == d:
            return [entries]
        if len(arrays) == len(items) and all(len(array) == d for array in arrays):
            return arrays
        if not arrays and len(self._paths) == 1:
            raise VectorError("undecodable", f"expected an array of numbers, not {type_name(items[0])}")
        if len(arrays) < 2:
            raise wrong_length_error(len(entries), d)
        lengths = sorted({len(array) for array in arrays})
        sizes = str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        beside = " and others beside them" if len(arrays) < len(items) else ""
        raise VectorError("wrong_length", f"{len(arrays)} arrays of {sizes} numbers{beside}, not of {d}")

    def _follow(self, value: Any, paths: Sequence[_Names]) -> list["_Stop"]:
        """Follow paths through objects, and return where they stop: at their end, at null, or at an array.

        If several paths stop at the same array, it is returned once, in the place of the first of these paths. If a
        name is missing, raises `VectorError`.
        """
        stops = list[_Stop]()
        stop_at_array = dict[int, _Stop]()  # by the identity of the array
        for path in paths:
            inner = value
            rest = path
            while rest and isinstance(inner, dict) and rest[0] in inner:
                inner = inner[rest[0]]
                rest = rest[1:]
            is_at_array = bool(rest) and isinstance(inner, list)
            if is_at_array and id(inner) in stop_at_array:
                stop_at_array[id(inner)].rests.append(rest)
                continue
            if rest and inner is not None and not is_at_array:
                raise missing_field_error(self._spell_whole(path), rest[0], inner, self._value_name)
            stop = _Stop(inner, [rest] if rest else [])
            stops.append(stop)
            stop_at_array[id(inner)] = stop
        return stops

    def _spell_whole(self, rest: _Names) -> str:
        """Return the first path that ends with these names, as `field` spells it."""
        return spelled(next(path for path in self._paths if path[len(path) - len(rest) :] == rest))

    def _collect(self, stops: Sequence["_Stop"]) -> list[Any]:
        """Return the entries and the innermost arrays (lists) that paths lead to from where they stop.

        A null that stands for a vector becomes `_ABSENT`.
        """
        items = list[Any]()
        for stop in stops:
            is_at_array = stop.rests and stop.value is not None
            if is_at_array:
                items += self._collect_in_elements(stop.value, stop.rests)
                continue
            leaf = self._leaf(stop.value, is_only=len(stops) == 1)
            if isinstance(leaf, list):
                items += _innermost_arrays(leaf)
            else:
                items.append(leaf)
        return items

    def _collect_in_elements(self, array: list[Any], rests: Sequence[_Names]) -> list[Any]:
        """Follow the rests of paths in each element of an array, and return what is there, as `_collect` does.

        For example, in [{"x": 1, "y": 2}, {"x": 3, "y": 4}] the path x leads to one array of numbers, [1, 3]. The paths
        x and y lead to two arrays, [1, 2] and [3, 4].
        """
        found = list[Any]()
        for element in array:
            stops = self._follow(element, rests)
            if all(map(_is_cut, stops)):
                found.append(_ABSENT)
                continue
            items = self._collect(stops)
            # The numbers at several paths in an element count as one array.
            together = _flatten(items) if len(stops) > 1 else []
            found += [together] if together else items
        entries = [item for item in found if not isinstance(item, list | tuple)]
        if all(entry is None for entry in entries):
            # There are only arrays and nulls: the nulls stand for vectors.
            return [_ABSENT if item is None else item for item in found]
        has_array = any(isinstance(item, list) for item in found)
        return found if has_array else [entries]  # without arrays, the entries of all elements are one array

    def _leaf(self, leaf: Any, *, is_only: bool) -> Any:
        """Return the array, the number or the null at the end of a path. Raises `VectorError`.

        Bytes, or a text, may hold all numbers of a vector, but only at the only path.
        """
        if isinstance(leaf, dict):
            raise VectorError("undecodable", f"expected an array of numbers, not an object with {quote_names(leaf)}")
        if not is_only or not isinstance(leaf, str | bytes) or is_number_word(leaf):
            return leaf
        data = leaf if isinstance(leaf, bytes) else decode_text(leaf)
        if not isinstance(data, bytes):
            return data
        size = len(data)
        if not self._dimensions and data and size % 8 == 0:  # the dimensions are to be found, and this leaves two
            sizes = f"{size // 4} numbers of 4 or {size // 8} of 8"
            raise VectorError("wrong_length", f"{size} bytes may be {sizes}: say --dimensions")
        return _NumbersOfBytes(data, self._dimensions or max(size // 4, 1))


class _NumbersOfBytes(list[float]):
    """The innermost array that bytes stand for: d little-endian floats, of 4 or 8 bytes by their length."""

    def __init__(self, data: bytes, dimensions: int) -> None:
        super().__init__(np.frombuffer(widen_floats(data, dimensions)).tolist())
        self.dtype = f"<f{len(data) // dimensions}"


class _Stop(NamedTuple):
    """Where one or more paths stop in an object: at their end, at null, or at an array."""

    value: Any  # what is there
    rests: list[_Names]  # what is left of each path that stops here; empty at the end of a path


def _is_cut(stop: _Stop) -> bool:
    """Return whether the value is null before the end of a path."""
    return stop.value is None and bool(stop.rests)


def suggest_field(value: Any, dimensions: int) -> str | None:
    """Return a `field` that reads d numbers from an object: an array, or d numbers. None if none was found."""
    for paths in islice(_candidates(value, (), dimensions), _MAX_CANDIDATES):
        field = ",".join(map(spelled, paths))
        with suppress(ValueError, VectorError):  # such as names that cannot be spelled
            fields = NumberFields(paths_of(field), dimensions, impute=False, value_name="")
            found = fields._pack_any(value, refuse_booleans=True)
            if isinstance(found, bytes) and len(found) == 8 * dimensions:  # candidates end at arrays and numbers
                return field
    return None


def _candidates(value: Any, path: _Names, dimensions: int) -> Iterator[list[_Names]]:
    """Yield paths that may hold a vector: to all numbers of an object, to each array of d, then inside other objects.

    `path` leads to the value.
    """
    if not isinstance(value, dict) or len(value) > _MAX_NAMES or len(path) >= _MAX_DEPTH:
        return
    yield [(*path, name) for name, entry in value.items() if type(entry) in (int, float)]
    for name, entry in value.items():
        if isinstance(entry, list) and len(entry) == dimensions:
            yield [(*path, name)]
    for name, inner in value.items():
        yield from _candidates(inner, (*path, name), dimensions)


def _flatten(items: list[Any]) -> list[Any]:
    """Return the entries of all items, of which some are arrays."""
    entries = list[Any]()
    for item in items:
        entries += item if isinstance(item, list | tuple) else [item]
    return entries


def _innermost_arrays(array: list[Any]) -> list[Any]:
    """Return the innermost arrays of an array of arrays, with `_ABSENT` for null among them.

    If the array holds anything but arrays and null, it is an innermost array.
    """
    if not any(isinstance(element, list) for element in array):
        return [array]
    if not all(isinstance(element, list | None) for element in array):
        return [array]
    arrays = list[Any]()
    for element in array:
        arrays += [_ABSENT] if element is None else _innermost_arrays(element)
    return arrays
