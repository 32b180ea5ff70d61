"""Errors of confluent-kafka (librdkafka): their codes in Kafka's protocol, and which of them waiting cannot fix.

Codes of brokers' errors are those of the protocol, which are positive. librdkafka's own codes are negative.
"""

from confluent_kafka import KafkaError

from streampca.sources.broker_errors import RETRIABLE_CODES


def _error_text(code: int) -> str:
    """Return librdkafka's text for an error code."""
    return str(KafkaError(code).str())


SECOND_LOGIN_TOO_SOON = _error_text(KafkaError.ILLEGAL_SASL_STATE)  # two logins within a second
_FENCED = _error_text(KafkaError.FENCED_INSTANCE_ID)
# In the text of a failed login that was not refused: its connection ended meanwhile, or the broker did not answer.
_LOGIN_INTERRUPTED = [_error_text(KafkaError._TRANSPORT), _error_text(KafkaError._TIMED_OUT)]
_PROTOCOL_CODES = {  # librdkafka's own code → the protocol's code of the same error
    KafkaError._UNKNOWN_TOPIC: KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._AUTHENTICATION: KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._UNSUPPORTED_FEATURE: KafkaError.UNSUPPORTED_VERSION,
}
_PERMANENT_CODES = {  # librdkafka's own codes for errors that waiting cannot fix
    KafkaError._AUTHENTICATION,
    KafkaError._BAD_MSG,  # the client would skip it, and lose the records in it
    KafkaError._BAD_COMPRESSION,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError._FATAL,
}
# Brokers' codes for errors that waiting can fix.
_TEMPORARY_CODES = RETRIABLE_CODES | {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
}


def is_from_broker(error: KafkaError) -> bool:
    """Return whether a broker has sent the error."""
    return bool(error.code() > 0)


def is_permanent(error: KafkaError) -> bool:
    """Return whether waiting cannot fix an error."""
    code = error.code()
    if is_from_broker(error):
        return code not in _TEMPORARY_CODES
    # An interrupted login has the code of a refused login, but a later login may succeed.
    is_interrupted_login = any(text in error.str() for text in _LOGIN_INTERRUPTED)
    return code in _PERMANENT_CODES and not is_interrupted_login


def protocol_code(error: KafkaError) -> int:
    """Return the error's code in Kafka's protocol; if it has none, librdkafka's own code, which is negative."""
    # librdkafka gives a fenced member an error with the code _FATAL, and names the cause only in the text.
    if _FENCED in error.str():
        return KafkaError.FENCED_INSTANCE_ID
    code = error.code()
    return _PROTOCOL_CODES.get(code, code)
