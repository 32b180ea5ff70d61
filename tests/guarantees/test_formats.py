"""Workers learn messages from `streampca produce` in every format, with a real broker and schema registry."""

import base64
import contextlib
import re
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import schema_registry

from streampca.errors import NoBrokerError, SettingsError, SourceError
from streampca.formats.base import Layout
from streampca.formats.protobuf import compiled
from streampca.formats.schemas import WriterSchema
from streampca.settings.kafka import FormatSettings
from streampca.sources import schema_registry as module
from tests import command_line
from tests.certificates import Certificates
from tests.errors import refusal
from tests.example_models import models_in, numbered
from tests.guarantees.harness import group, vectors
from tests.http_server import HttpServer
from tests.java_server import available
from tests.kafka_broker import Broker
from tests.registry_process import RegistryProcess
from tests.waiting import PATIENCE_S

ROWS = 700
GUID = "9c6e7f40-1d3a-4f7b-8a55-0123456789ab"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcess]:
    with available(lambda: RegistryProcess(tmp_path_factory.mktemp("registry")), "registry") as running:
        yield running


def produce(broker: Broker, topic: str, rows: np.ndarray, folder: Path, **settings: str) -> None:
    np.save(folder / "rows.npy", rows)
    environment = command_line.variables({"bootstrap_servers": broker.bootstrap, "topic": topic, **settings})
    command_line.printed("produce", folder / "rows.npy", **environment)


@pytest.mark.parametrize(("kind", "field"), [("avro", "a.v"), ("protobuf", "a.v"), ("arrow", "v"), ("json", "a.v")])
def test_a_worker_learns_what_produce_sends(
    broker: Broker, registry: RegistryProcess, new_topic: str, tmp_path: Path, kind: str, field: str
) -> None:
    rows = vectors(ROWS, seed=5)
    settings = {"format": kind, "field": field, "schema_registry_url": registry.url}
    broker.create_topic(f"{new_topic}-dead", 1)
    produce(broker, new_topic, rows[:400], tmp_path, **settings)
    poison = [b"?", None, b"\0\xff\xff\xff\xff?"]
    broker.produce(new_topic, 0, poison)
    with group(broker, new_topic, tmp_path, dead_letter_topic=f"{new_topic}-dead", **settings) as members:
        worker = members.start()
        members.wait_for_progress(worker, 1)
        worker.kill()
        produce(broker, new_topic, rows[400:], tmp_path, **settings)
        members.learn()
        unknown = {"unknown_schema": 1} if kind in ("avro", "protobuf") else {}
        assert members.rejected_beside(rows) == {"undecodable": 2 - len(unknown), **unknown}
        assert members.newest()[0].fold.stats.skipped == 1
    assert {record.value for record in broker.read_all(f"{new_topic}-dead")} == set(poison) - {None}


def test_a_worker_waits_for_an_unavailable_registry(
    broker: Broker, registry: RegistryProcess, new_topic: str, tmp_path: Path
) -> None:
    rows = vectors(ROWS, seed=6)
    settings = {"format": "avro", "schema_registry_url": registry.url}
    produce(broker, new_topic, rows, tmp_path, **settings)
    more = {"on_bad_record": "skip", "session_timeout_s": str(PATIENCE_S)}  # after a rebalance it would log again
    with group(broker, new_topic, tmp_path, **settings, **more) as members:
        registry.freeze()
        try:
            worker = members.start()
            members.wait(lambda: worker.count("decoding stalled"), "a log line about the registry")
            assert members.positions() == {}
        finally:
            registry.thaw()
        members.wait_until_learned()
        assert (worker.count("decoding stalled"), worker.count("decoding resumed")) == (1, 1)
        assert members.rejected_beside(rows) == {}


NewClient = Callable[..., module.SchemaRegistry]


