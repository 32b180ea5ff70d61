"""Files that are renewed while a process runs: certificates, tokens, settings."""

from pathlib import Path


def changed_at(path: Path) -> tuple[int, int] | None:
    """What tells a file from the one that replaces it; None if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino
