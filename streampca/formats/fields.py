"""Makes vectors of the numbers that the paths of `field` lead to in a value.

Where a path leads to each of the d numbers, the numbers at all paths are one vector. If each path ends at an array of n
numbers, the arrays are columns of n vectors. Paths that share an array are read in each of its elements by itself.

Otherwise, with one path or another number of paths, d numbers along all paths are one vector, in this order. If there
are more, each innermost array is a vector. The numbers at several paths in an element count as an innermost array.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from streampca.formats.element_places import ElementPlaces
from streampca.formats.errors import (
    NO_VALUE,
    NULL_HINT,
    UNMET,
    VectorError,
    check_size,
    missing_field_error,
    type_name,
    unmet_error,
    wrong_length_error,
)
from streampca.formats.field_search import suggest_field
from streampca.formats.numbers import (
    GuessedNumbers,
    NumberPacker,
    VectorBytes,
    common_dtype,
)
from streampca.formats.path_ends import NumbersOfBytes, flatten, innermost_arrays, read_path_end
from streampca.formats.tensors import TensorRow, tensor_field_names
from streampca.formats.text import may_be_debezium_placeholder
from streampca.formats.walk import Absent, Elements, Item, ItemsOrReason, SkipReason, Walk
from streampca.settings.field_paths import Condition, Path, Step, collect_names, get_steps, name_paths, spell_path

_MAX_BYTES = 64 * 2**20  # of the vectors in a value: with gaps, a short value may claim to hold many

_EntriesOrReason: TypeAlias = list[Any] | SkipReason
"""The entries of a vector, with None for gaps; or why there is no vector: null in its place, or an unmet condition."""


class NumberFields:
    """Finds the numbers at paths in Python values: objects, arrays, and what may be a number (`NumberPacker`)."""

    def __init__(
        self,
        paths: Sequence[Path],
        dimensions: int,
        *,
        impute: bool,
        value_name: str,
        where: Sequence[Condition] = (),
    ) -> None:
        """Without paths, the numbers are the value itself.

        If `dimensions` is 0, `pack` must not be called.
        """
        self.paths = paths
        self.dimensions = dimensions
        self.impute = impute
        self.where = where
        self.places = ElementPlaces()
        """Where the elements of arrays were, if they are entries of a vector."""
        self._steps_of_paths = [get_steps(path) for path in paths] or [()]  # the path () leads to the value itself
        self.tensor_field_names = tensor_field_names({steps[-1] for steps in self._steps_of_paths if steps})
        """With a field of one of these names beside it, the array at a path is a sparse vector or a tensor."""
        self._number_walk = Walk.along(self._steps_of_paths, where)
        self._value_name = value_name
        self._packer = NumberPacker(dimensions, null_as_nan=impute)
        self._pack_numbers = self._packer.pack_numbers
        self._has_path_for_each_entry = dimensions > 1 and len(paths) == dimensions
        self._entry_names: list[str] | None = None  # None: messages name an entry by its index
        if self._has_path_for_each_entry:
            self._entry_names = list(map(repr, name_paths(paths)))
        self._prepare_fast_way()

    def _prepare_fast_way(self) -> None:
        """Decide whether `pack` can take the d numbers straight from a container: one object or array."""
        if self._has_path_for_each_entry:
            self._steps_to_container: Sequence[Step] = self._steps_of_paths[0][:-1]
            last_steps = [steps[-1] for steps in self._steps_of_paths]
            self._get_entries: Callable[[Any], Sequence[Any]] | None = itemgetter(*last_steps)
            are_in_one_container = all(steps[:-1] == self._steps_to_container for steps in self._steps_of_paths)
        else:
            self._steps_to_container = self._steps_of_paths[0]
            self._get_entries = None
            are_in_one_container = len(self._steps_of_paths) == 1  # the array of d numbers
        may_be_placeholder = may_be_debezium_placeholder(self.dimensions)
        self._has_fast_way = are_in_one_container and not self.where and not may_be_placeholder

    @property
    def names(self) -> set[str]:
        """The names of all entries that are looked at, to find the numbers and to test the conditions."""
        steps_of_conditions = [condition.steps for condition in self.where]
        return self.tensor_field_names | collect_names([*self._steps_of_paths, *steps_of_conditions])

    def pack(self, value: Any) -> VectorBytes | GuessedNumbers:
        """Return the numbers of a value's vectors as float64. Raises `VectorError`.

        The reason is `NO_VALUE` for a null, and `UNMET` if a condition is not met.
        """
        if self._has_fast_way:  # inline, since a call for each value would cost a tenth of its time
            try:
                parent: Any = None
                container = value
                for step in self._steps_to_container:
                    parent = container
                    container = container[step]
                if self._get_entries is not None:
                    return self._pack_numbers(*self._get_entries(container))
                may_be_sparse_or_tensor = self.tensor_field_names and any(name in parent for name in self.tensor_field_names)
                if type(container) is list and not may_be_sparse_or_tensor:
                    return self._pack_numbers(*container)
            except (LookupError, TypeError, ValueError, struct.error, OverflowError):  # not the usual form
                pass
        return self._pack_or_suggest_field(value)

    def _pack_or_suggest_field(self, value: Any) -> VectorBytes | GuessedNumbers:
        """Do what `pack` does, for any value. If the value is not a vector, the error names a better `field`."""
        try:
            return self._pack_any(value)
        except VectorError as error:
            if error.reason in (NO_VALUE, UNMET):  # `field` may be right: the record is skipped
                raise
            better_field = suggest_field(value, self.dimensions, partial(self._pack_at_other_paths, value))
            if better_field is None:
                raise
            text = f"{error}; field={better_field} reads {self.dimensions} numbers"
            raise VectorError(error.reason, text) from None

    def _pack_at_other_paths(self, value: Any, paths: Sequence[Path]) -> bytes | GuessedNumbers:
        """Return the numbers at these paths in a value. Raises `VectorError`."""
        fields = NumberFields(paths, self.dimensions, impute=False, value_name=self._value_name)
        return fields._pack_any(value)

    def count_dimensions(self, value: Any) -> int:
        """Return how many numbers a vector of this value has; 0 if it holds no vector.

        If several paths lead to arrays, raises `VectorError`: each may be a column or a vector.
        """
        return self._count_found_dimensions(self._number_walk.find(value))

    def _count_found_dimensions(self, found: ItemsOrReason) -> int:
        """Do what `count_dimensions` does, for what the paths lead to in a value or an element."""
        if isinstance(found, SkipReason):
            return 0
        has_several_paths = len(self._steps_of_paths) > 1
        all_share_an_array = has_several_paths and len(found) == 1
        if all_share_an_array:
            elements = found[0].value
            # An element without a vector has 0.
            return max(map(self._count_found_dimensions, elements.find_in_each()), default=0)
        items = self._collect(found).items
        arrays = [item for item in items if isinstance(item, list)]
        if has_several_paths and arrays:
            text = "several paths lead to arrays: say by --dimensions whether these are columns or vectors"
            raise VectorError("wrong_length", text)
        if arrays:
            return len(arrays[0])
        # Missing entries count, too.
        has_number = any(not isinstance(item, SkipReason | Absent | None) for item in items)
        return len(items) if has_number else 0

    def _pack_any(self, value: Any) -> bytes | GuessedNumbers:
        """Do what `pack` does, for any value, but more slowly."""
        found = self._number_walk.find(value)
        if self._has_path_for_each_entry:
            vectors: Iterable[_EntriesOrReason] = self._vectors_of_entry_paths(found)
        else:
            vectors = self._vectors_of_arrays(found)
        packed_vectors = list[bytes]()
        guessed_dtypes = set[str | None]()
        reasons = set[SkipReason]()
        for entries in vectors:
            check_size(8 * self.dimensions * len(packed_vectors), _MAX_BYTES)
            if isinstance(entries, SkipReason):
                reasons.add(entries)
                continue
            packed_vectors.append(self._packer.pack(entries, labels=self._entry_names))
            # Only the type of bytes is guessed.
            guessed_dtypes.add(entries.dtype if isinstance(entries, NumbersOfBytes) else None)
        if reasons and not packed_vectors:
            raise self._no_vectors_error(reasons)
        numbers = b"".join(packed_vectors)
        guessed_dtype = common_dtype(guessed_dtypes)
        return GuessedNumbers(numbers, guessed_dtype) if guessed_dtype else numbers

    def _no_vectors_error(self, reasons: Collection[SkipReason]) -> VectorError:
        """Return the error of a value that holds no vectors, for these reasons."""
        if SkipReason.UNMET in reasons:
            return unmet_error()
        field = ",".join(map(spell_path, self._steps_of_paths))
        return VectorError(NO_VALUE, f"the field {field!r} is null" if field else "the value is null")

    # These methods are for d paths, which lead to one of the d numbers each, or to a column of them each.

    def _vectors_of_entry_paths(self, found: ItemsOrReason) -> Iterator[_EntriesOrReason]:
        """Yield one vector if each of d paths leads to a number, or n vectors if each leads to n numbers."""
        if isinstance(found, SkipReason):
            yield found
            return
        all_share_an_array = len(found) == 1 and isinstance(found[0].value, Elements)
        if all_share_an_array:
            for found_in_element in found[0].value.find_in_each():
                yield from self._vectors_of_entry_paths(found_in_element)
        else:
            value_by_path = self._value_by_path(found)
            yield from self._vectors_of_columns([value_by_path[path_index] for path_index in range(self.dimensions)])

    def _value_by_path(self, found: ItemsOrReason) -> dict[int, Any]:
        """Return what each path leads to, by the index of the path: a number, or a list with a number of each element.

        If the conditions of `where` are not met, returns no values.
        """
        if isinstance(found, SkipReason):
            return {}
        value_by_path: dict[int, Any] = {}
        for item in found:
            if isinstance(item.value, Elements):
                value_by_path |= self._values_in_elements(item.value, item.path_indices)
            else:
                [path_index] = item.path_indices
                value_by_path[path_index] = read_path_end(item.value, self.dimensions, may_be_encoded=False)
        return value_by_path

    def _values_in_elements(self, elements: Elements, path_indices: Sequence[int]) -> dict[int, list[Any]]:
        """Return, for each of the paths through an array, the list of what it leads to in the elements."""
        check_size(8 * len(path_indices) * len(elements.array), _MAX_BYTES)
        value_by_path_of_elements = [self._value_by_path(found) for found in elements.find_in_each()]
        return {
            index: [value_by_path.get(index, SkipReason.UNMET) for value_by_path in value_by_path_of_elements]
            for index in path_indices
        }

    def _vectors_of_columns(self, values: Sequence[Any]) -> Iterator[_EntriesOrReason]:
        """If d values are numbers, yield them as one vector. If they are arrays, yield a vector for each index."""
        arrays = [value for value in values if isinstance(value, list)]
        if not arrays:
            yield self._entries_or_reason(values)
            return
        if not all(isinstance(value, list | SkipReason | Absent | None) for value in values):
            raise VectorError("wrong_length", "some paths lead to arrays and some to numbers")
        lengths = sorted({len(array) for array in arrays})
        if len(lengths) > 1:
            raise VectorError("wrong_length", f"the paths lead to arrays of {lengths[0]} to {lengths[-1]} numbers")
        for index in range(lengths[0]):
            # Any other value is missing in each of the vectors.
            values_at_index = [value[index] if isinstance(value, list) else value for value in values]
            yield from self._vectors_of_columns(values_at_index)

    def _entries_or_reason(self, values: Sequence[Any]) -> _EntriesOrReason:
        """Return the entries of a vector, with None for missing ones; or the reason why there is no vector.

        If an entry must not be missing, raises `VectorError`; whether it may be null is left to the `NumberPacker`.
        """
        skip_reasons = [value for value in values if isinstance(value, SkipReason)]
        absent = [value for value in values if isinstance(value, Absent)]
        exists_any = len(skip_reasons) + len(absent) < len(values)
        if not exists_any and SkipReason.UNMET in skip_reasons:
            return SkipReason.UNMET
        if not exists_any and not absent:
            return SkipReason.NULL
        are_paths_wrong = len(absent) == len(values)
        for entry in absent:
            is_gap = self.impute and entry.may_be_missing and not are_paths_wrong
            if not is_gap:
                hint = NULL_HINT if entry.may_be_missing and exists_any else ""
                raise self._missing_error(entry, hint)
        if SkipReason.UNMET in skip_reasons and not self.impute:
            raise VectorError("undecodable", f"an entry does not meet the conditions of where{NULL_HINT}")
        return [None if isinstance(value, SkipReason | Absent) else value for value in values]

    def _missing_error(self, absent: Absent, hint: str = "") -> VectorError:
        """Return the error for a path that leads to nothing."""
        path = spell_path(self._steps_of_paths[absent.path_index])
        error = missing_field_error(path, spell_path([absent.step]), absent.parent, self._value_name)
        return VectorError(error.reason, f"{error}{hint}")

    # These methods are for one path, or for several that lead to parts of a vector or to several vectors.

    def _vectors_of_arrays(self, found: ItemsOrReason) -> Sequence[_EntriesOrReason]:
        """Return the vectors of a value, or the reasons why there are none.

        Also compares the places of elements with their places in earlier values.
        """
        if isinstance(found, SkipReason):
            return [found]
        values = [item.value for item in found]
        is_single_number = self.dimensions == 1 and len(values) == 1
        # In place of a single number, None is only a missing entry.
        is_null_vector = None in values and not is_single_number
        if SkipReason.NULL in values or is_null_vector:
            return [SkipReason.NULL]
        collected = self._collect(found)
        for array in collected.positional_arrays:
            self._compare_places(array)
        items = [item for item in collected.items if not isinstance(item, SkipReason)]
        has_only_reasons = len(collected.items) > 0 and not items
        if has_only_reasons:
            return collected.items
        for item in items:
            if isinstance(item, Absent):
                raise self._missing_error(item)
        return self._split_into_vectors(items)

    def _split_into_vectors(self, items: list[Any]) -> list[list[Any]]:
        """Return the vectors: arrays of d numbers each, or d numbers in all."""
        d = self.dimensions
        arrays = [item for item in items if isinstance(item, list)]
        are_all_arrays = len(arrays) == len(items)
        if are_all_arrays and all(len(array) == d for array in arrays):
            return arrays
        entries = flatten(items)
        # The rows of a tensor are never joined.
        has_tensor_rows = any(isinstance(array, TensorRow) for array in arrays)
        if len(entries) == d and not has_tensor_rows:
            return [entries]
        raise self._no_vector_error(items)

    def _no_vector_error(self, items: list[Any]) -> VectorError:
        """Return the error for the numbers and arrays of a value that are not vectors."""
        arrays = [item for item in items if isinstance(item, list)]
        if not arrays and len(self._steps_of_paths) == 1:
            return VectorError("undecodable", f"expected an array of numbers, not {type_name(items[0])}")
        if len(arrays) < 2:
            return wrong_length_error(len(flatten(items)), self.dimensions)
        lengths = sorted({len(array) for array in arrays})
        sizes = str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        numbers_beside = " and others beside them" if len(arrays) < len(items) else ""
        text = f"{len(arrays)} arrays of {sizes} numbers{numbers_beside}, not of {self.dimensions}"
        return VectorError("wrong_length", text)

    def _collect(self, found: Sequence[Item]) -> "_Collected":
        """Return all numbers and innermost arrays that the paths lead to."""
        items = list[Any]()
        positional_arrays = list[_PositionalArray]()
        for item in found:
            if isinstance(item.value, Elements):
                in_elements = self._collect_in_elements(item.value)
                items += in_elements.items
                positional_arrays += in_elements.positional_arrays
                continue
            # With one path, bytes hold all numbers of a vector.
            value = read_path_end(item.value, self.dimensions, may_be_encoded=len(found) == 1)
            items += innermost_arrays(value) if isinstance(value, list) else [value]
        return _Collected(items, positional_arrays)

    def _collect_in_elements(self, elements: Elements) -> "_Collected":
        """Return all numbers and innermost arrays that the paths lead to in the elements of an array.

        The array is positional if its elements are parts of one vector, as the numbers x in [{"x": 1}, {"x": 2}].
        """
        collected_in_elements = [self._collect_in_element(found) for found in elements.find_in_each()]
        items = [item for in_element in collected_in_elements for item in in_element.items]
        arrays = [item for item in items if isinstance(item, list)]
        are_parts_of_vector = len(arrays) > 1 and len(flatten(arrays)) == self.dimensions
        are_one_vector = not arrays or are_parts_of_vector
        positional_arrays = [_PositionalArray(elements)] if are_one_vector else []
        for place, in_element in enumerate(collected_in_elements):
            inner_arrays = in_element.positional_arrays
            if are_one_vector:
                # Arrays in different elements hold different entries: they must not be compared.
                inner_arrays = [array.inside(place) for array in inner_arrays]
            positional_arrays += inner_arrays
        return _Collected(self._join_single_entries(items), positional_arrays)

    def _collect_in_element(self, found: ItemsOrReason) -> "_Collected":
        """Return what the paths lead to in an element of an array.

        The numbers at several paths are joined to one array: x and y in {"x": 1, "y": 2} become [1, 2].
        """
        if isinstance(found, SkipReason):
            return _Collected(items=[found], positional_arrays=[])
        collected = self._collect(found)
        entries = flatten(collected.items)
        has_several_paths = len(found) > 1  # one item was found for each path
        if has_several_paths and entries:
            return collected._replace(items=[self._entries_or_reason(entries)])
        return collected

    def _join_single_entries(self, items: list[Any]) -> list[Any]:
        """Join the single numbers of an array's elements to one array, unless there are also arrays.

        [1, None, 3] becomes [[1, None, 3]]. [[1, 2], None] becomes [[1, 2], NULL].
        """
        single_items = [item for item in items if not isinstance(item, list)]
        has_arrays = len(single_items) < len(items)
        has_no_numbers = all(isinstance(item, SkipReason | None) for item in single_items)
        if has_no_numbers:  # each null is in place of a vector
            return [SkipReason.NULL if item is None else item for item in items]
        if has_arrays:
            return items
        values = [item for item in single_items if item is not SkipReason.NULL]
        return [self._entries_or_reason(values)]

    def _compare_places(self, array: "_PositionalArray") -> None:
        """If an element of an array has moved since an earlier value, set the warning of `places`."""
        shared_paths = array.elements.walk.paths
        steps_of_paths = [self._steps_of_paths[index] for index in shared_paths.indices]
        self.places.look_at(array.elements.array, steps_of_paths, shared_paths.depth, array.outer_places)


class _Collected(NamedTuple):
    """The numbers and innermost arrays that paths lead to, and the arrays that are read by position on the way."""

    items: list[Any]
    positional_arrays: list["_PositionalArray"]


class _PositionalArray(NamedTuple):
    """An array whose elements are read by position: their places say which entries of a vector they hold."""

    elements: Elements
    outer_places: tuple[int, ...] = ()
    """If the array is inside of elements that are read by position as well: their places, from the outermost."""

    def inside(self, place: int) -> "_PositionalArray":
        """Return the array as one that is inside of the element at this place of another array."""
        return self._replace(outer_places=(place, *self.outer_places))
