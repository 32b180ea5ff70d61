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


def tensor_field_names(array_names: Collection[object]) -> set[str]:
    """Return the names of fields that may stand beside these arrays and mark them as sparse vectors or tensors.

    For example, `indices` beside the array `values` marks a sparse vector, and `shape` beside the array `data` marks a
    tensor. Only arrays named `values` or `data` can be marked. For other names, the set is empty.
    """
    return _TENSOR_FIELD_NAMES if _ARRAY_NAMES & set(array_names) else set()


def read_array(parent: Mapping[Any, Any], name: Any) -> Any:
    """Return the field `name` of an object. If the field is the array of a tensor, return the rows of the tensor.

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
    """Return whether an object has `indices` for the numbers of an array, as a sparse vector has."""
    indices = parent.get("indices")
    if indices == []:
        # Beside an empty array, this is a sparse vector of zeros. Beside numbers, the vector is not sparse: `indices`
        # was not set in a Protobuf message, and is read as [].
        is_array_empty = not array
        return is_array_empty
    return indices is not None


def _rows_of_tensor(array: list[Any], shape: list[int], name: Any) -> list[Any]:
    """Return the rows of a tensor. A row has the numbers of all axes but the first: shape [2, 3, 4] gives 2 rows of 12.

    If the tensor has one axis, or no numbers, returns its numbers.
    """
    numbers = array
    while any(isinstance(entry, list) for entry in numbers):
        numbers = flatten(numbers)
    if math.prod(shape) != len(numbers):
        raise VectorError("wrong_length", f"{len(numbers)} numbers in {name!r}, not as many as its shape says")
    if len(shape) == 1 or not numbers:
        return numbers
    row_length = len(numbers) // shape[0]  # no length in `shape` is 0, because their product is len(numbers) > 0
    return [TensorRow(numbers[start : start + row_length]) for start in range(0, len(numbers), row_length)]


def flatten(array: list[Any]) -> list[Any]:
    """Flatten an array by one level: [1, [2, [3]]] becomes [1, 2, [3]]."""
    entries = list[Any]()
    for entry in array:
        entries += entry if isinstance(entry, list) else [entry]
    return entries


def _are_lengths(shape: list[Any]) -> bool:
    """Return whether a list is the shape of a tensor; any other list is another field of this name."""
    return 0 < len(shape) <= _MAX_AXES and all(type(length) is int and length >= 0 for length in shape)