def test_doctor_checks_the_registry(broker: Broker, registry: RegistryProcess, new_topic: str, tmp_path: Path) -> None:
    command = ["doctor", "--topic", new_topic, "--dimensions", "4", "--components", "2"]
    command += ["--bootstrap-servers", broker.bootstrap, "--store", str(tmp_path / "store")]

    def doctor(url: str) -> str:
        return command_line.run(*command, STREAMPCA_FORMAT="avro", STREAMPCA_SCHEMA_REGISTRY_URL=url).stdout

    assert f"✓ schema registry: {registry.url} answers" in doctor(registry.url)
    assert "✗ schema registry: the schema registry http://127.0.0.1:9 cannot be reached" in doctor("http://127.0.0.1:9")


def test_doctor_checks_the_schema_of_outputs(
    broker: Broker, registry: RegistryProcess, new_topic: str, tmp_path: Path, new_client: NewClient
) -> None:
    command = ["doctor", "--topic", new_topic, "--output-topic", f"{new_topic}-out"]
    command += ["--bootstrap-servers", broker.bootstrap, "--store", str(tmp_path)]

    def doctor() -> str:
        return command_line.run(
            *command, STREAMPCA_OUTPUT_FORMAT="avro", STREAMPCA_SCHEMA_REGISTRY_URL=registry.url
        ).stdout

    models_in(tmp_path, new_topic).save(numbered(7))
    subject, client = f"{new_topic}-out-value", new_client(registry.url)
    assert "✓ output schema: outputs can be written as avro" in doctor()
    client.register(subject, WriterSchema("AVRO", '"string"'))
    client._client.set_compatibility(subject, "FULL")
    assert f"✗ output schema: the schema of these outputs is not compatible with those of {subject}" in doctor()


@pytest.fixture
def new_client() -> Iterator[NewClient]:
    """Creates clients of a registry and closes them at the end."""
    with contextlib.ExitStack() as stack:

        def client(url: str, **login: str) -> module.SchemaRegistry:
            settings = FormatSettings.model_validate({"format": "avro", "schema_registry_url": url, **login})
            return stack.enter_context(contextlib.closing(module.SchemaRegistry(settings)))

        yield client


def test_schemas_unknown_ids_references_and_no_registry(registry: RegistryProcess, new_client: NewClient) -> None:
    client = new_client(registry.url)
    refusal(KeyError, client.get, 987_654)
    schema = WriterSchema("AVRO", '{"type":"array","items":"float"}')
    schema_id = client.register("client-value", schema)
    assert client.register("client-value", schema) == schema_id
    assert client.get(schema_id) == schema._replace(references={})
    inner, outer = 'syntax = "proto3"; message Inner { bytes v = 1; }', 'syntax = "proto3"; import "in/inner.proto"; '
    client.register("inner", WriterSchema("PROTOBUF", inner))
    referring = schema_registry.Schema(
        outer + "message Outer { Inner inner = 1; }",
        "PROTOBUF",
        [schema_registry.SchemaReference("in/inner.proto", "inner", 1)],
    )
    found = client.get(client._client.register_schema("outer", referring))
    assert (found.kind, set(found.references)) == ("PROTOBUF", {"in/inner.proto"})
    assert "Inner" in compiled(found).file[0].message_type[0].name
    assert "cannot be reached" in refusal(TimeoutError, new_client("http://127.0.0.1:9").get, 1)


