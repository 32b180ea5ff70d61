"""Options of the clients of confluent-kafka (librdkafka), and the creation of clients."""

import logging
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaException

from streampca.errors import SourceError
from streampca.settings.commands import ConsumerSettings
from streampca.settings.kafka import KafkaSettings
from streampca.sources import base
from streampca.sources.broker_errors import one_line
from streampca.sources.client_source import FETCH_BYTES, FETCH_BYTES_OF_ALL, choose_intervals
from streampca.sources.oauth_tokens import create_tokens


def connection_options(settings: KafkaSettings) -> dict[str, Any]:
    """Return the options of every client. Raises `SourceError` if the login gets no token."""
    tokens = create_tokens(settings)
    optional: dict[str, Any] = {
        "ssl.ca.location": settings.ssl_cafile and str(settings.ssl_cafile),
        "ssl.certificate.location": settings.ssl_certfile and str(settings.ssl_certfile),
        "ssl.key.location": settings.ssl_keyfile and str(settings.ssl_keyfile),
        "ssl.key.password": settings.ssl_password and settings.ssl_password.get_secret_value(),
    }
    if tokens is not None:
        optional |= {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: tokens.current()}
    else:
        optional |= {
            "sasl.mechanism": settings.sasl_mechanism,
            "sasl.username": settings.sasl_username,
            "sasl.password": settings.sasl_password and settings.sasl_password.get_secret_value(),
        }
    given = {name: value for name, value in optional.items() if value is not None}  # librdkafka does not take None
    return given | {
        "bootstrap.servers": settings.bootstrap_servers,
        "security.protocol": settings.security_protocol,
        "ssl.endpoint.identification.algorithm": "https",
        "client.id": settings.client_id,
        "allow.auto.create.topics": False,
        "topic.metadata.refresh.interval.ms": 10_000,  # how soon new partitions are seen
        "reconnect.backoff.ms": 100,
        "reconnect.backoff.max.ms": 2000,
    }


def consumer_options(settings: ConsumerSettings) -> dict[str, Any]:
    """Return the options of the consumer."""
    intervals = choose_intervals(settings)
    optional = {}
    if settings.group_instance_id is not None:
        optional["group.instance.id"] = settings.group_instance_id
    if settings.rack is not None:
        optional["client.rack"] = settings.rack
    return {
        **connection_options(settings),
        **optional,
        "group.id": settings.group or "streampca",  # librdkafka demands one
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,  # so that positions move past aborted records
        "isolation.level": "read_committed",
        "check.crcs": True,
        "max.poll.interval.ms": intervals.longest_poll_ms,
        "session.timeout.ms": intervals.session_ms,
        "heartbeat.interval.ms": intervals.heartbeat_ms,
        "partition.assignment.strategy": "range",  # as with kafka-python, which may be in the same group
        "max.partition.fetch.bytes": FETCH_BYTES,
        "fetch.max.bytes": FETCH_BYTES_OF_ALL,
        # Half of the records in flight wait in librdkafka's queue. The other half is with the member's threads.
        "queued.max.messages.kbytes": base.IN_FLIGHT_MIB * 1024 // 2,
        "fetch.queue.backoff.ms": 10,  # how long fetching pauses when the queue is full
    }


def create(client_class: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Create a consumer, producer or admin client. Raises `SourceError` for options that librdkafka refuses."""
    try:
        return client_class(options, logger=logging.getLogger("kafka.librdkafka"))
    except KafkaException as error:
        raise SourceError(f"confluent-kafka does not take these settings: {one_line(error.args[0].str())}") from None
