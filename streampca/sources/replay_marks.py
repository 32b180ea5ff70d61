"""Marks in a dead-letter topic: which of its letters were replayed.

A mark is a record of the dead-letter topic itself, in the same partition as the letters and written in the transaction
that sends them. So the two cannot disagree, and a log never loses a mark before its letters.
"""

import json
from collections.abc import Iterable

from streampca.fold.record import Record
from streampca.sources.dead_letter_headers import Headers

_HEADER = "streampca.replayed"
_REPLAYS = "streampca.replays"
_LETTER = "streampca.dead-letter"


def mark_of(offsets: Iterable[int]) -> tuple[bytes, Headers]:
    """The value and the headers of a mark for these offsets."""
    return json.dumps(list(offsets)).encode(), [(_HEADER, b"offsets")]


def marked_in(record: Record) -> list[int] | None:
    """The offsets in a mark; None if the record is not a mark."""
    if [name for name, _ in record.headers] != [_HEADER]:
        return None
    try:
        return [int(offset) for offset in json.loads(record.value or b"")]
    except (ValueError, TypeError):
        return None


def replay_headers(own: Headers, topic: str, partition: int, offset: int) -> Headers:
    """The headers of a replayed record: its own, how often it was replayed, and where its dead letter lies."""
    before = [value or b"" for name, value in own if name == _REPLAYS]
    replays = int(before[-1]) if before and before[-1].isdigit() else 0
    kept = [header for header in own if header[0] not in (_REPLAYS, _LETTER)]
    letter = f"{topic}/{partition}/{offset}".encode()
    return [*kept, (_REPLAYS, str(replays + 1).encode()), (_LETTER, letter)]
