"""Where the numbers of a record are: the setting `field`, one or more paths such as `payload.embedding` or `temp,hum`.

Dots separate the parts of a path, commas the paths; a name with a dot or a comma stands in backticks.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

_PART = re.compile(r"\s*(?:`([^`]+)`|([^`.,\s](?:[^`.,]*[^`.,\s])?))\s*([.,])")
_PLAIN_NAME = re.compile(r"[^`.,\s](?:[^`.,]*[^`.,\s])?")


class Part(NamedTuple):
    """A name in a path; one in backticks (`quoted`) is never a pattern."""

    name: str
    quoted: bool = False


Path: TypeAlias = tuple[Part, ...]


def paths_of(field: str) -> tuple[Path, ...]:
    """The paths that a text names; none if it is empty. Raises `ValueError`."""
    paths: list[Path] = [()]
    text = f"{field}," if field.strip() else ""
    if _PART.sub("", text):
        raise ValueError(f"{field!r} is not a path or several: write names like temp,hum or payload.embedding")
    for quoted, name, separator in _PART.findall(text):
        paths[-1] += (Part(quoted or name, bool(quoted)),)
        if separator == ",":
            paths.append(())
    if len({names_in(path) for path in paths}) < len(paths):
        raise ValueError("it names a path twice")
    return tuple(paths[:-1])


def names_of(paths: Sequence[Path]) -> tuple[str, ...]:
    """A name for each path: its last part or, where several have the same, the shortest endings that differ."""
    endings = [[".".join(names_in(path)[-length:]) for length in range(1, len(path) + 1)] for path in paths]
    counts = Counter(chain.from_iterable(endings))
    return tuple(next((one for one in of_path if counts[one] == 1), of_path[-1]) for of_path in endings)


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
