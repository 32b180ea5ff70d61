"""The errors of brokers that waiting cannot fix, as messages; they are the same for every Kafka client."""

from streampca.errors import SourceError
from streampca.settings import KafkaSettings


class TopicError(SourceError):
    """A broker accepts the client, but not its use of the topic."""


class NoBrokerError(SourceError):
    """No broker answers; at the start the settings may be wrong, later the brokers are away."""


class BrokerErrors:
    """The messages for one topic on one cluster."""

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._topic, self._at = topic, f"at {settings.bootstrap_servers}"
        self._tls = "SSL" in settings.security_protocol

    def no_topic(self) -> SourceError:
        """The topic does not exist."""
        return TopicError(
            f"there is no topic {self._topic} {self._at}; create it (streampca create-topics), or correct the name"
        )

    def not_authorized(self, text: str) -> SourceError:
        """The user lacks a right."""
        return TopicError(f"the broker {self._at} does not allow this user: {text}; grant it the right")

    def not_writable(self) -> SourceError:
        """The user may not write to the topic."""
        return self.not_authorized(f"writing to topic {self._topic}")

    def login_refused(self, text: str) -> SourceError:
        """Wrong user, password or mechanism."""
        return SourceError(f"the broker {self._at} refuses the login: {text}; check the sasl_ settings")

    def fenced(self) -> SourceError:
        """Another member of the group has joined with the identity of this one."""
        return SourceError(
            f"another worker of topic {self._topic} {self._at} has the same group_instance_id, and has taken this "
            "worker's place in the group; give each worker a group_instance_id of its own"
        )

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

    def record_too_large(self) -> SourceError:
        """The topic does not accept a record that is written to it."""
        return SourceError(
            f"a record is too large for topic {self._topic} {self._at}; raise max.message.bytes of {self._topic}"
        )

    def other(self, text: str) -> SourceError:
        """Any other error."""
        return SourceError(f"topic {self._topic} {self._at}: {text}")


def one_line(error: object) -> str:
    """An error's text without line breaks, or its type if it has no text."""
    return " ".join(str(error).split()) or type(error).__name__
