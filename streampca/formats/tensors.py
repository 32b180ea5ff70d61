"""Arrays of which a field beside them says how they are read: sparse vectors, and tensors with a shape."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from streampca.formats.errors import VectorError, sparse_error

_ARRAY_NAMES = {"values", "data"}  # of arrays that may be the numbers of a sparse vector or of a tensor
_TENSOR_FIELD_NAMES = {"indices", "shape"}  # of the fields beside such an array that say how it is read
_MAX_AXES = 32


class TensorRow(list[Any]):
    """A vector of a tensor. It is never a part of a longer vector."""


def tensor_field_names(names: Collection[object]) -> set[str]:
    """Return the names of fields that may mark an array with one of these `names` as a sparse vector or a tensor.

    For example, `indices` beside `values` marks a sparse vector, and `shape` beside `data` marks a tensor. If arrays
    with these `names` are never sparse vectors or tensors, the set is empty.
    """
    return _TENSOR_FIELD_NAMES if _ARRAY_NAMES & set(names) else set()


def read_array(parent: Mapping[Any, Any], name: Any) -> Any:
    """Return the entry `name` of an object. If the entry is the array of a tensor, return the rows of the tensor.

    A tensor has an array `values` or `data`, and beside it a `shape`. An array `values` beside `indices` is a sparse
    vector, for which `VectorError` is raised.
    """
    array = parent[name]
    if name not in _ARRAY_NAMES:
        return array
    if name == "values" and _has_indices(parent, array):
        raise sparse_error()
    shape = parent.get("shape")
    if isinstance(array, list) and isinstance(shape, list) and _are_lengths(shape):
        return _rows_of_tensor(array, shape, name)
    return array


def _has_indices(parent: Mapping[Any, Any], array: Any) -> bool:
    """Return whether an object has indices for the entries of an array, as a sparse vector has."""
    indices = parent.get("indices")
    # Protobuf reads an unset field as []. So [] beside an array with entries means that there are no indices. A sparse
    # vector of zeros has [] for both of its arrays.
    is_unset_in_protobuf = indices == [] and bool(array)
    return indices is not None and not is_unset_in_protobuf


def _rows_of_tensor(array: list[Any], shape: list[int], name: Any) -> list[Any]:
    """Return the rows of a tensor; if it has one axis, return its numbers."""
    numbers = array
    while any(isinstance(entry, list) for entry in numbers):
        numbers = _flatten_once(numbers)
    if math.prod(shape) != len(numbers):
        raise VectorError("wrong_length", f"{len(numbers)} numbers in {name!r}, not as many as its shape says")
    if len(shape) == 1 or not numbers:
        return numbers
    row_length = len(numbers) // shape[0]  # not 0, since there are numbers
    return [TensorRow(numbers[start : start + row_length]) for start in range(0, len(numbers), row_length)]


def _flatten_once(array: list[Any]) -> list[Any]:
    """Flatten an array by one level: [1, [2, [3]]] becomes [1, 2, [3]]."""
    entries = list[Any]()
    for entry in array:
        entries += entry if isinstance(entry, list) else [entry]
    return entries


def _are_lengths(shape: list[Any]) -> bool:
    """Return whether a list is the shape of a tensor; any other list is another field of this name."""
    return 0 < len(shape) <= _MAX_AXES and all(type(length) is int and length >= 0 for length in shape)
