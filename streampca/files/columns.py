"""Columns of a table, by name."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from streampca.errors import InputError


def matching(names: Sequence[str], pattern: str, path: object) -> tuple[str, ...]:
    """The names that are or match a pattern, such as `embedding` or `feature_*`. Raises `InputError` if none does."""
    if not (columns := tuple(name for name in names if name == pattern or fnmatchcase(name, pattern))):
        raise InputError(f"{path} has no column {pattern}; there are {', '.join(names)}")
    return columns