def test_a_registry_over_tls(
    registry: RegistryProcess, new_client: NewClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = WriterSchema("AVRO", '{"type":"array","items":"double"}')
    monkeypatch.setenv("SSL_CERT_FILE", str(registry.certificates.authority))
    client = new_client(registry.tls_url)
    assert client.get(client.register("over-tls", schema)) == schema._replace(references={})
    others = Certificates(tmp_path).make()
    monkeypatch.setenv("SSL_CERT_FILE", str(others.authority))
    with pytest.raises(TimeoutError, match=r"cannot be reached.*CERTIFICATE_VERIFY_FAILED"):
        new_client(registry.tls_url).get(1)
    monkeypatch.setenv("SSL_CERT_FILE", str(others.server_key))
    assert "SSL_CERT_FILE" in refusal(SettingsError, new_client, registry.tls_url)


def fake_registry(request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, object]:
    """A registry that requires a password, and answers a schema's id of three digits as a status.

    It tells the types of schemas to all but bob.
    """
    login, path = request.headers.get("Authorization"), request.path
    ann, bob = (f"Basic {base64.b64encode(name + b':secret').decode()}" for name in (b"ann", b"bob"))
    if login != ann and not (path == "/schemas/types" and login != bob):
        return 401, {"error_code": 401, "message": "who are you?"}
    if found := re.match(r"/schemas/ids/(\d{3})\b", path):
        return int(found[1]), {"error_code": int(found[1]), "message": "not this one"}
    if path.startswith(f"/schemas/guids/{GUID}"):
        return 200, {"schema": '"int"', "schemaType": "AVRO", "guid": GUID}
    if path.startswith("/schemas/guids"):
        return 404, {"error_code": 40403, "message": "no such schema"}
    return 200, ["AVRO"] if path == "/schemas/types" else {"schema": '"bytes"'}


def test_passwords_and_errors_of_a_registry(new_client: NewClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fake registry: Apicurio's supports passwords only with an identity provider."""
    with HttpServer(fake_registry) as server:
        url = server.root
        good = new_client(url, schema_registry_login="ann:secret")
        assert good.get(1) == WriterSchema("AVRO", '"bytes"', {})
        assert good.get(GUID) == WriterSchema("AVRO", '"int"', {})
        refusal(KeyError, good.get, GUID.upper())
        for status in (408, 429, 500, 503):  # a busy registry refuses no id
            assert "not this one" in refusal(TimeoutError, good.get, status)
        for status in (400, 404, 422):  # one id is no reason to stop: its records are dead letters
            refusal(KeyError, good.get, status)
        monkeypatch.setattr(module, "_UNKNOWN_AFTER_S", 0.0)
        refusal(KeyError, good.get, 500)
        expired = new_client(url, schema_registry_login="ann:expired")
        for refused in (lambda: good.get(403), lambda: expired.get(1), lambda: new_client(url).get(1)):
            assert re.search(r"refuses access \(40[13]\): check schema_registry_login", refusal(TimeoutError, refused))
        assert "schema_registry_login" in refusal(
            SourceError, new_client(url, schema_registry_login="bob:secret").get, 1
        )


@pytest.mark.parametrize(("status", "kind"), [(500, NoBrokerError), (422, SourceError), (401, SourceError)])
def test_a_registry_that_is_away_does_not_refuse_a_writer(status: int, kind: type[SourceError]) -> None:
    layout = Layout({"v": "numbers"}, record="Outputs")
    with HttpServer(lambda *_: (status, {"error_code": status, "message": "no"})) as server:
        settings = FormatSettings.model_validate({"schema_registry_url": server.root})
        with pytest.raises(SourceError) as caught:
            module.create_writer(settings, "avro", "outputs", layout)
    assert type(caught.value) is kind


@pytest.mark.parametrize("answer", [{"status": 404, "error": "Not Found"}, "no such page", ["no", "registry"]])
def test_a_server_without_a_registry_at_this_path_refuses_no_schema(new_client: NewClient, answer: object) -> None:
    layout = Layout({"v": "numbers"}, record="Outputs")
    with HttpServer(lambda *_: (404, answer)) as server:
        assert "does not answer as it should" in refusal(TimeoutError, new_client(server.root).get, 1)
        settings = FormatSettings.model_validate({"schema_registry_url": server.root})
        for must_register in (True, False):
            with pytest.raises(SourceError, match="does not answer as it should"):
                module.create_writer(settings, "avro", "outputs", layout, must_register=must_register)


def test_a_writer_is_refused_if_the_registry_does_not_find_its_subject() -> None:
    layout = Layout({"v": "numbers"}, record="Outputs")
    with HttpServer(lambda *_: (404, {"error_code": 40401, "message": "no such subject"})) as server:
        settings = FormatSettings.model_validate({"schema_registry_url": server.root})
        with pytest.raises(SourceError, match="cannot find outputs-value"):
            module.create_writer(settings, "avro", "outputs", layout)
        assert module.create_writer(settings, "avro", "outputs", layout, must_register=False)
