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

_UNNAMED = re.compile(r"|__index_level_\d+__|Unnamed: \d+")  # pandas' names for an index


class FileOptions(NamedTuple):
    """What is read from a file."""

    field: str = ""  # where the numbers are; empty: in the only array, or in all columns
    header: bool | None = None  # whether the first line of CSV is one; None: as it looks
    separator: str | None = None  # of CSV; None: as it looks
    dimensions: int | None = None  # None: as many as the file has
    names: Sequence[str] | None = None  # of the dimensions that a model has learned
    impute: bool = False
    others: bool | Sequence[str] = False  # further columns of a table: all, or these


class Columns(NamedTuple):
    """Where the numbers of a row are."""

    paths: tuple[Path, ...]
    top: Sequence[str] = ()  # the columns of the table that the paths begin with
    names: list[str] | None = None  # of the dimensions, where each path leads to one number
    said: Sequence[str] = ()  # what a user should see of it
    others: Sequence[str] = ()  # the further columns
    is_null: bool = False  # the row has null in their place

    def dimensions_in(self, row: Any, path: str) -> int:
        """How many numbers a vector of this row has; 0 if it holds none. Raises `InputError`."""
        try:
            return NumberFields(self.paths, 0, impute=True, value_name="first row").dimensions_in(row)
        except (VectorError, RecursionError) as error:
            raise InputError(f"{path}: {error}") from None


def resolved(row: Any, options: FileOptions, path: str, *, named: bool = True) -> Columns:
    """The columns of a row, or of one that is like all rows. Raises `InputError`.

    Without `named`, the names of a file are but numbers.
    """
    try:
        asked = paths_of(options.field)
    except ValueError as error:
        raise InputError(f"--field {options.field}: {error}") from None
    inside = _columns_in(row)
    if asked and not inside:
        raise InputError(f"{path} has no columns: leave --field away")
    if isinstance(options.others, Sequence) and (missing := set(options.others) - inside.keys()):
        raise InputError(f"{path}: there is no column {min(missing)}; there are {_shown(inside)}")
    found = [each for one in asked for each in _matching(one, row, path)] if asked else _default(row, options, path)
    leaves = dict(found)
    is_named = named and (options.names or options.dimensions in (None, len(leaves)))
    names = list(names_of(list(leaves))) if is_named and leaves and all(map(_is_number, leaves.values())) else None
    said = [] if asked or names is None else [f"the dimensions are its columns {listed(names)}"]
    paths = tuple(leaves)
    if names and options.names:
        if not set(options.names) <= set(names):
            raise InputError(
                f"{path} has the columns {listed(names)}, but the dimensions learned are {listed(options.names)}"
            )
        if list(options.names) != names:
            said = ["columns are read by the names learned"]
        path_of = dict(zip(names, paths, strict=True))
        paths, names = tuple(path_of[name] for name in options.names), list(options.names)
    elif options.names:
        said.append("its columns have no names, so they are read in their order")
    taken = dict.fromkeys(at[0].name for at in paths)
    others = [name for name in inside if name not in taken] if options.others is True else options.others or ()
    is_null = bool(leaves) and all(leaf is None for leaf in leaves.values())
    return Columns(paths, list(taken), names, said, others, is_null)


def _default(row: Any, options: FileOptions, path: str) -> list[tuple[Path, Any]]:
    """The columns without `--field`; none if the row is an array."""
    columns = _columns_in(row)
    if not columns and not isinstance(row, list):
        raise InputError(f"{path} holds no vectors: neither arrays nor columns")
    if options.names and set(options.names) <= columns.keys():
        return [((Part(name),), columns[name]) for name in options.names]
    hint = f"name by --field where the numbers are, of {_shown(columns)}"
    if options.header is None and any(_UNNAMED.fullmatch(name) or parse_cell(name) is not None for name in columns):
        hint += ", or say --no-header if the first line of CSV is a row"
    if any(_UNNAMED.fullmatch(name) for name in columns):
        raise InputError(f"{path}: a column has no name, as an index that pandas wrote: {hint}")
    is_array = len(columns) == 1 and all(isinstance(leaf, list) and not _columns_in(leaf) for leaf in columns.values())
    if not is_array and (other := [name for name, leaf in columns.items() if not _is_number(leaf)]):
        raise InputError(f"{path}: column {listed(other[:1])} holds no numbers: {hint}")
    if not is_array and columns and options.dimensions not in (None, len(columns)):
        raise InputError(f"{path} holds vectors of {len(columns)} numbers, not of {options.dimensions}: {hint}")
    return [((Part(name),), leaf) for name, leaf in columns.items()]


def _matching(path: Path, value: Any, file: str) -> list[tuple[Path, Any]]:
    """The paths in a value that a path means, whose parts may be patterns, with what is there. Raises `InputError`."""
    if not path or value is None or value == []:
        return [(path, None if path else value)]
    (name, is_quoted), columns = path[0], _columns_in(value)
    is_exact = is_quoted or name in columns
    names = [each for each in columns if each == name or (not is_exact and each and fnmatchcase(each, name))]
    if not names:
        raise InputError(f"{file} has no column {spelled([name])}; there are {_shown(columns)}")
    return [((Part(n), *rest), leaf) for n in names for rest, leaf in _matching(path[1:], columns[n], file)]


def _columns_in(value: Any) -> Mapping[str, Any]:
    """The entries of an object, or of the first in arrays."""
    while isinstance(value, list):
        value = next((element for element in value if isinstance(element, dict | list)), None)
    return value if isinstance(value, dict) else {}


def _is_number(leaf: Any) -> bool:
    return leaf is None or isinstance(leaf, int | float) or is_number_word(leaf)


def _shown(columns: Mapping[str, Any]) -> str:
    """The names of the columns as `--field` takes them."""
    return listed([spelled([name]) if name else '""' for name in columns])
