"""Where the numbers of a record are: the setting `field`, one or more paths such as `payload.embedding` or `temp,hum`.

Dots separate the parts of a path, commas the paths; a name with a dot or a comma stands in backticks.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

_PART = re.compile(r"\s*(?:`([^`]+)`|([^`.,]*[^`.,\s]))\s*")
_PLAIN_NAME = re.compile(r"[^`.,\s](?:[^`.,]*[^`.,\s])?")


class Part(NamedTuple):
    """A name in a path; one in backticks (`quoted`) is never a pattern."""

    name: str
    quoted: bool = False


Path: TypeAlias = tuple[Part, ...]


def paths_of(field: str) -> tuple[Path, ...]:
    """The paths that a text names; none if it is empty. Raises `ValueError`."""
    paths, parts, position = list[Path](), list[Part](), 0
    while field.strip():
        if (found := _PART.match(field, position)) is None:
            raise ValueError(f"not a path after {field[:position]!r}: write names like temp,hum or payload.embedding")
        parts.append(Part(found[1] or found[2], quoted=found[1] is not None))
        position, separator = found.end() + 1, field[found.end() : found.end() + 1]
        if separator == ".":
            continue
        if separator not in (",", ""):
            raise ValueError(f"not a path after {field[: position - 1]!r}: a dot or a comma must follow")
        paths.append(tuple(parts))
        parts = []
        if not separator:
            break
    if len({names_in(path) for path in paths}) < len(paths):
        raise ValueError("it names a path twice")
    return tuple(paths)


def names_of(paths: Sequence[Path]) -> tuple[str, ...]:
    """A name for each path: its last part or, where several have the same, the shortest endings that differ."""
    lengths = [1] * len(paths)
    while True:
        names = [".".join(names_in(path)[-length:]) for path, length in zip(paths, lengths, strict=True)]
        counts = Counter(names)
        longer = [
            length + (counts[name] > 1 and length < len(path))
            for path, name, length in zip(paths, names, lengths, strict=True)
        ]
        if longer == lengths:
            return tuple(names)
        lengths = longer


def dimension_names(field: str, dimensions: int) -> list[str] | None:
    """The names of the dimensions where `field` has a path for each, and there are several; else None."""
    paths = paths_of(field)
    return list(names_of(paths)) if len(paths) == dimensions > 1 else None


def spelled(names: Sequence[str]) -> str:
    """The path of these names, in backticks where that is necessary."""
    return ".".join(name if _PLAIN_NAME.fullmatch(name) else f"`{name}`" for name in names)


def names_in(path: Path) -> tuple[str, ...]:
    """The names of a path's parts."""
    return tuple(part.name for part in path)


def can_be_spelled(name: str) -> bool:
    """Return whether a path may contain this name."""
    return bool(name) and "`" not in name
