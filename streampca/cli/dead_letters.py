"""`streampca dead-letters`: shows the dead-letter topic by reason, and sends rejected records to their topic again."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from streampca.cli.console import console, iso_time, table
from streampca.errors import SourceError
from streampca.settings.commands import DeadLettersSettings
from streampca.sources.base import Outgoing, OutgoingFields, TransactionFailedError
from streampca.sources.clients import create_replay, open_reader
from streampca.sources.dead_letters import DeadLetter, DeadLetterTopic, LetterStatus, ReadTopic, make_replay_note

_EXAMPLES = 3  # examples that are printed for each reason; their messages differ
_MAX_LETTERS = 1000  # letters in one transaction
_MAX_BYTES = 8 * 2**20  # a transaction ends with the letter that reaches this sum of bytes of values


class LetterFilter(NamedTuple):
    """Selects the letters to replay; an empty filter selects all. Times are timestamps of records, in milliseconds."""

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


def list_letters(settings: DeadLettersSettings, *, as_json: bool) -> None:
    """Print the dead letters by reason, as tables or as JSON. Raises `SourceError`."""
    with closing(open_reader(settings, settings.dead_letter_topic)) as reader:
        topic = DeadLetterTopic(reader.read)
        groups = group_letters(topic.letters())
    if as_json:
        facts = {"topic": settings.dead_letter_topic, "groups": groups, "others": topic.others}
        print(json.dumps(facts, indent=2))  # noqa: T201
        return
    print_groups(settings.dead_letter_topic, groups)
    if topic.others:
        console().print(f"{topic.others} other records are no dead letters of streampca")


def preview(settings: DeadLettersSettings, chosen: LetterFilter) -> None:
    """Print the letters that a replay would send. Raises `SourceError`."""
    with closing(open_reader(settings, settings.dead_letter_topic)) as reader:
        groups = group_letters(select_letters(reader.read, settings.topic, chosen))
    print_groups(settings.dead_letter_topic, groups)
    count = sum(group["letters"] for group in groups)
    console().print(f"{count} records would be sent to {settings.topic}; nothing was sent: add --send to send them")


def replay(settings: DeadLettersSettings, chosen: LetterFilter) -> None:
    """Send the chosen letters' records to their topic again. Raises `SourceError`."""
    try:
        # The producer is opened before the reader. From then on no other replay can send, so the reader finds the notes
        # of all records that were ever sent again.
        with (
            closing(create_replay(settings)) as producer,
            closing(open_reader(settings, settings.dead_letter_topic)) as reader,
        ):
            letters = select_letters(reader.read, settings.topic, chosen, producer.partitions)
            count = send_all(producer.send, letters, settings.dead_letter_topic)
    except (TransactionFailedError, TimeoutError, SourceError) as error:
        raise SourceError(f"{error}; what was sent before is marked: start the replay again for the rest") from None
    replaced = f", {producer.replaced} of them with the time of sending" if producer.replaced else ""
    console().print(f"{count} records were sent to {settings.topic}{replaced}")


def select_letters(
    read: ReadTopic, topic: str, chosen: LetterFilter, partitions: float = math.inf
) -> Iterator[DeadLetter]:
    """Yield the chosen letters of a topic that were not replayed yet.

    If the partition of a letter is not among the topic's first `partitions`, raises `SourceError`.
    """
    for letter in DeadLetterTopic(read).letters():
        is_waiting = letter.status == LetterStatus.WAITING
        if is_waiting and letter.origin.topic == topic and chosen.accepts(letter):
            if letter.origin.partition >= partitions:
                raise SourceError(
                    f"a dead letter is of partition {letter.origin.partition} of {topic}, which has {partitions}; "
                    "select others with --partition"
                )
            yield letter


def send_all(
    send: Callable[[Iterable[OutgoingFields]], None], letters: Iterable[DeadLetter], dead_letter_topic: str
) -> int:
    """Send the records of the letters to their topics, and return their number.

    Each transaction also sends a replay note to the partitions of its letters, so that no record is sent twice.
    """
    sent = 0
    for batch in _batches(letters):
        records = [letter.to_replay(dead_letter_topic) for letter in batch]
        for partition in sorted({letter.partition for letter in batch}):
            value, headers = make_replay_note(letter.offset for letter in batch if letter.partition == partition)
            records.append(Outgoing(dead_letter_topic, partition, value, None, headers, timestamp=-1))
        send(records)
        sent += len(batch)
    return sent


def _batches(letters: Iterable[DeadLetter]) -> Iterator[list[DeadLetter]]:
    """Yield the letters in lists that end at 1,000 letters or 8 MiB."""
    batch = list[DeadLetter]()
    size = 0
    for letter in letters:
        batch.append(letter)
        size += len(letter.record.value or b"")
        if len(batch) == _MAX_LETTERS or size >= _MAX_BYTES:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def group_letters(letters: Iterable[DeadLetter]) -> list[dict[str, Any]]:
    """Group letters by topic and reason; the largest group comes first."""
    groups: dict[tuple[str, str], dict[str, Any]] = {}
    for letter in letters:
        origin = letter.origin
        time = iso_time(origin.timestamp)
        group = groups.setdefault((origin.topic, origin.reason), {
            "reason": origin.reason, "topic": origin.topic, "letters": 0,
            **{status.value: 0 for status in LetterStatus},
            "partitions": Counter[int](), "first_timestamp": None, "last_timestamp": None, "examples": [],
        })  # fmt: skip
        group["letters"] += 1
        group[letter.status] += 1
        group["partitions"][origin.partition] += 1
        if time is not None:
            group["first_timestamp"] = min(group["first_timestamp"] or time, time)
            group["last_timestamp"] = max(group["last_timestamp"] or time, time)
        messages = [example["message"] for example in group["examples"]]
        if len(messages) < _EXAMPLES and origin.message not in messages:
            group["examples"].append(
                {"partition": origin.partition, "offset": origin.offset, "message": origin.message}
            )
    return sorted(groups.values(), key=lambda group: (-group["letters"], group["topic"], group["reason"]))


def print_groups(dead_letter_topic: str, groups: Sequence[dict[str, Any]]) -> None:
    """Print a table of the groups, and their examples."""
    out = console()
    if not groups:
        out.print(f"no such dead letters in {dead_letter_topic}")
        return
    statuses = [status.value for status in LetterStatus]
    rows = []
    for group in groups:
        partitions = ", ".join(f"{partition}: {count}" for partition, count in sorted(group["partitions"].items()))
        rows.append([
            group["reason"], group["topic"], partitions, *(str(group[status]) for status in statuses),
            group["first_timestamp"] or "–", group["last_timestamp"] or "–",
        ])  # fmt: skip
    out.print(table(["reason", "topic", "partitions", *statuses, "first", "last"], rows, right=statuses))
    for group in groups:
        for example in group["examples"]:
            where = f"partition {example['partition']}, offset {example['offset']}"
            out.print(f"{group['reason']}: {where}: {example['message']}")
