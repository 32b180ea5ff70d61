"""`streampca dead-letters`: shows the dead-letter topic by reason, and sends rejected records to their topic again."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from streampca.cli.console import console, format_by_partition, iso_time, table
from streampca.errors import SettingsError, SourceError
from streampca.formats.codec import REASONS
from streampca.settings.commands import DeadLettersSettings
from streampca.sources.base import OutgoingFields, TransactionFailedError
from streampca.sources.clients import create_replay, open_reader
from streampca.sources.dead_letters import DeadLetter, DeadLetterTopic, LetterStatus, ReadTopic, make_replay_note
from streampca.transform.outputs import OUTPUT_TOO_LARGE

_MAX_EXAMPLES = 3  # that are printed for each reason; their messages differ
# The letters that are replayed in one transaction. The letter that reaches one of these limits is the last.
_MAX_LETTERS = 1000
_MAX_BYTES = 8 * 2**20  # of all their values


class LetterFilter(NamedTuple):
    """Selects letters; an empty filter selects all. Times are timestamps of records, in milliseconds."""

    reasons: Sequence[str] = ()
    partitions: Sequence[int] = ()
    since_ms: int | None = None
    until_ms: int | None = None

    def accepts(self, letter: DeadLetter) -> bool:
        """Return whether the letter is selected."""
        origin = letter.origin
        return (
            (not self.reasons or origin.reason in self.reasons)
            and (not self.partitions or origin.partition in self.partitions)
            and (self.since_ms is None or origin.timestamp >= self.since_ms)
            and (self.until_ms is None or origin.timestamp < self.until_ms)
        )


def check_reasons(reasons: Sequence[str]) -> Sequence[str]:
    """Return the reasons that were given with --reason. Raises `SettingsError` if one of them is unknown."""
    known_reasons = (*REASONS, OUTPUT_TOO_LARGE)
    for reason in reasons:
        if reason not in known_reasons:
            raise SettingsError(f"--reason {reason}: must be one of {', '.join(known_reasons)}")
    return reasons


def list_letters(settings: DeadLettersSettings, letter_filter: LetterFilter, *, as_json: bool) -> None:
    """Print the dead letters that the filter accepts, grouped by topic and reason. Raises `SourceError`."""
    with closing(open_reader(settings, settings.dead_letter_topic)) as reader:
        topic = DeadLetterTopic(reader.read)
        groups = group_letters(filter(letter_filter.accepts, topic.letters()))
    if as_json:
        listing = {"topic": settings.dead_letter_topic, "groups": groups, "others": topic.other_records}
        print(json.dumps(listing, indent=2))  # noqa: T201
        return
    print_groups(settings.dead_letter_topic, groups)
    if topic.other_records:
        console().print(f"{topic.other_records} other records are not dead letters of streampca")


def preview(settings: DeadLettersSettings, letter_filter: LetterFilter) -> None:
    """Print the letters that a replay would send. Raises `SourceError`."""
    with closing(open_reader(settings, settings.dead_letter_topic)) as reader:
        groups = group_letters(select_letters(reader.read, settings.topic, letter_filter))
    print_groups(settings.dead_letter_topic, groups)
    count = sum(group["letters"] for group in groups)
    console().print(f"{count} records would be sent to {settings.topic}; nothing was sent: add --send to send them")


def replay(settings: DeadLettersSettings, letter_filter: LetterFilter) -> None:
    """Send the records of the letters that the filter accepts to their topic again. Raises `SourceError`."""
    try:
        # A replay marks the letters that it has sent. Creating the producer ends any other replay, since both have the
        # same transactional id. Only then is the reader opened, so that it sees all marks of the other replay.
        with (
            closing(create_replay(settings)) as producer,
            closing(open_reader(settings, settings.dead_letter_topic)) as reader,
        ):
            letters = select_letters(
                reader.read, settings.topic, letter_filter, partition_count=producer.partition_count
            )
            count = send_letters(producer.send, letters, settings.dead_letter_topic)
    except (TransactionFailedError, TimeoutError, SourceError) as error:
        raise SourceError(f"{error}; what was sent before is marked: start the replay again for the rest") from None
    about_timestamps = ""
    if producer.replaced_timestamps:  # the topic refuses some timestamps
        about_timestamps = f", {producer.replaced_timestamps} of them with the time of sending"
    console().print(f"{count} records were sent to {settings.topic}{about_timestamps}")


def select_letters(
    read: ReadTopic, topic: str, letter_filter: LetterFilter, partition_count: float = math.inf
) -> Iterator[DeadLetter]:
    """Yield the letters of `topic` that the filter accepts and that were not replayed yet.

    Raises `SourceError` if a letter is of a partition that `topic`, with `partition_count` partitions, does not have.
    By default, letters of any partition are accepted.
    """
    for letter in DeadLetterTopic(read).letters():
        origin = letter.origin
        is_waiting = letter.status == LetterStatus.WAITING
        if not is_waiting or origin.topic != topic or not letter_filter.accepts(letter):
            continue
        if origin.partition >= partition_count:
            raise SourceError(
                f"a dead letter is of partition {origin.partition} of {topic}, which has {partition_count}; "
                "replay the letters of other partitions with --partition"
            )
        yield letter


def send_letters(
    send: Callable[[Iterable[OutgoingFields]], None], letters: Iterable[DeadLetter], dead_letter_topic: str
) -> int:
    """Send the records of the letters to their topics, and return the number of letters.

    The same transaction notes in the dead-letter topic which letters were sent, so that no record is sent twice.
    """
    sent_count = 0
    for batch in _split_into_batches(letters):
        records = [letter.to_replay(dead_letter_topic) for letter in batch]
        sent_offsets = defaultdict[int, list[int]](list)  # by the partition of the dead-letter topic
        for letter in batch:
            sent_offsets[letter.partition].append(letter.offset)
        notes = [
            make_replay_note(dead_letter_topic, partition, offsets)
            for partition, offsets in sorted(sent_offsets.items())
        ]
        send([*records, *notes])  # in one transaction
        sent_count += len(batch)
    return sent_count


def _split_into_batches(letters: Iterable[DeadLetter]) -> Iterator[list[DeadLetter]]:
    """Yield the letters in lists, one for each transaction."""
    batch: list[DeadLetter] = []
    batch_bytes = 0
    for letter in letters:
        batch.append(letter)
        batch_bytes += len(letter.record.value or b"")
        if len(batch) == _MAX_LETTERS or batch_bytes >= _MAX_BYTES:
            yield batch
            batch = []
            batch_bytes = 0
    if batch:
        yield batch


def group_letters(letters: Iterable[DeadLetter]) -> list[dict[str, Any]]:
    """Group letters by topic and reason, in the form that is printed as JSON. The largest group comes first."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for letter in letters:
        topic = letter.origin.topic
        reason = letter.origin.reason
        group = groups.setdefault((topic, reason), _make_empty_group(topic, reason))
        _add_letter(group, letter)
    return sorted(groups.values(), key=lambda group: (-group["letters"], group["topic"], group["reason"]))


