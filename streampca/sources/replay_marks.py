"""Marks in a dead-letter topic: which of its letters were replayed.

A mark is a record of the dead-letter topic itself, in the same partition as the letters and written in the transaction
that sends them. So the two cannot disagree, and a log never loses a mark before its letters.
"""

import bisect
import json
from collections.abc import Iterable, Sequence

from streampca.sources.dead_letter_headers import Headers
from streampca.stream.record import Record

_HEADER = "streampca.replayed"
_REPLAYS = "streampca.replays"
_LETTER = "streampca.dead-letter"

Range = tuple[int, int]  # the first and the last offset


def mark_of(offsets: Iterable[int]) -> tuple[bytes, Headers]:
    """The value and the headers of a mark for these offsets."""
    return json.dumps(merged([(offset, offset) for offset in offsets])).encode(), [(_HEADER, b"offsets")]


def marked_in(record: Record) -> list[Range] | None:
    """The offsets in a mark; None if the record is not a mark."""
    if [name for name, _ in record.headers] != [_HEADER]:
        return None
    try:
        return [(int(first), int(last)) for first, last in json.loads(record.value or b"")]
    except (ValueError, TypeError):
        return None


def replay_headers(own: Headers, topic: str, partition: int, offset: int) -> Headers:
    """The headers of a replayed record: its own, how often it was replayed, and where its dead letter lies."""
    kept = [header for header in own if header[0] not in (_REPLAYS, _LETTER)]
    letter = f"{topic}/{partition}/{offset}".encode()
    return [*kept, (_REPLAYS, str(replays_in(own) + 1).encode()), (_LETTER, letter)]


def replays_in(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """How often a record was replayed."""
    found = [value or b"" for name, value in headers if name == _REPLAYS]
    return int(found[-1]) if found and found[-1].isdigit() else 0


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The ranges in order, adjacent ones joined."""
    joined: list[Range] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def contains(ranges: Sequence[Range], offset: int) -> bool:
    """Whether an offset is in one of these merged ranges."""
    index = bisect.bisect_right(ranges, (offset, 2**63)) - 1
    return index >= 0 and ranges[index][0] <= offset <= ranges[index][1]
