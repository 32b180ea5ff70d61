"""Which columns of a file hold the numbers: `--field`, or all of them, in the order of a model's names."""

import base64
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

from streampca.errors import InputError
from streampca.formats.fields import NumberFields
from streampca.formats.packing import VectorError, is_number_word
from streampca.settings.field_paths import Part, Path, names_of, paths_of, spelled

Tree: TypeAlias = Mapping[str, Any] | str
"""The columns of a file, and those inside of them; at the ends what they hold: `NUMBER`, `ARRAY`, or another type."""

NUMBER, NULL, ARRAY = "number", "null", "array"
NUMBERS = (NUMBER, NULL)
_UNNAMED = re.compile(r"|__index_level_\d+__|Unnamed: \d+")  # pandas' names for an index
_MAX_SHOWN = 20


class FileOptions(NamedTuple):
    """What a user says about files."""

    field: str = ""  # where the numbers are; empty: in the only array, or in all columns
    header: bool | None = None  # whether the first line of CSV is one; None: as it looks
    separator: str | None = None  # of CSV; None: as it looks


class Wanted(NamedTuple):
    """What is to be read from a file."""

    options: FileOptions = FileOptions()
    dimensions: int | None = None  # None: as many as the file has
    names: Sequence[str] | None = None  # of the dimensions that a model has learned
    impute: bool = False
    others: bool | Sequence[str] = False  # further columns of a table: all, or these


class Columns(NamedTuple):
    """Where the numbers of a row are."""

    paths: tuple[Path, ...]
    names: tuple[str, ...] | None  # of the dimensions, where each path leads to one number
    said: str  # what a user should see of it

    def named(self, dimensions: int) -> tuple[str, ...] | None:
        """The names of this number of dimensions."""
        return self.names if self.names and len(self.names) == dimensions else None

    @property
    def top(self) -> list[str]:
        """The columns of the table that the paths begin with."""
        return list(dict.fromkeys(path[0].name for path in self.paths if path))


def resolved(tree: Tree, wanted: Wanted, path: str, *, named: bool = True) -> Columns:
    """The columns that are wanted. Raises `InputError`. Without `named`, the names of a file are but numbers."""
    try:
        asked = paths_of(wanted.options.field)
    except ValueError as error:
        raise InputError(f"--field {wanted.options.field}: {error}") from None
    if isinstance(tree, str) and asked:
        raise InputError(f"{path} has no columns: leave --field away")
    if isinstance(wanted.others, Sequence) and (missing := set(wanted.others) - set(tree)):
        raise InputError(f"{path}: there is no column {min(missing)}; there are {shown(tree)}")
    chosen = [at for one in asked for at in _matching(one, tree, path)] if asked else _default(tree, wanted, path)
    is_named = named and bool(chosen) and all(kind_at(tree, at) in NUMBERS for at in chosen)
    names = names_of(chosen) if is_named else None
    said = [] if asked or names is None else [f"the dimensions are its columns {_listed(names)}"]
    if names and wanted.names:
        if not set(wanted.names) <= set(names):
            texts = f"the columns {_listed(names)}, but the dimensions learned are {_listed(wanted.names)}"
            raise InputError(f"{path} has {texts}")
        if list(wanted.names) != list(names):
            said = ["columns are read by the names learned"]
        chosen, names = [chosen[names.index(name)] for name in wanted.names], tuple(wanted.names)
    elif wanted.names:
        said.append("its columns have no names, so they are read in their order")
    return Columns(tuple(chosen), names, "; ".join(said))


def shown(tree: Tree) -> str:
    """The names of the columns as `--field` takes them."""
    return _listed([spelled([name]) if name else '""' for name in tree]) if not isinstance(tree, str) else tree


def _listed(names: Sequence[str]) -> str:
    text = ", ".join(name[:64] if name.isprintable() else repr(name[:64]) for name in names[:_MAX_SHOWN])
    return text + (f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else "")


def _default(tree: Tree, wanted: Wanted, path: str) -> list[Path]:
    if isinstance(tree, str):
        if tree != ARRAY:
            raise InputError(f"{path} holds no vectors: its rows are neither arrays nor objects")
        return []
    if wanted.names and set(wanted.names) <= tree.keys():
        return [(Part(name, quoted=True),) for name in wanted.names]
    hint = f"name by --field where the numbers are, of {shown(tree)}"
    if any(_UNNAMED.fullmatch(name) for name in tree):
        row = ", or say --no-header if the first line is a row" if "" in tree else ""
        raise InputError(f"{path}: a column has no name, as an index that pandas wrote: {hint}{row}")
    if list(tree.values()) != [ARRAY] and (other := [name for name in tree if tree[name] not in NUMBERS]):
        raise InputError(f"{path}: column {_listed(other[:1])} holds no numbers: {hint}")
    return [(Part(name, quoted=True),) for name in tree]


def _matching(path: Path, tree: Tree, file: str) -> list[Path]:
    """The paths in the tree that a path means, whose parts may be patterns. Raises `InputError` if there is none."""
    part, rest = path[0], path[1:]
    inside: Mapping[str, Tree] = {} if isinstance(tree, str) else tree
    is_exact = part.quoted or part.name in inside
    names = [name for name in inside if name == part.name or (not is_exact and name and fnmatchcase(name, part.name))]
    if not names:
        raise InputError(f"{file} has no column {spelled([part.name])}; there are {shown(tree)}")
    inner = {name: _matching(rest, inside[name], file) if rest else [()] for name in names}
    return [(Part(name, quoted=True), *more) for name in names for more in inner[name]]


def kind_at(tree: Tree, path: Path) -> Tree:
    """What the columns of a tree hold at a path."""
    for part in path:
        tree = tree[part.name]  # type: ignore[index]
    return tree


def tree_of(value: Any) -> Tree:
    """The columns of a JSON document."""
    if isinstance(value, dict):
        return {name: tree_of(inner) for name, inner in value.items()}
    if isinstance(value, list):
        inner = next((element for element in value if isinstance(element, dict)), None)
        return ARRAY if inner is None else tree_of(inner)
    if value is None:
        return NULL
    return NUMBER if isinstance(value, int | float) or is_number_word(value) else "text"


def dimensions_in(value: Any, columns: Columns, path: str) -> int:
    """How many numbers a vector has, by the first row that has one. Raises `InputError`."""
    if len(columns.paths) == 1 and (size := _bytes_in(reduce(_inside, columns.paths[0], value))):
        if size % 8 == 0:
            texts = f"{size} bytes may be {size // 4} numbers of 4 or {size // 8} of 8: say --dimensions"
            raise InputError(f"{path}: {texts}")
        return size // 4
    try:
        dimensions = NumberFields(columns.paths, 1, impute=True, kind="first row").dimensions_in(value)
    except VectorError as error:
        raise InputError(f"{path}: {error}") from None
    if not dimensions:
        raise InputError(f"{path}: the first row holds an empty array")
    return dimensions


def _inside(value: Any, part: Part) -> Any:
    return value.get(part.name) if isinstance(value, dict) else None


def _bytes_in(leaf: Any) -> int:
    """How many bytes with numbers a value is, as it stands or in base64; 0 if it is none."""
    try:
        return len(leaf if isinstance(leaf, bytes) else base64.b64decode(leaf, validate=True))
    except (TypeError, ValueError):
        return 0