def _make_empty_group(topic: str, reason: str) -> dict[str, Any]:
    """Make the group of a topic and a reason, without letters."""
    counts_by_status = {status.value: 0 for status in LetterStatus}
    return {
        "reason": reason,
        "topic": topic,
        "letters": 0,
        **counts_by_status,
        "partitions": Counter[int](),
        "first_timestamp": None,
        "last_timestamp": None,
        "examples": [],
    }


def _add_letter(group: dict[str, Any], letter: DeadLetter) -> None:
    """Count a letter in its group, and keep a few letters with different messages as examples."""
    origin = letter.origin
    group["letters"] += 1
    group[letter.status.value] += 1
    group["partitions"][origin.partition] += 1
    timestamp = iso_time(origin.timestamp)
    if timestamp is not None:  # None: the record has no valid time
        # Such texts in UTC sort like their times.
        group["first_timestamp"] = min(group["first_timestamp"] or timestamp, timestamp)
        group["last_timestamp"] = max(group["last_timestamp"] or timestamp, timestamp)
    examples = group["examples"]
    has_same_message = any(example["message"] == origin.message for example in examples)
    if len(examples) < _MAX_EXAMPLES and not has_same_message:
        examples.append({"partition": origin.partition, "offset": origin.offset, "message": origin.message})


def print_groups(dead_letter_topic: str, groups: Sequence[dict[str, Any]]) -> None:
    """Print a table of the groups, and then their examples.

    A group has the letters with one topic and one reason.
    """
    out = console()
    if not groups:
        out.print(f"no such dead letters in {dead_letter_topic}")
        return
    statuses = [status.value for status in LetterStatus]  # each is a column, and a key of a group
    rows = []
    for group in groups:
        rows.append([
            group["reason"], group["topic"], format_by_partition(group["partitions"]),
            *(str(group[status]) for status in statuses),
            group["first_timestamp"] or "–", group["last_timestamp"] or "–",
        ])  # fmt: skip
    headings = ["reason", "topic", "partitions", *statuses, "first", "last"]
    out.print(table(headings, rows, right_aligned=statuses))  # their columns hold numbers
    for group in groups:
        for example in group["examples"]:
            where = f"partition {example['partition']}, offset {example['offset']}"
            out.print(f"{group['reason']}: {where}: {example['message']}")
