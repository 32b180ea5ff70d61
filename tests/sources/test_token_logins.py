"""Logins with tokens, by both clients: a real broker verifies those of a token server, and is sent AWS's."""

import base64
import re
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from streampca.errors import NoBrokerError, SourceError
from streampca.formats.record import Record
from streampca.sources import oauth_tokens
from streampca.sources.clients import create_dead_letters
from streampca.sources.oauth_tokens import OAuthTokens, create_tokens
from tests.errors import refusal
from tests.faulty_proxy import FaultyProxy
from tests.kafka_broker import Broker
from tests.ports import free_ports
from tests.sources.backends import OnKafka, settings_for
from tests.sources.reader import Reader
from tests.token_server import SECRET, TokenServer
from tests.waiting import Clock, wait_until

MSK = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "AWS_MSK_IAM"}


@pytest.fixture
def tokens(broker: Broker) -> Iterator[TokenServer]:
    with TokenServer(broker.folder) as server:
        yield server


def read_refusal(make: Any, settings: Any) -> str:
    """Return the error that `make` raises, after checking that it shows no secret."""
    text = refusal(SourceError, make, settings)
    assert not re.search(rf"eyJ|{SECRET}|{SECRET[::-1]}", text)
    return text


def test_clients_share_a_token(broker: Broker, topic: str, tokens: TokenServer, kind: type[OnKafka]) -> None:
    dead = broker.create_topic(f"{broker.create_topic(topic)}-dead")
    settings = settings_for(
        broker,
        topic,
        **tokens.login(broker.tokens_bootstrap, "?scope=a%20b&audience=c"),
        dead_letter_topic=dead,
        kafka_client=kind.client,
    )
    source = kind.source(settings)
    dead_letters = create_dead_letters(settings)
    assert Reader(source).wait_for_assignment() == {0}
    assert tokens.asked == [{"grant_type": ["client_credentials"], "scope": ["a b"], "audience": ["c"]}]
    dead_letters.close()
    source.close()


def test_a_wrong_secret_is_an_error(broker: Broker, topic: str, tokens: TokenServer, kind: type[OnKafka]) -> None:
    login = tokens.login(broker.tokens_bootstrap) | {"sasl_password": SECRET[::-1], "kafka_client": kind.client}
    wrong = settings_for(broker, topic, **login, dead_letter_topic="d")
    for make in (kind.source, create_dead_letters):
        assert read_refusal(make, wrong).startswith(
            f"the token endpoint {tokens.url} gives no token (401 invalid_client); check sasl_username"
        )


def test_dead_letters_wait_idly_while_their_login_is_refused(
    broker: Broker, topic: str, tokens: TokenServer, kind: type[OnKafka]
) -> None:
    """The broker ends the connection at the first request after the token's end."""
    dead = broker.create_topic(topic)
    tokens.lifetime_s = 3.0
    login = tokens.login(broker.tokens_bootstrap)
    settings = settings_for(broker, "t", **login, dead_letter_topic=dead, kafka_client=kind.client)
    values = [b"before", b"refused"]
    with closing(create_dead_letters(settings)) as letters:

        def is_flushed() -> bool:
            with suppress(SourceError, TimeoutError):
                letters.flush(0.2)
                return True
            return False

        letters.send(0, Record(0, values[0], 1), "undecodable", "no")
        wait_until(is_flushed)
        tokens.knows_client = False
        time.sleep(tokens.lifetime_s + 1)  # how long the token lasts
        letters.send(0, Record(1, values[1], 1), "undecodable", "no")
        used, refused_until = time.process_time(), time.monotonic() + 5
        while time.monotonic() < refused_until:
            assert not is_flushed()
        assert time.process_time() - used < 2
        tokens.knows_client = True
        wait_until(is_flushed)
    assert [record.value for record in broker.read_all(dead)] == values


def test_a_token_for_another_audience_is_refused(
    broker: Broker, topic: str, tokens: TokenServer, kind: type[OnKafka]
) -> None:
    tokens.audience = "others"
    text = read_refusal(kind.source, settings_for(broker, topic, **tokens.login(broker.tokens_bootstrap)))
    assert "refuses the login" in text
    assert "invalid_token" in text


@pytest.mark.parametrize("status", [None, 503])
def test_an_absent_token_endpoint_is_an_error(
    broker: Broker, topic: str, tokens: TokenServer, kind: type[OnKafka], status: int | None
) -> None:
    tokens.failure = status
    if status is None:
        tokens.stop()
    assert tokens.url in read_refusal(kind.source, settings_for(broker, topic, **tokens.login(broker.tokens_bootstrap)))


