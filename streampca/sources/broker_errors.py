"""The errors of brokers that waiting cannot fix, as messages; they are the same for every Kafka client."""

from streampca.errors import SourceError
from streampca.settings.kafka import KafkaSettings

RETRIABLE = frozenset(
    {3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89, 100, 103, 106}
)
"""Codes of errors that the protocol calls retriable (https://kafka.apache.org/protocol#protocol_error_codes)."""


class TopicError(SourceError):
    """A broker accepts the client, but not its use of the topic."""


class NoBrokerError(SourceError):
    """No broker answers; at the start the settings may be wrong, later the brokers are away."""


class BrokerErrors:
    """The messages for one topic on one cluster; codes are those of Kafka's protocol."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._topic, self._at = topic, f"at {settings.bootstrap_servers}"
        self._tls = "SSL" in settings.security_protocol

    def of(self, code: int | None, text: str) -> SourceError:
        """The message for an error with this code; `text` describes it."""
        match code:
            case 3 | 17:
                remedy = "create it (streampca create-topics), or correct the name"
                return TopicError(f"there is no topic {self._topic} {self._at}; {remedy}")
            case 10 | 18:
                remedy = f"raise max.message.bytes of {self._topic}"
                return SourceError(f"a record is too large for topic {self._topic} {self._at}; {remedy}")
            case 29 | 30 | 31 | 53:
                return self.not_authorized(text)
            case 33 | 34 | 58:
                return SourceError(f"the broker {self._at} refuses the login: {text}; check the sasl_ settings")
            case 82:
                return SourceError(
                    f"another worker of topic {self._topic} {self._at} has the same group_instance_id, and has taken "
                    "this worker's place in the group; give each worker a group_instance_id of its own"
                )
        return SourceError(f"topic {self._topic} {self._at}: {text}")

    def not_authorized(self, text: str) -> SourceError:
        """The user lacks a right."""
        return TopicError(f"the broker {self._at} does not allow this user: {text}; grant it the right")

    def no_broker(self, cause: str) -> SourceError:
        """No broker answers; `cause` is the last error seen, if any."""
        check = "bootstrap_servers and security_protocol"
        if self._tls:
            check = "bootstrap_servers, security_protocol, ssl_cafile and ssl_certfile"
        return NoBrokerError(f"no broker answers {self._at}{f' ({cause})' if cause else ''}; check {check}")

    def cannot_decompress(self, text: str) -> SourceError:
        """A compression library of kafka-python is missing."""
        return SourceError(
            f"records of topic {self._topic} are compressed, and what reads them is not installed ({text}): "
            "pip install 'kafka-python[lz4,snappy,zstd]'"
        )


def one_line(error: object) -> str:
    """An error's text without line breaks, or its type if it has no text."""
    return " ".join(str(error).split()) or type(error).__name__
