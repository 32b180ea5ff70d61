"""Logins with tokens: of a token endpoint, and of AWS, with both clients, against a real broker."""

import base64
import time
from collections.abc import Iterator
from typing import Any

import pytest

from streampca.errors import SettingsError, SourceError
from streampca.settings import WorkerSettings
from streampca.sources import oauth
from streampca.sources.clients import client_of, dead_letters_of, transactions_of
from streampca.sources.confluent import connection as confluent_connection
from streampca.sources.kafka_python import connection
from streampca.sources.transactions import Outgoing
from streampca.stream.events import Assigned
from tests.kafka_broker import Broker, wait_until
from tests.sources.reader import Reader
from tests.token_server import CLIENT, SECRET, TokenServer

pytestmark = [pytest.mark.broker, pytest.mark.parametrize("client", ["kafka-python", "confluent"])]


@pytest.fixture
def server(broker: Broker) -> Iterator[TokenServer]:
    oauth.tokens_of.cache_clear()
    with TokenServer(broker.folder) as server:
        yield server


def settings_of(broker: Broker, topic: str, client: str, **more: Any) -> WorkerSettings:
    return WorkerSettings(**{
        "topic": topic, "dimensions": 2, "components": 1, "kafka_client": client,
        "bootstrap_servers": broker.tokens_bootstrap, "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER", "sasl_username": CLIENT, "sasl_password": SECRET, **more,
    })  # fmt: skip


def test_everything_that_connects_logs_in(broker: Broker, topic: str, client: str, server: TokenServer) -> None:
    broker.create_topic(topic)
    dead = broker.create_topic(f"{topic}-dead")
    settings = settings_of(broker, topic, client, sasl_token_url=f"{server.url}?scope=kafka", dead_letter_topic=dead)
    source, letters = client_of(settings), dead_letters_of(settings)
    transactions = transactions_of(settings, None, [topic])
    assert Reader(source).assigned() == {0}
    transactions.recover()
    transactions.send([Outgoing(topic, 0, b"value", None, [], -1)])
    for opened in (source, letters, transactions):
        opened.close()
    assert (server.given, server.scopes) == (1, ["kafka"])


def test_a_wrong_secret_and_an_absent_endpoint_are_errors(
    broker: Broker, topic: str, client: str, server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_START_TIMEOUT_S", 2.0)
    monkeypatch.setattr(confluent_connection, "_START_S", 2.0)
    broker.create_topic(topic)
    for given, text in (
        ({"sasl_token_url": server.url, "sasl_password": SECRET[::-1]}, "refuses the login: "),
        ({"sasl_token_url": "http://127.0.0.1:9/token"}, "no answer from the token endpoint http://127.0.0.1:9/token"),
    ):
        with pytest.raises(SourceError, match=text) as caught:
            client_of(settings_of(broker, topic, client, **given))
        assert SECRET[::-1] not in str(caught.value)


def test_tokens_are_renewed_and_an_absent_endpoint_is_waited_for(
    broker: Broker, topic: str, client: str, server: TokenServer
) -> None:
    broker.create_topic(topic)
    server.life_s = 4
    settings = settings_of(broker, topic, client, sasl_token_url=server.url)
    source = client_of(settings)
    reader, sent = Reader(source), 0

    def poll() -> None:
        for event in reader.poll(0.2):
            if isinstance(event, Assigned):
                source.seek({0: reader.next(0)})

    def reads(what: str) -> None:
        nonlocal sent
        sent += 1
        broker.produce(topic, 0, [b"%d" % sent])
        wait_until(lambda: poll() or reader.values(0)[-1:] == [b"%d" % sent], 60, what)

    while server.given < 3:
        reads("a record with a new token")
    server.__exit__()
    expired_at = time.monotonic() + 2 * server.life_s
    while time.monotonic() < expired_at:
        poll()
    with TokenServer(broker.folder, port=server.server_port):
        reads("a record after the absence")
    source.close()
    assert reader.values(0) == [b"%d" % number for number in range(1, sent + 1)]


def test_tokens_of_aws_are_sent(
    broker: Broker, topic: str, client: str, server: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This broker does not know AWS: it refuses the token, which its log shows to be the signed URL."""
    for name, value in {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_REGION": "eu-west-1"}.items():
        monkeypatch.setenv(name, value)
    broker.create_topic(topic)
    given = {"sasl_mechanism": "AWS_MSK_IAM", "sasl_username": None, "sasl_password": None}
    settings = settings_of(broker, topic, client, **given)
    tokens = oauth.tokens_of(settings)
    assert tokens is not None
    token, expires_at = tokens.current()
    signed = base64.urlsafe_b64decode(token + "==").decode()
    assert signed.startswith("https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect")
    assert 0 < expires_at - time.time() <= 900
    with pytest.raises(SourceError, match="refuses the login"):
        client_of(settings)
    monkeypatch.delenv("AWS_REGION")
    with pytest.raises(SettingsError, match="set AWS_REGION"):
        client_of(settings.model_copy(update={"group_id": "other"}))
    named = settings.model_copy(update={"bootstrap_servers": "b-1.a.b.c2.kafka.us-east-2.amazonaws.com:9098"})
    assert oauth.tokens_of(named) is not None
