"""Writes files so that nobody ever sees an incomplete one."""

import secrets
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Write a file in one atomic step. If that fails with an `OSError`, an earlier file is left as it was."""
    temporary = path.with_name(f"~{secrets.token_hex(8)}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        error.filename = str(path)  # instead of the temporary file, whose name says nothing to the user
        raise
