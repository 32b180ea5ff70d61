"""Makes vectors of the numbers that the paths of `field` lead to in a value.

If there is a path for each of the d numbers, the numbers at all paths are one vector. If each path ends at an array of
n numbers, the arrays are columns of n vectors. If all paths go through the same array, each of its elements is read by
itself: with the paths `x` and `y`, [{"x": 1, "y": 2}, {"x": 3, "y": 4}] holds the vectors [1, 2] and [3, 4].

Otherwise, with one path or another number of paths, d numbers along all paths are one vector, in this order. If there
are more, each innermost array is a vector. The numbers at several paths in an element count as an innermost array.

Most values are read by direct access, which takes d plain numbers out of one object or array. Everything else is read
by walking along the paths (`Walk`). The walk returns an `Item` for each path, with the value that the path leads to.
Paths that lead into the elements of the same array share one item, whose value is `Elements`.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from streampca.formats.element_indices import ElementIndices
from streampca.formats.errors import (
    NO_VALUE,
    NULL_HINT,
    SKIP_REASONS,
    VectorError,
    check_size,
    condition_unmet_error,
    missing_field_error,
    type_name,
    wrong_length_error,
)
from streampca.formats.field_search import find_candidate_fields
from streampca.formats.numbers import NumberPacker, VectorBytes, with_common_guess
from streampca.formats.path_ends import NumbersOfBytes, innermost_arrays, read_path_end
from streampca.formats.tensors import TensorRow, flatten, tensor_field_names
from streampca.formats.text import may_be_debezium_placeholder
from streampca.formats.walk import Absent, Elements, Item, ItemsOrReason, SkipReason, Walk
from streampca.settings.field_paths import (
    Condition,
    Path,
    collect_names,
    get_steps,
    name_paths,
    parse_paths,
    spell_path,
)

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

        `dimensions` may be 0 if it is not known yet. Then only `count_dimensions` may be called. `value_name` is what
        error messages call a value, such as "record batch". A value, or an element of its arrays, is left out unless it
        meets the conditions `where`.
        """
        self.paths = paths
        self.dimensions = dimensions
        self.impute = impute
        self.where = where
        self.element_indices = ElementIndices()
        """Remembers at which index of an array each element was, and warns if the elements change their order."""
        # Without paths, the only path is (), which leads to the value itself.
        self._steps_of_paths = [get_steps(path) for path in paths] or [()]
        self.tensor_field_names = tensor_field_names({steps[-1] for steps in self._steps_of_paths if steps})
        """Names of fields, such as `shape`, beside which an array may be a tensor or a sparse vector.

        The numbers of a tensor or a sparse vector are in a field `values` or `data`. If no path ends at such a field,
        the set is empty.
        """
        # All below is private, and prepared here once, because `pack` is called for each value.
        self._walk = Walk.along(self._steps_of_paths, where)
        self._value_name = value_name
        self._has_path_for_each_entry = dimensions > 1 and len(paths) == dimensions
        names = list(map(repr, name_paths(paths))) if self._has_path_for_each_entry else None
        self._packer = NumberPacker(dimensions, null_as_nan=impute, labels=names)
        self._pack_numbers = self._packer.pack_numbers
        # Most values need no walk: their numbers are taken directly out of one object or array, which is faster.
        self._prepare_direct_access()

    def _prepare_direct_access(self) -> None:
        """Decide whether the d numbers can be taken straight out of one object or array, the container.

        If each entry has a path, the container is the object that has all these entries. Otherwise, the container is
        the array at the only path. Sets `steps_to_container`, and `allows_direct_access` to the decision. Readers that
        have a faster way to take numbers out of an array ask for it, too.
        """
        if self._has_path_for_each_entry:  # with the paths `a.x` and `a.y`, the container is the object at `a`
            self.steps_to_container = self._steps_of_paths[0][:-1]
            last_steps = [steps[-1] for steps in self._steps_of_paths]
            # With at least two names, as here, `itemgetter` returns a tuple.
            self._get_entries: Callable[[Any], Sequence[Any]] | None = itemgetter(*last_steps)
            are_in_one_container = all(steps[:-1] == self.steps_to_container for steps in self._steps_of_paths)
        else:  # with the path `a`, the container is the array at `a`
            self.steps_to_container = self._steps_of_paths[0]
            self._get_entries = None  # the entries of an array are not looked up by name
            are_in_one_container = len(self._steps_of_paths) == 1  # several paths need a walk
        # Debezium may write an array of N numbers for an unchanged value. If d is N, direct access would read this
        # array as a vector.
        may_be_placeholder = may_be_debezium_placeholder(self.dimensions)
        self.allows_direct_access = are_in_one_container and not self.where and not may_be_placeholder

    @property
    def names(self) -> set[str]:
        """The names of all entries that are looked at, to find the numbers and to test the conditions."""
        steps_of_conditions = [condition.steps for condition in self.where]
        return self.tensor_field_names | collect_names([*self._steps_of_paths, *steps_of_conditions])

    def pack(self, value: Any) -> VectorBytes:
        """Return the numbers of a value's vectors as float64.

        If the vectors are bytes, which do not say the type of their numbers, returns `GuessedNumbers`. If there is no
        vector, raises `VectorError`. Its reason is `NO_VALUE` for a null, and `CONDITION_UNMET` for an unmet condition.

        Plain numbers in one object or array are taken out directly. Any other value is read by a walk along the paths,
        which is slower, and which finds out what is wrong with the value.
        """
        if self.allows_direct_access:  # inline, since a call for each value would make `pack` a tenth slower
            try:
                parent: Any = None  # the object that holds the container; None if the container is the whole value
                container = value
                for step in self.steps_to_container:
                    parent = container
                    container = container[step]
                if self._get_entries is not None:  # the container is an object with d numbers
                    return self._pack_numbers(*self._get_entries(container))
                # The container is an array. If a field such as `shape` is beside it in `parent`, the array may be a
                # tensor. If the array is the whole value, `parent` is None, and there are no `tensor_field_names`.
                may_be_sparse_or_tensor = self.tensor_field_names and any(
                    name in parent for name in self.tensor_field_names
                )
                if type(container) is list and not may_be_sparse_or_tensor:
                    return self._pack_numbers(*container)
            except (LookupError, TypeError, ValueError, struct.error, OverflowError):
                pass  # the walk below reads the value, or finds the error
        return self._pack_or_suggest_field(value)

    def _pack_or_suggest_field(self, value: Any) -> VectorBytes:
        """Return the numbers of any value. If they cannot be read, raise `VectorError` and suggest a better `field`.

        If the vectors of the value are bytes, which do not say the type of their numbers, returns `GuessedNumbers`. The
        error suggests a `field` only if there is one with which d numbers can be read.
        """
        try:
            return self._pack_by_walk(value)
        except VectorError as error:
            if error.reason in SKIP_REASONS:  # `field` may be right
                raise
            better_field = self._find_better_field(value)
            if better_field is None:
                raise
            text = f"{error}; field={better_field} reads {self.dimensions} numbers"
            raise VectorError(error.reason, text) from None

    def _find_better_field(self, value: Any) -> str | None:
        """Return a value of the setting `field` with which one vector is read from a value; None if none is found."""
        for field in find_candidate_fields(value, self.dimensions):
            with suppress(ValueError, VectorError):  # the candidate is not valid, or leads to no vector
                paths = parse_paths(field)
                fields = NumberFields(paths, self.dimensions, impute=False, value_name=self._value_name)
                numbers = fields._pack_by_walk(value)
                is_one_vector = len(numbers) == 8 * self.dimensions
                if is_one_vector:
                    return field
        return None

    def count_dimensions(self, value: Any) -> int:
        """Return how many numbers a vector of this value has; 0 if it holds no vector.

        If several paths lead to arrays, raises `VectorError`: it is not clear whether each array is a vector, or a
        column that holds one entry of many vectors.
        """
        return self._count_dimensions_at(self._walk.find(value))

    def _count_dimensions_at(self, items: ItemsOrReason) -> int:
        """Return how many numbers a vector has; 0 if there is no vector.

        `items` say what each path leads to. Paths into elements of one array share an item, whose value is `Elements`.

        1. With the paths `x` and `y`, [{"x": 1, "y": 2}, {"x": 3, "y": 4}] gives one shared item. Each element is a
           vector of 2 numbers.
        2. With several paths to arrays, as in {"x": [1, 3], "y": [2, 4]}, the length is not clear. Raises
           `VectorError`.
        3. With one path `w`, {"w": [[1, 2, 3], [4, 5, 6]]} has vectors of 3 numbers.
        4. With the paths `x` and `y`, {"x": 1, "y": 2} has a vector of 2 numbers. So has {"x": 1, "y": null}, but
           {"x": null, "y": null} has no vector.
        """
        if isinstance(items, SkipReason):  # a condition of `where` is not met
            return 0
        has_several_paths = len(self._steps_of_paths) > 1
        shared_elements = _find_shared_elements(items)
        if has_several_paths and shared_elements is not None:  # 1. Each element may hold a vector.
            return max(map(self._count_dimensions_at, shared_elements.items_of_each_element()), default=0)
        values = self._collect(items).values_at_path_ends  # numbers, nulls, arrays; or why a path leads to nothing
        arrays = [value for value in values if isinstance(value, list)]
        if has_several_paths and arrays:  # 2.
            text = "several paths lead to arrays: say by --dimensions whether these are columns or vectors"
            raise VectorError("wrong_length", text)
        if arrays:  # 3. Each array is a vector, so the first is enough.
            return len(arrays[0])
        # 4. A null is a missing entry, and so is a path that leads to nothing. A vector needs at least one number.
        has_number = any(not isinstance(value, SkipReason | Absent | None) for value in values)
        return len(values) if has_number else 0

    def _pack_by_walk(self, value: Any) -> VectorBytes:
        """Return the vectors of any value as float64 numbers, one after the other. Raises `VectorError`.

        Bytes do not say the type of their numbers, so the type is guessed from their length. If the same type was
        guessed for all vectors, returns `GuessedNumbers`, which also say this type.
        """
        items = self._walk.find(value)
        # The entries of each vector. In place of a vector that is null, or does not meet a condition: a `SkipReason`.
        if self._has_path_for_each_entry:  # entry i of all vectors is at the end of path i
            vectors: Iterable[_EntriesOrReason] = self._vectors_of_entry_paths(items)
        else:  # at the end of a path, there are whole vectors, or parts of one vector
            vectors = self._vectors_along_paths(items)
        packed_vectors = list[bytes]()
        guessed_dtypes = set[str | None]()  # None: the type of a vector's numbers was not guessed
        skip_reasons = set[SkipReason]()
        for entries in vectors:
            size_so_far = 8 * self.dimensions * len(packed_vectors)  # 8 bytes for each number
            check_size(size_so_far, _MAX_BYTES)
            if isinstance(entries, SkipReason):
                skip_reasons.add(entries)
                continue
            packed_vectors.append(self._packer.pack(entries))
            # `NumbersOfBytes` are entries that were decoded from bytes.
            guessed_dtypes.add(entries.dtype if isinstance(entries, NumbersOfBytes) else None)
        if skip_reasons and not packed_vectors:
            raise self._all_skipped_error(skip_reasons)
        return with_common_guess(b"".join(packed_vectors), guessed_dtypes)

    def _all_skipped_error(self, skip_reasons: Collection[SkipReason]) -> VectorError:
        """Return the error of a value that holds no vectors, because all were skipped for these reasons."""
        if SkipReason.CONDITION_UNMET in skip_reasons:
            return condition_unmet_error()
        field = ",".join(map(spell_path, self._steps_of_paths))  # "" if the only path leads to the value itself
        return VectorError(NO_VALUE, f"the field {field!r} is null" if field else "the value is null")

    # These methods are for d paths: each leads to one entry of a vector, or to a column with an entry of each vector.

    def _vectors_of_entry_paths(self, items: ItemsOrReason) -> Iterator[_EntriesOrReason]:
        """Yield the vectors of a value, with a `SkipReason` in place of a vector that is skipped.

        `items` say what each path leads to. Paths into elements of one array share an item, whose value is `Elements`.
        With the paths `x` and `y`:
        {"x": 1, "y": 2}                        an item for each path, 1 and 2: the vector [1, 2]
        {"x": [1, 3], "y": [2, 4]}              an item for each path, [1, 3] and [2, 4]: two vectors, [1, 2] and [3, 4]
        [{"x": 1, "y": 2}, {"x": 3, "y": 4}]    one item for both paths, which is `Elements`: the same two vectors
        """
        if isinstance(items, SkipReason):  # a condition of `where` is not met
            yield items
            return
        shared_elements = _find_shared_elements(items)
        if shared_elements is not None:  # each element may hold a vector
            for items_in_element in shared_elements.items_of_each_element():
                yield from self._vectors_of_entry_paths(items_in_element)
        else:
            value_by_path = self._value_by_path(items)  # by the index of the path; there are d paths here
            values_in_order_of_paths = [value_by_path[path_index] for path_index in range(self.dimensions)]
            yield from self._vectors_of_columns(values_in_order_of_paths)

    def _value_by_path(self, items: ItemsOrReason) -> dict[int, Any]:
        """Return the number, null or array at the end of each path, by the index of the path.

        `items` say what each path leads to. Paths into elements of one array share an item, whose value is `Elements`.
        If a path goes on in the elements of an array, its value is the list of its values in all elements. If a
        condition of `where` is not met, the dict is empty.
        """
        if isinstance(items, SkipReason):  # a condition is not met
            return {}
        value_by_path: dict[int, Any] = {}
        for item in items:
            if isinstance(item.value, Elements):  # an array: the item's paths go on in each of its elements
                value_by_path |= self._values_in_elements(item.value, item.path_indices)
            else:
                [path_index] = item.path_indices  # several paths share an item only if it is `Elements`
                # Bytes are not decoded: they would hold a whole vector, but the path leads to one entry, or to an array
                # with one entry of each vector.
                value_by_path[path_index] = read_path_end(item.value, self.dimensions, may_be_encoded=False)
        return value_by_path

    def _values_in_elements(self, elements: Elements, path_indices: Sequence[int]) -> dict[int, list[Any]]:
        """Return, for each path into the elements of an array, the list of the path's values in all elements.

        With the paths `x` (index 0) and `y` (index 1), [{"x": 1, "y": 2}, {"x": 3, "y": 4}] gives
        {0: [1, 3], 1: [2, 4]}.
        """
        bytes_of_lists = 8 * len(path_indices) * len(elements.array)  # a list has a pointer of 8 bytes for each value
        check_size(bytes_of_lists, _MAX_BYTES)
        dicts_of_elements = [self._value_by_path(items) for items in elements.items_of_each_element()]
        # If an element meets the conditions of `where`, its dict has all these paths. If not, the dict is empty.
        return {
            path_index: [
                value_by_path.get(path_index, SkipReason.CONDITION_UNMET) for value_by_path in dicts_of_elements
            ]
            for path_index in path_indices
        }

    def _vectors_of_columns(self, values: Sequence[Any]) -> Iterator[_EntriesOrReason]:
        """If there are numbers at the ends of d paths, yield one vector. If there are arrays, yield a vector per index.

        The `values` [1, 2] give this vector. The `values` [[1, 3], [2, 4]] give the vectors [1, 2] and [3, 4]. In place
        of a number or an array, there may be None for null, or the reason why there is nothing at the end of the path:
        `SkipReason` or `Absent`.
        """
        arrays = [value for value in values if isinstance(value, list)]
        if not arrays:
            yield self._entries_or_reason(values)
            return
        has_numbers = any(not isinstance(value, list | SkipReason | Absent | None) for value in values)
        if has_numbers:
            raise VectorError("wrong_length", "some paths lead to arrays and some to numbers")
        lengths = sorted({len(array) for array in arrays})
        if len(lengths) > 1:
            raise VectorError("wrong_length", f"the paths lead to arrays of {lengths[0]} to {lengths[-1]} numbers")
        for index in range(lengths[0]):
            # At a path without an array, such as null, the entry is missing in each of the vectors.
            values_at_index = [value[index] if isinstance(value, list) else value for value in values]
            # The values at an index are a vector. If arrays were nested, these values are columns of vectors again.
            yield from self._vectors_of_columns(values_at_index)

    def _entries_or_reason(self, values: Sequence[Any]) -> _EntriesOrReason:
        """Return the entries of a vector, with None for missing ones; or the reason why there is no vector.

        `values` has one of these for each entry:
        a number                      the entry
        None                          null at the end of the path, as in {"a": {"x": null}} with the path `a.x`
        `SkipReason.NULL`             null before the end, as in {"a": null}; or Debezium's placeholder
        `SkipReason.CONDITION_UNMET`  a condition of `where` is not met
        `Absent`                      the path leads to nothing, as in {"a": {}}

        The first case that applies:
        1. Without numbers and None, returns `SkipReason.CONDITION_UNMET` if any condition is not met.
        2. If all values are `SkipReason.NULL`, returns `SkipReason.NULL`.
        3. If the path of an `Absent` is wrong, raises `VectorError`. Without `impute`, every path to nothing is wrong,
           and an unmet condition is an error, too.
        4. Returns the numbers, with None for everything else. Without `impute`, `NumberPacker` refuses None later.
        """
        skip_reasons = [value for value in values if isinstance(value, SkipReason)]
        absent_values = [value for value in values if isinstance(value, Absent)]
        has_entries = len(skip_reasons) + len(absent_values) < len(values)  # numbers or None
        is_condition_unmet = SkipReason.CONDITION_UNMET in skip_reasons
        if not has_entries and is_condition_unmet:  # 1.
            return SkipReason.CONDITION_UNMET
        if not has_entries and not absent_values:  # 2.
            return SkipReason.NULL
        if absent_values:  # 3.
            are_all_absent = len(absent_values) == len(values)
            self._refuse_wrong_paths(absent_values, are_all_absent=are_all_absent, has_entries=has_entries)
        if is_condition_unmet and not self.impute:
            raise VectorError("undecodable", f"an entry does not meet the conditions of where{NULL_HINT}")
        return [None if isinstance(value, SkipReason | Absent) else value for value in values]  # 4.

    def _refuse_wrong_paths(self, absent_values: Sequence[Absent], *, are_all_absent: bool, has_entries: bool) -> None:
        """Raise `VectorError` for a path that leads to nothing, unless the entry at its end may be missing.

        With `impute`, an entry may be missing in an object or array that exists. But if all paths lead to nothing
        (`are_all_absent`), the paths are wrong. `has_entries` says whether any path leads to a number or null.
        """
        for absent in absent_values:
            # An object or array may lack the entry. In anything else, such as a number, the path is wrong.
            is_missing_entry = self.impute and absent.is_parent_of_right_type and not are_all_absent
            if not is_missing_entry:
                # Imputing fills in single entries: it needs a number or null at the end of another path.
                would_imputing_help = absent.is_parent_of_right_type and has_entries
                hint = NULL_HINT if would_imputing_help else ""
                raise self._missing_error(absent, hint)

    def _missing_error(self, absent: Absent, hint: str = "") -> VectorError:
        """Return the error for a path that leads to nothing."""
        path = spell_path(self._steps_of_paths[absent.path_index])
        error = missing_field_error(path, spell_path([absent.step]), absent.parent, self._value_name)
        return VectorError(error.reason, f"{error}{hint}")

    # These methods are for one path, or for several that lead to parts of a vector or to several vectors.

    def _vectors_along_paths(self, items: ItemsOrReason) -> Sequence[_EntriesOrReason]:
        """Return the vectors of a value; or only the reasons to skip them, if all are skipped.

        `items` say what each path leads to. Paths into elements of one array share an item, whose value is `Elements`.
        With the path `a.w` and d = 2:
        {"a": {"w": [1, 2]}}            the vector [1, 2]
        {"a": [{"w": 1}, {"w": 2}]}     the vector [1, 2]. The array `a` is positional: the index of an element says
                                        which entry the element holds. If an element has moved since an earlier value,
                                        sets a warning (`_warn_if_moved`).
        {"a": null}                     `SkipReason.NULL`
        """
        if isinstance(items, SkipReason):  # a condition of `where` is not met
            return [items]
        if self._has_null_vector(items):
            return [SkipReason.NULL]
        collected = self._collect(items)  # what is at the ends of the paths, and the positional arrays on the way
        for array in collected.positional_arrays:
            self._warn_if_moved(array)
        # Numbers, nulls and arrays, without the `SkipReason` that an element gives if it is skipped, such as null.
        values = [value for value in collected.values_at_path_ends if not isinstance(value, SkipReason)]
        has_only_skip_reasons = len(collected.values_at_path_ends) > 0 and not values
        if has_only_skip_reasons:
            return collected.values_at_path_ends  # the reasons
        for value in values:
            if isinstance(value, Absent):  # a path leads to nothing
                raise self._missing_error(value)
        return self._split_into_vectors(values)

    def _has_null_vector(self, items: Sequence[Item]) -> bool:
        """Return whether a path leads to null, so that the value has no vector.

        None is a null at the end of a path, in place of an array. But if d is 1 and there is one path, None may be in
        place of a single number: then it is only a missing entry. `SkipReason.NULL` is a null before the end, as in
        {"a": null} with the path `a.x`, or Debezium's placeholder.
        """
        values = [item.value for item in items]
        may_be_missing_entry = self.dimensions == 1 and len(values) == 1
        return SkipReason.NULL in values or (None in values and not may_be_missing_entry)

    def _split_into_vectors(self, values: list[Any]) -> list[list[Any]]:
        """Return the vectors that are made of `values`: the numbers and arrays at the ends of all paths.

        If all are arrays of d numbers, each array is a vector. If there are d numbers in all, they are one vector.
        Otherwise raises `VectorError`.
        """
        d = self.dimensions
        arrays = [value for value in values if isinstance(value, list)]
        are_all_arrays = len(arrays) == len(values)
        if are_all_arrays and all(len(array) == d for array in arrays):
            return arrays
        entries = flatten(values)
        # A row of a tensor is a vector of its own, so rows are never joined to one vector.
        has_tensor_rows = any(isinstance(array, TensorRow) for array in arrays)
        if len(entries) == d and not has_tensor_rows:
            return [entries]
        raise self._no_vector_error(values)

    def _no_vector_error(self, values: list[Any]) -> VectorError:
        """Return the error for `values` that are neither arrays of d numbers, nor d numbers in all.

        If d is 4, the values [1, 2, 3], [1, 2, 3, 4, 5] and 7 give the message "2 arrays of 3 to 5 numbers and others
        beside them, not of 4".
        """
        arrays = [value for value in values if isinstance(value, list)]
        if not arrays and len(self._steps_of_paths) == 1:
            return VectorError("undecodable", f"expected an array of numbers, not {type_name(values[0])}")
        if len(arrays) < 2:  # count the numbers in the array and beside it: "3 numbers, not 4"
            return wrong_length_error(len(flatten(values)), self.dimensions)
        lengths = sorted({len(array) for array in arrays})
        sizes = str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        has_single_numbers = len(arrays) < len(values)
        beside_arrays = " and others beside them" if has_single_numbers else ""
        text = f"{len(arrays)} arrays of {sizes} numbers{beside_arrays}, not of {self.dimensions}"
        return VectorError("wrong_length", text)

    def _collect(self, items: Sequence[Item]) -> "_Collected":
        """Return the numbers and innermost arrays at the ends of paths, and the positional arrays on the way.

        `items` say what each path leads to. Paths into elements of one array share an item, whose value is `Elements`.
        With the path `w`:
        {"w": [[1, 2], [3, 4]]}  gives the innermost arrays [1, 2] and [3, 4].
        [{"w": 1}, {"w": 2}]     gives the array [1, 2]. The array of the two objects is positional: if the objects
                                 changed places, the entries of the vector would be mixed up (`_PositionalArray`).
        """
        values = list[Any]()
        positional_arrays = list[_PositionalArray]()
        is_only_path = len(items) == 1
        for item in items:
            if isinstance(item.value, Elements):  # an array: the item's paths go on in each of its elements
                in_elements = self._collect_in_elements(item.value)
                values += in_elements.values_at_path_ends
                positional_arrays += in_elements.positional_arrays
                continue
            # If there is only one path, its value may be bytes, such as base64, that hold all numbers of a vector.
            value = read_path_end(item.value, self.dimensions, may_be_encoded=is_only_path)
            values += innermost_arrays(value) if isinstance(value, list) else [value]
        return _Collected(values, positional_arrays)

    def _collect_in_elements(self, elements: Elements) -> "_Collected":
        """Return what paths lead to in the elements of an array, and the positional arrays.

        An array is positional if the index of an element says which entries of a vector the element holds. With the
        path `x`:
        [{"x": 1}, {"x": 2}]            gives the array [1, 2]. The array of the two objects is positional.
        [{"x": [1, 2]}, {"x": [3, 4]}]  gives the arrays [1, 2] and [3, 4]. If d is 2, they are two vectors. If d is 4,
                                        they are parts of one vector, and the array of the two objects is positional.
        """
        collected_by_element = [self._collect_in_element(items) for items in elements.items_of_each_element()]
        values = [value for collected in collected_by_element for value in collected.values_at_path_ends]
        positional_arrays = self._find_positional_arrays(elements, collected_by_element, values)
        joined_values = self._join_single_numbers(values)  # the array [1, 2] in place of 1 and 2
        return _Collected(joined_values, positional_arrays)

    def _find_positional_arrays(
        self, elements: Elements, collected_by_element: Sequence["_Collected"], values: Sequence[Any]
    ) -> list["_PositionalArray"]:
        """Return the positional arrays among an array of elements and the arrays inside of its elements.

        An array is positional if the index of an element says which entries of a vector the element holds. In
        [{"x": 1}, {"x": 2}], the elements hold the entries 0 and 1 of the vector [1, 2]. If they change places, entries
        are mixed up, so the caller compares positional arrays with those of earlier values.

        `values` has the numbers and innermost arrays of all elements. The array of elements is positional if these are
        parts of one vector:
        [1, 2]            Single numbers are always parts of one vector.
        [[1, 2], [3, 4]]  If d is 4, these arrays are parts of one vector. If d is 2, each is a vector.
        """
        arrays_of_numbers = [value for value in values if isinstance(value, list)]
        are_parts_of_vector = len(arrays_of_numbers) > 1 and len(flatten(arrays_of_numbers)) == self.dimensions
        are_one_vector = not arrays_of_numbers or are_parts_of_vector
        if not are_one_vector:
            return [array for collected in collected_by_element for array in collected.positional_arrays]
        positional_arrays = [_PositionalArray(elements)]
        for index, collected in enumerate(collected_by_element):
            # The index of the element becomes a part of the array's identity. So an array inside of element 0 is
            # compared only with the array inside of element 0 of earlier values.
            positional_arrays += [array.inside_element(index) for array in collected.positional_arrays]
        return positional_arrays

    def _collect_in_element(self, items: ItemsOrReason) -> "_Collected":
        """Return what paths lead to in one element of an array. Numbers at several paths are joined to one array.

        With the path `x`, {"x": 1} gives the number 1. With the paths `x` and `y`, {"x": 1, "y": 2} gives the array
        [1, 2]. The result also has the positional arrays inside of the element (`_PositionalArray`). For example, with
        the path `x.v`, {"x": [{"v": 1}, {"v": 2}]} gives the array [1, 2], and the array at `x` is positional.

        `items` say what each path leads to. Paths into an array inside of the element share an item: `Elements`.
        """
        if isinstance(items, SkipReason):  # the element does not meet a condition, so this reason is all that it gives
            return _Collected(values_at_path_ends=[items], positional_arrays=[])
        collected = self._collect(items)
        # `SkipReason.NULL` is a null in place of an array, or before the end of a path. None is a missing entry.
        values = [value for value in collected.values_at_path_ends if value is not SkipReason.NULL]
        entries = flatten(values)
        has_several_items = len(items) > 1
        if has_several_items and entries:  # in {"x": [], "y": []}, there is nothing to join
            # Join the numbers at all paths to one array. If there are none, this gives the reason to skip the element:
            # `SkipReason.CONDITION_UNMET` if the elements that the paths choose do not meet the conditions.
            return collected._replace(values_at_path_ends=[self._entries_or_reason(entries)])
        return collected

    def _join_single_numbers(self, values: list[Any]) -> list[Any]:
        """Join the single numbers in an array's elements to one array, unless there are also arrays.

        `values` has what paths lead to in the elements. None is a null at the end of a path. `SkipReason.NULL` is a
        null before the end, such as an element that is null. With the path `x`:
        1. Without single numbers: [{"x": [1, 2]}, {"x": null}] gives the values [[1, 2], None]. They become
           [[1, 2], SkipReason.NULL].
        2. With numbers and arrays: [{"x": 1}, {"x": [2, 3]}] gives the values [1, [2, 3]], which stay as they are.
        3. Without arrays: [{"x": 1}, {"x": null}, null, {"x": 3}] gives the values [1, None, SkipReason.NULL, 3]. They
           become [[1, None, 3]].
        """
        single_values = [value for value in values if not isinstance(value, list)]
        has_arrays = len(single_values) < len(values)
        has_no_numbers = all(isinstance(value, SkipReason | None) for value in single_values)
        if has_no_numbers:  # 1. Each None is in place of an array, and not a missing entry.
            return [SkipReason.NULL if value is None else value for value in values]
        if has_arrays:  # 2.
            return values
        # 3. Each None is a missing entry. An element that is null holds no entry, so it is left out.
        entries = [value for value in single_values if value is not SkipReason.NULL]
        return [self._entries_or_reason(entries)]

    def _warn_if_moved(self, array: "_PositionalArray") -> None:
        """If an earlier value had an element of the array at another index, set the warning of `element_indices`."""
        shared_paths = array.elements.walk.paths
        steps_of_paths = [self._steps_of_paths[index] for index in shared_paths.path_indices]
        self.element_indices.compare(array.elements.array, steps_of_paths, shared_paths.depth, array.outer_indices)


def _find_shared_elements(items: Sequence[Item]) -> Elements | None:
    """If all paths lead into the same array, so that they share the only item, return its elements; else None."""
    only_value = items[0].value if len(items) == 1 else None
    return only_value if isinstance(only_value, Elements) else None


class _Collected(NamedTuple):
    """What is at the ends of paths, and the positional arrays that the paths go through."""

    values_at_path_ends: list[Any]
    """Numbers, nulls and innermost arrays; `SkipReason` or `Absent` if a path leads to nothing."""
    positional_arrays: list["_PositionalArray"]


class _PositionalArray(NamedTuple):
    """An array in which the index of an element says which entries of a vector the element holds.

    For example, [{"x": 1}, {"x": 2}] with the path `x`, if d is 2: the element at index 0 holds the first entry. If the
    elements of a later value are at other indices, entries would be mixed up, so the user is warned.
    """

    elements: Elements
    outer_indices: tuple[int, ...] = ()
    """If the array is inside of elements of other positional arrays: their indices, from the outermost."""

    def inside_element(self, index: int) -> "_PositionalArray":
        """Return the array as one that is inside of the element at this index of another array."""
        return self._replace(outer_indices=(index, *self.outer_indices))
