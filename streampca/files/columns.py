"""Chooses which columns of a file hold the numbers: those of `--field`, or all, in the order of a model's names."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from streampca.errors import InputError, list_names
from streampca.formats.errors import NULL_HINT, VectorError
from streampca.formats.fields import NumberFields
from streampca.formats.numbers import is_number_word
from streampca.formats.tensors import tensor_field_names
from streampca.formats.text import parse_cell
from streampca.formats.walk import MAX_JSON_TEXTS, parse_json_texts
from streampca.settings.field_paths import (
    Choice,
    Condition,
    Path,
    PathPart,
    get_steps,
    is_word,
    name_paths,
    parse_paths,
    spell_path,
)

_INDEX_NAME = re.compile(r"|__index_level_\d+__|Unnamed: \d+")  # what pandas calls the column of an index
_UNKNOWN_DIMENSIONS = 0  # of an object that looks at vectors of any length, and packs none


class FileOptions(NamedTuple):
    """The user's options for reading a file."""

    field: str = ""  # where the numbers are; empty: in the only array, or in all columns
    header: bool | None = None  # whether the first line of CSV is a header; None: guessed from the first lines
    separator: str | None = None  # of the cells of CSV; None: guessed from the first lines
    dimensions: int | None = None  # None: as many as the file has
    names: Sequence[str] | None = None  # of the dimensions, from a model or the setting `field`
    impute: bool = False
    where: Sequence[Condition] = ()  # rows that do not meet these conditions are skipped
    other_columns: bool | Sequence[str] = False  # further columns to read: all (True), none (False), or these
    skip_lines: int = 0  # lines of CSV before the header, or before the rows if there is none
    encoding: str | None = None  # of CSV; None: by its byte-order mark, else UTF-8


class Columns(NamedTuple):
    """Where the numbers of a row are."""

    paths: tuple[Path, ...]
    needed: Sequence[str] = ()  # the columns that must be read, to find the numbers and to test the conditions
    names: list[str] | None = None  # of the dimensions, if each path leads to one of the d numbers
    notes: Sequence[str] = ()  # for the user, on how the columns are read
    other_columns: Sequence[str] = ()  # the further columns that `FileOptions.other_columns` asks for
    are_all_null: bool = False  # in the row by which the columns were chosen, null is in place of all numbers
    where: Sequence[Condition] = ()

    def create_vector_reader(self, dimensions: int, value_name: str) -> NumberFields:
        """Create the object that finds the numbers in rows, with NaN for missing numbers."""
        return NumberFields(self.paths, dimensions, impute=True, value_name=value_name, where=self.where)

    def count_dimensions(self, row: Any, file: str) -> int:
        """Return how many numbers the vectors in this row have; 0 if it holds no vector. Raises `InputError`."""
        try:
            vector_reader = self.create_vector_reader(_UNKNOWN_DIMENSIONS, value_name="first row")
            return vector_reader.count_dimensions(row)
        except (VectorError, RecursionError) as error:  # RecursionError: arrays are nested too deeply
            raise InputError(f"{file}: {error}") from None

    def list_entry_names(self) -> set[str]:
        """Return the names of all columns and nested entries in which numbers or conditions are looked for."""
        return self.create_vector_reader(_UNKNOWN_DIMENSIONS, value_name="row").names


def choose_columns(row: Any, options: FileOptions, file: str, *, has_names: bool = True) -> Columns:
    """Choose which columns of a file hold the numbers. Raises `InputError`.

    `row` is one of the file's rows, or the JSON text of one. `has_names` is False for a file without a header, whose
    columns are called by their positions.
    """
    row = parse_json_text(row)
    columns = _find_columns(row)
    value_by_path = _choose_number_paths(row, columns, options, file)
    number_paths = tuple(value_by_path)
    names_in_file = _name_dimensions(value_by_path, options) if has_names else None
    if names_in_file and options.names:  # the numbers are read in the order of the names in the options
        number_paths = _order_by_names(number_paths, names_in_file, options.names, file)
        names: list[str] | None = list(options.names)
    else:  # the file or the options have no names, so the numbers are read in the order of the file or of --field
        names = names_in_file
    number_columns = [get_steps(number_path)[0] for number_path in number_paths]  # a path begins with a column's name
    has_paths = bool(value_by_path)
    return Columns(
        paths=number_paths,
        needed=_list_needed_columns(columns, number_columns, options.where),
        names=names,
        notes=_note_unexpected_columns(names_in_file, options),
        other_columns=_choose_other_columns(columns, number_columns, options),
        are_all_null=has_paths and all(value is None for value in value_by_path.values()),
        where=options.where,
    )


