"""Files that are renewed while a process runs: certificates, tokens, settings."""

from collections.abc import Iterable
from pathlib import Path


def changed_at(path: Path) -> tuple[int, int] | None:
    """What tells a file from the one that replaces it; None if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino


def versions(files: Iterable[Path]) -> list[tuple[int, int] | None]:
    """Return `changed_at` of each file."""
    return [changed_at(path) for path in files]
