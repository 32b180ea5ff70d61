"""Finds the numbers at the paths of `field` in the values of records.

A part of a path passes through arrays. All numbers along the paths, in their order, are one vector if they are d;
otherwise each innermost array is one. Paths that share an array are read element by element, and each element counts as
an innermost array.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import reduce
from itertools import islice
from operator import getitem
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from streampca.formats.errors import NO_VALUE, VectorError, listed, missing_field, type_name, wrong_length
from streampca.formats.numbers import (
    Guessed,
    NumberPacker,
    VectorBytes,
    float64_of,
    is_number_word,
    only_kind,
    unpacked,
)
from streampca.settings.field_paths import Path, names_in, names_of, paths_of, spelled

_ABSENT = ()  # in place of a vector: null
_MAX_DEPTH, _MAX_NAMES, _MAX_CANDIDATES = 4, 64, 64  # in the search for a better `field`

_Names: TypeAlias = tuple[str, ...]


class NumberFields:
    """Finds the numbers at paths in Python values: objects, arrays, and what may be a number (`NumberPacker`)."""

    def __init__(self, paths: Sequence[Path], dimensions: int, *, impute: bool, kind: str) -> None:
        """`kind` is what messages call a value. Names in paths are no patterns here. `dimensions` 0: to be found."""
        self._paths = [names_in(path) for path in paths] or [()]
        self._dimensions, self._kind = dimensions, kind
        self._is_named = len(paths) == dimensions
        self._packer = NumberPacker(dimensions, impute=impute)
        self._labels = [f"{name!r}" for name in names_of(paths)] if self._is_named and len(paths) > 1 else None

    def pack(self, value: Any, *, booleans: bool) -> VectorBytes | Guessed:
        """The numbers of a value's vectors, in float64: d, or n·d; none for an array without elements on the way.

        Raises `VectorError`, with the reason no_value for null instead of a vector. `booleans`: as in `NumberPacker`.
        """
        if (packed := self._plain(value, booleans)) is not None:
            return packed
        try:
            return self._several(value, booleans)
        except VectorError as error:
            if error.reason == NO_VALUE or (better := suggested_field(value, self._dimensions)) is None:
                raise
            raise VectorError(error.reason, f"{error}; field={better} reads {self._dimensions} numbers") from None

    def _several(self, value: Any, booleans: bool) -> bytes | Guessed:
        items = self._items(value)
        labels = self._labels if len(items) == self._dimensions else None
        numbers = b"".join(self._packer.pack(row, booleans=booleans, labels=labels) for row in self._rows(items))
        kind = only_kind({item.kind if isinstance(item, _NumbersOfBytes) else None for item in items})
        return Guessed(numbers, kind) if kind else numbers

    def _items(self, value: Any) -> list[Any]:
        """What is at the paths: entries outside of arrays, and the innermost arrays; no_value for null in their place.

        Null is an entry only at the end of a path that names one of d numbers, or before it if others are there.
        """
        stops = self._stops(value, self._paths)
        is_null = all(map(_is_cut, stops)) if self._is_named else any(stop.value is None for stop in stops)
        found = [] if is_null else self._at(stops)
        items = [item for item in found if item != _ABSENT]
        if is_null or (found and not items):
            field = ",".join(map(spelled, self._paths))
            raise VectorError(NO_VALUE, f"the field {field!r} is null" if field else "the value is null")
        return items

    def dimensions_in(self, value: Any) -> int:
        """How many numbers a vector has, judging by this value: those of an innermost array, or of all paths.

        0: it holds none.
        """
        items = [item for item in self._at(self._stops(value, self._paths)) if item != _ABSENT]
        count = len(items) * any(item is not None for item in items)
        return next((len(item) for item in items if isinstance(item, list)), count)

    def _plain(self, value: Any, booleans: bool) -> bytes | None:
        """The d numbers of a value that is as simple as most are; None for any other."""
        try:
            if self._labels:
                row = [reduce(getitem, path, value) for path in self._paths]
            else:
                [path], row = self._paths, value
                for name in path:  # faster than `reduce`
                    row = row[name]
            if type(row) is list and not (booleans and bool in map(type, row)):
                return self._packer.pack_numbers(*row)
        except (LookupError, TypeError, ValueError, struct.error, OverflowError):  # text, null, arrays of arrays …
            pass
        return None

    def _rows(self, items: list[Any]) -> list[list[Any]]:
        """The entries of each vector in what `_items` has found."""
        d, arrays = self._dimensions, [item for item in items if isinstance(item, list)]
        flat = _flattened(items)
        if len(flat) == d:
            return [flat]
        if len(arrays) == len(items) and all(len(array) == d for array in arrays):
            return arrays
        if not arrays and len(self._paths) == 1:
            raise VectorError("undecodable", f"expected an array of numbers, not {type_name(items[0])}")
        if len(arrays) < 2:
            raise wrong_length(len(flat), d)
        lengths = sorted({len(array) for array in arrays})
        beside = " and others beside them" if len(arrays) < len(items) else ""
        sizes = str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        raise VectorError("wrong_length", f"{len(arrays)} arrays of {sizes} numbers{beside}, not of {d}")

    def _at(self, stops: Sequence["_Stop"]) -> list[Any]:
        """What is at the stops: entries outside of arrays; lists, the innermost arrays; `_ABSENT`."""
        items = list[Any]()
        for value, rests in stops:
            if rests and value is not None:
                items += self._in_elements(value, rests)
            elif isinstance(leaf := self._leaf(value, single=len(stops) == 1), list):
                items += _innermost(leaf)
            else:
                items.append(leaf)
        return items

    def _in_elements(self, array: list[Any], rests: Sequence[_Names]) -> list[Any]:
        """What is at the rests of paths in the elements of an array; nulls may as well be vectors."""
        found = list[Any]()
        for element in array:
            stops = self._stops(element, rests)
            items = [_ABSENT] if all(map(_is_cut, stops)) else self._at(stops)
            together = _flattened(items) if len(stops) > 1 else []
            found += [together] if together else items
        entries = [item for item in found if not isinstance(item, list | tuple)]
        if all(entry is None for entry in entries):
            return [_ABSENT if item is None else item for item in found]
        return found if any(isinstance(item, list) for item in found) else [entries]

    def _stops(self, value: Any, paths: Sequence[_Names]) -> list["_Stop"]:
        """Where paths end, meet null, or meet an array: there once, in the place of the first path that meets it."""
        stops, arrays = list[_Stop](), dict[int, list[_Names]]()
        for path in paths:
            inner, rest = value, path
            while rest and isinstance(inner, dict) and rest[0] in inner:
                inner, rest = inner[rest[0]], rest[1:]
            if rest and isinstance(inner, list) and id(inner) in arrays:
                arrays[id(inner)].append(rest)
                continue
            if rest and inner is not None and not isinstance(inner, list):
                whole = next(whole for whole in self._paths if whole[len(whole) - len(path) :] == path)
                raise missing_field(spelled(whole), rest[0], inner, self._kind)
            stops.append(_Stop(inner, [rest] if rest else []))
            arrays[id(inner)] = stops[-1].rests
        return stops

    def _leaf(self, leaf: Any, *, single: bool) -> Any:
        """The array or the number at the end of a path. One path (`single`) may name bytes or a text with numbers."""
        if isinstance(leaf, dict):
            raise VectorError("undecodable", f"expected an array of numbers, not an object with {listed(leaf)}")
        if not single or not isinstance(leaf, str | bytes) or is_number_word(leaf):
            return leaf
        data = leaf if isinstance(leaf, bytes) else unpacked(leaf)
        if not isinstance(data, bytes):
            return data
        if not self._dimensions and data and len(data) % 8 == 0:
            sizes = f"{len(data) // 4} numbers of 4 or {len(data) // 8} of 8"
            raise VectorError("wrong_length", f"{len(data)} bytes may be {sizes}: say --dimensions")
        d = self._dimensions or max(len(data) // 4, 1)
        return _NumbersOfBytes(data, d)


class _NumbersOfBytes(list[float]):
    """The innermost array that a leaf of bytes stands for: d little-endian floats, of 4 or 8 bytes by their length."""

    def __init__(self, data: bytes, dimensions: int) -> None:
        super().__init__(np.frombuffer(float64_of(data, dimensions)).tolist())
        self.kind = f"<f{len(data) // dimensions}"


class _Stop(NamedTuple):
    value: Any
    rests: list[_Names]  # of the paths that go on: in the elements of an array, or behind null; none where a path ends


def _is_cut(stop: _Stop) -> bool:
    """Return whether a path meets null before its end."""
    return stop.value is None and bool(stop.rests)


def suggested_field(value: Any, dimensions: int) -> str | None:
    """The `field` that reads a vector of d numbers from an object: one array, or d numbers; None if there is none."""
    for paths in islice(_candidates(value, (), dimensions), _MAX_CANDIDATES):
        field = ",".join(map(spelled, paths))
        with suppress(ValueError, VectorError):  # such as names that cannot be spelled
            fields = NumberFields(paths_of(field), dimensions, impute=False, kind="")
            found = fields._several(value, booleans=True)
            if isinstance(found, bytes) and len(found) == 8 * dimensions:  # candidates end at arrays and numbers
                return field
    return None


def _candidates(value: Any, path: _Names, dimensions: int) -> Iterator[list[_Names]]:
    """Paths to the numbers of an object, to each array, and to what is inside of other objects."""
    if isinstance(value, dict) and len(value) <= _MAX_NAMES and len(path) < _MAX_DEPTH:
        yield [(*path, name) for name, entry in value.items() if type(entry) in (int, float)]
        yield from (
            [(*path, name)] for name, entry in value.items() if isinstance(entry, list) and len(entry) == dimensions
        )
        for name, inner in value.items():
            yield from _candidates(inner, (*path, name), dimensions)


def _flattened(items: list[Any]) -> list[Any]:
    return [entry for item in items for entry in (item if isinstance(item, list | tuple) else [item])]


def _innermost(array: list[Any]) -> list[Any]:
    """The innermost arrays of an array; `_ABSENT` for null among them."""
    if not any(isinstance(element, list) for element in array) or not all(
        isinstance(element, list | None) for element in array
    ):
        return [array]
    return [inner for element in array for inner in ([_ABSENT] if element is None else _innermost(element))]