@pytest.mark.parametrize("status", [None, 408, 429, 503, 401, 404])
def test_a_token_that_cannot_be_renewed_is_used_while_it_is_valid(
    broker: Broker, tokens: TokenServer, status: int | None
) -> None:
    """Also if the login is refused: that ends nothing before the token does."""
    tokens.lifetime_s = 100
    login = create_tokens(settings_for(broker, "t", **tokens.login(broker.tokens_bootstrap)))
    first = login.current()
    tokens.failure = status
    if status is None:
        tokens.stop()
    login._next_request_at = 0  # as after 50 s
    assert login.current() == first
    assert login.may_be_expired
    for left_s, waits in ((30, True), (-1, status not in (401, 404))):
        login._expiry = time.time() + left_s
        login._next_request_at = 0
        with pytest.raises(SourceError) as caught:
            login.current()
        assert (isinstance(caught.value, NoBrokerError), login.may_be_expired) == (waits, waits)
    tokens.failure = None
    if status is None:
        tokens.start()
    login._next_request_at = 0
    assert login.current() != first


def test_a_client_that_starts_longer_than_its_token_lives_logs_in_with_the_next(
    broker: Broker, topic: str, tokens: TokenServer, kind: type[OnKafka]
) -> None:
    """The broker ends its connection, and refuses the expired token until the client asks for another."""
    broker.create_topic(topic)
    tokens.lifetime_s = 3.0
    settings = settings_for(broker, topic, **tokens.login(broker.tokens_bootstrap), kafka_client=kind.client)
    with closing(kind.source(settings)) as source:
        time.sleep(2 * tokens.lifetime_s)  # how long the start takes is what is tested: kernels are compiled, say
        source.topic_id()
        assert Reader(source).wait_for_assignment() == {0}


@pytest.mark.parametrize("replaced_after_s", [5, 10, 30])
def test_a_refusal_is_final_unless_a_token_has_just_ended(
    replaced_after_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients learn of a new one up to 20 s after the one before has expired, or was replaced."""
    clock = Clock(1000.0)
    monkeypatch.setattr(oauth_tokens.time, "time", clock)
    login = OAuthTokens(lambda: ("token", clock() + 10))
    login.current()
    assert not login.may_be_expired
    clock.now += replaced_after_s
    assert login.may_be_expired == (replaced_after_s >= 10)
    login.current()
    ended_at = max(1010.0, clock())
    for at, is_late in ((ended_at - 1, False), (ended_at, True), (ended_at + 19, True)):
        login._expiry = at + 1
        clock.now = at  # another token lives now
        assert login.may_be_expired == is_late
    login._expiry = ended_at + 30
    clock.now = ended_at + 21
    assert not login.may_be_expired


def test_brokers_are_sent_the_token_that_is_signed_for_msk(
    broker: Broker, topic: str, kind: type[OnKafka], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only AWS's brokers can verify it; this one refuses it."""
    for name, value in {"ACCESS_KEY_ID": "AKIDEXAMPLE", "SECRET_ACCESS_KEY": SECRET, "REGION": "eu-west-3"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    (port,) = free_ports(1)
    with FaultyProxy(port, broker.tokens) as proxy:
        text = read_refusal(kind.source, settings_for(broker, topic, **MSK, bootstrap_servers=f"127.0.0.1:{port}"))
    assert "refuses the login" in text
    sent = re.search(rb"n,,\x01auth=Bearer ([\w-]+)\x01\x01", proxy.requests)
    url = urlsplit(base64.urlsafe_b64decode(sent[1] + b"===").decode())
    assert url.hostname == "kafka.eu-west-3.amazonaws.com"
    query = parse_qs(url.query)
    assert query["Action"] == ["kafka-cluster:Connect"]
    assert query["X-Amz-Credential"][0].startswith("AKIDEXAMPLE/")
    assert "/eu-west-3/kafka-cluster/" in query["X-Amz-Credential"][0]


def test_without_credentials_of_aws_nothing_is_signed(
    topic: str, broker: Broker, tmp_path: Path, kind: type[OnKafka], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "PROFILE"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("CONFIG_FILE", "SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(f"AWS_{name}", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_REGION", "eu-west-2")  # of no other test: a token is kept
    assert "AWS_MSK_IAM needs credentials of AWS" in read_refusal(kind.source, settings_for(broker, topic, **MSK))
