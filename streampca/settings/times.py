"""Times in settings and options: ISO 8601."""

from datetime import datetime


def milliseconds_of(text: str) -> int:
    """Milliseconds since 1970; a time without an offset is local. Raises `ValueError`."""
    return int(datetime.fromisoformat(text).timestamp() * 1000)
