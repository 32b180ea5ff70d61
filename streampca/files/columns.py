"""Which columns of a file hold the numbers: `--field`, or all of them, in the order of a model's names."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from streampca.errors import InputError, listed
from streampca.formats.csv import parse_cell
from streampca.formats.errors import VectorError
from streampca.formats.fields import NumberFields
from streampca.formats.numbers import is_number_word
from streampca.settings.field_paths import Part, Path, names_of, paths_of, spelled

_INDEX_NAME = re.compile(r"|__index_level_\d+__|Unnamed: \d+")  # what pandas calls the column of an index


class FileOptions(NamedTuple):
    """What is read from a file."""

    field: str = ""  # where the numbers are; empty: in the only array, or in all columns
    header: bool | None = None  # whether the first line of CSV is a header; None: found out from the first lines
    separator: str | None = None  # of the cells of CSV; None: found out from the first lines
    dimensions: int | None = None  # None: as many as the file has
    names: Sequence[str] | None = None  # of the dimensions that a model has learned
    impute: bool = False
    others: bool | Sequence[str] = False  # further columns of a table: all, or these


class Columns(NamedTuple):
    """Where the numbers of a row are."""

    paths: tuple[Path, ...]
    with_numbers: Sequence[str] = ()  # the columns of the table that the paths begin with
    names: list[str] | None = None  # of the dimensions, where each path leads to one number
    notes: Sequence[str] = ()  # for the user, on how the columns are read
    others: Sequence[str] = ()  # the further columns
    is_null: bool = False  # the row has null in place of all numbers

    def dimensions_in(self, row: Any, path: str) -> int:
        """Return how many numbers a vector of this row has; 0 if the row holds none. Raises `InputError`."""
        try:
            return NumberFields(self.paths, 0, impute=True, value_name="first row").dimensions_in(row)
        except (VectorError, RecursionError) as error:
            raise InputError(f"{path}: {error}") from None


def choose_columns(row: Any, options: FileOptions, path: str, *, named: bool = True) -> Columns:
    """Choose where the numbers are, by one row of a file, or by an example that is like all rows.

    If the file does not name its columns, so that the names in `row` are only their numbers, `named` must be False.
    Raises `InputError`.
    """
    try:
        asked = paths_of(options.field)
    except ValueError as error:
        raise InputError(f"--field {options.field}: {error}") from None
    columns = _columns_in(row)
    if asked and not columns:
        raise InputError(f"{path} has no columns: leave --field away")
    unknown = set() if isinstance(options.others, bool) else set(options.others) - columns.keys()
    if unknown:
        raise InputError(f"{path}: there is no column {min(unknown)}; there are {_quote(columns)}")

    values = {} if asked else _choose_by_default(row, options, path)  # what is at each chosen path
    for pattern in asked:
        values |= _expand(pattern, row, path)
    paths = tuple(values)
    notes = []
    names = _name_dimensions(values, options) if named else None
    if names and not asked:
        notes = [f"the dimensions are its columns {listed(names)}"]
    if names and options.names:
        if not set(options.names) <= set(names):
            raise InputError(
                f"{path} has the columns {listed(names)}, but the dimensions learned are {listed(options.names)}"
            )
        if list(options.names) != names:
            notes = ["columns are read by the names learned"]
        path_by_name = dict(zip(names, paths, strict=True))
        paths = tuple(path_by_name[name] for name in options.names)
        names = list(options.names)
    elif options.names:
        notes.append("its columns have no names, so they are read in their order")

    with_numbers = dict.fromkeys(parts[0].name for parts in paths)
    others = options.others or ()
    if others is True:
        others = [name for name in columns if name not in with_numbers]
    is_null = bool(values) and all(value is None for value in values.values())
    return Columns(paths, list(with_numbers), names, notes, others, is_null)


def _name_dimensions(values: Mapping[Path, Any], options: FileOptions) -> list[str] | None:
    """Return a name for each dimension, if each has a path; else None. `values` are what is at the paths."""
    # Of a model with names, only the columns that have these names are read: there may be more.
    may_be_dimensions = options.names or options.dimensions in (None, len(values))
    if values and may_be_dimensions and all(map(_is_number, values.values())):
        return list(names_of(list(values)))
    return None


def _choose_by_default(row: Any, options: FileOptions, path: str) -> dict[Path, Any]:
    """Return the paths of the columns to read without `--field`, with what is there. If the row is an array: none."""
    columns = _columns_in(row)
    if not columns and not isinstance(row, list):
        raise InputError(f"{path} holds no vectors: neither arrays nor columns")
    if options.names and set(options.names) <= columns.keys():
        return {(Part(name),): columns[name] for name in options.names}
    hint = f"name by --field where the numbers are, of {_quote(columns)}"
    has_index = any(_INDEX_NAME.fullmatch(name) for name in columns)
    if options.header is None and (has_index or any(parse_cell(name) is not None for name in columns)):
        hint += ", or say --no-header if the first line of CSV is a row"
    if has_index:
        raise InputError(f"{path}: a column has no name, as an index that pandas wrote: {hint}")
    is_array = len(columns) == 1 and all(_is_array(value) for value in columns.values())
    if columns and not is_array:
        not_numbers = [name for name, value in columns.items() if not _is_number(value)]
        if not_numbers:
            raise InputError(f"{path}: column {listed(not_numbers[:1])} holds no numbers: {hint}")
        if options.dimensions not in (None, len(columns)):
            raise InputError(f"{path} holds vectors of {len(columns)} numbers, not of {options.dimensions}: {hint}")
    return {(Part(name),): value for name, value in columns.items()}


def _expand(pattern: Path, value: Any, file: str) -> dict[Path, Any]:
    """Return each path in the value that matches the pattern, with what lies at its end.

    In `{"fields": {"temp": 1, "hum": 2}}` the pattern `fields.*` matches `fields.temp` and `fields.hum`. A part in
    backticks matches only its own name. Where the value is empty, the rest of the pattern stays as it is, with None.
    Raises `InputError` if no column matches.
    """
    if not pattern:
        return {(): value}
    if value is None or value == []:  # nothing is there that could be expanded
        return {pattern: None}
    name, is_quoted = pattern[0]
    columns = _columns_in(value)
    if name in columns:
        names = [name]
    else:
        names = [each for each in columns if each and not is_quoted and fnmatchcase(each, name)]
    if not names:
        raise InputError(f"{file} has no column {spelled([name])}; there are {_quote(columns)}")
    found = {}
    for each in names:
        for rest, leaf in _expand(pattern[1:], columns[each], file).items():
            found[(Part(each), *rest)] = leaf
    return found


def _columns_in(value: Any) -> Mapping[str, Any]:
    """Return the entries of an object, or of the first object in arrays; none if there is no object."""
    while isinstance(value, list):
        value = next((element for element in value if isinstance(element, dict | list)), None)
    return value if isinstance(value, dict) else {}


def _is_number(value: Any) -> bool:
    """Return whether a value is a number, or null in place of one."""
    return value is None or isinstance(value, int | float) or is_number_word(value)


def _is_array(value: Any) -> bool:
    """Return whether a value is an array that holds no objects."""
    return isinstance(value, list) and not _columns_in(value)


def _quote(columns: Mapping[str, Any]) -> str:
    """Return the names of the columns as `--field` takes them."""
    return listed([spelled([name]) if name else '""' for name in columns])
