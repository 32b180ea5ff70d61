"""Makes vectors of the numbers that the paths of `field` lead to in a value.

Where a path leads to each of the d numbers, the numbers at all paths are one vector. If each path ends at an array of n
numbers, the arrays are columns of n vectors. Paths that share an array are read in each of its elements by itself.

Otherwise, with one path or another number of paths, d numbers along all paths are one vector, in this order. If there
are more, each innermost array is a vector. The numbers at several paths in an element count as an innermost array.
"""

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from streampca.formats.element_places import ElementPlaces
from streampca.formats.errors import (
    NO_VALUE,
    NULL_HINT,
    UNMET,
    VectorError,
    check_size,
    missing_field_error,
    quote_names,
    type_name,
    wrong_length_error,
)
from streampca.formats.field_search import suggest_field
from streampca.formats.numbers import (
    GuessedNumbers,
    NumberPacker,
    VectorBytes,
    common_dtype,
    is_number_word,
    plain_number,
    widen_floats,
)
from streampca.formats.tensors import TensorRow, names_beside
from streampca.formats.text import PLACEHOLDER_LENGTH, begins_as_array, decode_text
from streampca.formats.walk import Absent, Elements, Found, Item, SkipReason, Walk
from streampca.settings.field_paths import Condition, Path, Step, collect_names, get_steps, name_paths, spell_path

_MAX_BYTES = 64 * 2**20  # of the vectors in a value: with gaps, a short value may claim to hold many

