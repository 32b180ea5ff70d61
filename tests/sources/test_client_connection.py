"""What a connection says while no broker answers, and when only another process can connect again."""

from pathlib import Path

import pytest
from kafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError, NodeNotReadyError
from structlog.testing import capture_logs

from streampca.errors import CertificateError, SourceError
from streampca.settings.commands import WorkerSettings
from streampca.sources import client_connection
from streampca.sources.broker_errors import BrokerErrors
from streampca.sources.client_connection import ClientConnection
from streampca.sources.kafka_python.connection import KafkaPythonConnection
from tests.certificates import KEY_PASSWORD, Certificates
from tests.errors import refusal

LEARNING = {"topic": "readings", "dimensions": 2, "components": 1, "store": "s"}


class ConnectionWithoutClient(ClientConnection):
    """A connection to a broker that never answers."""

    connected = False

    def _ask_for_topic(self, timeout_s: float) -> str:
        raise TimeoutError

    def source_error(self, error: object, *, lacks_key: bool = False) -> SourceError:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def _log_outages_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_LOGGED_AFTER_S", "_NEXT_CAUSE_AFTER_S"):
        monkeypatch.setattr(client_connection, name, -1.0)


def write_and_read_settings(folder: Path) -> WorkerSettings:
    """Write streampca.toml and certificates into the folder, and return the settings of this file."""
    files = Certificates(folder).make()
    config = folder / "streampca.toml"
    paths = {"ssl_cafile": files.authority, "ssl_certfile": files.client, "ssl_keyfile": files.client_key}
    secrets = {"security_protocol": "SSL", "ssl_password": KEY_PASSWORD}
    config.write_text("\n".join(f'{name} = "{value}"' for name, value in (paths | secrets).items()))
    return WorkerSettings.read(config, **LEARNING)


def test_each_new_cause_of_an_outage_and_its_end_are_logged_once() -> None:
    connection = ConnectionWithoutClient(WorkerSettings(**LEARNING), "readings")
    with capture_logs() as logged:
        for cause in ("", "refused (after 3ms)", "refused (after 12ms)", "certificate expired", "certificate expired"):
            connection.last_failure = cause
            connection.log_outages()
        connection.connected = True
        connection.log_outages()
        connection.log_outages()
    assert [line.get("cause") for line in logged] == ["refused (after 3ms)", "certificate expired", None]
    assert logged[-1]["event"] == "broker is back"
    assert connection.last_failure == ""


@pytest.mark.parametrize("cause", ["certificate verify failed", "TLSV13_ALERT_CERTIFICATE_REQUIRED", "reset by peer"])
def test_a_refused_certificate_is_not_reported_as_an_absent_broker(cause: str) -> None:
    error = BrokerErrors(WorkerSettings(**LEARNING), "readings").no_broker_error(cause)
    assert isinstance(error, CertificateError) == ("certificate" in cause.lower())
    assert f"({cause})" in str(error)


@pytest.mark.parametrize("reads_again", [False, True])
@pytest.mark.parametrize("renewed", ["authority.pem", "client.pem", "client-key.pem", "streampca.toml"])
def test_a_renewed_file_that_only_a_new_process_reads_is_an_error_during_an_outage(
    tmp_path: Path, renewed: str, reads_again: bool
) -> None:
    connection = type("", (ConnectionWithoutClient,), {"reads_certificates_again": reads_again})(
        write_and_read_settings(tmp_path), "a"
    )
    connection.log_outages()
    connection.log_outages()
    path = tmp_path / renewed
    content = path.read_bytes()
    path.unlink()
    connection.log_outages()  # it is being replaced
    path.write_bytes(content)
    connection.connected = True
    connection.log_outages()
    connection.connected = False
    connection.log_outages()
    if reads_again and renewed != "streampca.toml":
        return connection.log_outages()
    with pytest.raises(SourceError, match=f"{renewed} was changed since the start"):
        connection.log_outages()


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("a:9092/bootstrap: refused", "bootstrap_servers and security_protocol (PLAINTEXT now; SSL or SASL_SSL if"),
        ("b.example:9093/2: no such host", "advertised.listeners"),
        ("", "bootstrap_servers"),
    ],
)
def test_if_an_unknown_address_fails_the_error_names_advertised_listeners(cause: str, words: str) -> None:
    errors = BrokerErrors(WorkerSettings(**LEARNING, bootstrap_servers="a:9092, a2:9092"), "readings")
    assert words in str(errors.no_broker_error(cause))


@pytest.mark.parametrize(
    "error", [KafkaConnectionError("DNS Resolution failure"), NodeNotReadyError(2), KafkaTimeoutError()]
)
def test_kafka_pythons_error_without_an_address_names_the_broker_that_cannot_be_reached(error: KafkaError) -> None:
    connection = KafkaPythonConnection(WorkerSettings(**LEARNING, bootstrap_servers="a:9092"), "readings")

    def fail(asked_for: str) -> None:
        with connection.translate_errors(asked_for):
            raise error

    for failure in ("", "b.example:9093: KafkaConnectionError: DNS Resolution failure"):
        connection.last_failure = failure
        texts = [refusal(SourceError, fail, ""), refusal(TimeoutError, fail, "the offsets")]
        assert all(failure in text and "None" not in text for text in texts), texts
    assert "advertised.listeners" in texts[0]
