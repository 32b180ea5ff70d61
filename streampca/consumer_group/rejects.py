"""Errors that stop a member: a bad record with no dead-letter topic, or settings that reject everything."""

from collections import Counter

from streampca.errors import BadRecordError, RejectLimitError
from streampca.formats.batch import Reject
from streampca.sources.events import Vectors

_FIRST = 100  # records: if all of them fail, a setting is wrong


def bad_record(topic: str, event: Vectors, reject: Reject) -> BadRecordError:
    """The error of a member that stops at a rejected record."""
    return BadRecordError(
        f"partition {event.partition} of {topic}, offset {event.records[reject.index].offset}: {reject.message} "
        f"({reject.reason}); set dead_letter_topic to send such records there, or on_bad_record=skip; "
        "if all records are like this, correct format, field or dimensions"
    )


def refuse_wrong_settings(topic: str, event: Vectors, settings: str) -> None:
    """Raise `RejectLimitError` if the first 100 records of a batch were all rejected.

    For members that have not accepted any record yet. `settings` are those that may be wrong.
    """
    rejects = event.decoded.rejects[:_FIRST]
    if len(rejects) < _FIRST or rejects[-1].index >= _FIRST:
        return
    ((reason, count),) = Counter(reject.reason for reject in rejects).most_common(1)
    example = next(reject for reject in rejects if reject.reason == reason)
    offset, at = event.records[0].offset, event.records[example.index].offset
    raise RejectLimitError(
        f"partition {event.partition} of {topic}: {_FIRST} records in a row were rejected, from offset {offset} on; "
        f"{'all' if count == _FIRST else f'{count} of them'} as {reason}, such as offset {at}: {example.message}; "
        f"correct the settings ({settings}) or the producer and start again, which reads all of them again; "
        "or leave such records out: on_bad_record=skip, without a dead_letter_topic"
    )