def _choose_number_paths(row: Any, columns: Mapping[str, Any], options: FileOptions, file: str) -> dict[Path, Any]:
    """Return the paths to the numbers, each with its value in the row: those of `--field`, or all columns.

    Raises `InputError`, also if the options ask for columns that the file does not have.
    """
    try:
        field_paths = parse_paths(options.field)
    except ValueError as error:
        raise InputError(f"--field {options.field}: {error}") from None
    _refuse_unknown_columns(columns, options, file)
    if field_paths:
        return _find_values_of_field(field_paths, row, options, file)
    return _choose_by_default(row, options, file)


def _list_needed_columns(
    columns: Mapping[str, Any], number_columns: Sequence[Any], where: Sequence[Condition]
) -> list[str]:
    """Return the columns that must be read, to find the numbers and to test the conditions."""
    # Columns that say how tensors are read, if the file has them, such as `shape` for the tensors in `data`.
    tensor_description_columns = tensor_field_names(number_columns)
    condition_columns = {condition.steps[0] for condition in where}
    needed = {*number_columns, *tensor_description_columns, *condition_columns}
    return [name for name in columns if name in needed]


def _choose_other_columns(
    columns: Mapping[str, Any], number_columns: Sequence[Any], options: FileOptions
) -> Sequence[str]:
    """Return the further columns to read, besides those of the numbers."""
    asked = options.other_columns
    if asked is True:  # all
        return [name for name in columns if name not in number_columns]
    return asked or ()  # these, or none


def _refuse_unknown_columns(columns: Mapping[str, Any], options: FileOptions, file: str) -> None:
    """Raise `InputError` if the options ask for columns that a file does not have."""
    if (options.field.strip() or options.where) and not columns:
        raise InputError(f"{file} has no columns: leave --field and --where away")
    if isinstance(options.other_columns, bool):  # all or none
        return
    unknown = set(options.other_columns) - columns.keys()
    if unknown:
        raise InputError(f"{file}: there is no column {min(unknown)}; there are {_quote(columns)}")


def _find_values_of_field(field_paths: Sequence[Path], row: Any, options: FileOptions, file: str) -> dict[Path, Any]:
    """Return the paths in `--field`, each with its value in the row. Raises `InputError` if a column is missing.

    With `options.impute`, a missing column is a gap instead: its value is None. There is still an error if the row
    lacks all columns, or if no column matches a pattern: a pattern does not say which dimensions are missing.
    """
    value_by_path: dict[Path, Any] = {}
    error_by_path: dict[Path, InputError] = {}  # of the paths without a column
    for field_path in field_paths:
        try:
            value_by_path |= _expand(field_path, row, file)
        except InputError as error:
            error_by_path[field_path] = error
            value_by_path[field_path] = None
    pattern_errors = [error for path, error in error_by_path.items() if any(map(_has_wildcards, path))]
    is_any_column_found = len(error_by_path) < len(field_paths)
    can_be_gaps = is_any_column_found and not pattern_errors
    if error_by_path and not (options.impute and can_be_gaps):
        first_error, *_ = pattern_errors or error_by_path.values()
        hint = NULL_HINT if can_be_gaps else ""  # advises --impute
        raise InputError(f"{first_error}{hint}")
    return value_by_path


def _order_by_names(
    paths: Sequence[Path], names: Sequence[str], learned_names: Sequence[str], file: str
) -> tuple[Path, ...]:
    """Return the paths of columns with these names in the order of the learned names. Raises `InputError`."""
    if not set(learned_names) <= set(names):
        raise InputError(
            f"{file} has the columns {list_names(names)}, but the dimensions are {list_names(learned_names)}"
        )
    path_by_name = dict(zip(names, paths, strict=True))
    return tuple(path_by_name[name] for name in learned_names)


def _note_unexpected_columns(names_in_file: Sequence[str] | None, options: FileOptions) -> list[str]:
    """Return a note on the columns that are read or on their order, if the user may expect something else; else [].

    `names_in_file` are None if the file does not name the dimensions.
    """
    learned_names = options.names  # of the dimensions, learned before; None or empty: the names of this file are taken
    if learned_names and not names_in_file:
        return ["its columns have no names, so they are read in their order"]
    if learned_names and list(learned_names) != names_in_file:
        return ["columns are read by their names"]
    if names_in_file and not options.field.strip():  # the user has not said which columns hold the numbers
        return [f"the dimensions are its columns {list_names(names_in_file)}"]
    return []


