"""The steps that the starts of a worker and of transform share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from streampca.consumer_group import in_flight
from streampca.consumer_group.in_flight import InFlight
from streampca.consumer_group.policy import MemberPolicy
from streampca.consumer_group.process import Process
from streampca.consumer_group.step import Step
from streampca.formats.codec import Codec
from streampca.settings.commands import ConsumerSettings
from streampca.sources.base import Committed, Source
from streampca.sources.client_connection import TopicError
from streampca.sources.clients import create_client, in_flight_limit_bytes, require_writable
from streampca.sources.events import decode_records


class MemberStart(ABC):
    """The start of one member: its steps, and what they have opened and found.

    A member that runs closes its clients itself; doctor closes `opened`.
    """

    policy: MemberPolicy
    codec: Codec
    source: Source
    topic_id: str
    committed: Mapping[int, Committed]

    def __init__(self, settings: ConsumerSettings) -> None:
        self.settings = settings
        self.opened = ExitStack()
        self.positions: dict[int, int] = {}
        """Partition → offset at which the member continues; without the partitions that it begins."""
        self._topic_error: TopicError | None = None

    @abstractmethod
    def steps(self) -> list[Step]:
        """The steps in their order; the last one finds the positions. The group is joined after all of them."""

    def in_flight(self, process: Process) -> InFlight[Any]:
        """What works on the member's records in threads."""
        decode = process.trace(partial(decode_records, self.codec))
        limit_bytes = in_flight_limit_bytes(self.settings)
        return InFlight(in_flight.create_threads(), decode, limit_bytes, process.started.threads.raise_first)

    def _steps_at_the_brokers(self) -> list[Step]:
        return [
            Step("broker", self._connect),
            Step("topic", self._find_topic, after=["broker"]),
            Step("dead-letter topic", self._find_dead_letter_topic, after=["broker"]),
        ]

    def _use(self, codec: Codec) -> str:
        self.codec = codec
        codec.decode([])  # raises if a package is missing
        return f"{self.settings.format} can be decoded"

    def _connect(self) -> str:
        """A broker answers and accepts the login."""
        settings = self.settings
        try:
            self.source = self.opened.enter_context(closing(create_client(settings)))
        except TopicError as error:  # a broker answers: the next step fails
            self._topic_error = error
        login = f", logged in as {settings.sasl_username}" if settings.sasl_username else ""
        return f"{settings.bootstrap_servers} answers {settings.client} ({settings.security_protocol}{login})"

    def _find_topic(self) -> str:
        if self._topic_error is not None:
            raise self._topic_error
        self.topic_id = self.source.topic_id()
        count = len(self.source.partitions())
        known_id = self.topic_id or "unknown, since this broker gives topics none"
        return f"{self.settings.topic} has {count} partitions; its id is {known_id}"

    def _find_dead_letter_topic(self) -> str:
        name = self.settings.dead_letter_topic
        if name is None:
            return f"none; on_bad_record is {self.settings.on_bad_record}"
        require_writable(self.settings, name)
        return f"{name} exists and may be written to"

    def _find_committed(self) -> str:
        partitions = self.source.partitions()
        self.committed = self.source.committed(partitions)
        return f"{self.settings.group} has offsets of {len(self.committed)} of {len(partitions)} partitions"