_Row: TypeAlias = list[Any] | SkipReason
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
        """Without paths, the numbers are the value itself. Messages call a value `value_name`.

        A path names entries, and is never a pattern: `*` is the name `*`. If `dimensions` is 0, only `count_dimensions`
        may be called. A value that does not meet the conditions `where` holds no vector.
        """
        self.paths = paths
        self.dimensions = dimensions
        self.impute = impute
        self.where = where
        self.places = ElementPlaces()
        """Where the elements of arrays were, if they are entries of a vector."""
        # Without paths, there is one path without steps, which leads to the value itself.
        self._steps_of_paths = [get_steps(path) for path in paths] or [()]
        self.names_beside = names_beside({steps[-1] for steps in self._steps_of_paths if steps})
        """With a field of one of these names beside it, the array at a path is a sparse vector or a tensor."""
        self._walk = Walk(self._steps_of_paths, where)
        self._conditions = Walk([()], where)  # only tests the conditions, since its only path leads to the value itself
        self._value_name = value_name
        self._packer = NumberPacker(dimensions, null_as_nan=impute)
        self._pack_numbers = self._packer.pack_numbers
        self._has_path_per_entry = dimensions > 1 and len(paths) == dimensions
        entry_names = [f"{name!r}" for name in name_paths(paths)] if self._has_path_per_entry else None
        self._entry_names = entry_names  # in messages; None: entries are named by their index
        self._prepare_fast_way()

    def _prepare_fast_way(self) -> None:
        """Decide whether `pack` can take the numbers of most values straight from one object or array.

        A step is one name or index of a path. The slower walk follows each path, and tests the conditions of `where`.
        """
        if self._has_path_per_entry:
            # The steps lead to the object that has all numbers.
            self._fast_steps: Sequence[Step] = self._steps_of_paths[0][:-1]
            last_steps = [steps[-1] for steps in self._steps_of_paths]
            self._get_numbers: Callable[[Any], Sequence[Any]] | None = itemgetter(*last_steps)
            are_in_one_container = all(steps[:-1] == self._fast_steps for steps in self._steps_of_paths)
        else:
            # The steps lead to the array of d numbers.
            self._fast_steps = self._steps_of_paths[0]
            self._get_numbers = None
            are_in_one_container = len(self._steps_of_paths) == 1
        # For an array column that an UPDATE did not change, Debezium sends a fixed list of `PLACEHOLDER_LENGTH` numbers
        # instead of the content. If d is this length, the faster way would take the list for a vector.
        may_be_placeholder = self.dimensions == PLACEHOLDER_LENGTH
        self._has_fast_way = are_in_one_container and not self.where and not may_be_placeholder

    @property
    def names(self) -> set[str]:
        """The names of all entries that are looked at, to find the numbers and to test the conditions."""
        steps_of_conditions = [condition.steps for condition in self.where]
        return self.names_beside | collect_names([*self._steps_of_paths, *steps_of_conditions])

    def accepts(self, value: Any) -> bool:
        """Return whether a value meets the conditions, or any of its elements does."""
        return self._conditions.find(value) is not SkipReason.UNMET

    def pack(self, value: Any) -> VectorBytes | GuessedNumbers:
        """Return the numbers of a value's vectors as float64: d numbers, or n·d.

        If an array that should hold vectors is empty, there are no numbers. If the value is not a vector, raises
        `VectorError`. Its reason is "no_value" for null in place of a vector, and "where" if a condition is not met.
        """
        # An optimisation: most values have an array of d numbers at the only path, or a number at each of d paths. With
        # one path, `_fast_steps` lead to the array. With d paths, they lead to the object that has all d numbers, and
        # `_get_numbers` takes the numbers from this object. `_pack_any` reads such values, too, but more slowly.
        if self._has_fast_way:
            try:
                parent: Any = None  # not used if there are no steps: then no name is beside the array
                end = value
                for name in self._fast_steps:
                    parent = end
                    end = end[name]
                if self._get_numbers is not None:  # there are d paths
                    return self._pack_numbers(*self._get_numbers(end))
                # A field such as `shape` beside the array may make it a sparse vector or a tensor.
                may_be_special = self.names_beside and any(name in parent for name in self.names_beside)
                if type(end) is list and not may_be_special:
                    return self._pack_numbers(*end)
            except (LookupError, TypeError, ValueError, struct.error, OverflowError):  # text, null, arrays of arrays …
                pass
        return self._pack_or_suggest_field(value)

    def _pack_or_suggest_field(self, value: Any) -> VectorBytes | GuessedNumbers:
        """Do what `pack` does, for any value. If the value is not a vector, the error names a better `field`."""
        try:
            return self._pack_any(value)
        except VectorError as error:
            if error.reason in (NO_VALUE, UNMET):  # `field` may be right: the record is skipped
                raise
            better_field = suggest_field(value, self.dimensions, self._make_packer_for_search(value))
            if better_field is None:
                raise
            text = f"{error}; field={better_field} reads {self.dimensions} numbers"
            raise VectorError(error.reason, text) from None

    def _make_packer_for_search(self, value: Any) -> Callable[[Sequence[Path]], object]:
        """Return a function that packs the numbers of the value at any paths.

        The paths of `field` lead to no vector, so `suggest_field` tries other paths with this function.
        """

        def pack(paths: Sequence[Path]) -> object:
            fields = NumberFields(paths, self.dimensions, impute=False, value_name=self._value_name)
            return fields._pack_any(value)

        return pack

    def count_dimensions(self, value: Any) -> int:
        """Return how many numbers a vector of this value has: those of an innermost array, or of all paths.

        If the value holds no vector, returns 0. If several paths lead to arrays, raises `VectorError`: each array may
        be a column or a vector.
        """
        return self._count_found_dimensions(self._walk.find(value))

    def _count_found_dimensions(self, found: Found) -> int:
        """Return how many numbers a vector has (0: no vector). Raises `VectorError` if several paths lead to arrays.

        `found` is what the paths lead to in a value, or in an element of an array. It has one item for each path. But
        if all paths go through the same array, it has a single item, whose value is this array as `Elements`: its
        `find_in_each` yields what the rest of the paths leads to in each element.
        """
        if isinstance(found, SkipReason):
            return 0
        has_several_paths = len(self._steps_of_paths) > 1
        all_share_an_array = has_several_paths and len(found) == 1
        if all_share_an_array:
            elements = found[0].value
            # The largest number, because an element without a vector has 0.
            return max(map(self._count_found_dimensions, elements.find_in_each()), default=0)
        items = self._collect(found, by_position=[])  # the arrays that are read by position are not needed
        arrays = [item for item in items if isinstance(item, list)]
        if has_several_paths and arrays:
            text = "several paths lead to arrays: say by --dimensions whether these are columns or vectors"
            raise VectorError("wrong_length", text)
        if arrays:
            return len(arrays[0])
        # Without arrays, each item is one entry of the vector. An entry that is null or missing here counts, too, if at
        # least one other path leads to a number.
        has_number = any(not isinstance(item, SkipReason | Absent | None) for item in items)
        return len(items) if has_number else 0

    def _pack_any(self, value: Any) -> bytes | GuessedNumbers:
        """Return the numbers of the vectors of any value. Slower than the optimisation in `pack`."""
        found = self._walk.find(value)  # what is at the end of each path
        # A row is the list of the entries of one vector, or the reason why there is no vector.
        rows = self._rows_of_entries(found) if self._has_path_per_entry else self._rows_of_arrays(found)
        packed_rows = list[bytes]()
        guessed_dtypes = set[str | None]()
        reasons = set[SkipReason]()  # of rows without a vector
        for row in rows:
            # With gaps, a short value may claim to hold many vectors. If these take too many bytes, raises an error.
            check_size(8 * self.dimensions * len(packed_rows), _MAX_BYTES)
            if isinstance(row, SkipReason):
                reasons.add(row)
                continue
            packed_rows.append(self._packer.pack(row, labels=self._entry_names))
            # The type is guessed if the numbers are bytes or base64: their length says whether they are floats of 4 or
            # of 8 bytes. Numbers that the value spells out have a known type (None).
            guessed_dtypes.add(row.dtype if isinstance(row, _NumbersOfBytes) else None)
        if reasons and not packed_rows:
            raise self._no_vectors_error(reasons)
        numbers = b"".join(packed_rows)
        guessed_dtype = common_dtype(guessed_dtypes)  # None if the types differ, or if one was not guessed
        return GuessedNumbers(numbers, guessed_dtype) if guessed_dtype else numbers

    def _no_vectors_error(self, reasons: Collection[SkipReason]) -> VectorError:
        """Return the error of a value that holds no vectors, for these reasons."""
        if SkipReason.UNMET in reasons:
            return VectorError(UNMET, "it does not meet the conditions of where")
        field = ",".join(map(spell_path, self._steps_of_paths))
        return VectorError(NO_VALUE, f"the field {field!r} is null" if field else "the value is null")

    # These methods are for d paths, which lead to one of the d numbers each, or to a column of them each.

    def _rows_of_entries(self, found: Found) -> Iterator[_Row]:
        """Yield one vector if each of d paths leads to a number, or n vectors if each leads to an array of n numbers.

        `found` has one item for each path, but only one item, whose value is `Elements`, for all paths through the same
        array. If all d paths lead through one array, yields the vectors of each of its elements.
        """
        if isinstance(found, SkipReason):
            yield found
            return
        all_share_an_array = len(found) == 1 and isinstance(found[0].value, Elements)
        if all_share_an_array:
            for found_in_element in found[0].value.find_in_each():
                yield from self._rows_of_entries(found_in_element)
        else:
            value_by_path = self._value_by_path(found)  # index of a path → a number, or the list of the numbers
            yield from self._rows_of_columns([value_by_path[path_index] for path_index in range(self.dimensions)])

    def _value_by_path(self, found: Found) -> dict[int, Any]:
        """Return what each path leads to, by the index of the path: a number, or an array as a list.

        All paths through the same array are one item of `found`, whose value is `Elements`. Each of these paths leads
        to a list: what it leads to in each element.
        """
        value_by_path: dict[int, Any] = {}
        items = [] if isinstance(found, SkipReason) else found
        for item in items:
            if not isinstance(item.value, Elements):
                [path_index] = item.path_indices
                # Each of d paths leads to an entry, so bytes or base64 at its end are not decoded to a whole vector.
                value_by_path[path_index] = self._read_end(item.value, may_be_encoded=False)
                continue
            elements = item.value
            check_size(8 * len(item.path_indices) * len(elements.array), _MAX_BYTES)
            dict_by_element = [self._value_by_path(in_element) for in_element in elements.find_in_each()]
            # Turn a dict for each element into a list for each path.
            for path_index in item.path_indices:
                # An element that does not meet the conditions of `where` has no values.
                value_by_path[path_index] = [values.get(path_index, SkipReason.UNMET) for values in dict_by_element]
        return value_by_path

    def _rows_of_columns(self, values: Sequence[Any]) -> Iterator[_Row]:
        """If d values are numbers, yield them as one vector. If they are arrays, yield a vector for each index.

        The arrays must have the same length. Arrays of arrays are read in the same way: each index has d inner arrays.
        """
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
            # What is not an array is missing in each of the vectors.
            values_at_index = [value[index] if isinstance(value, list) else value for value in values]
            yield from self._rows_of_columns(values_at_index)

    def _entries_or_reason(self, values: Sequence[Any]) -> _Row:
        """Return the entries of a vector, with None for missing entries. If there is no vector, return the reason.

        `values` are what the paths lead to: an entry, `SkipReason.NULL` for a null in its place, `SkipReason.UNMET` for
        an element that does not meet `where`, or `Absent` if the value has no such name or element. If an entry must
        not be missing, raises `VectorError`.
        """
        missing = [value for value in values if isinstance(value, SkipReason | Absent)]
        is_any_there = len(missing) < len(values)
        if not is_any_there:
            if SkipReason.UNMET in missing:
                return SkipReason.UNMET
            if all(value is SkipReason.NULL for value in missing):
                return SkipReason.NULL
        # Raises an error for `Absent`, unless `impute` allows this entry to be missing, and for UNMET without `impute`.
        # Null is left to the `NumberPacker`, which refuses it without `impute`.
        self._check_missing(missing, is_any_there=is_any_there)
        return [None if isinstance(value, SkipReason | Absent) else value for value in values]

    def _check_missing(self, missing: Sequence[SkipReason | Absent], *, is_any_there: bool) -> None:
        """Raise `VectorError` if an entry of a vector must not be missing.

        `missing` has the reason of each missing entry. `is_any_there` says whether the vector has at least one entry.
        Null is always accepted here: without `impute`, the `NumberPacker` refuses it.
        """
        # If the value has none of the names on the paths, the paths are wrong, and no entry is a gap.
        are_paths_wrong = all(isinstance(reason, Absent) for reason in missing) and not is_any_there
        for reason in missing:
            if not isinstance(reason, Absent):
                continue
            is_gap = self.impute and reason.may_be_missing and not are_paths_wrong
            if not is_gap:
                # The hint says that the entry would be a gap with `impute`.
                hint = NULL_HINT if reason.may_be_missing and is_any_there else ""
                raise self._missing_error(reason, hint)
        if SkipReason.UNMET in missing and not self.impute:
            raise VectorError("undecodable", f"an entry does not meet the conditions of where{NULL_HINT}")

    def _missing_error(self, absent: Absent, hint: str = "") -> VectorError:
        """Return the error for a path that leads to nothing."""
        path = spell_path(self._steps_of_paths[absent.path_index])
        error = missing_field_error(path, spell_path([absent.step]), absent.parent, self._value_name)
        return VectorError(error.reason, f"{error}{hint}")

    # These methods are for one path, or for several that lead to parts of a vector or to several vectors.

    def _rows_of_arrays(self, found: Found) -> Sequence[_Row]:
        """Return the vectors of a value: its innermost arrays of d numbers, or the d numbers at all paths as one.

        If null is in place of a vector, or a condition is not met, there is `SkipReason` instead of the vector: the
        record may be skipped. If some items are not `SkipReason`, and one of them is `Absent` (a path leads to
        nothing), raises `VectorError`: the path may be wrong.

        `found` has None for a null at the end of a path, and `SkipReason.NULL` for a null on the way to the end or for
        a placeholder of Debezium.
        """
        if isinstance(found, SkipReason):
            return [found]
        values = [item.value for item in found]
        is_single_number = self.dimensions == 1 and len(values) == 1
        # In place of an array, None stands for a whole vector. In place of a single number, it is a missing entry.
        is_null_vector = None in values and not is_single_number
        if SkipReason.NULL in values or is_null_vector:
            return [SkipReason.NULL]
        # `_collect` returns the numbers and arrays at the paths. It adds to `by_position` the arrays in which the place
        # of an element says which entry of the vector it is.
        by_position = list[_ReadByPosition]()
        collected = self._collect(found, by_position)
        for read in by_position:
            self._watch_places(read)  # sets a warning if an element of the array has moved since an earlier value
        items = [item for item in collected if not isinstance(item, SkipReason)]
        has_only_reasons = bool(collected) and not items
        if has_only_reasons:
            return collected
        # Elements of an array that have no vector are left out from here on: the remaining items are the vectors.
        for item in items:
            if isinstance(item, Absent):
                raise self._missing_error(item)
        return self._split_into_vectors(items)

    def _split_into_vectors(self, items: list[Any]) -> list[list[Any]]:
        """Return the entries of each vector that a value holds. `items` are the numbers and the arrays at the paths.

        If there are only arrays of length d, each is a vector. Otherwise all numbers together must be one vector of
        length d; else raises `VectorError`. Arrays of type `TensorRow` are vectors of a tensor, which are never joined.
        """
        d = self.dimensions
        arrays = [item for item in items if isinstance(item, list)]
        are_all_arrays = len(arrays) == len(items)
        if are_all_arrays and all(len(array) == d for array in arrays):
            return arrays
        entries = _flatten(items)
        # A tensor of 2 rows of d/2 numbers must not count as one vector of length d.
        has_tensor_rows = any(isinstance(array, TensorRow) for array in arrays)
        if len(entries) == d and not has_tensor_rows:
            return [entries]
        # There is no vector. What follows only chooses the message: for a single number at the only path, for one array
        # or several numbers of a wrong length, or for several arrays.
        if not arrays and len(self._steps_of_paths) == 1:
            raise VectorError("undecodable", f"expected an array of numbers, not {type_name(items[0])}")
        if len(arrays) < 2:
            raise wrong_length_error(len(entries), d)
        lengths = sorted({len(array) for array in arrays})
        sizes = str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        numbers_beside = "" if are_all_arrays else " and others beside them"
        raise VectorError("wrong_length", f"{len(arrays)} arrays of {sizes} numbers{numbers_beside}, not of {d}")

    def _collect(self, found: Sequence[Item], by_position: list["_ReadByPosition"]) -> list[Any]:
        """Return all numbers and innermost arrays that the paths lead to, in one list.

        The list has `SkipReason` in place of a vector that is not there, and `Absent` for a name that is missing.
        Adds to `by_position` the arrays in which the place of an element says which entry of the vector it is.
        """
        collected = list[Any]()
        for item in found:
            if isinstance(item.value, Elements):
                collected += self._collect_in_elements(item.value, by_position)
                continue
            # `_read_end` parses the text of an array. It decodes bytes and base64 only if there is one path, since they
            # hold all numbers of a vector; anything else it returns as it is.
            end = self._read_end(item.value, may_be_encoded=len(found) == 1)
            collected += _innermost_arrays(end) if isinstance(end, list) else [end]
        return collected

    def _collect_in_elements(self, elements: Elements, by_position: list["_ReadByPosition"]) -> list[Any]:
        """Return all numbers and innermost arrays that the paths lead to in the elements of an array.

        For example, in [{"x": 1, "y": 2}, {"x": 3, "y": 4}] the path x leads to one array of numbers, [1, 3]. The paths
        x and y lead to two arrays, [1, 2] and [3, 4].

        `by_position` gets the arrays in which the place of an element says which entry of the vector it is. Later, each
        of them is compared with the same array of earlier values, to warn if an element has moved. There are two cases:
        [{"x": 1}, {"x": 3}] is one vector, in which places matter. With d = 2, [{"x": [1, 2]}, {"x": [3, 4]}] is two
        vectors, and it does not matter which comes first.
        """
        collected = list[Any]()
        inner_by_place: dict[int, list[_ReadByPosition]] = {}  # place of an element → such arrays inside of the element
        for place, found in enumerate(elements.find_in_each()):
            if isinstance(found, SkipReason):
                collected.append(found)
                continue
            inner_by_place[place] = []
            items = self._collect(found, inner_by_place[place])
            entries = _flatten(items)
            has_several_paths = len(found) > 1
            if has_several_paths and entries:
                items = [self._entries_or_reason(entries)]  # the numbers at these paths are one array
            collected += items
        arrays = [item for item in collected if isinstance(item, list)]
        are_parts_of_vector = len(arrays) > 1 and len(_flatten(arrays)) == self.dimensions
        # The elements are one vector if they hold only single numbers, or several arrays with d numbers in all.
        is_read_by_position = not arrays or are_parts_of_vector
        if is_read_by_position:
            by_position.append(_ReadByPosition(elements))
        for place, inner in inner_by_place.items():
            if is_read_by_position:
                # The arrays in each element hold different entries of the vector. So `inside` adds the place of the
                # element to each array, and arrays of different elements are not compared.
                by_position += [read.inside(place) for read in inner]
            else:
                # Each element is a vector. The arrays in different elements hold the same entries of different
                # vectors, and are compared.
                by_position += inner
        return self._join_single_entries(collected)  # makes one array of single numbers

    def _join_single_entries(self, collected: list[Any]) -> list[Any]:
        """Make one array of the numbers that were collected in the elements of an array, unless there are also arrays.

        [1, None, 3] becomes [[1, None, 3]], in which None is a missing entry. [[1, 2], None] becomes [[1, 2], NULL]: as
        there is no single number, null is in place of a vector. [1, [2, 3]] is left as it is, for the caller to join.

        `SkipReason` stands for an element that is null as a whole (NULL) or does not meet `where` (UNMET). `Absent`
        stands for an element in which a path leads to nothing.
        """
        single_items = [item for item in collected if not isinstance(item, list)]
        has_arrays = len(single_items) < len(collected)
        are_in_place_of_vectors = all(isinstance(item, SkipReason | None) for item in single_items)
        if are_in_place_of_vectors:
            return [SkipReason.NULL if item is None else item for item in collected]
        if has_arrays:
            return collected
        # An element that is null as a whole has no entry, and is left out.
        values = [item for item in single_items if item is not SkipReason.NULL]
        # Returns the entries of a vector, or the reason why there is no vector; raises an error for a wrong path.
        return [self._entries_or_reason(values)]

    def _watch_places(self, read: "_ReadByPosition") -> None:
        """If an element of an array has moved since an earlier value, set the warning of `places`.

        The numbers in the elements become entries of a vector in the order of the array, so the vector would be mixed
        up. `read.outer_places` are the places of the elements of outer arrays that this array is inside of.
        """
        elements = read.elements
        paths = [self._steps_of_paths[index] for index in elements.branch.path_indices]
        depth = elements.find_depth(self._steps_of_paths)  # how many steps of each path lead to the array
        self.places.look_at(elements.array, paths, depth=depth, outer_places=read.outer_places)

    def _read_end(self, end: Any, *, may_be_encoded: bool) -> Any:
        """Return the array, the number or the null at the end of a path. Raises `VectorError` for an object.

        A text that begins with a bracket is parsed as an array. With `may_be_encoded`, bytes and any other text, except
        for words such as NaN, are decoded: they hold all numbers of a vector, the text in base64. Otherwise they are
        returned as they are.
        """
        # `plain_number` returns the object itself if it is not a number of MongoDB, such as {"$numberDouble": "1.5"}.
        is_object = isinstance(end, dict) and plain_number(end) is end
        if is_object:
            raise VectorError("undecodable", f"expected an array of numbers, not an object with {quote_names(end)}")
        if not isinstance(end, str | bytes) or is_number_word(end):
            return end
        should_be_decoded = may_be_encoded or begins_as_array(end)
        if not should_be_decoded:
            return end
        decoded = end if isinstance(end, bytes) else decode_text(end)
        if not isinstance(decoded, bytes):
            return decoded
        size = len(decoded)
        if self.dimensions:
            return _NumbersOfBytes(decoded, self.dimensions)
        # The dimensions are still to be found out. A multiple of 8 bytes may be floats of 4 bytes or of 8.
        if decoded and size % 8 == 0:
            sizes = f"{size // 4} numbers of 4 or {size // 8} of 8"
            raise VectorError("wrong_length", f"{size} bytes may be {sizes}: say --dimensions")
        # Only floats of 4 bytes fit. `_NumbersOfBytes` refuses empty bytes, and sizes that are not a multiple of 4.
        return _NumbersOfBytes(decoded, max(size // 4, 1))


class _ReadByPosition(NamedTuple):
    """An array whose elements are read by position: their places say which entries of a vector they hold."""

    elements: Elements
    outer_places: tuple[int, ...] = ()
    """If the array is inside of elements that are read by position as well: their places, from the outermost."""

    def inside(self, place: int) -> "_ReadByPosition":
        """Return the array as one that is inside of the element at this place of another array."""
        return self._replace(outer_places=(place, *self.outer_places))


class _NumbersOfBytes(list[float]):
    """The d numbers that bytes hold: little-endian floats of 4 or 8 bytes. Their number of bytes tells their type."""

    def __init__(self, data: bytes, dimensions: int) -> None:
        super().__init__(np.frombuffer(widen_floats(data, dimensions)).tolist())
        self.dtype = f"<f{len(data) // dimensions}"


def _flatten(items: list[Any]) -> list[Any]:
    """Return single numbers and the entries of arrays in one list. Nulls in place of vectors are left out."""
    entries = list[Any]()
    for item in items:
        if item is not SkipReason.NULL:
            entries += item if isinstance(item, list) else [item]
    return entries


def _innermost_arrays(array: list[Any]) -> list[Any]:
    """Return the innermost arrays of an array of arrays, with `SkipReason.NULL` for each null among the arrays.

    If the array holds anything but arrays and null, it is an innermost array.
    """
    has_arrays = any(isinstance(element, list) for element in array)
    has_only_arrays_and_nulls = all(isinstance(element, list | None) for element in array)
    if not has_arrays or not has_only_arrays_and_nulls:
        return [array]
    arrays = list[Any]()
    for element in array:
        arrays += [SkipReason.NULL] if element is None else _innermost_arrays(element)
    return arrays