def _name_dimensions(value_by_path: Mapping[Path, Any], options: FileOptions) -> list[str] | None:
    """Return a name for each path, if each path is one dimension; otherwise None. d is `options.dimensions`.

    1. Several paths are dimensions if d of them are given, even if they lead to arrays: with d = 2,
       {"x": [1, 2, 3], "y": [4, 5, 6]} holds three vectors with the dimensions x and y.
    2. Paths to single numbers, as the paths x and y in {"x": 1, "y": 4}, are dimensions in three cases:
       - There are d paths: here, d is 2.
       - d is not known yet: here, d will be 2.
       - The model has names. The caller then keeps only the paths with these names. For example, it keeps only the
         path x if x is the model's only name.

    In other cases, the result is None. For example, the only path may lead to an array that is the whole vector. Or it
    may lead into each element of an array: with d = 2, {"s": [{"v": 1}, {"v": 2}]} holds a vector at the path `s.v`.
    """
    if not value_by_path:
        return None
    names = list(name_paths(list(value_by_path)))
    are_d_paths = options.dimensions == len(names)
    if are_d_paths and len(names) > 1:  # case 1
        return names
    lead_to_numbers = all(map(_is_number, value_by_path.values()))
    is_d_unknown = options.dimensions is None
    has_model_names = bool(options.names)
    if lead_to_numbers and (are_d_paths or is_d_unknown or has_model_names):  # case 2
        return names
    return None


def _choose_by_default(row: Any, options: FileOptions, file: str) -> dict[Path, Any]:
    """Return the columns to read if there is no `--field`, each with its value in the row. Raises `InputError`.

    1. {} if the row is a text, or an array without objects: it has no columns.
    2. The learned dimensions, if all their columns are in the row, or with `impute`, if any of them is.
    3. Otherwise all columns. Each must hold a number; only a single column may hold arrays instead.
    """
    columns = _find_columns(row)
    if not columns:
        if not isinstance(row, list | str):  # a text may be a vector in base64
            raise InputError(f"{file} holds no vectors: neither arrays nor columns")
        return {}
    learned_names = options.names or ()  # of the dimensions; empty if they are not known
    present_names = columns.keys() & set(learned_names)
    are_all_present = len(present_names) == len(learned_names)
    if present_names and (are_all_present or options.impute):
        return {(PathPart(name),): columns.get(name) for name in learned_names}  # None if the column is missing
    _refuse_columns_without_numbers(columns, options, file)
    return {(PathPart(name),): value for name, value in columns.items()}


def _refuse_columns_without_numbers(columns: Mapping[str, Any], options: FileOptions, file: str) -> None:
    """Raise `InputError` unless each column holds a number, or the only column holds arrays."""
    has_unnamed_index = any(_INDEX_NAME.fullmatch(name) for name in columns)
    hint = _suggest_options(columns, options, has_unnamed_index=has_unnamed_index)  # for the errors
    if has_unnamed_index:
        raise InputError(f"{file}: a column has no name, like the index that pandas writes: {hint}")
    is_column_of_arrays = len(columns) == 1 and all(map(_is_array, columns.values()))
    if is_column_of_arrays:
        return
    for name, value in columns.items():
        if not _is_number(value):
            raise InputError(f"{file}: column {list_names([name])} holds no numbers: {hint}")
    if options.dimensions not in (None, len(columns)):
        raise InputError(f"{file} holds vectors of {len(columns)} numbers, not of {options.dimensions}: {hint}")


def _suggest_options(columns: Mapping[str, Any], options: FileOptions, *, has_unnamed_index: bool) -> str:
    """Return which options an error suggests, if the columns cannot be read without them.

    `has_unnamed_index` says whether a column has no name, as pandas writes its index.
    """
    hint = f"say by --field which columns hold the numbers: {_quote(columns)}"
    has_number_as_name = any(parse_cell(name) is not None for name in columns)
    # If the header of CSV is really a row, names are numbers, or empty like the name of an index.
    may_names_be_row = has_unnamed_index or has_number_as_name
    if options.header is None and may_names_be_row:
        hint += ", or say --no-header if the first line of CSV is a row"
    return hint


