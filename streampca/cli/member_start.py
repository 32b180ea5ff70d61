"""The steps that the starts of a worker and of transform share.

A step is a method that returns what it found, in a sentence: a start logs it, and `streampca doctor` prints it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import structlog

from streampca.consumer_group.in_flight import InFlight
from streampca.consumer_group.policy import MemberPolicy
from streampca.consumer_group.process import Process
from streampca.consumer_group.step import Step
from streampca.consumer_group.task_threads import create_threads
from streampca.formats.codec import Codec
from streampca.settings.commands import ConsumerSettings
from streampca.sources.base import Committed, Source
from streampca.sources.broker_errors import TopicError
from streampca.sources.clients import create_client, in_flight_limit_bytes, refuse_compacted_topic, require_writable
from streampca.sources.events import Records, Undecoded, Vectors, decode_records

log = structlog.get_logger()


class MemberStart(ABC):
    """The start of one member: its steps, and what they have opened and found.

    A member that runs closes its clients itself; doctor closes `opened`. The attributes without a value are set by
    steps.
    """

    config: MemberPolicy  # the configuration of the member's loop
    codec: Codec  # decodes the records of the topic
    source: Source
    topic_id: str  # "" if the brokers give topics no id
    committed: Mapping[int, Committed]  # the group's offsets by partition

    def __init__(self, settings: ConsumerSettings) -> None:
        self.settings = settings
        self.opened = ExitStack()
        self.positions: dict[int, int] = {}
        """Partition → offset at which the member continues. A partition that nobody has read yet is left out."""
        self._topic_error: TopicError | None = None
        """The error about the topic that was raised while connecting. The next step, `_find_topic`, raises it."""

    @abstractmethod
    def steps(self) -> list[Step]:
        """Return the steps in their order; the last one finds the positions. The group is joined after all of them."""

    def create_in_flight(self, process: Process) -> InFlight[Any]:
        """Create the threads that decode records, and that later do the loop's work on the vectors."""
        decode: Callable[[Records], Vectors | Undecoded] = partial(decode_records, self.codec)
        if process.spans:  # OpenTelemetry is set up
            decode = process.spans.trace(decode)
        return InFlight(
            create_threads(),
            decode=decode,
            limit_bytes=in_flight_limit_bytes(self.settings),
            check_threads=process.prepared.thread_failures.raise_first_error,  # of threads such as the HTTP port's
        )

    def _list_steps_at_brokers(self) -> list[Step]:
        """Return the steps that connect to the brokers and look up the topics that every member needs."""
        return [
            Step("broker", self._connect),
            Step("topic", self._find_topic, after=["broker"]),
            Step("dead-letter topic", self._find_dead_letter_topic, after=["broker"]),
        ]

    def _use_codec(self, codec: Codec) -> str:
        """Keep the codec, after a check that the packages of its format are installed. Returns what was found."""
        self.codec = codec
        codec.decode([])  # raises if a package is missing
        return f"{self.settings.format} can be decoded"

    def _connect(self) -> str:
        """Connect to the brokers and log in. Returns which brokers answer, and the login."""
        settings = self.settings
        try:
            self.source = self.opened.enter_context(closing(create_client(settings)))
        except TopicError as error:
            # A broker has answered. The next step, `_find_topic`, raises this error.
            self._topic_error = error
        login = f", logged in as {settings.sasl_username}" if settings.sasl_username else ""
        return f"{settings.bootstrap_servers} answers {settings.client} ({settings.security_protocol}{login})"

    def _find_topic(self) -> str:
        """Look up the topic. Returns what was found: how many partitions it has, and its id."""
        if self._topic_error is not None:  # from `_connect`, which keeps such an error for this step
            raise self._topic_error
        self.topic_id = self.source.topic_id()
        count = len(self.source.partitions())
        shown_id = self.topic_id or "unknown, since this broker gives topics no ids"
        return f"{self.settings.topic} has {count} partitions; its id is {shown_id}"

    def _find_dead_letter_topic(self) -> str:
        """Check that the dead-letter topic, if it is set, may be written to and is not compacted.

        Returns a sentence on what was found.
        """
        name = self.settings.dead_letter_topic
        if name is None:
            return f"none; on_bad_record is {self.settings.on_bad_record}"
        require_writable(self.settings, name)
        finding = f"{name} exists and may be written to"
        # Raises if the topic is compacted, since compaction deletes dead letters.
        is_compaction_known = refuse_compacted_topic(self.settings, name)
        if not is_compaction_known:
            log.info("compaction of dead letters unknown", topic=name, missing_right="DescribeConfigs")
            finding += "; whether it is compacted is unknown without the right DescribeConfigs"
        return finding

    def _read_committed_offsets(self) -> str:
        """Look up the offsets that the group has committed. Returns for how many partitions it has committed one."""
        self.committed = self.source.committed()
        count = len(self.source.partitions())
        return f"{self.settings.group} has offsets of {len(self.committed)} of {count} partitions"
