"""Makes vectors of the numbers that the paths of `field` lead to in a value.

If there is a path for each of the d numbers, the numbers at all paths are one vector. If each path ends at an array of
n numbers, the arrays are columns of n vectors. If all paths go through the same array, each of its elements is read by
itself: with the paths `x` and `y`, [{"x": 1, "y": 2}, {"x": 3, "y": 4}] holds the vectors [1, 2] and [3, 4].

Otherwise, with one path or another number of paths, d numbers along all paths are one vector, in this order. If there
are more, each innermost array is a vector. The numbers at several paths in an element count as an innermost array.

Most values are read in a direct way, which takes d plain numbers out of one object or array. Everything else is read by
walking along the paths (`Walk`). The walk returns an `Item` for the end of each path.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from streampca.formats.element_indices import ElementIndices
from streampca.formats.errors import (
    CONDITION_UNMET,
    NO_VALUE,
    NULL_HINT,
    VectorError,
    check_size,
    condition_unmet_error,
    missing_field_error,
    type_name,
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

_MAX_BYTES = 64 * 2**20  # of the vectors in a value: with missing entries, a short value may claim to hold many

_EntriesOrReason: TypeAlias = list[Any] | SkipReason
"""The entries of a vector, with None for missing ones; or why there is no vector: a null, or an unmet condition."""


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
        """`paths` lead to the numbers in a value. Without paths, the value itself is the array of numbers.

        `dimensions` may be 0 if it is not known yet. Then only `count_dimensions` may be called.
        """
        self.paths = paths
        self.dimensions = dimensions
        self.impute = impute
        self.where = where
        self.element_indices = ElementIndices()
        """The indices of array elements that hold entries of a vector. It warns if elements change their order."""
        self._steps_of_paths = [get_steps(path) for path in paths] or [()]  # the path () leads to the value itself
        self.tensor_field_names = tensor_field_names({steps[-1] for steps in self._steps_of_paths if steps})
        """A field with one of these names, such as `shape`, may say that an array beside it is not a plain vector."""
        self._walk = Walk.along(self._steps_of_paths, where)
        self._value_name = value_name
        self._packer = NumberPacker(dimensions, null_as_nan=impute)
        self._pack_numbers = self._packer.pack_numbers
        self._has_path_for_each_entry = dimensions > 1 and len(paths) == dimensions
        self._entry_names: list[str] | None = None  # None: messages name an entry by its index
        if self._has_path_for_each_entry:
            self._entry_names = list(map(repr, name_paths(paths)))
        self._prepare_direct_way()

    def _prepare_direct_way(self) -> None:
        """Decide whether `pack` can take the d numbers straight out of one object or array, the container.

        The container is the object with a number at the last step of each path, or the array at the only path.
        """
        if self._has_path_for_each_entry:
            self._steps_to_container: Sequence[Step] = self._steps_of_paths[0][:-1]
            last_steps = [steps[-1] for steps in self._steps_of_paths]
            self._get_entries: Callable[[Any], Sequence[Any]] | None = itemgetter(*last_steps)
            are_in_one_container = all(steps[:-1] == self._steps_to_container for steps in self._steps_of_paths)
        else:
            self._steps_to_container = self._steps_of_paths[0]
            self._get_entries = None  # the container is the array of numbers
            are_in_one_container = len(self._steps_of_paths) == 1
        # With this d, an array may be Debezium's placeholder, which the direct way would read as numbers.
        may_be_placeholder = may_be_debezium_placeholder(self.dimensions)
        self._has_direct_way = are_in_one_container and not self.where and not may_be_placeholder

    @property
    def names(self) -> set[str]:
        """The names of all entries that are looked at, to find the numbers and to test the conditions."""
        steps_of_conditions = [condition.steps for condition in self.where]
        return self.tensor_field_names | collect_names([*self._steps_of_paths, *steps_of_conditions])

    def pack(self, value: Any) -> VectorBytes | GuessedNumbers:
        """Return the numbers of a value's vectors as float64. Raises `VectorError`.

        Plain numbers in one object or array are taken out directly. Any other value is read by a walk along the paths,
        which is slower, and which finds out what is wrong with the value.

        The reason of the error is `NO_VALUE` for a null, and `CONDITION_UNMET` if a condition is not met. If vectors
        are given as bytes, which do not say the type of their numbers, returns `GuessedNumbers`.
        """
        if self._has_direct_way:  # inline, since a call for each value would cost a tenth of its time
            try:
                parent: Any = None
                container = value
                for step in self._steps_to_container:
                    parent = container
                    container = container[step]
                if self._get_entries is not None:  # the container is an object with d numbers
                    return self._pack_numbers(*self._get_entries(container))
                may_be_sparse_or_tensor = self.tensor_field_names and any(
                    name in parent for name in self.tensor_field_names
                )
                if type(container) is list and not may_be_sparse_or_tensor:
                    return self._pack_numbers(*container)
            except (LookupError, TypeError, ValueError, struct.error, OverflowError):
                pass  # the walk reads the value, or finds the error
        return self._pack_or_suggest_field(value)

    def _pack_or_suggest_field(self, value: Any) -> VectorBytes | GuessedNumbers:
        """Return the numbers of any value, as `pack` does. If they cannot be read, the error names a better `field`."""
        try:
            return self._pack_by_walk(value)
        except VectorError as error:
            is_skipped = error.reason in (NO_VALUE, CONDITION_UNMET)
            if is_skipped:  # `field` may be right
                raise
            better_field = suggest_field(value, self.dimensions, partial(self._pack_at_other_paths, value))
            if better_field is None:
                raise
            text = f"{error}; field={better_field} reads {self.dimensions} numbers"
            raise VectorError(error.reason, text) from None

    def _pack_at_other_paths(self, value: Any, paths: Sequence[Path]) -> bytes | GuessedNumbers:
        """Return the numbers at these paths in a value. Raises `VectorError`."""
        fields = NumberFields(paths, self.dimensions, impute=False, value_name=self._value_name)
        return fields._pack_by_walk(value)

    def count_dimensions(self, value: Any) -> int:
        """Return how many numbers a vector of this value has; 0 if it holds no vector.

        If several paths lead to arrays, raises `VectorError`: such an array may be a vector, or a column with an entry
        of each of many vectors.
        """
        return self._count_dimensions_at(self._walk.find(value))

    def _count_dimensions_at(self, items: ItemsOrReason) -> int:
        """Return how many numbers a vector has, from the `items` at the ends of the paths; 0 if there is no vector."""
        if isinstance(items, SkipReason):  # a condition of `where` is not met
            return 0
        has_several_paths = len(self._steps_of_paths) > 1
        only_end = items[0].value if len(items) == 1 else None
        if has_several_paths and isinstance(only_end, Elements):
            # All paths go through the same array, so that each of its elements may hold a vector.
            return max(map(self._count_dimensions_at, only_end.find_in_each()), default=0)
        ends = self._collect(items).ends
        arrays = [end for end in ends if isinstance(end, list)]
        if has_several_paths and arrays:
            text = "several paths lead to arrays: say by --dimensions whether these are columns or vectors"
            raise VectorError("wrong_length", text)
        if arrays:
            return len(arrays[0])
        # Missing entries count, too.
        has_number = any(not isinstance(end, SkipReason | Absent | None) for end in ends)
        return len(ends) if has_number else 0

    def _pack_by_walk(self, value: Any) -> bytes | GuessedNumbers:
        """Return the vectors of any value as float64 numbers, one after the other. Raises `VectorError`.

        If all vectors were given as bytes, returns `GuessedNumbers` with the type that follows from their length.
        """
        items = self._walk.find(value)
        if self._has_path_for_each_entry:
            vectors: Iterable[_EntriesOrReason] = self._vectors_of_entry_paths(items)
        else:
            vectors = self._vectors_along_paths(items)
        packed_vectors = list[bytes]()
        guessed_dtypes = set[str | None]()  # None stands for a vector whose numbers have a type
        skip_reasons = set[SkipReason]()
        for entries in vectors:
            check_size(8 * self.dimensions * len(packed_vectors), _MAX_BYTES)
            if isinstance(entries, SkipReason):
                skip_reasons.add(entries)
                continue
            packed_vectors.append(self._packer.pack(entries, labels=self._entry_names))
            guessed_dtypes.add(entries.dtype if isinstance(entries, NumbersOfBytes) else None)
        if skip_reasons and not packed_vectors:
            raise self._all_skipped_error(skip_reasons)
        numbers = b"".join(packed_vectors)
        guessed_dtype = common_dtype(guessed_dtypes)
        return GuessedNumbers(numbers, guessed_dtype) if guessed_dtype else numbers

    def _all_skipped_error(self, skip_reasons: Collection[SkipReason]) -> VectorError:
        """Return the error of a value that holds no vectors, because all were skipped for these reasons."""
        if SkipReason.CONDITION_UNMET in skip_reasons:
            return condition_unmet_error()
        field = ",".join(map(spell_path, self._steps_of_paths))
        return VectorError(NO_VALUE, f"the field {field!r} is null" if field else "the value is null")

    # These methods are for d paths: each leads to one entry of a vector, or to a column with an entry of each vector.

    def _vectors_of_entry_paths(self, items: ItemsOrReason) -> Iterator[_EntriesOrReason]:
        """Yield the vectors of a value, from the `items` at the ends of d paths.

        With the paths `x` and `y`, {"x": 1, "y": 2} holds one vector. {"x": [1, 3], "y": [2, 4]} and
        [{"x": 1, "y": 2}, {"x": 3, "y": 4}] hold two.
        """
        if isinstance(items, SkipReason):  # a condition of `where` is not met
            yield items
            return
        only_end = items[0].value if len(items) == 1 else None
        if isinstance(only_end, Elements):
            # All paths go through the same array, so that each of its elements may hold a vector.
            for items_in_element in only_end.find_in_each():
                yield from self._vectors_of_entry_paths(items_in_element)
        else:
            end_by_path = self._end_by_path(items)
            yield from self._vectors_of_columns([end_by_path[path_index] for path_index in range(self.dimensions)])

    def _end_by_path(self, items: ItemsOrReason) -> dict[int, Any]:
        """Return the number, null or array at the end of each path, by the index of the path.

        If a path goes through an array, this is the list of what is at its end in each element. If the conditions of
        `where` are not met, the dict is empty.
        """
        if isinstance(items, SkipReason):
            return {}
        end_by_path: dict[int, Any] = {}
        for item in items:
            if isinstance(item.value, Elements):
                end_by_path |= self._ends_in_elements(item.value, item.path_indices)
            else:
                [path_index] = item.path_indices  # several paths share an item only if it is `Elements`
                end_by_path[path_index] = read_path_end(item.value, self.dimensions, may_be_encoded=False)
        return end_by_path

    def _ends_in_elements(self, elements: Elements, path_indices: Sequence[int]) -> dict[int, list[Any]]:
        """For each of the paths through an array, return the list of what is at its end in each element.

        For the paths 0 and 1 to `x` and `y`, [{"x": 1, "y": 2}, {"x": 3, "y": 4}] gives {0: [1, 3], 1: [2, 4]}.
        """
        check_size(8 * len(path_indices) * len(elements.array), _MAX_BYTES)
        end_by_path_of_elements = [self._end_by_path(items) for items in elements.find_in_each()]
        # If an element does not meet the conditions of `where`, it has nothing for any path.
        return {
            index: [end_by_path.get(index, SkipReason.CONDITION_UNMET) for end_by_path in end_by_path_of_elements]
            for index in path_indices
        }

    def _vectors_of_columns(self, ends: Sequence[Any]) -> Iterator[_EntriesOrReason]:
        """If there are numbers at the ends of d paths, yield one vector. If there are arrays, yield a vector per index.

        The ends [1, 2] give this vector. The ends [[1, 3], [2, 4]] give the vectors [1, 2] and [3, 4].
        """
        arrays = [end for end in ends if isinstance(end, list)]
        if not arrays:
            yield self._entries_or_reason(ends)
            return
        if not all(isinstance(end, list | SkipReason | Absent | None) for end in ends):
            raise VectorError("wrong_length", "some paths lead to arrays and some to numbers")
        lengths = sorted({len(array) for array in arrays})
        if len(lengths) > 1:
            raise VectorError("wrong_length", f"the paths lead to arrays of {lengths[0]} to {lengths[-1]} numbers")
        for index in range(lengths[0]):
            # At a path without an array, such as null, the entry is missing in each of the vectors.
            ends_at_index = [end[index] if isinstance(end, list) else end for end in ends]
            # The ends may be arrays again.
            yield from self._vectors_of_columns(ends_at_index)

    def _entries_or_reason(self, ends: Sequence[Any]) -> _EntriesOrReason:
        """Return the entries of a vector, with None for missing ones; or the reason why there is no vector.

        `ends` has, for each entry, a number, null, a `SkipReason`, or `Absent` if the path leads to nothing. If an
        entry must not be missing, raises `VectorError`. Whether it may be null is left to the `NumberPacker`.
        """
        skip_reasons = [end for end in ends if isinstance(end, SkipReason)]
        absent_ends = [end for end in ends if isinstance(end, Absent)]
        has_entries = len(skip_reasons) + len(absent_ends) < len(ends)  # numbers or nulls
        if not has_entries:  # there may be no vector at all, not a vector whose entries are missing
            if SkipReason.CONDITION_UNMET in skip_reasons:
                return SkipReason.CONDITION_UNMET
            if not absent_ends:
                return SkipReason.NULL
        # If only some paths lead to nothing, the entries there may be missing.
        are_paths_wrong = len(absent_ends) == len(ends)
        for absent in absent_ends:
            is_missing_entry = self.impute and absent.may_be_missing and not are_paths_wrong
            if not is_missing_entry:
                hint = NULL_HINT if absent.may_be_missing and has_entries else ""
                raise self._missing_error(absent, hint)
        if SkipReason.CONDITION_UNMET in skip_reasons and not self.impute:
            raise VectorError("undecodable", f"an entry does not meet the conditions of where{NULL_HINT}")
        return [None if isinstance(end, SkipReason | Absent) else end for end in ends]

    def _missing_error(self, absent: Absent, hint: str = "") -> VectorError:
        """Return the error for a path that leads to nothing."""
        path = spell_path(self._steps_of_paths[absent.path_index])
        error = missing_field_error(path, spell_path([absent.step]), absent.parent, self._value_name)
        return VectorError(error.reason, f"{error}{hint}")

    # These methods are for one path, or for several that lead to parts of a vector or to several vectors.

    def _vectors_along_paths(self, items: ItemsOrReason) -> Sequence[_EntriesOrReason]:
        """Return the vectors of a value, or the reasons why there are none, from the `items` at the ends of the paths.

        Also sets the warning of `element_indices` if elements of an array have changed their order.
        """
        if isinstance(items, SkipReason):  # a condition of `where` is not met
            return [items]
        values = [item.value for item in items]  # numbers, nulls, arrays, or `Elements` if paths go through an array
        is_single_number = self.dimensions == 1 and len(values) == 1
        # In place of a single number, None is only a missing entry.
        has_null_vector = None in values and not is_single_number
        if SkipReason.NULL in values or has_null_vector:
            return [SkipReason.NULL]
        collected = self._collect(items)
        for array in collected.positional_arrays:
            self._warn_if_moved(array)
        ends = [end for end in collected.ends if not isinstance(end, SkipReason)]
        has_only_skip_reasons = len(collected.ends) > 0 and not ends
        if has_only_skip_reasons:
            return collected.ends
        for end in ends:
            if isinstance(end, Absent):
                raise self._missing_error(end)
        return self._split_into_vectors(ends)

    def _split_into_vectors(self, ends: list[Any]) -> list[list[Any]]:
        """Return the vectors in numbers and arrays: arrays of d numbers each, or d numbers in all.

        If the numbers are neither, raises `VectorError`.
        """
        d = self.dimensions
        arrays = [end for end in ends if isinstance(end, list)]
        are_all_arrays = len(arrays) == len(ends)
        if are_all_arrays and all(len(array) == d for array in arrays):
            return arrays
        entries = flatten(ends)
        # The rows of a tensor are never joined.
        has_tensor_rows = any(isinstance(array, TensorRow) for array in arrays)
        if len(entries) == d and not has_tensor_rows:
            return [entries]
        raise self._no_vector_error(ends)

    def _no_vector_error(self, ends: list[Any]) -> VectorError:
        """Return the error for the numbers and arrays of a value that are not vectors."""
        arrays = [end for end in ends if isinstance(end, list)]
        if not arrays and len(self._steps_of_paths) == 1:
            return VectorError("undecodable", f"expected an array of numbers, not {type_name(ends[0])}")
        if len(arrays) < 2:
            return wrong_length_error(len(flatten(ends)), self.dimensions)
        lengths = sorted({len(array) for array in arrays})
        sizes = str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        numbers_beside = " and others beside them" if len(arrays) < len(ends) else ""
        text = f"{len(arrays)} arrays of {sizes} numbers{numbers_beside}, not of {self.dimensions}"
        return VectorError("wrong_length", text)

    def _collect(self, items: Sequence[Item]) -> "_Collected":
        """Return all numbers and innermost arrays at the ends of paths, and the positional arrays on the way.

        In {"w": [[1, 2], [3, 4]]}, the path `w` leads to the innermost arrays [1, 2] and [3, 4]. In the positional
        array [{"w": 1}, {"w": 2}], the numbers at the path count as the array [1, 2].
        """
        ends = list[Any]()
        positional_arrays = list[_PositionalArray]()
        is_only_path = len(items) == 1
        for item in items:
            if isinstance(item.value, Elements):
                in_elements = self._collect_in_elements(item.value)
                ends += in_elements.ends
                positional_arrays += in_elements.positional_arrays
                continue
            # At the only path, bytes hold all numbers of a vector.
            end = read_path_end(item.value, self.dimensions, may_be_encoded=is_only_path)
            ends += innermost_arrays(end) if isinstance(end, list) else [end]
        return _Collected(ends, positional_arrays)

    def _collect_in_elements(self, elements: Elements) -> "_Collected":
        """Return all numbers and innermost arrays to which paths lead in the elements of an array.

        The array is positional if all its elements are parts of one vector, as [{"x": 1}, {"x": 2}] with the path `x`.
        """
        collected_in_elements = [self._collect_in_element(items) for items in elements.find_in_each()]
        ends = [end for in_element in collected_in_elements for end in in_element.ends]
        arrays = [end for end in ends if isinstance(end, list)]
        are_parts_of_vector = len(arrays) > 1 and len(flatten(arrays)) == self.dimensions
        are_one_vector = not arrays or are_parts_of_vector
        positional_arrays = [_PositionalArray(elements)] if are_one_vector else []
        for index, in_element in enumerate(collected_in_elements):
            inner_arrays = in_element.positional_arrays
            if are_one_vector:
                # Inner arrays in different elements hold different entries, and are not compared with one another.
                inner_arrays = [array.inside(index) for array in inner_arrays]
            positional_arrays += inner_arrays
        return _Collected(self._join_single_numbers(ends), positional_arrays)

    def _collect_in_element(self, items: ItemsOrReason) -> "_Collected":
        """Return the numbers and innermost arrays at the ends of paths in one element of an array.

        The numbers at several paths are joined to one array: x and y in {"x": 1, "y": 2} become [1, 2].
        """
        if isinstance(items, SkipReason):  # the element does not meet a condition of `where`
            return _Collected(ends=[items], positional_arrays=[])
        collected = self._collect(items)
        entries = flatten(collected.ends)
        has_several_paths = len(items) > 1
        if has_several_paths and entries:
            return collected._replace(ends=[self._entries_or_reason(entries)])
        return collected

    def _join_single_numbers(self, ends: list[Any]) -> list[Any]:
        """Join the single numbers in an array's elements to one array, unless there are also arrays.

        [1, None, 3] becomes [[1, None, 3]], a vector with a missing entry. [[1, 2], None] becomes [[1, 2], NULL], a
        vector and a null in place of a vector. [1, [2, 3]] stays as it is.
        """
        single_ends = [end for end in ends if not isinstance(end, list)]
        has_arrays = len(single_ends) < len(ends)
        has_no_numbers = all(isinstance(end, SkipReason | None) for end in single_ends)
        if has_no_numbers:  # each null is in place of a vector
            return [SkipReason.NULL if end is None else end for end in ends]
        if has_arrays:
            return ends
        entries = [end for end in single_ends if end is not SkipReason.NULL]
        return [self._entries_or_reason(entries)]

    def _warn_if_moved(self, array: "_PositionalArray") -> None:
        """If an earlier value had an element of the array at another index, set the warning of `element_indices`."""
        shared_paths = array.elements.walk.paths
        steps_of_paths = [self._steps_of_paths[index] for index in shared_paths.indices]
        self.element_indices.compare(array.elements.array, steps_of_paths, shared_paths.depth, array.outer_indices)


class _Collected(NamedTuple):
    """What is at the ends of paths, and the positional arrays that the paths go through."""

    ends: list[Any]  # numbers, nulls and innermost arrays; also `SkipReason`, and `Absent` if a path leads to nothing
    positional_arrays: list["_PositionalArray"]


class _PositionalArray(NamedTuple):
    """An array in which the index of an element says which entries of a vector the element holds.

    For example, [{"x": 1}, {"x": 2}] with the path `x`, if d is 2: the element at index 0 holds the first entry.
    """

    elements: Elements
    outer_indices: tuple[int, ...] = ()
    """If the array is inside of elements of other positional arrays: their indices, from the outermost."""

    def inside(self, index: int) -> "_PositionalArray":
        """Return the array as one that is inside of the element at this index of another array."""
        return self._replace(outer_indices=(index, *self.outer_indices))