def _expand(pattern: Path, value: Any, file: str, max_json_texts: int = MAX_JSON_TEXTS) -> dict[Path, Any]:
    """Return each path that matches the pattern, with its value. Raises `InputError` if none matches.

    The pattern `fields.*` matches `fields.temp` and `fields.hum` in `{"fields": {"temp": 1, "hum": 2}}`. If `value`
    shows no names, such as `{"fields": null}`, the pattern is returned as it is, with None: a later row may have names
    in `fields`.

    Texts inside JSON texts are parsed as JSON, too, up to `max_json_texts` levels deep.
    """
    if not pattern:
        return {(): value}
    value, max_json_texts = parse_json_texts(value, max_json_texts)
    if _shows_no_names(value):
        return {pattern: None}
    value_by_path = {}
    for step, value_at_step in _match_step(pattern[0], value, file).items():
        for further_path, found_value in _expand(pattern[1:], value_at_step, file, max_json_texts).items():
            value_by_path[(step, *further_path)] = found_value
    return value_by_path


def _shows_no_names(value: Any) -> bool:
    """Return whether a value is null, an empty array, or a text that is not JSON. Other rows may have names there.

    In the example row of an Arrow schema, [] stands for a map, and the name of the type, "string", for a text.
    """
    return value is None or value == [] or isinstance(value, str)


def _match_step(step: PathPart | Choice, value: Any, file: str) -> dict[PathPart | Choice, Any]:
    """Replace one step of a pattern by the steps in `value` that match it, each with the value to which it leads.

    In {"x1": 1, "x2": 2, "y": 3}, the step `x*` gives {x1: 1, x2: 2}. If no name matches, raises `InputError`. In
    [{"id": "a", "v": 1}], the step `[id=a]` gives {[id=a]: {"id": "a", "v": 1}}: the first element whose `id` is `a`.
    If no element matches, the step `[id=a]` gives {[id=a]: None}.
    """
    if isinstance(step, Choice):  # [key=word]
        matching = [element for element in _collect_objects(value) if is_word(element.get(step.key), step.word)]
        return {step: matching[0] if matching else None}
    columns = _find_columns(value)
    names = [step.name] if step.name in columns else []
    if not names and not step.quoted:  # a quoted name is never a pattern
        # A path cannot hold an empty name.
        names = [name for name in columns if name and fnmatchcase(name, step.name)]
    if not names:
        raise InputError(f"{file} has no column {spell_path([step.name])}; there are {_quote(columns)}")
    return {PathPart(name): columns[name] for name in names}


def refuse_remaining_wildcards(columns: Columns, file: str) -> None:
    """Raise `InputError` if a path is still a pattern, such as `labels.x*`.

    `choose_columns` has replaced patterns by the names that Arrow's schema or the first row shows. A pattern remains
    where no names are shown. A schema does not tell the names in a map or a JSON text, and a cell of CSV may be empty.
    """
    for path_to_number in columns.paths:
        parts_in_column = path_to_number[1:]  # the first part, the column, is a name by now
        for part in parts_in_column:
            # A `*` in backticks is not a wildcard.
            if isinstance(part, PathPart) and not part.quoted and {"*", "?"} & set(part.name):
                pattern = spell_path(get_steps(path_to_number))
                raise InputError(f"{file}: which names fit the pattern {pattern} is not known: write each name")


def parse_json_text(value: Any) -> Any:
    """Return the value that a text holds as JSON; any other value as it is."""
    parsed, _ = parse_json_texts(value, MAX_JSON_TEXTS)
    return parsed


def _has_wildcards(step: PathPart | Choice) -> bool:
    """Return whether a step of a path has wildcards, so that it may match several names."""
    return isinstance(step, PathPart) and not step.quoted and not set("*?[").isdisjoint(step.name)


def _find_columns(value: Any) -> Mapping[str, Any]:
    """Return the fields of an object, or of all objects in nested arrays: their values by name.

    If several objects have a field of the same name, the value in the first object counts.
    """
    columns: dict[str, Any] = {}
    for found_object in _collect_objects(value):
        columns = found_object | columns  # the values in `columns`, from earlier objects, win
    return columns


def _collect_objects(value: Any) -> list[dict[str, Any]]:
    """Return an object in a list, or the objects in nested arrays."""
    if isinstance(value, list):
        return [inner for element in value for inner in _collect_objects(element)]
    return [value] if isinstance(value, dict) else []


def _is_number(value: Any) -> bool:
    """Return whether a value is a number, or null in place of one."""
    return value is None or isinstance(value, int | float) or is_number_word(value)


def _is_array(value: Any) -> bool:
    """Return whether a value is an array that holds no objects."""
    return isinstance(value, list) and not _find_columns(value)


def _quote(columns: Mapping[str, Any]) -> str:
    """Return the names of the columns as one would write them in `--field`."""
    return list_names([spell_path([name]) if name else '""' for name in columns])
