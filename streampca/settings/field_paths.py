"""The setting `field`: paths to the numbers of a record, such as `payload.embedding` or `temp,hum`.

Commas separate paths, and dots the parts of a path. A name with a dot or a comma stands in backticks.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

_PART = re.compile(r"\s*(?:`([^`]+)`|([^`.,\s](?:[^`.,]*[^`.,\s])?))\s*([.,])")
_PLAIN_NAME = re.compile(r"[^`.,\s](?:[^`.,]*[^`.,\s])?")


class Part(NamedTuple):
    """A name in a path. In backticks (`quoted`) it is never a pattern."""

    name: str
    quoted: bool = False


Path: TypeAlias = tuple[Part, ...]


def paths_of(field: str) -> tuple[Path, ...]:
    """Return the paths in the text of the setting; none if it is empty. Raises `ValueError`."""
    if not field.strip():
        return ()
    text = f"{field},"  # with the comma, each part ends with a separator
    if _PART.sub("", text):
        raise ValueError(f"{field!r} is not a path or several: write names like temp,hum or payload.embedding")
    paths: list[Path] = []
    parts: Path = ()
    for quoted, name, separator in _PART.findall(text):
        parts += (Part(quoted or name, quoted=bool(quoted)),)
        if separator == ",":
            paths.append(parts)
            parts = ()
    distinct = {names_in(path) for path in paths}
    if len(distinct) < len(paths):
        raise ValueError("it names a path twice")
    return tuple(paths)


def names_of(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return a name for each path: its shortest ending that no other path has, often the last part."""
    endings_by_path = [[".".join(names_in(path)[-length:]) for length in range(1, len(path) + 1)] for path in paths]
    path_count = Counter(chain.from_iterable(endings_by_path))
    names = []
    for endings in endings_by_path:
        unique = [ending for ending in endings if path_count[ending] == 1]
        whole_path = endings[-1]  # it names the path if all its endings are also endings of another path
        names.append(unique[0] if unique else whole_path)
    return tuple(names)


def dimension_names(field: str, dimensions: int) -> list[str] | None:
    """Return the names of the dimensions, or None unless `field` has a path for each of two or more dimensions."""
    paths = paths_of(field)
    has_path_for_each = len(paths) == dimensions
    return list(names_of(paths)) if has_path_for_each and dimensions > 1 else None


def spelled(names: Sequence[str]) -> str:
    """Return the text of the path with these names, in backticks where a name needs them."""
    return ".".join(name if _PLAIN_NAME.fullmatch(name) else f"`{name}`" for name in names)


def names_in(path: Path) -> tuple[str, ...]:
    """Return the names of a path's parts."""
    return tuple(part.name for part in path)
