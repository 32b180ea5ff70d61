"""Finds the numbers at the paths of `field` in the values of records.

A part of a path passes through arrays. All numbers along the paths, in their order, are one vector if they are d;
otherwise each innermost array is one. Paths that share an array are read element by element, and each element counts as
an innermost array.
"""

import base64
import struct
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import islice
from operator import getitem
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import orjson

from streampca.formats.packing import (
    NO_VALUE,
    NumberPacker,
    VectorBytes,
    VectorError,
    float64_of,
    is_number_word,
    listed,
    missing_field,
    note_untyped,
    type_name,
)
from streampca.settings.field_paths import Path, can_be_spelled, names_in, names_of, spelled

_MAX_DEPTH, _MAX_NAMES = 4, 64  # of objects that are searched for a better `field`

_Names: TypeAlias = tuple[str, ...]


class NumberFields:
    """Finds the numbers at paths in Python values: objects, arrays, and what may be a number (`NumberPacker`)."""

    def __init__(self, paths: Sequence[Path], dimensions: int, *, impute: bool, kind: str) -> None:
        """`kind` is what messages call a value. Names in paths are no patterns here. `dimensions` 0: to be found."""
        self._paths = [names_in(path) for path in paths] or [()]
        self._dimensions, self._kind = dimensions, kind
        self._is_named = len(paths) == dimensions
        self._packer, self._pack = NumberPacker(dimensions, impute=impute), struct.Struct(f"{dimensions}d").pack
        self._labels = [f"{name!r}" for name in names_of(paths)] if self._is_named and len(paths) > 1 else None

    def pack(self, value: Any, *, booleans: bool) -> VectorBytes:
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

    def _several(self, value: Any, booleans: bool) -> bytes:
        nulls = list[bool]()
        items = self._items(self._stops(value, self._paths), self._is_named, nulls)
        if not items and nulls:
            raise VectorError(NO_VALUE, f"{self._place} is null")
        labels = self._labels if len(items) == self._dimensions else None
        return b"".join(self._packer.pack(row, booleans=booleans, labels=labels) for row in self._rows(items))

    def dimensions_in(self, value: Any) -> int:
        """How many numbers a vector has, judging by this value: those of an innermost array, or of all paths.

        0: it holds none.
        """
        items = self._items(self._stops(value, self._paths), True, [])
        arrays = [item for item in items if isinstance(item, list)]
        return len(arrays[0]) if arrays else len(items) * any(item is not None for item in items)

    @property
    def _place(self) -> str:
        field = ",".join(map(spelled, self._paths))
        return f"the field {field!r}" if field else "the value"

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
                return self._pack(*row)
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
            raise VectorError("wrong_length", f"{len(flat)} numbers, not {d}")
        lengths = sorted({len(array) for array in arrays})
        beside = " and others beside them" if len(arrays) < len(items) else ""
        sizes = str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        raise VectorError("wrong_length", f"{len(arrays)} arrays of {sizes} numbers{beside}, not of {d}")

    def _items(self, stops: Sequence["_Stop"], is_named: bool, nulls: list[bool]) -> list[Any]:
        """What is at the stops: entries outside of arrays, and the innermost arrays, as lists.

        Nothing for null on all paths, nor, unless each path `is_named` as one number, for null on any; `nulls` then
        grows.
        """
        of_null = [stop for stop in stops if stop.value is None]
        if of_null and (not is_named or (len(of_null) == len(stops) and all(stop.rests for stop in of_null))):
            nulls.append(True)
            return []
        items = list[Any]()
        for value, rests in stops:
            if rests and value is not None:
                items += self._of_elements(value, rests, nulls)
            elif isinstance(leaf := self._leaf(value, single=len(stops) == 1), list):
                items += _innermost(leaf, nulls)
            else:
                items.append(leaf)
        return items

    def _of_elements(self, array: list[Any], rests: Sequence[_Names], nulls: list[bool]) -> list[Any]:
        """What is at the rests of paths in the elements of an array."""
        found = list[Any]()
        for element in array:
            stops = self._stops(element, rests)
            items = self._items(stops, True, nulls)
            found += [_flattened(items)] if items and len(stops) > 1 else items
        entries = [item for item in found if not isinstance(item, list)]
        if all(entry is None for entry in entries):  # they may as well be vectors
            nulls += [True for _ in entries[:1]]
            return [item for item in found if item is not None]
        return [entries] if len(entries) == len(found) else found

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
        try:
            if isinstance(leaf, str) and leaf.lstrip().startswith("["):
                return orjson.loads(leaf)
            data = leaf if isinstance(leaf, bytes) else base64.b64decode(leaf, validate=True)
        except ValueError:
            text = "expected an array of numbers, not a string, unless it is base64 of them or a JSON array"
            raise VectorError("undecodable", text) from None
        if not self._dimensions and data and len(data) % 8 == 0:
            sizes = f"{len(data) // 4} numbers of 4 or {len(data) // 8} of 8"
            raise VectorError("wrong_length", f"{len(data)} bytes may be {sizes}: say --dimensions")
        d = self._dimensions or max(len(data) // 4, 1)
        numbers = np.frombuffer(float64_of(data, d)).tolist()
        note_untyped(data, f"<f{len(data) // d}")
        return numbers


class _Stop(NamedTuple):
    value: Any
    rests: list[_Names]  # of the paths that go on: in the elements of an array, or behind null; none where a path ends


def suggested_field(value: Any, dimensions: int) -> str | None:
    """The `field` that reads a vector of d numbers from an object: one array, or d numbers; None if there is none."""
    for path, inner in islice(_objects(value, ()), _MAX_NAMES):
        numbers = [name for name, entry in inner.items() if type(entry) in (int, float)]
        if len(numbers) == dimensions and all(map(can_be_spelled, numbers)):
            return ",".join(spelled((*path, name)) for name in numbers)
        for name, entry in inner.items():
            if (
                can_be_spelled(name)
                and isinstance(entry, list)
                and len(entry) == dimensions
                and all(type(e) in (int, float) for e in entry)
            ):
                return spelled((*path, name))
    return None


def _objects(value: Any, path: _Names) -> Iterator[tuple[_Names, dict[str, Any]]]:
    """The objects in a value, with their paths; those outside first."""
    if isinstance(value, dict) and len(value) <= _MAX_NAMES and len(path) < _MAX_DEPTH:
        yield path, value
        for name, inner in value.items():
            if can_be_spelled(name):
                yield from _objects(inner, (*path, name))


def _flattened(items: list[Any]) -> list[Any]:
    return [entry for item in items for entry in (item if isinstance(item, list) else [item])]


def _innermost(array: list[Any], nulls: list[bool]) -> list[list[Any]]:
    """The innermost arrays of an array; a null among arrays is a vector that is not there."""
    if not any(isinstance(element, list) for element in array) or not all(
        isinstance(element, list | None) for element in array
    ):
        return [array]
    nulls += [True for element in array if element is None]
    return [inner for element in array if element is not None for inner in _innermost(element, nulls)]
